//! What is declared at a start and needs something that could not be made: somebody makes another of that name meanwhile.

use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use weir_control::Controller;
use weir_control::declare::Desired;
use weir_control::model::{Command, DeviceKind, MapSpec, PoolSpec, Raid, VolumeSpec};

const MIB: u64 = 1 << 20;

async fn node(dir: &Scratch) -> (Arc<Controller>, Arc<Fake>) {
    let fake = Arc::new(Fake::default());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    c.execute(Command::CreatePool(ram_pool("b", GIB))).await.expect("a pool");
    (c, fake)
}

/// A volume to be read only, in pool `a`, for host `h`.
fn file() -> Desired {
    Desired {
        pools: vec![ram_pool("a", GIB)],
        volumes: vec![VolumeSpec { read_only: true, ..volume("db", "a", 8 * MIB) }],
        hosts: vec![host("h", &["1:2"])],
        maps: vec![map("h", "db")],
        ..Desired::default()
    }
}

fn mapped(c: &Controller) -> Vec<String> {
    c.model().maps.iter().map(|m| m.volume.clone()).collect()
}

async fn faults(c: &Controller) -> Vec<String> {
    c.status().await.expect("a status").faults.into_iter().map(|f| f.object).collect()
}

/// Pool `a` is down at the start, and somebody makes a volume of that name elsewhere. What host `h` sees later.
async fn made_otherwise() -> Vec<String> {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    fake.break_call("start_pool a");
    c.declare_at_start(file()).await;
    c.execute(Command::CreateVolume(volume("db", "b", 8 * MIB))).await.expect("made");
    tried_again(&c).await;
    fake.mend();
    until("the pool is made", async || c.model().pools.contains_key("a")).await;
    tried_again(&c).await;
    let seen = mapped(&c);
    if seen.is_empty() {
        assert_eq!(faults(&c).await, ["declared/map/h/db"], "it is told");
    }
    seen
}

#[tokio::test]
async fn a_host_is_not_given_another_volume_of_the_name() {
    assert_eq!(made_otherwise().await, Vec::<String>::new());
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_host_that_is_given_another_volume_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::AnyOfItsName));
    let seen = made_otherwise().await;
    plant(None);
    assert_eq!(seen, ["db"]);
}

/// Only the mapping is open, as its number is another's. The volume is deleted, and made anew elsewhere.
#[tokio::test]
async fn a_volume_that_was_made_anew_is_another_one() {
    let dir = Scratch::new();
    let (c, _fake) = node(&dir).await;
    c.execute(Command::CreateVolume(volume("other", "b", MIB))).await.expect("made");
    c.execute(Command::CreateHost(host("h", &["1:2"]))).await.expect("made");
    let number = |volume: &str| MapSpec { lun: Some(0), ..map("h", volume) };
    c.execute(Command::CreateMap(number("other"))).await.expect("mapped");
    c.declare_at_start(Desired { maps: vec![number("db")], ..file() }).await;
    assert_eq!(faults(&c).await, ["declared/map/h/db"]);
    c.execute(delete_volume("db")).await.expect("deleted");
    c.execute(Command::CreateVolume(volume("db", "b", 8 * MIB))).await.expect("made anew");
    c.execute(Command::DeleteMap { host: "h".into(), volume: "other".into() }).await.expect("gone");
    tried_again(&c).await;
    assert_eq!(mapped(&c), Vec::<String>::new());
    // As it is declared it is the one.
    c.execute(delete_volume("db")).await.expect("deleted");
    let right = file().volumes.remove(0);
    c.execute(Command::CreateVolume(right)).await.expect("as declared");
    until("it is mapped", async || mapped(&c) == ["db"]).await;
    assert_eq!(faults(&c).await, Vec::<String>::new());
}

/// A pool of that name is made without the protection that is declared.
#[tokio::test]
async fn a_volume_is_not_made_in_another_pool_of_the_name() {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    fake.break_call("start_pool a");
    let device = [(DeviceKind::File, Some("/nowhere/a"), Some(GIB))];
    let wanted = PoolSpec { raid: Some(Raid::Zero), ..pool("a", &device) };
    c.declare_at_start(Desired { pools: vec![wanted], ..file() }).await;
    fake.mend();
    c.execute(Command::CreatePool(ram_pool("a", GIB))).await.expect("another one");
    tried_again(&c).await;
    assert!(!c.model().volumes.contains_key("db"));
    assert_eq!(faults(&c).await, ["declared/map/h/db", "declared/volume/db"]);
}

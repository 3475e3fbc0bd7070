//! What was declared at a start, could not be, and is tried again: beside a corrected declaration and beside commands.

use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use weir_control::Controller;
use weir_control::declare::Desired;
use weir_control::model::{
    Command, DeviceKind, HostPatch, HostSpec, MigrationSpec, Model, PoolSpec, Raid,
};
use weir_control::store::MetaStore;

const MIB: u64 = 1 << 20;

async fn faults(c: &Controller) -> Vec<String> {
    c.status().await.expect("a status").faults.into_iter().map(|f| f.object).collect()
}

async fn node(dir: &Scratch) -> (Arc<Controller>, Arc<Fake>) {
    let fake = Arc::new(Fake::default());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    (c, fake)
}

fn file(hosts: Vec<HostSpec>) -> Desired {
    Desired {
        pools: vec![ram_pool("mem", GIB)],
        volumes: vec![volume("v", "mem", 8 * MIB)],
        hosts,
        ..Desired::default()
    }
}

/// A pool of the file cannot be opened. How often that is told, after it was tried some times.
async fn told_of_one_that_fails() -> usize {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    fake.break_call("start_pool mem");
    c.declare_at_start(Desired { pools: vec![ram_pool("mem", GIB)], ..Desired::default() }).await;
    for _ in 0..2 {
        tried_again(&c).await;
    }
    let tries = fake.state().calls.iter().filter(|c| *c == "start_pool mem").count();
    assert!(tries > 2, "it is tried again");
    c.events().after(0, 1000).events.iter().filter(|e| e.kind == "error").count()
}

#[tokio::test]
async fn what_is_tried_again_is_told_once() {
    assert_eq!(told_of_one_that_fails().await, 1);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn what_is_told_each_time_is_seen() {
    weir_control::planted::plant(Some(weir_control::planted::Bug::ToldEachTime));
    let told = told_of_one_that_fails().await;
    weir_control::planted::plant(None);
    assert!(told > 2);
}

/// The file names a port twice, and is corrected and applied, as docs/operations.md says. Later the port becomes free. Who sees
/// volume `v` then, which is mapped to nobody, and what faults there are.
async fn after_a_correction() -> (Vec<String>, Vec<String>) {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    let wrong = Desired {
        maps: vec![map("typo", "v")],
        ..file(vec![host("good", &["1:2"]), host("typo", &["1:2"])])
    };
    c.declare_at_start(wrong).await;
    assert_eq!(faults(&c).await, ["declared/host/typo", "declared/map/typo/v"]);
    let right = file(vec![host("good", &["1:2"])]);
    c.declare(right).await.expect("the corrected file is applied");
    // The host gets another adapter, and the old one goes into another machine.
    let ports = |ports: [&str; 1]| ports.iter().map(|p| p.parse().expect("a port")).collect();
    let patch = HostPatch {
        add_ports: ports(["5:6"]),
        remove_ports: ports(["1:2"]),
        ..HostPatch::default()
    };
    c.execute(Command::PatchHost { name: "good".into(), patch }).await.expect("patched");
    tried_again(&c).await;
    let access = fake.state().access.clone();
    let sees = access.hosts.iter().filter(|h| !h.luns.is_empty()).map(|h| h.name.clone());
    (sees.collect(), faults(&c).await)
}

#[tokio::test]
async fn a_declaration_that_was_corrected_is_not_carried_out_later() {
    assert_eq!(after_a_correction().await, (vec![], vec![]));
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_declaration_that_is_retried_for_ever_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::RetriedForEver));
    let (sees, _) = after_a_correction().await;
    plant(None);
    assert_eq!(sees, ["typo"]);
}

/// The same file, corrected and applied just while what did not start is tried again: the retry, which has the old file in its hands, does
/// not put back what was corrected.
#[tokio::test]
async fn a_retry_does_not_put_back_what_was_applied_meanwhile() {
    let dir = Scratch::new();
    // Something else does not start either, and takes its time at that.
    let mut model = Model::default();
    model.apply(Command::CreatePool(ram_pool("slow", GIB)), 1).expect("a pool");
    let store = MetaStore::open(dir.path()).expect("a store");
    store.commit(&Model::default(), &model).expect("kept");
    drop(store);
    let fake = Arc::new(Fake::default());
    fake.break_call("start_pool slow");
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    let wrong = file(vec![host("good", &["1:2"]), host("other", &["1:1", "1:2"])]);
    c.declare_at_start(wrong).await;
    assert!(faults(&c).await.contains(&"declared/host/other".to_string()), "set-up");
    fake.state().slow_pools.insert("slow".into(), Duration::from_secs(2));
    while !fake.state().calls.iter().any(|c| c == "start_pool slow begins") {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // It is being tried again.
    let right = file(vec![host("good", &["3:4"]), host("other", &["1:1"])]);
    c.declare(right).await.expect("the corrected file is applied");
    let is = |c: &Controller| c.model().hosts["other"].ports.clone();
    let applied = is(&c);
    tried_again(&c).await;
    assert_eq!(
        is(&c),
        applied,
        "initiator ports of host `other`: those that were taken back see its volumes again"
    );
}

/// A volume that was grown by hand is not as it is declared. It is deleted by hand, and stays deleted: nobody asked for a new one.
#[tokio::test]
async fn what_was_deleted_by_hand_does_not_come_back_while_it_is_retried() {
    let dir = Scratch::new();
    let (c, _fake) = node(&dir).await;
    for command in [
        Command::CreatePool(ram_pool("mem", GIB)),
        Command::CreateVolume(volume("v", "mem", 16 * MIB)),
    ] {
        c.execute(command).await.expect("the command works");
    }
    c.declare_at_start(file(Vec::new())).await;
    assert_eq!(faults(&c).await, ["declared/volume/v"], "set-up: it is larger");
    c.execute(delete_volume("v")).await.expect("deleted");
    tried_again(&c).await;
    assert!(
        !c.model().volumes.contains_key("v"),
        "a volume that was deleted is there again, empty"
    );
}

/// What the data plane was told after everything was taken down, beside a long command and something that is tried again.
async fn done_after_the_end() -> Vec<String> {
    let dir = Scratch::new();
    let fake = Arc::new(Fake::default());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    c.execute(Command::CreatePool(ram_pool("mem", GIB))).await.expect("a pool");
    let spec = pool("safe", &[(DeviceKind::File, Some("/nowhere/d"), Some(GIB))]);
    let spec = PoolSpec { raid: Some(Raid::Zero), ..spec };
    for command in [
        Command::CreatePool(spec),
        Command::CreatePool(ram_pool("other", GIB)),
        Command::CreateVolume(volume("v", "mem", 8 * MIB)),
        Command::PutTarget(target("srp0", "127.0.0.1:5555")),
    ] {
        c.execute(command).await.expect("it can be so");
    }
    // A migration that leaves something behind, which is tried again.
    fake.break_call("end_migration v");
    let to = MigrationSpec { pool: Some("other".into()), ..MigrationSpec::default() };
    c.start_migration("v".into(), to).await.expect("it moves");
    c.cancel_migration("v".into()).await.expect("it stays");
    fake.break_call("start_target srp0");
    let other = Command::PutTarget(target("srp0", "127.0.0.1:6666"));
    c.execute(other).await.expect_err("it is refused, and cannot be taken back");
    fake.state().slow_pools.insert("slow".into(), Duration::from_secs(7));
    let pause = || tokio::time::sleep(Duration::from_millis(300));
    let run = |command| {
        let c = c.clone();
        tokio::spawn(async move { c.execute(command).await })
    };
    let long = run(Command::CreatePool(ram_pool("slow", GIB)));
    pause().await;
    let end = c.clone();
    let down = tokio::spawn(async move { end.shutdown().await });
    pause().await;
    let late = run(Command::CreatePool(ram_pool("late", GIB)));
    let forced = c.clone();
    let forced = tokio::spawn(async move { forced.force_pool("safe".into()).await });
    long.await.expect("it ran").expect("a pool");
    down.await.expect("it ran").expect("an end");
    drop((late.await.expect("it ran"), forced.await.expect("it ran")));
    pause().await;
    let calls = fake.state().calls.clone();
    let last = calls.iter().rposition(|c| c.starts_with("stop_pool")).expect("it was taken down");
    calls[last + 1..].to_vec()
}

#[tokio::test]
async fn nothing_is_begun_after_the_end() {
    assert_eq!(done_after_the_end().await, Vec::<String>::new());
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn what_is_begun_after_the_end_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::GoesOnAfterEnd));
    let done = done_after_the_end().await;
    plant(None);
    assert!(!done.is_empty());
}

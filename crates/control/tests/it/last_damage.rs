//! What devices had is told and kept when nobody counts it any more.

use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use weir_control::Controller;
use weir_control::live::{DamageLive, PoolDeviceLive, PoolLive};
use weir_control::model::{Command, DeviceKind, PoolSpec, Raid};

/// Pool `safe` in its opening of that number, of whose only device so many copies were found damaged since then.
fn counted(fake: &Fake, opening: u64, copies: u64) {
    let id = "00000000000000d0";
    let device = PoolDeviceLive { id: id.into(), damaged: copies, ..PoolDeviceLive::default() };
    let damage = DamageLive { device: id.into(), copies, ..DamageLive::default() };
    fake.state().live_pools = vec![PoolLive {
        name: "safe".into(),
        opening,
        devices: vec![device],
        damage: vec![damage],
        ..PoolLive::default()
    }];
}

/// Texts of events of damage.
fn told(c: &Controller) -> Vec<String> {
    let all = c.events().after(0, 1000).events.into_iter();
    all.filter(|e| e.kind == "pool.damage").map(|e| e.text).collect()
}

/// A node with pool `safe`, of which damage was told a moment ago, and more was found since.
async fn found() -> (Scratch, Arc<Fake>, Arc<Controller>) {
    let dir = Scratch::new();
    let fake = Arc::new(Fake::default());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    let spec = pool("safe", &[(DeviceKind::File, Some("/nowhere/d0"), Some(GIB))]);
    let spec = Command::CreatePool(PoolSpec { raid: Some(Raid::Zero), ..spec });
    c.execute(spec).await.expect("a pool");
    counted(&fake, 1, 1);
    until("it is told", async || told(&c).len() == 1).await;
    counted(&fake, 1, 3);
    (dir, fake, c)
}

/// What was told when the daemon ends, and what the next one has counted.
async fn over_the_end() -> (usize, u64) {
    let (dir, fake, c) = found().await;
    c.shutdown().await.expect("down");
    let texts = told(&c);
    assert!(texts.iter().skip(1).all(|t| t.contains("2 damaged copies")), "{texts:?}");
    drop(fake);
    gone(c).await;
    let fake = Arc::new(Fake::default());
    counted(&fake, 2, 0);
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    let live = c.status().await.expect("a status").live;
    (texts.len(), live.pools[0].devices[0].damaged)
}

#[tokio::test]
async fn what_was_found_just_before_the_end_is_told_and_kept() {
    assert_eq!(over_the_end().await, (2, 3));
}

#[tokio::test]
async fn what_was_found_just_before_a_pool_is_let_go_of_is_told() {
    let (_dir, _fake, c) = found().await;
    c.release_pool("safe".into()).await.expect("let go of");
    assert_eq!(told(&c).len(), 2);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn what_is_told_by_nobody_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::LastUntold));
    let told = over_the_end().await;
    plant(None);
    assert_eq!(told, (1, 1));
}

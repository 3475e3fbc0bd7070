//! A pool that was to go, and could not be closed in order: it is closed all the same, the command is refused, and the pool comes back.

use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_control::Controller;
use weir_control::model::{Command, DeviceKind, PoolSpec, Raid, SnapshotPolicySpec};

/// Whether a pool, and a volume in it, are open again after a refused release or deletion; its devices are back at once, or later.
async fn comes_back(delete: bool, later: bool) -> bool {
    let (dir, fake) = (Scratch::new(), Arc::new(Fake::default()));
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    let spec = pool("safe", &[(DeviceKind::File, Some("/nowhere/d"), Some(GIB))]);
    let spec = PoolSpec { raid: Some(Raid::Zero), ..spec };
    c.execute(Command::CreatePool(spec)).await.expect("a pool");
    if !delete {
        let made = Command::CreateVolume(volume("v", "safe", 1 << 20));
        c.execute(made).await.expect("a volume");
    }
    fake.break_call("stop_pool safe");
    if later {
        fake.break_call("start_pool safe");
    }
    let done = match delete {
        true => c.execute(Command::DeletePool { name: "safe".into() }).await.map(drop),
        false => c.release_pool("safe".into()).await,
    };
    done.expect_err("it is refused");
    assert!(c.model().pools.contains_key("safe"), "it is in the configuration");
    let is_back = || {
        let s = fake.state();
        s.pools.contains_key("safe") && (delete || s.volumes.contains_key("v"))
    };
    if !later {
        return is_back();
    }
    let told = c.status().await.expect("a status").faults;
    let is_told = told.iter().any(|f| f.object == "pool/safe");
    fake.mend();
    let begun = Instant::now();
    while !is_back() && begun.elapsed() < Duration::from_secs(12) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    is_told && is_back()
}

#[tokio::test]
async fn a_pool_comes_back_when_its_release_or_deletion_is_refused() {
    for (delete, later) in [(false, false), (false, true), (true, false), (true, true)] {
        assert!(comes_back(delete, later).await, "delete: {delete}, later: {later}");
    }
}

/// How often the pool was told its rules for periodic snapshots: when they were given, and in its next life.
async fn told_rules() -> usize {
    let (dir, fake) = (Scratch::new(), Arc::new(Fake::default()));
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    let spec = pool("safe", &[(DeviceKind::File, Some("/nowhere/d"), Some(GIB))]);
    let rules = vec!["every=1d,keep=2".parse().expect("a rule")];
    for command in [
        Command::CreatePool(PoolSpec { raid: Some(Raid::Zero), ..spec }),
        Command::CreateVolume(volume("v", "safe", 1 << 20)),
        Command::SetSnapshotRules(SnapshotPolicySpec { volumes: vec!["v".into()], rules }),
    ] {
        c.execute(command).await.expect("it can be so");
    }
    fake.break_call("stop_pool safe");
    c.release_pool("safe".into()).await.expect_err("it is refused");
    fake.mend();
    assert!(fake.state().pools.contains_key("safe"), "it is open again");
    tried_again(&c).await;
    let s = fake.state();
    s.calls.iter().filter(|c| *c == "set_snapshot_rules safe 1").count()
}

#[tokio::test]
async fn a_pool_that_is_open_again_follows_its_rules() {
    assert_eq!(told_rules().await, 2);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn rules_that_a_pool_is_not_told_again_are_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::RulesOfFormerLife));
    let told = told_rules().await;
    plant(None);
    assert_eq!(told, 1);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_pool_that_is_taken_for_open_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::ClosedStaysUp));
    let back = comes_back(false, false).await;
    plant(None);
    assert!(!back);
}

//! What a configuration file says may be overwritten, at a start and by a command.

use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use weir_control::Controller;
use weir_control::declare::Desired;
use weir_control::model::{DeviceKind, Overwrite, PoolSpec, Raid};

/// What may be lost on the devices of a pool that a file declares: at a start, and when the file is applied.
async fn may_be_lost() -> [Vec<String>; 2] {
    let dir = Scratch::new();
    let fake = Arc::new(Fake::default());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    let declared = |name: &str| {
        let path = format!("/nowhere/{name}");
        let spec = pool(name, &[(DeviceKind::File, Some(&path), Some(GIB))]);
        let overwrite = Overwrite(vec!["weir".into(), "ext4".into()]);
        let pools = vec![PoolSpec { raid: Some(Raid::Zero), overwrite, ..spec }];
        Desired { pools, ..Desired::default() }
    };
    c.declare_at_start(declared("a")).await;
    c.declare(declared("b")).await.expect("applied");
    let lost = fake.state().may_be_lost.clone();
    ["a", "b"].map(|name| lost[name].0.clone())
}

/// It may have been released since, or the node has lost its store: the file says the same as when the pool was made.
#[tokio::test]
async fn a_file_is_no_leave_to_destroy_a_pool_at_a_start() {
    let [start, applied] = may_be_lost().await;
    assert_eq!((start, applied), (vec!["ext4".into()], vec!["weir".into(), "ext4".into()]));
}

/// What may be lost on a device that cannot be had at a start: then, and when the pool is tried again.
async fn may_be_lost_later() -> [Vec<String>; 2] {
    let dir = Scratch::new();
    let fake = Arc::new(Fake::default());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    fake.state().taken.insert("/dev/x".into());
    let disk = PoolSpec {
        overwrite: Overwrite(vec!["ext4".into()]),
        ..pool("disk", &[(DeviceKind::Block, Some("/dev/x"), None)])
    };
    c.declare_at_start(Desired { pools: vec![disk], ..Desired::default() }).await;
    let lost = || fake.state().may_be_lost["disk"].0.clone();
    let first = lost();
    tried_again(&c).await;
    [first, lost()]
}

/// The disk that was there is away, or mounted; another one may have its name by the next time.
#[tokio::test]
async fn a_file_is_no_leave_to_destroy_what_comes_after_a_start() {
    let [start, later] = may_be_lost_later().await;
    assert_eq!((start, later), (vec!["ext4".to_string()], Vec::new()));
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn leave_that_stays_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::LeaveForGood));
    let [_, later] = may_be_lost_later().await;
    plant(None);
    assert!(!later.is_empty());
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_file_that_destroys_pools_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::FileDestroysPools));
    let [start, _] = may_be_lost().await;
    plant(None);
    assert!(start.contains(&"weir".to_string()));
}

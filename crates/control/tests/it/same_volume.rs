//! A volume that was refused, and another one of its name.

use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use weir_control::Controller;
use weir_control::model::{
    Carried, Command, DatasetFound, DeviceKind, ImportSpec, Model, PoolFound, PoolSpec, Raid,
};

const MIB: u64 = 1 << 20;

fn safe(name: &str, path: &str) -> Command {
    let spec = pool(name, &[(DeviceKind::File, Some(path), Some(GIB))]);
    Command::CreatePool(PoolSpec { raid: Some(Raid::Zero), ..spec })
}

/// Pool `other` with volume `v`, as another node left it.
fn found() -> PoolFound {
    let mut m = Model::default();
    for command in [
        safe("other", "/nowhere/o"),
        Command::CreateVolume(volume("v", "other", 8 * MIB)),
        Command::ReadyVolume { name: "v".into() },
    ] {
        m.apply(command, 4711).expect("it can be so");
    }
    let id = m.pools["other"].protection.as_ref().expect("it is protected").id;
    let v = &m.volumes["v"];
    let dataset = DatasetFound { name: v.dataset(), size: v.size, block_size: v.block_size };
    let record = m.pool_record("other").expect("a record").bytes().expect("bytes");
    PoolFound { id, copies: 1, members: 1, record: Carried::one(record), datasets: vec![dataset] }
}

async fn imported(refused_before: bool) -> (bool, usize) {
    let dir = Scratch::new();
    let fake = Arc::new(Fake::default());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    c.execute(safe("full", "/nowhere/f")).await.expect("a pool");
    if refused_before {
        // It is made and opened, and then the pool has no room for what it should carry of it.
        fake.break_call("keep_record full");
        let made = c.execute(Command::CreateVolume(volume("v", "full", MIB))).await;
        assert!(made.is_err() && !c.model().volumes.contains_key("v"), "set-up: it is refused");
        fake.mend();
    }
    fake.state().found = Some(found());
    let devices = pool("x", &[(DeviceKind::File, Some("/nowhere/o"), None)]).devices;
    let spec = ImportSpec {
        name: None,
        devices,
        prefix: String::new(),
        key_commands: false,
        without_hosts: false,
        force: false,
        dry_run: false,
    };
    c.import_pool(spec).await.expect("taken over");
    tried_again(&c).await;
    let faults = c.status().await.expect("a status").faults.len();
    let is_open = fake.state().volumes.contains_key("v");
    (is_open, faults)
}

/// A volume that comes with a pool is opened, also if a command to make one of that name was refused before.
#[tokio::test]
async fn a_volume_of_the_name_of_one_that_was_refused_is_opened() {
    assert_eq!(imported(false).await, (true, 0), "set-up");
    let (is_open, faults) = imported(true).await;
    assert!(is_open || faults > 0, "hosts do not get the volume, and nothing tells so");
}

/// Whether a pool is taken over, and written to, while some of what it carries cannot be read for the moment: that may be the only
/// wrapped key of a volume.
async fn taken_over_unread(force: bool) -> bool {
    let dir = Scratch::new();
    let fake = Arc::new(Fake::default());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    let mut found = found();
    found.record.doubtful.push(7);
    fake.state().found = Some(found);
    let devices = pool("x", &[(DeviceKind::File, Some("/nowhere/o"), None)]).devices;
    let spec = ImportSpec {
        name: None,
        devices,
        prefix: String::new(),
        key_commands: false,
        without_hosts: false,
        force,
        dry_run: true,
    };
    let plan = c.import_pool(spec.clone()).await.expect("a plan");
    assert!(plan.left_out.iter().any(|l| l.contains("cannot be read")), "{plan:?}");
    let done = c.import_pool(ImportSpec { dry_run: false, ..spec }).await;
    let kept = fake.state().calls.iter().any(|c| c == "keep_record other");
    assert_eq!(done.is_ok(), kept, "{done:?}");
    kept
}

#[tokio::test]
async fn what_cannot_be_read_of_a_pool_is_not_overwritten_but_by_force() {
    assert!(!taken_over_unread(false).await);
    assert!(taken_over_unread(true).await);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_pool_whose_keys_are_overwritten_unread_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::UnreadIsLost));
    let kept = taken_over_unread(false).await;
    plant(None);
    assert!(kept);
}

//! Volumes that are made smaller, beside the commands that do it, undo it, or delete them.

use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use weir_control::Controller;
use weir_control::model::{Command, VolumePatch};

/// A volume `v` of 64 MiB.
async fn node(dir: &Scratch) -> (Arc<Controller>, Arc<Fake>) {
    let fake = Arc::new(Fake::default());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    for command in [
        Command::CreatePool(ram_pool("mem", GIB)),
        Command::CreateVolume(volume("v", "mem", 64 << 20)),
    ] {
        c.execute(command).await.expect("the command works");
    }
    (c, fake)
}

fn halve() -> Command {
    let patch = VolumePatch { size: Some(32 << 20), allow_shrink: true, ..VolumePatch::default() };
    Command::PatchVolume { name: "v".into(), patch }
}

/// Whether the end of `v` was thrown away although the command that makes it smaller was refused.
async fn cut_and_refused() -> bool {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    fake.state().stalled.insert("v".into());
    assert!(c.execute(halve()).await.is_err(), "hosts' commands did not end");
    assert_eq!(c.model().volumes["v"].size, 64 << 20, "it is as it was");
    fake.state().calls.contains(&"cut_volume v".to_string())
}

#[tokio::test]
async fn a_shrink_that_is_refused_cuts_nothing_off() {
    assert!(!cut_and_refused().await, "the end of a volume that keeps it was thrown away");
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_cut_that_does_not_wait_for_the_command_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::CutAmongChanges));
    let wrong = cut_and_refused().await;
    plant(None);
    assert!(wrong);
}

/// What a cut throws away is not the next owner's: a cut that was to begin during a deletion does not outlive it.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_leaves_no_cut_behind() {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    // A cut that fails is tried again every five seconds.
    fake.break_call("cut_volume v");
    c.execute(halve()).await.expect("it is smaller");
    assert!(c.model().volumes["v"].cut.is_some());
    tokio::time::sleep(Duration::from_millis(4650)).await;
    fake.mend();
    fake.state().slow_cuts = true;
    fake.state().calls.clear();
    // A data directory on a busy disk: the next change waits a little to be durable.
    let reservations = fake.state().hooks.clone().expect("hooks").reservations;
    for n in 0..250 {
        reservations.save(&format!("x{n}"), vec![7; 900 << 10], Box::new(|_| {}));
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let deleted = c.execute(delete_volume("v")).await;
    let calls = fake.state().calls.clone();
    let at = |call: &str| calls.iter().rposition(|c| c == call);
    assert!(deleted.is_err() || at("delete_volume_data v").is_some());
    if let (Some(given_back), Some(cut)) = (at("delete_volume_data v"), at("cut_volume v")) {
        assert!(
            cut > given_back || at("cut_ended v").is_some_and(|ended| ended < given_back),
            "the space went back to the pool under a cut that goes on: {calls:?}"
        );
    }
}

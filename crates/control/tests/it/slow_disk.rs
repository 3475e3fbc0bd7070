//! Changes for which hosts' I/O is held back, when the disk of the configuration takes longer than hosts bear.
//!
//! Time stands still here but when a test says so.

use crate::fake::Fake;
use crate::full::Held;
use crate::owed::node;
use crate::support::*;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use weir_control::model::{Command, LayerChange, LayerSpec, MigrationSpec, MigrationStage};

/// Longer than I/O is held back for a change of the configuration.
const LONG: Duration = Duration::from_secs(6);

/// Waits until something is so, without the time going on.
async fn until(what: &str, so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < Duration::from_secs(120), "{what}");
        tokio::task::yield_now().await;
    }
}

/// Calls that hold hosts' I/O back or let it go on.
fn calls(fake: &Fake) -> Vec<String> {
    let is_of_it = |c: &String| c.starts_with("hold_") || c.starts_with("decide_");
    fake.state().calls.iter().filter(|c| is_of_it(c)).cloned().collect()
}

/// A layer comes in, and the disk takes its time; the change cannot be written then if it `fails`.
async fn layer_on_a_slow_disk(fails: bool) {
    let (file, fake, c) = node().await;
    let held = file.hold();
    let spec = LayerSpec { kind: "delay".into(), ..LayerSpec::default() };
    let me = c.clone();
    let change =
        tokio::spawn(async move { me.change_layers("v".into(), LayerChange::Insert(spec)).await });
    until("the disk has the change", || held.is_awaited()).await;
    assert_eq!(calls(&fake), ["hold_layers v delay.1"]);
    tokio::time::advance(LONG).await;
    until("hosts go on as before", || calls(&fake).len() > 1).await;
    let mut all = vec!["hold_layers v delay.1", "decide_layers v false"];
    assert_eq!(calls(&fake), all);
    assert!(!change.is_finished(), "it is not known yet whether it is durable");
    if fails {
        file.after(0);
    }
    drop(held);
    let done = change.await.expect("it ends");
    assert_eq!(done.is_err(), fails, "{done:?}");
    if !fails {
        // Nothing was held back any more.
        all.push("decide_layers v true");
    }
    assert_eq!(calls(&fake), all);
    let layers = usize::from(!fails);
    assert_eq!(c.model().volumes["v"].layers.len(), layers);
    assert_eq!(fake.state().volumes["v"].layers.len(), layers);
}

#[tokio::test(start_paused = true)]
async fn hosts_do_not_wait_for_a_layer_that_is_long_in_becoming_durable() {
    layer_on_a_slow_disk(false).await;
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_could_not_be_made_durable_after_all_is_nowhere() {
    layer_on_a_slow_disk(true).await;
}

/// A volume has been copied, and the disk takes its time with the cut-over; that cannot be written at first if it `fails`.
async fn cut_over_on_a_slow_disk(fails: bool) {
    let (file, fake, c) = node().await;
    c.execute(Command::CreatePool(ram_pool("other", GIB))).await.expect("a pool");
    fake.state().moves.insert("v".into(), "copying".into());
    let spec = MigrationSpec { pool: Some("other".into()), ..MigrationSpec::default() };
    c.start_migration("v".into(), spec).await.expect("it moves");
    let held = file.hold();
    fake.state().moves.insert("v".into(), "ready".into());
    // It is looked at ten times a second.
    tokio::time::advance(Duration::from_millis(200)).await;
    until("the disk has the change", || held.is_awaited()).await;
    assert_eq!(calls(&fake), ["hold_migration v"]);
    tokio::time::advance(LONG).await;
    until("hosts go on with both sides", || calls(&fake).len() > 1).await;
    assert_eq!(calls(&fake), ["hold_migration v", "decide_migration v Doubtful"]);
    let stage = || c.model().volumes["v"].migration.as_ref().map(|m| m.stage);
    assert_eq!(stage(), Some(MigrationStage::Copying), "it is not known whether it has moved");
    if fails {
        file.after(0);
    }
    drop(held);
    if fails {
        until("it cannot be written", || file.has_refused()).await;
        file.has_room_again();
    }
    let begun = Instant::now();
    while stage().is_some() {
        assert!(begun.elapsed() < Duration::from_secs(120), "it is over: {:?}", calls(&fake));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(c.model().volumes["v"].pool, "other");
    let decided = ["hold_migration v", "decide_migration v Moved"];
    assert_eq!(calls(&fake)[2..], decided, "both sides are the same until that is sure");
    ended(&fake, c);
}

/// The old place is given back after hosts have left it.
fn ended(fake: &Arc<Fake>, c: Arc<weir_control::Controller>) {
    let all = fake.state().calls.clone();
    let at = |call: &str| all.iter().position(|c| c == call).expect("it was called");
    assert!(at("decide_migration v Moved") < at("end_migration v"));
    assert!(at("end_migration v") < at("clear_place v"));
    drop(c);
}

#[tokio::test(start_paused = true)]
async fn hosts_do_not_wait_for_a_cut_over_that_is_long_in_becoming_durable() {
    cut_over_on_a_slow_disk(false).await;
}

#[tokio::test(start_paused = true)]
async fn a_cut_over_that_could_not_be_made_durable_after_all_is_made_again() {
    cut_over_on_a_slow_disk(true).await;
}

/// Whoever asks how the node is keeps a thread of the control plane: a disk that hangs would have all of them.
/// Whether it is told in time that the disk does not answer.
async fn told_of_a_disk_that_hangs() -> bool {
    let (file, _fake, c) = node().await;
    let held = Arc::new(Mutex::new(Some(file.hold())));
    let is_awaited = || held.lock().expect("it").as_ref().is_some_and(Held::is_awaited);
    let me = c.clone();
    let pool = Command::CreatePool(ram_pool("other", GIB));
    let change = tokio::spawn(async move { me.execute(pool).await });
    crate::support::until("the disk has the change", async || is_awaited()).await;
    // The test ends also if that is not so.
    let late = held.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(20));
        drop(late.lock().expect("it").take());
    });
    c.status().await.expect("a status");
    assert!(is_awaited(), "it came after the disk");
    let told = async || {
        let faults = c.status().await.expect("a status").faults;
        faults.iter().any(|f| f.object == "configuration" && f.text.contains("not written yet"))
    };
    let mut is_told = false;
    while !is_told && is_awaited() {
        is_told = told().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(held.lock().expect("it").take());
    change.await.expect("it ends").expect("a pool");
    assert!(!told().await, "it is well again");
    is_told
}

#[tokio::test]
async fn a_status_does_not_wait_for_the_disk_of_the_configuration() {
    assert!(told_of_a_disk_that_hangs().await);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_disk_that_hangs_and_is_told_as_well_is_seen() {
    weir_control::planted::plant(Some(weir_control::planted::Bug::HungIsWell));
    let told = told_of_a_disk_that_hangs().await;
    weir_control::planted::plant(None);
    assert!(!told);
}

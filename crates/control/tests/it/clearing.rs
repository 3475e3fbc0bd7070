//! Space of plain pools that takes long to be given back, and files of volumes that do not answer: nobody else waits for them.

use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use weir_control::Controller;
use weir_control::declare::ApplySpec;
use weir_control::model::{AdoptSpec, Command, ImageFound, MigrationSpec, Model, VolumeState};
use weir_control::store::MetaStore;

const MIB: u64 = 1 << 20;
/// Longer than any test lasts.
const LONG: Duration = Duration::from_secs(3600);
/// Of volumes in image mode.
const NAMES: [&str; 4] = ["a0", "a1", "a2", "a3"];

async fn node(dir: &Scratch) -> (Arc<Fake>, Arc<Controller>) {
    let fake = Arc::new(Fake::default());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    for command in [
        Command::CreatePool(ram_pool("p", GIB)),
        Command::CreatePool(ram_pool("other", GIB)),
        Command::CreateVolume(volume("v", "p", 8 * MIB)),
        Command::CreateVolume(volume("z", "p", 8 * MIB)),
        Command::PutTarget(target("srp0", "127.0.0.1:0")),
    ] {
        c.execute(command).await.expect("it can be so");
    }
    (fake, c)
}

fn is_at(fake: &Fake, call: &str) -> bool {
    fake.state().calls.iter().any(|c| c == call)
}

/// The end of a node, in order. Its data directory is free.
async fn ended(c: Arc<Controller>, fake: Arc<Fake>) {
    c.shutdown().await.expect("a stop waits for no such thing");
    gone(c).await;
    // The plane has a part of the store.
    let left = Arc::downgrade(&fake);
    drop(fake);
    until("its tasks have ended", async || left.strong_count() == 0).await;
}

/// Whether another change gets through while what is called begins and does not end.
async fn others_go_on(fake: &Fake, c: &Arc<Controller>, begins: &str) -> bool {
    until("it has begun", async || is_at(fake, begins)).await;
    let made = c.execute(Command::CreateHost(host("h", &["1:2"])));
    tokio::time::timeout(Duration::from_secs(10), made).await.is_ok_and(|done| done.is_ok())
}

/// A volume is deleted whose device takes hours to throw its data away.
async fn deletes() -> bool {
    let dir = Scratch::new();
    let (fake, c) = node(&dir).await;
    fake.state().late.insert("delete_volume_data v".into(), LONG);
    let deleted = tokio::spawn({
        let c = c.clone();
        async move { c.execute(delete_volume("v")).await }
    });
    if !others_go_on(&fake, &c, "delete_volume_data v begins").await {
        return false;
    }
    assert_eq!(c.model().volumes["v"].state, VolumeState::Deleting, "its space is not free");
    // The command waits a while, and says that it is still there.
    let now = deleted.await.expect("a task").expect("it is being deleted");
    assert!(now.volumes.contains_key("v"));
    assert_eq!(c.status().await.expect("a status").faults, [], "nothing is wrong");
    ended(c, fake).await;
    // A restart goes on with it, and serves everything else at once.
    let fake = Arc::new(Fake::default());
    fake.state().late.insert("delete_volume_data v".into(), LONG);
    let started = Controller::start(dir.path(), fake.clone());
    let c = tokio::time::timeout(Duration::from_secs(20), started).await;
    let c = c.expect("it starts in time").expect("a controller");
    until("it goes on", async || is_at(&fake, "delete_volume_data v begins")).await;
    assert!(fake.state().volumes.contains_key("z") && fake.state().targets.contains_key("srp0"));
    // When it has come to its end, it is gone.
    ended(c, fake).await;
    let c = Controller::start(dir.path(), Arc::new(Fake::default())).await.expect("a controller");
    until("it is gone", async || !c.model().volumes.contains_key("v")).await;
    true
}

#[tokio::test]
async fn a_device_that_throws_data_away_for_hours_keeps_nobody_waiting() {
    assert!(deletes().await);
}

/// It takes longer than others are kept waiting, and less than the command waits.
#[tokio::test]
async fn a_deletion_that_takes_a_moment_has_ended_when_its_command_has() {
    let dir = Scratch::new();
    let (fake, c) = node(&dir).await;
    fake.state().late.insert("delete_volume_data v".into(), Duration::from_secs(3));
    let now = c.execute(delete_volume("v")).await.expect("it is deleted");
    assert!(!now.volumes.contains_key("v"));
    assert!(fake.state().calls.iter().filter(|c| *c == "delete_volume_data v").count() == 1);
}

/// It takes longer than its command waits, and ends then.
async fn ends_later() -> bool {
    let dir = Scratch::new();
    let (fake, c) = node(&dir).await;
    fake.state().late.insert("delete_volume_data v".into(), Duration::from_secs(13));
    let now = c.execute(delete_volume("v")).await.expect("it is being deleted");
    assert!(now.volumes.contains_key("v"));
    until("its space is free", async || is_at(&fake, "delete_volume_data v")).await;
    let begun = std::time::Instant::now();
    while c.model().volumes.contains_key("v") && begun.elapsed() < Duration::from_secs(10) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(c.status().await.expect("a status").faults, []);
    !c.model().volumes.contains_key("v")
}

#[tokio::test]
async fn a_deletion_comes_to_its_end_though_nobody_waits_for_it() {
    assert!(ends_later().await);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_deletion_that_nobody_ends_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::ClearedUnasked));
    let done = ends_later().await;
    plant(None);
    assert!(!done);
}

/// Many are being deleted when the node starts, and their devices take long: ports do not wait for each.
#[tokio::test]
async fn many_deletions_keep_no_start_waiting() {
    let dir = Scratch::new();
    let (fake, c) = node(&dir).await;
    let names: Vec<String> = (0..20).map(|n| format!("d{n}")).collect();
    for name in &names {
        c.execute(Command::CreateVolume(volume(name, "p", 8 * MIB))).await.expect("made");
    }
    let old = c.model();
    ended(c, fake).await;
    let mut m = Model::clone(&old);
    for name in &names {
        m.apply(Command::DeleteVolume { name: name.clone() }, 0).expect("it is to go");
    }
    let store = MetaStore::open(dir.path()).expect("a store");
    store.commit(&old, &m).expect("kept");
    drop(store);
    let fake = Arc::new(Fake::default());
    for name in &names {
        fake.state().late.insert(format!("delete_volume_data {name}"), LONG);
    }
    let started = Controller::start(dir.path(), fake.clone());
    let c = tokio::time::timeout(Duration::from_secs(15), started).await;
    drop(c.expect("it starts in time").expect("a controller"));
    assert!(fake.state().volumes.contains_key("z") && fake.state().targets.contains_key("srp0"));
    let begun = |n: &&String| is_at(&fake, &format!("delete_volume_data {n} begins"));
    assert_eq!(names.iter().filter(begun).count(), names.len());
}

/// A pool goes with its volumes, whose space takes a moment.
#[tokio::test]
async fn what_is_pruned_is_waited_for() {
    let dir = Scratch::new();
    let (fake, c) = node(&dir).await;
    for v in ["v", "z"] {
        fake.state().late.insert(format!("delete_volume_data {v}"), Duration::from_secs(3));
    }
    let spec = ApplySpec { prune: true, delete_all_data: true, ..ApplySpec::default() };
    let report = c.apply(spec).await.expect("a report");
    assert_eq!(crate::applied::failed(&report), []);
    assert!(c.model().volumes.is_empty() && c.model().pools.is_empty());
}

#[tokio::test]
async fn a_deletion_that_fails_late_says_so() {
    let dir = Scratch::new();
    let (fake, c) = node(&dir).await;
    fake.state().late.insert("delete_volume_data v".into(), Duration::from_secs(3));
    fake.break_call("delete_volume_data v");
    let failed = c.execute(delete_volume("v")).await.expect_err("it cannot be deleted");
    assert!(failed.to_string().contains("not wholly deleted"), "{failed}");
    fake.state().late.clear();
    fake.mend();
    until("it is tried again", async || !c.model().volumes.contains_key("v")).await;
    until("nothing is wrong", async || c.status().await.expect("a status").faults.is_empty()).await;
}

/// A volume has left a place that takes hours to be cleared; another one moves meanwhile.
async fn leaves() -> bool {
    let dir = Scratch::new();
    let (fake, c) = node(&dir).await;
    fake.state().late.insert("clear_place v".into(), LONG);
    for name in ["v", "z"] {
        fake.state().moves.insert(name.into(), "ready".into());
        let spec = MigrationSpec { pool: Some("other".into()), ..MigrationSpec::default() };
        c.start_migration(name.into(), spec).await.expect("it moves");
    }
    if !others_go_on(&fake, &c, "clear_place v begins").await {
        return false;
    }
    until("the other one has moved", async || c.model().volumes["z"].migration.is_none()).await;
    assert!(c.model().volumes["v"].migration.is_some(), "its old place is not free");
    assert_eq!(c.status().await.expect("a status").faults, [], "nothing is wrong");
    true
}

#[tokio::test]
async fn a_place_that_is_cleared_for_hours_keeps_nobody_waiting() {
    assert!(leaves().await);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn space_that_is_given_back_while_all_others_wait_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::ClearedAmongChanges));
    let done = [deletes().await, leaves().await];
    plant(None);
    assert_eq!(done, [false, false]);
}

/// Four volumes in image mode are on a file system that hangs when the node starts. Whether what else there is comes at once.
async fn starts_beside_images() -> bool {
    let dir = Scratch::new();
    let (fake, c) = node(&dir).await;
    let old = c.model();
    ended(c, fake).await;
    let fake = Arc::new(Fake::default());
    let mut m = Model::clone(&old);
    for name in NAMES {
        let path = format!("/nowhere/{name}");
        let found =
            ImageFound { path: path.clone(), size: 8 * MIB, block_size: 512, identity: None };
        let (block_size, serial) = (None, None);
        let spec = AdoptSpec { name: name.into(), path, block_size, read_only: false, serial };
        m.apply(Command::AdoptVolume { spec, found }, 77).expect("adopted");
    }
    let store = MetaStore::open(dir.path()).expect("a store");
    store.commit(&old, &m).expect("kept");
    drop(store);
    let answers = Arc::new(Notify::new());
    for name in NAMES {
        fake.state().hung_devices.insert(format!("/nowhere/{name}"), answers.clone());
    }
    let started = Controller::start(dir.path(), fake.clone());
    let Ok(c) = tokio::time::timeout(Duration::from_secs(15), started).await else { return false };
    let c = c.expect("a controller");
    assert!(fake.state().volumes.contains_key("z") && fake.state().targets.contains_key("srp0"));
    let faults = c.status().await.expect("a status").faults;
    let silent = faults.iter().filter(|f| f.text.contains("does not answer")).count();
    assert_eq!(silent, 4, "{faults:?}");
    fake.state().hung_devices.clear();
    answers.notify_waiters();
    until("they come", async || fake.state().volumes.contains_key("a3")).await;
    until("nothing is wrong", async || c.status().await.expect("a status").faults.is_empty()).await;
    true
}

#[tokio::test]
async fn images_that_do_not_answer_keep_nobody_from_starting() {
    assert!(starts_beside_images().await);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn images_that_are_opened_one_after_the_other_are_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::ImagesOneByOne));
    let done = starts_beside_images().await;
    plant(None);
    assert!(!done);
}

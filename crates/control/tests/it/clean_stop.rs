//! A pool that lacks a device starts without it after an orderly stop, if nothing can be newer than what is there.

use crate::fake::Fake;
use crate::full::Full;
use crate::support::*;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_control::Controller;
use weir_control::controller::sample_every;
use weir_control::model::{Command, DeviceKind, PoolSpec, Raid};
use weir_control::store::MetaStore;

/// What the devices had when the pool was closed.
const LAST: u64 = 7;

fn mirror() -> Command {
    let two = ["/nowhere/d0", "/nowhere/d1"].map(|d| (DeviceKind::File, Some(d), Some(GIB)));
    Command::CreatePool(PoolSpec { raid: Some(Raid::One), ..pool("safe", &two) })
}

/// A life of the node. `newest`: what the devices have that are there.
async fn life(dir: &Scratch, newest: u64, lacks: bool) -> (Arc<Fake>, Arc<Controller>) {
    // What is late is late by some of these.
    sample_every(Duration::from_millis(300));
    let fake = Arc::new(Fake::default());
    fake.state().last.insert("safe".into(), newest);
    if lacks {
        fake.state().lack.insert("safe".into());
    }
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    (fake, c)
}

/// A node with a mirror that was closed in order.
async fn stopped() -> Scratch {
    let dir = Scratch::new();
    let (_, c) = life(&dir, LAST, false).await;
    c.execute(mirror()).await.expect("a pool");
    end(c).await;
    dir
}

async fn end(c: Arc<Controller>) {
    c.shutdown().await.expect("it stops");
    let lock = c.data_dir().join("weir.lock");
    gone(c).await;
    let is_free = || std::fs::File::open(&lock).map_or(true, |f| f.try_lock().is_ok());
    until("the data directory is free", async || is_free()).await;
}

fn is_open(fake: &Fake) -> bool {
    fake.state().pools.contains_key("safe")
}

/// Whether the pool of a node that begins another life, and lacks a device, is open after some tries.
async fn starts(dir: &Scratch, newest: u64) -> (bool, Arc<Controller>) {
    let (fake, c) = life(dir, newest, true).await;
    assert!(!is_open(&fake), "a device that is late by a moment is waited for");
    for _ in 0..2 {
        tried_again(&c).await;
    }
    let open = is_open(&fake);
    let told = c.status().await.expect("it tells").faults.iter().any(|f| f.object == "pool/safe");
    assert_eq!(told, !open);
    (open, c)
}

#[tokio::test]
async fn a_pool_that_lacks_a_device_starts_by_itself_after_an_orderly_stop() {
    let dir = stopped().await;
    let (open, c) = starts(&dir, LAST).await;
    assert!(open);
    end(c).await;
    assert!(starts(&dir, LAST).await.0, "and again");
}

#[tokio::test]
async fn a_pool_is_not_started_without_a_device_when_what_is_there_is_not_the_last() {
    let dir = stopped().await;
    let (open, c) = starts(&dir, LAST - 1).await;
    assert!(!open);
    // It was not opened: what was so is so after another orderly stop.
    end(c).await;
    assert!(starts(&dir, LAST).await.0);
}

async fn after_a_kill() {
    let dir = stopped().await;
    let (fake, c) = life(&dir, LAST, false).await;
    assert!(is_open(&fake));
    drop(fake);
    gone(c).await;
    assert!(!starts(&dir, LAST).await.0, "others may be ahead");
}

#[tokio::test]
async fn a_pool_is_not_started_without_a_device_after_a_kill() {
    after_a_kill().await;
}

async fn after_a_stop_that_left_it_open() {
    let dir = stopped().await;
    let (fake, c) = life(&dir, LAST, false).await;
    assert!(is_open(&fake));
    fake.break_call("stop_pool safe");
    c.shutdown().await.expect_err("it is left open");
    drop(fake);
    gone(c).await;
    assert!(!starts(&dir, LAST).await.0, "others may be ahead");
}

#[tokio::test]
async fn a_pool_is_not_started_without_a_device_after_a_stop_that_left_it_open() {
    after_a_stop_that_left_it_open().await;
}

/// The copy may be of long ago.
#[tokio::test]
async fn a_configuration_of_a_copy_starts_no_pool_without_a_device() {
    let dir = stopped().await;
    let copy = dir.path().join("copy.json");
    std::fs::copy(dir.path().join("config.json"), &copy).expect("copied");
    std::fs::remove_file(dir.path().join("weir.redb")).expect("removed");
    drop(MetaStore::restore(dir.path(), &copy).expect("restored"));
    assert!(!starts(&dir, LAST).await.0);
}

/// A copy of the store is put back that was made when the pool had been closed in order; `also`: what is done then, before the node
/// is started in earnest.
async fn after_a_copy(also: impl FnOnce(&Scratch)) {
    let dir = stopped().await;
    let store = dir.path().join("weir.redb");
    let older = std::fs::read(&store).expect("read");
    let (fake, c) = life(&dir, LAST, false).await;
    assert!(is_open(&fake));
    drop(fake);
    gone(c).await;
    until("the store is free", async || MetaStore::open(dir.path()).is_ok()).await;
    std::fs::write(&store, older).expect("put back");
    also(&dir);
    assert!(!starts(&dir, LAST).await.0, "others may be ahead");
}

#[tokio::test]
async fn a_copy_of_the_store_starts_no_pool_without_a_device() {
    after_a_copy(|_| ()).await;
    // A life that came to nothing before the pool was opened.
    after_a_copy(|dir| drop(MetaStore::open(dir.path()).expect("a store"))).await;
    after_a_copy(|dir| std::fs::remove_file(dir.path().join("config.json")).expect("gone")).await;
}

/// The whole directory is put back.
#[tokio::test]
async fn a_copy_of_the_data_directory_starts_no_pool_without_a_device() {
    let dir = stopped().await;
    let files = ["weir.redb", "weir.lock", "config.json"];
    let copies = files.map(|f| std::fs::read(dir.path().join(f)).expect("read"));
    for (name, copy) in files.iter().zip(copies) {
        std::fs::write(dir.path().join(name), copy).expect("put back");
    }
    assert!(!starts(&dir, LAST).await.0, "others may be ahead");
}

/// An opening writes to a device, and then another one fails, or it breaks off. Whether the pool is opened without a device after
/// that.
async fn after_an_opening_that_wrote(breaks_off: bool) -> bool {
    let dir = stopped().await;
    let fake = Arc::new(Fake::default());
    {
        let mut s = fake.state();
        s.last.insert("safe".into(), LAST);
        let fails = if breaks_off { &mut s.breaks_off } else { &mut s.unfinished };
        fails.insert("safe".into());
    }
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    assert!(!is_open(&fake));
    fake.state().unfinished.clear();
    fake.state().breaks_off.clear();
    fake.state().lack.insert("safe".into());
    tried_again(&c).await;
    tried_again(&c).await;
    let here = is_open(&fake);
    drop(fake);
    end(c).await;
    here || starts(&dir, LAST).await.0
}

#[tokio::test]
async fn what_an_opening_that_failed_wrote_is_not_the_last_state() {
    for breaks_off in [false, true] {
        assert!(!after_an_opening_that_wrote(breaks_off).await, "others may be ahead");
    }
}

/// Another pool is opened soon after the first try. Whether one that lacks a device by then is opened without it at once.
async fn opened_with_another() -> bool {
    let dir = stopped().await;
    let fake = Arc::new(Fake::default());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    let two = ["/nowhere/e0", "/nowhere/e1"].map(|d| (DeviceKind::File, Some(d), Some(GIB)));
    let other = PoolSpec { raid: Some(Raid::One), ..pool("other", &two) };
    c.execute(Command::CreatePool(other)).await.expect("a pool");
    drop(fake);
    end(c).await;
    let dir = stopped_again(&dir).await;
    let fake = Arc::new(Fake::default());
    {
        let mut s = fake.state();
        s.last.insert("safe".into(), LAST);
        s.lack.insert("safe".into());
        s.slow_pools.insert("other".into(), Duration::from_millis(1800));
    }
    sample_every(Duration::from_secs(1));
    let c = Controller::start(dir, fake.clone()).await.expect("a controller");
    until("it is open", async || fake.state().pools.contains_key("other")).await;
    // By then it has been tried again, or is not for now.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let open = is_open(&fake);
    until("it is not late any more", async || is_open(&fake)).await;
    drop(fake);
    end(c).await;
    open
}

/// One more life that ends in order.
async fn stopped_again(dir: &Scratch) -> &Path {
    let (_, c) = life(dir, LAST, false).await;
    end(c).await;
    dir.path()
}

#[tokio::test]
async fn a_device_that_is_late_is_waited_for_beside_other_pools() {
    assert!(!opened_with_another().await, "it was late by a moment");
}

/// The file system of the store is full: as long as it says how a pool was closed, that pool is not opened. All others are.
#[tokio::test]
async fn a_store_that_takes_no_changes_keeps_nothing_else_down() {
    let file = Full::default();
    let start = async |fake: &Arc<Fake>, full: bool| {
        let store = MetaStore::open_on(file.clone()).expect("a store");
        if full {
            file.after(0);
        }
        Controller::start_on(store, Path::new("/nowhere"), fake.clone(), Vec::new()).await
    };
    let fake = Arc::new(Fake::default());
    let c = start(&fake, false).await.expect("a controller");
    fake.state().last.insert("safe".into(), LAST);
    c.execute(mirror()).await.expect("a pool");
    c.execute(Command::CreatePool(ram_pool("plain", GIB))).await.expect("a pool");
    drop(fake);
    end(c).await;
    file.closed().await;
    let fake = Arc::new(Fake::default());
    let c = start(&fake, true).await.expect("what needs no store is served");
    tried_again(&c).await;
    assert!(fake.state().pools.contains_key("plain"));
    assert!(!is_open(&fake), "after a kill nobody would know that it was opened");
    let told = c.status().await.expect("a status").faults;
    assert!(told.iter().any(|f| f.object == "pool/safe"), "{told:?}");
    file.has_room_again();
    until("it is open", async || is_open(&fake)).await;
}

/// The first changes of the store fail that a life makes. Whether the pool is opened without a device when there is room again.
async fn starts_on_a_full_disk(after: u64) -> bool {
    let (dir, file) = (Scratch::new(), Full::default());
    let store = || MetaStore::open_on(file.clone()).expect("a store").in_directory(dir.path());
    let begin = async |store: MetaStore, fake: &Arc<Fake>| {
        let c = Controller::start_on(store, dir.path(), fake.clone(), Vec::new()).await;
        c.expect("a controller")
    };
    let fake = Arc::new(Fake::default());
    fake.state().last.insert("safe".into(), LAST);
    let c = begin(store().expect("locked"), &fake).await;
    c.execute(mirror()).await.expect("a pool");
    drop(fake);
    end(c).await;
    file.closed().await;
    let fake = Arc::new(Fake::default());
    fake.state().last.insert("safe".into(), LAST);
    fake.state().lack.insert("safe".into());
    let of_full = store().expect("locked");
    file.after(after);
    let c = begin(of_full, &fake).await;
    tried_again(&c).await;
    assert!(!is_open(&fake) && file.has_refused(), "set-up");
    file.has_room_again();
    for _ in 0..3 {
        tried_again(&c).await;
    }
    is_open(&fake)
}

/// That the records cannot be given away at first makes them no others: the directory has changed by then, by this very life.
#[tokio::test]
async fn a_record_outlives_a_store_that_takes_no_changes_for_a_while() {
    assert!(starts_on_a_full_disk(0).await);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn records_that_are_read_anew_are_caught() {
    weir_control::planted::plant(Some(weir_control::planted::Bug::RecordsReadAnew));
    let open = starts_on_a_full_disk(0).await;
    weir_control::planted::plant(None);
    assert!(!open);
}

/// The store was away for a life, in which one device went on alone, and is put back.
#[tokio::test]
async fn a_store_that_was_away_for_a_life_starts_no_pool_without_a_device() {
    let dir = stopped().await;
    let files = ["weir.redb", "config.json"].map(|f| dir.path().join(f));
    let kept = files.each_ref().map(|f| std::fs::read(f).expect("read"));
    std::fs::remove_file(&files[0]).expect("away");
    let copy = dir.path().join("copy.json");
    std::fs::rename(&files[1], &copy).expect("a copy");
    drop(MetaStore::restore(dir.path(), &copy).expect("restored"));
    let (_, c) = life(&dir, LAST + 1, false).await;
    end(c).await;
    files.iter().zip(kept).for_each(|(f, bytes)| std::fs::write(f, bytes).expect("put back"));
    assert!(!starts(&dir, LAST).await.0, "others may be ahead");
}

#[cfg(feature = "planted")]
#[tokio::test]
#[should_panic(expected = "others may be ahead")]
async fn a_record_in_a_copy_is_caught() {
    weir_control::planted::plant(Some(weir_control::planted::Bug::CopyVouches));
    after_a_copy(|_| ()).await;
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn an_opening_that_wrote_and_counts_as_none_is_caught() {
    use weir_control::planted::{Bug, plant};
    for (bug, breaks_off) in [(Bug::UnfinishedIsNone, false), (Bug::BrokenOffIsNone, true)] {
        plant(Some(bug));
        let open = after_an_opening_that_wrote(breaks_off).await;
        plant(None);
        assert!(open);
    }
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn devices_that_are_not_waited_for_are_caught() {
    weir_control::planted::plant(Some(weir_control::planted::Bug::NobodyIsLate));
    let open = opened_with_another().await;
    weir_control::planted::plant(None);
    assert!(open);
}

#[cfg(feature = "planted")]
#[tokio::test]
#[should_panic(expected = "others may be ahead")]
async fn a_record_that_stays_is_caught() {
    weir_control::planted::plant(Some(weir_control::planted::Bug::StoppedForEver));
    after_a_kill().await;
}

#[cfg(feature = "planted")]
#[tokio::test]
#[should_panic(expected = "others may be ahead")]
async fn a_record_that_outlives_an_opening_is_caught() {
    weir_control::planted::plant(Some(weir_control::planted::Bug::StoppedThoughOpened));
    after_a_stop_that_left_it_open().await;
}

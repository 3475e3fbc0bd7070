//! What is owed: a change that the data plane refused, while the file system of the store is full, so that it cannot be taken back yet.

use crate::fake::Fake;
use crate::full::Full;
use crate::support::*;
use crate::undone::{read_in_the_end, unread_at_first};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_control::live::{Fault, SnapshotLive};
use weir_control::model::{
    CloneSpec, Command, DeviceKind, MigrationSpec, PoolPatch, PoolSpec, Raid, VolumePatch,
};
use weir_control::store::MetaStore;
use weir_control::{Code, Controller};

const MIB: u64 = 1 << 20;

/// A node with a volume of 8 MiB and a full file system after so many operations of the store.
pub(crate) async fn node() -> (Full, Arc<Fake>, Arc<Controller>) {
    let (file, fake) = (Full::default(), Arc::new(Fake::default()));
    let store = MetaStore::open_on(file.clone()).expect("a store");
    let c = Controller::start_on(store, Path::new("/nowhere"), fake.clone(), Vec::new()).await;
    let c = c.expect("a controller");
    for command in [
        Command::CreatePool(ram_pool("mem", GIB)),
        Command::CreateVolume(volume("v", "mem", 8 * MIB)),
        Command::CreateVolume(volume("w", "mem", 8 * MIB)),
        Command::CreateHost(host("h", &["1:2c90300a1b2c3"])),
        Command::PutTarget(target("srp0", "127.0.0.1:5555")),
    ] {
        c.execute(command).await.expect("it can be so");
    }
    (file, fake, c)
}

/// The same, with a protected pool `safe`.
pub(crate) async fn with_safe() -> (Full, Arc<Fake>, Arc<Controller>) {
    let (file, fake, c) = node().await;
    let two = ["/nowhere/s0", "/nowhere/s1"].map(|d| (DeviceKind::File, Some(d), Some(GIB)));
    let safe = PoolSpec { raid: Some(Raid::One), ..pool("safe", &two) };
    c.execute(Command::CreatePool(safe)).await.expect("a pool");
    (file, fake, c)
}

/// The same, with a volume `of` there that has a snapshot `s`.
pub(crate) async fn with_snapshot() -> (Full, Arc<Fake>, Arc<Controller>) {
    let (file, fake, c) = with_safe().await;
    c.execute(Command::CreateVolume(volume("of", "safe", MIB))).await.expect("a volume");
    let dataset = format!("{}@s", c.model().volumes["of"].dataset());
    let snapshot = SnapshotLive { dataset, size: MIB, ..SnapshotLive::default() };
    let mut state = fake.state();
    (state.tells_snapshots, state.snapshots) = (true, vec![snapshot]);
    drop(state);
    (file, fake, c)
}

/// A volume `clone` made of it.
pub(crate) fn clone_of_it() -> CloneSpec {
    let (volume, snapshot, name) = ("of".into(), "s".into(), "clone".into());
    CloneSpec { volume, snapshot, name, read_only: false }
}

fn shrink() -> Command {
    let patch = VolumePatch { size: Some(MIB), allow_shrink: true, ..VolumePatch::default() };
    Command::PatchVolume { name: "v".into(), patch }
}

/// A node that refused to make volume `v` smaller. None: with a file system that is full after so many operations of the store, it is
/// not owed to put it back.
async fn owed_shrink(after: u64) -> Option<(Full, Arc<Fake>, Arc<Controller>)> {
    let (file, fake, c) = node().await;
    fake.break_call("update_volume v");
    file.after(after);
    c.execute(shrink()).await.expect_err("it is refused");
    (c.model().volumes["v"].size != 8 * MIB).then_some((file, fake, c))
}

/// Whether something was cut off a volume that a refused command was to make smaller; and how often it was owed to put it back.
async fn cut_though_refused() -> (bool, u32) {
    let mut owed = 0;
    for n in 0..60 {
        let Some((file, fake, c)) = owed_shrink(n).await else { continue };
        owed += 1;
        fake.mend();
        tokio::time::sleep(Duration::from_millis(400)).await;
        file.has_room_again();
        c.execute(Command::CreateHost(host("later", &["3:4"]))).await.expect("there is room again");
        assert_eq!(c.model().volumes["v"].size, 8 * MIB, "it is as it was");
        if fake.state().calls.iter().any(|c| c == "cut_volume v") {
            return (true, owed);
        }
        if owed == 3 {
            break;
        }
    }
    (false, owed)
}

#[tokio::test]
async fn nothing_is_cut_off_by_a_change_that_is_to_be_taken_back() {
    let (cut, owed) = cut_though_refused().await;
    assert!(!cut, "the end of a volume is gone that has its size");
    assert_eq!(owed, 3);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_cut_by_what_is_to_be_taken_back_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::CutThoughOwed));
    let (cut, _) = cut_though_refused().await;
    plant(None);
    assert!(cut);
}

/// How a node ends that owes to put a volume back to its size.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Kill,
    Stop,
    StopWithRoom,
}

/// What a stop said, and what the next life made of it: the size of the volume, and whether its end was thrown away.
async fn after_an_end(how: End) -> (Result<(), String>, u64, bool) {
    for n in 0..60 {
        let Some((file, fake, c)) = owed_shrink(n).await else { continue };
        fake.mend();
        if how == End::StopWithRoom {
            file.has_room_again();
        }
        let said = match how {
            End::Kill => Ok(()),
            _ => c.shutdown().await.map_err(|e| e.to_string()),
        };
        gone(c).await;
        file.has_room_again();
        // Nobody else has the file by then.
        let fake = Arc::new(Fake::default());
        let store = MetaStore::open_on(file.copy()).expect("a store");
        let c = Controller::start_on(store, Path::new("/nowhere"), fake.clone(), Vec::new()).await;
        let c = c.expect("a controller");
        tried_again(&c).await;
        let cut = fake.state().calls.iter().any(|c| c == "cut_volume v");
        return (said, c.model().volumes["v"].size, cut);
    }
    panic!("it was never owed");
}

#[tokio::test]
async fn what_was_refused_and_is_owed_cuts_nothing_off_after_a_start() {
    assert_eq!(after_an_end(End::Kill).await, (Ok(()), 8 * MIB, false));
    assert_eq!(after_an_end(End::StopWithRoom).await, (Ok(()), 8 * MIB, false));
    let (said, size, cut) = after_an_end(End::Stop).await;
    assert_eq!((size, cut), (8 * MIB, false));
    let said = said.expect_err("it is told");
    assert!(said.contains("a change that was refused is not taken back"), "{said}");
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_start_that_carries_out_what_was_refused_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::OpenCutIsMade));
    let found = after_an_end(End::Kill).await;
    plant(None);
    assert_eq!(found.1, MIB);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_stop_that_takes_nothing_back_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::OwedAtTheEnd));
    let found = after_an_end(End::Stop).await;
    plant(None);
    assert_eq!(found.0, Ok(()));
}

/// What is told of a volume that was refused to be smaller, while that is owed, and when it was taken back.
async fn told_of_a_size() -> Vec<String> {
    for n in 0..60 {
        let Some((file, fake, c)) = owed_shrink(n).await else { continue };
        fake.mend();
        tried_again(&c).await;
        tried_again(&c).await;
        let of_volume = async || {
            let faults = c.status().await.expect("a status").faults.into_iter();
            faults.map(|f| f.object).filter(|o| o != "configuration").collect::<Vec<_>>()
        };
        let mut told = of_volume().await;
        file.has_room_again();
        c.execute(Command::CreateHost(host("later", &["3:4"]))).await.expect("there is room again");
        told.extend(of_volume().await);
        return told;
    }
    panic!("it was never owed");
}

#[tokio::test]
async fn a_size_that_was_refused_is_told_as_no_other() {
    assert_eq!(told_of_a_size().await, [""; 0]);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_size_that_is_told_though_it_was_refused_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::SizeToldThoughOwed));
    let told = told_of_a_size().await;
    plant(None);
    assert!(told.contains(&"size/v".to_string()), "{told:?}");
}

/// A volume is made smaller on a node whose store fails after so many operations, and which is killed then. Whether the command was
/// refused, and the size that the next life knows; None: nothing failed.
async fn made_smaller_and_killed(after: u64) -> Option<(bool, u64)> {
    let (file, fake, c) = node().await;
    file.after(after);
    let refused = c.execute(shrink()).await.is_err();
    let failed = file.has_refused();
    drop(fake);
    gone(c).await;
    let store = MetaStore::open_on(file.copy()).expect("a store");
    let fake = Arc::new(Fake::default());
    let c = Controller::start_on(store, Path::new("/nowhere"), fake, Vec::new()).await;
    let size = c.expect("a controller").model().volumes["v"].size;
    failed.then_some((refused, size))
}

/// What cannot be written may have become durable: so nothing is refused once hosts see the new size.
#[tokio::test]
async fn a_volume_that_is_smaller_after_a_start_was_not_refused_to_be() {
    let (mut kept, mut smaller) = (0, 0);
    for n in 0..200 {
        match made_smaller_and_killed(n).await {
            Some((refused, size)) if size == MIB => {
                assert!(!refused, "full after {n}");
                smaller += 1;
            }
            Some(_) => kept += 1,
            None => break,
        }
    }
    assert!(kept > 0 && smaller > 0, "{kept}, {smaller}");
}

#[cfg(feature = "planted")]
#[tokio::test]
#[should_panic(expected = "full after")]
async fn a_size_that_is_taken_back_and_stays_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::SizeTakenBack));
    for n in 0..200 {
        if let Some((true, size)) = made_smaller_and_killed(n).await {
            assert_ne!(size, MIB, "full after {n}");
        }
    }
}

/// By which number a host gets another volume, after one was shown to it by a change that was then taken back; and how often that was owed.
async fn number_after_what_was_taken_back() -> (BTreeSet<u16>, u32) {
    let (mut owed, mut luns) = (0, BTreeSet::new());
    for n in 0..60 {
        let (file, fake, c) = node().await;
        fake.break_call("set_mappings");
        file.after(n);
        c.execute(Command::CreateMap(map("h", "v"))).await.expect_err("it is refused");
        if c.model().maps.is_empty() {
            continue;
        }
        owed += 1;
        fake.mend();
        file.has_room_again();
        c.execute(Command::CreateMap(map("h", "w"))).await.expect("there is room again");
        assert!(c.model().map("h", "v").is_err(), "it is taken back");
        luns.insert(c.model().map("h", "w").expect("mapped").lun);
        if owed == 3 {
            break;
        }
    }
    (luns, owed)
}

#[tokio::test]
async fn a_number_that_was_shown_and_taken_back_is_no_other_volume() {
    assert_eq!(number_after_what_was_taken_back().await, ([1].into(), 3));
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_number_of_what_was_taken_back_that_is_another_volume_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::UndoneIsUnknown));
    let (luns, _) = number_after_what_was_taken_back().await;
    plant(None);
    assert!(luns.contains(&0), "{luns:?}");
}

/// A volume is refused, and until that can be taken back it is tried to make it. What is told of it afterwards.
async fn told_of_what_was_taken_back() -> Vec<String> {
    for n in 0..60 {
        let (file, fake, c) = node().await;
        let spec = pool("safe", &[(DeviceKind::File, Some("/nowhere/d"), Some(GIB))]);
        let spec = PoolSpec { raid: Some(Raid::Zero), ..spec };
        c.execute(Command::CreatePool(spec)).await.expect("a pool");
        fake.break_call("start_pool x");
        file.after(n);
        c.execute(Command::CreatePool(ram_pool("x", GIB))).await.expect_err("refused");
        if !c.model().pools.contains_key("x") {
            continue;
        }
        let told = || async { c.status().await.expect("a status").faults };
        let begun = std::time::Instant::now();
        while !told().await.iter().any(|f| f.object == "pool/x") {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is tried");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        fake.mend();
        file.has_room_again();
        c.execute(Command::CreateHost(host("later", &["3:4"]))).await.expect("there is room again");
        assert!(!c.model().pools.contains_key("x"), "it is taken back");
        // Of the store it is told until it was looked at.
        let of_store = |f: &Fault| f.object == "configuration";
        return told().await.into_iter().filter(|f| !of_store(f)).map(|f| f.object).collect();
    }
    panic!("it was never owed");
}

#[tokio::test]
async fn nothing_is_told_of_what_was_taken_back() {
    assert_eq!(told_of_what_was_taken_back().await, [""; 0]);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_fault_of_what_is_not_there_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::FaultsOfNothing));
    let told = told_of_what_was_taken_back().await;
    plant(None);
    assert_eq!(told, ["pool/x"]);
}

/// Changes that the data plane refuses, and that it cannot take back at first either: what is told of it then, whether it was tried
/// again, and what is told in the end.
async fn not_put_back(call: &str, command: Command) -> (Vec<String>, bool, Vec<String>) {
    let (_file, fake, c) = node().await;
    let before = c.model();
    fake.break_call(call);
    c.execute(command).await.expect_err("it is refused");
    let told = || async {
        let faults = c.status().await.expect("a status").faults;
        faults.into_iter().map(|f| f.object).collect::<Vec<_>>()
    };
    let first = told().await;
    fake.mend();
    let n = fake.state().calls.len();
    let is_done = || fake.state().calls[n..].iter().any(|done| done == call);
    let begun = std::time::Instant::now();
    while !is_done() && begun.elapsed() < Duration::from_secs(10) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let now = c.model();
    assert_eq!(
        (&now.volumes, &now.targets, &now.maps),
        (&before.volumes, &before.targets, &before.maps)
    );
    (first, is_done(), told().await)
}

fn not_taken_back() -> [(&'static str, &'static str, Command); 4] {
    let patch = VolumePatch { read_only: Some(true), ..VolumePatch::default() };
    let add = ram_pool("mem", GIB).devices;
    let more = PoolPatch { add, ..PoolPatch::default() };
    [
        ("pool/mem", "start_pool mem", Command::PatchPool { name: "mem".into(), patch: more }),
        ("target/srp0", "start_target srp0", Command::PutTarget(target("srp0", "127.0.0.1:6666"))),
        ("volume/v", "update_volume v", Command::PatchVolume { name: "v".into(), patch }),
        ("mappings", "set_mappings", Command::CreateMap(map("h", "v"))),
    ]
}

#[tokio::test]
async fn what_could_not_be_put_back_is_a_fault_and_is_tried_again() {
    for (object, call, command) in not_taken_back() {
        let (first, again, last) = not_put_back(call, command).await;
        assert_eq!((first, again, last), (vec![object.to_string()], true, Vec::new()));
    }
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn what_is_put_back_once_at_most_is_caught() {
    use weir_control::planted::{Bug, plant};
    let [(_, call, command), ..] = not_taken_back();
    plant(Some(Bug::UndoneOnce));
    let (first, again, _) = not_put_back(call, command).await;
    plant(None);
    assert!(first.is_empty() && !again);
}

/// A volume moves, and hosts see less of it than it is to have. Whether it was put right while it moved, and whether it was after
/// that.
async fn put_back_beside_a_migration() -> (bool, bool) {
    let spec = MigrationSpec { pool: Some("other".into()), ..MigrationSpec::default() };
    let moves = Command::StartMigration { name: "v".into(), spec };
    let (_dir, fake, c) = unread_at_first(&[moves]).await;
    read_in_the_end(&fake).await;
    let is_begun = async || fake.state().calls.iter().any(|c| c == "start_migration v");
    until("it moves", is_begun).await;
    let put_back = async |from: usize, within: u64| {
        let begun = std::time::Instant::now();
        let is_done = || fake.state().calls[from..].iter().any(|c| c == "update_volume v");
        while !is_done() && begun.elapsed() < Duration::from_secs(within) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        is_done()
    };
    let calls = || fake.state().calls.clone();
    let began = calls().iter().rposition(|c| c == "start_migration v").expect("it was begun");
    let beside = put_back(began, 7).await;
    // It may be done before the command has answered.
    let cancelled = calls().len();
    c.cancel_migration("v".into()).await.expect("it stays");
    (beside, put_back(cancelled, 10).await)
}

/// Its graph leads to both places then, which the graph of the configuration does not.
#[tokio::test]
async fn what_moves_is_put_back_when_it_has_come_to_rest() {
    assert_eq!(put_back_beside_a_migration().await, (false, true));
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn what_is_put_back_while_it_moves_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::PutBackInFlight));
    let (beside, _) = put_back_beside_a_migration().await;
    plant(None);
    assert!(beside);
}

/// A volume is made of a snapshot, which fails and cannot be taken back. What is said to whoever deletes the snapshot then.
async fn deleted_below_what_is_owed() -> Code {
    for n in 0..60 {
        let (file, fake, c) = with_snapshot().await;
        fake.break_call("create_volume clone");
        file.after(n);
        c.clone_volume(clone_of_it()).await.expect_err("it is refused");
        if c.model().volumes.contains_key("clone") {
            // It is taken back as soon as there is room, and stays there until it can be deleted.
            fake.break_call("delete_volume_data clone");
            file.has_room_again();
            return c.delete_snapshot("of".into(), "s".into()).await.expect_err("refused").code;
        }
    }
    panic!("it is never owed to take it back");
}

#[tokio::test]
async fn a_snapshot_of_which_a_volume_is_yet_to_be_made_is_not_deleted() {
    assert_eq!(deleted_below_what_is_owed().await, Code::SnapshotInUse);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_snapshot_that_is_deleted_below_what_is_yet_to_be_made_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::OriginDeleted));
    let code = deleted_below_what_is_owed().await;
    plant(None);
    assert_ne!(code, Code::SnapshotInUse);
}

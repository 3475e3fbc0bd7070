//! What was refused and is durable all the same, while the store takes no changes: nobody knows before the next start.

use crate::fake::Fake;
use crate::owed::{clone_of_it, with_safe, with_snapshot};
use crate::support::*;
use weir_control::Code;
use weir_control::model::{
    Command, MigrationSpec, Model, SnapshotPolicySpec, VolumePatch, VolumeSpec, VolumeState,
};
use weir_control::store::MetaStore;

const MIB: u64 = 1 << 20;

/// What is durable though it was refused: a volume made of a snapshot, or, if not, one that moves. What is said to whoever deletes the
/// snapshot then, or takes one of the volume: each time that the next start would find it.
async fn snapshots_in_doubt(clones: bool) -> Vec<Code> {
    let spec = MigrationSpec { pool: Some("mem".into()), ..MigrationSpec::default() };
    let (moves, mut all) = (Command::StartMigration { name: "moves".into(), spec }, Vec::new());
    for n in 0..60 {
        let (file, _fake, c) = with_snapshot().await;
        c.execute(Command::CreateVolume(volume("moves", "safe", MIB))).await.expect("a volume");
        file.after(n);
        let done = match clones {
            true => c.clone_volume(clone_of_it()).await,
            false => c.execute(moves.clone()).await,
        };
        let is_in = |m: &Model| match clones {
            true => m.volumes.contains_key("clone"),
            false => m.volumes["moves"].migration.is_some(),
        };
        if done.is_ok() || is_in(&c.model()) || !c.owes() {
            continue;
        }
        let next = MetaStore::open_on(file.copy()).expect("a store").load().expect("a model");
        if is_in(&next) {
            let done = match clones {
                true => c.delete_snapshot("of".into(), "s".into()).await,
                false => c.take_snapshots(vec![("moves".into(), "t".into())]).await.map(drop),
            };
            all.push(done.expect_err("the fake cannot do that").code);
            if all.len() == 2 {
                break;
            }
        }
    }
    all
}

#[tokio::test]
async fn nothing_is_done_about_snapshots_while_the_next_start_may_find_what_was_refused() {
    for clones in [true, false] {
        let all = snapshots_in_doubt(clones).await;
        assert!(!all.is_empty(), "nothing is durable that was refused");
        assert!(all.iter().all(|c| *c == Code::StoreUnusable), "{all:?}");
    }
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn snapshots_beside_what_is_in_doubt_are_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::ActsInDoubt));
    for clones in [true, false] {
        let all = snapshots_in_doubt(clones).await;
        assert!(all.contains(&Code::Unsupported), "{all:?}");
    }
    plant(None);
}

/// A volume is made of a snapshot, which cannot be opened, nor taken back before there is room. What is said to whoever takes a snapshot
/// of it, or deletes that one, meanwhile.
async fn snapshots_of_what_is_owed() -> [Code; 2] {
    for n in 0..60 {
        let (file, fake, c) = with_snapshot().await;
        fake.break_call("open_volume clone");
        file.after(n);
        c.clone_volume(clone_of_it()).await.expect_err("it is refused");
        let made = c.model().volumes.get("clone").map(|v| v.state);
        if made != Some(VolumeState::Ready) || !c.owes() {
            continue;
        }
        fake.mend();
        until("it is open", async || {
            let taken = c.take_snapshots(vec![("clone".into(), "t".into())]).await;
            taken.expect_err("the fake cannot do that").code != Code::NotReady
        })
        .await;
        let taken = c.take_snapshots(vec![("clone".into(), "t".into())]).await;
        let deleted = c.delete_snapshot("of".into(), "s".into()).await;
        return [taken.map(drop), deleted].map(|r| r.expect_err("the fake cannot do that").code);
    }
    panic!("it is never owed to take it back");
}

#[tokio::test]
async fn nothing_is_done_about_snapshots_while_something_is_owed() {
    let [taken, deleted] = snapshots_of_what_is_owed().await;
    assert!(taken != Code::Unsupported && deleted == taken, "{taken:?}, {deleted:?}");
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_snapshot_of_what_is_owed_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::ActsInDoubt));
    let [taken, _] = snapshots_of_what_is_owed().await;
    plant(None);
    assert_eq!(taken, Code::Unsupported);
}

/// A volume with rules is made, and refused: since it cannot be opened, or since its pool does not carry it. Whether snapshots are made of
/// it by its rules until it is taken back. `owed`: that has to wait for room in the store.
async fn ruled_though_refused(broken: &str, owed: bool) -> bool {
    for n in 0..60 {
        let (file, fake, c) = with_safe().await;
        fake.break_call(broken);
        if owed {
            file.after(n);
        }
        let rules = vec!["every=1d,keep=2".parse().expect("a rule")];
        let ruled = VolumeSpec { snapshots: Some(rules), ..volume("r", "safe", MIB) };
        c.execute(Command::CreateVolume(ruled)).await.expect_err("it is refused");
        let made = c.model().volumes.get("r").map(|v| v.state);
        if !owed || made == Some(VolumeState::Ready) && c.owes() {
            return fake.state().calls.iter().any(|c| c == "set_snapshot_rules safe 1");
        }
    }
    panic!("it is never owed to take it back");
}

/// A volume is made larger and has other rules, which is refused, and cannot be taken back before there is room. Whether they count until
/// then: snapshots may go by them that the former rules keep.
async fn ruled_anew_though_refused() -> bool {
    for n in 0..60 {
        let (file, fake, c) = with_safe().await;
        let rules = |text: &str| Some(vec![text.parse().expect("a rule")]);
        let ruled = VolumeSpec { snapshots: rules("every=1h,keep=24"), ..volume("r", "safe", MIB) };
        c.execute(Command::CreateVolume(ruled)).await.expect("a volume");
        fake.break_call("update_volume r");
        file.after(n);
        let told = |fake: &Fake| {
            let is_it = |c: &&String| c.starts_with("set_snapshot_rules safe");
            fake.state().calls.iter().filter(is_it).count()
        };
        let before = told(&fake);
        let patch = VolumePatch {
            size: Some(2 * MIB),
            snapshots: rules("every=1h,keep=1"),
            ..VolumePatch::default()
        };
        let patch = Command::PatchVolume { name: "r".into(), patch };
        c.execute(patch).await.expect_err("it is refused");
        if c.model().volumes["r"].size == 2 * MIB && c.owes() {
            return told(&fake) != before;
        }
    }
    panic!("it is never owed to take it back");
}

#[tokio::test]
async fn rules_of_what_was_refused_do_not_count() {
    assert!(!ruled_anew_though_refused().await);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn rules_of_what_was_refused_that_count_are_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::RulesThoughOwed));
    let counts = ruled_anew_though_refused().await;
    plant(None);
    assert!(counts);
}

const REFUSED: [(&str, bool); 4] = [
    ("open_volume r", true),
    ("open_volume r", false),
    ("keep_record safe", true),
    ("keep_record safe", false),
];

#[tokio::test]
async fn what_is_refused_has_no_snapshots_by_rules() {
    for (broken, owed) in REFUSED {
        assert!(!ruled_though_refused(broken, owed).await, "{broken}, {owed}");
    }
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn snapshots_by_rules_of_what_is_refused_are_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::RulesThoughOwed));
    for (broken, owed) in [REFUSED[0], REFUSED[2], REFUSED[3]] {
        assert!(ruled_though_refused(broken, owed).await, "{broken}, {owed}");
    }
    plant(None);
}

/// A pool is let go of, which is refused before it is closed, and cannot be taken back before there is room. Then the rules of its volume
/// are cleared. Whether the pool is told that.
async fn cleared_after_a_release() -> bool {
    for n in 0..60 {
        let (file, fake, c) = with_safe().await;
        fake.state().tells_snapshots = true;
        let rules = vec!["every=1h,keep=2".parse().expect("a rule")];
        let ruled = VolumeSpec { snapshots: Some(rules), ..volume("r", "safe", MIB) };
        c.execute(Command::CreateVolume(ruled)).await.expect("a volume");
        fake.break_call("close_volume r");
        file.after(n);
        c.release_pool("safe".into()).await.expect_err("it is refused");
        if c.model().pools.contains_key("safe") || !c.owes() {
            continue;
        }
        fake.mend();
        file.has_room_again();
        let told = fake.state().calls.len();
        let clear = SnapshotPolicySpec { volumes: vec!["r".into()], rules: Vec::new() };
        c.set_policy(clear).await.expect("they are cleared");
        let calls = fake.state().calls[told..].to_vec();
        return calls.iter().rfind(|c| c.starts_with("set_snapshot_rules safe"))
            == Some(&"set_snapshot_rules safe 0".to_string());
    }
    panic!("it is never owed to take it back");
}

#[tokio::test]
async fn a_pool_is_told_that_its_rules_are_cleared() {
    assert!(cleared_after_a_release().await);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn rules_that_stay_though_they_are_cleared_are_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::UnknownIsNone));
    let told = cleared_after_a_release().await;
    plant(None);
    assert!(!told);
}

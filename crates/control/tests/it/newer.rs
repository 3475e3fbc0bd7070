//! A pool whose devices carry a newer configuration is closed to everything that this one would do to it.

use crate::fake::Fake;
use crate::support::*;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_control::model::{
    Carried, Command, DeviceKind, MigrationSpec, Model, PoolSpec, Raid, SnapshotPolicySpec, Told,
    VolumePatch,
};
use weir_control::store::MetaStore;
use weir_control::{Code, Controller};

const MIB: u64 = 1 << 20;
/// What changes a pool.
const CHANGES: [&str; 9] = [
    "create_volume new",
    "delete_volume_data gone",
    "cut_volume cut",
    "set_snapshot_rules safe 1",
    "start_migration goes",
    "clear_place undone",
    "clear_place left",
    "keep_record safe",
    "keep_record old",
];

fn patch(name: &str, size: u64) -> Command {
    let patch = VolumePatch { size: Some(size), allow_shrink: true, ..VolumePatch::default() };
    Command::PatchVolume { name: name.into(), patch }
}

fn rules(name: &str) -> Command {
    let rules = vec!["every=1d,keep=2".parse().expect("a rule")];
    Command::SetSnapshotRules(SnapshotPolicySpec { volumes: vec![name.into()], rules })
}

fn go(name: &str) -> Command {
    let spec = MigrationSpec { pool: Some("old".into()), ..MigrationSpec::default() };
    Command::StartMigration { name: name.into(), spec }
}

fn end(name: &str, moved: Option<Told>) -> Command {
    Command::EndMigration { name: name.into(), moved }
}

/// A configuration in which much is under way.
fn much_under_way() -> Model {
    let mut m = Model::default();
    for (n, name) in ["safe", "old", "empty"].into_iter().enumerate() {
        let path = format!("/nowhere/d{n}");
        let spec = pool(name, &[(DeviceKind::File, Some(&path), Some(GIB))]);
        let spec = PoolSpec { raid: Some(Raid::Zero), ..spec };
        m.apply(Command::CreatePool(spec), n as u128).expect("a pool");
    }
    let names = ["new", "still", "gone", "cut", "ruled", "goes", "undone", "left"];
    for (n, name) in names.into_iter().enumerate() {
        let made = Command::CreateVolume(volume(name, "safe", 8 * MIB));
        m.apply(made, 7777 * n as u128).expect("a volume");
        if name != "new" {
            m.apply(Command::ReadyVolume { name: name.into() }, 0).expect("it is made");
        }
    }
    let told = Told { write_cache: true, thin: true };
    for command in [
        delete_volume("gone"),
        patch("cut", 4 * MIB),
        Command::AgreeCut { name: "cut".into() },
        rules("ruled"),
        go("goes"),
        go("undone"),
        end("undone", None),
        go("left"),
        end("left", Some(told)),
    ] {
        m.apply(command, 0).expect("it can be so");
    }
    m
}

async fn start(dir: &Path, carried: Option<Carried>) -> (Arc<Controller>, Arc<Fake>) {
    let store = MetaStore::open(dir).expect("a store");
    store.commit(&Model::default(), &much_under_way()).expect("kept");
    drop(store);
    let fake = Arc::new(Fake::default());
    fake.state().carried = carried.unwrap_or_default();
    let c = Controller::start(dir, fake.clone()).await.expect("a controller");
    tried_again(&c).await;
    (c, fake)
}

fn of_another() -> Carried {
    Carried::one(br#"{"stamp":{"life":"of another","revision":3},"volumes":[],"hosts":[]}"#.into())
}

/// What was done to a pool that carries what nobody here knows.
async fn done_to_a_newer_pool() -> Vec<String> {
    let mut wrong = Vec::new();
    let dir = Scratch::new();
    let (c, fake) = start(dir.path(), Some(of_another())).await;
    for command in [
        Command::DeletePool { name: "empty".into() },
        Command::CreateVolume(volume("more", "safe", MIB)),
        delete_volume("still"),
        patch("still", 16 * MIB),
        rules("still"),
        go("still"),
        end("goes", None),
    ] {
        let text = format!("{command:?}");
        let refused = c.execute(command).await.is_err_and(|e| e.code == Code::RecordNewer);
        if !refused {
            wrong.push(text);
        }
    }
    for name in ["still", "goes"] {
        let spec = MigrationSpec { pool: Some("old".into()), ..MigrationSpec::default() };
        drop(c.start_migration(name.into(), spec).await);
        drop(c.cancel_migration(name.into()).await);
    }
    let opened = fake.state().volumes.contains_key("still");
    assert!(opened, "it is served all the same");
    let calls = fake.state().calls.clone();
    let done = CHANGES.into_iter().filter(|w| calls.iter().any(|c| c == w));
    wrong.extend(done.map(str::to_owned));
    wrong
}

#[tokio::test]
async fn nothing_is_done_to_a_pool_that_carries_a_newer_configuration() {
    assert_eq!(done_to_a_newer_pool().await, [""; 0], "done, or not refused");
}

/// The same for what this program does not understand, though it knows when it was written: another program may.
#[tokio::test]
async fn what_is_not_understood_is_not_overwritten() {
    for record in [&br#"{"version":9,"volumes":[]}"#[..], b"{}"] {
        let dir = Scratch::new();
        let (c, fake) = start(dir.path(), Some(Carried::one(record.into()))).await;
        let calls = fake.state().calls.clone();
        assert!(!CHANGES.iter().any(|w| calls.iter().any(|c| c == w)), "{calls:?}");
        let told = c.status().await.expect("a status").faults;
        assert!(told.iter().any(|f| f.text.contains("does not understand")), "{told:?}");
        c.release_pool("empty".into()).await.expect("released");
    }
}

/// What is looked for above is there to be found.
#[tokio::test]
async fn all_of_it_is_done_to_a_pool_that_carries_nothing_unknown() {
    let dir = Scratch::new();
    let (_c, fake) = start(dir.path(), None).await;
    let calls = fake.state().calls.clone();
    let found: Vec<_> = CHANGES.into_iter().filter(|w| calls.iter().any(|c| c == w)).collect();
    assert_eq!(found, CHANGES, "{calls:?}");
    // Not before it was looked into.
    let at = |call: &str| calls.iter().position(|c| c == call);
    for call in CHANGES {
        assert!(at("record safe") < at(call) && at("record old") < at(call), "{call}: {calls:?}");
    }
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_newer_pool_that_is_written_to_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::NewerIsOpen));
    let done = done_to_a_newer_pool().await;
    plant(None);
    assert!(done.len() > 4, "{done:?}");
}

/// Whatever was under way by the older configuration, the pool can be let go of, and nothing of it is left.
#[tokio::test]
async fn a_newer_pool_can_be_released_whatever_is_under_way() {
    for first in ["safe", "old"] {
        let dir = Scratch::new();
        let (c, fake) = start(dir.path(), Some(of_another())).await;
        c.release_pool("empty".into()).await.expect("released");
        c.release_pool(first.into()).await.expect("released");
        let other = if first == "safe" { "old" } else { "safe" };
        assert!(c.model().volumes.values().all(|v| v.pool == other && v.migration.is_none()));
        c.release_pool(other.into()).await.expect("released");
        let m = c.model();
        assert!(m.pools.is_empty() && m.volumes.is_empty(), "{m:?}");
        let faults = c.status().await.expect("a status").faults;
        assert_eq!(faults, [], "after {first}");
        let calls = fake.state().calls.clone();
        assert!(!CHANGES.iter().any(|w| calls.iter().any(|c| c == w)), "{calls:?}");
    }
}

/// A pool that could not be looked into is closed until it was.
#[tokio::test]
async fn a_pool_that_cannot_be_looked_into_is_closed_until_it_was() {
    let dir = Scratch::new();
    let fake = Arc::new(Fake::default());
    let store = MetaStore::open(dir.path()).expect("a store");
    store.commit(&Model::default(), &much_under_way()).expect("kept");
    drop(store);
    fake.break_call("record safe");
    fake.break_call("record old");
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    tried_again(&c).await;
    let found = |fake: &Fake| {
        let calls = fake.state().calls.clone();
        CHANGES.into_iter().filter(|w| calls.iter().any(|c| c == w)).collect::<Vec<_>>()
    };
    assert_eq!(found(&fake), [""; 0]);
    assert!(c.execute(delete_volume("still")).await.is_err());
    fake.mend();
    let begun = std::time::Instant::now();
    while found(&fake) != CHANGES {
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", found(&fake));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A volume was opened where it was of old; then the pool comes up that has it, by a newer configuration, and hosts are to lose the
/// former place. A write there hangs, so the volume cannot be closed at once. Whether it is open yet when that has ended.
async fn stays_open() -> bool {
    let dir = Scratch::new();
    let mut m = Model::default();
    for (n, name) in ["old", "safe"].into_iter().enumerate() {
        let path = format!("/nowhere/d{n}");
        let spec = pool(name, &[(DeviceKind::File, Some(&path), Some(GIB))]);
        let spec = PoolSpec { raid: Some(Raid::Zero), ..spec };
        m.apply(Command::CreatePool(spec), n as u128).expect("a pool");
    }
    m.apply(Command::CreateVolume(volume("v", "old", 8 * MIB)), 7).expect("a volume");
    m.apply(Command::ReadyVolume { name: "v".into() }, 0).expect("it is made");
    let store = MetaStore::open(dir.path()).expect("a store");
    store.commit(&Model::default(), &m).expect("kept");
    drop(store);
    m.volumes.get_mut("v").expect("there").pool = "safe".into();
    let bytes = m.pool_record("safe").expect("a record").bytes().expect("as bytes");
    let mut newer: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
    newer["stamp"] = serde_json::json!({ "life": "of another", "revision": 3 });
    let fake = Arc::new(Fake::default());
    fake.break_call("start_pool safe");
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    assert!(fake.state().volumes.contains_key("v"), "it is served where it was of old");
    fake.state().carried = Carried::one(newer.to_string().into_bytes());
    fake.mend();
    fake.break_call("close_volume v");
    let called = |what: &str| fake.state().calls.iter().filter(|c| *c == what).count();
    let begun = std::time::Instant::now();
    while called("close_volume v") == 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the newer pool is seen");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // The device answers again.
    fake.mend();
    tried_again(&c).await;
    fake.state().volumes.contains_key("v")
}

#[tokio::test]
async fn a_volume_that_could_not_be_closed_where_it_was_of_old_is_closed_later() {
    assert!(!stays_open().await);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_close_that_is_not_tried_again_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::CloseOnce));
    let open = stays_open().await;
    plant(None);
    assert!(open);
}

//! A volume that a newer pool has is not served from where an older configuration has it, until somebody says so.

use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use weir_control::model::{
    Carried, Command, DeviceKind, MigrationSpec, Model, PoolSpec, Raid, VolumePatch,
};
use weir_control::store::MetaStore;
use weir_control::{Code, Controller};

const MIB: u64 = 1 << 20;

/// Pools `old` and `new`, and a volume `v` that host `h` sees, in one of them.
fn model(of: &str) -> Model {
    let mut m = Model::default();
    for (n, name) in ["old", "new"].into_iter().enumerate() {
        let path = format!("/nowhere/d{n}");
        let spec = pool(name, &[(DeviceKind::File, Some(&path), Some(GIB))]);
        let spec = PoolSpec { raid: Some(Raid::Zero), ..spec };
        m.apply(Command::CreatePool(spec), n as u128 + 1).expect("a pool");
    }
    for command in [
        Command::CreateVolume(volume("v", of, 8 * MIB)),
        Command::ReadyVolume { name: "v".into() },
        Command::CreateHost(host("h", &["1:2"])),
        Command::CreateMap(map("h", "v")),
    ] {
        m.apply(command, 7777).expect("it can be so");
    }
    m
}

/// What the devices of `new` carry: it is of another node, and of a program of this version.
fn newer(version: u32) -> Carried {
    newer_of("new", version)
}

/// The same of one of the pools.
fn newer_of(pool: &str, version: u32) -> Carried {
    let bytes = model("new").pool_record(pool).expect("a record").bytes().expect("bytes");
    let mut all: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
    all["stamp"] = serde_json::json!({"life": "of another", "revision": 30});
    all["version"] = version.into();
    Carried::one(serde_json::to_vec(&all).expect("bytes"))
}

async fn start(
    dir: &Scratch,
    version: u32,
    prepare: impl FnOnce(&Fake),
) -> (Arc<Controller>, Arc<Fake>) {
    let fake = Arc::new(Fake::default());
    let devices = [("old".into(), Carried::default()), ("new".into(), newer(version))];
    fake.state().devices = devices.into();
    prepare(&fake);
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    (c, fake)
}

/// The configuration is a copy of before `v` moved from `old` to `new`, whose devices say so.
async fn put_back(version: u32) -> (Scratch, Arc<Controller>, Arc<Fake>) {
    let dir = Scratch::new();
    let store = MetaStore::open(dir.path()).expect("a store");
    store.commit(&Model::default(), &model("old")).expect("kept");
    drop(store);
    let (c, fake) = start(&dir, version, |_| {}).await;
    assert!(!is_served(&fake), "pool `new` has it");
    assert!(told(&c).await, "it is a fault");
    (dir, c, fake)
}

/// Whether host `h` reads and writes the volume, which is in pool `old` as far as this node knows.
fn is_served(fake: &Fake) -> bool {
    let s = fake.state();
    s.volumes.contains_key("v") && s.access.hosts.iter().any(|h| !h.luns.is_empty())
}

/// Whether the volume is a fault.
async fn told(c: &Controller) -> bool {
    let told = c.status().await.expect("a status").faults;
    told.iter().any(|f| f.object == "volume/v")
}

/// Waits until things that did not start have been tried again.
async fn retried(c: &Controller) {
    tried_again(c).await;
}

async fn ended(c: Arc<Controller>, fake: Arc<Fake>) {
    drop(fake);
    gone(c).await;
}

/// Whether it is served by the next start, without the pool that has it.
async fn served_after_a_restart() -> bool {
    let (dir, c, fake) = put_back(1).await;
    ended(c, fake).await;
    let (c, fake) = start(&dir, 1, |f| f.break_call("start_pool new")).await;
    is_served(&fake) || !told(&c).await
}

#[tokio::test]
async fn nor_after_a_restart_without_the_newer_pool() {
    assert!(!served_after_a_restart().await, "hosts are given what it was before it moved");
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_newer_pool_that_is_forgotten_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::NewerForgotten));
    let served = served_after_a_restart().await;
    plant(None);
    assert!(served);
}

/// The pool is let go of, as the fault says. That ends the fault; the volume waits for what people say of it.
#[tokio::test]
async fn a_release_of_the_newer_pool_is_no_leave_to_serve_it() {
    let (dir, c, fake) = put_back(1).await;
    let here = || {
        let patch = VolumePatch { serve_here: true, ..VolumePatch::default() };
        c.execute(Command::PatchVolume { name: "v".into(), patch })
    };
    let refused = here().await.expect_err("the newer one is there");
    assert_eq!(refused.code, Code::RecordNewer, "{refused}");
    c.release_pool("new".into()).await.expect("released");
    retried(&c).await;
    assert!(!is_served(&fake) && !told(&c).await);
    let more = VolumePatch { size: Some(16 * MIB), ..VolumePatch::default() };
    let refused = c.execute(Command::PatchVolume { name: "v".into(), patch: more }).await;
    let refused = refused.expect_err("nobody is served");
    assert!(refused.hint.contains("--serve-here"), "{refused:?}");
    here().await.expect("somebody says so");
    assert!(is_served(&fake));
    ended(c, fake).await;
    let (_c, fake) = start(&dir, 1, |_| {}).await;
    assert!(is_served(&fake));
}

#[tokio::test]
async fn nor_after_a_release_and_a_restart() {
    let (dir, c, fake) = put_back(1).await;
    c.release_pool("new".into()).await.expect("released");
    ended(c, fake).await;
    let (c, fake) = start(&dir, 1, |_| {}).await;
    retried(&c).await;
    assert!(!is_served(&fake) && !told(&c).await);
    let carried = fake.state().devices["old"].parts.clone();
    let says = |part: &Vec<u8>| String::from_utf8_lossy(part).contains("newer_in");
    assert!(carried.values().any(says), "another node does not serve it either: {carried:?}");
}

/// The size that this node knows would come into effect with the protection.
#[tokio::test]
async fn a_volume_of_a_newer_pool_gets_no_protection() {
    let dir = Scratch::new();
    let store = MetaStore::open(dir.path()).expect("a store");
    store.commit(&Model::default(), &model("new")).expect("kept");
    drop(store);
    let (c, fake) = start(&dir, 1, |_| {}).await;
    assert!(is_served(&fake), "set-up: hosts are served");
    let patch = VolumePatch { read_only: Some(true), ..VolumePatch::default() };
    let done = c.execute(Command::PatchVolume { name: "v".into(), patch }).await;
    assert!(!fake.state().calls.iter().any(|c| c == "update_volume v"), "it is grown in there");
    assert_eq!(done.expect_err("it is newer").code, Code::RecordNewer);
}

/// A newer program wrote it in a way that this one does not know.
#[tokio::test]
async fn nor_when_a_newer_program_wrote_what_the_pool_carries() {
    let (_dir, _c, fake) = put_back(99).await;
    assert!(!is_served(&fake));
}

/// What the pool carries cannot be read when it is opened, but later.
#[tokio::test]
async fn nor_when_the_newer_pool_is_looked_into_late() {
    let dir = Scratch::new();
    let store = MetaStore::open(dir.path()).expect("a store");
    store.commit(&Model::default(), &model("old")).expect("kept");
    drop(store);
    let (c, fake) = start(&dir, 1, |f| f.break_call("record new")).await;
    fake.mend();
    retried(&c).await;
    assert!(!is_served(&fake) && told(&c).await);
}

/// The pool that has it is away. The devices of the old one say that it is not there any more.
async fn served_where_it_is_no_more() -> bool {
    let dir = Scratch::new();
    let store = MetaStore::open(dir.path()).expect("a store");
    store.commit(&Model::default(), &model("old")).expect("kept");
    drop(store);
    let away = |f: &Fake| {
        f.break_call("start_pool new");
        f.state().devices.insert("old".into(), newer_of("old", 1));
    };
    let (c, fake) = start(&dir, 1, away).await;
    let served = is_served(&fake);
    assert!(served || told(&c).await, "it is a fault");
    if !served {
        // As the fault says.
        c.release_pool("old".into()).await.expect("released");
        assert!(c.model().volumes.is_empty() && !told(&c).await);
    }
    served
}

#[tokio::test]
async fn nor_where_its_own_pool_says_that_it_is_no_more() {
    assert!(!served_where_it_is_no_more().await);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_volume_that_is_served_where_it_is_no_more_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::ServedWhereNoMore));
    let served = served_where_it_is_no_more().await;
    plant(None);
    assert!(served);
}

/// It was being made smaller, or moved, when the copy of the configuration was taken. Neither goes on before it is served.
#[test]
fn a_volume_is_served_here_whatever_was_under_way() {
    let smaller = VolumePatch { size: Some(MIB), allow_shrink: true, ..VolumePatch::default() };
    let to = MigrationSpec { pool: Some("new".into()), ..MigrationSpec::default() };
    for begun in [
        Command::PatchVolume { name: "v".into(), patch: smaller },
        Command::StartMigration { name: "v".into(), spec: to },
    ] {
        let mut m = model("old");
        let noted = Command::NoteNewer { name: "v".into(), pool: "new".into() };
        let patch = VolumePatch { serve_here: true, ..VolumePatch::default() };
        for command in [begun, noted, Command::PatchVolume { name: "v".into(), patch }] {
            m.apply(command, 0).expect("it can be so");
        }
        assert_eq!(m.volumes["v"].newer_in, None);
    }
}

//! A pool that is let go of while it is not there, as when its disks have got other names, and comes back: what was answered
//! meanwhile counts, though its devices could not be told of it.

use crate::fake::Fake;
use crate::support::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use weir_control::Controller;
use weir_control::model::{
    Carried, Command, DatasetFound, DeviceKind, HostPatch, ImportReport, ImportSpec, PoolFound,
    PoolSpec, Raid, Volume, VolumeState,
};

const MIB: u64 = 1 << 20;

async fn run(c: &Arc<Controller>, command: Command) {
    c.execute(command).await.expect("it is done");
}

async fn ended(c: Arc<Controller>, fake: Arc<Fake>) -> Carried {
    let carried = fake.state().devices["safe"].clone();
    drop(fake);
    gone(c).await;
    carried
}

/// A node with pool `safe`. Host `h` sees volumes `v` and `w` of it.
async fn there() -> (Scratch, Arc<Fake>, Arc<Controller>) {
    let dir = Scratch::new();
    let fake = Arc::new(Fake::default());
    fake.state().devices.insert("safe".into(), Carried::default());
    fake.state().tells_snapshots = true;
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    let spec = pool("safe", &[(DeviceKind::File, Some("/nowhere/d0"), Some(GIB))]);
    run(&c, Command::CreatePool(PoolSpec { raid: Some(Raid::Zero), ..spec })).await;
    for name in ["v", "w"] {
        run(&c, Command::CreateVolume(volume(name, "safe", 8 * MIB))).await;
    }
    run(&c, Command::CreateHost(host("h", &["1:2"]))).await;
    for name in ["v", "w"] {
        run(&c, Command::CreateMap(map("h", name))).await;
    }
    (dir, fake, c)
}

/// The next life of such a node, in which the pool does not start.
async fn without_it(
    dir: &Scratch,
    fake: Arc<Fake>,
    c: Arc<Controller>,
) -> (Arc<Fake>, Arc<Controller>) {
    let carried = ended(c, fake).await;
    let fake = Arc::new(Fake::default());
    fake.state().devices.insert("safe".into(), carried);
    fake.break_call("start_pool safe");
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    (fake, c)
}

/// A node whose pool `safe` does not start. Host `h` sees volumes `v` and `w` of it.
async fn away() -> (Scratch, Arc<Fake>, Arc<Controller>) {
    let (dir, fake, c) = there().await;
    let (fake, c) = without_it(&dir, fake, c).await;
    (dir, fake, c)
}

fn dataset(v: &Volume) -> DatasetFound {
    DatasetFound { name: v.dataset(), size: v.size, block_size: v.block_size }
}

/// Lets go of the pool.
async fn let_go(c: &Arc<Controller>, fake: &Fake) {
    let m = c.model();
    let datasets = m.volumes.values().map(dataset).collect();
    let id = m.pools["safe"].protection.as_ref().expect("it is protected").id;
    c.release_pool("safe".into()).await.expect("let go of");
    let record = fake.state().devices["safe"].clone();
    fake.state().found = Some(PoolFound { id, copies: 1, members: 1, record, datasets });
    fake.mend();
}

fn spec() -> ImportSpec {
    ImportSpec {
        name: None,
        devices: pool("x", &[(DeviceKind::File, Some("/nowhere/renamed"), None)]).devices,
        prefix: String::new(),
        key_commands: false,
        without_hosts: false,
        force: false,
        dry_run: false,
    }
}

async fn back(c: &Arc<Controller>) -> ImportReport {
    let plan = c.import_pool(ImportSpec { dry_run: true, ..spec() }).await.expect("a plan");
    let report = c.import_pool(spec()).await.expect("taken over");
    assert_eq!(plan, report);
    report
}

/// What host `h` sees.
fn sees(c: &Controller) -> BTreeSet<String> {
    c.model().maps_of_host("h").map(|m| m.volume.clone()).collect()
}

/// What `h` sees after the mapping of `v` was taken away.
async fn sees_after_v_was_taken() -> BTreeSet<String> {
    let (_dir, fake, c) = away().await;
    c.delete_map("h".into(), "v".into(), false).await.expect("nobody is logged in");
    let_go(&c, &fake).await;
    back(&c).await;
    sees(&c)
}

#[tokio::test]
async fn a_mapping_that_was_taken_away_does_not_come_back_with_the_pool() {
    assert_eq!(sees_after_v_was_taken().await, ["w".to_string()].into());
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_mapping_that_comes_back_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::LetGoIsForgotten));
    let sees = sees_after_v_was_taken().await;
    plant(None);
    assert!(sees.contains("v"));
}

/// A host that got another port sees its volumes by that one, also in its next life, and from the devices afterwards.
#[tokio::test]
async fn a_host_with_another_port_sees_its_volumes() {
    let (dir, fake, c) = away().await;
    let patch = HostPatch {
        add_ports: vec!["3:4".parse().expect("a port")],
        remove_ports: vec!["1:2".parse().expect("a port")],
        ..HostPatch::default()
    };
    run(&c, Command::PatchHost { name: "h".into(), patch }).await;
    let_go(&c, &fake).await;
    let found = fake.state().found.clone();
    let carried = ended(c, fake).await;
    let fake = Arc::new(Fake::default());
    fake.state().devices.insert("safe".into(), carried);
    fake.state().found = found;
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    assert_eq!(back(&c).await.left_out, [""; 0]);
    assert_eq!(sees(&c).len(), 2);
    let parts = fake.state().devices["safe"].parts.clone();
    let text: String = parts.values().map(|p| String::from_utf8_lossy(p).into_owned()).collect();
    assert!(text.contains("0000000000000003:0000000000000004"), "the devices carry it: {text}");
}

/// Another node had the pool meanwhile, and has given the volume to the host: that is newer. An import that failed does not make
/// it older.
#[tokio::test]
async fn what_another_node_wrote_meanwhile_counts_more() {
    let (_dir, fake, c) = away().await;
    c.delete_map("h".into(), "v".into(), false).await.expect("nobody is logged in");
    let_go(&c, &fake).await;
    {
        let mut s = fake.state();
        let found = s.found.as_mut().expect("a pool");
        let (number, content) = found.record.parts.pop_last().expect("a part");
        let mut part: serde_json::Value = serde_json::from_slice(&content).expect("JSON");
        part["stamp"] = serde_json::json!({"life": "of another", "revision": 30});
        found.record.parts.insert(number, serde_json::to_vec(&part).expect("bytes"));
    }
    fake.break_call("start_pool safe");
    c.import_pool(spec()).await.expect_err("it does not start");
    fake.mend();
    back(&c).await;
    assert_eq!(sees(&c).len(), 2);
}

/// A node on which `v` is to be deleted as soon as its pool comes. Its devices took no writes when that was said.
async fn v_is_to_be_deleted() -> (Scratch, Arc<Fake>, Arc<Controller>) {
    let (dir, fake, c) = there().await;
    fake.break_call("keep_record safe");
    fake.break_call("delete_volume_data v");
    c.delete_map("h".into(), "v".into(), false).await.expect("nobody is logged in");
    let delete = Command::DeleteVolume { name: "v".into() };
    c.execute(delete).await.expect_err("not wholly");
    assert_eq!(c.model().volumes["v"].state, VolumeState::Deleting);
    let (fake, c) = without_it(&dir, fake, c).await;
    (dir, fake, c)
}

/// What the devices carry after another node has had the pool, and has changed nothing of its configuration. Its hosts have written
/// to what was to be deleted here.
async fn another_had_it(found: PoolFound) -> Carried {
    let there = Scratch::new();
    let its = Arc::new(Fake::default());
    its.state().devices.insert("safe".into(), found.record.clone());
    its.state().found = Some(found);
    let other = Controller::start(there.path(), its.clone()).await.expect("a controller");
    other.import_pool(spec()).await.expect("taken over");
    assert_eq!(sees(&other).len(), 2);
    other.release_pool("safe".into()).await.expect("let go of");
    ended(other, its).await
}

/// The state of `v` on the node that has let go of the pool, after it has taken that over again.
async fn v_after_another_had_it() -> VolumeState {
    let (_dir, fake, c) = v_is_to_be_deleted().await;
    let_go(&c, &fake).await;
    let found = fake.state().found.clone().expect("a pool");
    let carried = another_had_it(found).await;
    {
        let mut s = fake.state();
        s.found.as_mut().expect("a pool").record = carried.clone();
        s.devices.insert("safe".into(), carried);
    }
    back(&c).await;
    c.model().volumes.get("v").map_or(VolumeState::Deleting, |v| v.state)
}

#[tokio::test]
async fn what_another_node_had_meanwhile_is_not_deleted() {
    assert_eq!(v_after_another_had_it().await, VolumeState::Ready);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_tenure_that_leaves_no_mark_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::TenureUnmarked));
    let v = v_after_another_had_it().await;
    plant(None);
    assert_eq!(v, VolumeState::Deleting);
}

/// The same where nobody has let go of the pool, as when its node was dead for a while.
#[tokio::test]
async fn what_another_node_had_is_not_deleted_where_the_pool_was_before() {
    let (dir, fake, c) = v_is_to_be_deleted().await;
    let m = c.model();
    let id = m.pools["safe"].protection.as_ref().expect("it is protected").id;
    let record = ended(c, fake).await;
    let datasets = m.volumes.values().map(dataset).collect();
    let carried = another_had_it(PoolFound { id, copies: 1, members: 1, record, datasets }).await;
    let fake = Arc::new(Fake::default());
    fake.state().devices.insert("safe".into(), carried);
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    assert!(c.model().volumes.contains_key("v"), "it is deleted");
    let faults = c.status().await.expect("a status").faults;
    assert!(faults.iter().any(|f| f.code == "record_newer"), "{faults:?}");
}

//! Volumes that could not be closed, as while a device hangs: they are not opened beside what is left of them, and are closed later.

use crate::fake::Fake;
use crate::full::Full;
use crate::support::*;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_control::Controller;
use weir_control::live::SnapshotLive;
use weir_control::model::{
    Carried, Command, DatasetFound, DeviceKind, ImportSpec, Model, PoolFound, PoolSpec, Raid,
};
use weir_control::store::MetaStore;

const MIB: u64 = 1 << 20;

pub(crate) fn protected() -> PoolSpec {
    let spec = pool("safe", &[(DeviceKind::File, Some("/nowhere/d0"), Some(GIB))]);
    PoolSpec { raid: Some(Raid::Zero), ..spec }
}

/// A node whose store may run full.
pub(crate) async fn node() -> (Full, Arc<Fake>, Arc<Controller>) {
    let (file, fake) = (Full::default(), Arc::new(Fake::default()));
    fake.state().devices.insert("safe".into(), Carried::default());
    fake.state().tells_snapshots = true;
    let store = MetaStore::open_on(file.clone()).expect("a store");
    let c = Controller::start_on(store, Path::new("/nowhere"), fake.clone(), Vec::new()).await;
    (file, fake, c.expect("a controller"))
}

/// Pool `safe`, and a volume of it that host `h` sees.
async fn used() -> (Full, Arc<Fake>, Arc<Controller>) {
    let (file, fake, c) = node().await;
    for command in [
        Command::CreatePool(protected()),
        Command::CreateVolume(volume("v", "safe", 8 * MIB)),
        Command::CreateHost(host("h", &["1:2"])),
        Command::CreateMap(map("h", "v")),
    ] {
        c.execute(command).await.expect("it can be so");
    }
    (file, fake, c)
}

pub(crate) async fn within(seconds: u64, is_so: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !is_so() && begun.elapsed() < Duration::from_secs(seconds) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    is_so()
}

/// A pool is let go of while its volume cannot be closed. Whether that was taken back in order.
async fn opened_once() -> bool {
    let (_file, fake, c) = used().await;
    fake.break_call("close_volume v");
    let refused = c.release_pool("safe".into()).await.expect_err("it is refused");
    if refused.code == weir_control::Code::Internal {
        return false;
    }
    assert!(c.model().volumes.contains_key("v"));
    fake.mend();
    let n = fake.state().calls.len();
    let called = |call: &str| fake.state().calls[n..].iter().position(|c| c == call);
    assert!(within(10, || called("open_volume v").is_some()).await, "it is served again");
    assert!(called("close_volume v") < called("open_volume v"));
    let told = c.status().await.expect("a status").faults;
    assert!(told.is_empty(), "{told:?}");
    true
}

#[tokio::test]
async fn what_could_not_be_closed_is_closed_before_it_is_opened_again() {
    assert!(opened_once().await, "it is opened beside what is left of it");
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_volume_that_is_opened_twice_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::OpenedTwice));
    let once = opened_once().await;
    plant(None);
    assert!(!once);
}

/// What devices carry of a pool with volume `v`, which host `h` sees.
pub(crate) fn found() -> PoolFound {
    let mut m = Model::default();
    for command in [
        Command::CreatePool(protected()),
        Command::CreateVolume(volume("v", "safe", 8 * MIB)),
        Command::ReadyVolume { name: "v".into() },
        Command::CreateHost(host("h", &["1:2"])),
        Command::CreateMap(map("h", "v")),
    ] {
        m.apply(command, 7).expect("it can be so");
    }
    let id = m.pools["safe"].protection.as_ref().expect("it is protected").id;
    let v = &m.volumes["v"];
    let dataset = DatasetFound { name: v.dataset(), size: v.size, block_size: v.block_size };
    let record = m.pool_record("safe").expect("a record").bytes().expect("bytes");
    PoolFound { id, copies: 1, members: 1, record: Carried::one(record), datasets: vec![dataset] }
}

pub(crate) fn taken() -> ImportSpec {
    ImportSpec {
        name: None,
        devices: pool("x", &[(DeviceKind::File, Some("/nowhere/d0"), None)]).devices,
        prefix: String::new(),
        key_commands: false,
        without_hosts: false,
        force: false,
        dry_run: false,
    }
}

/// A pool that is to be taken over does not start, and there is no room to take that back. Until there is it has started, and is in
/// use. What is in use of it after it was taken back.
async fn in_use_though_taken_back() -> Vec<&'static str> {
    for n in 0..60 {
        let (file, fake, c) = node().await;
        fake.state().found = Some(found());
        fake.break_call("start_pool safe");
        file.after(n);
        c.import_pool(taken()).await.expect_err("it is refused");
        if !c.model().pools.contains_key("safe") {
            continue;
        }
        fake.mend();
        let is_used = || fake.state().access.hosts.iter().any(|h| !h.luns.is_empty());
        assert!(within(15, || fake.state().volumes.contains_key("v") && is_used()).await);
        file.has_room_again();
        c.execute(Command::CreateHost(host("later", &["3:4"]))).await.expect("there is room again");
        assert!(!c.model().pools.contains_key("safe"), "it is taken back");
        let uses = {
            let s = fake.state();
            [
                ("pool", s.pools.contains_key("safe")),
                ("volume", s.volumes.contains_key("v")),
                ("mapping", s.access.hosts.iter().any(|h| !h.luns.is_empty())),
            ]
        };
        c.import_pool(taken()).await.expect("it starts now");
        assert!(fake.state().volumes.contains_key("v"), "it is open");
        return uses.into_iter().filter(|(_, is)| *is).map(|(what, _)| what).collect();
    }
    panic!("it was never owed");
}

#[tokio::test]
async fn nothing_is_in_use_of_a_pool_that_was_not_taken_over() {
    assert_eq!(in_use_though_taken_back().await, [""; 0]);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn what_stays_in_use_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::UndoneStaysInUse));
    let used = in_use_though_taken_back().await;
    plant(None);
    assert!(used.contains(&"volume"), "{used:?}");
}

/// A mapping that could not be taken away is to be there again as soon as there is room in the store. Whether its volume is made what
/// it was before, under its host.
async fn reverted_though_owed() -> bool {
    for n in 0..60 {
        let (file, fake, c) = used().await;
        let dataset = c.model().volumes["v"].dataset();
        let snapshot = SnapshotLive {
            dataset: format!("{dataset}@before"),
            size: 8 * MIB,
            ..SnapshotLive::default()
        };
        fake.state().snapshots = vec![snapshot];
        fake.break_call("set_mappings");
        file.after(n);
        let unmap = Command::DeleteMap { host: "h".into(), volume: "v".into() };
        c.execute(unmap).await.expect_err("it is refused");
        if !c.model().maps.is_empty() {
            continue;
        }
        fake.mend();
        let done = c.revert("v".into(), "before".into()).await;
        let is_done = fake.state().calls.iter().any(|c| c == "revert_volume v");
        assert_eq!(done.is_ok(), is_done, "{done:?}");
        file.has_room_again();
        c.execute(Command::CreateHost(host("later", &["3:4"]))).await.expect("there is room again");
        assert!(c.model().map("h", "v").is_ok(), "it is mapped");
        if !is_done {
            let refused = c.revert("v".into(), "before".into()).await.expect_err("it is mapped");
            assert_eq!(refused.code, weir_control::Code::VolumeMapped);
        }
        return is_done;
    }
    panic!("it was never owed");
}

#[tokio::test]
async fn a_volume_is_not_reverted_by_what_is_to_be_taken_back() {
    assert!(!reverted_though_owed().await, "its host has some of it in memory");
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_revert_by_what_is_to_be_taken_back_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::TurnThoughOwed));
    let reverted = reverted_though_owed().await;
    plant(None);
    assert!(reverted);
}

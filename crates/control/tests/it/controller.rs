//! Changes, their undoing, restarts, faults.

use crate::fake::Fake;
use crate::support::*;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_control::declare::Desired;
use weir_control::model::{
    Command, DeviceKind, LayerChange, LayerSpec, MapSpec, Model, PoolPatch, VolumePatch,
};
use weir_control::store::MetaStore;
use weir_control::{Code, Controller};

async fn start(dir: &Path) -> (Arc<Fake>, Arc<Controller>) {
    let fake = Arc::new(Fake::default());
    let controller = Controller::start(dir, fake.clone()).await.expect("a controller");
    (fake, controller)
}

async fn run(c: &Arc<Controller>, command: Command) {
    c.execute(command).await.expect("the command works");
}

#[tokio::test]
async fn a_node_comes_back_as_it_was() {
    let dir = Scratch::new();
    let (fake, c) = start(dir.path()).await;
    run(&c, Command::CreatePool(ram_pool("mem", GIB))).await;
    run(&c, Command::CreateVolume(volume("v1", "mem", 1 << 20))).await;
    run(&c, Command::CreateHost(host("h1", &["1:2"]))).await;
    run(&c, Command::CreateMap(map("h1", "v1"))).await;
    run(&c, Command::PutTarget(target("srp0", "127.0.0.1:5555"))).await;
    assert_eq!(fake.state().access.hosts[0].luns[0].volume, "v1");
    let model = c.model();
    c.shutdown().await.expect("down");
    assert!(fake.state().volumes.is_empty() && fake.state().targets.is_empty());
    drop((fake, c));

    let (fake, c) = settle(dir.path()).await;
    assert_eq!(*c.model(), *model, "identities and all");
    let state = fake.state();
    assert_eq!(state.volumes.get("v1"), model.volumes.get("v1"));
    assert_eq!(state.access, model.access());
    let order: Vec<&str> = state.calls.iter().map(|c| c.split(' ').next().unwrap_or("")).collect();
    assert_eq!(order, ["start_pool", "open_volume", "set_mappings", "start_target"]);
    let export = std::fs::read_to_string(dir.path().join("config.json")).expect("the copy");
    let export: serde_json::Value = serde_json::from_str(&export).expect("JSON");
    assert_eq!(export["volumes"]["v1"]["naa"], model.volumes["v1"].naa.to_string());
}

#[tokio::test]
async fn ports_of_a_configuration_from_before_are_numbered_for_good() {
    let dir = Scratch::new();
    let (fake, c) = start(dir.path()).await;
    run(&c, Command::PutTarget(target("srp0", "127.0.0.1:5555"))).await;
    run(&c, Command::PutTarget(target("brp0", "127.0.0.1:5556"))).await;
    let model = c.model();
    c.shutdown().await.expect("down");
    drop((fake, c));
    // Background tasks may take a moment to let go of it.
    let store = loop {
        match MetaStore::open(dir.path()) {
            Ok(s) => break s,
            Err(e) => assert_eq!(e.code, Code::DataDirInUse),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let mut before = Model::clone(&model);
    before.targets.values_mut().for_each(|t| t.relative = 0);
    store.commit(&model, &before).expect("written");
    drop(store);
    let (fake, c) = settle(dir.path()).await;
    run(&c, Command::DeleteTarget { name: "brp0".into() }).await;
    c.shutdown().await.expect("down");
    drop((fake, c));
    let (_fake, c) = settle(dir.path()).await;
    assert_eq!(c.model().targets["srp0"].relative, 2, "also when the one before it is gone");
}

/// The store's lock goes with the last user; background tasks may take a moment to let go.
async fn settle(dir: &Path) -> (Arc<Fake>, Arc<Controller>) {
    for _ in 0..500 {
        let fake = Arc::new(Fake::default());
        match Controller::start(dir, fake.clone()).await {
            Ok(c) => return (fake, c),
            Err(e) => assert_eq!(e.code, Code::DataDirInUse, "{e}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the store stays locked");
}

#[tokio::test]
async fn a_second_daemon_is_refused() {
    let dir = Scratch::new();
    let (_fake, _c) = start(dir.path()).await;
    let e = Controller::start(dir.path(), Arc::new(Fake::default())).await.unwrap_err();
    assert_eq!(e.code, Code::DataDirInUse);
    assert!(e.hint.contains("--data-dir"));
}

#[tokio::test]
async fn what_the_data_plane_refuses_leaves_nothing_behind() {
    let grow = VolumePatch { size: Some(2 << 20), ..VolumePatch::default() };
    let add =
        PoolPatch { add: ram_pool("x", GIB).devices, grow: Vec::new(), ..PoolPatch::default() };
    let cases = [
        ("start_pool p2", Command::CreatePool(ram_pool("p2", GIB))),
        ("start_pool mem", Command::PatchPool { name: "mem".into(), patch: add }),
        ("stop_pool spare", Command::DeletePool { name: "spare".into() }),
        ("open_volume v2", Command::CreateVolume(volume("v2", "mem", 1 << 20))),
        ("update_volume v1", Command::PatchVolume { name: "v1".into(), patch: grow }),
        ("set_mappings", Command::CreateHost(host("h2", &["3:4"]))),
        ("set_mappings", Command::CreateMap(map("h1", "v1"))),
        ("set_mappings", Command::DeleteHost { name: "h1".into() }),
        ("start_target srp1", Command::PutTarget(target("srp1", "127.0.0.1:5556"))),
        ("start_target srp0", Command::PutTarget(target("srp0", "127.0.0.1:5557"))),
        ("stop_target srp0", Command::DeleteTarget { name: "srp0".into() }),
    ];
    for (broken, command) in cases {
        let dir = Scratch::new();
        let (fake, c) = start(dir.path()).await;
        run(&c, Command::CreatePool(ram_pool("mem", GIB))).await;
        run(&c, Command::CreatePool(ram_pool("spare", GIB))).await;
        run(&c, Command::CreateVolume(volume("v1", "mem", 1 << 20))).await;
        run(&c, Command::CreateHost(host("h1", &["1:2"]))).await;
        run(&c, Command::PutTarget(target("srp0", "127.0.0.1:5555"))).await;
        let before = c.model();
        fake.break_call(broken);
        let e = c.execute(command.clone()).await.expect_err(broken);
        assert_eq!(e.code, Code::IoError, "{broken}");
        fake.mend();
        let mut now = (*c.model()).clone();
        assert!(now.revision > before.revision, "{broken}: undoing is a change too");
        now.revision = before.revision;
        assert_eq!(now, *before, "{broken}");
        assert!(!fake.state().data.contains("v2"), "its data is gone");
        // The same command works once the data plane does, and a restart finds what it made.
        let after = c.execute(command).await.unwrap_or_else(|e| panic!("{broken}: {e}"));
        assert!(after.revision > before.revision);
        drop((fake, c));
        let (_fake, c) = settle(dir.path()).await;
        assert_eq!(c.model(), after, "{broken}");
    }
}

#[tokio::test]
async fn a_deletion_once_begun_is_carried_on() {
    let dir = Scratch::new();
    let (fake, c) = start(dir.path()).await;
    run(&c, Command::CreatePool(ram_pool("mem", GIB))).await;
    run(&c, Command::CreateVolume(volume("v1", "mem", 1 << 20))).await;
    run(&c, Command::CreateVolume(volume("v2", "mem", 1 << 20))).await;
    fake.break_call("delete_volume_data v1");
    fake.break_call("delete_volume_data v2");
    c.execute(delete_volume("v1")).await.expect_err("broken");
    c.execute(delete_volume("v2")).await.expect_err("broken");
    assert!(c.model().volumes.contains_key("v1"));
    let status = c.status().await.expect("a status");
    assert_eq!(status.faults.len(), 2);
    let patch = VolumePatch { read_only: Some(true), ..VolumePatch::default() };
    let e = c.execute(Command::PatchVolume { name: "v1".into(), patch }).await.unwrap_err();
    assert_eq!(e.code, Code::VolumeDeleting);
    // Repeating the command carries on.
    fake.mend();
    run(&c, delete_volume("v1")).await;
    assert!(!c.model().volumes.contains_key("v1"));
    // And so does a restart.
    drop((fake, c));
    let (fake, c) = settle(dir.path()).await;
    assert!(c.model().volumes.is_empty());
    assert!(fake.state().calls.contains(&"delete_volume_data v2".to_string()));
    assert!(c.status().await.expect("a status").faults.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_did_not_start_is_a_fault_and_tried_again() {
    let dir = Scratch::new();
    let (_, c) = start(dir.path()).await;
    run(&c, Command::CreatePool(ram_pool("mem", GIB))).await;
    run(&c, Command::CreateVolume(volume("v1", "mem", 1 << 20))).await;
    drop(c);
    let fake = Arc::new(Fake::default());
    fake.break_call("start_pool mem");
    let c = loop {
        match Controller::start(dir.path(), fake.clone()).await {
            Ok(c) => break c,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    let faults = c.status().await.expect("a status").faults;
    let objects: Vec<&str> = faults.iter().map(|f| f.object.as_str()).collect();
    // One cause, one fault; the volume says what it waits for.
    assert_eq!(objects, ["pool/mem"]);
    assert!(faults[0].text.ends_with("; a volume waits for it"), "{faults:?}");
    let info = |c: &Controller| c.volume_info(c.model().volume("v1").expect("it"));
    let why = info(&c).not_served.expect("it is not served");
    assert!(why.contains("the test wants it"), "{why}");
    for command in [
        Command::CreateVolume(volume("v2", "mem", 1 << 20)),
        Command::PatchVolume { name: "v1".into(), patch: VolumePatch::default() },
    ] {
        let e = c.execute(command).await.unwrap_err();
        assert_eq!(e.code, Code::NotReady, "{e}");
        assert!(!e.hint.is_empty());
    }
    fake.mend();
    until("all is well", async || c.status().await.expect("a status").faults.is_empty()).await;
    assert!(fake.state().volumes.contains_key("v1"));
    assert_eq!(info(&c).not_served, None);
}

#[tokio::test]
async fn sizes_that_the_data_plane_finds_are_kept() {
    let dir = Scratch::new();
    let (fake, c) = start(dir.path()).await;
    fake.state().block_sizes.insert("/dev/fake0".into(), 5 * GIB);
    let spec = pool("disk", &[(DeviceKind::Block, Some("/dev/fake0"), None)]);
    let model = c.execute(Command::CreatePool(spec)).await.expect("a pool");
    assert_eq!(model.pool_info("disk").expect("info").free, 5 * GIB);
    run(&c, Command::CreateVolume(volume("v1", "disk", 4 * GIB))).await;
    drop((fake, c));
    // A device that shrank below its volumes must not be used.
    let fake = Arc::new(Fake::default());
    fake.state().block_sizes.insert("/dev/fake0".into(), GIB);
    let c = loop {
        match Controller::start(dir.path(), fake.clone()).await {
            Ok(c) => break c,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    let faults = c.status().await.expect("a status").faults;
    assert!(faults[0].text.contains("smaller than it was"), "{faults:?}");
    assert!(fake.state().volumes.is_empty());
}

#[tokio::test]
async fn a_declaration_can_be_applied_twice() {
    let dir = Scratch::new();
    let (fake, c) = start(dir.path()).await;
    let mut desired = Desired {
        pools: vec![ram_pool("mem", GIB)],
        volumes: vec![volume("v1", "mem", 1 << 20), volume("v2", "mem", 1 << 20)],
        hosts: vec![host("h1", &["1:2", "1:3"])],
        maps: vec![map("h1", "v1"), map("h1", "v2")],
        targets: vec![target("srp0", "127.0.0.1:5555")],
    };
    let report = c.declare(desired.clone()).await.expect("applied");
    assert_eq!((report.applied.len(), report.unchanged), (7, 0));
    let (model, calls) = (c.model(), fake.state().calls.len());
    let report = c.declare(desired.clone()).await.expect("applied");
    assert_eq!((report.applied.len(), report.unchanged), (0, 7));
    assert_eq!((c.model(), fake.state().calls.len()), (model, calls));

    desired.volumes[0].size = 4 << 20;
    desired.hosts[0] = host("h1", &["1:2", "1:4"]);
    desired.pools[0].devices.push(ram_pool("x", GIB).devices.remove(0));
    let report = c.declare(desired.clone()).await.expect("applied");
    let changed: Vec<&str> = report.applied.iter().map(|a| a.object.as_str()).collect();
    assert_eq!(changed, ["pool/mem", "volume/v1", "host/h1"]);
    assert_eq!(c.model().volumes["v1"].size, 4 << 20);

    // What cannot be is refused as a whole: the new host before it is not made either.
    let revision = c.model().revision;
    desired.hosts.push(host("h2", &["9:9"]));
    desired.maps[0].lun = Some(7);
    let e = c.declare(desired.clone()).await.unwrap_err();
    assert_eq!(e.code, Code::ImmutableField);
    desired.maps[0].lun = None;
    desired.volumes[0].size = 1 << 20;
    assert_eq!(c.declare(desired).await.unwrap_err().code, Code::ShrinkRefused);
    assert_eq!(c.model().revision, revision);
}

#[tokio::test]
async fn a_change_ends_even_if_nobody_waits_for_it() {
    let dir = Scratch::new();
    let (fake, c) = start(dir.path()).await;
    drop(
        tokio::time::timeout(Duration::ZERO, c.execute(Command::CreatePool(ram_pool("mem", GIB))))
            .await,
    );
    for _ in 0..1000 {
        if fake.state().pools.contains_key("mem") && c.model().pools.contains_key("mem") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the change was dropped half way");
}

#[tokio::test]
async fn reservations_are_durable_when_reported_so() {
    let dir = Scratch::new();
    let (fake, c) = start(dir.path()).await;
    run(&c, Command::CreatePool(ram_pool("mem", GIB))).await;
    run(&c, Command::CreateVolume(volume("v1", "mem", 1 << 20))).await;
    let hooks = fake.state().hooks.clone().expect("attached");
    let save = |bytes: &[u8]| {
        let (tell, told) = std::sync::mpsc::channel();
        let done = Box::new(move |r| drop(tell.send(r)));
        hooks.reservations.save("v1", bytes.to_vec(), done);
        told
    };
    let all: Vec<_> = (0..100u8).map(|i| save(&[i; 40])).collect();
    for told in all {
        told.recv().expect("called back").expect("kept");
    }
    assert_eq!(hooks.reservations.load("v1").expect("read"), Some(vec![99; 40]));
    assert!(save(&vec![0; 2 << 20]).recv().expect("called back").is_err(), "absurdly large");
    drop((hooks, fake, c));
    let (fake, c) = settle(dir.path()).await;
    let hooks = fake.state().hooks.clone().expect("attached");
    assert_eq!(hooks.reservations.load("v1").expect("read"), Some(vec![99; 40]));
    // They go with the volume: a new one of the same name starts clean.
    run(&c, delete_volume("v1")).await;
    run(&c, Command::CreateVolume(volume("v1", "mem", 1 << 20))).await;
    assert_eq!(hooks.reservations.load("v1").expect("read"), None);
}

fn insert(kind: &str) -> LayerChange {
    LayerChange::Insert(LayerSpec { kind: kind.into(), ..LayerSpec::default() })
}

/// Hosts use a layer after it was tried and made durable; what the data plane does not take is nowhere afterwards.
#[tokio::test]
async fn layers_are_tried_then_kept_then_used() {
    let dir = Scratch::new();
    let (fake, c) = start(dir.path()).await;
    run(&c, Command::CreatePool(ram_pool("mem", GIB))).await;
    run(&c, Command::CreateVolume(volume("v1", "mem", 1 << 20))).await;
    fake.state().calls.clear();
    let live = c.change_layers("v1".into(), insert("delay")).await.expect("it comes in");
    assert_eq!((live.len(), live[0].node.as_str(), live[0].in_use), (1, "delay.1", false));
    assert_eq!(fake.state().calls, ["hold_layers v1 delay.1", "decide_layers v1 true"]);
    let (model, text) = (c.model(), "layer `delay` put over volume `v1`: delay");
    assert!(c.events().after(0, 100).events.iter().any(|e| e.text == text), "it is told");

    // One that is refused, one that not all of the data plane takes.
    for broken in ["hold_layers v1 stats.2", "decide_layers v1 true"] {
        fake.break_call(broken);
        let e = c.change_layers("v1".into(), insert("stats")).await.expect_err(broken);
        assert_eq!(e.code, Code::IoError, "{e}");
        assert_eq!(c.model().volumes, model.volumes, "{broken}");
        assert_eq!(fake.state().volumes.get("v1"), model.volumes.get("v1"), "{broken}");
        fake.mend();
    }
    let last = fake.state().calls.last().cloned();
    assert_eq!(last.as_deref(), Some("update_volume v1"), "the data plane is put back");
    let gone = LayerChange::Remove { layer: "delay".into() };
    assert!(c.change_layers("v1".into(), gone).await.expect("it goes").is_empty());
    let model = c.model();
    c.shutdown().await.expect("down");
    let none = c.change_layers("v1".into(), insert("stats")).await.expect_err("it is down");
    assert_eq!(none.code, Code::NotReady);
    drop((fake, c));
    let (_fake, c) = settle(dir.path()).await;
    assert_eq!(c.model().volumes, model.volumes);
}

#[tokio::test]
async fn a_host_that_is_logged_in_keeps_its_volumes_and_their_numbers() {
    let dir = Scratch::new();
    let (fake, c) = start(dir.path()).await;
    run(&c, Command::CreatePool(ram_pool("mem", GIB))).await;
    for v in ["v1", "v2"] {
        run(&c, Command::CreateVolume(volume(v, "mem", 1 << 20))).await;
    }
    run(&c, Command::CreateHost(host("h1", &["1:2"]))).await;
    run(&c, Command::CreateMap(map("h1", "v1"))).await;
    run(&c, Command::PutTarget(target("srp0", "127.0.0.1:5555"))).await;
    let away = |v: &str, force| c.delete_map("h1".into(), v.into(), force);
    let e = away("v1", false).await.expect_err("it is in use");
    assert_eq!(e.code, Code::VolumeMapped);
    assert!(c.model().map("h1", "v1").is_ok());
    away("v1", true).await.expect("by force");
    // The host still takes LUN 0 for the first volume.
    let first = MapSpec { lun: Some(0), ..map("h1", "v2") };
    let e = c.execute(Command::CreateMap(first.clone())).await.expect_err("it knows LUN 0");
    assert_eq!(e.code, Code::LunInUse);
    run(&c, Command::CreateMap(map("h1", "v2"))).await;
    assert_eq!(c.model().map("h1", "v2").expect("mapped").lun, 1);
    run(&c, Command::CreateMap(map("h1", "v1"))).await;
    assert_eq!(c.model().map("h1", "v1").expect("mapped").lun, 0);
    // A connection that is lost is no logout: its system keeps the disks for ten minutes.
    fake.state().empty = true;
    away("v1", false).await.expect("nobody is there");
    away("v2", false).await.expect("nobody is there");
    let e = c.execute(Command::CreateMap(first.clone())).await.expect_err("it may come back");
    assert_eq!(e.code, Code::LunInUse);
    // Once it has gone it knows nothing any more.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(601)).await;
    tokio::time::resume();
    run(&c, Command::CreateMap(first)).await;
    assert_eq!(c.model().map("h1", "v2").expect("mapped").lun, 0);
}

/// A host mounts the disk that it has as LUN 0. The volume is taken away by force, and the daemon starts anew; the host goes through
/// that, with the disks and numbers that it had. By which number it gets another volume then.
async fn number_after_a_restart() -> u16 {
    let dir = Scratch::new();
    let (fake, c) = start(dir.path()).await;
    run(&c, Command::CreatePool(ram_pool("mem", GIB))).await;
    for v in ["v1", "v2"] {
        run(&c, Command::CreateVolume(volume(v, "mem", 1 << 20))).await;
    }
    run(&c, Command::CreateHost(host("h1", &["1:2"]))).await;
    run(&c, Command::CreateMap(map("h1", "v1"))).await;
    run(&c, Command::PutTarget(target("srp0", "127.0.0.1:5555"))).await;
    c.delete_map("h1".into(), "v1".into(), true).await.expect("by force");
    c.shutdown().await.expect("down");
    drop((fake, c));
    // The host is logged in as soon as the target port is there.
    let (_fake, c) = settle(dir.path()).await;
    run(&c, Command::CreateMap(map("h1", "v2"))).await;
    c.model().map("h1", "v2").expect("mapped").lun
}

#[tokio::test]
async fn a_number_that_a_host_knows_is_kept_apart_over_a_restart() {
    assert_eq!(number_after_a_restart().await, 1);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_number_that_becomes_another_disk_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::NumbersForgotten));
    let lun = number_after_a_restart().await;
    plant(None);
    assert_eq!(lun, 0);
}

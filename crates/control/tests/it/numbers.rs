//! Numbers by which machines know volumes: told by what machines and volumes are, not by the names that they have.

use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use weir_control::model::{
    Carried, Command, DatasetFound, DeviceKind, HostPatch, HostSpec, ImportSpec, MapSpec, Model,
    PoolFound, PoolSpec, Raid,
};
use weir_control::{Code, Controller};

const MIB: u64 = 1 << 20;
const PORT: &str = "0000000000000001:0000000000000002";

/// A machine is logged in by that port, as a host `h` that sees volume `v1` as LUN 0; there is a `v2`.
async fn node(h: HostSpec) -> (Scratch, Arc<Fake>, Arc<Controller>) {
    let dir = Scratch::new();
    let fake = Arc::new(Fake::default());
    fake.state().initiator = Some(PORT.into());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    for command in [
        Command::CreatePool(ram_pool("mem", GIB)),
        Command::CreateVolume(volume("v1", "mem", MIB)),
        Command::CreateVolume(volume("v2", "mem", MIB)),
        Command::CreateHost(h),
        Command::CreateMap(map("h", "v1")),
        Command::PutTarget(target("srp0", "127.0.0.1:5555")),
    ] {
        c.execute(command).await.expect("it can be so");
    }
    // It mounts what it has as LUN 0.
    assert_eq!(sees(&c), Some(("v1".into(), c.model().volumes["v1"].naa)));
    (dir, fake, c)
}

/// What the machine has as LUN 0.
fn sees(c: &Controller) -> Option<(String, weir_control::model::Naa)> {
    let m = c.model();
    let port = PORT.parse().expect("a port");
    m.seen_by(m.viewers()(&port)).get(&0).map(|v| (v.name.clone(), v.naa))
}

/// A host for whatever port no other has.
fn any() -> HostSpec {
    HostSpec { allow_any: true, ..host("h", &[]) }
}

async fn run(c: &Arc<Controller>, command: Command) {
    c.execute(command).await.expect("it is done");
}

/// The volume goes, and another of its name comes.
async fn another_volume_of_that_name() -> bool {
    let (_dir, _fake, c) = node(host("h", &[PORT])).await;
    c.delete_map("h".into(), "v1".into(), true).await.expect("by force");
    run(&c, delete_volume("v1")).await;
    run(&c, Command::CreateVolume(volume("v1", "mem", MIB))).await;
    run(&c, Command::CreateMap(map("h", "v1"))).await;
    sees(&c).is_some()
}

/// The host goes, and the machine is called otherwise.
async fn another_name_of_the_host() -> bool {
    let (_dir, _fake, c) = node(host("h", &[PORT])).await;
    c.delete_map("h".into(), "v1".into(), true).await.expect("by force");
    run(&c, Command::DeleteHost { name: "h".into() }).await;
    run(&c, Command::CreateHost(host("db", &[PORT]))).await;
    run(&c, Command::CreateMap(map("db", "v2"))).await;
    sees(&c).is_some()
}

/// The machine was let in as any, and gets a name.
async fn a_name_for_any() -> bool {
    let (_dir, _fake, c) = node(any()).await;
    run(&c, Command::CreateHost(host("db", &[PORT]))).await;
    let first = Command::CreateMap(MapSpec { lun: Some(0), ..map("db", "v2") });
    done(c.execute(first).await)
}

/// Whether it was done; else it was refused for its number.
fn done<T>(outcome: weir_control::Result<T>) -> bool {
    match outcome {
        Ok(_) => true,
        Err(e) => {
            assert_eq!(e.code, Code::LunInUse, "{e}");
            false
        }
    }
}

/// The port goes from one host to another that has a LUN 0.
async fn another_host_for_the_port() -> bool {
    let (_dir, _fake, c) = node(host("h", &[PORT, "3:4"])).await;
    run(&c, Command::CreateHost(host("db", &["5:6"]))).await;
    run(&c, Command::CreateMap(map("db", "v2"))).await;
    let port = PORT.parse().expect("a port");
    let away = HostPatch { remove_ports: vec![port], ..HostPatch::default() };
    run(&c, Command::PatchHost { name: "h".into(), patch: away }).await;
    let to = HostPatch { add_ports: vec![port], ..HostPatch::default() };
    done(c.execute(Command::PatchHost { name: "db".into(), patch: to }).await)
}

/// By which of these LUN 0 becomes another volume under the machine.
async fn becomes_another() -> Vec<&'static str> {
    let mut all = Vec::new();
    for (what, does) in [
        ("another volume of that name", another_volume_of_that_name().await),
        ("another name of the host", another_name_of_the_host().await),
        ("a name for any", a_name_for_any().await),
        ("another host for the port", another_host_for_the_port().await),
    ] {
        all.extend(does.then_some(what));
    }
    all
}

#[tokio::test]
async fn a_number_is_no_other_volume_whatever_names_are_given() {
    assert_eq!(becomes_another().await, [""; 0]);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_number_that_is_told_by_names_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::NumbersByName));
    let found = becomes_another().await.len();
    plant(None);
    assert_eq!(found, 4);
}

/// The numbers of two volumes for a host of its own, beside one for all that has the second as LUN 0.
async fn beside_a_host_for_all() -> [u16; 2] {
    let (_dir, _fake, c) = node(any()).await;
    run(&c, Command::CreateHost(host("db", &["5:6"]))).await;
    let mut numbers = [0; 2];
    for (n, v) in numbers.iter_mut().zip(["v2", "v1"]) {
        run(&c, Command::CreateMap(map("db", v))).await;
        *n = c.model().map("db", v).expect("it is mapped").lun;
    }
    numbers
}

#[tokio::test]
async fn a_number_is_none_by_which_all_have_another_volume() {
    assert_eq!(beside_a_host_for_all().await, [1, 0]);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_number_by_which_all_have_another_volume_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::NumbersOfAll));
    let numbers = beside_a_host_for_all().await;
    plant(None);
    assert_eq!(numbers, [0, 1]);
}

/// Pool `other` with volume `w`, which host `h` sees as LUN 0, and `x`, as LUN 7.
fn found() -> PoolFound {
    let mut m = Model::default();
    let spec = pool("other", &[(DeviceKind::File, Some("/nowhere/o"), Some(GIB))]);
    let spec = PoolSpec { raid: Some(Raid::Zero), ..spec };
    for (n, command) in [
        Command::CreatePool(spec),
        Command::CreateVolume(volume("w", "other", 8 * MIB)),
        Command::ReadyVolume { name: "w".into() },
        Command::CreateVolume(volume("x", "other", 8 * MIB)),
        Command::ReadyVolume { name: "x".into() },
        Command::CreateHost(host("h", &[PORT])),
        Command::CreateMap(map("h", "w")),
        Command::CreateMap(MapSpec { lun: Some(7), ..map("h", "x") }),
    ]
    .into_iter()
    .enumerate()
    {
        m.apply(command, (n as u128) << 70).expect("it can be so");
    }
    let id = m.pools["other"].protection.as_ref().expect("it is protected").id;
    let dataset = |v: &weir_control::model::Volume| DatasetFound {
        name: v.dataset(),
        size: v.size,
        block_size: v.block_size,
    };
    let datasets = m.volumes.values().map(dataset).collect();
    let record = m.pool_record("other").expect("a record").bytes().expect("bytes");
    PoolFound { id, copies: 1, members: 1, record: Carried::one(record), datasets }
}

/// A mapping that cannot be, since the host knows another volume by that number, keeps nothing else away.
#[tokio::test]
async fn a_pool_comes_without_a_mapping_whose_number_stands_for_another() {
    let (_dir, fake, c) = node(host("h", &[PORT])).await;
    c.delete_map("h".into(), "v1".into(), true).await.expect("by force");
    fake.state().found = Some(found());
    let devices = pool("x", &[(DeviceKind::File, Some("/nowhere/o"), None)]).devices;
    let spec = ImportSpec {
        name: None,
        devices,
        prefix: String::new(),
        key_commands: false,
        without_hosts: false,
        force: false,
        dry_run: true,
    };
    let plan = c.import_pool(spec.clone()).await.expect("a plan");
    let report = c.import_pool(ImportSpec { dry_run: false, ..spec }).await.expect("taken over");
    assert_eq!(plan, report);
    assert_eq!(report.maps, [("h".into(), "x".into())]);
    assert!(report.left_out.iter().any(|l| l.contains("volume `w` for host `h`")), "{report:?}");
    assert_eq!(sees(&c), None);
}

/// Whether LUN 0 is another volume for a machine that logged in just before its mapping went.
async fn is_another_after_a_late_login() -> bool {
    let (_dir, fake, c) = node(host("h", &[PORT])).await;
    {
        let mut s = fake.state();
        (s.empty, s.initiator) = (true, Some("0000000000000007:0000000000000008".into()));
    }
    run(&c, Command::CreateHost(host("g", &["7:8"]))).await;
    run(&c, Command::CreateMap(map("g", "v1"))).await;
    fake.state().logs_in = true;
    c.delete_map("g".into(), "v1".into(), true).await.expect("by force");
    run(&c, Command::CreateMap(map("g", "v2"))).await;
    c.model().map("g", "v2").expect("mapped").lun == 0
}

#[tokio::test]
async fn a_number_that_a_host_saw_at_the_last_moment_is_no_other_volume() {
    assert!(!is_another_after_a_late_login().await);
}

#[cfg(feature = "planted")]
#[tokio::test]
async fn a_login_that_is_overlooked_is_caught() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::LateIsOverlooked));
    let other = is_another_after_a_late_login().await;
    plant(None);
    assert!(other);
}

/// Who logs in while a command waits for another one keeps its volume.
#[tokio::test]
async fn a_host_that_logs_in_while_a_command_waits_keeps_its_volume() {
    let (_dir, fake, c) = node(host("h", &[PORT])).await;
    fake.state().empty = true;
    fake.state().slow_pools.insert("slow".into(), std::time::Duration::from_secs(1));
    let (c2, fake2) = (c.clone(), fake.clone());
    let other =
        tokio::spawn(async move { c2.execute(Command::CreatePool(ram_pool("slow", GIB))).await });
    while !fake2.state().calls.iter().any(|c| c == "start_pool slow begins") {
        tokio::task::yield_now().await;
    }
    let (c2, polls) = (c.clone(), fake.state().polls);
    let away = tokio::spawn(async move { c2.delete_map("h".into(), "v1".into(), false).await });
    // By now it has looked, if it looks before its turn comes.
    for _ in 0..200 {
        if fake.state().polls > polls + 1 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    fake.state().empty = false;
    other.await.expect("no panic").expect("made");
    let e = away.await.expect("no panic").expect_err("it is in use");
    assert_eq!(e.code, Code::VolumeMapped);
    assert!(sees(&c).is_some());
}

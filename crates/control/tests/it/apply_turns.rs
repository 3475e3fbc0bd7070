//! A declaration that is applied beside other commands, the end of the daemon, what was declared at its start, and hosts that
//! know numbers.

use crate::applied::{MIB, applied, apply, failed, file, node};
use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use weir_control::controller::ApplyReport;
use weir_control::declare::{ApplySpec, Desired};
use weir_control::model::{Command, DeviceKind, HostPatch, HostSpec, MapSpec, Overwrite, PoolSpec};
use weir_control::{Code, Controller};

/// All tasks that can do something have done it.
async fn settled() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

/// A file with two pools is being applied, and the devices of the first do not answer yet.
async fn applying(
    c: &Arc<Controller>,
    fake: &Fake,
) -> (tokio::task::JoinHandle<ApplyReport>, Arc<tokio::sync::Notify>) {
    let answers = Arc::new(tokio::sync::Notify::new());
    fake.state().hung_pools.insert("p1".into(), answers.clone());
    let pools = vec![ram_pool("p1", GIB), ram_pool("p2", GIB)];
    let spec = Desired { pools, ..Desired::default() };
    let me = c.clone();
    let run = tokio::spawn(async move { apply(&me, spec).await });
    let hangs = || fake.state().calls.iter().any(|c| c == "start_pool p1 hangs");
    until("it hangs", async || hangs()).await;
    (run, answers)
}

#[tokio::test]
async fn other_commands_come_between_the_objects_of_a_file() {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    let (run, answers) = applying(&c, &fake).await;
    let me = c.clone();
    let other =
        tokio::spawn(async move { me.execute(Command::CreateHost(host("h", &["1:2"]))).await });
    settled().await;
    assert!(!other.is_finished(), "one at a time");
    fake.state().hung_pools.clear();
    answers.notify_waiters();
    assert_eq!(applied(&run.await.expect("no panic")), ["+pool/p1", "+pool/p2"]);
    other.await.expect("no panic").expect("a host");
    let calls = fake.state().calls.clone();
    let at = |call: &str| calls.iter().rposition(|c| c == call);
    assert!(at("set_mappings") < at("start_pool p2"), "{calls:?}");
}

#[tokio::test]
async fn the_end_of_the_daemon_waits_for_one_object_of_a_file_only() {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    let (run, answers) = applying(&c, &fake).await;
    let me = c.clone();
    let end = tokio::spawn(async move { me.shutdown().await });
    settled().await;
    fake.state().hung_pools.clear();
    answers.notify_waiters();
    let r = run.await.expect("no panic");
    end.await.expect("no panic").expect("an end");
    assert_eq!(applied(&r), ["+pool/p1"]);
    assert_eq!(failed(&r), [("pool/p2".to_string(), Code::NotReady)]);
    assert!(!fake.state().calls.iter().any(|c| c == "start_pool p2"));
}

#[tokio::test]
async fn what_else_is_declared_of_a_pool_that_has_kept_it_waiting_in_vain_is_not_tried() {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    let mut before = file();
    before.pools.push(ram_pool("well", GIB));
    before.volumes.push(volume("w", "well", MIB));
    apply(&c, before.clone()).await;
    fake.state().slow_pools.insert("mem".into(), Duration::from_millis(1100));
    fake.break_call("start_pool mem");
    let mut after = before;
    after.pools[0] = ram_pool("mem", 2 * GIB);
    after.volumes.iter_mut().for_each(|v| v.size = 16 * MIB);
    let r = apply(&c, after).await;
    let told = ["pool/mem", "volume/a", "volume/b"];
    let codes = [Code::IoError, Code::NotReady, Code::NotReady];
    assert_eq!(failed(&r), told.map(str::to_string).into_iter().zip(codes).collect::<Vec<_>>());
    assert_eq!(applied(&r), ["~volume/w"]);
    assert!(!fake.state().calls.iter().any(|c| c == "update_volume a"), "it is tried");
}

/// A machine that has gone knows a volume by a number that the file gives to another.
#[tokio::test]
async fn a_rehearsal_knows_the_numbers_that_hosts_know() {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    apply(&c, file()).await;
    {
        let mut s = fake.state();
        (s.empty, s.initiator) = (false, Some("0000000000000001:0000000000000002".into()));
    }
    // That it is there is seen with the next command about hosts.
    c.execute(Command::CreateHost(host("x", &["8:8"]))).await.expect("made");
    fake.state().empty = true;
    for lun in [Some(0), None] {
        let mut other = file();
        other.hosts.push(host("x", &["8:8"]));
        other.maps[0] = MapSpec { lun, ..map("h", "b") };
        let gone = Command::DeleteMap { host: "h".into(), volume: "a".into() };
        c.execute(gone).await.expect("taken away");
        let spec: ApplySpec = other.into();
        let plan = apply(&c, ApplySpec { dry_run: true, ..spec.clone() }).await;
        let r = apply(&c, spec).await;
        assert_eq!(ApplyReport { dry_run: false, ..plan }, r);
        match lun {
            Some(_) => {
                assert_eq!(applied(&r), Vec::<String>::new());
                assert_eq!(failed(&r), [("map/h/b".to_string(), Code::LunInUse)]);
                c.execute(Command::CreateMap(map("h", "a"))).await.expect("as it was");
            }
            None => {
                assert_eq!(applied(&r), ["+map/h/b"]);
                assert_eq!(r.applied[0].changes[0].to_string(), "LUN 1");
            }
        }
    }
}

async fn faults(c: &Controller) -> Vec<String> {
    c.status().await.expect("a status").faults.into_iter().map(|f| f.object).collect()
}

/// What was declared at the start, and by the file that is applied as well, is tried again as that has it. What it does not declare,
/// and what only it declares, is not.
#[tokio::test]
async fn what_a_start_could_not_do_is_tried_again_after_an_apply_that_cannot_either() {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    fake.state().taken.insert("/dev/x".into());
    let disk = PoolSpec {
        overwrite: Overwrite(vec!["ext4".into()]),
        ..pool("disk", &[(DeviceKind::Block, Some("/dev/x"), None)])
    };
    let hosts = |third: HostSpec| vec![host("h", &["1:2"]), host("twin", &["1:2"]), third];
    let mut first = file();
    first.hosts = hosts(host("past", &["1:2"]));
    first.maps.clear();
    first.targets.clear();
    first.pools.push(disk.clone());
    c.declare_at_start(first.clone()).await;
    let told = ["declared/host/past", "declared/host/twin", "declared/pool/disk"];
    assert_eq!(faults(&c).await, told);
    let mut second = first;
    second.hosts = hosts(host("own", &["1:2"]));
    second.hosts[1] = host("twin", &["1:2", "7:7"]);
    let r = apply(&c, second).await;
    let names: Vec<&str> = r.failed.iter().map(|f| f.object.as_str()).collect();
    assert_eq!(names, ["pool/disk", "host/twin", "host/own"]);
    assert_eq!(faults(&c).await, ["declared/host/twin", "declared/pool/disk"]);
    let lost = |fake: &Fake| fake.state().may_be_lost["disk"].0.clone();
    assert_eq!(lost(&fake), ["ext4"], "whoever applies a file says so");
    tried_again(&c).await;
    assert_eq!(lost(&fake), Vec::<String>::new(), "what comes there later nobody knows");
    // They can be.
    fake.state().taken.clear();
    let ports = |p: &str| vec![p.parse().expect("a port")];
    let patch =
        HostPatch { add_ports: ports("1:5"), remove_ports: ports("1:2"), ..HostPatch::default() };
    c.execute(Command::PatchHost { name: "h".into(), patch }).await.expect("patched");
    until("they are tried", async || faults(&c).await.is_empty()).await;
    let model = c.model();
    assert_eq!(model.hosts["twin"].ports.len(), 2, "as the second file has it");
    assert!(model.pools.contains_key("disk"));
    assert!(!model.hosts.contains_key("past") && !model.hosts.contains_key("own"));
}

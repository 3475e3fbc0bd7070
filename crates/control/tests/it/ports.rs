//! Target ports that take each other's addresses, and that wait for their hosts.

use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use weir_control::controller::ApplyReport;
use weir_control::declare::{ApplySpec, Desired};
use weir_control::model::{Command, DeviceKind, HostPatch, MapSpec};
use weir_control::{Controller, Stopping};

fn at(addresses: &[(&str, u16)]) -> Desired {
    let one = |(name, port): &(&str, u16)| target(name, &format!("127.0.0.1:{port}"));
    Desired { targets: addresses.iter().map(one).collect(), ..Desired::default() }
}

/// Where ports really listen.
fn listening(fake: &Fake) -> Vec<(String, String)> {
    let state = fake.state();
    state.targets.values().map(|t| (t.name.clone(), t.listen.join(" "))).collect()
}

fn wanted(addresses: &[(&str, u16)]) -> Vec<(String, String)> {
    addresses.iter().map(|(name, port)| (name.to_string(), format!("127.0.0.1:{port}"))).collect()
}

async fn faults(c: &Controller) -> Vec<String> {
    c.status().await.expect("a status").faults.into_iter().map(|f| f.object).collect()
}

async fn start(dir: &Scratch, fake: &Arc<Fake>, declared: &Desired) -> Arc<Controller> {
    let c = up(dir, fake.clone(), &[], declared.clone(), Stopping::default()).await;
    c.declare_at_start(declared.clone()).await;
    c
}

/// By one further, by one back, and each where the other was.
const MOVES: [[(&str, u16); 2]; 4] = [
    [("brp0", 5556), ("srp0", 5555)],
    [("brp0", 5557), ("srp0", 5556)],
    [("brp0", 5556), ("srp0", 5555)],
    [("brp0", 5555), ("srp0", 5556)],
];

#[tokio::test]
async fn ports_take_each_others_addresses() {
    let dir = Scratch::new();
    let fake = Arc::new(Fake::default());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    for (n, addresses) in MOVES.iter().enumerate() {
        let calls = fake.state().calls.len();
        let r: ApplyReport = c.apply(at(addresses).into()).await.expect("a report");
        assert_eq!((r.failed.len(), r.applied.len()), (0, 2), "{addresses:?}: {r:?}");
        assert_eq!(listening(&fake), wanted(addresses));
        let calls = fake.state().calls[calls..].to_vec();
        let first = calls.iter().position(|c| c.starts_with("start_target")).expect("it starts");
        let late = calls[first..].iter().any(|c| c.starts_with("stop_target"));
        assert!(!late || n == 0, "a port is closed after another listens: {calls:?}");
    }
}

#[tokio::test]
async fn ports_begin_where_the_file_of_a_start_has_them() {
    let dir = Scratch::new();
    for addresses in &MOVES {
        let fake = Arc::new(Fake::default());
        let c = start(&dir, &fake, &at(addresses)).await;
        assert_eq!(listening(&fake), wanted(addresses));
        assert_eq!(faults(&c).await, Vec::<String>::new());
        let starts = fake.state().calls.iter().filter(|c| c.starts_with("start_target")).count();
        assert_eq!(starts, 2, "none listens twice: {:?}", fake.state().calls);
        c.shutdown().await.expect("an end");
    }
}

#[tokio::test]
async fn a_port_that_cannot_listen_is_a_fault_of_its_own() {
    let dir = Scratch::new();
    let fake = Arc::new(Fake::default());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    c.apply(at(&MOVES[0]).into()).await.expect("a report");
    fake.break_call("start_target brp0");
    let r = c.apply(at(&MOVES[1]).into()).await.expect("a report");
    let failed: Vec<&str> = r.failed.iter().map(|f| f.object.as_str()).collect();
    assert_eq!((failed, r.applied.len()), (vec!["target/brp0"], 1));
    assert_eq!(listening(&fake), wanted(&MOVES[1][1..]));
    assert_eq!(faults(&c).await, ["target/brp0"]);
    // Applied again, it is told again.
    assert_eq!(c.apply(at(&MOVES[1]).into()).await.expect("a report").failed.len(), 1);
    fake.mend();
    let begun = std::time::Instant::now();
    while listening(&fake) != wanted(&MOVES[1]) {
        assert!(begun.elapsed() < Duration::from_secs(120), "it is not tried again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// One of three that is nonsense leaves the others to move.
#[tokio::test]
async fn an_address_that_is_none_keeps_no_other_port_where_it_is() {
    let dir = Scratch::new();
    let fake = Arc::new(Fake::default());
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    c.apply(at(&MOVES[0]).into()).await.expect("a report");
    let mut file = at(&MOVES[1]);
    file.targets.insert(0, target("no", "nowhere"));
    let r = c.apply(file.into()).await.map(|r| (r.failed.len(), r.applied.len()));
    assert_eq!(r.expect("a report"), (1, 2));
    assert_eq!(listening(&fake), wanted(&MOVES[1]));
}

/// A pool, a volume, and a host that sees it, by one initiator port.
fn seen_by(port: &str, addresses: &[(&str, u16)]) -> Desired {
    Desired {
        pools: vec![ram_pool("mem", GIB)],
        volumes: vec![volume("v", "mem", 1 << 20)],
        hosts: vec![host("h", &[port])],
        maps: vec![map("h", "v")],
        ..at(addresses)
    }
}

/// A node with ports where the first of [`MOVES`] has them, which has ended.
async fn has_been(dir: &Scratch) {
    let c = start(dir, &Arc::default(), &seen_by("1:2", &MOVES[0])).await;
    assert_eq!(faults(&c).await, Vec::<String>::new(), "set-up");
    c.shutdown().await.expect("an end");
}

fn first(fake: &Fake, call: &str) -> usize {
    fake.state().calls.iter().position(|c| c.starts_with(call)).expect("it is called")
}

/// The file of a start moves the ports and gives the host another initiator port, and a pool that cannot be had.
async fn moved_with_other_hosts() {
    let dir = Scratch::new();
    has_been(&dir).await;
    let fake = Arc::new(Fake::default());
    fake.state().taken.insert("/dev/x".into());
    // Nobody who is logged in already keeps the file from it.
    fake.state().empty = true;
    let mut file = seen_by("1:9", &MOVES[1]);
    file.pools.insert(0, pool("bad", &[(DeviceKind::Block, Some("/dev/x"), None)]));
    file.volumes.insert(0, volume("lost", "bad", 1 << 20));
    file.maps.insert(0, map("h", "lost"));
    let c = start(&dir, &fake, &file).await;
    let mapped = fake.state().calls.iter().rposition(|c| c == "set_mappings");
    let listens = first(&fake, "start_target");
    assert!(Some(listens) > mapped, "a port listens before: {:?}", fake.state().calls);
    let hosts: Vec<String> = c.model().hosts["h"].ports.iter().map(ToString::to_string).collect();
    assert_eq!(hosts, ["0000000000000001:0000000000000009"]);
    // What cannot be had keeps no port closed that gives nobody anything by that.
    assert_eq!(listening(&fake), wanted(&MOVES[1]));
    let bad = ["declared/map/h/lost", "declared/pool/bad", "declared/volume/lost"];
    assert_eq!(faults(&c).await, bad);
}

#[tokio::test]
async fn ports_that_a_start_moves_listen_nowhere_before_the_hosts_of_the_file_are_in_force() {
    moved_with_other_hosts().await;
}

/// A pool that is here, and does not answer, keeps ports that move closed no longer than it takes to go on without it.
#[tokio::test]
async fn a_pool_that_hangs_does_not_keep_ports_closed_that_a_start_moves() {
    let dir = Scratch::new();
    has_been(&dir).await;
    let fake = Arc::new(Fake::default());
    fake.state().hung_pools.insert("mem".into(), Arc::default());
    let c = start(&dir, &fake, &seen_by("1:9", &MOVES[1])).await;
    assert_eq!(listening(&fake), wanted(&MOVES[1]));
    assert_eq!(faults(&c).await, ["pool/mem"]);
}

/// The file of a start moves the ports, and one of its hosts cannot be. They listen nowhere, also after another start, until that is
/// mended.
async fn moved_beside_a_wrong_host() {
    let dir = Scratch::new();
    has_been(&dir).await;
    let mut file = seen_by("1:2", &MOVES[1]);
    // Nobody can have the port of another.
    file.hosts.insert(0, host("a", &["1:2"]));
    for _ in 0..2 {
        let fake = Arc::new(Fake::default());
        let c = start(&dir, &fake, &file).await;
        assert_eq!(listening(&fake), wanted(&[]), "it listens beside wrong hosts");
        let told = ["declared/host/a", "declared/target/brp0", "declared/target/srp0"];
        assert_eq!(faults(&c).await, told);
        tried_again(&c).await;
        assert_eq!(listening(&fake), wanted(&[]));
        c.shutdown().await.expect("an end");
    }
    let fake = Arc::new(Fake::default());
    let c = start(&dir, &fake, &file).await;
    // An applied file that says nothing of ports leaves it at that.
    let hosts = Desired { targets: Vec::new(), ..file.clone() };
    let r = c.apply(hosts.into()).await.expect("a report");
    assert_eq!(r.failed.len(), 1, "{r:?}");
    tried_again(&c).await;
    assert_eq!(listening(&fake), wanted(&[]));
    let ports = |p: &str| vec![p.parse().expect("a port")];
    let patch =
        HostPatch { add_ports: ports("1:5"), remove_ports: ports("1:2"), ..HostPatch::default() };
    c.execute(Command::PatchHost { name: "h".into(), patch }).await.expect("patched");
    until("they listen", async || listening(&fake) == wanted(&MOVES[1])).await;
    until("all is well", async || faults(&c).await.is_empty()).await;
}

#[tokio::test]
async fn ports_that_a_start_moves_stay_closed_while_hosts_are_not_as_declared() {
    moved_beside_a_wrong_host().await;
}

/// The file of a start moves the ports and gives a host another volume by the number that it has one by, and that cannot be made.
async fn moved_beside_another_volume() {
    let dir = Scratch::new();
    has_been(&dir).await;
    let mut file = seen_by("1:2", &MOVES[1]);
    file.pools.insert(0, pool("bad", &[(DeviceKind::Block, Some("/dev/x"), None)]));
    file.volumes.insert(0, volume("lost", "bad", 1 << 20));
    file.maps = vec![MapSpec { lun: Some(0), ..map("h", "lost") }];
    let fake = Arc::new(Fake::default());
    let c = start(&dir, &fake, &file).await;
    assert_eq!(c.model().map("h", "v").expect("a mapping").lun, 0, "set-up");
    assert_eq!(listening(&fake), wanted(&[]), "it listens beside another volume");
}

#[tokio::test]
async fn ports_stay_closed_while_a_host_has_another_volume_by_a_number_that_is_declared() {
    moved_beside_another_volume().await;
}

/// A node whose ports are held back, since the file of its start has a host that cannot be.
async fn held_back() -> (Scratch, Arc<Fake>, Arc<Controller>) {
    let dir = Scratch::new();
    has_been(&dir).await;
    let mut file = seen_by("1:2", &MOVES[1]);
    file.hosts.insert(0, host("a", &["1:2"]));
    let fake = Arc::new(Fake::default());
    let c = start(&dir, &fake, &file).await;
    assert_eq!(listening(&fake), wanted(&[]), "set-up");
    (dir, fake, c)
}

/// A port is held back since a host could not be as declared. Another file, and a change of that host, are no reason to let it go.
async fn held_beside_another_file() {
    let (_dir, fake, c) = held_back().await;
    let closed = async |what: &str| {
        tried_again(&c).await;
        assert_eq!(listening(&fake), wanted(&[]), "it listens after {what}");
    };
    let other = Desired { hosts: vec![host("z", &["9:9"])], ..Desired::default() };
    assert_eq!(c.apply(other.into()).await.expect("a report").failed, []);
    closed("another file").await;
    c.execute(Command::CreateHost(host("a", &["1:9"]))).await.expect("made");
    closed("a change of that host").await;
    let ports = |p: &str| vec![p.parse().expect("a port")];
    let (add_ports, remove_ports) = (ports("1:5"), ports("1:2"));
    let free = HostPatch { add_ports, remove_ports, ..HostPatch::default() };
    c.execute(Command::PatchHost { name: "h".into(), patch: free }).await.expect("patched");
    closed("half of it").await;
    c.execute(Command::DeleteHost { name: "a".into() }).await.expect("deleted");
    closed("the end of that host").await;
    c.execute(Command::CreateHost(host("a", &["1:9"]))).await.expect("made");
    let patch =
        HostPatch { add_ports: ports("1:2"), remove_ports: ports("1:9"), ..HostPatch::default() };
    c.execute(Command::PatchHost { name: "a".into(), patch }).await.expect("patched");
    until("they listen", async || listening(&fake) == wanted(&MOVES[1])).await;
}

#[tokio::test]
async fn what_a_port_is_held_back_for_is_not_forgotten() {
    held_beside_another_file().await;
}

/// A command, or a file, that names a port that is held back says where it is to listen.
#[tokio::test]
async fn a_port_that_is_held_back_listens_when_somebody_says_where() {
    let (_dir, fake, c) = held_back().await;
    // Where it was.
    let spec = target("brp0", "127.0.0.1:5556");
    c.execute(Command::PutTarget(spec)).await.expect("put");
    assert_eq!(listening(&fake), wanted(&MOVES[0][..1]));
    // The corrected file, with the other one where it was.
    let r = c.apply(seen_by("1:2", &MOVES[0]).into()).await.expect("a report");
    assert_eq!(r.failed, []);
    assert_eq!(listening(&fake), wanted(&MOVES[0]));
    assert_eq!(faults(&c).await, Vec::<String>::new());
    tried_again(&c).await;
    assert_eq!(listening(&fake), wanted(&MOVES[0]));
}

/// What is left to a host though the file takes it away is no reason to let it in elsewhere.
async fn applied_beside_a_wrong_host() {
    let dir = Scratch::new();
    let fake = Arc::new(Fake::default());
    let c = start(&dir, &fake, &seen_by("1:2", &MOVES[0])).await;
    let mut file = seen_by("1:2", &MOVES[1]);
    file.hosts.insert(0, host("a", &["1:2"]));
    file.targets.push(target("new", "127.0.0.1:7777"));
    for dry_run in [true, false] {
        let r = c.apply(ApplySpec { dry_run, ..file.clone().into() }).await.expect("a report");
        let failed: Vec<&str> = r.failed.iter().map(|f| f.object.as_str()).collect();
        let told = ["host/a", "target/brp0", "target/srp0", "target/new"];
        assert_eq!(failed, told, "it listens beside wrong hosts");
        assert!(r.failed[1].error.detail.contains("its hosts are not as declared"), "{r:?}");
        assert_eq!(listening(&fake), wanted(&MOVES[0]), "where they were");
    }
    // Nor while a volume can be written to that is only to be read.
    let mut file = seen_by("1:2", &MOVES[1]);
    file.volumes[0].read_only = true;
    fake.break_call("update_volume v");
    let r = c.apply(file.clone().into()).await.expect("a report");
    let failed: Vec<&str> = r.failed.iter().map(|f| f.object.as_str()).collect();
    assert_eq!(failed, ["volume/v", "target/brp0", "target/srp0"]);
    fake.mend();
    let r = c.apply(file.into()).await.expect("a report");
    assert_eq!((r.failed.len(), listening(&fake)), (0, wanted(&MOVES[1])));
}

#[tokio::test]
async fn a_port_listens_nowhere_new_while_hosts_are_not_as_declared() {
    applied_beside_a_wrong_host().await;
}

#[cfg(feature = "planted")]
mod planted {
    use super::*;
    use weir_control::planted::{Bug, plant};

    #[tokio::test]
    #[should_panic(expected = "a port listens before")]
    async fn a_port_that_listens_before_the_hosts_are_in_force_is_seen() {
        plant(Some(Bug::MovedListenBefore));
        moved_with_other_hosts().await;
    }

    #[tokio::test]
    #[should_panic(expected = "it listens after the end of that host")]
    async fn a_host_that_is_gone_and_counts_is_seen() {
        plant(Some(Bug::GoneHostIsFulfilled));
        held_beside_another_file().await;
    }

    #[tokio::test]
    #[should_panic(expected = "it listens beside wrong hosts")]
    async fn a_port_that_a_start_moves_beside_wrong_hosts_is_seen() {
        plant(Some(Bug::PortsBesideWrongHosts));
        moved_beside_a_wrong_host().await;
    }

    #[tokio::test]
    #[should_panic(expected = "it listens beside another volume")]
    async fn another_volume_by_that_number_is_seen() {
        plant(Some(Bug::NumberOfAnother));
        moved_beside_another_volume().await;
    }

    #[tokio::test]
    #[should_panic(expected = "it listens after another file")]
    async fn a_reason_that_is_forgotten_is_seen() {
        plant(Some(Bug::ReasonsForgotten));
        held_beside_another_file().await;
    }

    #[tokio::test]
    #[should_panic(expected = "it listens beside wrong hosts")]
    async fn a_port_that_is_applied_beside_wrong_hosts_is_seen() {
        plant(Some(Bug::PortsBesideWrongHosts));
        applied_beside_a_wrong_host().await;
    }
}

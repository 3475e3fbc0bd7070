//! A declaration that is applied: what cannot be keeps nothing else from being done, nothing is done by a rehearsal,
//! what is not named goes if that is wanted, and commands on what the configuration file declares say that it does.

use crate::fake::Fake;
use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use weir_control::client::{Client, Endpoint};
use weir_control::controller::ApplyReport;
use weir_control::declare::{ApplySpec, Desired};
use weir_control::error::CODES;
use weir_control::model::{
    Action, Command, DeviceKind, HostPatch, PoolPatch, PoolSpec, Raid, SnapshotPolicySpec,
    VolumePatch, VolumeSpec,
};
use weir_control::server::{SOCKET, Server};
use weir_control::{Code, Controller};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) async fn node(dir: &Scratch) -> (Arc<Controller>, Arc<Fake>) {
    let fake = Arc::new(Fake::default());
    fake.state().empty = true;
    let c = Controller::start(dir.path(), fake.clone()).await.expect("a controller");
    (c, fake)
}

pub(crate) fn file() -> Desired {
    Desired {
        pools: vec![ram_pool("mem", GIB)],
        volumes: vec![volume("a", "mem", 8 * MIB), volume("b", "mem", 8 * MIB)],
        hosts: vec![host("h", &["1:2"]), host("i", &["1:3"])],
        maps: vec![map("h", "a"), map("i", "b")],
        targets: vec![target("srp0", "127.0.0.1:5555")],
    }
}

pub(crate) fn applied(r: &ApplyReport) -> Vec<String> {
    let sign = |a: Action| match a {
        Action::Created => '+',
        Action::Updated => '~',
        Action::Deleted => '-',
    };
    r.applied.iter().map(|a| format!("{}{}", sign(a.action), a.object)).collect()
}

pub(crate) fn failed(r: &ApplyReport) -> Vec<(String, Code)> {
    let code = |text: &str| CODES.iter().find(|c| c.1 == text).expect("a code").0;
    r.failed.iter().map(|f| (f.object.clone(), code(&f.error.code))).collect()
}

pub(crate) async fn apply(c: &Arc<Controller>, spec: impl Into<ApplySpec>) -> ApplyReport {
    c.apply(spec.into()).await.expect("a report")
}

/// Some objects of a file cannot be as declared; what needs them is not made either, and all else is.
async fn some_cannot_be() {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    apply(&c, file()).await;
    let patch = VolumePatch { size: Some(16 * MIB), ..VolumePatch::default() };
    c.execute(Command::PatchVolume { name: "a".into(), patch }).await.expect("grown by hand");
    c.execute(Command::DeleteMap { host: "h".into(), volume: "a".into() }).await.expect("unmapped");
    let mut wrong = file();
    // What does not go, and what needs it; in front of all that goes.
    fake.break_call("open_volume lost");
    wrong.volumes.insert(0, volume("lost", "mem", MIB));
    wrong.volumes.push(volume("new", "mem", MIB));
    wrong.hosts.insert(0, host("twin", &["1:2"]));
    wrong.maps.insert(0, map("h", "lost"));
    wrong.maps.push(map("i", "new"));
    let r = apply(&c, wrong).await;
    assert!(!applied(&r).contains(&"+map/h/a".to_string()), "it is mapped as it is: {r:?}");
    assert_eq!(applied(&r), ["+volume/new", "+map/i/new"]);
    assert_eq!(
        failed(&r),
        [
            ("volume/lost".to_string(), Code::IoError),
            ("volume/a".to_string(), Code::ShrinkRefused),
            ("host/twin".to_string(), Code::PortInUse),
            ("map/h/lost".to_string(), Code::NotReady),
            // It is there, and not as it is declared.
            ("map/h/a".to_string(), Code::NotReady),
        ]
    );
    for f in &r.failed {
        assert!(f.error.hint.as_ref().is_some_and(|h| !h.is_empty()), "{f:?} says what to do");
        assert!(f.error.reason.as_ref().is_some_and(|r| !r.is_empty()), "{f:?} says why");
    }
    assert_eq!(r.unchanged, 6);
}

#[tokio::test]
async fn one_object_that_cannot_be_keeps_no_other_from_being_made() {
    some_cannot_be().await;
}

#[cfg(feature = "planted")]
#[tokio::test]
#[should_panic(expected = "it is mapped as it is")]
async fn what_is_mapped_though_it_is_not_as_declared_is_seen() {
    use weir_control::planted::{Bug, plant};
    plant(Some(Bug::LostIfNotThere));
    some_cannot_be().await;
}

/// A port goes from one host to another that stands before it in the file, and a LUN from one volume to another.
#[tokio::test]
async fn what_one_object_leaves_another_may_take_in_any_order() {
    let dir = Scratch::new();
    let (c, _fake) = node(&dir).await;
    apply(&c, file()).await;
    let mut other = file();
    other.hosts = vec![host("h", &["1:2", "1:3"]), host("i", &["1:4"])];
    let r = apply(&c, other).await;
    assert_eq!(failed(&r), []);
    assert_eq!(applied(&r), ["~host/i", "~host/h"]);
}

#[tokio::test]
async fn a_rehearsal_tells_what_is_done_and_does_nothing() {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    apply(&c, file()).await;
    let mut other = file();
    // A pool of which nobody knows how large it is before its device was looked at, and what is put into it.
    fake.state().block_sizes.insert("/dev/x".into(), GIB);
    other.pools.push(pool("disk", &[(DeviceKind::Block, Some("/dev/x"), None)]));
    other.volumes.push(volume("c", "disk", 8 * MIB));
    other.volumes[0].size = 16 * MIB;
    other.volumes[1].size = MIB;
    other.hosts[0] = host("h", &["1:5"]);
    other.maps.push(map("h", "c"));
    other.targets[0] = target("srp0", "127.0.0.1:6666");
    let before = (c.model(), fake.state().calls.len());
    let plan = apply(&c, ApplySpec { dry_run: true, ..other.clone().into() }).await;
    assert_eq!((c.model(), fake.state().calls.len()), before, "nothing is done");
    assert!(plan.dry_run);
    let is = apply(&c, other).await;
    assert_eq!(ApplyReport { dry_run: false, ..plan }, is);
    assert_eq!(
        applied(&is),
        ["+pool/disk", "~volume/a", "+volume/c", "~host/h", "+map/h/c", "~target/srp0"]
    );
    assert_eq!(failed(&is), [("volume/b".to_string(), Code::ShrinkRefused)]);
    let texts =
        |n: usize| is.applied[n].changes.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(texts(1), ["size 8 MiB -> 16 MiB"]);
    assert_eq!(
        texts(3),
        ["port 0000000000000001:0000000000000002 -> 0000000000000001:0000000000000005"]
    );
    assert_eq!(texts(5), ["address 127.0.0.1:5555 -> 127.0.0.1:6666"]);
}

async fn not_named() {
    let dir = Scratch::new();
    let (c, fake) = node(&dir).await;
    apply(&c, file()).await;
    let mut less = file();
    less.pools.push(ram_pool("other", GIB));
    less.volumes.push(volume("o", "other", MIB));
    apply(&c, less.clone()).await;
    let model = c.model();
    less = file();
    less.volumes.truncate(1);
    less.hosts.truncate(1);
    less.maps.truncate(1);
    less.targets = Vec::new();
    let r = apply(&c, less.clone()).await;
    assert_eq!((applied(&r), c.model()), (Vec::new(), model), "as ever");
    let prune = ApplySpec { prune: true, ..less.into() };
    // Somebody uses what is to be taken away.
    {
        let mut s = fake.state();
        (s.empty, s.initiator) = (false, Some("0000000000000001:0000000000000003".into()));
    }
    let r = apply(&c, prune.clone()).await;
    assert_eq!(applied(&r), Vec::<String>::new());
    assert_eq!(
        failed(&r)[..2],
        [("map/i/b".to_string(), Code::VolumeMapped), ("host/i".to_string(), Code::HostMapped),]
    );
    c.execute(Command::CreateHost(host("x", &["8:8"]))).await.expect("who is there is seen");
    c.execute(Command::DeleteHost { name: "x".into() }).await.expect("deleted");
    fake.state().empty = true;
    // It may be about to come back.
    let r = apply(&c, prune.clone()).await;
    assert_eq!(applied(&r), Vec::<String>::new(), "its connection may be lost");
    assert_eq!(failed(&r)[0], ("map/i/b".to_string(), Code::VolumeMapped));
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(601)).await;
    tokio::time::resume();
    // Data goes only if that is confirmed.
    let r = apply(&c, prune.clone()).await;
    assert_eq!(applied(&r), ["-map/i/b", "-host/i"]);
    assert_eq!(
        failed(&r),
        [
            ("volume/b".to_string(), Code::InvalidRequest),
            ("volume/o".to_string(), Code::InvalidRequest),
            ("pool/other".to_string(), Code::PoolInUse),
        ]
    );
    assert!(fake.state().data.contains("b") && fake.state().data.contains("o"));
    let plan = apply(&c, ApplySpec { dry_run: true, ..prune.clone() }).await;
    assert!(fake.state().data.contains("b"), "a rehearsal deletes nothing");
    let r = apply(&c, ApplySpec { delete_all_data: true, ..prune }).await;
    assert_eq!(applied(&r), ["-volume/b", "-volume/o", "-pool/other"]);
    assert_eq!((applied(&plan), failed(&plan)), (applied(&r), failed(&r)));
    assert_eq!(fake.state().data.iter().cloned().collect::<Vec<_>>(), ["a"]);
    assert!(c.model().targets.contains_key("srp0"), "a file without ports says nothing of them");
}

#[tokio::test]
async fn what_a_file_does_not_name_goes_only_if_that_is_wanted() {
    not_named().await;
}

#[cfg(feature = "planted")]
#[tokio::test]
#[should_panic(expected = "its connection may be lost")]
async fn a_host_that_counts_as_gone_at_once_is_seen() {
    weir_control::planted::plant(Some(weir_control::planted::Bug::AwayIsGone));
    not_named().await;
}

#[tokio::test]
async fn a_change_that_the_configuration_file_does_not_know_is_noted() {
    let dir = Scratch::new();
    let (c, _fake) = node(&dir).await;
    let mut declared = file();
    let spec = pool("safe", &[(DeviceKind::File, Some("/nowhere/d"), Some(GIB))]);
    declared.pools.push(PoolSpec { raid: Some(Raid::Zero), ..spec });
    let rule = "every=10m,keep=4".parse().expect("a rule");
    declared.volumes.push(VolumeSpec { snapshots: Some(vec![rule]), ..volume("s", "safe", MIB) });
    c.declare_at_start(declared).await;
    let server = Server::bind(c.clone(), None, None).await.expect("bound");
    tokio::spawn(server.run(std::future::pending()));
    let fresh = || Client::new(Endpoint::Unix(dir.path().join(SOCKET)), None);
    let note = |client: &Client, words: &[&str]| {
        let notes = client.notes();
        assert_eq!(notes.len(), usize::from(!words.is_empty()), "{words:?}: {notes:?}");
        for word in words {
            assert!(notes[0].contains(word), "{word}: {notes:?}");
        }
    };
    // What is not declared, or is as declared, is not.
    let n = fresh();
    n.create_volume(&volume("own", "mem", MIB)).await.expect("made");
    let grow = |size| VolumePatch { size: Some(size), ..VolumePatch::default() };
    n.patch_volume("own", &grow(2 * MIB)).await.expect("larger");
    n.patch_volume("a", &grow(8 * MIB)).await.expect("as it is");
    note(&n, &[]);
    let n = fresh();
    n.patch_volume("a", &grow(16 * MIB)).await.expect("larger");
    note(&n, &["volume/a", "configuration file", "fault", "16 MiB", "8 MiB"]);
    let n = fresh();
    let larger = Desired { volumes: vec![volume("a", "mem", 32 * MIB)], ..Desired::default() };
    n.apply(&larger.into()).await.expect("a report");
    note(&n, &["volume/a", "configuration file", "32 MiB", "8 MiB"]);
    let n = fresh();
    let only = VolumePatch { read_only: Some(true), ..VolumePatch::default() };
    n.patch_volume("b", &only).await.expect("read only");
    note(&n, &["volume/b", "puts it back (without read only yes)"]);
    let n = fresh();
    let patch =
        HostPatch { add_ports: vec!["5:6".parse().expect("a port")], ..HostPatch::default() };
    n.patch_host("h", &patch).await.expect("patched");
    note(&n, &["host/h", "puts it back", "0000000000000005:0000000000000006"]);
    let n = fresh();
    n.delete_map("i", "b", true).await.expect("unmapped");
    note(&n, &["map/i/b", "makes it again"]);
    // It is made anew, and otherwise.
    let n = fresh();
    n.delete_host("i").await.expect("deleted");
    note(&n, &["host/i", "makes it again"]);
    let n = fresh();
    n.create_host(&host("i", &["1:9"])).await.expect("made");
    note(&n, &["host/i", "puts it back"]);
    let n = fresh();
    let more = PoolPatch { add: ram_pool("x", GIB).devices, ..PoolPatch::default() };
    n.patch_pool("mem", &more).await.expect("larger");
    note(&n, &["pool/mem", "fault"]);
    let n = fresh();
    n.put_target(&target("srp0", "127.0.0.1:5555")).await.expect("as it is");
    n.put_target(&target("other", "127.0.0.1:5556")).await.expect("its own");
    note(&n, &[]);
    let n = fresh();
    n.put_target(&target("srp0", "127.0.0.1:6666")).await.expect("moved");
    note(&n, &["target/srp0", "puts it back (address 127.0.0.1:6666 -> 127.0.0.1:5555)"]);
    let n = fresh();
    n.delete_target("srp0").await.expect("deleted");
    note(&n, &["target/srp0", "makes it again"]);
    let n = fresh();
    let rules = |every: &str| SnapshotPolicySpec {
        volumes: vec!["s".into()],
        rules: vec![every.parse().expect("a rule")],
    };
    n.set_policy(&rules("every=10m,keep=4")).await.expect("as they are");
    note(&n, &[]);
    n.set_policy(&rules("every=20m,keep=4")).await.expect("other rules");
    note(&n, &["volume/s", "puts it back (snapshots"]);
    // A pool that was let go of has its data.
    let n = fresh();
    n.release_pool("safe", false).await.expect("released");
    note(&n, &["pool/safe", "a fault after the next start unless its devices are blank", "import"]);
    // What needs what is not as declared is not made by the next start.
    let n = fresh();
    n.delete_map("h", "a", true).await.expect("unmapped");
    note(&n, &["map/h/a", "a fault", "needs `volume/a`"]);
    let n = fresh();
    n.pools().await.expect("pools");
    n.volume("a").await.expect("a volume");
    note(&n, &[]);
}

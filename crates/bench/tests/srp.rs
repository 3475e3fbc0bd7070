//! The load generator against an SRP target in the same process, over loopback.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use weir_base::{IoResult, MILLIS};
use weir_bench::client::ConnectKind;
use weir_bench::engine::{JobResult, Options, RunError, run};
use weir_bench::fabric::Fabric;
use weir_bench::job::{JobSpec, Op, Rw, Verify};
use weir_bench::srp::{Login, PathPolicy, QueueMode, Sessions, Srp, SrpOptions, open_paths, scan};
use weir_block::{Geometry, IoFuture, Volume, check_range};
use weir_fabric_iwarp::{Config, Iwarp};
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_proto_scsi::identity::{Identity, PortName, TargetPort};
use weir_proto_scsi::lu::LuState;
use weir_proto_srp::PortId;
use weir_reactor::{PollMode, Reactor, sleep};
use weir_target_core::{Access, AccessMap, HostRule, Unit, UnitShared, Units};
use weir_target_srp::{Target, TargetConfig};
use weir_uring::{Ring, TcpNetwork};

const LEN: u64 = 1 << 20;
const HOST: PortId = PortId::new(7, 1);

/// A disk in memory that can store one byte wrong.
struct Disk {
    bytes: RefCell<Vec<u8>>,
    writes: Cell<u64>,
    spoil: Option<u64>,
}

impl Disk {
    fn with(&self, at: u64, len: u64, f: impl FnOnce(&mut [u8])) -> IoResult {
        check_range(&self.geometry(), at, len)?;
        f(&mut self.bytes.borrow_mut()[at as usize..(at + len) as usize]);
        Ok(())
    }
}

impl Volume for Disk {
    fn geometry(&self) -> Geometry {
        Geometry {
            len: LEN,
            block_size: 512,
            granularity: 4096,
            thin: true,
            volatile_cache: false,
            read_only: false,
        }
    }
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        IoFuture::ready(self.with(at, buf.len() as u64, |b| buf.write_at(0, b)))
    }
    fn write(&self, at: u64, buf: Slice, _fua: bool) -> IoFuture<'_> {
        let n = self.writes.replace(self.writes.get() + 1);
        IoFuture::ready(self.with(at, buf.len() as u64, |b| {
            buf.read_at(0, b);
            if self.spoil == Some(n) {
                b[77] ^= 1;
            }
        }))
    }
    fn flush(&self) -> IoFuture<'_> {
        IoFuture::ready(Ok(()))
    }
    fn lost(&self) -> u64 {
        0
    }
    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        IoFuture::ready(self.with(at, len, |b| b.fill(0)))
    }
    fn write_zeroes(&self, at: u64, len: u64, _unmap: bool) -> IoFuture<'_> {
        self.discard(at, len)
    }
}

/// A target on a thread of its own.
struct Served {
    login: Login,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(t) = self.thread.take() {
            t.join().unwrap();
        }
    }
}

/// Serves disks `disk-0` and `disk-1` under LUN 2 and 5 to `HOST` only, or to any host.
fn serve(any: bool, spoil: Option<u64>) -> Served {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let (tell, told) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let ring = Ring::new().unwrap();
        let reactor = Reactor::new(Rc::new(ring.clone()));
        let provider = Iwarp::new(&reactor, TcpNetwork::new(&ring), Config::default());
        reactor.block_on(PollMode::Sleep, async move {
            let config = TargetConfig {
                requests: 256,
                recv_buffers: 500,
                policy: weir_proto_srp::TargetPolicy {
                    credits: 32,
                    ..TargetConfig::default().policy
                },
                ..TargetConfig::default()
            };
            let port =
                TargetPort { relative_id: 1, group: 1, name: PortName::Srp(config.port_id.0) };
            let rule = HostRule {
                host: "h".into(),
                any,
                ports: vec![HOST.0.to_vec()],
                luns: vec![(2, "disk-0".into()), (5, "disk-1".into())],
                ..HostRule::default()
            };
            let access = Arc::new(Access::new(AccessMap { hosts: vec![rule] }));
            let units = Rc::new(Units::default());
            let classes = vec![(4096, 256), (64 << 10, 64), (1 << 20, 4)];
            let pool = BufPool::new(&PoolConfig { classes }).unwrap();
            let mut identity = Identity::new("WEIR", "TEST", "0001", "none", [0x60; 16]);
            for n in 0..2 {
                let name = format!("disk-{n}");
                identity = Identity::new("WEIR", "TEST", "0001", &format!("S{n}"), [0x60 + n; 16]);
                identity.ports = vec![port.clone()];
                identity.label = name.clone();
                let disk = Disk {
                    bytes: RefCell::new(vec![0; LEN as usize]),
                    writes: Cell::new(0),
                    spoil,
                };
                let g = weir_proto_scsi::geometry::Geometry::new(512, LEN / 512);
                let shared = UnitShared::new(&name, LuState::new(identity.clone(), g), None);
                units.insert(Unit::new(shared, Rc::new(disk), pool.clone(), 1 << 20));
            }
            let target = Target::new(config, access, identity, 1);
            target.join(Rc::new(provider.clone()), units, pool).unwrap();
            let addr = target.listen(&provider, "127.0.0.1:0").unwrap();
            tell.send((addr, target.port_id())).unwrap();
            while !stopped.load(Ordering::Acquire) {
                sleep(10 * MILLIS).await;
            }
            target.leave().await;
        });
        reactor.shutdown();
    });
    let (addr, port): (String, PortId) = told.recv().unwrap();
    let login = Login::new(addr.parse().unwrap(), port, HOST);
    Served { login, stop, thread: Some(thread) }
}

fn job(rw: Rw) -> JobSpec {
    JobSpec {
        rw,
        iodepth: 8,
        runtime: Some(100 * MILLIS),
        poll: PollMode::default(),
        ..JobSpec::default()
    }
}

fn load(login: &Login, spec: &JobSpec, change: impl FnOnce(&mut SrpOptions)) -> JobResult {
    let mut options = SrpOptions::new(vec![2], spec);
    change(&mut options);
    let all = run(Srp::new(login.clone(), options), spec, &Options::default()).unwrap();
    JobResult::merge(&all)
}

#[test]
fn volumes_are_found_by_name_serial_or_product() {
    let t = serve(false, None);
    let found = scan(&t.login).unwrap();
    assert_eq!(found.len(), 2, "{found:?}");
    let lun = |name: &str| found.iter().find(|f| f.is_called(name)).map(|f| f.lun);
    assert_eq!(
        (lun("disk-1"), lun("S0"), lun("TEST"), lun("x")),
        (Some(5), Some(2), Some(2), None)
    );
    assert_eq!(found[0].len, LEN);
    assert!(found[0].to_string().contains("LUN 2 disk-0"), "{}", found[0]);
}

#[test]
fn every_kind_of_load_runs_and_verifies() {
    let t = serve(false, None);
    for rw in [Rw::RandRead, Rw::Write, Rw::RandMixed, Rw::RandTrim, Rw::Nop] {
        let r = load(&t.login, &job(rw), |_| {});
        assert_eq!((r.errors, r.lost), (0, false), "{rw:?} {:?}", r.first_error);
        assert!(r.total().ios > 0, "{rw:?}");
    }
    for bs in [512, 4096, 64 << 10] {
        let mut spec = job(Rw::RandMixed);
        (spec.verify, spec.bs, spec.iodepth) = (Some(Verify::Crc32c), bs, 4);
        let r = load(&t.login, &spec, |_| {});
        assert_eq!((r.verify.errors, r.errors), (0, 0), "{:?}", r.verify);
        assert!(r.verify.checked > 0);
    }
}

#[test]
fn sessions_are_shared_in_every_mode_or_each_job_has_one() {
    let t = serve(true, None);
    let mut spec = job(Rw::RandMixed);
    spec.numjobs = 3;
    (spec.verify, spec.iodepth) = (Some(Verify::Crc32c), 4);
    for (mode, channels) in [
        (QueueMode::Multi, 0),
        (QueueMode::Multi, 1),
        (QueueMode::Multi, 3),
        (QueueMode::Single, 1),
    ] {
        let r = load(&t.login, &spec, |o| {
            o.luns = vec![2, 5];
            o.queue_mode = mode;
            o.channels = channels;
        });
        assert_eq!((r.verify.errors, r.errors), (0, 0), "{mode:?} {channels} {:?}", r.first_error);
        assert!(r.of(Op::Read).ios > 0 && r.of(Op::Write).ios > 0);
    }
    let r = load(&t.login, &spec, |o| o.sessions = Sessions::PerJob);
    assert_eq!((r.verify.errors, r.errors), (0, 0), "{:?}", r.first_error);
    assert!(r.verify.checked > 0);
}

#[test]
fn a_byte_that_the_target_stores_wrong_is_found() {
    let t = serve(false, Some(40));
    let spec = JobSpec {
        rw: Rw::RandWrite,
        verify: Some(Verify::Crc32c),
        size: Some(LEN),
        runtime: None,
        iodepth: 8,
        poll: PollMode::default(),
        ..JobSpec::default()
    };
    let r = load(&t.login, &spec, |_| {});
    assert_eq!((r.of(Op::Write).ios, r.verify.checked, r.verify.errors), (256, 256, 1));
}

/// An address where nobody listens: the port of a listener that is gone.
fn nowhere() -> SocketAddr {
    let l = weir_uring::TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    l.local_addr().unwrap()
}

#[test]
fn a_load_uses_all_paths_that_are_there() {
    let t = serve(true, None);
    let here = t.login.addresses[0];
    let mut spec = job(Rw::RandMixed);
    (spec.numjobs, spec.iodepth, spec.verify) = (2, 4, Some(Verify::Crc32c));
    for policy in [PathPolicy::ActivePassive, PathPolicy::RoundRobin] {
        // To one target, so that each path needs a port of its own; one path is down all the time.
        let login = Login {
            addresses: vec![nowhere(), here, here],
            multipath: Some(policy),
            port_per_path: true,
            ..t.login.clone()
        };
        assert_eq!(scan(&login).unwrap().len(), 2);
        for sessions in [Sessions::Shared, Sessions::PerJob] {
            let r = load(&login, &spec, |o| o.sessions = sessions);
            assert_eq!((r.verify.errors, r.errors), (0, 0), "{policy:?} {:?}", r.first_error);
            assert!(r.verify.checked > 0);
        }
        let ring = Ring::new().unwrap();
        let reactor = Reactor::new(Rc::new(ring.clone()));
        let place = weir_bench::engine::Place::alone(reactor.clone(), ring);
        let provider = login.provider(&place).unwrap();
        let commands = reactor.block_on(PollMode::Sleep, async move {
            let (unit, g) = open_paths(&provider, &login, None, Some("disk-1")).await.unwrap();
            assert_eq!((g.len, g.block_size), (LEN, 512));
            for i in 0..10 {
                unit.read(i * 512, Slice::heap(512).sub(0, 512)).await.unwrap();
            }
            unit.paths().iter().map(|p| p.commands).collect::<Vec<_>>()
        });
        let want = if policy == PathPolicy::RoundRobin { [0, 5, 5] } else { [0, 10, 0] };
        assert_eq!(commands, want, "{policy:?}");
        reactor.shutdown();
    }
}

#[test]
fn a_machine_without_rdma_devices_says_so() {
    let t = serve(true, None);
    let login = Login { fabric: Fabric::Verbs, ..t.login.clone() };
    let there = weir_fabric_verbs::load().and_then(|lib| lib.devices());
    match (there, scan(&login)) {
        (Err(_), Err(e)) => {
            assert_eq!(e.kind, ConnectKind::NoFabric, "{e}");
            assert!(e.reason.contains("ibverbs-providers"), "{e}");
            assert!(e.hint.contains("--fabric"), "{}", e.hint);
        }
        // With a device, it does not lead to an address of this test.
        (Ok(_), Err(e)) => assert_ne!(e.kind, ConnectKind::NoFabric, "{e}"),
        (_, Ok(found)) => panic!("{found:?}"),
    }
}

#[test]
fn failures_say_what_to_do() {
    let t = serve(false, None);
    let fail = |login: &Login, lun| {
        let spec = job(Rw::Read);
        let options = SrpOptions::new(vec![lun], &spec);
        match run(Srp::new(login.clone(), options), &spec, &Options::default()) {
            Err(RunError::Connect(e)) => e,
            other => panic!("{other:?}"),
        }
    };
    let e = fail(&t.login, 9);
    assert_eq!(e.kind, ConnectKind::NoVolume, "{e}");
    let stranger = Login { initiator: PortId::new(8, 8), ..t.login.clone() };
    let e = fail(&stranger, 2);
    assert_eq!(e.kind, ConnectKind::Refused, "{e}");
    assert!(e.hint.contains("weir host create"), "{}", e.hint);
    assert_eq!(scan(&stranger).unwrap_err().kind, ConnectKind::Refused);
    let lost = Login { target: PortId::new(1, 2), ..t.login.clone() };
    assert!(fail(&lost, 2).hint.contains("--id-ext"));
    let nobody = Login { addresses: vec![nowhere()], ..t.login.clone() };
    assert_eq!(fail(&nobody, 2).kind, ConnectKind::Unreachable);
}

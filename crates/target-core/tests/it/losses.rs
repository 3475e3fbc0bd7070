//! What a device has lost is told to each host once, whatever became of the flush that the device has failed.

use crate::common::{
    Data, attach, attach_as, attach_by, does_nothing, shared_unit, volume_geometry,
};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{IoError, MILLIS, Nanos, SECONDS};
use weir_block::{Geometry, IoFuture, Volume};
use weir_mem::{BufPool, PoolConfig};
use weir_proto_scsi::initiator as build;
use weir_proto_scsi::lu::Nexus;
use weir_proto_scsi::lun::Lun;
use weir_proto_scsi::sense::{SENSE_LEN_MAX, Sense};
use weir_proto_scsi::transport_id::TransportId;
use weir_reactor::{JoinHandle, now, sleep, spawn};
use weir_sim::World;
use weir_target_core::{
    Access, AccessMap, Attachment, End, HostRule, Unit, UnitShared, Units, Whom,
};

const BLOCKS: u64 = 64;
const HOUR: Nanos = 3600 * SECONDS;
/// That of all commands, which come one after the other.
const TAG: u64 = 7;

/// A device that tells a loss by one flush only.
#[derive(Default)]
struct Disk {
    time: Cell<Nanos>,
    fails: Cell<bool>,
    lost: Cell<u64>,
}

impl Volume for Disk {
    fn geometry(&self) -> Geometry {
        volume_geometry(BLOCKS)
    }
    does_nothing!(read, write, discard, write_zeroes);
    fn flush(&self) -> IoFuture<'_> {
        IoFuture::new(async move {
            sleep(self.time.get()).await;
            if !self.fails.replace(false) {
                return Ok(());
            }
            self.lost.set(self.lost.get() + 1);
            Err(IoError::Path)
        })
    }
    fn lost(&self) -> u64 {
        self.lost.get()
    }
}

/// A host's channel.
#[derive(Clone)]
struct Host(Rc<Attachment>);

impl Host {
    async fn new(core: usize, unit: &Arc<UnitShared>, disk: &Rc<Disk>) -> Host {
        let host = Host(Rc::new(attach(core, unit, disk.clone())));
        // The unit attention of a new nexus.
        host.send(&build::test_unit_ready(), true).await;
        host
    }

    /// Gives the status, and the sense key with CHECK CONDITION. Unless it is `answered` nobody hears of it.
    async fn send(&self, cdb: &build::Cdb, answered: bool) -> Option<u8> {
        let mut pass = self.0.find(Lun::ZERO)?.pass_of(TAG);
        let done = pass.execute(&self.0, cdb.as_bytes(), &mut Data::given(Vec::new(), 0)).await;
        let o = done.ok()?;
        if answered {
            pass.told();
        }
        let mut sense = [0; SENSE_LEN_MAX];
        let len = o.encode_sense(&mut sense);
        Some(Sense::parse(&sense[..len]).map_or(o.status, |s| s.key as u8))
    }

    async fn flush(&self) -> Option<u8> {
        self.send(&build::sync_cache(0, 0), true).await
    }

    fn begin(&self, answered: bool) -> JoinHandle<Option<u8>> {
        let host = self.clone();
        spawn(async move { host.send(&build::sync_cache(0, 0), answered).await })
    }
}

fn rule(host: &str, any: bool, ports: &[u8]) -> HostRule {
    let ports = ports.iter().map(|p| vec![*p; 16]).collect();
    HostRule { host: host.into(), any, ports, luns: vec![(0, "v".into())], ..HostRule::default() }
}

/// Hosts do not repeat what ends with a hardware error.
const LOST: Option<u8> = Some(4);
const GOOD: Option<u8> = Some(0);

fn run<F: Future<Output = ()> + 'static>(
    f: impl FnOnce(Arc<UnitShared>, Rc<Disk>, Host, Host) -> F + 'static,
) {
    let w = World::new(1);
    let node = w.node("target");
    let all = async move {
        let (unit, disk) = (shared_unit(BLOCKS, None), Rc::new(Disk::default()));
        let a = Host::new(1, &unit, &disk).await;
        let b = Host::new(2, &unit, &disk).await;
        f(unit, disk, a, b).await;
    };
    w.run(&node, 10 * HOUR, all).unwrap();
}

#[test]
fn each_host_is_told_of_a_loss_once() {
    run(|unit, disk, a, b| async move {
        assert_eq!((a.flush().await, b.flush().await), (GOOD, GOOD));
        disk.fails.set(true);
        assert_eq!((a.flush().await, a.flush().await), (LOST, GOOD));
        assert_eq!((b.flush().await, b.flush().await), (LOST, GOOD));
        // It has come since.
        let c = Host::new(3, &unit, &disk).await;
        assert_eq!(c.flush().await, GOOD);
        disk.fails.set(true);
        assert_eq!((c.flush().await, a.flush().await, b.flush().await), (LOST, LOST, LOST));
        assert_eq!((c.flush().await, a.flush().await, b.flush().await), (GOOD, GOOD, GOOD));
    });
}

#[test]
fn a_loss_that_was_told_to_something_else_is_told_to_hosts() {
    run(|_, disk, a, b| async move {
        disk.fails.set(true);
        // A volume that is about to move, say.
        assert!(disk.flush().await.is_err());
        assert_eq!((a.flush().await, b.flush().await), (LOST, LOST));
        assert_eq!((a.flush().await, b.flush().await), (GOOD, GOOD));
    });
}

#[test]
fn a_flush_that_fails_after_its_host_has_given_it_up_is_told_by_the_next() {
    run(|_, disk, a, _| async move {
        disk.fails.set(true);
        assert_eq!(a.begin(false).await.flatten(), LOST);
        assert_eq!((a.flush().await, a.flush().await), (LOST, GOOD));
    });
}

#[test]
fn a_flush_that_a_fence_has_ended_is_told_by_the_next() {
    run(|unit, disk, a, _| async move {
        disk.fails.set(true);
        disk.time.set(10 * MILLIS);
        let first = a.begin(false);
        sleep(MILLIS).await;
        unit.fence(Whom::All, End::Aborted(a.0.nexus())).await;
        first.await;
        assert_eq!((a.flush().await, a.flush().await), (LOST, GOOD));
    });
}

/// A reset by its own host ends a flush that fails before that is answered. Or the host gives it up when the answer is on its way.
#[test]
fn an_answer_to_what_its_host_has_given_up_tells_nothing() {
    run(|unit, disk, a, _| async move {
        disk.time.set(10 * MILLIS);
        for function in ["set", "task", "set too late"] {
            disk.fails.set(true);
            let flush = a.begin(true);
            let own = || Whom::Only(vec![a.0.nexus()]);
            if function == "set" {
                sleep(MILLIS).await;
                unit.fence(own(), End::Aborted(a.0.nexus())).await;
            }
            flush.await;
            match function {
                "task" => a.0.given_up(TAG),
                // By whichever channel: it ends commands of all.
                "set too late" => unit.fence(own(), End::Aborted(a.0.nexus())).await,
                _ => {}
            }
            // Of another command it says nothing.
            assert_eq!((a.flush().await, a.flush().await), (LOST, GOOD), "{function}");
            a.0.given_up(TAG + 1);
            assert_eq!(a.flush().await, GOOD);
        }
    });
}

#[test]
fn by_another_channel_a_host_hears_what_its_last_flush_was_told() {
    run(|unit, disk, a, _| async move {
        disk.fails.set(true);
        disk.time.set(10 * MILLIS);
        let (began, first) = (now(), a.begin(false));
        sleep(MILLIS).await;
        let again = Host(Rc::new(attach(1, &unit, disk.clone())));
        a.0.leave();
        disk.time.set(0);
        // Not before the first one is over.
        let second = again.flush().await;
        assert!(now() - began >= 10 * MILLIS);
        assert_eq!((second, again.flush().await), (LOST, GOOD));
        first.await;
    });
}

/// Machines without an identifier of their own have one initiator port, and each is told.
#[test]
fn each_nexus_of_a_port_that_names_nobody_is_told() {
    run(|unit, disk, _, _| async move {
        let nexus = |n| Host(Rc::new(attach_as(Nexus(n), 0, &unit, disk.clone())));
        let (a, b) = (nexus(50), nexus(51));
        for h in [&a, &b] {
            h.send(&build::test_unit_ready(), true).await;
        }
        disk.fails.set(true);
        assert_eq!((a.flush().await, b.flush().await), (LOST, LOST));
        assert_eq!((a.flush().await, b.flush().await), (GOOD, GOOD));
    });
}

/// The second one began before its host knew of the loss.
#[test]
fn flushes_that_are_under_way_together_all_tell_of_a_loss() {
    run(|_, disk, a, _| async move {
        disk.fails.set(true);
        disk.time.set(10 * MILLIS);
        let first = a.begin(true);
        sleep(5 * MILLIS).await;
        disk.lost.set(1);
        let second = a.begin(true);
        assert_eq!((first.await.flatten(), second.await.flatten()), (LOST, LOST));
        assert_eq!(a.flush().await, GOOD);
    });
}

/// Each login is another nexus. A host that has a name is told twice at most, and one without by each that it may have been.
#[test]
fn an_answer_that_may_have_been_lost_with_its_channel_has_told_nobody() {
    run(|unit, disk, _, _| async move {
        let named = AccessMap { hosts: vec![rule("n", false, &[7])] };
        let all = AccessMap { hosts: vec![rule("all", true, &[])] };
        for (map, base) in [(named, 100), (all, 200)] {
            let next = Cell::new(base);
            let attach = || {
                next.set(next.get() + 1);
                Host(Rc::new(attach_by(Nexus(next.get()), 7, &unit, disk.clone(), map.clone())))
            };
            let again = async |old: Host| {
                old.0.leave();
                drop(old);
                let new = attach();
                new.send(&build::test_unit_ready(), true).await;
                new
            };
            let a = attach();
            a.send(&build::test_unit_ready(), true).await;
            let a = again(a).await;
            disk.fails.set(true);
            assert_eq!(a.flush().await, LOST);
            sleep(SECONDS).await;
            let mut a = again(a).await;
            assert_eq!((a.flush().await, a.flush().await), (LOST, GOOD));
            // Not for ever, where a host comes and goes.
            for _ in 0..5 {
                a = again(a).await;
                assert_eq!(a.flush().await, GOOD, "{base}");
            }
            disk.fails.set(true);
            assert_eq!(a.flush().await, LOST);
            sleep(2 * SECONDS).await;
            a.send(&build::test_unit_ready(), true).await;
            let a = again(a).await;
            assert_eq!(a.flush().await, GOOD);
            // By another tag it may have come before, or the answer may be on its way yet.
            disk.fails.set(true);
            assert_eq!(a.flush().await, LOST);
            sleep(2 * SECONDS).await;
            let unit = a.0.find(Lun::ZERO).expect("mapped");
            unit.pass_of(TAG + 1).renew();
            let a = again(a).await;
            assert_eq!((a.flush().await, a.flush().await), (LOST, GOOD));
            // However long nothing comes.
            disk.fails.set(true);
            assert_eq!(a.flush().await, LOST);
            sleep(HOUR).await;
            assert_eq!(again(a).await.flush().await, LOST);
        }
    });
}

/// Its first path is lost with the answer, and nobody has noticed that when it asks by the second one.
#[test]
fn an_answer_by_one_path_is_none_by_another_before_it_is_known_to_have_come() {
    run(|unit, disk, _, _| async move {
        let map = AccessMap { hosts: vec![rule("n", false, &[7, 8])] };
        let path = |n: u64, port| {
            Host(Rc::new(attach_by(Nexus(n), port, &unit, disk.clone(), map.clone())))
        };
        let (a, b) = (path(50, 7), path(51, 8));
        for h in [&a, &b] {
            h.send(&build::test_unit_ready(), true).await;
        }
        disk.fails.set(true);
        assert_eq!((a.flush().await, b.flush().await, b.flush().await), (LOST, LOST, GOOD));
        disk.fails.set(true);
        assert_eq!(a.flush().await, LOST);
        sleep(HOUR).await;
        a.send(&build::test_unit_ready(), true).await;
        assert_eq!(b.flush().await, GOOD);
        // Both paths are lost at once, each with its answer.
        disk.fails.set(true);
        assert_eq!((a.flush().await, b.flush().await), (LOST, LOST));
        a.0.leave();
        b.0.leave();
        let c = path(52, 7);
        c.send(&build::test_unit_ready(), true).await;
        assert_eq!((c.flush().await, c.flush().await), (LOST, GOOD));
    });
}

/// It has heard of the loss by another name, and stays where it is.
#[test]
fn a_host_that_gets_another_name_is_not_told_again() {
    run(|unit, disk, _, _| async move {
        let named = |name: &str| AccessMap { hosts: vec![rule(name, false, &[7])] };
        let (access, units) = (Access::new(named("n")), Units::default());
        let pool = BufPool::new(&PoolConfig { classes: vec![(4096, 64)] }).unwrap();
        units.insert(Unit::new(unit.clone(), disk.clone(), pool, 4096));
        let port = TransportId::srp([7; 16]);
        let a = Host(Rc::new(Attachment::new(Nexus(50), vec![7; 16], port, 1)));
        a.0.refresh(&access, &units);
        a.send(&build::test_unit_ready(), true).await;
        disk.fails.set(true);
        assert_eq!(a.flush().await, LOST);
        for wait in [0, HOUR] {
            sleep(wait).await;
            a.send(&build::test_unit_ready(), true).await;
            access.set(named(&format!("n{wait}")));
            a.0.refresh(&access, &units);
            assert_eq!(a.flush().await, GOOD);
        }
    });
}

/// Others may come and go as often as they like.
#[test]
fn who_is_there_is_not_forgotten() {
    run(|unit, disk, a, b| async move {
        disk.fails.set(true);
        assert_eq!(a.flush().await, LOST);
        for n in 0..5000 {
            let map = AccessMap { hosts: vec![rule("all", true, &[])] };
            let port = 10 + (n % 200) as u8;
            let other = attach_by(Nexus(1000 + n), port, &unit, disk.clone(), map);
            other.leave();
        }
        assert_eq!((a.flush().await, b.flush().await), (GOOD, LOST));
    });
}

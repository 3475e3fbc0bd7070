//! Writes that were given up, before a target whose medium takes its time with some of them.

use super::{Patience, Told, Volume, Way};
use crate::disk::{Disk, Errno, Request};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{IoResult, MILLIS, Nanos, SECONDS};
use weir_block::{Geometry, IoFuture, Volume as Medium, check_range};
use weir_initiator_brp as brp;
use weir_initiator_srp as srp;
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_proto_scsi::identity::{Identity, PortName, TargetPort};
use weir_proto_scsi::lu::LuState;
use weir_proto_srp::PortId;
use weir_reactor::sleep;
use weir_sim::{Node, World};
use weir_target_brp as target_brp;
use weir_target_core::{Access, AccessMap, HostRule, Unit, UnitShared, Units};
use weir_target_srp as target_srp;

const BLOCK: usize = 512;
const LEN: usize = 64 << 10;
const NAA: [u8; 16] = [0x60; 16];
const PORT: u16 = 5555;

/// A medium that keeps writes back.
#[derive(Default)]
struct Slow {
    bytes: RefCell<Vec<u8>>,
    /// Writes that come now wait until they are let go.
    holds: Cell<bool>,
    released: Cell<bool>,
    /// Reads that come now never end.
    swallows_reads: Cell<bool>,
}

impl Slow {
    fn first(&self) -> u8 {
        self.bytes.borrow()[0]
    }
}

struct OnSlow(Rc<Slow>);

impl Medium for OnSlow {
    fn geometry(&self) -> Geometry {
        Geometry {
            len: LEN as u64,
            block_size: BLOCK as u32,
            granularity: 4096,
            thin: true,
            volatile_cache: false,
            read_only: false,
        }
    }
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        let r = check_range(&self.geometry(), at, buf.len() as u64);
        if r.is_ok() {
            buf.write_at(0, &self.0.bytes.borrow()[at as usize..at as usize + buf.len()]);
        }
        if self.0.swallows_reads.get() {
            return IoFuture::new(std::future::pending());
        }
        IoFuture::ready(r)
    }
    fn write(&self, at: u64, buf: Slice, _fua: bool) -> IoFuture<'_> {
        let held = self.0.holds.get();
        IoFuture::new(async move {
            check_range(&self.geometry(), at, buf.len() as u64)?;
            while held && !self.0.released.get() {
                sleep(MILLIS).await;
            }
            buf.read_at(0, &mut self.0.bytes.borrow_mut()[at as usize..at as usize + buf.len()]);
            Ok(())
        })
    }
    fn flush(&self) -> IoFuture<'_> {
        IoFuture::ready(Ok(()))
    }
    fn lost(&self) -> u64 {
        0
    }
    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        self.write_zeroes(at, len, true)
    }
    fn write_zeroes(&self, at: u64, len: u64, _unmap: bool) -> IoFuture<'_> {
        let r: IoResult = check_range(&self.geometry(), at, len);
        if r.is_ok() {
            self.0.bytes.borrow_mut()[at as usize..(at + len) as usize].fill(0);
        }
        IoFuture::ready(r)
    }
}

/// Serves a slow medium as LUN 0, by either protocol.
fn serve(node: &Node, by_brp: bool) -> (Rc<Slow>, String) {
    let slow = Rc::new(Slow { bytes: RefCell::new(vec![0; LEN]), ..Slow::default() });
    let medium = slow.clone();
    let at = node.enter(|| {
        let mut identity = Identity::new("WEIR", "TEST", "0001", "S1", NAA);
        let name = PortName::Srp([1; 16]);
        identity.ports = vec![TargetPort { relative_id: 1, group: 1, name }];
        let luns = vec![(0, "v".into())];
        let rule = HostRule { host: "any".into(), any: true, luns, ..HostRule::default() };
        let access = Arc::new(Access::new(AccessMap { hosts: vec![rule] }));
        let classes = vec![(4096, 64), (64 << 10, 16)];
        let pool = BufPool::new(&PoolConfig { classes }).unwrap();
        let blocks = (LEN / BLOCK) as u64;
        let geometry = weir_proto_scsi::geometry::Geometry::new(BLOCK as u32, blocks);
        let shared = UnitShared::new("v", LuState::new(identity.clone(), geometry), None);
        let units = Rc::new(Units::default());
        units.insert(Unit::new(shared, Rc::new(OnSlow(medium)), pool.clone(), 1 << 20));
        let addr = node.addr(PORT);
        if by_brp {
            let target = target_brp::Target::new(target_brp::TargetConfig::default(), access);
            target.join(node.provider(), units, pool).unwrap();
            target.listen(&*node.provider(), &addr).unwrap()
        } else {
            let config = target_srp::TargetConfig::default();
            let target = target_srp::Target::new(config, access, identity, 1);
            target.join(node.provider(), units, pool).unwrap();
            target.listen(&*node.provider(), &addr).unwrap()
        }
    });
    (slow, at)
}

/// The volume as two queues of one attachment have it, on a target of either protocol.
struct Scene {
    world: World,
    host: Node,
    slow: Rc<Slow>,
    queues: [Rc<Volume>; 2],
}

const LIMIT: Nanos = SECONDS;

fn scene(seed: u64, by_brp: bool) -> Scene {
    let world = World::new(seed);
    let (target, host) = (world.node("target"), world.node("host"));
    let (slow, at) = serve(&target, by_brp);
    let (provider, patience) = (host.provider(), Patience::of(Some(LIMIT)));
    let opened = world.run(&host, 60 * SECONDS, async move {
        if by_brp {
            let config = brp::SessionConfig::new(&at, brp::PortId([7; 16]));
            let s = brp::Session::connect(provider, config).await.unwrap();
            let mut all = Vec::new();
            for _ in 0..2 {
                let paths = brp::Multipath::open(vec![s.queue()], &NAA).await.unwrap();
                all.push(Rc::new(Volume::brp(paths, patience.clone()).unwrap()));
            }
            all
        } else {
            let port = target_srp::TargetConfig::default().port_id;
            let config = srp::SessionConfig::new(&at, port, PortId::new(7, 1));
            let s = srp::Session::connect(provider, config).await.unwrap();
            let unit = s.queue().scan().await.unwrap().remove(0);
            let mut all = Vec::new();
            for _ in 0..2 {
                let config = srp::MultipathConfig::default();
                let paths = srp::Multipath::open(vec![s.queue()], &NAA, config).await.unwrap();
                all.push(Rc::new(Volume::srp(Way::Srp(paths), &unit, patience.clone())));
            }
            all
        }
    });
    let queues = opened.unwrap().try_into().ok().unwrap();
    Scene { world, host, slow, queues }
}

fn of(byte: u8) -> Request {
    let buf = Slice::heap(BLOCK).sub(0, BLOCK);
    buf.fill(byte);
    Request::Write { at: 0, buf, fua: false }
}

/// What is acknowledged stays, whatever was given up before.
fn a_newer_one_waits(seed: u64, by_brp: bool, other_queue: bool, newer: Request, wanted: u8) {
    let Scene { world, host, slow, queues } = scene(seed, by_brp);
    slow.holds.set(true);
    let v = queues[0].clone();
    let first = world.run(&host, 60 * SECONDS, async move { v.run(&of(0x11)).await });
    assert_eq!(first.unwrap(), Err(Errno(libc::EIO)), "it was waited for long enough");
    slow.holds.set(false);
    let v = queues[usize::from(other_queue)].clone();
    let newer = host.spawn(async move { while v.run(&newer).await.is_err() {} });
    // What is elsewhere waits for nothing.
    let v = queues[1].clone();
    let elsewhere = host.spawn(async move {
        let buf = Slice::heap(BLOCK).sub(0, BLOCK);
        v.run(&Request::Write { at: BLOCK as u64, buf, fua: false }).await
    });
    world.run_for(LIMIT / 2);
    assert!(elsewhere.is_finished());
    slow.released.set(true);
    for _ in 0..600 {
        world.run_for(100 * MILLIS);
        if newer.is_finished() {
            break;
        }
    }
    assert!(newer.is_finished(), "it waits for ever");
    world.run_for(10 * SECONDS);
    assert_eq!(slow.first(), wanted, "the one that was given up came later");
}

#[test]
fn a_newer_write_waits_for_the_end_of_one_that_was_given_up() {
    for by_brp in [true, false] {
        for other_queue in [false, true] {
            a_newer_one_waits(1, by_brp, other_queue, of(0x22), 0x22);
        }
    }
}

#[test]
fn so_do_newer_discards_and_zeroes() {
    for by_brp in [true, false] {
        let (at, len) = (0, LEN as u64);
        a_newer_one_waits(2, by_brp, true, Request::Discard { at, len }, 0);
        a_newer_one_waits(3, by_brp, true, Request::WriteZeroes { at, len, unmap: false }, 0);
    }
}

/// A target that takes in changes and does not answer, over many tries of a host: what is kept for them is their ranges.
#[test]
fn many_that_were_given_up_are_waited_for_by_one() {
    const AT_ONCE: usize = 16;
    let Scene { world, host, slow, queues } = scene(4, true);
    slow.holds.set(true);
    let before = host.reactor(0).figures().tasks;
    for round in 0..4 {
        let tries: Vec<_> = (0..AT_ONCE)
            .map(|k| {
                let v = queues[0].clone();
                let at = ((round * AT_ONCE + k) * BLOCK) as u64;
                host.spawn(async move {
                    let buf = Slice::heap(BLOCK).sub(0, BLOCK);
                    v.run(&Request::Write { at, buf, fua: false }).await
                })
            })
            .collect();
        world.run_for(2 * LIMIT);
        assert!(tries.iter().all(|t| t.is_finished()));
    }
    let kept = host.reactor(0).figures().tasks - before;
    assert!(kept < AT_ONCE, "{kept} tasks wait for what was given up");
    slow.released.set(true);
    world.run_for(10 * SECONDS);
    assert!(host.reactor(0).figures().tasks <= before, "they have ended");
    // Nothing is waited for any more.
    let v = queues[1].clone();
    let all = (64 * BLOCK) as u64;
    let zeroes = Request::WriteZeroes { at: 0, len: all, unmap: false };
    let done = world.run(&host, SECONDS, async move { v.run(&zeroes).await });
    assert_eq!(done.unwrap(), Ok(()));
}

/// A read that never ends changes nothing: what was written, given up and is over does not wait for it.
#[test]
fn a_newer_write_does_not_wait_for_a_read_that_was_given_up() {
    let Scene { world, host, slow, queues } = scene(5, true);
    slow.swallows_reads.set(true);
    slow.holds.set(true);
    let v = queues[0].clone();
    let tries = world.run(&host, 60 * SECONDS, async move {
        let buf = Slice::heap(BLOCK).sub(0, BLOCK);
        let read = v.run(&Request::Read { at: 0, buf }).await;
        (read, v.run(&of(0x11)).await)
    });
    assert_eq!(tries.unwrap(), (Err(Errno(libc::EIO)), Err(Errno(libc::EIO))));
    slow.holds.set(false);
    let v = queues[1].clone();
    let newer = host.spawn(async move { v.run(&of(0x22)).await });
    world.run_for(LIMIT / 2);
    assert!(!newer.is_finished(), "the older one may still be done");
    slow.released.set(true);
    world.run_for(LIMIT / 4);
    assert_eq!(world.run(&host, SECONDS, newer).unwrap(), Some(Ok(())));
    assert_eq!(slow.first(), 0x22);
}

#[test]
fn what_goes_on_is_said_ever_more_seldom() {
    let told = Told::default();
    let said = |from: u64, to: u64| {
        (from..to).filter_map(|s| told.is_due(s * SECONDS).map(|_| s)).collect::<Vec<_>>()
    };
    assert_eq!(said(0, 800), [0, 10, 30, 70, 150, 310, 630]);
    let day = said(800, 86_400);
    assert!(day.len() <= 86_400 / 640 + 1, "{day:?}");
    // Something went on: the next time is news.
    told.ends();
    let at = 86_400 + 640;
    assert_eq!(said(at, at + 40), [at, at + 20]);
}

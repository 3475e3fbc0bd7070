//! Injected faults and delays, and what layers above make of errors below.

use crate::common::{MemDisk, World, pattern, ram, reactor, read, run, write};
use std::rc::Rc;
use weir_base::{IoError, MICROS};
use weir_block::{Filter, GraphSpec, IoFuture, NodeSpec, Op, Volume};
use weir_layers::{FAULT_ERRORS, FaultSwitch};
use weir_mem::Slice;
use weir_reactor::{PollMode, now, spawn};

fn fault(f: impl Fn(NodeSpec) -> NodeSpec) -> (World, Rc<dyn Volume>) {
    let world = World::new();
    let node = f(NodeSpec::new("f", "fault")).over("r");
    let v = world.volume(GraphSpec::new("v", "f").with(node).with(ram("r", 1 << 20)));
    (world, v)
}

async fn every_op(v: &dyn Volume, at: u64, len: usize) -> [Result<(), IoError>; 5] {
    [
        v.read(at, Slice::heap(len)).await,
        v.write(at, Slice::heap(len), false).await,
        v.flush().await,
        v.discard(at, len as u64).await,
        v.write_zeroes(at, len as u64, false).await,
    ]
}

#[test]
fn every_error_and_operation() {
    run(async {
        for (word, e) in FAULT_ERRORS {
            let (_, v) = fault(|n| n.param("error", word));
            assert_eq!(every_op(&*v, 0, 512).await, [Err(e); 5], "{word}");
            for op in Op::ALL {
                let (_, v) = fault(|n| n.param("error", word).param("ops", op.name()));
                let got = every_op(&*v, 0, 512).await;
                for other in Op::ALL {
                    let want = if other == op { Err(e) } else { Ok(()) };
                    assert_eq!(got[other as usize], want, "{word} {op:?} {other:?}");
                }
            }
        }
    });
}

#[test]
fn range_skip_count_and_chance() {
    run(async {
        let (_, v) =
            fault(|n| n.param("from", 4096u64).param("len", 512u64).param("ops", "read,write"));
        for (at, len, hit) in [
            (0, 4096, false),
            (0, 4608, true),
            (3584, 1024, true),
            (4096, 512, true),
            (4608, 512, false),
            (0, 65536, true),
        ] {
            let want = if hit { Err(IoError::Medium) } else { Ok(()) };
            assert_eq!(v.read(at, Slice::heap(len)).await, want, "{at}+{len}");
        }
        assert_eq!(v.flush().await, Ok(()));
        let (world, v) = fault(|n| n.param("skip", 3u64).param("count", 2u64));
        let mut got = String::new();
        for _ in 0..8 {
            got.push(if v.flush().await.is_ok() { '.' } else { 'x' });
        }
        assert_eq!(got, "...xx...");
        let switch = world.shared.get::<FaultSwitch>("v/f/fault").unwrap();
        assert_eq!(switch.hits(), 2);
        let (world, v) = fault(|n| n.param("chance", 0.25));
        for _ in 0..10_000 {
            let _ = v.flush().await;
        }
        let hits = world.shared.get::<FaultSwitch>("v/f/fault").unwrap().hits();
        assert!((2300..2700).contains(&hits), "{hits}");
    });
}

#[test]
fn switched_on_and_off() {
    run(async {
        let (world, v) = fault(|n| n.param("on", false));
        let switch = world.shared.get::<FaultSwitch>("v/f/fault").unwrap();
        assert_eq!(v.flush().await, Ok(()));
        switch.set(true);
        assert_eq!(v.flush().await, Err(IoError::Medium));
        switch.set(false);
        assert_eq!(v.flush().await, Ok(()));
    });
}

#[test]
fn before_has_no_effect_and_after_has_all() {
    run(async {
        let data = pattern(1, 4096);
        for (when, took) in [("before", false), ("after", true)] {
            let (_, v) = fault(|n| n.param("ops", "write").param("when", when));
            assert_eq!(write(&*v, 0, &data).await, Err(IoError::Medium));
            assert_eq!(read(&*v, 0, 4096).await.unwrap() == data, took, "{when}");
            let out = write(&*v, 1 << 20, &data).await;
            let want = if took { IoError::OutOfRange } else { IoError::Medium };
            assert_eq!(out, Err(want), "an error from below is the truer one");
        }
    });
}

#[test]
fn lost_writes_and_flipped_bits() {
    run(async {
        let data = pattern(2, 4096);
        let (_, v) = fault(|n| n.param("error", "lost"));
        write(&*v, 0, &data).await.unwrap();
        assert_eq!(read(&*v, 0, 4096).await.unwrap(), [0; 4096]);
        let (_, v) = fault(|n| n.param("error", "corrupt").param("count", 1u64));
        write(&*v, 0, &data).await.unwrap();
        let got = read(&*v, 0, 4096).await.unwrap();
        let bits: u32 = got.iter().zip(&data).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!(bits, 1);
        assert!(read(&*v, 0, 4096).await.unwrap() == data);
    });
}

#[test]
fn delays_last_as_long_as_they_say() {
    run(async {
        let world = World::new();
        let d = NodeSpec::new("d", "delay").param("time", "100us").param("jitter", "50us");
        let d = d.param("ops", "write").param("from", "64KiB").over("r");
        let v = world.volume(GraphSpec::new("v", "d").with(d).with(ram("r", 1 << 20)));
        let mut times = Vec::new();
        for _ in 0..200 {
            let start = now();
            write(&*v, 64 << 10, &[1; 512]).await.unwrap();
            times.push(now() - start);
        }
        let (least, most) = (*times.iter().min().unwrap(), *times.iter().max().unwrap());
        assert!(least >= 100 * MICROS && most <= 150 * MICROS && most - least > 40 * MICROS);
        let start = now();
        write(&*v, 0, &[1; 512]).await.unwrap();
        read(&*v, 64 << 10, 512).await.unwrap();
        v.flush().await.unwrap();
        assert_eq!(now(), start, "what was not selected is not delayed");
        assert!(v.direct(0, 512).is_none(), "that would pass it by");
    });
}

/// One child fails: the whole fails with its error, and not before the other parts have ended.
#[test]
fn a_failure_below_a_stripe_is_the_whole_s_and_all_parts_are_awaited() {
    for kind in ["stripe", "concat"] {
        run(async move {
            let mut world = World::new();
            let mut top = NodeSpec::new("top", kind);
            let mut spec = GraphSpec::new("v", "top");
            let mut disks = Vec::new();
            for i in 0..4 {
                let id = format!("d{i}");
                let disk = MemDisk::with(1 << 20, 512, |d| d.slow.set(100_000));
                world = world.disk(&id, disk.clone());
                disks.push(disk);
                spec = spec.with(NodeSpec::new(&id, "disk").param("path", id.as_str()));
                top = top.over(&id);
            }
            let v = world.volume(spec.with(top));
            let len = 4 << 20;
            disks[2].result.set(Err(IoError::NoSpace));
            let idle = || disks.iter().all(|d| d.in_flight.get() == 0);
            assert_eq!(v.write(0, Slice::heap(len), false).await, Err(IoError::NoSpace));
            assert!(idle(), "{kind}: a part was left behind");
            assert_eq!(v.read(0, Slice::heap(len)).await, Err(IoError::NoSpace));
            assert!(idle());
            assert_eq!(v.write_zeroes(0, len as u64, true).await, Err(IoError::NoSpace));
            assert!(idle());
            assert_eq!(v.flush().await, Err(IoError::NoSpace));
            assert!(idle());
            assert_eq!(v.read(0, Slice::heap(4096)).await, Ok(()), "the others go on");
        });
    }
}

/// Requests in parallel on all back ends: a stripe's I/O takes as long as its slowest part, not as the
/// sum.
#[test]
fn parts_of_an_io_overlap() {
    run(async {
        let world = World::new();
        let mut top = NodeSpec::new("top", "stripe").param("unit", "4KiB");
        let mut spec = GraphSpec::new("v", "top");
        for i in 0..4 {
            let (d, r) = (format!("d{i}"), format!("r{i}"));
            spec = spec.with(NodeSpec::new(&d, "delay").param("time", "1ms").over(&r));
            spec = spec.with(ram(&r, 1 << 20));
            top = top.over(&d);
        }
        let v = world.volume(spec.with(top));
        for (len, rounds) in [(4096, 1), (16 << 10, 1), (64 << 10, 1), (256 << 10, 4)] {
            let start = now();
            v.read(0, Slice::heap(len)).await.unwrap();
            assert_eq!(now() - start, rounds * 1000 * MICROS, "{len} bytes");
        }
    });
}

/// A layer of a test's own, over [`Filter`]: one read in two fails.
struct EveryOther(Rc<dyn Volume>, std::cell::Cell<bool>);

impl Filter for EveryOther {
    fn lower(&self) -> &dyn Volume {
        &*self.0
    }
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        if self.1.replace(!self.1.get()) {
            return IoFuture::ready(Err(IoError::Busy));
        }
        self.0.read(at, buf)
    }
}

#[test]
fn a_filter_forwards_all_it_does_not_override() {
    let r = reactor();
    r.block_on(PollMode::Sleep, async {
        let ram = World::new().volume(GraphSpec::new("v", "r").with(ram("r", 1 << 20)));
        let v: Rc<dyn Volume> = Rc::new(EveryOther(ram.clone(), Default::default()));
        assert_eq!(v.geometry(), ram.geometry());
        write(&*v, 4096, &[7; 4096]).await.unwrap();
        assert_eq!(read(&*v, 4096, 512).await.unwrap(), [7; 512]);
        assert_eq!(read(&*v, 4096, 512).await, Err(IoError::Busy));
        assert_eq!(v.allocated(), Some(4096));
        assert!(!v.allocation(0, 4096).mapped && v.allocation(4096, 4096).mapped);
        v.discard(4096, 4096).await.unwrap();
        assert_eq!(ram.allocated(), Some(0));
        v.resize(2 << 20).unwrap();
        assert_eq!(ram.geometry().len, 2 << 20);
        assert!(v.direct(0, 512).is_none() && v.direct_in_use().is_none());
        let v2 = v.clone();
        assert_eq!(spawn(async move { v2.flush().await }).await, Some(Ok(())));
    });
}

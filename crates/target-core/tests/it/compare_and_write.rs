//! COMPARE AND WRITE against plain writes of the same unit on other reactors, in simulated worlds.

use crate::common::{BLOCK, Data, attach, shared_unit, volume_geometry};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use weir_base::{IoResult, MICROS, Nanos, SECONDS};
use weir_block::{Geometry, IoFuture, Volume, check_range};
use weir_mem::Slice;
use weir_proto_scsi::initiator::{self as build, Cdb};
use weir_proto_scsi::lun::Lun;
use weir_reactor::{now, sleep};
use weir_sim::{Node, World};
use weir_target_core::{Attachment, Outcome, UnitShared};

const BLOCKS: usize = 8192;

/// What was done to the medium: who, whether it was a write, which block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Done {
    core: usize,
    write: bool,
    block: u64,
}

#[derive(Default)]
struct Medium {
    bytes: Vec<u8>,
    log: Vec<Done>,
}

/// One core's handle to a disk whose I/O takes a while; with `lend` it is memory that can be written in place.
struct Disk {
    core: usize,
    medium: Arc<Mutex<Medium>>,
    time: Cell<Nanos>,
    lend: Option<Slice>,
}

impl Disk {
    fn run<'a>(&'a self, write: bool, at: u64, buf: Slice) -> IoFuture<'a> {
        IoFuture::new(async move {
            check_range(&self.geometry(), at, buf.len() as u64)?;
            sleep(self.time.get()).await;
            let mut m = self.medium.lock().unwrap();
            let block = at / BLOCK as u64;
            m.log.push(Done { core: self.core, write, block });
            let range = at as usize..at as usize + buf.len();
            if write {
                buf.read_at(0, &mut m.bytes[range]);
            } else {
                buf.write_at(0, &m.bytes[range]);
            }
            Ok(())
        })
    }

    fn none(&self) -> IoFuture<'_> {
        IoFuture::ready(IoResult::Ok(()))
    }
}

impl Volume for Disk {
    fn geometry(&self) -> Geometry {
        volume_geometry(BLOCKS as u64)
    }
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        self.run(false, at, buf)
    }
    fn write(&self, at: u64, buf: Slice, _fua: bool) -> IoFuture<'_> {
        self.run(true, at, buf)
    }
    fn flush(&self) -> IoFuture<'_> {
        self.none()
    }
    fn lost(&self) -> u64 {
        0
    }
    fn discard(&self, _at: u64, _len: u64) -> IoFuture<'_> {
        self.none()
    }
    fn write_zeroes(&self, _at: u64, _len: u64, _unmap: bool) -> IoFuture<'_> {
        self.none()
    }
    fn direct(&self, at: u64, len: usize) -> Option<Slice> {
        self.lend.as_ref().map(|s| s.sub(at as usize, len))
    }

    fn write_now(&self, at: u64, data: &[u8], _sums: &[[u8; 4]]) -> bool {
        let place = self.direct(at, data.len());
        place.is_some_and(|p| {
            p.write_at(0, data);
            true
        })
    }
}

struct Lab {
    world: World,
    node: Node,
    medium: Arc<Mutex<Medium>>,
    shared: Arc<UnitShared>,
}

/// A host on one core.
#[derive(Clone)]
struct Host(Rc<Attachment>);

impl Host {
    async fn run(&self, cdb: Cdb, bytes: Vec<u8>, time: Nanos) -> Outcome {
        let unit = self.0.find(Lun::ZERO).expect("mapped");
        let mut pass = unit.pass();
        let mut data = Data::given(bytes, time);
        let o = pass.execute(&self.0, cdb.as_bytes(), &mut data).await.expect("not stopped");
        pass.told();
        o
    }

    async fn write(&self, block: u64, byte: u8, time: Nanos) {
        let o = self.run(build::write(block, 1, false), vec![byte; BLOCK], time).await;
        assert_eq!(o.status, 0);
    }

    /// True when it compared equal.
    async fn compare_and_write(&self, block: u64, old: u8, new: u8) -> bool {
        let both = [[old; BLOCK], [new; BLOCK]].concat();
        let o = self.run(build::compare_and_write(block, 1, false), both, 0).await;
        assert!(o.status == 0 || o.status == 2, "{}", o.status);
        o.status == 0
    }
}

impl Lab {
    fn new(seed: u64, cores: usize) -> Lab {
        let world = World::new(seed);
        let node = world.node_with("target", cores);
        let shared = shared_unit(BLOCKS as u64, None);
        let bytes = vec![0; BLOCK * BLOCKS];
        let medium = Arc::new(Mutex::new(Medium { bytes, log: Vec::new() }));
        Lab { world, node, medium, shared }
    }

    /// A host on `core`, with a handle to the disk that takes `time` for an I/O.
    fn host(&self, core: usize, time: Nanos, lend: Option<Slice>) -> Host {
        self.node.enter_on(core, || {
            let disk = Disk { core, medium: self.medium.clone(), time: Cell::new(time), lend };
            Host(Rc::new(attach(core, &self.shared, Rc::new(disk))))
        })
    }

    fn finish<T: 'static>(&self, all: Vec<weir_reactor::JoinHandle<T>>) {
        let end = self.world.run_until(60 * SECONDS, || all.iter().all(|h| h.is_finished()));
        if let Err(stuck) = end {
            panic!("seed {}: {stuck}", self.world.seed());
        }
    }
}

/// Passes a unit attention that a new nexus meets.
async fn greet(h: &Host) {
    let _ = h.run(build::test_unit_ready(), Vec::new(), 0).await;
}

/// Between the read and the write of a COMPARE AND WRITE, which the first core does, nobody writes to the block.
fn check(medium: &Medium, seed: u64) -> usize {
    let mut swaps = 0;
    for (i, r) in medium.log.iter().enumerate().filter(|(_, d)| d.core == 0 && !d.write) {
        for d in medium.log[i + 1..].iter().filter(|d| d.block == r.block) {
            match (d.core, d.write) {
                (0, true) => {
                    swaps += 1;
                    break;
                }
                // Compared unequal: there was no write.
                (0, false) => break,
                (_, true) => {
                    // Legal unless the first core writes before it reads again.
                    let later =
                        medium.log[i + 1..].iter().find(|x| x.block == r.block && x.core == 0);
                    assert!(
                        later.is_none_or(|x| !x.write),
                        "seed {seed}: core {} wrote block {} in the middle of a COMPARE AND WRITE",
                        d.core,
                        d.block
                    );
                    break;
                }
                _ => {}
            }
        }
    }
    swaps
}

#[test]
fn no_write_of_another_core_falls_between_read_and_write() {
    let mut swaps = 0;
    for seed in 0..40 {
        let cores = 2 + (seed % 2) as usize;
        let lab = Lab::new(seed, cores);
        let hosts: Vec<Host> =
            (0..cores).map(|core| lab.host(core, (1 + core as u64) * 7 * MICROS, None)).collect();
        // What the block holds, as far as the first core knows from its own tries.
        let comparer = hosts[0].clone();
        let mut all = vec![lab.node.spawn_on(0, async move {
            greet(&comparer).await;
            for i in 0..150u64 {
                let block = i % 3;
                let mut old = 0;
                // Any byte that a writer may have left; one of them is there.
                while !comparer.compare_and_write(block, old, 200).await {
                    old = if old >= 20 { 200 } else { old + 1 };
                    if old == 200 && comparer.compare_and_write(block, 200, 200).await {
                        break;
                    }
                    if old == 200 {
                        old = 0;
                    }
                }
            }
        })];
        for (core, host) in hosts.iter().enumerate().skip(1) {
            let (host, mut rng) = (host.clone(), lab.world.rng(core as u64));
            all.push(lab.node.spawn_on(core, async move {
                greet(&host).await;
                for _ in 0..400 {
                    host.write(rng.below(3), rng.below(20) as u8, rng.below(5) * MICROS).await;
                    sleep(rng.below(20) * MICROS).await;
                }
            }));
        }
        lab.finish(all);
        swaps += check(&lab.medium.lock().unwrap(), seed);
    }
    assert!(swaps > 1000, "only {swaps} COMPARE AND WRITEs compared equal");
}

#[test]
fn counters_of_many_cores_lose_no_step() {
    for seed in 100..120 {
        let lab = Lab::new(seed, 3);
        let all: Vec<_> = (0..3)
            .map(|core| {
                let host = lab.host(core, (3 + core as u64) * MICROS, None);
                lab.node.spawn_on(core, async move {
                    greet(&host).await;
                    let mut value = 0u8;
                    for _ in 0..20 {
                        while !host.compare_and_write(9, value, value + 1).await {
                            value = (value + 1) % 61;
                        }
                    }
                })
            })
            .collect();
        lab.finish(all);
        assert_eq!(lab.medium.lock().unwrap().bytes[9 * BLOCK], 60, "seed {seed}");
    }
}

/// A write whose data do not come holds up COMPARE AND WRITEs of its own area only, and is not held up itself.
#[test]
fn other_areas_are_not_held_up() {
    let lab = Lab::new(7, 2);
    let memory = Slice::heap(BLOCK * BLOCKS);
    let (a, b) = (lab.host(0, MICROS, None), lab.host(1, MICROS, Some(memory)));
    let slow = lab.host(1, 10 * SECONDS, None);
    let stuck = lab.node.spawn_on(1, async move {
        greet(&slow).await;
        // On its way into a medium that takes its time.
        slow.write(0, 1, 0).await;
        now()
    });
    lab.world.run_for(SECONDS);
    let (far, near) = (a.clone(), a.clone());
    let quick = lab.node.spawn_on(0, async move {
        greet(&far).await;
        assert!(far.compare_and_write(4096, 0, 1).await);
        now()
    });
    let waits = lab.node.spawn_on(0, async move {
        sleep(MICROS).await;
        near.compare_and_write(1, 0, 1).await;
        now()
    });
    lab.world.run_for(SECONDS);
    assert!(quick.is_finished() && !waits.is_finished() && !stuck.is_finished());
    // While one waits for its area, writes elsewhere go on; writes to the area come after it.
    let order = Rc::new(RefCell::new(Vec::new()));
    let (o1, o2, b1, b2) = (order.clone(), order.clone(), b.clone(), b.clone());
    let elsewhere = lab.node.spawn_on(1, async move {
        b1.write(5000, 1, 0).await;
        o1.borrow_mut().push("elsewhere");
        now()
    });
    let after = lab.node.spawn_on(1, async move {
        b2.write(2, 1, 0).await;
        o2.borrow_mut().push("after");
        now()
    });
    lab.world.run_for(SECONDS);
    assert_eq!(*order.borrow(), ["elsewhere"]);
    lab.finish(vec![stuck, quick, waits, elsewhere, after]);
    assert_eq!(*order.borrow(), ["elsewhere", "after"]);
}

/// Sides of the unit that come and go do not hold anybody up.
#[test]
fn a_core_that_is_gone_is_not_waited_for() {
    let lab = Lab::new(8, 2);
    let a = lab.host(0, MICROS, None);
    let b = lab.host(1, MICROS, None);
    lab.node.enter_on(1, || drop(b));
    let done = lab.node.spawn_on(0, async move {
        greet(&a).await;
        assert!(a.compare_and_write(0, 0, 1).await);
    });
    lab.finish(vec![done]);
}

//! Restarts after a kill: the log is kept and merged while the pool serves.

use crate::common::{filled, read};
use std::rc::Rc;
use weir_base::{IoError, SECONDS};
use weir_block::Volume;
use weir_disk::Disk;
use weir_sim::{DiskConfig, Node, SimMedium, World};
use weir_store::dump::{Dump, Item, Value};
use weir_store::{Options, Pool, PoolSpec, check, create};

const LIMIT: u64 = 100 * SECONDS;
const MIB: u64 = 1 << 20;
/// Turns that a superblock has at most (docs/format.md).
const TURNS: u64 = 4;

struct Bench {
    w: World,
    n: Node,
    media: Vec<SimMedium>,
}

impl Bench {
    /// A pool of two devices with a volume `v`.
    fn new(log_pages: u64) -> Bench {
        Bench::of(5, log_pages, 2, DiskConfig::default())
    }

    /// The same of so many devices, on each of which is a copy of everything.
    fn of(seed: u64, log_pages: u64, devices: u8, config: DiskConfig) -> Bench {
        let w = World::new(seed);
        let n = w.node("store");
        let medium = |i| SimMedium::new(&format!("d{i}"), 8 * MIB, config.clone(), seed << 8 | i);
        let media: Vec<SimMedium> = (0..devices.into()).map(medium).collect();
        media.iter().for_each(|m| n.attach(m));
        let b = Bench { w, n, media };
        let spec =
            PoolSpec { slab_shift: 8, log_pages, spares: 8, ..PoolSpec::fitting(77, devices, 0) };
        let disks = b.disks();
        b.run(async move {
            create(&disks, &spec).await.unwrap();
            let p = Pool::open(disks, Options::default()).await.unwrap();
            p.create_volume("v", 64 * MIB, 4096).await.unwrap();
            p.close().await.unwrap();
        });
        b.kill();
        b
    }

    fn disks(&self) -> Vec<Rc<dyn Disk>> {
        (0..self.media.len()).map(|i| self.n.disk(&format!("d{i}")) as Rc<dyn Disk>).collect()
    }

    fn run<T: 'static>(&self, f: impl Future<Output = T> + 'static) -> T {
        self.w.run(&self.n, LIMIT, f).expect("it ends")
    }

    fn kill(&self) {
        self.n.kill();
        self.n.restart();
    }

    /// One life: opens the pool, sees that block `n` is `n` for all of `there`, writes those of `new`, and is killed. Says
    /// whether the log was kept.
    fn life(&self, there: std::ops::Range<u64>, new: std::ops::Range<u64>) -> bool {
        let disks = self.disks();
        let kept = self.run(async move {
            let p = Pool::open(disks, Options::default()).await.unwrap();
            let c = p.counters();
            assert_eq!(c.logs_kept + c.checkpoints, 1, "one or the other, before it serves");
            let v = p.volume(p.find("v").unwrap()).unwrap();
            for n in there {
                assert_eq!(read(&*v, n * 4096, 4096).await, Ok(vec![n as u8; 4096]), "{n}");
            }
            for n in new {
                v.write(n * 4096, filled(4096, n as u8), false).await.unwrap();
            }
            c.logs_kept == 1
        });
        self.kill();
        kept
    }

    fn dump(&self, what: impl AsyncFnOnce(Dump) -> Item + 'static) -> Item {
        let disks = self.disks();
        self.run(async move { what(Dump::open(disks).await.unwrap()).await })
    }

    /// Turns of the newest superblock.
    fn turns(&self) -> u64 {
        let all = self.dump(async |d| d.superblocks().await.unwrap());
        let turns = all.parts[0].parts.iter().filter(|p| p.what.starts_with("turn")).count();
        let incompat = all.parts[0].fields.iter().find(|(n, _)| *n == "incompat").unwrap();
        assert_eq!(incompat.1, Value::Hex(if turns > 0 { 6 } else { 4 }));
        turns as u64
    }
}

#[test]
fn a_pool_serves_after_a_kill_before_its_log_is_merged() {
    let b = Bench::new(512);
    assert!(!b.life(0..0, 0..60), "there was an orderly end");
    assert_eq!(b.turns(), 0);
    assert!(b.life(0..0, 0..0));
    assert_eq!(b.turns(), 1, "it was killed before the checkpoint");
    // What does not count is shown on demand only.
    let count = |old| b.dump(async move |d| d.log(old).await.unwrap()).parts.len();
    assert!(count(false) > 0 && count(false) <= count(true));
    let disks = b.disks();
    let report = b.run(async move { check(disks, Options::default()).await.unwrap() });
    assert_eq!(report.findings, [], "as of the checkpoint before");
    let disks = b.disks();
    b.run(async move {
        let p = Pool::open(disks, Options::default()).await.unwrap();
        assert_eq!(p.counters().logs_kept, 1);
        p.checkpoint().await.unwrap();
    });
    b.kill();
    assert_eq!(b.turns(), 0, "merged");
    assert!(!b.life(0..60, 0..0), "there is nothing to keep");
}

#[test]
fn kills_before_the_merge_ends_lose_nothing_and_are_merged_in_the_end() {
    let b = Bench::new(512);
    b.life(0..0, 0..10);
    for n in 1..=TURNS {
        // The merge, which goes on meanwhile, has no time to end before the first few.
        assert!(b.life(0..0, 0..0), "life {n}");
        assert_eq!(b.turns(), n);
    }
    assert!(!b.life(0..10, 0..0), "that is enough");
    assert_eq!(b.turns(), 0);
    // With writes of each life in its own stretch; the ends of merges come as they come.
    for n in 1..20 {
        b.life(0..n * 10, n * 10..(n + 1) * 10);
    }
    let disks = b.disks();
    b.run(async move {
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.close().await.unwrap();
    });
    b.kill();
    assert!(!b.life(0..200, 0..0));
    let disks = b.disks();
    let report = b.run(async move { check(disks, Options::default()).await.unwrap() });
    assert_eq!(report.findings, []);
}

#[test]
fn many_writes_to_the_same_blocks_are_taken_up_in_their_order() {
    let b = Bench::new(1024);
    let disks = b.disks();
    let free = b.run(async move {
        let p = Pool::open(disks, Options::default()).await.unwrap();
        let v = p.volume(1).unwrap();
        for n in 0..400u64 {
            v.write(n * 7 % 90 * 4096, filled(4096, n as u8), false).await.unwrap();
            if n == 200 {
                v.discard(0, 20 * 4096).await.unwrap();
                p.snapshot(&[(1, "s")], 0).await.unwrap();
            }
        }
        p.status().free
    });
    b.kill();
    let last = |of: std::ops::Range<u64>, block| of.rev().find(|n| n * 7 % 90 == block);
    let disks = b.disks();
    b.run(async move {
        let p = Pool::open(disks, Options::default()).await.unwrap();
        assert_eq!(p.counters().logs_kept, 1);
        // What was replaced is given back by a checkpoint, not before.
        assert_eq!(p.status().free, free);
        let (v, s) = (p.volume(1).unwrap(), p.volume(p.find("s").unwrap()).unwrap());
        for block in 0..90 {
            let now = last(0..400, block).unwrap() as u8;
            assert_eq!(read(&*v, block * 4096, 4096).await, Ok(vec![now; 4096]), "{block}");
            let wiped = block < 20;
            let then = last(0..201, block).filter(|_| !wiped).unwrap_or(0) as u8;
            assert_eq!(read(&*s, block * 4096, 4096).await, Ok(vec![then; 4096]), "{block}");
        }
        p.checkpoint().await.unwrap();
        p.checkpoint().await.unwrap();
        assert!(p.status().free > free);
        p.close().await.unwrap();
    });
    b.kill();
    let disks = b.disks();
    let report = b.run(async move { check(disks, Options::default()).await.unwrap() });
    assert_eq!(report.findings, []);
}

#[test]
fn opening_for_reading_writes_nothing() {
    let b = Bench::new(512);
    b.life(0..0, 0..40);
    let image = |m: &SimMedium| {
        let mut all = vec![0; m.len() as usize];
        m.peek(0, &mut all);
        all
    };
    let before: Vec<_> = b.media.iter().map(image).collect();
    let disks = b.disks();
    b.run(async move {
        let o = Options { read_only: true, ..Options::default() };
        let p = Pool::open(disks, o).await.unwrap();
        let v = p.volume(1).unwrap();
        for n in 0..40 {
            assert_eq!(read(&*v, n * 4096, 4096).await, Ok(vec![n as u8; 4096]));
        }
        assert_eq!(v.write(0, filled(4096, 1), false).await, Err(IoError::ReadOnly));
        assert!(p.checkpoint().await.is_err());
    });
    b.kill();
    assert!(b.media.iter().map(image).eq(before));
    assert!(b.life(0..40, 0..0));
}

/// What is acknowledged must not be at risk in what recovery writes: a sector in which power ends is garbage.
#[test]
fn power_cuts_while_it_recovers_tear_nothing_that_was_acknowledged() {
    let config = DiskConfig { garbage: true, ..DiskConfig::default() };
    for devices in [1, 2] {
        let mut cuts = 0;
        for step in 0..60 {
            let b = Bench::of(step, 64, devices, config.clone());
            let disks = b.disks();
            b.run(async move {
                let p = Pool::open(disks, Options::default()).await.unwrap();
                let v = p.volume(p.find("v").unwrap()).unwrap();
                // The last page of the log, of which no other says that it is whole.
                v.write(0, filled(64 * 4096, 9), false).await.unwrap();
            });
            b.kill();
            for again in 0..3 {
                let (disks, opened) = (b.disks(), Rc::new(std::cell::Cell::new(false)));
                let o = opened.clone();
                b.n.spawn(async move {
                    let p = Pool::open(disks, Options::default()).await.unwrap();
                    o.set(true);
                    weir_reactor::sleep(LIMIT).await;
                    drop(p);
                });
                b.w.run_for((step + again * 7 + 1) * 100_000);
                cuts += u64::from(!opened.get());
                b.n.power_off();
                b.n.restart();
            }
            let disks = b.disks();
            b.run(async move {
                let p = Pool::open(disks, Options::default()).await.unwrap();
                let v = p.volume(p.find("v").unwrap()).unwrap();
                assert!(read(&*v, 0, 64 * 4096).await == Ok(vec![9; 64 * 4096]), "{step}");
            });
        }
        assert!(cuts > 60, "{cuts}");
    }
}

/// What was looked up before a checkpoint ended is not put together with what is looked up after it.
#[test]
fn reads_at_every_moment_of_a_merge_find_what_was_written_last() {
    const LEAF: u64 = 336 * 4096;
    for step in 0..150 {
        let b = Bench::of(step, 64, 2, DiskConfig::default());
        b.life(0..0, 0..8);
        let disks = b.disks();
        b.run(async move {
            let p = Pool::open(disks, Options::default()).await.unwrap();
            let v = p.volume(p.find("v").unwrap()).unwrap();
            for n in 1..12 {
                v.write(n * LEAF, filled(4096, 1), false).await.unwrap();
            }
            p.checkpoint().await.unwrap();
            v.write(5 * 4096, filled(4096, 99), false).await.unwrap();
        });
        b.kill();
        let disks = b.disks();
        b.run(async move {
            // So few nodes are kept in memory that leaves are read again and again.
            let p = Pool::open(disks, Options { cache: 0, ..Options::default() }).await.unwrap();
            let v = p.volume(p.find("v").unwrap()).unwrap();
            let other = v.clone();
            weir_reactor::spawn_task(async move {
                for n in (1..12).cycle() {
                    let _ = read(&*other, n * LEAF, 4096).await;
                }
            });
            // The log is merged meanwhile.
            weir_reactor::sleep(step * 20_000).await;
            let got = read(&*v, 0, 8 * 4096).await.unwrap();
            let firsts: Vec<u8> = got.chunks(4096).map(|c| c[0]).collect();
            assert_eq!(firsts, [0, 1, 2, 3, 4, 99, 6, 7], "{step}");
        });
    }
}

//! What goes on beside I/O and beside each other: scrubs, checkpoints, snapshots, deletions.

use crate::common::{filled, read};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{IoError, MICROS, MILLIS, SECONDS};
use weir_block::Volume;
use weir_disk::Disk;
use weir_reactor::{sleep, spawn};
use weir_sim::{DiskConfig, Node, SimMedium, World};
use weir_store::{Options, Pool, PoolSpec, ScrubWatch, check, create};

const LIMIT: u64 = 1000 * SECONDS;
const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

/// A pool of two devices with a volume `v`, whose first MiB is written.
struct Bench {
    w: World,
    n: Node,
    media: Vec<SimMedium>,
    pool: Pool,
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let w = World::new(seed);
        let n = w.node("store");
        let medium = |i| SimMedium::new(&format!("d{i}"), 8 * MIB, DiskConfig::default(), i);
        let media: Vec<SimMedium> = (0..2).map(medium).collect();
        media.iter().for_each(|m| n.attach(m));
        let spec =
            PoolSpec { slab_shift: 8, log_pages: 64, spares: 8, ..PoolSpec::fitting(77, 2, 0) };
        let disks = disks(&n);
        let pool = w.run(&n, LIMIT, async move {
            create(&disks, &spec).await.unwrap();
            let p = Pool::open(disks, Options::default()).await.unwrap();
            assert_eq!(p.create_volume("v", 64 * MIB, 4096).await, Ok(1));
            write(&p, 0, MIB, 1).await;
            p.settled().await.unwrap();
            p.checkpoint().await.unwrap();
            p
        });
        let pool = pool.expect("it ends");
        Bench { w, n, media, pool }
    }

    fn run<T: 'static>(&self, f: impl Future<Output = T> + 'static) -> T {
        self.w.run(&self.n, LIMIT, f).expect("it ends")
    }
}

fn disks(n: &Node) -> Vec<Rc<dyn Disk>> {
    (0..2).map(|i| n.disk(&format!("d{i}")) as Rc<dyn Disk>).collect()
}

async fn write(p: &Pool, at: u64, len: u64, value: u8) {
    p.volume(1).unwrap().write(at, filled(len as usize, value), false).await.unwrap();
}

/// The list of what died is handed on in the line: also past a snapshot that is made while that happens.
#[test]
fn a_snapshot_made_while_another_is_deleted_loses_no_space() {
    for seed in 0..5 {
        let b = Bench::new(seed);
        let p = b.pool.clone();
        b.run(async move {
            // Something besides that the checkpoint has to merge, so that there is time.
            let w = p.create_volume("w", 64 * MIB, 4096).await.unwrap();
            let first = p.snapshot(&[(1, "first")], 0).await.unwrap()[0];
            write(&p, 0, MIB / 2, 2).await;
            let second = p.snapshot(&[(1, "second")], 0).await.unwrap()[0];
            write(&p, 0, MIB, 3).await;
            p.checkpoint().await.unwrap();
            write(&p, 0, MIB / 4, 4).await;
            p.volume(w).unwrap().write(0, filled(4096, 9), false).await.unwrap();
            let q = p.clone();
            let deletion = spawn(async move { q.delete(second).await });
            while !p.datasets().iter().any(|d| d.id == second && d.deleting) {
                sleep(5 * MICROS).await;
            }
            let third = p.snapshot(&[(1, "third")], 0).await.unwrap()[0];
            deletion.await.unwrap().unwrap();
            write(&p, 0, MIB / 2, 5).await;
            for id in [first, third] {
                for _ in 0..4 {
                    p.checkpoint().await.unwrap();
                }
                p.delete(id).await.unwrap();
            }
            for _ in 0..4 {
                p.checkpoint().await.unwrap();
            }
            let all = read(&*p.volume(1).unwrap(), 0, MIB as usize).await.unwrap();
            assert_eq!((all[0], all[MIB as usize / 2]), (5, 3));
            p.close().await.unwrap();
        });
        let disks = disks(&b.n);
        let report = b.run(async move { check(disks, Options::default()).await }).unwrap();
        assert_eq!(report.findings, [], "seed {seed}");
    }
}

/// A block that is being mended belongs to nobody else before that write has ended, whoever waits for it.
#[test]
fn a_scrub_that_is_stopped_in_a_mend_leaves_no_write_behind() {
    let b = Bench::new(1);
    let (p, media) = (b.pool.clone(), b.media.clone());
    b.run(async move {
        let places = p.volume(1).unwrap().locate(0).await.unwrap();
        let (device, at) = places[0];
        let ill = &media[usize::from(device)];
        ill.rot(at, 4096, 1);
        ill.stall(SECONDS);
        let q = p.clone();
        let scrub = spawn(async move { q.scrub(0).await });
        while p.counters().damaged == 0 {
            sleep(MILLIS).await;
        }
        // Its write is on the way, and takes its time.
        sleep(MILLIS).await;
        scrub.cancel();
        ill.stall(0);
        // Until its place has another block.
        let v = p.volume(1).unwrap();
        let mut round = 2;
        'again: loop {
            write(&p, 0, MIB, round).await;
            p.checkpoint().await.unwrap();
            for block in 0..MIB / BLOCK {
                if v.locate(block * BLOCK).await.unwrap().contains(&(device, at)) {
                    break 'again;
                }
            }
            round = round % 250 + 1;
        }
        sleep(3 * SECONDS).await;
        let before = p.counters().damaged;
        let report = p.scrub(0).await.unwrap();
        assert_eq!((report.damaged, report.lost, before), (0, 0, 1));
        p.close().await.unwrap();
    });
    let disks = disks(&b.n);
    let report = b.run(async move { check(disks, Options::default()).await }).unwrap();
    assert_eq!(report.findings, []);
}

/// The same of a pool that is closed meanwhile: its devices may go to somebody else at once.
#[test]
fn a_closed_pool_has_no_mend_under_way() {
    let b = Bench::new(2);
    let (p, media) = (b.pool.clone(), b.media.clone());
    b.run(async move {
        let places = p.volume(1).unwrap().locate(0).await.unwrap();
        let (device, at) = places[0];
        let ill = media[usize::from(device)].clone();
        ill.rot(at, 4096, 1);
        ill.stall(SECONDS);
        let q = p.clone();
        let scrub = spawn(async move { q.scrub(0).await });
        while p.counters().damaged == 0 {
            sleep(MILLIS).await;
        }
        sleep(MILLIS).await;
        scrub.cancel();
        ill.stall(0);
        p.close().await.unwrap();
        ill.poke(at, &[0x55; 4096]);
        sleep(3 * SECONDS).await;
        let mut now = [0; 4096];
        ill.peek(at, &mut now);
        assert!(now == [0x55; 4096], "a write came after the end");
    });
}

/// A scrub that keeps to a rate holds checkpoints up for a block at a time, not for a list.
#[test]
fn a_slow_scrub_of_a_dead_list_lets_checkpoints_go_on() {
    let b = Bench::new(3);
    let p = b.pool.clone();
    b.run(async move {
        let s = p.snapshot(&[(1, "s")], 0).await.unwrap()[0];
        // Each round puts a page on the volume's list.
        for n in 0..40 {
            write(&p, n * BLOCK, BLOCK, 2).await;
            p.checkpoint().await.unwrap();
        }
        let watch = Rc::new(ScrubWatch::default());
        let (q, seen) = (p.clone(), watch.clone());
        let over = Rc::new(Cell::new(false));
        let ended = over.clone();
        let scrub = spawn(async move {
            let report = q.scrub_watched(100, seen).await;
            ended.set(true);
            report
        });
        let far = Rc::new(RefCell::new(Vec::new()));
        while !over.get() {
            let from = watch.blocks();
            p.checkpoint().await.unwrap();
            far.borrow_mut().push(watch.blocks() - from);
            sleep(MILLIS).await;
        }
        let report = scrub.await.unwrap().unwrap();
        assert!(report.blocks > 256 + 40, "{report:?}");
        assert_eq!(report.damaged, 0);
        assert!(far.borrow().iter().all(|n| *n <= 2), "{:?}", far.borrow().iter().max());
        // A list that is given back under the scrub ends it there.
        let q = p.clone();
        let scrub = spawn(async move { q.scrub(100).await });
        sleep(3 * SECONDS).await;
        p.delete(s).await.unwrap();
        assert_eq!(scrub.await.unwrap().unwrap().damaged, 0);
        p.close().await.unwrap();
    });
}

/// A block is found to be lost just when its volume becomes what it was before: what it was is not lost.
fn lost_beside_a_revert() -> (Result<u8, IoError>, Result<u8, IoError>) {
    const AT: u64 = 2 * BLOCK;
    let b = Bench::new(5);
    let (p, media) = (b.pool.clone(), b.media.clone());
    b.run(async move {
        p.create_volume("other", 64 * MIB, 4096).await.unwrap();
        let (v, other) = (p.volume(1).unwrap(), p.volume(2).unwrap());
        let first = async |p: &Pool| Ok(read(&*p.volume(1).unwrap(), AT, 4096).await?[0]);
        let s = p.snapshot(&[(1, "v@s")], 0).await.unwrap()[0];
        p.checkpoint().await.unwrap();
        write(&p, AT, BLOCK, 2).await;
        p.checkpoint().await.unwrap();
        for (d, at) in v.locate(AT).await.unwrap() {
            media[usize::from(d)].rot(at, 4096, 3);
        }
        assert_eq!(first(&p).await, Err(IoError::Medium));
        sleep(6 * SECONDS).await;
        // A write to another volume takes its time, and the revert waits for it.
        media.iter().for_each(|m| m.stall(50 * MILLIS));
        let slow = spawn(async move { other.write(0, filled(4096, 9), false).await });
        sleep(MILLIS).await;
        media.iter().for_each(|m| m.stall(0));
        let q = p.clone();
        let revert = spawn(async move { q.revert(1, s).await });
        sleep(MILLIS).await;
        let q = p.clone();
        let look = spawn(async move { first(&q).await });
        slow.await.unwrap().unwrap();
        revert.await.unwrap().unwrap();
        (look.await.unwrap(), first(&p).await)
    })
}

#[test]
fn what_was_lost_is_there_again_after_a_revert() {
    assert_eq!(lost_beside_a_revert(), (Ok(1), Ok(1)));
}

/// A part of a block is written just when its volume becomes what it was before. The first byte of the block, of the part, and of
/// what is behind it.
fn part_beside_a_revert() -> [u8; 3] {
    const AT: u64 = 2 * BLOCK;
    let b = Bench::new(6);
    let (p, media) = (b.pool.clone(), b.media.clone());
    b.run(async move {
        let id = p.create_volume("parts", 64 * MIB, 512).await.unwrap();
        let (v, other) = (p.volume(id).unwrap(), p.volume(1).unwrap());
        v.write(AT, filled(4096, 1), false).await.unwrap();
        let s = p.snapshot(&[(id, "parts@s")], 0).await.unwrap()[0];
        v.write(AT, filled(4096, 2), false).await.unwrap();
        p.checkpoint().await.unwrap();
        // A write to another volume takes its time, and the revert waits for it.
        media.iter().for_each(|m| m.stall(50 * MILLIS));
        let slow = spawn(async move { other.write(0, filled(4096, 9), false).await });
        sleep(MILLIS).await;
        media.iter().for_each(|m| m.stall(0));
        let q = p.clone();
        let revert = spawn(async move { q.revert(id, s).await });
        sleep(MILLIS).await;
        let w = v.clone();
        let part = spawn(async move { w.write(AT + 512, filled(512, 3), false).await });
        slow.await.unwrap().unwrap();
        revert.await.unwrap().unwrap();
        part.await.unwrap().unwrap();
        let found = read(&*v, AT, 4096).await.unwrap();
        [found[0], found[512], found[1024]]
    })
}

#[test]
fn a_part_of_a_block_is_written_to_what_the_volume_is() {
    assert_eq!(part_beside_a_revert(), [1, 3, 1]);
}

#[cfg(feature = "planted")]
#[test]
fn a_part_that_brings_the_rest_of_another_block_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::PartOfAnother));
    let found = part_beside_a_revert();
    plant(None);
    assert_eq!(found, [2, 3, 2]);
}

#[cfg(feature = "planted")]
#[test]
fn a_loss_put_down_to_another_block_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::PoisonForAnother));
    let (_, after) = lost_beside_a_revert();
    plant(None);
    assert_eq!(after, Err(IoError::Medium));
}

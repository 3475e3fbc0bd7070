//! A pool without room: what was acknowledged stays, and a deletion gives room again.

use crate::bench::{B, Bench, LIMIT, spec, write};
use std::rc::Rc;
use weir_base::{IoError, SECONDS};
use weir_block::Volume;
use weir_disk::Disk;
use weir_reactor::{sleep, spawn};
use weir_sim::{DiskConfig, SimMedium, World};
use weir_store::format::tree::LEAF;
use weir_store::{Options, Pool, create};

/// Scattered writes, all at once, fill a pool; then a volume is deleted. Why nothing can be written then; all devices are well.
fn filled_side_by_side() -> Result<(), IoError> {
    let b = Bench::new(1, 0);
    let disks = b.all();
    b.run(async move {
        create(&disks, &spec(1)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 1 << 40, 4096).await.unwrap();
        p.create_volume("w", 1 << 40, 4096).await.unwrap();
        p.settled().await.unwrap();
        let mut at = 0;
        while p.status().room > 80 * B {
            write(&p, 1, at, B, 1).await.unwrap();
            at += B;
            if at % (16 * B) == 0 {
                p.checkpoint().await.unwrap();
            }
        }
        p.checkpoint().await.unwrap();
        sleep(SECONDS).await;
        let one = |k| {
            let p = p.clone();
            spawn(async move { write(&p, 2, k * LEAF as u64 * B, B, 2).await })
        };
        let all: Vec<_> = (0..150).map(one).collect();
        let mut done = 0;
        for w in all {
            done += u32::from(w.await.unwrap().is_ok());
        }
        assert!(done > 0, "there was room");
        // It may fail when there is a bug.
        let _ = (p.checkpoint().await, p.delete(1).await);
        sleep(600 * SECONDS).await;
        if p.status().suspended.is_some() {
            let _ = (p.resume().await, p.delete(1).await);
            sleep(600 * SECONDS).await;
        }
        write(&p, 2, 0, B, 3).await
    })
}

#[test]
fn writes_side_by_side_leave_room_for_a_deletion() {
    assert_eq!(filled_side_by_side(), Ok(()));
}

#[cfg(feature = "planted")]
#[test]
fn room_that_is_promised_twice_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::ComingNotCounted));
    let ended = filled_side_by_side();
    plant(None);
    assert!(ended.is_err());
}

/// A pool on one device of so many blocks.
fn single<T: 'static, F: Future<Output = T> + 'static>(
    blocks: u64,
    f: impl FnOnce(Pool) -> F + 'static,
) -> T {
    let w = World::new(5);
    let n = w.node("store");
    n.attach(&SimMedium::new("d", blocks * B, DiskConfig::default(), 1));
    let disk = n.disk("d") as Rc<dyn Disk>;
    let spec = weir_store::PoolSpec { slab_shift: 10, ..spec(1) };
    let run = async move {
        create(std::slice::from_ref(&disk), &spec).await.unwrap();
        let p = Pool::open(vec![disk], Options::default()).await.unwrap();
        p.create_volume("v", 1 << 40, 4096).await.unwrap();
        p.create_volume("w", 1 << 40, 4096).await.unwrap();
        p.settled().await.unwrap();
        f(p).await
    };
    w.run(&n, LIMIT, run).expect("it ends")
}

/// A volume with a snapshot fills a pool. Then parts of it are discarded, each with a checkpoint, and then all. How the pool
/// stands then; it has no other trouble.
fn discarded(left: u64) -> Option<IoError> {
    single(32768, move |p| async move {
        let mut at = 0;
        while write(&p, 1, at, 64 * B, 1).await.is_ok() {
            at += 64 * B;
        }
        p.snapshot(&[(1, "s")], 0).await.unwrap();
        let v = p.volume(1).unwrap();
        let mut k = 0;
        while p.status().free > left * B && k < at {
            if v.write_zeroes(k, B, true).await.is_err() {
                break;
            }
            k += 2 * B;
            if p.checkpoint().await.is_err() {
                break;
            }
        }
        let _ = v.write_zeroes(0, at, true).await;
        let _ = p.checkpoint().await;
        sleep(100 * SECONDS).await;
        if p.status().suspended.is_some() {
            let _ = p.resume().await;
            sleep(100 * SECONDS).await;
        }
        p.status().suspended
    })
}

#[test]
fn a_discard_of_what_a_snapshot_has_leaves_room_for_its_lists() {
    let all: Vec<_> = [40, 60, 80, 100, 150].into_iter().map(discarded).collect();
    assert_eq!(all, vec![None; 5]);
}

#[cfg(feature = "planted")]
#[test]
fn discards_that_take_all_that_is_kept_free_are_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::DiscardsTakeAll));
    let how = discarded(40);
    plant(None);
    assert_eq!(how, Some(IoError::NoSpace));
}

/// A pool is full, and most of it is a snapshot's. Parts of the volume are discarded, all at once, while a checkpoint or a
/// snapshot holds them back. How the pool stands then; it has no other trouble.
fn discarded_at_once(seed: u64) -> Option<IoError> {
    let b = Bench::new(1, seed);
    let disks = b.all();
    b.run(async move {
        create(&disks, &spec(1)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 1 << 40, 4096).await.unwrap();
        p.settled().await.unwrap();
        let (each, mut k) = (LEAF as u64 * B, 0);
        while write(&p, 1, k * each, 2 * B, 1).await.is_ok() {
            k += 1;
            if k % 8 == 0 {
                p.checkpoint().await.unwrap();
            }
        }
        p.snapshot(&[(1, "s")], 0).await.unwrap();
        p.checkpoint().await.unwrap();
        sleep(SECONDS).await;
        let q = p.clone();
        let held = spawn(async move { q.snapshot(&[(1, "t")], 0).await });
        weir_reactor::run_async().await;
        let one = |k| {
            let p = p.clone();
            spawn(async move { p.volume(1).unwrap().write_zeroes(k * each, B, true).await })
        };
        let all: Vec<_> = (0..k).map(one).collect();
        let mut done = 0;
        for d in all {
            done += u32::from(d.await.unwrap().is_ok());
        }
        assert!(done > 0);
        let _ = held.await;
        let _ = p.checkpoint().await;
        sleep(100 * SECONDS).await;
        if p.status().suspended.is_some() {
            let _ = p.resume().await;
            sleep(100 * SECONDS).await;
        }
        p.status().suspended
    })
}

#[test]
fn discards_that_were_held_back_leave_room_all_the_same() {
    let all: Vec<_> = (0..4).map(discarded_at_once).collect();
    assert_eq!(all, vec![None; 4]);
}

#[cfg(feature = "planted")]
#[test]
fn discards_that_do_not_look_again_are_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::HeldBackUncounted));
    let caught = (0..40).any(|seed| discarded_at_once(seed) == Some(IoError::NoSpace));
    plant(None);
    assert!(caught);
}

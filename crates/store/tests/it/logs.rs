//! The log's second copy: when a device that has it fails, another gets it, whatever is under way.

use crate::bench::{Bench, MIB, newest, spec, write};
use weir_base::{MICROS, SECONDS};
use weir_reactor::{sleep, spawn};
use weir_store::{Options, Pool, create};

/// A device that has the log fails `t` after a checkpoint has begun. The devices that have it a while later.
fn after_a_failure(t: u64) -> [Option<u16>; 2] {
    let b = Bench::new(4, t);
    let (disks, media) = (b.all(), b.media.clone());
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let o = Options { resync: false, ..Options::default() };
        let p = Pool::open(disks, o).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, MIB, 1).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        write(&p, 1, 0, MIB, 2).await.unwrap();
        sleep(SECONDS).await;
        let q = p.clone();
        let made = spawn(async move { q.checkpoint().await });
        sleep(t * 10 * MICROS).await;
        media[0].set_offline(true);
        made.await.unwrap().unwrap();
        // Somebody has to notice.
        for k in 0..8 {
            write(&p, 1, 2 * MIB + k * 65536, 65536, 3).await.unwrap();
        }
        sleep(100 * SECONDS).await;
        newest(&media[2]).unwrap().log_set
    })
}

/// Where that leaves the log with one copy.
fn single() -> Vec<u64> {
    let one = |t: &u64| after_a_failure(*t).iter().flatten().filter(|n| **n != 0).count() < 2;
    (0..MOMENTS).filter(one).collect()
}

const MOMENTS: u64 = 100;

#[test]
fn a_log_that_loses_a_copy_while_a_checkpoint_is_made_gets_another() {
    assert_eq!(single(), Vec::<u64>::new());
}

/// A device that has the log fails, and `t` later the one that is to have it from then on. The devices that have it a while
/// later; the pool has been idle.
fn after_two_failures(t: u64) -> [Option<u16>; 2] {
    let b = Bench::new(4, t);
    let (disks, media) = (b.all(), b.media.clone());
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let o = Options { resync: false, ..Options::default() };
        let p = Pool::open(disks, o).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, MIB, 1).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        write(&p, 1, 0, MIB, 2).await.unwrap();
        sleep(SECONDS).await;
        assert_eq!(newest(&media[1]).unwrap().log_set, [Some(0), Some(1)]);
        media[0].set_offline(true);
        write(&p, 1, 2 * MIB, 65536, 3).await.unwrap();
        sleep(t * 10 * MICROS).await;
        media[2].set_offline(true);
        for k in 0..8 {
            write(&p, 1, 2 * MIB + k * 65536, 65536, 3).await.unwrap();
        }
        sleep(100 * SECONDS).await;
        assert_eq!(p.status().suspended, None);
        newest(&media[1]).unwrap().log_set
    })
}

/// Where that leaves the log with one copy though there are two devices for it.
fn single_of_two() -> Vec<(u64, [Option<u16>; 2])> {
    let all = (0..MOMENTS).map(|t| (t, after_two_failures(t)));
    all.filter(|(_, set)| *set != [Some(1), Some(3)]).collect()
}

#[test]
fn a_log_that_loses_its_new_copy_before_it_has_it_gets_another() {
    assert_eq!(single_of_two(), []);
}

#[cfg(feature = "planted")]
#[test]
fn a_checkpoint_under_way_that_will_do_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::LogOfThatCheckpoint));
    let single = single();
    plant(None);
    assert!(!single.is_empty());
}

//! A pool that is closed: nothing that was begun changes a device afterwards.

use crate::bench::{B, Bench, MIB, first, spec, write};
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{IoError, MICROS, SECONDS};
use weir_disk::{Disk, DiskOp};
use weir_reactor::{Token, patience, sleep, spawn};
use weir_sim::Next;
use weir_store::{Options, Pool, create};

/// A disk of which reads do not end while somebody says so.
struct Mute {
    disk: Rc<dyn Disk>,
    mute: Cell<bool>,
}

impl Disk for Mute {
    crate::wrapped::is_like!(disk);
    fn submit(&self, op: DiskOp, token: Token) {
        if !(self.mute.get() && matches!(op, DiskOp::Read { .. })) {
            self.disk.submit(op, token);
        }
    }
}

/// The first device reads nothing any more.
const MUTE: u64 = 0;
/// A copy of each of some blocks is wrong.
const WRONG: u64 = 1;
/// Somebody writes, having begun before and afterwards.
const WRITTEN: u64 = 2;

/// The pool was suspended, and what failed then is read.
const DECIDED: u64 = 3;

/// A pool is closed while something is under way, and its volume is used afterwards. The blocks that changed after that.
fn changed_after(what: u64) -> Vec<String> {
    let b = Bench::new(2, 0);
    let media = b.media.clone();
    let mute = |d| Rc::new(Mute { disk: d, mute: Cell::default() });
    let all = [mute(b.disk(0)), mute(b.disk(1))];
    b.run(async move {
        let disks: Vec<Rc<dyn Disk>> = vec![all[0].clone(), all[1].clone()];
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, MIB, 1).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        let v = p.volume(1).unwrap();
        all[0].mute.set(what == MUTE);
        if what == MUTE {
            for k in 0..4 {
                let q = p.clone();
                spawn(async move { first(&q, 1, k * 65536).await });
            }
            sleep(SECONDS).await;
        }
        let begun = (what == WRITTEN).then(|| {
            let q = p.clone();
            spawn(async move { write(&q, 1, 0, 16 * B, 2).await })
        });
        if what == DECIDED {
            media.iter().for_each(|m| m.next_is(Next::FlushError));
            assert!(write(&p, 1, 0, B, 2).await.is_err());
        }
        assert_eq!(p.close().await.is_err(), what == DECIDED);
        all[0].mute.set(false);
        if what == WRONG {
            for k in 0..16 {
                let (n, at) = v.locate(k * B).await.unwrap()[k as usize / 8];
                media[usize::from(n)].poke(at, &[9; B as usize]);
            }
        }
        // They may go to somebody else at once.
        let image = |k: usize| {
            let mut bytes = vec![0; 8 << 20];
            media[k].peek(0, &mut bytes);
            bytes
        };
        let before = [image(0), image(1)];
        if what == WRONG {
            for k in 0..16 {
                assert_eq!(first(&p, 1, k * B).await, Ok(1), "it can still be read");
            }
        }
        if what == DECIDED {
            let seen = first(&p, 1, 0).await;
            assert!(matches!(seen, Ok(1) | Err(IoError::Offline)), "{seen:?}");
        }
        if what == WRITTEN {
            assert_eq!(begun.unwrap().await, Some(Ok(())));
            assert!(write(&p, 1, 0, B, 3).await.is_err());
            assert!(p.checkpoint().await.is_err());
        }
        sleep(100 * SECONDS).await;
        let mut changed = Vec::new();
        for (k, was) in before.iter().enumerate() {
            let now = image(k);
            let differs = |i: &usize| now[*i..i + 4096] != was[*i..i + 4096];
            let at = (0..now.len()).step_by(4096).filter(differs);
            changed.extend(at.map(|i| format!("device {k}, block {}", i / 4096)));
        }
        changed
    })
}

#[test]
fn a_read_that_fails_after_the_pool_was_closed_changes_no_device() {
    assert_eq!(changed_after(MUTE), Vec::<String>::new());
}

#[test]
fn a_damage_that_is_found_after_the_pool_was_closed_is_not_mended() {
    assert_eq!(changed_after(WRONG), Vec::<String>::new());
}

#[test]
fn a_write_that_was_begun_ends_well_and_later_ones_are_refused() {
    assert_eq!(changed_after(WRITTEN), Vec::<String>::new());
}

#[test]
fn a_pool_that_was_closed_decides_nothing_any_more() {
    assert_eq!(changed_after(DECIDED), Vec::<String>::new());
}

#[cfg(feature = "planted")]
#[test]
fn a_decision_after_the_close_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::DecidedAfterClose));
    let changed = changed_after(DECIDED);
    plant(None);
    assert!(!changed.is_empty());
}

/// How many of these pools were closed in time: a scrub is under way, and somewhere else in each.
fn closed_beside_scrub() -> usize {
    let closed = |moment: u64| {
        let b = Bench::new(2, moment);
        let disks = b.all();
        b.run(async move {
            create(&disks, &spec(2)).await.unwrap();
            let p = Pool::open(disks, Options::default()).await.unwrap();
            p.create_volume("v", 64 * MIB, 4096).await.unwrap();
            write(&p, 1, 0, B, 1).await.unwrap();
            let q = p.clone();
            let scrub = spawn(async move { q.scrub(0).await });
            sleep(moment * 50 * MICROS).await;
            let ended = patience(100 * SECONDS, p.close()).await;
            if let Ok(result) = &ended {
                assert!(result.is_ok(), "{result:?}");
                // It ends as well, well or not.
                assert!(patience(100 * SECONDS, scrub).await.is_ok());
            }
            ended.is_ok()
        })
    };
    (0..MOMENTS).filter(|moment| closed(*moment)).count()
}

const MOMENTS: u64 = 200;

#[test]
fn a_pool_is_closed_wherever_a_scrub_is() {
    assert_eq!(closed_beside_scrub(), MOMENTS as usize);
}

/// Somebody has a pool go on that is well, while a silent disk is added to it. Then a device dies, and a spare is to take its
/// place; then all fail. What does not come to an end of what is asked for.
fn resumed_too_early() -> Vec<&'static str> {
    let b = Bench::new(5, 0);
    let (disks, spare, media) = (b.disks(&[0, 1, 2]), b.disk(3), b.media.clone());
    let silent = Rc::new(Mute { disk: b.disk(4), mute: Cell::new(true) });
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let o = Options { spare_after: Some(SECONDS), ..Options::default() };
        let p = Pool::open(disks, o).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, MIB, 1).await.unwrap();
        p.settled().await.unwrap();
        p.add_spare(spare).await.unwrap();
        p.settled().await.unwrap();
        let q = p.clone();
        let add = spawn(async move { q.add(silent).await });
        sleep(SECONDS).await;
        let q = p.clone();
        let early = spawn(async move { q.resume().await });
        sleep(SECONDS).await;
        media[2].set_offline(true);
        for k in 0..16 {
            write(&p, 1, k * 65536, 65536, 2).await.unwrap();
        }
        sleep(5 * SECONDS).await;
        media.iter().for_each(|m| m.set_offline(true));
        assert!(write(&p, 1, 0, B, 3).await.is_err());
        media.iter().for_each(|m| m.set_offline(false));
        let mut never = Vec::new();
        if patience(1000 * SECONDS, add).await.is_err() {
            never.push("the disk is added");
        }
        if patience(1000 * SECONDS, early).await.is_err() {
            never.push("it goes on, asked for early");
        }
        if patience(1000 * SECONDS, p.resume()).await.is_err() {
            never.push("it goes on");
        }
        if patience(1000 * SECONDS, p.close()).await.is_err() {
            never.push("it is closed");
        }
        never
    })
}

#[test]
fn a_pool_goes_on_though_that_was_asked_for_when_it_was_well() {
    assert_eq!(resumed_too_early(), Vec::<&str>::new());
}

/// Whoever closes a pool goes away so long after he began, as a device is slow. Whether the pool is served then without anybody
/// who looks after its devices: it is written, and no spare takes the place of a device that fails.
fn half_closed(moment: u64) -> bool {
    let b = Bench::new(3, moment);
    let (disks, spare, media) = (b.disks(&[0, 1]), b.disk(2), b.media.clone());
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let o = Options { spare_after: Some(SECONDS), resync: false, ..Options::default() };
        let p = Pool::open(disks, o).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, MIB, 1).await.unwrap();
        p.add_spare(spare).await.unwrap();
        p.settled().await.unwrap();
        write(&p, 1, 0, MIB, 2).await.unwrap();
        let _ = patience(moment * 100 * MICROS, p.close()).await;
        sleep(SECONDS).await;
        media[0].set_offline(true);
        if write(&p, 1, 0, B, 3).await.is_err() {
            return false;
        }
        sleep(1000 * SECONDS).await;
        !p.status().whole
    })
}

#[test]
fn a_pool_is_closed_though_nobody_waits_for_that() {
    let half: Vec<u64> = (1..40).filter(|moment| half_closed(*moment)).collect();
    assert_eq!(half, Vec::<u64>::new());
}

#[cfg(feature = "planted")]
#[test]
fn who_waits_to_have_a_pool_go_on_that_is_well_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::ResumedTooEarly));
    let never = resumed_too_early();
    plant(None);
    assert!(!never.is_empty());
}

#[cfg(feature = "planted")]
#[test]
fn work_that_waits_for_whoever_waits_for_it_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::TurnInTheEnd));
    let closed = closed_beside_scrub();
    plant(None);
    assert!(closed < MOMENTS as usize);
}

#[cfg(feature = "planted")]
#[test]
fn a_pool_that_counts_as_closed_on_the_way_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::ClosedOnTheWay));
    let all = [MUTE, WRONG].map(changed_after);
    plant(None);
    assert!(all.iter().all(|changed| !changed.is_empty()), "{all:?}");
}

#[cfg(feature = "planted")]
#[test]
fn a_pool_that_is_half_closed_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::HalfClosed));
    let half = half_closed(10);
    plant(None);
    assert!(half);
}

//! Removals that are taken back: by a start, by whoever attaches the device, or by who stops them.

use crate::bench::{B, Bench, MIB, first, spec, write};
use crate::lacking::{BLOCK, BLOCKS, Lacks, is_first_leaf, left, pages_of, wait};
use crate::leaving::{Deaf, IllDisk, deaf_by, ill};
use std::rc::Rc;
use weir_base::{IoError, MILLIS, SECONDS};
use weir_reactor::{sleep, spawn_task};
use weir_store::{Options, Pool, create};

/// What becomes of the removal of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Undone {
    /// The device is attached again.
    Attached,
    /// Somebody stops it.
    Cancelled,
}

/// A removal is undone in the moment in which all has been proved that is on other devices, and a checkpoint is under way; `early`:
/// while that is proved still. The device can read what it could not, which was counted as lost by then. What is read of that.
fn undone(how: Undone, early: bool) -> Result<u8, IoError> {
    let (b, p, ill, beside) = deaf_by(Deaf::Fails, Lacks::Wrong, 0);
    let (q, disk, m) = (p.clone(), b.disk(0), b.media[0].clone());
    let (mine, by) = (ill.clone(), ill.clone());
    b.run(async move {
        let before = q.counters().lost;
        let lost = async |n: u64| {
            while q.counters().lost < before + n {
                sleep(20 * MILLIS).await;
            }
        };
        q.set_fill_rate(500 * B);
        q.remove(0).await.unwrap();
        // Copied, but for what it cannot read.
        while q.status().work.is_none_or(|w| w.done * 2 <= w.total) {
            sleep(20 * MILLIS).await;
        }
        sleep(2 * SECONDS).await;
        let r = q.clone();
        if !early {
            beside.takes.set(15 * SECONDS);
            spawn_task(async move { drop(r.checkpoint().await) });
        }
        lost(1).await;
        if !early {
            sleep(3 * SECONDS).await;
        }
        mine.deaf.borrow_mut().clear();
        match how {
            Undone::Attached => {
                m.set_offline(true);
                m.set_offline(false);
                let disk = Rc::new(IllDisk(disk, by));
                q.attach(disk).await.map(drop).unwrap();
            }
            Undone::Cancelled => q.cancel(0).await.unwrap(),
        }
        beside.takes.set(0);
        q.set_fill_rate(0);
    });
    wait(&b, 600);
    let q = p.clone();
    b.run(async move { first(&q, 1, BLOCK * B).await })
}

/// A removal is taken back in the moment in which all has been proved that is on other devices. The removed device was silent. The
/// other one says that it cannot read a piece of the map, and goes on saying so. The blocks that cannot be read from the new device
/// and the old one.
fn unled(how: Undone) -> Vec<u64> {
    let b = Bench::new(3, 7);
    let (disks, beside) = (b.disks(&[0, 1]), ill());
    let new = Rc::new(IllDisk(b.disk(2), beside.clone()));
    let (m, other, disk) = (b.media[0].clone(), b.media[1].clone(), b.disk(0));
    let p = b.run(async move {
        let again = disks.clone();
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, BLOCKS * B, 1).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        p.close().await.unwrap();
        pages_of(&other, &is_first_leaf).into_iter().for_each(|at| other.fail_reads(at, B));
        let p = Pool::open(again, Options::default()).await.unwrap();
        m.set_offline(true);
        write(&p, 1, 48 * MIB, B, 2).await.unwrap();
        p.set_fill_rate(50 * B);
        p.replace(0, new).await.unwrap();
        p.remove(0).await.unwrap();
        // The piece has been tried for the last time, and the rest is proved still.
        sleep(25 * SECONDS).await;
        beside.takes.set(15 * SECONDS);
        let r = p.clone();
        spawn_task(async move { drop(r.checkpoint().await) });
        sleep(100 * MILLIS).await;
        m.set_offline(false);
        match how {
            Undone::Attached => p.attach(disk).await.map(drop).unwrap(),
            Undone::Cancelled => {
                p.cancel(0).await.unwrap();
                p.resync().await.unwrap();
            }
        }
        beside.takes.set(0);
        p.set_fill_rate(0);
        p
    });
    wait(&b, 600);
    let q = p.clone();
    b.run(async move {
        let mut bad = Vec::new();
        for k in 0..BLOCKS {
            if first(&q, 1, k * B).await != Ok(1) {
                bad.push(k);
            }
        }
        bad
    })
}

/// Slabs of device 0, which is in service, are moved with those of device 4, which is removed. A piece of the map is on that one, and
/// wrong on device 3. The removal is taken back so many seconds later, as a checkpoint is under way. How many copies are damaged in
/// the end.
fn beside_another(seconds: u64) -> u64 {
    let b = Bench::new(6, 7);
    let (disks, mut again, beside) = (b.disks(&[0, 1, 2, 3, 4]), b.disks(&[0, 1, 2, 3, 4]), ill());
    let (other, m, disk) = (b.media[3].clone(), b.media[4].clone(), b.disk(4));
    again[2] = Rc::new(IllDisk(again[2].clone(), beside.clone()));
    let p = b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, BLOCKS * B, 1).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        let places = p.volume(1).unwrap().locate(0).await.unwrap();
        assert_eq!(places.iter().map(|(d, _)| *d).collect::<Vec<_>>(), [0, 1]);
        p.close().await.unwrap();
        let leaf = pages_of(&other, &is_first_leaf);
        assert_eq!((leaf.len(), &leaf), (1, &pages_of(&m, &is_first_leaf)));
        let mut byte = [0];
        other.peek(leaf[0] + 100, &mut byte);
        other.poke(leaf[0] + 100, &[byte[0] ^ 1]);
        let p = Pool::open(again, Options::default()).await.unwrap();
        m.set_offline(true);
        write(&p, 1, 48 * MIB, B, 2).await.unwrap();
        p.set_fill_rate(50 * B);
        let q = p.clone();
        spawn_task(async move { q.drain(0).await.unwrap() });
        p.drain(4).await.unwrap();
        p.remove(4).await.unwrap();
        sleep(seconds * SECONDS).await;
        beside.takes.set(15 * SECONDS);
        let r = p.clone();
        spawn_task(async move { drop(r.checkpoint().await) });
        sleep(14 * SECONDS).await;
        m.set_offline(false);
        p.attach(disk).await.map(drop).unwrap();
        beside.takes.set(0);
        p.set_fill_rate(0);
        p
    });
    wait(&b, 600);
    b.run(async move { p.scrub(0).await.unwrap().damaged })
}

#[test]
fn moves_of_another_device_are_looked_at_again_when_a_removal_is_undone() {
    let all: Vec<u64> = (1..14).map(beside_another).collect();
    assert_eq!(all, [0; 13]);
}

#[test]
fn what_nobody_could_lead_to_is_looked_for_again_when_a_removal_is_undone() {
    for how in [Undone::Attached, Undone::Cancelled] {
        assert_eq!(unled(how), Vec::<u64>::new(), "{how:?}");
    }
}

#[test]
fn what_was_lost_with_a_removal_is_not_when_that_is_undone_before_it_is_done() {
    for how in [Undone::Attached, Undone::Cancelled] {
        for early in [true, false] {
            assert_eq!(undone(how, early), Ok(1), "{how:?} {early}");
        }
    }
}

/// A device that answers is removed, and the pool is closed before it has left. It is late at the next start. What is read of a
/// block that it has alone and could not read then, twice, and when it is there and can.
fn late_at_a_start() -> [Result<u8, IoError>; 3] {
    let (b, p, _, _) = deaf_by(Deaf::Fails, Lacks::Wrong, 0);
    b.run(async move {
        p.remove(0).await.unwrap();
        p.close().await.unwrap();
    });
    let disks = b.disks(&[1, 2]);
    let (p, mut found) = b.run(async move {
        let p = Pool::open(disks, Options::default()).await.unwrap();
        let mut found = [Ok(0); 3];
        for found in &mut found[..2] {
            *found = first(&p, 1, BLOCK * B).await;
            sleep(6 * SECONDS).await;
        }
        (p, found)
    });
    wait(&b, 600);
    let (q, disk) = (p.clone(), b.disk(0));
    let is_back = b.run(async move { q.attach(disk).await.is_ok() });
    wait(&b, 600);
    assert!(left(&p).is_none() || !is_back, "{:?}", p.status());
    found[2] = b.run(async move { first(&p, 1, BLOCK * B).await });
    found
}

#[test]
fn a_removed_device_that_is_late_at_a_start_is_not_lost() {
    let offline = Err(IoError::Offline);
    assert_eq!(late_at_a_start(), [offline, offline, Ok(1)]);
}

#[cfg(feature = "planted")]
#[test]
fn planted_bugs_are_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::ReturnUnseen));
    let all = [(Undone::Attached, true), (Undone::Attached, false), (Undone::Cancelled, false)];
    let found = all.map(|(how, early)| undone(how, early));
    plant(Some(Bug::LateStaysLost));
    let late = late_at_a_start();
    plant(Some(Bug::LetGoStands));
    let unled = unled(Undone::Attached);
    plant(Some(Bug::ReturnForItsOwn));
    let beside = beside_another(12);
    plant(None);
    assert!(beside > 0);
    assert!(!unled.is_empty());
    assert_eq!((found, late[2]), ([Err(IoError::Medium); 3], Err(IoError::Medium)));
}

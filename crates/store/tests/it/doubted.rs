//! What a device shows for a while when slabs move off it is not what it has.

use crate::bench::{B, Bench, MIB, first, spec, write};
use crate::lacking::{is_first_leaf, left, numbers, pages_of, wait};
use crate::leaving::{IllDisk, ill};
use std::collections::BTreeSet;
use std::rc::Rc;
use weir_base::{MILLIS, SECONDS};
use weir_disk::Disk;
use weir_reactor::sleep;
use weir_sim::SimMedium;
use weir_store::format::page::{Header, PageKind};
use weir_store::format::tree::LEAF;
use weir_store::{Options, Pool, create};

/// Pieces of the map, and blocks that are written in each.
const PIECES: u64 = 12;
const EACH: u64 = 8;
/// The first piece with which something is wrong.
const PIECE: u64 = 4;

/// What a device does not show as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Odd {
    /// One block of data.
    Block,
    /// All blocks of data that five pieces of the map lead to.
    Many,
    /// A piece of the map.
    Leaf,
    /// Five of them.
    Leaves,
}

/// How it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// It shows something else.
    Wrong,
    /// It says that it cannot read it.
    Bad,
}

fn at(piece: u64, block: u64) -> u64 {
    (piece * LEAF as u64 + block) * B
}

fn flip(m: &SimMedium, at: u64) {
    let mut byte = [0];
    m.peek(at, &mut byte);
    m.poke(at, &[byte[0] ^ 1]);
}

/// A pool with a copy of each block on device 0, or on devices 0 and 1.
fn made(copies: u8) -> (Bench, Pool) {
    made_of(3, copies)
}

/// The same; there are so many disks.
fn made_of(all: usize, copies: u8) -> (Bench, Pool) {
    let b = Bench::new(all, 7);
    let disks = b.disks(if copies == 2 { &[0, 1] } else { &[0] });
    let again = disks.clone();
    let p = b.run(async move {
        create(&disks, &spec(copies)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        for piece in 0..PIECES {
            write(&p, 1, at(piece, 0), EACH * B, 1).await.unwrap();
        }
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        // Nothing of the maps is in memory.
        p.close().await.unwrap();
        Pool::open(again, Options::default()).await.unwrap()
    });
    (b, p)
}

/// Where a device has what it does not show.
fn places(b: &Bench, p: &Pool, device: u16, odd: Odd) -> BTreeSet<u64> {
    let pieces = match odd {
        Odd::Block | Odd::Leaf => PIECE..PIECE + 1,
        Odd::Many | Odd::Leaves => PIECE..PIECE + 5,
    };
    if matches!(odd, Odd::Leaf | Odd::Leaves) {
        let is = |h: Header| h.kind == PageKind::Leaf && pieces.contains(&h.index);
        return pages_of(&b.media[usize::from(device)], &is).into_iter().collect();
    }
    let blocks = if odd == Odd::Block { 3..4 } else { 0..EACH };
    let p = p.clone();
    b.run(async move {
        let mut all = BTreeSet::new();
        for piece in pieces {
            for block in blocks.clone() {
                let places = p.volume(1).unwrap().locate(at(piece, block)).await.unwrap();
                all.extend(places.into_iter().filter(|(d, _)| *d == device).map(|(_, at)| at));
            }
        }
        all
    })
}

/// How many blocks cannot be read.
fn unread(b: &Bench, p: &Pool) -> usize {
    let p = p.clone();
    b.run(async move {
        let mut bad = 0;
        for (piece, block) in (0..PIECES).flat_map(|k| (0..EACH).map(move |i| (k, i))) {
            bad += usize::from(first(&p, 1, at(piece, block)).await != Ok(1));
        }
        bad
    })
}

/// Device 0 is replaced, and for so many seconds none of the devices shows something as it is. Whether device 0 is there still
/// by then, whether it is ten minutes later, and how many blocks cannot be read in the end.
fn replaced(copies: u8, odd: Odd, how: How, seconds: u64) -> (bool, bool, usize) {
    let (b, p) = made(copies);
    let odd: Vec<_> = (0..copies).map(|d| places(&b, &p, d.into(), odd)).collect();
    let all = |change: &dyn Fn(&SimMedium, u64)| {
        for (m, places) in b.media.iter().zip(&odd) {
            places.iter().for_each(|at| change(m, *at));
        }
    };
    match how {
        How::Wrong => all(&flip),
        How::Bad => all(&|m, at| m.fail_reads(at, B)),
    }
    let (q, new) = (p.clone(), b.disk(2));
    b.run(async move {
        q.replace(0, new).await.unwrap();
        sleep(seconds * SECONDS).await;
    });
    let before = numbers(&p).contains(&0);
    match how {
        How::Wrong => all(&flip),
        How::Bad => b.media.iter().for_each(SimMedium::read_again),
    }
    wait(&b, 600);
    (before, numbers(&p).contains(&0), unread(&b, &p))
}

#[test]
fn what_a_device_does_not_show_for_a_moment_is_not_lost_when_it_is_replaced() {
    for copies in [1, 2] {
        for odd in [Odd::Block, Odd::Many, Odd::Leaf, Odd::Leaves] {
            // Pieces of the map are waited for before they are in doubt.
            let short = if matches!(odd, Odd::Leaf | Odd::Leaves) { 12 } else { 3 };
            for (how, seconds) in [(How::Wrong, short), (How::Bad, 20)] {
                let found = replaced(copies, odd, how, seconds);
                assert_eq!(found, (true, false, 0), "{copies} copies, {odd:?} {how:?}");
            }
        }
    }
}

#[test]
fn what_a_device_in_service_says_it_cannot_read_stays_there_until_it_can() {
    for odd in [Odd::Block, Odd::Many, Odd::Leaf, Odd::Leaves] {
        assert_eq!(replaced(1, odd, How::Bad, 3600), (true, false, 0), "{odd:?}");
    }
}

#[test]
fn what_all_devices_go_on_showing_wrong_holds_up_nothing() {
    let lost = [(Odd::Block, 1), (Odd::Many, 40), (Odd::Leaf, 8), (Odd::Leaves, 40)];
    for (odd, blocks) in lost {
        assert_eq!(replaced(1, odd, How::Wrong, 120), (false, false, blocks), "{odd:?}");
    }
}

/// Device 0 has failed a write, and is replaced. For three seconds it does not show a block as it is that the other one lacks.
/// `removed`: somebody removes it then. Whether it is there still, and how many blocks cannot be read in the end.
fn failed_and_replaced(removed: bool) -> (bool, usize) {
    let (b, p) = made(2);
    places(&b, &p, 1, Odd::Block).into_iter().for_each(|at| flip(&b.media[1], at));
    let odd = places(&b, &p, 0, Odd::Block).into_iter().next().unwrap();
    let (q, m, new) = (p.clone(), b.media[0].clone(), b.disk(2));
    b.run(async move {
        m.set_offline(true);
        write(&q, 1, 48 * MIB, B, 2).await.unwrap();
        m.set_offline(false);
        flip(&m, odd);
        q.replace(0, new).await.unwrap();
        if removed {
            q.remove(0).await.unwrap();
        }
        sleep(3 * SECONDS).await;
        flip(&m, odd);
    });
    wait(&b, 600);
    (numbers(&p).contains(&0), unread(&b, &p))
}

#[test]
fn what_a_failed_device_does_not_show_for_a_moment_is_not_lost_when_it_leaves() {
    for removed in [false, true] {
        assert_eq!(failed_and_replaced(removed), (false, 0), "removed: {removed}");
    }
}

/// Device 1 was away while all was written. While it is brought back, device 0 does not show something as it is for so many seconds.
/// Whether the pool is whole by then, whether it is ten minutes later, and how many blocks device 1 does not have; `scrubbed`: after a
/// scrub.
fn brought_back(odd: Odd, how: How, seconds: u64, scrubbed: bool) -> (bool, bool, usize) {
    let (b, p) = made(2);
    let q = p.clone();
    let m = b.media[1].clone();
    b.run(async move {
        m.set_offline(true);
        for piece in 0..PIECES {
            write(&q, 1, at(piece, 0), EACH * B, 1).await.unwrap();
        }
        q.checkpoint().await.unwrap();
    });
    let odd = places(&b, &p, 0, odd);
    let (old, disks) = (b.media[0].clone(), b.disks(&[0, 1]));
    b.media[1].set_offline(false);
    let m = b.media[0].clone();
    let (p, before) = b.run(async move {
        p.close().await.unwrap();
        match how {
            How::Wrong => odd.iter().for_each(|at| flip(&old, *at)),
            How::Bad => odd.iter().for_each(|at| old.fail_reads(*at, B)),
        }
        let p = Pool::open(disks, Options::default()).await.unwrap();
        sleep(seconds * SECONDS).await;
        let before = p.status().whole;
        match how {
            How::Wrong => odd.iter().for_each(|at| flip(&old, *at)),
            How::Bad => old.read_again(),
        }
        (p, before)
    });
    wait(&b, 600);
    let whole = p.status().whole;
    if scrubbed {
        let q = p.clone();
        b.run(async move { q.scrub(0).await.map(drop) }).unwrap();
    }
    m.set_offline(true);
    wait(&b, 1);
    (before, whole, unread(&b, &p))
}

#[test]
fn what_is_not_shown_for_a_moment_is_not_missed_by_a_device_that_is_brought_back() {
    for odd in [Odd::Block, Odd::Many, Odd::Leaf, Odd::Leaves] {
        for how in [How::Wrong, How::Bad] {
            // Blocks that are wrong are not waited for before they are in doubt.
            let is_wrong = how == How::Wrong && matches!(odd, Odd::Block | Odd::Many);
            let seconds = if is_wrong { 4 } else { 12 };
            let found = brought_back(odd, how, seconds, false);
            assert_eq!(found, (false, true, 0), "{odd:?} {how:?}");
        }
    }
}

#[test]
fn a_device_is_brought_back_though_the_other_one_does_not_show_something_for_long() {
    let missed = [(Odd::Block, 1), (Odd::Many, 40), (Odd::Leaf, 8), (Odd::Leaves, 40)];
    for (odd, blocks) in missed {
        for how in [How::Wrong, How::Bad] {
            for (scrubbed, blocks) in [(false, blocks), (true, 0)] {
                let found = brought_back(odd, how, 120, scrubbed);
                assert_eq!(found, (true, true, blocks), "{odd:?} {how:?} {scrubbed}");
            }
        }
    }
}

/// Device 1 has died, is replaced, and removed. For seven seconds device 0 does not show a block as it is. `leaves`: that one is
/// replaced as well. What devices are left, and how many blocks cannot be read without device 0.
fn beside_a_dead_one(leaves: bool) -> (Vec<u16>, usize) {
    let (b, p) = made_of(4, 2);
    let odd = places(&b, &p, 0, Odd::Block).into_iter().next().unwrap();
    let (q, m, old) = (p.clone(), b.media[1].clone(), b.media[0].clone());
    let new = b.disks(&[2, 3]);
    b.run(async move {
        m.set_offline(true);
        write(&q, 1, 48 * MIB, B, 2).await.unwrap();
        flip(&old, odd);
        q.set_fill_rate(B);
        if leaves {
            q.replace(0, new[1].clone()).await.unwrap();
        }
        q.replace(1, new[0].clone()).await.unwrap();
        q.remove(1).await.unwrap();
        q.set_fill_rate(0);
        sleep(7 * SECONDS).await;
        flip(&old, odd);
    });
    wait(&b, 600);
    b.media[0].set_offline(true);
    (numbers(&p), unread(&b, &p))
}

#[test]
fn what_is_not_shown_for_a_moment_is_not_lost_though_the_other_device_is_dead() {
    assert_eq!(beside_a_dead_one(false), (vec![0, 2], 0));
    assert_eq!(beside_a_dead_one(true), (vec![2, 3], 0));
}

/// A device that stays says that it cannot read pieces of the map: those that device 0 has, which is removed and does not answer,
/// are as many.
#[test]
fn a_removal_ends_though_a_device_that_stays_cannot_read_pieces_of_the_map() {
    let (b, p) = made(2);
    places(&b, &p, 1, Odd::Leaves).into_iter().for_each(|at| b.media[1].fail_reads(at, B));
    let (q, m, new) = (p.clone(), b.media[0].clone(), b.disk(2));
    b.run(async move {
        m.set_offline(true);
        write(&q, 1, 48 * MIB, B, 2).await.unwrap();
        q.replace(0, new).await.unwrap();
    });
    wait(&b, 600);
    assert_eq!(numbers(&p), [1, 2]);
    b.media[1].read_again();
    assert_eq!(unread(&b, &p), 0);
}

/// A device is added, and slabs move there so that the pool grows. `odd`: no device can read a block meanwhile. How many MiB the
/// pool has in the end, and how many blocks cannot be read then.
fn grown(odd: bool) -> (u64, usize) {
    let (b, p) = made(2);
    for device in [0, 1].into_iter().filter(|_| odd) {
        let m = &b.media[usize::from(device)];
        places(&b, &p, device, Odd::Block).into_iter().for_each(|at| m.fail_reads(at, B));
    }
    let (q, new) = (p.clone(), b.disk(2));
    b.run(async move { q.add(new).await.unwrap() });
    wait(&b, 600);
    b.media.iter().for_each(SimMedium::read_again);
    (p.status().total / MIB, unread(&b, &p))
}

#[test]
fn a_pool_grows_though_a_block_cannot_be_read_and_keeps_that() {
    let (all, _) = grown(false);
    let (most, unread) = grown(true);
    assert!(most + 1 >= all && unread == 0, "{most} of {all}, {unread}");
}

/// A device is replaced that is dead. The one that stays lacks a piece of the map. For ten minutes it also fails to read a block, of
/// another slab than what that leads to. How many slabs are left on the dead device before and after.
fn one_held() -> (Option<u32>, Option<u32>) {
    let (b, ill) = (Bench::new(3, 7), ill());
    let disks: Vec<Rc<dyn Disk>> = vec![b.disk(0), Rc::new(IllDisk(b.disk(1), ill.clone()))];
    let (m, other, new, mine) = (b.media[0].clone(), b.media[1].clone(), b.disk(2), ill.clone());
    let p = b.run(async move {
        let again = disks.clone();
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, 3 * MIB, 1).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        let places = p.volume(1).unwrap().locate(3 * MIB - B).await.unwrap();
        mine.deaf.borrow_mut().extend(places.iter().filter(|(d, _)| *d == 1).map(|(_, at)| at));
        p.close().await.unwrap();
        pages_of(&other, &is_first_leaf).into_iter().for_each(|at| flip(&other, at));
        let p = Pool::open(again, Options::default()).await.unwrap();
        m.set_offline(true);
        write(&p, 1, 48 * MIB, B, 2).await.unwrap();
        p.replace(0, new).await.unwrap();
        p
    });
    wait(&b, 600);
    let before = left(&p);
    ill.deaf.borrow_mut().clear();
    wait(&b, 3 * 3600);
    (before, left(&p))
}

#[test]
fn a_block_that_cannot_be_read_holds_no_slab_but_its_own() {
    assert_eq!(one_held(), (Some(1), None));
}

/// Device 1 is brought back, and device 0 says for so many milliseconds that it cannot read a block. Then it shows it wrong, as a
/// host reads it once. What is read in the end.
fn bad_and_wrong(millis: u64) -> Result<u8, String> {
    let (b, p) = made(2);
    let (q, m) = (p.clone(), b.media[1].clone());
    b.run(async move {
        m.set_offline(true);
        for piece in 0..PIECES {
            write(&q, 1, at(piece, 0), EACH * B, 1).await.unwrap();
        }
        q.checkpoint().await.unwrap();
    });
    let odd = places(&b, &p, 0, Odd::Block).pop_first().unwrap();
    let (old, disks) = (b.media[0].clone(), b.disks(&[0, 1]));
    b.media[1].set_offline(false);
    b.run(async move {
        p.close().await.unwrap();
        old.fail_reads(odd, B);
        let p = Pool::open(disks, Options::default()).await.unwrap();
        sleep(millis * MILLIS).await;
        old.read_again();
        flip(&old, odd);
        let read = first(&p, 1, at(PIECE, 3)).await;
        assert!(read.is_err(), "{read:?}");
        flip(&old, odd);
        sleep(120 * SECONDS).await;
        first(&p, 1, at(PIECE, 3)).await.map_err(|e| e.to_string())
    })
}

/// When the walk has looked is not known here.
fn lost_by_one_wrong_look() -> usize {
    (16..52).filter(|n| bad_and_wrong(n * 250) != Ok(1)).count()
}

#[test]
fn what_could_not_be_read_and_is_wrong_once_is_not_lost() {
    assert_eq!(lost_by_one_wrong_look(), 0);
}

#[cfg(feature = "planted")]
#[test]
fn planted_bugs_are_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::WrongOnceIsLost));
    let once = [replaced(1, Odd::Block, How::Wrong, 3), replaced(1, Odd::Leaf, How::Wrong, 12)];
    let failed = failed_and_replaced(true);
    plant(Some(Bug::BadIsLost));
    let bad = [replaced(1, Odd::Block, How::Bad, 20), replaced(1, Odd::Many, How::Bad, 20)];
    let leaf = replaced(1, Odd::Leaf, How::Bad, 20);
    plant(Some(Bug::BadIsWrong));
    let by_one = lost_by_one_wrong_look();
    plant(Some(Bug::UnreadHoldsAll));
    let held = one_held().0;
    plant(Some(Bug::ResyncIsHasty));
    let hasty =
        [(Odd::Block, How::Wrong, 4), (Odd::Block, How::Bad, 12), (Odd::Leaf, How::Bad, 12)];
    let hasty = hasty.map(|(odd, how, seconds)| brought_back(odd, how, seconds, false).2);
    plant(Some(Bug::BesideDeadIsLost));
    let beside = [beside_a_dead_one(false).1, beside_a_dead_one(true).1];
    plant(None);
    assert_eq!((beside, hasty), ([1, 1], [1, 1, 8]));
    assert!(by_one > 0, "{by_one}");
    assert!(held > Some(1), "{held:?}");
    assert!(once.iter().chain(&bad).all(|(.., unread)| *unread > 0), "{once:?}, {bad:?}");
    assert!(failed.1 > 0 && leaf.2 > 0, "{failed:?}, {leaf:?}");
}

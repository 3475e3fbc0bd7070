//! A device that is ill leaves: it is read as long as it answers, and its removal comes to its end.

use crate::bench::{B, Bench, MIB, first, spec, write};
use crate::lacking::{BLOCK, BLOCKS, Lacks, failed_ill_and_replaced, left, made_by, numbers};
use crate::lacking::{is_first_leaf, pages_of, wait, wrong_now};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use weir_base::{IoError, MILLIS, Nanos, SECONDS};
use weir_disk::{Disk, DiskOp, report};
use weir_reactor::{Token, complete, now, sleep, spawn_task, timeout};
use weir_store::format::label::SUPER_SLOTS;
use weir_store::{Options, Pool, create};

/// Another block of the same slab.
const OTHER: u64 = 101;
/// One that another piece of the map leads to.
const FAR: u64 = 500;
/// Blocks before the superblocks.
const FRONT: u64 = 2;

/// What becomes of a read of what cannot be read.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Deaf {
    #[default]
    Fails,
    /// It fails after seven seconds.
    Slow,
    /// The disk says that it is not there.
    Gone,
    /// It takes longer than anybody waits.
    Hangs,
}

/// How a disk is ill, by the bytes that its blocks begin at.
#[derive(Default)]
pub(crate) struct Ill {
    /// What cannot be read, though the disk answers.
    pub(crate) deaf: RefCell<BTreeSet<u64>>,
    /// Nothing can be read.
    all: Cell<bool>,
    how: Cell<Deaf>,
    /// The next time only.
    once: Cell<bool>,
    /// What cannot be read before a time.
    passing: Cell<(u64, Nanos)>,
    /// What cannot be read for a second, whenever it is asked for after a while; and since when.
    fickle: Cell<(u64, Nanos)>,
    /// Writes are kept.
    holds: Cell<bool>,
    held: RefCell<Vec<(DiskOp, Token)>>,
    /// How much longer the first copy of a superblock takes.
    pub(crate) takes: Cell<Nanos>,
}

impl Ill {
    fn is_unread(&self, all: &std::ops::Range<u64>) -> bool {
        let (block, until) = self.passing.get();
        let mut deaf = self.deaf.borrow_mut();
        let mut is = self.all.get() || deaf.range(all.clone()).next().is_some();
        if is && self.once.replace(false) {
            deaf.retain(|at| !all.contains(at));
        }
        is |= all.contains(&block) && now() < until;
        let (block, since) = self.fickle.get();
        if all.contains(&block) {
            let since = if now() > since + 3500 * MILLIS { now() } else { since };
            self.fickle.set((block, since));
            is |= now() < since + SECONDS;
        }
        is
    }
}

pub(crate) struct IllDisk(pub(crate) Rc<dyn Disk>, pub(crate) Rc<Ill>);

impl Disk for IllDisk {
    crate::wrapped::is_like!(0);
    fn submit(&self, op: DiskOp, token: Token) {
        let supers = FRONT * B..(FRONT + SUPER_SLOTS) * B;
        if let DiskOp::Read { offset, buf } = &op
            && self.1.is_unread(&(*offset..*offset + buf.len() as u64))
        {
            let (time, why) = match self.1.how.get() {
                Deaf::Fails => return complete(token, report(Err(IoError::Path))),
                Deaf::Gone => return complete(token, report(Err(IoError::Offline))),
                Deaf::Slow => (7 * SECONDS, IoError::Path),
                Deaf::Hangs => (25 * SECONDS, IoError::Path),
            };
            spawn_task(async move {
                sleep(time).await;
                complete(token, report(Err(why)));
            });
            return;
        }
        match &op {
            DiskOp::Write { .. } if self.1.holds.get() => {
                return self.1.held.borrow_mut().push((op, token));
            }
            DiskOp::Write { offset, .. } if supers.contains(offset) && self.1.takes.get() > 0 => {
                let (disk, time) = (self.0.clone(), self.1.takes.get());
                spawn_task(async move {
                    sleep(time).await;
                    disk.submit(op, token);
                });
                return;
            }
            _ => {}
        }
        self.0.submit(op, token);
    }
}

pub(crate) fn ill() -> Rc<Ill> {
    let ill = Ill::default();
    ill.passing.set((u64::MAX, 0));
    ill.fickle.set((u64::MAX, 0));
    Rc::new(ill)
}

/// Where a block is on a device.
async fn place(p: &Pool, block: u64, device: u16) -> u64 {
    let places = p.volume(1).unwrap().locate(block * B).await.unwrap();
    places.into_iter().find(|(d, _)| *d == device).unwrap().1
}

/// Device 0 is ill, has failed a write, is replaced and answers, and ten minutes pass. It cannot read the one block that the other one
/// lacks, and so many from there on; then it fails to read one far from there for a moment.
fn deaf(lacks: Lacks, more: u64) -> (Bench, Pool, Rc<Ill>) {
    let (b, p, ill, _) = deaf_by(Deaf::Fails, lacks, more);
    (b, p, ill)
}

/// The same, where it does so in some way. If it does not answer then, the other one lacks another block, which it could read. Also
/// how the device is ill that takes its place.
pub(crate) fn deaf_by(how: Deaf, lacks: Lacks, more: u64) -> (Bench, Pool, Rc<Ill>, Rc<Ill>) {
    let (ill, beside) = (ill(), self::ill());
    ill.how.set(how);
    let by = ill.clone();
    let (b, p) = made_by(lacks, |disk| Rc::new(IllDisk(disk, by)));
    let (q, m, mine) = (p.clone(), b.media[0].clone(), ill.clone());
    let new = Rc::new(IllDisk(b.disk(2), beside.clone()));
    let other = b.media[1].clone();
    b.run(async move {
        let leaves = if lacks == Lacks::Leaf { pages_of(&m, &is_first_leaf) } else { vec![] };
        mine.deaf.borrow_mut().extend(&leaves);
        // Who asks for a place has the map in memory.
        let far = (more > 0).then_some(FAR);
        for block in (BLOCK..BLOCK + more.max(1)).chain(far).filter(|_| leaves.is_empty()) {
            let at = place(&q, block, 0).await;
            if block > BLOCK {
                other.poke(place(&q, block, 1).await, &[0]);
            }
            match block == FAR {
                true => mine.fickle.set((at, 0)),
                false => drop(mine.deaf.borrow_mut().insert(at)),
            }
        }
        if matches!(how, Deaf::Gone | Deaf::Hangs) {
            other.poke(place(&q, OTHER, 1).await, &[0]);
        }
        m.set_offline(true);
        write(&q, 1, 48 * MIB, B, 2).await.unwrap();
        m.set_offline(false);
        q.replace(0, new).await.unwrap();
    });
    wait(&b, 600);
    assert!(left(&p).is_some_and(|n| n > 0));
    (b, p, ill, beside)
}

fn remove(b: &Bench, p: &Pool) {
    let q = p.clone();
    b.run(async move { q.remove(0).await }).unwrap();
}

#[test]
fn a_device_that_answers_leaves_when_somebody_gives_up_what_it_cannot_read() {
    let (b, p, ill) = deaf(Lacks::Wrong, 0);
    let (q, other, mine) = (p.clone(), b.media[1].clone(), ill.clone());
    b.run(async move {
        // The other one lacks this, too.
        other.poke(place(&q, OTHER, 1).await, &[0]);
        mine.passing.set((place(&q, OTHER, 0).await, now() + 2 * SECONDS));
    });
    remove(&b, &p);
    wait(&b, 600);
    assert!(numbers(&p) == [1, 2] && p.status().whole, "{:?}", p.status());
    assert_eq!(wrong_now(&b, &p), [(BLOCK, Err(IoError::Medium))]);
}

/// Bad sectors where one area of superblocks is: all of them to be read takes longer than anybody waits.
fn with_slow_superblocks() -> Vec<u64> {
    failed_ill_and_replaced(|m| m.fail_reads(FRONT * B, 8 * B))
}

#[test]
fn a_device_that_answers_is_read_though_its_superblocks_are_not() {
    assert_eq!(with_slow_superblocks(), Vec::<u64>::new());
}

/// The other device says itself that it cannot read a block; device 0, which cannot either, is removed. Which devices are left, what
/// is wrong, and what is when that one can be read again.
#[allow(clippy::type_complexity, reason = "as the tests compare it")]
fn removed_beside_a_bad_block()
-> (Vec<u16>, Vec<(u64, Result<u8, IoError>)>, Vec<(u64, Result<u8, IoError>)>) {
    let (b, p, _) = deaf(Lacks::Unread, 0);
    remove(&b, &p);
    wait(&b, 600);
    let there = numbers(&p);
    let wrong = wrong_now(&b, &p);
    // That is no proof, however often.
    for _ in 0..2 {
        wait(&b, 10);
        wrong_now(&b, &p);
    }
    b.media[1].read_again();
    (there, wrong, wrong_now(&b, &p))
}

#[test]
fn a_removal_ends_though_a_device_that_stays_has_a_bad_block() {
    let lost = vec![(BLOCK, Err(IoError::Medium))];
    assert_eq!(removed_beside_a_bad_block(), (vec![1, 2], lost, vec![]));
}

#[test]
fn a_removal_ends_though_a_piece_of_the_map_cannot_be_read() {
    let (b, p, _) = deaf(Lacks::Leaf, 0);
    let lost = |p: &Pool| p.damage().iter().map(|d| d.lost).sum::<u64>();
    assert_eq!((lost(&p), wrong_now(&b, &p).first()), (0, Some(&(0, Err(IoError::Path)))));
    remove(&b, &p);
    wait(&b, 600);
    assert_eq!((numbers(&p), lost(&p)), (vec![1, 2], 1));
}

/// A host reads the block before it is moved off the removed device, which fails to read it for `time` from then on, twice; and
/// once more. What it gets.
fn read_while_removed(time: Nanos) -> [Result<u8, IoError>; 3] {
    let ill = ill();
    let by = ill.clone();
    let (b, p) = made_by(Lacks::Wrong, |disk| Rc::new(IllDisk(disk, by)));
    let slow = self::ill();
    let new = Rc::new(IllDisk(b.disk(2), slow.clone()));
    let (q, m) = (p.clone(), b.media[0].clone());
    let found = b.run(async move {
        let at = place(&q, BLOCK, 0).await;
        ill.passing.set((at, Nanos::MAX));
        m.set_offline(true);
        write(&q, 1, 48 * MIB, B, 2).await.unwrap();
        m.set_offline(false);
        q.replace(0, new).await.unwrap();
        sleep(600 * SECONDS).await;
        assert_eq!(left(&q), Some(1));
        // The move begins with the next checkpoint.
        slow.takes.set(15 * SECONDS);
        q.remove(0).await.unwrap();
        let mut found = [Ok(0); 3];
        for found in &mut found[..2] {
            ill.passing.set((at, now() + time));
            *found = first(&q, 1, BLOCK * B).await;
            sleep(6 * SECONDS).await;
        }
        found[2] = first(&q, 1, BLOCK * B).await;
        slow.takes.set(0);
        found
    });
    wait(&b, 600);
    assert!(numbers(&p) == [1, 2] && p.status().whole, "{:?}", p.status());
    assert_eq!(wrong_now(&b, &p).is_empty(), found[2] == Ok(1));
    found
}

#[test]
fn what_a_removed_device_cannot_read_for_a_moment_is_not_lost() {
    assert_eq!(read_while_removed(10 * MILLIS), [Ok(1); 3]);
    assert_eq!(read_while_removed(SECONDS), [Err(IoError::Path), Err(IoError::Path), Ok(1)]);
}

/// Some blocks are lost with a device that is removed; another one it fails to read for a moment, whenever that is tried after a
/// while. The blocks that nobody has in the end.
fn removed_with_many() -> Vec<u64> {
    let (b, p, _) = deaf(Lacks::Wrong, 12);
    remove(&b, &p);
    wait(&b, 3600);
    assert!(numbers(&p) == [1, 2] && p.status().whole, "{:?}", p.status());
    wrong_now(&b, &p).into_iter().map(|(k, _)| k).collect()
}

#[test]
fn of_a_removed_device_each_block_is_waited_for_however_many_are_lost() {
    assert_eq!(removed_with_many(), (BLOCK..BLOCK + 12).collect::<Vec<_>>());
}

/// A write to device 0 was given up and has not ended when it is replaced; of what it brings the other device's copy is wrong. How
/// many slabs are left on device 0 until it ends, and the blocks that nobody has in the end.
fn replaced_before_a_write_has_ended() -> (Option<u32>, Vec<u64>) {
    let b = Bench::new(3, 7);
    let ill = ill();
    let disks: Vec<Rc<dyn Disk>> = vec![Rc::new(IllDisk(b.disk(0), ill.clone())), b.disk(1)];
    let (new, other, mine) = (b.disk(2), b.media[1].clone(), ill.clone());
    let p = b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, BLOCKS * B, 1).await.unwrap();
        write(&p, 1, 48 * MIB, B, 2).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        mine.holds.set(true);
        write(&p, 1, BLOCK * B, B, 1).await.unwrap();
        other.poke(place(&p, BLOCK, 1).await, &[0]);
        p.replace(0, new).await.unwrap();
        p
    });
    wait(&b, 600);
    let before = left(&p);
    let disk = b.disk(0);
    b.run(async move {
        ill.holds.set(false);
        ill.held.take().into_iter().for_each(|(op, token)| disk.submit(op, token));
    });
    wait(&b, 3 * 3600);
    assert!(numbers(&p) == [1, 2] && p.status().whole, "{:?}", p.status());
    (before, wrong_now(&b, &p).into_iter().map(|(k, _)| k).collect())
}

#[test]
fn a_write_that_was_given_up_is_waited_for_by_who_needs_what_it_brings() {
    assert_eq!(replaced_before_a_write_has_ended(), (Some(1), vec![]));
}

/// Somebody has all devices brought back while one that was removed is being moved off, which fails to read a block somehow. Whether
/// that is refused, and which devices are left.
fn resync_while_removed(how: Deaf) -> (bool, Vec<u16>) {
    let (b, p, ..) = deaf_by(how, Lacks::Wrong, 0);
    remove(&b, &p);
    let q = p.clone();
    let refused = b.run(async move { q.resync().await.is_err() });
    wait(&b, 600);
    (refused, numbers(&p))
}

#[test]
fn a_device_that_was_removed_is_not_brought_back_with_others() {
    for how in [Deaf::Fails, Deaf::Gone] {
        assert_eq!(resync_while_removed(how), (true, vec![1, 2]));
    }
}

/// To read a block device 0 does not answer, always or once; the other device lacks it. The blocks that nobody has when it has been
/// removed.
fn removed_though_it_was_silent(how: Deaf, once: bool) -> Vec<u64> {
    let (b, p, ill, _) = deaf_by(if once { Deaf::Fails } else { how }, Lacks::Wrong, 0);
    ill.how.set(how);
    ill.once.set(once);
    remove(&b, &p);
    wait(&b, 600);
    assert!(numbers(&p) == [1, 2] && p.status().whole, "{:?}", p.status());
    wrong_now(&b, &p).into_iter().map(|(k, _)| k).collect()
}

#[test]
fn a_removed_device_that_answers_again_is_read() {
    for how in [Deaf::Gone, Deaf::Hangs] {
        assert_eq!(removed_though_it_was_silent(how, false), [BLOCK]);
        assert_eq!(removed_though_it_was_silent(how, true), Vec::<u64>::new());
    }
}

/// A removed device did not answer when a block was read, and nothing is moved yet. What hosts get of another one, which only it has,
/// too, twice.
fn read_while_silent() -> [Result<u8, IoError>; 2] {
    let (b, p, _, slow) = deaf_by(Deaf::Gone, Lacks::Wrong, 0);
    let q = p.clone();
    let found = b.run(async move {
        // The move begins with the next checkpoint.
        slow.takes.set(15 * SECONDS);
        q.remove(0).await.unwrap();
        let mut found = [Ok(0); 2];
        found[0] = first(&q, 1, OTHER * B).await;
        sleep(6 * SECONDS).await;
        found[1] = first(&q, 1, OTHER * B).await;
        slow.takes.set(0);
        found
    });
    wait(&b, 600);
    assert!(numbers(&p) == [1, 2] && p.status().whole, "{:?}", p.status());
    let is_well = !wrong_now(&b, &p).iter().any(|(k, _)| *k == OTHER);
    assert_eq!(is_well, found[1] == Err(IoError::Offline));
    found
}

#[test]
fn what_a_removed_device_has_is_not_lost_for_hosts_when_it_does_not_answer_once() {
    assert_eq!(read_while_silent(), [Err(IoError::Offline); 2]);
}

/// Forty blocks are lost with a removed device. Whether a volume is made beside that within 30 s, and the pool closed within 41 s.
fn beside_a_removal(how: Deaf) -> (bool, bool) {
    let (b, p, ill) = deaf(Lacks::Wrong, 40);
    ill.how.set(how);
    remove(&b, &p);
    wait(&b, 10);
    b.run(async move {
        let made = timeout(30 * SECONDS, p.create_volume("w", MIB, 4096)).await;
        // A device that is asked whether it answers.
        ill.all.set(how == Deaf::Hangs);
        sleep(30 * SECONDS).await;
        let closed = timeout(41 * SECONDS, p.close()).await;
        (made.is_ok_and(|v| v.is_ok()), closed.is_ok_and(|c| c.is_ok()))
    })
}

#[test]
fn a_removal_holds_up_neither_changes_nor_a_stop() {
    for how in [Deaf::Fails, Deaf::Slow, Deaf::Hangs] {
        assert_eq!(beside_a_removal(how), (true, true));
    }
}

/// A removed device hangs on each of twelve blocks that the other one lacks, or on all. How long it takes until it has left.
fn removed_while_it_hangs(all: bool, blocks: u64) -> Nanos {
    let (b, p, ill) = deaf(Lacks::Wrong, blocks);
    ill.how.set(Deaf::Hangs);
    ill.all.set(all);
    remove(&b, &p);
    let mut time = 0;
    while numbers(&p) != [1, 2] && time < 2 * 3600 * SECONDS {
        wait(&b, 10);
        time += 10 * SECONDS;
    }
    let lost = b.run(async move { first(&p, 1, BLOCK * B).await });
    assert_eq!(lost, Err(IoError::Medium));
    time
}

#[test]
fn a_removal_ends_though_the_device_hangs_on_every_block() {
    // Each block for 20 s, once more if it answers then, and all of that twice.
    let time = removed_while_it_hangs(false, 12);
    assert!((12 * 40 * SECONDS..12 * 90 * SECONDS).contains(&time), "{time}");
    let time = removed_while_it_hangs(true, 12);
    assert!(time < 300 * SECONDS, "{time}");
}

/// So many of one leaf that all of them together take longer than two looks at one of them may be apart.
#[test]
fn a_removal_ends_though_the_device_hangs_on_many_blocks_of_one_leaf() {
    let time = removed_while_it_hangs(false, 30);
    assert!(time < 2 * 3600 * SECONDS, "{time}");
}

#[cfg(feature = "planted")]
mod planted {
    use super::*;
    use crate::bench::with;
    use weir_store::planted::Bug;

    #[test]
    fn an_ill_device_that_is_taken_for_silent_is_caught() {
        assert_eq!(with(Bug::IllIsSilent, with_slow_superblocks), [BLOCK]);
        let late = with(Bug::IllIsSilent, replaced_before_a_write_has_ended);
        assert_eq!(late, (None, vec![BLOCK]));
    }

    #[test]
    fn a_copy_that_is_wrong_before_its_write_has_ended_is_caught() {
        let late = with(Bug::LateIsLost, replaced_before_a_write_has_ended);
        assert_eq!(late, (None, vec![BLOCK]));
    }

    #[test]
    fn a_passing_error_that_is_a_loss_is_caught() {
        let lost = Err(IoError::Medium);
        assert_eq!(with(Bug::PassingIsLoss, || read_while_removed(SECONDS)), [lost; 3]);
    }

    #[test]
    fn one_of_many_blocks_that_is_not_waited_for_is_caught() {
        let all: Vec<_> = (BLOCK..BLOCK + 12).chain([FAR]).collect();
        assert_eq!(with(Bug::GivenUpInHaste, removed_with_many), all);
    }

    #[test]
    fn a_removed_device_that_is_not_asked_again_is_caught() {
        let lost = with(Bug::SilentForGood, || removed_though_it_was_silent(Deaf::Gone, false));
        assert_eq!(lost, [BLOCK, OTHER]);
        let lost = with(Bug::SilentForGood, || removed_though_it_was_silent(Deaf::Hangs, true));
        assert_eq!(lost, [BLOCK]);
    }

    #[test]
    fn a_removed_device_that_is_missing_for_hosts_is_caught() {
        let medium = Err(IoError::Medium);
        let found = with(Bug::SilentIsMissing, read_while_silent);
        assert_eq!(found, [medium; 2]);
    }

    #[test]
    fn a_pause_under_a_pin_is_caught() {
        assert_eq!(with(Bug::PausedUnderPin, || beside_a_removal(Deaf::Slow)), (false, true));
    }

    #[test]
    fn a_removal_that_a_bad_block_holds_up_is_caught() {
        assert_eq!(with(Bug::BadBlockStays, removed_beside_a_bad_block).0, [0, 1, 2]);
    }

    #[test]
    fn a_removal_that_is_forgotten_is_caught() {
        assert!(!with(Bug::RemovalForgotten, || resync_while_removed(Deaf::Fails)).0);
    }
}

//! A device lacks something, and the other one with a copy of it is dead, or away: all else gets its second copy again.

use crate::bench::{B, Bench, LIMIT, MIB, first, spec, write};
use std::rc::Rc;
use weir_base::{IoError, SECONDS};
use weir_disk::Disk;
use weir_sim::SimMedium;
use weir_store::format::page::{Header, PageKind};
use weir_store::format::superblock::MemberState;
use weir_store::format::tree::LEAF;
use weir_store::{Options, Pool, Whose, create};

/// Blocks of the volume that are written.
pub(crate) const BLOCKS: u64 = 3 * MIB / B;
/// One of them.
pub(crate) const BLOCK: u64 = 100;

/// What device 1, which stays, does not have as it should.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lacks {
    /// A block of data is wrong.
    Wrong,
    /// The device says that it cannot read it.
    Unread,
    /// The piece of the map with the first blocks.
    Leaf,
    /// A list of what a snapshot has alone.
    List,
    /// What it knows of the use of blocks.
    Heads,
}

/// What is done about device 0, which does not answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Done {
    /// Somebody lets device 2 take its place.
    Replaced,
    /// Device 2 is a spare.
    Spare,
    /// Somebody had let device 2 take its place before.
    ReplacedBefore,
}

/// A mirror of devices 0 and 1; the second lacks something.
fn made(lacks: Lacks) -> (Bench, Pool) {
    made_by(lacks, |disk| disk)
}

/// The same; something is put before device 0.
pub(crate) fn made_by(
    lacks: Lacks,
    by: impl FnOnce(Rc<dyn Disk>) -> Rc<dyn Disk>,
) -> (Bench, Pool) {
    let b = Bench::new(3, 7);
    let disks = vec![by(b.disk(0)), b.disk(1)];
    let again = disks.clone();
    let (p, places) = b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, BLOCKS * B, 1).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        if lacks == Lacks::List {
            p.snapshot(&[(1, "v@s")], 0).await.unwrap();
            write(&p, 1, 0, 16 * B, 1).await.unwrap();
            p.checkpoint().await.unwrap();
        }
        let places = p.volume(1).unwrap().locate(BLOCK * B).await.unwrap();
        // Nothing of the maps is in memory.
        p.close().await.unwrap();
        (Pool::open(again, Options::default()).await.unwrap(), places)
    });
    let (_, at) = places.into_iter().find(|(d, _)| *d == 1).unwrap();
    let m = &b.media[1];
    let flip = |at: u64| {
        let mut byte = [0];
        m.peek(at, &mut byte);
        m.poke(at, &[byte[0] ^ 1]);
    };
    let pages = |want: &dyn Fn(Header) -> bool| {
        pages_of(m, want).into_iter().for_each(|at| flip(at + 100));
    };
    match lacks {
        Lacks::Wrong => flip(at),
        Lacks::Unread => m.fail_reads(at, B),
        Lacks::Leaf => pages(&is_first_leaf),
        Lacks::List => pages(&|h| h.kind == PageKind::Dead),
        Lacks::Heads => pages(&|h| matches!(h.kind, PageKind::SlabMeta | PageKind::Bitmap)),
    }
    (b, p)
}

/// Where a device has pages of the pool of some kind.
pub(crate) fn pages_of(m: &SimMedium, want: &dyn Fn(Header) -> bool) -> Vec<u64> {
    let is = |at: &u64| {
        let mut block = [0; B as usize];
        m.peek(*at, &mut block);
        Header::get(&block).is_ok_and(want)
    };
    (0..m.len()).step_by(B as usize).filter(is).collect()
}

pub(crate) fn is_first_leaf(h: Header) -> bool {
    h.kind == PageKind::Leaf && h.index == 0
}

pub(crate) fn wait(b: &Bench, seconds: u64) {
    b.w.run_for(seconds * SECONDS);
}

/// Device 0 does not answer any more, and ten minutes pass.
fn story(lacks: Lacks, done: Done) -> (Bench, Pool) {
    let (b, p) = made(lacks);
    let (q, m, new) = (p.clone(), b.media[0].clone(), b.disk(2));
    b.run(async move {
        if done == Done::ReplacedBefore {
            q.set_fill_rate(B);
            q.replace(0, new.clone()).await.unwrap();
        }
        m.set_offline(true);
        write(&q, 1, 48 * MIB, B, 2).await.unwrap();
        assert_eq!(q.status().devices[0].state, MemberState::Out);
        match done {
            Done::Replaced => drop(q.replace(0, new).await.unwrap()),
            Done::Spare => drop(q.add_spare(new).await.unwrap()),
            Done::ReplacedBefore => q.set_fill_rate(0),
        }
    });
    wait(&b, 600);
    (b, p)
}

/// Copies of slabs that device 0 has; none: it is gone.
pub(crate) fn left(p: &Pool) -> Option<u32> {
    p.status().devices.iter().find(|d| d.number == 0).map(|d| d.slabs)
}

/// The blocks that do not read as they were written, and why.
async fn wrong(p: &Pool) -> Vec<(u64, Result<u8, IoError>)> {
    let mut all = Vec::new();
    for k in 0..BLOCKS {
        let found = first(p, 1, k * B).await;
        if found != Ok(1) {
            all.push((k, found));
        }
    }
    let new = first(p, 1, 48 * MIB).await;
    if new != Ok(2) {
        all.push((48 * MIB / B, new));
    }
    all
}

pub(crate) fn wrong_now(b: &Bench, p: &Pool) -> Vec<(u64, Result<u8, IoError>)> {
    let p = p.clone();
    b.run(async move { wrong(&p).await })
}

/// What device 2 does not have by itself, which has a copy of each slab.
fn wrong_alone(b: &Bench, p: &Pool) -> Vec<u64> {
    let p = p.clone();
    b.run(async move { p.close().await.unwrap() });
    let node = b.w.node("alone");
    node.attach(&b.media[2].copy("alone", 1));
    let disk: Rc<dyn Disk> = node.disk("alone");
    let o = Options { force: true, lineage: 99, resync: false, ..Options::default() };
    let found = b.w.run(&node, LIMIT, async move {
        let p = Pool::open(vec![disk], o).await.expect("opens");
        wrong(&p).await
    });
    found.unwrap().into_iter().map(|(k, _)| k).collect()
}

pub(crate) fn numbers(p: &Pool) -> Vec<u16> {
    p.status().devices.iter().map(|d| d.number).collect()
}

#[test]
fn a_dead_device_is_replaced_though_the_other_one_lacks_a_block() {
    for lacks in [Lacks::Wrong, Lacks::Unread] {
        let (b, p) = story(lacks, Done::Replaced);
        let s = p.status();
        assert!(numbers(&p) == [1, 2] && s.whole && s.trouble.is_none(), "{s:?}");
        // Nobody has read it yet.
        let told = p.damage();
        let is_told = told.iter().any(|d| {
            (d.device, d.lost) == (s.devices[0].id, 1) && d.whose == Whose::Dataset("v".into())
        });
        assert!(is_told, "{told:?}");
        assert_eq!(wrong_now(&b, &p), [(BLOCK, Err(IoError::Medium))]);
        assert_eq!(wrong_alone(&b, &p), [BLOCK]);
    }
}

fn failed_and_replaced() -> Vec<u64> {
    failed_ill_and_replaced(|_| {})
}

/// Device 0 has failed a write, and can be read as far as `ill` leaves it; the other one lacks a block. The blocks that nobody has
/// once it is replaced.
pub(crate) fn failed_ill_and_replaced(ill: impl FnOnce(&SimMedium)) -> Vec<u64> {
    let (b, p) = made(Lacks::Wrong);
    ill(&b.media[0]);
    let (q, m, new) = (p.clone(), b.media[0].clone(), b.disk(2));
    b.run(async move {
        m.set_offline(true);
        write(&q, 1, 48 * MIB, B, 2).await.unwrap();
        assert_eq!(q.status().devices[0].state, MemberState::Out);
        m.set_offline(false);
        q.replace(0, new).await.unwrap();
    });
    wait(&b, 600);
    assert!(numbers(&p) == [1, 2] && p.status().whole, "{:?}", p.status());
    wrong_now(&b, &p).into_iter().map(|(k, _)| k).collect()
}

#[test]
fn a_device_that_failed_and_is_replaced_is_read_as_long_as_it_answers() {
    assert_eq!(failed_and_replaced(), Vec::<u64>::new());
}

/// The same while another device, which has a copy of nothing that is wrong, is being drained: whoever moves slabs moves those of all
/// devices that are to leave.
fn failed_and_replaced_beside_a_drain() -> Vec<u64> {
    let b = Bench::new(6, 7);
    let disks = b.disks(&[0, 1, 2, 3, 4]);
    let p = b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, BLOCKS * B, 1).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        p
    });
    let (q, new) = (p.clone(), b.disk(5));
    let places = b.run(async move { q.volume(1).unwrap().locate(BLOCK * B).await.unwrap() });
    let ((old, _), (other, at)) = (places[0], places[1]);
    let drained = (0..5).find(|n| *n != old && *n != other).unwrap();
    let (m, partner) = (b.media[usize::from(old)].clone(), &b.media[usize::from(other)]);
    let mut byte = [0];
    partner.peek(at, &mut byte);
    partner.poke(at, &[byte[0] ^ 1]);
    let q = p.clone();
    b.run(async move {
        q.set_fill_rate(B);
        q.drain(drained).await.unwrap();
        m.set_offline(true);
        write(&q, 1, 32 * MIB, B, 2).await.unwrap();
        let _ = q.checkpoint().await;
        assert_eq!(q.status().devices[usize::from(old)].state, MemberState::Out);
        m.set_offline(false);
        q.replace(old, new).await.unwrap();
        q.set_fill_rate(0);
    });
    wait(&b, 600);
    assert!(p.status().whole && !numbers(&p).contains(&old), "{:?}", p.status());
    let q = p.clone();
    b.run(async move {
        let mut all = Vec::new();
        for k in 0..BLOCKS {
            if first(&q, 1, k * B).await != Ok(1) {
                all.push(k);
            }
        }
        all
    })
}

#[test]
fn a_device_that_failed_is_asked_before_anybody_moves_what_it_has() {
    assert_eq!(failed_and_replaced_beside_a_drain(), Vec::<u64>::new());
}

/// Device 0 did not answer when it was replaced, or was missing since a start. It is there at the next start, and away once more for
/// a moment. The blocks that nobody has in the end.
fn missing_and_found(since_start: bool) -> Vec<u64> {
    let (b, p) = made(Lacks::Wrong);
    let (q, m, new) = (p.clone(), b.media[0].clone(), b.disk(2));
    let others = b.disks(&[1]);
    b.run(async move {
        m.set_offline(true);
        write(&q, 1, 48 * MIB, B, 2).await.unwrap();
        let p = match since_start {
            true => {
                q.close().await.unwrap();
                Pool::open(others, Options::default()).await.unwrap()
            }
            false => q,
        };
        p.set_fill_rate(B);
        p.replace(0, new).await.unwrap();
        p.close().await.unwrap();
        m.set_offline(false);
    });
    let (m, disks) = (b.media[0].clone(), b.disks(&[0, 1, 2]));
    let p = b.run(async move {
        let p = Pool::open(disks, Options { fill_rate: B, ..Options::default() }).await.unwrap();
        m.set_offline(true);
        let _ = first(&p, 1, 0).await;
        p
    });
    let q = p.clone();
    b.run(async move { q.set_fill_rate(0) });
    wait(&b, 60);
    b.media[0].set_offline(false);
    wait(&b, 3 * 3600);
    wrong_now(&b, &p).into_iter().map(|(k, _)| k).collect()
}

#[test]
fn a_device_that_was_written_off_is_not_when_it_is_found_again() {
    for since_start in [true, false] {
        assert_eq!(missing_and_found(since_start), Vec::<u64>::new());
    }
}

#[test]
fn a_dead_device_is_replaced_though_the_other_one_lacks_a_piece_of_the_map() {
    let (b, p) = story(Lacks::Leaf, Done::Replaced);
    let s = p.status();
    assert!(numbers(&p) == [1, 2] && s.whole && s.trouble.is_none(), "{s:?}");
    let below: Vec<u64> = (0..LEAF as u64).collect();
    assert_eq!(wrong_alone(&b, &p), below);
}

#[test]
fn a_dead_device_is_replaced_though_the_other_one_lacks_a_list() {
    let (b, p) = story(Lacks::List, Done::Replaced);
    let s = p.status();
    assert!(numbers(&p) == [1, 2] && s.whole && s.trouble.is_none(), "{s:?}");
    assert_eq!(wrong_now(&b, &p), []);
    assert_eq!(wrong_alone(&b, &p), Vec::<u64>::new());
}

/// How a pool stands after a device has lost what it knows of the use of blocks, and the other one is replaced.
fn without_heads(done: Done) -> (bool, Option<u32>, Vec<u64>) {
    let (b, p) = story(Lacks::Heads, done);
    (p.status().whole, left(&p), wrong_alone(&b, &p))
}

#[test]
fn what_a_device_lacks_of_the_use_of_blocks_is_written_anew() {
    assert_eq!(without_heads(Done::Replaced), (true, None, vec![]));
    assert_eq!(without_heads(Done::Spare), (true, Some(0), vec![]));
}

/// Copies of slabs that device 0 has before it comes back, how much is wrong then, and the same afterwards; what device 2 lacks.
type Seen = (Option<u32>, usize, Option<u32>, Vec<(u64, Result<u8, IoError>)>, Vec<u64>);

/// Device 0 answers again after a while.
fn comes_back(lacks: Lacks, done: Done) -> Seen {
    let (b, p) = story(lacks, done);
    let (before, bad) = (left(&p), wrong_now(&b, &p).len());
    let trouble = p.status().trouble.unwrap_or_default();
    let is_told = trouble.contains("device 0 is not cleared") && trouble.contains("remove it");
    assert!(before.is_none_or(|n| n == 0) || is_told, "{trouble:?}");
    b.media[0].set_offline(false);
    wait(&b, 3 * 3600);
    let after = left(&p);
    (before, bad, after, wrong_now(&b, &p), wrong_alone(&b, &p))
}

#[test]
fn a_device_that_was_away_gives_the_only_copy_when_it_is_back() {
    for lacks in [Lacks::Wrong, Lacks::Unread, Lacks::List] {
        for done in [Done::Spare, Done::ReplacedBefore] {
            let (before, bad, after, wrong, alone) = comes_back(lacks, done);
            assert_eq!((before, bad), (Some(1), usize::from(lacks != Lacks::List)));
            assert_eq!(after, (done == Done::Spare).then_some(0));
            assert_eq!((wrong, alone), (vec![], vec![]));
        }
    }
}

#[test]
fn what_a_piece_of_the_map_leads_to_stays_where_it_is_until_that_is_read() {
    let (before, bad, after, wrong, alone) = comes_back(Lacks::Leaf, Done::Spare);
    // Of six slabs.
    assert!(before.is_some_and(|n| (1..=3).contains(&n)) && bad == LEAF, "{before:?}, {bad}");
    assert_eq!((after, wrong, alone), (Some(0), vec![], vec![]));
}

#[test]
fn a_device_that_is_away_leaves_when_somebody_says_that_it_does_not_come_back() {
    for done in [Done::Spare, Done::ReplacedBefore] {
        let (b, p) = story(Lacks::Wrong, done);
        assert_eq!(left(&p), Some(1));
        let q = p.clone();
        b.run(async move { q.remove(0).await }).unwrap();
        wait(&b, 60);
        let s = p.status();
        assert!(numbers(&p) == [1, 2] && s.whole && s.trouble.is_none(), "{s:?}");
        assert_eq!(wrong_now(&b, &p), [(BLOCK, Err(IoError::Medium))]);
        assert_eq!(wrong_alone(&b, &p), [BLOCK]);
    }
}

/// What a drain says that failed, and the same after somebody has stopped it.
fn stopped() -> [Option<String>; 2] {
    let (b, p) = story(Lacks::Unread, Done::Spare);
    let before = p.status().trouble;
    let q = p.clone();
    b.run(async move { q.cancel(0).await.unwrap() });
    wait(&b, 1);
    [before, p.status().trouble]
}

#[test]
fn a_drain_that_was_stopped_has_not_failed() {
    let [before, after] = stopped();
    assert!(before.is_some_and(|t| t.contains("not all that is on")) && after.is_none());
}

#[cfg(feature = "planted")]
mod planted {
    use super::*;
    use crate::bench::with;
    use weir_store::planted::Bug;

    /// Copies of slabs that device 0 has in the end.
    fn held(bug: Bug, lacks: Lacks, done: Done) -> Option<u32> {
        with(bug, || left(&story(lacks, done).1))
    }

    #[test]
    fn what_cannot_be_read_and_ends_all_moves_is_caught() {
        for lacks in [Lacks::Wrong, Lacks::Leaf, Lacks::List] {
            let all = held(Bug::UnreadEndsMoves, lacks, Done::Spare);
            assert!(all > held_without(lacks), "{all:?}");
        }
    }

    fn held_without(lacks: Lacks) -> Option<u32> {
        left(&story(lacks, Done::Spare).1)
    }

    #[test]
    fn what_is_dead_and_waited_for_is_caught() {
        for lacks in [Lacks::Wrong, Lacks::Leaf, Lacks::List] {
            assert!(held(Bug::DeadIsAway, lacks, Done::Replaced).is_some());
        }
    }

    #[test]
    fn a_slab_that_moves_without_what_cannot_be_read_is_caught() {
        for lacks in [Lacks::Wrong, Lacks::Leaf, Lacks::List] {
            assert_eq!(held(Bug::UnreadIsLeft, lacks, Done::Spare), Some(0));
        }
    }

    #[test]
    fn a_piece_of_a_map_that_is_taken_for_nothing_is_caught() {
        assert_eq!(held(Bug::UnseenIsNothing, Lacks::Leaf, Done::Spare), Some(0));
    }

    #[test]
    fn a_device_that_is_away_and_taken_for_dead_is_caught() {
        assert_eq!(held(Bug::AwayIsWrittenOff, Lacks::Wrong, Done::Spare), Some(0));
        assert_eq!(held(Bug::AwayIsWrittenOff, Lacks::Wrong, Done::ReplacedBefore), None);
    }

    #[test]
    fn a_failed_device_that_is_taken_for_dead_is_caught() {
        assert_eq!(with(Bug::FailedIsDead, failed_and_replaced), [BLOCK]);
        assert_eq!(with(Bug::FailedIsDead, failed_and_replaced_beside_a_drain), [BLOCK]);
    }

    #[test]
    fn a_device_that_stays_written_off_is_caught() {
        assert_eq!(with(Bug::FoundStaysLost, || missing_and_found(true)), [BLOCK]);
    }

    #[test]
    fn what_a_device_goes_on_lacking_of_the_use_of_blocks_is_caught() {
        assert!(
            !with(Bug::HeadsNotMended, || story(Lacks::Heads, Done::Replaced)).1.status().whole
        );
    }

    #[test]
    fn a_stopped_drain_that_has_failed_for_ever_is_caught() {
        assert!(with(Bug::StoppedIsFailed, stopped)[1].is_some());
    }
}

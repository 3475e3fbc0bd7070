//! Old copies of devices: what was found suffices only if nothing newer can be anywhere.

use crate::bench::{B, Bench, MIB, first, newest, spec, write};
use std::borrow::Cow;
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use weir_base::{IoError, MICROS, MILLIS, SECONDS};
use weir_disk::{Disk, DiskOp, report};
use weir_reactor::{Token, complete, sleep};
use weir_sim::{DiskConfig, SimMedium, World};
use weir_store::format::label::Label;
use weir_store::format::superblock::MemberState;
use weir_store::{Options, Pool, create};

/// A bench of devices of these sizes.
pub(crate) fn sized(sizes: &[u64], seed: u64) -> Bench {
    let w = World::new(5 + seed);
    let n = w.node("store");
    let medium = |(i, len): (usize, &u64)| {
        SimMedium::new(&format!("d{i}"), *len, DiskConfig::default(), seed << 8 | i as u64)
    };
    let media: Vec<SimMedium> = sizes.iter().enumerate().map(medium).collect();
    media.iter().for_each(|m| n.attach(m));
    Bench { w, n, media }
}

/// A mirror on all devices, with a volume that was written, and closed.
fn closed(b: &Bench) {
    let disks = b.all();
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        for k in 0..6 {
            write(&p, 1, k * MIB / 2, MIB / 2, 1).await.unwrap();
        }
        p.close().await.unwrap();
    });
    b.restart();
}

fn alone() -> Options {
    Options { resync: false, lineage: 77, ..Options::default() }
}

async fn open_these(disks: Vec<Rc<dyn Disk>>, o: Options) -> Result<u8, String> {
    let p = Pool::open(disks, o).await.map_err(|e| e.to_string())?;
    first(&p, 1, 0).await.map_err(|e| e.to_string())
}

/// What is read of a pool opened without anybody's asking, or why it is not opened.
fn opened(b: &Bench, which: &[usize]) -> Result<u8, String> {
    b.run(open_these(b.disks(which), alone()))
}

/// A disk of which some blocks cannot be read. Counts how often that was tried.
pub(crate) struct Scratched(Rc<dyn Disk>, Range<u64>, Rc<Cell<u64>>);

impl Scratched {
    /// So many pages of the log from the first that counts.
    pub(crate) fn log(b: &Bench, i: usize, pages: u64) -> Rc<dyn Disk> {
        Scratched::behind(b, i, 0, pages)
    }

    /// The same, but for so many at first.
    fn behind(b: &Bench, i: usize, but: u64, pages: u64) -> Rc<dyn Disk> {
        let mut label = [0; B as usize];
        b.media[i].peek(0, &mut label);
        let layout = Label::decode(&label).unwrap().layout;
        let from = layout.log(newest(&b.media[i]).unwrap().base_lsn + but);
        Rc::new(Scratched(b.disk(i), from..from + pages, Rc::default()))
    }
}

impl Disk for Scratched {
    crate::wrapped::is_like!(0);
    fn identity(&self) -> Cow<'_, str> {
        self.0.identity()
    }
    fn submit(&self, op: DiskOp, token: Token) {
        match &op {
            DiskOp::Read { offset, buf }
                if offset / B < self.1.end && self.1.start < (offset + buf.len() as u64) / B =>
            {
                self.2.set(self.2.get() + 1);
                complete(token, report(Err(IoError::Medium)));
            }
            _ => self.0.submit(op, token),
        }
    }
}

/// A device with a copy of everything goes on alone, two others drop out together. An old copy is there in its place.
fn the_large_one_went_on() -> Result<u8, String> {
    let mut b = sized(&[16 * MIB, 8 * MIB, 8 * MIB], 0);
    closed(&b);
    let old = b.image(0);
    let (disks, media) = (b.disks(&[0, 1, 2]), b.media.clone());
    b.run(async move {
        let o = Options { spare_after: None, ..Options::default() };
        let p = Pool::open(disks, o).await.unwrap();
        for _ in 0..4 {
            write(&p, 1, 0, MIB, 5).await.unwrap();
            p.checkpoint().await.unwrap();
        }
        media[1].set_offline(true);
        media[2].set_offline(true);
        for _ in 0..4 {
            write(&p, 1, 0, MIB, 6).await.unwrap();
            p.checkpoint().await.unwrap();
        }
        std::mem::forget(p);
    });
    b.media.iter().for_each(|m| m.set_offline(false));
    b.restart();
    opened(&b, &[old, 1, 2])
}

#[test]
fn an_old_copy_of_what_has_all_opens_nothing() {
    let refused = the_large_one_went_on().unwrap_err();
    assert!(refused.contains("old copy"), "{refused}");
}

/// Of four devices with a copy each of half of what there is, one is an old copy: the others hold a slab with all its copies, and
/// nobody can have gone on without them.
#[test]
fn an_old_copy_is_no_matter_where_the_others_have_all_copies_of_something() {
    let mut b = Bench::new(4, 0);
    closed(&b);
    let old = b.image(0);
    let disks = b.disks(&[0, 1, 2, 3]);
    b.run(async move {
        let p = Pool::open(disks, Options::default()).await.unwrap();
        for _ in 0..4 {
            write(&p, 1, 0, MIB, 5).await.unwrap();
            p.checkpoint().await.unwrap();
        }
        std::mem::forget(p);
    });
    b.restart();
    assert_eq!(opened(&b, &[old, 1, 2, 3]), Ok(5));
}

/// A copy is made of a device when it has the first superblock of an opening only. Both go on together for a while, with nothing
/// but the log written; one goes on alone then. The copy lacks one superblock, the one that the log was written under. Then so many
/// pages of the log of the other one cannot be read.
fn one_behind(unread: u64, force: bool) -> Result<u8, String> {
    let mut b = Bench::new(2, 0);
    closed(&b);
    let (before, disks) = (newest(&b.media[1]).unwrap().seq, b.disks(&[0, 1]));
    let opening = b.n.spawn(async move {
        let o = Options { spare_after: None, ..Options::default() };
        Pool::open(disks, o).await.unwrap()
    });
    let begun = || newest(&b.media[1]).unwrap().seq > before;
    b.w.run_until(SECONDS, begun).expect("it is opened");
    let old = b.image(1);
    let media = b.media.clone();
    let behind = b.run(async move {
        let p = opening.await.unwrap();
        for k in 0..8 {
            write(&p, 1, k * B, B, 5).await.unwrap();
        }
        let behind = newest(&media[0]).unwrap().seq - newest(&media[old]).unwrap().seq;
        media[0].set_offline(true);
        for k in 0..8 {
            write(&p, 1, k * B, B, 6).await.unwrap();
        }
        std::mem::forget(p);
        behind
    });
    assert_eq!(behind, 1);
    b.media[0].set_offline(false);
    b.restart();
    let disks = vec![Scratched::log(&b, 0, unread), b.disk(old)];
    b.run(open_these(disks, Options { force, ..alone() }))
}

/// A copy of a device is made before the pool is opened, or while it is. Nothing is written meanwhile; the device goes on alone.
fn of_idle_devices(open: bool) -> Result<u8, String> {
    let mut b = Bench::new(2, 0);
    closed(&b);
    let mut old = b.image(1);
    let disks = b.disks(&[0, 1]);
    let p = b.run(async move {
        let o = Options { spare_after: None, ..Options::default() };
        let p = Pool::open(disks, o).await.unwrap();
        sleep(SECONDS).await;
        p
    });
    if open {
        old = b.image(1);
    }
    let media = b.media.clone();
    b.run(async move {
        if open {
            p.checkpoint().await.unwrap();
            sleep(SECONDS).await;
        }
        media[0].set_offline(true);
        for k in 0..8 {
            write(&p, 1, k * B, B, 6).await.unwrap();
        }
        std::mem::forget(p);
    });
    b.media[0].set_offline(false);
    b.restart();
    opened(&b, &[0, old])
}

#[test]
fn an_old_copy_is_told_though_nothing_was_written_since() {
    for open in [false, true] {
        let refused = of_idle_devices(open).unwrap_err();
        assert!(refused.contains("old copy"), "{open}: {refused}");
    }
}

/// A copy of a device is made while the pool is open, which is closed in order then. What becomes of it in the device's place,
/// also where it is known how the pool was closed.
fn copied_before_the_end() -> [Result<MemberState, String>; 2] {
    [false, true].map(|known| {
        let mut b = Bench::new(2, 0);
        closed(&b);
        let disks = b.disks(&[0, 1]);
        let p = b.run(async move {
            let p = Pool::open(disks, Options::default()).await.unwrap();
            sleep(SECONDS).await;
            p
        });
        let old = b.image(1);
        let last = b.run(async move {
            write(&p, 1, 0, B, 6).await.unwrap();
            p.close().await.unwrap();
            p.newest()
        });
        b.restart();
        let disks = b.disks(&[0, old]);
        b.run(async move {
            let last = last.filter(|_| known);
            let o = Options { resync: false, lineage: 77, last, ..Options::default() };
            let p = Pool::open(disks, o).await.map_err(|e| e.to_string())?;
            assert_eq!(first(&p, 1, 0).await, Ok(6));
            Ok(p.status().devices[1].state)
        })
    })
}

#[test]
fn an_old_copy_of_before_the_end_is_told() {
    let [refused, out] = copied_before_the_end();
    assert!(refused.clone().is_err_and(|e| e.contains("old copy")), "{refused:?}");
    assert_eq!(out, Ok(MemberState::Out));
}

/// A pool with one copy of each block, and one of the log. Of each device in turn there is an old copy, made while the pool was
/// idle; then it was written to. What was written before that is read of what is there.
fn without_copies(force: bool) -> Vec<Result<u8, String>> {
    let story = |of: usize| {
        let mut b = Bench::new(2, 0);
        let disks = b.all();
        let p = b.run(async move {
            create(&disks, &spec(1)).await.unwrap();
            let p = Pool::open(disks, Options::default()).await.unwrap();
            p.create_volume("v", 64 * MIB, 4096).await.unwrap();
            write(&p, 1, 0, 2 * MIB, 1).await.unwrap();
            p.checkpoint().await.unwrap();
            sleep(SECONDS).await;
            p
        });
        let old = b.image(of);
        b.run(async move {
            p.checkpoint().await.unwrap();
            for k in 0..8 {
                write(&p, 1, MIB + k * B, B, 5).await.unwrap();
            }
            std::mem::forget(p);
        });
        b.restart();
        let disks = b.disks(&[old, 1 - of]);
        b.run(open_these(disks, Options { force, ..alone() }))
    };
    vec![story(0), story(1)]
}

#[test]
fn an_old_copy_is_told_where_nobody_else_has_the_log() {
    for refused in without_copies(false) {
        assert!(refused.clone().is_err_and(|e| e.contains("old copy")), "{refused:?}");
    }
}

#[test]
fn an_old_copy_that_has_the_only_copy_of_something_is_used_by_force() {
    let [lost, read] = &without_copies(true)[..] else { panic!() };
    // The newest metadata was on the first.
    assert!(lost.clone().is_err_and(|e| e.contains("the table of datasets is lost")), "{lost:?}");
    assert_eq!(*read, Ok(1));
}

#[test]
fn an_old_copy_that_lacks_one_superblock_is_told_by_the_log() {
    for unread in [0, 1] {
        let refused = one_behind(unread, false).unwrap_err();
        assert!(refused.contains("old copy"), "{unread}: {refused}");
    }
}

/// Nobody knows then whether the other one went on alone. By force it is taken as it is.
#[test]
fn what_lacks_a_superblock_is_refused_when_the_log_cannot_be_read() {
    let refused = one_behind(64, false).unwrap_err();
    assert!(refused.contains("the log of the others"), "{refused}");
    assert!(one_behind(64, true).is_ok());
}

/// The power goes as a superblock is on one device only. A page of that one's log cannot be read, so many behind its end.
fn behind_the_end(pages: u64) -> Result<u8, String> {
    let mut b = Bench::new(2, 0);
    closed(&b);
    let old = b.image(1);
    let (before, disks) = (newest(&b.media[0]).unwrap().seq, b.disks(&[0, 1]));
    b.n.spawn(async move { drop(Pool::open(disks, alone()).await) });
    let begun = || newest(&b.media[0]).unwrap().seq > before;
    b.w.run_until(SECONDS, begun).expect("it is opened");
    b.restart();
    assert_eq!(newest(&b.media[0]).unwrap().seq, before + 1);
    let disks = vec![Scratched::behind(&b, 0, pages, 1), b.disk(old)];
    b.run(open_these(disks, alone()))
}

#[test]
fn what_cannot_be_read_behind_the_end_of_the_log_says_nothing() {
    assert_eq!(behind_the_end(3), Ok(1));
    // There it may go on.
    let refused = behind_the_end(0).unwrap_err();
    assert!(refused.contains("the log of the others"), "{refused}");
}

/// A device lacks the newest superblock, and nothing of the other one's log can be read. How often that is tried.
fn tries_of_a_log() -> u64 {
    let mut b = Bench::new(2, 0);
    closed(&b);
    let old = b.image(1);
    let disks = b.disks(&[0, 1]);
    b.run(async move {
        let p = Pool::open(disks, Options::default()).await.unwrap();
        write(&p, 1, 0, B, 5).await.unwrap();
        std::mem::forget(p);
    });
    b.restart();
    let tries = Rc::new(Cell::new(0));
    let all: Rc<dyn Disk> = {
        let mut label = [0; B as usize];
        b.media[0].peek(0, &mut label);
        let layout = Label::decode(&label).unwrap().layout;
        Rc::new(Scratched(
            b.disk(0),
            layout.log(0)..layout.log(0) + layout.log_pages,
            tries.clone(),
        ))
    };
    let disks = vec![all, b.disk(old)];
    b.run(open_these(disks, alone())).unwrap_err();
    tries.get()
}

#[test]
fn a_log_of_which_nothing_can_be_read_is_not_tried_page_by_page() {
    let tries = tries_of_a_log();
    assert!((1..=80).contains(&tries), "{tries}");
}

/// Two disks are given that are the same device, one of them an older copy, by its superblocks or by its log only. Whether the one
/// that is newer is used, and the other one told. `unread`: the log of that cannot be read.
fn of_two_of_one(logged: bool, copy_first: bool, unread: bool) -> Result<u8, String> {
    let mut b = Bench::new(2, 0);
    closed(&b);
    let mut old = b.image(1);
    let disks = b.disks(&[0, 1]);
    let p = b.run(async move {
        let p = Pool::open(disks, Options::default()).await.unwrap();
        write(&p, 1, 0, B, 5).await.unwrap();
        p
    });
    if logged {
        old = b.image(1);
    }
    let q = p.clone();
    b.run(async move {
        for k in 0..8 {
            write(&q, 1, k * B, B, 6).await.unwrap();
            if !logged {
                q.checkpoint().await.unwrap();
            }
        }
    });
    std::mem::forget(p);
    b.n.kill();
    b.n.restart();
    let real = if unread { Scratched::log(&b, 1, 64) } else { b.disk(1) };
    let mut disks = vec![b.disk(0), real, b.disk(old)];
    if copy_first {
        disks.swap(1, 2);
    }
    b.run(async move {
        let p = Pool::open(disks, Options::default()).await.map_err(|e| e.to_string())?;
        let told = p.left_out();
        assert!(told.len() == 1 && told[0].1.contains("`d1` is the same device"), "{told:?}");
        let s = p.status();
        let whole = s.devices.iter().all(|d| d.state == MemberState::InSync);
        if !whole || s.devices[1].name.as_deref() != Some("d1") {
            return Err(format!("{s:?}"));
        }
        first(&p, 1, 0).await.map_err(|e| e.to_string())
    })
}

#[test]
fn of_two_disks_that_are_one_device_the_newer_is_used() {
    for logged in [false, true] {
        for copy_first in [false, true] {
            assert_eq!(of_two_of_one(logged, copy_first, false), Ok(6), "{logged} {copy_first}");
        }
    }
}

#[test]
fn of_two_disks_that_are_one_device_none_is_used_when_the_log_that_tells_cannot_be_read() {
    for copy_first in [false, true] {
        let refused = of_two_of_one(true, copy_first, true).unwrap_err();
        assert!(refused.contains("the newer one is known"), "{refused}");
        // Superblocks tell as well.
        assert_eq!(of_two_of_one(false, copy_first, true), Ok(6));
    }
}

/// The power goes as a spare takes the place of a device that has failed. How often it was in service then without having any
/// superblock, and what is wrong.
fn spares_at_a_crash() -> (u32, Option<String>) {
    let mut met = 0;
    for seed in 0..200 {
        let b = Bench::new(3, seed);
        let (disks, spare, media) = (b.disks(&[0, 1]), b.disk(2), b.media.clone());
        let p = b.run(async move {
            create(&disks, &spec(2)).await.unwrap();
            let o = Options { spare_after: Some(MILLIS), ..Options::default() };
            let p = Pool::open(disks, o).await.unwrap();
            p.create_volume("v", 64 * MIB, 4096).await.unwrap();
            p.add_spare(spare).await.unwrap();
            p.settled().await.unwrap();
            media[0].set_offline(true);
            write(&p, 1, 0, B, 3).await.unwrap();
            p
        });
        let taken =
            || newest(&b.media[1]).is_some_and(|s| s.members[2].state == MemberState::InSync);
        let met_it = b.w.run_until(SECONDS, taken).is_ok();
        b.w.run_for(seed % 8 * 5 * MICROS);
        drop(p);
        b.media[0].set_offline(false);
        b.restart();
        let (has_none, took) = (newest(&b.media[2]).is_none(), taken());
        let disks = b.all();
        let state = b.run(async move {
            let o = Options { resync: false, spare_after: None, ..Options::default() };
            let p = Pool::open(disks, o).await.map_err(|e| e.to_string())?;
            assert_eq!(first(&p, 1, 0).await, Ok(3));
            Ok::<_, String>(p.status().devices[2].state)
        });
        if met_it && took && has_none {
            met += 1;
            if state != Ok(MemberState::InSync) {
                return (met, Some(format!("seed {seed}: {state:?}")));
            }
        }
        if let Err(e) = state {
            return (met, Some(format!("seed {seed}: {e}")));
        }
    }
    (met, None)
}

#[test]
fn a_spare_that_takes_a_place_as_the_power_goes_is_not_behind() {
    let (met, wrong) = spares_at_a_crash();
    assert_eq!(wrong, None);
    assert!(met > 0, "no power cut came between the two devices");
}

#[cfg(feature = "planted")]
mod planted {
    use super::*;
    use crate::bench::with;
    use weir_store::planted::Bug;

    #[test]
    fn devices_that_are_counted_in_place_of_copies_are_caught() {
        assert!(with(Bug::DevicesForCopies, the_large_one_went_on).is_ok());
    }

    #[test]
    fn an_old_copy_that_lacks_one_superblock_and_passes_is_caught() {
        assert!(with(Bug::OneBehindPasses, || one_behind(0, false)).is_ok());
    }

    #[test]
    fn a_log_that_cannot_be_read_and_says_nothing_is_caught() {
        assert!(with(Bug::UnreadSaysNothing, || one_behind(64, false)).is_ok());
    }

    #[test]
    fn a_page_that_may_say_more_wherever_it_is_is_caught() {
        assert!(with(Bug::UnreadAnywhere, || behind_the_end(3)).is_err());
    }

    #[test]
    fn an_older_device_that_is_out_by_force_is_caught() {
        assert!(with(Bug::OlderIsOut, || without_copies(true)).iter().any(Result::is_err));
    }

    #[test]
    fn superblocks_that_are_written_once_are_caught() {
        let idle = |open| with(Bug::WrittenOnce, || of_idle_devices(open));
        assert!(idle(false).is_ok() && idle(true).is_ok());
        let closed = with(Bug::WrittenOnce, copied_before_the_end);
        assert_eq!(closed, [Ok(MemberState::InSync), Ok(MemberState::InSync)]);
        let told = |r: &Result<u8, String>| r.clone().is_err_and(|e| e.contains("old copy"));
        assert!(!with(Bug::WrittenOnce, || without_copies(false)).iter().all(told));
    }

    #[test]
    fn a_log_that_is_tried_to_its_end_is_caught() {
        assert!(with(Bug::UnreadToTheEnd, tries_of_a_log) > 200);
    }

    #[test]
    fn the_first_of_two_disks_that_are_one_device_is_caught() {
        let seen = with(Bug::FirstOfTwo, || {
            std::panic::catch_unwind(|| of_two_of_one(false, true, false)).is_ok_and(|r| r == Ok(6))
        });
        assert!(!seen);
    }

    #[test]
    fn a_spare_that_is_taken_for_one_that_is_behind_is_caught() {
        assert!(with(Bug::SpareIsBehind, spares_at_a_crash).1.is_some());
    }
}

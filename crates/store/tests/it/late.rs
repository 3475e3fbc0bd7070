//! Writes that were given up and have not ended: nothing is put where they may land.

use crate::bench::{B, Bench, MIB, Named, first, spec, write};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_base::SECONDS;
use weir_disk::{Disk, DiskOp};
use weir_reactor::{Token, sleep, timeout};
use weir_sim::Next;
use weir_store::format::superblock::MemberState;
use weir_store::{Options, Pool, PoolSpec, create};

const ALL: (u64, u64) = (0, u64::MAX);
const NONE: (u64, u64) = (0, 0);
/// A block whose write fails.
const AT: u64 = 8192;

/// A disk of which writes to some of it are held back for as long as somebody says.
struct Sticky {
    disk: Rc<dyn Disk>,
    /// From where to where.
    hold: Cell<(u64, u64)>,
    held: RefCell<Vec<(DiskOp, Token)>>,
}

impl Sticky {
    fn new(disk: Rc<dyn Disk>) -> Rc<Sticky> {
        Rc::new(Sticky { disk, hold: Cell::default(), held: RefCell::default() })
    }

    fn release(&self) {
        for (op, token) in self.held.take() {
            self.disk.submit(op, token);
        }
    }

    /// Where the writes go that are held back.
    fn places(&self) -> Vec<u64> {
        let at = |op: &DiskOp| match op {
            DiskOp::Write { offset, .. } => *offset,
            _ => 0,
        };
        self.held.borrow().iter().map(|(op, _)| at(op)).collect()
    }
}

impl Disk for Sticky {
    crate::wrapped::is_like!(disk);
    fn submit(&self, op: DiskOp, token: Token) {
        let (from, to) = self.hold.get();
        match &op {
            DiskOp::Write { offset, .. } if (from..to).contains(offset) => {
                self.held.borrow_mut().push((op, token));
            }
            _ => self.disk.submit(op, token),
        }
    }
}

fn options() -> Options {
    Options { deadline: SECONDS, resync: false, reuse_at_once: true, ..Options::default() }
}

/// How a disk comes again.
#[derive(Clone, Copy)]
enum Again {
    AsItWas,
    OpenedAnew,
    ByAnotherName,
}

/// A device that hung was replaced; it is added again while what it was asked for has not ended. Says what was damaged.
fn taken_again(again: Again) -> Option<String> {
    let b = Bench::new(3, 0);
    let (zero, one, two) = (b.disk(0), Sticky::new(b.disk(1)), b.disk(2));
    let same: Rc<dyn Disk> = match again {
        Again::AsItWas => one.clone(),
        Again::OpenedAnew => b.disk(1),
        Again::ByAnotherName => Rc::new(Named("other", b.disk(1))),
    };
    b.run(async move {
        let disks: Vec<Rc<dyn Disk>> = vec![zero, one.clone()];
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, options()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, MIB, 1).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        one.hold.set(ALL);
        for k in 0..8 {
            write(&p, 1, MIB + k * 65536, 65536, 2).await.unwrap();
        }
        one.hold.set(NONE);
        assert_eq!(p.status().devices[1].state, MemberState::Out);
        assert!(!one.held.borrow().is_empty());
        p.replace(1, two).await.unwrap();
        p.settled().await.unwrap();
        assert!(p.status().devices.iter().all(|d| d.number != 1));
        if p.add(same.clone()).await.is_err() {
            // Also when its number is somebody else's by now, and once they have ended it is a disk as any.
            assert!(p.add_spare(same.clone()).await.is_err());
            one.release();
            p.add(same).await.unwrap();
        }
        p.settled().await.unwrap();
        for k in 0..6 {
            for j in 0..16 {
                let _ = write(&p, 1, (4 + k) * MIB + j * 65536, 65536, 3).await;
            }
        }
        p.checkpoint().await.unwrap();
        one.release();
        sleep(SECONDS).await;
        let found = p.scrub(0).await.unwrap();
        (found.damaged > 0).then(|| format!("{found:?}"))
    })
}

#[test]
fn a_device_that_left_is_not_taken_again_while_its_writes_are_under_way() {
    assert_eq!(taken_again(Again::AsItWas), None);
}

#[test]
fn a_device_that_left_is_known_when_it_is_opened_anew() {
    assert_eq!(taken_again(Again::OpenedAnew), None);
    assert_eq!(taken_again(Again::ByAnotherName), None);
}

/// A device that hung comes back, by the same handle or opened anew, while what it was asked for has not ended.
fn attached(again: Again) {
    let b = Bench::new(2, 0);
    let (zero, one) = (b.disk(0), Sticky::new(b.disk(1)));
    let same: Rc<dyn Disk> = match again {
        Again::AsItWas => one.clone(),
        Again::OpenedAnew => b.disk(1),
        Again::ByAnotherName => Rc::new(Named("other", b.disk(1))),
    };
    b.run(async move {
        let disks: Vec<Rc<dyn Disk>> = vec![zero, one.clone()];
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, options()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        one.hold.set(ALL);
        write(&p, 1, 0, 65536, 1).await.unwrap();
        one.hold.set(NONE);
        assert_eq!(p.status().devices[1].state, MemberState::Out);
        assert!(!one.held.borrow().is_empty());
        assert!(p.attach(same.clone()).await.is_err(), "its writes are under way");
        one.release();
        sleep(SECONDS).await;
        p.attach(same).await.unwrap();
        p.settled().await.unwrap();
        assert_eq!(p.scrub(0).await.unwrap().damaged, 0);
    });
}

#[test]
fn a_device_does_not_come_back_while_its_writes_are_under_way() {
    for again in [Again::AsItWas, Again::OpenedAnew, Again::ByAnotherName] {
        attached(again);
    }
}

/// A disk hangs while it is added; nobody adds it again before its writes have ended.
#[test]
fn a_disk_that_could_not_be_added_is_not_taken_again_while_its_writes_are_under_way() {
    let b = Bench::new(3, 0);
    let (disks, slow, other) = (b.disks(&[0, 1]), Sticky::new(b.disk(2)), b.disk(2));
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, options()).await.unwrap();
        slow.hold.set(ALL);
        assert!(p.add(slow.clone()).await.is_err());
        slow.hold.set(NONE);
        for _ in 0..2 {
            assert!(p.add(slow.clone()).await.is_err());
            assert!(p.add(other.clone()).await.is_err());
        }
        assert!(!slow.held.borrow().is_empty());
        slow.release();
        p.add(other).await.unwrap();
        p.settled().await.unwrap();
        assert_eq!(p.scrub(0).await.unwrap().damaged, 0);
    });
}

#[cfg(feature = "planted")]
#[test]
fn a_device_that_is_taken_again_too_early_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::TakenWithLateWrites));
    let wrong = taken_again(Again::AsItWas);
    plant(Some(Bug::LateByName));
    let renamed = taken_again(Again::ByAnotherName);
    plant(None);
    assert!(wrong.is_some() && renamed.is_some());
}

/// Who tries first to have the pool served again, while its device hangs.
#[derive(Debug, Clone, Copy)]
enum First {
    /// A resume, which fails.
    Resume,
    /// A resume that is let go of in the middle.
    LetGo,
    /// The pool is opened anew in the same program, which fails.
    Open,
}

/// A flush fails, so the pool is suspended. While it is served again the device hangs in a write, so that this fails. The device
/// answers again, the pool is served; only much later does that write end. Says what was damaged of what was acknowledged since.
fn served_again(how: First) -> Vec<String> {
    let b = Bench::new(1, 0);
    let (one, medium) = (Sticky::new(b.disk(0)), b.media[0].clone());
    b.run(async move {
        let disks: Vec<Rc<dyn Disk>> = vec![one.clone()];
        create(&disks, &spec(1)).await.unwrap();
        let p = Pool::open(disks.clone(), options()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, MIB, 1).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        let data = p.volume(1).unwrap().locate(0).await.unwrap()[0].1;
        medium.next_is(Next::FlushError);
        assert!(write(&p, 1, AT, B, 2).await.is_err());
        // Where data is, the device hangs.
        one.hold.set((data, 7 * MIB));
        match how {
            First::Resume => assert!(p.resume().await.is_err()),
            First::LetGo => assert!(timeout(SECONDS / 2, p.resume()).await.is_err()),
            First::Open => assert!(Pool::open(disks.clone(), options()).await.is_err()),
        }
        one.hold.set(NONE);
        let late = one.places();
        assert!(!late.is_empty(), "it failed for another reason");
        let again = async || match how {
            First::Open => Pool::open(disks.clone(), options()).await,
            _ => p.resume().await.map(|()| p.clone()),
        };
        let p = match again().await {
            Ok(p) => p,
            Err(_) => {
                one.release();
                again().await.unwrap()
            }
        };
        let mut wrote = BTreeMap::new();
        for round in 3..40u8 {
            for k in 0..64 {
                let at = u64::from(round % 2) * MIB + k * B;
                write(&p, 1, at, B, round).await.unwrap();
                wrote.insert(at, round);
            }
            p.checkpoint().await.unwrap();
            let mut used = false;
            for at in (0..2 * MIB).step_by(B as usize).filter(|at| *at != AT) {
                let places = p.volume(1).unwrap().locate(at).await.unwrap();
                used |= places.iter().any(|(_, at)| late.contains(at));
            }
            if used {
                break;
            }
        }
        one.release();
        sleep(SECONDS).await;
        let mut wrong = Vec::new();
        for (at, value) in wrote {
            let found = first(&p, 1, at).await;
            if found != Ok(value) {
                wrong.push(format!("byte {at}: {value} was acknowledged, it is {found:?}"));
            }
        }
        wrong
    })
}

#[test]
fn what_a_failed_resume_gave_up_lands_on_nothing_that_came_since() {
    assert_eq!(served_again(First::Resume), Vec::<String>::new());
}

#[test]
fn what_a_resume_was_writing_when_it_was_let_go_of_lands_on_nothing_that_came_since() {
    assert_eq!(served_again(First::LetGo), Vec::<String>::new());
}

#[test]
fn what_a_failed_open_gave_up_lands_on_nothing_that_came_since() {
    assert_eq!(served_again(First::Open), Vec::<String>::new());
}

#[cfg(feature = "planted")]
#[test]
fn what_a_failed_resume_gave_up_and_nobody_knows_of_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::LateOfDevice));
    let all = [First::Resume, First::LetGo, First::Open].map(served_again);
    plant(None);
    assert!(all.iter().all(|wrong| !wrong.is_empty()), "{all:?}");
}

/// As in [`opened_again`], but another pool is made on the disks. Whether that was done while something was on its way there.
fn made_again() -> bool {
    let b = Bench::new(2, 0);
    let (one, two, media) = (Sticky::new(b.disk(0)), b.disk(1), b.media.clone());
    let disks: Vec<Rc<dyn Disk>> = vec![one.clone(), two];
    let d = disks.clone();
    b.run(async move {
        create(&d, &spec(2)).await.unwrap();
        let p = Pool::open(d, options()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        p.settled().await.unwrap();
        p.close().await.unwrap();
        for (_, copies) in p.blocks_in_use() {
            let at = copies.iter().find(|(n, _)| *n == 0).unwrap().1;
            media[0].poke(at, &[9; B as usize]);
        }
        drop(p);
        one.hold.set(ALL);
        let slow = Options { deadline: 100 * SECONDS, ..options() };
        assert!(timeout(SECONDS, Pool::open(disks.clone(), slow)).await.is_err());
        one.hold.set(NONE);
        assert!(!one.held.borrow().is_empty(), "something is mended");
        let late = one.clone();
        weir_reactor::spawn(async move {
            sleep(5 * SECONDS).await;
            late.release();
        });
        let another = PoolSpec { pool: 78, overwrite: true, ..spec(2) };
        create(&disks, &another).await.unwrap();
        !one.held.borrow().is_empty()
    })
}

#[test]
fn no_pool_is_made_where_an_open_that_was_given_up_still_mends() {
    assert!(!made_again());
}

/// A copy of a map is damaged. A pool is opened, which mends it; the device is slow, and whoever opens the pool goes away. Then
/// it is opened again, and all free space is written to. How many copies are damaged when the device has done all.
fn opened_again() -> u64 {
    let b = Bench::new(2, 0);
    let (one, two, media) = (Sticky::new(b.disk(0)), b.disk(1), b.media.clone());
    let disks: Vec<Rc<dyn Disk>> = vec![one.clone(), two];
    let d = disks.clone();
    b.run(async move {
        create(&d, &spec(2)).await.unwrap();
        let p = Pool::open(d, options()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, MIB, 1).await.unwrap();
        p.settled().await.unwrap();
        p.close().await.unwrap();
        // What is read when it is opened: the table of datasets is among them.
        for (_, copies) in p.blocks_in_use() {
            let at = copies.iter().find(|(n, _)| *n == 0).unwrap().1;
            let mut b = [0; B as usize];
            media[0].peek(at, &mut b);
            if b != [1; B as usize] {
                media[0].poke(at, &[9; B as usize]);
            }
        }
        one.hold.set(ALL);
        let slow = Options { deadline: 100 * SECONDS, ..options() };
        assert!(timeout(SECONDS, Pool::open(disks.clone(), slow.clone())).await.is_err());
        one.hold.set(NONE);
        assert!(!one.held.borrow().is_empty(), "something is mended");
        let late = one.clone();
        weir_reactor::spawn(async move {
            sleep(50 * SECONDS).await;
            late.release();
        });
        let p = Pool::open(disks, slow).await.unwrap();
        for k in 0..80 {
            let _ = write(&p, 1, MIB + k * 65536, 65536, 3).await;
        }
        p.checkpoint().await.unwrap();
        // What nobody has read so far.
        p.scrub(0).await.unwrap();
        sleep(100 * SECONDS).await;
        assert_eq!(p.status().suspended, None);
        p.scrub(0).await.unwrap().damaged
    })
}

#[test]
fn what_an_open_that_was_given_up_mends_lands_on_nothing_that_came_since() {
    assert_eq!(opened_again(), 0);
}

#[cfg(feature = "planted")]
#[test]
fn a_pool_that_is_opened_beside_work_of_one_that_was_given_up_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::OpenedBeside));
    let (damaged, beside) = (opened_again(), made_again());
    plant(None);
    assert!(damaged > 0 && beside);
}

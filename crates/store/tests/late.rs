//! Writes that were given up and have not ended: nothing is put where they may land.

#[path = "common/bench.rs"]
mod bench;

use bench::{Bench, MIB, spec, write};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::SECONDS;
use weir_disk::{Disk, DiskOp};
use weir_reactor::{Token, sleep};
use weir_store::format::superblock::MemberState;
use weir_store::{Options, Pool, create};

/// A disk of which writes are held back for as long as somebody says.
struct Sticky {
    disk: Rc<dyn Disk>,
    hold: Cell<bool>,
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
}

impl Disk for Sticky {
    fn len(&self) -> u64 {
        self.disk.len()
    }
    fn block_size(&self) -> u32 {
        self.disk.block_size()
    }
    fn volatile_cache(&self) -> bool {
        self.disk.volatile_cache()
    }
    fn name(&self) -> &str {
        self.disk.name()
    }
    fn submit(&self, op: DiskOp, token: Token) {
        match self.hold.get() && matches!(op, DiskOp::Write { .. }) {
            true => self.held.borrow_mut().push((op, token)),
            false => self.disk.submit(op, token),
        }
    }
}

fn options() -> Options {
    Options { deadline: SECONDS, resync: false, reuse_at_once: true, ..Options::default() }
}

/// A device that hung was replaced; it is added again while what it was asked for has not ended. `again`: as the same
/// disk opened anew. Says what was damaged.
fn taken_again(again: bool) -> Option<String> {
    let b = Bench::new(3, 0);
    let (zero, one, two) = (b.disk(0), Sticky::new(b.disk(1)), b.disk(2));
    let same: Rc<dyn Disk> = if again { b.disk(1) } else { one.clone() };
    b.run(async move {
        let disks: Vec<Rc<dyn Disk>> = vec![zero, one.clone()];
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, options()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, MIB, 1).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        one.hold.set(true);
        for k in 0..8 {
            write(&p, 1, MIB + k * 65536, 65536, 2).await.unwrap();
        }
        one.hold.set(false);
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
    assert_eq!(taken_again(false), None);
}

#[test]
fn a_device_that_left_is_known_by_its_name_when_it_is_opened_anew() {
    assert_eq!(taken_again(true), None);
}

/// A disk hangs while it is added; nobody adds it again before its writes have ended.
#[test]
fn a_disk_that_could_not_be_added_is_not_taken_again_while_its_writes_are_under_way() {
    let b = Bench::new(3, 0);
    let (disks, slow, other) = (b.disks(&[0, 1]), Sticky::new(b.disk(2)), b.disk(2));
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, options()).await.unwrap();
        slow.hold.set(true);
        assert!(p.add(slow.clone()).await.is_err());
        slow.hold.set(false);
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
    let wrong = taken_again(false);
    plant(None);
    assert!(wrong.is_some());
}

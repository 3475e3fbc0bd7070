//! Each state of a pool is told by two superblocks.

use crate::bench::{B, Bench, MIB, spec, write};
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{IoError, SECONDS};
use weir_disk::{Disk, DiskOp, report};
use weir_reactor::{Token, complete, sleep};
use weir_store::format::label::SUPER_SLOTS;
use weir_store::format::superblock::{MemberState, Superblock};
use weir_store::{Options, Pool, create};

/// A disk that fails for good at the first write of a superblock after so many.
struct Failing {
    disk: Rc<dyn Disk>,
    left: Rc<Cell<u64>>,
    failed: Cell<bool>,
}

impl Disk for Failing {
    crate::wrapped::is_like!(disk);
    fn submit(&self, op: DiskOp, token: Token) {
        // The first of the two areas.
        let supers = 2 * B..(2 + SUPER_SLOTS) * B;
        if matches!(&op, DiskOp::Write { offset, .. } if supers.contains(offset)) {
            self.failed.set(self.failed.get() || self.left.get() == 0);
            self.left.set(self.left.get().saturating_sub(1));
        }
        match self.failed.get() {
            true => complete(token, report(Err(IoError::Offline))),
            false => self.disk.submit(op, token),
        }
    }
}

/// A device without the log fails at the first or second superblock of a checkpoint. Whether the last two superblocks say so.
fn told_twice(passed: u64) -> bool {
    let b = Bench::new(4, 0);
    let (left, mut disks) = (Rc::new(Cell::new(u64::MAX)), b.all());
    let (disk, failed) = (disks[3].clone(), Cell::new(false));
    disks[3] = Rc::new(Failing { disk, left: left.clone(), failed });
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let o = Options { resync: false, ..Options::default() };
        let p = Pool::open(disks, o).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, MIB, 1).await.unwrap();
        p.settled().await.unwrap();
        left.set(passed);
        p.checkpoint().await.unwrap();
        sleep(SECONDS).await;
        assert_eq!(p.status().devices[3].state, MemberState::Out);
    });
    let slot = |n: u64| {
        let mut block = [0; B as usize];
        b.media[0].peek((2 + n) * B, &mut block);
        Some(Superblock::decode_any(&block, 0, n).ok()?.1)
    };
    let mut all: Vec<Superblock> = (0..SUPER_SLOTS).filter_map(slot).collect();
    all.sort_by_key(|s| s.seq);
    let [.., before, last] = &all[..] else { panic!() };
    assert_eq!(last.members[3].state, MemberState::Out);
    before.again() == *last
}

#[test]
fn a_failure_as_superblocks_are_written_is_told_twice() {
    assert_eq!([0, 1].map(told_twice), [true; 2]);
}

#[cfg(feature = "planted")]
#[test]
fn a_failure_that_is_told_once_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::FailureToldOnce));
    let twice = told_twice(1);
    plant(None);
    assert!(!twice);
}

//! A device that went its own way is brought back.

use crate::bench::{B, Bench, MIB, newest, spec, write};
use std::cell::Cell;
use std::rc::Rc;
use weir_disk::{Disk, DiskOp};
use weir_reactor::Token;
use weir_sim::SimMedium;
use weir_store::format::label::SUPER_SLOTS;
use weir_store::{Options, Pool, create};

/// Blocks before the superblocks.
const FRONT: u64 = 2;

/// A disk whose superblocks are wiped; from which epoch on device 1 misses something by what another device says as that begins.
struct Wiped {
    disk: Rc<dyn Disk>,
    other: SimMedium,
    since: Rc<Cell<Option<u32>>>,
}

impl Disk for Wiped {
    crate::wrapped::is_like!(disk);
    fn submit(&self, op: DiskOp, token: Token) {
        let supers = FRONT * B..(FRONT + SUPER_SLOTS) * B;
        if let DiskOp::Write { offset, buf, .. } = &op
            && supers.contains(offset)
            && buf.to_vec().iter().all(|b| *b == 0)
            && self.since.get().is_none()
        {
            self.since.set(newest(&self.other).map(|s| s.members[1].since));
        }
        self.disk.submit(op, token);
    }
}

/// Of a mirror each device went its own way. What the other one says of device 1 when that begins to forget.
fn forgotten() -> Option<u32> {
    let b = Bench::new(2, 7);
    let (one, other, both) = (b.disks(&[0]), b.disks(&[1]), b.all());
    let since = Rc::new(Cell::new(None));
    let wiped = Wiped { disk: b.disk(1), other: b.media[0].clone(), since: since.clone() };
    let again: Vec<Rc<dyn Disk>> = vec![b.disk(0), Rc::new(wiped)];
    b.run(async move {
        create(&both, &spec(2)).await.unwrap();
        let p = Pool::open(both, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, MIB, 1).await.unwrap();
        p.close().await.unwrap();
        for (disks, lineage, times) in [(other, 5, 1), (one, 4, 3)] {
            let o = Options { force: true, lineage, ..Options::default() };
            let p = Pool::open(disks, o).await.unwrap();
            for _ in 0..times {
                write(&p, 1, MIB, MIB, 2).await.unwrap();
                p.checkpoint().await.unwrap();
            }
            p.close().await.unwrap();
        }
        let p = Pool::open(again, Options::default()).await.unwrap();
        p.settled().await.unwrap();
        p.resync().await.unwrap();
        p.settled().await.unwrap();
        assert!(p.status().whole);
    });
    since.get()
}

#[test]
fn a_device_forgets_its_own_history_after_it_is_known_to_miss_everything() {
    assert_eq!(forgotten(), Some(0));
}

#[cfg(feature = "planted")]
#[test]
fn a_device_that_forgets_too_early_is_caught() {
    weir_store::planted::plant(Some(weir_store::planted::Bug::WipedUntold));
    let since = forgotten();
    weir_store::planted::plant(None);
    assert_ne!(since, Some(0));
}

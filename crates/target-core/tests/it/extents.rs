//! GET LBA STATUS of a volume that tells of what it has in steps, as a large one does.

use crate::common::{Data, attach, does_nothing, shared_unit, volume_geometry};
use std::cell::Cell;
use std::rc::Rc;
use weir_base::SECONDS;
use weir_block::{Allocation, Geometry, Volume};
use weir_proto_scsi::initiator as build;
use weir_proto_scsi::lba_status::{LbaStatus, Provisioning};
use weir_proto_scsi::lun::Lun;
use weir_reactor::LocalFuture;
use weir_sim::World;

const BLOCKS: u64 = 1 << 40;

/// Stretches of bytes: where they end, and whether there is data.
struct Told {
    all: Vec<(u64, bool)>,
    /// Bytes that are told of at a time.
    step: u64,
    asked: Rc<Cell<usize>>,
}

impl Volume for Told {
    fn lost(&self) -> u64 {
        0
    }
    fn geometry(&self) -> Geometry {
        Geometry { thin: true, ..volume_geometry(BLOCKS) }
    }
    does_nothing!(read, write, flush, discard, write_zeroes);
    fn find_allocation(&self, at: u64, len: u64) -> LocalFuture<'_, Allocation> {
        self.asked.set(self.asked.get() + 1);
        let last = (u64::MAX, false);
        let (end, mapped) = self.all.iter().copied().find(|(end, _)| *end > at).unwrap_or(last);
        let len = len.min(end - at).min(self.step);
        Box::pin(std::future::ready(Allocation { mapped, len }))
    }
}

/// What is told from a block on, in so many bytes, and how often the volume was asked for it.
fn status(all: Vec<(u64, bool)>, step: u64, lba: u64, alloc: u32) -> (Vec<LbaStatus>, usize) {
    let world = World::new(1);
    let node = world.node("target");
    let run = async move {
        let asked = Rc::new(Cell::new(0));
        let shared = shared_unit(BLOCKS, None);
        let volume = Told { all, step, asked: asked.clone() };
        let host = attach(0, &shared, Rc::new(volume));
        let unit = host.find(Lun::ZERO).expect("mapped");
        let mut told = Vec::new();
        // The first command meets a unit attention.
        for cdb in [build::test_unit_ready(), build::get_lba_status(lba, alloc)] {
            let mut data = Data::answered(alloc);
            let mut pass = unit.pass();
            let o = pass.execute(&host, cdb.as_bytes(), &mut data).await.expect("not stopped");
            pass.told();
            if o.moved_in > 0 {
                told = build::parse_lba_status(&data.answer[..o.moved_in as usize]).unwrap();
            }
        }
        (told, asked.get())
    };
    world.run(&node, 10 * SECONDS, run).unwrap_or_else(|e| panic!("{e}"))
}

fn is(lba: u64, blocks: u32, mapped: bool) -> LbaStatus {
    let status = if mapped { Provisioning::Mapped } else { Provisioning::Deallocated };
    LbaStatus { lba, blocks, status }
}

#[test]
fn stretches_that_are_told_in_steps_are_one() {
    let all = vec![(1 << 20, false), (3 << 20, true), (4 << 20, false), (5 << 20, true)];
    let want = [is(8, 2040, false), is(2048, 4096, true), is(6144, 2048, false)];
    let (told, _) = status(all.clone(), 64 << 20, 8, 8 + 3 * 16);
    assert_eq!(told, want);
    let (told, asked) = status(all.clone(), 512 << 10, 8, 8 + 3 * 16);
    assert_eq!((told.as_slice(), asked <= 16), (&want[..], true), "{asked}");
    // Not without end, and what is told is so.
    let (told, asked) = status(all, 16 << 10, 8, 24);
    assert_eq!((told, asked), (vec![is(8, 17 * 32, false)], 17));
    // Nor more often when the host has room for many.
    let (told, asked) = status(vec![(1 << 40, true)], 16 << 10, 8, 8 + 256 * 16);
    assert_eq!((told, asked), (vec![is(8, 17 * 32, true)], 17));
}

#[test]
fn a_block_that_is_a_hole_in_part_is_none() {
    let all = vec![(100, false), (1000, true), (4096, false), (4200, true)];
    let (told, _) = status(all, 64 << 20, 0, 8 + 3 * 16);
    assert_eq!(told, [is(0, 2, true), is(2, 6, false), is(8, 1, true)]);
}

#[test]
fn a_hole_longer_than_a_descriptor_is_several() {
    let (told, _) = status(vec![], u64::MAX, 3, 8 + 2 * 16);
    assert_eq!(told, [is(3, u32::MAX, false), is(3 + u64::from(u32::MAX), u32::MAX, false)]);
}

//! The volume, as the target has it: what comes to it that must not is seen at once.

use crate::load::Load;
use crate::srp::{DiskVolume, Fault};
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{IoResult, Nanos, Prng};
use weir_block::{Geometry, IoFuture, Volume};
use weir_mem::Slice;
use weir_reactor::sleep;
use weir_sim::check::blocks::{BLOCK, Content, read_block};

/// What all reactors, and all lives of the target, know of it.
#[derive(Default)]
pub(super) struct Nature {
    /// Not 0: nobody sees the volume for this time, and what was under way has ended.
    pub(super) hidden: Cell<u64>,
    /// Longest time that a request takes besides that of the disk, before it and after.
    pub(super) slow: Cell<Nanos>,
}

/// What hosts have done.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) sessions: Cell<u64>,
    /// Commands given up: of these, found by the target.
    pub(super) aborts: Cell<u64>,
    pub(super) resets: Cell<u64>,
    /// Of iSCSI, those that were answered.
    pub(super) logouts: Cell<u64>,
    /// Commands sent before their turn.
    pub(super) early: Cell<u64>,
}

impl Counts {
    pub(super) fn one_more(cell: &Cell<u64>) {
        cell.set(cell.get() + 1);
    }
}

pub(super) struct Watched {
    pub(super) disk: DiskVolume,
    pub(super) load: Rc<Load>,
    pub(super) nature: Rc<Nature>,
    pub(super) fault: Fault,
}

impl Watched {
    fn shown(&self, what: &str) {
        if self.nature.hidden.get() > 0 {
            self.fault.set(format!("{what}, though nobody sees the volume any more"));
        }
    }

    /// Nothing of a write may come that has been answered, or that its host knows to be over.
    fn under_way(&self, when: &str, buf: &Slice) {
        for block in buf.to_vec().chunks(BLOCK) {
            if let Content::Written { write, block, .. } = read_block(block)
                && self.load.is_over(write)
            {
                let what = format!("write {write} of block {block} {when}, though it is over");
                return self.fault.set(what);
            }
        }
    }

    async fn pause(&self) {
        let slow = self.nature.slow.get();
        if slow > 0 {
            // Chance is the scheduler's.
            sleep(Prng::new(weir_reactor::clock()).below(slow)).await;
        }
    }

    async fn watch(&self, what: &str, done: IoFuture<'_>) -> IoResult {
        self.pause().await;
        self.shown(&format!("a {what} begins"));
        let done = done.await;
        self.pause().await;
        self.shown(&format!("a {what} ends"));
        done
    }
}

impl Volume for Watched {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read(&self, offset: u64, buf: Slice) -> IoFuture<'_> {
        IoFuture::new(self.watch("read", self.disk.read(offset, buf)))
    }

    fn write(&self, offset: u64, buf: Slice, fua: bool) -> IoFuture<'_> {
        IoFuture::new(async move {
            self.under_way("begins", &buf);
            let done = self.watch("write", self.disk.write(offset, buf.clone(), fua)).await;
            self.under_way("ends", &buf);
            done
        })
    }

    fn flush(&self) -> IoFuture<'_> {
        IoFuture::new(self.watch("flush", self.disk.flush()))
    }
    fn lost(&self) -> u64 {
        0
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<'_> {
        IoFuture::new(self.watch("discard", self.disk.discard(offset, len)))
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> IoFuture<'_> {
        IoFuture::new(self.watch("zeroing", self.disk.write_zeroes(offset, len, unmap)))
    }
}

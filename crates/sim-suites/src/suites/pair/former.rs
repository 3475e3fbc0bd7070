//! Owners, as long as they are there, also when they own the pool no more: what they are asked, and what they may not tell.

use super::register::Register;
use crate::srp::Fault;
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{MILLIS, Prng};
use weir_block::Volume;
use weir_mem::Slice;
use weir_reactor::sleep;
use weir_store::Pool;

/// An owner that is asked.
pub(super) struct Asked {
    pub(super) pool: Pool,
    pub(super) epoch: u32,
    pub(super) register: Rc<Register>,
    pub(super) fault: Fault,
    pub(super) rng: Prng,
    /// Blocks of the volume that are asked for.
    pub(super) blocks: u64,
    /// How often one was asked that knew that it is none.
    pub(super) count: Rc<Cell<u64>>,
}

impl Asked {
    /// Asks it again and again: whole blocks, parts of them, and where holes are. Once it was told that it owns the pool no more, it tells
    /// nothing.
    pub(super) async fn ask(mut self, volume: Rc<dyn Volume>) {
        while self.fault.get().is_none() {
            sleep(self.rng.between(5, 80) * MILLIS).await;
            let at = self.rng.below(self.blocks) * 4096;
            let what = match self.rng.below(5) {
                0 => volume.read(at, Slice::heap(4096)).await.is_ok().then_some("a block"),
                1 => {
                    let at = at + self.rng.below(7) * 512;
                    let part = Slice::heap(512);
                    volume.read(at, part).await.is_ok().then_some("a part of a block")
                }
                2 if at > 0 => {
                    let parts = Slice::heap(4096);
                    volume.read(at - 512, parts).await.is_ok().then_some("parts of blocks")
                }
                3 => (!volume.allocation(at, 4096).mapped).then_some("a hole"),
                _ => {
                    let found = volume.find_allocation(at, 4096).await;
                    (!found.mapped).then_some("a hole that it looked for")
                }
            };
            let knew = self.register.has_refused(self.epoch);
            // One that does not know yet may learn it as it goes on.
            let is_suspended = self.pool.status().suspended.is_some();
            let goes_on = is_suspended && self.rng.chance(1, 8) && self.pool.resume().await.is_ok();
            if !knew {
                continue;
            }
            self.count.set(self.count.get() + 1);
            if let Some(what) = what {
                let epoch = self.epoch;
                return self
                    .fault
                    .set(format!("owner {epoch}, which knows that it is none, has told {what}"));
            }
            if goes_on {
                let epoch = self.epoch;
                return self
                    .fault
                    .set(format!("owner {epoch}, which knows that it is none, goes on"));
            }
        }
    }
}

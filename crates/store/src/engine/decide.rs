//! Writes that failed with the whole pool: made not to have happened, so that their blocks can be read again.
//!
//! Their pages may be on the devices, and recovery would take them up. Somebody who was answered by an error and has seen
//! then what was there before must not find the new data later; so before their blocks are read a superblock says that the
//! log ends before them.

use super::device::{self, Pending};
use super::{Inner, dataset::Dataset};
use crate::format::turn::{MAX_TURNS, Turn};
use crate::format::{KEPT_LOG, MAX_EPOCH};
use crate::planted::{Bug, has};
use weir_base::{IoError, IoResult, SECONDS};
use weir_disk::{DiskOp, run};
use weir_mem::Slice;
use weir_reactor::{now, patience};

impl Inner {
    /// Of a pool that is suspended: sees to it that it is known what these blocks hold.
    pub(super) async fn decided(&self, ds: &Dataset, lba: u64, count: u64) -> IoResult {
        let open = || ds.undecided.borrow().touches(lba, lba.saturating_add(count));
        if !open() {
            return Ok(());
        }
        let _only = self.deciding.acquire(1).await;
        // Not again and again on behalf of many readers.
        if open() && now() >= self.undecided_until.get() {
            self.undecided_until.set(now() + SECONDS);
            let _ = self.decide().await;
        }
        if open() { Err(IoError::Offline) } else { Ok(()) }
    }

    async fn decide(&self) -> IoResult {
        let limit = self.options.deadline;
        // What is under way ends, all of it with errors.
        let quiet = async {
            while self.ckpt.is_busy() {
                self.ckpt.over.wait().await;
            }
            (self.gate.close().await, self.super_lock.acquire(1).await)
        };
        let Ok(_alone) = patience(limit.saturating_mul(2), quiet).await else {
            return Err(IoError::Busy);
        };
        let mut next = self.durable.borrow().clone();
        let begun = self.begun.borrow().clone().filter(|b| b.seq > next.seq);
        let last = begun.unwrap_or_else(|| next.clone());
        let (lsn, epoch) = (self.log.next_lsn.get(), self.epoch.get() + 1);
        let room = next.base_lsn.saturating_add(next.log_pages);
        if next.turns.len() >= MAX_TURNS || lsn > room || epoch >= MAX_EPOCH - 8 {
            return Err(IoError::Unsupported);
        }
        let (end, chain) = (self.log.stable.get(), self.log.stable_chain.get());
        next.turns.push(Turn { end, first: lsn, sure: lsn, chain, epoch });
        (next.previous, next.seq) = (last.chain(), last.seq + 1);
        next.incarnation = self.incarnation.get() + 1;
        next.next_dataset = self.next_dataset.get();
        next.incompat |= KEPT_LOG;
        next.members = self.devices.borrow().iter().map(|d| d.member()).collect();
        let devices = self.devices.borrow().clone();
        let current: Vec<_> = devices.iter().filter(|d| d.is_current_to_read()).collect();
        // All that any superblock calls current: none of them may come back with the old end of the log.
        let all = next.members.iter().zip(&devices).all(|(m, d)| {
            m.state != crate::format::superblock::MemberState::InSync || d.is_current_to_read()
        });
        if !all || current.is_empty() {
            return Err(IoError::Offline);
        }
        self.begun.replace(Some(next.clone()));
        let mut io: Vec<Pending> = Vec::new();
        for d in &current {
            for area in 0..2 {
                let buf = Slice::copy_of(&next.encode(d.id, area)[..]);
                self.count(|c| c.media_writes += 1);
                d.submit_write(d.layout.superblock(u64::from(area), next.seq), &buf, &mut io);
            }
        }
        if let Some((_, e)) = device::wait(&mut io, limit).await.first() {
            return Err(*e);
        }
        for d in &current {
            let Some(disk) = d.disk.as_ref().filter(|d| d.volatile_cache()) else { continue };
            patience(limit, run(&**disk, DiskOp::Flush)).await.unwrap_or(Err(IoError::Offline))?;
        }
        self.durable.replace(next);
        for ds in self.datasets.borrow().values() {
            ds.undecided.take();
        }
        Ok(())
    }
}

impl super::log::Effect {
    /// It may be found to have happened when the pool is opened again. Nobody may see before that that it did not.
    pub(super) fn is_undecided(&self) {
        use super::log::Effect;
        let (ds, lba, blocks) = match self {
            Effect::Put(ds, lba, _) => (ds, *lba, 1),
            Effect::Wipe(ds, lba, blocks) => (ds, *lba, *blocks),
            Effect::None => return,
        };
        if !has(Bug::UndecidedIsOld) {
            ds.undecided.borrow_mut().add(lba, lba.saturating_add(blocks));
        }
    }
}

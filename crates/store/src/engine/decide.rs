//! Writes that failed with the whole pool: made not to have happened, so that their blocks can be read again.
//!
//! Their pages may be on the devices, and recovery would take them up. Somebody who was answered by an error and has seen
//! then what was there before must not find the new data later; so before their blocks are read a superblock says that the
//! log ends before them.

use super::device::{self, Device, Pending};
use super::labels::{label_within, superblocks};
use super::{Inner, dataset::Dataset};
use crate::format::superblock::{MemberState, Superblock};
use crate::format::turn::{MAX_TURNS, Turn};
use crate::format::{KEPT_LOG, MAX_EPOCH};
use crate::planted::{Bug, has};
use std::rc::Rc;
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
        // Whoever has the pool go on may be waiting for a device that does not answer. Nobody else waits for that.
        let limit = self.options.deadline.saturating_mul(2);
        let Ok(_only) = patience(limit, self.deciding.acquire(1)).await else {
            return if open() { Err(IoError::Offline) } else { Ok(()) };
        };
        if self.over.get() {
            // The pool has been opened anew, and that decided.
            return if open() { Err(IoError::Offline) } else { Ok(()) };
        }
        // Not again and again on behalf of many readers.
        if open() && now() >= self.undecided_until.get() {
            self.undecided_until.set(now() + SECONDS);
            let _ = self.decide().await;
        }
        if open() { Err(IoError::Offline) } else { Ok(()) }
    }

    async fn decide(&self) -> IoResult {
        if self.superseded.get() || self.is_fenced() {
            // What it would write does not follow what was begun since, and would contradict it. The next try to go on decides.
            return Err(IoError::Offline);
        }
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
        if self.ckpt.is_ended() && !has(Bug::DecidedAfterClose) {
            // Whoever has the devices by now decides.
            return Err(IoError::Offline);
        }
        let mut next = self.durable.borrow().clone();
        self.keep_readable();
        let begun: Vec<Superblock> = self.begun.borrow().clone();
        let last = begun.last().unwrap_or(&next).clone();
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
        next.owner_epoch = self.owner_epoch();
        // Who was current when it was suspended is so still.
        for (m, d) in next.members.iter_mut().zip(self.devices.borrow().iter()) {
            m.spares_used = d.spares_used.get().max(m.spares_used);
        }
        let began = last.incarnation >= next.incarnation;
        let devices = self.devices.borrow().clone();
        let current: Vec<_> = devices.iter().filter(|d| d.is_current_to_read()).collect();
        // All that any superblock calls current: none of them may come back with the old end of the log.
        let all = next
            .members
            .iter()
            .zip(&devices)
            .all(|(m, d)| m.state != MemberState::InSync || d.is_current_to_read());
        if !all || current.is_empty() {
            return Err(IoError::Offline);
        }
        // Nor is anything of now written on what is older: one that was put back to an earlier state.
        let blind = has(Bug::DecidedOnOlder) || has(Bug::DecidedOverResume);
        for d in &current {
            if !blind && !self.is_as_left(d).await {
                return Err(IoError::Offline);
            }
        }
        // A superblock is begun when every device has the one before it. Of those that were begun and not made durable some
        // devices may have one, and others none.
        for s in begun.iter().filter(|_| !has(Bug::BegunLeftOut)) {
            self.put(&current, s).await?;
        }
        if began && !has(Bug::BegunLeftOut) {
            // One like this one came as far as that before.
            next = last;
        } else {
            self.begun.borrow_mut().push(next.clone());
            self.put(&current, &next).await?;
        }
        if !has(Bug::WrittenOnce) {
            next = next.again();
            self.begun.borrow_mut().push(next.clone());
            self.put(&current, &next).await?;
        }
        self.durable.replace(next);
        self.begun.take();
        for ds in self.datasets.borrow().values() {
            ds.undecided.take();
        }
        Ok(())
    }

    /// Whether a device is as this life has left it: its newest superblock is one that was written, or begun, last, and its log
    /// has what was acknowledged last.
    async fn is_as_left(&self, d: &Rc<Device>) -> bool {
        let (Some(disk), limit) = (d.disk.clone(), self.options.deadline) else { return false };
        let Ok(label) = label_within(&disk, limit).await else { return false };
        let Ok(ring) = superblocks(&disk, &label, limit).await else { return false };
        let Some(newest) = ring.newest() else { return false };
        let is_known = {
            let (durable, begun) = (self.durable.borrow(), self.begun.borrow());
            begun.iter().chain([&*durable]).any(|s| s.chain() == newest.chain())
        };
        label.device == d.id && is_known && self.has_last_page(d).await
    }

    /// Makes a superblock durable on devices that failed with the pool.
    async fn put(&self, devices: &[&Rc<Device>], s: &Superblock) -> IoResult {
        let limit = self.options.deadline;
        let mut io: Vec<Pending> = Vec::new();
        for d in devices {
            for area in 0..2 {
                let buf = Slice::copy_of(&s.encode(d.id, area)[..]);
                self.count(|c| c.media_writes += 1);
                d.submit_write(d.layout.superblock(u64::from(area), s.seq), &buf, &mut io);
            }
        }
        if let Some((_, e)) = device::wait(&mut io, limit).await.first() {
            return Err(*e);
        }
        for d in devices {
            let Some(disk) = d.disk.as_ref().filter(|d| d.volatile_cache()) else { continue };
            patience(limit, run(&**disk, DiskOp::Flush)).await.unwrap_or(Err(IoError::Offline))?;
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

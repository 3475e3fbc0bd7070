//! Recovery: the log of all halves, united; what was acknowledged is in, and everything that was seen.
//!
//! What the log has is taken up into memory, and the log stays what it is: merging it into the maps takes long, and is
//! done by a checkpoint while the pool serves. Only what recovery decided has to last: what of the pages that may not be
//! whole is found to have happened is logged anew, by the recovery, and a superblock draws the line.

use super::gather::Gather;
use super::log::SPARE_PAGES;
use super::old_log::OldLog;
use super::{Inner, StoreError, StoreResult, device};
use crate::format::log::{Entry, Found, PageBuilder, PageHead, blocks_in, entries};
use crate::format::superblock::Superblock;
use crate::format::tree::MapEntry;
use crate::format::turn::{MAX_TURNS, Turn};
use crate::format::{KEPT_LOG, LAST_EPOCH};
use crate::planted::{Bug, has};
use std::rc::Rc;
use weir_base::{IoError, MILLIS};
use weir_mem::Slice;
use weir_reactor::{sleep, spawn_task};

/// What is logged anew.
#[derive(Default)]
pub(super) struct Again(Vec<PageBuilder>);

impl Again {
    fn room(&mut self, slots: usize) -> Option<&mut PageBuilder> {
        if self.0.last().is_none_or(|p| p.room() < slots) {
            self.0.push(PageBuilder::default());
        }
        self.0.last_mut()
    }

    fn entry(&mut self, e: &Entry) {
        if let Some(p) = self.room(e.slots()) {
            p.push(e);
        }
    }

    /// Adds blocks side by side, of which `first` is the first one's entry.
    pub(super) fn run(
        &mut self,
        dataset: u32,
        mut lba: u64,
        mut first: MapEntry,
        mut crcs: &[u32],
    ) {
        while !crcs.is_empty() {
            let Some(p) = self.room(1) else { return };
            let (now, later) = crcs.split_at(blocks_in(p.room()).min(crcs.len()));
            p.write(dataset, lba, first, now);
            (lba, first.vbn) = (lba + now.len() as u64, first.vbn + now.len() as u64);
            crcs = later;
        }
    }
}

impl Inner {
    /// Takes up the log, repairs the halves, and begins a new incarnation. `before`: the life that this one is to go on from.
    pub(crate) async fn recover(self: &Rc<Self>, before: Option<&Inner>) -> StoreResult {
        if let Some(b) = before {
            b.is_followed_by(&self.durable.borrow())?;
            b.is_in_each(self).await?;
        }
        // That others lack what is written here is told before the first superblock. A half that does not open must not take the pool
        // from one that does.
        if has(Bug::ToldBeforeOpen) && !self.options.read_only {
            self.agree().await?;
        }
        self.complete_super().await?;
        let mut old = self.read_log().await?;
        if let Some(b) = before {
            b.is_in(self, &old)?;
        }
        // Whatever was written by a life that is over was born before this.
        let mut newest = self.epoch.get();
        let (mut gather, mut again) = (Gather::default(), Again::default());
        let mut doubtful = self.doubtful(&old)?;
        let any = !old.pages.is_empty();
        let mut taken = 0;
        for (lsn, page) in std::mem::take(&mut old.pages) {
            for e in entries(&page.block) {
                let e = e.map_err(|e| StoreError::Pool(format!("page {lsn} of the log: {e}")))?;
                taken += 1;
                if let Found::Write(r) = &e {
                    newest = newest.max(r.birth);
                }
                match e {
                    Found::Write(r) if lsn < old.stable => gather.run(self, &r)?,
                    Found::Write(r) => {
                        self.judge(&r, &mut gather, &mut again, &mut doubtful).await?
                    }
                    Found::Other(e) => {
                        if lsn >= old.stable {
                            again.entry(&e);
                        }
                        gather.settle(self);
                        self.replay(e);
                    }
                }
            }
        }
        gather.settle(self);
        self.count(|c| c.replayed += taken);
        // Blocks that were replaced on the way here; no checkpoint follows at once that would have them.
        self.log.replaced.borrow_mut().drain(..).for_each(|e| again.entry(&e));
        let newest = newest.max(self.epoch.get());
        self.epoch.set(newest.saturating_add(3).min(LAST_EPOCH).max(newest));
        if self.options.read_only {
            // What is there can be read.
            self.suspend(IoError::ReadOnly);
            return Ok(());
        }
        // Only now: if the log knew of superblocks that cannot be read, the pool is not opened, and nobody gave them up.
        self.forget_hidden().await?;
        let unused = old.next + again.0.len() as u64 + 1;
        if any && self.keep_log(&old, again).await? {
            let mut space = self.space.borrow_mut();
            doubtful.unused().for_each(|vbn| space.release(vbn));
            return Ok(());
        }
        // Until the checkpoint is durable the log still has them.
        self.pending.borrow_mut().extend(doubtful.unused());
        self.flush_devices(u128::MAX).await;
        self.check_running()?;
        if !has(Bug::SameIncarnation) {
            self.incarnation.set(self.incarnation.get() + 1);
            self.log.next_lsn.set(unused);
        }
        self.log.stable.set(self.log.next_lsn.get());
        self.log.chain.set(old.chain);
        self.log.stable_chain.set(old.chain);
        Ok(self.run_checkpoint(|_| {}).await?)
    }

    /// Makes recovery's verdicts last without merging the log. False: that is not possible, and nothing but pages that
    /// nobody believes was written.
    async fn keep_log(self: &Rc<Self>, old: &OldLog, again: Again) -> StoreResult<bool> {
        let (seq, room, mut turns) = {
            let s = self.durable.borrow();
            (s.seq, s.base_lsn.saturating_add(s.log_pages), s.turns.clone())
        };
        let (first, mut sure) = (old.next, old.next + again.0.len() as u64);
        let set: Vec<_> = self.log.set.borrow().iter().filter_map(|n| self.device(*n)).collect();
        let on_some = || set.iter().any(|d| d.is_current());
        let possible = turns.len() < MAX_TURNS && sure + SPARE_PAGES <= room;
        if !possible || !on_some() {
            return Ok(false);
        }
        let life = self.incarnation.get() + u32::from(!has(Bug::SameIncarnation));
        let (mut chain, mut end) = (old.stable_chain, old.stable);
        let mut io = Vec::new();
        for (lsn, p) in (first..).zip(again.0) {
            let head = PageHead {
                pool: self.tag,
                incarnation: life,
                owner_epoch: self.owner_epoch(),
                lsn,
                previous: chain,
                stable: old.stable,
                base_seq: seq,
                recovery: true,
            };
            let (block, crc) = p.seal(&head);
            chain = crc;
            let buf = Slice::copy_of(&block[..]);
            for d in set.iter().filter(|d| d.is_current()) {
                self.count(|c| c.media_writes += 1);
                d.submit_write(d.layout.log(lsn), &buf, &mut io);
            }
        }
        let failed = device::wait(&mut io, self.options.deadline).await;
        self.note_failures(failed);
        // With what was repaired. Only then may a superblock say that it is there.
        if !has(Bug::SuperblockBeforeFlush) {
            self.flush_devices(u128::MAX).await;
        }
        self.check_running()?;
        self.check_space()?;
        if !on_some() {
            return Ok(false);
        }
        if has(Bug::TailUnjudged) {
            (end, sure, chain) = (old.next, old.next, old.chain);
        }
        turns.push(Turn { end, first, sure, chain, epoch: self.epoch.get() });
        self.incarnation.set(life);
        self.log.next_lsn.set(sure);
        self.log.stable.set(sure);
        self.log.chain.set(chain);
        self.log.stable_chain.set(chain);
        self.count(|c| c.logs_kept += 1);
        let me = self.clone();
        let draw = async move {
            let only = me.super_lock.acquire(1).await;
            let change = |s: &mut Superblock| {
                s.incarnation = life;
                (s.lineage, s.parent_lineage) = me.lineage.get();
                s.next_dataset = me.next_dataset.get();
                s.turns.clone_from(&turns);
                s.incompat |= KEPT_LOG;
            };
            let written = me.write_super(change).await;
            drop(only);
            written
        };
        if has(Bug::ServeBeforeSuperblock) {
            spawn_task(async move {
                sleep(2 * MILLIS).await;
                let _ = draw.await;
            });
            return Ok(true);
        }
        draw.await?;
        Ok(true)
    }

    /// Takes up an entry that is no write.
    fn replay(&self, e: Entry) {
        let dataset = |id: u32| self.datasets.borrow().get(&id).cloned();
        match e {
            // Writes are gathered.
            Entry::Write { .. } => {}
            Entry::Trim { dataset: id, lba, blocks } => {
                if let Some(ds) = dataset(id) {
                    self.apply_wipe(&ds, lba, blocks);
                }
            }
            Entry::Poison { dataset: id, lba, birth } => {
                if let Some(ds) = dataset(id) {
                    self.apply_put(&ds, lba, MapEntry::poison(birth));
                }
            }
            Entry::Snapshot { source, id, clone, epoch, created, name } => {
                if let Some(ds) = dataset(source) {
                    self.apply_snapshot(&ds, id, clone, epoch, created, name);
                }
            }
            Entry::Remap { device, from, spare } => {
                if let Some(d) = self.device(device) {
                    d.take_remap(from, spare);
                }
            }
        }
    }
}

//! Recovery: the log of both halves, united; what was acknowledged is in, and everything that was seen.

use super::log::WINDOW;
use super::{Inner, StoreError, StoreResult, block_of, slice_crc};
use crate::format::log::{Entry, PageHead, decode_entries, decode_head};
use crate::format::tree::MapEntry;
use crate::format::{BLOCK, Block, MAX_EPOCH};
use crate::planted::{Bug, has};
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_mem::Slice;

/// Pages read at once.
const CHUNK: u64 = 64;

type Pages = BTreeMap<u64, (PageHead, u64, Box<Block>)>;

fn damaged(text: String) -> StoreError {
    StoreError::Pool(text)
}

impl Inner {
    /// Takes up the log, repairs the halves, and makes a checkpoint with a new incarnation.
    pub(crate) async fn recover(self: &Rc<Self>) -> StoreResult {
        self.complete_super().await?;
        let pages = self.read_log().await?;
        let stable = pages.values().map(|(h, ..)| h.stable).max().unwrap_or(0);
        let base = self.log.next_lsn.get();
        let mut expected = self.log.chain.get();
        let mut next = base;
        for lsn in base..stable.max(base) {
            if !pages.contains_key(&lsn) {
                return Err(damaged(format!(
                    "page {lsn} of the log is lost on every half, though it was acknowledged"
                )));
            }
        }
        for (lsn, (head, crc, _)) in &pages {
            if *lsn == next && head.previous != expected {
                return Err(damaged(format!(
                    "page {lsn} of the log does not follow the one before"
                )));
            }
            (next, expected) = (*lsn + 1, *crc);
        }
        // Whatever was written by a life that is over was born before this.
        let seen = self.epoch.get();
        let mut newest = seen;
        for (lsn, (.., block)) in &pages {
            let entries = decode_entries(block);
            let entries = entries.map_err(|e| damaged(format!("page {lsn} of the log: {e}")))?;
            for e in entries {
                if let Entry::Write { birth, .. } = &e {
                    newest = newest.max(*birth);
                }
                self.replay(e, *lsn < stable).await?;
            }
        }
        let after = newest.max(self.epoch.get()).saturating_add(3).min(MAX_EPOCH);
        self.epoch.set(after);
        self.flush_devices(u128::MAX).await;
        self.check_running()?;
        if !has(Bug::SameIncarnation) {
            self.incarnation.set(self.incarnation.get() + 1);
            self.log.next_lsn.set(next + 1);
        }
        self.log.stable.set(self.log.next_lsn.get());
        self.log.chain.set(expected);
        self.unrecorded.set(false);
        Ok(self.run_checkpoint(|_| {}).await?)
    }

    /// Reads the live part of the log from every half.
    async fn read_log(&self) -> StoreResult<Pages> {
        let (base, ring, seq, incarnation) = {
            let s = self.durable.borrow();
            (s.base_lsn, s.log_pages, s.seq, s.incarnation)
        };
        let mut pages = Pages::new();
        let mut halves: Vec<u16> = self.log.set.borrow().clone();
        if has(Bug::ReplayOneLog) {
            halves.truncate(1);
        }
        for number in halves {
            let Some(d) = self.device(number).filter(|d| d.is_current()) else { continue };
            let (mut lsn, mut last) = (base, base);
            let end = base.saturating_add(ring);
            while lsn < end && lsn <= last.saturating_add(WINDOW) {
                let slot = lsn % ring;
                let n = CHUNK.min(ring - slot).min(end - lsn);
                let buf = Slice::heap(n as usize * BLOCK);
                let whole = d.read(d.layout.log(lsn), &buf, self.options.deadline).await.is_ok();
                for i in 0..n {
                    let part = match whole {
                        true => buf.sub(i as usize * BLOCK, BLOCK),
                        // A read that was given up may still write to the other memory.
                        false => Slice::heap(BLOCK),
                    };
                    let at = lsn + i;
                    if !whole
                        && d.read(d.layout.log(at), &part, self.options.deadline).await.is_err()
                    {
                        continue;
                    }
                    let b = block_of(&part);
                    let Ok((head, crc)) = decode_head(&b, self.tag) else { continue };
                    if head.lsn % ring != slot + i {
                        continue;
                    }
                    let newer = head.incarnation > incarnation
                        || (head.incarnation == incarnation && head.base_seq > seq);
                    if newer {
                        return Err(damaged(format!(
                            "the log knows superblock {} of incarnation {}, the newest that can be \
                             read is {seq} of {incarnation}: superblocks were lost",
                            head.base_seq, head.incarnation
                        )));
                    }
                    if head.incarnation == incarnation && head.lsn == at {
                        pages.entry(at).or_insert((head, crc, b));
                        last = last.max(at);
                    }
                }
                lsn += n;
            }
        }
        Ok(pages)
    }

    /// Takes up one entry. `sure`: it was durable on all halves.
    async fn replay(self: &Rc<Self>, e: Entry, sure: bool) -> StoreResult {
        self.count(|c| c.replayed += 1);
        let dataset = |id: u32| self.datasets.borrow().get(&id).cloned();
        match e {
            Entry::Write { dataset: id, lba, vbn, birth, crcs } => {
                let Some(ds) = dataset(id) else { return Ok(()) };
                for (i, crc) in crcs.into_iter().enumerate() {
                    let (lba, vbn) = (lba + i as u64, vbn + i as u64);
                    if !self.space.borrow().is_place(vbn) {
                        return Err(damaged(format!(
                            "the log names block {vbn}, which is no place"
                        )));
                    }
                    let entry = MapEntry { vbn, birth, crc };
                    if !sure && !self.complete(ds.family, lba, entry).await? {
                        self.count(|c| c.replay_dropped += 1);
                        continue;
                    }
                    if !self.space.borrow_mut().take(vbn) {
                        let by = match self.space.borrow().is_on_disk(vbn) {
                            true => "the checkpoint",
                            false => "another entry",
                        };
                        return Err(damaged(format!(
                            "the log writes block {vbn} for dataset {id} in epoch {birth}, which {by} \
                             uses; the checkpoint is of epoch {}",
                            self.durable.borrow().epoch
                        )));
                    }
                    self.apply_put(&ds, lba, entry);
                }
            }
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
        Ok(())
    }

    /// Whether the data of an entry was written to any half; if so, it is brought to all others. What reads well is written
    /// again too: after a flush that failed, a device can still show from its cache what the medium never got, and
    /// later flushes do not bring it there.
    async fn complete(&self, family: u32, lba: u64, e: MapEntry) -> IoResult<bool> {
        if has(Bug::ReplayWithoutData) {
            return Ok(true);
        }
        let id = self.identity(family, lba, e.birth, e.vbn);
        let (mut data, mut good, mut bad) = (None, Vec::new(), Vec::new());
        for (d, at) in self.copies_of(e.vbn).into_iter().flatten() {
            if !d.is_current() {
                continue;
            }
            let buf = Slice::heap(BLOCK);
            match d.read(at, &buf, self.options.deadline).await {
                Ok(()) if !self.options.sum_data || slice_crc(&id, &buf, 0) == e.crc => {
                    data.get_or_insert(buf);
                    good.push((d, at));
                }
                Err(IoError::Offline) => return Err(IoError::Offline),
                _ => bad.push((d, at)),
            }
        }
        let Some(data) = data else { return Ok(false) };
        if has(Bug::ServeBeforeRepair) {
            return Ok(true);
        }
        for (d, at) in good {
            if !d.usable() || self.options.read_only {
                continue;
            }
            self.count(|c| c.media_writes += 1);
            match d.write(at, &data, self.options.deadline).await {
                Ok(()) => {}
                Err(IoError::Medium) => bad.push((d, at)),
                Err(e) => self.device_failed(&d, e),
            }
        }
        for (d, at) in bad {
            self.count(|c| c.replay_repairs += 1);
            self.mend(&d, at, &data).await;
        }
        Ok(true)
    }
}

//! The write path: lock, admit, place, sum, log and write at once, commit.

use super::coming::Coming;
use super::dataset::Dataset;
use super::locks::RangeLock;
use super::log::{Effect, Group, PAGES};
use super::{Inner, sum_at, summed};
use crate::format::log::Entry;
use crate::format::tree::{LEAF, MAX_HEIGHT, MapEntry};
use crate::format::{BLOCK, DataSum, MAX_LBA};
use crate::planted::{Bug, has};
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_codec::crc32c;
use weir_mem::Slice;

/// Blocks of one write at most; longer ones are cut.
pub(crate) const MOST: u64 = 256;

/// What a change leaves of the space that is kept free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leave {
    /// All of it: whatever hosts write.
    All,
    /// Half of it: what gives space back sooner or later takes some first. A discard of what a snapshot has is noted in its list,
    /// and only deletions give that back; they must find room.
    Half,
    /// Nothing.
    Nothing,
}

impl Inner {
    /// Blocks that stay free for maps and deletions.
    pub(crate) fn reserve(&self) -> u64 {
        (self.space.borrow().total() / 25).max(32)
    }

    /// Blocks that the next checkpoint writes at most, when `more` blocks are written before.
    fn checkpoint_needs(&self, more: u64, free: u64) -> u64 {
        let coming = match has(Bug::ComingNotCounted) {
            true => Coming::default(),
            false => self.log.coming.get(),
        };
        let entries = self.ckpt.entries.get() + more + coming.entries;
        // Most of the time a rough bound is enough.
        let rough = entries * 7 + 16;
        if rough < free / 2 {
            return rough;
        }
        let datasets = self.datasets.borrow();
        let nodes: u64 = datasets.values().map(|d| d.nodes()).sum();
        let tables = datasets.len() as u64 / 15 + 2 + entries / 256;
        // What comes is in a row: it touches few nodes of each level.
        let levels = u64::from(MAX_HEIGHT) + 1;
        nodes + (more / LEAF as u64 + 2 + coming.leaves) * levels + tables + 16
    }

    /// Whether there is space for `blocks` more.
    pub(super) fn has_space(&self, blocks: u64, leave: Leave) -> bool {
        let free = self.space.borrow().free();
        let reserve = match leave {
            Leave::All => self.reserve(),
            Leave::Half if !has(Bug::DiscardsTakeAll) => self.reserve() / 2,
            Leave::Half | Leave::Nothing => 0,
        };
        let changes = blocks.max(2);
        free >= blocks + reserve + self.checkpoint_needs(changes, free)
    }

    /// Blocks that can be written before the pool is full.
    pub(crate) fn room(&self) -> u64 {
        let free = self.space.borrow().free();
        free.saturating_sub(self.reserve() + self.checkpoint_needs(2, free))
    }

    /// Another checkpoint would give nothing back. A full pool that is written to all the time would use up its epochs
    /// by them.
    fn is_settled(&self) -> bool {
        let nothing_new = self.pending.borrow().is_empty() && self.ckpt.entries.get() == 0;
        nothing_new && self.ckpt.is_idle() && self.log.is_idle()
    }

    /// Waits until a change of `blocks` blocks fits the log and the pool. It may not fit any more once
    /// the caller has waited for something else.
    pub(crate) async fn admit(&self, blocks: u64, leave: Leave) -> IoResult {
        self.admit_pages(blocks, leave, PAGES).await
    }

    /// As [`admit`](Inner::admit), of a change that adds so many pages to the log.
    pub(crate) async fn admit_pages(&self, blocks: u64, leave: Leave, pages: u64) -> IoResult {
        let mut checkpoints = 0;
        loop {
            self.check_running()?;
            let (log, space) = (self.log_has_room(pages), self.has_space(blocks, leave));
            if log && space {
                return Ok(());
            }
            let full = checkpoints >= 3 || self.is_settled();
            if log && full && !self.is_reaping() {
                return Err(IoError::NoSpace);
            }
            self.log_moves().await?;
            if !self.log_has_room(pages) || !self.has_space(blocks, leave) {
                self.checkpoint_now().await?;
                checkpoints += 1;
            }
        }
    }

    /// Writes whole blocks under a lock that the caller holds. They must fit `sums`, if there are any. `of`: what they were made
    /// of was read, or the volume's end was looked at, in this map of the volume (see [`Dataset::maps`]); in another one nothing is
    /// written.
    pub(crate) async fn write_locked(
        self: &Rc<Self>,
        ds: &Rc<Dataset>,
        lba: u64,
        buf: Slice,
        sums: Option<Slice>,
        of: Option<u64>,
        lock: Option<RangeLock>,
    ) -> IoResult {
        let count = (buf.len() / BLOCK) as u64;
        debug_assert!(count <= MOST);
        let pass = loop {
            self.admit(count, Leave::All).await?;
            let pass = self.gate.enter().await;
            if self.log_has_room(PAGES) && self.has_space(count, Leave::All) {
                break pass;
            }
        };
        self.check_running()?;
        if ds.deleting.get() {
            return Err(IoError::Offline);
        }
        // The lock does not keep a cut from giving the volume another map while this one waited. From here on the gate does.
        if of.is_some_and(|map| map != ds.maps.get()) && !has(Bug::PartOfAnother) {
            return Err(IoError::Aborted);
        }
        let g = self.open_group();
        let (done, result) = self.place(&g, ds, lba, &buf, sums.as_ref());
        if done == 0 {
            return result;
        }
        self.submit_group(&g, lock, pass);
        g.wait().await.and(result)
    }

    /// Places, sums and logs whole blocks, and starts writing them. Nothing waits: what is placed is
    /// logged. Returns how many blocks were placed, and why not all.
    fn place(
        &self,
        g: &Group,
        ds: &Rc<Dataset>,
        lba: u64,
        buf: &Slice,
        sums: Option<&Slice>,
    ) -> (u64, IoResult) {
        let count = (buf.len() / BLOCK) as u64;
        let birth = self.epoch.get();
        let mut crcs = [0u32; MOST as usize];
        if self.options.sum_data {
            for (i, crc) in crcs[..count as usize].iter_mut().enumerate() {
                *crc = summed(buf, i * BLOCK, |data| self.data_sum.bare(data));
                let Some(sums) = sums else { continue };
                // After the map's own has been taken: what changes in between shows.
                let now = match self.data_sum {
                    DataSum::Crc32c => *crc,
                    DataSum::Crc32k => summed(buf, i * BLOCK, crc32c),
                };
                if sum_at(sums, i) != now {
                    return (0, Err(IoError::Changed(i as u32)));
                }
            }
        }
        let mut done = 0;
        while done < count {
            let found = self.space.borrow_mut().alloc(count - done);
            let Some((vbn, n)) = found else { return (done, Err(IoError::NoSpace)) };
            let masked = &mut crcs[done as usize..(done + n) as usize];
            for (k, crc) in (0..).zip(masked.iter_mut()) {
                *crc ^= self.identity(ds.family, lba + done + k, birth, vbn + k).mask();
            }
            let data = buf.sub(done as usize * BLOCK, n as usize * BLOCK);
            let first = MapEntry { vbn, birth, crc: 0 };
            if let Err(e) = self.add_write(g, ds, lba + done, first, masked, &data) {
                return (done, Err(e));
            }
            done += n;
        }
        (done, Ok(()))
    }

    /// Makes whole blocks read as zeros, under a lock that the caller holds.
    pub(crate) async fn wipe_locked(
        self: &Rc<Self>,
        ds: &Rc<Dataset>,
        lba: u64,
        blocks: u64,
        lock: RangeLock,
    ) -> IoResult {
        if blocks == 0 {
            return Ok(());
        }
        assert!(lba + blocks <= MAX_LBA, "it is inside the largest volume");
        let pass = loop {
            self.admit(0, Leave::Half).await?;
            let pass = self.gate.enter().await;
            let space = self.has_space(0, Leave::Half) || has(Bug::HeldBackUncounted);
            if self.log_has_room(PAGES) && space {
                break pass;
            }
        };
        self.check_running()?;
        if ds.deleting.get() {
            return Err(IoError::Offline);
        }
        let g = self.open_group();
        let entry = Entry::Trim { dataset: ds.id, lba, blocks };
        self.add_entry(&g, &entry, Effect::Wipe(ds.clone(), lba, blocks));
        self.submit_group(&g, Some(lock), pass);
        g.wait().await
    }

    /// Makes the loss of a block permanent until it is written, under a lock that the caller holds: of the one that `lost`
    /// stands for, of which every copy is wrong. False: the volume has another one there by now, and that is left alone.
    pub(crate) async fn poison(
        &self,
        ds: &Rc<Dataset>,
        lba: u64,
        lost: MapEntry,
    ) -> IoResult<bool> {
        let pass = loop {
            self.admit(0, Leave::Half).await?;
            let pass = self.gate.enter().await;
            let space = self.has_space(0, Leave::Half) || has(Bug::HeldBackUncounted);
            if self.log_has_room(PAGES) && space {
                break pass;
            }
        };
        self.check_running()?;
        // The lock does not keep a cut from giving the volume another map while this one waited. From here on the gate does.
        let pin = self.pins.pin();
        let is_it = async || IoResult::Ok(self.entry(&pin, ds, lba).await? == lost);
        if !has(Bug::PoisonForAnother) && (ds.deleting.get() || !is_it().await?) {
            return Ok(false);
        }
        drop(pin);
        let birth = self.epoch.get();
        let g = self.open_group();
        let entry = Entry::Poison { dataset: ds.id, lba, birth };
        let effect = Effect::Put(ds.clone(), lba, MapEntry::poison(birth));
        self.add_entry(&g, &entry, effect);
        self.submit_group(&g, None, pass);
        g.wait().await.map(|()| true)
    }
}

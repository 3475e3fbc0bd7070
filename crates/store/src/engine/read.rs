//! The read path: find, read from one copy, verify, else heal.

use super::dataset::Dataset;
use super::device::{Device, Unread};
use super::stage::Found;
use super::{Inner, summed};
use crate::format::dataset::MapRoot;
use crate::format::tree::{self, LEAF, MapEntry};
use crate::format::{BLOCK, Block, DataSum};
use crate::planted::{Bug, has};
use std::borrow::Cow;
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_block::fill_sums;
use weir_codec::crc32c;
use weir_mem::Slice;
use weir_reactor::CompletionFuture;

/// `count` blocks from block `at` on of a buffer; most often all of it.
pub(super) fn part_of(buf: &Slice, at: usize, count: usize) -> Cow<'_, Slice> {
    match at == 0 && count * BLOCK == buf.len() {
        true => Cow::Borrowed(buf),
        false => Cow::Owned(buf.sub(at * BLOCK, count * BLOCK)),
    }
}

/// What became of a read from one copy.
enum Got {
    /// So many blocks are there and verified.
    Blocks(usize),
    /// The first block has to be read from another copy. With a read that was given up and has not ended.
    Bad(Option<CompletionFuture>),
}

/// A leaf that was looked into; no page: there is none, all are holes.
struct Leaf {
    /// Of which map. A checkpoint may have ended while it was read: what was in a layer then is in a newer map, and
    /// this leaf is an old one.
    root: MapRoot,
    index: u64,
    page: Option<Rc<Block>>,
}

impl Inner {
    /// The copy to read from: the less busy of the current ones, else in turn.
    pub(super) fn choose(&self, vbn: u64) -> Option<(Rc<Device>, u64)> {
        let [a, b] = self.copies_of(vbn);
        let a = a.filter(|(d, _)| d.is_current_to_read());
        let b = b.filter(|(d, _)| d.is_current_to_read());
        match (a, b) {
            (Some(a), Some(b)) if a.0.is_shaky() != b.0.is_shaky() => {
                Some(if b.0.is_shaky() { a } else { b })
            }
            (Some(a), Some(b)) => {
                self.round.set(self.round.get().wrapping_add(1));
                let (x, y) = (a.0.busy.get(), b.0.busy.get());
                let first = x < y || (x == y && self.round.get().is_multiple_of(2));
                Some(if first { a } else { b })
            }
            (a, b) => a.or(b),
        }
    }

    /// Reads whole blocks. Puts the CRC32C of each into `sums`, if that is given.
    ///
    /// Where a read was given up that has not ended, this ends early: with the number of blocks that are there, and that read.
    /// The memory is the device's until it ends. Then [`read_again`](Inner::read_again) reads the next block.
    pub(crate) async fn read_blocks(
        self: &Rc<Self>,
        ds: &Rc<Dataset>,
        lba: u64,
        buf: &Slice,
        sums: Option<&Slice>,
    ) -> IoResult<Option<(usize, CompletionFuture)>> {
        self.check_owned()?;
        let count = buf.len() / BLOCK;
        self.count(|c| c.blocks_read += count as u64);
        let mut done = 0;
        while done < count {
            let at = lba + done as u64;
            done += match self.read_some(ds, at, buf, done, sums).await? {
                Got::Blocks(n) => n,
                // What another copy gives is put there when nothing can overwrite it any more.
                Got::Bad(Some(late)) => return Ok(Some((done, late))),
                Got::Bad(None) => {
                    Box::pin(self.read_again(ds, at, buf, done, sums)).await?;
                    1
                }
            };
        }
        Ok(None)
    }

    /// Reads block `at` of the buffer from whichever copy is good, after a read of it has failed, or was given up and ended.
    pub(crate) async fn read_again(
        self: &Rc<Self>,
        ds: &Rc<Dataset>,
        lba: u64,
        buf: &Slice,
        at: usize,
        sums: Option<&Slice>,
    ) -> IoResult {
        // Much may have happened since it began.
        self.check_told()?;
        if self.suspended.get().is_some() {
            self.decided(ds, lba, 1).await?;
        }
        let part = buf.sub(at * BLOCK, BLOCK);
        self.heal(ds, lba, &part, false).await?;
        self.check_told()?;
        if let Some(s) = sums {
            fill_sums(&part, &s.sub(at * 4, 4));
        }
        self.record_soon();
        Ok(())
    }

    /// Reads one block; returns the memory that it is in, to which nobody else writes: `buf`, which is the engine's own,
    /// or another. `locked`: the caller has locked the block.
    pub(crate) async fn read_one(
        self: &Rc<Self>,
        ds: &Rc<Dataset>,
        lba: u64,
        buf: Slice,
        locked: bool,
    ) -> IoResult<Slice> {
        self.count(|c| c.blocks_read += 1);
        match self.read_some(ds, lba, &buf, 0, None).await? {
            Got::Blocks(_) => Ok(buf),
            Got::Bad(late) => {
                // A device that was given up may write to its buffer when this one has other data in it already.
                let other = if late.is_some() { Slice::heap(BLOCK) } else { buf };
                self.heal(ds, lba, &other, locked).await?;
                self.check_told()?;
                self.record_soon();
                Ok(other)
            }
        }
    }

    /// Reads as many blocks as lie together, from block `at` of the buffer on.
    async fn read_some(
        self: &Rc<Self>,
        ds: &Rc<Dataset>,
        lba: u64,
        buf: &Slice,
        at: usize,
        sums: Option<&Slice>,
    ) -> IoResult<Got> {
        let count = buf.len() / BLOCK - at;
        self.check_told()?;
        if self.suspended.get().is_some() {
            Box::pin(self.decided(ds, lba, count as u64)).await?;
        }
        let pin = self.pins.pin();
        if ds.is_stale() {
            return Err(IoError::Offline);
        }
        let mut leaf = None;
        let first = self.entry_near(ds, lba, &mut leaf).await?;
        if first.is_poison() {
            if has(Bug::LossOfAnOlderEntry) {
                self.losses.is_lost(ds.id, lba, None);
            }
            // Somebody may have written it while its leaf was read: with the block locked that is sure.
            return Ok(Got::Bad(None));
        }
        // How far does it go on in the same way?
        let mut others: Vec<MapEntry> = Vec::new();
        let mut n = 1;
        while n < count {
            let e = match self.entry_at_hand(ds, lba + n as u64, &leaf) {
                Some(e) => e,
                None => break,
            };
            let follows = match first.is_data() {
                true => e.is_data() && e.vbn == first.vbn + n as u64 && self.same_slab(&first, &e),
                false => !e.is_data() && !e.is_poison(),
            };
            if !follows {
                break;
            }
            others.push(e);
            n += 1;
        }
        // What is known is told only if nobody else may have written until now.
        self.check_told()?;
        if !first.is_data() {
            ds.met_hole.set(true);
            let part = buf.sub(at * BLOCK, n * BLOCK);
            part.fill(0);
            if let Some(s) = sums {
                fill_sums(&part, &s.sub(at * 4, n * 4));
            }
            return Ok(Got::Blocks(n));
        }
        let part = part_of(buf, at, n);
        let (mut good, mut late) = (0, None);
        if let Some((d, block)) = self.choose(first.vbn) {
            match d.read_into(block, &part, self.options.deadline).await {
                Ok(()) => {
                    let verified = |i: usize| {
                        let e = if i == 0 { first } else { others[i - 1] };
                        let id = self.identity(ds.family, lba + i as u64, e.birth, e.vbn);
                        if let Some(s) = sums {
                            // Before the data are verified: what changes in between shows.
                            let sum = match self.data_sum {
                                DataSum::Crc32c => e.crc ^ id.mask(),
                                DataSum::Crc32k => summed(&part, i * BLOCK, crc32c),
                            };
                            s.write_at((at + i) * 4, &sum.to_le_bytes());
                        }
                        self.proves(&id, e.crc, &part, i * BLOCK)
                    };
                    good = match has(Bug::ReadUnverified) {
                        true => n,
                        false => (0..n).position(|i| !verified(i)).unwrap_or(n),
                    };
                    self.works.damage.good(&d, block, good as u64);
                }
                Err(Unread::Failed(IoError::Offline)) => {
                    self.device_failed(&d, IoError::Offline);
                    self.record_soon();
                }
                Err(Unread::Failed(e)) => self.found_unread(&d, block, first.crc.into(), e),
                Err(Unread::GivenUp(end)) => {
                    self.device_failed(&d, IoError::Offline);
                    self.record_soon();
                    late = Some(end);
                }
            }
        }
        drop(pin);
        self.check_told()?;
        match good {
            0 => Ok(Got::Bad(late)),
            n => {
                self.seen_good(first.vbn, n as u64);
                Ok(Got::Blocks(n))
            }
        }
    }

    /// As [`check_owned`](Inner::check_owned), of what was read or is about to be.
    fn check_told(&self) -> IoResult {
        if has(Bug::FencedTells) { Ok(()) } else { self.check_owned() }
    }

    fn same_slab(&self, a: &MapEntry, b: &MapEntry) -> bool {
        let space = self.space.borrow();
        space.slab_of(a.vbn) == space.slab_of(b.vbn)
    }

    /// The entry of a block; the leaf that was looked into is left in `leaf`.
    async fn entry_near(
        &self,
        ds: &Dataset,
        lba: u64,
        leaf: &mut Option<Leaf>,
    ) -> IoResult<MapEntry> {
        match ds.top.find(lba) {
            Found::Entry(e) => Ok(e),
            Found::Tree(root) => {
                let page = self.leaf(root, ds.family, lba).await?;
                let i = (lba % LEAF as u64) as usize;
                let e = page.as_ref().map_or(MapEntry::HOLE, |p| tree::entry(p, i));
                *leaf = Some(Leaf { root, index: lba / LEAF as u64, page });
                Ok(e)
            }
        }
    }

    /// The entry of a block, if that is known without reading.
    fn entry_at_hand(&self, ds: &Dataset, lba: u64, leaf: &Option<Leaf>) -> Option<MapEntry> {
        match ds.top.find(lba) {
            Found::Entry(e) => Some(e),
            Found::Tree(root) => {
                let index = lba / LEAF as u64;
                let leaf = leaf.as_ref().filter(|l| (l.root, l.index) == (root, index))?;
                let i = (lba % LEAF as u64) as usize;
                Some(leaf.page.as_ref().map_or(MapEntry::HOLE, |p| tree::entry(p, i)))
            }
        }
    }
}

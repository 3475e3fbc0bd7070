//! The read path: find, read from one copy, verify, else heal.

use super::dataset::Dataset;
use super::device::Device;
use super::stage::Found;
use super::{Inner, slice_crc};
use crate::format::BLOCK;
use crate::format::tree::{self, LEAF, MapEntry};
use crate::planted::{Bug, has};
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_mem::Slice;

impl Inner {
    /// The copy to read from: the less busy of the current ones, else in turn.
    pub(super) fn choose(&self, vbn: u64) -> Option<(Rc<Device>, u64)> {
        let [a, b] = self.copies_of(vbn);
        let a = a.filter(|(d, _)| d.is_current());
        let b = b.filter(|(d, _)| d.is_current());
        match (a, b) {
            (Some(a), Some(b)) => {
                self.round.set(self.round.get().wrapping_add(1));
                let (x, y) = (a.0.busy.get(), b.0.busy.get());
                let first = x < y || (x == y && self.round.get().is_multiple_of(2));
                Some(if first { a } else { b })
            }
            (a, b) => a.or(b),
        }
    }

    /// Reads whole blocks. `locked`: the caller has locked them.
    pub(crate) async fn read_blocks(
        self: &Rc<Self>,
        ds: &Rc<Dataset>,
        lba: u64,
        buf: &Slice,
        locked: bool,
    ) -> IoResult {
        let count = buf.len() / BLOCK;
        self.count(|c| c.blocks_read += count as u64);
        let mut done = 0;
        while done < count {
            done += self.read_some(ds, lba + done as u64, buf, done, locked).await?;
        }
        Ok(())
    }

    /// Reads as many blocks as lie together, from block `at` of the buffer on; returns how many.
    async fn read_some(
        self: &Rc<Self>,
        ds: &Rc<Dataset>,
        lba: u64,
        buf: &Slice,
        at: usize,
        locked: bool,
    ) -> IoResult<usize> {
        let pin = self.pins.pin();
        let count = buf.len() / BLOCK - at;
        let mut leaf = None;
        let first = self.entry_near(ds, lba, &mut leaf).await?;
        if first.is_poison() {
            return Err(IoError::Medium);
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
        if !first.is_data() {
            buf.sub(at * BLOCK, n * BLOCK).fill(0);
            return Ok(n);
        }
        let part = buf.sub(at * BLOCK, n * BLOCK);
        let mut good = 0;
        if let Some((d, block)) = self.choose(first.vbn) {
            match d.read(block, &part, self.options.deadline).await {
                Ok(()) => {
                    let verified = |i: usize| {
                        let e = if i == 0 { first } else { others[i - 1] };
                        let id = self.identity(ds.family, lba + i as u64, e.birth, e.vbn);
                        match self.options.sum_data {
                            true => slice_crc(&id, &part, i * BLOCK) == e.crc,
                            false => id.mask() == e.crc,
                        }
                    };
                    good = match has(Bug::ReadUnverified) {
                        true => n,
                        false => (0..n).position(|i| !verified(i)).unwrap_or(n),
                    };
                }
                Err(IoError::Offline) => {
                    self.device_failed(&d, IoError::Offline);
                    self.record_soon();
                }
                Err(_) => {}
            }
        }
        drop(pin);
        if good == 0 {
            let one = part.sub(0, BLOCK);
            self.heal(ds, lba, &one, locked).await?;
            self.record_soon();
            good = 1;
        }
        Ok(good)
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
        leaf: &mut Option<(u64, Option<Rc<crate::format::Block>>)>,
    ) -> IoResult<MapEntry> {
        match ds.top.find(lba) {
            Found::Entry(e) => Ok(e),
            Found::Tree(root) => {
                let page = self.leaf(root, ds.family, lba).await?;
                let i = (lba % LEAF as u64) as usize;
                let e = page.as_ref().map_or(MapEntry::HOLE, |p| tree::entry(p, i));
                *leaf = Some((lba / LEAF as u64, page));
                Ok(e)
            }
        }
    }

    /// The entry of a block, if that is known without reading.
    fn entry_at_hand(
        &self,
        ds: &Dataset,
        lba: u64,
        leaf: &Option<(u64, Option<Rc<crate::format::Block>>)>,
    ) -> Option<MapEntry> {
        match ds.top.find(lba) {
            Found::Entry(e) => Some(e),
            Found::Tree(_) => match leaf {
                Some((n, page)) if *n == lba / LEAF as u64 => {
                    let i = (lba % LEAF as u64) as usize;
                    Some(page.as_ref().map_or(MapEntry::HOLE, |p| tree::entry(p, i)))
                }
                _ => None,
            },
        }
    }
}

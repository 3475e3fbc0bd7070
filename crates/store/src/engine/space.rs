//! The allocator: which blocks of the pool are in use, now and as of the checkpoint being made.

use super::moves::Move;
use crate::format::slab::{self, Placement, SlabRecord, reserved};
use std::collections::BTreeMap;

/// Blocks taken from one lane before the next has its turn.
const WINDOW: u32 = 64;

/// A slab in memory.
#[derive(Default)]
pub(crate) struct Slab {
    pub(crate) copies: [Option<Placement>; 2],
    /// A copy that is being made elsewhere, to take the place of one of `copies`.
    pub(crate) moving: Option<Move>,
    /// Blocks that the new place has: written since the move began, or proved to be there.
    pub(crate) there: Option<Box<[u64]>>,
    /// A durable superblock knows it: blocks may be taken from it.
    pub(crate) offered: bool,
    pub(crate) which: Option<u8>,
    pub(crate) crc: u64,
    pub(crate) birth: u32,
    /// Blocks that must not be handed out. `None`: only the slab's own metadata.
    pub(crate) used: Option<Box<[u64]>>,
    /// Blocks in use as of the checkpoint being made.
    pub(crate) disk: Option<Box<[u64]>>,
    pub(crate) regions: Vec<u32>,
    pub(crate) free: u32,
    /// Its metadata must be written with the next checkpoint.
    pub(crate) dirty: bool,
}

/// Slabs on the same devices; writes go round over lanes, which is the striping.
struct Lane {
    slabs: Vec<u32>,
    current: Option<u32>,
    cursor: u64,
}

/// All slabs.
pub(crate) struct Space {
    pub(crate) shift: u8,
    pub(crate) slabs: Vec<Slab>,
    lanes: Vec<Lane>,
    turn: usize,
    window: u32,
    pub(crate) free: u64,
    /// Slabs from which blocks are taken: counted, since each write asks.
    pub(super) offered: u64,
    /// Extents that nothing uses any more, and that something may still be on its way to.
    pub(crate) leaving: Vec<Placement>,
    /// What of the use of blocks contradicts itself. Nothing was done about it, and the pool must not go on: somebody
    /// else's block would be handed out next.
    pub(crate) contradiction: Option<String>,
}

fn bit(words: &[u64], i: u64) -> bool {
    words[(i / 64) as usize] >> (i % 64) & 1 == 1
}

impl Slab {
    /// It has a place. One that was given up has none, and its number can be used again.
    pub(crate) fn exists(&self) -> bool {
        self.copies.iter().any(Option::is_some)
    }
}

impl Space {
    pub(crate) fn new(shift: u8) -> Space {
        Space {
            shift,
            slabs: Vec::new(),
            lanes: Vec::new(),
            turn: 0,
            window: WINDOW,
            free: 0,
            offered: 0,
            leaving: Vec::new(),
            contradiction: None,
        }
    }

    pub(super) fn fresh(&self) -> Box<[u64]> {
        let words = (1usize << self.shift) / 64;
        let mut w = vec![0u64; words].into_boxed_slice();
        for i in 0..reserved(self.shift) {
            w[(i / 64) as usize] |= 1 << (i % 64);
        }
        w
    }

    /// Blocks of a slab that can hold data.
    pub(crate) fn room(&self) -> u64 {
        (1 << self.shift) - reserved(self.shift)
    }

    /// Adds a slab as its record says; its bitmap comes with [`load`](Space::load).
    pub(crate) fn add(&mut self, r: &SlabRecord) {
        let room = self.room();
        let offered = r.copies.iter().any(Option::is_some);
        self.slabs.push(Slab {
            copies: r.copies,
            offered,
            which: r.which,
            crc: r.crc,
            birth: r.birth,
            regions: if offered { self.no_regions() } else { Vec::new() },
            free: room as u32,
            ..Slab::default()
        });
        if offered {
            self.free += room;
            self.offered += 1;
        }
    }

    pub(crate) fn no_regions(&self) -> Vec<u32> {
        vec![0; ((1u64 << self.shift) / slab::region_blocks(self.shift)) as usize]
    }

    /// Sets a slab's bitmap to what a checkpoint has.
    pub(crate) fn load(&mut self, s: usize, words: Vec<u64>) {
        let fresh = self.fresh();
        let mut disk = words.into_boxed_slice();
        for (w, f) in disk.iter_mut().zip(&fresh) {
            *w |= f;
        }
        let slab = &mut self.slabs[s];
        let used: u32 = disk.iter().map(|w| w.count_ones()).sum();
        self.free -= u64::from(slab.free);
        slab.free = (1 << self.shift) - used;
        self.free += u64::from(slab.free);
        slab.used = Some(disk.clone());
        slab.disk = Some(disk);
    }

    pub(crate) fn slab_of(&self, vbn: u64) -> usize {
        (vbn >> self.shift) as usize
    }

    pub(super) fn place(&self, vbn: u64) -> (usize, u64) {
        (self.slab_of(vbn), vbn & ((1 << self.shift) - 1))
    }

    /// True when the block exists and can hold data.
    pub(crate) fn is_place(&self, vbn: u64) -> bool {
        let (s, i) = self.place(vbn);
        i >= reserved(self.shift) && self.slabs.get(s).is_some_and(Slab::exists)
    }

    /// Blocks that can be handed out.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Blocks that can hold data.
    pub(crate) fn total(&self) -> u64 {
        self.offered * self.room()
    }

    pub(crate) fn is_used(&self, vbn: u64) -> bool {
        let (s, i) = self.place(vbn);
        match self.slabs.get(s).map(|s| &s.used) {
            Some(Some(w)) => bit(w, i),
            Some(None) => i < reserved(self.shift),
            None => false,
        }
    }

    pub(crate) fn is_on_disk(&self, vbn: u64) -> bool {
        let (s, i) = self.place(vbn);
        match self.slabs.get(s).map(|s| &s.disk) {
            Some(Some(w)) => bit(w, i),
            Some(None) => i < reserved(self.shift),
            None => false,
        }
    }

    /// The blocks that the checkpoint uses, slabs' current metadata among them.
    pub(crate) fn in_use(&self) -> Vec<u64> {
        let mut all = Vec::new();
        let meta = slab::meta_pages(self.shift);
        for (s, slab) in self.slabs.iter().enumerate().filter(|(_, s)| s.exists()) {
            let base = (s as u64) << self.shift;
            let which = slab.which.map(|w| u64::from(w) * meta);
            all.extend(which.into_iter().flat_map(|first| (first..first + meta).map(|i| base + i)));
            let data = reserved(self.shift)..1 << self.shift;
            let used = |i: &u64| slab.disk.as_ref().is_some_and(|w| bit(w, *i));
            all.extend(data.filter(used).map(|i| base + i));
        }
        all
    }

    /// Whether `good` holds of a block; if not, that is kept as a contradiction.
    fn demand(&mut self, good: bool, vbn: u64, what: &str) -> bool {
        if !good {
            self.contradiction.get_or_insert_with(|| format!("block {vbn} {what}"));
        }
        good
    }

    /// Takes a particular block; false when it is taken, or of a slab that no durable superblock knows: its blocks do not count
    /// yet.
    pub(crate) fn take(&mut self, vbn: u64) -> bool {
        if self.is_used(vbn) || !self.slabs[self.slab_of(vbn)].offered {
            return false;
        }
        self.take_run(vbn, 1);
        true
    }

    fn take_run(&mut self, vbn: u64, len: u64) {
        let (s, at) = self.place(vbn);
        if self.slabs[s].used.is_none() {
            self.slabs[s].used = Some(self.fresh());
        }
        let slab = &mut self.slabs[s];
        if let Some(used) = &mut slab.used {
            for i in at..at + len {
                used[(i / 64) as usize] |= 1 << (i % 64);
            }
        }
        slab.free -= len as u32;
        self.free -= len;
    }

    /// Gives a block back to be handed out. It stays as it is when it is not in use (somebody freed it twice, and what is
    /// on it now would be lost next), or when a checkpoint has it.
    pub(crate) fn release(&mut self, vbn: u64) {
        let (s, i) = self.place(vbn);
        let ours = self.is_place(vbn) && self.is_used(vbn);
        if !self.demand(ours, vbn, "is freed twice")
            || !self.demand(!self.is_on_disk(vbn), vbn, "is freed while a checkpoint has it")
        {
            return;
        }
        let slab = &mut self.slabs[s];
        if let Some(used) = &mut slab.used {
            used[(i / 64) as usize] &= !(1 << (i % 64));
        }
        slab.free += 1;
        self.free += 1;
    }

    /// Looks for free blocks from the start again.
    pub(crate) fn rewind(&mut self) {
        for lane in &mut self.lanes {
            lane.cursor = reserved(self.shift);
        }
    }

    /// The checkpoint being made uses the block.
    pub(crate) fn disk_set(&mut self, vbn: u64, epoch: u32) {
        let (s, i) = self.place(vbn);
        let free = self.is_place(vbn) && !self.is_on_disk(vbn);
        if !self.demand(free, vbn, "is used twice") {
            return;
        }
        if self.slabs[s].disk.is_none() {
            self.slabs[s].disk = Some(self.fresh());
        }
        let region = (i / slab::region_blocks(self.shift)) as usize;
        let slab = &mut self.slabs[s];
        slab.dirty = true;
        slab.regions[region] = slab.regions[region].max(epoch);
        if let Some(disk) = &mut slab.disk {
            disk[(i / 64) as usize] |= 1 << (i % 64);
        }
    }

    /// The checkpoint being made does not use the block any more.
    pub(crate) fn disk_clear(&mut self, vbn: u64) {
        let ours = self.is_place(vbn) && self.is_on_disk(vbn);
        if !self.demand(ours, vbn, "is given back by a map that does not have it") {
            return;
        }
        let (s, i) = self.place(vbn);
        let slab = &mut self.slabs[s];
        slab.dirty = true;
        if let Some(disk) = &mut slab.disk {
            disk[(i / 64) as usize] &= !(1 << (i % 64));
        }
    }

    /// The bitmap of a slab as of the checkpoint being made, and its free blocks.
    pub(crate) fn disk_words(&self, s: usize) -> (Vec<u64>, u32) {
        let words = match &self.slabs[s].disk {
            Some(w) => w.to_vec(),
            None => self.fresh().to_vec(),
        };
        let used: u32 = words.iter().map(|w| w.count_ones()).sum();
        (words, (1 << self.shift) - used)
    }

    /// Sorts slabs into lanes. `fit` says whether new blocks may be put on a slab.
    pub(crate) fn arrange(&mut self, fit: impl Fn(&Slab) -> bool) {
        let mut lanes: BTreeMap<Vec<u16>, Vec<u32>> = BTreeMap::new();
        for (i, s) in self.slabs.iter().enumerate() {
            if fit(s) {
                let key = s.copies.iter().flatten().map(|c| c.device).collect();
                lanes.entry(key).or_default().push(i as u32);
            }
        }
        self.lanes =
            lanes.into_values().map(|slabs| Lane { slabs, current: None, cursor: 0 }).collect();
        self.turn = 0;
    }

    /// Takes up to `want` blocks in a row: the first and how many. `None`: the pool is full.
    pub(crate) fn alloc(&mut self, want: u64) -> Option<(u64, u64)> {
        for _ in 0..self.lanes.len() {
            if self.window == 0 {
                self.turn = (self.turn + 1) % self.lanes.len();
                self.window = WINDOW;
            }
            if let Some((vbn, len)) = self.find(self.turn, want) {
                self.take_run(vbn, len);
                self.window = self.window.saturating_sub(len as u32);
                return Some((vbn, len));
            }
            self.window = 0;
        }
        None
    }

    fn find(&mut self, lane: usize, want: u64) -> Option<(u64, u64)> {
        let reserved = reserved(self.shift);
        for _ in 0..2 {
            let Lane { current, cursor, .. } = self.lanes[lane];
            if let Some(s) = current {
                let base = u64::from(s) << self.shift;
                let found = match &self.slabs[s as usize].used {
                    Some(used) => find_run(used, cursor, want),
                    None => Some((reserved, want.min((1 << self.shift) - reserved))),
                };
                if let Some((at, len)) = found {
                    self.lanes[lane].cursor = at + len;
                    return Some((base + at, len));
                }
            }
            let slabs = &self.slabs;
            let best = self.lanes[lane]
                .slabs
                .iter()
                .filter(|s| slabs[**s as usize].free > 0)
                .max_by_key(|s| (slabs[**s as usize].free, std::cmp::Reverse(**s)))
                .copied()?;
            self.lanes[lane].current = Some(best);
            self.lanes[lane].cursor = reserved;
        }
        None
    }
}

/// The first free bits at or after `from`: at most `want` in a row.
fn find_run(words: &[u64], from: u64, want: u64) -> Option<(u64, u64)> {
    let end = words.len() as u64 * 64;
    let mut at = from;
    while at < end {
        let w = !words[(at / 64) as usize] >> (at % 64);
        if w == 0 {
            at = (at / 64 + 1) * 64;
            continue;
        }
        at += u64::from(w.trailing_zeros());
        let mut len = 1;
        while len < want && at + len < end && !bit(words, at + len) {
            len += 1;
        }
        return Some((at, len));
    }
    None
}

#[cfg(test)]
mod tests;

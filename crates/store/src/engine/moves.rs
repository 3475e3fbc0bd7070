//! Slabs that change their place, come and go. A slab's new place takes part in all writes from the cut that
//! begins the move; the table of slabs of a later checkpoint names it instead of the old one.

use super::Inner;
use super::space::{Slab, Space};
use crate::format::slab::{Placement, SlabRecord, reserved};
use crate::planted::{Bug, has};
use std::collections::BTreeSet;

/// A copy of a slab being made in another place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Move {
    /// Which copy goes.
    pub(crate) index: usize,
    /// Where it goes.
    pub(crate) to: Placement,
    /// All of it is there, and was proved: the next checkpoint says so.
    pub(crate) ready: bool,
    /// The checkpoint being made says so.
    pub(crate) told: bool,
}

impl Slab {
    /// Nothing is on it, now or as of the checkpoint being made.
    fn is_empty(&self, shift: u8) -> bool {
        let only =
            |w: &[u64]| w.iter().map(|w| u64::from(w.count_ones())).sum::<u64>() == reserved(shift);
        self.used.as_deref().is_none_or(only) && self.disk.as_deref().is_none_or(only)
    }

    /// Its copies when its move is over.
    pub(crate) fn copies_to_come(&self) -> [Option<Placement>; 2] {
        let mut copies = self.copies;
        if let Some(m) = self.moving {
            copies[m.index] = Some(m.to);
        }
        copies
    }

    /// Its copies as the checkpoint being made has them.
    pub(crate) fn told(&self) -> [Option<Placement>; 2] {
        let mut copies = self.copies;
        if let Some(m) = self.moving.filter(|m| m.told) {
            copies[m.index] = Some(m.to);
        }
        copies
    }
}

impl Space {
    /// True when nothing is on a slab that exists.
    pub(crate) fn is_empty_slab(&self, s: usize) -> bool {
        let slab = &self.slabs[s];
        slab.exists() && slab.offered && slab.moving.is_none() && slab.is_empty(self.shift)
    }

    /// As [`is_empty_slab`](Space::is_empty_slab), when its move is over and a superblock knows it.
    pub(crate) fn will_be_empty(&self, s: usize) -> bool {
        self.slabs[s].exists() && self.slabs[s].is_empty(self.shift)
    }

    /// Extents that are in use or may not be used yet.
    pub(crate) fn occupied(&self) -> impl Iterator<Item = Placement> {
        let moving = self.slabs.iter().filter_map(|s| s.moving.map(|m| m.to));
        let copies = self.slabs.iter().flat_map(|s| s.copies).flatten();
        copies.chain(moving).chain(self.leaving.iter().copied())
    }

    pub(crate) fn is_vacant(&self, p: &Placement) -> bool {
        self.occupied().all(|o| (o.device, o.extent) != (p.device, p.extent))
    }

    /// Copies of slabs on a device.
    pub(crate) fn held_by(&self, device: u16) -> u32 {
        let on = |s: &Slab| s.copies.iter().flatten().any(|c| c.device == device);
        self.slabs.iter().filter(|s| on(s)).count() as u32
    }

    /// Gives up an empty slab: the pool is smaller, its extents are free after the next checkpoint.
    pub(crate) fn give_up(&mut self, s: usize) {
        debug_assert!(self.is_empty_slab(s));
        let regions = self.no_regions();
        let free = u64::from(self.slabs[s].free);
        let old = std::mem::replace(&mut self.slabs[s], Slab { regions, ..Slab::default() });
        self.free -= free;
        self.offered -= u64::from(old.offered);
        self.leaving.extend(old.copies.into_iter().flatten());
    }

    /// A new slab, under the number of one that was given up if there is any. Blocks are taken from it when a
    /// durable superblock knows it.
    pub(crate) fn grow(&mut self, copies: [Option<Placement>; 2]) {
        let free = self.room() as u32;
        let regions = self.no_regions();
        let new = Slab { copies, regions, free, ..Slab::default() };
        match self.slabs.iter_mut().find(|s| !s.exists()) {
            Some(s) => *s = new,
            None => self.slabs.push(new),
        }
    }

    /// From now on everything that is written to a slab is written to a new place, too.
    pub(crate) fn begin_move(&mut self, s: usize, index: usize, to: Placement) {
        self.slabs[s].moving = Some(Move { index, to, ready: false, told: false });
        self.slabs[s].there = Some(self.fresh());
    }

    /// The new place of a slab that moves has these blocks, which are of one slab.
    pub(crate) fn arrived(&mut self, vbn: u64, blocks: u64) {
        let (s, at) = self.place(vbn);
        if let Some(there) = self.slabs.get_mut(s).and_then(|s| s.there.as_mut()) {
            (at..at + blocks).for_each(|i| there[(i / 64) as usize] |= 1 << (i % 64));
        }
    }

    /// Blocks in use that the new place of a slab does not have.
    fn lacks(&self, s: usize) -> u64 {
        match (&self.slabs[s].disk, &self.slabs[s].there) {
            (Some(disk), Some(there)) => {
                disk.iter().zip(there).map(|(d, t)| u64::from((d & !t).count_ones())).sum()
            }
            _ => 0,
        }
    }

    /// Slabs whose new places do not have everything that is in use.
    pub(crate) fn lacking(&self) -> Vec<usize> {
        (0..self.slabs.len()).filter(|s| self.lacks(*s) > 0).collect()
    }

    /// Blocks in use that new places of other slabs do not have.
    pub(crate) fn blocks_lacking(&self, but: &BTreeSet<usize>) -> u64 {
        (0..self.slabs.len()).filter(|s| !but.contains(s)).map(|s| self.lacks(s)).sum()
    }

    /// Ends the moves that are not ready: what was written there is not used.
    pub(crate) fn abandon_moves(&mut self) {
        for s in &mut self.slabs {
            if let Some(m) = s.moving.take_if(|m| !m.ready) {
                s.there = None;
                self.leaving.push(m.to);
            }
        }
    }

    /// Ends the moves that no checkpoint tells of, though they are ready: a device is back that was not asked for what they took. What
    /// is moved off others may have been led to by it.
    pub(crate) fn take_back(&mut self, device: u16) {
        for s in &mut self.slabs {
            let is_off = |m: &Move| s.copies[m.index].is_some_and(|c| c.device == device);
            let ends = |m: &Move| is_off(m) || !has(Bug::ReturnForItsOwn);
            if let Some(m) = s.moving.take_if(|m| m.ready && !m.told && ends(m)) {
                s.there = None;
                self.leaving.push(m.to);
            }
        }
    }

    /// The checkpoint being made tells of the moves that are ready, and of new slabs. `good` says whether a device still is.
    fn tell_moves(&mut self, good: impl Fn(u16) -> bool) {
        let regions = self.no_regions();
        for s in &mut self.slabs {
            if let Some(m) = &mut s.moving {
                m.told = m.ready && good(m.to.device);
            }
            let is_lost = !s.copies.iter().flatten().any(|c| good(c.device));
            if s.exists() && !s.offered && is_lost {
                // Nothing is on it.
                let old =
                    std::mem::replace(s, Slab { regions: regions.clone(), ..Slab::default() });
                self.leaving.extend(old.copies.into_iter().flatten());
            }
        }
    }

    /// What a superblock tells of is durable. Says whether that changes where blocks may be put.
    fn settle(&mut self) -> bool {
        let mut changed = false;
        for s in &mut self.slabs {
            if let Some(m) = s.moving.take_if(|m| m.ready) {
                s.there = None;
                let gone = match m.told {
                    true => s.copies[m.index].replace(m.to),
                    // Its new device failed when all was there.
                    false => Some(m.to),
                };
                self.leaving.extend(gone);
                changed = true;
            }
        }
        for s in 0..self.slabs.len() {
            if self.slabs[s].exists() && !self.slabs[s].offered {
                self.slabs[s].offered = true;
                self.free += u64::from(self.slabs[s].free);
                self.offered += 1;
                changed = true;
            }
        }
        let offered = self.slabs.iter().filter(|s| s.offered).count() as u64;
        assert_eq!(offered, self.offered, "slabs from which blocks are taken are counted wrong");
        changed
    }

    /// A slab's record as the checkpoint being made has it.
    pub(crate) fn record(&self, s: usize) -> SlabRecord {
        let slab = &self.slabs[s];
        let free = match slab.which {
            Some(_) => self.disk_words(s).1,
            None if slab.exists() => self.room() as u32,
            None => 0,
        };
        SlabRecord {
            copies: slab.told(),
            which: slab.which,
            crc: slab.crc,
            birth: slab.birth,
            free,
        }
    }
}

impl Inner {
    pub(crate) fn tell_moves(&self) {
        let current = |n: u16| self.device(n).is_some_and(|d| d.is_current());
        self.space.borrow_mut().tell_moves(current);
    }

    pub(crate) fn settle_moves(&self) {
        let changed = self.space.borrow_mut().settle();
        if changed {
            // Only then: writes go on where they were.
            self.arrange();
        }
    }

    /// Whether a slab was given up and its number not used again.
    pub(crate) fn has_gaps(&self) -> bool {
        self.space.borrow().slabs.iter().any(|s| !s.exists())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_taken_from_a_slab_that_no_superblock_knows() {
        let mut s = Space::new(8);
        s.grow([Some(Placement { device: 0, extent: 0, filling: false }), None]);
        let vbn = reserved(8);
        assert!(s.is_place(vbn));
        let early = s.take(vbn);
        s.settle();
        assert_eq!((early, s.free()), (false, s.total()));
        assert!(s.take(vbn));
        s.release(vbn);
        assert_eq!(s.free(), s.total());
    }
}

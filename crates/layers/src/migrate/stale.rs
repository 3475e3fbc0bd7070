//! What the destination may not have as the source has it.

use std::cell::{Cell, RefCell};

/// Grains at most: what is known takes 128 KiB, also of the largest volume.
const GRAINS: u64 = 1 << 20;

/// Ranges that may differ, in grains of one size. They stay known however many there are.
pub(super) struct Stale {
    len: u64,
    grain: u64,
    /// One bit for each grain; empty as long as nothing was ever marked.
    words: RefCell<Vec<u64>>,
    marked: Cell<u64>,
    /// What was taken out last, and is not the same yet.
    taken: Cell<(u64, u64)>,
}

impl Stale {
    /// Of a volume of `len` bytes, nothing. Grains are `chunk` bytes, or more.
    pub(super) fn new(len: u64, chunk: u64) -> Stale {
        let mut grain = chunk.max(1);
        while len.div_ceil(grain) > GRAINS {
            grain *= 2;
        }
        Stale {
            len,
            grain,
            words: RefCell::default(),
            marked: Cell::new(0),
            taken: Cell::default(),
        }
    }

    /// `from..to` may differ.
    pub(super) fn mark(&self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let mut words = self.words.borrow_mut();
        if words.is_empty() {
            words.resize(self.len.div_ceil(self.grain).div_ceil(64) as usize, 0);
        }
        for g in from / self.grain..to.min(self.len).div_ceil(self.grain) {
            if let Some(w) = words.get_mut((g / 64) as usize)
                && *w & 1 << (g % 64) == 0
            {
                *w |= 1 << (g % 64);
                self.marked.set(self.marked.get() + 1);
            }
        }
    }

    /// Bytes that may differ, at most.
    pub(super) fn bytes(&self) -> u64 {
        (self.marked.get() * self.grain).min(self.len)
    }

    /// Whether nothing may differ.
    pub(super) fn is_empty(&self) -> bool {
        self.marked.get() == 0
    }

    /// Whether any of `from..to` may differ.
    pub(super) fn has(&self, from: u64, to: u64) -> bool {
        if self.is_empty() {
            return false;
        }
        let words = self.words.borrow();
        let marked = |g: u64| words.get((g / 64) as usize).is_some_and(|w| w & 1 << (g % 64) != 0);
        (from / self.grain..to.min(self.len).div_ceil(self.grain)).any(marked)
    }

    /// Whether any of `from..to` may differ, also of what was taken out and is not the same yet.
    pub(super) fn may_differ(&self, from: u64, to: u64) -> bool {
        let (start, end) = self.taken.get();
        from < end && start < to || self.has(from, to)
    }

    /// What was taken out is the same by now; if not, it may differ again.
    pub(super) fn put_back(&self, same: bool) {
        let (from, to) = self.taken.take();
        if !same {
            self.mark(from, to);
        }
    }

    /// Takes the first grain out: from and to, until it is [put back](Stale::put_back).
    pub(super) fn take(&self) -> Option<(u64, u64)> {
        if self.is_empty() {
            return None;
        }
        let mut words = self.words.borrow_mut();
        let (i, w) = words.iter_mut().enumerate().find(|(_, w)| **w != 0)?;
        let g = i as u64 * 64 + u64::from(w.trailing_zeros());
        *w &= *w - 1;
        self.marked.set(self.marked.get() - 1);
        let grain = (g * self.grain, ((g + 1) * self.grain).min(self.len));
        self.taken.set(grain);
        Some(grain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_marked_is_found_once() {
        let s = Stale::new(1_000_000, 4096);
        assert!(s.is_empty() && s.take().is_none());
        s.mark(0, 0);
        assert!(s.is_empty());
        s.mark(4095, 4097);
        s.mark(5000, 6000);
        s.mark(999_999, 1_000_000);
        assert_eq!(s.bytes(), 3 * 4096);
        assert!(s.has(0, 1) && s.has(8191, 9000) && !s.has(8192, 999_424) && s.has(0, 1_000_000));
        assert_eq!(s.take(), Some((0, 4096)));
        assert_eq!(s.take(), Some((4096, 8192)));
        assert!(!s.has(0, 8192) && s.may_differ(8191, 9000) && !s.may_differ(0, 4096));
        s.put_back(false);
        assert!(s.has(8191, 8192) && s.take() == Some((4096, 8192)));
        s.put_back(true);
        assert!(!s.may_differ(0, 999_424) && s.may_differ(0, 1_000_000));
        assert_eq!(s.take(), Some((244 * 4096, 1_000_000)), "it ends with the volume");
        assert_eq!(s.take(), None);
        s.mark(0, 1_000_000);
        assert_eq!(s.bytes(), 1_000_000);
        assert_eq!(std::iter::from_fn(|| s.take()).count(), 245);
    }

    #[test]
    fn the_largest_volume_takes_no_more_memory() {
        let s = Stale::new(1 << 60, 256 << 10);
        s.mark((1 << 60) - 1, 1 << 60);
        assert!(s.words.borrow().len() as u64 <= GRAINS / 64);
        let (from, to) = s.take().unwrap();
        assert!(from < to && to == 1 << 60);
    }
}

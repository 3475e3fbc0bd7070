//! Checksums of blocks in memory, as they came with the data.
//!
//! A block has one as long as nobody but a writer with a checksum has written to it, and only one at a time: of what two
//! leave behind that overlap, nobody knows the checksum. Nothing is kept of memory that was never written with checksums.

use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
    fence,
};

/// Bytes of a block.
pub(super) const BLOCK: u64 = weir_block::SUMMED as u64;
/// Blocks of one chunk of the table: 256 KiB of it for each 128 MiB.
const CHUNK: u64 = 1 << 15;

/// The checksum in the low half is that of the block, if nobody writes.
const KNOWN: u64 = 1 << 32;
/// Writers have overlapped since there were none.
const OVERLAPPED: u64 = 1 << 33;
/// One writer; their number is above.
const WRITER: u64 = 1 << 40;

type Chunk = Box<[AtomicU64]>;

/// The table of a region.
pub(super) struct Sums(Vec<OnceLock<Chunk>>);

/// What a block's entry was when it was looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen(u64);

impl Seen {
    /// The checksum, if it is known.
    #[inline]
    pub(super) fn sum(self) -> Option<u32> {
        (self.0 & KNOWN != 0 && self.0 < WRITER).then_some(self.0 as u32)
    }
}

impl Sums {
    /// For memory of up to `len` bytes.
    pub(super) fn new(len: u64) -> Sums {
        Sums((0..len.div_ceil(BLOCK * CHUNK)).map(|_| OnceLock::new()).collect())
    }

    #[inline]
    fn entry(&self, block: u64) -> Option<&AtomicU64> {
        self.0.get((block / CHUNK) as usize)?.get()?.get((block % CHUNK) as usize)
    }

    /// Makes the table for a range that is about to be written with checksums.
    #[inline]
    pub(super) fn provide(&self, at: u64, len: u64) {
        let chunks = at / (BLOCK * CHUNK)..=(at + len.max(1) - 1) / (BLOCK * CHUNK);
        for c in chunks {
            if let Some(c) = self.0.get(c as usize) {
                c.get_or_init(|| (0..CHUNK).map(|_| AtomicU64::new(0)).collect());
            }
        }
    }

    /// What is known of a block. What is read of it after the first of two equal answers and before the second is
    /// what the checksum is of.
    #[inline]
    pub(super) fn look(&self, block: u64) -> Seen {
        fence(Acquire);
        Seen(self.entry(block).map_or(0, |e| e.load(Acquire)))
    }

    /// The blocks that a range touches, where something is kept of them.
    #[inline]
    fn touched(&self, at: u64, len: u64) -> impl Iterator<Item = (u64, &AtomicU64)> {
        let end = if len == 0 { at / BLOCK } else { (at + len).div_ceil(BLOCK) };
        (at / BLOCK..end).filter_map(|b| Some((b, self.entry(b)?)))
    }

    /// Somebody begins to write to a range.
    #[inline]
    pub(super) fn begin(&self, at: u64, len: u64) {
        for (_, e) in self.touched(at, len) {
            e.fetch_add(WRITER, AcqRel);
        }
        // What is written comes after that.
        fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// He has ended; `sum` tells the checksum of a block, if he knows it.
    #[inline]
    pub(super) fn end(&self, at: u64, len: u64, sum: impl Fn(u64) -> Option<u32>) {
        for (b, e) in self.touched(at, len) {
            let known = sum(b);
            let next = |now: u64| {
                assert!(now >= WRITER, "a writer ends that has begun");
                let left = now - WRITER;
                Some(match known {
                    _ if left >= WRITER => left | OVERLAPPED,
                    Some(s) if left & OVERLAPPED == 0 => u64::from(s) | KNOWN,
                    _ => 0,
                })
            };
            // It never refuses.
            let _ = e.fetch_update(AcqRel, Relaxed, next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_the_checksum_of_its_only_writer() {
        let s = Sums::new(1 << 30);
        assert_eq!(s.look(7).sum(), None);
        s.begin(7 * BLOCK, BLOCK);
        s.end(7 * BLOCK, BLOCK, |_| Some(1));
        assert_eq!(s.look(7).sum(), None, "there is no table yet");
        s.provide(7 * BLOCK, BLOCK);
        s.begin(7 * BLOCK, 2 * BLOCK);
        assert_eq!(s.look(7).sum(), None, "he is writing");
        s.end(7 * BLOCK, 2 * BLOCK, |b| Some(b as u32 * 10));
        assert_eq!((s.look(7).sum(), s.look(8).sum(), s.look(9).sum()), (Some(70), Some(80), None));
        s.begin(8 * BLOCK + 512, 512);
        s.end(8 * BLOCK + 512, 512, |_| None);
        assert_eq!((s.look(7).sum(), s.look(8).sum()), (Some(70), None));
    }

    #[test]
    fn nothing_is_known_of_what_two_have_written_at_a_time() {
        let s = Sums::new(1 << 20);
        s.provide(0, BLOCK);
        for first in [true, false] {
            s.begin(0, BLOCK);
            s.begin(0, BLOCK);
            s.end(0, BLOCK, |_| Some(if first { 1 } else { 2 }));
            assert_eq!(s.look(0).sum(), None);
            s.end(0, BLOCK, |_| Some(if first { 2 } else { 1 }));
            assert_eq!(s.look(0).sum(), None);
        }
        s.begin(0, BLOCK);
        s.end(0, BLOCK, |_| Some(3));
        assert_eq!(s.look(0).sum(), Some(3), "the next one writes all of it");
    }
}

//! Checksums of blocks in memory, as they came with the data.
//!
//! A block has one as long as nobody but a writer with a checksum has written to it, and only one at a time: of what two
//! leave behind that overlap, nobody knows the checksum. Every writer is counted, also those without checksums, from the
//! first on: else one that began before the table would end in it. Of memory never written there is no table.

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

    /// The same; the first writer of each 128 MiB makes the table of it.
    #[inline]
    fn entry_or_new(&self, block: u64) -> Option<&AtomicU64> {
        let chunk = self.0.get((block / CHUNK) as usize)?;
        let chunk = chunk.get_or_init(|| (0..CHUNK).map(|_| AtomicU64::new(0)).collect());
        chunk.get((block % CHUNK) as usize)
    }

    /// What is known of a block. What is read of it after the first of two equal answers and before the second is
    /// what the checksum is of.
    #[inline]
    pub(super) fn look(&self, block: u64) -> Seen {
        fence(Acquire);
        Seen(self.entry(block).map_or(0, |e| e.load(Acquire)))
    }

    /// The parts of a range that somebody has written to, or may be writing to. The others were never begun.
    pub(super) fn written(&self, at: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
        let (end, chunk) = (at + len, BLOCK * CHUNK);
        (at / chunk..end.div_ceil(chunk))
            .filter(|c| self.0.get(*c as usize).is_some_and(|c| c.get().is_some()))
            .map(move |c| (at.max(c * chunk), end.min((c + 1) * chunk)))
            .filter(|(from, to)| from < to)
            .map(|(from, to)| (from, to - from))
    }

    /// Somebody begins to write to a range of the memory.
    #[inline]
    pub(super) fn begin(&self, at: u64, len: u64) {
        assert!((at + len).div_ceil(BLOCK * CHUNK) <= self.0.len() as u64, "it is in the memory");
        for e in touched(at, len).filter_map(|b| self.entry_or_new(b)) {
            e.fetch_add(WRITER, AcqRel);
        }
        // What is written comes after that.
        fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// He has ended; `sum` tells the checksum of a block, if he knows it.
    #[inline]
    pub(super) fn end(&self, at: u64, len: u64, sum: impl Fn(u64) -> Option<u32>) {
        for (b, e) in touched(at, len).filter_map(|b| Some((b, self.entry(b)?))) {
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

/// The blocks that a range touches.
#[inline]
fn touched(at: u64, len: u64) -> std::ops::Range<u64> {
    at / BLOCK..if len == 0 { at / BLOCK } else { (at + len).div_ceil(BLOCK) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_the_checksum_of_its_only_writer() {
        let s = Sums::new(1 << 30);
        assert_eq!(s.look(7).sum(), None);
        s.begin(7 * BLOCK, 2 * BLOCK);
        assert_eq!(s.look(7).sum(), None, "he is writing");
        s.end(7 * BLOCK, 2 * BLOCK, |b| Some(b as u32 * 10));
        assert_eq!((s.look(7).sum(), s.look(8).sum(), s.look(9).sum()), (Some(70), Some(80), None));
        s.begin(8 * BLOCK + 512, 512);
        s.end(8 * BLOCK + 512, 512, |_| None);
        assert_eq!((s.look(7).sum(), s.look(8).sum()), (Some(70), None));
    }

    #[test]
    fn who_writes_first_of_all_is_known_to_write() {
        let s = Sums::new(1 << 30);
        // One without a checksum, and before he has ended one with a checksum, who ends first.
        s.begin(0, BLOCK);
        s.begin(0, BLOCK);
        s.end(0, BLOCK, |_| Some(1));
        assert_eq!(s.look(0).sum(), None, "the first one may not be through");
        s.end(0, BLOCK, |_| None);
        assert_eq!(s.look(0).sum(), None);
    }

    #[test]
    fn what_was_never_written_is_told_in_whole_tables() {
        let s = Sums::new(1 << 30);
        let table = BLOCK * CHUNK;
        assert_eq!(s.written(0, 1 << 30).next(), None);
        s.begin(table, 1);
        s.begin(3 * table, 1);
        assert_eq!(s.written(0, 1 << 30).collect::<Vec<_>>(), [(table, table), (3 * table, table)]);
        assert_eq!(s.written(table + 512, 512).collect::<Vec<_>>(), [(table + 512, 512)]);
        assert_eq!(
            s.written(2 * table - 1, table + 2).collect::<Vec<_>>(),
            [(2 * table - 1, 1), (3 * table, 1)]
        );
        assert_eq!(s.written(table, 0).next(), None);
    }

    #[test]
    fn nothing_is_known_of_what_two_have_written_at_a_time() {
        let s = Sums::new(1 << 20);
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

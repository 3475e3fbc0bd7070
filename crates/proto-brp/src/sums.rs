//! Checksums of data: one CRC32C for each piece that lies in one 4 KiB block of the volume.
//!
//! A command's data is cut at volume addresses that are multiples of 4096, so that each piece but the
//! first and the last is a whole block of the volume: its checksum is the one that a store keeps for the block.

use weir_codec::crc32c;

/// Bytes of a block that has one checksum.
pub const PIECE: u64 = 4096;

/// Pieces of `len` bytes from `offset` on.
#[inline]
pub fn count(offset: u64, len: u64) -> usize {
    if len == 0 {
        return 0;
    }
    let first = offset / PIECE;
    let last = offset.saturating_add(len - 1) / PIECE;
    usize::try_from(last - first + 1).unwrap_or(usize::MAX)
}

/// Bytes of the first piece.
#[inline]
fn first(offset: u64, len: usize) -> usize {
    let left = (PIECE - offset % PIECE) as usize;
    left.min(len)
}

/// Calls `f` with the checksum of each piece of `data`, which lies at `offset` of a volume.
#[inline]
pub fn each(offset: u64, data: &[u8], mut f: impl FnMut(u32)) {
    let (head, rest) = data.split_at(first(offset, data.len()));
    if !head.is_empty() {
        f(crc32c(head));
    }
    for piece in rest.chunks(PIECE as usize) {
        f(crc32c(piece));
    }
}

/// The first piece of `data` that does not fit its checksum; `None` when all do.
///
/// `stored` holds as many checksums as there are pieces; one that is missing counts as wrong.
#[inline]
pub fn verify(offset: u64, data: &[u8], stored: &[[u8; 4]]) -> Option<u32> {
    let mut at = 0;
    let mut bad = None;
    each(offset, data, |sum| {
        if bad.is_none() && stored.get(at).is_none_or(|s| u32::from_le_bytes(*s) != sum) {
            bad = Some(at as u32);
        }
        at += 1;
    });
    bad
}

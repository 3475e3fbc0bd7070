//! Checksums of data: one CRC32C for each piece that lies in one 4 KiB block of the volume.
//!
//! A command's data is cut at volume addresses that are multiples of 4096, so that each piece but the
//! first and the last is a whole block of the volume: its checksum is the one that a store keeps for the block.

use weir_codec::crc32c;

/// Bytes of a block that has one checksum.
pub const PIECE: u64 = 4096;

/// Bytes of the first piece of `len` bytes that begin at `offset`. All other pieces follow from it: nothing
/// else here knows where data ends, so no offset, however large, makes numbers differ.
#[inline]
fn first(offset: u64, len: u64) -> u64 {
    (PIECE - offset % PIECE).min(len)
}

/// Pieces of `len` bytes from `offset` on: exactly as many as [`each`] gives.
#[inline]
pub fn count(offset: u64, len: u64) -> usize {
    if len == 0 {
        return 0;
    }
    let behind = (len - first(offset, len)).div_ceil(PIECE);
    usize::try_from(behind).map_or(usize::MAX, |n| n.saturating_add(1))
}

/// Calls `f` with the checksum of each piece of `data`, which lies at `offset` of a volume.
#[inline]
pub fn each(offset: u64, data: &[u8], mut f: impl FnMut(u32)) {
    let (head, rest) = data.split_at(first(offset, data.len() as u64) as usize);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever makes room by `count` gets just what `each` gives, wherever the data is said to lie.
    #[test]
    fn there_are_as_many_checksums_as_are_counted() {
        let data = vec![7; 3 * PIECE as usize];
        let ends = [0, 1, PIECE - 1, PIECE, PIECE + 1, u64::MAX / 2];
        for offset in ends.into_iter().flat_map(|e| [e, u64::MAX - e]) {
            for len in [0, 1, 2, 191, 192, 4095, 4096, 4097, 8192, 3 * PIECE as usize] {
                let mut n = 0;
                each(offset, &data[..len], |_| n += 1);
                assert_eq!(count(offset, len as u64), n, "{len} bytes at {offset}");
            }
        }
        assert_eq!(count(u64::MAX, u64::MAX), (1 << 52) + 1);
    }
}

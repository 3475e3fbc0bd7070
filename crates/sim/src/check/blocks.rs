//! Blocks that say what they are: every 512-byte block names its volume, its place and the write that it
//! came from, and the rest of it follows from those, so that any foreign byte shows.

use weir_base::Prng;
use weir_codec::crc32c;

/// Bytes in a block.
pub const BLOCK: usize = 512;
const MAGIC: u32 = 0x5745_4952;
const HEADER: usize = 24;

/// Bit of a volume's number: its blocks can be compressed, some well, some not.
pub const SQUEEZABLE: u32 = 1 << 31;
/// Bit of a volume's number: a block names its place among 8 only, so what one write fills is alike, 4 KiB by 4 KiB.
pub const ALIKE: u32 = 1 << 30;
/// Bit of a volume's number: a block ends with its own CRC32C, little-endian, as blocks of file systems do. All such blocks
/// have the same CRC32C, so that it tells none from another.
pub const SUMMED: u32 = 1 << 29;

/// What a block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Nothing but zeros.
    Zero,
    /// A whole block of this write, written for this volume and block number.
    Written {
        /// The volume it was written to.
        volume: u32,
        /// The block number it was written to.
        block: u64,
        /// The write.
        write: u64,
    },
    /// Not a block that anyone wrote: mixed, torn or rotten. The offset of the first byte that does not
    /// belong to what its head says.
    Mixed {
        /// Offset in the block.
        at: usize,
    },
}

/// What a block of a volume names as its place.
pub fn place(volume: u32, block: u64) -> u64 {
    if volume & ALIKE == 0 { block } else { block % 8 }
}

/// Fills `out` (one block) for a write.
///
/// # Panics
/// When `out` is not one block.
pub fn fill_block(out: &mut [u8], volume: u32, block: u64, write: u64) {
    assert_eq!(out.len(), BLOCK);
    out[..4].copy_from_slice(&MAGIC.to_le_bytes());
    out[4..8].copy_from_slice(&volume.to_le_bytes());
    let block = place(volume, block);
    out[8..16].copy_from_slice(&block.to_le_bytes());
    out[16..24].copy_from_slice(&write.to_le_bytes());
    let seed = write ^ block.rotate_left(20) ^ u64::from(volume).rotate_left(44);
    let rest = &mut out[HEADER..];
    let random = match write % 3 {
        _ if volume & SQUEEZABLE == 0 => rest.len(),
        0 => 0,
        1 => rest.len() / 2,
        _ => rest.len(),
    };
    Prng::new(seed).fill(&mut rest[..random]);
    for part in rest[random..].chunks_mut(8) {
        part.copy_from_slice(&seed.to_le_bytes()[..part.len()]);
    }
    if volume & SUMMED != 0 {
        let (data, sum) = out.split_at_mut(BLOCK - 4);
        sum.copy_from_slice(&crc32c(data).to_le_bytes());
    }
}

fn le64(b: &[u8]) -> u64 {
    b.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b))
}

/// Says what `bytes` (one block) hold.
///
/// # Panics
/// When `bytes` are not one block.
pub fn read_block(bytes: &[u8]) -> Content {
    assert_eq!(bytes.len(), BLOCK);
    if bytes.iter().all(|b| *b == 0) {
        return Content::Zero;
    }
    let volume = le64(&bytes[4..8]) as u32;
    let (block, write) = (le64(&bytes[8..16]), le64(&bytes[16..24]));
    let mut want = [0; BLOCK];
    fill_block(&mut want, volume, block, write);
    match bytes.iter().zip(&want).position(|(a, b)| a != b) {
        None => Content::Written { volume, block, write },
        Some(at) => Content::Mixed { at },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_say_what_they_are_and_every_foreign_byte_shows() {
        let mut b = [0; BLOCK];
        assert_eq!(read_block(&b), Content::Zero);
        fill_block(&mut b, 3, 99, 1234);
        assert_eq!(read_block(&b), Content::Written { volume: 3, block: 99, write: 1234 });
        for volume in [3, 3 | SQUEEZABLE, 3 | SUMMED] {
            for write in 1234..1237 {
                fill_block(&mut b, volume, 99, write);
                for at in 0..BLOCK {
                    let mut bad = b;
                    bad[at] ^= 0x10;
                    assert!(matches!(read_block(&bad), Content::Mixed { .. }), "byte {at}");
                }
            }
        }
        fill_block(&mut b, 3, 99, 1234);
        let mut torn = [0; BLOCK];
        fill_block(&mut torn, 3, 99, 1235);
        torn[256..].copy_from_slice(&b[256..]);
        assert_eq!(read_block(&torn), Content::Mixed { at: 256 });
        fill_block(&mut b, ALIKE, 99, 1);
        assert_eq!(read_block(&b), Content::Written { volume: ALIKE, block: 3, write: 1 });
        let sum = |write| {
            let mut b = [0; BLOCK];
            fill_block(&mut b, SUMMED, 99, write);
            crc32c(&b)
        };
        assert_eq!(sum(1), sum(2));
    }
}

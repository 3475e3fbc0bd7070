//! Checksums with identity.

use super::{BLOCK, DATA_CRC32K};
use weir_codec::{crc32c, crc32k};

/// What a data block is, besides its bytes: part of its checksum, so that the right bytes of another
/// place, volume or time do not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The pool's tag.
    pub pool: u64,
    /// The volume's family: a volume and all its snapshots and clones share one.
    pub family: u32,
    /// Logical block in the volume.
    pub lba: u64,
    /// Epoch of the write.
    pub birth: u32,
    /// Pool block that holds it.
    pub vbn: u64,
}

impl Identity {
    /// The identity's share in the checksum.
    #[inline]
    pub fn mask(&self) -> u32 {
        let mut b = [0; 32];
        b[..8].copy_from_slice(&self.pool.to_le_bytes());
        b[8..16].copy_from_slice(&self.lba.to_le_bytes());
        b[16..24].copy_from_slice(&self.vbn.to_le_bytes());
        b[24..28].copy_from_slice(&self.family.to_le_bytes());
        b[28..].copy_from_slice(&self.birth.to_le_bytes());
        crc32c(&b)
    }
}

/// Which checksum of the data the maps of a pool hold.
///
/// CRC32C is no good one: data that is followed by its own CRC32C, as file systems and databases keep it, has the same CRC32C
/// whatever it is, and no mask or seed changes that. So what a place held before would pass for a write that did not reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DataSum {
    /// CRC-32K: of all pools that are made now.
    #[default]
    Crc32k,
    /// CRC32C: of pools that were made before.
    Crc32c,
}

impl DataSum {
    /// That of a pool with these incompatible features.
    pub fn of(incompat: u64) -> DataSum {
        if incompat & DATA_CRC32K != 0 { DataSum::Crc32k } else { DataSum::Crc32c }
    }

    /// The incompatible features that tell of it.
    pub fn features(self) -> u64 {
        match self {
            DataSum::Crc32k => DATA_CRC32K,
            DataSum::Crc32c => 0,
        }
    }

    /// The checksum of one block of data without its identity.
    #[inline]
    pub fn bare(self, data: &[u8]) -> u32 {
        debug_assert_eq!(data.len(), BLOCK);
        match self {
            DataSum::Crc32k => crc32k(data),
            DataSum::Crc32c => crc32c(data),
        }
    }

    /// The checksum that the map holds of one block of data: that of the data, exclusive or the identity's share. For a linear
    /// code that is as strong as a seed.
    #[inline]
    pub fn masked(self, id: &Identity, data: &[u8]) -> u32 {
        self.bare(data) ^ id.mask()
    }
}

//! Checksums with identity.

use super::BLOCK;
use weir_codec::crc32c;

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

/// The checksum that the map holds of one block of data: CRC32C of the data, masked with the identity.
///
/// The mask is added (exclusive or) and not a seed, which for a linear code is as strong, so that a CRC32C
/// of the bare data that came with it over a wire need not be taken again.
#[inline]
pub fn data_crc(id: &Identity, data: &[u8]) -> u32 {
    debug_assert_eq!(data.len(), BLOCK);
    crc32c(data) ^ id.mask()
}

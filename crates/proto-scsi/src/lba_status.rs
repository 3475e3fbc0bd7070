//! GET LBA STATUS data (SBC-3 5.6).

use crate::data::{Data, truncate};

/// Provisioning status of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Provisioning {
    /// Blocks are mapped.
    Mapped = 0,
    /// Blocks are deallocated and read as zeros.
    Deallocated = 1,
    /// Blocks are anchored: no data, but space is kept.
    Anchored = 2,
}

impl Provisioning {
    /// The status in the low four bits of `byte`, if it is one of the three.
    pub fn from_bits(byte: u8) -> Option<Provisioning> {
        match byte & 0x0f {
            0 => Some(Provisioning::Mapped),
            1 => Some(Provisioning::Deallocated),
            2 => Some(Provisioning::Anchored),
            _ => None,
        }
    }
}

/// One descriptor of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LbaStatus {
    /// First block.
    pub lba: u64,
    /// Number of blocks.
    pub blocks: u32,
    /// Their status.
    pub status: Provisioning,
}

/// How many descriptors an allocation length has room for; at least one is worth finding out,
/// because the answer's length field counts what was found even if it does not fit.
pub fn descriptors_wanted(alloc: u32) -> usize {
    (alloc.saturating_sub(8) / 16).max(1) as usize
}

/// Writes the answer, cut to the allocation length.
pub fn encode(extents: &[LbaStatus], alloc: u32, out: &mut Vec<u8>) {
    out.clear();
    out.zeros(8);
    for e in extents {
        out.be64(e.lba);
        out.be32(e.blocks);
        out.extend_from_slice(&[e.status as u8, 0, 0, 0]);
    }
    out.set_len32(0);
    truncate(out, alloc as usize);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_and_truncated() {
        let one = [LbaStatus { lba: 0x10, blocks: 8, status: Provisioning::Deallocated }];
        let mut out = Vec::new();
        encode(&one, 24, &mut out);
        let want = [0, 0, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 8, 1, 0, 0, 0];
        assert_eq!(out, want);
        for alloc in 0..24 {
            encode(&one, alloc, &mut out);
            assert_eq!(out, want[..alloc as usize]);
        }
        assert_eq!(descriptors_wanted(0), 1);
        assert_eq!(descriptors_wanted(24), 1);
        assert_eq!(descriptors_wanted(40), 2);
    }
}

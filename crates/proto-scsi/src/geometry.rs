//! The few numbers and switches of a logical unit that decoding a CDB needs.

/// Optional parts of the command set, as a set of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Features(u16);

impl Features {
    /// Nothing optional.
    pub const NONE: Features = Features(0);
    /// UNMAP; the unit is thin (LBPME, LBPU) and unmapped blocks read as zeros (LBPRZ).
    pub const UNMAP: Features = Features(1);
    /// WRITE SAME without UNMAP.
    pub const WRITE_SAME: Features = Features(1 << 1);
    /// The UNMAP bit of WRITE SAME (LBPWS, LBPWS10).
    pub const WRITE_SAME_UNMAP: Features = Features(1 << 2);
    /// The ANCHOR bits (ANC_SUP).
    pub const ANCHOR: Features = Features(1 << 3);
    /// COMPARE AND WRITE.
    pub const COMPARE_AND_WRITE: Features = Features(1 << 4);
    /// FORMAT UNIT. The glue must then act on `Effects::format`.
    pub const FORMAT: Features = Features(1 << 5);
    /// Reduced block commands: device type 0Eh, mode page 06h, no READ(6) and WRITE(6).
    pub const RBC: Features = Features(1 << 6);
    /// What a thin volume of Weir has.
    pub const THIN_DISK: Features = Features::UNMAP
        .with(Features::WRITE_SAME)
        .with(Features::WRITE_SAME_UNMAP)
        .with(Features::COMPARE_AND_WRITE);

    /// Both sets together.
    pub const fn with(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }

    /// This set without what is in `other`.
    pub const fn without(self, other: Features) -> Features {
        Features(self.0 & !other.0)
    }

    /// True when all of `other` is in this set.
    pub const fn contains(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    /// True when some of `other` is in this set.
    pub const fn intersects(self, other: Features) -> bool {
        self.0 & other.0 != 0
    }
}

/// Limits that VPD page B0h reports and decoding enforces (SBC-3 6.6.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most blocks of one READ, WRITE or VERIFY; at least 1.
    pub max_transfer_blocks: u32,
    /// Transfer length, in blocks, beyond which nothing is gained; 0 says nothing.
    pub optimal_transfer_blocks: u32,
    /// Granularity of transfers, in blocks, that costs no extra work; 0 says nothing.
    pub optimal_granularity_blocks: u16,
    /// Most blocks of one COMPARE AND WRITE.
    pub max_caw_blocks: u8,
    /// Most blocks of all descriptors of one UNMAP.
    pub max_unmap_blocks: u32,
    /// Most descriptors of one UNMAP.
    pub max_unmap_descriptors: u32,
    /// Blocks that are unmapped together; 0 says nothing.
    pub unmap_granularity_blocks: u32,
    /// LBA of the first full granule; meaningful with a granularity.
    pub unmap_alignment_lba: u32,
    /// Most blocks of one WRITE SAME; 0 means no limit.
    pub max_write_same_blocks: u64,
    /// WSNZ: a WRITE SAME of 0 blocks is refused instead of running to the end.
    pub write_same_non_zero: bool,
}

impl Limits {
    /// Limits of Weir's own volumes for this block size: transfers of at most 16 MiB.
    pub const fn for_block_size(block_size: u32) -> Limits {
        let block_size = if block_size == 0 { 512 } else { block_size };
        let per_page = 4096 / block_size;
        Limits {
            max_transfer_blocks: (16 << 20) / block_size,
            optimal_transfer_blocks: (1 << 20) / block_size,
            optimal_granularity_blocks: per_page as u16,
            max_caw_blocks: 128,
            max_unmap_blocks: 1 << 20,
            max_unmap_descriptors: 256,
            unmap_granularity_blocks: per_page,
            unmap_alignment_lba: 0,
            max_write_same_blocks: (4u64 << 30) / block_size as u64,
            write_same_non_zero: false,
        }
    }
}

/// What decoding needs to know of a logical unit. Small and `Copy`: every core keeps its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a logical block: 512 or 4096.
    pub block_size: u32,
    /// Number of logical blocks.
    pub blocks: u64,
    /// Optional commands.
    pub features: Features,
    /// Limits per command.
    pub limits: Limits,
}

impl Geometry {
    /// A thin disk with the limits of Weir's volumes.
    pub const fn new(block_size: u32, blocks: u64) -> Geometry {
        Geometry {
            block_size,
            blocks,
            features: Features::THIN_DISK,
            limits: Limits::for_block_size(block_size),
        }
    }

    /// LBA of the last block; 0 for an empty unit, which SCSI cannot express.
    pub const fn last_lba(&self) -> u64 {
        self.blocks.saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_from_a_set_is_gone_and_nothing_else() {
        let less = Features::THIN_DISK.without(Features::UNMAP).without(Features::FORMAT);
        assert!(!less.intersects(Features::UNMAP.with(Features::FORMAT)));
        assert_eq!(less.with(Features::UNMAP), Features::THIN_DISK);
    }

    #[test]
    fn limits_are_of_the_same_bytes_for_each_block_size() {
        for size in [512, 4096] {
            let l = Limits::for_block_size(size);
            let bytes =
                [l.max_transfer_blocks, l.optimal_transfer_blocks, l.unmap_granularity_blocks];
            assert_eq!(bytes.map(|b| b * size), [16 << 20, 1 << 20, 4096]);
            assert_eq!(l.max_write_same_blocks * u64::from(size), 4 << 30);
        }
        assert_eq!(Limits::for_block_size(0), Limits::for_block_size(512));
    }
}

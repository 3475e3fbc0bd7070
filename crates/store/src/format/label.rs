//! The device label: which pool, which device, where things are. Four copies, written when the device
//! joins, and again one by one when they are damaged.

use super::le::*;
use super::{BLOCK, Block, FormatError, INCOMPAT, Result, VERSION, ensure};
use weir_codec::crc64;

const MAGIC: u64 = u64::from_le_bytes(*b"WeirPool");
/// Where labels and superblocks have their checksum.
pub(super) const CRC_AT: usize = BLOCK - 8;

/// Copies of the label on a device.
pub const LABELS: u8 = 4;
/// Slots of each of the two superblock areas of a device.
pub const SUPER_SLOTS: u64 = 64;
/// Fewest pages of a log.
pub const MIN_LOG: u64 = 16;

/// Where things are on a device, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Size of the device.
    pub blocks: u64,
    /// Pages of the log ring.
    pub log_pages: u64,
    /// Blocks of each of the two copies of the table of slabs.
    pub table_pages: u64,
    /// Blocks that replace ones that cannot be written any more.
    pub spares: u64,
    /// Blocks in a slab, as a power of two.
    pub slab_shift: u8,
    /// Slabs that fit.
    pub extents: u32,
}

impl Layout {
    const FRONT: u64 = 2;

    /// Lays out a device; `None` when it is too small for one slab or a number is out of range.
    pub fn plan(
        blocks: u64,
        slab_shift: u8,
        log_pages: u64,
        table_pages: u64,
        spares: u64,
    ) -> Option<Layout> {
        if !(6..=20).contains(&slab_shift) || !(MIN_LOG..=1 << 32).contains(&log_pages) {
            return None;
        }
        if !(1..=1 << 24).contains(&table_pages) || spares > 1 << 31 {
            return None;
        }
        let fixed = 2 * (Self::FRONT + SUPER_SLOTS + table_pages);
        let extents = blocks.checked_sub(log_pages + spares + fixed)? >> slab_shift;
        let extents = u32::try_from(extents).ok().filter(|n| *n > 0)?;
        Some(Layout { blocks, log_pages, table_pages, spares, slab_shift, extents })
    }

    /// Blocks that a device has at least, to be laid out in this way with one slab.
    pub fn least(&self) -> u64 {
        let fixed = 2 * (Self::FRONT + SUPER_SLOTS + self.table_pages);
        self.log_pages + self.spares + fixed + (1 << self.slab_shift)
    }

    /// Block of a copy of the label.
    pub fn label(&self, copy: u64) -> u64 {
        if copy < 2 { copy } else { self.blocks - 4 + copy }
    }

    /// Block of a superblock slot in the first (0) or last (1) area.
    pub fn superblock(&self, area: u64, seq: u64) -> u64 {
        let first = match area {
            0 => Self::FRONT,
            _ => self.blocks - Self::FRONT - SUPER_SLOTS,
        };
        first + seq % SUPER_SLOTS
    }

    /// Block of a log page.
    pub fn log(&self, lsn: u64) -> u64 {
        Self::FRONT + SUPER_SLOTS + lsn % self.log_pages
    }

    /// Block of a page of the first (0) or second (1) copy of the table of slabs.
    pub fn table(&self, which: u8, page: u64) -> u64 {
        Self::FRONT + SUPER_SLOTS + self.log_pages + u64::from(which & 1) * self.table_pages + page
    }

    /// A spare block.
    pub fn spare(&self, n: u64) -> u64 {
        self.table(1, self.table_pages) + n
    }

    /// First block of an extent.
    pub fn extent(&self, n: u32) -> u64 {
        self.spare(self.spares) + (u64::from(n) << self.slab_shift)
    }
}

/// Judges what labels and superblocks begin and end with: magic, version, features, checksum. Gives the
/// features without which the rest cannot be understood, all of which are known.
pub(super) fn open_block(b: &Block, magic: u64) -> Result<u64> {
    if get64(b, 0) != magic {
        return Err(FormatError::Magic);
    }
    if crc64(&b[..CRC_AT]) != get64(b, CRC_AT) {
        return Err(FormatError::Checksum);
    }
    let version = get32(b, 8);
    if version != VERSION {
        return Err(FormatError::Version(version));
    }
    let incompat = get64(b, 16);
    if incompat & !INCOMPAT != 0 {
        return Err(FormatError::Feature(incompat & !INCOMPAT));
    }
    Ok(incompat)
}

/// A device label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// The pool.
    pub pool: u128,
    /// The device; unique in the pool for ever.
    pub device: u64,
    /// Where things are.
    pub layout: Layout,
    /// Features without which the device cannot be used.
    pub incompat: u64,
    /// Features that may be ignored.
    pub compat: u64,
    /// Which of the four copies.
    pub copy: u8,
}

impl Label {
    /// Writes a copy.
    pub fn encode(&self) -> Box<Block> {
        let mut b = super::zeroed();
        put64(&mut b[..], 0, MAGIC);
        put32(&mut b[..], 8, VERSION);
        b[12] = self.copy;
        b[13] = self.layout.slab_shift;
        put64(&mut b[..], 16, self.incompat);
        put64(&mut b[..], 24, self.compat);
        put128(&mut b[..], 32, self.pool);
        put64(&mut b[..], 48, self.device);
        put64(&mut b[..], 56, self.layout.blocks);
        put64(&mut b[..], 64, self.layout.log_pages);
        put64(&mut b[..], 72, self.layout.spares);
        put32(&mut b[..], 80, self.layout.extents);
        put64(&mut b[..], 88, self.layout.table_pages);
        let crc = crc64(&b[..CRC_AT]);
        put64(&mut b[..], CRC_AT, crc);
        b
    }

    /// Reads a copy.
    ///
    /// # Errors
    /// It is no label, damaged, or needs a newer program.
    pub fn decode(b: &Block) -> Result<Label> {
        let incompat = open_block(b, MAGIC)?;
        let planned = Layout::plan(get64(b, 56), b[13], get64(b, 64), get64(b, 88), get64(b, 72));
        let layout = planned.ok_or(FormatError::Range("layout"))?;
        ensure(layout.extents == get32(b, 80), "number of slabs")?;
        ensure(b[12] < LABELS, "copy")?;
        Ok(Label {
            pool: get128(b, 32),
            device: get64(b, 48),
            layout,
            incompat,
            compat: get64(b, 24),
            copy: b[12],
        })
    }
}

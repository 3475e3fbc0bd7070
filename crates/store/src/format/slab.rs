//! Slabs: pieces of pool space, each on one or two devices, with their own metadata at their start.
//!
//! A slab begins with two copies of its metadata, which checkpoints write in turn: a head with the epochs in
//! which regions were last written, and the allocation bitmap. The table of slabs says which of the
//! two counts, and its checksum.

use super::le::*;
use super::page::{self, HEADER, Header, PAYLOAD, PageKind};
use super::{Block, MAX_EPOCH, Result, ensure};

/// Bytes of a record in the table of slabs.
pub const RECORD: usize = 40;
/// Bytes of a replaced block's record.
pub const REMAP: usize = 16;
/// Bits of the bitmap in one page.
pub const BITS: usize = PAYLOAD * 8;
/// Blocks of a region: 4 MiB.
pub const REGION: u64 = 1024;
const SUMS_AT: usize = HEADER;

/// Pages of bitmap of a slab.
pub fn bitmap_pages(shift: u8) -> u64 {
    (1u64 << shift).div_ceil(BITS as u64)
}

/// Blocks of one copy of a slab's metadata.
pub fn meta_pages(shift: u8) -> u64 {
    1 + bitmap_pages(shift)
}

/// Blocks at the start of a slab that are no data.
pub fn reserved(shift: u8) -> u64 {
    2 * meta_pages(shift)
}

/// Blocks of a region: 4 MiB, less in small slabs, more in slabs whose head would not hold so many.
pub fn region_blocks(shift: u8) -> u64 {
    let room = (PAYLOAD - bitmap_pages(shift) as usize * 8) / 4;
    let mut region = REGION.min(1 << shift);
    while (1u64 << shift) / region > room as u64 && region < 1 << shift {
        region *= 2;
    }
    region
}

/// A copy of a slab on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Number of the device.
    pub device: u16,
    /// Extent of the device.
    pub extent: u32,
    /// It is being filled and not read yet.
    pub filling: bool,
}

/// A slab in the table of slabs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlabRecord {
    /// Where its copies are.
    pub copies: [Option<Placement>; 2],
    /// Which copy of its metadata counts; `None`: it was never used.
    pub which: Option<u8>,
    /// Checksum of the head of that copy.
    pub crc: u64,
    /// Its birth.
    pub birth: u32,
    /// Free blocks.
    pub free: u32,
}

impl SlabRecord {
    /// Writes it to 40 bytes.
    pub fn put(&self, p: &mut [u8]) {
        p[..RECORD].fill(0);
        for (i, c) in self.copies.iter().enumerate() {
            if let Some(c) = c {
                put16(p, i * 8, c.device);
                p[i * 8 + 2] = 1 | u8::from(c.filling) << 1;
                put32(p, i * 8 + 4, c.extent);
            }
        }
        p[16] = self.which.map_or(0, |w| 1 + (w & 1));
        put32(p, 20, self.free);
        put64(p, 24, self.crc);
        put32(p, 32, self.birth);
    }

    /// Reads it from 40 bytes.
    ///
    /// # Errors
    /// A field is out of range.
    pub fn get(p: &[u8]) -> Result<SlabRecord> {
        let mut copies = [None; 2];
        for (i, c) in copies.iter_mut().enumerate() {
            let flags = p[i * 8 + 2];
            ensure(flags <= 3 && flags != 2, "flags of a slab's copy")?;
            if flags & 1 != 0 {
                *c = Some(Placement {
                    device: get16(p, i * 8),
                    extent: get32(p, i * 8 + 4),
                    filling: flags & 2 != 0,
                });
            }
        }
        ensure(p[16] <= 2, "copy of a slab's metadata")?;
        let birth = get32(p, 32);
        ensure(birth <= MAX_EPOCH, "birth of a slab's metadata")?;
        let which = p[16].checked_sub(1);
        Ok(SlabRecord { copies, which, crc: get64(p, 24), birth, free: get32(p, 20) })
    }
}

/// A block of a device that lives in a spare block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemapRecord {
    /// Number of the device.
    pub device: u16,
    /// Block of the device.
    pub from: u64,
    /// Number of the spare.
    pub spare: u32,
}

impl RemapRecord {
    /// Writes it to 16 bytes.
    pub fn put(&self, p: &mut [u8]) {
        put16(p, 0, self.device);
        put16(p, 2, 0);
        put32(p, 4, self.spare);
        put64(p, 8, self.from);
    }

    /// Reads it from 16 bytes.
    pub fn get(p: &[u8]) -> RemapRecord {
        RemapRecord { device: get16(p, 0), spare: get32(p, 4), from: get64(p, 8) }
    }
}

/// The head of a slab's metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlabHead {
    /// Checksums of the pages of bitmap.
    pub bitmaps: Vec<u64>,
    /// Epoch in which each region was last written.
    pub regions: Vec<u32>,
}

impl SlabHead {
    /// Writes it; returns the block and its checksum.
    pub fn encode(&self, header: &Header) -> (Box<Block>, u64) {
        let mut b = super::zeroed();
        for (i, crc) in self.bitmaps.iter().enumerate() {
            put64(&mut b[..], SUMS_AT + 8 * i, *crc);
        }
        let at = SUMS_AT + 8 * self.bitmaps.len();
        for (i, e) in self.regions.iter().enumerate() {
            put32(&mut b[..], at + 4 * i, *e);
        }
        let crc = page::seal(&mut b, header);
        (b, crc)
    }

    /// Reads the content of a verified block.
    ///
    /// # Errors
    /// A field is out of range.
    pub fn decode(b: &Block, shift: u8) -> Result<SlabHead> {
        ensure((6..=20).contains(&shift), "size of slabs")?;
        let h = Header::get(b)?;
        ensure(h.kind == PageKind::SlabMeta, "kind of page")?;
        let n = bitmap_pages(shift) as usize;
        let bitmaps = (0..n).map(|i| get64(b, SUMS_AT + 8 * i)).collect();
        let at = SUMS_AT + 8 * n;
        let count = ((1u64 << shift) / region_blocks(shift)) as usize;
        let regions: Vec<u32> = (0..count).map(|i| get32(b, at + 4 * i)).collect();
        ensure(regions.iter().all(|e| *e <= MAX_EPOCH), "epoch of a region")?;
        Ok(SlabHead { bitmaps, regions })
    }
}

/// Fills a page of bitmap from words of 64 bits; missing words are zeros.
pub fn put_bits(b: &mut Block, words: &[u64]) {
    for i in 0..BITS / 64 {
        put64(&mut b[..], HEADER + 8 * i, words.get(i).copied().unwrap_or(0));
    }
}

/// Reads word `i` of a page of bitmap.
pub fn bits(b: &Block, i: usize) -> u64 {
    get64(b, HEADER + 8 * i)
}

//! The header that all metadata blocks in allocated space share, and pointers to them.

use super::le::*;
use super::{Block, FormatError, MAX_EPOCH, MAX_VBN, Result, ensure};
use weir_codec::crc64;

/// Bytes of the header.
pub const HEADER: usize = 64;
/// Bytes of content after it.
pub const PAYLOAD: usize = super::BLOCK - HEADER;
/// Bytes of a pointer.
pub const PTR: usize = 32;
/// Pointers in an inner node.
pub const FANOUT: usize = PAYLOAD / PTR;

const MAGIC: u32 = u32::from_le_bytes(*b"WRpg");
const CRC_AT: usize = 56;

/// What a metadata block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum PageKind {
    /// Map entries of a volume.
    Leaf = 1,
    /// Pointers to map nodes.
    Inner = 2,
    /// A part of a table.
    Blob = 3,
    /// Pointers to parts of a table.
    BlobIndex = 4,
    /// Blocks whose last reference is a snapshot's.
    Dead = 5,
    /// Head of a slab's own metadata.
    SlabMeta = 6,
    /// A part of a slab's allocation bitmap.
    Bitmap = 7,
}

impl PageKind {
    fn new(n: u8) -> Result<PageKind> {
        Ok(match n {
            1 => PageKind::Leaf,
            2 => PageKind::Inner,
            3 => PageKind::Blob,
            4 => PageKind::BlobIndex,
            5 => PageKind::Dead,
            6 => PageKind::SlabMeta,
            7 => PageKind::Bitmap,
            _ => return Err(FormatError::Range("kind of page")),
        })
    }
}

/// The header of a metadata block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: PageKind,
    /// Height above the leaves: 0 for leaves and for what is no tree.
    pub level: u8,
    /// Layout of the entries; 0 is the one described here. Others would come with feature bits.
    pub entry_format: u8,
    /// Tag of the pool.
    pub pool: u64,
    /// Whose: a family (map), a number of a table, a dataset (dead list), a slab.
    pub owner: u64,
    /// Which of the owner's.
    pub index: u64,
    /// Epoch in which it was written.
    pub birth: u32,
    /// Greatest birth of anything at or below it.
    pub max_birth: u32,
    /// Where it is.
    pub vbn: u64,
    /// Entries used, where that is a number.
    pub count: u16,
}

impl Header {
    fn put(&self, b: &mut Block) {
        put32(b, 0, MAGIC);
        b[4] = self.kind as u8;
        b[5] = self.level;
        b[6] = self.entry_format;
        b[7] = 0;
        put64(b, 8, self.pool);
        put64(b, 16, self.owner);
        put64(b, 24, self.index);
        put32(b, 32, self.birth);
        put32(b, 36, self.max_birth);
        put64(b, 40, self.vbn);
        put16(b, 48, self.count);
        b[50..CRC_AT].fill(0);
    }

    /// Reads a header without looking at the checksum.
    ///
    /// # Errors
    /// It is no metadata block, or a field is out of range.
    pub fn get(b: &Block) -> Result<Header> {
        if get32(b, 0) != MAGIC {
            return Err(FormatError::Magic);
        }
        let h = Header {
            kind: PageKind::new(b[4])?,
            level: b[5],
            entry_format: b[6],
            pool: get64(b, 8),
            owner: get64(b, 16),
            index: get64(b, 24),
            birth: get32(b, 32),
            max_birth: get32(b, 36),
            vbn: get64(b, 40),
            count: get16(b, 48),
        };
        ensure(h.entry_format == 0, "layout of entries")?;
        ensure(h.birth <= MAX_EPOCH && h.max_birth <= MAX_EPOCH, "birth")?;
        ensure(h.vbn < MAX_VBN, "block number")?;
        Ok(h)
    }
}

fn sum(b: &Block) -> u64 {
    // The checksum's own place counts as zeros.
    let mut head = [0; HEADER];
    head[..CRC_AT].copy_from_slice(&b[..CRC_AT]);
    crc64(&head).rotate_left(1) ^ crc64(&b[HEADER..])
}

/// Writes header and checksum around the content that is there; returns the checksum, for the parent.
pub fn seal(b: &mut Block, header: &Header) -> u64 {
    header.put(b);
    let crc = sum(b);
    put64(b, CRC_AT, crc);
    crc
}

/// Checks a block against itself.
///
/// # Errors
/// It is no metadata block, or it is damaged.
pub fn open(b: &Block) -> Result<Header> {
    let h = Header::get(b)?;
    if sum(b) != get64(b, CRC_AT) {
        return Err(FormatError::Checksum);
    }
    Ok(h)
}

/// The checksum that a block claims.
pub fn claimed_crc(b: &Block) -> u64 {
    get64(b, CRC_AT)
}

/// Refers to a metadata block and proves it. All zero: there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct NodePtr {
    /// Where.
    pub vbn: u64,
    /// Epoch in which it was written.
    pub birth: u32,
    /// Greatest birth at or below it.
    pub max_birth: u32,
    /// Its checksum.
    pub crc: u64,
}

impl NodePtr {
    /// Refers to nothing.
    pub const NONE: NodePtr = NodePtr { vbn: 0, birth: 0, max_birth: 0, crc: 0 };

    /// True when it refers to nothing.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.vbn == 0
    }

    /// Writes it to 32 bytes.
    pub fn put(&self, b: &mut [u8]) {
        put64(b, 0, self.vbn);
        put32(b, 8, self.birth);
        put32(b, 12, self.max_birth);
        put64(b, 16, self.crc);
        put64(b, 24, 0);
    }

    /// Reads it from 32 bytes.
    ///
    /// # Errors
    /// A field is out of range.
    pub fn get(b: &[u8]) -> Result<NodePtr> {
        let p = NodePtr {
            vbn: get64(b, 0),
            birth: get32(b, 8),
            max_birth: get32(b, 12),
            crc: get64(b, 16),
        };
        ensure(p.vbn < MAX_VBN, "block number in a pointer")?;
        ensure(p.max_birth <= MAX_EPOCH && p.birth <= p.max_birth, "birth in a pointer")?;
        ensure(get64(b, 24) == 0, "reserved field of a pointer")?;
        if p.vbn == 0 && p != NodePtr::NONE {
            return Err(FormatError::Range("pointer to nothing"));
        }
        Ok(p)
    }

    /// Checks that `b` is the block that this refers to.
    ///
    /// # Errors
    /// It is damaged, stale or another one.
    pub fn verify(&self, b: &Block, pool: u64, kind: PageKind) -> Result<Header> {
        let h = open(b)?;
        let same = |good: bool, what| if good { Ok(()) } else { Err(FormatError::Identity(what)) };
        same(claimed_crc(b) == self.crc, "checksum")?;
        same(h.pool == pool, "pool")?;
        same(h.vbn == self.vbn, "place")?;
        same(h.birth == self.birth && h.max_birth == self.max_birth, "birth")?;
        same(h.kind == kind, "kind")?;
        Ok(h)
    }
}

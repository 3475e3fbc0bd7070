//! The map of a volume: a radix tree of leaves (336 entries) and inner nodes (126 pointers).

use super::le::*;
use super::page::{FANOUT, HEADER, NodePtr, PTR};
use super::{Block, MAX_VBN, Result, ensure};

/// Entries in a leaf.
pub const LEAF: usize = super::page::PAYLOAD / ENTRY;
/// Bytes of an entry.
pub const ENTRY: usize = 12;
/// Levels above the leaves that a map can have: enough for 40-bit block numbers.
pub const MAX_HEIGHT: u8 = 5;

/// The entry of a block whose data is lost: reads fail until it is written.
pub const POISON: u64 = 2;
/// First block number that is a place.
pub const FIRST_VBN: u64 = 4;

/// Where a logical block is, since when, and how it is proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MapEntry {
    /// Pool block; 0 for a hole, 1 for zeros, 2 for poison.
    pub vbn: u64,
    /// Epoch of the write.
    pub birth: u32,
    /// [`DataSum::masked`](super::DataSum::masked).
    pub crc: u32,
}

impl MapEntry {
    /// Never written, or given back: reads as zeros.
    pub const HOLE: MapEntry = MapEntry { vbn: 0, birth: 0, crc: 0 };

    /// The data is lost, as noticed in an epoch.
    pub const fn poison(birth: u32) -> MapEntry {
        MapEntry { vbn: POISON, birth, crc: 0 }
    }

    /// True when a block of the pool holds its data.
    #[inline]
    pub fn is_data(&self) -> bool {
        self.vbn >= FIRST_VBN
    }

    /// True when its data is lost.
    #[inline]
    pub fn is_poison(&self) -> bool {
        self.vbn == POISON
    }

    /// Block number and birth in 64 bits.
    pub(crate) fn packed(&self) -> u64 {
        pack(self.vbn, self.birth)
    }
}

/// 36 bits of block number and 28 of birth.
pub(crate) fn pack(vbn: u64, birth: u32) -> u64 {
    vbn | u64::from(birth) << 36
}

/// The reverse of [`pack`].
pub(crate) fn unpack(x: u64) -> (u64, u32) {
    (x & (MAX_VBN - 1), (x >> 36) as u32)
}

/// Logical blocks below a node of this level.
pub fn span(level: u8) -> u64 {
    (0..level).fold(LEAF as u64, |n, _| n.saturating_mul(FANOUT as u64))
}

/// Least height of a tree for this many logical blocks.
pub fn height_for(blocks: u64) -> u8 {
    (0..MAX_HEIGHT).find(|h| span(*h) >= blocks).unwrap_or(MAX_HEIGHT)
}

/// Reads entry `i` of a verified leaf.
#[inline]
pub fn entry(b: &Block, i: usize) -> MapEntry {
    let at = HEADER + i * ENTRY;
    let (vbn, birth) = unpack(get64(b, at));
    MapEntry { vbn, birth, crc: get32(b, at + 8) }
}

/// Writes entry `i` of a leaf.
#[inline]
pub fn set_entry(b: &mut Block, i: usize, e: MapEntry) {
    let at = HEADER + i * ENTRY;
    put64(b, at, e.packed());
    put32(b, at + 8, e.crc);
}

/// Reads pointer `i` of an inner node.
///
/// # Errors
/// A field is out of range.
pub fn pointer(b: &Block, i: usize) -> Result<NodePtr> {
    NodePtr::get(&b[HEADER + i * PTR..HEADER + (i + 1) * PTR])
}

/// Writes pointer `i` of an inner node.
pub fn set_pointer(b: &mut Block, i: usize, p: NodePtr) {
    p.put(&mut b[HEADER + i * PTR..HEADER + (i + 1) * PTR]);
}

/// Checks all entries of a leaf: what no program would have written.
///
/// # Errors
/// The first field out of range.
pub fn check_leaf(b: &Block, max_birth: u32) -> Result<()> {
    for i in 0..LEAF {
        let e = entry(b, i);
        ensure(e.birth <= max_birth, "birth of a map entry")?;
        ensure(e.vbn <= POISON || e.vbn >= FIRST_VBN, "block number of a map entry")?;
        ensure(e.vbn != 0 || e == MapEntry::HOLE, "map entry of a hole")?;
    }
    Ok(())
}

/// Checks all pointers of an inner node.
///
/// # Errors
/// The first field out of range.
pub fn check_inner(b: &Block, max_birth: u32) -> Result<()> {
    for i in 0..FANOUT {
        ensure(pointer(b, i)?.max_birth <= max_birth, "birth of a pointer")?;
    }
    Ok(())
}

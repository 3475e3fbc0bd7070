//! The on-disk format, sans-IO: bytes in, checked structures out. `docs/format.md` describes it.
//!
//! All numbers are little-endian. Every structure is one block of 4096 bytes that names itself (what, whose,
//! which, where) inside a checksum, so that a torn, stale or misplaced block is recognised; the map
//! and the tables are verified by the checksum that their *parent* holds besides.

pub mod blob;
pub mod crc;
pub mod dataset;
pub mod dead;
pub mod label;
mod le;
pub mod log;
pub mod page;
pub mod slab;
pub mod superblock;
pub mod tree;
pub mod turn;

#[cfg(test)]
mod tests;

pub use crc::{DataSum, Identity};
pub use page::{NodePtr, PageKind};

/// Bytes in a block: the unit of allocation, checksums and snapshots.
pub const BLOCK: usize = 4096;

/// One block of bytes.
pub type Block = [u8; BLOCK];

/// Version of the format. A change that older programs would misread is a feature bit, not a version.
pub const VERSION: u32 = 1;

/// Feature: the table of slabs has places without copies, of slabs that were given up.
pub const GIVEN_UP_SLABS: u64 = 1;

/// Feature: the log has stretches of lives that are over, as the turns of the superblock tell.
pub const KEPT_LOG: u64 = 2;

/// Feature: checksums of data are CRC-32K, not CRC32C.
pub const DATA_CRC32K: u64 = 4;

/// Feature: the pool is shared by two nodes. Only its owner opens it.
pub const OF_CLUSTER: u64 = 8;

/// Incompatible features that this program knows. A pool with any other bit is not opened.
pub const INCOMPAT: u64 = GIVEN_UP_SLABS | KEPT_LOG | DATA_CRC32K | OF_CLUSTER;

/// Largest pool block number, exclusive: 36 bits, 256 TiB.
pub const MAX_VBN: u64 = 1 << 36;
/// Largest birth epoch: 28 bits.
pub const MAX_EPOCH: u32 = (1 << 28) - 1;
/// The last epoch that is counted up to. Checkpoints go on in it; only snapshots, which need an epoch each, are refused.
/// What is written by older programs after it still fits.
pub const LAST_EPOCH: u32 = MAX_EPOCH - 64;
/// Largest logical block number of a volume, exclusive: 40 bits, 4 PiB.
pub const MAX_LBA: u64 = 1 << 40;

/// Why a block is not what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// It does not begin as such a block does.
    #[error("not such a block: the magic number is wrong")]
    Magic,
    /// Its checksum is wrong.
    #[error("the checksum is wrong")]
    Checksum,
    /// It was made by a newer program.
    #[error("format version {0} is newer than this program's {VERSION}")]
    Version(u32),
    /// It needs features that this program has not.
    #[error("feature bits {0:#x} are unknown to this program")]
    Feature(u64),
    /// It is a whole block, but another one: of another pool, place, owner or time.
    #[error("another block than was asked for: {0} differs")]
    Identity(&'static str),
    /// A field is outside its range.
    #[error("{0} is out of range")]
    Range(&'static str),
}

/// The result of a decoder.
pub type Result<T> = core::result::Result<T, FormatError>;

/// A block of zeros on the heap.
pub fn zeroed() -> Box<Block> {
    Box::new([0; BLOCK])
}

pub(crate) fn ensure(good: bool, what: &'static str) -> Result<()> {
    if good { Ok(()) } else { Err(FormatError::Range(what)) }
}

//! Datasets: volumes and snapshots, as records of a table.

use super::le::*;
use super::page::NodePtr;
use super::tree::MAX_HEIGHT;
use super::{MAX_EPOCH, MAX_LBA, Result, ensure};

/// Bytes of a record.
pub const RECORD: usize = 256;
/// Longest name in bytes.
pub const NAME: usize = super::log::NAME;

/// What a dataset is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Can be read and written.
    Volume,
    /// A volume as it was.
    Snapshot,
    /// What is left of a dataset: its blocks are being given back.
    Garbage,
}

/// The root of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MapRoot {
    /// The root node; none: all holes.
    pub ptr: NodePtr,
    /// Its level.
    pub height: u8,
}

/// A dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetRecord {
    /// Its number, never used twice.
    pub id: u32,
    /// What it is.
    pub kind: Kind,
    /// It is being deleted.
    pub deleting: bool,
    /// Shared by a volume with its snapshots and clones: part of every checksum.
    pub family: u32,
    /// Of a snapshot: its volume. Of a clone: the snapshot that it was made of. Else 0.
    pub parent: u32,
    /// Of a snapshot: the last epoch that it contains.
    pub epoch: u32,
    /// Blocks born in or before this epoch belong to somebody else: a clone's origin, or what garbage shares.
    pub floor: u32,
    /// Size in bytes.
    pub len: u64,
    /// Logical block in bytes: 512 or 4096.
    pub block_size: u32,
    /// Its map.
    pub root: MapRoot,
    /// Newest page of its dead list.
    pub dead: NodePtr,
    /// Blocks on its dead list.
    pub dead_count: u64,
    /// Logical blocks that hold data.
    pub mapped: u64,
    /// When it was made, in seconds; the meaning is the caller's.
    pub created: u64,
    /// Its name.
    pub name: Vec<u8>,
}

impl DatasetRecord {
    /// Writes it to 256 bytes.
    pub fn put(&self, p: &mut [u8]) {
        p[..RECORD].fill(0);
        put32(p, 0, self.id);
        p[4] = match self.kind {
            Kind::Volume => 1,
            Kind::Snapshot => 2,
            Kind::Garbage => 3,
        };
        p[5] = u8::from(self.deleting);
        p[6] = self.root.height;
        put32(p, 8, self.family);
        put32(p, 12, self.parent);
        put32(p, 16, self.epoch);
        put32(p, 20, self.floor);
        put64(p, 24, self.len);
        put32(p, 32, self.block_size);
        self.root.ptr.put(&mut p[40..72]);
        self.dead.put(&mut p[72..104]);
        put64(p, 104, self.dead_count);
        put64(p, 112, self.mapped);
        put64(p, 120, self.created);
        let n = self.name.len().min(NAME);
        p[192] = n as u8;
        p[193..193 + n].copy_from_slice(&self.name[..n]);
    }

    /// Reads it from 256 bytes.
    ///
    /// # Errors
    /// A field is out of range.
    pub fn get(p: &[u8]) -> Result<DatasetRecord> {
        let kind = match p[4] {
            1 => Kind::Volume,
            2 => Kind::Snapshot,
            3 => Kind::Garbage,
            _ => return Err(super::FormatError::Range("kind of dataset")),
        };
        ensure(p[5] <= 1, "state of a dataset")?;
        ensure(p[6] <= MAX_HEIGHT, "height of a map")?;
        let n = usize::from(p[192]);
        ensure(n <= NAME, "length of a name")?;
        let d = DatasetRecord {
            id: get32(p, 0),
            kind,
            deleting: p[5] == 1,
            family: get32(p, 8),
            parent: get32(p, 12),
            epoch: get32(p, 16),
            floor: get32(p, 20),
            len: get64(p, 24),
            block_size: get32(p, 32),
            root: MapRoot { ptr: NodePtr::get(&p[40..72])?, height: p[6] },
            dead: NodePtr::get(&p[72..104])?,
            dead_count: get64(p, 104),
            mapped: get64(p, 112),
            created: get64(p, 120),
            name: p[193..193 + n].to_vec(),
        };
        ensure(d.id != 0, "number of a dataset")?;
        ensure(d.epoch <= MAX_EPOCH && d.floor <= MAX_EPOCH, "epoch of a dataset")?;
        ensure(matches!(d.block_size, 512 | 4096), "block size")?;
        ensure(d.len.is_multiple_of(u64::from(d.block_size)), "size of a dataset")?;
        ensure(d.len <= MAX_LBA * super::BLOCK as u64, "size of a dataset")?;
        Ok(d)
    }
}

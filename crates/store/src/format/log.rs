//! Log pages: one block each, written once per lap of the ring.

use super::le::*;
use super::tree::{FIRST_VBN, MapEntry, pack, unpack};
use super::{BLOCK, Block, FormatError, MAX_EPOCH, MAX_LBA, Result, ensure};
use weir_codec::crc64;

const MAGIC: u32 = u32::from_le_bytes(*b"WRlg");
/// Bytes of the header.
pub const HEADER: usize = 64;
/// Bytes of a slot of entries.
pub const SLOT: usize = 32;
/// Slots of entries in a page.
pub const SLOTS: usize = (BLOCK - HEADER) / SLOT;
const CRC_AT: usize = 56;
/// Set in the number of slots used of a page that a recovery wrote.
const RECOVERY: u16 = 1 << 15;
/// Checksums in a slot after a write's first.
const CRCS: usize = SLOT / 4;
/// Longest name of a dataset in bytes.
pub const NAME: usize = 63;
/// Most blocks of one write entry: it must fit a page.
pub const MAX_RUN: usize = 512;

/// The head of a log page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageHead {
    /// The pool's tag.
    pub pool: u64,
    /// The incarnation that wrote it.
    pub incarnation: u32,
    /// The owner epoch, in a cluster.
    pub owner_epoch: u32,
    /// Its number; its slot is this modulo the ring.
    pub lsn: u64,
    /// Checksum of the page before it.
    pub previous: u64,
    /// Every page before this number is durable on all halves of the log, with its data.
    pub stable: u64,
    /// The newest superblock that was durable when it was written.
    pub base_seq: u64,
    /// A recovery wrote it, for the life that it was about to begin.
    pub recovery: bool,
}

/// What a log entry says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// Blocks of a dataset were written to consecutive pool blocks.
    Write {
        /// The dataset.
        dataset: u32,
        /// First logical block.
        lba: u64,
        /// First pool block.
        vbn: u64,
        /// Epoch.
        birth: u32,
        /// One checksum per block.
        crcs: Vec<u32>,
    },
    /// A range reads as zeros.
    Trim {
        /// The dataset.
        dataset: u32,
        /// First logical block.
        lba: u64,
        /// Blocks.
        blocks: u64,
    },
    /// A block's data is lost.
    Poison {
        /// The dataset.
        dataset: u32,
        /// Logical block.
        lba: u64,
        /// Epoch in which that was noticed.
        birth: u32,
    },
    /// A dataset was made from another as it is at this point of the log.
    Snapshot {
        /// The volume, or the snapshot that a clone is made of.
        source: u32,
        /// The new dataset.
        id: u32,
        /// A writable clone, not a snapshot.
        clone: bool,
        /// The epoch that ends with it.
        epoch: u32,
        /// When, in seconds; the meaning is the caller's.
        created: u64,
        /// Its name.
        name: Vec<u8>,
    },
    /// A block of a device cannot be written any more and lives in a spare block.
    Remap {
        /// Number of the device.
        device: u16,
        /// Block of the device.
        from: u64,
        /// Number of the spare.
        spare: u32,
    },
}

impl Entry {
    /// Slots that it takes.
    pub fn slots(&self) -> usize {
        match self {
            Entry::Write { crcs, .. } => write_slots(crcs.len()),
            Entry::Snapshot { name, .. } => Entry::snapshot_slots(name.len()),
            _ => 1,
        }
    }

    /// Slots that a snapshot or clone with a name of so many bytes takes.
    pub fn snapshot_slots(name: usize) -> usize {
        1 + name.div_ceil(SLOT)
    }
}

/// Pages that entries take when they are added one after the other, none of them to a page that was begun before; the slots
/// of each are given.
pub fn pages_of(entries: impl Iterator<Item = usize>) -> u64 {
    let (mut pages, mut room) = (0, 0);
    for slots in entries {
        if room < slots {
            (pages, room) = (pages + 1, SLOTS);
        }
        room = room.saturating_sub(slots);
    }
    pages
}

/// Slots that a write of this many blocks takes.
pub fn write_slots(blocks: usize) -> usize {
    1 + blocks.saturating_sub(1).div_ceil(CRCS)
}

/// Most blocks of a write that fit `slots` slots.
pub fn blocks_in(slots: usize) -> usize {
    match slots {
        0 => 0,
        n => (1 + (n - 1) * CRCS).min(MAX_RUN),
    }
}

/// A page being filled.
pub struct PageBuilder {
    block: Box<Block>,
    used: usize,
}

impl Default for PageBuilder {
    fn default() -> Self {
        PageBuilder { block: super::zeroed(), used: 0 }
    }
}

impl PageBuilder {
    /// Slots that are free.
    pub fn room(&self) -> usize {
        SLOTS - self.used
    }

    /// True when nothing was added.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    fn take(&mut self, slots: usize) -> &mut [u8] {
        let at = HEADER + self.used * SLOT;
        self.used += slots;
        &mut self.block[at..at + slots * SLOT]
    }

    /// Adds a write without making an [`Entry`] of it. False when there is no room.
    pub fn write(&mut self, dataset: u32, lba: u64, first: MapEntry, crcs: &[u32]) -> bool {
        let slots = write_slots(crcs.len());
        if crcs.is_empty() || crcs.len() > MAX_RUN || self.room() < slots {
            return false;
        }
        let p = self.take(slots);
        p[0] = 1;
        put16(p, 2, crcs.len() as u16);
        put32(p, 4, dataset);
        put64(p, 8, lba);
        put64(p, 16, first.packed());
        put32(p, 24, crcs[0]);
        for (i, c) in crcs[1..].iter().enumerate() {
            put32(p, SLOT + 4 * i, *c);
        }
        true
    }

    /// Adds an entry. False when there is no room.
    pub fn push(&mut self, e: &Entry) -> bool {
        if self.room() < e.slots() {
            return false;
        }
        match e {
            Entry::Write { dataset, lba, vbn, birth, crcs } => {
                let first = MapEntry { vbn: *vbn, birth: *birth, crc: 0 };
                return self.write(*dataset, *lba, first, crcs);
            }
            Entry::Trim { dataset, lba, blocks } => {
                let p = self.take(1);
                p[0] = 2;
                put32(p, 4, *dataset);
                put64(p, 8, *lba);
                put64(p, 16, *blocks);
            }
            Entry::Poison { dataset, lba, birth } => {
                let p = self.take(1);
                p[0] = 3;
                put32(p, 4, *dataset);
                put64(p, 8, *lba);
                put64(p, 16, pack(0, *birth));
            }
            Entry::Snapshot { source, id, clone, epoch, created, name } => {
                let p = self.take(e.slots());
                p[0] = 4;
                p[1] = u8::from(*clone);
                put16(p, 2, name.len() as u16);
                put32(p, 4, *source);
                put64(p, 8, *created);
                put64(p, 16, pack(0, *epoch));
                put32(p, 24, *id);
                p[SLOT..SLOT + name.len()].copy_from_slice(name);
            }
            Entry::Remap { device, from, spare } => {
                let p = self.take(1);
                p[0] = 5;
                put16(p, 2, *device);
                put64(p, 8, *from);
                put32(p, 24, *spare);
            }
        }
        true
    }

    /// Writes the head and the checksum; returns the block and the checksum for the next page's chain.
    pub fn seal(mut self, head: &PageHead) -> (Box<Block>, u64) {
        let b = &mut self.block[..];
        put32(b, 0, MAGIC);
        put16(b, 4, super::VERSION as u16);
        put16(b, 6, self.used as u16 | if head.recovery { RECOVERY } else { 0 });
        put64(b, 8, head.pool);
        put32(b, 16, head.incarnation);
        put32(b, 20, head.owner_epoch);
        put64(b, 24, head.lsn);
        put64(b, 32, head.previous);
        put64(b, 40, head.stable);
        put64(b, 48, head.base_seq);
        let crc = sum(&self.block);
        put64(&mut self.block[..], CRC_AT, crc);
        (self.block, crc)
    }
}

fn sum(b: &Block) -> u64 {
    crc64(&b[..CRC_AT]).rotate_left(1) ^ crc64(&b[HEADER..])
}

/// Reads a page's head: it is whole and of this pool. Also returns its checksum.
///
/// # Errors
/// It is no log page of this pool, or damaged.
pub fn decode_head(b: &Block, pool: u64) -> Result<(PageHead, u64)> {
    if get32(b, 0) != MAGIC {
        return Err(FormatError::Magic);
    }
    let crc = get64(b, CRC_AT);
    if sum(b) != crc {
        return Err(FormatError::Checksum);
    }
    let version = u32::from(get16(b, 4));
    if version != super::VERSION {
        return Err(FormatError::Version(version));
    }
    ensure(usize::from(get16(b, 6) & !RECOVERY) <= SLOTS, "number of log entries")?;
    let head = PageHead {
        pool: get64(b, 8),
        incarnation: get32(b, 16),
        owner_epoch: get32(b, 20),
        lsn: get64(b, 24),
        previous: get64(b, 32),
        stable: get64(b, 40),
        base_seq: get64(b, 48),
        recovery: get16(b, 6) & RECOVERY != 0,
    };
    if head.pool != pool {
        return Err(FormatError::Identity("pool"));
    }
    ensure(head.stable <= head.lsn, "stable page number")?;
    Ok((head, crc))
}

/// A write entry as it is in a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run<'a> {
    /// The dataset.
    pub dataset: u32,
    /// First logical block.
    pub lba: u64,
    /// First pool block.
    pub vbn: u64,
    /// Epoch.
    pub birth: u32,
    first: u32,
    /// The checksums after the first.
    rest: &'a [u8],
}

impl Run<'_> {
    /// Blocks written: 1 to [`MAX_RUN`].
    pub fn blocks(&self) -> usize {
        1 + self.rest.len() / 4
    }

    /// One checksum per block.
    pub fn crcs(&self) -> impl Iterator<Item = u32> + '_ {
        let rest = self.rest.chunks_exact(4).map(|c| get32(c, 0));
        std::iter::once(self.first).chain(rest)
    }
}

/// An entry as it is in a page: most are writes, and are not copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found<'a> {
    /// A write.
    Write(Run<'a>),
    /// Any other entry.
    Other(Entry),
}

/// The entries of a page, in order. Nothing comes after the first that no program would have written.
pub struct Entries<'a>(&'a [u8]);

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Found<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let left = std::mem::take(&mut self.0);
        if left.is_empty() {
            return None;
        }
        let found = decode_entry(left);
        if let Ok((_, slots)) = &found {
            self.0 = left.get(slots * SLOT..).unwrap_or_default();
        }
        Some(found.map(|(e, _)| e))
    }
}

/// The entries of a page whose head was good, as they are in it.
pub fn entries(b: &Block) -> Entries<'_> {
    let used = usize::from(get16(b, 6) & !RECOVERY).min(SLOTS);
    Entries(&b[HEADER..HEADER + used * SLOT])
}

/// Reads the entries of a page whose head was good.
///
/// # Errors
/// An entry that no program would have written.
pub fn decode_entries(b: &Block) -> Result<Vec<Entry>> {
    let owned = |e: Found<'_>| match e {
        Found::Write(r) => Entry::Write {
            dataset: r.dataset,
            lba: r.lba,
            vbn: r.vbn,
            birth: r.birth,
            crcs: r.crcs().collect(),
        },
        Found::Other(e) => e,
    };
    entries(b).map(|e| e.map(owned)).collect()
}

/// Reads the entry at the start of `p`, which are whole slots and at least one; also gives the slots that it takes.
fn decode_entry(p: &[u8]) -> Result<(Found<'_>, usize)> {
    let (count, dataset, lba) = (usize::from(get16(p, 2)), get32(p, 4), get64(p, 8));
    let (vbn, birth) = unpack(get64(p, 16));
    let range = |blocks: u64| {
        let end = lba.checked_add(blocks);
        ensure(end.is_some_and(|e| e <= MAX_LBA), "logical blocks of a log entry")
    };
    let other = match p[0] {
        1 => {
            ensure((1..=MAX_RUN).contains(&count), "length of a write")?;
            let slots = write_slots(count);
            ensure(slots * SLOT <= p.len(), "end of a write")?;
            range(count as u64)?;
            let end = vbn + count as u64;
            ensure(vbn >= FIRST_VBN && end <= super::MAX_VBN, "place of a write")?;
            let rest = &p[SLOT..SLOT + 4 * (count - 1)];
            let run = Run { dataset, lba, vbn, birth, first: get32(p, 24), rest };
            return Ok((Found::Write(run), slots));
        }
        2 => {
            let blocks = get64(p, 16);
            range(blocks)?;
            Entry::Trim { dataset, lba, blocks }
        }
        3 => {
            range(1)?;
            Entry::Poison { dataset, lba, birth }
        }
        4 => {
            ensure(count <= NAME, "length of a name")?;
            ensure(SLOT + count <= p.len(), "end of a name")?;
            ensure(birth < MAX_EPOCH, "epoch of a snapshot")?;
            Entry::Snapshot {
                source: dataset,
                id: get32(p, 24),
                clone: p[1] & 1 != 0,
                epoch: birth,
                created: lba,
                name: p[SLOT..SLOT + count].to_vec(),
            }
        }
        5 => Entry::Remap { device: get16(p, 2), from: lba, spare: get32(p, 24) },
        _ => return Err(FormatError::Range("kind of log entry")),
    };
    let slots = other.slots();
    Ok((Found::Other(other), slots))
}

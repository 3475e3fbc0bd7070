//! The superblock: the root of everything, in a ring of 64 slots in two areas of each device.

use super::blob::levels;
use super::label::{CRC_AT, open_block};
use super::le::*;
use super::page::NodePtr;
use super::turn::{MAX_TURNS, TURN, Turn, check_turns};
use super::{Block, FormatError, KEPT_LOG, MAX_EPOCH, Result, VERSION, ensure};
use crate::planted::{Bug, has};
use weir_codec::crc64;

const MAGIC: u64 = u64::from_le_bytes(*b"WeirSupr");
const TURNS_AT: usize = 272;
const MEMBERS_AT: usize = 512;
const MEMBER: usize = 40;
/// Most devices of a pool.
pub const MAX_MEMBERS: usize = (CRC_AT - MEMBERS_AT) / MEMBER;
/// Highest number of a node that devices depend on.
pub const MAX_DOMAIN: u16 = 63;
/// Devices that carry the log.
pub const LOG_COPIES: usize = 2;
const NOBODY: u16 = u16::MAX;

/// How a device stands in its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberState {
    /// It has everything: it is read, and no write is acknowledged without it.
    InSync,
    /// It is written, and filled from the others, but not read.
    Syncing,
    /// It misses what was written in and after the member's `since` epoch.
    Out,
    /// It belongs to the pool but holds nothing yet.
    Spare,
    /// It left for good; its number is free.
    Gone,
}

impl MemberState {
    fn new(n: u8) -> Result<MemberState> {
        Ok(match n {
            0 => MemberState::Gone,
            1 => MemberState::InSync,
            2 => MemberState::Syncing,
            3 => MemberState::Out,
            4 => MemberState::Spare,
            _ => return Err(FormatError::Range("state of a device")),
        })
    }

    fn number(self) -> u8 {
        match self {
            MemberState::Gone => 0,
            MemberState::InSync => 1,
            MemberState::Syncing => 2,
            MemberState::Out => 3,
            MemberState::Spare => 4,
        }
    }
}

/// A device of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// As in its label.
    pub device: u64,
    /// How it stands.
    pub state: MemberState,
    /// Its slabs are being moved away; nothing new is put on it.
    pub draining: bool,
    /// It leaves the pool when it holds nothing any more.
    pub leaving: bool,
    /// Somebody has said that it does not come back: nobody waits for what only it has.
    pub written_off: bool,
    /// First epoch of which it may miss something, when it is not in sync.
    pub since: u32,
    /// Its size in blocks.
    pub blocks: u64,
    /// Spare blocks in use.
    pub spares_used: u32,
    /// The node that it depends on, in a cluster; else 0. Copies of a block lie on devices of two nodes.
    pub domain: u16,
}

/// A table in allocated space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlobRoot {
    /// Its root page.
    pub ptr: NodePtr,
    /// Levels of index pages above the parts.
    pub height: u8,
    /// Its length in bytes.
    pub len: u64,
}

impl BlobRoot {
    fn put(&self, b: &mut [u8]) {
        self.ptr.put(b);
        put64(b, 32, self.len);
        b[40] = self.height;
    }

    fn get(b: &[u8]) -> Result<BlobRoot> {
        ensure(b[40] <= 3, "height of a table")?;
        let r = BlobRoot { ptr: NodePtr::get(b)?, height: b[40], len: get64(b, 32) };
        ensure(r.len <= 1 << 33, "length of a table")?;
        ensure(r.ptr.is_none() == (r.len == 0), "empty table")?;
        let height = levels(r.len).len().saturating_sub(1);
        ensure(usize::from(r.height) == height, "height of a table")?;
        Ok(r)
    }
}

/// The table of slabs, which lies at a fixed place of every device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TableRoot {
    /// Which of its two copies counts.
    pub which: u8,
    /// Its length in bytes.
    pub len: u64,
    /// Checksum of its bytes.
    pub crc: u64,
}

impl TableRoot {
    fn put(&self, b: &mut [u8]) {
        put64(b, 0, self.len);
        put64(b, 8, self.crc);
        b[16] = self.which;
    }

    fn get(b: &[u8]) -> Result<TableRoot> {
        let t = TableRoot { which: b[16], len: get64(b, 0), crc: get64(b, 8) };
        ensure(t.which < 2, "copy of the table of slabs")?;
        ensure(t.len <= 1 << 33, "length of a table")?;
        Ok(t)
    }
}

/// A superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// The pool.
    pub pool: u128,
    /// Changes when a pool is opened by force without a device that may be ahead.
    pub lineage: u64,
    /// The lineage before this one; 0 for none.
    pub parent_lineage: u64,
    /// Counts superblocks; slot in the ring.
    pub seq: u64,
    /// Counts recoveries.
    pub incarnation: u32,
    /// Who owns the pool, in a cluster.
    pub owner_epoch: u32,
    /// Everything reachable from here was born at or before this epoch.
    pub epoch: u32,
    /// Checksum of the superblock before this one.
    pub previous: u64,
    /// Datasets: volumes and snapshots.
    pub datasets: BlobRoot,
    /// Slabs and replaced blocks.
    pub space: TableRoot,
    /// First page of the log that counts.
    pub base_lsn: u64,
    /// Checksum of the page before it.
    pub base_chain: u64,
    /// Recoveries since then that kept the log, the oldest first; [`KEPT_LOG`] says that there are any.
    pub turns: Vec<Turn>,
    /// Numbers of the devices that carry the log.
    pub log_set: [Option<u16>; LOG_COPIES],
    /// Copies of each block: 1 or 2.
    pub copies: u8,
    /// Blocks in a slab, as a power of two.
    pub slab_shift: u8,
    /// Pages of the log ring.
    pub log_pages: u64,
    /// Blocks of each of the two copies of the table of slabs, on each device; 0: not told.
    pub table_pages: u64,
    /// Spare blocks of each device.
    pub spares: u64,
    /// Number that the next dataset gets.
    pub next_dataset: u32,
    /// The devices, by number.
    pub members: Vec<Member>,
    /// Features without which the pool cannot be used.
    pub incompat: u64,
    /// Features that may be ignored.
    pub compat: u64,
}

impl Superblock {
    /// The pool's short name inside checksums.
    pub fn tag(&self) -> u64 {
        tag(self.pool)
    }

    /// Writes it for one device and area. Returns the block and the checksum that the next one names.
    ///
    /// # Panics
    /// When there are too many members or turns; the engine never makes them.
    pub fn encode(&self, device: u64, area: u8) -> Box<Block> {
        assert!(self.members.len() <= MAX_MEMBERS, "too many devices");
        assert!(self.turns.len() <= MAX_TURNS, "too many turns");
        let mut b = super::zeroed();
        let p = &mut b[..];
        put64(p, 0, MAGIC);
        put32(p, 8, VERSION);
        p[12] = area;
        p[13] = self.slab_shift;
        p[14] = self.copies;
        p[15] = self.members.len() as u8;
        put64(p, 16, self.incompat);
        put64(p, 24, self.compat);
        put128(p, 32, self.pool);
        put64(p, 48, self.lineage);
        put64(p, 56, self.parent_lineage);
        put64(p, 64, self.seq);
        put32(p, 72, self.incarnation);
        put32(p, 76, self.owner_epoch);
        put32(p, 80, self.epoch);
        put32(p, 84, self.next_dataset);
        put64(p, 88, self.previous);
        put64(p, 96, self.base_lsn);
        put64(p, 104, self.base_chain);
        put64(p, 112, self.log_pages);
        for (i, d) in self.log_set.iter().enumerate() {
            put16(p, 120 + 2 * i, d.unwrap_or(NOBODY));
        }
        put64(p, 128, device);
        put64(p, 136, self.table_pages);
        put64(p, 144, self.spares);
        self.datasets.put(&mut p[192..240]);
        self.space.put(&mut p[240..272]);
        p[TURNS_AT] = self.turns.len() as u8;
        for (t, p) in self.turns.iter().zip(p[TURNS_AT + 8..].chunks_exact_mut(TURN)) {
            t.put(p);
        }
        for (i, m) in self.members.iter().enumerate() {
            let p = &mut p[MEMBERS_AT + i * MEMBER..][..MEMBER];
            put64(p, 0, m.device);
            p[8] = m.state.number();
            let bits = [m.draining, m.leaving, m.written_off];
            p[9] = (0..).zip(bits).map(|(i, bit)| u8::from(bit) << i).sum();
            put32(p, 12, m.since);
            put64(p, 16, m.blocks);
            put32(p, 24, m.spares_used);
            put16(p, 28, m.domain);
        }
        let crc = crc64(&p[..CRC_AT]);
        put64(p, CRC_AT, crc);
        b
    }

    /// The checksum by which the next superblock names this one: the same on all devices and areas.
    pub fn chain(&self) -> u64 {
        get64(&self.encode(0, 0)[..], CRC_AT)
    }

    /// Of two superblocks of a pool the newer one has the greater. An owner counts before the number: one that was fenced may have
    /// begun others.
    pub fn age(&self) -> (u32, u64, u32) {
        let owner = if has(Bug::NumberBeforeOwner) { 0 } else { self.owner_epoch };
        (owner, self.seq, self.incarnation)
    }

    /// Its number, with the owner's before it.
    pub fn rank(&self) -> (u32, u64) {
        let (owner, seq, _) = self.age();
        (owner, seq)
    }

    /// The next one, as long as nothing has changed.
    pub fn again(&self) -> Superblock {
        Superblock { previous: self.chain(), seq: self.seq + 1, ..self.clone() }
    }

    /// Reads what was found in a slot of an area of a device that nothing else is known of. Returns the device.
    ///
    /// # Errors
    /// It is no superblock, damaged, misplaced, or needs a newer program.
    pub fn decode_any(b: &Block, area: u8, slot: u64) -> Result<(u64, Superblock)> {
        let device = get64(b, 128);
        Ok((device, Superblock::decode(b, get128(b, 32), device, area, slot)?))
    }

    /// Reads what was found in a slot of one device and area.
    ///
    /// # Errors
    /// It is no superblock, damaged, misplaced, or needs a newer program.
    pub fn decode(b: &Block, pool: u128, device: u64, area: u8, slot: u64) -> Result<Superblock> {
        let incompat = open_block(b, MAGIC)?;
        let same = |good: bool, what| if good { Ok(()) } else { Err(FormatError::Identity(what)) };
        same(get128(b, 32) == pool, "pool")?;
        same(get64(b, 128) == device, "device")?;
        same(b[12] == area && get64(b, 64) % super::label::SUPER_SLOTS == slot, "slot")?;
        let n = usize::from(b[15]);
        ensure(n > 0 && n <= MAX_MEMBERS, "number of devices")?;
        let mut members = Vec::with_capacity(n);
        for i in 0..n {
            let p = &b[MEMBERS_AT + i * MEMBER..][..MEMBER];
            members.push(Member {
                device: get64(p, 0),
                state: MemberState::new(p[8])?,
                draining: p[9] & 1 != 0,
                leaving: p[9] & 2 != 0,
                written_off: p[9] & 4 != 0,
                since: get32(p, 12),
                blocks: get64(p, 16),
                spares_used: get32(p, 24),
                domain: get16(p, 28),
            });
        }
        let mut log_set = [None; LOG_COPIES];
        for (i, d) in log_set.iter_mut().enumerate() {
            let v = get16(b, 120 + 2 * i);
            ensure(v == NOBODY || usize::from(v) < n, "device of the log")?;
            *d = (v != NOBODY).then_some(v);
        }
        let n = usize::from(b[TURNS_AT]);
        ensure(n <= MAX_TURNS && (n > 0) == (incompat & KEPT_LOG != 0), "number of turns")?;
        let turns = b[TURNS_AT + 8..].chunks_exact(TURN).take(n).map(Turn::get).collect();
        let s = Superblock {
            pool,
            lineage: get64(b, 48),
            parent_lineage: get64(b, 56),
            seq: get64(b, 64),
            incarnation: get32(b, 72),
            owner_epoch: get32(b, 76),
            epoch: get32(b, 80),
            previous: get64(b, 88),
            datasets: BlobRoot::get(&b[192..240])?,
            space: TableRoot::get(&b[240..272])?,
            base_lsn: get64(b, 96),
            base_chain: get64(b, 104),
            turns,
            log_set,
            copies: b[14],
            slab_shift: b[13],
            log_pages: get64(b, 112),
            table_pages: get64(b, 136),
            spares: get64(b, 144),
            next_dataset: get32(b, 84),
            members,
            incompat,
            compat: get64(b, 24),
        };
        ensure(s.epoch <= MAX_EPOCH, "epoch")?;
        ensure(s.members.iter().all(|m| m.domain <= MAX_DOMAIN), "node of a device")?;
        ensure((1..=2).contains(&s.copies), "number of copies")?;
        ensure((6..=20).contains(&s.slab_shift), "size of slabs")?;
        ensure((super::label::MIN_LOG..=1 << 32).contains(&s.log_pages), "size of the log")?;
        ensure(s.datasets.ptr.max_birth <= s.epoch, "birth of the table of datasets")?;
        check_turns(&s)?;
        Ok(s)
    }
}

/// The short name of a pool inside checksums.
pub fn tag(pool: u128) -> u64 {
    (pool as u64) ^ ((pool >> 64) as u64).rotate_left(29)
}

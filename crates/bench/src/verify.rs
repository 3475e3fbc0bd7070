//! Data that tells whether it is right.
//!
//! A block of [`Verify::Crc32c`] is 4096 bytes (512 when I/Os are no multiple of 4096):
//!
//! | bytes | content |
//! |---|---|
//! | 0–7 | `WEIRBNCH` |
//! | 8–15 | its address on the volume in bytes, little-endian |
//! | 16–23 | number of the write, little-endian: run and count |
//! | 512·i … +7 | of sectors from the second on: a mix of address and write number, so that no sector of an older write passes |
//! | last 4 | CRC32C of everything before, little-endian |
//!
//! All other bytes are random and say nothing. Lost, misplaced, torn, stale and corrupted writes show.

use crate::job::Verify;
use weir_base::Prng;
use weir_codec::crc32c;
use weir_mem::Slice;

const MAGIC: &[u8; 8] = b"WEIRBNCH";
const SECTOR: usize = 512;

/// What is wrong with a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It carries no stamp: it was never written by a verifying job, or lost.
    NoStamp,
    /// It was written for another address.
    Address {
        /// The address in the block.
        found: u64,
    },
    /// It is whole, but not from the last write.
    Stale {
        /// The write that should be there.
        expected: u64,
        /// The one that is.
        found: u64,
    },
    /// Its content does not fit its checksum.
    Checksum {
        /// As stored.
        stored: u32,
        /// Of the content.
        computed: u32,
    },
    /// A byte of the pattern differs.
    Content {
        /// Where in the block.
        offset: usize,
    },
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::NoStamp => f.write_str("carries no stamp of a verifying write"),
            Fault::Address { found } => write!(f, "was written for address {found}"),
            Fault::Stale { expected, found } => {
                write!(f, "is from write {found:#x}, the last one was {expected:#x}")
            }
            Fault::Checksum { stored, computed } => {
                write!(f, "has checksum {stored:08x}, its content {computed:08x}")
            }
            Fault::Content { offset } => write!(f, "differs at byte {offset}"),
        }
    }
}

/// A block that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadBlock {
    /// Its address on the volume in bytes.
    pub at: u64,
    /// What is wrong.
    pub fault: Fault,
}

impl std::fmt::Display for BadBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the block at byte {} {}", self.at, self.fault)
    }
}

/// Makes and checks blocks. Has memory of its own for one block, so that it allocates nothing later.
pub struct Stamper {
    kind: Verify,
    unit: usize,
    seed: u64,
    /// Body of blocks to write.
    body: Vec<u8>,
    /// Copy of a block that is checked: nobody else writes to it meanwhile.
    copy: Vec<u8>,
}

/// One 64-bit mix of two numbers (the finaliser of SplitMix64).
#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let mut x = a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[inline]
fn u64_at(b: &[u8], at: usize) -> u64 {
    let mut w = [0; 8];
    w.copy_from_slice(&b[at..at + 8]);
    u64::from_le_bytes(w)
}

impl Stamper {
    /// For I/Os of `bs` bytes. Patterns of equal `seed` are equal.
    pub fn new(kind: Verify, bs: u32, seed: u64) -> Stamper {
        let unit = if bs.is_multiple_of(4096) { 4096 } else { SECTOR };
        let mut body = vec![0; unit];
        Prng::new(seed).fill(&mut body);
        Stamper { kind, unit, seed, body, copy: vec![0; unit] }
    }

    /// Fills `buf`, which is to be written at `at` as write number `generation`.
    pub fn stamp(&mut self, buf: &Slice, at: u64, generation: u64) {
        for offset in (0..buf.len()).step_by(self.unit) {
            let at = at + offset as u64;
            match self.kind {
                Verify::Crc32c => self.make(at, generation),
                Verify::Pattern => Self::pattern(&mut self.body, at, self.seed),
            }
            buf.write_at(offset, &self.body);
        }
    }

    fn make(&mut self, at: u64, generation: u64) {
        let b = &mut self.body;
        b[..8].copy_from_slice(MAGIC);
        b[8..16].copy_from_slice(&at.to_le_bytes());
        b[16..24].copy_from_slice(&generation.to_le_bytes());
        for s in (SECTOR..b.len()).step_by(SECTOR) {
            b[s..s + 8].copy_from_slice(&mix(at + s as u64, generation).to_le_bytes());
        }
        let end = b.len() - 4;
        let crc = crc32c(&b[..end]);
        b[end..].copy_from_slice(&crc.to_le_bytes());
    }

    fn pattern(out: &mut [u8], at: u64, seed: u64) {
        for (i, w) in out.chunks_exact_mut(8).enumerate() {
            w.copy_from_slice(&mix(at + 8 * i as u64, seed).to_le_bytes());
        }
    }

    /// Checks what was read from `at`. `expected` is the write that must be there, if it is known.
    ///
    /// # Errors
    /// The first block that is wrong.
    pub fn check(&mut self, buf: &Slice, at: u64, expected: Option<u64>) -> Result<(), BadBlock> {
        for offset in (0..buf.len()).step_by(self.unit) {
            buf.read_at(offset, &mut self.copy);
            let at = at + offset as u64;
            let fault = match self.kind {
                Verify::Crc32c => self.judge(at, expected),
                Verify::Pattern => self.compare(at),
            };
            if let Some(fault) = fault {
                return Err(BadBlock { at, fault });
            }
        }
        Ok(())
    }

    fn judge(&self, at: u64, expected: Option<u64>) -> Option<Fault> {
        let b = &self.copy;
        if b[..8] != *MAGIC {
            return Some(Fault::NoStamp);
        }
        let end = b.len() - 4;
        let computed = crc32c(&b[..end]);
        let mut stored = [0; 4];
        stored.copy_from_slice(&b[end..]);
        let stored = u32::from_le_bytes(stored);
        if stored != computed {
            return Some(Fault::Checksum { stored, computed });
        }
        let (found_at, generation) = (u64_at(b, 8), u64_at(b, 16));
        if found_at != at {
            return Some(Fault::Address { found: found_at });
        }
        match expected {
            Some(expected) if expected != generation => {
                Some(Fault::Stale { expected, found: generation })
            }
            _ => None,
        }
    }

    fn compare(&mut self, at: u64) -> Option<Fault> {
        Self::pattern(&mut self.body, at, self.seed);
        let offset = self.body.iter().zip(&self.copy).position(|(a, b)| a != b)?;
        Some(Fault::Content { offset })
    }
}

/// What must be on a job's part of a volume, and which of its blocks are being used: two I/Os at once on
/// one block would leave open what it holds.
pub struct Ledger {
    /// Last write of each block; memory comes from the operating system when it is first used.
    last: Vec<u64>,
    busy: Vec<u64>,
    count: u64,
    base: u64,
}

/// Nothing was written by this run.
const NEVER: u64 = 0;
/// A write failed: either content may be there.
const UNKNOWN: u64 = u64::MAX;

impl Ledger {
    /// For `blocks` blocks. Write numbers begin with the low 28 bits of `run`, so that they differ from
    /// those of other runs.
    pub fn new(blocks: u64, run: u64) -> Ledger {
        let n = usize::try_from(blocks).unwrap_or(usize::MAX);
        Ledger {
            last: vec![NEVER; n],
            busy: vec![0; n.div_ceil(64)],
            count: 0,
            base: (run & 0xfff_ffff) << 36,
        }
    }

    /// Takes `wanted`, or the next block after it that nobody uses. There must be one.
    pub fn claim(&mut self, wanted: u64) -> u64 {
        let n = self.last.len() as u64;
        let mut b = wanted;
        for _ in 0..n {
            let (word, bit) = ((b / 64) as usize, 1 << (b % 64));
            if self.busy[word] & bit == 0 {
                self.busy[word] |= bit;
                return b;
            }
            b = if b + 1 == n { 0 } else { b + 1 };
        }
        wanted
    }

    /// Gives a block back.
    pub fn release(&mut self, block: u64) {
        self.busy[(block / 64) as usize] &= !(1 << (block % 64));
    }

    /// The number of the next write.
    pub fn next_write(&mut self) -> u64 {
        self.count += 1;
        self.base | self.count & ((1 << 36) - 1)
    }

    /// A write ended.
    pub fn wrote(&mut self, block: u64, generation: u64, ok: bool) {
        self.last[block as usize] = if ok { generation } else { UNKNOWN };
    }

    /// Whether this run wrote the block, and which write must be there, if that is known.
    pub fn expected(&self, block: u64) -> (bool, Option<u64>) {
        match self.last[block as usize] {
            NEVER => (false, None),
            UNKNOWN => (false, None),
            g => (true, Some(g)),
        }
    }

    /// The first block from `from` on that this run wrote.
    pub fn next_written(&self, from: u64) -> Option<u64> {
        let rest = self.last.get(from as usize..)?;
        let i = rest.iter().position(|g| !matches!(*g, NEVER | UNKNOWN))?;
        Some(from + i as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flip(buf: &Slice, at: usize) {
        let mut b = [0];
        buf.read_at(at, &mut b);
        buf.write_at(at, &[b[0] ^ 1]);
    }

    #[test]
    fn every_flipped_byte_and_every_wrong_place_is_found() {
        for (kind, bs) in [(Verify::Crc32c, 8192), (Verify::Crc32c, 512), (Verify::Pattern, 1024)] {
            let mut s = Stamper::new(kind, bs, 7);
            let buf = Slice::heap(bs as usize);
            s.stamp(&buf, 1 << 20, 5);
            assert_eq!(s.check(&buf, 1 << 20, Some(5)), Ok(()));
            assert_eq!(s.check(&buf, 1 << 20, None), Ok(()));
            for at in 0..bs as usize {
                flip(&buf, at);
                let bad = s.check(&buf, 1 << 20, Some(5)).unwrap_err();
                let unit = if bs == 8192 { 4096 } else { 512 };
                assert_eq!(bad.at, (1 << 20) + (at / unit * unit) as u64, "{kind:?} {at}");
                flip(&buf, at);
            }
            assert!(s.check(&buf, 2 << 20, None).is_err());
            assert_eq!(s.check(&buf, 1 << 20, Some(5)), Ok(()));
        }
    }

    #[test]
    fn stale_torn_and_missing_writes_have_names() {
        let mut s = Stamper::new(Verify::Crc32c, 4096, 7);
        let (old, new) = (Slice::heap(4096), Slice::heap(4096));
        s.stamp(&old, 0, 1);
        s.stamp(&new, 0, 2);
        let fault = |s: &mut Stamper, b: &Slice, g| s.check(b, 0, Some(g)).unwrap_err().fault;
        assert_eq!(fault(&mut s, &old, 2), Fault::Stale { expected: 2, found: 1 });
        // One sector of the older write in the middle.
        new.copy_from(1024, &old, 1024, 512);
        assert!(matches!(fault(&mut s, &new, 2), Fault::Checksum { .. }));
        assert_eq!(fault(&mut s, &Slice::heap(4096), 2), Fault::NoStamp);
        s.stamp(&new, 4096, 3);
        assert_eq!(fault(&mut s, &new, 3), Fault::Address { found: 4096 });
    }

    #[test]
    fn the_ledger_keeps_blocks_apart_and_knows_the_last_write() {
        let mut l = Ledger::new(3, 9);
        assert_eq!((l.claim(2), l.claim(2), l.claim(2)), (2, 0, 1));
        l.release(0);
        assert_eq!(l.claim(1), 0);
        let g = l.next_write();
        assert_eq!(g >> 36, 9);
        assert_ne!(g, l.next_write());
        l.wrote(1, g, true);
        l.wrote(2, g, false);
        assert_eq!(l.expected(0), (false, None));
        assert_eq!(l.expected(1), (true, Some(g)));
        assert_eq!(l.expected(2), (false, None));
        assert_eq!((l.next_written(0), l.next_written(2)), (Some(1), None));
    }
}

//! Storage that survives restarts and worlds, and what can go wrong with it.

use super::cache::Cache;
use super::orphans::Orphan;
use crate::chance::{Latency, Odds};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use weir_base::{IoError, IoResult, MICROS, Nanos, Prng};

/// Bytes of a block that wears out.
const WORN: u64 = 4096;

/// Nature of a simulated disk, and what it does wrong by itself.
#[derive(Debug, Clone)]
pub struct DiskConfig {
    /// Smallest unit of transfer in bytes: 512 or 4096.
    pub block_size: u32,
    /// Completed writes may be lost with power until a flush.
    pub volatile_cache: bool,
    /// Time of a read.
    pub read: Latency,
    /// Time of a write.
    pub write: Latency,
    /// Time of a flush.
    pub flush: Latency,
    /// Most pieces that a transfer is moved in; between them other transfers may come.
    pub pieces: usize,
    /// A torn sector may hold noise after a power cut, not only old or new data.
    pub garbage: bool,
    /// A write reports success and changes nothing.
    pub lost_write: Odds,
    /// A write lands at another place and reports success.
    pub misdirected_write: Odds,
    /// A read fails.
    pub read_error: Odds,
    /// A write fails; in part it may have been done.
    pub write_error: Odds,
    /// A flush fails, and some of what it should have written is never written.
    pub flush_error: Odds,
    /// How these failures are told. [`fail_reads`](SimMedium::fail_reads) is of the medium in any case.
    pub error: IoError,
    /// Nobody gets at the disk before all that a killed process had asked of it has ended. Without that its writes land among
    /// those of the next life.
    pub open_waits: bool,
}

impl Default for DiskConfig {
    /// An honest flash disk with a volatile cache and 512-byte blocks.
    fn default() -> Self {
        DiskConfig {
            block_size: 512,
            volatile_cache: true,
            read: Latency::flash(),
            write: Latency::flash(),
            flush: Latency::uniform(50 * MICROS, 1000 * MICROS),
            pieces: 3,
            garbage: false,
            lost_write: Odds::NEVER,
            misdirected_write: Odds::NEVER,
            read_error: Odds::NEVER,
            write_error: Odds::NEVER,
            flush_error: Odds::NEVER,
            error: IoError::Medium,
            open_waits: true,
        }
    }
}

/// How often what was done wrong, so that a checker can explain what it sees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Writes lost.
    pub lost_writes: u64,
    /// Writes that landed elsewhere.
    pub misdirected_writes: u64,
    /// Reads failed.
    pub read_errors: u64,
    /// Writes failed, also for want of space.
    pub write_errors: u64,
    /// Flushes failed.
    pub flush_errors: u64,
    /// Bits flipped.
    pub rotten_bits: u64,
    /// Power cuts.
    pub power_cuts: u64,
    /// Parts of writes that came after their process had been killed.
    pub late_writes: u64,
}

/// What the next operation of a kind is to do wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The next write is lost.
    LostWrite,
    /// The next write lands elsewhere.
    MisdirectedWrite,
    /// The next read fails.
    ReadError,
    /// The next write fails.
    WriteError,
    /// The next flush fails.
    FlushError,
}

pub(crate) struct Inner {
    name: String,
    len: Cell<u64>,
    pub(crate) config: RefCell<DiskConfig>,
    pub(crate) rng: RefCell<Prng>,
    pub(crate) cache: RefCell<Cache>,
    pub(crate) counts: RefCell<FaultCounts>,
    /// Ranges (start, end) that cannot be read until they are written.
    bad: RefCell<Vec<(u64, u64)>>,
    /// Blocks of 4096 bytes that do not hold what is written to them.
    worn: RefCell<BTreeSet<u64>>,
    next: RefCell<Vec<Next>>,
    offline: Cell<bool>,
    stall: Cell<Nanos>,
    space: Cell<Option<u64>>,
    /// Changes with every power cut.
    pub(crate) epoch: Cell<u64>,
    ops: Cell<u64>,
    /// What processes that are being killed leave.
    pub(crate) orphans: RefCell<Vec<Orphan>>,
    /// When the last of that ends, in the world's time.
    pub(crate) busy_until: Cell<Nanos>,
}

/// A storage medium: it belongs to no node and no world, and any node can be given a handle to it
/// ([`Node::attach`](crate::Node::attach)). A handle to one medium is cloned, not copied.
#[derive(Clone)]
pub struct SimMedium(pub(crate) Rc<Inner>);

impl SimMedium {
    /// A medium of `len` bytes, all zero. What it does by chance follows from `seed`.
    ///
    /// # Panics
    /// When `len` is not a multiple of the block size.
    pub fn new(name: &str, len: u64, config: DiskConfig, seed: u64) -> SimMedium {
        assert!(len.is_multiple_of(u64::from(config.block_size)), "whole blocks");
        SimMedium(Rc::new(Inner {
            name: name.to_string(),
            len: Cell::new(len),
            config: RefCell::new(config),
            rng: RefCell::new(Prng::new(seed)),
            cache: RefCell::default(),
            counts: RefCell::default(),
            bad: RefCell::default(),
            worn: RefCell::default(),
            next: RefCell::default(),
            offline: Cell::new(false),
            stall: Cell::new(0),
            space: Cell::new(None),
            epoch: Cell::new(0),
            ops: Cell::new(0),
            orphans: RefCell::default(),
            busy_until: Cell::new(0),
        }))
    }

    /// Another medium with the content that a read of this one sees now, all of it durable, and with none of
    /// its faults.
    pub fn copy(&self, name: &str, seed: u64) -> SimMedium {
        let config = DiskConfig {
            lost_write: Odds::NEVER,
            misdirected_write: Odds::NEVER,
            read_error: Odds::NEVER,
            write_error: Odds::NEVER,
            flush_error: Odds::NEVER,
            ..self.0.config.borrow().clone()
        };
        let copy = SimMedium::new(name, self.len(), config, seed);
        *copy.0.cache.borrow_mut() = self.0.cache.borrow().settled();
        copy
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Capacity in bytes.
    pub fn len(&self) -> u64 {
        self.0.len.get()
    }

    /// True for a medium of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Changes what it does by itself from here on.
    pub fn set_config(&self, change: impl FnOnce(&mut DiskConfig)) {
        change(&mut self.0.config.borrow_mut());
    }

    /// What it did wrong so far.
    pub fn counts(&self) -> FaultCounts {
        *self.0.counts.borrow()
    }

    /// What a read would see.
    pub fn peek(&self, at: u64, out: &mut [u8]) {
        self.0.cache.borrow().read(at, out);
    }

    /// Writes or parts of writes that a power cut could lose now.
    pub fn at_risk(&self) -> usize {
        self.0.cache.borrow().at_risk()
    }

    /// Shows where those are: offset and length in bytes.
    pub fn each_at_risk(&self, f: impl FnMut(u64, u64)) {
        self.0.cache.borrow().each_at_risk(f);
    }

    /// Bytes that take space.
    pub fn allocated(&self) -> u64 {
        self.0.cache.borrow().live().used() * 4096
    }

    // Faults on demand.

    /// Power goes: what was not durable survives in random parts; operations under way end with
    /// [`IoError::Offline`] if their node still lives. The medium is back at once.
    pub fn power_cut(&self) {
        let i = &self.0;
        i.epoch.set(i.epoch.get() + 1);
        i.orphans.borrow_mut().clear();
        i.busy_until.set(0);
        i.counts.borrow_mut().power_cuts += 1;
        let garbage = i.config.borrow().garbage;
        i.cache.borrow_mut().power_cut(&mut i.rng.borrow_mut(), garbage);
    }

    /// Reads that touch the range fail with [`IoError::Medium`], until it is written.
    pub fn fail_reads(&self, at: u64, len: u64) {
        self.0.bad.borrow_mut().push((at, at + len));
    }

    /// Everything can be read again that could not be.
    pub fn read_again(&self) {
        self.0.bad.borrow_mut().clear();
    }

    /// From now on the block of 4096 bytes at `at` takes what is written to it and gives something else back.
    pub fn wear_out(&self, at: u64) {
        self.0.worn.borrow_mut().insert(at / WORN);
    }

    /// Blocks that are worn out, by the bytes that they begin at.
    pub fn worn(&self) -> Vec<u64> {
        self.0.worn.borrow().iter().map(|b| b * WORN).collect()
    }

    /// What was worn out holds what is written to it again.
    pub fn forget_worn(&self) {
        self.0.worn.borrow_mut().clear();
    }

    /// What a read of `at` gives of what is there.
    pub(crate) fn wear(&self, at: u64, bytes: &mut [u8]) {
        let end = at + bytes.len() as u64;
        let worn = self.0.worn.borrow();
        for block in worn.range(at / WORN..end.div_ceil(WORN)) {
            // A bit of each sector.
            for byte in (block * WORN..(block + 1) * WORN).step_by(512) {
                if let Some(b) = byte.checked_sub(at).and_then(|i| bytes.get_mut(i as usize)) {
                    *b ^= 8;
                }
            }
        }
    }

    /// Flips `bits` drawn bits in the range.
    pub fn rot(&self, at: u64, len: usize, bits: u32) {
        let i = &self.0;
        i.counts.borrow_mut().rotten_bits += u64::from(bits);
        i.cache.borrow_mut().rot(at, len, bits, &mut i.rng.borrow_mut());
    }

    /// Changes bytes on the medium behind everybody's back.
    pub fn poke(&self, at: u64, bytes: &[u8]) {
        self.0.cache.borrow_mut().poke(at, bytes);
    }

    /// Makes one coming operation go wrong. Several calls add up.
    pub fn next_is(&self, what: Next) {
        self.0.next.borrow_mut().push(what);
    }

    /// Takes back what was demanded of coming operations.
    pub fn forget_next(&self) {
        self.0.next.borrow_mut().clear();
    }

    /// While offline every operation ends with [`IoError::Offline`].
    pub fn set_offline(&self, yes: bool) {
        self.0.offline.set(yes);
    }

    /// Every operation submitted takes `extra` longer, until set to 0.
    pub fn stall(&self, extra: Nanos) {
        self.0.stall.set(extra);
    }

    /// Writes that would need more than this many bytes of space fail with [`IoError::NoSpace`].
    pub fn set_space(&self, bytes: Option<u64>) {
        self.0.space.set(bytes);
    }

    // For the disk.

    pub(crate) fn op(&self) -> u64 {
        let n = self.0.ops.get() + 1;
        self.0.ops.set(n);
        n
    }

    pub(crate) fn draw<R>(&self, f: impl FnOnce(&mut Prng) -> R) -> R {
        f(&mut self.0.rng.borrow_mut())
    }

    pub(crate) fn is_offline(&self) -> bool {
        self.0.offline.get()
    }

    pub(crate) fn extra(&self) -> Nanos {
        self.0.stall.get()
    }

    pub(crate) fn set_len(&self, len: u64) -> IoResult {
        if !len.is_multiple_of(u64::from(self.0.config.borrow().block_size)) {
            return Err(IoError::OutOfRange);
        }
        if len < self.len() {
            self.0.cache.borrow_mut().truncate(len);
        }
        self.0.len.set(len);
        Ok(())
    }

    /// Draws whether a kind of fault happens to the operation that is being submitted.
    pub(crate) fn goes_wrong(&self, what: Next) -> bool {
        let demanded = {
            let mut next = self.0.next.borrow_mut();
            let found = next.iter().position(|n| *n == what);
            found.map(|k| next.remove(k)).is_some()
        };
        let odds = {
            let c = self.0.config.borrow();
            match what {
                Next::LostWrite => c.lost_write,
                Next::MisdirectedWrite => c.misdirected_write,
                Next::ReadError => c.read_error,
                Next::WriteError => c.write_error,
                Next::FlushError => c.flush_error,
            }
        };
        let wrong = demanded || self.draw(|r| odds.hit(r));
        if wrong {
            self.count(|c| match what {
                Next::LostWrite => &mut c.lost_writes,
                Next::MisdirectedWrite => &mut c.misdirected_writes,
                Next::ReadError => &mut c.read_errors,
                Next::WriteError => &mut c.write_errors,
                Next::FlushError => &mut c.flush_errors,
            });
        }
        wrong
    }

    pub(crate) fn count(&self, which: impl FnOnce(&mut FaultCounts) -> &mut u64) {
        *which(&mut self.0.counts.borrow_mut()) += 1;
    }

    /// True when a read of the range would fail, as [`fail_reads`](SimMedium::fail_reads) asked for.
    pub fn is_bad(&self, at: u64, len: u64) -> bool {
        self.0.bad.borrow().iter().any(|(s, e)| *s < at + len && at < *e)
    }

    /// Writing mends what could not be read.
    pub(crate) fn mend(&self, at: u64, len: u64) {
        let end = at + len;
        let mut bad = self.0.bad.borrow_mut();
        if bad.is_empty() {
            return;
        }
        let old = std::mem::take(&mut *bad);
        for (s, e) in old {
            if s < at.min(e) {
                bad.push((s, e.min(at)));
            }
            if e > end.max(s) {
                bad.push((s.max(end), e));
            }
        }
        bad.dedup();
    }

    pub(crate) fn has_room(&self, at: u64, len: usize) -> bool {
        let Some(space) = self.0.space.get() else { return true };
        let cache = self.0.cache.borrow();
        (cache.live().used() + cache.live().new_pages(at, len)) * 4096 <= space
    }
}

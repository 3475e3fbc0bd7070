//! Deduplication of a volume, chunk by chunk, over a thin volume that the layer has for itself.
//!
//! Every chunk has a slot of its own below, its *home*, where its data lies unless something else is said: a volume without
//! duplicates is written as it is, and has no records at all. A chunk may *refer* to another slot with the same data.
//! A slot has a *count*: how many refer to it besides the chunk whose home it is, or more than that, never less.
//!
//! - Equal data is found by an index of hashes in memory, which is advice: the candidate is read and compared.
//! - To share, the count goes up first, then the record of the chunk changes; afterwards the count of the slot that it
//!   referred to before goes down, and a slot that nobody needs any more is given back. Each step is durable before the
//!   next one begins, so a crash leaves counts too high, not too low.
//! - Data is written in place only if nobody else refers to the slot. Else it goes to the chunk's home if that is free,
//!   or to a slot that is nobody's home, and only then the record changes.
//! - Locks of ranges keep the place of a chunk from changing; locks of slots keep what is in a slot from changing while
//!   somebody compares it, and counts at nothing while somebody relies on that. Whoever holds a lock of a slot waits for no
//!   other lock.
//! - After a crash counts are put right in the background (`recount`).

mod audit;
mod format;
mod index;
mod meta;
mod place;
mod read;
mod recount;
mod shrink;
mod summary;
mod upkeep;
mod write;
mod zero;

use crate::lock::{Guard, Locks};
use crate::parts::{Part, parts};
use crate::to_end::ToTheEnd;
use format::{Layout, META, PER};
use index::Index;
use meta::Groups;
use recount::Tally;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::rc::Rc;
use summary::Account;
use weir_base::{IoError, IoResult};
use weir_block::{Allocation, Geometry, IoFuture, Volume, check_range};
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_reactor::{LocalFuture, WaitChannel};

/// Sizes of a chunk in bytes; powers of two.
pub const CHUNKS: RangeInclusive<u32> = (4 << 10)..=(128 << 10);
/// The size unless another is asked for.
pub const CHUNK: u32 = 4 << 10;
/// Buffers of each reserve.
const RESERVE: usize = 4;
/// Chunks that are looked at together.
const WINDOW: usize = 64;

/// How a volume is deduplicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Bytes of a chunk, a power of two of [`CHUNKS`]; never another one for the same volume.
    pub chunk: u32,
    /// Bytes of memory for the index, at most: eight for each chunk that is to be found again.
    pub index: usize,
    /// Bytes of memory for records of slots, at most: 4 KiB for 256 chunks. As much again while slots are counted.
    pub records: usize,
}

impl Options {
    /// Whether the volume can be made so.
    pub fn is_possible(&self) -> bool {
        CHUNKS.contains(&self.chunk) && self.chunk.is_power_of_two()
    }
}

fn layout(chunk: u32) -> Layout {
    Layout { shift: chunk.trailing_zeros().clamp(12, 17) as u8 }
}

/// Bytes of the volume below for a deduplicated one of `len` bytes in chunks of `chunk`. Most of them are never written.
pub fn stored_len(len: u64, chunk: u32) -> u64 {
    layout(chunk).stored_len(len)
}

/// The other way round.
pub fn seen_len(stored: u64, chunk: u32) -> u64 {
    layout(chunk).seen_len(stored)
}

/// What deduplication has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    /// Bytes of data that are there more than once and take up space only once: kept beside the data once a second, so that
    /// a crash may leave out what the last second changed until it has been counted again.
    pub saved: u64,
    /// Nothing has to be counted again.
    pub exact: bool,
    /// How far that has come, in thousandths, while it is done.
    pub recount: Option<u32>,
    /// Chunks of which the index knows where they are.
    pub indexed: u64,
}

/// Any bytes as records, for fuzzing: whether they got past the first checks.
///
/// # Panics
/// When something is found.
pub fn fuzz_meta(data: &[u8]) -> bool {
    format::fuzz(data)
}

/// What is found out about up to 64 chunks of an I/O.
pub(crate) struct Plan {
    /// Hashes of their data, or where it is.
    key: [u64; WINDOW],
    /// Chunks with which a run begins that is done as one.
    starts: u64,
    count: usize,
}

impl Plan {
    /// Of run `r`: its first chunk and how many there are.
    fn run(&self, r: usize) -> (usize, usize) {
        let mut left = self.starts;
        for _ in 0..r {
            left &= left.wrapping_sub(1);
        }
        let first = left.trailing_zeros() as usize;
        let next = (left & left.wrapping_sub(1)).trailing_zeros() as usize;
        (first, next.min(self.count).saturating_sub(first))
    }

    fn runs(&self) -> usize {
        self.starts.count_ones() as usize
    }
}

struct Inner {
    lower: Rc<dyn Volume>,
    layout: Layout,
    pool: BufPool,
    /// For when the pool is empty: whoever holds its buffers may be waiting for us. Nobody waits for one of the first while
    /// holding one of the second.
    reserves: [OnceCell<BufPool>; 2],
    /// For records; whoever holds one waits for no other.
    metas: OnceCell<BufPool>,
    locks: Rc<Locks>,
    slots: Rc<Locks>,
    /// Shared by what goes on beside I/O.
    quiet: Rc<Locks>,
    groups: Groups,
    /// Bytes for counting.
    memory: usize,
    index: RefCell<Index>,
    #[expect(clippy::vec_box, reason = "they go in and out as they are")]
    plans: RefCell<Vec<Box<Plan>>>,
    /// Slots that chunks have left, and whether they were counted there.
    left: RefCell<VecDeque<(u64, bool)>>,
    give: Rc<WaitChannel>,
    /// What counts have too much because of what is under way.
    owed: RefCell<BTreeMap<u64, i64>>,
    committing: Cell<usize>,
    tally: RefCell<Option<Tally>>,
    /// Bytes that hosts will see: nothing that stays may refer to what lies beyond.
    limit: Cell<u64>,
    /// Where other groups' slots were found last.
    roving: Cell<u64>,
    account: Account,
}

impl Inner {
    fn chunk(&self) -> u64 {
        self.layout.chunk()
    }

    fn len(&self) -> u64 {
        self.layout.seen_len(self.lower.geometry().len)
    }

    /// Bytes of a chunk that hosts have: the last one may be short.
    fn len_of(&self, chunk: u64) -> u64 {
        self.len().saturating_sub(chunk << self.layout.shift).min(self.chunk())
    }

    /// Chunks that are not short.
    fn whole(&self) -> u64 {
        self.len() >> self.layout.shift
    }

    fn group_count(&self) -> u64 {
        self.len().div_ceil(PER << self.layout.shift)
    }

    fn geometry(&self) -> Geometry {
        let g = self.lower.geometry();
        let granularity = g.granularity.max(self.chunk() as u32);
        Geometry { len: self.layout.seen_len(g.len), granularity, thin: true, ..g }
    }

    fn check(&self, at: u64, len: u64, write: bool) -> IoResult {
        let g = self.geometry();
        check_range(&g, at, len)?;
        if write && g.read_only { Err(IoError::ReadOnly) } else { Ok(()) }
    }

    fn part(&self, at: u64, len: u64, i: usize) -> Part {
        Part::of(at, len, i, self.layout.shift)
    }

    fn parts(&self, at: u64, len: u64) -> usize {
        parts(at, len, self.layout.shift)
    }

    async fn lock(&self, at: u64, len: u64, shared: bool) -> Guard {
        let from = at >> self.layout.shift;
        self.locks.lock(from, from + self.parts(at, len) as u64, shared).await
    }

    /// Memory for a chunk; see `reserves`.
    async fn buffer(&self, which: usize) -> Result<Slice, IoError> {
        let len = self.chunk() as usize;
        if len <= self.pool.max_len()
            && let Some(s) = self.pool.try_alloc(len)
        {
            return Ok(s);
        }
        let Some(cell) = self.reserves.get(which) else { return Err(IoError::Internal) };
        Ok(reserve(cell, len)?.alloc(len).await)
    }

    async fn meta_memory(&self) -> Result<Slice, IoError> {
        Ok(reserve(&self.metas, META)?.alloc(META).await)
    }

    /// Nothing written later is durable before everything written so far.
    async fn barrier(&self) -> IoResult {
        if self.lower.geometry().volatile_cache { self.lower.flush().await } else { Ok(()) }
    }

    fn plan(&self) -> Planned<'_> {
        let plan = self.plans.borrow_mut().pop();
        let new = || Box::new(Plan { key: [0; WINDOW], starts: 0, count: 0 });
        Planned { of: self, plan: Some(plan.unwrap_or_else(new)) }
    }
}

fn reserve(cell: &OnceCell<BufPool>, len: usize) -> Result<&BufPool, IoError> {
    if let Some(r) = cell.get() {
        return Ok(r);
    }
    let classes = vec![(len, RESERVE)];
    let made = BufPool::new(&PoolConfig { classes }).map_err(|_| IoError::Busy)?;
    Ok(cell.get_or_init(|| made))
}

/// A plan that is used again.
struct Planned<'a> {
    of: &'a Inner,
    plan: Option<Box<Plan>>,
}

impl Drop for Planned<'_> {
    fn drop(&mut self) {
        self.of.plans.borrow_mut().extend(self.plan.take());
    }
}

/// A deduplicated volume.
pub struct Dedup {
    inner: Rc<Inner>,
}

impl Dedup {
    /// Over `lower`, which is thin, reads zeros where nothing was written, and is used by nobody else; on its reactor.
    /// `None`: such options are not possible.
    pub fn new(lower: Rc<dyn Volume>, options: Options, pool: BufPool) -> Option<Rc<Dedup>> {
        if !options.is_possible() {
            return None;
        }
        let inner = Rc::new(Inner {
            lower,
            layout: layout(options.chunk),
            pool,
            reserves: Default::default(),
            metas: OnceCell::new(),
            locks: Rc::default(),
            slots: Rc::default(),
            quiet: Rc::default(),
            groups: Groups::new(options.records),
            memory: options.records,
            index: RefCell::new(Index::new(options.index)),
            plans: RefCell::default(),
            left: RefCell::new(VecDeque::with_capacity(upkeep::QUEUE)),
            give: Rc::new(WaitChannel::new(0)),
            owed: RefCell::default(),
            committing: Cell::new(0),
            tally: RefCell::default(),
            limit: Cell::new(u64::MAX),
            roving: Cell::new(0),
            account: Account::default(),
        });
        upkeep::begin(&inner);
        Some(Rc::new(Dedup { inner }))
    }

    /// Bytes of the volume below for one in which hosts see `len` bytes.
    pub fn below(&self, len: u64) -> u64 {
        self.inner.layout.stored_len(len)
    }

    /// What it has come to; `None`: that has not been read yet.
    pub fn figures(&self) -> Option<Figures> {
        self.inner.figures()
    }

    /// Waits until nothing is under way, and keeps everybody out until what it returns is dropped: then nothing that was
    /// known of the volume below counts any more, but for the index. For changes to that one from elsewhere.
    pub async fn hold(&self) -> Hold {
        self.inner.clone().hold().await
    }

    /// Makes ready for the volume below to be cut, so that hosts see `len` bytes, fewer than now; keeps everybody out until
    /// what it returns is dropped, before which that is to be done.
    ///
    /// # Errors
    /// Of the volume below. Nothing has changed but that what was to be cut off may be zeros.
    pub async fn shrink(&self, len: u64) -> Result<Hold, IoError> {
        self.inner.clone().shrink(len).await
    }

    /// Ends what goes on beside I/O, as far as that is quickly done, and says beside the data that nothing has to be counted
    /// again: before the volume is closed, when nobody uses it any more.
    pub async fn settle(&self) {
        self.inner.settle().await;
    }

    /// Whether nothing has to be counted after a crash.
    pub fn is_clean(&self) -> bool {
        self.inner.is_clean()
    }

    /// Looks for a count that is too low, or `exact`ly, not right, and for slots that take space in vain: what was found.
    /// Slow, and nobody may use the volume meanwhile: for tests.
    ///
    /// # Errors
    /// Of the volume below.
    pub async fn audit(&self, exact: bool) -> Result<Option<String>, IoError> {
        self.inner.audit(exact).await
    }
}

impl Drop for Dedup {
    fn drop(&mut self) {
        // What is under way goes on to its end, a recount begins again another time.
        self.inner.account.closed.set(true);
    }
}

/// The layer stands still.
pub struct Hold {
    inner: Rc<Inner>,
    _io: Guard,
    _others: Guard,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.inner.forget();
    }
}

impl Volume for Dedup {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        match self.inner.check(at, buf.len() as u64, false) {
            Err(e) => IoFuture::ready(Err(e)),
            Ok(()) if buf.is_empty() => IoFuture::ready(Ok(())),
            Ok(()) => IoFuture::new(self.inner.read_all(at, buf)),
        }
    }

    fn write(&self, at: u64, buf: Slice, fua: bool) -> IoFuture<'_> {
        match self.inner.check(at, buf.len() as u64, true) {
            Err(e) => IoFuture::ready(Err(e)),
            Ok(()) if buf.is_empty() => IoFuture::ready(Ok(())),
            Ok(()) => ToTheEnd::of(self.inner.clone().write_all(at, buf, fua)),
        }
    }

    fn flush(&self) -> IoFuture<'_> {
        self.inner.lower.flush()
    }

    fn lost(&self) -> u64 {
        self.inner.lower.lost()
    }

    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        self.write_zeroes(at, len, true)
    }

    fn write_zeroes(&self, at: u64, len: u64, _unmap: bool) -> IoFuture<'_> {
        match self.inner.check(at, len, true) {
            Err(e) => IoFuture::ready(Err(e)),
            Ok(()) if len == 0 => IoFuture::ready(Ok(())),
            Ok(()) => ToTheEnd::of(self.inner.clone().zero_all(at, len)),
        }
    }

    fn allocation(&self, at: u64, len: u64) -> Allocation {
        self.inner.allocation(at, len)
    }

    fn find_allocation(&self, at: u64, len: u64) -> LocalFuture<'_, Allocation> {
        if len == 0 || self.inner.check(at, len, false).is_err() {
            return Box::pin(std::future::ready(Allocation { mapped: true, len }));
        }
        Box::pin(self.inner.find(at, len))
    }

    fn allocated(&self) -> Option<u64> {
        self.inner.lower.allocated()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_possible() {
        let o = Options { chunk: CHUNK, index: 0, records: 0 };
        assert!(o.is_possible());
        for chunk in [0, 2048, 12 << 10, 256 << 10] {
            assert!(!Options { chunk, ..o }.is_possible());
        }
    }

    #[test]
    fn runs_of_a_plan() {
        let plan = Plan { key: [0; WINDOW], starts: 0b10_0101, count: 64 };
        assert_eq!(plan.runs(), 3);
        assert_eq!([0, 1, 2].map(|r| plan.run(r)), [(0, 2), (2, 3), (5, 59)]);
        let plan = Plan { key: [0; WINDOW], starts: 1, count: 3 };
        assert_eq!(plan.run(0), (0, 3));
    }
}

//! Compression of a volume, chunk by chunk, over a thin volume that the layer has for itself.
//!
//! The volume below is a store's: it is thin, so that address space costs nothing, it knows no write order but that of
//! acknowledgements, and of a write that was not acknowledged when power went it keeps, block by block, the old or the
//! new. A chunk has three areas there: two for compressed forms, A and B, and one for the data as it is, R.
//!
//! - The newest form in A or B that is whole (`form`) is the data; if there is none, R is, in which what was never
//!   written is zeros. So R is a part of a thin volume like any other, written in place in blocks.
//! - A compressed form is written to the area that does not hold the present one, by one write. Until that is whole it
//!   does not count, from then on it does: nothing is ever in between, and the write is acknowledged when it is durable.
//! - What is left in other areas is given back afterwards, in the background: when it has no meaning any more.
//! - From compressed to R: all of R is written, then A and B are given back by one discard, which the store does whole
//!   or not at all; then the write is acknowledged.
//!
//! A partial write to what is compressed reads, changes and compresses the chunk; one to R goes straight there, unless
//! it is half of the chunk or ends it: then the chunk is looked at anew.

mod change;
mod codec;
mod form;
mod look;
mod states;
mod upkeep;

pub use codec::{Algorithm, ZSTD_LEVELS};

use crate::compress::states::{Form, State, States};
use crate::lock::{Guard, Locks};
use crate::parts::{Part, parts};
use crate::to_end::ToTheEnd;
use codec::Codec;
use form::BLOCK;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::rc::Rc;
use upkeep::Account;
use weir_base::{IoError, IoResult};
use weir_block::{Allocation, Geometry, IoFuture, Volume, check_range, join_parts};
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_reactor::{LocalFuture, WaitChannel, local_or_default};

/// Sizes of a chunk in bytes; powers of two.
pub const CHUNKS: RangeInclusive<u32> = (8 << 10)..=(128 << 10);
/// The size unless another is asked for.
pub const CHUNK: u32 = 32 << 10;
/// Bytes in front of the first chunk: the summary, see [`Compress::figures`].
const FIRST: u64 = BLOCK as u64;
/// Areas of a chunk, each as long as itself.
const AREAS: u64 = 3;
/// The area for data as it is.
const RAW: u64 = 2;
/// Buffers of the reserve.
const RESERVE: usize = 4;

/// How a volume is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// By which algorithm. Another one may be used later: every chunk says how it was made.
    pub algorithm: Algorithm,
    /// Bytes of a chunk, a power of two of [`CHUNKS`]; never another one for the same volume.
    pub chunk: u32,
    /// Where the numbers begin by which writes are told from one another: any random number, another one each time.
    pub stamp: u64,
    /// Bytes of memory for what is known of chunks, at most: two for each chunk.
    pub memory: usize,
}

impl Options {
    /// Whether the volume can be made so.
    pub fn is_possible(&self) -> bool {
        let level = match self.algorithm {
            Algorithm::Zstd(level) => ZSTD_LEVELS.contains(&level),
            Algorithm::Lz4 => true,
        };
        level && CHUNKS.contains(&self.chunk) && self.chunk.is_power_of_two()
    }
}

/// Bytes of the volume below for a compressed one of `len` bytes in chunks of `chunk`. Most of them are never written.
pub fn stored_len(len: u64, chunk: u32) -> u64 {
    let c = u64::from(chunk);
    let rest = match len % c {
        0 => 0,
        r => RAW * c + r,
    };
    FIRST.saturating_add((len / c).saturating_mul(AREAS * c)).saturating_add(rest)
}

/// The other way round.
pub fn seen_len(stored: u64, chunk: u32) -> u64 {
    let chunk = u64::from(chunk);
    let stored = stored.saturating_sub(FIRST);
    let rest = (stored % (AREAS * chunk)).saturating_sub(RAW * chunk);
    stored / (AREAS * chunk) * chunk + rest
}

/// What compression has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    /// Bytes that hosts have written and would take up without compression, less those that do take up space: kept
    /// beside the data once a second, so that a crash or stop may leave out what the last second changed.
    pub saved: u64,
    /// Nothing had to be guessed so far. Discards of more than 4096 chunks that were not looked at make it an estimate.
    pub exact: bool,
}

/// Any bytes as the stored form of a chunk, for fuzzing: whether they got past the first checks.
///
/// # Panics
/// When something is found.
pub fn fuzz_form(data: &[u8]) -> bool {
    form::fuzz(data)
}

struct Inner {
    lower: Rc<dyn Volume>,
    algorithm: Algorithm,
    /// A chunk has 2^shift bytes.
    shift: u8,
    pool: BufPool,
    /// For when the pool is empty: whoever holds its buffers may be waiting for us.
    reserve: OnceCell<BufPool>,
    codec: Rc<RefCell<Codec>>,
    locks: Rc<Locks>,
    states: States,
    stamp: Cell<u64>,
    /// Chunks whose other areas are to be given back.
    stale: RefCell<VecDeque<u64>>,
    give: Rc<WaitChannel>,
    account: Account,
}

impl Inner {
    fn chunk(&self) -> u64 {
        1 << self.shift
    }

    /// Bytes of a chunk that hosts have: the last one may be short.
    fn len_of(&self, chunk: u64) -> usize {
        let len = seen_len(self.lower.geometry().len, self.chunk() as u32);
        len.saturating_sub(chunk << self.shift).min(self.chunk()) as usize
    }

    /// Where an area of a chunk begins.
    fn area(&self, chunk: u64, area: u64) -> u64 {
        FIRST + ((chunk * AREAS + area) << self.shift)
    }

    fn geometry(&self) -> Geometry {
        let g = self.lower.geometry();
        Geometry {
            len: seen_len(g.len, self.chunk() as u32),
            granularity: self.chunk() as u32,
            thin: true,
            ..g
        }
    }

    fn check(&self, at: u64, len: u64, write: bool) -> IoResult {
        let g = self.geometry();
        check_range(&g, at, len)?;
        if write && g.read_only { Err(IoError::ReadOnly) } else { Ok(()) }
    }

    fn part(&self, at: u64, len: u64, i: usize) -> Part {
        Part::of(at, len, i, self.shift)
    }

    fn parts(&self, at: u64, len: u64) -> usize {
        parts(at, len, self.shift)
    }

    async fn lock(&self, at: u64, len: u64, shared: bool) -> Guard {
        let from = at >> self.shift;
        self.locks.lock(from, from + self.parts(at, len) as u64, shared).await
    }

    /// Memory for an area or a part of one. Nobody waits for more while holding some.
    async fn memory(&self, len: usize) -> Result<Slice, IoError> {
        if len <= self.pool.max_len()
            && let Some(s) = self.pool.try_alloc(len)
        {
            return Ok(s);
        }
        let reserve = match self.reserve.get() {
            Some(r) => r,
            None => {
                let classes = vec![(self.chunk() as usize, RESERVE)];
                let made = BufPool::new(&PoolConfig { classes }).map_err(|_| IoError::Busy)?;
                self.reserve.get_or_init(|| made)
            }
        };
        Ok(reserve.alloc(len).await)
    }

    fn next_stamp(&self) -> u64 {
        let stamp = self.stamp.get();
        self.stamp.set(stamp.wrapping_add(1));
        stamp
    }

    /// Notes what became of a chunk whose state was `old`.
    fn changed(&self, chunk: u64, old: State, new: State) {
        let saved = |s: State| match s.form {
            Form::Raw { .. } => 0,
            Form::Packed { blocks, .. } => (self.chunk() / BLOCK as u64) as i64 - i64::from(blocks),
        };
        self.account.add(saved(new) - saved(old));
        self.states.set(chunk, Some(new));
    }

    async fn read_all(&self, at: u64, buf: Slice) -> IoResult {
        let len = buf.len() as u64;
        let _shared = self.lock(at, len, true).await;
        join_parts(self.parts(at, len), |i| {
            let p = self.part(at, len, i);
            IoFuture::new(self.read_part(p, buf.sub(p.at as usize, p.len as usize)))
        })
        .await
    }

    async fn read_part(&self, p: Part, to: Slice) -> IoResult {
        let (state, held) = self.state_of(p.chunk, false).await?;
        let Form::Packed { area, blocks, .. } = state.form else {
            return self.lower.read(self.area(p.chunk, RAW) + p.from, to).await;
        };
        let form = self.form_of(p.chunk, area, blocks, held).await?;
        let mut codec = self.codec.borrow_mut();
        let data = self.unpack(&mut codec, p.chunk, &form)?;
        to.write_at(0, &data[p.from as usize..(p.from + p.len) as usize]);
        Ok(())
    }

    async fn find(&self, at: u64, len: u64) -> Allocation {
        let p = self.part(at, len, 0);
        let _shared = self.lock(at, p.len, true).await;
        match self.state_of(p.chunk, false).await.map(|(s, _)| s.form) {
            Ok(Form::Raw { .. }) => {
                self.lower.find_allocation(self.area(p.chunk, RAW) + p.from, p.len).await
            }
            Ok(Form::Packed { .. }) | Err(_) => Allocation { mapped: true, len: p.len },
        }
    }
}

/// A compressed volume.
pub struct Compress {
    inner: Rc<Inner>,
}

impl Compress {
    /// Over `lower`, which is thin, reads zeros where nothing was written, and is used by nobody else; on its reactor.
    /// `None`: such options are not possible.
    pub fn new(lower: Rc<dyn Volume>, options: Options, pool: BufPool) -> Option<Rc<Compress>> {
        if !options.is_possible() {
            return None;
        }
        let inner = Rc::new(Inner {
            lower,
            algorithm: options.algorithm,
            shift: options.chunk.trailing_zeros() as u8,
            pool,
            reserve: OnceCell::new(),
            codec: local_or_default(),
            locks: Rc::default(),
            states: States::new(options.memory),
            stamp: Cell::new(options.stamp),
            stale: RefCell::new(VecDeque::with_capacity(upkeep::QUEUE)),
            give: Rc::new(WaitChannel::new(0)),
            account: Account::default(),
        });
        upkeep::begin(&inner);
        Some(Rc::new(Compress { inner }))
    }

    /// What it has come to; `None`: that has not been read yet.
    pub fn figures(&self) -> Option<Figures> {
        self.inner.account.figures()
    }

    /// Waits until nothing is under way, and keeps everybody out until what it returns is dropped: then nothing that was
    /// known of the volume below counts any more. For changes to that one from elsewhere.
    pub async fn hold(&self) -> Hold {
        let guard = self.inner.locks.lock(0, u64::MAX, false).await;
        Hold { inner: self.inner.clone(), _guard: guard }
    }
}

/// The layer stands still.
pub struct Hold {
    inner: Rc<Inner>,
    _guard: Guard,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.inner.states.clear();
        self.inner.stale.borrow_mut().clear();
        self.inner.account.forget();
    }
}

impl Volume for Compress {
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
        let i = &self.inner;
        let p = i.part(at, len, 0);
        match i.states.get(p.chunk).map(|s| s.form) {
            Some(Form::Raw { .. }) => i.lower.allocation(i.area(p.chunk, RAW) + p.from, p.len),
            _ => Allocation { mapped: true, len: p.len },
        }
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
    fn lengths_go_both_ways() {
        for chunk in [8u64 << 10, 32 << 10, 128 << 10] {
            for len in [0, 512, 4096, chunk - 512, chunk, chunk + 512, 7 * chunk + 4096, 1 << 40] {
                let stored = stored_len(len, chunk as u32);
                assert_eq!(seen_len(stored, chunk as u32), len, "{chunk} {len}");
            }
        }
        assert!(stored_len(u64::MAX, 8 << 10) > 1 << 62, "too much is not little");
        assert_eq!(seen_len(0, 8 << 10), 0);
    }

    #[test]
    fn what_is_not_possible() {
        let o = Options { algorithm: Algorithm::Lz4, chunk: CHUNK, stamp: 0, memory: 0 };
        assert!(o.is_possible());
        for chunk in [0, 4096, 12 << 10, 256 << 10] {
            assert!(!Options { chunk, ..o }.is_possible());
        }
        for level in [i32::MIN, 0, 10] {
            assert!(!Options { algorithm: Algorithm::Zstd(level), ..o }.is_possible());
        }
    }
}

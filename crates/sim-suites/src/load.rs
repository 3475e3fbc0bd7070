//! Concurrent, verified I/O on anything that stores blocks.
//!
//! A suite makes one [`Load`] per volume and starts [`Load::client`] as often as it likes, on any nodes, over
//! any path to that volume. Everything written can be recognised, everything read is checked at once against
//! the [`BlockHistory`]. What the suite does to the paths it tells the load: when writes of unknown outcome
//! cannot come any more ([`Load::settle`]), when power went ([`Load::power_cut`]).

use crate::Wrong;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{IoError, IoResult, MILLIS, Nanos, Prng};
use weir_block::Volume;
use weir_disk::{Disk, DiskOp};
use weir_mem::{BufPool, Slice};
use weir_reactor::{LocalFuture, WaitChannel, sleep};
use weir_sim::check::{BlockHistory, WriteId};
use weir_sim::{SimDisk, Time};

/// Requests after which the history is shortened.
const FORGET: u32 = 32;
const BLOCK: u64 = weir_sim::check::blocks::BLOCK as u64;

/// A path to the blocks under test, of one reactor. Offsets and lengths are bytes.
///
/// A request that ends with [`IoError::Aborted`] may have been done, in part, but will not be later.
pub trait Io {
    /// Fills `buf` from `at`.
    fn read(&self, at: u64, buf: Slice) -> LocalFuture<'_, IoResult>;
    /// Writes `buf` at `at`; durable when it is over if `fua`.
    fn write(&self, at: u64, buf: Slice, fua: bool) -> LocalFuture<'_, IoResult>;
    /// Makes durable what was acknowledged before.
    fn flush(&self) -> LocalFuture<'_, IoResult>;
    /// Zeros a range.
    fn zero(&self, at: u64, len: u64) -> LocalFuture<'_, IoResult>;
    /// Whose path it is: what a host failed to do can be [settled](Load::settle_owner) for itself.
    fn owner(&self) -> u32 {
        0
    }
}

/// A volume of the present reactor as a path.
pub struct VolumeIo(pub Rc<dyn Volume>);

impl Io for VolumeIo {
    fn read(&self, at: u64, buf: Slice) -> LocalFuture<'_, IoResult> {
        Box::pin(self.0.read(at, buf))
    }
    fn write(&self, at: u64, buf: Slice, fua: bool) -> LocalFuture<'_, IoResult> {
        Box::pin(self.0.write(at, buf, fua))
    }
    fn flush(&self) -> LocalFuture<'_, IoResult> {
        Box::pin(self.0.flush())
    }
    fn zero(&self, at: u64, len: u64) -> LocalFuture<'_, IoResult> {
        Box::pin(self.0.write_zeroes(at, len, true))
    }
}

impl Io for SimDisk {
    fn read(&self, offset: u64, buf: Slice) -> LocalFuture<'_, IoResult> {
        Box::pin(weir_disk::run(self, DiskOp::Read { offset, buf }))
    }
    fn write(&self, offset: u64, buf: Slice, fua: bool) -> LocalFuture<'_, IoResult> {
        let fua = fua || !self.volatile_cache();
        Box::pin(weir_disk::run(self, DiskOp::Write { offset, buf, fua }))
    }
    fn flush(&self) -> LocalFuture<'_, IoResult> {
        Box::pin(weir_disk::run(self, DiskOp::Flush))
    }
    fn zero(&self, offset: u64, len: u64) -> LocalFuture<'_, IoResult> {
        Box::pin(weir_disk::run(self, DiskOp::WriteZeroes { offset, len, unmap: true }))
    }
}

/// What clients do.
#[derive(Debug, Clone, Copy)]
pub struct Mix {
    /// First block that they use.
    pub first: u64,
    /// Blocks of 512 bytes that they use: few, so that they meet.
    pub blocks: u64,
    /// Unit of their requests, in blocks.
    pub unit: u64,
    /// Most units of one request.
    pub most: u64,
    /// In a hundred requests: writes, zeroings, flushes; the rest are reads.
    pub writes: u32,
    /// See `writes`.
    pub zeros: u32,
    /// See `writes`.
    pub flushes: u32,
    /// In a hundred writes: with forced unit access.
    pub fua: u32,
    /// Longest pause between requests of one client.
    pub think: Nanos,
    /// The volume may lose acknowledged writes with power until a flush.
    pub volatile: bool,
    /// No request meets a write on the same blocks, and a write that failed is repeated until it is done:
    /// for volumes whose blocks may be seen half written meanwhile.
    pub exclusive: bool,
}

impl Default for Mix {
    fn default() -> Self {
        Mix {
            first: 0,
            blocks: 32,
            unit: 1,
            most: 8,
            writes: 40,
            zeros: 4,
            flushes: 8,
            fua: 25,
            think: 0,
            volatile: false,
            exclusive: false,
        }
    }
}

/// What was done and checked.
#[derive(Debug, Clone, Copy, Default)]
pub struct Figures {
    /// Blocks read and checked.
    pub blocks_read: u64,
    /// Writes and zeroings acknowledged.
    pub writes: u64,
    /// Flushes acknowledged.
    pub flushes: u64,
    /// Requests that failed.
    pub errors: u64,
}

/// Verified I/O on one volume.
pub struct Load {
    time: Time,
    mix: Mix,
    history: RefCell<BlockHistory>,
    figures: Cell<Figures>,
    /// What is wrong, once something is.
    wrong: RefCell<Option<String>>,
    /// When requests under way began.
    under_way: RefCell<Vec<Nanos>>,
    requests: Cell<u32>,
    /// Writes of unknown outcome, and their owners.
    given_up: RefCell<Vec<(WriteId, u32)>>,
    locks: RefCell<Vec<Lock>>,
    unlocked: WaitChannel,
    /// Blocks that may be half written, since who wrote them is gone. They stay locked.
    orphans: RefCell<Vec<Range>>,
    stop: Cell<bool>,
    /// When power last went.
    cut_at: Cell<Option<Nanos>>,
    /// Planted bug: acknowledged is taken for durable.
    pub(crate) acks_lie: Cell<bool>,
}

/// First block and number of blocks.
type Range = (u64, u64);

/// Blocks in use by a request.
#[derive(Clone, Copy, PartialEq)]
struct Lock {
    range: Range,
    writes: bool,
}

/// Gives blocks free when the request is over, however it ends.
struct Held<'a> {
    load: &'a Load,
    lock: Lock,
    /// What was begun has been brought to its end.
    whole: Cell<bool>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if !self.whole.get() {
            // The lock stays with the orphan; whoever waits for these blocks takes it up.
            self.load.orphans.borrow_mut().push(self.lock.range);
            return self.load.unlocked.signal_all();
        }
        let mut locks = self.load.locks.borrow_mut();
        if let Some(k) = locks.iter().position(|l| *l == self.lock) {
            locks.swap_remove(k);
        }
        drop(locks);
        self.load.unlocked.signal_all();
    }
}

/// A request under way, until it is over or its client is dropped.
struct UnderWay<'a> {
    load: &'a Load,
    start: Nanos,
    /// A write that has no end yet, and its owner.
    write: Cell<Option<(WriteId, u32)>>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut all = self.load.under_way.borrow_mut();
        if let Some(k) = all.iter().position(|s| *s == self.start) {
            all.swap_remove(k);
        }
        drop(all);
        if let Some((id, owner)) = self.write.get() {
            self.load.give_up(id, owner);
        }
    }
}

impl Load {
    /// A load on a volume of zeros; `volume` tells its blocks from other volumes'.
    pub fn new(volume: u32, time: Time, mix: Mix) -> Rc<Load> {
        Rc::new(Load {
            time,
            mix,
            history: RefCell::new(match mix.volatile {
                true => BlockHistory::volatile(volume),
                false => BlockHistory::new(volume),
            }),
            figures: Cell::default(),
            wrong: RefCell::default(),
            under_way: RefCell::default(),
            requests: Cell::new(0),
            given_up: RefCell::default(),
            locks: RefCell::default(),
            unlocked: WaitChannel::new(0),
            orphans: RefCell::default(),
            stop: Cell::new(false),
            cut_at: Cell::default(),
            acks_lie: Cell::new(false),
        })
    }

    /// What was done and checked.
    pub fn figures(&self) -> Figures {
        self.figures.get()
    }

    /// Requests under way.
    pub fn under_way(&self) -> usize {
        self.under_way.borrow().len()
    }

    fn begin(&self) -> UnderWay<'_> {
        let start = self.time.now();
        self.requests.set(self.requests.get() + 1);
        if self.requests.get().is_multiple_of(FORGET) {
            let oldest = self.under_way.borrow().iter().copied().min().unwrap_or(start);
            self.history.borrow_mut().forget_before(oldest);
        }
        self.under_way.borrow_mut().push(start);
        UnderWay { load: self, start, write: Cell::new(None) }
    }

    /// Clients end after their present request.
    pub fn stop(&self) {
        self.stop.set(true);
    }

    /// Clients are to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.get()
    }

    /// Clients started from here on do not end at once.
    pub fn go_on(&self) {
        self.stop.set(false);
    }

    /// What is wrong, if something is.
    ///
    /// # Errors
    /// The first contradiction that was seen.
    pub fn verdict(&self) -> Result<(), Wrong> {
        match self.wrong.borrow().as_ref() {
            None => Ok(()),
            Some(w) => Err(Wrong(w.clone())),
        }
    }

    /// True once something is wrong.
    pub fn is_wrong(&self) -> bool {
        self.wrong.borrow().is_some()
    }

    /// Writes of unknown outcome have been done by now or never will.
    pub fn settle(&self) {
        self.history.borrow_mut().settle_all(self.time.now());
    }

    /// Requests of any owner that have failed so far have been done by now or never will. Those that still
    /// go on may be sent again.
    pub fn settle_given_up(&self) {
        let now = self.time.now();
        let mut h = self.history.borrow_mut();
        self.given_up.borrow_mut().drain(..).for_each(|(id, _)| h.settled(id, now));
    }

    /// Requests of this owner that had failed before `before` have been done by now or never will.
    pub fn settle_failed(&self, owner: u32, before: Nanos) {
        let now = self.time.now();
        let mut h = self.history.borrow_mut();
        self.given_up
            .borrow_mut()
            .retain(|(id, o)| *o != owner || !h.settle_unknown(*id, before, now));
    }

    /// Requests of this owner that have failed so far, or whose client is gone, have been done by now or
    /// never will.
    pub fn settle_owner(&self, owner: u32) {
        let now = self.time.now();
        let mut h = self.history.borrow_mut();
        self.given_up.borrow_mut().retain(|(id, o)| {
            if *o == owner {
                h.settled(*id, now);
            }
            *o != owner
        });
    }

    fn give_up(&self, id: WriteId, owner: u32) {
        let now = self.time.now();
        self.history.borrow_mut().unknown(id, now);
        self.given_up.borrow_mut().push((id, owner));
    }

    /// Power went, and with it what was not durable if the volume is volatile.
    pub fn power_cut(&self) {
        self.history.borrow_mut().power_cut(self.time.now());
        self.cut_at.set(Some(self.time.now()));
    }

    /// An answer to what began at `start` may be from before power went: what it says need not be so any more.
    fn is_stale(&self, start: Nanos) -> bool {
        self.mix.volatile && self.cut_at.get().is_some_and(|cut| start <= cut)
    }

    /// Whether nothing of the write of this number may happen any more.
    pub fn is_over(&self, write: u64) -> bool {
        self.history.borrow().is_over(WriteId(write))
    }

    fn count(&self, f: impl FnOnce(&mut Figures)) {
        let mut x = self.figures.get();
        f(&mut x);
        self.figures.set(x);
    }

    fn check<E: ToString>(&self, r: Result<(), E>) {
        if let Err(e) = r {
            self.wrong.borrow_mut().get_or_insert(e.to_string());
        }
    }

    /// Random requests, one after the other, until [`stop`](Load::stop), `requests` are done, or the task is
    /// dropped. A request that fails is counted; the next goes on with the same path.
    pub async fn client(
        self: Rc<Self>,
        io: Rc<dyn Io>,
        pool: BufPool,
        mut rng: Prng,
        requests: u64,
    ) {
        for _ in 0..requests {
            if self.stop.get() || self.is_wrong() {
                return;
            }
            self.repair(&*io, &pool, &mut rng).await;
            let m = self.mix;
            let kind = rng.below(100) as u32;
            if kind < m.writes {
                self.write(&*io, &pool, &mut rng).await;
            } else if kind < m.writes + m.zeros {
                self.zero(&*io, &pool, &mut rng).await;
            } else if kind < m.writes + m.zeros + m.flushes {
                self.flush(&*io).await;
            } else {
                let (first, count) = self.range(&mut rng);
                self.read(&*io, &pool, first, count).await;
            }
            if m.think > 0 {
                sleep(rng.below(m.think)).await;
            }
        }
    }

    /// While this lives, what was there at this moment is not forgotten.
    pub fn hold(&self) -> impl Drop + '_ {
        self.begin()
    }

    /// Checks that all that clients use, as it was read from a copy that was made between `start` and `end`, is
    /// what the volume could have held then.
    pub fn check_copy(&self, bytes: &[u8], start: Nanos, end: Nanos) {
        let r = self.history.borrow_mut().read(self.mix.first, bytes, start, end);
        self.check(r.map_err(|v| format!("copy of {start}..{end}: {v}")));
    }

    /// The bytes that clients use: the first, and how many.
    pub fn extent(&self) -> (u64, usize) {
        (self.mix.first * BLOCK, (self.mix.blocks * BLOCK) as usize)
    }

    /// Reads and checks every block that clients use.
    pub async fn read_all(self: Rc<Self>, io: Rc<dyn Io>, pool: BufPool) {
        self.repair(&*io, &pool, &mut Prng::new(0)).await;
        let (m, step) = (self.mix, self.mix.most * self.mix.unit);
        for first in (m.first..m.first + m.blocks).step_by(step as usize) {
            self.read(&*io, &pool, first, step.min(m.first + m.blocks - first)).await;
        }
    }

    /// Writes what may be half written.
    async fn repair(&self, io: &dyn Io, pool: &BufPool, rng: &mut Prng) {
        while let Some(range) = { self.orphans.borrow_mut().pop() } {
            let lock = Lock { range, writes: true };
            let held = Held { load: self, lock, whole: Cell::new(false) };
            self.write_range(io, pool, rng, &held).await;
        }
    }

    async fn lock(
        &self,
        path: (&dyn Io, &BufPool),
        range: Range,
        writes: bool,
    ) -> Option<Held<'_>> {
        if !self.mix.exclusive {
            return None;
        }
        let meets = |l: &Lock| {
            let apart = l.range.0 + l.range.1 <= range.0 || range.0 + range.1 <= l.range.0;
            !apart && (l.writes || writes)
        };
        while self.locks.borrow().iter().any(meets) {
            self.repair(path.0, path.1, &mut Prng::new(range.0)).await;
            if self.locks.borrow().iter().any(meets) {
                self.unlocked.wait().await;
            }
        }
        let lock = Lock { range, writes };
        self.locks.borrow_mut().push(lock);
        Some(Held { load: self, lock, whole: Cell::new(true) })
    }

    fn range(&self, rng: &mut Prng) -> (u64, u64) {
        let m = &self.mix;
        let units = m.blocks / m.unit;
        let count = rng.between(1, m.most.min(units));
        let first = rng.below(units - count + 1);
        (m.first + first * m.unit, count * m.unit)
    }

    fn ended(&self, under_way: &UnderWay<'_>, result: IoResult, durable: bool) {
        let Some((id, owner)) = under_way.write.take() else { return };
        if self.is_stale(under_way.start) {
            // It was settled when power went.
            return self.count(|f| f.errors += 1);
        }
        if result.is_err() {
            self.give_up(id, owner);
            if result == Err(IoError::Aborted) {
                self.history.borrow_mut().settled(id, self.time.now());
            }
            return self.count(|f| f.errors += 1);
        }
        let mut h = self.history.borrow_mut();
        let r = h.acked(id, self.time.now());
        if durable || self.acks_lie.get() {
            h.forced(id);
        }
        drop(h);
        self.check(r);
        self.count(|f| f.writes += 1);
    }

    async fn write(&self, io: &dyn Io, pool: &BufPool, rng: &mut Prng) {
        let range = self.range(rng);
        match self.lock((io, pool), range, true).await {
            Some(held) => self.write_range(io, pool, rng, &held).await,
            None => {
                let _ = self.write_once(io, pool, rng, range).await;
            }
        }
    }

    /// Writes until it is done.
    async fn write_range(&self, io: &dyn Io, pool: &BufPool, rng: &mut Prng, held: &Held<'_>) {
        held.whole.set(false);
        while self.write_once(io, pool, rng, held.lock.range).await.is_err() {
            if self.is_wrong() {
                return;
            }
            sleep(rng.below(10 * MILLIS)).await;
        }
        held.whole.set(true);
    }

    async fn write_once(
        &self,
        io: &dyn Io,
        pool: &BufPool,
        rng: &mut Prng,
        (first, count): Range,
    ) -> IoResult {
        let fua = rng.below(100) < u64::from(self.mix.fua);
        let buf = pool.alloc((count * BLOCK) as usize).await;
        let under_way = self.begin();
        let id = self.history.borrow_mut().begin_write(first, count, under_way.start);
        under_way.write.set(Some((id, io.owner())));
        let mut bytes = vec![0; buf.len()];
        self.history.borrow().fill(id, &mut bytes);
        buf.write_at(0, &bytes);
        let result = io.write(first * BLOCK, buf.clone(), fua).await;
        // The path must be done with it.
        buf.fill(0xdd);
        self.ended(&under_way, result, fua);
        drop(under_way);
        result
    }

    async fn zero(&self, io: &dyn Io, pool: &BufPool, rng: &mut Prng) {
        let (first, count) = self.range(rng);
        let held = self.lock((io, pool), (first, count), true).await;
        if let Some(h) = &held {
            h.whole.set(false);
        }
        let under_way = self.begin();
        let id = self.history.borrow_mut().begin_zero(first, count, under_way.start);
        under_way.write.set(Some((id, io.owner())));
        let result = io.zero(first * BLOCK, count * BLOCK).await;
        self.ended(&under_way, result, false);
        drop(under_way);
        if let Some(h) = &held {
            match result {
                Ok(()) => h.whole.set(true),
                Err(_) => self.write_range(io, pool, rng, h).await,
            }
        }
    }

    async fn flush(&self, io: &dyn Io) {
        let under_way = self.begin();
        let start = under_way.start;
        let result = io.flush().await;
        match result {
            Ok(()) => {
                self.history.borrow_mut().flushed(start);
                self.count(|f| f.flushes += 1);
            }
            Err(_) => self.count(|f| f.errors += 1),
        }
    }

    async fn read(&self, io: &dyn Io, pool: &BufPool, first: u64, count: u64) {
        let _held = self.lock((io, pool), (first, count), false).await;
        let buf = pool.alloc((count * BLOCK) as usize).await;
        // What is not overwritten by the read is not a block of anybody's.
        buf.fill(0xbb);
        let under_way = self.begin();
        let start = under_way.start;
        let result = io.read(first * BLOCK, buf.clone()).await;
        match result {
            Ok(()) if self.is_stale(start) => {}
            Ok(()) => {
                let now = self.time.now();
                let r = self.history.borrow_mut().read(first, &buf.to_vec(), start, now);
                self.check(r);
                self.count(|f| f.blocks_read += count);
            }
            Err(IoError::OutOfRange) => self.check(Err("a read inside the volume: out of range")),
            Err(_) => self.count(|f| f.errors += 1),
        }
    }
}

//! A volume as a store's is: thin, whole acknowledged writes last, and of others any blocks of 4 KiB do.
#![allow(dead_code, reason = "a module of several tests, each of which uses a part")]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_base::{IoError, IoResult, Nanos, Prng};
use weir_block::{Allocation, Geometry, IoFuture, Volume, check_range};
use weir_mem::Slice;
use weir_reactor::{LocalFuture, sleep};

pub(crate) const BLOCK: u64 = 4096;

#[derive(Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Trim(u64, u64),
}

impl Change {
    fn range(&self) -> (u64, u64) {
        match self {
            Change::Write(at, data) => (*at, at + data.len() as u64),
            Change::Trim(at, len) => (*at, at + len),
        }
    }
}

/// What lasts.
#[derive(Clone, Default)]
pub(crate) struct Blocks(pub(crate) BTreeMap<u64, Vec<u8>>);

impl Blocks {
    fn read(&self, at: u64, to: &mut [u8]) {
        for (i, byte) in to.chunks_mut(512).enumerate() {
            let at = at + i as u64 * 512;
            match self.0.get(&(at / BLOCK)) {
                Some(b) => byte.copy_from_slice(&b[(at % BLOCK) as usize..][..byte.len()]),
                None => byte.fill(0),
            }
        }
    }

    /// Does the part of a change that is in one block.
    fn apply_block(&mut self, c: &Change, block: u64) {
        let (start, end) = c.range();
        let (from, to) = (start.max(block * BLOCK), end.min((block + 1) * BLOCK));
        let part = (from - block * BLOCK) as usize..(to - block * BLOCK) as usize;
        match c {
            Change::Trim(..) if part.len() as u64 == BLOCK => {
                self.0.remove(&block);
            }
            Change::Trim(..) => {
                if let Some(b) = self.0.get_mut(&block) {
                    b[part].fill(0);
                }
            }
            Change::Write(_, data) => {
                let b = self.0.entry(block).or_insert_with(|| vec![0; BLOCK as usize]);
                b[part].copy_from_slice(&data[(from - start) as usize..(to - start) as usize]);
            }
        }
    }

    fn apply(&mut self, c: &Change) {
        let (start, end) = c.range();
        match c {
            Change::Trim(..) => {
                let inside: Vec<u64> =
                    self.0.range(start / BLOCK..end.div_ceil(BLOCK)).map(|(b, _)| *b).collect();
                inside.into_iter().for_each(|b| self.apply_block(c, b));
            }
            Change::Write(..) => {
                (start / BLOCK..end.div_ceil(BLOCK)).for_each(|b| self.apply_block(c, b))
            }
        }
    }
}

/// The volume.
pub(crate) struct Medium {
    pub(crate) blocks: RefCell<Blocks>,
    geometry: Geometry,
    under_way: RefCell<BTreeMap<u64, Change>>,
    reads: RefCell<BTreeMap<u64, (u64, u64)>>,
    next: Cell<u64>,
    prng: RefCell<Prng>,
    /// Operations take up to this long.
    pub(crate) slow: Cell<Nanos>,
    /// One write of so many fails, after some of its blocks were written; 0: none.
    pub(crate) fail: Cell<u64>,
    pub(crate) trims: Cell<u64>,
    /// What it was asked to do, and where it has anything.
    pub(crate) asked: Cell<u64>,
    /// It does not tell where nothing is, as stores often do not.
    pub(crate) vague: Cell<bool>,
    /// It takes so long to tell that nothing is somewhere, as of when it was asked.
    pub(crate) late: Cell<Nanos>,
    /// Blocks whose reading fails.
    pub(crate) bad: RefCell<Vec<u64>>,
}

impl Medium {
    pub(crate) fn new(len: u64, block_size: u32, seed: u64) -> Rc<Medium> {
        Medium::with(len, block_size, seed, Blocks::default())
    }

    pub(crate) fn with(len: u64, block_size: u32, seed: u64, blocks: Blocks) -> Rc<Medium> {
        Rc::new(Medium {
            blocks: RefCell::new(blocks),
            geometry: Geometry {
                len,
                block_size,
                granularity: 4096,
                thin: true,
                volatile_cache: false,
                read_only: false,
            },
            under_way: RefCell::default(),
            reads: RefCell::default(),
            next: Cell::new(0),
            prng: RefCell::new(Prng::new(seed)),
            slow: Cell::new(0),
            fail: Cell::new(0),
            trims: Cell::new(0),
            asked: Cell::new(0),
            vague: Cell::new(false),
            late: Cell::new(0),
            bad: RefCell::default(),
        })
    }

    /// What is there after power went: of what was under way some blocks are written.
    pub(crate) fn cut(&self) -> Blocks {
        let mut left = self.blocks.borrow().clone();
        let mut prng = self.prng.borrow_mut();
        for c in self.under_way.borrow().values() {
            let (start, end) = c.range();
            let torn = matches!(c, Change::Write(..)) && prng.chance(2, 3);
            match torn {
                true => {
                    let share = prng.between(1, 3);
                    for b in start / BLOCK..end.div_ceil(BLOCK) {
                        if prng.chance(share, 4) {
                            left.apply_block(c, b);
                        }
                    }
                }
                false if prng.chance(1, 2) => left.apply(c),
                false => {}
            }
        }
        left
    }

    /// The same with another length: what is cut off is gone.
    pub(crate) fn resized(&self, len: u64) -> Rc<Medium> {
        let mut blocks = self.blocks.borrow().clone();
        let end = self.geometry.len.max(len);
        blocks.apply(&Change::Trim(len, end - len));
        let new = Medium::with(len, self.geometry.block_size, len, blocks);
        new.slow.set(self.slow.get());
        new
    }

    pub(crate) fn mapped(&self) -> u64 {
        self.blocks.borrow().0.len() as u64
    }

    /// Reads under way.
    pub(crate) fn reading(&self) -> usize {
        self.reads.borrow().len()
    }

    /// The layer must not have two operations on the same bytes under way, one of which changes them.
    fn alone(&self, (from, to): (u64, u64), write: bool) {
        let meets = |r: (u64, u64)| r.0 < to && from < r.1;
        assert!(!self.under_way.borrow().values().any(|c| meets(c.range())), "{from}..{to}");
        assert!(!write || !self.reads.borrow().values().any(|r| meets(*r)), "{from}..{to}");
    }

    async fn wait(&self) {
        self.asked.set(self.asked.get() + 1);
        if self.slow.get() > 0 {
            let time = self.prng.borrow_mut().between(1, self.slow.get());
            sleep(time).await;
        }
    }

    fn number(&self) -> u64 {
        let n = self.next.get();
        self.next.set(n + 1);
        n
    }

    async fn change(&self, c: Change) -> IoResult {
        let (from, to) = c.range();
        check_range(&self.geometry, from, to - from)?;
        self.alone((from, to), true);
        let n = self.number();
        self.under_way.borrow_mut().insert(n, c.clone());
        self.wait().await;
        self.under_way.borrow_mut().remove(&n);
        let fail = self.fail.get();
        let mut prng = self.prng.borrow_mut();
        if fail > 0 && matches!(c, Change::Write(..)) && prng.chance(1, fail) {
            for b in (from / BLOCK..to.div_ceil(BLOCK)).take(prng.below(4) as usize) {
                self.blocks.borrow_mut().apply_block(&c, b);
            }
            return Err(IoError::NoSpace);
        }
        self.blocks.borrow_mut().apply(&c);
        Ok(())
    }
}

impl Volume for Medium {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        IoFuture::new(async move {
            let range = (at, at + buf.len() as u64);
            check_range(&self.geometry, at, buf.len() as u64)?;
            self.alone(range, false);
            let n = self.number();
            self.reads.borrow_mut().insert(n, range);
            self.wait().await;
            self.reads.borrow_mut().remove(&n);
            if self.bad.borrow().iter().any(|b| b * BLOCK < range.1 && range.0 < (b + 1) * BLOCK) {
                return Err(IoError::Medium);
            }
            let mut data = vec![0; buf.len()];
            self.blocks.borrow().read(at, &mut data);
            buf.write_at(0, &data);
            Ok(())
        })
    }

    fn write(&self, at: u64, buf: Slice, _fua: bool) -> IoFuture<'_> {
        let end = at + buf.len() as u64;
        self.bad.borrow_mut().retain(|b| b * BLOCK < at || (b + 1) * BLOCK > end);
        IoFuture::new(self.change(Change::Write(at, buf.to_vec())))
    }

    fn flush(&self) -> IoFuture<'_> {
        IoFuture::ready(Ok(()))
    }
    fn lost(&self) -> u64 {
        0
    }

    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        self.trims.set(self.trims.get() + 1);
        self.bad.borrow_mut().retain(|b| b * BLOCK < at || (b + 1) * BLOCK > at + len);
        IoFuture::new(self.change(Change::Trim(at, len)))
    }

    fn write_zeroes(&self, at: u64, len: u64, _unmap: bool) -> IoFuture<'_> {
        self.discard(at, len)
    }

    fn allocation(&self, at: u64, len: u64) -> Allocation {
        let first = at / BLOCK;
        if self.vague.get() {
            return Allocation { mapped: true, len: len.min((first + 1) * BLOCK - at) };
        }
        let blocks = self.blocks.borrow();
        let mapped = blocks.0.contains_key(&first);
        let end = match mapped {
            true => first + 1,
            false => blocks.0.range(first..).next().map_or(u64::MAX / BLOCK, |(b, _)| *b),
        };
        Allocation { mapped, len: len.min(end * BLOCK - at) }
    }

    fn find_allocation(&self, at: u64, len: u64) -> LocalFuture<'_, Allocation> {
        self.asked.set(self.asked.get() + 1);
        let found = self.allocation(at, len);
        Box::pin(async move {
            if self.late.get() > 0 {
                sleep(self.late.get()).await;
            }
            found
        })
    }

    fn allocated(&self) -> Option<u64> {
        Some(self.mapped() * BLOCK)
    }
}

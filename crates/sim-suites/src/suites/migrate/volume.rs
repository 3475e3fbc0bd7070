//! Thin volumes on simulated disks, and paths to them that judge errors.

use crate::load::Io;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{IoError, IoResult, MILLIS, Nanos};
use weir_block::{Allocation, Geometry, IoFuture, Volume, check_range};
use weir_disk::DiskOp;
use weir_mem::Slice;
use weir_reactor::{LocalFuture, now};
use weir_sim::SimDisk;

const BLOCK: usize = 512;

/// A volume whose empty blocks are those that are zero.
pub(super) struct Thin {
    pub(super) disk: Rc<SimDisk>,
    pub(super) len: u64,
}

impl Thin {
    async fn run(&self, op: DiskOp) -> IoResult {
        weir_disk::run(&*self.disk, op).await
    }

    fn is_empty(&self, at: u64) -> bool {
        let mut block = [0; BLOCK];
        self.disk.medium().peek(at, &mut block);
        block == [0; BLOCK]
    }
}

impl Volume for Thin {
    fn geometry(&self) -> Geometry {
        Geometry {
            len: self.len,
            block_size: BLOCK as u32,
            granularity: 4096,
            thin: true,
            volatile_cache: true,
            read_only: false,
        }
    }

    fn read(&self, offset: u64, buf: Slice) -> IoFuture<'_> {
        IoFuture::new(self.run(DiskOp::Read { offset, buf }))
    }

    fn write(&self, offset: u64, buf: Slice, fua: bool) -> IoFuture<'_> {
        IoFuture::new(self.run(DiskOp::Write { offset, buf, fua }))
    }

    fn flush(&self) -> IoFuture<'_> {
        IoFuture::new(self.run(DiskOp::Flush))
    }
    fn lost(&self) -> u64 {
        0
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<'_> {
        self.write_zeroes(offset, len, true)
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> IoFuture<'_> {
        match check_range(&self.geometry(), offset, len) {
            Ok(()) => IoFuture::new(self.run(DiskOp::WriteZeroes { offset, len, unmap })),
            Err(_) => IoFuture::ready(Err(IoError::OutOfRange)),
        }
    }

    fn find_allocation(&self, at: u64, len: u64) -> LocalFuture<'_, Allocation> {
        Box::pin(async move {
            let empty = self.is_empty(at);
            let mut n = BLOCK as u64;
            while n < len && self.is_empty(at + n) == empty {
                n += BLOCK as u64;
            }
            Allocation { mapped: !empty, len: n.min(len) }
        })
    }
}

/// What hosts are not to see, and did.
#[derive(Default)]
pub(super) struct Judge {
    /// Errors are to be expected now.
    pub(super) lenient: Cell<bool>,
    /// How long an I/O may take, in nanoseconds; 0: as long as it likes.
    pub(super) limit: Cell<Nanos>,
    pub(super) wrong: RefCell<Option<String>>,
    pub(super) excused: Cell<u64>,
}

/// A host's path.
pub(super) struct Path {
    pub(super) volume: Rc<dyn Volume>,
    pub(super) judge: Rc<Judge>,
}

impl Path {
    fn judged(&self, r: IoResult, what: &str, at: u64, began: Nanos) -> IoResult {
        let (took, limit) = (now() - began, self.judge.limit.get());
        if limit > 0 && took > limit {
            let text = format!("{what} at {at} took {} ms", took / MILLIS);
            self.judge.wrong.borrow_mut().get_or_insert(text);
        }
        match r {
            Err(_) if self.judge.lenient.get() => {
                self.judge.excused.set(self.judge.excused.get() + 1)
            }
            Err(e) => {
                let text = format!("{what} at {at} failed: {e}");
                self.judge.wrong.borrow_mut().get_or_insert(text);
            }
            Ok(()) => {}
        }
        r
    }
}

impl Io for Path {
    fn read(&self, at: u64, buf: Slice) -> LocalFuture<'_, IoResult> {
        Box::pin(async move {
            let began = now();
            self.judged(self.volume.read(at, buf).await, "a read", at, began)
        })
    }
    fn write(&self, at: u64, buf: Slice, fua: bool) -> LocalFuture<'_, IoResult> {
        Box::pin(async move {
            let began = now();
            self.judged(self.volume.write(at, buf, fua).await, "a write", at, began)
        })
    }
    fn flush(&self) -> LocalFuture<'_, IoResult> {
        Box::pin(async move {
            let began = now();
            self.judged(self.volume.flush().await, "a flush", 0, began)
        })
    }
    fn zero(&self, at: u64, len: u64) -> LocalFuture<'_, IoResult> {
        Box::pin(async move {
            let began = now();
            let done = match at / 512 % 2 {
                0 => self.volume.write_zeroes(at, len, true).await,
                _ => self.volume.discard(at, len).await,
            };
            self.judged(done, "a zeroing", at, began)
        })
    }
}

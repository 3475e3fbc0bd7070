//! A unit in memory that knows its own blocks: what is not written for it is seen at once.

use crate::srp::Fault;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{IoResult, Nanos, Prng};
use weir_block::{Geometry, IoFuture, Volume, check_range};
use weir_mem::Slice;
use weir_reactor::sleep;

pub(super) const BLOCK: usize = 512;
pub(super) const BLOCKS: usize = 256;

/// What block `block` of unit `unit` holds after write `number` of it.
pub(super) fn pattern(unit: u8, block: usize, number: u64) -> Vec<u8> {
    let mut b = vec![unit; BLOCK];
    b[..8].copy_from_slice(&(block as u64).to_le_bytes());
    b[8..16].copy_from_slice(&number.to_le_bytes());
    b
}

/// What outlives the target, and what does not outlive its machine's power.
pub(super) struct Medium {
    unit: u8,
    /// Number of the last write of each block: in the cache, and on the medium.
    cache: RefCell<Vec<u64>>,
    durable: RefCell<Vec<u64>>,
    /// Longest time of an I/O.
    pub(super) delay: Cell<Nanos>,
    fault: Fault,
}

impl Medium {
    pub(super) fn new(unit: u8, fault: &Fault) -> Rc<Medium> {
        Rc::new(Medium {
            unit,
            cache: RefCell::new(vec![0; BLOCKS]),
            durable: RefCell::new(vec![0; BLOCKS]),
            delay: Cell::new(0),
            fault: fault.clone(),
        })
    }

    /// Power goes, and the cache with it.
    pub(super) fn power_cut(&self) {
        self.cache.borrow_mut().clone_from(&self.durable.borrow());
    }

    /// Number of the last write of a block, durable or not.
    pub(super) fn cached(&self, block: usize) -> u64 {
        self.cache.borrow()[block]
    }

    /// Number of the last write of a block that is durable.
    pub(super) fn durable(&self, block: usize) -> u64 {
        self.durable.borrow()[block]
    }

    fn store(&self, at: u64, bytes: &[u8]) {
        let first = at as usize / BLOCK;
        for (i, b) in bytes.chunks(BLOCK).enumerate() {
            let number = b[8..16].iter().rev().fold(0, |n, x| n << 8 | u64::from(*x));
            if b != pattern(self.unit, first + i, number) {
                let (of, byte) = (b[BLOCK - 1], b[0]);
                let what = format!(
                    "block {} of unit {} was written with what is of unit {of}, block {byte}",
                    first + i,
                    self.unit
                );
                self.fault.set(what);
            }
            self.cache.borrow_mut()[first + i] = number;
        }
    }
}

/// The unit, as a target has it.
pub(super) struct Memory(pub(super) Rc<Medium>);

impl Memory {
    async fn wait(&self) {
        // Chance is the scheduler's.
        let t = Prng::new(weir_reactor::clock()).below(self.0.delay.get() + 1);
        sleep(t).await;
    }

    fn check(&self, at: u64, len: u64) -> IoResult {
        check_range(&self.geometry(), at, len)
    }
}

impl Volume for Memory {
    fn geometry(&self) -> Geometry {
        Geometry {
            len: (BLOCKS * BLOCK) as u64,
            block_size: BLOCK as u32,
            granularity: BLOCK as u32,
            thin: false,
            volatile_cache: true,
            read_only: false,
        }
    }

    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        IoFuture::new(async move {
            self.check(at, buf.len() as u64)?;
            self.wait().await;
            let first = at as usize / BLOCK;
            for i in 0..buf.len() / BLOCK {
                let number = self.0.cache.borrow()[first + i];
                buf.write_at(i * BLOCK, &pattern(self.0.unit, first + i, number));
            }
            Ok(())
        })
    }

    fn write(&self, at: u64, buf: Slice, fua: bool) -> IoFuture<'_> {
        IoFuture::new(async move {
            self.check(at, buf.len() as u64)?;
            self.wait().await;
            self.0.store(at, &buf.to_vec());
            if fua {
                self.flush().await?;
            }
            self.wait().await;
            Ok(())
        })
    }

    fn flush(&self) -> IoFuture<'_> {
        IoFuture::new(async move {
            let then = self.0.cache.borrow().clone();
            self.wait().await;
            for (d, n) in self.0.durable.borrow_mut().iter_mut().zip(then) {
                *d = n.max(*d);
            }
            Ok(())
        })
    }
    fn lost(&self) -> u64 {
        0
    }

    fn discard(&self, _at: u64, _len: u64) -> IoFuture<'_> {
        IoFuture::ready(Ok(()))
    }

    fn write_zeroes(&self, _at: u64, _len: u64, _unmap: bool) -> IoFuture<'_> {
        IoFuture::ready(Err(weir_base::IoError::Unsupported))
    }
}

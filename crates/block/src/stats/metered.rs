//! The layer that counts.

use super::{Counters, Op};
use crate::{Filter, IoFuture, Volume};
use std::rc::Rc;
use std::sync::Arc;
use weir_base::Nanos;
use weir_mem::Slice;
use weir_reactor::clock;

/// Counts what passes to a volume.
///
/// An I/O that the volume completes within the call costs a few additions and no look at the clock.
/// Direct memory access counts as such an I/O when it is given.
pub struct Metered {
    lower: Rc<dyn Volume>,
    counters: Arc<Counters>,
}

/// Keeps the number in flight right when an I/O is dropped half-way.
struct Flight<'a> {
    counters: &'a Counters,
    start: Nanos,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.counters.dropped();
    }
}

impl Metered {
    /// Counts what passes to `lower` in `counters`, of which this must be the only writer at a time.
    pub fn new(lower: Rc<dyn Volume>, counters: Arc<Counters>) -> Metered {
        Metered { lower, counters }
    }

    /// The counters.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    #[inline]
    fn track<'a>(&'a self, op: Op, bytes: u64, io: IoFuture<'a>) -> IoFuture<'a> {
        match io.result() {
            Some(r) => {
                self.counters.at_once(op, bytes, r);
                io
            }
            None => IoFuture::new(async move {
                self.counters.begin();
                let flight = Flight { counters: &self.counters, start: clock() };
                let r = io.await;
                let nanos = clock().saturating_sub(flight.start);
                std::mem::forget(flight);
                self.counters.done(op, bytes, r, nanos);
                r
            }),
        }
    }
}

impl Filter for Metered {
    fn lower(&self) -> &dyn Volume {
        &*self.lower
    }

    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        let bytes = buf.len() as u64;
        self.track(Op::Read, bytes, self.lower.read(at, buf))
    }

    fn write(&self, at: u64, buf: Slice, fua: bool) -> IoFuture<'_> {
        let bytes = buf.len() as u64;
        self.track(Op::Write, bytes, self.lower.write(at, buf, fua))
    }

    fn keeps_sums(&self) -> bool {
        self.lower.keeps_sums()
    }

    fn read_summed(&self, at: u64, buf: Slice, sums: Slice) -> IoFuture<'_> {
        let bytes = buf.len() as u64;
        self.track(Op::Read, bytes, self.lower.read_summed(at, buf, sums))
    }

    fn write_summed(&self, at: u64, buf: Slice, sums: Slice, fua: bool) -> IoFuture<'_> {
        let bytes = buf.len() as u64;
        self.track(Op::Write, bytes, self.lower.write_summed(at, buf, sums, fua))
    }

    fn flush(&self) -> IoFuture<'_> {
        self.track(Op::Flush, 0, self.lower.flush())
    }

    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        self.track(Op::Discard, len, self.lower.discard(at, len))
    }

    fn write_zeroes(&self, at: u64, len: u64, unmap: bool) -> IoFuture<'_> {
        self.track(Op::WriteZeroes, len, self.lower.write_zeroes(at, len, unmap))
    }

    fn direct(&self, at: u64, len: usize) -> Option<Slice> {
        // Looked at where it is, not taken out and put back.
        let given = self.lower.direct(at, len);
        if given.is_some() {
            self.counters.at_once(Op::Read, len as u64, Ok(()));
        }
        given
    }

    fn kept_sums(&self, at: u64, len: usize, f: &mut dyn FnMut(u32)) -> bool {
        self.lower.kept_sums(at, len, f)
    }

    fn write_now(&self, at: u64, data: &[u8], sums: &[[u8; 4]]) -> bool {
        let done = self.lower.write_now(at, data, sums);
        if done {
            self.counters.at_once(Op::Write, data.len() as u64, Ok(()));
        }
        done
    }

    fn direct_in_use(&self) -> Option<bool> {
        self.lower.direct_in_use()
    }
}

//! The border between a front end, where a panic ends a connection, and the volumes behind it, where it ends the program.

use std::rc::Rc;
use weir_base::IoResult;
use weir_block::{Allocation, Geometry, IoFuture, Volume};
use weir_mem::Slice;
use weir_reactor::{LocalFuture, vital};

/// A volume as front ends see it. What its methods begin goes on as an [`IoFuture`], which keeps to the same rule.
pub(crate) struct Vital(pub(crate) Rc<dyn Volume>);

impl Volume for Vital {
    #[inline]
    fn geometry(&self) -> Geometry {
        vital(|| self.0.geometry())
    }
    #[inline]
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        vital(|| self.0.read(at, buf))
    }
    #[inline]
    fn write(&self, at: u64, buf: Slice, fua: bool) -> IoFuture<'_> {
        vital(|| self.0.write(at, buf, fua))
    }
    #[inline]
    fn keeps_sums(&self) -> bool {
        vital(|| self.0.keeps_sums())
    }
    #[inline]
    fn read_summed(&self, at: u64, buf: Slice, sums: Slice) -> IoFuture<'_> {
        vital(|| self.0.read_summed(at, buf, sums))
    }
    #[inline]
    fn write_summed(&self, at: u64, buf: Slice, sums: Slice, fua: bool) -> IoFuture<'_> {
        vital(|| self.0.write_summed(at, buf, sums, fua))
    }
    fn flush(&self) -> IoFuture<'_> {
        vital(|| self.0.flush())
    }
    fn lost(&self) -> u64 {
        vital(|| self.0.lost())
    }
    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        vital(|| self.0.discard(at, len))
    }
    fn write_zeroes(&self, at: u64, len: u64, unmap: bool) -> IoFuture<'_> {
        vital(|| self.0.write_zeroes(at, len, unmap))
    }
    #[inline]
    fn direct(&self, at: u64, len: usize) -> Option<Slice> {
        vital(|| self.0.direct(at, len))
    }
    #[inline]
    fn kept_sums(&self, at: u64, len: usize, f: &mut dyn FnMut(u32)) -> bool {
        vital(|| self.0.kept_sums(at, len, f))
    }
    #[inline]
    fn write_now(&self, at: u64, data: &[u8], sums: &[[u8; 4]]) -> bool {
        vital(|| self.0.write_now(at, data, sums))
    }
    #[inline]
    fn direct_in_use(&self) -> Option<bool> {
        vital(|| self.0.direct_in_use())
    }
    fn allocation(&self, at: u64, len: u64) -> Allocation {
        vital(|| self.0.allocation(at, len))
    }
    fn find_allocation(&self, at: u64, len: u64) -> LocalFuture<'_, Allocation> {
        let mut found = vital(|| self.0.find_allocation(at, len));
        Box::pin(std::future::poll_fn(move |cx| vital(|| found.as_mut().poll(cx))))
    }
    fn allocated(&self) -> Option<u64> {
        vital(|| self.0.allocated())
    }
    fn resize(&self, len: u64) -> IoResult {
        vital(|| self.0.resize(len))
    }
}

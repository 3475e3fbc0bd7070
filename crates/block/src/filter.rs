//! Layers over one volume that leave most operations alone.

use crate::summed::{compare_sums, fill_after};
use crate::{Allocation, Geometry, IoFuture, Volume};
use weir_base::IoResult;
use weir_mem::Slice;
use weir_reactor::LocalFuture;

/// A [`Volume`] over one other volume: what a layer does not override goes down unchanged.
///
/// Direct memory access is the exception: it would pass the layer by, so it is offered only by a layer
/// that overrides [`direct`](Filter::direct) and [`direct_in_use`](Filter::direct_in_use).
pub trait Filter {
    /// The volume below.
    fn lower(&self) -> &dyn Volume;

    /// As [`Volume::geometry`].
    #[inline]
    fn geometry(&self) -> Geometry {
        self.lower().geometry()
    }

    /// As [`Volume::read`].
    #[inline]
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        self.lower().read(at, buf)
    }

    /// As [`Volume::write`].
    #[inline]
    fn write(&self, at: u64, buf: Slice, fua: bool) -> IoFuture<'_> {
        self.lower().write(at, buf, fua)
    }

    /// As [`Volume::keeps_sums`]; no, unless overridden together with the two below, which else end here, in
    /// [`read`](Filter::read) and [`write`](Filter::write), since they would pass the layer by.
    #[inline]
    fn keeps_sums(&self) -> bool {
        false
    }

    /// As [`Volume::read_summed`].
    fn read_summed(&self, at: u64, buf: Slice, sums: Slice) -> IoFuture<'_> {
        fill_after(self.read(at, buf.clone()), buf, sums)
    }

    /// As [`Volume::write_summed`].
    fn write_summed(&self, at: u64, buf: Slice, sums: Slice, fua: bool) -> IoFuture<'_> {
        match compare_sums(&buf, &sums) {
            Ok(()) => self.write(at, buf, fua),
            Err(e) => IoFuture::ready(Err(e)),
        }
    }

    /// As [`Volume::flush`].
    #[inline]
    fn flush(&self) -> IoFuture<'_> {
        self.lower().flush()
    }

    /// As [`Volume::lost`].
    fn lost(&self) -> u64 {
        self.lower().lost()
    }

    /// As [`Volume::discard`].
    #[inline]
    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        self.lower().discard(at, len)
    }

    /// As [`Volume::write_zeroes`].
    #[inline]
    fn write_zeroes(&self, at: u64, len: u64, unmap: bool) -> IoFuture<'_> {
        self.lower().write_zeroes(at, len, unmap)
    }

    /// As [`Volume::direct`]; none unless overridden.
    #[inline]
    fn direct(&self, _at: u64, _len: usize) -> Option<Slice> {
        None
    }

    /// As [`Volume::kept_sums`]; none unless overridden.
    #[inline]
    fn kept_sums(&self, _at: u64, _len: usize, _f: &mut dyn FnMut(u32)) -> bool {
        false
    }

    /// As [`Volume::write_now`]; not possible unless overridden.
    #[inline]
    fn write_now(&self, _at: u64, _data: &[u8], _sums: &[[u8; 4]]) -> bool {
        false
    }

    /// As [`Volume::direct_in_use`]; to be overridden together with [`direct`](Filter::direct).
    #[inline]
    fn direct_in_use(&self) -> Option<bool> {
        None
    }

    /// As [`Volume::allocation`].
    #[inline]
    fn allocation(&self, at: u64, len: u64) -> Allocation {
        self.lower().allocation(at, len)
    }

    /// As [`Volume::find_allocation`].
    fn find_allocation(&self, at: u64, len: u64) -> LocalFuture<'_, Allocation> {
        self.lower().find_allocation(at, len)
    }

    /// As [`Volume::allocated`].
    fn allocated(&self) -> Option<u64> {
        self.lower().allocated()
    }

    /// As [`Volume::resize`].
    ///
    /// # Errors
    /// Those of the volume below.
    fn resize(&self, len: u64) -> IoResult {
        self.lower().resize(len)
    }
}

impl<T: Filter> Volume for T {
    #[inline]
    fn geometry(&self) -> Geometry {
        Filter::geometry(self)
    }
    #[inline]
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        Filter::read(self, at, buf)
    }
    #[inline]
    fn write(&self, at: u64, buf: Slice, fua: bool) -> IoFuture<'_> {
        Filter::write(self, at, buf, fua)
    }
    #[inline]
    fn keeps_sums(&self) -> bool {
        Filter::keeps_sums(self)
    }
    #[inline]
    fn read_summed(&self, at: u64, buf: Slice, sums: Slice) -> IoFuture<'_> {
        Filter::read_summed(self, at, buf, sums)
    }
    #[inline]
    fn write_summed(&self, at: u64, buf: Slice, sums: Slice, fua: bool) -> IoFuture<'_> {
        Filter::write_summed(self, at, buf, sums, fua)
    }
    #[inline]
    fn flush(&self) -> IoFuture<'_> {
        Filter::flush(self)
    }
    fn lost(&self) -> u64 {
        Filter::lost(self)
    }
    #[inline]
    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        Filter::discard(self, at, len)
    }
    #[inline]
    fn write_zeroes(&self, at: u64, len: u64, unmap: bool) -> IoFuture<'_> {
        Filter::write_zeroes(self, at, len, unmap)
    }
    #[inline]
    fn direct(&self, at: u64, len: usize) -> Option<Slice> {
        Filter::direct(self, at, len)
    }
    #[inline]
    fn kept_sums(&self, at: u64, len: usize, f: &mut dyn FnMut(u32)) -> bool {
        Filter::kept_sums(self, at, len, f)
    }
    #[inline]
    fn write_now(&self, at: u64, data: &[u8], sums: &[[u8; 4]]) -> bool {
        Filter::write_now(self, at, data, sums)
    }
    #[inline]
    fn direct_in_use(&self) -> Option<bool> {
        Filter::direct_in_use(self)
    }
    #[inline]
    fn allocation(&self, at: u64, len: u64) -> Allocation {
        Filter::allocation(self, at, len)
    }
    fn find_allocation(&self, at: u64, len: u64) -> LocalFuture<'_, Allocation> {
        Filter::find_allocation(self, at, len)
    }
    fn allocated(&self) -> Option<u64> {
        Filter::allocated(self)
    }
    fn resize(&self, len: u64) -> IoResult {
        Filter::resize(self, len)
    }
}

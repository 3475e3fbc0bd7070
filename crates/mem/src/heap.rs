//! Small memory of its own, from the allocator: a mapping costs system calls and a page fault.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// What direct I/O wants memory to be aligned to, on any device.
const ALIGN: usize = 4096;
/// From here on the allocator would make a mapping, too.
pub(crate) const SMALL: usize = 64 << 10;

/// Zeroed memory that lives as long as this value, aligned to 4096 bytes.
pub(crate) struct Heap {
    base: NonNull<u8>,
    layout: Layout,
}

impl Heap {
    /// `len` bytes; none for more than [`SMALL`].
    pub(crate) fn new(len: usize) -> Option<Heap> {
        let len = len.max(1).next_multiple_of(ALIGN);
        if len > SMALL {
            return None;
        }
        let layout = Layout::from_size_align(len, ALIGN).ok()?;
        // SAFETY: the layout is not of size 0.
        let base = unsafe { alloc_zeroed(layout) };
        match NonNull::new(base) {
            Some(base) => Some(Heap { base, layout }),
            None => handle_alloc_error(layout),
        }
    }

    /// First byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: the allocation is ours, made with this layout, and every Slice into it holds a count on this value's owner.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

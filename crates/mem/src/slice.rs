//! Counted references to device memory.

use crate::heap::Heap;
use crate::pool::BufInner;
use std::alloc::{Layout, handle_alloc_error};
use std::any::Any;
use std::ptr::NonNull;
use std::rc::Rc;

/// Keeps memory alive that is not a pool buffer, e.g. a RAM volume.
pub type Backing = Rc<dyn Any>;

#[derive(Clone)]
enum Keep {
    Buf(Rc<BufInner>),
    /// Never looked at: it only keeps the memory.
    Other(#[allow(dead_code)] Backing),
}

/// A part of a buffer. Cloning counts a reference, it does not copy.
///
/// The bytes are *device memory*: wires and disks write to them while references exist. Access is by
/// copy ([`read_at`](Slice::read_at), [`write_at`](Slice::write_at), safe in the sense of DMA: a copy that
/// races with a device or another core sees some mix of old and new bytes, nothing else) or by
/// [`bytes`](Slice::bytes), whose caller knows that nobody writes.
#[derive(Clone)]
pub struct Slice {
    ptr: NonNull<u8>,
    len: u32,
    /// Never looked at: it only keeps the memory.
    #[allow(dead_code)]
    keep: Keep,
}

impl std::fmt::Debug for Slice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slice({:p}+{})", self.ptr, self.len)
    }
}

impl Slice {
    pub(crate) fn of_buf(buf: Rc<BufInner>, ptr: NonNull<u8>, len: u32) -> Slice {
        Slice { ptr, len, keep: Keep::Buf(buf) }
    }

    /// Refers to memory that `backing` keeps mapped, readable and writable.
    ///
    /// # Safety
    /// `ptr..ptr+len` must stay valid for reads and writes while `backing` or a clone of it lives, and
    /// nobody may hold a Rust reference to those bytes meanwhile.
    pub unsafe fn from_raw(ptr: NonNull<u8>, len: u32, backing: Backing) -> Slice {
        Slice { ptr, len, keep: Keep::Other(backing) }
    }

    /// A slice of its own memory, for tests, tools and control paths.
    /// Without memory the process ends, as with any allocation.
    ///
    /// # Panics
    /// When it would have 4 GiB or more.
    pub fn heap(len: usize) -> Slice {
        assert!(len <= u32::MAX as usize, "a slice is shorter than 4 GiB");
        let (ptr, keep): (_, Backing) = match Heap::new(len) {
            Some(heap) => (heap.base(), Rc::new(heap)),
            None => match crate::Arena::new(len) {
                Ok(arena) => (arena.base(), Rc::new(arena)),
                Err(_) => handle_alloc_error(Layout::new::<u8>()),
            },
        };
        Slice { ptr, len: len as u32, keep: Keep::Other(keep) }
    }

    /// As [`heap`](Slice::heap), filled from `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Slice {
        let s = Slice::heap(bytes.len());
        s.write_at(0, bytes);
        s
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// True for a slice of no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// First byte.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// First byte.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Tells the processor that the first `len` bytes will be read soon, so that whoever copies them does not wait
    /// for memory. Worth it for less than a KiB at unforeseeable places: what follows the processor foresees.
    #[inline]
    pub fn prefetch(&self, len: usize) {
        #[cfg(target_arch = "x86_64")]
        for at in (0..self.len().min(len)).step_by(64) {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            // SAFETY: within the slice; a prefetch reads nothing that could be seen.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.as_ptr().add(at).cast()) };
        }
    }

    /// True when nobody else has the memory: no other slice of it, nor whatever keeps one, such as a send queue. For
    /// memory that is not a pool's.
    pub fn is_sole(&self) -> bool {
        match &self.keep {
            // One count is the pool's own.
            Keep::Buf(b) => Rc::strong_count(b) == 2,
            Keep::Other(k) => Rc::strong_count(k) == 1,
        }
    }

    /// A part of this slice.
    ///
    /// # Panics
    /// When `at + len` is beyond the end.
    #[inline]
    pub fn sub(&self, at: usize, len: usize) -> Slice {
        let mut s = self.clone();
        s.narrow(at, len);
        s
    }

    /// Makes this slice refer to a part of what it referred to.
    ///
    /// # Panics
    /// When `at + len` is beyond the end.
    #[inline]
    pub fn narrow(&mut self, at: usize, len: usize) {
        self.check(at, len);
        // SAFETY: `at` is within the slice, checked above.
        self.ptr = unsafe { self.ptr.add(at) };
        self.len = len as u32;
    }

    #[inline]
    fn check(&self, at: usize, len: usize) {
        assert!(
            at.checked_add(len).is_some_and(|end| end <= self.len as usize),
            "{len} bytes at {at} are outside a slice of {}",
            self.len
        );
    }

    /// Copies `src` into the slice.
    ///
    /// # Panics
    /// When it does not fit.
    #[inline]
    pub fn write_at(&self, at: usize, src: &[u8]) {
        self.check(at, src.len());
        // SAFETY: the range is inside memory that the slice keeps alive; `src` cannot overlap it, since
        // no Rust reference to device memory may exist while it is written (see `bytes`).
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), self.as_ptr().add(at), src.len()) }
    }

    /// Copies out of the slice.
    ///
    /// # Panics
    /// When `dst` is longer than the rest of the slice.
    #[inline]
    pub fn read_at(&self, at: usize, dst: &mut [u8]) {
        self.check(at, dst.len());
        // SAFETY: as in write_at.
        unsafe { std::ptr::copy_nonoverlapping(self.as_ptr().add(at), dst.as_mut_ptr(), dst.len()) }
    }

    /// Copies `len` bytes from another slice; the two may overlap.
    ///
    /// # Panics
    /// When either range is outside its slice.
    #[inline]
    pub fn copy_from(&self, at: usize, src: &Slice, src_at: usize, len: usize) {
        self.check(at, len);
        src.check(src_at, len);
        // SAFETY: both ranges are inside memory kept alive by their slices; copy() allows overlap.
        unsafe { std::ptr::copy(src.as_ptr().add(src_at), self.as_ptr().add(at), len) }
    }

    /// As [`copy_from`](Slice::copy_from), to memory that is not read again soon.
    ///
    /// # Panics
    /// When either range is outside its slice.
    #[inline]
    pub fn stream_from(&self, at: usize, src: &Slice, src_at: usize, len: usize) {
        self.check(at, len);
        src.check(src_at, len);
        // SAFETY: as in copy_from.
        unsafe {
            crate::streaming::copy(src.as_ptr().add(src_at), self.as_ptr().add(at), len);
        }
    }

    /// Sets all bytes.
    pub fn fill(&self, value: u8) {
        // SAFETY: the whole slice is valid for writes.
        unsafe { std::ptr::write_bytes(self.as_ptr(), value, self.len()) }
    }

    /// A copy on the heap.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut v = vec![0; self.len()];
        self.read_at(0, &mut v);
        v
    }

    /// The bytes themselves.
    ///
    /// # Safety
    /// For the lifetime of the result nobody writes to them: no pending receive, read or placement of
    /// a device or wire, and no other core.
    #[inline]
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: valid and alive; absence of writers is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }
}

impl Drop for Keep {
    #[inline]
    fn drop(&mut self) {
        if let Keep::Buf(b) = self {
            // One count is the pool's own, one is this: the buffer is free again.
            if Rc::strong_count(b) == 2 {
                b.give_back();
            }
        }
    }
}

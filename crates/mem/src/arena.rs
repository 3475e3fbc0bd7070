//! One anonymous mapping, made once and registered once with ring and fabric.

use std::ptr::NonNull;

/// Huge page size asked for, in bytes.
const HUGE: usize = 2 << 20;

/// A zeroed, page-aligned mapping that lives as long as this value.
pub struct Arena {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory owned by this value; access through it is governed by Slice.
unsafe impl Send for Arena {}
// SAFETY: as above; Arena itself offers no access to the bytes.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `len` bytes (rounded up to 2 MiB from 2 MiB on, else to 4 KiB). Reserved huge pages are
    /// used when there are enough, else transparent ones are asked for.
    ///
    /// # Errors
    /// What the operating system said: out of memory, or over a limit.
    pub fn new(len: usize) -> std::io::Result<Arena> {
        let unit = if len >= HUGE { HUGE } else { 4096 };
        let len = len.max(1).div_ceil(unit) * unit;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let mut base = libc::MAP_FAILED;
        if unit == HUGE {
            base = map(len, flags | libc::MAP_HUGETLB);
        }
        if base == libc::MAP_FAILED {
            base = map(len, flags | libc::MAP_NORESERVE);
            if base == libc::MAP_FAILED {
                return Err(std::io::Error::last_os_error());
            }
            if unit == HUGE {
                // SAFETY: the range is the mapping just made. Advice only; failure changes nothing.
                unsafe { libc::madvise(base, len, libc::MADV_HUGEPAGE) };
            }
        }
        let base = NonNull::new(base.cast()).ok_or_else(std::io::Error::last_os_error)?;
        Ok(Arena { base, len })
    }

    /// First byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The bytes, for one who has the arena alone.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is `len` initialised bytes. Slices hold a count on the arena's owner, so that
        // whoever has it exclusively has the bytes so as well.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: an arena has at least one page.
    pub fn is_empty(&self) -> bool {
        false
    }
}

fn map(len: usize, flags: i32) -> *mut libc::c_void {
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches nothing of ours.
    unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and every Slice into it holds a count on the Arena's owner.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

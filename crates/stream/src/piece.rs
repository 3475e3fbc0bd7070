//! Memory to send from and to receive into. Both are laid out as POSIX's `iovec` is on Linux.

/// A piece of memory to send from.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Piece {
    at: *const u8,
    len: usize,
}

impl Piece {
    /// `len` bytes from `at` on.
    ///
    /// # Safety
    /// They must be valid for reads for as long as the piece is given to anything.
    #[inline]
    pub unsafe fn new(at: *const u8, len: usize) -> Piece {
        Piece { at, len }
    }

    /// Bytes in it.
    #[expect(clippy::len_without_is_empty, reason = "an empty piece is as good as any")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds its first `n` bytes to `to`, or all if it has less.
    pub fn append_to(&self, n: usize, to: &mut impl Extend<u8>) {
        // SAFETY: valid for reads, as whoever made it promised; not longer than it is.
        to.extend((0..n.min(self.len)).map(|i| unsafe { self.at.add(i).read() }));
    }
}

/// Room to receive into.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Room {
    at: *mut u8,
    len: usize,
}

impl Room {
    /// `len` bytes from `at` on.
    ///
    /// # Safety
    /// They must be valid for writes for as long as the room is given to anything, and no Rust reference to them may be
    /// used meanwhile.
    #[inline]
    pub unsafe fn new(at: *mut u8, len: usize) -> Room {
        Room { at, len }
    }

    /// Bytes that it has room for.
    #[expect(clippy::len_without_is_empty, reason = "a room of nothing is as good as any")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Puts what `bytes` gives into it, until one of them ends.
    pub fn fill(&self, bytes: &mut impl Iterator<Item = u8>) {
        for (i, b) in bytes.take(self.len).enumerate() {
            // SAFETY: valid for writes, as whoever made it promised; within its length.
            unsafe { self.at.add(i).write(b) };
        }
    }
}

//! The parts of an I/O that are in one chunk each.

/// A part of an I/O that is in one chunk.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) chunk: u64,
    /// Where it begins in the chunk, and how long it is.
    pub(crate) from: u64,
    pub(crate) len: u64,
    /// Where it begins in the I/O.
    pub(crate) at: u64,
}

impl Part {
    /// Part `i` of an I/O on `at..at + len`, in chunks of 2^`shift` bytes.
    pub(crate) fn of(at: u64, len: u64, i: usize, shift: u8) -> Part {
        let first = at >> shift;
        let chunk = first + i as u64;
        let begin = at.max(chunk << shift);
        let end = (at + len).min((chunk + 1) << shift);
        Part { chunk, from: begin - (chunk << shift), len: end - begin, at: begin - at }
    }
}

/// How many there are.
pub(crate) fn parts(at: u64, len: u64, shift: u8) -> usize {
    match len {
        0 => 0,
        _ => (((at + len - 1) >> shift) - (at >> shift) + 1) as usize,
    }
}

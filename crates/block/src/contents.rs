//! What is in a buffer: looked at where it lies.

use weir_codec::crc64;
use weir_mem::Slice;

/// CRC-64 of what is in a buffer.
pub fn hash_of(buf: &Slice) -> u64 {
    // SAFETY: the buffer of an I/O belongs to it until completion; nobody writes to it now.
    crc64(unsafe { buf.bytes() })
}

/// Whether a buffer is all zeros.
pub fn is_zero(buf: &Slice) -> bool {
    // SAFETY: as above.
    let (words, rest) = unsafe { buf.bytes() }.as_chunks::<64>();
    // The first difference is mostly in the first line.
    words.iter().all(|w| w.iter().fold(0, |a, b| a | b) == 0) && rest.iter().all(|b| *b == 0)
}

/// Whether two buffers have the same contents.
pub fn is_same(a: &Slice, b: &Slice) -> bool {
    // SAFETY: as above.
    unsafe { a.bytes() == b.bytes() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_told_apart() {
        for len in [0, 1, 63, 64, 65, 4096, 4100] {
            let (a, b) = (Slice::copy_of(&vec![0; len]), Slice::copy_of(&vec![0; len]));
            assert!(is_zero(&a) && is_same(&a, &b) && hash_of(&a) == hash_of(&b));
            for at in [0, len / 2, len.saturating_sub(1)].into_iter().filter(|at| *at < len) {
                b.fill(0);
                b.write_at(at, &[4]);
                assert!(!is_zero(&b) && !is_same(&a, &b) && hash_of(&a) != hash_of(&b));
            }
        }
        assert!(!is_same(&Slice::heap(4), &Slice::heap(5)));
    }
}

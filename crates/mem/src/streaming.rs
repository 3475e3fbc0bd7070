//! Copies to memory that is not read again soon.
//!
//! A plain store to a line that is in no cache reads it first and pushes another out. Bulk writes to a volume in
//! memory are better off without both: stores that go around the caches (Intel SDM volume 1, 10.4.6.2).

/// Bytes from which going around the caches pays; less is likely to be wanted again.
const LEAST: usize = 32 << 10;

/// Copies `len` bytes; the two ranges may overlap. When it returns, other cores see the bytes as after any
/// other copy.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes, and neither is borrowed mutably by Rust code.
#[inline]
pub unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
    let apart = (src as usize).abs_diff(dst as usize) >= len;
    if len < LEAST || !apart || !cfg!(target_arch = "x86_64") {
        // SAFETY: as promised by the caller.
        return unsafe { std::ptr::copy(src, dst, len) };
    }
    // SAFETY: as promised by the caller; the ranges do not overlap.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        around_caches(src, dst, len)
    };
}

#[cfg(target_arch = "x86_64")]
unsafe fn around_caches(src: *const u8, dst: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    const PART: usize = size_of::<__m128i>();
    let head = dst.align_offset(LINE).min(len);
    let whole = (len - head) / LINE * LINE;
    let tail = head + whole;
    // SAFETY: all offsets are below `len`, where both are valid; streamed destinations are aligned to a line.
    // SSE2 is part of the architecture. The fence orders the streamed stores before all later ones.
    unsafe {
        std::ptr::copy_nonoverlapping(src, dst, head);
        let mut at = head;
        while at < tail {
            let line: [__m128i; LINE / PART] =
                std::array::from_fn(|i| _mm_loadu_si128(src.add(at + i * PART).cast()));
            for (i, part) in line.into_iter().enumerate() {
                _mm_stream_si128(dst.add(at + i * PART).cast(), part);
            }
            at += LINE;
        }
        _mm_sfence();
        std::ptr::copy_nonoverlapping(src.add(tail), dst.add(tail), len - tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alignment_and_length_arrives_and_nothing_else_is_touched() {
        let src: Vec<u8> = (0..LEAST + 300).map(|i| (i * 7 + i / 251) as u8).collect();
        for from in [0, 1, 15, 63] {
            for to in [0, 1, 17, 63, 64] {
                for len in [0, 1, 4096, LEAST - 1, LEAST, LEAST + 1, LEAST + 63, LEAST + 130] {
                    let mut dst = vec![0xee; LEAST + 300];
                    // SAFETY: both vectors are longer than offset and length.
                    unsafe { copy(src.as_ptr().add(from), dst.as_mut_ptr().add(to), len) };
                    assert!(dst[to..to + len] == src[from..from + len], "{from} {to} {len}");
                    assert!(dst[..to].iter().chain(&dst[to + len..]).all(|b| *b == 0xee));
                }
            }
        }
    }

    #[test]
    fn ranges_that_overlap_are_moved() {
        for (from, to) in [(0, 100), (100, 0)] {
            let mut all: Vec<u8> = (0..LEAST + 200).map(|i| (i % 253) as u8).collect();
            let expected = all[from..from + LEAST].to_vec();
            // SAFETY: inside the vector.
            unsafe { copy(all.as_ptr().add(from), all.as_mut_ptr().add(to), LEAST) };
            assert!(all[to..to + LEAST] == expected[..]);
        }
    }
}

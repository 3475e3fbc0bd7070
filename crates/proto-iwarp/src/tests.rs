//! Whole-crate tests: vectors, pairs of ends, corruption.

mod faults;
mod pair;
mod vectors;

/// Bytes from hex digits; spaces do not count.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks(2).map(|d| (d[0] << 4 | d[1]) as u8).collect()
}

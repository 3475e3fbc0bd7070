//! Tables in allocated space: bytes cut into pages, with pages of pointers above them.

use super::page::{FANOUT, PAYLOAD};

/// The table of datasets.
pub const DATASETS: u64 = 1;
/// The table of slabs and replaced blocks.
pub const SPACE: u64 = 2;

/// Pages of each level of a table of `len` bytes, from the parts upwards; the last level is one page.
/// Empty for an empty table.
pub fn levels(len: u64) -> Vec<u64> {
    let mut out = Vec::new();
    let mut n = len.div_ceil(PAYLOAD as u64);
    while n > 0 {
        out.push(n);
        if n == 1 {
            break;
        }
        n = n.div_ceil(FANOUT as u64);
    }
    out
}

/// Pages in all.
pub fn pages(len: u64) -> u64 {
    levels(len).iter().sum()
}

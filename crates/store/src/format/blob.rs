//! Tables in allocated space: bytes cut into pages, with pages of pointers above them.

use super::page::{FANOUT, Header, PAYLOAD};
use super::{Block, FormatError, Result};

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

/// Sees to it that a verified block is page `index` of a level of a table. Each page of a table has a place of its own:
/// whoever follows pointers to one over and over finds it in one of them only.
///
/// # Errors
/// It is another page.
pub fn check_page(b: &Block, table: u64, level: u8, index: u64) -> Result<()> {
    let h = Header::get(b)?;
    match (h.owner, h.level, h.index) == (table, level, index) {
        true => Ok(()),
        false => Err(FormatError::Identity("place in a table")),
    }
}

/// Sees to it that a level of a table of `len` bytes has as many pages as it must have.
///
/// # Errors
/// It has more or fewer.
pub fn check_level(len: u64, level: u8, pages: usize) -> Result<()> {
    let want = levels(len).get(usize::from(level)).copied();
    super::ensure(want == Some(pages as u64), "number of pages of a table")
}

/// Pages in all.
pub fn pages(len: u64) -> u64 {
    levels(len).iter().sum()
}

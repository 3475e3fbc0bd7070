//! Dead lists: chains of pages, newest first, of blocks whose last reference is in a snapshot.

use super::le::*;
use super::page::{self, HEADER, Header, NodePtr, PAYLOAD, PTR, PageKind};
use super::tree::{FIRST_VBN, pack, unpack};
use super::{Block, Result, ensure};

/// Blocks on one page.
pub const PER_PAGE: usize = (PAYLOAD - PTR) / 8;
const LIST: usize = HEADER + PTR;

/// Writes a page; returns the block and its checksum. The header's `count` is set here.
pub fn encode(header: &Header, older: NodePtr, blocks: &[(u64, u32)]) -> (Box<Block>, u64) {
    let mut b = super::zeroed();
    older.put(&mut b[HEADER..LIST]);
    for (i, (vbn, birth)) in blocks.iter().take(PER_PAGE).enumerate() {
        put64(&mut b[..], LIST + 8 * i, pack(*vbn, *birth));
    }
    let header = Header { count: blocks.len().min(PER_PAGE) as u16, ..*header };
    let crc = page::seal(&mut b, &header);
    (b, crc)
}

/// Reads a verified page: the page before it, and the blocks with their births.
///
/// # Errors
/// A field is out of range.
pub fn decode(b: &Block) -> Result<(NodePtr, Vec<(u64, u32)>)> {
    let h = Header::get(b)?;
    ensure(h.kind == PageKind::Dead, "kind of page")?;
    let n = usize::from(h.count);
    ensure(n <= PER_PAGE, "length of a dead list")?;
    let list: Vec<(u64, u32)> = (0..n).map(|i| unpack(get64(b, LIST + 8 * i))).collect();
    ensure(list.iter().all(|(v, _)| *v >= FIRST_VBN), "block on a dead list")?;
    Ok((NodePtr::get(&b[HEADER..LIST])?, list))
}

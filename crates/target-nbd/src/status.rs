//! Block status: where there is space behind a range (NBD protocol, "Metadata querying", `base:allocation`).

use weir_block::Volume;
use weir_mem::Slice;
use weir_proto_nbd::structured::{extent, state};

/// Extents of one reply, at most. Clients ask again for what is behind them.
const EXTENTS: usize = 256;
/// Bytes of an extent.
const EXTENT: usize = 8;
/// How often a volume is asked for one reply, at most: it may know of little at once.
const LOOKS: usize = 4096;

/// Memory for the extents of one reply.
pub(crate) fn memory() -> Slice {
    Slice::heap(EXTENTS * EXTENT)
}

/// Puts the extents of a range of `volume` into `into`, with `one` the first only. Gives how many bytes these are.
pub(crate) async fn extents(
    volume: &dyn Volume,
    (at, len): (u64, u64),
    one: bool,
    into: &Slice,
) -> usize {
    let block = u64::from(volume.geometry().block_size);
    let most = if one { 1 } else { EXTENTS.min(into.len() / EXTENT) };
    let (mut next, end) = (at, at + len);
    let mut all: Vec<(u64, bool)> = Vec::new();
    for _ in 0..LOOKS {
        if next >= end {
            break;
        }
        let a = volume.find_allocation(next, end - next).await;
        let n = a.len.max(block).min(end - next);
        let count = all.len();
        match all.last_mut() {
            Some(last) if last.1 == a.mapped => last.0 += n,
            _ if count == most => break,
            _ => all.push((n, a.mapped)),
        }
        next += n;
    }
    for (i, (len, mapped)) in all.iter().enumerate() {
        let state = if *mapped { 0 } else { state::HOLE | state::ZERO };
        into.write_at(i * EXTENT, &extent(u32::try_from(*len).unwrap_or(u32::MAX), state));
    }
    all.len() * EXTENT
}

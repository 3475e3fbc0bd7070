//! Block status: where there is space behind a range (NBD protocol, "Metadata querying", `base:allocation`).

use weir_base::{Nanos, SECONDS};
use weir_block::Volume;
use weir_mem::Slice;
use weir_proto_nbd::structured::{extent, state};
use weir_reactor::{now, run_async};

/// Extents of one reply, at most. Clients ask again for what is behind them.
const EXTENTS: usize = 256;
/// Bytes of an extent.
const EXTENT: usize = 8;
/// Answers of a volume that go on with the extent before, at most; and for how long a reply is looked for. The volume may know of little
/// at once, and others wait.
const STEPS: usize = 16;
const LONG: Nanos = SECONDS;

/// Memory for the extents of one reply.
pub(crate) fn memory() -> Slice {
    Slice::heap(EXTENTS * EXTENT)
}

/// Puts the extents of a range of `volume` into `into`, with `one` the first only. Gives how many bytes these are. It ends early when
/// it `is_over`.
pub(crate) async fn extents(
    volume: &dyn Volume,
    (at, len): (u64, u64),
    one: bool,
    into: &Slice,
    is_over: impl Fn() -> bool,
) -> usize {
    let block = u64::from(volume.geometry().block_size);
    let most = if one { 1 } else { EXTENTS.min(into.len() / EXTENT) };
    let (mut next, end, until) = (at, at + len, now().saturating_add(LONG));
    let mut all: Vec<(u64, bool)> = Vec::new();
    let mut joined = 0;
    while next < end && joined < STEPS {
        if !all.is_empty() {
            if now() >= until || is_over() {
                break;
            }
            run_async().await;
        }
        let a = volume.find_allocation(next, end - next).await.in_blocks(block);
        let n = a.len.min(end - next);
        let count = all.len();
        match all.last_mut() {
            Some(last) if last.1 == a.mapped => (last.0, joined) = (last.0 + n, joined + 1),
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

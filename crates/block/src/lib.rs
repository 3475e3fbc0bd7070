//! The volume contract and the device graph: what every leaf, layer and front end agrees on.
//!
//! A [`Volume`] is one reactor's handle to a block device: several reactors have each their own handle
//! to the same data. A volume does not know who is asking; whoever asks does not know what is below.
//!
//! Layers (S2: Violin) are volumes made of volumes. They initiate, forward, complete and fail I/O:
//!
//! | S2 | here |
//! |---|---|
//! | forward | return the lower volume's future |
//! | initiate (fan-out) | [`join_parts`] over lower volumes, or an `async` block that makes I/O of its own |
//! | complete | [`IoFuture::ready`] |
//! | terminate | [`IoFuture::ready`] of an error, or an error out of the `async` block |
//!
//! The state of an [`IoFuture`] lives in a recycled slot, not on the heap.
//!
//! A [`GraphSpec`] describes a volume as a directed acyclic graph of layers, [`Graph`] is its instance
//! on one reactor, a [`Junction`] is an edge at which the graph can be changed under I/O. Kinds of
//! layers are listed in a [`Registry`]; `docs/layers.md` shows how one is written.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod contents;
mod filter;
mod future;
mod graph;
mod join;
mod junction;
mod stats;
mod summed;
mod volume;

pub use contents::{hash_of, is_same, is_zero};
pub use filter::Filter;
pub use future::IoFuture;
pub use graph::{
    Arity, BuildContext, DiskOpener, DiskSpec, Edit, Graph, GraphError, GraphErrorKind, GraphSpec,
    HOSTS, IfAbsent, JUNCTION, LayerKind, MAX_DEPTH, MAX_NODES, Metering, Node, NodeSpec, Param,
    ParamKind, Registry, Rehearsal, Shared, VERSION, Value,
};
pub use join::{WINDOW, join_parts};
pub use junction::{Junction, Quiesced, SwapError};
pub use stats::{
    Counters, Histogram, Metered, Meters, Op, OpFigures, Rate, Rates, Snapshot, Watch,
};
pub use summed::{SUMMED, compare_sums, fill_sums};
pub use volume::{Allocation, Geometry, Volume, check_len, check_range, make_durable};

//! The volume contract: what every leaf, layer and front end agrees on.
//!
//! A [`Volume`] is one reactor's handle to a block device: several reactors have each their own handle
//! to the same data. A volume does not know who is asking; whoever asks does not know what is below.
//!
//! Layers (S2: Violin) are volumes made of volumes. They initiate, forward, complete and fail I/O: a
//! method that forwards returns the lower volume's future, one that does more returns
//! [`IoFuture::new`] of an `async` block, whose state lives in a recycled slot, not on the heap.

mod future;
mod volume;

pub use future::IoFuture;
pub use volume::{Allocation, Direct, Geometry, Volume, check_range};

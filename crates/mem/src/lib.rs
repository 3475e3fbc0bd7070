//! Memory that devices and wires move data into and out of.
//!
//! An [`Arena`] is one mapping made at start; a [`BufPool`] cuts it into 4 KiB-aligned buffers of a few
//! sizes and lends them out, to hosts by [shares](Shares), to a command by way of its [`Purse`]; a [`Slice`] is a counted reference to a part of a buffer (or of other
//! long-lived memory), so that a block received from the wire is the same memory that goes to disk
//! and to the partner.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod arena;
mod heap;
pub mod planted;
mod pool;
mod purse;
mod shares;
mod slice;
pub mod streaming;

pub use arena::Arena;
pub use pool::{BufPool, Census, PoolConfig, Share};
pub use purse::{Lent, Purse};
pub use shares::{Account, Shares};
pub use slice::{Backing, Slice};

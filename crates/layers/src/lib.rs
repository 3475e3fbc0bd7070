//! Leaves and layers: what volumes are made of.
//!
//! One file per layer, one line per layer in [`registry`]. `docs/layers.md` shows how one is written.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

pub mod compress;
mod concat;
pub mod dedup;
mod delay;
mod disk;
pub mod encrypt;
mod fault;
mod linear;
mod lock;
pub mod migrate;
mod null;
mod parts;
mod pieces;
pub mod planted;
mod ram;
pub mod remote;
mod select;
mod stats;
mod steady;
mod stripe;
mod sum;
mod to_end;

pub use fault::{FAULT_ERRORS, FaultSwitch};
pub use ram::Region;

use weir_block::Registry;

/// Every kind of layer that a graph may use.
pub fn registry() -> Registry {
    Registry::new()
        .with(&concat::Kind)
        .with(&delay::Kind)
        .with(&disk::Kind)
        .with(&fault::Kind)
        .with(&linear::Kind)
        .with(&null::Kind)
        .with(&ram::Kind)
        .with(&stats::Kind)
        .with(&steady::Kind)
        .with(&stripe::Kind)
}

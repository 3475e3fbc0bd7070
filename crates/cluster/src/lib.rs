//! What the nodes of a cluster agree on.
//!
//! | module | what it holds |
//! |---|---|
//! | [`registers`] | the replicated registers of pools: who owns one, changed by compare-and-set |
//! | [`registers::raft`] | the engine that is built in: openraft, with its log and state in one redb file |
//! | [`registers::etcd`] | registers in an etcd cluster that the site has already |
//! | [`registers::worst`] | the worst register allowed, without I/O and by a seed, for simulations |
//! | [`registers::history`] | whether what clients saw can have been one register |
//!
//! No daemon uses any of it yet. The program `weir-registers` runs one voter, for the proof only
//! (`cargo xtask registers`).

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]
#![forbid(unsafe_code)]

pub mod planted;
pub mod registers;

pub use registers::{Changed, ReadError, Registers};

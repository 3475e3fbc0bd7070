//! Two nodes that share a pool, as a library without I/O and without a clock.
//!
//! | module | what it holds |
//! |---|---|
//! | [`ids`] | numbers of nodes, sets of them, lives, owner epochs, versions |
//! | [`register`] | the register of a pool: who owns it, and which nodes have all of it |
//! | [`message`] | beats of the owner, and the grants that answer them |
//! | [`gate`] | the gate of a device that is exported to the partner: which commands may run |
//! | [`pair`] | the pair machine: what one node does about one pool |
//!
//! The model of `tests/model` runs these very structs, [`Pair`] and [`Gate`]. A daemon and the simulator are to run them, too; none
//! does yet.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]
#![forbid(unsafe_code)]

pub mod fuzzing;
pub mod gate;
pub mod ids;
pub mod message;
pub mod pair;
pub mod planted;
pub mod register;
#[cfg(test)]
mod tests;

pub use gate::{Gate, Login};
pub use ids::{Epoch, Life, Node, Nodes, Session, Version};
pub use message::Message;
pub use pair::{Action, Input, Outcome, Pair};
pub use register::{Register, Writer};

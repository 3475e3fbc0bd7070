//! BRP, the block RDMA protocol (docs/brp.md), as a library without I/O and without a clock: bytes in,
//! values out, and back.
//!
//! | module | what it holds |
//! |---|---|
//! | [`login`] | login request, response and reject: private data of the connection |
//! | [`keyed`] | logins of hosts that have a secret |
//! | [`message`] | the header that every message begins with, and its checksum |
//! | [`command`] | messages of commands: one bio each, many in one message (jumbo), one descriptor list |
//! | [`completion`] | messages of completions |
//! | [`control`] | aborts, pings, events, goodbye |
//! | [`volume`] | what GEOMETRY and LIST tell of a volume |
//! | [`sums`] | which bytes each CRC32C is taken over |
//! | [`slot`] | exactly once: what a target remembers of each command slot |
//!
//! Fields are little-endian and naturally aligned. Reserved bytes are sent as 0 and ignored on receipt.
//! Every decoder is total: any bytes give a value or an error.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]
#![forbid(unsafe_code)]

pub mod command;
pub mod completion;
pub mod control;
pub mod fuzzing;
pub mod keyed;
pub mod login;
pub mod message;
pub mod slot;
pub mod sums;
#[cfg(test)]
mod tests;
pub mod types;
pub mod volume;

pub use command::{Command, Commands, Descriptor, Item};
pub use completion::{Completion, Completions};
pub use login::{Features, LoginReject, LoginRequest, LoginResponse, RejectReason};
pub use message::{Header, Kind, MessageError};
pub use types::{Op, PortId, Status};
pub use volume::VolumeInfo;

/// The TCP port that BRP targets listen on unless told otherwise: the one behind SRP's default of 5555, so
/// that one rule of a firewall covers both.
pub const DEFAULT_PORT: u16 = 5556;

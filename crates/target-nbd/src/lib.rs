//! NBD target ports (NBD protocol, fixed newstyle): each volume that a host sees is an export of its name.
//!
//! | | |
//! |---|---|
//! | `target` | a port as a whole, as the node sees it |
//! | `port` | its part on one reactor; who connects |
//! | `nexuses` | hosts, by their addresses: NBD has no other names |
//! | `greet` | the handshake |
//! | `conn` | a connection in service: requests in, replies out |
//! | `former` | what a client that is gone has left, and how others come to know |
//! | `execute` | one request against its volume |
//! | `status` | where there is space behind a range |
//!
//! Whoever has the same address is one host, whose connections are one I_T nexus. What units ask of front ends (fences, parting,
//! losses) is theirs as with any other: see docs/adding-a-door.md.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod conn;
mod execute;
mod former;
mod greet;
mod nexuses;
pub mod planted;
mod port;
mod status;
mod target;

pub use target::open;

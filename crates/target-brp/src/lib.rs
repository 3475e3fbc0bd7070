//! The BRP target (S1; docs/brp.md).
//!
//! | part | here |
//! |---|---|
//! | logins, sessions, which reactor serves which channel | `target`, `sessions` |
//! | channels without a connection, and how many there are | `remembered` |
//! | logins of hosts that have a secret | `keyed` |
//! | a reactor's pools, receive queue and requests | `port` |
//! | a channel: slots, credits, its present connection | `channel` |
//! | messages to the target: parsing, and commands that end at once | `receive` |
//! | commands that wait for a device or for the wire | `request` |
//! | completions: gathered in a turn, sent in as few messages as the session allows | `reply` |
//!
//! No step is serial for a session (S1): channels share nothing but a table that only logins look at. On a
//! channel, each command of a message (jumbo or not) is parsed, moved, run and answered for itself. A
//! command whose data is inline and whose volume is memory ends while its message is being read; any other
//! takes one of the pooled requests. Nothing is allocated per command.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod aside;
mod channel;
mod config;
mod frontend;
mod greetings;
mod keyed;
pub mod planted;
mod port;
mod receive;
mod remembered;
mod reply;
mod request;
mod sessions;
mod target;
mod tick;

pub use config::TargetConfig;
pub use frontend::open;
pub use port::{Port, PortCensus};
pub use target::{ChannelInfo, SessionInfo, Target};

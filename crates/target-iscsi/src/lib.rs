//! iSCSI target ports (RFC 7143): each volume that a host sees is a logical unit of one target.
//!
//! | | |
//! |---|---|
//! | `target` | a port as a whole, as the node sees it |
//! | `port` | its part on one reactor; who connects |
//! | `greet` | the login; discovery sessions |
//! | `sessions` | who is logged in; the end of sessions that a login replaces |
//! | `text` | text requests: SendTargets |
//! | `conn` | a session in service, which has one connection |
//! | `receive` | its bytes: PDUs in |
//! | `arrive` | what each kind of PDU does when it is whole |
//! | `order` | commands in their order; places for them |
//! | `send` | PDUs out |
//! | `task` | one command: its data that come |
//! | `command` | one command against its unit: data and status |
//! | `manage` | task management |
//!
//! Error recovery level 0: whatever breaks a rule of the stream ends the session. What units ask of front ends is in
//! docs/adding-a-door.md.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod arrive;
mod command;
mod conn;
mod greet;
mod manage;
mod order;
pub mod planted;
mod port;
mod receive;
mod send;
mod sessions;
mod target;
mod task;
mod text;

pub use target::{NAMES, open};

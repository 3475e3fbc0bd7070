//! The SRP target (S0 sections III to V; T10 SRP).
//!
//! Five machines, with the document's state names ([`weir_proto_srp::states`]):
//!
//! | machine | here | one instance per |
//! |---|---|---|
//! | channel | `channel` | connection |
//! | I_T nexus | `nexus` | initiator port and target port |
//! | request | `request` | pooled request structure (2 000 per port) |
//! | buffer descriptor table | `bdt` | command with data |
//! | DMA | `dma` | transfer of a command |
//!
//! A machine is a straight-line `async` function whose awaits are the named states; every change of state
//! goes through one function that asserts the legal order and can write a trace.
//!
//! A [`Target`] is one SRP target port. It has a [`Port`] on every reactor that serves it, each with request
//! structures, receive buffers and send queues of its own; channels are spread over them.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod at_once;
mod bdt;
mod channel;
mod config;
mod dma;
mod ending;
mod events;
mod frontend;
mod nexus;
pub mod planted;
mod port;
mod request;
mod target;
mod task;
mod trace;

pub use config::TargetConfig;
pub use frontend::open;
pub use port::{Port, PortCensus};
pub use target::{ChannelInfo, NexusInfo, Target};
pub use trace::{Trace, TraceEntry};

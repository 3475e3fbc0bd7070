//! The SRP initiator: one hardware queue per core, N RDMA channels per session (S3).
//!
//! Per-command private data is one slot of a table made at login; the tag of a command is its slot
//! (hardware queue, index). A command completes on the reactor that submitted it.

mod channel;

pub use channel::{Channel, ChannelConfig, ChannelError, Outcome};

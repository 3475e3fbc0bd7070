//! iSCSI (RFC 7143), a target's side, without I/O: bytes in, values and bytes out. Nothing here waits or panics.
//!
//! | | |
//! |---|---|
//! | [`bhs`] | headers of requests and responses |
//! | [`intake`] | a connection's bytes, cut as they come, put together to PDUs; digests |
//! | [`text`] | `key=value` text |
//! | [`keys`] | the rules of the keys of an operational negotiation |
//! | [`login`] | the login phase: stages, authentication, who comes |
//! | [`chap`] | proofs of a secret, one way and both |
//! | [`discovery`] | SendTargets, and answers that take several PDUs |
//! | [`window`] | CmdSN, ExpCmdSN and MaxCmdSN |
//! | [`sequence`] | Data-Out that is to come; Data-In cut to PDUs; residuals |
//!
//! Error recovery is of level 0: whatever breaks a rule of the stream ends the connection. A session has one connection.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

pub mod bhs;
pub mod chap;
pub mod discovery;
pub mod fuzzing;
pub mod intake;
pub mod keys;
pub mod login;
pub mod sequence;
pub mod text;
pub mod window;

#[cfg(test)]
mod tests;

/// Bytes of text of one negotiation step, at most, also when it takes several PDUs.
pub const TEXT: usize = 8192;

/// The tag that names nothing (RFC 7143 11.2.1.8, 11.7.4).
pub const NO_TAG: u32 = u32::MAX;

//! iWARP without I/O: bytes in, steps out; operations in, bytes out.
//!
//! - [`mpa`]: the start-up frames and what two ends agree on (RFC 5044, RFC 6581).
//! - [`tx`]: headers and trailers of outgoing FPDUs, written into fixed arrays.
//! - [`rx`]: one receive direction; finds FPDUs in an arbitrary byte stream and validates them.
//! - [`stag`]: the keys a peer may name, and what each of them permits.
//! - [`read_queue`]: RDMA READs outstanding in either direction.
//! - [`terminate`], [`fault`]: what was wrong, for the peer and for the log.
//!
//! Nothing here touches a socket, a clock or another core. After start-up nothing allocates.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]
#![forbid(unsafe_code)]

pub mod fault;
pub mod fuzzing;
pub mod mpa;
pub mod op;
pub mod read_queue;
pub mod rx;
pub mod stag;
pub mod terminate;
pub mod tx;

pub use fault::{Fault, Reason};
pub use op::Op;

#[cfg(test)]
mod tests;

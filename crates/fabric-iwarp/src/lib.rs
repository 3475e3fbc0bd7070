//! iWARP in user space over byte streams (TCP): the default [`Provider`](weir_fabric::Provider).
//!
//! Needs no RDMA hardware or module on this side; a Linux host with the in-tree `siw` driver attaches
//! with its own `ib_srp` and `nvme-rdma`. The protocol itself is `weir-proto-iwarp` (MPA, DDP, RDMAP); this
//! crate moves its bytes.
//!
//! A busy stream is read and written without waiting once per turn of the reactor; one that falls
//! silent is watched, so that an idle node sleeps.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod close;
mod conn;
mod flush;
pub mod planted;
mod provider;
mod receive;
mod setup;
mod transmit;

pub use provider::{Config, Iwarp};
pub use weir_proto_iwarp::mpa::CrcPolicy;

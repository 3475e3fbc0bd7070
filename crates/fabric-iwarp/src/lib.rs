//! iWARP in user space over TCP: the default [`Provider`](weir_fabric::Provider).
//!
//! Needs no RDMA hardware or module on this side; a Linux host with the in-tree `siw` driver attaches
//! with its own `ib_srp` and `nvme-rdma`. The protocol itself is `weir-proto-iwarp` (MPA, DDP, RDMAP); this
//! crate moves its bytes.
//!
//! A busy socket is read and written without waiting once per turn of the reactor; one that falls
//! silent is handed to the ring to watch, so that an idle node sleeps.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod close;
mod conn;
mod flush;
mod lobby;
mod provider;
mod receive;
mod setup;
mod transmit;

pub use provider::{Config, Iwarp};
pub use weir_proto_iwarp::mpa::CrcPolicy;

//! RDMA adapters through rdma-core (InfiniBand, RoCE, iWARP; also the kernel's `rxe` and `siw`).
//!
//! rdma-core is loaded at run time: nothing of it is needed to build or to start the program, and without
//! it [`load`] says which packages are missing. Only the classic verbs are used, which every adapter's
//! driver has.
//!
//! Each reactor opens each device for itself: an own context, protection domain, completion queues and
//! shared receive queues, so that reactors share nothing. Queue pairs are brought to their states here
//! and not by librdmacm, whose own context is the process's. How memory is found, copied or registered:
//! see `memory`; which buffers messages are received into: [`Receive`].
//!
//! A work request asks for a completion when somebody waits for it, when it holds memory (the last of
//! its turn), or every so often; a READ always. Completion queues are polled in every turn; before the
//! reactor sleeps they are armed, and the ring watches their channel.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod close;
mod cm;
mod conn;
mod device;
mod ffi;
mod library;
mod memory;
mod objects;
mod provider;
mod recv;
mod setup;

#[doc(hidden)]
pub use ffi::interface;
pub use library::{DeviceInfo, Library, load};
pub use provider::{Config, Receive, Verbs};

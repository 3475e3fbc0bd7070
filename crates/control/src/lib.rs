//! The control plane: what the operator wants, kept safe and carried out.
//!
//! * [`model`]: the desired state (pools, volumes, hosts, mappings, target ports) and the pure function
//!   [`model::Model::apply`] that changes it or says why not.
//! * [`store`]: the model on disk, with two-phase commit, plus small durable blobs such as persistent reservations.
//! * [`dataplane`]: the seam to the data path. The control plane never touches a reactor, it calls this trait.
//! * [`controller`]: joins the three: one change at a time, first durable, then in effect, undone when that fails.
//! * [`server`] and [`client`]: REST over a Unix socket (and TCP), and its typed user.
//! * [`config`] and [`declare`]: the TOML file of `weir serve` and its declarative part, which may be applied twice.
//! * [`descriptors`]: how many there are, and for whom.
//! * [`keys`]: keys of encrypted volumes, from their sources and wrapped in the model.
//! * [`error`]: the one table of error codes, HTTP statuses and exit codes.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]
#![forbid(unsafe_code)]

pub mod client;
pub mod config;
pub mod controller;
pub mod dataplane;
pub mod declare;
pub mod descriptors;
pub mod error;
pub mod events;
pub mod keys;
pub mod live;
pub mod model;
pub mod planted;
pub mod platform;
pub mod server;
mod stopping;
pub mod store;
pub mod units;

pub use controller::Controller;
pub use error::{Code, Error, Kind, Result};
pub use stopping::Stopping;

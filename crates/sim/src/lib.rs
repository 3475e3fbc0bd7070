//! Deterministic simulation: many reactors in one thread under virtual time, with disks and a network
//! that fail in every way the contracts allow. One seed, one trace.
//!
//! * [`World`] — the clock, the seeded scheduler, the nodes; finds hangs;
//! * [`Node`] — a machine: reactors, a fabric provider for each, disks; it can be killed, cut from
//!   power and started again;
//! * [`SimFabric`], [`Net`] — the RDMA provider and the network between nodes;
//! * [`SimMedium`], [`SimDisk`] — storage that survives restarts and worlds, and a node's handle to it;
//! * [`check`] — checkers that suites share.
#![forbid(unsafe_code)]

pub mod check;

mod chance;
mod clock;
mod core;
mod disk;
mod fabric;
mod node;
mod trace;
mod world;

pub use chance::{Latency, Odds};
pub use core::SimDriver;
pub use disk::{DiskConfig, FaultCounts, Next, SimDisk, SimMedium};
pub use fabric::{Cut, Net, NetConfig, NodeNumber, SimFabric, Style};
pub use node::Node;
pub use world::{Options, Stuck, Why, World};

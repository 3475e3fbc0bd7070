//! Deterministic simulation: many reactors in one thread under virtual time, with disks and a network
//! that fail in every way the contracts allow. One seed, one trace.
//!
//! * [`World`] — the clock, the seeded scheduler, the nodes; finds hangs;
//! * [`Node`] — a machine: reactors, a fabric provider for each, disks; it can be killed, cut from
//!   power and started again;
//! * [`SimFabric`], [`Net`] — the RDMA provider and the network between nodes;
//! * [`SimNetwork`] — byte streams over it, for iWARP ([`Carrier::Streams`]) and other protocols on TCP;
//! * [`SimMedium`], [`SimDisk`] — storage that survives restarts and worlds, and a node's handle to it;
//! * [`check`] — checkers that suites share.
//!
//! ```
//! use weir_base::{MILLIS, SECONDS};
//! use weir_disk::{DiskOp, run};
//! use weir_mem::Slice;
//! use weir_sim::{DiskConfig, SimMedium, World};
//!
//! let world = World::new(7);
//! let node = world.node("storage");
//! node.attach(&SimMedium::new("disk", 1 << 20, DiskConfig::default(), 7));
//! let disk = node.disk("disk");
//! let written = world.run(&node, SECONDS, async move {
//!     let buf = Slice::copy_of(&[1; 4096]);
//!     run(&*disk, DiskOp::Write { offset: 0, buf, fua: false }).await?;
//!     run(&*disk, DiskOp::Flush).await
//! });
//! assert_eq!(written.expect("neither hang nor time limit"), Ok(()));
//! node.power_off();
//! world.run_for(100 * MILLIS);
//! node.restart();
//! let disk = node.disk("disk");
//! let survived = world.run(&node, SECONDS, async move {
//!     let buf = Slice::heap(4096);
//!     run(&*disk, DiskOp::Read { offset: 0, buf: buf.clone() }).await.map(|()| buf.to_vec())
//! });
//! assert_eq!(survived.expect("neither hang nor time limit"), Ok(vec![1; 4096]));
//! ```
//!
//! What programs under test must leave alone for a seed to mean anything: real time, addresses of memory,
//! hash tables with random keys, and the numbers of reactors
//! ([`current_id`](weir_reactor::current_id)), which depend on what else the process runs.
//!
//! Runnable tasks go in random order. What several receives complete in one turn is therefore taken up in
//! any order by the tasks that wait for them, as it is with several cores.
#![forbid(unsafe_code)]

pub mod check;

mod chance;
mod clock;
mod core;
mod disk;
mod fabric;
mod node;
mod stream;
mod trace;
mod world;

pub use chance::{Latency, Odds};
pub use core::SimDriver;
pub use disk::{DiskConfig, FaultCounts, Next, SimDisk, SimMedium};
pub use fabric::{Carrier, Cut, Net, NetConfig, NodeNumber, Planted, SimFabric, Style};
pub use node::Node;
pub use stream::SimNetwork;
pub use world::{Options, Stuck, Time, Why, World};

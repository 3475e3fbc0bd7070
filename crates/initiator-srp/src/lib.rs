//! The SRP initiator: one hardware queue per core, N RDMA channels per session (S3).
//!
//! Per-command private data is one slot of a table made at login; the tag of a command is its slot
//! (hardware queue, index). A command completes on the reactor that submitted it.
//!
//! | | |
//! |---|---|
//! | [`Session`] | an initiator port at a target port: channels, loss and return of the path |
//! | [`Queue`] | a reactor's handle: read, write, flush, unmap, any CDB; [`scan`](Queue::scan) |
//! | [`Multipath`] | one unit over several sessions, with failover |
//! | [`Channel`] | one RDMA channel: commands and task management as they are |
//!
//! ```no_run
//! # async fn f(provider: std::rc::Rc<dyn weir_fabric::Provider>) -> Result<(), weir_initiator_srp::Error> {
//! use weir_initiator_srp::{Session, SessionConfig};
//! use weir_mem::Slice;
//! use weir_proto_srp::PortId;
//!
//! let config = SessionConfig::new("10.0.0.1:5555", PortId::new(1, 2), PortId::new(3, 4));
//! let session = Session::connect(provider, config).await?;
//! let queue = session.queue();
//! for unit in queue.scan().await? {
//!     let buf = Slice::heap(unit.block_size as usize);
//!     queue.read(unit.lun, 0, buf.clone()).await?;
//! }
//! session.close().await;
//! # Ok(())
//! # }
//! ```

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod channel;
mod error;
mod forward;
mod multipath;
pub mod planted;
mod queue;
mod session;
mod unit;

pub use channel::{
    Channel, ChannelCensus, ChannelConfig, ChannelError, EventHandler, MAX_TABLE, Outcome, Rung,
    TaskError, Unfinished,
};
pub use error::Error;
pub use multipath::{Multipath, MultipathConfig, PathCondition, PathInfo, PathPolicy, Repeat};
pub use queue::Queue;
pub use session::{Event, Notice, PathState, QueueMode, Session, SessionConfig, SessionFigures};
pub use unit::LogicalUnit;

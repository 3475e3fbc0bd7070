//! The BRP initiator (S1; docs/brp.md): block I/O without a SCSI layer, from per-core queues, with temporal
//! merge.
//!
//! | | |
//! |---|---|
//! | [`Session`] | an initiator port at a target port: channels on one or more reactors |
//! | [`Queue`] | a reactor's handle: [`list`](Queue::list) and [`open`](Queue::open) volumes |
//! | [`Disk`] | a volume on a reactor: read, write, flush, discard, … |
//! | [`Multipath`] | one volume over several sessions, with failover |
//! | [`merge`] | when commands share a message: S1's variants, and the controller that learns it |
//!
//! The scheduler is minimal (S1): a command goes to a channel of the reactor that submits it, at once, or at
//! the end of the turn when commands are merged. There is no elevator and no delay for the sake of merging.
//!
//! A channel whose connection is lost makes a new one by itself and settles what is in doubt; commands wait
//! meanwhile, for as long as [`fast_io_fail`](SessionConfig::fast_io_fail) says.
//!
//! ```no_run
//! # async fn f(provider: std::rc::Rc<dyn weir_fabric::Provider>) -> Result<(), weir_initiator_brp::Error> {
//! use weir_initiator_brp::{PortId, Session, SessionConfig};
//! use weir_mem::Slice;
//!
//! let config = SessionConfig::new("10.0.0.1:5556", PortId([1; 16]));
//! let session = Session::connect(provider, config).await?;
//! let disk = session.queue().open("db-01").await?;
//! disk.read(0, Slice::heap(4096)).await?;
//! session.close().await;
//! # Ok(())
//! # }
//! ```

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod channel;
mod config;
mod disk;
mod error;
pub mod merge;
mod multipath;
pub mod planted;
mod queue;
mod session;
mod siblings;

pub use channel::{ChannelCensus, ChannelFigures};
pub use config::{Keep, Secret, SessionConfig};
pub use disk::Disk;
pub use error::{Error, Hop};
pub use merge::Variant;
pub use multipath::Multipath;
pub use queue::Queue;
pub use session::{Event, Session, SessionFigures};
pub use siblings::{Family, as_paths};
pub use weir_proto_brp::{PortId, RejectReason, Status, VolumeInfo};

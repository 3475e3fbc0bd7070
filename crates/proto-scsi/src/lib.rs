//! SCSI as a disk logical unit must know it: SAM-5, SPC-4, SBC-3 and the RBC subset, as pure data
//! and state machines without I/O, clock, threads or locks.
//!
//! Two sides:
//!
//! * **Target.** [`cdb::decode`] turns a CDB into a [`cdb::Command`] with nothing but a
//!   [`Geometry`], so every core decodes on its own. Media commands are then admitted by a cached
//!   [`lu::FastPath`], or by [`lu::LuState::admit`] when the cache is stale; the caller runs them
//!   against its volume and translates failures with [`ScsiError::from_io_error`]. All other
//!   commands are answered by [`lu::LuState::control`]. LUNs without a volume go to
//!   [`lun::execute_no_lu`].
//! * **Initiator.** [`initiator`] builds CDBs and parameter lists and reads the answers.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]
#![forbid(unsafe_code)]

pub mod cdb;
mod data;
pub mod fuzzing;
pub mod geometry;
pub mod identity;
pub mod initiator;
pub mod lba_status;
pub mod lu;
pub mod lun;
pub mod planted;
pub mod pr;
pub mod sense;
pub mod status;
#[cfg(test)]
mod testbed;
pub mod transport_id;
pub mod unmap;

pub use geometry::{Features, Geometry, Limits};
pub use identity::{Identity, PortName, TargetPort};
pub use lu::{LuState, Nexus};
pub use lun::Lun;
pub use sense::{Sense, SenseFormat, SenseKey};
pub use status::{Direction, ScsiError, Status};
pub use transport_id::TransportId;

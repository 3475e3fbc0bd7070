//! The load goes through Weir's BRP initiator.

mod connect;
mod disk;

pub use connect::{Brp, BrpOptions, Which, explain};
pub use disk::BrpDisk;
pub use weir_initiator_brp::{PortId, Variant};

//! The load goes through Weir's SRP initiator.

mod connect;
mod disk;
mod scan;

pub use connect::{Login, Sessions, Srp};
pub use disk::SrpDisk;
pub use scan::{Found, scan};

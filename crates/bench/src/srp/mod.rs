//! The load goes through Weir's SRP initiator.

mod connect;
mod disk;
mod login;
mod paths;
mod scan;

pub use connect::{Sessions, Srp, SrpOptions};
pub use disk::SrpDisk;
pub use login::Login;
pub use paths::open_paths;
pub use scan::{Found, scan};
pub use weir_initiator_srp::{PathPolicy, QueueMode};

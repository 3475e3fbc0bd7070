//! SRP under simulation: hosts that check every word of the target, and volumes to serve.

mod channel;
pub(crate) mod channels;
mod commands;
mod host;
mod resets;
mod volume;

pub use channel::{Answer, Channel, Ended, Fault};
pub(crate) use channel::{Login, Style};
pub(crate) use commands::sense;
pub(crate) use host::lun;
pub use host::{Figures, Host, HostConfig, HostIo};
pub use resets::Resets;
pub use volume::{DiskVolume, MemVolume};

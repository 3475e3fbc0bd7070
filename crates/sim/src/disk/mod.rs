//! Disks that delay, reorder, lose, tear, misdirect, rot, stall, fill up and fail.

mod cache;
mod handle;
mod medium;
mod orphans;
mod pages;

pub use handle::SimDisk;
pub use medium::{DiskConfig, FaultCounts, Next, SimMedium};

//! What the kernel offers on this machine: loop devices, and who uses a disk.

pub(crate) mod loopdev;
pub(crate) mod users;

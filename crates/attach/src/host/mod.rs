//! What the kernel offers on this machine: loop devices, and what it tells of disks.

pub(crate) mod loopdev;
pub(crate) mod users;

use std::path::Path;

/// A number that the kernel tells of a disk.
pub(crate) fn told(device: &Path, file: &str) -> Option<u64> {
    let disk = Path::new("/sys/class/block").join(device.file_name()?);
    std::fs::read_to_string(disk.join(file)).ok()?.trim().parse().ok()
}

/// The number of what a disk is now, since the machine has started: another one is another disk. From Linux 5.15 on.
pub(crate) fn diskseq(device: &Path) -> Option<u64> {
    told(device, "diskseq")
}

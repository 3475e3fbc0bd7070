//! The names of disks among the devices. A number of the kernel's goes from one attachment to another, so a name that is
//! left over must not become another's disk.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Keeps other attachments from changing names meanwhile; nothing where there are none.
fn locked(dir: &Path) -> Option<File> {
    let file = File::open(dir).ok()?;
    file.lock().ok()?;
    Some(file)
}

/// Takes every name away that a device has from before. Whoever got the device does this before it is a disk.
pub(super) fn take_all(dir: &Path, device: &Path) -> io::Result<()> {
    let _one = locked(dir);
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        remove_one(&entry.path(), device)?;
    }
    Ok(())
}

/// Takes a name away if it is this device's.
pub(super) fn remove(link: &Path, device: &Path) -> io::Result<()> {
    let _one = link.parent().and_then(locked);
    remove_one(link, device)
}

fn remove_one(link: &Path, device: &Path) -> io::Result<()> {
    if is_to(link, device) { fs::remove_file(link) } else { Ok(()) }
}

/// Whether a name is this device's.
pub(super) fn is_to(link: &Path, device: &Path) -> bool {
    fs::read_link(link).is_ok_and(|to| to == device)
}

/// Gives a device its name, also if that is another's from before.
pub(super) fn make(link: &Path, device: &Path) -> io::Result<()> {
    let dir = link.parent().unwrap_or(link);
    fs::create_dir_all(dir)?;
    let _one = locked(dir);
    if fs::read_link(link).is_ok() {
        fs::remove_file(link)?;
    }
    std::os::unix::fs::symlink(device, link)
}

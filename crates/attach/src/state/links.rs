//! The names of disks among the devices. A number of the kernel's goes from one attachment to another, so a name that is
//! left over must not become another's disk. What is not a symbolic link is never touched.

use crate::sys;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// Locked by who changes names. Only root may open it: whoever may could hold up all others. No disk has such a name.
const LOCK: &str = ".lock";
/// How long others may take to change names.
const WAIT: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(10);

/// Keeps other attachments from changing names meanwhile; nothing where no lock can be made.
///
/// # Errors
/// Somebody has it for too long.
fn locked(dir: &Path) -> io::Result<Option<File>> {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let Ok(file) = options.open(dir.join(LOCK)) else { return Ok(None) };
    for _ in 0..WAIT.as_millis() / STEP.as_millis() {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) => std::thread::sleep(STEP),
            Err(TryLockError::Error(_)) => return Ok(None),
        }
    }
    let why =
        format!("somebody has {} for more than {} s", dir.join(LOCK).display(), WAIT.as_secs());
    Err(io::Error::other(why))
}

/// Takes every name away that a device has from before. Whoever got the device does this before it is a disk.
pub(super) fn take_all(dir: &Path, device: &Path) -> io::Result<()> {
    let _one = locked(dir)?;
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        remove_one(&entry.path(), device)?;
    }
    Ok(())
}

/// Takes a name away if it is this device's, also where others hold the lock: an end does not wait for them. True: it was.
pub(super) fn remove(link: &Path, device: &Path) -> io::Result<bool> {
    let _one = link.parent().and_then(|dir| locked(dir).ok());
    remove_one(link, device)
}

/// The same, unless the device is somebody's disk by now, with that name.
pub(super) fn remove_free(link: &Path, device: &Path) -> io::Result<bool> {
    if !is_to(link, device) {
        return Ok(false);
    }
    let _one = link.parent().and_then(|dir| locked(dir).ok());
    if is_free(link) { remove_one(link, device) } else { Ok(false) }
}

fn remove_one(link: &Path, device: &Path) -> io::Result<bool> {
    let is = is_to(link, device);
    if is {
        fs::remove_file(link)?;
    }
    Ok(is)
}

/// Whether a name is this device's.
pub(super) fn is_to(link: &Path, device: &Path) -> bool {
    fs::read_link(link).is_ok_and(|to| to == device)
}

/// Whether nobody can mean a disk by this name any more. What is not known counts as a disk.
fn is_free(link: &Path) -> bool {
    let target = match fs::canonicalize(link) {
        Ok(target) => target,
        Err(e) => return e.kind() == io::ErrorKind::NotFound,
    };
    if !fs::metadata(&target).is_ok_and(|m| m.file_type().is_block_device()) || !sys::shows_disks()
    {
        return false;
    }
    let listed = Path::new("/sys/class/block").join(target.file_name().unwrap_or_default());
    match fs::read_to_string(listed.join("size")) {
        Ok(sectors) => sectors.trim() == "0",
        Err(_) => !listed.exists(),
    }
}

/// Gives a device its name, also if that is from before.
///
/// # Errors
/// The name cannot be written, or is that of another disk.
pub(super) fn make(link: &Path, device: &Path) -> io::Result<()> {
    let dir = link.parent().unwrap_or(link);
    fs::create_dir_all(dir)?;
    let _one = locked(dir)?;
    if let Ok(to) = fs::read_link(link) {
        if to != device && !is_free(link) {
            let why = format!("{} is {}, which is in use", link.display(), to.display());
            return Err(io::Error::other(why));
        }
        fs::remove_file(link)?;
    }
    std::os::unix::fs::symlink(device, link)
}

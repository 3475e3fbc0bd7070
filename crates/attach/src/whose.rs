//! Whose a disk is: the kernel may have given the number of its device to another since.

use crate::fuse;
use crate::host::loopdev;
use crate::host::users;
use crate::nbd;
use crate::state::{Method, Place, Process, State};
use crate::ublk;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The file of a volume as the kernel tells it when its file system is mounted nowhere any more.
const LOST: &str = "/volume";

/// Whose a disk is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The attachment's.
    Ours,
    /// Certainly another's, or gone.
    NotOurs,
    /// It cannot be said, for this reason.
    Unknown(String),
}

/// Whose the disk of an attachment is now.
pub(crate) fn whose(place: &Place, state: &State) -> Whose {
    let (device, pid, alive) = (&state.device, state.pid, state.is_alive());
    let no_such = || Whose::Unknown(format!("{} is no device of that driver", device.display()));
    match state.method {
        Method::Fuse => whose_loop(place, device, alive),
        Method::Ublk => ublk::Device::of(device).map_or_else(no_such, |d| d.whose(pid, alive)),
        Method::Nbd => match nbd::Device::of(device) {
            None => no_such(),
            Some(d) if alive => d.whose(pid, state.thread),
            Some(d) if d.is_left(state.thread, || place.is_link_to(device)) => Whose::Ours,
            Some(_) => Whose::NotOurs,
        },
    }
}

fn whose_loop(place: &Place, device: &Path, alive: bool) -> Whose {
    let file = place.disk().join(fuse::FILE_NAME);
    match loopdev::backing(device) {
        Ok(Some(b)) if Path::new(&b) == file => Whose::Ours,
        // Seen from another root directory, the path of its file is another one.
        Ok(Some(b)) => match loopdev::is_named(device, &file) {
            Ok(false) => Whose::NotOurs,
            // Its process has ended, and with that the mount namespace of its file.
            Ok(true) if !alive && b == LOST => Whose::Ours,
            _ => Whose::Unknown(format!("the kernel says that its file is {b}")),
        },
        Ok(None) => Whose::NotOurs,
        Err(e) => Whose::Unknown(format!("the kernel does not say what its file is: {e}")),
    }
}

/// Whether the loop device has the file of this attachment, whose process is `alive`.
pub(crate) fn is_ours(place: &Place, device: &Path, alive: bool) -> bool {
    whose_loop(place, device, alive) == Whose::Ours
}

/// Whether the attachment in this directory, whose process has ended, has that disk yet, and somebody uses it.
pub(crate) fn is_used(dir: &Path, process: Process, device: &Path) -> bool {
    let place = dir.parent().zip(dir.file_name().and_then(|n| n.to_str()));
    let Some(place) = place.and_then(|(run, name)| Place::of(run, name).ok()) else { return false };
    let state = place.read().filter(|s| s.process() == process && s.device == device);
    state.is_some_and(|s| whose(&place, &s) != Whose::NotOurs) && is_open(device)
}

/// Whether somebody has mounted a disk, or has it open.
fn is_open(device: &Path) -> bool {
    let flags = libc::O_EXCL | libc::O_CLOEXEC;
    let mine = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(device);
    mine.is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY)) || !users::of(device, 0).is_empty()
}

/// Whether a disk looks like that of some attachment, of whatever run directory. What is not known does.
pub(crate) fn looks_attached(device: &Path) -> bool {
    if let Some(d) = nbd::Device::of(device) {
        return d.looks_attached();
    }
    if let Some(d) = ublk::Device::of(device) {
        return d.looks_attached();
    }
    let file = |b: &str| b == LOST || b.ends_with("/disk/volume");
    loopdev::backing(device).map_or(true, |b| b.is_some_and(|b| file(&b)))
}

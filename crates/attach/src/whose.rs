//! Whose a disk is: the kernel may have given the number of its device to another since.

use crate::fuse;
use crate::host::loopdev;
use crate::nbd;
use crate::state::{Method, Place, State};
use crate::ublk;
use std::path::Path;

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
        Ok(Some(b)) if alive && !loopdev::is_named(device, &file).is_ok_and(|is| !is) => {
            Whose::Unknown(format!("the kernel says that its file is {b}"))
        }
        Ok(_) => Whose::NotOurs,
        Err(e) => Whose::Unknown(format!("the kernel does not say what its file is: {e}")),
    }
}

/// Whether the loop device has the file of this attachment.
pub(crate) fn is_ours(place: &Place, device: &Path) -> bool {
    whose_loop(place, device, true) == Whose::Ours
}

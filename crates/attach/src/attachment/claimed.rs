//! An attachment's name: taken before anything is made, and given back after all that was made has been taken away.

use crate::error::{Error, Kind};
use crate::fuse;
use crate::host::loopdev;
use crate::nbd;
use crate::port::PortClaim;
use crate::state::{Made, Method, Place};
use crate::sys;
use crate::ublk;
use crate::whose;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A name that is taken for an attachment, which is yet to be made. Dropping it gives the name back.
pub struct Claimed {
    pub(super) method: Method,
    /// Its disk will have a name in /dev.
    pub(super) named: bool,
    pub(super) cleanup: Cleanup,
}

impl Claimed {
    /// Has `undo` done when the attachment ends, however that comes: its disk is gone then, and its name not free yet. So
    /// it meets no other attachment of that name. False: it could not be, and what is [noted](Noting) stays for
    /// [`detach`](crate::detach::detach).
    pub fn at_the_end(&mut self, undo: impl FnOnce() -> bool + 'static) {
        self.cleanup.undo = Some(Box::new(undo));
    }

    /// Keeps an initiator port for it, until all is taken back at its end.
    pub fn keep_port(&mut self, port: PortClaim) {
        self.cleanup._port = Some(port);
    }

    /// Where to write down what is made for it elsewhere.
    pub fn noting(&self) -> Noting {
        Noting(self.cleanup.place.clone())
    }
}

/// Writes down what is made for an attachment elsewhere.
pub struct Noting(Place);

impl Noting {
    /// Before it is made, and again when more is known of it. None: nothing is.
    ///
    /// # Errors
    /// It cannot be written, and must not be made.
    pub fn note(&self, made: Option<&Made>) -> Result<(), Error> {
        self.0.write_made(made)
    }
}

/// Takes a name for an attachment, by a method; `None` takes the best that the kernel has.
///
/// # Errors
/// The name is taken, here or in /dev, or the method cannot be used here.
pub fn claim(run_dir: &Path, name: &str, method: Option<Method>) -> Result<Claimed, Error> {
    let method = choose(method)?;
    let mut place = Place::of(run_dir, name)?;
    place.create()?;
    // The name goes with this.
    let mark = place.mark();
    let cleanup = Cleanup { place, device: None, mark, undo: None, _port: None };
    let named = cleanup.place.keep_name()?;
    Ok(Claimed { method, named, cleanup })
}

/// How long another that ends the attachment may take.
const HELD: Duration = Duration::from_secs(10);

/// Takes away from the kernel what it still has.
pub(super) struct Cleanup {
    pub(super) place: Place,
    pub(super) device: Option<(Method, PathBuf)>,
    /// See [`State::mark`](crate::state::State::mark).
    pub(super) mark: Option<String>,
    undo: Option<Box<dyn FnOnce() -> bool>>,
    // This goes after what is done at the end.
    _port: Option<PortClaim>,
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        // Who ends it at the same time waits for this process, too, but not for ever.
        let _held = self.place.is_own().then(|| self.place.lock(HELD));
        // They may have been taken away, and the name be another attachment's, with all that goes by it.
        let own = self.place.is_own();
        if own {
            self.place.remove_link();
        }
        match &self.device {
            Some((Method::Fuse, device)) if own => {
                let is_own = || whose::is_own(&self.place, device);
                if let Some(open) = loopdev::open_if(device, is_own) {
                    self.place.take_link(device, true);
                    let _ = loopdev::clear(device, Some(open));
                }
            }
            // The driver has let go with the sockets.
            Some((Method::Ublk, disk)) => {
                let (device, mark) = (ublk::Device::of(disk), self.mark.as_deref());
                if let Some(d) = device.filter(|d| d.is_of(std::process::id(), mark)) {
                    let _ = d.stop();
                    d.delete();
                }
            }
            _ => {}
        }
        if !own {
            return;
        }
        let _ = sys::unmount(&self.place.disk(), true);
        match self.undo.take().is_none_or(|undo| undo()) {
            true => self.place.remove(),
            false => self.place.leave_made(None),
        }
    }
}

/// The method that is asked for, or the best that this machine has.
///
/// # Errors
/// What is missing.
fn choose(method: Option<Method>) -> Result<Method, Error> {
    if !sys::is_root() {
        return Err(Error::new(
            Kind::Denied,
            "only root can give this host a disk",
            "mounting and loop devices are for root",
            "run it as root",
        ));
    }
    match method {
        Some(Method::Ublk) => ublk::probe().map(|()| Method::Ublk),
        Some(Method::Nbd) => nbd::probe().map(|()| Method::Nbd),
        Some(Method::Fuse) => by_fuse(),
        None => best(ublk::probe(), by_fuse, nbd::probe),
    }
}

/// The first of the methods that there is; what all of them said if there is none. By nbd last: what stops the process for a
/// moment (SIGSTOP, a debugger, a freezer) ends such a disk.
fn best(
    ublk: Result<(), Error>,
    fuse: impl FnOnce() -> Result<Method, Error>,
    nbd: impl FnOnce() -> Result<(), Error>,
) -> Result<Method, Error> {
    let Err(no_ublk) = ublk else { return Ok(Method::Ublk) };
    let no_fuse = match fuse() {
        Ok(method) => return Ok(method),
        Err(e) => e,
    };
    nbd().map(|()| Method::Nbd).map_err(|e| {
        let message = "this kernel has nothing to make a disk with";
        let why = format!("{}\n{}\n{}", no_ublk.reason, no_fuse.reason, e.reason);
        let hint =
            format!("for ublk: {}; for fuse: {}; or: {}", no_ublk.hint, no_fuse.hint, e.hint);
        Error::new(no_fuse.kind, message, why, hint)
    })
}

fn by_fuse() -> Result<Method, Error> {
    fuse::probe()?;
    loopdev::probe()?;
    Ok(Method::Fuse)
}

#[cfg(test)]
mod tests;

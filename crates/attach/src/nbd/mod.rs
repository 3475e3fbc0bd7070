//! The kernel's driver for network block devices (nbd, linux/nbd.h), on sockets to this very process: one for each
//! reactor, which serves it as a queue.
//!
//! The driver is told by ioctls rather than by netlink. A device that was made by netlink outlives its process, and
//! requests that the process had taken wait for their time to run out: which must be long, as they wait for a target that is
//! away, and a request that the driver gives up and sends anew is done twice, perhaps after newer ones. With the ioctl
//! that serves a device (`NBD_DO_IT`) the driver ends all requests when the process does, however it ends. That is
//! also what ublk does.

mod queue;

pub use queue::{Census, Queue};

use crate::disk::{Geometry, MAX_IO};
use crate::error::{Error, Kind};
use crate::sys;
use crate::whose::Whose;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use weir_proto_nbd::flags;

// ioctls: _IO(0xab, number)
const SET_SOCKET: u64 = 0xab00;
const SET_BLOCK_SIZE: u64 = 0xab01;
const DO_IT: u64 = 0xab03;
const CLEAR_SOCKETS: u64 = 0xab04;
const SET_BLOCKS: u64 = 0xab07;
const DISCONNECT: u64 = 0xab08;
const SET_TIMEOUT: u64 = 0xab09;
const SET_FLAGS: u64 = 0xab0a;

/// After so many seconds the driver would give a request up, and with it the connection: 20 days. Less would end the waiting
/// for a target; more does not fit the kernel's clock.
const TIMEOUT: u64 = 20 * 24 * 3600;
/// How long the driver may take to let the disk appear.
const APPEAR: Duration = Duration::from_secs(10);
/// The name of the thread that serves a device.
const THREAD: &str = "weir-nbd";
const BLOCKS: &str = "/sys/block";

/// Whether this machine can do it.
///
/// # Errors
/// What is missing.
pub fn probe() -> Result<(), Error> {
    let hint = "load it (`modprobe nbd`), or use --method fuse";
    let no = |why: &str| Error::new(Kind::Unsupported, "this kernel has no nbd", why, hint);
    if numbers().is_empty() {
        return Err(no("there is no /sys/block/nbd0"));
    }
    if !numbers().iter().any(|n| Device { number: *n }.path().exists()) {
        return Err(no("there is no /dev/nbd0, though the driver is there"));
    }
    Ok(())
}

/// The driver's devices, in order.
fn numbers() -> Vec<u32> {
    let names = std::fs::read_dir(BLOCKS).into_iter().flatten().flatten();
    let number = |e: std::fs::DirEntry| e.file_name().to_str()?.strip_prefix("nbd")?.parse().ok();
    let mut all: Vec<u32> = names.filter_map(number).collect();
    all.sort_unstable();
    all
}

/// A device of the driver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    /// Its number.
    pub number: u32,
}

impl Device {
    /// The device whose disk this is.
    pub(crate) fn of(disk: &Path) -> Option<Device> {
        let name = disk.file_name()?.to_str()?;
        Some(Device { number: name.strip_prefix("nbd")?.parse().ok()? })
    }

    fn path(self) -> PathBuf {
        PathBuf::from(format!("/dev/nbd{}", self.number))
    }

    fn sys(self, file: &str) -> PathBuf {
        Path::new(BLOCKS).join(format!("nbd{}", self.number)).join(file)
    }

    fn open(self) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(self.path())
    }

    /// The thread that serves it, if one does; by the kernel's own number, also in a container.
    pub(crate) fn thread(self) -> Option<u32> {
        self.asked().ok().flatten()
    }

    fn asked(self) -> io::Result<Option<u32>> {
        match std::fs::read_to_string(self.sys("pid")) {
            Ok(text) => text.trim().parse().map(Some).map_err(io::Error::other),
            Err(e) if e.kind() == io::ErrorKind::NotFound && sys::shows_disks() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether that process, which lives, serves it; `noted` is the thread that did at first.
    pub(crate) fn whose(self, pid: u32, noted: Option<u32>) -> Whose {
        match self.asked() {
            Ok(Some(t)) => whose_is(t, pid, noted, sys::has_all_processes()),
            Ok(None) => Whose::NotOurs,
            Err(e) => Whose::Unknown(format!("the kernel does not say who serves it: {e}")),
        }
    }

    /// Whether this process serves it, as far as that can be known: ours may have ended, and another one have the device.
    fn is_mine(self) -> bool {
        let (me, all) = (std::process::id(), sys::has_all_processes());
        self.thread().is_some_and(|t| whose_is(t, me, None, all) != Whose::NotOurs)
    }

    /// Whether the process that served it has ended, and somebody still has it open. Nobody else can serve it until then.
    /// Where its thread was not `noted`, `looks_so` has to say that it was this one.
    pub(crate) fn is_left(self, noted: Option<u32>, looks_so: impl FnOnce() -> bool) -> bool {
        let Some(t) = self.thread() else { return false };
        !Path::new(&format!("/proc/{t}")).exists() && noted.map_or_else(looks_so, |n| n == t)
    }

    /// Whether it looks like the disk of some attachment, also of one whose process is not to be seen.
    pub(crate) fn looks_attached(self) -> bool {
        let Ok(thread) = self.asked() else { return true };
        let name = |t| std::fs::read_to_string(format!("/proc/{t}/comm"));
        thread.is_some_and(|t| name(t).map_or(true, |n| n.trim_end() == THREAD))
    }

    fn is_free(self) -> bool {
        self.thread().is_none() && self.sectors() == Some(0)
    }

    fn sectors(self) -> Option<u64> {
        std::fs::read_to_string(self.sys("size")).ok()?.trim().parse().ok()
    }

    /// Takes the disk away: its queues are told, and end.
    pub(crate) fn disconnect(self) -> io::Result<()> {
        sys::ioctl(self.open()?.as_fd(), DISCONNECT, 0).map(drop)
    }

    /// Has the disk take a new length over.
    pub(crate) fn resize(self, len: u64, block_size: u32) -> io::Result<()> {
        sys::ioctl(self.open()?.as_fd(), SET_BLOCKS, len / u64::from(block_size.max(1))).map(drop)
    }

    /// Tells the driver what the device is; what is wrong at the first socket says that somebody else has it. From that
    /// socket on it is ours, and no disk until it has a size.
    fn set_up(
        file: &File,
        g: Geometry,
        sockets: &[UnixStream],
        won: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), (bool, Error)> {
        let failed = |e: io::Error| Error::system("the nbd driver makes no disk", &e);
        let mut taken = false;
        for s in sockets {
            let number = s.as_raw_fd() as u64;
            sys::ioctl(file.as_fd(), SET_SOCKET, number).map_err(|e| (!taken, failed(e)))?;
            taken = true;
        }
        won().map_err(|e| (false, e))?;
        for (what, value) in [
            (SET_BLOCK_SIZE, u64::from(g.block_size)),
            (SET_BLOCKS, g.len / u64::from(g.block_size.max(1))),
            (SET_FLAGS, export_flags(g)),
            (SET_TIMEOUT, TIMEOUT),
        ] {
            sys::ioctl(file.as_fd(), what, value).map_err(|e| (false, failed(e)))?;
        }
        Ok(())
    }
}

/// Whose a device is that thread `t` serves. `all`: processes have the kernel's own numbers here.
fn whose_is(t: u32, pid: u32, noted: Option<u32>, all: bool) -> Whose {
    let is = match noted {
        Some(noted) => noted == t,
        None => Path::new(&format!("/proc/{pid}/task/{t}")).exists(),
    };
    match is {
        true => Whose::Ours,
        false if noted.is_some() || all => Whose::NotOurs,
        false => Whose::Unknown(format!(
            "the kernel says that thread {t} serves it, by a number that does not count in this container"
        )),
    }
}

/// What the driver is told about a volume.
fn export_flags(g: Geometry) -> u64 {
    let mut all =
        flags::HAS_FLAGS | flags::FLUSH | flags::FUA | flags::WRITE_ZEROES | flags::MULTI_CONN;
    for (is, flag) in [(g.thin, flags::TRIM), (g.read_only, flags::READ_ONLY)] {
        if is {
            all |= flag;
        }
    }
    all
}

/// A pair of sockets: the driver's end, and ours, which does not wait.
///
/// # Errors
/// What the operating system said.
pub fn sockets() -> io::Result<(UnixStream, UnixStream)> {
    let (theirs, ours) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    Ok((theirs, ours))
}

/// Has the driver make a disk of a volume whose queues are being served at the other ends of `sockets`, and calls
/// `ended` when it is gone. `won` is told the device while it is ours, and no disk yet.
///
/// # Errors
/// What the driver said, or `won`. Nothing is left then but the sockets' other ends.
pub(crate) fn connect(
    g: Geometry,
    sockets: Vec<UnixStream>,
    won: impl Fn(&Path) -> Result<(), Error> + Send + 'static,
    ended: impl FnOnce() + Send + 'static,
) -> Result<PathBuf, Error> {
    probe()?;
    let (tell, told) = channel();
    // The driver wants all of it from one thread, which it keeps for as long as the disk is there.
    let serve = move || {
        if let Some((device, file)) = take_device(g, &sockets, &won, &tell) {
            // The kernel has its own hold on its ends; ours would keep them open.
            drop(sockets);
            let _ = tell.send(Ok(device));
            if let Err(e) = sys::ioctl(file.as_fd(), DO_IT, 0) {
                tracing::warn!(error = %e, "the nbd driver has ended the disk");
            }
            let _ = sys::ioctl(file.as_fd(), CLEAR_SOCKETS, 0);
            drop(file);
            ended();
        }
    };
    let failed = |e: &dyn std::fmt::Display| {
        Error::new(Kind::Failed, "the nbd driver makes no disk", e, "see the kernel's log")
    };
    let thread = std::thread::Builder::new().name(THREAD.into()).spawn(serve);
    thread.map_err(|e| failed(&e))?;
    let device: Device = told.recv().map_err(|_| failed(&"its thread has ended"))??;
    let step = Duration::from_millis(10);
    for _ in 0..APPEAR.as_millis() / step.as_millis() {
        if device.is_mine() && device.sectors() == Some(g.len / 512) {
            return Ok(device.path());
        }
        std::thread::sleep(step);
    }
    if device.is_mine() {
        let _ = device.disconnect();
    }
    Err(failed(&format!("{} did not appear in {} s", device.path().display(), APPEAR.as_secs())))
}

/// A free device, set up; or the reason why there is none is told.
fn take_device(
    g: Geometry,
    sockets: &[UnixStream],
    won: &dyn Fn(&Path) -> Result<(), Error>,
    tell: &Sender<Result<Device, Error>>,
) -> Option<(Device, File)> {
    let mut why = Error::new(
        Kind::Unsupported,
        "no device of the nbd driver is free",
        format!("all {} are in use", numbers().len()),
        "detach one, or load the driver with more (`modprobe nbd nbds_max=64`)",
    );
    let free = numbers().into_iter().map(|number| Device { number }).filter(|d| d.is_free());
    for device in free {
        let file = match device.open() {
            Ok(f) => f,
            Err(e) => {
                why = Error::system(format!("{} cannot be opened", device.path().display()), &e);
                continue;
            }
        };
        match Device::set_up(&file, g, sockets, || won(&device.path())) {
            Ok(()) => {
                // Longer requests would want buffers of their own. The driver keeps to it; a refusal is answered as such.
                let longest = device.sys("queue/max_sectors_kb");
                if let Err(e) = std::fs::write(&longest, (MAX_IO >> 10).to_string()) {
                    tracing::warn!(error = %e, "{} cannot be written", longest.display());
                }
                return Some((device, file));
            }
            // Somebody was quicker.
            Err((true, _)) => {}
            Err((false, e)) => {
                let _ = sys::ioctl(file.as_fd(), CLEAR_SOCKETS, 0);
                why = e;
                break;
            }
        }
    }
    let _ = tell.send(Err(why));
    None
}

#[cfg(test)]
mod tests;

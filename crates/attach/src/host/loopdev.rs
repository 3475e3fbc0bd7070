//! Loop devices.

use crate::error::{Error, Kind};
use crate::sys;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const CONTROL: &str = "/dev/loop-control";
const MAJOR: u32 = 7;
/// Devices that others may have got first.
const TRIES: usize = 64;

// linux/loop.h
const CTL_ADD: u64 = 0x4c80;
const CTL_GET_FREE: u64 = 0x4c82;
const CONFIGURE: u64 = 0x4c0a;
const CLR_FD: u64 = 0x4c01;
const GET_STATUS64: u64 = 0x4c05;
const SET_CAPACITY: u64 = 0x4c07;
const READ_ONLY: u32 = 1;
const PARTSCAN: u32 = 8;
const DIRECT_IO: u32 = 16;
/// `struct loop_info64`, and where its flags and its name are.
const INFO: usize = 232;
const FLAGS: usize = 52;
const FILE_NAME: usize = 56;
/// `struct loop_config`: descriptor, block size, info, reserved.
const CONFIG: usize = 8 + INFO + 64;

/// Whether this machine has loop devices.
///
/// # Errors
/// What is missing.
pub(crate) fn probe() -> Result<(), Error> {
    if Path::new(CONTROL).exists() {
        return Ok(());
    }
    let hint = "load it (`modprobe loop`), or give the container the devices";
    Err(Error::new(
        Kind::Unsupported,
        "this kernel has no loop devices",
        format!("there is no {CONTROL}"),
        hint,
    ))
}

/// Makes a disk of `file`, which is read and written past the page cache; gives the disk's path. `won` is told it while it
/// is ours, and no disk yet.
///
/// # Errors
/// What the operating system said, or `won`.
pub(crate) fn configure(
    file: &Path,
    block_size: u32,
    read_only: bool,
    won: impl Fn(&Path) -> Result<(), Error>,
) -> Result<PathBuf, Error> {
    probe()?;
    let failed = |what: &str, e: &io::Error| Error::system(what.to_owned(), e);
    let control = OpenOptions::new().read(true).write(true).open(CONTROL);
    let control = control.map_err(|e| failed("/dev/loop-control cannot be opened", &e))?;
    let backing = OpenOptions::new()
        .read(true)
        .write(!read_only)
        .custom_flags(libc::O_DIRECT | libc::O_CLOEXEC)
        .open(file)
        .map_err(|e| failed("the file of the volume cannot be opened", &e))?;
    let mut config = [0; CONFIG];
    config[..4].copy_from_slice(&(backing.as_raw_fd() as u32).to_ne_bytes());
    config[4..8].copy_from_slice(&block_size.to_ne_bytes());
    let info = &mut config[8..8 + INFO];
    let flags = DIRECT_IO | PARTSCAN | if read_only { READ_ONLY } else { 0 };
    info[FLAGS..FLAGS + 4].copy_from_slice(&flags.to_ne_bytes());
    let name = file.as_os_str().as_encoded_bytes();
    let n = name.len().min(63);
    info[FILE_NAME..FILE_NAME + n].copy_from_slice(&name[..n]);
    let mut tried = Vec::new();
    for _ in 0..TRIES {
        let n = next_free(&control, &mut tried);
        let n = n.map_err(|e| failed("there is no free loop device", &e))?;
        let path = PathBuf::from(format!("/dev/loop{n}"));
        if !path.exists() {
            sys::make_block_node(&path, MAJOR, n)
                .map_err(|e| failed("a loop device has no file in /dev", &e))?;
        }
        // One that was free may be another's disk by now, which is to be mounted.
        if self::backing(&path).is_ok_and(|b| b.is_some()) {
            continue;
        }
        // A device that is opened for reading only becomes a read-only one. While we have it for ourselves nobody else
        // gives it a file.
        let device = OpenOptions::new()
            .read(true)
            .write(!read_only)
            .custom_flags(libc::O_EXCL | libc::O_CLOEXEC)
            .open(&path);
        let device = match device {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => continue,
            d => d.map_err(|e| failed("a loop device cannot be opened", &e))?,
        };
        if !has_none(&device) {
            continue;
        }
        won(&path)?;
        match sys::ioctl_struct(device.as_fd(), CONFIGURE, &mut config) {
            Ok(_) => return Ok(path),
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {}
            Err(e) => return Err(failed("a loop device does not take the volume", &e)),
        }
    }
    let why = format!("others were faster, {TRIES} times");
    Err(Error::new(Kind::Failed, "no loop device could be had", why, "try again"))
}

/// The number of a device that may be free, and is not one of those that were `tried`. The kernel calls one free as long as
/// somebody is giving it a file, which may take as long as a target does: then others are looked for, and one is made at last.
fn next_free(control: &File, tried: &mut Vec<u32>) -> io::Result<u32> {
    let number = |arg, request| {
        let n = sys::ioctl(control.as_fd(), request, arg)?;
        u32::try_from(n).map_err(io::Error::other)
    };
    let first = number(0, CTL_GET_FREE)?;
    let free = |n: &u32| !tried.contains(n);
    let n = match Some(first).filter(free).or_else(|| unbound().into_iter().find(free)) {
        Some(n) => n,
        // Any number.
        None => number(u64::MAX, CTL_ADD)?,
    };
    tried.push(n);
    Ok(n)
}

/// The devices without a file, in order.
fn unbound() -> Vec<u32> {
    let names = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let number = |e: std::fs::DirEntry| {
        let n = e.file_name().to_str()?.strip_prefix("loop")?.parse().ok()?;
        (!e.path().join("loop/backing_file").exists()).then_some(n)
    };
    let mut all: Vec<u32> = names.filter_map(number).collect();
    all.sort_unstable();
    all
}

fn open(device: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_CLOEXEC).open(device)
}

/// The file behind a loop device, or `None` when there is none.
///
/// # Errors
/// The kernel does not say.
pub(crate) fn backing(device: &Path) -> io::Result<Option<String>> {
    let name = device.file_name().and_then(|n| n.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
    let path = format!("/sys/block/{name}/loop/backing_file");
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim_end().to_owned()).filter(|t| !t.is_empty())),
        Err(e) if e.kind() == io::ErrorKind::NotFound && sys::shows_disks() => Ok(None),
        Err(e) => Err(e),
    }
}

/// Whether a loop device was given its file by this name.
///
/// # Errors
/// It cannot be asked.
pub(crate) fn is_named(device: &Path, file: &Path) -> io::Result<bool> {
    let mut info = [0; INFO];
    match sys::ioctl_struct(open(device)?.as_fd(), GET_STATUS64, &mut info) {
        Ok(_) => {
            let wanted = file.as_os_str().as_encoded_bytes();
            let wanted = &wanted[..wanted.len().min(63)];
            let name = info[FILE_NAME..FILE_NAME + 64].split(|b| *b == 0).next();
            Ok(name == Some(wanted))
        }
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Takes the file away from a loop device, which this process may have open already. While somebody else has it open that
/// happens later.
pub(crate) fn clear(device: &Path, mine: Option<File>) -> io::Result<()> {
    // By the same file: whoever is the only one keeps others out from here on.
    let d = mine.map_or_else(|| open(device), Ok)?;
    match sys::ioctl(d.as_fd(), CLR_FD, 0) {
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Ok(()),
        r => r.map(drop),
    }
}

/// The device, opened, if it `is_it` before and then: it keeps its file for as long as somebody has it open, and cannot become
/// another's. Who opens another's may wait for that.
pub(crate) fn open_if(device: &Path, is_it: impl Fn() -> bool) -> Option<File> {
    let open = is_it().then(|| open(device))?;
    open.ok().filter(|_| is_it())
}

/// True when the device certainly has no file.
pub(crate) fn is_free(device: &Path) -> bool {
    open(device).is_ok_and(|d| has_none(&d))
}

fn has_none(device: &File) -> bool {
    let mut info = [0; INFO];
    let status = sys::ioctl_struct(device.as_fd(), GET_STATUS64, &mut info);
    status.is_err_and(|e| e.raw_os_error() == Some(libc::ENXIO))
}

/// Has the device take the length of its file over.
pub(crate) fn update_capacity(device: &Path) -> io::Result<()> {
    let d = open(device)?;
    sys::ioctl(d.as_fd(), SET_CAPACITY, 0).map(drop)
}

//! A file of the volume's size, in a file system of our own (FUSE), for the kernel's loop device to make a disk of.
//!
//! Every reactor has a queue of its own: a clone of the connection to the kernel (`FUSE_DEV_IOC_CLONE`), from which it
//! takes requests, and to which it answers them. Messages are read without waiting while there is work; the ring watches
//! for the next when there is none.

mod abi;
mod queue;

pub use queue::{Census, Queue, Shown};

use crate::error::{Error, Kind};
use crate::sys;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use weir_uring::device::ATTACHED;

/// The connection to the kernel.
const DEVICE: &str = "/dev/fuse";
/// `_IOR(229, 0, u32)`
const CLONE: u64 = 0x8004_e500;

/// Name of the file in the mounted directory: the kernel tells of a loop device's file by name, so an attachment's has its
/// mark in it. Those of an older version have none.
pub(crate) fn file_name(mark: Option<&str>) -> String {
    mark.map_or_else(|| "volume".into(), |mark| format!("{ATTACHED}{mark}"))
}

/// Whether this machine can do it.
///
/// # Errors
/// What is missing.
pub fn probe() -> Result<(), Error> {
    if !Path::new(DEVICE).exists() {
        return Err(Error::new(
            Kind::Unsupported,
            "this kernel has no FUSE",
            format!("there is no {DEVICE}"),
            "load it (`modprobe fuse`), or give the container the device",
        ));
    }
    sys::open_nonblocking(Path::new(DEVICE))
        .map(drop)
        .map_err(|e| Error::system(format!("{DEVICE} cannot be opened"), &e))
}

/// A mounted file system. It lives until it is unmounted.
pub struct Mount {
    dir: PathBuf,
    connection: File,
}

impl Mount {
    /// Mounts at `dir`, an empty directory.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn new(dir: &Path) -> Result<Mount, Error> {
        probe()?;
        let failed = |e: &std::io::Error| {
            Error::system(format!("nothing can be mounted at {}", dir.display()), e)
        };
        let connection = sys::open_nonblocking(Path::new(DEVICE)).map_err(|e| failed(&e))?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,max_read={}",
            sys::number(connection.as_fd()),
            crate::disk::MAX_IO
        );
        sys::mount_fuse(dir, &options).map_err(|e| failed(&e))?;
        Ok(Mount { dir: dir.to_owned(), connection })
    }

    /// A connection for one more queue.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn connection(&self) -> Result<OwnedFd, Error> {
        let failed = |e: &std::io::Error| Error::system("FUSE gives no further queue", e);
        let clone = sys::open_nonblocking(Path::new(DEVICE)).map_err(|e| failed(&e))?;
        let mut old = (sys::number(self.connection.as_fd()) as u32).to_ne_bytes();
        sys::ioctl_struct(clone.as_fd(), CLONE, &mut old).map_err(|e| failed(&e))?;
        Ok(clone.into())
    }

    /// The file of this name.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

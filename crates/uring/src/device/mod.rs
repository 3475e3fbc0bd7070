//! Files, directories and block devices as what they are, whatever they are called.
//!
//! A device is held by one open file description in a process, which is also the one that all I/O goes by. Its lock goes
//! with the last reference to that description. The kernel keeps one for each request that is under way, so a device whose
//! process was killed stays locked until its last write has ended: who gets the lock finds nothing on its way any more.

mod answers;
mod below;
mod blkid;
mod caches;
mod content;
mod extent;
mod lasting;
mod loops;
mod openers;
mod sample;
mod signature;
mod soon;
mod users;

pub use crate::closing::{Closings, is_being_closed, is_closing};
pub use answers::ask;
pub use below::{Below, Part, above, below, below_bytes, used_beside};
pub use content::{Contents, Found, is_kind};
pub use extent::Extent;
pub(crate) use lasting::lasting_name;
pub use lasting::{is_as_recorded, lasting_name_of, overlap, same_name, says_where};
pub use loops::{ATTACHED, is_attached, loop_on};
pub use openers::{Opener, openers};
pub use sample::Sample;
pub use soon::{NotAsked, There, soon, soon_at};
pub use users::{
    all_of, is_claimed, locked_by, node_of, opened_by, other_paths, unclear_loops, used_by,
};

use crate::closing::{Aside, Waits};
use crate::file;
use std::fs::{File, Metadata, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use weir_disk::Losses;
use weir_mem::Slice;

/// `O_EXCL` without `O_CREAT` claims a block device for one open file description (open(2)): nobody can mount it meanwhile.
const EXCLUSIVE: i32 = 0o200;
/// Unit of [`Held::read`] and [`Held::write`] in bytes.
pub const PAGE: u64 = 4096;

/// What a name leads to: two names of one thing give the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// A file or directory: number of its file system, number in it.
    Inode(u64, u64),
    /// A block device: its number, whichever node of `/dev` it was reached by.
    Block(u64),
}

impl Identity {
    /// What these are the data of; none for what is neither file, directory nor block device.
    pub fn of(meta: &Metadata) -> Option<Identity> {
        let t = meta.file_type();
        if t.is_block_device() {
            Some(Identity::Block(meta.rdev()))
        } else if t.is_file() || t.is_dir() {
            Some(Identity::Inode(meta.dev(), meta.ino()))
        } else {
            None
        }
    }
}

/// Why a device cannot be held.
#[derive(Debug)]
pub enum HoldError {
    /// What the operating system said.
    Io(io::Error),
    /// Somebody has it: the kernel, another process, or writes of one that has ended.
    Busy,
    /// It is neither file, directory nor block device.
    Kind,
}

impl std::fmt::Display for HoldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HoldError::Io(e) => e.fmt(f),
            HoldError::Busy => f.write_str("another program uses it"),
            HoldError::Kind => f.write_str("it is neither a file nor a block device"),
        }
    }
}

impl std::error::Error for HoldError {}

impl From<io::Error> for HoldError {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::ResourceBusy | io::ErrorKind::WouldBlock => HoldError::Busy,
            _ => HoldError::Io(e),
        }
    }
}

/// A file, directory or block device that this process alone has, until the last user of it and the last I/O are gone.
#[derive(Debug)]
pub struct Held {
    file: Aside,
    path: PathBuf,
    identity: Identity,
    read_only: bool,
    directory: bool,
    /// Smallest transfer in bytes.
    block: u32,
    /// Bytes when somebody asked last.
    len: AtomicU64,
    /// What it is known by over restarts.
    lasting: Option<String>,
    /// Disks on it.
    users: AtomicUsize,
    losses: Arc<Losses>,
}

/// A disk's share of what is held.
#[derive(Debug)]
pub(crate) struct User(Arc<Held>);

impl User {
    pub(crate) fn of(held: &Arc<Held>) -> User {
        held.users.fetch_add(1, Ordering::AcqRel);
        User(held.clone())
    }

    pub(crate) fn held(&self) -> &Held {
        &self.0
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

fn fs_of(identity: Identity) -> u64 {
    match identity {
        Identity::Inode(fs, _) => fs,
        Identity::Block(n) => !n,
    }
}

impl Held {
    /// Opens what is at `path` and locks it. Makes and changes nothing, and does not wait for the lock; opening may take as
    /// long as the file system or driver likes, so this is not for reactors.
    ///
    /// # Errors
    /// It is not there, is no device, or somebody else has it.
    pub fn open(path: &Path, read_only: bool) -> Result<Held, HoldError> {
        Held::open_as(path, read_only, true)
    }

    /// Opens it for reading beside whoever has it. It holds nothing.
    ///
    /// # Errors
    /// It is not there, or is no device.
    pub fn beside(path: &Path) -> Result<Held, HoldError> {
        Held::open_as(path, true, false)
    }

    fn open_as(path: &Path, read_only: bool, alone: bool) -> Result<Held, HoldError> {
        // Before it is opened: opening a pipe waits for its other end.
        let meta = std::fs::metadata(path)?;
        let identity = Identity::of(&meta).ok_or(HoldError::Kind)?;
        let directory = meta.is_dir();
        let block = matches!(identity, Identity::Block(_));
        let open = |direct: bool| {
            let mut flags = libc::O_CLOEXEC;
            flags |= if block && alone { EXCLUSIVE } else { 0 };
            flags |= if direct { libc::O_DIRECT } else { 0 };
            flags |= if directory { libc::O_DIRECTORY } else { 0 };
            std::fs::OpenOptions::new()
                .read(true)
                .write(!read_only && !directory)
                .custom_flags(flags)
                .open(path)
        };
        let (file, direct) = match open(!directory) {
            Err(e) if !directory && e.raw_os_error() == Some(libc::EINVAL) => (open(false)?, false),
            other => (other?, !directory),
        };
        let there = Identity::of(&file.metadata()?);
        // From here on, so that one that is given up is closed as one that is held. Only a block device is claimed.
        let mut file = Aside::new(
            file,
            match there {
                Some(Identity::Block(_)) => Waits::Device(there.filter(|_| block && alone)),
                _ => Waits::Never,
            },
        );
        if there != Some(identity) {
            return Err(io::Error::other("it was changed for something else meanwhile").into());
        }
        match if alone { file.try_lock() } else { Ok(()) } {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(HoldError::Busy),
            Err(TryLockError::Error(e)) => return Err(e.into()),
        }
        let least = if direct { file::direct_block(&file, block) } else { 512 };
        let slow = !block && file::is_slow(&file);
        if slow {
            file.set_slow();
        }
        let lasting = lasting_name(identity, &file);
        let fua = matches!(identity, Identity::Block(number) if caches::has_fua(number));
        let held = Held {
            file,
            path: path.to_owned(),
            identity,
            read_only,
            directory,
            block: least,
            len: AtomicU64::new(0),
            lasting,
            users: AtomicUsize::new(0),
            losses: match slow || !direct {
                true => Arc::default(),
                false => caches::losses(caches::of(identity), fua),
            },
        };
        held.len()?;
        Ok(held)
    }

    /// Whether there is a disk on it.
    pub fn is_used(&self) -> bool {
        self.users.load(Ordering::Acquire) > 0
    }

    /// By which name it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// True for a block device.
    pub fn is_block(&self) -> bool {
        matches!(self.identity, Identity::Block(_))
    }

    /// True for a directory.
    pub fn is_directory(&self) -> bool {
        self.directory
    }

    /// True when it cannot be written by this.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Smallest transfer in bytes.
    pub fn block_size(&self) -> u32 {
        self.block
    }

    /// Its bytes now; 0 for a directory. Waits for the file system.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn len(&self) -> io::Result<u64> {
        let len = match self.identity {
            _ if self.directory => 0,
            Identity::Block(_) => file::device_len(&self.file)?,
            Identity::Inode(..) => self.file.metadata()?.len(),
        };
        self.len.store(len, Ordering::Release);
        Ok(len)
    }

    /// Its bytes when somebody asked last: at the latest when it was opened, or given a length.
    pub fn last_len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// The file system, or device, that it is on.
    pub(crate) fn fs(&self) -> u64 {
        fs_of(self.identity)
    }

    /// What is known of the losses of what it is on.
    pub(crate) fn losses(&self) -> &Arc<Losses> {
        &self.losses
    }

    /// It is on a file system that may have the caller wait, whatever it asked for.
    pub fn is_slow(&self) -> bool {
        self.file.is_slow()
    }

    /// True when it has no bytes.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// The descriptor.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// What tells it from others of its kind also after a restart of the machine, as far as the system knows: the number of
    /// a file and its file system, the world-wide name of a disk. None where nothing does. See [`same_name`].
    pub fn lasting_name(&self) -> Option<&str> {
        self.lasting.as_deref()
    }

    /// Whether this and another block device lead to one disk, in whole or in part, as two paths to it do: by their lasting names.
    /// One that was pulled leads nowhere.
    pub fn shares_disk(&self, other: &Held) -> bool {
        let is_there =
            |h: &Held| matches!(h.identity, Identity::Block(number) if users::is_there(number));
        let names = self.lasting_name().zip(other.lasting_name());
        self.identity != other.identity
            && names.is_some_and(|(a, b)| lasting::overlap(a, b))
            && is_there(self)
            && is_there(other)
    }

    /// Reads `len` bytes from `at`, both multiples of [`PAGE`], past the page cache. Waits for the medium.
    ///
    /// # Errors
    /// What the operating system said; it has no such bytes.
    pub fn read(&self, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let bytes = self.read_up_to(at, len)?;
        match bytes.len() == len {
            true => Ok(bytes),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// As [`read`](Held::read), and less at the end of what there is.
    fn read_up_to(&self, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let buf = Slice::heap(len);
        let mut done = 0;
        while done < len {
            // SAFETY: reads at most what is left of our own buffer, into it.
            let n = unsafe {
                let to = buf.as_ptr().add(done);
                libc::pread(
                    self.file.as_raw_fd(),
                    to.cast(),
                    len - done,
                    (at + done as u64).cast_signed(),
                )
            };
            match n {
                0 => break,
                1.. => done += n.cast_unsigned(),
                _ => return Err(io::Error::last_os_error()),
            }
            if !(at + done as u64).is_multiple_of(u64::from(self.block)) {
                // The end, inside a block.
                break;
            }
        }
        let mut bytes = buf.to_vec();
        bytes.truncate(done);
        Ok(bytes)
    }

    /// Writes `bytes`, a multiple of [`PAGE`], at such a multiple, and has the medium keep it.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let buf = Slice::copy_of(bytes);
        let mut done = 0;
        while done < bytes.len() {
            // SAFETY: writes at most what is left of our own buffer, from it.
            let n = unsafe {
                let from = buf.as_ptr().add(done);
                libc::pwrite(
                    self.file.as_raw_fd(),
                    from.cast(),
                    bytes.len() - done,
                    (at + done as u64).cast_signed(),
                )
            };
            match n {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                1.. => done += n.cast_unsigned(),
                _ => return Err(io::Error::last_os_error()),
            }
        }
        self.note(self.file.sync_data())
    }

    /// Gives a file this length, durably.
    ///
    /// # Errors
    /// What the operating system said; a block device keeps its own.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)?;
        self.len()?;
        self.note(self.file.sync_all())
    }

    /// What the file system was told of a loss concerns all that is on it.
    fn note(&self, synced: io::Result<()>) -> io::Result<()> {
        synced.inspect_err(|e| {
            let class = file::error_of(e.raw_os_error().unwrap_or(0));
            self.losses.note(&Err(class));
        })
    }

    /// What is in it, before it is given to somebody new.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn contents(&self) -> io::Result<Contents> {
        content::look(self, (0, self.len()?))
    }

    /// What is between two places of it, the first one a multiple of [`PAGE`], as if that were all.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn contents_between(&self, from: u64, to: u64) -> io::Result<Contents> {
        content::look(self, (from, to.saturating_sub(from)))
    }
}

/// A file or directory that was made a moment ago, by us: known by what it is, since its name may lead elsewhere by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made(Identity);

impl Made {
    fn of(meta: &Metadata) -> io::Result<Made> {
        Identity::of(meta).map(Made).ok_or_else(|| io::Error::other("it is no file any more"))
    }

    /// What has just been made at `path`, and nobody else has seen.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn at(path: &Path) -> io::Result<Made> {
        Made::of(&std::fs::symlink_metadata(path)?)
    }

    /// Whether this is what was made.
    pub fn is(self, identity: Identity) -> bool {
        self.0 == identity
    }

    /// Takes it away, if its name still leads to it; of a directory, the files with these names before it. Waits for the file
    /// system.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn remove(self, path: &Path, inside: &[&str]) -> io::Result<()> {
        let meta = match std::fs::symlink_metadata(path) {
            Ok(meta) if Identity::of(&meta) == Some(self.0) => meta,
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => return Ok(()),
        };
        if !meta.is_dir() {
            return std::fs::remove_file(path);
        }
        for name in inside {
            match std::fs::remove_file(path.join(name)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        std::fs::remove_dir(path)
    }

    /// Itself, if the rest of its making went well; else it goes again.
    fn when(self, path: &Path, rest: io::Result<()>) -> io::Result<Made> {
        rest.map(|()| self).inspect_err(|_| drop(self.remove(path, &[])))
    }
}

/// Makes a file of so many bytes, all zeros, that is not there yet, for nobody else to read.
///
/// # Errors
/// It exists ([`AlreadyExists`](io::ErrorKind::AlreadyExists)), or what the operating system said: then it is not there.
pub fn make_file(path: &Path, len: u64) -> io::Result<Made> {
    let new = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let made = Made::of(&new.metadata()?)?;
    let sized = new.set_len(len).and_then(|()| new.sync_all());
    made.when(path, sized.and_then(|()| sync_parent(path)))
}

/// Makes a directory that is not there yet, in one that is, for nobody else to look into.
///
/// # Errors
/// It exists ([`AlreadyExists`](io::ErrorKind::AlreadyExists)), or what the operating system said: then it is not there.
pub fn make_dir(path: &Path) -> io::Result<Made> {
    std::fs::DirBuilder::new().mode(0o700).create(path)?;
    let made = Made::at(path)?;
    made.when(path, sync_parent(path))
}

/// What a file of just so many bytes has in it. Whoever may write in its directory may have put anything in its place: opening a pipe
/// waits, a link leads anywhere, and a file may be of any size.
///
/// # Errors
/// [`InvalidData`](io::ErrorKind::InvalidData): it is no such file; what the operating system said.
pub fn read_file(path: &Path, len: u64) -> io::Result<Vec<u8>> {
    let is_it = |m: &Metadata| m.is_file() && m.len() == len;
    let other = || io::Error::from(io::ErrorKind::InvalidData);
    let meta = std::fs::symlink_metadata(path)?;
    is_it(&meta).then_some(()).ok_or_else(other)?;
    let flags = libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    is_it(&file.metadata()?).then_some(()).ok_or_else(other)?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, len), &mut bytes)?;
    Ok(bytes)
}

/// Has a directory keep the names that were made or removed in it.
fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(p) if p.as_os_str().is_empty() => File::open(".")?.sync_all(),
        Some(p) => File::open(p)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;

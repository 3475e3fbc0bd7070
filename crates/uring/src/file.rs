//! Files and block devices as disks.

use crate::closing::{Aside, Waits, close};
use crate::device::{Identity, User, lasting_name};
use crate::ring::Transfer;
use crate::{Held, Ring, holes};
use io_uring::{opcode, squeue, types};
use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use weir_base::{IoError, IoResult, Nanos, SECONDS};
use weir_disk::{Disk, DiskOp, Extent, Losses, report};
use weir_reactor::{
    Completion, LocalFuture, Token, WaitChannel, complete, completion, spawn, spawn_task, timeout,
};

/// The class of an operating system's error number.
///
/// Only what names the medium is a medium error: the block layer says ENODATA (`BLK_STS_MEDIUM`) or EILSEQ
/// (`BLK_STS_PROTECTION`), file systems that verify say EBADMSG or EUCLEAN. EIO is what everything else becomes, above
/// all a path that failed, so it proves nothing, and neither do ETIMEDOUT, ENOLINK, EREMOTEIO and their like.
pub(crate) fn error_of(errno: i32) -> IoError {
    match errno {
        libc::ENOSPC | libc::EDQUOT => IoError::NoSpace,
        libc::EROFS | libc::EPERM | libc::EACCES => IoError::ReadOnly,
        libc::ENODATA | libc::EILSEQ | libc::EBADMSG | libc::EUCLEAN => IoError::Medium,
        libc::ENODEV | libc::ENXIO | libc::ESHUTDOWN => IoError::Offline,
        libc::EAGAIN | libc::EBUSY | libc::ENOMEM | libc::ENOBUFS => IoError::Busy,
        libc::EIO
        | libc::ETIMEDOUT
        | libc::ETIME
        | libc::ENOLINK
        | libc::EREMOTEIO
        | libc::EBADE
        | libc::ECOMM
        | libc::ECONNABORTED
        | libc::ECONNRESET
        | libc::ECONNREFUSED
        | libc::ENOTCONN
        | libc::EPIPE
        | libc::EHOSTDOWN
        | libc::EHOSTUNREACH
        | libc::ENETDOWN
        | libc::ENETUNREACH
        | libc::ESTALE
        | libc::EINTR => IoError::Path,
        libc::EOPNOTSUPP => IoError::Unsupported,
        libc::ECANCELED => IoError::Aborted,
        libc::EFBIG => IoError::OutOfRange,
        _ => IoError::Internal,
    }
}

/// How long a file system may take to tell where a file has holes.
const ANSWER: Nanos = 20 * SECONDS;

/// A disk's descriptor, which all that is under way on it keeps.
#[derive(Clone)]
pub(crate) struct Kept(Rc<Descriptor>);

struct Descriptor {
    fd: Aside,
    /// What it is a duplicate of. Closed after it, and so the last one.
    _of: Option<Arc<Held>>,
}

impl Kept {
    fn try_clone(&self) -> std::io::Result<OwnedFd> {
        self.0.fd.try_clone().map(OwnedFd::from)
    }
}

impl AsRawFd for Kept {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd.as_raw_fd()
    }
}

/// What is left of a disk that is gone: requests of it that have not ended have it open.
#[derive(Clone)]
pub struct Remains(Weak<Descriptor>);

impl Remains {
    /// It is open yet: by its disk, or by what is under way.
    pub fn is_open(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// How to open a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    /// Make the file when it is absent.
    pub create: bool,
    /// Size in bytes to give to a file that is shorter (sparse); `None` leaves it.
    pub len: Option<u64>,
    /// Go past the page cache; falls back to the page cache where the file system cannot.
    pub direct: bool,
    /// Refuse writes.
    pub read_only: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions { create: false, len: None, direct: true, read_only: false }
    }
}

/// Requests that a file system with [slow](FileDisk) files is given by a reactor at once; each keeps a thread of the kernel.
const SLOW: u32 = 64;

/// A file or block device as one reactor's disk.
///
/// It is *slow* where its file system may have the caller wait for it (FUSE, NFS): requests are handed to threads of the kernel
/// then, and no reactor waits.
pub struct FileDisk {
    fd: Kept,
    name: String,
    /// What it is, if it is held.
    identity: Option<String>,
    ring: Ring,
    len: Cell<u64>,
    block: u32,
    device: bool,
    read_only: bool,
    /// Of a slow one: a unit for each request that its file system may be given.
    slow: Option<Rc<WaitChannel>>,
    /// The file system, or device, that it is on.
    fs: u64,
    /// For questions about holes.
    asked: OnceCell<Arc<OwnedFd>>,
    /// What it is on is held as long as it is there.
    held: Option<User>,
}

impl FileDisk {
    /// A disk on what is held, by the name that it has now, as long as that was when somebody asked last. It goes by the same open
    /// file description, so the lock stays until its last I/O has ended. Waits for nothing.
    ///
    /// # Errors
    /// What the operating system said; it is a directory.
    pub fn on(ring: &Ring, name: &Path, held: &Arc<Held>) -> std::io::Result<FileDisk> {
        if held.is_directory() {
            return Err(std::io::Error::other("neither a file nor a block device"));
        }
        let (len, block) = (held.last_len(), held.block_size());
        // What is held is closed after it: of a device, that is the last one.
        let waits = if held.is_slow() { Waits::FileSystem } else { Waits::Never };
        let fd = Aside::new(held.file().try_clone()?, waits);
        Ok(FileDisk {
            fd: Kept(Rc::new(Descriptor { fd, _of: Some(held.clone()) })),
            name: name.display().to_string(),
            identity: Some(format!("{:?}", held.identity())),
            ring: ring.clone(),
            len: Cell::new(len - len % u64::from(block)),
            block,
            device: held.is_block(),
            read_only: held.is_read_only(),
            slow: held.is_slow().then(|| ring.lane(held.fs(), SLOW)),
            fs: held.fs(),
            asked: OnceCell::new(),
            held: Some(User::of(held)),
        })
    }

    /// Opens `path` without a lock: for tools, and for files that nobody else knows. Waits for the file system.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn open(ring: &Ring, path: &Path, o: OpenOptions) -> std::io::Result<FileDisk> {
        Ok(FileDisk::of(ring, Opened::open(path, o)?))
    }

    /// A disk on what was opened elsewhere. Waits for nothing.
    pub fn of(ring: &Ring, o: Opened) -> FileDisk {
        FileDisk {
            slow: o.file.is_slow().then(|| ring.lane(o.fs, SLOW)),
            fd: Kept(Rc::new(Descriptor { fd: o.file, _of: None })),
            name: o.name,
            identity: None,
            ring: ring.clone(),
            len: Cell::new(o.len - o.len % u64::from(o.block)),
            block: o.block,
            device: o.device,
            read_only: o.read_only,
            fs: o.fs,
            asked: OnceCell::new(),
            held: None,
        }
    }

    /// What tells of it after its end.
    pub fn remains(&self) -> Remains {
        Remains(Rc::downgrade(&self.fd.0))
    }
}

/// A file or block device that was opened without a lock, where that may wait, to be a disk of a reactor.
pub struct Opened {
    file: Aside,
    name: String,
    len: u64,
    block: u32,
    device: bool,
    read_only: bool,
    fs: u64,
}

impl Opened {
    /// Opens `path`. Waits for the file system.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn open(path: &Path, o: OpenOptions) -> std::io::Result<Opened> {
        let open = |direct: bool| {
            std::fs::OpenOptions::new()
                .read(true)
                .write(!o.read_only)
                .create(o.create && !o.read_only)
                .mode(0o600)
                .custom_flags(libc::O_CLOEXEC | if direct { libc::O_DIRECT } else { 0 })
                .open(path)
        };
        let (file, direct) = match open(o.direct) {
            Err(e) if o.direct && e.raw_os_error() == Some(libc::EINVAL) => (open(false)?, false),
            other => (other?, o.direct),
        };
        let meta = file.metadata()?;
        let device = meta.file_type().is_block_device();
        if !device && !meta.is_file() {
            return Err(std::io::Error::other("neither a file nor a block device"));
        }
        let mut len = if device { device_len(&file)? } else { meta.len() };
        if let Some(want) = o.len
            && !device
            && want > len
        {
            file.set_len(want)?;
            len = want;
        }
        let block = if direct { direct_block(&file, device) } else { 512 };
        let name = path.display().to_string();
        let fs = if device { !meta.rdev() } else { meta.dev() };
        // It claims nothing.
        let waits = match device {
            true => Waits::Device(None),
            false if is_slow(&file) => Waits::FileSystem,
            false => Waits::Never,
        };
        let file = Aside::new(file, waits);
        Ok(Opened { file, name, len, block, device, read_only: o.read_only, fs })
    }

    /// What it is.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn identity(&self) -> std::io::Result<Identity> {
        Identity::of(&self.file.metadata()?).ok_or_else(|| std::io::ErrorKind::InvalidInput.into())
    }

    /// As [`Held::lasting_name`]. Waits for the file system.
    pub fn lasting_name(&self) -> Option<String> {
        lasting_name(self.identity().ok()?, &self.file)
    }
}

/// Whether a file is on a file system that may have the caller wait, whatever it asked for: all but those that are known not to.
pub(crate) fn is_slow(file: &File) -> bool {
    /// ext2 to 4, XFS, btrfs, F2FS, tmpfs, bcachefs, and overlays of these (magic numbers of statfs(2)).
    const QUICK: [libc::__fsword_t; 7] =
        [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994, 0xca45_1a4e, 0x794c_7630];
    // SAFETY: an all-zero statfs buffer is a valid value of that plain C struct.
    let mut s: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a valid buffer, and a descriptor that `file` owns.
    let asked = unsafe { libc::fstatfs(file.as_raw_fd(), &mut s) };
    asked < 0 || !QUICK.contains(&(s.f_type & 0xffff_ffff))
}

pub(crate) fn device_len(file: &File) -> std::io::Result<u64> {
    const BLKGETSIZE64: u64 = 0x8008_1272;
    let mut n = 0u64;
    // SAFETY: BLKGETSIZE64 writes one u64 to the address given.
    if unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64 as _, &mut n) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(n)
}

/// Smallest transfer that O_DIRECT allows here.
pub(crate) fn direct_block(file: &File, device: bool) -> u32 {
    if device {
        const BLKSSZGET: u64 = 0x1268;
        let mut n = 0i32;
        // SAFETY: BLKSSZGET writes one int to the address given.
        if unsafe { libc::ioctl(file.as_raw_fd(), BLKSSZGET as _, &mut n) } >= 0 && n > 0 {
            return n as u32;
        }
        return 4096;
    }
    // statx tells since Linux 6.1, on file systems that know. Elsewhere a read is tried.
    // SAFETY: an all-zero statx buffer is a valid value of that plain C struct.
    let mut sx: libc::statx = unsafe { std::mem::zeroed() };
    const STATX_DIOALIGN: u32 = 0x2000;
    // SAFETY: an empty path with AT_EMPTY_PATH asks about the descriptor itself; sx is a valid buffer.
    let r = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, STATX_DIOALIGN, &mut sx)
    };
    if r == 0 && sx.stx_mask & STATX_DIOALIGN != 0 && sx.stx_dio_offset_align > 0 {
        return sx.stx_dio_offset_align.clamp(512, 4096);
    }
    let buf = weir_mem::Slice::heap(4096);
    // SAFETY: reads at most 512 bytes into our own buffer, from a place that is a multiple of 512 only.
    let n = unsafe { libc::pread(file.as_raw_fd(), buf.as_ptr().cast(), 512, 512) };
    if n >= 0 { 512 } else { 4096 }
}

impl Disk for FileDisk {
    fn len(&self) -> u64 {
        self.len.get()
    }

    fn block_size(&self) -> u32 {
        self.block
    }

    fn volatile_cache(&self) -> bool {
        // Device caches and file systems alike promise durability only at fsync.
        true
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn identity(&self) -> Cow<'_, str> {
        self.identity.as_deref().unwrap_or(&self.name).into()
    }

    fn submit(&self, op: DiskOp, token: Token) {
        let (at, n) = match &op {
            DiskOp::Read { offset, buf } | DiskOp::Write { offset, buf, .. } => {
                (*offset, buf.len() as u64)
            }
            DiskOp::Discard { offset, len } | DiskOp::WriteZeroes { offset, len, .. } => {
                (*offset, *len)
            }
            DiskOp::Flush => (0, 0),
        };
        if at.checked_add(n).is_none_or(|end| end > self.len.get()) {
            return complete(token, report(Err(IoError::OutOfRange)));
        }
        if self.read_only && !matches!(op, DiskOp::Read { .. } | DiskOp::Flush) {
            return complete(token, report(Err(IoError::ReadOnly)));
        }
        let (ring, losses) = (self.ring.clone(), self.losses());
        let io = Io { ring, fd: self.fd.clone(), device: self.device, losses };
        if let Some(lane) = self.slow.clone() {
            spawn_task(async move {
                lane.wait().await;
                let done = io.slowly(op).await;
                lane.signal();
                complete(token, done);
            });
        } else if io.losses.is_some() && matches!(op, DiskOp::Flush) {
            spawn_task(async move { complete(token, io.flush(false).await) });
        } else {
            io.start(op, token, false);
        }
    }

    fn set_len(&self, len: u64) -> IoResult {
        if self.device || self.read_only {
            return Err(IoError::Unsupported);
        }
        // For tools and tests: the daemon sizes files where it may wait (`Held::set_len`).
        // SAFETY: plain system call on a descriptor that self owns.
        if unsafe { libc::ftruncate(self.fd.as_raw_fd(), len as libc::off_t) } < 0 {
            let e = std::io::Error::last_os_error();
            return Err(error_of(e.raw_os_error().unwrap_or(0)));
        }
        self.len.set(len);
        Ok(())
    }

    fn extent(&self, at: u64, len: u64) -> LocalFuture<'_, Extent> {
        Box::pin(async move {
            let all = Extent { mapped: true, len };
            if self.device {
                return all;
            }
            // A descriptor of its own: the question may outlive the disk.
            let file = match self.asked.get() {
                Some(f) => f.clone(),
                None => match self.fd.try_clone() {
                    Ok(f) => self.asked.get_or_init(|| Arc::new(f)).clone(),
                    Err(_) => return all,
                },
            };
            // One question at a time: more would not be answered sooner. One that hangs keeps its turn, and the others give up.
            let (fs, turn) = (self.fs, self.ring.lane(self.fs, 1));
            let ask = async {
                turn.wait().await;
                // It goes on when nobody waits for it any more.
                let turn = turn.clone();
                let asked = spawn(async move {
                    let found = holes::find(fs, file, at, len).await;
                    turn.signal();
                    found
                });
                asked.await
            };
            match timeout(ANSWER, ask).await {
                Ok(Some(Some(found))) => found,
                _ => all,
            }
        })
    }

    fn is_thin(&self) -> bool {
        !self.device
    }

    fn allocated(&self) -> Option<u64> {
        if self.device {
            return None;
        }
        // For tools and tests.
        // SAFETY: an all-zero stat buffer is a valid value of that plain C struct.
        let mut st: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: a valid buffer, and a descriptor that self owns.
        let done = unsafe { libc::fstat(self.fd.as_raw_fd(), &mut st) } == 0;
        done.then(|| st.st_blocks.cast_unsigned() * 512)
    }

    fn losses(&self) -> Option<Arc<Losses>> {
        self.held.as_ref().map(|h| h.held().losses().clone())
    }
}

impl Drop for FileDisk {
    fn drop(&mut self) {
        if let Some(asked) = self.asked.take()
            && self.fd.0.fd.is_slow()
        {
            close(asked);
        }
    }
}

/// What requests go by.
struct Io {
    ring: Ring,
    fd: Kept,
    device: bool,
    losses: Option<Arc<Losses>>,
}

impl Io {
    /// A flush whose end is noted.
    async fn flush(&self, slow: bool) -> Completion {
        let run = async || {
            let (token, done) = completion();
            self.start(DiskOp::Flush, token, slow);
            done.await
        };
        let Some(losses) = &self.losses else { return run().await };
        let mut done = None;
        let io = async {
            let c = run().await;
            done = Some(c);
            weir_disk::status(c)
        };
        let ended = losses.flush(io).await;
        done.unwrap_or_else(|| report(ended))
    }

    /// Where the file system may have the caller wait. Not all of these have a write kept before it ends because it says so (FUSE
    /// with FOPEN_DIRECT_IO does not): they are asked by fsync.
    async fn slowly(&self, op: DiskOp) -> Completion {
        let run = |op| {
            let (token, done) = completion();
            self.start(op, token, true);
            done
        };
        let (offset, buf) = match op {
            DiskOp::Write { offset, buf, fua: true } => (offset, buf),
            DiskOp::Flush => return self.flush(true).await,
            other => return run(other).await,
        };
        let written = run(DiskOp::Write { offset, buf, fua: false }).await;
        if !written.is_ok() {
            return written;
        }
        let kept = self.flush(true).await;
        if kept.is_ok() { written } else { kept }
    }

    fn start(&self, op: DiskOp, token: Token, slow: bool) {
        let fd = types::Fd(self.fd.as_raw_fd());
        let entry = match op {
            DiskOp::Read { offset, buf } => {
                let t = Transfer { write: false, offset, buf, flags: 0, slow };
                return self.ring.transfer(token, &self.fd, t);
            }
            DiskOp::Write { offset, buf, fua } => {
                let flags = if fua { libc::RWF_DSYNC } else { 0 };
                let t = Transfer { write: true, offset, buf, flags, slow };
                return self.ring.transfer(token, &self.fd, t);
            }
            DiskOp::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            DiskOp::Discard { offset, len } => self.punch(offset, len),
            DiskOp::WriteZeroes { offset, len, unmap } if unmap || self.device => {
                self.punch(offset, len)
            }
            DiskOp::WriteZeroes { offset, len, .. } => {
                let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build()
            }
        };
        let entry = if slow { entry.flags(squeue::Flags::ASYNC) } else { entry };
        self.ring.plain(token, &self.fd, entry);
    }

    /// Deallocates; the range reads as zeros (files, and block devices since Linux 4.9).
    fn punch(&self, offset: u64, len: u64) -> squeue::Entry {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let fd = types::Fd(self.fd.as_raw_fd());
        opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_names_the_medium_is_a_medium_error() {
        for (errno, class) in [
            (libc::ENODATA, IoError::Medium),
            (libc::EILSEQ, IoError::Medium),
            (libc::EBADMSG, IoError::Medium),
            (libc::EIO, IoError::Path),
            (libc::ETIMEDOUT, IoError::Path),
            (libc::ENOLINK, IoError::Path),
            (libc::EREMOTEIO, IoError::Path),
            (libc::ENOTCONN, IoError::Path),
            (libc::ENOMEM, IoError::Busy),
            (libc::EAGAIN, IoError::Busy),
            (libc::ENODEV, IoError::Offline),
            (libc::ENOSPC, IoError::NoSpace),
            (libc::EINVAL, IoError::Internal),
        ] {
            assert_eq!(error_of(errno), class, "errno {errno}");
        }
    }
}

//! Files and block devices as disks.

use crate::{Held, Ring, holes};
use io_uring::{opcode, types};
use std::cell::{Cell, OnceCell};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{IoError, IoResult};
use weir_disk::{Disk, DiskOp, Extent, report};
use weir_reactor::{LocalFuture, Token, complete};

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

/// A file or block device as one reactor's disk.
pub struct FileDisk {
    fd: Rc<OwnedFd>,
    name: String,
    ring: Ring,
    len: Cell<u64>,
    block: u32,
    device: bool,
    read_only: bool,
    /// For questions about holes.
    asked: OnceCell<Arc<OwnedFd>>,
    /// It is on something that is held.
    _user: Option<Arc<()>>,
}

impl FileDisk {
    /// A disk on what is held. It goes by the same open file description, so the lock stays until its last I/O has ended.
    ///
    /// # Errors
    /// What the operating system said; it is a directory.
    pub fn on(ring: &Ring, held: &Held) -> std::io::Result<FileDisk> {
        if held.is_directory() {
            return Err(std::io::Error::other("neither a file nor a block device"));
        }
        let (len, block) = (held.len()?, held.block_size());
        Ok(FileDisk {
            fd: Rc::new(OwnedFd::from(held.file().try_clone()?)),
            name: held.path().display().to_string(),
            ring: ring.clone(),
            len: Cell::new(len - len % u64::from(block)),
            block,
            device: held.is_block(),
            read_only: held.is_read_only(),
            asked: OnceCell::new(),
            _user: Some(held.user()),
        })
    }

    /// Opens `path` without a lock: for tools, and for files that nobody else knows.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn open(ring: &Ring, path: &Path, o: OpenOptions) -> std::io::Result<FileDisk> {
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
        Ok(FileDisk {
            fd: Rc::new(OwnedFd::from(file)),
            name: path.display().to_string(),
            ring: ring.clone(),
            len: Cell::new(len - len % u64::from(block)),
            block,
            device,
            read_only: o.read_only,
            asked: OnceCell::new(),
            _user: None,
        })
    }
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

    fn submit(&self, op: DiskOp, token: Token) {
        let fd = types::Fd(self.fd.as_raw_fd());
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
        match op {
            DiskOp::Read { offset, buf } => {
                self.ring.transfer(token, &self.fd, false, offset, buf, 0);
            }
            DiskOp::Write { offset, buf, fua } => {
                let flags = if fua { libc::RWF_DSYNC } else { 0 };
                self.ring.transfer(token, &self.fd, true, offset, buf, flags);
            }
            DiskOp::Flush => {
                let e = opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build();
                self.ring.plain(token, &self.fd, e);
            }
            DiskOp::Discard { offset, len } => self.punch(token, offset, len),
            DiskOp::WriteZeroes { offset, len, unmap } => {
                if unmap || self.device {
                    return self.punch(token, offset, len);
                }
                let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
                let e = opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build();
                self.ring.plain(token, &self.fd, e);
            }
        }
    }

    fn set_len(&self, len: u64) -> IoResult {
        if self.device || self.read_only {
            return Err(IoError::Unsupported);
        }
        // Rare and quick (metadata only), so it may hold the reactor up.
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
            holes::find(file, at, len).await.unwrap_or(all)
        })
    }

    fn allocated(&self) -> Option<u64> {
        if self.device {
            return None;
        }
        // SAFETY: an all-zero stat buffer is a valid value of that plain C struct.
        let mut st: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: a valid buffer, and a descriptor that self owns.
        let done = unsafe { libc::fstat(self.fd.as_raw_fd(), &mut st) } == 0;
        done.then(|| st.st_blocks.cast_unsigned() * 512)
    }
}

impl FileDisk {
    /// Deallocates; the range reads as zeros (files, and block devices since Linux 4.9).
    fn punch(&self, token: Token, offset: u64, len: u64) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let fd = types::Fd(self.fd.as_raw_fd());
        let e = opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build();
        self.ring.plain(token, &self.fd, e);
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

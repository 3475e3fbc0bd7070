//! The system calls that the standard library does not have. All `unsafe` code of the crate is here.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use weir_mem::Slice;

fn done(r: libc::c_int) -> io::Result<libc::c_int> {
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(r) }
}

fn text(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// An `ioctl` whose argument is a number, or none.
pub(crate) fn ioctl(fd: BorrowedFd<'_>, request: u64, arg: u64) -> io::Result<libc::c_int> {
    // SAFETY: the requests that this crate makes with a number take it as such, and touch no memory of ours.
    done(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, arg) })
}

/// An `ioctl` whose argument is a structure.
///
/// `arg` is as long as the request's structure; all callers pass arrays of its size.
pub(crate) fn ioctl_struct(
    fd: BorrowedFd<'_>,
    request: u64,
    arg: &mut [u8],
) -> io::Result<libc::c_int> {
    // SAFETY: the kernel reads and writes the structure of that request at an address where as many bytes are ours.
    done(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, arg.as_mut_ptr()) })
}

/// Mounts a FUSE file system at `dir`.
pub(crate) fn mount_fuse(dir: &Path, options: &str) -> io::Result<()> {
    let (dir, options) = (text(dir)?, text(Path::new(options))?);
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC | libc::MS_NOATIME;
    // SAFETY: all pointers are to strings with an end that live during the call.
    let r = unsafe {
        libc::mount(
            c"weir".as_ptr(),
            dir.as_ptr(),
            c"fuse.weir".as_ptr(),
            flags,
            options.as_ptr().cast(),
        )
    };
    done(r).map(drop)
}

/// Unmounts what is mounted at `dir`. By `force` it is out of sight at once, and whatever waits for its server, which nobody is any
/// more, ends with an error: a process that was killed may wait for itself.
pub(crate) fn unmount(dir: &Path, force: bool) -> io::Result<()> {
    let dir = text(dir)?;
    let forced = if force { libc::MNT_DETACH | libc::MNT_FORCE } else { 0 };
    let flags = libc::UMOUNT_NOFOLLOW | forced;
    // SAFETY: the path is a string with an end that lives during the call.
    done(unsafe { libc::umount2(dir.as_ptr(), flags) }).map(drop)
}

/// Reads one message: its head to `head`, what does not fit there to `rest`.
pub(crate) fn read_two(fd: BorrowedFd<'_>, head: &mut [u8], rest: &Slice) -> io::Result<usize> {
    let parts = [
        libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() },
        libc::iovec { iov_base: rest.as_ptr().cast(), iov_len: rest.len() },
    ];
    // SAFETY: both parts are valid for writes of their lengths; the slice keeps its memory alive.
    let n = unsafe { libc::readv(fd.as_raw_fd(), parts.as_ptr(), 2) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Writes one message of a head and what follows it.
pub(crate) fn write_two(
    fd: BorrowedFd<'_>,
    head: &[u8],
    rest: Option<&Slice>,
) -> io::Result<usize> {
    let (base, len) = rest.map_or((std::ptr::null_mut(), 0), |r| (r.as_ptr(), r.len()));
    let parts = [
        libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() },
        libc::iovec { iov_base: base.cast(), iov_len: len },
    ];
    let n = if rest.is_some() { 2 } else { 1 };
    // SAFETY: the parts are valid for reads of their lengths, and writev does not write to them.
    let n = unsafe { libc::writev(fd.as_raw_fd(), parts.as_ptr(), n) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Whether the file descriptor is broken (its other end is gone).
pub(crate) fn is_broken(fd: BorrowedFd<'_>) -> bool {
    let mut p = libc::pollfd { fd: fd.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one entry, which is ours.
    let n = unsafe { libc::poll(&mut p, 1, 0) };
    n > 0 && p.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0
}

/// A shared mapping of a device, for reading.
pub(crate) struct Mapping {
    base: std::ptr::NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes of `fd` from `offset` on.
    pub(crate) fn new(fd: BorrowedFd<'_>, offset: usize, len: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing of ours.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, flags, fd.as_raw_fd(), offset)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = std::ptr::NonNull::new(base.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Mapping { base, len })
    }

    /// The `N` bytes at `at`, which the kernel does not change meanwhile; zeroes beyond the end.
    pub(crate) fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        if at.checked_add(N).is_none_or(|end| end > self.len) {
            return [0; N];
        }
        // SAFETY: within the mapping, which lives as long as self. Volatile, as another writes there between calls.
        unsafe { std::ptr::read_volatile(self.base.as_ptr().add(at).cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody has a reference into it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Gives the ublk driver a control command whose buffer is `buf`.
pub(crate) fn ublk_control(
    fd: BorrowedFd<'_>,
    op: u32,
    device: u32,
    buf: &mut [u8],
    data: u64,
) -> io::Result<i32> {
    let mut c = [0u8; 80];
    c[..4].copy_from_slice(&device.to_ne_bytes());
    // No queue.
    c[4..6].copy_from_slice(&u16::MAX.to_ne_bytes());
    if !buf.is_empty() {
        c[6..8].copy_from_slice(&(buf.len() as u16).to_ne_bytes());
        c[8..16].copy_from_slice(&(buf.as_mut_ptr() as u64).to_ne_bytes());
    }
    c[16..24].copy_from_slice(&data.to_ne_bytes());
    // SAFETY: the driver reads and writes at most as many bytes of the buffer as the command says, which are ours.
    unsafe { weir_uring::control(fd, op, c) }
}

/// Gives the ublk driver the command of one I/O; it may read from and write to `buf` until the completion.
pub(crate) async fn ublk_io(
    ring: &weir_uring::Ring,
    fd: &std::rc::Rc<std::os::fd::OwnedFd>,
    op: u32,
    queue: u16,
    tag: u16,
    result: i32,
    buf: &Slice,
) -> i32 {
    let mut c = [0u8; 16];
    c[..2].copy_from_slice(&queue.to_ne_bytes());
    c[2..4].copy_from_slice(&tag.to_ne_bytes());
    c[4..8].copy_from_slice(&result.to_ne_bytes());
    c[8..].copy_from_slice(&(buf.as_ptr() as u64).to_ne_bytes());
    // SAFETY: the buffer of a tag is as long as the longest request that the driver was told of. Its owner keeps it for
    // as long as the device's file, without which the driver does not touch it.
    unsafe { ring.command(fd, op, c) }.await.result
}

/// Makes a block device's file.
pub(crate) fn make_block_node(path: &Path, major: u32, minor: u32) -> io::Result<()> {
    let path = text(path)?;
    let device = libc::makedev(major, minor);
    // SAFETY: the path is a string with an end that lives during the call.
    done(unsafe { libc::mknod(path.as_ptr(), libc::S_IFBLK | 0o600, device) }).map(drop)
}

/// Whether the kernel tells of its disks here, so that one which is not among them is not there.
pub(crate) fn shows_disks() -> bool {
    std::fs::read_dir("/sys/block").is_ok_and(|mut all| all.next().is_some())
}

/// Whether processes have the numbers here that the kernel itself gives them.
pub(crate) fn has_all_processes() -> bool {
    use std::os::unix::fs::MetadataExt;
    /// `PROC_PID_INIT_INO` (linux/proc_ns.h).
    const INITIAL: u64 = 0xefff_fffc;
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|m| m.ino() == INITIAL)
}

/// Whether a file is one of the kernel's process file system: a container may have another in its place.
pub(crate) fn is_of_proc(file: BorrowedFd<'_>) -> bool {
    // SAFETY: a zeroed structure is a valid value of that plain C type.
    let mut of: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one structure to a local.
    let r = unsafe { libc::fstatfs(file.as_raw_fd(), &mut of) };
    r == 0 && of.f_type == libc::PROC_SUPER_MAGIC
}

/// A number that nobody else has.
pub(crate) fn random() -> io::Result<u64> {
    let mut b = [0u8; 8];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut b)?;
    Ok(u64::from_ne_bytes(b))
}

/// True for root.
pub fn is_root() -> bool {
    // SAFETY: has no conditions.
    unsafe { libc::geteuid() == 0 }
}

/// Makes this process one of its own session, without a terminal.
///
/// # Errors
/// It leads a process group.
pub fn leave_session() -> io::Result<()> {
    // SAFETY: has no conditions.
    done(unsafe { libc::setsid() }).map(drop)
}

/// Points standard output to nowhere.
///
/// # Errors
/// There is no `/dev/null`.
pub fn close_stdout() -> io::Result<()> {
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    // SAFETY: both descriptors are open; nobody owns number 1 but the process as a whole.
    done(unsafe { libc::dup2(null.as_raw_fd(), libc::STDOUT_FILENO) }).map(drop)
}

/// Tells the kernel that this process serves a disk: memory is not reclaimed for it by writing to that very disk, it is
/// not swapped out, and it is the last to be killed for want of memory. Without the rights for that it goes without.
pub(crate) fn become_io_server() {
    const PR_SET_IO_FLUSHER: libc::c_int = 57;
    // SAFETY: neither call has conditions on memory.
    unsafe {
        libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
        const MCL_ONFAULT: libc::c_int = 4;
        libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | MCL_ONFAULT);
    }
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
}

/// Gives this thread a file table of its own, in which are the standard streams only. Nothing that lives on it owns a file.
pub(crate) fn have_own_files() -> io::Result<()> {
    const OTHERS: RawFd = 3;
    // SAFETY: the numbers are plain, and of other threads' files none is closed.
    let r = unsafe {
        libc::syscall(libc::SYS_close_range, OTHERS, RawFd::MAX, libc::CLOSE_RANGE_UNSHARE)
    };
    if r == 0 {
        return Ok(());
    }
    // Before Linux 5.9.
    // SAFETY: has no conditions on memory.
    done(unsafe { libc::unshare(libc::CLONE_FILES) })?;
    let open = std::fs::read_dir("/proc/thread-self/fd")?.flatten();
    let open: Vec<RawFd> = open.filter_map(|f| f.file_name().to_str()?.parse().ok()).collect();
    for fd in open.into_iter().filter(|fd| *fd >= OTHERS) {
        // SAFETY: it is a copy that nobody owns; the one with which this was read is closed already.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

/// Sends a signal.
pub(crate) fn kill(pid: u32, signal: libc::c_int) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from(io::ErrorKind::NotFound))?;
    // SAFETY: has no conditions.
    done(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// Signals that are held back from this thread and those that it starts, for one thread to read.
pub(crate) struct Held(libc::sigset_t);

impl Held {
    /// Holds these back, but for those that are ignored: that goes on.
    pub(crate) fn hold(signals: &[libc::c_int]) -> io::Result<Held> {
        // SAFETY: a zeroed set is a valid value of that plain C type; sigemptyset makes it an empty one.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is ours, and the numbers are signals.
        let r = unsafe {
            libc::sigemptyset(&mut set);
            for s in signals.iter().filter(|s| !is_ignored(**s)) {
                libc::sigaddset(&mut set, *s);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut())
        };
        if r != 0 { Err(io::Error::from_raw_os_error(r)) } else { Ok(Held(set)) }
    }

    /// Waits for one of them.
    pub(crate) fn wait(&self) -> libc::c_int {
        let mut signal = 0;
        // SAFETY: the set is ours; the number goes to a local.
        unsafe { libc::sigwait(&self.0, &mut signal) };
        signal
    }
}

/// Whether a signal is ignored, as under `nohup`.
fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: a zeroed structure is a valid value of that plain C type.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed; what is so goes to a local.
    let r = unsafe { libc::sigaction(signal, std::ptr::null(), &mut now) };
    r == 0 && now.sa_sigaction == libc::SIG_IGN
}

/// Has this process ignore what the keys and the rules of a terminal stop processes with.
pub(crate) fn ignore_stops() {
    for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
        // SAFETY: to ignore a signal runs nothing of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Whether nobody reads what this process says to standard output any more: that is a pipe, and has no other end.
pub(crate) fn is_stdout_broken() -> bool {
    use std::os::fd::AsFd;
    is_broken(io::stdout().as_fd())
}

/// Opens a device of the FUSE kind, or another, for reading and writing without waiting.
pub(crate) fn open_nonblocking(path: &Path) -> io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)
}

/// The number of a descriptor, for mount options.
pub(crate) fn number(fd: BorrowedFd<'_>) -> RawFd {
    fd.as_raw_fd()
}

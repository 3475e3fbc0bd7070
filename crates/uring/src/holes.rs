//! Where a file has holes.
//!
//! The ring has no operation for that question, and the system call may have to read the file system's metadata.

use crate::blocking;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use weir_disk::Extent;

/// The first extent of `at..at+len`; `None` when the file system does not tell.
pub(crate) async fn find(fs: u64, file: Arc<OwnedFd>, at: u64, len: u64) -> Option<Extent> {
    // Each reactor asks a file system one question at a time.
    let about = fs.rotate_left(32) ^ u64::from(weir_reactor::current_id());
    blocking(about, move || look(&file, at, len)).await?
}

fn look(file: &OwnedFd, at: u64, len: u64) -> Option<Extent> {
    let seek = |whence: libc::c_int| {
        let from = libc::off_t::try_from(at).ok()?;
        // SAFETY: plain system call on a descriptor that is open; nobody uses the position that it sets.
        let to = unsafe { libc::lseek(file.as_raw_fd(), from, whence) };
        if to >= 0 {
            return u64::try_from(to).ok();
        }
        // No data from here to the end.
        let none = std::io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO);
        none.then_some(u64::MAX)
    };
    let data = seek(libc::SEEK_DATA)?;
    if data > at {
        return Some(Extent { mapped: false, len: (data - at).min(len) });
    }
    let hole = seek(libc::SEEK_HOLE)?;
    // It may have been punched between the two questions.
    Some(Extent { mapped: true, len: hole.saturating_sub(at).clamp(1, len.max(1)) })
}

//! The contract between layers and whatever stores bytes: files and block devices through io_uring
//! (`weir-uring`), or simulated disks that tear, lose and rot (`weir-sim`).

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod losses;

pub use losses::Losses;
use std::borrow::Cow;
use std::sync::Arc;
use weir_base::{IoError, IoResult};
use weir_mem::Slice;
use weir_reactor::{Completion, LocalFuture, Token, completion};

/// One operation on a disk. Offsets and lengths are bytes and multiples of the disk's block size.
#[derive(Debug, Clone)]
pub enum DiskOp {
    /// Fills `buf` from `offset`.
    Read {
        /// First byte on the disk.
        offset: u64,
        /// Where the data goes.
        buf: Slice,
    },
    /// Writes `buf` at `offset`; with `fua` it is on the medium when the operation completes.
    Write {
        /// First byte on the disk.
        offset: u64,
        /// The data; nobody may change it before completion.
        buf: Slice,
        /// Force unit access.
        fua: bool,
    },
    /// Everything whose write had completed before is on the medium afterwards.
    Flush,
    /// Gives the range back; it reads as zeros or as before, until written.
    Discard {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// The range reads as zeros afterwards; `unmap` allows space to be given back.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// The space behind it may be freed.
        unmap: bool,
    },
}

/// A range of one kind (see [`Disk::extent`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// True: there is storage behind it. False: a hole, which reads as zeros.
    pub mapped: bool,
    /// Bytes from the asked start that are of this kind; not 0.
    pub len: u64,
}

/// Something that stores bytes, as one reactor sees it.
pub trait Disk {
    /// Capacity in bytes.
    fn len(&self) -> u64;

    /// True for a disk of no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Smallest unit of transfer in bytes: 512 or 4096.
    fn block_size(&self) -> u32;

    /// True when a completed write may be lost with power until [`DiskOp::Flush`].
    fn volatile_cache(&self) -> bool;

    /// By which name it was opened, for messages and to find it again.
    fn name(&self) -> &str;

    /// What it is, whatever it is called: of two disks that are equal in this, one sees what is written to the other. It lasts as
    /// long as the process.
    fn identity(&self) -> Cow<'_, str> {
        self.name().into()
    }

    /// Starts an operation; `token` completes with [`status`]-coded results. The disk keeps the
    /// buffers alive till then, also when nobody waits any more.
    fn submit(&self, op: DiskOp, token: Token);

    /// Changes the capacity of a disk that can (a file). Others say [`IoError::Unsupported`].
    fn set_len(&self, _len: u64) -> IoResult {
        Err(IoError::Unsupported)
    }

    /// Whether there is storage behind `at..at+len` (not empty). A disk that cannot tell says that there is.
    fn extent(&self, _at: u64, len: u64) -> LocalFuture<'_, Extent> {
        Box::pin(std::future::ready(Extent { mapped: true, len }))
    }

    /// Whether storage comes with the first write and goes with a discard.
    fn is_thin(&self) -> bool {
        self.allocated().is_some()
    }

    /// Bytes of storage really in use below, where that is known (sparse files).
    fn allocated(&self) -> Option<u64> {
        None
    }

    /// What is known of the losses of the device that it is on, for all disks there. It notes its flushes itself
    /// ([`Losses::flush`]), also when nobody waits for them any more. None: whoever flushes it notes them.
    fn losses(&self) -> Option<Arc<Losses>> {
        None
    }
}

/// Starts `op` and waits for it.
pub async fn run(disk: &dyn Disk, op: DiskOp) -> IoResult {
    let (token, done) = completion();
    disk.submit(op, token);
    status(done.await)
}

const ERRORS: [IoError; 10] = [
    IoError::Internal,
    IoError::OutOfRange,
    IoError::Medium,
    IoError::NoSpace,
    IoError::ReadOnly,
    IoError::Busy,
    IoError::Aborted,
    IoError::Offline,
    IoError::Unsupported,
    IoError::Path,
];

/// The completion that reports `result`.
pub fn report(result: IoResult) -> Completion {
    match result {
        Ok(()) => Completion::ok(0),
        Err(e) => {
            let code = ERRORS.iter().position(|x| *x == e).unwrap_or(0);
            Completion::error(-1 - code as i32)
        }
    }
}

/// The result that a completion reports.
pub fn status(c: Completion) -> IoResult {
    if c.is_ok() {
        return Ok(());
    }
    let code = (-1 - i64::from(c.result)) as usize;
    Err(ERRORS.get(code).copied().unwrap_or(IoError::Internal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_survive_the_trip_through_a_completion() {
        assert_eq!(status(report(Ok(()))), Ok(()));
        for e in ERRORS {
            assert_eq!(status(report(Err(e))), Err(e));
        }
        assert_eq!(status(report(Err(IoError::Miscompare(3)))), Err(IoError::Internal));
    }
}

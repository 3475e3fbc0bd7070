//! The contract between what the kernel asks for and whoever does it.

use std::future::Future;
use weir_mem::Slice;

/// Longest read or write that a disk is asked for, in bytes.
pub const MAX_IO: usize = 1 << 20;

/// The memory of a request that failed, for the next one. What was given up may still be on its way to the target: then
/// that memory is left to it, and the next request has other.
pub(crate) fn for_the_next(buf: Slice) -> Slice {
    if buf.is_sole() { buf } else { Slice::heap(buf.len()) }
}

/// Size and nature of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Length in bytes.
    pub len: u64,
    /// Bytes of a logical block, a power of two from 512 on.
    pub block_size: u32,
    /// Discards give space back.
    pub thin: bool,
    /// Writes are refused.
    pub read_only: bool,
}

/// What the kernel wants. Addresses and lengths are bytes.
#[derive(Debug, Clone)]
pub enum Request {
    /// Fill the memory.
    Read {
        /// First byte.
        at: u64,
        /// Where the data goes.
        buf: Slice,
    },
    /// Write the memory, which nobody changes meanwhile.
    Write {
        /// First byte.
        at: u64,
        /// The data.
        buf: Slice,
        /// It is on the medium at the end.
        fua: bool,
    },
    /// Everything written before is on the medium at the end.
    Flush,
    /// Space may be given back; what is read there afterwards is not defined.
    Discard {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// Zeroes are read there afterwards.
    WriteZeroes {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
        /// Space may be given back.
        unmap: bool,
    },
}

impl Request {
    /// First byte and number of bytes.
    pub fn range(&self) -> (u64, u64) {
        match self {
            Request::Read { at, buf } | Request::Write { at, buf, .. } => (*at, buf.len() as u64),
            Request::Discard { at, len } | Request::WriteZeroes { at, len, .. } => (*at, *len),
            Request::Flush => (0, 0),
        }
    }

    /// True when it changes the medium.
    pub fn changes(&self) -> bool {
        !matches!(self, Request::Read { .. } | Request::Flush)
    }
}

/// An error number of the operating system, positive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

/// A volume as one reactor reaches it. Requests run side by side and end in any order.
pub trait Disk: 'static {
    /// Size and nature, as last told.
    fn geometry(&self) -> Geometry;

    /// Does what is asked for.
    fn run(&self, r: &Request) -> impl Future<Output = Result<(), Errno>>;
}

/// Refuses what no volume of this geometry can do, before it is sent.
///
/// # Errors
/// EROFS for a change of a read-only volume, EINVAL for a range outside or not in whole blocks.
pub fn check(g: &Geometry, r: &Request) -> Result<(), Errno> {
    if g.read_only && r.changes() {
        return Err(Errno(libc::EROFS));
    }
    let (at, len) = r.range();
    let block = u64::from(g.block_size);
    let inside = at.checked_add(len).is_some_and(|end| end <= g.len);
    if !inside || !at.is_multiple_of(block) || !len.is_multiple_of(block) {
        return Err(Errno(libc::EINVAL));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_volume_can_do_is_not_sent() {
        let g = Geometry { len: 8192, block_size: 512, thin: true, read_only: false };
        let read = |at, len| Request::Read { at, buf: Slice::heap(4096).sub(0, len) };
        assert_eq!(check(&g, &read(4096, 4096)), Ok(()));
        for bad in [read(4096 + 512, 4096), read(1, 512), read(0, 100), read(u64::MAX - 511, 512)] {
            assert_eq!(check(&g, &bad), Err(Errno(libc::EINVAL)), "{bad:?}");
        }
        let ro = Geometry { read_only: true, ..g };
        assert_eq!(check(&ro, &read(0, 512)), Ok(()));
        assert_eq!(check(&ro, &Request::Flush), Ok(()));
        let zero = Request::WriteZeroes { at: 0, len: 512, unmap: true };
        assert_eq!((check(&ro, &zero), check(&g, &zero)), (Err(Errno(libc::EROFS)), Ok(())));
    }
}

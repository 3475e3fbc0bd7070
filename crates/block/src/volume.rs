//! What a volume is.

use crate::IoFuture;
use crate::summed::{compare_sums, fill_after};
use weir_base::{IoError, IoResult};
use weir_mem::Slice;
use weir_reactor::LocalFuture;

/// Size and nature of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Capacity in bytes; a multiple of the block size.
    pub len: u64,
    /// Logical block in bytes: 512 or 4096.
    pub block_size: u32,
    /// Unit in which space is given back and best written, in bytes; a multiple of the block size.
    pub granularity: u32,
    /// Discard gives space back, and what was discarded reads as zeros.
    pub thin: bool,
    /// Completed writes may be lost with power until a flush.
    pub volatile_cache: bool,
    /// Writes are refused.
    pub read_only: bool,
}

impl Geometry {
    /// Capacity in logical blocks.
    pub fn blocks(&self) -> u64 {
        self.len / u64::from(self.block_size)
    }
}

/// Whether space is behind a range (SBC-4: GET LBA STATUS).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// True: mapped. False: deallocated, reads as zeros.
    pub mapped: bool,
    /// Bytes from the asked start that have this state; at least one block unless at the end.
    pub len: u64,
}

impl Allocation {
    /// The same in whole blocks of `block` bytes, at least one: a block is a hole when all of it is one.
    pub fn in_blocks(self, block: u64) -> Allocation {
        match (self.mapped, self.len / block) {
            (false, whole) if whole > 0 => Allocation { mapped: false, len: whole * block },
            (true, _) => Allocation { mapped: true, len: self.len.div_ceil(block).max(1) * block },
            _ => Allocation { mapped: true, len: block },
        }
    }
}

/// One reactor's handle to a block device. Offsets and lengths are bytes, multiples of the block size.
///
/// A write is acknowledged when it has the durability that the volume states; with `fua`, or after
/// [`flush`](Volume::flush), it is on the medium. An I/O that fails may have been done in part, in whole
/// blocks. Buffers may be larger than one device transfer; splitting is the volume's work.
///
/// An I/O begins when its method is called or when its future is first polled, as the volume likes.
/// Dropping the future gives up the result: the I/O may be done, in part or not at all, also later.
pub trait Volume {
    /// Size and nature, at this moment (a volume can grow).
    fn geometry(&self) -> Geometry;

    /// Fills `buf` from `at`.
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_>;

    /// Writes `buf` at `at`; nobody may change it before completion.
    fn write(&self, at: u64, buf: Slice, fua: bool) -> IoFuture<'_>;

    /// Whether the volume keeps a CRC32C of each 4 KiB, so that those of [`read_summed`](Volume::read_summed) and
    /// [`write_summed`](Volume::write_summed) go to the medium and back.
    fn keeps_sums(&self) -> bool {
        false
    }

    /// As [`read`](Volume::read), of whole blocks of [`SUMMED`](crate::SUMMED) bytes; fills `sums` with the CRC32C of
    /// each (little-endian, four bytes): as kept, if the volume keeps them, so that what changes `buf` afterwards is
    /// found out by comparing; else as it is found in `buf`.
    fn read_summed(&self, at: u64, buf: Slice, sums: Slice) -> IoFuture<'_> {
        fill_after(self.read(at, buf.clone()), buf, sums)
    }

    /// As [`write`](Volume::write), of whole blocks of 4 KiB, whose CRC32C are in `sums` (little-endian, four bytes each)
    /// as they were taken where the data came from. A volume that keeps checksums compares them with what it is about
    /// to keep, or keeps them as they are, so that a difference is found by whoever reads. [`IoError::Changed`], and
    /// nothing is written of what differs, else.
    fn write_summed(&self, at: u64, buf: Slice, sums: Slice, fua: bool) -> IoFuture<'_> {
        match compare_sums(&buf, &sums) {
            Ok(()) => self.write(at, buf, fua),
            Err(e) => IoFuture::ready(Err(e)),
        }
    }

    /// Everything acknowledged before is on the medium afterwards.
    fn flush(&self) -> IoFuture<'_>;

    /// The number of the last loss: a device below could not keep what it had taken, as far as is known since the volume was
    /// built. 0: none. A later one has a higher number. It tells what was lost by flushes of anybody, and is to be looked at
    /// once a flush has ended; layers give the highest of what is below.
    fn lost(&self) -> u64;

    /// Gives the range back. On a thin volume it reads as zeros afterwards; else it may do nothing.
    fn discard(&self, at: u64, len: u64) -> IoFuture<'_>;

    /// The range reads as zeros afterwards; `unmap` allows space to be given back.
    fn write_zeroes(&self, at: u64, len: u64, unmap: bool) -> IoFuture<'_>;

    /// The memory that *is* the range, where there is such (a RAM volume), to be read, so that a front end can send
    /// data from where it lies. Others may write to it meanwhile. `None`: use [`read`](Volume::read).
    fn direct(&self, _at: u64, _len: usize) -> Option<Slice> {
        None
    }

    /// The checksums (CRC32C) that are kept of what [`direct`](Volume::direct) gives of a range of whole blocks of
    /// [`SUMMED`](crate::SUMMED) bytes; ask for them first, so that a write in between is found out. False: they are not
    /// known of all blocks, and `f` may have been called for some.
    fn kept_sums(&self, _at: u64, _len: usize, _f: &mut dyn FnMut(u32)) -> bool {
        false
    }

    /// Does a write on the spot, if the volume is memory: it is over on return. `sums` are the checksums of its blocks,
    /// where they are known and it is of whole blocks of [`SUMMED`](crate::SUMMED) bytes; the caller has compared them.
    /// False: nothing was done; use [`write`](Volume::write).
    fn write_now(&self, _at: u64, _data: &[u8], _sums: &[[u8; 4]]) -> bool {
        false
    }

    /// Whether somebody still holds memory that [`direct`](Volume::direct) of this handle gave.
    /// `None`: that is not known, and a [`Junction`](crate::Junction) above gives no direct access,
    /// because it could not tell when it is safe to swap. A layer that forwards `direct` forwards this.
    fn direct_in_use(&self) -> Option<bool> {
        None
    }

    /// Whether space is behind `at..at+len`, as far as that is known without I/O.
    fn allocation(&self, _at: u64, len: u64) -> Allocation {
        Allocation { mapped: true, len }
    }

    /// Whether space is behind `at..at+len`, also where finding out takes a while (a file's holes). A layer
    /// that forwards [`allocation`](Volume::allocation) forwards this.
    fn find_allocation(&self, at: u64, len: u64) -> LocalFuture<'_, Allocation> {
        Box::pin(std::future::ready(self.allocation(at, len)))
    }

    /// Bytes of storage really in use, where that is known.
    fn allocated(&self) -> Option<u64> {
        None
    }

    /// Changes the capacity to `len` bytes. To be called on every reactor's handle: the first call
    /// changes the device, the others find that done and take note. What is cut off is lost.
    ///
    /// # Errors
    /// [`IoError::Unsupported`] when this volume cannot, [`IoError::OutOfRange`] when not to this
    /// length.
    fn resize(&self, _len: u64) -> IoResult {
        Err(IoError::Unsupported)
    }
}

/// Flushes `volume`: what was written to it since [`Volume::lost`] gave `since` is durable then. A flush alone does not prove that, since
/// another one may have been told of its loss.
///
/// # Errors
/// What the volume says, or [`IoError::Path`] for such a loss: what was written is to be written again.
pub async fn make_durable(volume: &dyn Volume, since: u64) -> IoResult {
    volume.flush().await?;
    if volume.lost() == since { Ok(()) } else { Err(IoError::Path) }
}

/// Checks that a range is inside the volume and in whole blocks.
///
/// # Errors
/// [`IoError::OutOfRange`].
#[inline]
pub fn check_range(g: &Geometry, at: u64, len: u64) -> IoResult {
    let mask = u64::from(g.block_size) - 1;
    let end = at.checked_add(len).ok_or(IoError::OutOfRange)?;
    if end > g.len || (at | len) & mask != 0 {
        return Err(IoError::OutOfRange);
    }
    Ok(())
}

/// Checks that a new capacity is of whole blocks, and not none.
///
/// # Errors
/// [`IoError::OutOfRange`].
pub fn check_len(g: &Geometry, len: u64) -> IoResult {
    if len == 0 || !len.is_multiple_of(u64::from(g.block_size)) {
        return Err(IoError::OutOfRange);
    }
    Ok(())
}

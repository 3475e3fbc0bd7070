//! Checksums that travel with data: CRC32C of each 4 KiB, little-endian, four bytes each, in memory of their own.

use crate::IoFuture;
use weir_base::{IoError, IoResult};
use weir_codec::crc32c;
use weir_mem::Slice;

/// Bytes that have one checksum.
pub const SUMMED: usize = 4096;

/// The checksum of a block of `buf`.
fn sum(buf: &Slice, block: usize) -> [u8; 4] {
    let part = buf.sub(block * SUMMED, SUMMED);
    // SAFETY: the buffer of an I/O belongs to it until completion; nobody writes to it now.
    crc32c(unsafe { part.bytes() }).to_le_bytes()
}

/// Puts the checksum of each block of `buf` into `sums`.
pub fn fill_sums(buf: &Slice, sums: &Slice) {
    for i in 0..buf.len() / SUMMED {
        sums.write_at(i * 4, &sum(buf, i));
    }
}

/// Compares each block of `buf` with its checksum in `sums`.
///
/// # Errors
/// [`IoError::Changed`] with the first that differs.
pub fn compare_sums(buf: &Slice, sums: &Slice) -> IoResult {
    for i in 0..buf.len() / SUMMED {
        let mut stored = [0; 4];
        sums.read_at(i * 4, &mut stored);
        if stored != sum(buf, i) {
            return Err(IoError::Changed(i as u32));
        }
    }
    Ok(())
}

/// Takes the checksums after a read.
pub(crate) fn fill_after(done: IoFuture<'_>, buf: Slice, sums: Slice) -> IoFuture<'_> {
    IoFuture::new(async move {
        done.await?;
        fill_sums(&buf, &sums);
        Ok(())
    })
}

//! Block operations. Offsets and lengths are bytes, multiples of the unit's logical block.

use super::Queue;
use crate::error::Error;
use std::slice::from_ref;
use weir_mem::Slice;
use weir_proto_scsi::Lun;
use weir_proto_scsi::initiator::{self as build, Cdb};
use weir_proto_srp::residual::Residual;

/// Bytes asked for of READ CAPACITY (16).
const CAPACITY: usize = 32;

impl Queue {
    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// What the target said, or that the path is down.
    #[inline]
    pub async fn read(&self, lun: Lun, offset: u64, buf: Slice) -> Result<(), Error> {
        self.read_to(lun, offset, from_ref(&buf)).await
    }

    /// Fills several buffers, one after the other, from `offset` on, by one command. With more than one, they
    /// are described by an indirect table; there may be 256.
    ///
    /// # Errors
    /// As [`read`](Queue::read).
    pub async fn read_to(&self, lun: Lun, offset: u64, bufs: &[Slice]) -> Result<(), Error> {
        let len = total(bufs);
        let (lba, blocks) = self.extent(lun, offset, len).await?;
        self.transfer(lun, &build::read(lba, blocks, false), &[], bufs).await
    }

    /// Writes `buf` at `offset`. It must not change before the end. With `fua` it is on the medium then.
    ///
    /// # Errors
    /// What the target said, or that the path is down.
    #[inline]
    pub async fn write(&self, lun: Lun, offset: u64, buf: Slice, fua: bool) -> Result<(), Error> {
        self.write_from(lun, offset, from_ref(&buf), fua).await
    }

    /// Writes several buffers, one after the other, by one command; see [`read_to`](Queue::read_to).
    ///
    /// # Errors
    /// As [`write`](Queue::write).
    pub async fn write_from(
        &self,
        lun: Lun,
        offset: u64,
        bufs: &[Slice],
        fua: bool,
    ) -> Result<(), Error> {
        let len = total(bufs);
        let (lba, blocks) = self.extent(lun, offset, len).await?;
        self.transfer(lun, &build::write(lba, blocks, fua), bufs, &[]).await
    }

    /// Everything written before is on the medium afterwards.
    ///
    /// # Errors
    /// What the target said, or that the path is down.
    pub async fn flush(&self, lun: Lun) -> Result<(), Error> {
        self.plain(lun, &build::sync_cache(0, 0)).await
    }

    /// Gives ranges (offset and length) back. A range of a thin unit reads as zeros afterwards; another unit
    /// may do nothing.
    ///
    /// # Errors
    /// What the target said, or that the path is down.
    pub async fn unmap(&self, lun: Lun, ranges: &[(u64, u64)]) -> Result<(), Error> {
        if ranges.len() > 4095 {
            return Err(Error::Invalid("UNMAP takes at most 4095 ranges".into()));
        }
        let mut extents = Vec::with_capacity(ranges.len());
        for (offset, len) in ranges {
            extents.push(self.extent(lun, *offset, *len).await?);
        }
        let list = build::unmap_list(&extents);
        let data = Slice::copy_of(&list);
        self.transfer(lun, &build::unmap(list.len() as u16), from_ref(&data), &[]).await
    }

    /// The range reads as zeros afterwards; with `unmap` its space may be given back.
    ///
    /// # Errors
    /// What the target said, or that the path is down.
    pub async fn write_zeroes(
        &self,
        lun: Lun,
        offset: u64,
        len: u64,
        unmap: bool,
    ) -> Result<(), Error> {
        let (lba, blocks) = self.extent(lun, offset, len).await?;
        self.plain(lun, &build::write_same_16(lba, blocks, unmap, false)).await
    }

    /// Writes one logical block all over the range.
    ///
    /// # Errors
    /// What the target said, or that the path is down.
    pub async fn write_same(
        &self,
        lun: Lun,
        offset: u64,
        len: u64,
        block: Slice,
    ) -> Result<(), Error> {
        let (lba, blocks) = self.extent(lun, offset, len).await?;
        let cdb = build::write_same_16(lba, blocks, false, true);
        self.transfer(lun, &cdb, from_ref(&block), &[]).await
    }

    /// Replaces what is at `offset` by the second half of `both`, if it is equal to the first half. `false`
    /// when it is not.
    ///
    /// # Errors
    /// What the target said, that the path is down, or [`Error::InDoubt`].
    pub async fn compare_and_write(
        &self,
        lun: Lun,
        offset: u64,
        both: Slice,
    ) -> Result<bool, Error> {
        let (lba, blocks) = self.extent(lun, offset, both.len() as u64 / 2).await?;
        let blocks = u8::try_from(blocks)
            .map_err(|_| Error::Invalid("COMPARE AND WRITE takes at most 255 blocks".into()))?;
        let cdb = build::compare_and_write(lba, blocks, false);
        match self.transfer(lun, &cdb, from_ref(&both), &[]).await {
            Ok(()) => Ok(true),
            Err(e) if e.sense().is_some_and(|s| s.key == weir_proto_scsi::SenseKey::Miscompare) => {
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    /// Asks whether the unit is ready. Unit attentions are passed over.
    ///
    /// # Errors
    /// What the target said, or that the path is down.
    pub async fn test_unit_ready(&self, lun: Lun) -> Result<(), Error> {
        self.plain(lun, &build::test_unit_ready()).await
    }

    /// A command without data.
    async fn plain(&self, lun: Lun, cdb: &Cdb) -> Result<(), Error> {
        self.execute(lun, cdb, &[], &[]).await.map(|_| ())
    }

    /// A command that gives at most `alloc` bytes.
    pub(crate) async fn ask(&self, lun: Lun, cdb: &Cdb, alloc: usize) -> Result<Vec<u8>, Error> {
        let buf = Slice::heap(alloc);
        let o = self.execute(lun, cdb, &[], from_ref(&buf)).await?;
        let mut v = buf.sub(0, alloc).to_vec();
        if let Residual::Under(n) = o.in_residual {
            v.truncate(alloc.saturating_sub(n as usize));
        }
        Ok(v)
    }

    /// The unit's size.
    pub(crate) async fn capacity(&self, lun: Lun) -> Result<build::Capacity, Error> {
        let b = self.ask(lun, &build::read_capacity_16(CAPACITY as u32), CAPACITY).await?;
        let c = build::parse_capacity_16(&b)
            .map_err(|_| Error::Invalid("READ CAPACITY data is cut short".into()))?;
        if !c.block_size.is_power_of_two() {
            return Err(Error::Invalid(format!("logical blocks of {} bytes", c.block_size)));
        }
        let shift = c.block_size.trailing_zeros();
        let mut known = self.local.blocks.borrow_mut();
        match known.iter_mut().find(|(l, _)| *l == lun) {
            Some(k) => k.1 = shift,
            None => known.push((lun, shift)),
        }
        Ok(c)
    }

    /// Forgets the unit's block size: it may be another unit now.
    pub fn forget(&self, lun: Lun) {
        self.local.blocks.borrow_mut().retain(|(l, _)| *l != lun);
    }

    /// First block and number of blocks of a range.
    #[inline]
    async fn extent(&self, lun: Lun, offset: u64, len: u64) -> Result<(u64, u32), Error> {
        let known = self.local.blocks.borrow().iter().find(|(l, _)| *l == lun).map(|(_, s)| *s);
        let shift = match known {
            Some(s) => s,
            None => self.capacity(lun).await?.block_size.trailing_zeros(),
        };
        let mask = (1u64 << shift) - 1;
        match u32::try_from(len >> shift) {
            Ok(blocks) if (offset | len) & mask == 0 => Ok((offset >> shift, blocks)),
            _ => Err(Error::Invalid(format!(
                "{len} bytes at {offset} are not whole blocks of {} bytes, or too many",
                mask + 1
            ))),
        }
    }
}

#[inline]
pub(super) fn total(bufs: &[Slice]) -> u64 {
    bufs.iter().map(|b| b.len() as u64).sum()
}

/// GOOD means all data only without a residual.
#[inline]
pub(super) fn whole(wanted: u64, r: Residual) -> Result<(), Error> {
    match r {
        Residual::None => Ok(()),
        Residual::Under(n) => {
            Err(Error::Short { wanted, moved: wanted.saturating_sub(u64::from(n)) })
        }
        Residual::Over(n) => Err(Error::Short { wanted: wanted + u64::from(n), moved: wanted }),
    }
}

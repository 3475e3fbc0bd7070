//! Volumes to serve: memory with and without direct access, and a simulated disk.

use std::rc::Rc;
use weir_base::{IoError, IoResult, Prng};
use weir_block::{Geometry, IoFuture, Volume, check_range};
use weir_disk::{Disk, DiskOp};
use weir_mem::Slice;
use weir_reactor::sleep;
use weir_sim::SimDisk;

/// Bytes of a logical block.
pub(crate) const BLOCK: u32 = 512;

fn geometry(len: u64, volatile_cache: bool) -> Geometry {
    Geometry {
        len,
        block_size: BLOCK,
        granularity: 4096,
        thin: true,
        volatile_cache,
        read_only: false,
    }
}

/// A volume in memory. With `direct` front ends move data between it and the wire without a copy; else
/// requests take some time.
pub struct MemVolume {
    /// The memory; several reactors' handles share it.
    pub memory: Slice,
    /// Give the memory itself away.
    pub direct: bool,
    /// Longest time of a request without direct access, in nanoseconds.
    pub delay: u64,
}

impl MemVolume {
    fn time(&self) -> u64 {
        // Chance is the scheduler's; from the clock, requests of one moment would be equal.
        Prng::new(weir_reactor::clock()).below(self.delay + 1)
    }

    fn check(&self, at: u64, len: u64) -> IoResult {
        check_range(&self.geometry(), at, len)
    }
}

impl Volume for MemVolume {
    fn geometry(&self) -> Geometry {
        geometry(self.memory.len() as u64, false)
    }

    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        IoFuture::new(async move {
            self.check(at, buf.len() as u64)?;
            sleep(self.time()).await;
            buf.copy_from(0, &self.memory, at as usize, buf.len());
            sleep(self.time()).await;
            Ok(())
        })
    }

    fn write(&self, at: u64, buf: Slice, _fua: bool) -> IoFuture<'_> {
        IoFuture::new(async move {
            self.check(at, buf.len() as u64)?;
            sleep(self.time()).await;
            self.memory.copy_from(at as usize, &buf, 0, buf.len());
            sleep(self.time()).await;
            Ok(())
        })
    }

    fn flush(&self) -> IoFuture<'_> {
        IoFuture::ready(Ok(()))
    }
    fn lost(&self) -> u64 {
        0
    }

    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        self.write_zeroes(at, len, true)
    }

    fn write_zeroes(&self, at: u64, len: u64, _unmap: bool) -> IoFuture<'_> {
        let r = self.check(at, len);
        if r.is_ok() {
            self.memory.sub(at as usize, len as usize).fill(0);
        }
        IoFuture::ready(r)
    }

    fn direct(&self, at: u64, len: usize) -> Option<Slice> {
        (self.direct && self.check(at, len as u64).is_ok())
            .then(|| self.memory.sub(at as usize, len))
    }

    fn write_now(&self, at: u64, data: &[u8], _sums: &[[u8; 4]]) -> bool {
        let place = self.direct(at, data.len());
        place.is_some_and(|p| {
            p.write_at(0, data);
            true
        })
    }
}

/// A volume on a simulated disk.
pub struct DiskVolume(pub Rc<SimDisk>);

impl DiskVolume {
    async fn run(&self, op: DiskOp) -> IoResult {
        weir_disk::run(&*self.0, op).await
    }
}

impl Volume for DiskVolume {
    fn geometry(&self) -> Geometry {
        geometry(self.0.len(), self.0.volatile_cache())
    }

    fn read(&self, offset: u64, buf: Slice) -> IoFuture<'_> {
        IoFuture::new(self.run(DiskOp::Read { offset, buf }))
    }

    fn write(&self, offset: u64, buf: Slice, fua: bool) -> IoFuture<'_> {
        IoFuture::new(self.run(DiskOp::Write { offset, buf, fua }))
    }

    fn flush(&self) -> IoFuture<'_> {
        IoFuture::new(self.run(DiskOp::Flush))
    }
    fn lost(&self) -> u64 {
        0
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<'_> {
        self.write_zeroes(offset, len, true)
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> IoFuture<'_> {
        match check_range(&self.geometry(), offset, len) {
            Ok(()) => IoFuture::new(self.run(DiskOp::WriteZeroes { offset, len, unmap })),
            Err(_) => IoFuture::ready(Err(IoError::OutOfRange)),
        }
    }
}

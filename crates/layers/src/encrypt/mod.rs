//! Encryption at rest: what is below this layer is XTS-AES-256, sector by sector of 512 bytes, numbered from the start
//! of the volume.
//!
//! It is no kind of the device graph, where parameters are shown and kept: whoever has the key puts it over the stored
//! volume at its home. Sectors are those of the smallest logical block, so no write reads what it did not write.
//!
//! A sector that is all zeros below was never written, or was given back: it reads as zeros, and is not decrypted.
//! (Data whose ciphertext is all zeros would read wrongly; there is one such sector in 2^4096.) So discarding, zeroing
//! and asking what is mapped go down as they are, which shows whoever has the devices what is in use.

mod xts;

pub use xts::{KEY_LEN, MasterKey, SECTOR};

use std::cell::OnceCell;
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_block::{Filter, IoFuture, Volume, check_range};
use weir_mem::{BufPool, PoolConfig, Slice};
use xts::{Xts, each_sector};

/// A write of up to so many bytes goes down in one piece, so that it is as atomic as it is below.
pub const WHOLE: usize = 256 << 10;
/// Buffers for when the pool has none: whoever holds its buffers may be waiting for us. Size, number.
const RESERVE: (usize, usize) = (WHOLE, 2);

/// A volume whose data is encrypted below.
pub struct Encrypt {
    lower: Rc<dyn Volume>,
    xts: Xts,
    pool: BufPool,
    reserve: OnceCell<BufPool>,
}

impl std::fmt::Debug for Encrypt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Encrypt(..)")
    }
}

fn is_zero(sector: &[u8; SECTOR]) -> bool {
    sector.as_chunks::<16>().0.iter().all(|c| u128::from_ne_bytes(*c) == 0)
}

impl Encrypt {
    /// Over `lower`, on its reactor, with buffers of `pool`.
    pub fn new(lower: Rc<dyn Volume>, key: &MasterKey, pool: BufPool) -> Encrypt {
        Encrypt { lower, xts: Xts::new(key), pool, reserve: OnceCell::new() }
    }

    /// Makes what was read from `at` readable.
    fn reveal(&self, at: u64, buf: &Slice) {
        let mut sector = [0; SECTOR];
        each_sector(&self.xts, at, buf.len(), |place, tweak| {
            buf.read_at(place, &mut sector);
            if !is_zero(&sector) {
                self.xts.decrypt(&mut sector, tweak);
                buf.write_at(place, &sector);
            }
        });
    }

    /// What is to be written at `at`, of `len` bytes of `from`, into a buffer of ours.
    fn conceal(&self, at: u64, to: &Slice, from: &Slice, from_at: usize) {
        let mut sector = [0; SECTOR];
        each_sector(&self.xts, at, to.len(), |place, tweak| {
            from.read_at(from_at + place, &mut sector);
            self.xts.encrypt(&mut sector, tweak);
            to.write_at(place, &sector);
        });
    }

    /// A buffer for a write of `len` bytes, or for its first part, if there is one now.
    fn try_buffer(&self, len: usize) -> Option<Slice> {
        let most = self.pool.max_len();
        let take = |wish: usize| (wish <= most).then(|| self.pool.try_alloc(wish)).flatten();
        take(len).or_else(|| take(len.min(WHOLE)))
    }

    /// The same; waits for one of the reserve.
    async fn buffer(&self, len: usize) -> Result<Slice, IoError> {
        if let Some(s) = self.try_buffer(len) {
            return Ok(s);
        }
        let reserve = match self.reserve.get() {
            Some(r) => r,
            None => {
                let made = BufPool::new(&PoolConfig { classes: vec![RESERVE] });
                let made = made.map_err(|_| IoError::Busy)?;
                self.reserve.get_or_init(|| made)
            }
        };
        Ok(reserve.alloc(len.min(WHOLE)).await)
    }

    async fn write_parts(&self, at: u64, buf: Slice, fua: bool) -> IoResult {
        let mut done = 0;
        while done < buf.len() {
            let part = self.buffer(buf.len() - done).await?;
            let (n, there) = (part.len(), at + done as u64);
            self.conceal(there, &part, &buf, done);
            self.lower.write(there, part, fua).await?;
            done += n;
        }
        Ok(())
    }
}

impl Filter for Encrypt {
    fn lower(&self) -> &dyn Volume {
        &*self.lower
    }

    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        let io = self.lower.read(at, buf.clone());
        match io.result() {
            Some(Ok(())) => {
                self.reveal(at, &buf);
                io
            }
            Some(Err(_)) => io,
            None => IoFuture::new(async move {
                io.await?;
                self.reveal(at, &buf);
                Ok(())
            }),
        }
    }

    /// The caller's buffer is left as it is: it may be sent again, or be compared with its checksums.
    fn write(&self, at: u64, buf: Slice, fua: bool) -> IoFuture<'_> {
        let g = self.lower.geometry();
        if let Err(e) = check_range(&g, at, buf.len() as u64) {
            return IoFuture::ready(Err(e));
        }
        if buf.is_empty() || g.read_only {
            return self.lower.write(at, buf, fua);
        }
        match self.try_buffer(buf.len()) {
            Some(own) if own.len() == buf.len() => {
                self.conceal(at, &own, &buf, 0);
                self.lower.write(at, own, fua)
            }
            _ => IoFuture::new(self.write_parts(at, buf, fua)),
        }
    }
}

#[cfg(test)]
mod tests;

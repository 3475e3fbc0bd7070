//! A volume or snapshot as others see it: [`Volume`].

use super::dataset::Dataset;
use super::extent::Stretch;
use super::locks::RangeLock;
use super::resume::User;
use super::stage::Found;
use super::write::MOST;
use super::{Inner, Pool, StoreResult};
use crate::format::BLOCK;
use crate::format::dataset::Kind;
use crate::planted::{Bug, has};
use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_block::{
    Allocation, Geometry, IoFuture, Volume, check_range, compare_sums, fill_sums, join_parts,
};
use weir_mem::Slice;
use weir_reactor::LocalFuture;

const B: u64 = BLOCK as u64;
/// Bytes of one piece of a long transfer.
const PIECE: u64 = MOST * B;

/// The home reactor's handle to a volume or snapshot. It stays when the pool is resumed.
pub struct StoreVolume {
    pool: Pool,
    now: RefCell<Rc<Open>>,
}

/// A volume or snapshot in one life of its pool.
struct Open {
    /// All lives of the pool.
    lives: Pool,
    pool: Rc<Inner>,
    ds: Rc<Dataset>,
}

impl Pool {
    /// A handle to a volume or snapshot, for the pool's home reactor.
    ///
    /// # Errors
    /// There is no such dataset.
    pub fn volume(&self, id: u32) -> StoreResult<Rc<StoreVolume>> {
        let ds = self.0.dataset(id)?;
        let open = Open { lives: self.clone(), pool: self.0.clone(), ds };
        Ok(Rc::new(StoreVolume { pool: self.clone(), now: RefCell::new(Rc::new(open)) }))
    }
}

impl StoreVolume {
    /// Where the copies of the block at `at` are: number of the device, and byte on it. Empty: nowhere.
    ///
    /// # Errors
    /// The map cannot be read.
    pub async fn locate(&self, at: u64) -> IoResult<Vec<(u16, u64)>> {
        let v = self.now();
        let found = v.pool.locate(&v.ds, at / B).await?;
        Ok(found.into_iter().map(|(d, block)| (d, block * B)).collect())
    }

    /// It in the pool's present life. If it is not there any more, in the one that it was in: that serves nothing.
    fn now(&self) -> Rc<Open> {
        let last = self.now.borrow().clone();
        if Rc::ptr_eq(&last.pool, &self.pool.0) {
            return last;
        }
        let Some(open) = last.next() else { return last };
        let open = Rc::new(open);
        self.now.replace(open.clone());
        open
    }

    /// Runs an I/O on it, which counts as being under way until it is over. Reads see to that themselves, piece by piece.
    fn run(&self, io: impl AsyncFnOnce(&Open) -> IoResult + 'static) -> IoFuture<'_> {
        let v = self.now();
        let user = v.pool.user();
        IoFuture::new(async move {
            let _user = user;
            // Made here, so that it is not moved: it is large.
            io(&v).await
        })
    }
}

impl StoreVolume {
    /// The place of a block's data, if it has any.
    pub(super) async fn place_of(&self, lba: u64) -> IoResult<Option<u64>> {
        let v = self.now();
        let e = v.pool.entry(&v.pool.pins.pin(), &v.ds, lba).await?;
        Ok(e.is_data().then_some(e.vbn))
    }
}

impl Inner {
    /// Makes a volume shorter or longer. Until its end is where it is to be nothing is written beyond it, and the volume gets no
    /// other map: what is cut off must not be there again when the volume grows.
    pub(super) async fn set_len(self: &Rc<Self>, ds: &Rc<Dataset>, len: u64) -> StoreResult {
        let unlocked = has(Bug::WrittenBeyondTheEnd);
        let _only = if unlocked { None } else { Some(ds.shape.acquire(1).await) };
        let mut lock = None;
        if len < ds.len.get() {
            if !unlocked {
                lock = Some(ds.locks.lock(len / B, u64::MAX).await);
            }
            self.cut_off(ds, len).await?;
        }
        let cut = ds.clone();
        let done = self.act(Box::new(move |_| cut.len.set(len))).await;
        drop(lock);
        done
    }

    /// Throws away what a volume has beyond `len`, which the caller has locked.
    async fn cut_off(self: &Rc<Self>, ds: &Rc<Dataset>, len: u64) -> IoResult {
        let rest = ((B - len % B) % B).min(ds.len.get() - len);
        if rest > 0 {
            // Who waits for the lock may have the last buffer of the pool.
            let whole = self.read_one(ds, len / B, Slice::heap(BLOCK), true).await?;
            whole.sub((len % B) as usize, rest as usize).fill(0);
            let lock = ds.locks.take(len / B, len / B + 1);
            self.write_locked(ds, len / B, whole, None, None, Some(lock)).await?;
        }
        let (new, old) = (len.div_ceil(B), ds.blocks());
        match new < old {
            true => self.wipe_locked(ds, new, old - new, ds.locks.take(new, old)).await,
            false => Ok(()),
        }
    }
}

/// A volume or snapshot in the life that somebody knew, or in the next one.
enum Present<'a> {
    Here(&'a Open),
    Next(Open),
}

impl Deref for Present<'_> {
    type Target = Open;

    #[inline]
    fn deref(&self) -> &Open {
        match self {
            Present::Here(v) => v,
            Present::Next(v) => v,
        }
    }
}

/// A range as part of a first block, whole blocks, and part of a last block; bytes, relative to the start.
fn split(at: u64, len: u64) -> [(u64, u64); 3] {
    let head = ((B - at % B) % B).min(len);
    let tail = if head == len { 0 } else { (at + len) % B };
    [(0, head), (head, len - head - tail), (len - tail, tail)]
}

/// The block after the last one of a range.
fn end_of(at: u64, len: u64) -> u64 {
    at.saturating_add(len).div_ceil(B)
}

/// What is told of a range of bytes by what was found of its blocks.
fn told(found: Stretch, at: u64, len: u64) -> Allocation {
    let to = found.end.saturating_mul(B).min(at.saturating_add(len));
    Allocation { mapped: found.mapped, len: to - at }
}

/// The checksums of `len` bytes from `from` on.
fn part_of(sums: &Slice, from: u64, len: usize) -> Slice {
    sums.sub((from / B) as usize * 4, len / BLOCK * 4)
}

impl Open {
    /// It in the pool's present life, if it is there.
    fn next(&self) -> Option<Open> {
        let pool = self.lives.0.clone();
        let ds = pool.dataset(self.ds.id).ok()?;
        Some(Open { lives: self.lives.clone(), pool, ds })
    }

    /// It in the pool's present life, which counts it as being in use.
    fn present(&self, at: u64, len: u64) -> IoResult<(Present<'_>, User)> {
        let v = match self.pool.over.get() {
            false => Present::Here(self),
            true => {
                let next = self.next().ok_or(IoError::Offline)?;
                next.check(at, len, false)?;
                Present::Next(next)
            }
        };
        if !has(Bug::FencedTells) {
            v.pool.check_owned()?;
        }
        let user = v.pool.user();
        Ok((v, user))
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            len: self.ds.len.get(),
            block_size: self.ds.block_size,
            granularity: BLOCK as u32,
            thin: true,
            // What is acknowledged is on the media of all halves.
            volatile_cache: false,
            read_only: self.ds.kind != Kind::Volume,
        }
    }

    fn check(&self, at: u64, len: u64, write: bool) -> IoResult {
        check_range(&self.geometry(), at, len)?;
        if self.ds.deleting.get() {
            return Err(IoError::Offline);
        }
        match write && self.ds.kind != Kind::Volume {
            true => Err(IoError::ReadOnly),
            false => Ok(()),
        }
    }

    /// As [`check`](StoreVolume::check), of whole blocks with their checksums.
    fn check_whole(&self, at: u64, buf: &Slice, sums: &Slice, write: bool) -> IoResult {
        let len = buf.len() as u64;
        self.check(at, len, write)?;
        let fits = (at | len).is_multiple_of(B) && sums.len() >= buf.len() / BLOCK * 4;
        if fits { Ok(()) } else { Err(IoError::OutOfRange) }
    }

    async fn lock(&self, lba: u64, count: u64) -> RangeLock {
        self.ds.locks.lock(lba, lba + count).await
    }

    /// Whether a range that is locked is there still: what cuts it off has it locked.
    fn still_has(&self, at: u64, len: u64) -> IoResult {
        match has(Bug::WrittenBeyondTheEnd) {
            true => Ok(()),
            false => check_range(&self.geometry(), at, len),
        }
    }

    async fn block_buffer(&self) -> Slice {
        self.pool.bufs.alloc(BLOCK).await
    }

    /// Reads a part of a block.
    async fn read_part(&self, at: u64, buf: Slice) -> IoResult {
        let (v, _user) = self.present(at, buf.len() as u64)?;
        let whole = v.block_buffer().await;
        let whole = v.pool.read_one(&v.ds, at / B, whole, false).await?;
        buf.copy_from(0, &whole, (at % B) as usize, buf.len());
        Ok(())
    }

    /// Writes a part of a block; `None`: zeros.
    async fn write_part(&self, at: u64, len: usize, data: Option<Slice>) -> IoResult {
        let lba = at / B;
        loop {
            let whole = self.block_buffer().await;
            let unlocked = has(Bug::PartialWriteUnlocked);
            let lock = if unlocked { None } else { Some(self.lock(lba, 1).await) };
            self.still_has(at, len as u64)?;
            let map = self.ds.maps.get();
            let whole = self.pool.read_one(&self.ds, lba, whole, !unlocked).await?;
            match &data {
                Some(d) => whole.copy_from((at % B) as usize, d, 0, len),
                None => whole.sub((at % B) as usize, len).fill(0),
            }
            match self.pool.write_locked(&self.ds, lba, whole, None, Some(map), lock).await {
                // The rest of the block is what it was in another map.
                Err(IoError::Aborted) if self.ds.maps.get() != map => {}
                done => return done,
            }
        }
    }

    async fn write_whole(&self, at: u64, buf: &Slice, sums: Option<&Slice>) -> IoResult {
        let (lba, count) = (at / B, buf.len() as u64 / B);
        let locked = if has(Bug::LastBlockUnlocked) { (count - 1).max(1) } else { count };
        loop {
            let lock = self.lock(lba, locked).await;
            self.still_has(at, buf.len() as u64)?;
            let map = self.ds.maps.get();
            let of = (!has(Bug::WrittenBeyondTheEnd)).then_some(map);
            let (buf, sums) = (buf.clone(), sums.cloned());
            match self.pool.write_locked(&self.ds, lba, buf, sums, of, Some(lock)).await {
                // With another map it may have another end, also within the last block.
                Err(IoError::Aborted) if self.ds.maps.get() != map => {}
                done => return done,
            }
        }
    }

    async fn read_any(&self, at: u64, buf: Slice) -> IoResult {
        for (k, (from, n)) in split(at, buf.len() as u64).into_iter().enumerate() {
            let part = buf.sub(from as usize, n as usize);
            match (n, k) {
                (0, _) => {}
                (_, 1) => self.read_whole(at + from, part, None).await?,
                _ => self.read_part(at + from, part).await?,
            }
        }
        Ok(())
    }

    /// Whether none of the blocks of a range was ever written, as far as is known without waiting. Only of a few blocks, and not
    /// after a read that met data: who looks twice for each block is slower.
    fn are_holes(&self, at: u64, len: u64) -> bool {
        let open = self.pool.suspended.get().is_some() && !has(Bug::HolesUndecided);
        if self.pool.over.get() || open || !self.ds.met_hole.get() {
            return false;
        }
        let (first, end) = (at / B, (at + len).div_ceil(B));
        let hole = |lba| match self.ds.top.find(lba) {
            Found::Entry(e) => !e.is_data() && !e.is_poison(),
            Found::Tree(root) => root.ptr.is_none(),
        };
        if end - first > MOST || !(first..end).all(hole) {
            self.ds.met_hole.set(false);
            return false;
        }
        self.pool.count(|c| c.blocks_read += end - first);
        true
    }

    async fn read_whole(&self, at: u64, buf: Slice, sums: Option<Slice>) -> IoResult {
        let len = buf.len() as u64;
        // As most are: without memory of its own.
        if len <= PIECE {
            return self.read_piece(at, buf, sums).await;
        }
        let parts = join_parts(len.div_ceil(PIECE) as usize, move |i| {
            let from = i as u64 * PIECE;
            let part = buf.sub(from as usize, PIECE.min(len - from) as usize);
            let sums = sums.as_ref().map(|s| part_of(s, from, part.len()));
            IoFuture::new(async move { self.read_piece(at + from, part, sums).await })
        });
        parts.await
    }

    /// Reads whole blocks. The memory is the caller's again only when no device writes to it any more.
    async fn read_piece(&self, at: u64, buf: Slice, sums: Option<Slice>) -> IoResult {
        let (lba, count) = (at / B, buf.len() / BLOCK);
        let mut done = 0;
        while done < count {
            let rest = super::read::part_of(&buf, done, count - done);
            let more = sums.as_ref().map(|s| s.sub(done * 4, (count - done) * 4));
            let from = lba + done as u64;
            let (n, late) = {
                let (v, _user) = self.present(from * B, rest.len() as u64)?;
                match v.pool.read_blocks(&v.ds, from, &rest, more.as_ref()).await {
                    Ok(None) => return Ok(()),
                    Ok(Some(found)) => found,
                    // What another life frees may be somebody else's by now: that one knows.
                    Err(_) if v.pool.over.get() => continue,
                    Err(e) => return Err(e),
                }
            };
            // It may take for ever. Whoever waits for readers of the pool does not wait for this one meanwhile.
            let held = has(Bug::LateReadHoldsUp).then(|| self.pool.user());
            let _ = late.await;
            drop(held);
            let (from, left) = (from + n as u64, (count - done - n) as u64);
            let (v, _user) = self.present(from * B, left * B)?;
            Box::pin(v.pool.read_again(&v.ds, from, &rest, n, more.as_ref())).await?;
            done += n + 1;
        }
        Ok(())
    }

    async fn write_any(&self, at: u64, buf: Slice) -> IoResult {
        for (k, (from, n)) in split(at, buf.len() as u64).into_iter().enumerate() {
            let part = buf.sub(from as usize, n as usize);
            match (n, k) {
                (0, _) => {}
                (_, 1) => self.write_pieces(at + from, part, None).await?,
                _ => self.write_part(at + from, n as usize, Some(part)).await?,
            }
        }
        Ok(())
    }

    async fn write_pieces(&self, at: u64, buf: Slice, sums: Option<Slice>) -> IoResult {
        let len = buf.len() as u64;
        if len == 0 {
            return Ok(());
        }
        if len <= PIECE {
            return self.write_whole(at, &buf, sums.as_ref()).await;
        }
        let parts = join_parts(len.div_ceil(PIECE) as usize, move |i| {
            let from = i as u64 * PIECE;
            let part = buf.sub(from as usize, PIECE.min(len - from) as usize);
            let sums = sums.as_ref().map(|s| part_of(s, from, part.len()));
            IoFuture::new(async move {
                let done = self.write_whole(at + from, &part, sums.as_ref()).await;
                done.map_err(|e| match e {
                    IoError::Changed(n) => IoError::Changed(n + (from / B) as u32),
                    e => e,
                })
            })
        });
        parts.await
    }

    async fn zero_any(&self, at: u64, len: u64) -> IoResult {
        for (k, (from, n)) in split(at, len).into_iter().enumerate() {
            match (n, k) {
                (0, _) => {}
                (_, 1) => {
                    let (lba, count) = ((at + from) / B, n / B);
                    let lock = self.lock(lba, count).await;
                    self.still_has(at + from, n)?;
                    self.pool.wipe_locked(&self.ds, lba, count, lock).await?;
                }
                _ => self.write_part(at + from, n as usize, None).await?,
            }
        }
        Ok(())
    }
}

impl Volume for StoreVolume {
    fn geometry(&self) -> Geometry {
        self.now().geometry()
    }

    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        let (len, v) = (buf.len() as u64, self.now());
        if let Err(e) = v.check(at, len, false) {
            return IoFuture::ready(Err(e));
        }
        if v.are_holes(at, len) {
            buf.fill(0);
            return IoFuture::ready(Ok(()));
        }
        IoFuture::new(async move {
            match (at | len).is_multiple_of(B) {
                true => v.read_whole(at, buf, None).await,
                false => Box::pin(v.read_any(at, buf)).await,
            }
        })
    }

    fn write(&self, at: u64, buf: Slice, _fua: bool) -> IoFuture<'_> {
        let len = buf.len() as u64;
        self.run(async move |v| {
            v.check(at, len, true)?;
            match (at | len).is_multiple_of(B) {
                // As most are: what a longer one needs is not carried along.
                true if (1..=PIECE).contains(&len) => v.write_whole(at, &buf, None).await,
                true => Box::pin(v.write_pieces(at, buf, None)).await,
                false => Box::pin(v.write_any(at, buf)).await,
            }
        })
    }

    fn keeps_sums(&self) -> bool {
        self.now().pool.options.sum_data
    }

    fn read_summed(&self, at: u64, buf: Slice, sums: Slice) -> IoFuture<'_> {
        let v = self.now();
        IoFuture::new(async move {
            v.check_whole(at, &buf, &sums, false)?;
            if v.pool.options.sum_data {
                return v.read_whole(at, buf, Some(sums)).await;
            }
            v.read_whole(at, buf.clone(), None).await?;
            fill_sums(&buf, &sums);
            Ok(())
        })
    }

    fn write_summed(&self, at: u64, buf: Slice, sums: Slice, _fua: bool) -> IoFuture<'_> {
        self.run(async move |v| {
            v.check_whole(at, &buf, &sums, true)?;
            if !v.pool.options.sum_data {
                // None are kept: this is the last time that they are looked at.
                compare_sums(&buf, &sums)?;
            }
            match buf.len() as u64 <= PIECE && !buf.is_empty() {
                true => v.write_whole(at, &buf, Some(&sums)).await,
                false => Box::pin(v.write_pieces(at, buf, Some(sums))).await,
            }
        })
    }

    /// Nothing is left to do: what was acknowledged is durable.
    fn flush(&self) -> IoFuture<'_> {
        IoFuture::ready(Ok(()))
    }

    /// A device that fails a flush is out of service.
    fn lost(&self) -> u64 {
        0
    }

    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        self.write_zeroes(at, len, true)
    }

    fn write_zeroes(&self, at: u64, len: u64, _unmap: bool) -> IoFuture<'_> {
        self.run(async move |v| {
            v.check(at, len, true)?;
            match len {
                0 => Ok(()),
                _ => Box::pin(v.zero_any(at, len)).await,
            }
        })
    }

    fn allocation(&self, at: u64, len: u64) -> Allocation {
        let v = self.now();
        match len {
            0 => Allocation { mapped: true, len },
            _ => told(v.pool.stretch_at_hand(&v.ds, at / B, end_of(at, len)), at, len),
        }
    }

    fn find_allocation(&self, at: u64, len: u64) -> LocalFuture<'_, Allocation> {
        let v = self.now();
        Box::pin(async move {
            if len == 0 {
                return Allocation { mapped: true, len };
            }
            loop {
                // Of what is not there, or not any more, a read tells.
                let Ok((v, _user)) = v.present(at, len) else {
                    return Allocation { mapped: true, len };
                };
                if let Some(found) = v.pool.stretch(&v.ds, at / B, end_of(at, len)).await {
                    return told(found, at, len);
                }
            }
        })
    }

    fn allocated(&self) -> Option<u64> {
        let ds = self.now().ds.clone();
        let mapped = match &*ds.top.below.borrow() {
            super::stage::Below::Root(_, mapped) => *mapped,
            super::stage::Below::Stage(s) => s.merged.get().map_or(0, |(_, m)| m),
        };
        Some((mapped + ds.top.active.borrow().map.len() as u64) * B)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_at_blocks() {
        assert_eq!(split(0, 8192), [(0, 0), (0, 8192), (8192, 0)]);
        assert_eq!(split(512, 512), [(0, 512), (512, 0), (512, 0)]);
        assert_eq!(split(512, 8192), [(0, 3584), (3584, 4096), (7680, 512)]);
        assert_eq!(split(4096, 512), [(0, 0), (0, 0), (0, 512)]);
        assert_eq!(split(3584, 1024), [(0, 512), (512, 0), (512, 512)]);
        for at in (0..9000).step_by(512) {
            for len in (512..13000).step_by(512) {
                let [a, b, c] = split(at, len);
                assert_eq!((a.0, a.1 + b.1 + c.1), (0, len));
                assert_eq!((b.0, c.0), (a.1, a.1 + b.1));
                assert!(b.1 == 0 || ((at + b.0) % B == 0 && b.1 % B == 0));
                assert!(a.1 == 0 || at / B == (at + a.1 - 1) / B);
            }
        }
    }
}

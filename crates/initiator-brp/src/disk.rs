//! A volume on a reactor. Offsets and lengths are bytes, multiples of the volume's logical block.

use crate::channel::{Channel, Io, Outcome};
use crate::error::{Error, Hop};
use crate::planted::{Bug, has};
use crate::queue::{Queue, plain};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::slice::from_ref;
use std::sync::atomic::Ordering;
use weir_base::MILLIS;
use weir_base::unflushed::Ledger;
use weir_mem::Slice;
use weir_proto_brp::command::flag;
use weir_proto_brp::sums::PIECE;
use weir_proto_brp::{Features, Op, Status, VolumeInfo};
use weir_reactor::sleep;

/// Most bytes of each half of a compare and write (docs/brp.md).
const COMPARE_MAX: usize = 64 << 10;

/// Bytes that one command without data covers where the target sets no limit: what takes long is done in steps that can
/// be aborted and repeated.
const RANGE: u64 = 1 << 30;

/// One command, or several of the same kind in a row; its memory goes beside it.
#[derive(Clone, Copy)]
struct Request {
    op: Op,
    flags: u8,
    at: u64,
    len: usize,
}

/// A volume as the present reactor reaches it.
///
/// Commands complete on the reactor that submitted them, in any order. Memory given to a write must not change before
/// its end. A future may be dropped: the command is aborted, and may have been done, in part or not at all.
pub struct Disk {
    queue: Queue,
    number: Cell<u16>,
    guard: Cell<u32>,
    info: RefCell<VolumeInfo>,
    /// Change of the session's volumes that `info` is of.
    as_of: Cell<u64>,
    /// What all handles of the volume know of writes that are not durable yet.
    ledger: Rc<Ledger>,
}

impl Disk {
    pub(crate) fn new(queue: Queue, info: VolumeInfo, ledger: Rc<Ledger>) -> Disk {
        let as_of = queue.local.shared.volumes.load(Ordering::Acquire);
        Disk {
            queue,
            number: Cell::new(info.volume),
            guard: Cell::new(info.guard),
            info: RefCell::new(info),
            as_of: Cell::new(as_of),
            ledger,
        }
    }

    /// The volume's description, as last told.
    pub fn info(&self) -> VolumeInfo {
        self.info.borrow().clone()
    }

    /// The queue that it is reached by.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Asks for the description again if the target has told that something changed, or if `anyway`.
    ///
    /// # Errors
    /// The volume is gone, or the path is down.
    pub async fn refresh(&self, anyway: bool) -> Result<(), Error> {
        let now = self.queue.local.shared.volumes.load(Ordering::Acquire);
        if !anyway && self.as_of.get() == now {
            return Ok(());
        }
        let uid = self.info.borrow().uid;
        let found = self.queue.list().await?.into_iter().find(|v| v.uid == uid);
        let Some(info) = found else { return Err(Error::NoVolume(self.info().name)) };
        self.number.set(info.volume);
        self.guard.set(info.guard);
        *self.info.borrow_mut() = info;
        self.as_of.set(now);
        Ok(())
    }

    /// Fills `buf` from `at`.
    ///
    /// # Errors
    /// What the target said, that the data was damaged on its way again and again, or that the path is down.
    #[inline]
    pub async fn read(&self, at: u64, buf: Slice) -> Result<(), Error> {
        let request = Request { op: Op::Read, flags: 0, at, len: buf.len() };
        self.run(request, from_ref(&buf)).await
    }

    /// Fills several buffers, one after the other, by one command.
    ///
    /// # Errors
    /// As [`read`](Disk::read).
    pub async fn read_to(&self, at: u64, bufs: &[Slice]) -> Result<(), Error> {
        let len = bufs.iter().map(Slice::len).sum();
        self.run(Request { op: Op::Read, flags: 0, at, len }, bufs).await
    }

    /// Writes `buf` at `at`. With `fua` it is on the medium at the end.
    ///
    /// # Errors
    /// As [`read`](Disk::read).
    #[inline]
    pub async fn write(&self, at: u64, buf: Slice, fua: bool) -> Result<(), Error> {
        let flags = if fua { flag::FUA } else { 0 };
        let request = Request { op: Op::Write, flags, at, len: buf.len() };
        self.run(request, from_ref(&buf)).await
    }

    /// Writes several buffers, one after the other, by one command.
    ///
    /// # Errors
    /// As [`read`](Disk::read).
    pub async fn write_from(&self, at: u64, bufs: &[Slice], fua: bool) -> Result<(), Error> {
        let flags = if fua { flag::FUA } else { 0 };
        let len = bufs.iter().map(Slice::len).sum();
        self.run(Request { op: Op::Write, flags, at, len }, bufs).await
    }

    /// Everything completed before is on the medium afterwards.
    ///
    /// # Errors
    /// As [`read`](Disk::read), and [`Error::LostCache`] when something completed before is lost, over whichever handle,
    /// channel or path of the session set it was written. Each handle tells a loss once, also one of a flush that the target has
    /// failed.
    pub async fn flush(&self) -> Result<(), Error> {
        let begun = self.ledger.begin();
        let flush = Request { op: Op::Flush, flags: 0, at: 0, len: 0 };
        let channel = self.queue.local.channel()?;
        let power = self.run_on(&channel, flush, &[]).await.inspect_err(|e| {
            if matches!(e, Error::Status(Status::Internal | Status::Medium)) {
                self.ledger.failed();
            }
        })?;
        let whole = self.ledger.flushed(&begun, |cache| cache != power);
        if whole || has(Bug::LostCacheNotTold) { Ok(()) } else { Err(Error::LostCache) }
    }

    /// Gives a range back.
    ///
    /// # Errors
    /// As [`read`](Disk::read).
    pub async fn discard(&self, at: u64, len: u64) -> Result<(), Error> {
        self.range(Op::Discard, 0, at, len).await
    }

    /// The range reads as zeros afterwards; with `unmap` its space may be given back.
    ///
    /// # Errors
    /// As [`read`](Disk::read).
    pub async fn write_zeroes(&self, at: u64, len: u64, unmap: bool) -> Result<(), Error> {
        self.range(Op::WriteZeroes, if unmap { flag::UNMAP } else { 0 }, at, len).await
    }

    async fn range(&self, op: Op, flags: u8, at: u64, len: u64) -> Result<(), Error> {
        let features = self.queue.local.channel()?.limits().features;
        let most = match features.has(Features::LONG_RANGES) {
            true => RANGE,
            false => u64::from(self.max_len()?),
        };
        let mut done = 0;
        while done < len {
            let n = (len - done).min(most);
            let part = Request { op, flags, at: at + done, len: n as usize };
            let channel = self.queue.local.channel()?;
            Box::pin(self.run_on(&channel, part, &[])).await?;
            done += n;
        }
        Ok(())
    }

    /// Writes the second half of `both` at `at` if the first half is there.
    ///
    /// # Errors
    /// [`Error::Miscompare`] when something else is there, [`Error::InDoubt`], or as [`read`](Disk::read).
    pub async fn compare_and_write(&self, at: u64, both: Slice) -> Result<(), Error> {
        if !both.len().is_multiple_of(2) || both.len() / 2 > COMPARE_MAX || both.is_empty() {
            return Err(Error::Invalid("compare and write takes two halves of at most 64 KiB"));
        }
        let request = Request { op: Op::CompareAndWrite, flags: 0, at, len: both.len() / 2 };
        Box::pin(self.run(request, from_ref(&both))).await
    }

    fn max_len(&self) -> Result<u32, Error> {
        let max = self.queue.local.channel()?.limits().max_len;
        Ok(max / PIECE as u32 * PIECE as u32)
    }

    #[inline]
    async fn run(&self, request: Request, memory: &[Slice]) -> Result<(), Error> {
        let channel = self.queue.local.channel()?;
        if request.len > channel.limits().max_len as usize {
            return Box::pin(self.split(request, memory)).await;
        }
        self.run_on(&channel, request, memory).await.map(drop)
    }

    /// As one command. Gives what the target said of its power when it ended: it is looked at before another login
    /// could change it.
    #[inline]
    async fn run_on(
        &self,
        channel: &Channel,
        request: Request,
        memory: &[Slice],
    ) -> Result<u64, Error> {
        match channel.run(self.io(request, memory)).await {
            Outcome::Done(_) => Ok(self.done(request, channel.power())),
            // On the heap, so that the way of a command that ends well stays small.
            other => Box::pin(self.again(request, memory, other)).await,
        }
    }

    #[inline]
    fn io<'a>(&self, request: Request, memory: &'a [Slice]) -> Io<'a> {
        let Request { op, flags, at, len } = request;
        Io {
            op,
            flags,
            volume: self.number.get(),
            guard: self.guard.get(),
            offset: at,
            len: len as u32,
            memory,
        }
    }

    #[inline]
    fn done(&self, Request { op, flags, .. }: Request, power: u64) -> u64 {
        let writes = matches!(op, Op::Write | Op::WriteZeroes | Op::CompareAndWrite | Op::Discard);
        if writes && flags & flag::FUA == 0 && self.info.borrow().volatile_cache {
            self.ledger.written(power);
        }
        power
    }

    /// More than one command moves.
    #[cold]
    async fn split(&self, whole: Request, memory: &[Slice]) -> Result<(), Error> {
        let most = self.max_len()? as usize;
        let mut done = 0;
        while done < whole.len {
            let n = (whole.len - done).min(most);
            let part = Request { at: whole.at + done as u64, len: n, ..whole };
            self.run(part, &cut(memory, done, n)).await?;
            done += n;
        }
        Ok(())
    }

    /// An end that may not be the last word.
    #[cold]
    async fn again(
        &self,
        mut request: Request,
        memory: &[Slice],
        mut last: Outcome,
    ) -> Result<u64, Error> {
        let shared = &self.queue.local.shared;
        let mut power = 0;
        let at = request.at;
        let piece = |n: u32| if n == 0 { at } else { (at / PIECE + u64::from(n)) * PIECE };
        let mut tries = 0;
        loop {
            let spent = tries >= shared.config.retries;
            let damage = match last {
                Outcome::Done(_) => return Ok(self.done(request, power)),
                Outcome::Damaged { piece: n, sure } => {
                    // Somebody may have written to it while it was being sent: from here on it is copied first.
                    request.flags |= flag::STABLE;
                    (sure || tries > 0).then_some((Hop::WireToInitiator, n))
                }
                Outcome::MemoryChanged(n) => Some((Hop::InitiatorMemory, n)),
                Outcome::Failed(Status::Checksum, n) => Some((Hop::WireToTarget, n)),
                Outcome::Failed(Status::ChecksumTarget, n) => Some((Hop::TargetMemory, n)),
                Outcome::Failed(Status::ChecksumMedium, n) => Some((Hop::Medium, n)),
                Outcome::Failed(Status::Busy | Status::NotReady, _) if !spent => {
                    sleep((MILLIS << tries).min(500 * MILLIS)).await;
                    None
                }
                Outcome::Failed(Status::WrongVolume | Status::NoVolume, _) if tries == 0 => {
                    self.refresh(true).await?;
                    None
                }
                o => return Err(plain(o)),
            };
            if let Some((hop, n)) = damage {
                shared.note_damage(hop, piece(n));
                tracing::warn!(%hop, at = piece(n), "data was changed");
                // What is wrong in our own memory must not be written with a checksum that says it is right.
                if spent || matches!(hop, Hop::InitiatorMemory | Hop::Medium) {
                    return Err(Error::Damaged { hop, at: piece(n) });
                }
            } else if spent {
                return Err(plain(last));
            }
            let channel = self.queue.local.channel()?;
            last = channel.run(self.io(request, memory)).await;
            power = channel.power();
            tries += 1;
        }
    }
}

/// `len` bytes of some memory, from byte `at` on.
fn cut(memory: &[Slice], at: usize, len: usize) -> Vec<Slice> {
    let (mut skip, mut left) = (at, len);
    let mut all = Vec::new();
    for m in memory {
        if left == 0 {
            break;
        }
        if skip >= m.len() {
            skip -= m.len();
            continue;
        }
        let n = (m.len() - skip).min(left);
        all.push(m.sub(skip, n));
        (skip, left) = (0, left - n);
    }
    all
}

//! An edge of the graph at which what is below can be swapped under I/O.

use crate::{Allocation, Geometry, IoFuture, Volume};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{IoError, IoResult, MICROS};
use weir_mem::Slice;
use weir_reactor::{LocalFuture, WaitChannel, sleep};

/// How often a quiesce looks whether direct memory has been given back, in nanoseconds.
const DIRECT_POLL: u64 = 20 * MICROS;

/// A volume that stands for another one and can be told to stand for a different one.
///
/// I/O passes and is counted. [`quiesce`](Junction::quiesce) holds new I/O back, waits for what is in
/// flight and flushes; then [`Quiesced::swap`] exchanges the volume. Held I/O goes on when the
/// [`Quiesced`] is dropped: to the new volume, or to the old one if there was no swap (roll-back).
///
/// Where several reactors have handles to the same data, all of them are quiesced before the first
/// swap ([`Edit`](crate::Edit)).
pub struct Junction {
    current: RefCell<Rc<dyn Volume>>,
    closed: Cell<bool>,
    in_flight: Cell<usize>,
    /// Signalled when the last I/O in flight ends while the junction is closed.
    idle: WaitChannel,
    /// Held I/O waits here.
    opened: WaitChannel,
    /// Bytes that hosts see of the volume.
    shown: Cell<u64>,
    /// The last loss below volumes that it stood for before.
    lost: Cell<u64>,
}

/// Why a swap was refused; nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwapError {
    /// Hosts address by the logical block; it may not change.
    BlockSize {
        /// Bytes before.
        old: u32,
        /// Bytes after.
        new: u32,
    },
    /// The new volume is shorter.
    Shorter {
        /// Bytes before.
        old: u64,
        /// Bytes after.
        new: u64,
    },
    /// Hosts that were told that writes are durable would not flush.
    Volatile,
    /// The new volume refuses writes.
    ReadOnly,
    /// The junction is being quiesced by somebody else.
    Busy,
    /// The volume that was to be replaced could not be flushed.
    Flush(IoError),
}

impl std::fmt::Display for SwapError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SwapError::BlockSize { old, new } => {
                write!(f, "the block size would change from {old} to {new} bytes under the hosts")
            }
            SwapError::Shorter { old, new } => {
                write!(f, "the volume would shrink from {old} to {new} bytes under the hosts")
            }
            SwapError::Volatile => f.write_str(
                "the new volume has a volatile cache and the old one has none, so hosts do not flush",
            ),
            SwapError::ReadOnly => f.write_str("the new volume refuses writes"),
            SwapError::Busy => f.write_str("another change of this junction is under way"),
            SwapError::Flush(e) => write!(f, "the volume below could not be flushed: {e}"),
        }
    }
}

impl std::error::Error for SwapError {}

/// One I/O in flight.
struct Pass<'a>(&'a Junction);

impl<'a> Pass<'a> {
    #[inline]
    fn new(junction: &'a Junction) -> Pass<'a> {
        junction.in_flight.set(junction.in_flight.get() + 1);
        Pass(junction)
    }
}

impl Drop for Pass<'_> {
    #[inline]
    fn drop(&mut self) {
        let n = self.0.in_flight.get() - 1;
        self.0.in_flight.set(n);
        if n == 0 && self.0.closed.get() {
            self.0.idle.signal_all();
        }
    }
}

impl Junction {
    /// A junction that stands for `volume`.
    pub fn new(volume: Rc<dyn Volume>) -> Junction {
        Junction {
            current: RefCell::new(volume),
            closed: Cell::new(false),
            in_flight: Cell::new(0),
            idle: WaitChannel::new(0),
            opened: WaitChannel::new(0),
            shown: Cell::new(u64::MAX),
            lost: Cell::new(0),
        }
    }

    /// Hosts see the first `len` bytes only, so that a volume of that length can take the place of a longer one. Changes beyond are
    /// refused from now on, also those that were admitted before.
    pub fn show(&self, len: u64) {
        self.shown.set(len);
    }

    /// What it stands for now.
    pub fn current(&self) -> Rc<dyn Volume> {
        self.current.borrow().clone()
    }

    /// I/Os passed and not yet ended.
    pub fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    /// I/Os held back.
    pub fn held(&self) -> usize {
        self.opened.waiting()
    }

    /// True while I/O is held back.
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Holds new I/O back, waits until none is in flight and no direct memory is in use, and flushes.
    /// Dropping the future, for instance by a [`timeout`](weir_reactor::timeout), rolls back.
    ///
    /// # Errors
    /// [`SwapError::Busy`] or [`SwapError::Flush`]; the junction is open then.
    pub async fn quiesce(self: &Rc<Junction>) -> Result<Quiesced, SwapError> {
        let quiesced = self.hold_back().await?;
        self.current().flush().await.map_err(SwapError::Flush)?;
        Ok(quiesced)
    }

    /// As [`quiesce`](Junction::quiesce) without the flush: for layers that hold nothing back, and may be there to
    /// make flushes fail.
    ///
    /// # Errors
    /// [`SwapError::Busy`]; the junction is as it was.
    pub async fn hold_back(self: &Rc<Junction>) -> Result<Quiesced, SwapError> {
        if self.closed.replace(true) {
            return Err(SwapError::Busy);
        }
        let quiesced = Quiesced { junction: self.clone() };
        while self.in_flight.get() > 0 {
            self.idle.wait().await;
        }
        let old = self.current();
        while old.direct_in_use() == Some(true) {
            sleep(DIRECT_POLL).await;
        }
        Ok(quiesced)
    }

    /// Whether `new` can take the place of what is there.
    ///
    /// # Errors
    /// What hosts would notice.
    pub fn check(&self, new: &dyn Volume) -> Result<(), SwapError> {
        let (old, new) = (self.current().geometry(), new.geometry());
        if new.block_size != old.block_size {
            return Err(SwapError::BlockSize { old: old.block_size, new: new.block_size });
        }
        let seen = old.len.min(self.shown.get());
        if new.len < seen {
            return Err(SwapError::Shorter { old: seen, new: new.len });
        }
        if new.volatile_cache && !old.volatile_cache {
            return Err(SwapError::Volatile);
        }
        if new.read_only && !old.read_only {
            return Err(SwapError::ReadOnly);
        }
        Ok(())
    }

    /// Exchanges the volume of a quiesced junction for one that was checked.
    pub(crate) fn exchange(&self, new: Rc<dyn Volume>) -> Rc<dyn Volume> {
        let old = self.current.replace(new);
        self.lost.set(self.lost.get().max(old.lost()));
        old
    }

    #[inline]
    fn is_beyond(&self, at: u64, len: u64) -> bool {
        at.saturating_add(len) > self.shown.get()
    }

    /// Does `io` on the present volume: now, or when the junction is open again.
    ///
    /// The volume lives in the future, because the junction may stand for another one by the time that
    /// it ends; so even an I/O that completes at once takes a slot.
    #[inline]
    fn pass<'a, F>(&'a self, io: F) -> IoFuture<'a>
    where
        F: for<'v> FnOnce(&'v dyn Volume) -> IoFuture<'v> + 'a,
    {
        if self.closed.get() {
            return self.hold(io);
        }
        let (pass, lower) = (Pass::new(self), self.current());
        IoFuture::new(async move {
            let _pass = pass;
            io(&*lower).await
        })
    }

    #[cold]
    fn hold<'a, F>(&'a self, io: F) -> IoFuture<'a>
    where
        F: for<'v> FnOnce(&'v dyn Volume) -> IoFuture<'v> + 'a,
    {
        IoFuture::new(async move {
            while self.closed.get() {
                self.opened.wait().await;
            }
            let (_pass, lower) = (Pass::new(self), self.current());
            io(&*lower).await
        })
    }
}

/// A junction without I/O in flight. Dropping it lets the held I/O go on.
#[must_use]
pub struct Quiesced {
    junction: Rc<Junction>,
}

impl Quiesced {
    /// The junction.
    pub fn junction(&self) -> &Rc<Junction> {
        &self.junction
    }

    /// Exchanges the volume and gives the old one back.
    ///
    /// # Errors
    /// The new volume does not fit ([`Junction::check`]); the old one stays.
    pub fn swap(&self, new: Rc<dyn Volume>) -> Result<Rc<dyn Volume>, SwapError> {
        self.junction.check(&*new)?;
        Ok(self.junction.exchange(new))
    }
}

impl Drop for Quiesced {
    fn drop(&mut self) {
        self.junction.closed.set(false);
        self.junction.opened.signal_all();
    }
}

impl Volume for Junction {
    fn geometry(&self) -> Geometry {
        let g = self.current.borrow().geometry();
        Geometry { len: g.len.min(self.shown.get()), ..g }
    }

    #[inline]
    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        self.pass(move |v| v.read(at, buf))
    }

    #[inline]
    fn write(&self, at: u64, buf: Slice, fua: bool) -> IoFuture<'_> {
        if self.is_beyond(at, buf.len() as u64) {
            return IoFuture::ready(Err(IoError::OutOfRange));
        }
        self.pass(move |v| v.write(at, buf, fua))
    }

    fn keeps_sums(&self) -> bool {
        self.current.borrow().keeps_sums()
    }

    fn read_summed(&self, at: u64, buf: Slice, sums: Slice) -> IoFuture<'_> {
        self.pass(move |v| v.read_summed(at, buf, sums))
    }

    fn write_summed(&self, at: u64, buf: Slice, sums: Slice, fua: bool) -> IoFuture<'_> {
        if self.is_beyond(at, buf.len() as u64) {
            return IoFuture::ready(Err(IoError::OutOfRange));
        }
        self.pass(move |v| v.write_summed(at, buf, sums, fua))
    }

    fn flush(&self) -> IoFuture<'_> {
        self.pass(|v| v.flush())
    }

    fn lost(&self) -> u64 {
        self.lost.get().max(self.current.borrow().lost())
    }

    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        if self.is_beyond(at, len) {
            return IoFuture::ready(Err(IoError::OutOfRange));
        }
        self.pass(move |v| v.discard(at, len))
    }

    fn write_zeroes(&self, at: u64, len: u64, unmap: bool) -> IoFuture<'_> {
        if self.is_beyond(at, len) {
            return IoFuture::ready(Err(IoError::OutOfRange));
        }
        self.pass(move |v| v.write_zeroes(at, len, unmap))
    }

    /// None while closed, and over a volume that cannot tell when the memory is given back.
    fn direct(&self, at: u64, len: usize) -> Option<Slice> {
        let lower = self.current.borrow();
        if self.closed.get() || lower.direct_in_use().is_none() {
            return None;
        }
        lower.direct(at, len)
    }

    fn kept_sums(&self, at: u64, len: usize, f: &mut dyn FnMut(u32)) -> bool {
        !self.closed.get() && self.current.borrow().kept_sums(at, len, f)
    }

    fn write_now(&self, at: u64, data: &[u8], sums: &[[u8; 4]]) -> bool {
        !self.closed.get()
            && !self.is_beyond(at, data.len() as u64)
            && self.current.borrow().write_now(at, data, sums)
    }

    fn direct_in_use(&self) -> Option<bool> {
        self.current.borrow().direct_in_use()
    }

    fn allocation(&self, at: u64, len: u64) -> Allocation {
        self.current.borrow().allocation(at, len)
    }

    fn find_allocation(&self, at: u64, len: u64) -> LocalFuture<'_, Allocation> {
        let lower = self.current.borrow().clone();
        Box::pin(async move { lower.find_allocation(at, len).await })
    }

    fn allocated(&self) -> Option<u64> {
        self.current.borrow().allocated()
    }

    fn resize(&self, len: u64) -> IoResult {
        if self.closed.get() {
            return Err(IoError::Busy);
        }
        self.current.borrow().resize(len)
    }
}

#[cfg(test)]
pub(crate) mod tests;

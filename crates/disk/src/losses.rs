//! Flushes that failed: what a device had taken then may be lost, whoever wrote it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_base::{IoError, IoResult, MICROS, Nanos};
use weir_reactor::sleep;

/// How often is looked whether flushes that began before have ended.
const LOOK: Nanos = 50 * MICROS;

/// Numbers losses and flushes of all devices: a later one has a higher number.
fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What is known of a device's cache, for all disks on it, whichever reactors and volumes they are of.
///
/// A device tells a loss once: by one flush that fails. The next one may end well, though what is lost stays so. Whoever is
/// to learn of it compares [`Losses::last`] with what he knew before.
#[derive(Debug, Default)]
pub struct Losses {
    last: AtomicU64,
    /// Numbers of flushes; few.
    under_way: Mutex<Vec<u64>>,
    /// Flushes that are under way.
    count: AtomicUsize,
    /// Writes that are to be durable flush nothing else.
    fua: bool,
}

impl Losses {
    /// Of a device that can write a block durably by itself (`fua`), or has to flush for that.
    pub fn new(fua: bool) -> Losses {
        Losses { fua, ..Losses::default() }
    }

    /// Whether a write that is to be durable when it ends flushes the device.
    pub fn flushes_for_writes(&self) -> bool {
        !self.fua
    }

    /// A write that was to be durable when it ended has failed: perhaps by a flush, which was told what others have lost.
    pub fn note_write(&self, ended: &IoResult) {
        if !self.fua && matches!(ended, Err(IoError::Path | IoError::Internal)) {
            self.note(ended);
        }
    }

    /// The number of the last loss, 0 for none. Numbers of a process only grow, over all devices.
    pub fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// A flush: `io` is the device's. Whoever waits for it may stop: then `io` must go on by itself, in a task of its own with all of
    /// this.
    pub async fn flush(self: &Arc<Self>, io: impl Future<Output = IoResult>) -> IoResult {
        let under_way = self.begin();
        let done = io.await;
        under_way.ended(&done).await;
        done
    }

    /// Waits for the flushes that are under way.
    pub async fn settled(&self) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let now = number();
        while self.flushes().iter().any(|n| *n < now) {
            sleep(LOOK).await;
        }
    }

    /// Something that was to make data durable has ended with this.
    pub fn note(&self, ended: &IoResult) {
        if ended.as_ref().is_err_and(is_loss) {
            self.last.fetch_max(number(), Ordering::AcqRel);
        }
    }

    fn flushes(&self) -> MutexGuard<'_, Vec<u64>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A flush begins.
    fn begin(self: &Arc<Self>) -> Flushing {
        let number = number();
        self.count.fetch_add(1, Ordering::AcqRel);
        self.flushes().push(number);
        Flushing { losses: self.clone(), number }
    }
}

/// Whether data may be lost when a flush ends so. Not where the device has no flush.
fn is_loss(e: &IoError) -> bool {
    !matches!(e, IoError::Unsupported | IoError::OutOfRange)
}

/// A flush that is under way.
struct Flushing {
    losses: Arc<Losses>,
    number: u64,
}

impl Flushing {
    /// It has ended with this. Waits for others of the device that began before: one of them may have been told of a loss of
    /// which this one was not.
    async fn ended(self, with: &IoResult) {
        let losses = self.losses.clone();
        losses.note(with);
        drop(self);
        losses.settled().await;
    }
}

impl Drop for Flushing {
    fn drop(&mut self) {
        self.losses.flushes().retain(|n| *n != self.number);
        self.losses.count.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_block_of_a_device_that_flushes_nothing_for_a_write_is_no_loss() {
        let (flushes, writes) = (Losses::default(), Losses::new(true));
        for l in [&flushes, &writes] {
            l.note_write(&Err(IoError::Medium));
            assert_eq!(l.last(), 0);
            l.note_write(&Err(IoError::Path));
        }
        assert!(flushes.last() > 0 && writes.last() == 0);
    }

    #[test]
    fn a_loss_is_newer_than_all_before_on_whatever_device() {
        let (a, b) = (Losses::default(), Losses::default());
        a.note(&Ok(()));
        a.note(&Err(IoError::Unsupported));
        assert_eq!(a.last(), 0);
        a.note(&Err(IoError::Path));
        b.note(&Err(IoError::Medium));
        assert!(a.last() > 0 && b.last() > a.last());
        let before = b.last();
        a.note(&Err(IoError::Busy));
        assert!(a.last() > before && b.last() == before);
    }
}

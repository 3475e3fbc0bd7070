//! Changes that a host was told have failed, and that the target may still do.

use crate::disk::Request;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_base::{MILLIS, Nanos};
use weir_reactor::sleep;

/// How often is looked whether they have ended: that is rare, and may be slow.
const LOOK: Nanos = 5 * MILLIS;

/// The ranges of such changes, for all queues of a disk. A newer change of one of them waits: it would be acknowledged,
/// and then be overwritten by the older one.
#[derive(Default)]
pub(crate) struct GivenUp {
    /// How many there are, to be looked at without the lock.
    count: AtomicUsize,
    ranges: Mutex<Vec<(u64, u64)>>,
}

/// The range of one of them, for as long as this is kept.
pub(crate) struct Hold {
    all: Arc<GivenUp>,
    range: (u64, u64),
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut ranges = self.all.lock();
        if let Some(i) = ranges.iter().position(|r| *r == self.range) {
            ranges.swap_remove(i);
        }
        self.all.count.store(ranges.len(), Ordering::Release);
    }
}

impl GivenUp {
    fn lock(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The change is given up.
    pub(crate) fn hold(self: &Arc<Self>, r: &Request) -> Hold {
        let range = r.range();
        let mut ranges = self.lock();
        ranges.push(range);
        self.count.store(ranges.len(), Ordering::Release);
        drop(ranges);
        Hold { all: self.clone(), range }
    }

    /// Waits as long as any of what `r` changes was given up and may still be done.
    pub(crate) async fn passed(&self, r: &Request) {
        while r.changes() && self.count.load(Ordering::Acquire) > 0 && self.meets(r.range()) {
            sleep(LOOK).await;
        }
    }

    fn meets(&self, (at, len): (u64, u64)) -> bool {
        let end = at.saturating_add(len);
        self.lock().iter().any(|(from, n)| at < from.saturating_add(*n) && *from < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_meet_as_long_as_they_are_held() {
        let all = Arc::new(GivenUp::default());
        let change = |at, len| Request::Discard { at, len };
        let (a, b) = (all.hold(&change(4096, 4096)), all.hold(&change(4096, 4096)));
        assert!(all.meets((0, 4097)) && all.meets((8191, 1)) && all.meets((0, u64::MAX)));
        assert!(!all.meets((0, 4096)) && !all.meets((8192, 4096)));
        drop(a);
        assert!(all.meets((4096, 512)), "one of two is left");
        drop(b);
        assert!(!all.meets((0, u64::MAX)) && all.count.load(Ordering::Relaxed) == 0);
    }
}

//! Rate limits.

use std::cell::Cell;
use weir_base::{Nanos, SECONDS};

/// How long a job that fell behind may make up for it by a burst.
const BURST: Nanos = 10 * weir_base::MILLIS;

/// Spaces a job's I/Os evenly.
#[derive(Debug)]
pub(super) struct Pace {
    /// Nanoseconds between two I/Os, in 1/1024.
    gap: u128,
    /// When the next may go, in 1/1024 ns.
    next: Cell<u128>,
}

impl Pace {
    /// For these limits, per second; `None` without any.
    pub(super) fn new(rate: Option<u64>, rate_iops: Option<u64>, bytes: u64) -> Option<Pace> {
        let second = u128::from(SECONDS) << 10;
        let by_iops = rate_iops.map(|r| second / u128::from(r.max(1)));
        let by_bytes = rate.map(|r| second * u128::from(bytes) / u128::from(r.max(1)));
        let gap = by_iops.max(by_bytes)?;
        Some(Pace { gap, next: Cell::new(0) })
    }

    /// When the I/O that is asked for now may go.
    pub(super) fn take(&self, now: Nanos) -> Nanos {
        let earliest = u128::from(now.saturating_sub(BURST)) << 10;
        let at = self.next.get().max(earliest);
        self.next.set(at + self.gap);
        (at >> 10) as Nanos
    }

    /// Begins now.
    pub(super) fn start(&self, now: Nanos) {
        self.next.set(u128::from(now) << 10);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stricter_limit_counts() {
        assert!(Pace::new(None, None, 4096).is_none());
        let p = Pace::new(Some(4096 * 1000), Some(2000), 4096).unwrap();
        p.start(SECONDS);
        let due: Vec<_> = (0..4).map(|_| p.take(SECONDS) - SECONDS).collect();
        assert_eq!(due, [0, 1_000_000, 2_000_000, 3_000_000]);
        // Late by a second: the burst is bounded.
        let late = p.take(3 * SECONDS);
        assert_eq!(late, 3 * SECONDS - BURST);
    }
}

//! Locks of byte ranges, first come first served.

use std::cell::{Cell, RefCell};
use weir_reactor::WaitChannel;

/// A range that is locked or waited for.
#[derive(Clone, Copy)]
struct Entry {
    id: u64,
    from: u64,
    to: u64,
}

/// Locks of ranges. Whoever asked earlier for any part of a range goes first, so nobody waits for ever.
#[derive(Default)]
pub(super) struct Ranges {
    /// In the order in which they were asked for.
    entries: RefCell<Vec<Entry>>,
    next: Cell<u64>,
    released: WaitChannel,
}

/// A range that is locked, or waited for; dropping it gives it up.
pub(super) struct Lock<'a> {
    ranges: &'a Ranges,
    id: u64,
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        let mut entries = self.ranges.entries.borrow_mut();
        if let Some(i) = entries.iter().position(|e| e.id == self.id) {
            entries.remove(i);
        }
        drop(entries);
        if self.ranges.released.waiting() > 0 {
            self.ranges.released.signal_all();
        }
    }
}

impl Ranges {
    /// Locks `from..to`.
    pub(super) async fn lock(&self, from: u64, to: u64) -> Lock<'_> {
        let id = self.next.get();
        self.next.set(id + 1);
        self.entries.borrow_mut().push(Entry { id, from, to });
        let lock = Lock { ranges: self, id };
        while !self.is_first(id, from, to) {
            self.released.wait().await;
        }
        lock
    }

    fn is_first(&self, id: u64, from: u64, to: u64) -> bool {
        let entries = self.entries.borrow();
        let mut earlier = entries.iter().take_while(|e| e.id != id);
        earlier.all(|e| to <= e.from || e.to <= from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn poll<F: Future>(f: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        f.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn who_overlaps_waits_in_order() {
        let r = Ranges::default();
        let mut a = pin!(r.lock(0, 10));
        let Poll::Ready(a) = poll(a.as_mut()) else { panic!("nobody is before it") };
        let mut b = pin!(r.lock(5, 15));
        assert!(poll(b.as_mut()).is_pending());
        // It overlaps with one that waits only, and does not overtake it.
        let mut c = pin!(r.lock(12, 20));
        assert!(poll(c.as_mut()).is_pending());
        let mut d = pin!(r.lock(20, 30));
        assert!(poll(d.as_mut()).is_ready());
        drop(a);
        assert!(poll(c.as_mut()).is_pending());
        let Poll::Ready(b) = poll(b.as_mut()) else { panic!("it is its turn") };
        assert!(poll(c.as_mut()).is_pending());
        drop(b);
        assert!(poll(c.as_mut()).is_ready());
        assert!(r.entries.borrow().len() <= 2);
    }

    #[test]
    fn who_gives_up_waiting_is_in_nobody_s_way() {
        let r = Ranges::default();
        let mut a = pin!(r.lock(0, 10));
        let a = poll(a.as_mut());
        {
            let mut b = pin!(r.lock(0, 100));
            assert!(poll(b.as_mut()).is_pending());
        }
        let mut c = pin!(r.lock(50, 60));
        assert!(poll(c.as_mut()).is_ready());
        drop(a);
    }
}

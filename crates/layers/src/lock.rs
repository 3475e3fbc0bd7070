//! Who may do what with which chunks at the same time: many may read, one may change; first come, first served.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_reactor::WaitChannel;

struct Request {
    id: u64,
    from: u64,
    to: u64,
    shared: bool,
}

/// Locks of ranges of chunks.
#[derive(Default)]
pub(crate) struct Locks {
    /// Held or waited for, in the order in which they came.
    all: RefCell<Vec<Request>>,
    next: Cell<u64>,
    waiting: Cell<usize>,
    freed: WaitChannel,
}

/// A locked range, or a place in the queue for one; dropping it leaves.
pub(crate) struct Guard {
    locks: Rc<Locks>,
    id: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.locks.all.borrow_mut().retain(|r| r.id != self.id);
        if self.locks.waiting.get() > 0 {
            self.locks.freed.signal_all();
        }
    }
}

impl Locks {
    /// Nobody who came before `id` is in its way.
    fn is_free(&self, id: u64) -> bool {
        let all = self.all.borrow();
        let Some(me) = all.iter().position(|r| r.id == id) else { return true };
        let (before, mine) = (&all[..me], &all[me]);
        before.iter().all(|r| r.to <= mine.from || mine.to <= r.from || (r.shared && mine.shared))
    }

    /// Locks `from..to` if that is possible at once.
    pub(crate) fn try_lock(self: &Rc<Self>, from: u64, to: u64, shared: bool) -> Option<Guard> {
        let free = |r: &Request| r.to <= from || to <= r.from || (r.shared && shared);
        let free = self.all.borrow().iter().all(free);
        free.then(|| self.enter(from, to, shared))
    }

    fn enter(self: &Rc<Self>, from: u64, to: u64, shared: bool) -> Guard {
        let id = self.next.get();
        self.next.set(id + 1);
        self.all.borrow_mut().push(Request { id, from, to, shared });
        Guard { locks: self.clone(), id }
    }

    /// Locks `from..to`, with others that share it or alone.
    pub(crate) async fn lock(self: &Rc<Self>, from: u64, to: u64, shared: bool) -> Guard {
        let guard = self.enter(from, to, shared);
        while !self.is_free(guard.id) {
            self.waiting.set(self.waiting.get() + 1);
            let waits = Waits(&self.waiting);
            self.freed.wait().await;
            drop(waits);
        }
        guard
    }
}

struct Waits<'a>(&'a Cell<usize>);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    #[test]
    fn readers_share_writers_do_not_and_nobody_overtakes() {
        let locks = Rc::new(Locks::default());
        let mut cx = Context::from_waker(Waker::noop());
        let mut a = pin!(locks.lock(0, 4, true));
        let Poll::Ready(a) = a.as_mut().poll(&mut cx) else { panic!("free") };
        let mut b = pin!(locks.lock(3, 5, true));
        let Poll::Ready(b) = b.as_mut().poll(&mut cx) else { panic!("shared") };
        let mut w = pin!(locks.lock(3, 4, false));
        assert!(w.as_mut().poll(&mut cx).is_pending());
        let mut c = pin!(locks.lock(3, 4, true));
        assert!(c.as_mut().poll(&mut cx).is_pending(), "behind a writer");
        let mut d = pin!(locks.lock(5, 9, false));
        assert!(d.as_mut().poll(&mut cx).is_ready(), "elsewhere");
        assert!(locks.try_lock(0, 3, true).is_some() && locks.try_lock(0, 1, false).is_none());
        assert!(locks.try_lock(3, 4, true).is_none(), "somebody waits");
        drop(a);
        assert!(w.as_mut().poll(&mut cx).is_pending());
        drop(b);
        assert!(c.as_mut().poll(&mut cx).is_pending());
        let Poll::Ready(w) = w.as_mut().poll(&mut cx) else { panic!("its turn") };
        assert!(c.as_mut().poll(&mut cx).is_pending());
        drop(w);
        assert!(c.as_mut().poll(&mut cx).is_ready());
    }
}

//! The asynchronous counting and queuing semaphore of S0, section V.
//!
//! | S0 | here |
//! |---|---|
//! | `sched_wait_channel_init` | [`WaitChannel::new`] |
//! | `sched_wait`, `sched_wait_n` (P) | [`wait`](WaitChannel::wait), [`wait_n`](WaitChannel::wait_n) |
//! | `sched_try`, `sched_try_n` (conditional P) | [`try_wait`](WaitChannel::try_wait), [`try_wait_n`](WaitChannel::try_wait_n) |
//! | `sched_signal`, `sched_signal_n` (V) | [`signal`](WaitChannel::signal), [`signal_n`](WaitChannel::signal_n) |
//! | `sched_signal_first`, `sched_signal_all` (conditional V) | [`signal_first`](WaitChannel::signal_first), [`signal_all`](WaitChannel::signal_all) |
//! | `sched_async` | [`run_async`](crate::run_async) |
//! | `wait_cancel` | dropping the [`Wait`] future |
//! | `sched_run` | the run loop's rounds in [`Reactor::turn`](crate::Reactor::turn) |
//!
//! Waiters are served first come first served: a small request never overtakes a large one that waits
//! (also not by `try_wait`, and not after the count has become sufficient for it).

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

const NIL: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    Free,
    /// On the wait channel's queue.
    Queued,
    /// On the run queue; the count was lowered by `n`.
    Granted,
    /// On the run queue through a conditional V; the count was left alone.
    Released,
}

struct Waiter {
    entry: Entry,
    n: u32,
    waker: Option<Waker>,
    prev: u32,
    next: u32,
}

#[derive(Default)]
struct Queue {
    waiters: Vec<Waiter>,
    free: Vec<u32>,
    head: Option<u32>,
    tail: Option<u32>,
    len: usize,
}

impl Queue {
    fn push(&mut self, n: u32, waker: Waker) -> u32 {
        let w = Waiter {
            entry: Entry::Queued,
            n,
            waker: Some(waker),
            prev: self.tail.unwrap_or(NIL),
            next: NIL,
        };
        let index = match self.free.pop() {
            Some(i) => {
                self.waiters[i as usize] = w;
                i
            }
            None => {
                self.waiters.push(w);
                self.waiters.len() as u32 - 1
            }
        };
        match self.tail {
            Some(t) => self.waiters[t as usize].next = index,
            None => self.head = Some(index),
        }
        self.tail = Some(index);
        self.len += 1;
        index
    }

    fn unlink(&mut self, index: u32) {
        let (prev, next) = {
            let w = &self.waiters[index as usize];
            (w.prev, w.next)
        };
        match prev {
            NIL => self.head = (next != NIL).then_some(next),
            p => self.waiters[p as usize].next = next,
        }
        match next {
            NIL => self.tail = (prev != NIL).then_some(prev),
            n => self.waiters[n as usize].prev = prev,
        }
        self.len -= 1;
    }

    fn release(&mut self, index: u32) {
        let w = &mut self.waiters[index as usize];
        w.entry = Entry::Free;
        w.waker = None;
        self.free.push(index);
    }

    /// Moves the first waiter to the run queue.
    fn pop(&mut self, entry: Entry) -> Option<Waker> {
        let index = self.head?;
        self.unlink(index);
        let w = &mut self.waiters[index as usize];
        w.entry = entry;
        w.waker.take()
    }
}

/// A counting and queuing semaphore of one reactor.
///
/// Four uses (S0): a mutex (count 1), a pool of *n* resources (count *n*, `wait_n`), a one-shot event
/// (count 0, `signal`), a barrier (count 0, `signal_all`).
#[derive(Default)]
pub struct WaitChannel {
    count: Cell<u32>,
    queue: RefCell<Queue>,
}

impl std::fmt::Debug for WaitChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitChannel")
            .field("count", &self.count.get())
            .field("waiting", &self.waiting())
            .finish()
    }
}

impl WaitChannel {
    /// A semaphore with an initial count.
    pub fn new(count: u32) -> Self {
        WaitChannel { count: Cell::new(count), queue: RefCell::default() }
    }

    /// Units that could be taken now if nobody waited.
    pub fn count(&self) -> u32 {
        self.count.get()
    }

    /// How many requests wait.
    pub fn waiting(&self) -> usize {
        self.queue.borrow().len
    }

    /// P: takes one unit, waiting for it if need be.
    pub fn wait(&self) -> Wait<'_> {
        self.wait_n(1)
    }

    /// P of `n` units, all at once.
    pub fn wait_n(&self, n: u32) -> Wait<'_> {
        Wait { channel: self, n, slot: NIL }
    }

    /// Conditional P: takes one unit if that is possible at once.
    #[inline]
    pub fn try_wait(&self) -> bool {
        self.try_wait_n(1)
    }

    /// Conditional P of `n` units.
    #[inline]
    pub fn try_wait_n(&self, n: u32) -> bool {
        let count = self.count.get();
        if count < n || self.queue.borrow().head.is_some() {
            return false;
        }
        self.count.set(count - n);
        true
    }

    /// V: gives one unit.
    #[inline]
    pub fn signal(&self) {
        self.signal_n(1);
    }

    /// V of `n` units; waiters satisfied by the new count go to the run queue in order.
    ///
    /// # Panics
    /// When the count would pass `u32::MAX`.
    #[inline]
    #[expect(clippy::expect_used, reason = "units that were never taken: an error of the caller's")]
    pub fn signal_n(&self, n: u32) {
        let count = self.count.get().checked_add(n).expect("semaphore count overflow");
        self.count.set(count);
        if self.queue.borrow().head.is_some() {
            self.serve();
        }
    }

    #[cold]
    fn serve(&self) {
        loop {
            let waker = {
                let mut q = self.queue.borrow_mut();
                let Some(head) = q.head else { return };
                let n = q.waiters[head as usize].n;
                let count = self.count.get();
                if count < n {
                    return;
                }
                self.count.set(count - n);
                q.pop(Entry::Granted)
            };
            if let Some(w) = waker {
                w.wake();
            }
        }
    }

    /// Conditional V: releases the first waiter, if any, and leaves the count alone.
    pub fn signal_first(&self) -> bool {
        let (released, waker) = {
            let mut q = self.queue.borrow_mut();
            let had = q.head.is_some();
            (had, q.pop(Entry::Released))
        };
        if let Some(w) = waker {
            w.wake();
        }
        // The next in line may be satisfied by the present count.
        self.serve();
        released
    }

    /// Conditional V: releases all that wait now and leaves the count alone.
    pub fn signal_all(&self) {
        let n = self.waiting();
        for _ in 0..n {
            let waker = self.queue.borrow_mut().pop(Entry::Released);
            if let Some(w) = waker {
                w.wake();
            }
        }
    }

    /// P of `n` units that gives them back when the guard is dropped.
    pub async fn acquire(&self, n: u32) -> Units<'_> {
        self.wait_n(n).await;
        Units { channel: self, n }
    }
}

/// Units that are given back on drop.
#[must_use]
pub struct Units<'a> {
    channel: &'a WaitChannel,
    n: u32,
}

impl Units<'_> {
    /// Keeps the units taken for good; whoever knows better signals them.
    pub fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for Units<'_> {
    fn drop(&mut self) {
        self.channel.signal_n(self.n);
    }
}

/// A pending P. Dropping it is S0's `wait_cancel`: what was taken is given back, and whoever that
/// satisfies is woken.
#[must_use]
pub struct Wait<'a> {
    channel: &'a WaitChannel,
    n: u32,
    slot: u32,
}

impl Future for Wait<'_> {
    type Output = ();
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.slot == NIL {
            if self.channel.try_wait_n(self.n) {
                self.slot = NIL - 1;
                return Poll::Ready(());
            }
            self.slot = self.channel.queue.borrow_mut().push(self.n, cx.waker().clone());
            return Poll::Pending;
        }
        assert!(self.slot != NIL - 1, "polled after completion");
        let mut q = self.channel.queue.borrow_mut();
        match q.waiters[self.slot as usize].entry {
            Entry::Queued => {
                q.waiters[self.slot as usize].waker = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => {
                q.release(self.slot);
                self.slot = NIL - 1;
                Poll::Ready(())
            }
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.slot >= NIL - 1 {
            return;
        }
        let entry = {
            let mut q = self.channel.queue.borrow_mut();
            let entry = q.waiters[self.slot as usize].entry;
            if entry == Entry::Queued {
                q.unlink(self.slot);
            }
            q.release(self.slot);
            entry
        };
        match entry {
            // It may have been the one that held up smaller requests behind it.
            Entry::Queued => self.channel.serve(),
            Entry::Granted => self.channel.signal_n(self.n),
            Entry::Released | Entry::Free => {}
        }
    }
}

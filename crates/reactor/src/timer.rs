//! Timers.

use crate::executor::{try_with, with};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use weir_base::Nanos;

#[derive(Default)]
struct Slot {
    generation: u32,
    waker: Option<Waker>,
}

#[derive(Default)]
pub(crate) struct Timers {
    /// (deadline, order of creation, slot, generation); cancelled ones are passed over when due.
    heap: BinaryHeap<Reverse<(Nanos, u64, u32, u32)>>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    order: u64,
    cancelled: usize,
}

impl Timers {
    fn insert(&mut self, at: Nanos, waker: Waker) -> (u32, u32) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let s = &mut self.slots[index as usize];
        s.waker = Some(waker);
        self.order += 1;
        self.heap.push(Reverse((at, self.order, index, s.generation)));
        (index, s.generation)
    }

    fn release(&mut self, index: u32) -> Option<Waker> {
        let s = &mut self.slots[index as usize];
        s.generation = s.generation.wrapping_add(1);
        self.free.push(index);
        s.waker.take()
    }

    fn live(&self, index: u32, generation: u32) -> bool {
        self.slots.get(index as usize).is_some_and(|s| s.generation == generation)
    }

    fn cancel(&mut self, index: u32, generation: u32) {
        if !self.live(index, generation) {
            return;
        }
        self.release(index);
        self.cancelled += 1;
        // Cancelled entries far in the future must not pile up.
        if self.cancelled > 64 && self.cancelled * 2 > self.heap.len() {
            let slots = &self.slots;
            self.heap.retain(|Reverse((_, _, i, g))| {
                slots.get(*i as usize).is_some_and(|s| s.generation == *g)
            });
            self.cancelled = 0;
        }
    }

    /// When the next timer is due. Cancelled ones do not count: an idle core is not woken for them.
    pub(crate) fn next(&mut self) -> Option<Nanos> {
        while let Some(&Reverse((at, _, index, generation))) = self.heap.peek() {
            if self.live(index, generation) {
                return Some(at);
            }
            self.heap.pop();
            self.cancelled = self.cancelled.saturating_sub(1);
        }
        None
    }

    pub(crate) fn expire(&mut self, now: Nanos) -> Option<Waker> {
        while let Some(&Reverse((at, _, index, generation))) = self.heap.peek() {
            let live = self.live(index, generation);
            if live && at > now {
                return None;
            }
            self.heap.pop();
            if live {
                return self.release(index);
            }
            self.cancelled = self.cancelled.saturating_sub(1);
        }
        None
    }
}

/// Future of [`sleep`]. It belongs to the reactor on which it was first polled:
///
/// ```compile_fail
/// fn send(_: impl Send) {}
/// send(weir_reactor::sleep_until(1));
/// ```
pub struct Sleep {
    at: Nanos,
    slot: Option<(u32, u32)>,
    /// Its slot means nothing on another thread.
    _local: PhantomData<*const ()>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        with(|i| {
            let mut timers = i.timers.borrow_mut();
            if crate::executor::now_of(i) >= self.at {
                if let Some((s, g)) = self.slot.take() {
                    timers.cancel(s, g);
                }
                return Poll::Ready(());
            }
            match self.slot {
                Some((s, g)) if timers.live(s, g) => {
                    timers.slots[s as usize].waker = Some(cx.waker().clone());
                }
                _ => self.slot = Some(timers.insert(self.at, cx.waker().clone())),
            }
            Poll::Pending
        })
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((s, g)) = self.slot {
            try_with(|i| i.timers.borrow_mut().cancel(s, g));
        }
    }
}

/// Waits for this many nanoseconds.
pub fn sleep(duration: Nanos) -> Sleep {
    sleep_until(crate::now().saturating_add(duration))
}

/// Waits until the clock shows `at`.
pub fn sleep_until(at: Nanos) -> Sleep {
    Sleep { at, slot: None, _local: PhantomData }
}

/// The time given to [`timeout`] was up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed;

/// Runs `future` for at most `duration` nanoseconds, then drops it.
pub async fn timeout<F: Future>(duration: Nanos, future: F) -> Result<F::Output, Elapsed> {
    let mut sleep = std::pin::pin!(sleep(duration));
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(move |cx| {
        if let Poll::Ready(v) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(v));
        }
        sleep.as_mut().poll(cx).map(|()| Err(Elapsed))
    })
    .await
}

/// How often a reactor has to have looked for an end before [`patience`] gives up.
const LOOKS: Nanos = 8;

/// The time given by [`patience`] was up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overdue {
    /// How long it was waited for, in nanoseconds.
    pub waited: Nanos,
    /// How much of that the reactor itself was late: it was held up by a task, had no processor, or the whole machine
    /// stood still.
    pub absent: Nanos,
}

/// Runs `future` for at most `limit` nanoseconds in which this reactor was there to see it end, then drops it.
///
/// For judging what is outside the reactor, such as a device: by the clock alone everything looks slow to a reactor that
/// was not running itself. It looks eight times at least, however late it is each time.
pub async fn patience<F: Future>(limit: Nanos, future: F) -> Result<F::Output, Overdue> {
    let mut future = std::pin::pin!(future);
    let (step, began) = ((limit / LOOKS).max(1), crate::now());
    let (mut left, mut absent) = (limit, 0);
    loop {
        let (from, n) = (crate::now(), step.min(left));
        if let Ok(v) = timeout(n, future.as_mut()).await {
            return Ok(v);
        }
        absent += (crate::now() - from).saturating_sub(n);
        left -= n;
        if left == 0 {
            return Err(Overdue { waited: crate::now() - began, absent });
        }
    }
}

//! Completion queues: many operations whose ends one task harvests in batches.
//!
//! A token of a queue names a number of the user's choice and may be used again and again, so that an
//! operation that repeats (a posted receive) needs no slot of its own each time.

use crate::completion::{Completion, QUEUED, Token};
use crate::executor::{try_with, with};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

const MAX_QUEUES: usize = 1 << 15;

#[derive(Default)]
struct State {
    done: VecDeque<(u32, Completion)>,
    waiter: Option<Waker>,
}

struct Slot {
    generation: u16,
    queue: Weak<RefCell<State>>,
}

/// The queues of a reactor.
#[derive(Default)]
pub(crate) struct Queues(Vec<Slot>);

/// Gathers completions for one task, in the order in which they came.
pub struct CompletionQueue {
    state: Rc<RefCell<State>>,
    base: u64,
}

impl Default for CompletionQueue {
    fn default() -> Self {
        CompletionQueue::new()
    }
}

impl CompletionQueue {
    /// An empty queue of the present reactor.
    ///
    /// # Panics
    /// When the reactor has 32 768 queues.
    pub fn new() -> Self {
        let state = Rc::<RefCell<State>>::default();
        let base = with(|i| {
            let all = &mut i.queues.borrow_mut().0;
            let free = all.iter().position(|s| s.queue.strong_count() == 0);
            let index = free.unwrap_or_else(|| {
                assert!(all.len() < MAX_QUEUES - 1, "too many completion queues");
                all.push(Slot { generation: 0, queue: Weak::new() });
                all.len() - 1
            });
            let slot = &mut all[index];
            slot.generation = slot.generation.wrapping_add(1);
            slot.queue = Rc::downgrade(&state);
            QUEUED | (index as u64) << 48 | u64::from(slot.generation) << 32
        });
        CompletionQueue { state, base }
    }

    /// The token whose completions arrive here with `user`.
    #[inline]
    pub fn token(&self, user: u32) -> Token {
        Token(self.base | u64::from(user))
    }

    /// The oldest completion that has come.
    #[inline]
    pub fn try_next(&self) -> Option<(u32, Completion)> {
        self.state.borrow_mut().done.pop_front()
    }

    /// Waits for a completion. One task at a time.
    pub async fn next(&self) -> (u32, Completion) {
        std::future::poll_fn(|cx| {
            let mut s = self.state.borrow_mut();
            match s.done.pop_front() {
                Some(d) => Poll::Ready(d),
                None => {
                    s.waiter = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

/// A completion for a queue; dropped when the queue is gone.
#[inline]
pub(crate) fn push(token: Token, c: Completion) {
    let waker = try_with(|i| {
        let all = i.queues.borrow();
        let slot = all.0.get((token.0 >> 48 & 0x7fff) as usize)?;
        if slot.generation != (token.0 >> 32) as u16 {
            return None;
        }
        let q = slot.queue.upgrade()?;
        let mut s = q.borrow_mut();
        s.done.push_back((token.0 as u32, c));
        s.waiter.take()
    });
    if let Some(Some(w)) = waker {
        w.wake();
    }
}

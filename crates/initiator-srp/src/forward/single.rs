//! The single queue that S3 compares with: one queue and one lock for all cores, one channel behind it.

use super::Request;
use super::lend::Name;
use crate::session::local::Local;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use weir_reactor::Handle;

#[derive(Default)]
struct Inner {
    waiting: VecDeque<Request>,
    in_flight: usize,
    /// The channel's reactor was told to look.
    told: bool,
}

/// One queue for all reactors.
pub(crate) struct SingleQueue {
    depth: usize,
    inner: Mutex<Inner>,
}

impl SingleQueue {
    pub(crate) fn new(depth: usize) -> SingleQueue {
        SingleQueue { depth, inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The next request for the channel.
    fn next(&self) -> Option<Request> {
        let mut q = self.lock();
        let next = if q.in_flight < self.depth { q.waiting.pop_front() } else { None };
        q.in_flight += usize::from(next.is_some());
        q.told &= next.is_some();
        next
    }

    /// Takes a request back that was not started.
    pub(crate) fn remove(&self, sender: Name) {
        let found = {
            let mut q = self.lock();
            let at = q.waiting.iter().position(|r| r.sender() == sender);
            at.and_then(|i| q.waiting.remove(i))
        };
        drop(found);
    }

    /// Answers all that were not started.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut self.lock().waiting);
        drop(all);
    }
}

/// Queues a request of any reactor.
pub(super) fn submit(q: &Arc<SingleQueue>, home: &Handle, session: u64, request: Request) {
    let tell = {
        let mut inner = q.lock();
        inner.waiting.push_back(request);
        let room = inner.in_flight < q.depth;
        room && !std::mem::replace(&mut inner.told, true)
    };
    if tell {
        home.run(move || drain(session));
    }
}

/// Starts what there is room for. On the channel's reactor.
fn drain(session: u64) {
    let Some(q) = Local::find(session).and_then(|l| l.shared.single.clone()) else { return };
    while let Some(r) = q.next() {
        r.start();
    }
}

/// A command has ended: its place is free. On the channel's reactor.
pub(super) fn finished(q: &Arc<SingleQueue>, session: u64) {
    q.lock().in_flight -= 1;
    drain(session);
}

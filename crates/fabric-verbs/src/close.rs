//! The way down, which always ends: in order, by a fault, by the peer, or by a timer.
//!
//! One task per connection waits for a reason to close and then goes through the steps of
//! the verbs: queue pair to error, connection manager told, work flushed, last receive seen, queue pair
//! destroyed, identifier destroyed. Destroying the queue pair ends every access of the device, so that
//! a step which an adapter leaves out only costs its time limit.

use crate::conn::{Conn, State};
use crate::ffi::*;
use std::rc::Rc;
use weir_base::{Nanos, SECONDS};
use weir_reactor::{Completion, complete, now, timeout};

/// How long what is queued may take to go out.
const DRAIN: Nanos = 2 * SECONDS;
/// How long the peer may take to close its side (iWARP).
const GOODBYE: Nanos = SECONDS;
/// How long an adapter may take to flush a queue pair in error.
const FLUSH: Nanos = SECONDS;
impl Conn {
    /// Starts to close from this side.
    pub(crate) fn close(&self, at_once: bool, why: &str) {
        if at_once || self.state.get() == State::SettingUp {
            return self.fail(why);
        }
        if self.state.get() == State::Open {
            self.note(why);
            self.state.set(State::Draining);
            self.events.bell.signal();
        }
    }

    /// Starts to close at once.
    pub(crate) fn fail(&self, why: &str) {
        if self.state.get() < State::Closing {
            self.note(why);
            self.state.set(State::Closing);
            self.events.bell.signal();
        }
    }

    fn note(&self, why: &str) {
        let mut reason = self.reason.borrow_mut();
        if reason.is_empty() {
            *reason = why.to_owned();
        }
    }

    /// What the connection manager says of a connection that is set up. True when the peer is gone.
    fn take_events(&self) -> bool {
        let mut gone = false;
        while let Some(e) = self.events.take() {
            match e.kind {
                RDMA_CM_EVENT_ESTABLISHED
                | RDMA_CM_EVENT_TIMEWAIT_EXIT
                | RDMA_CM_EVENT_ADDR_CHANGE => {}
                RDMA_CM_EVENT_DISCONNECTED => {
                    gone = true;
                    self.fail("the peer closed the connection");
                }
                RDMA_CM_EVENT_DEVICE_REMOVAL => {
                    gone = true;
                    self.fail("the RDMA device was removed");
                    if let Some(d) = self.device() {
                        d.died("the RDMA device was removed");
                    }
                }
                _ => {
                    gone = true;
                    self.fail(&e.describe(self.lib));
                }
            }
        }
        gone
    }

    /// Waits until `done`, woken by the bell, for so long at most.
    async fn wait_until(&self, limit: Nanos, done: impl Fn() -> bool) -> bool {
        let end = now() + limit;
        while !done() {
            let left = end.saturating_sub(now());
            if left == 0 || timeout(left, self.events.bell.wait()).await.is_err() {
                return done();
            }
        }
        true
    }

    fn tell_peer(&self) {
        if let Some(id) = self.id.borrow().as_ref() {
            id.disconnect();
        }
    }

    /// The life of an established connection.
    pub(crate) async fn supervise(self: Rc<Self>) {
        let mut gone = self.take_events();
        while self.state.get() == State::Open {
            self.events.bell.wait().await;
            gone |= self.take_events();
        }
        if self.state.get() == State::Draining {
            gone |= self.drain().await;
        }
        self.tear_down(gone).await;
    }

    /// What is queued goes out and is acknowledged.
    async fn drain(&self) -> bool {
        // After the receives that this turn posts, as always.
        self.ring_later();
        let gone = std::cell::Cell::new(false);
        let done = || {
            gone.set(gone.get() | self.take_events());
            self.is_drained() || self.state.get() > State::Draining
        };
        self.wait_until(DRAIN, done).await;
        if self.limits.iwarp && self.state.get() == State::Draining {
            // In order, the stream ends on both sides before the queue pair does.
            self.tell_peer();
            let done = || {
                gone.set(gone.get() | self.take_events());
                gone.get()
            };
            self.wait_until(GOODBYE, done).await;
        }
        gone.get()
    }

    pub(crate) async fn tear_down(self: &Rc<Self>, gone: bool) {
        if self.state.get() == State::Down {
            return;
        }
        self.state.set(State::Closing);
        self.note("closed");
        self.flush();
        let broken = match self.qp.borrow().as_ref() {
            Some(qp) => qp.set_error().is_err(),
            None => true,
        };
        if !gone || !self.limits.iwarp {
            self.tell_peer();
        }
        // siw flushes before it answers, tells of no last receive, and never flushes a mark.
        if !broken && !self.limits.siw {
            if !self.is_drained() {
                self.mark();
            }
            let no_receives = !self.uses_srq() || !self.receiving.get();
            let done = || self.is_drained() && (self.last_receive.get() || no_receives);
            self.wait_until(FLUSH, done).await;
        }
        self.end();
    }

    /// The last step, which waits for nothing.
    fn end(self: &Rc<Self>) {
        let device = self.device();
        if let Some(d) = &device {
            d.poll();
        }
        self.state.set(State::Down);
        self.destroy_qp();
        if let Some(d) = &device {
            // Late completions of the queue pair find nothing any more, but must leave the queue.
            d.poll();
        }
        self.flush_all();
        weir_fabric::release_readers(&**self);
        self.refuse_early();
        let (id, shared) = (self.id.take(), self.shared.upgrade());
        if let (Some(id), Some(shared)) = (&id, &shared) {
            shared.forget_id(id.key());
        }
        drop(id);
        if let Some(d) = &device {
            d.drop_conn(self.slot);
        }
        for token in self.on_closed.take() {
            complete(token, Completion::ok(0));
        }
        if let (Some(d), Some(shared)) = (device, shared) {
            shared.conn_ended(&d);
        }
    }

    /// Ends at once, without a reactor to wait in.
    pub(crate) fn abandon(self: &Rc<Self>) {
        if self.state.get() != State::Down {
            self.note("the reactor ended");
            self.end();
        }
    }
}

//! The way down, which always ends: in order, at once, by a fault, or by a timer.

use crate::conn::{Conn, State};
use crate::provider::Shared;
use std::rc::Rc;
use weir_base::SECONDS;
use weir_fabric::status;
use weir_proto_iwarp::{Fault, tx};
use weir_reactor::{Completion, complete, sleep, spawn_task};

/// How long an orderly close may take.
const PATIENCE: u64 = 2 * SECONDS;

impl Conn {
    /// Starts to close from this side.
    pub(crate) fn close(&self, at_once: bool, why: &str) {
        let Some(shared) = self.shared() else { return };
        if self.is_down() {
            return;
        }
        if at_once {
            // Nothing of what was sent may arrive later, out of the kernel's buffer: whoever closes at once may go another
            // way from here on.
            self.stream.abort();
            return self.down(&shared, why);
        }
        if self.state.get() == State::Open {
            self.note(why);
            self.state.set(State::Draining);
            self.supervise(&shared);
            // Our direction ends when the queue is empty, after this turn's doorbell.
            self.ring_later();
        }
    }

    /// Our direction of the stream ends; the peer's end is awaited.
    pub(crate) fn half_close(&self) {
        self.state.set(State::HalfClosed);
        self.stream.shutdown(false);
    }

    fn note(&self, why: &str) {
        let mut reason = self.reason.borrow_mut();
        if reason.is_empty() {
            *reason = why.to_owned();
        }
    }

    /// A timer takes the connection down if the peer does not.
    fn supervise(&self, shared: &Shared) {
        if self.reaper.replace(true) {
            return;
        }
        if let Some(me) = shared.get(self.slot) {
            // What it holds is not held for that when it is down.
            let me = Rc::downgrade(&me);
            spawn_task(async move {
                sleep(PATIENCE).await;
                if let Some(me) = me.upgrade()
                    && let Some(s) = me.shared()
                {
                    me.down(&s, "the peer did not close in time");
                }
            });
        }
    }

    /// The peer broke a rule: it is told which, then the stream ends.
    pub(crate) fn fail(&self, shared: &Shared, fault: &Fault) {
        self.note(&format!("protocol fault of the peer: {fault}"));
        let frame = tx::terminate(fault, self.crc);
        self.tx.borrow_mut().frame(frame.as_bytes());
        self.state.set(State::Draining);
        self.supervise(shared);
        self.transmit(shared);
        // Nothing more is taken from a peer at fault; what the kernel has of ours still goes out.
        if !self.is_down() {
            self.down(shared, "protocol fault");
        }
    }

    /// The end: completes everything that is outstanding.
    pub(crate) fn down(&self, shared: &Shared, why: &str) {
        if self.state.replace(State::Down) == State::Down {
            return;
        }
        self.note(why);
        self.stream.shutdown(true);
        self.unwatch();
        self.tx.borrow_mut().abandon();
        self.report_done(status::FLUSHED);
        for token in self.reads_out.borrow_mut().drain() {
            self.finish_read(token, status::FLUSHED);
        }
        weir_fabric::release_readers(self);
        self.sinks.borrow_mut().clear();
        if let Some((buf, token)) = self.rx.borrow_mut().abandon() {
            self.recv.untake(buf, token);
        }
        self.keys.borrow_mut().take();
        shared.remove(self.slot);
        for token in self.on_closed.take() {
            complete(token, Completion::ok(0));
        }
    }
}

//! What the target sends.

use super::slot::{Outcome, State};
use super::{Channel, RESPONSE};
use std::rc::{Rc, Weak};
use weir_fabric::{RecvQueue, SendFlags, Tap};
use weir_mem::Slice;
use weir_proto_srp::initiator_tag::InitiatorTag;
use weir_proto_srp::misc::{CreditResponse, EventResponse, SMALL_LEN};
use weir_proto_srp::{Plain, Response, RspCode, TargetIu, decode_initiator};
use weir_reactor::{Completion, CompletionQueue, Token, spawn_task};

impl Channel {
    /// Credits that came with an IU of the target. False: they cannot be, and nothing was done.
    #[inline]
    fn try_credit(&self, delta: i32) -> bool {
        let mut c = self.credits.borrow_mut();
        let before = c.commands();
        if c.add(delta).is_err() {
            return false;
        }
        // Units that are left of credits which the target has taken back count again.
        let (all, left) = (c.commands(), self.credit_units.count());
        let n = all.saturating_sub(before).min(all.saturating_sub(left));
        drop(c);
        self.credit_units.signal_n(n);
        true
    }

    fn credit(&self, delta: i32) {
        if !self.try_credit(delta) {
            tracing::warn!(peer = %self.conn.peer(), "the target grants more credits than there are");
            self.conn.disconnect(true);
        }
    }

    /// A response came; its credits have been counted.
    #[inline]
    fn respond(&self, r: &Response<'_>) {
        match InitiatorTag::from_tag(r.tag) {
            Some(InitiatorTag::Command { queue, index }) if queue == self.config.queue => {
                self.ended_with(index, r);
            }
            Some(InitiatorTag::Task(n)) => self.task_answered(n, r.code),
            _ => {
                tracing::warn!(peer = %self.conn.peer(), tag = %r.tag, "response to an unknown tag")
            }
        }
    }

    #[inline]
    fn ended_with(&self, index: u16, r: &Response<'_>) {
        let mut t = self.table.borrow_mut();
        let Some(s) = t.slots.get_mut(usize::from(index)) else { return };
        match s.state {
            State::Sent => {
                let waker = s.waker.take();
                s.outcome = Outcome {
                    status: r.status,
                    failure: r.code.filter(|c| *c != RspCode::Complete),
                    out_residual: r.out_residual,
                    in_residual: r.in_residual,
                    sense: if r.sense.is_empty() { Box::default() } else { r.sense.into() },
                };
                s.state = State::Done;
                drop(t);
                if let Some(w) = waker {
                    w.wake();
                }
            }
            State::Orphan => {
                let (lun, free) = (s.lun, !s.managed);
                if free {
                    t.set_free(index);
                } else {
                    s.state = State::Spent;
                }
                drop(t);
                if free {
                    self.slot_units.signal();
                }
                if r.status != 0 {
                    self.unseen(lun, r.sense);
                }
            }
            // Over already: a late answer after an abort, or a target that answers twice.
            _ => {}
        }
    }

    /// As [`respond`](Channel::respond) for a command that ended with GOOD and moved all its data.
    #[inline]
    fn ended_well(&self, r: Plain) {
        if let Some(InitiatorTag::Command { queue, index }) = InitiatorTag::from_tag(r.tag)
            && queue == self.config.queue
        {
            let mut t = self.table.borrow_mut();
            if let Some(s) = t.slots.get_mut(usize::from(index))
                && s.state == State::Sent
            {
                s.state = State::Good;
                let waker = s.waker.take();
                drop(t);
                if let Some(w) = waker {
                    w.wake();
                }
                return;
            }
        }
        self.respond(&Response::scsi(r.tag, r.status, r.delta));
    }

    /// Answers a request of the target. It costs no credit, but may have to wait for room; a target that
    /// asks again before it has the answer breaks the protocol.
    fn answer(self: &Rc<Self>, bytes: [u8; SMALL_LEN]) {
        if self.conn.send_slots().try_wait() {
            return self.conn.send(&bytes, None, SendFlags::default(), Token::NONE);
        }
        if self.answering.replace(true) {
            tracing::warn!(peer = %self.conn.peer(), "the target does not wait for answers");
            return self.conn.disconnect(true);
        }
        let me = self.clone();
        spawn_task(async move {
            me.conn.send_slots().wait().await;
            me.answering.set(false);
            me.conn.send(&bytes, None, SendFlags::default(), Token::NONE);
        });
    }

    /// Takes one message.
    #[inline]
    pub(super) fn message(self: &Rc<Self>, buf: &Slice, c: Completion) {
        if !c.is_ok() {
            return;
        }
        let iu = buf.sub(0, (c.len as usize).min(RESPONSE));
        // SAFETY: the message is complete and the buffer is not posted again before this ends.
        let bytes = unsafe { iu.bytes() };
        match decode_initiator(bytes) {
            Ok(TargetIu::Response(r)) => {
                self.credit(r.delta);
                self.respond(&r);
            }
            Ok(TargetIu::CreditRequest(r)) => {
                self.credit(r.delta);
                self.answer(CreditResponse { tag: r.tag }.to_bytes());
            }
            Ok(TargetIu::EventRequest(r)) => {
                self.credit(r.delta);
                self.answer(EventResponse { tag: r.tag }.to_bytes());
                let handler = self.on_event.borrow().clone();
                if let Some(f) = handler {
                    f(r.lun, r.sense);
                }
            }
            Ok(TargetIu::TargetLogout(l)) => {
                tracing::info!(peer = %self.conn.peer(), reason = ?l.reason, "the target logs out");
                self.conn.disconnect(false);
            }
            Err(e) => {
                tracing::warn!(peer = %self.conn.peer(), error = %e, "the target does not speak SRP");
                self.conn.disconnect(true);
            }
        }
    }
}

/// Takes responses where they were received; other messages are rare and may end the channel.
pub(super) struct ResponseTap(pub(super) Weak<Channel>);

impl Tap for ResponseTap {
    #[inline]
    fn message(&self, bytes: &[u8]) -> bool {
        let Some(channel) = self.0.upgrade() else { return false };
        if let Some(r) = Plain::decode(bytes)
            && r.status == 0
            && bytes.len() <= RESPONSE
        {
            let counted = channel.try_credit(r.delta);
            if counted {
                channel.ended_well(r);
            }
            return counted;
        }
        match decode_initiator(bytes) {
            Ok(TargetIu::Response(r)) if bytes.len() <= RESPONSE => {
                let counted = channel.try_credit(r.delta);
                if counted {
                    channel.respond(&r);
                }
                counted
            }
            _ => false,
        }
    }
}

/// Harvests messages for as long as the channel lives.
pub(super) async fn receive(
    channel: Rc<Channel>,
    queue: Rc<dyn RecvQueue>,
    cq: Rc<CompletionQueue>,
    buffers: Vec<Slice>,
) {
    loop {
        let (user, c) = cq.next().await;
        let buf = &buffers[user as usize];
        channel.message(buf, c);
        queue.post(buf.clone(), cq.token(user));
    }
}

//! What a connection's queue pair has to do and has outstanding.

use super::{Conn, State};
use crate::device::READ;
use crate::ffi::*;
use crate::memory::{Hold, Sink};
use crate::objects::{RecvBatch, Request, SendBatch};
use crate::recv::result_of;
use std::collections::VecDeque;
use std::io;
use weir_fabric::status;
use weir_mem::Slice;
use weir_reactor::{Completion, Token, complete, now};

/// Requests after which one asks for a completion, when none has a waiter or holds memory.
const MODERATION: u32 = 16;

/// A SEND or WRITE that has not completed.
struct Outstanding {
    token: Token,
    /// A drain mark of the provider's own, which has no slot of the user's.
    mark: bool,
    _hold: Hold,
}

struct Reading {
    token: Token,
    sink: Sink,
}

/// The send queue as this side keeps account of it.
#[derive(Default)]
pub(super) struct SendQueue {
    batch: SendBatch,
    /// SENDs and WRITEs, oldest first, and the number of the oldest.
    outstanding: VecDeque<Outstanding>,
    oldest: u32,
    /// READs, by number; they may complete later than what was posted after them (iWARP).
    reads: Vec<Option<Reading>>,
    free_reads: Vec<u32>,
    /// Requests since the last that asks for a completion, and whether one of them holds memory.
    silent: u32,
    holding: bool,
}

impl SendQueue {
    fn is_empty(&self) -> bool {
        self.outstanding.is_empty() && self.free_reads.len() == self.reads.len()
    }
}

impl Conn {
    pub(super) fn usable(&self, token: Token) -> bool {
        let open = self.state.get() == State::Open;
        if !open {
            self.finish(token, status::FLUSHED);
        }
        open
    }

    pub(super) fn finish(&self, token: Token, result: i32) {
        self.send_slots.signal();
        complete(token, Completion { result, source: self.number, ..Completion::default() });
    }

    pub(super) fn finish_read(&self, token: Token, result: i32) {
        self.read_slots.signal();
        self.finish(token, result);
    }

    /// Queues a SEND or WRITE for the doorbell at the end of the turn.
    pub(super) fn push(&self, mut r: Request, token: Token, hold: Hold) {
        let mut sq = self.sq.borrow_mut();
        let number = sq.oldest.wrapping_add(sq.outstanding.len() as u32);
        r.wr_id = self.wr_base | u64::from(number);
        // siw sends from the memory itself what asks for no completion, and says of later work that it is done
        // while TCP still has to read that: the peer would get what the memory is used for next.
        let zero_copy = self.limits.siw && hold.is_some();
        if token == Token::NONE && !zero_copy {
            sq.silent += 1;
            sq.holding |= hold.is_some();
        } else {
            r.flags |= IBV_SEND_SIGNALED;
            sq.silent = 0;
            sq.holding = false;
        }
        sq.outstanding.push_back(Outstanding { token, mark: false, _hold: hold });
        sq.batch.push(r);
        drop(sq);
        self.ring_later();
    }

    /// Queues a READ.
    pub(super) fn push_read(&self, mut r: Request, token: Token, sink: Sink) {
        let mut sq = self.sq.borrow_mut();
        let number = match sq.free_reads.pop() {
            Some(n) => n,
            None => {
                sq.reads.push(None);
                sq.reads.len() as u32 - 1
            }
        };
        sq.reads[number as usize] = Some(Reading { token, sink });
        r.wr_id = self.wr_base | READ | u64::from(number);
        sq.batch.push(r);
        drop(sq);
        self.ring_later();
    }

    /// Has `r` carry these bytes itself.
    pub(super) fn carry(&self, r: &mut Request, head: &[u8], data: Option<&Slice>) {
        r.sges[0] = self.sq.borrow_mut().batch.keep(head, data);
        r.pieces = 1;
        r.inline_head = true;
        r.flags |= IBV_SEND_INLINE;
    }

    pub(crate) fn ring_later(&self) {
        if !self.dirty.replace(true)
            && let (Some(s), Some(me)) = (self.shared.upgrade(), self.me.upgrade())
        {
            s.dirty.borrow_mut().push(me);
        }
    }

    /// Rings the doorbell for what the turn queued.
    pub(crate) fn flush(&self) {
        self.dirty.set(false);
        let mut sq = self.sq.borrow_mut();
        if self.state.get() > State::Draining {
            // Never goes out; flushed with what is outstanding.
            return sq.batch.clear();
        }
        // Memory is given back soon, slots now and then; at the end everything is waited for.
        let moderation = MODERATION.min(self.send_queue.get() / 4).max(1);
        let draining = self.state.get() == State::Draining;
        if sq.holding || sq.silent >= moderation || draining && sq.silent > 0 {
            let found = sq.batch.newest().find(|r| r.wr_id & READ == 0);
            if let Some(r) = found {
                r.flags |= IBV_SEND_SIGNALED;
                sq.silent = 0;
                sq.holding = false;
            }
        }
        if draining && sq.silent > 0 {
            self.add_mark(&mut sq);
        }
        let posted = self.post(&mut sq.batch);
        drop(sq);
        // What was not posted stays in the account and is flushed with the rest.
        if let Err(e) = posted {
            self.fail(&format!("cannot post work: {e}"));
        }
    }

    fn post(&self, batch: &mut SendBatch) -> io::Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        match self.qp.borrow().as_ref() {
            // SAFETY: `outstanding` and `reads` hold the memory until completion or the queue pair's end;
            // inline bytes are the batch's own.
            Some(qp) => unsafe { qp.post(batch) },
            None => {
                batch.clear();
                Ok(())
            }
        }
    }

    pub(crate) fn post_receives(&self, batch: &mut RecvBatch) -> io::Result<()> {
        match self.qp.borrow().as_ref() {
            // SAFETY: the part's entries keep the buffers until their completion, or the queue pair's end.
            Some(qp) => unsafe { qp.post_recv(batch) },
            // Posted when there is one.
            None => Ok(()),
        }
    }

    /// Adds an empty WRITE that completes when all before it has. Zero-length WRITEs need no key.
    fn add_mark(&self, sq: &mut SendQueue) {
        let number = sq.oldest.wrapping_add(sq.outstanding.len() as u32);
        sq.batch.push(Request {
            wr_id: self.wr_base | u64::from(number),
            opcode: IBV_WR_RDMA_WRITE,
            flags: IBV_SEND_SIGNALED,
            ..Request::default()
        });
        let hold = Hold::default();
        sq.outstanding.push_back(Outstanding { token: Token::NONE, mark: true, _hold: hold });
        sq.silent = 0;
    }

    /// Posts a mark to a queue pair in error, which flushes it after all others.
    pub(crate) fn mark(&self) {
        let mut sq = self.sq.borrow_mut();
        self.add_mark(&mut sq);
        // It may refuse; then nothing needs to be waited for but its end.
        let _ = self.post(&mut sq.batch);
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.sq.borrow().is_empty()
    }

    /// A work request of this connection has completed.
    #[inline]
    pub(crate) fn completed(&self, wc: &ibv_wc) {
        let result = result_of(wc.status);
        let number = wc.wr_id as u32;
        if wc.wr_id & READ != 0 {
            self.read_done(number, result);
        } else {
            self.done_up_to(number, result);
        }
        if wc.status == IBV_WC_SUCCESS {
            // The peer's adapter has acknowledged it.
            self.last_life.set(now());
        } else {
            // Flushed: the cause is another request's, or this side's.
            if wc.status != IBV_WC_WR_FLUSH_ERR {
                self.fail(&self.describe(wc.status));
            } else {
                self.fail("the connection broke");
            }
        }
        if self.state.get() > State::Open && self.is_drained() {
            self.events.bell.signal();
        }
    }

    /// The SEND or WRITE `number` has ended, and with it all before.
    fn done_up_to(&self, number: u32, result: i32) {
        loop {
            let (o, last) = {
                let mut sq = self.sq.borrow_mut();
                let last = number.wrapping_sub(sq.oldest);
                if last >= sq.outstanding.len() as u32 {
                    return;
                }
                let Some(o) = sq.outstanding.pop_front() else { return };
                sq.oldest = sq.oldest.wrapping_add(1);
                (o, last == 0)
            };
            self.ended(&o, if last { result } else { 0 });
            if last {
                return;
            }
        }
    }

    fn ended(&self, o: &Outstanding, result: i32) {
        if !o.mark {
            self.finish(o.token, result);
        }
    }

    fn read_done(&self, number: u32, result: i32) {
        let reading = {
            let mut sq = self.sq.borrow_mut();
            let r = sq.reads.get_mut(number as usize).and_then(Option::take);
            if r.is_some() {
                sq.free_reads.push(number);
            }
            r
        };
        if let Some(r) = reading {
            if result == 0 {
                r.sink.finish();
            } else {
                drop(r.sink);
            }
            self.finish_read(r.token, result);
        }
    }

    pub(super) fn no_memory(&self, e: &io::Error, finish: impl FnOnce()) {
        self.fail(&format!("cannot register memory: {e}"));
        finish();
    }

    /// Everything that is outstanding ends as flushed: the queue pair is gone.
    pub(crate) fn flush_all(&self) {
        let reads = {
            let mut sq = self.sq.borrow_mut();
            sq.batch.clear();
            sq.reads.len() as u32
        };
        for n in 0..reads {
            self.read_done(n, status::FLUSHED);
        }
        loop {
            let o = {
                let mut sq = self.sq.borrow_mut();
                sq.oldest = sq.oldest.wrapping_add(1);
                sq.outstanding.pop_front()
            };
            match o {
                Some(o) => self.ended(&o, status::FLUSHED),
                None => break,
            }
        }
        self.registered.borrow_mut().clear();
    }
}

//! One connection: the verbs on it, and what its queue pair has outstanding.

use crate::cm::{CmEvent, CmId};
use crate::device::{Device, READ};
use crate::ffi::*;
use crate::memory::{Hold, Sink};
use crate::objects::{Cq, Mr, Qp, RecvBatch, Request, SendBatch};
use crate::provider::Shared;
use crate::recv::{Part, Queue, received, result_of};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::{Rc, Weak};
use weir_fabric::{Access, Connection, FabricError, Remote, SendFlags, status};
use weir_mem::Slice;
use weir_reactor::{Completion, Token, WaitChannel, complete};

/// Requests after which one asks for a completion, when none has a waiter or holds memory.
const MODERATION: u32 = 16;

/// How far a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// Until the connection manager has both sides' word.
    SettingUp,
    Open,
    /// No new work; what is queued goes out.
    Draining,
    /// The queue pair is in error, or about to be.
    Closing,
    Down,
}

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
struct SendQueue {
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

pub(crate) struct Conn {
    me: Weak<Conn>,
    pub(crate) device: Rc<Device>,
    pub(crate) shared: Weak<Shared>,
    pub(crate) slot: usize,
    wr_base: u64,
    number: u32,
    peer: String,
    /// The connection manager's end.
    pub(crate) id: RefCell<Option<CmId>>,
    /// Made when the peer and its device are known; gone when the connection is down.
    pub(crate) qp: RefCell<Option<Qp>>,
    cq: RefCell<Option<Rc<Cq>>>,
    part: RefCell<Option<Rc<Part>>>,
    /// Keeps the receive queue as long as messages can come.
    queue: RefCell<Option<Rc<Queue>>>,
    send_queue: Cell<u32>,
    inline: Cell<usize>,
    send_slots: WaitChannel,
    read_slots: WaitChannel,
    sq: RefCell<SendQueue>,
    dirty: Cell<bool>,
    pub(crate) state: Cell<State>,
    pub(crate) reason: RefCell<String>,
    pub(crate) on_closed: RefCell<Vec<Token>>,
    /// Messages that came before the connection was established.
    early: RefCell<Option<Vec<(Token, Completion)>>>,
    /// What the peer may access.
    registered: RefCell<BTreeMap<u32, (Mr, Slice)>>,
    /// The queue pair came so far that it may have taken receives.
    pub(crate) receiving: Cell<bool>,
    pub(crate) last_receive: Cell<bool>,
    pub(crate) events: Rc<Events>,
}

/// Events of the connection manager for one identifier, and a bell for all that its task waits for.
pub(crate) struct Events {
    queue: RefCell<VecDeque<CmEvent>>,
    pub(crate) bell: WaitChannel,
}

impl Events {
    pub(crate) fn new() -> Rc<Events> {
        Rc::new(Events { queue: RefCell::default(), bell: WaitChannel::new(0) })
    }

    pub(crate) fn push(&self, e: CmEvent) {
        self.queue.borrow_mut().push_back(e);
        self.bell.signal();
    }

    pub(crate) fn take(&self) -> Option<CmEvent> {
        self.queue.borrow_mut().pop_front()
    }
}

impl Conn {
    /// A connection without queue pair.
    pub(crate) fn new(
        shared: &Rc<Shared>,
        device: &Rc<Device>,
        peer: String,
        events: Rc<Events>,
    ) -> Rc<Conn> {
        let (slot, wr_base) = device.reserve_conn();
        let conn = Rc::new_cyclic(|me| Conn {
            me: me.clone(),
            device: device.clone(),
            shared: Rc::downgrade(shared),
            slot,
            wr_base,
            number: shared.next_number(),
            peer,
            id: RefCell::default(),
            qp: RefCell::default(),
            cq: RefCell::default(),
            part: RefCell::default(),
            queue: RefCell::default(),
            send_queue: Cell::new(0),
            inline: Cell::new(0),
            send_slots: WaitChannel::new(0),
            read_slots: WaitChannel::new(0),
            sq: RefCell::default(),
            dirty: Cell::new(false),
            state: Cell::new(State::SettingUp),
            reason: RefCell::default(),
            on_closed: RefCell::default(),
            early: RefCell::new(Some(Vec::new())),
            registered: RefCell::default(),
            receiving: Cell::new(false),
            last_receive: Cell::new(false),
            events,
        });
        device.set_conn(slot, &conn);
        conn
    }

    /// Makes the queue pair and posts receives for it.
    pub(crate) fn make_qp(
        self: &Rc<Self>,
        queue: Rc<Queue>,
        send_queue: u32,
    ) -> Result<(), String> {
        let part = self.device.part(&queue, self)?;
        let made = self.device.queue_pair(&part, send_queue);
        let (qp, cq) = made.map_err(|e| format!("cannot make a queue pair: {e}"))?;
        let room = self.device.ctx.limits.send_wr.saturating_sub(crate::device::RESERVE);
        let granted = send_queue.min(room).max(1);
        self.inline.set(qp.inline as usize);
        self.device.set_qp(qp.number, self);
        *self.qp.borrow_mut() = Some(qp);
        *self.cq.borrow_mut() = Some(cq);
        *self.queue.borrow_mut() = Some(queue);
        self.send_queue.set(granted);
        self.send_slots.signal_n(granted);
        *self.part.borrow_mut() = Some(part);
        Ok(())
    }

    /// Posts receives of its own, if it has them, now that the queue pair takes them.
    pub(crate) fn post_own_receives(&self) -> Result<(), String> {
        let part = self.part.borrow().clone();
        match part.filter(|p| p.srq().is_none()) {
            Some(p) => p.flush().map_err(|e| format!("cannot post receives: {e}")),
            None => Ok(()),
        }
    }

    pub(crate) fn is_element(&self, element: usize) -> bool {
        self.qp.borrow().as_ref().is_some_and(|q| q.element() == element)
    }

    pub(crate) fn uses_srq(&self) -> bool {
        self.part.borrow().as_ref().is_some_and(|p| p.srq().is_some())
    }

    /// The connection is established; `reads` may be outstanding at the peer.
    pub(crate) fn established(&self, reads: u16) {
        if self.state.get() == State::SettingUp {
            self.state.set(State::Open);
        }
        self.read_slots.signal_n(u32::from(reads));
    }

    /// Whoever waited for the connection knows it now: messages that came early follow.
    pub(crate) fn release_early(&self) {
        for (token, c) in self.early.take().unwrap_or_default() {
            complete(token, c);
        }
    }

    /// The connection was never established: who posted the buffers is told.
    pub(crate) fn refuse_early(&self) {
        for (token, c) in self.early.take().unwrap_or_default() {
            complete(token, Completion { result: status::FLUSHED, ..c });
        }
    }

    /// A message is in its buffer.
    #[inline]
    pub(crate) fn delivered(&self, token: Token, len: u32, invalidated: u32) {
        if invalidated != 0 {
            self.deregister(invalidated);
        }
        let c = received(self.number, len, invalidated);
        if let Some(early) = self.early.borrow_mut().as_mut() {
            early.push((token, c));
            if self.state.get() == State::SettingUp {
                self.heard();
            }
            return;
        }
        complete(token, c);
    }

    /// The peer uses the connection: on IB and RoCE its last word of the set-up may be late, or lost.
    pub(crate) fn heard(&self) {
        if self.state.get() == State::SettingUp
            && let Some(id) = self.id.borrow().as_ref()
        {
            id.notify_established();
        }
    }

    /// The queue pair takes no more receives from its shared queue.
    pub(crate) fn last_receive(&self) {
        self.last_receive.set(true);
        self.events.bell.signal();
    }

    // ---- posting

    fn usable(&self, token: Token) -> bool {
        let open = self.state.get() == State::Open;
        if !open {
            self.finish(token, status::FLUSHED);
        }
        open
    }

    fn finish(&self, token: Token, result: i32) {
        self.send_slots.signal();
        complete(token, Completion { result, source: self.number, ..Completion::default() });
    }

    fn finish_read(&self, token: Token, result: i32) {
        self.read_slots.signal();
        self.finish(token, result);
    }

    /// Queues a SEND or WRITE for the doorbell at the end of the turn.
    fn push(&self, mut r: Request, token: Token, hold: Hold) {
        let mut sq = self.sq.borrow_mut();
        let number = sq.oldest.wrapping_add(sq.outstanding.len() as u32);
        r.wr_id = self.wr_base | u64::from(number);
        if token == Token::NONE {
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

    // ---- completions

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
        if wc.status != IBV_WC_SUCCESS {
            // Flushed: the cause is another request's, or this side's.
            if wc.status != IBV_WC_WR_FLUSH_ERR {
                self.fail(&self.device.ctx.status_text(wc.status));
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

    fn no_memory(&self, e: &io::Error, finish: impl FnOnce()) {
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

    /// Lets go of the queue pair; the device no longer touches memory for it when this returns.
    pub(crate) fn destroy_qp(&self) {
        if let Some(qp) = self.qp.take() {
            self.device.drop_qp(qp.number);
            let send_wr = self.send_queue.get() + crate::device::RESERVE;
            drop(qp);
            if let Some(cq) = self.cq.take() {
                self.device.cq_returned(&cq, send_wr);
            }
        }
        let part = self.part.take();
        if let Some(p) = part
            && p.srq().is_none()
        {
            p.detach();
        }
        if let Some(q) = self.queue.take() {
            q.forget(self);
        }
    }
}

impl Connection for Conn {
    fn qp(&self) -> u32 {
        self.number
    }

    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn send_slots(&self) -> &WaitChannel {
        &self.send_slots
    }

    fn read_slots(&self) -> &WaitChannel {
        &self.read_slots
    }

    fn send(&self, head: &[u8], data: Option<Slice>, flags: SendFlags, token: Token) {
        if !self.usable(token) {
            return;
        }
        let mut r = Request { opcode: IBV_WR_SEND, ..Request::default() };
        if flags.solicited {
            r.flags |= IBV_SEND_SOLICITED;
        }
        // A peer that asked for it and a device that cannot: the peer invalidates by itself.
        if let Some(key) = flags.invalidate
            && self.device.ctx.limits.send_with_invalidate
        {
            r.opcode = IBV_WR_SEND_WITH_INV;
            r.invalidate = key;
        }
        let data = data.filter(|d| !d.is_empty());
        let total = head.len() + data.as_ref().map_or(0, Slice::len);
        if total <= self.inline.get() {
            if total > 0 {
                r.sges[0] = self.sq.borrow_mut().batch.keep(head, data.as_ref());
                r.pieces = 1;
                r.inline_head = true;
                r.flags |= IBV_SEND_INLINE;
            }
            return self.push(r, token, Hold::default());
        }
        let memory = &self.device.memory;
        let mut hold = Hold::default();
        let gather = || -> io::Result<()> {
            if !head.is_empty() {
                let (sge, h) = memory.head(head)?;
                r.sges[0] = sge;
                r.pieces = 1;
                hold.add(h);
            }
            if let Some(d) = data {
                let (sge, h) = memory.source(d)?;
                r.sges[r.pieces] = sge;
                r.pieces += 1;
                hold.add(h);
            }
            Ok(())
        };
        match gather() {
            Ok(()) => self.push(r, token, hold),
            Err(e) => self.no_memory(&e, || self.finish(token, status::FLUSHED)),
        }
    }

    fn write(&self, local: Slice, remote: Remote, token: Token) {
        if !self.usable(token) {
            return;
        }
        let mut r = Request {
            opcode: IBV_WR_RDMA_WRITE,
            remote_addr: remote.addr,
            rkey: remote.key,
            pieces: usize::from(!local.is_empty()),
            ..Request::default()
        };
        if local.len() <= self.inline.get() {
            if r.pieces > 0 {
                r.sges[0] = self.sq.borrow_mut().batch.keep(&[], Some(&local));
                r.inline_head = true;
                r.flags |= IBV_SEND_INLINE;
            }
            return self.push(r, token, Hold::default());
        }
        match self.device.memory.source(local) {
            Ok((sge, hold)) => {
                r.sges[0] = sge;
                self.push(r, token, hold);
            }
            Err(e) => self.no_memory(&e, || self.finish(token, status::FLUSHED)),
        }
    }

    fn read(&self, local: Slice, remote: Remote, token: Token) {
        if self.state.get() != State::Open {
            return self.finish_read(token, status::FLUSHED);
        }
        let empty = local.is_empty();
        let sink = match self.device.memory.sink(local) {
            Ok(s) => s,
            Err(e) => return self.no_memory(&e, || self.finish_read(token, status::FLUSHED)),
        };
        let mut r = Request {
            opcode: IBV_WR_RDMA_READ,
            flags: IBV_SEND_SIGNALED,
            remote_addr: remote.addr,
            rkey: remote.key,
            pieces: usize::from(!empty),
            ..Request::default()
        };
        r.sges[0] = sink.sge;
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

    /// The key is good for exactly `local`, on all connections of this device and reactor (verbs know no
    /// narrower right without memory windows). Costs a system call; meant for the initiator's side.
    fn register(&self, local: Slice, access: Access) -> Result<Remote, FabricError> {
        if self.state.get() != State::Open {
            return Err(FabricError::Unavailable("the connection is closed".into()));
        }
        let rights = match access {
            Access::RemoteRead => IBV_ACCESS_REMOTE_READ,
            Access::RemoteWrite => IBV_ACCESS_REMOTE_WRITE,
        };
        let mr = self
            .device
            .memory
            .register(&local, rights)
            .map_err(|e| FabricError::Unavailable(format!("cannot register memory: {e}")))?;
        let remote = Remote { key: mr.rkey, addr: local.as_ptr() as u64 };
        self.registered.borrow_mut().insert(mr.rkey, (mr, local));
        Ok(remote)
    }

    fn deregister(&self, key: u32) {
        let old = self.registered.borrow_mut().remove(&key);
        drop(old);
    }

    fn disconnect(&self, now: bool) {
        self.close(now, "closed by this side");
    }

    fn needs_stable_data(&self) -> bool {
        // siw computes its checksum apart from sending.
        self.device.ctx.limits.siw
    }

    fn is_open(&self) -> bool {
        self.state.get() == State::Open
    }

    fn on_closed(&self, token: Token) {
        if self.state.get() == State::Down {
            complete(token, Completion::ok(0));
        } else {
            self.on_closed.borrow_mut().push(token);
        }
    }

    fn close_reason(&self) -> String {
        self.reason.borrow().clone()
    }
}

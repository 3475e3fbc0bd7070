//! One connection: its parts, its life before the end, and the verbs on it.

mod send;

use crate::cm::{CmEvent, CmId};
use crate::device::Device;
use crate::ffi::*;
use crate::library::Library;
use crate::memory::Hold;
use crate::objects::{Cq, Limits, Mr, Qp, Request};
use crate::provider::Shared;
use crate::recv::{Part, Queue, received};
use send::SendQueue;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::{Rc, Weak};
use weir_base::Nanos;
use weir_fabric::{Access, Connection, FabricError, Remote, SendFlags, status};
use weir_mem::Slice;
use weir_reactor::{Completion, Token, WaitChannel, complete, now};

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

pub(crate) struct Conn {
    me: Weak<Conn>,
    /// Weak, so that a user who keeps an ended connection does not keep a removed device.
    device: Weak<Device>,
    pub(crate) limits: Limits,
    pub(crate) lib: Library,
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
    reads: Cell<u16>,
    /// When work of ours or a message of the peer's was last completed.
    pub(crate) last_life: Cell<Nanos>,
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
            device: Rc::downgrade(device),
            limits: device.ctx.limits,
            lib: shared.lib,
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
            reads: Cell::new(0),
            last_life: Cell::new(now()),
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
        let device = self.device().ok_or("the RDMA device was removed")?;
        let part = device.part(&queue, self)?;
        let made = device.queue_pair(&part, send_queue);
        let (qp, cq) = made.map_err(|e| format!("cannot make a queue pair: {e}"))?;
        let room = self.limits.send_wr.saturating_sub(crate::device::RESERVE);
        let granted = send_queue.min(room).max(1);
        self.inline.set(qp.inline as usize);
        device.set_qp(qp.number, self);
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

    /// The device; `None` when it was removed, and at the end of a reactor.
    pub(crate) fn device(&self) -> Option<Rc<Device>> {
        self.device.upgrade()
    }

    /// A status of a work completion in words.
    fn describe(&self, status: i32) -> String {
        self.device().map_or_else(String::new, |d| d.ctx.status_text(status))
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
        self.reads.set(reads);
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
        self.last_life.set(now());
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

    /// Lets go of the queue pair; the device no longer touches memory for it when this returns.
    pub(crate) fn destroy_qp(&self) {
        if let (Some(qp), Some(device)) = (self.qp.take(), self.device()) {
            device.drop_qp(qp.number);
            let send_wr = self.send_queue.get() + crate::device::RESERVE;
            drop(qp);
            if let Some(cq) = self.cq.take() {
                device.cq_returned(&cq, send_wr);
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

    fn last_life(&self) -> Nanos {
        self.last_life.get()
    }

    fn reads_out(&self) -> u16 {
        self.reads.get()
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
            && self.limits.send_with_invalidate
        {
            r.opcode = IBV_WR_SEND_WITH_INV;
            r.invalidate = key;
        }
        let data = data.filter(|d| !d.is_empty());
        let total = head.len() + data.as_ref().map_or(0, Slice::len);
        if total <= self.inline.get() {
            if total > 0 {
                self.carry(&mut r, head, data.as_ref());
            }
            return self.push(r, token, Hold::default());
        }
        let Some(device) = self.device() else { return self.finish(token, status::FLUSHED) };
        let memory = &device.memory;
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
                self.carry(&mut r, &[], Some(&local));
            }
            return self.push(r, token, Hold::default());
        }
        let Some(device) = self.device() else { return self.finish(token, status::FLUSHED) };
        match device.memory.source(local) {
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
        let Some(device) = self.device() else {
            return self.finish_read(token, status::FLUSHED);
        };
        let sink = match device.memory.sink(local) {
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
        self.push_read(r, token, sink);
    }

    /// The key is good for exactly `local`, on all connections of this device and reactor (verbs know no
    /// narrower right without memory windows). Costs a system call; meant for the initiator's side.
    fn register(&self, local: &Slice, access: Access) -> Result<Remote, FabricError> {
        let device = self.device().filter(|_| self.state.get() == State::Open);
        let Some(device) = device else {
            return Err(FabricError::Unavailable("the connection is closed".into()));
        };
        let rights = match access {
            Access::RemoteRead => IBV_ACCESS_REMOTE_READ,
            Access::RemoteWrite => IBV_ACCESS_REMOTE_WRITE,
        };
        let mr = device
            .memory
            .register(local, rights)
            .map_err(|e| FabricError::Unavailable(format!("cannot register memory: {e}")))?;
        let remote = Remote { key: mr.rkey, addr: local.as_ptr() as u64 };
        self.registered.borrow_mut().insert(mr.rkey, (mr, local.clone()));
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
        self.limits.siw
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

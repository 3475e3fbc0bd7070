//! One connection: what its halves share, and the verbs on it.

use crate::planted::{Bug, has};
use crate::provider::{Iwarp, Shared};
use crate::receive::Rx;
use crate::setup;
use crate::transmit::Tx;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use weir_base::Nanos;
use weir_fabric::{Access, Connection, FabricError, Remote, SendFlags, SoftRecvQueue, Tap, status};
use weir_mem::Slice;
use weir_proto_iwarp::Op;
use weir_proto_iwarp::mpa::Negotiated;
use weir_proto_iwarp::read_queue::{Inbound, Outbound};
use weir_proto_iwarp::stag::{self, StagTable};
use weir_reactor::{Completion, Token, WaitChannel, complete, now};
use weir_stream::{Stream, Watch};

/// How far a connection has come on its way down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Open,
    /// No new work; what is queued goes out, then our direction ends.
    Draining,
    /// Our direction has ended; the peer's end is awaited.
    HalfClosed,
    Down,
}

pub(crate) struct Conn {
    pub(crate) slot: usize,
    qp: u32,
    peer: String,
    // Before the stream, which it looks at.
    watch: RefCell<Option<Box<dyn Watch>>>,
    pub(crate) stream: Box<dyn Stream>,
    shared: Weak<Shared>,
    pub(crate) crc: bool,
    pub(crate) rx: RefCell<Rx>,
    pub(crate) tx: RefCell<Tx>,
    /// What the peer may access; made at the first registration.
    pub(crate) keys: RefCell<Option<StagTable<Slice>>>,
    /// READs of ours, and where their data goes, oldest first.
    pub(crate) reads_out: RefCell<Outbound<Token>>,
    pub(crate) sinks: RefCell<VecDeque<Slice>>,
    pub(crate) reads_in: RefCell<Inbound>,
    sink_salt: u32,
    pub(crate) recv: Rc<SoftRecvQueue>,
    pub(crate) tap: RefCell<Option<Rc<dyn Tap>>>,
    send_slots: WaitChannel,
    read_slots: WaitChannel,
    reads: u16,
    pub(crate) state: Cell<State>,
    pub(crate) reason: RefCell<String>,
    pub(crate) on_closed: RefCell<Vec<Token>>,
    pub(crate) hot: Cell<bool>,
    pub(crate) dirty: Cell<bool>,
    pub(crate) last_rx: Cell<Nanos>,
    /// When the peer last showed that it is there, by what came from it or by taking what was sent.
    pub(crate) last_life: Cell<Nanos>,
    /// Bytes that the peer has taken, and that were on their way, when that was last looked at.
    pub(crate) taken: Cell<(u64, u64)>,
    /// A close is supervised by a timer.
    pub(crate) reaper: Cell<bool>,
}

impl Conn {
    /// Puts an agreed connection into service. `early` are bytes that came after the start-up frame.
    pub(crate) fn start(
        provider: &Iwarp,
        stream: Box<dyn Stream>,
        agreed: Negotiated,
        recv: Rc<SoftRecvQueue>,
        early: &[u8],
    ) -> Rc<Conn> {
        let shared = &provider.0;
        let config = &shared.config;
        let slot = shared.reserve();
        let conn = Rc::new(Conn {
            slot,
            qp: shared.next_qp(),
            peer: setup::words(stream.peer()),
            watch: RefCell::new(Some(stream.watch(slot as u64, shared.ready.clone()))),
            stream,
            shared: Rc::downgrade(shared),
            crc: agreed.crc,
            rx: RefCell::new(Rx::new(agreed.crc, if has(Bug::EarlyLost) { &[] } else { early })),
            tx: RefCell::new(Tx::new(agreed.crc, config.fpdu_payload)),
            keys: RefCell::default(),
            reads_out: RefCell::new(Outbound::new(agreed.reads_out)),
            sinks: RefCell::default(),
            reads_in: RefCell::new(Inbound::new(agreed.reads_in)),
            sink_salt: shared.prng.borrow_mut().next_u64() as u32,
            recv,
            tap: RefCell::default(),
            send_slots: WaitChannel::new(config.send_queue),
            read_slots: WaitChannel::new(u32::from(agreed.reads_out)),
            reads: agreed.reads_out,
            state: Cell::new(State::Open),
            reason: RefCell::default(),
            on_closed: RefCell::default(),
            hot: Cell::new(false),
            dirty: Cell::new(false),
            last_rx: Cell::new(now()),
            last_life: Cell::new(now()),
            taken: Cell::default(),
            reaper: Cell::new(false),
        });
        shared.insert(slot, conn.clone());
        conn
    }

    pub(crate) fn number(&self) -> u32 {
        self.qp
    }

    /// Has us told when the stream has something for us, or takes something, unless it is down.
    pub(crate) fn arm(&self, writable: bool) {
        if let Some(w) = &*self.watch.borrow() {
            w.arm(writable);
        }
    }

    pub(crate) fn unwatch(&self) {
        self.watch.borrow_mut().take();
    }

    pub(crate) fn shared(&self) -> Option<Rc<Shared>> {
        self.shared.upgrade()
    }

    pub(crate) fn is_down(&self) -> bool {
        self.state.get() == State::Down
    }

    pub(crate) fn tx_idle(&self) -> bool {
        self.tx.borrow().is_empty()
    }

    /// Queues the connection for the doorbell at the end of the turn.
    #[inline]
    pub(crate) fn ring_later(&self) {
        if !self.dirty.replace(true)
            && let Some(s) = self.shared()
        {
            match s.get(self.slot) {
                Some(c) => s.dirty.borrow_mut().push(c),
                None => self.dirty.set(false),
            }
        }
    }

    /// One work request is over.
    pub(crate) fn finish(&self, token: Token, result: i32) {
        self.send_slots.signal();
        complete(token, Completion { result, source: self.qp, ..Completion::default() });
    }

    /// One READ is over.
    pub(crate) fn finish_read(&self, token: Token, result: i32) {
        self.read_slots.signal();
        self.finish(token, result);
    }

    pub(crate) fn slots_back(&self, n: u32) {
        self.send_slots.signal_n(n);
    }

    fn usable(&self, token: Token) -> bool {
        let open = self.state.get() == State::Open;
        if !open {
            self.finish(token, status::FLUSHED);
        }
        open
    }
}

impl Connection for Conn {
    fn qp(&self) -> u32 {
        self.qp
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
        self.look_for_life();
        self.last_life.get()
    }

    fn reads_out(&self) -> u16 {
        self.reads
    }

    fn send(&self, head: &[u8], data: Option<Slice>, flags: SendFlags, token: Token) {
        if !self.usable(token) {
            return;
        }
        let op = match (flags.invalidate, flags.solicited) {
            (None, false) => Op::Send,
            (None, true) => Op::SendSolicited,
            (Some(_), false) => Op::SendInvalidate,
            (Some(_), true) => Op::SendSolicitedInvalidate,
        };
        let key = flags.invalidate.unwrap_or(0);
        // Without data its place is not moved, of which only the tag was written.
        let data = if data.is_some() { data } else { None };
        self.tx.borrow_mut().send(op, key, head, data, token);
        self.ring_later();
    }

    fn send_gathered(
        &self,
        head: &[u8],
        data: &mut Vec<Slice>,
        flags: SendFlags,
        token: Token,
    ) -> bool {
        if flags.invalidate.is_some() {
            return false;
        }
        if !self.usable(token) {
            data.clear();
            return true;
        }
        let op = if flags.solicited { Op::SendSolicited } else { Op::Send };
        let sent = self.tx.borrow_mut().send_gathered(op, head, data, token);
        if sent {
            self.ring_later();
        }
        sent
    }

    fn write(&self, local: Slice, remote: Remote, token: Token) {
        if !self.usable(token) {
            return;
        }
        self.tx.borrow_mut().tagged(Op::Write, remote.key, remote.addr, local, token);
        self.ring_later();
    }

    fn read(&self, local: Slice, remote: Remote, token: Token) {
        if self.state.get() != State::Open {
            return self.finish_read(token, status::FLUSHED);
        }
        let size = local.len() as u32;
        let mut out = self.reads_out.borrow_mut();
        // The sink key need not name anything here: responses are matched against the queue.
        let key = self.sink_salt.wrapping_add(out.len() as u32);
        let Some(msn) = out.issue(key, 0, size, token) else {
            // Somebody took no read slot: nothing is sent that the peer did not agree to.
            drop(out);
            return self.finish_read(token, status::FLUSHED);
        };
        self.sinks.borrow_mut().push_back(local);
        self.tx.borrow_mut().read_request(msn, key, size, remote);
        self.ring_later();
    }

    fn flush(&self, token: Token) {
        if self.usable(token) {
            self.tx.borrow_mut().flush(token);
            self.ring_later();
        }
    }

    fn register(&self, local: &Slice, access: Access) -> Result<Remote, FabricError> {
        let closed = || FabricError::Unavailable("the connection is closed".into());
        let shared = self.shared().ok_or_else(closed)?;
        if self.state.get() != State::Open {
            return Err(closed());
        }
        let mut keys = self.keys.borrow_mut();
        let table = keys.get_or_insert_with(|| {
            StagTable::new(shared.config.registrations, &mut shared.prng.borrow_mut())
        });
        let rights = stag::Access {
            remote_read: access == Access::RemoteRead,
            remote_write: access == Access::RemoteWrite,
        };
        let len = local.len() as u64;
        let key = table
            .insert_with(0, len, rights, || local.clone())
            .map_err(|e| FabricError::Unavailable(e.to_string()))?;
        Ok(Remote { key, addr: 0 })
    }

    fn push(&self) {
        self.transmit_early();
    }

    fn deregister(&self, key: u32) {
        if let Some(t) = self.keys.borrow_mut().as_mut() {
            t.remove(key);
        }
        self.rx.borrow_mut().forget(key);
    }

    fn set_tap(&self, tap: Option<Rc<dyn Tap>>) -> bool {
        *self.tap.borrow_mut() = tap;
        true
    }

    fn disconnect(&self, at_once: bool) {
        self.close(at_once, "closed by this side");
    }

    fn needs_stable_data(&self) -> bool {
        self.crc
    }

    fn is_open(&self) -> bool {
        self.state.get() == State::Open
    }

    fn on_closed(&self, token: Token) {
        if self.is_down() {
            complete(token, Completion::ok(0));
        } else {
            self.on_closed.borrow_mut().push(token);
        }
    }

    fn close_reason(&self) -> String {
        self.reason.borrow().clone()
    }
}

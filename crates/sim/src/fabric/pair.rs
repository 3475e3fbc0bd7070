//! Both sides of a connection: phases, registrations, closing and cutting.

use super::net::{Net, Planted};
use super::recv::SimRecvQueue;
use super::transfer::{Frame, Lane};
use crate::core::Core;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_base::{MICROS, MILLIS, Nanos};
use weir_fabric::{Access, FabricError, Params, RecvQueue, Remote, Tap, status};
use weir_mem::Slice;
use weir_reactor::{Completion, Token, WaitChannel, complete};

/// Where one side of a connection is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not yet handed to its owner; nothing is delivered.
    Setup,
    Open,
    /// Orderly close: what is queued still goes out.
    Closing,
    /// Nothing moves any more; completions may be outstanding.
    Down,
}

/// How a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Both sides learn of it, at different times.
    Both,
    /// One side (drawn) learns of it soon, the other only by silence.
    OneSide,
    /// Both learn only by silence.
    Silent,
    /// One of the three, drawn.
    Any,
}

/// A work request.
pub(crate) enum Work {
    Send { bytes: Vec<u8>, data: Option<Slice>, invalidate: Option<u32> },
    Write { local: Slice, remote: Remote },
    Read { local: Slice, remote: Remote },
}

/// A work request on its way.
pub(crate) struct Request {
    pub(crate) work: Work,
    pub(crate) token: Token,
    /// Parts of the local memory in the order in which they are moved.
    pub(crate) pieces: Vec<(usize, usize)>,
    pub(crate) moved: usize,
}

pub(crate) struct Registration {
    pub(crate) base: u64,
    pub(crate) slice: Slice,
    pub(crate) access: Access,
}

/// What a side brings to a new connection.
pub(crate) struct Side {
    pub(crate) core: Rc<Core>,
    pub(crate) peer: String,
    pub(crate) params: Params,
}

pub(crate) struct End {
    pub(crate) core: Rc<Core>,
    pub(crate) qp: u32,
    pub(crate) peer: String,
    /// Let go of when the side goes down.
    recv: RefCell<Option<Rc<SimRecvQueue>>>,
    pub(crate) send_slots: WaitChannel,
    send_depth: u32,
    pub(crate) read_slots: WaitChannel,
    pub(crate) read_depth: u32,
    /// When something of the peer's last came, or it has taken of much, by the core's clock.
    pub(crate) last_life: Cell<Nanos>,
    pub(crate) phase: Cell<Phase>,
    established: Cell<bool>,
    /// The acceptor waits on this until the connection is established.
    setup: Cell<Option<Token>>,
    pub(crate) reason: RefCell<String>,
    pub(crate) work: RefCell<BTreeMap<u64, Request>>,
    posted: Cell<u64>,
    /// Next request to transmit.
    pub(crate) transmits: Cell<u64>,
    pub(crate) transmit_armed: Cell<bool>,
    /// Requests that are over but whose completion is still to come.
    flushing: Cell<u32>,
    pub(crate) regs: RefCell<BTreeMap<u32, Registration>>,
    fin_sent: Cell<bool>,
    closed: Cell<bool>,
    on_closed: RefCell<Vec<Token>>,
    pub(crate) tap: RefCell<Option<Rc<dyn Tap>>>,
}

impl End {
    fn new(net: &Net, side: Side, read_depth: u16, setup: Option<Token>) -> End {
        let (lo, hi) = net.config(|c| c.send_depth);
        let depth =
            net.draw(|r| r.between(u64::from(lo.max(1)), u64::from(hi.max(lo).max(1)))) as u32;
        End {
            last_life: Cell::new(side.core.now()),
            core: side.core,
            qp: net.id() as u32,
            peer: side.peer,
            recv: RefCell::new(Some(own(&side.params.recv_queue))),
            send_slots: WaitChannel::new(depth),
            send_depth: depth,
            read_slots: WaitChannel::new(u32::from(read_depth)),
            read_depth: u32::from(read_depth),
            phase: Cell::new(Phase::Setup),
            established: Cell::new(false),
            setup: Cell::new(setup),
            reason: RefCell::default(),
            work: RefCell::default(),
            posted: Cell::new(0),
            transmits: Cell::new(0),
            transmit_armed: Cell::new(false),
            flushing: Cell::new(0),
            regs: RefCell::default(),
            fin_sent: Cell::new(false),
            closed: Cell::new(false),
            on_closed: RefCell::default(),
            tap: RefCell::default(),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.phase.get() == Phase::Open
    }

    /// The peer has shown that it is there.
    pub(crate) fn lives(&self) {
        self.last_life.set(self.core.now());
    }

    /// Runs `f` with the receive queue; `None` when the side is down.
    pub(crate) fn with_queue<R>(&self, f: impl FnOnce(&SimRecvQueue) -> R) -> Option<R> {
        let recv = self.recv.borrow().clone();
        recv.map(|q| f(&q))
    }

    /// True when a message would have to wait.
    pub(crate) fn has_no_receive(&self) -> bool {
        self.with_queue(SimRecvQueue::is_empty).unwrap_or(true)
    }

    /// Takes a request's slots back and tells its token. `len` is meaningful for success.
    fn report(&self, request: Request, result: i32, len: u32) {
        let is_read = matches!(request.work, Work::Read { .. });
        let token = request.token;
        // The memory is its owner's again from here on.
        drop(request);
        complete(token, Completion { result, len, source: self.qp, extra: 0 });
        self.send_slots.signal();
        if is_read {
            self.read_slots.signal();
        }
    }
}

/// Habits of one connection, where the contract leaves a choice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Habits {
    /// Read responses share the stream with messages and wait behind them.
    pub(crate) one_stream: bool,
    /// Requests complete when their data has left.
    pub(crate) early: bool,
    /// Messages are shown to taps.
    pub(crate) taps: bool,
}

pub(crate) struct Pair {
    pub(crate) net: Rc<Net>,
    pub(crate) ends: [End; 2],
    /// By sending side: messages, and read responses when they have a lane of their own.
    pub(crate) lanes: [[Lane; 2]; 2],
    /// By sending side: when the link will have carried what was sent so far.
    pub(crate) link_free: [Cell<Nanos>; 2],
    pub(crate) habits: Habits,
    /// Nothing that is sent arrives any more.
    pub(crate) severed: Cell<bool>,
}

impl Pair {
    /// Side 0 has connected, side 1 accepts; `setup` completes when side 1 is established or down.
    pub(crate) fn new(net: Rc<Net>, connector: Side, acceptor: Side, setup: Token) -> Rc<Pair> {
        use super::net::Style;
        let taps = net.draw(|r| r.chance(1, 2));
        let habits = match net.config(|c| c.style) {
            Style::Iwarp => Habits { one_stream: true, early: true, taps },
            Style::Verbs => Habits { one_stream: false, early: false, taps },
            Style::Any => {
                net.draw(|r| Habits { one_stream: r.chance(1, 2), early: r.chance(1, 2), taps })
            }
        };
        let reads0 = connector.params.reads_out.min(acceptor.params.reads_in);
        let reads1 = acceptor.params.reads_out.min(connector.params.reads_in);
        let ends = [
            End::new(&net, connector, reads0, None),
            End::new(&net, acceptor, reads1, Some(setup)),
        ];
        let pair = Rc::new(Pair {
            net: net.clone(),
            ends,
            lanes: Default::default(),
            link_free: Default::default(),
            habits,
            severed: Cell::new(false),
        });
        net.add_pair(&pair);
        pair
    }

    // Set-up.

    /// Side `side` may be handed to its owner.
    pub(crate) fn established(&self, side: usize) {
        let end = &self.ends[side];
        if end.phase.get() == Phase::Setup {
            end.established.set(true);
            if let Some(token) = end.setup.take() {
                complete(token, Completion::ok(0));
            }
        }
    }

    pub(crate) fn is_established(&self, side: usize) -> bool {
        self.ends[side].established.get()
    }

    /// The owner takes side `side` over: deliveries begin. False when it is down already.
    pub(crate) fn open(self: &Rc<Self>, side: usize) -> bool {
        let end = &self.ends[side];
        if end.phase.get() != Phase::Setup {
            return false;
        }
        end.phase.set(Phase::Open);
        for lane in 0..2 {
            let pair = self.clone();
            let delay = self.net.draw(|r| r.below(5 * MICROS));
            end.core.after(delay, move || pair.arrive(1 - side, lane));
        }
        true
    }

    /// Side `side` does not exist; the other learns it by silence.
    pub(crate) fn never_was(self: &Rc<Self>, side: usize) {
        self.bury(side);
        self.silence(1 - side);
    }

    // Registrations.

    pub(crate) fn register(
        &self,
        side: usize,
        slice: Slice,
        access: Access,
    ) -> Result<Remote, FabricError> {
        let end = &self.ends[side];
        if end.phase.get() == Phase::Down {
            return Err(FabricError::Unavailable("the connection is down".to_string()));
        }
        let mut regs = end.regs.borrow_mut();
        if regs.len() >= self.net.config(|c| c.max_registrations) {
            return Err(FabricError::Unavailable("no room for another registration".to_string()));
        }
        let (key, base) = self.net.draw(|r| {
            loop {
                let key = r.next_u64() as u32;
                if !regs.contains_key(&key) {
                    // Room above, so that the end of a range does not wrap.
                    break (key, r.next_u64() >> 1);
                }
            }
        });
        regs.insert(key, Registration { base, slice, access });
        Ok(Remote { key, addr: base })
    }

    pub(crate) fn deregister(&self, side: usize, key: u32) {
        if self.net.has_bug(Planted::ImmortalKeys) {
            return;
        }
        let gone = self.ends[side].regs.borrow_mut().remove(&key);
        drop(gone);
    }

    // Posting and completing.

    /// # Panics
    /// When the caller took no slot.
    pub(crate) fn post(self: &Rc<Self>, side: usize, work: Work, token: Token) {
        let end = &self.ends[side];
        if !end.core.is_alive() {
            return;
        }
        end.core.check_here("a connection");
        let under_way = end.work.borrow().len() as u32 + end.flushing.get();
        assert!(
            under_way + end.send_slots.count() < end.send_depth,
            "qp {}: posted without a slot of send_slots",
            end.qp
        );
        if matches!(work, Work::Read { .. }) {
            let reads =
                end.work.borrow().values().filter(|r| matches!(r.work, Work::Read { .. })).count();
            // After the end whoever waited for a READ on a connection that serves none may post it, to see it flushed.
            let none = end.read_depth == 0 && end.phase.get() == Phase::Down;
            assert!(
                none || (reads as u32) + end.read_slots.count() < end.read_depth,
                "qp {}: READ posted without a slot of read_slots",
                end.qp
            );
        }
        let pieces = self.pieces(&work);
        let request = Request { work, token, pieces, moved: 0 };
        if end.phase.get() != Phase::Open {
            self.flush_late(side, request);
            return;
        }
        let seq = end.posted.get();
        end.posted.set(seq + 1);
        end.work.borrow_mut().insert(seq, request);
        self.arm_transmit(side);
    }

    /// Completes `token` when what was posted so far has arrived, or never will.
    pub(crate) fn flush(self: &Rc<Self>, side: usize, token: Token) {
        let before = self.ends[side].posted.get();
        self.flushed(side, before, token);
    }

    fn flushed(self: &Rc<Self>, side: usize, before: u64, token: Token) {
        let end = &self.ends[side];
        let queued =
            |(seq, r): (&u64, &Request)| *seq < before && !matches!(r.work, Work::Read { .. });
        let down = end.phase.get() == Phase::Down || self.severed.get();
        if !down && (end.work.borrow().iter().any(queued) || self.lanes[side][0].has(before)) {
            let pair = self.clone();
            return end.core.after(10 * MICROS, move || pair.flushed(side, before, token));
        }
        complete(token, Completion { source: end.qp, ..Completion::default() });
        end.send_slots.signal();
    }

    /// Completes a request that is still under way.
    pub(crate) fn complete(self: &Rc<Self>, side: usize, seq: u64, result: i32, len: u32) {
        let end = &self.ends[side];
        let request = end.work.borrow_mut().remove(&seq);
        if let Some(r) = request {
            end.report(r, result, len);
            self.close_when_done(side);
        }
    }

    /// A request on a connection that is not open: flushed, now or soon.
    fn flush_late(self: &Rc<Self>, side: usize, request: Request) {
        let end = &self.ends[side];
        if self.net.draw(|r| r.chance(1, 3)) {
            end.report(request, status::FLUSHED, 0);
            return;
        }
        end.flushing.set(end.flushing.get() + 1);
        let (pair, delay) = (self.clone(), self.net.draw(|r| r.below(50 * MICROS)));
        end.core.after(delay, move || {
            let end = &pair.ends[side];
            end.flushing.set(end.flushing.get() - 1);
            end.report(request, status::FLUSHED, 0);
            pair.settle_close(side);
        });
    }

    // Closing.

    pub(crate) fn disconnect(self: &Rc<Self>, side: usize, now: bool) {
        let end = &self.ends[side];
        if !end.core.is_alive() {
            return;
        }
        match end.phase.get() {
            Phase::Down => {}
            Phase::Open | Phase::Closing if !now => {
                if end.phase.replace(Phase::Closing) == Phase::Open {
                    self.give_reason(side, "closed by us");
                    let pair = self.clone();
                    end.core.after(self.net.config(|c| c.close_limit), move || {
                        pair.down_and_tell(side, "closed by us, the peer did not follow", "reset");
                    });
                }
                self.close_when_done(side);
            }
            _ => self.down_and_tell(side, "closed by us", "closed by the peer at once"),
        }
    }

    fn give_reason(&self, side: usize, why: &str) {
        let end = &self.ends[side];
        let mut reason = end.reason.borrow_mut();
        if reason.is_empty() {
            *reason = why.to_string();
            end.core.say(|| format!("qp {} closes: {why}", end.qp));
        }
    }

    /// An orderly close goes on when everything that was queued is out.
    fn close_when_done(self: &Rc<Self>, side: usize) {
        let end = &self.ends[side];
        if end.phase.get() == Phase::Closing
            && end.work.borrow().is_empty()
            && !end.fin_sent.replace(true)
        {
            self.push(side, 0, Frame::Fin);
        }
    }

    pub(crate) fn down_and_tell(self: &Rc<Self>, side: usize, why: &str, tell: &str) {
        if self.ends[side].phase.get() != Phase::Down {
            self.down(side, why, None);
            self.tell(side, tell, None);
        }
    }

    /// Takes side `side` down. Its requests complete as flushed, but for the one in `hit`.
    pub(crate) fn down(self: &Rc<Self>, side: usize, why: &str, hit: Option<(u64, i32)>) {
        let end = &self.ends[side];
        if end.phase.replace(Phase::Down) == Phase::Down {
            return;
        }
        self.give_reason(side, why);
        if end.read_depth == 0 {
            end.read_slots.signal_n(1 << 24);
        }
        let regs = std::mem::take(&mut *end.regs.borrow_mut());
        drop((regs, end.recv.take()));
        let work = std::mem::take(&mut *end.work.borrow_mut());
        if let Some(token) = end.setup.take() {
            complete(token, Completion::ok(0));
        }
        // The device hands them back one after the other, and not at once.
        let mut delay: Nanos = if self.net.has_bug(Planted::EarlyEnd) { 5 * MILLIS } else { 0 };
        for (seq, request) in work {
            let result = match hit {
                Some((s, code)) if s == seq => code,
                _ => status::FLUSHED,
            };
            delay += self.net.draw(|r| if r.chance(1, 4) { r.below(20 * MICROS) } else { 0 });
            end.flushing.set(end.flushing.get() + 1);
            let pair = self.clone();
            end.core.after(delay, move || {
                let end = &pair.ends[side];
                end.flushing.set(end.flushing.get() - 1);
                if pair.net.has_bug(Planted::LostSlots) {
                    complete(request.token, Completion { result, ..Completion::default() });
                } else {
                    end.report(request, result, 0);
                }
                pair.settle_close(side);
            });
        }
        if self.net.has_bug(Planted::EarlyEnd) {
            end.on_closed.take().into_iter().for_each(|t| complete(t, Completion::ok(0)));
            let pair = self.clone();
            end.core.after(MILLIS, move || pair.settle_close(side));
            return;
        }
        self.settle_close(side);
    }

    /// Tells who waits for the end, when all requests have completed.
    fn settle_close(self: &Rc<Self>, side: usize) {
        let end = &self.ends[side];
        if end.phase.get() != Phase::Down || end.flushing.get() > 0 || end.closed.get() {
            return;
        }
        let (pair, delay) = (self.clone(), self.net.draw(|r| r.below(20 * MICROS)));
        end.core.after(delay, move || {
            let end = &pair.ends[side];
            if end.flushing.get() > 0 || end.closed.replace(true) {
                return;
            }
            for token in end.on_closed.take() {
                complete(token, Completion { source: end.qp, ..Completion::default() });
            }
        });
    }

    pub(crate) fn on_closed(&self, side: usize, token: Token) {
        let end = &self.ends[side];
        if !end.core.is_alive() {
            return;
        }
        end.core.check_here("a connection");
        if end.closed.get() {
            complete(token, Completion { source: end.qp, ..Completion::default() });
        } else {
            end.on_closed.borrow_mut().push(token);
        }
    }

    /// Carries the news that side `side` is down to the other.
    pub(crate) fn tell(self: &Rc<Self>, side: usize, why: &str, hit: Option<(u64, i32)>) {
        let other = 1 - side;
        if self.severed.get() || self.ends[other].phase.get() == Phase::Down {
            // Whoever severed it has seen to both sides.
            return;
        }
        let (pair, why) = (self.clone(), why.to_string());
        let (from, to) = (self.ends[side].core.node, self.ends[other].core.clone());
        to.clone().after(self.net.delay(), move || {
            if !pair.net.is_blocked(from, to.node) {
                pair.down(other, &why, hit);
                return;
            }
            pair.silence(other);
            let p = pair.clone();
            pair.net.hold(from, &to, Box::new(move || p.down(other, &why, hit)));
        });
    }

    /// Side `side` will notice that nobody answers.
    pub(crate) fn silence(self: &Rc<Self>, side: usize) {
        let pair = self.clone();
        self.ends[side].core.after(self.net.dead_after(), move || {
            pair.down_and_tell(side, "no answer from the peer", "reset by the peer");
        });
    }

    /// Cuts the connection.
    pub(crate) fn cut(self: &Rc<Self>, how: Cut) {
        if self.severed.replace(true) {
            return;
        }
        let how = match how {
            Cut::Any => {
                [Cut::Both, Cut::OneSide, Cut::Silent][self.net.draw(|r| r.below(3)) as usize]
            }
            given => given,
        };
        let clock = &self.net.clock;
        let qps = [self.ends[0].qp, self.ends[1].qp];
        clock.trace.line(clock.now(), || format!("net: cut qp {} - {} ({how:?})", qps[0], qps[1]));
        let first = self.net.draw(|r| r.below(2)) as usize;
        for side in [first, 1 - first] {
            let soon = match how {
                Cut::Both => true,
                Cut::OneSide => side == first,
                Cut::Silent | Cut::Any => false,
            };
            if soon {
                let pair = self.clone();
                let delay = self.net.draw(|r| r.below(50 * MILLIS));
                self.ends[side].core.after(delay, move || pair.down(side, "connection lost", None));
            } else {
                self.silence(side);
            }
        }
    }

    // For the network.

    pub(crate) fn is_up(&self) -> bool {
        self.ends.iter().any(|e| e.phase.get() != Phase::Down)
    }

    pub(crate) fn is_between(&self, a: u32, b: u32) -> bool {
        let n = [self.ends[0].core.node, self.ends[1].core.node];
        n == [a, b] || n == [b, a]
    }

    /// The process at one of the ends has died.
    pub(crate) fn node_died(self: &Rc<Self>, node: u32, silent: bool) {
        for side in 0..2 {
            let end = &self.ends[side];
            if end.core.node != node || end.core.is_alive() || end.phase.get() == Phase::Down {
                continue;
            }
            self.bury(side);
            match silent {
                true => self.silence(1 - side),
                false => self.tell(side, "reset by the peer", None),
            }
        }
    }

    /// Ends a side without telling anyone.
    fn bury(&self, side: usize) {
        let end = &self.ends[side];
        end.phase.set(Phase::Down);
        end.closed.set(true);
        let work = std::mem::take(&mut *end.work.borrow_mut());
        let regs = std::mem::take(&mut *end.regs.borrow_mut());
        drop((work, regs, end.recv.take(), end.on_closed.take()));
    }

    pub(crate) fn forget_all(&self) {
        for side in 0..2 {
            self.bury(side);
            self.lanes[side].iter().for_each(Lane::clear);
        }
    }

    pub(crate) fn describe(&self) -> Vec<String> {
        let mut out = Vec::new();
        for (side, end) in self.ends.iter().enumerate() {
            let waits = match (end.has_no_receive(), end.phase.get()) {
                (true, Phase::Open) => ", no receive posted",
                _ => "",
            };
            out.push(format!(
                "{} qp {} to {}: {:?}, {} requests under way, {} frames on the wire{}{}",
                end.core.label,
                end.qp,
                end.peer,
                end.phase.get(),
                end.work.borrow().len() as u32 + end.flushing.get(),
                self.lanes[side].iter().map(Lane::len).sum::<usize>(),
                waits,
                if self.severed.get() { ", cut" } else { "" },
            ));
        }
        out
    }
}

fn own(queue: &Rc<dyn RecvQueue>) -> Rc<SimRecvQueue> {
    match queue.clone().into_any().downcast() {
        Ok(q) => q,
        Err(_) => panic!("checked when the connection was set up"),
    }
}

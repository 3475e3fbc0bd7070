//! Both ends of a stream, and what is between them.

use crate::core::Core;
use crate::fabric::{Cut, Net};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::Rc;
use weir_base::{MILLIS, Nanos};
use weir_reactor::{Completion, CompletionFuture, Token, complete, completion};
use weir_stream::{Moved, Piece, Ready, Room, Watch, WouldBlock};

/// Bytes that a sender's system keeps for what the peer's has not acknowledged.
const SEND_BUFFER: usize = 96 << 10;
/// Bytes that wait for a receiver; more stay on the wire, unacknowledged.
const RECEIVE_BUFFER: usize = 64 << 10;

/// What is on its way.
enum Segment {
    Data(Vec<u8>),
    /// The sender's direction has ended.
    Fin,
    Reset,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A process has it.
    Open,
    /// Its process has closed it, or has died. Its system sends what it had, and refuses what comes.
    Closed,
    /// Its machine lost power.
    Gone,
}

struct Watched {
    key: u64,
    ready: Ready,
    armed: Cell<bool>,
    write: Cell<bool>,
}

pub(super) struct End {
    /// Whose reactor has it.
    core: RefCell<Rc<Core>>,
    addr: SocketAddr,
    state: Cell<State>,
    error: Cell<Option<ErrorKind>>,
    /// This end's direction has ended.
    finished: Cell<bool>,
    /// The peer's has, and this end knows.
    ended: Cell<bool>,
    /// This end wants no more.
    deaf: Cell<bool>,
    /// Sent by this end, and not arrived.
    wire: RefCell<VecDeque<Segment>>,
    /// When the first of that arrives at the earliest.
    held_until: Cell<Nanos>,
    /// Arrived, without room in `inbox`.
    arrived: RefCell<VecDeque<Segment>>,
    inbox: RefCell<VecDeque<u8>>,
    sent: Cell<u64>,
    acknowledged: Cell<u64>,
    waiters: RefCell<Vec<(bool, Token)>>,
    watches: RefCell<Vec<Rc<Watched>>>,
}

impl End {
    pub(super) fn new(core: Rc<Core>, addr: SocketAddr) -> End {
        End {
            core: RefCell::new(core),
            addr,
            state: Cell::new(State::Open),
            error: Cell::default(),
            finished: Cell::default(),
            ended: Cell::default(),
            deaf: Cell::default(),
            wire: RefCell::default(),
            held_until: Cell::default(),
            arrived: RefCell::default(),
            inbox: RefCell::default(),
            sent: Cell::default(),
            acknowledged: Cell::default(),
            waiters: RefCell::default(),
            watches: RefCell::default(),
        }
    }

    fn core(&self) -> Rc<Core> {
        self.core.borrow().clone()
    }

    fn node(&self) -> u32 {
        self.core.borrow().node
    }

    fn is_open(&self) -> bool {
        self.state.get() == State::Open
    }

    fn in_flight(&self) -> u64 {
        self.sent.get() - self.acknowledged.get()
    }

    fn has_room(&self) -> bool {
        (self.in_flight() as usize) < SEND_BUFFER
    }

    /// Whether a wait is over.
    fn is_ready(&self, write: bool) -> bool {
        let over = self.ended.get() || self.deaf.get() || self.error.get().is_some();
        let can = if write { self.has_room() } else { !self.inbox.borrow().is_empty() };
        over || can || !self.is_open()
    }
}

/// A stream between two nodes.
pub(crate) struct Pipe {
    pub(super) net: Rc<Net>,
    number: u64,
    ends: [End; 2],
    /// Nothing that is sent from here on arrives any more.
    severed: Cell<bool>,
}

impl Pipe {
    pub(super) fn new(net: &Rc<Net>, connector: End, acceptor: End) -> Rc<Pipe> {
        let pipe = Rc::new(Pipe {
            net: net.clone(),
            number: net.id(),
            ends: [connector, acceptor],
            severed: Cell::new(false),
        });
        net.add_pipe(&pipe);
        pipe
    }

    fn say(&self, words: impl FnOnce() -> String) {
        let clock = &self.net.clock;
        clock.trace.line(clock.now(), || format!("stream {}: {}", self.number, words()));
    }

    // For its owners.

    pub(super) fn send(self: &Rc<Self>, side: usize, from: &[Piece]) -> Moved {
        let end = &self.ends[side];
        if !end.core().is_alive() {
            return Ok(Err(WouldBlock));
        }
        end.core().check_here("a stream");
        if let Some(kind) = end.error.get() {
            return Err(kind.into());
        }
        if end.finished.get() || !end.is_open() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        if !end.has_room() {
            return Ok(Err(WouldBlock));
        }
        let total: usize = from.iter().map(Piece::len).sum();
        let most = total.min(SEND_BUFFER - end.in_flight() as usize);
        let n = self.short(most);
        let mut bytes = Vec::with_capacity(n);
        for p in from {
            p.append_to(n - bytes.len(), &mut bytes);
        }
        end.sent.set(end.sent.get() + n as u64);
        while !bytes.is_empty() {
            let part = self.short(bytes.len());
            let rest = bytes.split_off(part);
            self.transmit(side, Segment::Data(std::mem::replace(&mut bytes, rest)));
        }
        Ok(Ok(n))
    }

    pub(super) fn receive(self: &Rc<Self>, side: usize, into: &[Room]) -> Moved {
        let end = &self.ends[side];
        if !end.core().is_alive() {
            return Ok(Err(WouldBlock));
        }
        end.core().check_here("a stream");
        let there = end.inbox.borrow().len();
        if there == 0 {
            return match end.error.get() {
                Some(kind) => Err(kind.into()),
                None if end.ended.get() || end.deaf.get() => Ok(Ok(0)),
                None => Ok(Err(WouldBlock)),
            };
        }
        let room: usize = into.iter().map(Room::len).sum();
        let n = self.short(there.min(room));
        let mut inbox = end.inbox.borrow_mut();
        let mut bytes = inbox.drain(..n);
        into.iter().for_each(|r| r.fill(&mut bytes));
        drop(bytes);
        drop(inbox);
        self.take_in(side);
        Ok(Ok(n))
    }

    /// All of `n` mostly, and now and then less.
    fn short(&self, n: usize) -> usize {
        self.net.draw(|r| match n > 1 && r.chance(1, 6) {
            true if r.chance(1, 4) => 1,
            true => 1 + r.below(n as u64) as usize,
            false => n,
        })
    }

    pub(super) fn ready(self: &Rc<Self>, side: usize, write: bool) -> CompletionFuture {
        let (token, done) = completion();
        self.ends[side].waiters.borrow_mut().push((write, token));
        self.wake(side);
        done
    }

    pub(super) fn shutdown(self: &Rc<Self>, side: usize, both: bool) {
        let end = &self.ends[side];
        if !end.is_open() || !end.core().is_alive() {
            return;
        }
        if both {
            end.deaf.set(true);
        }
        if !end.finished.replace(true) && end.error.get().is_none() {
            self.transmit(side, Segment::Fin);
        }
        self.wake(side);
    }

    pub(super) fn abort(self: &Rc<Self>, side: usize) {
        let end = &self.ends[side];
        if !end.is_open() || !end.core().is_alive() {
            return;
        }
        end.deaf.set(true);
        end.finished.set(true);
        if end.error.replace(Some(ErrorKind::NotConnected)).is_none() {
            self.reset(side);
        }
        self.wake(side);
    }

    /// What has not left is dropped, and the peer is told.
    fn reset(self: &Rc<Self>, side: usize) {
        let mut wire = self.ends[side].wire.borrow_mut();
        let left = self.net.draw(|r| r.below(wire.len() as u64 + 1)) as usize;
        wire.truncate(left);
        drop(wire);
        self.transmit(side, Segment::Reset);
    }

    pub(super) fn unacknowledged(&self, side: usize) -> u64 {
        self.ends[side].in_flight()
    }

    /// What ends it has arrived, if not behind everything before it.
    pub(super) fn has_ended(&self, side: usize) -> bool {
        let end = &self.ends[side];
        let is_end = |s: &Segment| matches!(s, Segment::Fin | Segment::Reset);
        end.ended.get() || end.error.get().is_some() || end.arrived.borrow().iter().any(is_end)
    }

    pub(super) fn peer(&self, side: usize) -> Option<SocketAddr> {
        let end = &self.ends[side];
        (end.error.get().is_none() && end.is_open()).then_some(self.ends[1 - side].addr)
    }

    /// Its own address.
    pub(super) fn local(&self, side: usize) -> Option<SocketAddr> {
        self.ends.get(side).map(|e| e.addr)
    }

    /// Its process lets go of it.
    pub(super) fn close(self: &Rc<Self>, side: usize) {
        let end = &self.ends[side];
        if !end.is_open() {
            return;
        }
        end.state.set(State::Closed);
        let alive = end.core().is_alive();
        for (_, token) in end.waiters.take() {
            if alive {
                complete(token, Completion::ok(0));
            }
        }
        end.watches.borrow_mut().clear();
        if end.error.get().is_some() {
            return;
        }
        let unread = !end.inbox.borrow().is_empty() || !end.arrived.borrow().is_empty();
        let more = !self.ends[1 - side].wire.borrow().is_empty();
        if unread || (more && !end.deaf.get()) {
            self.transmit(side, Segment::Reset);
        } else if !end.finished.replace(true) {
            self.transmit(side, Segment::Fin);
        }
    }

    /// It goes to another reactor of its node.
    pub(super) fn move_to(self: &Rc<Self>, side: usize, core: &Rc<Core>) {
        *self.ends[side].core.borrow_mut() = core.clone();
        self.wake(side);
    }

    /// Sends `bytes`, if they are few, and nothing after them. Outside reactors.
    pub(super) fn last_words(self: &Rc<Self>, side: usize, bytes: &[u8]) {
        let end = &self.ends[side];
        if !bytes.is_empty() && end.is_open() && end.error.get().is_none() && end.has_room() {
            end.sent.set(end.sent.get() + bytes.len() as u64);
            self.transmit(side, Segment::Data(bytes.to_vec()));
        }
    }

    // On the way.

    fn transmit(self: &Rc<Self>, side: usize, segment: Segment) {
        if self.severed.get() {
            return;
        }
        if self.net.hit(|c| c.cut) {
            return self.cut(Cut::Any);
        }
        if self.net.hit(|c| c.spike) {
            self.net.random_spike();
        }
        let (from, to) = (&self.ends[side], &self.ends[1 - side]);
        if to.state.get() == State::Gone || !to.core().is_alive() {
            if !matches!(segment, Segment::Reset) {
                self.refused(side);
            }
            return;
        }
        from.wire.borrow_mut().push_back(segment);
        let pipe = self.clone();
        // Whichever event comes first brings what was sent first.
        let arrive = Box::new(move || pipe.arrive(side));
        self.net.carry(from.node(), &to.core(), self.net.delay(), arrive);
    }

    /// What `side` sends is for a socket that is no more: its machine says so, if it can.
    fn refused(self: &Rc<Self>, side: usize) {
        let (end, other) = (&self.ends[side], self.ends[1 - side].node());
        if !self.net.is_powered(other) || self.net.is_blocked(end.node(), other) {
            return;
        }
        let pipe = self.clone();
        let run = Box::new(move || pipe.fail(side, ErrorKind::ConnectionReset));
        self.net.carry(other, &end.core(), self.net.delay(), run);
    }

    /// The next of what `side` sent is at the other end.
    fn arrive(self: &Rc<Self>, side: usize) {
        let to = &self.ends[1 - side];
        let late = self.ends[side].held_until.get().saturating_sub(self.net.clock.now());
        if late > 0 {
            let pipe = self.clone();
            return to.core().after(late, move || pipe.arrive(side));
        }
        let Some(segment) = self.ends[side].wire.borrow_mut().pop_front() else { return };
        if matches!(segment, Segment::Reset) {
            to.arrived.borrow_mut().clear();
            return self.fail(1 - side, ErrorKind::ConnectionReset);
        }
        if to.is_open() && to.error.get().is_none() {
            to.arrived.borrow_mut().push_back(segment);
            self.take_in(1 - side);
        } else if matches!(segment, Segment::Data(_)) && !self.severed.get() {
            self.refused(side);
        }
    }

    /// Takes what has arrived, as far as there is room.
    fn take_in(self: &Rc<Self>, side: usize) {
        let end = &self.ends[side];
        let mut taken = 0;
        while end.inbox.borrow().len() < RECEIVE_BUFFER {
            let Some(segment) = end.arrived.borrow_mut().pop_front() else { break };
            match segment {
                Segment::Data(bytes) => {
                    taken += bytes.len() as u64;
                    if !end.deaf.get() {
                        end.inbox.borrow_mut().extend(bytes);
                    }
                }
                Segment::Fin => end.ended.set(true),
                Segment::Reset => {}
            }
        }
        if taken > 0 {
            let (pipe, to) = (self.clone(), 1 - side);
            let acknowledge = move || {
                let end = &pipe.ends[to];
                if !pipe.severed.get() {
                    end.acknowledged.set(end.acknowledged.get() + taken);
                    pipe.wake(to);
                }
            };
            let core = self.ends[to].core();
            self.net.carry(end.node(), &core, self.net.delay(), Box::new(acknowledge));
        }
        self.wake(side);
    }

    /// The stream is broken for `side`.
    fn fail(self: &Rc<Self>, side: usize, kind: ErrorKind) {
        let end = &self.ends[side];
        if end.error.get().is_none() && end.is_open() {
            end.error.set(Some(kind));
            // Linux lets what was there be read first; others do not.
            if self.net.draw(|r| r.chance(1, 2)) {
                end.inbox.borrow_mut().clear();
            }
            self.say(|| format!("{}: {kind}", end.core().label));
            self.wake(side);
        }
    }

    /// Whoever waits for the end is told soon, if there is something to tell.
    fn wake(self: &Rc<Self>, side: usize) {
        let end = &self.ends[side];
        let waits = |w: &Rc<Watched>| w.armed.get();
        if end.waiters.borrow().is_empty() && !end.watches.borrow().iter().any(waits) {
            return;
        }
        let (pipe, core) = (self.clone(), end.core());
        let number = core.number;
        core.after(0, move || {
            // It may have gone to another reactor meanwhile.
            if pipe.ends[side].core().number == number {
                pipe.notify(side);
            }
        });
    }

    fn notify(&self, side: usize) {
        let end = &self.ends[side];
        let mut over = Vec::new();
        end.waiters.borrow_mut().retain(|&(write, token)| {
            let ready = end.is_ready(write);
            if ready {
                over.push(token);
            }
            !ready
        });
        over.into_iter().for_each(|t| complete(t, Completion::ok(0)));
        for w in end.watches.borrow().iter() {
            if w.armed.get() && (end.is_ready(false) || w.write.get() && end.is_ready(true)) {
                w.armed.set(false);
                w.ready.borrow_mut().push_back(w.key);
            }
        }
    }

    // Faults.

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
        self.say(|| format!("cut ({how:?})"));
        // What is under way may arrive yet, also long after whoever sent it has given up.
        for end in &self.ends {
            let mut wire = end.wire.borrow_mut();
            let left = self.net.draw(|r| r.below(wire.len() as u64 + 1)) as usize;
            wire.truncate(left);
            let late = self.net.draw(|r| if r.chance(1, 2) { r.below(500 * MILLIS) } else { 0 });
            end.held_until.set(self.net.clock.now() + late);
        }
        let first = self.net.draw(|r| r.below(2)) as usize;
        for side in [first, 1 - first] {
            match how {
                Cut::Both => self.lost(side),
                Cut::OneSide if side == first => self.lost(side),
                _ => self.silence(side),
            }
        }
    }

    fn lost(self: &Rc<Self>, side: usize) {
        let (pipe, delay) = (self.clone(), self.net.draw(|r| r.below(50 * MILLIS)));
        self.ends[side].core().after(delay, move || pipe.fail(side, ErrorKind::ConnectionReset));
    }

    /// Nobody answers `side` any more; its system finds out.
    fn silence(self: &Rc<Self>, side: usize) {
        let pipe = self.clone();
        let run = move || pipe.fail(side, ErrorKind::TimedOut);
        self.ends[side].core().after(self.net.dead_after(), run);
    }

    /// The process at one of the ends has died.
    pub(crate) fn node_died(self: &Rc<Self>, node: u32) {
        for side in 0..2 {
            let end = &self.ends[side];
            if end.node() == node && !end.core().is_alive() {
                self.close(side);
            }
        }
    }

    /// The machine at one of the ends loses power: its system says nothing any more, whatever its process lets go of.
    pub(crate) fn loses_power(self: &Rc<Self>, node: u32) {
        for side in 0..2 {
            let end = &self.ends[side];
            if end.node() != node || !end.is_open() {
                continue;
            }
            end.state.set(State::Gone);
            end.waiters.borrow_mut().clear();
            end.watches.borrow_mut().clear();
            let mut wire = end.wire.borrow_mut();
            let left = self.net.draw(|r| r.below(wire.len() as u64 + 1)) as usize;
            wire.truncate(left);
            drop(wire);
            self.silence(1 - side);
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        let is_over = |e: &End| e.finished.get() && e.deaf.get();
        self.ends.iter().any(|e| e.is_open() && e.error.get().is_none() && !is_over(e))
    }

    /// An end of it takes it for whole, and nothing comes from the other one any more.
    pub(crate) fn is_unheard(&self) -> bool {
        (0..2).any(|side| {
            let (end, other) = (&self.ends[side], &self.ends[1 - side]);
            let is_lost = self.severed.get() || other.state.get() == State::Gone;
            is_lost && end.is_open() && !self.has_ended(side)
        })
    }

    pub(crate) fn is_between(&self, a: u32, b: u32) -> bool {
        let n = [self.ends[0].node(), self.ends[1].node()];
        n == [a, b] || n == [b, a]
    }

    pub(crate) fn forget_all(&self) {
        for end in &self.ends {
            end.state.set(State::Gone);
            end.waiters.borrow_mut().clear();
            end.watches.borrow_mut().clear();
            end.wire.borrow_mut().clear();
        }
    }

    pub(crate) fn describe(&self) -> Vec<String> {
        let line = |e: &End| {
            format!(
                "stream {} at {}: {:?}{}, {} to read, {} arrived, {} sent and not acknowledged{}",
                self.number,
                e.core().label,
                e.state.get(),
                e.error.get().map_or_else(String::new, |k| format!(" ({k})")),
                e.inbox.borrow().len(),
                e.arrived.borrow().len(),
                e.in_flight(),
                if self.severed.get() { ", cut" } else { "" },
            )
        };
        self.ends.iter().map(line).collect()
    }
}

/// One end of a stream. Dropping it closes it.
pub(super) struct SimStream {
    pub(super) pipe: Rc<Pipe>,
    pub(super) side: usize,
}

impl SimStream {
    pub(super) fn node(&self) -> u32 {
        self.pipe.ends[self.side].node()
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        self.pipe.close(self.side);
    }
}

pub(super) struct SimWatch {
    pipe: Rc<Pipe>,
    side: usize,
    watched: Rc<Watched>,
}

impl SimWatch {
    pub(super) fn new(pipe: &Rc<Pipe>, side: usize, key: u64, ready: Ready) -> SimWatch {
        let watched =
            Rc::new(Watched { key, ready, armed: Cell::default(), write: Cell::default() });
        pipe.ends[side].watches.borrow_mut().push(watched.clone());
        SimWatch { pipe: pipe.clone(), side, watched }
    }
}

impl Watch for SimWatch {
    fn arm(&self, write: bool) {
        self.watched.write.set(write || self.watched.armed.get() && self.watched.write.get());
        self.watched.armed.set(true);
        self.pipe.wake(self.side);
    }
}

impl Drop for SimWatch {
    fn drop(&mut self) {
        let mut all = self.pipe.ends[self.side].watches.borrow_mut();
        all.retain(|w| !Rc::ptr_eq(w, &self.watched));
    }
}

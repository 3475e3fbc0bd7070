//! Moving data: transmission, arrival, placement, sampling.

use super::net::Planted;
use super::pair::{Cut, Pair, Phase, Work};
use super::recv::SimRecvQueue;
use crate::chance::pieces;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use weir_base::{MICROS, Nanos};
use weir_fabric::{Access, status};
use weir_mem::Slice;
use weir_reactor::{Completion, Token, complete};

/// What goes over the wire. `seq` is the sender's request that it belongs to.
pub(crate) enum Frame {
    Send {
        seq: u64,
        bytes: Vec<u8>,
        invalidate: Option<u32>,
    },
    Write {
        seq: u64,
        key: u32,
        addr: u64,
        bytes: Vec<u8>,
        last: bool,
    },
    ReadRequest {
        seq: u64,
        key: u32,
        addr: u64,
        len: usize,
    },
    /// `seq` is the reader's request.
    ReadResponse {
        seq: u64,
        at: usize,
        bytes: Vec<u8>,
        last: bool,
    },
    Fin,
}

/// So many bytes behind what a peer has taken make that a sign of its life, as for a provider over TCP: a peer that stands still
/// takes what its buffers hold, too.
const BACKLOG: u64 = 64 << 10;

/// Longest payload of a frame on a slow link, in bytes.
const FRAME: usize = 60 << 10;

impl Frame {
    /// Bytes of payload.
    fn len(&self) -> usize {
        match self {
            Frame::Send { bytes, .. }
            | Frame::Write { bytes, .. }
            | Frame::ReadResponse { bytes, .. } => bytes.len(),
            Frame::ReadRequest { .. } | Frame::Fin => 0,
        }
    }
}

/// Frames under way in one direction, in order.
#[derive(Default)]
pub(crate) struct Lane {
    wire: RefCell<VecDeque<(Nanos, Frame)>>,
    last: Cell<Nanos>,
    /// An event will look at the head, or something else will make one.
    armed: Cell<bool>,
    /// Counts how often the head was held up by a partition.
    held: Cell<u32>,
    is_held: Cell<bool>,
}

impl Lane {
    pub(crate) fn len(&self) -> usize {
        self.wire.borrow().len()
    }

    /// Messages or WRITEs of requests before this one are under way.
    pub(crate) fn has(&self, before: u64) -> bool {
        let of = |f: &Frame| match f {
            Frame::Send { seq, .. } | Frame::Write { seq, .. } => *seq < before,
            _ => false,
        };
        self.wire.borrow().iter().any(|(_, f)| of(f))
    }

    /// When the frame at the head arrives.
    fn head(&self) -> Option<Nanos> {
        self.wire.borrow().front().map(|(at, _)| *at)
    }

    pub(crate) fn clear(&self) {
        let frames = std::mem::take(&mut *self.wire.borrow_mut());
        drop(frames);
    }
}

/// What became of a frame that was to be delivered.
enum Delivery {
    Done,
    /// No receive is posted: the frame waits, and what is behind it too.
    Waits,
}

impl Pair {
    /// How a request's local memory is moved: WRITE data in any order, the rest from front to back.
    pub(crate) fn pieces(&self, work: &Work) -> Vec<(usize, usize)> {
        let (len, any_order) = match work {
            Work::Send { data, .. } => (data.as_ref().map_or(0, Slice::len), false),
            Work::Write { local, .. } => (local.len(), true),
            Work::Read { .. } => (0, false),
        };
        let mut p = self.cut_up(len);
        self.net.draw(|rng| {
            if any_order {
                for i in (1..p.len()).rev() {
                    p.swap(i, rng.below(i as u64 + 1) as usize);
                }
            }
            p
        })
    }

    /// Cuts data into pieces. What has come half-way over a slow link shows life, so none is longer than a frame there.
    fn cut_up(&self, len: usize) -> Vec<(usize, usize)> {
        let (max, slow) = self.net.config(|c| (c.pieces, c.byte_time > 0));
        let all = self.net.draw(|rng| pieces(rng, len, max));
        if !slow {
            return all;
        }
        let mut cut = Vec::new();
        for (mut at, mut len) in all {
            while len > FRAME {
                cut.push((at, FRAME));
                (at, len) = (at + FRAME, len - FRAME);
            }
            cut.push((at, len));
        }
        cut
    }

    pub(crate) fn arm_transmit(self: &Rc<Self>, side: usize) {
        let end = &self.ends[side];
        if end.transmit_armed.replace(true) {
            return;
        }
        let latency = self.net.config(|c| c.transmit);
        let pair = self.clone();
        end.core.after(self.net.draw(|r| latency.draw(r)), move || pair.transmit(side));
        if self.net.has_bug(Planted::EarlyCompletion)
            && let Some(r) = end.work.borrow_mut().get_mut(&end.transmits.get())
        {
            let c = Completion { source: end.qp, ..Completion::default() };
            complete(std::mem::replace(&mut r.token, Token::NONE), c);
        }
    }

    /// Moves the next piece of the oldest request onto the wire.
    fn transmit(self: &Rc<Self>, side: usize) {
        let end = &self.ends[side];
        end.transmit_armed.set(false);
        if !matches!(end.phase.get(), Phase::Open | Phase::Closing) {
            return;
        }
        if self.net.hit(|c| c.cut) {
            self.cut(Cut::Any);
        }
        if self.net.hit(|c| c.spike) {
            self.net.random_spike();
        }
        let seq = end.transmits.get();
        let mut work = end.work.borrow_mut();
        let Some(r) = work.get_mut(&seq) else { return };
        let (at, len) = r.pieces[r.moved];
        r.moved += 1;
        let last = r.moved == r.pieces.len();
        let mut size = 0;
        let frame = match &mut r.work {
            Work::Send { bytes, data, invalidate } => {
                if let Some(d) = data {
                    let had = bytes.len();
                    bytes.resize(had + len, 0);
                    d.read_at(at, &mut bytes[had..]);
                }
                size = bytes.len() as u32;
                last.then(|| Frame::Send {
                    seq,
                    bytes: std::mem::take(bytes),
                    invalidate: *invalidate,
                })
            }
            Work::Write { local, remote } => {
                let mut bytes = vec![0; len];
                local.read_at(at, &mut bytes);
                size = local.len() as u32;
                let addr = remote.addr.wrapping_add(at as u64);
                Some(Frame::Write { seq, key: remote.key, addr, bytes, last })
            }
            Work::Read { local, remote } => Some(Frame::ReadRequest {
                seq,
                key: remote.key,
                addr: remote.addr,
                len: local.len(),
            }),
        };
        let is_read = matches!(r.work, Work::Read { .. });
        drop(work);
        if last {
            end.transmits.set(seq + 1);
            if self.habits.early && !is_read {
                let (pair, delay) = (self.clone(), self.net.draw(|r| r.below(10 * MICROS)));
                end.core.after(delay, move || pair.complete(side, seq, 0, size));
            }
        }
        if let Some(f) = frame {
            self.push(side, 0, f);
        }
        self.arm_transmit(side);
    }

    /// Puts a frame on the wire.
    pub(crate) fn push(self: &Rc<Self>, from: usize, lane: usize, frame: Frame) {
        if self.severed.get() {
            return;
        }
        let lane_no = lane;
        let lane = &self.lanes[from][lane];
        let at = lane.last.get().max(self.carried(from, frame.len()) + self.net.delay());
        lane.last.set(at);
        lane.wire.borrow_mut().push_back((at, frame));
        self.arm_arrival(from, lane_no);
    }

    /// When the link has carried `len` more bytes of side `from`.
    fn carried(&self, from: usize, len: usize) -> Nanos {
        let free = &self.link_free[from];
        let takes = self.net.config(|c| c.byte_time) * len as Nanos;
        free.set(free.get().max(self.net.clock.now()) + takes);
        free.get()
    }

    /// The peer of side `from` has taken a frame. On a slow link the sender learns of it, where much is behind it.
    fn taken(self: &Rc<Self>, from: usize) {
        let backlog = self.link_free[from].get().saturating_sub(self.net.clock.now());
        let byte_time = self.net.config(|c| c.byte_time);
        if byte_time == 0 || backlog < BACKLOG * byte_time {
            return;
        }
        let pair = self.clone();
        let told = move || pair.ends[from].lives();
        let (peer, core) = (self.ends[1 - from].core.node, &self.ends[from].core);
        self.net.carry(peer, core, self.net.delay(), Box::new(told));
    }

    fn arm_arrival(self: &Rc<Self>, from: usize, lane: usize) {
        let l = &self.lanes[from][lane];
        if let Some(at) = l.head()
            && !l.armed.replace(true)
        {
            let pair = self.clone();
            let wait = at.saturating_sub(self.net.clock.now());
            self.ends[1 - from].core.after(wait, move || pair.arrive(from, lane));
        }
    }

    /// Delivers what has arrived from side `from`, in order, as far as that is possible now.
    pub(crate) fn arrive(self: &Rc<Self>, from: usize, lane: usize) {
        let l = &self.lanes[from][lane];
        let (near, far) = (&self.ends[1 - from], &self.ends[from]);
        if near.phase.get() == Phase::Setup {
            // `open` comes back here.
            return;
        }
        if l.is_held.get() {
            return;
        }
        while let Some(at) = l.head() {
            // The frame before may have ended it.
            if self.severed.get() || near.phase.get() == Phase::Down {
                l.clear();
                break;
            }
            if at > self.net.clock.now() {
                break;
            }
            if self.net.is_blocked(far.core.node, near.core.node) {
                self.hold_lane(from, lane);
                return;
            }
            let Some((_, frame)) = l.wire.borrow_mut().pop_front() else { break };
            match self.deliver(from, frame) {
                (Delivery::Done, _) => {}
                (Delivery::Waits, frame) => {
                    l.wire.borrow_mut().push_front((at, frame));
                    near.with_queue(|q| q.wait(self, from));
                    return;
                }
            }
        }
        l.armed.set(false);
        self.arm_arrival(from, lane);
    }

    /// A partition is in the way: the head waits until it heals or the sender's patience ends.
    fn hold_lane(self: &Rc<Self>, from: usize, lane: usize) {
        let l = &self.lanes[from][lane];
        l.is_held.set(true);
        let round = l.held.get() + 1;
        l.held.set(round);
        let (near, far) = (&self.ends[1 - from], &self.ends[from]);
        let pair = self.clone();
        let again = move || {
            pair.lanes[from][lane].is_held.set(false);
            pair.arrive(from, lane);
        };
        self.net.hold(far.core.node, &near.core, Box::new(again));
        let pair = self.clone();
        far.core.after(self.net.dead_after(), move || {
            let l = &pair.lanes[from][lane];
            if l.is_held.get() && l.held.get() == round {
                pair.down_and_tell(from, "no acknowledgement from the peer", "reset by the peer");
            }
        });
    }

    /// Delivers one frame at the side that is not `from`. Gives it back when it has to wait.
    fn deliver(self: &Rc<Self>, from: usize, frame: Frame) -> (Delivery, Frame) {
        let to = 1 - from;
        let end = &self.ends[to];
        end.lives();
        self.taken(from);
        match frame {
            Frame::Send { .. } if end.has_no_receive() => {
                end.core.say(|| format!("qp {}: a message waits for a receive", end.qp));
                return (Delivery::Waits, frame);
            }
            Frame::Send { seq, bytes, invalidate } => {
                self.deliver_send(from, seq, &bytes, invalidate)
            }
            Frame::Write { seq, key, addr, bytes, last } => {
                end.core
                    .say(|| format!("qp {}: WRITE of {} by key {key:08x}", end.qp, bytes.len()));
                let place = self.check(to, key, addr, bytes.len(), Access::RemoteWrite);
                match place {
                    Some((slice, at)) if self.net.has_bug(Planted::LateWrite) => {
                        end.core.after(300 * MICROS, move || slice.write_at(at, &bytes));
                    }
                    Some((slice, at)) => {
                        slice.write_at(at, &bytes);
                        if self.habits.taps
                            && let Some(t) = end.tap.borrow().clone()
                        {
                            t.placed(key, at as u64, bytes.len());
                        }
                    }
                    None if bytes.is_empty() || self.net.has_bug(Planted::AnyRange) => {}
                    None => {
                        self.refuse(
                            to,
                            seq,
                            status::REMOTE_ACCESS,
                            "WRITE by a wrong key or range",
                        );
                        return (Delivery::Done, Frame::Fin);
                    }
                }
                if last {
                    self.acknowledge(to, seq);
                }
            }
            Frame::ReadRequest { seq, key, addr, len } => {
                end.core.say(|| format!("qp {}: READ of {len} bytes by key {key:08x}", end.qp));
                let p = self.cut_up(len);
                self.sample(to, seq, key, addr, p, 0);
            }
            Frame::ReadResponse { seq, at, bytes, last } => {
                let mut total = 0;
                if let Some(r) = end.work.borrow().get(&seq)
                    && let Work::Read { local, .. } = &r.work
                {
                    local.write_at(at, &bytes);
                    total = local.len() as u32;
                }
                if last {
                    let (pair, delay) = (self.clone(), self.net.draw(|r| r.below(2 * MICROS)));
                    end.core.after(delay, move || pair.complete(to, seq, 0, total));
                }
            }
            Frame::Fin => self.down_and_tell(to, "closed by the peer", "closed by us"),
        }
        (Delivery::Done, Frame::Fin)
    }

    fn deliver_send(self: &Rc<Self>, from: usize, seq: u64, bytes: &[u8], invalidate: Option<u32>) {
        let to = 1 - from;
        let end = &self.ends[to];
        if let Some(key) = invalidate {
            let known = match self.net.has_bug(Planted::ImmortalKeys) {
                true => end.regs.borrow().contains_key(&key),
                false => end.regs.borrow_mut().remove(&key).is_some(),
            };
            if !known {
                self.refuse(to, seq, status::REMOTE_ACCESS, "SEND invalidates a wrong key");
                return;
            }
        }
        if self.net.has_bug(Planted::LostMessage) && self.net.draw(|r| r.chance(1, 100)) {
            return self.acknowledge(to, seq);
        }
        if self.habits.taps && invalidate.is_none() {
            let tap = end.tap.borrow().clone();
            if tap.is_some_and(|t| t.message(bytes)) {
                end.core.say(|| format!("qp {}: tapped {} bytes", end.qp, bytes.len()));
                return self.acknowledge(to, seq);
            }
        }
        let taken = end.with_queue(SimRecvQueue::take).flatten();
        let Some((buf, token)) = taken else { return };
        if bytes.len() > buf.len() {
            let c = Completion { result: status::LENGTH, len: 0, source: end.qp, extra: 0 };
            drop(buf);
            complete(token, c);
            self.refuse(to, seq, status::LENGTH, "message longer than its receive buffer");
            return;
        }
        end.core.say(|| format!("qp {}: message of {} bytes", end.qp, bytes.len()));
        buf.write_at(0, bytes);
        drop(buf);
        let extra = invalidate.unwrap_or(0);
        let c = Completion { result: 0, len: bytes.len() as u32, source: end.qp, extra };
        complete(token, c);
        if self.net.has_bug(Planted::DoubleMessage)
            && self.net.draw(|r| r.chance(1, 100))
            && let Some((buf, token)) = end.with_queue(SimRecvQueue::take).flatten()
        {
            buf.write_at(0, bytes);
            complete(token, c);
        }
        self.acknowledge(to, seq);
    }

    /// Side `to` has requests up to `seq` of the other side: all its SENDs and WRITEs till there are over.
    fn acknowledge(self: &Rc<Self>, to: usize, seq: u64) {
        if self.habits.early {
            return;
        }
        let from = 1 - to;
        let pair = self.clone();
        let run = move || {
            let end = &pair.ends[from];
            if end.phase.get() == Phase::Down || pair.severed.get() {
                return;
            }
            let done: Vec<(u64, u32)> = end
                .work
                .borrow()
                .range(..=seq)
                .filter_map(|(s, r)| match &r.work {
                    Work::Read { .. } => None,
                    Work::Send { data, .. } => {
                        Some((*s, data.as_ref().map_or(0, Slice::len) as u32))
                    }
                    Work::Write { local, .. } => Some((*s, local.len() as u32)),
                })
                .collect();
            for (s, len) in done {
                pair.complete(from, s, 0, len);
            }
        };
        let (from_node, to_core) = (self.ends[to].core.node, &self.ends[from].core);
        self.net.carry(from_node, to_core, self.net.delay(), Box::new(run));
    }

    /// The memory that key, address and length name exactly, if they name any with that right.
    fn check(
        &self,
        side: usize,
        key: u32,
        addr: u64,
        len: usize,
        access: Access,
    ) -> Option<(Slice, usize)> {
        let regs = self.ends[side].regs.borrow();
        let r = regs.get(&key)?;
        let at = usize::try_from(addr.checked_sub(r.base)?).ok()?;
        let inside = at.checked_add(len).is_some_and(|end| end <= r.slice.len());
        let right = r.access == access || self.net.has_bug(Planted::AnyRight);
        (inside && right).then(|| (r.slice.clone(), at))
    }

    /// Samples the next piece of a READ at side `to` some time from now, checking the key each time.
    fn sample(
        self: &Rc<Self>,
        to: usize,
        seq: u64,
        key: u32,
        addr: u64,
        pieces: Vec<(usize, usize)>,
        next: usize,
    ) {
        let latency = self.net.config(|c| c.sample);
        let (pair, delay) = (self.clone(), self.net.draw(|r| latency.draw(r)));
        self.ends[to].core.after(delay, move || {
            if pair.ends[to].phase.get() == Phase::Down {
                return;
            }
            let (at, len) = pieces[next];
            let mut bytes = vec![0; len];
            match pair.check(to, key, addr.wrapping_add(at as u64), len, Access::RemoteRead) {
                Some((slice, from)) => {
                    slice.read_at(from, &mut bytes);
                    if pair.net.has_bug(Planted::WrongRead) && len > 9 {
                        bytes[9] ^= pair.net.draw(|r| u8::from(r.chance(1, 10)));
                    }
                }
                None if len == 0 || pair.net.has_bug(Planted::AnyRange) => {}
                None => {
                    pair.refuse(to, seq, status::REMOTE_ACCESS, "READ by a wrong key or range");
                    return;
                }
            }
            let last = next + 1 == pieces.len();
            let lane = if pair.habits.one_stream { 0 } else { 1 };
            pair.push(to, lane, Frame::ReadResponse { seq, at, bytes, last });
            if !last {
                pair.sample(to, seq, key, addr, pieces, next + 1);
            }
        });
    }

    /// Side `side` refuses the peer's request `seq` and ends the connection (RDMAP: Terminate).
    fn refuse(self: &Rc<Self>, side: usize, seq: u64, code: i32, why: &str) {
        self.tell(side, &format!("refused by the peer: {why}"), Some((seq, code)));
        self.down(side, why, None);
    }
}

//! The receiving half: from the byte stream to where each payload belongs.

use crate::conn::{Conn, State};
use crate::planted::{Bug, has};
use crate::provider::{STAGING, Shared};
use std::rc::Rc;
use weir_fabric::{RecvQueue, SoftRecvQueue, Tap};
use weir_mem::Slice;
use weir_proto_iwarp::read_queue::Request;
use weir_proto_iwarp::rx::{Receiver, Segment, Step};
use weir_proto_iwarp::stag::Protection;
use weir_proto_iwarp::{Fault, Op, Reason};
use weir_reactor::{Token, now};
use weir_stream::Room;

/// Payload from which it is received straight into its place.
const DIRECT: usize = 4096;
/// Payload of a segment from which it is worth a system call of its own.
const LONG: usize = 32 << 10;
/// Bytes that are received behind the rest of such a segment.
const HEADERS: usize = 1024;
/// System calls of one connection in one turn, so that it cannot starve the others.
const ROUNDS: usize = 2;

/// Messages taken on the spot after which their answers leave, so that both ends work at the same time.
const AHEAD: u32 = 32;

/// The receiving half of a connection.
pub(crate) struct Rx {
    receiver: Receiver,
    /// Bytes received and not consumed: less than the receiver wants in one piece, or more while stalled.
    carry: Vec<u8>,
    /// They came with the set-up and have not been looked at.
    early: bool,
    /// The SEND being received: its buffer, whom to tell, and bytes so far.
    message: Option<(Slice, Token)>,
    /// Where the present segment's payload goes, and its key.
    place: Option<(Slice, u32)>,
    /// A step for which no receive was posted: segment, payload part, rest of its numbers.
    stalled: Option<Stalled>,
}

struct Stalled {
    seg: Segment,
    part: Vec<u8>,
    offset: u32,
    last: bool,
}

impl Rx {
    pub(crate) fn new(crc: bool, early: &[u8]) -> Rx {
        Rx {
            receiver: Receiver::new(crc),
            carry: early.to_vec(),
            early: !early.is_empty(),
            message: None,
            place: None,
            stalled: None,
        }
    }

    /// A key was withdrawn: nothing more may be placed under it.
    pub(crate) fn forget(&mut self, key: u32) {
        if self.place.as_ref().is_some_and(|(_, k)| *k == key) {
            self.place = None;
        }
    }

    /// Gives an unfinished message's buffer back.
    pub(crate) fn abandon(&mut self) -> Option<(Slice, Token)> {
        self.place = None;
        self.stalled = None;
        self.carry.clear();
        self.message.take()
    }
}

enum Stop {
    /// Nothing more to do with the bytes at hand.
    Empty,
    /// No receive is posted.
    Stall,
    Fault(Box<Fault>),
    Terminated(String),
}

impl Conn {
    /// True while a message waits for a receive to be posted.
    pub(crate) fn is_stalled(&self) -> bool {
        self.rx.borrow().stalled.is_some()
    }

    /// Receives what is there, within bounds; true when anything came.
    pub(crate) fn pump(&self, shared: &Shared) -> bool {
        if !matches!(self.state.get(), State::Open | State::Draining | State::HalfClosed) {
            return false;
        }
        let Ok(mut staging) = shared.staging.try_borrow_mut() else { return false };
        let mut any = false;
        let mut rx = self.rx.borrow_mut();
        let mut stop = Stop::Empty;
        if rx.stalled.is_some() {
            stop = match self.resume(&mut rx) {
                Ok(false) => return false,
                Err(f) => Stop::Fault(f),
                // What had been received behind the stalled message.
                Ok(true) => {
                    let held = std::mem::take(&mut rx.carry);
                    let (used, s) = self.consume(&mut rx, &held);
                    rx.carry = held[used..].to_vec();
                    s
                }
            };
            any = true;
        } else if std::mem::take(&mut rx.early) {
            any = true;
            let held = std::mem::take(&mut rx.carry);
            let (used, s) = self.consume(&mut rx, &held);
            rx.carry = held[used..].to_vec();
            stop = s;
        }
        for _ in 0..ROUNDS {
            if !matches!(stop, Stop::Empty) {
                break;
            }
            let carried = rx.carry.len();
            let direct = rx
                .receiver
                .direct()
                .filter(|d| carried == 0 && d.remaining as usize >= DIRECT)
                .and_then(|d| Some((d, rx.place.as_ref()?.0.clone())));
            // Behind the rest of a long segment comes the next one's header, whose payload is received in its place as
            // well; behind a short one as much as there is, or each would be a system call of its own.
            let behind = match &direct {
                Some((d, _)) if d.seg.total as usize >= LONG => HEADERS,
                _ => STAGING,
            };
            let result = match &direct {
                Some((d, place)) => {
                    let n = d.remaining as usize;
                    assert!(d.offset as usize + n <= place.len(), "a segment fits its place");
                    // SAFETY: within the slice, checked above, which keeps the memory; then our own buffer.
                    let rooms = unsafe {
                        let base = place.as_ptr().add(d.offset as usize);
                        [Room::new(base, n), Room::new(staging.as_mut_ptr(), behind)]
                    };
                    self.stream.receive(&rooms)
                }
                None => {
                    staging[..carried].copy_from_slice(&rx.carry);
                    self.stream.receive_bytes(&mut staging[carried..STAGING])
                }
            };
            let n = match result {
                Ok(Ok(0)) if has(Bug::EndIsSilence) => break,
                Ok(Ok(0)) => {
                    drop(rx);
                    drop(staging);
                    self.down(shared, "the peer closed the connection");
                    return true;
                }
                Ok(Ok(n)) => n,
                Ok(Err(_)) => break,
                Err(e) => {
                    drop(rx);
                    drop(staging);
                    self.down(shared, &format!("connection lost: {e}"));
                    return true;
                }
            };
            any = true;
            self.last_rx.set(now());
            self.last_life.set(now());
            let (mut from, mut end) = (0, carried + n);
            let mut wanted = STAGING - carried;
            if let Some((d, place)) = direct {
                let placed = n.min(d.remaining as usize);
                if rx.receiver.crc() {
                    let part = place.sub(d.offset as usize, placed);
                    // SAFETY: the bytes were just received by this thread; nobody else places here.
                    rx.receiver.direct_done(unsafe { part.bytes() });
                } else {
                    rx.receiver.direct_skip(placed);
                }
                if d.seg.op == Op::Write {
                    self.tell_placed(&d.seg, d.offset, placed);
                }
                (from, end) = (0, n - placed);
                wanted = d.remaining as usize + behind;
            }
            rx.carry.clear();
            let (used, s) = self.consume(&mut rx, &staging[from..end]);
            from += used;
            if !has(Bug::CarryLost) {
                rx.carry.extend_from_slice(&staging[from..end]);
            }
            stop = s;
            if n < wanted {
                break;
            }
        }
        drop(rx);
        drop(staging);
        match stop {
            Stop::Empty | Stop::Stall => {}
            Stop::Fault(f) => self.fail(shared, &f),
            Stop::Terminated(why) => self.down(shared, &why),
        }
        any
    }

    /// Takes steps as long as the bytes allow; gives the bytes used.
    fn consume(&self, rx: &mut Rx, bytes: &[u8]) -> (usize, Stop) {
        let mut at = 0;
        let tap = &*self.tap.borrow();
        let mut answered = 0;
        loop {
            // The step stays where it is: to move it, many fields at a time, would wait until each has left the store
            // buffer, where all of the last payload is before them.
            let next = rx.receiver.next(&bytes[at..]);
            let (used, step) = match &next {
                Ok((used, step)) => (*used, step),
                Err(f) => return (at, Stop::Fault(Box::new(*f))),
            };
            match step {
                Step::More(_) => return (at, Stop::Empty),
                &Step::Payload { ref seg, start, len, offset, remaining: _, last } => {
                    let part = &bytes[at + start..][..len];
                    at += used;
                    if last && offset == 0 {
                        let done = match seg.op {
                            Op::Write => self.written(rx, seg, part),
                            _ => seg.mo == 0 && self.tapped(rx, tap, seg, part),
                        };
                        if done {
                            answered += 1;
                            if answered == AHEAD {
                                answered = 0;
                                self.transmit_early();
                            }
                            continue;
                        }
                    }
                    match self.payload(rx, seg, part, offset, last) {
                        Ok(true) => {}
                        Ok(false) => {
                            rx.stalled =
                                Some(Stalled { seg: *seg, part: part.to_vec(), offset, last });
                            return (at, Stop::Stall);
                        }
                        Err(f) => return (at, Stop::Fault(f)),
                    }
                }
                &Step::ReadRequest { sink_stag, sink_to, size, src_stag, src_to } => {
                    at += used;
                    let r = Request { sink_stag, sink_to, size, src_stag, src_to };
                    if let Err(f) = self.serve_read(r) {
                        return (at, Stop::Fault(f));
                    }
                }
                Step::Terminate(info) => {
                    at += used;
                    return (at, Stop::Terminated(format!("the peer ended the stream: {info}")));
                }
            }
        }
    }

    /// Places the whole last segment of a WRITE, if there is nothing wrong with it.
    #[inline]
    fn written(&self, rx: &mut Rx, seg: &Segment, part: &[u8]) -> bool {
        let keys = self.keys.borrow();
        let found = keys.as_ref().map(|t| t.check_write(seg.stag, seg.to, seg.total));
        let Some(Ok(Some(s))) = found else { return false };
        s.write_at(seg.to as usize, part);
        rx.place = None;
        drop(keys);
        self.tell_placed(seg, 0, part.len());
        true
    }

    /// Tells the tap that so many bytes from byte `offset` of a segment of a WRITE are in their place.
    #[inline]
    fn tell_placed(&self, seg: &Segment, offset: u32, len: usize) {
        if let Some(t) = &*self.tap.borrow() {
            t.placed(seg.stag, seg.to + u64::from(offset), len);
        }
    }

    /// Offers a whole message to the connection's tap. Without a posted receive it stalls as any other.
    #[inline]
    fn tapped(&self, rx: &Rx, tap: &Option<Rc<dyn Tap>>, seg: &Segment, part: &[u8]) -> bool {
        let plain = matches!(seg.op, Op::Send | Op::SendSolicited) && rx.message.is_none();
        plain && self.recv.posted() > 0 && tap.as_ref().is_some_and(|t| t.message(part))
    }

    /// A stalled message goes on when a receive has been posted. False: there is none yet.
    fn resume(&self, rx: &mut Rx) -> Result<bool, Box<Fault>> {
        let Some(s) = rx.stalled.take().filter(|_| !has(Bug::StalledLost)) else {
            return Ok(true);
        };
        let placed = self.payload(rx, &s.seg, &s.part, s.offset, s.last)?;
        if !placed {
            rx.stalled = Some(s);
        }
        Ok(placed)
    }

    /// Places a part of a segment. False: no receive is posted for it.
    #[inline]
    fn payload(
        &self,
        rx: &mut Rx,
        seg: &Segment,
        part: &[u8],
        offset: u32,
        last: bool,
    ) -> Result<bool, Box<Fault>> {
        // The first part may come twice, first empty; finding its place twice changes nothing.
        if offset == 0 && !self.find_place(rx, seg)? {
            return Ok(false);
        }
        if !part.is_empty() {
            match &rx.place {
                Some((place, _)) => {
                    place.write_at(offset as usize, part);
                    if seg.op == Op::Write {
                        self.tell_placed(seg, offset, part.len());
                    }
                }
                None => {
                    return Err(self.protection(Protection::InvalidStag { stag: seg.stag }, seg));
                }
            }
        }
        if last {
            self.message_end(rx, seg);
        }
        Ok(true)
    }

    fn find_place(&self, rx: &mut Rx, seg: &Segment) -> Result<bool, Box<Fault>> {
        match seg.op {
            Op::Write => {
                let keys = self.keys.borrow();
                let found = match keys.as_ref() {
                    Some(t) => t.check_write(seg.stag, seg.to, seg.total),
                    None if seg.total == 0 => Ok(None),
                    None => Err(Protection::InvalidStag { stag: seg.stag }),
                };
                rx.place = match found {
                    Ok(Some(s)) => Some((s.sub(seg.to as usize, seg.total as usize), seg.stag)),
                    Ok(None) => None,
                    Err(p) => return Err(self.protection(p, seg)),
                };
            }
            Op::ReadResponse => {
                let r = self.reads_out.borrow_mut().accept(seg);
                let r = r.map_err(|reason| Box::new(Fault::in_segment(reason, seg)))?;
                let sinks = self.sinks.borrow();
                let unexpected = || Box::new(Fault::in_segment(Reason::UnexpectedResponse, seg));
                let sink = sinks.front().ok_or_else(unexpected)?;
                rx.place = Some((sink.sub(r.at as usize, seg.total as usize), 0));
            }
            _ => {
                let Some(m) = rx.message.take().or_else(|| self.recv.take()) else {
                    return Ok(false);
                };
                let (buf, _) = rx.message.insert(m);
                let end = u64::from(seg.mo) + u64::from(seg.total);
                if end > buf.len() as u64 {
                    let limit = buf.len() as u32;
                    let reason = Reason::TooLong { len: end, limit };
                    return Err(Box::new(Fault::in_segment(reason, seg)));
                }
                rx.place = Some((buf.sub(seg.mo as usize, seg.total as usize), 0));
            }
        }
        Ok(true)
    }

    fn protection(&self, p: Protection, seg: &Segment) -> Box<Fault> {
        Box::new(Fault::in_segment(Reason::Protection(p), seg))
    }

    #[inline]
    fn message_end(&self, rx: &mut Rx, seg: &Segment) {
        rx.place = None;
        match seg.op {
            Op::Write => {}
            Op::ReadResponse => {
                let token = self.reads_out.borrow_mut().complete();
                self.sinks.borrow_mut().pop_front();
                if let Some(t) = token {
                    self.finish_read(t, 0);
                }
            }
            op => {
                let mut key = 0;
                if op.invalidates() {
                    key = seg.stag;
                    if let Some(t) = self.keys.borrow_mut().as_mut() {
                        t.remove(key);
                    }
                }
                if let Some((_, token)) = rx.message.take() {
                    SoftRecvQueue::deliver(token, self.number(), seg.mo + seg.total, key);
                }
            }
        }
    }

    /// A READ of the peer: checked, then answered in order with everything else that goes out.
    fn serve_read(&self, r: Request) -> Result<(), Box<Fault>> {
        let mut queue = self.reads_in.borrow_mut();
        let pushed = queue.push(r);
        let msn = queue.last_msn();
        let fault = |reason| Box::new(Fault::in_read(reason, msn, &r));
        pushed.map_err(fault)?;
        let keys = self.keys.borrow();
        let found = match keys.as_ref() {
            Some(t) => t.check_read(r.src_stag, r.src_to, r.size),
            None if r.size == 0 => Ok(None),
            None => Err(Protection::InvalidStag { stag: r.src_stag }),
        };
        let data = match found {
            Ok(Some(s)) => s.sub(r.src_to as usize, r.size as usize),
            Ok(None) => Slice::heap(1).sub(0, 0),
            Err(p) => return Err(fault(Reason::Protection(p))),
        };
        self.tx.borrow_mut().response(r.sink_stag, r.sink_to, data);
        self.ring_later();
        Ok(())
    }
}

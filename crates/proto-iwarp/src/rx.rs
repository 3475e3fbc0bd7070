//! One receive direction of a stream in RDMA mode.
//!
//! The caller owns a staging buffer and hands its unread part to [`Receiver::next`] until that asks
//! for [`Step::More`]. The contract:
//!
//! - **Staging.** `More` always comes with nothing consumed. The staging buffer must be able to
//!   hold [`MIN_STAGING`] unread bytes in one piece.
//! - **Whole segments.** An FPDU of up to [`MIN_STAGING`] bytes is handed out in one step, payload
//!   and trailer together, after its CRC was checked; so is a larger one that lies in the bytes as
//!   a whole.
//! - **Parts.** Of other FPDUs the payload is handed out as it comes, *before* its CRC is known:
//!   data placed from parts is valid only once the segment's end was seen. The end is always a step
//!   of its own, [`Step::Payload`] with `len` 0 and `remaining` 0, after the trailer was checked.
//!   For a message, only the step with `last` counts.
//! - **Direct receive.** After a part, [`Receiver::direct`] names the payload bytes that come next
//!   on the wire. Once staging is empty the caller may receive them where they belong, at most
//!   `remaining` of them, and reports each piece by [`Receiver::direct_done`].
//! - **End.** After a [`Fault`] or a [`Step::Terminate`] every further call gives a fault.

use crate::fault::{Fault, Reason};
use crate::terminate::TerminateInfo;
use crate::{Op, tx};
use weir_codec::{Crc32c, crc32c};

/// Bytes the staging buffer must be able to hold unread, and size up to which FPDUs (padding and
/// CRC included) are only handed out whole: small messages and their data never come in parts.
pub const MIN_STAGING: usize = 20 << 10;

/// Smallest FPDU: a zero-length tagged segment with its CRC.
const MIN_FPDU: usize = tx::TAGGED_HDR + 4;
/// Payload of a Read Request.
const READ_BODY: u32 = (tx::READ_REQ - tx::UNTAGGED_HDR) as u32;
/// Most payload a Terminate is taken with. The standard needs 52 bytes.
const MAX_TERMINATE_BODY: u32 = 256;

/// A DDP segment's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The operation.
    pub op: Op,
    /// L: this segment ends its message.
    pub last_segment: bool,
    /// Tagged: the sink key. Send with invalidate: the key to invalidate; the one of the last
    /// segment counts. Else the field as received, without meaning.
    pub stag: u32,
    /// Tagged: where this segment's first payload byte goes. Else 0.
    pub to: u64,
    /// Untagged: message number on its queue. Else 0.
    pub msn: u32,
    /// Untagged: where in the message this segment's payload begins, bytes. Else 0.
    pub mo: u32,
    /// Payload bytes of this segment.
    pub total: u32,
}

/// What to do with the bytes at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Too few bytes: at least this many more (never 0) are needed for progress. Nothing was
    /// consumed.
    More(usize),
    /// A part of a Write's, Read Response's or Send's payload lies in `bytes[start..start + len]`
    /// of the slice that was passed. It may be empty: at the start of a segment, at its end, and
    /// for a zero-length message.
    Payload {
        /// The segment it belongs to.
        seg: Segment,
        /// Where the part begins in the slice that was passed.
        start: usize,
        /// Length of the part, bytes.
        len: usize,
        /// Where the part begins in the segment's payload.
        offset: u32,
        /// Payload bytes of this segment still to come after this part.
        remaining: u32,
        /// The message is complete, and where CRCs are on they were right.
        last: bool,
    },
    /// The peer asks for data.
    ReadRequest {
        /// Key to be echoed in the response.
        sink_stag: u32,
        /// Where the response is to begin.
        sink_to: u64,
        /// Bytes wanted.
        size: u32,
        /// Our key that names the source.
        src_stag: u32,
        /// Where in it the data begins.
        src_to: u64,
    },
    /// The peer ended the stream.
    Terminate(TerminateInfo),
}

/// Payload that comes next on the wire and may be received straight into its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Direct {
    /// The segment it belongs to.
    pub seg: Segment,
    /// Where in the segment's payload it begins.
    pub offset: u32,
    /// Payload bytes of the segment that are still to come; never 0.
    pub remaining: u32,
}

/// Where in the stream the next byte stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before a header.
    Header,
    /// Inside a segment's payload or before its trailer; the field is the payload taken so far.
    Inside(Segment, u32),
    /// After a fault or Terminate.
    Ended,
}

/// An unfinished tagged message.
#[derive(Debug, Clone, Copy)]
struct Tagged {
    op: Op,
    stag: u32,
    /// Where it goes on; `None` at the very end of the 64-bit range.
    next: Option<u64>,
}

/// One receive direction after start-up. See the [module](self) for the contract.
#[derive(Debug)]
pub struct Receiver {
    state: State,
    crc_on: bool,
    /// Longest Send message taken, bytes.
    limit: u32,
    /// Next message number on queue 0, and how far that message has come.
    send_msn: u32,
    send_mo: u32,
    /// Operation of the unfinished Send.
    send_op: Option<Op>,
    /// Next message number on queue 1.
    read_msn: u32,
    tagged: Option<Tagged>,
    /// Runs only while a segment is handed out in parts.
    crc: Crc32c,
}

impl Receiver {
    /// A stream at its first FPDU. `crc`: whether CRCs were agreed on; they are ignored otherwise.
    pub fn new(crc: bool) -> Self {
        Receiver {
            state: State::Header,
            crc_on: crc,
            limit: u32::MAX,
            send_msn: 1,
            send_mo: 0,
            send_op: None,
            read_msn: 1,
            tagged: None,
            crc: Crc32c::new(),
        }
    }

    /// Takes no Send longer than `bytes`: the size of a posted receive. Without this, 4 GiB − 1.
    pub fn with_send_limit(mut self, bytes: u32) -> Self {
        self.limit = bytes;
        self
    }

    /// Looks at the unread bytes of the stream: how many of them are consumed by the step, and the
    /// step. Progress is certain: a step other than `More` consumes at least one byte.
    #[inline]
    pub fn next(&mut self, bytes: &[u8]) -> Result<(usize, Step), Fault> {
        match self.state {
            State::Header => self.header(bytes),
            State::Inside(seg, done) => self.inside(seg, done, bytes),
            State::Ended => Err(Fault::at(Reason::Ended, &[])),
        }
    }

    /// What of the current segment's payload comes next on the wire, if anything does.
    #[inline]
    pub fn direct(&self) -> Option<Direct> {
        match self.state {
            State::Inside(seg, offset) if offset < seg.total => {
                Some(Direct { seg, offset, remaining: seg.total - offset })
            }
            _ => None,
        }
    }

    /// Reports payload bytes that were received past the staging buffer, into their place.
    ///
    /// # Panics
    /// When there are more of them than [`Receiver::direct`] named.
    #[inline]
    pub fn direct_done(&mut self, placed: &[u8]) {
        if self.crc_on {
            self.crc.update(placed);
        }
        self.advance(placed.len());
    }

    /// The same when CRCs are off and the bytes need not be looked at.
    ///
    /// # Panics
    /// When CRCs are on, or when there are more bytes than [`Receiver::direct`] named.
    #[inline]
    pub fn direct_skip(&mut self, placed: usize) {
        assert!(!self.crc_on, "with CRCs on, the placed bytes are needed");
        self.advance(placed);
    }

    /// True between two FPDUs: with staging empty, the end of the TCP stream here is a clean close.
    /// False after a fault or Terminate.
    #[inline]
    pub fn at_boundary(&self) -> bool {
        self.state == State::Header
    }

    /// Whether placed bytes must be shown to [`Receiver::direct_done`] for the CRC.
    #[inline]
    pub fn crc(&self) -> bool {
        self.crc_on
    }

    fn advance(&mut self, placed: usize) {
        match &mut self.state {
            State::Inside(seg, done) if placed <= (seg.total - *done) as usize => {
                *done += placed as u32;
            }
            _ => assert!(placed == 0, "{placed} bytes placed beyond the segment"),
        }
    }

    #[inline]
    fn header(&mut self, bytes: &[u8]) -> Result<(usize, Step), Fault> {
        let Some(h) = bytes.first_chunk::<MIN_FPDU>() else {
            return Ok((0, Step::More(MIN_FPDU - bytes.len())));
        };
        let ulpdu = u16::from_be_bytes([h[0], h[1]]);
        let is_tagged = h[2] & tx::DDP_TAGGED != 0;
        let hdr = if is_tagged { tx::TAGGED_HDR } else { tx::UNTAGGED_HDR };
        let end = usize::from(ulpdu) + 2;
        if end < hdr {
            let least = (hdr - 2) as u16;
            return Err(self.fault(Reason::Length { ulpdu, least }, bytes));
        }
        let padded = (end + 3) & !3;
        let fpdu = padded + 4;
        let whole = bytes.len() >= fpdu;
        if whole {
            if self.crc_on {
                let expected = crc32c(&bytes[..padded]);
                let got = wire_crc(&bytes[padded..fpdu]);
                if got != expected {
                    return Err(self.fault(Reason::Crc { got, expected }, bytes));
                }
            }
        } else if fpdu <= MIN_STAGING {
            return Ok((0, Step::More(fpdu - bytes.len())));
        }
        let total = (end - hdr) as u32;
        let word = |at: usize| u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
        let last_segment = h[2] & tx::DDP_LAST != 0;
        let op = match self.operation(h[2], h[3], is_tagged) {
            Ok(op) => op,
            Err(reason) => return Err(self.fault(reason, bytes)),
        };
        let seg = if is_tagged {
            let to = u64::from(word(8)) << 32 | u64::from(word(12));
            Segment { op, last_segment, stag: word(4), to, msn: 0, mo: 0, total }
        } else {
            let (msn, mo) = (word(12), word(16));
            Segment { op, last_segment, stag: word(4), to: 0, msn, mo, total }
        };
        let checked = if is_tagged { self.tagged(&seg) } else { self.untagged(&seg, word(8)) };
        if let Err(reason) = checked {
            return Err(self.fault(reason, bytes));
        }
        if op == Op::ReadRequest || op == Op::Terminate {
            // Their length was checked to be small, so the FPDU is whole here.
            return match self.body(op, &bytes[hdr..end]) {
                Ok(step) => Ok((fpdu, step)),
                Err(reason) => Err(self.fault(reason, bytes)),
            };
        }
        if whole {
            let len = total as usize;
            let last = last_segment;
            return Ok((
                fpdu,
                Step::Payload { seg, start: hdr, len, offset: 0, remaining: 0, last },
            ));
        }
        let len = (total as usize).min(bytes.len() - hdr);
        if self.crc_on {
            self.crc = Crc32c::new();
            self.crc.update(&bytes[..hdr + len]);
        }
        self.state = State::Inside(seg, len as u32);
        let remaining = total - len as u32;
        Ok((hdr + len, Step::Payload { seg, start: hdr, len, offset: 0, remaining, last: false }))
    }

    /// The rest of a segment that is handed out in parts.
    fn inside(&mut self, seg: Segment, done: u32, bytes: &[u8]) -> Result<(usize, Step), Fault> {
        let remaining = (seg.total - done) as usize;
        if remaining > 0 {
            if bytes.is_empty() {
                return Ok((0, Step::More(1)));
            }
            let len = remaining.min(bytes.len());
            if self.crc_on {
                self.crc.update(&bytes[..len]);
            }
            let taken = done + len as u32;
            self.state = State::Inside(seg, taken);
            let remaining = seg.total - taken;
            let step = Step::Payload { seg, start: 0, len, offset: done, remaining, last: false };
            return Ok((len, step));
        }
        let hdr = if seg.op.is_tagged() { tx::TAGGED_HDR } else { tx::UNTAGGED_HDR };
        let pad = tx::padding(hdr - 2 + seg.total as usize);
        let trailer = pad + 4;
        if bytes.len() < trailer {
            return Ok((0, Step::More(trailer - bytes.len())));
        }
        if self.crc_on {
            self.crc.update(&bytes[..pad]);
            let expected = self.crc.finish();
            let got = wire_crc(&bytes[pad..trailer]);
            if got != expected {
                self.state = State::Ended;
                return Err(Fault::in_segment(Reason::Crc { got, expected }, &seg));
            }
        }
        self.state = State::Header;
        let step = Step::Payload {
            seg,
            start: trailer,
            len: 0,
            offset: seg.total,
            remaining: 0,
            last: seg.last_segment,
        };
        Ok((trailer, step))
    }

    #[cold]
    fn fault(&mut self, reason: Reason, bytes: &[u8]) -> Fault {
        self.state = State::Ended;
        Fault::at(reason, bytes)
    }

    /// The control bytes. Their reserved bits are not checked on receive (RFC 5041 section 4.1,
    /// RFC 5040 section 4.1).
    #[inline]
    fn operation(&self, ddp: u8, rdmap: u8, tagged: bool) -> Result<Op, Reason> {
        if ddp & 0x03 != tx::DDP_VERSION {
            return Err(Reason::DdpVersion { got: ddp & 0x03, tagged });
        }
        if rdmap & 0xc0 != tx::RDMAP_VERSION {
            return Err(Reason::RdmapVersion(rdmap >> 6));
        }
        let op = Op::from_bits(rdmap & 0x0f).ok_or(Reason::Opcode(rdmap & 0x0f))?;
        if op.is_tagged() != tagged {
            return Err(Reason::OpcodeTagged { op, tagged });
        }
        Ok(op)
    }

    /// A tagged message goes on where it stands, with the same key, until its last segment.
    #[inline]
    fn tagged(&mut self, seg: &Segment) -> Result<(), Reason> {
        if let Some(open) = self.tagged {
            if seg.op != open.op {
                return Err(Reason::OpcodeChanged { got: seg.op, expected: open.op });
            }
            if seg.stag != open.stag {
                return Err(Reason::Interleaved { stag: seg.stag, expected: open.stag });
            }
            let expected = open.next.ok_or(Reason::Wrap)?;
            if seg.to != expected {
                return Err(Reason::Gap { to: seg.to, expected });
            }
        }
        let next = seg.to.checked_add(u64::from(seg.total));
        // A range may end exactly at 2^64.
        if next.is_none() && seg.to.wrapping_add(u64::from(seg.total)) != 0 {
            return Err(Reason::Wrap);
        }
        self.tagged =
            if seg.last_segment { None } else { Some(Tagged { op: seg.op, stag: seg.stag, next }) };
        Ok(())
    }

    #[inline]
    fn untagged(&mut self, seg: &Segment, queue: u32) -> Result<(), Reason> {
        if queue > 2 {
            return Err(Reason::Queue(queue));
        }
        if queue != seg.op.queue() {
            return Err(Reason::OpcodeQueue { op: seg.op, queue });
        }
        if queue == 0 { self.send(seg) } else { self.control(seg, queue) }
    }

    #[inline]
    fn send(&mut self, seg: &Segment) -> Result<(), Reason> {
        if seg.msn != self.send_msn {
            return Err(Reason::Msn { queue: 0, got: seg.msn, expected: self.send_msn });
        }
        if seg.mo != self.send_mo {
            return Err(Reason::Offset { got: seg.mo, expected: self.send_mo });
        }
        if let Some(expected) = self.send_op.filter(|op| *op != seg.op) {
            return Err(Reason::OpcodeChanged { got: seg.op, expected });
        }
        let len = u64::from(seg.mo) + u64::from(seg.total);
        if len > u64::from(self.limit) {
            return Err(Reason::TooLong { len, limit: self.limit });
        }
        if seg.last_segment {
            self.send_msn = self.send_msn.wrapping_add(1);
            self.send_mo = 0;
            self.send_op = None;
        } else {
            self.send_mo = len as u32;
            self.send_op = Some(seg.op);
        }
        Ok(())
    }

    /// Read Requests and Terminates: one segment each.
    fn control(&mut self, seg: &Segment, queue: u32) -> Result<(), Reason> {
        let op = seg.op;
        let expected = if op == Op::ReadRequest { self.read_msn } else { 1 };
        if seg.msn != expected {
            return Err(Reason::Msn { queue, got: seg.msn, expected });
        }
        if seg.mo != 0 {
            return Err(Reason::Offset { got: seg.mo, expected: 0 });
        }
        if !seg.last_segment {
            return Err(Reason::NotSingle(op));
        }
        let fits = match op {
            Op::ReadRequest => seg.total == READ_BODY,
            _ => (4..=MAX_TERMINATE_BODY).contains(&seg.total),
        };
        if !fits {
            return Err(Reason::BodyLength { op, got: seg.total });
        }
        if op == Op::ReadRequest {
            self.read_msn = self.read_msn.wrapping_add(1);
        }
        Ok(())
    }

    /// The step for a control message's body, whose length was checked.
    #[inline]
    fn body(&mut self, op: Op, b: &[u8]) -> Result<Step, Reason> {
        let wrong = Reason::BodyLength { op, got: b.len() as u32 };
        if op == Op::Terminate {
            let info = TerminateInfo::decode(b).ok_or(wrong)?;
            self.state = State::Ended;
            return Ok(Step::Terminate(info));
        }
        let b = b.first_chunk::<{ READ_BODY as usize }>().ok_or(wrong)?;
        let word = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        Ok(Step::ReadRequest {
            sink_stag: word(0),
            sink_to: long(4),
            size: word(12),
            src_stag: word(16),
            src_to: long(20),
        })
    }
}

/// The CRC field: the one little-endian field of the format. `wire` has four bytes.
#[inline]
fn wire_crc(wire: &[u8]) -> u32 {
    wire.first_chunk().map_or(0, |w| u32::from_le_bytes(*w))
}

#[cfg(test)]
impl Receiver {
    /// Puts the message numbers of Sends and Read Requests where a test wants them.
    pub(crate) fn start_at(&mut self, send_msn: u32, read_msn: u32) {
        self.send_msn = send_msn;
        self.read_msn = read_msn;
    }
}

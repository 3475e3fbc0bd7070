//! A receiver's caller as the fabric provider is one: staging, direct receive, reassembly.

use crate::Op;
use crate::fault::{Fault, Reason};
use crate::rx::{MIN_STAGING, Receiver, Segment, Step};
use crate::terminate::Code;
use crate::tx;
use weir_base::Prng;

/// A complete message, reassembled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Send, Write or Read Response.
    Data {
        /// The operation.
        op: Op,
        /// Sink key, or key to invalidate, of the last segment.
        stag: u32,
        /// Tagged: where the message begins.
        to: u64,
        /// Untagged: message number.
        msn: u32,
        /// All payload.
        data: Vec<u8>,
    },
    /// Sink key, sink offset, size, source key, source offset of a Read Request.
    Read(u32, u64, u32, u32, u64),
    /// What a Terminate says.
    Terminate(Code),
}

/// What became of a stream.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Complete messages in order of completion.
    pub messages: Vec<Message>,
    /// What ended the stream.
    pub fault: Option<Fault>,
    /// Bytes not consumed.
    pub unread: usize,
}

/// Messages under way: one Send and one tagged message may be open at once.
#[derive(Default)]
struct Open {
    send: Option<(u32, Vec<u8>)>,
    tagged: Option<(u64, Vec<u8>)>,
}

impl Open {
    fn data(&mut self, seg: &Segment) -> &mut Vec<u8> {
        if seg.op.is_tagged() {
            &mut self.tagged.get_or_insert((seg.to, Vec::new())).1
        } else {
            &mut self.send.get_or_insert((seg.msn, Vec::new())).1
        }
    }

    fn close(&mut self, seg: &Segment) -> Message {
        let (mut to, mut msn) = (0, 0);
        let (op, stag) = (seg.op, seg.stag);
        let data = if op.is_tagged() {
            let (first, data) = self.tagged.take().unwrap_or_default();
            to = first;
            data
        } else {
            let (number, data) = self.send.take().unwrap_or_default();
            msn = number;
            data
        };
        Message::Data { op, stag, to, msn, data }
    }
}

/// Runs `stream` through a receiver. With `prng` bytes arrive in pieces and the direct path is used
/// now and then; without, all bytes are there at once.
///
/// # Panics
/// When the receiver breaks its contract.
pub fn drive(stream: &[u8], crc: bool, mut prng: Option<&mut Prng>) -> Outcome {
    let mut rx = Receiver::new(crc);
    let mut out = Outcome::default();
    let mut open = Open::default();
    // Unread staging is stream[head..tail].
    let (mut head, mut tail) = (0, if prng.is_some() { 0 } else { stream.len() });
    loop {
        let bytes = &stream[head..tail];
        let (used, step) = match rx.next(bytes) {
            Ok(done) => done,
            Err(fault) => {
                check_fault(&fault);
                let again = rx.next(bytes).map_err(|f| f.reason());
                assert_eq!(again, Err(Reason::Ended), "a fault is final");
                assert!(rx.direct().is_none() && !rx.at_boundary());
                out.fault = Some(fault);
                break;
            }
        };
        assert!(used <= bytes.len(), "consumed more than there is");
        if let Step::More(n) = step {
            assert!(used == 0 && n > 0 && bytes.len() + n <= MIN_STAGING, "bad More({n})");
            assert_eq!(rx.next(bytes), Ok((0, step)), "asking again changes the answer");
            let left = stream.len() - tail;
            if left < n {
                // The lower bound must be true: n - 1 more bytes do not help.
                assert_eq!(rx.next(&stream[head..]).map(|s| s.0), Ok(0));
                break;
            }
            let more = prng.as_mut().map_or(left, |p| chunk(p, left));
            tail += more.max(1);
            continue;
        }
        assert!(used > 0, "no progress");
        match step {
            Step::Payload { seg, start, len, offset, remaining, last } => {
                assert!(start + len <= used, "payload lies outside the consumed bytes");
                assert_eq!(u64::from(offset) + len as u64 + u64::from(remaining), seg.total.into());
                let data = open.data(&seg);
                data.extend_from_slice(&bytes[start..start + len]);
                if !seg.op.is_tagged() {
                    assert_eq!(data.len(), seg.mo as usize + offset as usize + len);
                }
                assert!(!last || (remaining == 0 && seg.last_segment && rx.at_boundary()));
                if last {
                    out.messages.push(open.close(&seg));
                }
            }
            Step::ReadRequest { sink_stag, sink_to, size, src_stag, src_to } => {
                out.messages.push(Message::Read(sink_stag, sink_to, size, src_stag, src_to));
            }
            Step::Terminate(info) => {
                assert!(!info.to_string().is_empty());
                assert!(rx.next(&bytes[used..]).is_err(), "the stream goes on after Terminate");
                out.messages.push(Message::Terminate(info.code));
                head += used;
                break;
            }
            Step::More(_) => {}
        }
        head += used;
        let Some(p) = prng.as_mut() else { continue };
        if let Some(d) = rx.direct()
            && head == tail
            && p.chance(2, 3)
        {
            let n = chunk(p, (d.remaining as usize).min(stream.len() - head));
            let placed = &stream[head..head + n];
            open.data(&d.seg).extend_from_slice(placed);
            if crc || p.chance(1, 2) {
                rx.direct_done(placed)
            } else {
                rx.direct_skip(n)
            }
            head += n;
            tail = head;
        }
    }
    out.unread = stream.len() - head;
    out
}

/// Up to `most` bytes: often few, sometimes many.
fn chunk(p: &mut Prng, most: usize) -> usize {
    let scale = [4, 64, 1500, 70_000][p.below(4) as usize];
    p.between(0, scale).min(most as u64) as usize
}

/// Every fault can be told to the peer and to the log.
fn check_fault(fault: &Fault) {
    assert!(!fault.to_string().is_empty());
    assert!(fault.code().text().is_some(), "{fault:?} has no defined code");
    for crc in [false, true] {
        let frame = tx::terminate(fault, crc);
        let mut rx = Receiver::new(crc);
        match rx.next(frame.as_bytes()) {
            Ok((n, Step::Terminate(info))) => {
                assert_eq!((n, info.code), (frame.as_bytes().len(), fault.code()));
            }
            other => panic!("our own Terminate reads as {other:?}"),
        }
    }
}

//! Valid streams made from arbitrary bytes.

use super::drive::Message;
use crate::terminate::{Code, Order};
use crate::{Op, tx};
use weir_base::Prng;

/// Decisions taken from a fuzzer's bytes, and from a generator once those are used up.
pub struct Choices<'a> {
    data: &'a [u8],
    prng: Prng,
    /// About how long the stream may become, bytes.
    size: usize,
    /// Most payload of a message, bytes, and most segments that it has at a given length of these.
    message: usize,
    segments: usize,
}

impl<'a> Choices<'a> {
    /// From these bytes, for a stream of about `size` bytes at most.
    pub fn new(data: &'a [u8], size: usize) -> Self {
        // Not more than a few dozen segments of one message.
        Choices { segments: 40, ..Choices::with(data, size, size / 2) }
    }

    /// As [`new`](Choices::new), with messages of `message` bytes and a dozen segments at most.
    pub(crate) fn with(data: &'a [u8], size: usize, message: usize) -> Self {
        let seed = data.iter().fold(0u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
        Choices { data, prng: Prng::new(seed), size, message, segments: 12 }
    }

    fn u8(&mut self) -> u8 {
        match self.data.split_first() {
            Some((b, rest)) => {
                self.data = rest;
                *b
            }
            None => self.prng.next_u64() as u8,
        }
    }

    fn u32(&mut self) -> u32 {
        self.prng.next_u64() as u32
    }

    /// False once the bytes are used up, or the stream is long enough.
    fn go_on(&self, so_far: usize) -> bool {
        !self.data.is_empty() && so_far < self.size
    }

    /// Lengths around the places where something changes.
    fn len(&mut self, most: usize) -> usize {
        let n = match self.u8() % 8 {
            0 => 0,
            1 => self.u8() as usize % 8,
            2 | 3 => self.u8() as usize,
            4 => 960 + self.u8() as usize,
            5 => self.u8() as usize * 17,
            6 => self.u8() as usize * 257,
            _ => most - (self.u8() as usize % 8).min(most),
        };
        n.min(most)
    }
}

/// A valid stream and what it means.
#[derive(Debug, Default)]
pub struct Script {
    /// The FPDUs.
    pub bytes: Vec<u8>,
    /// The messages in order of completion.
    pub messages: Vec<Message>,
    send_msn: u32,
    read_msn: u32,
}

impl Script {
    /// Makes a stream from choices, with or without CRCs.
    pub fn build(c: &mut Choices<'_>, crc: bool) -> Script {
        let mut s = Script { send_msn: 1, read_msn: 1, ..Script::default() };
        while c.go_on(s.bytes.len()) {
            match c.u8() % 9 {
                0..=3 => s.send(c, crc),
                4 | 5 => s.tagged(c, crc, Op::Write),
                6 => s.tagged(c, crc, Op::ReadResponse),
                7 => s.read(c, crc),
                _ if c.u8() < 32 => {
                    s.terminate(c, crc);
                    break;
                }
                _ => s.read(c, crc),
            }
        }
        s
    }

    fn fpdu(&mut self, header: &[u8], payload: &[u8], crc: bool) {
        let ulpdu = header.len() + payload.len() - 2;
        let mut sum = tx::FpduCrc::new(header);
        let (a, b) = payload.split_at(payload.len() / 3);
        sum.update(a);
        sum.update(b);
        let (t, n) = if crc { sum.trailer(ulpdu) } else { tx::trailer(ulpdu, None) };
        self.bytes.extend_from_slice(header);
        self.bytes.extend_from_slice(payload);
        self.bytes.extend_from_slice(&t[..n]);
    }

    /// Payload, and the most of it in one FPDU.
    fn payload(c: &mut Choices<'_>, fpdu: usize) -> (Vec<u8>, usize) {
        let mtu = c.len(fpdu).max(1);
        let mut data = vec![0; c.len(c.message.min(mtu * c.segments))];
        c.prng.fill(&mut data);
        (data, mtu)
    }

    fn send(&mut self, c: &mut Choices<'_>, crc: bool) {
        let ops = [Op::Send, Op::SendInvalidate, Op::SendSolicited, Op::SendSolicitedInvalidate];
        let op = ops[usize::from(c.u8()) % 4];
        let stag = if op.invalidates() { c.u32() } else { 0 };
        let (data, mtu) = Self::payload(c, tx::MAX_UNTAGGED_PAYLOAD);
        let msn = self.send_msn;
        let mut at = 0;
        loop {
            let n = mtu.min(data.len() - at);
            let last = at + n == data.len();
            let h = tx::untagged_header(op, stag, 0, msn, at as u32, n, last);
            self.fpdu(&h, &data[at..at + n], crc);
            at += n;
            if last {
                break;
            }
            if c.u8() < 16 {
                self.read(c, crc);
            }
        }
        self.send_msn = msn.wrapping_add(1);
        self.messages.push(Message::Data { op, stag, to: 0, msn, data });
    }

    fn tagged(&mut self, c: &mut Choices<'_>, crc: bool, op: Op) {
        let stag = c.u32();
        let (data, mtu) = Self::payload(c, tx::MAX_TAGGED_PAYLOAD);
        let to = match c.u8() % 4 {
            0 => 0,
            // A message that ends exactly at 2^64.
            1 => 0u64.wrapping_sub(data.len() as u64),
            _ => c.prng.next_u64() >> 1,
        };
        let mut at = 0;
        loop {
            let n = mtu.min(data.len() - at);
            let last = at + n == data.len();
            let h = tx::tagged_header(op, stag, to.wrapping_add(at as u64), n, last);
            self.fpdu(&h, &data[at..at + n], crc);
            at += n;
            if last {
                break;
            }
            // Untagged messages may stand between the segments of a tagged one.
            match c.u8() {
                0..16 => self.read(c, crc),
                16..32 => self.send(c, crc),
                _ => {}
            }
        }
        self.messages.push(Message::Data { op, stag, to, msn: 0, data });
    }

    fn read(&mut self, c: &mut Choices<'_>, crc: bool) {
        let (a, b, n, d, e) = (c.u32(), c.prng.next_u64(), c.u32(), c.u32(), c.prng.next_u64());
        let f = tx::read_request(self.read_msn, a, b, n, d, e);
        self.fpdu(&f, &[], crc);
        self.read_msn = self.read_msn.wrapping_add(1);
        self.messages.push(Message::Read(a, b, n, d, e));
    }

    fn terminate(&mut self, c: &mut Choices<'_>, crc: bool) {
        let codes = [Code::RDMAP_STREAM, Code::DDP_MSN, Code::MPA_CRC, Code::DDP_BOUNDS];
        let code = codes[usize::from(c.u8()) % 4];
        // Without a header to carry, siw's order would be ambiguous for some codes.
        let order = if c.u8() < 128 { Order::Rfc } else { Order::Siw };
        let header = tx::tagged_header(Op::Write, 1, 2, 3, true);
        self.bytes.extend_from_slice(tx::terminate_with(code, &header, order, crc).as_bytes());
        self.messages.push(Message::Terminate(code));
    }
}

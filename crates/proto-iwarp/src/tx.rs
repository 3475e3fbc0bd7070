//! Outgoing FPDUs: headers and trailers as fixed arrays, to be sent around the payload.
//!
//! An FPDU is `header ++ payload ++ trailer`; the header includes the ULPDU_Length field.

use crate::Op;
use crate::fault::Fault;
use crate::terminate::{Code, Order};
use weir_codec::{Crc32c, crc32c};

/// Header of a tagged FPDU (Write, Read Response), bytes.
pub const TAGGED_HDR: usize = 16;
/// Header of an untagged FPDU (Sends), bytes.
pub const UNTAGGED_HDR: usize = 20;
/// A Read Request without its trailer, bytes.
pub const READ_REQ: usize = 48;
/// Largest ULPDU_Length (RFC 5044: a 16-bit field).
pub const MAX_ULPDU: usize = 65535;
/// Most bytes after the payload: three of padding, four of CRC.
pub const MAX_TRAILER: usize = 7;
/// Bytes in which a trailer is handed over: one word, of which no more than [`MAX_TRAILER`] are sent.
pub const TRAILER: usize = 8;
/// Most payload of one tagged FPDU.
pub const MAX_TAGGED_PAYLOAD: usize = MAX_ULPDU + 2 - TAGGED_HDR;
/// Most payload of one untagged FPDU.
pub const MAX_UNTAGGED_PAYLOAD: usize = MAX_ULPDU + 2 - UNTAGGED_HDR;

pub(crate) const DDP_TAGGED: u8 = 0x80;
pub(crate) const DDP_LAST: u8 = 0x40;
pub(crate) const DDP_VERSION: u8 = 0x01;
pub(crate) const RDMAP_VERSION: u8 = 0x40;

#[inline]
const fn last_bit(last: bool) -> u8 {
    if last { DDP_LAST } else { 0 }
}

#[inline]
fn put<const N: usize>(to: &mut [u8], at: usize, bytes: [u8; N]) {
    to[at..at + N].copy_from_slice(&bytes);
}

/// ULPDU_Length, DDP and RDMAP control, and the STag field, as one word: bytes that are written one by one cannot be read
/// together before they are in the cache, and that is long when a payload was stored just before.
#[inline]
fn first_word(ulpdu: usize, ddp: u8, op: Op, stag: u32) -> [u8; 8] {
    let control = u64::from(ddp) << 40 | u64::from(RDMAP_VERSION | op as u8) << 32;
    ((ulpdu as u64) << 48 | control | u64::from(stag)).to_be_bytes()
}

/// Header of a tagged FPDU: `op` is Write or Read Response, `stag` and `to` name where the first
/// of the `payload` bytes goes at the peer, `last` ends the message.
///
/// # Panics
/// When `payload` is above [`MAX_TAGGED_PAYLOAD`]: the length field could not tell, and the stream
/// would be lost.
#[inline]
pub fn tagged_header(op: Op, stag: u32, to: u64, payload: usize, last: bool) -> [u8; TAGGED_HDR] {
    debug_assert!(op.is_tagged());
    assert!(payload <= MAX_TAGGED_PAYLOAD, "tagged payload of {payload} bytes in one FPDU");
    let mut h = [0; TAGGED_HDR];
    let ddp = DDP_TAGGED | last_bit(last) | DDP_VERSION;
    put(&mut h, 0, first_word(payload + TAGGED_HDR - 2, ddp, op, stag));
    put(&mut h, 8, to.to_be_bytes());
    h
}

/// Header of an untagged FPDU. `inval_stag`: the peer's key to invalidate, else 0. `queue`: 0 for
/// Sends, 1 Read Request, 2 Terminate. `msn`: the message's number on that queue, from 1. `mo`:
/// where in the message this payload begins.
///
/// # Panics
/// When `payload` is above [`MAX_UNTAGGED_PAYLOAD`].
#[inline]
pub fn untagged_header(
    op: Op,
    inval_stag: u32,
    queue: u32,
    msn: u32,
    mo: u32,
    payload: usize,
    last: bool,
) -> [u8; UNTAGGED_HDR] {
    debug_assert!(!op.is_tagged());
    assert!(payload <= MAX_UNTAGGED_PAYLOAD, "untagged payload of {payload} bytes in one FPDU");
    let mut h = [0; UNTAGGED_HDR];
    let ddp = last_bit(last) | DDP_VERSION;
    put(&mut h, 0, first_word(payload + UNTAGGED_HDR - 2, ddp, op, inval_stag));
    put(&mut h, 8, (u64::from(queue) << 32 | u64::from(msn)).to_be_bytes());
    put(&mut h, 16, mo.to_be_bytes());
    h
}

/// A whole Read Request but for its CRC (no padding is needed): fetch `size` bytes from the peer's
/// `src_stag` at `src_to`; the response will carry `sink_stag` and start at `sink_to`. `msn` counts
/// this end's Read Requests from 1.
#[inline]
pub fn read_request(
    msn: u32,
    sink_stag: u32,
    sink_to: u64,
    size: u32,
    src_stag: u32,
    src_to: u64,
) -> [u8; READ_REQ] {
    let mut f = [0; READ_REQ];
    let head = untagged_header(Op::ReadRequest, 0, 1, msn, 0, READ_REQ - UNTAGGED_HDR, true);
    put(&mut f, 0, head);
    put(&mut f, 20, sink_stag.to_be_bytes());
    put(&mut f, 24, sink_to.to_be_bytes());
    put(&mut f, 32, size.to_be_bytes());
    put(&mut f, 36, src_stag.to_be_bytes());
    put(&mut f, 40, src_to.to_be_bytes());
    f
}

/// Bytes of padding after a ULPDU of `ulpdu_len` bytes.
#[inline]
pub const fn padding(ulpdu_len: usize) -> usize {
    (ulpdu_len + 2).wrapping_neg() & 3
}

/// Padding and CRC after a ULPDU of `ulpdu_len` bytes (header without its first two bytes, plus
/// payload): the bytes, and how many of them. `None` is "CRC off" and gives a zero field.
#[inline]
pub fn trailer(ulpdu_len: usize, crc: Option<u32>) -> ([u8; TRAILER], usize) {
    let pad = padding(ulpdu_len);
    // The CRC is the one little-endian field of the format.
    ((u64::from(crc.unwrap_or(0)) << (8 * pad)).to_le_bytes(), pad + 4)
}

/// The CRC of one FPDU, taken while its pieces pass by.
#[derive(Debug, Clone, Default)]
pub struct FpduCrc(Crc32c);

impl FpduCrc {
    /// Begins with the header, ULPDU_Length included.
    #[inline]
    pub fn new(header: &[u8]) -> FpduCrc {
        let mut crc = Crc32c::new();
        crc.update(header);
        FpduCrc(crc)
    }

    /// Adds a piece of the payload.
    #[inline]
    pub fn update(&mut self, payload: &[u8]) {
        self.0.update(payload);
    }

    /// Adds the padding and gives the value for [`trailer`].
    #[inline]
    pub fn finish(mut self, ulpdu_len: usize) -> u32 {
        let pad = padding(ulpdu_len);
        if pad > 0 {
            self.0.update(&[0; 3][..pad]);
        }
        self.0.finish()
    }

    /// Padding and CRC in one step.
    #[inline]
    pub fn trailer(self, ulpdu_len: usize) -> ([u8; TRAILER], usize) {
        trailer(ulpdu_len, Some(self.finish(ulpdu_len)))
    }
}

/// The CRC of an FPDU whose payload is in one piece, for [`trailer`]. For small payloads quicker
/// than [`FpduCrc`].
#[inline]
pub fn crc(header: &[u8], payload: &[u8]) -> u32 {
    match header.len() + payload.len() {
        ..=125 => gathered::<128>(header, payload),
        126..=573 => gathered::<576>(header, payload),
        end => {
            let mut sum = FpduCrc::new(header);
            sum.update(payload);
            sum.finish(end - 2)
        }
    }
}

/// One sum over a copy costs less than three sums over pieces. Header, payload and padding must
/// fit `N` bytes.
#[inline]
fn gathered<const N: usize>(header: &[u8], payload: &[u8]) -> u32 {
    let mut whole = [0; N];
    let end = header.len() + payload.len();
    whole[..header.len()].copy_from_slice(header);
    whole[header.len()..end].copy_from_slice(payload);
    crc32c(&whole[..(end + 3) & !3])
}

/// Most bytes of a Terminate FPDU: header, control, length, untagged header, Read Request, CRC.
pub const MAX_TERMINATE: usize = UNTAGGED_HDR + 4 + 2 + 18 + 28 + MAX_TRAILER;

/// A complete Terminate FPDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminateFrame {
    bytes: [u8; MAX_TERMINATE],
    len: usize,
}

impl TerminateFrame {
    /// What to send.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The Terminate that answers `fault`: its code and the header that caused it. `crc`: whether the
/// stream uses CRCs.
pub fn terminate(fault: &Fault, crc: bool) -> TerminateFrame {
    terminate_with(fault.code(), fault.header(), Order::Rfc, crc)
}

/// A Terminate with a given code, offending header (an FPDU's first bytes, or empty) and bit order.
pub fn terminate_with(code: Code, header: &[u8], order: Order, crc: bool) -> TerminateFrame {
    let (body, body_len) = crate::terminate::encode(code, header, order);
    let mut f = TerminateFrame { bytes: [0; MAX_TERMINATE], len: 0 };
    put(&mut f.bytes, 0, untagged_header(Op::Terminate, 0, 2, 1, 0, body_len, true));
    put(&mut f.bytes, UNTAGGED_HDR, body);
    let end = UNTAGGED_HDR + body_len;
    let ulpdu = end - 2;
    let value = crc.then(|| self::crc(&f.bytes[..UNTAGGED_HDR], &f.bytes[UNTAGGED_HDR..end]));
    let (t, n) = trailer(ulpdu, value);
    f.bytes[end..end + n].copy_from_slice(&t[..n]);
    f.len = end + n;
    f
}

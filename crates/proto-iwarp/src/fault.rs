//! What ends a stream: the reason for the log, the code and header for the peer.

use crate::Op;
use crate::read_queue::Request;
use crate::rx::Segment;
use crate::stag::Protection;
use crate::terminate::Code;
use crate::tx;
use core::fmt;

/// Why a stream cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The stream had ended already, by a fault or a Terminate.
    Ended,
    /// ULPDU_Length is too small for the header that follows it.
    Length {
        /// ULPDU_Length.
        ulpdu: u16,
        /// Least length for this kind of segment.
        least: u16,
    },
    /// The CRC does not match.
    Crc {
        /// From the wire.
        got: u32,
        /// Computed.
        expected: u32,
    },
    /// DDP version other than 1.
    DdpVersion {
        /// From the wire.
        got: u8,
        /// Whether the segment is tagged.
        tagged: bool,
    },
    /// RDMAP version other than 1.
    RdmapVersion(u8),
    /// Opcode that does not exist, or is not offered here (RFC 7306).
    Opcode(u8),
    /// A tagged operation in an untagged segment, or the reverse.
    OpcodeTagged {
        /// Opcode.
        op: Op,
        /// Whether the segment is tagged.
        tagged: bool,
    },
    /// No such queue.
    Queue(u32),
    /// Operation on a queue that is not its own.
    OpcodeQueue {
        /// Opcode.
        op: Op,
        /// Queue number from the wire.
        queue: u32,
    },
    /// Message number out of sequence.
    Msn {
        /// Queue number.
        queue: u32,
        /// From the wire.
        got: u32,
        /// Next in sequence.
        expected: u32,
    },
    /// Message offset is not where the message stands.
    Offset {
        /// From the wire.
        got: u32,
        /// Bytes of the message so far.
        expected: u32,
    },
    /// Another operation inside an unfinished Send.
    OpcodeChanged {
        /// Of this segment.
        got: Op,
        /// Of the message's first segment.
        expected: Op,
    },
    /// An untagged message grows beyond the limit.
    TooLong {
        /// Bytes up to this segment's end.
        len: u64,
        /// Most that is taken.
        limit: u32,
    },
    /// A Read Request or Terminate in more than one segment.
    NotSingle(Op),
    /// A Read Request or Terminate of a wrong length.
    BodyLength {
        /// Opcode.
        op: Op,
        /// Payload bytes.
        got: u32,
    },
    /// Another tagged message begins inside an unfinished one, or its key changes.
    Interleaved {
        /// Of this segment.
        stag: u32,
        /// Of the unfinished message.
        expected: u32,
    },
    /// A tagged message goes on at another offset than where it stands.
    Gap {
        /// Of this segment.
        to: u64,
        /// Where the message stands.
        expected: u64,
    },
    /// Offset plus length passes the end of the 64-bit range.
    Wrap,
    /// The key table does not permit this.
    Protection(Protection),
    /// A Send came and no receive is posted.
    NoReceive,
    /// A Send to invalidate a key that may not be invalidated.
    Invalidate(u32),
    /// More Read Requests than were agreed.
    ReadQueueFull(u16),
    /// A Read Response while no READ is outstanding.
    UnexpectedResponse,
    /// A Read Response that is not the oldest READ's next part.
    ResponseMismatch {
        /// Key from the wire.
        stag: u32,
        /// Offset from the wire.
        to: u64,
        /// Key of the oldest READ.
        expected_stag: u32,
        /// Where it stands.
        expected_to: u64,
    },
    /// A Read Response that ends before or goes on after the size asked for.
    ResponseSize {
        /// Bytes up to this segment's end.
        got: u64,
        /// Bytes asked for.
        asked: u32,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Reason::Ended => f.write_str("the stream had ended already"),
            Reason::Length { ulpdu, least } => {
                write!(f, "ULPDU length {ulpdu} is below the header's {least} bytes")
            }
            Reason::Crc { got, expected } => {
                write!(f, "CRC is {got:#010x} on the wire but {expected:#010x} over the data")
            }
            Reason::DdpVersion { got, .. } => write!(f, "DDP version {got}, only 1 exists"),
            Reason::RdmapVersion(v) => write!(f, "RDMAP version {v}, only 1 exists"),
            Reason::Opcode(op) => write!(f, "RDMAP opcode {op} is not supported"),
            Reason::OpcodeTagged { op, tagged } => {
                let kind = if tagged { "a tagged" } else { "an untagged" };
                write!(f, "{op:?} in {kind} segment")
            }
            Reason::Queue(q) => write!(f, "DDP queue {q} does not exist"),
            Reason::OpcodeQueue { op, queue } => write!(f, "{op:?} on DDP queue {queue}"),
            Reason::Msn { queue, got, expected } => {
                write!(f, "message {got} on DDP queue {queue}, expected {expected}")
            }
            Reason::Offset { got, expected } => {
                write!(f, "message offset {got}, expected {expected}")
            }
            Reason::OpcodeChanged { got, expected } => {
                write!(f, "{got:?} inside an unfinished {expected:?}")
            }
            Reason::TooLong { len, limit } => {
                write!(f, "message of at least {len} bytes, limit {limit}")
            }
            Reason::NotSingle(op) => write!(f, "{op:?} in more than one segment"),
            Reason::BodyLength { op, got } => write!(f, "{op:?} with a body of {got} bytes"),
            Reason::Interleaved { stag, expected } => write!(
                f,
                "tagged segment for STag {stag:#x} inside an unfinished message to {expected:#x}"
            ),
            Reason::Gap { to, expected } => {
                write!(f, "tagged message goes on at {to:#x}, expected {expected:#x}")
            }
            Reason::Wrap => f.write_str("tagged offset plus length wraps"),
            Reason::Protection(p) => p.fmt(f),
            Reason::NoReceive => f.write_str("a Send arrived and no receive is posted"),
            Reason::Invalidate(stag) => write!(f, "STag {stag:#x} cannot be invalidated"),
            Reason::ReadQueueFull(n) => {
                write!(f, "Read Request above the {n} that may be outstanding")
            }
            Reason::UnexpectedResponse => {
                f.write_str("Read Response while no RDMA READ is outstanding")
            }
            Reason::ResponseMismatch { stag, to, expected_stag, expected_to } => write!(
                f,
                "Read Response for {stag:#x} at {to:#x}, expected {expected_stag:#x} at {expected_to:#x}"
            ),
            Reason::ResponseSize { got, asked } => {
                write!(f, "Read Response of {got} bytes, {asked} were asked for")
            }
        }
    }
}

/// A reason, with the header that caused it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    reason: Reason,
    /// The operation, where the code depends on it.
    op: Option<Op>,
    header_len: u8,
    header: [u8; tx::READ_REQ],
}

impl Fault {
    /// A fault caused by the FPDU that starts with `bytes`; what is there of its header is kept.
    #[cold]
    pub fn at(reason: Reason, bytes: &[u8]) -> Fault {
        let mut fault = Fault { reason, op: None, header_len: 0, header: [0; tx::READ_REQ] };
        let control = bytes.get(2..4).map_or([0, 0], |c| [c[0], c[1]]);
        let len = match (control[0] & tx::DDP_TAGGED != 0, control[1] & 0x0f) {
            (true, _) => tx::TAGGED_HDR,
            (false, 1) => tx::READ_REQ,
            (false, _) => tx::UNTAGGED_HDR,
        };
        let head = &bytes[..bytes.len().min(len)];
        fault.header[..head.len()].copy_from_slice(head);
        fault.header_len = head.len() as u8;
        fault.op = Op::from_bits(control[1] & 0x0f);
        fault
    }

    /// A fault that the layer above found in a segment: protection, no receive, read bookkeeping.
    #[cold]
    pub fn in_segment(reason: Reason, seg: &Segment) -> Fault {
        let total = seg.total as usize;
        if seg.op.is_tagged() {
            let n = total.min(tx::MAX_TAGGED_PAYLOAD);
            Fault::at(reason, &tx::tagged_header(seg.op, seg.stag, seg.to, n, seg.last_segment))
        } else {
            let n = total.min(tx::MAX_UNTAGGED_PAYLOAD);
            let head = tx::untagged_header(
                seg.op,
                seg.stag,
                seg.op.queue(),
                seg.msn,
                seg.mo,
                n,
                seg.last_segment,
            );
            Fault::at(reason, &head)
        }
    }

    /// A fault of a Read Request: its source is not permitted, or there are too many. `msn`: its
    /// message number, see [`crate::read_queue::Inbound`].
    #[cold]
    pub fn in_read(reason: Reason, msn: u32, r: &Request) -> Fault {
        let body = tx::read_request(msn, r.sink_stag, r.sink_to, r.size, r.src_stag, r.src_to);
        Fault::at(reason, &body)
    }

    /// What was wrong.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// The first bytes of the FPDU that caused the fault, from ULPDU_Length on: its DDP header as
    /// far as it had arrived, with the body of a Read Request.
    pub fn header(&self) -> &[u8] {
        &self.header[..usize::from(self.header_len)]
    }

    /// What a Terminate for this fault says.
    pub fn code(&self) -> Code {
        // Writes and Read Responses meet DDP's check of the tagged buffer; the source of a Read
        // Request and keys to invalidate are RDMAP's business (RFC 5040 section 7).
        let ddp = self.op.is_none_or(Op::is_tagged);
        match self.reason {
            Reason::Ended => Code::RDMAP_STREAM,
            Reason::Length { .. } => Code::MPA_FRAMING,
            Reason::Crc { .. } => Code::MPA_CRC,
            Reason::DdpVersion { tagged: true, .. } => Code::DDP_TAGGED_VERSION,
            Reason::DdpVersion { tagged: false, .. } => Code::DDP_UNTAGGED_VERSION,
            Reason::RdmapVersion(_) => Code::RDMAP_VERSION,
            Reason::Opcode(_)
            | Reason::OpcodeTagged { .. }
            | Reason::OpcodeQueue { .. }
            | Reason::OpcodeChanged { .. }
            | Reason::UnexpectedResponse => Code::RDMAP_OPCODE,
            Reason::Queue(_) => Code::DDP_QUEUE,
            Reason::Msn { .. } => Code::DDP_MSN,
            Reason::Offset { .. } => Code::DDP_OFFSET,
            Reason::TooLong { .. } | Reason::NotSingle(_) => Code::DDP_TOO_LONG,
            Reason::BodyLength { .. } => Code::RDMAP_UNSPECIFIED,
            Reason::Interleaved { .. } => Code::DDP_STAG,
            Reason::Gap { .. } => Code::DDP_BOUNDS,
            Reason::Wrap => Code::DDP_WRAP,
            Reason::Protection(Protection::InvalidStag { .. }) if ddp => Code::DDP_STAG,
            Reason::Protection(Protection::InvalidStag { .. }) => Code::RDMAP_STAG,
            Reason::Protection(Protection::Bounds { .. }) if ddp => Code::DDP_BOUNDS,
            Reason::Protection(Protection::Bounds { .. }) => Code::RDMAP_BOUNDS,
            Reason::Protection(Protection::Wrap { .. }) if ddp => Code::DDP_WRAP,
            Reason::Protection(Protection::Wrap { .. }) => Code::RDMAP_WRAP,
            Reason::Protection(Protection::Access { .. }) => Code::RDMAP_ACCESS,
            Reason::NoReceive => Code::DDP_NO_BUFFER,
            Reason::Invalidate(_) => Code::RDMAP_PROTECTION_INVALIDATE,
            Reason::ReadQueueFull(_) => Code::RDMAP_STREAM,
            Reason::ResponseMismatch { stag, expected_stag, .. } if stag != expected_stag => {
                Code::DDP_STAG
            }
            Reason::ResponseMismatch { .. } | Reason::ResponseSize { .. } => Code::DDP_BOUNDS,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl std::error::Error for Fault {}

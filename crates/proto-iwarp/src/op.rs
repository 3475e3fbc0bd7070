//! RDMAP operations.

/// An RDMAP opcode (RFC 5040 section 4.3): the low four bits of an FPDU's fourth byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// RDMA Write: tagged, consumes no receive.
    Write = 0,
    /// RDMA Read Request: untagged, queue 1, one segment.
    ReadRequest = 1,
    /// RDMA Read Response: tagged.
    ReadResponse = 2,
    /// Send: untagged, queue 0, consumes one receive.
    Send = 3,
    /// Send that invalidates a key of the receiver.
    SendInvalidate = 4,
    /// Send that asks for a solicited event.
    SendSolicited = 5,
    /// Send with both.
    SendSolicitedInvalidate = 6,
    /// Terminate: untagged, queue 2, one segment; the last of a stream.
    Terminate = 7,
}

impl Op {
    /// The operation with this opcode; `None` for 8–15 (RFC 7306 and reserved).
    #[inline]
    pub const fn from_bits(opcode: u8) -> Option<Op> {
        Some(match opcode {
            0 => Op::Write,
            1 => Op::ReadRequest,
            2 => Op::ReadResponse,
            3 => Op::Send,
            4 => Op::SendInvalidate,
            5 => Op::SendSolicited,
            6 => Op::SendSolicitedInvalidate,
            7 => Op::Terminate,
            _ => return None,
        })
    }

    /// True for operations that travel in tagged segments.
    #[inline]
    pub const fn is_tagged(self) -> bool {
        matches!(self, Op::Write | Op::ReadResponse)
    }

    /// True for the four Sends.
    #[inline]
    pub const fn is_send(self) -> bool {
        matches!(
            self,
            Op::Send | Op::SendInvalidate | Op::SendSolicited | Op::SendSolicitedInvalidate
        )
    }

    /// True when the header names a key to invalidate.
    #[inline]
    pub const fn invalidates(self) -> bool {
        matches!(self, Op::SendInvalidate | Op::SendSolicitedInvalidate)
    }

    /// True when the receiver is asked for a solicited event.
    #[inline]
    pub const fn is_solicited(self) -> bool {
        matches!(self, Op::SendSolicited | Op::SendSolicitedInvalidate)
    }

    /// The DDP queue of an untagged operation: 0 Send, 1 Read Request, 2 Terminate. Tagged: 0.
    #[inline]
    pub const fn queue(self) -> u32 {
        match self {
            Op::ReadRequest => 1,
            Op::Terminate => 2,
            _ => 0,
        }
    }
}

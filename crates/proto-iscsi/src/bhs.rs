//! Basic header segments: 48 bytes before each PDU's data (RFC 7143 section 11).

/// Bytes of a header without additional segments.
pub const LEN: usize = 48;

/// A header as it is on the wire.
pub type Bhs = [u8; LEN];

/// Operation codes (RFC 7143 11.2.1.2).
pub mod op {
    /// NOP-Out.
    pub const NOP_OUT: u8 = 0x00;
    /// SCSI Command.
    pub const COMMAND: u8 = 0x01;
    /// Task Management Function Request.
    pub const TASK: u8 = 0x02;
    /// Login Request.
    pub const LOGIN: u8 = 0x03;
    /// Text Request.
    pub const TEXT: u8 = 0x04;
    /// SCSI Data-Out.
    pub const DATA_OUT: u8 = 0x05;
    /// Logout Request.
    pub const LOGOUT: u8 = 0x06;
    /// SNACK, of higher levels of error recovery only.
    pub const SNACK: u8 = 0x10;
    /// NOP-In.
    pub const NOP_IN: u8 = 0x20;
    /// SCSI Response.
    pub const RESPONSE: u8 = 0x21;
    /// Task Management Function Response.
    pub const TASK_RESPONSE: u8 = 0x22;
    /// Login Response.
    pub const LOGIN_RESPONSE: u8 = 0x23;
    /// Text Response.
    pub const TEXT_RESPONSE: u8 = 0x24;
    /// SCSI Data-In.
    pub const DATA_IN: u8 = 0x25;
    /// Logout Response.
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    /// Ready To Transfer.
    pub const R2T: u8 = 0x31;
    /// Asynchronous Message.
    pub const ASYNC: u8 = 0x32;
    /// Reject.
    pub const REJECT: u8 = 0x3f;
}

/// Why a PDU is rejected (RFC 7143 11.17.1).
pub mod reject {
    /// The data do not have their digest.
    pub const DATA_DIGEST: u8 = 0x02;
    /// There is no SNACK at this level of error recovery.
    pub const SNACK: u8 = 0x03;
    /// It breaks a rule of the protocol.
    pub const PROTOCOL: u8 = 0x04;
    /// Nobody knows this kind of PDU.
    pub const UNSUPPORTED: u8 = 0x05;
    /// Too many immediate commands.
    pub const IMMEDIATE: u8 = 0x06;
    /// Its tag is in use.
    pub const IN_PROGRESS: u8 = 0x07;
    /// A field has a value that it cannot have.
    pub const FIELD: u8 = 0x09;
    /// No memory to answer a text request.
    pub const RESOURCES: u8 = 0x0a;
}

/// Task management functions (RFC 7143 11.5.1).
pub mod task {
    /// One task.
    pub const ABORT_TASK: u8 = 1;
    /// Those of the nexus on the unit.
    pub const ABORT_TASK_SET: u8 = 2;
    /// There is never one to clear.
    pub const CLEAR_ACA: u8 = 3;
    /// All on the unit.
    pub const CLEAR_TASK_SET: u8 = 4;
    /// All on the unit, with its reset.
    pub const LUN_RESET: u8 = 5;
    /// That on all units.
    pub const WARM_RESET: u8 = 6;
    /// That, and the end of sessions.
    pub const COLD_RESET: u8 = 7;
    /// Of a higher level of error recovery.
    pub const REASSIGN: u8 = 8;
}

/// Task management responses (RFC 7143 11.6.1).
pub mod task_response {
    /// Done.
    pub const COMPLETE: u8 = 0;
    /// There is no such task.
    pub const NO_TASK: u8 = 1;
    /// There is no such unit.
    pub const NO_LUN: u8 = 2;
    /// Tasks are not handed to other connections.
    pub const NO_REASSIGN: u8 = 4;
    /// The function is not known.
    pub const UNSUPPORTED: u8 = 5;
    /// It could not be done.
    pub const REJECTED: u8 = 255;
}

/// Big-endian field of four bytes; 0 beyond the end.
#[inline]
pub fn be32(h: &[u8], at: usize) -> u32 {
    h.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b))
}

/// Big-endian field of eight bytes; 0 beyond the end.
#[inline]
pub fn be64(h: &[u8], at: usize) -> u64 {
    h.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_be_bytes(*b))
}

/// Puts bytes at an offset; what is beyond the end is left out.
#[inline]
pub fn put(h: &mut [u8], at: usize, bytes: &[u8]) {
    h.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = *from);
}

/// What every request has in the same place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request(pub Bhs);

impl Request {
    /// The operation code, as in [`op`].
    pub fn op(&self) -> u8 {
        self.0[0] & 0x3f
    }

    /// It is not numbered, and goes before those that are.
    pub fn is_immediate(&self) -> bool {
        self.0[0] & 0x40 != 0
    }

    /// The flag in the highest bit: final, or transit.
    pub fn is_final(&self) -> bool {
        self.0[1] & 0x80 != 0
    }

    /// All flags of the second byte.
    pub fn flags(&self) -> u8 {
        self.0[1]
    }

    /// Bytes of additional header segments.
    pub fn ahs_len(&self) -> usize {
        usize::from(self.0[4]) * 4
    }

    /// Bytes of data, without padding.
    pub fn data_len(&self) -> u32 {
        u32::from_be_bytes([0, self.0[5], self.0[6], self.0[7]])
    }

    /// Logical unit number.
    pub fn lun(&self) -> u64 {
        be64(&self.0, 8)
    }

    /// Initiator task tag.
    pub fn itt(&self) -> u32 {
        be32(&self.0, 16)
    }

    /// Where it has one: target transfer tag; expected data transfer length; referenced task tag.
    pub fn word20(&self) -> u32 {
        be32(&self.0, 20)
    }

    /// Its number, or the next one if it is immediate. Data-Out has none.
    pub fn cmd_sn(&self) -> u32 {
        be32(&self.0, 24)
    }

    /// The next status that the initiator waits for.
    pub fn exp_stat_sn(&self) -> u32 {
        be32(&self.0, 28)
    }

    /// Of Data-Out: its number in the sequence. Of task management: the task's CmdSN is in word 32.
    pub fn data_sn(&self) -> u32 {
        be32(&self.0, 36)
    }

    /// Of Data-Out: where the data belong.
    pub fn offset(&self) -> u32 {
        be32(&self.0, 40)
    }

    /// Of task management: CmdSN of the task meant.
    pub fn ref_cmd_sn(&self) -> u32 {
        be32(&self.0, 32)
    }

    /// Of a command: the first 16 bytes of the CDB.
    pub fn cdb(&self) -> &[u8] {
        self.0.get(32..).unwrap_or_default()
    }
}

/// What a command's additional header segments say (RFC 7143 11.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Additional<'a> {
    /// CDB bytes from the 17th on.
    pub cdb: &'a [u8],
    /// Of a bidirectional command: bytes of its DATA-IN buffer.
    pub read_len: Option<u32>,
}

impl<'a> Additional<'a> {
    /// Reads the segments; unknown ones are passed over. `None`: they end in the middle of one.
    pub fn decode(mut ahs: &'a [u8]) -> Option<Additional<'a>> {
        let mut found = Additional::default();
        while !ahs.is_empty() {
            let (len, rest) = ahs.split_first_chunk::<2>()?;
            let len = usize::from(u16::from_be_bytes(*len));
            let (kind, rest) = rest.split_first()?;
            // The length counts from the byte behind the type on (11.2.2.1).
            let value = rest.get(..len)?;
            match kind & 0x3f {
                1 => found.cdb = value.get(1..).unwrap_or_default(),
                2 => found.read_len = Some(be32(value, 1)),
                _ => {}
            }
            // Segments begin at multiples of four.
            ahs = rest.get((3 + len).next_multiple_of(4) - 3..).unwrap_or_default();
        }
        Some(found)
    }
}

/// A response under way: its header but for the numbers that it gets when it leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Response {
    /// The header.
    pub bhs: Bhs,
    /// Whether it takes a status number. Others tell the next one (NOP-In pings, R2T), or none (Data-In).
    pub stat: Stat,
}

/// What a response has for StatSN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stat {
    /// A number of its own.
    Takes,
    /// The next one, which stays.
    Shows,
    /// None.
    Without,
}

impl Response {
    /// One of this kind, with its second byte, for this tag.
    pub fn new(op: u8, flags: u8, itt: u32, stat: Stat) -> Response {
        let mut bhs = [0; LEN];
        bhs[0] = op;
        bhs[1] = flags;
        put(&mut bhs, 16, &itt.to_be_bytes());
        Response { bhs, stat }
    }

    /// The same with bytes at an offset.
    #[must_use]
    pub fn with(mut self, at: usize, bytes: &[u8]) -> Response {
        put(&mut self.bhs, at, bytes);
        self
    }

    /// The same with a number of four bytes at an offset.
    #[must_use]
    pub fn with32(self, at: usize, n: u32) -> Response {
        self.with(at, &n.to_be_bytes())
    }

    /// Says how many bytes of data follow; fewer than 2^24.
    #[must_use]
    pub fn with_data(self, len: usize) -> Response {
        let [_, a, b, c] = (len as u32).to_be_bytes();
        self.with(5, &[a, b, c])
    }

    /// Ends it with its numbers, right before it leaves. `stat_sn` is the next one, and moves if this takes it.
    pub fn seal(&mut self, stat_sn: &mut u32, exp_cmd_sn: u32, max_cmd_sn: u32) {
        if self.stat != Stat::Without {
            put(&mut self.bhs, 24, &stat_sn.to_be_bytes());
        }
        if self.stat == Stat::Takes {
            *stat_sn = stat_sn.wrapping_add(1);
        }
        put(&mut self.bhs, 28, &exp_cmd_sn.to_be_bytes());
        put(&mut self.bhs, 32, &max_cmd_sn.to_be_bytes());
    }

    /// SCSI Response (RFC 7143 11.4). `sense` bytes of sense data follow behind two of their length.
    pub fn scsi(
        itt: u32,
        status: u8,
        residual: crate::sequence::Residual,
        sense: usize,
    ) -> Response {
        let r = Response::new(op::RESPONSE, 0x80 | residual.flags(), itt, Stat::Takes);
        let data = if sense > 0 { 2 + sense } else { 0 };
        r.with(3, &[status]).with32(44, residual.count()).with_data(data)
    }

    /// Ready To Transfer (RFC 7143 11.8).
    pub fn r2t(itt: u32, lun: u64, ttt: u32, r2t_sn: u32, offset: u32, len: u32) -> Response {
        let r = Response::new(op::R2T, 0x80, itt, Stat::Shows).with(8, &lun.to_be_bytes());
        r.with32(20, ttt).with32(36, r2t_sn).with32(40, offset).with32(44, len)
    }

    /// Data-In without status (RFC 7143 11.7).
    pub fn data_in(itt: u32, data_sn: u32, offset: u32, len: usize, last: bool) -> Response {
        let flags = if last { 0x80 } else { 0 };
        let r = Response::new(op::DATA_IN, flags, itt, Stat::Without).with32(20, crate::NO_TAG);
        r.with32(36, data_sn).with32(40, offset).with_data(len)
    }

    /// Lets the last Data-In of a command carry its status, GOOD.
    #[must_use]
    pub fn and_good(mut self, residual: crate::sequence::Residual) -> Response {
        self.bhs[1] |= 0x81 | residual.flags();
        self.stat = Stat::Takes;
        self.with32(44, residual.count())
    }

    /// Reject (RFC 7143 11.17); the header of the PDU meant follows as data.
    pub fn reject(reason: u8) -> Response {
        let r = Response::new(op::REJECT, 0x80, crate::NO_TAG, Stat::Takes);
        r.with(2, &[reason]).with_data(LEN)
    }

    /// A ping (RFC 7143 11.19): the initiator is to answer it with `ttt`. [`NO_TAG`](crate::NO_TAG): it only tells the window.
    pub fn ping(ttt: u32) -> Response {
        Response::new(op::NOP_IN, 0x80, crate::NO_TAG, Stat::Shows).with32(20, ttt)
    }

    /// Asks for a logout within so many seconds (RFC 7143 11.9, event 1).
    pub fn please_log_out(seconds: u16) -> Response {
        let r = Response::new(op::ASYNC, 0x80, crate::NO_TAG, Stat::Takes);
        r.with(36, &[1]).with(42, &seconds.to_be_bytes())
    }
}

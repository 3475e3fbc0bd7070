//! Login: SRP_LOGIN_REQ in its two forms, SRP_LOGIN_RSP and SRP_LOGIN_REJ.
//!
//! They travel as private data of the connection manager, which may pad them with zeros: decoders
//! read the prefix and never ask for an exact length.
use core::fmt;

use weir_wire::{Reader, Short, Writer};

use crate::port_id::PortId;
use crate::types::{EncodeError, Tag};

#[cfg(test)]
pub(crate) mod tests;

/// IU type of SRP_LOGIN_REQ.
pub const LOGIN_REQ: u8 = 0x00;
/// IU type of SRP_LOGIN_RSP.
pub const LOGIN_RSP: u8 = 0xc0;
/// IU type of SRP_LOGIN_REJ.
pub const LOGIN_REJ: u8 = 0xc2;
/// Bytes of a SRP_LOGIN_RSP.
pub const LOGIN_RSP_LEN: usize = 52;
/// Bytes of a SRP_LOGIN_REJ.
pub const LOGIN_REJ_LEN: usize = 32;
/// The smallest REQUESTED INITIATOR-TO-TARGET IU LENGTH that a target accepts.
pub const MIN_REQUEST_IU_LEN: u32 = 64;
/// The smallest target-to-initiator IU length that an initiator accepts.
pub const MIN_RESPONSE_IU_LEN: u32 = 56;

/// Which layout a login request has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// 64 bytes: private data of an IB/CM request.
    IbCm,
    /// 56 bytes in another order: RDMA/CM, over any transport.
    RdmaCm,
}

impl Form {
    /// Bytes of a login request of this form.
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(self) -> usize {
        match self {
            Form::IbCm => 64,
            Form::RdmaCm => 56,
        }
    }
}

/// A set of data buffer descriptor formats (16-bit field of the login IUs).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BufferFormats(pub u16);

impl BufferFormats {
    /// DDBD: direct descriptors.
    pub const DIRECT: BufferFormats = BufferFormats(0x0002);
    /// IDBD: indirect descriptor tables.
    pub const INDIRECT: BufferFormats = BufferFormats(0x0004);
    /// Both, as every initiator here asks for.
    pub const BOTH: BufferFormats = BufferFormats(0x0006);

    /// Whether every format of `other` is in this set.
    pub const fn contains(self, other: BufferFormats) -> bool {
        other.0 & !self.0 == 0
    }
}

impl fmt::Debug for BufferFormats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferFormats({:#06x})", self.0)
    }
}

/// MULTI-CHANNEL ACTION: what becomes of the existing channels of the same I_T nexus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MultiChannelAction {
    /// 00: they end.
    Terminate,
    /// 01: they stay; this one is independent.
    Independent,
    /// A reserved value (2 or 3).
    Reserved(u8),
}

impl MultiChannelAction {
    fn from_bits(b: u8) -> Self {
        match b & 3 {
            0 => MultiChannelAction::Terminate,
            1 => MultiChannelAction::Independent,
            n => MultiChannelAction::Reserved(n),
        }
    }

    fn to_bits(self) -> u8 {
        match self {
            MultiChannelAction::Terminate => 0,
            MultiChannelAction::Independent => 1,
            MultiChannelAction::Reserved(n) => n & 3,
        }
    }
}

/// MULTI-CHANNEL RESULT: what became of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MultiChannelResult {
    /// 0: no existing channel was terminated.
    #[default]
    NoneTerminated,
    /// 1: at least one was terminated.
    Terminated,
    /// 2: existing channels were maintained.
    Maintained,
    /// A reserved value (3).
    Reserved,
}

impl MultiChannelResult {
    fn from_bits(b: u8) -> Self {
        match b & 3 {
            0 => MultiChannelResult::NoneTerminated,
            1 => MultiChannelResult::Terminated,
            2 => MultiChannelResult::Maintained,
            _ => MultiChannelResult::Reserved,
        }
    }
}

/// Why private data is not the login IU that was looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginError {
    /// Fewer bytes than the IU has.
    Short {
        /// Bytes of the IU.
        needed: usize,
        /// Bytes that came.
        got: usize,
    },
    /// The type byte says something else.
    Type(u8),
    /// Neither form of a login request has its type byte where it belongs.
    Unrecognised,
}

impl fmt::Display for LoginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoginError::Short { needed, got } => {
                write!(f, "login IU of {needed} bytes wanted, private data has {got}")
            }
            LoginError::Type(t) => write!(f, "IU type {t:#04x} is not the login IU expected"),
            LoginError::Unrecognised => {
                f.write_str("private data is a login request in neither form")
            }
        }
    }
}

impl std::error::Error for LoginError {}

impl From<Short> for LoginError {
    fn from(s: Short) -> Self {
        LoginError::Short { needed: s.offset.saturating_add(s.wanted), got: s.offset }
    }
}

fn prefix(bytes: &[u8], needed: usize) -> Result<Reader<'_>, LoginError> {
    match bytes.get(..needed) {
        Some(b) => Ok(Reader::new(b)),
        None => Err(LoginError::Short { needed, got: bytes.len() }),
    }
}

/// SRP_LOGIN_REQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoginRequest {
    /// Echoed in the answer; Linux sends 0.
    pub tag: Tag,
    /// REQUESTED INITIATOR-TO-TARGET IU LENGTH: the longest IU the initiator wants to send, bytes.
    pub request_iu_len: u32,
    /// REQUIRED BUFFER FORMATS.
    pub formats: BufferFormats,
    /// MULTI-CHANNEL ACTION.
    pub action: MultiChannelAction,
    /// LOSOLNT: T_LOGOUT shall raise a solicited event.
    pub logout_solicited: bool,
    /// CRSOLNT: the same for CRED_REQ.
    pub credit_solicited: bool,
    /// AESOLNT: the same for AER_REQ.
    pub event_solicited: bool,
    /// IMMED_REQUESTED (SRP-2): the initiator would like to send immediate data.
    pub immediate: bool,
    /// IMMEDIATE DATA OFFSET (SRP-2): where such data starts, bytes from the start of the IU; 0 without.
    pub immediate_offset: u16,
    /// INITIATOR PORT IDENTIFIER.
    pub initiator: PortId,
    /// TARGET PORT IDENTIFIER.
    pub target: PortId,
}

impl LoginRequest {
    fn flags(&self) -> u8 {
        self.action.to_bits()
            | (self.logout_solicited as u8) << 4
            | (self.credit_solicited as u8) << 5
            | (self.event_solicited as u8) << 6
            | (self.immediate as u8) << 7
    }

    /// Reads a login request of a known form.
    pub fn decode(bytes: &[u8], form: Form) -> Result<Self, LoginError> {
        let mut r = prefix(bytes, form.len())?;
        let (kind, tag, len, formats, flags, mut offset, initiator, target);
        match form {
            Form::IbCm => {
                kind = r.u8()?;
                r.skip(7)?;
                tag = r.array()?;
                len = r.u32()?;
                r.skip(4)?;
                formats = r.u16()?;
                flags = r.u8()?;
                r.skip(1)?;
                offset = r.u16()?;
                r.skip(2)?;
                initiator = r.array()?;
                target = r.array()?;
            }
            Form::RdmaCm => {
                tag = r.array()?;
                formats = r.u16()?;
                flags = r.u8()?;
                kind = r.u8()?;
                len = r.u32()?;
                initiator = r.array()?;
                target = r.array()?;
                offset = r.u16()?;
            }
        }
        if kind != LOGIN_REQ {
            return Err(LoginError::Type(kind));
        }
        let immediate = flags & 0x80 != 0;
        if !immediate {
            // Reserved before SRP-2, and without meaning when not asked for.
            offset = 0;
        }
        Ok(LoginRequest {
            tag: Tag::from_bytes(tag),
            request_iu_len: len,
            formats: BufferFormats(formats),
            action: MultiChannelAction::from_bits(flags),
            logout_solicited: flags & 0x10 != 0,
            credit_solicited: flags & 0x20 != 0,
            event_solicited: flags & 0x40 != 0,
            immediate,
            immediate_offset: offset,
            initiator: PortId(initiator),
            target: PortId(target),
        })
    }

    /// Reads a login request of either form and says which it was.
    ///
    /// For listeners that are not told how a connection was made. The forms overlap, so the reading
    /// with more good signs wins: known buffer formats, a sensible IU length, reserved bytes that are
    /// zero. No one sign suffices: a GUID may start like buffer formats (00:02:c9 is a vendor). At
    /// equality it is the RDMA/CM form.
    pub fn decode_any(bytes: &[u8]) -> Result<(Self, Form), LoginError> {
        let short = Form::RdmaCm.len();
        if bytes.len() < short {
            return Err(LoginError::Short { needed: short, got: bytes.len() });
        }
        let score = |form: Form| {
            let req = Self::decode(bytes, form).ok()?;
            let zero = |from: usize, to: usize| {
                bytes.get(from..to).is_some_and(|b| b.iter().all(|&x| x == 0))
            };
            let clean = match form {
                Form::IbCm => zero(1, 8) && zero(20, 24) && zero(27, 28) && zero(30, 32),
                Form::RdmaCm => zero(50, 56),
            };
            let formats = req.formats.0 != 0 && BufferFormats::BOTH.contains(req.formats);
            // 16 MiB: far above any real request, far below what port identifiers read as.
            let len = (1..=1 << 24).contains(&req.request_iu_len);
            Some((formats as u8 + len as u8 + clean as u8, req))
        };
        match (score(Form::RdmaCm), score(Form::IbCm)) {
            (Some((a, req)), Some((b, _))) if a >= b => Ok((req, Form::RdmaCm)),
            (_, Some((_, req))) => Ok((req, Form::IbCm)),
            (Some((_, req)), None) => Ok((req, Form::RdmaCm)),
            (None, None) => Err(LoginError::Unrecognised),
        }
    }

    /// Writes the request into the first `form.len()` bytes of `out`; returns that length.
    pub fn encode(&self, form: Form, out: &mut [u8]) -> Result<usize, EncodeError> {
        let got = out.len();
        let Some(out) = out.get_mut(..form.len()) else {
            return Err(EncodeError::TooSmall { needed: form.len(), got });
        };
        let mut w = Writer::new(out);
        match form {
            Form::IbCm => {
                w.u8(LOGIN_REQ)?.zeros(7)?.put(&self.tag.to_bytes())?;
                w.u32(self.request_iu_len)?.zeros(4)?;
                w.u16(self.formats.0)?.u8(self.flags())?.zeros(1)?;
                w.u16(self.immediate_offset)?.zeros(2)?;
                w.put(&self.initiator.0)?.put(&self.target.0)?;
            }
            Form::RdmaCm => {
                w.put(&self.tag.to_bytes())?;
                w.u16(self.formats.0)?.u8(self.flags())?.u8(LOGIN_REQ)?;
                w.u32(self.request_iu_len)?;
                w.put(&self.initiator.0)?.put(&self.target.0)?;
                w.u16(self.immediate_offset)?.zeros(6)?;
            }
        }
        Ok(form.len())
    }
}

/// SRP_LOGIN_RSP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoginResponse {
    /// Echo of the request's.
    pub tag: Tag,
    /// REQUEST LIMIT DELTA: the credits the initiator starts with.
    pub credits: i32,
    /// MAXIMUM INITIATOR-TO-TARGET IU LENGTH that the target receives, bytes.
    pub request_iu_len: u32,
    /// MAXIMUM TARGET-TO-INITIATOR IU LENGTH that the target sends, bytes.
    pub response_iu_len: u32,
    /// SUPPORTED BUFFER FORMATS.
    pub formats: BufferFormats,
    /// MULTI-CHANNEL RESULT.
    pub result: MultiChannelResult,
    /// SOLNTSUP: the target honours the solicited-notification bits.
    pub solicit_supported: bool,
    /// IMMED_SUPPORTED (SRP-2): immediate data may be sent at the requested offset.
    pub immediate_supported: bool,
}

impl LoginResponse {
    /// Reads a login response.
    pub fn decode(bytes: &[u8]) -> Result<Self, LoginError> {
        let mut r = prefix(bytes, LOGIN_RSP_LEN)?;
        let kind = r.u8()?;
        if kind != LOGIN_RSP {
            return Err(LoginError::Type(kind));
        }
        r.skip(3)?;
        let credits = r.u32()? as i32;
        let tag = Tag::from_bytes(r.array()?);
        let (request_iu_len, response_iu_len) = (r.u32()?, r.u32()?);
        let formats = BufferFormats(r.u16()?);
        let flags = r.u8()?;
        Ok(LoginResponse {
            tag,
            credits,
            request_iu_len,
            response_iu_len,
            formats,
            result: MultiChannelResult::from_bits(flags),
            solicit_supported: flags & 0x10 != 0,
            immediate_supported: flags & 0x80 != 0,
        })
    }

    /// The 52 bytes of the IU.
    pub fn to_bytes(&self) -> [u8; LOGIN_RSP_LEN] {
        let flags = self.result as u8
            | (self.solicit_supported as u8) << 4
            | (self.immediate_supported as u8) << 7;
        let mut b = [0; LOGIN_RSP_LEN];
        b[0] = LOGIN_RSP;
        b[4..8].copy_from_slice(&self.credits.to_be_bytes());
        b[8..16].copy_from_slice(&self.tag.to_bytes());
        b[16..20].copy_from_slice(&self.request_iu_len.to_be_bytes());
        b[20..24].copy_from_slice(&self.response_iu_len.to_be_bytes());
        b[24..26].copy_from_slice(&self.formats.0.to_be_bytes());
        b[26] = flags;
        b
    }
}

/// REASON of a SRP_LOGIN_REJ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// 00010000: unable to establish the channel, no reason given.
    Unspecified,
    /// 00010001: insufficient channel resources.
    InsufficientResources,
    /// 00010002: requested I→T IU length too large (or below 64).
    IuLength,
    /// 00010003: unable to associate the channel with an I_T nexus (target port unknown).
    NoNexus,
    /// 00010004: unsupported data buffer descriptor format.
    BufferFormat,
    /// 00010005: multiple channels per I_T nexus are not supported.
    MultiChannelUnsupported,
    /// 00010006: channel limit reached, or this initiator may not log in.
    ChannelLimit,
    /// Any other number.
    Other(u32),
}

impl RejectReason {
    /// From the field.
    pub fn from_code(c: u32) -> Self {
        match c {
            0x0001_0000 => RejectReason::Unspecified,
            0x0001_0001 => RejectReason::InsufficientResources,
            0x0001_0002 => RejectReason::IuLength,
            0x0001_0003 => RejectReason::NoNexus,
            0x0001_0004 => RejectReason::BufferFormat,
            0x0001_0005 => RejectReason::MultiChannelUnsupported,
            0x0001_0006 => RejectReason::ChannelLimit,
            n => RejectReason::Other(n),
        }
    }

    /// The field.
    pub fn code(self) -> u32 {
        match self {
            RejectReason::Unspecified => 0x0001_0000,
            RejectReason::InsufficientResources => 0x0001_0001,
            RejectReason::IuLength => 0x0001_0002,
            RejectReason::NoNexus => 0x0001_0003,
            RejectReason::BufferFormat => 0x0001_0004,
            RejectReason::MultiChannelUnsupported => 0x0001_0005,
            RejectReason::ChannelLimit => 0x0001_0006,
            RejectReason::Other(n) => n,
        }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RejectReason::Unspecified => "unable to establish the channel",
            RejectReason::InsufficientResources => "insufficient channel resources",
            RejectReason::IuLength => "requested IU length too large or below 64",
            RejectReason::NoNexus => "no such target port",
            RejectReason::BufferFormat => "unsupported data buffer descriptor format",
            RejectReason::MultiChannelUnsupported => "multiple channels are not supported",
            RejectReason::ChannelLimit => "channel limit reached or initiator not admitted",
            RejectReason::Other(n) => return write!(f, "reason {n:#010x}"),
        })
    }
}

impl std::error::Error for RejectReason {}

/// SRP_LOGIN_REJ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoginReject {
    /// Echo of the request's.
    pub tag: Tag,
    /// REASON.
    pub reason: RejectReason,
    /// SUPPORTED BUFFER FORMATS.
    pub formats: BufferFormats,
}

impl LoginReject {
    /// Reads a login reject.
    pub fn decode(bytes: &[u8]) -> Result<Self, LoginError> {
        let mut r = prefix(bytes, LOGIN_REJ_LEN)?;
        let kind = r.u8()?;
        if kind != LOGIN_REJ {
            return Err(LoginError::Type(kind));
        }
        r.skip(3)?;
        let reason = RejectReason::from_code(r.u32()?);
        let tag = Tag::from_bytes(r.array()?);
        r.skip(8)?;
        Ok(LoginReject { tag, reason, formats: BufferFormats(r.u16()?) })
    }

    /// The 32 bytes of the IU.
    pub fn to_bytes(&self) -> [u8; LOGIN_REJ_LEN] {
        let mut b = [0; LOGIN_REJ_LEN];
        b[0] = LOGIN_REJ;
        b[4..8].copy_from_slice(&self.reason.code().to_be_bytes());
        b[8..16].copy_from_slice(&self.tag.to_bytes());
        b[24..26].copy_from_slice(&self.formats.0.to_be_bytes());
        b
    }
}

//! The small information units: logouts, credit requests and asynchronous events.
use core::fmt;

use weir_wire::{Reader, Short, Writer};

use crate::iu::{IuError, IuType};
use crate::types::{EncodeError, Tag};

/// Bytes of I_LOGOUT, T_LOGOUT, CRED_REQ, CRED_RSP and AER_RSP.
pub const SMALL_LEN: usize = 16;
/// Bytes of AER_REQ before the sense data.
pub const AER_REQ_LEN: usize = 36;

/// The three fields that the 16-byte IUs have in common.
struct Small {
    solicited: bool,
    word: u32,
    tag: Tag,
}

fn read_small(bytes: &[u8], iu: IuType) -> Result<Small, IuError> {
    let fields = |r: &mut Reader<'_>| -> Result<Small, Short> {
        r.skip(1)?;
        let solicited = r.u8()? & 1 != 0;
        r.skip(2)?;
        Ok(Small { solicited, word: r.u32()?, tag: Tag::from_bytes(r.array()?) })
    };
    fields(&mut Reader::new(bytes)).map_err(|_| IuError::Short {
        iu,
        needed: SMALL_LEN,
        got: bytes.len(),
    })
}

fn small(iu: IuType, solicited: bool, word: u32, tag: Tag) -> [u8; SMALL_LEN] {
    let mut b = [0; SMALL_LEN];
    b[0] = iu.code();
    b[1] = solicited as u8;
    b[4..8].copy_from_slice(&word.to_be_bytes());
    b[8..].copy_from_slice(&tag.to_bytes());
    b
}

/// SRP_I_LOGOUT: the initiator ends the channel. It uses a credit and is not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitiatorLogout {
    /// TAG.
    pub tag: Tag,
}

/// SRP_CRED_RSP: answers SRP_CRED_REQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreditResponse {
    /// Echo of the request's.
    pub tag: Tag,
}

/// SRP_AER_RSP: answers SRP_AER_REQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventResponse {
    /// Echo of the request's.
    pub tag: Tag,
}

macro_rules! tag_only {
    ($t:ident, $iu:expr) => {
        impl $t {
            /// Reads the IU.
            pub fn decode(bytes: &[u8]) -> Result<Self, IuError> {
                read_small(bytes, $iu).map(|s| $t { tag: s.tag })
            }

            /// The 16 bytes of the IU.
            pub fn to_bytes(&self) -> [u8; SMALL_LEN] {
                small($iu, false, 0, self.tag)
            }
        }
    };
}

tag_only!(InitiatorLogout, IuType::InitiatorLogout);
tag_only!(CreditResponse, IuType::CreditResponse);
tag_only!(EventResponse, IuType::EventResponse);

/// REASON of a SRP_T_LOGOUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LogoutReason {
    /// 0: none given. Also for bad descriptors, whose codes differ between public sources.
    Unspecified,
    /// 1: inactive channel.
    Inactive,
    /// 2: an IU of an invalid type was received.
    InvalidIuType,
    /// 3: a response without an outstanding request.
    SpuriousResponse,
    /// 4: a new login with multi-channel action "terminate".
    MultiChannelAction,
    /// Any other number.
    Other(u32),
}

impl LogoutReason {
    /// From the field.
    pub fn from_code(c: u32) -> Self {
        match c {
            0 => LogoutReason::Unspecified,
            1 => LogoutReason::Inactive,
            2 => LogoutReason::InvalidIuType,
            3 => LogoutReason::SpuriousResponse,
            4 => LogoutReason::MultiChannelAction,
            n => LogoutReason::Other(n),
        }
    }

    /// The field.
    pub fn code(self) -> u32 {
        match self {
            LogoutReason::Unspecified => 0,
            LogoutReason::Inactive => 1,
            LogoutReason::InvalidIuType => 2,
            LogoutReason::SpuriousResponse => 3,
            LogoutReason::MultiChannelAction => 4,
            LogoutReason::Other(n) => n,
        }
    }
}

impl fmt::Display for LogoutReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogoutReason::Unspecified => "no reason given",
            LogoutReason::Inactive => "inactive channel",
            LogoutReason::InvalidIuType => "invalid IU type received",
            LogoutReason::SpuriousResponse => "response without a request",
            LogoutReason::MultiChannelAction => "replaced by a new login",
            LogoutReason::Other(n) => return write!(f, "reason {n}"),
        })
    }
}

/// SRP_T_LOGOUT: the target ends the channel. Linux only prints it, so disconnect as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetLogout {
    /// TAG.
    pub tag: Tag,
    /// REASON.
    pub reason: LogoutReason,
    /// SOLNT.
    pub solicited: bool,
}

impl TargetLogout {
    /// Reads the IU.
    pub fn decode(bytes: &[u8]) -> Result<Self, IuError> {
        let s = read_small(bytes, IuType::TargetLogout)?;
        let reason = LogoutReason::from_code(s.word);
        Ok(TargetLogout { tag: s.tag, reason, solicited: s.solicited })
    }

    /// The 16 bytes of the IU.
    pub fn to_bytes(&self) -> [u8; SMALL_LEN] {
        small(IuType::TargetLogout, self.solicited, self.reason.code(), self.tag)
    }
}

/// SRP_CRED_REQ: credits that no response is there to carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreditRequest {
    /// Echoed in the answer.
    pub tag: Tag,
    /// REQUEST LIMIT DELTA.
    pub delta: i32,
    /// SOLNT.
    pub solicited: bool,
}

impl CreditRequest {
    /// Reads the IU.
    pub fn decode(bytes: &[u8]) -> Result<Self, IuError> {
        let s = read_small(bytes, IuType::CreditRequest)?;
        Ok(CreditRequest { tag: s.tag, delta: s.word as i32, solicited: s.solicited })
    }

    /// The 16 bytes of the IU.
    pub fn to_bytes(&self) -> [u8; SMALL_LEN] {
        small(IuType::CreditRequest, self.solicited, self.delta as u32, self.tag)
    }
}

/// SRP_AER_REQ: an asynchronous event, as sense data of a logical unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventRequest<'a> {
    /// Echoed in the answer.
    pub tag: Tag,
    /// REQUEST LIMIT DELTA.
    pub delta: i32,
    /// SAM eight-byte logical unit number, as a big-endian number.
    pub lun: u64,
    /// Sense data.
    pub sense: &'a [u8],
    /// SOLNT.
    pub solicited: bool,
}

impl<'a> EventRequest<'a> {
    /// Reads the IU. Sense data that does not fit the bytes received is cut.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, IuError> {
        Self::fields(bytes).map_err(|_| IuError::Short {
            iu: IuType::EventRequest,
            needed: AER_REQ_LEN,
            got: bytes.len(),
        })
    }

    fn fields(bytes: &'a [u8]) -> Result<Self, Short> {
        let mut r = Reader::new(bytes);
        r.skip(1)?;
        let solicited = r.u8()? & 1 != 0;
        r.skip(2)?;
        let delta = r.u32()? as i32;
        let tag = Tag::from_bytes(r.array()?);
        r.skip(4)?;
        let lun = r.u64()?;
        let sense_len = r.u32()? as usize;
        r.skip(4)?;
        let rest = r.rest();
        let sense = rest.get(..sense_len).unwrap_or(rest);
        Ok(EventRequest { tag, delta, lun, sense, solicited })
    }

    /// Writes the IU from the start of `out` and returns its length. Sense data is cut so that the
    /// IU stays within `max_len`, the negotiated target-to-initiator length, and within `out`.
    pub fn encode(&self, out: &mut [u8], max_len: usize) -> Result<usize, EncodeError> {
        let got = out.len().min(max_len);
        let Some(room) = got.checked_sub(AER_REQ_LEN) else {
            return Err(EncodeError::TooSmall { needed: AER_REQ_LEN, got });
        };
        let sense = self.sense.get(..room).unwrap_or(self.sense);
        let mut w = Writer::new(out);
        w.u8(IuType::EventRequest.code())?.u8(self.solicited as u8)?.zeros(2)?;
        w.u32(self.delta as u32)?.put(&self.tag.to_bytes())?;
        w.zeros(4)?.u64(self.lun)?.u32(sense.len() as u32)?.zeros(4)?.put(sense)?;
        Ok(w.len())
    }
}

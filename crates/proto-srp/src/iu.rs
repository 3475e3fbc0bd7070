//! Information units: which kind a received message is, and what is in it.
use core::fmt;

use crate::cmd::{CmdError, Command};
use crate::misc::{
    CreditRequest, CreditResponse, EventRequest, EventResponse, InitiatorLogout, TargetLogout,
};
use crate::rsp::{Response, RspCode};
use crate::task::TaskManagement;
use crate::types::Tag;

#[cfg(test)]
mod tests;

/// The type byte of an IU that is sent as a message (logins are private data, see [`crate::login`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IuType {
    /// 01 SRP_TSK_MGMT, initiator to target.
    TaskManagement,
    /// 02 SRP_CMD, initiator to target.
    Command,
    /// 03 SRP_I_LOGOUT, initiator to target.
    InitiatorLogout,
    /// 41 SRP_CRED_RSP, initiator to target.
    CreditResponse,
    /// 42 SRP_AER_RSP, initiator to target.
    EventResponse,
    /// 80 SRP_T_LOGOUT, target to initiator.
    TargetLogout,
    /// 81 SRP_CRED_REQ, target to initiator.
    CreditRequest,
    /// 82 SRP_AER_REQ, target to initiator.
    EventRequest,
    /// C1 SRP_RSP, target to initiator.
    Response,
}

impl IuType {
    /// From the first byte of an IU; `None` for logins and unknown types.
    #[inline]
    pub fn from_code(c: u8) -> Option<Self> {
        Some(match c {
            0x01 => IuType::TaskManagement,
            0x02 => IuType::Command,
            0x03 => IuType::InitiatorLogout,
            0x41 => IuType::CreditResponse,
            0x42 => IuType::EventResponse,
            0x80 => IuType::TargetLogout,
            0x81 => IuType::CreditRequest,
            0x82 => IuType::EventRequest,
            0xc1 => IuType::Response,
            _ => return None,
        })
    }

    /// The first byte of the IU.
    #[inline]
    pub fn code(self) -> u8 {
        match self {
            IuType::TaskManagement => 0x01,
            IuType::Command => 0x02,
            IuType::InitiatorLogout => 0x03,
            IuType::CreditResponse => 0x41,
            IuType::EventResponse => 0x42,
            IuType::TargetLogout => 0x80,
            IuType::CreditRequest => 0x81,
            IuType::EventRequest => 0x82,
            IuType::Response => 0xc1,
        }
    }

    /// Whether the initiator spends a credit to send it.
    #[inline]
    pub fn uses_credit(self) -> bool {
        matches!(self, IuType::TaskManagement | IuType::Command | IuType::InitiatorLogout)
    }

    /// The name in the standard.
    pub fn name(self) -> &'static str {
        match self {
            IuType::TaskManagement => "SRP_TSK_MGMT",
            IuType::Command => "SRP_CMD",
            IuType::InitiatorLogout => "SRP_I_LOGOUT",
            IuType::CreditResponse => "SRP_CRED_RSP",
            IuType::EventResponse => "SRP_AER_RSP",
            IuType::TargetLogout => "SRP_T_LOGOUT",
            IuType::CreditRequest => "SRP_CRED_REQ",
            IuType::EventRequest => "SRP_AER_REQ",
            IuType::Response => "SRP_RSP",
        }
    }
}

/// What was agreed at login and bounds the requests of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IuContext {
    /// The longest I→T IU, bytes.
    pub max_iu_len: u32,
    /// Where immediate data starts; `None` when it was not negotiated.
    pub immediate_offset: Option<u16>,
    /// Cap on the entries of an indirect table.
    pub max_table_entries: u32,
}

/// Why a message is no valid IU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IuError {
    /// No byte at all.
    Empty,
    /// A type that is unknown, or that this side does not receive.
    Type(u8),
    /// Fewer bytes than the fixed part of the IU.
    Short {
        /// What the type byte says it is.
        iu: IuType,
        /// Bytes wanted.
        needed: usize,
        /// Bytes received.
        got: usize,
    },
    /// More bytes than were negotiated.
    Long {
        /// Negotiated length.
        max: u32,
        /// Bytes received.
        got: usize,
    },
    /// A SRP_CMD with an invalid field.
    Command {
        /// Its tag.
        tag: Tag,
        /// The field.
        error: CmdError,
    },
}

impl IuError {
    /// The answer that keeps the channel: tag and RSP_CODE of a SRP_RSP. `None` means that the peer
    /// does not speak SRP and the channel ends.
    pub fn answer(&self) -> Option<(Tag, RspCode)> {
        match self {
            IuError::Command { tag, .. } => Some((*tag, RspCode::FieldsInvalid)),
            _ => None,
        }
    }
}

impl fmt::Display for IuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IuError::Empty => f.write_str("a message without a byte"),
            IuError::Type(t) => write!(f, "IU type {t:#04x} is not one that this side receives"),
            IuError::Short { iu, needed, got } => {
                write!(f, "{} of {got} bytes, at least {needed} wanted", iu.name())
            }
            IuError::Long { max, got } => {
                write!(f, "an IU of {got} bytes, at most {max} were negotiated")
            }
            IuError::Command { tag, error } => write!(f, "SRP_CMD with tag {tag}: {error}"),
        }
    }
}

impl std::error::Error for IuError {}

/// An IU that a target receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Iu<'a> {
    /// SRP_CMD.
    Command(Command<'a>),
    /// SRP_TSK_MGMT.
    TaskManagement(TaskManagement),
    /// SRP_I_LOGOUT.
    InitiatorLogout(InitiatorLogout),
    /// SRP_CRED_RSP.
    CreditResponse(CreditResponse),
    /// SRP_AER_RSP.
    EventResponse(EventResponse),
}

impl<'a> Iu<'a> {
    /// Reads a message that a target received; `bytes` is the message exactly, without padding.
    #[inline]
    pub fn decode(bytes: &'a [u8], ctx: &IuContext) -> Result<Self, IuError> {
        let &code = bytes.first().ok_or(IuError::Empty)?;
        if bytes.len() > ctx.max_iu_len as usize {
            return Err(IuError::Long { max: ctx.max_iu_len, got: bytes.len() });
        }
        match IuType::from_code(code) {
            Some(IuType::Command) => Command::decode(bytes, ctx).map(Iu::Command),
            Some(IuType::TaskManagement) => TaskManagement::decode(bytes).map(Iu::TaskManagement),
            Some(IuType::InitiatorLogout) => {
                InitiatorLogout::decode(bytes).map(Iu::InitiatorLogout)
            }
            Some(IuType::CreditResponse) => CreditResponse::decode(bytes).map(Iu::CreditResponse),
            Some(IuType::EventResponse) => EventResponse::decode(bytes).map(Iu::EventResponse),
            _ => Err(IuError::Type(code)),
        }
    }

    /// Whether it used one of the initiator's credits.
    pub fn uses_credit(&self) -> bool {
        matches!(self, Iu::Command(_) | Iu::TaskManagement(_) | Iu::InitiatorLogout(_))
    }

    /// Its TAG.
    pub fn tag(&self) -> Tag {
        match self {
            Iu::Command(c) => c.tag,
            Iu::TaskManagement(t) => t.tag,
            Iu::InitiatorLogout(l) => l.tag,
            Iu::CreditResponse(c) => c.tag,
            Iu::EventResponse(e) => e.tag,
        }
    }
}

/// An IU that an initiator receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetIu<'a> {
    /// SRP_RSP.
    Response(Response<'a>),
    /// SRP_CRED_REQ.
    CreditRequest(CreditRequest),
    /// SRP_AER_REQ.
    EventRequest(EventRequest<'a>),
    /// SRP_T_LOGOUT.
    TargetLogout(TargetLogout),
}

impl<'a> TargetIu<'a> {
    /// Reads a message that an initiator received.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Result<Self, IuError> {
        let &code = bytes.first().ok_or(IuError::Empty)?;
        match IuType::from_code(code) {
            Some(IuType::Response) => Response::decode(bytes).map(TargetIu::Response),
            Some(IuType::CreditRequest) => {
                CreditRequest::decode(bytes).map(TargetIu::CreditRequest)
            }
            Some(IuType::EventRequest) => EventRequest::decode(bytes).map(TargetIu::EventRequest),
            Some(IuType::TargetLogout) => TargetLogout::decode(bytes).map(TargetIu::TargetLogout),
            _ => Err(IuError::Type(code)),
        }
    }

    /// The credits it carries.
    pub fn delta(&self) -> i32 {
        match self {
            TargetIu::Response(r) => r.delta,
            TargetIu::CreditRequest(c) => c.delta,
            TargetIu::EventRequest(e) => e.delta,
            TargetIu::TargetLogout(_) => 0,
        }
    }
}

/// Reads a message that an initiator received: [`TargetIu::decode`].
#[inline]
pub fn decode_initiator(bytes: &[u8]) -> Result<TargetIu<'_>, IuError> {
    TargetIu::decode(bytes)
}

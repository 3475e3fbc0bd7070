//! What a target decides about a login before it looks at its table of I_T nexuses, and what an
//! initiator makes of the answer.
use core::fmt;

use crate::credit::Credits;
use crate::iu::IuContext;
use crate::login::{
    BufferFormats, LoginRequest, LoginResponse, MIN_REQUEST_IU_LEN, MIN_RESPONSE_IU_LEN,
    MultiChannelAction, MultiChannelResult, RejectReason,
};
use crate::types::Tag;

#[cfg(test)]
mod tests;

/// The smallest IMMEDIATE DATA OFFSET that leaves room for SRP_CMD with a 32-byte CDB and the
/// immediate descriptor: 48 + 16 + 4. Linux asks for exactly this.
pub const MIN_IMMEDIATE_OFFSET: u16 = 48 + 16 + 4;

/// What a target port offers to every login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetPolicy {
    /// Size of its receive buffers: the longest I→T IU, bytes. Linux asks for 276 to 8276 by default.
    pub max_iu_len: u32,
    /// The longest T→I IU it sends, bytes. A Linux host allocates receive buffers of this size.
    pub max_response_len: u32,
    /// Initial credits per channel. A default Linux host uses at most 63 of them.
    pub credits: u32,
    /// Whether immediate data is accepted.
    pub immediate: bool,
    /// Whether an I_T nexus may have several channels.
    pub multichannel: bool,
    /// Cap on the entries of an indirect table.
    pub max_table_entries: u32,
}

impl Default for TargetPolicy {
    fn default() -> Self {
        TargetPolicy {
            // 48 + 16 + 20 + 128 × 16 and 80 + 4 + 8192, the larger: what Linux targets accept.
            max_iu_len: 8276,
            max_response_len: 512,
            credits: 64,
            immediate: true,
            multichannel: true,
            max_table_entries: 2048,
        }
    }
}

/// What the login asks the nexus table to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MultiChannel {
    /// End the other channels of this I_T nexus first, then answer with result 1, or 0 without any.
    Terminate,
    /// Keep them; answer with result 2.
    Keep,
}

/// What both sides hold to on this channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// The longest I→T IU, bytes.
    pub request_iu_len: u32,
    /// The longest T→I IU, bytes.
    pub response_iu_len: u32,
    /// Where immediate data starts in an IU; `None` when it is not in use.
    pub immediate_offset: Option<u16>,
    /// The multi-channel action to carry out.
    pub multichannel: MultiChannel,
    /// Cap on the entries of an indirect table: the target's policy; an initiator is told none.
    pub max_table_entries: u32,
}

impl Negotiated {
    /// What the decoder of this channel's requests needs.
    pub fn iu_context(&self) -> IuContext {
        IuContext {
            max_iu_len: self.request_iu_len,
            immediate_offset: self.immediate_offset,
            max_table_entries: self.max_table_entries,
        }
    }
}

/// Judges a login by itself. The response is a template: the caller sets [`LoginResponse::result`] to
/// `Terminated` when ending other channels really ended one.
///
/// What needs the nexus table, the pools or the host list is the caller's: reasons
/// `InsufficientResources`, `NoNexus` and `ChannelLimit`.
///
/// Immediate data at an offset that cannot work is not granted; that does not fail the login.
pub fn evaluate(
    req: &LoginRequest,
    policy: &TargetPolicy,
) -> Result<(LoginResponse, Negotiated), RejectReason> {
    if !(MIN_REQUEST_IU_LEN..=policy.max_iu_len).contains(&req.request_iu_len) {
        return Err(RejectReason::IuLength);
    }
    if !BufferFormats::BOTH.contains(req.formats) {
        return Err(RejectReason::BufferFormat);
    }
    let (multichannel, result) = match req.action {
        MultiChannelAction::Terminate => {
            (MultiChannel::Terminate, MultiChannelResult::NoneTerminated)
        }
        MultiChannelAction::Independent if !policy.multichannel => {
            return Err(RejectReason::MultiChannelUnsupported);
        }
        MultiChannelAction::Independent => (MultiChannel::Keep, MultiChannelResult::Maintained),
        MultiChannelAction::Reserved(_) => return Err(RejectReason::Unspecified),
    };
    let offset = req.immediate_offset;
    let sane = offset >= MIN_IMMEDIATE_OFFSET && u32::from(offset) < req.request_iu_len;
    let immediate_offset = (req.immediate && policy.immediate && sane).then_some(offset);
    // Linux warns when this is less than it asked for and then sends its own length all the same; so
    // the answer is the request, which the length check above has found to fit.
    let request_iu_len = req.request_iu_len;
    let response_iu_len = policy.max_response_len.max(MIN_RESPONSE_IU_LEN);
    let response = LoginResponse {
        tag: req.tag,
        credits: policy.credits.min(i32::MAX as u32) as i32,
        request_iu_len,
        response_iu_len,
        formats: BufferFormats::BOTH,
        result,
        solicit_supported: true,
        immediate_supported: immediate_offset.is_some(),
    };
    let negotiated = Negotiated {
        request_iu_len,
        response_iu_len,
        immediate_offset,
        multichannel,
        max_table_entries: policy.max_table_entries,
    };
    Ok((response, negotiated))
}

/// What is wrong with a SRP_LOGIN_RSP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseError {
    /// It answers another request.
    Tag(Tag),
    /// The target receives no IU of the smallest length that every target must.
    RequestIuLength(u32),
    /// The target wants to send no IU of the smallest length that every initiator must receive, or
    /// longer ones than this initiator has room for.
    ResponseIuLength(u32),
    /// A required buffer format is not supported.
    Formats(BufferFormats),
    /// Too few credits ever to send a command and keep one for task management.
    Credits(i32),
}

impl fmt::Display for ResponseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResponseError::Tag(t) => write!(f, "login response with the tag {t} of another login"),
            ResponseError::RequestIuLength(n) => {
                write!(f, "the target receives IUs of at most {n} bytes, fewer than 64")
            }
            ResponseError::ResponseIuLength(n) => {
                write!(
                    f,
                    "the target sends IUs of up to {n} bytes; there must be room for 56, \
                           and not more than this initiator has"
                )
            }
            ResponseError::Formats(b) => write!(f, "the target supports only {b:?}"),
            ResponseError::Credits(n) => write!(f, "{n} credits; at least 2 are wanted"),
        }
    }
}

impl std::error::Error for ResponseError {}

/// What an initiator holds to after a SRP_LOGIN_RSP; `max_response_len` is its largest receive
/// buffer, bytes.
///
/// The request length is the smaller of what was asked and what the target receives. Immediate data
/// is used when both sides said so and its offset lies below that length.
pub fn settle(
    req: &LoginRequest,
    rsp: &LoginResponse,
    max_response_len: u32,
) -> Result<Negotiated, ResponseError> {
    if rsp.tag != req.tag {
        return Err(ResponseError::Tag(rsp.tag));
    }
    if rsp.request_iu_len < MIN_REQUEST_IU_LEN {
        return Err(ResponseError::RequestIuLength(rsp.request_iu_len));
    }
    if !(MIN_RESPONSE_IU_LEN..=max_response_len).contains(&rsp.response_iu_len) {
        return Err(ResponseError::ResponseIuLength(rsp.response_iu_len));
    }
    if !rsp.formats.contains(req.formats) {
        return Err(ResponseError::Formats(rsp.formats));
    }
    if rsp.credits <= Credits::RESERVE {
        return Err(ResponseError::Credits(rsp.credits));
    }
    let request_iu_len = req.request_iu_len.min(rsp.request_iu_len);
    let offset = req.immediate_offset;
    let usable = req.immediate && rsp.immediate_supported && u32::from(offset) < request_iu_len;
    Ok(Negotiated {
        request_iu_len,
        response_iu_len: rsp.response_iu_len,
        immediate_offset: usable.then_some(offset),
        multichannel: match req.action {
            MultiChannelAction::Independent => MultiChannel::Keep,
            _ => MultiChannel::Terminate,
        },
        max_table_entries: u32::MAX,
    })
}

//! What a target decides about a login before it looks at its table of I_T nexuses.
use crate::iu::IuContext;
use crate::login::{
    BufferFormats, LoginRequest, LoginResponse, MIN_REQUEST_IU_LEN, MIN_RESPONSE_IU_LEN,
    MultiChannelAction, MultiChannelResult, RejectReason,
};

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
    /// Cap on the entries of an indirect table, from the policy.
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

//! SRP_RSP: how a command or a task management function ended.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | C1 |
//! | 1 | 1 | bit 0 SOLNT |
//! | 4 | 4 | REQUEST LIMIT DELTA, signed |
//! | 8 | 8 | TAG of the request |
//! | 18 | 1 | RSPVALID, SNSVALID, DOOVER, DOUNDER, DIOVER, DIUNDER |
//! | 19 | 1 | SCSI status |
//! | 20, 24 | 4 | DATA-OUT, DATA-IN residual count |
//! | 28, 32 | 4 | sense data length, response data length |
//! | 36 | r | response data: 3 reserved bytes, RSP_CODE |
//! | 36 + r | s | sense data |
use core::fmt;

use weir_wire::{Reader, Short, Writer};

use crate::iu::{IuError, IuType};
use crate::residual::{Residual, Residuals};
use crate::types::{EncodeError, Tag};

#[cfg(test)]
mod tests;

/// Bytes of a SRP_RSP before response data and sense data.
pub const RSP_LEN: usize = 36;
/// Bytes of response data as sent here.
pub const RESPONSE_DATA_LEN: usize = 4;

const RSPVALID: u8 = 0x01;
const SNSVALID: u8 = 0x02;
const DOOVER: u8 = 0x04;
const DOUNDER: u8 = 0x08;
const DIOVER: u8 = 0x10;
const DIUNDER: u8 = 0x20;

/// RSP_CODE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RspCode {
    /// 0: no failure, or the task management function is complete.
    Complete,
    /// 2: request fields invalid.
    FieldsInvalid,
    /// 4: task management function not supported.
    TmfUnsupported,
    /// 5: task management function failed.
    TmfFailed,
    /// Any other value.
    Other(u8),
}

impl RspCode {
    /// From the byte.
    pub fn from_code(c: u8) -> Self {
        match c {
            0 => RspCode::Complete,
            2 => RspCode::FieldsInvalid,
            4 => RspCode::TmfUnsupported,
            5 => RspCode::TmfFailed,
            n => RspCode::Other(n),
        }
    }

    /// The byte.
    pub fn code(self) -> u8 {
        match self {
            RspCode::Complete => 0,
            RspCode::FieldsInvalid => 2,
            RspCode::TmfUnsupported => 4,
            RspCode::TmfFailed => 5,
            RspCode::Other(n) => n,
        }
    }
}

impl fmt::Display for RspCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RspCode::Complete => "complete",
            RspCode::FieldsInvalid => "request fields invalid",
            RspCode::TmfUnsupported => "task management function not supported",
            RspCode::TmfFailed => "task management function failed",
            RspCode::Other(n) => return write!(f, "response code {n}"),
        })
    }
}

/// SRP_RSP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Response<'a> {
    /// TAG of the request.
    pub tag: Tag,
    /// SCSI status; 0 when `code` is present.
    pub status: u8,
    /// REQUEST LIMIT DELTA: credits given back.
    pub delta: i32,
    /// SOLNT: raise a solicited event.
    pub solicited: bool,
    /// RSP_CODE, when there is response data.
    pub code: Option<RspCode>,
    /// DATA-OUT residual.
    pub out_residual: Residual,
    /// DATA-IN residual.
    pub in_residual: Residual,
    /// Sense data; empty for none.
    pub sense: &'a [u8],
}

/// A SRP_RSP that says no more than how a command ended: no residual, sense data or response data.
///
/// It fits registers, which the whole [`Response`] does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plain {
    /// TAG of the request.
    pub tag: Tag,
    /// SCSI status.
    pub status: u8,
    /// REQUEST LIMIT DELTA: credits given back.
    pub delta: i32,
    /// SOLNT.
    pub solicited: bool,
}

impl Plain {
    /// Reads a whole IU; `None` for every other kind, and for a response that says more.
    #[inline]
    pub fn decode(iu: &[u8]) -> Option<Plain> {
        let h = iu.first_chunk::<RSP_LEN>()?;
        // No valid bit is set: whatever the counts say, there is neither residual, sense nor code.
        if h[0] != IuType::Response.code() || h[18] != 0 {
            return None;
        }
        Some(Plain {
            tag: Tag::from_bytes([h[8], h[9], h[10], h[11], h[12], h[13], h[14], h[15]]),
            status: h[19],
            delta: i32::from_be_bytes([h[4], h[5], h[6], h[7]]),
            solicited: h[1] & 1 != 0,
        })
    }
}

impl<'a> Response<'a> {
    /// The end of a SCSI command.
    pub fn scsi(tag: Tag, status: u8, delta: i32) -> Self {
        Response {
            tag,
            status,
            delta,
            solicited: false,
            code: None,
            out_residual: Residual::None,
            in_residual: Residual::None,
            sense: &[],
        }
    }

    /// The end of a task management function, or of a request that could not be understood.
    pub fn code(tag: Tag, code: RspCode, delta: i32) -> Self {
        Response { code: Some(code), ..Response::scsi(tag, 0, delta) }
    }

    /// With sense data.
    pub fn with_sense(mut self, sense: &'a [u8]) -> Self {
        self.sense = sense;
        self
    }

    /// With residuals.
    pub fn with_residuals(mut self, r: Residuals) -> Self {
        (self.out_residual, self.in_residual) = (r.data_out, r.data_in);
        self
    }

    /// Writes the IU from the start of `out` and returns its length. Sense data is cut so that the
    /// IU stays within `max_len`, the negotiated target-to-initiator length, and within `out`.
    #[inline]
    pub fn encode(&self, out: &mut [u8], max_len: usize) -> Result<usize, EncodeError> {
        if self.is_plain()
            && max_len >= RSP_LEN
            && let Some(iu) = out.first_chunk_mut::<RSP_LEN>()
        {
            *iu = self.plain();
            return Ok(RSP_LEN);
        }
        let got = out.len().min(max_len);
        let response_len = if self.code.is_some() { RESPONSE_DATA_LEN } else { 0 };
        let needed = RSP_LEN + response_len;
        let Some(room) = got.checked_sub(needed) else {
            return Err(EncodeError::TooSmall { needed, got });
        };
        let sense = self.sense.get(..room).unwrap_or(self.sense);
        let mut valid = 0;
        if self.code.is_some() {
            valid |= RSPVALID;
        }
        if !sense.is_empty() {
            valid |= SNSVALID;
        }
        valid |= match self.out_residual {
            Residual::None => 0,
            Residual::Over(_) => DOOVER,
            Residual::Under(_) => DOUNDER,
        };
        valid |= match self.in_residual {
            Residual::None => 0,
            Residual::Over(_) => DIOVER,
            Residual::Under(_) => DIUNDER,
        };
        let mut w = Writer::new(out);
        w.u8(IuType::Response.code())?.u8(self.solicited as u8)?.zeros(2)?;
        w.u32(self.delta as u32)?.put(&self.tag.to_bytes())?;
        w.zeros(2)?.u8(valid)?.u8(self.status)?;
        w.u32(self.out_residual.count())?.u32(self.in_residual.count())?;
        // Both lengths are bounded by the length of an IU.
        w.u32(sense.len() as u32)?.u32(response_len as u32)?;
        if let Some(code) = self.code {
            w.zeros(3)?.u8(code.code())?;
        }
        w.put(sense)?;
        Ok(w.len())
    }

    /// Nothing but a status and credits.
    #[inline]
    fn is_plain(&self) -> bool {
        self.code.is_none()
            && self.sense.is_empty()
            && self.out_residual == Residual::None
            && self.in_residual == Residual::None
    }

    /// The IU of a command that ended with GOOD and moved all its data. Any agreed length has room for it.
    #[inline]
    pub fn good(tag: Tag, delta: i32, solicited: bool) -> [u8; RSP_LEN] {
        let mut r = Response::scsi(tag, 0, delta);
        r.solicited = solicited;
        r.plain()
    }

    #[inline]
    fn plain(&self) -> [u8; RSP_LEN] {
        let mut iu = [0; RSP_LEN];
        let kind = u64::from(IuType::Response.code()) << 56 | u64::from(self.solicited) << 48;
        iu[..8].copy_from_slice(&(kind | u64::from(self.delta as u32)).to_be_bytes());
        iu[8..16].copy_from_slice(&self.tag.to_bytes());
        iu[16..24].copy_from_slice(&(u64::from(self.status) << 32).to_be_bytes());
        iu
    }

    /// Reads a SRP_RSP. Sense data that does not fit the bytes received is cut; lengths without
    /// their valid bit count as 0. With both residual bits of a direction, underflow is believed.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Result<Self, IuError> {
        Self::fields(bytes).map_err(|s| IuError::Short {
            iu: IuType::Response,
            needed: s.offset.saturating_add(s.wanted).max(RSP_LEN),
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
        r.skip(2)?;
        let valid = r.u8()?;
        let status = r.u8()?;
        let (out_count, in_count) = (r.u32()?, r.u32()?);
        let (sense_len, response_len) = (r.u32()? as usize, r.u32()? as usize);
        let code = if valid & RSPVALID != 0 {
            // Fewer than 4 bytes say nothing; a task management function then counts as failed.
            r.take(response_len)?.get(3).map(|&c| RspCode::from_code(c))
        } else {
            None
        };
        let sense = if valid & SNSVALID != 0 {
            let rest = r.rest();
            rest.get(..sense_len).unwrap_or(rest)
        } else {
            &[]
        };
        let residual = |over, under, count| match () {
            () if valid & under != 0 => Residual::Under(count),
            () if valid & over != 0 => Residual::Over(count),
            () => Residual::None,
        };
        Ok(Response {
            tag,
            status,
            delta,
            solicited,
            code,
            out_residual: residual(DOOVER, DOUNDER, out_count),
            in_residual: residual(DIOVER, DIUNDER, in_count),
            sense,
        })
    }
}

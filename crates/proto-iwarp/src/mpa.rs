//! MPA start-up: the request and reply frames (RFC 5044 section 7.1, RFC 6581 section 6).

mod negotiate;

pub use negotiate::{
    CrcPolicy, Negotiated, Policy, Refusal, Reject, Rtr, conclude, reject, respond,
};

use crate::terminate::Code;
use weir_wire::Reader;

/// Bytes before the private data.
pub const HEADER: usize = 20;
/// Most bytes PD_Length may announce, IRD/ORD words included (RFC 5044 section 7.1.1).
pub const MAX_PRIVATE: usize = 512;
/// Most private data, without the IRD/ORD words, that Linux siw takes in either direction.
pub const SIW_MAX_PRIVATE: usize = 251;
/// IRD or ORD value that means "not negotiated here" (RFC 6581); also the largest that fits.
pub const DEPTH_UNSPECIFIED: u16 = 0x3fff;

const REQUEST_KEY: &[u8; 16] = b"MPA ID Req Frame";
const REPLY_KEY: &[u8; 16] = b"MPA ID Rep Frame";
const FLAG_MARKERS: u8 = 0x80;
const FLAG_CRC: u8 = 0x40;
const FLAG_REJECT: u8 = 0x20;
const FLAG_ENHANCED: u8 = 0x10;
/// Control bits A..D in the IRD and ORD words.
const WORD_HIGH: u16 = 0x8000;
const WORD_LOW: u16 = 0x4000;

/// Which of the two frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// From the side that opened the TCP connection.
    Request,
    /// From the side that accepted it.
    Reply,
}

impl Kind {
    const fn key(self) -> &'static [u8; 16] {
        match self {
            Kind::Request => REQUEST_KEY,
            Kind::Reply => REPLY_KEY,
        }
    }
}

/// The IRD/ORD words of RFC 6581 (revision 2 with S set).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Enhanced {
    /// A: peer-to-peer model; the initiator opens RDMA mode with a "ready to receive" frame.
    pub peer_to_peer: bool,
    /// B: a zero-length Send may be that frame.
    pub rtr_send: bool,
    /// C: a zero-length RDMA Write may be.
    pub rtr_write: bool,
    /// D: a zero-length RDMA Read may be.
    pub rtr_read: bool,
    /// READs the sender of this frame can serve at once, 0..=0x3FFF.
    pub ird: u16,
    /// READs the sender of this frame will have outstanding, 0..=0x3FFF.
    pub ord: u16,
}

/// What the initiator asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// 1 (RFC 5044) or 2 (RFC 6581).
    pub revision: u8,
    /// M: the sender wants markers in what it receives.
    pub markers: bool,
    /// C: the sender wants CRCs.
    pub crc: bool,
    /// The IRD/ORD words, when S is set in a revision 2 frame.
    pub enhanced: Option<Enhanced>,
    /// The consumer's bytes, without the IRD/ORD words.
    pub private_data: Vec<u8>,
}

/// What the responder answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// 1 (RFC 5044) or 2 (RFC 6581).
    pub revision: u8,
    /// M: the sender wants markers in what it receives.
    pub markers: bool,
    /// C: CRCs are used in both directions.
    pub crc: bool,
    /// R: the connection is refused.
    pub reject: bool,
    /// The IRD/ORD words, when S is set in a revision 2 frame.
    pub enhanced: Option<Enhanced>,
    /// The consumer's bytes, without the IRD/ORD words.
    pub private_data: Vec<u8>,
}

/// Why a start-up frame cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The first 16 bytes are not the key of the expected frame.
    Key,
    /// PD_Length is above [`MAX_PRIVATE`].
    Length(u16),
    /// The bytes given are not exactly one frame.
    Truncated {
        /// Bytes the frame has.
        wanted: usize,
        /// Bytes given.
        got: usize,
    },
    /// S is set but PD_Length leaves no room for the IRD/ORD words.
    NoDepthWords(u16),
    /// Private data to send is too long: its length, limit in [`MAX_PRIVATE`].
    PrivateDataTooLong(usize),
    /// IRD or ORD to send does not fit 14 bits.
    Depth(u16),
    /// The revision is none that exists, or higher than the one asked for.
    Revision(u8),
    /// The reply has R set.
    Rejected,
    /// The reply asks for markers.
    Markers,
    /// The request had S set, the reply has not.
    NotEnhanced,
    /// The reply turns CRCs off, which the policy forbids.
    NoCrc,
    /// The responder wants more READs outstanding than the initiator offered to serve.
    InsufficientIrd {
        /// The reply's ORD.
        wanted: u16,
        /// The request's IRD.
        offered: u16,
    },
    /// Peer-to-peer was asked for and the reply chose no offered RTR frame.
    NoRtr,
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Error::Key => f.write_str("not an MPA start-up frame: wrong key"),
            Error::Length(n) => {
                write!(f, "MPA frame announces {n} bytes of private data, limit {MAX_PRIVATE}")
            }
            Error::Truncated { wanted, got } => {
                write!(f, "MPA frame of {wanted} bytes, but {got} bytes given")
            }
            Error::NoDepthWords(n) => {
                write!(f, "MPA frame has S set but only {n} bytes for the IRD/ORD words")
            }
            Error::PrivateDataTooLong(n) => {
                write!(f, "{n} bytes of private data do not fit an MPA frame")
            }
            Error::Depth(n) => write!(f, "read depth {n} does not fit 14 bits"),
            Error::Revision(n) => write!(f, "MPA revision {n} cannot be used"),
            Error::Rejected => f.write_str("the peer rejected the connection"),
            Error::Markers => f.write_str("the peer asks for MPA markers, which are not offered"),
            Error::NotEnhanced => f.write_str("the peer answered without the IRD/ORD words"),
            Error::NoCrc => f.write_str("the peer does not use CRCs, which are required here"),
            Error::InsufficientIrd { wanted, offered } => {
                write!(f, "the peer wants {wanted} RDMA READs outstanding, {offered} were offered")
            }
            Error::NoRtr => f.write_str("the peer chose none of the offered RTR frames"),
        }
    }
}

impl std::error::Error for Error {}

impl Error {
    /// What a Terminate sent for this error says; `None` where the connection is only closed.
    pub fn terminate(&self) -> Option<Code> {
        match self {
            Error::Key | Error::Length(_) | Error::Revision(_) | Error::NoDepthWords(_) => {
                Some(Code::MPA_STARTUP)
            }
            Error::InsufficientIrd { .. } => Some(Code::MPA_IRD),
            Error::NoRtr => Some(Code::MPA_RTR),
            _ => None,
        }
    }
}

/// How many bytes the frame that starts with `bytes` has in all. `Ok(None)`: at least [`HEADER`]
/// bytes are needed to say. A wrong key is found as early as its first wrong byte.
pub fn frame_len(bytes: &[u8], kind: Kind) -> Result<Option<usize>, Error> {
    let key = kind.key();
    let n = bytes.len().min(key.len());
    if bytes[..n] != key[..n] {
        return Err(Error::Key);
    }
    let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
    let pd = u16::from_be_bytes([header[18], header[19]]);
    if usize::from(pd) > MAX_PRIVATE {
        return Err(Error::Length(pd));
    }
    Ok(Some(HEADER + usize::from(pd)))
}

struct Frame {
    flags: u8,
    revision: u8,
    enhanced: Option<Enhanced>,
    private_data: Vec<u8>,
}

fn decode(bytes: &[u8], kind: Kind) -> Result<Frame, Error> {
    let wanted = frame_len(bytes, kind)?.unwrap_or(HEADER);
    let truncated = Error::Truncated { wanted, got: bytes.len() };
    if bytes.len() != wanted {
        return Err(truncated);
    }
    let mut r = Reader::new(bytes);
    r.skip(16).map_err(|_| truncated)?;
    let flags = r.u8().map_err(|_| truncated)?;
    let revision = r.u8().map_err(|_| truncated)?;
    let pd = r.u16().map_err(|_| truncated)?;
    // The S bit was reserved, and not checked, before revision 2.
    let enhanced = if revision >= 2 && flags & FLAG_ENHANCED != 0 {
        let short = |_| Error::NoDepthWords(pd);
        Some(Enhanced::decode(r.u16().map_err(short)?, r.u16().map_err(short)?))
    } else {
        None
    };
    Ok(Frame { flags, revision, enhanced, private_data: r.rest().to_vec() })
}

fn encode(kind: Kind, f: &Frame) -> Result<Vec<u8>, Error> {
    let words = if f.enhanced.is_some() { 4 } else { 0 };
    let pd = f.private_data.len() + words;
    if pd > MAX_PRIVATE {
        return Err(Error::PrivateDataTooLong(f.private_data.len()));
    }
    let mut out = Vec::with_capacity(HEADER + pd);
    out.extend_from_slice(kind.key());
    out.push(f.flags | if f.enhanced.is_some() { FLAG_ENHANCED } else { 0 });
    out.push(f.revision);
    out.extend_from_slice(&(pd as u16).to_be_bytes());
    if let Some(e) = &f.enhanced {
        let (ird, ord) = e.encode()?;
        out.extend_from_slice(&ird.to_be_bytes());
        out.extend_from_slice(&ord.to_be_bytes());
    }
    out.extend_from_slice(&f.private_data);
    Ok(out)
}

const fn flag(on: bool, bit: u8) -> u8 {
    if on { bit } else { 0 }
}

impl Enhanced {
    fn decode(ird: u16, ord: u16) -> Enhanced {
        Enhanced {
            peer_to_peer: ird & WORD_HIGH != 0,
            rtr_send: ird & WORD_LOW != 0,
            rtr_write: ord & WORD_HIGH != 0,
            rtr_read: ord & WORD_LOW != 0,
            ird: ird & DEPTH_UNSPECIFIED,
            ord: ord & DEPTH_UNSPECIFIED,
        }
    }

    fn encode(&self) -> Result<(u16, u16), Error> {
        if let Some(n) = [self.ird, self.ord].into_iter().find(|n| *n > DEPTH_UNSPECIFIED) {
            return Err(Error::Depth(n));
        }
        let bit = |on, bit| if on { bit } else { 0 };
        Ok((
            self.ird | bit(self.peer_to_peer, WORD_HIGH) | bit(self.rtr_send, WORD_LOW),
            self.ord | bit(self.rtr_write, WORD_HIGH) | bit(self.rtr_read, WORD_LOW),
        ))
    }
}

impl Request {
    /// Reads exactly one frame, as long as [`frame_len`] says.
    pub fn decode(bytes: &[u8]) -> Result<Request, Error> {
        let f = decode(bytes, Kind::Request)?;
        Ok(Request {
            revision: f.revision,
            markers: f.flags & FLAG_MARKERS != 0,
            crc: f.flags & FLAG_CRC != 0,
            enhanced: f.enhanced,
            private_data: f.private_data,
        })
    }

    /// The frame's bytes. Fails when private data or depths do not fit the format.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        encode(
            Kind::Request,
            &Frame {
                flags: flag(self.markers, FLAG_MARKERS) | flag(self.crc, FLAG_CRC),
                revision: self.revision,
                enhanced: self.enhanced,
                private_data: self.private_data.clone(),
            },
        )
    }
}

impl Reply {
    /// Reads exactly one frame, as long as [`frame_len`] says.
    pub fn decode(bytes: &[u8]) -> Result<Reply, Error> {
        let f = decode(bytes, Kind::Reply)?;
        Ok(Reply {
            revision: f.revision,
            markers: f.flags & FLAG_MARKERS != 0,
            crc: f.flags & FLAG_CRC != 0,
            reject: f.flags & FLAG_REJECT != 0,
            enhanced: f.enhanced,
            private_data: f.private_data,
        })
    }

    /// The frame's bytes. Fails when private data or depths do not fit the format.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        encode(
            Kind::Reply,
            &Frame {
                flags: flag(self.markers, FLAG_MARKERS)
                    | flag(self.crc, FLAG_CRC)
                    | flag(self.reject, FLAG_REJECT),
                revision: self.revision,
                enhanced: self.enhanced,
                private_data: self.private_data.clone(),
            },
        )
    }
}

#[cfg(test)]
mod tests;

//! What the machines of two nodes say to each other about one pool.
//!
//! # Format 1
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `WBTq` a beat, `WBTr` a grant |
//! | 4 | 1 | format: 1 |
//! | 5 | 3 | 0 |
//! | 8 | 16 | pool |
//! | 24 | 8 | life of the owner |
//! | 32 | 8 | when the beat was sent, by the owner's clock, in nanoseconds |
//! | 40 | 4 | owner epoch |
//! | 44 | 4 | 0 |
//!
//! Little-endian. They travel in a session that has proved who is at its ends; here nothing is proved.

use crate::ids::{Epoch, Life};
use crate::register::{u32_at, u64_at};
use core::fmt;
use weir_base::Nanos;

/// Bytes of a message.
pub const LEN: usize = 48;
const BEAT: [u8; 4] = *b"WBTq";
const GRANT: [u8; 4] = *b"WBTr";
const FORMAT: u8 = 1;

/// A beat as its owner sent it; a grant carries it back unchanged, so that the lease begins when the beat was *sent*.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Beat {
    /// Under which the sender owns the pool.
    pub epoch: Epoch,
    /// Of the sender.
    pub life: Life,
    /// By the sender's clock.
    pub sent: Nanos,
}

/// A message of one machine to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Message {
    /// The owner lives.
    Beat(Beat),
    /// The partner heard this beat, and promises to leave the owner alone for the time of a lease.
    Grant(Beat),
}

/// Why bytes are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageError {
    /// They are none.
    NotOne,
    /// Of a format that this program does not know.
    Format(u8),
    /// So many bytes, which the format has not.
    Length(usize),
    /// Bytes that are to be 0 are not.
    Reserved,
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MessageError::NotOne => f.write_str("this is neither a beat nor a grant"),
            MessageError::Format(n) => write!(f, "format {n} of beats is not known here"),
            MessageError::Length(n) => write!(f, "a beat has {LEN} bytes, not {n}"),
            MessageError::Reserved => f.write_str("reserved bytes of a beat are not 0"),
        }
    }
}

impl std::error::Error for MessageError {}

impl Message {
    /// Writes it, as one about this pool.
    pub fn encode(&self, pool: u128) -> [u8; LEN] {
        let (magic, beat) = match self {
            Message::Beat(b) => (BEAT, b),
            Message::Grant(b) => (GRANT, b),
        };
        let mut b = [0; LEN];
        b[..4].copy_from_slice(&magic);
        b[4] = FORMAT;
        b[8..24].copy_from_slice(&pool.to_le_bytes());
        b[24..32].copy_from_slice(&beat.life.0.to_le_bytes());
        b[32..40].copy_from_slice(&beat.sent.to_le_bytes());
        b[40..44].copy_from_slice(&beat.epoch.0.to_le_bytes());
        b
    }

    /// Reads one, and the pool that it is about.
    ///
    /// # Errors
    /// It is none.
    pub fn decode(b: &[u8]) -> Result<(u128, Message), MessageError> {
        let kind = match b.get(..4) {
            Some(m) if m == BEAT => Message::Beat,
            Some(m) if m == GRANT => Message::Grant,
            _ => return Err(MessageError::NotOne),
        };
        if b.len() != LEN {
            return Err(MessageError::Length(b.len()));
        }
        if b[4] != FORMAT {
            return Err(MessageError::Format(b[4]));
        }
        if b[5..8] != [0; 3] || b[44..] != [0; 4] {
            return Err(MessageError::Reserved);
        }
        let pool = u128::from(u64_at(b, 8)) | u128::from(u64_at(b, 16)) << 64;
        let beat =
            Beat { epoch: Epoch(u32_at(b, 40)), life: Life(u64_at(b, 24)), sent: u64_at(b, 32) };
        Ok((pool, kind(beat)))
    }
}

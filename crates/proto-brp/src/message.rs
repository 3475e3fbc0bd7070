//! The header of every message, and its checksum.

use crate::types::{u16_at, u32_at};
use core::fmt;

/// Bytes of a header.
pub const HEADER: usize = 16;
/// The control part of a message (all but inline data) is a multiple of so many bytes.
pub const ALIGN: usize = 8;
/// A receive buffer of either side holds at least so many bytes.
pub const MIN_MESSAGE: usize = 1024;
/// Length in bytes from which on a message gets no further command or completion. A receiver of a byte stream takes
/// messages whole from what it has received; of one that goes on beyond that, the data is copied once more.
pub const ENOUGH: usize = 18 << 10;
/// Bytes of the checksum, with which every message begins: it covers the control part behind it.
const CHECK: usize = 4;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// To the target: commands.
    Commands = 0x01,
    /// To the target: commands that are to end without further effect.
    Abort = 0x02,
    /// To the target: is anybody there?
    Ping = 0x03,
    /// To the target: the last event has been taken note of.
    EventAck = 0x04,
    /// To the target: the session ends.
    Logout = 0x05,
    /// To the target: the proof of a keyed login, the first message of its connection.
    Hello = 0x06,
    /// To the initiator: completions, or only credits.
    Completions = 0x81,
    /// To the initiator: the answer to a ping.
    Pong = 0x83,
    /// To the initiator: something happened.
    Event = 0x84,
    /// To the initiator: the channel is about to be closed, and why.
    Goodbye = 0x85,
    /// To the initiator: the response of a keyed login, with the target's proof.
    Welcome = 0x86,
    /// To the initiator: a keyed login is refused; flags: reason of the reject.
    Refused = 0x87,
}

impl Kind {
    /// From the number on the wire.
    #[inline]
    pub fn from_code(code: u8) -> Option<Kind> {
        Some(match code {
            0x01 => Kind::Commands,
            0x02 => Kind::Abort,
            0x03 => Kind::Ping,
            0x04 => Kind::EventAck,
            0x05 => Kind::Logout,
            0x06 => Kind::Hello,
            0x81 => Kind::Completions,
            0x83 => Kind::Pong,
            0x84 => Kind::Event,
            0x85 => Kind::Goodbye,
            0x86 => Kind::Welcome,
            0x87 => Kind::Refused,
            _ => return None,
        })
    }

    /// True for messages that a target receives.
    pub fn is_to_target(self) -> bool {
        (self as u8) < 0x80
    }
}

/// Why a message cannot be understood. The connection ends by it: its sender is broken, or the wire is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageError {
    /// Shorter than its parts.
    Short {
        /// Bytes that its parts need.
        needed: usize,
        /// Bytes that came.
        got: usize,
    },
    /// Longer than its parts.
    Long {
        /// Bytes of its parts.
        needed: usize,
        /// Bytes that came.
        got: usize,
    },
    /// No message of this kind goes in this direction.
    Kind(u8),
    /// The control part does not fit its checksum: it was changed on its way.
    Check {
        /// As in the message.
        stored: u32,
        /// Of what came.
        computed: u32,
    },
    /// The parts of its entries do not add up to those of the header.
    Counts(&'static str),
    /// It has no entries, and its kind must have some.
    Empty,
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MessageError::Short { needed, got } => {
                write!(f, "message of {got} bytes, its parts need {needed}")
            }
            MessageError::Long { needed, got } => {
                write!(f, "message of {got} bytes, its parts are only {needed}")
            }
            MessageError::Kind(k) => {
                write!(f, "no message of kind {k:#04x} goes in this direction")
            }
            MessageError::Check { stored, computed } => {
                write!(
                    f,
                    "message was changed on its way (checksum {stored:08x}, of the bytes {computed:08x})"
                )
            }
            MessageError::Counts(what) => write!(f, "the message's {what} do not add up"),
            MessageError::Empty => f.write_str("the message has no entries"),
        }
    }
}

impl std::error::Error for MessageError {}

/// The header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the message is.
    pub kind: Kind,
    /// Meaning by kind; 0 where none is given.
    pub flags: u8,
    /// Entries; other kinds give it a meaning of their own.
    pub count: u16,
    /// Commands: descriptors. Completions, Pong, Event: credits given back.
    pub extra: u16,
    /// Checksums behind the entries and descriptors.
    pub sums: u16,
    /// Bytes of inline data behind the control part.
    pub data: u32,
}

impl Header {
    /// A header without any part.
    pub fn new(kind: Kind) -> Header {
        Header { kind, flags: 0, count: 0, extra: 0, sums: 0, data: 0 }
    }

    /// Reads the header of a message in this direction.
    ///
    /// # Errors
    /// Too short, or of a kind that does not go that way.
    #[inline]
    pub fn decode(bytes: &[u8], to_target: bool) -> Result<Header, MessageError> {
        if bytes.len() < HEADER {
            return Err(MessageError::Short { needed: HEADER, got: bytes.len() });
        }
        let code = bytes[4];
        match Kind::from_code(code) {
            Some(kind) if kind.is_to_target() == to_target => Ok(Header {
                kind,
                flags: bytes[5],
                count: u16_at(bytes, 6),
                extra: u16_at(bytes, 8),
                sums: u16_at(bytes, 10),
                data: u32_at(bytes, 12),
            }),
            _ => Err(MessageError::Kind(code)),
        }
    }

    /// Writes the header with a checksum of 0.
    #[inline]
    pub fn encode(&self) -> [u8; HEADER] {
        let mut b = [0; HEADER];
        b[4] = self.kind as u8;
        b[5] = self.flags;
        b[6..8].copy_from_slice(&self.count.to_le_bytes());
        b[8..10].copy_from_slice(&self.extra.to_le_bytes());
        b[10..12].copy_from_slice(&self.sums.to_le_bytes());
        b[12..16].copy_from_slice(&self.data.to_le_bytes());
        b
    }

    /// A whole message that is only a header.
    pub fn alone(&self, check: bool) -> [u8; HEADER] {
        let mut b = self.encode();
        if check {
            seal(&mut b);
        }
        b
    }
}

/// Rounds the length of a control part up.
#[inline]
pub const fn aligned(len: usize) -> usize {
    (len + ALIGN - 1) & !(ALIGN - 1)
}

/// The checksum of a control part: CRC32C of what follows the checksum itself.
#[inline]
pub fn check_of(control: &[u8]) -> u32 {
    weir_codec::crc32c(control.get(CHECK..).unwrap_or(&[]))
}

/// Writes the checksum into a control part.
///
/// # Panics
/// When it is shorter than a header.
#[inline]
pub fn seal(control: &mut [u8]) {
    let c = check_of(control);
    control[..CHECK].copy_from_slice(&c.to_le_bytes());
}

/// Splits a message into control part and inline data, and checks the control part where that was agreed.
///
/// # Errors
/// Lengths do not fit, or the control part was changed on its way.
#[inline]
pub(crate) fn split(
    bytes: &[u8],
    control: usize,
    data: u32,
    check: bool,
) -> Result<(&[u8], &[u8]), MessageError> {
    let needed = control.saturating_add(data as usize);
    if bytes.len() < needed {
        return Err(MessageError::Short { needed, got: bytes.len() });
    }
    if bytes.len() > needed {
        return Err(MessageError::Long { needed, got: bytes.len() });
    }
    let (head, data) = bytes.split_at(control);
    if check {
        let (stored, computed) = (u32_at(head, 0), check_of(head));
        if stored != computed {
            return Err(MessageError::Check { stored, computed });
        }
    }
    Ok((head, data))
}

//! Messages that carry no command: aborts, events, and those that are only a header.

use crate::message::{HEADER, Header, Kind, MessageError, aligned, seal, split};
use crate::types::{u16_at, u32_at, u64_at};

/// Bytes of an abort.
pub const ABORT: usize = 8;
/// Bytes of an event.
pub const EVENT: usize = 16;

/// A command that is to end without further effect. Its own completion tells how it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abort {
    /// Its slot.
    pub tag: u16,
    /// Its number in the slot.
    pub seq: u32,
}

impl Abort {
    /// A whole message with one abort.
    pub fn message(&self, check: bool) -> [u8; HEADER + ABORT] {
        let mut b = [0; HEADER + ABORT];
        b[..HEADER].copy_from_slice(&Header { count: 1, ..Header::new(Kind::Abort) }.encode());
        b[HEADER..HEADER + 2].copy_from_slice(&self.tag.to_le_bytes());
        b[HEADER + 4..].copy_from_slice(&self.seq.to_le_bytes());
        if check {
            seal(&mut b);
        }
        b
    }

    /// The aborts of a message.
    ///
    /// # Errors
    /// It has none, its length does not fit, or it was changed on its way.
    pub fn decode_all<'a>(
        header: &Header,
        bytes: &'a [u8],
        integrity: bool,
    ) -> Result<impl Iterator<Item = Abort> + 'a, MessageError> {
        let part = entries::<ABORT>(header, bytes, integrity)?;
        Ok(part.iter().map(|b| Abort { tag: u16_at(b, 0), seq: u32_at(b, 4) }))
    }
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// A volume has another size: the value, in bytes.
    Resized = 1,
    /// This path to a volume has another state: the low byte of the value.
    PathState = 2,
    /// The list of volumes has changed.
    Volumes = 3,
    /// The target is about to end in order.
    Leaving = 4,
    /// Data of a volume was found changed: the value is the address of the first bad piece.
    Damage = 5,
}

impl EventKind {
    /// From the number on the wire.
    pub fn from_code(code: u8) -> Option<EventKind> {
        Some(match code {
            1 => EventKind::Resized,
            2 => EventKind::PathState,
            3 => EventKind::Volumes,
            4 => EventKind::Leaving,
            5 => EventKind::Damage,
            _ => return None,
        })
    }
}

/// An event. Unknown kinds are passed over by the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Number of the kind; see [`EventKind`].
    pub kind: u8,
    /// Number of the volume, where one is meant.
    pub volume: u16,
    /// Meaning by kind.
    pub value: u64,
}

impl Event {
    /// Writes the event.
    pub fn encode(&self) -> [u8; EVENT] {
        let mut b = [0; EVENT];
        b[0] = self.kind;
        b[2..4].copy_from_slice(&self.volume.to_le_bytes());
        b[8..].copy_from_slice(&self.value.to_le_bytes());
        b
    }

    /// A whole message with these events and credits.
    pub fn message(all: &[Event], credits: u16, check: bool) -> Vec<u8> {
        let count = all.len() as u16;
        let header = Header { count, extra: credits, ..Header::new(Kind::Event) };
        let mut b = header.encode().to_vec();
        all.iter().for_each(|e| b.extend(e.encode()));
        if check {
            seal(&mut b);
        }
        b
    }

    /// The events of a message.
    ///
    /// # Errors
    /// It has none, its length does not fit, or it was changed on its way.
    pub fn decode_all<'a>(
        header: &Header,
        bytes: &'a [u8],
        integrity: bool,
    ) -> Result<impl Iterator<Item = Event> + 'a, MessageError> {
        let part = entries::<EVENT>(header, bytes, integrity)?;
        Ok(part.iter().map(|b| Event { kind: b[0], volume: u16_at(b, 2), value: u64_at(b, 8) }))
    }
}

fn entries<'a, const N: usize>(
    header: &Header,
    bytes: &'a [u8],
    integrity: bool,
) -> Result<&'a [[u8; N]], MessageError> {
    if header.sums != 0 || header.data != 0 {
        return Err(MessageError::Counts("parts"));
    }
    let control = aligned(HEADER + usize::from(header.count) * N);
    let (head, _) = split(bytes, control, 0, integrity)?;
    if header.count == 0 {
        return Err(MessageError::Empty);
    }
    Ok(head.get(HEADER..).unwrap_or(&[]).as_chunks().0)
}

/// Checks a message that is only a header.
///
/// # Errors
/// It is more, or was changed on its way.
pub fn check_alone(header: &Header, bytes: &[u8], integrity: bool) -> Result<(), MessageError> {
    if header.sums != 0 || header.data != 0 {
        return Err(MessageError::Counts("parts"));
    }
    split(bytes, HEADER, 0, integrity).map(|_| ())
}

/// Why a target closes a channel: the flags of GOODBYE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum GoodbyeReason {
    /// Something else.
    Unspecified = 0,
    /// The target ends in order.
    Leaving = 1,
    /// A message made no sense, or was changed on its way.
    Protocol = 2,
    /// The initiator was silent for too long.
    Silent = 3,
    /// A new session of the same initiator port takes its place, or the same channel has logged in anew.
    Replaced = 4,
    /// The initiator port has no business here any more.
    NotAllowed = 5,
}

impl GoodbyeReason {
    /// From the number on the wire; an unknown one is unspecified.
    pub fn from_code(code: u8) -> GoodbyeReason {
        match code {
            1 => GoodbyeReason::Leaving,
            2 => GoodbyeReason::Protocol,
            3 => GoodbyeReason::Silent,
            4 => GoodbyeReason::Replaced,
            5 => GoodbyeReason::NotAllowed,
            _ => GoodbyeReason::Unspecified,
        }
    }
}

//! Messages of commands.
//!
//! | part | bytes |
//! |---|---|
//! | header | 16 |
//! | commands | 32 each |
//! | descriptors of all commands, in their order | 16 each |
//! | checksums of all data that the commands bring or describe, in their order | 4 each |
//! | zeros up to a multiple of 8 | |
//! | inline data of all commands, in their order | |

use crate::completion;
use crate::message::{HEADER, Header, Kind, MessageError, aligned, split};
use crate::sums;
use crate::types::{Op, u16_at, u32_at, u64_at};

/// Bytes of a command.
pub const COMMAND: usize = 32;
/// Bytes of a descriptor.
pub const DESCRIPTOR: usize = 16;
/// Bytes of a checksum.
pub const SUM: usize = 4;

/// Flags of a command.
pub mod flag {
    /// On the medium before it completes.
    pub const FUA: u8 = 1;
    /// Its data is behind the control part of this message.
    pub const INLINE_OUT: u8 = 2;
    /// What it reads is to come behind the completion.
    pub const INLINE_IN: u8 = 4;
    /// Sent again after a loss of the channel.
    pub const REPLAY: u8 = 8;
    /// Read into memory that nobody else writes before it is summed and sent.
    pub const STABLE: u8 = 16;
    /// WRITE ZEROES may give space back.
    pub const UNMAP: u8 = 32;
}

/// A command: one bio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    /// Number of the operation; see [`Op`].
    pub op: u8,
    /// See [`flag`].
    pub flags: u8,
    /// The slot.
    pub tag: u16,
    /// Number of the command among those of its slot.
    pub seq: u32,
    /// First byte on the volume; LIST: number of the first entry wanted.
    pub offset: u64,
    /// Bytes; COMPARE AND WRITE: of each half.
    pub len: u32,
    /// Number of the volume.
    pub volume: u16,
    /// Descriptors of it in the list.
    pub segments: u16,
    /// The volume's guard, from its description; ignored by LIST and by GEOMETRY.
    pub guard: u32,
}

impl Command {
    /// Writes the command.
    #[inline]
    pub fn encode(&self) -> [u8; COMMAND] {
        let mut b = [0; COMMAND];
        b[0] = self.op;
        b[1] = self.flags;
        b[2..4].copy_from_slice(&self.tag.to_le_bytes());
        b[4..8].copy_from_slice(&self.seq.to_le_bytes());
        b[8..16].copy_from_slice(&self.offset.to_le_bytes());
        b[16..20].copy_from_slice(&self.len.to_le_bytes());
        b[20..22].copy_from_slice(&self.volume.to_le_bytes());
        b[22..24].copy_from_slice(&self.segments.to_le_bytes());
        b[24..28].copy_from_slice(&self.guard.to_le_bytes());
        b
    }

    /// Reads a command. Any 32 bytes are one.
    #[inline]
    pub fn decode(b: &[u8; COMMAND]) -> Command {
        Command {
            op: b[0],
            flags: b[1],
            tag: u16_at(b, 2),
            seq: u32_at(b, 4),
            offset: u64_at(b, 8),
            len: u32_at(b, 16),
            volume: u16_at(b, 20),
            segments: u16_at(b, 22),
            guard: u32_at(b, 24),
        }
    }

    /// The operation, if there is one of this number.
    #[inline]
    pub fn operation(&self) -> Option<Op> {
        Op::from_code(self.op)
    }

    /// Whether flag `f` is set.
    #[inline]
    pub fn has(&self, f: u8) -> bool {
        self.flags & f != 0
    }

    /// Bytes of data that it brings, inline or described.
    #[inline]
    pub fn data_out(&self) -> u64 {
        match self.operation() {
            Some(Op::Write) => u64::from(self.len),
            Some(Op::CompareAndWrite) => 2 * u64::from(self.len),
            _ => 0,
        }
    }

    /// Bytes of data that it wants.
    #[inline]
    pub fn data_in(&self) -> u64 {
        match self.operation() {
            Some(Op::Read | Op::Geometry | Op::List) => u64::from(self.len),
            _ => 0,
        }
    }

    /// Checksums that come with it where integrity was agreed: of its data, each half for itself.
    #[inline]
    pub fn sums_out(&self) -> usize {
        match self.operation() {
            Some(Op::Write) => sums::count(self.offset, u64::from(self.len)),
            Some(Op::CompareAndWrite) => 2 * sums::count(self.offset, u64::from(self.len)),
            _ => 0,
        }
    }

    /// Bytes of the message that its completion makes by itself, if it ends well and with all that it wants.
    #[inline]
    pub fn answer_len(&self, integrity: bool) -> u64 {
        let data = self.data_in();
        let sums = if integrity { sums::count(self.offset, data) } else { 0 };
        let described = self.operation() == Some(Op::Read) && !self.has(flag::INLINE_IN);
        let control = completion::Layout { completions: 1, sums }.control() as u64;
        control + if described { 0 } else { data }
    }

    /// Bytes behind the control part.
    #[inline]
    pub fn inline(&self) -> u64 {
        if self.has(flag::INLINE_OUT) { self.data_out() } else { 0 }
    }
}

/// A range of the initiator's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Descriptor {
    /// First byte.
    pub addr: u64,
    /// R_Key or STag.
    pub key: u32,
    /// Bytes.
    pub len: u32,
}

impl Descriptor {
    /// Writes the descriptor.
    #[inline]
    pub fn encode(&self) -> [u8; DESCRIPTOR] {
        let mut b = [0; DESCRIPTOR];
        b[..8].copy_from_slice(&self.addr.to_le_bytes());
        b[8..12].copy_from_slice(&self.key.to_le_bytes());
        b[12..].copy_from_slice(&self.len.to_le_bytes());
        b
    }

    /// Reads a descriptor. Any 16 bytes are one.
    #[inline]
    pub fn decode(b: &[u8; DESCRIPTOR]) -> Descriptor {
        Descriptor { addr: u64_at(b, 0), key: u32_at(b, 8), len: u32_at(b, 12) }
    }
}

/// Where the parts of a message of commands are, for whoever writes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Layout {
    /// Commands.
    pub commands: usize,
    /// Descriptors of all.
    pub descriptors: usize,
    /// Checksums of all.
    pub sums: usize,
}

impl Layout {
    /// Where the descriptors begin.
    #[inline]
    pub fn descriptors_at(&self) -> usize {
        HEADER + self.commands * COMMAND
    }

    /// Where the checksums begin.
    #[inline]
    pub fn sums_at(&self) -> usize {
        self.descriptors_at() + self.descriptors * DESCRIPTOR
    }

    /// Bytes of the control part.
    #[inline]
    pub fn control(&self) -> usize {
        aligned(self.sums_at() + self.sums * SUM)
    }

    /// The header of a message of this layout with so much inline data.
    #[inline]
    pub fn header(&self, data: u32) -> Header {
        Header {
            kind: Kind::Commands,
            flags: 0,
            count: self.commands as u16,
            extra: self.descriptors as u16,
            sums: self.sums as u16,
            data,
        }
    }
}

/// A message of commands that was received.
#[derive(Debug, Clone, Copy)]
pub struct Commands<'a> {
    commands: &'a [[u8; COMMAND]],
    descriptors: &'a [[u8; DESCRIPTOR]],
    sums: &'a [[u8; SUM]],
    /// Where inline data begins in the message.
    data_at: usize,
    integrity: bool,
}

/// A command of a message, with its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item<'a> {
    /// The command.
    pub command: Command,
    /// Its descriptors.
    pub descriptors: &'a [[u8; DESCRIPTOR]],
    /// Its checksums; none without integrity.
    pub sums: &'a [[u8; SUM]],
    /// Where its inline data begins in the message, and bytes of it.
    pub data: (usize, usize),
}

impl<'a> Commands<'a> {
    /// Reads a message whose header says that it is one of commands.
    ///
    /// # Errors
    /// It has none, its parts do not add up, or it was changed on its way.
    #[inline]
    pub fn decode(
        header: &Header,
        bytes: &'a [u8],
        integrity: bool,
    ) -> Result<Commands<'a>, MessageError> {
        let layout = Layout {
            commands: usize::from(header.count),
            descriptors: usize::from(header.extra),
            sums: usize::from(header.sums),
        };
        let (head, _) = split(bytes, layout.control(), header.data, integrity)?;
        if layout.commands == 0 {
            return Err(MessageError::Empty);
        }
        let part = |from: usize, to: usize| head.get(from..to).unwrap_or(&[]);
        let commands = part(HEADER, layout.descriptors_at()).as_chunks().0;
        let all = Commands {
            commands,
            descriptors: part(layout.descriptors_at(), layout.sums_at()).as_chunks().0,
            sums: part(layout.sums_at(), layout.sums_at() + layout.sums * SUM).as_chunks().0,
            data_at: layout.control(),
            integrity,
        };
        let (mut descriptors, mut sums, mut data) = (0usize, 0usize, 0u64);
        for c in commands {
            let c = Command::decode(c);
            descriptors += usize::from(c.segments);
            if integrity {
                sums = sums.saturating_add(c.sums_out());
            }
            data += c.inline();
        }
        if descriptors != layout.descriptors {
            return Err(MessageError::Counts("descriptors"));
        }
        if sums != layout.sums {
            return Err(MessageError::Counts("checksums"));
        }
        if data != u64::from(header.data) {
            return Err(MessageError::Counts("bytes of inline data"));
        }
        Ok(all)
    }

    /// Commands of the message.
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    /// True without a command, which no message is.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// The commands, one after the other.
    #[inline]
    pub fn iter(&self) -> Iter<'a> {
        Iter { rest: *self }
    }
}

/// The commands of a message.
#[derive(Debug, Clone)]
pub struct Iter<'a> {
    rest: Commands<'a>,
}

impl<'a> Iterator for Iter<'a> {
    type Item = Item<'a>;

    #[inline]
    fn next(&mut self) -> Option<Item<'a>> {
        let r = &mut self.rest;
        let (first, commands) = r.commands.split_first()?;
        let command = Command::decode(first);
        // The counts were added up before; were they wrong, parts would be short, not out of range.
        let (descriptors, more) =
            r.descriptors.split_at(usize::from(command.segments).min(r.descriptors.len()));
        let wanted = if r.integrity { command.sums_out() } else { 0 };
        let (sums, others) = r.sums.split_at(wanted.min(r.sums.len()));
        let data = (r.data_at, command.inline() as usize);
        (r.commands, r.descriptors, r.sums) = (commands, more, others);
        r.data_at += data.1;
        Some(Item { command, descriptors, sums, data })
    }
}

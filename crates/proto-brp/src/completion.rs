//! Messages of completions.
//!
//! | part | bytes |
//! |---|---|
//! | header | 16 |
//! | completions | 16 each |
//! | checksums of the data that the completed commands have read, in their order | 4 each |
//! | zeros up to a multiple of 8 | |
//! | inline data, in their order | |

use crate::command::SUM;
use crate::message::{HEADER, Header, Kind, MessageError, aligned, split};
use crate::types::{Status, u16_at, u32_at};

/// Bytes of a completion.
pub const COMPLETION: usize = 16;

/// Flags of a completion.
pub mod flag {
    /// The detail is the number of checksums that it has in the message.
    pub const SUMS: u8 = 1;
    /// The command had been done before it was sent again.
    pub const REPLAYED: u8 = 2;
    /// The data went from memory that others may have written to between its checksum and its sending.
    pub const LENT: u8 = 4;
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The slot.
    pub tag: u16,
    /// Number of the status; see [`Status`].
    pub status: u8,
    /// See [`flag`].
    pub flags: u8,
    /// Number of the command among those of its slot.
    pub seq: u32,
    /// Bytes of its data behind the control part.
    pub inline: u32,
    /// Meaning by status; with [`flag::SUMS`] the number of checksums.
    pub detail: u32,
}

impl Completion {
    /// An end without data.
    pub fn new(tag: u16, seq: u32, status: Status, detail: u32) -> Completion {
        Completion { tag, status: status as u8, flags: 0, seq, inline: 0, detail }
    }

    /// Writes the completion.
    #[inline]
    pub fn encode(&self) -> [u8; COMPLETION] {
        let mut b = [0; COMPLETION];
        b[..2].copy_from_slice(&self.tag.to_le_bytes());
        b[2] = self.status;
        b[3] = self.flags;
        b[4..8].copy_from_slice(&self.seq.to_le_bytes());
        b[8..12].copy_from_slice(&self.inline.to_le_bytes());
        b[12..].copy_from_slice(&self.detail.to_le_bytes());
        b
    }

    /// Reads a completion. Any 16 bytes are one.
    #[inline]
    pub fn decode(b: &[u8; COMPLETION]) -> Completion {
        Completion {
            tag: u16_at(b, 0),
            status: b[2],
            flags: b[3],
            seq: u32_at(b, 4),
            inline: u32_at(b, 8),
            detail: u32_at(b, 12),
        }
    }

    /// Checksums that it has in the message.
    #[inline]
    pub fn sums(&self) -> usize {
        if self.flags & flag::SUMS != 0 { self.detail as usize } else { 0 }
    }
}

/// Where the parts of a message of completions are, for whoever writes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Layout {
    /// Completions.
    pub completions: usize,
    /// Checksums of all.
    pub sums: usize,
}

impl Layout {
    /// Where the checksums begin.
    #[inline]
    pub fn sums_at(&self) -> usize {
        HEADER + self.completions * COMPLETION
    }

    /// Bytes of the control part.
    #[inline]
    pub fn control(&self) -> usize {
        aligned(self.sums_at() + self.sums * SUM)
    }

    /// The header of a message of this layout with so many credits and so much inline data.
    #[inline]
    pub fn header(&self, credits: u16, data: u32) -> Header {
        Header {
            kind: Kind::Completions,
            flags: 0,
            count: self.completions as u16,
            extra: credits,
            sums: self.sums as u16,
            data,
        }
    }
}

/// A message of completions that was received.
#[derive(Debug, Clone, Copy)]
pub struct Completions<'a> {
    completions: &'a [[u8; COMPLETION]],
    sums: &'a [[u8; SUM]],
    data: &'a [u8],
}

/// A completion of a message, with its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item<'a> {
    /// The completion.
    pub completion: Completion,
    /// Checksums of what was read.
    pub sums: &'a [[u8; SUM]],
    /// What was read, where it came inline.
    pub data: &'a [u8],
}

impl<'a> Completions<'a> {
    /// Reads a message whose header says that it is one of completions.
    ///
    /// # Errors
    /// Its parts do not add up, or it was changed on its way.
    #[inline]
    pub fn decode(
        header: &Header,
        bytes: &'a [u8],
        integrity: bool,
    ) -> Result<Completions<'a>, MessageError> {
        let layout =
            Layout { completions: usize::from(header.count), sums: usize::from(header.sums) };
        let (head, data) = split(bytes, layout.control(), header.data, integrity)?;
        let completions = head.get(HEADER..layout.sums_at()).unwrap_or(&[]).as_chunks().0;
        let sums = head.get(layout.sums_at()..).unwrap_or(&[]).as_chunks().0;
        let sums = sums.get(..layout.sums).unwrap_or(&[]);
        let (mut all_sums, mut all_data) = (0usize, 0u64);
        for c in completions {
            let c = Completion::decode(c);
            all_sums = all_sums.saturating_add(c.sums());
            all_data += u64::from(c.inline);
        }
        if all_sums != layout.sums {
            return Err(MessageError::Counts("checksums"));
        }
        if all_data != data.len() as u64 {
            return Err(MessageError::Counts("bytes of inline data"));
        }
        Ok(Completions { completions, sums, data })
    }

    /// Completions of the message.
    pub fn len(&self) -> usize {
        self.completions.len()
    }

    /// True for a message that only gives credits back.
    pub fn is_empty(&self) -> bool {
        self.completions.is_empty()
    }

    /// The completions, one after the other.
    #[inline]
    pub fn iter(&self) -> Iter<'a> {
        Iter { rest: *self }
    }
}

/// The completions of a message.
#[derive(Debug, Clone)]
pub struct Iter<'a> {
    rest: Completions<'a>,
}

impl<'a> Iterator for Iter<'a> {
    type Item = Item<'a>;

    #[inline]
    fn next(&mut self) -> Option<Item<'a>> {
        let r = &mut self.rest;
        let (first, completions) = r.completions.split_first()?;
        let completion = Completion::decode(first);
        let (sums, others) = r.sums.split_at(completion.sums().min(r.sums.len()));
        let (data, rest) = r.data.split_at((completion.inline as usize).min(r.data.len()));
        (r.completions, r.sums, r.data) = (completions, others, rest);
        Some(Item { completion, sums, data })
    }
}

//! SRP_CMD as the target reads it: nothing is copied, every length is checked against the IU.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | 02 |
//! | 1 | 1 | SCSOLNT, UCSOLNT |
//! | 5 | 1 | buffer formats: DATA-OUT high nibble, DATA-IN low nibble |
//! | 6, 7 | 1 | DATA-OUT, DATA-IN descriptor counts (indirect only) |
//! | 8 | 8 | TAG |
//! | 20 | 8 | LUN |
//! | 29 | 1 | task attribute |
//! | 31 | 1 | additional CDB length in dwords, bits 7:2 |
//! | 32 | 16 + n | CDB |
//! | 48 + n | | DATA-OUT, then DATA-IN descriptor area |
use core::fmt;

use weir_wire::{Reader, Short};

use crate::iu::{IuContext, IuError, IuType};
use crate::types::{
    DESCRIPTOR_LEN, Descriptor, DescriptorIter, DescriptorList, Direction, Solicit, Tag,
    TaskAttribute,
};

#[cfg(test)]
mod tests;

/// Bytes of a SRP_CMD before additional CDB bytes and descriptors.
pub const CMD_LEN: usize = 48;

/// Buffer format 0: no data in this direction.
pub(crate) const FORMAT_NONE: u8 = 0;
/// Buffer format 1: one direct descriptor.
pub(crate) const FORMAT_DIRECT: u8 = 1;
/// Buffer format 2: an indirect table, partly or wholly inline.
pub(crate) const FORMAT_INDIRECT: u8 = 2;
/// Buffer format 3 (SRP-2): the data itself, DATA-OUT only.
pub(crate) const FORMAT_IMMEDIATE: u8 = 3;

/// SRP_CMD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command<'a> {
    /// Names this request among those of the channel.
    pub tag: Tag,
    /// SAM eight-byte logical unit number, as a big-endian number.
    pub lun: u64,
    /// How the command orders itself among others.
    pub attribute: TaskAttribute,
    /// The CDB: 16 bytes and the additional ones (16 to 268, a multiple of 4).
    pub cdb: &'a [u8],
    /// Where DATA-OUT comes from.
    pub data_out: Buffer<'a>,
    /// Where DATA-IN goes.
    pub data_in: Buffer<'a>,
    /// Whether the answer raises a solicited event.
    pub solicit: Solicit,
}

/// The data buffer of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Buffer<'a> {
    /// No data.
    #[default]
    None,
    /// One range of the initiator's memory.
    Direct(Descriptor),
    /// A table of ranges.
    Indirect {
        /// Where the whole table lies in the initiator's memory; its length is `16 × entries`.
        table: Descriptor,
        /// Total data length that the initiator states, bytes; not more than the entries add up to
        /// as far as they are inline.
        total: u32,
        /// Entries of the whole table; at most the cap of the context.
        entries: u32,
        /// Its first entries, those the IU carries.
        inline: DescriptorList<'a>,
    },
    /// The data itself.
    Immediate {
        /// Bytes from the receive buffer, at the negotiated offset.
        data: &'a [u8],
    },
}

impl<'a> Buffer<'a> {
    /// Bytes of the initiator's buffer: the length that residuals are measured against.
    pub fn len(&self) -> u32 {
        match self {
            Buffer::None => 0,
            Buffer::Direct(d) => d.len,
            Buffer::Indirect { total, .. } => *total,
            // Its length was read from a 32-bit field.
            Buffer::Immediate { data } => data.len() as u32,
        }
    }

    /// True without data to move.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The part of an indirect table that the IU does not carry: what must be RDMA-read into the
    /// table's buffer, behind the inline entries. `None` when all is at hand.
    pub fn missing_table(&self) -> Option<Descriptor> {
        let Buffer::Indirect { table, inline, .. } = self else { return None };
        // At most 255 entries are inline.
        let have = (inline.len() * DESCRIPTOR_LEN) as u32;
        let len = table.len.checked_sub(have).filter(|&n| n > 0)?;
        // The decoder has checked that the table does not wrap.
        Some(Descriptor { addr: table.addr.wrapping_add(u64::from(have)), key: table.key, len })
    }

    /// The remote ranges that are at hand: the direct descriptor or the inline entries.
    pub fn descriptors(&self) -> Descriptors<'a> {
        match self {
            Buffer::Direct(d) => Descriptors::one(*d),
            Buffer::Indirect { inline, .. } => Descriptors::list(*inline),
            Buffer::None | Buffer::Immediate { .. } => Descriptors::default(),
        }
    }
}

/// Iterator over remote ranges, whether one stands alone or many in a list: one type for both.
#[derive(Debug, Clone, Default)]
pub struct Descriptors<'a> {
    one: Option<Descriptor>,
    list: Option<DescriptorIter<'a>>,
}

impl<'a> Descriptors<'a> {
    /// A single range.
    pub fn one(d: Descriptor) -> Self {
        Descriptors { one: Some(d), list: None }
    }

    /// The ranges of a list.
    pub fn list(l: DescriptorList<'a>) -> Self {
        Descriptors { one: None, list: Some(l.iter()) }
    }
}

impl Iterator for Descriptors<'_> {
    type Item = Descriptor;

    #[inline]
    fn next(&mut self) -> Option<Descriptor> {
        match self.one.take() {
            Some(d) => Some(d),
            None => self.list.as_mut()?.next(),
        }
    }
}

/// Which field of a SRP_CMD is invalid. The answer is a SRP_RSP with RSP_CODE 2 (request fields
/// invalid); the channel lives on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CmdError {
    /// A reserved task attribute.
    Attribute(u8),
    /// The additional CDB bytes run past the end of the IU.
    CdbTruncated {
        /// IU bytes wanted.
        needed: usize,
        /// IU bytes received.
        got: usize,
    },
    /// A reserved buffer format, or immediate data for DATA-IN.
    Format(Direction, u8),
    /// The descriptor area of this direction is wrong.
    Descriptor(Direction, DescriptorError),
}

/// What is wrong with a descriptor area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DescriptorError {
    /// It runs past the end of the IU.
    Truncated {
        /// IU bytes wanted.
        needed: usize,
        /// IU bytes received.
        got: usize,
    },
    /// A range runs past the end of the 64-bit address space.
    Wraps,
    /// The table length is no multiple of 16.
    TableLength(u32),
    /// More entries than this target accepts.
    TableTooLong {
        /// Entries of the table.
        entries: u32,
        /// The cap.
        max: u32,
    },
    /// More entries inline than the table has.
    CountExceedsTable {
        /// Descriptor count field.
        count: u8,
        /// Entries of the table.
        entries: u32,
    },
    /// The entries add up to less than the total length stated.
    TotalExceedsTable {
        /// Total length stated, bytes.
        total: u32,
        /// Sum of the entries, bytes.
        sum: u64,
    },
    /// Immediate data that was not negotiated at login.
    ImmediateNotNegotiated,
    /// Descriptors that end behind the immediate data offset.
    ImmediateOverlap {
        /// The negotiated offset.
        offset: u16,
        /// Where the descriptors end.
        end: usize,
    },
    /// Immediate data that ends behind the IU.
    ImmediateTruncated {
        /// IU bytes wanted.
        needed: u64,
        /// IU bytes received.
        got: usize,
    },
}

impl fmt::Display for CmdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CmdError::Attribute(a) => write!(f, "reserved task attribute {a}"),
            CmdError::CdbTruncated { needed, got } => {
                write!(f, "additional CDB bytes need an IU of {needed} bytes, {got} came")
            }
            CmdError::Format(d, n) => write!(f, "{d} buffer format {n} is not valid"),
            CmdError::Descriptor(d, e) => write!(f, "{d} descriptors: {e}"),
        }
    }
}

impl fmt::Display for DescriptorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use DescriptorError as E;
        match self {
            E::Truncated { needed, got } => write!(f, "need an IU of {needed} bytes, {got} came"),
            E::Wraps => f.write_str("a range wraps around the address space"),
            E::TableLength(n) => write!(f, "table length {n} is no multiple of 16"),
            E::TableTooLong { entries, max } => {
                write!(f, "table of {entries} entries, at most {max} are accepted")
            }
            E::CountExceedsTable { count, entries } => {
                write!(f, "{count} entries inline of a table of {entries}")
            }
            E::TotalExceedsTable { total, sum } => {
                write!(f, "total length {total}, but the entries add up to {sum}")
            }
            E::ImmediateNotNegotiated => f.write_str("immediate data was not negotiated"),
            E::ImmediateOverlap { offset, end } => {
                write!(f, "they end at {end}, behind the immediate data offset {offset}")
            }
            E::ImmediateTruncated { needed, got } => {
                write!(f, "immediate data needs an IU of {needed} bytes, {got} came")
            }
        }
    }
}

impl std::error::Error for CmdError {}
impl std::error::Error for DescriptorError {}

struct Fixed<'a> {
    tag: Tag,
    lun: u64,
    solicit: Solicit,
    formats: u8,
    counts: [u8; 2],
    attribute: u8,
    extra: usize,
    rest: Reader<'a>,
}

fn fixed(bytes: &[u8]) -> Result<Fixed<'_>, Short> {
    let mut r = Reader::new(bytes);
    r.skip(1)?;
    let solicit = Solicit::from_byte(r.u8()?);
    r.skip(3)?;
    let formats = r.u8()?;
    let counts = r.array()?;
    let tag = Tag::from_bytes(r.array()?);
    r.skip(4)?;
    let lun = r.u64()?;
    r.skip(1)?;
    let attribute = r.u8()? & 0x07;
    r.skip(1)?;
    // Bits 7:2 count dwords, so with the low bits cleared the byte is the length in bytes.
    let extra = usize::from(r.u8()? & !0x03);
    let rest = r.clone();
    r.skip(16)?;
    Ok(Fixed { tag, lun, solicit, formats, counts, attribute, extra, rest })
}

impl<'a> Command<'a> {
    /// Reads a SRP_CMD. `bytes` is the IU exactly as received: immediate data is measured by its end.
    #[inline]
    pub fn decode(bytes: &'a [u8], ctx: &IuContext) -> Result<Self, IuError> {
        match Self::plain(bytes, ctx) {
            Some(c) => Ok(c),
            None => Self::any(bytes, ctx),
        }
    }

    /// The forms that nearly all commands have: a 16-byte CDB of a simple task with no data, one direct
    /// DATA-IN descriptor, or immediate data. `None` says nothing about the IU.
    #[inline]
    fn plain(bytes: &'a [u8], ctx: &IuContext) -> Option<Self> {
        let h = bytes.first_chunk::<CMD_LEN>()?;
        // Attribute SIMPLE, no additional CDB bytes.
        if h[29] & 0x07 != 0 || h[31] & !0x03 != 0 {
            return None;
        }
        let (mut data_out, mut data_in) = (Buffer::None, Buffer::None);
        match h[5] {
            0 => {}
            FORMAT_DIRECT => {
                let d = Descriptor::from_bytes(bytes[CMD_LEN..].first_chunk()?);
                if d.wraps() {
                    return None;
                }
                data_in = Buffer::Direct(d);
            }
            0x30 => {
                let len = u32::from_be_bytes(*bytes[CMD_LEN..].first_chunk()?);
                data_out = immediate(bytes, CMD_LEN + 4, len, ctx.immediate_offset).ok()?;
            }
            _ => return None,
        }
        Some(Command {
            tag: Tag::from_bytes(*h[8..].first_chunk()?),
            lun: u64::from_be_bytes(*h[20..].first_chunk()?),
            attribute: TaskAttribute::Simple,
            cdb: &bytes[32..CMD_LEN],
            data_out,
            data_in,
            solicit: Solicit::from_byte(h[1]),
        })
    }

    fn any(bytes: &'a [u8], ctx: &IuContext) -> Result<Self, IuError> {
        let f = fixed(bytes).map_err(|_| IuError::Short {
            iu: IuType::Command,
            needed: CMD_LEN,
            got: bytes.len(),
        })?;
        let tag = f.tag;
        Self::body(bytes, f, ctx).map_err(|error| IuError::Command { tag, error })
    }

    fn body(bytes: &'a [u8], f: Fixed<'a>, ctx: &IuContext) -> Result<Self, CmdError> {
        let mut r = f.rest;
        let attribute =
            TaskAttribute::from_bits(f.attribute).ok_or(CmdError::Attribute(f.attribute))?;
        let cdb = r.take(16 + f.extra).map_err(|s| CmdError::CdbTruncated {
            needed: s.offset.saturating_add(s.wanted),
            got: bytes.len(),
        })?;
        let [count_out, count_in] = f.counts;
        let mut area = |direction, format, count| match format {
            FORMAT_NONE => Ok(Area::Buffer(Buffer::None)),
            FORMAT_DIRECT => direct(&mut r, bytes.len())
                .map(|d| Area::Buffer(Buffer::Direct(d)))
                .map_err(|e| CmdError::Descriptor(direction, e)),
            FORMAT_INDIRECT => indirect(&mut r, bytes.len(), count, ctx.max_table_entries)
                .map(Area::Buffer)
                .map_err(|e| CmdError::Descriptor(direction, e)),
            FORMAT_IMMEDIATE if direction == Direction::Out => r
                .u32()
                .map(Area::Immediate)
                .map_err(|s| CmdError::Descriptor(direction, truncated(s, bytes.len()))),
            other => Err(CmdError::Format(direction, other)),
        };
        let data_out = area(Direction::Out, f.formats >> 4, count_out)?;
        let data_in = match area(Direction::In, f.formats & 0x0f, count_in)? {
            Area::Buffer(b) => b,
            Area::Immediate(_) => return Err(CmdError::Format(Direction::In, FORMAT_IMMEDIATE)),
        };
        let data_out = match data_out {
            Area::Buffer(b) => b,
            Area::Immediate(len) => immediate(bytes, r.offset(), len, ctx.immediate_offset)
                .map_err(|e| CmdError::Descriptor(Direction::Out, e))?,
        };
        Ok(Command {
            tag: f.tag,
            lun: f.lun,
            attribute,
            cdb,
            data_out,
            data_in,
            solicit: f.solicit,
        })
    }
}

/// A descriptor area as read; immediate data is found only when both areas are known.
enum Area<'a> {
    Buffer(Buffer<'a>),
    Immediate(u32),
}

fn truncated(s: Short, got: usize) -> DescriptorError {
    DescriptorError::Truncated { needed: s.offset.saturating_add(s.wanted), got }
}

fn direct(r: &mut Reader<'_>, got: usize) -> Result<Descriptor, DescriptorError> {
    let d = Descriptor::from_bytes(&r.array().map_err(|s| truncated(s, got))?);
    if d.wraps() { Err(DescriptorError::Wraps) } else { Ok(d) }
}

fn indirect<'a>(
    r: &mut Reader<'a>,
    got: usize,
    count: u8,
    max: u32,
) -> Result<Buffer<'a>, DescriptorError> {
    let table = direct(r, got)?;
    let total = r.u32().map_err(|s| truncated(s, got))?;
    if !table.len.is_multiple_of(DESCRIPTOR_LEN as u32) {
        return Err(DescriptorError::TableLength(table.len));
    }
    let entries = table.len / DESCRIPTOR_LEN as u32;
    if entries > max {
        return Err(DescriptorError::TableTooLong { entries, max });
    }
    if u32::from(count) > entries {
        return Err(DescriptorError::CountExceedsTable { count, entries });
    }
    let bytes = r.take(usize::from(count) * DESCRIPTOR_LEN).map_err(|s| truncated(s, got))?;
    let inline =
        DescriptorList::new(bytes).ok_or(DescriptorError::TableLength(bytes.len() as u32))?;
    if u32::from(count) == entries {
        check_table(inline, total)?;
    } else if inline.iter().any(|d| d.wraps()) {
        return Err(DescriptorError::Wraps);
    }
    Ok(Buffer::Indirect { table, total, entries, inline })
}

/// Checks a whole table, inline or fetched: no range wraps, and together they hold the total length.
///
/// A sum above the total is accepted; the total bounds what is moved.
pub fn check_table(list: DescriptorList<'_>, total: u32) -> Result<(), DescriptorError> {
    let mut sum = 0u64;
    for d in list {
        if d.wraps() {
            return Err(DescriptorError::Wraps);
        }
        sum = sum.saturating_add(u64::from(d.len));
    }
    if sum < u64::from(total) {
        return Err(DescriptorError::TotalExceedsTable { total, sum });
    }
    Ok(())
}

#[inline]
fn immediate(
    bytes: &[u8],
    end: usize,
    len: u32,
    offset: Option<u16>,
) -> Result<Buffer<'_>, DescriptorError> {
    let offset = offset.ok_or(DescriptorError::ImmediateNotNegotiated)?;
    if end > usize::from(offset) {
        return Err(DescriptorError::ImmediateOverlap { offset, end });
    }
    let needed = u64::from(offset) + u64::from(len);
    let data = usize::try_from(needed)
        .ok()
        .and_then(|to| bytes.get(usize::from(offset)..to))
        .ok_or(DescriptorError::ImmediateTruncated { needed, got: bytes.len() })?;
    Ok(Buffer::Immediate { data })
}

//! SRP_CMD as the initiator writes it.
use weir_wire::Writer;

use crate::cmd::{CMD_LEN, FORMAT_DIRECT, FORMAT_IMMEDIATE, FORMAT_INDIRECT, FORMAT_NONE};
use crate::iu::IuType;
use crate::types::{DESCRIPTOR_LEN, Descriptor, EncodeError, Solicit, Tag, TaskAttribute};

/// The data buffer of one direction, to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BufferSpec<'a> {
    /// No data.
    #[default]
    None,
    /// One range of this initiator's memory.
    Direct(Descriptor),
    /// A table of ranges.
    Indirect {
        /// Where the whole table lies in this initiator's memory. Its length counts all entries.
        table: Descriptor,
        /// Sum of the lengths of all entries, bytes.
        total: u32,
        /// The first entries of the table, as many as shall travel in the IU (at most 255).
        inline: &'a [Descriptor],
    },
    /// The data itself (DATA-OUT only), copied into the IU.
    Immediate {
        /// Negotiated at login.
        offset: u16,
        /// The data.
        data: &'a [u8],
    },
    /// As `Immediate`, but the data is gathered by the send itself, behind the first `offset` bytes.
    ImmediateGather {
        /// Negotiated at login.
        offset: u16,
        /// Bytes of data that will follow.
        len: u32,
    },
}

impl BufferSpec<'_> {
    fn format(&self) -> u8 {
        match self {
            BufferSpec::None => FORMAT_NONE,
            BufferSpec::Direct(_) => FORMAT_DIRECT,
            BufferSpec::Indirect { .. } => FORMAT_INDIRECT,
            BufferSpec::Immediate { .. } | BufferSpec::ImmediateGather { .. } => FORMAT_IMMEDIATE,
        }
    }

    /// The descriptor count field.
    fn count(&self) -> Result<u8, EncodeError> {
        match self {
            BufferSpec::Indirect { inline, .. } => u8::try_from(inline.len())
                .map_err(|_| EncodeError::TooManyDescriptors(inline.len())),
            _ => Ok(0),
        }
    }

    fn write(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {
        match self {
            BufferSpec::None => {}
            BufferSpec::Direct(d) => {
                w.put(&d.to_bytes())?;
            }
            BufferSpec::Indirect { table, total, inline } => {
                let whole = table.len.is_multiple_of(DESCRIPTOR_LEN as u32);
                if !whole || inline.len() > table.len as usize / DESCRIPTOR_LEN {
                    return Err(EncodeError::TableLength(table.len));
                }
                w.put(&table.to_bytes())?.u32(*total)?;
                for d in *inline {
                    w.put(&d.to_bytes())?;
                }
            }
            BufferSpec::Immediate { data, .. } => {
                let len =
                    u32::try_from(data.len()).map_err(|_| EncodeError::DataTooLong(data.len()))?;
                w.u32(len)?;
            }
            BufferSpec::ImmediateGather { len, .. } => {
                w.u32(*len)?;
            }
        }
        Ok(())
    }
}

/// Bytes of a SRP_CMD with a CDB of 16 bytes and one descriptor.
pub const DIRECT_LEN: usize = CMD_LEN + DESCRIPTOR_LEN;

/// A simple command with one range of this initiator's memory for DATA-IN: what
/// [`CommandBuilder`] writes for it, in a few words, since most reads are that.
#[inline]
pub fn direct_in(tag: Tag, lun: u64, cdb: &[u8; 16], data_in: Descriptor) -> [u8; DIRECT_LEN] {
    let mut iu = [0; DIRECT_LEN];
    let kind = u64::from(IuType::Command.code()) << 56 | u64::from(FORMAT_DIRECT) << 16;
    iu[..8].copy_from_slice(&kind.to_be_bytes());
    iu[8..16].copy_from_slice(&tag.to_bytes());
    iu[20..28].copy_from_slice(&lun.to_be_bytes());
    iu[32..48].copy_from_slice(cdb);
    iu[48..56].copy_from_slice(&data_in.addr.to_be_bytes());
    let place = u64::from(data_in.key) << 32 | u64::from(data_in.len);
    iu[56..].copy_from_slice(&place.to_be_bytes());
    iu
}

/// What goes into a SRP_CMD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandBuilder<'a> {
    /// Names the request; unique among those outstanding on the channel.
    pub tag: Tag,
    /// SAM eight-byte logical unit number, as a big-endian number.
    pub lun: u64,
    /// Task attribute.
    pub attribute: TaskAttribute,
    /// The CDB, up to 268 bytes; zero-padded to 16 bytes, then to whole dwords.
    pub cdb: &'a [u8],
    /// DATA-OUT buffer.
    pub data_out: BufferSpec<'a>,
    /// DATA-IN buffer.
    pub data_in: BufferSpec<'a>,
    /// Whether the answer raises a solicited event.
    pub solicit: Solicit,
}

impl<'a> CommandBuilder<'a> {
    /// A simple command without data.
    pub fn new(tag: Tag, lun: u64, cdb: &'a [u8]) -> Self {
        CommandBuilder {
            tag,
            lun,
            attribute: TaskAttribute::Simple,
            cdb,
            data_out: BufferSpec::None,
            data_in: BufferSpec::None,
            solicit: Solicit::default(),
        }
    }

    /// With a DATA-OUT buffer.
    pub fn data_out(mut self, b: BufferSpec<'a>) -> Self {
        self.data_out = b;
        self
    }

    /// With a DATA-IN buffer.
    pub fn data_in(mut self, b: BufferSpec<'a>) -> Self {
        self.data_in = b;
        self
    }

    /// With a task attribute.
    pub fn attribute(mut self, a: TaskAttribute) -> Self {
        self.attribute = a;
        self
    }

    /// Writes the IU from the start of `out` and returns its length, which the caller holds against
    /// the negotiated length. With [`BufferSpec::ImmediateGather`] the returned length includes the
    /// data, and `out` needs to hold only the bytes below the offset.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let extra = self.cdb.len().saturating_sub(16).next_multiple_of(4);
        let extra_byte =
            u8::try_from(extra).map_err(|_| EncodeError::CdbTooLong(self.cdb.len()))?;
        if self.data_in.format() == FORMAT_IMMEDIATE {
            return Err(EncodeError::ImmediateDataIn);
        }
        let got = out.len();
        let mut w = Writer::new(out);
        w.u8(IuType::Command.code())?.u8(self.solicit.to_byte())?.zeros(3)?;
        w.u8(self.data_out.format() << 4 | self.data_in.format())?;
        w.u8(self.data_out.count()?)?.u8(self.data_in.count()?)?;
        w.put(&self.tag.to_bytes())?.zeros(4)?.u64(self.lun)?;
        w.zeros(1)?.u8(self.attribute.to_bits())?.zeros(1)?.u8(extra_byte)?;
        w.put(self.cdb)?;
        w.zeros((CMD_LEN - 32 + extra).saturating_sub(self.cdb.len()))?;
        self.data_out.write(&mut w)?;
        self.data_in.write(&mut w)?;
        let end = w.len();
        let gap = |offset: u16| {
            usize::from(offset).checked_sub(end).ok_or(EncodeError::ImmediateOffset { offset, end })
        };
        match self.data_out {
            BufferSpec::Immediate { offset, data } => {
                w.zeros(gap(offset)?)?.put(data)?;
                Ok(w.len())
            }
            BufferSpec::ImmediateGather { offset, len } => {
                w.zeros(gap(offset)?)?;
                w.len()
                    .checked_add(len as usize)
                    .ok_or(EncodeError::TooSmall { needed: usize::MAX, got })
            }
            _ => Ok(end),
        }
    }
}

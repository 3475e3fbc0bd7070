//! Small values that several information units share.
use core::fmt;

use weir_wire::Short;

/// TAG: eight bytes that the initiator chooses and the target echoes, never interpreted by the target.
///
/// The number is the little-endian reading of the bytes, so that the tags of a Linux host on a
/// little-endian machine show as it counts them (channel × 65536 + index). Equality of numbers is
/// equality of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Tag(pub u64);

impl Tag {
    /// From the eight bytes of an IU.
    #[inline]
    pub const fn from_bytes(b: [u8; 8]) -> Self {
        Tag(u64::from_le_bytes(b))
    }

    /// The eight bytes as they stand in an IU.
    #[inline]
    pub const fn to_bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tag({:#x})", self.0)
    }
}

/// Which way data moves, as SCSI names it: seen from the initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// DATA-OUT: initiator to target (a write; the target RDMA-reads).
    Out,
    /// DATA-IN: target to initiator (a read; the target RDMA-writes).
    In,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Out => "data-out",
            Direction::In => "data-in",
        })
    }
}

/// When the answer shall raise a solicited event (SCSOLNT and UCSOLNT, byte 1 bits 1 and 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Solicit {
    /// SCSOLNT: for an answer of success.
    pub on_success: bool,
    /// UCSOLNT: for any other answer.
    pub on_failure: bool,
}

impl Solicit {
    /// From byte 1 of SRP_CMD or SRP_TSK_MGMT.
    #[inline]
    pub fn from_byte(b: u8) -> Self {
        Solicit { on_success: b & 0x02 != 0, on_failure: b & 0x04 != 0 }
    }

    /// Byte 1 of SRP_CMD or SRP_TSK_MGMT.
    #[inline]
    pub fn to_byte(self) -> u8 {
        (self.on_success as u8) << 1 | (self.on_failure as u8) << 2
    }

    /// Whether the response carries SOLNT, given that the request succeeded or not.
    #[inline]
    pub fn wants(self, success: bool) -> bool {
        if success { self.on_success } else { self.on_failure }
    }
}

/// Task attribute (byte 29 bits 2:0 of SRP_CMD), as SAM defines them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TaskAttribute {
    /// 0: SIMPLE.
    #[default]
    Simple,
    /// 1: HEAD OF QUEUE.
    HeadOfQueue,
    /// 2: ORDERED.
    Ordered,
    /// 4: ACA.
    Aca,
}

impl TaskAttribute {
    /// From the three bits; `None` for a reserved value.
    #[inline]
    pub fn from_bits(b: u8) -> Option<Self> {
        Some(match b {
            0 => TaskAttribute::Simple,
            1 => TaskAttribute::HeadOfQueue,
            2 => TaskAttribute::Ordered,
            4 => TaskAttribute::Aca,
            _ => return None,
        })
    }

    /// The three bits.
    #[inline]
    pub fn to_bits(self) -> u8 {
        match self {
            TaskAttribute::Simple => 0,
            TaskAttribute::HeadOfQueue => 1,
            TaskAttribute::Ordered => 2,
            TaskAttribute::Aca => 4,
        }
    }
}

/// Bytes of a direct descriptor and of each entry of an indirect table.
pub const DESCRIPTOR_LEN: usize = 16;

/// A direct data buffer descriptor: a range of the initiator's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Descriptor {
    /// Virtual address in the initiator's terms.
    pub addr: u64,
    /// R_Key (iWARP: STag) that opens it; changes with every use, never cached.
    pub key: u32,
    /// Bytes.
    pub len: u32,
}

impl Descriptor {
    /// From the 16 bytes of an IU or a fetched table.
    #[inline]
    pub fn from_bytes(b: &[u8; DESCRIPTOR_LEN]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, l0, l1, l2, l3] = *b;
        Descriptor {
            addr: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            key: u32::from_be_bytes([k0, k1, k2, k3]),
            len: u32::from_be_bytes([l0, l1, l2, l3]),
        }
    }

    /// The 16 bytes: address, key, length.
    #[inline]
    pub fn to_bytes(self) -> [u8; DESCRIPTOR_LEN] {
        let mut b = [0; DESCRIPTOR_LEN];
        b[..8].copy_from_slice(&self.addr.to_be_bytes());
        b[8..12].copy_from_slice(&self.key.to_be_bytes());
        b[12..].copy_from_slice(&self.len.to_be_bytes());
        b
    }

    /// True when the range runs past the end of the 64-bit address space.
    #[inline]
    pub fn wraps(&self) -> bool {
        // The last byte may be the last of the address space.
        self.len > 0 && self.addr.checked_add(u64::from(self.len) - 1).is_none()
    }
}

/// Descriptors as they lie on the wire: in an IU, or in a table fetched from the initiator.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct DescriptorList<'a> {
    entries: &'a [[u8; DESCRIPTOR_LEN]],
}

impl<'a> DescriptorList<'a> {
    /// No descriptor.
    pub const EMPTY: DescriptorList<'static> = DescriptorList { entries: &[] };

    /// Reads `bytes` as 16-byte entries; `None` when the length is no multiple of 16.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let (entries, rest) = bytes.as_chunks();
        rest.is_empty().then_some(DescriptorList { entries })
    }

    /// Entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without an entry.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Entry `i`, counted from 0.
    #[inline]
    pub fn get(&self, i: usize) -> Option<Descriptor> {
        self.entries.get(i).map(Descriptor::from_bytes)
    }

    /// The entries as they lie there, to be copied out of a receive buffer.
    #[inline]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.entries.as_flattened()
    }

    /// The entries in order.
    #[inline]
    pub fn iter(&self) -> DescriptorIter<'a> {
        DescriptorIter(self.entries.iter())
    }

    /// Sum of the entries' lengths. Cannot overflow: fewer than 2^32 entries fit any memory here.
    pub fn total(&self) -> u64 {
        self.iter().fold(0, |n, d| n.saturating_add(u64::from(d.len)))
    }
}

impl fmt::Debug for DescriptorList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> IntoIterator for DescriptorList<'a> {
    type Item = Descriptor;
    type IntoIter = DescriptorIter<'a>;

    fn into_iter(self) -> DescriptorIter<'a> {
        self.iter()
    }
}

/// Iterator over a [`DescriptorList`].
#[derive(Debug, Clone)]
pub struct DescriptorIter<'a>(core::slice::Iter<'a, [u8; DESCRIPTOR_LEN]>);

impl Iterator for DescriptorIter<'_> {
    type Item = Descriptor;

    #[inline]
    fn next(&mut self) -> Option<Descriptor> {
        self.0.next().map(Descriptor::from_bytes)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for DescriptorIter<'_> {}

/// Why an information unit could not be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncodeError {
    /// The caller's buffer (or the negotiated IU length) holds `got` bytes, `needed` are wanted.
    TooSmall {
        /// Bytes that the IU takes.
        needed: usize,
        /// Bytes that there are.
        got: usize,
    },
    /// A CDB of more than 268 bytes (16 and 63 dwords).
    CdbTooLong(usize),
    /// More than 255 descriptors in the IU.
    TooManyDescriptors(usize),
    /// An indirect table whose length is no multiple of 16, or less than its partial list.
    TableLength(u32),
    /// Immediate data for DATA-IN: it exists for DATA-OUT only.
    ImmediateDataIn,
    /// The descriptors end behind the negotiated immediate data offset.
    ImmediateOffset {
        /// Negotiated at login.
        offset: u16,
        /// Where the descriptors end.
        end: usize,
    },
    /// More data than a 32-bit length can say.
    DataTooLong(usize),
}

impl From<Short> for EncodeError {
    fn from(s: Short) -> Self {
        EncodeError::TooSmall { needed: s.offset.saturating_add(s.wanted), got: s.offset }
    }
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EncodeError::TooSmall { needed, got } => {
                write!(f, "the IU takes {needed} bytes, the buffer holds {got}")
            }
            EncodeError::CdbTooLong(n) => write!(f, "a CDB of {n} bytes; SRP carries at most 268"),
            EncodeError::TooManyDescriptors(n) => {
                write!(f, "{n} descriptors; an IU carries at most 255")
            }
            EncodeError::TableLength(n) => {
                write!(f, "an indirect table of {n} bytes does not hold its descriptors exactly")
            }
            EncodeError::ImmediateDataIn => f.write_str("immediate data is for data-out only"),
            EncodeError::ImmediateOffset { offset, end } => {
                write!(f, "descriptors end at {end}, behind the immediate data offset {offset}")
            }
            EncodeError::DataTooLong(n) => write!(f, "{n} bytes of data exceed a 32-bit length"),
        }
    }
}

impl std::error::Error for EncodeError {}

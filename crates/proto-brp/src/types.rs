//! Names and numbers that messages share.

use core::fmt;

/// An initiator or target port identifier: the same 16 bytes that SRP logs in with, so that one host entry
/// covers both protocols.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct PortId(pub [u8; 16]);

impl PortId {
    /// True for 16 zero bytes: as a target it means "whichever answers at this address".
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = u128::from_be_bytes(self.0);
        write!(f, "{:016x}:{:016x}", (n >> 64) as u64, n as u64)
    }
}

impl fmt::Debug for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PortId({self})")
    }
}

/// What a command does (docs/brp.md, "Commands").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// There and back again.
    Nop = 0,
    /// Fills the initiator's buffer.
    Read = 1,
    /// Writes the initiator's buffer.
    Write = 2,
    /// Everything acknowledged before is on the medium afterwards.
    Flush = 3,
    /// Gives a range back.
    Discard = 4,
    /// A range reads as zeros afterwards.
    WriteZeroes = 5,
    /// Writes the second half of the data where the first half is found.
    CompareAndWrite = 6,
    /// Size and nature of one volume.
    Geometry = 7,
    /// All volumes that this initiator port sees.
    List = 8,
}

impl Op {
    /// All of them, by number.
    pub const ALL: [Op; 9] = [
        Op::Nop,
        Op::Read,
        Op::Write,
        Op::Flush,
        Op::Discard,
        Op::WriteZeroes,
        Op::CompareAndWrite,
        Op::Geometry,
        Op::List,
    ];

    /// From the number on the wire.
    #[inline]
    pub fn from_code(code: u8) -> Option<Op> {
        Op::ALL.get(usize::from(code)).copied()
    }

    /// True when doing it a second time right after the first changes nothing and tells the same.
    pub fn is_repeatable(self) -> bool {
        self != Op::CompareAndWrite
    }
}

/// How a command ended (docs/brp.md, "Errors").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// Address or length outside the volume, or not in whole blocks.
    OutOfRange = 1,
    /// The medium failed, and no other copy helped.
    Medium = 2,
    /// No space left behind a thin volume.
    NoSpace = 3,
    /// The volume may not be written.
    ReadOnly = 4,
    /// COMPARE AND WRITE found other data; the detail is the offset of the first byte that differs.
    Miscompare = 5,
    /// Too much is in flight; later it may work.
    Busy = 6,
    /// Aborted without further effect.
    Aborted = 7,
    /// The device or path behind the target is gone.
    Offline = 8,
    /// Not offered by this volume or session.
    Unsupported = 9,
    /// A fault that fits nothing else.
    Internal = 10,
    /// No volume of this number is mapped to the initiator port.
    NoVolume = 11,
    /// The number belongs to another volume than the guard says.
    WrongVolume = 12,
    /// A reservation of another host stands against it.
    Reserved = 13,
    /// Data came with a checksum that does not fit; the detail is the number of the first bad piece.
    Checksum = 14,
    /// Data changed in the target's memory; detail as for `Checksum`.
    ChecksumTarget = 15,
    /// What is on the medium does not fit the checksum kept for it; detail as for `Checksum`.
    ChecksumMedium = 16,
    /// Fields of the command contradict each other or the login.
    Invalid = 17,
    /// The sequence number does not follow the slot's last one.
    Sequence = 18,
    /// This path does not serve the volume now (standby, in transition).
    NotReady = 19,
}

impl Status {
    /// All of them, by number.
    pub const ALL: [Status; 20] = [
        Status::Ok,
        Status::OutOfRange,
        Status::Medium,
        Status::NoSpace,
        Status::ReadOnly,
        Status::Miscompare,
        Status::Busy,
        Status::Aborted,
        Status::Offline,
        Status::Unsupported,
        Status::Internal,
        Status::NoVolume,
        Status::WrongVolume,
        Status::Reserved,
        Status::Checksum,
        Status::ChecksumTarget,
        Status::ChecksumMedium,
        Status::Invalid,
        Status::Sequence,
        Status::NotReady,
    ];

    /// From the number on the wire.
    #[inline]
    pub fn from_code(code: u8) -> Option<Status> {
        Status::ALL.get(usize::from(code)).copied()
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::Ok => "done",
            Status::OutOfRange => "address or length outside the volume",
            Status::Medium => "unrecovered medium error",
            Status::NoSpace => "the pool is full",
            Status::ReadOnly => "the volume is read-only",
            Status::Miscompare => "the data found is not the data expected",
            Status::Busy => "busy, try again",
            Status::Aborted => "aborted",
            Status::Offline => "the device is offline",
            Status::Unsupported => "not supported",
            Status::Internal => "internal fault of the target",
            Status::NoVolume => "no such volume is mapped to this host",
            Status::WrongVolume => "the number belongs to another volume now",
            Status::Reserved => "reserved by another host",
            Status::Checksum => "data was changed on its way to the target",
            Status::ChecksumTarget => "data was changed in the target's memory",
            Status::ChecksumMedium => "data was changed on the medium",
            Status::Invalid => "the command contradicts itself or the login",
            Status::Sequence => "the sequence number is out of order",
            Status::NotReady => "this path does not serve the volume now",
        })
    }
}

/// Four bytes at `at`; 0 when they are not there. Callers have checked the length.
#[inline]
pub(crate) fn u32_at(b: &[u8], at: usize) -> u32 {
    match b.get(at..at + 4).and_then(|s| s.first_chunk::<4>()) {
        Some(s) => u32::from_le_bytes(*s),
        None => 0,
    }
}

/// Two bytes at `at`, as [`u32_at`].
#[inline]
pub(crate) fn u16_at(b: &[u8], at: usize) -> u16 {
    match b.get(at..at + 2).and_then(|s| s.first_chunk::<2>()) {
        Some(s) => u16::from_le_bytes(*s),
        None => 0,
    }
}

/// Eight bytes at `at`, as [`u32_at`].
#[inline]
pub(crate) fn u64_at(b: &[u8], at: usize) -> u64 {
    match b.get(at..at + 8).and_then(|s| s.first_chunk::<8>()) {
        Some(s) => u64::from_le_bytes(*s),
        None => 0,
    }
}

/// Sixteen bytes at `at`, as [`u32_at`].
#[inline]
pub(crate) fn id_at(b: &[u8], at: usize) -> [u8; 16] {
    b.get(at..at + 16).and_then(|s| s.first_chunk::<16>()).copied().unwrap_or_default()
}

//! How an I/O inside Weir ends. One small error that every front end translates by one table.

/// The outcome of an I/O.
pub type IoResult<T = ()> = Result<T, IoError>;

/// Why an I/O failed, as a class that a front end can translate (SCSI sense, NVMe status, errno).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IoError {
    /// Address or length outside the volume, or not a multiple of its block size.
    OutOfRange,
    /// The medium gave an error or data that fails its checksum, and no other copy helped. Of a disk: it says itself
    /// that it cannot read or write this place.
    Medium,
    /// No space left in the pool behind a thin volume.
    NoSpace,
    /// The volume may not be written.
    ReadOnly,
    /// COMPARE AND WRITE found another byte; the value is its offset in the compared range.
    Miscompare(u64),
    /// Too much is in flight just now; the same I/O may work later.
    Busy,
    /// The I/O was aborted before it had any further effect.
    Aborted,
    /// The device or path below is gone.
    Offline,
    /// The device below could not be asked, or its answer got lost: a path that failed, a reset, an error of the
    /// operating system that names no cause. It says nothing about the data, and the same I/O may work later.
    Path,
    /// The operation is not offered by this volume.
    Unsupported,
    /// Data was changed on its way through this node: it does not fit the checksums that came with it. The value is
    /// the first 4 KiB that is wrong, counted from the start of the I/O. Nothing was written.
    Changed(u32),
    /// A fault inside Weir or the operating system that fits no other class.
    Internal,
}

impl core::fmt::Display for IoError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            IoError::OutOfRange => f.write_str("address or length outside the volume"),
            IoError::Medium => f.write_str("unrecovered medium error"),
            IoError::NoSpace => f.write_str("the pool is full"),
            IoError::ReadOnly => f.write_str("the volume is read-only"),
            IoError::Miscompare(at) => write!(f, "data differs at byte {at}"),
            IoError::Busy => f.write_str("busy, try again"),
            IoError::Aborted => f.write_str("aborted"),
            IoError::Offline => f.write_str("the device is offline"),
            IoError::Path => {
                f.write_str("the device, or the path to it, gave an error that may pass")
            }
            IoError::Unsupported => f.write_str("not supported by this volume"),
            IoError::Changed(n) => write!(f, "data was changed in memory, in its 4 KiB number {n}"),
            IoError::Internal => f.write_str("internal fault"),
        }
    }
}

impl std::error::Error for IoError {}

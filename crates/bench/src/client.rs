//! Whom the load is put on: one volume, reached from one core.

use std::future::Future;
use weir_mem::Slice;
use weir_proto_scsi::{Sense, Status};

/// Size and block size of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Length in bytes.
    pub len: u64,
    /// Bytes of a logical block, a power of two.
    pub block_size: u32,
}

/// How an I/O failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientError {
    /// The target answered with an error.
    Scsi {
        /// SCSI status byte.
        status: u8,
        /// What it said about it.
        sense: Option<Sense>,
    },
    /// A BRP target answered with an error.
    Brp(weir_initiator_brp::Status),
    /// Fewer bytes were moved than asked for, by this many.
    Short(u64),
    /// The way to the target is gone and will not come back.
    Lost,
    /// An error of a local volume.
    Io(weir_base::IoError),
    /// Another error of the initiator.
    Other(&'static str),
}

impl std::fmt::Display for ClientError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ClientError::Scsi { sense: Some(s), .. } => write!(f, "check condition: {s}"),
            ClientError::Scsi { status, sense: None } => match Status::from_code(*status) {
                Some(s) => write!(f, "SCSI status {status:#04x} ({s:?})"),
                None => write!(f, "SCSI status {status:#04x}"),
            },
            ClientError::Brp(s) => s.fmt(f),
            ClientError::Short(n) => write!(f, "{n} bytes were not moved"),
            ClientError::Lost => f.write_str("the path to the target is down"),
            ClientError::Io(e) => e.fmt(f),
            ClientError::Other(e) => f.write_str(e),
        }
    }
}

impl std::error::Error for ClientError {}

/// A volume as one reactor reaches it. Addresses and lengths are bytes, multiples of the block size.
///
/// A client belongs to the reactor that made it. Its I/Os allocate nothing.
pub trait BlockClient: 'static {
    /// Size and block size, asked for when the client was made.
    fn geometry(&self) -> Geometry;

    /// Reads `buf.len()` bytes from `at` on.
    fn read(&self, at: u64, buf: Slice) -> impl Future<Output = Result<(), ClientError>>;

    /// Writes `buf` from `at` on.
    fn write(&self, at: u64, buf: Slice) -> impl Future<Output = Result<(), ClientError>>;

    /// Returns when everything written is on stable storage.
    fn flush(&self) -> impl Future<Output = Result<(), ClientError>>;

    /// Gives `len` bytes from `at` on back to the pool. `scratch`, of 512 bytes or more, is the client's
    /// to use meanwhile.
    fn trim(
        &self,
        at: u64,
        len: u64,
        scratch: Slice,
    ) -> impl Future<Output = Result<(), ClientError>>;

    /// A command without data: there and back again.
    fn nop(&self) -> impl Future<Output = Result<(), ClientError>>;
}

/// The class of a failure to reach a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectKind {
    /// Nobody answers at the address.
    Unreachable,
    /// The target refused the login.
    Refused,
    /// The target has no such volume.
    NoVolume,
    /// This machine has no such fabric.
    NoFabric,
    /// The target answered something that makes no sense, or an error.
    Failed,
}

/// Why a volume cannot be reached: what happened, why, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}: {reason}")]
pub struct ConnectError {
    /// The class.
    pub kind: ConnectKind,
    /// What happened.
    pub message: String,
    /// Why.
    pub reason: String,
    /// What to do.
    pub hint: String,
}

impl ConnectError {
    /// Puts one together.
    pub fn new(
        kind: ConnectKind,
        message: impl ToString,
        reason: impl ToString,
        hint: impl ToString,
    ) -> Self {
        ConnectError {
            kind,
            message: message.to_string(),
            reason: reason.to_string(),
            hint: hint.to_string(),
        }
    }
}

//! How an operation fails.

use weir_fabric::FabricError;
use weir_proto_brp::{RejectReason, Status};

/// Where data was changed (docs/brp.md, "Integrity").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hop {
    /// In the memory of this initiator, after its checksum was taken.
    InitiatorMemory,
    /// Between this initiator and the target.
    WireToTarget,
    /// In the target's memory.
    TargetMemory,
    /// On the medium.
    Medium,
    /// Between the target and this initiator.
    WireToInitiator,
}

impl std::fmt::Display for Hop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Hop::InitiatorMemory => "in the memory of this host",
            Hop::WireToTarget => "on the way to the target",
            Hop::TargetMemory => "in the target's memory",
            Hop::Medium => "on the medium",
            Hop::WireToInitiator => "on the way from the target",
        })
    }
}

/// How an operation fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The target ended the command with this status.
    #[error("the target answered: {0}")]
    Status(Status),
    /// COMPARE AND WRITE found other data.
    #[error("the data found differs at byte {0}")]
    Miscompare(u32),
    /// Data was changed, and doing it again did not help.
    #[error("data at byte {at} of the volume was changed {hop}")]
    Damaged {
        /// Where it happened.
        hop: Hop,
        /// First byte of the first bad piece on the volume.
        at: u64,
    },
    /// The command took too long and was aborted.
    #[error("the command took too long and was aborted")]
    TimedOut,
    /// A COMPARE AND WRITE may have been done or not: the target that knows is gone.
    #[error("the target was lost while the command was under way; it may have been done or not")]
    InDoubt,
    /// Acknowledged writes may have been lost with the target's power.
    #[error("the target lost power with writes that had not been flushed")]
    LostCache,
    /// The path has been down for longer than commands wait.
    #[error("the path to the target is down")]
    PathDown,
    /// Another session of this initiator port has taken its place.
    #[error("another session of this host has taken the place of this one")]
    Replaced,
    /// The session was closed.
    #[error("the session is closed")]
    Closed,
    /// The target has no such volume for this initiator port.
    #[error("the target has no volume {0} for this host")]
    NoVolume(String),
    /// The request cannot be sent as it is.
    #[error("{0}")]
    Invalid(&'static str),
    /// The target refused a login.
    #[error("the target refused the login: {0}")]
    Rejected(RejectReason),
    /// The target does not speak BRP as it should.
    #[error("the target breaks the protocol: {0}")]
    Protocol(String),
    /// The fabric could not connect, or has no room.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

impl Error {
    /// True when another path to the same volume may do better.
    pub fn is_path(&self) -> bool {
        matches!(
            self,
            Error::PathDown
                | Error::TimedOut
                | Error::Closed
                | Error::Rejected(_)
                | Error::Fabric(_)
                | Error::NoVolume(_)
                | Error::Status(
                    Status::NotReady | Status::Offline | Status::NoVolume | Status::WrongVolume
                )
        )
    }
}

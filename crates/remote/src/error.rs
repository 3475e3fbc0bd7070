//! Why a volume is not reached, and how its commands fail.

use weir_base::IoError;
use weir_fabric::FabricError;
use weir_initiator_brp::{Error as Brp, Hop, Status};

/// Why a volume is not reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody listens at that address, or the network does not lead there.
    #[error("no target answers at {at}: {why}")]
    Unreachable {
        /// The address.
        at: String,
        /// What the fabric said.
        why: String,
    },
    /// The target, or the network to it, did not answer in time.
    #[error("the target at {0} does not answer")]
    Silent(String),
    /// The target does not let this node in.
    #[error("the target at {at} refused the login: {why}")]
    Refused {
        /// The address.
        at: String,
        /// Its reason.
        why: String,
    },
    /// The target shows this node other volumes, or none.
    #[error("the target at {at} shows this node no volume called {volume}")]
    NoVolume {
        /// The address.
        at: String,
        /// The volume's name.
        volume: String,
        /// Names of the volumes that it does show.
        have: Vec<String>,
    },
    /// Something else went wrong.
    #[error("the volume at {at} cannot be used: {why}")]
    Failed {
        /// The address.
        at: String,
        /// What it was.
        why: String,
    },
}

impl Error {
    /// What a session or its volume said.
    pub(crate) fn of(at: &str, e: &Brp) -> Error {
        let (at, why) = (at.to_owned(), e.to_string());
        match e {
            Brp::Rejected(reason) => Error::Refused { at, why: reason.to_string() },
            Brp::Fabric(FabricError::Unreachable(why)) => {
                Error::Unreachable { at, why: why.clone() }
            }
            Brp::PathDown => Error::Silent(at),
            _ => Error::Failed { at, why },
        }
    }
}

/// How a disk reports what a command over BRP ended with.
pub(crate) fn io_error(e: &Brp) -> IoError {
    match e {
        Brp::Status(status) => match status {
            Status::OutOfRange => IoError::OutOfRange,
            Status::Medium | Status::ChecksumMedium => IoError::Medium,
            Status::NoSpace => IoError::NoSpace,
            Status::ReadOnly => IoError::ReadOnly,
            Status::Busy => IoError::Busy,
            Status::Aborted => IoError::Aborted,
            Status::Unsupported => IoError::Unsupported,
            Status::Offline | Status::NotReady | Status::NoVolume | Status::WrongVolume => {
                IoError::Offline
            }
            // Another host has reserved it: it is not this node's to use.
            Status::Reserved => IoError::Offline,
            _ => IoError::Path,
        },
        Brp::Damaged { hop: Hop::Medium, .. } => IoError::Medium,
        // On its way, and again and again: the path is ill, not the medium.
        Brp::Damaged { .. } | Brp::TimedOut | Brp::LostCache => IoError::Path,
        Brp::Invalid(_) => IoError::Internal,
        _ => IoError::Offline,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_no_error_of_the_medium() {
        assert_eq!(io_error(&Brp::Status(Status::ChecksumMedium)), IoError::Medium);
        assert_eq!(io_error(&Brp::Damaged { hop: Hop::Medium, at: 0 }), IoError::Medium);
        for e in [
            Brp::TimedOut,
            Brp::LostCache,
            Brp::Status(Status::Internal),
            Brp::Damaged { hop: Hop::WireToTarget, at: 0 },
        ] {
            assert_eq!(io_error(&e), IoError::Path, "{e}");
        }
        for e in [Brp::PathDown, Brp::Replaced, Brp::Closed, Brp::Status(Status::Reserved)] {
            assert_eq!(io_error(&e), IoError::Offline, "{e}");
        }
    }
}

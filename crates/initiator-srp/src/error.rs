//! How an operation on a logical unit fails.

use crate::channel::{ChannelError, Outcome, Unfinished};
use weir_base::Nanos;
use weir_fabric::FabricError;
use weir_proto_scsi::sense::Sense;
use weir_proto_scsi::status::Status;
use weir_proto_srp::RspCode;

/// How an operation on a logical unit fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The target ended the command with this status. Sense data goes with CHECK CONDITION.
    #[error("{}", scsi(*.status, .sense.as_ref()))]
    Scsi {
        /// SCSI status byte.
        status: u8,
        /// Decoded sense data.
        sense: Option<Sense>,
    },
    /// The target could not make sense of the request.
    #[error("the target refused the request: {0}")]
    Response(RspCode),
    /// The command ended well, but not all its data was moved.
    #[error("only {moved} of {wanted} bytes were moved")]
    Short {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes moved.
        moved: u64,
    },
    /// The command took too long, as often as it was tried. It is not under way any more.
    #[error("the command took too long and was aborted")]
    TimedOut,
    /// The path was lost when the command was with the target, and it must not be sent twice: it may have
    /// been done or not.
    #[error("the path was lost while the command was under way; it may have been done or not")]
    InDoubt,
    /// The path was lost while the command was with the target, and has been down for longer than the time
    /// for fast I/O failure. The command changes the medium and may have been done, or be done yet; it has
    /// the same effect when it is sent again.
    #[error("the path was lost while the command was under way; it may still be done")]
    LostUnderWay {
        /// When the connection had ended, on the reactor's clock (nanoseconds).
        at: Nanos,
    },
    /// The path has been down for longer than the time for fast I/O failure. The command was not sent, or
    /// changes nothing.
    #[error("the path to the target is down")]
    PathDown,
    /// Another unit has the number now, or the unit no longer says who it is. The command was not sent to it.
    #[error("another unit has the number of this one now")]
    OtherUnit,
    /// Acknowledged writes may have been lost with the target's power.
    #[error("the target lost power with writes that had not been flushed")]
    LostCache,
    /// The session was closed.
    #[error("the session is closed")]
    Closed,
    /// The request cannot be sent as it is.
    #[error("{0}")]
    Invalid(String),
    /// The fabric has no room.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A login failed.
    #[error(transparent)]
    Login(#[from] ChannelError),
}

fn scsi(status: u8, sense: Option<&Sense>) -> String {
    match (sense, Status::from_code(status)) {
        (Some(s), _) => format!("the target answered {s}"),
        (None, Some(s)) => format!("the target answered {s:?}"),
        (None, None) => format!("the target answered status {status:#04x}"),
    }
}

impl Error {
    /// From a command that ended with something else than GOOD.
    pub(crate) fn of(o: &Outcome) -> Error {
        match o.failure {
            Some(code) => Error::Response(code),
            None => Error::Scsi { status: o.status, sense: Sense::parse(o.sense()) },
        }
    }

    /// True when another path to the same unit may do better.
    pub fn is_path(&self) -> bool {
        matches!(
            self,
            Error::PathDown
                | Error::LostUnderWay { .. }
                | Error::TimedOut
                | Error::OtherUnit
                | Error::Closed
                | Error::Login(_)
        )
    }

    /// The sense data, if the target sent some.
    pub fn sense(&self) -> Option<&Sense> {
        match self {
            Error::Scsi { sense, .. } => sense.as_ref(),
            _ => None,
        }
    }
}

impl From<Unfinished> for Error {
    fn from(u: Unfinished) -> Error {
        match u {
            Unfinished::NotSent | Unfinished::Stale => Error::PathDown,
            Unfinished::InDoubt => Error::InDoubt,
            Unfinished::Aborted => Error::TimedOut,
            Unfinished::Invalid(why) => Error::Invalid(why.to_owned()),
            Unfinished::Fabric(e) => Error::Fabric(e),
        }
    }
}

//! Errors that people can act on: what happened, why, and what to do.

/// The class of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// This process may not do it.
    Denied,
    /// The kernel or the volume cannot do it.
    Unsupported,
    /// An attachment of that name is there already.
    Exists,
    /// The disk is in use.
    Busy,
    /// There is no such attachment.
    NotFound,
    /// Nobody answers at the address.
    Unreachable,
    /// The target has no such volume for this host.
    NoVolume,
    /// The request makes no sense.
    Invalid,
    /// Somebody has ended it before it was done.
    Interrupted,
    /// Anything else.
    Failed,
}

/// What happened, why, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}: {reason}")]
pub struct Error {
    /// The class.
    pub kind: Kind,
    /// What happened.
    pub message: String,
    /// Why.
    pub reason: String,
    /// What to do.
    pub hint: String,
}

impl Error {
    /// Puts one together.
    pub fn new(
        kind: Kind,
        message: impl ToString,
        reason: impl ToString,
        hint: impl ToString,
    ) -> Error {
        Error {
            kind,
            message: message.to_string(),
            reason: reason.to_string(),
            hint: hint.to_string(),
        }
    }

    /// A failure of the operating system.
    pub(crate) fn system(message: impl ToString, e: &std::io::Error) -> Error {
        let denied = e.kind() == std::io::ErrorKind::PermissionDenied;
        let kind = if denied { Kind::Denied } else { Kind::Failed };
        let hint = if denied { "run it as root" } else { "" };
        Error::new(kind, message, e, hint)
    }
}

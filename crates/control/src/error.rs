//! Errors that people and programs can act on, and the one table behind them.
//!
//! Every failure of the control plane says what happened, why, and what to do, and carries a stable code. HTTP status
//! and exit code of the command line follow from the code's kind, by the tables in this file and nowhere else.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// The control plane's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The class of a failure. It decides the HTTP status and the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Something failed that the request could not have avoided.
    Failed,
    /// The request itself is wrong.
    Invalid,
    /// What it names does not take the request's method.
    Method,
    /// What it names does not exist.
    NotFound,
    /// It contradicts the present state.
    Conflict,
    /// The daemon does not answer.
    Unreachable,
    /// There is not enough room.
    Capacity,
    /// This build or this object cannot do it.
    Unsupported,
    /// The caller may not do it.
    Denied,
    /// Data read back differs from data written.
    Mismatch,
    /// The daemon has ended and had to leave something as it was.
    Left,
}

/// One row per kind: kind, title, HTTP status, exit code of `weir`.
pub const KINDS: &[(Kind, &str, u16, u8)] = &[
    (Kind::Failed, "the operation failed", 500, 1),
    (Kind::Invalid, "wrong usage or invalid value", 400, 2),
    (Kind::NotFound, "no such object", 404, 3),
    (Kind::Conflict, "conflicts with the present state", 409, 4),
    (Kind::Unreachable, "the daemon or target cannot be reached", 503, 5),
    (Kind::Capacity, "not enough room", 507, 6),
    (Kind::Unsupported, "not supported", 501, 7),
    (Kind::Denied, "not allowed", 401, 8),
    (Kind::Mismatch, "data read back differs from data written", 500, 9),
    (Kind::Left, "the daemon has ended, and not everything could be closed", 500, 10),
    (Kind::Method, "not a method of this path", 405, 11),
];

impl Kind {
    fn row(self) -> &'static (Kind, &'static str, u16, u8) {
        KINDS.iter().find(|r| r.0 == self).unwrap_or(&KINDS[0])
    }

    /// A short title.
    pub fn title(self) -> &'static str {
        self.row().1
    }

    /// The HTTP status of a response that carries such an error.
    pub fn http_status(self) -> u16 {
        self.row().2
    }

    /// The exit code of a command that ends with such an error.
    pub fn exit_code(self) -> u8 {
        self.row().3
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $text:literal, $kind:ident;)*) => {
        /// Stable machine-readable codes. A code keeps its meaning for ever; new ones may join.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code { $($(#[$doc])* $variant,)* }

        /// Every code with its text and kind.
        pub const CODES: &[(Code, &str, Kind)] = &[$((Code::$variant, $text, Kind::$kind),)*];
    };
}

codes! {
    /// A name breaks the rules for names.
    InvalidName = "invalid_name", Invalid;
    /// A size is zero, too large or not a multiple of the block size.
    InvalidSize = "invalid_size", Invalid;
    /// A block size other than 512 or 4096.
    InvalidBlockSize = "invalid_block_size", Invalid;
    /// A device specification that makes no sense.
    InvalidDevice = "invalid_device", Invalid;
    /// A volume layout that the pool's devices cannot give.
    InvalidLayout = "invalid_layout", Invalid;
    /// An initiator or target port identifier that cannot be used.
    InvalidPort = "invalid_port", Invalid;
    /// A LUN outside 0 to 16383.
    InvalidLun = "invalid_lun", Invalid;
    /// A network address that cannot be read.
    InvalidAddress = "invalid_address", Invalid;
    /// A request whose body, path or query cannot be read.
    InvalidRequest = "invalid_request", Invalid;
    /// A configuration file that cannot be read or makes no sense.
    InvalidConfig = "invalid_config", Invalid;
    /// The path does not take the method.
    MethodNotAllowed = "method_not_allowed", Method;
    /// No such path in the interface.
    NotFound = "not_found", NotFound;
    /// No such pool.
    PoolNotFound = "pool_not_found", NotFound;
    /// No such volume.
    VolumeNotFound = "volume_not_found", NotFound;
    /// No such snapshot.
    SnapshotNotFound = "snapshot_not_found", NotFound;
    /// The volume is not being migrated.
    MigrationNotFound = "migration_not_found", NotFound;
    /// The volume has no such layer.
    LayerNotFound = "layer_not_found", NotFound;
    /// No such host.
    HostNotFound = "host_not_found", NotFound;
    /// No such mapping.
    MapNotFound = "map_not_found", NotFound;
    /// No such target port.
    TargetNotFound = "target_not_found", NotFound;
    /// A pool of that name exists.
    PoolExists = "pool_exists", Conflict;
    /// A volume of that name exists.
    VolumeExists = "volume_exists", Conflict;
    /// The volume has a snapshot of that name.
    SnapshotExists = "snapshot_exists", Conflict;
    /// The volume has a layer of that name.
    LayerExists = "layer_exists", Conflict;
    /// A host of that name exists.
    HostExists = "host_exists", Conflict;
    /// The volume is mapped to that host already.
    MapExists = "map_exists", Conflict;
    /// The pool still holds volumes.
    PoolInUse = "pool_in_use", Conflict;
    /// The volume is still mapped.
    VolumeMapped = "volume_mapped", Conflict;
    /// What the volume holds is not known, and others may use it.
    VolumeInUse = "volume_in_use", Conflict;
    /// Another host has reserved the volume.
    VolumeReserved = "volume_reserved", Conflict;
    /// A volume was made of the snapshot, or newer snapshots need it.
    SnapshotInUse = "snapshot_in_use", Conflict;
    /// A scrub of the pool is under way already.
    ScrubRunning = "scrub_running", Conflict;
    /// The volume is being deleted.
    VolumeDeleting = "volume_deleting", Conflict;
    /// A migration was ended before its cut-over.
    MigrationCancelled = "migration_cancelled", Conflict;
    /// The volume is being migrated.
    VolumeMigrating = "volume_migrating", Conflict;
    /// The host still has mappings.
    HostMapped = "host_mapped", Conflict;
    /// The host has another volume under that LUN.
    LunInUse = "lun_in_use", Conflict;
    /// The port identifier or address belongs to another object.
    PortInUse = "port_in_use", Conflict;
    /// Hosts are logged in at the target port.
    TargetInUse = "target_in_use", Conflict;
    /// The device belongs to a pool already.
    DeviceInUse = "device_in_use", Conflict;
    /// The pool, or its device, does not stand so that this can be done about it.
    DeviceState = "device_state", Conflict;
    /// A smaller size was asked for without leave to lose data.
    ShrinkRefused = "shrink_refused", Conflict;
    /// A property that cannot change after creation.
    ImmutableField = "immutable_field", Conflict;
    /// Another daemon uses the data directory.
    DataDirInUse = "data_dir_in_use", Conflict;
    /// The pool or another object that this needs did not start.
    NotReady = "not_ready", Conflict;
    /// A key source gives no key now.
    KeyUnavailable = "key_unavailable", Conflict;
    /// A key source gives another key than the one that is needed.
    WrongKey = "wrong_key", Conflict;
    /// The pool has too little free space.
    PoolFull = "pool_full", Capacity;
    /// Little more can be written to a pool.
    PoolNearlyFull = "pool_nearly_full", Capacity;
    /// A bound on the number of objects is reached.
    TooMany = "too_many", Capacity;
    /// The daemon's start is not over: what is configured is not in effect yet.
    Starting = "starting", Unreachable;
    /// The process may have fewer descriptors than it may need.
    TooFewDescriptors = "too_few_descriptors", Capacity;
    /// The daemon cannot be reached.
    DaemonUnreachable = "daemon_unreachable", Unreachable;
    /// A target cannot be reached.
    TargetUnreachable = "target_unreachable", Unreachable;
    /// This build, this object or this machine cannot do it.
    Unsupported = "unsupported", Unsupported;
    /// The request lacks the right token.
    Unauthorized = "unauthorized", Denied;
    /// The daemon has ended, and something stands still that it could not close; nothing acknowledged is lost by that.
    LeftOpen = "left_open", Left;
    /// Data read back is not what was written.
    DataMismatch = "data_mismatch", Mismatch;
    /// The operating system failed an operation on a file, device or socket.
    IoError = "io_error", Failed;
    /// A migration ended with a failure; the volume is where it was.
    MigrationFailed = "migration_failed", Failed;
    /// A layer could not be put in; the volume is as it was.
    LayerFailed = "layer_failed", Failed;
    /// A protected pool serves with less protection than it was made for.
    PoolDegraded = "pool_degraded", Failed;
    /// A device of a protected pool gives damaged data or errors again and again.
    DeviceDoubtful = "device_doubtful", Failed;
    /// Blocks of volumes or snapshots have no good copy.
    DataLost = "data_lost", Failed;
    /// A periodic snapshot is not made, or one that is too many not deleted.
    SnapshotOverdue = "snapshot_overdue", Failed;
    /// The devices of a protected pool do not carry the newest configuration.
    RecordBehind = "record_behind", Failed;
    /// The devices of a protected pool carry a newer configuration than the node has.
    RecordNewer = "record_newer", Conflict;
    /// A protected pool's devices are missing or damaged, or are not that pool's.
    PoolDamaged = "pool_damaged", Failed;
    /// The opening of a pool had begun to write, and did not come to its end.
    PoolUnfinished = "pool_unfinished", Failed;
    /// The wrapped key of an encrypted volume is damaged.
    KeyDamaged = "key_damaged", Failed;
    /// The configuration store on disk is damaged or of another version.
    StoreUnusable = "store_unusable", Failed;
    /// A fault inside Weir.
    Internal = "internal", Failed;
}

impl Code {
    fn row(self) -> &'static (Code, &'static str, Kind) {
        CODES.iter().find(|r| r.0 == self).unwrap_or(&CODES[CODES.len() - 1])
    }

    /// The code's text, as in the `code` member of a problem document.
    pub fn as_str(self) -> &'static str {
        self.row().1
    }

    /// The code's kind.
    pub fn kind(self) -> Kind {
        self.row().2
    }

    /// The code with this text, if this build knows it.
    pub fn parse(text: &str) -> Option<Code> {
        CODES.iter().find(|r| r.1 == text).map(|r| r.0)
    }
}

/// A failure with what a person needs to go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The stable code; its kind decides HTTP status and exit code.
    pub code: Code,
    /// What went wrong, as a sentence without a full stop.
    pub message: String,
    /// Why. May be empty.
    pub reason: String,
    /// What to do about it. May be empty.
    pub hint: String,
}

impl Error {
    /// What went wrong; add [`because`](Self::because) and [`hint`](Self::hint).
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error { code, message: message.into(), reason: String::new(), hint: String::new() }
    }

    /// Adds why it went wrong.
    pub fn because(mut self, reason: impl fmt::Display) -> Error {
        self.reason = reason.to_string();
        self
    }

    /// Adds what to do about it.
    pub fn hint(mut self, hint: impl Into<String>) -> Error {
        self.hint = hint.into();
        self
    }

    /// The class of the failure.
    pub fn kind(&self) -> Kind {
        self.code.kind()
    }

    /// The error as the document that the REST interface sends.
    pub fn problem(&self) -> Problem {
        let some = |s: &String| (!s.is_empty()).then(|| s.clone());
        Problem {
            type_: format!("urn:weir:error:{}", self.code.as_str()),
            title: self.kind().title().to_string(),
            status: self.kind().http_status(),
            detail: self.message.clone(),
            code: self.code.as_str().to_string(),
            reason: some(&self.reason),
            hint: some(&self.hint),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.reason.is_empty() {
            write!(f, ": {}", self.reason)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// What to do about a request body that could not be read whole.
pub(crate) const MAX_BODY_HINT: &str = "a body may have up to 8 MiB; send it in parts";

/// An error on the wire: `application/problem+json` (RFC 9457) with a stable code, a reason and a hint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `urn:weir:error:` and the code.
    #[serde(rename = "type")]
    pub type_: String,
    /// The title of the error's kind.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What went wrong.
    pub detail: String,
    /// The stable code.
    pub code: String,
    /// Why it went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl From<Problem> for Error {
    fn from(p: Problem) -> Error {
        // A newer daemon may know codes that we do not; its status still gives the right class.
        let code = Code::parse(&p.code).unwrap_or(match p.status {
            400 => Code::InvalidRequest,
            401 | 403 => Code::Unauthorized,
            404 => Code::NotFound,
            409 => Code::NotReady,
            501 => Code::Unsupported,
            503 => Code::DaemonUnreachable,
            507 => Code::TooMany,
            _ => Code::Internal,
        });
        Error {
            code,
            message: p.detail,
            reason: p.reason.unwrap_or_default(),
            hint: p.hint.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_whole_and_unambiguous() {
        for (i, (code, text, kind)) in CODES.iter().enumerate() {
            assert_eq!(Code::parse(text), Some(*code));
            assert_eq!(code.kind(), *kind);
            assert!(CODES[i + 1..].iter().all(|r| r.1 != *text), "{text} twice");
            assert!(KINDS.iter().any(|r| r.0 == *kind));
        }
        for (i, row) in KINDS.iter().enumerate() {
            assert!(KINDS[i + 1..].iter().all(|r| r.0 != row.0 && r.3 != row.3), "{row:?}");
            assert!(row.3 != 0 && (400..600).contains(&row.2));
        }
    }

    #[test]
    fn an_error_survives_the_wire() {
        for (code, _, _) in CODES {
            let e = Error::new(*code, "what").because("why").hint("do this");
            let json = serde_json::to_string(&e.problem()).unwrap();
            let p: Problem = serde_json::from_str(&json).unwrap();
            assert_eq!(Error::from(p), e);
        }
        let mut p = Error::new(Code::PoolFull, "x").problem();
        p.code = "from_the_future".into();
        assert_eq!(Error::from(p).kind(), Kind::Capacity);
    }
}

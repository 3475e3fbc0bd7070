//! Devices of pools.

use crate::units;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a pool's device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A regular file, created sparse when it does not exist.
    File,
    /// A directory in which every volume gets a sparse file of its own.
    Dir,
    /// A block device.
    Block,
    /// Memory; the content is gone after a restart.
    Ram,
    /// Nothing: writes vanish, reads give zeroes. For measurements.
    Null,
    /// A volume of another node, reached by BRP.
    Brp,
}

impl DeviceKind {
    /// The word that JSON, TOML and the command line use.
    pub fn as_str(self) -> &'static str {
        match self {
            DeviceKind::File => "file",
            DeviceKind::Dir => "dir",
            DeviceKind::Block => "block",
            DeviceKind::Ram => "ram",
            DeviceKind::Null => "null",
            DeviceKind::Brp => "brp",
        }
    }

    /// Whether such a device is found under a path of this machine.
    pub fn has_path(self) -> bool {
        matches!(self, DeviceKind::File | DeviceKind::Dir | DeviceKind::Block)
    }

    /// Whether it is another node's.
    pub fn is_remote(self) -> bool {
        self == DeviceKind::Brp
    }
}

/// A device to put into a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(
    deny_unknown_fields,
    expecting = "a device such as { kind = \"file\", path = \"/srv/disk0.img\", size = \"100G\" }"
)]
pub struct DeviceSpec {
    /// What it is.
    pub kind: DeviceKind,
    /// Where it is: an absolute path, for `file`, `dir` and `block`; an address such as `brp://HOST:PORT/VOLUME` for `brp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Size in bytes. Needed for `ram`, `null` and a file that does not exist yet; a file that is smaller is made
    /// larger. Not for `dir`, `block` and `brp`, which have the size that they report.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "units::opt_size"
    )]
    pub size: Option<u64>,
}

/// A device of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Device {
    /// What it is.
    pub kind: DeviceKind,
    /// Where it is, for `file`, `dir`, `block` and `brp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Size in bytes; 0 for `dir`, and until a device was opened for the first time.
    pub size: u64,
    /// It is still to be made: only such a file or directory is made when it is not there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub new: bool,
    /// It is being made larger, from so many bytes, which it has at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grown_from: Option<u64>,
    /// It carries the label of its pool, behind its last byte.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub labelled: bool,
    /// What the operating system tells it from others by, of one that carries no label, and of devices of protected pools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
}

impl DeviceSpec {
    /// Where it is on this machine, if it is.
    pub fn local_path(&self) -> Option<&str> {
        self.path.as_deref().filter(|_| self.kind.has_path())
    }
}

impl Device {
    /// Where it is on this machine, if it is.
    pub fn local_path(&self) -> Option<&str> {
        self.path.as_deref().filter(|_| self.kind.has_path())
    }

    /// A device that is there, of which nothing else is known.
    pub fn known(kind: DeviceKind, path: Option<String>, size: u64) -> Device {
        Device { kind, path, size, new: false, grown_from: None, labelled: false, identity: None }
    }

    /// Bytes that it had at least when it was last looked at.
    pub fn had(&self) -> u64 {
        self.grown_from.unwrap_or(self.size)
    }
}

/// How a device of a pool was found when the pool was started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceFound {
    /// Its bytes, without what its label takes; 0 of a directory.
    pub size: u64,
    /// It carries the label of its pool.
    pub labelled: bool,
    /// What the operating system tells it from others by, if it carries none, or is of a protected pool.
    pub identity: Option<String>,
    /// Bytes that a plain pool's disk has gained, and that the pool does not take unasked.
    pub gained: u64,
}

impl From<u64> for DeviceFound {
    fn from(size: u64) -> Self {
        DeviceFound { size, ..DeviceFound::default() }
    }
}

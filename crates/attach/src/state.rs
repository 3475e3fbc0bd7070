//! What is known of an attachment while it lasts, in files that outlive its process: one directory each.

mod links;
mod place;
mod process;
mod witness;

pub(crate) use place::ELSEWHERE;
pub use place::Place;
pub(crate) use process::Process;
pub use process::{Home, Life};

use serde::{Deserialize, Serialize};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Where attachments are kept, unless somebody says otherwise.
pub const RUN_DIR: &str = "/run/weir/attach";

/// How the kernel is given the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// The kernel's driver for block devices in user space.
    Ublk,
    /// The kernel's driver for network block devices.
    Nbd,
    /// A FUSE file and a loop device.
    Fuse,
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Method::Ublk => "ublk",
            Method::Nbd => "nbd",
            Method::Fuse => "fuse",
        })
    }
}

/// What `weir attach` has made at the daemon of this machine, so that it lets the attachment in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapped {
    /// The daemon, as `unix:PATH`.
    pub server: String,
    /// The host that sees the volume.
    pub host: String,
    /// The host was made, too, not only its mapping.
    pub made_host: bool,
    /// The volume's name there.
    pub volume: String,
    /// The volume's world-wide name there: the name alone may be given to another.
    pub naa: String,
    /// The number by which the host sees it; none: it is not known whether the mapping was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lun: Option<u16>,
    /// The daemon has refused the mapping: one that is there is somebody else's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unmapped: bool,
    /// The initiator port was given: other programs may use the volume by it, too. Taken as given where it is not known.
    #[serde(default = "unknown")]
    pub shared: bool,
}

/// Whether others have the port, where that was not written down.
fn unknown() -> bool {
    true
}

/// What is made for an attachment elsewhere: written down before it is made, and kept until it was taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// What it is.
    pub mapped: Mapped,
    /// The attachment's initiator port.
    pub initiator_port: String,
    /// The targets for which it has the port, where others may have it for others; none: it has it for all, or that was not
    /// written down.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<SocketAddr>,
    /// The process that makes it.
    pub pid: u32,
    /// When that started; see [`State::started`].
    pub started: u64,
    /// Where it has its number.
    #[serde(flatten)]
    pub home: Home,
}

impl Made {
    /// That of this process.
    pub fn here(mapped: Mapped, initiator_port: String, targets: Vec<SocketAddr>) -> Made {
        let Process { pid, started, home } = Process::me();
        Made { mapped, initiator_port, targets, pid, started, home }
    }

    /// That of an attachment which has it in its state.
    pub(crate) fn of(state: &State) -> Option<Made> {
        let Process { pid, started, home } = state.process();
        let (mapped, initiator_port) = (state.mapped.clone()?, state.initiator_port.clone());
        Some(Made { mapped, initiator_port, targets: Vec::new(), pid, started, home })
    }

    pub(crate) fn process(&self) -> Process {
        Process { pid: self.pid, started: self.started, home: self.home }
    }
}

/// Whose the files of an attachment are: written down as soon as they are there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Maker {
    /// The process of the attachment.
    pub(crate) process: Process,
    /// What the kernel is about to give it, or has.
    #[serde(default)]
    pub(crate) disk: Option<(Method, PathBuf)>,
    /// See [`State::diskseq`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) diskseq: Option<u64>,
    /// See [`State::mark`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mark: Option<String>,
    /// The process keeps the file locked for as long as it lives.
    #[serde(default)]
    pub(crate) locked: bool,
}

impl Maker {
    /// One that has nothing yet, by that process.
    pub(crate) fn of(process: Process) -> Maker {
        Maker { process, disk: None, diskseq: None, mark: None, locked: false }
    }
}

/// An attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Its name on this host.
    pub name: String,
    /// The volume.
    pub volume: String,
    /// `brp` or `srp`.
    pub protocol: String,
    /// Addresses of its targets, a path each.
    pub targets: Vec<String>,
    /// Our initiator port.
    pub initiator_port: String,
    /// What identifies the volume, whatever the path.
    pub identity: String,
    /// How the kernel is given the disk.
    pub method: Method,
    /// The disk.
    pub device: PathBuf,
    /// The disk by its name in /dev/weir; none: that cannot be written here.
    pub link: Option<PathBuf>,
    /// Bytes.
    pub size: u64,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Queues, a thread each.
    pub queues: usize,
    /// The process.
    pub pid: u32,
    /// When the process started, in the kernel's ticks: tells it from another one of that number.
    pub started: u64,
    /// Where the process has its number.
    #[serde(flatten)]
    pub home: Home,
    /// What was made at the daemon of this machine for it, and goes with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapped: Option<Mapped>,
    /// The thread that serves it, as the driver told (nbd): in a container that is a number of the machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<u32>,
    /// The kernel's number for what the disk was made as, since the machine started: another one is another disk. None: the
    /// kernel has none (before Linux 5.15), or by that driver it is always the same (nbd).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diskseq: Option<u64>,
    /// A number that no other attachment has. The kernel tells it of the disk: in the name of its file (fuse), among what its
    /// process has said (ublk).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<String>,
}

impl State {
    /// True while its process lives, for certain, as far as its number says.
    pub(crate) fn is_alive(&self) -> bool {
        self.process().is_alive()
    }

    pub(crate) fn process(&self) -> Process {
        Process { pid: self.pid, started: self.started, home: self.home }
    }
}

/// An attachment as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// None: it is being made, or was never finished.
    pub state: Option<State>,
    /// What is known of its process's life.
    pub life: Life,
}

/// All attachments, by name.
pub fn list(run_dir: &Path) -> Vec<Listed> {
    let entries = fs::read_dir(run_dir).into_iter().flatten().flatten();
    let mut all: Vec<_> = entries
        .filter_map(|e| e.file_name().into_string().ok())
        .filter_map(|n| Place::of(run_dir, &n).ok())
        .map(|p| {
            let life = p.life().unwrap_or(Life::Ended);
            Listed { name: p.name().to_owned(), state: p.read(), life }
        })
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

#[cfg(test)]
pub(crate) mod tests;

//! What is known of an attachment while it lasts, in files that outlive its process: one directory each.

use crate::error::{Error, Kind};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Where attachments are kept, unless somebody says otherwise.
pub const RUN_DIR: &str = "/run/weir/attach";
/// Where disks get their names.
const LINKS: &str = "/dev/weir";
const STATE: &str = "state.json";
const MADE: &str = "made.json";

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
}

/// What is made for an attachment elsewhere: written down before it is made, and kept until it was taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// What it is.
    pub mapped: Mapped,
    /// The attachment's initiator port.
    pub initiator_port: String,
    /// The process that makes it.
    pub pid: u32,
    /// When that started; see [`State::started`].
    pub started: u64,
}

impl Made {
    /// That of this process.
    pub fn here(mapped: Mapped, initiator_port: String) -> Made {
        let pid = std::process::id();
        Made { mapped, initiator_port, pid, started: started(pid).unwrap_or(0) }
    }

    /// True while that process lives.
    pub(crate) fn is_alive(&self) -> bool {
        started(self.pid) == Some(self.started)
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
    /// The disk by its name in /dev/weir.
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
    /// What was made at the daemon of this machine for it, and goes with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapped: Option<Mapped>,
}

impl State {
    /// True while its process lives.
    pub fn is_alive(&self) -> bool {
        started(self.pid) == Some(self.started)
    }
}

/// When a process started, in ticks since the machine did; `None` when there is none, or nothing but its exit status.
pub(crate) fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may have anything in it.
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    if matches!(words.next()?, "Z" | "X") {
        return None;
    }
    words.nth(18)?.parse().ok()
}

/// The directory of one attachment.
#[derive(Debug, Clone)]
pub struct Place {
    dir: PathBuf,
    name: String,
}

impl Place {
    /// That of `name`, which may be there or not.
    ///
    /// # Errors
    /// It is no name.
    pub fn of(run_dir: &Path, name: &str) -> Result<Place, Error> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let good = !name.is_empty()
            && name.len() <= 64
            && name.chars().all(fits)
            && !name.starts_with(['.', '-']);
        if !good {
            return Err(Error::new(
                Kind::Invalid,
                format!("`{name}` cannot be the name of an attachment"),
                "it has 1 to 64 letters, digits, dots, hyphens and underlines, and begins with a letter or digit",
                "give another with --name",
            ));
        }
        Ok(Place { dir: run_dir.join(name), name: name.to_owned() })
    }

    /// Makes the directory.
    ///
    /// # Errors
    /// It is there already, or cannot be made.
    pub fn create(&self) -> Result<(), Error> {
        let failed = |e: &io::Error| {
            Error::system(format!("the directory {} cannot be made", self.dir.display()), e)
        };
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700);
        if let Some(parent) = self.dir.parent() {
            builder.recursive(true).create(parent).map_err(|e| failed(&e))?;
        }
        match builder.recursive(false).create(&self.dir) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let why = match self.read() {
                    Some(s) if s.is_alive() => {
                        format!("it is {} (process {})", s.device.display(), s.pid)
                    }
                    Some(_) => "its process has ended and left it behind".into(),
                    None if self.made().is_some_and(|m| !m.is_alive()) => {
                        "what was made for it at the daemon could not be taken back yet".into()
                    }
                    None => "another `weir attach` is making it, or was killed doing so".into(),
                };
                return Err(Error::new(
                    Kind::Exists,
                    format!("there is an attachment {} already", self.name),
                    why,
                    format!(
                        "`weir detach {0}` ends it; --name gives this one another name",
                        self.name
                    ),
                ));
            }
            Err(e) => return Err(failed(&e)),
        }
        let disk = self.disk();
        fs::DirBuilder::new().mode(0o700).create(&disk).map_err(|e| failed(&e))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is there.
    pub fn exists(&self) -> bool {
        self.dir.exists()
    }

    /// Where the file system of the disk is mounted.
    pub fn disk(&self) -> PathBuf {
        self.dir.join("disk")
    }

    /// Where a process in the background writes its log.
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Its name among the devices.
    pub(crate) fn link(&self) -> PathBuf {
        Path::new(LINKS).join(&self.name)
    }

    /// Gives the disk its name in /dev; `None` where that cannot be written.
    pub(crate) fn make_link(&self, device: &Path) -> Option<PathBuf> {
        let link = self.link();
        fs::create_dir_all(LINKS).ok()?;
        // One that is left over from an attachment whose files are gone.
        if fs::read_link(&link).is_ok() {
            fs::remove_file(&link).ok()?;
        }
        std::os::unix::fs::symlink(device, &link).ok()?;
        Some(link)
    }

    /// What is known of it.
    pub fn read(&self) -> Option<State> {
        let text = fs::read_to_string(self.dir.join(STATE)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Whether the files are that attachment's, not those of another one of its name.
    pub(crate) fn is_of(&self, state: &State) -> bool {
        self.read().is_some_and(|s| (s.pid, s.started) == (state.pid, state.started))
    }

    /// Writes down what is known.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn write(&self, state: &State) -> Result<(), Error> {
        self.write_as(STATE, state)
    }

    fn write_as(&self, name: &str, what: &impl Serialize) -> Result<(), Error> {
        let failed = |e: &dyn std::fmt::Display| {
            Error::new(Kind::Failed, "the state cannot be written", e, "")
        };
        let text = serde_json::to_string_pretty(what).map_err(|e| failed(&e))?;
        let new = self.dir.join("state.new");
        fs::write(&new, text + "\n").map_err(|e| failed(&e))?;
        fs::rename(&new, self.dir.join(name)).map_err(|e| failed(&e))
    }

    /// What is made for it elsewhere, or may be.
    pub(crate) fn made(&self) -> Option<Made> {
        let text = fs::read_to_string(self.dir.join(MADE)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Writes down what is about to be made for it elsewhere, or that nothing is.
    pub(crate) fn write_made(&self, made: Option<&Made>) -> Result<(), Error> {
        match made {
            Some(made) => self.write_as(MADE, made),
            None => {
                let _ = fs::remove_file(self.dir.join(MADE));
                Ok(())
            }
        }
    }

    /// Removes all but what is known of what was made elsewhere, for who can take that back.
    pub(crate) fn leave_made(&self) {
        if let Some(link) = self.read().and_then(|s| s.link) {
            let _ = fs::remove_file(link);
        }
        let _ = fs::remove_file(self.dir.join(STATE));
        let _ = fs::remove_dir(self.disk());
    }

    /// Removes the files. Nothing is mounted any more.
    pub(crate) fn remove(&self) {
        if let Some(link) = self.read().and_then(|s| s.link) {
            let _ = fs::remove_file(link);
        }
        for name in [STATE, MADE, "state.new", "log"] {
            let _ = fs::remove_file(self.dir.join(name));
        }
        // Never with what is in it: should something be mounted there still, it is not ours to delete.
        let _ = fs::remove_dir(self.disk());
        let _ = fs::remove_dir(&self.dir);
    }
}

/// All attachments, by name; without a state when one is being made, or was never finished.
pub fn list(run_dir: &Path) -> Vec<(String, Option<State>)> {
    let entries = fs::read_dir(run_dir).into_iter().flatten().flatten();
    let mut all: Vec<_> = entries
        .filter_map(|e| e.file_name().into_string().ok())
        .filter_map(|n| Place::of(run_dir, &n).ok())
        .map(|p| (p.name.clone(), p.read()))
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_used_once() {
        for bad in ["", ".", "..", "a/b", "-x", "a b", &"x".repeat(65)] {
            assert_eq!(Place::of(Path::new("/x"), bad).unwrap_err().kind, Kind::Invalid, "{bad}");
        }
        let dir = std::env::temp_dir().join(format!("weir-attach-state-{}", std::process::id()));
        let place = Place::of(&dir, "db-01").unwrap();
        place.create().unwrap();
        assert_eq!(place.create().unwrap_err().kind, Kind::Exists);
        assert_eq!(list(&dir), [("db-01".to_owned(), None)]);
        let me = std::process::id();
        let state = State {
            name: "db-01".into(),
            volume: "db-01".into(),
            protocol: "brp".into(),
            targets: vec!["127.0.0.1:5556".into()],
            initiator_port: String::new(),
            identity: "6001".into(),
            method: Method::Fuse,
            device: "/dev/loop0".into(),
            link: None,
            size: 1 << 30,
            block_size: 512,
            read_only: false,
            queues: 1,
            pid: me,
            started: started(me).unwrap(),
            mapped: None,
        };
        place.write(&state).unwrap();
        assert_eq!(place.read().as_ref(), Some(&state));
        assert!(state.is_alive() && place.is_of(&state));
        assert!(!place.is_of(&State { pid: me + 1, ..state.clone() }), "another's by that name");
        assert!(!State { started: state.started + 1, ..state.clone() }.is_alive());
        place.remove();
        assert!(!place.exists());
        fs::remove_dir(dir).unwrap();
    }
}

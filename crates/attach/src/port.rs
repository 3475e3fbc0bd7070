//! The claim of an initiator port on this machine. Two sessions of one port end each other at a target, and what is mapped for
//! one is the other's, so each port is one attachment's: whatever its run directory, and for as long as its process lives.
//!
//! A port is a file that the kernel has locked for the process, in a directory that only root may open: nobody else can keep a
//! port. Who has it for all targets has the file for itself. Who has it for some targets shares it with those who have it
//! for others, and has a file for each of its own.

use crate::error::{Error, Kind};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

/// Where the files are. They stay until the machine starts anew.
const DIR: &str = "/run/weir/ports";
/// How long one that ends may take to let go: the daemon has 4 s to take back what was made.
const WAIT: Duration = Duration::from_secs(6);
const STEP: Duration = Duration::from_millis(20);

/// An initiator port that is this process's. The kernel gives it back when the process ends.
#[derive(Debug)]
pub struct PortClaim {
    _files: Vec<File>,
}

/// Claims an initiator port; where it goes `to` some targets only, whoever gives two attachments one port may have them at
/// different ones. Without any it is claimed as a whole.
///
/// # Errors
/// Another process of this machine has it, or nothing can be locked in `/run`.
pub fn claim(port: &str, to: &[SocketAddr]) -> Result<PortClaim, Error> {
    claim_in(Path::new(DIR), port, to, WAIT)
}

fn claim_in(dir: &Path, port: &str, to: &[SocketAddr], wait: Duration) -> Result<PortClaim, Error> {
    let failed = |e: &io::Error| unusable(dir, port, e);
    make(dir).map_err(|e| failed(&e))?;
    let hex: String = port.chars().filter(char::is_ascii_hexdigit).collect();
    let hex = hex.to_ascii_lowercase();
    let lock = |name: &str, shared: bool| match lock(&dir.join(name), shared, wait) {
        Ok(file) => Ok(file),
        Err((TryLockError::WouldBlock, file)) => Err(taken(port, file.as_ref().and_then(holder))),
        Err((TryLockError::Error(e), _)) => Err(failed(&e)),
    };
    let mut files = vec![lock(&hex, !to.is_empty())?];
    for to in to {
        files.push(lock(&format!("{hex}@{to}"), false)?);
    }
    Ok(PortClaim { _files: files })
}

/// Makes the directory, for root only: whoever may open a file may lock it.
fn make(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let m = fs::symlink_metadata(dir)?;
    if !m.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    if m.mode() & 0o077 != 0 {
        fs::set_permissions(dir, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// A file that is locked; else why not, with the file that another has.
fn lock(path: &Path, shared: bool, wait: Duration) -> Result<File, (TryLockError, Option<File>)> {
    let mut waited = Duration::ZERO;
    loop {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(path).map_err(|e| (TryLockError::Error(e), None))?;
        match if shared { file.try_lock_shared() } else { file.try_lock() } {
            // Somebody may have removed it meanwhile: then it is nobody's claim.
            Ok(()) if is_at(&file, path) => return Ok(file),
            Ok(()) => {}
            Err(TryLockError::WouldBlock) if waited < wait => {
                std::thread::sleep(STEP);
                waited += STEP;
            }
            Err(e) => return Err((e, Some(file))),
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let id = |m: fs::Metadata| (m.dev(), m.ino());
    let (file, there) = (file.metadata().map(id), fs::metadata(path).map(id));
    file.is_ok() && file.ok() == there.ok()
}

fn taken(port: &str, pid: Option<u32>) -> Error {
    let why = match pid {
        Some(pid) => format!("process {pid} has it, for another attachment"),
        None => "another attachment has it, whose process is not to be seen".into(),
    };
    Error::new(
        Kind::Busy,
        format!("initiator port {port} is in use on this machine"),
        why,
        "give this one another --name, which makes another port, or another --initiator-port",
    )
}

fn unusable(dir: &Path, port: &str, e: &io::Error) -> Error {
    let denied = e.kind() == io::ErrorKind::PermissionDenied;
    let (kind, hint) = match denied {
        true => (Kind::Denied, "run it as root".to_owned()),
        false => (
            Kind::Failed,
            format!(
                "{} must be where files can be written and locked, as on a tmpfs",
                dir.display()
            ),
        ),
    };
    let why = format!("{}: {e}", dir.display());
    Error::new(kind, format!("initiator port {port} cannot be claimed"), why, hint)
}

/// The process that has locked a file, by its number here; none: it is not to be seen.
fn holder(file: &File) -> Option<u32> {
    let m = file.metadata().ok()?;
    let id = format!("{:02x}:{:02x}:{}", libc::major(m.dev()), libc::minor(m.dev()), m.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    // Number, kind, nature, direction, process, file, range. Who waits for one has an arrow before the kind.
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_it = words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&id.as_str());
        words.get(4).filter(|_| is_it)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::Scratch;

    const SHORT: Duration = Duration::from_millis(100);
    const WHOLE: &[SocketAddr] = &[];

    /// A port of this process: the names of the version before are the machine's.
    fn port(n: u8) -> String {
        format!("{:016X}:00000000000000A{n}", std::process::id())
    }

    fn at(n: u8) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, n], 5556))
    }

    #[test]
    fn a_port_is_one_attachment_s_as_long_as_it_keeps_it() {
        let dir = Scratch::new("ports");
        let (dir, port) = (dir.0.join("ports"), port(1));
        let claim = |to: &[SocketAddr]| claim_in(&dir, &port, to, SHORT);
        let first = claim(WHOLE).unwrap();
        let e = claim(WHOLE).unwrap_err();
        let pid = std::process::id().to_string();
        assert!(e.kind == Kind::Busy && e.reason.contains(&pid), "{e:?}");
        assert!(e.hint.contains("--name") && e.hint.contains("--initiator-port"), "{e:?}");
        // However the port is written.
        assert!(claim_in(&dir, &port.to_lowercase(), WHOLE, SHORT).is_err());
        drop(first);
        let again = claim(WHOLE).unwrap();
        // Who gives it gives another's, also where it goes to one target only.
        assert_eq!(claim(&[at(1)]).unwrap_err().kind, Kind::Busy);
        drop(again);
        let one = claim(&[at(1)]).unwrap();
        let two = claim(&[at(2), at(3)]).unwrap();
        for n in [2, 3] {
            assert!(claim(&[at(n)]).is_err());
        }
        // Nor is one that was given anybody's as a whole.
        assert_eq!(claim(WHOLE).unwrap_err().kind, Kind::Busy);
        drop(one);
        assert_eq!(claim(WHOLE).unwrap_err().kind, Kind::Busy);
        drop(two);
        claim(WHOLE).unwrap();
    }

    #[test]
    fn an_end_has_its_time_to_let_go() {
        let dir = Scratch::new("ports-late");
        let port = port(2);
        let held = claim_in(&dir.0, &port, WHOLE, SHORT).unwrap();
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(held);
        });
        claim_in(&dir.0, &port, WHOLE, WAIT).unwrap();
        ends.join().unwrap();
    }

    #[test]
    fn only_root_can_keep_a_port() {
        let dir = Scratch::new("ports-open");
        let dir = dir.0.join("ports");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
        let _one = claim_in(&dir, &port(3), &[at(1)], SHORT).unwrap();
        let mode = |p: &Path| fs::metadata(p).unwrap().mode() & 0o777;
        assert_eq!(mode(&dir), 0o700);
        assert!(fs::read_dir(&dir).unwrap().all(|e| mode(&e.unwrap().path()) == 0o600));
    }

    /// A directory where nothing can be locked is not a port that another has.
    #[test]
    fn where_nothing_can_be_locked_is_said() {
        let dir = Scratch::new("ports-none");
        let file = dir.0.join("file");
        fs::write(&file, "x").unwrap();
        let e = claim_in(&file.join("ports"), &port(4), WHOLE, SHORT).unwrap_err();
        assert!(e.kind == Kind::Failed && e.hint.contains("locked"), "{e:?}");
        assert!(e.message.contains("cannot be claimed"), "{e:?}");
    }
}

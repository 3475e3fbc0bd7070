//! The names of disks among the devices, and who gave them. A number of the kernel's goes from one attachment to another, or to
//! somebody else, so a name that is left over must not become another's disk. What is not a symbolic link is never touched.

use super::witness::{self, New, Witness};
use super::{Life, Process};
use crate::host::{diskseq, told};
use crate::sys;
use crate::whose;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Locked by who changes names. Only root may open it: whoever may could hold up all others. No disk has such a name.
const LOCK: &str = ".lock";
/// Who gave each name: a directory for root.
const MADE: &str = ".made";
/// How long others may take to change names.
const WAIT: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(10);

/// Who gave a name, and to what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Given {
    /// The attachment's directory.
    pub(super) dir: PathBuf,
    /// The attachment's process.
    #[serde(flatten)]
    pub(super) process: Process,
    /// The disk; none: it is yet to be made.
    #[serde(default)]
    pub(super) device: Option<PathBuf>,
    /// The kernel's number for what the disk was then: another one is another disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) diskseq: Option<u64>,
    /// The process keeps the record locked for as long as it lives.
    #[serde(default)]
    locked: bool,
}

impl Given {
    /// A name that is kept for an attachment.
    pub(super) fn to(dir: &Path, process: Process) -> Given {
        Given { dir: dir.to_owned(), process, device: None, diskseq: None, locked: false }
    }

    /// The same with its disk.
    pub(super) fn with(self, device: &Path) -> Given {
        let diskseq = diskseq(device);
        Given { device: Some(device.to_owned()), diskseq, ..self }
    }

    fn is_of(&self, other: &Given) -> bool {
        self.dir == other.dir && self.process == other.process
    }

    /// Whether it certainly has no disk any more.
    fn is_over(&self) -> bool {
        let Some(device) = self.device.as_ref().filter(|_| sys::shows_disks()) else {
            return false;
        };
        let changed = |now| self.diskseq.is_some_and(|then| then != now);
        is_no_disk(device)
            || self.process.home.is_of_another_boot()
            || diskseq(device).is_some_and(changed)
    }

    /// Why nobody else may have the name, whose record is there.
    fn holds(&self, link: &Path) -> Option<String> {
        let whose =
            |how: &str| format!("it is that of the attachment in {}, {how}", self.dir.display());
        let pid = self.process.pid;
        let witness = || match read(link) {
            Some((now, witness)) if now.is_of(self) => witness,
            _ => Witness::Unknown,
        };
        match self.process.life_by(witness) {
            Life::Alive => Some(whose(&format!("process {pid}"))),
            Life::Elsewhere if self.is_over() => None,
            Life::Elsewhere => {
                Some(whose(&format!("process {pid} of another pid namespace, which may live")))
            }
            Life::Ended => {
                let device = self.device.as_ref().filter(|_| !self.is_over())?;
                let used = whose::is_used(&self.dir, self.process, device);
                used.then(|| whose(&format!("whose disk {} is in use yet", device.display())))
            }
        }
    }
}

/// Whether the kernel has no disk by this name.
fn is_no_disk(device: &Path) -> bool {
    let listed = Path::new("/sys/class/block").join(device.file_name().unwrap_or_default());
    told(device, "size").map_or(!listed.exists(), |sectors| sectors == 0)
}

/// Keeps other attachments from changing names meanwhile; nothing where no lock can be made.
///
/// # Errors
/// Somebody has it for too long.
fn locked(dir: &Path) -> io::Result<Option<File>> {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let Ok(file) = options.open(dir.join(LOCK)) else { return Ok(None) };
    for _ in 0..WAIT.as_millis() / STEP.as_millis() {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) => std::thread::sleep(STEP),
            Err(TryLockError::Error(_)) => return Ok(None),
        }
    }
    let why =
        format!("somebody has {} for more than {} s", dir.join(LOCK).display(), WAIT.as_secs());
    Err(io::Error::other(why))
}

/// Where is written who gave a name.
pub(super) fn record(link: &Path) -> PathBuf {
    let (dir, name) = (link.parent().unwrap_or(link), link.file_name().unwrap_or_default());
    dir.join(MADE).join(name)
}

/// Who gave a name; none: an older version, or nobody.
fn given(link: &Path) -> Option<Given> {
    read(link).map(|(given, _)| given)
}

fn read(link: &Path) -> Option<(Given, Witness)> {
    witness::read(&record(link), |g: &Given| g.locked)
}

/// Writes down who gave a name. The file that it gives says that this process lives.
fn write(link: &Path, by: &Given) -> io::Result<File> {
    let file = record(link);
    let mut dir = fs::DirBuilder::new();
    dir.recursive(true).mode(0o700).create(file.parent().unwrap_or(&file))?;
    // No attachment has a name that begins with a dot. In another pid namespace another process has this number.
    let new = file.with_file_name(format!(".{}", std::process::id()));
    let _ = fs::remove_file(&new);
    let made = New::at(&new)?;
    let text = serde_json::to_vec(&Given { locked: made.locked, ..by.clone() })?;
    let made = made.write(&text)?;
    fs::rename(&new, file)?;
    Ok(made)
}

/// Takes every name away that a device has from before. Whoever got the device does this before it is a disk.
pub(super) fn take_all(dir: &Path, device: &Path) -> io::Result<()> {
    let _one = locked(dir)?;
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        remove_one(&entry.path(), device)?;
    }
    Ok(())
}

/// Takes a name away from a disk, and keeps it for `by`; also where others hold the lock: an end does not wait for them.
/// Where it is not written down who gave it, the disk must be `ours`. True: it had the name.
pub(super) fn hide(link: &Path, by: &Given, device: &Path, ours: bool) -> bool {
    let _one = link.parent().and_then(|dir| locked(dir).ok());
    let may = given(link).map_or(ours, |g| g.is_of(by));
    may && remove_one(link, device).unwrap_or(false)
}

/// Gives a name back that `by` has, whoever has the device now. Where it is not written down who gave it, it goes with these
/// devices, unless they are the disk of some attachment.
pub(super) fn give_back(link: &Path, by: &Given, devices: &[PathBuf]) {
    let _one = link.parent().and_then(|dir| locked(dir).ok());
    match given(link) {
        Some(g) if g.is_of(by) => {
            for device in g.device.iter().chain(devices) {
                let _ = remove_one(link, device);
            }
            let _ = fs::remove_file(record(link));
        }
        Some(_) => {}
        None => {
            for device in devices.iter().filter(|d| is_no_disk(d) || !whose::looks_attached(d)) {
                let _ = remove_one(link, device);
            }
        }
    }
}

fn remove_one(link: &Path, device: &Path) -> io::Result<bool> {
    let is = is_to(link, device);
    if is {
        fs::remove_file(link)?;
    }
    Ok(is)
}

/// Whether a name is this device's.
pub(super) fn is_to(link: &Path, device: &Path) -> bool {
    fs::read_link(link).is_ok_and(|to| to == device)
}

/// Why a name must stay that nobody is known to have given. What is not known counts as the disk of an attachment.
fn stays(link: &Path) -> Option<&'static str> {
    let target = match fs::canonicalize(link) {
        Ok(target) => target,
        Err(e) if e.kind() == ErrorKind::NotFound => return None,
        Err(_) => return Some("which cannot be looked at"),
    };
    if !fs::metadata(&target).is_ok_and(|m| m.file_type().is_block_device()) {
        return Some("which is no disk");
    }
    let free = sys::shows_disks() && (is_no_disk(&target) || !whose::looks_attached(&target));
    (!free).then_some("which may be the disk of another attachment")
}

/// Keeps others from changing names, once nobody `holds` this one against `by`. That is looked at without the lock: to find who
/// uses a disk takes a while.
///
/// # Errors
/// The name is another's, or somebody has the lock for too long.
fn locked_for(
    link: &Path,
    by: &Given,
    holds: impl Fn(&Given) -> Option<String>,
) -> io::Result<Option<File>> {
    let mut passed = None;
    loop {
        let one = locked(link.parent().unwrap_or(link))?;
        let given = given(link).filter(|g| !g.is_of(by));
        if given == passed {
            return Ok(one);
        }
        drop(one);
        if let Some(why) = given.as_ref().and_then(&holds) {
            return Err(io::Error::other(why));
        }
        passed = given;
    }
}

/// Sees to it that nothing has a name that nobody holds.
fn free(link: &Path) -> io::Result<()> {
    let given = given(link);
    match fs::read_link(link) {
        Ok(to) => {
            let known = given.is_some_and(|g| g.device.as_ref() == Some(&to));
            if let Some(why) = stays(link).filter(|_| !known) {
                return Err(io::Error::other(format!("it leads to {}, {why}", to.display())));
            }
            fs::remove_file(link)
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) if e.kind() == ErrorKind::InvalidInput => {
            Err(io::Error::other("something is there that is no symbolic link"))
        }
        Err(e) => Err(e),
    }
}

/// Keeps a name for an attachment of this process whose disk is yet to be made, for as long as the file that it gives. None: it
/// cannot be written here, and is nobody's.
///
/// # Errors
/// It is another's.
pub(super) fn keep(link: &Path, by: &Given) -> io::Result<Option<File>> {
    let dir = link.parent().unwrap_or(link);
    let unwritten = |e: io::Error| match fs::symlink_metadata(link) {
        Err(none) if none.kind() == ErrorKind::NotFound => {
            tracing::warn!(why = %e, "there will be no {}", link.display());
            Ok(None)
        }
        _ => Err(e),
    };
    if let Err(e) = fs::create_dir_all(dir) {
        return unwritten(e);
    }
    let _one = locked_for(link, by, |g| g.holds(link))?;
    free(link)?;
    write(link, by).map_or_else(unwritten, |file| Ok(Some(file)))
}

/// Gives a disk of this process its name, also if that is from before. The file that it gives says that it lives.
///
/// # Errors
/// The name cannot be written, or is another's.
pub(super) fn make(link: &Path, by: &Given, device: &Path) -> io::Result<File> {
    let dir = link.parent().unwrap_or(link);
    fs::create_dir_all(dir)?;
    let _one = locked_for(link, by, |g| g.holds(link))?;
    free(link)?;
    let file = write(link, &by.clone().with(device))?;
    std::os::unix::fs::symlink(device, link)?;
    Ok(file)
}

/// Gives a name back to the disk that [`hide`] took it from. The record is not written anew: its lock is the attachment's, and
/// this may be another process.
///
/// # Errors
/// The name cannot be written, or is another's.
pub(super) fn show(link: &Path, by: &Given, device: &Path) -> io::Result<()> {
    let _one = locked_for(link, by, |g| g.holds(link))?;
    free(link)?;
    std::os::unix::fs::symlink(device, link)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::{Scratch, ended};
    use std::cell::Cell;

    /// To find who uses a disk takes a while.
    #[test]
    fn others_may_change_names_while_it_is_looked_at_who_has_one() {
        let dir = Scratch::new("locks");
        let link = dir.0.join("a");
        let is_free = || File::open(dir.0.join(LOCK)).unwrap().try_lock().is_ok();
        let old = |name: &str| drop(write(&link, &Given::to(&dir.0.join(name), ended())).unwrap());
        old("b");
        let by = Given::to(&dir.0, Process::me());
        let looked = Cell::new(0);
        let holds = |_: &Given| {
            looked.set(looked.get() + 1);
            assert!(is_free());
            // What was found of one says nothing of the next.
            if looked.get() == 1 {
                old("c");
            }
            None
        };
        let one = locked_for(&link, &by, holds).unwrap();
        assert!(looked.get() == 2 && !is_free());
        drop(one);
        let held = locked_for(&link, &by, |_| Some("it is another's".into()));
        assert!(held.is_err() && is_free());
    }
}

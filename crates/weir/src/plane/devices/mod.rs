//! Devices of pools and files of volumes, held by what they are for as long as they are configured.
//!
//! Nothing is opened on a reactor: the node opens and locks a device once, on a thread that may wait, and reactors share the
//! open file description. So what is locked is what is written, and the lock goes with the last I/O.

mod admit;
mod answers;
mod belongs;
mod below;
mod growing;
mod label;
mod lent;
mod one_path;
mod own;
mod plain;
mod protected;
mod sameness;
mod taken;
#[cfg(test)]
mod tests;
mod yielded;

pub(crate) use admit::{check_blank, check_found, check_words};
pub(crate) use below::To;
pub(crate) use label::whole;
pub(crate) use lent::Lending;
pub(crate) use protected::Make;
pub(in crate::plane) use taken::closed;
use taken::{DEADLINE, check_waited};
pub(crate) use taken::{Taken, Waited, remove};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use weir_control::dataplane::{KnownImage, KnownPool};
use weir_control::{Code, Error, Result};
use weir_uring::device::{Made, is_being_closed, is_closing, locked_by, used_by};
use weir_uring::{Held, HoldError, Identity};

/// How long the last writes of a process that has ended are waited for before that is a fault, which is tried again.
pub(in crate::plane) const PATIENCE: Duration = Duration::from_secs(3);
/// Who has a device open or locked for less than this looks what it is, and uses it no further.
const A_LOOK: Duration = Duration::from_millis(500);
/// How often the lock is tried meanwhile.
const AGAIN: Duration = Duration::from_millis(10);

/// What a device is held for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// A pool.
    Pool(String),
    /// A place of a volume: its name and the place's number.
    Place(String, u32),
    /// A look at it.
    Look,
}

impl Owner {
    /// The name of the pool that it is.
    pub(in crate::plane) fn pool(&self) -> Option<&str> {
        match self {
            Owner::Pool(name) => Some(name),
            _ => None,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Pool(p) => write!(f, "pool `{p}`"),
            Owner::Place(v, _) => write!(f, "volume `{v}`"),
            Owner::Look => f.write_str("another command"),
        }
    }
}

struct Entry {
    owner: Owner,
    path: PathBuf,
    held: Arc<Held>,
    /// Nobody knows yet what it is: if it is not its owner's, it is let go of in a moment.
    looked_at: bool,
    /// It was made for its owner, who does not stand yet.
    made: Option<Made>,
    /// What is in it was looked at for its owner, and may be lost.
    admitted: bool,
    /// So many bytes for volumes it may have from its next start on: what it has gained was looked at.
    grows_to: Option<u64>,
}

/// Everything that the process holds.
#[derive(Default)]
pub(crate) struct Holds {
    entries: Mutex<Vec<Entry>>,
    /// Paths that a thread is busy with, which may never come back.
    asked: Mutex<BTreeSet<PathBuf>>,
    /// Paths that a thread looks at, which takes nothing.
    questions: Mutex<BTreeMap<PathBuf, answers::Question>>,
    /// What has lost its name to another device: it is its owner's as long as it has a disk on it.
    yielded: Mutex<Vec<(Owner, Weak<Held>)>>,
    /// The pools that the configuration has, up or not.
    known: Mutex<Vec<KnownPool>>,
    /// The volumes that are files or disks as they are, up or not.
    images: Mutex<Vec<KnownImage>>,
    /// Devices that have not answered, of those that were to be compared.
    silent: sameness::Silent,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn in_use(path: &Path, why: impl fmt::Display) -> Error {
    Error::new(Code::DeviceInUse, format!("`{}` is in use", path.display()))
        .because(why)
        .hint("end that use first; two users of one device destroy its data")
}

pub(crate) fn unusable(path: &Path, why: impl fmt::Display) -> Error {
    Error::new(Code::IoError, format!("`{}` cannot be used", path.display()))
        .because(why)
        .hint("check that the path exists, is yours to write, and is not in use")
}

/// A name leads to something else than it did.
pub(crate) fn another(path: &Path) -> Error {
    Error::new(Code::PoolDamaged, format!("`{}` is not what it was", path.display()))
        .because("another file or disk has that name now")
        .hint("put the one that had it back under its name; it is tried again every few seconds")
}

/// Whether to wait for a device that somebody has locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Whoever has it may be about to end, as after a restart.
    ForAnybody,
    /// Only for what a process that has ended left behind: a process that lives keeps it.
    ForTheDead,
    /// Not at all.
    No,
}

/// Who in the kernel uses what is at that path.
fn used_at(path: &Path) -> Option<String> {
    used_by(Identity::of(&std::fs::metadata(path).ok()?)?)
}

/// The other process that has it locked.
fn who_locks(path: &Path) -> Option<String> {
    let pid = locked_by(path).filter(|pid| *pid != std::process::id())?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(format!("another program uses it: process {pid} ({}) has it locked", name.trim()))
}

impl Holds {
    /// What is held by that name, for the reactors: one thing at most, see [`named_by`](Holds::named_by).
    pub(crate) fn find(&self, path: &Path) -> Option<Arc<Held>> {
        let is_it = |e: &&Entry| e.path == path && e.owner != Owner::Look;
        lock(&self.entries).iter().find(is_it).map(|e| e.held.clone())
    }

    /// Who else has something by that name. What it leads to may have changed since, and reactors go by the name.
    fn named_by(&self, owner: &Owner, path: &Path) -> Option<Owner> {
        let other = |e: &&Entry| e.path == path && e.owner != *owner && e.owner != Owner::Look;
        let entries = lock(&self.entries);
        let found = entries.iter().find(other).filter(|_| *owner != Owner::Look);
        found.map(|e| e.owner.clone())
    }

    fn of(&self, owner: &Owner, path: &Path) -> Option<Arc<Held>> {
        let entries = lock(&self.entries);
        entries.iter().find(|e| e.owner == *owner && e.path == path).map(|e| e.held.clone())
    }

    /// Who in this process has it, and by which name.
    fn owner_of(&self, identity: Identity) -> Option<(Owner, PathBuf)> {
        let entries = lock(&self.entries);
        let e = entries.iter().find(|e| e.held.identity() == identity)?;
        Some((e.owner.clone(), e.path.clone()))
    }

    /// Whether somebody has it for good whom `is_it` means: it was found to be theirs.
    fn has(&self, identity: Identity, is_it: impl Fn(&Owner) -> bool) -> bool {
        let entries = lock(&self.entries);
        let has = |e: &Entry| e.held.identity() == identity && !e.looked_at && is_it(&e.owner);
        entries.iter().any(has)
    }

    /// Whether somebody in this process has it who is about to see whether it is theirs.
    fn is_looked_at(&self, path: &Path) -> bool {
        let Some(identity) = std::fs::metadata(path).ok().and_then(|m| Identity::of(&m)) else {
            return false;
        };
        let entries = lock(&self.entries);
        let is_it = |e: &Entry| e.held.identity() == identity || e.path == path;
        entries.iter().any(|e| e.looked_at && is_it(e))
    }

    /// What an owner has for good by that name.
    pub(crate) fn kept(&self, owner: &Owner, path: &Path) -> Option<Arc<Held>> {
        let entries = lock(&self.entries);
        let is_it = |e: &&Entry| e.owner == *owner && e.path == path && !e.looked_at;
        entries.iter().find(is_it).map(|e| e.held.clone())
    }

    /// Opens and locks what is at `path` for an owner, who may have it already. May wait as long as the file system does.
    fn open(&self, owner: &Owner, path: &Path, read_only: bool, wait: Wait) -> Result<Arc<Held>> {
        if let Some(held) = self.kept(owner, path) {
            let now = std::fs::metadata(path).map_err(|e| unusable(path, e))?;
            if Identity::of(&now) == Some(held.identity()) && held.is_read_only() == read_only {
                // It may have become larger.
                held.len().map_err(|e| unusable(path, e))?;
                return Ok(held);
            }
            // Another thing has its name now, and nobody uses the one that had it (`check_same`).
            self.release(|e| e.owner == *owner && e.path == path);
        }
        let begun = Instant::now();
        // When it was found locked.
        let mut locked = None;
        // Who in the kernel used it then: whoever asks that opens loop devices, and others may wait for these.
        let mut used = None;
        let mut told = false;
        loop {
            let named = self.named_by(owner, path);
            let opened = match &named {
                None => {
                    match self.yielded_at(owner, path).filter(|h| h.is_read_only() == read_only) {
                        Some(held) => Ok(held),
                        None => Held::open(path, read_only).map(Arc::new),
                    }
                }
                Some(_) => Err(HoldError::Busy),
            };
            match opened {
                Ok(held) => {
                    if told {
                        let ms = begun.elapsed().as_millis();
                        tracing::info!("{}: free after {ms} ms", path.display());
                    }
                    let (owner, path) = (owner.clone(), path.to_owned());
                    let held_too = held.clone();
                    lock(&self.entries).push(Entry {
                        owner,
                        path,
                        held: held_too,
                        looked_at: true,
                        made: None,
                        admitted: false,
                        grows_to: None,
                    });
                    return Ok(held);
                }
                Err(HoldError::Busy) => {}
                Err(HoldError::Kind) => {
                    return Err(Error::new(
                        Code::InvalidDevice,
                        format!("`{}` cannot be a device", path.display()),
                    )
                    .because(HoldError::Kind)
                    .hint("name a file or a block device"));
                }
                Err(HoldError::Io(e)) => return Err(unusable(path, e)),
            }
            let by_name = || named.map(|other| format!("{other} has what had that name"));
            let here = self.here(path).or_else(by_name);
            let lasting =
                here.clone().or_else(|| used.get_or_insert_with(|| used_at(path)).clone());
            let since = *locked.get_or_insert_with(Instant::now);
            // By who looks what it is, such as udev each time that it was written.
            let may_be_a_look = lasting.is_none() && since.elapsed() < A_LOOK;
            let why = lasting.or_else(|| who_locks(path));
            let patient = match wait {
                _ if why.is_none() && is_closing() => true,
                _ if self.is_looked_at(path) => true,
                _ if may_be_a_look => true,
                Wait::No => false,
                Wait::ForTheDead => why.is_none(),
                Wait::ForAnybody => self.here(path).is_none(),
            };
            let is_over = !patient || begun.elapsed() >= PATIENCE;
            // It may be another use by now.
            let why = match is_over {
                true => here.or_else(|| used_at(path)).or_else(|| who_locks(path)),
                false => why,
            };
            // A device that hangs while it is closed has no lock any more, and is claimed.
            let closes = || {
                let there = std::fs::metadata(path).ok();
                there.and_then(|m| Identity::of(&m)).is_some_and(is_being_closed)
            };
            let is_ours = || locked_by(path) == Some(std::process::id()) || closes();
            if is_over && why.is_none() && is_ours() {
                let text = format!("`{}` does not answer", path.display());
                return Err(Error::new(Code::IoError, text)
                    .because("what this program has asked of it before has not come to an end")
                    .hint("see to its driver; it is tried again"));
            }
            if is_over {
                let unknown = || {
                    "another program uses it, or writes of one that has ended are still under way"
                        .to_owned()
                };
                return Err(in_use(path, why.unwrap_or_else(unknown)));
            }
            if !told {
                told = true;
                let why = why.unwrap_or_else(|| "writes of a process that has ended".into());
                tracing::info!("{}: locked ({why}); waiting for it", path.display());
            }
            std::thread::sleep(AGAIN);
        }
    }

    fn here(&self, path: &Path) -> Option<String> {
        let identity = Identity::of(&std::fs::metadata(path).ok()?)?;
        if let Some(owner) = self.yielded_of(identity) {
            return Some(format!(
                "it belongs to {owner}, which knows it by a name that it has lost"
            ));
        }
        let (owner, name) = self.owner_of(identity)?;
        Some(match name == path {
            true => format!("it belongs to {owner}"),
            false => format!("it belongs to {owner}, as `{}`", name.display()),
        })
    }

    fn release(&self, mut gone: impl FnMut(&Entry) -> bool) {
        let mut released = Vec::new();
        lock(&self.entries).retain_mut(|e| {
            let keep = !gone(e);
            if !keep {
                released.push(e.held.clone());
            }
            keep
        });
        // Closed without the lock: that may take time.
        drop(released);
    }

    /// What some owners have, by a name or without one.
    pub(crate) fn identities_of(&self, is_it: impl Fn(&Owner) -> bool) -> Vec<Identity> {
        let mut all = self.yielded_by(&is_it);
        let entries = lock(&self.entries);
        all.extend(entries.iter().filter(|e| is_it(&e.owner)).map(|e| e.held.identity()));
        all
    }

    /// Names of everything that an owner has.
    #[cfg(test)]
    pub(crate) fn paths_of(&self, is_it: impl Fn(&Owner) -> bool) -> Vec<PathBuf> {
        lock(&self.entries).iter().filter(|e| is_it(&e.owner)).map(|e| e.path.clone()).collect()
    }

    /// Lets go of everything that an owner has.
    pub(crate) fn release_all(&self, owner: &Owner) {
        self.forget_yielded(owner);
        self.release(|e| e.owner == *owner);
    }

    /// Lets go of a volume's places, or of one of them.
    pub(crate) fn release_volume(&self, name: &str, place: Option<u32>) {
        self.release(|e| match &e.owner {
            Owner::Place(n, p) => n == name && place.is_none_or(|wanted| wanted == *p),
            _ => false,
        });
    }

    /// Lets go of one device of an owner.
    pub(crate) fn release_path(&self, owner: &Owner, path: &Path) {
        self.release(|e| e.owner == *owner && e.path == path);
    }

    /// Lets go of this very device of an owner, if it has that by this name and no disk is on it. False: one is, and it stays.
    pub(crate) fn release_held(&self, owner: &Owner, path: &Path, held: &Weak<Held>) -> bool {
        let mut gone = true;
        self.release(|e| {
            let is_it = e.owner == *owner && e.path == path;
            let is_it = is_it && Arc::downgrade(&e.held).ptr_eq(held);
            let is_used = is_it && e.held.is_used();
            gone &= !is_used;
            is_it && !is_used
        });
        gone
    }

    /// Lets go of what an owner has and `keep` does not want; files and directories that were made for it and never used go,
    /// while nobody else can lock them. What a thread is busy with is let go of by that.
    async fn keep_only(&self, owner: &Owner, keep: impl Fn(&Path) -> bool) {
        let gone = |e: &Entry| e.owner == *owner && !e.looked_at && !keep(&e.path);
        let made: Vec<_> =
            lock(&self.entries).extract_if(.., |e| gone(e) && e.made.is_some()).collect();
        self.release(gone);
        let mut going = Vec::new();
        for Entry { path, held, made, .. } in made {
            let (tell, told) = tokio::sync::oneshot::channel();
            let thread = std::thread::Builder::new().name("weir-device".into()).spawn(move || {
                made.into_iter().for_each(|made| remove(made, &path));
                drop(held);
                let _ = tell.send(());
            });
            match thread {
                Ok(_) => going.push(told),
                Err(e) => tracing::warn!("a file that was made for nothing stays: {e}"),
            }
        }
        // One that does not answer goes when it does.
        let until = tokio::time::Instant::now() + DEADLINE;
        for told in going {
            drop(tokio::time::timeout_at(until, told).await);
        }
    }

    /// What an owner's devices were made of is used from now on.
    pub(crate) fn stands(&self, owner: &Owner) {
        lock(&self.entries).iter_mut().filter(|e| e.owner == *owner).for_each(|e| e.made = None);
    }

    fn with_entry(&self, owner: &Owner, path: &Path, f: impl Fn(&mut Entry)) {
        let mut entries = lock(&self.entries);
        entries.iter_mut().filter(|e| e.owner == *owner && e.path == path).for_each(f);
    }

    fn set_made(&self, owner: &Owner, path: &Path, made: Option<Made>) {
        self.with_entry(owner, path, |e| e.made = made);
    }

    fn set_admitted(&self, owner: &Owner, path: &Path) {
        self.with_entry(owner, path, |e| e.admitted = true);
    }

    /// Whether what is in a new device may be lost: it was made by us, or looked at in this life of the process. After a
    /// restart another disk may have its name.
    fn may_be_wiped(&self, owner: &Owner, path: &Path) -> bool {
        let entries = lock(&self.entries);
        entries
            .iter()
            .any(|e| e.owner == *owner && e.path == path && (e.made.is_some() || e.admitted))
    }

    /// Refuses a file in a directory of a pool if another directory has that name now.
    fn check_inside(&self, pool: &str, file: &Path) -> Result<()> {
        let Some(dir) = file.parent() else { return Ok(()) };
        match self.of(&Owner::Pool(pool.to_owned()), dir).map(|held| held.identity()) {
            Some(held) => {
                let now = std::fs::metadata(dir).map_err(|e| unusable(dir, e))?;
                if Identity::of(&now) == Some(held) { Ok(()) } else { Err(another(dir)) }
            }
            None => Ok(()),
        }
    }

    /// Refuses a name that leads to something else than what its owner uses under it.
    ///
    /// # Errors
    /// Another file or disk has the name now. What is used stays in use.
    fn check_same(&self, owner: &Owner, path: &Path) -> Result<()> {
        let of = |e: &&Entry| e.owner == *owner && e.path == path;
        let used = |e: &Entry, all: &[Entry]| {
            let inside = |o: &Entry| o.path != e.path && o.path.starts_with(&e.path);
            e.held.is_used()
                || e.held.is_directory() && all.iter().any(|o| inside(o) && o.held.is_used())
        };
        let identity = {
            let entries = lock(&self.entries);
            match entries.iter().find(of).filter(|e| used(e, &entries)) {
                Some(e) => e.held.identity(),
                None => return Ok(()),
            }
        };
        let now = std::fs::metadata(path).map_err(|e| unusable(path, e))?;
        match Identity::of(&now) == Some(identity) {
            true => Ok(()),
            false => Err(another(path)
                .because("another file or disk has that name now; the one that had it is in use and stays so")
                .hint("put the one that is in use back under its name; to go over to another, stop the daemon first")),
        }
    }
}

//! The directory of one attachment, and its name among the devices.

use super::witness::{self, New, Witness};
use super::{Life, Made, Maker, Method, Process, State, links};
use crate::error::{Error, Kind};
use crate::sys;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Where disks get their names.
const LINKS: &str = "/dev/weir";
const STATE: &str = "state.json";
const MADE: &str = "made.json";
const MAKER: &str = "maker.json";
/// Why nothing is known of an attachment's process.
pub(crate) const ELSEWHERE: &str =
    "its process is one of another pid namespace, as of a container, and may live";
/// Between two looks at a lock.
const STEP: Duration = Duration::from_millis(10);

/// The directory of one attachment.
#[derive(Debug, Clone)]
pub struct Place {
    dir: PathBuf,
    name: String,
    links: PathBuf,
    /// What the kernel keeps locked for this process, as long as it lives.
    held: Arc<Mutex<Held>>,
}

/// The files that say that a process lives.
#[derive(Debug, Default)]
struct Held {
    maker: Option<File>,
    name: Option<File>,
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
        Ok(Place {
            dir: full(run_dir).join(name),
            name: name.to_owned(),
            links: LINKS.into(),
            held: Arc::default(),
        })
    }

    /// The same with the names of disks elsewhere.
    #[cfg(test)]
    pub(crate) fn with_links(mut self, dir: &Path) -> Place {
        self.links = dir.to_owned();
        self
    }

    /// Makes the directory, as this process's.
    ///
    /// # Errors
    /// It is there already, or cannot be made.
    pub fn create(&mut self) -> Result<(), Error> {
        let text = format!("the directory {} cannot be made", self.dir.display());
        let failed = |e: &io::Error| Error::system(&text, e);
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700);
        if let Some(parent) = self.dir.parent() {
            builder.recursive(true).create(parent).map_err(|e| failed(&e))?;
            // The kernel tells of files by their full names.
            self.dir = full(parent).join(&self.name);
        }
        match builder.recursive(false).create(&self.dir) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Err(self.taken()),
            Err(e) => return Err(failed(&e)),
        }
        // Whose it is who writes this: one that was taken away meanwhile may be there anew.
        let new = New::at(&self.dir.join(MAKER)).map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => self.taken(),
            _ => failed(&e),
        })?;
        let mark = sys::random().ok().map(|n| format!("{n:016x}"));
        let maker = Maker { mark, locked: new.locked, ..Maker::of(Process::me()) };
        let text = serde_json::to_string_pretty(&maker).map_err(|e| failed(&e.into()))?;
        let written = new.write(text.as_bytes()).map(|file| self.held().maker = Some(file));
        written.and_then(|()| builder.create(self.disk())).map_err(|e| {
            self.remove();
            failed(&e)
        })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of the life of the process whose files these are; none: they are nobody's.
    pub(crate) fn life(&self) -> Option<Life> {
        let owner = self.owner()?;
        Some(owner.life_by(|| match self.witness() {
            Some((maker, witness)) if maker.process == owner => witness,
            _ => Witness::Unknown,
        }))
    }

    fn witness(&self) -> Option<(Maker, Witness)> {
        witness::read(&self.dir.join(MAKER), |m: &Maker| m.locked)
    }

    fn taken(&self) -> Error {
        let life = self.life();
        let is_over = life == Some(Life::Ended);
        let why = match self.read() {
            _ if life == Some(Life::Elsewhere) => ELSEWHERE.into(),
            Some(s) if life == Some(Life::Alive) => {
                format!("it is {} (process {})", s.device.display(), s.pid)
            }
            Some(_) => "its process has ended and left it behind".into(),
            None if is_over && self.made().is_some() => {
                "what was made for it at the daemon could not be taken back yet".into()
            }
            None if is_over => "`weir attach` was killed while making it".into(),
            None => "another `weir attach` is making it, or was killed doing so".into(),
        };
        Error::new(
            Kind::Exists,
            format!("there is an attachment {} already", self.name),
            why,
            format!("`weir detach {0}` ends it; --name gives this one another name", self.name),
        )
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

    /// Keeps others from ending this attachment meanwhile; none: it is not there. Only root may open the directory.
    ///
    /// # Errors
    /// Somebody else has it all this time.
    pub(crate) fn lock(&self, wait: Duration) -> io::Result<Option<File>> {
        let mut waited = Duration::ZERO;
        loop {
            let file = match File::open(&self.dir) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
                file => file?,
            };
            match file.try_lock() {
                // Whoever had it may have removed it, and the next attachment has another.
                Ok(()) if self.is_here(&file) => return Ok(Some(file)),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if waited < wait => {
                    std::thread::sleep(STEP);
                    waited += STEP;
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Whether this is the directory.
    fn is_here(&self, file: &File) -> bool {
        let id = |m: fs::Metadata| (m.dev(), m.ino());
        let (file, here) = (file.metadata().map(id), fs::metadata(&self.dir).map(id));
        file.is_ok() && file.ok() == here.ok()
    }

    /// Where a process in the background writes its log.
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    fn link(&self) -> PathBuf {
        self.links.join(&self.name)
    }

    /// Whether the device still goes by this name, so that nobody got it since.
    pub(crate) fn is_link_to(&self, device: &Path) -> bool {
        links::is_to(&self.link(), device)
    }

    /// Writes down that the kernel gives it this device, which is no disk yet, and sees to it that no other name is the
    /// device's.
    pub(crate) fn about_to_have(&self, method: Method, device: &Path) -> Result<(), Error> {
        self.write_maker(method, device, None)?;
        links::take_all(&self.links, device)
            .map_err(|e| Error::system(format!("{} has another name yet", device.display()), &e))
    }

    /// Writes down what the disk is now.
    pub(crate) fn has(
        &self,
        method: Method,
        device: &Path,
        diskseq: Option<u64>,
    ) -> Result<(), Error> {
        self.write_maker(method, device, diskseq)
    }

    fn write_maker(
        &self,
        method: Method,
        device: &Path,
        diskseq: Option<u64>,
    ) -> Result<(), Error> {
        let failed = |e: &dyn std::fmt::Display| unwritten(e);
        let disk = Some((method, device.to_owned()));
        let mark = self.mark();
        self.must_be_own()?;
        let new = self.dir.join("maker.new");
        let _ = fs::remove_file(&new);
        let file = New::at(&new).map_err(|e| failed(&e))?;
        let maker = Maker { process: Process::me(), disk, diskseq, mark, locked: file.locked };
        let text = serde_json::to_string_pretty(&maker).map_err(|e| failed(&e))?;
        let file = file.write(text.as_bytes()).map_err(|e| failed(&e))?;
        fs::rename(&new, self.dir.join(MAKER)).map_err(|e| failed(&e))?;
        self.held().maker = Some(file);
        Ok(())
    }

    /// See [`State::mark`].
    pub(crate) fn mark(&self) -> Option<String> {
        self.maker()?.mark
    }

    /// The name that its disk has, as that of its process.
    fn given(&self) -> Option<links::Given> {
        Some(links::Given::to(&self.dir, self.owner()?))
    }

    /// Keeps its name in /dev for the disk, which is yet to be made. False: there will be none, as it cannot be written.
    ///
    /// # Errors
    /// The name is another's.
    pub(crate) fn keep_name(&self) -> Result<bool, Error> {
        let by = links::Given::to(&self.dir, Process::me());
        let kept = links::keep(&self.link(), &by).map_err(|e| self.no_name(&e))?;
        let written = kept.is_some();
        self.held().name = kept;
        Ok(written)
    }

    /// Gives the disk its name in /dev, as that of this process.
    ///
    /// # Errors
    /// It cannot be written there, or the name is another's.
    pub(crate) fn make_link(&self, device: &Path) -> Result<PathBuf, Error> {
        self.must_be_own()?;
        let by = links::Given::to(&self.dir, Process::me());
        let file = links::make(&self.link(), &by, device).map_err(|e| self.no_name(&e))?;
        self.held().name = Some(file);
        Ok(self.link())
    }

    /// Gives the name back to the disk that it was taken from, whoever's the attachment is.
    ///
    /// # Errors
    /// It cannot be written there, or the name is another's.
    pub(crate) fn show_link(&self, device: &Path) -> Result<(), Error> {
        let by = self.given().ok_or(io::ErrorKind::NotFound.into());
        by.and_then(|by| links::show(&self.link(), &by, device)).map_err(|e| self.no_name(&e))
    }

    fn no_name(&self, e: &io::Error) -> Error {
        let (link, record) = (self.link(), links::record(&self.link()));
        Error::new(
            Kind::Exists,
            format!("the disk cannot have the name {}", link.display()),
            e,
            format!(
                "give this one another name with --name; or, if it is nobody's any more: rm -f {} {}",
                link.display(),
                record.display()
            ),
        )
    }

    /// What is known of it.
    pub fn read(&self) -> Option<State> {
        self.read_as(STATE)
    }

    /// Whose the files are: a name may have become another attachment's.
    pub(crate) fn owner(&self) -> Option<Process> {
        let maker = self.maker().map(|m| m.process);
        let state = || self.read().map(|s| s.process());
        maker.or_else(state).or_else(|| self.made().map(|m| m.process()))
    }

    /// Whether the files are this process's.
    pub(crate) fn is_own(&self) -> bool {
        self.maker().is_some_and(|m| m.process == Process::me())
    }

    pub(crate) fn maker(&self) -> Option<Maker> {
        self.read_as(MAKER)
    }

    fn read_as<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let text = fs::read_to_string(self.dir.join(name)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Writes down what is known, as the process that made the directory.
    ///
    /// # Errors
    /// What the operating system said, or the directory is not this process's any more.
    pub fn write(&self, state: &State) -> Result<(), Error> {
        self.write_as(STATE, state)
    }

    fn write_as(&self, name: &str, what: &impl Serialize) -> Result<(), Error> {
        self.must_be_own()?;
        self.put(name, what)
    }

    fn must_be_own(&self) -> Result<(), Error> {
        match self.is_own() {
            true => Ok(()),
            false => Err(unwritten(&format!("{} was taken away", self.dir.display()))),
        }
    }

    fn put(&self, name: &str, what: &impl Serialize) -> Result<(), Error> {
        let failed = |e: &dyn std::fmt::Display| unwritten(e);
        let text = serde_json::to_string_pretty(what).map_err(|e| failed(&e))?;
        let new = self.dir.join("state.new");
        fs::write(&new, text + "\n").map_err(|e| failed(&e))?;
        fs::rename(&new, self.dir.join(name)).map_err(|e| failed(&e))
    }

    /// What is made for it elsewhere, or may be.
    pub(crate) fn made(&self) -> Option<Made> {
        self.read_as(MADE)
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

    /// Takes its name away from the disk that it has, and keeps it. True: it had it. `ours`: the disk is known to be.
    pub(crate) fn take_link(&self, device: &Path, ours: bool) -> bool {
        self.given().is_some_and(|by| links::hide(&self.link(), &by, device, ours))
    }

    /// Gives its name back, whoever has the disk now.
    pub(crate) fn remove_link(&self) {
        let Some(by) = self.given() else { return };
        let state = self.read().map(|s| s.device);
        let noted = self.maker().and_then(|m| m.disk).map(|(_, device)| device);
        let devices: Vec<PathBuf> = state.into_iter().chain(noted).collect();
        links::give_back(&self.link(), &by, &devices);
    }

    /// Removes all but what is known of what was made elsewhere, for who can take that back.
    pub(crate) fn leave_made(&self, made: Option<&Made>) {
        self.remove_link();
        // In the form of the version before it is in the state only, which stays if it cannot be written elsewhere.
        if let Some(made) = made.filter(|_| self.made().is_none())
            && self.put(MADE, made).is_err()
        {
            return;
        }
        let _ = fs::remove_file(self.dir.join(STATE));
        let _ = fs::remove_dir(self.disk());
    }

    /// Removes the files. Nothing is mounted any more.
    pub(crate) fn remove(&self) {
        self.remove_link();
        // Whose they are goes last.
        for name in [STATE, MADE, "state.new", "maker.new", "log", MAKER] {
            let _ = fs::remove_file(self.dir.join(name));
        }
        // Never with what is in it: should something be mounted there still, it is not ours to delete.
        let _ = fs::remove_dir(self.disk());
        let _ = fs::remove_dir(&self.dir);
    }
}

fn unwritten(why: &dyn std::fmt::Display) -> Error {
    Error::new(Kind::Failed, "the state cannot be written", why, "")
}

/// A path as the kernel tells it; as far as it is there.
fn full(path: &Path) -> PathBuf {
    let there = fs::canonicalize(path).or_else(|_| std::path::absolute(path));
    there.unwrap_or_else(|_| path.to_owned())
}

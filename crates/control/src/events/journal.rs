//! The events on disk: `events.log` in the data directory, a line of JSON each.
//!
//! A thread of its own writes them. It takes them from memory, so nobody waits for it, whatever the disk does. The file is
//! written anew at the start, after an error, and when it has become long: with what is in memory, and put in its place whole.

use super::{Event, Inner, KEPT};
use crate::error::{Code, Error};
use crate::platform::watch;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The file in the data directory.
pub const FILE: &str = "events.log";
/// From this length on it is written anew.
const LONG: u64 = 4 << 20;
/// Of a file that is longer than any of ours, this much is read.
const MOST_READ: u64 = 64 << 20;
/// No event of ours has such a number. It leaves room for more, also where numbers are floating point.
const HIGHEST: u64 = 1 << 52;
/// How long a write may take before it is told.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// When an error is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// How the writing goes on.
#[derive(Debug, Default)]
struct State {
    /// A write is under way since.
    since: Option<Instant>,
    failed: Option<String>,
}

/// The writer, as seen by others.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    bell: SyncSender<()>,
    state: Mutex<State>,
    patience: Duration,
    /// The last event that is on disk.
    pub(super) written: watch::Sender<u64>,
}

impl Journal {
    /// The journal of a data directory, and what its writer needs.
    pub(super) fn new(dir: &Path, patience: Duration) -> (Journal, Receiver<()>) {
        let (bell, rung) = sync_channel(1);
        let (path, written) = (dir.join(FILE), watch::Sender::new(0));
        (Journal { path, bell, state: Mutex::default(), patience, written }, rung)
    }

    /// There is something to write. Who has been rung for looks at all there is.
    pub(super) fn ring(&self) {
        let _ = self.bell.try_send(());
    }

    /// Why events are not on disk, if they are not.
    pub(super) fn trouble(&self) -> Option<Error> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let late = state.since.is_some_and(|t| t.elapsed() >= self.patience);
        let silent = || late.then(|| "its file system does not answer".to_string());
        let why = state.failed.clone().or_else(silent)?;
        let text = format!("events are not written to {}", self.path.display());
        Some(Error::new(Code::IoError, text).because(why).hint(
            "they are in memory until the daemon ends; see to the file system of the data directory",
        ))
    }

    fn enter(&self, failed: Option<&io::Error>, since: Option<Instant>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.since = since;
        if since.is_none() {
            state.failed = failed.map(ToString::to_string);
        }
    }
}

/// What there is of former runs, oldest first, and what is to be told of it. A line that makes no sense, as the last one may be
/// after a crash, is left out.
pub(super) fn load(dir: &Path) -> (Vec<Event>, Option<String>) {
    let path = dir.join(FILE);
    let read = || {
        let mut bytes = Vec::new();
        // Not one that blocks.
        if !fs::metadata(&path)?.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        let mut file = File::open(&path)?;
        // The newest are at its end.
        let from = file.metadata()?.len().saturating_sub(MOST_READ);
        file.seek(SeekFrom::Start(from))?;
        file.take(MOST_READ).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match read() {
        Ok(bytes) => (events(&bytes), None),
        Err(e) if e.kind() == io::ErrorKind::NotFound => (Vec::new(), None),
        Err(e) => {
            let aside = path.with_extension("log.unread");
            let kept = match fs::rename(&path, &aside) {
                Ok(()) => format!("it is kept as {}", aside.display()),
                Err(e) => format!("it stays there: {e}"),
            };
            let text = format!("{} cannot be read ({e}); {kept}", path.display());
            (Vec::new(), Some(text))
        }
    }
}

fn events(bytes: &[u8]) -> Vec<Event> {
    let mut last = 0;
    let lines = bytes.split(|b| *b == b'\n');
    let known = lines.filter_map(|l| serde_json::from_slice::<Event>(l).ok());
    let rises = |e: &Event| {
        let is_next = (last + 1..HIGHEST).contains(&e.seq);
        if is_next {
            last = e.seq;
        }
        is_next
    };
    known.filter(rises).collect()
}

/// Starts the thread that has `write` write, which is the one of a [`Writer`]. It ends with the log.
pub(super) fn start(
    inner: Weak<Inner>,
    rung: Receiver<()>,
    mut write: impl FnMut(&Inner, &Journal) -> io::Result<()> + Send + 'static,
) -> io::Result<()> {
    let work = move || {
        let mut rest = None;
        loop {
            match rest {
                None if rung.recv().is_err() => break,
                None => {}
                Some(t) => match rung.recv_timeout(t) {
                    Err(RecvTimeoutError::Disconnected) => break,
                    // What comes meanwhile does not make it any better.
                    Ok(()) => std::thread::sleep(t),
                    Err(RecvTimeoutError::Timeout) => {}
                },
            }
            let Some(inner) = inner.upgrade() else { break };
            let Some(journal) = inner.journal.get() else { break };
            journal.enter(None, Some(Instant::now()));
            let done = write(&inner, journal);
            journal.enter(done.as_ref().err(), None);
            rest = done.is_err().then_some(AGAIN);
        }
    };
    std::thread::Builder::new().name("weir-events".into()).spawn(work).map(drop)
}

#[derive(Debug, Default)]
pub(super) struct Writer {
    /// The file, if it is whole, and its length.
    file: Option<(File, u64)>,
    /// Its length when it was written anew.
    begun: u64,
    last: u64,
}

impl Writer {
    /// Writes what is not written yet.
    pub(super) fn write(&mut self, inner: &Inner, journal: &Journal) -> io::Result<()> {
        loop {
            // Taken: unless all goes well it is written anew.
            let file = self.file.take().filter(|(_, len)| *len < LONG.max(2 * self.begun));
            let known = file.as_ref().map_or(0, |_| self.last);
            let all = inner.after(known, KEPT).events;
            let Some(last) = all.last() else {
                self.file = file;
                return Ok(());
            };
            let text = lines(&all)?;
            self.file = Some(match file {
                None => self.anew(&journal.path, &text)?,
                Some((file, len)) => append(file, len, &text)?,
            });
            self.last = last.seq;
            journal.written.send(last.seq);
        }
    }

    /// A file of its own, put in the place of the former one when it is whole.
    fn anew(&mut self, path: &Path, text: &[u8]) -> io::Result<(File, u64)> {
        let new = path.with_extension("log.new");
        drop(fs::remove_file(&new));
        let made = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&new);
        let done = made.and_then(|file| append(file, 0, text));
        let done = done.and_then(|done| {
            fs::rename(&new, path)?;
            File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
            Ok(done)
        });
        match &done {
            Ok((_, len)) => self.begun = *len,
            // Not what fills the disk.
            Err(_) => drop(fs::remove_file(&new)),
        }
        done
    }
}

fn append(mut file: File, len: u64, text: &[u8]) -> io::Result<(File, u64)> {
    file.write_all(text)?;
    file.sync_data()?;
    Ok((file, len + text.len() as u64))
}

fn lines(events: &[Event]) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    for e in events {
        serde_json::to_writer(&mut text, e)?;
        text.push(b'\n');
    }
    Ok(text)
}

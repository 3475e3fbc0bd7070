//! The event log: what changed, by whom, and how long operations get on. Bounded; kept in memory and in a file.

mod by;
mod journal;

pub use by::ITSELF;
pub(crate) use by::{on_behalf_of, spawn};
pub use journal::FILE;

use crate::error::Error;
use crate::planted::{Bug, has};
use crate::platform::{calendar, timeout, watch};
use journal::Journal;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use utoipa::ToSchema;

/// Events that are kept; older ones are forgotten.
pub const KEPT: usize = 4096;
/// So many of them may be logins: whoever comes and goes pushes nothing else out.
const LOGINS: usize = KEPT / 4;
/// The last event of a daemon that ended in order.
pub(crate) const STOPPED: &str = "node.stopped";
/// Longest text of an event in bytes.
const LONGEST: usize = 2048;

/// How far a long operation is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// Units done.
    pub done: u64,
    /// Units in all.
    pub total: u64,
    /// What is counted, e.g. `bytes`.
    pub unit: String,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Number of the event; rises by one, also over restarts of the daemon, at which it leaps.
    pub seq: u64,
    /// When: milliseconds since 1970 UTC.
    pub time_ms: u64,
    /// What: `volume.created`, `progress`, `error`, ...
    pub kind: String,
    /// The object, e.g. `volume/db-01`.
    pub object: String,
    /// A sentence for people.
    pub text: String,
    /// Who asked for it: `uid:N` over the socket, `token:ROLE` over TCP, or `weir` itself.
    #[serde(default)]
    pub by: String,
    /// For long operations, how far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

/// A piece of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventPage {
    /// The events, oldest first.
    pub events: Vec<Event>,
    /// Ask for events after this number next.
    pub next: u64,
    /// Events that were forgotten before they could be given, and numbers among theirs that were none's.
    pub lost: u64,
}

#[derive(Debug, Default)]
struct Kept {
    last: u64,
    events: VecDeque<Event>,
    /// Logins among them.
    logins: usize,
}

impl Kept {
    fn push(&mut self, e: Event) {
        self.last = e.seq;
        self.logins += usize::from(is_login(&e));
        self.events.push_back(e);
        if self.events.len() <= KEPT {
            return;
        }
        let crowd = self.logins > LOGINS && !has(Bug::LoginsPushOut);
        let at = if crowd { self.events.iter().position(is_login) } else { None };
        let gone = self.events.remove(at.unwrap_or(0));
        self.logins -= usize::from(gone.as_ref().is_some_and(is_login));
    }
}

/// Of those there may be as many as hosts and strangers like.
fn is_login(e: &Event) -> bool {
    matches!(e.kind.as_str(), "login" | "logout" | "login.refused")
}

#[derive(Debug)]
struct Inner {
    kept: Mutex<Kept>,
    newest: watch::Sender<u64>,
    journal: OnceLock<Journal>,
}

impl Inner {
    fn new(kept: Kept) -> Inner {
        let newest = watch::Sender::new(kept.last);
        Inner { kept: Mutex::new(kept), newest, journal: OnceLock::new() }
    }

    /// Up to `limit` events after number `after`.
    fn after(&self, after: u64, limit: usize) -> EventPage {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // A number that we have not given is one of before a crash: begin again.
        let after = if after > kept.last { 0 } else { after };
        let oldest = kept.events.front().map_or(kept.last + 1, |e| e.seq);
        let lost = oldest.saturating_sub(after + 1);
        let skip = kept.events.partition_point(|e| e.seq <= after);
        let events: Vec<Event> = kept.events.iter().skip(skip).take(limit).cloned().collect();
        let next = events.last().map_or(after.max(oldest - 1), |e| e.seq);
        EventPage { events, next, lost }
    }
}

/// The log. Cheap to clone; may be written to from any thread.
#[derive(Debug, Clone)]
pub struct EventLog(Arc<Inner>);

impl Default for EventLog {
    fn default() -> Self {
        EventLog(Arc::new(Inner::new(Kept::default())))
    }
}

impl EventLog {
    /// The log of a data directory, with what there is of former runs. That it cannot be read or written is told, and keeps
    /// nothing from starting. Blocks while it reads.
    pub fn open(dir: &Path) -> EventLog {
        let mut writer = journal::Writer::default();
        let write = move |inner: &Inner, to: &Journal| writer.write(inner, to);
        Self::open_with(dir, journal::PATIENCE, write)
    }

    fn open_with(
        dir: &Path,
        patience: Duration,
        write: impl FnMut(&Inner, &Journal) -> std::io::Result<()> + Send + 'static,
    ) -> EventLog {
        let (known, note) = journal::load(dir);
        let mut kept = Kept::default();
        known.into_iter().for_each(|e| kept.push(e));
        // What was given to readers and is not on disk had the next numbers: nobody is to take others for them. That holds after an
        // end in order as well: the run after that one may have had no disk.
        if !kept.events.is_empty() && !has(Bug::NumbersAgain) {
            // No run has a thousand events a second all the time.
            kept.last = kept.last.max(calendar().as_millis() as u64);
        }
        let log = EventLog(Arc::new(Inner::new(kept)));
        let (journal, rung) = Journal::new(dir, patience);
        if let Err(e) = journal::start(Arc::downgrade(&log.0), rung, write) {
            tracing::warn!("events are in memory only: no thread that writes them: {e}");
        } else {
            drop(log.0.journal.set(journal));
        }
        if let Some(note) = note {
            tracing::warn!("{note}");
            log.publish("error", "events", &note);
        }
        log
    }

    /// Why events are not on disk, if they are not.
    pub fn trouble(&self) -> Option<Error> {
        self.0.journal.get()?.trouble()
    }

    /// Waits until all that has been published is on disk, if that is so in this time.
    pub async fn written(&self, patience: Duration) -> bool {
        let Some(journal) = self.0.journal.get() else { return false };
        let last = self.0.newest.look(|n| *n);
        let written = journal.written.subscribe();
        timeout(patience, written.wait_for(|n| *n >= last)).await.is_ok()
    }

    /// Adds an event, of the one that the present task works for. Never blocks.
    pub fn publish(&self, kind: &str, object: &str, text: &str) {
        self.add(kind, object, text, None, &by::whom());
    }

    /// Adds an event that nobody asked for, whoever it is that has it looked for. Never blocks.
    pub fn happened(&self, kind: &str, object: &str, text: &str) {
        self.add(kind, object, text, None, ITSELF);
    }

    /// Adds how far a long operation on an object is.
    pub fn progress(&self, object: &str, text: &str, done: u64, total: u64, unit: &str) {
        let progress = Progress { done, total, unit: unit.to_string() };
        self.add("progress", object, text, Some(progress), &by::whom());
    }

    fn add(&self, kind: &str, object: &str, text: &str, progress: Option<Progress>, by: &str) {
        let by = by.to_string();
        let is_end = |n: &usize| text.is_char_boundary(*n);
        let end = (0..=text.len().min(LONGEST)).rev().find(is_end).unwrap_or(0);
        let text = text.get(..end).unwrap_or_default().to_string();
        let (kind, object) = (kind.to_string(), object.to_string());
        {
            let mut kept = self.0.kept.lock().unwrap_or_else(PoisonError::into_inner);
            let (seq, time_ms) = (kept.last + 1, calendar().as_millis() as u64);
            kept.push(Event { seq, time_ms, kind, object, text, by, progress });
            self.0.newest.send(seq);
        }
        if let Some(journal) = self.0.journal.get() {
            journal.ring();
        }
    }

    /// Up to `limit` events after number `after`.
    pub fn after(&self, after: u64, limit: usize) -> EventPage {
        self.0.after(after, limit)
    }

    /// As [`after`](Self::after), but waits up to `wait` for the first event when there is none.
    pub async fn wait_after(&self, after: u64, limit: usize, wait: Duration) -> EventPage {
        let newest = self.0.newest.subscribe();
        let page = self.after(after, limit);
        if !page.events.is_empty() || wait.is_zero() {
            return page;
        }
        let known = page.next;
        // Neither a time-out nor the end of the log is an error here: the answer is an empty page.
        drop(timeout(wait, newest.wait_for(|n| *n > known)).await);
        self.after(after, limit)
    }
}

#[cfg(test)]
mod tests;

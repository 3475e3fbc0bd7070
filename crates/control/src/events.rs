//! The event log: what changed and how long operations get on. Bounded, in memory.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use utoipa::ToSchema;

/// Events that are kept; older ones are forgotten.
pub const KEPT: usize = 4096;

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
    /// Number of the event; rises by one, begins anew with each start of the daemon.
    pub seq: u64,
    /// When: milliseconds since 1970 UTC.
    pub time_ms: u64,
    /// What: `volume.created`, `progress`, `error`, ...
    pub kind: String,
    /// The object, e.g. `volume/db-01`.
    pub object: String,
    /// A sentence for people.
    pub text: String,
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
    /// Events that were forgotten before they could be given.
    pub lost: u64,
}

#[derive(Debug)]
struct Inner {
    kept: Mutex<(u64, VecDeque<Event>)>,
    newest: watch::Sender<u64>,
}

/// The log. Cheap to clone; may be written to from any thread.
#[derive(Debug, Clone)]
pub struct EventLog(Arc<Inner>);

impl Default for EventLog {
    fn default() -> Self {
        EventLog(Arc::new(Inner {
            kept: Mutex::new((0, VecDeque::new())),
            newest: watch::Sender::new(0),
        }))
    }
}

impl EventLog {
    /// Adds an event.
    pub fn publish(&self, kind: &str, object: &str, text: &str) {
        self.add(kind, object, text, None);
    }

    /// Adds how far a long operation on an object is.
    pub fn progress(&self, object: &str, text: &str, done: u64, total: u64, unit: &str) {
        let progress = Progress { done, total, unit: unit.to_string() };
        self.add("progress", object, text, Some(progress));
    }

    fn add(&self, kind: &str, object: &str, text: &str, progress: Option<Progress>) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut kept = self.0.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.0 += 1;
        let seq = kept.0;
        kept.1.push_back(Event {
            seq,
            time_ms: time.as_millis() as u64,
            kind: kind.to_string(),
            object: object.to_string(),
            text: text.to_string(),
            progress,
        });
        if kept.1.len() > KEPT {
            kept.1.pop_front();
        }
        self.0.newest.send_replace(seq);
    }

    /// Up to `limit` events after number `after`.
    pub fn after(&self, after: u64, limit: usize) -> EventPage {
        let kept = self.0.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // A number from before a restart is ahead of ours: begin again.
        let after = if after > kept.0 { 0 } else { after };
        let oldest = kept.1.front().map_or(kept.0 + 1, |e| e.seq);
        let lost = oldest.saturating_sub(after + 1);
        let skip = (after + 1).saturating_sub(oldest) as usize;
        let events: Vec<Event> = kept.1.iter().skip(skip).take(limit).cloned().collect();
        let next = events.last().map_or(after.max(oldest - 1), |e| e.seq);
        EventPage { events, next, lost }
    }

    /// As [`after`](Self::after), but waits up to `wait` for the first event when there is none.
    pub async fn wait_after(&self, after: u64, limit: usize, wait: Duration) -> EventPage {
        let mut newest = self.0.newest.subscribe();
        let page = self.after(after, limit);
        if !page.events.is_empty() || wait.is_zero() {
            return page;
        }
        let known = page.next;
        // Neither a time-out nor the end of the log is an error here: the answer is an empty page.
        drop(tokio::time::timeout(wait, newest.wait_for(|n| *n > known)).await);
        self.after(after, limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_on_and_count_what_was_lost() {
        let log = EventLog::default();
        assert_eq!(log.after(0, 10), EventPage::default());
        for i in 0..5 {
            log.publish("test", "object", &i.to_string());
        }
        let page = log.after(0, 3);
        assert_eq!((page.events.len(), page.next, page.lost), (3, 3, 0));
        let page = log.after(page.next, 3);
        assert_eq!((page.events.len(), page.next, page.lost), (2, 5, 0));
        assert!(log.after(5, 3).events.is_empty());
        assert_eq!(log.after(5, 3).next, 5);
        // A reader that knows a number from a former run begins again.
        assert_eq!(log.after(1000, 10).events.len(), 5);
        for _ in 0..KEPT {
            log.publish("test", "object", "more");
        }
        let page = log.after(2, 1);
        assert_eq!((page.lost, page.events[0].seq), (3, 6));
    }

    #[tokio::test]
    async fn a_waiter_is_woken_by_the_next_event() {
        let log = EventLog::default();
        let waiter = tokio::spawn({
            let log = log.clone();
            async move { log.wait_after(0, 10, Duration::from_secs(60)).await }
        });
        tokio::task::yield_now().await;
        log.progress("volume/a", "copying", 1, 2, "bytes");
        let page = waiter.await.unwrap();
        assert_eq!(page.events[0].progress.as_ref().map(|p| p.total), Some(2));
        assert!(log.wait_after(1, 10, Duration::from_millis(1)).await.events.is_empty());
    }
}

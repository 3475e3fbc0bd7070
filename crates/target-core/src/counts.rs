//! What has happened at a target port since it was made: these only grow.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Refusals that are told one by one; the others are counted.
const KEPT: usize = 8;
/// How often refusals are told at most: whoever tries again and again must not push everything else out of the events.
const EVERY: Duration = Duration::from_secs(10);

/// Counters of a target port. Nothing of it is touched per command.
#[derive(Default)]
pub struct Counts {
    logins: AtomicU64,
    refused: AtomicU64,
    /// Of channels that are gone.
    commands: AtomicU64,
    /// The most commands that were told.
    told: AtomicU64,
    tasks: AtomicU64,
    refusals: Mutex<Refusals>,
}

#[derive(Default)]
struct Refusals {
    told: Vec<String>,
    more: u64,
    last: Option<Instant>,
}

/// What [`Counts`] have come to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counted {
    /// Channels that were let in.
    pub logins: u64,
    /// Logins that were refused.
    pub refused: u64,
    /// Commands that channels have had which are gone.
    pub commands: u64,
    /// Task management functions.
    pub tasks: u64,
}

impl Counts {
    /// A channel was let in.
    pub fn logged_in(&self) {
        self.logins.fetch_add(1, Ordering::Relaxed);
    }

    /// A login from the address `peer` was refused; `claimed` is who it said it was.
    #[cold]
    pub fn refused(&self, peer: &str, claimed: &dyn Display, why: &dyn Display) {
        tracing::warn!(%peer, %claimed, %why, "login refused");
        self.refused.fetch_add(1, Ordering::Relaxed);
        let mut all = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        match all.told.len() < KEPT {
            true => all.told.push(format!("a login of {claimed} from {peer} was refused: {why}")),
            false => all.more += 1,
        }
    }

    /// A channel that has had so many commands is gone.
    pub fn gone(&self, commands: u64) {
        self.commands.fetch_add(commands, Ordering::Relaxed);
    }

    /// A task management function was carried out.
    pub fn managed(&self) {
        self.tasks.fetch_add(1, Ordering::Relaxed);
    }

    /// What all has come to.
    pub fn read(&self) -> Counted {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Counted {
            logins: of(&self.logins),
            refused: of(&self.refused),
            commands: of(&self.commands),
            tasks: of(&self.tasks),
        }
    }

    /// Commands of all channels: `gone` of [`Counted`], which was read first, then `live` of those that were there. Never less than
    /// before, though a channel ended between the two, or its reactor does not answer now.
    pub fn commands(&self, gone: u64, live: u64) -> u64 {
        let now = gone.saturating_add(live);
        self.told.fetch_max(now, Ordering::Relaxed).max(now)
    }

    /// Refusals that have not been told of, unless some were told less than ten seconds before `now`.
    pub fn take_refusals(&self, now: Instant) -> Vec<String> {
        let mut all = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let early = all.last.is_some_and(|last| now.saturating_duration_since(last) < EVERY);
        if early || all.told.is_empty() {
            return Vec::new();
        }
        all.last = Some(now);
        let (mut told, more) = (std::mem::take(&mut all.told), std::mem::take(&mut all.more));
        if more > 0 {
            told.push(format!("{more} more logins were refused meanwhile"));
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_were_told_are_never_fewer_later() {
        let counts = Counts::default();
        assert_eq!(counts.commands(counts.read().commands, 5), 5);
        // Its channel ends between the two.
        let before = counts.read().commands;
        counts.gone(6);
        assert_eq!(counts.commands(before, 0), 5);
        assert_eq!(counts.commands(counts.read().commands, 1), 7);
    }

    #[test]
    fn refusals_are_told_once_and_all_are_counted() {
        let (counts, begun) = (Counts::default(), Instant::now());
        for i in 0..KEPT + 3 {
            counts.refused("192.0.2.7", &i, &"nobody knows it");
        }
        let told = counts.take_refusals(begun);
        assert_eq!(told.len(), KEPT + 1);
        assert_eq!(told[0], "a login of 0 from 192.0.2.7 was refused: nobody knows it");
        assert_eq!(told[KEPT], "3 more logins were refused meanwhile");
        counts.refused("192.0.2.7", &0, &"nobody knows it");
        assert!(counts.take_refusals(begun + EVERY / 2).is_empty(), "so soon after the last ones");
        assert_eq!(counts.take_refusals(begun + EVERY), told[..1]);
        assert!(counts.take_refusals(begun + 2 * EVERY).is_empty());
        assert_eq!(counts.read(), Counted { refused: KEPT as u64 + 4, ..Counted::default() });
    }
}

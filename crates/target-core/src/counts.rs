//! What has happened at a target port since it was made: these only grow.

use crate::comings::{Coming, Comings};
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Causes of refusals that are told one by one: where from, and why. All others are one cause.
const KEPT: usize = 16;
/// Of one reason: who is refused for one may not hide those that are for another.
const OF_ONE_REASON: usize = 4;
/// How often one is told again while it goes on: whoever tries again and again must not push everything else out of the events.
const EVERY: Duration = Duration::from_secs(600);

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
    comings: Mutex<Comings>,
}

/// An address without what differs from connection to connection.
fn place(peer: &str) -> String {
    peer.parse().map_or_else(|_| peer.to_string(), |a: SocketAddr| a.ip().to_string())
}

/// Refusals of one cause.
struct Cause {
    /// The address, if it is not one of many.
    from: Option<String>,
    why: String,
    /// Who the first one, or the last one of those not told of, said it was.
    claimed: String,
    /// How many have not been told of.
    more: u64,
    /// When it was told of; `None` if it has not been.
    told: Option<Instant>,
}

#[derive(Default)]
struct Refusals(Vec<Cause>);

impl Refusals {
    fn note(&mut self, peer: &str, claimed: &dyn Display, why: &dyn Display) {
        let from = place(peer);
        let why = why.to_string();
        let all = &self.0;
        let is_it = |c: &Cause| c.why == why && c.from.as_ref() == Some(&from);
        let room = all.len() < KEPT && all.iter().filter(|c| c.why == why).count() < OF_ONE_REASON;
        let known = all.iter().position(is_it);
        let many = || all.iter().position(|c| c.from.is_none());
        let at = known.or_else(|| if room { None } else { many() });
        match at {
            Some(at) => {
                let c = &mut self.0[at];
                c.claimed = claimed.to_string();
                c.why = why;
                c.more += 1;
            }
            None => self.0.push(Cause {
                from: room.then_some(from),
                why,
                claimed: claimed.to_string(),
                more: 1,
                told: None,
            }),
        }
    }

    fn take(&mut self, now: Instant) -> Vec<String> {
        let is_due =
            |c: &Cause| c.told.is_none_or(|told| now.saturating_duration_since(told) >= EVERY);
        // What has not been for so long begins anew.
        self.0.retain(|c| c.more > 0 || !is_due(c));
        let due = self.0.iter_mut().filter(|c| is_due(c));
        let text = |c: &mut Cause| {
            let (n, first) = (std::mem::take(&mut c.more), c.told.replace(now).is_none());
            let (claimed, why) = (&c.claimed, &c.why);
            match &c.from {
                Some(from) if first && n == 1 => {
                    format!("a login of {claimed} from {from} was refused: {why}")
                }
                Some(from) => {
                    format!(
                        "logins from {from} are refused ({n}), the last one of {claimed}: {why}"
                    )
                }
                None => {
                    format!("logins of others are refused ({n}), the last one of {claimed}: {why}")
                }
            }
        };
        due.map(text).collect()
    }
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
    /// A channel of a host was let in, from the address `peer`. One that nobody knows has no name.
    pub fn logged_in(&self, host: &str, peer: &str) {
        self.logins.fetch_add(1, Ordering::Relaxed);
        self.comings().came(host, &place(peer));
    }

    /// The same channel has lost its connection.
    pub fn logged_out(&self, host: &str) {
        self.comings().went(host);
    }

    fn comings(&self) -> MutexGuard<'_, Comings> {
        self.comings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be told of hosts that came and went: of each at most once a minute.
    pub fn take_comings(&self, now: Instant) -> Vec<Coming> {
        self.comings().take(now)
    }

    /// A login from the address `peer` was refused; `claimed` is who it said it was.
    #[cold]
    pub fn refused(&self, peer: &str, claimed: &dyn Display, why: &dyn Display) {
        tracing::warn!(%peer, %claimed, %why, "login refused");
        self.note(peer, claimed, why);
    }

    /// The same of somebody who could not prove to be who it said. The log has so many lines of each place of the program, and
    /// this one is worth more than those of anybody who connects.
    #[cold]
    pub fn unproved(&self, peer: &str, claimed: &dyn Display, why: &dyn Display) {
        tracing::warn!(%peer, %claimed, %why, "login refused: not proved");
        self.note(peer, claimed, why);
    }

    /// The same of somebody who does not even say who it is.
    #[cold]
    pub fn stranger(&self, peer: &str, why: &dyn Display) {
        tracing::warn!(%peer, %why, "not a login");
        self.note(peer, &"somebody who does not say who it is", why);
    }

    /// A login is to come again in a moment: what came before it is yet to end.
    #[cold]
    pub fn put_off(&self, peer: &str, claimed: &dyn Display) {
        tracing::info!(%peer, %claimed, "login put off");
    }

    fn note(&self, peer: &str, claimed: &dyn Display, why: &dyn Display) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let mut all = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        all.note(peer, claimed, why);
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

    /// What is to be told of refusals: causes that are new, and those that go on and were told ten minutes before `now`.
    pub fn take_refusals(&self, now: Instant) -> Vec<String> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).take(now)
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
    fn who_goes_on_being_refused_is_told_now_and_then() {
        let (counts, begun) = (Counts::default(), Instant::now());
        for port in 0..3 {
            counts.refused(&format!("192.0.2.7:{port}"), &port, &"nobody knows it");
        }
        let told = counts.take_refusals(begun);
        let text = "logins from 192.0.2.7 are refused (3), the last one of 2: nobody knows it";
        assert_eq!(told, [text]);
        counts.refused("192.0.2.7:9", &7, &"nobody knows it");
        assert!(counts.take_refusals(begun + EVERY / 2).is_empty(), "so soon after that");
        // Another cause is another matter.
        counts.unproved("192.0.2.7:9", &7, &"its secret is another one");
        let text = "a login of 7 from 192.0.2.7 was refused: its secret is another one";
        assert_eq!(counts.take_refusals(begun + EVERY / 2), [text]);
        let text = "logins from 192.0.2.7 are refused (1), the last one of 7: nobody knows it";
        assert_eq!(counts.take_refusals(begun + EVERY), [text]);
        // It begins anew when it has not been for so long.
        assert!(counts.take_refusals(begun + 2 * EVERY).is_empty());
        counts.refused("192.0.2.7:9", &8, &"nobody knows it");
        let text = "a login of 8 from 192.0.2.7 was refused: nobody knows it";
        assert_eq!(counts.take_refusals(begun + 2 * EVERY), [text]);
        assert_eq!(counts.read(), Counted { refused: 6, ..Counted::default() });
    }

    #[test]
    fn nobody_hides_the_refusals_of_others_nor_fills_the_events() {
        let (counts, begun) = (Counts::default(), Instant::now());
        let mut told = 0;
        for i in 0..10_000u32 {
            counts
                .stranger(&format!("10.0.{}.{}:1", i / 256, i % 256), &"these are no bytes of it");
            told += counts.take_refusals(begun).len();
        }
        assert_eq!(told, OF_ONE_REASON + 1, "some, and the others as one");
        counts.unproved("192.0.2.7:9", &7, &"its secret is another one");
        assert_eq!(counts.take_refusals(begun).len(), 1);
        let told = counts.take_refusals(begun + EVERY);
        let text = "logins of others are refused (9995), the last one of somebody who does not say who it is: these are no bytes of it";
        assert_eq!(told, [text]);
        for i in 0..1000u32 {
            counts.refused("192.0.2.7:9", &7, &i);
        }
        assert!(counts.take_refusals(begun + EVERY).len() <= KEPT + 1);
    }
}

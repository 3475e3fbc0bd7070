//! The channels that a target port may have, shared out among the hosts that it knows.

use crate::access::AccessMap;
use crate::planted::{Bug, has};
use crate::spread::Spread;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Channels that each known host is sure of, where half of all are as many: one for each of a few queues. The other half is anybody's,
/// and so is what is kept for no one: most known hosts may never come.
const SURE: usize = 4;

/// Channels by name of the host.
#[derive(Debug, Default)]
pub(crate) struct Seats(Mutex<BTreeMap<String, usize>>);

impl Seats {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one of `most` for a host, unless that is one that others are sure of.
    fn take(&self, most: usize, host: &str, map: &AccessMap) -> bool {
        let mut all = self.all();
        let half = most / 2;
        let sure = SURE.min((half / map.hosts.len().max(1)).max(1));
        let has_of = |host: &str| all.get(host).copied().unwrap_or(0);
        let taken: usize = all.values().sum();
        let owed = |h: &str| if h == host { 0 } else { sure.saturating_sub(has_of(h)) };
        let kept = match has_of(host) < sure || has(Bug::SeatsForWhoComesFirst) {
            true => 0,
            false => map.hosts.iter().map(|h| owed(&h.host)).sum(),
        };
        if taken + half.min(kept) >= most {
            return false;
        }
        *all.entry(host.to_owned()).or_default() += 1;
        true
    }

    fn give_back(&self, host: &str) {
        let mut all = self.all();
        if let Some(n) = all.get_mut(host) {
            *n -= 1;
            if *n == 0 {
                all.remove(host);
            }
        }
    }
}

/// A channel of a host, as long as this is there.
pub struct Seat {
    spread: Arc<Spread>,
    host: String,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.spread.seats.give_back(&self.host);
    }
}

impl Spread {
    /// Counts a channel more for the host that an initiator port belongs to. None: the port is about to end, `most` are taken, or the
    /// rest is what other hosts of the map are sure of.
    pub fn admit(self: &Arc<Self>, most: usize, initiator: &[u8], map: &AccessMap) -> Option<Seat> {
        let host = map.host(initiator)?.host.clone();
        let admitted = !self.is_closed() && self.seats.take(most, &host, map);
        admitted.then(|| Seat { spread: self.clone(), host })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::HostRule;

    fn map(hosts: &[&str]) -> AccessMap {
        let rule = |h: &&str| HostRule {
            host: (*h).into(),
            ports: vec![h.as_bytes().to_vec()],
            ..HostRule::default()
        };
        AccessMap { hosts: hosts.iter().map(rule).collect() }
    }

    fn all_of(spread: &Arc<Spread>, most: usize, host: &str, map: &AccessMap) -> Vec<Seat> {
        std::iter::from_fn(|| spread.admit(most, host.as_bytes(), map)).collect()
    }

    #[test]
    fn whoever_comes_first_leaves_some_to_every_host() {
        let spread = Arc::new(Spread::default());
        let m = map(&["a", "b", "c"]);
        let a = all_of(&spread, 24, "a", &m);
        assert_eq!(a.len(), 16);
        let b = all_of(&spread, 24, "b", &m);
        assert_eq!(b.len(), 4);
        let mut c = all_of(&spread, 24, "c", &m);
        assert_eq!(c.len(), 4);
        // What is given back is anybody's, but for what somebody is sure of.
        c.pop();
        assert!(spread.admit(24, b"b", &m).is_none());
        c.extend(all_of(&spread, 24, "c", &m));
        drop(a);
        assert_eq!((c.len(), all_of(&spread, 24, "b", &m).len()), (4, 12));
    }

    #[test]
    fn one_alone_gets_all_and_many_get_what_there_is() {
        let spread = Arc::new(Spread::default());
        assert_eq!(all_of(&spread, 256, "a", &map(&["a"])).len(), 256);
        let m = map(&["a", "b", "c"]);
        let a = all_of(&spread, 4, "a", &m);
        assert_eq!((a.len(), all_of(&spread, 4, "b", &m).len()), (2, 1));
        let m = map(&["d", "e", "f", "g", "h"]);
        drop(a);
        assert_eq!(all_of(&spread, 4, "d", &m).len(), 2);
        assert!(spread.admit(4, b"nobody", &m).is_none());
    }

    /// Many are known, and few come.
    #[test]
    fn half_of_all_is_anybodys() {
        for known in [32, 64, 128, 200, 256, 1000] {
            let names: Vec<String> = (0..known).map(|n| n.to_string()).collect();
            let m = map(&names.iter().map(String::as_str).collect::<Vec<_>>());
            let spread = Arc::new(Spread::default());
            let first = all_of(&spread, 256, "0", &m);
            assert!((128..=132).contains(&first.len()), "{known}: {}", first.len());
            // Who comes next has its part of the rest.
            let sure = (128 / known).clamp(1, 4);
            assert!(all_of(&spread, 256, "1", &m).len() >= sure, "{known}");
        }
    }
}

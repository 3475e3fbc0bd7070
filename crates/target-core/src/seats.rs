//! The channels that a target port may have, shared out among the hosts that it knows.

use crate::access::AccessMap;
use crate::planted::{Bug, has as planted};
use crate::spread::Spread;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Channels that each known host is sure of, where half of all are as many: one for each of a few queues. The other half is anybody's,
/// and so is what is kept for no one: most known hosts may never come.
const SURE: usize = 4;

/// What a host has of the channels.
#[derive(Debug, Default)]
struct Places {
    taken: usize,
    /// Of these, given back and kept for logins that wait for them.
    kept: usize,
    /// Logins that wait for another channel of the host to give its place back.
    waiting: usize,
}

/// Channels by name of the host.
#[derive(Debug, Default)]
pub(crate) struct Seats(Mutex<BTreeMap<String, Places>>);

impl Seats {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Places>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a host that has `own` of `most` gets another one, unless that is one that others are sure of.
    fn fits(
        all: &BTreeMap<String, Places>,
        most: usize,
        host: &str,
        own: usize,
        map: &AccessMap,
    ) -> bool {
        let half = most / 2;
        let sure = SURE.min((half / map.hosts.len().max(1)).max(1));
        let has_of = |host: &str| all.get(host).map_or(0, |p| p.taken);
        let others: usize = all.iter().filter(|(h, _)| *h != host).map(|(_, p)| p.taken).sum();
        let owed = |h: &str| if h == host { 0 } else { sure.saturating_sub(has_of(h)) };
        let kept = match own < sure || planted(Bug::SeatsForWhoComesFirst) {
            true => 0,
            false => map.hosts.iter().map(|h| owed(&h.host)).sum(),
        };
        others + own + half.min(kept) < most
    }

    /// Takes one for a host. True when it has one, false when it waits for one of `ends` that the host has and is to give back.
    fn take(&self, most: usize, host: &str, map: &AccessMap, ends: usize) -> Option<bool> {
        let mut all = self.all();
        let (taken, kept, waiting) =
            all.get(host).map_or((0, 0, 0), |p| (p.taken, p.kept, p.waiting));
        let has = Seats::fits(&all, most, host, taken, map);
        // Those that are kept have been given back: nobody waits for them any more, and none of `ends` is among them.
        let coming = if planted(Bug::KeptWaitOn) { waiting + kept } else { waiting };
        let ends = ends.min(taken - kept);
        let own = taken - ends + coming;
        if !has && (coming >= ends || !Seats::fits(&all, most, host, own, map)) {
            return None;
        }
        let places = all.entry(host.to_owned()).or_default();
        match has {
            true => places.taken += 1,
            false => places.waiting += 1,
        }
        Some(has)
    }

    /// One that waits gets its place, if there is one by now.
    fn claim(&self, most: usize, host: &str, map: &AccessMap) -> bool {
        let mut all = self.all();
        let Some(taken) = all.get(host).map(|p| p.taken) else { return false };
        let fits = Seats::fits(&all, most, host, taken, map);
        match all.get_mut(host) {
            Some(p) if p.kept > 0 => p.kept -= 1,
            Some(p) if fits => {
                p.waiting -= 1;
                p.taken += 1;
            }
            _ => return false,
        }
        true
    }

    /// A channel is gone, or a login that has `waited` in vain. Another one of the host gets the place, if any waits.
    fn give_back(&self, host: &str, waited: bool) {
        let mut all = self.all();
        let Some(p) = all.get_mut(host) else { return };
        match (p.waiting, waited) {
            (0, true) => {
                p.kept -= 1;
                p.taken -= 1;
            }
            (0, false) => p.taken -= 1,
            (_, true) => p.waiting -= 1,
            (_, false) => {
                p.waiting -= 1;
                p.kept += 1;
            }
        }
        if p.taken + p.waiting == 0 {
            all.remove(host);
        }
    }
}

/// A channel of a host, as long as this is there.
pub struct Seat {
    spread: Arc<Spread>,
    host: String,
    /// It waits for a place that a channel of its host has.
    waits: bool,
}

impl Seat {
    /// What the login ends is gone: true if it has a place now.
    pub fn claim(&mut self, most: usize, map: &AccessMap) -> bool {
        self.waits = self.waits && !self.spread.seats.claim(most, &self.host, map);
        !self.waits
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.spread.seats.give_back(&self.host, self.waits);
    }
}

impl Spread {
    /// Counts a channel more for the host that an initiator port belongs to. None: the port is about to end, `most` are taken, or the
    /// rest is what other hosts of the map are sure of.
    pub fn admit(self: &Arc<Self>, most: usize, initiator: &[u8], map: &AccessMap) -> Option<Seat> {
        self.admit_for(most, initiator, map, 0)
    }

    /// As [`admit`](Spread::admit), for a login that `ends` so many channels of its host before it is served. Where there is a place
    /// only because of that, the channel has to [claim](Seat::claim) it when they have ended; no other host gets it meanwhile.
    pub fn admit_for(
        self: &Arc<Self>,
        most: usize,
        initiator: &[u8],
        map: &AccessMap,
        ends: usize,
    ) -> Option<Seat> {
        let host = map.host(initiator)?.host.clone();
        if self.is_closed() {
            return None;
        }
        let has = self.seats.take(most, &host, map, ends)?;
        Some(Seat { spread: self.clone(), host, waits: !has })
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

    /// A host whose dead channels have all places comes in when they are gone, and nobody between.
    #[test]
    fn the_place_of_a_channel_goes_over_to_the_one_that_replaces_it() {
        let spread = Arc::new(Spread::default());
        let m = map(&["a", "b"]);
        let of = |most, host: &str, ends| spread.admit_for(most, host.as_bytes(), &m, ends);
        let mut old = all_of(&spread, 6, "a", &m);
        let b = all_of(&spread, 6, "b", &m);
        assert_eq!((old.len(), b.len()), (5, 1));
        assert!(of(6, "a", 0).is_none() && of(6, "b", 0).is_none());
        // No more wait than channels end.
        let mut new: Vec<Seat> = std::iter::from_fn(|| of(6, "a", 2)).collect();
        assert_eq!(new.len(), 2);
        assert!(new.iter_mut().all(|s| !s.claim(6, &m)));
        old.pop();
        assert!(of(6, "b", 0).is_none(), "it is kept for one that waits");
        assert!(new[1].claim(6, &m) && new[1].claim(6, &m) && !new[0].claim(6, &m));
        // Who gives up waiting leaves nothing behind, whether a place was kept for it or not.
        drop(new.remove(0));
        old.pop();
        let more = of(6, "a", 0);
        assert!(more.is_some());
        let waits = of(6, "a", 1);
        old.pop();
        drop(waits);
        assert!(of(6, "a", 0).is_some());
        // With what is free anyway there is nothing to wait for.
        drop((old, new, more, b));
        assert!(spread.seats.all().is_empty());
        assert!(of(6, "a", 1).is_some_and(|mut s| s.claim(6, &m)));
    }

    /// A host comes back with several channels while its old ones end one after the other.
    #[test]
    fn who_has_got_a_place_does_not_count_among_those_that_wait() {
        let spread = Arc::new(Spread::default());
        let m = map(&["a"]);
        let mut old = all_of(&spread, 3, "a", &m);
        assert_eq!(old.len(), 3);
        let mut new = Vec::new();
        for n in (1..=3).rev() {
            let seat = spread.admit_for(3, b"a", &m, n);
            new.push(
                seat.unwrap_or_else(|| panic!("{n} of its channels are to end, and none waits")),
            );
            old.pop();
        }
        assert!(spread.admit_for(3, b"a", &m, 0).is_none());
        assert!(new.iter_mut().all(|s| s.claim(3, &m)));
        drop(new);
        assert!(spread.seats.all().is_empty());
    }

    #[test]
    fn who_would_have_no_place_without_its_old_channels_does_not_wait_for_theirs() {
        let spread = Arc::new(Spread::default());
        let old = all_of(&spread, 4, "a", &map(&["a"]));
        assert_eq!(old.len(), 4);
        let m = map(&["a", "b", "c"]);
        let new: Vec<Seat> = std::iter::from_fn(|| spread.admit_for(4, b"a", &m, 4)).collect();
        assert_eq!(new.len(), 2, "the rest is what others are sure of");
        assert!(spread.admit_for(4, b"b", &m, 4).is_none(), "none of them is its own");
        drop((old, new));
        assert!(spread.seats.all().is_empty());
    }
}

//! Channels without a connection: how many are remembered, and which is forgotten first.
//!
//! A channel outlives its connection so that its host can go on where it was. A host may log in under ever new names,
//! so what is remembered is limited: for each host, and in all. Only logins and ends of connections come here.

use crate::sessions::ChannelName;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// A channel that waits for its host.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Waiting {
    name: ChannelName,
    host: String,
    reactor: u32,
}

/// The channels of a target port that wait for their hosts, the one that has waited longest first.
#[derive(Default)]
pub(crate) struct Remembered(Mutex<(u64, BTreeMap<u64, Waiting>)>);

/// Names a place in the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place(u64);

impl Remembered {
    /// A channel of `host` on `reactor` has lost its connection. Gives its place, and the channels (with their
    /// reactors) that are to be forgotten for it: `own` of a host and `all` are the most that wait.
    pub(crate) fn add(
        &self,
        name: ChannelName,
        host: String,
        reactor: u32,
        own: usize,
        all: usize,
    ) -> (Place, Vec<(ChannelName, u32)>) {
        let mut t = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        t.0 += 1;
        let place = t.0;
        let row = &mut t.1;
        row.insert(place, Waiting { name, host: host.clone(), reactor });
        let mut gone = Vec::new();
        let mut forget = |row: &mut BTreeMap<u64, Waiting>, oldest: Option<u64>| {
            if let Some(w) = oldest.and_then(|p| row.remove(&p)) {
                gone.push((w.name, w.reactor));
            }
        };
        if row.values().filter(|w| w.host == host).count() > own.max(1) {
            let oldest = row.iter().find(|(_, w)| w.host == host).map(|(p, _)| *p);
            forget(row, oldest);
        }
        if row.len() > all.max(1) {
            let oldest = row.keys().next().copied();
            forget(row, oldest);
        }
        (Place(place), gone)
    }

    /// The channel of this place has a connection again, or is over.
    pub(crate) fn remove(&self, place: Place) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&place.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::SessionName;
    use weir_proto_brp::PortId;

    #[test]
    fn the_oldest_of_a_host_with_many_goes_first_then_the_oldest_of_all() {
        let r = Remembered::default();
        let name = |channel| {
            let session = SessionName { initiator: PortId([1; 16]), session: 1 };
            ChannelName { session, channel }
        };
        let add = |host: &str, n| r.add(name(n), host.into(), u32::from(n), 2, 4);
        let gone = |host: &str, n| {
            let all = add(host, n).1;
            all.iter().map(|(n, r)| (n.channel, *r)).collect::<Vec<_>>()
        };
        assert!(gone("a", 1).is_empty() && gone("b", 2).is_empty() && gone("a", 3).is_empty());
        assert_eq!(gone("a", 4), [(1, 1)]);
        assert!(gone("b", 5).is_empty());
        assert_eq!(gone("c", 6), [(2, 2)]);
        // Who comes back is not forgotten.
        let (place, none) = add("d", 7);
        assert_eq!(none.iter().map(|(n, _)| n.channel).collect::<Vec<_>>(), [3]);
        r.remove(place);
        assert!(gone("e", 8).is_empty());
    }
}

//! Hosts that are connected, by initiator port.

use crate::planted::{Bug, has};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_proto_scsi::lu::Nexus;

/// An initiator port: the host's address, an IPv4 one as IPv6 has it (RFC 4291, section 2.5.5.2).
pub(crate) fn initiator(from: IpAddr) -> [u8; 16] {
    match from.to_canonical() {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    }
}

/// A host's connections.
struct Known {
    nexus: Nexus,
    /// How many each reactor serves.
    at: BTreeMap<u32, usize>,
}

impl Known {
    fn connections(&self) -> usize {
        self.at.values().sum()
    }
}

type All = BTreeMap<[u8; 16], Known>;

/// The nexus of each host, and its connections.
#[derive(Default)]
pub(crate) struct Nexuses(Mutex<All>);

impl Nexuses {
    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection more of this host on `reactor`. Its nexus is `new` if it has none.
    pub(crate) fn enter(
        &self,
        initiator: [u8; 16],
        reactor: u32,
        new: impl FnOnce() -> Nexus,
    ) -> Nexus {
        let mut all = self.all();
        let fresh = || Known { nexus: new(), at: BTreeMap::new() };
        let known = all.entry(initiator).or_insert_with(fresh);
        *known.at.entry(reactor).or_default() += 1;
        known.nexus
    }

    /// One less. True when it was the last: the nexus is over.
    pub(crate) fn leave(&self, initiator: &[u8; 16], reactor: u32) -> bool {
        let mut all = self.all();
        let Some(known) = all.get_mut(initiator) else { return false };
        if let Some(n) = known.at.get_mut(&reactor) {
            *n -= 1;
        }
        known.at.retain(|_, n| *n > 0);
        let last = known.at.is_empty();
        if last && !has(Bug::NexusStays) {
            all.remove(initiator);
        }
        last
    }

    /// The reactors that serve a host.
    pub(crate) fn reactors(&self, initiator: &[u8; 16]) -> BTreeSet<u32> {
        self.all().get(initiator).map(|k| k.at.keys().copied().collect()).unwrap_or_default()
    }

    /// A host has more than one connection.
    pub(crate) fn are_many(&self, initiator: &[u8; 16]) -> bool {
        self.all().get(initiator).is_some_and(|k| k.connections() > 1)
    }

    /// Forgets all.
    pub(crate) fn clear(&self) -> Vec<Nexus> {
        std::mem::take(&mut *self.all()).into_values().map(|k| k.nexus).collect()
    }

    /// All, with their connections.
    pub(crate) fn list(&self) -> Vec<([u8; 16], usize)> {
        self.all().iter().map(|(i, k)| (*i, k.connections())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_one_address_are_one_nexus() {
        let v4: IpAddr = "192.0.2.7".parse().unwrap();
        let mapped: IpAddr = "::ffff:192.0.2.7".parse().unwrap();
        let who = initiator(v4);
        assert_eq!(who, initiator(mapped));
        let n = Nexuses::default();
        assert_eq!(n.enter(who, 0, || Nexus(5)), Nexus(5));
        assert!(!n.are_many(&who));
        assert_eq!(n.enter(who, 3, || Nexus(6)), Nexus(5));
        assert_eq!((n.list(), n.are_many(&who)), (vec![(who, 2)], true));
        assert_eq!(n.reactors(&who), [0, 3].into());
        assert!(!n.leave(&who, 0) && n.reactors(&who) == [3].into());
        assert!(n.leave(&who, 3) && !n.leave(&who, 3) && n.reactors(&who).is_empty());
        assert_eq!(n.enter(who, 0, || Nexus(7)), Nexus(7));
    }
}

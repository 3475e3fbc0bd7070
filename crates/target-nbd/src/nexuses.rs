//! Hosts that are connected, by initiator port.

use crate::planted::{Bug, has};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_proto_scsi::lu::Nexus;
use weir_target_core::ADDRESS_KEY;

/// An initiator port: the [key](weir_target_core::address_key) of the host's address.
pub(crate) type Initiator = [u8; ADDRESS_KEY];

/// The address in a key, as IPv6 has it.
pub(crate) fn octets(initiator: &Initiator) -> [u8; 16] {
    initiator.last_chunk().copied().unwrap_or_default()
}

/// The address in a key.
pub(crate) fn address(initiator: &Initiator) -> IpAddr {
    IpAddr::from(octets(initiator)).to_canonical()
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

type All = BTreeMap<Initiator, Known>;

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
        initiator: Initiator,
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
    pub(crate) fn leave(&self, initiator: &Initiator, reactor: u32) -> bool {
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
    pub(crate) fn reactors(&self, initiator: &Initiator) -> BTreeSet<u32> {
        self.all().get(initiator).map(|k| k.at.keys().copied().collect()).unwrap_or_default()
    }

    /// A host has more than one connection.
    pub(crate) fn are_many(&self, initiator: &Initiator) -> bool {
        self.all().get(initiator).is_some_and(|k| k.connections() > 1)
    }

    /// Forgets all.
    pub(crate) fn clear(&self) -> Vec<Nexus> {
        std::mem::take(&mut *self.all()).into_values().map(|k| k.nexus).collect()
    }

    /// All, with their connections.
    pub(crate) fn list(&self) -> Vec<(Initiator, usize)> {
        self.all().iter().map(|(i, k)| (*i, k.connections())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_target_core::address_key;

    #[test]
    fn connections_of_one_address_are_one_nexus() {
        let v4: IpAddr = "192.0.2.7".parse().unwrap();
        let mapped: IpAddr = "::ffff:192.0.2.7".parse().unwrap();
        let who = address_key(v4);
        assert_eq!(who, address_key(mapped));
        assert_eq!(address(&who), v4);
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

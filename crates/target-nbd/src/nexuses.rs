//! Hosts that are connected, by initiator port.

use std::collections::BTreeMap;
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

/// The nexus of each host, and its connections.
#[derive(Default)]
pub(crate) struct Nexuses(Mutex<BTreeMap<[u8; 16], (Nexus, usize)>>);

impl Nexuses {
    fn all(&self) -> MutexGuard<'_, BTreeMap<[u8; 16], (Nexus, usize)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection more of this host, whose nexus is `new` if it has none.
    pub(crate) fn enter(&self, initiator: [u8; 16], new: impl FnOnce() -> Nexus) -> Nexus {
        let mut all = self.all();
        let known = all.entry(initiator).or_insert_with(|| (new(), 0));
        known.1 += 1;
        known.0
    }

    /// One less. True when it was the last: the nexus is over.
    pub(crate) fn leave(&self, initiator: &[u8; 16]) -> bool {
        let mut all = self.all();
        let Some(known) = all.get_mut(initiator) else { return false };
        known.1 -= 1;
        let last = known.1 == 0;
        if last {
            all.remove(initiator);
        }
        last
    }

    /// Forgets all.
    pub(crate) fn clear(&self) -> Vec<Nexus> {
        std::mem::take(&mut *self.all()).into_values().map(|(n, _)| n).collect()
    }

    /// All, with their connections.
    pub(crate) fn list(&self) -> Vec<([u8; 16], usize)> {
        self.all().iter().map(|(i, (_, n))| (*i, *n)).collect()
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
        assert_eq!(n.enter(who, || Nexus(5)), Nexus(5));
        assert_eq!(n.enter(who, || Nexus(6)), Nexus(5));
        assert_eq!(n.list(), [(who, 2)]);
        assert!(!n.leave(&who) && n.leave(&who) && !n.leave(&who));
        assert_eq!(n.enter(who, || Nexus(7)), Nexus(7));
    }
}

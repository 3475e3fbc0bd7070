//! Which initiator port sees which volumes under which logical unit numbers (S0: isolation of hosts).

use crate::known::Known;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What a host proves at login where the protocol can ask for it (BRP). SRP cannot, so a host with a secret is not let
/// in by it.
#[derive(Clone, PartialEq, Eq, Default)]
pub enum Secret {
    /// Nothing: its port's identifier is enough.
    #[default]
    None,
    /// That it knows this.
    Known(Arc<[u8]>),
    /// It has a secret that this node does not know (any more): nobody is let in as it.
    Lost,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Secret::None => "None",
            Secret::Known(_) => "Known(..)",
            Secret::Lost => "Lost",
        })
    }
}

/// One host: its initiator ports and what it may see.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostRule {
    /// The host's name, for messages.
    pub host: String,
    /// Initiator ports: an identifier of 16 bytes, or a name, filled up with NUL to 17 bytes if it is shorter.
    pub ports: Vec<Vec<u8>>,
    /// Every initiator port that no other host names belongs to this host.
    pub any: bool,
    /// (LUN index, volume name), ascending by LUN.
    pub luns: Vec<(u16, String)>,
    /// What it proves at login.
    pub secret: Secret,
}

/// All hosts. Immutable; replaced as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccessMap {
    /// The hosts.
    pub hosts: Vec<HostRule>,
}

/// How the access map names an iSCSI initiator: by its name in lower case (RFC 3722), filled up with NUL to 17 bytes if it is shorter, so
/// that it is never taken for a port of 16 bytes.
pub fn initiator_key(name: &str) -> Vec<u8> {
    let mut key = name.to_ascii_lowercase().into_bytes();
    key.resize(key.len().max(17), 0);
    key
}

/// Bytes of the key of an address.
pub const ADDRESS_KEY: usize = 19;

/// How the access map names a host of a protocol that knows hosts by their addresses: `ip.`, and the address, an IPv4 one as IPv6 has
/// it (RFC 4291, section 2.5.5.2). No identifier and no name has such a key, so nobody can claim it.
pub fn address_key(at: IpAddr) -> [u8; ADDRESS_KEY] {
    let octets = match at.to_canonical() {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    };
    let mut key = [0; ADDRESS_KEY];
    key[..3].copy_from_slice(b"ip.");
    key[3..].copy_from_slice(&octets);
    key
}

/// What the writer of a host with a name begins with.
pub(crate) const NAMED: &str = "host ";

impl AccessMap {
    /// The host that `port` belongs to.
    pub fn host(&self, port: &[u8]) -> Option<&HostRule> {
        let named = self.hosts.iter().find(|h| h.ports.iter().any(|p| p == port));
        named.or_else(|| self.hosts.iter().find(|h| h.any))
    }

    /// Whose share of memory it is that `port` uses: its host's, or its own where the rule is for all or the host has no
    /// identifier but its network `address`.
    pub fn account(&self, port: &[u8], address: &str) -> String {
        let own = || port.iter().map(|b| format!("{b:02x}")).collect::<String>();
        match self.host(port).filter(|h| !h.any) {
            Some(h) => format!("host {} {address}", h.host),
            None => format!("port {} {address}", own()),
        }
    }
}

impl AccessMap {
    /// Whose writes wait for each other's that are left behind: those of a host, and where the rule is for all those of a
    /// machine, which the second half of an identifier names, or a whole name. Empty where nothing tells.
    pub(crate) fn writer(&self, port: &[u8]) -> String {
        let machine = if port.len() == 16 { &port[8..] } else { port };
        let machine = Some(machine).filter(|m| m.iter().any(|b| *b != 0));
        match (self.host(port), machine) {
            (Some(h), _) if !h.any => format!("{NAMED}{}", h.host),
            (Some(_), Some(m)) => {
                format!("machine {}", m.iter().map(|b| format!("{b:02x}")).collect::<String>())
            }
            _ => String::new(),
        }
    }

    /// Volumes that some initiator port sees by this map, and by `new` not at all, under another number, or with another
    /// proof only.
    pub fn lost_by(&self, new: &AccessMap) -> Vec<String> {
        let ports = |m: &AccessMap| -> BTreeSet<Vec<u8>> {
            m.hosts.iter().flat_map(|h| h.ports.iter().cloned()).collect()
        };
        // A port that is named now belongs to no host for all any more.
        let same_ports = ports(self) == ports(new);
        let mut lost = BTreeSet::new();
        for h in &self.hosts {
            let still = new.hosts.iter().find(|n| (&n.ports, n.any) == (&h.ports, h.any));
            let kept = |l: &(u16, String)| {
                let kept = |n: &HostRule| n.secret == h.secret && n.luns.contains(l);
                (same_ports || !h.any) && still.is_some_and(kept)
            };
            lost.extend(h.luns.iter().filter(|l| !kept(l)).map(|(_, v)| v.clone()));
        }
        lost.into_iter().collect()
    }
}

/// The access map in force, shared by all reactors. Whether it has changed is told by one counter, so that
/// the data path takes no lock.
#[derive(Debug, Default)]
pub struct Access {
    map: Mutex<Arc<AccessMap>>,
    generation: AtomicU64,
    pub(crate) known: Known,
}

impl Access {
    /// With a first map.
    pub fn new(map: AccessMap) -> Self {
        let map = Mutex::new(Arc::new(map));
        Access { map, generation: AtomicU64::new(1), known: Known::default() }
    }

    /// Changes with every change of the map or of the units behind it.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The map in force.
    pub fn map(&self) -> Arc<AccessMap> {
        self.map.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Puts another map in force.
    pub fn set(&self, map: AccessMap) {
        *self.map.lock().unwrap_or_else(|e| e.into_inner()) = Arc::new(map);
        self.touch();
    }

    /// Makes every front end look again: a unit came or went.
    pub fn touch(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_ports_come_before_the_host_for_all() {
        let rule = |host: &str, port: &[u8], any| HostRule {
            host: host.into(),
            ports: vec![port.to_vec()],
            any,
            ..HostRule::default()
        };
        let map = AccessMap { hosts: vec![rule("all", b"", true), rule("one", b"p1", false)] };
        assert_eq!(map.host(b"p1").unwrap().host, "one");
        assert_eq!(map.host(b"p2").unwrap().host, "all");
        assert_eq!(map.writer(b"p1"), "host one");
        let ports = [b"extensio:machinA", b"EXTENSIO:machinA", b"extensio:machinB"];
        let ports = ports.map(|p| map.writer(p));
        assert!(!ports[0].is_empty() && ports[0] == ports[1] && ports[0] != ports[2]);
        // A name has no halves: these differ in what comes first.
        let names = ["iqn.2026-01.a:host", "iqn.2026-02.a:host"].map(initiator_key);
        assert_ne!(map.writer(&names[0]), map.writer(&names[1]));
        assert_eq!(map.writer(&[0; 16]), "");
        let map = AccessMap { hosts: vec![rule("one", b"p1", false)] };
        assert!(map.host(b"p2").is_none());
        assert_eq!(map.writer(b"p2"), "");
        let access = Access::new(map);
        let g = access.generation();
        access.set(AccessMap::default());
        assert_ne!(access.generation(), g);
        assert!(access.map().hosts.is_empty());
    }

    #[test]
    fn names_of_initiators_are_no_identifiers() {
        let (v4, mapped) = ("192.0.2.7".parse().unwrap(), "::ffff:192.0.2.7".parse().unwrap());
        assert_eq!(address_key(v4), address_key(mapped));
        assert_eq!(&address_key(v4)[13..], [0xff, 0xff, 192, 0, 2, 7]);
        assert_eq!(initiator_key("iqn.A:b"), b"iqn.a:b\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(initiator_key("iqn.2026-01.a:bcd").len(), 17);
        assert_eq!(initiator_key("iqn.2026-01.org.example:h"), b"iqn.2026-01.org.example:h");
    }

    #[test]
    fn what_a_change_takes_from_somebody() {
        let rule = |port: &[u8], any, luns: &[(u16, &str)]| HostRule {
            host: String::new(),
            ports: if any { Vec::new() } else { vec![port.to_vec()] },
            any,
            luns: luns.iter().map(|(n, v)| (*n, (*v).to_owned())).collect(),
            ..HostRule::default()
        };
        let map = |hosts| AccessMap { hosts };
        let old = map(vec![rule(b"a", false, &[(0, "x"), (1, "y")]), rule(b"", true, &[(0, "z")])]);
        assert!(old.lost_by(&old).is_empty());
        let less =
            map(vec![rule(b"a", false, &[(0, "x")]), rule(b"", true, &[(0, "z"), (1, "y")])]);
        assert_eq!(old.lost_by(&less), ["y"]);
        let moved =
            map(vec![rule(b"a", false, &[(0, "x"), (2, "y")]), rule(b"", true, &[(0, "z")])]);
        assert_eq!(old.lost_by(&moved), ["y"]);
        let other = map(vec![rule(b"b", false, &[(0, "x"), (1, "y")])]);
        assert_eq!(old.lost_by(&other), ["x", "y", "z"]);
        let mut secret = old.clone();
        secret.hosts[0].secret = Secret::Lost;
        assert_eq!(old.lost_by(&secret), ["x", "y"]);
        let mut named = old.clone();
        named.hosts.push(rule(b"c", false, &[]));
        assert_eq!(old.lost_by(&named), ["z"]);
    }
}

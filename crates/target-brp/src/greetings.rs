//! Which connections of a port have not proved themselves yet. Whoever knows the identifier of a host with a secret, which is no
//! secret, can make some: there are so many at most, and the address that has most of them makes room for others.

use crate::keyed::MOST;
use crate::planted::{Bug, has};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use weir_codec::mac;
use weir_fabric::source;
use weir_proto_brp::keyed::NONCE;

/// A connection that has not proved itself.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) number: u64,
    /// Where it is.
    pub(crate) reactor: u32,
    /// The address that it comes from.
    from: String,
}

/// What keyed logins of a port share.
#[derive(Default)]
pub(crate) struct Greetings {
    /// In the order in which they came.
    places: Mutex<Vec<Place>>,
    made: AtomicU64,
    drawn: AtomicU64,
}

/// The address of a peer, as it counts here.
fn address(peer: &str) -> String {
    match peer.parse::<SocketAddr>() {
        Ok(a) => source(a.ip()).to_string(),
        Err(_) => peer.rsplit_once(':').map_or(peer, |(a, _)| a).to_owned(),
    }
}

/// The first one of an address that has most of those meant, and as many as `from` would have. None of `from` itself.
fn who_goes(
    all: &[Place],
    from: &str,
    own: usize,
    meant: impl Fn(&Place) -> bool,
) -> Option<usize> {
    let count = |of: &str| all.iter().filter(|p| p.from == of && meant(p)).count();
    let mut most = (own, None);
    for (i, p) in all.iter().enumerate().filter(|(_, p)| meant(p) && p.from != from) {
        let n = count(&p.from);
        if n > most.0 || n == most.0 && most.1.is_none() {
            most = (n, Some(i));
        }
    }
    most.1.filter(|_| !has(Bug::CrowdKeepsOut))
}

impl Greetings {
    fn lock(&self) -> MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that was never used before by this run of the program, and that nobody can foretell.
    pub(crate) fn nonce(&self, seed: &[u8; 32], port: &[u8; 16]) -> [u8; NONCE] {
        let n = self.drawn.fetch_add(1, Ordering::Relaxed);
        mac::hmac_sha256(seed, &[port, &n.to_le_bytes()])
    }

    /// A connection of `peer` is to prove itself on this reactor. Gives its number, and who has to go for it. `None`: all places
    /// are taken, and no other address has more.
    pub(crate) fn begin(&self, peer: &str, reactor: u32) -> Option<(u64, Option<Place>)> {
        let from = address(peer);
        let mut all = self.lock();
        let mut gone = None;
        if all.len() >= MOST {
            let own = all.iter().filter(|p| p.from == from).count() + 1;
            let i = who_goes(&all, &from, own, |_| true)?;
            gone = Some(all.remove(i));
        }
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        all.push(Place { number, reactor, from });
        Some((number, gone))
    }

    /// One that is to prove itself on this reactor finds nothing there: gives another one there that has to go for it.
    pub(crate) fn displace(&self, number: u64, reactor: u32) -> Option<Place> {
        let mut all = self.lock();
        let from = all.iter().find(|p| p.number == number)?.from.clone();
        let here = |p: &Place| p.reactor == reactor;
        let own = all.iter().filter(|p| p.from == from && here(p)).count();
        let i = who_goes(&all, &from, own, here)?;
        Some(all.remove(i))
    }

    /// It has not had to go.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.lock().iter().any(|p| p.number == number)
    }

    /// It has proved itself, or not.
    pub(crate) fn end(&self, number: u64) {
        self.lock().retain(|p| p.number != number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_that_has_most_makes_room() {
        let g = Greetings::default();
        let begin = |host: u8, port: u32| g.begin(&format!("192.0.2.{host}:{port}"), 0);
        let (first, _) = begin(9, 1).expect("a place");
        for n in 0..MOST as u32 - 1 {
            assert!(begin(1, n).is_some_and(|b| b.1.is_none()));
        }
        assert!(begin(1, 1000).is_none(), "it has most itself");
        for n in 0..MOST as u32 / 2 - 1 {
            let (_, gone) = begin(2, n).expect("a place");
            assert_eq!(gone.expect("one goes").from, "192.0.2.1");
        }
        assert!(g.has(first));
        let (own, gone) = begin(3, 1).expect("a place");
        assert!(gone.is_some());
        // The same among those of one reactor.
        assert!(g.displace(own, 0).is_some() && g.displace(own, 1).is_none());
        g.end(own);
        assert!(!g.has(own) && g.displace(own, 0).is_none());
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        assert_eq!(address("[2001:db8:1:2:3::4]:5"), address("[2001:db8:1:2::1]:6"));
        assert_ne!(address("[2001:db8:1:2::1]:6"), address("[2001:db8:1:3::1]:6"));
        assert_eq!(address("[::ffff:192.0.2.1]:6"), "192.0.2.1");
        assert_eq!(address("host:6"), "host");
    }
}

//! Who counts as one peer.

use std::net::{IpAddr, Ipv6Addr};

/// The address that counts as one peer: a network of 64 bits of IPv6 is one, since any host may have all of it.
pub fn source(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(a) => IpAddr::V6(Ipv6Addr::from(u128::from(a) & !u128::from(u64::MAX))),
        v4 => v4,
    }
}

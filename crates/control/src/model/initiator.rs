//! How a host is named at the doors of all protocols.

use super::ids::{as_text, hex64};
use crate::error::{Code, Error, Result};
use serde::{Deserialize, Serialize, de};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;
use weir_base::names::{self, MAX_NAME};

/// Bytes of an identifier.
const ID: usize = 16;
/// A name is filled up to so many bytes, so that it is never taken for an identifier.
const SHORTEST: usize = ID + 1;
/// What the key of an address begins with, as no name does.
const ADDRESS: &[u8] = b"ip.";

/// What a host is known by:
///
/// | protocol | what |
/// |---|---|
/// | SRP, BRP | an initiator port identifier: 8 bytes of identifier extension, then 8 bytes of GUID (SRP rev. 16a order) |
/// | NBD | the host's address, which is no identifier |
/// | iSCSI | the initiator's name: `iqn.`, `eui.` or `naa.` (RFC 7143 section 4.2.7), in lower case |
/// | NVMe | the host's name: `nqn.` |
#[derive(Clone, Copy)]
pub struct InitiatorPort {
    len: u8,
    bytes: [u8; MAX_NAME],
}

impl InitiatorPort {
    /// The identifier that every `siw` host sends when its `add_target` line lacks `initiator_ext`: all zero. It
    /// names no host in particular.
    pub const ANONYMOUS: InitiatorPort = InitiatorPort { len: ID as u8, bytes: [0; MAX_NAME] };

    /// An identifier, from its two halves.
    pub fn new(ext: u64, guid: u64) -> Self {
        InitiatorPort::id((u128::from(ext) << 64 | u128::from(guid)).to_be_bytes())
    }

    /// An identifier.
    pub fn id(id: [u8; ID]) -> Self {
        let mut port = InitiatorPort::ANONYMOUS;
        port.bytes[..ID].copy_from_slice(&id);
        port
    }

    /// A host's address. It is no identifier, though both have 16 bytes: who logs in by an identifier may claim any.
    pub fn address(at: IpAddr) -> Self {
        let octets = match at.to_canonical() {
            IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
            IpAddr::V6(a) => a.octets(),
        };
        let mut port = InitiatorPort::ANONYMOUS;
        port.bytes[..ADDRESS.len()].copy_from_slice(ADDRESS);
        port.bytes[ADDRESS.len()..ADDRESS.len() + ID].copy_from_slice(&octets);
        port.len = (ADDRESS.len() + ID) as u8;
        port
    }

    /// What the access map has it by: the 16 bytes of an identifier; `ip.` and 16 bytes of an address; or a name, filled up with NUL to
    /// 17 bytes.
    pub fn key(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Of a [key](InitiatorPort::key). `None`: it is none.
    pub fn from_key(key: &[u8]) -> Option<Self> {
        match <[u8; ID]>::try_from(key) {
            Ok(id) => Some(InitiatorPort::id(id)),
            Err(_) if key.starts_with(ADDRESS) => {
                let octets = <[u8; ID]>::try_from(&key[ADDRESS.len()..]).ok()?;
                Some(InitiatorPort::address(Ipv6Addr::from(octets).into()))
            }
            Err(_) => {
                let name = std::str::from_utf8(key).ok()?.trim_end_matches('\0');
                InitiatorPort::named(name).filter(|p| p.key() == key)
            }
        }
    }

    /// The identifier, if it is one.
    pub fn as_id(&self) -> Option<[u8; ID]> {
        self.key().try_into().ok()
    }

    /// The address, if it is one.
    fn as_address(&self) -> Option<IpAddr> {
        let octets = <[u8; ID]>::try_from(self.key().strip_prefix(ADDRESS)?).ok()?;
        Some(IpAddr::from(octets).to_canonical())
    }

    /// The name, if it is one.
    fn name(&self) -> Option<&str> {
        let named = self.as_id().is_none() && self.as_address().is_none();
        let text = std::str::from_utf8(self.key()).ok().filter(|_| named)?;
        Some(text.trim_end_matches('\0'))
    }

    /// An initiator or host that has a name.
    fn named(name: &str) -> Option<Self> {
        let name = names::canonical(name)?;
        let mut port = InitiatorPort::ANONYMOUS;
        port.bytes[..name.len()].copy_from_slice(name.as_bytes());
        port.len = name.len().max(SHORTEST) as u8;
        Some(port)
    }
}

impl PartialEq for InitiatorPort {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for InitiatorPort {}

impl PartialOrd for InitiatorPort {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for InitiatorPort {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(other.key())
    }
}

impl Hash for InitiatorPort {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl fmt::Debug for InitiatorPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InitiatorPort({self})")
    }
}

impl fmt::Display for InitiatorPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.name() {
            return f.write_str(name);
        }
        if let Some(a) = self.as_address() {
            let text = a.to_string();
            // Eight groups of four would be a GID.
            return if is_gid(&text) { write!(f, "[{text}]") } else { f.write_str(&text) };
        }
        let id = u128::from_be_bytes(self.as_id().unwrap_or_default());
        write!(f, "{:016x}:{:016x}", (id >> 64) as u64, id as u64)
    }
}

/// Eight groups of four digits, as a GID is printed.
fn is_gid(text: &str) -> bool {
    let mut groups = text.split(':');
    groups.clone().count() == 8 && groups.all(|g| g.len() == 4)
}

impl FromStr for InitiatorPort {
    type Err = Error;

    /// `ext:guid` in hexadecimal, leading zeros optional; or 32 digits without a colon; or eight groups of four as a
    /// GID is printed; or an IP address, in brackets if it is of eight such groups; or a name that begins with `iqn.`, `eui.`, `naa.` or `nqn.`.
    fn from_str(text: &str) -> Result<Self> {
        let groups: Vec<&str> = text.split(':').collect();
        let halves = match groups.as_slice() {
            [ext, guid] => hex64(ext).zip(hex64(guid)),
            [all] => {
                let all = all.strip_prefix("0x").unwrap_or(all);
                (all.len() == 32 && all.is_ascii())
                    .then(|| hex64(&all[..16]).zip(hex64(&all[16..])))
                    .flatten()
            }
            [_, _, _, _, _, _, _, _] if is_gid(text) => {
                hex64(&groups[..4].concat()).zip(hex64(&groups[4..].concat()))
            }
            _ => None,
        };
        let port = halves.map(|(e, g)| InitiatorPort::new(e, g));
        let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
        let address = || Some(InitiatorPort::address(bare.parse().ok()?));
        let named = || InitiatorPort::named(text);
        port.or_else(address).or_else(named).ok_or_else(|| {
            Error::new(Code::InvalidPort, format!("`{text}` is not an initiator port"))
                .because("it is neither two 64-bit hexadecimal numbers nor an IP address nor a name")
                .hint(
                    "write identifier extension and GUID, e.g. 0000000000000001:0002c90300a1b2c3; for iSCSI the \
                     initiator's name, e.g. iqn.1993-08.org.debian:01:4f2a (or eui., naa.); for NBD the host's IP \
                     address, e.g. 192.0.2.7",
                )
        })
    }
}

as_text!(InitiatorPort);

/// What a program is known by that logs in by SRP or BRP: an identifier, never a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitiatorId(pub [u8; ID]);

impl From<InitiatorId> for InitiatorPort {
    fn from(own: InitiatorId) -> Self {
        InitiatorPort::id(own.0)
    }
}

impl fmt::Display for InitiatorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        InitiatorPort::from(*self).fmt(f)
    }
}

impl FromStr for InitiatorId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let port: InitiatorPort = text.parse()?;
        port.as_id().map(InitiatorId).ok_or_else(|| {
            Error::new(Code::InvalidPort, format!("`{text}` is a name"))
                .because("who logs in by SRP or BRP has an identifier")
                .hint("write two numbers, e.g. 0000000000000001:0002c90300a1b2c3")
        })
    }
}

as_text!(InitiatorId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_in_every_spelling() {
        let want = InitiatorPort::new(1, 0x0002_c903_00a1_b2c3);
        for text in [
            "0000000000000001:0002c90300a1b2c3",
            "1:2c90300a1b2c3",
            "0x1:0x0002C90300A1B2C3",
            "00000000000000010002c90300a1b2c3",
            "0x00000000000000010002c90300a1b2c3",
            "0000:0000:0000:0001:0002:c903:00a1:b2c3",
        ] {
            assert_eq!(text.parse(), Ok(want), "{text}");
        }
        assert_eq!(want.to_string(), "0000000000000001:0002c90300a1b2c3");
        for text in ["", ":", "1", "1:2:3", "x:y", "1:00000000000000000", "+1:2", "1:-2", "0x:1"] {
            assert!(text.parse::<InitiatorPort>().is_err(), "{text}");
        }
        // Bytes that are not ASCII must not split a character.
        assert!("ä".repeat(16).parse::<InitiatorPort>().is_err());
        let at: InitiatorPort = "::ffff:192.0.2.7".parse().unwrap();
        assert_eq!((at.to_string().as_str(), Ok(at)), ("192.0.2.7", "192.0.2.7".parse()));
    }

    /// Whoever logs in by an identifier may claim any, and none is a host of NBD.
    #[test]
    fn addresses_are_no_identifiers() {
        let full = "2001:1db8:1111:2222:3333:4444:5555:6666";
        for (text, shown) in [
            ("192.0.2.7", "192.0.2.7"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("2001:db8::7", "2001:db8::7"),
            ("[2001:db8::7]", "2001:db8::7"),
            (&format!("[{full}]"), &format!("[{full}]")),
        ] {
            let port: InitiatorPort = text.parse().unwrap();
            assert_eq!((port.to_string().as_str(), port.as_id()), (shown, None));
            assert_eq!(InitiatorPort::from_key(port.key()), Some(port));
            assert_eq!(shown.parse(), Ok(port));
        }
        let gid: InitiatorPort = full.parse().unwrap();
        assert!(gid.as_id().is_some(), "without brackets it is a GID");
        let mapped = InitiatorPort::new(0, 0x0000_ffff_c000_0207);
        assert_eq!(mapped.to_string(), "0000000000000000:0000ffffc0000207");
        assert_ne!("192.0.2.7".parse(), Ok(mapped));
    }

    #[test]
    fn names_are_no_identifiers() {
        let long = format!("iqn.2026-11.org.example:{}", "x".repeat(199));
        for text in
            ["iqn.2026-11.a.b", "eui.0123456789abcdef", "nqn.2014-08.org.nvmexpress:X", &long]
        {
            let port: InitiatorPort = text.parse().unwrap();
            assert_eq!((port.to_string().as_str(), port.as_id()), (text, None));
            assert!((SHORTEST..=MAX_NAME).contains(&port.key().len()));
            assert_eq!(InitiatorPort::from_key(port.key()), Some(port));
        }
        assert!(long.parse::<InitiatorId>().is_err());
        // Sixteen bytes, as an identifier has.
        let name: InitiatorPort = "iqn.2026-11.a.bc".parse().unwrap();
        assert_ne!(InitiatorPort::id(*b"iqn.2026-11.a.bc"), name);
        let upper: InitiatorPort = "IQN.2026-11.A.BC".parse().unwrap();
        assert_eq!(upper, name);
        let nqn = |t: &str| t.parse::<InitiatorPort>().unwrap();
        assert_ne!(nqn("nqn.2014-08.x:A"), nqn("nqn.2014-08.x:a"));
        assert_eq!(nqn("nqn.2014-08.x:A"), nqn("NQN.2014-08.x:A"));
        let longer = format!("{long}x");
        for text in
            ["iqn.", "iqn", "eui.1", "naa.0", "iqn.a b", "iqn.a,i,0x1", "iqn.ä", "xyz.a", &longer]
        {
            assert!(text.parse::<InitiatorPort>().is_err(), "{text}");
        }
    }

    #[test]
    fn any_text_gives_a_port_or_an_error() {
        let letters: Vec<char> = "0123456789abcdefABCDEFxX:: .äiqnu".chars().collect();
        let mut prng = weir_base::Prng::new(5);
        for n in 0..40_000 {
            let len = [3, 17, 33, 34, 35, 39][prng.below(6) as usize];
            let text = (0..len).map(|_| letters[prng.below(letters.len() as u64) as usize]);
            let text: String =
                ["", "iqn.", "eui.", "::ffff:1."][n % 4].chars().chain(text).collect();
            if let Ok(port) = text.parse::<InitiatorPort>() {
                assert_eq!(port.to_string().parse(), Ok(port), "{text}");
                assert_eq!(InitiatorPort::from_key(port.key()), Some(port), "{text}");
            }
        }
    }
}

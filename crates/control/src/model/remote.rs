//! Where a volume of another node is.

use super::check_name;
use crate::error::{Code, Error, Result};
use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// What an address of a volume reached by BRP begins with.
const BRP: &str = "brp://";
/// Where target ports that speak BRP listen unless they are told otherwise.
const BRP_PORT: u16 = 5556;

/// The address of a volume of another node: `brp://HOST[:PORT]/VOLUME`. Written with its port, so that one place always has one
/// name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RemoteAddress {
    /// Name or IP address of the other node; one of IPv6 without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// The volume's name there.
    pub volume: String,
}

impl RemoteAddress {
    /// Whether a text is meant as such an address.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(BRP)
    }

    /// Where the other node listens: `HOST:PORT`.
    pub fn at(&self) -> String {
        match self.host.parse::<Ipv6Addr>() {
            Ok(ip) => format!("[{ip}]:{}", self.port),
            Err(_) => format!("{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Display for RemoteAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{BRP}{}/{}", self.at(), self.volume)
    }
}

/// A name of a machine, or an IPv4 address.
fn is_name(host: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    !host.is_empty() && host.len() <= 253 && host.chars().all(allowed) && !host.starts_with('-')
}

impl FromStr for RemoteAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::new(Code::InvalidDevice, format!("`{text}` is no volume of another node"))
                .because(why)
                .hint("write brp://HOST/VOLUME or brp://HOST:PORT/VOLUME, e.g. brp://192.0.2.7/half-a")
        };
        let rest = text.strip_prefix(BRP).ok_or_else(|| wrong("it does not begin with brp://"))?;
        let (at, volume) =
            rest.split_once('/').ok_or_else(|| wrong("it names no volume behind the host"))?;
        check_name("volume", volume).map_err(|e| wrong(&e.reason))?;
        let (host, port) = match at.strip_prefix('[') {
            Some(v6) => {
                let (ip, behind) = v6.split_once(']').ok_or_else(|| wrong("a `]` is missing"))?;
                let ip: Ipv6Addr = ip.parse().map_err(|_| wrong("that is no IPv6 address"))?;
                (ip.to_string(), behind.strip_prefix(':').or(behind.is_empty().then_some("")))
            }
            None => match at.split_once(':') {
                Some((host, port)) => (host.to_ascii_lowercase(), Some(port)),
                None => (at.to_ascii_lowercase(), Some("")),
            },
        };
        let port = match port {
            Some("") if !at.ends_with(':') => Some(BRP_PORT),
            Some(p) if p.bytes().all(|b| b.is_ascii_digit()) => p.parse().ok().filter(|p| *p > 0),
            _ => None,
        };
        let port = port.ok_or_else(|| wrong("its port is none from 1 to 65535"))?;
        if !host.contains(':') && !is_name(&host) {
            return Err(wrong("the host is neither a name nor an IP address"));
        }
        Ok(RemoteAddress { host, port, volume: volume.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_written_one_way() {
        for (text, is) in [
            ("brp://192.0.2.7/v", "brp://192.0.2.7:5556/v"),
            ("brp://192.0.2.7:5556/v", "brp://192.0.2.7:5556/v"),
            ("brp://Array-1.example:7/db-01", "brp://array-1.example:7/db-01"),
            ("brp://[2001:DB8:0::1]/v", "brp://[2001:db8::1]:5556/v"),
            ("brp://[::1]:9/v", "brp://[::1]:9/v"),
        ] {
            let address: RemoteAddress = text.parse().expect(text);
            assert_eq!(address.to_string(), is);
            assert_eq!(is.parse::<RemoteAddress>().expect(is), address);
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        for text in [
            "srp://h/v",
            "brp://h",
            "brp:///v",
            "brp://h/",
            "brp://h/v/w",
            "brp://h:/v",
            "brp://h:0/v",
            "brp://h:65536/v",
            "brp://h:x/v",
            "brp://::1/v",
            "brp://[::1/v",
            "brp://[::1]x/v",
            "brp://h/V",
            "brp://u@h/v",
            "brp://-h/v",
            "brp://h:+5/v",
        ] {
            let e = text.parse::<RemoteAddress>().expect_err(text);
            assert!(e.code == Code::InvalidDevice && !e.hint.is_empty(), "{e:?}");
        }
    }
}

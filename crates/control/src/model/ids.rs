//! Names and identifiers.

use crate::error::{Code, Error, Result};
use serde::{Deserialize, Serialize, de};
use std::fmt;
use std::str::FromStr;

/// Longest name, in bytes.
pub(super) const MAX_NAME: usize = 63;

/// Checks a name: 1 to 63 of `a-z 0-9 . _ -`, beginning with a letter or digit.
pub fn check_name(what: &str, name: &str) -> Result<()> {
    let wrong = |reason: &str| {
        Err(Error::new(Code::InvalidName, format!("`{name}` cannot be the name of a {what}"))
            .because(reason)
            .hint("use 1 to 63 of a-z, 0-9, `.`, `_` and `-`, beginning with a letter or digit, e.g. `db-01`"))
    };
    let allowed = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '.' | '_' | '-');
    match name.chars().next() {
        None => return wrong("it is empty"),
        Some(c) if !c.is_ascii_lowercase() && !c.is_ascii_digit() => {
            return wrong(&format!("it begins with `{}`", c.escape_default()));
        }
        Some(_) => {}
    }
    if let Some(c) = name.chars().find(|c| !allowed(*c)) {
        return wrong(&format!("it contains `{}`", c.escape_default()));
    }
    if name.len() > MAX_NAME {
        return wrong(&format!("it has {} characters", name.len()));
    }
    Ok(())
}

/// Reads up to 16 hexadecimal digits, with or without `0x`.
pub(super) fn hex64(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    let ok =
        !digits.is_empty() && digits.len() <= 16 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    if ok { u64::from_str_radix(digits, 16).ok() } else { None }
}

/// Serde by way of `Display` and `FromStr`, so that JSON and TOML show what people type.
macro_rules! as_text {
    ($type:ty) => {
        impl Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
                text.parse().map_err(de::Error::custom)
            }
        }
    };
}

/// A 64-bit identifier written as 16 hexadecimal digits: `id_ext` and `ioc_guid` of a target port (srp.md 2.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Hex64(pub u64);

impl fmt::Display for Hex64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Hex64 {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        hex64(text).map(Hex64).ok_or_else(|| {
            Error::new(Code::InvalidPort, format!("`{text}` is not a 64-bit identifier"))
                .hint("write 1 to 16 hexadecimal digits, e.g. 0x0002c90300a1b2c3")
        })
    }
}

pub(super) use as_text;
as_text!(Hex64);

/// A volume's world-wide name: NAA 6 (IEEE registered extended, 16 bytes), the same on every path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Naa(pub u128);

/// The OUI in our names. Its locally-administered bit is set, so it can clash with no vendor's.
const LOCAL_OUI: u128 = 0x0a_57_45;

impl Naa {
    /// A name from 100 bits that should be random.
    pub fn from_random(bits: u128) -> Naa {
        Naa(0x6 << 124 | LOCAL_OUI << 100 | bits & ((1 << 100) - 1))
    }

    /// The 16 bytes of the designator in VPD page 83h.
    pub fn bytes(&self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for Naa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for Naa {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = text.strip_prefix("naa.").unwrap_or(text);
        let ok = digits.len() == 32
            && digits.starts_with('6')
            && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let wrong = || {
            Error::new(Code::InvalidRequest, format!("`{text}` is not an NAA 6 name"))
                .hint("write 32 hexadecimal digits beginning with 6")
        };
        if !ok {
            return Err(wrong());
        }
        u128::from_str_radix(digits, 16).map(Naa).map_err(|_| wrong())
    }
}

as_text!(Naa);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "0", "db-01", "a.b_c-d", &"x".repeat(63)] {
            assert!(check_name("volume", good).is_ok(), "{good}");
        }
        for bad in ["", "-a", ".", "..", "_x", "A", "a b", "a/b", "ä", "a\n", &"x".repeat(64)] {
            let e = check_name("volume", bad).unwrap_err();
            assert_eq!(e.code, Code::InvalidName);
            assert!(!e.reason.is_empty() && !e.hint.is_empty());
        }
    }

    #[test]
    fn any_text_gives_an_identifier_or_an_error() {
        let letters: Vec<char> = "0123456789abcdefABCDEFxX:: .ä".chars().collect();
        let mut prng = weir_base::Prng::new(5);
        for _ in 0..20_000 {
            let n = [3, 17, 33, 34, 35, 39][prng.below(6) as usize];
            let text: String =
                (0..n).map(|_| letters[prng.below(letters.len() as u64) as usize]).collect();
            if let Ok(id) = text.parse::<Hex64>() {
                assert_eq!(id.to_string().parse(), Ok(id), "{text}");
            }
            if let Ok(naa) = text.parse::<Naa>() {
                assert_eq!(naa.to_string().parse(), Ok(naa), "{text}");
            }
            assert_eq!(check_name("volume", &text).is_ok(), good_name(&text), "{text}");
        }
    }

    fn good_name(text: &str) -> bool {
        let of = |set: &str, c: char| set.contains(c);
        text.len() <= 63
            && text.chars().next().is_some_and(|c| of("abcdefghijklmnopqrstuvwxyz0123456789", c))
            && text.chars().all(|c| of("abcdefghijklmnopqrstuvwxyz0123456789._-", c))
    }

    #[test]
    fn naa_has_type_6_a_local_oui_and_survives_text() {
        let n = Naa::from_random(u128::MAX);
        assert_eq!(n.bytes()[0] >> 4, 6);
        let oui = n.0 >> 100 & 0xff_ffff;
        assert_eq!(oui, LOCAL_OUI);
        assert_eq!(oui >> 16 & 0b10, 0b10, "locally administered");
        assert_eq!(n.to_string().parse(), Ok(n));
        assert!("naa.5000000000000000".parse::<Naa>().is_err());
    }
}

//! Where the key of an encrypted volume comes from.

use crate::error::{Code, Error, Result};
use serde::{Deserialize, Serialize, de};
use std::fmt;
use std::str::FromStr;

/// Longest source, in bytes.
const MAX: usize = 1024;

/// Where the key comes from under which a volume's own key is kept. Written `file:/path`, or `command:/path arguments`
/// for a program that prints the key, such as a client of a key manager.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeySource {
    /// A file.
    File(String),
    /// A program with arguments, separated by blanks. There is no shell.
    Command(String),
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeySource::File(path) => write!(f, "file:{path}"),
            KeySource::Command(line) => write!(f, "command:{line}"),
        }
    }
}

impl FromStr for KeySource {
    type Err = Error;

    /// What is wrong is not shown: it may be a key.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Err(Error::new(Code::InvalidRequest, "that is no source of a key").because(why).hint(
                "write file:/path, or command:/path followed by arguments; `weir key new PATH` makes a key in a file",
            ))
        };
        if text.len() > MAX {
            return wrong("it is too long");
        }
        if text.chars().any(char::is_control) {
            return wrong("it contains a control character");
        }
        let (kind, rest) = text.split_once(':').unwrap_or(("", ""));
        match kind {
            "file" | "command" if !rest.starts_with('/') => {
                wrong("its path does not begin with `/`")
            }
            "file" => Ok(KeySource::File(rest.to_string())),
            "command" => Ok(KeySource::Command(rest.to_string())),
            _ => wrong("it begins neither with `file:` nor with `command:`"),
        }
    }
}

impl Serialize for KeySource {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for KeySource {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_survive_text_and_what_is_wrong_is_not_shown() {
        for good in ["file:/etc/weir/v.key", "command:/usr/bin/kmip-get --id 7", "file:/a b"] {
            let source: KeySource = good.parse().expect(good);
            assert_eq!(source.to_string(), good);
            let json = serde_json::to_string(&source).expect("text");
            assert_eq!(serde_json::from_str::<KeySource>(&json).expect("back"), source);
        }
        let long = format!("file:/{}", "x".repeat(MAX));
        for bad in
            ["", "secret", "file:secret", "command:", "keys:/secret", "file:/a\nsecret", &long]
        {
            let e = bad.parse::<KeySource>().expect_err(bad);
            assert!(!format!("{e:?}").contains("secret"), "{e:?}");
        }
    }
}

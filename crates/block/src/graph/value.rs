//! Parameter values and how people write them.

use serde::{Deserialize, Serialize};
use std::fmt;
use weir_base::{MICROS, MILLIS, SECONDS};

/// A parameter's value as JSON and TOML have them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// `true` or `false`.
    Flag(bool),
    /// A whole number.
    Number(u64),
    /// A number with a fraction.
    Fraction(f64),
    /// Text; also sizes ("64KiB"), durations ("250us").
    Text(String),
    /// Several values.
    List(Vec<Value>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Flag(b) => write!(f, "{b}"),
            Value::Number(n) => write!(f, "{n}"),
            Value::Fraction(x) => write!(f, "{x}"),
            Value::Text(t) => f.write_str(t),
            Value::List(l) => {
                for (i, v) in l.iter().enumerate() {
                    write!(f, "{}{v}", if i > 0 { "," } else { "" })?;
                }
                Ok(())
            }
        }
    }
}

impl From<bool> for Value {
    fn from(b: bool) -> Value {
        Value::Flag(b)
    }
}
impl From<u64> for Value {
    fn from(n: u64) -> Value {
        Value::Number(n)
    }
}
impl From<f64> for Value {
    fn from(x: f64) -> Value {
        Value::Fraction(x)
    }
}
impl From<&str> for Value {
    fn from(t: &str) -> Value {
        Value::Text(t.to_owned())
    }
}
impl From<String> for Value {
    fn from(t: String) -> Value {
        Value::Text(t)
    }
}

fn split(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number = text[..digits].parse().ok()?;
    Some((number, text[digits..].trim()))
}

/// Bytes: a number, or a number with `k`, `m`, `g`, `t`, each also with `iB` or `b` (powers of 1024).
pub(crate) fn size(v: &Value) -> Option<u64> {
    match v {
        Value::Number(n) => Some(*n),
        Value::Text(t) => {
            let (n, unit) = split(t)?;
            let unit = unit.to_ascii_lowercase();
            let shift = match unit.trim_end_matches('b').trim_end_matches('i') {
                "" if unit.is_empty() || unit == "b" => 0,
                "k" => 10,
                "m" => 20,
                "g" => 30,
                "t" => 40,
                _ => return None,
            };
            n.checked_mul(1 << shift)
        }
        _ => None,
    }
}

/// Nanoseconds: a number with `ns`, `us`, `ms` or `s`, or a bare number of nanoseconds.
pub(crate) fn duration(v: &Value) -> Option<u64> {
    match v {
        Value::Number(n) => Some(*n),
        Value::Text(t) => {
            let (n, unit) = split(t)?;
            n.checked_mul(match unit {
                "ns" => 1,
                "us" | "µs" => MICROS,
                "ms" => MILLIS,
                "s" => SECONDS,
                _ => return None,
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_as_people_write_them() {
        for (t, n) in [
            ("0", 0),
            ("512", 512),
            ("512b", 512),
            ("64k", 65536),
            ("64KiB", 65536),
            ("1 MiB", 1 << 20),
            ("3gb", 3 << 30),
            ("2T", 2 << 40),
        ] {
            assert_eq!(size(&t.into()), Some(n), "{t}");
        }
        for t in ["", "k", "-1", "1.5g", "64q", "64ki", "1e3", "99999999999T", "ib", "5ib"] {
            let ok = t == "64ki";
            assert_eq!(size(&t.into()).is_some(), ok, "{t}");
        }
        assert_eq!(duration(&"250us".into()), Some(250_000));
        assert_eq!(duration(&"2 s".into()), Some(2_000_000_000));
        assert_eq!(duration(&7u64.into()), Some(7));
        assert_eq!(duration(&"250".into()), None);
        assert_eq!(size(&true.into()), None);
    }
}

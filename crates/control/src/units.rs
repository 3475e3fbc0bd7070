//! Sizes in bytes as people write them: `512`, `512k`, `10G`, `10GiB`, `1.5T`, `10GB`.

use serde::{Deserialize, Deserializer, de};
use std::fmt;

/// Suffixes and their factors. One letter and `iB` are powers of 1024 as storage tools use them, `B` after a letter
/// is the power of 1000 of IEC 80000-13.
const SUFFIXES: &[(&str, u64)] = &[
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
    ("p", 1 << 50),
    ("pib", 1 << 50),
    ("pb", 1_000_000_000_000_000),
];

/// Why a size could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeError(String);

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SizeError {}

/// Reads a size in bytes. Accepts a decimal number, optionally with a fraction, and a suffix
/// (`k M G T P`, `KiB …` = powers of 1024; `KB MB …` = powers of 1000). The result must be a whole number of bytes.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let wrong = || {
        SizeError(format!("`{text}` is not a size; write it like 4096, 512k, 10G, 10GiB or 10GB"))
    };
    let t = text.trim();
    let split = t.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(t.len());
    let (number, suffix) = t.split_at(split);
    let suffix = suffix.trim().to_ascii_lowercase();
    let factor = SUFFIXES.iter().find(|(s, _)| *s == suffix).ok_or_else(wrong)?.1;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || (number.contains('.') && fraction.is_empty()) || fraction.len() > 9 {
        return Err(wrong());
    }
    let too_large = || SizeError(format!("`{text}` is larger than 2^64 bytes"));
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let mut bytes = whole.checked_mul(factor).ok_or_else(too_large)?;
    if !fraction.is_empty() {
        let scale = 10u128.pow(fraction.len() as u32);
        let part: u128 = fraction.parse().map_err(|_| wrong())?;
        let product = part * u128::from(factor);
        if !product.is_multiple_of(scale) {
            return Err(SizeError(format!("`{text}` is not a whole number of bytes")));
        }
        bytes = bytes.checked_add((product / scale) as u64).ok_or_else(too_large)?;
    }
    Ok(bytes)
}

/// Writes a size for people: exact where a whole binary unit fits, else with two decimals.
pub fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut unit = 0;
    while unit + 1 < UNITS.len() && bytes >> (10 * (unit + 2)) != 0 {
        unit += 1;
    }
    let one = 1u64 << (10 * (unit + 1));
    if bytes.is_multiple_of(one) {
        format!("{} {}", bytes / one, UNITS[unit])
    } else {
        format!("{:.2} {}", bytes as f64 / one as f64, UNITS[unit])
    }
}

struct SizeVisitor;

impl de::Visitor<'_> for SizeVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size in bytes such as 4096 or \"10G\"")
    }

    fn visit_u64<E: de::Error>(self, v: u64) -> Result<u64, E> {
        Ok(v)
    }

    fn visit_i64<E: de::Error>(self, v: i64) -> Result<u64, E> {
        u64::try_from(v).map_err(|_| E::custom("a size cannot be negative"))
    }

    fn visit_str<E: de::Error>(self, v: &str) -> Result<u64, E> {
        parse_size(v).map_err(E::custom)
    }
}

/// For `#[serde(deserialize_with)]`: a number of bytes, or a string that [`parse_size`] reads.
pub fn size<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    d.deserialize_any(SizeVisitor)
}

/// As [`size`], for an optional field (with `#[serde(default)]`).
pub fn opt_size<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    struct Wrap(#[serde(deserialize_with = "size")] u64);
    Ok(Option::<Wrap>::deserialize(d)?.map(|w| w.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512k", 512 << 10),
            ("512K", 512 << 10),
            ("10G", 10 << 30),
            ("10 GiB", 10 << 30),
            ("10GB", 10_000_000_000),
            ("1.5T", 3 << 39),
            ("0.5k", 512),
            (" 7m ", 7 << 20),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn wrong_sizes_are_refused_with_an_example() {
        for text in ["", "G", "-1", "1e3", "1.G", ".5G", "10X", "10 G B", "1.2.3k", "0.1", "٣k"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert!(parse_size("10X").unwrap_err().to_string().contains("10GiB"));
        assert!(parse_size("16777216T").unwrap_err().to_string().contains("2^64"));
        assert!(parse_size("99999999999999999999").unwrap_err().to_string().contains("2^64"));
    }

    #[test]
    fn any_text_gives_a_size_or_an_error_and_what_is_shown_can_be_read() {
        let letters: Vec<char> = "0123456789.kKmMgGtTpPiIbB +-eéx٣".chars().collect();
        let mut prng = weir_base::Prng::new(3);
        for _ in 0..20_000 {
            let n = prng.below(12);
            let text: String =
                (0..n).map(|_| letters[prng.below(letters.len() as u64) as usize]).collect();
            if let Ok(bytes) = parse_size(&text) {
                let shown = format_size(bytes);
                if !shown.contains('.') {
                    assert_eq!(parse_size(&shown), Ok(bytes), "{text} was shown as {shown}");
                }
            }
        }
    }

    #[test]
    fn sizes_for_people() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.50 KiB"),
            (10 << 30, "10 GiB"),
            (u64::MAX, "16384.00 PiB"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
    }
}

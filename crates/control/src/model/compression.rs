//! Compression as a part of the form in which data is kept.

use crate::error::{Code, Error, Result};
use crate::units;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use utoipa::ToSchema;
use weir_layers::compress::{Algorithm, CHUNK, CHUNKS, ZSTD_LEVELS};

/// Level of zstd unless another is asked for.
const LEVEL: i32 = 3;

/// An algorithm as it is written: `lz4`, `zstd`, or `zstd:5` for a level from 1 to 9.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compressor(Algorithm);

impl Compressor {
    /// For the data plane.
    pub fn algorithm(self) -> Algorithm {
        self.0
    }
}

impl fmt::Display for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Algorithm::Lz4 => f.write_str("lz4"),
            Algorithm::Zstd(LEVEL) => f.write_str("zstd"),
            Algorithm::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

impl FromStr for Compressor {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Compressor, String> {
        let level = |l: &str| l.parse().ok().filter(|l| ZSTD_LEVELS.contains(l));
        let found = match text.split_once(':') {
            None if text == "lz4" => Some(Algorithm::Lz4),
            None if text == "zstd" => Some(Algorithm::Zstd(LEVEL)),
            Some(("zstd", l)) => level(l).map(Algorithm::Zstd),
            _ => None,
        };
        found.map(Compressor).ok_or_else(|| {
            let (least, most) = (ZSTD_LEVELS.start(), ZSTD_LEVELS.end());
            format!("`{text}` is no way to compress; use lz4, zstd, or zstd:{least} to zstd:{most}")
        })
    }
}

impl Serialize for Compressor {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Compressor {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Compressor, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// How a volume is compressed in a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Compression {
    /// By which algorithm: `lz4`, `zstd`, or `zstd:5` for another level than 3.
    #[schema(value_type = String)]
    pub algorithm: Compressor,
    /// Bytes that are compressed together.
    pub chunk: u32,
}

impl Compression {
    /// Bytes of the stored volume for one in which hosts see `size` bytes.
    pub(super) fn stored_len(self, size: u64) -> u64 {
        weir_layers::compress::stored_len(size, self.chunk)
    }

    /// The other way round.
    pub(super) fn seen_len(self, stored: u64) -> u64 {
        weir_layers::compress::seen_len(stored, self.chunk)
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, chunk {}", self.algorithm, units::format_size(u64::from(self.chunk)))
    }
}

/// The compression that a volume is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompressionSpec {
    /// `lz4`, which is quick, or `zstd`, which needs less space; `zstd:1` to `zstd:9` for a level.
    #[schema(value_type = String)]
    pub algorithm: Compressor,
    /// Bytes that are compressed together: a power of two from 8 KiB to 128 KiB; left out: 32 KiB.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "units::opt_size"
    )]
    pub chunk: Option<u64>,
}

impl CompressionSpec {
    /// Of a new place.
    pub(crate) fn wanted(self) -> Result<Compression> {
        let chunk = chunk_of(self.chunk, CHUNK, CHUNKS, "compressed")?;
        Ok(Compression { algorithm: self.algorithm, chunk })
    }
}

/// The size of chunks that was asked for, or `default`, if that is possible.
pub(super) fn chunk_of(
    asked: Option<u64>,
    default: u32,
    possible: RangeInclusive<u32>,
    what: &str,
) -> Result<u32> {
    let chunk = asked.unwrap_or(u64::from(default));
    let fits = u32::try_from(chunk).ok().filter(|c| possible.contains(c) && c.is_power_of_two());
    fits.ok_or_else(|| {
        let size = |n: &u32| units::format_size(u64::from(*n));
        let (least, most) = (size(possible.start()), size(possible.end()));
        let text = format!("chunks of {chunk} bytes cannot be {what}");
        Error::new(Code::InvalidLayout, text)
            .hint(format!("use a power of two from {least} to {most}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithms_as_people_write_them() {
        for text in ["lz4", "zstd", "zstd:1", "zstd:9"] {
            let c: Compressor = text.parse().unwrap();
            assert_eq!(c.to_string(), text);
            let json = serde_json::to_string(&c).unwrap();
            assert_eq!(serde_json::from_str::<Compressor>(&json).unwrap(), c);
        }
        assert_eq!("zstd:3".parse::<Compressor>().unwrap().to_string(), "zstd");
        for text in ["", "gzip", "lz4:1", "zstd:0", "zstd:10", "zstd:", "zstd:-1", "LZ4"] {
            assert!(text.parse::<Compressor>().is_err(), "{text}");
        }
    }

    #[test]
    fn chunks_are_checked_and_lengths_go_both_ways() {
        let spec = |chunk| CompressionSpec { algorithm: "lz4".parse().unwrap(), chunk };
        assert_eq!(spec(None).wanted().unwrap().chunk, 32 << 10);
        for chunk in [0, 4096, 12 << 10, 256 << 10, 1 << 40] {
            assert!(spec(Some(chunk)).wanted().is_err(), "{chunk}");
        }
        let c = spec(Some(128 << 10)).wanted().unwrap();
        for size in [512, 1 << 20, (1 << 30) + 4096] {
            assert!(c.stored_len(size) > size);
            assert_eq!(c.seen_len(c.stored_len(size)), size);
        }
    }
}

//! Deduplication as a part of the form in which data is kept.

use super::Compression;
use super::compression::chunk_of;
use crate::error::{Code, Error, Result};
use crate::units;
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;
use weir_layers::dedup::{CHUNK, CHUNKS};

/// How a volume is deduplicated in a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Deduplication {
    /// Bytes that are compared as one.
    pub chunk: u32,
}

impl Deduplication {
    /// Bytes of the stored volume for one in which hosts see `size` bytes.
    pub(super) fn stored_len(self, size: u64) -> u64 {
        weir_layers::dedup::stored_len(size, self.chunk)
    }

    /// The other way round.
    pub(super) fn seen_len(self, stored: u64) -> u64 {
        weir_layers::dedup::seen_len(stored, self.chunk)
    }
}

impl fmt::Display for Deduplication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunk {}", units::format_size(u64::from(self.chunk)))
    }
}

/// The deduplication that a volume is to have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeduplicationSpec {
    /// Bytes that are compared as one: a power of two from 4 KiB to 128 KiB; left out: 4 KiB, or the chunk of compression if
    /// the volume is compressed, too. Both have the same.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "units::opt_size"
    )]
    pub chunk: Option<u64>,
}

impl DeduplicationSpec {
    /// Of a new place.
    pub(super) fn wanted(self) -> Result<Deduplication> {
        let chunk = chunk_of(self.chunk, CHUNK, CHUNKS, "deduplicated")?;
        Ok(Deduplication { chunk })
    }
}

/// Has both parts use chunks of one size, of which `asked` were asked for.
pub(super) fn agree(
    compression: &mut Option<Compression>,
    deduplication: &mut Option<Deduplication>,
    asked: (Option<u64>, Option<u64>),
) -> Result<()> {
    let (Some(c), Some(d)) = (compression, deduplication) else { return Ok(()) };
    let chunk = match asked {
        (Some(a), Some(b)) if a != b => {
            return Err(Error::new(
                Code::InvalidLayout,
                "chunks of compression and deduplication are not the same",
            )
            .hint("give one of them only, and the other one follows"));
        }
        (None, Some(_)) => d.chunk,
        _ => c.chunk,
    };
    if !weir_layers::compress::CHUNKS.contains(&chunk) {
        let text = units::format_size(u64::from(chunk));
        return Err(Error::new(
            Code::InvalidLayout,
            format!("chunks of {text} cannot be compressed"),
        )
        .because("chunks of compression and deduplication are the same")
        .hint("use a power of two from 8 KiB to 128 KiB for both"));
    }
    (c.chunk, d.chunk) = (chunk, chunk);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Form, FormSpec};

    #[test]
    fn chunks_are_checked_and_lengths_go_both_ways() {
        let spec = |chunk| DeduplicationSpec { chunk };
        assert_eq!(spec(None).wanted().unwrap().chunk, 4096);
        for chunk in [0, 2048, 12 << 10, 256 << 10, 1 << 40] {
            assert!(spec(Some(chunk)).wanted().is_err(), "{chunk}");
        }
        let d = spec(Some(128 << 10)).wanted().unwrap();
        for size in [512, 1 << 20, (1 << 30) + 4096] {
            assert!(d.stored_len(size) > size);
            assert_eq!(d.seen_len(d.stored_len(size)), size);
        }
    }

    #[test]
    fn with_compression_both_have_the_same_chunk() {
        let form = |text: &str| -> Result<(u32, u32)> {
            let spec: FormSpec = toml::from_str(text).unwrap();
            let form = Form::default().renewed(&spec)?;
            let all = [4096, 1 << 20, (1 << 30) + 512];
            assert!(all.iter().all(|s| form.seen_len(form.stored_len(*s)) == *s), "{text}");
            Ok((form.compression.unwrap().chunk, form.deduplication.unwrap().chunk))
        };
        let c = "[compression]\nalgorithm = \"lz4\"\n";
        let d = "[deduplication]\n";
        assert_eq!(form(&format!("{c}{d}")).unwrap(), (32 << 10, 32 << 10));
        let both = |a: &str, b: &str| form(&format!("{c}{a}\n{d}{b}"));
        assert_eq!(both("chunk = \"16k\"", "").unwrap(), (16 << 10, 16 << 10));
        assert_eq!(both("", "chunk = \"8k\"").unwrap(), (8 << 10, 8 << 10));
        assert_eq!(both("chunk = \"8k\"", "chunk = \"8k\"").unwrap(), (8 << 10, 8 << 10));
        assert!(both("", "chunk = \"4k\"").is_err());
        assert!(both("chunk = \"16k\"", "chunk = \"8k\"").is_err());

        // On a move what is not said follows what is.
        let spec = |text: &str| toml::from_str::<FormSpec>(text).unwrap();
        let old = Form::default().renewed(&spec(d)).unwrap();
        let new = old.renewed(&spec(c)).unwrap();
        assert_eq!(new.deduplication.unwrap().chunk, 32 << 10);
        assert_eq!(new.renewed(&FormSpec::default()).unwrap(), new);
    }
}

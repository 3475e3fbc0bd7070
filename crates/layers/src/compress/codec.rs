//! The algorithms, with what they need to be quick: memory that is used again and again.

use super::form::{BLOCK, Header, Unusable, blocks_for, capacity};
use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};
use weir_codec::crc32c;
use weir_mem::Slice;

/// Levels of zstd that may be asked for. Higher ones would keep the reactor for many milliseconds.
pub const ZSTD_LEVELS: std::ops::RangeInclusive<i32> = 1..=9;
/// Bytes looked at to guess whether data is random: in so many places, so many.
const PROBE: (usize, usize) = (32, 32);

/// How a chunk is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// LZ4 blocks: quick.
    Lz4,
    /// Zstandard frames of a level in [`ZSTD_LEVELS`]: smaller. The level is not needed to read.
    Zstd(i32),
}

impl Algorithm {
    pub(crate) fn code(self) -> u8 {
        match self {
            Algorithm::Lz4 => 1,
            Algorithm::Zstd(_) => 2,
        }
    }

    pub(crate) fn of_code(code: u8) -> Option<Algorithm> {
        match code {
            1 => Some(Algorithm::Lz4),
            2 => Some(Algorithm::Zstd(3)),
            _ => None,
        }
    }
}

/// What the volumes of a reactor share: nothing waits between putting data in and taking it out.
#[derive(Default)]
pub(crate) struct Codec {
    table: CompressTable,
    zstd: Option<(i32, zstd::bulk::Compressor<'static>)>,
    unzstd: Option<zstd::bulk::Decompressor<'static>>,
    data: Vec<u8>,
    packed: Vec<u8>,
}

/// Blocks that are not all zeros.
fn blocks_in_use(data: &[u8]) -> usize {
    data.chunks(BLOCK).filter(|b| !is_zero(b)).count()
}

/// Whether all bytes are zeros.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().all(|w| u64::from_ne_bytes(*w) == 0) && rest.iter().all(|b| *b == 0)
}

/// Whether bytes from all over are about as frequent as chance would have it.
fn looks_random(data: &[u8]) -> bool {
    let mut counts = [0u32; 256];
    let step = data.len() / PROBE.0;
    for part in data.chunks(step.max(1)).take(PROBE.0) {
        part.iter().take(PROBE.1).for_each(|b| counts[usize::from(*b)] += 1);
    }
    let n = (PROBE.0 * PROBE.1) as u32;
    let squares: u32 = counts.iter().map(|c| c * c).sum();
    // Of random bytes it is n + n (n - 1) / 256, give or take 90 for n of 1024.
    squares < n + n * (n - 1) / 256 + 400
}

impl Codec {
    /// The data of a chunk of so many bytes: to be filled, or as [`unpack`](Codec::unpack) found it.
    pub(crate) fn data(&mut self, len: usize) -> &mut [u8] {
        if self.data.len() < len {
            self.data.resize(len, 0);
        }
        &mut self.data[..len]
    }

    /// The compressed data.
    pub(crate) fn packed(&self) -> &[u8] {
        &self.packed
    }

    /// Compresses the data. The number of blocks of its form and the CRC32C of the data, if that saves any of the blocks
    /// that are not zeros.
    pub(crate) fn pack(&mut self, algorithm: Algorithm, len: usize) -> Option<(usize, u32)> {
        let in_use = blocks_in_use(self.data(len));
        let most = in_use.checked_sub(1).filter(|n| *n > 0)?;
        let n = match algorithm {
            Algorithm::Lz4 => self.lz4(len)?,
            Algorithm::Zstd(level) => {
                // What looks random is so almost always; repetitions in it are seen by the quicker one.
                if looks_random(&self.data[..len]) {
                    let quick = self.lz4(len)?;
                    if blocks_for(quick) > most {
                        return None;
                    }
                }
                self.zstd(level, len, capacity(most))?
            }
        };
        self.packed.truncate(n);
        let blocks = blocks_for(n);
        (blocks <= most).then(|| (blocks, crc32c(&self.data[..len])))
    }

    fn lz4(&mut self, len: usize) -> Option<usize> {
        self.packed.resize(get_maximum_output_size(len), 0);
        compress_into_with_table(&self.data[..len], &mut self.packed, &mut self.table).ok()
    }

    fn zstd(&mut self, level: i32, len: usize, room: usize) -> Option<usize> {
        if self.zstd.as_ref().is_none_or(|(l, _)| *l != level) {
            self.zstd = Some((level, zstd::bulk::Compressor::new(level).ok()?));
        }
        self.packed.resize(room, 0);
        let (_, c) = self.zstd.as_mut()?;
        // It fails when there is not room enough.
        c.compress_to_buffer(&self.data[..len], &mut self.packed[..]).ok()
    }

    /// Whether the form that `from` holds is whole.
    pub(crate) fn is_whole(&mut self, h: &Header, from: &Slice) -> Result<(), Unusable> {
        h.collect(from, &mut self.packed)
    }

    /// Makes the data of the form that `from` holds.
    pub(crate) fn unpack(&mut self, h: &Header, from: &Slice, len: usize) -> Result<(), Unusable> {
        h.collect(from, &mut self.packed)?;
        self.data(len);
        let (packed, data) = (&self.packed[..], &mut self.data[..len]);
        let n = match h.algorithm {
            Algorithm::Lz4 => decompress_into(packed, data).ok(),
            Algorithm::Zstd(_) => {
                if self.unzstd.is_none() {
                    self.unzstd = zstd::bulk::Decompressor::new().ok();
                }
                let d = self.unzstd.as_mut();
                d.and_then(|d| d.decompress_to_buffer(packed, data).ok())
            }
        };
        let whole = n == Some(len) && crc32c(&self.data[..len]) == h.data_crc;
        if whole { Ok(()) } else { Err(Unusable::Damaged) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::Prng;

    fn round(algorithm: Algorithm, data: &[u8]) -> Option<usize> {
        let mut c = Codec::default();
        c.data(data.len()).copy_from_slice(data);
        let (blocks, data_crc) = c.pack(algorithm, data.len())?;
        let h = Header { algorithm, generation: 0, stamp: 5, len: 0, packed_crc: 0, data_crc };
        let shift = data.len().trailing_zeros() as u8;
        let form = Slice::heap(blocks * BLOCK);
        h.store(1, shift, c.packed(), &form);
        c.data(data.len()).fill(0xcc);
        let h = Header::decode(&form, 1, shift).unwrap().unwrap();
        assert_eq!(h.blocks(), blocks);
        c.unpack(&h, &form, data.len()).unwrap();
        assert!(c.data(data.len()) == data);
        // A decoder that is wrong, or told wrong sizes, does not get through.
        assert!(c.unpack(&Header { data_crc: !data_crc, ..h }, &form, data.len()).is_err());
        assert!(c.unpack(&h, &form, data.len() / 2).is_err());
        Some(blocks)
    }

    #[test]
    fn data_of_all_kinds() {
        let mut prng = Prng::new(1);
        for shift in 13..=17 {
            let len = 1usize << shift;
            for algorithm in [Algorithm::Lz4, Algorithm::Zstd(1), Algorithm::Zstd(9)] {
                let text: Vec<u8> =
                    b"all work and no play ".iter().copied().cycle().take(len).collect();
                assert_eq!(round(algorithm, &text), Some(1), "{algorithm:?} {len}");
                let mut random = vec![0; len];
                prng.fill(&mut random);
                assert_eq!(round(algorithm, &random), None, "{algorithm:?} {len}");
                assert_eq!(round(algorithm, &vec![0; len]), None, "nothing is in use");
                // The same random block again and again: no letter is more frequent than others.
                let again: Vec<u8> = random[..BLOCK].iter().copied().cycle().take(len).collect();
                if len > 2 * BLOCK {
                    assert_eq!(round(algorithm, &again), Some(2), "{algorithm:?} {len}");
                }
                let mut half = random.clone();
                half[len / 2..].fill(b'x');
                let got = round(algorithm, &half);
                let want = (len > 2 * BLOCK).then(|| len / 2 / BLOCK + 1);
                assert_eq!(got, want, "{algorithm:?} {len}");
            }
        }
    }

    #[test]
    fn what_is_in_use_is_what_counts() {
        let mut data = vec![0; 32 << 10];
        data[..2 * BLOCK].fill(7);
        assert_eq!(round(Algorithm::Lz4, &data), Some(1), "one of two");
        data[BLOCK..2 * BLOCK].fill(0);
        assert_eq!(round(Algorithm::Lz4, &data), None, "one cannot get less");
    }
}

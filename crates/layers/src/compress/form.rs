//! The form of a compressed chunk, as it is stored: blocks of 4 KiB, each with the stamp of its write (docs/format.md).
//!
//! A store decides block by block whether a write that it had not acknowledged when power went has happened. So a form
//! is believed only when all of its blocks have the stamp that its header has: no two writes share one. What is
//! complete and contradicts itself nevertheless is damaged, which is told, and never taken for an older form.

use super::codec::Algorithm;
use crate::sum::own_sum;
use weir_codec::{crc32c, crc64};
use weir_mem::Slice;

/// Unit of the volume below, in bytes.
pub(crate) const BLOCK: usize = 4096;
const MAGIC: u32 = u32::from_le_bytes(*b"WRcz");
const VERSION: u8 = 2;
/// Bytes of the header, in front of the first block's payload.
const HEADER: usize = 64;
/// Bytes of the stamp in front of every further block's payload.
const STAMP: usize = 8;

/// What a header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) algorithm: Algorithm,
    /// Of two complete forms of a chunk the newer one counts; see [`is_newer`].
    pub(crate) generation: u8,
    /// Which write it was.
    pub(crate) stamp: u64,
    /// Bytes of compressed data.
    pub(crate) len: u32,
    /// CRC-64 of the compressed data.
    pub(crate) packed_crc: u64,
    /// CRC32C of the data itself.
    pub(crate) data_crc: u32,
}

/// Why a form is not to be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// Not all of its blocks are of one write: that write was never acknowledged.
    Torn,
    /// It is no form, or another chunk's, or its checksums are wrong.
    Damaged,
}

/// Whether generation `a` came after `b`, of two that follow one another.
pub(crate) fn is_newer(a: u8, b: u8) -> bool {
    (a.wrapping_sub(b) as i8) > 0
}

/// Bytes of compressed data that fit so many blocks.
pub(crate) fn capacity(blocks: usize) -> usize {
    blocks * (BLOCK - STAMP) - (HEADER - STAMP)
}

/// Blocks that so many bytes of compressed data take.
pub(crate) fn blocks_for(len: usize) -> usize {
    (len + HEADER - STAMP).div_ceil(BLOCK - STAMP).max(1)
}

/// The payload of block `i`: where it begins in the block, and the range of the compressed data that it is.
fn piece(i: usize, len: usize) -> (usize, std::ops::Range<usize>) {
    let (at, from) = if i == 0 { (HEADER, 0) } else { (STAMP, capacity(i)) };
    (at, from..(from + BLOCK - at).min(len))
}

fn put(b: &mut [u8; HEADER], at: usize, bytes: &[u8]) {
    b[at..at + bytes.len()].copy_from_slice(bytes);
}

fn take<const N: usize>(b: &[u8; HEADER], at: usize) -> [u8; N] {
    std::array::from_fn(|i| b[at + i])
}

impl Header {
    fn encode(&self, chunk: u64, shift: u8) -> [u8; HEADER] {
        let mut b = [0; HEADER];
        put(&mut b, 0, &MAGIC.to_le_bytes());
        put(&mut b, 4, &[VERSION, self.algorithm.code(), self.generation, shift]);
        put(&mut b, 8, &chunk.to_le_bytes());
        put(&mut b, 16, &self.stamp.to_le_bytes());
        put(&mut b, 24, &self.len.to_le_bytes());
        put(&mut b, 28, &self.data_crc.to_le_bytes());
        put(&mut b, 32, &self.packed_crc.to_le_bytes());
        let crc = own_sum(&b[..HEADER - 4]);
        put(&mut b, HEADER - 4, &crc.to_le_bytes());
        b
    }

    /// The header in front of a block of the area for forms of `chunk`, whose size is 2^`shift` bytes. `None`: there is
    /// none.
    pub(crate) fn decode(block: &Slice, chunk: u64, shift: u8) -> Result<Option<Header>, Unusable> {
        if block.len() < HEADER {
            return Err(Unusable::Damaged);
        }
        let mut b = [0; HEADER];
        block.read_at(0, &mut b);
        if b == [0; HEADER] {
            return Ok(None);
        }
        // A block is either there or not, so a header that is wrong is not a torn one.
        let right = u32::from_le_bytes(take(&b, 0)) == MAGIC
            && u32::from_le_bytes(take(&b, HEADER - 4)) == own_sum(&b[..HEADER - 4])
            && (b[4], b[7]) == (VERSION, shift)
            && u64::from_le_bytes(take(&b, 8)) == chunk;
        let algorithm = Algorithm::of_code(b[5]).filter(|_| right).ok_or(Unusable::Damaged)?;
        let len = u32::from_le_bytes(take(&b, 24));
        let most = capacity((1 << shift) / BLOCK - 1);
        if len == 0 || len as usize > most {
            return Err(Unusable::Damaged);
        }
        Ok(Some(Header {
            algorithm,
            generation: b[6],
            stamp: u64::from_le_bytes(take(&b, 16)),
            len,
            data_crc: u32::from_le_bytes(take(&b, 28)),
            packed_crc: u64::from_le_bytes(take(&b, 32)),
        }))
    }

    /// Blocks that the form takes.
    pub(crate) fn blocks(&self) -> usize {
        blocks_for(self.len as usize)
    }

    /// Puts the form of compressed data into `to`, which has as many bytes as its blocks.
    pub(crate) fn store(mut self, chunk: u64, shift: u8, packed: &[u8], to: &Slice) {
        self.len = packed.len() as u32;
        self.packed_crc = crc64(packed);
        for i in 0..self.blocks() {
            let (at, range) = piece(i, packed.len());
            let n = range.len();
            to.write_at(i * BLOCK + at, &packed[range]);
            // What was in the buffer before is nobody's to read.
            to.sub(i * BLOCK + at + n, BLOCK - at - n).fill(0);
            match i {
                0 => to.write_at(0, &self.encode(chunk, shift)),
                _ => to.write_at(i * BLOCK, &self.stamp.to_le_bytes()),
            }
        }
    }

    /// Collects the compressed data of the form that `from` holds, in `to`.
    pub(crate) fn collect(&self, from: &Slice, to: &mut Vec<u8>) -> Result<(), Unusable> {
        let len = self.len as usize;
        if from.len() < self.blocks() * BLOCK {
            return Err(Unusable::Damaged);
        }
        to.clear();
        to.resize(len, 0);
        for i in 0..self.blocks() {
            let (at, range) = piece(i, len);
            if i > 0 {
                let mut stamp = [0; STAMP];
                from.read_at(i * BLOCK, &mut stamp);
                if u64::from_le_bytes(stamp) != self.stamp {
                    return Err(Unusable::Torn);
                }
            }
            from.read_at(i * BLOCK + at, &mut to[range]);
        }
        if crc64(to) == self.packed_crc { Ok(()) } else { Err(Unusable::Damaged) }
    }
}

/// Any bytes as a stored form: for fuzzing. Whether they were taken for one that is whole.
pub(crate) fn fuzz(data: &[u8]) -> bool {
    let Some((&shift, bytes)) = data.split_first() else { return false };
    let shift = 13 + shift % 5;
    let mut all = bytes.to_vec();
    all.resize(bytes.len().next_multiple_of(BLOCK).clamp(BLOCK, 1 << shift), 0);
    let taken = |all: &[u8]| -> Result<Option<Vec<u8>>, Unusable> {
        let form = Slice::copy_of(all);
        let Some(h) = Header::decode(&form, 7, shift)? else { return Ok(None) };
        let mut codec = super::codec::Codec::default();
        codec.unpack(&h, &form, 1 << shift)?;
        Ok(Some(codec.data(1 << shift).to_vec()))
    };
    let mut reached = matches!(taken(&all), Ok(Some(_)));
    // Nobody guesses checksums: with those put right, the decoder itself is reached.
    all[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    (all[4], all[7]) = (VERSION, shift);
    all[5] = 1 + all[5] % 2;
    all[8..16].copy_from_slice(&7u64.to_le_bytes());
    let room = capacity((all.len() / BLOCK).min((1 << shift) / BLOCK - 1)).max(1) as u32;
    let len = 1 + u32::from_le_bytes([all[24], all[25], all[26], all[27]]) % room;
    all[24..28].copy_from_slice(&len.to_le_bytes());
    let stamp: Vec<u8> = all[16..24].to_vec();
    let mut packed = Vec::new();
    for i in 0..blocks_for(len as usize) {
        let (at, range) = piece(i, len as usize);
        if i > 0 {
            all[i * BLOCK..i * BLOCK + STAMP].copy_from_slice(&stamp);
        }
        packed.extend_from_slice(&all[i * BLOCK + at..][..range.len()]);
    }
    all[32..40].copy_from_slice(&crc64(&packed).to_le_bytes());
    let crc = own_sum(&all[..HEADER - 4]).to_le_bytes();
    all[HEADER - 4..HEADER].copy_from_slice(&crc);
    if let Ok(Some(d)) = taken(&all) {
        assert_eq!(crc32c(&d), u32::from_le_bytes([all[28], all[29], all[30], all[31]]));
        reached = true;
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::Prng;

    fn header(len: usize) -> Header {
        Header {
            algorithm: Algorithm::Lz4,
            generation: 3,
            stamp: 0x1122_3344_5566_7788,
            len: len as u32,
            packed_crc: 0,
            data_crc: 9,
        }
    }

    #[test]
    fn capacities_and_blocks_agree() {
        for blocks in 1..=31 {
            assert_eq!(blocks_for(capacity(blocks)), blocks);
            assert_eq!(blocks_for(capacity(blocks) + 1), blocks + 1);
        }
        assert_eq!((blocks_for(0), blocks_for(1), capacity(1)), (1, 1, BLOCK - HEADER));
    }

    #[test]
    fn generations_go_round() {
        assert!(is_newer(1, 0) && !is_newer(0, 1) && !is_newer(5, 5));
        assert!(is_newer(0, 255) && !is_newer(255, 0));
    }

    /// What was stored is found again; with any block of another write it is torn, and with any bit changed that means
    /// something it is not used.
    #[test]
    fn forms_are_found_again_whole_or_not_at_all() {
        let mut prng = Prng::new(1);
        for len in [1, 100, capacity(1), capacity(1) + 1, 9000, capacity(7)] {
            let mut packed = vec![0; len];
            prng.fill(&mut packed);
            let h = header(len);
            let to = Slice::copy_of(&vec![0xee; 8 * BLOCK]);
            h.store(7, 15, &packed, &to);
            let found = Header::decode(&to, 7, 15).unwrap().unwrap();
            assert_eq!((found.generation, found.len, found.data_crc), (3, len as u32, 9));
            let mut out = Vec::new();
            assert_eq!(found.collect(&to, &mut out), Ok(()));
            assert!(out == packed);
            assert_eq!(Header::decode(&to, 8, 15), Err(Unusable::Damaged), "another chunk's");
            assert_eq!(Header::decode(&to, 7, 16), Err(Unusable::Damaged), "another size");

            for i in 1..h.blocks() {
                let torn = Slice::copy_of(&to.to_vec());
                torn.sub(i * BLOCK, BLOCK).fill(0);
                assert_eq!(found.collect(&torn, &mut out), Err(Unusable::Torn));
            }
            for _ in 0..200 {
                let bad = Slice::copy_of(&to.to_vec());
                let at = prng.below((h.blocks() * BLOCK) as u64) as usize;
                let mut byte = [0];
                bad.read_at(at, &mut byte);
                bad.write_at(at, &[byte[0] ^ 1 << prng.below(8)]);
                let again = match Header::decode(&bad, 7, 15) {
                    Ok(Some(h)) => h.collect(&bad, &mut out).map(|()| out == packed),
                    other => other.map(|_| false),
                };
                assert_ne!(again, Ok(false), "other data");
            }
        }
        assert_eq!(Header::decode(&Slice::heap(BLOCK), 0, 15), Ok(None));
    }

    #[test]
    fn anything_may_be_there() {
        let mut prng = Prng::new(2);
        let mut reached = 0;
        for _ in 0..3000 {
            let mut data = vec![0; prng.between(0, 20_000) as usize];
            // Often few different bytes, so that decoders get far.
            let mask = [0xff, 0x0f, 0x11, 0x01][prng.below(4) as usize];
            prng.fill(&mut data);
            data.iter_mut().for_each(|b| *b &= mask);
            reached += u32::from(fuzz(&data));
        }
        assert_eq!(reached, 0, "checksums of data are not guessed");
    }
}

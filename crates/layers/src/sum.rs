//! The checksum that a block of a layer's own has of itself.

use weir_codec::crc64;

/// The lower half of the CRC-64. Not CRC32C: whatever data is followed by its own CRC32C, the CRC32C of all of it depends on its
/// length only, so the checksum that older pools keep of a block would not tell one such block from another.
pub(crate) fn own_sum(bytes: &[u8]) -> u32 {
    crc64(bytes) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::Prng;
    use weir_codec::crc32c;

    #[test]
    fn checksums_of_blocks_tell_headers_apart() {
        let block = |seed: u64, sum: fn(&[u8]) -> u32| {
            let mut b = [0; 4096];
            Prng::new(seed).fill(&mut b[..60]);
            let own = sum(&b[..60]).to_le_bytes();
            b[60..64].copy_from_slice(&own);
            crc32c(&b)
        };
        assert_eq!(block(1, crc32c), block(2, crc32c));
        assert_ne!(block(1, own_sum), block(2, own_sum));
    }
}

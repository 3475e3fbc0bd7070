//! Checksums and message authentication: slices in, numbers out.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]
#![forbid(unsafe_code)]

pub mod mac;

/// CRC32C (Castagnoli) of `bytes`, as iWARP (RFC 5044 section 4.4), iSCSI and the store use it.
///
/// ```
/// assert_eq!(weir_codec::crc32c(b"123456789"), 0xe306_9283);
/// ```
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-32K (Koopman's polynomial 741B8CD7, parameters of CRC-32/MEF) of `bytes`: the store's checksum of data. Hosts'
/// data that carries a checksum of its own carries another one.
///
/// ```
/// assert_eq!(weir_codec::crc32k(b"123456789"), 0xd2c2_2f51);
/// ```
#[inline]
pub fn crc32k(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Mef, bytes) as u32
}

/// CRC-64/NVME of `bytes`, as the store's metadata uses it.
///
/// ```
/// assert_eq!(weir_codec::crc64(b"123456789"), 0xae8b_1486_0a79_9888);
/// ```
#[inline]
pub fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes)
}

/// A CRC32C taken over several pieces.
#[derive(Clone)]
pub struct Crc32c(crc_fast::Digest);

impl Crc32c {
    /// Nothing summed yet.
    pub fn new() -> Self {
        Crc32c(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds a piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all pieces so far.
    pub fn finish(&self) -> u32 {
        self.0.finalize() as u32
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl core::fmt::Debug for Crc32c {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Crc32c({:08x})", self.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_equal_the_whole() {
        let data: Vec<u8> = (0..10_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
        for cut in [0, 1, 63, 4096, 9_999, 10_000] {
            let mut c = Crc32c::new();
            c.update(&data[..cut]);
            c.update(&data[cut..]);
            assert_eq!(c.finish(), crc32c(&data));
        }
    }
}

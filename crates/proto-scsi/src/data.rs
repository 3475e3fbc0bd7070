//! Building data-in answers in a caller-owned vector.

use crate::sense::{SENSE_LEN_MAX, Sense, SenseFormat};

/// Appends big-endian fields.
pub(crate) trait Data {
    fn be16(&mut self, v: u16);
    fn be32(&mut self, v: u32);
    fn be64(&mut self, v: u64);
    fn zeros(&mut self, n: usize);
    fn sense(&mut self, sense: &Sense, format: SenseFormat);
    /// Sets the 16-bit length field at `at` to the number of bytes after it.
    fn set_len16(&mut self, at: usize);
    /// Sets the 32-bit length field at `at` to the number of bytes after it.
    fn set_len32(&mut self, at: usize);
}

impl Data for Vec<u8> {
    fn be16(&mut self, v: u16) {
        self.extend_from_slice(&v.to_be_bytes());
    }

    fn be32(&mut self, v: u32) {
        self.extend_from_slice(&v.to_be_bytes());
    }

    fn be64(&mut self, v: u64) {
        self.extend_from_slice(&v.to_be_bytes());
    }

    fn zeros(&mut self, n: usize) {
        self.resize(self.len() + n, 0);
    }

    fn sense(&mut self, sense: &Sense, format: SenseFormat) {
        let mut b = [0; SENSE_LEN_MAX];
        let n = sense.encode(format, &mut b);
        self.extend_from_slice(&b[..n]);
    }

    fn set_len16(&mut self, at: usize) {
        let n = (self.len() - at - 2) as u16;
        self[at..at + 2].copy_from_slice(&n.to_be_bytes());
    }

    fn set_len32(&mut self, at: usize) {
        let n = (self.len() - at - 4) as u32;
        self[at..at + 4].copy_from_slice(&n.to_be_bytes());
    }
}

/// Cuts an answer to the allocation length.
pub(crate) fn truncate(out: &mut Vec<u8>, alloc: usize) {
    out.truncate(alloc);
}

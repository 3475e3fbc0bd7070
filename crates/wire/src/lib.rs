//! Checked big-endian cursors for wire formats.
//!
//! Every protocol core reads through [`Reader`] and writes through [`Writer`]: out-of-range access is
//! an error value, never a panic, so a hostile peer cannot reach an index check.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]
#![forbid(unsafe_code)]

/// A read past the end of the bytes at hand: what was wanted and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Short {
    /// Offset of the first byte that was wanted.
    pub offset: usize,
    /// How many bytes were wanted from there.
    pub wanted: usize,
}

impl core::fmt::Display for Short {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "{} bytes wanted at offset {}, but the data ends before",
            self.wanted, self.offset
        )
    }
}

impl std::error::Error for Short {}

/// Reads big-endian fields front to back.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

macro_rules! read_int {
    ($name:ident, $t:ty, $n:expr, $doc:expr) => {
        #[doc = $doc]
        #[inline]
        pub fn $name(&mut self) -> Result<$t, Short> {
            Ok(<$t>::from_be_bytes(self.array::<$n>()?))
        }
    };
}

impl<'a> Reader<'a> {
    /// Starts at the first of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0 }
    }

    /// Offset of the next byte.
    #[inline]
    pub fn offset(&self) -> usize {
        self.at
    }

    /// Bytes not yet read.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// All bytes not yet read, without consuming them.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or(&[])
    }

    /// The next `n` bytes.
    #[inline]
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], Short> {
        let end = self.at.checked_add(n).ok_or(Short { offset: self.at, wanted: n })?;
        let s = self.bytes.get(self.at..end).ok_or(Short { offset: self.at, wanted: n })?;
        self.at = end;
        Ok(s)
    }

    /// The next `N` bytes as an array.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let s = self.take(N)?;
        let mut a = [0; N];
        a.copy_from_slice(s);
        Ok(a)
    }

    /// Passes over `n` bytes (reserved fields).
    #[inline]
    pub fn skip(&mut self, n: usize) -> Result<(), Short> {
        self.take(n).map(|_| ())
    }

    read_int!(u8, u8, 1, "One byte.");
    read_int!(u16, u16, 2, "A big-endian 16-bit field.");
    read_int!(u32, u32, 4, "A big-endian 32-bit field.");
    read_int!(u64, u64, 8, "A big-endian 64-bit field.");
    read_int!(u128, u128, 16, "A big-endian 128-bit field.");
}

/// Writes big-endian fields front to back into a slice of fixed length.
#[derive(Debug)]
pub struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

macro_rules! write_int {
    ($name:ident, $t:ty, $doc:expr) => {
        #[doc = $doc]
        #[inline]
        pub fn $name(&mut self, v: $t) -> Result<&mut Self, Short> {
            self.put(&v.to_be_bytes())
        }
    };
}

impl<'a> Writer<'a> {
    /// Starts at the first of `bytes`; what is never written keeps its value.
    #[inline]
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Writer { bytes, at: 0 }
    }

    /// Bytes written (or passed over) so far.
    #[inline]
    pub fn len(&self) -> usize {
        self.at
    }

    /// True before the first byte.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.at == 0
    }

    /// Copies `s`.
    #[inline]
    pub fn put(&mut self, s: &[u8]) -> Result<&mut Self, Short> {
        let end = self.at.checked_add(s.len()).ok_or(Short { offset: self.at, wanted: s.len() })?;
        let d =
            self.bytes.get_mut(self.at..end).ok_or(Short { offset: self.at, wanted: s.len() })?;
        d.copy_from_slice(s);
        self.at = end;
        Ok(self)
    }

    /// Writes `n` zero bytes (reserved fields).
    #[inline]
    pub fn zeros(&mut self, n: usize) -> Result<&mut Self, Short> {
        let end = self.at.checked_add(n).ok_or(Short { offset: self.at, wanted: n })?;
        let d = self.bytes.get_mut(self.at..end).ok_or(Short { offset: self.at, wanted: n })?;
        d.fill(0);
        self.at = end;
        Ok(self)
    }

    write_int!(u8, u8, "One byte.");
    write_int!(u16, u16, "A big-endian 16-bit field.");
    write_int!(u32, u32, "A big-endian 32-bit field.");
    write_int!(u64, u64, "A big-endian 64-bit field.");
    write_int!(u128, u128, "A big-endian 128-bit field.");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_was_written() {
        let mut b = [0u8; 31];
        let mut w = Writer::new(&mut b);
        w.u8(1).unwrap().u16(2).unwrap().u32(3).unwrap().u64(4).unwrap().u128(5).unwrap();
        assert_eq!(w.len(), 31);
        assert!(w.u8(0).is_err());
        let mut r = Reader::new(&b);
        assert_eq!(r.u8(), Ok(1));
        assert_eq!(r.u16(), Ok(2));
        assert_eq!(r.u32(), Ok(3));
        assert_eq!(r.u64(), Ok(4));
        assert_eq!(r.u128(), Ok(5));
        assert_eq!(r.u8(), Err(Short { offset: 31, wanted: 1 }));
    }

    #[test]
    fn absurd_lengths_are_errors() {
        let mut r = Reader::new(&[1, 2, 3]);
        r.skip(1).unwrap();
        assert!(r.take(usize::MAX).is_err());
        assert_eq!(r.rest(), &[2, 3]);
    }
}

//! Structured replies (NBD protocol, "Structured reply chunk message"): one chunk each.

use crate::Request;

/// Bytes of a reply before its data, at most.
pub const HEAD: usize = 28;
/// The number of the context `base:allocation`, which is the only one.
pub const ALLOCATION: u32 = 1;

/// States of an extent of `base:allocation`.
pub mod state {
    /// No space is behind it.
    pub const HOLE: u32 = 1;
    /// It reads as zeroes.
    pub const ZERO: u32 = 2;
}

const MAGIC: u32 = 0x668e_33ef;
/// The flag of a reply's last chunk.
const DONE: u16 = 1;

mod kind {
    pub(super) const NONE: u16 = 0;
    pub(super) const OFFSET_DATA: u16 = 1;
    pub(super) const BLOCK_STATUS: u16 = 5;
    pub(super) const ERROR: u16 = (1 << 15) + 1;
}

/// What begins a reply: its data follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    bytes: [u8; HEAD],
    len: usize,
}

impl Head {
    fn new(parts: &[&[u8]]) -> Head {
        let mut h = Head { bytes: [0; HEAD], len: 0 };
        for b in parts.iter().copied().flatten() {
            if let Some(to) = h.bytes.get_mut(h.len) {
                (*to, h.len) = (*b, h.len + 1);
            }
        }
        h
    }

    fn chunk(cookie: [u8; 8], kind: u16, data: usize, parts: &[&[u8]]) -> Head {
        let own: usize = parts.iter().map(|p| p.len()).sum();
        let len = u32::try_from(own + data).unwrap_or(u32::MAX).to_be_bytes();
        let [m, f, k] = [&MAGIC.to_be_bytes()[..], &DONE.to_be_bytes(), &kind.to_be_bytes()];
        let [a, b] = [0, 1].map(|n| parts.get(n).copied().unwrap_or_default());
        Head::new(&[m, f, k, &cookie, &len, a, b])
    }

    /// A simple reply: `error` is 0, or an error number that the protocol knows.
    pub fn simple(cookie: [u8; 8], error: u32) -> Head {
        Head::new(&[&crate::reply(cookie, error)])
    }

    /// The reply to a read of `len` bytes, which follow.
    pub fn data(r: &Request, len: usize) -> Head {
        match len {
            0 => Head::chunk(r.cookie, kind::NONE, 0, &[]),
            _ => Head::chunk(r.cookie, kind::OFFSET_DATA, len, &[&r.at.to_be_bytes()]),
        }
    }

    /// The reply to a question for block status: `len` bytes of [`extent`]s follow.
    pub fn status(r: &Request, len: usize) -> Head {
        Head::chunk(r.cookie, kind::BLOCK_STATUS, len, &[&ALLOCATION.to_be_bytes()])
    }

    /// The reply to what has failed.
    pub fn error(cookie: [u8; 8], error: u32) -> Head {
        Head::chunk(cookie, kind::ERROR, 0, &[&error.to_be_bytes(), &[0, 0]])
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// An extent of block status: bytes, and its [`state`].
pub fn extent(len: u32, state: u32) -> [u8; 8] {
    let ([a, b, c, d], [e, f, g, h]) = (len.to_be_bytes(), state.to_be_bytes());
    [a, b, c, d, e, f, g, h]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    #[test]
    fn replies_are_as_the_protocol_has_them() {
        let r = Request { op: Op::Read, cookie: *b"cookie!!", at: 0x1000, len: 512 };
        let begin = |kind: [u8; 2], len: u32| {
            [&[0x66, 0x8e, 0x33, 0xef, 0, 1][..], &kind, b"cookie!!", &len.to_be_bytes()].concat()
        };
        let at = 0x1000u64.to_be_bytes();
        assert_eq!(Head::data(&r, 512).bytes(), [&begin([0, 1], 520)[..], &at].concat());
        assert_eq!(Head::data(&r, 0).bytes(), begin([0, 0], 0));
        assert_eq!(Head::status(&r, 16).bytes(), [&begin([0, 5], 20)[..], &[0, 0, 0, 1]].concat());
        let e = Head::error(r.cookie, 22);
        assert_eq!(e.bytes(), [&begin([0x80, 1], 6)[..], &[0, 0, 0, 22, 0, 0]].concat());
        assert_eq!(Head::simple(r.cookie, 5).bytes(), crate::reply(r.cookie, 5));
        assert_eq!(extent(4096, state::HOLE | state::ZERO), [0, 0, 16, 0, 0, 0, 0, 3]);
    }
}

//! What the two sides of a checked connection say to each other. Every message can be verified by itself.

use weir_base::Prng;
use weir_fabric::{Access, Remote};
use weir_mem::Slice;

const MAGIC: u32 = 0xfab2_1c00;
/// Bytes of a message's head.
pub(super) const HEAD: usize = 44;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing but its content.
    Plain,
    /// A place in the sender's memory, with pattern `fill` in it when it may be read.
    Offer { place: Remote, len: u32, access: Access, fill: u64 },
    /// The receiver's place is not needed any more. `dead`: this message invalidates its key.
    Return { key: u32, dead: bool },
    /// As Return, after `len` bytes at `at` of the receiver's place were written with pattern `fill`.
    Wrote { key: u32, dead: bool, at: u64, len: u32, fill: u64 },
    /// The sender will offer nothing more.
    Bye,
}

/// A message of `len` bytes, the `seq`th of its direction.
pub(super) fn encode(seq: u64, kind: Kind, len: usize) -> Vec<u8> {
    let (code, key, dead, at, n, fill) = match kind {
        Kind::Plain => (0u8, 0, false, 0, 0, 0),
        Kind::Offer { place, len, access, fill } => {
            (1 + u8::from(access == Access::RemoteWrite), place.key, false, place.addr, len, fill)
        }
        Kind::Return { key, dead } => (3, key, dead, 0, 0, 0),
        Kind::Wrote { key, dead, at, len, fill } => (4, key, dead, at, len, fill),
        Kind::Bye => (5, 0, false, 0, 0, 0),
    };
    let mut m = Vec::with_capacity(len.max(HEAD));
    m.extend(MAGIC.to_le_bytes());
    m.extend([code, u8::from(dead), 0, 0]);
    m.extend(seq.to_le_bytes());
    m.extend(key.to_le_bytes());
    m.extend(n.to_le_bytes());
    m.extend(at.to_le_bytes());
    m.extend(fill.to_le_bytes());
    m.extend((len.max(HEAD) as u32).to_le_bytes());
    m.resize(len.max(HEAD), 0);
    Prng::new(seq ^ 0x5eed).fill(&mut m[HEAD..]);
    m
}

fn le(b: &[u8]) -> u64 {
    b.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b))
}

/// A message and its number in its direction, or what is wrong with it.
pub(super) fn decode(m: &[u8]) -> Result<(u64, Kind), String> {
    if m.len() < HEAD || le(&m[..4]) != u64::from(MAGIC) {
        return Err(format!("no message of ours: {:02x?}", &m[..m.len().min(HEAD)]));
    }
    let seq = le(&m[8..16]);
    let (key, len) = (le(&m[16..20]) as u32, le(&m[20..24]) as u32);
    let (at, fill, dead) = (le(&m[24..32]), le(&m[32..40]), m[5] != 0);
    let place = Remote { key, addr: at };
    let kind = match m[4] {
        0 => Kind::Plain,
        1 => Kind::Offer { place, len, access: Access::RemoteRead, fill },
        2 => Kind::Offer { place, len, access: Access::RemoteWrite, fill },
        3 => Kind::Return { key, dead },
        4 => Kind::Wrote { key, dead, at, len, fill },
        5 => Kind::Bye,
        other => return Err(format!("message kind {other}")),
    };
    let want = encode(seq, kind, (le(&m[40..44]) as usize).min(1 << 20));
    match want.iter().zip(m).position(|(a, b)| a != b) {
        None if want.len() == m.len() => Ok((seq, kind)),
        None => Err(format!("message {seq} has {} bytes of {}", m.len(), want.len())),
        Some(at) => Err(format!("message {seq} differs from byte {at} on")),
    }
}

/// Byte `at` of the pattern `fill`.
fn pattern_byte(fill: u64, at: usize) -> u8 {
    let word = (fill ^ (at as u64 / 8)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((word ^ (word >> 31)) >> (8 * (at % 8))) as u8
}

/// Writes bytes `at..` of the pattern `fill` to the whole slice.
pub(super) fn put_pattern(s: &Slice, fill: u64, at: usize) {
    let bytes: Vec<u8> = (0..s.len()).map(|i| pattern_byte(fill, at + i)).collect();
    s.write_at(0, &bytes);
}

/// The first byte of the slice that is not that of bytes `at..` of the pattern.
pub(super) fn find_foreign(s: &Slice, fill: u64, at: usize) -> Option<usize> {
    s.to_vec().iter().enumerate().position(|(i, b)| *b != pattern_byte(fill, at + i))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_and_any_change_shows() {
        let place = Remote { key: 7, addr: 1 << 60 };
        let kinds = [
            Kind::Plain,
            Kind::Offer { place, len: 9, access: Access::RemoteRead, fill: 5 },
            Kind::Offer { place, len: 9, access: Access::RemoteWrite, fill: 5 },
            Kind::Return { key: 1, dead: true },
            Kind::Wrote { key: 1, dead: false, at: 3, len: 4, fill: 6 },
            Kind::Bye,
        ];
        for kind in kinds {
            let m = encode(3, kind, 100);
            assert_eq!(decode(&m), Ok((3, kind)));
            assert!(decode(&m[..99]).is_err() && decode(&m[..20]).is_err());
            for at in HEAD..100 {
                let mut bad = m.clone();
                bad[at] ^= 1;
                assert!(decode(&bad).is_err());
            }
        }
        let s = Slice::heap(100);
        put_pattern(&s, 11, 50);
        assert_eq!(find_foreign(&s, 11, 50), None);
        assert_eq!(find_foreign(&s.sub(10, 20), 11, 60), None);
        assert!(find_foreign(&s, 11, 51).is_some() && find_foreign(&s, 12, 50).is_some());
    }
}

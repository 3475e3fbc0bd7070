//! HMAC-SHA-256 (RFC 2104, FIPS 180-4): who knows the key made these bytes.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Bytes of a code.
pub const LEN: usize = 32;

fn taken(key: &[u8], parts: &[&[u8]]) -> Option<Hmac<Sha256>> {
    // HMAC takes keys of any length; the type cannot say so.
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    parts.iter().for_each(|p| mac.update(p));
    Some(mac)
}

/// The code of `parts`, one behind the other, under `key`.
///
/// Parts of variable length need their lengths among them, or two lists give one code.
pub fn hmac_sha256(key: &[u8], parts: &[&[u8]]) -> [u8; LEN] {
    taken(key, parts).map_or([0; LEN], |m| m.finalize().into_bytes().into())
}

/// Whether `code` is that of `parts` under `key`. The time it takes does not tell how much of it is right.
pub fn verify_sha256(key: &[u8], parts: &[&[u8]], code: &[u8; LEN]) -> bool {
    taken(key, parts).is_some_and(|m| m.verify_slice(code).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Key, parts of the data, code.
    type Case<'a> = (&'a [u8], &'a [&'a [u8]], &'a str);

    /// Test cases 1, 2 and 6 of RFC 4231.
    #[test]
    fn vectors_of_rfc_4231() {
        let hex = |t: &str| -> [u8; 32] {
            std::array::from_fn(|i| u8::from_str_radix(&t[2 * i..2 * i + 2], 16).unwrap())
        };
        let cases: [Case<'_>; 3] = [
            (
                &[0x0b; 20],
                &[b"Hi ", b"There"],
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
            ),
            (
                b"Jefe",
                &[b"what do ya want ", b"for nothing?"],
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                &[0xaa; 131],
                &[b"Test Using Larger Than Block-Size Key - Hash Key First"],
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            ),
        ];
        for (key, parts, code) in cases {
            assert_eq!(hmac_sha256(key, parts), hex(code));
            assert!(verify_sha256(key, parts, &hex(code)));
            let mut other = hex(code);
            other[31] ^= 1;
            assert!(!verify_sha256(key, parts, &other));
        }
    }
}

//! Text: `key=value` pairs, each ended by a NUL (RFC 7143 6.1).

/// Bytes of a key, at most (RFC 7143 6.1).
pub const KEY: usize = 63;
/// Bytes of a value, at most, where a key does not allow more (RFC 7143 6.1).
pub const VALUE: usize = 255;
/// Pairs of one negotiation step, at most: far more than there are keys.
pub const PAIRS: usize = 128;

/// Text that is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadText;

impl std::fmt::Display for BadText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("what should be text with keys and values is none")
    }
}

impl std::error::Error for BadText {}

/// The pairs of a text. Empty parts between NULs, as some initiators send, are passed over.
///
/// # Errors
/// A part has no `=`, a key is no key, a value is too long or no UTF-8, or there are more than [`PAIRS`].
pub fn pairs(text: &[u8]) -> Result<Vec<(&str, &str)>, BadText> {
    let mut all = Vec::new();
    for part in text.split(|b| *b == 0).filter(|p| !p.is_empty()) {
        let part = std::str::from_utf8(part).map_err(|_| BadText)?;
        let (key, value) = part.split_once('=').ok_or(BadText)?;
        let is_key = |b: u8| b.is_ascii_alphanumeric() || b".-+@_#/".contains(&b);
        let key_ok = (1..=KEY).contains(&key.len()) && key.bytes().all(is_key);
        // A challenge and its answer are longer: 1024 bytes, two digits each (RFC 7143 12.1.3).
        let most = if key.starts_with("CHAP_") { 2 + 2 * 1024 } else { VALUE };
        if !key_ok || value.len() > most || all.len() >= PAIRS {
            return Err(BadText);
        }
        all.push((key, value));
    }
    Ok(all)
}

/// Adds a pair.
pub fn push(text: &mut Vec<u8>, key: &str, value: &str) {
    text.extend_from_slice(key.as_bytes());
    text.push(b'=');
    text.extend_from_slice(value.as_bytes());
    text.push(0);
}

/// A number: decimal, or hexadecimal behind `0x` (RFC 7143 6.1).
pub fn number(value: &str) -> Option<u32> {
    match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(hex) if hex.bytes().all(|b| b.is_ascii_hexdigit()) => {
            u32::from_str_radix(hex, 16).ok()
        }
        None if value.bytes().all(|b| b.is_ascii_digit()) => value.parse().ok(),
        _ => None,
    }
}

/// A boolean value.
pub fn boolean(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

/// Binary data: hexadecimal behind `0x`, or base64 behind `0b` (RFC 7143 6.1).
pub fn binary(value: &str) -> Option<Vec<u8>> {
    let (form, digits) = value.split_at_checked(2)?;
    match form {
        "0x" | "0X" => {
            let nibble = |b: u8| char::from(b).to_digit(16).map(|n| n as u8);
            let (pairs, odd) = digits.as_bytes().as_chunks::<2>();
            if !odd.is_empty() || pairs.is_empty() {
                return None;
            }
            pairs.iter().map(|[h, l]| Some(nibble(*h)? << 4 | nibble(*l)?)).collect()
        }
        "0b" | "0B" => base64(digits.as_bytes()),
        _ => None,
    }
}

/// Binary data in hexadecimal.
pub fn hexadecimal(bytes: &[u8]) -> String {
    let mut s = String::with_capacity(2 + 2 * bytes.len());
    s.push_str("0x");
    for b in bytes {
        for digit in [b >> 4, b & 15] {
            s.push(char::from_digit(digit.into(), 16).unwrap_or('0'));
        }
    }
    s
}

/// Base64 with its padding (RFC 4648 section 4).
fn base64(digits: &[u8]) -> Option<Vec<u8>> {
    let value = |b: u8| {
        Some(u32::from(match b {
            b'A'..=b'Z' => b - b'A',
            b'a'..=b'z' => b - b'a' + 26,
            b'0'..=b'9' => b - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        }))
    };
    let (groups, odd) = digits.as_chunks::<4>();
    if !odd.is_empty() || groups.is_empty() {
        return None;
    }
    let mut out = Vec::with_capacity(groups.len() * 3);
    for (i, g) in groups.iter().enumerate() {
        let padded = g.iter().rev().take_while(|b| **b == b'=').count();
        if padded > 2 || padded > 0 && i + 1 < groups.len() {
            return None;
        }
        let mut n = 0;
        for b in &g[..4 - padded] {
            n = n << 6 | value(*b)?;
        }
        let n = n << (6 * padded);
        let [_, bytes @ ..] = n.to_be_bytes();
        out.extend_from_slice(&bytes[..3 - padded]);
    }
    Some(out)
}

//! What a key source gives: a key, or a passphrase that a key is derived from.

use zeroize::Zeroizing;

/// Bytes of a key that wraps others.
pub(super) const KEY: usize = 32;
/// Longest that a source may give, in bytes.
pub(super) const MAX: usize = 4096;
/// Shortest passphrase in bytes.
const MIN_PASSPHRASE: usize = 12;

/// It is wiped when it goes, and never shown.
pub(super) enum Material {
    /// 256 random bits.
    Key(Zeroizing<[u8; KEY]>),
    /// Words of people.
    Passphrase(Zeroizing<Vec<u8>>),
}

impl std::fmt::Debug for Material {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Material(..)")
    }
}

fn digit(b: u8) -> Option<u8> {
    (b as char).to_digit(16).map(|d| d as u8)
}

/// A key written as 64 hexadecimal digits.
fn from_hex(text: &[u8]) -> Option<Zeroizing<[u8; KEY]>> {
    if text.len() != 2 * KEY {
        return None;
    }
    let mut key = Zeroizing::new([0; KEY]);
    for (to, two) in key.iter_mut().zip(text.chunks(2)) {
        *to = digit(two[0])? << 4 | digit(two[1])?;
    }
    Some(key)
}

impl Material {
    /// 64 hexadecimal digits, or 32 bytes that are no text, are a key; any other text is a passphrase. One end of line is
    /// no part of either. (32 random bytes are text about once in 10^14 times, and then are a good passphrase.)
    pub(super) fn parse(bytes: &Zeroizing<Vec<u8>>) -> Result<Material, &'static str> {
        if bytes.len() > MAX {
            return Err("it gives more than 4096 bytes");
        }
        let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if let Some(key) = from_hex(line) {
            return Ok(Material::Key(key));
        }
        let is_text = std::str::from_utf8(line).is_ok_and(|t| !t.chars().any(char::is_control));
        if !is_text && bytes.len() == KEY {
            let mut key = Zeroizing::new([0; KEY]);
            key.copy_from_slice(bytes);
            return Ok(Material::Key(key));
        }
        if !is_text {
            return Err("it gives neither 32 bytes nor 64 hexadecimal digits nor one line of text");
        }
        if line.len() < MIN_PASSPHRASE {
            return Err("its passphrase is shorter than 12 bytes");
        }
        Ok(Material::Passphrase(Zeroizing::new(line.to_vec())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> Result<Material, &'static str> {
        Material::parse(&Zeroizing::new(bytes.to_vec()))
    }

    #[test]
    fn keys_and_passphrases_are_told_apart() {
        let digits = "00ff".repeat(16);
        for text in
            [digits.clone(), format!("{digits}\n"), format!("{}\r\n", digits.to_uppercase())]
        {
            let Ok(Material::Key(k)) = of(text.as_bytes()) else { panic!("{text}") };
            assert_eq!(k[..4], [0, 0xff, 0, 0xff]);
        }
        let raw: Vec<u8> = (200..232).collect();
        let Ok(Material::Key(k)) = of(&raw) else { panic!("32 bytes") };
        assert_eq!(k.to_vec(), raw);
        // Bytes of a key may look like an end of line.
        let mut ends = raw.clone();
        ends[31] = b'\n';
        assert!(matches!(of(&ends), Ok(Material::Key(k)) if k.to_vec() == ends));
        for text in
            ["correct horse battery", "exactly thirty-two letters here!", "ünïcödé pässwörd\n"]
        {
            let Ok(Material::Passphrase(p)) = of(text.as_bytes()) else { panic!("{text}") };
            assert_eq!(p.to_vec(), text.trim_end().as_bytes());
        }
        for bad in
            [&b""[..], b"short", b"\n", b"two lines\nof words", &[0; 31], &[200; 33], &[b'x'; 4097]]
        {
            assert!(of(bad).is_err(), "{bad:?}");
        }
        assert_eq!(format!("{:?}", of(&raw)), "Ok(Material(..))");
    }
}

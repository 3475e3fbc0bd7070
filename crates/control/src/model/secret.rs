//! What a host proves at login (docs/security.md).

use crate::error::{Code, Error, Result};
use serde::{Deserialize, Serialize, de};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use zeroize::Zeroizing;

/// Bytes of the shortest secret.
const SECRET_MIN: usize = 16;
/// Bytes of the longest secret.
const SECRET_MAX: usize = 256;

/// A host's secret: 16 to 256 bytes, in hexadecimal where it is kept or sent. Its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct HostSecret(Zeroizing<Vec<u8>>);

impl HostSecret {
    /// Of these bytes.
    ///
    /// # Errors
    /// Too few or too many.
    pub fn new(bytes: Vec<u8>) -> Result<HostSecret> {
        let bytes = Zeroizing::new(bytes);
        if (SECRET_MIN..=SECRET_MAX).contains(&bytes.len()) {
            return Ok(HostSecret(bytes));
        }
        Err(Error::new(
            Code::InvalidRequest,
            format!("a secret of {} bytes cannot be", bytes.len()),
        )
        .because(format!("it must have {SECRET_MIN} to {SECRET_MAX} bytes"))
        .hint("make one with e.g. `openssl rand -hex 32 > FILE; chmod 600 FILE`"))
    }

    /// The content of a file, without one end of line.
    ///
    /// # Errors
    /// The file cannot be read, others may read it, or its content cannot be a secret.
    pub fn read(path: &Path) -> Result<HostSecret> {
        let wrong = |why: String| {
            Error::new(
                Code::InvalidRequest,
                format!("the secret file {} cannot be used", path.display()),
            )
            .because(why)
        };
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(path).map_err(|e| {
            wrong(e.to_string())
                .hint("make one with e.g. `openssl rand -hex 32 > FILE; chmod 600 FILE`")
        })?;
        if mode.permissions().mode() & 0o077 != 0 {
            return Err(wrong("others may read or write it".into())
                .hint(format!("chmod 600 {}", path.display())));
        }
        let mut bytes = std::fs::read(path).map_err(|e| wrong(e.to_string()))?;
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        HostSecret::new(bytes).map_err(|e| Error {
            message: format!("the secret file {} cannot be used", path.display()),
            ..e
        })
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for HostSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostSecret(..)")
    }
}

impl FromStr for HostSecret {
    type Err = Error;

    fn from_str(text: &str) -> Result<HostSecret> {
        let pair = |p: &[u8]| {
            let digits = std::str::from_utf8(p).ok()?;
            u8::from_str_radix(digits, 16).ok()
        };
        let is_hex = text.len().is_multiple_of(2) && text.bytes().all(|b| b.is_ascii_hexdigit());
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(pair).collect();
        match bytes.filter(|_| is_hex) {
            Some(bytes) => HostSecret::new(bytes),
            None => Err(Error::new(Code::InvalidRequest, "the secret is not hexadecimal")
                .hint("write two digits for each byte, or name a file with --secret-file")),
        }
    }
}

impl Serialize for HostSecret {
    fn serialize<S: serde::Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        let text: String = self.0.iter().map(|b| format!("{b:02x}")).collect();
        s.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for HostSecret {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let text = Zeroizing::new(String::deserialize(d)?);
        text.parse().map_err(|e: Error| de::Error::custom(e.message))
    }
}

/// What the doors ask of a host.
pub(super) fn asked(keyed: bool, secret: Option<&HostSecret>) -> HostAuth {
    match (keyed, secret) {
        (false, _) => HostAuth::Open,
        (true, Some(s)) => HostAuth::Secret(s.clone()),
        (true, None) => HostAuth::Lost,
    }
}

/// What a host proves at login.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum HostAuth {
    /// Nothing.
    #[default]
    Open,
    /// That it knows this.
    Secret(HostSecret),
    /// A secret that this node does not know: it came with a pool, which carries none.
    Lost,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_read_kept_and_not_shown() {
        let s: HostSecret = "000102030405060708090a0b0c0d0e0f".parse().unwrap();
        assert_eq!(s.bytes(), (0..16).collect::<Vec<u8>>());
        let json = serde_json::to_string(&s).unwrap();
        assert_eq!(serde_json::from_str::<HostSecret>(&json).unwrap(), s);
        assert_eq!(format!("{s:?}"), "HostSecret(..)");
        for bad in ["", "00", "0001020304050607080", "zz0102030405060708090a0b0c0d0e0f", "é0"] {
            assert!(bad.parse::<HostSecret>().is_err(), "{bad}");
        }
        assert!(HostSecret::new(vec![0; 257]).is_err());
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = std::env::temp_dir().join(format!("weir-secret-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("s");
        std::fs::write(&path, "a secret of 24 bytes, yes\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(HostSecret::read(&path).unwrap_err().hint.contains("chmod 600"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(HostSecret::read(&path).unwrap().bytes(), b"a secret of 24 bytes, yes");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

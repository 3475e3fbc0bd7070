//! Bits that nobody can guess, for what is drawn from them later.

use std::io::Read;
use weir_control::{Code, Error, Result};

/// 32 bytes of the operating system's random source.
///
/// # Errors
/// It gives none.
pub(crate) fn draw() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut bytes))
        .map_err(|e| Error::new(Code::IoError, "no random bits for logins").because(e))?;
    Ok(bytes)
}

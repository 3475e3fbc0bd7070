//! The tokens of the REST interface on TCP, and their files.

use super::Config;
use crate::error::{Code, Error, Result};
use crate::platform::entropy;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Name of the file with the token of role *admin* in the data directory, unless the configuration names another.
pub const TOKEN: &str = "api.token";
/// The same of role *read*.
pub const READ_TOKEN: &str = "api-read.token";
/// Random bytes of a token that is made.
const BYTES: usize = 32;

/// What clients on TCP must send, by role.
#[derive(Clone, PartialEq, Eq)]
pub struct Tokens {
    /// Everything is allowed.
    pub admin: String,
    /// Only what changes nothing is.
    pub read: String,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens(..)")
    }
}

impl Config {
    /// Where the tokens are: of role *admin*, and of role *read*.
    pub fn token_files(&self) -> [PathBuf; 2] {
        let of = |given: &Option<PathBuf>, name| {
            given.clone().unwrap_or_else(|| self.data_dir.join(name))
        };
        [of(&self.api.token_file, TOKEN), of(&self.api.read_token_file, READ_TOKEN)]
    }

    /// The tokens that TCP clients must send; none without TCP. Files that are not named are made in the data
    /// directory, which is there. Read once at start.
    ///
    /// # Errors
    /// A file cannot be read or made, others than its owner may use it, or what is in it is weak.
    pub fn tokens(&self) -> Result<Option<Tokens>> {
        if self.api.tcp.is_none() {
            return Ok(None);
        }
        let [admin, read] = self.token_files();
        let made = |given: &Option<PathBuf>, path: &Path| match given {
            None if !path.exists() => make(path),
            _ => Ok(()),
        };
        made(&self.api.token_file, &admin)?;
        made(&self.api.read_token_file, &read)?;
        let tokens = Tokens { admin: token(&admin)?, read: token(&read)? };
        if tokens.admin == tokens.read {
            return Err(Error::new(Code::InvalidConfig, "the tokens of both roles are the same")
                .hint("give role read a token of its own (`api.read_token_file`)"));
        }
        Ok(Some(tokens))
    }
}

/// The token in a file.
///
/// # Errors
/// It cannot be read, others than its owner may use it, or it is weak.
pub fn token(path: &Path) -> Result<String> {
    let unusable = |why: &dyn std::fmt::Display| {
        let message = format!("the token file {} cannot be used", path.display());
        Error::new(Code::InvalidConfig, message).because(why)
    };
    let make = "make it with e.g. `umask 077; openssl rand -hex 32 > FILE`";
    let mut file = File::open(path).map_err(|e| unusable(&e).hint(make))?;
    let mode = file.metadata().map_err(|e| unusable(&e))?.mode();
    if mode & 0o077 != 0 {
        let why = format!("others than its owner may use it (mode {:03o})", mode & 0o777);
        return Err(unusable(&why).hint("make another token, in a file of mode 600"));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|e| unusable(&e).hint(make))?;
    let token = text.trim().to_string();
    if token.len() < 16 || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(
            unusable(&"it must have 16 or more printable characters without blanks").hint(make)
        );
    }
    Ok(token)
}

/// Makes a file with a new token, whole or not at all.
fn make(path: &Path) -> Result<()> {
    let failed = |e: std::io::Error| {
        let message = format!("the token file {} cannot be made", path.display());
        Error::new(Code::IoError, message).because(e)
    };
    let mut bytes = [0; BYTES];
    entropy(&mut bytes).map_err(failed)?;
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let new = path.with_extension("new");
    drop(std::fs::remove_file(&new));
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).map_err(failed)?;
    file.write_all(format!("{hex}\n").as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    std::fs::rename(&new, path).map_err(failed)
}

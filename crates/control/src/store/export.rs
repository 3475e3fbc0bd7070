//! The readable copy beside the store: written after every change, read back on demand.

use super::life::Identity;
use crate::error::{Code, Error, Result};
use crate::model::Model;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Copies that are kept because they are of more than the store has.
const MOST_KEPT: u32 = 99;

#[derive(Serialize)]
struct Copy<'a> {
    about: &'static str,
    schema: u64,
    #[serde(flatten)]
    identity: &'a Identity,
    #[serde(flatten)]
    model: &'a Model,
}

/// What a copy tells.
#[derive(Deserialize)]
pub(super) struct Found {
    pub(super) schema: u64,
    #[serde(flatten)]
    pub(super) identity: Identity,
    #[serde(flatten)]
    pub(super) model: Model,
}

/// Writes the copy so that the file at `path` is always whole: the former one or the new one. `wiped`: the former one is
/// overwritten.
pub(super) fn write(
    path: &Path,
    identity: &Identity,
    model: &Model,
    wiped: bool,
) -> io::Result<()> {
    let copy = Copy {
        about: "A copy of the configuration store for people. `weir serve --restore-from` makes a store of it.",
        schema: super::SCHEMA,
        identity,
        model,
    };
    let mut text = serde_json::to_vec_pretty(&copy)?;
    text.push(b'\n');
    let new = path.with_extension("json.new");
    // For its owner only: it has the wrapped keys of encrypted volumes.
    drop(fs::remove_file(&new));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(&text)?;
    file.sync_all()?;
    replace(&new, path, wiped)
}

/// Puts a file in the place of another one. `wiped`: that one is overwritten, after a crash by [`wipe_old`].
pub(super) fn replace(new: &Path, path: &Path, wiped: bool) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let old = old_name(path);
    if wiped && path.exists() {
        wipe_old(path)?;
        fs::hard_link(path, &old)?;
        sync_dir(dir)?;
    }
    fs::rename(new, path)?;
    sync_dir(dir)?;
    wipe_old(path)
}

fn old_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".old");
    PathBuf::from(name)
}

/// Overwrites and removes the file that another one has taken the place of, if it is there still.
pub(super) fn wipe_old(path: &Path) -> io::Result<()> {
    let old = old_name(path);
    let meta = match fs::symlink_metadata(&old) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        m => m?,
    };
    let Some(new) = fs::metadata(path).ok().filter(|m| m.len() > 0) else {
        // It may be all that there is.
        return Ok(());
    };
    if meta.is_file() && (new.dev(), new.ino()) != (meta.dev(), meta.ino()) {
        let mut file = OpenOptions::new().write(true).open(&old)?;
        let zeros = vec![0; 64 << 10];
        let mut left = meta.len();
        file.seek(SeekFrom::Start(0))?;
        while left > 0 {
            let n = left.min(zeros.len() as u64);
            file.write_all(zeros.get(..n as usize).unwrap_or_default())?;
            left -= n;
        }
        file.sync_all()?;
    }
    fs::remove_file(&old)?;
    sync_dir(path.parent().unwrap_or(Path::new(".")))
}

/// Reads a copy.
///
/// # Errors
/// It is not there, or none, or of a later version.
pub(super) fn read(path: &Path) -> Result<Found> {
    let wrong = |why: &dyn std::fmt::Display| {
        Error::new(Code::InvalidConfig, format!("{} cannot be read back", path.display()))
            .because(why)
            .hint("name a config.json that a daemon has written")
    };
    let text = fs::read(path).map_err(|e| wrong(&e))?;
    let found: Found = serde_json::from_slice(&text).map_err(|e| wrong(&e))?;
    if found.schema != super::SCHEMA {
        return Err(wrong(&format!("it has format {}, not {}", found.schema, super::SCHEMA)));
    }
    Ok(found)
}

/// Moves the copy at `path` out of the way if it is of another node, or has more in it than the store: what was done, and
/// whether the place is free now.
pub(super) fn keep_if_more(
    path: &Path,
    identity: &Identity,
    revision: u64,
) -> Option<(String, bool)> {
    if !path.exists() {
        return None;
    }
    let why = match read(path) {
        Ok(f) if !f.identity.node.is_empty() && f.identity.node != identity.node => {
            "it is of another node".to_string()
        }
        Ok(f) if f.model.revision > revision => {
            format!("it is of revision {}, the store of {revision}", f.model.revision)
        }
        Ok(_) => return None,
        Err(e) => format!("it makes no sense: {}", e.reason),
    };
    let name = |n: u32| path.with_extension(format!("json.{n}"));
    let free = (1..=MOST_KEPT).map(name).find(|p| !p.exists());
    let Some(to) = free else {
        let text = format!("{} is not the store's ({why}), and too many are kept", path.display());
        return Some((text, false));
    };
    Some(match fs::rename(path, &to) {
        Ok(()) => (format!("{} was kept as {}: {why}", path.display(), to.display()), true),
        Err(e) => (format!("{} is not the store's ({why}): {e}", path.display()), false),
    })
}

/// Makes new and renamed entries of a directory durable.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

//! The readable copy beside the store.

use crate::model::Model;
use serde::Serialize;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

#[derive(Serialize)]
struct Copy<'a> {
    about: &'static str,
    schema: u64,
    #[serde(flatten)]
    model: &'a Model,
}

/// Writes the copy so that the file at `path` is always whole: the former one or the new one.
pub(super) fn write(path: &Path, model: &Model) -> io::Result<()> {
    let copy = Copy {
        about: "A copy for people; weir itself does not read it.",
        schema: super::SCHEMA,
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
    fs::rename(&new, path)?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// Makes new and renamed entries of a directory durable.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

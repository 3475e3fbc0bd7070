//! `weir key`.

use super::output;
use clap::Subcommand;
use std::path::PathBuf;
use weir_control::{Code, Error};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a file with a new random key, for its owner only.
    #[command(after_help = "Example:\n  weir key new /etc/weir/db-03.key\n\n\
        Keep a copy somewhere else: without the key nobody can read the volume, ever.")]
    New {
        /// The file; it must not be there yet.
        path: PathBuf,
    },
}

impl Command {
    pub(crate) fn run(self, json: bool) -> anyhow::Result<()> {
        let Command::New { path } = self;
        // As `--key` wants it.
        let path = std::path::absolute(&path)
            .map_err(|e| Error::new(Code::IoError, "there is no such path").because(e))?;
        weir_control::keys::new_key_file(&path)?;
        let made = serde_json::json!({ "key": format!("file:{}", path.display()) });
        output::show(json, &made, |_| {
            format!("key written to {}; keep a copy somewhere else", path.display())
        })
    }
}

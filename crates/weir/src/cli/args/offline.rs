//! `weir check` and `weir dump`: tools that look at the devices of a protected pool without a daemon.

use crate::cli::parse;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `weir check`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  weir check --device /dev/nvme1n1 --device /dev/nvme2n1\n  \
    weir check -d /srv/a -d /srv/b --json\n  weir check -d /srv/a -d /srv/b --repair\n\nNothing is written without \
    --repair. Exit code 0: everything is as it should be; 1: it is not. The pool must not be in use by a daemon.")]
pub(crate) struct CheckArgs {
    /// A file or block device of the pool, also as file:PATH or block:PATH. Repeated: all of them, in any order.
    #[arg(long = "device", short = 'd', required = true, value_name = "PATH", value_parser = parse::device_path)]
    pub(crate) devices: Vec<PathBuf>,
    /// Look at what is there though devices are missing.
    #[arg(long)]
    pub(crate) force: bool,
    /// Give back blocks that are in use though nothing refers to them. Nothing is given back while a map cannot be read.
    #[arg(long, conflicts_with = "force")]
    pub(crate) repair: bool,
    /// From the global `--json`.
    #[arg(skip)]
    pub(crate) json: bool,
}

/// `weir dump`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  weir dump --device /srv/a label\n  weir dump -d /srv/a -d /srv/b datasets\n  \
    weir dump -d /srv/a block 66 --json\n  weir dump -d /srv/a -d /srv/b map 1 0\n\nNothing is written. docs/format.md says \
    what the fields mean."
)]
pub(crate) struct DumpArgs {
    /// A file or block device of the pool, also as file:PATH or block:PATH. Repeated: more of them, for what is not on the first.
    #[arg(long = "device", short = 'd', required = true, value_name = "PATH", value_parser = parse::device_path)]
    pub(crate) devices: Vec<PathBuf>,
    /// What to explain.
    #[command(subcommand)]
    pub(crate) what: Option<DumpWhat>,
    /// From the global `--json`.
    #[arg(skip)]
    pub(crate) json: bool,
}

/// What `weir dump` explains; the newest superblock when nothing is said.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum DumpWhat {
    /// Every copy of the label.
    #[command(after_help = "Example:\n  weir dump --device /srv/a label")]
    Label,
    /// The superblocks, the newest first.
    #[command(after_help = "Example:\n  weir dump --device /srv/a superblock")]
    Superblock,
    /// The pages of the log that count.
    #[command(after_help = "Example:\n  weir dump --device /srv/a log --old")]
    Log {
        /// Also those of earlier laps.
        #[arg(long)]
        old: bool,
    },
    /// The table of slabs.
    #[command(after_help = "Example:\n  weir dump --device /srv/a slab")]
    Slab,
    /// Volumes and snapshots.
    #[command(after_help = "Example:\n  weir dump --device /srv/a datasets")]
    Datasets,
    /// The way through the map of a dataset to a block of it.
    #[command(after_help = "Example:\n  weir dump --device /srv/a map 1 0")]
    Map {
        /// The dataset's number; `weir dump … datasets` shows it.
        dataset: u32,
        /// The block of 4096 bytes in it.
        #[arg(default_value_t = 0)]
        lba: u64,
    },
    /// Any block of the first device, by its number there.
    #[command(after_help = "Example:\n  weir dump --device /srv/a block 66")]
    Block {
        /// The block of 4096 bytes.
        number: u64,
    },
}

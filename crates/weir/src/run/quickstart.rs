//! `weir quickstart`.

use crate::cli::args::QuickstartArgs;
use std::process::ExitCode;

/// Runs the command.
pub(crate) fn quickstart(args: QuickstartArgs) -> anyhow::Result<ExitCode> {
    let _ = args;
    Err(super::absent("quickstart"))
}

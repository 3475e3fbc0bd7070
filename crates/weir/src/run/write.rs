//! `weir write`.

use crate::cli::args::WriteArgs;
use std::process::ExitCode;

/// Runs the command.
pub(crate) fn write(args: WriteArgs) -> anyhow::Result<ExitCode> {
    let _ = args;
    Err(super::absent("write"))
}

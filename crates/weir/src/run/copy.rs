//! `weir copy`.

use crate::cli::args::CopyArgs;
use std::process::ExitCode;

/// Runs the command.
pub(crate) fn copy(args: CopyArgs) -> anyhow::Result<ExitCode> {
    let _ = args;
    Err(super::absent("copy"))
}

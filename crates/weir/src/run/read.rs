//! `weir read`.

use crate::cli::args::ReadArgs;
use std::process::ExitCode;

/// Runs the command.
pub(crate) fn read(args: ReadArgs) -> anyhow::Result<ExitCode> {
    let _ = args;
    Err(super::absent("read"))
}

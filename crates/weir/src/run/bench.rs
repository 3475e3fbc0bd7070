//! `weir bench`.

use crate::cli::args::BenchArgs;
use std::process::ExitCode;

/// Runs the command.
pub(crate) fn bench(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let _ = args;
    Err(super::absent("bench"))
}

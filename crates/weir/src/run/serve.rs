//! `weir serve`.

use crate::cli::args::ServeArgs;
use std::process::ExitCode;

/// Runs the command.
pub(crate) fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    // What is wrong with the configuration is said first, whatever the build can do.
    let config = args.config()?;
    config.token()?;
    Err(super::absent("serve"))
}

//! `weir inquiry`.

use crate::cli::args::InquiryArgs;
use std::process::ExitCode;

/// Runs the command.
pub(crate) fn inquiry(args: InquiryArgs) -> anyhow::Result<ExitCode> {
    let _ = args;
    Err(super::absent("inquiry"))
}

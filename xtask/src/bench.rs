//! `cargo xtask bench`: a benchmark scenario of `weir bench`, in the build that users run.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::args::Args;
use crate::process;
use crate::tally::Tally;

const LIMIT: Duration = Duration::from_secs(6 * 3600);

pub(crate) fn run(_root: &Path, args: &[String]) -> Result<Tally> {
    let mut args = Args::new(args);
    let mut command = process::cargo();
    command.args(["run", "--release", "--package", "weir", "--", "bench", "scenario"]);
    if args.flag("--list") {
        command.arg("--list");
    } else {
        command.arg(args.positional().context("name a scenario; `--list` names them")?);
    }
    let done = process::run(command.args(args.rest()), LIMIT)?;
    Ok(Tally::of_program(&done.output, done.success))
}

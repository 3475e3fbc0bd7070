//! `cargo xtask lab`: scenarios against a stock Linux kernel, in a virtual machine.
//!
//! Builds the program and hands over to `lab/run`, which knows the scenarios and their options
//! (`docs/lab.md`) and works without this tool too.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;
use crate::tally::Tally;

const BUILD_LIMIT: Duration = Duration::from_secs(3600);
/// Above the limits that `lab/run` keeps for each scenario; the first run also fetches and builds the
/// machine's image.
const RUN_LIMIT: Duration = Duration::from_secs(4 * 3600);

pub(crate) fn run(root: &Path, args: &[String]) -> Result<Tally> {
    if args.is_empty() {
        bail!("name a scenario, or `all`; `--list` names them");
    }
    let list = args.iter().any(|arg| arg == "--list");
    // Nothing of ours runs against the kernel's own target.
    let foreign = args.windows(2).any(|pair| pair == ["--target", "lio"]);
    if !list && !foreign {
        build(root)?;
    }
    let done = process::run(Command::new(root.join("lab/run")).args(args), RUN_LIMIT)?;
    if list && done.success {
        return Ok(Tally { passed: done.output.lines().count() as u64, failed: 0 });
    }
    let tally = counts(&done.output).context("lab/run ended without its counts")?;
    if done.success != (tally.failed == 0) {
        bail!("lab/run's exit status and its counts disagree");
    }
    Ok(tally)
}

/// Builds the program where `lab/run` expects it.
fn build(root: &Path) -> Result<()> {
    let mut command = process::cargo();
    command.args(["build", "--release", "--package", "weir", "--bin", "weir"]);
    command.arg("--target-dir").arg(root.join("target"));
    if !process::run(&mut command, BUILD_LIMIT)?.success {
        bail!("the program could not be built");
    }
    Ok(())
}

/// The counts in the last line of `output`, `N passed, N failed`.
fn counts(output: &str) -> Option<Tally> {
    let (passed, failed) = output.lines().last()?.split_once(" passed, ")?;
    let failed = failed.strip_suffix(" failed")?;
    Some(Tally { passed: passed.parse().ok()?, failed: failed.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_counts_of_the_last_line() {
        let tally =
            counts("RESULT srp-siw ok: x\n9 passed, 9 failed\n12 passed, 1 failed\n").unwrap();
        assert_eq!((tally.passed, tally.failed), (12, 1));
        for other in [
            "",
            "RESULT srp-siw ok: x\n",
            "1 passed\n",
            "1 passed, x failed\n",
            "1 passed, 2 failed\nend\n",
        ] {
            assert!(counts(other).is_none(), "{other:?}");
        }
    }

    #[test]
    fn a_scenario_must_be_named() {
        assert!(run(Path::new("/nowhere"), &[]).is_err());
    }
}

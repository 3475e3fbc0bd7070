//! `cargo xtask kill` and `cargo xtask powercut`: the daemon is killed, or its disks lose power, in the middle of writes,
//! many times over (`crates/weir/tests/kill.rs`, `powercut.rs`).

use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;
use crate::tally::Tally;
use crate::test::counts;

/// The program is built first.
const BASE_LIMIT: Duration = Duration::from_secs(3600);
const CYCLE_LIMIT: Duration = Duration::from_secs(60);

/// Runs the test with this name of the package `weir`; what it counts is what the command counts. A test that cannot be run
/// on this machine has failed here, where it was asked for by name.
pub(crate) fn run(test: &str, args: &[String]) -> Result<Tally> {
    let cycles: u32 = match args {
        [] => 200,
        [flag, n] if flag == "--cycles" => {
            n.parse().with_context(|| format!("`{n}` is no number of cycles"))?
        }
        _ => bail!("usage: cargo xtask {test} [--cycles N]"),
    };
    let mut command = process::cargo();
    command.args(["test", "--release", "--package", "weir", "--test", test, "--", "--nocapture"]);
    command.env(format!("WEIR_{}_CYCLES", test.to_uppercase()), cycles.to_string());
    let done = process::run(&mut command, BASE_LIMIT + CYCLE_LIMIT * cycles)?;
    let found = counts::of_cargo_test(&done.output);
    let mut tally = found.tally;
    tally.failed += found.ignored;
    if tally.failed == 0 && (!done.success || tally.passed == 0) {
        tally.failed = 1;
    }
    Ok(tally)
}

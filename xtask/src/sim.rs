//! `cargo xtask sim`: the simulation suites, run by the package `weir-sim-suites`.
//!
//! What that program promises: `--list` prints the names of its suites, one on a line;
//! `SUITE --seeds N --start S` runs the seeds S to S+N-1, prints of every failing seed the command that
//! replays it, ends with the line `N passed, N failed` and exits with 0 only when no seed failed.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::process;
use crate::tally::Tally;

/// The package with the suites.
pub(crate) const PACKAGE: &str = "weir-sim-suites";
/// Long runs are for the night, but they end.
const LIMIT: Duration = Duration::from_secs(24 * 3600);

pub(crate) fn run(args: &[String]) -> Result<Tally> {
    let mut args = Args::new(args);
    if args.flag("--list") {
        args.end()?;
        let suites = list(&mut command())?;
        println!("{}", suites.join("\n"));
        return Ok(Tally { passed: suites.len() as u64, failed: 0 });
    }
    let suite = args.positional().context("name a suite, or `all`; `--list` names them")?;
    if let Some(bug) = args.option::<String>("--planted")? {
        return planted(&suite, &bug, &args.rest());
    }
    let seeds: u64 = args.option("--seeds")?.context("--seeds N is missing")?;
    let start: u64 = args.option("--start")?.unwrap_or(0);
    if seeds == 0 {
        bail!("--seeds 0 would show nothing");
    }
    let rest = args.rest();
    let suites = if suite == "all" { list(&mut command())? } else { vec![suite] };
    let mut tally = Tally::default();
    for suite in &suites {
        tally += run_suite(suite, seeds, start, &rest)?;
    }
    Ok(tally)
}

/// Runs a suite against bugs on purpose. The program's last line, which counts those caught and missed, is
/// the last line of this command, too.
fn planted(suite: &str, bug: &str, rest: &[String]) -> Result<Tally> {
    let mut command = process::cargo();
    command.args(["run", "--quiet", "--profile", "sim", "--features", "planted"]);
    command.args(["--package", PACKAGE, "--", suite, "--planted", bug]).args(rest);
    let done = process::run(&mut command, LIMIT)?;
    std::process::exit(i32::from(!done.success));
}

/// Names of all suites of the program that `command` runs.
pub(crate) fn list(command: &mut Command) -> Result<Vec<String>> {
    let text = process::capture(command.arg("--list"))?;
    let suites: Vec<String> =
        text.lines().map(|line| line.trim().to_string()).filter(|line| !line.is_empty()).collect();
    if suites.is_empty() {
        bail!("{PACKAGE} --list names no suite");
    }
    Ok(suites)
}

/// Has `command`, which runs the suites, run one of them.
pub(crate) fn seeds(command: &mut Command, suite: &str, seeds: u64, start: u64) {
    command.args([suite, "--seeds", &seeds.to_string(), "--start", &start.to_string()]);
}

/// Runs one suite; the counts are of seeds.
fn run_suite(suite: &str, count: u64, start: u64, rest: &[String]) -> Result<Tally> {
    println!("sim {suite}: seeds {start} to {}", start.saturating_add(count - 1));
    let mut command = command();
    seeds(&mut command, suite, count, start);
    let done = process::run(command.args(rest), LIMIT)?;
    Ok(Tally::of_program(&done.output, done.success))
}

/// The program: optimised, with every check of the language.
fn command() -> Command {
    let mut command = process::cargo();
    command.args(["run", "--quiet", "--profile", "sim", "--package", PACKAGE, "--"]);
    command
}

//! `cargo xtask sim`: the simulation suites, run by the package `weir-sim-suites`.
//!
//! What that program promises: `--list` prints the names of its suites, one on a line;
//! `SUITE --seeds N --start S` runs the seeds S to S+N-1, prints of every failing seed the command that
//! replays it, ends with the line `N passed, N failed` and exits with 0 only when no seed failed.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::metadata;
use crate::process;
use crate::tally::Tally;

/// The package with the suites.
const PACKAGE: &str = "weir-sim-suites";
/// Long runs are for the night, but they end.
const LIMIT: Duration = Duration::from_secs(24 * 3600);

/// Which build of the suites runs.
#[derive(Clone, Copy)]
pub(crate) enum Build {
    /// As tests are built: nothing is compiled a second time for a short run.
    Dev,
    /// Optimised, with every check of the language: for many seeds.
    Sim,
}

pub(crate) fn run(root: &Path, args: &[String]) -> Result<Tally> {
    let mut args = Args::new(args);
    if !present(root)? {
        bail!("this workspace has no package {PACKAGE}: there are no suites to run");
    }
    if args.flag("--list") {
        args.end()?;
        let suites = list(Build::Sim)?;
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
    let suites = if suite == "all" { list(Build::Sim)? } else { vec![suite] };
    let mut tally = Tally::default();
    for suite in &suites {
        tally += run_suite(Build::Sim, suite, seeds, start, &rest, LIMIT)?;
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

/// Whether this workspace has suites at all.
pub(crate) fn present(root: &Path) -> Result<bool> {
    let packages = metadata::packages(&root.join("Cargo.toml"), false)?;
    Ok(packages.iter().any(|package| package.name == PACKAGE))
}

/// Names of all suites.
pub(crate) fn list(build: Build) -> Result<Vec<String>> {
    let mut command = command(build);
    command.arg("--list");
    let text = process::capture(&mut command)?;
    let suites: Vec<String> =
        text.lines().map(|line| line.trim().to_string()).filter(|line| !line.is_empty()).collect();
    if suites.is_empty() {
        bail!("{PACKAGE} --list names no suite");
    }
    Ok(suites)
}

/// Runs one suite; the counts are of seeds.
pub(crate) fn run_suite(
    build: Build,
    suite: &str,
    seeds: u64,
    start: u64,
    rest: &[String],
    limit: Duration,
) -> Result<Tally> {
    println!("sim {suite}: seeds {start} to {}", start.saturating_add(seeds - 1));
    let mut command = command(build);
    command.args([suite, "--seeds", &seeds.to_string(), "--start", &start.to_string()]).args(rest);
    let done = process::run(&mut command, limit)?;
    Ok(Tally::of_program(&done.output, done.success))
}

fn command(build: Build) -> Command {
    let mut command = process::cargo();
    command.args(["run", "--quiet"]);
    if let Build::Sim = build {
        command.args(["--profile", "sim"]);
    }
    command.args(["--package", PACKAGE, "--"]);
    command
}

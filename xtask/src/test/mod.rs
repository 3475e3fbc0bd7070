//! `cargo xtask test`: everything a change must pass, from a clean clone.

pub(crate) mod counts;
mod links;
mod prerequisites;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::fuzz;
use crate::process;
use crate::sim;
use crate::tally::Tally;
use crate::tidy;

const MINUTE: Duration = Duration::from_secs(60);
/// Of a step that builds and runs; the whole must end well within an hour on two cores.
const STEP_LIMIT: Duration = Duration::from_secs(40 * 60);
const SIM_SEEDS: u64 = 50;
const FUZZ_RUNS: u64 = 200_000;

/// What one step found: counts, and a remark for the summary.
struct Outcome {
    tally: Tally,
    remark: String,
}

impl Outcome {
    /// A step that is not made of tests counts as one.
    fn step(passed: bool) -> Result<Outcome> {
        Ok(Outcome { tally: Tally::one(passed), remark: String::new() })
    }
}

type Step = fn(&Path) -> Result<Outcome>;

/// In this order: what fails soonest first.
const STEPS: &[(&str, Step)] = &[
    ("prerequisites", |root| Outcome::step(prerequisites::check(root)?)),
    ("tidy", |root| Outcome::step(tidy::run(root)?)),
    ("fmt", fmt),
    ("clippy", clippy),
    ("tests", tests),
    ("sim", short_sim),
    ("fuzz", short_fuzz),
    ("docs", docs),
];

pub(crate) fn run(root: &Path, wanted: &[String]) -> Result<Tally> {
    for name in wanted {
        if !STEPS.iter().any(|(step, _)| step == name) {
            let names: Vec<&str> = STEPS.iter().map(|(step, _)| *step).collect();
            bail!("no step `{name}`; there are: {}", names.join(" "));
        }
    }
    let chosen: Vec<&(&str, Step)> = STEPS
        .iter()
        .filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|w| w == name))
        .collect();
    let started = Instant::now();
    let mut total = Tally::default();
    let mut summary = Vec::new();
    for (number, (name, step)) in chosen.iter().enumerate() {
        println!("\n== {}/{} {name}", number + 1, chosen.len());
        let step_started = Instant::now();
        let outcome = step(root).unwrap_or_else(|error| {
            eprintln!("{name}: {error:#}");
            Outcome { tally: Tally::one(false), remark: format!("{error:#}") }
        });
        let seconds = step_started.elapsed().as_secs_f64();
        let verdict = if outcome.tally.failed == 0 { "ok" } else { "FAILED" };
        println!("-- {name}: {verdict}, {seconds:.1} s");
        total += outcome.tally;
        let line = format!(
            "{name:<14} {verdict:<7} {seconds:>7.1} s   {} {}",
            outcome.tally, outcome.remark
        );
        summary.push(line.trim_end().to_string());
    }
    println!("\n== summary, {:.0} s", started.elapsed().as_secs_f64());
    println!("{}", summary.join("\n"));
    Ok(total)
}

fn cargo_step(args: &[&str], env: Option<(&str, &str)>) -> Result<bool> {
    let mut command = process::cargo();
    command.args(args).envs(env);
    Ok(process::run(&mut command, STEP_LIMIT)?.success)
}

fn fmt(_root: &Path) -> Result<Outcome> {
    let ours = cargo_step(&["fmt", "--all", "--check"], None)?;
    let fuzz = cargo_step(&["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"], None)?;
    Outcome::step(ours && fuzz)
}

fn clippy(_root: &Path) -> Result<Outcome> {
    Outcome::step(cargo_step(
        &[
            "clippy",
            "--quiet",
            "--workspace",
            "--all-targets",
            "--keep-going",
            "--",
            "-D",
            "warnings",
        ],
        None,
    )?)
}

/// Unit, property, integration and documentation tests.
fn tests(_root: &Path) -> Result<Outcome> {
    let mut command = process::cargo();
    command.args(["test", "--workspace", "--no-fail-fast"]);
    let done = process::run(&mut command, STEP_LIMIT)?;
    let found = counts::of_cargo_test(&done.output);
    let mut tally = found.tally;
    let mut remark = format!("in {} programs", found.programs);
    if found.ignored > 0 {
        remark += &format!(", {} ignored", found.ignored);
    }
    if done.timed_out {
        remark += ", time was up";
    }
    if tally.passed + tally.failed == 0 {
        remark += ", no test ran";
    }
    // Tests that did not compile, or a program that died, leave no count.
    if tally.failed == 0 && (!done.success || tally.passed == 0) {
        tally.failed = 1;
    }
    Ok(Outcome { tally, remark })
}

fn short_sim(root: &Path) -> Result<Outcome> {
    if !sim::present(root)? {
        println!("sim: no suites in this build");
        let remark = "no suites in this build".to_string();
        return Ok(Outcome { tally: Tally::default(), remark });
    }
    let mut seeds = Tally::default();
    let suites = sim::list(sim::Build::Dev)?;
    for suite in &suites {
        seeds += sim::run_suite(sim::Build::Dev, suite, SIM_SEEDS, 0, &[], 5 * MINUTE)?;
    }
    let remark = format!("{} suites: {seeds}", suites.len());
    Ok(Outcome { tally: Tally::one(seeds.failed == 0 && seeds.passed > 0), remark })
}

fn short_fuzz(root: &Path) -> Result<Outcome> {
    // A fixed seed and one process: the same inputs on every machine.
    let max_time = Some(MINUTE / 2);
    let targets =
        fuzz::run_short(root, &fuzz::Effort { runs: FUZZ_RUNS, jobs: 1, seed: 1, max_time })?;
    Ok(Outcome {
        tally: Tally::one(targets.failed == 0 && targets.passed > 0),
        remark: format!("targets: {targets}"),
    })
}

fn docs(root: &Path) -> Result<Outcome> {
    let built = cargo_step(
        &["doc", "--quiet", "--workspace", "--no-deps"],
        Some(("RUSTDOCFLAGS", "-D warnings")),
    )?;
    Outcome::step(links::check(root)? && built)
}

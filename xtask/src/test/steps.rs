//! The steps of the test command, as the jobs that they begin with.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use super::crew::{Ended, Job, Takes};
use super::{counts, links, prerequisites, programs};
use crate::metadata::Package;
use crate::process;
use crate::tally::Tally;
use crate::{fuzz, sim};

/// Of a job that builds; the whole must end well within an hour on two cores.
const BUILD_LIMIT: Duration = Duration::from_secs(40 * 60);
/// Of a suite, or a fuzz target. One that is cut has failed: fewer seeds or runs than asked for show less.
const RUN_LIMIT: Duration = Duration::from_secs(15 * 60);
const SIM_SEEDS: u64 = 50;
const FUZZ_RUNS: u64 = 200_000;

/// Names of all steps. All wait for the first.
pub(crate) const NAMES: &[&str] =
    &["prerequisites", "tidy", "fmt", "clippy", "tests", "sim", "fuzz", "docs"];

/// Target directories, each of which cargo locks while it builds.
const MAIN: Takes = Takes::Build("target");
const FUZZ: Takes = Takes::Build("fuzz/target");

/// What the jobs of one run know.
pub(crate) struct Plan {
    pub(crate) root: PathBuf,
    /// Whose tests are run.
    pub(crate) packages: Vec<Package>,
    /// Steps that are run.
    pub(crate) steps: Vec<&'static str>,
}

impl Plan {
    fn has(&self, step: &str) -> bool {
        self.steps.contains(&step)
    }
}

/// What must be here before anything else can run.
pub(crate) fn before(plan: &Arc<Plan>) -> Vec<Job> {
    if !plan.has("prerequisites") {
        return Vec::new();
    }
    let root = plan.root.clone();
    vec![job("prerequisites", "", Takes::Core, move || {
        let tally = Tally::one(prerequisites::check(&root)?);
        Ok(Ended { tally, ..Ended::default() })
    })]
}

/// The jobs that all others follow from. What holds a lock for long comes before what is short, and of those in
/// one target directory the one that fails soonest is first.
pub(crate) fn first(plan: &Arc<Plan>) -> Vec<Job> {
    let mut jobs = Vec::new();
    if plan.has("clippy") {
        jobs.push(clippy());
    }
    if plan.has("fuzz") {
        jobs.push(fuzz_build(plan));
    }
    if plan.has("tidy") {
        jobs.push(job("tidy", "", Takes::Core, || ours("tidy", &["tidy"], BUILD_LIMIT)));
    }
    if plan.has("fmt") {
        jobs.push(job("fmt", "", Takes::Core, fmt));
    }
    if plan.has("tests") {
        jobs.push(tests_build(plan));
        jobs.push(job("tests", "(documentation)", MAIN, doc_tests));
    } else if plan.has("sim") {
        jobs.push(sim_build());
    }
    if plan.has("docs") {
        let root = plan.root.clone();
        jobs.push(job("docs", "", MAIN, move || docs(&root)));
    }
    jobs
}

fn job(
    step: &'static str,
    title: &str,
    takes: Takes,
    work: impl FnOnce() -> Result<Ended> + Send + 'static,
) -> Job {
    Job { step, title: title.into(), takes, work: Box::new(work) }
}

/// Runs cargo; that it ended well counts as one.
fn cargo(args: &[&str], env: Option<(&str, &str)>) -> Result<Ended> {
    let mut command = process::cargo();
    command.args(args).envs(env);
    let (done, text) = process::gather(&mut command, BUILD_LIMIT)?;
    Ok(Ended { tally: Tally::one(done.success), text, ..Ended::default() })
}

/// Runs another command of this tool, whose output is then in one piece; `again` is how it is called.
fn ours(again: &str, args: &[&str], limit: Duration) -> Result<Ended> {
    let mut command = Command::new(std::env::current_exe().context("where this tool is")?);
    command.args(args);
    let (done, mut text) = process::gather(&mut command, limit)?;
    let tally = Tally::of_program(&done.output, done.success);
    if tally.failed > 0 {
        text += &format!("again: cargo xtask {again}\n");
    }
    Ok(Ended { tally, text, ..Ended::default() })
}

fn fmt() -> Result<Ended> {
    let mut ended = cargo(&["fmt", "--all", "--check"], None)?;
    let fuzz = cargo(&["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"], None)?;
    ended.tally = Tally::one(ended.tally.failed + fuzz.tally.failed == 0);
    ended.text += &fuzz.text;
    Ok(ended)
}

fn clippy() -> Job {
    const ARGS: &[&str] = &["clippy", "--quiet", "--workspace", "--all-targets", "--keep-going"];
    job("clippy", "", MAIN, || cargo(&[ARGS, &["--", "-D", "warnings"]].concat(), None))
}

/// Builds unit, property and integration tests of the whole workspace, whoever's are run: other packages at once
/// would be other features, and so everything built anew.
fn tests_build(plan: &Arc<Plan>) -> Job {
    let plan = plan.clone();
    job("tests", "build", MAIN, move || {
        let (mut ended, built) = build(&["test", "--workspace", "--no-run"])?;
        if ended.tally.failed > 0 {
            return Ok(ended);
        }
        // Only tests count here.
        ended.tally = Tally::default();
        let packages: Vec<&Package> = plan.packages.iter().collect();
        ended.next = programs::jobs(&built, &packages);
        ended.text += &format!("{} programs\n", ended.next.len());
        if plan.has("sim") {
            ended.next.extend(sim_jobs(&built)?);
        }
        Ok(ended)
    })
}

fn sim_build() -> Job {
    job("sim", "build", MAIN, || {
        let (mut ended, built) = build(&["build", "--package", sim::PACKAGE])?;
        if ended.tally.failed == 0 {
            ended.tally = Tally::default();
            ended.next = sim_jobs(&built)?;
        }
        Ok(ended)
    })
}

/// Runs cargo, and finds what executables it built.
fn build(args: &[&str]) -> Result<(Ended, Vec<programs::Program>)> {
    let mut command = process::cargo();
    command.args(args).arg("--message-format=json-render-diagnostics");
    let (done, text) = process::gather(&mut command, BUILD_LIMIT)?;
    let text = text.lines().filter(|line| !line.starts_with('{')).map(|line| format!("{line}\n"));
    let ended = Ended { tally: Tally::one(done.success), text: text.collect(), ..Ended::default() };
    Ok((ended, programs::of_messages(&done.output)?))
}

/// A job for every suite. They run as tests are built: nothing is compiled a second time for a short run.
fn sim_jobs(built: &[programs::Program]) -> Result<Vec<Job>> {
    let suites = programs::executable(built, sim::PACKAGE).context("the suites were not built")?;
    let names = sim::list(&mut Command::new(&suites))?;
    let jobs = names.into_iter().map(|name| {
        let suites = suites.clone();
        let title = name.clone();
        job("sim", &title, Takes::Core, move || {
            let mut command = Command::new(suites);
            sim::seeds(&mut command, &name, SIM_SEEDS, 0);
            let (done, text) = process::gather(&mut command, RUN_LIMIT)?;
            let seeds = Tally::of_program(&done.output, done.success);
            let passed = seeds.failed == 0 && seeds.passed >= SIM_SEEDS;
            Ok(Ended { tally: Tally::one(passed), text, ..Ended::default() })
        })
    });
    Ok(jobs.collect())
}

fn fuzz_build(plan: &Arc<Plan>) -> Job {
    let root = plan.root.clone();
    job("fuzz", "build", FUZZ, move || {
        let mut ended = ours("fuzz --build", &["fuzz", "--build"], BUILD_LIMIT)?;
        if ended.tally.failed == 0 {
            ended.tally = Tally::default();
            ended.next = fuzz::targets(&root)?.iter().map(|target| fuzz_job(target)).collect();
        }
        Ok(ended)
    })
}

/// A fixed seed and one process: the same inputs on every machine, and all of them.
fn fuzz_job(target: &str) -> Job {
    let args = format!("fuzz {target} --runs {FUZZ_RUNS} --jobs 1 --seed 1");
    job("fuzz", target, Takes::Core, move || {
        let words: Vec<&str> = args.split(' ').collect();
        ours(&args, &words, RUN_LIMIT)
    })
}

fn doc_tests() -> Result<Ended> {
    let mut command = process::cargo();
    command.args(["test", "--doc", "--workspace", "--no-fail-fast"]);
    let (done, text) = process::gather(&mut command, BUILD_LIMIT)?;
    let tally = programs::judge(&counts::of_cargo_test(&done.output), &done);
    Ok(Ended { tally, text, ..Ended::default() })
}

fn docs(root: &Path) -> Result<Ended> {
    let args = ["doc", "--quiet", "--workspace", "--no-deps"];
    let mut ended = cargo(&args, Some(("RUSTDOCFLAGS", "-D warnings")))?;
    let (linked, said) = links::check(root)?;
    ended.tally = Tally::one(linked && ended.tally.failed == 0);
    ended.text += &said;
    Ok(ended)
}

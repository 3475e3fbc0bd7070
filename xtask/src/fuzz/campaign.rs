//! Running fuzz targets and judging what they did.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::report::{Report, pulse};
use super::{CANARY, Places};
use crate::process;
use crate::tally::Tally;

/// The planted bug is found after some millions of executions; blind luck would need 2^64 and more.
const CANARY_RUNS: u64 = 100_000_000;
/// Longest time for one input, in seconds, and most memory, in MiB: more is a failure.
const INPUT_SECONDS: u32 = 10;
const MEMORY_MIB: u32 = 2048;
/// Time between two lines on how a long run does.
const PROGRESS: Duration = Duration::from_secs(30);

/// How much to do for every target.
#[derive(Clone, Debug)]
pub(crate) struct Effort {
    /// Executions, over all jobs.
    pub(crate) runs: u64,
    /// Processes that share them.
    pub(crate) jobs: u64,
    /// First job's seed, the next has one more; 0: libFuzzer picks them and the log tells.
    pub(crate) seed: u32,
    /// Stop after this time with fewer runs.
    pub(crate) max_time: Option<Duration>,
}

/// Runs the targets one after the other; the counts are of targets.
pub(crate) fn run_all(places: &Places, targets: &[String], effort: &Effort) -> Result<Tally> {
    let mut tally = Tally::default();
    for target in targets {
        let passed = if target == CANARY { canary(places)? } else { one(places, target, effort)? };
        tally += Tally::one(passed);
    }
    Ok(tally)
}

/// One process and where its output goes.
struct Job {
    child: Child,
    log: File,
    ended: bool,
    success: bool,
}

impl Job {
    fn start(places: &Places, target: &str, number: u64, options: &[String]) -> Result<Job> {
        let path = places.log(target, number);
        let log = File::create_new(&path).with_context(|| path.display().to_string())?;
        let mut command = Command::new(places.bins.join(target));
        command.args(options);
        let artifacts = places.artifacts(target);
        command.arg(format!("-artifact_prefix={}/", artifacts.display()));
        command.arg(format!("-timeout={INPUT_SECONDS}"));
        command.arg(format!("-rss_limit_mb={MEMORY_MIB}"));
        command.arg("-print_final_stats=1");
        command.arg(places.found(target));
        if places.seeds(target).is_dir() {
            command.arg(places.seeds(target));
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("cannot run fuzz target {target}"))?;
        Ok(Job { child, log: File::open(&path)?, ended: false, success: false })
    }

    fn poll(&mut self) -> Result<bool> {
        if !self.ended
            && let Some(status) = self.child.try_wait()?
        {
            self.ended = true;
            self.success = status.success();
        }
        Ok(self.ended)
    }

    /// What it printed; all of it, or the last part.
    fn text(&mut self, last: Option<u64>) -> Result<String> {
        let length = self.log.metadata()?.len();
        self.log.seek(SeekFrom::Start(last.map_or(0, |last| length.saturating_sub(last))))?;
        let mut bytes = Vec::new();
        self.log.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.ended {
            process::kill_tree(&mut self.child);
            let _ = self.child.wait();
        }
    }
}

fn make_dirs(places: &Places, target: &str) -> Result<()> {
    let logs = places.root.join("fuzz/target/logs");
    for dir in [places.found(target), places.artifacts(target), logs.clone()] {
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    }
    let old = format!("{target}-");
    for entry in fs::read_dir(logs)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(&old) {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// A target that must survive everything. Whether it did.
fn one(places: &Places, target: &str, effort: &Effort) -> Result<bool> {
    make_dirs(places, target)?;
    let started = Instant::now();
    let jobs = effort.jobs.min(effort.runs);
    let mut running = Vec::new();
    for number in 0..jobs {
        let share = effort.runs / jobs + u64::from(number < effort.runs % jobs);
        let seed = if effort.seed == 0 { 0 } else { u64::from(effort.seed) + number };
        let mut options = vec![format!("-runs={share}"), format!("-seed={seed}")];
        // Jobs tell each other of what they find through the folder.
        options.push(format!("-reload={}", u8::from(jobs > 1)));
        if let Some(time) = effort.max_time {
            options.push(format!("-max_total_time={}", time.as_secs().max(1)));
        }
        running.push(Job::start(places, target, number, &options)?);
    }
    watch(target, &mut running)?;
    let mut total = Report::default();
    let mut passed = true;
    for (number, job) in running.iter_mut().enumerate() {
        let report = Report::parse(&job.text(None)?);
        passed &= judge(places, target, number as u64, job.success, &report);
        total.executions += report.executions;
        total.coverage = total.coverage.max(report.coverage);
        total.counters = report.counters;
    }
    if passed && effort.max_time.is_none() && total.executions < effort.runs {
        println!("fuzz {target}: only {} of {} runs were made", total.executions, effort.runs);
        passed = false;
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "fuzz {target}: {}, {} runs in {seconds:.0} s ({:.0}/s, {jobs} jobs), {} of {} edges, corpus {}",
        if passed { "clean" } else { "FAILED" },
        total.executions,
        total.executions as f64 / seconds,
        total.coverage,
        total.counters,
        count(&places.found(target)) + count(&places.seeds(target)),
    );
    Ok(passed)
}

/// Waits for all jobs; says every now and then how they do.
fn watch(target: &str, jobs: &mut [Job]) -> Result<()> {
    let mut said = Instant::now();
    loop {
        let mut left = 0;
        for job in jobs.iter_mut() {
            left += usize::from(!job.poll()?);
        }
        if left == 0 {
            return Ok(());
        }
        if said.elapsed() > PROGRESS {
            said = Instant::now();
            let (mut executions, mut coverage) = (0, 0);
            for job in jobs.iter_mut() {
                let tail = job.text(Some(4096))?;
                if let Some((e, c)) = tail.lines().rev().find_map(pulse) {
                    executions += e;
                    coverage = c.max(coverage);
                }
            }
            println!("fuzz {target}: {executions} runs so far, {coverage} edges");
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Whether one process found nothing; if it found something, says what and how to see it again.
fn judge(places: &Places, target: &str, job: u64, success: bool, report: &Report) -> bool {
    if report.counters == 0 {
        println!("fuzz {target}: the program has no coverage counters, the run means nothing");
        return false;
    }
    if success && report.artifact.is_none() {
        return true;
    }
    println!(
        "fuzz {target}: FAILED: {}",
        report.reason.as_deref().unwrap_or("no reason was printed")
    );
    let log = places.log(target, job);
    println!("  log:    {}", relative(places, &log.display().to_string()));
    match &report.artifact {
        Some(path) => {
            let path = relative(places, path);
            println!("  replay: cargo xtask fuzz {target} --replay {path}");
        }
        None => println!("  no input was written"),
    }
    false
}

fn relative(places: &Places, path: &str) -> String {
    let root = format!("{}/", places.root.display());
    path.strip_prefix(&root).unwrap_or(path).to_string()
}

/// The target with the planted bug. It must be found, from nothing, or coverage does not guide.
fn canary(places: &Places) -> Result<bool> {
    let found = places.found(CANARY);
    let _ = fs::remove_dir_all(&found);
    make_dirs(places, CANARY)?;
    let started = Instant::now();
    let options = [format!("-runs={CANARY_RUNS}"), "-seed=1".to_string()];
    let mut jobs = [Job::start(places, CANARY, 0, &options)?];
    watch(CANARY, &mut jobs)?;
    let report = Report::parse(&jobs[0].text(None)?);
    let solved = !jobs[0].success
        && report.artifact.is_some()
        && report.reason.as_deref().is_some_and(|reason| reason.contains("canary found"));
    let seconds = started.elapsed().as_secs_f64();
    if solved {
        // Only real failures stay.
        let _ = fs::remove_dir_all(places.artifacts(CANARY));
        println!(
            "fuzz {CANARY}: the planted bug was found after {} runs, {seconds:.1} s: coverage guides",
            report.executions
        );
    } else {
        println!(
            "fuzz {CANARY}: FAILED: the planted bug was not found in {} runs: \
             no other target's result can be believed (log: fuzz/target/logs/{CANARY}-0.log)",
            report.executions
        );
    }
    Ok(solved)
}

fn count(dir: &Path) -> usize {
    fs::read_dir(dir).map_or(0, Iterator::count)
}

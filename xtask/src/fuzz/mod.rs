//! `cargo xtask fuzz`: coverage-guided fuzzing on the stable compiler.
//!
//! Targets are the executables of the workspace `fuzz/`. A run starts from the checked-in inputs in
//! `fuzz/corpus/TARGET` and keeps what it finds in `fuzz/target/corpus/TARGET`; an input that makes
//! the target fail goes to `fuzz/artifacts/TARGET`.

mod build;
mod campaign;
mod report;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::metadata;
use crate::process;
use crate::tally::Tally;

pub(crate) use build::compiler_missing;
use campaign::Effort;

/// The target with a planted bug: it passes when the bug is found.
const CANARY: &str = "canary";
const DEFAULT_RUNS: u64 = 1_000_000;

/// Where everything of fuzzing lies.
struct Places {
    root: PathBuf,
    /// Folder with the executables.
    bins: PathBuf,
}

impl Places {
    fn new(root: &Path) -> Result<Places> {
        let bins = root.join("fuzz/target").join(build::host()?).join("release");
        Ok(Places { root: root.to_path_buf(), bins })
    }

    /// Checked-in inputs.
    fn seeds(&self, target: &str) -> PathBuf {
        self.root.join("fuzz/corpus").join(target)
    }

    /// Inputs found on this machine.
    fn found(&self, target: &str) -> PathBuf {
        self.root.join("fuzz/target/corpus").join(target)
    }

    /// Inputs that made the target fail.
    fn artifacts(&self, target: &str) -> PathBuf {
        self.root.join("fuzz/artifacts").join(target)
    }

    fn log(&self, target: &str, job: u64) -> PathBuf {
        self.root.join("fuzz/target/logs").join(format!("{target}-{job}.log"))
    }
}

pub(crate) fn run(root: &Path, args: &[String]) -> Result<Tally> {
    let mut args = Args::new(args);
    let all = targets(root)?;
    if args.flag("--list") {
        args.end()?;
        println!("{}", all.join("\n"));
        return Ok(Tally { passed: all.len() as u64, failed: 0 });
    }
    if args.flag("--build") {
        args.end()?;
        return build::build(root, &all).map(|()| Tally::one(true));
    }
    let target = args.positional();
    let replay: Option<PathBuf> = args.option("--replay")?;
    let minimise = args.flag("--minimise");
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let effort = Effort {
        runs: args.option("--runs")?.unwrap_or(DEFAULT_RUNS),
        jobs: args.option("--jobs")?.unwrap_or(cores).max(1),
        seed: args.option("--seed")?.unwrap_or(0),
        max_time: args.option("--max-seconds")?.map(Duration::from_secs),
    };
    args.end()?;
    if effort.runs == 0 {
        bail!("--runs 0 would show nothing");
    }
    let chosen = match target {
        None => all,
        Some(name) if all.contains(&name) => vec![name],
        Some(name) => bail!("no fuzz target `{name}`; there are: {}", all.join(" ")),
    };
    let places = Places::new(root)?;
    build::build(root, &chosen)?;
    match (replay, minimise, chosen.as_slice()) {
        (None, false, _) => campaign::run_all(&places, &chosen, &effort),
        (Some(file), false, [target]) => run_one_input(&places, target, &file),
        (None, true, [target]) => minimise_corpus(&places, target),
        _ => bail!("--replay and --minimise are for one named target, and not together"),
    }
}

/// The names of all targets, as `fuzz/Cargo.toml` has them.
pub(crate) fn targets(root: &Path) -> Result<Vec<String>> {
    let packages = metadata::packages(&root.join("fuzz/Cargo.toml"), false)?;
    let mut names: Vec<String> = packages.into_iter().flat_map(|package| package.bins).collect();
    names.sort();
    if !names.iter().any(|name| name == CANARY) {
        bail!("fuzz/Cargo.toml has no target `{CANARY}`, without which no result can be believed");
    }
    Ok(names)
}

fn run_one_input(places: &Places, target: &str, file: &Path) -> Result<Tally> {
    if !file.is_file() {
        bail!("no file {}", file.display());
    }
    let mut command = Command::new(places.bins.join(target));
    command.arg(file).env("RUST_BACKTRACE", "1");
    let done = process::run(&mut command, Duration::from_secs(600))?;
    println!("{target} {}: {}", file.display(), if done.success { "no failure" } else { "FAILED" });
    Ok(Tally::one(done.success))
}

/// Replaces the checked-in inputs by the fewest that reach all that is known to be reached.
fn minimise_corpus(places: &Places, target: &str) -> Result<Tally> {
    let (seeds, found) = (places.seeds(target), places.found(target));
    let fresh = places.root.join("fuzz/target/corpus").join(format!("{target}.minimised"));
    let _ = std::fs::remove_dir_all(&fresh);
    for dir in [&seeds, &found, &fresh] {
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    let mut command = Command::new(places.bins.join(target));
    // The fewest inputs, of those that reach the same the smallest.
    command.arg("-set_cover_merge=1").arg(&fresh).arg(&seeds).arg(&found);
    let done = process::run(&mut command, Duration::from_secs(3600))?;
    if !done.success {
        bail!("{target}: the merge failed, fuzz/corpus/{target} is as it was");
    }
    std::fs::remove_dir_all(&seeds)?;
    std::fs::create_dir_all(&seeds)?;
    let (mut files, mut bytes) = (0, 0);
    for entry in std::fs::read_dir(&fresh)?.flatten() {
        bytes += std::fs::copy(entry.path(), seeds.join(entry.file_name()))?;
        files += 1;
    }
    println!("fuzz/corpus/{target}: {files} inputs, {bytes} bytes");
    Ok(Tally::one(true))
}

//! `cargo xtask registers`: the engines of the registers as real processes, through one fault after another
//! (`tests/registers` of `weir-cluster`). Every history is checked.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::args::Args;
use crate::process;
use crate::tally::Tally;

const PACKAGE: &str = "weir-cluster";
const CYCLES: u64 = 50;
/// The program is built first.
const BASE_LIMIT: Duration = Duration::from_secs(3600);
const CYCLE_LIMIT: Duration = Duration::from_secs(60);

/// Runs so many cycles, each of which counts as one; or as many as it takes to catch bugs on purpose.
pub(crate) fn run(args: &[String]) -> Result<Tally> {
    let mut args = Args::new(args);
    let engine = args.option::<String>("--engine")?;
    let cycles = args.option::<u64>("--cycles")?;
    let start = args.option::<u64>("--start")?;
    let planted = args.option::<String>("--planted")?;
    args.end()?;
    let engine = engine.unwrap_or("openraft".into());
    match engine.as_str() {
        "openraft" => {}
        "etcd" if process::exists("etcd", "--version") => {}
        "etcd" => bail!("no program `etcd` is here; Debian has it in the package etcd-server"),
        other => bail!("no engine `{other}`; there are: openraft, etcd"),
    }
    if planted.is_some() && (cycles.is_some() || start.is_some()) {
        bail!("--planted runs as many cycles as it takes");
    }
    let mut command = process::cargo();
    command.args(["test", "--package", PACKAGE, "--test", "registers"]);
    command.env("WEIR_REGISTERS_ENGINE", engine);
    // Bugs are looked for in the program as well, which is built with the same features.
    let (test, wanted, good, bad) = match &planted {
        None => (
            "registers_are_linearizable_through_faults",
            cycles.unwrap_or(CYCLES),
            "passed",
            "FAILED",
        ),
        Some(bug) => {
            command.args(["--features", "planted"]).env("WEIR_REGISTERS_PLANTED", bug);
            ("every_planted_bug_is_caught", 1, "caught", "MISSED")
        }
    };
    command.args(["--", "--exact", test, "--nocapture"]);
    if planted.is_none() {
        command.env("WEIR_REGISTERS_CYCLES", wanted.to_string());
        command.env("WEIR_REGISTERS_START", start.unwrap_or(0).to_string());
    }
    let limit = CYCLE_LIMIT.saturating_mul(u32::try_from(wanted).unwrap_or(u32::MAX));
    let done = process::run(&mut command, BASE_LIMIT.saturating_add(limit))?;
    let mut tally = counted(&done.output, good, bad);
    if tally.failed == 0 && (!done.success || tally.passed < wanted) {
        // A cycle that could not be ended has failed.
        tally.failed = 1;
    }
    Ok(tally)
}

/// Lines `cycle N passed: ...` and `caught BUG ...`.
fn counted(output: &str, good: &str, bad: &str) -> Tally {
    let count = |word: &str| {
        let said = |line: &&str| {
            let mut words = line.split([' ', ':']);
            match words.next() {
                Some("cycle") => words.nth(1) == Some(word),
                first => first == Some(word),
            }
        };
        output.lines().filter(said).count() as u64
    };
    Tally { passed: count(good), failed: count(bad) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_and_bugs_are_counted_by_their_lines() {
        let output = "three voters in network namespaces\ncycle 0 passed: Kill, 9 operations\n\
                      cycle 1 FAILED: Stop\n    it saw an older version\ncycle 2 passed: Stop\n";
        assert_eq!(counted(output, "passed", "FAILED"), Tally { passed: 2, failed: 1 });
        let output = "caught A in cycle 3: x\nMISSED B in 27 cycles\n    caught\n";
        assert_eq!(counted(output, "caught", "MISSED"), Tally { passed: 1, failed: 1 });
    }

    #[test]
    fn what_there_is_not_is_refused() {
        let of = |words: &str| run(&words.split(' ').map(String::from).collect::<Vec<_>>());
        assert!(of("--engine paxos").unwrap_err().to_string().contains("openraft"));
        assert!(of("--planted all --cycles 3").is_err());
        assert!(of("--more").is_err());
    }
}

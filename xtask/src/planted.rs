//! `cargo xtask planted`: bugs on purpose that no simulation suite can catch are caught by tests of their crates.
//!
//! Each is switched on by the environment for a whole run of its package's tests, which must then fail; without one they must
//! pass. What the tests of a package say of a bug counts only with both.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::process;
use crate::sim::PACKAGE;
use crate::tally::Tally;

/// Packages whose tests look at another one, too: targets are tested by hosts that speak to them.
const BESIDE: [(&str, &[&str]); 3] = [
    ("weir-target-srp", &["weir-initiator-srp"]),
    ("weir-target-brp", &["weir-initiator-brp"]),
    ("weir-target-core", &["weir-initiator-srp", "weir-initiator-brp"]),
];
const BUILD_LIMIT: Duration = Duration::from_secs(40 * 60);
/// Of one run of a package's tests. One that does not end has found something, too.
const RUN_LIMIT: Duration = Duration::from_secs(10 * 60);

pub(crate) fn run(args: &[String]) -> Result<Tally> {
    let mut args = Args::new(args);
    let (package, bug) = (args.positional(), args.positional());
    args.end()?;
    let mut packages = BTreeMap::<String, Vec<String>>::new();
    for line in listed()?.lines() {
        let (p, b) = line.split_once(' ').context("--list-tests: not a package and a bug")?;
        if package.as_ref().is_none_or(|wanted| wanted == p)
            && bug.as_ref().is_none_or(|wanted| wanted.eq_ignore_ascii_case(b))
        {
            packages.entry(p.to_string()).or_default().push(b.to_string());
        }
    }
    if packages.is_empty() {
        bail!("no tests are to catch such a bug; `cargo xtask planted` tries all there are");
    }
    let mut tally = Tally::default();
    for (package, bugs) in &packages {
        tally += of_package(package, bugs)?;
    }
    Ok(tally)
}

/// Packages and bugs, as the program with the suites knows them.
fn listed() -> Result<String> {
    let mut command = process::cargo();
    command.args(["run", "--quiet", "--profile", "sim", "--features", "planted"]);
    process::capture(command.args(["--package", PACKAGE, "--", "--list-tests"]))
}

fn of_package(package: &str, bugs: &[String]) -> Result<Tally> {
    process::run(tests(package).arg("--no-run"), BUILD_LIMIT)?;
    // The name of a test that fails, or what else says that it did not end well.
    let fails = |bug: Option<&str>| {
        let mut command = tests(package);
        if let Some(bug) = bug {
            command.env("WEIR_PLANTED", format!("{}::{bug}", package.replace('-', "_")));
        }
        // The first failure is enough.
        let (done, name) = process::until(&mut command, RUN_LIMIT, failed)?;
        let ended = if done.timed_out { "does not end" } else { "ends early" };
        anyhow::Ok(name.or((!done.success).then(|| ended.to_string())))
    };
    if let Some(name) = fails(None)? {
        println!("{package}: its tests fail without a bug ({name}); they say nothing of bugs");
        return Ok(Tally { passed: 0, failed: bugs.len() as u64 });
    }
    let mut tally = Tally::default();
    for bug in bugs {
        let by = fails(Some(bug))?;
        match &by {
            Some(name) => println!("caught {package} {bug}: {name}"),
            None => println!("MISSED {package} {bug}"),
        }
        tally += Tally::one(by.is_some());
    }
    Ok(tally)
}

/// The name of the test that a line of the harness says has failed.
fn failed(line: &str) -> Option<String> {
    let (name, _) = line.strip_prefix("test ")?.split_once(" ... FAILED")?;
    Some(name.to_string())
}

/// The tests of a package, and of those that look at it, in a build that has bugs on purpose.
fn tests(package: &str) -> Command {
    let mut command = process::cargo();
    command.args(["test", "--profile", "sim", "--features", "planted"]);
    command.args(["--package", package, "--lib", "--tests"]);
    let beside = BESIDE.iter().find(|(p, _)| *p == package).map_or(&[][..], |(_, b)| b);
    for b in beside {
        command.args(["--package", b]);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::failed;

    #[test]
    fn the_test_that_failed_is_named() {
        assert_eq!(failed("test a::b ... FAILED\n").as_deref(), Some("a::b"));
        let panics = "test a::b - should panic ... FAILED\n";
        assert_eq!(failed(panics).as_deref(), Some("a::b - should panic"));
        assert_eq!(failed("test a::b ... ok\n"), None);
        assert_eq!(failed("failures:\n"), None);
    }
}

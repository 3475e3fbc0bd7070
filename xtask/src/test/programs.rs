//! The test programs that cargo built, each as a job of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::counts::{self, Counts};
use super::crew::{Ended, Job, Takes, cores, waiting_at_once};
use crate::metadata::Package;
use crate::process::{self, Done};
use crate::tally::Tally;

/// Of one program.
const LIMIT: Duration = Duration::from_secs(20 * 60);
/// Packages whose integration tests start daemons or voters and wait for them, more than they compute.
const WAITING: &[&str] = &["weir", "weir-cluster"];

/// An executable that cargo built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// Folder of its package.
    dir: PathBuf,
    /// Name of the library, executable, or integration test.
    name: String,
    /// `test`, `lib`, `bin`, `example`.
    kind: String,
    /// Made of tests.
    test: bool,
    path: PathBuf,
}

/// The executables among cargo's messages, one JSON object on a line.
pub(crate) fn of_messages(messages: &str) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("a message of cargo")?;
        let Some(path) = message["executable"].as_str() else { continue };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        let manifest = text(&message["manifest_path"]);
        programs.push(Program {
            dir: Path::new(&manifest).parent().unwrap_or(Path::new("")).to_path_buf(),
            name: text(&message["target"]["name"]),
            kind: text(&message["target"]["kind"][0]),
            test: message["profile"]["test"] == true,
            path: path.into(),
        });
    }
    Ok(programs)
}

/// Where the executable `name` is, that is not made of tests.
pub(crate) fn executable(programs: &[Program], name: &str) -> Option<PathBuf> {
    let found = programs.iter().find(|p| !p.test && p.kind == "bin" && p.name == name);
    found.map(|p| p.path.clone())
}

/// A job for every program with tests of a package in `packages`; those that wait come first.
pub(crate) fn jobs(programs: &[Program], packages: &[&Package]) -> Vec<Job> {
    let mut jobs: Vec<Job> = Vec::new();
    for program in programs.iter().filter(|p| p.test) {
        if let Some(package) = packages.iter().find(|package| package.dir == program.dir) {
            jobs.push(job(program, package));
        }
    }
    jobs.sort_by_key(|job| job.takes != Takes::Little);
    jobs
}

fn job(program: &Program, package: &Package) -> Job {
    let waits = program.kind == "test" && WAITING.contains(&package.name.as_str());
    let takes = if waits { Takes::Little } else { Takes::Core };
    let again = again(program, package);
    let title = format!("{} {}", package.name, which(program));
    let mut command = Command::new(&program.path);
    // As cargo would run it.
    command.current_dir(&program.dir);
    command.env("CARGO_MANIFEST_DIR", &program.dir);
    command.env("CARGO_MANIFEST_PATH", program.dir.join("Cargo.toml"));
    if waits {
        command.env("RUST_TEST_THREADS", waiting_at_once(cores()).to_string());
    }
    command.env("CARGO_PKG_NAME", &package.name).env("CARGO_PKG_VERSION", &package.version);
    let work = move || {
        let (done, mut text) = process::gather(&mut command, LIMIT)?;
        let found = counts::of_cargo_test(&done.output);
        let tally = judge(&found, &done);
        if tally.failed > 0 {
            text += &format!("again: {again}\n");
        }
        let ignored = found.ignored;
        let remark = if ignored > 0 { format!("{ignored} ignored") } else { String::new() };
        Ok(Ended { tally, text, remark, next: Vec::new() })
    };
    Job { step: "tests", title, takes, work: Box::new(work) }
}

/// The counts of what ran, and one failure more when they do not tell all.
pub(crate) fn judge(found: &Counts, done: &Done) -> Tally {
    let mut tally = found.tally;
    // A program that died, or that was killed, leaves no count, or not the whole of it.
    let silent = found.programs == 0;
    if tally.failed == 0 && (!done.success || silent) {
        tally.failed = 1;
    }
    tally
}

fn which(program: &Program) -> String {
    match program.kind.as_str() {
        "test" => program.name.clone(),
        "bin" | "example" => format!("({} {})", program.kind, program.name),
        _ => "(lib)".into(),
    }
}

/// How a developer runs it alone.
fn again(program: &Program, package: &Package) -> String {
    let which = match program.kind.as_str() {
        kind @ ("test" | "bin" | "example") => format!("--{kind} {}", program.name),
        _ => "--lib".into(),
    };
    format!("cargo test -p {} {which}", package.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn message(name: &str, kind: &str, test: bool) -> String {
        json!({
            "reason": "compiler-artifact", "manifest_path": "/x/crates/a/Cargo.toml",
            "target": {"name": name, "kind": [kind]}, "profile": {"test": test},
            "executable": format!("/x/target/{name}-1"),
        })
        .to_string()
    }

    fn package(name: &str, dir: &str) -> Package {
        Package {
            name: name.into(),
            version: "0.1.0".into(),
            license: None,
            member: true,
            dir: dir.into(),
            dependencies: Vec::new(),
            bins: Vec::new(),
        }
    }

    #[test]
    fn finds_the_programs_among_the_messages() {
        let library = r#"{"reason":"compiler-artifact","executable":null}"#;
        let text = [
            library,
            &message("a", "lib", true),
            &message("run-a", "bin", false),
            &message("it", "test", true),
            r#"{"reason":"build-finished","success":true}"#,
        ];
        let programs = of_messages(&text.join("\n")).unwrap();
        assert_eq!(programs.len(), 3);
        assert_eq!(executable(&programs, "run-a"), Some("/x/target/run-a-1".into()));
        assert_eq!(executable(&programs, "it"), None);
        let (a, b) = (package("weir-a", "/x/crates/a"), package("weir-b", "/x/crates/b"));
        let titles: Vec<String> = jobs(&programs, &[&a]).into_iter().map(|job| job.title).collect();
        assert_eq!(titles, ["weir-a (lib)", "weir-a it"]);
        assert!(jobs(&programs, &[&b]).is_empty());
        assert_eq!(again(&programs[2], &a), "cargo test -p weir-a --test it");
        assert!(of_messages("{").is_err());
    }

    #[test]
    fn those_that_wait_come_first() {
        let text = [message("weir", "bin", true), message("kill", "test", true)].join("\n");
        let jobs = jobs(&of_messages(&text).unwrap(), &[&package("weir", "/x/crates/a")]);
        let order: Vec<(&str, Takes)> = jobs.iter().map(|j| (j.title.as_str(), j.takes)).collect();
        assert_eq!(order, [("weir kill", Takes::Little), ("weir (bin weir)", Takes::Core)]);
    }

    #[test]
    fn a_program_that_ran_nothing_or_died_has_failed() {
        let ended = |success, output: &str| {
            let done = Done { success, timed_out: false, output: output.into() };
            judge(&counts::of_cargo_test(output), &done)
        };
        let ok = "test result: ok. 3 passed; 0 failed; 0 ignored\n";
        assert_eq!(ended(true, ok), Tally { passed: 3, failed: 0 });
        assert_eq!(ended(false, ok), Tally { passed: 3, failed: 1 });
        assert_eq!(ended(true, "\n"), Tally { passed: 0, failed: 1 });
        assert_eq!(ended(false, ""), Tally { passed: 0, failed: 1 });
        let some = "test result: FAILED. 3 passed; 2 failed; 0 ignored\n";
        assert_eq!(ended(false, some), Tally { passed: 3, failed: 2 });
    }

    #[test]
    fn a_program_runs_in_the_folder_of_its_package() {
        let dir = std::env::temp_dir();
        let program = Program {
            dir: dir.clone(),
            name: "x".into(),
            kind: "test".into(),
            test: true,
            path: "/bin/pwd".into(),
        };
        let ended = (job(&program, &package("weir-a", "")).work)().unwrap();
        let said = ended.text.lines().next().unwrap();
        assert_eq!(Path::new(said).canonicalize().unwrap(), dir.canonicalize().unwrap());
        assert!(ended.text.contains("again: cargo test -p weir-a --test x"), "{}", ended.text);
        assert_eq!(ended.tally, Tally { passed: 0, failed: 1 });
    }
}

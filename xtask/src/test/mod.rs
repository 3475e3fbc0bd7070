//! `cargo xtask test`: everything a change must pass, from a clean clone.

mod changed;
pub(crate) mod counts;
mod crew;
mod links;
mod prerequisites;
mod programs;
mod steps;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::args::Args;
use crate::metadata;
use crate::process;
use crate::tally::Tally;
use crew::Report;
use steps::{NAMES, Plan};

/// How many of the jobs that took longest are named in the end.
const SLOWEST: usize = 8;
/// Lines of what each job's failed tests have said that are repeated in the end.
const WHY: usize = 80;

pub(crate) fn run(root: &Path, args: &[String]) -> Result<Tally> {
    let mut args = Args::new(args);
    let only_changed = args.flag("--changed");
    let wanted = args.rest();
    if let Some(name) = wanted.iter().find(|name| !NAMES.contains(&name.as_str())) {
        bail!("no step `{name}`; there are: {}", NAMES.join(" "));
    }
    let chosen = |name: &&str| wanted.is_empty() || wanted.iter().any(|w| w == name);
    let mut steps: Vec<&'static str> = NAMES.iter().copied().filter(chosen).collect();
    let mut packages = metadata::packages(&root.join("Cargo.toml"), false)?;
    if only_changed {
        let scope = changed::scope(root, &packages)?;
        println!("changed, or above what is: {scope}");
        steps.retain(|step| scope.has(step));
        packages.retain(|package| scope.packages.contains(&package.name));
    }
    let plan = Arc::new(Plan { root: root.to_path_buf(), packages, steps });

    let started = Instant::now();
    let cores = crew::cores();
    let mut failures = String::new();
    let mut show = |report: Option<&Report>, text: &str| {
        show(report, text);
        if let Some(report) = report.filter(|r| r.tally.failed > 0) {
            failures += &format!("== {} {}\n{}", report.step, report.title, why(text));
        }
    };
    let mut reports = crew::run(steps::before(&plan), cores, &mut show);
    let passed = reports.iter().all(|report| report.tally.failed == 0);
    if passed {
        let before = started.elapsed();
        let rest = crew::run(steps::first(&plan), cores, &mut show);
        reports.extend(rest.into_iter().map(|report| report.later(before)));
    }
    // Once more where it is found: at the end.
    print!("\n{failures}");
    println!("\n{}", summary(&plan.steps, &reports));
    let cpu =
        process::children_seconds().map_or(String::new(), |s| format!(", {s:.0} s of processors"));
    println!("{:.0} s{cpu}", started.elapsed().as_secs_f64());
    let mut total = Tally::default();
    reports.iter().for_each(|report| total += report.tally);
    Ok(total)
}

/// What a job printed, under a line that says which it was and how it ended.
fn show(report: Option<&Report>, text: &str) {
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    match report {
        Some(report) => {
            let name = format!("{} {}", report.step, report.title);
            let (verdict, took) = (report.verdict(), report.took());
            println!("\n== {}: {verdict}, {took:.1} s\n{text}{end}", name.trim_end());
        }
        None => print!("{text}{end}"),
    }
}

/// What tests that failed have said, without where in the program; nothing of other jobs.
fn why(text: &str) -> String {
    let said = text.lines().skip_while(|l| *l != "failures:").skip(1);
    let place = |l: &&str| {
        let l = l.trim_start();
        let numbered = l.split_once(": ").is_some_and(|(n, _)| n.parse::<u32>().is_ok());
        !numbered && !l.starts_with("at ") && !l.is_empty()
    };
    said.filter(place).take(WHY).map(|l| format!("{l}\n")).collect()
}

/// A line for every step, the jobs that took longest, and all that failed.
fn summary(steps: &[&str], reports: &[Report]) -> String {
    let mut text = String::from("== summary\n");
    text += "step           verdict     took   from     to\n";
    for step in steps {
        let mine: Vec<&Report> = reports.iter().filter(|report| report.step == *step).collect();
        let (Some(began), Some(ended)) =
            (mine.iter().map(|r| r.began).min(), mine.iter().map(|r| r.ended).max())
        else {
            text += &format!("{step:<14} not run\n");
            continue;
        };
        let mut tally = Tally::default();
        mine.iter().for_each(|report| tally += report.tally);
        let verdict = if tally.failed == 0 { "ok" } else { "FAILED" };
        // What its jobs took, side by side or not.
        let took: f64 = mine.iter().map(|report| report.took()).sum();
        let (began, ended) = (began.as_secs_f64(), ended.as_secs_f64());
        let jobs = if mine.len() > 1 { format!(" in {} jobs", mine.len()) } else { String::new() };
        text += &format!(
            "{step:<14} {verdict:<7} {took:>6.1} s {began:>5.0}s {ended:>5.0}s   {tally}{jobs}\n"
        );
    }
    let mut slow: Vec<&Report> = reports.iter().collect();
    slow.sort_by(|a, b| b.took().total_cmp(&a.took()));
    let slow = slow.iter().take(SLOWEST);
    let slow: Vec<String> =
        slow.map(|r| format!("{} {} {:.0} s", r.step, r.title, r.took())).collect();
    text += &format!("slowest: {}\n", slow.join(", "));
    for report in reports.iter().filter(|r| r.tally.failed > 0 || !r.remark.is_empty()) {
        let Report { step, title, remark, .. } = report;
        let verdict = if report.tally.failed > 0 { "FAILED" } else { "note" };
        text += format!("{verdict}: {step} {title} {remark}").trim_end();
        text += "\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn report(step: &'static str, title: &str, times: (u64, u64), failed: u64) -> Report {
        Report {
            step,
            title: title.into(),
            began: Duration::from_secs(times.0),
            ended: Duration::from_secs(times.1),
            tally: Tally { passed: 2, failed },
            remark: String::new(),
        }
    }

    #[test]
    fn the_summary_has_a_line_for_every_step_and_failure() {
        let reports = [
            report("tests", "weir-a it", (10, 40), 0),
            report("tests", "weir-b it", (20, 70), 1),
            report("fmt", "", (0, 3), 0),
        ];
        let text = summary(&["fmt", "tests", "docs"], &reports);
        let words = |n: usize| {
            text.lines().nth(n).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words(2), "fmt ok 3.0 s 0s 3s 2 passed, 0 failed");
        assert_eq!(words(3), "tests FAILED 80.0 s 10s 70s 4 passed, 1 failed in 2 jobs");
        assert_eq!(words(4), "docs not run");
        assert_eq!(words(5), "slowest: tests weir-b it 50 s, tests weir-a it 30 s, fmt 3 s");
        assert_eq!(words(6), "FAILED: tests weir-b it");
    }

    #[test]
    fn what_failed_tests_have_said_is_told_once_more() {
        let text = "test a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\nno room\n\
                    stack backtrace:\n   0: f\n             at ./a.rs:1:1\n";
        assert_eq!(why(text), "---- b stdout ----\nno room\nstack backtrace:\n");
        assert_eq!(why("all is well\n"), "");
    }

    #[test]
    fn an_unknown_step_is_refused() {
        let error = run(Path::new("."), &["tidi".to_string()]).unwrap_err();
        assert!(error.to_string().contains("no step `tidi`; there are: prerequisites tidy"));
    }
}

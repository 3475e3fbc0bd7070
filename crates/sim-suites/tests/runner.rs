//! The runner: it finds planted bugs, says how to replay them, and its verdict is in its exit status.

use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};
use weir_sim_suites::{Args, Pass, Run, SUITES, Suite, Wrong, run};

fn command(args: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir-sim-suites"))
        .args(args.split_whitespace())
        .output()
        .expect("the runner starts")
}

fn text(o: &Output) -> String {
    String::from_utf8_lossy(&o.stdout).into_owned()
}

fn args(suite: &str, seeds: u64, start: u64, jobs: usize) -> Args {
    let suite = suite.to_string();
    Args { suite, seeds, start, jobs, words: false, planted: None, list: false, list_tests: false }
}

#[test]
fn the_canary_is_found_and_each_failure_replays_exactly() {
    let o = command("canary --seeds 60");
    assert_eq!(o.status.code(), Some(1));
    let out = text(&o);
    let last = out.lines().last().expect("a last line");
    assert!(last.ends_with(" failed") && !last.contains(" 0 failed"), "{last}");
    for bug in ["early reuse", "early ack", "lost update"] {
        let line = out.lines().find(|l| l.starts_with("FAILED canary seed") && l.contains(bug));
        let line = line.unwrap_or_else(|| panic!("{bug} was not found:\n{out}"));
        let seed = line.split_whitespace().nth(3).expect("the seed").trim_end_matches(':');
        assert!(out.contains(&format!("cargo xtask sim canary --seeds 1 --start {seed}")), "{out}");
        let again = command(&format!("canary --seeds 1 --start {seed} --jobs 1"));
        assert_eq!(again.status.code(), Some(1));
        let first = text(&again).lines().next().expect("a line").to_string();
        assert!(first.starts_with(line.trim_end()), "\n{first}\n{line}");
        assert!(text(&again).ends_with("0 passed, 1 failed\n"));
    }
}

#[test]
fn every_planted_bug_of_a_provider_is_found() {
    let suite = SUITES.iter().find(|s| s.name == "canary-fabric").expect("a suite");
    let kinds = weir_sim::Planted::ALL.len() as u64;
    let t = run(suite, &args("canary-fabric", 20 * kinds, 0, 2));
    for (i, bug) in weir_sim::Planted::ALL.iter().enumerate() {
        let found = t.failures.iter().filter(|f| f.seed % kinds == i as u64).count();
        assert!(found > 0, "{bug:?} was not found in 20 seeds");
    }
}

#[test]
fn suites_that_must_pass_do() {
    for (suite, seeds) in [("reactor", 60), ("fabric", 60), ("disk", 30), ("store", 30)] {
        let o = command(&format!("{suite} --seeds {seeds} --start 1000 --jobs 2"));
        assert!(o.status.success(), "{}", text(&o));
        assert!(text(&o).ends_with(&format!("{seeds} passed, 0 failed\n")), "{}", text(&o));
    }
}

#[test]
fn words_tell_the_trace_of_the_same_run() {
    let o = command("canary --seeds 1 --start 0 --words");
    assert!(String::from_utf8_lossy(&o.stderr).contains(" ms  "), "{o:?}");
    let plain = command("canary --seeds 1 --start 0");
    assert_eq!(text(&o).lines().next(), text(&plain).lines().next());
}

#[test]
fn wrong_use_is_refused() {
    for bad in ["", "nonsense", "reactor --seeds many"] {
        assert_eq!(command(bad).status.code(), Some(2), "{bad}");
    }
    let o = command("--list");
    assert!(o.status.success());
    let names: Vec<&str> = SUITES.iter().filter(|s| !s.planted).map(|s| s.name).collect();
    assert_eq!(text(&o).lines().collect::<Vec<_>>(), names);
}

fn fickle(run: &Run) -> Result<Pass, Wrong> {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let _ = run;
    Ok(Pass { trace: CALLS.fetch_add(1, Ordering::Relaxed), ..Pass::default() })
}

fn panics(run: &Run) -> Result<Pass, Wrong> {
    assert!(run.seed != 5, "seed five is unlucky");
    Ok(Pass { figures: vec![("runs", 1)], ..Pass::default() })
}

#[test]
fn a_suite_that_is_not_deterministic_fails() {
    let suite = Suite { name: "fickle", about: "", planted: false, run: fickle };
    let t = run(&suite, &args("fickle", 32, 0, 1));
    assert_eq!(t.passed, 30);
    assert!(t.failures.iter().all(|f| f.what.contains("not deterministic")), "{t}");
}

#[test]
fn a_panic_fails_its_own_seed_only() {
    let suite = Suite { name: "panics", about: "", planted: false, run: panics };
    let t = run(&suite, &args("panics", 20, 0, 3));
    assert_eq!((t.passed, t.failures.len(), t.figures["runs"]), (19, 1, 19));
    assert_eq!(t.failures[0].seed, 5);
    assert!(t.failures[0].what.contains("seed five is unlucky"));
    assert!(t.to_string().ends_with("19 passed, 1 failed\n"));
}

//! A test program without the standard harness, which has no word for a test that cannot be run here.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

/// Its name, and what runs it: what is to be said of it, or what is wrong.
pub type Case = (&'static str, fn() -> Result<String, String>);

/// Runs `f`; a panic is an error with what it said.
///
/// # Errors
/// What `f` returns, and panics.
pub fn caught(f: impl FnOnce() -> Result<String, String>) -> Result<String, String> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|e| {
        let said = e.downcast_ref::<String>().map(String::as_str);
        Err(said.or(e.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned())
    })
}

/// Runs the cases that the command line asks for, as the standard harness would. They count as ignored where
/// `able` says why they cannot be run.
pub fn run(cases: &[Case], able: fn() -> Result<(), String>) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|a| a == "--list") {
        cases.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let filter = args.iter().find(|a| !a.starts_with('-'));
    let chosen = cases.iter().filter(|(name, _)| filter.is_none_or(|f| name.contains(f.as_str())));
    let (mut passed, mut failed, mut ignored) = (0, 0, 0);
    let begin = Instant::now();
    let able = able();
    for (name, run) in chosen {
        let result = match &able {
            Ok(()) => caught(run),
            Err(why) => {
                ignored += 1;
                println!("test {name} ... ignored: SKIPPED, not passed: {why}");
                continue;
            }
        };
        match result {
            Ok(said) => {
                passed += 1;
                println!("test {name} ... ok\n  {said}");
            }
            Err(why) => {
                failed += 1;
                println!("test {name} ... FAILED\n  {why}");
            }
        }
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "\ntest result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; 0 filtered out; \
         finished in {seconds:.2}s"
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

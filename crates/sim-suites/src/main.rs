//! Runs a simulation suite over many seeds.

use std::process::ExitCode;
use weir_sim_suites::{Args, SUITES, USAGE, run};

fn main() -> ExitCode {
    let args = match Args::parse(std::env::args().skip(1)) {
        Ok(a) => a,
        Err(e) => {
            eprintln!("{e}\n{USAGE}\nsuites:");
            for s in SUITES {
                eprintln!("  {:14} {}", s.name, s.about);
            }
            return ExitCode::from(2);
        }
    };
    if args.list {
        // One name on a line, of the suites that have to pass: this is read by programs.
        for s in SUITES.iter().filter(|s| !s.planted) {
            println!("{}", s.name);
        }
        return ExitCode::SUCCESS;
    }
    if args.list_tests {
        return list_tests();
    }
    let Some(suite) = SUITES.iter().find(|s| s.name == args.suite) else {
        let known: Vec<&str> = SUITES.iter().map(|s| s.name).collect();
        eprintln!("no suite {}; there are {}", args.suite, known.join(", "));
        return ExitCode::from(2);
    };
    if let Some(bug) = &args.planted {
        return planted(suite, &args, bug);
    }
    let tally = run(suite, &args);
    print!("{tally}");
    match tally.failures.is_empty() && tally.never_done().is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Package and bug on a line: read by programs.
#[cfg(feature = "planted")]
fn list_tests() -> ExitCode {
    for (package, bug) in weir_sim_suites::planted::of_tests() {
        println!("{package} {bug}");
    }
    ExitCode::SUCCESS
}

#[cfg(not(feature = "planted"))]
fn list_tests() -> ExitCode {
    eprintln!("this build has no bugs on purpose: use cargo xtask planted");
    ExitCode::from(2)
}

/// Shows that a suite catches bugs on purpose.
#[cfg(feature = "planted")]
fn planted(suite: &weir_sim_suites::Suite, args: &Args, bug: &str) -> ExitCode {
    match weir_sim_suites::planted::hunt(suite, args, bug) {
        Ok(hunt) => {
            print!("{hunt}");
            if hunt.missed() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(2)
        }
    }
}

#[cfg(not(feature = "planted"))]
fn planted(_: &weir_sim_suites::Suite, _: &Args, _: &str) -> ExitCode {
    eprintln!("this build has no bugs on purpose: use cargo xtask sim SUITE --planted BUG");
    ExitCode::from(2)
}

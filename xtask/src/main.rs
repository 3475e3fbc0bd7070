//! The project's own tool. Every command prints a last line `N passed, N failed` and exits with 0
//! only when nothing failed.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod fuzz;
mod kill;
mod lab;
mod metadata;
mod model;
mod planted;
mod process;
mod registers;
mod sim;
mod tally;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use tally::Tally;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test [STEP...]                            everything a change must pass; steps: prerequisites tidy
                                            fmt clippy tests sim fuzz docs
  test --changed [STEP...]                  the same, but runs only what differs from `main`, and what depends on it
  tidy                                      floors, pure crates, banned calls, file sizes, licences
  sim SUITE --seeds N [--start S] [ARG...]  simulation suites; `sim --list` names them, `sim all` runs them
  sim SUITE --planted BUG | all             bugs on purpose, which the suite must catch
  planted [PACKAGE [BUG]]                   bugs on purpose that no suite can catch: tests of their packages must
  model NAME [--states N] [--scope S]       all histories of a protocol machine, up to N states; models: pair
  model NAME --planted BUG | all            bugs on purpose, which the model must catch
  registers [--cycles N] [--start S]        the registers' engine as processes that are killed, stopped and cut off;
                                            --engine openraft (the one built in) or etcd
  registers --planted BUG | all             bugs on purpose, which the histories must show
  fuzz [TARGET] --runs N [--jobs J]         coverage-guided fuzzing; `fuzz --list` names the targets
  fuzz --build                              builds the targets, and runs none
  fuzz TARGET --replay FILE                 run one input again
  fuzz TARGET --minimise                    rewrite the checked-in corpus from what was found
  kill [--cycles N]                         kill -9 of the daemon in the middle of writes; nothing is lost
  powercut [--cycles N]                     power cuts below a pool, on disks that lose what was not flushed
  lab SCENARIO | all | --list               scenarios against a stock Linux kernel in a virtual machine
  bench SCENARIO [ARG...]                   a benchmark scenario of `weir bench`, release build

The last line of every command is `N passed, N failed`; the exit status is 0 when nothing failed.";

fn main() -> ExitCode {
    match dispatch() {
        Ok(tally) => {
            println!("{tally}");
            if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("xtask: {error:#}");
            println!("{}", Tally::one(false));
            ExitCode::FAILURE
        }
    }
}

fn dispatch() -> Result<Tally> {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    if matches!(command.as_str(), "" | "help" | "-h" | "--help") {
        println!("{USAGE}");
        if command.is_empty() {
            bail!("no command given");
        }
        std::process::exit(0);
    }
    let root = metadata::root()?;
    // Paths in messages are relative to the root, and so are those that commands are given.
    std::env::set_current_dir(&root).with_context(|| format!("cannot enter {}", root.display()))?;
    match command.as_str() {
        "test" => test::run(&root, &rest),
        "tidy" => tidy::run(&root).map(Tally::one),
        "sim" => sim::run(&rest),
        "planted" => planted::run(&rest),
        "model" => model::run(&rest),
        "registers" => registers::run(&rest),
        "fuzz" => fuzz::run(&root, &rest),
        "kill" | "powercut" => kill::run(&command, &rest),
        "lab" => lab::run(&root, &rest),
        "bench" => bench::run(&root, &rest),
        other => bail!("unknown command `{other}`\n\n{USAGE}"),
    }
}

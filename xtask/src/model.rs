//! `cargo xtask model`: all histories of a protocol machine, as far as there is time (`tests/model` of its package).

use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::process;
use crate::tally::Tally;
use crate::test::counts;

/// Of each model, the package whose test `model` it is.
const MODELS: [(&str, &str); 1] = [("pair", "weir-proto-cluster")];
const STATES: u64 = 10_000_000;
/// With the build.
const LIMIT: Duration = Duration::from_secs(24 * 3600);

/// Looks at so many states, each of which must keep every promise; or at as many as it takes to catch bugs on purpose.
pub(crate) fn run(args: &[String]) -> Result<Tally> {
    let mut args = Args::new(args);
    let name = args.positional().context("name a model: pair")?;
    let states = args.option::<u64>("--states")?;
    let scope = args.option::<String>("--scope")?;
    let planted = args.option::<String>("--planted")?;
    args.end()?;
    let Some((_, package)) = MODELS.iter().find(|(model, _)| *model == name) else {
        bail!("no model `{name}`; there is: pair");
    };
    if planted.is_some() && (states.is_some() || scope.is_some()) {
        bail!("--planted looks at as many states as it takes, where it takes them");
    }
    let mut command = process::cargo();
    command.args(["test", "--profile", "sim", "--package", package, "--test", "model"]);
    let test = match &planted {
        None => "no_state_breaks_a_promise",
        Some(bug) => {
            command.args(["--features", "planted"]).env("WEIR_MODEL_PLANTED", bug);
            "every_planted_bug_is_caught"
        }
    };
    command.args(["--", "--exact", test, "--nocapture"]);
    if planted.is_none() {
        command.env("WEIR_MODEL_STATES", states.unwrap_or(STATES).to_string());
        command.env("WEIR_MODEL_SCOPE", scope.as_deref().unwrap_or(""));
    }
    let done = process::run(&mut command, LIMIT)?;
    let tally = match planted {
        None => counts::of_cargo_test(&done.output).tally,
        Some(_) => of_bugs(&done.output),
    };
    Ok(match tally {
        Tally { passed: 0, failed: 0 } => Tally::one(false),
        Tally { passed, failed: 0 } if !done.success => Tally { passed, failed: 1 },
        tally => tally,
    })
}

/// Bugs that were caught and missed.
fn of_bugs(output: &str) -> Tally {
    let count = |word: &str| output.lines().filter(|line| line.starts_with(word)).count() as u64;
    Tally { passed: count("caught "), failed: count("MISSED ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bugs_are_counted_by_their_lines() {
        let output =
            "caught A in x after 3 states\nMISSED B in 9 states\n    caught\ncaught C in y\n";
        assert_eq!(of_bugs(output), Tally { passed: 2, failed: 1 });
    }
}

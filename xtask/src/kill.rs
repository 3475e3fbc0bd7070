//! `cargo xtask kill`: the daemon is killed in the middle of writes, many times over (`crates/weir/tests/kill.rs`).

use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;
use crate::tally::Tally;

/// The program is built first.
const BASE_LIMIT: Duration = Duration::from_secs(3600);
const CYCLE_LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn run(args: &[String]) -> Result<Tally> {
    let cycles: u32 = match args {
        [] => 200,
        [flag, n] if flag == "--cycles" => {
            n.parse().with_context(|| format!("`{n}` is no number of cycles"))?
        }
        _ => bail!("usage: cargo xtask kill [--cycles N]"),
    };
    let mut command = process::cargo();
    command.args(["test", "--release", "--package", "weir", "--test", "kill", "--", "--nocapture"]);
    command.env("WEIR_KILL_CYCLES", cycles.to_string());
    let done = process::run(&mut command, BASE_LIMIT + CYCLE_LIMIT * cycles)?;
    Ok(Tally::one(done.success))
}

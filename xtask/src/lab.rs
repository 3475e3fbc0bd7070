//! `cargo xtask lab`: scenarios against a stock Linux kernel, in a virtual machine.
//!
//! A scenario is a script `lab/scenarios/NAME.sh` with a line `# lab: WHAT IT SHOWS`; scripts without
//! one are parts of others. It runs as root inside the machine, with the clone as its working directory
//! (`/share`). `WEIR` names the program, `LOGS` a folder that outlives the machine. A line
//! `# kernel-lab: OPTIONS` passes options, such as `--timeout 600`, to `lab/kernel-lab run`, and so do
//! the arguments behind the scenario's name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::process;
use crate::tally::Tally;

const SCENARIOS: &str = "lab/scenarios";
const BUILD_LIMIT: Duration = Duration::from_secs(3600);
/// Above the limit that the lab itself keeps, which is on a scenario's `kernel-lab:` line; the first
/// run also fetches and builds the machine's image.
const RUN_LIMIT: Duration = Duration::from_secs(2 * 3600);

/// One script of the lab.
#[derive(Debug, PartialEq, Eq)]
struct Scenario {
    name: String,
    about: String,
    options: Vec<String>,
}

pub(crate) fn run(root: &Path, args: &[String]) -> Result<Tally> {
    let mut args = Args::new(args);
    let all = scenarios(&root.join(SCENARIOS))?;
    if args.flag("--list") {
        args.end()?;
        for scenario in &all {
            println!("{:<24} {}", scenario.name, scenario.about);
        }
        return Ok(Tally { passed: all.len() as u64, failed: 0 });
    }
    let wanted = args.positional().context("name a scenario, or `all`; `--list` names them")?;
    let extra = args.rest();
    let chosen: Vec<&Scenario> = match wanted.as_str() {
        "all" => all.iter().collect(),
        name => all.iter().filter(|scenario| scenario.name == name).collect(),
    };
    if chosen.is_empty() {
        let names: Vec<&str> = all.iter().map(|scenario| scenario.name.as_str()).collect();
        bail!("no scenario `{wanted}` in {SCENARIOS}; there are: {}", names.join(" "));
    }
    let weir = build(root)?;
    let mut tally = Tally::default();
    let mut failed = Vec::new();
    for scenario in chosen {
        println!("== lab {}: {}", scenario.name, scenario.about);
        let started = Instant::now();
        let done = process::run(&mut command(root, scenario, &weir, &extra), RUN_LIMIT)?;
        let verdict = if done.success { "passed" } else { "FAILED" };
        println!("-- lab {}: {verdict}, {:.0} s", scenario.name, started.elapsed().as_secs_f64());
        tally += Tally::one(done.success);
        if !done.success {
            failed.push(scenario.name.as_str());
        }
    }
    if !failed.is_empty() {
        println!("failed: {}", failed.join(" "));
    }
    Ok(tally)
}

/// Builds the program; its path inside the machine.
fn build(root: &Path) -> Result<String> {
    let mut command = process::cargo();
    command.args(["build", "--release", "--package", "weir", "--bin", "weir"]);
    // The machine sees the clone and nothing else.
    command.arg("--target-dir").arg(root.join("target"));
    if !process::run(&mut command, BUILD_LIMIT)?.success {
        bail!("the program could not be built");
    }
    Ok("/share/target/release/weir".to_string())
}

fn command(root: &Path, scenario: &Scenario, weir: &str, extra: &[String]) -> Command {
    let mut command = Command::new(root.join("lab/kernel-lab"));
    command.args(["run", "--env", &format!("WEIR={weir}")]);
    command.args(["--env", &format!("LOGS=/share/lab/cache/logs/{}", scenario.name), "--share"]);
    command.arg(root);
    command.args(&scenario.options).args(extra).arg("--");
    command.arg(format!("{SCENARIOS}/{}.sh", scenario.name));
    command
}

fn scenarios(dir: &Path) -> Result<Vec<Scenario>> {
    let entries =
        fs::read_dir(dir).with_context(|| format!("no scenarios in {}", dir.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "sh"));
    files.sort();
    let mut scenarios = Vec::new();
    for path in &files {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        scenarios.extend(parse(&name, &text));
    }
    if scenarios.is_empty() {
        bail!("no scenario in {}", dir.display());
    }
    Ok(scenarios)
}

fn parse(name: &str, text: &str) -> Option<Scenario> {
    let comments = || text.lines().filter_map(|line| line.strip_prefix('#')).map(str::trim);
    let about = comments().find_map(|line| line.strip_prefix("lab:"))?;
    let options = comments().filter_map(|line| line.strip_prefix("kernel-lab:"));
    Some(Scenario {
        name: name.to_string(),
        about: about.trim().to_string(),
        options: options.flat_map(str::split_whitespace).map(String::from).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_scenario_s_head() {
        let text =
            "#!/bin/bash\n# lab: mkfs over siw\n#\n# kernel-lab: --timeout 600 --cpus 2\nset -eu\n";
        let want = Scenario {
            name: "siw".into(),
            about: "mkfs over siw".into(),
            options: ["--timeout", "600", "--cpus", "2"].map(String::from).to_vec(),
        };
        assert_eq!(parse("siw", text), Some(want));
        assert_eq!(parse("lib", "# What the scenarios share.\ntrue\n"), None);
    }

    #[test]
    fn the_machine_is_told_what_to_run() {
        let scenario = parse("siw", "# lab: x\n# kernel-lab: --timeout 9\n").unwrap();
        let command = command(Path::new("/c"), &scenario, "/share/w", &["--cpus=1".to_string()]);
        let args: Vec<&str> = command.get_args().filter_map(|arg| arg.to_str()).collect();
        assert_eq!(command.get_program(), "/c/lab/kernel-lab");
        assert_eq!(
            args.join(" "),
            "run --env WEIR=/share/w --env LOGS=/share/lab/cache/logs/siw --share /c --timeout 9 \
             --cpus=1 -- lab/scenarios/siw.sh"
        );
    }
}

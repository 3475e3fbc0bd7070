//! Running other programs: output passed through and kept, a time limit, nothing left behind.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// How long output may keep coming after a program ended, from children that it left behind.
const LINGER: Duration = Duration::from_secs(2);

/// What became of a program.
pub(crate) struct Done {
    /// It ended by itself with status 0.
    pub(crate) success: bool,
    /// It was killed because its time was up.
    pub(crate) timed_out: bool,
    /// Its standard output, without its standard error.
    pub(crate) output: String,
}

/// Runs `command` without standard input, passes its output through line by line, and kills it with
/// all its children after `limit`.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<Done> {
    let name = name_of(command);
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run `{name}`"))?;
    let (sender, lines) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        forward(stdout, true, sender.clone());
    }
    if let Some(stderr) = child.stderr.take() {
        forward(stderr, false, sender);
    }
    let mut done = Done { success: false, timed_out: false, output: String::new() };
    let mut ended: Option<Instant> = None;
    loop {
        match lines.recv_timeout(Duration::from_millis(50)) {
            Ok((is_output, line)) => show(is_output, &line, &mut done.output),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) if ended.is_some() => break,
            Err(RecvTimeoutError::Disconnected) => thread::sleep(Duration::from_millis(20)),
        }
        if ended.is_none() {
            if let Some(status) = child.try_wait()? {
                done.success = status.success() && !done.timed_out;
                if !status.success() {
                    eprintln!("`{name}` ended with {status}");
                }
                ended = Some(Instant::now());
            } else if !done.timed_out && started.elapsed() > limit {
                eprintln!("`{name}` is killed: still running after {} s", limit.as_secs());
                done.timed_out = true;
                kill_tree(&mut child);
            }
        }
        if ended.is_some_and(|at| at.elapsed() > LINGER) {
            break;
        }
    }
    Ok(done)
}

/// Runs `command` silently; its standard output if it ended with status 0.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    let name = name_of(command);
    let out =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot run `{name}`"))?;
    if !out.status.success() {
        let error = String::from_utf8_lossy(&out.stderr);
        anyhow::bail!("`{name}` ended with {}: {}", out.status, error.trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// What to call a program in messages: without its folders, and with a subcommand of cargo.
fn name_of(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let file = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match command.get_args().next() {
        Some(subcommand) if file == "cargo" => format!("cargo {}", subcommand.to_string_lossy()),
        _ => file,
    }
}

/// Whether `program` can be started and ends well.
pub(crate) fn exists(program: &str, arg: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(arg).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The cargo that runs us.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn show(is_output: bool, line: &str, kept: &mut String) {
    // A closed pipe on our side (`cargo xtask test | head`) must not stop the run.
    if is_output {
        let _ = std::io::stdout().write_all(line.as_bytes());
        kept.push_str(line);
    } else {
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

fn forward(from: impl Read + Send + 'static, is_output: bool, to: Sender<(bool, String)>) {
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while from.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            if to.send((is_output, String::from_utf8_lossy(&line).into_owned())).is_err() {
                return;
            }
            line.clear();
        }
    });
}

/// Kills `child` and everything it started. The child stays in our process group, so that Ctrl-C on
/// the terminal reaches it; hence its descendants are found by their parents.
pub(crate) fn kill_tree(child: &mut Child) {
    let parents = parents();
    let mut doomed = vec![child.id()];
    let mut next = 0;
    while next < doomed.len() {
        let parent = doomed[next];
        doomed.extend(parents.iter().filter(|(_, p)| **p == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    let _ = child.kill();
    if doomed.len() > 1 {
        let pids = doomed[1..].iter().map(u32::to_string);
        let _ = Command::new("kill").arg("-KILL").args(pids).stderr(Stdio::null()).status();
    }
}

/// The parent of every process on this machine.
fn parents() -> BTreeMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // "pid (name) state ppid …"; the name may hold spaces and parentheses.
            let ppid = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, ppid))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn keeps_output_and_status() {
        let done = run(&mut sh("echo out; echo err >&2"), Duration::from_secs(20)).unwrap();
        assert!(done.success && !done.timed_out);
        assert_eq!(done.output, "out\n");
        let done = run(&mut sh("echo last; exit 3"), Duration::from_secs(20)).unwrap();
        assert!(!done.success && !done.timed_out);
        assert_eq!(done.output, "last\n");
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_its_children() {
        let started = Instant::now();
        let script = "sleep 60 & echo $!; sleep 60; echo never";
        let done = run(&mut sh(script), Duration::from_millis(300)).unwrap();
        assert!(done.timed_out && !done.success);
        assert!(started.elapsed() < Duration::from_secs(20));
        let pid = done.output.trim();
        assert!(pid.parse::<u32>().is_ok(), "{pid}");
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let dead = state.rsplit_once(')').is_none_or(|(_, rest)| rest.trim().starts_with('Z'));
        assert!(dead, "the child is still there: {state}");
    }

    #[test]
    fn a_child_left_behind_does_not_hold_us_up() {
        let started = Instant::now();
        let done = run(&mut sh("sleep 30 & echo $!"), Duration::from_secs(60)).unwrap();
        assert!(done.success);
        assert!(started.elapsed() < Duration::from_secs(20));
        let _ = Command::new("kill").arg(done.output.trim()).status();
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = capture(&mut Command::new("no-such-program-here")).unwrap_err();
        assert!(format!("{error:#}").contains("no-such-program-here"));
        assert!(!exists("no-such-program-here", "--version"));
    }
}

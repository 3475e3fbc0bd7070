//! Running other programs: output passed through or kept, a time limit, nothing left behind.

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
    watch(command, limit, &mut |line| match line {
        // A closed pipe on our side (`cargo xtask test | head`) must not stop the run.
        Line::Output(text) => drop(std::io::stdout().write_all(text.as_bytes())),
        Line::Error(text) => drop(std::io::stderr().write_all(text.as_bytes())),
    })
}

/// The same, but shows nothing: all that was printed, as it came, is the second result.
pub(crate) fn gather(command: &mut Command, limit: Duration) -> Result<(Done, String)> {
    let mut text = String::new();
    let done = watch(command, limit, &mut |line| match line {
        Line::Output(part) | Line::Error(part) => text.push_str(part),
    })?;
    Ok((done, text))
}

/// Runs `command` silently until it prints a line in which `look` sees something, and kills it then.
pub(crate) fn until<T>(
    command: &mut Command,
    limit: Duration,
    look: impl Fn(&str) -> Option<T>,
) -> Result<(Done, Option<T>)> {
    let mut seen = None;
    let done = watch_while(command, limit, &mut |line| {
        let (Line::Output(text) | Line::Error(text)) = line;
        seen = look(text);
        seen.is_none()
    })?;
    Ok((done, seen))
}

/// What a program printed, and where; the last line may lack its end.
enum Line<'a> {
    Output(&'a str),
    Error(&'a str),
}

fn watch(command: &mut Command, limit: Duration, show: &mut dyn FnMut(Line)) -> Result<Done> {
    watch_while(command, limit, &mut |line| {
        show(line);
        true
    })
}

/// Goes on while `show` says so.
fn watch_while(
    command: &mut Command,
    limit: Duration,
    show: &mut dyn FnMut(Line) -> bool,
) -> Result<Done> {
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
    let (mut ended, mut failed): (Option<Instant>, Option<String>) = (None, None);
    loop {
        let mut goes_on = true;
        match lines.recv_timeout(Duration::from_millis(50)) {
            Ok((true, line)) => {
                goes_on = show(Line::Output(&line));
                done.output.push_str(&line);
            }
            Ok((false, line)) => goes_on = show(Line::Error(&line)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) if ended.is_some() => break,
            Err(RecvTimeoutError::Disconnected) => thread::sleep(Duration::from_millis(20)),
        }
        if !goes_on {
            kill_tree(&mut child);
            child.wait()?;
            return Ok(done);
        }
        if ended.is_none() {
            if let Some(status) = child.try_wait()? {
                done.success = status.success() && !done.timed_out;
                if !status.success() {
                    // Said last: what it printed at its end may be on its way yet.
                    failed = Some(format!("`{name}` ended with {status}\n"));
                }
                ended = Some(Instant::now());
            } else if !done.timed_out && started.elapsed() > limit {
                let seconds = limit.as_secs();
                let text = format!("`{name}` is killed: still running after {seconds} s\n");
                show(Line::Error(&text));
                done.timed_out = true;
                kill_tree(&mut child);
            }
        }
        if ended.is_some_and(|at| at.elapsed() > LINGER) {
            break;
        }
    }
    if let Some(text) = failed {
        show(Line::Error(&text));
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

/// Processor time that all our children used that have ended, in seconds.
pub(crate) fn children_seconds() -> Option<f64> {
    /// Linux counts this time in hundredths on every machine that it shows it on.
    const TICKS: f64 = 100.0;
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // After the state come the fields 4 and on; 16 and 17 are what ended children used, as user and in the kernel.
    let mut times = stat.rsplit_once(')')?.1.split_whitespace().skip(13);
    let mut next = || times.next()?.parse::<f64>().ok();
    Some((next()? + next()?) / TICKS)
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
    fn gathers_what_both_streams_say() {
        let script = "echo out; sleep 0.1; echo err >&2; sleep 0.1; printf end; exit 3";
        let (done, text) = gather(&mut sh(script), Duration::from_secs(20)).unwrap();
        assert!(!done.success);
        assert_eq!(done.output, "out\nend");
        assert!(text.starts_with("out\nerr\nend"), "{text}");
        assert!(text.contains("ended with exit status: 3"), "{text}");
    }

    #[test]
    fn a_program_is_stopped_when_it_has_said_what_is_looked_for() {
        let script = "echo one; echo two; sleep 60; echo three";
        let look = |line: &str| line.starts_with("two").then_some(2);
        let (done, seen) = until(&mut sh(script), Duration::from_secs(20), look).unwrap();
        assert_eq!(seen, Some(2));
        assert!(!done.success && !done.timed_out);
        let (done, seen) = until(&mut sh("echo one"), Duration::from_secs(20), look).unwrap();
        assert!(done.success && seen.is_none());
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
    fn the_time_of_children_is_counted() {
        let before = children_seconds().unwrap();
        let script = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        run(&mut sh(script), Duration::from_secs(60)).unwrap();
        let used = children_seconds().unwrap() - before;
        assert!(used > 0.01, "{used} s");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = capture(&mut Command::new("no-such-program-here")).unwrap_err();
        assert!(format!("{error:#}").contains("no-such-program-here"));
        assert!(!exists("no-such-program-here", "--version"));
    }
}

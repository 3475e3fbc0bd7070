//! The log: where it goes, and how much of the same it takes.
//!
//! Some lines are written at the wish of whoever sends messages: a refused login, a message that makes no sense. Of each place
//! in the program so many lines are written within a while; of the rest it is said how many there were.

mod json;
mod queue;

use queue::Queue;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::HashMap;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::panic::PanicHookInfo;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;
use weir_control::{Code, Error};

/// Lines of one place within [`WHILE`].
const MOST: u64 = 100;
const WHILE: Duration = Duration::from_secs(10);

/// What is logged: what `WEIR_LOG` says (e.g. `debug`, `weir_control=trace`), else `default`.
fn log_filter(default: &str) -> anyhow::Result<tracing_subscriber::EnvFilter> {
    let filter = std::env::var("WEIR_LOG").unwrap_or_else(|_| default.to_string());
    let filter = tracing_subscriber::EnvFilter::try_new(&filter).map_err(|e| {
        Error::new(Code::InvalidRequest, format!("WEIR_LOG is `{filter}`"))
            .because(e)
            .hint("set it to error, warn, info, debug or trace")
    })?;
    Ok(filter)
}

/// Whether standard error has lines of JSON, since it has the log.
pub(crate) fn is_json_on_stderr() -> bool {
    QUEUE.get().is_some_and(Queue::is_json)
}

/// Whether lines are JSON: what `WEIR_LOG_FORMAT` says.
fn is_json() -> anyhow::Result<bool> {
    match std::env::var("WEIR_LOG_FORMAT").as_deref() {
        Ok("json") => Ok(true),
        Ok("text" | "") | Err(_) => Ok(false),
        Ok(other) => Err(Error::new(Code::InvalidRequest, format!("WEIR_LOG_FORMAT is `{other}`"))
            .hint("set it to text or json")
            .into()),
    }
}

/// Lines on their way to standard error.
static QUEUE: OnceLock<Queue> = OnceLock::new();
/// How long the end of the process waits for them.
const END: Duration = Duration::from_secs(1);

/// Waits a little until what was logged is written: before the process ends.
pub(crate) fn settle() {
    if let Some(queue) = QUEUE.get() {
        queue.settle(END);
    }
}

/// Says something beside the log, by the same way. False: nothing is logged to standard error.
pub(crate) fn say(text: &str) -> bool {
    let Some(mut queue) = QUEUE.get().cloned() else { return false };
    let said = queue.write_all(text.as_bytes()).is_ok();
    settle();
    said
}

/// The same of a panic, as it is said otherwise. Waits for nobody: what panics may be contained, and goes on.
pub(crate) fn panicked(info: &PanicHookInfo<'_>) -> bool {
    let Some(mut queue) = QUEUE.get().cloned() else { return false };
    let thread = std::thread::current();
    let trace = Backtrace::capture();
    let trace = match trace.status() {
        BacktraceStatus::Captured => format!("{trace}\n"),
        _ => String::new(),
    };
    let name = thread.name().unwrap_or("without a name");
    let line = queue.line("error", format!("thread '{name}' {info}\n{trace}").trim_end());
    queue.write_all(line.as_bytes()).is_ok()
}

/// Sends log lines to standard error.
pub(crate) fn log_to_stderr(default: &str) -> anyhow::Result<()> {
    let (filter, json) = (log_filter(default)?, is_json()?);
    let queue = Queue::to(io::stderr(), json)?;
    let to = QUEUE.get_or_init(|| queue).clone();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .log_internal_errors(false)
        .with_writer(move || to.clone())
        .with_ansi(io::stderr().is_terminal())
        .map_event_format(|usual| Sparing::new(usual, json))
        .try_init()
        .map_err(|e| anyhow::anyhow!("the log cannot be set up: {e}"))
}

/// Sends log lines to a file, which is looked for with every line: its directory may come later and go earlier than
/// this process.
pub(crate) fn log_to_file(default: &str, path: Option<PathBuf>) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let json = is_json()?;
    tracing_subscriber::fmt()
        .with_env_filter(log_filter(default)?)
        .log_internal_errors(false)
        .with_writer(move || -> Box<dyn Write> {
            let file = std::fs::OpenOptions::new().append(true).create(true).open(&path);
            file.map_or_else(|_| Box::new(io::sink()) as Box<dyn Write>, |f| Box::new(f))
        })
        .with_ansi(false)
        .map_event_format(|usual| Sparing::new(usual, json))
        .try_init()
        .map_err(|e| anyhow::anyhow!("the log cannot be set up: {e}"))
}

/// What has come from one place in the program.
#[derive(Debug, Clone, Copy)]
struct Lines {
    since: Instant,
    written: u64,
    left_out: u64,
}

/// Counts lines by the place that they come from.
#[derive(Debug)]
struct Tally<P>(HashMap<P, Lines>);

impl<P: std::hash::Hash + Eq> Tally<P> {
    /// Whether a line of this place is to be written now, and how many were left out before it.
    fn admit(&mut self, place: P, now: Instant) -> Option<u64> {
        let lines = self.0.entry(place).or_insert(Lines { since: now, written: 0, left_out: 0 });
        let mut before = 0;
        if now.saturating_duration_since(lines.since) >= WHILE {
            before = lines.left_out;
            *lines = Lines { since: now, written: 0, left_out: 0 };
        }
        if lines.written == MOST {
            lines.left_out += 1;
            return None;
        }
        lines.written += 1;
        Some(before)
    }
}

/// The usual lines, but not more of one kind than anybody reads.
#[derive(Debug)]
struct Sparing {
    usual: Format,
    json: bool,
    tally: Mutex<Tally<Identifier>>,
}

impl Sparing {
    /// Places in the program are no business of whoever reads its lines.
    fn new(usual: Format, json: bool) -> Sparing {
        let usual = usual.with_target(false);
        Sparing { usual, json, tally: Mutex::new(Tally(HashMap::new())) }
    }
}

impl<S, N> FormatEvent<S, N> for Sparing
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut left_out = 0;
        // Who asks for more than `info` looks for something, and wants all of it.
        if *event.metadata().level() <= Level::INFO {
            let place = event.metadata().callsite();
            let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
            match tally.admit(place, Instant::now()) {
                None => return Ok(()),
                Some(n) => left_out = n,
            }
        }
        if self.json {
            return writer.write_str(&json::line(event, left_out));
        }
        if left_out > 0 {
            writeln!(writer, "... {left_out} lines like the next one were left out")?;
        }
        self.usual.format_event(ctx, writer, event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test runs itself again for what ends a process.
    const AGAIN: &str = "WEIR_TEST_PANICS";

    #[test]
    fn a_panic_waits_for_no_reader_of_the_log() {
        if std::env::var_os(AGAIN).is_some() {
            log_to_stderr("info").expect("a log");
            weir_reactor::contain_panics(panicked, || {
                settle();
                std::process::abort()
            });
            panic!("on purpose");
        }
        let (reader, mut log) = io::pipe().expect("a pipe");
        log.write_all(&[b'.'; 64 << 10]).expect("it has room");
        let mut child = std::process::Command::new(std::env::current_exe().expect("a program"))
            .args(["--exact", "cli::log::tests::a_panic_waits_for_no_reader_of_the_log"])
            .arg("--nocapture")
            .env(AGAIN, "1")
            .stdout(std::process::Stdio::null())
            .stderr(log)
            .spawn()
            .expect("it runs");
        let begun = Instant::now();
        let ended = loop {
            if let Some(ended) = child.try_wait().expect("it is ours") {
                break ended;
            }
            if begun.elapsed() > Duration::from_secs(60) {
                child.kill().expect("killed");
                panic!("it waits for the reader");
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(6));
        drop(reader);
    }

    #[test]
    fn of_the_same_so_much_is_written_within_a_while() {
        let (mut t, now) = (Tally(HashMap::new()), Instant::now());
        for place in ["a", "b"] {
            let written = (0..5000).filter(|_| t.admit(place, now).is_some()).count();
            assert_eq!(written as u64, MOST);
        }
        let later = now + WHILE;
        assert_eq!(t.admit("a", later), Some(5000 - MOST));
        assert_eq!(t.admit("a", later), Some(0));
        assert_eq!(t.admit("c", later), Some(0));
    }
}

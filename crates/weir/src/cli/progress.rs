//! How far something is that takes long: one way for all commands, on standard error. On a terminal it is one line, written
//! over again and again; elsewhere a line now and then. Programs that asked for JSON are told nothing.

use super::table::clip;
use super::terminal;
use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use weir_control::units::format_size;

/// Least time between two pictures on a terminal.
const REDRAW: Duration = Duration::from_millis(200);
/// Time between two lines that no terminal gets.
const LINES: Duration = Duration::from_secs(30);
/// Another time between those lines, in seconds.
const VARIABLE: &str = "WEIR_PROGRESS";
/// Over how long a rate is measured.
const WINDOW: Duration = Duration::from_secs(10);
/// A wait is worth a line only when it lasts so long.
const WAIT: Duration = Duration::from_secs(1);

/// How far something is.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Step {
    /// What is being done: `copying`.
    pub(crate) doing: String,
    /// Bytes done.
    pub(crate) done: u64,
    /// Bytes in all, where that is known.
    pub(crate) total: Option<u64>,
    /// Bytes a second, where somebody has measured them.
    pub(crate) rate: Option<u64>,
    /// Seconds that are left, where somebody has reckoned them.
    pub(crate) left: Option<u64>,
    /// Why it does not go on, or what is wrong so far.
    pub(crate) note: Option<String>,
}

/// Seconds as `3d 4h`, `4h 5m`, `5m 6s`, `7s`.
pub(crate) fn seconds(s: u64) -> String {
    match (s / 86_400, s / 3600 % 24, s / 60 % 60, s % 60) {
        (0, 0, 0, s) => format!("{s}s"),
        (0, 0, m, s) => format!("{m}m {s}s"),
        (0, h, m, _) => format!("{h}h {m}m"),
        (d, h, _, _) => format!("{d}d {h}h"),
    }
}

/// So much of so much in percent: 100 only when it is all.
pub(crate) fn percent(done: u64, total: u64) -> u64 {
    let (done, total) = (u128::from(done.min(total)), u128::from(total));
    (done * 100).checked_div(total).unwrap_or(100) as u64
}

/// Bytes a second, for people.
pub(crate) fn rate(bytes_per_second: u64) -> String {
    format!("{}/s", format_size(bytes_per_second))
}

/// A line about it.
fn line(what: &str, s: &Step) -> String {
    let mut parts = Vec::new();
    match s.total {
        Some(total) => {
            let (percent, done) = (percent(s.done, total), format_size(s.done.min(total)));
            parts.push(format!("{} {percent} %", s.doing));
            parts.push(format!("{done} of {}", format_size(total)));
        }
        None => parts.push(format!("{} {}", s.doing, format_size(s.done))),
    }
    parts.extend(s.rate.map(rate));
    parts.extend(s.left.map(|n| format!("{} left", seconds(n))));
    let note = s.note.as_ref().map_or(String::new(), |n| format!(" ({n})"));
    format!("{what}: {}{note}", parts.join(", "))
}

/// Measures a rate that nobody else has measured.
#[derive(Debug, Default)]
struct Meter(VecDeque<(Duration, u64)>);

impl Meter {
    /// Bytes a second of late, when so much is done at this time.
    fn rate(&mut self, at: Duration, done: u64) -> Option<u64> {
        if self.0.back().is_some_and(|(_, d)| *d > done) {
            // It began anew.
            self.0.clear();
        }
        self.0.push_back((at, done));
        while self.0.len() > 2
            && self.0.front().is_some_and(|(t, _)| at.saturating_sub(*t) > WINDOW)
        {
            self.0.pop_front();
        }
        let (from, before) = *self.0.front()?;
        let took = at.saturating_sub(from).as_secs_f64();
        (took >= 0.5).then(|| ((done - before) as f64 / took) as u64)
    }
}

/// The seconds that are left, at this rate.
fn left(done: u64, total: u64, rate: u64) -> Option<u64> {
    total.saturating_sub(done).checked_div(rate)
}

/// Whom it is shown to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    Nobody,
    Terminal,
    /// A file or a pipe: so often.
    Lines(Duration),
}

impl To {
    fn find(json: bool) -> To {
        if json {
            return To::Nobody;
        }
        if std::io::stderr().is_terminal() {
            return To::Terminal;
        }
        let told = std::env::var(VARIABLE).ok().and_then(|v| v.parse().ok());
        To::Lines(told.and_then(|s| Duration::try_from_secs_f64(s).ok()).unwrap_or(LINES))
    }
}

/// Shows how far something is.
#[derive(Debug)]
pub(crate) struct Progress {
    what: String,
    to: To,
    began: Instant,
    shown: Option<Instant>,
    meter: Meter,
}

impl Progress {
    /// About `what`; nothing is shown to programs that asked for JSON.
    pub(crate) fn new(what: impl Into<String>, json: bool) -> Progress {
        let (to, began) = (To::find(json), Instant::now());
        Progress { what: what.into(), to, began, shown: None, meter: Meter::default() }
    }

    fn is_due(&self) -> bool {
        match self.to {
            To::Nobody => false,
            To::Terminal => self.shown.is_none_or(|t| t.elapsed() >= REDRAW),
            To::Lines(every) => self.shown.unwrap_or(self.began).elapsed() >= every,
        }
    }

    fn draw(&mut self, text: &str) {
        self.shown = Some(Instant::now());
        let mut err = std::io::stderr().lock();
        // Whoever does not read what is said besides has the work done all the same.
        drop(match self.to {
            To::Nobody => Ok(()),
            To::Terminal => {
                let room = terminal::columns_of_errors().saturating_sub(1);
                write!(err, "\r\x1b[K{}", clip(text, room)).and_then(|()| err.flush())
            }
            To::Lines(_) => writeln!(err, "{text}"),
        });
    }

    /// It is so far. Costs little when it is asked for often.
    pub(crate) fn show(&mut self, mut step: Step) {
        if !self.is_due() {
            return;
        }
        // Whoever measures it may know nothing yet.
        if step.rate.is_none_or(|r| r == 0) {
            step.rate = self.meter.rate(self.began.elapsed(), step.done);
            step.left = step.total.zip(step.rate).and_then(|(t, r)| left(step.done, t, r));
        }
        self.draw(&line(&self.what, &step));
    }

    /// It is waited for, and nothing is known but for how long.
    fn waits(&mut self) {
        let took = self.began.elapsed();
        if took >= WAIT && self.is_due() {
            let text = format!("{}: {} so far", self.what, seconds(took.as_secs()));
            self.draw(&text);
        }
    }
}

impl Drop for Progress {
    /// What comes next finds an empty line.
    fn drop(&mut self) {
        if self.to == To::Terminal && self.shown.is_some() {
            super::say("\r\x1b[K");
        }
    }
}

/// Waits for an answer of which nothing can be told before it comes.
pub(crate) async fn waited<R>(
    what: impl Into<String>,
    json: bool,
    work: impl Future<Output = R>,
) -> R {
    let mut progress = Progress::new(what, json);
    let mut work = std::pin::pin!(work);
    loop {
        match tokio::time::timeout(REDRAW, &mut work).await {
            Ok(done) => return done,
            Err(_) => progress.waits(),
        }
    }
}

/// Exit code of who is interrupted, as shells give it.
const INTERRUPTED: i32 = 130;

/// Waits for what the daemon does by itself. Who does not want to wait any more (Ctrl-C) is told that it goes on, and what `ends` it.
pub(crate) async fn while_wanted<R>(
    json: bool,
    ends: impl Into<String>,
    work: impl Future<Output = R>,
) -> R {
    let done = {
        let mut work = std::pin::pin!(work);
        tokio::select! {
            done = &mut work => Some(done),
            Ok(()) = tokio::signal::ctrl_c() => None,
        }
    };
    match done {
        Some(done) => done,
        None => {
            if !json {
                super::say(&format!("not waited for any more: it goes on; {}\n", ends.into()));
            }
            super::log::settle();
            std::process::exit(INTERRUPTED)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_what_is_known() {
        let mut s = Step { doing: "copying".into(), done: 1 << 29, ..Step::default() };
        assert_eq!(line("db-01", &s), "db-01: copying 512 MiB");
        s.total = Some(10 << 30);
        s.rate = Some(256 << 20);
        s.left = Some(38);
        assert_eq!(line("db-01", &s), "db-01: copying 5 %, 512 MiB of 10 GiB, 256 MiB/s, 38s left");
        s.note = Some("waits".into());
        assert!(line("db-01", &s).ends_with("38s left (waits)"));
    }

    #[test]
    fn percents_are_not_rounded_up_to_all() {
        for (done, total, is) in [(0, 0, 100), (0, 7, 0), (999, 1000, 99), (7, 7, 100), (9, 7, 100)]
        {
            assert_eq!(percent(done, total), is);
        }
        assert_eq!(percent(u64::MAX - 1, u64::MAX), 99);
    }

    #[test]
    fn times_for_people() {
        for (s, text) in [(0, "0s"), (59, "59s"), (61, "1m 1s"), (3660, "1h 1m"), (90_000, "1d 1h")]
        {
            assert_eq!(seconds(s), text);
        }
    }

    #[test]
    fn a_rate_is_of_late_and_begins_anew() {
        let mut m = Meter::default();
        let at = |s: u64| Duration::from_secs(s);
        assert_eq!(m.rate(at(0), 0), None);
        assert_eq!(m.rate(at(2), 200), Some(100));
        for s in 3..30 {
            m.rate(at(s), 200);
        }
        assert_eq!(m.rate(at(30), 200), Some(0), "it stands still");
        assert_eq!(m.rate(at(31), 10), None, "another round");
        assert_eq!(m.rate(at(32), 20), Some(10));
        assert_eq!(
            (left(0, 100, 0), left(50, 100, 10), left(200, 100, 10)),
            (None, Some(5), Some(0))
        );
    }
}

//! `weir top`: the live view.

mod rows;
mod screen;

use super::output;
use super::parse;
use super::terminal::{self, Keyboard};
use rows::{Job, Sort, View};
use screen::Wish;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use weir_control::client::Client;
use weir_control::live::Status;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  weir top\n  weir top --view jobs\n  weir top --sort latency --once\n  \
    weir top --json --interval 10s --count 6\n\n\
    On a terminal: v, p, j, h, r and b choose what is looked at, s and S the order, arrows and page keys scroll, the space \
    bar holds the picture, q ends. There are colours unless NO_COLOR is set. Elsewhere pictures follow each other."
)]
pub(crate) struct Args {
    /// Print once and end.
    #[arg(long, conflicts_with = "count")]
    once: bool,
    /// Print so many times and end.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// Time between two pictures, at least 100ms.
    #[arg(long, short, default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// What to look at [default: volumes on a terminal, else everything].
    #[arg(long, value_enum)]
    view: Option<View>,
    /// What comes first.
    #[arg(long, value_enum, default_value = "load")]
    sort: Sort,
}

/// Another screen and no cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Least time between two pictures.
const LEAST: Duration = Duration::from_millis(100);

/// A time between two pictures.
fn interval(text: &str) -> Result<Duration, String> {
    match parse::duration(text)? {
        time if time < LEAST => Err(format!("at least {} ms", LEAST.as_millis())),
        time => Ok(time),
    }
}

/// What is asked for at once.
#[derive(Debug, Serialize)]
struct Round {
    #[serde(flatten)]
    status: Status,
    jobs: Vec<Job>,
}

impl Round {
    async fn ask(client: &Client) -> anyhow::Result<Round> {
        let (status, migrations) = (client.status().await?, client.migrations().await?);
        let jobs = rows::jobs(&status, &migrations);
        Ok(Round { status, jobs })
    }
}

/// The other screen, until this is dropped.
struct Screen;

impl Screen {
    fn enter() -> Screen {
        print!("{ENTER}");
        Screen
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        print!("{LEAVE}");
        drop(std::io::stdout().flush());
    }
}

impl Args {
    pub(crate) async fn run(self, client: Client, json: bool) -> anyhow::Result<()> {
        // What is wrong is said where it can be read.
        let first = Round::ask(&client).await?;
        let times = if self.once { Some(1) } else { self.count };
        if json || times.is_some() || !std::io::stdout().is_terminal() {
            return self.print(&client, first, times, json).await;
        }
        let (_screen, mut keyboard) = (Screen::enter(), Keyboard::open());
        let (mut end, mut hangup) =
            (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
        tokio::select! {
            ended = self.draw(&client, first, &mut keyboard) => ended,
            _ = tokio::signal::ctrl_c() => Ok(()),
            _ = end.recv() => Ok(()),
            _ = hangup.recv() => Ok(()),
        }
    }

    /// One after the other.
    async fn print(
        &self,
        client: &Client,
        mut round: Round,
        times: Option<u32>,
        json: bool,
    ) -> anyhow::Result<()> {
        let mut printed = 0;
        loop {
            if json {
                output::json_line(&round)?;
            } else {
                let between = if printed > 0 { "\n" } else { "" };
                let text = screen::listing(&round, self.view, self.sort);
                output::text(&format!("{between}{text}"))?;
            }
            printed += 1;
            if times == Some(printed) {
                return Ok(());
            }
            tokio::time::sleep(self.interval).await;
            round = Round::ask(client).await?;
        }
    }

    /// On the terminal, which is asked for its size each time.
    async fn draw(
        &self,
        client: &Client,
        mut round: Round,
        keyboard: &mut Keyboard,
    ) -> anyhow::Result<()> {
        let mut wish = Wish::new(self.view.unwrap_or(View::Volumes), self.sort);
        let colour = terminal::has_colour();
        let mut resized = signal(SignalKind::window_change())?;
        let mut tick = tokio::time::interval(self.interval);
        tick.tick().await;
        loop {
            let (lines, page) = screen::screen(&round, &mut wish, terminal::size());
            let mut out = std::io::stdout().lock();
            out.write_all(screen::drawn(&lines, colour).as_bytes())?;
            out.flush()?;
            drop(out);
            tokio::select! {
                key = keyboard.next() => {
                    if !wish.key(key, page) {
                        return Ok(());
                    }
                }
                _ = resized.recv() => print!("\x1b[2J"),
                _ = tick.tick() => {
                    if !wish.held {
                        round = Round::ask(client).await?;
                    }
                }
            }
        }
    }
}

/// A number of things a second in a few characters.
pub(crate) fn rate(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.2}M", v / 1e6),
        v if v >= 1e4 => format!("{:.1}k", v / 1e3),
        v => format!("{v:.0}"),
    }
}

/// A time in a few characters.
pub(crate) fn time(ns: u64) -> String {
    match ns {
        0 => "-".into(),
        n if n < 1_000_000 => format!("{:.1}us", n as f64 / 1e3),
        n if n < 1_000_000_000 => format!("{:.2}ms", n as f64 / 1e6),
        n => format!("{:.2}s", n as f64 / 1e9),
    }
}

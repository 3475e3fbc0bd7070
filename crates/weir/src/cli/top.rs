//! `weir top`: the live view.

use super::output::{self, Table};
use super::parse;
use std::time::Duration;
use weir_control::client::Client;
use weir_control::live::{IoStats, Status};
use weir_control::units::format_size;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  weir top\n  weir top --once\n  weir top --json --interval 10s"
)]
pub(crate) struct Args {
    /// Print once and end.
    #[arg(long)]
    once: bool,
    /// Time between two pictures.
    #[arg(long, short, default_value = "1s", value_parser = parse::duration)]
    interval: Duration,
}

/// Another screen and no cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// To the upper left corner; and: clear what is right of and below the text.
const HOME: &str = "\x1b[H";
const CLEAR: &str = "\x1b[J";

impl Args {
    pub(crate) async fn run(self, client: Client, json: bool) -> anyhow::Result<()> {
        let first = client.status().await?;
        if self.once {
            return if json { output::json_line(&first) } else { output::text(&picture(&first)) };
        }
        if json {
            output::json_line(&first)?;
            loop {
                tokio::time::sleep(self.interval).await;
                output::json_line(&client.status().await?)?;
            }
        }
        print!("{ENTER}");
        let ended = tokio::select! {
            ended = self.draw(&client, first) => ended,
            _ = tokio::signal::ctrl_c() => Ok(()),
        };
        print!("{LEAVE}");
        ended
    }

    async fn draw(&self, client: &Client, first: Status) -> anyhow::Result<()> {
        let mut status = first;
        loop {
            // Lines end with "clear to the right", so that no flicker and no leftovers show.
            let text = picture(&status).replace('\n', "\x1b[K\n");
            output::text(&format!("{HOME}{text}Ctrl-C ends\x1b[K\n{CLEAR}"))?;
            tokio::time::sleep(self.interval.max(Duration::from_millis(100))).await;
            status = client.status().await?;
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

fn io(s: &IoStats) -> [String; 4] {
    [
        rate(s.iops),
        format!("{}/s", format_size(s.bytes_per_second as u64)),
        time(s.latency.p50_ns),
        time(s.latency.p99_ns),
    ]
}

/// The whole picture as text.
fn picture(s: &Status) -> String {
    let live = &s.live;
    let sum = |f: fn(&IoStats) -> f64| -> f64 {
        live.volumes.iter().map(|v| f(&v.read) + f(&v.write)).sum()
    };
    let hosts: usize = live.ports.iter().map(|p| p.nexuses.len()).sum();
    let channels: u64 = live.ports.iter().map(|p| p.channels).sum();
    let mut text = format!(
        "weir {}  {} IOPS  {}/s  {hosts} host(s), {channels} channel(s)  {} fault(s)\n\n",
        s.version,
        rate(sum(|s| s.iops)),
        format_size(sum(|s| s.bytes_per_second) as u64),
        s.faults.len()
    );
    let mut t = Table::new(&[
        "VOLUME", ">R IOPS", ">R BW", ">R P50", ">R P99", ">W IOPS", ">W BW", ">W P50", ">W P99",
        ">QD", ">ERRORS",
    ]);
    for v in &live.volumes {
        let mut row = vec![v.name.clone()];
        row.extend(io(&v.read));
        row.extend(io(&v.write));
        row.push(v.in_flight.to_string());
        row.push((v.read.errors + v.write.errors).to_string());
        t.row(row);
    }
    text.push_str(&t.text());
    text.push('\n');
    let mut t = Table::new(&["HOST", "INITIATOR", "PEER", ">CHANNELS", ">QD"]);
    for n in live.ports.iter().flat_map(|p| &p.nexuses) {
        let host = n.host.clone().unwrap_or_else(|| "-".into());
        let (channels, depth) = (n.channels.to_string(), n.in_flight.to_string());
        t.row(vec![host, n.initiator.clone(), n.peer.clone(), channels, depth]);
    }
    text.push_str(&t.text());
    text.push('\n');
    let mut t = Table::new(&[">CORE", ">BUSY", ">AWAKE", ">POLLS", ">USEFUL", ">SLEEPS"]);
    for r in &live.reactors {
        t.row(vec![
            r.core.to_string(),
            format!("{:.1}%", r.busy_percent),
            format!("{:.1}%", r.awake_percent),
            rate(r.polls as f64),
            rate(r.useful_polls as f64),
            rate(r.sleeps as f64),
        ]);
    }
    text.push_str(&t.text());
    text.push('\n');
    let mut t = Table::new(&["POOL OF", ">TOTAL", ">FREE", ">LEAST FREE", ">WAITING"]);
    for c in &live.census {
        t.row(vec![
            c.name.clone(),
            c.total.to_string(),
            c.free.to_string(),
            c.least_free.to_string(),
            c.waiting.to_string(),
        ]);
    }
    text + &t.text()
}

//! `weir status`.

use super::output::{self, Table};
use super::progress;
use super::table::counted;
use std::time::{Duration, SystemTime};
use weir_control::client::Client;
use weir_control::live::{Starting, Status};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  weir status\n  weir status --json | jq .live.volumes")]
pub(crate) struct Args {}

impl Args {
    pub(crate) async fn run(self, client: Client, json: bool) -> anyhow::Result<()> {
        output::show(json, &client.status().await?, text)
    }
}

/// Objects of a start that are named; more are counted.
const NAMED: usize = 5;

/// What a start waits for.
fn starting(s: &Starting) -> String {
    let some = |all: &[String]| {
        let more = match all.len().saturating_sub(NAMED) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        all[..all.len().min(NAMED)].join(", ") + &more
    };
    let since = SystemTime::UNIX_EPOCH + Duration::from_millis(s.since_ms);
    let seconds = SystemTime::now().duration_since(since).unwrap_or_default().as_secs();
    let mut text = format!("starting, for {}", progress::seconds(seconds));
    if !s.pools.is_empty() {
        text += &format!("; not open yet: {}", some(&s.pools));
    }
    if !s.declared.is_empty() {
        text += &format!("; not as declared yet: {}", some(&s.declared));
    }
    if let Some(work) = &s.work {
        text += &format!("; {work}");
    }
    text
}

fn text(s: &Status) -> String {
    let health = match (s.faults.len(), &s.starting) {
        (0, None) => "all is well".to_string(),
        (0, Some(start)) => starting(start),
        (n, None) => format!("{}, see below", counted(n, "fault")),
        (n, Some(start)) => format!("{}; {}, see below", starting(start), counted(n, "fault")),
    };
    let mut text = output::fields(&[
        (
            "weir",
            format!("{}, process {}, up {}", s.version, s.pid, progress::seconds(s.uptime_seconds)),
        ),
        ("data directory", s.data_dir.clone()),
        ("initiator port", s.live.initiator.clone().unwrap_or_else(|| "-".into())),
        (
            "configuration",
            format!(
                "revision {}: {}, {}, {}, {}",
                s.revision,
                counted(s.pools, "pool"),
                counted(s.volumes, "volume"),
                counted(s.hosts, "host"),
                counted(s.maps, "mapping")
            ),
        ),
        ("health", health),
    ]);
    for f in &s.faults {
        text.push_str(&format!("\nFAULT {}: {}\n      do: {}\n", f.object, f.text, f.hint));
    }
    if !s.live.ports.is_empty() {
        let mut t =
            Table::new(&["TARGET", "LISTENING", ">HOSTS", ">CHANNELS", ">LOGINS", ">REFUSED"]);
        for p in &s.live.ports {
            t.row(vec![
                p.name.clone(),
                p.listening.join(", "),
                p.nexuses.len().to_string(),
                p.channels.to_string(),
                p.logins.to_string(),
                p.rejects.to_string(),
            ]);
        }
        text.push_str(&format!("\n{}", t.text()));
    }
    if s.live.ports.iter().any(|p| !p.nexuses.is_empty()) {
        let mut t = Table::new(&["HOST", "INITIATOR", "PEER", "TARGET", ">CHANNELS"]);
        for p in &s.live.ports {
            for n in &p.nexuses {
                let host = n.host.clone().unwrap_or_else(|| "-".into());
                let channels = n.channels.to_string();
                t.row(vec![host, n.initiator.clone(), n.peer.clone(), p.name.clone(), channels]);
            }
        }
        text.push_str(&format!("\n{}", t.text()));
    }
    text + "\n`weir top` shows load and latencies.\n"
}

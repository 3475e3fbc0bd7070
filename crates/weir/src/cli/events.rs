//! `weir events`.

use super::output;
use std::time::Duration;
use weir_base::date::Date;
use weir_control::client::Client;
use weir_control::events::Event;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  weir events\n  weir events --follow --json")]
pub(crate) struct Args {
    /// Wait for further events until Ctrl-C.
    #[arg(long, short)]
    follow: bool,
    /// Only events after this number.
    #[arg(long, default_value_t = 0)]
    after: u64,
}

impl Args {
    pub(crate) async fn run(self, client: Client, json: bool) -> anyhow::Result<()> {
        let mut after = self.after;
        let mut wait = Duration::ZERO;
        let mut printed = false;
        loop {
            let page = client.events(after, wait).await?;
            // To who asks for all there are it says nothing.
            if page.lost > 0 && after > 0 {
                super::say("earlier events are no longer kept\n");
            }
            for event in &page.events {
                if json {
                    output::json_line(event)?;
                } else {
                    output::text(&line(event))?;
                }
            }
            printed |= !page.events.is_empty();
            if !self.follow && page.events.is_empty() {
                return match printed || json {
                    true => Ok(()),
                    false => output::text(&none(self.after)),
                };
            }
            after = page.next;
            if self.follow {
                wait = Duration::from_secs(30);
            }
        }
    }
}

fn none(after: u64) -> String {
    match after {
        0 => "no events yet".into(),
        n => format!("no events after {n}"),
    }
}

fn line(e: &Event) -> String {
    let progress = match &e.progress {
        Some(p) if p.total > 0 => format!(" {}%", p.done.saturating_mul(100) / p.total),
        _ => String::new(),
    };
    let (time, by) = (date(e.time_ms), &e.by);
    format!("{:>6}  {time}  {by:<11} {:<16} {}{progress}", e.seq, e.kind, e.text)
}

/// Date and time in UTC, e.g. `2026-02-28 23:59:59.999 UTC`.
fn date(ms: u64) -> String {
    let d = Date::of(ms / 1000);
    let (h, m, s, ms) = (d.hour, d.minute, d.second, ms % 1000);
    format!("{:04}-{:02}-{:02} {h:02}:{m:02}:{s:02}.{ms:03} UTC", d.year, d.month, d.day)
}

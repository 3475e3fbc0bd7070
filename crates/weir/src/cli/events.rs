//! `weir events`.

use super::output;
use std::time::Duration;
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
        loop {
            let page = client.events(after, wait).await?;
            if page.lost > 0 {
                super::say(&format!("{} earlier events are no longer kept\n", page.lost));
            }
            for event in &page.events {
                if json {
                    output::json_line(event)?;
                } else {
                    output::text(&line(event))?;
                }
            }
            if !self.follow && page.events.is_empty() {
                return Ok(());
            }
            after = page.next;
            if self.follow {
                wait = Duration::from_secs(30);
            }
        }
    }
}

fn line(e: &Event) -> String {
    let progress = match &e.progress {
        Some(p) if p.total > 0 => format!(" {}%", p.done.saturating_mul(100) / p.total),
        _ => String::new(),
    };
    let s = e.time_ms / 1000;
    let (h, m, s) = (s / 3600 % 24, s / 60 % 60, s % 60);
    let ms = e.time_ms % 1000;
    format!("{:>6}  {h:02}:{m:02}:{s:02}.{ms:03} UTC  {:<16} {}{progress}", e.seq, e.kind, e.text)
}

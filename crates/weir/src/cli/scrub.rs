//! `weir scrub`.

use super::output::{self, Table};
use super::parse;
use super::progress::{self, Progress, Step};
use clap::Subcommand;
use std::time::Duration;
use weir_control::client::Client;
use weir_control::live::ScrubLive;
use weir_control::server::ScrubSpec;
use weir_control::units::format_size;
use weir_control::{Code, Error};

/// Findings that are shown.
const SHOWN: usize = 20;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Read and verify every copy of everything in a protected pool, in the background, and mend what is damaged.
    #[command(
        after_help = "Examples:\n  weir scrub start safe --rate 200M\n  weir scrub start safe --wait"
    )]
    Start {
        /// The pool.
        pool: String,
        /// Bytes a second at most [default: as fast as possible].
        #[arg(long, value_parser = parse::size)]
        rate: Option<u64>,
        /// Wait for the end; exit code 9 if something was lost.
        #[arg(long)]
        wait: bool,
    },
    /// Show how far the scrub is, or how the last one ended, with what it found.
    #[command(after_help = "Example:\n  weir scrub status safe --json")]
    Status {
        /// The pool.
        pool: String,
    },
    /// End the scrub.
    #[command(after_help = "Example:\n  weir scrub stop safe")]
    Stop {
        /// The pool.
        pool: String,
    },
}

impl Command {
    pub(crate) async fn run(self, client: Client, json: bool) -> anyhow::Result<()> {
        match self {
            Command::Start { pool, rate, wait } => {
                let mut live = client.start_scrub(&pool, &ScrubSpec { rate }).await?;
                let over = async {
                    let mut progress = Progress::new(&pool, json);
                    while wait && let Some(l) = live.as_ref().filter(|l| l.state == "running") {
                        progress.show(step(l));
                        tokio::time::sleep(Duration::from_millis(200)).await;
                        live = client.scrub(&pool).await?;
                    }
                    Ok::<_, Error>(live)
                };
                let ends = format!(
                    "`weir scrub status {pool}` tells how far, `weir scrub stop {pool}` ends it"
                );
                let live = progress::while_wanted(json, ends, over).await?;
                output::show(json, &live, text)?;
                match live {
                    Some(l) if wait && l.lost > 0 => Err(Error::new(
                        Code::DataMismatch,
                        format!("{} blocks of pool {pool} have no good copy", l.lost),
                    )
                    .hint("`weir scrub status` lists them; restore what they belong to")
                    .into()),
                    Some(l) if wait && l.state == "failed" => {
                        Err(Error::new(Code::IoError, format!("the scrub of pool {pool} failed"))
                            .because(l.reason.unwrap_or_default())
                            .into())
                    }
                    Some(l) if wait && l.state == "stopped" => Err(Error::new(
                        Code::NotReady,
                        format!("the scrub of pool {pool} was stopped"),
                    )
                    .because("somebody has stopped it before it came to its end")
                    .hint("start it again; it begins anew")
                    .into()),
                    _ => Ok(()),
                }
            }
            Command::Status { pool } => output::show(json, &client.scrub(&pool).await?, text),
            Command::Stop { pool } => output::show(json, &client.stop_scrub(&pool).await?, text),
        }
    }
}

/// Bytes of a block of a protected pool.
const BLOCK: u64 = 4096;

fn step(l: &ScrubLive) -> Step {
    Step {
        doing: "scrubbing".into(),
        done: l.blocks * BLOCK,
        total: Some(l.of_blocks * BLOCK),
        rate: Some(l.pace.bytes_per_second),
        left: l.pace.seconds_left,
        note: (l.damaged > 0).then(|| format!("{} copies damaged, {} lost", l.damaged, l.lost)),
    }
}

fn text(live: &Option<ScrubLive>) -> String {
    let Some(l) = live else { return "no scrub since the pool was opened".into() };
    let percent = progress::percent(l.blocks, l.of_blocks);
    let is_running = l.state == "running";
    let left = l.pace.seconds_left.filter(|_| is_running);
    let goes = if is_running { progress::rate(l.pace.bytes_per_second) } else { "-".into() };
    let limit = if l.rate == 0 { "no limit".into() } else { format!("{}/s", format_size(l.rate)) };
    let why = l.reason.as_ref().map_or(String::new(), |r| format!(": {r}"));
    let mut text = output::fields(&[
        ("state", format!("{}{why}", l.state)),
        ("read", format!("{} blocks of about {} ({percent} %)", l.blocks, l.of_blocks)),
        ("rate", goes),
        ("left", left.map_or_else(|| "-".into(), progress::seconds)),
        ("limit", limit),
        ("time", progress::seconds(l.seconds)),
        ("damaged", format!("{} copies", l.damaged)),
        ("mended", format!("{} copies", l.repaired)),
        ("lost", format!("{} blocks", l.lost)),
    ]);
    if !l.findings.is_empty() {
        let mut t = Table::new(&[">BLOCK", "OF", "WHAT", "WHERE"]);
        for f in l.findings.iter().take(SHOWN) {
            let whose = f.whose.clone().unwrap_or_else(|| "-".into());
            t.row(vec![f.block.to_string(), whose, f.what.clone(), f.layer.clone()]);
        }
        text.push('\n');
        text.push_str(&t.text());
        let more = l.found.max(l.findings.len() as u64).saturating_sub(SHOWN as u64);
        if more > 0 {
            let hint = "`weir scrub status --json` has the first thousand";
            text.push_str(&format!("\n{more} more findings; {hint}"));
        }
    }
    text
}

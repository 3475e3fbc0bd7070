//! `weir snapshot policy`.

use super::output::{self, Table};
use super::snapshot::time;
use clap::Subcommand;
use weir_control::client::Client;
use weir_control::live::SnapshotRuleLive;
use weir_control::model::{SnapshotPolicySpec, SnapshotRule};

/// A rule as it is written on the command line.
pub(crate) fn rule(text: &str) -> Result<SnapshotRule, String> {
    text.parse().map_err(|e: weir_control::Error| e.to_string())
}

const RULES: &str = "Rules:\n  every=10m,keep=24            a snapshot every ten minutes, of which the newest 24 are kept\n  \
    every=1h,keep=48,group=db    the same hourly, at one instant for all volumes of the pool with that\n                               \
    group and period\n  Periods are a number and s, m, h or d and begin at whole multiples since 1970 (UTC). Several rules\n  \
    of a volume need different periods. Snapshots are called auto-PERIOD-DATE-TIME, in UTC.\n\n";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Have snapshots of volumes made and deleted periodically, in place of the rules that they had.
    #[command(after_help = format!("{RULES}Examples:\n  \
        weir snapshot policy set db-01 --snapshot every=10m,keep=24 --snapshot every=1d,keep=14\n  \
        weir snapshot policy set db-data db-log --snapshot every=10m,keep=24,group=db"))]
    Set {
        /// The volumes.
        #[arg(required = true)]
        volumes: Vec<String>,
        /// A rule; may be given several times.
        #[arg(long = "snapshot", short, required = true, value_name = "RULE", value_parser = rule)]
        rules: Vec<SnapshotRule>,
    },
    /// Show the rules, what they have made and when they are due.
    #[command(after_help = "Example:\n  weir snapshot policy show db-01")]
    Show {
        /// Only those of these volumes.
        volumes: Vec<String>,
    },
    /// End periodic snapshots of volumes. Those that were made stay.
    #[command(after_help = "Example:\n  weir snapshot policy clear db-01")]
    Clear {
        /// The volumes.
        #[arg(required = true)]
        volumes: Vec<String>,
    },
}

impl Command {
    pub(crate) async fn run(self, client: Client, json: bool) -> anyhow::Result<()> {
        match self {
            Command::Set { volumes, rules } => {
                let spec = SnapshotPolicySpec { volumes, rules };
                output::show(json, &client.set_policy(&spec).await?, |r| table(r))
            }
            Command::Show { volumes } => {
                let mut found = Vec::new();
                if volumes.is_empty() {
                    found = client.policies(None).await?;
                }
                for v in &volumes {
                    found.extend(client.policies(Some(v)).await?);
                }
                output::show(json, &found, |r| table(r))
            }
            Command::Clear { volumes } => {
                let spec = SnapshotPolicySpec { volumes, rules: Vec::new() };
                client.set_policy(&spec).await?;
                let gone = serde_json::json!({ "cleared": spec.volumes });
                output::show(json, &gone, |_| {
                    format!("no more periodic snapshots of {}", spec.volumes.join(", "))
                })
            }
        }
    }
}

fn table(all: &[SnapshotRuleLive]) -> String {
    if all.is_empty() {
        return "no periodic snapshots; `weir snapshot policy set VOLUME --snapshot every=10m,keep=24` begins some"
            .into();
    }
    let mut t = Table::new(&["VOLUME", "RULE", ">KEPT", "NEWEST", "NEXT (UTC)", "TROUBLE"]);
    for r in all {
        let next = if r.next == 0 { String::new() } else { time(r.next) };
        t.row(vec![
            r.volume.clone(),
            r.rule.clone(),
            r.kept.to_string(),
            r.last.clone().unwrap_or_default(),
            next,
            r.trouble.clone().unwrap_or_default(),
        ]);
    }
    t.text()
}

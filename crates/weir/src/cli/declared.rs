//! `weir apply`.

use super::output;
use std::path::PathBuf;
use weir_control::client::Client;
use weir_control::config::Config;
use weir_control::controller::{Applied, ApplyReport, NotApplied};
use weir_control::declare::{ApplySpec, DoomedVolume};
use weir_control::model::Action;
use weir_control::{Error, Result};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  weir apply weir.toml\n  weir apply weir.toml --dry-run\n  \
    weir apply weir.toml --prune\n\n\
    Only pools, volumes, hosts, maps and targets are applied; settings of the node itself take effect when the \
    daemon starts. What the file does not name stays as it is, unless --prune is given. What cannot be made so is \
    told, and keeps nothing else from being done; the exit code is that of the first failure.")]
pub(crate) struct Args {
    /// A configuration file as for `weir serve --config`.
    file: PathBuf,
    /// Only tell what would change.
    #[arg(long)]
    dry_run: bool,
    /// Remove what the file does not name; target ports only if it names one.
    #[arg(long)]
    prune: bool,
    /// Do not ask before volumes are deleted with their data, whichever there are then. Without a terminal and this they stay.
    #[arg(long, short, requires = "prune")]
    yes: bool,
}

impl Args {
    pub(crate) async fn run(self, client: Client, json: bool) -> anyhow::Result<()> {
        let config = Config::load(&self.file)?;
        let mut desired = config.desired();
        if config.targets.is_empty() && config.listen.is_empty() {
            // The default target port is for a node that starts; a running one has its own.
            desired.targets.clear();
        }
        let spec = ApplySpec { dry_run: self.dry_run, prune: self.prune, ..desired.into() };
        let delete_data = self.confirmed(&client, &spec).await?;
        let spec = ApplySpec { delete_data, delete_all_data: self.yes, ..spec };
        let report = client.apply(&spec).await?;
        output::show(json, &report, text)?;
        Ok(verdict(&report)?)
    }

    /// Volumes that somebody was asked about, and that may be deleted with their data: these, and none that comes meanwhile.
    async fn confirmed(
        &self,
        client: &Client,
        spec: &ApplySpec,
    ) -> anyhow::Result<Vec<DoomedVolume>> {
        if !self.prune || self.dry_run || self.yes || !output::can_ask() {
            return Ok(Vec::new());
        }
        let plan = client.apply(&ApplySpec { dry_run: true, ..spec.clone() }).await?;
        let gone = doomed(&plan);
        let names: Vec<&str> = gone.iter().map(|d| d.name.as_str()).collect();
        let question = format!("Delete {} and all data of these volumes?", names.join(", "));
        match gone.is_empty() || output::ask(&question)? {
            true => Ok(gone),
            false => Ok(Vec::new()),
        }
    }
}

/// The volumes that a plan would delete with their data.
fn doomed(plan: &ApplyReport) -> Vec<DoomedVolume> {
    let of = |a: &Applied| {
        let name = a.object.strip_prefix("volume/")?.to_string();
        Some(DoomedVolume { name, naa: a.naa? })
    };
    plan.applied.iter().filter(|a| a.action == Action::Deleted).filter_map(of).collect()
}

/// The first failure, if there is one.
fn verdict(report: &ApplyReport) -> Result<()> {
    let Some(first) = report.failed.first() else { return Ok(()) };
    let first = Error::from(first.error.clone());
    let (all, would) = (&report.failed, if report.dry_run { "would not be" } else { "are not" });
    let names: Vec<&str> = all.iter().map(|f| f.object.as_str()).collect();
    Err(Error::new(first.code, format!("{} object(s) {would} as the file declares", all.len()))
        .because(names.join(", "))
        .hint("see above for each; correct the file or the object, then apply the file again"))
}

fn text(r: &ApplyReport) -> String {
    let mut text: String = r.applied.iter().map(applied).collect();
    text.extend(r.failed.iter().map(failed));
    let (changed, failed) = (r.applied.len(), r.failed.len());
    let (would, fails) = if r.dry_run { ("would be ", "would fail") } else { ("", "failed") };
    let failed = if failed == 0 { String::new() } else { format!(", {failed} {fails}") };
    text.push_str(&format!("{changed} {would}changed, {} as they were{failed}", r.unchanged));
    if r.dry_run {
        text.push_str("; nothing was done");
    }
    text
}

fn applied(a: &Applied) -> String {
    let sign = match a.action {
        Action::Created => '+',
        Action::Updated => '~',
        Action::Deleted => '-',
    };
    let mut text = format!("{sign} {}\n", a.object);
    // What was of one that is gone tells nothing more.
    for d in a.changes.iter().filter(|_| a.action != Action::Deleted) {
        text.push_str(&format!("    {d}\n"));
    }
    text
}

fn failed(f: &NotApplied) -> String {
    let mut text = format!("! {}\n    error: {}\n", f.object, f.error.detail);
    let more = [("why", &f.error.reason), ("do", &f.error.hint)];
    for (word, said) in more {
        if let Some(said) = said {
            text.push_str(&format!("    {word:>5}: {said}\n"));
        }
    }
    text
}

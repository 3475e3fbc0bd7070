//! `weir apply`.

use super::output;
use std::path::PathBuf;
use weir_control::client::Client;
use weir_control::config::Config;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  weir apply weir.toml\n\nOnly pools, volumes, hosts, maps and targets are applied; \
    settings of the node itself take effect when the daemon starts. What the file does not name stays as it is."
)]
pub(crate) struct Args {
    /// A configuration file as for `weir serve --config`.
    file: PathBuf,
}

impl Args {
    pub(crate) async fn run(self, client: Client, json: bool) -> anyhow::Result<()> {
        let config = Config::load(&self.file)?;
        let mut desired = config.desired();
        if config.targets.is_empty() && config.listen.is_empty() {
            // The default target port is for a node that starts; a running one has its own.
            desired.targets.clear();
        }
        let report = client.apply(&desired).await?;
        output::show(json, &report, |r| {
            let mut text: String = r.changed.iter().map(|o| format!("changed {o}\n")).collect();
            text.push_str(&format!("{} changed, {} as they were", r.changed.len(), r.unchanged));
            text
        })
    }
}

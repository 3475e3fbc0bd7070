//! `weir map`.

use super::output::{self, Table};
use clap::Subcommand;
use weir_control::client::Client;
use weir_control::model::{MapSpec, Mapping};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Let a host see a volume.
    #[command(
        after_help = "Examples:\n  weir map create web-1 db-01\n  weir map create web-1 db-01 --lun 7"
    )]
    Create {
        /// The host.
        host: String,
        /// The volume.
        volume: String,
        /// The LUN, 0 to 16383 [default: the lowest that is free, and by which the host for all has no other volume].
        #[arg(long)]
        lun: Option<u16>,
    },
    /// List the mappings.
    #[command(visible_alias = "ls", after_help = "Example:\n  weir map list --host web-1")]
    List {
        /// Only those of this host.
        #[arg(long)]
        host: Option<String>,
        /// Only those of this volume.
        #[arg(long)]
        volume: Option<String>,
    },
    /// Show one mapping.
    #[command(after_help = "Example:\n  weir map show web-1 db-01")]
    Show {
        /// The host.
        host: String,
        /// The volume.
        volume: String,
    },
    /// Take a volume away from a host. One that is logged in keeps it, since its file system would hang.
    #[command(visible_alias = "rm", after_help = "Example:\n  weir map delete web-1 db-01")]
    Delete {
        /// The host.
        host: String,
        /// The volume.
        volume: String,
        /// Even if the host is logged in: its commands to the volume end with errors.
        #[arg(long)]
        force: bool,
    },
}

impl Command {
    pub(crate) async fn run(self, client: Client, json: bool) -> anyhow::Result<()> {
        match self {
            Command::Create { host, volume, lun } => {
                let mapping = client.create_map(&MapSpec { host, volume, lun }).await?;
                output::show(json, &mapping, sentence)
            }
            Command::List { host, volume } => {
                let mut maps = client.maps().await?;
                if let Some(host) = host {
                    client.host(&host).await?;
                    maps.retain(|m| m.host == host);
                }
                if let Some(volume) = volume {
                    client.volume(&volume).await?;
                    maps.retain(|m| m.volume == volume);
                }
                output::show(json, &maps, |m| table(m))
            }
            Command::Show { host, volume } => {
                output::show(json, &client.map(&host, &volume).await?, sentence)
            }
            Command::Delete { host, volume, force } => {
                client.delete_map(&host, &volume, force).await?;
                let gone = serde_json::json!({ "deleted": format!("{host}/{volume}") });
                output::show(json, &gone, |_| format!("host {host} no longer sees volume {volume}"))
            }
        }
    }
}

fn sentence(m: &Mapping) -> String {
    format!("host {} sees volume {} as LUN {}", m.host, m.volume, m.lun)
}

fn table(maps: &[Mapping]) -> String {
    if maps.is_empty() {
        return "no mappings; `weir map create --help` shows how to make one".into();
    }
    let mut t = Table::new(&["HOST", ">LUN", "VOLUME"]);
    for m in maps {
        t.row(vec![m.host.clone(), m.lun.to_string(), m.volume.clone()]);
    }
    t.text()
}

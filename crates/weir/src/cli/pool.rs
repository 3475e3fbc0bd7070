//! `weir pool`.

use super::output::{self, Table};
use super::parse;
use clap::Subcommand;
use weir_control::client::Client;
use weir_control::model::{DeviceGrow, DeviceSpec, PoolInfo, PoolPatch, PoolSpec};
use weir_control::units::format_size;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a pool of one or more devices.
    #[command(
        after_help = "Examples:\n  weir pool create main --device file:/srv/weir/disk0.img:100G\n  \
        weir pool create fast --device /dev/nvme1n1 --device /dev/nvme2n1\n  \
        weir pool create thin --device dir:/srv/weir/thin\n  weir pool create mem --device ram:4G"
    )]
    Create {
        /// Its name.
        name: String,
        /// A device: file:PATH:SIZE, dir:PATH, block:PATH (or /dev/…), ram:SIZE, null:SIZE. May be repeated.
        #[arg(long = "device", short = 'd', required = true, value_parser = parse::device)]
        devices: Vec<DeviceSpec>,
    },
    /// List the pools.
    #[command(visible_alias = "ls", after_help = "Example:\n  weir pool list --json")]
    List,
    /// Show one pool with its devices.
    #[command(after_help = "Example:\n  weir pool show main")]
    Show {
        /// The pool.
        name: String,
    },
    /// Add devices to a pool, or grow file, ram and null devices.
    #[command(after_help = "Examples:\n  weir pool resize main --add /dev/nvme3n1\n  \
        weir pool resize main --grow 0:200G")]
    Resize {
        /// The pool.
        name: String,
        /// A device to add, written as for `weir pool create`. May be repeated.
        #[arg(long, value_parser = parse::device, required_unless_present = "grow")]
        add: Vec<DeviceSpec>,
        /// INDEX:SIZE: a device (see `weir pool show`) and its new size. May be repeated.
        #[arg(long, value_parser = parse::grow)]
        grow: Vec<DeviceGrow>,
    },
    /// Delete a pool that holds no volumes. Its files and devices stay as they are.
    #[command(visible_alias = "rm", after_help = "Example:\n  weir pool delete main")]
    Delete {
        /// The pool.
        name: String,
    },
}

impl Command {
    pub(crate) async fn run(self, client: Client, json: bool) -> anyhow::Result<()> {
        match self {
            Command::Create { name, devices } => {
                let pool = client.create_pool(&PoolSpec { name, devices }).await?;
                output::show(json, &pool, |p| {
                    format!("pool {} created, {} free", p.name, format_size(p.free))
                })
            }
            Command::List => output::show(json, &client.pools().await?, |p| table(p)),
            Command::Show { name } => output::show(json, &client.pool(&name).await?, details),
            Command::Resize { name, add, grow } => {
                let pool = client.patch_pool(&name, &PoolPatch { add, grow }).await?;
                output::show(json, &pool, |p| {
                    format!(
                        "pool {} has {}, {} free",
                        p.name,
                        format_size(p.capacity),
                        format_size(p.free)
                    )
                })
            }
            Command::Delete { name } => {
                client.delete_pool(&name).await?;
                let gone = serde_json::json!({ "deleted": name });
                output::show(json, &gone, |_| format!("pool {name} deleted"))
            }
        }
    }
}

fn table(pools: &[PoolInfo]) -> String {
    if pools.is_empty() {
        return "no pools; `weir pool create --help` shows how to make one".into();
    }
    let mut t = Table::new(&["POOL", ">DEVICES", ">VOLUMES", ">CAPACITY", ">FREE", ">PROVISIONED"]);
    for p in pools {
        t.row(vec![
            p.name.clone(),
            p.devices.len().to_string(),
            p.volumes.to_string(),
            format_size(p.capacity),
            format_size(p.free),
            format_size(p.provisioned),
        ]);
    }
    t.text()
}

fn details(p: &PoolInfo) -> String {
    let mut text = output::fields(&[
        ("pool", p.name.clone()),
        ("volumes", p.volumes.to_string()),
        ("capacity", format_size(p.capacity)),
        ("allocated", format_size(p.allocated)),
        ("free", format_size(p.free)),
        ("provisioned", format_size(p.provisioned)),
    ]);
    text.push('\n');
    let mut t = Table::new(&[">#", "KIND", ">SIZE", "PATH"]);
    for (i, d) in p.devices.iter().enumerate() {
        let size = if d.size == 0 { "-".to_string() } else { format_size(d.size) };
        let path = d.path.clone().unwrap_or_default();
        t.row(vec![i.to_string(), d.kind.as_str().into(), size, path]);
    }
    text + &t.text()
}

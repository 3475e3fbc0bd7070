//! `weir host`.

use super::output::{self, Table};
use super::parse::Switch;
use clap::Subcommand;
use std::path::PathBuf;
use weir_control::client::Client;
use weir_control::model::{Host, HostPatch, HostSecret, HostSpec, InitiatorPort, Mapping};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a host from its initiator ports.
    #[command(
        after_help = "Examples:\n  weir host create web-1 --port 0000000000000001:0002c90300a1b2c3\n  \
        weir host create web-3 --port iqn.1993-08.org.debian:01:4f2a\n  \
        weir host create web-4 --port 192.0.2.7 --port iqn.2026-01.org.example:web-4\n  \
        weir host create anyone --allow-any\n  \
        openssl rand -hex 32 > web-2.secret; chmod 600 web-2.secret\n  \
        weir host create web-2 --port 0000000000000001:0002c90300a1b2c4 --secret-file web-2.secret\n\n\
        An initiator port is what the host is known by. That depends on the protocol by which it comes:\n  \
        SRP, BRP  EXT:GUID, two numbers in hexadecimal\n  \
        iSCSI     its initiator's name: iqn.1993-08.org.debian:01:4f2a, eui.0123456789abcdef, naa.52004567ba64678d\n  \
        NBD       its IP address: 192.0.2.7, 2001:db8::7\n\
        Names of NVMe hosts (nqn.2014-08.org.nvmexpress:uuid:...) are taken, but no target port speaks NVMe yet.\n\n\
        A Linux host's EXT is its initiator_ext (from the add_target line, else 0), its GUID the second half of \
        its port's GID. Over siw that half is zero: give each such host a unique initiator_ext."
    )]
    Create {
        /// Its name.
        name: String,
        /// An initiator port: EXT:GUID (SRP, BRP), a name such as iqn.… (iSCSI), or an IP address (NBD). May be repeated.
        #[arg(long = "port", value_name = "PORT")]
        ports: Vec<InitiatorPort>,
        /// Stands for every initiator port that no other host names.
        #[arg(long)]
        allow_any: bool,
        /// File with the secret that it proves at login; then it is let in by BRP and iSCSI only (docs/security.md).
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
    },
    /// List the hosts.
    #[command(visible_alias = "ls", after_help = "Example:\n  weir host list")]
    List,
    /// Show one host with its ports and LUNs.
    #[command(after_help = "Example:\n  weir host show web-1")]
    Show {
        /// The host.
        name: String,
    },
    /// Add and remove initiator ports, set the secret.
    #[command(after_help = "Examples:\n  weir host set web-1 --add-port 2:0002c90300a1b2c3\n  \
        weir host set web-1 --add-port iqn.1993-08.org.debian:01:4f2a --remove-port 192.0.2.7")]
    Set {
        /// The host.
        name: String,
        /// A port to add, in any form that `weir host create` takes. May be repeated.
        #[arg(long = "add-port", value_name = "PORT")]
        add_ports: Vec<InitiatorPort>,
        /// A port to remove. May be repeated.
        #[arg(long = "remove-port", value_name = "PORT")]
        remove_ports: Vec<InitiatorPort>,
        /// Whether it stands for every initiator port that no other host names.
        #[arg(long, value_enum, required_unless_present_any = ["add_ports", "remove_ports", "secret_file", "no_secret"])]
        allow_any: Option<Switch>,
        /// File with the secret that it proves at login from now on. Sessions without that proof end.
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
        /// It proves nothing at login any more.
        #[arg(long, conflicts_with = "secret_file")]
        no_secret: bool,
    },
    /// Delete a host without mappings.
    #[command(visible_alias = "rm", after_help = "Example:\n  weir host delete web-1")]
    Delete {
        /// The host.
        name: String,
    },
}

impl Command {
    pub(crate) async fn run(self, client: Client, json: bool) -> anyhow::Result<()> {
        match self {
            Command::Create { name, ports, allow_any, secret_file } => {
                let secret = secret_file.as_deref().map(HostSecret::read).transpose()?;
                let spec = HostSpec { name, ports, allow_any, secret, secret_file: None };
                let host = client.create_host(&spec).await?;
                output::show(json, &host, |h| format!("host {} created: {}", h.name, ports_of(h)))
            }
            Command::List => output::show(json, &client.hosts().await?, |h| table(h)),
            Command::Show { name } => {
                let host = client.host(&name).await?;
                if json {
                    return output::json(&host);
                }
                let maps = client.maps().await?;
                output::text(&details(&host, &maps))
            }
            Command::Set { name, add_ports, remove_ports, allow_any, secret_file, no_secret } => {
                let allow_any = allow_any.map(Switch::is_on);
                let secret = secret_file.as_deref().map(HostSecret::read).transpose()?;
                let patch = HostPatch { add_ports, remove_ports, allow_any, secret, no_secret };
                let host = client.patch_host(&name, &patch).await?;
                output::show(json, &host, |h| format!("host {} is now: {}", h.name, ports_of(h)))
            }
            Command::Delete { name } => {
                client.delete_host(&name).await?;
                let gone = serde_json::json!({ "deleted": name });
                output::show(json, &gone, |_| format!("host {name} deleted"))
            }
        }
    }
}

fn ports_of(h: &Host) -> String {
    let mut list: Vec<String> = h.ports.iter().map(ToString::to_string).collect();
    if h.allow_any {
        list.push("any other".into());
    }
    let proof = if h.keyed { " (proves a secret)" } else { "" };
    list.join(", ") + proof
}

fn table(hosts: &[Host]) -> String {
    if hosts.is_empty() {
        return "no hosts; `weir host create --help` shows how to make one".into();
    }
    let mut t = Table::new(&["HOST", "INITIATOR PORTS"]);
    for h in hosts {
        t.row(vec![h.name.clone(), ports_of(h)]);
    }
    t.text()
}

fn details(h: &Host, maps: &[Mapping]) -> String {
    let mut text = output::fields(&[("host", h.name.clone()), ("ports", ports_of(h))]);
    let mut t = Table::new(&[">LUN", "VOLUME"]);
    let mut any = false;
    for m in maps.iter().filter(|m| m.host == h.name) {
        t.row(vec![m.lun.to_string(), m.volume.clone()]);
        any = true;
    }
    text.push('\n');
    text + &if any { t.text() } else { "it sees no volumes\n".to_string() }
}

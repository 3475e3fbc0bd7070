//! `weir target`.

use super::output::{self, Table};
use clap::Subcommand;
use std::net::SocketAddr;
use weir_control::client::Client;
use weir_control::live::PortLive;
use weir_control::model::{Protocol, TargetPort, Transport};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the target ports.
    #[command(visible_alias = "ls", after_help = "Example:\n  weir target list --json")]
    List,
    /// Show one target port and how hosts attach to it.
    #[command(after_help = "Examples:\n  weir target show srp0\n  weir target show iscsi0")]
    Show {
        /// The target port.
        name: String,
    },
}

impl Command {
    pub(crate) async fn run(self, client: Client, json: bool) -> anyhow::Result<()> {
        let live = |ports: Vec<PortLive>, name: &str| {
            ports.into_iter().find(|p| p.name == name).unwrap_or_default()
        };
        match self {
            Command::List => {
                let targets = client.targets().await?;
                if json {
                    return output::json(&targets);
                }
                if targets.is_empty() {
                    return output::text(
                        "no target ports; `listen` in the configuration makes one",
                    );
                }
                let status = client.status().await?;
                let mut t =
                    Table::new(&["TARGET", "FABRIC", "ID_EXT", "IOC_GUID", "LISTENING", ">HOSTS"]);
                for target in &targets {
                    let port = live(status.live.ports.clone(), &target.name);
                    t.row(vec![
                        target.name.clone(),
                        fabric(target).into(),
                        target.id_ext.to_string(),
                        target.ioc_guid.to_string(),
                        if port.listening.is_empty() {
                            "no".into()
                        } else {
                            port.listening.join(", ")
                        },
                        port.nexuses.len().to_string(),
                    ]);
                }
                output::text(&t.text())
            }
            Command::Show { name } => {
                let target = client.target(&name).await?;
                if json {
                    return output::json(&target);
                }
                let status = client.status().await?;
                output::text(&details(&target, &live(status.live.ports, &name)))
            }
        }
    }
}

fn fabric(t: &TargetPort) -> &'static str {
    match (t.protocol, t.transport) {
        (Protocol::Srp, Transport::Verbs) => "verbs",
        (Protocol::Srp, _) => "iwarp",
        (Protocol::Brp, Transport::Verbs) => "verbs (brp)",
        (Protocol::Brp, _) => "iwarp (brp)",
        (Protocol::Nbd, _) => "tcp (nbd)",
        (Protocol::Iscsi, _) => "tcp (iscsi)",
    }
}

/// The line that a Linux host writes to `/sys/class/infiniband_srp/srp-DEVICE-PORT/add_target`.
pub(crate) fn add_target_line(target: &TargetPort, address: &str) -> String {
    format!("id_ext={},ioc_guid={},dest={address}", target.id_ext, target.ioc_guid)
}

/// Where hosts reach a port that listens at `address`. One that listens on all addresses of its machine is reached by any of
/// these, and only the reader knows which of them his hosts can use.
pub(crate) fn reachable(address: &str) -> String {
    match address.parse::<SocketAddr>() {
        Ok(a) if a.ip().is_unspecified() => format!("ADDRESS-OF-THIS-MACHINE:{}", a.port()),
        _ => address.to_owned(),
    }
}

/// The name of an iSCSI port, by its identifier.
fn iscsi_name(t: &TargetPort) -> String {
    format!("{}{}{}", weir_target_iscsi::NAMES, t.id_ext, t.ioc_guid)
}

fn details(t: &TargetPort, port: &PortLive) -> String {
    let listening = if port.listening.is_empty() { &t.listen } else { &port.listening };
    let mut reached: Vec<String> = listening.iter().map(|a| reachable(a)).collect();
    // The same for IPv4 and IPv6.
    reached.dedup();
    let cores = if t.cores.is_empty() { "all".into() } else { format!("{:?}", t.cores) };
    let mut text = output::fields(&[
        ("target", t.name.clone()),
        ("fabric", fabric(t).into()),
        ("id_ext", t.id_ext.to_string()),
        ("ioc_guid", t.ioc_guid.to_string()),
        ("listening", listening.join(", ")),
        ("channels", format!("{} of {}", port.channels, t.channels)),
        ("cores", cores),
        ("logins", format!("{} ({} refused)", port.logins, port.rejects)),
    ]);
    if !port.nexuses.is_empty() {
        let mut table = Table::new(&["HOST", "INITIATOR", "PEER", ">CHANNELS"]);
        for n in &port.nexuses {
            let host = n.host.clone().unwrap_or_else(|| "-".into());
            table.row(vec![host, n.initiator.clone(), n.peer.clone(), n.channels.to_string()]);
        }
        text = format!("{text}\n{}", table.text());
    }
    if t.protocol == Protocol::Brp {
        text.push_str("\nBRP is Weir's own protocol: `weir attach VOLUME --target ADDRESS`, `weir bench --initiator brp`.\n");
        return text;
    }
    if t.protocol == Protocol::Nbd {
        text.push_str("\nEach volume that a host's address sees is an export of its name:\n");
        for address in reached {
            text.push_str(&format!("  nbdinfo --list nbd://{address}\n"));
        }
        return text;
    }
    if t.protocol == Protocol::Iscsi {
        let name = iscsi_name(t);
        text.push_str(&format!("\nIts iSCSI name is {name}. To attach a Linux host:\n"));
        for address in reached {
            text.push_str(&format!("  iscsiadm -m discovery -t sendtargets -p {address}\n"));
            text.push_str(&format!("  iscsiadm -m node -T {name} -p {address} --login\n"));
        }
        return text;
    }
    text.push_str(
        "\nTo attach a Linux host, write there as root (with an address that it can reach):\n",
    );
    for address in reached {
        text.push_str(&format!(
            "  echo '{}' > /sys/class/infiniband_srp/srp-DEVICE-1/add_target\n",
            add_target_line(t, &address)
        ));
    }
    text.push_str("Hosts with siw add `,initiator_ext=` and 16 hexadecimal digits, different on every host.\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_told_to_connect_to_any_address() {
        for (at, told) in [
            ("0.0.0.0:3260", "ADDRESS-OF-THIS-MACHINE:3260"),
            ("[::]:10809", "ADDRESS-OF-THIS-MACHINE:10809"),
            ("192.0.2.1:5555", "192.0.2.1:5555"),
            ("[2001:db8::1]:5555", "[2001:db8::1]:5555"),
        ] {
            assert_eq!(reachable(at), told);
        }
    }
}

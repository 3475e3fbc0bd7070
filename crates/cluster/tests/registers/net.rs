//! The network between three nodes: namespaces joined by a bridge, whose ways are cut one by one.
//!
//! A way from one node to another is cut by giving the other a wrong hardware address there. Packets leave and nobody
//! takes them, as on a broken link; the kernels of the developers' machines have neither netem nor filters for `tc`.

use std::process::{Command, Stdio};

/// Nodes are numbered from 1.
pub(crate) const NODES: u8 = 3;

/// Where the nodes are.
pub(crate) enum Net {
    /// Namespaces whose names begin so.
    Namespaces(String),
    /// All on the loopback interface, as this machine has no namespaces for us. No way can be cut. Ports begin here.
    Loopback(u16),
}

fn ip(args: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(args.split_whitespace()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|s| s.success())
}

impl Net {
    /// Makes namespaces if the machine allows it.
    pub(crate) fn new() -> Net {
        remove_left();
        let name = format!("weirreg-{}-{:x}", std::process::id(), crate::clients::chance());
        if !ip(&format!("netns add {name}-0")) {
            return Net::Loopback(free_ports());
        }
        // Dropped, it takes away what could be made.
        let net = Net::Namespaces(name.clone());
        let mut made = ip(&format!("-n {name}-0 link add br0 type bridge"))
            && ip(&format!("-n {name}-0 link set br0 up"));
        for n in 1..=NODES {
            let (hub, node) = (format!("-n {name}-0"), format!("-n {name}-{n}"));
            made = made
                && ip(&format!("netns add {name}-{n}"))
                && ip(&format!("{node} link set lo up"))
                && ip(&format!("{node} link add eth0 type veth peer name p{n} netns {name}-0"))
                && ip(&format!("{node} link set eth0 address {}", hardware(n, false)))
                && ip(&format!("{node} addr add 10.77.0.{n}/24 dev eth0"))
                && ip(&format!("{node} link set eth0 up"))
                && ip(&format!("{hub} link set p{n} master br0"))
                && ip(&format!("{hub} link set p{n} up"));
        }
        if !made {
            return Net::Loopback(free_ports());
        }
        net.heal();
        net
    }

    /// What a program of node `n` is started with.
    pub(crate) fn within(&self, n: u8, program: &str) -> Command {
        match self {
            Net::Namespaces(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &format!("{name}-{n}"), program]);
                command
            }
            Net::Loopback(_) => Command::new(program),
        }
    }

    /// Where node `n` is reached by the others.
    pub(crate) fn address(&self, n: u8) -> String {
        match self {
            Net::Namespaces(_) => format!("10.77.0.{n}:7007"),
            Net::Loopback(first) => format!("127.0.0.1:{}", first + u16::from(n)),
        }
    }

    /// Where an etcd of node `n` is reached by its client.
    pub(crate) fn client_address(&self, n: u8) -> String {
        match self {
            Net::Namespaces(_) => "127.0.0.1:2379".into(),
            Net::Loopback(first) => format!("127.0.0.1:{}", first + u16::from(NODES + n)),
        }
    }

    /// Whether ways can be cut.
    pub(crate) fn can_cut(&self) -> bool {
        matches!(self, Net::Namespaces(_))
    }

    /// Cuts the way from one node to another, and not the one back.
    pub(crate) fn cut(&self, from: u8, to: u8) {
        self.way(from, to, true);
    }

    /// All ways are there.
    pub(crate) fn heal(&self) {
        for from in 1..=NODES {
            (1..=NODES).filter(|to| *to != from).for_each(|to| self.way(from, to, false));
        }
    }

    fn way(&self, from: u8, to: u8, cut: bool) {
        if let Net::Namespaces(name) = self {
            let address = hardware(to, cut);
            let way = format!(
                "-n {name}-{from} neigh replace 10.77.0.{to} lladdr {address} nud permanent dev eth0"
            );
            assert!(ip(&way), "ip {way}");
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        if let Net::Namespaces(name) = self {
            (0..=NODES).for_each(|n| {
                ip(&format!("netns del {name}-{n}"));
            });
        }
    }
}

/// The address of node `n`, or one that nobody has.
fn hardware(n: u8, nobody: bool) -> String {
    format!("02:00:00:00:0{}:0{n}", u8::from(nobody))
}

/// Removes namespaces of runs that were killed.
fn remove_left() {
    let Ok(out) = Command::new("ip").args(["netns", "list"]).output() else { return };
    for name in String::from_utf8_lossy(&out.stdout).lines() {
        let name = name.split_whitespace().next().unwrap_or_default();
        let pid = name.strip_prefix("weirreg-").and_then(|r| r.split('-').next());
        if let Some(pid) = pid
            && !std::path::Path::new(&format!("/proc/{pid}")).exists()
        {
            ip(&format!("netns del {name}"));
        }
    }
}

/// Ports that were free a moment ago.
fn free_ports() -> u16 {
    let taken = |p: u16| std::net::TcpListener::bind(("127.0.0.1", p)).is_err();
    let mut first = 20_000 + (crate::clients::chance() % 10_000) as u16;
    while (1..=2 * u16::from(NODES)).any(|n| taken(first + n)) {
        first += 10;
    }
    first
}

//! Three voters as processes, with one of the engines.

use crate::clients::Line;
use crate::net::{NODES, Net};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long anything that must come is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Who keeps the registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    /// The voters are ours.
    Openraft,
    /// The voters are etcd, each with a client of ours beside it.
    Etcd,
}

/// Three voters.
pub(crate) struct Nodes {
    pub(crate) net: Net,
    engine: Engine,
    dir: PathBuf,
    /// What is killed and stopped.
    children: Vec<Option<Child>>,
    /// Clients of etcd, which go on.
    beside: Vec<Child>,
    stopped: Vec<bool>,
    /// `CRATE::BUG`, which they run with.
    planted: Option<String>,
}

impl Nodes {
    /// Starts them, and forms a cluster of them.
    pub(crate) fn new(engine: Engine, planted: Option<&str>) -> Nodes {
        let net = Net::new();
        let name = format!("weir-registers-{}-{:x}", std::process::id(), crate::clients::chance());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("secret"), b"a secret of three voters").unwrap();
        let children = (0..NODES).map(|_| None).collect();
        let stopped = vec![false; usize::from(NODES)];
        let planted = planted.map(|bug| format!("weir_cluster::{bug}"));
        let beside = Vec::new();
        let mut nodes = Nodes { net, engine, dir, children, beside, stopped, planted };
        if engine == Engine::Etcd {
            for n in 1..=NODES {
                nodes.start(n);
                let client = nodes.net.client_address(n);
                let mut child = nodes.ours(n, &["--etcd", &client]).spawn().expect("it runs");
                nodes.wait_for(n, &mut child);
                nodes.beside.push(child);
            }
            return nodes;
        }
        (1..=NODES).for_each(|n| nodes.start_voter(n, &["--create"]));
        let members: Vec<String> = (1..=NODES)
            .map(|n| format!("{},{n},{}", nodes.identity(n), nodes.net.address(n)))
            .collect();
        let formed = nodes.ask(1, &format!("form {}", members.join(" ")));
        assert_eq!(formed, "ok");
        nodes
    }

    pub(crate) fn socket(&self, n: u8) -> PathBuf {
        self.dir.join(format!("{n}.socket"))
    }

    /// Our program at node `n`.
    fn ours(&self, n: u8, more: &[&str]) -> Command {
        let mut command = self.net.within(n, env!("CARGO_BIN_EXE_weir-registers"));
        command.arg("--socket").arg(self.socket(n)).args(more);
        command.env_remove("WEIR_PLANTED").stdin(Stdio::piped()).stdout(Stdio::null());
        if let Some(bug) = &self.planted {
            command.env("WEIR_PLANTED", bug);
        }
        command
    }

    fn wait_for(&self, n: u8, child: &mut Child) {
        let begin = Instant::now();
        while Line::to(&self.socket(n)).and_then(|mut l| l.ask("identity")).is_err() {
            assert!(begin.elapsed() < PATIENCE, "node {n} does not answer");
            assert!(child.try_wait().unwrap().is_none(), "node {n} has ended");
            sleep(Duration::from_millis(10));
        }
    }

    fn start_voter(&mut self, n: u8, more: &[&str]) {
        let mut command = self.ours(n, more);
        command.arg("--file").arg(self.dir.join(format!("{n}.redb")));
        command.arg("--secret").arg(self.dir.join("secret"));
        command.args(["--listen", &self.net.address(n)]);
        let mut child = command.spawn().expect("weir-registers runs");
        self.wait_for(n, &mut child);
        self.children[usize::from(n - 1)] = Some(child);
    }

    fn start_etcd(&mut self, n: u8) {
        let url = |address: String| format!("http://{address}");
        let name = |n: u8| format!("n{n}={}", url(self.net.address(n)));
        let all: Vec<String> = (1..=NODES).map(name).collect();
        let (peers, clients) = (url(self.net.address(n)), url(self.net.client_address(n)));
        let mut command = self.net.within(n, "etcd");
        command.arg("--data-dir").arg(self.dir.join(format!("{n}.etcd")));
        command.args(["--name", &format!("n{n}"), "--initial-cluster", &all.join(",")]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--heartbeat-interval", "100", "--election-timeout", "500"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.children[usize::from(n - 1)] = Some(command.spawn().expect("etcd runs"));
    }

    pub(crate) fn start(&mut self, n: u8) {
        match self.engine {
            Engine::Openraft => self.start_voter(n, &[]),
            Engine::Etcd => self.start_etcd(n),
        }
    }

    /// kill -9.
    pub(crate) fn kill(&mut self, n: u8) {
        if let Some(mut child) = self.children[usize::from(n - 1)].take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.stopped[usize::from(n - 1)] = false;
    }

    pub(crate) fn is_up(&self, n: u8) -> bool {
        self.children[usize::from(n - 1)].is_some()
    }

    fn signal(&mut self, n: u8, name: &str) {
        let Some(child) = &self.children[usize::from(n - 1)] else { return };
        let status = Command::new("kill").args([name, &child.id().to_string()]).status();
        assert!(status.is_ok_and(|s| s.success()), "kill {name}");
    }

    /// Stops it where it is.
    pub(crate) fn stop(&mut self, n: u8) {
        self.signal(n, "-STOP");
        self.stopped[usize::from(n - 1)] = true;
    }

    /// Lets it go on, if it was stopped.
    pub(crate) fn go_on(&mut self, n: u8) {
        if std::mem::take(&mut self.stopped[usize::from(n - 1)]) {
            self.signal(n, "-CONT");
        }
    }

    /// All is well again: no cuts, nobody stopped or dead.
    pub(crate) fn mend(&mut self) {
        self.net.heal();
        for n in 1..=NODES {
            self.go_on(n);
            if !self.is_up(n) {
                self.start(n);
            }
        }
    }

    pub(crate) fn ask(&self, n: u8, what: &str) -> String {
        Line::to(&self.socket(n)).and_then(|mut l| l.ask(what)).expect("an answer")
    }

    fn identity(&self, n: u8) -> String {
        let answer = self.ask(n, "identity");
        answer.strip_prefix("identity ").expect("an identity").to_string()
    }

    /// Who leads, as one of ours that is up says.
    pub(crate) fn leader(&self) -> Option<u8> {
        let up: Vec<u8> = (1..=NODES).filter(|n| self.is_up(*n)).collect();
        let named = up.iter().find_map(|n| {
            let answer = self.ask(*n, "standing");
            let leader = answer.split_whitespace().nth(1)?.to_string();
            (leader != "-").then_some(leader)
        })?;
        up.into_iter().find(|n| self.identity(*n) == named)
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        (1..=NODES).for_each(|n| self.kill(n));
        for child in &mut self.beside {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

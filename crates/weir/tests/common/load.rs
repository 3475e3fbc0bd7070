//! Hosts that are processes of their own: they can be stopped in the midst of what they do, and go on.

use super::Daemon;
use std::process::{Child, Command, Stdio};

/// A load that is killed at the end, also while it is stopped.
pub struct Load(Child);

impl Load {
    /// Runs a command line of `weir` until it is dropped.
    pub fn start(d: &Daemon, line: &str) -> Load {
        let child = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(line.split_whitespace())
            .env_clear()
            .env("WEIR_DATA_DIR", &d.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Load(child.expect("weir runs"))
    }

    /// Sends it a signal.
    pub fn signal(&self, name: &str) {
        let done = Command::new("kill").args([name, &self.0.id().to_string()]).status();
        assert!(done.expect("kill runs").success());
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("it can be asked").is_some()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The initiator port of a host.
pub fn port(number: u32) -> String {
    format!("{number:016x}:0000000000000002")
}

/// Commands that the daemon has under way for a host, at all ports.
pub fn under_way(d: &Daemon, host: &str) -> u64 {
    let status = d.json("status");
    let ports = status["live"]["ports"].as_array().cloned().unwrap_or_default();
    let nexuses = ports.iter().filter_map(|p| p["nexuses"].as_array()).flatten();
    let of_host = nexuses.filter(|n| n["host"] == host);
    of_host.filter_map(|n| n["in_flight"].as_u64()).sum()
}

/// A host that stands still between write commands and their data: 1 MiB each, more than the network holds by itself.
pub fn stopped_writer(d: &Daemon, protocol: &str, number: u32, host: &str, at: &str) -> Load {
    let (port, target) = (port(number), d.port(at).expect("it listens"));
    let load = Load::start(
        d,
        &format!(
            "bench --initiator {protocol} --initiator-port {port} --target {target} --volume {host} --rw write \
             --bs 1m --iodepth 128 --numjobs 1 --size 64m --time-based --runtime 3600"
        ),
    );
    d.until("it writes", || under_way(d, host) > 100);
    load.signal("-STOP");
    assert!(under_way(d, host) > 50, "what was under way still is");
    load
}

//! A host that is stopped in the midst of large reads, and another one that goes on: the real program on all sides.

use crate::common::Daemon;
use crate::common::load::{Load, port};
use std::time::{Duration, Instant};

/// 1 MiB reads as a host, by a channel on each reactor.
fn load(d: &Daemon, host: u32, more: &str) -> String {
    let (target, port) = (d.target(), port(host));
    format!(
        "bench --initiator srp --target {target} --volume v --initiator-port {port} --rw read --bs 1m --numjobs 2 {more}"
    )
}

/// Commands that wait for a large buffer, on the reactor where they are fewest.
fn waiting(d: &Daemon) -> u64 {
    let status = d.json("status");
    let census = status["live"]["census"].as_array().cloned().unwrap_or_default();
    let large = |c: &&serde_json::Value| {
        c["name"].as_str().is_some_and(|n| n.ends_with("/buffers-1048576"))
    };
    census.iter().filter(large).filter_map(|c| c["waiting"].as_u64()).min().unwrap_or(0)
}

#[test]
fn a_stopped_host_keeps_no_other_from_large_reads() {
    let mut d = Daemon::new("stopped-host");
    d.start();
    let disk = d.path("disk");
    d.ok(&format!("pool create p --device file:{disk}:256M"));
    d.ok("volume create v --pool p --size 64M");
    for (name, host) in [("stops", 1), ("goes-on", 2)] {
        d.ok(&format!("host create {name} --port {}", port(host)));
        d.ok(&format!("map create {name} v"));
    }
    let line = load(&d, 1, "--iodepth 200 --size 64m --time-based --runtime 3600");
    let stopped = Load::start(&d, &line);
    let begun = Instant::now();
    while waiting(&d) < 50 {
        assert!(begun.elapsed() < Duration::from_secs(60), "it has not begun: {}", d.log());
    }
    stopped.signal("-STOP");
    let before = waiting(&d);
    assert!(before >= 50, "what was under way still is: {before}");

    // It ends when it has moved so much, or fails when a read takes longer than 30 s.
    d.ok(&load(&d, 2, "--iodepth 8 --size 16m"));
    assert!(waiting(&d) >= 50, "the stopped host is there, and waits");

    stopped.signal("-CONT");
    drop(stopped);
    d.stop();
}

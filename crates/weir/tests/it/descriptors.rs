//! Few descriptors, and visitors that want them all: hosts and the operator have some.

use crate::common::{Daemon, noise};
use std::net::TcpStream;

/// Peers that connect and say nothing.
fn crowd(at: &str, n: usize) -> Vec<TcpStream> {
    (0..n).filter_map(|_| TcpStream::connect(at).ok()).collect()
}

/// What the log says of `key`.
fn logged(d: &Daemon, key: &str) -> String {
    let log = d.log();
    let (_, rest) = log.rsplit_once(key).unwrap_or_else(|| panic!("{key}: {log}"));
    rest.split_whitespace().next().unwrap_or_default().to_owned()
}

/// The numbers of what it has open.
fn numbers(d: &Daemon) -> Vec<usize> {
    let all = std::fs::read_dir(format!("/proc/{}/fd", d.pid())).expect("it runs");
    all.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect()
}

fn open(d: &Daemon) -> usize {
    numbers(d).len()
}

#[test]
fn a_crowd_that_says_nothing_keeps_nobody_out_where_descriptors_are_few() {
    let mut d = Daemon::new("descriptors");
    d.descriptors = Some(300);
    d.start_with(&["--api-tcp", "127.0.0.1:0"]);
    d.wait();
    let faults = d.json("status")["faults"].clone();
    let fault = &faults[0];
    assert_eq!(
        (&fault["object"], &fault["code"]),
        (&"descriptors".into(), &"too_few_descriptors".into())
    );
    assert!(fault["text"].to_string().contains("300"), "{fault}");
    assert!(fault["hint"].to_string().contains("LimitNOFILE"), "{fault}");
    d.ok(&format!("pool create p --device dir:{}", d.path("dir")));
    for i in 0..8 {
        d.ok(&format!("volume create v{i} --pool p --size 4M"));
    }
    d.ok("host create all --allow-any");
    d.ok("map create all v0");
    let data = noise(1, 1 << 20);
    std::fs::write(d.path("data"), &data).expect("written");
    let (srp, brp) = (d.target(), d.port("brp0").expect("it listens"));
    let rest = logged(&d, "address=");
    let idle = open(&d);
    let crowds = [crowd(&rest, 100), crowd(&srp, 200), crowd(&brp, 200)];
    d.until("it is full of them", || open(&d) > idle + 24);
    d.write("v0", &d.path("data"));
    d.ok("status");
    d.ok(&format!(
        "bench --initiator brp --target {brp} --volume v0 --rw randread --bs 4k --iodepth 1 --numjobs 1 --size 4m \
         --time-based --runtime 200ms"
    ));
    d.ok("status");
    assert!(open(&d) < 300 - 40, "some are left: {}", open(&d));
    d.ok("volume create more --pool p --size 4M");
    drop(crowds);
    assert!(d.read("v0", 1 << 20) == data);
    d.stop();
}

/// Where there is none that is free, the operator can look: one is kept for whoever comes then.
#[test]
fn the_operator_is_let_in_when_no_descriptor_is_left() {
    let mut d = Daemon::new("descriptors-none");
    d.start();
    // Some may have high numbers for good.
    let all = numbers(&d);
    let most = (0..).find(|n| !all.contains(n)).expect("one is free");
    let line = [format!("--pid={}", d.pid()), format!("--nofile={most}:")];
    let done = std::process::Command::new("prlimit").args(line).status();
    assert!(done.expect("prlimit runs").success());
    for _ in 0..3 {
        d.ok("status");
    }
    d.until("it is told", || d.ok("events").contains("too_few_descriptors"));
    d.stop();
}

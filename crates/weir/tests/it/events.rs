//! Events of the real program over restarts.

use crate::common::load::{Load, port};
use crate::common::{Daemon, texts, weir};
use serde_json::Value;
use std::time::Instant;

/// Events, oldest first.
fn events(d: &Daemon) -> Vec<Value> {
    let lines = d.ok("events --json");
    lines.lines().map(|l| serde_json::from_str(l).expect("an event")).collect()
}

fn of_kind<'a>(all: &'a [Value], kind: &str) -> Vec<&'a Value> {
    all.iter().filter(|e| e["kind"] == kind).collect()
}

fn on_disk(d: &Daemon) -> String {
    std::fs::read_to_string(d.path("events.log")).unwrap_or_default()
}

#[test]
fn events_outlive_kill_9_and_say_who_it_was() {
    let mut d = Daemon::new("events");
    d.start();
    d.ok(&format!("pool create p --device file:{}:64M", d.path("disk")));
    for name in ["a", "b"] {
        d.ok(&format!("volume create {name} --pool p --size 8M"));
    }
    d.until("all is written", || on_disk(&d).lines().count() == events(&d).len());
    let before = events(&d);
    d.kill();
    // The last line broke off.
    std::fs::write(d.path("events.log"), on_disk(&d) + "{\"seq\":99,").expect("written");
    d.start();
    d.ok("volume create c --pool p --size 8M");
    let after = events(&d);
    assert_eq!(after[..before.len()], before);
    // Nothing that came after the kill has a number of before.
    let numbers: Vec<_> = after.iter().filter_map(|e| e["seq"].as_u64()).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b) && numbers.len() == after.len(), "{numbers:?}");
    let first = numbers[before.len()];
    assert!(first > 10_000, "{numbers:?}");
    assert_eq!(of_kind(&after, "node.started").len(), 2);
    let uid = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&d.dir).expect("there"));
    for e in of_kind(&after, "volume.created") {
        assert_eq!(e["by"], format!("uid:{uid}"));
    }
    assert_eq!(of_kind(&after, "node.started")[0]["by"], "weir");
    let text = d.ok("events");
    let first = text.lines().next().expect("a line");
    assert!(first.contains("     1  20") && first.contains(" UTC  weir "), "{first}");
    let last = numbers[numbers.len() - 1];
    assert_eq!(d.ok(&format!("events --after {last}")), format!("no events after {last}\n"));
    d.stop();
    d.start();
    let stopped = events(&d);
    assert_eq!(of_kind(&stopped, "node.stopped").len(), 1);
    // After an end in order they go on one by one.
    assert_eq!(stopped[numbers.len()]["seq"].as_u64(), Some(last + 1));
}

#[test]
fn who_logs_in_is_told_with_a_count() {
    let mut d = Daemon::new("events-logins");
    d.start();
    d.ok(&format!("pool create p --device file:{}:64M", d.path("disk")));
    d.ok("volume create v --pool p --size 8M");
    for (number, host) in [(1, "db"), (2, "web")] {
        d.ok(&format!("host create {host} --port {}", port(number)));
        d.ok(&format!("map create {host} v"));
    }
    let of = |d: &Daemon, kind: &str, host: &str| -> Vec<String> {
        let object = format!("host/{host}");
        let all = events(d);
        let found = of_kind(&all, kind).into_iter().filter(|e| e["object"] == *object);
        found.map(|e| e["text"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let target = d.target();
    let load = Load::start(
        &d,
        &format!(
            "bench --initiator srp --initiator-port {} --target {target} --volume v --rw randread \
             --bs 4k --iodepth 1 --numjobs 1 --size 8m --time-based --runtime 3600",
            port(1)
        ),
    );
    d.until("it is told", || !of(&d, "login", "db").is_empty());
    let told = of(&d, "login", "db");
    assert!(told[0].contains("host `db`: login by") && told[0].contains("127.0.0.1"), "{told:?}");
    // One who comes and goes again and again is one line a minute.
    let begun = Instant::now();
    for _ in 0..20 {
        let line = format!(
            "read --initiator-port {} --target {target} --volume v --length 4k --output {}",
            port(2),
            d.path("out")
        );
        d.ok(&line);
    }
    d.until("it is told", || of(&d, "login", "web").len() + of(&d, "logout", "web").len() > 0);
    let lines = (of(&d, "login", "web").len() + of(&d, "logout", "web").len()) as u64;
    let most = 1 + begun.elapsed().as_secs() / 60;
    assert!(lines <= most, "{lines} lines, and not {most}");
    drop(load);
    d.stop();
}

#[test]
fn what_cannot_be_written_is_a_fault_and_holds_nothing_up() {
    let mut d = Daemon::new("events-full");
    let blocked = d.path("events.log.new");
    std::fs::create_dir(&blocked).expect("a directory where the file is to be");
    d.start();
    d.until("it is told", || d.json("status")["faults"][0]["object"] == "events");
    d.ok(&format!("pool create p --device file:{}:64M", d.path("disk")));
    std::fs::remove_dir(&blocked).expect("it can be removed");
    d.until("it is written", || on_disk(&d).contains("pool/p"));
    d.until("it is well", || d.json("status")["faults"] == serde_json::json!([]));
    let of_events = |kind: &str| {
        let all = events(&d);
        of_kind(&all, kind).iter().filter(|e| e["object"] == "events").count()
    };
    d.until("it is told that it is over", || of_events("fault.ended") == 1);
    assert_eq!(of_events("fault.began"), 1);
    d.stop();
    // Where no daemon is there are none to be shown.
    let (out, said) = texts(&weir(&d.dir, &["events"]));
    assert!(out.is_empty() && said.contains("daemon"), "{said}");
}

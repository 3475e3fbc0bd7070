//! How far things are that take long: lines on standard error, and figures for programs.

use crate::common::{Daemon, noise, texts};
use serde_json::Value;
use std::process::{Command, Stdio};

/// Runs a command that tells how far it is every tenth of a second.
fn told(d: &Daemon, line: &str) -> (String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(line.split_whitespace())
        .env_clear()
        .env("WEIR_DATA_DIR", &d.dir)
        .env("WEIR_PROGRESS", "0.1")
        .stdin(Stdio::null())
        .output()
        .expect("weir runs");
    let (stdout, stderr) = texts(&out);
    assert!(out.status.success(), "weir {line}: {stdout}{stderr}\n{}", d.log());
    (stdout, stderr)
}

/// A node with a volume of 24 MiB in a protected pool.
fn node(name: &str) -> Daemon {
    let mut d = Daemon::new(name);
    d.start();
    d.ok(&format!("pool create safe --raid 1 {}", d.devices(2, "256M")));
    d.ok("volume create v --pool safe --size 24M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    std::fs::write(d.path("data"), noise(1, 24 << 20)).expect("written");
    d.write("v", &d.path("data"));
    d
}

#[test]
fn what_is_waited_for_tells_how_far_it_is() {
    let d = node("progress");
    d.ok("pool create other --device ram:64M");
    let (_, lines) = told(&d, "migrate start v --to other --rate 8M --wait");
    let copying: Vec<&str> = lines.lines().filter(|l| l.starts_with("v: copying ")).collect();
    assert!(copying.len() > 3, "{lines}");
    let last = copying.last().expect("one");
    assert!(last.contains(" of 24 MiB, ") && last.contains("/s"), "{lines}");
    assert!(copying.iter().any(|l| l.ends_with(" left")), "{lines}");
    assert!(!lines.contains(['\x1b', '\r']), "{lines:?}");
    // Programs that want JSON find nothing but errors there.
    let (json, lines) = told(&d, "migrate start v --to safe --rate 16M --wait --json");
    assert_eq!(lines, "");
    let over: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&over["state"], &over["bytes_per_second"]), (&"done".into(), &0.into()));
    let (_, lines) = told(&d, "scrub start safe --rate 8M --wait");
    assert!(lines.lines().any(|l| l.starts_with("safe: scrubbing ")), "{lines}");
    // Of what is quick nothing is told, of what is not only how long it has taken.
    let (_, lines) = told(&d, "volume resize v 25M");
    assert!(
        lines.lines().all(|l| l.starts_with("resizing v: ") && l.ends_with("s so far")),
        "{lines}"
    );
}

#[test]
fn listings_tell_how_fast_it_goes_and_how_long_yet() {
    let d = node("pace");
    d.ok("pool create other --device ram:64M");
    d.ok("migrate start v --to other --rate 1M --no-verify");
    let mut found = Value::Null;
    d.until("a pace is known", || {
        found = d.json("migrate show v");
        found["bytes_per_second"].as_u64().is_some_and(|r| r > 0)
    });
    let (rate, left) = (&found["bytes_per_second"], &found["seconds_left"]);
    assert!(rate.as_u64().is_some_and(|r| r < 8 << 20), "{found}");
    assert!(left.as_u64().is_some_and(|s| s > 0 && s < 600), "{found}");
    let text = d.ok("migrate list");
    assert!(text.contains("RATE") && text.contains("LEFT") && text.contains("1 MiB/s"), "{text}");
    let top = d.json("top --once");
    assert_eq!(top["jobs"][0]["object"], "volume/v", "{top}");
    d.ok("migrate pause v");
    d.until("it stands still", || d.json("migrate show v")["seconds_left"].is_null());
    d.ok("migrate cancel v");
    d.ok("scrub start safe --rate 1M");
    let mut found = Value::Null;
    d.until("a pace is known", || {
        found = d.json("scrub status safe");
        found["bytes_per_second"].as_u64().is_some_and(|r| r > 0)
    });
    assert!(found["seconds_left"].as_u64().is_some(), "{found}");
    assert!(d.ok("scrub status safe").contains("left:"));
    d.ok("scrub stop safe");
}

#[test]
fn devices_that_are_exchanged_are_waited_for() {
    let d = node("exchange");
    let new = d.path("new");
    let (shown, _) = told(&d, &format!("pool replace safe 1 --device file:{new}:256M --wait"));
    assert!(shown.contains("healthy") && !shown.contains("syncing"), "{shown}");
    let devices = d.json("pool show safe");
    let states: Vec<&str> = devices["live"]["devices"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|d| d["state"].as_str())
        .collect();
    assert_eq!(states, ["in-sync", "in-sync"]);
    // And one that is emptied.
    d.ok(&format!("pool add safe --device file:{}:256M", d.path("third")));
    let number = devices["live"]["devices"][0]["number"].clone();
    told(&d, &format!("pool drain safe {number} --wait"));
    let devices = d.json("pool show safe");
    let all = devices["live"]["devices"].as_array().expect("a list");
    let drained = all.iter().find(|d| d["number"] == number).expect("it");
    assert_eq!(drained["slabs"], 0, "{devices}");
    d.ok(&format!("pool remove safe {number}"));
}

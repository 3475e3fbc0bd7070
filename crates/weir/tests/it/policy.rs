//! Periodic snapshots end to end: the real program, its clock, restarts.

use crate::common::{Daemon, noise};
use std::time::{Duration, Instant};

fn names(d: &Daemon, volume: &str) -> Vec<String> {
    let all = d.json(&format!("snapshot list {volume}"));
    let name = |s: &serde_json::Value| s["name"].as_str().expect("a name").to_owned();
    all.as_array().expect("a list").iter().map(name).collect()
}

fn periodic(d: &Daemon, volume: &str) -> Vec<String> {
    names(d, volume).into_iter().filter(|n| n.starts_with("auto-1s-")).collect()
}

fn until(what: &str, good: impl Fn() -> bool) {
    let begin = Instant::now();
    while !good() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn snapshots_are_made_and_purged_by_rules() {
    let mut d = Daemon::new("policy");
    d.start();
    d.ok(&format!("pool create p --raid 1 {}", d.devices(2, "64M")));
    d.ok("pool create plain --device ram:64M");
    d.ok("volume create a --pool p --size 16M --snapshot every=1s,keep=3");
    d.ok("volume create b --pool p --size 16M");
    d.ok("volume create c --pool p --size 16M");
    d.ok("volume create x --pool plain --size 16M");
    d.ok("snapshot create a@by-hand");
    assert!(d.ok("volume show a").contains("every=1s,keep=3"));
    for (line, exit, code) in [
        ("snapshot policy set x --snapshot every=1s,keep=3", 7, "unsupported"),
        ("volume create y --pool plain --size 1M --snapshot every=1s,keep=3", 7, "unsupported"),
        ("snapshot policy set none --snapshot every=1s,keep=3", 3, "volume_not_found"),
        (
            "snapshot policy set b --snapshot every=60s,keep=3 --snapshot every=1m,keep=2",
            2,
            "invalid_request",
        ),
        ("snapshot policy show none", 3, "volume_not_found"),
        ("snapshot create a@auto-1s-mine", 2, "invalid_name"),
        ("volume delete a --yes", 4, "snapshot_in_use"),
    ] {
        assert_eq!(d.fails(line, exit).0, code, "weir {line}");
    }
    let wrong = d.fails("snapshot policy set b --snapshot every=10,keep=3", 2);
    assert_eq!(wrong.0, "invalid_request");
    d.ok("snapshot policy set b c --snapshot every=1s,keep=3,group=db --snapshot every=1d,keep=2");

    until("three are there", || periodic(&d, "a").len() == 3);
    let first = periodic(&d, "a");
    until("the first are purged", || periodic(&d, "a").iter().all(|n| !first.contains(n)));
    let seen = periodic(&d, "a");
    assert!((3..=4).contains(&seen.len()), "{seen:?}");
    assert!(names(&d, "a").contains(&"by-hand".to_owned()), "those of others stay");
    let daily = names(&d, "b").into_iter().filter(|n| n.starts_with("auto-1d-")).count();
    assert_eq!(daily, 1, "one at once");
    until("a group's have the same names", || {
        let (b, c) = (periodic(&d, "b"), periodic(&d, "c"));
        b.len() == 3 && b == c
    });
    let shown = d.json("snapshot policy show");
    assert_eq!(shown.as_array().map(Vec::len), Some(5), "{shown}");
    assert_eq!((&shown[0]["volume"], &shown[0]["rule"]), (&"a".into(), &"every=1s,keep=3".into()));
    assert!(shown[0]["next"].as_u64() > Some(1_700_000_000), "{shown}");
    assert!(d.ok("snapshot policy show b").contains("group=db"));

    // Down for a while, killed and not: it goes on, without what was missed.
    for kill in [true, false] {
        if kill {
            d.kill()
        } else {
            d.stop()
        }
        std::thread::sleep(Duration::from_secs(4));
        d.start();
        let before = periodic(&d, "a");
        until("it goes on", || periodic(&d, "a").iter().all(|n| !before.contains(n)));
        assert!(periodic(&d, "a").len() <= 4, "{:?}", periodic(&d, "a"));
    }

    // A clone keeps what it was made of.
    d.ok("snapshot policy set c --snapshot every=1s,keep=300,group=db");
    let base = periodic(&d, "c").last().expect("one").clone();
    d.ok(&format!("clone create c@{base} old"));
    d.ok("snapshot policy set c --snapshot every=1s,keep=1");
    until("one and the clone's", || {
        let c = periodic(&d, "c");
        c.len() == 2 && c[0] == base
    });
    assert_eq!(d.json("status")["faults"].as_array().map(Vec::len), Some(0));

    let cleared = d.json("snapshot policy clear a b c");
    assert_eq!(cleared["cleared"].as_array().map(Vec::len), Some(3));
    let left = names(&d, "a");
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(names(&d, "a"), left, "those that were made stay, no more are made");
    assert!(d.ok("snapshot policy show").contains("no periodic snapshots"));
    for n in left {
        d.ok(&format!("snapshot delete a@{n} --yes"));
    }
    d.ok("volume delete a --yes");
    d.stop();
    let devices = format!("--device {} --device {}", d.path("disk0"), d.path("disk1"));
    assert_eq!(d.json(&format!("check {devices}"))["clean"], true);
}

#[test]
fn a_full_pool_is_told_and_goes_on_once_there_is_room() {
    let mut d = Daemon::new("policy-full");
    d.start();
    d.ok(&format!("pool create p --raid 1 {}", d.devices(2, "32M")));
    d.ok("volume create a --pool p --size 512M");
    d.ok("host create all --allow-any");
    d.ok("map create all a");
    d.ok("snapshot policy set a --snapshot every=1s,keep=200");
    let file = d.path("data");
    let overdue = || d.json("status")["faults"].to_string().contains("snapshot_overdue");
    let begin = Instant::now();
    let mut round = 0;
    while !overdue() {
        assert!(
            begin.elapsed() < Duration::from_secs(120),
            "it is told: {}",
            d.json("pool show p")
        );
        // Rewritten blocks stay with the snapshots until there is no room for more.
        round += 1;
        std::fs::write(&file, noise(round, 2 << 20)).expect("written");
        let args = format!("write --target {} --volume a --input {file} --bs 4k", d.target());
        let args: Vec<&str> = args.split_whitespace().collect();
        drop(crate::common::weir(&d.dir, &args));
    }
    let shown = d.json("snapshot policy show a");
    assert!(shown[0]["trouble"].as_str().is_some(), "{shown}");
    let kept = periodic(&d, "a").len();
    assert!(d.log().contains("periodic snapshots"), "{}", d.log());
    d.ok("snapshot policy set a --snapshot every=1s,keep=2");
    until("it goes on", || !overdue() && periodic(&d, "a").len() <= 3);
    assert!(kept > 2);
    d.stop();
}

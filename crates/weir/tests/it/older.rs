//! An older configuration that is put back under pools that carry a newer one: the real program, files as devices.

use crate::common::Daemon;
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};

fn faults(d: &Daemon) -> Vec<Value> {
    d.json("status")["faults"].as_array().cloned().unwrap_or_default()
}

/// Pools that carry a newer configuration than the node has.
fn newer(d: &Daemon) -> Vec<String> {
    let all = faults(d);
    let told = all.iter().filter(|f| f["code"] == "record_newer");
    told.filter_map(|f| f["object"].as_str()?.strip_prefix("record/").map(ToOwned::to_owned))
        .collect()
}

/// A file with so many KiB of a letter.
fn letters(d: &Daemon, letter: u8, kib: usize) -> String {
    let path = d.path(&format!("{}", char::from(letter)));
    fs::write(&path, vec![letter; kib << 10]).expect("written");
    path
}

/// The store is lost, and made of this readable copy.
fn put_back(d: &mut Daemon, copy: &str) {
    for lost in ["weir.redb", "config.json"] {
        fs::remove_file(d.path(lost)).expect("it was there");
    }
    d.start_with(&["--restore-from", &d.path(copy)]);
    d.wait();
}

fn names(report: &Value) -> Vec<String> {
    let all = report["volumes"].as_array().expect("volumes");
    all.iter().filter_map(|v| v["name"].as_str().map(ToOwned::to_owned)).collect()
}

/// What pools carry stays the newer one, however many changes of other things are made, and though another pool of the same
/// life is taken in. Else the next start would overwrite, and shred, the only wrapped key of a volume that was made since.
#[test]
fn a_restored_configuration_does_not_become_the_newer_one_by_counting() {
    let mut d = Daemon::new("older-counting");
    let (disk, disk2) = (d.path("d0"), d.path("d1"));
    d.start();
    d.ok(&format!("key new {}", d.path("key")));
    d.ok(&format!("pool create safe --raid 0 --device file:{disk}:128M"));
    d.ok(&format!("pool create other --raid 0 --device file:{disk2}:128M"));
    d.ok("volume create a --pool safe --size 4M");
    fs::copy(d.path("config.json"), d.path("backup.json")).expect("a backup");
    let key = d.path("key");
    d.ok(&format!("volume create b --pool safe --size 4M --encrypt --key file:{key}"));
    d.ok(&format!("volume create c --pool other --size 4M --encrypt --key file:{key}"));
    d.ok("host create all --allow-any");
    d.ok("map create all b");
    d.write("b", &letters(&d, b'B', 64));
    d.stop();
    put_back(&mut d, "backup.json");
    assert_eq!(newer(&d), ["other", "safe"]);
    // A node that serves other things as well.
    for n in 0..12 {
        d.ok(&format!("host create h{n} --port 1:{:x}", n + 1));
    }
    assert_eq!(newer(&d), ["other", "safe"]);
    d.ok("pool release other --yes");
    assert_eq!(names(&d.json(&format!("pool import --device file:{disk2}"))), ["c"]);
    d.stop();
    d.start();
    d.tried_again();
    assert_eq!(newer(&d), ["safe"]);
    d.ok("pool release safe --yes");
    let report = d.json(&format!("pool import --device file:{disk}"));
    assert_eq!(names(&report), ["a", "b"]);
    assert_eq!(faults(&d), [] as [Value; 0]);
    assert_eq!(d.read("b", 64 << 10), vec![b'B'; 64 << 10], "its key came with it");
}

/// A store that is lost right after its first use is made of its readable copy, and knows what it wrote itself.
#[test]
fn a_store_that_is_lost_at_once_is_made_of_its_copy() {
    let mut d = Daemon::new("older-at-once");
    d.start();
    d.ok(&format!("pool create safe --raid 0 --device file:{}:128M", d.path("d0")));
    d.kill();
    fs::copy(d.path("config.json"), d.path("backup.json")).expect("a backup");
    put_back(&mut d, "backup.json");
    assert_eq!(faults(&d), [] as [Value; 0]);
    d.ok("volume create v --pool safe --size 1M");
}

/// A backup was taken while a pool was being made. It says that the pool is to be made, and is put back when the pool has data.
#[test]
fn a_pool_with_data_is_not_made_again() {
    let mut d = Daemon::new("older-unmade");
    d.start();
    d.ok(&format!("pool create safe --raid 0 --device file:{}:128M", d.path("d0")));
    d.ok("host create all --allow-any");
    d.ok("volume create v --pool safe --size 1M");
    d.ok("map create all v");
    d.write("v", &letters(&d, b'A', 64));
    d.stop();
    let text = fs::read_to_string(d.path("config.json")).expect("the readable copy");
    let mut all: Value = serde_json::from_str(&text).expect("JSON");
    let pool = &mut all["pools"]["safe"];
    assert_eq!(pool["protection"]["formatted"], true, "{text}");
    pool["protection"]["formatted"] = false.into();
    pool["protection"]["overwrite"] = true.into();
    fs::write(d.path("backup.json"), all.to_string()).expect("written");
    put_back(&mut d, "backup.json");
    assert_eq!(d.read("v", 64 << 10)[0], b'A');
}

fn wait(d: &Daemon, what: &str, f: impl Fn() -> bool) {
    let begun = Instant::now();
    while !f() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: {}", d.json("migrate list"));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A volume of 16 MiB with A in it, and a backup while it moves to pool `safe`; then it has moved, and begins with B.
fn moved_since(d: &mut Daemon, from: &str, make: &str) {
    d.start();
    d.ok(&format!("pool create safe --raid 0 --device file:{}:128M", d.path("safe")));
    d.ok("host create all --allow-any");
    if !from.is_empty() {
        d.ok(&format!("pool create {from} --raid 0 --device file:{}:128M", d.path(from)));
    }
    let all = letters(d, b'A', 16 << 10);
    d.ok(make);
    d.ok("map create all v");
    d.write("v", &all);
    d.ok("migrate start v --to safe --rate 1M");
    fs::copy(d.path("config.json"), d.path("backup.json")).expect("a backup");
    d.ok("migrate rate v 0");
    wait(d, "it moves", || d.json("migrate list")[0]["state"] == "done");
    d.write("v", &letters(d, b'B', 64));
    assert_eq!(d.read("v", 64 << 10)[0], b'B');
    d.stop();
    put_back(d, "backup.json");
}

/// A backup of the configuration was taken while a volume moved, and is put back long after that. Nothing copies the old place over
/// the volume, which is where it moved to.
#[test]
fn a_migration_of_long_ago_does_not_begin_again_over_the_volume() {
    let mut d = Daemon::new("older-moved");
    let make = format!("volume adopt v --path {}", d.path("img"));
    fs::write(d.path("img"), vec![b'A'; 16 << 20]).expect("written");
    moved_since(&mut d, "", &make);
    assert_eq!(newer(&d), ["safe"]);
    d.tried_again();
    let told = d.json("migrate list")[0].to_string();
    assert!(told.contains("waiting") && told.contains("carry a newer configuration"), "{told}");
    // Nor do hosts read and write where it was of old.
    let fault = faults(&d).into_iter().find(|f| f["object"] == "volume/v").expect("a fault");
    assert!(fault["text"].to_string().contains("have that volume"), "{fault}");
    assert!(fs::read(d.path("img")).expect("read").iter().all(|b| *b == b'A'));
    for line in ["migrate cancel v", "volume delete v --yes", "volume resize v 32M"] {
        assert_eq!(d.fails(line, 4).0, "record_newer", "{line}");
    }
    d.ok("pool release safe --yes");
    assert_eq!(d.json("volume show v")["migration"], Value::Null, "it is where it was of old");
    wait(&d, "nothing is wrong with that", || faults(&d).is_empty());
    // Nobody is given it for all that.
    assert_eq!(d.json("volume show v")["newer_in"]["pool"], "safe");
    let (target, to) = (d.target(), d.path("x"));
    let old = format!("read --target {target} --volume v --length 64k --output {to} --bs 64k");
    let args: Vec<&str> = old.split_whitespace().collect();
    assert!(!crate::common::weir(&d.dir, &args).status.success(), "what it was before it moved");
    assert_eq!(d.fails("volume set v --read-only on", 4).0, "not_ready");
    // What is left here of the volume goes first.
    let import = format!("pool import --device file:{}", d.path("safe"));
    assert_eq!(d.fails(&import, 4).0, "volume_exists");
    d.ok("map delete all v");
    d.ok("volume delete v --yes");
    assert_eq!(names(&d.json(&import)), ["v"]);
    assert_eq!(d.read("v", 64 << 10)[0], b'B', "what hosts wrote last");
    assert_eq!(faults(&d), [] as [Value; 0]);
}

/// The same from pool to pool: what a fault says that one should do brings the volume back.
#[test]
fn a_volume_that_moved_since_is_there_after_what_the_fault_says() {
    let mut d = Daemon::new("older-cancel");
    moved_since(&mut d, "old", "volume create v --pool old --size 16M");
    assert_eq!(newer(&d), ["old", "safe"]);
    let mut told = faults(&d);
    told.retain(|f| f["code"] == "record_newer");
    assert!(told.iter().all(|f| f["hint"].to_string().contains("weir pool release")), "{told:?}");
    assert_eq!(d.fails("migrate cancel v", 4).0, "record_newer");
    for pool in ["safe", "old"] {
        d.ok(&format!("pool release {pool} --yes"));
    }
    for pool in ["old", "safe"] {
        let report = d.json(&format!("pool import --device file:{}", d.path(pool)));
        assert_eq!(names(&report).len(), usize::from(pool == "safe"), "{report}");
    }
    assert_eq!(d.read("v", 64 << 10)[0], b'B');
    assert_eq!(faults(&d), [] as [Value; 0]);
}

/// Rules for snapshots of then do not delete what the rules of today keep, and nothing else of an older configuration does.
#[test]
fn an_older_configuration_deletes_no_snapshots() {
    let mut d = Daemon::new("older-rules");
    d.start();
    d.ok(&format!("pool create safe --raid 0 --device file:{}:128M", d.path("d0")));
    d.ok("volume create v --pool safe --size 4M --snapshot every=1s,keep=2");
    d.stop();
    fs::copy(d.path("weir.redb"), d.path("backup.redb")).expect("a backup");
    d.start();
    d.ok("snapshot policy set v --snapshot every=1s,keep=1000");
    let all = |d: &Daemon| d.json("snapshot list").as_array().cloned().unwrap_or_default();
    wait(&d, "snapshots are made", || all(&d).len() >= 6);
    let had = all(&d).len();
    d.stop();
    fs::copy(d.path("backup.redb"), d.path("weir.redb")).expect("put back");
    d.start();
    assert_eq!(newer(&d), ["safe"]);
    std::thread::sleep(Duration::from_secs(4));
    let left = all(&d);
    assert!(left.len() >= had, "{} of {had} snapshots are left", left.len());
    let first = left[0]["name"].as_str().expect("a name").to_owned();
    for line in ["snapshot delete", "snapshot revert"] {
        assert_eq!(d.fails(&format!("{line} v@{first} --yes"), 4).0, "record_newer", "{line}");
    }
    let rule = d.json("snapshot policy show v")[0]["trouble"].to_string();
    assert!(rule.contains("newer configuration"), "{rule}");
}

/// A volume that was made smaller is not made large again by an older configuration, which remembers more of it.
#[test]
fn an_older_configuration_makes_no_volume_large_again() {
    let mut d = Daemon::new("older-size");
    d.start();
    d.ok(&format!("pool create safe --raid 0 --device file:{}:128M", d.path("d0")));
    d.ok("host create all --allow-any");
    for (n, form) in ["", "--compress lz4", "--dedup"].into_iter().enumerate() {
        d.ok(&format!("volume create v{n} --pool safe --size 32M {form}"));
        d.ok(&format!("map create all v{n}"));
        d.write(&format!("v{n}"), &letters(&d, b'A', 64));
    }
    d.stop();
    fs::copy(d.path("weir.redb"), d.path("backup.redb")).expect("a backup");
    d.start();
    for n in 0..3 {
        d.ok(&format!("volume resize v{n} 16M --allow-shrink"));
    }
    d.stop();
    fs::copy(d.path("backup.redb"), d.path("weir.redb")).expect("put back");
    d.start();
    assert_eq!(newer(&d), ["safe"]);
    let target = d.target();
    for n in 0..3 {
        assert_eq!(d.read(&format!("v{n}"), 64 << 10)[0], b'A', "it is served");
        let beyond = format!(
            "read --target {target} --volume v{n} --offset 16M --length 64k --output {} --bs 64k",
            d.path("x")
        );
        let args: Vec<&str> = beyond.split_whitespace().collect();
        assert!(
            !crate::common::weir(&d.dir, &args).status.success(),
            "as large as it is on the devices"
        );
    }
    d.ok("pool release safe --yes");
    d.ok(&format!("pool import --device file:{}", d.path("d0")));
    for n in 0..3 {
        assert_eq!(d.json(&format!("volume show v{n}"))["size"], 16 << 20);
        // What does grow by a command is larger after a start, too.
        d.ok(&format!("volume resize v{n} 24M"));
    }
    d.kill();
    d.start();
    assert_eq!(faults(&d), [] as [Value; 0]);
    assert_eq!(d.json("volume show v1")["size"], 24 << 20);
}

//! An older configuration that is put back under pools that carry a newer one: the real program, files as devices.

mod common;

use common::Daemon;
use serde_json::Value;
use std::fs;
use std::time::Duration;

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

/// What pools carry stays the newer one, however many changes of other things are made, and though another pool is taken in that the
/// same life had written: else the next start would overwrite, and shred, the only wrapped key of a volume that was made since.
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
    d.ok("pool release other");
    assert_eq!(names(&d.json(&format!("pool import --device file:{disk2}"))), ["c"]);
    d.stop();
    d.start();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(newer(&d), ["safe"]);
    d.ok("pool release safe");
    let report = d.json(&format!("pool import --device file:{disk}"));
    assert_eq!(names(&report), ["a", "b"]);
    assert_eq!(faults(&d), [] as [Value; 0]);
    assert_eq!(d.read("b", 64 << 10), vec![b'B'; 64 << 10], "its key came with it");
}

/// A store that is lost right after it was used for the first time is made of its readable copy, and knows what it wrote itself.
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

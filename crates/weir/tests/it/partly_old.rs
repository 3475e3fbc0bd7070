//! One device of a pool is elsewhere for once, and an old copy of it is beside where it was: the copy is not taken for it.

use crate::common::{Daemon, noise};
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};

const LEN: usize = 24 << 20;

fn put(d: &Daemon, seed: u64) -> Vec<u8> {
    let data = noise(seed, LEN);
    fs::write(d.path("data"), &data).expect("written");
    d.write("v", &d.path("data"));
    data
}

/// A pool of two devices in a directory of their own; a volume in it.
fn pool(name: &str, raid: &str) -> (Daemon, String, String) {
    let mut d = Daemon::new(name);
    let dir = d.path("disks");
    fs::create_dir(&dir).expect("a directory");
    let d1 = format!("{dir}/d1");
    d.start();
    d.ok(&format!(
        "pool create safe --raid {raid} --device file:{dir}/d0:128M --device file:{d1}:128M"
    ));
    d.ok("volume create v --pool safe --size 32M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    (d, dir, d1)
}

fn end(d: &mut Daemon, kill: bool) {
    if kill { d.kill() } else { d.stop() }
}

/// Whether the pool is a fault, which it may become a moment after the start.
fn is_fault(d: &Daemon) -> bool {
    std::thread::sleep(Duration::from_secs(1));
    d.json("status")["faults"].to_string().contains("pool/safe")
}

fn reads_when_it_is_back(d: &Daemon, data: &[u8]) {
    let begun = Instant::now();
    while is_fault(d) {
        assert!(begun.elapsed() < Duration::from_secs(30), "{}", d.json("status")["faults"]);
    }
    assert!(d.read("v", LEN) == data);
}

/// The configuration does not know what tells devices apart, as of disks without a world-wide name.
fn without_names(d: &mut Daemon) {
    let text = fs::read_to_string(d.path("config.json")).expect("the readable copy");
    let mut all: Value = serde_json::from_str(&text).expect("JSON");
    for device in all["pools"]["safe"]["devices"].as_array_mut().expect("devices") {
        let had = device.as_object_mut().expect("a device").remove("identity");
        assert!(had.is_some(), "{text}");
    }
    fs::write(d.path("nameless.json"), all.to_string()).expect("written");
    for lost in ["weir.redb", "config.json"] {
        fs::remove_file(d.path(lost)).expect("it was there");
    }
    d.start_with(&["--restore-from", &d.path("nameless.json")]);
    d.wait();
}

#[test]
fn an_old_copy_of_one_device_is_not_taken_for_it() {
    for (before, after) in [(false, true), (true, true), (false, false), (true, false)] {
        let (mut d, dir, d1) = pool("partly-old", "0");
        put(&d, 1);
        end(&mut d, before);
        fs::copy(&d1, format!("{dir}/d1.bak")).expect("a backup");
        d.start();
        let new = put(&d, 2);
        end(&mut d, after);
        fs::rename(&d1, d.path("elsewhere")).expect("moved");
        d.start();
        assert!(is_fault(&d), "killed {before}, {after}: {}", d.json("pool show safe"));
        // It is put back, and nothing is missing; the copy may stay.
        fs::rename(d.path("elsewhere"), &d1).expect("put back");
        reads_when_it_is_back(&d, &new);
    }
}

/// Where devices have no names of their own, one is taken that is as new as the others for sure: its log tells, or the pool was closed
/// in order.
#[test]
fn an_old_copy_is_told_by_the_log_where_devices_have_no_names() {
    for raid in ["0", "1"] {
        let (mut d, dir, d1) = pool("partly-old-log", raid);
        put(&d, 1);
        // No superblock is written until the next start.
        std::thread::sleep(Duration::from_secs(1));
        fs::copy(&d1, format!("{dir}/d1.bak")).expect("a backup");
        let new = put(&d, 2);
        std::thread::sleep(Duration::from_secs(1));
        d.kill();
        fs::rename(&d1, d.path("elsewhere")).expect("moved");
        without_names(&mut d);
        assert!(is_fault(&d), "{raid}: {}", d.json("pool show safe"));
        // With one copy of everything only one device has the log.
        let back = if raid == "1" { format!("{dir}/renamed") } else { d1.clone() };
        fs::rename(d.path("elsewhere"), &back).expect("moved");
        reads_when_it_is_back(&d, &new);
        d.stop();
        fs::rename(&back, format!("{dir}/once-more")).expect("renamed");
        without_names(&mut d);
        reads_when_it_is_back(&d, &new);
    }
}

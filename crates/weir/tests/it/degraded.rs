//! A mirror that lacks a disk at a start: served by itself after an orderly stop, and by force after a kill.

use crate::common::Daemon;
use crate::common::lossy::{Disks, Nature, can_mount};
use serde_json::Value;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

const BYTES: usize = 64 << 10;

fn letters(d: &Daemon, letter: u8) -> String {
    let path = d.path(&char::from(letter).to_string());
    fs::write(&path, vec![letter; BYTES]).expect("written");
    path
}

/// A mirror with a volume that was written to.
fn mirror(test: &str) -> Daemon {
    let mut d = Daemon::new(test);
    d.start();
    d.ok(&format!("pool create p --raid 1 {}", d.devices(2, "128M")));
    d.ok("volume create v --pool p --size 16M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    d.write("v", &letters(&d, b'A'));
    d
}

/// A disk that is nowhere to be found.
fn pull(d: &Daemon, n: u32) {
    fs::create_dir_all(d.path("away")).expect("a directory");
    fs::rename(d.path(&format!("disk{n}")), d.path(&format!("away/disk{n}"))).expect("pulled");
}

fn put_back(d: &Daemon, n: u32) {
    fs::rename(d.path(&format!("away/disk{n}")), d.path(&format!("disk{n}"))).expect("put back");
}

fn state(d: &Daemon) -> Value {
    d.json("pool show p")["live"]["state"].clone()
}

/// The pool lacks a disk, and hosts are served.
fn is_served(d: &Daemon) -> bool {
    state(d) == "degraded" && d.json("volume show v")["not_served"].is_null()
}

/// Waits until what is not up has been tried again, with what was known by then.
fn tried_again(d: &Daemon) {
    let rounds = || d.json("status")["retries"].as_u64().unwrap_or(0);
    let before = rounds();
    d.until("it is tried again", || rounds() >= before + 3);
}

fn is_fault(d: &Daemon) -> bool {
    let faults = d.json("status")["faults"].as_array().cloned().unwrap_or_default();
    faults.iter().any(|f| {
        f["object"] == "pool/p"
            && f["text"].as_str().is_some_and(|t| t.contains("cannot be opened"))
    })
}

#[test]
fn a_mirror_that_lost_a_disk_while_it_was_off_is_served_and_mended() {
    let mut d = mirror("degraded-stop");
    for n in [0, 1] {
        d.stop();
        pull(&d, n);
        d.start();
        d.until("it is served", || is_served(&d));
        d.write("v", &letters(&d, if n == 0 { b'B' } else { b'C' }));
        // Once more without it, which is known by now.
        d.stop();
        d.start();
        d.until("it is served", || is_served(&d));
        put_back(&d, n);
        d.ok(&format!("pool attach p --device file:{}", d.path(&format!("disk{n}"))));
        d.until("it is whole", || state(&d) == "healthy");
        assert_eq!(d.read("v", BYTES)[0], if n == 0 { b'B' } else { b'C' });
    }
    d.stop();
}

/// The disk that is pulled is the one that went on alone: what the other one has is older.
#[test]
fn a_mirror_is_not_served_by_what_may_be_behind() {
    let mut d = mirror("degraded-kill");
    d.stop();
    d.start();
    d.write("v", &letters(&d, b'B'));
    d.kill();
    pull(&d, 1);
    d.start();
    d.until("it is a fault", || is_fault(&d));
    tried_again(&d);
    assert!(is_fault(&d), "after a kill the other disk may be ahead");
    // An orderly stop meanwhile changes nothing of that.
    d.stop();
    d.start();
    tried_again(&d);
    assert!(is_fault(&d), "it was not opened, so nobody knows more");
    put_back(&d, 1);
    d.until("it is whole", || state(&d) == "healthy");
    d.stop();
    pull(&d, 0);
    d.start();
    d.until("it is served", || is_served(&d));
    d.stop();
    // What went on alone is away, and the one that it left behind is back.
    put_back(&d, 0);
    pull(&d, 1);
    d.start();
    d.until("it is a fault", || is_fault(&d));
    tried_again(&d);
    assert!(is_fault(&d), "what the other disk got alone is not here");
    put_back(&d, 1);
    d.until("it is whole", || state(&d) == "healthy");
    // Its volumes come after it.
    d.until("it is served", || d.json("volume show v")["not_served"].is_null());
    assert_eq!(d.read("v", BYTES)[0], b'B');
    d.stop();
}

/// The pool stays closed, also when devices may not be late any more, and it is said what to do.
fn stays_closed(d: &Daemon) {
    d.until("it is a fault", || is_fault(d));
    tried_again(d);
    let told = d.json("status")["faults"].to_string();
    assert!(is_fault(d) && told.contains("weir pool force p"), "{told}");
    assert!(told.contains("may have what the others have not"), "{told}");
}

/// The start after an orderly stop is killed: nobody knows how far it came.
#[test]
fn after_a_kill_in_the_midst_of_a_start_it_does_not() {
    let mut d = mirror("degraded-start");
    d.stop();
    pull(&d, 1);
    d.start();
    d.kill();
    d.start();
    stays_closed(&d);
    put_back(&d, 1);
    d.until("it is whole", || state(&d) == "healthy");
    d.stop();
}

/// A disk that another program has locked is not gone: it is waited for.
#[test]
fn a_disk_that_is_in_use_is_waited_for() {
    let mut d = mirror("degraded-used");
    d.stop();
    let used = fs::File::open(d.path("disk1")).expect("open");
    used.lock().expect("locked");
    d.start();
    d.until("it is a fault", || is_fault(&d));
    tried_again(&d);
    let told = d.json("status")["faults"].to_string();
    assert!(is_fault(&d) && told.contains("in use") | told.contains("uses it"), "{told}");
    drop(used);
    d.until("it is whole", || state(&d) == "healthy");
    d.stop();
}

/// The same of one that gives no answer to whoever would know what is on it. However long that lasts, somebody writes to it.
#[test]
fn a_disk_that_is_in_use_and_cannot_be_read_is_waited_for() {
    let mut d = Daemon::new("degraded-unread");
    let disks = match can_mount() {
        Ok(()) => Disks::mount(&d.dir, 1, 128 << 20, Nature::Honest, 1).expect("a disk"),
        Err(e) => return eprintln!("skipped: {e}"),
    };
    let (d0, slot) = (d.path("disk0"), disks.files()[0].display().to_string());
    d.start();
    d.ok(&format!("pool create p --raid 1 --device file:{d0}:128M --device file:{slot}"));
    d.stop();
    let used = fs::File::open(&slot).expect("open");
    used.lock().expect("locked");
    disks.switch().pull(0, true);
    d.start();
    let begun = Instant::now();
    d.until("it is a fault", || is_fault(&d));
    // Longer than what only does not answer is waited for: a minute, and the last try.
    while begun.elapsed() < Duration::from_secs(100) {
        assert_ne!(state(&d), "degraded", "after {:?}", begun.elapsed());
        std::thread::sleep(Duration::from_secs(1));
    }
    disks.switch().pull(0, false);
    drop(used);
    d.until("it is whole", || state(&d) == "healthy");
    d.stop();
}

/// The disk has got another name, and another program has it.
#[test]
fn a_disk_of_another_name_that_is_in_use_is_waited_for() {
    let mut d = mirror("degraded-renamed");
    d.stop();
    fs::rename(d.path("disk1"), d.path("other")).expect("renamed");
    let used = fs::File::open(d.path("other")).expect("open");
    used.lock().expect("locked");
    d.start();
    d.until("it is a fault", || is_fault(&d));
    tried_again(&d);
    let told = d.json("status")["faults"].to_string();
    assert!(is_fault(&d) && told.contains("a copy, and in use (another program uses it"), "{told}");
    drop(used);
    d.until("it is whole", || state(&d) == "healthy");
    d.stop();
}

/// A disk that nobody can write to.
struct ReadOnly(String);

impl ReadOnly {
    fn new(path: String) -> ReadOnly {
        assert!(Command::new("chattr").args(["+i", &path]).status().expect("chattr").success());
        ReadOnly(path)
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let _ = Command::new("chattr").args(["-i", &self.0]).status();
    }
}

/// Whether files can be made so that nobody can write to them, root neither.
fn can_be_read_only(d: &Daemon) -> bool {
    let path = d.path("try");
    fs::write(&path, "").expect("written");
    let set = |how: &str| {
        let done = Command::new("chattr").args([how, path.as_str()]).status();
        done.is_ok_and(|s| s.success())
    };
    set("+i") && set("-i")
}

/// The disk has got another name, and cannot be written to: it is no copy for that.
#[test]
fn a_disk_of_another_name_that_is_read_only_is_waited_for() {
    let mut d = mirror("degraded-fixed");
    if !can_be_read_only(&d) {
        return eprintln!("skipped: files cannot be made immutable here");
    }
    d.stop();
    fs::rename(d.path("disk1"), d.path("other")).expect("renamed");
    let fixed = ReadOnly::new(d.path("other"));
    d.start();
    d.until("it is a fault", || is_fault(&d));
    tried_again(&d);
    let told = d.json("status")["faults"].to_string();
    assert!(is_fault(&d) && told.contains("it is a device that is missing, and cannot"), "{told}");
    drop(fixed);
    d.until("it is whole", || state(&d) == "healthy");
    d.stop();
}

/// What is there besides is newer: the pool went on elsewhere.
#[test]
fn beside_a_newer_copy_it_does_not() {
    let mut d = mirror("degraded-newer");
    d.stop();
    let mut other = Daemon::new("degraded-newer-other");
    other.start();
    fs::copy(d.path("disk1"), other.path("disk1")).expect("copied");
    other.ok(&format!("pool import --force --device file:{}", other.path("disk1")));
    other.until("it is up there", || state(&other) == "degraded");
    other.stop();
    pull(&d, 1);
    // By another name, and by its own; and it makes no difference that it cannot be written to.
    let ways: &[(&str, bool)] = match can_be_read_only(&d) {
        true => &[("newer", false), ("newer", true), ("disk1", true)],
        false => &[("newer", false)],
    };
    for (name, read_only) in ways {
        fs::copy(other.path("disk1"), d.path(name)).expect("copied");
        let held = read_only.then(|| ReadOnly::new(d.path(name)));
        d.start();
        stays_closed(&d);
        let told = d.json("status")["faults"].to_string();
        assert!(told.contains("it has what the others have not"), "{name} {read_only}: {told}");
        d.stop();
        drop(held);
        fs::remove_file(d.path(name)).expect("removed");
    }
    d.start();
    d.until("it is served", || is_served(&d));
    d.stop();
}

/// Something elsewhere carries the pool's label, and all its superblocks are damaged. What is only silent is waited for a minute.
#[test]
fn beside_one_that_does_not_tell_how_far_it_has_come_it_does_not() {
    let mut d = mirror("degraded-untold");
    d.stop();
    pull(&d, 1);
    let mut disk = fs::read(d.path("away/disk1")).expect("read");
    let (first, area) = (2 * 4096, 64 * 4096);
    let last = disk.len() - first - area;
    for at in [first, last] {
        disk[at..at + area].fill(0xff);
    }
    fs::write(d.path("untold"), disk).expect("written");
    let begun = Instant::now();
    d.start();
    stays_closed(&d);
    let told = d.json("status")["faults"].to_string();
    assert!(told.contains("how far it has come cannot be read"), "{told}");
    while begun.elapsed() < Duration::from_secs(75) {
        std::thread::sleep(Duration::from_secs(1));
        assert!(is_fault(&d), "it was opened after {} s", begun.elapsed().as_secs());
    }
    d.stop();
    fs::remove_file(d.path("untold")).expect("removed");
    d.start();
    d.until("it is served", || is_served(&d));
    d.stop();
}

/// A used disk is in its place.
#[test]
fn a_disk_of_another_pool_is_none_of_its_own() {
    let mut d = mirror("degraded-foreign");
    d.stop();
    let mut other = Daemon::new("degraded-foreign-other");
    other.start();
    other.ok(&format!("pool create q --raid 1 {}", other.devices(2, "128M")));
    other.stop();
    pull(&d, 1);
    fs::copy(other.path("disk1"), d.path("disk1")).expect("copied");
    d.start();
    d.until("it is served", || is_served(&d));
    d.stop();
}

/// The disk died, and the system gave its name to one that has something else, and somebody who uses it.
#[test]
fn a_disk_in_use_that_is_none_of_its_own_is_not_waited_for() {
    let mut d = mirror("degraded-other");
    d.stop();
    pull(&d, 1);
    fs::write(d.path("disk1"), vec![0x5A; 128 << 20]).expect("written");
    let used = fs::File::open(d.path("disk1")).expect("open");
    used.lock().expect("locked");
    d.start();
    d.until("it is served", || is_served(&d));
    drop(used);
    d.stop();
}

/// The same, and who uses it is another pool of the node.
#[test]
fn a_disk_that_another_pool_has_found_by_its_name_is_not_waited_for() {
    let mut d = mirror("degraded-pools");
    let all = d.devices(4, "128M");
    let more: Vec<&str> = all.split_whitespace().skip(4).collect();
    d.ok(&format!("pool create q --raid 1 {}", more.join(" ")));
    d.stop();
    pull(&d, 1);
    fs::rename(d.path("disk3"), d.path("disk1")).expect("renamed");
    d.start();
    d.until("it is served", || is_served(&d));
    d.until("both are open", || d.json("pool show q")["live"]["state"] == "healthy");
    d.stop();
}

/// Somebody else opens the pool after the stop.
#[test]
fn after_a_repair_it_does_not() {
    let mut d = mirror("degraded-repaired");
    d.stop();
    let all: String =
        (0..2).map(|i| format!("--device {} ", d.path(&format!("disk{i}")))).collect();
    // To look changes nothing.
    assert_eq!(d.json(&format!("check {all}"))["clean"], true);
    pull(&d, 1);
    d.start();
    d.until("it goes on by itself", || is_served(&d));
    put_back(&d, 1);
    d.ok(&format!("pool attach p --device file:{}", d.path("disk1")));
    d.until("it is whole again", || state(&d) == "healthy");
    d.stop();
    assert_eq!(d.json(&format!("check {all} --repair"))["clean"], true);
    pull(&d, 1);
    d.start();
    stays_closed(&d);
    d.stop();
}

/// Another node takes the pool over, and gives it back with a device less.
#[test]
fn after_another_node_had_it_it_does_not() {
    let mut d = mirror("degraded-moved");
    d.stop();
    let mut other = Daemon::new("degraded-other");
    other.start();
    let all: String =
        (0..2).map(|i| format!("--device file:{} ", d.path(&format!("disk{i}")))).collect();
    other.ok(&format!("pool import {all}"));
    other.until("it is up there", || state(&other) == "healthy");
    other.stop();
    pull(&d, 1);
    d.start();
    stays_closed(&d);
    d.stop();
}

/// The only device that is there is an old copy of one.
#[test]
fn on_an_old_copy_alone_it_does_not() {
    let mut d = mirror("degraded-old");
    d.stop();
    fs::copy(d.path("disk1"), d.path("old")).expect("copied");
    d.start();
    d.write("v", &letters(&d, b'B'));
    d.stop();
    pull(&d, 0);
    pull(&d, 1);
    fs::rename(d.path("old"), d.path("disk1")).expect("moved");
    d.start();
    stays_closed(&d);
    // Beside the other one it is only out of date.
    d.stop();
    put_back(&d, 0);
    d.start();
    d.until("it is brought up to date", || state(&d) == "healthy");
    d.until("it is served", || d.json("volume show v")["not_served"].is_null());
    assert_eq!(d.read("v", BYTES)[0], b'B');
    d.stop();
}

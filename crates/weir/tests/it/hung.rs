//! Devices and file systems that answer nothing at all while commands and hosts ask for them: what is elsewhere goes on.

use crate::common::lossy::{Disks, Nature, can_mount};
use crate::common::{Beside, Daemon, noise};
use crate::devices::{Loop, faults};
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use weir_uring::device::is_being_closed;
use weir_uring::{Held, HoldError};

const MIB: usize = 1 << 20;

/// A node whose volume `g` in a protected pool has `data`, and a disk that may hang. None: nothing can be mounted here.
pub(crate) fn node(name: &str) -> Option<(Daemon, Disks, Vec<u8>)> {
    let mut d = Daemon::new(name);
    let disks = match can_mount() {
        Ok(()) => Disks::mount(&d.dir, 1, 64 << 20, Nature::Honest, 1).expect("a disk"),
        Err(e) => {
            eprintln!("skipped: {e}");
            return None;
        }
    };
    d.start();
    d.ok(&format!("pool create good --raid 1 {}", d.devices(2, "64M")));
    d.ok("volume create g --pool good --size 8M");
    d.ok("host create all --allow-any");
    d.ok("map create all g");
    let data = noise(3, MIB);
    std::fs::write(d.path("of-g"), &data).expect("written");
    d.write("g", &d.path("of-g"));
    Some((d, disks, data))
}

/// A loop device on the disk that may hang. It has no cache: else it would answer out of the kernel's memory.
pub(crate) fn uncached(disks: &Disks) -> Option<Loop> {
    let made = Loop::new(&disks.files()[0]);
    let disk = made.map_err(|e| eprintln!("skipped: no loop devices: {e}")).ok()?;
    let direct = Command::new("losetup").args(["--direct-io=on", &disk.0]).status();
    if direct.is_ok_and(|s| s.success()) {
        return Some(disk);
    }
    eprintln!("skipped: no loop devices without a cache");
    None
}

/// Somebody waits for a device to be opened, or looked at.
pub(crate) fn is_at_a_device(d: &Daemon) -> bool {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{}/task", d.pid())) else { return false };
    let name = |t: std::fs::DirEntry| std::fs::read_to_string(t.path().join("comm"));
    tasks.flatten().filter_map(|t| name(t).ok()).any(|n| n.starts_with("weir-device"))
}

/// A command names a device whose opening hangs: hosts are served, another change gets through, and it is refused in the end.
fn hangs(name: &str, line: &str) {
    let Some((mut d, disks, data)) = node(name) else { return };
    let before = d.json("pool show good")["devices"].clone();
    let switch = disks.switch();
    switch.freeze();
    let line = format!("{line}{}", disks.files()[0].display());
    let asks = Beside::run(&d, &line);
    d.until("it asks for the device", || is_at_a_device(&d) || asks.has_ended());
    assert!(!asks.has_ended(), "the device hangs: {:?}", asks.end(&d));
    assert!(d.read("g", MIB) == data, "hosts are served");
    Beside::run(&d, "host create other --port 1:2").succeeds(&d);
    Beside::run(&d, "volume create more --pool good --size 8M").succeeds(&d);
    assert!(!asks.has_ended(), "nobody waits for it: {:?}", asks.end(&d));
    let (done, said) = asks.end(&d);
    assert!(!done && said.contains("does not answer"), "weir {line}: {said}");
    let held = faults(&d).iter().any(|f| f["object"].to_string().contains("reactor/"));
    assert!(!held, "{:?}", faults(&d));
    switch.thaw();
    d.until("nobody asks any more", || !is_at_a_device(&d));
    assert_eq!(d.json("pool show good")["devices"], before);
    assert_eq!(d.json("pool list").as_array().map(Vec::len), Some(1));
    d.until("nothing is left of it", || faults(&d).is_empty());
    d.stop();
    d.is_clean(2);
}

#[test]
fn a_pool_is_made_of_a_device_that_hangs() {
    hangs("hung-create", "pool create new --device file:");
}

#[test]
fn a_device_that_hangs_is_added() {
    hangs("hung-add", "pool add good --device file:");
}

#[test]
fn a_device_that_hangs_is_attached() {
    hangs("hung-attach", "pool attach good --device file:");
}

#[test]
fn a_device_that_hangs_takes_the_place_of_another() {
    hangs("hung-replace", "pool replace good 0 --device file:");
}

#[test]
fn a_pool_is_taken_over_from_a_device_that_hangs() {
    hangs("hung-import", "pool import --device file:");
}

#[test]
fn a_file_that_hangs_is_adopted() {
    hangs("hung-adopt", "volume adopt a --path ");
}

/// A device of a pool has got another name, and disks that are nobody's hang while it is looked for.
#[test]
fn disks_that_hang_keep_no_pool_waiting_that_looks_for_its_device() {
    let Some((mut d, disks, data)) = node("hung-others") else { return };
    let others: Vec<Option<Loop>> = (0..4).map(|_| uncached(&disks)).collect();
    if others.iter().any(Option::is_none) {
        return;
    }
    let last = d.json("pool show good")["devices"][1]["path"].as_str().expect("a path").to_owned();
    d.stop();
    std::fs::rename(&last, format!("{last}.moved")).expect("renamed");
    disks.switch().freeze();
    d.start();
    assert!(d.read("g", MIB) == data);
    disks.switch().thaw();
    d.stop();
    std::fs::rename(format!("{last}.moved"), &last).expect("renamed");
    d.is_clean(2);
}

/// A pool lacks its device, and a disk that is nobody's hangs each time that it is looked for: the read that began first goes on.
#[test]
fn a_disk_that_hangs_is_opened_once_however_often_it_is_looked_at() {
    let Some((mut d, disks, data)) = node("hung-asked") else { return };
    let Some(disk) = uncached(&disks) else { return };
    let last = d.json("pool show good")["devices"][1]["path"].as_str().expect("a path").to_owned();
    d.kill();
    std::fs::create_dir(d.path("away")).expect("a directory");
    std::fs::rename(&last, d.path("away/disk")).expect("renamed");
    let switch = disks.switch();
    switch.freeze();
    d.start();
    let number = std::fs::metadata(&disk.0).expect("it is there").rdev();
    let is_it =
        |f: &std::fs::DirEntry| std::fs::metadata(f.path()).is_ok_and(|m| m.rdev() == number);
    let opened = || {
        let all = std::fs::read_dir(format!("/proc/{}/fd", d.pid())).expect("its descriptors");
        all.flatten().filter(is_it).count()
    };
    d.until("it is looked at", || opened() > 0);
    (0..3).for_each(|_| d.tried_again());
    d.until("it is open once", || opened() == 1);
    switch.thaw();
    d.until("it has answered", || opened() == 0);
    std::fs::rename(d.path("away/disk"), &last).expect("renamed");
    d.until("it is opened", || faults(&d).is_empty());
    assert!(d.read("g", MIB) == data);
    d.stop();
    d.is_clean(2);
}

/// A plain pool is on a file system that hangs, in use and at the start; volumes are wanted in it and in others.
#[test]
fn a_plain_pool_on_a_file_system_that_hangs_stops_nothing_else() {
    let Some((mut d, disks, data)) = node("hung-plain") else { return };
    let Some(disk) = uncached(&disks) else { return };
    d.ok(&format!("pool create bad --device {}", disk.0));
    d.ok("volume create b --pool bad --size 8M");
    d.ok("map create all b");
    d.write("b", &d.path("of-g"));
    let switch = disks.switch();
    switch.freeze();
    let wanted = Beside::run(&d, "volume create b2 --pool bad --size 8M");
    assert!(d.read("g", MIB) == data, "while a volume is made there");
    Beside::run(&d, "volume create more --pool good --size 8M").succeeds(&d);
    wanted.end(&d);
    let (target, out) = (d.target(), d.path("of-b"));
    let reads = format!("read --target {target} --volume b --length 1M --output {out}");
    let reads = Beside::run(&d, &reads);
    assert!(d.read("g", MIB) == data, "while a host waits for it");
    Beside::run(&d, "volume create still-more --pool good --size 8M").succeeds(&d);
    let held = faults(&d).iter().any(|f| f["object"].to_string().contains("reactor/"));
    assert!(!held, "{:?}", faults(&d));
    switch.thaw();
    reads.succeeds(&d);
    assert!(std::fs::read(&out).expect("what was read") == data);
    d.until("all is well", || faults(&d).is_empty());
    d.stop();

    // The same from the start on.
    switch.freeze();
    d.start_only();
    d.wait_until(|_| true);
    assert!(d.read("g", MIB) == data, "what can be had is served");
    assert!(faults(&d).iter().any(|f| f["object"] == "pool/bad"), "{:?}", faults(&d));
    let (done, said) = Beside::run(&d, "volume create b3 --pool bad --size 8M").end(&d);
    assert!(!done && said.contains("not up"), "{said}");
    // It is tried again meanwhile.
    let silent =
        |f: &Value| f["object"] == "pool/bad" && f["text"].to_string().contains("does not answer");
    d.until("it is said that it does not answer", || faults(&d).iter().any(silent));
    assert!(d.read("g", MIB) == data);
    Beside::run(&d, "volume create most --pool good --size 8M").succeeds(&d);
    let held = faults(&d).iter().any(|f| f["object"].to_string().contains("reactor/"));
    assert!(!held, "{:?}", faults(&d));
    switch.thaw();
    d.until("the pool is opened", || faults(&d).is_empty());
    assert!(d.read("b", MIB) == data, "what it has itself");
    assert_ne!(d.json("volume list"), json!([]));
    d.stop();
}

/// A volume is deleted whose plain pool is on a file system that hangs; others are made meanwhile, and the node is started again.
#[test]
fn a_volume_on_a_file_system_that_hangs_is_deleted_beside_everything_else() {
    let Some((mut d, disks, data)) = node("hung-delete") else { return };
    let Some(disk) = uncached(&disks) else { return };
    d.ok(&format!("pool create bad --device {}", disk.0));
    d.ok("volume create b --pool bad --size 8M");
    let switch = disks.switch();
    switch.freeze();
    let deleted = Beside::run(&d, "volume delete b --yes");
    let is_deleting = || {
        d.json("volume list")
            .as_array()
            .is_some_and(|all| all.iter().any(|v| v["state"] == "deleting"))
    };
    d.until("it is being deleted", is_deleting);
    Beside::run(&d, "volume create more --pool good --size 8M").succeeds(&d);
    assert!(d.read("g", MIB) == data, "while its space is given back");
    deleted.succeeds(&d);
    assert!(is_deleting(), "its space is not free yet");
    switch.thaw();
    d.until("it is gone", || d.json("volume list").as_array().is_some_and(|all| all.len() == 2));
    assert!(faults(&d).is_empty(), "{:?}", faults(&d));
    d.stop();
}

/// The file of a volume in image mode is on a file system that hangs when the node starts.
#[test]
fn the_file_of_a_volume_that_hangs_keeps_no_other_volume_waiting() {
    let Some((mut d, disks, data)) = node("hung-images") else { return };
    let file = disks.files()[0].clone();
    d.ok(&format!("volume adopt a --path {}", file.display()));
    d.stop();
    disks.switch().freeze();
    d.start_only();
    d.wait_until(|_| true);
    assert!(d.read("g", MIB) == data, "what can be had is served");
    let silent =
        |f: &Value| f["object"] == "volume/a" && f["text"].to_string().contains("does not answer");
    d.until("it is said", || faults(&d).iter().any(silent));
    Beside::run(&d, "volume create more --pool good --size 8M").succeeds(&d);
    disks.switch().thaw();
    d.until("it comes", || faults(&d).is_empty());
    d.stop();
}

/// A leg of a mirror is a loop device that does not say what it is made of: nobody is known to have that.
#[test]
fn a_mirror_is_opened_without_a_loop_device_that_does_not_answer() {
    let Some((mut d, disks, data)) = node("hung-leg") else { return };
    let Ok(leg) = Loop::new(&disks.files()[0]) else {
        return eprintln!("skipped: no loop devices");
    };
    let own = d.path("own");
    d.ok(&format!("pool create m --raid 1 --device file:{own}:64M --device block:{}", leg.0));
    d.ok("volume create of-m --pool m --size 8M");
    d.ok("map create all of-m");
    d.write("of-m", &d.path("of-g"));
    d.stop();
    std::fs::metadata(&disks.files()[0]).expect("it is known before");
    let frozen = disks.switch().frozen();
    // A change that is broken off: the kernel asks anew what its file is, also for a loop device.
    let mut change =
        Command::new("chmod").arg("600").arg(&disks.files()[0]).spawn().expect("chmod");
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(change.try_wait().expect("its state").is_none(), "it hangs");
    drop((change.kill(), change.wait()));
    d.start_only();
    d.wait_until(|_| true);
    d.until("it is opened", || d.json("pool show m")["live"]["state"] == "degraded");
    d.until("it is served", || d.json("volume show of-m")["not_served"].is_null());
    assert!(d.read("of-m", MIB) == data);
    drop(frozen);
    d.stop();
}

/// The last one that has a disk open writes what others have written to it, and hangs in that. The disk is claimed meanwhile, and this
/// program knows that it is its own doing.
#[test]
fn a_disk_that_hangs_while_a_thread_closes_it_is_known_to_be_closed() {
    if let Err(e) = can_mount() {
        return eprintln!("skipped: {e}");
    }
    let d = Daemon::new("hung-closed");
    let disks = Disks::mount(&d.dir, 1, 64 << 20, Nature::Honest, 1).expect("a disk");
    let Some(disk) = uncached(&disks) else { return };
    let open = || Held::open(Path::new(&disk.0), false);
    let switch = disks.switch();
    d.until("it hangs in close", || {
        let Ok(held) = open() else { return false };
        let identity = held.identity();
        // Into the kernel's memory.
        let mut other = OpenOptions::new().write(true).open(&disk.0).expect("it is open");
        other.write_all(&[7; 4096]).expect("written");
        drop(other);
        let frozen = switch.frozen();
        let closes = std::thread::spawn(move || drop(held));
        std::thread::sleep(Duration::from_millis(300));
        // Else somebody else had it open, who looked what it is, and it was not the last.
        let hangs = !closes.is_finished();
        assert_eq!(is_being_closed(identity), hangs);
        assert!(!hangs || matches!(open(), Err(HoldError::Busy)), "it is claimed");
        drop(frozen);
        closes.join().expect("no panic");
        assert!(!is_being_closed(identity));
        hangs
    });
}

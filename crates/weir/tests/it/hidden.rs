//! Old copies of a mirror's devices at the paths where the real ones were: those are elsewhere, or beside.

use crate::common::Daemon;
use std::fs;

const BYTES: usize = 64 << 10;

fn put(d: &Daemon, letter: u8) {
    let path = d.path(&char::from(letter).to_string());
    fs::write(&path, vec![letter; BYTES]).expect("written");
    d.write("v", &path);
}

fn copy(d: &Daemon, from: &str, to: &str) {
    fs::copy(d.path(from), d.path(to)).expect("copied");
}

fn rename(d: &Daemon, from: &str, to: &str) {
    fs::rename(d.path(from), d.path(to)).expect("renamed");
}

fn reads(d: &Daemon, letter: u8) {
    // It is shown once the pool is open.
    let list = format!("inquiry --target {} --all", d.target());
    d.until("v is shown", || d.ok(&list).contains(" v"));
    let read = d.read("v", BYTES);
    assert!(read.iter().all(|b| *b == letter), "hosts read {:?}", char::from(read[0]));
}

/// Everything that is said of the pool and its faults.
fn told(d: &Daemon) -> String {
    format!("{} {}", d.json("pool show p"), d.json("status")["faults"])
}

/// Paths of the devices in use.
fn paths(d: &Daemon) -> Vec<String> {
    let live = d.json("pool show p")["live"]["devices"].clone();
    let all = live.as_array().into_iter().flatten();
    let mut all: Vec<_> = all.filter_map(|d| d["path"].as_str().map(str::to_owned)).collect();
    all.sort();
    all
}

fn is(d: &Daemon, state: &str) -> bool {
    d.json("pool show p")["live"]["state"] == state
}

/// A mirror whose volume had A when `old0` and `old1` were copied, and B after that. It is stopped.
fn mirror(test: &str) -> Daemon {
    let mut d = Daemon::new(test);
    d.start();
    d.ok(&format!("pool create p --raid 1 {}", d.devices(2, "128M")));
    d.ok("volume create v --pool p --size 16M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    put(&d, b'A');
    d.stop();
    for n in [0, 1] {
        copy(&d, &format!("disk{n}"), &format!("old{n}"));
    }
    d.start();
    put(&d, b'B');
    d.stop();
    d
}

/// What is at the paths are other files, with all that there is. The very files have what was there once.
#[test]
fn the_very_files_are_not_taken_when_they_are_older() {
    let mut d = mirror("hidden-stale");
    for n in [0, 1] {
        copy(&d, &format!("disk{n}"), &format!("new{n}"));
        fs::write(d.path(&format!("disk{n}")), fs::read(d.path(&format!("old{n}"))).expect("read"))
            .expect("written");
        rename(&d, &format!("disk{n}"), &format!("stale{n}"));
        rename(&d, &format!("new{n}"), &format!("disk{n}"));
    }
    d.start();
    d.until("it is whole", || is(&d, "healthy"));
    reads(&d, b'B');
    assert_eq!(paths(&d), [d.path("disk0"), d.path("disk1")]);
    d.stop();
}

/// Old copies are at the paths of both, and of one: the real ones are found by their other names.
#[test]
fn old_copies_hide_no_devices_that_have_other_names() {
    for both in [true, false] {
        let mut d = mirror("hidden-real");
        let which: &[u32] = if both { &[0, 1] } else { &[1] };
        for n in which {
            rename(&d, &format!("disk{n}"), &format!("real{n}"));
            copy(&d, &format!("old{n}"), &format!("disk{n}"));
        }
        d.start();
        d.until("it is whole", || is(&d, "healthy"));
        reads(&d, b'B');
        let first = d.path(if both { "real0" } else { "disk0" });
        assert!(paths(&d).contains(&first) && paths(&d).contains(&d.path("real1")), "{}", told(&d));
        // Nobody has the copies, and they stay what they are; also after the next start.
        put(&d, b'C');
        d.stop();
        assert!(
            fs::read(d.path("disk1")).expect("read") == fs::read(d.path("old1")).expect("read")
        );
        d.start();
        d.until("it is whole", || is(&d, "healthy"));
        reads(&d, b'C');
        d.stop();
    }
}

/// What is at the paths is old, and a newer copy that is none of the files which the pool had is beside: nobody knows which counts.
#[test]
fn old_copies_are_not_served_beside_newer_ones() {
    let mut d = mirror("hidden-newer");
    for n in [0, 1] {
        copy(&d, &format!("disk{n}"), &format!("new{n}"));
        // Out of sight. Its number is not to be given to another file.
        fs::create_dir_all(d.path("away")).expect("a directory");
        rename(&d, &format!("disk{n}"), &format!("away/disk{n}"));
        copy(&d, &format!("old{n}"), &format!("disk{n}"));
    }
    d.start();
    let is_told = || told(&d).contains("has more than");
    d.until("it is a fault", is_told);
    assert!(!is(&d, "healthy") && told(&d).contains("weir pool force p"), "{}", told(&d));
    for n in [0, 1] {
        rename(&d, &format!("new{n}"), &format!("disk{n}"));
    }
    d.until("it is whole", || is(&d, "healthy"));
    reads(&d, b'B');
    d.stop();
}

/// The path of one device has an old copy of the other, which is at its own.
#[test]
fn an_old_copy_in_the_place_of_another_device_is_left_out() {
    let mut d = mirror("hidden-twice");
    fs::remove_file(d.path("disk0")).expect("it died");
    rename(&d, "old1", "disk0");
    fs::remove_file(d.path("old0")).expect("removed");
    d.start();
    d.until("it is served", || is(&d, "degraded"));
    reads(&d, b'B');
    assert_eq!(paths(&d), [d.path("disk1")]);
    assert!(told(&d).contains("it is a copy of the device at"), "{}", told(&d));
    let copy = fs::File::open(d.path("disk0")).expect("open");
    copy.try_lock().expect("nobody has it");
    d.stop();
}

//! Names of devices that lead to something else than they did: copies, other disks in the place of one that failed or was to come,
//! other names of one device.

use crate::common::Daemon;
use crate::common::lossy::{Disks, Nature, can_mount};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn faults(d: &Daemon) -> Vec<Value> {
    d.json("status")["faults"].as_array().cloned().unwrap_or_default()
}

fn letters(d: &Daemon, letter: u8) -> String {
    let path = d.path(&format!("{}", char::from(letter)));
    fs::write(&path, vec![letter; 64 << 10]).expect("written");
    path
}

/// A blank file of 128 MiB with a file system that nobody has spoken of.
fn precious(path: &str) -> Vec<u8> {
    drop(fs::remove_file(path));
    fs::File::create(path).and_then(|f| f.set_len(128 << 20)).expect("a file");
    let made = Command::new("mkfs.ext4").args(["-q", "-L", "precious", path]).status();
    assert!(made.is_ok_and(|s| s.success()), "this test needs mkfs.ext4");
    fs::read(path).expect("read")
}

/// All devices of a pool are elsewhere for once (a mount point or volume group that is not there yet; moved by hand), old copies of
/// them are beside where they were (or old snapshots of them are among the block devices): the pool is a fault, and never what it
/// was once.
#[test]
fn an_old_copy_of_a_whole_pool_is_not_taken_for_it() {
    for raid in [
        "--raid 0 --device file:DIR/d0:128M",
        "--raid 1 --device file:DIR/d0:128M --device file:DIR/d1:128M",
    ] {
        let mut d = Daemon::new("names-old-copy");
        let (dir, other) = (d.path("disks"), d.path("other"));
        fs::create_dir(&dir).and_then(|()| fs::create_dir(&other)).expect("directories");
        d.start();
        d.ok(&format!("pool create safe {}", raid.replace("DIR", &dir)));
        d.ok("volume create v --pool safe --size 16M");
        d.ok("host create all --allow-any");
        d.ok("map create all v");
        d.write("v", &letters(&d, b'A'));
        d.stop();
        let disks: Vec<_> =
            ["d0", "d1"].into_iter().filter(|n| Path::new(&dir).join(n).exists()).collect();
        for n in &disks {
            fs::copy(format!("{dir}/{n}"), format!("{dir}/{n}.bak")).expect("a backup");
        }
        d.start();
        d.write("v", &letters(&d, b'B'));
        d.ok("snapshot create v@of-today");
        d.stop();
        for n in &disks {
            fs::rename(format!("{dir}/{n}"), format!("{other}/{n}")).expect("moved");
        }
        d.start();
        std::thread::sleep(Duration::from_secs(1));
        let told = faults(&d);
        if told.is_empty() {
            let read = d.read("v", 64 << 10);
            panic!(
                "{raid}: no fault at all, and hosts read what was there before: {:?}; {}",
                char::from(read[0]),
                d.json("pool show safe")["live"]["devices"]
            );
        }
        assert!(told.iter().any(|f| f["object"] == "pool/safe"), "{told:?}");
    }
}

/// A disk that failed is replaced by another one which has its name and somebody's data: that is refused until it is named.
#[test]
fn a_disk_in_the_place_of_one_that_failed_is_looked_into() {
    for line in [
        "pool replace safe 1 --device file:DISK",
        "pool add safe --spare --device file:DISK",
        "pool add safe --device file:DISK",
    ] {
        let mut d = Daemon::new("names-same-name");
        let (d0, d1) = (d.path("d0"), d.path("d1"));
        d.start();
        d.ok(&format!("pool create safe --raid 1 --device file:{d0}:128M --device file:{d1}:128M"));
        d.stop();
        let was = precious(&d1);
        d.start();
        d.ok("pool force safe --yes");
        let line = line.replace("DISK", &d1);
        let args: Vec<&str> = line.split_whitespace().collect();
        let out = crate::common::weir(&d.dir, &args);
        let now = fs::read(&d1).expect("read");
        assert!(
            now == was && !out.status.success(),
            "weir {line}: {}; the file system `precious` is overwritten",
            out.status
        );
    }
}

/// What has the name of a device that is in use now is not that device.
#[test]
fn a_copy_under_the_name_of_an_open_file_is_not_taken_for_it() {
    let mut d = Daemon::new("names-swap");
    let dir = d.path("thin");
    d.start();
    d.ok(&format!("pool create thin --device dir:{dir}"));
    d.ok("volume create v --pool thin --size 16M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    d.write("v", &letters(&d, b'A'));
    let own = fs::read_dir(&dir).expect("read").flatten();
    let own = own.map(|e| e.path()).find(|p| p.extension().is_some_and(|e| e == "img"));
    let own = own.expect("its file");
    // As after `cp -a` to another disk and a rename in place of the first.
    fs::copy(&own, d.path("copy")).expect("copied");
    fs::rename(d.path("copy"), &own).expect("renamed");
    d.write("v", &letters(&d, b'B'));
    assert_eq!(d.read("v", 64 << 10)[0], b'B');
    let args = ["volume", "resize", "v", "32M"];
    let out = crate::common::weir(&d.dir, &args);
    assert_eq!(
        char::from(d.read("v", 64 << 10)[0]),
        'B',
        "a write that was acknowledged is gone: `volume resize` ({}) put another file under the volume",
        out.status
    );
}

/// The daemon dies while it makes a pool; when it is started again another disk has the name of one of the pool's. It was never looked
/// into, so nothing of it is overwritten.
#[test]
fn a_pool_that_is_made_after_a_crash_looks_into_its_devices_again() {
    for raid in ["", "--raid 10"] {
        let mut tries = 0;
        loop {
            tries += 1;
            assert!(tries < 20, "the daemon could not be caught");
            let mut d = Daemon::new("names-crash-create");
            d.start();
            let disk = d.path("disk");
            fs::File::create(&disk).and_then(|f| f.set_len(128 << 20)).expect("a file");
            let mut line = format!("pool create p {raid}");
            for n in 0..24 {
                line += &format!(" --device file:{}:128M", d.path(&format!("new{n}")));
            }
            line += &format!(" --device file:{disk}");
            let mut command = Command::new(env!("CARGO_BIN_EXE_weir"))
                .args(line.split_whitespace())
                .env_clear()
                .env("WEIR_DATA_DIR", &d.dir)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("weir runs");
            let begun = Instant::now();
            while !Path::new(&d.path("new0")).exists() {
                assert!(begun.elapsed() < Duration::from_secs(60), "{}", d.log());
            }
            d.kill();
            drop(command.wait());
            // Not all are made: the configuration cannot know yet that they are.
            let done = fs::metadata(d.path("new23")).is_ok_and(|m| m.len() > 0);
            if done || !fs::read_to_string(d.path("config.json")).is_ok_and(|t| t.contains("\"p\""))
            {
                continue;
            }
            let was = precious(&disk);
            d.start();
            std::thread::sleep(Duration::from_secs(3));
            let now = fs::read(&disk).expect("read");
            assert!(
                now == was,
                "`{raid}`: the file system `precious` was overwritten at a start: {}",
                d.json("status")["faults"]
            );
            break;
        }
    }
}

/// A pool that is not up, since another device of it is missing, has its devices all the same: also by another name, and whatever
/// may be overwritten.
#[test]
fn a_device_of_a_pool_that_is_down_is_not_given_away_by_another_name() {
    let mut d = Daemon::new("names-down");
    let (d0, d1, hard) = (d.path("d0"), d.path("d1"), d.path("hard"));
    d.start();
    d.ok(&format!("pool create safe --raid 1 --device file:{d0}:128M --device file:{d1}:128M"));
    d.stop();
    fs::rename(&d1, d.path("cable-out")).expect("renamed");
    // As /dev/disk/by-id and /dev/sdb.
    fs::hard_link(&d0, &hard).expect("a link");
    // It would be found there.
    fs::create_dir(d.path("x"))
        .and_then(|()| fs::rename(d.path("cable-out"), d.path("x/d1")))
        .expect("moved");
    d.start();
    let was = fs::read(&d0).expect("read");
    let line = |path: &str| format!("pool create other --device file:{path} --overwrite weir,data");
    d.fails(&line(&d0), 4);
    let out = crate::common::weir(&d.dir, &line(&hard).split_whitespace().collect::<Vec<_>>());
    assert!(
        !out.status.success() && fs::read(&d0).expect("read") == was,
        "a device of the node's own pool `safe` was overwritten, since it was named otherwise"
    );
}

/// A pool whose only device has another name now is found all the same: it is the very file, not a copy.
#[test]
fn a_device_that_was_renamed_is_found_by_what_it_is() {
    let mut d = Daemon::new("names-renamed");
    let disk = d.path("d0");
    d.start();
    d.ok(&format!("pool create safe --raid 0 --device file:{disk}:128M"));
    d.ok("volume create v --pool safe --size 16M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    d.write("v", &letters(&d, b'A'));
    d.stop();
    fs::copy(&disk, d.path("copy")).expect("copied");
    fs::rename(&disk, d.path("moved")).expect("moved");
    d.start();
    assert!(faults(&d).is_empty(), "{:?}", faults(&d));
    assert_eq!(d.read("v", 64 << 10)[0], b'A');
    d.write("v", &letters(&d, b'B'));
    // Nor is it the copy after the next start, and once more under another name.
    d.stop();
    fs::rename(d.path("moved"), d.path("again")).expect("moved");
    d.start();
    assert_eq!(d.read("v", 64 << 10)[0], b'B');
}

/// A device in use was moved; what has its name now is neither taken in its place nor kept from others.
#[test]
fn a_name_of_a_device_in_use_brings_no_other_one_into_the_pool() {
    let mut d = Daemon::new("other-of-that-name");
    d.start();
    d.ok(&format!("pool create p --raid 1 {}", d.devices(2, "64M")));
    let (path, moved) = (d.path("disk0"), d.path("moved"));
    std::fs::rename(&path, &moved).expect("moved");
    std::fs::File::create(&path).and_then(|f| f.set_len(64 << 20)).expect("a file");
    for line in ["attach p", "add p", "replace p 1"] {
        let (code, text) = d.fails(&format!("pool {line} --device file:{path}"), 1);
        assert!(code == "pool_damaged" && text.contains("is in use and stays so"), "{text}");
    }
    let other = std::fs::File::open(&path).expect("it is there");
    other.try_lock().expect("nobody has it");
    assert!(std::fs::read(&path).expect("read").iter().all(|b| *b == 0), "nothing is in it");
    assert_eq!(d.json("pool show p")["live"]["state"], "healthy");
    std::fs::rename(&moved, &path).expect("moved back");
    d.stop();
    d.start();
    assert_eq!(d.json("pool show p")["live"]["state"], "healthy");
}

/// A device has failed while the daemon runs, and its lasting name leads to another disk by now: that takes its place.
#[test]
fn a_name_of_a_device_that_failed_makes_room_for_another_disk() {
    let mut d = Daemon::new("name-of-failed");
    let disks = match can_mount() {
        Ok(()) => Disks::mount(&d.dir, 1, 128 << 20, Nature::Honest, 1).expect("a disk"),
        Err(e) => return eprintln!("skipped: {e}"),
    };
    // As in /dev/disk/by-path.
    let (name, new) = (d.path("slot1"), d.path("new"));
    std::os::unix::fs::symlink(&disks.files()[0], &name).expect("a link");
    d.start();
    let d0 = d.path("d0");
    d.ok(&format!("pool create p --raid 1 --device file:{d0}:128M --device file:{name}"));
    d.ok("volume create v --pool p --size 16M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    disks.switch().pull(0, true);
    d.write("v", &letters(&d, b'A'));
    let states = || {
        let devices = d.json("pool show p")["live"]["devices"].clone();
        let all = devices.as_array().into_iter().flatten();
        all.map(|d| d["state"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    d.until("it has failed", || states()[1] == "failed");
    fs::File::create(&new).and_then(|f| f.set_len(128 << 20)).expect("a file");
    fs::remove_file(&name).expect("removed");
    std::os::unix::fs::symlink(&new, &name).expect("a link");
    d.ok(&format!("pool replace p 1 --device file:{name}"));
    d.until("it is whole again", || states() == ["in-sync", "in-sync"]);
    d.stop();
    // Without the other one.
    fs::create_dir(d.path("away"))
        .and_then(|()| fs::rename(&d0, d.path("away/d0")))
        .expect("moved");
    d.start();
    d.ok("pool force p --yes");
    d.until("it is up", || d.json("pool show p")["live"]["state"] == "degraded");
    assert_eq!(d.read("v", 64 << 10)[0], b'A');
    d.stop();
}

/// A pool `p` on `d0` and a disk that a link leads to, as those of /dev/disk/by-path: the disk has failed.
struct Slot {
    d: Daemon,
    disks: Disks,
    d0: String,
    name: String,
}

impl Slot {
    /// None: no disk can be made here.
    fn failed(test: &str) -> Option<Slot> {
        let mut d = Daemon::new(test);
        let disks = match can_mount() {
            Ok(()) => Disks::mount(&d.dir, 1, 128 << 20, Nature::Honest, 1).expect("a disk"),
            Err(e) => {
                eprintln!("skipped: {e}");
                return None;
            }
        };
        let (d0, name) = (d.path("d0"), d.path("slot1"));
        std::os::unix::fs::symlink(&disks.files()[0], &name).expect("a link");
        d.start();
        d.ok(&format!("pool create p --raid 1 --device file:{d0}:128M --device file:{name}"));
        d.ok("volume create v --pool p --size 16M");
        d.ok("host create all --allow-any");
        d.ok("map create all v");
        let slot = Slot { d, disks, d0, name };
        slot.disks.switch().pull(0, true);
        slot.d.write("v", &letters(&slot.d, b'A'));
        slot.d.until("it has failed", || slot.devices("state")[1] == "failed");
        Some(slot)
    }

    fn lead(&self, to: &Path) {
        drop(fs::remove_file(&self.name));
        std::os::unix::fs::symlink(to, &self.name).expect("a link");
    }

    /// Has the name lead to a new file.
    fn lead_to_new(&self) -> String {
        let new = self.d.path("new");
        fs::File::create(&new).and_then(|f| f.set_len(128 << 20)).expect("a file");
        self.lead(Path::new(&new));
        new
    }

    /// What is refused takes nothing away, but the name leads to another one.
    fn refused(&self) {
        self.lead(Path::new(&letters(&self.d, b'Z')));
        let line = format!("pool add p --device file:{}", self.name);
        let args: Vec<&str> = line.split_whitespace().collect();
        assert!(!crate::common::weir(&self.d.dir, &args).status.success(), "it is not empty");
    }

    /// What is said of each device.
    fn devices(&self, what: &str) -> Vec<String> {
        let devices = self.d.json("pool show p")["live"]["devices"].clone();
        let all = devices.as_array().into_iter().flatten();
        all.map(|d| d[what].as_str().unwrap_or_default().to_owned()).collect()
    }

    fn until_whole(&self) {
        self.d.until("it is whole", || self.devices("state") == ["in-sync", "in-sync"]);
    }
}

/// The same by `add`, and the failed one answers again: it has no name by which it would be found, and comes back only by another.
#[test]
fn a_failed_device_that_has_lost_its_name_comes_back_by_another() {
    let Some(mut s) = Slot::failed("name-lost") else { return };
    s.refused();
    s.lead(&s.disks.files()[0]);
    s.disks.switch().pull(0, false);
    s.d.ok(&format!("pool attach p --device file:{}", s.name));
    s.until_whole();
    s.disks.switch().pull(0, true);
    s.d.write("v", &letters(&s.d, b'B'));
    s.d.until("it has failed again", || s.devices("state")[1] == "failed");
    s.lead_to_new();
    s.d.ok(&format!("pool add p --device file:{}", s.name));
    assert_eq!(s.devices("path"), [s.d0.as_str(), "", s.name.as_str()]);
    s.disks.switch().pull(0, false);
    drop(crate::common::weir(&s.d.dir, &["pool", "resync", "p"]));
    s.d.ok("pool drain p 1");
    s.d.until("it holds nothing", || {
        crate::common::weir(&s.d.dir, &["pool", "remove", "p", "1"]).status.success()
    });
    s.d.kill();
    s.d.start();
    s.until_whole();
    assert_eq!(s.d.read("v", 64 << 10)[0], b'B');
    s.d.stop();
}

/// It comes back by the name that it has itself: it goes by that from then on, also after a restart.
#[test]
fn a_device_that_comes_back_by_another_name_goes_by_that() {
    let Some(mut s) = Slot::failed("name-other") else { return };
    s.refused();
    let own = s.disks.files()[0].display().to_string();
    s.disks.switch().pull(0, false);
    s.d.ok(&format!("pool attach p --device file:{own}"));
    s.until_whole();
    assert_eq!(s.devices("path"), [s.d0.as_str(), own.as_str()]);
    let named = || {
        let devices = s.d.json("pool show p")["devices"].clone();
        let all = devices.as_array().into_iter().flatten();
        all.map(|d| d["path"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    s.d.until("it is configured so", || named() == [s.d0.as_str(), own.as_str()]);
    s.d.write("v", &letters(&s.d, b'B'));
    s.d.kill();
    s.d.start();
    s.until_whole();
    assert_eq!(s.d.read("v", 64 << 10)[0], b'B');
    // Nobody has what has the old name.
    assert!(fs::File::open(s.d.path("Z")).is_ok_and(|f| f.try_lock().is_ok()));
    s.d.stop();
}

/// One out of service has the name of another one at the next start: the other one is looked for, though there are as many devices
/// as names.
#[test]
fn a_device_in_service_is_looked_for_when_one_that_is_not_has_its_name() {
    let Some(mut s) = Slot::failed("name-swapped") else { return };
    s.lead_to_new();
    s.d.ok(&format!("pool add p --device file:{}", s.name));
    s.d.until("it is in service", || s.devices("state").get(2).is_some_and(|d| d == "in-sync"));
    s.d.write("v", &letters(&s.d, b'B'));
    s.d.stop();
    s.disks.switch().pull(0, false);
    s.lead(&s.disks.files()[0]);
    s.d.start();
    s.d.until("all are in service", || s.devices("state") == ["in-sync"; 3]);
    assert_eq!(s.d.read("v", 64 << 10)[0], b'B');
    s.d.stop();
}

//! Devices that show what others show as well: whose that is, and that it comes back to whoever had it.

use crate::common::Daemon;
use crate::common::lossy::{Disks, Nature, can_mount};
use crate::devices::{Loop, refused};
use crate::hung::uncached;
use crate::loops::{EXCLUSIVE, begun, comes_back, faults, file, on, put, with};
use crate::two_paths::can_unshare;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
use std::path::Path;

/// What the daemon sees as `/sys/dev/block`: the device mapper has made `upper` of `lower`, and it is no loop device.
pub(crate) fn map(d: &mut Daemon, upper: &Loop, lower: &Loop) {
    let dir = d.dir.join("sys");
    drop(fs::remove_dir_all(&dir));
    fs::create_dir(&dir).expect("a directory");
    let name = |l: &Loop| Path::new(&l.0).file_name().expect("a node").to_owned();
    let made = |at: &Path, of: &Path, but: &[&str], with: (&str, &Loop)| {
        fs::create_dir(at).expect("a directory");
        for part in fs::read_dir(of).expect("it is there").flatten() {
            if !but.iter().any(|b| part.file_name() == *b) {
                symlink(part.path(), at.join(part.file_name())).expect("a link");
            }
        }
        fs::create_dir(at.join(with.0)).expect("a directory");
        let (other, link) = (Path::new("/sys/block").join(name(with.1)), name(with.1));
        symlink(other, at.join(with.0).join(link)).expect("a link");
    };
    for entry in fs::read_dir("/sys/dev/block").expect("it is there").flatten() {
        let Ok(real) = fs::canonicalize(entry.path()) else { continue };
        let (at, is) = (dir.join(entry.file_name()), real.file_name().map(ToOwned::to_owned));
        if is == Some(name(upper)) {
            made(&at, &real, &["loop", "slaves"], ("slaves", lower));
        } else if is == Some(name(lower)) {
            made(&at, &real, &["holders"], ("holders", upper));
        } else {
            symlink(real, at).expect("a link");
        }
    }
    d.block_devices = Some(dir);
}

/// The kernel gives the device mapper what is below for itself; a loop device takes that beside it.
#[test]
fn a_loop_device_of_what_is_below_a_mapped_device_counts() {
    let Some((mut d, _, disk)) = begun("beside-mapped") else { return };
    if !can_unshare() {
        return;
    }
    let (upper, beside) = (on(&disk.0), on(&disk.0));
    d.start();
    let adopt = |name: &str, at: &Loop| format!("volume adopt {name} --path {}", at.0);
    d.ok(&adopt("first", &beside));
    d.stop();
    map(&mut d, &upper, &disk);
    d.start();
    refused(&d, &adopt("second", &upper), 4, &["is in use", &beside.0, "volume `first`"]);
    d.ok("volume delete first --yes");
    // Nor what somebody has who is no part of this.
    let mut claims = File::options();
    let claimed = claims.read(true).custom_flags(EXCLUSIVE).open(&beside.0).expect("claimed");
    refused(&d, &adopt("second", &upper), 4, &["is in use", &beside.0, "for himself"]);
    drop(claimed);
    // Nor in the other order.
    d.ok(&adopt("second", &upper));
    refused(&d, &adopt("first", &beside), 4, &["is made of", "volume `second`"]);
    d.ok("volume delete second --yes");
    // Nor what is a volume that is not up: its loop device has had other files before.
    let (other, short) = (d.path("other"), d.path("short"));
    file(&other);
    fs::write(&short, vec![0; 1 << 20]).expect("written");
    put(&d, &beside, &[], &other);
    d.ok(&adopt("first", &beside));
    d.stop();
    put(&d, &beside, &[], &short);
    d.start();
    put(&d, &beside, &[], &disk.0);
    refused(&d, &adopt("second", &upper), 4, &[&beside.0, "volume `first`"]);
    d.ok("volume delete first --yes");
    d.stop();
    d.start();
    // Nor when they come back: the loop device had another file before.
    put(&d, &beside, &[], &other);
    d.ok(&adopt("first", &beside));
    d.ok(&adopt("second", &upper));
    d.stop();
    put(&d, &beside, &[], &disk.0);
    d.start();
    d.tried_again();
    let told = || ["volume/first", "volume/second"].map(|v| faults(&d).contains(v));
    d.until("one of them is up", || told() != [true; 2]);
    assert!(told() != [false; 2], "not both");
    d.stop();
}

/// Hosts have copied a device of another pool of the node onto a volume, which begins where its device does.
#[test]
fn a_label_that_hosts_wrote_to_one_device_is_in_nobody_s_way() {
    let Some((mut d, image, disk)) = begun("beside-labels") else { return };
    drop(disk);
    let (own, lower) = (d.path("own"), with(&["--sizelimit", "33554432"], &image));
    let upper = with(&["-o", "33554432"], &image);
    d.start();
    d.ok(&format!("pool create b --raid 0 --device file:{own}:64M"));
    d.ok(&format!("pool create l --device block:{}", lower.0));
    d.ok("volume create t --pool l --size 8M");
    d.ok(&format!("volume adopt v --path {}", upper.0));
    d.stop();
    let page = fs::read(&own).expect("read")[..4096].to_vec();
    assert!(page.starts_with(b"WeirP"), "it is a label");
    let copy = File::options().write(true).open(&image).expect("open");
    copy.write_all_at(&page, 0).expect("written");
    comes_back(&mut d, "a label in a volume");
    // Where the pool is not up whose device that is, the label counts: nobody knows whose it is.
    d.stop();
    let other = d.path("other");
    file(&other);
    put(&d, &lower, &["--sizelimit", "33554432"], &other);
    d.start();
    d.tried_again();
    let told = faults(&d);
    assert!(["pool/l", "volume/v", "pool `b`"].iter().all(|w| told.contains(w)), "{told}");
    d.stop();
}

/// Two pools have halves of a file, and the loop device of the first one shows all of it after a restart.
#[test]
fn a_device_that_shows_what_is_another_s_behind_its_label_is_not_opened() {
    let Some((mut d, image, disk)) = begun("beside-behind") else { return };
    drop(disk);
    let lower = with(&["--sizelimit", "33554432"], &image);
    let upper = with(&["-o", "33554432"], &image);
    d.start();
    d.ok(&format!("pool create a --device block:{}", lower.0));
    d.ok(&format!("pool create b --device block:{}", upper.0));
    for pool in ["a", "b"] {
        d.ok(&format!("volume create v{pool} --pool {pool} --size 8M"));
    }
    d.stop();
    put(&d, &lower, &[], &image);
    let before = fs::read(&image).expect("read");
    d.start();
    // As they begin, each may see that the other one looks at it.
    d.until("the second one is up", || !faults(&d).contains("pool/b"));
    d.tried_again();
    let told = faults(&d);
    assert!(told.contains("pool/a") && told.contains("pool `b`"), "{told}");
    assert!(!told.contains("pool/b"), "{told}");
    assert!(fs::read(&image).expect("read") == before, "it was written to");
    d.stop();
    put(&d, &lower, &["--sizelimit", "33554432"], &image);
    comes_back(&mut d, "as it was");
    d.stop();
}

/// The same of a volume in image mode, which comes up after the pools, and of another device of the same pool.
#[test]
fn a_device_does_not_grow_over_what_another_one_shows() {
    for of_one_pool in [false, true] {
        let Some((mut d, image, disk)) = begun("beside-grown") else { return };
        drop(disk);
        let lower = with(&["--sizelimit", "33554432"], &image);
        let upper = with(&["-o", "33554432"], &image);
        d.start();
        if of_one_pool {
            d.ok(&format!("pool create a --device block:{} --device block:{}", lower.0, upper.0));
        } else {
            d.ok(&format!("pool create a --device block:{}", lower.0));
            d.ok(&format!("volume adopt v --path {}", upper.0));
        }
        d.stop();
        put(&d, &lower, &[], &image);
        let before = fs::read(&image).expect("read");
        d.start();
        d.tried_again();
        assert!(fs::read(&image).expect("read") == before, "it was written to");
        d.stop();
        put(&d, &lower, &["--sizelimit", "33554432"], &image);
        comes_back(&mut d, "as it was");
        d.stop();
    }
}

/// A mirror `p` on `away` and another file is served without the first one, which is there again.
fn degraded(d: &mut Daemon, away: &str) {
    d.stop();
    let elsewhere = d.path("elsewhere");
    fs::create_dir_all(&elsewhere).expect("a directory");
    fs::rename(away, format!("{elsewhere}/away")).expect("moved");
    d.start();
    d.ok("pool force p --yes");
    fs::rename(format!("{elsewhere}/away"), away).expect("moved back");
}

fn state(d: &Daemon) -> serde_json::Value {
    d.json("pool show p")["live"]["state"].clone()
}

/// Its directory became a pool's afterwards. A start takes it; so do commands by which it comes back.
#[test]
fn a_device_below_a_directory_that_became_a_pool_s_is_attached_and_imported() {
    let Some((mut d, _, disk)) = begun("beside-below") else { return };
    drop(disk);
    let (srv, below) = (d.path("srv"), d.path("srv/disks"));
    fs::create_dir_all(&below).expect("a directory");
    let (leg, other) = (d.path("srv/disks/leg"), d.path("leg2"));
    d.start();
    d.ok(&format!("pool create p --raid 1 --device file:{leg}:64M --device file:{other}:64M"));
    d.ok(&format!("pool create d --device dir:{srv}"));
    d.ok("volume create t --pool d --size 64M");
    degraded(&mut d, &leg);
    let attach = format!("pool attach p --device file:{leg}");
    d.ok(&attach);
    d.until("it is whole", || state(&d) == "healthy");
    comes_back(&mut d, "a file below it");
    // What the other pool has is refused as before, and so is what is new.
    let name = d.json("volume show t")["layout"]["file"].as_str().expect("a file").to_owned();
    let new = d.path("srv/disks/new");
    file(&new);
    for line in [
        format!("pool attach p --device file:{srv}/{name}"),
        format!("pool attach p --device file:{new}"),
        format!("pool add p --device file:{new}"),
        format!("pool add p --device file:{srv}/{name} --overwrite data"),
    ] {
        refused(&d, &line, 4, &["is in use"]);
    }
    // Somebody else has it for a while.
    let both = format!("--device file:{leg} --device file:{other}");
    d.ok("pool release p --yes");
    d.ok(&format!("pool import {both}"));
    d.until("it is whole", || state(&d) == "healthy");
    // By a loop device it is the same.
    d.ok("pool release p --yes");
    let by = on(&leg);
    d.ok(&format!("pool import --device block:{} --device file:{other}", by.0));
    d.until("it is whole", || state(&d) == "healthy");
    d.stop();
    let away = d.path("away");
    file(&away);
    put(&d, &by, &[], &away);
    fs::create_dir_all(d.path("elsewhere")).expect("a directory");
    degraded(&mut d, &leg);
    put(&d, &by, &[], &leg);
    d.ok(&format!("pool attach p --device block:{}", by.0));
    d.until("it is whole", || state(&d) == "healthy");
    comes_back(&mut d, "a loop device of a file below it");
    d.stop();
}

/// The pool still has the loop device that failed, so that nobody can free it.
#[test]
fn a_device_that_failed_comes_back_by_another_loop_device() {
    let mut d = Daemon::new("beside-failed");
    if let Err(e) = can_mount() {
        return eprintln!("skipped: {e}");
    }
    let disks = Disks::mount(&d.dir, 1, 64 << 20, Nature::Honest, 1).expect("a disk");
    let Some(first) = uncached(&disks) else { return };
    let (other, data) = (d.path("other"), d.path("data"));
    fs::write(&data, vec![7; 1 << 20]).expect("written");
    d.start();
    d.ok(&format!("pool create p --raid 1 --device {} --device file:{other}:64M", first.0));
    d.ok("volume create v --pool p --size 8M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let second = on(&disks.files()[0].display().to_string());
    let attach = format!("pool attach p --device {}", second.0);
    // It is in service.
    let (_, told) = d.fails(&attach, 4);
    assert!(told.contains("in service"), "{told}");
    disks.switch().pull(0, true);
    d.write("v", &data);
    d.until("it has failed", || state(&d) == "degraded");
    disks.switch().pull(0, false);
    // Nobody else gets it, and it is not overwritten.
    let adopt = format!("volume adopt x --path {}", second.0);
    refused(&d, &adopt, 4, &["is made of", "pool `p`"]);
    let add = format!("pool add p --device {} --overwrite weir,data", second.0);
    refused(&d, &add, 4, &["is made of", "pool `p`"]);
    d.ok(&attach);
    d.until("it is whole", || state(&d) == "healthy");
    assert_eq!(d.read("v", 1 << 20), vec![7; 1 << 20]);
    comes_back(&mut d, "another loop device");
    d.stop();
}

//! Disks of plain pools that have become larger: what they have gained is taken when somebody asks, and never by a start.

use crate::beside::map;
use crate::common::{Daemon, noise};
use crate::devices::{Loop, refused};
use crate::loops::{Partition, begun, comes_back, faults, file, losetup, on, put, with};
use crate::two_paths::can_unshare;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const LABEL: u64 = 4096;

/// Gives the file of a loop device so many MiB, and has that see it.
pub(crate) fn enlarge(at: &Loop, image: &str, mib: u64) {
    let f = File::options().write(true).open(image).expect("open");
    f.set_len(mib * MIB).expect("its length");
    assert!(losetup(&["-c", &at.0]));
}

/// Nobody has the file open after that.
pub(crate) fn write_at(image: &str, bytes: &[u8], at: u64) {
    let f = File::options().write(true).open(image).expect("open");
    f.write_all_at(bytes, at).expect("written");
}

pub(crate) fn capacity(d: &Daemon) -> u64 {
    d.json("pool show p")["capacity"].as_u64().expect("a number")
}

/// How often an event told that a disk has gained something.
fn told(d: &Daemon) -> usize {
    d.ok("events --json").matches("`weir pool resize p --grow 0` takes them").count()
}

/// Has the node start with another configuration of its pool `p`, as a crash or an older program leaves it.
pub(crate) fn recorded(d: &mut Daemon, change: impl Fn(&mut Value)) {
    let text = fs::read_to_string(d.path("config.json")).expect("the readable copy");
    let mut all: Value = serde_json::from_str(&text).expect("JSON");
    change(&mut all["pools"]["p"]["devices"]);
    for lost in ["weir.redb", "config.json"] {
        fs::remove_file(d.path(lost)).expect("it was there");
    }
    fs::write(d.path("changed.json"), all.to_string()).expect("written");
    d.start_with(&["--restore-from", &d.path("changed.json")]);
    d.wait_until(|_| true);
}

/// All behind so many MiB is as it was: nothing.
pub(crate) fn is_blank_from(image: &str, mib: u64) -> bool {
    let all = fs::read(image).expect("read");
    all[(mib * MIB) as usize..].iter().all(|b| *b == 0)
}

#[test]
fn a_disk_that_became_larger_is_taken_when_somebody_asks() {
    for kind in ["block", "file"] {
        let Some((mut d, image, disk)) = begun(&format!("growing-{kind}")) else { return };
        d.start();
        d.ok(&format!("pool create p --device {kind}:{}", disk.0));
        let before = capacity(&d);
        d.ok("volume create v --pool p --size 8M");
        d.ok("host create all --allow-any");
        d.ok("map create all v");
        let data = noise(3, MIB as usize);
        fs::write(d.path("data"), &data).expect("written");
        d.write("v", &d.path("data"));
        d.stop();
        enlarge(&disk, &image, 128);
        comes_back(&mut d, "a larger disk");
        assert_eq!((capacity(&d), told(&d)), (before, 1));
        assert!(is_blank_from(&image, 64), "it was written to");
        refused(&d, "pool resize p --grow 0:200M", 2, &["it has 128 MiB"]);
        // In part, then the rest.
        d.ok("pool resize p --grow 0:80M");
        assert_eq!(capacity(&d), 80 * MIB);
        assert!(is_blank_from(&image, 81), "what nobody asked for was written to");
        d.ok("pool resize p --grow 0");
        assert_eq!(capacity(&d), 127 * MIB);
        d.ok("volume create w --pool p --size 110M");
        d.ok("map create all w");
        d.write("w", &d.path("data"));
        // While it is up.
        enlarge(&disk, &image, 192);
        d.ok("pool resize p --grow 0");
        assert_eq!(capacity(&d), 191 * MIB);
        refused(&d, "pool resize p --grow 0", 2, &["cannot grow by that", "it has 192 MiB"]);
        d.kill();
        d.start();
        assert_eq!((faults(&d).as_str(), told(&d)), ("[]", 1));
        for name in ["v", "w"] {
            assert!(d.read(name, data.len()) == data, "{name}");
        }
        d.stop();
    }
}

/// A pool `p` has the first half of a file by a loop device, which shows all of it now.
fn half(name: &str) -> Option<(Daemon, String, Loop)> {
    let (mut d, image, disk) = begun(name)?;
    drop(disk);
    let lower = with(&["--sizelimit", "33554432"], &image);
    d.start();
    d.ok(&format!("pool create p --device block:{}", lower.0));
    d.ok("volume create v --pool p --size 8M");
    Some((d, image, lower))
}

/// What it has gained is a copy of a device of another pool of the node, or of another one of its own pool.
#[test]
fn what_is_a_pool_s_of_what_a_disk_has_gained_is_not_taken() {
    let Some((mut d, image, disk)) = begun("growing-labels") else { return };
    let [of_b, of_p] = ["of-b", "of-p"].map(|name| d.path(name));
    d.start();
    d.ok(&format!("pool create p --device block:{} --device file:{of_p}:8M", disk.0));
    d.ok(&format!("pool create b --device file:{of_b}:8M"));
    let before = capacity(&d);
    for (of, why) in [(of_b, "pool `b`"), (of_p, "label of device 1 of this pool")] {
        let copy = fs::read(of).expect("read");
        write_at(&image, &copy, 64 * MIB);
        assert!(losetup(&["-c", &disk.0]));
        for overwrite in ["", " --overwrite weir,data"] {
            refused(&d, &format!("pool resize p --grow 0{overwrite}"), 4, &["is in use", why]);
        }
        assert!(fs::read(&image).expect("read")[64 << 20..] == copy, "it was written to");
    }
    assert_eq!(capacity(&d), before);
    d.stop();
}

/// It is asked to grow by a part: only behind that is the label of what begins in it.
#[test]
fn a_label_behind_what_is_asked_for_tells_whose_that_is() {
    let Some((mut d, image, disk)) = begun("growing-part") else { return };
    let [of_b, of_p] = ["of-b", "of-p"].map(|name| d.path(name));
    d.start();
    d.ok(&format!("pool create p --device block:{} --device file:{of_p}:40M", disk.0));
    d.ok(&format!("pool create b --device file:{of_b}:40M"));
    let before = capacity(&d);
    enlarge(&disk, &image, 128);
    let mut stranger = Vec::new();
    for (of, why) in [(of_b, "pool `b`"), (of_p, "label of device 1 of this pool")] {
        stranger = fs::read(of).expect("read");
        write_at(&image, &stranger, 88 * MIB - LABEL);
        for overwrite in ["", " --overwrite weir,data"] {
            let grow = format!("pool resize p --grow 0:96M{overwrite}");
            refused(&d, &grow, 4, &["is in use", why]);
        }
    }
    assert_eq!(capacity(&d), before);
    // What no pool of the node has may be lost, if somebody says so.
    let id = &mut stranger[40 << 20..][16..32];
    id.fill(9);
    let sum = weir_codec::crc64(&stranger[40 << 20..][..LABEL as usize - 8]);
    stranger[(40 << 20) + LABEL as usize - 8..].copy_from_slice(&sum.to_le_bytes());
    write_at(&image, &stranger, 88 * MIB - LABEL);
    refused(&d, "pool resize p --grow 0:96M", 4, &["is not empty", "weir"]);
    // It does not reach as far as that.
    d.ok("pool resize p --grow 0:80M");
    d.ok("pool resize p --grow 0:96M --overwrite weir");
    assert_eq!(capacity(&d), 136 * MIB);
    d.stop();
}

/// What it gains is the beginning of another device of its pool, whose label it does not show.
#[test]
fn a_label_below_what_a_disk_has_gained_tells_whose_that_is() {
    let Some((mut d, image, disk)) = begun("growing-below") else { return };
    drop(disk);
    let lower = with(&["--sizelimit", "33554432"], &image);
    let of_p = d.path("of-p");
    d.start();
    d.ok(&format!("pool create p --device block:{} --device file:{of_p}:24M", lower.0));
    let before = capacity(&d);
    d.stop();
    write_at(&image, &fs::read(of_p).expect("read"), 40 * MIB - LABEL);
    put(&d, &lower, &["--sizelimit", "50331648"], &image);
    comes_back(&mut d, "a larger disk");
    for overwrite in ["", " --overwrite weir,data"] {
        let grow = format!("pool resize p --grow 0{overwrite}");
        refused(&d, &grow, 4, &["is made of", "label of device 1 of this pool"]);
    }
    assert_eq!(capacity(&d), before);
    d.stop();
}

#[test]
fn what_shows_what_a_disk_has_gained_is_in_the_way() {
    let Some((mut d, image, lower)) = half("growing-shown") else { return };
    let before = capacity(&d);
    d.stop();
    put(&d, &lower, &["-P"], &image);
    comes_back(&mut d, "a larger disk");
    let grow = "pool resize p --grow 0";
    let beside = with(&["-o", "50331648"], &image);
    refused(&d, grow, 4, &["is in use", &beside.0, "shows some of these bytes"]);
    drop(beside);
    // A part of what it had is no matter there.
    let within = with(&["--sizelimit", "4096"], &image);
    let above = on(&lower.0);
    refused(&d, grow, 4, &["is in use", &above.0, "is made of it"]);
    drop(above);
    if let Some(part) = Partition::at(&lower, "1", ["69632", "2048"]) {
        refused(&d, grow, 4, &["is in use", "has some of these bytes"]);
        drop(part);
    }
    // Nobody has that open, and it is somebody's.
    write_at(&image, b"XFSB", 32 * MIB);
    refused(&d, grow, 4, &["is not empty", "xfs"]);
    refused(&d, "pool resize p --grow 0 --overwrite ext4", 4, &["is not empty", "xfs"]);
    assert_eq!(capacity(&d), before);
    d.ok("pool resize p --grow 0 --overwrite xfs");
    assert_eq!(capacity(&d), 63 * MIB);
    drop(within);
    comes_back(&mut d, "what has grown");
    d.stop();
}

/// The loop device showed the first half of a disk, of which another part is a partition.
#[test]
fn a_partition_of_what_a_loop_device_is_made_of_is_in_the_way() {
    let Some((mut d, image, disk)) = begun("growing-parts") else { return };
    drop(disk);
    let disk = with(&["-P"], &image);
    let Some(part) = Partition::last(&disk) else {
        return eprintln!("skipped: no partitions of loop devices");
    };
    let lower = with(&["--sizelimit", "33554432"], &disk.0);
    d.start();
    d.ok(&format!("pool create p --device block:{}", lower.0));
    let before = capacity(&d);
    d.stop();
    put(&d, &lower, &[], &disk.0);
    d.start();
    d.tried_again();
    assert!(is_blank_from(&image, 32), "it was written to");
    refused(&d, "pool resize p --grow 0", 4, &["has some of these bytes"]);
    assert_eq!(capacity(&d), before);
    drop(part);
    d.ok("pool resize p --grow 0");
    d.stop();
}

/// Nor has the device mapper told which part of what is below it has.
#[test]
fn a_loop_device_beside_a_mapped_device_is_in_the_way() {
    let Some((mut d, image, disk)) = begun("growing-mapped") else { return };
    if !can_unshare() {
        return;
    }
    let upper = on(&disk.0);
    map(&mut d, &upper, &disk);
    d.start();
    d.ok(&format!("pool create p --device block:{}", upper.0));
    enlarge(&disk, &image, 128);
    assert!(losetup(&["-c", &upper.0]));
    let beside = with(&["-o", "104857600"], &disk.0);
    refused(&d, "pool resize p --grow 0", 4, &["is in use", &beside.0, "shows some of these"]);
    drop(beside);
    d.ok("pool resize p --grow 0");
    assert_eq!(capacity(&d), 127 * MIB);
    d.stop();
}

/// The file of its loop device has lost the end again: that cannot be read.
#[test]
fn a_larger_disk_comes_up_though_what_it_has_gained_cannot_be_read() {
    let Some((mut d, image, disk)) = begun("growing-unread") else { return };
    d.start();
    d.ok(&format!("pool create p --device block:{}", disk.0));
    d.ok("volume create v --pool p --size 8M");
    let before = capacity(&d);
    d.stop();
    enlarge(&disk, &image, 128);
    if !losetup(&["--direct-io=on", &disk.0]) {
        return eprintln!("skipped: no loop devices without a cache");
    }
    File::options().write(true).open(&image).and_then(|f| f.set_len(64 * MIB)).expect("shorter");
    let mut end = [0; LABEL as usize];
    let read = File::open(&disk.0).and_then(|f| f.read_exact_at(&mut end, 128 * MIB - LABEL));
    if read.is_ok() {
        return eprintln!("skipped: a loop device shows zeros behind its file");
    }
    comes_back(&mut d, "an end that cannot be read");
    assert_eq!((capacity(&d), told(&d)), (before, 1));
    d.fails("pool resize p --grow 0", 1);
    assert_eq!(capacity(&d), before);
    d.stop();
}

/// The label was moved, and the size was not recorded.
#[test]
fn growing_that_a_crash_has_cut_off_is_not_gone_on_with_by_a_start() {
    let Some((mut d, image, disk)) = begun("growing-cut") else { return };
    d.start();
    d.ok(&format!("pool create p --device block:{}", disk.0));
    let before = capacity(&d);
    let had = d.json("pool show p")["devices"][0]["size"].clone();
    d.ok("volume create v --pool p --size 8M");
    enlarge(&disk, &image, 128);
    d.ok("pool resize p --grow 0");
    for size in [None, Some(96 * MIB)] {
        d.stop();
        recorded(&mut d, |devices| {
            devices[0]["grown_from"] = had.clone();
            devices[0]["size"] = size.map_or(had.clone(), Into::into);
        });
        assert_eq!(faults(&d), "[]");
        assert_eq!(capacity(&d), before);
        assert_eq!(d.json("pool show p")["devices"][0]["grown_from"], Value::Null);
    }
    d.ok("pool resize p --grow 0");
    assert_eq!(capacity(&d), 127 * MIB);
    comes_back(&mut d, "what has grown");
    d.stop();
}

/// A disk of an older program, which has no label, and no room for one in what it had.
#[test]
fn a_disk_without_a_label_gets_nothing_by_a_start() {
    let Some((mut d, image, disk)) = begun("growing-bare") else { return };
    d.start();
    d.ok(&format!("pool create p --device block:{}", disk.0));
    d.stop();
    write_at(&image, &[0; LABEL as usize], 64 * MIB - LABEL);
    enlarge(&disk, &image, 128);
    let before = fs::read(&image).expect("read");
    recorded(&mut d, |devices| {
        devices[0]["size"] = (64 * MIB).into();
        devices[0].as_object_mut().expect("a device").remove("labelled");
    });
    assert_eq!(faults(&d), "[]");
    assert_eq!((capacity(&d), told(&d)), (64 * MIB, 1));
    assert!(fs::read(&image).expect("read") == before, "it was written to");
    d.ok("pool resize p --grow 0");
    assert_eq!(capacity(&d), 127 * MIB);
    assert_eq!(d.json("pool show p")["devices"][0]["labelled"], true);
    comes_back(&mut d, "what has grown");
    d.stop();
}

/// Two disks without labels: the second one's loop device shows the first one's file.
#[test]
fn two_disks_without_labels_are_not_the_same_bytes() {
    let Some((mut d, image, disk)) = begun("growing-twice") else { return };
    let other = d.path("other");
    file(&other);
    let second = on(&other);
    d.start();
    d.ok(&format!("pool create p --device block:{} --device block:{}", disk.0, second.0));
    d.stop();
    for image in [&image, &other] {
        write_at(image, &[0; LABEL as usize], 64 * MIB - LABEL);
    }
    put(&d, &second, &[], &image);
    recorded(&mut d, |devices| {
        for n in 0..2 {
            devices[n]["size"] = (64 * MIB).into();
            devices[n].as_object_mut().expect("a device").remove("labelled");
        }
    });
    assert!(faults(&d).contains("another device of pool `p`"), "{}", faults(&d));
    d.stop();
    put(&d, &second, &[], &other);
    comes_back(&mut d, "as it was");
    d.stop();
}

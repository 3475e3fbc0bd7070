//! One disk that two block devices lead to, as a LUN does by two paths without multipath.

use crate::common::lossy::{Disks, Nature, Switch, can_mount};
use crate::common::{Daemon, noise, weir};
use crate::devices::{Loop, faults};
use crate::hung::uncached;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use weir_uring::Held;

const MIB: usize = 1 << 20;

/// Block devices on these files of 64 MiB. Loop devices have no lasting names. None: there are none here.
fn loops<const N: usize>(d: &Daemon, images: [&str; N]) -> Option<[Loop; N]> {
    let made = images.map(|image| {
        let image = d.dir.join(image);
        let file = fs::File::options().create(true).append(true).open(&image);
        file.and_then(|f| f.set_len(64 << 20)).expect("a file");
        Loop::new(&image).map_err(|e| eprintln!("skipped: no loop devices: {e}")).ok()
    });
    made.iter().all(Option::is_some).then(|| made.map(|l| l.expect("it is there")))
}

fn refused(d: &Daemon, line: &str, word: &str) {
    let (_, text) = d.fails(line, 4);
    assert!(text.contains(word), "weir {line}: {text}");
}

/// The commands that take this device for a pool that is there, a new one, or an export.
fn commands(d: &Daemon, device: &str) -> Vec<String> {
    let mirror = format!("--raid 1 --device file:{}:64M", d.path("mirror"));
    let mut all: Vec<_> = ["", "--raid 0", &mirror]
        .into_iter()
        .map(|how| format!("pool create q {how} --device {device} --overwrite weir,data"))
        .collect();
    for line in ["add safe", "add safe --spare", "replace safe 0"] {
        all.push(format!("pool {line} --device {device}"));
        all.push(format!("pool {line} --device {device} --overwrite weir,data"));
    }
    all.push(format!("pool resize plain --add {device}"));
    all.push(format!("volume export x --to {device} --overwrite weir,data --yes"));
    all
}

/// A protected pool and a plain one on files, and a volume in the first.
fn furnish(d: &Daemon) {
    let (safe, plain) = (d.path("safe"), d.path("plain"));
    d.ok(&format!("pool create safe --raid 0 --device file:{safe}:64M"));
    d.ok(&format!("pool create plain --device file:{plain}:64M"));
    d.ok("volume create x --pool safe --size 8M");
    d.ok("host create all --allow-any");
}

#[test]
fn a_disk_is_one_device_by_whichever_path() {
    let mut d = Daemon::new("two-paths");
    let Some([a, b, c, e]) = loops(&d, ["one", "one", "two", "two"]) else { return };
    if !can_unshare() {
        return;
    }
    with_names(&mut d, &[(&a, None), (&b, None), (&c, None), (&e, None)]);
    d.start();
    let both = format!("--device {} --device {}", a.0, b.0);
    for raid in ["", "--raid 0", "--raid 1"] {
        refused(&d, &format!("pool create p {raid} {both}"), "one disk");
        assert_eq!(d.json("pool list"), json!([]));
        let left = fs::read(d.path("one")).expect("read");
        assert!(left.iter().all(|b| *b == 0), "nothing of it is left {raid}");
    }
    furnish(&d);
    d.ok(&format!("pool create p --device {}", a.0));
    d.ok("volume create v --pool p --size 8M");
    d.ok("map create all v");
    let data = noise(5, MIB);
    fs::write(d.path("data"), &data).expect("written");
    d.write("v", &d.path("data"));
    let was = fs::read(d.path("one")).expect("read");
    for line in commands(&d, &b.0) {
        refused(&d, &line, "");
    }
    let add = format!("pool resize p --add {} --overwrite weir,data", b.0);
    refused(&d, &add, "label of device 0 of this pool");
    refused(&d, &format!("pool resize p --add {} --add {}", c.0, e.0), "one disk");
    assert!(fs::read(d.path("one")).expect("read") == was, "what is in service is as it was");
    assert_eq!(d.json("pool show p")["devices"].as_array().map(Vec::len), Some(1));
    // By one path it is a device like others.
    d.ok(&format!("pool resize p --add {}", e.0));
    d.stop();
    d.start();
    assert_eq!(faults(&d), Vec::<Value>::new());
    assert!(d.read("v", MIB) == data);
}

/// The disk is a volume as it is, with no label that tells, and blank.
#[test]
fn what_is_written_to_a_new_device_is_looked_for_at_disks_that_are_volumes() {
    let mut d = Daemon::new("two-paths-image");
    let Some([a, b]) = loops(&d, ["one", "one"]) else { return };
    if !can_unshare() {
        return;
    }
    with_names(&mut d, &[(&a, None), (&b, None)]);
    d.start();
    furnish(&d);
    d.ok(&format!("volume adopt v --path {}", a.0));
    for line in commands(&d, &b.0) {
        refused(&d, &line, "one disk");
        let left = fs::read(d.path("one")).expect("read");
        assert!(left.iter().all(|b| *b == 0), "weir {line}: the volume is as it was");
    }
    assert_eq!(faults(&d), Vec::<Value>::new());
    assert_eq!(d.json("pool show safe")["devices"].as_array().map(Vec::len), Some(1));
    d.ok("volume delete v --yes");
    d.ok(&format!("pool add safe --device {}", b.0));
    d.stop();
}

/// What the daemon sees as `/sys/dev/block`: these devices have these world-wide names there, and are no loop devices.
fn with_names(d: &mut Daemon, names: &[(&Loop, Option<&str>)]) {
    let dir = d.dir.join("sys");
    drop(fs::remove_dir_all(&dir));
    fs::create_dir(&dir).expect("a directory");
    for entry in fs::read_dir("/sys/dev/block").expect("it is there").flatten() {
        let Ok(real) = fs::canonicalize(entry.path()) else { continue };
        let at = dir.join(entry.file_name());
        let named = |(l, _): &&(&Loop, _)| Path::new(&l.0).file_name() == real.file_name();
        let Some((_, name)) = names.iter().find(named) else {
            symlink(real, at).expect("a link");
            continue;
        };
        fs::create_dir(&at).expect("a directory");
        // They stand for disks, which are made of nothing.
        let parts = fs::read_dir(real).expect("it is there").flatten();
        for part in parts.filter(|p| p.file_name() != "loop") {
            symlink(part.path(), at.join(part.file_name())).expect("a link");
        }
        name.iter().for_each(|n| fs::write(at.join("wwid"), n).expect("written"));
    }
    d.block_devices = Some(dir);
}

pub(crate) fn can_unshare() -> bool {
    let can = Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|s| s.success());
    if !can {
        eprintln!("skipped: no mount namespace can be made");
    }
    can
}

/// Nothing but the name says that they are one: they are on files of their own.
#[test]
fn one_name_is_one_disk() {
    let mut d = Daemon::new("one-name");
    let Some([a, b, c]) = loops(&d, ["one", "two", "three"]) else { return };
    if !can_unshare() {
        return;
    }
    with_names(&mut d, &[(&a, Some("naa.5")), (&b, Some("naa.5")), (&c, Some("naa.6"))]);
    d.start();
    let both = format!("--device {} --device {}", a.0, b.0);
    for raid in ["", "--raid 0", "--raid 1"] {
        refused(&d, &format!("pool create p {raid} {both}"), "one disk");
    }
    furnish(&d);
    for holder in
        ["pool create p --device", "pool create p --raid 0 --device", "volume adopt v --path"]
    {
        d.ok(&format!("{holder} {}", a.0));
        let twin = match holder.starts_with("pool") {
            true => "pool `p`",
            false => "volume `v`",
        };
        let mut lines = commands(&d, &b.0);
        lines.push(format!("volume adopt w --path {}", b.0));
        lines.push(format!("pool attach safe --device {}", b.0));
        lines.push(format!("pool resize plain --add {} --add {}", c.0, b.0));
        for line in lines {
            refused(&d, &line, "one disk");
            refused(&d, &line, twin);
        }
        match holder.starts_with("pool") {
            true => d.ok("pool delete p"),
            false => d.ok("volume delete v --yes"),
        };
        fs::write(d.path("zeros"), vec![0; 64 << 20]).expect("written");
        fs::copy(d.path("zeros"), d.path("one")).expect("written");
    }
    d.ok(&format!("pool resize plain --add {}", c.0));
    d.stop();
}

/// Different disks come to have one name, as with a newer kernel and a target that gives one to all: what was made of them is served.
#[test]
fn disks_that_are_different_go_on_though_they_have_one_name() {
    let mut d = Daemon::new("one-name-start");
    let Some([a, b, c]) = loops(&d, ["one", "two", "three"]) else { return };
    if !can_unshare() {
        return;
    }
    with_names(&mut d, &[(&a, None), (&b, None), (&c, None)]);
    d.start();
    d.ok(&format!("pool create p --device {}", a.0));
    d.ok(&format!("pool create s --raid 0 --device {}", b.0));
    d.ok(&format!("volume adopt v --path {}", c.0));
    d.stop();
    with_names(&mut d, &[(&a, Some("naa.5")), (&b, Some("naa.5")), (&c, Some("naa.5"))]);
    d.start();
    assert_eq!(faults(&d), Vec::<Value>::new());
    d.stop();
}

/// One disk was adopted by both of its paths when they had no names.
#[test]
fn at_a_start_one_disk_has_one_user() {
    let mut d = Daemon::new("one-disk-start");
    let Some([a, b]) = loops(&d, ["one", "one"]) else { return };
    if !can_unshare() {
        return;
    }
    with_names(&mut d, &[(&a, None), (&b, None)]);
    d.start();
    d.ok(&format!("volume adopt v --path {}", a.0));
    d.ok(&format!("volume adopt w --path {}", b.0));
    d.stop();
    with_names(&mut d, &[(&a, Some("naa.5")), (&b, Some("naa.5"))]);
    d.start();
    let told = faults(&d);
    let one = told.iter().filter(|f| f.to_string().contains("one disk")).count();
    assert_eq!(one, 1, "{told:?}");
    d.stop();
}

/// A disk that is a volume has something in its last page, which a host writes to beside commands that name its other path.
#[test]
fn what_hosts_have_at_the_end_of_a_disk_stays() {
    let mut d = Daemon::new("two-paths-end");
    let Some([a, b]) = loops(&d, ["one", "one"]) else { return };
    let image = d.path("one");
    let end = noise(9, 4096);
    let mut disk = fs::read(&image).expect("read");
    let at = disk.len() - end.len();
    disk[at..].copy_from_slice(&end);
    fs::write(&image, &disk).expect("written");
    d.start();
    furnish(&d);
    d.ok(&format!("volume adopt v --path {} --block-size 4096", a.0));
    for line in commands(&d, &b.0) {
        refused(&d, &line, "");
        assert!(fs::read(&image).expect("read") == disk, "weir {line}: nothing was written");
    }
    d.stop();
}

/// A device of a mirror is made of another one, as DRBD's are, and is not there yet when the daemon starts; the one below has the
/// same label.
#[test]
fn the_device_below_another_one_is_not_taken_for_it() {
    let mut d = Daemon::new("below");
    let Some([below]) = loops(&d, ["one"]) else { return };
    let (above, number) = (d.path("above"), below.0.trim_start_matches("/dev/loop").to_owned());
    let make = || Command::new("mknod").args([&above, "b", "7", &number]).status();
    if !make().is_ok_and(|s| s.success()) {
        return eprintln!("skipped: no nodes can be made");
    }
    d.start();
    let file = d.path("two");
    d.ok(&format!("pool create safe --raid 1 --device block:{above} --device file:{file}:64M"));
    d.kill();
    fs::remove_file(&above).expect("removed");
    d.start();
    let told = faults(&d);
    assert!(told.iter().any(|f| f["object"] == "pool/safe"), "{told:?}");
    let named = d.json("pool show safe")["devices"].to_string();
    assert!(named.contains(&above), "{named}");
    assert!(make().is_ok_and(|s| s.success()));
    d.until("it is served by what it was made of", || faults(&d).is_empty());
    d.stop();
}

/// A daemon, and a disk that can fail and hang. None: nothing can be mounted here, or named.
fn with_ill_disk(name: &str) -> Option<(Daemon, Disks, Loop)> {
    let d = Daemon::new(name);
    if let Err(e) = can_mount() {
        eprintln!("skipped: {e}");
        return None;
    }
    if !can_unshare() {
        return None;
    }
    let disks = Disks::mount(&d.dir, 1, 64 << 20, Nature::Honest, 1).expect("a disk");
    let disk = uncached(&disks)?;
    Some((d, disks, disk))
}

fn is_fault(d: &Daemon, object: &str) -> bool {
    faults(d).iter().any(|f| f["object"] == object)
}

/// Nobody has it locked, as far as this process can tell by locking it.
fn is_free(l: &Loop) -> bool {
    Held::open(Path::new(&l.0), true).is_ok()
}

/// A disk of a volume cannot be read, and others of that name come to be there: pools know theirs by the labels. A volume's may be that
/// disk.
fn beside_one_that_cannot_be_read(name: &str, ail: impl Fn(&Switch), heal: impl Fn(&Switch)) {
    let Some((mut d, disks, ill)) = with_ill_disk(name) else { return };
    let Some([plain, safe, image]) = loops(&d, ["one", "two", "three"]) else { return };
    let named = |name| [&ill, &plain, &safe, &image].map(|l| (l, name));
    with_names(&mut d, &named(None));
    d.start();
    d.ok(&format!("volume adopt ill --path {}", ill.0));
    d.ok(&format!("pool create plain --device {}", plain.0));
    d.ok(&format!("pool create safe --raid 0 --device {}", safe.0));
    fs::write(d.path("three"), noise(7, 64 << 20)).expect("written");
    d.ok(&format!("volume adopt v --path {}", image.0));
    d.stop();
    with_names(&mut d, &named(Some("naa.5")));
    let away = [&plain, &safe, &image].map(|l| Held::open(Path::new(&l.0), true).expect("held"));
    d.start();
    let objects = ["pool/plain", "pool/safe", "volume/v"];
    // Volumes come after pools.
    let is_ill_up = || !is_fault(&d, "volume/ill") && objects.iter().all(|o| is_fault(&d, o));
    d.until("the first volume is up, and nothing else", is_ill_up);
    let switch = disks.switch();
    ail(&switch);
    drop(away);
    d.until("pools have what carries their labels", || {
        !is_fault(&d, "pool/plain") && !is_fault(&d, "pool/safe")
    });
    let refused = || faults(&d).iter().any(|f| f.to_string().contains("may be one disk"));
    d.until("a volume waits", refused);
    d.until("it does not keep its disk", || is_free(&image));
    heal(&switch);
    d.until("they are different", || faults(&d).is_empty());
    d.stop();
}

#[test]
fn a_disk_that_fails_is_in_the_way_of_no_other_of_its_name() {
    beside_one_that_cannot_be_read("one-name-eio", |s| s.pull(0, true), |s| s.pull(0, false));
}

#[test]
fn a_disk_that_hangs_is_in_the_way_of_no_other_of_its_name() {
    beside_one_that_cannot_be_read("one-name-hung", Switch::hold, Switch::answer);
}

/// What is in service goes on, also when nothing can be seen of another one that has its name.
#[test]
fn a_volume_in_service_keeps_its_disk_while_another_of_its_name_hangs() {
    let Some((mut d, disks, ill)) = with_ill_disk("one-name-served") else { return };
    let Some([image]) = loops(&d, ["one"]) else { return };
    fs::write(d.path("one"), noise(7, 64 << 20)).expect("written");
    with_names(&mut d, &[(&ill, None), (&image, None)]);
    d.start();
    d.ok(&format!("volume adopt ill --path {}", ill.0));
    d.ok(&format!("volume adopt v --path {}", image.0));
    d.stop();
    with_names(&mut d, &[(&ill, Some("naa.5")), (&image, Some("naa.5"))]);
    d.start();
    assert_eq!(faults(&d), Vec::<Value>::new());
    disks.switch().hold();
    d.ok("volume set v --read-only on");
    assert!(!is_free(&image), "it is held");
    disks.switch().answer();
    d.stop();
}

/// Half of a mirror fails while the daemon runs, and comes back; another pool has a disk of its name.
#[test]
fn a_device_of_a_mirror_comes_back_though_another_pool_has_one_of_its_name() {
    let Some((mut d, disks, ill)) = with_ill_disk("one-name-back") else { return };
    let Some([other]) = loops(&d, ["one"]) else { return };
    with_names(&mut d, &[(&ill, None), (&other, None)]);
    d.start();
    let file = d.path("two");
    d.ok(&format!("pool create safe --raid 1 --device {} --device file:{file}:64M", ill.0));
    d.ok(&format!("pool create p --device {}", other.0));
    d.stop();
    with_names(&mut d, &[(&ill, Some("naa.5")), (&other, Some("naa.5"))]);
    d.start();
    assert_eq!(faults(&d), Vec::<Value>::new());
    d.ok("volume create v --pool safe --size 8M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    fs::write(d.path("data"), noise(5, MIB)).expect("written");
    disks.switch().pull(0, true);
    d.write("v", &d.path("data"));
    let state = || d.json("pool show safe")["live"]["state"].clone();
    d.until("it has failed", || state() == "degraded");
    disks.switch().pull(0, false);
    d.ok(&format!("pool attach safe --device {}", ill.0));
    d.until("it is whole", || state() == "healthy");
    d.stop();
}

/// As [`Loop::new`], of a part of the file.
fn part(d: &Daemon, image: &str, from: &str, len: &str) -> Option<Loop> {
    let image = d.path(image);
    let args = ["-f", "--show", "-o", from, "--sizelimit", len, &image];
    let out = Command::new("losetup").args(args).output().ok().filter(|o| o.status.success())?;
    Some(Loop(String::from_utf8_lossy(&out.stdout).trim().to_owned()))
}

/// A disk and a partition of it, or two paths to one that tell different sizes, were adopted when they had no names.
#[test]
fn at_a_start_a_part_of_a_disk_is_that_disk() {
    for (n, (from, name)) in [(1 << 20, "naa.5 partition 1"), (0, "naa.5")].into_iter().enumerate()
    {
        let mut d = Daemon::new(&format!("part-{n}"));
        let Some([whole]) = loops(&d, ["one"]) else { return };
        let Some(part) = part(&d, "one", &from.to_string(), "32MiB") else { return };
        if !can_unshare() {
            return;
        }
        with_names(&mut d, &[(&whole, None), (&part, None)]);
        fs::write(d.path("one"), noise(7, 64 << 20)).expect("written");
        d.start();
        d.ok(&format!("volume adopt v --path {}", whole.0));
        d.ok(&format!("volume adopt w --path {}", part.0));
        d.stop();
        with_names(&mut d, &[(&whole, Some("naa.5")), (&part, Some(name))]);
        let at = Path::new(&part.0).file_name().expect("a name");
        let number =
            fs::read_to_string(Path::new("/sys/block").join(at).join("dev")).expect("read");
        let start = d.dir.join("sys").join(number.trim()).join("start");
        fs::write(start, (from / 512).to_string()).expect("written");
        d.start();
        let told = faults(&d);
        let one = told.iter().filter(|f| f.to_string().contains("it is one disk")).count();
        assert_eq!(one, 1, "{name}: {told:?}");
        d.stop();
    }
}

/// A volume has what cannot be told from the disk of a protected pool, which is looked for in two ways.
#[test]
fn a_pool_does_not_find_by_search_what_it_may_not_have() {
    let mut d = Daemon::new("one-disk-search");
    let Some([disk, other]) = loops(&d, ["one", "two"]) else { return };
    if !can_unshare() {
        return;
    }
    with_names(&mut d, &[(&disk, Some("naa.5")), (&other, None)]);
    d.start();
    d.ok(&format!("pool create safe --raid 0 --device {}", disk.0));
    d.ok(&format!("volume adopt v --path {}", other.0));
    d.stop();
    with_names(&mut d, &[(&disk, Some("naa.5")), (&other, Some("naa.5"))]);
    let away = Held::open(Path::new(&disk.0), true).expect("held");
    d.start();
    fs::write(d.path("two"), fs::read(d.path("one")).expect("read")).expect("written");
    drop(away);
    let refused = || faults(&d).iter().any(|f| f.to_string().contains("it is one disk"));
    d.until("it is refused", || refused() || !is_fault(&d, "pool/safe"));
    d.tried_again();
    assert!(is_fault(&d, "pool/safe"), "one disk has one user");
    d.stop();
}

/// Another disk of the name, with something else in it, is mounted, say. The pool's has got another path.
#[test]
fn a_pool_finds_its_disk_though_another_of_its_name_is_in_use() {
    let mut d = Daemon::new("two-disks-away");
    let Some([first, second]) = loops(&d, ["one", "two"]) else { return };
    if !can_unshare() {
        return;
    }
    with_names(&mut d, &[(&first, Some("naa.5")), (&second, Some("naa.5"))]);
    d.start();
    d.ok(&format!("pool create safe --raid 0 --device {}", first.0));
    d.stop();
    // They change their paths.
    let (one, two) = (d.path("one"), d.path("two"));
    let content = fs::read(&one).expect("read");
    fs::write(&one, noise(7, 64 << 20)).expect("written");
    fs::write(&two, content).expect("written");
    let away = Held::open(Path::new(&first.0), true).expect("held");
    d.start();
    d.until("it is found", || !is_fault(&d, "pool/safe"));
    drop(away);
    d.stop();
}

/// A leg of a mirror had writes under way when the daemon was killed. It does not come back by its other path beside them.
#[test]
fn a_leg_does_not_come_back_beside_its_late_writes() {
    let mut d = Daemon::new("one-leg-away");
    let Some([leg, other]) = loops(&d, ["one", "one"]) else { return };
    if !can_unshare() {
        return;
    }
    with_names(&mut d, &[(&leg, Some("naa.5")), (&other, Some("naa.5"))]);
    d.start();
    let file = d.path("file");
    d.ok(&format!("pool create safe --raid 1 --device {} --device file:{file}:64M", leg.0));
    d.kill();
    let mut away = None;
    // The kernel ends what the killed one had under way.
    d.until("it is held", || {
        away = Held::open(Path::new(&leg.0), true).ok();
        away.is_some()
    });
    d.start();
    d.ok("pool force safe --yes");
    refused(&d, &format!("pool attach safe --device {}", other.0), "which is in use");
    drop(away);
    let attach = format!("pool attach safe --device {}", other.0);
    let attach: Vec<&str> = attach.split(' ').collect();
    d.until("it comes back", || weir(&d.dir, &attach).status.success());
    d.stop();
}

/// Somebody has the disk by its other path: a process that has ended, perhaps, whose writes go on.
#[test]
fn a_disk_that_is_in_use_by_another_path_is_not_taken() {
    let mut d = Daemon::new("one-disk-away");
    let Some([disk, other, blank, same]) = loops(&d, ["one", "one", "two", "two"]) else { return };
    if !can_unshare() {
        return;
    }
    let (first, second) = (Some("naa.5"), Some("naa.6"));
    let names = [(&disk, first), (&other, first), (&blank, second), (&same, second)];
    with_names(&mut d, &names);
    d.start();
    furnish(&d);
    d.ok(&format!("pool create p --raid 0 --device {}", disk.0));
    d.stop();
    let away = [&disk, &blank].map(|l| Held::open(Path::new(&l.0), true).expect("held"));
    d.start();
    d.tried_again();
    assert!(is_fault(&d, "pool/p"), "it is not found by its other path");
    for line in commands(&d, &same.0) {
        refused(&d, &line, "which is in use");
    }
    refused(&d, &format!("volume adopt y --path {}", same.0), "which is in use");
    // The pool as another configuration finds it.
    d.stop();
    let mut e = Daemon::new("one-disk-import");
    with_names(&mut e, &names);
    e.start();
    refused(&e, &format!("pool import --device {}", other.0), "which is in use");
    e.stop();
    d.start();
    drop(away);
    d.until("it is opened", || !is_fault(&d, "pool/p"));
    // Nobody has it for himself: another process writes to it, or a loop device is made of it.
    let all = || {
        for line in commands(&d, &same.0) {
            refused(&d, &line, "which is in use");
        }
        refused(&d, &format!("volume adopt y --path {}", same.0), "which is in use");
    };
    let writer = fs::File::options().write(true).open(&blank.0).expect("opened");
    all();
    drop(writer);
    let on_it = Loop::new(Path::new(&blank.0)).expect("a loop device");
    all();
    drop(on_it);
    d.ok(&format!("pool add safe --device {}", same.0));
    d.stop();
}

/// A disk hangs while it is looked at. Another of its name that is given up meanwhile is free, and may be used.
#[test]
fn what_is_compared_with_a_disk_that_hangs_is_not_kept() {
    let Some((mut d, disks, ill)) = with_ill_disk("kept") else { return };
    let Some([image]) = loops(&d, ["one"]) else { return };
    let named = |name| [&ill, &image].map(|l| (l, name));
    with_names(&mut d, &named(None));
    d.start();
    d.ok(&format!("pool create safe --raid 0 --device {}", ill.0));
    fs::write(d.path("one"), noise(7, 64 << 20)).expect("written");
    d.ok(&format!("volume adopt v --path {}", image.0));
    d.stop();
    with_names(&mut d, &named(Some("naa.5")));
    let (away, switch) = (Held::open(Path::new(&ill.0), true).expect("held"), disks.switch());
    d.start();
    d.until("the pool waits for its disk", || is_fault(&d, "pool/safe"));
    switch.hold();
    drop(away);
    d.until("it is looked at", || switch.held() > 0);
    d.ok("volume delete v --yes");
    d.until("it is free", || is_free(&image));
    switch.answer();
    d.stop();
}

/// A leg of a mirror fails, and another disk has its name: it is a leg that cannot be read, not one that others use.
#[test]
fn a_mirror_is_opened_without_a_disk_that_fails_though_another_has_its_name() {
    let Some((mut d, disks, ill)) = with_ill_disk("ill-leg") else { return };
    let Some([good, image]) = loops(&d, ["one", "two"]) else { return };
    let named = |name| [&ill, &image].map(|l| (l, name));
    with_names(&mut d, &named(None));
    d.start();
    d.ok(&format!("pool create safe --raid 1 --device {} --device {}", ill.0, good.0));
    fs::write(d.path("two"), noise(7, 64 << 20)).expect("written");
    d.ok(&format!("volume adopt v --path {}", image.0));
    d.stop();
    with_names(&mut d, &named(Some("naa.5")));
    let switch = disks.switch();
    switch.pull(0, true);
    d.start();
    let is_degraded = || faults(&d).iter().any(|f| f["code"] == "pool_degraded");
    d.until("it is opened without", is_degraded);
    switch.pull(0, false);
    d.stop();
}

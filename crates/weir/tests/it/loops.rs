//! Loop devices that show what somebody has, in whichever way they are put on one another: the real program on real ones.

use crate::common::Daemon;
use crate::devices::{Loop, refused};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// `O_EXCL`: of a block device it is a claim (open(2)).
pub(crate) const EXCLUSIVE: i32 = 0o200;

pub(crate) fn file(path: &str) {
    File::create(path).and_then(|f| f.set_len(64 << 20)).expect("a file");
}

/// `losetup`, and whether it did that.
pub(crate) fn losetup(args: &[&str]) -> bool {
    Command::new("losetup").args(args).status().is_ok_and(|s| s.success())
}

/// A loop device with these options.
pub(crate) fn with(options: &[&str], of: &str) -> Loop {
    let out = Command::new("losetup").args(["-f", "--show"]).args(options).arg(of).output();
    let out = out.expect("losetup runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Loop(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// Gives a loop device another file.
pub(crate) fn put(d: &Daemon, at: &Loop, options: &[&str], of: &str) {
    assert!(losetup(&["-d", &at.0]));
    let args = [options, &[&at.0, of]].concat();
    d.until("it is attached", || losetup(&args));
}

pub(crate) fn on(of: &str) -> Loop {
    with(&[], of)
}

/// A directory with a file, and a loop device of that. None: there are no loop devices.
pub(crate) fn begun(name: &str) -> Option<(Daemon, String, Loop)> {
    let d = Daemon::new(name);
    let image = d.path("image");
    file(&image);
    match Loop::new(Path::new(&image)) {
        Ok(l) => Some((d, image, l)),
        Err(e) => {
            eprintln!("skipped: no loop devices: {e}");
            None
        }
    }
}

pub(crate) fn faults(d: &Daemon) -> String {
    d.json("status")["faults"].to_string()
}

/// A loop device has nothing open in any process, and claims nothing: who has its device is somebody else.
#[test]
fn a_loop_device_of_a_block_device_that_somebody_has_is_refused() {
    let Some((mut d, _, below)) = begun("loops-block") else { return };
    d.start();
    let adopt = |at: &Loop| format!("volume adopt v --path {}", at.0);
    let above = on(&below.0);
    let open = File::options().read(true).write(true).open(&below.0).expect("open");
    refused(&d, &adopt(&above), 4, &["is made of", "has it open"]);
    drop(open);
    let mut claims = File::options();
    let claimed = claims.read(true).custom_flags(EXCLUSIVE).open(&below.0).expect("claimed");
    refused(&d, &adopt(&above), 4, &["is made of", "for himself"]);
    drop(claimed);
    // Nobody has it any more.
    d.ok(&adopt(&above));
    d.ok("volume delete v --yes");
    drop(above);
    let mut other = Daemon::new("loops-block-other");
    other.start();
    other.ok(&adopt(&below));
    let above = on(&below.0);
    refused(&d, &adopt(&above), 4, &["is made of", "(weir) has it open"]);
    other.stop();
    d.ok(&adopt(&above));
    d.stop();
}

/// A partition of a loop device, as if there were a table that says so, and its number.
pub(crate) struct Partition<'a>(&'a Loop, &'a str);

impl Partition<'_> {
    /// The first one, of 32 MiB from 1 MiB.
    pub(crate) fn of(disk: &Loop) -> Option<Partition<'_>> {
        Partition::at(disk, "1", ["2048", "65536"])
    }

    /// The second one, which is all behind the first of 64 MiB.
    pub(crate) fn last(disk: &Loop) -> Option<Partition<'_>> {
        Partition::at(disk, "2", ["67584", "63488"])
    }

    /// Where it begins, and its length, in sectors.
    pub(crate) fn at<'a>(
        disk: &'a Loop,
        number: &'a str,
        [at, len]: [&str; 2],
    ) -> Option<Partition<'a>> {
        let made = Command::new("addpart").args([&disk.0, number, at, len]).status();
        let part = made.is_ok_and(|s| s.success()).then_some(Partition(disk, number))?;
        Path::new(&part.node()).exists().then_some(part)
    }

    fn node(&self) -> String {
        format!("{}p{}", self.0.0, self.1)
    }
}

impl Drop for Partition<'_> {
    fn drop(&mut self) {
        drop(Command::new("delpart").args([&self.0.0, self.1]).status());
    }
}

#[test]
fn a_partition_and_its_disk_are_one_also_below_loop_devices() {
    let Some((mut d, image, disk)) = begun("loops-parts") else { return };
    drop(disk);
    let disk = with(&["-P"], &image);
    let Some(made) = Partition::of(&disk) else {
        return eprintln!("skipped: no partitions of loop devices");
    };
    let part = made.node();
    d.start();
    let adopt = |name: &str, at: &Loop| format!("volume adopt {name} --path {}", at.0);
    let (whole, of_part) = (on(&disk.0), on(&part));
    for (first, second) in [(&whole, &of_part), (&of_part, &whole)] {
        d.ok(&adopt("first", first));
        refused(&d, &adopt("second", second), 4, &["is made of", "volume `first`"]);
        d.ok("volume delete first --yes");
    }
    // What is before the partition is none of it, and what begins in its midst is.
    let before = with(&["--sizelimit", "1048576"], &disk.0);
    let within = with(&["-o", "17825792", "--sizelimit", "4194304"], &disk.0);
    let behind = with(&["-o", "34603008"], &disk.0);
    d.ok(&adopt("first", &of_part));
    d.ok(&adopt("before", &before));
    d.ok(&adopt("behind", &behind));
    refused(&d, &adopt("within", &within), 4, &["is made of", "volume `first`"]);
    d.stop();
}

#[test]
fn what_is_made_of_a_loop_device_beside_counts_as_well() {
    let Some((mut d, image, beside)) = begun("loops-stacked") else { return };
    let stacked = on(&beside.0);
    d.start();
    let adopt = |name: &str, at: &Loop| format!("volume adopt {name} --path {}", at.0);
    d.ok(&adopt("first", &stacked));
    let mine = on(&image);
    refused(&d, &adopt("second", &mine), 4, &["is made of", "volume `first`"]);
    d.ok("volume delete first --yes");
    // Whoever has it.
    let mut claims = File::options();
    let claimed = claims.read(true).custom_flags(EXCLUSIVE).open(&stacked.0).expect("claimed");
    refused(&d, &adopt("second", &mine), 4, &["is made of", &stacked.0, "for himself"]);
    drop(claimed);
    // Another part of the file is another thing, also by a device between.
    let (upper, lower) = (
        with(&["-o", "33554432"], &beside.0),
        with(&["-o", "1048576", "--sizelimit", "32505856"], &image),
    );
    d.ok(&adopt("upper", &upper));
    d.ok(&adopt("lower", &lower));
    let both = with(&["-o", "16777216", "--sizelimit", "33554432"], &image);
    refused(&d, &adopt("both", &both), 4, &["is made of", "volume `"]);
    d.ok("volume delete upper --yes");
    d.ok("volume delete lower --yes");
    drop((upper, lower, both));
    // So it is when volumes come back.
    let other = d.path("other");
    file(&other);
    put(&d, &mine, &[], &other);
    d.ok(&adopt("first", &stacked));
    d.ok(&adopt("second", &mine));
    d.stop();
    put(&d, &mine, &[], &image);
    d.start();
    d.until("it is seen", || faults(&d).matches("is made of").count() == 1);
    d.stop();
}

/// A pool's file is away, and the loop device that a volume is has that file by now.
#[test]
fn what_a_pool_had_is_no_volume_when_they_start() {
    let Some((mut d, image, disk)) = begun("loops-start") else { return };
    drop(disk);
    let disk = with(&["--sizelimit", "33554432"], &image);
    // Where nobody looks for devices that were renamed.
    fs::create_dir(d.path("elsewhere")).expect("a directory");
    let (own, away) = (d.path("own"), d.path("elsewhere/away"));
    d.start();
    d.ok(&format!("volume adopt first --path {}", disk.0));
    for kind in ["", "--raid 0"] {
        d.ok(&format!("pool create q {kind} --device file:{own}:64M"));
        d.stop();
        fs::rename(&own, &away).expect("moved");
        // By the label that it shows, also if its file has no name here, or by the label that is in what it is made of.
        let (part, named) = (["-o", "8388608", "--sizelimit", "33554432"], d.path("named"));
        for (options, is_named) in [(&[][..], false), (&[], true), (&part, true)] {
            fs::hard_link(&away, &named).expect("another name");
            put(&d, &disk, options, if is_named { &away } else { &named });
            fs::remove_file(&named).expect("it was there");
            d.start();
            let seen = || {
                let all = faults(&d);
                all.contains("pool/q") && all.contains("volume/first")
            };
            assert!(seen(), "{}", faults(&d));
            assert!(faults(&d).contains("this node's pool `q`"), "{}", faults(&d));
            d.tried_again();
            assert!(seen(), "{}", faults(&d));
            // Nor does it become another one.
            let another = with(&part, &away);
            let adopt = format!("volume adopt x --path {}", another.0);
            refused(&d, &adopt, 4, &["is made of", "pool `q`"]);
            d.stop();
        }
        // Nothing tells it, and the volume comes up: then the pool does not.
        fs::hard_link(&away, &named).expect("another name");
        put(&d, &disk, &part, &named);
        fs::remove_file(&named).expect("it was there");
        d.start();
        assert!(!faults(&d).contains("volume/first"), "{}", faults(&d));
        fs::rename(&away, &own).expect("moved back");
        d.tried_again();
        let told = faults(&d);
        assert!(told.contains("pool/q") && told.contains("volume `first`"), "{told}");
        d.stop();
        put(&d, &disk, &["--sizelimit", "33554432"], &image);
        d.start();
        d.until("all is well", || faults(&d) == "[]");
        d.ok("pool delete q");
        fs::remove_file(&own).expect("it was there");
    }
    d.stop();
}

/// Its directory is not around it: it has another name, or is mounted somewhere.
#[test]
fn a_file_of_a_pool_that_is_not_up_is_known_by_itself() {
    let mut d = Daemon::new("loops-bound");
    d.start();
    d.ok(&format!("pool create pair --device dir:{} --device dir:{}", d.path("a"), d.path("b")));
    for n in 0..2 {
        d.ok(&format!("volume create n{n} --pool pair --size 16M"));
    }
    d.stop();
    let is_volume = |p: &PathBuf| fs::metadata(p).is_ok_and(|m| m.len() >= 16 << 20);
    let files = fs::read_dir(d.path("b")).expect("it is there").flatten().map(|f| f.path());
    let own = files.into_iter().find(is_volume).expect("a volume's file").display().to_string();
    fs::rename(d.path("a"), d.path("away")).expect("moved");
    d.start();
    let hard = d.path("hard");
    fs::hard_link(&own, &hard).expect("another name");
    refused(&d, &format!("volume adopt x --path {hard}"), 4, &["pool `pair`"]);
    fs::remove_file(&hard).expect("it was there");
    let bound = d.path("bound");
    File::create(&bound).expect("a file");
    if Command::new("mount").args(["--bind", &own, &bound]).status().is_ok_and(|s| s.success()) {
        let out = crate::common::weir(&d.dir, &["volume", "adopt", "x", "--path", &bound]);
        let unmounted = Command::new("umount").arg(&bound).status();
        assert!(unmounted.is_ok_and(|s| s.success()));
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && said.contains("pool `pair`"), "{said}");
    } else {
        eprintln!("skipped in part: nothing can be mounted");
    }
    d.stop();
}

/// Starts it anew, and nothing is wrong: neither then nor when all is tried again.
pub(crate) fn comes_back(d: &mut Daemon, what: &str) {
    d.stop();
    d.start();
    d.tried_again();
    assert_eq!(faults(d), "[]", "{what}");
}

/// A label at the end of a file says nothing of what does not show the device that it is of.
#[test]
fn pools_and_volumes_on_parts_of_one_file_come_back() {
    let Some((mut d, image, disk)) = begun("loops-parted") else { return };
    drop(disk);
    let disk = with(&["-P"], &image);
    let (Some(first), Some(last)) = (Partition::of(&disk), Partition::last(&disk)) else {
        return eprintln!("skipped: no partitions of loop devices");
    };
    let (first, last) = (first.node(), last.node());
    d.start();
    let (leg, other, over) = (d.path("leg"), d.path("other"), "--overwrite weir,data");
    for second in ["", "--raid 0 "] {
        for (make, delete) in [
            (format!("pool create a --device block:{first} {over}"), "pool delete a"),
            (format!("pool create a --raid 0 --device block:{first} {over}"), "pool delete a"),
            (
                format!(
                    "pool create a --raid 1 --device file:{leg}:32M --device block:{first} {over}"
                ),
                "pool delete a",
            ),
            (format!("volume adopt v --path {first}"), "volume delete v --yes"),
        ] {
            // Of the one before no label is left.
            let blank = File::options().write(true).open(&first);
            blank.and_then(|f| f.write_all_at(&vec![0; 32 << 20], 0)).expect("written");
            d.ok(&make);
            d.ok(&format!("pool create b {second}--device block:{last} {over}"));
            comes_back(&mut d, &format!("{second}{make}"));
            d.ok("pool delete b");
            d.ok(delete);
            drop(fs::remove_file(&leg));
        }
    }
    // By a loop device of the second part, beside the disk of the first.
    let behind = with(&["-o", "34603008"], &image);
    d.ok(&format!("pool create b --device block:{} {over}", behind.0));
    d.ok(&format!("pool create a --device block:{first} {over}"));
    comes_back(&mut d, "a partition and a loop device");
    // What shows the first part is refused as before.
    let within = with(&["-o", "17825792", "--sizelimit", "4194304"], &image);
    let adopt = format!("volume adopt x --path {}", within.0);
    refused(&d, &adopt, 4, &["is made of", "pool `a`"]);
    d.ok("pool delete a");
    d.ok("pool delete b");
    // Two loop devices, each of a half.
    file(&other);
    let lower = with(&["--sizelimit", "33554432"], &other);
    let upper = with(&["-o", "33554432"], &other);
    for kind in ["", "--raid 0 "] {
        d.ok(&format!("pool create a {kind}--device block:{} {over}", lower.0));
        d.ok(&format!("pool create b {kind}--device block:{} {over}", upper.0));
        comes_back(&mut d, &format!("halves: {kind}"));
        d.ok("pool delete a");
        d.ok("pool delete b");
    }
    d.stop();
}

/// Its directory became a pool's afterwards, and nobody else uses that file.
#[test]
fn a_loop_device_of_a_file_below_a_pool_s_directory_comes_back() {
    let Some((mut d, _, disk)) = begun("loops-below") else { return };
    let (srv, below) = (d.path("srv"), d.path("srv/loops"));
    fs::create_dir_all(&below).expect("a directory");
    let of = d.path("srv/loops/file");
    file(&of);
    let own = on(&of);
    d.start();
    d.ok(&format!("pool create l --device block:{}", own.0));
    d.ok(&format!("volume adopt v --path {}", disk.0));
    d.ok(&format!("pool create d --device dir:{srv}"));
    d.ok("volume create t --pool d --size 64M");
    comes_back(&mut d, "a file below it");
    // A new one is refused as before.
    let new = d.path("srv/loops/new");
    file(&new);
    let another = on(&new);
    let adopt = format!("volume adopt x --path {}", another.0);
    refused(&d, &adopt, 4, &["is made of", "is the directory of pool `d`"]);
    // So is the file of a volume, also where its pool is not up: it is known by its name, and its directory by the label.
    let name = d.json("volume show t")["layout"]["file"].as_str().expect("a file").to_owned();
    let moved = d.path("moved");
    let (label, away) = (d.path("srv/.weir-pool"), d.path("label"));
    let its = "it is a file of pool `d`";
    // Its own path tells where the label does not.
    for (dir, labelled, words) in
        [(&srv, true, "` is in use"), (&srv, false, its), (&moved, true, its)]
    {
        d.stop();
        if !labelled {
            fs::rename(&label, &away).expect("away");
        }
        if dir == &moved {
            fs::rename(&away, &label).expect("back");
            fs::rename(&srv, &moved).expect("moved");
        }
        put(&d, &disk, &[], &format!("{dir}/{name}"));
        d.start();
        d.tried_again();
        let told = faults(&d);
        let all = ["volume/v", "is made of", words].map(|w| told.contains(w));
        assert!(all == [true; 3] && !told.contains("pool/l"), "{told}");
    }
    d.stop();
}

/// Hosts write to a volume what they want: what is recorded of its file tells that it is the same.
#[test]
fn a_volume_that_carries_a_pool_s_label_comes_back() {
    let mut d = Daemon::new("loops-labelled");
    let image = d.path("image");
    file(&image);
    d.start();
    d.ok(&format!("volume adopt v --path {image}"));
    for kind in ["", "--raid 0"] {
        let own = d.path("own");
        d.ok(&format!("pool create q {kind} --device file:{own}:64M"));
        d.stop();
        let all = fs::read(&own).expect("read");
        let page = &all[all.len() - 4096..];
        assert!(page.starts_with(b"WeirP"), "it is a label");
        let copy = File::options().write(true).open(&image).expect("open");
        copy.write_all_at(page, (64 << 20) - 4096).expect("written");
        d.start();
        comes_back(&mut d, kind);
        d.ok("pool delete q");
        fs::remove_file(&own).expect("it was there");
    }
    d.stop();
}

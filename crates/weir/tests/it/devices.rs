//! What comes to Weir as a device: the real program on files, pipes and loop devices, told apart by what they are.

use crate::common::lossy::{Disks, Nature, can_mount};
use crate::common::{Daemon, noise};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use weir_base::MILLIS;
use weir_disk::{Disk, DiskOp, run};
use weir_mem::Slice;
use weir_reactor::{PollMode, Reactor, sleep, spawn};
use weir_uring::{FileDisk, OpenOptions, Opened, Ring};

const MIB: usize = 1 << 20;

pub(crate) fn faults(d: &Daemon) -> Vec<Value> {
    d.json("status")["faults"].as_array().cloned().unwrap_or_default()
}

/// Refused with these words, and the file is what it was.
pub(crate) fn refused(d: &Daemon, line: &str, exit: i32, words: &[&str]) {
    let (_, text) = d.fails(line, exit);
    for w in words {
        assert!(text.contains(w), "weir {line}: {w} is missing in {text}");
    }
}

fn mode(path: impl AsRef<Path>) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o777
}

#[test]
fn a_device_is_one_device_by_whatever_name() {
    let (mut a, mut b) = (Daemon::new("one-device"), Daemon::new("one-device-b"));
    a.start();
    b.start();
    let dir = a.dir.clone();
    let disk = |n: &str| dir.join(n).display().to_string();
    a.ok(&format!("pool create plain --device file:{}:64M", disk("plain")));
    a.ok(&format!("pool create safe --raid 0 --device file:{}:64M", disk("safe")));
    fs::create_dir(disk("dir")).expect("a directory");
    a.ok(&format!("pool create thin --device dir:{}", disk("dir")));
    a.ok("volume create t --pool thin --size 4M");
    let own = a.json("volume show t")["layout"]["file"].as_str().expect("a file").to_owned();
    let mut names = vec![];
    for n in ["plain", "safe"] {
        let (link, hard) = (disk(&format!("{n}-link")), disk(&format!("{n}-hard")));
        std::os::unix::fs::symlink(disk(n), &link).expect("a link");
        fs::hard_link(disk(n), &hard).expect("a link");
        names.extend([link, hard]);
    }
    names.push(format!("{}/{own}", disk("dir")));
    names.push(format!("{}/new:64M", disk("dir")));
    for name in &names {
        for how in ["", "--raid 0"] {
            let line =
                format!("pool create other {how} --device file:{name} --overwrite weir,data");
            refused(&a, &line, 4, &["is in use", "p"]);
        }
    }
    let (link, hard) = (disk("plain-link"), disk("plain-hard"));
    refused(&a, &format!("pool add safe --device file:{link}"), 4, &["pool `plain`"]);
    refused(&a, &format!("pool resize plain --add file:{hard}"), 4, &["pool `plain`"]);
    refused(&a, &format!("volume adopt v --path {hard}"), 4, &["pool `plain`"]);
    refused(&a, &format!("volume export t --to {hard} --overwrite weir,data --yes"), 4, &["plain"]);
    // Another daemon.
    for name in ["plain", "safe", "plain-hard", "safe-link"].map(&disk) {
        for how in ["", "--raid 0"] {
            let line =
                format!("pool create other {how} --device file:{name} --overwrite weir,data");
            refused(&b, &line, 4, &["another program uses it", "(weir)"]);
        }
        refused(&b, &format!("volume adopt v --path {name}"), 4, &["another program uses it"]);
    }
    refused(
        &b,
        &format!("pool create other --device dir:{}", disk("dir")),
        4,
        &["another program"],
    );
    assert_eq!(b.json("pool list"), serde_json::json!([]));
    assert_eq!(faults(&a), Vec::<Value>::new());
    // With the first daemon gone the labels keep the second one off.
    a.stop();
    for name in ["plain", "safe"].map(&disk) {
        refused(
            &b,
            &format!("pool create other --device file:{name}"),
            4,
            &["weir", "--overwrite weir"],
        );
    }
    let dir = format!("pool create other --device dir:{}", disk("dir"));
    refused(&b, &dir, 4, &["it belongs to plain pool"]);
}

#[test]
fn what_is_not_empty_is_refused_until_it_is_named() {
    let mut d = Daemon::new("not-empty");
    d.start();
    let text = d.path("pw.txt");
    fs::write(&text, "root:x:0:0:root:/root:/bin/bash\n").expect("written");
    let was = fs::read(&text).expect("read");
    for line in [
        format!("pool create p --device file:{text}:64M"),
        format!("pool create p --raid 0 --device file:{text}:64M"),
        format!("pool create p --device file:{text}:64M --overwrite ext4"),
    ] {
        refused(&d, &line, 4, &["is not empty", "data of no known kind", "--overwrite data"]);
        assert_eq!(fs::read(&text).expect("read"), was, "{line}");
    }
    d.ok(&format!("pool create safe --raid 0 --device file:{}:64M", d.path("disk")));
    for line in [
        format!("pool add safe --device file:{text}:64M"),
        format!("pool add safe --spare --device file:{text}:64M"),
        format!("pool replace safe 0 --device file:{text}:64M"),
    ] {
        refused(&d, &line, 4, &["is not empty", "--overwrite data"]);
        assert_eq!(fs::read(&text).expect("read"), was, "{line}");
    }
    assert_eq!(d.json("pool show safe")["devices"].as_array().map(Vec::len), Some(1));
    d.ok("volume create v --pool safe --size 1M");
    let image = d.path("image");
    fs::write(&image, noise(1, 2 * MIB)).expect("written");
    refused(&d, &format!("volume export v --to {image}"), 4, &["is not empty"]);
    assert_eq!(fs::read(&image).expect("read"), noise(1, 2 * MIB));
    d.ok(&format!("volume export v --to {image} --overwrite data --yes --detach --wait"));
    d.ok(&format!("pool create p --device file:{text}:64M --overwrite data"));
    d.ok("pool delete p");
    // What is left of a pool that was deleted is nothing.
    d.ok(&format!("pool create p --device file:{text}"));

    let fs_image = d.path("ext4.img");
    fs::File::create(&fs_image).and_then(|f| f.set_len(64 << 20)).expect("a file");
    let made = Command::new("mkfs.ext4").args(["-q", "-L", "precious", &fs_image]).status();
    if !made.is_ok_and(|s| s.success()) {
        eprintln!("skipped in part: mkfs.ext4 is not installed");
        return;
    }
    let was = fs::read(&fs_image).expect("read");
    let line = format!("pool create q --raid 0 --device file:{fs_image}");
    refused(&d, &line, 4, &["ext4 (precious)", "--overwrite ext4"]);
    refused(&d, &format!("{line} --overwrite weir,data"), 4, &["ext4 (precious)"]);
    assert!(fs::read(&fs_image).expect("read") == was);
    // It becomes a volume as it is without a question: nothing is lost by that.
    d.ok(&format!("volume adopt ext --path {fs_image} --read-only"));
    d.ok("volume delete ext --yes");
    d.ok(&format!("{line} --overwrite ext4"));
}

#[test]
fn nonsense_is_refused_and_leaves_nothing() {
    let mut d = Daemon::new("nonsense");
    d.start();
    let there = d.path("there");
    fs::File::create(&there).and_then(|f| f.set_len(32 << 20)).expect("a file");
    let pipe = d.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().is_ok_and(|s| s.success()));
    let new = d.path("new");
    for device in [
        "block:/dev/null".to_owned(),
        "file:/dev/null:64M".into(),
        format!("file:{new}"),
        format!("file:{pipe}:64M"),
        format!("file:{there}:1M"),
        format!("block:{there}"),
        format!("dir:{there}"),
        format!("file:{}:64M", d.dir.display()),
        format!("file:{}:64M", d.path("none/new")),
        format!("dir:{}", d.path("none/new")),
        "ram:900T".into(),
    ] {
        // The good one beside it is not made either. Directories go with directories only.
        let beside = match device.starts_with("dir") {
            true => String::new(),
            false => format!("--device file:{new}2:64M"),
        };
        let line = format!("pool create p {beside} --device {device}");
        let exit = if device.contains("none/") { 1 } else { 2 };
        let (code, text) = d.fails(&line, exit);
        assert!(["invalid_device", "io_error"].contains(&code.as_str()), "{line}: {text}");
        assert!(!Path::new(&new).exists() && !Path::new(&format!("{new}2")).exists(), "{line}");
        assert!(!Path::new(&d.path("none")).exists(), "{line}");
    }
    assert_eq!(fs::metadata(&there).expect("it is there").len(), 32 << 20);
    assert_eq!(d.json("pool list"), serde_json::json!([]));
    d.ok(&format!("pool create p --device file:{there}"));
}

#[test]
fn what_is_missing_is_a_fault_and_not_empty() {
    let mut d = Daemon::new("absence");
    d.start();
    let (mount, away) = (PathBuf::from(d.path("mount")), PathBuf::from(d.path("away")));
    fs::create_dir(&mount).expect("a directory");
    let at = |n: &str| mount.join(n).display().to_string();
    d.ok(&format!("pool create f --device file:{}:64M", at("disk")));
    d.ok(&format!("pool create t --device dir:{}", at("thin")));
    assert_eq!((mode(at("disk")), mode(at("thin"))), (0o600, 0o700));
    d.ok("host create all --allow-any");
    let data = noise(7, MIB);
    fs::write(d.path("data"), &data).expect("written");
    for (n, pool) in [("vf", "f"), ("vt", "t")] {
        d.ok(&format!("volume create {n} --pool {pool} --size 4M"));
        d.ok(&format!("map create all {n}"));
        d.write(n, &d.path("data"));
    }
    let own = fs::read_dir(at("thin")).expect("read").flatten();
    let own: Vec<_> = own.filter(|e| e.file_name() != ".weir-pool").map(|e| e.path()).collect();
    assert_eq!(own.len(), 1);
    assert_eq!(mode(&own[0]), 0o600);
    d.stop();
    // As when a file system is not mounted: an empty directory is there, then not even that.
    fs::rename(&mount, &away).expect("moved");
    for there in [true, false] {
        if there {
            fs::create_dir(&mount).expect("a directory");
        } else {
            fs::remove_dir(&mount).expect("nothing is in it");
        }
        d.start();
        // One cause, one fault; each volume says what it waits for.
        let objects: Vec<_> = faults(&d).iter().map(|f| f["object"].clone()).collect();
        assert_eq!(objects, ["pool/f", "pool/t"]);
        for (volume, pool) in [("vf", "f"), ("vt", "t")] {
            let fault = faults(&d).into_iter().find(|f| f["object"] == format!("pool/{pool}"));
            let text = fault.map(|f| f["text"].to_string()).unwrap_or_default();
            assert!(text.contains("a volume waits for it"), "{text}");
            let why = d.json(&format!("volume show {volume}"))["not_served"].to_string();
            assert!(text.starts_with(why.trim_end_matches('"')), "{why} / {text}");
        }
        assert!(d.ok("volume list --pool f").contains("not served"));
        assert_eq!(mount.exists(), there);
        if there {
            assert_eq!(fs::read_dir(&mount).expect("read").count(), 0, "nothing was made");
            d.stop();
        }
    }
    // It comes back by itself.
    fs::rename(&away, &mount).expect("moved");
    d.until("all is well", || faults(&d).is_empty());
    assert!(d.read("vf", MIB) == data && d.read("vt", MIB) == data);
    d.stop();

    // Shorter, another one of that name, and one that is gone.
    let disk = at("disk");
    let whole = fs::metadata(&disk).expect("it is there").len();
    let cut = |len| {
        fs::File::options().write(true).open(&disk).and_then(|f| f.set_len(len)).expect("cut")
    };
    let tail = fs::read(&disk).expect("read")[60 << 20..].to_vec();
    cut(60 << 20);
    let file = own[0].clone();
    fs::rename(&file, at("kept")).expect("moved");
    d.start();
    let text = d.json("status")["faults"].to_string();
    assert!(text.contains("it has 60 MiB, and had 64 MiB"), "{text}");
    assert!(text.contains("volume/vt") && !file.exists(), "{text}");
    d.stop();
    cut(whole);
    d.start();
    let text = d.json("status")["faults"].to_string();
    assert!(text.contains("does not carry the pool's label"), "{text}");
    fs::rename(at("kept"), &file).expect("moved");
    let mut old = fs::read(&disk).expect("read");
    old[60 << 20..].copy_from_slice(&tail);
    fs::write(&disk, old).expect("written");
    d.until("all is well again", || faults(&d).is_empty());
    assert!(d.read("vf", MIB) == data && d.read("vt", MIB) == data);
}

#[test]
fn plain_pools_of_older_programs_get_labels_and_grow_with_them() {
    let mut d = Daemon::new("labels");
    d.start();
    let disk = d.path("disk");
    d.ok(&format!("pool create p --device file:{disk}:64M"));
    assert_eq!(d.json("pool show p")["capacity"], 64 << 20, "the label takes nothing of it");
    d.ok("volume create v --pool p --size 64M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let data = noise(3, MIB);
    fs::write(d.path("data"), &data).expect("written");
    d.write("v", &d.path("data"));
    for grown in [66, 80] {
        d.ok(&format!("pool resize p --grow 0:{grown}M"));
        assert_eq!(d.json("pool show p")["capacity"], grown << 20);
        assert_eq!(fs::metadata(&disk).expect("it is there").len(), (grown << 20) + 4096);
    }
    d.ok("volume resize v 80M");
    d.stop();
    d.start();
    assert_eq!(faults(&d), Vec::<Value>::new());
    assert!(d.read("v", MIB) == data);
    refused(&d, "pool delete p", 4, &["still holds volumes"]);
    d.ok("map delete all v");
    d.ok("volume delete v --yes");
    d.ok("pool delete p");
    let end = fs::read(&disk).expect("read")[80 << 20..].to_vec();
    assert!(end.iter().all(|b| *b == 0), "its label is gone with it");
}

#[test]
fn a_lost_store_does_not_deal_space_out_anew() {
    let d = Daemon::new("lost-store");
    let conf = |volumes: &[&str]| {
        let disk = d.path("disk");
        let mut text = format!(
            "data_dir = '{0}'\n[[target]]\nname = 'srp0'\nlisten = ['127.0.0.1:0']\n\
             [[pool]]\nname = 'plain'\ndevices = [{{ kind = 'file', path = '{disk}', size = '64M' }}]\n\
             [[host]]\nname = 'all'\nallow_any = true\n",
            d.dir.display()
        );
        for v in volumes {
            text += &format!("[[volume]]\nname = '{v}'\npool = 'plain'\nsize = '8M'\n");
        }
        for v in volumes {
            let lun = if *v == "a" { 1 } else { 2 };
            text += &format!("[[map]]\nhost = 'all'\nvolume = '{v}'\nlun = {lun}\n");
        }
        fs::write(d.path("weir.toml"), text).expect("written");
    };
    conf(&["b"]);
    let serve = |d: &Daemon| {
        let log =
            fs::OpenOptions::new().create(true).append(true).open(d.path("log")).expect("a log");
        Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(["serve", "--config", &d.path("weir.toml"), "--cores", "0", "--poll", "sleep"])
            .args(["--buffer-memory", "64M"])
            .env_clear()
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(log)
            .spawn()
            .expect("weir serve runs")
    };
    let mut first = serve(&d);
    d.wait();
    conf(&["a", "b"]);
    d.ok(&format!("apply {}", d.path("weir.toml")));
    fs::write(d.path("A"), [b'A'; 4096]).expect("written");
    fs::write(d.path("B"), [b'B'; 4096]).expect("written");
    d.write("a", &d.path("A"));
    d.write("b", &d.path("B"));
    let stop = |c: &mut std::process::Child| {
        assert!(Command::new("kill").arg(c.id().to_string()).status().is_ok_and(|s| s.success()));
        c.wait().expect("its end")
    };
    assert!(stop(&mut first).success(), "{}", d.log());
    let was = fs::read(d.path("disk")).expect("read");
    // Everything that the node knew is gone, the configuration file and the devices are there.
    for name in ["weir.redb", "config.json", "weir.lock"] {
        drop(fs::remove_file(d.path(name)));
    }
    let mut second = serve(&d);
    d.wait();
    // It serves, without what it cannot have: also when it has tried again.
    d.tried_again();
    let told = faults(&d);
    let of = |object: &str| told.iter().find(|f| f["object"] == object).map(Value::to_string);
    let pool = of("declared/pool/plain").expect("a fault");
    assert!(pool.contains("is not empty") && pool.contains("weir"), "{pool}");
    assert!(of("declared/volume/a").is_some() && of("declared/map/all/b").is_some(), "{told:?}");
    assert_eq!(d.json("volume list"), serde_json::json!([]));
    assert!(stop(&mut second).success(), "{}", d.log());
    assert!(fs::read(d.path("disk")).expect("read") == was);
}

/// A loop device on a file, which goes with its scope.
pub(crate) struct Loop(pub(crate) String);

impl Loop {
    pub(crate) fn new(file: &Path) -> Result<Loop, String> {
        let out = Command::new("losetup").args(["-f", "--show"]).arg(file).output();
        let out = out.map_err(|e| format!("losetup: {e}"))?;
        match out.status.success() {
            true => Ok(Loop(String::from_utf8_lossy(&out.stdout).trim().to_owned())),
            false => Err(String::from_utf8_lossy(&out.stderr).into_owned()),
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        drop(Command::new("losetup").args(["-d", &self.0]).status());
    }
}

#[test]
fn block_devices_that_others_have_are_refused() {
    let mut d = Daemon::new("blocks");
    let image = PathBuf::from(d.path("image"));
    fs::File::create(&image).and_then(|f| f.set_len(64 << 20)).expect("a file");
    let disk = match Loop::new(&image) {
        Ok(l) => l,
        Err(e) => return eprintln!("skipped: no loop devices: {e}"),
    };
    d.start();
    // The file below a device is in use by it.
    refused(&d, &format!("pool create p --device file:{}", image.display()), 4, &[&disk.0]);
    // So is a device that another is made of, though nobody has it open.
    let upper = Loop::new(Path::new(&disk.0)).expect("a loop device");
    for line in [
        format!("pool create p --device {}", disk.0),
        format!("pool create p --raid 0 --device {} --overwrite data", disk.0),
        format!("volume adopt v --path {}", disk.0),
    ] {
        refused(&d, &line, 4, &[&upper.0, "is made of it"]);
    }
    drop(upper);
    // By whatever node that was made.
    let by = d.path("by");
    let number = disk.0.trim_start_matches("/dev/loop").to_owned();
    if Command::new("mknod").args([&by, "b", "7", &number]).status().is_ok_and(|s| s.success())
        && let Ok(upper) = Loop::new(Path::new(&by))
    {
        fs::remove_file(&by).expect("it was there");
        refused(&d, &format!("pool create p --device {}", disk.0), 4, &[&upper.0, "is made of it"]);
    }
    // So is a file whose other name is gone.
    let (file, other) = (d.path("file"), d.path("other"));
    fs::File::create(&file).and_then(|f| f.set_len(64 << 20)).expect("a file");
    fs::hard_link(&file, &other).expect("another name");
    let upper = Loop::new(Path::new(&other)).expect("a loop device");
    fs::remove_file(&other).expect("it was there");
    refused(&d, &format!("pool create p --device file:{file}"), 4, &[&upper.0, "is made of it"]);
    drop(upper);
    // Who locks it for a moment only looks what it is; who does for long uses it.
    let look = fs::File::open(&disk.0).expect("it is there");
    look.lock_shared().expect("it is free");
    refused(&d, &format!("pool create p --device {}", disk.0), 4, &["has it locked"]);
    std::thread::scope(|scope| {
        let before = d.log().len();
        let makes = scope.spawn(|| d.ok(&format!("pool create p --device {}", disk.0)));
        d.until("it waits", || d.log()[before..].contains("waiting for it"));
        look.unlock().expect("it was locked");
        makes.join().expect("it is made");
    });
    d.ok("pool delete p");
    let made = Command::new("mkfs.ext4").args(["-q", &disk.0]).status();
    let mount = d.path("mnt");
    fs::create_dir(&mount).expect("a directory");
    let mounted = || Command::new("mount").args([&disk.0, &mount]).status();
    if made.is_ok_and(|s| s.success()) && mounted().is_ok_and(|s| s.success()) {
        fs::write(format!("{mount}/precious"), b"precious").expect("written");
        d.ok(&format!("pool create safe --raid 0 --device file:{}:64M", d.path("disk0")));
        for line in [
            format!("pool create p --device {}", disk.0),
            format!("pool create p --raid 0 --device {} --overwrite ext4", disk.0),
            format!("pool add safe --device {} --overwrite ext4", disk.0),
            format!("pool replace safe 0 --device {} --overwrite ext4", disk.0),
            format!("pool attach safe --device {}", disk.0),
            format!("volume adopt v --path {}", disk.0),
        ] {
            refused(&d, &line, 4, &["is in use", "mounted at", "mnt"]);
        }
        assert!(Command::new("umount").arg(&mount).status().is_ok_and(|s| s.success()));
        let line = format!("pool create p --device {}", disk.0);
        refused(&d, &line, 4, &["ext4", "--overwrite ext4"]);
        d.ok(&format!("{line} --overwrite ext4"));
    } else {
        eprintln!("skipped in part: nothing can be mounted");
        d.ok(&format!("pool create p --device {}", disk.0));
    }
    assert_eq!(d.json("pool show p")["capacity"], 63 << 20, "the last MiB has the label");
    // While it is configured nobody else gets it, by whatever node.
    let mounted = mounted().is_ok_and(|s| s.success());
    assert!(!mounted, "the kernel does not mount it");
    let node = d.path("node");
    let number = disk.0.trim_start_matches("/dev/loop").to_owned();
    if Command::new("mknod").args([&node, "b", "7", &number]).status().is_ok_and(|s| s.success()) {
        refused(
            &d,
            &format!("pool create q --device block:{node} --overwrite weir"),
            4,
            &["pool `p`"],
        );
    }
    d.ok("pool delete p");
    d.stop();
}

/// A loop device takes what it is made of beside whoever has that.
#[test]
fn a_loop_device_of_what_somebody_has_is_refused() {
    let mut d = Daemon::new("loops-of");
    let disk = d.path("disk");
    fs::File::create(&disk).and_then(|f| f.set_len(64 << 20)).expect("a file");
    if let Err(e) = Loop::new(Path::new(&disk)) {
        return eprintln!("skipped: no loop devices: {e}");
    }
    d.start();
    d.ok(&format!("pool create thin --device dir:{}", d.path("dir")));
    d.ok("volume create v --pool thin --size 16M");
    let (image, open) = (d.path("image"), d.path("open"));
    for path in [&image, &open] {
        fs::File::create(path).and_then(|f| f.set_len(16 << 20)).expect("a file");
    }
    d.ok(&format!("volume adopt w --path {image}"));
    d.ok(&format!("pool create p --device file:{disk}"));
    let is_volume = |p: &PathBuf| fs::metadata(p).is_ok_and(|m| m.len() >= 16 << 20);
    let files = fs::read_dir(d.path("dir")).expect("it is there").flatten().map(|f| f.path());
    let file = files.into_iter().find(is_volume).expect("the volume's file");
    let file = file.display().to_string();
    let writer = fs::OpenOptions::new().write(true).open(&open).expect("it is there");
    let lines = |at: &str| {
        [
            format!("pool create q --device {at}"),
            format!("pool create q --raid 0 --device {at} --overwrite data,weir"),
            format!("volume adopt x --path {at}"),
        ]
    };
    for (of, owner) in [(&file, "volume `v`"), (&image, "volume `w`"), (&disk, "pool `p`")] {
        let one = Loop::new(Path::new(of)).expect("a loop device");
        // As does one of a part of it, and one of that.
        let part = Command::new("losetup").args(["-f", "--show", "-o", "1048576"]).arg(of).output();
        let part = part.expect("losetup runs");
        let part = Loop(String::from_utf8_lossy(&part.stdout).trim().to_owned());
        let two = Loop::new(Path::new(&part.0)).expect("a loop device");
        for at in [&one.0, &two.0] {
            for line in lines(at) {
                refused(&d, &line, 4, &["is made of", owner]);
            }
        }
    }
    drop(writer);
    // So is one beside another one of the same file, but for another part of it.
    let shared = d.path("shared");
    fs::File::create(&shared).and_then(|f| f.set_len(64 << 20)).expect("a file");
    let part = |from: &str, len: &str| {
        let out = Command::new("losetup")
            .args(["-f", "--show", "-o", from, "--sizelimit", len])
            .arg(&shared)
            .output();
        Loop(String::from_utf8_lossy(&out.expect("losetup runs").stdout).trim().to_owned())
    };
    let [one, two, half] = [("0", "33554432"), ("16777216", "33554432"), ("33554432", "33554432")]
        .map(|(o, l)| part(o, l));
    d.ok(&format!("volume adopt first --path {}", one.0));
    for line in lines(&two.0) {
        refused(&d, &line, 4, &["is made of", "volume `first`"]);
    }
    d.ok(&format!("volume adopt second --path {}", half.0));
    d.ok("volume delete first --yes");
    d.ok("volume delete second --yes");
    drop((two, half));
    // Nor does a volume come back on one whose file is another volume by now, in whichever order.
    d.ok(&format!("volume adopt first --path {}", one.0));
    d.stop();
    let small = d.path("small");
    fs::File::create(&small).and_then(|f| f.set_len(16 << 20)).expect("a file");
    let attach = |args: &[&str]| {
        let status = Command::new("losetup").args(args).status();
        status.is_ok_and(|s| s.success())
    };
    assert!(attach(&["-d", &one.0]));
    // Somebody else may get a device of its number, for a while.
    d.until("it is one of another file", || attach(&[&one.0, &small]));
    d.start();
    d.ok(&format!("volume adopt second --path {shared}"));
    assert!(attach(&["-d", &one.0]));
    // It is looked at again and again.
    d.until("it is attached", || attach(&[&one.0, &shared]));
    let seen = |d: &Daemon| d.json("status")["faults"].to_string().matches("is made of").count();
    d.until("it is seen", || seen(&d) == 1);
    d.stop();
    d.start();
    d.until("it is seen again", || seen(&d) == 1);
    assert_eq!(d.json("status")["faults"].as_array().map(Vec::len), Some(1));
    d.ok("volume delete first --yes");
    d.ok("volume delete second --yes");
    drop(one);
    // A volume that is not up is one all the same, by whichever name and wherever its file is now; its name alone is nothing.
    let (moved, linked) = (d.path("moved"), d.path("linked"));
    d.stop();
    fs::rename(&image, &moved).expect("moved");
    fs::File::create(&image).and_then(|f| f.set_len(8 << 20)).expect("another file");
    d.start();
    fs::hard_link(&moved, &linked).expect("another name");
    let tells =
        fs::metadata(&moved).is_ok() && !d.json("volume show w")["layout"]["identity"].is_null();
    for at in [&moved, &linked] {
        if tells {
            for line in lines(&format!("file:{at}")).iter().take(2) {
                refused(&d, line, 4, &["volume `w`"]);
            }
            refused(&d, &format!("volume adopt x --path {at}"), 4, &["volume `w`"]);
        }
    }
    let of = Loop::new(Path::new(&linked)).expect("a loop device");
    if tells {
        refused(&d, &format!("volume adopt x --path {}", of.0), 4, &["is made of", "volume `w`"]);
    }
    fs::remove_file(&image).expect("it is there");
    fs::rename(&moved, &image).expect("moved back");
    // Unless it has come up by now.
    for line in lines(&of.0) {
        refused(&d, &line, 4, &["volume `w`"]);
    }
    drop(of);
    d.until("it is up", || d.json("status")["faults"].as_array().is_some_and(Vec::is_empty));
    // While its pool is not up the directory tells.
    d.ok(&format!("pool create pair --device dir:{} --device dir:{}", d.path("a"), d.path("b")));
    for n in 0..4 {
        d.ok(&format!("volume create n{n} --pool pair --size 16M"));
    }
    d.stop();
    let files = fs::read_dir(d.path("b")).expect("it is there").flatten().map(|f| f.path());
    let file = files.into_iter().find(is_volume).expect("a volume's file").display().to_string();
    let away = d.path("away");
    fs::rename(d.path("a"), &away).expect("moved");
    std::os::unix::fs::symlink(d.path("b"), d.path("link")).expect("a link");
    let by_link = file.replace(&d.path("b"), &d.path("link"));
    d.start();
    for path in [&file, &by_link] {
        refused(&d, &format!("pool create q --device file:{path}"), 4, &["pool `pair`"]);
        refused(&d, &format!("volume adopt x --path {path}"), 4, &["pool `pair`"]);
    }
    let of = Loop::new(Path::new(&file)).expect("a loop device");
    for line in lines(&of.0) {
        refused(&d, &line, 4, &["is made of", "`pair`"]);
    }
    drop(of);
    refused(&d, &format!("pool import --device file:{file}"), 4, &["pool `pair`"]);
    // Also where the other one is now.
    let files = fs::read_dir(&away).expect("it is there").flatten().map(|f| f.path());
    let other = files.into_iter().find(is_volume).expect("a volume's file").display().to_string();
    refused(&d, &format!("volume adopt x --path {other}"), 4, &["pool `pair`"]);
    // A copy of its directory is none of it, and what strangers put beside a file is nothing.
    let (copy, open) = (d.path("copy"), d.path("pipe"));
    let copied = Command::new("cp").args(["-a", &d.path("b"), &copy]).status();
    assert!(copied.is_ok_and(|s| s.success()));
    fs::create_dir(&open).expect("a directory");
    let made = Command::new("mkfifo").arg(format!("{open}/.weir-pool")).status();
    assert!(made.is_ok_and(|s| s.success()));
    fs::File::create(format!("{open}/disk")).and_then(|f| f.set_len(64 << 20)).expect("a file");
    d.ok(&format!("volume adopt y --path {}", file.replace(&d.path("b"), &copy)));
    d.ok(&format!("pool create q --device file:{open}/disk"));
    d.ok("pool delete q");
    fs::rename(&away, d.path("a")).expect("moved");
    d.until("it is up", || d.json("status")["faults"].as_array().is_some_and(Vec::is_empty));
    d.stop();
}

/// The file of a loop device is known by its name in the place where that was made.
#[test]
fn a_loop_device_of_another_container_is_none_of_ours() {
    let mut d = Daemon::new("loops-elsewhere");
    let (dir, ours) = (d.path("data"), d.path("data/disk"));
    fs::create_dir(&dir).expect("a directory");
    fs::File::create(&ours).and_then(|f| f.set_len(64 << 20)).expect("a file");
    let script = "mount -t tmpfs none \"$0\" && truncate -s 64M \"$0/disk\" && losetup -f --show \"$0/disk\"";
    let made = Command::new("unshare").args(["-m", "sh", "-c", script, &dir]).output();
    let theirs = match made {
        Ok(out) if out.status.success() => {
            Loop(String::from_utf8_lossy(&out.stdout).trim().to_owned())
        }
        other => return eprintln!("skipped: no loop devices or mounts: {other:?}"),
    };
    d.start();
    d.ok(&format!("pool create p --device file:{ours}"));
    drop(theirs);
    d.stop();
}

#[test]
fn late_writes_of_a_killed_daemon_end_before_the_next_one_serves() {
    let mut d = Daemon::new("late-writes");
    let disks = match can_mount() {
        Ok(()) => Disks::mount(&d.dir, 1, 64 << 20, Nature::Honest, 1).expect("a disk"),
        Err(e) => return eprintln!("skipped: {e}"),
    };
    let disk = match Loop::new(&disks.files()[0]) {
        Ok(l) => l,
        Err(e) => return eprintln!("skipped: no loop devices: {e}"),
    };
    let direct = Command::new("losetup").args(["--direct-io=on", &disk.0]).status();
    drop(direct);
    d.start();
    d.ok(&format!("pool create safe --raid 0 --device {}", disk.0));
    d.ok("volume create v --pool safe --size 8M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    fs::write(d.path("data"), noise(5, MIB)).expect("written");
    d.write("v", &d.path("data"));
    let switch = disks.switch();
    loop {
        let target = d.target();
        switch.hold();
        let mut writer = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(["write", "--target", &target, "--volume", "v", "--input", &d.path("data")])
            .env_clear()
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("weir write runs");
        d.until("a write is under way", || switch.held() > 0);
        let killed = Command::new("kill").args(["-9", &d.pid().to_string()]).status();
        assert!(killed.is_ok_and(|s| s.success()));
        let begun = Instant::now();
        let threads = || fs::read_dir(format!("/proc/{}/task", d.pid())).map_or(0, Iterator::count);
        while threads() > 1 && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(writer.kill());
        writer.wait().expect("its end");
        if threads() <= 1 {
            d.kill();
            break;
        }
        // Its writes go on without a process, but no process ends before its flushes have.
        switch.answer();
        d.kill();
        d.start();
        d.until("the pool opens", || faults(&d).is_empty());
    }
    assert!(switch.held() > 0, "the disk has the write still");
    d.start();
    let text = d.json("status")["faults"].to_string();
    assert!(text.contains("pool/safe") && text.contains(&disk.0), "{text}");
    assert!(text.contains("still under way"), "{text}");
    assert!(d.log().contains("waiting for it"), "{}", d.log());
    switch.answer();
    d.until("the pool opens", || faults(&d).is_empty());
    assert!(d.read("v", MIB) == noise(5, MIB));
    d.stop();
}

/// What is declared in the file and was changed by a command since stops at most itself, not the node.
#[test]
fn a_declared_volume_that_was_grown_by_hand_does_not_keep_the_node_down() {
    for grow in ["volume resize v 16M", "pool resize plain --grow 0:128M"] {
        let mut d = Daemon::new("declared-declared");
        let text = format!(
            "[[pool]]\nname = 'plain'\ndevices = [{{ kind = 'file', path = '{}', size = '64M' }}]\n\
             [[volume]]\nname = 'v'\npool = 'plain'\nsize = '8M'\n",
            d.path("disk")
        );
        fs::write(d.path("weir.toml"), text).expect("written");
        d.start();
        d.ok(grow);
        d.stop();
        d.start_only();
        // Told as long as it is so, and not of the rest.
        d.wait();
        let faults = d.json("status")["faults"].to_string();
        assert!(faults.contains("declared/"), "{faults}");
        d.ok("volume create other --pool plain --size 1M");
    }
}

/// A reactor goes on while a file system answers nothing: handing requests over, asking for holes, and closing wait for it.
#[test]
fn a_reactor_does_not_wait_for_a_file_system_that_hangs() {
    let dir = std::env::temp_dir().join(format!("weir-hangs-{}", std::process::id()));
    let disks = match can_mount() {
        Ok(()) => Disks::mount(&dir, 1, 64 << 20, Nature::Honest, 1).expect("a disk"),
        Err(e) => return eprintln!("skipped: {e}"),
    };
    let (switch, file) = (disks.switch(), disks.files()[0].clone());
    let (tell, told) = channel();
    let hang = switch.clone();
    let reactor = std::thread::spawn(move || {
        let ring = Ring::new().expect("a ring");
        let reactor = Reactor::new(Rc::new(ring.clone()));
        reactor.block_on(PollMode::Sleep, async move {
            let disk = FileDisk::open(&ring, &file, OpenOptions::default()).expect("a disk");
            let disk: Rc<dyn Disk> = Rc::new(disk);
            let other = Opened::open(&file, OpenOptions::default()).expect("open");
            hang.hold();
            let write = |i: u64| {
                let (disk, buf) = (disk.clone(), Slice::heap(4096));
                let op = DiskOp::Write { offset: i * 4096, buf, fua: i.is_multiple_of(2) };
                spawn(async move { run(&*disk, op).await })
            };
            // More than a file of this kind is given at once.
            let writes: Vec<_> = (0..100).map(write).collect();
            let (flushed, asked) = (disk.clone(), disk.clone());
            let flush = spawn(async move { run(&*flushed, DiskOp::Flush).await });
            let holes = spawn(async move { asked.extent(0, 1 << 20).await });
            while hang.held() == 0 {
                sleep(MILLIS).await;
            }
            sleep(50 * MILLIS).await;
            // Closing asks the file system whether all is well.
            drop(FileDisk::of(&ring, other));
            assert!(!writes.iter().any(|w| w.is_finished()), "nothing is answered");
            drop(disk);
            tell.send(()).expect("somebody listens");
            for w in writes {
                assert_eq!(w.await, Some(Ok(())));
            }
            assert_eq!(flush.await, Some(Ok(())));
            holes.await.expect("an answer");
        });
    });
    let went_on = told.recv_timeout(Duration::from_secs(30));
    switch.answer();
    reactor.join().expect("its end");
    drop(disks);
    drop(fs::remove_dir_all(&dir));
    went_on.expect("the reactor went on");
}

/// A device hangs while the daemon starts: volumes of other pools are served, and its own come when it answers. So with one whose
/// devices hang while it is open.
#[test]
fn a_disk_that_hangs_keeps_nobody_else_waiting() {
    let mut d = Daemon::new("hung-disk");
    let disks = match can_mount() {
        Ok(()) => Disks::mount(&d.dir, 1, 64 << 20, Nature::Honest, 1).expect("a disk"),
        Err(e) => return eprintln!("skipped: {e}"),
    };
    d.start();
    d.ok(&format!("pool create bad --raid 0 --device file:{}", disks.files()[0].display()));
    d.ok(&format!("pool create good --raid 0 {}", d.devices(1, "64M")));
    d.ok("volume create b --pool bad --size 8M");
    d.ok("volume create g --pool good --size 8M");
    d.ok("host create all --allow-any");
    d.ok("map create all b");
    d.ok("map create all g");
    let (of_b, of_g) = (noise(6, MIB), noise(7, MIB));
    fs::write(d.path("of-b"), &of_b).expect("written");
    fs::write(d.path("of-g"), &of_g).expect("written");
    d.write("b", &d.path("of-b"));
    d.write("g", &d.path("of-g"));
    d.stop();
    let switch = disks.switch();
    switch.hold();
    d.start_only();
    d.wait_until(|_| true);
    assert!(d.read("g", MIB) == of_g, "what the other pool has");
    assert!(faults(&d).iter().any(|f| f["object"] == "pool/bad"), "{:?}", faults(&d));
    d.ok("volume create more --pool good --size 8M");
    switch.answer();
    d.until("the pool is opened", || faults(&d).is_empty());
    assert!(d.read("b", MIB) == of_b, "what it has itself");
    // Again while it is in use.
    switch.hold();
    let hung = crate::common::command(
        &d,
        &format!("write --target {} --volume b --input {} --bs 64k", d.target(), d.path("of-g"),),
    );
    let writer = std::thread::spawn(hung);
    let begun = Instant::now();
    while switch.held() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "a write is under way");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(d.read("g", MIB) == of_g);
    d.ok("volume create still-more --pool good --size 8M");
    let held = faults(&d).iter().any(|f| f["object"].to_string().contains("reactor/"));
    assert!(!held, "{:?}", faults(&d));
    switch.answer();
    writer.join().expect("its end");
    d.until("all is well", || faults(&d).is_empty());
    d.stop();
}

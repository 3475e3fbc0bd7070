//! What `weir attach` has of the kernel's, and by which names: a number goes from one attachment to another, a directory has
//! several names, and an attachment may be killed while it is made. For root with /dev/fuse and loop devices, as `attach`.

use crate::attach::{EXCLUSIVE, Target, can, run, wait_for};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A pool of memory with these volumes, which every host sees.
fn seen_by_all(volumes: &[&str]) -> Target {
    let mut t = String::from(
        "[[pool]]\nname = \"mem\"\ndevices = [{ kind = \"ram\", size = \"256M\" }]\n\
         [[host]]\nname = \"anyone\"\nallow_any = true\n",
    );
    for v in volumes {
        t += &format!(
            "[[volume]]\nname = \"{v}\"\npool = \"mem\"\nsize = \"32M\"\n\
             [[map]]\nhost = \"anyone\"\nvolume = \"{v}\"\n"
        );
    }
    Target::declared(&t)
}

fn device(a: &Value) -> String {
    a["device"].as_str().unwrap().to_owned()
}

/// The kernel frees the device of a killed attachment, whose files stay, and gives it to the next.
fn another_gets_it(target: &Target) -> Option<(Value, Value)> {
    let old = target.attach("old --name it-old");
    run("kill", &["-9", &old["pid"].to_string()]);
    wait_for("the end of the process", || target.ok("attach --list").contains("has ended"));
    run("losetup", &["-d", &device(&old)]);
    let backing = format!("/sys/block/{}/loop/backing_file", &device(&old)["/dev/".len()..]);
    wait_for("the free device", || {
        !fs::read_to_string(&backing).is_ok_and(|b| b.contains("it-old"))
    });
    let mut others = Vec::new();
    for n in 0..6 {
        let new = target.attach(&format!("new --name it-new-{n}"));
        if device(&new) == device(&old) {
            for other in others {
                target.ok(&format!("detach {other}"));
            }
            return Some((old, new));
        }
        others.push(format!("it-new-{n}"));
    }
    // Another test has it.
    for name in others.iter().map(String::as_str).chain(["it-old"]) {
        target.ok(&format!("detach {name}"));
    }
    None
}

#[test]
fn the_name_of_a_killed_attachment_is_never_another_s_disk() {
    if !can() {
        return;
    }
    let target = seen_by_all(&["old", "new"]);
    let (_, new) = (0..5).find_map(|_| another_gets_it(&target)).expect("the same device");
    let old = fs::read_link("/dev/weir/it-old");
    assert!(old.is_err(), "{old:?} is volume new");
    // In use or not, it is none of the old one's.
    let used = fs::File::open(device(&new)).unwrap();
    target.ok("detach it-old");
    let name = new["name"].as_str().unwrap();
    assert_eq!(fs::read_link(format!("/dev/weir/{name}")).unwrap(), Path::new(&device(&new)));
    let from = format!("if={}", device(&new));
    run("dd", &[&from, "of=/dev/null", "bs=64k", "count=4", "iflag=direct"]);
    let busy = target.fails(&format!("detach {name}"), 4);
    assert!(busy.contains("open"), "{busy}");
    drop(used);
    target.ok(&format!("detach {name}"));
    target.all_gone(&new);
}

/// The kernel calls a device free as long as it is being given a file, which takes as long as the target of that.
#[test]
fn a_device_that_somebody_is_getting_keeps_nobody_from_another() {
    if !can() {
        return;
    }
    let target = seen_by_all(&["taken"]);
    let held = (0..100).find_map(|_| {
        let free = run("losetup", &["--find"]);
        let file = fs::OpenOptions::new().read(true).custom_flags(EXCLUSIVE).open(free.trim());
        let name = &free.trim()["/dev/".len()..];
        let is_free = !Path::new(&format!("/sys/block/{name}/loop/backing_file")).exists();
        file.ok().filter(|_| is_free)
    });
    let held = held.expect("a device of our own");
    let a = target.attach("taken");
    drop(held);
    target.ok("detach taken");
    target.all_gone(&a);
}

/// udev looks at every disk that has changed, and a program that is being started has all files of the one that starts it.
#[test]
fn who_has_a_disk_open_for_a_moment_does_not_keep_it() {
    if !can() {
        return;
    }
    let target = seen_by_all(&["looked-at"]);
    for by_signal in [false, true] {
        let a = target.attach("looked-at");
        let looks = fs::File::open(device(&a)).unwrap();
        let looker = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(700));
            drop(looks);
        });
        match by_signal {
            true => drop(run("kill", &[&a["pid"].to_string()])),
            false => drop(target.ok("detach looked-at")),
        }
        looker.join().unwrap();
        target.all_gone(&a);
    }
}

/// /var/run is a link to /run.
#[test]
fn the_run_directory_may_go_by_another_name() {
    if !can() {
        return;
    }
    let target = seen_by_all(&["linked"]);
    fs::create_dir(target.dir.join("real")).unwrap();
    std::os::unix::fs::symlink("real", target.dir.join("run")).unwrap();
    for end in ["", " --force"] {
        let a = target.attach("linked");
        target.ok(&format!("detach linked{end}"));
        target.all_gone(&a);
    }
}

#[test]
fn by_force_an_attachment_that_is_being_made_is_ended() {
    if !can() {
        return;
    }
    let target = seen_by_all(&["making"]);
    // It takes connections and says nothing.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = mute.local_addr().unwrap();
    let mut maker = target.begin(&format!("attach making --target {at} --foreground"));
    wait_for("its files", || target.dir.join("run/making/disk").exists());
    let busy = target.fails("detach making", 4);
    assert!(busy.contains("is not finished"), "{busy}");
    target.ok("detach making --force");
    // Its first thread may end before the others.
    wait_for("its end", || maker.try_wait().unwrap().is_some());
    // The name is free for another.
    let a = target.attach("making");
    target.ok("detach making");
    target.all_gone(&a);
}

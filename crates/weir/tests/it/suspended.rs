//! A pool that cannot be written any more goes on by a command: the real program on a disk without space.

use crate::common::lossy::{Disks, Nature, can_mount};
use crate::common::{Daemon, noise, texts, weir};

const MIB: usize = 1 << 20;

#[test]
fn a_suspended_pool_says_why_and_goes_on_by_a_command() {
    let mut d = Daemon::new("suspended");
    let disks = match can_mount() {
        Ok(()) => Disks::mount(&d.dir, 1, 64 << 20, Nature::Honest, 1).expect("a disk"),
        Err(e) => return eprintln!("skipped: {e}"),
    };
    d.start();
    d.ok(&format!("pool create safe --raid 0 --device file:{}", disks.files()[0].display()));
    d.ok("host create all --allow-any");
    for volume in ["v", "w"] {
        d.ok(&format!("volume create {volume} --pool safe --size 8M"));
        d.ok(&format!("map create all {volume}"));
    }
    let (old, new) = (noise(1, MIB), noise(2, MIB));
    std::fs::write(d.path("old"), &old).expect("written");
    std::fs::write(d.path("new"), &new).expect("written");
    d.write("v", &d.path("old"));
    let state = || d.json("pool show safe")["live"]["state"].as_str().map(str::to_owned);
    let resume = || texts(&weir(&d.dir, &["pool", "resume", "safe", "--json"]));
    let fault = || d.json("status")["faults"].to_string();
    assert_eq!(state().as_deref(), Some("healthy"));
    let (done, refused) = resume();
    assert!(done.is_empty() && refused.contains("error"), "nothing is to go on: {refused}");

    disks.switch().fill(true);
    let (target, file) = (d.target(), d.path("new"));
    let args = ["write", "--target", &target, "--volume", "w", "--input", &file];
    assert!(!weir(&d.dir, &args).status.success(), "there is no room");
    d.until("it is suspended", || state().as_deref() == Some("suspended"));
    let told = fault();
    // Not that the pool is full, which it is not.
    assert!(
        told.contains("device 0 is failed: the file system below it has no space left"),
        "{told}"
    );
    assert!(told.contains("weir pool resume safe") && !told.contains("pool_full"), "{told}");
    assert!(d.read("v", MIB) == old, "it is read");
    let (done, refused) = resume();
    assert!(done.is_empty() && !refused.is_empty(), "still without space: {done}");
    assert_eq!(state().as_deref(), Some("suspended"));
    assert!(d.read("v", MIB) == old, "it is read after that, too");

    disks.switch().fill(false);
    d.ok("pool resume safe");
    assert_eq!(state().as_deref(), Some("healthy"));
    assert_eq!(fault(), "[]");
    d.write("w", &d.path("new"));
    d.stop();
    d.start();
    assert!(d.read("v", MIB) == old && d.read("w", MIB) == new);
    d.stop();
}

/// A pool cannot write down that it has one more device; once it can, that one is there, and after a restart as well.
#[test]
fn a_device_that_comes_while_another_has_no_room_is_not_lost() {
    let mut d = Daemon::new("suspended-add");
    let disks = match can_mount() {
        Ok(()) => Disks::mount(&d.dir, 1, 64 << 20, Nature::Honest, 1).expect("a disk"),
        Err(e) => return eprintln!("skipped: {e}"),
    };
    d.start();
    d.ok(&format!("pool create safe --raid 0 --device file:{}", disks.files()[0].display()));
    d.ok("volume create v --pool safe --size 8M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let data = noise(1, MIB);
    std::fs::write(d.path("data"), &data).expect("written");
    d.write("v", &d.path("data"));
    disks.switch().fill(true);
    d.fails(&format!("pool add safe --device file:{}:64M", d.path("new")), 6);
    let state = || d.json("pool show safe")["live"]["state"].as_str().map(str::to_owned);
    d.until("it is suspended", || state().as_deref() == Some("suspended"));
    disks.switch().fill(false);
    d.ok("pool resume safe");
    assert_eq!(state().as_deref(), Some("healthy"));
    let devices =
        |d: &Daemon| d.json("pool show safe")["live"]["devices"].as_array().map_or(0, Vec::len);
    let of_it = devices(&d);
    assert!(of_it == 1 || std::fs::exists(d.path("new")).expect("looked"), "it is used");
    d.write("v", &d.path("data"));
    d.stop();
    d.start();
    assert_eq!(
        (d.json("pool show safe")["live"]["state"].as_str(), devices(&d)),
        (Some("healthy"), of_it)
    );
    assert!(d.read("v", MIB) == data);
    d.stop();
}

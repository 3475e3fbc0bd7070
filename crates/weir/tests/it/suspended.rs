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

//! Devices that become shorter under a running pool.

use crate::common::Daemon;
use std::fs::File;

fn set_len(path: &str, len: u64) {
    let file = File::options().write(true).open(path).expect("the device");
    file.set_len(len).expect("truncated");
}

fn faults(d: &Daemon) -> String {
    d.json("status")["faults"].to_string()
}

/// A daemon with a pool on two files; one of them is truncated, and gets its length back.
fn a_file_is_truncated(name: &str, how: &str) {
    let mut d = Daemon::new(name);
    d.start();
    d.ok(&format!("pool create p {how} {}", d.devices(2, "64M")));
    d.ok("volume create v --size 16M");
    // It has been looked at.
    d.until("all is well", || faults(&d) == "[]");
    let disk = d.path("disk1");
    let had = std::fs::metadata(&disk).expect("the device").len();
    set_len(&disk, 1 << 20);
    d.until("it is a fault", || {
        let text = faults(&d);
        text.contains("\"pool/p\"") && text.contains("/disk1` has 1 MiB, and had 64")
    });
    d.until("it is told", || {
        d.ok("events").lines().any(|l| l.contains("fault.began") && l.contains("made shorter"))
    });
    set_len(&disk, had);
    d.until("it has its length again", || faults(&d) == "[]");
    d.stop();
}

#[test]
fn a_file_of_a_mirror_that_is_truncated_is_a_fault_of_that_device() {
    a_file_is_truncated("shorter-mirror", "--raid 1");
}

#[test]
fn a_file_of_a_plain_pool_that_is_truncated_is_a_fault_of_that_device() {
    a_file_is_truncated("shorter-plain", "");
}

#[test]
fn a_file_that_was_truncated_is_a_fault_after_a_restart() {
    let mut d = Daemon::new("shorter-restart");
    d.start();
    d.ok(&format!("pool create p --raid 1 {}", d.devices(2, "64M")));
    d.ok(&format!("pool create q --device file:{}:64M", d.path("plain0")));
    d.stop();
    for disk in ["disk1", "plain0"] {
        set_len(&d.path(disk), 1 << 20);
    }
    d.start();
    d.until("it is a fault of the protected pool", || {
        let text = faults(&d);
        text.contains("\"pool/p\"") && text.contains("/disk1` has 1 MiB, and had 64")
    });
    d.until("the plain pool does not start", || {
        let text = faults(&d);
        text.contains("\"pool/q\"") && text.contains("it has 1 MiB, and had 64")
    });
    d.stop();
}

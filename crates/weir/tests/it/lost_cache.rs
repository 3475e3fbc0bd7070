//! A disk that loses what it had taken, and says so by one flush.

use crate::common::lossy::{Disks, Nature, can_mount};
use crate::common::{Daemon, noise};
use crate::hung::uncached;
use std::process::Command;

const MIB: usize = 1 << 20;

/// Two hosts write to volumes of pools on one disk. The flush of the first is told of the loss. It is not sent again, and the second
/// host is told as well; then all goes on.
fn each_is_told(d: &Daemon, disks: &Disks, pools: [&str; 2]) {
    for ((host, port), pool) in [("a", "0:1"), ("b", "0:2")].into_iter().zip(pools) {
        d.ok(&format!("volume create {host} --pool {pool} --size 8M"));
        d.ok(&format!("host create {host} --port {port}"));
        d.ok(&format!("map create {host} {host}"));
    }
    let data = noise(7, MIB);
    std::fs::write(d.path("data"), &data).expect("written");
    let (target, file) = (d.target(), d.path("data"));
    let write = |host: &str, port: &str| {
        format!(
            "write --target {target} --volume {host} --initiator-port {port} --input {file} --bs 64k"
        )
    };
    d.ok(&write("b", "0:2"));
    disks.switch().lose_cache(0);
    let (_, said) = d.fails(&write("a", "0:1"), 1);
    assert!(said.contains("4/44/00"), "{said}");
    let (_, said) = d.fails(&write("b", "0:2"), 1);
    assert!(said.contains("4/44/00"), "{said}");
    // Both have gone at once: they may not have heard the answer.
    for (host, port) in [("a", "0:1"), ("b", "0:2")] {
        d.fails(&write(host, port), 1);
        d.ok(&write(host, port));
    }
}

fn lossy(d: &Daemon) -> Option<Disks> {
    match can_mount() {
        Ok(()) => Some(Disks::mount(&d.dir, 1, 64 << 20, Nature::Flushes, 1).expect("a disk")),
        Err(e) => {
            eprintln!("skipped: {e}");
            None
        }
    }
}

#[test]
fn a_lost_cache_of_a_plain_pool_is_told_to_each_host_by_its_next_flush() {
    let mut d = Daemon::new("lost-cache");
    let Some(disks) = lossy(&d) else { return };
    let Some(disk) = uncached(&disks) else { return };
    d.start();
    d.ok(&format!("pool create p --device {}", disk.0));
    each_is_told(&d, &disks, ["p", "p"]);
    d.stop();
}

/// A disk's cache is that of all its partitions.
#[test]
fn a_lost_cache_is_told_to_hosts_of_all_partitions_of_its_disk() {
    let mut d = Daemon::new("lost-cache-parts");
    let Some(disks) = lossy(&d) else { return };
    let Some(disk) = uncached(&disks) else { return };
    let parts = [1, 2].map(|n: u32| {
        // In sectors of 512 bytes: 25 MiB each, behind 1 MiB.
        let len = 25 << 11;
        let start = 2048 + (n - 1) * len;
        let made = Command::new("addpart")
            .args([&disk.0, &n.to_string(), &start.to_string(), &len.to_string()])
            .status();
        made.is_ok_and(|s| s.success()).then(|| format!("{}p{n}", disk.0))
    });
    let [Some(first), Some(second)] = &parts else {
        return eprintln!("skipped: no partitions of loop devices");
    };
    d.start();
    d.ok(&format!("pool create p --device {first}"));
    d.ok(&format!("pool create q --device {second}"));
    each_is_told(&d, &disks, ["p", "q"]);
    d.stop();
    for n in ["1", "2"] {
        drop(Command::new("delpart").args([&disk.0, n]).status());
    }
}

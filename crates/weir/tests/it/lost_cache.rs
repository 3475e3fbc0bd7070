//! A disk that loses what it had taken, and says so by one flush.

use crate::common::lossy::{Disks, Nature, can_mount};
use crate::common::{Daemon, noise};
use crate::hung::uncached;

const MIB: usize = 1 << 20;

/// Two hosts write to volumes of one disk. The flush of the first is told of the loss. It is not sent again, and the second host is
/// told as well; then all goes on.
#[test]
fn a_lost_cache_of_a_plain_pool_is_told_to_each_host_by_its_next_flush() {
    let mut d = Daemon::new("lost-cache");
    let disks = match can_mount() {
        Ok(()) => Disks::mount(&d.dir, 1, 64 << 20, Nature::Flushes, 1).expect("a disk"),
        Err(e) => return eprintln!("skipped: {e}"),
    };
    let (Some(disk), switch) = (uncached(&disks), disks.switch()) else { return };
    d.start();
    d.ok(&format!("pool create p --device {}", disk.0));
    for (host, port) in [("a", "0:1"), ("b", "0:2")] {
        d.ok(&format!("volume create {host} --pool p --size 8M"));
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
    switch.lose_cache(0);
    let (_, said) = d.fails(&write("a", "0:1"), 1);
    assert!(said.contains("4/44/00"), "{said}");
    let (_, said) = d.fails(&write("b", "0:2"), 1);
    assert!(said.contains("4/44/00"), "{said}");
    // Both have gone at once: they may not have heard the answer.
    for (host, port) in [("a", "0:1"), ("b", "0:2")] {
        d.fails(&write(host, port), 1);
        d.ok(&write(host, port));
    }
    d.stop();
}

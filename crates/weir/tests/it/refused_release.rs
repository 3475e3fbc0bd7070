//! `weir pool release` that is refused since the pool's disk is away: the pool, its volumes and its disk are there as before.

use crate::common::lossy::{Disks, Nature, can_mount};
use crate::common::{Daemon, noise};
use std::thread::sleep;
use std::time::{Duration, Instant};

const LEN: u64 = 128 << 20;

fn run(d: &Daemon, line: &str) -> (bool, String) {
    let args: Vec<&str> = line.split_whitespace().collect();
    let out = crate::common::weir(&d.dir, &args);
    let (stdout, stderr) = crate::common::texts(&out);
    (out.status.success(), format!("{stdout}{stderr}"))
}

#[test]
fn a_release_that_is_refused_leaves_the_pool_and_its_disk() {
    if let Err(why) = can_mount() {
        eprintln!("not run: {why}");
        return;
    }
    let mut d = Daemon::new("refused-release");
    let disks = Disks::mount(&d.dir, 1, LEN, Nature::Honest, 11).expect("a disk");
    let disk = disks.files()[0].display().to_string();
    d.start();
    d.ok(&format!("pool create safe --raid 0 --device file:{disk}"));
    d.ok("volume create v --pool safe --size 4M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let data = noise(3, 1 << 20);
    std::fs::write(d.path("data"), &data).expect("written");
    d.write("v", &d.path("data"));
    let alias = d.path("by-id");
    std::os::unix::fs::symlink(&disk, &alias).expect("another name");
    let create = format!("pool create other --raid 0 --device file:{alias} --overwrite weir,data");
    disks.switch().pull(0, true);
    let (begun, target) = (Instant::now(), d.target());
    while d.json("pool show safe")["live"]["state"] != "suspended" {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", d.json("pool show safe"));
        let input = d.path("data");
        run(&d, &format!("write --target {target} --volume v --input {input} --bs 64k"));
        sleep(Duration::from_millis(200));
    }
    let (released, text) = run(&d, "pool release safe --yes");
    assert!(!released, "the disk is away: {text}");
    disks.switch().pull(0, false);
    // It is a disk of this node's own pool all the time, by whichever name, and whether it is open again or not.
    let (made, text) = run(&d, &create);
    assert!(!made, "the disk of pool `safe` was overwritten: {text}");
    let (begun, out) = (Instant::now(), d.path("x"));
    let read = format!("read --target {target} --volume v --length 1M --output {out} --bs 64k");
    let is = loop {
        drop(std::fs::remove_file(&out));
        let (done, text) = run(&d, &read);
        if done {
            break std::fs::read(&out).expect("read");
        }
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "{text}; {}",
            d.json("status")["faults"]
        );
        sleep(Duration::from_millis(500));
    };
    assert!(is == data, "what was acknowledged is there");
    d.kill();
}

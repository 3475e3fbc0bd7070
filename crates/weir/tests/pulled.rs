//! A volume over SRP on a protected pool: half of its devices are pulled out, the others rot, it moves in and out and
//! has snapshots, while hosts write and read. They see no error, and their data verifies.
//!
//! Where file systems cannot be mounted, the test counts as ignored.

mod common;

use common::harness;
use common::lossy::{Disks, Nature, Switch, can_mount};
use common::versions::{BLOCKS, same, under_load, verify, zeros};
use common::{Daemon, command};
use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};
use weir_base::Prng;

/// Size of a device.
const LEN: u64 = 64 << 20;
/// One of each mirrored pair, and the other: slabs are on devices 0 and 1, or on 2 and 3.
const ONE: [usize; 2] = [1, 3];
const OTHER: [usize; 2] = [0, 2];
/// Of the blocks that hold anything, so many rot.
const PERCENT: u64 = 30;

/// A command line's output, wherever it is run.
fn run(dir: &Path, line: &str) -> serde_json::Value {
    let args: Vec<&str> = line.split_whitespace().chain(["--json"]).collect();
    let out = common::weir(dir, &args);
    let (stdout, stderr) = common::texts(&out);
    assert!(out.status.success(), "weir {line}: {stdout}{stderr}");
    serde_json::from_str(&stdout).unwrap_or_default()
}

fn until_healthy(dir: &Path) {
    let begin = Instant::now();
    loop {
        let p = run(dir, "pool show p");
        if p["live"]["state"] == "healthy" {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(120), "it heals: {p}");
        sleep(Duration::from_millis(50));
    }
}

fn rot(disks: &Switch, which: [usize; 2], rng: &mut Prng) -> u64 {
    which.into_iter().map(|n| disks.rot(n, PERCENT, rng)).sum()
}

fn hosts_see_no_error() -> Result<String, String> {
    let mut d = Daemon::new("pulled");
    let disks = Disks::mount(&d.dir, 4, LEN, Nature::Honest, 11)?;
    let said = harness::caught(|| story(&mut d, &disks));
    d.kill();
    drop(disks);
    said
}

fn story(d: &mut Daemon, disks: &Disks) -> Result<String, String> {
    d.start();
    let files: Vec<String> = disks.files().iter().map(|f| f.display().to_string()).collect();
    let devices: String = files.iter().map(|f| format!("--device file:{f} ")).collect();
    d.ok(&format!("pool create p --raid 10 {devices}"));
    d.ok(&format!("pool create plain --device file:{}:64M", d.path("plain")));
    d.ok("volume create v --pool plain --size 16M --block-size 4096");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let (mut known, mut total) = (zeros(), (0, 0));
    let mut add = |n: (u64, u64)| total = (total.0 + n.0, total.1 + n.1);

    // It moves in while half of the devices are pulled out.
    let (moves, switch) = (command(d, "migrate start v --to p --rate 12M --wait"), disks.switch());
    add(under_load(d, &mut known, 1, move || {
        let thread = std::thread::spawn(moves);
        sleep(Duration::from_millis(400));
        ONE.into_iter().for_each(|n| switch.pull(n, true));
        assert!(thread.join().is_ok(), "it moves");
    }));
    assert_eq!(d.json("volume show v")["pool"], "p");
    let p = d.json("pool show p");
    assert_eq!(p["live"]["state"], "degraded", "{p}");

    // A snapshot of what is on one half only; the devices come back and catch up.
    let (dir, switch) = (d.dir.clone(), disks.switch());
    add(under_load(d, &mut known, 2, move || {
        run(&dir, "snapshot create v@halved");
        ONE.into_iter().for_each(|n| switch.pull(n, false));
        run(&dir, "pool resync p");
        until_healthy(&dir);
    }));
    verify(d, &mut known);
    d.ok("snapshot create v@quiet");
    let quiet = known.clone();

    // Now those that stayed rot; what came back has to be right.
    let (dir, switch) = (d.dir.clone(), disks.switch());
    add(under_load(d, &mut known, 3, move || {
        let mut rng = Prng::new(3);
        assert!(rot(&switch, OTHER, &mut rng) > 1000);
        sleep(Duration::from_millis(500));
        let scrub = run(&dir, "scrub start p --wait");
        assert!(scrub["damaged"].as_u64() > Some(100) && scrub["lost"] == 0, "{scrub}");
        // The other half in its turn, with nothing but reads to find it.
        rot(&switch, ONE, &mut rng);
        run(&dir, "snapshot create v@rotten");
        sleep(Duration::from_millis(500));
    }));
    verify(d, &mut known);
    d.ok("clone create v@quiet c");
    d.ok("map create all c");
    same(&d.read("c", BLOCKS as usize * 4096), &quiet)?;
    d.ok("map delete all c");
    d.ok("volume delete c --yes");
    for s in ["halved", "quiet", "rotten"] {
        d.ok(&format!("snapshot delete v@{s} --yes"));
    }

    // Out of what has rotted, and in again.
    let switch = disks.switch();
    let (out, back) = (
        command(d, "migrate start v --to plain --wait"),
        command(d, "migrate start v --to p --wait"),
    );
    add(under_load(d, &mut known, 4, move || {
        out();
        rot(&switch, ONE, &mut Prng::new(4));
        back();
    }));
    verify(d, &mut known);
    // The second finds nothing, and what was found before is no fault any more.
    for _ in 0..2 {
        let scrub = d.json("scrub start p --wait");
        assert_eq!(scrub["lost"], 0, "{scrub}");
    }
    let status = d.json("status");
    assert_eq!(status["faults"].as_array().map(Vec::len), Some(0), "{status}");
    d.stop();
    let devices: String = files.iter().map(|f| format!("--device {f} ")).collect();
    let report = d.json(&format!("check {devices}"));
    if report["clean"] != true {
        return Err(format!("weir check: {report}"));
    }
    d.start();
    verify(d, &mut known);
    d.stop();
    Ok(format!("{} blocks written and {} read, no error", total.0, total.1))
}

fn main() -> ExitCode {
    harness::run(&[("hosts_see_no_error", hosts_see_no_error)], can_mount)
}

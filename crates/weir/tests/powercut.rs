//! Power is cut in the middle of writes, again and again, below a protected pool: its disks are files in file systems of our
//! own, which lose a random part of what was not flushed. What was acknowledged is there afterwards.
//!
//! `WEIR_POWERCUT_CYCLES` sets the number of cuts (default 3); `cargo xtask powercut --cycles 200` is the long form. Where
//! file systems cannot be mounted, the tests count as ignored.

mod common;

use common::harness;
use common::lossy::{Disks, Nature, can_mount};
use common::versions::{Host, attached, zeros};
use common::{Daemon, SILENT};
use std::process::{Command, ExitCode};
use std::rc::Rc;
use std::time::Duration;
use weir_base::Prng;

/// Size of a disk.
const LEN: u64 = 64 << 20;
/// The offline verifier runs after so many cuts.
const CHECK: u64 = 10;

/// Puts a daemon and its disks through `cycles` cuts. Returns what is to be said of it.
///
/// # Errors
/// What was lost, or does not work any more.
fn through_cuts(d: &mut Daemon, disks: &mut Disks, cycles: u64) -> Result<String, String> {
    let mut rng = Prng::new(cycles);
    d.start();
    let devices: String =
        disks.files().iter().map(|f| format!("--device file:{} ", f.display())).collect();
    d.ok(&format!("pool create p --raid 10 {devices}"));
    d.ok("volume create v --size 16M --block-size 4096");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    disks.begin();
    let (mut known, mut total, mut twice) = (zeros(), 0, 0);
    for cycle in 0..cycles {
        d.ok(&format!("snapshot create v@s{cycle}"));
        if cycle >= 2 {
            d.ok(&format!("snapshot delete v@s{} --yes", cycle - 2));
        }
        let (pid, delay, switch) = (d.pid(), rng.between(50, 600), disks.switch());
        let written = attached(d.target(), &mut known, async move |host: Rc<Host>| {
            // From here on, so that there is load however slow the machine is.
            let cutter = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(delay));
                switch.off(|| kill(pid));
            });
            let acknowledged = host.write_all(cycle).await;
            cutter.join().map_err(|_| "the cutter ended")?;
            acknowledged
        });
        total += written.map_err(|e| format!("cycle {cycle}: {e}"))?;
        d.kill();
        disks.cut();
        while rng.chance(1, 3) {
            // Once more while it recovers.
            d.start_only();
            std::thread::sleep(Duration::from_millis(rng.below(150)));
            let pid = d.pid();
            disks.switch().off(|| kill(pid));
            d.kill();
            disks.cut();
            twice += 1;
        }
        d.start();
        let read = attached(d.target(), &mut known, async |host: Rc<Host>| host.verify().await);
        read.map_err(|e| format!("after cut {cycle}: {e}"))?;
        if cycle % CHECK == CHECK - 1 || cycle + 1 == cycles {
            d.stop();
            let devices: String =
                disks.files().iter().map(|f| format!("--device {} ", f.display())).collect();
            let report = d.json(&format!("check {devices}"));
            if report["clean"] != true {
                return Err(format!("weir check after cut {cycle}: {report}"));
            }
            d.start();
        }
    }
    d.stop();
    let c = disks.cuts();
    if total < cycles * 50 {
        return Err(format!("only {total} blocks were written"));
    }
    Ok(format!(
        "{} power cuts, of them {twice} while the daemon started; {total} blocks acknowledged; writes that were not \
         durable: {} survived, {} lost, {} torn; {} flushes",
        c.cuts, c.kept, c.lost, c.torn, c.flushes
    ))
}

fn kill(pid: u32) {
    let killed = Command::new("kill").args(["-9", &pid.to_string()]).status();
    assert!(killed.is_ok_and(|s| s.success()), "the daemon was there to be killed");
}

/// A daemon and disks of one nature, put through cuts.
fn story(name: &str, nature: Nature, cycles: u64) -> Result<String, String> {
    let mut d = Daemon::new(name);
    let mut disks = Disks::mount(&d.dir, 4, LEN, nature, 7)?;
    // What is wrong with the pool may show in what commands say.
    let result = harness::caught(|| through_cuts(&mut d, &mut disks, cycles));
    d.kill();
    drop(disks);
    result
}

fn nothing_acknowledged_is_lost_by_a_power_cut() -> Result<String, String> {
    story("powercut", Nature::Flushes, cycles())
}

/// The control: where everything is durable at once, there is nothing to lose either.
fn disks_that_keep_everything_keep_it() -> Result<String, String> {
    story("powercut-honest", Nature::Honest, (cycles() / 10).max(2))
}

/// The other control: a disk that acknowledges flushes and does nothing is found out.
fn disks_that_lie_about_flushes_are_found_out() -> Result<String, String> {
    match story("powercut-liar", Nature::Lies, 40) {
        Ok(said) => Err(format!("nobody saw that flushes do nothing: {said}")),
        // That is something else.
        Err(e) if e.contains(SILENT) => Err(e),
        Err(e) => Ok(format!("found out: {}", e.lines().next().unwrap_or_default())),
    }
}

fn cycles() -> u64 {
    match std::env::var("WEIR_POWERCUT_CYCLES") {
        Ok(n) => n.parse().expect("a number of cycles"),
        Err(_) => 3,
    }
}

const CASES: &[harness::Case] = &[
    ("disks_that_keep_everything_keep_it", disks_that_keep_everything_keep_it),
    ("disks_that_lie_about_flushes_are_found_out", disks_that_lie_about_flushes_are_found_out),
    ("nothing_acknowledged_is_lost_by_a_power_cut", nothing_acknowledged_is_lost_by_a_power_cut),
];

fn main() -> ExitCode {
    harness::run(CASES, can_mount)
}

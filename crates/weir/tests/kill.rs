//! kill -9 in the middle of writes, again and again: what was acknowledged is there afterwards, and what was not is
//! there whole or not at all, block by block.
//!
//! `WEIR_KILL_CYCLES` sets the number of kills (default 5); `cargo xtask kill --cycles 200` is the long form.

mod common;

use common::Daemon;
use common::versions::{until_killed, verify, zeros};
use std::time::Duration;
use weir_base::Prng;

#[test]
fn nothing_acknowledged_is_lost_by_kill_9() {
    let cycles: u64 = match std::env::var("WEIR_KILL_CYCLES") {
        Ok(n) => n.parse().expect("a number of cycles"),
        Err(_) => 5,
    };
    let seed = 1;
    let mut rng = Prng::new(seed);
    let mut d = Daemon::new("kill");
    d.start();
    d.ok(&format!("pool create p --raid 10 {}", d.devices(4, "96M")));
    d.ok("volume create v --size 16M --block-size 4096");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let (mut known, mut total) = (zeros(), 0);
    for cycle in 0..cycles {
        d.ok(&format!("snapshot create v@s{cycle}"));
        if cycle >= 2 {
            d.ok(&format!("snapshot delete v@s{} --yes", cycle - 2));
        }
        total += until_killed(&d, &mut known, cycle, Duration::from_millis(rng.between(50, 600)));
        d.kill();
        if rng.chance(1, 3) {
            // Once more while it recovers.
            d.start_only();
            std::thread::sleep(Duration::from_millis(rng.below(120)));
            d.kill();
        }
        d.start();
        verify(&d, &mut known);
    }
    d.stop();
    d.is_clean(4);
    println!("{cycles} kills, {total} blocks acknowledged, none lost");
    assert!(total > cycles * 50, "only {total} blocks were written");
}

/// A program that ends without a word leaves no daemon behind.
#[test]
fn a_daemon_ends_with_the_pipe_of_whoever_started_it() {
    let d = Daemon::new("until-stdin-closes");
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["serve", "--listen", "127.0.0.1:0", "--cores", "0", "--until-stdin-closes"])
        .args(["--buffer-memory", "64M"])
        .env_clear()
        .env("WEIR_DATA_DIR", &d.dir)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("weir serve runs");
    let begin = std::time::Instant::now();
    while !common::weir(&d.dir, &["status"]).status.success() {
        assert!(begin.elapsed() < std::time::Duration::from_secs(30), "it answers");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    drop(child.stdin.take());
    let out = child.wait_with_output().expect("its end");
    let log = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && log.contains("stopping"), "{}: {log}", out.status);
}

//! Compressed volumes end to end: the real program, files as devices, hosts over SRP and BRP.

use crate::common::versions::{under_load, until_killed, verify, zeros};
use crate::common::{Daemon, command, noise};
use std::time::{Duration, Instant};
use weir_base::Prng;

const MIB: usize = 1 << 20;

/// What compresses about two to one.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Prng::new(seed);
    (0..len).map(|_| b"0123456789abcdef"[rng.below(16) as usize]).collect()
}

/// Bytes stored and saved of a volume, once that has settled.
fn figures(d: &Daemon, volume: &str) -> (u64, u64) {
    let now = || {
        let status = d.json("status");
        let all = status["live"]["volumes"].as_array().cloned().unwrap_or_default();
        let v = all.into_iter().find(|v| v["name"] == volume).expect("the volume is open");
        let c = &v["compression"];
        (c["stored_bytes"].as_u64().expect("known"), c["saved_bytes"].as_u64().expect("known"))
    };
    let (mut last, begin) = (now(), Instant::now());
    loop {
        std::thread::sleep(Duration::from_millis(300));
        let next = now();
        if next == last || begin.elapsed() > Duration::from_secs(20) {
            return next;
        }
        last = next;
    }
}

#[test]
fn a_compressed_volume_takes_less_and_keeps_everything() {
    let mut d = Daemon::new("compress");
    d.start();
    d.ok(&format!("pool create p --raid 1 {}", d.devices(2, "256M")));
    d.ok("pool create plain --device ram:64M");
    for (line, exit, code) in [
        ("volume create x --pool plain --size 16M --compress lz4", 7, "unsupported"),
        (
            "volume create x --pool p --size 16M --compress lz4 --compress-chunk 12k",
            2,
            "invalid_layout",
        ),
    ] {
        assert_eq!(d.fails(line, exit).0, code, "weir {line}");
    }
    d.ok("volume create v --pool p --size 64M --compress zstd");
    d.ok("volume create w --pool p --size 64M --compress lz4 --compress-chunk 128k");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    d.ok("map create all w");
    let (good, bad) = (text(1, 12 * MIB), noise(2, 6 * MIB + 512));
    let (fg, fb) = (d.path("good"), d.path("bad"));
    std::fs::write(&fg, &good).expect("written");
    std::fs::write(&fb, &bad).expect("written");
    d.write("v", &fg);
    d.write("w", &fb);
    let check = |d: &Daemon| {
        assert!(d.read("v", 12 * MIB) == good, "v");
        assert!(d.read("w", 6 * MIB + 512) == bad, "w");
    };
    check(&d);
    // Four bits of eight, in whole blocks of 4 KiB and with headers.
    let (stored, saved) = figures(&d, "v");
    assert!(stored < 9 * MIB as u64 && saved > 3 * MIB as u64, "{stored} {saved}");
    assert!((stored + saved).abs_diff(12 * MIB as u64) < MIB as u64 / 2, "{stored} {saved}");
    let (stored, saved) = figures(&d, "w");
    assert!(
        stored >= 6 * MIB as u64 && saved < 128 << 10,
        "noise stays as it is: {stored} {saved}"
    );
    let shown = d.ok("volume show v");
    assert!(shown.contains("zstd, chunk 32 KiB") && shown.contains("to 1)"), "{shown}");
    std::thread::sleep(Duration::from_millis(1200));
    let before = figures(&d, "v").1;

    d.stop();
    d.start();
    check(&d);
    assert_eq!(figures(&d, "v").1, before, "the account lasts");
    d.kill();
    d.start();
    check(&d);

    // A snapshot, a clone of it, and back.
    d.ok("snapshot create v@s");
    std::fs::write(&fg, noise(3, 2 * MIB)).expect("written");
    d.write("v", &fg);
    assert!(d.read("v", 2 * MIB) == noise(3, 2 * MIB));
    d.ok("clone create v@s old");
    d.ok("map create all old");
    assert_eq!(d.json("volume show old")["size"], 64 << 20);
    assert!(d.ok("volume show old").contains("zstd, chunk 32 KiB"));
    assert!(d.read("old", 12 * MIB) == good, "the clone");
    d.ok("map delete all old");
    d.ok("volume delete old --yes");
    d.ok("map delete all v");
    d.ok("snapshot revert v@s --yes");
    d.ok("map create all v");
    check(&d);

    // What is cut off is not there again.
    d.ok(&format!("volume resize v {} --allow-shrink", 5 * MIB + 4096));
    d.ok("volume resize v 64M");
    let now = d.read("v", 12 * MIB);
    let (kept, cut) = now.split_at(5 * MIB + 4096);
    assert!(kept == &good[..5 * MIB + 4096] && cut.iter().all(|b| *b == 0), "resized");
    assert_eq!(d.json("status")["faults"].as_array().map(Vec::len), Some(0));
    d.stop();
    d.is_clean(2);
}

/// kill -9 in the middle of load, again and again, then a move under load.
#[test]
fn nothing_acknowledged_is_lost_by_kill_9_or_a_move() {
    let mut d = Daemon::new("compress-kill");
    d.start();
    d.ok(&format!("pool create p --raid 10 {}", d.devices(4, "128M")));
    d.ok("volume create v --pool p --size 16M --block-size 4096 --compress lz4");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let (mut known, mut total, mut rng) = (zeros(), 0, Prng::new(1));
    for cycle in 0..6 {
        total += until_killed(&d, &mut known, cycle, Duration::from_millis(rng.between(50, 600)));
        d.kill();
        d.start();
        verify(&d, &mut known);
    }
    assert!(total > 300, "only {total} blocks were written");
    d.ok(&format!("pool create q --raid 0 --device file:{}:192M", d.path("other")));
    for (line, form) in [
        ("migrate start v --to q --wait", "lz4, chunk 32 KiB"),
        (
            "migrate start v --to p --compress zstd:1 --compress-chunk 8k --wait",
            "zstd:1, chunk 8 KiB",
        ),
    ] {
        let n = under_load(&d, &mut known, 9, command(&d, line));
        assert!(n.0 > 50, "there was load: {n:?}");
        let shown = d.ok("volume show v");
        assert!(shown.contains(form), "{shown}");
    }
    verify(&d, &mut known);
    d.stop();
    d.start();
    verify(&d, &mut known);
    d.stop();
}

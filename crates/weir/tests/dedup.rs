//! Deduplicated volumes end to end: the real program, files as devices, hosts over SRP and BRP.

mod common;

use common::versions::{ALIKE, Host, attached, under_load, under_load_by_both, verify, zeros};
use common::{Daemon, command, noise};
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::rc::Rc;
use std::time::{Duration, Instant};
use weir_base::Prng;

const MIB: usize = 1 << 20;

/// Waits until something is so.
fn until(d: &Daemon, what: &str, f: impl Fn(&Value) -> bool) -> Value {
    let begin = Instant::now();
    loop {
        let status = d.json("status");
        if f(&status) {
            return status;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}: {status}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn volume<'a>(status: &'a Value, name: &str) -> &'a Value {
    let all = status["live"]["volumes"].as_array().expect("volumes");
    all.iter().find(|v| v["name"] == name).expect("the volume is open")
}

/// Bytes stored and saved of a volume, once that is exact and has settled.
fn figures(d: &Daemon, name: &str) -> (u64, u64) {
    let of = |s: &Value| {
        let f = &volume(s, name)["deduplication"];
        (f["stored_bytes"].as_u64(), f["saved_bytes"].as_u64())
    };
    let mut last = (None, None);
    loop {
        let status = until(d, "counted", |s| volume(s, name)["deduplication"]["exact"] == true);
        let now = of(&status);
        if now == last {
            return (now.0.expect("known"), now.1.expect("known"));
        }
        last = now;
        std::thread::sleep(Duration::from_millis(1200));
    }
}

fn near(a: u64, b: usize) -> bool {
    a.abs_diff(b as u64) < MIB as u64
}

#[test]
fn equal_data_is_kept_once() {
    let mut d = Daemon::new("dedup");
    d.start();
    d.ok(&format!("pool create p --raid 1 {}", d.devices(2, "256M")));
    d.ok("pool create plain --device ram:64M");
    for (line, exit, code) in [
        ("volume create x --pool plain --size 16M --dedup", 7, "unsupported"),
        ("volume create x --pool p --size 16M --dedup --dedup-chunk 12k", 2, "invalid_layout"),
        (
            "volume create x --pool p --size 16M --dedup --dedup-chunk 4k --compress lz4",
            2,
            "invalid_layout",
        ),
    ] {
        assert_eq!(d.fails(line, exit).0, code, "weir {line}");
    }
    d.ok("volume create v --pool p --size 64M --dedup");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    // The same image five times, and something else.
    let image = noise(1, 8 * MIB);
    let other = noise(2, 2 * MIB + 512);
    let mut all = image.repeat(5);
    all.extend(&other);
    let file = d.path("all");
    std::fs::write(&file, &all).expect("written");
    d.write("v", &file);
    let check = |d: &Daemon, v: &str| assert!(d.read(v, all.len()) == all, "{v}");
    check(&d, "v");
    let (stored, saved) = figures(&d, "v");
    assert!(near(saved, 32 * MIB), "{saved}");
    assert!(stored < 14 * MIB as u64, "{stored}");
    let shown = d.ok("volume show v");
    assert!(shown.contains("chunk 4 KiB") && shown.contains("32 MiB less"), "{shown}");

    d.stop();
    d.start();
    check(&d, "v");
    assert_eq!(figures(&d, "v").1, saved, "the account lasts");
    let status = d.json("status");
    assert!(volume(&status, "v")["deduplication"]["indexed_chunks"].as_u64() > Some(1000));
    d.kill();
    d.start();
    check(&d, "v");

    // A snapshot, a clone of it, and back.
    d.ok("snapshot create v@s");
    std::fs::write(&file, noise(3, 20 * MIB)).expect("written");
    d.write("v", &file);
    assert!(d.read("v", 20 * MIB) == noise(3, 20 * MIB));
    d.ok("clone create v@s old");
    d.ok("map create all old");
    assert!(d.ok("volume show old").contains("chunk 4 KiB"));
    check(&d, "old");
    std::fs::write(&file, &image).expect("written");
    d.write("old", &file);
    check(&d, "old");
    d.ok("map delete all old");
    d.ok("volume delete old --yes");
    d.ok("map delete all v");
    d.ok("snapshot revert v@s --yes");
    d.ok("map create all v");
    check(&d, "v");
    assert!(near(figures(&d, "v").1, 32 * MIB));

    // What is cut off is not there again, and what stays may have been kept there only.
    std::fs::write(&file, vec![0; 4 * MIB]).expect("written");
    d.write("v", &file);
    d.ok(&format!("volume resize v {} --allow-shrink", 17 * MIB + 1536));
    d.ok("volume resize v 80M");
    let now = d.read("v", all.len());
    let (kept, cut) = now.split_at(17 * MIB + 1536);
    assert!(kept[..4 * MIB].iter().all(|b| *b == 0));
    assert!(kept[4 * MIB..] == all[4 * MIB..17 * MIB + 1536] && cut.iter().all(|b| *b == 0));
    assert_eq!(d.json("status")["faults"].as_array().map(Vec::len), Some(0));
    d.stop();
    let all: String =
        (0..2).map(|i| format!("--device {} ", d.path(&format!("disk{i}")))).collect();
    let report = d.json(&format!("check {all}"));
    assert_eq!(report["clean"], true, "{report}");
}

/// With compression and encryption below: what is equal is found before it is made smaller and unreadable.
#[test]
fn with_compression_and_encryption() {
    let mut d = Daemon::new("dedup-all");
    d.start();
    d.ok(&format!("pool create p --raid 1 {}", d.devices(2, "256M")));
    let key = d.path("key");
    std::fs::write(&key, "a passphrase that is long enough").expect("written");
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("its owner's only");
    d.ok(&format!(
        "volume create v --pool p --size 64M --dedup --compress zstd --encrypt --key file:{key}"
    ));
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    // Compresses about two to one.
    let mut rng = Prng::new(1);
    let image: Vec<u8> =
        (0..6 * MIB).map(|_| b"0123456789abcdef"[rng.below(16) as usize]).collect();
    let all = image.repeat(4);
    let file = d.path("all");
    std::fs::write(&file, &all).expect("written");
    d.write("v", &file);
    let (stored, saved) = figures(&d, "v");
    assert!(near(saved, 18 * MIB) && stored < 5 * MIB as u64, "{stored} {saved}");
    let shown = d.ok("volume show v");
    for text in ["deduplication", "zstd, chunk 32 KiB", "aes-256-xts", "18 MiB less"] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    for _ in 0..2 {
        d.kill();
        d.start();
        assert!(d.read("v", all.len()) == all);
    }
    d.ok("volume resize v 20M --allow-shrink");
    assert!(d.read("v", 20 * MIB) == all[..20 * MIB]);
    d.ok("snapshot create v@s");
    std::fs::write(&file, noise(3, 4 * MIB)).expect("written");
    d.write("v", &file);
    d.ok("map delete all v");
    d.ok("snapshot revert v@s --yes");
    d.ok("map create all v");
    assert!(d.read("v", 20 * MIB) == all[..20 * MIB]);
    d.stop();
}

/// kill -9 in the middle of load, again and again, then moves under load by both ways in.
#[test]
fn nothing_acknowledged_is_lost_by_kill_9_or_a_move() {
    ALIKE.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut d = Daemon::new("dedup-kill");
    d.start();
    d.ok(&format!("pool create p --raid 10 {}", d.devices(4, "128M")));
    d.ok("volume create v --pool p --size 16M --block-size 4096 --dedup");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let (mut known, mut total, mut saved, mut rng) = (zeros(), 0, 0, Prng::new(1));
    for cycle in 0..6 {
        let (pid, delay) = (d.pid(), rng.between(50, 600));
        let written = attached(d.target(), &mut known, async move |host: Rc<Host>| {
            let killer = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(delay));
                std::process::Command::new("kill").args(["-9", &pid.to_string()]).status()
            });
            let acknowledged = host.write_all(cycle).await?;
            let killed = killer.join().expect("the killer ends").expect("kill runs");
            assert!(killed.success(), "the daemon was there to be killed");
            Ok(acknowledged)
        });
        total += written.unwrap_or_else(|e| panic!("cycle {cycle}: {e}"));
        d.kill();
        d.start();
        verify(&d, &mut known);
        saved += figures(&d, "v").1;
    }
    assert!(saved > MIB as u64, "{saved}");
    assert!(total > 300, "only {total} blocks were written");
    d.ok(&format!("pool create q --raid 0 --device file:{}:192M", d.path("other")));
    d.ok(&format!("pool create plain --device file:{}:64M", d.path("plain")));
    for (line, form) in [
        ("migrate start v --to q --wait", "chunk 4 KiB"),
        ("migrate start v --to p --dedup --dedup-chunk 16k --wait", "chunk 16 KiB"),
        ("migrate start v --to plain --wait", ""),
        ("migrate start v --to q --dedup --compress zstd:1 --wait", "zstd:1, chunk 32 KiB"),
    ] {
        let n = under_load_by_both(&d, &mut known, 9, command(&d, line));
        assert!(n.0 > 50, "there was load: {n:?}");
        let shown = d.ok("volume show v");
        assert!(shown.contains(form), "{shown}");
    }
    let n = under_load(&d, &mut known, 10, command(&d, "snapshot create v@s"));
    assert!(n.0 > 0);
    verify(&d, &mut known);
    d.stop();
    d.start();
    verify(&d, &mut known);
    d.stop();
}

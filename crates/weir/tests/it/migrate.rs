//! Live migration end to end: the real program, files as devices, hosts that write over SRP meanwhile.

use crate::common::versions::{under_load, verify, zeros};
use crate::common::{Daemon, command, noise};
use std::time::{Duration, Instant};
use weir_base::Prng;

const MIB: usize = 1 << 20;

fn faults(d: &Daemon) -> usize {
    d.json("status")["faults"].as_array().map_or(0, Vec::len)
}

/// Waits until the migration of a volume is over and gives its state.
fn ended(d: &Daemon, volume: &str) -> String {
    let begin = Instant::now();
    loop {
        let m = d.json(&format!("migrate show {volume}"));
        let state = m["state"].as_str().unwrap_or_default().to_owned();
        if ["done", "failed", "cancelled"].contains(&state.as_str()) {
            return state;
        }
        assert!(begin.elapsed() < Duration::from_secs(120), "it ends: {m}\n{}", d.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_volume_moves_back_and_forth_under_hosts_that_see_nothing() {
    let mut d = Daemon::new("migrate");
    d.start();
    d.ok(&format!("pool create plain --device file:{}:192M", d.path("plain")));
    d.ok(&format!("pool create safe --raid 1 {}", d.devices(2, "192M")));
    d.ok("pool create memory --device ram:128M");
    d.ok("volume create v --pool plain --size 65M --block-size 4096");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let mut known = zeros();
    let serial = d.json("volume show v")["serial"].clone();
    let mut total = (0, 0);
    for (round, to) in ["safe", "plain", "memory", "safe", "plain"].into_iter().enumerate() {
        let line = format!("migrate start v --to {to} --rate 40M --wait");
        let n = under_load(&d, &mut known, round as u64, command(&d, &line));
        assert!(n.0 > 100 && n.1 > 50, "there was load: {n:?}");
        total = (total.0 + n.0, total.1 + n.1);
        let v = d.json("volume show v");
        assert_eq!((&v["pool"], &v["serial"]), (&to.into(), &serial));
        assert!(v["migration"].is_null(), "{v}");
        let m = d.json("migrate show v");
        assert_eq!((&m["state"], &m["to"]), (&"done".into(), &to.into()));
        // Nothing of it is left in the pools where it was.
        for pool in ["plain", "safe", "memory"].into_iter().filter(|p| *p != to) {
            let p = d.json(&format!("pool show {pool}"));
            assert_eq!(p["volumes"], 0, "{p}");
            if pool != "safe" {
                assert_eq!(p["allocated"], 0, "{p}");
            }
        }
    }
    verify(&d, &mut known);
    assert_eq!(faults(&d), 0);
    // Also after a restart hosts find what they were told at first.
    d.stop();
    d.start();
    verify(&d, &mut known);

    // A cancelled one leaves it where it is.
    let other = {
        let (start, cancel) =
            (command(&d, "migrate start v --to safe --rate 1M"), command(&d, "migrate cancel v"));
        move || {
            start();
            std::thread::sleep(Duration::from_millis(400));
            cancel();
        }
    };
    under_load(&d, &mut known, 77, other);
    assert_eq!(d.json("volume show v")["pool"], "plain");
    assert_eq!(ended(&d, "v"), "cancelled");
    verify(&d, &mut known);
    println!("{} blocks written and {} read while the volume moved 5 times", total.0, total.1);
    d.stop();
}

#[test]
fn a_daemon_that_gets_no_processor_for_a_while_goes_on() {
    let mut d = Daemon::new("migrate-stopped");
    d.start();
    d.ok(&format!("pool create plain --device file:{}:96M", d.path("plain")));
    d.ok(&format!("pool create safe --raid 1 {}", d.devices(2, "192M")));
    d.ok("volume create v --pool plain --size 64M --block-size 4096");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let mut known = zeros();
    let (start, pid) = (command(&d, "migrate start v --to safe --rate 20M"), d.pid());
    // What was under way at the destination is answered when the daemon runs again, and not before: from its point of
    // view that took as long as the daemon was stopped.
    under_load(&d, &mut known, 5, move || {
        let signal = |name: &str| {
            let sent = std::process::Command::new("kill").args([name, &pid.to_string()]).status();
            assert!(sent.expect("kill runs").success());
        };
        start();
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(300));
            signal("-STOP");
            std::thread::sleep(Duration::from_secs(5));
            signal("-CONT");
        }
    });
    assert_eq!(ended(&d, "v"), "done", "{}\n{}", d.json("migrate show v"), d.log());
    verify(&d, &mut known);
    assert_eq!(faults(&d), 0);
    d.stop();
}

#[test]
fn kill_9_in_the_middle_loses_nothing() {
    let mut d = Daemon::new("migrate-kill");
    d.start();
    d.ok(&format!("pool create plain --device file:{}:192M", d.path("plain")));
    d.ok(&format!("pool create safe --raid 1 {}", d.devices(2, "192M")));
    d.ok("volume create v --pool plain --size 64M --block-size 4096");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let mut known = zeros();
    let mut rng = Prng::new(3);
    let (mut kills, mut moves) = (0, 0);
    for round in 0..5u64 {
        let here = d.json("volume show v")["pool"].as_str().unwrap_or_default().to_owned();
        let to = if here == "plain" { "safe" } else { "plain" };
        let (start, pid) = (command(&d, &format!("migrate start v --to {to} --rate 80M")), d.pid());
        // Up to about the time of the cut-over, and past it.
        let delay = rng.between(20, 900);
        under_load(&d, &mut known, 100 + round, move || {
            start();
            std::thread::sleep(Duration::from_millis(delay));
            let killed = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
            assert!(killed.expect("kill runs").success());
        });
        d.kill();
        kills += 1;
        d.start();
        // It starts over by itself, unless it was past the cut-over; hosts are served meanwhile.
        verify(&d, &mut known);
        let begin = Instant::now();
        while !d.json("volume show v")["migration"].is_null() {
            assert!(begin.elapsed() < Duration::from_secs(120), "it ends: {}", d.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(d.json("volume show v")["pool"], to, "it has moved in the end");
        moves += 1;
        verify(&d, &mut known);
        assert_eq!(faults(&d), 0, "{}", d.json("status"));
    }
    println!("{kills} kills, {moves} moves");
    d.stop();
    d.is_clean(2);
}

#[test]
fn a_foreign_file_is_adopted_moved_off_and_exported() {
    let mut d = Daemon::new("adopt");
    d.start();
    d.ok(&format!("pool create safe --raid 1 {}", d.devices(2, "128M")));
    d.ok(&format!("pool create plain --device file:{}:64M", d.path("plain")));
    d.ok("host create all --allow-any");
    let (old, data) = (d.path("old.img"), noise(9, 8 * MIB + 512));
    std::fs::write(&old, &data).expect("written");

    // What is refused, and why.
    let odd = d.path("odd.img");
    std::fs::write(&odd, &data[..1000]).expect("written");
    for (line, exit, code, word) in [
        (format!("volume adopt o --path {odd}"), 2, "invalid_size", "truncate -s 1024"),
        (format!("volume adopt o --path {}", d.path("none")), 1, "io_error", "No such file"),
        (format!("volume adopt o --path {}", d.path("disk0")), 4, "device_in_use", "pool `safe`"),
        (format!("volume adopt o --path {}", d.path("plain")), 4, "device_in_use", "pool `plain`"),
        ("volume adopt o --path relative".into(), 2, "invalid_device", "absolute"),
        ("volume adopt o --path /proc".into(), 2, "invalid_device", "neither a file"),
    ] {
        let (found, text) = d.fails(&line, exit);
        assert!(found == code && text.contains(word), "weir {line}: {text}");
    }
    // Another daemon's pool, which is not open here.
    std::fs::copy(d.path("disk1"), d.path("label.img")).expect("copied");
    let (code, text) = d.fails(&format!("volume adopt o --path {}", d.path("label.img")), 4);
    assert!(code == "device_in_use" && text.contains("the label of a pool"), "{text}");

    d.ok(&format!("volume adopt ro --path {old} --read-only"));
    assert_eq!(d.fails(&format!("volume adopt v --path {old}"), 4).0, "device_in_use");
    assert_eq!(d.fails("volume set ro --read-only off", 7).0, "unsupported");
    d.ok("map create all ro");
    assert!(d.read("ro", data.len()) == data);
    d.ok("map delete all ro");
    d.ok("volume delete ro --yes");
    assert!(std::fs::read(&old).expect("it is there") == data, "deleting leaves the file alone");

    d.ok(&format!("volume adopt v --path {old}"));
    assert_eq!(d.json("volume show v")["size"], data.len());
    assert_eq!(d.fails("volume resize v 16M", 7).0, "unsupported");
    assert_eq!(d.fails("snapshot create v", 7).0, "unsupported");
    d.ok("map create all v");
    d.stop();
    assert!(std::fs::read(&old).expect("it is there") == data, "nothing of Weir's is in it");
    d.start();
    let new = noise(10, MIB);
    let file = d.path("new");
    std::fs::write(&file, &new).expect("written");
    d.write("v", &file);
    let mut now = data.clone();
    now[..MIB].copy_from_slice(&new);
    assert!(d.read("v", now.len()) == now);

    d.ok("migrate start v --to safe --wait");
    assert!(d.read("v", now.len()) == now);
    assert!(std::fs::read(&old).expect("it is there") == now, "as of the cut-over");
    // The old file is free, and what is written now is not in it.
    std::fs::remove_file(&old).expect("removed");
    let newer = noise(11, MIB);
    std::fs::write(&file, &newer).expect("written");
    d.write("v", &file);
    now[..MIB].copy_from_slice(&newer);

    // Out again, into a file that lives on as the volume, and into one that is taken away.
    let (out, away) = (d.path("out.img"), d.path("away.img"));
    d.ok(&format!("volume export v --to {out} --create --wait"));
    assert_eq!(d.json("volume show v")["kind"], "image");
    assert!(d.read("v", now.len()) == now);
    assert_eq!(
        d.fails(&format!("volume export v --to {away} --create --detach"), 4).0,
        "volume_mapped"
    );
    assert!(!std::path::Path::new(&away).exists(), "what is refused makes no file");
    assert_eq!(d.fails(&format!("volume export v --to {file} --create"), 4).0, "device_in_use");
    d.ok("map delete all v");
    d.ok(&format!("volume export v --to {away} --create --detach --wait"));
    assert_eq!(d.fails("volume show v", 3).0, "volume_not_found");
    assert!(std::fs::read(&away).expect("it is there") == now);
    std::fs::rename(&away, d.path("taken")).expect("it can be taken away");
    assert_eq!(faults(&d), 0);
    assert_eq!(d.json("volume list").as_array().map(Vec::len), Some(0));
    d.stop();
}

#[test]
fn who_waits_is_told_how_it_ended() {
    let mut d = Daemon::new("migrate-ends");
    d.start();
    d.ok(&format!("pool create plain --device file:{}:96M", d.path("plain")));
    d.ok(&format!("pool create small --raid 0 --device file:{}:32M", d.path("small")));
    d.ok(&format!("pool create safe --raid 1 {}", d.devices(2, "192M")));
    d.ok("volume create v --pool plain --size 64M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let (file, data) = (d.path("data"), noise(12, 48 * MIB));
    std::fs::write(&file, &data).expect("written");
    d.write("v", &file);
    // The new place is full before everything is there.
    assert_eq!(d.fails("migrate start v --to small --wait", 1).0, "migration_failed");
    let moves = || !d.json("volume show v")["migration"].is_null();
    std::thread::scope(|s| {
        let waits = s.spawn(|| d.fails("migrate start v --to safe --rate 1M --wait", 4));
        d.until("it moves", moves);
        d.ok("migrate cancel v");
        assert_eq!(waits.join().expect("it ended").0, "migration_cancelled");
    });
    // Who does not want to wait any more is told that it goes on, and what ends it.
    let waits = std::process::Command::new(env!("CARGO_BIN_EXE_weir"))
        .args("migrate start v --to safe --rate 1M --wait".split(' '))
        .env_clear()
        .env("WEIR_DATA_DIR", &d.dir)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("weir runs");
    d.until("it moves", moves);
    std::thread::sleep(Duration::from_secs(1));
    let sent = std::process::Command::new("kill").args(["-INT", &waits.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
    let out = waits.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(130) && said.contains("weir migrate cancel v"), "{said}");
    assert!(moves(), "it goes on");
    d.ok("migrate cancel v");
    assert!(d.read("v", data.len()) == data);
    d.stop();
}

/// What a daemon has not seen being written it has no maps of in memory.
#[test]
fn a_thin_volume_stays_thin_when_it_moves_after_a_restart() {
    /// Bytes that a pool may use for two MiB of data and what belongs to it, on each of its devices.
    const FEW: u64 = 8 << 20;
    let mut d = Daemon::new("migrate-thin");
    d.start();
    d.ok(&format!("pool create safe --raid 1 {}", d.devices(2, "256M")));
    d.ok(&format!(
        "pool create far --device file:{}:256M --raid 1 --device file:{}:256M",
        d.path("far0"),
        d.path("far1")
    ));
    d.ok(&format!("key new {}", d.path("v.key")));
    d.ok("volume create v --pool safe --size 100M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    // Zeros that were written become a hole, too.
    let data = [noise(1, MIB), vec![0; 3 * MIB], noise(2, MIB)].concat();
    let file = d.path("data");
    std::fs::write(&file, &data).expect("written");
    d.write("v", &file);
    let allocated = |d: &Daemon, pool: &str| {
        d.json(&format!("pool show {pool}"))["allocated"].as_u64().expect("bytes")
    };
    // What was given up of the old place is given back a little later.
    let few = |d: &Daemon, pool: &str| {
        let begin = Instant::now();
        while allocated(d, pool) > FEW {
            let is = allocated(d, pool);
            assert!(begin.elapsed() < Duration::from_secs(120), "{pool} has {is} bytes in use");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let key = d.path("v.key");
    for (line, pool) in [
        ("migrate start v --to far --wait".to_owned(), "far"),
        (format!("migrate start v --to safe --encrypt --key file:{key} --wait"), "safe"),
        ("volume rekey v --reencrypt --wait".to_owned(), "safe"),
        ("migrate start v --to far --decrypt --wait".to_owned(), "far"),
    ] {
        let before = allocated(&d, pool);
        assert!(before <= 2 * FEW, "{line}: {before} bytes in use before");
        d.stop();
        d.start();
        d.ok(&line);
        few(&d, pool);
        assert!(d.read("v", 8 * MIB) == [data.clone(), vec![0; 3 * MIB]].concat(), "{line}");
        let copied = d.json("migrate show v")["copied"].as_u64();
        assert!(copied.is_none_or(|n| n < FEW), "{line}: {copied:?}");
    }
    assert_eq!(faults(&d), 0);
    d.stop();
}

#[test]
fn what_cannot_be_moved_is_said() {
    let mut d = Daemon::new("migrate-refused");
    d.start();
    d.ok(&format!("pool create safe --raid 1 {}", d.devices(2, "96M")));
    d.ok(&format!("pool create plain --device file:{}:64M", d.path("plain")));
    d.ok("pool create nothing --device null:1G");
    d.ok("volume create v --pool safe --size 32M");
    d.ok("volume create big --pool safe --size 1G");
    d.ok("snapshot create v@s");
    for (line, exit, code) in [
        ("migrate start none --to plain", 3, "volume_not_found"),
        ("migrate start v --to none", 3, "pool_not_found"),
        ("migrate start v --to safe", 2, "invalid_request"),
        ("migrate start v --to plain", 4, "snapshot_in_use"),
        ("migrate start big --to plain", 6, "pool_full"),
        ("migrate start big --to nothing", 2, "invalid_layout"),
        ("migrate show v", 3, "migration_not_found"),
        ("migrate cancel v", 3, "migration_not_found"),
        ("migrate rate v 5M", 3, "migration_not_found"),
    ] {
        assert_eq!(d.fails(line, exit).0, code, "weir {line}");
    }
    d.ok("snapshot delete v@s --yes");
    let file = d.path("data");
    std::fs::write(&file, noise(1, 4 * MIB)).expect("written");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    d.write("v", &file);
    d.ok("migrate start v --to plain --rate 64k");
    for (line, exit, code) in [
        ("migrate start v --to plain", 4, "volume_migrating"),
        ("volume resize v 64M", 4, "volume_migrating"),
        ("volume delete v --yes", 4, "volume_migrating"),
        ("snapshot create v@t", 4, "volume_migrating"),
        ("pool delete plain", 4, "pool_in_use"),
    ] {
        assert_eq!(d.fails(line, exit).0, code, "weir {line}");
    }
    let list = d.ok("migrate list");
    assert!(list.contains("copying"), "{list}\n{}", d.log());
    assert!(d.ok("migrate pause v").contains("waits"));
    assert!(d.ok("migrate show v").contains("paused"));
    assert!(d.ok("graph v").contains("migrating"));
    d.ok("migrate rate v 0");
    d.ok("migrate resume v");
    assert_eq!(ended(&d, "v"), "done");
    assert_eq!(faults(&d), 0);
    d.stop();
}

/// A file that is a volume, and one that a volume is being copied to, are known by what they are: another one of that name and size
/// stays as it is, and is served to nobody.
#[test]
fn another_file_in_the_place_of_one_that_is_a_volume_is_not_touched() {
    let mut d = Daemon::new("replaced-image");
    d.start();
    d.ok(&format!("pool create plain --device file:{}:64M", d.path("plain")));
    d.ok("host create all --allow-any");
    let (old, to) = (d.path("old.img"), d.path("to.img"));
    for path in [&old, &to] {
        std::fs::write(path, vec![0; 8 * MIB]).expect("written");
    }
    d.ok(&format!("volume adopt v --path {old}"));
    d.ok("volume create w --pool plain --size 8M");
    for volume in ["v", "w"] {
        d.ok(&format!("map create all {volume}"));
    }
    // It would take longer than anybody waits.
    d.ok(&format!("volume export w --to {to} --rate 4K"));
    d.stop();
    let (away, precious) = (d.path("away"), noise(12, 8 * MIB));
    for path in [&old, &to] {
        std::fs::rename(path, format!("{away}-{}", path.ends_with("to.img"))).expect("moved");
        std::fs::write(path, &precious).expect("written");
    }
    d.start();
    let served = || !d.json("status")["faults"].to_string().contains("is not what it was");
    d.until("that is told", || !served() && ended(&d, "w") == "failed");
    let why = d.json("migrate show w")["reason"].to_string();
    assert!(why.contains("is not what it was"), "{why}");
    for path in [&old, &to] {
        assert!(std::fs::read(path).expect("it is there") == precious, "{path} stays as it is");
    }
    // Back again, it is served. The other one has stayed where it was.
    std::fs::rename(format!("{away}-false"), &old).expect("moved back");
    d.until("all is well", served);
    for volume in ["v", "w"] {
        assert!(d.read(volume, MIB).iter().all(|b| *b == 0));
    }
    assert!(std::fs::read(&to).expect("it is there") == precious, "nor is it removed");
}

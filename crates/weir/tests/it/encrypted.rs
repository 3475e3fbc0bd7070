//! Encrypted volumes end to end: the real program, files as devices, hosts over SRP and BRP, keys that come and go.

use crate::common::versions::{Known, under_load, under_load_by_both, verify, zeros};
use crate::common::{Daemon, command, noise};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const SECRET: &str = "the quick brown fox encrypts lazy dogs";
const PUBLIC: &str = "everybody may read what is said here ok";

/// How often a text is in a file, or in all files below a directory.
fn seen(text: &str, path: &str) -> usize {
    let out = Command::new("grep")
        .args(["-r", "-a", "-z", "-o", "-F", text, path])
        .env("LC_ALL", "C")
        .output();
    out.expect("grep runs").stdout.iter().filter(|b| **b == 0).count()
}

/// A daemon with a mirrored pool `safe` of two devices, `disk0` and `disk1`, and a key.
fn daemon(name: &str) -> Daemon {
    let mut d = Daemon::new(name);
    d.start();
    d.ok(&format!("pool create safe --raid 1 {}", d.devices(2, "256M")));
    d.ok(&format!("key new {}", d.path("v.key")));
    d.ok("host create all --allow-any");
    d
}

fn make(d: &Daemon, volume: &str, more: &str) {
    d.ok(&format!("volume create {volume} --pool safe --size 64M {more}"));
    d.ok(&format!("map create all {volume}"));
}

fn encrypted(d: &Daemon, volume: &str, more: &str) {
    make(d, volume, &format!("--encrypt --key file:{} {more}", d.path("v.key")));
}

fn put(d: &Daemon, volume: &str, data: &[u8]) {
    let file = d.path("data");
    std::fs::write(&file, data).expect("written");
    d.write(volume, &file);
}

fn text(line: &str) -> Vec<u8> {
    line.as_bytes().iter().copied().cycle().take(MIB).collect()
}

fn faults(d: &Daemon) -> Vec<Value> {
    d.json("status")["faults"].as_array().cloned().unwrap_or_default()
}

/// Waits until there are no faults.
fn well(d: &Daemon) {
    let begin = Instant::now();
    while !faults(d).is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{}\n{}", d.json("status"), d.log());
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn moved(d: &Daemon, volume: &str) {
    let begin = Instant::now();
    while !d.json(&format!("volume show {volume}"))["migration"].is_null() {
        assert!(begin.elapsed() < Duration::from_secs(120), "it ends: {}", d.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn hosts_read_what_is_encrypted_and_the_devices_do_not_show_it() {
    let mut d = daemon("encrypted");
    encrypted(&d, "v", "--block-size 4096");
    encrypted(&d, "vs", "");
    make(&d, "x", "");
    let mut known: Known = zeros();
    let n =
        under_load_by_both(&d, &mut known, 1, || std::thread::sleep(Duration::from_millis(600)));
    assert!(n.0 > 100 && n.1 > 50, "there was load: {n:?}");
    put(&d, "vs", &text(SECRET));
    put(&d, "x", &text(PUBLIC));
    let graph = d.ok("graph v");
    assert!(graph.contains("encryption=aes-256-xts"), "{graph}");
    let shown = d.ok("volume show v");
    assert!(shown.contains("aes-256-xts") && shown.contains("v.key"), "{shown}");
    assert!(!d.ok("graph x").contains("encryption"));
    for kill in [false, true, false] {
        match kill {
            true => d.kill(),
            false => d.stop(),
        }
        d.start();
        verify(&d, &mut known);
        assert!(d.read("vs", MIB) == text(SECRET));
        assert!(d.read("x", MIB) == text(PUBLIC));
        assert_eq!(faults(&d), [Value::Null; 0]);
    }
    // Blocks that were never written, and that were given back, read as zeros.
    assert!(d.read("vs", 8 * MIB)[MIB..].iter().all(|b| *b == 0));
    d.ok("volume resize vs +16M");
    assert!(d.read("vs", 80 * MIB)[MIB..].iter().all(|b| *b == 0));
    assert!(d.read("vs", MIB) == text(SECRET));

    // The key is nowhere but in its file, and what it wraps is not told.
    let key = std::fs::read_to_string(d.path("v.key")).expect("the key");
    let sealed = std::fs::read_to_string(d.path("config.json")).expect("the copy");
    let sealed: Value = serde_json::from_str(&sealed).expect("JSON");
    let sealed = sealed["volumes"]["v"]["layout"]["form"]["encryption"]["sealed"]["text"].clone();
    let sealed = sealed.as_str().expect("a wrapped key").to_owned();
    for line in ["volume show v", "volume list", "graph v", "events", "status", "pool show safe"] {
        for told in [d.ok(line), d.ok(&format!("{line} --json"))] {
            assert!(!told.contains(key.trim()) && !told.contains(&sealed), "{line}: {told}");
        }
    }
    assert!(!d.log().contains(key.trim()) && !d.log().contains(&sealed));
    d.stop();
    for i in 0..2 {
        let disk = d.path(&format!("disk{i}"));
        assert_eq!(seen(SECRET, &disk), 0, "encrypted");
        assert!(seen(PUBLIC, &disk) > 1000, "what is not is found, so that the search is one");
    }
    std::fs::remove_file(d.path("v.key")).expect("removed");
    let dir = d.dir.display().to_string();
    assert_eq!(seen(key.trim(), &dir), 0, "the key is nowhere else");
    d.is_clean(2);
}

#[test]
fn without_its_key_a_volume_is_not_ready_and_others_are() {
    let mut d = daemon("keyless");
    encrypted(&d, "v", "--block-size 4096");
    make(&d, "open", "");
    put(&d, "v", &text(SECRET));
    put(&d, "open", &text(PUBLIC));
    let (key, other) = (d.path("v.key"), d.path("other.key"));
    d.ok(&format!("key new {other}"));
    assert_eq!(d.fails(&format!("key new {other}"), 1).0, "io_error", "it is there already");

    // Gone; another one in its place; one that others may read. Each is said, and tried again by itself.
    d.stop();
    std::fs::rename(&key, d.path("away")).expect("moved");
    d.start();
    let f = faults(&d);
    assert_eq!(
        (f.len(), &f[0]["object"], &f[0]["code"]),
        (1, &"volume/v".into(), &"key_unavailable".into())
    );
    let told = f[0].to_string();
    assert!(told.contains("No such file") && told.contains("weir volume rekey v"), "{told}");
    assert!(d.read("open", MIB) == text(PUBLIC));
    assert_eq!(d.fails("graph v", 4).0, "not_ready");
    assert_eq!(d.fails("snapshot create v@s", 4).0, "not_ready");
    std::fs::copy(&other, &key).expect("copied");
    let begin = Instant::now();
    while faults(&d)[0]["code"] != "wrong_key" {
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", faults(&d));
        std::thread::sleep(Duration::from_millis(100));
    }
    std::fs::remove_file(&key).expect("removed");
    std::fs::copy(d.path("away"), &key).expect("copied");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).expect("mode");
    let begin = Instant::now();
    while !faults(&d)[0].to_string().contains("mode 644") {
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", faults(&d));
        std::thread::sleep(Duration::from_millis(100));
    }
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("mode");
    well(&d);
    assert!(d.read("v", MIB) == text(SECRET));

    // Another key: at once, and for good.
    std::fs::remove_file(&key).expect("removed");
    let rekey = format!("volume rekey v --key file:{other}");
    assert_eq!(d.fails(&rekey, 4).0, "key_unavailable", "the old one is needed");
    let wrong = format!("volume rekey v --old-key file:{other} --key file:{other}");
    assert_eq!(d.fails(&wrong, 4).0, "wrong_key");
    d.ok(&format!("volume rekey v --old-key file:{} --key file:{other}", d.path("away")));
    d.kill();
    d.start();
    assert_eq!(faults(&d), [Value::Null; 0]);
    assert!(d.read("v", MIB) == text(SECRET));
    // The old one opens it no more; a volume that is down is rekeyed too.
    d.stop();
    std::fs::rename(&other, d.path("other.away")).expect("moved");
    std::fs::copy(d.path("away"), &other).expect("copied");
    d.start();
    assert_eq!(faults(&d)[0]["code"], "wrong_key");
    d.ok(&format!(
        "volume rekey v --old-key file:{} --key file:{}",
        d.path("other.away"),
        d.path("away")
    ));
    well(&d);
    assert!(d.read("v", MIB) == text(SECRET));

    // What makes no sense is refused.
    d.ok(&format!("pool create plain --device file:{}:64M", d.path("plain")));
    let create = |pool: &str, key: &str| {
        format!("volume create w --pool {pool} --size 1M --encrypt --key {key}")
    };
    assert_eq!(d.fails(&create("plain", &format!("file:{other}")), 7).0, "unsupported");
    assert_eq!(d.fails(&create("safe", "file:/nowhere"), 4).0, "key_unavailable");
    let (_, said) = d.fails(&create("safe", "hunter2"), 2);
    assert!(said.contains("file:"), "{said}");
    assert_eq!(d.fails(&format!("volume rekey open --key file:{other}"), 7).0, "unsupported");
    assert_eq!(d.json("volume list").as_array().map(Vec::len), Some(2), "nothing was left");
    d.stop();
}

#[test]
fn a_key_manager_is_asked_by_a_command() {
    let mut d = daemon("manager");
    let (program, slow) = (d.path("get-key"), d.path("slow"));
    let script = format!(
        "#!/bin/sh\ntest -e {slow} && sleep 4\ntest -e {slow}er && sleep 60\ncat \"$1\" && exit\necho no key called \"$1\" >&2; exit 2\n"
    );
    std::fs::write(&program, script).expect("written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).expect("mode");
    // Only what the daemon's own file lists is run.
    std::fs::write(d.path("weir.toml"), format!("key_commands = [\"{program}\"]\n"))
        .expect("written");
    d.stop();
    d.start();
    let phrase = d.path("phrase");
    std::fs::write(&phrase, "correct horse battery staple\n").expect("written");
    let run = |line: String| {
        let args: Vec<&str> = line.split('|').collect();
        let out = crate::common::weir(&d.dir, &args);
        assert!(out.status.success(), "{:?}", crate::common::texts(&out));
    };
    run(format!(
        "volume|create|v|--pool|safe|--size|64M|--encrypt|--key|command:{program} {phrase}"
    ));
    d.ok("map create all v");
    put(&d, "v", &text(SECRET));
    make(&d, "open", "");
    // It takes a while: the volume comes up by itself. It takes for ever: others are there all the same.
    for (name, least) in [("slow", 1), ("slower", 1)] {
        std::fs::write(d.path(name), "").expect("written");
        d.stop();
        let begin = Instant::now();
        d.start();
        assert!(begin.elapsed() < Duration::from_secs(25), "others do not wait");
        let f = faults(&d);
        assert_eq!((f.len(), &f[0]["code"]), (least, &"key_unavailable".into()), "{f:?}");
        d.read("open", MIB);
        if name == "slower" {
            std::fs::remove_file(d.path(name)).expect("removed");
            std::fs::remove_file(d.path("slow")).expect("removed");
        }
        well(&d);
        assert!(d.read("v", MIB) == text(SECRET));
    }
    // It says why not, and that is told.
    d.stop();
    std::fs::rename(&phrase, d.path("away")).expect("moved");
    d.start();
    let told = faults(&d)[0].to_string();
    assert!(told.contains("no key called"), "{told}");
    std::fs::rename(d.path("away"), &phrase).expect("moved");
    well(&d);
    assert!(d.read("v", MIB) == text(SECRET));
    d.stop();
}

#[test]
fn snapshots_and_clones_of_an_encrypted_volume_are_encrypted() {
    let mut d = daemon("crypt-clones");
    encrypted(&d, "v", "");
    let (before, after) = (text(SECRET), noise(3, MIB));
    put(&d, "v", &before);
    d.ok("snapshot create v@s1");
    put(&d, "v", &after);
    d.ok("clone create v@s1 c");
    d.ok("clone create v@s1 r --read-only");
    for c in ["c", "r"] {
        d.ok(&format!("map create all {c}"));
        assert!(d.read(c, MIB) == before, "{c}");
    }
    assert!(d.ok("volume show c").contains("aes-256-xts"));
    // A clone has the same data key and a wrapping of its own.
    let other = d.path("c.key");
    d.ok(&format!("key new {other}"));
    d.ok(&format!("volume rekey c --key file:{other}"));
    let mixed = noise(4, MIB);
    put(&d, "c", &mixed);
    d.ok("snapshot create c@s2");
    d.ok("clone create c@s2 cc");
    d.ok("map create all cc");
    d.kill();
    d.start();
    for (v, data) in [("v", &after), ("c", &mixed), ("cc", &mixed), ("r", &before)] {
        assert!(d.read(v, MIB) == *data, "{v}");
    }
    assert!(d.ok("volume show cc").contains("c.key"));
    d.ok("map delete all v");
    d.ok("snapshot revert v@s1 --yes");
    d.ok("map create all v");
    assert!(d.read("v", MIB) == before);
    // Without its key no clone is made that nobody could open.
    std::fs::rename(d.path("v.key"), d.path("away")).expect("moved");
    assert_eq!(d.fails("clone create v@s1 x", 4).0, "key_unavailable");
    std::fs::rename(d.path("away"), d.path("v.key")).expect("moved");
    d.ok("clone create v@s1 x");
    d.stop();
    for i in 0..2 {
        assert_eq!(seen(SECRET, &d.path(&format!("disk{i}"))), 0);
    }
    d.is_clean(2);
}

#[test]
fn an_encrypted_volume_moves_and_is_encrypted_anew_under_hosts_that_see_nothing() {
    let mut d = daemon("crypt-moves");
    d.ok(&format!(
        "pool create far --raid 0 --device file:{}:256M --device file:{}:256M",
        d.path("far0"),
        d.path("far1")
    ));
    encrypted(&d, "v", "--block-size 4096");
    let mut known: Known = zeros();
    under_load(&d, &mut known, 1, || std::thread::sleep(Duration::from_millis(200)));
    let sealed = |d: &Daemon| {
        let config = std::fs::read_to_string(d.path("config.json")).expect("the copy");
        let config: Value = serde_json::from_str(&config).expect("JSON");
        config["volumes"]["v"]["layout"]["form"]["encryption"]["sealed"]["text"].clone()
    };
    assert_eq!(d.fails("migrate start v --to safe", 2).0, "invalid_request");

    // To another pool, and within its own with a new key of its own, under load.
    let mut old = sealed(&d);
    for (round, line) in [
        "migrate start v --to far --wait",
        "migrate start v --to safe --wait",
        "volume rekey v --reencrypt --wait",
        "volume rekey v --reencrypt --rate 100M --wait",
        "volume rekey v --reencrypt --wait",
    ]
    .into_iter()
    .enumerate()
    {
        let n = under_load(&d, &mut known, 10 + round as u64, command(&d, line));
        assert!(n.0 > 20, "there was load: {n:?}");
        assert!(d.ok("volume show v").contains("aes-256-xts"), "{line}");
        let new = sealed(&d);
        assert_ne!(new, old, "{line}: another key");
        old = new;
        verify(&d, &mut known);
    }
    // Snapshots of where it is now, under whatever name.
    d.ok("snapshot create v@s");
    let listed = d.json("snapshot list v");
    assert_eq!(
        (&listed[0]["name"], listed.as_array().map(Vec::len)),
        (&"s".into(), Some(1)),
        "{listed}"
    );
    d.ok("clone create v@s c");
    assert_eq!(d.json("snapshot list v")[0]["clones"][0], "c");
    assert_eq!(d.fails("volume rekey v --reencrypt", 4).0, "snapshot_in_use");
    d.ok("volume delete c --yes");
    d.ok("snapshot delete v@s --yes");
    d.kill();
    d.start();
    verify(&d, &mut known);

    // Killed while it is encrypted anew: it goes on by itself.
    let (start, pid) = (command(&d, "volume rekey v --reencrypt --rate 20M"), d.pid());
    under_load(&d, &mut known, 30, move || {
        start();
        std::thread::sleep(Duration::from_millis(300));
        let killed = Command::new("kill").args(["-9", &pid.to_string()]).status();
        assert!(killed.expect("kill runs").success());
    });
    d.kill();
    d.start();
    verify(&d, &mut known);
    moved(&d, "v");
    assert_ne!(sealed(&d), old);
    verify(&d, &mut known);

    assert_eq!(faults(&d), [Value::Null; 0]);
    d.stop();
    d.is_clean(2);
}

#[test]
fn out_of_its_encryption_a_volume_goes_only_when_that_is_said() {
    let mut d = daemon("decrypt");
    d.ok(&format!("pool create plain --device file:{}:192M", d.path("plain")));
    encrypted(&d, "v", "");
    put(&d, "v", &text(SECRET));
    // Out of the encryption only when that is said.
    let image = d.path("v.img");
    for line in
        ["migrate start v --to plain".to_owned(), format!("volume export v --to {image} --create")]
    {
        let (code, said) = d.fails(&line, 7);
        assert!(code == "unsupported" && said.contains("--decrypt"), "{said}");
    }
    assert!(!std::path::Path::new(&image).exists());
    assert_eq!(seen(SECRET, &d.path("plain")), 0);
    d.ok("migrate start v --to plain --decrypt --wait");
    assert!(!d.ok("volume show v").contains("aes-256-xts"));
    assert!(d.read("v", MIB) == text(SECRET));
    assert_eq!(d.fails("migrate start v --to safe --decrypt", 2).0, "invalid_request");
    assert_eq!(
        d.fails(&format!("volume rekey v --key file:{}", d.path("v.key")), 7).0,
        "unsupported"
    );
    // Into it again, with another key.
    d.ok(&format!("key new {}", d.path("new.key")));
    d.ok(&format!("migrate start v --to safe --encrypt --key file:{} --wait", d.path("new.key")));
    assert!(d.ok("volume show v").contains("new.key"));
    d.stop();
    d.start();
    assert!(d.read("v", MIB) == text(SECRET));
    d.ok(&format!("volume export v --to {image} --create --decrypt --wait"));
    assert!(d.read("v", MIB) == text(SECRET));
    assert!(seen(SECRET, &image) > 1000, "as it is");
    assert_eq!(faults(&d), [Value::Null; 0]);
    d.stop();
    for i in 0..2 {
        assert_eq!(seen(SECRET, &d.path(&format!("disk{i}"))), 0);
    }
    d.is_clean(2);
}

/// Whenever it is killed, the key afterwards is the old one or the new one, and the data is there.
#[test]
fn kill_9_leaves_the_key_of_before_or_of_after() {
    let mut d = daemon("rekey-kill");
    encrypted(&d, "v", "");
    put(&d, "v", &text(SECRET));
    let keys = [d.path("v.key"), d.path("b.key")];
    d.ok(&format!("key new {}", keys[1]));
    let mut rng = weir_base::Prng::new(5);
    let mut changed = 0;
    for round in 0..8 {
        let now = d.json("volume show v")["layout"]["form"]["encryption"]["key"].clone();
        let new = keys.iter().find(|k| now != format!("file:{k}")).expect("another").clone();
        let (dir, line) = (d.dir.clone(), format!("volume rekey v --key file:{new}"));
        let asking = std::thread::spawn(move || {
            let args: Vec<&str> = line.split_whitespace().collect();
            crate::common::weir(&dir, &args).status.success()
        });
        std::thread::sleep(Duration::from_millis(rng.between(0, 60)));
        d.kill();
        let acknowledged = asking.join().expect("it ran");
        d.start();
        assert_eq!(faults(&d), [Value::Null; 0], "round {round}");
        assert!(d.read("v", MIB) == text(SECRET), "round {round}");
        let then = d.json("volume show v")["layout"]["form"]["encryption"]["key"].clone();
        assert!(!acknowledged || then == format!("file:{new}"), "round {round}: {then}");
        changed += u32::from(then != now);
    }
    println!("8 kills, {changed} changes of the key got through");
    d.stop();
}

/// A page of the documentation.
fn page(name: &str) -> String {
    let path = format!("{}/../../docs/{name}.md", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).expect("the page")
}

/// The blocks of a page that are for a configuration file.
fn blocks(name: &str) -> Vec<String> {
    let block = |text: &str| text.split("```").next().map(str::to_owned);
    page(name).split("```toml\n").skip(1).filter_map(block).collect()
}

/// What a page says in its sentences about configuration files is to be in `[[pool]]` or `[[volume]]`.
fn lines(name: &str, table: &str) -> String {
    let page = page(name);
    let about = page.lines().filter(|l| l.starts_with("In a configuration file:"));
    let about = about.filter(|l| l.contains(&format!("`[[{table}]]`")));
    let code = about.flat_map(|l| l.split('`').skip(1).step_by(2));
    code.filter(|c| c.contains(" = ")).fold(String::new(), |all, c| all + c + "\n")
}

#[test]
fn the_lines_of_the_pages_can_be_applied() {
    let mut d = daemon("pages");
    let apply = |text: &str| {
        let file = d.path("page.toml");
        std::fs::write(&file, text).expect("written");
        d.ok(&format!("apply {file}"));
    };
    let form = |name: &str, volume: &str| {
        let blocks = blocks(name);
        assert!(!blocks.is_empty(), "{name} has some");
        let key = format!("file:{}", d.path("v.key"));
        blocks.iter().for_each(|b| apply(&b.replace("file:/etc/weir/db-03.key", &key)));
        d.json(&format!("volume show {volume}"))["layout"]["form"].clone()
    };
    let encrypted = form("encryption", "db-03");
    assert_eq!(encrypted["encryption"]["key"], format!("file:{}", d.path("v.key")));
    assert_eq!(form("compression", "logs")["compression"]["algorithm"], "zstd:5");
    assert_eq!(form("deduplication", "desktops")["deduplication"]["chunk"], 4096);
    let (of_pool, of_volume) = (lines("pools", "pool"), lines("pools", "volume"));
    assert!(of_pool.contains("raid") && of_volume.contains("snapshots"), "{of_pool}{of_volume}");
    let device = |n| format!("{{ kind = 'file', path = '{}', size = '128M' }}", d.path(n));
    apply(&format!(
        "[[pool]]\nname = 'lines'\ndevices = [{}, {}]\n{of_pool}[[volume]]\nname = 'ruled'\npool = 'lines'\nsize = '16M'\n{of_volume}",
        device("l0"),
        device("l1")
    ));
    assert_eq!(d.json("pool show lines")["protection"]["memory"], "full");
    assert!(d.ok("snapshot policy show ruled").contains("10m"));
    assert_eq!(faults(&d), [Value::Null; 0]);
    d.stop();
}

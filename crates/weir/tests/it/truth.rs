//! Two places tell of one thing, and one of them is older, or gone: the real program, files as devices.

use crate::common::{Daemon, noise};

const MIB: usize = 1 << 20;

/// Writes to a part of a volume.
fn put_at(d: &Daemon, volume: &str, at: usize, data: &[u8]) {
    let (target, file) = (d.target(), d.path("data"));
    std::fs::write(&file, data).expect("written");
    d.ok(&format!(
        "write --target {target} --volume {volume} --offset {at} --input {file} --bs 64k"
    ));
}

/// Reads a part of a volume.
fn get_at(d: &Daemon, volume: &str, at: usize, len: usize) -> Vec<u8> {
    let (target, file) = (d.target(), d.path("read-back"));
    drop(std::fs::remove_file(&file));
    d.ok(&format!(
        "read --target {target} --volume {volume} --offset {at} --length {len} --output {file} --bs 64k"
    ));
    std::fs::read(file).expect("what was read")
}

fn node(name: &str) -> Daemon {
    let mut d = Daemon::new(name);
    d.start();
    d.ok(&format!("pool create safe --raid 0 {}", d.devices(1, "256M")));
    d.ok("host create all --allow-any");
    d
}

#[test]
fn an_older_store_cuts_nothing_off() {
    let mut d = node("truth-older");
    for (name, form) in [("grow", ""), ("thin", "--dedup --compress lz4")] {
        d.ok(&format!("volume create {name} --pool safe --size 16M {form}"));
        d.ok(&format!("map create all {name}"));
    }
    d.stop();
    let (store, copy) = (d.path("weir.redb"), d.path("copy.redb"));
    std::fs::copy(&store, &copy).expect("a copy");
    d.start();
    let data = noise(1, MIB);
    for name in ["grow", "thin"] {
        d.ok(&format!("volume resize {name} 32M"));
        put_at(&d, name, 24 * MIB, &data);
    }
    d.stop();
    std::fs::copy(&copy, &store).expect("put back");
    d.start();
    // It is told, and nothing of the newer configuration is overwritten.
    let faults = d.json("status")["faults"].to_string();
    assert!(faults.contains("record_newer"), "{faults}");
    let events = d.ok("events");
    assert!(events.contains("has 32 MiB on its devices and not 16 MiB"), "{events}");
    for name in ["grow", "thin"] {
        assert_eq!(d.json(&format!("volume show {name}"))["size"], 32 << 20);
        assert!(get_at(&d, name, 24 * MIB, MIB) == data, "{name}");
    }
    // The copy for people was of more than the store, so it is kept.
    let kept = std::fs::read_to_string(d.path("config.json.1")).expect("it is kept");
    assert!(kept.contains(&format!("\"size\": {}", 32 << 20)));
    d.ok("pool release safe --yes");
    d.ok(&format!("pool import --device file:{}", d.path("disk0")));
    assert_eq!(d.json("status")["faults"], serde_json::json!([]));
    assert!(get_at(&d, "grow", 24 * MIB, MIB) == data);
    d.stop();
    d.is_clean(1);
}

#[test]
fn a_store_that_is_gone_is_not_a_new_node() {
    let mut d = node("truth-gone");
    d.ok(&format!("pool create plain --device file:{}:64M", d.path("plain")));
    d.ok("volume create v --pool safe --size 8M");
    d.ok("volume create p --pool plain --size 8M");
    d.ok("map create all p");
    let data = noise(2, MIB);
    put_at(&d, "p", 0, &data);
    let shown = ["v", "p"].map(|n| d.json(&format!("volume show {n}")));
    d.stop();
    let (store, copy) = (d.path("weir.redb"), d.path("config.json"));
    let before = std::fs::read(&copy).expect("a copy");
    for empty in [true, false] {
        match empty {
            true => std::fs::write(&store, b"").expect("emptied"),
            false => std::fs::remove_file(&store).expect("removed"),
        }
        let out =
            crate::common::weir(&d.dir, &["serve", "--cores", "0", "--listen", "127.0.0.1:0"]);
        let (_, stderr) = crate::common::texts(&out);
        assert!(!out.status.success());
        assert!(stderr.contains("no new node") && stderr.contains("--restore-from"), "{stderr}");
        assert!(std::fs::read(&copy).expect("it is there") == before, "the copy is as it was");
    }
    d.start_with(&["--restore-from", &copy]);
    d.wait();
    assert_eq!(d.json("status")["faults"], serde_json::json!([]), "{}", d.log());
    assert_eq!(["v", "p"].map(|n| d.json(&format!("volume show {n}"))), shown);
    assert!(get_at(&d, "p", 0, MIB) == data);
    d.ok("volume create more --pool safe --size 1M");
    d.stop();
    // Where there is a store, no copy takes its place.
    let out = crate::common::weir(&d.dir, &["serve", "--restore-from", &copy]);
    assert!(!out.status.success() && crate::common::texts(&out).1.contains("can be opened"));
    d.start();
    assert_eq!(d.json("volume show more")["size"], 1 << 20);
    d.stop();
    d.is_clean(1);
}

#[test]
fn what_is_cut_off_is_nobodys() {
    let mut d = node("truth-cut");
    d.ok(&format!("pool create plain --device file:{}:64M", d.path("plain")));
    d.ok(&format!("pool create dir --device dir:{}", d.path("dir")));
    let data = noise(3, 8 * MIB);
    for pool in ["plain", "dir", "safe"] {
        let v = format!("v-{pool}");
        d.ok(&format!("volume create {v} --pool {pool} --size 32M"));
        d.ok(&format!("map create all {v}"));
        for at in [0, 24 * MIB] {
            put_at(&d, &v, at, &data);
        }
        // By less than a piece of space, and by many.
        for (size, kept) in [(32 * MIB - 512, 31 * MIB), (4 * MIB + 4096, 4 * MIB)] {
            d.ok(&format!("volume resize {v} {size} --allow-shrink"));
            assert_eq!(d.json(&format!("volume show {v}"))["size"], size);
            assert!(d.json(&format!("volume show {v}"))["cut"].is_null(), "it is gone by now");
            assert!(get_at(&d, &v, 0, kept.min(8 * MIB)) == data[..kept.min(8 * MIB)], "{pool}");
        }
        // The space is another volume's now, which finds nothing there.
        d.ok(&format!("volume create w-{pool} --pool {pool} --size 28M"));
        d.ok(&format!("map create all w-{pool}"));
        assert!(get_at(&d, &format!("w-{pool}"), 0, 28 * MIB).iter().all(|b| *b == 0), "{pool}");
        d.ok(&format!("volume resize {v} 8M"));
        let end = 4 * MIB + 4096;
        assert!(get_at(&d, &v, end, 8 * MIB - end).iter().all(|b| *b == 0), "{pool}");
        assert!(get_at(&d, &v, 0, end) == data[..end], "{pool}");
        // Larger than it ever was, under its hosts.
        d.ok(&format!("volume resize {v} 34M"));
        put_at(&d, &v, 33 * MIB, &data[..MIB]);
        assert!(get_at(&d, &v, 33 * MIB, MIB) == data[..MIB], "{pool}");
    }
    assert_eq!(d.json("status")["faults"], serde_json::json!([]), "{}", d.log());
    d.stop();
    d.is_clean(1);
}

/// Neither the data directory nor the devices have a key as it was wrapped before.
#[test]
fn nothing_has_a_key_as_it_was_wrapped_before() {
    let mut d = node("truth-rekey");
    for key in ["one", "two"] {
        d.ok(&format!("key new {}", d.path(key)));
    }
    d.ok(&format!("volume create v --pool safe --size 8M --encrypt --key file:{}", d.path("one")));
    let sealed = |d: &Daemon| {
        let text = std::fs::read_to_string(d.path("config.json")).expect("the copy");
        let copy: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let sealed = &copy["volumes"]["v"]["layout"]["form"]["encryption"]["sealed"]["text"];
        sealed.as_str().expect("wrapped").to_owned()
    };
    let old = sealed(&d);
    // What the devices carry of it is written again and again.
    for n in 0..5 {
        d.ok(&format!("volume create w{n} --pool safe --size 1M"));
        d.ok(&format!("map create all v --lun {n}"));
        d.ok("map delete all v");
    }
    d.stop();
    d.start();
    let has = |d: &Daemon, file: &str, text: &str| {
        let bytes = std::fs::read(d.path(file)).expect("read");
        bytes.windows(text.len()).any(|w| w == text.as_bytes())
    };
    assert!(has(&d, "disk0", &old), "the devices carry it");
    d.ok(&format!("volume rekey v --key file:{}", d.path("two")));
    assert_ne!(sealed(&d), old);
    assert!(!has(&d, "disk0", &old) && has(&d, "disk0", &sealed(&d)));
    d.ok("volume create after --pool safe --size 1M");
    d.stop();
    for entry in std::fs::read_dir(&d.dir).expect("a directory").flatten() {
        let bytes = std::fs::read(entry.path()).unwrap_or_default();
        let found = bytes.windows(old.len()).any(|w| w == old.as_bytes());
        assert!(!found, "{}", entry.path().display());
    }
    d.start();
    assert_eq!(d.json("status")["faults"], serde_json::json!([]), "{}", d.log());
    d.stop();
    d.is_clean(1);
}

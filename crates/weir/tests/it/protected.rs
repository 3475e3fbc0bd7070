//! Protected pools end to end: the real program, files as devices, data over SRP.

use crate::common::{Daemon, noise};
use std::collections::BTreeSet;

const MIB: usize = 1 << 20;

#[test]
fn a_mirrored_pool_keeps_data_over_restarts_and_kills() {
    let mut d = Daemon::new("mirror");
    d.start();
    let devices = d.devices(2, "128M");
    let made = d.ok(&format!("pool create safe --raid 1 {devices}"));
    assert!(made.contains("pool safe created"), "{made}");
    d.ok("volume create db-01 --size 1G");
    d.ok("volume create db-02 --size 64M --block-size 4096");
    d.ok("host create all --allow-any");
    d.ok("map create all db-01");
    d.ok("map create all db-02");
    let (a, b) = (noise(1, 5 * MIB + 512), noise(2, MIB));
    let (fa, fb) = (d.path("a"), d.path("b"));
    std::fs::write(&fa, &a).expect("written");
    std::fs::write(&fb, &b).expect("written");
    d.write("db-01", &fa);
    d.write("db-02", &fb);
    let check = |d: &Daemon| {
        assert!(d.read("db-01", 5 * MIB + 512) == a, "db-01");
        assert!(d.read("db-02", MIB) == b, "db-02");
    };
    check(&d);

    let p = d.json("pool show safe");
    assert_eq!((&p["live"]["state"], &p["protection"]["raid"]), (&"healthy".into(), &"1".into()));
    assert_eq!(p["live"]["devices"].as_array().map(Vec::len), Some(2));
    assert!(p["free"].as_u64() > Some(90 << 20), "thin: {p}");
    assert!(d.ok("pool show safe").contains("in-sync"));
    assert!(d.ok("volume show db-01").contains("of the protected pool"));

    d.stop();
    d.start();
    check(&d);
    d.kill();
    d.start();
    check(&d);
    // The daemon has two reactors, and the tools log in on both.
    let status = d.json("status");
    assert_eq!(status["faults"].as_array().map(Vec::len), Some(0), "{status}");
    assert_eq!(status["live"]["pools"][0]["name"], "safe");

    d.ok("volume resize db-02 +64M");
    assert!(d.read("db-02", 128 * MIB)[MIB..].iter().all(|b| *b == 0), "the new part is empty");
    assert_eq!(d.fails("pool resize safe --grow 0:1G", 7).0, "unsupported");
    d.ok("map delete all db-02");
    d.ok("volume delete db-02 --yes");
    d.stop();
    d.start();
    assert_eq!(d.json("volume list").as_array().map(Vec::len), Some(1));
    assert!(d.read("db-01", 5 * MIB + 512) == a);
    d.stop();
}

#[test]
fn what_is_missing_is_said_and_never_made_anew() {
    let mut d = Daemon::new("missing");
    d.start();
    assert_eq!(
        d.fails(&format!("pool create p --raid 1 {}", d.devices(1, "64M")), 2).0,
        "invalid_device"
    );
    assert_eq!(d.fails("pool create p --raid 0 --device ram:64M", 2).0, "invalid_device");
    assert_eq!(
        d.fails(&format!("pool create p --raid 1 {}", d.devices(2, "1M")), 2).0,
        "invalid_device"
    );
    d.ok(&format!("pool create p --raid 1 {}", d.devices(2, "64M")));
    d.ok("volume create v --size 16M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let data = noise(3, MIB);
    let file = d.path("data");
    std::fs::write(&file, &data).expect("written");
    d.write("v", &file);
    d.stop();

    // A device that was in sync is gone: the pool says so and is not up.
    std::fs::create_dir(d.path("elsewhere")).expect("a directory");
    std::fs::rename(d.path("disk1"), d.path("elsewhere/gone")).expect("moved");
    d.start();
    let status = d.json("status");
    let text = status["faults"].to_string();
    assert!(text.contains("pool_damaged") && text.contains("weir pool force p"), "{text}");
    assert!(!std::path::Path::new(&d.path("disk1")).exists(), "no device is made in its place");
    assert_eq!(d.fails("volume create w --size 1M --pool p", 4).0, "not_ready");
    let forced = d.json("pool force p --yes");
    assert_eq!(forced["live"]["state"], "degraded", "{forced}");
    assert!(d.read("v", MIB) == data, "degraded and served");
    let fault = d.json("status")["faults"][0].clone();
    assert_eq!((&fault["object"], &fault["code"]), (&"pool/p".into(), &"pool_degraded".into()));
    d.stop();
    // From then on it is known to be out, and the pool opens without it.
    d.start();
    assert!(d.read("v", MIB) == data);
    d.stop();

    // Devices of another pool are no pool: the volume is missing, and no empty one takes its place.
    for n in ["disk0", "elsewhere/gone"] {
        std::fs::remove_file(d.path(n)).expect("removed");
    }
    d.start();
    let text = d.json("status")["faults"].to_string();
    assert!(text.contains("pool/p") && text.contains("a volume waits for it"), "{text}");
    d.stop();
}

#[test]
fn snapshots_clones_scrub_check_and_dump() {
    let mut d = Daemon::new("tools");
    d.start();
    d.ok(&format!("pool create p --raid 10 {}", d.devices(4, "64M")));
    d.ok("pool create plain --device ram:64M");
    assert_eq!(d.fails("pool memory plain full", 7).0, "unsupported");
    assert!(d.ok("pool memory p full").contains("at most 32 MiB (full)"));
    d.ok("volume create a --pool p --size 32M");
    d.ok("volume create b --pool p --size 32M");
    d.ok("volume create c --pool plain --size 16M");
    d.ok("host create all --allow-any");
    d.ok("map create all a");
    d.ok("map create all b");
    let (file, before, after) = (d.path("data"), noise(4, MIB), noise(5, MIB));
    std::fs::write(&file, &before).expect("written");
    d.write("a", &file);
    d.write("b", &file);
    let made = d.json("snapshot create a@s1 b@s1");
    assert_eq!(made.as_array().map(Vec::len), Some(2), "{made}");
    std::fs::write(&file, &after).expect("written");
    d.write("a", &file);
    let listed = d.json("snapshot list a");
    assert_eq!((&listed[0]["name"], &listed[0]["volume"]), (&"s1".into(), &"a".into()));
    assert!(d.ok("snapshot list").contains("b@s1"));
    for (line, exit, code) in [
        ("snapshot create a@s1", 4, "snapshot_exists"),
        ("snapshot create c", 7, "unsupported"),
        ("snapshot create a c", 2, "invalid_request"),
        ("snapshot create a@q a@q", 2, "invalid_request"),
        ("snapshot delete a@none --yes", 3, "snapshot_not_found"),
        ("snapshot revert a@s1 --yes", 4, "volume_mapped"),
        ("volume delete b --yes", 4, "volume_mapped"),
        ("clone create a@none x", 3, "snapshot_not_found"),
        ("clone create a@s1 b", 4, "volume_exists"),
        ("scrub start plain", 7, "unsupported"),
        ("graph none", 3, "volume_not_found"),
    ] {
        assert_eq!(d.fails(line, exit).0, code, "weir {line}");
    }
    d.ok("clone create a@s1 old");
    d.ok("map create all old");
    assert!(d.read("old", MIB) == before && d.read("a", MIB) == after);
    assert_eq!(d.fails("snapshot delete a@s1 --yes", 4).0, "snapshot_in_use");
    std::fs::write(&file, noise(6, 4096)).expect("written");
    d.write("old", &file);
    assert!(d.read("a", MIB) == after, "a clone is a volume of its own");

    d.ok("snapshot create b");
    assert_eq!(d.json("snapshot list b").as_array().map(Vec::len), Some(2));
    d.ok("map delete all b");
    assert_eq!(d.fails("volume delete b --yes", 4).0, "snapshot_in_use");
    assert_eq!(d.fails("snapshot revert b@s1 --yes", 4).0, "snapshot_in_use");
    d.ok("map delete all a");
    d.ok("snapshot revert a@s1 --yes");
    d.ok("map create all a");
    assert!(d.read("a", MIB) == before, "reverted");
    assert!(d.ok("graph a").contains("store"));
    assert_eq!(d.json("graph a")["nodes"][0]["params"]["pool"], "p");

    // Half of one device rots; hosts see nothing of it and the scrub mends it.
    d.stop();
    let disk = d.path("disk2");
    let mut bytes = std::fs::read(&disk).expect("the device");
    let label = d.json(&format!("dump --device {disk} label"));
    let first = label["parts"][0]["first_slab_block"].as_u64().expect("a layout") as usize;
    let used: Vec<usize> = (first..bytes.len() / 4096)
        .filter(|b| bytes[b * 4096..(b + 1) * 4096].iter().any(|x| *x != 0))
        .collect();
    assert!(used.len() > 100, "{} blocks in use", used.len());
    for b in used.iter().step_by(2) {
        bytes[b * 4096 + 77] ^= 0x10;
    }
    std::fs::write(&disk, &bytes).expect("written");
    let all: String =
        (0..4).map(|i| format!("--device {} ", d.path(&format!("disk{i}")))).collect();
    let (_, report) = d.fails(&format!("check {all}"), 1);
    assert_eq!(report, "", "findings are the report, not an error");
    d.start();
    assert!(d.read("a", MIB) == before, "read from the other copy");
    let scrub = d.json("scrub start p --wait");
    assert_eq!((&scrub["state"], &scrub["lost"]), (&"done".into(), &0.into()), "{scrub}");
    let whose: BTreeSet<_> = scrub["findings"]
        .as_array()
        .expect("findings")
        .iter()
        .filter_map(|f| f["whose"].as_str()?.split('@').next())
        .collect();
    let names = ["a", "b", "old"];
    assert!(whose.contains("a") && whose.iter().all(|w| names.contains(w)), "{whose:?}");
    let text = d.ok("scrub status p");
    assert!(text.contains("0 blocks") && text.contains("more findings"), "{text}");
    assert!(text.lines().count() < 40, "{text}");
    assert!(d.json("pool show p")["live"]["counters"]["repaired"].as_u64() > Some(50));
    damage_is_told(&mut d);
    assert_eq!(d.fails(&format!("check {all}"), 4).0, "device_in_use");
    assert_eq!(d.fails(&format!("check {all} --repair"), 4).0, "device_in_use");
    d.stop();
    let report = d.json(&format!("check {all}"));
    assert_eq!(
        (&report["clean"], &report["given_back"]),
        (&true.into(), &serde_json::Value::Null),
        "{report}"
    );
    let report = d.json(&format!("check {all} --repair"));
    assert_eq!((&report["clean"], &report["given_back"]), (&true.into(), &0.into()), "{report}");

    for what in ["label", "superblock", "log", "slab", "datasets", "map 1 0", "block 0", "block 70"]
    {
        assert!(d.json(&format!("dump {all} {what}"))["what"].is_string(), "{what}");
        assert!(d.ok(&format!("dump {all} {what}")).len() > 20, "{what}");
    }
    let first = format!("dump --device {}", d.path("disk0"));
    for n in (0..64 * 256).step_by(101) {
        let item = d.json(&format!("{first} block {n}"));
        assert!(item["place"].is_string(), "{item}");
    }
    assert_eq!(d.fails(&format!("{first} block 16384"), 2).0, "invalid_request");
    assert_eq!(d.fails(&format!("dump --device {file} label"), 1).0, "pool_damaged");
}

/// Damage of one device was found: it is told, a fault until a scrub finds nothing more, and known after a restart.
fn damage_is_told(d: &mut Daemon) {
    let fault = |d: &Daemon| {
        let status = d.json("status");
        status["faults"].to_string().contains("device_doubtful")
    };
    let event = |d: &Daemon| {
        let events = d.ok("events");
        events.lines().any(|l| l.contains("pool.damage") && l.contains("of volume `a` on device 2"))
    };
    d.until("it is told whose data is damaged, and where", || event(d));
    let counts = |d: &Daemon| -> Vec<u64> {
        let p = d.json("pool show p");
        let devices = p["live"]["devices"].as_array().expect("devices");
        devices.iter().filter_map(|x| x["damaged"].as_u64()).collect()
    };
    let before = counts(d);
    assert!(before[2] > 50 && before[0] + before[1] + before[3] == 0, "{before:?}");
    d.until("it is a fault", || fault(d));
    d.stop();
    d.start();
    let after = counts(d);
    assert!(after[2] >= before[2], "{before:?} before the restart, {after:?} after it");
    d.until("it is one still", || fault(d));
    for _ in 0..2 {
        d.json("scrub start p --wait");
    }
    d.until("a scrub found nothing", || !fault(d));
    assert_eq!(counts(d), after);
    assert!(d.ok("pool show p").contains("DAMAGED"));
}

fn until(d: &Daemon, what: &str, good: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    for _ in 0..600 {
        let p = d.json("pool show p");
        if good(&p) {
            return p;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("{what}: {}", d.json("pool show p"));
}

#[test]
fn devices_come_and_go_while_the_volume_is_served() {
    let mut d = Daemon::new("devices");
    d.start();
    d.ok(&format!("pool create p --raid 1 {}", d.devices(2, "64M")));
    d.ok("volume create v --size 48M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let (file, data) = (d.path("data"), noise(7, 8 * MIB));
    std::fs::write(&file, &data).expect("written");
    d.write("v", &file);
    let small = d.path("small");
    assert_eq!(d.fails(&format!("pool add p --device file:{small}:1M"), 2).0, "invalid_device");
    assert_eq!(d.fails("pool add p --device ram:64M", 2).0, "invalid_device");
    assert_eq!(d.fails("pool drain p 0", 2).0, "invalid_device");
    assert_eq!(d.json("pool show p")["devices"].as_array().map(Vec::len), Some(2), "not named");

    let new = d.path("new");
    d.ok(&format!("pool replace p 1 --device file:{new}:64M"));
    let gone = |p: &serde_json::Value| {
        let live = p["live"]["devices"].as_array().expect("devices");
        live.len() == 2
            && p["live"]["state"] == "healthy"
            && p["devices"].as_array().map(Vec::len) == Some(2)
    };
    let p = until(&d, "the old device leaves", gone);
    assert!(p["devices"].to_string().contains("/new"), "{p}");
    assert!(d.read("v", 8 * MIB) == data);

    // The new device goes away while the daemon is down; by force it goes on, and it comes back.
    d.stop();
    std::fs::create_dir(d.path("elsewhere")).expect("a directory");
    std::fs::rename(&new, d.path("elsewhere/away")).expect("moved");
    d.start();
    d.ok("pool force p --yes");
    let data = noise(8, 8 * MIB);
    std::fs::write(&file, &data).expect("written");
    d.write("v", &file);
    std::fs::rename(d.path("elsewhere/away"), &new).expect("moved");
    d.ok(&format!("pool attach p --device file:{new}"));
    until(&d, "in sync again", |p| p["live"]["state"] == "healthy");
    d.stop();
    // Whichever of the two is read: both have what was written.
    d.start();
    assert!(d.read("v", 8 * MIB) == data);
    let scrub = d.json("scrub start p --wait");
    assert_eq!((&scrub["damaged"], &scrub["lost"]), (&0.into(), &0.into()), "{scrub}");
    // Devices are found by their labels, whatever they are called now; the configuration follows.
    d.stop();
    std::fs::rename(&new, d.path("swap")).expect("renamed");
    std::fs::rename(d.path("disk0"), &new).expect("renamed");
    std::fs::rename(d.path("swap"), d.path("other")).expect("renamed");
    d.start();
    assert!(d.read("v", 8 * MIB) == data);
    let follows = |p: &serde_json::Value| {
        let named = p["devices"].to_string();
        p["live"]["state"] == "healthy" && named.contains("/other") && !named.contains("disk0")
    };
    until(&d, "the configuration follows", follows);
    let more = d.path("more");
    d.ok(&format!("pool add p --spare --device file:{more}:64M"));
    let p = d.json("pool show p");
    let spare =
        p["live"]["devices"].as_array().and_then(|l| l.iter().find(|x| x["state"] == "spare"));
    let number = spare.expect("a spare")["number"].clone();
    d.ok(&format!("pool remove p {number}"));
    assert_eq!(d.json("pool show p")["devices"].as_array().map(Vec::len), Some(2));
    d.stop();
}

/// These are the faults, soon, and events have told them.
fn told(d: &Daemon, codes: &[&str]) {
    let begin = std::time::Instant::now();
    let now = || -> Vec<String> {
        let status = d.json("status");
        let all = status["faults"].as_array().expect("faults");
        all.iter().filter_map(|f| f["code"].as_str().map(str::to_owned)).collect()
    };
    while now() != codes {
        assert!(
            begin.elapsed() < std::time::Duration::from_secs(20),
            "{:?} and not {codes:?}",
            now()
        );
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    // Events come with the next look.
    std::thread::sleep(std::time::Duration::from_millis(1500));
}

#[test]
fn a_full_pool_says_so_and_deleting_helps() {
    let mut d = Daemon::new("full");
    d.start();
    d.ok(&format!("pool create p --raid 0 {}", d.devices(1, "32M")));
    d.ok("volume create a --size 8M");
    d.ok("volume create b --size 64M");
    d.ok("host create all --allow-any");
    d.ok("map create all a");
    d.ok("map create all b");
    let (file, big) = (d.path("data"), d.path("big"));
    let data = noise(9, 4 * MIB);
    std::fs::write(&file, &data).expect("written");
    std::fs::write(&big, noise(10, 48 * MIB)).expect("written");
    d.write("a", &file);
    let target = d.target();
    let (_, text) =
        d.fails(&format!("write --target {target} --volume b --input {big} --bs 64k"), 1);
    assert!(text.to_lowercase().contains("space allocation failed"), "{text}");
    told(&d, &["pool_full"]);
    let shown = d.ok("pool show p");
    assert!(shown.contains("of which hosts can write"), "{shown}");
    assert!(d.read("a", 4 * MIB) == data, "what was written before is there");
    d.ok("map delete all b");
    d.ok("volume delete b --yes");
    told(&d, &[]);
    let events = d.ok("events");
    let (began, ended) = ("fault.began", "fault.ended");
    assert!(
        events.contains(began) && events.contains(ended) && events.contains("pool_full"),
        "{events}"
    );
    d.write("a", &file);
    d.stop();
    let report = d.json(&format!("check --device {}", d.path("disk0")));
    assert_eq!(report["clean"], true, "{report}");
}

#[test]
fn data_without_checksums_is_for_measuring_and_never_taken_for_good() {
    let mut d = Daemon::new("unsummed");
    let measuring = ["--measure-without-checksums", "p"];
    d.start_with(&measuring);
    d.wait();
    d.ok(&format!("pool create p --raid 1 {}", d.devices(2, "64M")));
    let others: String =
        (2..4).map(|i| format!("--device file:{}:64M ", d.path(&format!("disk{i}")))).collect();
    d.ok(&format!("pool create q --raid 1 {others}"));
    d.ok("host create all --allow-any");
    let (file, data) = (d.path("data"), noise(9, MIB));
    std::fs::write(&file, &data).expect("written");
    for (pool, volume) in [("p", "v"), ("q", "w")] {
        d.ok(&format!("volume create {volume} --pool {pool} --size 16M"));
        d.ok(&format!("map create all {volume}"));
        d.write(volume, &file);
        assert!(d.read(volume, MIB) == data, "{volume}");
    }
    assert!(d.log().contains("data has no checksums"), "{}", d.log());
    d.stop();

    // It is not opened that way again, when what is there might have checksums; the other pool is.
    d.start_with(&measuring);
    d.wait();
    let status = d.json("status");
    assert!(status["faults"].to_string().contains("without checksums"), "{status}");
    assert!(d.read("w", MIB) == data);
    d.stop();

    // To everybody else its data is damage, which is not handed out.
    d.start();
    let target = d.target();
    let read = format!("read --target {target} --volume v --length 4096 --output {file} --bs 4k");
    let args: Vec<&str> = read.split_whitespace().collect();
    let out = crate::common::weir(&d.dir, &args);
    assert!(!out.status.success(), "{:?}", crate::common::texts(&out));
    assert!(d.read("w", MIB) == data);
    d.stop();
}

/// Writes something else over a block, wherever it is on a device that nobody has open.
fn spoil(d: &Daemon, disk: &str, block: &[u8]) {
    let mut bytes = std::fs::read(d.path(disk)).expect("the device");
    let found = bytes.chunks_mut(4096).find(|b| *b == block).expect("it is there");
    found[77] ^= 0x10;
    std::fs::write(d.path(disk), &bytes).expect("written");
}

#[test]
fn what_a_scrub_finds_lost_is_its_exit_code_and_a_fault_until_it_is_written_anew() {
    let mut d = Daemon::new("scrub-lost");
    d.start();
    d.ok(&format!("pool create p --raid 1 {}", d.devices(2, "64M")));
    d.ok("volume create v --size 16M --block-size 4096");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let (file, data) = (d.path("data"), noise(3, MIB));
    std::fs::write(&file, &data).expect("written");
    d.write("v", &file);
    d.ok("scrub start p --wait");
    d.stop();
    let block = |n: usize| &data[n * 4096..(n + 1) * 4096];
    spoil(&d, "disk0", block(2));
    spoil(&d, "disk1", block(2));
    spoil(&d, "disk1", block(10));
    d.start();
    for _ in 0..2 {
        assert_eq!(d.fails("scrub start p --wait", 9).0, "data_mismatch");
    }
    let shown = d.json("pool show p")["live"]["counters"].clone();
    assert_eq!((&shown["damaged"], &shown["lost"]), (&3.into(), &1.into()), "each once: {shown}");
    let faults = d.json("status")["faults"].clone();
    assert_eq!(
        (faults.as_array().map(Vec::len), &faults[0]["code"]),
        (Some(1), &"data_lost".into())
    );
    assert_eq!(faults[0]["object"], "pool/p");
    assert!(faults[0]["text"].to_string().contains("1 block of `v`"), "{faults}");
    let told = |word: &str| {
        let events = d.ok("events");
        events.lines().any(|l| l.contains(word) && l.contains("data_lost"))
    };
    d.until("it is told", || told("fault.began"));
    d.write("v", &file);
    assert_eq!(d.json("status")["faults"], serde_json::json!([]));
    d.until("its end is told", || told("fault.ended"));
    d.ok("scrub start p --wait");
    assert!(d.read("v", MIB) == data);
    d.stop();
}

#[test]
fn what_devices_do_not_stand_for_is_a_conflict() {
    let mut d = Daemon::new("device-state");
    d.start();
    d.ok(&format!("pool create p --raid 10 {}", d.devices(3, "64M")));
    d.ok("volume create v --size 16M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    std::fs::write(d.path("data"), noise(3, MIB)).expect("written");
    d.write("v", &d.path("data"));
    for line in ["pool remove p 0", "pool cancel p 0", "pool resync p", "pool resume p"] {
        assert_eq!(d.fails(line, 4).0, "device_state", "weir {line}");
    }
    d.fails(&format!("pool attach p --device file:{}", d.path("disk0")), 4);
    assert_eq!(d.fails("pool remove p 7", 2).0, "invalid_device");
    // What has nothing of Weir's on it is no device, whatever it is to become.
    let blank = d.path("blank");
    std::fs::write(&blank, vec![0; 64 * MIB]).expect("written");
    for line in ["pool attach p", "pool import"] {
        let (code, said) = d.fails(&format!("{line} --device file:{blank}"), 2);
        assert_eq!(code, "invalid_device", "weir {line}: {said}");
    }
    d.ok("pool drain p 2 --wait");
    assert!(d.ok("pool show p").contains("in-sync, drained"), "{}", d.ok("pool show p"));
    d.ok("pool remove p 2");
    // What takes the place of a spare is one.
    d.ok(&format!("pool add p --spare --device file:{}:64M", d.path("s1")));
    let spare = |d: &Daemon| {
        let p = d.json("pool show p");
        let all = p["live"]["devices"].as_array().expect("devices").clone();
        let all = all.into_iter().filter(|x| x["state"] == "spare");
        all.map(|x| (x["number"].clone(), x["path"].to_string())).collect::<Vec<_>>()
    };
    let number = spare(&d)[0].0.clone();
    d.ok(&format!("pool replace p {number} --device file:{}:64M --wait", d.path("s2")));
    d.until("the old one leaves", || spare(&d).len() == 1 && spare(&d)[0].1.contains("/s2"));
    assert_eq!(d.json("pool show p")["live"]["devices"].as_array().map(Vec::len), Some(3));
    d.stop();
}

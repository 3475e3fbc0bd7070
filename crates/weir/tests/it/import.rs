//! Pools that go from node to node, and from a node that has lost its memory: the real program, files as devices.

use crate::common::versions::{Known, under_load_by_both, verify, zeros};
use crate::common::{Daemon, noise};
use serde_json::Value;
use std::time::Duration;

const MIB: usize = 1 << 20;

/// The devices of a pool that another node made, as options.
fn devices_of(d: &Daemon) -> String {
    (0..2).map(|i| format!("--device file:{} ", d.path(&format!("disk{i}")))).collect()
}

fn put(d: &Daemon, volume: &str, data: &[u8]) {
    let file = d.path("data");
    std::fs::write(&file, data).expect("written");
    d.write(volume, &file);
}

/// What hosts would tell a volume by, and how it is kept.
fn about(d: &Daemon, volume: &str) -> [Value; 5] {
    let v = d.json(&format!("volume show {volume}"));
    ["naa", "serial", "size", "block_size", "layout"].map(|k| v[k].clone())
}

#[test]
fn a_pool_and_all_its_volumes_come_to_another_node_and_back() {
    let (mut a, mut b) = (Daemon::new("import-a"), Daemon::new("import-b"));
    a.start();
    a.ok(&format!("pool create safe --raid 1 --memory full {}", a.devices(2, "384M")));
    a.ok(&format!("key new {}", a.path("v.key")));
    a.ok("host create alpha --port 1:2");
    a.ok("host create all --allow-any");
    a.ok("volume create v --pool safe --size 64M --block-size 4096");
    a.ok("volume create vs --pool safe --size 64M --compress lz4 --snapshot every=1d,keep=3");
    a.ok("volume create vd --pool safe --size 64M --dedup --read-only");
    a.ok(&format!(
        "volume create ve --pool safe --size 64M --encrypt --key file:{}",
        a.path("v.key")
    ));
    a.ok("map create all v");
    a.ok("map create all vs --lun 5");
    a.ok("map create all ve");
    a.ok("map create alpha vd --lun 9");
    let data = [noise(1, 8 * MIB), noise(2, 8 * MIB)];
    put(&a, "ve", &data[0]);
    a.ok("snapshot create ve@first");
    put(&a, "ve", &data[1]);
    a.ok("clone create ve@first old");
    a.ok("map create all old");
    let mut known: Known = zeros();
    let n =
        under_load_by_both(&a, &mut known, 1, || std::thread::sleep(Duration::from_millis(500)));
    assert!(n.0 > 50, "there was load: {n:?}");
    let names = ["v", "vs", "vd", "ve", "old"];
    let was: Vec<_> = names.iter().map(|n| about(&a, n)).collect();
    let maps = a.json("map list");
    b.start();
    let devices = devices_of(&a);
    // It is in use.
    let (code, text) = b.fails(&format!("pool import {devices}"), 4);
    assert!(code == "device_in_use" && text.contains("another program uses it"), "{text}");
    a.kill();

    let half = devices.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    assert_eq!(b.fails(&format!("pool import {half}"), 1).0, "pool_damaged");
    let plan = b.json(&format!("pool import {devices} --dry-run"));
    assert_eq!(b.json("pool list"), serde_json::json!([]), "nothing was done");
    let report = b.json(&format!("pool import {devices}"));
    assert_eq!(plan, report);
    assert_eq!(report["left_out"], serde_json::json!([]));
    assert_eq!(names.map(|n| about(&b, n)).to_vec(), was);
    assert_eq!(b.json("map list"), maps);
    assert_eq!(b.json("pool show safe")["protection"]["memory"], "full");
    assert_eq!(b.json("status")["faults"], serde_json::json!([]), "{}", b.log());
    assert!(b.json("snapshot list").to_string().contains("auto-1d-"));
    verify(&b, &mut known);
    assert!(b.read("ve", 8 * MIB) == data[1] && b.read("old", 8 * MIB) == data[0]);
    let n =
        under_load_by_both(&b, &mut known, 2, || std::thread::sleep(Duration::from_millis(500)));
    assert!(n.0 > 50, "there was load: {n:?}");
    b.ok("volume create new --pool safe --size 16M");

    // Back again, under other names: the first node still knows the pool that it had.
    b.ok("pool release safe --yes");
    assert_eq!(b.json("volume list"), serde_json::json!([]));
    assert_eq!(b.json("map list"), serde_json::json!([]));
    a.start();
    verify(&a, &mut known);
    // What the pool carries is newer than what the first node has, which is a fault and is not overwritten.
    let told = a.json("status")["faults"].to_string();
    assert!(told.contains("record_newer") && told.contains("weir pool release safe"), "{told}");
    assert_eq!(a.fails("volume create more --pool safe --size 1M", 4).0, "record_newer");
    assert_eq!(a.fails(&format!("pool import x {devices}"), 4).0, "device_in_use");
    a.ok("pool release safe --yes");
    assert_eq!(a.fails("pool import x", 2).0, "invalid_request");
    a.ok(&format!("pool import x --prefix x- --without-hosts {devices}"));
    assert_eq!(a.json("map list"), serde_json::json!([]));
    assert_eq!(about(&a, "x-ve")[0], was[3][0]);
    assert_eq!(a.json("volume show x-new")["size"], 16 << 20, "the first node never knew it");
    assert_eq!(a.json("status")["faults"], serde_json::json!([]));
    a.stop();
    a.is_clean(2);
}

#[test]
fn a_node_that_lost_its_memory_takes_its_pool_in_again() {
    let mut d = Daemon::new("import-lost");
    d.start();
    d.ok(&format!("pool create safe --raid 1 {}", d.devices(2, "256M")));
    d.ok("volume create v --pool safe --size 64M --block-size 4096");
    d.ok("volume create vs --pool safe --size 64M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    d.ok("map create all vs");
    let mut known: Known = zeros();
    under_load_by_both(&d, &mut known, 3, || std::thread::sleep(Duration::from_millis(500)));
    let was = about(&d, "v");
    d.kill();
    for name in ["weir.redb", "config.json", "weir.lock"] {
        std::fs::remove_file(d.path(name)).expect("it was there");
    }
    d.start();
    assert_eq!(d.json("pool list"), serde_json::json!([]));
    // A new pool on these devices would be the end of the old one.
    let (code, text) = d.fails(&format!("pool create safe --raid 1 {}", devices_of(&d)), 4);
    assert!(code == "device_in_use" && text.contains("pool import"), "{text}");
    d.ok(&format!("pool import {}", devices_of(&d)));
    assert_eq!(about(&d, "v"), was);
    verify(&d, &mut known);
    d.stop();
    d.is_clean(2);
}

/// What another node cannot make up is on the devices when a command is answered, however many volumes there are.
#[test]
fn what_was_answered_is_carried_by_a_pool_of_many_volumes() {
    /// More than one block, and one piece, has room for.
    const VOLUMES: usize = 200;
    let (mut a, mut b) = (Daemon::new("import-many-a"), Daemon::new("import-many-b"));
    a.start();
    a.ok(&format!("pool create safe --raid 1 {}", a.devices(2, "256M")));
    a.ok("host create all --allow-any");
    let text: String = (0..VOLUMES)
        .map(|n| {
            format!(
                "[[volume]]\nname = \"v{n:03}\"\npool = \"safe\"\nsize = \"1M\"\n\
                 [[map]]\nhost = \"all\"\nvolume = \"v{n:03}\"\nlun = {n}\n"
            )
        })
        .collect();
    let file = a.path("many.toml");
    std::fs::write(&file, text).expect("written");
    a.ok(&format!("apply {file}"));
    a.ok(&format!("key new {}", a.path("v.key")));
    let data = noise(5, MIB);
    put(&a, "v199", &data);
    // A volume of long standing gets another key and another place; one grows; one is new. Each time the node dies at once.
    a.ok(&format!(
        "volume create old --pool safe --size 4M --encrypt --key file:{}",
        a.path("v.key")
    ));
    a.ok("map create all old");
    put(&a, "old", &data);
    a.ok("volume rekey old --reencrypt --wait");
    a.kill();
    a.start();
    a.ok("volume resize v199 2M");
    a.kill();
    a.start();
    a.ok(&format!(
        "volume create new --pool safe --size 1M --encrypt --key file:{} --compress lz4",
        a.path("v.key")
    ));
    a.kill();

    let was: Vec<_> = {
        a.start();
        let was = ["old", "new", "v199"].map(|n| about(&a, n)).to_vec();
        a.kill();
        was
    };
    b.start();
    let devices = devices_of(&a);
    let report = b.json(&format!("pool import {devices}"));
    assert_eq!(report["left_out"], serde_json::json!([]), "{report}");
    assert_eq!(report["volumes"].as_array().map(Vec::len), Some(VOLUMES + 2));
    assert_eq!(["old", "new", "v199"].map(|n| about(&b, n)).to_vec(), was);
    assert_eq!(b.json("map list").as_array().map(Vec::len), Some(VOLUMES + 1));
    assert!(b.read("v199", MIB) == data && b.read("old", MIB) == data);
    b.stop();
    a.is_clean(2);
}

/// A volume of which the pool carries nothing is shown as it is stored, and cannot be destroyed by that.
#[test]
fn a_volume_of_unknown_form_is_for_reading_only() {
    let (mut a, mut b) = (Daemon::new("import-form-a"), Daemon::new("import-form-b"));
    a.start();
    a.ok(&format!("pool create safe --raid 1 {}", a.devices(2, "128M")));
    a.ok("host create all --allow-any");
    a.ok("volume create v --pool safe --size 8M --compress lz4");
    a.ok("map create all v");
    let data = noise(5, MIB);
    put(&a, "v", &data);
    let shown = a.json("volume show v");
    // Another daemon takes the pool over under no name, and forgets the volume; then what is said of it is gone.
    a.stop();
    b.start();
    b.ok(&format!("pool import {}", devices_of(&a)));
    let dataset = shown["layout"]["dataset"].as_str().expect("a name").to_owned();
    assert_eq!(b.json("volume show v")["read_only"], false);
    b.stop();
    // The newest of the record cannot be read, nor what was before.
    let all = format!("--device {} --device {}", a.path("disk0"), a.path("disk1"));
    for n in 0..2 {
        let file = a.path(&format!("disk{n}"));
        let mut bytes = std::fs::read(&file).expect("read");
        for at in 0..bytes.len() / 4096 {
            let block = &mut bytes[at * 4096..(at + 1) * 4096];
            if block.starts_with(b"WRconf") || block.windows(13).any(|w| w == b"\"volumes\":[{\"") {
                block.fill(0x55);
            }
        }
        std::fs::write(&file, bytes).expect("written");
    }
    let mut c = Daemon::new("import-form-c");
    c.start();
    // A read that fails may pass, and what is taken over is written to.
    c.fails(&format!("pool import safe {}", devices_of(&a)), 1);
    let report = c.json(&format!("pool import safe {} --force", devices_of(&a)));
    assert_eq!(report["volumes"][0]["nameless"], true, "{report} {all}");
    assert!(c.ok("events").contains("for reading only"), "it is told");
    let name = report["volumes"][0]["name"].as_str().expect("a name").to_owned();
    let v = c.json(&format!("volume show {name}"));
    assert_eq!((&v["read_only"], &v["layout"]["dataset"]), (&true.into(), &dataset.into()));
    c.ok("host create all --allow-any");
    c.ok(&format!("map create all {name}"));
    let target = c.target();
    let file = a.path("data");
    c.fails(&format!("write --target {target} --volume {name} --input {file}"), 1);
}

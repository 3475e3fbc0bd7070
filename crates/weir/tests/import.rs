//! Pools that go from node to node, and from a node that has lost its memory: the real program, files as devices.

mod common;

use common::versions::{Known, under_load_by_both, verify, zeros};
use common::{Daemon, noise};
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
    assert_eq!(a.fails(&format!("pool import x {devices}"), 4).0, "device_in_use");
    a.ok("pool release safe --yes");
    assert_eq!(a.fails("pool import x", 2).0, "");
    a.ok(&format!("pool import x --prefix x- --without-hosts {devices}"));
    assert_eq!(a.json("map list"), serde_json::json!([]));
    assert_eq!(about(&a, "x-ve")[0], was[3][0]);
    assert_eq!(
        a.fails("volume show x-new", 3).0,
        "volume_not_found",
        "the first node never knew it"
    );
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
    for name in ["weir.redb", "config.json"] {
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

#[test]
fn a_long_record_comes_whole() {
    /// Enough of them that the pool carries the newest change with the next sample only, not at once.
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
    let data = noise(5, MIB);
    put(&a, "v199", &data);
    let named = |d: &Daemon| d.json("volume list").as_array().map_or(0, Vec::len);
    assert_eq!(named(&a), VOLUMES);
    // A sample is taken each second; a slow machine takes longer.
    let devices = devices_of(&a);
    let report = (0..).find_map(|n| {
        std::thread::sleep(Duration::from_millis(1500));
        a.kill();
        b.start();
        let plan = b.json(&format!("pool import {devices} --dry-run"));
        b.stop();
        let nameless = plan["volumes"].as_array().expect("volumes").iter();
        let whole = nameless.filter(|v| v["nameless"] == true).count() == 0;
        assert!(whole || n < 10, "the pool does not carry its volumes: {plan}");
        if !whole {
            a.start();
        }
        whole.then_some(plan)
    });
    let report = report.expect("a plan");
    assert_eq!(report["volumes"].as_array().map(Vec::len), Some(VOLUMES));
    b.start();
    assert_eq!(b.json(&format!("pool import {devices}")), report);
    assert_eq!(named(&b), VOLUMES);
    assert_eq!(b.json("map list").as_array().map(Vec::len), Some(VOLUMES));
    assert!(b.read("v199", MIB) == data);
    b.stop();
    a.is_clean(2);
}

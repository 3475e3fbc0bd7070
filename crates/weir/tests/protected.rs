//! Protected pools end to end: the real program, files as devices, data over SRP.

mod common;

use common::{Daemon, noise};

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
    std::fs::rename(d.path("disk1"), d.path("gone")).expect("moved");
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
    for n in ["disk0", "gone"] {
        std::fs::remove_file(d.path(n)).expect("removed");
    }
    d.start();
    let text = d.json("status")["faults"].to_string();
    assert!(text.contains("pool/p") && text.contains("volume/v"), "{text}");
    d.stop();
}

//! Live migration end to end: the real program, files as devices, hosts that write over SRP meanwhile.

mod common;

use common::{Daemon, noise};

const MIB: usize = 1 << 20;

#[test]
fn thin() {
    let mut d = Daemon::new("migrate-thin");
    d.start();
    d.ok(&format!("pool create plain --device file:{}:256M", d.path("plain")));
    d.ok(&format!("pool create safe --raid 1 {}", d.devices(2, "256M")));
    d.ok("volume create v --pool plain --size 100M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let data = noise(1, 20 * MIB);
    let file = d.path("data");
    std::fs::write(&file, &data).expect("written");
    d.write("v", &file);
    println!("{}", d.ok("migrate start v --to safe --wait"));
    assert!(d.read("v", 20 * MIB) == data);
    println!("{}", d.ok("volume show v"));
    println!("{}", d.ok("graph v"));
    println!("{}", d.ok("migrate list"));
    println!("{}", d.ok("status"));
    println!("{}", d.ok("migrate start v --to plain --wait"));
    assert!(d.read("v", 20 * MIB) == data);
    println!("{}", d.ok("graph v"));
    d.stop();
    d.start();
    assert!(d.read("v", 20 * MIB) == data);
    println!("{}", d.log());
    d.stop();
}

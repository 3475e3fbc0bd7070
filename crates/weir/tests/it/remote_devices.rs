//! Pools with devices that are volumes of another node, which dies and comes back.

use crate::common::{Beside, Daemon, noise};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

const MIB: usize = 1 << 20;

/// Another node with a volume, at an address that stays.
struct Far {
    d: Daemon,
    listen: String,
    /// Where it speaks BRP.
    brp: String,
}

/// An address whose port and the next one nobody has. The system gives none of them to whoever asks for any.
fn two_ports() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id() as u16 % 400;
    let is_free =
        |port: &u16| [*port, port + 1].iter().all(|p| TcpListener::bind(("127.0.0.1", *p)).is_ok());
    let mut all = std::iter::repeat_with(|| {
        22_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 4_000 * 2
    });
    format!("127.0.0.1:{}", all.find(is_free).expect("there are some"))
}

impl Far {
    /// It lets everybody in, unless that is for the test to arrange.
    fn new(test: &str, size: &str) -> Far {
        let mut d = Daemon::new(test);
        // BRP has the next port only where the first one is given.
        let listen = two_ports();
        d.start_at(&listen, &[]);
        d.wait();
        let brp = d.port("brp0").expect("it speaks BRP");
        d.ok(&format!("pool create far --device file:{}:1G", d.path("far")));
        d.ok(&format!("volume create half --pool far --size {size}"));
        Far { d, listen, brp }
    }

    fn lets_in(self) -> Far {
        self.d.ok("host create all --allow-any");
        self.d.ok("map create all half");
        self
    }

    fn url(&self, volume: &str) -> String {
        format!("brp://{}/{volume}", self.brp)
    }

    fn start(&mut self) {
        self.d.start_at(&self.listen.clone(), &[]);
        self.d.wait();
    }
}

fn near(test: &str) -> Daemon {
    let mut d = Daemon::new(test);
    d.start();
    d
}

/// A mirror of a local file and a volume of another node, with a volume on it.
fn mirror(d: &Daemon, far: &Far) {
    let local = d.path("disk0");
    d.ok(&format!(
        "pool create p --raid 1 --device file:{local}:512M --device {}",
        far.url("half")
    ));
    d.ok("volume create v --pool p --size 64M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
}

fn live(d: &Daemon) -> Value {
    d.json("pool show p")["live"].clone()
}

fn is(d: &Daemon, state: &str) -> bool {
    live(d)["state"] == state
}

fn written(d: &Daemon) -> u64 {
    live(d)["counters"]["media_writes"].as_u64().expect("a number")
}

fn data(d: &Daemon, seed: u64, len: usize) -> (String, Vec<u8>) {
    let (path, bytes) = (d.path("data"), noise(seed, len));
    fs::write(&path, &bytes).expect("written");
    (path, bytes)
}

#[test]
fn a_far_half_dies_and_comes_back_by_itself_and_gets_only_what_it_lacks() {
    let (d, mut far) = (near("remote-near"), Far::new("remote-far", "512M").lets_in());
    mirror(&d, &far);
    let (file, all) = data(&d, 1, 64 * MIB);
    d.write("v", &file);
    let deaths: u64 =
        std::env::var("WEIR_DEATHS").ok().map_or(2, |n| n.parse().expect("a number of deaths"));
    let load = format!(
        "bench --target {} --volume v --rw randrw --bs 4k --iodepth 4 --offset 32M --size 32M --verify crc32c --runtime {}s --time-based",
        d.target(),
        10 * deaths
    );
    let load = Beside::run(&d, &load);
    for _ in 0..deaths {
        std::thread::sleep(Duration::from_secs(2));
        far.d.kill();
        d.until("the loss is seen", || is(&d, "degraded"));
        let reason = live(&d)["reason"].to_string();
        assert!(reason.contains("device 1 is failed"), "{reason}");
        far.start();
        d.until("it is back", || is(&d, "healthy"));
    }
    let (done, said) = load.end(&d);
    assert!(done && said.contains("0 wrong"), "{said}");
    assert!(d.read("v", 32 * MIB) == all[..32 * MIB], "what was written before");
    // Nothing is under way: what it gets back is what it has missed.
    far.d.kill();
    let (file, few) = data(&d, 2, MIB);
    let before = written(&d);
    d.write("v", &file);
    d.until("the loss is seen", || is(&d, "degraded"));
    far.start();
    d.until("it is back", || is(&d, "healthy"));
    let blocks = written(&d) - before;
    // Both copies, the log and maps; of 64 MiB there are 16384.
    assert!(blocks < 4096, "{blocks} blocks were written for 256");
    // It has them: the local half goes away.
    assert!(d.read("v", MIB) == few);
}

#[test]
fn an_idle_pool_says_that_its_far_half_is_not_reached() {
    let (d, mut far) = (near("remote-idle"), Far::new("remote-idle-far", "512M").lets_in());
    mirror(&d, &far);
    assert!(is(&d, "healthy"));
    far.d.kill();
    let url = far.url("half");
    let is_said = || is(&d, "degraded") && live(&d)["reason"].to_string().contains(&url);
    d.until("it is said", is_said);
    far.start();
    d.until("it is back", || is(&d, "healthy"));
}

/// Each half alone has everything: the near one while the far node is down, the far one by a disk of it put elsewhere.
#[test]
fn a_near_node_that_stopped_in_order_starts_without_its_far_half_and_takes_it_back() {
    let (mut d, mut far) = (near("remote-stop"), Far::new("remote-stop-far", "512M").lets_in());
    mirror(&d, &far);
    let (file, all) = data(&d, 3, 8 * MIB);
    d.write("v", &file);
    d.stop();
    far.d.kill();
    d.start();
    d.until("it is served", || is(&d, "degraded"));
    assert!(d.read("v", 8 * MIB) == all);
    let (file, all) = data(&d, 4, 8 * MIB);
    d.write("v", &file);
    far.start();
    d.until("it is back", || is(&d, "healthy"));
    // After a crash either half may have more than the other: it waits for both.
    d.kill();
    far.d.kill();
    d.start();
    let faults = d.json("status")["faults"].to_string();
    assert!(faults.contains("pool/p") && faults.contains("no target answers"), "{faults}");
    far.start();
    d.until("it opens by itself", || d.json("status")["faults"] == Value::Array(Vec::new()));
    assert!(d.read("v", 8 * MIB) == all);
    d.stop();
}

#[test]
fn a_pool_of_one_far_volume_waits_for_it_and_goes_on() {
    let (d, mut far) = (near("remote-alone"), Far::new("remote-alone-far", "512M").lets_in());
    d.ok(&format!("pool create p --raid 0 --device {}", far.url("half")));
    d.ok("volume create v --pool p --size 64M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let (file, all) = data(&d, 5, 8 * MIB);
    d.write("v", &file);
    far.d.kill();
    let (other, _) = data(&d, 6, MIB);
    d.fails(&format!("write --target {} --volume v --input {other} --bs 64k", d.target()), 1);
    d.until("it is said", || is(&d, "suspended"));
    far.start();
    d.until("it goes on by itself", || is(&d, "healthy"));
    d.write("v", &other);
    assert!(d.read("v", 8 * MIB)[MIB..] == all[MIB..]);
}

#[test]
fn what_cannot_be_a_far_device_is_refused_with_what_to_do() {
    let (d, far) = (near("remote-no"), Far::new("remote-no-far", "512M"));
    let (local, url) = (d.path("disk0"), far.url("half"));
    let create =
        |url: &str| format!("pool create p --raid 1 --device file:{local}:512M --device {url}");
    let port = d.json("status")["live"]["initiator"].as_str().expect("a port").to_owned();
    // Nobody is let in, or the volume is not shown.
    let (_, said) = d.fails(&create(&url), 5);
    assert!(said.contains("refused the login") && said.contains(&port), "{said}");
    far.d.ok(&format!("host create near --port {port}"));
    let (code, said) = d.fails(&create(&url), 3);
    assert!(code == "volume_not_found" && said.contains(&port), "{said}");
    far.d.ok("map create near half");
    far.d.ok("volume set half --read-only on");
    let (code, said) = d.fails(&create(&url), 2);
    assert!(code == "invalid_device" && said.contains("--read-only off"), "{said}");
    // Nobody listens there, or has such a name.
    let (code, _) = d.fails(&create("brp://127.0.0.1:1/half"), 5);
    assert_eq!(code, "target_unreachable");
    let (code, _) = d.fails(&create("brp://no-such-host.invalid/half"), 5);
    assert_eq!(code, "target_unreachable");
    let (code, said) = d.fails(&format!("pool create p --device {url}"), 2);
    assert!(code == "invalid_device" && said.contains("--raid"), "{said}");
    d.fails("pool create p --raid 0 --device brp://h/", 2);
    // What has something in it.
    far.d.ok("volume set half --read-only off");
    let file = far.d.path("data");
    fs::write(&file, noise(7, MIB)).expect("written");
    far.d.ok("host create all --allow-any");
    far.d.ok("map create all half");
    far.d.write("half", &file);
    let (code, said) = d.fails(&create(&url), 4);
    assert!(code == "device_in_use" && said.contains("--overwrite data"), "{said}");
    assert!(fs::metadata(&local).is_err(), "nothing was made for nothing");
    d.ok(&format!("{} --overwrite data", create(&url)));
    // One volume is used once, by whatever way.
    let other = format!("brp://localhost:{}/half", far.brp.rsplit_once(':').expect("a port").1);
    for url in [&url, &other] {
        let (code, said) =
            d.fails(&format!("pool create q --raid 0 --device {url} --overwrite weir"), 4);
        assert!(code == "device_in_use" && said.contains("`p`"), "{said}");
    }
    // Nor its own.
    d.ok("volume create v --pool p --size 64M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let own = format!("brp://{}/v", d.port("brp0").expect("it speaks BRP"));
    let (code, said) = d.fails(&format!("pool create q --raid 0 --device {own}"), 2);
    assert!(code == "invalid_device" && said.contains("of this node"), "{said}");
}

/// A far volume takes the place of a disk, another one comes as a spare, and the pool is found on them by another node.
#[test]
fn far_volumes_replace_disks_and_pools_on_them_are_taken_over() {
    let (mut d, far) = (near("remote-move"), Far::new("remote-move-far", "384M").lets_in());
    far.d.ok("volume create more --pool far --size 384M");
    far.d.ok("map create all more");
    d.ok(&format!("pool create p --raid 1 {}", d.devices(2, "384M")));
    d.ok("volume create v --pool p --size 64M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let (file, all) = data(&d, 8, 8 * MIB);
    d.write("v", &file);
    d.ok(&format!("pool replace p 0 --device {}", far.url("half")));
    let numbers = |d: &Daemon| live(d)["devices"].as_array().expect("devices").len();
    d.until("the disk has left", || is(&d, "healthy") && numbers(&d) == 2);
    d.ok(&format!("pool replace p 1 --device {}", far.url("more")));
    d.until("the other has left", || {
        is(&d, "healthy") && numbers(&d) == 2 && {
            let at = live(&d)["devices"].to_string();
            at.contains("/half") && at.contains("/more")
        }
    });
    assert!(d.read("v", 8 * MIB) == all);
    d.ok("map delete all v");
    // They are free at once.
    d.ok("pool release p --yes");
    let both = format!("--device {} --device {}", far.url("half"), far.url("more"));
    d.ok(&format!("pool import q {both}"));
    d.ok("pool release q --yes");
    d.stop();
    let e = near("remote-move-other");
    e.ok(&format!("pool import p {both}"));
    e.ok("host create all --allow-any");
    e.ok("map create all v");
    assert!(e.read("v", 8 * MIB) == all);
}

/// The other node is dead for good, or comes back somewhere else.
#[test]
fn a_far_half_is_replaced_by_a_disk_or_found_at_another_address() {
    let (d, mut far) = (near("remote-dead"), Far::new("remote-dead-far", "512M").lets_in());
    mirror(&d, &far);
    let (file, all) = data(&d, 9, 8 * MIB);
    d.write("v", &file);
    far.d.kill();
    d.until("the loss is seen", || is(&d, "degraded"));
    // As the first port is free again nobody knows when, it is given none.
    far.d.start();
    far.brp = far.d.port("brp0").expect("it speaks BRP");
    d.ok(&format!("pool attach p --device {}", far.url("half")));
    d.until("it is back", || is(&d, "healthy"));
    let at = |d: &Daemon| d.json("pool show p")["devices"].to_string();
    d.until("it has one name", || {
        at(&d).contains(&far.brp) && at(&d).matches("brp://").count() == 1
    });
    far.d.kill();
    d.until("the loss is seen", || is(&d, "degraded"));
    d.ok(&format!("pool replace p 1 --device file:{}:512M", d.path("disk1")));
    d.until("it has left", || is(&d, "healthy") && !at(&d).contains("brp://"));
    assert!(d.read("v", 8 * MIB) == all);
}

/// While nothing is written, and the connection stays.
#[test]
fn a_far_volume_that_was_reverted_gets_what_it_has_lost() {
    let (mut d, far) = (near("remote-revert"), Far::new("remote-revert-far", "16M").lets_in());
    far.d.ok(&format!("pool create safe --raid 0 --device file:{}:1G", far.d.path("safe")));
    far.d.ok("volume create back --pool safe --size 512M");
    far.d.ok("map create all back");
    let (local, url) = (d.path("disk0"), far.url("back"));
    d.ok(&format!("pool create p --raid 1 --device file:{local}:512M --device {url}"));
    d.ok("volume create v --pool p --size 64M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let (file, _) = data(&d, 10, 8 * MIB);
    d.write("v", &file);
    far.d.ok("snapshot create back@s");
    let (file, all) = data(&d, 11, 8 * MIB);
    d.write("v", &file);
    far.d.ok("map delete all back --force");
    // The target looks now and then only.
    std::thread::sleep(Duration::from_secs(2));
    far.d.ok("snapshot revert back@s --yes");
    far.d.ok("map create all back");
    d.until("it is looked at", || live(&d)["counters"]["devices_failed"] != 0);
    d.until("it is back", || is(&d, "healthy"));
    // The far half alone.
    d.kill();
    fs::remove_file(&local).expect("it is lost");
    d.start();
    d.ok("pool force p --yes");
    d.until("it is served", || is(&d, "degraded"));
    assert!(d.read("v", 8 * MIB) == all);
}

/// What answers at its address is another machine for a while.
#[test]
fn another_volume_of_the_same_name_does_not_come_back() {
    let (d, mut far) = (near("remote-name"), Far::new("remote-name-far", "512M").lets_in());
    mirror(&d, &far);
    far.d.kill();
    let mut other = Daemon::new("remote-name-other");
    other.start_at(&far.listen, &[]);
    other.wait();
    other.ok(&format!("pool create far --device file:{}:1G", other.path("far")));
    other.ok("volume create half --pool far --size 512M");
    other.ok("host create all --allow-any");
    other.ok("map create all half");
    d.until("it is said", || live(&d)["reason"].to_string().contains("another volume"));
    other.stop();
    far.start();
    d.until("it is back", || is(&d, "healthy"));
}

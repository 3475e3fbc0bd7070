//! Pools that are opened at the same time, and whose devices have each other's names.

use crate::common::Daemon;
use std::fs;

/// Where the first device of a pool is by now.
fn first(d: &Daemon, pool: &str) -> String {
    let pool = d.json(&format!("pool show {pool}"));
    pool["devices"][0]["path"].as_str().expect("a path").to_owned()
}

/// After a reboot disks may be numbered otherwise. A device that one pool has locked by its old name belongs to the other one, which
/// looks for it at the same moment: no mirror goes without, and nothing is taken for an old copy.
#[test]
fn mirrors_whose_devices_exchange_their_names_come_up_whole() {
    let mut d = Daemon::new("exchanged");
    d.start();
    d.ok("host create all --allow-any");
    for pool in ["a", "b"] {
        let device = |n: u32| format!("--device file:{}:64M", d.path(&format!("{pool}{n}")));
        d.ok(&format!("pool create {pool} --raid 1 {} {}", device(0), device(1)));
        d.ok(&format!("volume create of-{pool} --pool {pool} --size 8M"));
        d.ok(&format!("map create all of-{pool}"));
        fs::write(d.path("data"), pool.repeat(64 << 10)).expect("written");
        d.write(&format!("of-{pool}"), &d.path("data"));
    }
    for round in 0..6 {
        let (from, to) = (first(&d, "a"), first(&d, "b"));
        d.stop();
        // By turns only one has the other's name: then nothing is where that was.
        let swap = d.path(&format!("swap{round}"));
        fs::rename(&from, &swap).expect("renamed");
        fs::rename(&to, &from).expect("renamed");
        if round % 2 == 0 {
            fs::rename(&swap, &to).expect("renamed");
        }
        d.start();
        for pool in ["a", "b"] {
            let live = &d.json(&format!("pool show {pool}"))["live"];
            assert_eq!(live["state"], "healthy", "round {round}: {live}");
            assert_eq!(live["devices"].as_array().map(Vec::len), Some(2), "{live}");
            let of = d.read(&format!("of-{pool}"), 4096);
            assert!(of.iter().all(|b| *b == pool.as_bytes()[0]), "of the other");
        }
    }
}

/// The same of a mirror that lacks a device: where its other one is by now is known from then on, whatever has its name.
#[test]
fn a_mirror_that_lacks_a_device_is_found_again_after_an_exchange() {
    let mut d = Daemon::new("exchanged-lacks");
    d.start();
    d.ok("host create all --allow-any");
    let device = |d: &Daemon, name: &str| format!("--device file:{}:64M", d.path(name));
    d.ok(&format!("pool create a --raid 1 {} {}", device(&d, "a0"), device(&d, "a1")));
    d.ok(&format!("pool create b --raid 0 {}", device(&d, "b0")));
    d.ok("volume create v --pool a --size 8M");
    d.ok("map create all v");
    fs::write(d.path("data"), "a".repeat(64 << 10)).expect("written");
    d.write("v", &d.path("data"));
    d.stop();
    let swap = d.path("swap");
    for (from, to) in [("a0", &swap), ("b0", &d.path("a0")), ("swap", &d.path("b0"))] {
        fs::rename(d.path(from), to).expect("renamed");
    }
    fs::create_dir(d.path("away")).expect("a directory");
    fs::rename(d.path("a1"), d.path("away/a1")).expect("renamed");
    d.start();
    d.ok("pool force a --yes");
    let lacks_one = || {
        let live = &d.json("pool show a")["live"];
        let there = live["devices"].as_array().into_iter().flatten();
        let there: Vec<_> = there.filter_map(|d| d["path"].as_str()).collect();
        there == [d.path("b0")]
    };
    d.until("the mirror is up", lacks_one);
    // Something has the daemon write down by what the devices are told from others.
    d.ok("pool memory a full");
    d.stop();
    d.start();
    d.until("the mirror is up", || d.json("pool show a")["live"]["state"] == "degraded");
    assert!(d.read("v", 4096).iter().all(|b| *b == b'a'));
    let of = |pool: &str| d.json(&format!("pool show {pool}"))["devices"].to_string();
    assert!(of("a").contains("/b0\"") && of("b").contains("/a0\""), "{} {}", of("a"), of("b"));
}

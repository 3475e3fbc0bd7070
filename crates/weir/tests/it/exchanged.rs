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

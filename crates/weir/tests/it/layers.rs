//! Layers that come and go end to end: the real program, hosts that write and verify over SRP and BRP meanwhile.

use crate::common::versions::{Known, under_load, verify, zeros};
use crate::common::{Daemon, command};
use std::time::Duration;
use weir_base::Prng;

fn daemon(name: &str, pool: &str) -> (Daemon, Known) {
    let mut d = Daemon::new(name);
    d.start();
    match pool {
        "safe" => d.ok(&format!("pool create p --raid 1 {}", d.devices(2, "192M"))),
        "striped" => d.ok(&format!("pool create p {}", d.devices(2, "64M"))),
        _ => d.ok("pool create p --device ram:128M"),
    };
    d.ok("volume create v --pool p --size 64M --block-size 4096");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    (d, zeros())
}

fn names(d: &Daemon) -> Vec<String> {
    let all = d.json("layer list v");
    let name = |l: &serde_json::Value| {
        assert_eq!(l["in_use"], true, "{all}");
        l["node"].as_str().expect("a name").to_owned()
    };
    all.as_array().expect("a list").iter().map(name).collect()
}

fn come_and_go(pool: &str) {
    let (mut d, mut known) = daemon(&format!("layers-{pool}"), pool);
    let steps = [
        "layer insert v stats",
        "layer insert v delay time=300us jitter=1ms --name slow --over volume",
        "layer swap v slow delay time=50us ops=read",
        "layer insert v fault on=false --name f --over slow",
        "layer remove v slow",
        "layer swap v f stats",
        "layer remove v stats",
        "layer remove v f",
    ];
    let mut total = (0, 0);
    let other = {
        let run = steps.map(|s| command(&d, s));
        move || {
            for step in run {
                std::thread::sleep(Duration::from_millis(60));
                step();
            }
        }
    };
    let n = under_load(&d, &mut known, 1, other);
    total = (total.0 + n.0, total.1 + n.1);
    assert!(total.0 > 100 && total.1 > 50, "there was load: {total:?}");
    assert_eq!(names(&d), [""; 0]);
    // What cannot be built, fails at first or is unsafe is refused under load, and all stays as it was.
    d.ok("layer insert v stats");
    let before = d.json("volume show v");
    let (dir, lines) = (
        d.dir.clone(),
        [
            ("layer insert v nothing", 2, "invalid_request", "there is no layer `nothing`"),
            ("layer insert v delay", 2, "invalid_request", "`time` is missing"),
            ("layer insert v delay time=soon", 2, "invalid_request", "is not a time"),
            ("layer insert v ram len=64M", 7, "unsupported", "keeps data of its own"),
            ("layer insert v stripe", 7, "unsupported", "puts several volumes together"),
            ("layer insert v linear", 7, "unsupported", "changes what hosts see"),
            (
                "layer insert v fault error=corrupt-write",
                7,
                "unsupported",
                "damages what hosts write",
            ),
            ("layer insert v fault error=lost", 7, "unsupported", "loses writes"),
            ("layer insert v fault", 1, "layer_failed", "its first read failed"),
            ("layer insert v fault ops=write", 1, "layer_failed", "its first write failed"),
            ("layer swap v stats fault ops=flush", 1, "layer_failed", "its first flush failed"),
            (
                "layer insert v delay time=20s ops=flush",
                1,
                "layer_failed",
                "its first flush did not end",
            ),
            ("layer insert v stats", 4, "layer_exists", "names are used once"),
            ("layer insert v stats --name volume", 2, "invalid_name", "volume"),
            ("layer insert v stats --name a --over b", 3, "layer_not_found", "it has stats"),
            ("layer remove v f", 3, "layer_not_found", "it has stats"),
            ("layer list w", 3, "volume_not_found", "w"),
        ],
    );
    let n = under_load(&d, &mut known, 2, move || {
        for (line, exit, code, word) in lines {
            let args: Vec<&str> = line.split_whitespace().chain(["--json"]).collect();
            let out = crate::common::weir(&dir, &args);
            let (_, text) = crate::common::texts(&out);
            assert_eq!(out.status.code(), Some(exit), "weir {line}: {text}");
            assert!(text.contains(code) && text.contains(word), "weir {line}: {text}");
        }
    });
    assert!(n.0 > 100 && n.1 > 50, "there was load: {n:?}");
    total = (total.0 + n.0, total.1 + n.1);
    assert_eq!(d.json("volume show v"), before);
    assert_eq!(names(&d), ["stats.1"]);
    // Layers are there after a restart, and stay with a volume that is resized or moves.
    d.ok("layer insert v delay time=10us");
    d.stop();
    d.start();
    assert_eq!(names(&d), ["delay.2", "stats.1"]);
    if pool == "ram" {
        // Its memory went with the process.
        known = zeros();
    }
    verify(&d, &mut known);
    d.ok("volume resize v 65M");
    d.ok("pool create q --device ram:128M");
    d.ok("migrate start v --to q --wait");
    assert_eq!(names(&d), ["delay.2", "stats.1"]);
    d.ok("layer remove v delay");
    verify(&d, &mut known);
    assert_eq!(d.json("status")["faults"].as_array().map(Vec::len), Some(0));
    println!("{pool}: {} blocks written and {} read meanwhile", total.0, total.1);
    d.stop();
}

#[test]
fn layers_of_a_protected_volume_come_and_go_under_hosts_that_see_nothing() {
    come_and_go("safe");
}

#[test]
fn layers_of_a_volume_that_is_memory_come_and_go_under_hosts_that_see_nothing() {
    come_and_go("ram");
}

/// Whenever it is killed, the layers afterwards are those of before the change or of after it, and they work.
#[test]
fn kill_9_leaves_the_layers_of_before_or_of_after() {
    let (mut d, mut known) = daemon("layers-kill", "striped");
    let mut rng = Prng::new(5);
    let (mut before, mut after) = (0, 0);
    for round in 0..8u64 {
        let was = names(&d);
        let (line, layer) = match was.is_empty() {
            true => ("layer insert v delay time=30us --name x", true),
            false => ("layer remove v x", false),
        };
        let (dir, pid, delay) = (d.dir.clone(), d.pid(), rng.between(0, 150));
        under_load(&d, &mut known, 100 + round, move || {
            let change = std::thread::spawn(move || {
                let args: Vec<&str> = line.split_whitespace().collect();
                crate::common::weir(&dir, &args);
            });
            std::thread::sleep(Duration::from_millis(delay));
            let killed = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
            assert!(killed.expect("kill runs").success());
            change.join().expect("it ends");
        });
        d.kill();
        d.start();
        let is = names(&d);
        match is == was {
            true => before += 1,
            false => {
                assert_eq!(is.len(), usize::from(layer));
                after += 1;
            }
        }
        verify(&d, &mut known);
    }
    println!("{before} times the layers of before, {after} times those of after");
    d.stop();
}

/// Layers that are to fail are put in by force only, and can be taken out again.
#[test]
fn a_forced_fault_is_felt_and_can_be_removed() {
    let (mut d, _) = daemon("layers-force", "ram");
    d.ok("layer insert v fault ops=write,flush --force");
    let file = d.path("data");
    std::fs::write(&file, crate::common::noise(1, 1 << 20)).expect("written");
    let target = d.target();
    let line = format!("write --target {target} --volume v --input {file} --bs 64k");
    let (_, text) = d.fails(&line, 1);
    assert!(text.contains("write error"), "{text}");
    let errors = d.json("layer list v")[0]["write"]["errors"].as_u64();
    assert!(errors > Some(0), "they are counted");
    assert!(d.ok("layer list v").contains("errors"));
    d.ok("layer insert v stats");
    d.ok("layer remove v fault");
    d.ok(&line);

    // Drawn, with what passes.
    let text = d.ok("graph v");
    assert!(text.contains("└─ stats.2 [stats]  64 MiB") && text.contains("└─ top [ram]"), "{text}");
    let svg = d.ok("graph v --format svg");
    assert!(svg.starts_with("<svg ") && svg.contains("stats.2 [stats]"), "{svg}");
    let json = d.json("graph v");
    let node = &json["nodes"][0];
    assert_eq!((&node["id"], &node["block_size"]), (&"stats.2".into(), &4096.into()), "{json}");
    assert!(node["write"]["bytes"].as_u64() >= Some(1 << 20), "{json}");
    assert!(d.ok("layer kinds").contains("delay: makes I/O slower"));
    d.stop();
}

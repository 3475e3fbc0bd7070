//! `weir quickstart` beside what the operator does, and beside its own ends.

use crate::common::{Daemon, terminate};
use std::process::{Child, Command, Stdio};

const MIB: usize = 1 << 20;

#[test]
fn quickstart_ends_in_order_too() {
    let d = Daemon::new("stops-quick");
    let run = |until: &str| {
        let log = std::fs::File::create(d.path("log")).expect("a log");
        let child = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(["quickstart", "--listen", "127.0.0.1:0", "--size", "32M", "--verify-size", "8M"])
            .args(["--runtime", "1s", "--cores", "0,1"])
            .env_clear()
            .env("WEIR_DATA_DIR", d.path("data"))
            .env("WEIR_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        let mut child = child.expect("weir quickstart runs");
        d.until("it is so far", || d.log().contains(until));
        terminate(child.id());
        d.until("it ends", || child.try_wait().expect("it can be asked").is_some());
        let code = child.wait().expect("its end").code();
        assert_eq!(code, Some(0), "{until}: {}", d.log());
        assert!(d.log().contains("stopping") && !d.log().contains("left open"), "{}", d.log());
    };
    run("serving until Ctrl-C");
    // In the midst of its own load.
    run("listening at");
    let file = d.path("data/pool.img");
    assert!(std::fs::metadata(&file).is_ok(), "{file}");
    // Nothing was left that a third run would stumble over.
    run("serving until Ctrl-C");
}

fn quickstart(d: &Daemon, verify: &str, more: &[&str]) -> Child {
    quickstart_at(d, "127.0.0.1:0", verify, more)
}

fn quickstart_at(d: &Daemon, listen: &str, verify: &str, more: &[&str]) -> Child {
    let log = std::fs::File::create(d.path("log")).expect("a log");
    let said = std::fs::File::create(d.path("said")).expect("a file");
    let child = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["quickstart", "--listen", listen, "--size", "32M", "--verify-size", verify])
        .args(["--runtime", "1s", "--cores", "0,1"])
        .args(more)
        .env_clear()
        .env("WEIR_DATA_DIR", &d.dir)
        .stdin(Stdio::null())
        .stdout(said)
        .stderr(log)
        .spawn();
    child.expect("weir quickstart runs")
}

fn ends(d: &Daemon, mut child: Child) -> Option<i32> {
    d.until("it ends", || child.try_wait().expect("it can be asked").is_some());
    child.wait().expect("its end").code()
}

/// Gives what it says to `f`, with where it serves, and then stops it.
fn quickstart_with(d: &Daemon, verify: &str, f: impl FnOnce(&str, &str)) {
    let child = quickstart(d, verify, &[]);
    let said = || std::fs::read_to_string(d.path("said")).unwrap_or_default();
    d.until("it serves", || said().contains("To look around"));
    let text = said();
    let at = text.split("is served at ").nth(1).and_then(|t| t.lines().next()).expect("where");
    f(&text, at);
    terminate(child.id());
    assert_eq!(ends(d, child), Some(0), "{}", d.log());
}

/// What a host has put on the volume is neither overwritten nor in the way: where an earlier run had written, and where only a
/// later one would.
#[test]
fn quickstart_leaves_alone_what_somebody_has_written() {
    for (n, verify, at, marker) in [
        (0, "8M", "0", true),
        (1, "8M", "16M", true),
        (2, "0", "0", true),
        // Nobody knows any more what was written.
        (3, "0", "0", false),
        (4, "8M", "16M", false),
    ] {
        let d = Daemon::new(&format!("stops-used{n}"));
        let data = crate::common::noise(9 + n, MIB);
        std::fs::write(d.path("in"), &data).expect("written");
        quickstart_with(&d, verify, |said, to| {
            assert_eq!(said.contains("verified:"), verify != "0", "{said}");
            let from = d.path("in");
            d.ok(&format!("write --target {to} --volume quick --offset {at} --input {from}"));
        });
        if !marker {
            std::fs::remove_file(d.path("quickstart-data")).expect("it was kept");
        }
        let changed = n == 0 || !marker;
        quickstart_with(&d, "24M", |said, from| {
            assert_eq!(said.contains("left as it is"), changed, "{n}: {said}");
            assert_eq!(said.contains("data was lost"), changed && marker, "{n}: {said}");
            assert!(!said.contains("verified:"), "{n}: {said}");
            let (to, len) = (d.path("out"), data.len());
            d.ok(&format!(
                "read --target {from} --volume quick --offset {at} --length {len} --output {to}"
            ));
            assert!(std::fs::read(to).expect("read") == data, "{n}: it is the host's");
        });
        if changed {
            let child = quickstart(&d, "8M", &["--once"]);
            // Where nobody knows what was written, nothing was lost as far as anybody knows.
            let (code, text) = match marker {
                true => (Some(9), "volume quick has changed"),
                false => (Some(4), "volume quick is not verified"),
            };
            assert_eq!(ends(&d, child), code, "{}", d.log());
            assert!(d.log().contains(text), "{}", d.log());
            assert_eq!(d.log().contains("data was lost"), marker, "{}", d.log());
        }
    }
}

/// Nobody had the volume of a first run that was killed: the next one goes on.
#[test]
fn quickstart_goes_on_after_a_first_run_that_was_killed() {
    let d = Daemon::new("stops-first");
    killed(&d);
    quickstart_with(&d, "32M", |said, _| {
        assert!(said.contains("verified:") || said.contains("every byte right"), "{said}");
    });
    quickstart_with(&d, "32M", |said, _| {
        assert!(said.contains("every byte right"), "{said}");
        // Who verifies and measures is no host for good.
        assert_eq!(hosts(&d), ["everyone"]);
        d.ok("map delete everyone quick --force");
    });
    // All had it, and have it no more.
    quickstart_with(&d, "32M", |said, at| {
        assert!(said.contains("every byte right") && !d.log().contains("to all"), "{said}");
        assert!(!reads(&d, at, "7:7"), "nothing is mapped to it");
    });
}

fn hosts(d: &Daemon) -> Vec<String> {
    let all = d.json("host list");
    let names = all.as_array().into_iter().flatten().filter_map(|h| h["name"].as_str());
    names.map(str::to_owned).collect()
}

/// The initiator port of the host that verifies and measures.
fn own_port(d: &Daemon) -> String {
    let ports = d.json("host show quickstart")["ports"].clone();
    ports[0].as_str().expect("one").to_owned()
}

/// Whether that initiator port has a volume as LUN 0.
fn reads(d: &Daemon, at: &str, port: &str) -> bool {
    let read = format!(
        "read --target {at} --lun 0 --initiator-port {port} --length 512 --output {}",
        d.path("read")
    );
    crate::common::weir(&d.dir, &read.split(' ').collect::<Vec<_>>()).status.success()
}

/// A run that was cut off leaves its host with the volume. Its port is that run's only.
#[test]
fn quickstart_gives_the_volume_to_no_port_of_a_run_before() {
    let mut d = Daemon::new("stops-own");
    killed(&d);
    let mut child = quickstart(&d, "32M", &[]);
    d.until("it listens", || d.log().contains("listening at"));
    let before = own_port(&d);
    child.kill().expect("it is there");
    child.wait().expect("its end");
    quickstart_with(&d, "32M", |_, at| {
        assert_eq!(hosts(&d), ["everyone"]);
        d.ok("map delete everyone quick --force");
        assert!(!reads(&d, at, &before));
    });
    d.start();
    assert!(!reads(&d, &d.target(), &before));
    d.stop();
}

/// To whom the volume is shown, whether it may be written, and its size are the operator's, as is another volume of that name.
#[test]
fn quickstart_leaves_hosts_and_volumes_as_they_are() {
    let d = Daemon::new("stops-closed");
    quickstart_with(&d, "8M", |_, at| {
        assert!(reads(&d, at, "9:9"));
        d.ok("host set everyone --add-port 1:2 --allow-any off");
        d.ok("volume set quick --read-only on");
        d.ok("volume resize quick 40M");
    });
    quickstart_with(&d, "8M", |said, at| {
        assert!(said.contains("every byte right"), "{said}");
        assert!(reads(&d, at, "1:2") && !reads(&d, at, "9:9"));
        let v = d.json("volume show quick");
        assert_eq!((&v["read_only"], &v["size"]), (&true.into(), &(40 << 20).into()), "{v}");
        d.ok("map delete everyone quick --force");
        d.ok("volume delete quick --yes");
    });
    quickstart_with(&d, "8M", |said, at| {
        assert!(said.contains("verified:") && !d.log().contains("to all"), "{said}");
        assert!(reads(&d, at, "1:2") && !reads(&d, at, "9:9"));
        d.ok("volume resize quick 4M --allow-shrink");
        d.ok(&format!("pool resize quick --add file:{}:64M", d.path("more")));
    });
    quickstart_with(&d, "8M", |said, _| {
        assert!(said.contains("every byte right"), "{said}");
        assert_eq!(d.json("volume show quick")["size"], 4 << 20);
        d.ok("volume resize quick 32M");
    });
    // What was cut off is not missed.
    quickstart_with(&d, "8M", |said, _| assert!(said.contains("every byte right"), "{said}"));
}

/// What it has shown once is the operator's to give and take.
#[test]
fn quickstart_shows_to_nobody_what_was_taken_from_all() {
    let d = Daemon::new("stops-taken");
    quickstart_with(&d, "8M", |_, _| assert!(d.log().contains("to all"), "{}", d.log()));
    quickstart_with(&d, "8M", |_, at| {
        assert!(reads(&d, at, "7:7"));
        d.ok("map delete everyone quick --force");
    });
    quickstart_with(&d, "8M", |said, at| {
        assert!(d.log().contains("nobody has volume quick") && !reads(&d, at, "7:7"), "{said}");
    });
}

/// A first run that is killed as soon as it listens.
fn killed(d: &Daemon) {
    let mut child = quickstart(d, "32M", &[]);
    d.until("it is so far", || d.log().contains("listening at"));
    child.kill().expect("it is there");
    child.wait().expect("its end");
}

/// By hand, between a first run that was killed and the next one; it has it no more when that begins.
#[test]
fn quickstart_leaves_alone_what_a_host_had_meanwhile() {
    let mut d = Daemon::new("stops-meanwhile");
    killed(&d);
    let data = crate::common::noise(3, MIB);
    std::fs::write(d.path("in"), &data).expect("written");
    d.start();
    d.ok("host create db1 --port 1:2");
    d.ok("map create db1 quick");
    let port = "--volume quick --initiator-port 1:2";
    d.ok(&format!("write --target {} {port} --offset 1M --input {}", d.target(), d.path("in")));
    d.ok("map delete db1 quick --force");
    d.stop();
    quickstart_with(&d, "32M", |said, at| {
        assert!(said.contains("left as it is") && !d.log().contains("to all"), "{said}");
        assert!(!reads(&d, at, "7:7"), "it is that host's");
        d.ok("map create db1 quick");
        let to = d.path("out");
        d.ok(&format!("read --target {at} {port} --offset 1M --length 1M --output {to}"));
        assert!(std::fs::read(to).expect("read") == data, "it is the host's");
        // So is one that was made by the operator.
        d.ok("map delete db1 quick --force");
        d.ok("volume delete quick --yes");
        d.ok("volume create quick --pool quick --size 32M");
        d.ok("map create db1 quick");
        d.ok(&format!("write --target {at} {port} --offset 31M --input {}", d.path("in")));
        d.ok("map delete db1 quick --force");
    });
    quickstart_with(&d, "8M", |said, at| {
        assert!(said.contains("left as it is") && !d.log().contains("to all"), "{said}");
        assert!(!reads(&d, at, "7:7"));
    });
}

/// Another host stands for all who are not known.
#[test]
fn quickstart_shows_to_whom_the_operator_has_for_all() {
    let mut d = Daemon::new("stops-any");
    d.start();
    d.ok("host create any --allow-any");
    d.stop();
    quickstart_with(&d, "8M", |said, at| {
        assert!(d.log().contains("to all") && reads(&d, at, "9:9"), "{said}");
    });
}

/// Who changes the configuration waits until a first run has written: no host has the volume before, or takes it for its own.
#[test]
fn quickstart_writes_over_no_host_that_gets_the_volume_meanwhile() {
    let d = Daemon::new("stops-beside");
    let child = quickstart(&d, "32M", &[]);
    d.until("it listens", || d.log().contains("listening at"));
    let at =
        d.log().split("listening at ").nth(1).and_then(|t| t.split(' ').next()).map(String::from);
    let at = at.expect("an address");
    let data = crate::common::noise(4, MIB);
    std::fs::write(d.path("in"), &data).expect("written");
    let said = || std::fs::read_to_string(d.path("said")).unwrap_or_default();
    assert!(d.ok("status").contains("verifies and measures volume quick"));
    d.ok("host create db1 --port 1:2");
    assert!(d.log().contains("serving volume quick to all"), "{}", d.log());
    assert_eq!(hosts(&d), ["db1", "everyone"], "its own has gone before");
    d.ok("map create db1 quick");
    let by = format!("--target {at} --volume quick --initiator-port 1:2 --offset 31M");
    d.ok(&format!("write {by} --input {}", d.path("in")));
    d.until("it serves", || said().contains("To look around"));
    let to = d.path("out");
    d.ok(&format!("read {by} --length 1M --output {to}"));
    assert!(std::fs::read(to).expect("read") == data, "it is the host's");
    terminate(child.id());
    assert_eq!(ends(&d, child), Some(0), "{}", d.log());
}

/// A host of that name is the operator's, once he has done anything to it.
#[test]
fn quickstart_takes_nothing_from_a_host_of_its_own_name() {
    let mut d = Daemon::new("quick-name");
    quickstart_with(&d, "8M", |_, _| {
        d.ok("volume create db --pool quick --size 1M");
        d.ok("host create quickstart --port 1:2");
        d.ok("map create quickstart db --lun 0");
    });
    let refused = |d: &Daemon| {
        let child = quickstart(d, "8M", &[]);
        assert_eq!(ends(d, child), Some(4), "{}", d.log());
        assert!(d.log().contains("host `quickstart` is not of this program"), "{}", d.log());
    };
    refused(&d);
    d.start();
    assert!(reads(&d, &d.target(), "1:2"));
    d.stop();
}

/// Where hosts have their way in, it makes no other.
#[test]
fn quickstart_uses_the_target_ports_that_are_there() {
    for name in ["san", "srp0"] {
        let d = Daemon::new(&format!("quick-ports-{name}"));
        let port =
            format!("[[target]]\nname = '{name}'\nlisten = ['127.0.0.2:0']\ncrc = 'require'\n");
        std::fs::write(d.path("weir.toml"), port).expect("written");
        let mut serve = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(["serve", "--config", &d.path("weir.toml"), "--cores", "0", "--poll", "sleep"])
            .env_clear()
            .env("WEIR_DATA_DIR", &d.dir)
            .stderr(Stdio::null())
            .spawn()
            .expect("weir serve runs");
        d.wait();
        let before = d.json("target list");
        terminate(serve.id());
        assert!(serve.wait().expect("its end").success());
        let log = std::fs::File::create(d.path("log")).expect("a log");
        let said = std::fs::File::create(d.path("said")).expect("a file");
        let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(["quickstart", "--size", "32M", "--verify-size", "8M", "--runtime", "1s"])
            .env_clear()
            .env("WEIR_DATA_DIR", &d.dir)
            .stdin(Stdio::null())
            .stdout(said)
            .stderr(log)
            .spawn()
            .expect("weir quickstart runs");
        let said = || std::fs::read_to_string(d.path("said")).unwrap_or_default();
        d.until("it serves", || {
            said().contains("To look around") || child.try_wait().is_ok_and(|e| e.is_some())
        });
        assert!(said().contains("verified:") && said().contains("127.0.0.2:"), "{}", d.log());
        let ports = |all: serde_json::Value| -> Vec<[serde_json::Value; 4]> {
            let all = all.as_array().cloned().unwrap_or_default();
            let of =
                |t: &serde_json::Value| ["name", "listen", "crc", "protocol"].map(|k| t[k].clone());
            all.iter().map(of).collect()
        };
        assert_eq!(ports(d.json("target list")), ports(before));
        terminate(child.id());
        assert_eq!(ends(&d, child), Some(0), "{}", d.log());
        // Where it was told to listen it does only if the port of that is its own.
        let child = quickstart(&d, "8M", &["--once"]);
        assert_eq!(ends(&d, child), Some(0), "{}", d.log());
        let is_said = d.log().contains("--listen is not followed: hosts have target port `san`");
        assert_eq!(is_said, name == "san", "{}", d.log());
    }
}

/// What it wrote itself, and is wrong when it is read, is not taken for somebody else's.
#[test]
fn quickstart_says_that_its_own_data_was_lost() {
    let mut d = Daemon::new("quick-lost");
    quickstart_with(&d, "8M", |_, _| {
        d.ok("map delete everyone quick --force");
    });
    let note = d.path("quickstart-data");
    let text = std::fs::read_to_string(&note).expect("a note");
    std::fs::write(&note, text.replace("served", "written")).expect("written");
    // As a device that loses what it was given.
    d.start();
    d.ok("host create db1 --port 1:2");
    d.ok("map create db1 quick");
    std::fs::write(d.path("in"), crate::common::noise(5, MIB)).expect("written");
    let by = "--volume quick --initiator-port 1:2 --offset 1M";
    d.ok(&format!("write --target {} {by} --input {}", d.target(), d.path("in")));
    d.ok("map delete db1 quick --force");
    d.stop();
    for _ in 0..2 {
        let child = quickstart(&d, "8M", &["--once"]);
        assert_eq!(ends(&d, child), Some(9), "{}", d.log());
        assert!(d.log().contains("data was lost"), "{}", d.log());
    }
    quickstart_with(&d, "8M", |said, at| {
        assert!(said.contains("data was lost") && !reads(&d, at, "7:7"), "{said}");
    });
}

/// Where it is told to listen it does so from the first moment on, and nowhere else.
#[test]
fn quickstart_does_not_listen_where_it_did() {
    let d = Daemon::new("quick-elsewhere");
    // Free ones that nobody is given who asks for any.
    let first = std::process::id().wrapping_mul(2);
    let all = (0..1000).map(|n| format!("127.0.0.1:{}", 30_000 + (first.wrapping_add(n)) % 2000));
    let mut free = all.filter(|at| std::net::TcpListener::bind(at).is_ok());
    let (before, now) = (free.next().expect("a port"), free.next().expect("another"));
    let child = quickstart_at(&d, &before, "8M", &["--once"]);
    assert_eq!(ends(&d, child), Some(0), "{}", d.log());
    let _taken = std::net::TcpListener::bind(&before).expect("it is free");
    let child = quickstart_at(&d, &now, "8M", &["--once"]);
    assert_eq!(ends(&d, child), Some(0), "{}", d.log());
    assert!(!d.log().contains("cannot listen") && !d.log().contains(&before), "{}", d.log());
}

/// With `--once` success means that it was done.
#[test]
fn quickstart_once_is_no_success_where_it_is_cut_off() {
    let d = Daemon::new("quick-cut");
    let child = quickstart(&d, "32M", &["--once"]);
    d.until("it listens", || d.log().contains("listening at"));
    terminate(child.id());
    assert_ne!(ends(&d, child), Some(0), "{}", d.log());
    assert!(d.log().contains("stopped before that"), "{}", d.log());
    // Nor is it where nothing was written.
    let none = Daemon::new("quick-none");
    quickstart_with(&none, "0", |_, _| ());
    let child = quickstart(&none, "8M", &["--once"]);
    assert_eq!(ends(&none, child), Some(4), "{}", none.log());
    // Of less than one I/O as well.
    let child = quickstart(&d, "100K", &["--once"]);
    assert_eq!(ends(&d, child), Some(0), "{}", d.log());
    let said = std::fs::read_to_string(d.path("said")).expect("it said something");
    let good = ["verified: 100 KiB", "kept:     100 KiB", "kept:     32 MiB"];
    assert!(good.iter().any(|g| said.contains(g)), "{said}");
}

/// What a run that was cut off had in mind binds no later one.
#[test]
fn quickstart_writes_as_much_as_it_is_told_now() {
    let d = Daemon::new("quick-less");
    killed(&d);
    let note = d.path("quickstart-data");
    let text = std::fs::read_to_string(&note).expect("a note");
    let words: Vec<&str> = text.split(' ').collect();
    std::fs::write(&note, format!("7 {} {} begun", 32 << 20, words[2])).expect("written");
    quickstart_with(&d, "8M", |said, _| {
        // Unless the other run had come to its end.
        assert!(said.contains("verified: 8 MiB") || said.contains("left as it is"), "{said}");
    });
}

/// Between the making of the volume and the first word of it nothing is forgotten: here a port is busy.
#[test]
fn quickstart_goes_on_where_its_first_run_found_a_busy_port() {
    let d = Daemon::new("quick-busy");
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let busy = other.local_addr().expect("its address").to_string();
    let child = quickstart_at(&d, &busy, "8M", &[]);
    assert_eq!(ends(&d, child), Some(1), "{}", d.log());
    assert!(
        d.log().contains("cannot listen") && !d.log().contains("every few seconds"),
        "{}",
        d.log()
    );
    drop(other);
    quickstart_with(&d, "8M", |said, at| {
        assert!(said.contains("verified:") && d.log().contains("to all"), "{said}");
        assert!(reads(&d, at, "7:7"));
    });
    // A wrong size is one, whatever is there.
    for size in ["0", "100"] {
        let out = crate::common::weir(&d.dir, &["quickstart", "--size", size]);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{size}: {text}");
        assert!(text.contains("a volume cannot have"), "{size}: {text}");
    }
}

/// What of the operator's is ill stays his: hosts of the rest go on.
#[test]
fn quickstart_serves_beside_an_ill_pool() {
    let mut d = Daemon::new("quick-ill");
    quickstart_with(&d, "8M", |_, _| {
        let [a, b, c] = ["a", "b", "c"].map(|n| format!("--device file:{}:256M", d.path(n)));
        d.ok(&format!("pool create gone {c}"));
        d.ok(&format!("pool create safe --raid 1 {a} {b}"));
    });
    std::fs::remove_file(d.path("c")).expect("removed");
    std::fs::remove_file(d.path("b")).expect("removed");
    d.start();
    d.until("it is open", || d.json("pool show safe")["live"]["state"] == "degraded");
    d.stop();
    quickstart_with(&d, "8M", |said, at| {
        assert!(said.contains("every byte right") && reads(&d, at, "7:7"), "{said}");
        assert!(d.log().contains("pool `safe` is degraded"), "{}", d.log());
    });
    // Its own pool it cannot do without.
    std::fs::rename(d.path("pool.img"), d.path("mislaid")).expect("moved");
    let child = quickstart(&d, "8M", &[]);
    assert_eq!(ends(&d, child), Some(1), "{}", d.log());
    assert!(d.log().contains("pool/quick did not start"), "{}", d.log());
}

/// Nothing was lost of a volume that nobody has written to.
#[test]
fn quickstart_says_of_an_operators_volume_only_that_it_is_not_known() {
    let mut d = Daemon::new("quick-made");
    d.start();
    // Where the pool would be that it makes, and does not need.
    d.ok(&format!("pool create p --device file:{}:256M", d.path("pool.img")));
    d.ok("volume create quick --pool p --size 32M");
    d.stop();
    quickstart_with(&d, "8M", |said, at| {
        assert!(said.contains("left as it is") && !said.contains("data was lost"), "{said}");
        assert!(d.log().contains("nobody has volume quick") && !reads(&d, at, "7:7"));
        assert_eq!(d.json("pool list").as_array().map(Vec::len), Some(1));
    });
    let child = quickstart(&d, "8M", &["--once"]);
    assert_eq!(ends(&d, child), Some(4), "{}", d.log());
    assert!(!d.log().contains("data was lost"), "{}", d.log());
}

/// A run is cut off when it has verified, before it has shown; a host has the volume in between, and writes behind what was.
#[test]
fn quickstart_shows_to_nobody_what_a_host_wrote_behind_its_own() {
    for (state, read_only) in [("begun", false), ("written", false), ("written", true)] {
        shows_to_nobody(state, read_only);
    }
}

fn shows_to_nobody(state: &str, read_only: bool) {
    let mut d = Daemon::new(&format!("quick-behind-{state}-{read_only}"));
    quickstart_with(&d, "8M", |_, _| {
        d.ok("map delete everyone quick --force");
    });
    let note = d.path("quickstart-data");
    let text = std::fs::read_to_string(&note).expect("a note");
    std::fs::write(&note, text.replace("served", state)).expect("written");
    d.start();
    d.ok("host create db1 --port 1:2");
    d.ok("map create db1 quick");
    // The end of it, which is no whole piece.
    d.ok("volume resize quick 32896K");
    std::fs::write(d.path("in"), crate::common::noise(5, 64 << 10)).expect("written");
    let by = "--volume quick --initiator-port 1:2 --offset 32M";
    d.ok(&format!("write --target {} {by} --input {}", d.target(), d.path("in")));
    d.ok("map delete db1 quick --force");
    if read_only {
        d.ok("volume set quick --read-only on");
    }
    d.stop();
    quickstart_with(&d, "8M", |said, at| {
        assert!(said.contains("left as it is") && !d.log().contains("to all"), "{said}");
        assert!(!reads(&d, at, "7:7"), "it is that host's");
    });
}

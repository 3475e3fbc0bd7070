//! An orderly stop of the real program, whatever hosts and devices do meanwhile.

use crate::common::load::{Load, port, stopped_writer, under_way};
use crate::common::lossy::{Disks, Frozen};
use crate::common::versions::{until_ended, verify, zeros};
use crate::common::{Beside, Daemon, terminate};
use crate::devices::Loop;
use crate::hung::{is_at_a_device, node, uncached};
use std::io::{PipeReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// Something had to be left.
const LEFT: i32 = 10;
/// The second signal.
const AT_ONCE: i32 = 143;

/// Whether the daemon has heard of its end.
fn stops(d: &Daemon) -> bool {
    d.log().contains("stopping")
}

/// What the log says since the signal.
fn said(d: &Daemon) -> String {
    let log = d.log();
    log.rsplit_once("stopping").map(|(_, s)| s.to_owned()).unwrap_or_default()
}

/// It has ended in order, and left nothing.
fn ended_in_order(d: &mut Daemon) -> String {
    let ended = d.ended();
    assert_eq!(ended.code(), Some(0), "{}", d.log());
    let said = said(d);
    for word in ["left open", "resources missing", "channel established", "channel in service"] {
        assert!(!said.contains(word), "{word}: {said}");
    }
    said
}

/// A host that writes as long as it may, by channels of its own.
fn writer(d: &Daemon, protocol: &str, number: u32, volume: &str) -> Load {
    let (at, port) = (d.port(&format!("{protocol}0")).expect("it listens"), port(number));
    Load::start(
        d,
        &format!(
            "bench --initiator {protocol} --initiator-port {port} --target {at} --volume {volume} --rw randwrite \
             --bs 16k --iodepth 8 --numjobs 1 --size 16m --time-based --runtime 3600"
        ),
    )
}

/// Hosts of both protocols write to volumes of their own, and others to one of which every block is known.
#[test]
fn a_stop_under_load_takes_seconds_and_keeps_what_was_acknowledged() {
    let mut d = Daemon::new("stops-load");
    d.start();
    d.ok(&format!("pool create safe --raid 1 {}", d.devices(2, "512M")));
    d.ok(&format!("pool create plain --device file:{}:256M", d.path("plain")));
    d.ok("volume create v --pool safe --size 16M --block-size 4096");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let hosts = [(1, "srp", "safe"), (2, "brp", "plain"), (3, "srp", "plain"), (4, "brp", "safe")];
    for (number, _, pool) in hosts {
        d.ok(&format!("volume create w{number} --pool {pool} --size 16M"));
        d.ok(&format!("host create h{number} --port {}", port(number)));
        d.ok(&format!("map create h{number} w{number}"));
    }
    let load = |d: &Daemon| {
        let all = hosts.map(|(n, protocol, _)| writer(d, protocol, n, &format!("w{n}")));
        for (n, ..) in hosts {
            d.until("it writes", || under_way(d, &format!("h{n}")) > 0);
        }
        all
    };
    let mut others = load(&d);
    let (mut known, pid) = (zeros(), d.pid());
    let acknowledged = until_ended(&d, &mut known, 1, move || terminate(pid));
    let begun = Instant::now();
    ended_in_order(&mut d);
    // About one is usual; frozen hosts alone would take 4 s.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}: {}", begun.elapsed(), d.log());
    assert!(acknowledged >= 200);
    // SRP hosts see the end of their connections; BRP hosts log in again by themselves, and do so below.
    for i in [0, 2] {
        d.until("a host sees the end", || others[i].has_ended());
    }
    drop(others);
    d.start();
    verify(&d, &mut known);
    drop(load(&d));
    assert_eq!(d.json("status")["faults"], serde_json::json!([]));
    d.stop();
    d.is_clean(2);
}

#[test]
fn hosts_that_stand_still_in_the_midst_of_writes_are_parted_from() {
    let mut d = Daemon::new("stops-still");
    d.start();
    d.ok(&format!("pool create safe --raid 1 {}", d.devices(2, "512M")));
    let mut stopped = Vec::new();
    for (number, protocol) in [(1, "srp"), (2, "brp")] {
        let host = format!("still-{protocol}");
        d.ok(&format!("volume create {host} --pool safe --size 64M"));
        d.ok(&format!("host create {host} --port {}", port(number)));
        d.ok(&format!("map create {host} {host}"));
        stopped.push(stopped_writer(&d, protocol, number, &host, &format!("{protocol}0")));
    }
    terminate(d.pid());
    ended_in_order(&mut d);
    drop(stopped);
    d.is_clean(2);
    d.start();
    assert_eq!(d.json("status")["faults"], serde_json::json!([]));
    d.stop();
}

/// A device of a plain pool, which has nothing else to go on with, hangs with a host's command in it.
#[test]
fn a_device_that_hangs_is_left_and_keeps_nothing_else_open() {
    let Some((mut d, disks, data)) = node("stops-hung") else { return };
    let Some(disk) = uncached(&disks) else { return };
    d.ok(&format!("pool create bad --device {}", disk.0));
    d.ok("volume create b --pool bad --size 8M");
    d.ok("map create all b");
    let (target, file) = (d.target(), d.path("of-g"));
    let frozen = disks.switch().frozen();
    let line = format!("write --target {target} --volume b --input {file} --bs 64k");
    let writes = Load::start(&d, &line);
    d.until("it writes", || under_way(&d, "all") > 0);
    let begun = Instant::now();
    terminate(d.pid());
    let ended = d.ended();
    assert_eq!(ended.code(), Some(LEFT), "{}", d.log());
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    let said = said(&d);
    for left in ["left open: volume `b`", "left open: pool `bad`"] {
        assert!(said.contains(left), "{left}: {said}");
    }
    for other in ["`g`", "`good`", "target port `"] {
        assert!(!said.contains(other), "{other} could be closed: {said}");
    }
    d.is_clean(2);
    drop((writes, frozen));
    d.start();
    assert!(d.read("g", MIB) == data);
    d.write("b", &d.path("of-g"));
    d.stop();
}

/// A node with a protected pool `two`, one leg of which hangs.
fn with_leg(name: &str) -> Option<(Daemon, Disks, Loop, Frozen, Vec<u8>)> {
    let (d, disks, data) = node(name)?;
    let disk = uncached(&disks)?;
    d.ok(&format!(
        "pool create two --raid 1 --device {} --device file:{}:64M",
        disk.0,
        d.path("leg")
    ));
    d.ok("volume create t --pool two --size 8M");
    d.ok("map create all t");
    d.write("t", &d.path("of-g"));
    let frozen = disks.switch().frozen();
    Some((d, disks, disk, frozen, data))
}

/// It fails meanwhile, and the pool is closed without it.
#[test]
fn a_leg_that_hangs_is_waited_for_until_it_fails() {
    let Some((mut d, _disks, _disk, frozen, data)) = with_leg("stops-leg") else { return };
    terminate(d.pid());
    ended_in_order(&mut d);
    drop(frozen);
    d.start();
    assert!(d.read("t", MIB) == data && d.read("g", MIB) == data);
    d.stop();
}

/// A node in the midst of a start: a device that its configuration file declares hangs.
fn starts(name: &str) -> Option<(Daemon, Disks, Frozen, Vec<u8>)> {
    let (mut d, disks, data) = node(name)?;
    d.stop();
    let device = disks.files()[0].display().to_string();
    let declared =
        format!("[[pool]]\nname = 'new'\ndevices = [{{ kind = 'file', path = '{device}' }}]\n");
    std::fs::write(d.path("weir.toml"), declared).expect("written");
    drop(std::fs::remove_file(d.path("log")));
    let frozen = disks.switch().frozen();
    d.start_only();
    d.until("it waits for the device", || is_at_a_device(&d));
    std::fs::remove_file(d.path("weir.toml")).expect("there it was");
    Some((d, disks, frozen, data))
}

#[test]
fn a_stop_in_the_midst_of_a_start_is_orderly() {
    let Some((mut d, disks, frozen, data)) = starts("stops-start") else { return };
    terminate(d.pid());
    d.until("it stops", || stops(&d));
    assert!(!d.log().contains("serving"), "it was up: {}", d.log());
    drop(frozen);
    ended_in_order(&mut d);
    d.start();
    assert!(d.read("g", MIB) == data);
    d.stop();
    drop(disks);
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let Some((mut d, _disks, _disk, frozen, data)) = with_leg("stops-twice") else { return };
    terminate(d.pid());
    d.until("it stops", || stops(&d));
    terminate(d.pid());
    let ended = d.ended();
    assert_eq!(ended.code(), Some(AT_ONCE), "{}", d.log());
    drop(frozen);
    d.start();
    assert!(d.read("t", MIB) == data && d.read("g", MIB) == data);
    d.stop();
}

/// Sockets that the daemon has.
fn sockets(d: &Daemon) -> usize {
    let fds = std::fs::read_dir(format!("/proc/{}/fd", d.pid())).expect("it runs");
    let is_socket = |p: &std::path::PathBuf| p.to_string_lossy().starts_with("socket:");
    fds.flatten().filter_map(|f| std::fs::read_link(f.path()).ok()).filter(is_socket).count()
}

/// A command waits for a device that hangs, and another one that names it waits with it.
#[test]
fn commands_that_wait_for_a_device_are_refused() {
    let Some((mut d, disks, data)) = node("stops-turn") else { return };
    let frozen = disks.switch().frozen();
    let (line, device) = ("pool create ", disks.files()[0].display());
    let makes = Beside::run(&d, &format!("{line}new --device file:{device}"));
    d.until("it asks for the device", || is_at_a_device(&d));
    let before = sockets(&d);
    let waits = Beside::run(&d, &format!("{line}other --device file:{device} --json"));
    d.until("it has come", || sockets(&d) > before);
    terminate(d.pid());
    let (done, refused) = waits.end(&d);
    assert!(!done && refused.contains("being stopped"), "{refused}");
    drop(frozen);
    ended_in_order(&mut d);
    drop(makes.end(&d));
    d.start();
    assert_eq!(d.json("pool list").as_array().map(Vec::len), Some(1));
    assert!(d.read("g", MIB) == data);
    d.stop();
}

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
    let log = std::fs::File::create(d.path("log")).expect("a log");
    let said = std::fs::File::create(d.path("said")).expect("a file");
    let child = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["quickstart", "--listen", "127.0.0.1:0", "--size", "32M", "--verify-size", verify])
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
            assert!(!said.contains("verified:"), "{n}: {said}");
            let (to, len) = (d.path("out"), data.len());
            d.ok(&format!(
                "read --target {from} --volume quick --offset {at} --length {len} --output {to}"
            ));
            assert!(std::fs::read(to).expect("read") == data, "{n}: it is the host's");
        });
        if changed {
            let child = quickstart(&d, "8M", &["--once"]);
            assert_eq!(ends(&d, child), Some(9), "{}", d.log());
            assert!(d.log().contains("volume quick has changed"), "{}", d.log());
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
    quickstart_with(&d, "32M", |said, at| {
        assert!(said.contains("every byte right"), "{said}");
        // Nobody has it for good who knows that host's port.
        let port = own_port(&d);
        d.ok("map delete everyone quick --force");
        assert!(!reads(&d, at, &port), "nothing is mapped to it");
    });
    // All had it, and have it no more.
    quickstart_with(&d, "32M", |said, at| {
        assert!(said.contains("every byte right") && !d.log().contains("to all"), "{said}");
        assert!(!reads(&d, at, "7:7"), "nothing is mapped to it");
    });
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
        assert_ne!(own_port(&d), before);
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
    });
}

/// As versions before left it, and as it is where a run was cut off when it had shown the volume.
#[test]
fn quickstart_shows_to_nobody_what_was_taken_from_all() {
    for old in [true, false] {
        let d = Daemon::new(&format!("stops-taken{old}"));
        quickstart_with(&d, "8M", |_, _| assert!(d.log().contains("to all"), "{}", d.log()));
        let (note, served) = (d.path("quickstart-data"), std::fs::read_to_string);
        let text = served(&note).expect("a note");
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(words[3], "served");
        let before = if old { words[..2].join(" ") } else { text.replace("served", "done") };
        std::fs::write(&note, before).expect("written");
        quickstart_with(&d, "8M", |_, at| {
            assert!(reads(&d, at, "7:7"));
            d.ok("map delete everyone quick --force");
        });
        quickstart_with(&d, "8M", |said, at| {
            assert!(d.log().contains("nobody has volume quick") && !reads(&d, at, "7:7"), "{said}");
        });
    }
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

/// What it has not refused it keeps.
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
    d.ok("host create db1 --port 1:2");
    d.ok("map create db1 quick");
    let by = format!("--target {at} --volume quick --initiator-port 1:2 --offset 31M");
    let write = format!("write {by} --input {}", d.path("in"));
    let write: Vec<&str> = write.split(' ').collect();
    d.until("it may write", || crate::common::weir(&d.dir, &write).status.success());
    let said = || std::fs::read_to_string(d.path("said")).unwrap_or_default();
    d.until("it serves", || said().contains("To look around"));
    let to = d.path("out");
    d.ok(&format!("read {by} --length 1M --output {to}"));
    assert!(std::fs::read(to).expect("read") == data, "it is the host's");
    assert!(!d.log().contains("to all") && !reads(&d, &at, "7:7"), "it is that host's alone");
    terminate(child.id());
    assert_eq!(ends(&d, child), Some(0), "{}", d.log());
}

/// Bytes that a pipe takes.
const PIPE: usize = 64 << 10;

/// A daemon with hosts whose log goes into a pipe that is almost full; with the pipe's other end.
fn logs_into_a_pipe(test: &str) -> (Daemon, PipeReader) {
    let mut d = Daemon::new(test);
    let (reader, mut log) = std::io::pipe().expect("a pipe");
    log.write_all(&[b'.'; PIPE - 256]).expect("it has room");
    d.start_logging_to(log, "127.0.0.1:0", &[]);
    d.wait();
    d.ok(&format!("pool create p --raid 1 {}", d.devices(2, "128M")));
    d.ok("volume create v --pool p --size 16M");
    d.ok("host create all --allow-any");
    d.ok("map create all v");
    let data = d.path("data");
    std::fs::write(&data, vec![7; MIB]).expect("written");
    // Each login has its lines.
    for _ in 0..3 {
        d.write("v", &data);
        assert_eq!(d.read("v", MIB), vec![7; MIB]);
    }
    (d, reader)
}

/// As `less` or a shipper of logs that is stopped.
#[test]
fn a_reader_of_the_log_that_stands_still_holds_nothing_up() {
    let (mut d, reader) = logs_into_a_pipe("stops-log-still");
    terminate(d.pid());
    assert_eq!(d.ended().code(), Some(0), "in order, and nothing is left open");
    drop(reader);
    d.is_clean(2);
}

/// As `tee` by the same Ctrl-C.
#[test]
fn a_reader_of_the_log_that_has_ended_ends_nothing() {
    let (mut d, reader) = logs_into_a_pipe("stops-log-gone");
    drop(reader);
    assert_eq!(d.read("v", MIB), vec![7; MIB]);
    terminate(d.pid());
    assert_eq!(d.ended().code(), Some(0), "in order, and nothing is left open");
    d.is_clean(2);
}

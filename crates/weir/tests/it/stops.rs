//! An orderly stop of the real program, whatever hosts and devices do meanwhile.

use crate::common::load::{Load, port, stopped_writer, under_way};
use crate::common::lossy::{Disks, Frozen};
use crate::common::versions::{until_ended, verify, zeros};
use crate::common::{Beside, Daemon, terminate};
use crate::devices::Loop;
use crate::hung::{is_at_a_device, node, uncached};
use std::io::{PipeReader, Write};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// Something had to be left.
const LEFT: i32 = 10;
/// The second signal.
const AT_ONCE: i32 = 143;
/// The second one, if it was Ctrl-C.
const INTERRUPTED: i32 = 130;

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

#[test]
fn a_second_ctrl_c_ends_it_at_once_with_its_exit_code() {
    let interrupt = |pid: u32| {
        let sent = std::process::Command::new("kill").args(["-INT", &pid.to_string()]).status();
        assert!(sent.expect("kill runs").success());
    };
    let mut d = Daemon::new("stops-int");
    d.start();
    d.ok(&format!("pool create p --raid 1 {}", d.devices(2, "256M")));
    d.ok("volume create still --size 64M");
    d.ok(&format!("host create still --port {}", port(1)));
    d.ok("map create still still");
    let still = stopped_writer(&d, "srp", 1, "still", "srp0");
    interrupt(d.pid());
    d.until("it stops", || stops(&d));
    interrupt(d.pid());
    assert_eq!(d.ended().code(), Some(INTERRUPTED), "{}", d.log());
    drop(still);
    d.start();
    d.stop();
    d.is_clean(2);
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

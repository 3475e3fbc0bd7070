//! The start of a node: its interface answers from the first moment, and says what is not over yet.

use crate::common::lossy::Disks;
use crate::common::{Beside, Daemon, SILENT, terminate, weir};
use crate::devices::faults;
use crate::hung::{is_at_a_device, node, uncached};
use serde_json::Value;
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// What the daemon's start waits for; none: it is over.
fn starting(d: &Daemon) -> Option<Value> {
    d.json("status").get("starting").cloned()
}

/// A node with data in a volume `g`, whose configuration file declares a pool of a device that hangs.
fn declared(name: &str) -> Option<(Daemon, Disks, Vec<u8>)> {
    let (mut d, disks, data) = node(name)?;
    d.stop();
    let device = disks.files()[0].display().to_string();
    let text = format!(
        "[[pool]]\nname = 'new'\nraid = '0'\ndevices = [{{ kind = 'file', path = '{device}' }}]\n\
         [[volume]]\nname = 'n'\npool = 'new'\nsize = '8M'\n"
    );
    std::fs::write(d.path("weir.toml"), text).expect("written");
    Some((d, disks, data))
}

#[test]
fn a_node_answers_and_serves_while_its_start_waits_for_a_device() {
    let Some((mut d, disks, data)) = declared("starting-declared") else { return };
    let frozen = disks.switch().frozen();
    let begun = Instant::now();
    d.start_only();
    d.answers(|status| status.contains("starting, for"));
    let answered = begun.elapsed();
    // Nothing of what is to be has got lost on the way.
    let told = starting(&d).expect("it starts");
    let lacks = |what: &str| told["declared"].to_string().contains(what);
    assert!(lacks("pool/new") && lacks("volume/n"), "{told}");
    let early = Beside::run(&d, "host create early --port 1:2");
    d.until("it listens", || d.port("srp0").is_some());
    assert!(d.read("g", MIB) == data, "hosts are served");
    println!("answers after {answered:?}, has served after {:?}", begun.elapsed());
    d.until("it asks for the device", || is_at_a_device(&d));
    d.ok("volume list");
    let hosts = d.json("host list");
    if starting(&d).is_some() {
        assert!(!hosts.to_string().contains("early"), "a command is not waited with: {hosts}");
    }
    drop(frozen);
    early.succeeds(&d);
    d.until("what is declared is made", || d.json("volume list").to_string().contains("\"n\""));
    d.until("all is well", || starting(&d).is_none() && faults(&d).is_empty());
    assert!(d.json("host list").to_string().contains("early"));
    d.stop();
}

/// A second daemon, and what it said at its end.
fn second(d: &Daemon, more: &[&str]) -> (Option<i32>, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["serve", "--listen", "127.0.0.1:0", "--cores", "0", "--buffer-memory", "64M"])
        .args(more)
        .env_clear()
        .env("WEIR_DATA_DIR", &d.dir)
        .output()
        .expect("weir serve runs");
    (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
}

#[test]
fn a_second_daemon_is_refused_in_the_midst_of_a_start() {
    let Some((mut d, disks, data)) = declared("starting-second") else { return };
    let frozen = disks.switch().frozen();
    d.start_only();
    d.answers(|status| status.contains("starting, for"));
    let pid = d.json("status")["pid"].clone();
    let (code, said) = second(&d, &[]);
    assert!(code == Some(4) && said.contains("data directory"), "{code:?}: {said}");
    assert_eq!(d.json("status")["pid"], pid, "the first one answers as before");
    terminate(d.pid());
    drop(frozen);
    let ended = d.ended();
    assert_eq!(ended.code(), Some(0), "{}", d.log());
    std::fs::remove_file(d.path("weir.toml")).expect("there it was");
    d.start();
    assert!(d.read("g", MIB) == data);
    d.stop();
}

/// The interface's address is taken: the daemon says so at once, and has touched no pool.
#[test]
fn an_address_in_use_ends_a_start_before_anything_is_opened() {
    let Some((mut d, _disks, data)) = node("starting-address") else { return };
    d.stop();
    let taken = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = taken.local_addr().expect("it has one").to_string();
    let files = || [0, 1].map(|i| std::fs::read(d.path(&format!("disk{i}"))).expect("it is read"));
    let before = files();
    let (code, said) = second(&d, &["--api-tcp", &address]);
    assert!(code == Some(1) && said.contains(&address), "{code:?}: {said}");
    assert!(before == files(), "a pool was opened");
    assert!(!weir(&d.dir, &["status"]).status.success(), "{SILENT}");
    // How pools were closed is still known: a device may be missing.
    std::fs::create_dir(d.path("away")).expect("a directory");
    std::fs::rename(d.path("disk1"), d.path("away/disk1")).expect("pulled");
    d.start();
    d.until("it is opened without", || d.json("pool show good")["live"]["state"] == "degraded");
    d.until("it is served", || d.json("volume show g")["not_served"].is_null());
    assert!(d.read("g", MIB) == data);
    d.stop();
}

/// How long a device may take to be opened: whoever waits for one that hangs waits so long.
const DEADLINE: Duration = Duration::from_secs(20);

/// Has a device hang at a start that `made` is on; the rest is served before that is known to hang.
fn serves_beside(name: &str, made: &[&str], hung: &str) {
    let Some((mut d, disks, data)) = node(name) else { return };
    let Some(disk) = uncached(&disks) else { return };
    let device = disk.0.clone();
    for line in made {
        d.ok(&line.replace("DEVICE", &device));
    }
    d.stop();
    let frozen = disks.switch().frozen();
    let begun = Instant::now();
    d.start_only();
    d.answers(|_| true);
    let answers = begun.elapsed();
    d.until("it listens", || d.port("srp0").is_some());
    assert!(d.read("g", MIB) == data, "hosts are served");
    let served = begun.elapsed();
    println!("{name}: answers after {answers:?}, has served after {served:?}");
    assert!(served < DEADLINE, "{name}: it was waited for: {served:?}");
    d.until("it is said which", || faults(&d).iter().any(|f| f["object"] == hung));
    let begun = Instant::now();
    d.json("status");
    println!("{name}: a status takes {:?}", begun.elapsed());
    let more = Beside::run(&d, "volume create more --pool good --size 8M");
    more.succeeds(&d);
    assert!(faults(&d).iter().any(|f| f["object"] == hung), "{:?}", faults(&d));
    drop(frozen);
    d.until("all is well", || starting(&d).is_none() && faults(&d).is_empty());
    d.stop();
}

#[test]
fn a_plain_pool_that_hangs_keeps_nobody_else_from_being_served() {
    let made = ["pool create bad --device DEVICE", "volume create b --pool bad --size 8M"];
    serves_beside("starting-plain", &made, "pool/bad");
}

#[test]
fn a_protected_pool_that_hangs_keeps_nobody_else_from_being_served() {
    let made = ["pool create bad --raid 0 --device DEVICE", "volume create b --pool bad --size 8M"];
    serves_beside("starting-protected", &made, "pool/bad");
}

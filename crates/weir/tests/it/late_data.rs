//! A host stands still between write commands and their data, and loses the volume meanwhile: what it sends afterwards does not
//! land. The real program on both sides.

use crate::common::load::{Load, port, stopped_writer, under_way};
use crate::common::{Daemon, noise};

const LEN: usize = 64 << 20;

/// A node with a plain and a protected pool, and bytes for whoever gets a volume after the host that stands still.
fn node(name: &str) -> (Daemon, Vec<u8>) {
    let mut d = Daemon::new(name);
    d.start();
    // Room for one volume: the next one gets the same place.
    d.ok(&format!("pool create plain --device file:{}:65M", d.path("plain")));
    d.ok(&format!("pool create safe --raid 0 {}", d.devices(1, "512M")));
    d.ok("host create next --allow-any");
    let theirs = noise(9, LEN);
    std::fs::write(d.path("theirs"), &theirs).expect("written");
    (d, theirs)
}

/// A volume, and a host that stands still in the midst of writing to it.
fn stands_still(d: &Daemon, pool: &str, protocol: &str, number: u32) -> Load {
    let name = format!("late-{number}");
    d.ok(&format!("volume create {name} --pool {pool} --size 64M"));
    d.ok(&format!("host create {name} --port {}", port(number)));
    d.ok(&format!("map create {name} {name}"));
    stopped_writer(d, protocol, number, &name, if protocol == "srp" { "srp0" } else { "brp0" })
}

/// It goes on: it sends what it had, if anybody asks for that, or finds that it has to log in again.
fn goes_on(d: &Daemon, mut load: Load, number: u32) {
    let name = format!("late-{number}");
    let logins = || {
        let (log, of_host) = (d.log(), format!("host={name} "));
        let is_one =
            |l: &&str| l.contains("channel established") || l.contains("channel in service");
        log.lines().filter(is_one).filter(|l| l.contains(&of_host)).count()
    };
    let (waits, before) = (under_way(d, &name) > 0, logins());
    load.signal("-CONT");
    d.until("it has gone on", || waits || load.has_ended() || logins() > before);
    d.until("nothing of it is left", || under_way(d, &name) == 0);
}

/// The volume goes to another host.
fn given_elsewhere(pool: &str, protocol: &str, number: u32) {
    let (mut d, theirs) = node(&format!("given-{protocol}"));
    let load = stands_still(&d, pool, protocol, number);
    d.ok(&format!("map delete late-{number} late-{number} --force"));
    d.ok(&format!("map create next late-{number}"));
    d.write(&format!("late-{number}"), &d.path("theirs"));
    goes_on(&d, load, number);
    assert!(d.read(&format!("late-{number}"), LEN) == theirs, "late data landed");
    d.stop();
}

#[test]
fn late_srp_data_do_not_land_on_a_volume_that_was_given_to_another_host() {
    given_elsewhere("plain", "srp", 1);
}

#[test]
fn late_brp_data_do_not_land_on_a_volume_that_was_given_to_another_host() {
    given_elsewhere("safe", "brp", 2);
}

#[test]
fn late_data_do_not_land_where_a_deleted_volume_was() {
    let (mut d, theirs) = node("deleted");
    let load = stands_still(&d, "plain", "srp", 1);
    d.ok("map delete late-1 late-1 --force");
    d.ok("volume delete late-1 --yes");
    d.ok("volume create b --pool plain --size 64M");
    d.ok("map create next b");
    d.write("b", &d.path("theirs"));
    goes_on(&d, load, 1);
    assert!(d.read("b", LEN) == theirs, "late data landed");
    d.stop();
}

#[test]
fn late_data_do_not_land_on_what_was_taken_back_to_a_snapshot() {
    let (mut d, theirs) = node("reverted");
    d.ok("volume create late-1 --pool safe --size 64M");
    d.ok("map create next late-1");
    d.write("late-1", &d.path("theirs"));
    d.ok("map delete next late-1 --force");
    d.ok("snapshot create late-1@before");
    d.ok(&format!("host create late-1 --port {}", port(1)));
    d.ok("map create late-1 late-1");
    let load = stopped_writer(&d, "srp", 1, "late-1", "srp0");
    d.ok("map delete late-1 late-1 --force");
    d.ok("snapshot revert late-1@before --yes");
    goes_on(&d, load, 1);
    d.ok("map create next late-1");
    assert!(d.read("late-1", LEN) == theirs, "late data landed");
    d.stop();
}

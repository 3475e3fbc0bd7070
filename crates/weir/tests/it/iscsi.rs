//! Volumes by iSCSI: by a client of bytes, and by other people's programs where they are installed.

mod client;
mod hostile;
mod order;
mod strangers;
mod stuck;

use crate::common::{Daemon, noise};
use client::{Answer, Client, Options, name};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// A daemon that speaks iSCSI, and where. The volumes that it makes are seen by everybody.
fn iscsi(test: &str) -> (Daemon, String) {
    iscsi_with(test, "")
}

/// The same with another line for the port.
fn iscsi_with(test: &str, more: &str) -> (Daemon, String) {
    let mut d = Daemon::new(test);
    d.start();
    let text = "[[target]]\nname = \"i\"\nlisten = [\"127.0.0.1:0\"]\nprotocol = \"iscsi\"\n";
    let text = format!("{text}{more}\n");
    let file = d.path("targets.toml");
    std::fs::write(&file, text).unwrap();
    d.ok(&format!("apply {file}"));
    d.ok("pool create ram --device ram:256M");
    d.ok("host create all --allow-any");
    let at = d.port("i").expect("it speaks iSCSI");
    (d, at)
}

fn volume(d: &Daemon, name: &str, size: &str, block: u32) {
    d.ok(&format!("volume create {name} --pool ram --size {size} --block-size {block}"));
    d.ok(&format!("map create all {name}"));
}

/// Sessions that are there.
fn sessions(d: &Daemon) -> u64 {
    let status = d.json("status");
    let ports = status["live"]["ports"].as_array().unwrap().clone();
    ports.iter().find(|p| p["name"] == "i").unwrap()["channels"].as_u64().unwrap()
}

#[test]
fn what_is_written_by_iscsi_is_read_by_srp_and_back() {
    let (d, at) = iscsi("iscsi-rw");
    volume(&d, "v", "32M", 512);
    let shown = d.ok("target show i");
    let target = name(&d);
    assert!(shown.contains(&target) && target.starts_with("iqn.2026-11.io.weir:"), "{shown}");
    let found = Client::discover(&at, "iqn.2026-01.org.example:a");
    assert_eq!(found, format!("TargetName={target}\0TargetAddress={at},1\0").into_bytes());
    let data = noise(3, 3 * MIB);
    // With and without unsolicited data, and with digests.
    let all = [
        Options::default(),
        Options { initial_r2t: true, immediate: false, ..Options::default() },
        Options { initial_r2t: true, ..Options::default() },
        Options { digests: true, max_recv: 4096, ..Options::default() },
        Options { digests: true, immediate: false, ..Options::default() },
    ];
    for (i, o) in all.into_iter().enumerate() {
        let mut c = Client::log_in(&at, &target, o).expect("it lets everybody in");
        let part = &data[i * 1000 * 512..][..512 * 3 * 512];
        c.write10(i as u32 * 3000, 512, part).good();
        assert!(c.read10(i as u32 * 3000, 512, part.len()).good().data == part, "{i}");
        c.write10(60_000 + i as u32, 512, &part[..512]).good();
        // Synchronize cache: everything is there for the others.
        c.command(&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0, &[]).good();
        c.log_out();
    }
    let (back, srp) = (d.path("back"), d.target());
    d.ok(&format!("read --target {srp} --volume v --length 8m --output {back}"));
    let back = std::fs::read(back).unwrap();
    for i in 0..5 {
        let part = &data[i * 1000 * 512..][..512 * 3 * 512];
        let there = &back[i * 3000 * 512..][..part.len()];
        assert!(there == part, "{i}");
    }
    // Many at once.
    let mut c = Client::log_in(&at, &target, Options::default()).unwrap();
    for i in 0..100u32 {
        c.send_write10(i * 8, 512, &[i as u8; 4096]);
    }
    (0..100).for_each(|_| drop(c.answer().good()));
    for i in 0..100u32 {
        assert_eq!(c.read10(i * 8, 512, 4096).good().data, [i as u8; 4096]);
    }
    c.log_out();
    let mut d = d;
    d.stop();
}

#[test]
fn residuals_and_sense_tell_what_was_moved() {
    let (d, at) = iscsi("iscsi-residuals");
    volume(&d, "v", "8M", 512);
    let mut c = Client::log_in(&at, &name(&d), Options::default()).unwrap();
    let read = [0x28, 0, 0, 0, 0, 0, 0, 0, 2, 0];
    let a = c.command(&read, 4096, &[]).good();
    assert_eq!((a.data.len(), a.residual), (1024, -3072), "less than there is room for");
    let a = c.command(&read, 512, &[]).good();
    assert_eq!((a.data.len(), a.residual), (512, 512), "more than there is room for");
    let a = c.command(&read, 0, &[]).good();
    assert_eq!((a.data.len(), a.residual), (0, 1024));
    let write = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    assert_eq!(c.command(&write, 0, &[7; 1024]).good().residual, -512);
    let write = [0x2a, 0, 0, 0, 0, 0, 0, 0, 2, 0];
    assert_eq!(c.command(&write, 0, &[8; 512]).good().residual, 512);
    assert_eq!(c.read10(0, 512, 1024).good().data[500..520], [[8; 12], [0; 12]].concat()[..20]);
    // Less than a block is not written. WRITE AND VERIFY does the same.
    for op in [0x2a, 0x2e] {
        let a = c.command(&[op, 0, 0, 0, 0, 0, 0, 0, 1, 0], 0, &[9; 200]).good();
        assert_eq!(a.residual, 312, "{op:x}");
        let a = c.command(&[op, 0, 0, 0, 0, 0, 0, 0, 2, 0], 0, &[op; 512]).good();
        assert_eq!(a.residual, 512, "{op:x}");
        assert_eq!(c.read10(0, 512, 1024).good().data, [[op; 512], [0; 512]].concat());
    }
    // Beyond the end: sense data, and nothing moved.
    let a = c.command(&[0x28, 0, 0xff, 0, 0, 0, 0, 0, 1, 0], 512, &[]);
    assert_eq!((a.status, a.sense[2] & 15, a.sense[12], a.residual), (2, 5, 0x21, -512));
    // No unit there, and all that are.
    let a = c.at_lun(5, &[0; 6], 0, &[]);
    assert_eq!((a.status, a.sense[12]), (2, 0x25));
    let luns = c.command(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], 256, &[]).good();
    assert_eq!(luns.data, [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    // A ping comes back with what it brought.
    assert_eq!(c.ping(b"hello"), b"hello");
    // A read in one PDU has its status in that.
    assert!(c.read10(0, 512, 4096).with_data);
    c.log_out();
}

#[test]
fn a_login_ends_the_session_of_the_same_name() {
    let (d, at) = iscsi("iscsi-again");
    volume(&d, "v", "8M", 512);
    let target = name(&d);
    let mut first = Client::log_in(&at, &target, Options::default()).unwrap();
    first.write10(0, 512, &[1; 512]).good();
    // Another part of the session's name is another session.
    let other = Options { isid: 2, ..Options::default() };
    let mut beside = Client::log_in(&at, &target, other).unwrap();
    assert_eq!(sessions(&d), 2);
    // One of the first waits for its data.
    first.send_unfinished_write(0, 512);
    let mut again = Client::log_in(&at, &target, Options::default()).unwrap();
    assert!(first.is_closed());
    assert_eq!(again.read10(0, 512, 512).good().data, [1; 512]);
    beside.read10(0, 512, 512).good();
    d.until("two sessions are left", || sessions(&d) == 2);
    // What it had reserved is free.
    again.command(&[0x16, 0, 0, 0, 0, 0], 0, &[]).good();
    assert_eq!(beside.command(&[0; 6], 0, &[]).status, 0x18);
    let mut third = Client::log_in(&at, &target, Options::default()).unwrap();
    beside.write10(0, 512, &[2; 512]).good();
    assert_eq!(third.read10(0, 512, 512).good().data, [2; 512]);
}

#[test]
fn task_management_ends_what_waits() {
    let (d, at) = iscsi("iscsi-tasks");
    volume(&d, "v", "8M", 512);
    let target = name(&d);
    let mut c = Client::log_in(&at, &target, Options::default()).unwrap();
    let mut beside =
        Client::log_in(&at, &target, Options { isid: 2, ..Options::default() }).unwrap();
    beside.read10(0, 512, 512).good();
    c.write10(0, 512, &[3; 512]).good();
    // One that waits for its data is aborted, and has no answer any more.
    let tag = c.send_unfinished_write(0, 512);
    assert_eq!(c.manage(1, 0, tag), 0);
    assert_eq!(c.manage(1, 0, tag), 1, "there is no such task any more");
    assert_eq!(c.read10(0, 512, 512).good().data, [3; 512]);
    // A reset ends all, though nobody sends data for them.
    let begin = Instant::now();
    c.send_unfinished_write(0, 512);
    c.send_unfinished_write(8, 512);
    assert_eq!(c.manage(5, 0, u32::MAX), 0);
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    let told = beside.command(&[0; 6], 0, &[]);
    assert_eq!((told.status, told.sense[2] & 15, told.sense[12]), (2, 6, 0x29));
    assert_eq!(c.manage(5, 9, u32::MAX), 2, "there is no such unit");
    assert_eq!((c.manage(8, 0, 1), c.manage(77, 0, 1)), (4, 5));
    // So does one of all units, and a cold one ends the session.
    assert_eq!(c.manage(6, 0, u32::MAX), 0);
    while let Answer { status: 2, .. } = c.command(&[0; 6], 0, &[]) {}
    c.read10(0, 512, 512).good();
    assert_eq!(c.manage(7, 0, u32::MAX), 0);
    assert!(c.is_closed());
}

/// An initiator that has been let in is cut off when its host is not any more, and told when volumes come.
#[test]
fn who_is_let_in_by_iscsi() {
    let (d, at) = iscsi("iscsi-access");
    volume(&d, "v", "8M", 512);
    let target = name(&d);
    let mut c = Client::log_in(&at, &target, Options::default()).unwrap();
    c.read10(0, 512, 512).good();
    volume(&d, "w", "8M", 4096);
    let told = c.command(&[0; 6], 0, &[]);
    assert_eq!(
        (told.status, told.sense[2] & 15, told.sense[12], told.sense[13]),
        (2, 6, 0x3f, 0x0e)
    );
    c.ready(1);
    assert_eq!(c.at_lun(1, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], 4096, &[]).good().data, [0; 4096]);
    d.ok("volume set v --read-only on");
    let refused = |c: &mut Client| loop {
        let a = c.write10(0, 512, &[1; 512]);
        // It may be told of the change first.
        if a.status != 2 || a.sense[2] & 15 != 6 {
            return (a.status, a.sense[2] & 15);
        }
    };
    assert_eq!(refused(&mut c), (2, 7));
    assert_eq!(
        Client::log_in(&at, "iqn.2026-11.io.weir:other", Options::default()).err(),
        Some(0x0203)
    );
    d.ok("map delete all w --force");
    let gone = c.at_lun(1, &[0; 6], 0, &[]);
    assert_eq!((gone.status, gone.sense[12]), (2, 0x25));
    // A host by its name sees its own, and by no other name.
    d.ok("host create b --port iqn.2026-01.org.example:b");
    d.ok("map create b w");
    let who = Options { initiator: "iqn.2026-01.org.example:B".into(), ..Options::default() };
    let mut b = Client::log_in(&at, &target, who.clone()).unwrap();
    // The number by which it saw `w` before.
    b.ready(1);
    assert_eq!(b.at_lun(1, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], 4096, &[]).good().data, [0; 4096]);
    assert_eq!(b.command(&[0; 6], 0, &[]).sense[12], 0x25, "what others see it does not");
    let status = d.json("status");
    assert!(status.to_string().contains("\"iqn.2026-01.org.example:b\""), "{status}");
    d.ok("map delete b w --force");
    d.ok("host delete b");
    assert!(b.is_closed());
    d.ok("map delete all v --force");
    d.ok("host delete all");
    d.until("it is cut off", || sessions(&d) == 0);
    assert_eq!(Client::log_in(&at, &target, who).err(), Some(0x0202));
    assert_eq!(Client::log_in(&at, &target, Options::default()).err(), Some(0x0202));
    assert!(Client::discover(&at, "iqn.2026-01.org.example:a").is_empty());
    let events = d.ok("events");
    assert!(events.contains("login.refused"), "{events}");
}

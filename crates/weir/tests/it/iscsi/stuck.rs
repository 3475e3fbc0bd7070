//! What one device, one initiator or one question that stands still must not hold up.

use super::client::{Client, Options, be32, name};
use super::hostile::of_kind;
use super::{iscsi, iscsi_with, volume};
use crate::common::Daemon;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

fn open(at: &str, target: &str, isid: u8) -> Client {
    Client::log_in(at, target, Options { isid, ..Options::default() }).expect("a session")
}

/// A volume whose writes take so long.
fn slow(d: &Daemon, name: &str, time: &str) {
    volume(d, name, "64M", 512);
    d.ok(&format!("layer insert {name} delay time={time} ops=write --name slow --force"));
}

/// An immediate task management function for the task `tag`; its response is not waited for.
fn ask(c: &mut Client, function: u8, own: u32, tag: u32) {
    let mut h = of_kind(0x42);
    h[1] |= function;
    h[16..20].copy_from_slice(&own.to_be_bytes());
    h[20..24].copy_from_slice(&tag.to_be_bytes());
    h[24..28].copy_from_slice(&c.cmd_sn.to_be_bytes());
    c.send(h, &[]);
}

/// The tag and the code of the next response to a function.
fn answered(c: &mut Client) -> (u32, u8) {
    let p = c.receive().expect("a response");
    assert_eq!(p.head[0], 0x22, "{:02x?}", &p.head[..4]);
    (be32(&p.head, 16), p.head[2])
}

/// An initiator whose patience is at its end aborts again. The write may land until the first abort has been answered.
#[test]
fn an_abort_of_what_is_being_aborted_waits_too() {
    let (d, at) = iscsi("iscsi-again");
    slow(&d, "v", "2s");
    let mut c = open(&at, &name(&d), 1);
    let begin = Instant::now();
    let tag = c.send_write10(0, 512, &[1; 512]);
    std::thread::sleep(Duration::from_millis(200));
    ask(&mut c, 1, 0xaa00_0001, tag);
    std::thread::sleep(Duration::from_millis(200));
    ask(&mut c, 1, 0xaa00_0002, tag);
    let mut both = [answered(&mut c), answered(&mut c)];
    both.sort_unstable();
    assert_eq!(both, [(0xaa00_0001, 0), (0xaa00_0002, 0)]);
    assert!(begin.elapsed() >= Duration::from_millis(1900), "{:?}", begin.elapsed());
    c.write10(0, 512, &[2; 512]).good();
    assert_eq!(c.read10(0, 512, 512).good().data, [2; 512]);
    c.log_out();
}

#[test]
fn task_management_of_one_device_holds_up_no_other() {
    let (d, at) = iscsi("iscsi-many-aborts");
    slow(&d, "v", "4s");
    volume(&d, "w", "8M", 512);
    let mut c = open(&at, &name(&d), 1);
    c.ready(1);
    let tags: Vec<u32> = (0..20).map(|n| c.send_write10(n * 8, 512, &[1; 512])).collect();
    std::thread::sleep(Duration::from_millis(200));
    let begin = Instant::now();
    for (i, tag) in tags.iter().enumerate() {
        ask(&mut c, 1, 0xaa00_0000 + i as u32, *tag);
    }
    // Who asks for something else hears at once, and so does who resets another unit.
    assert_eq!(c.manage(5, 1, u32::MAX), 0);
    c.ready(1);
    assert_eq!(c.ping(b"there"), b"there");
    assert_eq!(c.at_lun(1, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], 512, &[]).good().data, [0; 512]);
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    let mut left: Vec<u32> = (0..20).map(|i| 0xaa00_0000 + i).collect();
    while !left.is_empty() {
        let p = c.receive().expect("a response");
        // Those that were not aborted in time are answered.
        if p.head[0] == 0x22 {
            assert_eq!(p.head[2], 0);
            left.retain(|t| *t != be32(&p.head, 16));
        }
    }
}

/// A reset by its number is meant for what comes before it, also where that comes in another order.
#[test]
fn a_reset_leaves_what_is_numbered_behind_it() {
    let (d, at) = iscsi("iscsi-behind-gap");
    volume(&d, "v", "8M", 512);
    let mut c = open(&at, &name(&d), 1);
    c.ready(0);
    let sn = c.cmd_sn;
    let ready = |c: &mut Client, sn: u32, tag: u32| {
        let mut h = of_kind(0x01);
        h[1] |= 1;
        h[16..20].copy_from_slice(&tag.to_be_bytes());
        h[24..28].copy_from_slice(&sn.to_be_bytes());
        c.send(h, &[]);
    };
    ready(&mut c, sn + 2, 3);
    let mut reset = of_kind(0x02);
    reset[1] |= 5;
    reset[16..20].copy_from_slice(&[0, 0, 0, 2]);
    reset[20..24].fill(0xff);
    reset[24..28].copy_from_slice(&(sn + 1).to_be_bytes());
    c.send(reset, &[]);
    ready(&mut c, sn, 1);
    let mut seen: Vec<u32> =
        (0..3).map(|_| be32(&c.receive().expect("all are answered").head, 16)).collect();
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3]);
}

/// Others' task management ends what an initiator has yet to take, and leaves it its session.
#[test]
fn a_reset_by_others_leaves_a_slow_reader_its_session() {
    const LEN: usize = 8 << 20;
    let (d, at) = iscsi("iscsi-slow-reader");
    volume(&d, "v", "64M", 512);
    let target = name(&d);
    let mut c = open(&at, &target, 1);
    let small = Options { isid: 2, max_recv: 4096, ..Options::default() };
    let mut slow = Client::log_in(&at, &target, small).unwrap();
    slow.ready(0);
    let n = ((LEN / 512) as u32).to_be_bytes();
    let read = [0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0, n[0], n[1], n[2], n[3], 0, 0];
    for _ in 0..20 {
        slow.send_command(0, &read, LEN, &[]);
    }
    let reset = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        let begin = Instant::now();
        (c.manage(5, 0, u32::MAX), begin.elapsed(), c)
    });
    // Two and a half MiB a second, without a pause, as long as there are any: what was queued before the reset still comes.
    while !reset.is_finished() {
        for _ in 0..32 {
            slow.receive().expect("it is not cut off");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let (code, took, c) = reset.join().unwrap();
    println!("the reset took {took:?}");
    assert_eq!(code, 0);
    // All that is left to come comes at once.
    let mut h = of_kind(0x40);
    h[16..20].copy_from_slice(&[0xcc, 0, 0, 1]);
    h[20..24].fill(0xff);
    h[24..28].copy_from_slice(&slow.cmd_sn.to_be_bytes());
    slow.send(h, b"there");
    while slow.receive().expect("it is not cut off").head[0] != 0x20 {}
    c.log_out();
    slow.log_out();
}

/// A session that takes nothing is none that has ended: a login of its initiator is let in soon, and leaves it alone.
#[test]
fn a_login_leaves_a_session_that_takes_nothing_alone() {
    const LEN: usize = 8 << 20;
    let (d, at) = iscsi("iscsi-takes-later");
    volume(&d, "v", "64M", 512);
    let target = name(&d);
    let mut slow = open(&at, &target, 2);
    slow.ready(0);
    let n = ((LEN / 512) as u32).to_be_bytes();
    let read = [0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0, n[0], n[1], n[2], n[3], 0, 0];
    for _ in 0..4 {
        slow.send_command(0, &read, LEN, &[]);
    }
    std::thread::sleep(Duration::from_millis(500));
    let begin = Instant::now();
    let mut c = open(&at, &target, 1);
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    assert_eq!(c.read10(0, 512, 512).good().data, [0; 512]);
    let mut came = 0;
    while came < 4 * LEN {
        came += slow.receive().expect("its session is there").data.len();
    }
    slow.log_out();
}

/// Answers to task management are not kept for who does not take them.
#[test]
fn task_management_whose_answers_nobody_takes_costs_no_memory() {
    let (d, at) = iscsi("iscsi-functions");
    volume(&d, "v", "8M", 512);
    let mut c = open(&at, &name(&d), 1);
    c.ready(0);
    let before = super::hostile::resident(d.pid());
    c.s.set_nonblocking(true).unwrap();
    let mut h = of_kind(0x42);
    h[1] |= 1;
    h[16..24].copy_from_slice(&[0xaa, 0, 0, 1, 0xaa, 0, 0, 2]);
    h[24..28].copy_from_slice(&c.cmd_sn.to_be_bytes());
    h[32..36].copy_from_slice(&c.cmd_sn.to_be_bytes());
    let (many, mut sent, mut last) = (h.repeat(1000), 0, Instant::now());
    while sent < 48 << 20 && last.elapsed() < Duration::from_secs(2) {
        match c.s.write(&many[sent % 48..]) {
            Ok(n) => (sent, last) = (sent + n, Instant::now()),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    let kib = super::hostile::resident(d.pid());
    assert!(
        kib < before + (16 << 10),
        "{kib} KiB are resident after {sent} bytes, {before} before"
    );
}

/// A device that stands still keeps nobody from the others.
#[test]
fn a_login_in_the_last_place_need_not_wait_for_a_device() {
    let (d, at) = iscsi_with("iscsi-last-place", "channels = 1");
    slow(&d, "v", "12s");
    volume(&d, "w", "8M", 512);
    let target = name(&d);
    let mut c = open(&at, &target, 1);
    c.ready(1);
    c.send_write10(0, 512, &[1; 512]);
    std::thread::sleep(Duration::from_millis(200));
    drop(c);
    let begin = Instant::now();
    let mut c = open(&at, &target, 1);
    c.ready(1);
    assert_eq!(c.at_lun(1, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], 512, &[]).good().data, [0; 512]);
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
}

/// A discovery session that never stops asking has its turn as others have, and no more time than they.
#[test]
fn who_asks_and_asks_in_discovery_holds_up_nobody() {
    let (d, at) = iscsi_with("iscsi-flood", "cores = [0]");
    volume(&d, "v", "8M", 512);
    let target = name(&d);
    let mut c = open(&at, &target, 1);
    let options = Options { initiator: "iqn.2026-01.org.example:a".into(), ..Options::default() };
    let mut flood = Client::connect(&at, options);
    flood.log_in_by("SessionType=Discovery|", None).unwrap();
    let begin = Instant::now();
    let flooding = std::thread::spawn(move || {
        let mut nop = of_kind(0x40);
        nop[16..24].fill(0xff);
        let many = nop.repeat(1000);
        while flood.s.write_all(&many).is_ok() {}
        let _ = flood.s.read(&mut [0; 64]);
        begin.elapsed()
    });
    while !flooding.is_finished() {
        let at = Instant::now();
        assert_eq!(c.read10(0, 512, 512).good().data, [0; 512]);
        assert!(at.elapsed() < Duration::from_secs(2), "{:?}", at.elapsed());
        assert!(begin.elapsed() < Duration::from_secs(60), "it has more time than others");
        std::thread::sleep(Duration::from_millis(100));
    }
    let took = flooding.join().unwrap();
    assert!(took > Duration::from_secs(20), "it had too little time: {took:?}");
    c.log_out();
}

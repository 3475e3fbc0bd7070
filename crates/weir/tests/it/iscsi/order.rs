//! Commands that come before their turn, twice, or never; initiators that take or bring nothing.

use super::client::{Client, Options, be32, name};
use super::hostile::{of_kind, resident};
use super::{iscsi, sessions, volume};
use crate::common::Daemon;
use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

fn open(at: &str, target: &str, isid: u8) -> Client {
    Client::log_in(at, target, Options { isid, ..Options::default() }).expect("a session")
}

/// TEST UNIT READY with this number and tag.
fn ready(c: &mut Client, sn: u32, tag: u32) {
    let mut h = of_kind(0x01);
    h[1] |= 1;
    h[16..20].copy_from_slice(&tag.to_be_bytes());
    h[24..28].copy_from_slice(&sn.to_be_bytes());
    c.send(h, &[]);
}

/// The tag of the next command that ends well.
fn ended(c: &mut Client) -> u32 {
    let p = c.receive().expect("an answer");
    assert_eq!((p.head[0], p.head[3]), (0x21, 0), "{:02x?}", p.head);
    be32(&p.head, 16)
}

/// ABORT TASK of a command that is not there, sent as `sent_as`, by an initiator whose next number is `sn`; gives the response.
fn abort(c: &mut Client, sn: u32, sent_as: u32) -> u8 {
    let mut h = of_kind(0x42);
    h[1] |= 1;
    h[16..24].copy_from_slice(&[0xaa, 0, 0, 1, 0xaa, 0, 0, 2]);
    h[24..28].copy_from_slice(&sn.to_be_bytes());
    h[32..36].copy_from_slice(&sent_as.to_be_bytes());
    c.send(h, &[]);
    let p = c.receive().expect("a response");
    assert_eq!(p.head[0], 0x22);
    p.head[2]
}

/// Descriptors of the daemon.
fn descriptors(d: &Daemon) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", d.pid())).unwrap().count()
}

/// A command that never has its turn keeps nothing of a session that has ended.
#[test]
fn nothing_is_left_of_sessions_that_end_with_a_gap() {
    let (d, at) = iscsi("iscsi-gap");
    volume(&d, "v", "8M", 512);
    let target = name(&d);
    open(&at, &target, 0).log_out();
    d.until("it has gone", || sessions(&d) == 0);
    let before = descriptors(&d);
    for isid in 1..=200 {
        let mut c = open(&at, &target, isid);
        let sn = c.cmd_sn + 1;
        ready(&mut c, sn, 7);
    }
    d.until("all have gone", || sessions(&d) == 0);
    d.until("their connections have gone", || descriptors(&d) <= before + 8);
    let begin = Instant::now();
    let mut c = open(&at, &target, 1);
    // An immediate logout does not wait for what never comes.
    let sn = c.cmd_sn + 1;
    ready(&mut c, sn, 7);
    c.log_out();
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
}

#[test]
fn a_number_is_used_once() {
    let (d, at) = iscsi("iscsi-twice");
    volume(&d, "v", "8M", 512);
    let mut c = open(&at, &name(&d), 1);
    let sn = c.cmd_sn;
    for tag in 0..5000 {
        ready(&mut c, sn + 1, 1000 + tag);
    }
    assert_eq!(c.ping(b"x"), b"x");
    // Were each of them kept, tags would be in use, and no places left.
    ready(&mut c, sn, 999);
    assert_eq!((ended(&mut c), ended(&mut c)), (999, 1000));
    for i in 2..130 {
        ready(&mut c, sn + i, 1000 + i);
        assert_eq!(ended(&mut c), 1000 + i);
    }
    // ABORT TASK gives up the number of a command that was sent before it, and of no other (RFC 7143 11.5.1).
    let sn = sn + 130;
    assert_eq!((abort(&mut c, sn, sn), abort(&mut c, sn, sn + 1)), (1, 1));
    for i in 0..2 {
        ready(&mut c, sn + i, 1);
        assert_eq!(ended(&mut c), 1);
    }
    let sn = sn + 2;
    assert_eq!(abort(&mut c, sn + 6, sn + 5), 0);
    for i in 0..6 {
        ready(&mut c, sn + i, 10 + i);
    }
    (0..5).for_each(|i| assert_eq!(ended(&mut c), 10 + i));
    // Nothing is left of the last one, whose tag is free.
    ready(&mut c, sn + 6, 15);
    assert_eq!(ended(&mut c), 15);
    c.cmd_sn = sn + 7;
    c.log_out();
}

/// Data that an initiator does not take are not queued for it.
#[test]
fn who_takes_nothing_costs_no_memory_and_is_cut_off() {
    const LEN: usize = 16 << 20;
    let (d, at) = iscsi("iscsi-takes-nothing");
    volume(&d, "v", "64M", 512);
    let target = name(&d);
    let small = |isid| Options { isid, max_recv: 512, ..Options::default() };
    let mut all = Client::log_in(&at, &target, small(1)).unwrap();
    let read = |blocks: usize| {
        let n = (blocks as u32).to_be_bytes();
        [0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0, n[0], n[1], n[2], n[3], 0, 0]
    };
    // Who takes everything has everything, though data of several commands come by turns.
    let mut left: BTreeMap<u32, usize> = BTreeMap::new();
    for _ in 0..8 {
        left.insert(all.send_command(0, &read(1024), 512 << 10, &[]), 0);
    }
    while !left.is_empty() {
        let p = all.receive().expect("data");
        let tag = be32(&p.head, 16);
        let came = left.get_mut(&tag).expect("its command has not ended");
        assert_eq!((p.head[0], be32(&p.head, 40) as usize), (0x25, *came));
        *came += p.data.len();
        if p.head[1] & 1 != 0 {
            assert_eq!((left.remove(&tag), p.head[3]), (Some(512 << 10), 0));
        }
    }
    let before = resident(d.pid());
    let mut none = Client::log_in(&at, &target, small(2)).unwrap();
    for _ in 0..64 {
        none.send_command(0, &read(LEN / 512), LEN, &[]);
    }
    let begin = Instant::now();
    while sessions(&d) > 1 {
        assert!(begin.elapsed() < Duration::from_secs(100), "it is not cut off");
        let kib = resident(d.pid());
        assert!(kib < before + (100 << 10), "{kib} KiB are resident, after {before}");
        // It shows that it is alive, and takes nothing.
        let mut h = of_kind(0x40);
        h[16..24].fill(0xff);
        none.send(h, &[]);
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(all.read10(0, 512, 512).good().data, [0; 512]);
    }
    all.log_out();
}

/// What an initiator sends behind a reset is not ended by it.
#[test]
fn commands_behind_a_reset_are_answered() {
    let (d, at) = iscsi("iscsi-behind");
    volume(&d, "v", "8M", 512);
    volume(&d, "w", "8M", 512);
    let mut c = open(&at, &name(&d), 1);
    c.ready(1);
    for i in 0..60 {
        // Of one unit, its tasks, and all units.
        let mut h = of_kind(0x42);
        h[1] |= [5, 2, 6][i % 3];
        h[16..20].copy_from_slice(&[0xaa, 0, 0, 1]);
        h[20..24].fill(0xff);
        h[24..28].copy_from_slice(&c.cmd_sn.to_be_bytes());
        let mut both = h.to_vec();
        let mut w = of_kind(0x01);
        w[1] |= 0x21;
        w[5..8].copy_from_slice(&[0, 2, 0]);
        w[16..20].copy_from_slice(&[0xbb, 0, 0, 1]);
        w[20..24].copy_from_slice(&512u32.to_be_bytes());
        w[24..28].copy_from_slice(&c.cmd_sn.to_be_bytes());
        w[32..42].copy_from_slice(&[0x2a, 0, 0, 0, 0, i as u8, 0, 0, 1, 0]);
        both.extend(w);
        both.extend([i as u8; 512]);
        c.s.write_all(&both).unwrap();
        c.cmd_sn += 1;
        let mut seen = [(); 2].map(|()| c.receive().expect("both are answered").head);
        seen.sort_by_key(|h| h[0]);
        assert_eq!((seen[0][0], seen[0][3]), (0x21, 0), "{i}: {:02x?}", seen[0]);
        assert_eq!((seen[1][0], seen[1][2]), (0x22, 0), "{i}");
        assert_eq!(c.read10(i as u32, 512, 512).good().data, [i as u8; 512]);
    }
    c.log_out();
}

/// A fence ends what waits for another initiator's data, and not that one's session.
#[test]
fn a_reset_by_others_leaves_a_slow_initiator_its_session() {
    let (d, at) = iscsi("iscsi-slow");
    volume(&d, "v", "8M", 512);
    let target = name(&d);
    let (mut c, mut slow) = (open(&at, &target, 1), open(&at, &target, 2));
    slow.send_unfinished_write(0, 512);
    let begin = Instant::now();
    assert_eq!(c.manage(5, 0, u32::MAX), 0);
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    // It is told, as the control mode page has it (TAS): one R2T was sent, and nothing counts.
    let told = slow.receive().expect("TASK ABORTED").head;
    assert_eq!((told[0], told[1] & 6, told[3]), (0x21, 2, 0x40));
    assert_eq!((be32(&told, 36), be32(&told, 44)), (1, 8 * 512));
    assert_eq!(slow.ping(b"there"), b"there");
    slow.ready(0);
    slow.write10(0, 512, &[4; 512]).good();
    assert_eq!(slow.read10(0, 512, 512).good().data, [4; 512]);
    slow.log_out();
}

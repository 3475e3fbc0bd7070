//! Peers that lie, stand still, or cannot prove who they are.

use super::client::{Client, Options, be32, name};
use super::{iscsi, sessions, volume};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

/// The daemon's memory in KiB.
pub(super) fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let rss = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    rss.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn peers_that_lie_or_stand_still_keep_nobody_out_of_iscsi() {
    let (d, at) = iscsi("iscsi-lie");
    volume(&d, "v", "8M", 512);
    let target = name(&d);
    let silent: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(&at).unwrap()).collect();
    let mut garbage = TcpStream::connect(&at).unwrap();
    garbage.write_all(&[0xff; 4096]).unwrap();
    assert_eq!(garbage.read(&mut [0; 64]).unwrap_or(0), 0);
    let open = |isid| {
        Client::log_in(&at, &target, Options { isid, ..Options::default() }).expect("a session")
    };
    let mut c = open(1);
    c.write10(0, 512, &[5; 512]).good();
    // Text without an end, in the login and after it.
    let mut endless = Client::connect(&at, Options::default());
    let refused = (0..20).find_map(|_| match endless.login_request(0x44, &[b'x'; 1000]) {
        Some(p) if p.head[36] == 0 => None,
        Some(p) => Some(p.head[36]),
        None => Some(0),
    });
    assert_eq!(refused, Some(2));
    let mut endless = open(2);
    for _ in 0..9 {
        let mut h = [0; 48];
        (h[0], h[1]) = (0x44, 0x40);
        h[16..20].copy_from_slice(&[0, 0, 9, 9]);
        h[24..28].copy_from_slice(&endless.cmd_sn.to_be_bytes());
        endless.send(h, &[b'x'; 1000]);
        let p = endless.receive().unwrap();
        if p.head[0] == 0x3f {
            break;
        }
        assert_eq!(p.head[0], 0x24);
    }
    // One that asks for much and takes nothing holds up nobody else.
    let mut greedy = open(3);
    for i in 0..120 {
        greedy.send_command(0, &[0x28, 0, 0, 0, i, 0, 0, 8, 0, 0], 1 << 20, &[]);
    }
    for _ in 0..200 {
        let mut h = of_kind(0x40);
        h[20..24].fill(0xff);
        let begin = Instant::now();
        greedy.send(h, &[1; 8192]);
        if begin.elapsed() > Duration::from_secs(1) {
            // The target reads no more of them.
            break;
        }
    }
    // Nor one that brings no data for many writes.
    let mut vast = open(4);
    for _ in 0..64 {
        vast.send_unfinished_write(0, 512);
    }
    assert_eq!(c.read10(0, 512, 512).good().data, [5; 512]);
    let kib = resident(d.pid());
    assert!(kib < 400 << 10, "{kib} KiB are resident");
    // What breaks a rule ends a session: data that nobody has asked for, more than may be, a wrong place, a wrong length.
    let wrong: [&dyn Fn(&mut Client); 7] = [
        &|c| {
            let tag = c.send_unfinished_write(0, 512);
            c.send(data_out(tag, u32::MAX, 0, true), &[0; 512]);
        },
        &|c| {
            let tag = c.send_unfinished_write(0, 512);
            c.send(data_out(tag, 77, 0, true), &[0; 4096]);
        },
        &|c| {
            let tag = c.send_unfinished_write(0, 512);
            c.send(data_out(tag, 0, 512, true), &[0; 512]);
        },
        &|c| {
            let tag = c.send_unfinished_write(0, 512);
            c.send(data_out(tag, 0, 0, true), &[0; 8192]);
        },
        &|c| c.send(of_kind(0x10), &[]),
        &|c| c.send(of_kind(0x1d), &[]),
        &|c| {
            let mut head = [0; 48];
            head[5] = 0xff;
            let _ = c.s.write_all(&head);
        },
    ];
    for (i, w) in wrong.into_iter().enumerate() {
        let mut bad = open(9);
        w(&mut bad);
        let (mut seen, begin) = (Vec::new(), Instant::now());
        while let Some(p) = bad.receive() {
            seen.push(p.head[0]);
        }
        assert!(seen.iter().all(|op| *op == 0x3f || *op == 0x31), "{i}: {seen:x?}");
        assert!(begin.elapsed() < Duration::from_secs(5), "{i}: it was not closed");
    }
    assert_eq!(c.read10(0, 512, 512).good().data, [5; 512], "nothing of it was written");
    // A digest that is wrong.
    let mut c2 =
        Client::log_in(&at, &target, Options { isid: 8, digests: true, ..Options::default() })
            .unwrap();
    c2.read10(0, 512, 512).good();
    c2.s.write_all(&[0; 52]).unwrap();
    assert!(c2.is_closed());
    drop((silent, greedy, vast, endless));
    d.until("nothing is left of those that have gone", || sessions(&d) == 1);
    c.log_out();
    let mut d = d;
    d.stop();
}

pub(super) fn of_kind(op: u8) -> [u8; 48] {
    let mut h = [0; 48];
    (h[0], h[1]) = (op, 0x80);
    h
}

fn data_out(tag: u32, ttt: u32, at: u32, last: bool) -> [u8; 48] {
    let mut h = [0; 48];
    (h[0], h[1]) = (0x05, if last { 0x80 } else { 0 });
    h[16..20].copy_from_slice(&tag.to_be_bytes());
    h[20..24].copy_from_slice(&ttt.to_be_bytes());
    h[40..44].copy_from_slice(&at.to_be_bytes());
    h
}

/// Commands beyond the window are passed over, and the window says how many may come (RFC 7143 4.2.2.1).
#[test]
fn commands_beyond_the_window_are_passed_over() {
    let (d, at) = iscsi("iscsi-window");
    volume(&d, "v", "8M", 512);
    let mut c = Client::log_in(&at, &name(&d), Options::default()).unwrap();
    c.read10(0, 512, 512).good();
    assert_eq!(c.max_cmd_sn.wrapping_sub(c.cmd_sn), 127, "128 commands may come");
    let right = c.cmd_sn;
    for wrong in [c.max_cmd_sn.wrapping_add(1), right.wrapping_sub(1)] {
        c.cmd_sn = wrong;
        c.send_command(0, &[0; 6], 0, &[]);
    }
    // One that comes before its turn waits for it.
    c.cmd_sn = right.wrapping_add(1);
    c.send_command(0, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], 512, &[]);
    c.cmd_sn = right;
    c.send_command(0, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], 0, &[4; 512]);
    let all = [c.answer().good(), c.answer().good()];
    assert_eq!(all.iter().map(|a| a.data.len()).sum::<usize>(), 512);
    c.cmd_sn = right.wrapping_add(2);
    assert_eq!(c.read10(0, 512, 512).good().data, [4; 512]);
    c.log_out();
}

#[test]
fn a_host_with_a_secret_proves_it_by_chap() {
    let (d, at) = iscsi("iscsi-chap");
    volume(&d, "v", "8M", 512);
    let target = name(&d);
    let file = |name: &str, text: &str| {
        let path = d.path(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    let (right, other) = ("a secret of the host", "another one of the host");
    let open = |secret: Option<&str>| {
        let secret = secret.map(str::to_owned);
        Client::log_in(&at, &target, Options { secret, ..Options::default() })
    };
    let mut before = open(None).expect("nothing is to be proved");
    before.read10(0, 512, 512).good();
    d.ok(&format!("host set all --secret-file {}", file("right", right)));
    // Who has not proved it is cut off, and let in no more, nor told anything.
    d.until("it is cut off", || sessions(&d) == 0);
    assert!(before.is_closed());
    for bad in [None, Some("somebody's guess"), Some("")] {
        assert_eq!(open(bad).err(), Some(0x0201), "{bad:?}");
    }
    assert!(Client::discover(&at, "iqn.2026-01.org.example:a").is_empty());
    let mut c = open(Some(right)).expect("it has proved it");
    c.write10(0, 512, &[6; 512]).good();
    // Another secret ends what was proved by this one.
    d.ok(&format!("host set all --secret-file {}", file("other", other)));
    d.until("it is cut off", || sessions(&d) == 0);
    assert!(c.is_closed());
    assert_eq!(open(Some(right)).err(), Some(0x0201));
    assert_eq!(open(Some(other)).unwrap().read10(0, 512, 512).good().data, [6; 512]);
    d.ok("host set all --no-secret");
    // One that could prove something need not.
    let mut c = open(None).unwrap();
    c.read10(0, 512, 512).good();
    c.log_out();
    let events = d.ok("events");
    assert!(events.contains("login.refused"), "{events}");
}

/// A machine that has lost its power says nothing. One that only has nothing to say answers (RFC 7143 11.18, 11.19).
#[test]
fn a_silent_initiator_is_asked_and_then_cut_off() {
    let (mut d, at) = iscsi("iscsi-silent");
    volume(&d, "v", "8M", 512);
    let target = name(&d);
    let open = |isid| Client::log_in(&at, &target, Options { isid, ..Options::default() }).unwrap();
    let (mut quiet, mut dead) = (open(1), open(2));
    let asked = |c: &mut Client| {
        let p = c.receive().expect("a ping");
        assert_eq!((p.head[0], be32(&p.head, 16), p.data.len()), (0x20, u32::MAX, 0));
        let ttt = be32(&p.head, 20);
        assert_ne!(ttt, u32::MAX);
        ttt
    };
    let ttt = asked(&mut quiet);
    let mut h = [0; 48];
    (h[0], h[1]) = (0x40, 0x80);
    h[16..20].fill(0xff);
    h[20..24].copy_from_slice(&ttt.to_be_bytes());
    h[24..28].copy_from_slice(&quiet.cmd_sn.to_be_bytes());
    quiet.send(h, &[]);
    asked(&mut dead);
    d.until("the other one is cut off", || sessions(&d) == 1);
    assert!(dead.receive().is_none());
    asked(&mut quiet);
    quiet.read10(0, 512, 512).good();
    // Who is there when the daemon stops is asked to log out, and has a moment for it.
    let stopping = std::thread::spawn(move || d.stop());
    let p = quiet.receive().expect("a message");
    assert_eq!((p.head[0], p.head[36], &p.head[42..44]), (0x32, 1, &[0, 1][..]));
    quiet.log_out();
    stopping.join().unwrap();
}

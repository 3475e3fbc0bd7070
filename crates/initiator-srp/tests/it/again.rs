//! A host that comes back with a login that ends its channels: the nexus of its former life is not its own. And one that is to come
//! back no more.

use crate::common::on_reactor;
use crate::peer::{End, Peer};
use crate::target::{BLOCK, HOST, Served, config, medium, serve, serve_ports};
use std::rc::Rc;
use weir_base::{MILLIS, SECONDS};
use weir_fabric::Provider;
use weir_proto_scsi::initiator as build;
use weir_proto_srp::command_builder::BufferSpec;
use weir_proto_srp::misc::LogoutReason;
use weir_proto_srp::{PortId, RspCode, TaskFunction};
use weir_reactor::{JoinHandle, now, sleep, spawn, timeout};
use weir_target_core::AccessMap;
use weir_target_srp::TargetConfig;

pub(crate) const RESERVE: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
const RELEASE: [u8; 6] = [0x17, 0, 0, 0, 0, 0];
pub(crate) const TEST_UNIT_READY: [u8; 6] = [0; 6];
/// Of the first block.
const WRITE_AND_VERIFY: [u8; 10] = [0x2E, 0, 0, 0, 0, 0, 0, 0, 1, 0];

/// The status of a command to a host that has had its unit attention.
pub(crate) async fn status(peer: &Peer, tag: u64, cdb: &[u8]) -> u8 {
    peer.send(tag, cdb, BufferSpec::None);
    match peer.next().await {
        (t, End::Status(s)) if t == tag => s,
        other => panic!("{other:?}"),
    }
}

/// A host that has reserved the unit, and another one, which it keeps out.
pub(crate) async fn reserved(p: &Rc<dyn Provider>, t: &Served) -> (Peer, Peer) {
    let holder = Peer::enter(p, t, 0).await;
    holder.attention().await;
    assert_eq!(status(&holder, 1, &RESERVE).await, 0);
    let other = Peer::enter_as(p, t, PortId::new(8, 1), 0).await.expect("it is let in");
    other.attention().await;
    assert_eq!(status(&other, 1, &TEST_UNIT_READY).await, 0x18, "it is reserved");
    (holder, other)
}

/// A write of which the device does not end what it does, until it is told to.
async fn stuck_write(t: &Served, peer: &Peer) {
    t.mood.stuck.set(t.mood.begun.get() + 1);
    peer.write(2, 0, 1, Peer::immediate(&[7; BLOCK]));
    while t.mood.begun.get() < t.mood.stuck.get() {
        sleep(MILLIS).await;
    }
}

#[test]
fn a_host_that_comes_back_holds_nothing_reserved() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &medium(1 << 20));
        let (old, other) = reserved(&p, &t).await;
        let new = Peer::enter_instead(&p, &t, HOST).await.expect("it is let in");
        assert_eq!(status(&other, 2, &TEST_UNIT_READY).await, 0, "its former life has it yet");
        // It is told that it is another one: what it held is gone.
        new.attention().await;
        assert_eq!(status(&new, 2, &TEST_UNIT_READY).await, 0);
        assert_eq!(t.target.nexuses().len(), 2);
        drop((old, new, other));
        while !t.target.nexuses().is_empty() {
            sleep(MILLIS).await;
        }
        t.port.check_idle().unwrap();
    });
}

/// Its login does not wait for a device for ever. As long as that has a write of its former life, what it held keeps others out: the write
/// would land over theirs.
#[test]
fn others_are_kept_out_while_a_device_has_a_write_of_its_former_life() {
    on_reactor(|p| async move {
        let c = TargetConfig { terminate_timeout: 200 * MILLIS, ..config() };
        let m = medium(1 << 20);
        let t = serve(p.clone(), "127.0.0.1:0", c, &m);
        let (old, other) = reserved(&p, &t).await;
        stuck_write(&t, &old).await;
        let began = now();
        let new = Peer::enter_instead(&p, &t, HOST).await.expect("it is let in");
        assert!(now() - began < 5 * SECONDS);
        assert_eq!(status(&other, 2, &RESERVE).await, 0x18, "its former life has it no more");
        new.attention().await;
        assert_eq!(status(&new, 2, &TEST_UNIT_READY).await, 0);
        new.send(3, &RELEASE, BufferSpec::None);
        assert!(timeout(SECONDS / 4, new.next()).await.is_err(), "it is given back too early");
        assert_eq!(status(&other, 3, &TEST_UNIT_READY).await, 0x18);
        t.mood.stuck.set(0);
        assert_eq!(new.next().await, (3, End::Status(0)));
        while status(&other, 4, &RESERVE).await != 0 {
            sleep(MILLIS).await;
        }
        other.write(5, 0, 1, Peer::immediate(&[9; BLOCK]));
        assert_eq!(other.next().await, (5, End::Status(0)));
        drop((old, new, other));
        while !t.target.nexuses().is_empty() {
            sleep(MILLIS).await;
        }
        assert_eq!(m.lock().unwrap()[0], 9);
        t.port.check_idle().unwrap();
    });
}

/// Of the logins of a host that end each other the last one waits for what it has under way.
#[test]
fn a_login_that_another_one_has_ended_does_not_wait() {
    on_reactor(|p| async move {
        let c = TargetConfig { terminate_timeout: 50 * SECONDS, ..config() };
        let t = Rc::new(serve(p.clone(), "127.0.0.1:0", c, &medium(1 << 20)));
        let old = Peer::enter(&p, &t, 0).await;
        old.attention().await;
        stuck_write(&t, &old).await;
        let login = || {
            let (p, t) = (p.clone(), t.clone());
            spawn(async move { Peer::enter_instead(&p, &t, HOST).await.is_ok() })
        };
        let mut all: Vec<_> = (0..4).map(|_| login()).collect();
        let waiting = |all: &[JoinHandle<bool>]| all.iter().filter(|l| !l.is_finished()).count();
        while waiting(&all) > 1 {
            sleep(MILLIS).await;
        }
        let last = all.iter().position(|l| !l.is_finished()).unwrap();
        let last = all.swap_remove(last);
        for l in all {
            assert!(!l.await.unwrap());
        }
        sleep(100 * MILLIS).await;
        assert!(!last.is_finished(), "a device has a write of its former life");
        t.mood.stuck.set(0);
        assert!(last.await.unwrap());
        drop(old);
        while !t.target.nexuses().is_empty() {
            sleep(MILLIS).await;
        }
        t.port.check_idle().unwrap();
    });
}

/// The same of a reset, for those that have not asked for it.
#[test]
fn a_reset_frees_nothing_before_the_tasks_of_the_holder_have_ended() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &medium(1 << 20));
        let (old, other) = reserved(&p, &t).await;
        let third = Peer::enter_as(&p, &t, PortId::new(9, 1), 0).await.expect("it is let in");
        third.attention().await;
        stuck_write(&t, &old).await;
        other.manage(3, TaskFunction::LunReset, 0);
        sleep(100 * MILLIS).await;
        // That of the reset.
        third.attention().await;
        assert_eq!(status(&third, 1, &RESERVE).await, 0x18, "its holder has a write under way");
        t.mood.stuck.set(0);
        assert_eq!(other.next().await, (3, End::Code(RspCode::Complete)));
        assert_eq!(status(&third, 2, &RESERVE).await, 0);
    });
}

/// Another one asks for a reset while the first is not over. The holder has reserved the unit again between the two, and its write since
/// is what the second waits for.
#[test]
fn a_reset_that_is_over_does_not_end_what_a_later_one_is_to_end() {
    on_reactor(|p| async move {
        let m = medium(1 << 20);
        let t = serve(p.clone(), "127.0.0.1:0", config(), &m);
        let (holder, other) = reserved(&p, &t).await;
        let third = Peer::enter_as(&p, &t, PortId::new(9, 1), 0).await.expect("it is let in");
        third.attention().await;
        stuck_write(&t, &holder).await;
        other.manage(3, TaskFunction::LunReset, 0);
        sleep(100 * MILLIS).await;
        holder.attention().await;
        third.attention().await;
        assert_eq!(status(&holder, 3, &RESERVE).await, 0);
        t.mood.stuck_too.set(t.mood.begun.get() + 1);
        holder.write(4, 0, 1, Peer::immediate(&[8; BLOCK]));
        while t.mood.begun.get() < t.mood.stuck_too.get() {
            sleep(MILLIS).await;
        }
        third.manage(3, TaskFunction::LunReset, 0);
        sleep(100 * MILLIS).await;
        t.mood.stuck.set(0);
        assert_eq!(other.next().await, (3, End::Code(RspCode::Complete)));
        other.attention().await;
        assert_eq!(status(&other, 4, &RESERVE).await, 0x18, "a write of the holder's is under way");
        t.mood.stuck_too.set(0);
        assert_eq!(third.next().await, (3, End::Code(RspCode::Complete)));
        assert_eq!(status(&other, 5, &RESERVE).await, 0);
        assert_eq!(m.lock().unwrap()[0], 8);
    });
}

/// The same where the holder has not reserved it again: the first was to end what it has, and is answered when that has ended.
#[test]
fn a_reset_is_answered_when_a_later_one_has_ended_what_it_was_to_end() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &medium(1 << 20));
        let (holder, other) = reserved(&p, &t).await;
        let third = Peer::enter_as(&p, &t, PortId::new(9, 1), 0).await.expect("it is let in");
        third.attention().await;
        stuck_write(&t, &holder).await;
        other.manage(3, TaskFunction::LunReset, 0);
        sleep(100 * MILLIS).await;
        holder.attention().await;
        t.mood.stuck_too.set(t.mood.begun.get() + 1);
        holder.write(4, 0, 1, Peer::immediate(&[8; BLOCK]));
        while t.mood.begun.get() < t.mood.stuck_too.get() {
            sleep(MILLIS).await;
        }
        third.manage(3, TaskFunction::LunReset, 0);
        sleep(100 * MILLIS).await;
        t.mood.stuck.set(0);
        assert!(
            timeout(SECONDS / 4, other.next()).await.is_err(),
            "the holder keeps others out yet"
        );
        t.mood.stuck_too.set(0);
        assert_eq!(other.next().await, (3, End::Code(RspCode::Complete)));
        other.attention().await;
        assert_eq!(status(&other, 4, &RESERVE).await, 0);
        assert_eq!(third.next().await, (3, End::Code(RspCode::Complete)));
    });
}

/// Nobody hears that it is over. What it was to end has no other end.
#[test]
fn a_reset_whose_host_is_gone_ends_the_reservation_all_the_same() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &medium(1 << 20));
        let (holder, other) = reserved(&p, &t).await;
        let third = Peer::enter_as(&p, &t, PortId::new(9, 1), 0).await.expect("it is let in");
        third.attention().await;
        stuck_write(&t, &holder).await;
        other.manage(3, TaskFunction::LunReset, 0);
        sleep(100 * MILLIS).await;
        drop(other);
        third.attention().await;
        sleep(300 * MILLIS).await;
        assert_eq!(status(&third, 1, &RESERVE).await, 0x18, "its holder has a write under way");
        t.mood.stuck.set(0);
        let free = async {
            while status(&third, 2, &RESERVE).await != 0 {
                sleep(MILLIS).await;
            }
        };
        timeout(5 * SECONDS, free).await.expect("it stays reserved");
    });
}

/// It logs in, has a unit reset of which a device does not end a write, and goes, again and again. A few such channels would be all that
/// a port can receive for.
#[test]
fn a_host_that_resets_a_unit_and_goes_keeps_nothing_of_the_port() {
    on_reactor(|p| async move {
        let c = TargetConfig { max_channels: 2, recv_buffers: 12, ..config() };
        let t = serve(p.clone(), "127.0.0.1:0", c, &medium(1 << 20));
        let first = Peer::enter(&p, &t, 0).await;
        first.attention().await;
        stuck_write(&t, &first).await;
        let before = t.port.census();
        for n in 1..=3 {
            let peer = Peer::enter(&p, &t, 0).await;
            peer.manage(1, TaskFunction::LunReset, 0);
            while t.target.counts().read().tasks < n {
                sleep(MILLIS).await;
            }
            sleep(10 * MILLIS).await;
            drop(peer);
            sleep(200 * MILLIS).await;
        }
        let now = t.port.census();
        assert_eq!((now.channels, now.credits), (before.channels, before.credits));
        assert_eq!(now.requests_busy, before.requests_busy);
        let other = Peer::enter_as(&p, &t, PortId::new(8, 1), 0).await.expect("it is kept out");
        t.mood.stuck.set(0);
        drop((first, other));
        while !t.target.nexuses().is_empty() {
            sleep(MILLIS).await;
        }
        t.port.check_idle().unwrap();
    });
}

/// A port is full, with a channel that the login is to end. A write that waited there ends a moment later.
#[test]
fn a_host_is_not_kept_out_by_the_channel_that_its_login_ends() {
    on_reactor(|p| async move {
        let one = TargetConfig { max_channels: 1, ..config() };
        let two = TargetConfig { relative_port: 2, port_id: PortId::new(2, 2), ..config() };
        let ports = [("127.0.0.1:0", one), ("127.0.0.1:0", two)];
        let all = serve_ports(p.clone(), ports, &medium(1 << 20));
        let elsewhere = Peer::enter(&p, &all[1], 0).await;
        elsewhere.attention().await;
        stuck_write(&all[1], &elsewhere).await;
        drop(elsewhere);
        sleep(100 * MILLIS).await;
        let mut last = None;
        for _ in 0..20 {
            let peer = Peer::enter_instead(&p, &all[0], HOST).await.expect("it is kept out");
            peer.attention().await;
            peer.write(1, 0, 1, Peer::immediate(&[8; BLOCK]));
            assert!(timeout(10 * MILLIS, peer.next()).await.is_err(), "it does not wait");
            last = Some(peer);
        }
        all[0].mood.stuck.set(0);
        assert_eq!(last.expect("the last one").next().await, (1, End::Status(0)));
    });
}

/// A host sends a command with these data, of which a device does not end the I/O with this number. It comes back, at the same port and at
/// another one, and writes elsewhere.
fn comes_back_while_a_read_hangs(cdb: &[u8], data: &'static [u8], number: u64) {
    let cdb = cdb.to_vec();
    on_reactor(move |p| async move {
        let one = TargetConfig { terminate_timeout: 200 * MILLIS, ..config() };
        let two = TargetConfig { relative_port: 2, port_id: PortId::new(2, 2), ..one.clone() };
        let (m, ports) = (medium(4 << 20), [("127.0.0.1:0", one), ("127.0.0.1:0", two)]);
        let all = serve_ports(p.clone(), ports, &m);
        let mood = all[0].mood.clone();
        let old = Peer::enter(&p, &all[0], 0).await;
        old.attention().await;
        mood.stuck.set(number);
        old.send(1, &cdb, Peer::immediate(data));
        while mood.begun.get() < number {
            sleep(MILLIS).await;
        }
        for (i, t) in all.iter().enumerate() {
            let new = Peer::enter_instead(&p, t, HOST).await.expect("it is let in");
            new.attention().await;
            new.write(1, 4096 + i as u32, 1, Peer::immediate(&[9; BLOCK]));
            let done = timeout(SECONDS, new.next()).await.expect("a write waits for a read");
            assert_eq!(done, (1, End::Status(0)));
        }
        mood.stuck.set(0);
        while all.iter().any(|t| !t.target.nexuses().is_empty()) {
            sleep(MILLIS).await;
        }
        all.iter().for_each(|t| t.port.check_idle().unwrap());
        assert_eq!(mood.begun.get(), number + 2, "what had not begun was done");
    });
}

/// A mirror goes on without a device that hangs. Reads that are there stay there, and nothing is to wait for them but their memory.
#[test]
fn writes_of_a_host_do_not_wait_for_what_it_has_read() {
    comes_back_while_a_read_hangs(build::verify(0, 1, false).as_bytes(), &[], 1);
    // What is read back has been written.
    comes_back_while_a_read_hangs(&WRITE_AND_VERIFY, &[1; BLOCK], 2);
    // It writes nothing any more.
    comes_back_while_a_read_hangs(
        build::compare_and_write(0, 1, false).as_bytes(),
        &[0; 2 * BLOCK],
        1,
    );
}

/// It need not say anything for that, nor be silent for as long as ends other hosts' channels.
#[test]
fn a_host_that_is_deleted_loses_its_channels_and_their_places() {
    on_reactor(|p| async move {
        let c = TargetConfig { max_channels: 2, probe_after: 300 * MILLIS, ..config() };
        let t = serve(p.clone(), "127.0.0.1:0", c, &medium(1 << 20));
        let peers = [Peer::enter(&p, &t, 0).await, Peer::enter(&p, &t, 0).await];
        peers[0].attention().await;
        let known = t.access.map();
        t.access.set(AccessMap::default());
        for p in &peers {
            assert_eq!(
                p.logout().await,
                LogoutReason::Unspecified,
                "nobody knows it, and it stays"
            );
        }
        let ends = async {
            while t.port.census().channels > 0 {
                sleep(MILLIS).await;
            }
        };
        timeout(5 * SECONDS, ends).await.expect("they end");
        t.access.set((*known).clone());
        let other = Peer::enter_as(&p, &t, PortId::new(8, 1), 0).await;
        drop((other.expect("there is a place"), peers));
    });
}

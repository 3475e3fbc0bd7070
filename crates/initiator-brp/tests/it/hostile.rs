//! What a host may say that no host in good order says, and what the target makes of it.

use crate::common::{on_reactor, session_config, slice};
use crate::peer::{Peer, ROOM, command, login};
use crate::target::{HOST, Served, config, serve, serve_from};
use std::rc::Rc;
use weir_base::{MILLIS, SECONDS};
use weir_fabric::Access;
use weir_initiator_brp::{Disk, Session, SessionConfig};
use weir_mem::Slice;
use weir_proto_brp::command::{Command, Descriptor, flag};
use weir_proto_brp::control::{Abort, GoodbyeReason};
use weir_proto_brp::{Features, Header, Kind, LoginRequest, Op, RejectReason, Status};
use weir_reactor::{sleep, spawn, timeout};
use weir_target_brp::TargetConfig;
use weir_target_core::{AccessMap, End, Whom};

/// Waits until `done`, or fails.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let wait = async {
        while !done() {
            sleep(MILLIS).await;
        }
    };
    assert!(timeout(20 * SECONDS, wait).await.is_ok(), "{what}");
}

/// Nothing is held for whoever was there, and the port can end.
pub(crate) async fn ends_whole(t: &Served) {
    until("no command is left", || t.port.census().requests_busy == 0).await;
    t.target.leave().await;
    let pool = t.port.census().data_pool;
    assert!(pool.iter().all(|c| c.free == c.total), "{pool:?}");
}

/// What an offset means depends on the command; where it means nothing it may be anything.
#[test]
fn descriptions_are_told_whatever_the_offset_says() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &Slice::heap(1 << 20));
        let peer = Peer::enter(&p, &t, login(), 1).await.unwrap();
        assert!(peer.granted.features.has(Features::INTEGRITY.or(Features::COALESCE)));
        let v = peer.volume().await;
        for (round, op) in [Op::Geometry, Op::List].into_iter().enumerate() {
            let mut all = Vec::new();
            for (i, offset) in
                [0, 1, 4095, u64::MAX - 191, u64::MAX - 1, u64::MAX].iter().enumerate()
            {
                let tag = 1 + i as u16;
                let seq = 1 + round as u32;
                let (offset, len, guard) = (*offset, 192 * 40, v.guard);
                let flags = flag::INLINE_IN;
                let c = Command { flags, seq, offset, len, guard, ..command(op, tag) };
                all.push(c);
            }
            let parts: Vec<_> = all.iter().map(|c| (*c, &[][..], &[][..])).collect();
            peer.send(&parts);
            let got = peer.completions(all.len(), &all).await;
            assert!(got.iter().all(|(c, _)| c.status == Status::Ok as u8), "{got:?}");
            if op == Op::Geometry {
                assert!(got.iter().all(|(_, d)| d.len() == 192));
            }
        }
        drop(peer);
        ends_whole(&t).await;
    });
}

/// A read whose answer is behind its completion: as long as the login allows, by the way for volumes that are memory and
/// by the way for others.
#[test]
fn reads_have_the_same_limits_at_once_and_by_a_request() {
    for direct in [true, false] {
        on_reactor(move |p| async move {
            let t = serve(p.clone(), "127.0.0.1:0", config(), &Slice::heap(8 << 20));
            t.mood.direct.set(direct);
            let peer = Peer::enter(&p, &t, login(), 1).await.unwrap();
            let v = peer.volume().await;
            // The header, one completion and the checksums go with the data.
            let most = (ROOM - 16 - 16 - 4 * ROOM.div_ceil(4096)) / 512 * 512;
            let lengths = [512, most, most + 512, ROOM, 1 << 20, (1 << 20) + 512, 8 << 20];
            for (i, len) in lengths.into_iter().enumerate() {
                let c = Command {
                    flags: flag::INLINE_IN,
                    seq: 1 + i as u32,
                    len: len as u32,
                    guard: v.guard,
                    ..command(Op::Read, 1)
                };
                peer.send(&[(c, &[], &[])]);
                let got = peer.completions(1, &[c]).await;
                let (status, n) = (got[0].0.status, got[0].1.len());
                let wanted = if len <= most { (Status::Ok, len) } else { (Status::Invalid, 0) };
                assert_eq!((status, n), (wanted.0 as u8, wanted.1), "{len} bytes");
            }
            drop(peer);
            ends_whole(&t).await;
        });
    }
}

/// An IRD of 0 is a host's right. It cannot have data fetched then, and no command of its waits for that.
#[test]
fn a_host_that_serves_no_read_is_told_so_and_holds_nothing() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &Slice::heap(1 << 20));
        t.mood.direct.set(false);
        let peer = Peer::enter(&p, &t, login(), 0).await.unwrap();
        let v = peer.volume().await;
        let place = [Descriptor { addr: 0, key: 0x77, len: 1 << 16 }];
        let write = |tag, len| Command { len, guard: v.guard, ..command(Op::Write, tag) };
        let described = |tag| Command { segments: 1, ..write(tag, 1 << 16) };
        peer.send(&[(described(1), &place, &[])]);
        assert_eq!(peer.completions(1, &[]).await[0].0.status, Status::Invalid as u8);
        let inline = Command { flags: flag::INLINE_OUT, ..write(2, 512) };
        peer.send(&[(inline, &[], &[5; 512])]);
        assert_eq!(peer.completions(1, &[]).await[0].0.status, Status::Ok as u8);
        // It goes while the next one is on its way.
        peer.send(&[(described(3), &place, &[])]);
        drop(peer);
        ends_whole(&t).await;
    });
}

/// What a port counts only grows: commands do not go with their channel.
#[test]
fn a_port_counts_logins_refusals_commands_and_aborts() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &Slice::heap(1 << 20));
        let counts = || t.target.counts().read();
        let peer = Peer::enter(&p, &t, login(), 1).await.unwrap();
        peer.volume().await;
        let integrity = peer.granted.features.has(Features::INTEGRITY);
        peer.say(&Abort { tag: 9, seq: 1 }.message(integrity));
        let list = Command { len: 192, flags: flag::INLINE_IN, ..command(Op::List, 1) };
        peer.send(&[(list, &[], &[])]);
        peer.completions(1, &[list]).await;
        let before = counts();
        assert_eq!((before.logins, before.refused, before.tasks), (1, 0, 1));
        // Nobody knows it any more.
        t.access.set(AccessMap::default());
        let other = LoginRequest { session: 78, ..login() };
        assert_eq!(Peer::enter(&p, &t, other, 1).await.err(), Some(RejectReason::NotAllowed));
        assert_eq!((counts().logins, counts().refused), (1, 1));
        let told = t.target.counts().take_refusals(std::time::Instant::now());
        assert!(told[0].contains(&HOST.to_string()) && told[0].contains("127.0.0.1"), "{told:?}");
        drop(peer);
        ends_whole(&t).await;
        assert!(counts().commands >= 2, "they went with their channel: {:?}", counts());
    });
}

/// Commands that wait for a buffer end with their connection, not when those before them have ended.
#[test]
fn waits_for_buffers_end_with_the_connection() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &Slice::heap(8 << 20));
        t.mood.direct.set(false);
        let peer = Peer::enter(&p, &t, login(), 4).await.unwrap();
        let v = peer.volume().await;
        let memory = Slice::heap(1 << 20);
        let at = peer.conn.register(&memory, Access::RemoteRead).unwrap();
        let place = [Descriptor { addr: at.addr, key: at.key, len: 1 << 20 }];
        t.mood.stall.set(true);
        for tag in 1..=20 {
            let guard = v.guard;
            let c = Command { len: 1 << 20, segments: 1, guard, ..command(Op::Read, tag) };
            peer.send(&[(c, &place, &[])]);
        }
        // Pieces of 256 KiB, for which only the 8 buffers of 1 MiB will do; a channel's share of them is half.
        let waiting = || t.port.census().data_pool.iter().map(|c| c.waiting).sum::<usize>();
        until("the others wait", || waiting() == 16).await;
        peer.conn.disconnect(true);
        until("nobody waits any more", || waiting() == 0).await;
        until("only those that read are left", || t.port.census().requests_busy == 4).await;
        t.mood.stall.set(false);
        drop(peer);
        ends_whole(&t).await;
    });
}

/// Commands wait for a request in the order in which they came. What came with those behind takes no buffer from those
/// before, which would then wait for each other.
#[test]
fn data_of_commands_that_wait_take_no_buffer_from_those_before_them() {
    on_reactor(|p| async move {
        let config = TargetConfig { requests: 1, ..config() };
        let t = serve_from(p.clone(), config, &Slice::heap(1 << 20), 1);
        let peer = Peer::enter(&p, &t, login(), 4).await.unwrap();
        let v = peer.volume().await;
        let memory = Slice::heap(4096);
        let at = peer.conn.register(&memory, Access::RemoteWrite).unwrap();
        let place = [Descriptor { addr: at.addr, key: at.key, len: 4096 }];
        t.mood.stall.set(true);
        let guard = v.guard;
        let flush = Command { guard, ..command(Op::Flush, 1) };
        let read = Command { len: 4096, segments: 1, guard, ..command(Op::Read, 2) };
        let write = Command { len: 512, flags: flag::INLINE_OUT, guard, ..command(Op::Write, 3) };
        peer.send(&[(flush, &[], &[])]);
        until("the flush is under way", || t.port.census().requests_busy == 1).await;
        peer.send(&[(read, &place, &[])]);
        peer.send(&[(write, &[], &[5; 512])]);
        until("both wait", || t.port.census().waiting == 2).await;
        t.mood.stall.set(false);
        let got = timeout(20 * SECONDS, peer.completions(3, &[])).await;
        let ok = |c: &_| matches!(c, &(weir_proto_brp::Completion { status: 0, .. }, _));
        assert!(got.is_ok_and(|all| all.iter().all(ok)));
        drop(peer);
        ends_whole(&t).await;
    });
}

/// A host that logs in and out under ever new names leaves no more behind than a few channels, the newest.
#[test]
fn channels_without_a_connection_are_few() {
    on_reactor(|p| async move {
        let c = TargetConfig { max_channels: 8, remembered: 3, ..config() };
        let t = serve(p.clone(), "127.0.0.1:0", c, &Slice::heap(1 << 20));
        let features = Features::USUAL.or(Features::KEEP_OTHERS);
        for session in 0..20 {
            for channel in 0..3 {
                let login = LoginRequest { features, session, channel, ..login() };
                // A place may still be taken by one that is ending.
                let peer = loop {
                    match Peer::enter(&p, &t, login, 1).await {
                        Ok(peer) => break peer,
                        Err(e) => assert!(e.is_passing(), "{e}"),
                    }
                };
                assert!(!peer.granted.resumed);
            }
        }
        until("all but three are forgotten", || t.port.census().channels == 3).await;
        assert_eq!(t.target.sessions().len(), 1);
        let newest = LoginRequest { features, session: 19, channel: 2, ..login() };
        let peer = Peer::enter(&p, &t, newest, 1).await.unwrap();
        assert!(peer.granted.resumed, "it can go on where it was");
        // No session has more channels than the port.
        let above = LoginRequest { features, channel: 8, ..login() };
        let refused = Peer::enter(&p, &t, above, 1).await.err();
        assert_eq!(refused, Some(RejectReason::Resources));
        drop(peer);
        ends_whole(&t).await;
    });
}

/// A host that comes back at once, again and again, does not keep the port from ending; nor does a device that hangs.
#[test]
fn a_port_ends_though_hosts_come_back_and_devices_hang() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &Slice::heap(1 << 20));
        t.mood.direct.set(false);
        let c = SessionConfig { reconnect_min: 1, reconnect_max: MILLIS, ..session_config(&t) };
        let s =
            Session::connect(p.clone(), SessionConfig { channels: 3, ..c.clone() }).await.unwrap();
        let d = Rc::new(s.queue().open("v").await.unwrap());
        let io = d.clone();
        let writes =
            spawn(async move { while io.write(0, slice(&[1; 512]), false).await.is_ok() {} });
        until("it writes", || t.mood.writes.get() > 10).await;
        let left = timeout(20 * SECONDS, t.target.leave_within(SECONDS * 3600)).await;
        assert_eq!(left, Ok(true));
        let again = serve(p.clone(), &t.addr, config(), &Slice::heap(1 << 20));
        again.mood.direct.set(false);
        until("its address is free again, and the host comes back", || {
            again.mood.writes.get() > 10
        })
        .await;
        again.mood.stall.set(true);
        until("a write hangs", || again.port.census().requests_busy > 0).await;
        let left = timeout(20 * SECONDS, again.target.leave_within(100 * MILLIS)).await;
        assert_eq!(left, Ok(false), "it says that something was left behind");
        s.close().await;
        drop((d, writes));
    });
}

/// A port that goes without what a device does not end has not made it undone: whoever wants the volume's place waits for it.
#[test]
fn what_a_port_leaves_behind_is_waited_for() {
    on_reactor(|p| async move {
        // One runs, the others wait for a request.
        let c = TargetConfig { requests: 1, ..config() };
        let t = serve(p.clone(), "127.0.0.1:0", c, &Slice::heap(1 << 20));
        t.mood.direct.set(false);
        let s = Session::connect(p.clone(), session_config(&t)).await.unwrap();
        let d = Rc::new(s.queue().open("v").await.unwrap());
        t.mood.stall.set(true);
        let write = |d: Rc<Disk>| async move { d.write(0, slice(&[1; 512]), false).await };
        let writes: Vec<_> = (0..3).map(|_| spawn(write(d.clone()))).collect();
        until("one hangs, two wait", || t.port.census().waiting == 2).await;
        let left = timeout(20 * SECONDS, t.target.leave_within(100 * MILLIS)).await;
        assert_eq!(left, Ok(false));
        let unit = t.unit.clone();
        let fence = spawn(async move { unit.fence(Whom::All, End::Gone).await });
        sleep(500 * MILLIS).await;
        assert!(!fence.is_finished(), "the end of a write is promised that is with the device yet");
        t.mood.stall.set(false);
        until("it has ended", || fence.is_finished()).await;
        until("its host is forgotten", || t.unit.with(|s| s.nexuses().count()) == 0).await;
        assert_eq!(t.mood.writes.get(), 1, "those that waited have not been done");
        assert!(t.port.census().data_pool.iter().all(|c| c.free == c.total));
        s.close().await;
        drop(writes);
    });
}

/// What a host writes by a port that was made again does not come before what the old port has left with the device: neither as a
/// request of its own, nor as one that ends as it comes.
#[test]
fn a_port_made_again_waits_for_what_the_old_one_has_left_behind() {
    for direct in [false, true] {
        on_reactor(move |p| async move {
            let memory = Slice::heap(1 << 20);
            let t = serve(p.clone(), "127.0.0.1:0", config(), &memory);
            t.mood.direct.set(false);
            let s = Session::connect(p.clone(), session_config(&t)).await.unwrap();
            let d = s.queue().open("v").await.unwrap();
            t.mood.delay.set(2 * SECONDS);
            let write = spawn(async move { d.write(0, slice(&[1; 512]), false).await });
            until("a write is with the device", || t.port.census().requests_busy == 1).await;
            sleep(100 * MILLIS).await;
            t.mood.delay.set(0);
            let left = timeout(20 * SECONDS, t.target.leave_within(100 * MILLIS)).await;
            assert_eq!(left, Ok(false));
            s.close().await;
            let c = SessionConfig { addrs: vec![t.again(&p, config())], ..session_config(&t) };
            let s = Session::connect(p.clone(), c).await.unwrap();
            let d = s.queue().open("v").await.unwrap();
            t.mood.direct.set(direct);
            d.write(0, slice(&[2; 512]), false).await.unwrap();
            sleep(3 * SECONDS).await;
            assert_eq!(memory.to_vec()[0], 2, "what was acknowledged last is there");
            s.close().await;
            drop(write);
        });
    }
}

/// A host that starts anew, and tries its login again, does not come to write beside what it has left behind.
#[test]
fn every_login_of_a_session_waits_for_what_the_session_replaces() {
    on_reactor(|p| async move {
        let t = Rc::new(serve(p.clone(), "127.0.0.1:0", config(), &Slice::heap(1 << 20)));
        t.mood.direct.set(false);
        let s = Session::connect(p.clone(), session_config(&t)).await.unwrap();
        let d = Rc::new(s.queue().open("v").await.unwrap());
        t.mood.stall.set(true);
        let write = spawn(async move { d.write(0, slice(&[1; 512]), false).await });
        until("a write hangs", || t.port.census().requests_busy == 1).await;
        // As a host that gives its attempt up, and as one that logs its channels in side by side.
        let enter = |channel| {
            let (p, t) = (p.clone(), t.clone());
            let login = LoginRequest { session: 78, channel, ..login() };
            async move { Peer::enter(&p, &t, login, 1).await }
        };
        let first = spawn(enter(0));
        sleep(200 * MILLIS).await;
        for channel in [0, 1] {
            let early = timeout(SECONDS, enter(channel)).await;
            assert!(
                matches!(early, Err(_) | Ok(Err(RejectReason::Draining))),
                "it is let in while the old session's write is with the device"
            );
        }
        t.mood.stall.set(false);
        let in_time = async {
            loop {
                match enter(0).await {
                    Ok(peer) => break peer,
                    Err(e) => assert!(e.is_passing(), "{e}"),
                }
            }
        };
        let peer = timeout(20 * SECONDS, in_time).await.expect("it is let in now");
        assert_eq!(t.mood.writes.get(), 1);
        drop((peer, first, write));
        s.close().await;
        ends_whole(&t).await;
    });
}

/// A host starts anew twice while a write that it left behind is with the device. The second start gives way to the third though
/// both wait for the same, and comes to nothing: it would be served under a nexus that no unit is ever rid of.
#[test]
fn a_login_that_is_replaced_while_it_waits_comes_to_nothing() {
    on_reactor(|p| async move {
        let t = Rc::new(serve(p.clone(), "127.0.0.1:0", config(), &Slice::heap(1 << 20)));
        t.mood.direct.set(false);
        let s = Session::connect(p.clone(), session_config(&t)).await.unwrap();
        let d = Rc::new(s.queue().open("v").await.unwrap());
        t.mood.stall.set(true);
        let write = spawn(async move { d.write(0, slice(&[1; 512]), false).await });
        until("a write hangs", || t.port.census().requests_busy == 1).await;
        let enter = |session| {
            let (p, t) = (p.clone(), t.clone());
            spawn(async move { Peer::enter(&p, &t, LoginRequest { session, ..login() }, 1).await })
        };
        let known = |session| t.target.sessions().iter().any(|s| s.session == session);
        let second = enter(78);
        until("the second waits", || known(78)).await;
        let third = enter(79);
        until("the third waits in its place", || known(79) && !known(78)).await;
        t.mood.stall.set(false);
        let refused = second.await.unwrap().err();
        let peer = third.await.unwrap();
        assert_eq!(refused, Some(RejectReason::Draining));
        assert!(peer.is_ok(), "the third is let in");
        let sessions: Vec<u64> = t.target.sessions().iter().map(|s| s.session).collect();
        assert_eq!(sessions, [79]);
        assert_eq!(t.port.census().channels, 1);
        drop((peer, write));
        s.close().await;
        ends_whole(&t).await;
    });
}

/// A message without an entry asks for nothing. Who sends it is broken, or wants the target to be busy with it.
#[test]
fn an_empty_message_ends_the_connection() {
    for kind in [Kind::Commands, Kind::Abort] {
        on_reactor(move |p| async move {
            let t = serve(p.clone(), "127.0.0.1:0", config(), &Slice::heap(1 << 20));
            let peer = Peer::enter(&p, &t, login(), 1).await.unwrap();
            peer.volume().await;
            peer.say(&Header::new(kind).alone(peer.granted.features.has(Features::INTEGRITY)));
            let said = peer.next().await.expect("a word before the end");
            let header = Header::decode(&said, false).unwrap();
            let reason = GoodbyeReason::from_code(header.flags);
            assert_eq!((header.kind, reason), (Kind::Goodbye, GoodbyeReason::Protocol), "{kind:?}");
            until("the connection ends", || !peer.conn.is_open()).await;
            // Another one is served as ever.
            let other = LoginRequest { session: 78, ..login() };
            let peer = Peer::enter(&p, &t, other, 1).await.unwrap();
            peer.volume().await;
            drop(peer);
            ends_whole(&t).await;
        });
    }
}

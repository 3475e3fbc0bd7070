//! What a host has left with a slow device by a connection that it has lost, and what it writes next.

use crate::common::on_reactor;
use crate::peer::{Peer, command, login};
use crate::target::{BLOCK, HOST, Served, config, serve};
use std::rc::Rc;
use weir_base::{MILLIS, SECONDS};
use weir_fabric::Provider;
use weir_mem::Slice;
use weir_proto_brp::command::flag;
use weir_proto_brp::control::Abort;
use weir_proto_brp::{Command, Features, LoginRequest, Op, RejectReason, Status, completion};
use weir_reactor::{now, sleep, timeout};
use weir_target_brp::TargetConfig;
use weir_target_core::{AccessMap, HostRule};

/// A login of a session that leaves others alone.
fn beside(session: u64) -> LoginRequest {
    LoginRequest { session, features: Features::USUAL.or(Features::KEEP_OTHERS), ..login() }
}

/// Writes a block of these bytes over the first one.
fn write(peer: &Peer, guard: u32, byte: u8) {
    let of = Command { guard, len: BLOCK as u32, flags: flag::INLINE_OUT, ..command(Op::Write, 1) };
    peer.send(&[(of, &[], &[byte; BLOCK])]);
}

/// A write of the host by `old` is slow, and its connection is lost: what the host writes by `new` is there in the end.
async fn is_not_overtaken(t: &Served, memory: &Slice, old: Peer, new: &Peer) {
    let guard = new.volume().await.guard;
    t.mood.direct.set(false);
    t.mood.delay.set(SECONDS);
    write(&old, guard, 0x11);
    let ends = async {
        while t.port.census().requests_busy == 0 {
            sleep(MILLIS).await;
        }
        // Its data has come, too.
        sleep(100 * MILLIS).await;
        drop(old);
        while t.target.local_channels().iter().all(|c| !c.peer.is_empty()) {
            sleep(MILLIS).await;
        }
    };
    timeout(SECONDS / 2, ends).await.expect("the connection is lost while the device is slow");
    t.mood.delay.set(0);
    // Reads wait for nothing.
    let read = Command { guard, len: BLOCK as u32, flags: flag::INLINE_IN, ..command(Op::Read, 2) };
    new.send(&[(read, &[], &[])]);
    let read = timeout(SECONDS / 4, new.completions(1, &[])).await.expect("a read waits");
    assert_eq!((read[0].0.status, t.mood.writes.get()), (0, 0));
    write(new, guard, 0x22);
    let done = new.completions(1, &[]).await;
    assert_eq!(done[0].0.status, 0);
    sleep(2 * SECONDS).await;
    assert_eq!((memory.to_vec()[0], t.mood.writes.get()), (0x22, 2), "an old write came later");
}

fn served(p: &Rc<dyn Provider>) -> (Served, Slice) {
    let memory = Slice::heap(1 << 20);
    (serve(p.clone(), "127.0.0.1:0", config(), &memory), memory)
}

/// Another session of it, beside the one that has lost its connection.
#[test]
fn a_session_waits_for_what_another_one_of_its_host_has_lost() {
    on_reactor(|p| async move {
        let (t, memory) = served(&p);
        let old = Peer::enter(&p, &t, beside(1), 4).await.unwrap();
        let new = Peer::enter(&p, &t, beside(2), 4).await.unwrap();
        is_not_overtaken(&t, &memory, old, &new).await;
    });
}

#[test]
fn a_channel_waits_for_what_another_one_of_its_session_has_lost() {
    on_reactor(|p| async move {
        let (t, memory) = served(&p);
        let old = Peer::enter(&p, &t, login(), 4).await.unwrap();
        let new = Peer::enter(&p, &t, LoginRequest { channel: 1, ..login() }, 4).await.unwrap();
        is_not_overtaken(&t, &memory, old, &new).await;
    });
}

/// Paths go to several ports of a node.
#[test]
fn what_a_host_has_lost_at_one_port_is_waited_for_at_another() {
    on_reactor(|p| async move {
        let (t, memory) = served(&p);
        let old = Peer::enter(&p, &t, login(), 4).await.unwrap();
        let second = TargetConfig { relative_port: 2, ..config() };
        let second = t.again(&p, second);
        let new = Peer::enter_at(&p, &second, login(), 4).await.expect("it is let in");
        is_not_overtaken(&t, &memory, old, &new).await;
    });
}

/// So they do by initiator ports of their own, which are one host's in the access map; or one machine's, where every host is let in.
#[test]
fn what_a_host_has_lost_by_one_initiator_port_is_waited_for_by_its_others() {
    for any in [false, true] {
        on_reactor(move |p| async move {
            let (t, memory) = served(&p);
            let mut other = HOST;
            other.0[if any { 0 } else { 15 }] ^= 1;
            let ports = [HOST, other].map(|p| p.0.to_vec()).to_vec();
            let rule = t.access.map().hosts[0].clone();
            t.access.set(AccessMap { hosts: vec![HostRule { ports, any, ..rule }] });
            let old = Peer::enter(&p, &t, login(), 4).await.unwrap();
            let second = TargetConfig { relative_port: 2, ..config() };
            let second = t.again(&p, second);
            let login = LoginRequest { initiator: other, ..login() };
            let new = Peer::enter_at(&p, &second, login, 4).await.expect("it is let in");
            is_not_overtaken(&t, &memory, old, &new).await;
        });
    }
}

/// It is another host's business.
#[test]
fn nobody_else_waits_for_what_a_host_has_lost() {
    on_reactor(|p| async move {
        let (t, _) = served(&p);
        let old = Peer::enter(&p, &t, login(), 4).await.unwrap();
        let initiator = weir_initiator_brp::PortId([9; 16]);
        let other = Peer::enter(&p, &t, LoginRequest { initiator, ..login() }, 4).await.unwrap();
        let guard = other.volume().await.guard;
        t.mood.direct.set(false);
        t.mood.delay.set(2 * SECONDS);
        write(&old, guard, 0x11);
        sleep(100 * MILLIS).await;
        drop(old);
        sleep(100 * MILLIS).await;
        t.mood.delay.set(0);
        write(&other, guard, 0x22);
        let done = timeout(SECONDS, other.completions(1, &[])).await.expect("it waits");
        assert_eq!(done[0].0.status, 0);
    });
}

/// A flush may tell of lost data once only: who comes back for it is told what became of it, and no second one hides that.
#[test]
fn a_login_waits_for_a_flush() {
    on_reactor(|p| async move {
        let c = TargetConfig { drain_timeout: 200 * MILLIS, ..config() };
        let t = serve(p.clone(), "127.0.0.1:0", c, &Slice::heap(1 << 20));
        let old = Peer::enter(&p, &t, login(), 4).await.unwrap();
        let guard = old.volume().await.guard;
        t.mood.stall.set(true);
        let flush = Command { guard, ..command(Op::Flush, 1) };
        old.send(&[(flush, &[], &[])]);
        while t.port.census().requests_busy == 0 {
            sleep(MILLIS).await;
        }
        drop(old);
        let early = Peer::enter(&p, &t, login(), 4).await.err();
        assert_eq!(early, Some(RejectReason::Draining), "its end is forgotten");
        t.mood.stall.set(false);
        while t.port.census().requests_busy > 0 {
            sleep(MILLIS).await;
        }
        let new = Peer::enter(&p, &t, login(), 4).await.expect("it is let in");
        new.send(&[(flush, &[], &[])]);
        let (done, _) = new.completions(1, &[]).await.remove(0);
        assert_eq!((done.status, done.flags), (0, completion::flag::REPLAYED));
    });
}

/// A device tells a loss once: whoever comes in place of who asked for the flush is told of it, by another session too.
#[test]
fn what_a_flush_is_told_that_lost_its_connection_the_next_one_tells() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &Slice::heap(1 << 20));
        let old = Peer::enter(&p, &t, login(), 4).await.unwrap();
        let guard = old.volume().await.guard;
        t.mood.stall.set(true);
        t.mood.flush_fails.set(true);
        let flush = |tag| (Command { guard, ..command(Op::Flush, tag) }, &[][..], &[][..]);
        old.send(&[flush(1)]);
        while t.port.census().requests_busy == 0 {
            sleep(MILLIS).await;
        }
        drop(old);
        // Another session of the host: it does not get what the first one is answered.
        let new = Peer::enter(&p, &t, beside(78), 4).await.unwrap();
        new.send(&[flush(1)]);
        sleep(100 * MILLIS).await;
        t.mood.stall.set(false);
        let mut statuses = Vec::new();
        for tag in 1..=2 {
            if tag > 1 {
                new.send(&[flush(tag)]);
            }
            statuses.push(new.completions(1, &[]).await.remove(0).0.status);
        }
        assert_eq!(statuses, [Status::Internal as _, 0]);
        assert_eq!(t.mood.lost.get(), 1);
    });
}

/// Its answer is thrown away by whoever has given it up.
#[test]
fn what_a_flush_is_told_that_its_host_has_given_up_the_next_one_tells() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &Slice::heap(1 << 20));
        let peer = Peer::enter(&p, &t, login(), 4).await.unwrap();
        let guard = peer.volume().await.guard;
        t.mood.stall.set(true);
        t.mood.flush_fails.set(true);
        let flush = Command { guard, ..command(Op::Flush, 1) };
        peer.send(&[(flush, &[], &[])]);
        while t.port.census().requests_busy == 0 {
            sleep(MILLIS).await;
        }
        let integrity = peer.granted.features.has(Features::INTEGRITY);
        peer.say(&Abort { tag: 1, seq: flush.seq }.message(integrity));
        sleep(100 * MILLIS).await;
        t.mood.stall.set(false);
        let first = peer.completions(1, &[]).await.remove(0).0.status;
        let mut statuses = Vec::new();
        for seq in 1..=2 {
            peer.send(&[(Command { seq: flush.seq + seq, ..flush }, &[], &[])]);
            statuses.push(peer.completions(1, &[]).await.remove(0).0.status);
        }
        assert_eq!((first, statuses), (Status::Internal as _, vec![Status::Internal as _, 0]));
        // So it is when that comes after the answer.
        t.mood.flush_fails.set(true);
        let mut statuses = Vec::new();
        for seq in 3..=5 {
            peer.send(&[(Command { seq: flush.seq + seq, ..flush }, &[], &[])]);
            statuses.push(peer.completions(1, &[]).await.remove(0).0.status);
            if seq == 3 {
                peer.say(&Abort { tag: 1, seq: flush.seq + seq }.message(integrity));
                // Commands may overtake what is none.
                sleep(100 * MILLIS).await;
            }
        }
        assert_eq!(statuses, [Status::Internal as _, Status::Internal as _, 0]);
    });
}

/// A mirror goes on without a device that hangs, and reads that are there stay there. Who comes back, as the same session or as another
/// one, does not wait for them.
#[test]
fn a_login_does_not_wait_for_what_was_read() {
    let (usual, serial) = (Features::USUAL, Features::USUAL.or(Features::SERIAL));
    for (session, features) in [(77, usual), (77, serial), (78, usual)] {
        on_reactor(move |p| async move {
            let (t, _) = served(&p);
            let login = LoginRequest { features, ..login() };
            let old = Peer::enter(&p, &t, login, 4).await.unwrap();
            let guard = old.volume().await.guard;
            t.mood.direct.set(false);
            t.mood.delay.set(3 * SECONDS);
            let flags = flag::INLINE_IN;
            let read = Command { guard, len: BLOCK as u32, flags, ..command(Op::Read, 1) };
            old.send(&[(read, &[], &[])]);
            while t.port.census().requests_busy == 0 {
                sleep(MILLIS).await;
            }
            let began = now();
            drop(old);
            t.mood.delay.set(0);
            let login = LoginRequest { session, ..login };
            let new = timeout(SECONDS, Peer::enter(&p, &t, login, 4)).await;
            let new = new.expect("a login waits").expect("it is let in");
            assert_eq!(new.granted.resumed, session == 77);
            new.send(&[(read, &[], &[])]);
            let done = timeout(SECONDS, new.completions(1, &[])).await.expect("a read waits");
            assert_eq!(done[0].0.status, 0);
            // In the same slot, and longer under way than what was there before.
            t.mood.delay.set(4 * SECONDS);
            let flags = flag::INLINE_OUT;
            let write = Command { flags, seq: 2, ..Command { guard, ..command(Op::Write, 1) } };
            let write = Command { len: BLOCK as u32, ..write };
            new.send(&[(write, &[], &[7; BLOCK])]);
            while t.port.census().requests_busy > 1 {
                assert!(now() - began < 4 * SECONDS, "the read has not ended");
                sleep(MILLIS).await;
            }
            new.send(&[(write, &[], &[7; BLOCK])]);
            let early = timeout(SECONDS / 4, new.completions(1, &[])).await;
            assert!(early.is_err(), "a write is told to have ended, and runs yet");
            assert_eq!(new.completions(1, &[]).await[0].0.status, 0);
            assert_eq!(t.mood.writes.get(), 1);
        });
    }
}

//! Two target ports of one node before the same unit, as multipath has them.

use crate::peer::{End, Peer};
use crate::target::{BLOCK, Served, config, medium, serve_ports};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{MILLIS, SECONDS};
use weir_fabric::Provider;
use weir_initiator_srp::{Channel, ChannelConfig, Queue, Session, SessionConfig, Unfinished};
use weir_mem::Slice;
use weir_proto_scsi::Lun;
use weir_proto_scsi::cdb::PrOut;
use weir_proto_scsi::initiator as build;
use weir_proto_scsi::pr::PrType;
use weir_proto_srp::{PortId, RspCode, TaskFunction};
use weir_reactor::{sleep, spawn_task, timeout};
use weir_sim::{Node, World};
use weir_target_core::Secret;
use weir_target_srp::TargetConfig;

/// A target port and what to call it.
type Port = (String, PortId);

/// Two ports on a node.
fn two(node: &Node, medium: &crate::target::Medium) -> (Vec<Served>, [Port; 2]) {
    let second = TargetConfig { port_id: PortId::new(2, 2), relative_port: 2, ..config() };
    let configs = [config(), second];
    let ids = [configs[0].port_id, configs[1].port_id];
    let addrs = [node.addr(5555), node.addr(5556)];
    let [one, two] = configs;
    let served =
        node.enter(|| serve_ports(node.provider(), [(&*addrs[0], one), (&*addrs[1], two)], medium));
    let port = |i: usize| (served[i].addr.clone(), ids[i]);
    let ports = [port(0), port(1)];
    (served, ports)
}

async fn login(provider: Rc<dyn Provider>, port: &Port, host: u64) -> Session {
    let config = SessionConfig::new(&port.0, port.1, PortId::new(host, 1));
    Session::connect(provider, SessionConfig { channels: 1, ..config }).await.unwrap()
}

/// PERSISTENT RESERVE OUT of a type for which only the holder may read and write: CDB and parameters.
fn reservation(action: PrOut, key: u64, action_key: u64) -> (build::Cdb, Slice) {
    let mut list = [0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&action_key.to_be_bytes());
    let cdb = build::pr_out(action, Some(PrType::ExclusiveAccess), list.len() as u32);
    (cdb, Slice::copy_of(&list))
}

async fn reserve_out(q: &Queue, action: PrOut, key: u64, action_key: u64) {
    let (cdb, list) = reservation(action, key, action_key);
    q.execute(Lun::ZERO, &cdb, &[list], &[]).await.unwrap();
}

fn block(byte: u8) -> Slice {
    let b = Slice::heap(BLOCK);
    b.fill(byte);
    b
}

/// A reservation through one port keeps out a host at the other, and that host's end takes nothing from the holder.
#[test]
fn a_reservation_holds_at_both_ports() {
    let w = World::new(1);
    let (t, a, b) = (w.node("target"), w.node("a"), w.node("b"));
    let m = medium(256 << 10);
    let (_served, [first, second]) = two(&t, &m);
    let provider = a.provider();
    let holder = w.run(&a, 60 * SECONDS, async move {
        let s = login(provider, &first, 0xa).await;
        reserve_out(&s.queue(), PrOut::Register, 0, 0xaaaa).await;
        reserve_out(&s.queue(), PrOut::Reserve, 0xaaaa, 0).await;
        s
    });
    let holder = holder.unwrap();
    let provider = b.provider();
    let other = w.run(&b, 60 * SECONDS, async move {
        let s = login(provider, &second, 0xb).await;
        let r = s.queue().write(Lun::ZERO, 0, block(0x66), false).await;
        s.close().await;
        r
    });
    assert!(other.unwrap().is_err(), "a host without a registration wrote");
    w.run_for(SECONDS);
    let again = w.run(&a, 60 * SECONDS, async move {
        holder.queue().write(Lun::ZERO, 0, block(0x77), false).await
    });
    again.unwrap().unwrap();
    assert_eq!(m.lock().unwrap()[0], 0x77);
}

/// A host at each port; that at the first is about to write a block of 0x77s, which the disk does not finish.
fn a_write_under_way(w: &World) -> Scene {
    let (t, a, b) = (w.node("target"), w.node("a"), w.node("b"));
    let medium = medium(256 << 10);
    let (served, [first, second]) = two(&t, &medium);
    let provider = a.provider();
    let writer = w.run(&a, 60 * SECONDS, async move {
        let s = login(provider, &first, 0xa).await;
        reserve_out(&s.queue(), PrOut::Register, 0, 0xaaaa).await;
        s.queue().read(Lun::ZERO, 0, block(0)).await.unwrap();
        s
    });
    let writer = writer.unwrap();
    served[0].mood.stall.set(true);
    let q = a.enter(|| writer.queue());
    a.spawn(async move {
        let _ = q.write(Lun::ZERO, 0, block(0x77), false).await;
        drop(writer);
    });
    w.run_for(SECONDS / 10);
    Scene { served, medium, second, other: b }
}

struct Scene {
    served: Vec<Served>,
    medium: crate::target::Medium,
    /// The second port, and the node of the host that uses it.
    second: Port,
    other: Node,
}

impl Scene {
    /// `f` at the second port must not end before the write has.
    fn ends_after_the_write<F: Future<Output = ()> + 'static>(
        self,
        w: &World,
        f: impl FnOnce(Rc<dyn Provider>, Port) -> F,
    ) {
        let work = f(self.other.provider(), self.second.clone());
        let done = self.other.spawn(work);
        w.run_for(SECONDS);
        assert!(!done.is_finished(), "answered while a write was under way");
        self.served[0].mood.stall.set(false);
        w.run_for(SECONDS);
        assert!(done.is_finished());
        // What had begun may have ended; nothing comes later.
        let then = self.medium.lock().unwrap()[0];
        w.run_for(60 * SECONDS);
        assert_eq!(self.medium.lock().unwrap()[0], then);
    }
}

#[test]
fn a_reset_through_one_port_waits_for_io_of_the_other() {
    let w = World::new(2);
    a_write_under_way(&w).ends_after_the_write(&w, |provider, port| async move {
        let config = weir_initiator_srp::ChannelConfig::new(port.1, PortId::new(0xb, 1));
        let c = weir_initiator_srp::Channel::connect(&*provider, &port.0, config).await.unwrap();
        c.manage(weir_proto_srp::TaskFunction::LunReset, 0).await.unwrap();
        c.disconnect(true);
    });
}

#[test]
fn preempt_and_abort_through_one_port_waits_for_io_of_the_other() {
    let w = World::new(3);
    a_write_under_way(&w).ends_after_the_write(&w, |provider, port| async move {
        let s = login(provider, &port, 0xb).await;
        reserve_out(&s.queue(), PrOut::Register, 0, 0xbbbb).await;
        reserve_out(&s.queue(), PrOut::PreemptAndAbort, 0xbbbb, 0xaaaa).await;
    });
}

/// A channel with one tag for commands, which has registered; a command may take 2 s.
async fn registered(provider: Rc<dyn Provider>, port: &Port) -> Rc<Channel> {
    let config = ChannelConfig::new(port.1, PortId::new(0xb, 1));
    let config = ChannelConfig { depth: 1, command_timeout: 2 * SECONDS, ..config };
    let c = Channel::connect(&*provider, &port.0, config).await.unwrap();
    let (cdb, list) = reservation(PrOut::Register, 0, 0xbbbb);
    // The first commands tell of what has been before.
    while !c.command(0, cdb.as_bytes(), std::slice::from_ref(&list), &[]).await.unwrap().is_good() {
    }
    c
}

/// Ends whatever the first host has under way, which is a write that the disk does not finish.
async fn preempt(c: &Channel) -> Result<bool, Unfinished> {
    let (cdb, list) = reservation(PrOut::PreemptAndAbort, 0xbbbb, 0xaaaa);
    c.command(0, cdb.as_bytes(), &[list], &[]).await.map(|o| o.is_good())
}

#[test]
fn a_preemption_that_was_given_up_ends_no_later_command() {
    let w = World::new(4);
    let scene = a_write_under_way(&w);
    scene.served[1].mood.delay.set(SECONDS);
    let (provider, port) = (scene.other.provider(), scene.second.clone());
    let done = scene.other.spawn(async move {
        let c = registered(provider, &port).await;
        assert_eq!(preempt(&c).await, Err(Unfinished::Aborted));
        // It has the tag of the one before.
        let buf = block(0xee);
        let cdb = build::read(0, 1, false);
        assert!(
            c.command(0, cdb.as_bytes(), &[], std::slice::from_ref(&buf)).await.unwrap().is_good()
        );
        assert_ne!(buf.to_vec()[0], 0xee, "a read has ended before it was done");
        c.disconnect(true);
    });
    w.run_for(2 * SECONDS + 500 * MILLIS);
    assert!(!done.is_finished());
    scene.served[0].mood.stall.set(false);
    w.run_until(10 * SECONDS, || done.is_finished()).unwrap();
}

#[test]
fn nothing_is_heard_of_a_preemption_whose_task_set_was_aborted() {
    let w = World::new(5);
    let scene = a_write_under_way(&w);
    let (provider, port) = (scene.other.provider(), scene.second.clone());
    let end = Rc::new(RefCell::new(None));
    let seen = end.clone();
    scene.other.spawn(async move {
        let c = registered(provider, &port).await;
        let (me, seen) = (c.clone(), seen.clone());
        spawn_task(async move { *seen.borrow_mut() = Some(preempt(&me).await) });
        sleep(100 * MILLIS).await;
        c.manage(TaskFunction::AbortTaskSet, 0).await.unwrap();
        sleep(10 * SECONDS).await;
        c.disconnect(true);
    });
    w.run_for(SECONDS);
    scene.served[0].mood.stall.set(false);
    w.run_for(10 * SECONDS);
    assert_eq!(end.take(), Some(Err(Unfinished::Aborted)));
}

/// A preemption waits for a device that hangs, and is aborted: that is answered at once, and its tag may be used again. A
/// write has it next, and is aborted in its turn: when that is answered, nothing of the write may come any more.
#[test]
fn an_abort_finds_the_command_that_has_the_tag_now() {
    for turned in [false, true] {
        let w = World::new(11);
        let (t, a, b) = (w.node("target"), w.node("a"), w.node("b"));
        let m = medium(256 << 10);
        let (mut served, [first, _]) = two(&t, &m);
        let mood = served[0].mood.clone();
        let provider = a.provider();
        let host = w.run(&a, 60 * SECONDS, async move {
            let s = login(provider, &first, 0xa).await;
            reserve_out(&s.queue(), PrOut::Register, 0, 0xaaaa).await;
            s.queue().read(Lun::ZERO, 0, block(0)).await.unwrap();
            s
        });
        let host = host.unwrap();
        let provider: Rc<dyn Provider> = b.provider();
        let (second, mood2) = (served.pop().unwrap(), mood.clone());
        let out = |peer: &Peer, tag, action, key, other| {
            let (cdb, list) = reservation(action, key, other);
            peer.send(tag, cdb.as_bytes(), Peer::immediate(&list.to_vec()[..24]));
        };
        let peer = w.run(&b, 60 * SECONDS, async move {
            let peer = Peer::enter(&provider, &second, 4).await;
            peer.attention().await;
            out(&peer, 1, PrOut::Register, 0, 0xbbbb);
            assert_eq!(peer.next().await, (1, End::Status(0)));
            if turned {
                // Two at a time: the request structures are in another order from here on.
                mood2.delay.set(10 * MILLIS);
                (2..4).for_each(|tag| peer.write(tag, 8, 1, Peer::immediate(&[1; BLOCK])));
                peer.next().await;
                peer.next().await;
                mood2.delay.set(0);
            }
            (peer, second)
        });
        let (peer, _second) = peer.unwrap();
        mood.stall.set(true);
        let q = a.enter(|| host.queue());
        a.spawn(async move { q.write(Lun::ZERO, 0, block(0x77), false).await });
        w.run_for(SECONDS / 10);
        let aborted = Rc::new(RefCell::new(false));
        let seen = aborted.clone();
        let b2 = b.clone();
        b2.spawn(async move {
            out(&peer, 7, PrOut::PreemptAndAbort, 0xbbbb, 0xaaaa);
            sleep(100 * MILLIS).await;
            peer.manage(8, TaskFunction::AbortTask, 7);
            assert_eq!(peer.next().await, (8, End::Code(RspCode::Complete)));
            peer.write(7, 9, 1, Peer::immediate(&[0x99; BLOCK]));
            sleep(100 * MILLIS).await;
            peer.manage(9, TaskFunction::AbortTask, 7);
            assert_eq!(peer.next().await.0, 9);
            *seen.borrow_mut() = true;
            sleep(60 * SECONDS).await;
        });
        w.run_for(2 * SECONDS);
        let answered = *aborted.borrow();
        let before = m.lock().unwrap()[9 * BLOCK];
        mood.stall.set(false);
        w.run_for(2 * SECONDS);
        let after = m.lock().unwrap()[9 * BLOCK];
        assert!(*aborted.borrow());
        assert!(!answered || before == after, "a write has landed after its abort was answered");
        drop(host);
    }
}

/// A host gets a secret while it is logged in by SRP, which proves nothing: such sessions end (openapi: "Sessions without
/// that proof end"), whoever it is that calls itself so.
#[test]
fn a_secret_that_is_new_ends_what_is_logged_in_by_srp() {
    let w = World::new(10);
    let (t, a) = (w.node("target"), w.node("a"));
    let m = medium(256 << 10);
    let (served, [first, _]) = two(&t, &m);
    let provider = a.provider();
    let (access, medium) = (served[0].access.clone(), m.clone());
    let wrote = w.run(&a, 600 * SECONDS, async move {
        let config = ChannelConfig::new(first.1, PortId::new(0xa, 1));
        let channel = Channel::connect(&*provider, &first.0, config).await.unwrap();
        let write = async |byte| {
            let cdb = build::write(0, 1, false);
            loop {
                match channel.command(0, cdb.as_bytes(), &[block(byte)], &[]).await {
                    Ok(o) if o.is_good() => return true,
                    // Unit attentions.
                    Ok(o) if o.status == 2 && o.sense().get(2).is_some_and(|k| k & 15 == 6) => {}
                    _ => return false,
                }
            }
        };
        assert!(write(1).await);
        let mut map = (*access.map()).clone();
        map.hosts[0].secret = Secret::Known(Arc::from(&b"what only the host knows"[..]));
        access.set(map);
        sleep(30 * SECONDS).await;
        write(2).await
    });
    let now = medium.lock().unwrap()[0];
    assert!(!wrote.unwrap() && now == 1, "a session without proof has written {now}");
}

/// Two hosts are registered with the same key. One of them preempts and aborts that key, which takes its own
/// registration with it. All tasks of those are aborted but the command itself, which is answered.
#[test]
fn one_that_preempts_its_own_key_is_answered() {
    let w = World::new(9);
    let (t, a, b) = (w.node("target"), w.node("a"), w.node("b"));
    let m = medium(256 << 10);
    let (_served, [first, second]) = two(&t, &m);
    let provider = b.provider();
    let other = w.run(&b, 60 * SECONDS, async move {
        let s = login(provider, &second, 0xb).await;
        reserve_out(&s.queue(), PrOut::Register, 0, 0xaaaa).await;
        s
    });
    let _other = other.unwrap();
    let provider = a.provider();
    let answered = w.run(&a, 60 * SECONDS, async move {
        let config = ChannelConfig::new(first.1, PortId::new(0xa, 1));
        let channel = Channel::connect(&*provider, &first.0, config).await.unwrap();
        // The unit attention of a new nexus.
        let _ = channel.command(0, &build::test_unit_ready().padded(), &[], &[]).await;
        let run = async |action, key, action_key| {
            let (cdb, list) = reservation(action, key, action_key);
            let list = [list.sub(0, 24)];
            let command = channel.command(0, cdb.as_padded(), &list, &[]);
            timeout(20 * SECONDS, command).await.map(|o| o.unwrap().status)
        };
        assert_eq!(run(PrOut::Register, 0, 0xaaaa).await, Ok(0));
        run(PrOut::PreemptAndAbort, 0xaaaa, 0xaaaa).await
    });
    assert_eq!(answered.unwrap(), Ok(0), "no answer in 20 s");
}

//! What hosts leave at a port with few requests, beside a device that hangs.

use crate::common::on_reactor;
use crate::hostile::{ends_whole, until};
use crate::peer::{Peer, command, login};
use crate::target::{BLOCK, Served, config, serve};
use std::rc::Rc;
use weir_base::{MILLIS, SECONDS};
use weir_fabric::Provider;
use weir_mem::Slice;
use weir_proto_brp::command::flag;
use weir_proto_brp::{Command, Features, LoginRequest, Op};
use weir_reactor::{sleep, timeout};
use weir_target_brp::TargetConfig;

/// Commands that wait for the only request.
const WAITING: u16 = 4;

/// Sends a read, which hangs in the only request.
async fn stuck_read(t: &Served, peer: &Peer) -> u32 {
    let guard = peer.volume().await.guard;
    t.mood.stall.set(true);
    let read = Command { guard, len: BLOCK as u32, flags: flag::INLINE_IN, ..command(Op::Read, 1) };
    peer.send(&[(read, &[], &[])]);
    until("a read hangs", || t.port.census().requests_busy == 1).await;
    guard
}

/// Sends writes with their data, which wait.
async fn waiting_writes(t: &Served, peer: &Peer, guard: u32) {
    for tag in 2..2 + WAITING {
        let (len, flags) = (BLOCK as u32, flag::INLINE_OUT);
        let write = Command { guard, len, flags, ..command(Op::Write, tag) };
        peer.send(&[(write, &[], &[tag as u8; BLOCK])]);
    }
    until("they wait", || t.port.census().waiting >= usize::from(WAITING)).await;
}

fn served(p: &Rc<dyn Provider>) -> Served {
    let c = TargetConfig { requests: 1, ..config() };
    let t = serve(p.clone(), "127.0.0.1:0", c, &Slice::heap(1 << 20));
    t.mood.direct.set(false);
    t
}

/// It may log in as often as it likes: no more of it waits than what its present connection has brought.
#[test]
fn what_waits_for_a_request_ends_with_its_connection() {
    on_reactor(|p| async move {
        let t = served(&p);
        let mut peer = Peer::enter(&p, &t, login(), 4).await.unwrap();
        let guard = stuck_read(&t, &peer).await;
        for round in 0..5 {
            waiting_writes(&t, &peer, guard).await;
            sleep(10 * MILLIS).await;
            assert_eq!(t.port.census().waiting, usize::from(WAITING), "round {round}");
            drop(peer);
            until("the connection is lost", || t.port.census().credits == 0).await;
            assert_eq!(t.port.census().waiting, 0, "round {round}");
            peer = Peer::enter(&p, &t, login(), 4).await.expect("it is let in");
            assert!(peer.granted.resumed);
        }
        // What this one sends is new, and done.
        waiting_writes(&t, &peer, guard).await;
        t.mood.stall.set(false);
        let done = timeout(SECONDS, peer.completions(usize::from(WAITING), &[])).await;
        assert!(done.expect("they are done").iter().all(|(c, _)| c.status == 0));
        assert_eq!(t.mood.writes.get(), u64::from(WAITING));
        drop(peer);
        ends_whole(&t).await;
    });
}

/// Those of a serial session have a request each, and wait for each other.
#[test]
fn what_waits_for_its_turn_ends_with_its_connection() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &Slice::heap(1 << 20));
        t.mood.direct.set(false);
        let login = LoginRequest { features: Features::USUAL.or(Features::SERIAL), ..login() };
        let peer = Peer::enter(&p, &t, login, 4).await.unwrap();
        assert!(peer.granted.features.has(Features::SERIAL));
        let guard = stuck_read(&t, &peer).await;
        for tag in 2..2 + WAITING {
            peer.send(&[(Command { guard, ..command(Op::Flush, tag) }, &[], &[])]);
        }
        let busy = || t.port.census().requests_busy;
        until("they wait", || busy() == 1 + usize::from(WAITING)).await;
        drop(peer);
        until("the read alone is left", || busy() == 1).await;
        t.mood.stall.set(false);
        ends_whole(&t).await;
    });
}

/// Then the device answers: whoever has the request finds nothing more to do.
#[test]
fn a_port_that_ends_beside_a_read_leaves_nothing_that_waits() {
    on_reactor(|p| async move {
        let t = served(&p);
        let peer = Peer::enter(&p, &t, login(), 4).await.unwrap();
        let guard = stuck_read(&t, &peer).await;
        waiting_writes(&t, &peer, guard).await;
        let left = timeout(20 * SECONDS, t.target.leave_within(100 * MILLIS)).await;
        assert_eq!(left, Ok(false));
        t.mood.stall.set(false);
        let all_free = || t.port.census().data_pool.iter().all(|c| c.free == c.total);
        until("its buffer is back", all_free).await;
        sleep(100 * MILLIS).await;
        assert_eq!((t.mood.writes.get(), t.port.census().waiting), (0, 0));
        drop(peer);
    });
}

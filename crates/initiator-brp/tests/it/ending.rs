//! A channel that is over, and a device that keeps what its host has begun.

use crate::common::on_reactor;
use crate::peer::{Peer, command, login};
use crate::target::{BLOCK, config, serve};
use weir_base::{MILLIS, SECONDS};
use weir_initiator_brp::PortId;
use weir_mem::Slice;
use weir_proto_brp::command::flag;
use weir_proto_brp::{Command, LoginRequest, Op, RejectReason};
use weir_reactor::{sleep, timeout};
use weir_target_brp::TargetConfig;
use weir_target_core::AccessMap;

/// Its host comes again and again: it is told to wait, and takes no place from others by that.
#[test]
fn a_host_that_comes_back_while_its_channel_ends_takes_no_places() {
    on_reactor(|p| async move {
        let c = TargetConfig {
            max_channels: 8,
            session_timeout: 300 * MILLIS,
            drain_timeout: 200 * MILLIS,
            ..config()
        };
        let t = serve(p.clone(), "127.0.0.1:0", c, &Slice::heap(1 << 20));
        t.mood.direct.set(false);
        let old = Peer::enter(&p, &t, login(), 4).await.unwrap();
        let guard = old.volume().await.guard;
        t.mood.stall.set(true);
        let write = Command { guard, flags: flag::INLINE_OUT, ..command(Op::Write, 1) };
        old.send(&[(Command { len: BLOCK as u32, ..write }, &[], &[7; BLOCK])]);
        while t.port.census().requests_busy == 0 {
            sleep(MILLIS).await;
        }
        sleep(50 * MILLIS).await;
        drop(old);
        // By then the port has given its host up.
        sleep(2 * SECONDS).await;
        for n in 0..12 {
            let again = timeout(2 * SECONDS, Peer::enter(&p, &t, login(), 4)).await;
            let answer = again.unwrap_or_else(|_| panic!("login {n} is not answered"));
            assert_eq!(answer.err(), Some(RejectReason::Draining), "login {n}");
        }
        let other = LoginRequest { initiator: PortId([9; 16]), ..login() };
        let other = Peer::enter(&p, &t, other, 4).await;
        drop(other.unwrap_or_else(|why| panic!("another host is kept out: {why:?}")));
        t.mood.stall.set(false);
        // It ends, and its host is let in.
        let again = async {
            loop {
                match Peer::enter(&p, &t, login(), 4).await {
                    Err(RejectReason::Draining) => sleep(MILLIS).await,
                    other => break other,
                }
            }
        };
        drop(timeout(20 * SECONDS, again).await.expect("it ends").expect("there is a place"));
    });
}

/// One that has a connection, and one that waits for its host.
#[test]
fn a_host_that_is_deleted_loses_its_channels() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", config(), &Slice::heap(1 << 20));
        let here = Peer::enter(&p, &t, login(), 4).await.unwrap();
        let gone = Peer::enter(&p, &t, LoginRequest { channel: 1, ..login() }, 4).await.unwrap();
        drop(gone);
        while t.target.local_channels().iter().all(|c| !c.peer.is_empty()) {
            sleep(MILLIS).await;
        }
        t.access.set(AccessMap::default());
        let ends = async {
            while !t.target.sessions().is_empty() {
                sleep(MILLIS).await;
            }
        };
        assert!(timeout(5 * SECONDS, ends).await.is_ok(), "nobody knows it, and it stays");
        assert!(!here.conn.is_open());
        t.port.check_idle().unwrap();
    });
}

//! Hosts that stand still, each on a thread of its own that really does, and others that go on.

use crate::common::{bytes, on_reactor, session_config, slice};
use crate::peer::{Peer, login};
use crate::target::{Served, config, map, serve};
use std::rc::Rc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use weir_base::{MILLIS, SECONDS};
use weir_fabric::Provider;
use weir_fabric_iwarp::{Config, Iwarp};
use weir_initiator_brp::{PortId, Secret, Session, SessionConfig};
use weir_mem::Slice;
use weir_proto_brp::{LoginRequest, RejectReason};
use weir_reactor::{PollMode, Reactor, sleep, spawn, timeout};
use weir_target_brp::TargetConfig;
use weir_target_core::{HostRule, Secret as Asked};
use weir_uring::{Ring, TcpNetwork};

const LARGE: usize = 1 << 20;
/// What a host has under way when it stops.
const MANY: usize = 200;

/// Waits until `done`, or fails.
async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let wait = async {
        while !done() {
            sleep(MILLIS).await;
        }
    };
    assert!(timeout(30 * SECONDS, wait).await.is_ok(), "{what}");
}

/// A host on a thread, which stands still until it is told to go on.
struct Still {
    go_on: Sender<()>,
    ends: JoinHandle<usize>,
}

impl Still {
    /// Begins `n` reads or writes and does nothing more: it receives nothing, and serves no RDMA READ.
    fn begin(t: &Served, host: u8, n: usize, writes: bool) -> Still {
        let c = SessionConfig {
            keep_alive: 120 * SECONDS,
            depth: 512,
            ..SessionConfig::new(&t.addr, PortId([host; 16]))
        };
        let (go_on, told) = channel();
        let ends = std::thread::spawn(move || {
            let ring = Ring::new().unwrap();
            let reactor = Reactor::new(Rc::new(ring.clone()));
            let p = Rc::new(Iwarp::new(&reactor, TcpNetwork::new(&ring), Config::default()));
            reactor.block_on(PollMode::Sleep, async move {
                let s = Session::connect(p, c).await.unwrap();
                let d = Rc::new(s.queue().open("v").await.unwrap());
                let memory = Slice::heap(LARGE);
                let mut all = Vec::new();
                for _ in 0..n {
                    let (d, b) = (d.clone(), memory.clone());
                    all.push(spawn(async move {
                        match writes {
                            true => d.write(0, b, false).await,
                            false => d.read(0, b).await,
                        }
                    }));
                }
                // They leave at the end of the turn.
                sleep(MILLIS).await;
                told.recv().unwrap();
                let mut good = 0;
                for one in all {
                    good += usize::from(one.await.is_some_and(|r| r.is_ok()));
                }
                s.close().await;
                good
            })
        });
        Still { go_on, ends }
    }
}

fn start(p: &Rc<dyn Provider>, requests: usize) -> Served {
    let config = TargetConfig {
        requests,
        credits: 256,
        recv_buffers: 1024,
        keep_alive: 120 * SECONDS,
        ..config()
    };
    let t = serve(p.clone(), "127.0.0.1:0", config, &Slice::heap(16 << 20));
    t.mood.direct.set(false);
    t
}

fn large(t: &Served) -> weir_mem::Census {
    *t.port.census().data_pool.last().unwrap()
}

/// Reads and writes of another host, one after the other and side by side.
async fn works(p: Rc<dyn Provider>, t: &Served) {
    let s = Session::connect(p, session_config(t)).await.unwrap();
    let d = Rc::new(s.queue().open("v").await.unwrap());
    let mut all = Vec::new();
    for i in 0..8 {
        let d = d.clone();
        all.push(spawn(async move {
            let b = Slice::heap(LARGE);
            for round in 0..4 {
                let data = bytes(LARGE, i * 4 + round);
                d.write(LARGE as u64 * (1 + i), slice(&data), false).await.unwrap();
                d.read(LARGE as u64 * (1 + i), b.clone()).await.unwrap();
                assert!(b.to_vec() == data);
            }
        }));
    }
    for one in all {
        timeout(30 * SECONDS, one).await.expect("the other host goes on").unwrap();
    }
    s.close().await;
}

/// Those that stood still go on, and lose nothing.
async fn go_on(t: &Served, hosts: Vec<Still>, n: usize) {
    for h in &hosts {
        h.go_on.send(()).unwrap();
    }
    until("they end", || hosts.iter().all(|h| h.ends.is_finished())).await;
    for h in hosts {
        assert_eq!(h.ends.join().unwrap(), n);
    }
    until("no command is left", || t.port.census().requests_busy == 0).await;
    let pool = t.port.census().data_pool;
    assert!(pool.iter().all(|c| c.free == c.total), "{pool:?}");
}

#[test]
fn a_host_that_stands_still_leaves_buffers_to_others() {
    for writes in [false, true] {
        on_reactor(move |p| async move {
            let t = start(&p, 1024);
            let still = Still::begin(&t, 1, MANY, writes);
            until("it has its share", || large(&t).waiting > 50).await;
            works(p, &t).await;
            go_on(&t, vec![still], MANY).await;
        });
    }
}

/// Every request of the port could be that host's.
#[test]
fn a_host_that_stands_still_leaves_requests_to_others() {
    for writes in [false, true] {
        on_reactor(move |p| async move {
            let t = start(&p, 100);
            let still = Still::begin(&t, 1, MANY, writes);
            until("it has its share", || t.port.census().waiting > 50).await;
            works(p, &t).await;
            go_on(&t, vec![still], MANY).await;
        });
    }
}

/// The first ones get all the credits there are to be had.
#[test]
fn as_many_channels_as_the_port_has_are_let_in() {
    on_reactor(|p| async move {
        const CHANNELS: usize = 64;
        let c = TargetConfig {
            max_channels: CHANNELS,
            credits: 128,
            recv_buffers: 300 + 2 * CHANNELS,
            ..config()
        };
        let t = serve(p.clone(), "127.0.0.1:0", c, &Slice::heap(1 << 20));
        let mut all = Vec::new();
        for i in 0..CHANNELS as u64 {
            let login = LoginRequest { session: i, initiator: PortId([i as u8; 16]), ..login() };
            let peer = Peer::enter(&p, &t, login, 0).await;
            let peer = peer.unwrap_or_else(|r| panic!("login {i}: {r:?}"));
            assert!(peer.granted.credits >= 2, "login {i}: {:?}", peer.granted);
            all.push(peer);
        }
        let one_more = LoginRequest { session: 99, initiator: PortId([99; 16]), ..login() };
        let refused = Peer::enter(&p, &t, one_more, 0).await.err();
        assert_eq!(refused, Some(RejectReason::Resources));
    });
}

/// Neither channels nor credits that others can have are what a login with a secret needs.
#[test]
fn a_host_with_a_secret_is_let_in_beside_others() {
    on_reactor(|p| async move {
        const CHANNELS: usize = 64;
        const KEYED: PortId = PortId([0x77; 16]);
        let secret = b"what only this host and the target know";
        let c = TargetConfig {
            max_channels: CHANNELS,
            credits: 128,
            recv_buffers: 300 + 2 * CHANNELS,
            ..config()
        };
        let t = serve(p.clone(), "127.0.0.1:0", c, &Slice::heap(1 << 20));
        let mut rules = map(&[0, 3]);
        rules.hosts.push(HostRule {
            host: "keyed".into(),
            ports: vec![KEYED.0.to_vec()],
            luns: rules.hosts[0].luns.clone(),
            secret: Asked::Known(secret[..].into()),
            ..HostRule::default()
        });
        t.access.set(rules);
        let mut all = Vec::new();
        let refused = loop {
            let (i, session) = (all.len() as u8, all.len() as u64);
            let login = LoginRequest { session, initiator: PortId([i; 16]), ..login() };
            match Peer::enter(&p, &t, login, 0).await {
                Ok(peer) => all.push(peer),
                Err(reason) => break reason,
            }
        };
        // They are one host's, and the other one is sure of four.
        assert_eq!((all.len(), refused), (CHANNELS - 4, RejectReason::Resources));
        let c = SessionConfig {
            secret: Some(Secret { bytes: secret.to_vec(), seed: [9; 32] }),
            ..SessionConfig::new(&t.addr, KEYED)
        };
        let s = Session::connect(p, c).await.expect("it knows the secret, and there is a place");
        s.close().await;
    });
}

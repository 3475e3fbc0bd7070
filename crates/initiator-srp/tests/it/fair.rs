//! Hosts that stand still, each on a thread of its own that really does, and others that go on.

use crate::common::{L0, on_reactor, session_config};
use crate::peer::Peer;
use crate::target::{Served, config, medium, serve};
use std::rc::Rc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use weir_base::{MILLIS, SECONDS};
use weir_fabric::Provider;
use weir_fabric_iwarp::{Config, Iwarp};
use weir_initiator_srp::{Session, SessionConfig};
use weir_mem::Slice;
use weir_proto_srp::PortId;
use weir_proto_srp::command_builder::BufferSpec;
use weir_reactor::{PollMode, Reactor, sleep, spawn, timeout};
use weir_target_srp::TargetConfig;
use weir_uring::{Ring, TcpNetwork};

const LARGE: usize = 1 << 20;
/// What a host has under way when it stops.
const MANY: usize = 200;

/// Reads and writes of a host that goes on.
const WHOLE: u64 = 8 * 4 * 2;

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
    fn begin(t: &Served, host: u64, n: usize, writes: bool) -> Still {
        let c = SessionConfig::new(&t.addr, t.target.port_id(), PortId::new(host, 1));
        let (go_on, told) = channel();
        let ends = std::thread::spawn(move || {
            let ring = Ring::new().unwrap();
            let reactor = Reactor::new(Rc::new(ring.clone()));
            let p = Rc::new(Iwarp::new(&reactor, TcpNetwork::new(&ring), Config::default()));
            reactor.block_on(PollMode::Sleep, async move {
                let s = Session::connect(p, c).await.unwrap();
                let q = s.queue();
                let memory = Slice::heap(LARGE);
                // Whatever comes with the first command is over.
                q.read(L0, 0, memory.clone()).await.unwrap();
                let mut all = Vec::new();
                for _ in 0..n {
                    let (q, b) = (q.clone(), memory.clone());
                    all.push(spawn(async move {
                        match writes {
                            true => q.write(L0, 0, b, false).await,
                            false => q.read(L0, 0, b).await,
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

/// Room for many commands of a few hosts.
fn roomy() -> TargetConfig {
    let c = TargetConfig { recv_buffers: 2000, requests: 2000, ..config() };
    let policy = weir_proto_srp::TargetPolicy { credits: 256, ..c.policy };
    TargetConfig { policy, ..c }
}

fn large(t: &Served) -> weir_mem::Census {
    *t.port.census().data_pool.last().unwrap()
}

/// Reads and writes of another host, one after the other and side by side. Gives how many I/Os they came to at the disk.
async fn works(p: Rc<dyn Provider>, t: &Served) -> u64 {
    let begun = t.mood.begun.get();
    let s = Session::connect(p, session_config(t)).await.unwrap();
    let mut all = Vec::new();
    for i in 0..8 {
        let q = s.queue();
        all.push(spawn(async move {
            let b = Slice::heap(LARGE);
            for round in 0..4 {
                b.fill(i * 16 + round);
                q.write(L0, LARGE as u64 * (1 + u64::from(i)), b.clone(), false).await.unwrap();
                b.fill(0);
                q.read(L0, LARGE as u64 * (1 + u64::from(i)), b.clone()).await.unwrap();
                assert!(b.to_vec().iter().all(|x| *x == i * 16 + round));
            }
        }));
    }
    for one in all {
        timeout(30 * SECONDS, one).await.expect("the other host goes on").unwrap();
    }
    s.close().await;
    t.mood.begun.get() - begun
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
    until("the channels end", || t.port.census().channels == 0).await;
    t.port.check_idle().unwrap();
    let pool = t.port.census().data_pool;
    assert!(pool.iter().all(|c| c.free == c.total), "{pool:?}");
}

#[test]
fn a_host_that_receives_nothing_leaves_buffers_to_others() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", roomy(), &medium(16 << 20));
        let still = Still::begin(&t, 1, MANY, false);
        until("it has its share", || large(&t).waiting > 50).await;
        assert!(works(p, &t).await < 2 * WHOLE, "each in one piece");
        go_on(&t, vec![still], MANY).await;
    });
}

#[test]
fn a_host_that_serves_no_read_leaves_buffers_to_others() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", roomy(), &medium(16 << 20));
        let still = Still::begin(&t, 1, MANY, true);
        until("it has its share", || large(&t).waiting > 50).await;
        assert!(works(p, &t).await < 2 * WHOLE, "each in one piece");
        go_on(&t, vec![still], MANY).await;
    });
}

/// There are not so many large buffers as hosts that stand still: what others move goes through smaller ones.
#[test]
fn without_any_large_buffer_data_goes_in_smaller_pieces() {
    on_reactor(|p| async move {
        let t = serve(p.clone(), "127.0.0.1:0", roomy(), &medium(16 << 20));
        let still: Vec<_> = (0..6).map(|i| Still::begin(&t, 1 + i, 60, i % 2 == 0)).collect();
        // What sockets still take gives some back.
        let (mut last, mut still_for) = (0, 0);
        until("they have all of them", || {
            let begun = t.mood.begun.get();
            let same = large(&t).free == 0 && begun == last;
            (last, still_for) = (begun, if same { still_for + 1 } else { 0 });
            still_for > 200
        })
        .await;
        assert!(works(p, &t).await > 8 * WHOLE, "in pieces");
        assert_eq!(large(&t).free, 0, "none came back meanwhile");
        go_on(&t, still, 60).await;
    });
}

/// The first ones want all the credits there are.
#[test]
fn as_many_channels_as_the_port_has_are_let_in() {
    on_reactor(|p| async move {
        const CHANNELS: usize = 64;
        let recv_buffers = 300 + 5 * CHANNELS;
        let c = TargetConfig { max_channels: CHANNELS, recv_buffers, ..roomy() };
        let t = serve(p.clone(), "127.0.0.1:0", c, &medium(1 << 20));
        let mut all = Vec::new();
        for round in 0..2 {
            for i in 0..CHANNELS as u64 {
                let peer = Peer::enter_as(&p, &t, PortId::new(100 + i, 1), 0).await;
                let peer = peer.unwrap_or_else(|r| panic!("login {i} of round {round}: {r:?}"));
                assert!(peer.granted.credits >= 4, "login {i}: {:?}", peer.granted);
                all.push(peer);
            }
            assert!(Peer::enter_as(&p, &t, PortId::new(99, 1), 0).await.is_err());
            // As after a crash: what a host has itself, and ends by its login, does not keep it out.
            let again = Peer::enter_instead(&p, &t, PortId::new(100, 1)).await;
            all.push(again.expect("a login in place of its own channel"));
            all.clear();
            until("the channels end", || t.port.census().channels == 0).await;
        }
        t.port.check_idle().unwrap();
    });
}

/// A device keeps what a host has begun, and its host logs in again and again. The places that its channels do not give back are
/// not those of others.
#[test]
fn a_host_whose_device_hangs_leaves_channels_to_others() {
    on_reactor(|p| async move {
        const CHANNELS: usize = 8;
        let c = TargetConfig { max_channels: CHANNELS, ..roomy() };
        let t = serve(p.clone(), "127.0.0.1:0", c, &medium(1 << 20));
        t.mood.stall.set(true);
        // VERIFY of one block: it reads.
        let verify = [0x2F, 0, 0, 0, 0, 0, 0, 0, 1, 0];
        let mut stuck = 0;
        while let Ok(peer) = Peer::enter_as(&p, &t, PortId::new(1, 1), 0).await {
            if stuck == 0 {
                peer.attention().await;
            }
            let begun = t.mood.begun.get();
            peer.send(1, &verify, BufferSpec::None);
            until("it is with the device", || t.mood.begun.get() > begun).await;
            drop(peer);
            stuck += 1;
            sleep(100 * MILLIS).await;
        }
        assert!(stuck > 1, "{stuck} logins");
        for i in 2..4 {
            let other = Peer::enter_as(&p, &t, PortId::new(i, 1), 0).await;
            other.expect("there is a place").attention().await;
        }
        t.mood.stall.set(false);
        until("all has ended", || t.port.census().channels == 0).await;
        Peer::enter_as(&p, &t, PortId::new(1, 1), 0).await.expect("a place").attention().await;
    });
}

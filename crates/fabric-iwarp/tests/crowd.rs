//! A crowd that says nothing before a listener, and somebody else who wants in: against peers that speak TCP by hand.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use weir_base::{MILLIS, SECONDS};
use weir_fabric::{Params, Provider};
use weir_fabric_iwarp::{Config, Iwarp};
use weir_reactor::{PollMode, Reactor, sleep, timeout};
use weir_uring::{Ring, TcpNetwork};

/// Places before the listener, and those who want them.
const MOST: usize = 8;
const CROWD: usize = 100;

fn is_open(s: &TcpStream) -> bool {
    s.set_nonblocking(true).unwrap();
    match (&*s).read(&mut [0; 8]) {
        Ok(n) => n > 0,
        Err(e) => e.kind() == ErrorKind::WouldBlock,
    }
}

/// Two addresses of one machine: one of IPv4 and one of IPv6.
#[test]
fn who_says_nothing_keeps_nobody_of_another_address_out() {
    let ring = Ring::new().unwrap();
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let p = Iwarp::new(
        &reactor,
        TcpNetwork::new(&ring),
        Config { half_open: MOST, ..Config::default() },
    );
    reactor.block_on(PollMode::default(), async move {
        let listener = p.listen("[::]:0").unwrap();
        let port = listener.local_addr().parse::<SocketAddr>().unwrap().port();
        let slow = TcpStream::connect(("::1", port)).unwrap();
        let all: Vec<TcpStream> =
            (0..CROWD).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
        let params = |p: &Iwarp| Params {
            private_data: vec![1],
            recv_queue: p.recv_queue(4, 4096).unwrap(),
            reads_out: 0,
            reads_in: 0,
        };
        let q = p.clone();
        let served = weir_reactor::spawn(async move {
            let incoming = listener.next().await.unwrap();
            assert!(incoming.peer().starts_with("[::1]"), "{}", incoming.peer());
            let c = incoming.accept(&q, params(&q)).await.unwrap();
            (c, listener)
        });
        // A peer that said nothing had five seconds, and the next eight came after it.
        let (c, _) = timeout(4 * SECONDS, p.connect(&format!("[::1]:{port}"), params(&p)))
            .await
            .expect("nobody waits behind the crowd")
            .unwrap();
        let (s, _listener) = served.await.unwrap();
        while all.iter().filter(|s| is_open(s)).count() >= MOST {
            sleep(MILLIS).await;
        }
        assert!(is_open(&slow), "the only other one of its address has its place");
        drop((c, s));
    });
}

/// A queue that does not get empty, since who is sent away comes again, holds up nobody who was let in.
#[test]
fn a_crowd_is_taken_in_by_parts() {
    let ring = Ring::new().unwrap();
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let p =
        Iwarp::new(&reactor, TcpNetwork::new(&ring), Config { half_open: 1, ..Config::default() });
    let listener = reactor.enter(|| p.listen("127.0.0.1:0").unwrap());
    let to = listener.local_addr().parse::<SocketAddr>().unwrap();
    let all: Vec<TcpStream> = (0..CROWD).map(|_| TcpStream::connect(to).unwrap()).collect();
    let sent_away = || all.iter().filter(|s| !is_open(s)).count();
    let mut before = 0;
    while before < CROWD - 1 {
        reactor.turn();
        let now = sent_away();
        assert!(now - before <= 20, "{} at once", now - before);
        before = now;
    }
    drop(listener);
}

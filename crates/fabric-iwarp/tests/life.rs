//! What counts as a sign of life of a peer: against one that speaks TCP by hand, since it is less than a message.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use weir_base::{MILLIS, SECONDS};
use weir_fabric::{Connection, Params, Provider, RecvQueue, Remote};
use weir_fabric_iwarp::{Config, Iwarp};
use weir_mem::Slice;
use weir_reactor::{PollMode, Reactor, Token, sleep, timeout};
use weir_uring::{Ring, TcpNetwork};

/// More than the buffers of both sockets hold.
const MUCH: usize = 64 << 20;

/// Connects to a peer that does `play` after `go`.
fn with_peer<F: Future<Output = ()>>(
    play: impl FnOnce(TcpStream, Receiver<()>) + Send + 'static,
    test: impl FnOnce(Rc<dyn Connection>, Rc<dyn RecvQueue>, Sender<()>) -> F + 'static,
) {
    let ring = Ring::new().unwrap();
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let p = Iwarp::new(&reactor, TcpNetwork::new(&ring), Config::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let (go, gone) = channel();
    let peer = std::thread::spawn(move || {
        let (mut s, _) = listener.accept().unwrap();
        s.read_exact(&mut [0; 24]).unwrap();
        s.write_all(b"MPA ID Rep Frame\x10\x02\x00\x04\x00\x00\x00\x01").unwrap();
        play(s, gone);
    });
    reactor.block_on(PollMode::default(), async move {
        let body = async move {
            let recv_queue = p.recv_queue(4, 4096).unwrap();
            let queue = recv_queue.clone();
            let params = Params { private_data: vec![], recv_queue, reads_out: 0, reads_in: 1 };
            let (c, _) = p.connect(&addr, params).await.unwrap();
            test(c, queue, go).await;
        };
        timeout(120 * SECONDS, body).await.expect("a sign of life");
    });
    peer.join().unwrap();
}

/// Returns when the peer is known to have been there later than at first.
async fn lives(c: &Rc<dyn Connection>, before: u64) {
    while c.last_life() == before {
        sleep(MILLIS).await;
    }
    assert!(c.last_life() > before && c.is_open());
}

#[test]
fn a_part_of_a_message_is_a_sign_of_life() {
    let play = |mut s: TcpStream, go: Receiver<()>| {
        go.recv().unwrap();
        // The head of an FPDU of 60 bytes, of which no more comes.
        s.write_all(&[0, 60, 0x41, 0x43]).unwrap();
        assert!(go.recv().is_err(), "the test has ended");
    };
    with_peer(play, |c, queue, go| async move {
        queue.post(Slice::heap(4096), Token::NONE);
        let before = c.last_life();
        go.send(()).unwrap();
        lives(&c, before).await;
        c.disconnect(true);
    });
}

#[test]
fn a_peer_that_takes_of_much_lives() {
    let play = |mut s: TcpStream, go: Receiver<()>| {
        go.recv().unwrap();
        let mut part = vec![0; 1 << 20];
        while s.read(&mut part).is_ok_and(|n| n > 0) {}
    };
    with_peer(play, |c, _queue, go| async move {
        c.send_slots().wait().await;
        let data = Slice::heap(MUCH);
        c.write(data, Remote { key: 1, addr: 0 }, Token::NONE);
        let before = c.last_life();
        go.send(()).unwrap();
        // It says nothing all the while.
        lives(&c, before).await;
        c.disconnect(true);
    });
}

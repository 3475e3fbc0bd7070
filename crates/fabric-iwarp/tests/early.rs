//! What leaves before the end of a turn is told like everything else: against a peer that speaks TCP by hand, since what
//! counts is when the socket is full and when its bytes come.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use weir_base::{MILLIS, SECONDS};
use weir_fabric::{Access, Params, Provider, Tap};
use weir_fabric_iwarp::{Config, Iwarp};
use weir_mem::Slice;
use weir_reactor::{PollMode, Reactor, Token, sleep, timeout};
use weir_uring::{Ring, SocketOptions, TcpNetwork};

/// More than the buffers of both sockets hold.
const LEN: usize = 290 << 10;
/// Messages after which the tap's owner sends early.
const BATCH: u32 = 32;

fn fpdu(op: u8, qn: u32, msn: u32, body: &[u8]) -> Vec<u8> {
    let mut f = vec![0, 0, 0x41, 0x40 | op, 0, 0, 0, 0];
    for n in [qn, msn, 0] {
        f.extend(n.to_be_bytes());
    }
    f.extend(body);
    let len = (f.len() - 2) as u16;
    f[..2].copy_from_slice(&len.to_be_bytes());
    f.resize(f.len().next_multiple_of(4) + 4, 0);
    f
}

fn read_request(msn: u32, key: u32) -> Vec<u8> {
    let mut b = Vec::new();
    b.extend(7u32.to_be_bytes());
    b.extend(0u64.to_be_bytes());
    b.extend((LEN as u32).to_be_bytes());
    b.extend(key.to_be_bytes());
    b.extend(0u64.to_be_bytes());
    fpdu(1, 1, msn, &b)
}

/// The peer's end of the stream.
struct Peer {
    stream: TcpStream,
    buf: Vec<u8>,
    /// Payload of the present answer that is still to come.
    left: usize,
}

impl Peer {
    /// Takes what comes of the answer, until it is whole or nothing is there for now.
    fn take(&mut self) {
        let mut part = [0; 65536];
        while self.left > 0 {
            match self.stream.read(&mut part) {
                Ok(0) => panic!("closed with {} bytes of the answer to come", self.left),
                Ok(n) => self.buf.extend(&part[..n]),
                Err(e) => {
                    assert!(matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{e}");
                    return;
                }
            }
            while self.buf.len() >= 2 {
                let u = usize::from(u16::from_be_bytes([self.buf[0], self.buf[1]]));
                let whole = (u + 2).next_multiple_of(4) + 4;
                if self.buf.len() < whole {
                    break;
                }
                self.left -= u - 14;
                self.buf.drain(..whole);
            }
        }
    }
}

/// The peer's part. It tells when the answer is on its way and when a turn that begins then may end; `turn` tells that it
/// has begun.
fn play(listener: &TcpListener, key: &Receiver<u32>, turn: &Receiver<()>, tell: &Sender<()>) {
    let (mut s, _) = listener.accept().unwrap();
    let mut h = [0; 24];
    s.read_exact(&mut h).unwrap();
    s.write_all(b"MPA ID Rep Frame\x10\x02\x00\x04\x00\x00\x00\x01").unwrap();
    let key = key.recv().unwrap();
    let mut p = Peer { stream: s, buf: Vec::new(), left: LEN };
    p.stream.write_all(&read_request(1, key)).unwrap();
    // As much as fits has left in one go: the socket is full.
    assert_eq!(p.stream.peek(&mut [0]).unwrap(), 1);
    tell.send(()).unwrap();
    turn.recv().unwrap();
    p.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    p.take();
    assert!(p.left > 0, "too small an answer for this machine's socket buffers");
    let many: Vec<u8> = (1..=BATCH).flat_map(|i| fpdu(3, 0, i, b"tapped")).collect();
    p.stream.write_all(&many).unwrap();
    tell.send(()).unwrap();
    p.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    p.take();
    // The whole answer is here, so the next READ is in good order.
    p.left = LEN;
    p.stream.write_all(&read_request(2, key)).unwrap();
    p.take();
    assert_eq!(p.left, 0);
}

struct Taker;
impl Tap for Taker {
    fn message(&self, _: &[u8]) -> bool {
        true
    }
}

#[test]
fn a_read_that_was_answered_is_no_longer_counted() {
    let ring = Ring::new().unwrap();
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let socket = SocketOptions { buffer: 64 << 10, ..SocketOptions::default() };
    let p = Iwarp::new(&reactor, TcpNetwork::with(&ring, socket), Config::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let ((tell, key), (turn, begun), (told, hear)) = (channel(), channel(), channel());
    let peer = std::thread::spawn(move || play(&listener, &key, &begun, &told));
    reactor.block_on(PollMode::default(), async move {
        let body = async move {
            let recv_queue = p.recv_queue(4, 4096).unwrap();
            recv_queue.post(Slice::heap(4096), Token::NONE);
            let params = Params { private_data: vec![], recv_queue, reads_out: 0, reads_in: 1 };
            let (c, _) = p.connect(&addr, params).await.unwrap();
            assert!(c.set_tap(Some(Rc::new(Taker))));
            let source = Slice::heap(LEN);
            tell.send(c.register(&source, Access::RemoteRead).unwrap().key).unwrap();
            while hear.try_recv().is_err() {
                sleep(MILLIS).await;
            }
            // A long turn of another task.
            turn.send(()).unwrap();
            hear.recv().unwrap();
            while !peer.is_finished() {
                sleep(MILLIS).await;
            }
            let told = peer.join();
            assert!(told.is_ok(), "the peer failed; the connection: {}", c.close_reason());
        };
        timeout(40 * SECONDS, body).await.expect("done in time");
    });
}

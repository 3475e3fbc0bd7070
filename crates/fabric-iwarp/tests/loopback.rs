//! The provider against itself over loopback TCP.

use std::rc::Rc;
use weir_base::{MILLIS, Prng, SECONDS};
use weir_fabric::{
    Access, Connection, FabricError, Params, Provider, RecvQueue, Remote, SendFlags, Tap, status,
};
use weir_fabric_iwarp::{Config, CrcPolicy, Iwarp};
use weir_mem::Slice;
use weir_reactor::{
    Completion, CompletionFuture, PollMode, Reactor, Token, completion, sleep, spawn, timeout,
};
use weir_uring::{Ring, TcpNetwork};

struct Pair {
    a: Rc<dyn Connection>,
    b: Rc<dyn Connection>,
    qa: Rc<dyn RecvQueue>,
    qb: Rc<dyn RecvQueue>,
}

fn params(provider: &Iwarp, data: &[u8]) -> Params {
    let recv_queue = provider.recv_queue(64, 1 << 20).unwrap();
    Params { private_data: data.to_vec(), recv_queue, reads_out: 4, reads_in: 4 }
}

async fn pair(p: &Iwarp) -> Pair {
    let listener = p.listen("127.0.0.1:0").unwrap();
    let addr = listener.local_addr();
    let (pa, pb) = (params(p, b"hello"), params(p, b"welcome"));
    let (qa, qb) = (pa.recv_queue.clone(), pb.recv_queue.clone());
    let p2 = p.clone();
    let accept = spawn(async move {
        let incoming = listener.next().await.unwrap();
        assert_eq!(incoming.private_data(), b"hello");
        incoming.accept(&p2, pb).await.unwrap()
    });
    let (a, data) = p.connect(&addr, pa).await.unwrap();
    assert_eq!(data, b"welcome");
    let b = accept.await.unwrap();
    Pair { a, b, qa, qb }
}

fn with_provider<F: Future<Output = ()> + 'static>(config: Config, f: impl FnOnce(Iwarp) -> F) {
    let ring = Ring::new().unwrap();
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let p = Iwarp::new(&reactor, TcpNetwork::new(&ring), config);
    let body = f(p.clone());
    reactor.block_on(PollMode::default(), async move {
        timeout(30 * SECONDS, body).await.expect("done in time");
    });
}

fn recv(q: &Rc<dyn RecvQueue>, len: usize) -> (Slice, CompletionFuture) {
    let (token, done) = completion();
    let buf = Slice::heap(len);
    q.post(buf.clone(), token);
    (buf, done)
}

async fn op(f: impl FnOnce(Token)) -> Completion {
    let (token, done) = completion();
    f(token);
    done.await
}

fn pattern(len: usize, seed: u64) -> Slice {
    let mut v = vec![0; len];
    Prng::new(seed).fill(&mut v);
    Slice::copy_of(&v)
}

async fn write(c: &Rc<dyn Connection>, s: Slice, r: Remote) -> Completion {
    c.send_slots().wait().await;
    op(|t| c.write(s, r, t)).await
}

async fn read(c: &Rc<dyn Connection>, s: Slice, r: Remote) -> Completion {
    c.send_slots().wait().await;
    c.read_slots().wait().await;
    op(|t| c.read(s, r, t)).await
}

async fn send(c: &Rc<dyn Connection>, head: &[u8], data: Option<Slice>, flags: SendFlags) {
    c.send_slots().wait().await;
    c.send(head, data, flags, Token::NONE);
}

async fn all_operations(p: Iwarp) {
    let l = pair(&p).await;
    // SEND both ways, with and without payload, also of no bytes.
    let (buf, done) = recv(&l.qb, 16384);
    send(&l.a, b"first", None, SendFlags::default()).await;
    let c = done.await;
    assert_eq!((c.len, c.source, &buf.to_vec()[..5]), (5, l.b.qp(), &b"first"[..]));
    let (buf, done) = recv(&l.qa, 16384);
    let data = pattern(9000, 1);
    send(&l.b, b"head", Some(data.clone()), SendFlags { solicited: true, invalidate: None }).await;
    assert_eq!(done.await.len, 9004);
    assert_eq!(buf.to_vec()[4..9004], data.to_vec());
    let (_, done) = recv(&l.qa, 16384);
    send(&l.b, b"", None, SendFlags::default()).await;
    assert_eq!(done.await.len, 0);

    // WRITE then SEND: the data is there when the message is.
    for (i, len) in [1, 3, 4, 512, 4096, 65536, 1 << 20, 3 << 20].into_iter().enumerate() {
        let target = Slice::heap(len);
        let remote = l.a.register(&target, Access::RemoteWrite).unwrap();
        let data = pattern(len, i as u64);
        let (_, done) = recv(&l.qa, 64);
        l.b.send_slots().wait_n(2).await;
        l.b.write(data.clone(), remote, Token::NONE);
        l.b.send(b"written", None, SendFlags::default(), Token::NONE);
        done.await;
        assert!(target.to_vec() == data.to_vec(), "{len} bytes written");
        l.a.deregister(remote.key);
    }

    // READs, several at once, and of a part of what is registered.
    let source = pattern(1 << 20, 99);
    let remote = l.a.register(&source, Access::RemoteRead).unwrap();
    let mut parts = Vec::new();
    for i in 0..16u64 {
        let sink = Slice::heap(65536);
        let b = l.b.clone();
        let r = Remote { key: remote.key, addr: remote.addr + i * 65536 };
        let s = sink.clone();
        parts.push((spawn(async move { read(&b, s, r).await }), sink, i as usize));
    }
    for (join, sink, i) in parts {
        assert!(join.await.unwrap().is_ok());
        assert!(sink.to_vec() == source.sub(i * 65536, 65536).to_vec(), "part {i}");
    }

    // SEND with invalidate ends the registration at the receiver.
    let (_, done) = recv(&l.qa, 64);
    let flags = SendFlags { solicited: false, invalidate: Some(remote.key) };
    send(&l.b, b"done", None, flags).await;
    assert_eq!(done.await.extra, remote.key);
    let c = read(&l.b, Slice::heap(512), remote).await;
    assert_eq!(c.result, status::FLUSHED, "the key is dead, and so is the stream");
    let (t, closed) = completion();
    l.a.on_closed(t);
    closed.await;
    assert!(l.a.close_reason().contains("STag"), "{}", l.a.close_reason());
    assert_eq!(l.b.send_slots().count(), Config::default().send_queue);
    assert_eq!(l.b.read_slots().count(), 4);
}

#[test]
fn all_operations_without_crc() {
    with_provider(Config::default(), all_operations);
}

#[test]
fn all_operations_with_crc_and_small_segments() {
    let crc = CrcPolicy::Require;
    with_provider(Config { crc, fpdu_payload: 4096, ..Config::default() }, all_operations);
}

#[test]
fn wrong_keys_ranges_and_rights_end_the_connection_only() {
    with_provider(Config::default(), |p| async move {
        let target = Slice::heap(8192);
        for case in 0..4 {
            let l = pair(&p).await;
            let writable = l.a.register(&target.sub(0, 4096), Access::RemoteWrite).unwrap();
            let readable = l.a.register(&target.sub(0, 4096), Access::RemoteRead).unwrap();
            let r = match case {
                0 => Remote { key: writable.key ^ 0x10, addr: writable.addr },
                1 => Remote { key: writable.key, addr: writable.addr + 1 },
                2 => readable,
                _ => Remote { key: writable.key, addr: u64::MAX - 100 },
            };
            write(&l.b, pattern(4096, 5), r).await;
            let (t, closed) = completion();
            l.b.on_closed(t);
            closed.await;
            assert!(!l.a.is_open() && !l.b.is_open());
            assert!(l.b.close_reason().contains("ended the stream"), "{}", l.b.close_reason());
        }
        assert_eq!(target.to_vec(), vec![0; 8192], "nothing was written");
        assert_eq!(p.connections(), 0);
    });
}

/// Takes messages that begin with a `t`, and answers them on the spot.
struct Taker {
    to: std::rc::Weak<dyn Connection>,
    taken: std::cell::RefCell<Vec<Vec<u8>>>,
}

impl Tap for Taker {
    fn message(&self, bytes: &[u8]) -> bool {
        if bytes.first() != Some(&b't') {
            return false;
        }
        self.taken.borrow_mut().push(bytes.to_vec());
        let to = self.to.upgrade().unwrap();
        assert!(to.send_slots().try_wait());
        to.send(b"taken", None, SendFlags::default(), Token::NONE);
        true
    }
}

async fn taps(p: Iwarp) {
    let l = pair(&p).await;
    let taken = std::cell::RefCell::default();
    let tap = Rc::new(Taker { to: Rc::downgrade(&l.b), taken });
    assert!(l.b.set_tap(Some(tap.clone())));
    // Without a posted receive even a tapped message waits.
    send(&l.a, b"t1", None, SendFlags::default()).await;
    sleep(5 * MILLIS).await;
    assert!(tap.taken.borrow().is_empty());
    let (buf, first) = recv(&l.qb, 16384);
    let (answer, answered) = recv(&l.qa, 64);
    assert_eq!(first.await.len, 2, "a message that has waited goes to its receive");
    assert_eq!(buf.to_vec()[..2], *b"t1");
    // With one, it is taken, and the receive stays for the next that is not.
    let (buf, second) = recv(&l.qb, 16384);
    send(&l.a, b"t2", Some(pattern(5000, 3)), SendFlags::default()).await;
    assert_eq!(answered.await.len, 5);
    assert_eq!(answer.to_vec()[..5], *b"taken");
    assert_eq!(tap.taken.borrow()[0].len(), 5002);
    assert_eq!(tap.taken.borrow()[0][2..], pattern(5000, 3).to_vec()[..]);
    send(&l.a, b"other", None, SendFlags::default()).await;
    assert_eq!(second.await.len, 5);
    assert_eq!(buf.to_vec()[..5], *b"other");
    // Longer than one FPDU: not whole at once, so not for the tap.
    let (buf, third) = recv(&l.qb, 1 << 20);
    send(&l.a, b"t3", Some(pattern(200_000, 4)), SendFlags::default()).await;
    assert_eq!(third.await.len, 200_002);
    assert_eq!(buf.to_vec()[2..200_002], pattern(200_000, 4).to_vec()[..]);
    l.b.set_tap(None);
    let (_, fourth) = recv(&l.qb, 16384);
    send(&l.a, b"t4", None, SendFlags::default()).await;
    assert_eq!(fourth.await.len, 2);
    assert_eq!(tap.taken.borrow().len(), 1);
}

#[test]
fn a_tap_takes_whole_messages_where_they_lie() {
    with_provider(Config::default(), taps);
    with_provider(Config { crc: CrcPolicy::Require, ..Config::default() }, taps);
}

#[test]
fn one_message_from_several_places() {
    with_provider(Config::default(), |p| async move {
        let pair = pair(&p).await;
        let sizes = [0, 1, 256, 257, 4096, 9000];
        let parts: Vec<Slice> =
            sizes.iter().map(|n| pattern(n + 1, *n as u64).sub(1, *n)).collect();
        let (buf, done) = recv(&pair.qb, 61440);
        pair.a.send_slots().wait().await;
        let mut data = parts.clone();
        assert!(pair.a.send_gathered(b"head", &mut data, SendFlags::default(), Token::NONE));
        assert!(data.is_empty());
        let n = done.await.len as usize;
        let whole: Vec<u8> =
            b"head".iter().copied().chain(parts.iter().flat_map(|p| p.to_vec())).collect();
        assert!(buf.sub(0, n).to_vec() == whole);
        // Longer than one FPDU: nothing is done.
        let mut long = vec![Slice::heap(40000), Slice::heap(40000)];
        assert!(!pair.a.send_gathered(b"head", &mut long, SendFlags::default(), Token::NONE));
        assert_eq!(long.len(), 2);
        // What follows is in order.
        let (buf, done) = recv(&pair.qb, 64);
        send(&pair.a, b"after", None, SendFlags::default()).await;
        let n = done.await.len as usize;
        assert_eq!(buf.sub(0, n).to_vec(), b"after");
    });
}

#[test]
fn messages_wait_for_a_receive() {
    with_provider(Config::default(), |p| async move {
        let l = pair(&p).await;
        for i in 0..20u8 {
            send(&l.a, &[i; 100], Some(pattern(3000, 3)), SendFlags::default()).await;
        }
        sleep(5 * MILLIS).await;
        for i in 0..20u8 {
            let (buf, done) = recv(&l.qb, 8192);
            assert_eq!(done.await.len, 3100);
            assert_eq!(buf.to_vec()[0], i);
            assert_eq!(buf.to_vec()[100..3100], pattern(3000, 3).to_vec());
        }
    });
}

#[test]
fn a_message_longer_than_its_receive_ends_the_connection() {
    with_provider(Config::default(), |p| async move {
        let l = pair(&p).await;
        let (_, done) = recv(&l.qb, 64);
        send(&l.a, &[1; 65], None, SendFlags::default()).await;
        let (t, closed) = completion();
        l.a.on_closed(t);
        closed.await;
        assert_eq!(l.qb.posted(), 1, "the receive is free again");
        drop(done);
    });
}

/// The message is there before its receive is.
#[test]
fn a_message_that_has_waited_and_is_longer_than_its_receive_ends_the_connection() {
    with_provider(Config::default(), |p| async move {
        let l = pair(&p).await;
        let (_, first) = recv(&l.qb, 64);
        // Both leave at once, so that the second has come when the first is told.
        l.a.send_slots().wait_n(2).await;
        l.a.send(b"first", None, SendFlags::default(), Token::NONE);
        l.a.send(&[1; 65], None, SendFlags::default(), Token::NONE);
        assert_eq!(first.await.len, 5);
        let (_, done) = recv(&l.qb, 64);
        for c in [&l.b, &l.a] {
            let (t, closed) = completion();
            c.on_closed(t);
            closed.await;
        }
        assert!(l.a.close_reason().contains("ended the stream"), "{}", l.a.close_reason());
        assert_eq!(l.qb.posted(), 1, "the receive is free again");
        drop(done);
    });
}

#[test]
fn an_orderly_close_delivers_what_was_queued() {
    with_provider(Config::default(), |p| async move {
        let l = pair(&p).await;
        let target = Slice::heap(4 << 20);
        let remote = l.b.register(&target, Access::RemoteWrite).unwrap();
        let (_, done) = recv(&l.qb, 64);
        let data = pattern(4 << 20, 8);
        l.a.send_slots().wait_n(2).await;
        l.a.write(data.clone(), remote, Token::NONE);
        l.a.send(b"bye", None, SendFlags::default(), Token::NONE);
        l.a.disconnect(false);
        let c = op(|t| l.a.send(b"late", None, SendFlags::default(), t));
        assert_eq!(c.await.result, status::FLUSHED);
        assert_eq!(done.await.len, 3);
        assert!(target.to_vec() == data.to_vec());
        for c in [&l.a, &l.b] {
            let (t, closed) = completion();
            c.on_closed(t);
            closed.await;
        }
    });
}

#[test]
fn a_flush_ends_when_the_peer_has_what_was_sent() {
    const MESSAGES: usize = 40;
    with_provider(Config::default(), |p| async move {
        let l = pair(&p).await;
        l.a.send_slots().wait().await;
        assert!(op(|t| l.a.flush(t)).await.is_ok(), "nothing was sent");
        // More than all buffers on the way hold, and no receive for it.
        let data = pattern(1 << 20, 3);
        for _ in 0..MESSAGES {
            l.a.send_slots().wait().await;
            l.a.send(b"", Some(data.clone()), SendFlags::default(), Token::NONE);
        }
        l.a.send_slots().wait().await;
        let (token, flushed) = completion();
        l.a.flush(token);
        let flushed = spawn(flushed);
        for n in 0..MESSAGES {
            let (_, done) = recv(&l.qb, 1 << 20);
            assert_eq!(done.await.len, 1 << 20);
            // What is left is more than the buffers hold.
            assert!(n > MESSAGES / 2 || !flushed.is_finished(), "after {n} messages");
        }
        assert!(flushed.await.is_some_and(|c| c.is_ok()));
    });
}

#[test]
fn refusals_reach_the_other_side() {
    with_provider(Config::default(), |p| async move {
        let listener = p.listen("127.0.0.1:0").unwrap();
        let addr = listener.local_addr();
        spawn(async move {
            let i = listener.next().await.unwrap();
            i.reject(b"no such target");
            // Bytes that are no MPA frame never become an incoming connection.
            let _ = listener.next().await;
        });
        let r = p.connect(&addr, params(&p, b"x")).await;
        assert_eq!(r.err(), Some(FabricError::Rejected(b"no such target".to_vec())));
        let mut garbage = std::net::TcpStream::connect(&addr).unwrap();
        std::io::Write::write_all(&mut garbage, b"GET / HTTP/1.0\r\n\r\n123456789").unwrap();
        garbage.set_nonblocking(true).unwrap();
        let mut byte = [0];
        loop {
            match std::io::Read::read(&mut garbage, &mut byte) {
                Ok(0) => break,
                Err(e) if e.kind() != std::io::ErrorKind::WouldBlock => break,
                _ => sleep(MILLIS).await,
            }
        }
        let r = p.connect("127.0.0.1:1", params(&p, b"x")).await;
        assert!(matches!(r.err(), Some(FabricError::Unreachable(_))));
        let r = p.connect("nonsense", params(&p, b"x")).await;
        assert!(matches!(r.err(), Some(FabricError::Address(..))));
    });
}

//! The provider against itself through real RDMA devices; runs where there are some, e.g. in the kernel lab:
//!
//! `verbs_loopback IP [auto|direct|copied|unshared]`
//!
//! Prints one line per check and at last `N passed, N failed`; the exit status is 0 when none failed.

use std::cell::Cell;
use std::future::Future;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::mpsc;
use weir_base::{MILLIS, Prng, SECONDS};
use weir_fabric::{
    Access, Connection, FabricError, Incoming, Listener, Params, Provider, RecvQueue, Remote,
    SendFlags, status,
};
use weir_fabric_verbs::{Config, Library, Receive, Verbs, load};
use weir_mem::{Arena, BufPool, PoolConfig, Slice};
use weir_reactor::{
    Completion, CompletionFuture, PollMode, Reactor, Token, clock, completion, send_to, sleep,
    spawn, timeout,
};
use weir_uring::Ring;

/// What every check gets.
#[derive(Clone)]
struct Site {
    p: Verbs,
    reactor: Reactor,
    lib: Library,
    ip: String,
    receive: Receive,
    copied: bool,
    iwarp: bool,
}

struct Pair {
    a: Rc<dyn Connection>,
    b: Rc<dyn Connection>,
    qa: Rc<dyn RecvQueue>,
    qb: Rc<dyn RecvQueue>,
}

fn params(p: &Verbs, data: &[u8]) -> Params {
    let recv_queue = p.recv_queue(64, 16384).unwrap();
    Params { private_data: data.to_vec(), recv_queue, reads_out: 4, reads_in: 4 }
}

impl Site {
    fn listen(&self) -> Rc<dyn Listener> {
        self.p.listen(&format!("{}:0", self.ip)).unwrap()
    }

    async fn pair(&self) -> Pair {
        let listener = self.listen();
        let addr = listener.local_addr();
        let (pa, pb) = (params(&self.p, b"hello"), params(&self.p, b"welcome"));
        let (qa, qb) = (pa.recv_queue.clone(), pb.recv_queue.clone());
        let p2 = self.p.clone();
        let accept = spawn(async move {
            let incoming = listener.next().await.unwrap();
            assert_eq!(&incoming.private_data()[..5], b"hello");
            incoming.accept(&p2, pb).await.unwrap()
        });
        let (a, data) = self.p.connect(&addr, pa).await.unwrap();
        assert_eq!(&data[..7], b"welcome");
        let b = accept.await.unwrap();
        Pair { a, b, qa, qb }
    }
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
    Slice::copy_of(&v).sub(0, len)
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

async fn closed(c: &Rc<dyn Connection>) {
    op(|t| c.on_closed(t)).await;
}

async fn end(l: &Pair) {
    l.a.disconnect(false);
    closed(&l.a).await;
    closed(&l.b).await;
}

async fn all_operations(s: Site) {
    let l = s.pair().await;
    // SEND both ways: inline, copied, with payload, and of no bytes.
    let (buf, done) = recv(&l.qb, 16384);
    send(&l.a, b"first", None, SendFlags::default()).await;
    let c = done.await;
    assert_eq!((c.len, c.source, &buf.to_vec()[..5]), (5, l.b.qp(), &b"first"[..]));
    for (head, body) in [(4, 9000), (300, 0), (2000, 100), (40, 60), (0, 8192), (16000, 384)] {
        let (buf, done) = recv(&l.qa, 16384);
        let (h, d) = (pattern(head, 1).to_vec(), pattern(body, 2));
        let flags = SendFlags { solicited: true, invalidate: None };
        send(&l.b, &h, (body > 0).then(|| d.clone()), flags).await;
        let c = done.await;
        assert_eq!((c.len as usize, c.source), (head + body, l.a.qp()));
        assert!(buf.to_vec()[..head] == h && buf.to_vec()[head..head + body] == d.to_vec());
    }
    let (_, done) = recv(&l.qa, 16384);
    send(&l.b, b"", None, SendFlags::default()).await;
    assert_eq!(done.await.len, 0);

    // WRITE then SEND: the data is there when the message is.
    for (i, len) in [1, 3, 4, 512, 4096, 65536, 1 << 20, 3 << 20].into_iter().enumerate() {
        let target = Slice::heap(len).sub(0, len);
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

    // READs, several at once, of parts of what is registered; small, large and empty ones.
    let source = pattern(1 << 20, 99);
    let remote = l.a.register(&source, Access::RemoteRead).unwrap();
    for len in [65536, 512, 1, 200 << 10] {
        let mut parts = Vec::new();
        for i in 0..5usize {
            let sink = Slice::heap(len).sub(0, len);
            let b = l.b.clone();
            let r = Remote { key: remote.key, addr: remote.addr + (i * len) as u64 };
            let s = sink.clone();
            parts.push((spawn(async move { read(&b, s, r).await }), sink, i));
        }
        for (join, sink, i) in parts {
            assert!(join.await.unwrap().is_ok());
            assert!(sink.to_vec() == source.sub(i * len, len).to_vec(), "part {i} of {len}");
        }
    }
    assert!(read(&l.b, Slice::heap(1).sub(0, 0), remote).await.is_ok());
    l.a.deregister(remote.key);
    end(&l).await;
    assert_eq!(l.b.send_slots().count(), Config::default().send_queue);
    assert_eq!(l.b.read_slots().count(), 4);
    assert_eq!(l.a.send_slots().count(), Config::default().send_queue);
}

async fn wrong_keys_ranges_and_rights(s: Site) {
    let target = Slice::heap(8192);
    for case in 0..4 {
        let l = s.pair().await;
        let writable = l.a.register(&target.sub(0, 4096), Access::RemoteWrite).unwrap();
        let readable = l.a.register(&target.sub(0, 4096), Access::RemoteRead).unwrap();
        let r = match case {
            0 => Remote { key: writable.key ^ 0x10_0000, addr: writable.addr },
            1 => Remote { key: writable.key, addr: writable.addr + 1 },
            2 => readable,
            _ => Remote { key: writable.key, addr: u64::MAX - 100 },
        };
        let c = write(&l.b, pattern(4096, 5), r).await;
        assert!(s.iwarp || c.result == status::REMOTE_ACCESS, "case {case}: {c:?}");
        closed(&l.b).await;
        closed(&l.a).await;
        assert!(!l.a.is_open() && !l.b.is_open());
        assert_ne!(l.b.close_reason(), "");
    }
    assert_eq!(target.to_vec(), vec![0; 8192], "nothing was written");
    assert_eq!(s.p.connections(), 0);
}

async fn a_dead_key_is_dead(s: Site) {
    let l = s.pair().await;
    let source = pattern(4096, 3);
    let remote = l.a.register(&source, Access::RemoteRead).unwrap();
    assert!(read(&l.b, Slice::heap(4096), remote).await.is_ok());
    l.a.deregister(remote.key);
    let c = read(&l.b, Slice::heap(4096), remote).await;
    assert!(!c.is_ok());
    closed(&l.a).await;
    closed(&l.b).await;
}

async fn messages_wait_for_a_receive(s: Site) {
    let l = s.pair().await;
    // iWARP has no way to make a sender wait, unless the provider has buffers of its own.
    let early = if s.iwarp && !s.copied { 0 } else { 20u8 };
    for i in 0..early {
        send(&l.a, &[i; 100], Some(pattern(3000, 3)), SendFlags::default()).await;
    }
    sleep(5 * MILLIS).await;
    for i in 0..early {
        let (buf, done) = recv(&l.qb, 8192);
        assert_eq!(done.await.len, 3100);
        assert_eq!(buf.to_vec()[0], i);
        assert_eq!(buf.to_vec()[100..3100], pattern(3000, 3).to_vec());
    }
    end(&l).await;
}

async fn a_message_longer_than_its_receive(s: Site) {
    let l = s.pair().await;
    let (_, done) = recv(&l.qb, 64);
    send(&l.a, &[1; 65], None, SendFlags::default()).await;
    closed(&l.a).await;
    closed(&l.b).await;
    assert_eq!(l.qb.posted(), 1, "the receive is free again");
    drop(done);
}

async fn an_orderly_close_delivers_what_was_queued(s: Site) {
    for _ in 0..5 {
        let l = s.pair().await;
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
        closed(&l.a).await;
        closed(&l.b).await;
    }
}

async fn refusals_reach_the_other_side(s: Site) {
    let listener = s.listen();
    let addr = listener.local_addr();
    let refuse = spawn(async move {
        listener.next().await.unwrap().reject(b"no such target");
        // Dropped without a word.
        drop(listener.next().await.unwrap());
    });
    let r = s.p.connect(&addr, params(&s.p, b"x")).await;
    match r.err() {
        Some(FabricError::Rejected(d)) => assert_eq!(&d[..14], b"no such target"),
        e => panic!("{e:?}"),
    }
    let r = s.p.connect(&addr, params(&s.p, b"x")).await;
    assert!(r.is_err());
    refuse.await;
    let r = s.p.connect(&addr, params(&s.p, b"x")).await;
    assert!(matches!(r.as_ref().err(), Some(FabricError::Unreachable(_))), "{:?}", r.err());
    let r = s.p.connect("192.0.2.1:1", params(&s.p, b"x")).await;
    assert!(matches!(r.err(), Some(FabricError::Unreachable(_))));
    let r = s.p.connect("nonsense", params(&s.p, b"x")).await;
    assert!(matches!(r.err(), Some(FabricError::Address(..))));
    assert!(matches!(s.p.listen("192.0.2.1:5555").err(), Some(FabricError::Address(..))));
    // What was made for an attempt goes without waiting for anything.
    sleep(20 * MILLIS).await;
    assert_eq!(s.p.connections(), 0);
}

/// A peer that sends the moment it is connected, while the accepting side's task is slow.
async fn early_messages_come_after_the_connection(s: Site) {
    let listener = s.listen();
    let addr = listener.local_addr();
    for _ in 0..20 {
        let pb = params(&s.p, b"welcome");
        let known = Rc::new(Cell::new(0));
        let receivers: Vec<_> = (0..4)
            .map(|_| {
                let (_, done) = recv(&pb.recv_queue, 64);
                let known = known.clone();
                spawn(async move {
                    let c = done.await;
                    assert_eq!(
                        c.source,
                        known.get(),
                        "the connection is known before its messages"
                    );
                })
            })
            .collect();
        let (p2, l2, k2) = (s.p.clone(), listener.clone(), known.clone());
        let accept = spawn(async move {
            let b = l2.next().await.unwrap().accept(&p2, pb).await.unwrap();
            k2.set(b.qp());
            b
        });
        let (a, _) = s.p.connect(&addr, params(&s.p, b"x")).await.unwrap();
        a.send_slots().wait_n(4).await;
        for _ in 0..4 {
            a.send(b"early", None, SendFlags::default(), Token::NONE);
        }
        let b = accept.await.unwrap();
        for r in receivers {
            r.await.unwrap();
        }
        a.disconnect(true);
        closed(&a).await;
        closed(&b).await;
    }
}

/// Pool memory in place, other memory by copy or by registration, more of it than the staging pool has.
async fn memory_of_every_kind(s: Site) {
    let pool = BufPool::new(&PoolConfig { classes: vec![(4096, 64), (1 << 20, 8)] }).unwrap();
    let (base, len) = pool.region();
    s.p.register_region(base, len).unwrap();
    let l = s.pair().await;
    // A volume in RAM, of which slices are made as SCSI commands would.
    let volume = Rc::new(Arena::new(8 << 20).unwrap());
    let part = |at: usize, len: usize| {
        // SAFETY: inside the arena, which the slice holds; nobody has a reference to its bytes.
        unsafe {
            let p = NonNull::new_unchecked(volume.base().as_ptr().add(at));
            Slice::from_raw(p, len as u32, volume.clone())
        }
    };
    for i in 0..8 {
        part(i << 20, 1 << 20).copy_from(0, &pattern(1 << 20, i as u64), 0, 1 << 20);
    }
    let far = Slice::heap(8 << 20);
    let w = l.a.register(&far, Access::RemoteWrite).unwrap();
    let mut all = Vec::new();
    for i in 0..512usize {
        let (b, at) = (l.b.clone(), i * 16384);
        let r = Remote { key: w.key, addr: w.addr + at as u64 };
        let s = part(at, 16384);
        all.push(spawn(async move { write(&b, s, r).await }));
    }
    for j in all {
        assert!(j.await.unwrap().is_ok());
    }
    assert!(far.to_vec() == part(0, 8 << 20).to_vec());
    // Whole megabytes, by registration; then through pool buffers, in place.
    far.fill(0);
    for i in 0..8usize {
        let r = Remote { key: w.key, addr: w.addr + (i << 20) as u64 };
        assert!(write(&l.b, part(i << 20, 1 << 20), r).await.is_ok());
    }
    assert!(far.to_vec() == part(0, 8 << 20).to_vec());
    l.a.deregister(w.key);
    let r = l.a.register(&far, Access::RemoteRead).unwrap();
    for i in 0..8usize {
        let buf = pool.alloc(1 << 20).await;
        let at = Remote { key: r.key, addr: r.addr + (i << 20) as u64 };
        assert!(read(&l.b, buf.clone(), at).await.is_ok());
        assert!(buf.to_vec() == part(i << 20, 1 << 20).to_vec());
    }
    // Into the volume itself, small and large.
    part(0, 8 << 20).fill(0);
    for (at, len) in [(0, 512), (512, 65024), (65536, 1 << 20), (65536 + (1 << 20), 65536)] {
        let from = Remote { key: r.key, addr: r.addr + at as u64 };
        assert!(read(&l.b, part(at, len), from).await.is_ok());
        assert!(part(at, len).to_vec() == far.sub(at, len).to_vec());
    }
    // Heads that do not fit inline, more than there are staged buffers.
    let receives: Vec<_> = (0..60).map(|_| recv(&l.qa, 16384)).collect();
    for i in 0..60u8 {
        send(&l.b, &[i; 1000], Some(pool.alloc(4096).await), SendFlags::default()).await;
    }
    for (i, (buf, done)) in receives.into_iter().enumerate() {
        assert_eq!(done.await.len, 5096);
        assert_eq!(buf.to_vec()[999], i as u8);
    }
    // The pool is whole again soon: nothing silent holds its buffers.
    for _ in 0..200 {
        if pool.is_whole() && s.p.is_idle() {
            break;
        }
        sleep(5 * MILLIS).await;
    }
    assert!(pool.is_whole() && s.p.is_idle());
    l.a.deregister(r.key);
    end(&l).await;
    // The region stays registered: its memory must stay mapped.
    std::mem::forget(pool);
}

async fn cancelled_receives_come_back(s: Site) {
    let q = s.p.recv_queue(8, 4096).unwrap();
    let tokens: Vec<_> = (0..3)
        .map(|_| {
            let (token, done) = completion();
            q.post(Slice::heap(4096), token);
            (token, done)
        })
        .collect();
    assert_eq!(q.posted(), 3);
    assert!(q.cancel(tokens[1].0) && !q.cancel(tokens[1].0));
    assert_eq!(q.posted(), 2);
    let listener = s.listen();
    let addr = listener.local_addr();
    let mut pb = params(&s.p, b"w");
    pb.recv_queue = q.clone();
    let p2 = s.p.clone();
    let accept =
        spawn(async move { listener.next().await.unwrap().accept(&p2, pb).await.unwrap() });
    let (a, _) = s.p.connect(&addr, params(&s.p, b"x")).await.unwrap();
    let b = accept.await.unwrap();
    send(&a, b"one", None, SendFlags::default()).await;
    while q.posted() == 2 {
        sleep(MILLIS).await;
    }
    a.disconnect(true);
    closed(&b).await;
    closed(&a).await;
    // One of the two was used; the other can be had back now that no connection is left.
    let back = [0, 2].iter().filter(|i| q.cancel(tokens[**i].0)).count();
    assert_eq!((back, q.posted()), (1, 0));
}

/// Both sides close in the middle of much work, in every order.
async fn closing_under_load(s: Site) {
    for round in 0..12 {
        let l = s.pair().await;
        let far = Slice::heap(1 << 20);
        let w = l.a.register(&far, Access::RemoteWrite).unwrap();
        let r = l.a.register(&far, Access::RemoteRead).unwrap();
        let mut all = Vec::new();
        for i in 0..128usize {
            let b = l.b.clone();
            all.push(spawn(async move {
                let s = Slice::heap(if i % 3 == 0 { 1 << 20 } else { 8192 });
                if i % 2 == 0 { read(&b, s, r).await } else { write(&b, s, w).await }
            }));
        }
        sleep(round % 4 * MILLIS).await;
        match round % 3 {
            0 => l.a.disconnect(true),
            1 => l.b.disconnect(true),
            _ => {
                l.a.disconnect(round % 2 == 0);
                l.b.disconnect(round % 4 == 0);
            }
        }
        for j in all {
            let c = j.await.unwrap();
            assert!(c.result == 0 || c.result == status::FLUSHED, "{c:?}");
        }
        closed(&l.a).await;
        closed(&l.b).await;
        assert_eq!(l.b.send_slots().count(), Config::default().send_queue);
        assert_eq!(l.b.read_slots().count(), 4);
    }
    assert_eq!(s.p.connections(), 0);
    assert!(s.p.is_idle());
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

async fn many_logins_leak_nothing(s: Site) {
    end(&s.pair().await).await;
    let before = descriptors();
    let (start, mut setting_up) = (clock(), 0);
    for i in 0..200 {
        let at = clock();
        let l = s.pair().await;
        setting_up += clock() - at;
        let (_, done) = recv(&l.qb, 64);
        send(&l.a, b"x", None, SendFlags::default()).await;
        done.await;
        if i % 2 == 0 {
            l.a.disconnect(true)
        } else {
            l.b.disconnect(false)
        }
        closed(&l.a).await;
        closed(&l.b).await;
    }
    let whole = (clock() - start) / MILLIS;
    println!("  200 logins in {whole} ms, {} ms of which setting up", setting_up / MILLIS);
    assert_eq!(s.p.connections(), 0);
    assert!(descriptors() <= before, "{before} descriptors before, {} after", descriptors());
}

/// A listener here, the accepting provider on another core.
async fn accepting_on_another_reactor(s: Site) {
    let (ready, is_ready) = mpsc::channel();
    let lib = s.lib;
    let receive = s.receive;
    let worker = std::thread::spawn(move || {
        let ring = Ring::new().unwrap();
        let reactor = Reactor::new(Rc::new(ring.clone()));
        let p = Verbs::new(&reactor, &ring, lib, Config { receive, ..Config::default() }).unwrap();
        reactor.enter(|| weir_reactor::set_local(Rc::new(p.clone())));
        let id = reactor.handle().id();
        let done = Rc::new(Cell::new(false));
        reactor.enter(|| weir_reactor::set_local(done.clone()));
        ready.send(id).unwrap();
        reactor.block_on(PollMode::default(), async move {
            while !done.get() || p.connections() > 0 {
                sleep(MILLIS).await;
            }
            p.connections()
        })
    });
    let there = is_ready.recv().unwrap();
    let listener = s.listen();
    let addr = listener.local_addr();
    for i in 0..10 {
        let forward = {
            let listener = listener.clone();
            spawn(async move {
                let incoming: Box<dyn Incoming> = listener.next().await.unwrap();
                send_to(there, move || {
                    spawn(async move {
                        let p = weir_reactor::get_local::<Verbs>().unwrap();
                        if i == 9 {
                            return incoming.reject(b"from the other core");
                        }
                        let pb = params(&p, b"other core");
                        let q = pb.recv_queue.clone();
                        let (buf, done) = recv(&q, 4096);
                        let b = incoming.accept(&*p, pb).await.unwrap();
                        let n = done.await.len as usize;
                        let answer = buf.sub(0, n).to_vec();
                        send(&b, &answer, None, SendFlags::default()).await;
                        closed(&b).await;
                    });
                });
            })
        };
        let pa = params(&s.p, b"x");
        let (buf, done) = recv(&pa.recv_queue, 4096);
        let r = s.p.connect(&addr, pa).await;
        forward.await;
        if i == 9 {
            assert!(matches!(r.err(), Some(FabricError::Rejected(_))));
            break;
        }
        let (a, data) = r.unwrap();
        assert_eq!(&data[..10], b"other core");
        send(&a, &[i; 700], None, SendFlags::default()).await;
        assert_eq!(done.await.len, 700);
        assert_eq!(buf.to_vec()[..700], [i; 700]);
        a.disconnect(i % 2 == 0);
        closed(&a).await;
    }
    send_to(there, || weir_reactor::get_local::<Cell<bool>>().unwrap().set(true));
    while !worker.is_finished() {
        sleep(MILLIS).await;
    }
    assert_eq!(worker.join().unwrap(), 0);
}

/// No work, no turns; and a message wakes the reactor.
async fn an_idle_reactor_sleeps(s: Site) {
    let l = s.pair().await;
    sleep(50 * MILLIS).await;
    let before = s.reactor.figures();
    sleep(500 * MILLIS).await;
    let turns = s.reactor.figures().turns - before.turns;
    // 200 µs of polling after the last work, then sleep.
    assert!(turns < 20_000, "{turns} turns in half a second without work");
    let before = s.reactor.figures().parked;
    for i in 0..50u8 {
        // From a sleeping reactor's timer, so that the message comes while nobody polls.
        let (buf, done) = recv(&l.qb, 64);
        let b = l.a.clone();
        spawn(async move {
            sleep(2 * MILLIS).await;
            send(&b, &[i], None, SendFlags::default()).await;
        });
        assert!(timeout(SECONDS, done).await.is_ok(), "woken by message {i}");
        assert_eq!(buf.to_vec()[0], i);
    }
    let parked = s.reactor.figures().parked - before;
    println!("  {turns} turns idle for 500 ms; slept {parked} times in 50 round trips");
    assert!(parked > 0);
    end(&l).await;
}

async fn rdma(args: &[&str]) {
    let mut child = std::process::Command::new("rdma").args(args).spawn().unwrap();
    loop {
        if let Some(code) = child.try_wait().unwrap() {
            assert!(code.success(), "rdma {args:?}");
            return;
        }
        sleep(5 * MILLIS).await;
    }
}

/// The device goes away under a connection and its listeners, and comes back. Only when asked for: it
/// needs root and takes the device from everybody else. There must be a second device: librdmacm never
/// closes the last one, and drivers in software have its removal wait for that.
async fn device_removal(s: Site) {
    let netdev = std::env::var("NETDEV").unwrap_or_else(|_| "lab0".into());
    let name = std::env::var("RDMADEV").expect("RDMADEV: the device at IP, on NETDEV");
    let devices = s.p.devices().len();
    let any = s.p.listen("0.0.0.0:7471").unwrap();
    let one = s.p.listen(&format!("{}:7472", s.ip)).unwrap();
    let q = s.p.recv_queue(8, 4096).unwrap();
    let (token, waiting) = completion();
    q.post(Slice::heap(4096), token);
    for round in 0..3 {
        for (listener, port) in [(&any, 7471), (&one, 7472)] {
            // The listener at an address is made anew within a second.
            let l = listener.clone();
            let (p2, pb) = (s.p.clone(), params(&s.p, b"w"));
            let mut pb = pb;
            pb.recv_queue = q.clone();
            let accept =
                spawn(async move { l.next().await.unwrap().accept(&p2, pb).await.unwrap() });
            let addr = format!("{}:{port}", s.ip);
            let mut tries = 0;
            let (a, _) = loop {
                match s.p.connect(&addr, params(&s.p, b"x")).await {
                    Ok(c) => break c,
                    Err(e) => {
                        tries += 1;
                        assert!(tries < 50, "round {round}, port {port}: {e}");
                        sleep(100 * MILLIS).await;
                    }
                }
            };
            let b = accept.await.unwrap();
            let w = a.register(&Slice::heap(4096), Access::RemoteWrite).unwrap();
            assert!(write(&b, pattern(4096, 1), w).await.is_ok());
            if port == 7472 {
                let start = clock();
                rdma(&["link", "del", &name]).await;
                closed(&a).await;
                closed(&b).await;
                println!(
                    "  removed in {} ms: {} / {}",
                    (clock() - start) / MILLIS,
                    a.close_reason(),
                    b.close_reason()
                );
                assert_eq!(s.p.devices().len(), devices - 1);
                assert_eq!(q.posted(), 1, "the receive is back");
                let kind = if s.iwarp { "siw" } else { "rxe" };
                rdma(&["link", "add", &name, "type", kind, "netdev", &netdev]).await;
            } else {
                a.disconnect(false);
                closed(&a).await;
                closed(&b).await;
            }
        }
    }
    drop(waiting);
}

/// Figures, no judgement: requests of one connection, 32 at once.
async fn figures(s: Site) {
    let l = s.pair().await;
    let far = Slice::heap(1 << 20);
    let w = l.a.register(&far, Access::RemoteWrite).unwrap();
    let r = l.a.register(&far, Access::RemoteRead).unwrap();
    let pool = BufPool::new(&PoolConfig { classes: vec![(4096, 64), (1 << 20, 8)] }).unwrap();
    let (base, len) = pool.region();
    s.p.register_region(base, len).unwrap();
    for (name, size, depth, count) in [
        ("write 4 KiB", 4096, 32, 4000),
        ("read 4 KiB", 4096, 4, 4000),
        ("write 1 MiB", 1 << 20, 4, 200),
        ("read 1 MiB", 1 << 20, 4, 200),
    ] {
        let start = clock();
        let left = Rc::new(Cell::new(count));
        let tasks: Vec<_> = (0..depth)
            .map(|_| {
                let (b, pool, left) = (l.b.clone(), pool.clone(), left.clone());
                spawn(async move {
                    let buf = pool.alloc(size).await;
                    while left.get() > 0 {
                        left.set(left.get() - 1);
                        let c = if name.starts_with('w') {
                            write(&b, buf.clone(), w).await
                        } else {
                            read(&b, buf.clone(), r).await
                        };
                        assert!(c.is_ok());
                    }
                })
            })
            .collect();
        for t in tasks {
            t.await.unwrap();
        }
        let ns = clock() - start;
        println!(
            "  {name}, {depth} at once: {} per second, {} MiB/s",
            count as u64 * SECONDS / ns,
            count as u64 * size as u64 / 1024 * SECONDS / ns / 1024
        );
    }
    end(&l).await;
    std::mem::forget(pool);
}

type Run = fn(Site) -> std::pin::Pin<Box<dyn Future<Output = ()>>>;
type Check = (&'static str, Run);

macro_rules! checks {
    ($($name:ident)*) => {
        vec![$((stringify!($name), (|s| Box::pin($name(s))) as Run)),*]
    };
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(ip) = args.first().cloned() else {
        eprintln!("usage: verbs_loopback IP [auto|direct|copied|unshared] [CHECK]");
        std::process::exit(2);
    };
    let receive = match args.get(1).map(String::as_str) {
        Some("direct") => Receive::Direct,
        Some("copied") => Receive::Copied,
        Some("unshared") => Receive::Unshared,
        _ => Receive::Auto,
    };
    let lib = load().unwrap_or_else(|e| {
        eprintln!("{e}");
        std::process::exit(1)
    });
    let devices = lib.devices().unwrap_or_else(|e| {
        eprintln!("{e}");
        std::process::exit(1)
    });
    println!("devices: {devices:?}");
    let checks: Vec<Check> = checks![
        all_operations
        wrong_keys_ranges_and_rights
        a_dead_key_is_dead
        messages_wait_for_a_receive
        a_message_longer_than_its_receive
        an_orderly_close_delivers_what_was_queued
        refusals_reach_the_other_side
        early_messages_come_after_the_connection
        memory_of_every_kind
        cancelled_receives_come_back
        closing_under_load
        many_logins_leak_nothing
        accepting_on_another_reactor
        an_idle_reactor_sleeps
        figures
        device_removal
    ];
    let (mut passed, mut failed) = (0, 0);
    for (name, check) in checks {
        match args.get(2) {
            Some(only) if only != name => continue,
            None if name == "device_removal" => continue,
            _ => {}
        }
        let (ip, iwarp) = (ip.clone(), devices.iter().all(|d| d.iwarp));
        // A thread of its own: a failed check takes its reactor and provider down with it.
        let run = std::thread::spawn(move || {
            let ring = Ring::new().unwrap();
            let reactor = Reactor::new(Rc::new(ring.clone()));
            let config = Config { receive, ..Config::default() };
            let p = Verbs::new(&reactor, &ring, lib, config).unwrap();
            let copied = matches!(receive, Receive::Copied | Receive::Unshared);
            let site = Site { p, reactor: reactor.clone(), lib, ip, receive, copied, iwarp };
            reactor.block_on(PollMode::default(), async move {
                timeout(60 * SECONDS, check(site)).await.expect("done in time");
            });
        });
        match run.join() {
            Ok(()) => {
                passed += 1;
                println!("ok     {name}");
            }
            Err(e) => {
                failed += 1;
                let why = e.downcast_ref::<String>().cloned();
                let why = why.or_else(|| e.downcast_ref::<&str>().map(|s| (*s).to_owned()));
                println!("FAILED {name}: {}", why.unwrap_or_default());
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    std::process::exit(i32::from(failed > 0));
}

//! The rules of the fabric contract, one by one, over many seeds.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{MICROS, MILLIS, Nanos, SECONDS};
use weir_fabric::{
    Access, Connection, FabricError, Incoming, Listener, Params, Provider, RecvQueue, Remote,
    SendFlags, status,
};
use weir_mem::Slice;
use weir_reactor::{Completion, CompletionFuture, Token, completion, now, sleep, spawn, timeout};
use weir_sim::{NetConfig, Node, Options, Style, World};

/// Receives of at most `LEN` bytes.
const LEN: usize = 256;

pub(crate) fn params(p: &dyn Provider, private: &[u8]) -> Params {
    Params {
        private_data: private.to_vec(),
        recv_queue: p.recv_queue(64, LEN).expect("the simulator has receive queues"),
        reads_out: 4,
        reads_in: 4,
    }
}

/// One side, with its receive queue.
pub(crate) struct Side {
    pub(crate) conn: Rc<dyn Connection>,
    pub(crate) recv: Rc<dyn RecvQueue>,
}

impl Side {
    pub(crate) fn post_recv(&self) -> (Slice, CompletionFuture) {
        let (token, done) = completion();
        let buf = Slice::heap(LEN);
        self.recv.post(buf.clone(), token);
        (buf, done)
    }

    /// Receives one message.
    pub(crate) async fn recv(&self) -> Vec<u8> {
        let (buf, done) = self.post_recv();
        let c = done.await;
        assert!(c.is_ok(), "{c:?}");
        assert_eq!(c.source, self.conn.qp());
        buf.sub(0, c.len as usize).to_vec()
    }

    pub(crate) async fn send(&self, bytes: &[u8]) -> Completion {
        self.send_with(bytes, None, SendFlags::default()).await
    }

    pub(crate) async fn send_with(
        &self,
        head: &[u8],
        data: Option<Slice>,
        flags: SendFlags,
    ) -> Completion {
        self.conn.send_slots().wait().await;
        let (token, done) = completion();
        self.conn.send(head, data, flags, token);
        done.await
    }

    pub(crate) async fn write(&self, local: Slice, to: Remote) -> Completion {
        self.conn.send_slots().wait().await;
        let (token, done) = completion();
        self.conn.write(local, to, token);
        done.await
    }

    pub(crate) async fn read(&self, local: Slice, from: Remote) -> Completion {
        self.conn.send_slots().wait().await;
        self.conn.read_slots().wait().await;
        let (token, done) = completion();
        self.conn.read(local, from, token);
        done.await
    }

    pub(crate) async fn closed(&self) {
        let (token, done) = completion();
        self.conn.on_closed(token);
        done.await;
    }
}

/// Sends a place in memory as a message.
fn pack(r: Remote) -> Vec<u8> {
    [&r.key.to_le_bytes()[..], &r.addr.to_le_bytes()].concat()
}

fn unpack(b: &[u8]) -> Remote {
    Remote {
        key: u32::from_le_bytes(b[..4].try_into().expect("four bytes")),
        addr: u64::from_le_bytes(b[4..12].try_into().expect("eight bytes")),
    }
}

/// Closes in order, so that what was sent last arrives.
async fn finish(conn: Rc<dyn Connection>) {
    conn.disconnect(false);
    let (token, done) = completion();
    conn.on_closed(token);
    done.await;
}

/// Connects `a` to `b`, runs a program on each side, closes in order.
pub(crate) fn play<FA, FB>(
    w: &World,
    a: impl FnOnce(Side) -> FA + 'static,
    b: impl FnOnce(Side) -> FB + 'static,
) where
    FA: Future<Output = ()> + 'static,
    FB: Future<Output = ()> + 'static,
{
    let ran = drive(
        w,
        |s| async move {
            let conn = s.conn.clone();
            a(s).await;
            finish(conn).await;
        },
        |s| async move {
            let conn = s.conn.clone();
            b(s).await;
            finish(conn).await;
        },
    );
    assert_eq!(ran, 2, "seed {}: both sides were connected", w.seed());
}

/// Connects `a` to `b` and runs a program on each side; gives how many sides were connected, since one
/// may be gone before the other knows that it is connected.
fn drive<FA, FB>(
    w: &World,
    a: impl FnOnce(Side) -> FA + 'static,
    b: impl FnOnce(Side) -> FB + 'static,
) -> u32
where
    FA: Future<Output = ()> + 'static,
    FB: Future<Output = ()> + 'static,
{
    let (na, nb) = (w.node("a"), w.node("b"));
    let (pa, pb) = (na.provider(), nb.provider());
    let addr = nb.addr(5000);
    let done_b = nb.spawn(async move {
        let l = pb.listen("0.0.0.0:5000").expect("a free port");
        let inc = l.next().await.expect("a request comes");
        let p = params(&*pb, b"welcome");
        let recv = p.recv_queue.clone();
        let Ok(conn) = inc.accept(&*pb, p).await else { return 0 };
        b(Side { conn, recv }).await;
        1
    });
    let done_a = na.spawn(async move {
        let p = params(&*pa, b"hello");
        let recv = p.recv_queue.clone();
        let Ok((conn, private)) = pa.connect(&addr, p).await else { return 0 };
        assert_eq!(&private[..7], b"welcome");
        a(Side { conn, recv }).await;
        1
    });
    let both = na.spawn(async move {
        let a = done_a.await.unwrap_or(0);
        a + done_b.await.unwrap_or(0)
    });
    if let Err(stuck) = w.run_until(60 * SECONDS, || both.is_finished()) {
        panic!("seed {}: {stuck}", w.seed());
    }
    w.run(&na, SECONDS, both).expect("it has ended").unwrap_or(0)
}

/// Large WRITEs keep the message behind them waiting. Both sides know meanwhile, each by its own clock, that the other is there.
#[test]
fn a_slow_link_carries_everything_in_order_and_shows_life() {
    const MUCH: usize = 1 << 20;
    /// What one of them takes.
    const LONG: Nanos = 10 * MUCH as Nanos;
    for (seed, style) in (0..20).flat_map(|s| [(s, Style::Iwarp), (s, Style::Verbs)]) {
        let net = NetConfig { byte_time: 10, style, ..NetConfig::default() };
        let w = World::with(seed, Options { net, ..Options::default() });
        play(
            &w,
            move |s| async move {
                let to = unpack(&s.recv().await);
                let begun = now();
                assert!(s.conn.last_life() <= begun && s.conn.last_life() + LONG > begun);
                for _ in 0..2 {
                    s.conn.send_slots().wait().await;
                    s.conn.write(Slice::heap(MUCH), to, Token::NONE);
                }
                let told = spawn({
                    let conn = s.conn.clone();
                    async move {
                        conn.send_slots().wait().await;
                        conn.send(b"end", None, SendFlags::default(), Token::NONE);
                    }
                });
                sleep(LONG + LONG / 2).await;
                // The other side has said nothing, and has taken the first one.
                assert!(s.conn.last_life() >= begun + LONG, "seed {seed}, {style:?}");
                assert_eq!(s.recv().await, b"it came");
                told.await;
            },
            move |s| async move {
                let place = s.conn.register(&Slice::heap(MUCH), Access::RemoteWrite).expect("room");
                let begun = now();
                s.send(&pack(place)).await;
                assert_eq!(s.recv().await, b"end");
                assert!(now() >= begun + 2 * LONG, "seed {seed}, {style:?}");
                assert!((begun + LONG..=now()).contains(&s.conn.last_life()));
                s.send(b"it came").await;
            },
        );
    }
}

#[test]
fn messages_arrive_once_in_order_and_whole() {
    for seed in 0..60 {
        let w = World::new(seed);
        play(
            &w,
            |s| async move {
                for i in 0..40u8 {
                    let data = (i % 3 == 0).then(|| Slice::copy_of(&[i; 100]));
                    s.send_with(&[i, i], data, SendFlags::default()).await;
                }
                s.conn.disconnect(false);
                s.closed().await;
            },
            |s| async move {
                for i in 0..40u8 {
                    let want = vec![i; if i % 3 == 0 { 102 } else { 2 }];
                    assert_eq!(s.recv().await, want);
                }
                s.closed().await;
                assert!(!s.conn.is_open());
                assert_ne!(s.conn.close_reason(), "");
            },
        );
    }
}

#[test]
fn a_message_waits_for_a_receive() {
    for seed in 0..20 {
        let w = World::new(seed);
        play(
            &w,
            |s| async move {
                s.conn.send_slots().wait().await;
                s.conn.send(b"early", None, SendFlags::default(), Token::NONE);
                s.recv().await;
            },
            |s| async move {
                sleep(50 * MILLIS).await;
                assert_eq!(s.recv().await, b"early");
                s.send(b"ok").await;
            },
        );
    }
}

#[test]
fn write_data_is_there_when_a_later_send_arrives() {
    for seed in 0..100 {
        let w = World::new(seed);
        play(
            &w,
            |s| async move {
                let place = unpack(&s.recv().await);
                let data = Slice::copy_of(&(0..2000u32).map(|i| i as u8).collect::<Vec<_>>());
                s.conn.send_slots().wait_n(2).await;
                s.conn.write(data, place, Token::NONE);
                s.conn.send(b"written", None, SendFlags::default(), Token::NONE);
                s.recv().await;
            },
            |s| async move {
                let mem = Slice::heap(2000);
                let r = s.conn.register(&mem, Access::RemoteWrite).expect("room");
                s.send(&pack(r)).await;
                assert_eq!(s.recv().await, b"written");
                assert!(mem.to_vec().iter().enumerate().all(|(i, b)| *b == i as u8));
                s.send(b"bye").await;
            },
        );
    }
}

#[test]
fn read_fetches_exactly_what_is_registered() {
    for seed in 0..60 {
        let w = World::new(seed);
        play(
            &w,
            |s| async move {
                let r = unpack(&s.recv().await);
                for (at, len) in [(0, 1000), (10, 1), (999, 1), (500, 500), (0, 0)] {
                    let local = Slice::heap(1000).sub(0, len);
                    let c = s.read(local.clone(), Remote { addr: r.addr + at, ..r }).await;
                    assert_eq!((c.result, c.len as usize), (0, len));
                    let v = local.to_vec();
                    assert!((0..len).all(|i| v[i] == ((at as usize + i) * 7) as u8));
                }
                s.send(b"done").await;
            },
            |s| async move {
                let bytes: Vec<u8> = (0..1000).map(|i| (i * 7) as u8).collect();
                let mem = Slice::copy_of(&bytes);
                let r = s.conn.register(&mem, Access::RemoteRead).expect("room");
                s.send(&pack(r)).await;
                s.recv().await;
            },
        );
    }
}

/// What a bad peer may try.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Crime {
    WrongKey,
    BeforeStart,
    PastEnd,
    WrongRight,
    StaleKey,
    Wraps,
    InvalidateWrongKey,
}

#[test]
fn wrong_keys_ranges_and_rights_end_the_connection() {
    use Crime::*;
    let crimes = [WrongKey, BeforeStart, PastEnd, WrongRight, StaleKey, Wraps, InvalidateWrongKey];
    for seed in 0..70 {
        let crime = crimes[seed as usize % 7];
        for reads in [true, false] {
            let w = World::new(seed);
            let mem_seen: Rc<Cell<Option<Slice>>> = Rc::default();
            let keep = mem_seen.clone();
            play(
                &w,
                move |s| async move {
                    let mut r = unpack(&s.recv().await);
                    let local = Slice::copy_of(&[9; 100]);
                    match crime {
                        WrongKey => r.key ^= 1,
                        BeforeStart => r.addr -= 1,
                        PastEnd => r.addr += 1,
                        Wraps => r.addr = u64::MAX - 50,
                        WrongRight | StaleKey | InvalidateWrongKey => {}
                    }
                    if crime == StaleKey {
                        s.send(b"end it").await;
                        s.recv().await;
                    }
                    let as_read = reads ^ (crime == WrongRight);
                    let c = if crime == InvalidateWrongKey {
                        let flags = SendFlags { invalidate: Some(r.key ^ 1), ..Default::default() };
                        s.send_with(b"x", None, flags).await
                    } else if as_read {
                        s.read(local, r).await
                    } else {
                        s.write(local, r).await
                    };
                    // A WRITE or SEND may have left before the peer refuses it.
                    let early_ok = (!as_read || crime == InvalidateWrongKey) && c.is_ok();
                    assert!(c.result == status::REMOTE_ACCESS || early_ok, "{crime:?} {c:?}");
                    s.closed().await;
                    assert!(!s.conn.is_open());
                    let late = s.send(b"too late").await;
                    assert_eq!(late.result, status::FLUSHED);
                },
                move |s| async move {
                    let mem = Slice::copy_of(&[1; 300]);
                    keep.set(Some(mem.clone()));
                    let access = if reads { Access::RemoteRead } else { Access::RemoteWrite };
                    let r = s.conn.register(&mem.sub(100, 100), access).expect("room");
                    s.send(&pack(r)).await;
                    if crime == StaleKey {
                        s.recv().await;
                        s.conn.deregister(r.key);
                        s.send(b"it is over").await;
                    }
                    if crime == InvalidateWrongKey {
                        let _ = s.post_recv();
                    }
                    s.closed().await;
                    assert!(
                        s.conn.close_reason().contains("wrong key"),
                        "{}",
                        s.conn.close_reason()
                    );
                },
            );
            let mem = mem_seen.take().expect("registered").to_vec();
            // Pieces of a WRITE that lie inside may have been placed before the one that does not.
            let untouched = if matches!(crime, PastEnd | BeforeStart) { 100 } else { 200 };
            assert!(
                mem[..untouched].iter().chain(&mem[200..]).all(|b| *b == 1),
                "seed {seed} {crime:?}: memory outside the registration was written"
            );
        }
    }
}

#[test]
fn nothing_behind_a_refused_request_is_delivered() {
    for seed in 0..60 {
        let w = World::new(seed);
        play(
            &w,
            |s| async move {
                let bad = Remote { key: 1, addr: 0 };
                s.conn.send_slots().wait_n(3).await;
                s.conn.send(b"before", None, SendFlags::default(), Token::NONE);
                s.conn.write(Slice::heap(100), bad, Token::NONE);
                s.conn.send(b"behind", None, SendFlags::default(), Token::NONE);
                s.closed().await;
            },
            move |s| async move {
                let (_b1, first) = s.post_recv();
                let (_b2, second) = s.post_recv();
                let both = [first, second].map(spawn);
                s.closed().await;
                sleep(SECONDS).await;
                assert_eq!(both.iter().filter(|h| h.is_finished()).count(), 1, "seed {seed}");
                both.iter().for_each(|h| h.cancel());
            },
        );
    }
}

#[test]
fn send_with_invalidate_ends_the_key_and_says_which() {
    for seed in 0..30 {
        let w = World::new(seed);
        play(
            &w,
            |s| async move {
                let r = unpack(&s.recv().await);
                let flags = SendFlags { invalidate: Some(r.key), ..Default::default() };
                s.send_with(b"take it back", None, flags).await;
                let c = s.read(Slice::heap(10), r).await;
                assert_eq!(c.result, status::REMOTE_ACCESS);
            },
            |s| async move {
                let r = s.conn.register(&Slice::heap(10), Access::RemoteRead).expect("room");
                let (_buf, done) = s.post_recv();
                s.send(&pack(r)).await;
                assert_eq!(done.await.extra, r.key);
                s.closed().await;
            },
        );
    }
}

#[test]
fn a_message_longer_than_its_receive_ends_the_connection() {
    for seed in 0..20 {
        let w = World::new(seed);
        play(
            &w,
            |s| async move {
                let c = s.send(&[0; LEN + 1]).await;
                assert!(c.is_ok() || c.result == status::LENGTH, "{c:?}");
                s.closed().await;
            },
            |s| async move {
                let (_buf, done) = s.post_recv();
                assert_eq!(done.await.result, status::LENGTH);
                s.closed().await;
            },
        );
    }
}

#[test]
fn early_receives_come_after_the_connection_was_handed_over() {
    let mut raced = 0;
    for seed in 0..200 {
        let w = World::new(seed);
        let (na, nb) = (w.node("a"), w.node("b"));
        let (pa, pb) = (na.provider(), nb.provider());
        let addr = nb.addr(1);
        let handed = Rc::new(Cell::new(false));
        let h = handed.clone();
        let waited = Rc::new(Cell::new(0));
        let w2 = waited.clone();
        let b = nb.spawn(async move {
            let l = pb.listen("0.0.0.0:1").expect("a free port");
            let inc = l.next().await.expect("a request comes");
            let p = params(&*pb, &[]);
            let (token, done) = completion();
            p.recv_queue.post(Slice::heap(LEN), token);
            let receiver = spawn(async move {
                done.await;
                assert!(h.get(), "received before the connection was there");
            });
            let accepting = inc.accept(&*pb, p);
            let t = weir_reactor::now();
            let conn = accepting.await.expect("accepted");
            handed.set(true);
            w2.set(weir_reactor::now() - t);
            receiver.await;
            drop(conn);
        });
        na.spawn(async move {
            let p = params(&*pa, &[]);
            let (conn, _) = pa.connect(&addr, p).await.expect("connected");
            conn.send_slots().wait().await;
            conn.send(b"at once", None, SendFlags::default(), Token::NONE);
            sleep(SECONDS).await;
        });
        w.run_until(10 * SECONDS, || b.is_finished()).expect("received");
        raced += u32::from(waited.get() > 100 * MICROS);
    }
    assert!(raced > 0, "some acceptances were slow");
}

#[test]
fn local_memory_is_read_between_post_and_completion() {
    // Whoever changes a buffer before its completion is found out by some seed.
    let mut changed = 0;
    for seed in 0..100 {
        let w = World::new(seed);
        let seen = Rc::new(RefCell::new(Vec::new()));
        let s2 = seen.clone();
        play(
            &w,
            |s| async move {
                let data = Slice::copy_of(&[1; 200]);
                s.conn.send_slots().wait().await;
                let (token, done) = completion();
                s.conn.send(&[], Some(data.clone()), SendFlags::default(), token);
                sleep(MICROS).await;
                data.fill(2);
                done.await;
                sleep(MILLIS).await;
            },
            move |s| async move { *s2.borrow_mut() = s.recv().await },
        );
        changed += u32::from(seen.borrow().contains(&2));
    }
    assert!((10..100).contains(&changed), "{changed}");
}

#[test]
fn a_read_samples_memory_late_and_not_at_once() {
    let (mut mixed, mut after_send) = (0, 0);
    for seed in 0..300 {
        let w = World::new(seed);
        let got = Rc::new(RefCell::new(Vec::new()));
        let g = got.clone();
        play(
            &w,
            move |s| async move {
                let r = unpack(&s.recv().await);
                let local = Slice::heap(400);
                s.conn.send_slots().wait_n(2).await;
                s.conn.read_slots().wait().await;
                let (token, done) = completion();
                s.conn.read(local.clone(), r, token);
                s.conn.send(b"posted behind the read", None, SendFlags::default(), Token::NONE);
                done.await;
                *g.borrow_mut() = local.to_vec();
            },
            |s| async move {
                let mem = Slice::copy_of(&[1; 400]);
                let r = s.conn.register(&mem, Access::RemoteRead).expect("room");
                s.send(&pack(r)).await;
                s.recv().await;
                mem.fill(2);
                s.closed().await;
            },
        );
        let got = got.borrow();
        after_send += u32::from(got.contains(&2));
        mixed += u32::from(got.contains(&1) && got.contains(&2));
    }
    assert!(after_send > 10 && mixed > 3, "{after_send} late, {mixed} mixed");
}

#[test]
fn everything_outstanding_is_flushed_and_then_the_end_is_told_once() {
    for seed in 0..100 {
        let w = World::new(seed);
        play(
            &w,
            move |s| async move {
                let r = unpack(&s.recv().await);
                let left = Rc::new(Cell::new(0));
                let total = s.conn.send_slots().count();
                let reads = s.conn.read_slots().count();
                for i in 0..total.min(10) {
                    s.conn.send_slots().wait().await;
                    let (token, done) = completion();
                    left.set(left.get() + 1);
                    let l = left.clone();
                    spawn(async move {
                        done.await;
                        l.set(l.get() - 1);
                    });
                    match i % 3 {
                        0 if s.conn.read_slots().try_wait() => {
                            s.conn.read(Slice::heap(500), r, token);
                        }
                        1 => s.conn.send(&[1; 10], None, SendFlags::default(), token),
                        _ => s.conn.send(&[], None, SendFlags::default(), token),
                    }
                }
                if seed % 2 == 0 {
                    sleep(seed * MICROS).await;
                }
                s.conn.disconnect(true);
                assert!(!s.conn.is_open());
                s.closed().await;
                sleep(0).await;
                weir_reactor::run_async().await;
                assert_eq!(left.get(), 0, "told of the end before all completions");
                assert_eq!(s.conn.send_slots().count(), total);
                assert_eq!(s.conn.read_slots().count(), reads);
                s.closed().await;
            },
            |s| async move {
                let mem = Slice::heap(500);
                let r = s.conn.register(&mem, Access::RemoteRead).expect("room");
                s.send(&pack(r)).await;
                s.closed().await;
            },
        );
    }
}

#[test]
fn both_sides_may_close_at_once() {
    for seed in 0..60 {
        let w = World::new(seed);
        let side = |now: bool| {
            move |s: Side| async move {
                s.conn.send_slots().wait().await;
                s.conn.send(b"last words", None, SendFlags::default(), Token::NONE);
                s.conn.disconnect(now);
                s.conn.disconnect(false);
                s.closed().await;
            }
        };
        drive(&w, side(seed % 2 == 0), side(seed % 3 == 0));
        assert_eq!(w.net().connections(), 0);
    }
}

#[test]
fn an_orderly_close_delivers_what_was_posted_and_ends_also_if_the_peer_does_not_read() {
    for seed in 0..40 {
        let w = World::new(seed);
        let reads = seed % 2 == 0;
        play(
            &w,
            |s| async move {
                for i in 0..3u8 {
                    s.conn.send_slots().wait().await;
                    s.conn.send(&[i], None, SendFlags::default(), Token::NONE);
                }
                s.conn.disconnect(false);
                s.closed().await;
            },
            move |s| async move {
                for i in 0..3u8 {
                    if reads {
                        assert_eq!(s.recv().await, [i]);
                    }
                }
                s.closed().await;
            },
        );
    }
}

#[test]
#[should_panic(expected = "without a slot of send_slots")]
fn posting_without_a_slot_is_found() {
    let w = World::new(1);
    play(
        &w,
        |s| async move {
            s.conn.send(b"x", None, SendFlags::default(), Token::NONE);
        },
        |s| async move { s.closed().await },
    );
}

#[test]
#[should_panic(expected = "without a slot of read_slots")]
fn reading_without_a_slot_is_found() {
    let w = World::new(1);
    play(
        &w,
        |s| async move {
            s.conn.send_slots().wait().await;
            s.conn.read(Slice::heap(1), Remote { key: 0, addr: 0 }, Token::NONE);
        },
        |s| async move { s.closed().await },
    );
}

#[test]
fn dropping_the_last_handle_closes() {
    for seed in 0..20 {
        let w = World::new(seed);
        drive(
            &w,
            |s| async move {
                s.recv().await;
                drop(s.conn);
                sleep(SECONDS).await;
            },
            |s| async move {
                s.send(b"x").await;
                s.closed().await;
            },
        );
        assert_eq!(w.net().connections(), 0);
    }
}

// Set-up.

fn listen(n: &Node) -> Rc<dyn Listener> {
    n.enter(|| n.provider().listen("0.0.0.0:7")).expect("a free port")
}

async fn try_connect(n: Node, addr: String) -> Result<Vec<u8>, FabricError> {
    let p = n.provider();
    let params = params(&*p, b"login");
    p.connect(&addr, params).await.map(|(_, private)| private)
}

#[test]
fn rejections_carry_private_data_and_drops_refuse() {
    for seed in 0..20 {
        let w = World::new(seed);
        let (a, b) = (w.node("a"), w.node("b"));
        let l = listen(&b);
        b.spawn(async move {
            l.next().await.expect("a request").reject(b"full");
            let second = l.next().await.expect("a request");
            assert_eq!(&second.private_data()[..5], b"login");
            assert_eq!(second.peer_serves_reads(), 4);
            drop(second);
            sleep(SECONDS).await;
        });
        let first = w.run(&a, SECONDS, try_connect(a.clone(), b.addr(7))).expect("an answer");
        let Err(FabricError::Rejected(private)) = first else { panic!("{first:?}") };
        assert_eq!(&private[..4], b"full");
        let second = w.run(&a, SECONDS, try_connect(a.clone(), b.addr(7))).expect("an answer");
        assert!(matches!(second, Err(FabricError::Rejected(_))), "{second:?}");
    }
}

#[test]
fn nobody_there_bad_addresses_and_ports_in_use() {
    let w = World::new(1);
    let (a, b) = (w.node("a"), w.node("b"));
    let e = w.run(&a, SECONDS, try_connect(a.clone(), b.addr(9))).expect("an answer");
    assert!(matches!(e, Err(FabricError::Unreachable(_))), "{e:?}");
    let e = w.run(&a, SECONDS, try_connect(a.clone(), "mars:1".into())).expect("an answer");
    assert!(matches!(e, Err(FabricError::Address(..))), "{e:?}");
    let l = listen(&b);
    let again = b.enter(|| b.provider().listen(&b.addr(7)));
    assert!(matches!(again, Err(FabricError::Address(_, why)) if why == "in use"));
    b.enter(|| drop(l));
    listen(&b);
    assert!(b.enter(|| b.provider().listen("a:1")).is_err(), "another node's address");
    let any = b.enter(|| b.provider().listen("0.0.0.0:0")).expect("a chosen port");
    assert!(!any.local_addr().ends_with(":0"));
}

#[test]
fn a_connector_that_gives_up_leaves_nothing_behind() {
    for seed in 0..60 {
        let w = World::new(seed);
        let (a, b) = (w.node("a"), w.node("b"));
        let l = listen(&b);
        let pb = b.provider();
        let served = b.spawn(async move {
            let inc = l.next().await.expect("a request");
            sleep(seed * 4 * MICROS).await;
            let p = params(&*pb, &[]);
            if let Ok(conn) = inc.accept(&*pb, p).await {
                let (token, done) = completion();
                conn.on_closed(token);
                done.await;
            }
        });
        let (a2, addr) = (a.clone(), b.addr(7));
        a.spawn(async move {
            let _ = timeout(60 * MICROS, try_connect(a2, addr)).await;
        });
        w.run_until(30 * SECONDS, || served.is_finished()).expect("the acceptor learns it");
        w.run_until_idle(30 * SECONDS).expect("quiet");
        assert_eq!(w.net().connections(), 0, "seed {seed}");
    }
}

#[test]
fn a_request_may_be_accepted_on_another_core_of_the_node() {
    for seed in 0..20 {
        let w = World::new(seed);
        let a = w.node("a");
        let b = w.node_with("b", 2);
        let (p0, p1) = (b.provider_on(0), b.provider_on(1));
        let l = b.enter(|| p0.listen("0.0.0.0:7")).expect("a free port");
        let far = b.enter_on(1, weir_reactor::handle);
        struct Provider1(Rc<dyn Provider>);
        thread_local!(static P1: RefCell<Option<Provider1>> = const { RefCell::new(None) });
        P1.with(|p| *p.borrow_mut() = Some(Provider1(p1)));
        b.spawn(async move {
            let inc: Box<dyn Incoming> = l.next().await.expect("a request");
            far.run(move || {
                let p1 = P1.with(|p| p.borrow().as_ref().map(|p| p.0.clone())).expect("set above");
                spawn(async move {
                    let p = params(&*p1, b"core 1");
                    let recv = p.recv_queue.clone();
                    let conn = inc.accept(&*p1, p).await.expect("accepted");
                    let s = Side { conn, recv };
                    s.send(b"hi").await;
                    s.closed().await;
                });
            });
            sleep(SECONDS).await;
        });
        let (pa, addr) = (a.provider(), b.addr(7));
        let got = w.run(&a, SECONDS, async move {
            let p = params(&*pa, &[]);
            let recv = p.recv_queue.clone();
            let (conn, _) = pa.connect(&addr, p).await.expect("connected");
            Side { conn, recv }.recv().await
        });
        assert_eq!(got.expect("served by core 1"), b"hi");
        P1.with(|p| p.borrow_mut().take());
    }
}

#[test]
fn registrations_are_limited_and_keys_differ() {
    let w = World::with(
        1,
        Options {
            net: NetConfig { max_registrations: 3, ..Default::default() },
            ..Default::default()
        },
    );
    play(
        &w,
        |s| async move {
            let mem = Slice::heap(10);
            let keys: Vec<_> = (0..3)
                .map(|_| s.conn.register(&mem, Access::RemoteRead).expect("room").key)
                .collect();
            assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
            assert!(s.conn.register(&mem, Access::RemoteRead).is_err());
            s.conn.deregister(keys[0]);
            assert!(s.conn.register(&mem, Access::RemoteRead).is_ok());
        },
        |s| async move { s.closed().await },
    );
}

#[test]
fn with_one_stream_a_read_waits_behind_a_message_that_nobody_receives() {
    let run = |style: Style| {
        let net = NetConfig { style, ..Default::default() };
        let w = World::with(3, Options { net, ..Default::default() });
        let in_time = Rc::new(Cell::new(false));
        let t = in_time.clone();
        play(
            &w,
            move |s| async move {
                let r = unpack(&s.recv().await);
                // The peer's next message is on its way, and nothing is posted for it.
                sleep(20 * MILLIS).await;
                t.set(timeout(SECONDS, s.read(Slice::heap(10), r)).await.is_ok());
                s.conn.disconnect(true);
            },
            |s| async move {
                let r = s.conn.register(&Slice::heap(10), Access::RemoteRead).expect("room");
                s.conn.send_slots().wait_n(2).await;
                s.conn.send(&pack(r), None, SendFlags::default(), Token::NONE);
                s.conn.send(b"in the way", None, SendFlags::default(), Token::NONE);
                s.closed().await;
            },
        );
        in_time.get()
    };
    assert!(!run(Style::Iwarp));
    assert!(run(Style::Verbs));
}

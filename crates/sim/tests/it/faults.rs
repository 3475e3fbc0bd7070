//! What goes wrong between nodes: cuts, partitions, deaths, doubled and half-made connections. Whatever it
//! is, every request completes, both sides learn of the end, and nothing is left.

use crate::fabric::{Side, params};
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{MILLIS, Nanos, SECONDS};
use weir_fabric::{FabricError, status};
use weir_reactor::{JoinHandle, sleep, spawn};
use weir_sim::{Cut, NetConfig, Node, Odds, Options, World};

/// `b` echoes messages of any number of connections until they close.
fn echo_server(b: &Node) {
    let p = b.provider();
    b.spawn(async move {
        let l = p.listen("0.0.0.0:7").expect("a free port");
        loop {
            let inc = l.next().await.expect("a request");
            let p2 = p.clone();
            spawn(async move {
                let params = params(&*p2, &[]);
                let recv = params.recv_queue.clone();
                let Ok(conn) = inc.accept(&*p2, params).await else { return };
                let s = Rc::new(Side { conn, recv });
                let s2 = s.clone();
                let echo = spawn(async move {
                    loop {
                        let m = s2.recv().await;
                        s2.send(&m).await;
                    }
                });
                s.closed().await;
                echo.cancel();
            });
        }
    });
}

/// What a client saw.
#[derive(Debug, Default)]
struct Seen {
    echoes: Cell<u32>,
    closed: Cell<bool>,
    reason: std::cell::RefCell<String>,
}

/// Sends messages and checks echoes until the connection closes.
fn echo_client(a: &Node, b: &Node) -> (Rc<Seen>, JoinHandle<Result<(), FabricError>>) {
    let seen = Rc::new(Seen::default());
    let (p, addr, s2) = (a.provider(), b.addr(7), seen.clone());
    let task = a.spawn(async move {
        let params = params(&*p, &[]);
        let recv = params.recv_queue.clone();
        let (conn, _) = p.connect(&addr, params).await?;
        let s = Rc::new(Side { conn, recv });
        let (side, seen) = (s.clone(), s2.clone());
        let run = spawn(async move {
            let mut n = 0u32;
            loop {
                n += 1;
                let c = side.send(&n.to_le_bytes()).await;
                if !c.is_ok() {
                    assert_eq!(c.result, status::FLUSHED);
                    return;
                }
                assert_eq!(side.recv().await, n.to_le_bytes());
                seen.echoes.set(n);
                sleep(MILLIS).await;
            }
        });
        s.closed().await;
        s2.closed.set(true);
        *s2.reason.borrow_mut() = s.conn.close_reason();
        run.cancel();
        Ok(())
    });
    (seen, task)
}

fn world(seed: u64) -> (World, Node, Node) {
    let w = World::new(seed);
    let (a, b) = (w.node("a"), w.node("b"));
    echo_server(&b);
    (w, a, b)
}

/// How long until the client learned of what `fault` did at 100 ms.
fn time_to_learn(seed: u64, fault: impl FnOnce(&World, &Node, &Node) + 'static) -> (Nanos, World) {
    let (w, a, b) = world(seed);
    let (seen, task) = echo_client(&a, &b);
    let (a2, b2) = (a.clone(), b.clone());
    w.after(100 * MILLIS, move |w| fault(w, &a2, &b2));
    if let Err(s) = w.run_until(60 * SECONDS, || task.is_finished()) {
        panic!("seed {seed}: {s}");
    }
    assert!(seen.echoes.get() > 10, "{seen:?}");
    assert!(seen.closed.get() && !seen.reason.borrow().is_empty(), "{seen:?}");
    (w.now() - 100 * MILLIS, w)
}

#[test]
fn cuts_end_both_sides_at_different_times() {
    for seed in 0..30 {
        for how in [Cut::Both, Cut::OneSide, Cut::Silent, Cut::Any] {
            let (_, w) = time_to_learn(seed, move |w, _, _| assert!(w.net().cut_any(how)));
            w.run_for(20 * SECONDS);
            assert_eq!(w.net().connections(), 0, "seed {seed} {how:?}: the other side learns too");
            assert!(!w.net().cut_any(how), "there is nothing left to cut");
        }
    }
}

#[test]
fn a_silent_cut_is_noticed_by_silence_only() {
    for seed in 0..10 {
        let (t, _) = time_to_learn(seed, |w, _, _| assert!(w.net().cut_any(Cut::Silent)));
        assert!(t >= 2 * SECONDS, "{t}");
        let (t, _) = time_to_learn(seed, |w, _, _| assert!(w.net().cut_any(Cut::Both)));
        assert!(t < SECONDS, "{t}");
    }
}

#[test]
fn a_killed_peer_resets_and_a_powered_off_one_is_silent() {
    for seed in 0..20 {
        let (t, _) = time_to_learn(seed, |_, _, b| b.kill());
        assert!(t < SECONDS, "{t}");
        let (t, _) = time_to_learn(seed, |_, _, b| b.power_off());
        assert!(t > SECONDS, "{t}");
    }
}

#[test]
fn a_short_partition_delays_and_a_long_one_ends_connections() {
    for seed in 0..20 {
        for one_way in [false, true] {
            let (w, a, b) = world(seed);
            let (seen, task) = echo_client(&a, &b);
            let (na, nb) = (a.number(), b.number());
            let cut = move |w: &World| match one_way {
                true => w.net().partition_one_way(nb, na),
                false => w.net().partition(na, nb),
            };
            w.run_for(50 * MILLIS);
            cut(&w);
            w.run_for(50 * MILLIS);
            let during = seen.echoes.get();
            w.run_for(900 * MILLIS);
            assert_eq!(seen.echoes.get(), during, "nothing passes");
            w.net().heal(na, nb);
            w.run_for(200 * MILLIS);
            assert!(seen.echoes.get() > during + 10, "what waited went on: {seen:?}");
            assert!(!task.is_finished());
            cut(&w);
            w.run_until(30 * SECONDS, || task.is_finished()).expect("silence ends it");
            w.run_for(30 * SECONDS);
            assert_eq!(w.net().connections(), 0, "seed {seed}");
        }
    }
}

#[test]
fn connects_meet_partitions_dead_nodes_and_dead_machines() {
    let (w, a, b) = world(1);
    let (_, refused) = echo_client(&a, &b);
    w.net().partition(a.number(), b.number());
    w.run_until(10 * SECONDS, || refused.is_finished()).expect("it gives up");
    assert!(w.now() >= 3 * SECONDS, "after its time");
    w.net().heal_all();
    b.kill();
    let start = w.now();
    let (_, refused) = echo_client(&a, &b);
    w.run_until(10 * SECONDS, || refused.is_finished()).expect("the machine says no");
    assert!(w.now() - start < SECONDS);
    b.restart();
    b.power_off();
    let start = w.now();
    let (_, refused) = echo_client(&a, &b);
    w.run_until(10 * SECONDS, || refused.is_finished()).expect("it gives up");
    assert!(w.now() - start >= 3 * SECONDS);
    b.restart();
    echo_server(&b);
    let (seen, _) = echo_client(&a, &b);
    w.run_until(SECONDS, || seen.echoes.get() > 3).expect("it serves again");
}

#[test]
fn a_node_killed_while_requests_wait_for_its_verdict() {
    for seed in 0..20 {
        let w = World::new(seed);
        let (a, b) = (w.node("a"), w.node("b"));
        let l = b.enter(|| b.provider().listen("0.0.0.0:7")).expect("a free port");
        b.spawn(async move {
            let _requests = (l.next().await, l.next().await);
            sleep(100 * SECONDS).await;
        });
        let clients: Vec<_> = (0..3).map(|_| echo_client(&a, &b).1).collect();
        w.run_for(10 * MILLIS);
        b.kill();
        let all = || clients.iter().all(JoinHandle::is_finished);
        w.run_until(SECONDS, all).expect("refused at once, not by time");
    }
}

#[test]
fn a_connector_that_stops_during_set_up_learns_that_the_acceptor_gave_up() {
    let (mut served, mut ended) = (0, 0);
    for seed in 0..60 {
        let (w, a, b) = world(seed);
        let (seen, task) = echo_client(&a, &b);
        w.run_until(SECONDS, || w.net().connections() == 1).expect("it is accepted");
        // The answer is on its way. It is taken long after an acceptor that waits for a word has gone.
        a.pause(10 * SECONDS);
        let known = || task.is_finished() || seen.echoes.get() > 0;
        if let Err(s) = w.run_until(30 * SECONDS, known) {
            panic!("seed {seed}: the connector waits for a peer that has gone: {s}");
        }
        assert!(w.now() >= 10 * SECONDS, "seed {seed}: it stood still");
        match task.is_finished() {
            true => ended += 1,
            false => served += 1,
        }
    }
    // Some acceptors take the answer that left for enough.
    assert!(served > 10 && ended > 10, "{served} served, {ended} ended");
}

#[test]
fn hostile_networks_leave_nothing_behind() {
    let (mut broken, mut whole) = (0, 0);
    for seed in 0..150 {
        let mut rng = weir_base::Prng::new(seed);
        let net = NetConfig { cut: Odds::one_in(100), ..NetConfig::hostile(&mut rng) };
        let w = World::with(seed, Options { net, ..Options::default() });
        let (a, b) = (w.node("a"), w.node("b"));
        echo_server(&b);
        let clients: Vec<_> = (0..4).map(|_| echo_client(&a, &b)).collect();
        let (a2, b2) = (a.clone(), b.clone());
        w.after(400 * MILLIS, move |w| {
            w.net().calm();
            a2.kill();
            w.after(SECONDS, move |_| b2.power_off());
        });
        w.run_for(30 * SECONDS);
        assert_eq!(w.net().connections(), 0, "seed {seed}\n{}", w.dump());
        for (seen, _) in clients {
            match seen.closed.get() {
                true => broken += 1,
                false => whole += 1,
            }
        }
        w.run_until_idle(30 * SECONDS).expect("quiet in the end");
    }
    assert!(broken > 50 && whole > 10, "{broken} broken, {whole} whole");
}

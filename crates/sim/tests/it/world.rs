//! The world: one seed one trace, time, hangs, life and death of nodes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use weir_base::{MICROS, MILLIS, SECONDS};
use weir_reactor::{WaitChannel, handle, now, run_async, send_to, sleep, spawn};
use weir_sim::{Why, World};

/// A small program with much freedom of order: what it logs depends on the scheduler.
fn busy(seed: u64) -> (u64, Vec<u32>) {
    let w = World::new(seed);
    let log = Rc::new(RefCell::new(Vec::new()));
    let nodes = [w.node("a"), w.node_with("b", 2)];
    for i in 0..20u32 {
        let log = log.clone();
        let node = &nodes[i as usize % 2];
        node.spawn_on(i as usize % node.cores(), async move {
            for k in 0..5 {
                sleep(u64::from(i % 3) * 10 * MICROS).await;
                log.borrow_mut().push(i * 10 + k);
                run_async().await;
            }
        });
    }
    w.run_until_idle(SECONDS).expect("the program ends");
    let log = log.take();
    (w.trace_hash(), log)
}

#[test]
fn one_seed_one_trace() {
    let mut hashes = BTreeSet::new();
    let mut orders = BTreeSet::new();
    for seed in 0..50 {
        let (h1, l1) = busy(seed);
        let (h2, l2) = busy(seed);
        assert_eq!((h1, &l1), (h2, &l2), "seed {seed}");
        hashes.insert(h1);
        orders.insert(l1);
    }
    assert_eq!(hashes.len(), 50, "different seeds, different traces");
    assert!(orders.len() > 40, "the order of tasks differs: {}", orders.len());
}

#[test]
fn a_trace_in_words_is_the_same_run() {
    let run = |words: bool| {
        let w = World::new(3);
        if words {
            w.keep_words(false);
        }
        let n = w.node("n");
        w.run(&n, SECONDS, async { sleep(5 * MILLIS).await }).expect("it sleeps and ends");
        w.say(|| "end".to_string());
        assert_eq!(w.dump().contains("world: end"), words);
        w.trace_hash()
    };
    assert_eq!(run(false), run(true));
}

#[test]
fn time_passes_only_when_nothing_is_runnable_and_without_waiting() {
    let real = std::time::Instant::now();
    let w = World::new(1);
    let n = w.node("n");
    let slept = w.run(&n, 10_000 * SECONDS, async {
        let start = now();
        sleep(3600 * SECONDS).await;
        now() - start
    });
    let slept = slept.expect("an hour of virtual time");
    assert!((3600 * SECONDS..3601 * SECONDS).contains(&slept));
    assert!(real.elapsed().as_secs() < 60);
}

#[test]
fn clocks_of_nodes_disagree_but_run_at_one_speed() {
    let w = World::new(5);
    let (a, b) = (w.node("a"), w.node("b"));
    let t1 = (a.enter(weir_reactor::clock), b.enter(weir_reactor::clock));
    w.run_for(SECONDS);
    let t2 = (a.enter(weir_reactor::clock), b.enter(weir_reactor::clock));
    assert_ne!(t1.0, t1.1);
    assert_eq!(t2.0 - t1.0, SECONDS);
    assert_eq!(t2.1 - t1.1, SECONDS);
}

#[test]
fn a_hang_is_found_and_described() {
    let w = World::new(1);
    let n = w.node("lonely");
    let stuck = w.run(&n, SECONDS, async { WaitChannel::new(0).wait().await });
    let stuck = stuck.expect_err("nobody signals");
    assert_eq!(stuck.why, Why::Hang);
    assert!(stuck.dump.contains("lonely: 1 tasks"), "{stuck}");
}

#[test]
fn a_program_that_only_yields_meets_its_time_limit() {
    let w = World::new(1);
    let n = w.node("n");
    let stuck = w.run(&n, MILLIS, async {
        loop {
            run_async().await;
        }
    });
    let stuck: Result<(), _> = stuck;
    assert_eq!(stuck.expect_err("it never ends").why, Why::TimeLimit);
    assert!(w.now() >= MILLIS);
}

#[test]
fn the_time_limit_does_not_run_ahead_of_events() {
    let w = World::new(1);
    let n = w.node("n");
    let done = Rc::new(Cell::new(false));
    let d = done.clone();
    n.spawn(async move {
        sleep(10 * SECONDS).await;
        d.set(true);
    });
    let d = done.clone();
    let e = w.run_until(SECONDS, move || d.get()).expect_err("too early");
    assert_eq!((e.why, w.now()), (Why::TimeLimit, SECONDS));
    let d = done.clone();
    w.run_until(10 * SECONDS, move || d.get()).expect("now it is due");
}

#[test]
fn the_timeline_happens_in_order_between_the_turns_of_reactors() {
    let w = World::new(9);
    let n = w.node("n");
    let log = Rc::new(RefCell::new(Vec::new()));
    for ms in [5u64, 1, 3] {
        let log = log.clone();
        w.after(ms * MILLIS, move |w| log.borrow_mut().push((ms, w.now() / MILLIS)));
    }
    let l = log.clone();
    n.spawn(async move {
        sleep(4 * MILLIS).await;
        l.borrow_mut().push((4, 4));
    });
    w.run_until_idle(SECONDS).expect("four things happen");
    assert_eq!(*log.borrow(), [(1, 1), (3, 3), (4, 4), (5, 5)]);
}

struct Dropped(Rc<Cell<u32>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn kill_drops_all_tasks_and_restart_begins_anew() {
    let w = World::new(2);
    let n = w.node_with("n", 2);
    let drops = Rc::new(Cell::new(0));
    for core in 0..2 {
        let d = Dropped(drops.clone());
        n.spawn_on(core, async move {
            let _d = d;
            sleep(SECONDS).await;
        });
    }
    w.run_for(MILLIS);
    n.kill();
    assert_eq!(drops.get(), 2);
    assert!(!n.is_alive());
    n.kill();
    n.restart();
    n.restart();
    assert_eq!((n.is_alive(), n.lives()), (true, 2));
    assert_eq!(w.run(&n, SECONDS, async { 5 }).expect("a new life"), 5);
}

#[test]
fn a_task_may_kill_its_own_node_and_others() {
    let w = World::new(2);
    let (a, b) = (w.node("a"), w.node("b"));
    let (a2, b2) = (a.clone(), b.clone());
    let after = Rc::new(Cell::new(false));
    let af = after.clone();
    let e = w.run(&a, SECONDS, async move {
        b2.power_off();
        a2.kill();
        // The turn goes on to its next await, as a signal is delivered asynchronously.
        sleep(1).await;
        af.set(true);
    });
    assert_eq!(e.expect_err("it died").why, Why::Killed);
    assert!(!a.is_alive() && !b.is_alive() && !after.get());
}

#[test]
fn a_paused_node_stands_still_while_others_go_on() {
    let w = World::new(4);
    let (a, b) = (w.node("a"), w.node("b"));
    let ticks = |n: &weir_sim::Node| {
        let t = Rc::new(Cell::new(0u32));
        let t2 = t.clone();
        n.spawn(async move {
            loop {
                sleep(MILLIS).await;
                t2.set(t2.get() + 1);
            }
        });
        t
    };
    let (ta, tb) = (ticks(&a), ticks(&b));
    w.run_for(10 * MILLIS);
    a.pause(50 * MILLIS);
    let before = ta.get();
    w.run_for(40 * MILLIS);
    assert_eq!(ta.get(), before);
    assert!(tb.get() >= 45);
    w.run_for(30 * MILLIS);
    assert!(ta.get() >= before + 15);
}

#[test]
fn cores_of_a_node_work_through_their_mailboxes() {
    let w = World::new(6);
    let n = w.node_with("n", 3);
    let ids: Vec<u32> = (0..3).map(|c| n.enter_on(c, weir_reactor::current_id)).collect();
    let got = w.run(&n, SECONDS, async move {
        let (token, done) = weir_reactor::completion();
        let back = handle();
        let last = ids[2];
        send_to(ids[1], move || {
            spawn(async move {
                sleep(MICROS).await;
                send_to(last, move || back.complete(token, weir_reactor::Completion::ok(42)));
            });
        });
        done.await.len
    });
    assert_eq!(got.expect("round trip over three cores"), 42);
}

#[test]
fn rng_depends_on_seed_and_purpose_only() {
    let (a, b) = (World::new(1), World::new(1));
    a.run_for(SECONDS);
    assert_eq!(a.rng(7).next_u64(), b.rng(7).next_u64());
    assert_ne!(a.rng(7).next_u64(), a.rng(8).next_u64());
    assert_ne!(a.rng(7).next_u64(), World::new(2).rng(7).next_u64());
}

#[test]
fn dropping_a_world_drops_its_tasks() {
    let drops = Rc::new(Cell::new(0));
    let w = World::new(1);
    let d = Dropped(drops.clone());
    w.node("n").spawn(async move {
        let _d = d;
        std::future::pending::<()>().await;
    });
    w.run_for(MILLIS);
    drop(w);
    assert_eq!(drops.get(), 1);
}

#[test]
#[should_panic(expected = "cannot block its thread")]
fn block_on_is_refused() {
    let w = World::new(1);
    let r = w.node("n").reactor(0);
    r.block_on(weir_reactor::PollMode::Sleep, async { sleep(1).await });
}

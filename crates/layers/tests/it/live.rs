//! Changes of graphs of real layers under verified I/O.

use crate::common::{MemDisk, Model, World, ram, reactor, run};
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{MILLIS, Prng, SECONDS};
use weir_block::{Edit, Graph, GraphError, GraphSpec, Metering, NodeSpec, Volume};
use weir_layers::FaultSwitch;
use weir_mem::Slice;
use weir_reactor::{JoinHandle, PollMode, Reactor, sleep, spawn};

const LEN: u64 = 4 << 20;

fn spec() -> GraphSpec {
    let stripe = NodeSpec::new("s", "stripe").param("unit", "16KiB").over("a").over("d");
    GraphSpec::new("v", "s")
        .with(stripe)
        .with(ram("a", LEN))
        .with(NodeSpec::new("d", "disk").param("path", "d"))
}

fn world() -> World {
    let disk = MemDisk::with(LEN as usize, 512, |d| d.slow.set(20_000));
    let mut w = World::new().disk("d", disk);
    w.metering = Metering::All;
    w
}

/// Verified I/O until told to stop.
fn load(v: &Rc<dyn Volume>, stop: &Rc<Cell<bool>>, seed: u64) -> Vec<JoinHandle<(Model, usize)>> {
    let share = v.geometry().len / 4;
    (0..4)
        .map(|t| {
            let (v, stop) = (v.clone(), stop.clone());
            spawn(async move {
                let mut m = Model::new(v, seed * 10 + t, t * share, share);
                let mut steps = 0;
                while !stop.get() {
                    m.step().await.unwrap();
                    // The RAM half takes no time.
                    sleep(1000).await;
                    steps += 1;
                }
                (m, steps)
            })
        })
        .collect()
}

async fn apply(w: &World, g: &mut Graph, spec: GraphSpec, limit: u64) -> Result<(), GraphError> {
    let mut edit = w.context(|ctx| g.prepare(spec, ctx))?;
    edit.quiesce(limit).await?;
    g.commit(edit)
}

#[test]
fn layers_come_and_go_while_hosts_write() {
    for seed in 0..3 {
        run(async move {
            let w = world();
            let mut g = w.build(spec()).unwrap();
            let (top, stop) = (g.top(), Rc::new(Cell::new(false)));
            let load = load(&top, &stop, seed);
            let mut prng = Prng::new(seed);
            let edges = [(None, "s"), (Some("s"), "a"), (Some("s"), "d")];
            let mut failed = 0;
            for i in 0..40 {
                let mut s = spec();
                let (above, below) = edges[prng.below(3) as usize];
                let node = match prng.below(4) {
                    0 => NodeSpec::new("x", "delay").param("time", "3us").param("jitter", "30us"),
                    1 => NodeSpec::new("x", "linear"),
                    2 => NodeSpec::new("x", "junction"),
                    _ => NodeSpec::new("x", "stats"),
                };
                s.insert(node, above, below).unwrap();
                // Some attempts have too little time, and are rolled back.
                let limit = if prng.chance(1, 3) { prng.between(1, 30_000) } else { SECONDS };
                match apply(&w, &mut g, s.clone(), limit).await {
                    Ok(()) => assert_eq!(*g.spec(), s),
                    Err(e) => {
                        assert!(e.to_string().contains("did not end in time"), "{e}");
                        failed += 1;
                    }
                }
                sleep(prng.between(0, MILLIS)).await;
                if i % 3 == 0 {
                    apply(&w, &mut g, spec(), SECONDS).await.unwrap();
                }
            }
            stop.set(true);
            let mut steps = 0;
            for l in load {
                let (m, n) = l.await.unwrap();
                m.verify().await;
                steps += n;
            }
            assert!(steps > 100 && failed > 0, "{steps} {failed}");
            assert_eq!(g.top_junction().in_flight(), 0);
        });
    }
}

/// Two reactors with instances of one graph over the same memory and disk: both are held before either
/// is changed.
#[test]
fn all_cores_are_held_before_the_first_is_changed() {
    let (r1, r2) = (reactor(), reactor());
    let w = Rc::new(world());
    let make = |r: &Reactor| r.enter(|| w.build(spec()).unwrap());
    let (mut g1, mut g2) = (make(&r1), make(&r2));
    let stop = Rc::new(Cell::new(false));
    // Odd tasks' shares on one core, even ones' on the other.
    let l1 = r1.enter(|| load(&g1.top(), &stop, 1));
    l1.iter().skip(2).for_each(|l| r1.enter(|| l.cancel()));
    let l2 = r2.enter(|| load(&g2.top(), &stop, 2));
    l2.iter().take(2).for_each(|l| r2.enter(|| l.cancel()));
    let turn_both = |until: &dyn Fn() -> bool| {
        for _ in 0..100_000 {
            if until() {
                return;
            }
            for r in [&r1, &r2] {
                // A step of virtual time on each.
                let w = r.spawn(async { sleep(1000).await });
                r.block_on(PollMode::Sleep, w);
            }
        }
        panic!("it never happened");
    };
    let quiesce = |r: &Reactor, g: &Graph, spec: &GraphSpec| {
        let mut edit = r.enter(|| w.context(|ctx| g.prepare(spec.clone(), ctx).unwrap()));
        r.spawn(async move {
            edit.quiesce(SECONDS).await.unwrap();
            edit
        })
    };
    let take = |r: &Reactor, h: JoinHandle<Edit>| r.block_on(PollMode::Sleep, h).unwrap();
    for round in 0..10 {
        let mut s = spec();
        if round % 2 == 0 {
            let node = NodeSpec::new("x", "delay").param("time", "2us");
            s.insert(node, Some("s"), "a").unwrap();
        }
        let (e1, e2) = (quiesce(&r1, &g1, &s), quiesce(&r2, &g2, &s));
        turn_both(&|| e1.is_finished() && e2.is_finished());
        let (e1, e2) = (take(&r1, e1), take(&r2, e2));
        let changes = e1.touches().count();
        // After a roll-back the next round finds the graph as it wants it.
        let nothing = round % 3 == 0 && round > 0;
        assert_eq!((changes, nothing), (e2.touches().count(), changes == 0));
        if changes > 0 {
            assert!(g1.top_junction().is_closed() && g2.top_junction().is_closed());
            assert_eq!(g1.top_junction().in_flight() + g2.top_junction().in_flight(), 0);
        }
        if round % 3 == 2 {
            // One core could not: all go back.
            r1.enter(|| drop(e1));
            r2.enter(|| drop(e2));
        } else {
            r1.enter(|| g1.commit(e1).unwrap());
            r2.enter(|| g2.commit(e2).unwrap());
        }
        let turns = Cell::new(0);
        turn_both(&|| turns.replace(turns.get() + 1) > 200);
        assert!(!g1.top_junction().is_closed() && !g2.top_junction().is_closed());
    }
    stop.set(true);
    let mut steps = 0;
    for (r, loads) in [(&r1, l1), (&r2, l2)] {
        let left: Vec<_> = loads.into_iter().filter(|l| !l.is_finished()).collect();
        assert_eq!(left.len(), 2);
        for l in left {
            let (m, n) = r.block_on(PollMode::Sleep, async move { l.await.unwrap() });
            r.block_on(PollMode::Sleep, async move { m.verify().await });
            steps += n;
        }
    }
    assert!(steps > 100, "{steps}");
}

/// Direct memory in use holds a change back, so that nothing is written to memory that was taken out.
#[test]
fn direct_memory_holds_a_change_back() {
    run(async {
        let w = World::new();
        let one = GraphSpec::new("v", "a").with(ram("a", LEN));
        let mut g = w.build(one.clone()).unwrap();
        let top = g.top();
        let wire = top.direct(0, 4096).unwrap();
        let mut two = one;
        two.insert(NodeSpec::new("x", "delay").param("time", "1us"), None, "a").unwrap();
        let e = apply(&w, &mut g, two.clone(), MILLIS).await.unwrap_err();
        assert!(e.to_string().contains("did not end in time"), "{e}");
        let later = spawn(async move {
            sleep(MILLIS / 2).await;
            wire.fill(6);
        });
        apply(&w, &mut g, two, MILLIS).await.unwrap();
        assert!(later.is_finished());
        assert_eq!(crate::common::read(&*top, 0, 4096).await.unwrap(), [6; 4096]);
        assert!(top.direct(0, 4096).is_none(), "a delay gives none");
    });
}

/// A flush that fails below: the change is rolled back and says why.
#[test]
fn a_failed_flush_stops_a_change() {
    run(async {
        let w = World::new();
        let fault = NodeSpec::new("f", "fault").param("ops", "flush").param("on", false).over("a");
        let s = GraphSpec::new("v", "f").with(fault).with(ram("a", LEN));
        let mut g = w.build(s.clone()).unwrap();
        let switch = w.shared.get::<FaultSwitch>("v/f/fault").unwrap();
        switch.set(true);
        let mut without = s.clone();
        without.remove("f").unwrap();
        let e = apply(&w, &mut g, without.clone(), SECONDS).await.unwrap_err();
        assert!(e.to_string().contains("could not be flushed: unrecovered medium error"), "{e}");
        assert_eq!(g.spec(), &s);
        switch.set(false);
        apply(&w, &mut g, without, SECONDS).await.unwrap();
        g.top().write(0, Slice::heap(512), false).await.unwrap();
    });
}

/// A new layer does what the volume below does, in a rehearsal and in its place, or it does not come in; and nothing of the
/// volume is written to find out.
#[test]
fn a_layer_is_tried_before_hosts_use_it() {
    run(async {
        let mut w = World::new();
        w.metering = Metering::Served;
        let bare = GraphSpec::new("v", "a").with(ram("a", LEN));
        let mut g = w.build(bare.clone()).unwrap();
        let top = g.top();
        let data = crate::common::pattern(3, LEN as usize);
        crate::common::write(&*top, 0, &data).await.unwrap();
        let fault = |error: &str, ops: &str| {
            NodeSpec::new("x", "fault").param("error", error).param("ops", ops)
        };
        let slow = |time: &str| NodeSpec::new("x", "delay").param("time", time);
        for (node, words) in [
            (NodeSpec::new("x", "stats"), ""),
            (slow("10us"), ""),
            (slow("1s"), "its first read did not end within 100 ms"),
            (slow("1s").param("ops", "write"), "its first write did not end within 100 ms"),
            (fault("medium", "read"), "its first read failed: unrecovered medium error"),
            (fault("busy", "write"), "its first write failed"),
            (fault("busy", "write-zeroes"), "its first write of zeroes failed"),
            (fault("busy", "discard"), "its first discard failed"),
            (fault("offline", "flush"), "its first flush failed"),
            (fault("corrupt", "read"), "its first read gave other data"),
            (fault("corrupt-write", "write"), "its first write left other data behind"),
            (fault("lost", "write"), "its first write left other data behind"),
            (fault("medium", "read").param("from", LEN - 512), "its first read failed"),
            (fault("medium", "read").param("from", 4096u64).param("len", 4096u64), ""),
            (fault("medium", "all").param("on", false), ""),
            // What it does later is its business; it begins with nothing of the rehearsal.
            (fault("medium", "write").param("skip", 2u64), ""),
        ] {
            let mut spec = bare.clone();
            spec.insert(node.clone(), None, "a").unwrap();
            let mut edit = w.context(|ctx| g.prepare(spec.clone(), ctx)).unwrap();
            let rehearsal = w.context(|ctx| edit.rehearsal("x", ctx)).unwrap();
            let rehearsed = rehearsal.run(100 * MILLIS).await;
            let e = edit.trial("x", SECONDS).await.unwrap_err();
            assert!(e.to_string().contains("while I/O goes on"), "{e}");
            edit.hold_back(SECONDS).await.unwrap();
            let tried = edit.trial("x", 100 * MILLIS).await;
            match words {
                "" => {
                    rehearsed.and(tried).unwrap_or_else(|e| panic!("{node:?}: {e}"));
                    g.commit(edit).unwrap();
                    apply(&w, &mut g, bare.clone(), SECONDS).await.unwrap();
                }
                words => {
                    let e = rehearsed.expect_err(words).to_string();
                    assert!(e.contains("node `x`") && e.contains(words), "{node:?}: {e}");
                    // What it does to reads and flushes shows in its place as well.
                    assert_eq!(
                        tried.is_err(),
                        !words.contains("write") && !words.contains("discard"),
                        "{e}"
                    );
                    drop(edit);
                }
            }
            w.shared.forget_nodes("v", |n| n == "x");
            assert_eq!(*g.spec(), bare);
            assert!(crate::common::read(&*top, 0, data.len()).await.unwrap() == data, "{node:?}");
        }
        assert!(w.shared.meters().snapshot().keys().all(|k| k.starts_with("v/")));
    });
}

/// A layer that fails flushes can be taken out where nothing is held back; and what hosts did is counted on under one
/// name, whatever layer is the top.
#[test]
fn what_fails_is_taken_out_and_counts_go_on() {
    run(async {
        let mut w = World::new();
        w.metering = Metering::Served;
        let bare = GraphSpec::new("v", "a").with(ram("a", LEN));
        let mut with = bare.clone();
        let node = NodeSpec::new("f", "fault").param("ops", "flush");
        with.insert(node, None, "a").unwrap();
        let mut g = w.build(bare.clone()).unwrap();
        let top = g.top();
        let writes = |key: &str| {
            w.shared.meters().snapshot().get(key).map(|s| s.of(weir_block::Op::Write).ops)
        };
        crate::common::write(&*top, 0, &[1; 512]).await.unwrap();
        assert_eq!((writes("v/(hosts)"), writes("v/a")), (Some(1), None));
        apply(&w, &mut g, with, SECONDS).await.unwrap();
        assert!(top.flush().await.is_err());
        crate::common::write(&*top, 0, &[2; 512]).await.unwrap();
        assert_eq!((writes("v/(hosts)"), writes("v/a"), writes("v/f")), (Some(2), Some(1), None));
        assert!(apply(&w, &mut g, bare.clone(), SECONDS).await.is_err());
        let mut edit = w.context(|ctx| g.prepare(bare, ctx)).unwrap();
        edit.hold_back(SECONDS).await.unwrap();
        g.commit(edit).unwrap();
        top.flush().await.unwrap();
        crate::common::write(&*top, 0, &[3; 512]).await.unwrap();
        assert_eq!((writes("v/(hosts)"), writes("v/a")), (Some(3), Some(1)));
        w.shared.meters().forget_key("v/a");
        assert_eq!(writes("v/a"), None);
    });
}

/// What may come and go is what leaves every block where and what it is.
#[test]
fn kinds_that_may_come_and_go() {
    let r = weir_layers::registry();
    let may: Vec<_> = r.kinds().filter(|k| r.refusal(*k).is_none()).map(|k| k.name()).collect();
    assert_eq!(may, ["delay", "fault", "stats"]);
    let check = |n: &NodeSpec, force| r.check_passing(n, force).map_err(|e| e.to_string());
    let lossy = NodeSpec::new("x", "fault").param("error", "lost");
    assert_eq!(check(&lossy, true), Ok(()));
    assert!(check(&lossy, false).unwrap_err().contains("loses writes"));
    assert!(check(&NodeSpec::new("x", "ram"), true).unwrap_err().contains("data of its own"));
    assert!(check(&NodeSpec::new("x", "delay"), true).unwrap_err().contains("`time` is missing"));
}

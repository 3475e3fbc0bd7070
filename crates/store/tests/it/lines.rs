//! Stories by chance of snapshots, several of one instant among them, clones, reverts and deletions that take several
//! checkpoints, with losses of power: whatever is there has what it had, a scrub finds
//! nothing, and in the end nothing is in use.

use crate::bench::{B, Bench, MIB, first, spec, write};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_base::{MICROS, MILLIS, Prng};
use weir_block::Volume;
use weir_reactor::{sleep, spawn};
use weir_sim::Latency;
use weir_store::{Options, Pool, ScrubWatch, StoreError, check, create};

/// Blocks of a volume that are looked at, and how far one is from the next.
const N: u64 = 24;
const STEP: u64 = 97;
/// What is free in a narrow pool.
const ROOM: u64 = 700 * B;

/// What a volume or snapshot must hold. `other`: that will do, too, after a crash. `going`: it is being deleted.
#[derive(Clone, Debug)]
struct Set {
    snapshot: bool,
    content: Vec<u8>,
    other: Option<Vec<u8>>,
    going: bool,
}

type Model = Rc<RefCell<BTreeMap<String, Set>>>;

async fn content(p: &Pool, id: u32) -> Vec<u8> {
    let mut all = Vec::new();
    for k in 0..N {
        match first(p, id, k * STEP * B).await {
            Ok(b) => all.push(b),
            Err(e) => panic!("block {k} of {id}: {e}"),
        }
    }
    all
}

/// Writes each block of a volume that is looked at.
async fn write_all(p: &Pool, name: &str, id: u32, model: &Model, value: u8) {
    for k in 0..N {
        write(p, id, k * STEP * B, B, value).await.unwrap();
        model.borrow_mut().get_mut(name).unwrap().content[k as usize] = value;
    }
}

fn refused(r: Result<(), StoreError>) -> bool {
    match r {
        Ok(()) => false,
        Err(StoreError::Request(_)) => true,
        Err(e) => panic!("{e}"),
    }
}

/// Does so many things to a pool.
async fn life(p: Pool, model: Model, rng: Rc<RefCell<Prng>>, fresh: Rc<RefCell<u64>>, ops: u64) {
    let below = |n: u64| rng.borrow_mut().below(n);
    let pick = |f: &dyn Fn(&Set) -> bool| {
        let m = model.borrow();
        let all: Vec<String> =
            m.iter().filter(|(_, s)| !s.going && f(s)).map(|(n, _)| n.clone()).collect();
        match all.len() {
            0 => None,
            n => Some(all[below(n as u64) as usize].clone()),
        }
    };
    let name = |k: &str| {
        *fresh.borrow_mut() += 1;
        format!("{k}{:04}", fresh.borrow())
    };
    for _ in 0..ops {
        match below(24) {
            0..=9 => {
                let Some(v) = pick(&|s| !s.snapshot) else { continue };
                let id = p.find(&v).unwrap();
                let val = below(250) as u8 + 1;
                let k = below(N);
                if below(8) == 0 {
                    let n = below(N - k) + 1;
                    let vol = p.volume(id).unwrap();
                    vol.discard(k * STEP * B, n * STEP * B).await.unwrap();
                    for j in k..k + n {
                        model.borrow_mut().get_mut(&v).unwrap().content[j as usize] = 0;
                    }
                } else {
                    write(&p, id, k * STEP * B, B, val).await.unwrap();
                    model.borrow_mut().get_mut(&v).unwrap().content[k as usize] = val;
                }
            }
            10..=12 => p.checkpoint().await.unwrap(),
            13 => {
                let p = p.clone();
                spawn(async move {
                    let _ = p.checkpoint().await;
                });
            }
            14 | 15 => {
                if model.borrow().len() > 14 {
                    continue;
                }
                let Some(v) = pick(&|s| !s.snapshot) else { continue };
                let id = p.find(&v).unwrap();
                let n = below(3) + 1;
                let names: Vec<String> = (0..n).map(|_| name("s")).collect();
                let mut list: Vec<(u32, &str)> = names.iter().map(|n| (id, n.as_str())).collect();
                let other =
                    if below(3) == 0 { pick(&|s| !s.snapshot).filter(|o| *o != v) } else { None };
                let on = name("s");
                if let Some(o) = &other {
                    list.push((p.find(o).unwrap(), &on));
                }
                p.snapshot(&list, 0).await.unwrap();
                let c = model.borrow()[&v].content.clone();
                for n in names {
                    model.borrow_mut().insert(
                        n,
                        Set { snapshot: true, content: c.clone(), other: None, going: false },
                    );
                }
                if let Some(o) = other {
                    let c = model.borrow()[&o].content.clone();
                    model
                        .borrow_mut()
                        .insert(on, Set { snapshot: true, content: c, other: None, going: false });
                }
            }
            16 => {
                if model.borrow().len() > 14 {
                    continue;
                }
                let Some(s) = pick(&|s| s.snapshot) else { continue };
                let id = p.find(&s).unwrap();
                let n = name("c");
                if refused(p.clone_snapshot(id, &n).await.map(drop)) {
                    continue;
                }
                let c = model.borrow()[&s].content.clone();
                model
                    .borrow_mut()
                    .insert(n, Set { snapshot: false, content: c, other: None, going: false });
            }
            17..=19 => {
                let Some(s) = pick(&|_| true).filter(|n| n != "v") else { continue };
                let id = p.find(&s).unwrap();
                let p = p.clone();
                if below(2) == 0 {
                    if !refused(p.delete(id).await) {
                        model.borrow_mut().remove(&s);
                    }
                } else {
                    model.borrow_mut().get_mut(&s).unwrap().going = true;
                    let model = model.clone();
                    spawn(async move {
                        match p.delete(id).await {
                            Ok(()) => {
                                model.borrow_mut().remove(&s);
                            }
                            Err(StoreError::Request(_)) => {
                                model.borrow_mut().get_mut(&s).unwrap().going = false
                            }
                            Err(_) => {}
                        }
                    });
                }
            }
            20 | 21 => {
                let Some(s) = pick(&|s| s.snapshot) else { continue };
                let Some(d) = p.datasets().into_iter().find(|d| d.name == s && !d.deleting) else {
                    continue;
                };
                let all = p.datasets();
                let Some(v) = all.iter().find(|x| x.id == d.parent) else { continue };
                if model.borrow().get(&v.name).is_none_or(|m| m.going) {
                    continue;
                }
                if !refused(p.revert(v.id, d.id).await) {
                    let c = model.borrow()[&s].content.clone();
                    model.borrow_mut().get_mut(&v.name).unwrap().content = c;
                    // Then what it was before leads to what is nobody's.
                    if below(2) == 0 && !refused(p.delete(d.id).await) {
                        model.borrow_mut().remove(&s);
                        write_all(&p, &v.name, v.id, &model, below(250) as u8 + 1).await;
                    }
                }
            }
            22 => {
                let Some(s) = pick(&|_| true) else { continue };
                let Some(id) = p.find(&s) else { continue };
                let want = model.borrow()[&s].content.clone();
                assert_eq!(content(&p, id).await, want, "{s}");
            }
            _ => sleep(below(20) * MILLIS).await,
        }
        if let Some(t) = p.status().suspended {
            panic!("{t} {:?}", p.status().trouble)
        }
    }
    // On the way when it ends.
    match below(4) {
        0 => {
            let q = p.clone();
            spawn(async move {
                let _ = q.checkpoint().await;
            });
        }
        1 => {
            if let Some(s) = pick(&|s| s.snapshot)
                && let Some(d) = p.datasets().into_iter().find(|d| d.name == s && !d.deleting)
                && let Some(v) = p.datasets().into_iter().find(|x| x.id == d.parent)
                && model.borrow().get(&v.name).is_some_and(|m| !m.going)
            {
                let c = model.borrow()[&s].content.clone();
                model.borrow_mut().get_mut(&v.name).unwrap().other = Some(c);
                let q = p.clone();
                spawn(async move {
                    let _ = q.revert(v.id, d.id).await;
                });
            }
        }
        _ => {}
    }
    sleep(below(4000) * MICROS).await;
}

/// Scrubs that do not end, on devices that never fail.
async fn scrubs(p: Pool, mut rng: Prng) {
    loop {
        sleep(rng.below(10 * MILLIS)).await;
        let watch = Rc::new(ScrubWatch::default());
        let done = p.scrub_watched(0, watch.clone()).await;
        assert_eq!(watch.findings(), [], "{done:?}");
        if done.is_err() {
            return;
        }
    }
}

/// Several lives of a pool.
fn story(seed: u64) {
    let b = Bench::new(2 + (seed % 2) as usize, seed);
    let rng = Rc::new(RefCell::new(Prng::new(seed)));
    let copies = if seed.is_multiple_of(3) { 1 } else { 2 };
    let disks = b.all();
    let o = Options {
        reuse_at_once: seed.is_multiple_of(2),
        give_back: [1, 1, 2, 3, 256][(seed % 5) as usize],
        cache: [0, 1 << 20][(seed / 7 % 2) as usize],
        ..Options::default()
    };
    let is_narrow = seed / 2 % 2 == 1;
    if is_narrow {
        // What is deleted is there for longer.
        b.set(|c| c.flush = Latency::uniform(50 * MILLIS, 0));
    }
    let model: Model = Rc::default();
    let fresh = Rc::new(RefCell::new(0));
    let (o1, m) = (o.clone(), model.clone());
    b.run(async move {
        create(&disks, &spec(copies)).await.unwrap();
        let p = Pool::open(disks, o1).await.unwrap();
        for n in ["v", "w"] {
            p.create_volume(n, 64 * MIB, 4096).await.unwrap();
            m.borrow_mut().insert(
                n.into(),
                Set { snapshot: false, content: vec![0; N as usize], other: None, going: false },
            );
        }
        // Of half of them there is so little room that what is freed is soon used.
        let free = p.status().free;
        if is_narrow && free > ROOM {
            let rest = p.create_volume("rest", 64 * MIB, 4096).await.unwrap();
            write(&p, rest, 0, free - ROOM, 1).await.unwrap();
        }
        p.close().await.unwrap();
    });
    b.restart();
    for life_of in 0..6 {
        let disks = b.all();
        let (oo, model2, rng2, fresh2) = (o.clone(), model.clone(), rng.clone(), fresh.clone());
        b.run(async move {
            let p = Pool::open(disks, oo).await.unwrap();
            verify(&p, &model2).await;
            let ops = rng2.borrow_mut().below(120) + 5;
            spawn(scrubs(p.clone(), Prng::new(seed << 3 | life_of)));
            life(p, model2, rng2, fresh2, ops).await;
        });
        b.restart();
        let (disks, o) = (b.all(), o.clone());
        let report = b.run(check(disks, o)).unwrap();
        assert!(
            report.findings.is_empty(),
            "{:?}",
            &report.findings[..report.findings.len().min(5)]
        );
    }
    let disks = b.all();
    let m = model.clone();
    let (o2, o3) = (o.clone(), o);
    b.run(async move {
        let p = Pool::open(disks, o2).await.unwrap();
        verify(&p, &m).await;
        loop {
            let all: Vec<u32> = p.datasets().iter().map(|d| d.id).collect();
            if all.is_empty() {
                break;
            }
            for id in all {
                let _ = p.delete(id).await;
            }
            p.checkpoint().await.unwrap();
        }
        p.checkpoint().await.unwrap();
        p.checkpoint().await.unwrap();
        let s = p.status();
        assert!(s.total - s.free <= 2 * B, "{} of {}", s.free, s.total);
        p.close().await.unwrap();
    });
    let disks = b.all();
    let report = b.run(check(disks, o3)).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// After a crash: sees what is there, and whether it may be.
async fn verify(p: &Pool, model: &Model) {
    let names: Vec<String> = model.borrow().keys().cloned().collect();
    for n in names {
        let set = model.borrow()[&n].clone();
        let found = p.datasets().into_iter().find(|d| d.name == n && !d.deleting);
        let Some(d) = found else {
            assert!(set.going, "{n} is gone");
            model.borrow_mut().remove(&n);
            continue;
        };
        let now = content(p, d.id).await;
        assert!(now == set.content || Some(&now) == set.other.as_ref(), "{n}: {now:?} {set:?}");
        let mut m = model.borrow_mut();
        let s = m.get_mut(&n).unwrap();
        (s.content, s.other, s.going) = (now, None, false);
    }
}

#[test]
fn what_is_there_has_what_it_had() {
    (0..40).for_each(story);
}

#[cfg(feature = "planted")]
#[test]
fn blocks_that_go_with_a_snapshot_and_are_used_are_caught() {
    use weir_store::planted::{Bug, plant};
    let bugs = [
        Bug::RevertBesideTwin,
        Bug::TwinsAreOne,
        Bug::DeadEntryLost,
        Bug::DeletedStillRead,
        Bug::GarbageIsFollowed,
    ];
    let all = bugs.map(|bug| {
        plant(Some(bug));
        let seen = (0..160).any(|seed| std::panic::catch_unwind(|| story(seed)).is_err());
        plant(None);
        seen
    });
    assert_eq!(all, [true; 5]);
}

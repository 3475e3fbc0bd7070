//! Where volumes have data and where they have none: what is told is compared with what was done, and with what is read.

use crate::bench::{B, Bench, MIB, first, spec, write};
use crate::common::filled;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use weir_base::{MICROS, Prng};
use weir_block::{Allocation, Volume};
use weir_reactor::{sleep, spawn};
use weir_store::{Options, Pool, StoreVolume, create};

/// Bytes of the volumes: far more than the pool has.
const LEN: u64 = 1 << 50;
/// Blocks near which something is done: at the seams of leaves and of the nodes above them, and at the end.
const NEAR: [u64; 8] =
    [0, 330, 336 * 125 + 330, 336 * 126 * 9 - 6, 1 << 25, (1 << 30) - 5, 1 << 36, LEN / B - 20];
const AROUND: u64 = 20;

/// What a volume or snapshot has: its length in blocks, and the first byte of every block that was written.
#[derive(Clone, Default)]
struct Model {
    snapshot: bool,
    len: u64,
    blocks: BTreeMap<u64, u8>,
}

type Models = BTreeMap<String, Model>;

/// All that is told of a volume, stretch by stretch: first block, block after the last one, whether there are data.
async fn told(v: &StoreVolume, len: u64) -> Vec<(u64, u64, bool)> {
    let mut all = Vec::new();
    let mut at = 0;
    while at < len {
        let a = v.find_allocation(at * B, (len - at) * B).await;
        assert!(a.len > 0 && a.len.is_multiple_of(B), "at block {at}: {a:?}");
        all.push((at, at + a.len / B, a.mapped));
        at += a.len / B;
    }
    all
}

/// The same as it has to be: no stretch ends where the next one is the same.
fn stretches(m: &Model) -> Vec<(u64, u64, bool)> {
    let mut all: Vec<(u64, u64, bool)> = Vec::new();
    let mut at = 0;
    for b in m.blocks.keys().copied() {
        if at < b {
            all.push((at, b, false));
        }
        match all.last_mut() {
            Some((_, end, true)) if *end == b => *end += 1,
            _ => all.push((b, b + 1, true)),
        }
        at = b + 1;
    }
    if at < m.len {
        all.push((at, m.len, false));
    }
    all
}

async fn compare(p: &Pool, name: &str, m: &Model, rng: &mut Prng) {
    let id = p.find(name).unwrap();
    let v = p.volume(id).unwrap();
    let found = told(&v, m.len).await;
    assert_eq!(found, stretches(m), "{name}");
    for near in NEAR {
        let at = near + rng.below(AROUND);
        if at >= m.len {
            continue;
        }
        let has = m.blocks.get(&at).copied();
        assert_eq!(first(p, id, at * B).await, Ok(has.unwrap_or(0)), "{name}: block {at}");
        // Without waiting it may say that there are data where there are none, and not the other way round.
        let a = v.allocation(at * B, AROUND * B);
        let told = at..at + a.len.div_ceil(B);
        assert!(
            a.len > 0 && (a.mapped || m.blocks.range(told).next().is_none()),
            "{name}: {at} {a:?}"
        );
        // Within a block.
        let a = v.find_allocation(at * B + 512, 1024).await;
        assert_eq!(a, Allocation { mapped: has.is_some(), len: 1024 }, "{name}: block {at}");
    }
}

/// Does one thing to a pool.
async fn step(p: &Pool, models: &mut Models, rng: &mut Prng, fresh: &Cell<u32>) {
    let pick = |models: &Models, rng: &mut Prng, snapshot: bool| {
        let all: Vec<&String> =
            models.iter().filter(|(_, m)| m.snapshot == snapshot).map(|(n, _)| n).collect();
        (!all.is_empty()).then(|| all[rng.below(all.len() as u64) as usize].clone())
    };
    let what = rng.below(20);
    let Some(name) = pick(models, rng, what == 19) else { return };
    let id = p.find(&name).unwrap();
    let next = |kind: &str| {
        fresh.set(fresh.get() + 1);
        format!("{kind}{}", fresh.get())
    };
    let near = |rng: &mut Prng| NEAR[rng.below(NEAR.len() as u64) as usize] + rng.below(AROUND);
    let m = models.get_mut(&name).unwrap();
    let at = near(rng).min(m.len - 1);
    match what {
        0..=7 => {
            let n = (rng.below(9) + 1).min(m.len - at);
            // Zeros that are written have space, too.
            let value = rng.below(4) as u8;
            write(p, id, at * B, n * B, value).await.unwrap();
            m.blocks.extend((at..at + n).map(|b| (b, value)));
        }
        8 | 9 => {
            let v = p.volume(id).unwrap();
            v.write(at * B, filled(512, 9), false).await.unwrap();
            m.blocks.insert(at, 9);
        }
        10..=12 => {
            // A few blocks, or most of the volume.
            let end = match rng.below(3) {
                0 => near(rng).min(m.len).max(at + 1),
                _ => (at + rng.below(9) + 1).min(m.len),
            };
            p.volume(id).unwrap().discard(at * B, (end - at) * B).await.unwrap();
            m.blocks.retain(|b, _| *b < at || *b >= end);
        }
        13 | 14 => p.checkpoint().await.unwrap(),
        15 => {
            let len = match rng.below(3) {
                0 => LEN / B,
                _ => near(rng) + 1,
            };
            p.resize(id, len * B).await.unwrap();
            m.len = len;
            m.blocks.retain(|b, _| *b < len);
        }
        16 | 17 if models.len() < 6 => {
            let s = next("s");
            p.snapshot(&[(id, &s)], 0).await.unwrap();
            let model = Model { snapshot: true, ..models[&name].clone() };
            models.insert(s, model);
        }
        19 if models.len() < 6 => {
            let c = next("c");
            p.clone_snapshot(id, &c).await.unwrap();
            let model = Model { snapshot: false, ..models[&name].clone() };
            models.insert(c, model);
        }
        _ => {}
    }
}

/// Several lives of a pool, each of which ends with a loss of power or in order.
fn story(seed: u64) {
    let b = Bench::new(2, seed);
    let o = Options { cache: [0, 1 << 20][(seed % 2) as usize], ..Options::default() };
    let models: Rc<RefCell<Models>> = Rc::default();
    let (disks, m, options) = (b.all(), models.clone(), o.clone());
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, options).await.unwrap();
        p.create_volume("v", LEN, 512).await.unwrap();
        m.borrow_mut().insert("v".into(), Model { len: LEN / B, ..Model::default() });
        p.close().await.unwrap();
    });
    b.restart();
    let fresh = Rc::new(Cell::new(0));
    for life in 0..4 {
        let (disks, o, m, fresh) = (b.all(), o.clone(), models.clone(), fresh.clone());
        b.run(async move {
            let mut rng = Prng::new(seed * 8 + life);
            let mut models = m.take();
            let p = Pool::open(disks, o).await.unwrap();
            for round in 0..5 {
                for (name, m) in &models {
                    compare(&p, name, m, &mut rng).await;
                }
                if round < 4 {
                    for _ in 0..rng.below(7) {
                        step(&p, &mut models, &mut rng, &fresh).await;
                    }
                }
            }
            if rng.chance(1, 2) {
                p.close().await.unwrap();
            }
            m.replace(models);
        });
        b.restart();
    }
}

#[test]
fn what_is_told_is_what_was_done() {
    (0..60).for_each(story);
}

/// While it is found out how long a hole is, blocks of it are written, and given back. What was told to be a hole where somebody
/// had been answered that it was written.
fn outrun(seed: u64) -> Option<String> {
    let b = Bench::new(2, seed);
    let disks = b.all();
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options { cache: 0, ..Options::default() }).await.unwrap();
        let id = p.create_volume("v", LEN, 4096).await.unwrap();
        let far = 1 << 30;
        for at in [0, far] {
            write(&p, id, at * B, B, 1).await.unwrap();
        }
        p.checkpoint().await.unwrap();
        let (written, over) = (Rc::new(RefCell::new(BTreeSet::new())), Rc::new(Cell::new(false)));
        let mut all = Vec::new();
        for k in 0..4u64 {
            let (p, written, over) = (p.clone(), written.clone(), over.clone());
            all.push(spawn(async move {
                let mut rng = Prng::new(seed * 4 + k);
                while !over.get() {
                    let at = 1 + k + 4 * rng.below(200);
                    write(&p, id, at * B, B, 2).await.unwrap();
                    written.borrow_mut().insert(at);
                    sleep(rng.below(300) * MICROS).await;
                    written.borrow_mut().remove(&at);
                    p.volume(id).unwrap().discard(at * B, B).await.unwrap();
                }
            }));
        }
        let v = p.volume(id).unwrap();
        let mut wrong = None;
        for n in 0..100 {
            let a = v.find_allocation(B, LEN - B).await;
            let told = 1..1 + a.len.div_ceil(B);
            if !a.mapped
                && let Some(at) = written.borrow().range(told.clone()).next()
            {
                wrong
                    .get_or_insert(format!("answer {n}: {told:?} is a hole, and {at} was written"));
            }
            if n % 8 == 0 {
                p.checkpoint().await.unwrap();
            }
        }
        over.set(true);
        for one in all {
            one.await.unwrap();
        }
        let a = v.find_allocation(B, LEN - B).await;
        assert_eq!(a, Allocation { mapped: false, len: (far - 1) * B });
        wrong
    })
}

#[test]
fn what_is_written_meanwhile_is_no_hole() {
    assert_eq!((0..10).find_map(outrun), None);
}

#[test]
fn what_is_written_in_a_row_is_told_at_once() {
    let b = Bench::new(2, 1);
    let disks = b.all();
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        let id = p.create_volume("v", LEN, 4096).await.unwrap();
        write(&p, id, 7 * B, 2 * MIB, 1).await.unwrap();
        let v = p.volume(id).unwrap();
        for _ in 0..2 {
            let a = v.find_allocation(7 * B, LEN - 7 * B).await;
            assert_eq!(a, Allocation { mapped: true, len: 2 * MIB });
            assert_eq!(v.allocation(7 * B, LEN - 7 * B), a, "all of it is in memory");
            p.checkpoint().await.unwrap();
        }
        // A volume that is given back as a whole is one hole, before that is merged and after.
        v.discard(0, LEN).await.unwrap();
        for _ in 0..2 {
            let hole = Allocation { mapped: false, len: LEN };
            assert_eq!((v.find_allocation(0, LEN).await, v.allocation(0, LEN)), (hole, hole));
            p.checkpoint().await.unwrap();
        }
    });
}

/// The map is on the devices, and cannot be read there: what is told of two blocks that were written, with waiting and without.
fn unread() -> Vec<Allocation> {
    let b = Bench::new(1, 1);
    let disks = b.all();
    b.run(async move {
        create(&disks, &spec(1)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        let id = p.create_volume("v", LEN, 4096).await.unwrap();
        for at in [0, 1 << 30] {
            write(&p, id, at * B, B, 1).await.unwrap();
        }
        p.close().await.unwrap();
    });
    b.restart();
    let (disks, media) = (b.all(), b.media.clone());
    b.run(async move {
        let p = Pool::open(disks, Options::default()).await.unwrap();
        for (_, places) in p.blocks_in_use() {
            places.iter().for_each(|(d, at)| media[usize::from(*d)].rot(*at, 4096, 5));
        }
        let v = p.volume(p.find("v").unwrap()).unwrap();
        let mut all = Vec::new();
        for at in [0, 1 << 30] {
            all.push(v.allocation(at * B, B));
            all.push(v.find_allocation(at * B, B).await);
        }
        all
    })
}

#[test]
fn what_cannot_be_read_is_no_hole() {
    assert_eq!(unread(), [Allocation { mapped: true, len: B }; 4]);
}

#[test]
fn what_failed_with_the_pool_is_no_hole() {
    let b = Bench::new(2, 1);
    let (disks, media) = (b.all(), b.media.clone());
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        let id = p.create_volume("v", LEN, 4096).await.unwrap();
        let v = p.volume(id).unwrap();
        let hole = |len| Allocation { mapped: false, len };
        assert_eq!(v.find_allocation(0, LEN).await, hole(LEN));
        media.iter().for_each(|m| m.set_offline(true));
        assert!(write(&p, id, 8 * B, 2 * B, 1).await.is_err());
        assert!(p.status().suspended.is_some());
        for a in [v.find_allocation(0, LEN).await, v.allocation(0, LEN)] {
            assert_eq!(a, hole(8 * B));
        }
        // It may be found to have been written.
        let there = Allocation { mapped: true, len: 2 * B };
        assert_eq!(v.find_allocation(8 * B, LEN - 8 * B).await, there);
        assert_eq!(v.find_allocation(10 * B, LEN - 10 * B).await, hole(LEN - 10 * B));
    });
}

#[cfg(feature = "planted")]
#[test]
fn data_that_are_told_as_holes_are_caught() {
    use weir_store::planted::{Bug, plant};
    let stories = || (0..20).any(|seed| std::panic::catch_unwind(|| story(seed)).is_err());
    plant(Some(Bug::LoggedIsHole));
    let logged = stories();
    plant(Some(Bug::UnreadIsHole));
    let unread = (stories(), unread().iter().all(|a| !a.mapped));
    plant(Some(Bug::HoleOutrun));
    let outrun = (0..200).any(|seed| outrun(seed).is_some());
    plant(None);
    assert_eq!((logged, unread, outrun), (true, (true, true), true));
}

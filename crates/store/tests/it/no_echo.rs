//! A device that is filled takes writes of a block, and never gives it back.

use crate::bench::{B, Bench, MIB, first, write};
use crate::lacking::{left, numbers, pages_of, wait};
use crate::leaving::{Ill, IllDisk, ill};
use std::collections::BTreeSet;
use std::rc::Rc;
use weir_base::SECONDS;
use weir_disk::Disk;
use weir_reactor::sleep;
use weir_sim::SimMedium;
use weir_store::format::label::{Label, Layout};
use weir_store::format::page::PageKind;
use weir_store::{Options, Pool, PoolSpec, create};

const BLOCKS: u64 = 2 * MIB / B;

/// What is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filled {
    /// A device that takes another one's place.
    Replacing,
    /// The same, and a host writes meanwhile.
    Meanwhile,
    /// One that was away.
    Back,
}

/// A block that a host writes while a device takes another one's place.
const NEW: u64 = 40 * MIB / B;

/// A mirror; what is filled is `ill`, and has so many spare blocks.
fn filled(filled: Filled, spares: u64, ill: &Rc<Ill>, seconds: u64) -> (Bench, Pool) {
    let b = Bench::new(3, 7);
    let disk = |i: usize| -> Rc<dyn Disk> {
        let is_ill = i == if filled == Filled::Back { 1 } else { 2 };
        if is_ill { Rc::new(IllDisk(b.disk(i), ill.clone())) } else { b.disk(i) }
    };
    let (disks, new) = (vec![disk(0), disk(1)], disk(2));
    let media = b.media.clone();
    let p = b.run(async move {
        let spec = PoolSpec { spares, ..crate::bench::spec(2) };
        create(&disks, &spec).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        p.settled().await.unwrap();
        media[1].set_offline(filled == Filled::Back);
        write(&p, 1, 0, BLOCKS * B, 1).await.unwrap();
        p.checkpoint().await.unwrap();
        match filled {
            Filled::Replacing | Filled::Meanwhile => {
                media[0].set_offline(true);
                write(&p, 1, 48 * MIB, B, 2).await.unwrap();
                if filled == Filled::Meanwhile {
                    p.set_fill_rate(200 * B);
                }
                p.replace(0, new).await.unwrap();
                if filled == Filled::Meanwhile {
                    sleep(SECONDS).await;
                    write(&p, 1, NEW * B, B, 1).await.unwrap();
                    p.set_fill_rate(0);
                }
            }
            Filled::Back => {
                media[1].set_offline(false);
                p.resync().await.unwrap();
            }
        }
        sleep(seconds * SECONDS).await;
        p
    });
    (b, p)
}

/// Those of which one is not given back.
fn blocks(of: Filled) -> std::ops::Range<u64> {
    if of == Filled::Meanwhile { NEW..NEW + 1 } else { 0..BLOCKS }
}

/// The first place of a block on the device that is filled.
fn place(of: Filled, spares: u64) -> u64 {
    let (b, p) = filled(of, spares, &ill(), 600);
    let device = if of == Filled::Back { 1 } else { 2 };
    b.run(async move {
        let mut all = Vec::new();
        for k in blocks(of) {
            let places = p.volume(1).unwrap().locate(k * B).await.unwrap();
            all.extend(places.into_iter().filter(|(d, _)| *d == device).map(|(_, at)| at));
        }
        all.into_iter().min().unwrap()
    })
}

/// A device is filled that has so many spare blocks, and never gives back one block. Whether the pool is whole after ninety seconds,
/// how many spares were used, and the blocks that cannot be read in the end from that device alone.
fn without_echo(of: Filled, spares: u64) -> (bool, u32, Vec<u64>) {
    let ill = ill();
    ill.deaf.borrow_mut().insert(place(of, spares));
    let (b, p) = filled(of, spares, &ill, 90);
    let s = p.status();
    let whole = s.whole && (of == Filled::Back || numbers(&p) == [1, 2]);
    let device = if of == Filled::Back { 1 } else { 2 };
    let replaced = s.devices.iter().find(|d| d.number == device).map_or(0, |d| d.replaced);
    let other = if of == Filled::Back { 0 } else { 1 };
    b.media[other].set_offline(true);
    wait(&b, 1);
    let bad = b.run(async move {
        let mut bad = Vec::new();
        for k in (0..BLOCKS).chain(blocks(of)) {
            if first(&p, 1, k * B).await != Ok(1) {
                bad.push(k);
            }
        }
        bad
    });
    (whole, replaced, bad)
}

#[test]
fn a_spare_takes_the_place_of_a_block_that_is_never_given_back() {
    for of in [Filled::Replacing, Filled::Back] {
        assert_eq!(without_echo(of, 8), (true, 1, vec![]), "{of:?}");
    }
}

#[test]
fn a_slab_moves_elsewhere_if_its_new_place_does_not_give_a_block_back() {
    for of in [Filled::Replacing, Filled::Meanwhile] {
        assert_eq!(without_echo(of, 0), (true, 0, vec![]), "{of:?}");
    }
}

/// How a device is laid out, as another one is in its size.
fn layout_of(m: &SimMedium, like: &SimMedium) -> Layout {
    let mut label = [0; B as usize];
    like.peek(0, &mut label);
    let l = Label::decode(&label).unwrap().layout;
    Layout::plan(m.len() / B, l.slab_shift, l.log_pages, l.table_pages, l.spares).unwrap()
}

/// Where a byte of a device is within its slab.
fn at_in(l: &Layout, at: u64) -> u64 {
    (at - l.extent(0) * B) % (B << l.slab_shift)
}

/// The same places of all slabs.
fn everywhere(l: &Layout, within: &BTreeSet<u64>) -> Vec<u64> {
    (0..l.extents).flat_map(|e| within.iter().map(move |w| l.extent(e) * B + w)).collect()
}

/// A device of a mirror of three is dead, and one that is larger takes its place. That has no spare blocks, and nowhere gives back what
/// is written to one block of each slab. Whether anything is left on the dead one, and the blocks that cannot be read without the
/// partner of that one.
fn nowhere(seconds: u64) -> (Option<u32>, Vec<u64>) {
    let b = crate::older::sized(&[8 * MIB, 8 * MIB, 8 * MIB, 16 * MIB], 7);
    let ill = ill();
    let new: Rc<dyn Disk> = Rc::new(IllDisk(b.disk(3), ill.clone()));
    let (disks, media) = (b.disks(&[0, 1, 2]), b.media.clone());
    let p = b.run(async move {
        let spec = PoolSpec { spares: 0, ..crate::bench::spec(2) };
        create(&disks, &spec).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, BLOCKS * B, 1).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        let places = p.volume(1).unwrap().locate(0).await.unwrap();
        assert_eq!(places.iter().map(|(d, _)| *d).collect::<Vec<_>>(), [0, 1]);
        let within = at_in(&layout_of(&media[0], &media[0]), places[0].1);
        let like = layout_of(&media[3], &media[0]);
        ill.deaf.borrow_mut().extend(everywhere(&like, &BTreeSet::from([within])));
        media[0].set_offline(true);
        write(&p, 1, 48 * MIB, B, 2).await.unwrap();
        p.replace(0, new).await.unwrap();
        p
    });
    wait(&b, seconds);
    let left = left(&p);
    b.media[1].set_offline(true);
    wait(&b, 1);
    let bad = b.run(async move {
        let mut bad = Vec::new();
        for k in 0..BLOCKS {
            if first(&p, 1, k * B).await != Ok(1) {
                bad.push(k);
            }
        }
        bad
    });
    (left, bad)
}

#[test]
fn what_one_device_does_not_give_back_moves_to_another_one() {
    assert_eq!(nowhere(3600), (None, vec![]));
}

/// What comes of a device that takes the place of another one.
struct Heads {
    /// What it has of the use of blocks.
    all: Vec<u64>,
    like: Layout,
    /// What is left on the old one.
    left: Option<u32>,
    /// How the pool opens again.
    opened: Result<u8, String>,
    /// What it has told meanwhile.
    told: BTreeSet<String>,
}

/// The one device of a pool, which has no second copies and no spare blocks, is replaced by another one. That never gives back what it
/// took where `deaf` is.
fn heads(deaf: &[u64]) -> Heads {
    heads_of(deaf, false)
}

/// The same; the old one may have a block that it cannot read.
fn heads_of(deaf: &[u64], unread: bool) -> Heads {
    let (b, ill, old) = (Bench::new(2, 7), ill(), crate::leaving::ill());
    ill.deaf.borrow_mut().extend(deaf);
    let mine = old.clone();
    let (old, new): (Rc<dyn Disk>, Rc<dyn Disk>) =
        (Rc::new(IllDisk(b.disk(0), old)), Rc::new(IllDisk(b.disk(1), ill)));
    let again = vec![old.clone(), new.clone()];
    let (left, told) = b.run(async move {
        let spec = PoolSpec { spares: 0, ..crate::bench::spec(1) };
        create(std::slice::from_ref(&old), &spec).await.unwrap();
        let p = Pool::open(vec![old], Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, BLOCKS * B, 1).await.unwrap();
        p.settled().await.unwrap();
        if unread {
            p.checkpoint().await.unwrap();
            let places = p.volume(1).unwrap().locate(0).await.unwrap();
            mine.deaf.borrow_mut().insert(places[0].1);
        }
        p.replace(0, new).await.unwrap();
        let mut told = BTreeSet::new();
        for _ in 0..90 {
            sleep(SECONDS).await;
            told.extend(p.status().trouble);
        }
        let left = left(&p);
        p.close().await.unwrap();
        (left, told)
    });
    let all = pages_of(&b.media[1], &|h| h.kind == PageKind::SlabMeta);
    let opened = b.run(async move {
        let there = if left.is_none() { again[1..].to_vec() } else { again };
        let p = Pool::open(there, Options::default()).await.map_err(|e| e.to_string())?;
        first(&p, 1, 0).await.map_err(|e| format!("{e:?}"))
    });
    Heads { all, like: layout_of(&b.media[1], &b.media[1]), left, opened, told }
}

/// The same when the head of a slab, in both places that it has, is not given back, wherever the slab goes.
fn without_head() -> (Option<u32>, Result<u8, String>) {
    let Heads { all, like, .. } = heads(&[]);
    let within = all.into_iter().map(|at| at_in(&like, at)).collect();
    let Heads { left, opened, told, .. } = heads(&everywhere(&like, &within));
    // All that it has can be read.
    assert!(told.iter().all(|t| t.contains("no place that gives back")), "{told:?}");
    (left, opened)
}

#[test]
fn what_only_lacks_a_place_is_told_beside_what_cannot_be_read() {
    let Heads { all, like, .. } = heads(&[]);
    let within = all.into_iter().map(|at| at_in(&like, at)).collect();
    let Heads { left, told, .. } = heads_of(&everywhere(&like, &within), true);
    // Who pulled it out would lose what can be read.
    let both = |t: &String| t.contains("3 slabs find no place") && t.contains("on 1 slabs");
    assert!(left == Some(4) && told.iter().any(both), "{left:?} {told:?}");
    assert!(!told.iter().any(|t| t.contains("pull")), "{told:?}");
}

/// The same where only the place is like that to which the first slab goes.
fn without_first_head() -> (Option<u32>, Result<u8, String>, BTreeSet<String>) {
    let all = heads(&[]).all;
    let near = |at: &u64| *at < all[0] + 16 * B;
    let found = heads(&all.iter().copied().filter(near).collect::<Vec<_>>());
    (found.left, found.opened, found.told)
}

#[test]
fn a_slab_goes_elsewhere_at_once_if_its_new_place_does_not_give_something_back() {
    assert_eq!(without_first_head(), (None, Ok(1), BTreeSet::new()));
}

#[test]
fn a_slab_stays_if_its_new_place_does_not_give_back_the_use_of_its_blocks() {
    assert_eq!(without_head(), (Some(4), Ok(1)));
}

#[test]
fn a_device_that_has_no_spare_for_what_it_does_not_give_back_is_not_in_service() {
    let (whole, replaced, _) = without_echo(Filled::Back, 0);
    assert_eq!((whole, replaced), (false, 0));
}

#[cfg(feature = "planted")]
#[test]
fn planted_bugs_are_caught() {
    use weir_store::planted::{Bug, plant};
    let all = [(Filled::Replacing, 8), (Filled::Back, 8), (Filled::Replacing, 0)];
    for (of, spares) in all {
        plant(Some(Bug::EchoAwaited));
        let (whole, ..) = without_echo(of, spares);
        plant(None);
        assert!(!whole, "{of:?} {spares}");
    }
    plant(Some(Bug::PoorIsRoom));
    let nowhere = nowhere(120);
    plant(Some(Bug::HeldMoves));
    let (meanwhile, head) = (without_echo(Filled::Meanwhile, 0), without_head());
    plant(None);
    assert!(nowhere.0.is_some(), "{nowhere:?}");
    assert_eq!((meanwhile.2, head.1.is_err()), (vec![NEW], true));
}

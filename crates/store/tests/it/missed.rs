//! What a walk over the maps must not miss though they change while it looks, and become what they were.

use crate::bench::{B, Bench, LIMIT, MIB, first, newest, spec, write};
use std::rc::Rc;
use weir_base::{IoError, MILLIS};
use weir_disk::Disk;
use weir_reactor::sleep;
use weir_store::format::LAST_EPOCH;
use weir_store::format::label::Label;
use weir_store::format::tree::LEAF;
use weir_store::{Options, Pool, create};

/// Pieces of the map, and blocks that are written in each.
const PIECES: u64 = 16;
const EACH: u64 = 8;
/// The piece that changes.
const PIECE: u64 = 8;

/// What is filled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Filled {
    /// The place of the only device of a pool.
    Replaced,
    /// One of two devices that was away when all was written.
    Back,
}

fn at(piece: u64, block: u64) -> u64 {
    (piece * LEAF as u64 + block) * B
}

async fn wrong(p: &Pool) -> Vec<(u64, u64, Result<u8, IoError>)> {
    let mut all = Vec::new();
    for (piece, block) in (0..PIECES).flat_map(|k| (0..EACH).map(move |i| (k, i))) {
        let found = first(p, 1, at(piece, block)).await;
        if found != Ok(1) {
            all.push((piece, block, found));
        }
    }
    all
}

/// What device 1 does not have by itself.
fn alone(b: &Bench) -> Vec<(u64, u64, Result<u8, IoError>)> {
    let node = b.w.node("alone");
    node.attach(&b.media[1].copy("alone", 1));
    let disk: Rc<dyn Disk> = node.disk("alone");
    let o = Options { force: true, lineage: 99, resync: false, ..Options::default() };
    let found = b.w.run(&node, LIMIT, async move {
        let p = Pool::open(vec![disk], o).await.expect("opens");
        wrong(&p).await
    });
    found.unwrap()
}

/// Waits until so many eighths of all work are done.
async fn eighths(p: &Pool, n: u64) {
    while p.status().work.is_none_or(|w| w.total == 0 || w.done * 8 < w.total * n) {
        sleep(50 * MILLIS).await;
    }
}

/// While a device is filled, a volume is written to ahead of each walk, and reverted to its snapshot behind it. What the device that
/// was filled does not have in the end.
fn reverted(filled: Filled) -> Vec<(u64, u64, Result<u8, IoError>)> {
    let b = Bench::new(2, 7);
    let copies = if filled == Filled::Back { 2 } else { 1 };
    let (disks, new) = (b.disks(if copies == 2 { &[0, 1] } else { &[0] }), b.disk(1));
    let away = b.media[1].clone();
    b.run(async move {
        create(&disks, &spec(copies)).await.unwrap();
        let o = Options { resync: false, ..Options::default() };
        let p = Pool::open(disks, o).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        p.settled().await.unwrap();
        away.set_offline(filled == Filled::Back);
        for piece in 0..PIECES {
            write(&p, 1, at(piece, 0), EACH * B, 1).await.unwrap();
        }
        let s = p.snapshot(&[(1, "v@s")], 0).await.unwrap()[0];
        p.checkpoint().await.unwrap();
        p.set_fill_rate(20 * B);
        away.set_offline(false);
        match filled {
            Filled::Replaced => drop(p.replace(0, new).await.unwrap()),
            Filled::Back => p.resync().await.unwrap(),
        }
        // Once while it is copied, and once while that is proved.
        for begin in [1, 5] {
            eighths(&p, begin).await;
            write(&p, 1, at(PIECE, 1), B, 2).await.unwrap();
            p.checkpoint().await.unwrap();
            eighths(&p, begin + 2).await;
            p.revert(1, s).await.unwrap();
        }
        p.set_fill_rate(0);
        p.settled().await.unwrap();
        p.close().await.unwrap();
    });
    alone(&b)
}

#[test]
fn a_volume_that_becomes_what_it_was_beside_a_fill_is_filled() {
    for filled in [Filled::Replaced, Filled::Back] {
        assert_eq!(reverted(filled), []);
    }
}

/// In the last epoch, in which places are used again under the same number. What a device lacks that was away when all was written,
/// if pieces of the map take the places of others while it is filled.
fn in_the_last_epoch() -> Vec<(u64, u64, Result<u8, IoError>)> {
    let b = Bench::new(2, 7);
    let disks = b.all();
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        p.close().await.unwrap();
    });
    let mut s = newest(&b.media[0]).unwrap();
    s.epoch = LAST_EPOCH;
    for (m, member) in b.media.iter().zip(&s.members) {
        let mut label = [0; B as usize];
        m.peek(0, &mut label);
        let layout = Label::decode(&label).unwrap().layout;
        for area in 0..2 {
            let at = layout.superblock(u64::from(area), s.seq) * B;
            m.poke(at, &s.encode(member.device, area)[..]);
        }
    }
    let (disks, away) = (b.all(), b.media[1].clone());
    b.run(async move {
        let o = Options { resync: false, reuse_at_once: true, ..Options::default() };
        let p = Pool::open(disks, o).await.unwrap();
        assert_eq!(p.status().epoch, LAST_EPOCH);
        away.set_offline(true);
        for piece in 0..PIECES {
            write(&p, 1, at(piece, 0), EACH * B, 1).await.unwrap();
        }
        p.checkpoint().await.unwrap();
        p.set_fill_rate(20 * B);
        away.set_offline(false);
        p.resync().await.unwrap();
        for begin in [3, 6] {
            eighths(&p, begin).await;
            for pieces in [0..4, PIECES - 4..PIECES] {
                for piece in pieces {
                    write(&p, 1, at(piece, 1), B, 1).await.unwrap();
                }
                for _ in 0..3 {
                    p.checkpoint().await.unwrap();
                }
            }
        }
        p.set_fill_rate(0);
        p.settled().await.unwrap();
        p.close().await.unwrap();
    });
    alone(&b)
}

#[test]
fn what_takes_the_place_of_what_was_filled_is_filled_in_the_last_epoch_too() {
    assert_eq!(in_the_last_epoch(), []);
}

#[cfg(feature = "planted")]
#[test]
fn planted_bugs_are_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::SeenAfterRevert));
    let back = reverted(Filled::Back);
    plant(Some(Bug::LackingUnasked));
    let replaced = reverted(Filled::Replaced);
    plant(Some(Bug::SeenByPlace));
    let last = in_the_last_epoch();
    plant(None);
    assert!(!last.is_empty());
    assert!(!back.is_empty() && !replaced.is_empty());
}

//! What a walk over the maps must not miss though they change while it looks, and become what they were.

use crate::bench::{B, Bench, LIMIT, MIB, first, spec, write};
use std::rc::Rc;
use weir_base::{IoError, MILLIS};
use weir_disk::Disk;
use weir_reactor::sleep;
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

/// Waits until so many eighths of all work are done.
async fn eighths(p: &Pool, n: u64) {
    while p.status().work.is_none_or(|w| w.total == 0 || w.done * 8 < w.total * n) {
        sleep(50 * MILLIS).await;
    }
}

/// While a device is filled a volume is written to where neither walk has been, and becomes what its snapshot is when they are past
/// that. What the device that was filled does not have in the end.
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

#[test]
fn a_volume_that_becomes_what_it_was_beside_a_fill_is_filled() {
    for filled in [Filled::Replaced, Filled::Back] {
        assert_eq!(reverted(filled), []);
    }
}

#[cfg(feature = "planted")]
#[test]
fn planted_bugs_are_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::SeenAfterRevert));
    let back = reverted(Filled::Back);
    plant(Some(Bug::LackingUnasked));
    let replaced = reverted(Filled::Replaced);
    plant(None);
    assert!(!back.is_empty() && !replaced.is_empty());
}

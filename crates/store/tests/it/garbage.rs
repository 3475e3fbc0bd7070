//! What is left of a deleted clone, and of what a volume was before a revert, leads to what is somebody else's by now.

use crate::bench::{B, Bench, MIB, write};
use std::ops::Range;
use std::rc::Rc;
use weir_base::MILLIS;
use weir_sim::Latency;
use weir_store::dump::Dump;
#[cfg(feature = "planted")]
use weir_store::planted::Bug;
use weir_store::{Options, Pool, PoolSpec, ScrubWatch, create};

/// What a leaf of a map leads to.
const LEAF: u64 = 336 * B;
const LEAVES: u64 = 48;

/// Writes some of what each leaf leads to.
async fn fill(p: &Pool, id: u32, leaves: Range<u64>, len: u64, value: u8) {
    for k in leaves {
        write(p, id, k * LEAF, len, value).await.unwrap();
    }
}

/// What a scrub finds on well devices while most is left of `v` as it was before a revert, or of a clone, whose snapshot is
/// gone, and of which others have got the space.
fn found(reverts: bool) -> u64 {
    scrubbed(reverts, false).0
}

/// The same, and what volumes are told of. `lost`: nobody can read any more what one block of it had.
fn scrubbed(reverts: bool, lost: bool) -> (u64, u64) {
    let b = Bench::new(2, 9);
    let (disks, media) = (b.all(), b.media.clone());
    let spec = PoolSpec { slab_shift: 8, log_pages: 256, ..PoolSpec::fitting(77, 2, 0) };
    b.run(async move {
        create(&disks, &spec).await.unwrap();
        let o = Options { give_back: 1, reuse_at_once: true, ..Options::default() };
        let p = Pool::open(disks.clone(), o).await.unwrap();
        let v = p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        let other = p.create_volume("other", 64 * MIB, 4096).await.unwrap();
        write(&p, other, 0, 600 * B, 4).await.unwrap();
        fill(&p, v, 0..LEAVES, 8 * B, 1).await;
        p.checkpoint().await.unwrap();
        let s = p.snapshot(&[(v, "s")], 1).await.unwrap()[0];
        p.checkpoint().await.unwrap();
        let goes = if reverts { v } else { p.clone_snapshot(s, "c").await.unwrap() };
        // Its leaves are its own from now on, most of what they lead to is not.
        fill(&p, goes, 0..LEAVES, B, 2).await;
        p.checkpoint().await.unwrap();
        if lost {
            for (d, at) in p.volume(goes).unwrap().locate((LEAVES - 8) * LEAF).await.unwrap() {
                media[usize::from(d)].poke(at, &[0x77; 4096]);
            }
        }
        for m in media {
            m.set_config(|c| c.flush = Latency::uniform(100 * MILLIS, 0));
        }
        match reverts {
            true => p.revert(v, s).await.unwrap(),
            false => p.delete(goes).await.unwrap(),
        }
        p.delete(s).await.unwrap();
        for byte in 3..7 {
            fill(&p, v, LEAVES - 4..LEAVES, 8 * B, byte).await;
            p.checkpoint().await.unwrap();
        }
        let left = p.datasets().into_iter().find(|d| d.deleting).expect("it is there yet").id;
        let dump = Dump::open(disks).await.unwrap();
        for (block, is_its) in [(0, true), (2, false)] {
            let lba = (LEAVES - 1) * LEAF / B + block;
            let seen = dump.map(left, lba).await.unwrap().parts.pop().expect("it is there");
            assert_eq!(seen.what != "others'", is_its, "{seen:?}");
        }
        let watch = Rc::new(ScrubWatch::default());
        let report = p.scrub_watched(0, watch.clone()).await.unwrap();
        let devices = p.status().devices;
        let unclean = devices.iter().filter(|d| !watch.is_clean(d.id)).count() as u64;
        let told = watch.findings().iter().filter(|f| f.whose.is_some()).count();
        let told = told as u64 + report.lost + p.losses().len() as u64;
        (report.damaged + report.lost + report.repaired + watch.found() + unclean, told)
    })
}

#[test]
fn a_scrub_does_not_follow_what_is_left_of_a_deleted_clone() {
    assert_eq!(found(false), 0);
}

#[test]
fn a_scrub_does_not_follow_what_a_volume_was_before_a_revert() {
    assert_eq!(found(true), 0);
}

/// Devices have lost something, but no volume has.
#[test]
fn no_volume_is_told_of_what_is_left() {
    for reverts in [false, true] {
        let (found, told) = scrubbed(reverts, true);
        assert!(found > 0 && told == 0, "{reverts}: {found}, {told}");
    }
}

#[cfg(feature = "planted")]
#[test]
fn a_volume_that_is_told_of_what_is_left_is_caught() {
    for reverts in [false, true] {
        let (_, told) = crate::bench::with(Bug::GarbageIsTold, || scrubbed(reverts, true));
        assert!(told > 0, "{reverts}");
    }
}

#[cfg(feature = "planted")]
#[test]
fn a_scrub_that_follows_what_is_left_is_caught() {
    for reverts in [false, true] {
        assert!(crate::bench::with(Bug::GarbageIsFollowed, || found(reverts)) > 0, "{reverts}");
    }
}

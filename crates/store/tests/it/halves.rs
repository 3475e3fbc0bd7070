//! Pools that two nodes share, opened by one of them: what it finds on the halves, and what that proves.

use crate::bench::{B, Bench, first, newest, write};
use crate::common::filled;
use crate::older::Scratched;
use crate::owned::{Told, both, make, only, open, owner, owner_of, why};
use std::cell::Cell;
use std::rc::Rc;
use weir_base::SECONDS;
use weir_block::Volume;
use weir_disk::Disk;
use weir_sim::SimMedium;
use weir_store::format::label::{Label, Layout};
use weir_store::{Options, Pool};

fn told() -> Rc<Told> {
    Rc::new(Told { answer: Cell::new(Some(true)), ..Told::default() })
}

fn layout(m: &SimMedium) -> Layout {
    let mut label = [0; B as usize];
    m.peek(0, &mut label);
    Label::decode(&label).unwrap().layout
}

/// The bytes of the log on a device: where they begin, and how many they are.
fn log(m: &SimMedium) -> (u64, u64) {
    let layout = layout(m);
    (layout.log(0) * B, layout.log_pages * B)
}

fn pair(b: &Bench) -> [Rc<dyn Disk>; 2] {
    [b.disk(0), b.disk(1)]
}

/// Opens it, writes a block, and lets go of it.
async fn written(disks: &[Rc<dyn Disk>], options: Options, value: u8) {
    let p = open(disks, options).await.unwrap();
    for k in 0..4 {
        write(&p, 1, k * B, B, value).await.unwrap();
    }
    std::mem::forget(p);
}

#[test]
fn a_half_that_does_not_open_takes_nothing_from_the_other_one() {
    let b = Bench::new(2, 0);
    let told = told();
    let (disks, t) = (pair(&b), told.clone());
    b.run(async move {
        make(&disks).await;
        written(&disks, owner(1, both(), &t), 1).await;
    });
    b.restart();
    let (at, len) = log(&b.media[1]);
    b.media[1].fail_reads(at, len);
    let (disks, t) = (pair(&b), told.clone());
    b.run(async move {
        let refused = why(open(&disks[1..], owner_of(2, 2, both(), &t)).await);
        assert!(refused.contains("cannot be read"), "{refused}");
        assert!(t.fewer.borrow().is_empty());
        // So that has everything still, and counts.
        let p = open(&disks[..1], owner(3, both(), &t)).await.unwrap();
        assert_eq!((first(&p, 1, 0).await, t.fewer.take()), (Ok(1), vec![only(1)]));
    });
}

/// Device 2 is an old copy that lacks one superblock, and what node 1 has acknowledged since. So many pages of the log of device 1 cannot
/// be read. It is opened with both.
fn lacking_one(pages: u64) -> Result<u8, String> {
    let mut b = Bench::new(2, 0);
    let told = told();
    let (disks, t) = (pair(&b), told.clone());
    b.run(async move {
        make(&disks).await;
        open(&disks, owner(1, both(), &t)).await.unwrap().close().await.unwrap();
    });
    b.restart();
    let (disks, t) = (pair(&b), told.clone());
    let before = newest(&b.media[1]).unwrap().seq;
    let opening = b.n.spawn(async move { open(&disks, owner(2, both(), &t)).await.unwrap() });
    let begun = || newest(&b.media[1]).unwrap().seq > before;
    b.w.run_until(SECONDS, begun).expect("it is opened");
    let old = b.image(1);
    let media = b.media.clone();
    b.run(async move {
        let p = opening.await.unwrap();
        for k in 0..4 {
            write(&p, 1, k * B, B, 2).await.unwrap();
        }
        std::mem::forget(p);
        assert_eq!(newest(&media[0]).unwrap().seq, newest(&media[old]).unwrap().seq + 1);
    });
    b.restart();
    let disks = [Scratched::log(&b, 0, pages), b.disk(old)];
    b.run(async move {
        let p = Pool::open(disks.to_vec(), owner(3, both(), &told)).await;
        first(&p.map_err(|e| e.to_string())?, 1, 0).await.map_err(|e| e.to_string())
    })
}

#[test]
fn a_node_whose_log_cannot_be_read_is_not_known_to_have_everything() {
    let refused = lacking_one(64).unwrap_err();
    assert!(refused.contains("cannot be read"), "{refused}");
    assert_eq!(lacking_one(0), Ok(2));
}

/// The register was put back to an earlier state, say, or by mistake the other node went on.
#[test]
fn a_newer_owner_is_known_by_whatever_device() {
    let b = Bench::new(2, 0);
    let (disks, t) = (pair(&b), told());
    b.run(async move {
        make(&disks).await;
        open(&disks, owner(1, both(), &t)).await.unwrap().close().await.unwrap();
        let p = open(&disks[1..], owner_of(2, 9, only(2), &t)).await.unwrap();
        write(&p, 1, 0, B, 9).await.unwrap();
        p.close().await.unwrap();
        for epoch in [2, 9] {
            let refused = why(open(&disks, owner(epoch, only(1), &t)).await);
            assert!(refused.contains("owner epoch 9"), "{refused}");
        }
        assert!(!t.fewer.take().contains(&only(1)));
    });
}

/// Node 2 was dropped; what node 1 has is put back to what it was long before.
#[test]
fn a_half_that_was_put_back_is_told_by_one_that_does_not_count() {
    let mut b = Bench::new(2, 0);
    let told = told();
    let (disks, t) = (pair(&b), told.clone());
    b.run(async move {
        make(&disks).await;
        written(&disks, owner(1, both(), &t), 1).await;
    });
    let old = b.image(0);
    b.restart();
    let (disks, t, media) = (pair(&b), told.clone(), b.media.clone());
    b.run(async move {
        let p = open(&disks, owner(2, both(), &t)).await.unwrap();
        for _ in 0..3 {
            write(&p, 1, 0, B, 2).await.unwrap();
            p.checkpoint().await.unwrap();
        }
        media[1].set_offline(true);
        write(&p, 1, 0, B, 3).await.unwrap();
        std::mem::forget(p);
        media[1].set_offline(false);
    });
    assert_eq!(told.fewer.take(), [only(1)]);
    b.restart();
    let (disks, t, put_back) = (pair(&b), told, b.disk(old));
    b.run(async move {
        let stale = [put_back, disks[1].clone()];
        let refused = why(open(&stale, owner(3, only(1), &t)).await);
        assert!(refused.contains("earlier state"), "{refused}");
        let p = open(&disks, owner(3, only(1), &t)).await.unwrap();
        assert_eq!(first(&p, 1, 0).await, Ok(3));
    });
}

/// Superblocks of an owner are lost, pages of its log are there.
#[test]
fn a_newer_owner_is_known_by_its_log() {
    let mut b = Bench::new(2, 0);
    let told = told();
    let (disks, t) = (pair(&b), told.clone());
    b.run(async move {
        make(&disks).await;
        let p = open(&disks, owner(1, both(), &t)).await.unwrap();
        p.volume(1).unwrap().write(0, filled(4096, 1), false).await.unwrap();
        p.close().await.unwrap();
    });
    let old = [b.image(0), b.image(1)];
    let (disks, t) = (pair(&b), told.clone());
    b.run(async move { written(&disks, owner(7, both(), &t), 2).await });
    for (medium, old) in b.media.iter().zip(old) {
        let (at, len) = log(medium);
        let mut pages = vec![0; len as usize];
        medium.peek(at, &mut pages);
        b.media[old].poke(at, &pages);
    }
    b.restart();
    let disks = old.map(|n| b.disk(n));
    b.run(async move {
        let refused = why(open(&disks, owner(2, both(), &told)).await);
        assert!(refused.contains("owner epoch 7"), "{refused}");
    });
}

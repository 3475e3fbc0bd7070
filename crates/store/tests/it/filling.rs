//! What is brought to a device: all that it misses, and nothing that belongs elsewhere by now.

use crate::bench::{B, Bench, LIMIT, MIB, first, spec, write};
use std::rc::Rc;
use weir_base::MILLIS;
use weir_disk::Disk;
use weir_sim::Next;
use weir_store::format::superblock::MemberState;
use weir_store::format::tree::LEAF;
use weir_store::{Options, Pool, check, create};

/// A volume is deleted while a walk is in it, and its places are used again for acknowledged writes of another one.
fn deleted_beside_a_fill(copies: u8) -> Vec<String> {
    let devices = usize::from(copies);
    let b = Bench::new(devices + 1, 0);
    let disks = b.disks(&(0..devices).collect::<Vec<_>>());
    let new = b.disk(devices);
    let o = Options { reuse_at_once: true, ..Options::default() };
    b.run(async move {
        create(&disks, &spec(copies)).await.unwrap();
        let p = Pool::open(disks, o).await.unwrap();
        let v = p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        let a = p.create_volume("a", 1 << 40, 4096).await.unwrap();
        write(&p, v, 0, 3 * MIB, 1).await.unwrap();
        for i in 0..100 {
            write(&p, a, i * LEAF as u64 * B, B, 2).await.unwrap();
        }
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        p.set_fill_rate(100 * B);
        p.replace(0, new).await.unwrap();
        // Until the second walk, the one that proves, is in the second volume.
        loop {
            weir_reactor::sleep(100 * MILLIS).await;
            let Some(w) = p.status().work else { continue };
            if w.done > w.total / 2 + 3 * MIB + 20 * B {
                break;
            }
        }
        p.delete(a).await.unwrap();
        while p.datasets().iter().any(|d| d.id == a) {
            p.checkpoint().await.unwrap();
        }
        let mut written = 0;
        while write(&p, v, 32 * MIB + written * B, B, 3).await.is_ok() {
            written += 1;
        }
        assert!(written > 100, "{written}");
        p.set_fill_rate(0);
        p.settled().await.unwrap();
        let s = p.status();
        assert!(s.whole, "{s:?}");
        let mut wrong = Vec::new();
        for k in 0..written {
            let found = first(&p, v, 32 * MIB + k * B).await;
            if found != Ok(3) {
                wrong.push(format!("block {k}, acknowledged: {found:?}"));
            }
        }
        let now = p.scrub(0).await.unwrap();
        if now.damaged + now.lost > 0 || p.counters().damaged > 0 {
            wrong.push(format!("a pool that says that it is whole: {now:?}, {:?}", p.counters()));
        }
        wrong
    })
}

#[test]
fn a_volume_deleted_while_the_only_device_is_replaced_takes_no_other_data_along() {
    assert_eq!(deleted_beside_a_fill(1), Vec::<String>::new());
}

#[test]
fn a_volume_deleted_while_a_device_of_a_mirror_is_replaced_damages_nothing() {
    assert_eq!(deleted_beside_a_fill(2), Vec::<String>::new());
}

#[test]
fn what_a_new_device_swallows_of_new_writes_is_noticed_before_it_counts() {
    let b = Bench::new(3, 0);
    let (disks, new, medium) = (b.disks(&[0, 1]), b.disk(2), b.media[2].clone());
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        let v = p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, v, 0, 3 * MIB, 1).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        p.set_fill_rate(100 * B);
        p.replace(0, new).await.unwrap();
        loop {
            weir_reactor::sleep(100 * MILLIS).await;
            if p.status().work.is_some_and(|w| w.done > 50) {
                break;
            }
        }
        let before = medium.counts().lost_writes;
        for k in 0..8 {
            medium.next_is(Next::LostWrite);
            write(&p, v, 4 * MIB + k * B, B, 2).await.unwrap();
        }
        medium.forget_next();
        assert!(medium.counts().lost_writes > before, "what hosts write goes there");
        assert!(p.status().work.is_some_and(|w| w.done * 2 < w.total), "it is still being copied");
        p.set_fill_rate(0);
        p.settled().await.unwrap();
        let now = p.scrub(0).await.unwrap();
        assert_eq!((now.damaged, now.lost), (0, 0), "a pool that says that it is whole: {now:?}");
    });
}

/// A device alone gives what was written: the pool was whole.
fn alone(b: &Bench, device: usize, name: &str, want: Vec<(u64, u8)>) -> Vec<String> {
    let node = b.w.node(name);
    let copy = b.media[device].copy(name, 1);
    node.attach(&copy);
    let disk: Rc<dyn Disk> = node.disk(name);
    let o = Options { force: true, lineage: 99, resync: false, ..Options::default() };
    let done = b.w.run(&node, LIMIT, async move {
        let p = Pool::open(vec![disk], o).await.expect("opens");
        let mut wrong = Vec::new();
        for (at, value) in want {
            let found = first(&p, 1, at).await;
            if found != Ok(value) {
                wrong.push(format!("{at} of device alone: {found:?}, not {value}"));
            }
        }
        wrong
    });
    done.unwrap()
}

/// A device fails in epoch S; an older image of it, from before S, is attached in its place. `reopened`: by opening the pool.
fn an_older_image(reopened: bool) -> Vec<String> {
    let mut b = Bench::new(2, 0);
    let disks = b.disks(&[0, 1]);
    let p = b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, MIB, 1).await.unwrap();
        p.checkpoint().await.unwrap();
        p
    });
    let old = b.image(1);
    let q = p.clone();
    b.run(async move {
        for k in 0..4 {
            write(&q, 1, MIB + k * B, B, 2).await.unwrap();
            q.checkpoint().await.unwrap();
        }
    });
    b.media[1].set_offline(true);
    let q = p.clone();
    b.run(async move {
        write(&q, 1, 2 * MIB, B, 3).await.unwrap();
        q.checkpoint().await.unwrap();
        assert_eq!(q.status().devices[1].state, MemberState::Out);
    });
    let p = match reopened {
        false => {
            let (q, disk) = (p.clone(), b.disk(old));
            b.run(async move {
                q.attach(disk).await.unwrap();
            });
            p
        }
        true => {
            b.run(async move { p.close().await }).unwrap();
            let disks = b.disks(&[0, old]);
            b.run(async move { Pool::open(disks, Options::default()).await.unwrap() })
        }
    };
    let q = p.clone();
    b.run(async move {
        q.resync().await.ok();
        q.settled().await.unwrap();
        let s = q.status();
        assert!(s.whole && s.devices[1].state == MemberState::InSync, "{s:?}");
        q.close().await.unwrap();
    });
    let want =
        vec![(0, 1), (MIB, 2), (MIB + B, 2), (MIB + 2 * B, 2), (MIB + 3 * B, 2), (2 * MIB, 3)];
    alone(&b, old, "alone", want)
}

#[test]
fn an_older_image_of_a_device_that_failed_is_attached_and_gets_all_it_misses() {
    assert_eq!(an_older_image(false), Vec::<String>::new());
}

#[test]
fn an_older_image_of_a_device_that_failed_is_there_at_opening_and_gets_all_it_misses() {
    assert_eq!(an_older_image(true), Vec::<String>::new());
}

/// An old image of a device in sync comes back, on which slabs with older data have been put since.
#[test]
fn an_old_image_of_a_device_gets_the_slabs_that_were_moved_there_since() {
    let mut b = Bench::new(4, 0);
    let disks = b.disks(&[0, 1, 2, 3]);
    // The third is drained, so it holds nothing. Others have all copies of something in the end: none can have gone on without them.
    let p = b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        p.settled().await.unwrap();
        p.drain(2).await.unwrap();
        p.settled().await.unwrap();
        write(&p, 1, 0, 2 * MIB, 1).await.unwrap();
        for _ in 0..3 {
            p.checkpoint().await.unwrap();
        }
        p.cancel(2).await.unwrap();
        p.checkpoint().await.unwrap();
        p.close().await.unwrap();
        p
    });
    drop(p);
    let old = b.image(2);
    let disks = b.disks(&[0, 1, 2, 3]);
    b.run(async move {
        let p = Pool::open(disks, Options::default()).await.unwrap();
        // What is on device 1 goes to device 2.
        p.drain(1).await.unwrap();
        p.settled().await.unwrap();
        for _ in 0..3 {
            p.checkpoint().await.unwrap();
        }
        let s = p.status();
        assert!(s.whole && s.devices[2].slabs > 0 && s.devices[1].slabs == 0, "{s:?}");
        p.close().await.unwrap();
    });
    let disks = b.disks(&[0, 1, old, 3]);
    b.run(async move {
        let p = Pool::open(disks, Options::default()).await.unwrap();
        assert_eq!(p.status().devices[2].state, MemberState::Out);
        p.settled().await.unwrap();
        let s = p.status();
        assert!(s.whole && s.devices[2].state == MemberState::InSync, "{s:?}");
        p.close().await.unwrap();
    });
    let disks = b.disks(&[0, 1, old, 3]);
    let report = b.run(async move { check(disks, Options::default()).await.unwrap() });
    let found = report.findings;
    assert!(found.is_empty(), "{} findings, as {:?}", found.len(), found[0]);
}

#[cfg(feature = "planted")]
#[test]
fn an_older_image_that_is_taken_for_the_device_itself_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::OldImageTrusted));
    let wrong = an_older_image(false);
    plant(None);
    assert!(!wrong.is_empty());
}

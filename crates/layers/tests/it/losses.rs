//! What a device has lost, whoever's flush was told of it.

use crate::common::{MemDisk, World, ram, run, write};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{IoError, MILLIS};
use weir_block::{GraphSpec, Junction, NodeSpec, Volume};
use weir_disk::Losses;
use weir_layers::remote::Home;
use weir_mem::Slice;
use weir_reactor::{now, sleep, spawn, timeout};

const LEN: u64 = 4 << 20;

/// Disks of one device, by the names `d0`, `d1` and so on.
fn disks(n: usize, losses: &Arc<Losses>) -> (World, Vec<Rc<MemDisk>>) {
    let disk = || MemDisk::with(LEN as usize, 512, |d| d.losses = Some(losses.clone()));
    let disks: Vec<_> = (0..n).map(|_| disk()).collect();
    let add = |w: World, (i, d): (usize, &Rc<MemDisk>)| w.disk(&format!("d{i}"), d.clone());
    (disks.iter().enumerate().fold(World::new(), add), disks)
}

fn disk(i: usize) -> NodeSpec {
    NodeSpec::new(&format!("d{i}"), "disk").param("path", format!("d{i}"))
}

fn leaf(w: &World, i: usize) -> Rc<dyn Volume> {
    w.volume(GraphSpec::new("v", &format!("d{i}")).with(disk(i)))
}

async fn fails_a_flush(d: &MemDisk, v: &dyn Volume) {
    d.result.set(Err(IoError::Path));
    assert_eq!(v.flush().await, Err(IoError::Path));
    d.result.set(Ok(()));
}

#[test]
fn every_layer_tells_what_is_lost_below() {
    for kind in ["linear", "stripe", "concat", "stats", "delay", "fault", "steady"] {
        run(async move {
            let (w, disks) = disks(2, &Arc::default());
            let node = NodeSpec::new("x", kind);
            let node = match kind {
                "linear" => node.param("len", LEN / 2).over("d1"),
                "stripe" => node.param("unit", "16KiB").over("d0").over("d1"),
                "concat" => node.over("d0").over("d1"),
                "delay" => node.param("time", "1us").over("d1"),
                "fault" => node.param("on", false).over("d1"),
                "steady" => node.param("write-cache", true).param("thin", true).over("d1"),
                _ => node.over("d1"),
            };
            let spec = GraphSpec::new("v", "x").with(node).with(disk(1));
            let both = matches!(kind, "stripe" | "concat");
            let v = w.volume(if both { spec.with(disk(0)) } else { spec });
            assert_eq!((v.flush().await, v.lost()), (Ok(()), 0), "{kind}");
            fails_a_flush(&disks[1], &*v).await;
            let lost = v.lost();
            assert!(lost > 0, "{kind}");
            // The device tells it once.
            assert_eq!((v.flush().await, v.lost()), (Ok(()), lost), "{kind}");
        });
    }
}

/// What was acknowledged was durable by then.
#[test]
fn where_writes_go_through_the_cache_nothing_is_lost() {
    run(async {
        let (w, disks) = disks(1, &Arc::default());
        let steady = NodeSpec::new("x", "steady").param("write-cache", false);
        let steady = steady.param("thin", true).over("d0");
        let v = w.volume(GraphSpec::new("v", "x").with(steady).with(disk(0)));
        fails_a_flush(&disks[0], &*v).await;
        assert_eq!(v.lost(), 0);
    });
}

#[test]
fn what_a_flush_is_told_that_was_given_up_is_kept() {
    run(async {
        let alone = MemDisk::new(LEN as usize, 512);
        let (w, disks) = disks(1, &Arc::default());
        let w = w.disk("d1", alone.clone());
        for (d, v) in [(&disks[0], leaf(&w, 0)), (&alone, leaf(&w, 1))] {
            d.slow.set(20 * MILLIS);
            d.result.set(Err(IoError::Path));
            assert!(timeout(1, v.flush()).await.is_err());
            assert_eq!(v.lost(), 0);
            sleep(30 * MILLIS).await;
            assert!(v.lost() > 0);
        }
    });
}

#[test]
fn what_one_volume_of_a_device_loses_others_have_lost_too() {
    run(async {
        let (w, disks) = disks(3, &Arc::default());
        let (a, b) = (leaf(&w, 0), leaf(&w, 1));
        fails_a_flush(&disks[0], &*a).await;
        assert!(a.lost() > 0 && b.lost() == a.lost());
        // It had nothing there yet.
        assert_eq!(leaf(&w, 2).lost(), 0);
        // By a write that is to be durable at once, perhaps with a flush.
        disks[1].result.set(Err(IoError::Path));
        let before = a.lost();
        assert!(write(&*b, 0, &[1; 512]).await.is_err());
        assert_eq!(a.lost(), before);
        assert!(b.write(0, Slice::heap(512), true).await.is_err());
        assert!(a.lost() > before);
    });
}

#[test]
fn a_flush_that_ends_well_beside_one_that_fails_tells_of_it() {
    run(async {
        let (w, disks) = disks(2, &Arc::default());
        let (a, b) = (leaf(&w, 0), leaf(&w, 1));
        disks[0].slow.set(20 * MILLIS);
        disks[0].result.set(Err(IoError::Path));
        let first = spawn({
            let a = a.clone();
            async move { a.flush().await }
        });
        sleep(1).await;
        assert_eq!(b.flush().await, Ok(()));
        assert!(first.is_finished() && b.lost() > 0);
        // Those that begin later are not waited for.
        disks[0].result.set(Ok(()));
        let (began, on) = (now(), Rc::new(Cell::new(true)));
        let load = spawn({
            let on = on.clone();
            async move {
                while on.get() {
                    a.flush().await.unwrap();
                }
            }
        });
        sleep(1).await;
        assert_eq!(b.flush().await, Ok(()));
        assert!(now() - began <= 21 * MILLIS);
        on.set(false);
        load.await;
    });
}

/// They are in a cache yet when the flush of another volume begins, and are lost with it. The flush of their own ends well.
#[test]
fn what_is_durable_when_it_ends_is_so_beside_a_flush_that_fails() {
    run(async {
        let (w, disks) = disks(2, &Arc::default());
        let (other, leaf) = (leaf(&w, 0), leaf(&w, 1));
        let steady = NodeSpec::new("x", "steady").param("write-cache", false);
        let steady = steady.param("thin", true).over("d1");
        let through = w.volume(GraphSpec::new("v", "x").with(steady).with(disk(1)));
        disks[0].result.set(Err(IoError::Path));
        for n in 0..3 {
            disks[0].slow.set(20 * MILLIS);
            let o = other.clone();
            let fails = spawn(async move { o.flush().await });
            sleep(1).await;
            let done = match n {
                0 => through.write_zeroes(0, 4096, false).await,
                1 => through.write(0, Slice::heap(4096), false).await,
                _ => leaf.write(0, Slice::heap(4096), true).await,
            };
            assert_eq!((done, fails.await), (Err(IoError::Path), Some(Err(IoError::Path))), "{n}");
            assert_eq!(through.write(0, Slice::heap(4096), false).await, Ok(()));
        }
    });
}

#[test]
fn a_volume_that_takes_the_place_of_another_does_not_hide_its_loss() {
    run(async {
        let (w, disks) = disks(1, &Arc::default());
        let old = leaf(&w, 0);
        let junction = Rc::new(Junction::new(old.clone()));
        fails_a_flush(&disks[0], &*old).await;
        let lost = junction.lost();
        assert!(lost > 0);
        let new = w.volume(GraphSpec::new("w", "a").with(ram("a", LEN)));
        junction.quiesce().await.unwrap().swap(new).unwrap();
        assert_eq!(junction.lost(), lost);
    });
}

#[test]
fn other_reactors_learn_what_is_lost_at_home() {
    run(async {
        let (w, disks) = disks(1, &Arc::default());
        let home = Home::open(leaf(&w, 0));
        let there = home.entrance().handle();
        fails_a_flush(&disks[0], &*there).await;
        let lost = there.lost();
        assert!(lost > 0);
        assert_eq!((there.flush().await, there.lost()), (Ok(()), lost));
    });
}

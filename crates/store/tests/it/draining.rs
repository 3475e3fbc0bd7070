//! What a drain does to a pool that hosts write meanwhile.

use crate::bench::{B, Bench, LIMIT, MIB, spec, write};
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{IoError, MILLIS, Nanos, SECONDS};
use weir_disk::{Disk, DiskOp};
use weir_reactor::{Token, sleep, spawn, spawn_task};
use weir_sim::{DiskConfig, SimMedium, World};
use weir_store::format::label::SUPER_SLOTS;
use weir_store::{Options, Pool, Work, create};

/// Blocks before the superblocks.
const FRONT: u64 = 2;

/// A disk that takes so long with the first copy of a superblock: checkpoints take time.
struct Slow {
    disk: Rc<dyn Disk>,
    takes: Rc<Cell<Nanos>>,
}

impl Disk for Slow {
    crate::wrapped::is_like!(disk);
    fn submit(&self, op: DiskOp, token: Token) {
        let supers = FRONT * B..(FRONT + SUPER_SLOTS) * B;
        let (disk, time) = (self.disk.clone(), self.takes.get());
        match &op {
            DiskOp::Write { offset, .. } if supers.contains(offset) && time > 0 => {
                spawn_task(async move {
                    sleep(time).await;
                    disk.submit(op, token);
                });
            }
            _ => disk.submit(op, token),
        }
    }
}

/// A device is added to a pool that is nearly full, and drained again: its empty slabs are given up. Hosts write `more` blocks
/// between the plan and the cut that carries it out. How the pool stands then; all devices are well.
fn drained(left: u64, more: u64) -> (Option<IoError>, u64) {
    let w = World::new(5);
    let n = w.node("store");
    for i in 0..4 {
        n.attach(&SimMedium::new(&format!("d{i}"), 32 * MIB, DiskConfig::default(), i));
    }
    let takes = Rc::new(Cell::new(0));
    let disk = |i: u64| {
        let (disk, takes) = (n.disk(&format!("d{i}")) as Rc<dyn Disk>, takes.clone());
        Rc::new(Slow { disk, takes }) as Rc<dyn Disk>
    };
    let (disks, last, time) = (vec![disk(0), disk(1), disk(2)], disk(3), takes.clone());
    let run = async move {
        let spec = weir_store::PoolSpec { slab_shift: 10, ..spec(1) };
        create(&disks, &spec).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 160 * MIB, 4096).await.unwrap();
        p.settled().await.unwrap();
        let mut at = 0;
        while p.status().free > left * B {
            write(&p, 1, at, 16 * B, 1).await.unwrap();
            at += 16 * B;
        }
        p.checkpoint().await.unwrap();
        p.add(last).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        // Somebody makes checkpoints all the time, and each takes a while.
        time.set(8000 * MILLIS);
        let stop = Rc::new(Cell::new(false));
        for k in 0..3 {
            let (p, stop) = (p.clone(), stop.clone());
            spawn_task(async move {
                sleep(k * 2500 * MILLIS).await;
                while !stop.get() && p.checkpoint().await.is_ok() {}
            });
        }
        sleep(20000 * MILLIS).await;
        if p.drain(3).await.is_err() {
            // There is no room for that.
            stop.set(true);
            return (None, 0);
        }
        // The plan is made.
        sleep(MILLIS).await;
        let q = p.clone();
        let hosts = spawn(async move {
            // Here and there in what the volume has not yet.
            let (mut done, rest) = (0, 160 * MIB / B - at / B - 16);
            while done < more {
                let n = (more - done).min(16);
                let far = done / 16 * 176 % rest;
                if write(&q, 1, at + far * B, n * B, 2).await.is_err() {
                    break;
                }
                done += n;
            }
            done
        });
        let done = hosts.await.unwrap();
        assert_eq!(done, more);
        sleep(100_000 * MILLIS).await;
        stop.set(true);
        time.set(0);
        sleep(60_000 * MILLIS).await;
        let s = p.status();
        (s.suspended, s.free / B)
    };
    w.run(&n, LIMIT, run).expect("it ends")
}

#[test]
fn a_drain_gives_up_no_slabs_that_hosts_need_by_then() {
    let mut bad = Vec::new();
    for more in (3552..3601).step_by(16) {
        let found = drained(2600, more);
        if found.0.is_some() {
            bad.push((more, found));
        }
    }
    assert_eq!(bad, vec![]);
}

/// What goes to a new device meanwhile, and what that leaves, counts as it will be.
#[test]
fn a_drain_right_after_a_device_was_added_finds_room() {
    let b = Bench::new(3, 7);
    let (two, third) = (b.disks(&[0, 1]), b.disk(2));
    let left = b.run(async move {
        create(&two, &spec(2)).await.unwrap();
        let p = Pool::open(two, Options::default()).await.unwrap();
        p.create_volume("v", 4 * MIB, 4096).await.unwrap();
        for at in 0..64 {
            write(&p, 1, at * MIB / 16, MIB / 16, 1).await.unwrap();
        }
        p.checkpoint().await.unwrap();
        p.set_fill_rate(MIB / 16);
        p.add(third).await.unwrap();
        while p.status().work.is_none_or(|w| w.work != Work::Balance || w.done == 0) {
            sleep(MILLIS).await;
        }
        p.drain(0).await.expect("there is room");
        p.set_fill_rate(0);
        p.settled().await.unwrap();
        p.status().devices[0].slabs
    });
    assert_eq!(left, 0);
}

/// Slabs go to a device that was added. Whether somebody is told that this is stopped, and whether it goes on.
fn growth_stopped() -> (bool, bool) {
    let b = Bench::new(3, 7);
    let (two, third) = (b.disks(&[0, 1]), b.disk(2));
    b.run(async move {
        create(&two, &spec(2)).await.unwrap();
        let p = Pool::open(two, Options::default()).await.unwrap();
        p.create_volume("v", 4 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, 4 * MIB, 1).await.unwrap();
        p.checkpoint().await.unwrap();
        p.set_fill_rate(MIB / 16);
        p.add(third).await.unwrap();
        let goes_on = |p: &Pool| p.status().work.filter(|w| w.work == Work::Balance);
        let n = loop {
            match goes_on(&p).filter(|w| w.done > 0) {
                Some(w) => break w.device,
                None => sleep(MILLIS).await,
            }
        };
        let told = p.cancel(n).await.is_ok();
        sleep(5 * SECONDS).await;
        let goes_on = goes_on(&p).is_some();
        p.set_fill_rate(0);
        p.settled().await.unwrap();
        (told, goes_on)
    })
}

#[test]
fn what_makes_a_pool_grow_is_not_said_to_be_stopped() {
    assert_eq!(growth_stopped(), (false, true));
}

#[cfg(feature = "planted")]
#[test]
fn growth_that_is_said_to_be_stopped_and_goes_on_is_caught() {
    use weir_store::planted::Bug;
    assert_eq!(crate::bench::with(Bug::StoppedGoesOn, growth_stopped), (true, true));
}

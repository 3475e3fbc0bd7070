//! Owners that are none any more: nothing of the pool is told by them.

use crate::common::{filled, read};
use crate::owned::{MIB, Told, both, make, only, open, owner, owner_of, story};
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{IoError, MILLIS, SECONDS};
use weir_block::{Allocation, Volume};
use weir_disk::Disk;
use weir_reactor::{sleep, spawn_task};
use weir_sim::SimMedium;
use weir_store::Pool;

/// A pool of which both devices have failed, with something in a volume.
async fn suspended(
    media: &[SimMedium; 2],
    disks: &[Rc<dyn Disk>; 2],
    told: &Rc<Told>,
) -> (Pool, Rc<dyn Volume>) {
    make(disks).await;
    let p = open(disks, owner(1, both(), told)).await.unwrap();
    let v: Rc<dyn Volume> = p.volume(1).unwrap();
    v.write(0, filled(4096, 1), false).await.unwrap();
    p.checkpoint().await.unwrap();
    media.iter().for_each(|m| m.set_offline(true));
    assert!(v.write(4096, filled(4096, 2), false).await.is_err());
    assert!(told.fewer.borrow().is_empty());
    (p, v)
}

/// Nothing is read any more, and it is not resumed.
async fn is_over(p: &Pool, v: &Rc<dyn Volume>) {
    assert_eq!(read(&**v, 0, 4096).await.err(), Some(IoError::Offline));
    let refused = p.resume().await.expect_err("it is resumed").to_string();
    assert!(refused.contains("another node"), "{refused}");
}

#[test]
fn an_owner_that_learns_it_when_it_is_resumed_tells_nothing() {
    story(|media, disks, told| async move {
        let (p, v) = suspended(&media, &disks, &told).await;
        media[0].set_offline(false);
        assert_eq!(read(&*v, 0, 4096).await.unwrap()[0], 1);
        told.answer.set(Some(false));
        assert!(p.resume().await.is_err());
        assert_eq!(told.fewer.borrow().len(), 1);
        is_over(&p, &v).await;
    });
}

#[test]
fn an_owner_that_finds_a_newer_one_on_its_device_tells_nothing() {
    story(|media, disks, told| async move {
        let (p, v) = suspended(&media, &disks, &told).await;
        media.iter().for_each(|m| m.set_offline(false));
        let newer = open(&disks, owner(2, both(), &told)).await.unwrap();
        newer.volume(1).unwrap().write(0, filled(4096, 3), false).await.unwrap();
        newer.close().await.unwrap();
        let refused = p.resume().await.expect_err("it is resumed").to_string();
        assert!(refused.contains("owner epoch 2"), "{refused}");
        is_over(&p, &v).await;
    });
}

/// The other node went on while the device was away, by mistake say.
#[test]
fn an_owner_that_gets_a_device_of_a_newer_one_tells_nothing() {
    story(|media, disks, told| async move {
        make(&disks).await;
        let p = open(&disks, owner(1, both(), &told)).await.unwrap();
        let v: Rc<dyn Volume> = p.volume(1).unwrap();
        media[1].set_offline(true);
        v.write(0, filled(4096, 1), false).await.unwrap();
        media[1].set_offline(false);
        let newer = open(&disks[1..], owner_of(2, 9, only(2), &told)).await.unwrap();
        newer.close().await.unwrap();
        let refused = p.attach(disks[1].clone()).await.expect_err("it is attached").to_string();
        assert!(refused.contains("owner epoch 9"), "{refused}");
        is_over(&p, &v).await;
    });
}

/// Parts of blocks, and what is known without a device.
#[test]
fn what_is_in_memory_is_not_told_either() {
    story(|media, disks, told| async move {
        make(&disks).await;
        let p = open(&disks, owner(1, both(), &told)).await.unwrap();
        let id = p.create_volume("w", MIB, 512).await.unwrap();
        let (v, w) = (p.volume(1).unwrap(), p.volume(id).unwrap());
        w.write(0, filled(8192, 1), false).await.unwrap();
        p.checkpoint().await.unwrap();
        assert!(!w.find_allocation(8192, 4096).await.mapped && !w.allocation(8192, 4096).mapped);
        told.answer.set(Some(false));
        media[1].set_offline(true);
        assert_eq!(v.write(0, filled(4096, 2), false).await, Err(IoError::Offline));
        for (at, len) in [(512, 512), (512, 4096), (0, 4096), (8192, 512)] {
            assert_eq!(read(&*w, at, len).await.err(), Some(IoError::Offline), "{at} {len}");
        }
        let known = Allocation { mapped: true, len: 4096 };
        assert_eq!(w.find_allocation(8192, 4096).await, known);
        assert_eq!(w.allocation(8192, 4096), known);
    });
}

/// It learns that it is none while a device is asked.
#[test]
fn what_was_being_read_is_not_told_either() {
    story(|media, disks, told| async move {
        make(&disks).await;
        let p = open(&disks, owner(1, both(), &told)).await.unwrap();
        let v = p.volume(1).unwrap();
        v.write(0, filled(4096, 1), false).await.unwrap();
        p.checkpoint().await.unwrap();
        told.answer.set(None);
        media[1].set_offline(true);
        let w = v.clone();
        spawn_task(async move { _ = w.write(4096, filled(4096, 2), false).await });
        sleep(SECONDS).await;
        assert_eq!(told.fewer.borrow().len(), 1);
        media[0].stall(4 * SECONDS);
        let seen = Rc::new(Cell::new(None));
        let (w, slot) = (v.clone(), seen.clone());
        spawn_task(async move { slot.set(Some(read(&*w, 0, 4096).await.err())) });
        sleep(SECONDS).await;
        told.answer.set(Some(false));
        sleep(100 * MILLIS).await;
        assert_eq!(seen.get(), None);
        sleep(8 * SECONDS).await;
        assert_eq!(seen.get(), Some(Some(IoError::Offline)));
    });
}

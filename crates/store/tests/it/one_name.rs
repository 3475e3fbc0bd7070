//! Another disk goes by the name of a device: the next start finds one of them by it.

use crate::bench::{Bench, MIB, Named, spec, write};
use std::rc::Rc;
use weir_base::SECONDS;
use weir_disk::Disk;
use weir_reactor::sleep;
use weir_store::format::superblock::MemberState;
use weir_store::{Options, Pool, StoreError, create};

impl Bench {
    fn named(&self, i: usize) -> Rc<dyn Disk> {
        Rc::new(Named("slot", self.disk(i)))
    }
}

/// A mirror of a disk and one that goes by the name of its place.
async fn mirror(disks: Vec<Rc<dyn Disk>>) -> Pool {
    create(&disks, &spec(2)).await.unwrap();
    let p = Pool::open(disks, Options::default()).await.unwrap();
    p.create_volume("v", 64 * MIB, 4096).await.unwrap();
    p
}

#[test]
fn a_device_whose_name_another_one_has_comes_back_by_its_own() {
    let b = Bench::new(3, 0);
    let (media, disks) = (b.media.clone(), vec![b.disk(0), b.named(1)]);
    let (new, found) = (b.named(2), vec![b.disk(0), b.named(2)]);
    let old = b.disk(1);
    b.run(async move {
        let p = mirror(disks).await;
        media[1].set_offline(true);
        write(&p, 1, MIB, MIB, 5).await.unwrap();
        p.checkpoint().await.unwrap();
        assert_eq!(p.status().devices[1].state, MemberState::Out);
        assert_eq!(p.add(new).await.unwrap(), 2);
        media[1].set_offline(false);
        let names = p.status().devices.into_iter().map(|d| d.name);
        assert_eq!(names.collect::<Vec<_>>(), [Some("d0".into()), None, Some("slot".into())]);
        // Nobody brings it back by a name that leads to another one.
        p.resync().await.unwrap_err();
        p.settled().await.unwrap();
        p.close().await.unwrap();
        let p =
            Pool::open(found, Options::default()).await.expect("all that is in service is there");
        assert_eq!(p.attach(old).await.unwrap(), 1);
        p.settled().await.unwrap();
        assert!(p.status().devices.iter().all(|d| d.state == MemberState::InSync));
        p.close().await.unwrap();
    });
}

#[test]
fn no_device_joins_by_the_name_of_one_in_service() {
    let b = Bench::new(3, 0);
    let (disks, new) = (vec![b.disk(0), b.named(1)], b.named(2));
    b.run(async move {
        let p = mirror(disks).await;
        let refused = p.add(new.clone()).await;
        assert!(matches!(refused, Err(StoreError::Request(_))), "{refused:?}");
        assert!(p.replace(1, new).await.is_err());
        assert_eq!(p.status().devices.len(), 2);
        p.close().await.unwrap();
    });
}

#[test]
fn a_device_that_comes_back_by_the_name_of_one_that_is_away_takes_it() {
    let b = Bench::new(3, 0);
    let (media, disks) = (b.media.clone(), vec![b.disk(0), b.named(1)]);
    let (new, old, found) = (b.named(2), b.named(1), vec![b.disk(0), b.named(1)]);
    let again = b.disk(2);
    b.run(async move {
        let p = mirror(disks).await;
        media[1].set_offline(true);
        write(&p, 1, MIB, MIB, 5).await.unwrap();
        p.checkpoint().await.unwrap();
        assert_eq!(p.add(new).await.unwrap(), 2);
        p.settled().await.unwrap();
        // While it is in service nobody else has its name.
        media[1].set_offline(false);
        assert!(matches!(p.attach(old.clone()).await, Err(StoreError::Request(_))));
        media[2].set_offline(true);
        write(&p, 1, 2 * MIB, MIB, 6).await.unwrap();
        p.checkpoint().await.unwrap();
        assert_eq!(p.status().devices[2].state, MemberState::Out);
        assert_eq!(p.attach(old).await.unwrap(), 1);
        media[2].set_offline(false);
        drop(p.resync().await);
        p.settled().await.unwrap();
        p.close().await.unwrap();
        let p =
            Pool::open(found, Options::default()).await.expect("all that is in service is there");
        assert_eq!(p.attach(again).await.unwrap(), 2);
        p.settled().await.unwrap();
        assert!(p.status().devices.iter().all(|d| d.state == MemberState::InSync));
        p.close().await.unwrap();
    });
}

/// Who has a disk, beside the test.
fn users(disk: &Rc<dyn Disk>) -> usize {
    Rc::strong_count(disk) - 1
}

#[test]
fn a_device_that_has_left_the_pool_is_not_kept() {
    let b = Bench::new(3, 0);
    let disks = b.all();
    b.run(async move {
        let p = mirror(disks.clone()).await;
        write(&p, 1, 0, MIB, 5).await.unwrap();
        p.drain(2).await.unwrap();
        p.settled().await.unwrap();
        p.remove(2).await.unwrap();
        assert_eq!((users(&disks[0]), users(&disks[2])), (1, 0));
        p.add(disks[2].clone()).await.unwrap();
        p.close().await.unwrap();
    });
}

#[test]
fn what_a_pool_was_before_it_was_resumed_keeps_no_device() {
    let b = Bench::new(3, 0);
    let (media, disks) = (b.media.clone(), b.all());
    b.run(async move {
        let p = mirror(disks.clone()).await;
        media.iter().for_each(|m| m.set_offline(true));
        write(&p, 1, 0, MIB, 5).await.unwrap_err();
        media.iter().for_each(|m| m.set_offline(false));
        p.resume().await.unwrap();
        p.settled().await.unwrap();
        sleep(SECONDS).await;
        assert_eq!(users(&disks[2]), 1);
        p.drain(2).await.unwrap();
        p.settled().await.unwrap();
        p.remove(2).await.unwrap();
        assert_eq!(users(&disks[2]), 0);
        write(&p, 1, 0, MIB, 6).await.unwrap();
        p.close().await.unwrap();
    });
}

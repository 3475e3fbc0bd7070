//! Damage is told of: on which device, and whose data it was.

use crate::bench::{Bench, MIB};
use crate::common::{filled, read};
use std::rc::Rc;
use weir_base::IoError;
use weir_block::Volume;
use weir_sim::Next;
use weir_store::{Damage, Options, Pool, PoolSpec, ScrubWatch, create};

/// A pool on two devices of two volumes with a MiB of ones each, and where block `n` of each volume lies.
fn made() -> (Bench, Pool) {
    let b = Bench::new(2, 5);
    let disks = b.all();
    let spec = PoolSpec { slab_shift: 8, log_pages: 64, spares: 8, ..PoolSpec::fitting(77, 2, 0) };
    let pool = b.run(async move {
        create(&disks, &spec).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        for (id, name) in [(1, "v"), (2, "w")] {
            p.create_volume(name, 64 * MIB, 4096).await.unwrap();
            p.volume(id).unwrap().write(0, filled(MIB as usize, 1), false).await.unwrap();
        }
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        p
    });
    (b, pool)
}

/// Spoils the copy of a volume's block on one device, or on all.
fn spoil(b: &Bench, p: &Pool, volume: u32, at: u64, only: Option<u16>) {
    let p = p.clone();
    let places = b.run(async move { p.volume(volume).unwrap().locate(at).await.unwrap() });
    for (device, at) in places.into_iter().filter(|(d, _)| only.is_none_or(|o| o == *d)) {
        let (m, mut byte) = (&b.media[usize::from(device)], [0]);
        m.peek(at, &mut byte);
        m.poke(at, &[byte[0] ^ 1]);
    }
}

/// Reads a volume's block until both devices have been asked for it.
fn read_often(b: &Bench, p: &Pool, volume: u32, at: u64) -> Result<(), IoError> {
    let p = p.clone();
    b.run(async move {
        for _ in 0..4 {
            read(&*p.volume(volume).unwrap(), at, 4096).await?;
        }
        Ok(())
    })
}

/// Damaged copies by device, as its status tells.
fn by_device(p: &Pool) -> Vec<u64> {
    p.status().devices.iter().map(|d| d.damaged).collect()
}

fn damage(p: &Pool, device: u16, whose: &str, copies: u64, lost: u64) -> Damage {
    let device = p.status().devices[usize::from(device)].id;
    Damage { device, whose: Some(whose.into()), copies, lost }
}

fn sorted(mut all: Vec<Damage>) -> Vec<Damage> {
    all.sort_by_key(|d| (d.device, d.whose.clone()));
    all
}

/// What a pool tells of damage that reads of a host and a scrub have found.
fn told() -> bool {
    let (b, p) = made();
    spoil(&b, &p, 1, 8192, Some(1));
    assert_eq!(read_often(&b, &p, 1, 8192), Ok(()));
    spoil(&b, &p, 2, 4096, Some(0));
    spoil(&b, &p, 2, 8192, Some(0));
    let (q, watch) = (p.clone(), Rc::new(ScrubWatch::default()));
    let w = watch.clone();
    b.run(async move { q.scrub_watched(0, w).await }).unwrap();
    let found: Vec<_> =
        watch.findings().into_iter().map(|f| (f.layer, f.whose.unwrap_or_default())).collect();
    let expected = [("data at byte 4096", "w"), ("data at byte 8192", "w")];
    assert_eq!(found, expected.map(|(l, w)| (l.to_owned(), w.to_owned())));
    assert_eq!(watch.found(), 2);
    by_device(&p) == [2, 1]
        && sorted(p.damage()) == sorted(vec![damage(&p, 1, "v", 1, 0), damage(&p, 0, "w", 2, 0)])
}

#[test]
fn damage_names_the_device_and_the_volume() {
    assert!(told());
}

#[cfg(feature = "planted")]
#[test]
fn damage_that_is_told_of_no_device_is_caught() {
    weir_store::planted::plant(Some(weir_store::planted::Bug::DamageUntold));
    let told = told();
    weir_store::planted::plant(None);
    assert!(!told);
}

#[test]
fn a_block_without_a_good_copy_is_told_once_for_each_copy() {
    let (b, p) = made();
    spoil(&b, &p, 1, 8192, None);
    for _ in 0..3 {
        assert_eq!(read_often(&b, &p, 1, 8192), Err(IoError::Medium));
    }
    let expected = vec![damage(&p, 0, "v", 1, 1), damage(&p, 1, "v", 1, 1)];
    assert_eq!(sorted(p.damage()), sorted(expected));
    assert_eq!(by_device(&p), [1, 1]);
}

#[test]
fn what_was_told_of_damage_outlives_a_pool_that_goes_on_after_it_was_suspended() {
    let (b, p) = made();
    spoil(&b, &p, 1, 8192, Some(1));
    assert_eq!(read_often(&b, &p, 1, 8192), Ok(()));
    b.media.iter().for_each(|m| m.next_is(Next::WriteError));
    let q = p.clone();
    b.run(async move {
        assert!(q.create_volume("x", 64 * MIB, 4096).await.is_err());
        q.resume().await.unwrap();
    });
    assert_eq!(by_device(&p), [0, 1]);
    assert_eq!(p.damage(), vec![damage(&p, 1, "v", 1, 0)]);
}

#[test]
fn a_read_that_failed_on_its_way_is_counted_and_is_no_damage() {
    let (b, p) = made();
    b.set(|c| c.error = IoError::Path);
    b.media.iter().for_each(|m| m.next_is(Next::ReadError));
    assert_eq!(read_often(&b, &p, 1, 8192), Ok(()));
    let unread: u64 = p.status().devices.iter().map(|d| d.unread).sum();
    assert!(unread > 0);
    assert_eq!((p.damage(), by_device(&p)), (vec![], vec![0, 0]));
}

//! What a pool is made on: nothing that has data, whatever the configuration says of it.

use crate::bench::{B, Bench, first, spec, write};
use weir_base::IoError;
use weir_block::Volume;
use weir_sim::{DiskConfig, Odds};
use weir_store::{Options, Pool, PoolSpec, StoreError, create};

/// A pool that was used is to be made, as by a configuration of before it was. What came of it.
fn again(overwrite: bool) -> Result<(), StoreError> {
    let b = Bench::new(2, 0);
    let disks = b.all();
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * B, 4096).await.unwrap();
        write(&p, 1, 0, B, 7).await.unwrap();
        p.volume(1).unwrap().flush().await.unwrap();
    });
    b.restart();
    let disks = b.all();
    let made = b.run(async move { create(&disks, &PoolSpec { overwrite, ..spec(2) }).await });
    if made.is_err() {
        let p = b.open().unwrap();
        assert_eq!(b.run(async move { first(&p, 1, 0).await }), Ok(7));
    }
    made
}

#[test]
fn a_pool_that_was_used_is_not_made_again() {
    for overwrite in [false, true] {
        assert!(again(overwrite).is_err(), "its data is lost");
    }
}

#[test]
fn what_a_try_has_left_is_made_anew() {
    let b = Bench::new(2, 0);
    for seq in [1, 2] {
        let disks = b.all();
        b.run(async move { create(&disks, &spec(2)).await }).unwrap();
        // The power goes while it is made a second time, or has been made.
        b.media[seq - 1].set_config(|c| c.write_error = Odds::ALWAYS);
        let disks = b.all();
        b.run(async move { create(&disks, &spec(2)).await }).unwrap_err();
        b.set(|c| *c = DiskConfig::default());
        b.restart();
    }
    let disks = b.all();
    b.run(async move { create(&disks, &spec(2)).await }).unwrap();
    b.open().unwrap();
}

/// Another pool's device cannot be read for a moment while a pool is made of it, or it is added to one. True when it is taken.
fn taken_unread(error: IoError) -> bool {
    let b = Bench::new(3, 0);
    let (other, disks) = (b.disks(&[2]), b.disks(&[0, 1]));
    let p = b.run(async move {
        let foreign = PoolSpec { pool: 78, ..spec(1) };
        create(&other, &foreign).await.unwrap();
        create(&disks, &spec(2)).await.unwrap();
        Pool::open(disks, Options::default()).await.unwrap()
    });
    b.media[2].set_config(|c| (c.error, c.read_error) = (error, Odds::ALWAYS));
    let (added, other) = (b.disk(2), b.disks(&[2]));
    b.run(async move {
        let made = create(&other, &PoolSpec { pool: 79, ..spec(1) }).await;
        let joined = p.add(added).await;
        made.is_ok() || joined.is_ok()
    })
}

#[test]
fn what_cannot_be_read_is_not_free() {
    for error in [IoError::Medium, IoError::Path, IoError::Busy, IoError::Internal] {
        assert!(!taken_unread(error), "{error:?}");
    }
}

#[cfg(feature = "planted")]
#[test]
fn planted_bugs_are_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::MadeTwice));
    let twice = again(false);
    plant(Some(Bug::UnreadIsFree));
    let unread = taken_unread(IoError::Path);
    plant(None);
    assert!(twice.is_ok() && unread);
}

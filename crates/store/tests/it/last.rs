//! A pool is opened without devices that are missing if those that are there have its last state.

use crate::bench::{Bench, MIB, first, spec, write};
use weir_store::format::superblock::MemberState;
use weir_store::{Options, Pool, StoreError, create};

/// A pool with so many copies on all devices of the bench that was closed: what it had then.
fn closed(b: &Bench, copies: u8) -> u64 {
    let disks = b.all();
    let newest = b.run(async move {
        create(&disks, &spec(copies)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, 2 * MIB, 5).await.unwrap();
        p.close().await.unwrap();
        p.newest()
    });
    b.restart();
    newest
}

fn open(b: &Bench, which: &[usize], last: u64) -> Result<Pool, StoreError> {
    let disks = b.disks(which);
    let options = Options { last: Some(last), lineage: 99, ..Options::default() };
    b.run(Pool::open(disks, options))
}

#[test]
fn what_lacks_a_device_is_opened_with_its_last_state() {
    for here in [0, 1] {
        let b = Bench::new(2, here as u64);
        let last = closed(&b, 2);
        let strict = b.run(Pool::open(b.disks(&[here]), Options::default()));
        assert!(strict.is_err(), "it may be behind");
        let p = open(&b, &[here], last).expect("nothing is newer");
        let away = b.disk(1 - here);
        b.run(async move {
            assert_eq!(p.status().devices[1 - here].state, MemberState::Out);
            assert_eq!(first(&p, 1, MIB).await, Ok(5));
            write(&p, 1, MIB, MIB, 6).await.unwrap();
            // What was missing is brought back as any.
            p.attach(away).await.unwrap();
            p.settled().await.unwrap();
            assert!(p.status().devices.iter().all(|d| d.state == MemberState::InSync));
            assert_eq!(p.scrub(0).await.unwrap().damaged, 0);
            p.close().await.unwrap();
        });
        b.restart();
        let p = b.open().expect("whole again");
        b.run(async move { assert_eq!(first(&p, 1, MIB).await, Ok(6)) });
    }
}

#[test]
fn what_was_opened_since_is_not_its_last_state() {
    let b = Bench::new(2, 0);
    let last = closed(&b, 2);
    // As after a kill: the program that opened it could not say what came last.
    let p = b.open().unwrap();
    b.run(async move { write(&p, 1, 0, MIB, 6).await.unwrap() });
    b.restart();
    for here in [0, 1] {
        assert!(open(&b, &[here], last).is_err(), "{here}");
    }
}

/// A pool of which more is missing than it has copies.
#[test]
fn nothing_is_opened_of_which_not_every_slab_is_there() {
    let b = Bench::new(4, 0);
    let last = closed(&b, 2);
    assert!(open(&b, &[0], last).is_err());
    let b = Bench::new(2, 0);
    let last = closed(&b, 1);
    assert!(open(&b, &[0], last).is_err() && open(&b, &[1], last).is_err());
}

#[cfg(feature = "planted")]
#[test]
fn a_last_state_that_is_not_compared_is_caught() {
    weir_store::planted::plant(Some(weir_store::planted::Bug::LastNotCompared));
    let b = Bench::new(2, 0);
    let last = closed(&b, 2);
    let p = b.open().unwrap();
    b.run(async move { write(&p, 1, 0, MIB, 6).await.unwrap() });
    b.restart();
    let opened = open(&b, &[0], last).is_ok();
    weir_store::planted::plant(None);
    assert!(opened);
}

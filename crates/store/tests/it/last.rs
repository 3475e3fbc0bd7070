//! A pool is opened without devices that are missing if those that are there have its last state.

use crate::bench::{Bench, MIB, first, newest, spec, write};
use weir_base::{MILLIS, SECONDS};
use weir_sim::{Latency, Next};
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
        assert_eq!(p.newest(), None, "it is open");
        p.close().await.unwrap();
        p.newest()
    });
    b.restart();
    newest.expect("it was closed in order")
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

/// Two of four are missing: the pool is opened if all that is in it is on one of the others. That the log was on those that are
/// missing is no matter.
#[test]
fn of_a_striped_mirror_two_may_be_missing() {
    let (mut opened, mut without_log) = (0, 0);
    for (x, y) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)] {
        let b = Bench::new(4, 70);
        closed(&b, 2);
        // The log is on devices then that hold different halves.
        let (all, media) = (b.all(), b.media.clone());
        let last = b.run(async move {
            let p = Pool::open(all, Options::default()).await.unwrap();
            media[1].set_offline(true);
            write(&p, 1, 2 * MIB, MIB, 3).await.unwrap();
            p.checkpoint().await.unwrap();
            media[1].set_offline(false);
            p.resync().await.unwrap();
            p.settled().await.unwrap();
            p.close().await.unwrap();
            p.newest().expect("it is whole again")
        });
        b.restart();
        let logs: Vec<usize> =
            newest(&b.media[x]).unwrap().log_set.iter().flatten().map(|n| (*n).into()).collect();
        let there: Vec<usize> = (0..4).filter(|i| ![x, y].contains(i)).collect();
        match open(&b, &there, last) {
            Ok(p) => {
                opened += 1;
                without_log += u32::from(logs.iter().all(|l| [x, y].contains(l)));
                b.run(async move {
                    assert_eq!(first(&p, 1, MIB).await, Ok(5));
                    assert_eq!(first(&p, 1, 2 * MIB).await, Ok(3));
                    write(&p, 1, 0, MIB, 7).await.unwrap();
                    assert_eq!(first(&p, 1, 0).await, Ok(7));
                    p.close().await.unwrap();
                });
                b.restart();
                let p = b.open().expect("the others come back");
                b.run(async move {
                    p.settled().await.unwrap();
                    assert!(p.status().whole, "{:?}", p.status());
                    assert_eq!(first(&p, 1, 0).await, Ok(7));
                });
            }
            Err(e) => {
                let told = e.to_string();
                assert!(told.contains("a part of the pool is on no device"), "{x} {y}: {told}");
            }
        }
    }
    assert_eq!(
        (opened, without_log),
        (4, 1),
        "opened, and of these without both halves of the log"
    );
}

/// One goes on by itself, and the other one is opened by force elsewhere: neither is taken for a part of the other.
#[test]
fn two_that_went_apart_are_not_united_by_themselves() {
    let b = Bench::new(2, 80);
    let last = closed(&b, 2);
    let forced = Options { force: true, lineage: 5, ..Options::default() };
    for (i, o, value) in
        [(1, forced, 6), (0, Options { last: Some(last), lineage: 4, ..Options::default() }, 7)]
    {
        let disks = b.disks(&[i]);
        let p = b.run(Pool::open(disks, o)).unwrap();
        b.run(async move {
            for _ in 0..=value - 6 {
                write(&p, 1, 0, MIB, value).await.unwrap();
                p.checkpoint().await.unwrap();
            }
            p.close().await.unwrap();
        });
        b.restart();
    }
    let p = b.open().unwrap();
    b.run(async move {
        p.settled().await.unwrap();
        let s = p.status();
        assert_eq!(first(&p, 1, 0).await, Ok(7));
        assert_eq!(s.devices[1].state, MemberState::Out, "only when somebody says so");
    });
}

#[test]
fn what_was_not_closed_in_order_has_no_last_state() {
    for what in 0..2 {
        let b = Bench::new(2, 90);
        let (disks, media) = (b.all(), b.media.clone());
        let last = b.run(async move {
            create(&disks, &spec(2)).await.unwrap();
            let p = Pool::open(disks, Options::default()).await.unwrap();
            p.create_volume("v", 64 * MIB, 4096).await.unwrap();
            p.settled().await.unwrap();
            if what == 0 {
                // A device fails with the last checkpoint.
                media[1].set_offline(true);
            } else {
                media.iter().for_each(|m| m.next_is(Next::FlushError));
            }
            let _ = write(&p, 1, 0, MIB, 1).await;
            drop(weir_reactor::patience(100 * SECONDS, p.close()).await);
            p.newest()
        });
        assert_eq!(last, None, "{what}");
    }
}

/// Devices fail when an opening has begun to write: whoever asks is told that they may not have what they had.
#[test]
fn an_opening_that_wrote_says_so() {
    let b = Bench::new(2, 92);
    let last = closed(&b, 2);
    b.media.iter().for_each(|m| m.next_is(Next::FlushError));
    let failed = b.run(Pool::open(b.all(), Options::default())).err();
    assert!(matches!(failed, Some(StoreError::Unfinished(_))), "{failed:?}");
    // What was refused has written nothing.
    b.restart();
    let refused = open(&b, &[0], last + 1).err();
    assert!(matches!(refused, Some(StoreError::Pool(_))), "{refused:?}");
}

/// A device that is given and does not answer is no missing one, unless that is said.
#[test]
fn what_does_not_answer_is_not_missing() {
    let b = Bench::new(2, 93);
    let last = closed(&b, 2);
    b.media[1].set_offline(true);
    for (without_unread, opens) in [(false, false), (true, true)] {
        let options =
            Options { last: Some(last), lineage: 99, without_unread, ..Options::default() };
        let opened = b.run(Pool::open(b.all(), options));
        assert_eq!(opened.is_ok(), opens, "{:?}", opened.err());
    }
    let label = b.run({
        let disk = b.disk(1);
        async move { weir_store::label_of(&disk).await.err() }
    });
    assert!(matches!(label, Some(StoreError::Unread(_))), "{label:?}");
}

/// What a pool on slow devices had that was closed right after a write.
fn closed_at_once() -> Option<u64> {
    let b = Bench::new(2, 91);
    let disks = b.all();
    let p = b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        p
    });
    b.set(|c| c.flush = Latency::uniform(60 * MILLIS, 1));
    b.run(async move {
        write(&p, 1, 0, MIB, 1).await.unwrap();
        p.close().await.unwrap();
        p.newest()
    })
}

/// The log says a little later that its last page is durable. The last checkpoint may take longer.
#[test]
fn what_is_closed_right_after_a_write_has_a_last_state() {
    assert!(closed_at_once().is_some());
}

#[cfg(feature = "planted")]
#[test]
fn a_log_that_goes_on_beside_the_last_checkpoint_is_caught() {
    weir_store::planted::plant(Some(weir_store::planted::Bug::TellsAtTheEnd));
    let last = closed_at_once();
    weir_store::planted::plant(None);
    assert_eq!(last, None);
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

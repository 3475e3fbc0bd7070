//! Damage is told of: on which device, and whose data it was.

use crate::bench::{B, Bench, MIB, write};
use crate::common::{filled, read};
use std::rc::Rc;
use weir_base::{IoError, MILLIS, SECONDS};
use weir_block::Volume;
use weir_reactor::{sleep, spawn};
use weir_sim::{Next, Odds};
use weir_store::format::page::{Header, PageKind};
#[cfg(feature = "planted")]
use weir_store::planted::Bug;
use weir_store::{Damage, Options, Pool, PoolSpec, ScrubWatch, Whose, create};

/// A mirror of two volumes with a MiB of ones each.
fn made() -> (Bench, Pool) {
    made_on(2, 8)
}

/// The same on so many devices, with a copy on each, which have so many spare blocks.
fn made_on(devices: usize, spares: u64) -> (Bench, Pool) {
    let b = Bench::new(devices, 5);
    let disks = b.all();
    let spec = PoolSpec {
        slab_shift: 8,
        log_pages: 64,
        spares,
        ..PoolSpec::fitting(77, devices as u8, 0)
    };
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

/// Where the copies of a volume's block are: device and byte.
fn places(b: &Bench, p: &Pool, volume: u32, at: u64) -> Vec<(u16, u64)> {
    let p = p.clone();
    b.run(async move { p.volume(volume).unwrap().locate(at).await.unwrap() })
}

/// Spoils the copy of a volume's block on one device, or on all.
fn spoil(b: &Bench, p: &Pool, volume: u32, at: u64, only: Option<u16>) {
    let places = places(b, p, volume, at);
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
    Damage { device, whose: Whose::Dataset(whose.into()), copies, lost }
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

/// Whether the damage of the last copy is told, and once: of a medium that says that it is bad, and where the other device is away.
fn last_copies() -> [bool; 3] {
    let twice = |b: &Bench, p: &Pool, error| {
        for _ in 0..2 {
            assert_eq!(read_often(b, p, 1, 8192), Err(error));
        }
    };
    // The only copy there is.
    let (b, p) = made_on(1, 8);
    let (_, at) = places(&b, &p, 1, 8192)[0];
    b.media[0].fail_reads(at, B);
    twice(&b, &p, IoError::Medium);
    let alone = p.damage() == [damage(&p, 0, "v", 1, 1)] && by_device(&p) == [1];
    // One copy cannot be read, the other is wrong.
    let (b, p) = made();
    let all = places(&b, &p, 1, 8192);
    spoil(&b, &p, 1, 8192, Some(1));
    let bad = all.iter().find(|(d, _)| *d == 0).unwrap();
    b.media[0].fail_reads(bad.1, B);
    twice(&b, &p, IoError::Medium);
    let expected = vec![damage(&p, 0, "v", 1, 1), damage(&p, 1, "v", 1, 1)];
    let both = sorted(p.damage()) == sorted(expected);
    // What a device has that does not answer may be good.
    let (b, p) = made();
    spoil(&b, &p, 1, 8192, Some(1));
    b.media[0].set_offline(true);
    twice(&b, &p, IoError::Offline);
    let away = p.damage() == [damage(&p, 1, "v", 1, 0)];
    [alone, both, away]
}

#[test]
fn damage_of_the_last_copy_is_told() {
    assert_eq!(last_copies(), [true; 3]);
}

#[cfg(feature = "planted")]
#[test]
fn damage_of_the_last_copy_that_is_not_told_is_caught() {
    weir_store::planted::plant(Some(weir_store::planted::Bug::LastCopyUntold));
    let told = last_copies();
    weir_store::planted::plant(None);
    assert_eq!(told, [false; 3]);
}

#[test]
fn a_scrub_tells_of_the_damage_of_the_last_copy() {
    let (b, p) = made();
    spoil(&b, &p, 1, 8192, Some(1));
    b.media[0].set_offline(true);
    let (q, watch) = (p.clone(), Rc::new(ScrubWatch::default()));
    let w = watch.clone();
    let report = b.run(async move { q.scrub_watched(0, w).await }).unwrap();
    assert_eq!((report.damaged, report.lost), (1, 0), "{:?}", watch.findings());
    assert_eq!(p.damage(), [damage(&p, 1, "v", 1, 0)]);
    assert!(watch.findings().iter().any(|f| f.what.ends_with("no other can be read")));

    let (b, p) = made_on(1, 8);
    b.media[0].fail_reads(places(&b, &p, 1, 8192)[0].1, B);
    let q = p.clone();
    let report = b.run(async move { q.scrub(0).await }).unwrap();
    assert_eq!((report.damaged, report.repaired, report.lost), (1, 0, 0));
    assert_eq!(p.damage(), [damage(&p, 0, "v", 1, 1)]);
}

#[test]
fn what_is_lost_counts_once_and_is_known_until_it_is_written() {
    let (b, p) = made();
    spoil(&b, &p, 1, 8192, None);
    spoil(&b, &p, 2, 4096, Some(1));
    let scrub = |p: &Pool| {
        let q = p.clone();
        b.run(async move { q.scrub(0).await }).unwrap().lost
    };
    assert_eq!((scrub(&p), scrub(&p)), (1, 1), "each scrub tells what it finds");
    assert_eq!(p.found_wrong(), (3, 1));
    assert_eq!(p.losses(), [("v".to_owned(), 1)]);
    // Read again after a while it is given up for good, and known after a restart when somebody looks.
    let q = p.clone();
    b.run(async move {
        sleep(10 * SECONDS).await;
        assert!(read(&*q.volume(1).unwrap(), 8192, 4096).await.is_err());
        q.close().await.unwrap();
    });
    assert_eq!((p.found_wrong(), p.losses()), ((3, 1), vec![("v".to_owned(), 1)]));
    let disks = b.all();
    let p = b.run(async move { Pool::open(disks, Options::default()).await }).unwrap();
    assert_eq!(p.losses(), []);
    assert_eq!((scrub(&p), p.losses()), (1, vec![("v".to_owned(), 1)]));
    let q = p.clone();
    b.run(async move { write(&q, 1, 8192, B, 7).await }).unwrap();
    assert_eq!(p.losses(), []);
}

/// By a device that says so of its only copy, until it can be read after all.
#[test]
fn what_its_device_cannot_read_is_lost_while_that_is_so() {
    let (b, p) = made_on(1, 8);
    let at = places(&b, &p, 1, 8192)[0].1;
    b.media[0].fail_reads(at, B);
    assert_eq!(read_often(&b, &p, 1, 8192), Err(IoError::Medium));
    assert_eq!((p.losses(), p.found_wrong()), (vec![("v".to_owned(), 1)], (1, 1)));
    b.media[0].read_again();
    let q = p.clone();
    b.run(async move { read(&*q.volume(1).unwrap(), 8192, 4096).await }).expect("it is well");
    assert_eq!(p.losses(), []);
}

/// A log that is taken up has many writes put at once.
#[test]
fn what_was_lost_before_a_kill_and_written_since_is_not_told() {
    let (b, p) = made();
    spoil(&b, &p, 1, 8192, None);
    let q = p.clone();
    b.run(async move {
        for _ in 0..2 {
            assert!(read(&*q.volume(1).unwrap(), 8192, 4096).await.is_err());
            sleep(10 * SECONDS).await;
        }
        q.snapshot(&[(1, "s")], 1).await.unwrap();
        write(&q, 1, 0, 128 * B, 7).await.unwrap();
    });
    drop(p);
    let disks = b.all();
    let p = b.run(async move { Pool::open(disks, Options::default()).await }).unwrap();
    let q = p.clone();
    b.run(async move { read(&*q.volume(1).unwrap(), 8192, 4096).await }).expect("it is there");
    assert!(p.losses().iter().all(|(v, _)| v != "v"), "{:?}", p.losses());
}

#[test]
fn what_is_lost_of_a_deleted_volume_is_not_told() {
    let (b, p) = made();
    spoil(&b, &p, 1, 8192, None);
    spoil(&b, &p, 2, 4096, None);
    assert_eq!(read_often(&b, &p, 1, 8192), Err(IoError::Medium));
    assert_eq!(read_often(&b, &p, 2, 4096), Err(IoError::Medium));
    assert_eq!(p.losses(), [("v".to_owned(), 1), ("w".to_owned(), 1)]);
    let q = p.clone();
    b.run(async move { q.delete(1).await }).unwrap();
    assert_eq!(p.losses(), [("w".to_owned(), 1)]);
    let q = p.clone();
    b.run(async move { q.volume(2).unwrap().discard(0, MIB).await }).unwrap();
    assert_eq!(p.losses(), []);
}

/// Whether a block is told as lost that a host writes well while a read looks where it is.
fn told_though_written() -> bool {
    let (b, p) = made();
    spoil(&b, &p, 1, 8192, None);
    b.run(async move {
        for _ in 0..2 {
            assert!(read(&*p.volume(1).unwrap(), 8192, 4096).await.is_err());
            sleep(10 * SECONDS).await;
        }
        p.close().await.unwrap();
    });
    let (disks, media) = (b.all(), b.media.clone());
    b.run(async move {
        let p = Pool::open(disks, Options::default()).await.unwrap();
        let stall = |time| media.iter().for_each(|m| m.stall(time));
        stall(SECONDS);
        let q = p.clone();
        let reads = spawn(async move { read(&*q.volume(1).unwrap(), 8192, 4096).await });
        sleep(MILLIS).await;
        stall(0);
        write(&p, 1, 8192, B, 7).await.unwrap();
        drop(reads.await);
        assert_eq!(read(&*p.volume(1).unwrap(), 8192, 4096).await.unwrap()[0], 7);
        !p.losses().is_empty()
    })
}

#[test]
fn what_is_written_while_it_is_found_lost_is_not_told() {
    assert!(!told_though_written());
}

#[cfg(feature = "planted")]
#[test]
fn a_loss_that_is_told_of_an_older_entry_is_caught() {
    assert!(crate::bench::with(Bug::LossOfAnOlderEntry, told_though_written));
}

/// Losses by the names that have them, in order, of a volume with a snapshot and a clone: after a scrub, and after each deletion.
fn losses_of_a_line(given_up: bool) -> Vec<Vec<String>> {
    let (b, p) = made();
    if given_up {
        spoil(&b, &p, 1, 8192, None);
        let q = p.clone();
        b.run(async move {
            for _ in 0..2 {
                assert!(read(&*q.volume(1).unwrap(), 8192, 4096).await.is_err());
                sleep(10 * SECONDS).await;
            }
            q.close().await.unwrap();
        });
    }
    let disks = b.all();
    let p = match given_up {
        true => b.run(async move { Pool::open(disks, Options::default()).await }).unwrap(),
        false => p,
    };
    let q = p.clone();
    let (s, c) = b.run(async move {
        let s = q.snapshot(&[(1, "s")], 1).await.unwrap()[0];
        let c = q.clone_snapshot(s, "c").await.unwrap();
        write(&q, c, 0, B, 7).await.unwrap();
        q.checkpoint().await.unwrap();
        (s, c)
    });
    if !given_up {
        spoil(&b, &p, 1, 8192, None);
    }
    let q = p.clone();
    b.run(async move {
        q.scrub(0).await.unwrap();
        sleep(SECONDS).await;
    });
    let names = |p: &Pool| p.losses().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let mut all = vec![names(&p)];
    let q = p.clone();
    b.run(async move { q.delete(c).await }).unwrap();
    all.push(names(&p));
    let q = p.clone();
    b.run(async move { q.delete(s).await }).unwrap();
    all.push(names(&p));
    let q = p.clone();
    b.run(async move { q.delete(1).await }).unwrap();
    all.push(names(&p));
    all
}

#[test]
fn what_is_lost_is_told_of_all_that_have_it() {
    let expected = [vec!["c", "s", "v"], vec!["s", "v"], vec!["v"], vec![]];
    assert_eq!(losses_of_a_line(false), expected);
    assert_eq!(losses_of_a_line(true), expected);
}

#[cfg(feature = "planted")]
#[test]
fn a_loss_that_is_told_of_one_that_has_it_is_caught() {
    for given_up in [false, true] {
        let told = crate::bench::with(Bug::LossOfOneOnly, || losses_of_a_line(given_up));
        assert_ne!(told[2], ["v"]);
    }
}

/// What comes after a loss has that too, whoever is written then.
#[test]
fn a_snapshot_of_what_is_lost_has_lost_it_and_so_has_what_is_made_of_it_again() {
    let (b, p) = made();
    spoil(&b, &p, 1, 8192, None);
    assert_eq!(read_often(&b, &p, 1, 8192), Err(IoError::Medium));
    let q = p.clone();
    b.run(async move {
        let s = q.snapshot(&[(1, "s")], 1).await.unwrap()[0];
        write(&q, 1, 8192, B, 7).await.unwrap();
        assert_eq!(q.losses(), [("s".to_owned(), 1)]);
        q.revert(1, s).await.unwrap();
        assert_eq!(q.losses(), [("s".to_owned(), 1), ("v".to_owned(), 1)]);
    });
}

/// A snapshot has what a volume lost after it, and the pool is suspended, and goes on. Whether the snapshot's is told as lost.
fn told_of_an_older_one(given_up: bool) -> bool {
    let (b, p) = made();
    let q = p.clone();
    let s = b.run(async move {
        let s = q.snapshot(&[(1, "s")], 1).await.unwrap()[0];
        write(&q, 1, 8192, B, 7).await.unwrap();
        s
    });
    spoil(&b, &p, 1, 8192, None);
    let q = p.clone();
    b.run(async move {
        for _ in 0..1 + u32::from(given_up) {
            assert!(read(&*q.volume(1).unwrap(), 8192, 4096).await.is_err());
            sleep(10 * SECONDS).await;
        }
    });
    assert_eq!(p.losses(), [("v".to_owned(), 1)]);
    b.media.iter().for_each(|m| m.next_is(Next::WriteError));
    let q = p.clone();
    b.run(async move {
        assert!(q.create_volume("x", 64 * MIB, 4096).await.is_err());
        q.resume().await.unwrap();
        assert_eq!(read(&*q.volume(s).unwrap(), 8192, 4096).await.unwrap()[0], 1);
    });
    p.losses().iter().any(|(name, _)| name == "s")
}

#[test]
fn what_a_volume_lost_since_is_not_told_of_an_older_snapshot() {
    assert!(!told_of_an_older_one(false) && !told_of_an_older_one(true));
}

#[cfg(feature = "planted")]
#[test]
fn a_loss_that_is_told_of_an_older_snapshot_is_caught() {
    for given_up in [false, true] {
        assert!(crate::bench::with(Bug::LossBeforeItsTime, || told_of_an_older_one(given_up)));
    }
}

/// A volume gets the map of its snapshot while somebody looks at what it had. Whether that is told as lost.
fn told_of_another_map(unreadable: bool) -> bool {
    let (b, p) = made();
    let q = p.clone();
    let s = b.run(async move {
        let s = q.snapshot(&[(1, "s")], 1).await.unwrap()[0];
        write(&q, 1, 8192, B, 7).await.unwrap();
        q.checkpoint().await.unwrap();
        // Nothing else waits for who reads.
        sleep(60 * SECONDS).await;
        s
    });
    match unreadable {
        false => spoil(&b, &p, 1, 8192, None),
        true => places(&b, &p, 1, 8192)
            .into_iter()
            .for_each(|(d, at)| b.media[usize::from(d)].fail_reads(at, B)),
    }
    let media = b.media.clone();
    b.run(async move {
        let stall = |time| media.iter().for_each(|m| m.stall(time));
        let (q, again) = (p.clone(), p.clone());
        stall(SECONDS);
        let reads = spawn(async move { read(&*q.volume(1).unwrap(), 8192, 4096).await });
        sleep(1500 * MILLIS).await;
        stall(0);
        p.revert(1, s).await.unwrap();
        drop(reads.await);
        assert_eq!(read(&*again.volume(1).unwrap(), 8192, 4096).await.unwrap()[0], 1);
        !p.losses().is_empty()
    })
}

#[test]
fn what_a_volume_has_no_more_is_not_told_as_lost() {
    assert!(!told_of_another_map(false) && !told_of_another_map(true));
}

#[cfg(feature = "planted")]
#[test]
fn a_loss_that_is_told_of_another_map_is_caught() {
    assert!(crate::bench::with(Bug::LossOfAnotherMap, || told_of_another_map(false)));
}

/// A snapshot is deleted while a scrub is in its midst. How many damaged copies of what it shares with its volume are mended.
fn mended_beside_deletion() -> u64 {
    let (b, p) = made();
    let q = p.clone();
    let s = b.run(async move {
        let s = q.snapshot(&[(1, "s")], 1).await.unwrap()[0];
        q.checkpoint().await.unwrap();
        s
    });
    spoil(&b, &p, 1, 100 * B, Some(1));
    let (q, watch) = (p.clone(), Rc::new(ScrubWatch::default()));
    let w = watch.clone();
    let report = b.run(async move {
        let scrubs = spawn({
            let q = q.clone();
            async move { q.scrub_watched(10, w).await }
        });
        while watch.blocks() < 5 {
            sleep(10 * MILLIS).await;
        }
        q.delete(s).await.unwrap();
        scrubs.await.expect("it ends")
    });
    report.unwrap().repaired
}

#[test]
fn what_a_deleted_snapshot_shared_is_scrubbed_in_its_volume() {
    assert_eq!(mended_beside_deletion(), 1);
}

#[cfg(feature = "planted")]
#[test]
fn a_scrub_that_passes_over_what_a_deleted_snapshot_had_is_caught() {
    assert_eq!(crate::bench::with(Bug::DeletedIsRead, mended_beside_deletion), 0);
}

/// A volume's own leaf cannot be read for a while when a snapshot's block is found lost that it has too. Who is told then, and when the
/// snapshot is deleted.
#[test]
fn others_that_could_not_be_asked_are_asked_when_it_is_found_again() {
    let (b, p) = made_on(1, 8);
    let q = p.clone();
    b.run(async move {
        q.snapshot(&[(1, "s")], 1).await.unwrap();
        q.checkpoint().await.unwrap();
    });
    let older = crate::lacking::pages_of(&b.media[0], &crate::lacking::is_first_leaf);
    let q = p.clone();
    b.run(async move {
        write(&q, 1, 0, B, 7).await.unwrap();
        q.close().await.unwrap();
    });
    let now = crate::lacking::pages_of(&b.media[0], &crate::lacking::is_first_leaf);
    let own: Vec<u64> = now.into_iter().filter(|at| !older.contains(at)).collect();
    assert!(!own.is_empty(), "set-up");
    let disks = b.all();
    let p = b.run(async move { Pool::open(disks, Options::default()).await }).unwrap();
    let s = p.datasets().into_iter().find(|d| d.snapshot).unwrap().id;
    spoil(&b, &p, s, 8192, None);
    own.iter().for_each(|at| b.media[0].fail_reads(*at, B));
    assert_eq!(read_often(&b, &p, s, 8192), Err(IoError::Medium));
    b.w.run_for(SECONDS);
    assert_eq!(p.losses(), [("s".to_owned(), 1)]);
    b.media[0].read_again();
    let q = p.clone();
    b.run(async move { q.scrub(0).await }).unwrap();
    b.w.run_for(SECONDS);
    assert_eq!(p.losses(), [("s".to_owned(), 1), ("v".to_owned(), 1)]);
    let q = p.clone();
    b.run(async move { q.delete(s).await }).unwrap();
    assert_eq!(p.losses(), [("v".to_owned(), 1)]);
}

#[test]
fn an_error_that_passes_is_no_damage() {
    let (b, p) = made_on(1, 8);
    for _ in 0..2 {
        b.media[0].next_is(Next::ReadError);
    }
    assert_eq!(read_often(&b, &p, 1, 8192), Ok(()));
    assert_eq!((p.damage(), by_device(&p), p.counters().lost), (vec![], vec![0], 0));
}

#[test]
fn a_copy_that_cannot_be_mended_is_counted_once() {
    let (b, p) = made_on(2, 0);
    for (d, at) in places(&b, &p, 1, 8192).into_iter().filter(|(d, _)| *d == 1) {
        b.media[usize::from(d)].wear_out(at);
    }
    for _ in 0..3 {
        assert_eq!(read_often(&b, &p, 1, 8192), Ok(()));
    }
    assert_eq!(by_device(&p), [0, 1]);
}

#[test]
fn a_block_that_is_not_read_is_counted_once() {
    let (b, p) = made_on(1, 8);
    assert_eq!(read_often(&b, &p, 1, 8192), Ok(()));
    b.set(|c| (c.error, c.read_error) = (IoError::Path, Odds::ALWAYS));
    for _ in 0..3 {
        assert_eq!(read_often(&b, &p, 1, 8192), Err(IoError::Path));
    }
    assert_eq!((p.damage(), p.status().devices[0].unread), (vec![], 1));
}

/// Whether a loss is told of another block that was put where a lost one was.
fn told_anew() -> bool {
    let (b, p) = made();
    let before = places(&b, &p, 1, 8192);
    spoil(&b, &p, 1, 8192, None);
    assert_eq!(read_often(&b, &p, 1, 8192), Err(IoError::Medium));
    let q = p.clone();
    let found = b.run(async move {
        for value in 2..200 {
            write(&q, 1, 0, MIB, value).await.unwrap();
            q.checkpoint().await.unwrap();
            for at in (0..MIB).step_by(B as usize) {
                if q.volume(1).unwrap().locate(at).await.unwrap() == before {
                    return at;
                }
            }
        }
        panic!("that place is not used again");
    });
    spoil(&b, &p, 1, found, None);
    assert_eq!(read_often(&b, &p, 1, found), Err(IoError::Medium));
    sorted(p.damage()) == sorted(vec![damage(&p, 0, "v", 2, 2), damage(&p, 1, "v", 2, 2)])
}

#[test]
fn the_loss_of_another_block_at_the_same_place_is_told() {
    assert!(told_anew());
}

#[cfg(feature = "planted")]
#[test]
fn a_loss_that_is_known_by_its_place_is_caught() {
    weir_store::planted::plant(Some(weir_store::planted::Bug::LossByPlace));
    let told = told_anew();
    weir_store::planted::plant(None);
    assert!(!told);
}

/// On which devices a scrub finds nothing.
fn clean(b: &Bench, p: &Pool) -> Vec<bool> {
    let (q, watch) = (p.clone(), Rc::new(ScrubWatch::default()));
    let w = watch.clone();
    b.run(async move { q.scrub_watched(0, w).await }).unwrap();
    p.status().devices.iter().map(|d| watch.is_clean(d.id)).collect()
}

/// On which devices scrubs find nothing that find, skip or leave out something, without counting more than was counted before.
fn unclean() -> [Vec<bool>; 4] {
    // A lost block of a snapshot, which stays.
    let (b, p) = made();
    let q = p.clone();
    b.run(async move { q.snapshot(&[(1, "v@s")], 0).await }).unwrap();
    spoil(&b, &p, 1, 8192, None);
    clean(&b, &p);
    let before = by_device(&p);
    let known = clean(&b, &p);
    assert_eq!(by_device(&p), before);
    // A device that is away.
    let (b, p) = made();
    b.media[0].set_offline(true);
    let away = clean(&b, &p);
    // Want of memory says nothing of a device.
    let (b, p) = made();
    b.media[1].set_config(|c| (c.error, c.read_error) = (IoError::Busy, Odds::ALWAYS));
    let busy = clean(&b, &p);
    // A leaf, and with it what it leads to.
    let (b, p) = made();
    b.run(async move { p.close().await }).unwrap();
    let p = b.open().unwrap();
    for m in &b.media {
        let mut block = [0; B as usize];
        for at in (0..m.len()).step_by(B as usize) {
            m.peek(at, &mut block);
            if Header::get(&block).is_ok_and(|h| h.kind == PageKind::Leaf) {
                m.poke(at + 100, &[block[100] ^ 1]);
            }
        }
    }
    [known, away, busy, clean(&b, &p)]
}

#[test]
fn a_scrub_finds_nothing_only_where_it_read_everything() {
    assert_eq!(unclean(), [[false; 2], [false, true], [true, false], [false; 2]]);
    let (b, p) = made();
    assert_eq!(clean(&b, &p), [true; 2]);
    spoil(&b, &p, 1, 8192, Some(1));
    assert_eq!(clean(&b, &p), [true, false]);
    assert_eq!(clean(&b, &p), [true; 2]);
}

#[cfg(feature = "planted")]
#[test]
fn a_scrub_that_finds_nothing_by_what_was_counted_is_caught() {
    weir_store::planted::plant(Some(weir_store::planted::Bug::LeftOutIsClean));
    let all = unclean();
    weir_store::planted::plant(None);
    assert_eq!(all, [[true; 2]; 4]);
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

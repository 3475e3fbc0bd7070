//! Errors of devices that pass: what may be concluded from them, and what may not.

use crate::bench::{Bench, LIMIT, MIB};
use crate::common::{filled, read};
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{IoError, IoResult, MICROS, MILLIS, SECONDS};
use weir_block::Volume;
use weir_reactor::{sleep, spawn};
use weir_sim::{Next, Odds};
use weir_store::format::superblock::MemberState;
use weir_store::{Options, Pool, PoolSpec, StoreError, check, create};

/// Where the tests write.
const AT: u64 = 8192;
/// Every class of error that a disk tells, but for that it is gone.
const KINDS: [IoError; 6] = [
    IoError::Medium,
    IoError::Path,
    IoError::Busy,
    IoError::Internal,
    IoError::NoSpace,
    IoError::ReadOnly,
];

/// A pool on so many devices of a volume of which the first MiB is ones, and the pool.
fn pool_on(devices: usize, copies: u8, seed: u64) -> (Bench, Pool) {
    let b = Bench::new(devices, seed);
    let disks = b.all();
    let spec =
        PoolSpec { slab_shift: 8, log_pages: 64, spares: 8, ..PoolSpec::fitting(77, copies, 0) };
    let pool = b.run(async move {
        create(&disks, &spec).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        p.volume(1).unwrap().write(0, filled(MIB as usize, 1), false).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        p
    });
    (b, pool)
}

async fn write(p: &Pool, at: u64, value: u8) -> IoResult {
    p.volume(1).unwrap().write(at, filled(4096, value), false).await
}

async fn first(p: &Pool, at: u64) -> Result<u8, IoError> {
    Ok(read(&*p.volume(1).unwrap(), at, 4096).await?[0])
}

#[test]
fn a_read_error_that_passes_loses_nothing() {
    for (devices, copies) in [(1, 1), (2, 2), (3, 2)] {
        for kind in KINDS {
            let (b, p) = pool_on(devices, copies, 1);
            b.set(|c| (c.error, c.read_error) = (kind, Odds::ALWAYS));
            let q = p.clone();
            b.run(async move {
                for _ in 0..3 {
                    assert!(first(&q, AT).await.is_err(), "{kind:?}");
                    sleep(7 * SECONDS).await;
                }
            });
            b.set(|c| c.read_error = Odds::NEVER);
            b.run(async move {
                assert_eq!(first(&p, AT).await, Ok(1), "{kind:?} of {devices} devices");
                p.checkpoint().await.unwrap();
                assert_eq!(first(&p, AT).await, Ok(1));
                assert_eq!((p.counters().lost, p.status().suspended), (0, None));
            });
        }
    }
}

#[test]
fn a_short_read_error_is_not_even_seen() {
    let (b, p) = pool_on(1, 1, 1);
    b.media[0].next_is(Next::ReadError);
    b.media[0].next_is(Next::ReadError);
    b.run(async move { assert_eq!(first(&p, AT).await, Ok(1)) });
}

#[test]
fn a_block_is_lost_when_all_copies_are_wrong_and_stay_so() {
    let (b, p) = pool_on(2, 2, 1);
    let q = p.clone();
    let places = b.run(async move { q.volume(1).unwrap().locate(AT).await.unwrap() });
    let flip = || {
        for (device, at) in &places {
            let (m, mut byte) = (&b.media[usize::from(*device)], [0]);
            m.peek(*at, &mut byte);
            m.poke(*at, &[byte[0] ^ 1]);
        }
    };
    flip();
    let q = p.clone();
    b.run(async move {
        assert_eq!(first(&q, AT).await, Err(IoError::Medium));
        assert_eq!(first(&q, AT).await, Err(IoError::Medium));
    });
    flip();
    let q = p.clone();
    b.run(async move { assert_eq!(first(&q, AT).await, Ok(1), "the copies came good again") });
    flip();
    let q = p.clone();
    b.run(async move {
        assert_eq!(first(&q, AT).await, Err(IoError::Medium));
        sleep(6 * SECONDS).await;
        assert_eq!(first(&q, AT).await, Err(IoError::Medium));
    });
    flip();
    b.run(async move {
        assert_eq!(first(&p, AT).await, Err(IoError::Medium), "that was proof");
        write(&p, AT, 2).await.unwrap();
        assert_eq!(first(&p, AT).await, Ok(2));
    });
}

#[test]
fn maps_that_cannot_be_read_for_a_second_stop_nothing() {
    for kind in KINDS {
        let (b, p) = pool_on(1, 1, 2);
        // Nothing of the maps is in memory.
        b.run(async move { p.close().await.unwrap() });
        b.n.kill();
        b.n.restart();
        let p = b.open().unwrap();
        let (media, q) = (b.media.clone(), p.clone());
        b.run(async move {
            media[0].set_config(|c| (c.error, c.read_error) = (kind, Odds::ALWAYS));
            write(&q, AT, 2).await.unwrap();
            let checkpoint = weir_reactor::spawn(async move { q.checkpoint().await });
            sleep(SECONDS).await;
            media[0].set_config(|c| c.read_error = Odds::NEVER);
            assert_eq!(checkpoint.await, Some(Ok(())), "{kind:?}");
            assert_eq!(first(&p, AT).await, Ok(2));
        });
    }
}

/// A write is acknowledged, power goes some time later, and its place cannot be read then.
fn unreadable_after(devices: usize, pause: u64) -> (Bench, Vec<(u16, u64)>) {
    let (b, p) = pool_on(devices, devices as u8, 1);
    let places = b.run(async move {
        write(&p, AT, 2).await.unwrap();
        let places = p.volume(1).unwrap().locate(AT).await.unwrap();
        sleep(pause).await;
        places
    });
    b.n.power_off();
    for (device, at) in &places {
        b.media[usize::from(*device)].fail_reads(*at, 4096);
    }
    b.n.restart();
    (b, places)
}

#[test]
fn an_acknowledged_write_that_cannot_be_read_after_a_crash_is_not_older_data() {
    for devices in [1, 2] {
        for pause in [0, 10 * SECONDS] {
            let (b, _) = unreadable_after(devices, pause);
            let p = b.open().unwrap();
            let unread = p.counters().replay_unread;
            assert_eq!(unread, u64::from(pause == 0), "an idle pool leaves nothing in doubt");
            let q = p.clone();
            b.run(async move {
                assert_eq!(first(&q, AT).await, Err(IoError::Medium));
                assert_eq!(first(&q, AT + 4096).await, Ok(1));
                write(&q, AT, 3).await.unwrap();
                assert_eq!(first(&q, AT).await, Ok(3));
            });
        }
    }
}

#[test]
fn what_can_be_read_again_later_is_there_again() {
    let (b, p) = pool_on(1, 1, 1);
    b.run(async move { write(&p, AT, 2).await.unwrap() });
    b.restart();
    // All of the device for two seconds, from when the log is being read.
    let (disks, m) = (b.all(), b.media[0].clone());
    b.run(async move {
        let opened = weir_reactor::spawn(Pool::open(disks, Options::default()));
        sleep(300 * MICROS).await;
        m.set_config(|c| (c.error, c.read_error) = (IoError::Path, Odds::ALWAYS));
        sleep(2 * SECONDS).await;
        m.set_config(|c| c.read_error = Odds::NEVER);
        let p = opened.await.unwrap().unwrap();
        assert_eq!(first(&p, AT).await, Ok(2));
        assert_eq!(p.counters().replay_unread, 0);
    });
}

#[test]
fn a_page_of_the_log_that_cannot_be_read_is_not_taken_for_none() {
    let (b, p) = pool_on(1, 1, 1);
    let log = b.run(async move {
        let before = p.counters().log_pages;
        write(&p, AT, 2).await.unwrap();
        assert_eq!(p.counters().log_pages, before + 1);
        p
    });
    drop(log);
    b.restart();
    // Whatever block it is in: all of the log.
    let disks = b.all();
    let layout = b.run(async move { weir_store::label_of(&disks[0]).await.unwrap().layout });
    b.media[0].fail_reads(layout.log(0) * 4096, layout.log_pages * 4096);
    let why = match b.open() {
        Err(e) => e.to_string(),
        Ok(_) => panic!("the pool opened without its log"),
    };
    assert!(why.contains("of the log cannot be read"), "{why}");
    let disks = b.all();
    let options = Options { force: true, ..Options::default() };
    let p = b.run(async move { Pool::open(disks, options).await.unwrap() });
    b.run(async move { assert_eq!(first(&p, AT).await, Ok(1), "somebody decided that") });
}

/// Nothing is acknowledged before a superblock that tells of a failed device is durable.
#[test]
fn after_the_first_acknowledgement_a_crash_does_not_forget_a_failure() {
    let mut crashes = 0;
    for seed in 0..60 {
        let (b, p) = pool_on(2, 2, seed);
        let what = if seed % 2 == 0 { Next::WriteError } else { Next::FlushError };
        let acknowledged = Rc::new(Cell::new(false));
        for t in 0..8 {
            let (p, told) = (p.clone(), acknowledged.clone());
            b.n.spawn(async move {
                for v in 2..250 {
                    let failed = p.status().devices[1].failed;
                    let done = write(&p, t * 4096, v).await;
                    told.set(told.get() || failed && done.is_ok());
                }
            });
        }
        b.w.run_for(MILLIS + seed * 37 * MICROS);
        b.media[1].next_is(what);
        b.w.run_until(LIMIT, || acknowledged.get()).expect("writes go on");
        b.restart();
        drop(p);
        let p = b.open().unwrap();
        // It may have been brought back already.
        let forgotten = p.status().devices[1].state == MemberState::InSync;
        crashes += 1;
        assert!(!forgotten, "seed {seed}: the pool does not know that device 1 failed");
        b.n.kill();
    }
    assert_eq!(crashes, 60);
}

/// How all devices of a pool fail at once.
#[derive(Debug, Clone, Copy)]
enum All {
    Write,
    Flush,
    Full,
}

fn fail_all(b: &Bench, how: All) {
    for m in &b.media {
        match how {
            All::Write => m.next_is(Next::WriteError),
            All::Flush => m.next_is(Next::FlushError),
            All::Full => m.set_space(Some(0)),
        }
    }
}

#[test]
fn a_suspended_pool_is_read_and_goes_on_without_a_restart() {
    for how in [All::Write, All::Flush, All::Full] {
        for (devices, copies) in [(1, 1), (2, 2), (4, 2)] {
            let (b, p) = pool_on(devices, copies, 3);
            fail_all(&b, how);
            let q = p.clone();
            let v = p.volume(1).unwrap();
            b.run(async move {
                let refused = q.resume().await;
                assert!(matches!(refused, Err(StoreError::State(_))), "{refused:?}");
                assert!(v.write(AT, filled(64 << 10, 2), false).await.is_err(), "{how:?}");
                let why = q.status().suspended;
                assert_eq!(why == Some(IoError::NoSpace), matches!(how, All::Full), "{why:?}");
                assert_eq!(first(&q, 0).await, Ok(1), "{how:?} on {devices}");
                assert_eq!(read(&*v, MIB / 2, 65536).await, Ok(vec![1; 65536]));
                assert!(write(&q, 0, 3).await.is_err());
            });
            b.media.iter().for_each(|m| m.set_space(None));
            let (q, v) = (p.clone(), p.volume(1).unwrap());
            b.run(async move {
                q.resume().await.unwrap();
                assert_eq!(q.status().suspended, None);
                let now = first(&q, AT).await.unwrap();
                assert!(now == 1 || now == 2, "{now}");
                // By a handle of before, and by a new one.
                v.write(AT, filled(4096, 4), false).await.unwrap();
                assert_eq!(first(&q, AT).await, Ok(4));
                assert_eq!(first(&q, 0).await, Ok(1));
                q.checkpoint().await.unwrap();
                q.settled().await.unwrap();
                assert!(q.status().whole);
                q.close().await.unwrap();
            });
            b.n.kill();
            b.n.restart();
            let disks = b.all();
            let report = b.run(async move { check(disks, Options::default()).await.unwrap() });
            assert_eq!(report.findings, []);
        }
    }
}

#[test]
fn a_pool_whose_devices_are_not_well_stays_suspended_and_is_read() {
    let (b, p) = pool_on(2, 2, 3);
    fail_all(&b, All::Full);
    let (q, media) = (p.clone(), b.media.clone());
    b.run(async move {
        assert!(write(&q, AT, 2).await.is_err());
        for _ in 0..2 {
            assert!(q.resume().await.is_err());
            assert!(q.status().suspended.is_some());
            assert_eq!(first(&q, 0).await, Ok(1));
        }
        media[1].set_offline(true);
        assert!(q.resume().await.is_err());
        assert_eq!(first(&q, 0).await, Ok(1), "from the other one");
        media[1].set_offline(false);
        media.iter().for_each(|m| m.set_space(None));
        q.resume().await.unwrap();
        write(&q, AT, 2).await.unwrap();
    });
}

#[test]
fn a_write_that_failed_is_decided_once() {
    for how in [All::Write, All::Flush, All::Full] {
        for copies in [1, 2] {
            for discard in [false, true] {
                for seed in 0..6 {
                    let (b, p) = pool_on(usize::from(copies), copies, seed);
                    fail_all(&b, how);
                    let q = p.clone();
                    let seen = b.run(async move {
                        let v = q.volume(1).unwrap();
                        let done = match discard {
                            true => v.discard(AT, 4096).await,
                            false => write(&q, AT, 2).await,
                        };
                        assert!(done.is_err());
                        first(&q, AT).await
                    });
                    b.media.iter().for_each(|m| m.set_space(None));
                    let now = if seed % 2 == 0 {
                        b.restart();
                        let p = b.open().unwrap();
                        b.run(async move { first(&p, AT).await.unwrap() })
                    } else {
                        b.run(async move {
                            p.resume().await.unwrap();
                            first(&p, AT).await.unwrap()
                        })
                    };
                    let new = if discard { 0 } else { 2 };
                    assert!(now == 1 || now == new, "{now}");
                    match how {
                        // It is read only when it is decided, and on a full file system that cannot be made to last.
                        All::Full => assert!(seen.is_err() || seen == Ok(now), "{seen:?}, {now}"),
                        _ => assert_eq!((seen, now), (Ok(1), 1), "{how:?}"),
                    }
                }
            }
        }
    }
}

#[test]
fn a_device_that_goes_away_under_a_superblock_is_as_current_as_before() {
    for k in 0..48 {
        let (b, p) = pool_on(2, 1, k);
        let (q, m) = (p.clone(), b.media[0].clone());
        b.run(async move {
            let (c, w) = (q.clone(), q.clone());
            let write = spawn(async move { write(&w, AT, 2).await });
            let checkpoint = spawn(async move { c.checkpoint().await });
            sleep(k * 60 * MICROS).await;
            m.set_offline(true);
            let _ = write.await;
            let _ = checkpoint.await;
            // Whoever reads has it decided what became of the write, over and over while the device is away.
            for _ in 0..3 {
                let _ = first(&q, AT).await;
                sleep(1100 * MILLIS).await;
            }
            m.set_offline(false);
            if k % 2 == 0 && q.status().suspended.is_some() {
                q.resume().await.unwrap();
                assert_eq!(first(&q, 0).await, Ok(1));
            }
        });
        b.restart();
        let p = b.open().unwrap();
        b.run(async move {
            assert_eq!(first(&p, 0).await, Ok(1));
            assert!(matches!(first(&p, AT).await, Ok(1 | 2)));
            assert!(p.status().whole);
        });
    }
}

#[test]
fn what_is_given_back_on_an_idle_pool_is_free_soon() {
    let (b, p) = pool_on(1, 1, 1);
    b.run(async move {
        let v = p.volume(1).unwrap();
        let mut at = 0;
        while v.write(at, filled(65536, 2), false).await.is_ok() {
            at += 65536;
        }
        let full = p.status().room;
        v.discard(0, at).await.unwrap();
        sleep(SECONDS).await;
        assert!(p.status().room > full + at / 2, "{} after {full}", p.status().room);
    });
}

#[test]
fn scrub_does_not_blame_media_for_a_path() {
    let (b, p) = pool_on(2, 2, 1);
    b.media[1].set_config(|c| (c.error, c.read_error) = (IoError::Path, Odds::one_in(3)));
    let (q, media) = (p.clone(), b.media.clone());
    b.run(async move {
        let report = q.scrub(0).await.unwrap();
        assert_eq!((report.damaged, report.lost), (0, 0), "{report:?}");
        media[1].set_config(|c| c.read_error = Odds::NEVER);
        let before = q.counters().relocated;
        assert_eq!((q.scrub(0).await.unwrap().damaged, before), (0, 0));
        assert!(q.status().whole);
    });
}

//! Devices that do not answer: whoever waits for one holds up nobody else, and does not wait without end.

use crate::bench::{B, Bench, MIB, first, spec, write};
use weir_base::{IoError, MICROS, SECONDS};
use weir_block::Volume;
use weir_mem::Slice;
use weir_reactor::{sleep, spawn, timeout};
use weir_sim::{DiskConfig, Next, Odds};
use weir_store::format::superblock::MemberState;
use weir_store::{Options, Pool, create};

const HOUR: u64 = 3600 * SECONDS;

/// A disk that is added, or attached, does not answer at all; then a device of the pool fails.
fn joining(attached: bool) -> String {
    let b = Bench::new(4, 0);
    let disks = b.disks(&[0, 1]);
    let spare = b.disk(2);
    let o = Options { spare_after: Some(SECONDS), resync: false, ..Options::default() };
    let p = b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, o).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, MIB, 1).await.unwrap();
        p.add_spare(spare).await.unwrap();
        p.settled().await.unwrap();
        p
    });
    b.media[3].stall(50_000 * SECONDS);
    let (q, hung) = (p.clone(), b.disk(3));
    b.n.spawn(async move {
        let done = match attached {
            true => q.attach(hung).await,
            false => q.add(hung).await,
        };
        assert!(done.is_err(), "{done:?}");
    });
    b.w.run_for(SECONDS);
    b.media[0].set_offline(true);
    b.run(async move {
        write(&p, 1, MIB, B, 2).await.unwrap();
        sleep(600 * SECONDS).await;
        let s = p.status();
        match s.whole {
            true => String::new(),
            false => format!("ten minutes later: {s:?}"),
        }
    })
}

#[test]
fn a_spare_takes_over_though_a_disk_that_is_added_does_not_answer() {
    assert_eq!(joining(false), "");
}

#[test]
fn a_spare_takes_over_though_a_disk_that_is_attached_does_not_answer() {
    assert_eq!(joining(true), "");
}

#[cfg(feature = "planted")]
#[test]
fn a_disk_that_is_waited_for_without_end_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::SilentDiskHoldsUp));
    let held_up = joining(false);
    plant(None);
    assert_ne!(held_up, "");
}

/// What a disk holds that does not answer in time is not known: it may belong to another pool.
#[test]
fn a_disk_that_answers_too_late_is_not_taken_for_an_empty_one() {
    let b = Bench::new(3, 0);
    let (other, disks) = (b.disks(&[2]), b.disks(&[0, 1]));
    let p = b.run(async move {
        let mine = weir_store::PoolSpec { pool: 78, ..spec(1) };
        create(&other, &mine).await.unwrap();
        create(&disks, &spec(2)).await.unwrap();
        Pool::open(disks, Options { deadline: SECONDS, ..Options::default() }).await.unwrap()
    });
    b.media[2].stall(100 * SECONDS);
    let (medium, late) = (b.media[2].clone(), b.disk(2));
    let added = b.run(async move {
        let added = spawn(async move { p.add(late).await });
        sleep(SECONDS / 2).await;
        medium.stall(0);
        added.await.unwrap()
    });
    assert!(added.is_err(), "{added:?}");
    let other = b.disks(&[2]);
    b.run(async move { Pool::open(other, Options::default()).await.map(drop) }).unwrap();
}

/// A mirror whose one device hangs is suspended when the other fails as well. That one is well again: the pool goes on with it.
#[test]
fn a_pool_that_is_resumed_goes_on_without_a_device_that_hangs() {
    let b = Bench::new(2, 0);
    let disks = b.all();
    let p = b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let o = Options { deadline: SECONDS, ..Options::default() };
        let p = Pool::open(disks, o).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, B, 1).await.unwrap();
        p
    });
    b.media[1].stall(50_000 * SECONDS);
    let q = p.clone();
    b.run(async move { write(&q, 1, 0, B, 2).await.unwrap() });
    b.media[0].set_config(|c| (c.error, c.write_error) = (IoError::Path, Odds::ALWAYS));
    let q = p.clone();
    b.run(async move { write(&q, 1, 0, B, 3).await.unwrap_err() });
    assert!(p.status().suspended.is_some());
    b.media[0].set_config(|c| *c = DiskConfig::default());
    let q = p.clone();
    b.run(async move {
        q.resume().await.unwrap();
        assert!(matches!(first(&q, 1, 0).await, Ok(2 | 3)));
        write(&q, 1, 0, B, 4).await.unwrap();
    });
    // Back again, it is brought up to date.
    b.media[1].stall(0);
    b.restart();
    let p = b.open().unwrap();
    b.run(async move { p.settled().await.unwrap() });
    b.restart();
    b.media[0].set_offline(true);
    let alone = b.disks(&[1]);
    let o = Options { force: true, ..Options::default() };
    let p = b.run(async move { Pool::open(alone, o).await.unwrap() });
    assert_eq!(b.run(async move { first(&p, 1, 0).await }), Ok(4));
}

#[test]
fn a_pool_is_not_opened_as_long_as_a_device_of_it_does_not_answer_and_says_so() {
    let b = Bench::new(2, 0);
    let disks = b.disks(&[0, 1]);
    b.run(async move { create(&disks, &spec(2)).await }).unwrap();
    b.media[1].stall(50_000 * SECONDS);
    let disks = b.disks(&[0, 1]);
    let opened = b.run(async move { timeout(HOUR, Pool::open(disks, Options::default())).await });
    assert!(opened.expect("it ends").is_err());
    b.media[1].stall(0);
    let disks = b.disks(&[0, 1]);
    b.run(async move { Pool::open(disks, Options::default()).await.map(drop) }).unwrap();
}

/// Somebody has a pool go on of which a device does not answer.
#[test]
fn a_resume_with_a_device_that_does_not_answer_ends_and_holds_up_no_reads() {
    let b = Bench::new(2, 0);
    let (disks, media) = (b.disks(&[0, 1]), b.media.clone());
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, 65536, 1).await.unwrap();
        p.checkpoint().await.unwrap();
        media.iter().for_each(|m| m.next_is(Next::WriteError));
        assert!(write(&p, 1, 2 * B, B, 2).await.is_err());
        media[1].stall(50_000 * SECONDS);
        let q = p.clone();
        let resume = spawn(async move { q.resume().await });
        sleep(5 * SECONDS).await;
        media[1].stall(0);
        // It is not known what this block holds, and nobody decides it meanwhile.
        let read = timeout(HOUR, first(&p, 1, 2 * B)).await.expect("the read ends");
        assert!(matches!(read, Ok(_) | Err(IoError::Offline)), "{read:?}");
        assert_eq!(timeout(HOUR, first(&p, 1, 0)).await.expect("the read ends"), Ok(1));
        let resumed = timeout(HOUR, resume).await.expect("the resume ends");
        assert!(resumed.as_ref().unwrap().is_err(), "{resumed:?} {:?}", p.status());
        timeout(HOUR, p.resume()).await.expect("the second one ends").unwrap();
        assert!(first(&p, 1, 2 * B).await.is_ok());
        write(&p, 1, 2 * B, B, 3).await.unwrap();
    });
}

/// Reads are given up and never end; then the pool is suspended and goes on. Says what was held up.
fn read_without_end() -> Vec<&'static str> {
    let b = Bench::new(2, 0);
    let (disks, media) = (b.disks(&[0, 1]), b.media.clone());
    b.run(async move {
        let small = weir_store::PoolSpec { log_pages: 64, ..spec(2) };
        create(&disks, &small).await.unwrap();
        let o = Options { deadline: SECONDS / 10, resync: false, ..Options::default() };
        let p = Pool::open(disks, o).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, MIB, 1).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        media[0].stall(20_000 * SECONDS);
        let mut reads = Vec::new();
        for k in 0..4 {
            let q = p.clone();
            reads.push(spawn(async move {
                let buf = Slice::heap(65536);
                let read = q.volume(1).unwrap().read(k * 65536, buf.clone()).await;
                read.map(|()| buf.to_vec())
            }));
        }
        sleep(MICROS).await;
        media[0].stall(0);
        sleep(SECONDS).await;
        assert_eq!(p.status().devices[0].state, MemberState::Out);
        media[1].next_is(Next::WriteError);
        assert!(write(&p, 1, MIB, B, 2).await.is_err());
        assert!(p.status().suspended.is_some());
        p.resume().await.unwrap();
        // What they read is another one when they end.
        write(&p, 1, 0, 4 * 65536, 3).await.unwrap();
        let mut held_up = Vec::new();
        if timeout(HOUR, p.checkpoint()).await.is_err() {
            held_up.push("a checkpoint");
        }
        let many = async {
            for k in 0..400 {
                write(&p, 1, 2 * MIB + k % 200 * B, B, 4).await.unwrap();
            }
        };
        if timeout(HOUR, many).await.is_err() {
            held_up.push("writes");
        }
        if !held_up.is_empty() {
            return held_up;
        }
        let mut late = 0;
        for read in reads {
            late += u32::from(!read.is_finished());
            let found = read.await.unwrap().unwrap();
            assert!(found == [1; 65536] || found == [3; 65536], "{found:?}");
        }
        assert!(late > 0, "no read was held back");
        held_up
    })
}

#[test]
fn a_read_that_never_ends_holds_up_nothing_in_the_life_after() {
    assert_eq!(read_without_end(), Vec::<&str>::new());
}

#[cfg(feature = "planted")]
#[test]
fn a_read_that_never_ends_and_holds_up_the_life_after_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::LateReadHoldsUp));
    let held_up = read_without_end();
    plant(None);
    assert!(!held_up.is_empty());
}

//! Overwriting what was freed, beside whatever ends it: none of it lands on what is there by then.

use crate::bench::{B, Bench, MIB, first, spec, write};
use std::rc::Rc;
use weir_base::{IoError, MILLIS, Nanos, SECONDS};
use weir_disk::{Disk, DiskOp};
use weir_reactor::{Token, patience, sleep, spawn, spawn_task};
use weir_sim::Next;
use weir_store::{Options, Pool, create};

/// A disk that takes so much time with a block of zeros.
struct Slow(Rc<dyn Disk>, Nanos);

impl Disk for Slow {
    crate::wrapped::is_like!(0);
    fn submit(&self, op: DiskOp, token: Token) {
        match &op {
            DiskOp::Write { buf, .. } if buf.to_vec() == [0; B as usize] => {
                let (disk, time) = (self.0.clone(), self.1);
                spawn_task(async move {
                    sleep(time).await;
                    disk.submit(op, token);
                });
            }
            _ => self.0.submit(op, token),
        }
    }
}

/// What ends it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    /// The pool is closed, and opened anew.
    Closed,
    /// The pool is suspended, and goes on.
    Resumed,
    /// Whoever asked for it goes away.
    GivenUp,
}

/// Blocks that are overwritten.
const MANY: u64 = 256;

/// Blocks are overwritten that were freed, slowly. When that is under way it is ended, and all free space is written to. Says
/// which of the blocks written then are not what they were.
fn shredded(end: End) -> Vec<(u64, Result<u8, IoError>)> {
    let (devices, copies) = if end == End::Resumed { (4, 2) } else { (1, 1) };
    let b = Bench::new(devices, 0);
    let media = b.media.clone();
    // One that is given up must come after the others.
    let time = if end == End::GivenUp { 10 * SECONDS } else { 200 * MILLIS };
    let slow = |d| Rc::new(Slow(d, time)) as Rc<dyn Disk>;
    let disks: Vec<_> = b.all().into_iter().map(slow).collect();
    let again = disks.clone();
    b.run(async move {
        create(&disks, &spec(copies)).await.unwrap();
        let options = || Options { reuse_at_once: true, ..Options::default() };
        let mut p = Pool::open(disks, options()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        // Each piece on other devices.
        for k in 0..4 {
            write(&p, 1, k * MANY / 4 * B, MANY / 4 * B, 1).await.unwrap();
        }
        p.settled().await.unwrap();
        let v = p.volume(1).unwrap();
        let mut places = Vec::new();
        for k in 0..MANY {
            // Those on devices that do not fail.
            let (n, _) = v.locate(k * B).await.unwrap()[0];
            if end != End::Resumed || n >= 2 {
                places.extend(v.places(k * B, B).await.unwrap());
            }
        }
        assert!(places.len() > 60, "{}", places.len());
        write(&p, 1, 0, MANY * B, 2).await.unwrap();
        p.checkpoint().await.unwrap();
        let q = p.clone();
        let shred = async move { q.shred(&places).await };
        match end {
            End::GivenUp => assert!(patience(SECONDS, shred).await.is_err()),
            _ => {
                spawn(shred);
                sleep(SECONDS).await;
            }
        }
        match end {
            End::Closed => {
                p.close().await.unwrap();
                p = Pool::open(again, options()).await.unwrap();
            }
            End::Resumed => {
                media[..2].iter().for_each(|m| m.next_is(Next::FlushError));
                assert!(write(&p, 1, 0, B, 2).await.is_err());
                p.resume().await.unwrap();
                write(&p, 1, 0, B, 2).await.unwrap();
            }
            End::GivenUp => {}
        }
        let (from, mut to) = (MANY * B, MANY * B);
        while write(&p, 1, to, B, 3).await.is_ok() {
            to += B;
        }
        assert!(to > 2 * MANY * B, "{to}");
        sleep(100 * SECONDS).await;
        let mut wrong = Vec::new();
        for at in (from..to).step_by(B as usize) {
            let found = first(&p, 1, at).await;
            if found != Ok(3) {
                wrong.push((at, found));
            }
        }
        wrong
    })
}

#[test]
fn nothing_is_overwritten_when_the_pool_was_closed() {
    assert_eq!(shredded(End::Closed), []);
}

#[test]
fn nothing_is_overwritten_when_the_pool_goes_on_in_another_life() {
    assert_eq!(shredded(End::Resumed), []);
}

#[test]
fn a_block_is_nobody_elses_before_its_overwriting_has_ended() {
    assert_eq!(shredded(End::GivenUp), []);
}

/// Blocks are overwritten that were freed; meanwhile a device fails. What of it is on devices that are well.
fn left_over(fails: Next) -> Vec<u64> {
    let b = Bench::new(4, 0);
    let (disks, media) = (b.all(), b.media.clone());
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        for k in 0..4 {
            write(&p, 1, k * MANY / 4 * B, MANY / 4 * B, 1).await.unwrap();
        }
        p.settled().await.unwrap();
        let v = p.volume(1).unwrap();
        let mut copies = Vec::new();
        for k in 0..MANY {
            copies.extend(v.locate(k * B).await.unwrap());
        }
        let places = v.places(0, MANY * B).await.unwrap();
        write(&p, 1, 0, MANY * B, 2).await.unwrap();
        p.checkpoint().await.unwrap();
        sleep(SECONDS).await;
        let q = p.clone();
        let shred = spawn(async move { q.shred(&places).await });
        while p.counters().checkpoints == 0 {
            sleep(MILLIS).await;
        }
        sleep(3 * MILLIS).await;
        media[0].next_is(fails);
        let told = shred.await.unwrap();
        // A device that is not there keeps it. That a block cannot be written is told.
        assert!(told.is_ok() || matches!(fails, Next::WriteError), "{told:?}");
        let old = |(n, at): &(u16, u64)| {
            let mut b = [0; B as usize];
            media[usize::from(*n)].peek(*at, &mut b);
            *n != 0 && b == [1; B as usize]
        };
        copies.iter().filter(|c| old(c)).map(|(_, at)| *at).collect()
    })
}

#[test]
fn a_device_that_fails_keeps_nothing_on_the_others() {
    for fails in [Next::WriteError, Next::FlushError] {
        assert_eq!(left_over(fails), Vec::<u64>::new(), "{fails:?}");
    }
}

#[cfg(feature = "planted")]
#[test]
fn overwriting_that_comes_later_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::ShreddedLater));
    // Nor could what a pool was before it was resumed: it has no devices any more.
    let all = [End::Closed, End::GivenUp].map(shredded);
    plant(None);
    assert!(all.iter().all(|wrong| !wrong.is_empty()), "{all:?}");
}

#[cfg(feature = "planted")]
#[test]
fn overwriting_that_ends_with_the_first_failure_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::ShreddedToTheFirst));
    let left = left_over(Next::WriteError);
    plant(None);
    assert!(!left.is_empty());
}

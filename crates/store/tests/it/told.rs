//! Devices fail in the very superblock that tells of something: that another one is in sync again, or of the new place of a slab.

use crate::bench::{B, Bench, MIB, first, newest, spec, write};
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{MICROS, MILLIS, Nanos, SECONDS};
use weir_block::Volume;
use weir_mem::Slice;
use weir_sim::Odds;
use weir_store::format::superblock::MemberState;
use weir_store::{Options, Pool, StoreError, create};

fn options() -> Options {
    Options { spare_after: None, ..Options::default() }
}

/// A pool with so many copies on the first devices, with a volume.
fn pool(b: &Bench, devices: usize, copies: u8) -> Pool {
    let disks = b.disks(&(0..devices).collect::<Vec<_>>());
    b.run(async move {
        create(&disks, &spec(copies)).await.unwrap();
        let p = Pool::open(disks, options()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, MIB / 2, 1).await.unwrap();
        p.settled().await.unwrap();
        p
    })
}

/// Somebody writes ever higher values to one block; the last one that was acknowledged.
fn writes_on(b: &Bench, p: &Pool) -> Rc<Cell<u8>> {
    let (acked, q) = (Rc::new(Cell::new(1)), p.clone());
    let a = acked.clone();
    b.n.spawn(async move {
        for value in 2..=u8::MAX {
            let buf = Slice::heap(B as usize);
            buf.fill(value);
            let Ok(v) = q.volume(1) else { return };
            if v.write(0, buf, false).await.is_err() {
                return;
            }
            a.set(value);
            weir_reactor::sleep(200 * MICROS).await;
        }
    });
    acked
}

/// What is read of the pool on these devices.
fn seen(b: &Bench, which: &[usize]) -> Result<u8, String> {
    let disks = b.disks(which);
    b.run(async move {
        let o = Options { resync: false, ..options() };
        let p = Pool::open(disks, o).await.map_err(|e| e.to_string())?;
        first(&p, 1, 0).await.map_err(|e| e.to_string())
    })
}

/// A mirror whose second device was away and is being brought up to date, while somebody writes.
fn brought_back(b: &Bench) -> (Pool, Rc<Cell<u8>>) {
    let p = pool(b, 2, 2);
    let (q, away) = (p.clone(), b.media[1].clone());
    b.run(async move {
        away.set_offline(true);
        write(&q, 1, B, B, 2).await.unwrap();
        q.checkpoint().await.unwrap();
        away.set_offline(false);
        q.resync().await.unwrap();
    });
    let acked = writes_on(b, &p);
    (p, acked)
}

fn state(p: &Pool, n: usize) -> MemberState {
    p.status().devices[n].state
}

/// When, from the begin of that, the second device is in service again.
fn back_after() -> Nanos {
    let b = Bench::new(2, 0);
    let (p, _) = brought_back(&b);
    let begin = b.w.now();
    b.w.run_until(10 * SECONDS, || state(&p, 1) == MemberState::InSync).expect("it comes back");
    b.w.now() - begin
}

/// The first device is lost `t` after it was begun to bring the second one back. What is wrong then; `resumed`: the pool goes on
/// when the device is there again, before the power goes. Also whether the pool was suspended.
fn lost_as_another_is_back(t: Nanos, resumed: bool) -> (bool, Result<(), String>) {
    let b = Bench::new(2, 0);
    let (p, acked) = brought_back(&b);
    b.w.run_for(t);
    b.media[0].set_offline(true);
    b.w.run_for(20 * MILLIS);
    let suspended = p.status().suspended.is_some();
    b.media[0].set_offline(false);
    if suspended && resumed {
        let q = p.clone();
        if let Err(e) = b.run(async move { q.resume().await }) {
            return (suspended, Err(format!("it does not go on: {e}")));
        }
        let more = writes_on(&b, &p);
        b.w.run_for(2 * MILLIS);
        acked.set(more.get());
    }
    drop(p);
    b.restart();
    let acked = acked.get();
    for which in [&[0][..], &[0, 1]] {
        match seen(&b, which) {
            Ok(value) if value < acked => {
                return (
                    suspended,
                    Err(format!("{which:?}: {value}, though {acked} was acknowledged")),
                );
            }
            // It asks for the other one.
            Err(e) if which.len() == 2 => return (suspended, Err(e)),
            _ => {}
        }
        b.restart();
    }
    (suspended, Ok(()))
}

/// At all times about the one at which the second device is in service again. How often the pool was suspended, and what is wrong.
fn lost_as_others_are_back() -> (u32, Vec<String>) {
    let end = back_after();
    let (mut met, mut wrong) = (0, Vec::new());
    for k in 0..80 {
        let t = (end + 500 * MICROS).saturating_sub(k * 50 * MICROS);
        for resumed in [false, true] {
            let (suspended, result) = lost_as_another_is_back(t, resumed);
            met += u32::from(suspended);
            wrong.extend(result.err().map(|e| format!("{t} ns, resumed {resumed}: {e}")));
        }
    }
    (met, wrong)
}

#[test]
fn nobody_goes_on_alone_before_the_other_knows_that_it_is_back() {
    let (met, wrong) = lost_as_others_are_back();
    assert_eq!(wrong.first(), None);
    assert!(met > 0);
}

/// The power goes at such a time, and the first device fails as soon as the pool is opened again. It must not go on with the second
/// alone if the first does not know of it. How often that was so, and what is wrong.
fn failing_after_a_crash() -> (u32, Vec<String>) {
    let (mut met, mut wrong) = (0, Vec::new());
    for k in 0..60 {
        let b = Bench::new(2, k);
        let (p, _) = brought_back(&b);
        let in_sync = |n: usize| {
            newest(&b.media[n]).is_some_and(|s| s.members[1].state == MemberState::InSync)
        };
        let back = || state(&p, 1) == MemberState::InSync;
        b.w.run_until(10 * SECONDS, back).expect("it comes back");
        b.w.run_until(SECONDS, || in_sync(1)).expect("a superblock says so");
        drop(p);
        b.restart();
        if in_sync(0) || !in_sync(1) {
            continue;
        }
        met += 1;
        b.media[0].set_config(|c| c.write_error = Odds::ALWAYS);
        let disks = b.disks(&[0, 1]);
        let went_on = b.run(async move {
            let p = Pool::open(disks, options()).await?;
            write(&p, 1, 0, B, 99).await?;
            Ok::<_, StoreError>(())
        });
        b.media[0].set_config(|c| c.write_error = Odds::NEVER);
        b.restart();
        let alone = seen(&b, &[0]);
        if went_on.is_ok() && alone.as_ref().is_ok_and(|v| *v != 99) {
            wrong.push(format!(
                "{k}: {alone:?} is read of the first, as if nothing else had been written"
            ));
        }
    }
    (met, wrong)
}

#[test]
fn a_life_that_finds_one_that_nobody_knows_to_be_back_does_not_go_on_with_it_alone() {
    let (met, wrong) = failing_after_a_crash();
    assert_eq!(wrong.first(), None);
    assert!(met > 0, "no power cut came between the two devices");
}

/// A pool whose second device is replaced by the third, or which grows by that, while somebody writes. `away`: the first one is out.
#[derive(Debug, Clone, Copy)]
struct Change {
    copies: u8,
    away: bool,
    added: bool,
}

fn changed(b: &Bench, c: Change) -> (Pool, Rc<Cell<u8>>, Rc<Cell<bool>>) {
    let p = pool(b, 2, c.copies);
    let (q, media, new) = (p.clone(), b.media.clone(), b.disk(2));
    let done = Rc::new(Cell::new(false));
    b.run(async move {
        if c.away {
            media[0].set_offline(true);
            write(&q, 1, B, B, 2).await.unwrap();
            q.checkpoint().await.unwrap();
        }
    });
    let acked = writes_on(b, &p);
    let (q, d) = (p.clone(), done.clone());
    b.n.spawn(async move {
        let begun = match c.added {
            true => q.add(new).await,
            false => q.replace(1, new).await,
        };
        if begun.is_ok() {
            let _ = q.settled().await;
        }
        d.set(true);
    });
    (p, acked, done)
}

/// How long that takes.
fn changed_after(c: Change) -> Nanos {
    let b = Bench::new(3, 0);
    let (_p, _, done) = changed(&b, c);
    let begin = b.w.now();
    b.w.run_until(10 * SECONDS, || done.get()).expect("it ends");
    b.w.now() - begin
}

/// The third device is lost `t` after the begin, and there again when the power has gone: what is wrong with the pool.
fn lost_as_it_takes_over(c: Change, t: Nanos) -> Result<(), String> {
    let b = Bench::new(3, 0);
    let (p, acked, _) = changed(&b, c);
    b.w.run_for(t);
    b.media[2].set_offline(true);
    b.w.run_for(20 * MILLIS);
    drop(p);
    b.media[2].set_offline(false);
    b.restart();
    let (all, acked) = (b.disks(if c.away { &[1, 2] } else { &[0, 1, 2] }), acked.get());
    let seen = b.run(async move {
        let p = Pool::open(all, options()).await.map_err(|e| e.to_string())?;
        let value = first(&p, 1, 0).await.map_err(|e| e.to_string())?;
        for at in (2..MIB / 2 / B).map(|k| k * B) {
            match first(&p, 1, at).await {
                Ok(1) => {}
                other => return Err(format!("at {at}: {other:?}")),
            }
        }
        Ok::<_, String>(value)
    })?;
    match seen >= acked {
        true => Ok(()),
        false => Err(format!("{seen}, though {acked} was acknowledged")),
    }
}

const CHANGES: [Change; 4] = [
    Change { copies: 1, away: false, added: false },
    Change { copies: 2, away: true, added: false },
    Change { copies: 2, away: false, added: false },
    Change { copies: 1, away: false, added: true },
];

fn lost_as_they_take_over() -> Vec<String> {
    let mut wrong = Vec::new();
    for c in CHANGES {
        let end = changed_after(c);
        let steps = 250;
        for k in 0..steps {
            let t = end * k / steps;
            wrong.extend(lost_as_it_takes_over(c, t).err().map(|e| format!("{c:?} {t} ns: {e}")));
        }
    }
    wrong
}

#[test]
fn a_new_place_that_fails_as_it_is_told_of_loses_nothing() {
    let wrong = lost_as_they_take_over();
    assert_eq!(wrong.first(), None, "{} times", wrong.len());
}

#[cfg(feature = "planted")]
mod planted {
    use super::*;
    use crate::bench::with;
    use weir_store::planted::Bug;

    #[test]
    fn going_on_with_it_after_a_crash_is_caught() {
        assert!(!with(Bug::CurrentUntold, failing_after_a_crash).1.is_empty());
    }

    #[test]
    fn going_on_without_the_new_place_of_a_slab_is_caught() {
        assert!(!with(Bug::NewPlaceUnasked, lost_as_they_take_over).is_empty());
    }

    #[test]
    fn a_lost_place_that_becomes_part_of_a_superblock_is_caught() {
        assert!(!with(Bug::NewPlaceStays, lost_as_they_take_over).is_empty());
    }
}

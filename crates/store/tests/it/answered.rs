//! Changes of a pool whose checkpoint fails: what is answered with success is durable, and what is undone is nobody else's.

use crate::bench::{B, Bench, MIB, first, spec, write};
use weir_block::Volume;
use weir_mem::Slice;
use weir_sim::Next;
use weir_store::{Options, Pool, create};

#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    Delete,
    Create,
    Clone,
    Revert,
    Grow,
    Checkpoint,
}

use What::{Checkpoint, Clone as CloneOf, Create, Delete, Grow, Revert};

/// Both devices fail a write or a flush of the checkpoint that a change waits for. If it is answered with success it is there
/// when the pool goes on, or is opened anew after a loss of power (`power`).
fn story(what: What, how: Next, power: bool) -> Result<(), String> {
    let b = Bench::new(2, 0);
    let (disks, media) = (b.disks(&[0, 1]), b.media.clone());
    let (p, answer) = b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options { resync: false, ..Options::default() }).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, MIB, 1).await.unwrap();
        let s = p.snapshot(&[(1, "v@s")], 0).await.unwrap()[0];
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        p.create_volume("w", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, B, 2).await.unwrap();
        p.checkpoint().await.unwrap();
        media.iter().for_each(|m| m.next_is(how));
        let answer = match what {
            Delete => p.delete(p.find("w").unwrap()).await,
            Create => p.create_volume("x", 64 * MIB, 4096).await.map(drop),
            CloneOf => p.clone_snapshot(s, "x").await.map(drop),
            Revert => p.revert(1, s).await,
            Grow => p.resize(1, 128 * MIB).await,
            Checkpoint => p.checkpoint().await,
        };
        media.iter().for_each(|m| m.forget_next());
        (p, answer)
    });
    let Some(failed) = p.status().suspended else { return Err("nothing failed".into()) };
    if answer.is_err() {
        return Ok(());
    }
    let p = match power {
        false => {
            let q = p.clone();
            b.run(async move { q.resume().await }).map_err(|e| format!("resume: {e}"))?;
            p
        }
        true => {
            drop(p);
            b.restart();
            b.open().map_err(|e| e.to_string())?
        }
    };
    let done = b.run(async move {
        match what {
            Delete => p.find("w").is_none(),
            Create | CloneOf => p.find("x").is_some(),
            Revert => first(&p, 1, 0).await == Ok(1),
            Grow => p.datasets().iter().any(|d| d.id == 1 && d.len == 128 * MIB),
            Checkpoint => false,
        }
    });
    match done {
        true => Ok(()),
        false => Err(format!("{what:?}, {how:?}, power {power}: success, and undone; {failed}")),
    }
}

fn stories(power: bool) -> Vec<String> {
    let all = [Delete, Create, CloneOf, Revert, Grow, Checkpoint];
    let each = all
        .into_iter()
        .flat_map(|what| [Next::WriteError, Next::FlushError].map(|how| story(what, how, power)));
    each.filter_map(Result::err).collect()
}

#[test]
fn a_change_that_is_answered_with_success_is_there_when_the_pool_goes_on() {
    assert_eq!(stories(false), Vec::<String>::new());
}

#[test]
fn a_change_that_is_answered_with_success_is_there_after_a_loss_of_power() {
    assert_eq!(stories(true), Vec::<String>::new());
}

#[cfg(feature = "planted")]
#[test]
fn success_of_what_a_failed_checkpoint_had_is_caught() {
    weir_store::planted::plant(Some(weir_store::planted::Bug::FailedIsMade));
    let wrong = stories(false);
    weir_store::planted::plant(None);
    assert!(!wrong.is_empty());
}

/// A volume or snapshot is made and listed, and does not last; somebody has a handle to it. The pool goes on, also after a
/// try that failed, and another volume is made. What the handle has written there.
fn by_a_handle_of_another(snapshot: bool) -> u8 {
    let b = Bench::new(2, 0);
    let (disks, media) = (b.disks(&[0, 1]), b.media.clone());
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options { resync: false, ..Options::default() }).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        p.settled().await.unwrap();
        media.iter().for_each(|m| m.next_is(Next::WriteError));
        match snapshot {
            true => assert!(p.snapshot(&[(1, "first")], 0).await.is_err()),
            false => assert!(p.create_volume("first", 64 * MIB, 4096).await.is_err()),
        }
        let first_one = p.find("first").expect("it is listed");
        let handle = p.volume(first_one).unwrap();
        media.iter().for_each(|m| m.next_is(Next::WriteError));
        assert!(p.resume().await.is_err());
        media.iter().for_each(|m| m.forget_next());
        p.resume().await.unwrap();
        let other = p.create_volume("second", 64 * MIB, 4096).await.unwrap();
        let _ = handle.write(0, Slice::copy_of(&[7; 4096]), false).await;
        first(&p, other, 0).await.unwrap()
    })
}

#[test]
fn a_handle_of_what_did_not_last_does_not_write_to_what_is_made_later() {
    assert_eq!([false, true].map(by_a_handle_of_another), [0, 0]);
}

#[cfg(feature = "planted")]
#[test]
fn a_number_that_is_given_out_twice_is_caught() {
    weir_store::planted::plant(Some(weir_store::planted::Bug::NumberTwice));
    let written = by_a_handle_of_another(false);
    weir_store::planted::plant(None);
    assert_eq!(written, 7);
}

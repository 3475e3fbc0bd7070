//! A pool without room: what was acknowledged stays, and a deletion gives room again.

use crate::bench::{B, Bench, spec, write};
use weir_base::{IoError, SECONDS};
use weir_reactor::{sleep, spawn};
use weir_store::format::tree::LEAF;
use weir_store::{Options, Pool, create};

/// Scattered writes, all at once, fill a pool; then a volume is deleted. Why nothing can be written then; all devices are well.
fn filled_side_by_side() -> Result<(), IoError> {
    let b = Bench::new(1, 0);
    let disks = b.all();
    b.run(async move {
        create(&disks, &spec(1)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 1 << 40, 4096).await.unwrap();
        p.create_volume("w", 1 << 40, 4096).await.unwrap();
        p.settled().await.unwrap();
        let mut at = 0;
        while p.status().room > 80 * B {
            write(&p, 1, at, B, 1).await.unwrap();
            at += B;
            if at % (16 * B) == 0 {
                p.checkpoint().await.unwrap();
            }
        }
        p.checkpoint().await.unwrap();
        sleep(SECONDS).await;
        let one = |k| {
            let p = p.clone();
            spawn(async move { write(&p, 2, k * LEAF as u64 * B, B, 2).await })
        };
        let all: Vec<_> = (0..150).map(one).collect();
        let mut done = 0;
        for w in all {
            done += u32::from(w.await.unwrap().is_ok());
        }
        assert!(done > 0, "there was room");
        // It may fail when there is a bug.
        let _ = (p.checkpoint().await, p.delete(1).await);
        sleep(600 * SECONDS).await;
        if p.status().suspended.is_some() {
            let _ = (p.resume().await, p.delete(1).await);
            sleep(600 * SECONDS).await;
        }
        write(&p, 2, 0, B, 3).await
    })
}

#[test]
fn writes_side_by_side_leave_room_for_a_deletion() {
    assert_eq!(filled_side_by_side(), Ok(()));
}

#[cfg(feature = "planted")]
#[test]
fn room_that_is_promised_twice_is_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::ComingNotCounted));
    let ended = filled_side_by_side();
    plant(None);
    assert!(ended.is_err());
}

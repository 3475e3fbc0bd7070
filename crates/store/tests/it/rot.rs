//! Blocks that are wrong on their devices: what may be concluded from that, and which copies there are.

use crate::bench::{B, Bench, MIB, first, spec, write};
use weir_base::{IoError, SECONDS};
use weir_reactor::sleep;
use weir_store::{Options, Pool, create};

/// For a moment reads bring something else; an hour later again. Afterwards the block is read well, and with `between` so it is
/// half an hour after each. What is read in the end.
fn two_moments(between: bool) -> Result<u8, IoError> {
    let b = Bench::new(2, 0);
    let (disks, media) = (b.all(), b.media.clone());
    b.run(async move {
        create(&disks, &spec(2)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, MIB, 1).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        let places = p.volume(1).unwrap().locate(8 * B).await.unwrap();
        let show = |byte: u8| {
            for (d, at) in &places {
                media[usize::from(*d)].poke(*at, &[byte; 4096]);
            }
        };
        for moment in 0..2 {
            show(0x77);
            assert_eq!(first(&p, 1, 8 * B).await, Err(IoError::Medium), "{moment}");
            show(1);
            let times = if between { 2 } else { 1 };
            for _ in 0..times {
                sleep(3600 / times * SECONDS).await;
                if between {
                    let now = first(&p, 1, 8 * B).await;
                    if now != Ok(1) {
                        return now;
                    }
                }
            }
        }
        first(&p, 1, 8 * B).await
    })
}

#[test]
fn a_block_that_was_wrong_for_two_moments_is_not_lost() {
    for between in [true, false] {
        assert_eq!(two_moments(between), Ok(1), "read in between: {between}");
    }
}

/// The only device of a pool is replaced. A block that is written meanwhile is on both devices, and rots on the old one.
/// `read`: somebody reads it meanwhile, twice. What is read, of what is 5.
fn replaced(read: bool) -> Vec<Result<u8, IoError>> {
    let b = Bench::new(2, 0);
    let (disks, new, media) = (b.disks(&[0]), b.disk(1), b.media.clone());
    b.run(async move {
        create(&disks, &spec(1)).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        p.create_volume("w", 64 * MIB, 4096).await.unwrap();
        write(&p, 1, 0, 2 * MIB, 1).await.unwrap();
        write(&p, 2, 0, MIB, 1).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        p.set_fill_rate(4 * B);
        p.replace(0, new).await.unwrap();
        while p.status().work.is_none_or(|w| w.done == 0) {
            sleep(SECONDS).await;
        }
        write(&p, 2, 3 * MIB, B, 5).await.unwrap();
        p.checkpoint().await.unwrap();
        let (device, at) = p.volume(2).unwrap().locate(3 * MIB).await.unwrap()[0];
        assert_eq!(device, 0);
        let mut block = [0; 4096];
        let has_it = |k| {
            media[1].peek(k * B, &mut block);
            block == [5; 4096]
        };
        assert!((0..media[1].len() / B).any(has_it), "the new device has it");
        media[0].rot(at, 4096, 5);
        let mut seen = Vec::new();
        if read {
            for _ in 0..2 {
                seen.push(first(&p, 2, 3 * MIB).await);
                sleep(6 * SECONDS).await;
            }
        }
        p.set_fill_rate(0);
        p.settled().await.unwrap();
        seen.push(first(&p, 2, 3 * MIB).await);
        seen
    })
}

#[test]
fn what_the_new_place_of_a_slab_has_is_a_copy() {
    assert_eq!(replaced(true), [Ok(5); 3]);
}

#[test]
fn what_the_new_place_has_is_not_overwritten_by_what_rots_in_the_old_one() {
    assert_eq!(replaced(false), [Ok(5)]);
}

#[cfg(feature = "planted")]
#[test]
fn planted_bugs_are_caught() {
    use weir_store::planted::{Bug, plant};
    plant(Some(Bug::WrongForEver));
    let for_ever = two_moments(true);
    plant(Some(Bug::MoveMissesReads));
    let missed = replaced(true);
    plant(None);
    assert!(for_ever.is_err() && missed != [Ok(5); 3]);
}

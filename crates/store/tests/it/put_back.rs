//! A pool that is suspended does not go on with disks that were put back to an earlier state meanwhile, as volumes of other
//! nodes may be: hosts would read what they have long overwritten.

use crate::common::{filled, read};
use std::rc::Rc;
use weir_base::{MILLIS, SECONDS};
use weir_block::Volume;
use weir_disk::Disk;
use weir_reactor::sleep;
use weir_sim::{DiskConfig, Odds, SimMedium, World};
use weir_store::{Options, Pool, PoolSpec, create};

const LIMIT: u64 = 1000 * SECONDS;
const MIB: u64 = 1 << 20;
const AT: u64 = 8192;

fn image(m: &SimMedium) -> Vec<u8> {
    let mut all = vec![0; m.len() as usize];
    m.peek(0, &mut all);
    all
}

/// `checkpoints`: a superblock was written since the state that the disks are put back to, and not only the log. `back`: how many of them
/// are put back. `tries`: somebody reads what failed before, when nothing can be written.
fn story(copies: usize, checkpoints: bool, back: usize, tries: bool) -> Result<(), String> {
    let w = World::new(11);
    let n = w.node("store");
    let medium = |i| SimMedium::new(&format!("d{i}"), 8 * MIB, DiskConfig::default(), i as u64);
    let media: Vec<SimMedium> = (0..copies).map(medium).collect();
    media.iter().for_each(|m| n.attach(m));
    let disks = (0..copies).map(|i| n.disk(&format!("d{i}")) as Rc<dyn Disk>).collect::<Vec<_>>();
    let fitting = PoolSpec::fitting(77, copies as u8, 0);
    let spec = PoolSpec { slab_shift: 8, log_pages: 64, spares: 8, ..fitting };
    let ran = w.run(&n, LIMIT, async move {
        create(&disks, &spec).await.unwrap();
        let p = Pool::open(disks, Options { resync: false, ..Options::default() }).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        let v = p.volume(1).unwrap();
        v.write(AT, filled(4096, 1), false).await.unwrap();
        p.settled().await.unwrap();
        p.checkpoint().await.unwrap();
        sleep(SECONDS).await;
        let before: Vec<_> = media.iter().map(image).collect();
        v.write(AT, filled(4096, 2), false).await.unwrap();
        if checkpoints {
            p.checkpoint().await.unwrap();
        }
        sleep(300 * MILLIS).await;
        if tries {
            let fails = |c: &mut DiskConfig| c.write_error = Odds::ALWAYS;
            media.iter().for_each(|m| m.set_config(fails));
        } else {
            media.iter().for_each(|m| m.set_offline(true));
        }
        assert!(v.write(MIB, filled(4096, 3), false).await.is_err());
        assert!(p.status().suspended.is_some());
        assert!(read(&*v, MIB, 4096).await.is_err());
        let last: Vec<_> = media.iter().map(image).collect();
        for (m, i) in media.iter().zip(&before).rev().take(back) {
            m.poke(0, i);
        }
        for m in &media {
            m.set_config(|c| c.write_error = Odds::NEVER);
            m.set_offline(false);
        }
        sleep(2 * SECONDS).await;
        // Whoever reads what failed has the pool decide, as long as that can be known.
        for _ in 0..2 {
            assert!(read(&*v, MIB, 4096).await.is_err());
            sleep(2 * SECONDS).await;
        }
        let written = media.iter().rev().zip(before.iter().rev()).take(back);
        let unchanged = written.into_iter().all(|(m, i)| image(m) == *i);
        let resumed = p.resume().await;
        let Err(e) = resumed else {
            let now = read(&*v, AT, 4096).await.map(|b| b[0]);
            return Err(format!("it goes on, and {now:?} is read where 2 was written"));
        };
        if !e.to_string().contains("older") || !unchanged {
            return Err(format!("{e}; left alone: {unchanged}"));
        }
        assert!(p.status().suspended.is_some());
        // As it was it goes on.
        for (m, i) in media.iter().zip(&last) {
            m.poke(0, i);
        }
        p.resume().await.map_err(|e| e.to_string())?;
        assert_eq!(read(&*v, AT, 4096).await.unwrap()[0], 2);
        v.write(AT, filled(4096, 4), false).await.map_err(|e| e.to_string())?;
        assert_eq!(read(&*v, AT, 4096).await.unwrap()[0], 4);
        Ok(())
    });
    ran.expect("it ends")
}

#[test]
fn a_suspended_pool_does_not_go_on_with_an_older_superblock() {
    for tries in [false, true] {
        assert_eq!(story(1, true, 1, tries), Ok(()));
        assert_eq!(story(2, true, 2, tries), Ok(()));
    }
}

#[test]
fn a_suspended_pool_does_not_go_on_with_a_shorter_log() {
    for tries in [false, true] {
        assert_eq!(story(1, false, 1, tries), Ok(()));
        assert_eq!(story(2, false, 2, tries), Ok(()));
    }
}

/// The other half has everything, and this one's superblock is the newest that there is.
#[test]
fn it_does_not_go_on_beside_a_half_with_a_shorter_log() {
    for tries in [false, true] {
        assert_eq!(story(2, false, 1, tries), Ok(()));
    }
}

#[test]
#[cfg(feature = "planted")]
fn one_that_goes_on_beside_such_a_half_is_caught() {
    weir_store::planted::plant(Some(weir_store::planted::Bug::OneHalfIsAll));
    let done = story(2, false, 1, false);
    weir_store::planted::plant(None);
    assert!(done.is_err());
}

#[test]
#[cfg(feature = "planted")]
fn one_that_does_is_caught() {
    weir_store::planted::plant(Some(weir_store::planted::Bug::ResumedFromBefore));
    let all = [true, false].map(|checkpoints| story(1, checkpoints, 1, false).is_err());
    weir_store::planted::plant(None);
    assert_eq!(all, [true, true]);
}

#[test]
#[cfg(feature = "planted")]
fn one_that_writes_on_what_is_older_is_caught() {
    weir_store::planted::plant(Some(weir_store::planted::Bug::DecidedOnOlder));
    let wrong = std::panic::catch_unwind(|| story(1, true, 1, false).is_err()).unwrap_or(true);
    weir_store::planted::plant(None);
    assert!(wrong);
}

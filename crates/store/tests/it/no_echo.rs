//! A device that is filled takes writes of a block, and never gives it back.

use crate::bench::{B, Bench, MIB, first, write};
use crate::lacking::{numbers, wait};
use crate::leaving::{Ill, IllDisk, ill};
use std::rc::Rc;
use weir_base::SECONDS;
use weir_disk::Disk;
use weir_reactor::sleep;
use weir_store::{Options, Pool, PoolSpec, create};

const BLOCKS: u64 = 2 * MIB / B;

/// What is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filled {
    /// A device that takes another one's place.
    Replacing,
    /// One that was away.
    Back,
}

/// A mirror; what is filled is `ill`, and has so many spare blocks.
fn filled(filled: Filled, spares: u64, ill: &Rc<Ill>, seconds: u64) -> (Bench, Pool) {
    let b = Bench::new(3, 7);
    let disk = |i: usize| -> Rc<dyn Disk> {
        let is_ill = i == if filled == Filled::Back { 1 } else { 2 };
        if is_ill { Rc::new(IllDisk(b.disk(i), ill.clone())) } else { b.disk(i) }
    };
    let (disks, new) = (vec![disk(0), disk(1)], disk(2));
    let media = b.media.clone();
    let p = b.run(async move {
        let spec = PoolSpec { spares, ..crate::bench::spec(2) };
        create(&disks, &spec).await.unwrap();
        let p = Pool::open(disks, Options::default()).await.unwrap();
        p.create_volume("v", 64 * MIB, 4096).await.unwrap();
        p.settled().await.unwrap();
        media[1].set_offline(filled == Filled::Back);
        write(&p, 1, 0, BLOCKS * B, 1).await.unwrap();
        p.checkpoint().await.unwrap();
        match filled {
            Filled::Replacing => {
                media[0].set_offline(true);
                write(&p, 1, 48 * MIB, B, 2).await.unwrap();
                p.replace(0, new).await.unwrap();
            }
            Filled::Back => {
                media[1].set_offline(false);
                p.resync().await.unwrap();
            }
        }
        sleep(seconds * SECONDS).await;
        p
    });
    (b, p)
}

/// The first place of a block on the device that is filled.
fn place(of: Filled, spares: u64) -> u64 {
    let (b, p) = filled(of, spares, &ill(), 600);
    let device = if of == Filled::Back { 1 } else { 2 };
    b.run(async move {
        let mut all = Vec::new();
        for k in 0..BLOCKS {
            let places = p.volume(1).unwrap().locate(k * B).await.unwrap();
            all.extend(places.into_iter().filter(|(d, _)| *d == device).map(|(_, at)| at));
        }
        all.into_iter().min().unwrap()
    })
}

/// Whether the pool is whole ninety seconds after a device began to be filled that has so many spare blocks and never gives back one block, the
/// blocks that were replaced by spares, and the blocks that cannot be read in the end from that device alone.
fn without_echo(of: Filled, spares: u64) -> (bool, u32, Vec<u64>) {
    let ill = ill();
    ill.deaf.borrow_mut().insert(place(of, spares));
    let (b, p) = filled(of, spares, &ill, 90);
    let s = p.status();
    let whole = s.whole && (of == Filled::Back || numbers(&p) == [1, 2]);
    let device = if of == Filled::Back { 1 } else { 2 };
    let replaced = s.devices.iter().find(|d| d.number == device).map_or(0, |d| d.replaced);
    let other = if of == Filled::Back { 0 } else { 1 };
    b.media[other].set_offline(true);
    wait(&b, 1);
    let bad = b.run(async move {
        let mut bad = Vec::new();
        for k in 0..BLOCKS {
            if first(&p, 1, k * B).await != Ok(1) {
                bad.push(k);
            }
        }
        bad
    });
    (whole, replaced, bad)
}

#[test]
fn a_spare_takes_the_place_of_a_block_that_is_never_given_back() {
    for of in [Filled::Replacing, Filled::Back] {
        assert_eq!(without_echo(of, 8), (true, 1, vec![]), "{of:?}");
    }
}

#[test]
fn a_slab_moves_elsewhere_if_its_new_place_does_not_give_a_block_back() {
    assert_eq!(without_echo(Filled::Replacing, 0), (true, 0, vec![]));
}

#[test]
fn a_device_that_has_no_spare_for_what_it_does_not_give_back_is_not_in_service() {
    let (whole, replaced, _) = without_echo(Filled::Back, 0);
    assert_eq!((whole, replaced), (false, 0));
}

#[cfg(feature = "planted")]
#[test]
fn planted_bugs_are_caught() {
    use weir_store::planted::{Bug, plant};
    let all = [(Filled::Replacing, 8), (Filled::Back, 8), (Filled::Replacing, 0)];
    for (of, spares) in all {
        plant(Some(Bug::EchoAwaited));
        let (whole, ..) = without_echo(of, spares);
        plant(None);
        assert!(!whole, "{of:?} {spares}");
    }
}

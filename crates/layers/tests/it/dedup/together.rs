//! Many write few contents at once, so that sharing, ceasing to share, other slots and giving back meet all the time.

use crate::common::{read, run};
use crate::dedup::{CHUNKS, options, pool};
use crate::medium::Medium;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{MICROS, Prng, SECONDS};
use weir_block::Volume;
use weir_layers::dedup::{Dedup, Options, stored_len};
use weir_mem::Slice;
use weir_reactor::{sleep, spawn};

pub(crate) const UNIT: u64 = 512;

/// Content number `version` of a unit; 0 is zeros. Chunks of one content are equal wherever they are.
pub(crate) fn contents(unit: u64, version: u32, chunk: u32) -> [u8; UNIT as usize] {
    let mut b = [0; UNIT as usize];
    if version > 0 {
        let place = unit % (u64::from(chunk) / UNIT);
        Prng::new(u64::from(version) << 20 | place).fill(&mut b);
        b[..4].copy_from_slice(&version.to_le_bytes());
    }
    b
}

/// A range as hosts use them: mostly whole chunks.
pub(crate) fn range(prng: &mut Prng, first: u64, units: u64, chunk: u32) -> (u64, u64) {
    let each = u64::from(chunk) / UNIT;
    let most = [1, each, 4 * each, 300][prng.below(4) as usize];
    let n = prng.between(1, units.min(most));
    let at = first + prng.between(0, units - n);
    if prng.chance(1, 4) {
        return (at, n);
    }
    let from = (at / each * each).max(first);
    (from, n.next_multiple_of(each).min(first + units - from))
}

async fn host(
    v: Rc<Dedup>,
    is: Rc<RefCell<Vec<u32>>>,
    first: u64,
    units: u64,
    seed: u64,
    chunk: u32,
    kinds: u32,
) {
    let mut prng = Prng::new(seed);
    for _ in 0..150 {
        let (at, n) = range(&mut prng, first, units, chunk);
        let (byte, len) = (at * UNIT, n * UNIT);
        match prng.below(8) {
            0..=2 => {
                let got = read(&*v, byte, len as usize).await.unwrap();
                for (u, got) in (at..).zip(got.chunks(UNIT as usize)) {
                    let version = is.borrow()[u as usize];
                    assert!(got == contents(u, version, chunk), "unit {u} is not {version}");
                }
            }
            3 => {
                v.discard(byte, len).await.unwrap();
                (at..at + n).for_each(|u| is.borrow_mut()[u as usize] = 0);
            }
            _ => {
                let unique = prng.chance(1, 6);
                let one = prng.below(u64::from(kinds)) as u32;
                let mixed = prng.chance(1, 3);
                let mut data = Vec::new();
                let each = u64::from(chunk) / UNIT;
                for u in at..at + n {
                    let version = match (unique, mixed) {
                        (true, _) => 1000 + seed as u32 * 100_000 + (u / each) as u32,
                        (_, true) => (one + (u / each) as u32) % kinds,
                        _ => one,
                    };
                    data.extend(contents(u, version, chunk));
                    is.borrow_mut()[u as usize] = version;
                }
                v.write(byte, Slice::copy_of(&data), false).await.unwrap();
            }
        }
        assert!(len > 0);
    }
}

/// Slots that a volume with these contents may take at least: one for each content.
fn distinct(is: &[u32], chunk: u32) -> usize {
    let each = (u64::from(chunk) / UNIT) as usize;
    let mut all: Vec<&[u32]> = is.chunks(each).filter(|c| c.iter().any(|v| *v > 0)).collect();
    all.sort_unstable();
    all.dedup();
    all.len()
}

#[test]
fn sharing_and_ceasing_to_share() {
    let saved = Rc::new(Cell::new(0));
    for seed in 0..60u64 {
        let (chunk, told) = (CHUNKS[seed as usize % 4], saved.clone());
        run(async move {
            let tasks = 1 + seed % 7;
            let units = (1 + seed % 3) * 24 * u64::from(chunk) / UNIT;
            let len = tasks * units * UNIT + if seed % 2 == 0 { 0 } else { 1024 };
            let lower = Medium::new(stored_len(len, chunk), 512, seed);
            lower.slow.set([0, 3, 100][seed as usize % 3] * MICROS);
            let o = Options { records: [1, 1 << 20][seed as usize % 2], ..options(chunk) };
            let v = Dedup::new(lower.clone(), o, pool()).unwrap();
            let is = Rc::new(RefCell::new(vec![0; (len / UNIT) as usize]));
            let kinds = [2, 4, 16][seed as usize / 2 % 3];
            let all: Vec<_> = (0..tasks)
                .map(|t| {
                    let (v, is) = (v.clone(), is.clone());
                    spawn(host(v, is, t * units, units, seed * 10 + t, chunk, kinds))
                })
                .collect();
            for t in all {
                t.await.unwrap();
            }
            v.settle().await;
            lower.slow.set(0);
            assert_eq!(v.audit(true).await.unwrap(), None, "seed {seed}");
            let f = v.figures().unwrap();
            let there = |c: &[u32]| c.iter().any(|v| *v > 0);
            let each = (u64::from(chunk) / UNIT) as usize;
            let live = is.borrow().chunks(each).filter(|c| there(c)).count();
            let least = distinct(&is.borrow(), chunk);
            let slots = live as u64 - f.saved / u64::from(chunk);
            assert!(f.exact && slots >= least as u64, "{f:?}: {slots} of {least}");
            told.set(told.get() + f.saved / u64::from(chunk));
            // The same after a start, and from what is kept.
            drop(v);
            let v = Dedup::new(lower, options(chunk), pool()).unwrap();
            let got = read(&*v, 0, len as usize).await.unwrap();
            for (u, got) in got.chunks(UNIT as usize).enumerate() {
                assert!(got == contents(u as u64, is.borrow()[u], chunk), "unit {u}");
            }
            sleep(SECONDS).await;
            let again = v.figures().unwrap();
            assert_eq!((again.saved, again.exact), (f.saved, true));
            assert!(v.is_clean() && again.indexed > 0, "{again:?}");
        });
    }
    assert!(saved.get() > 1000, "{} chunks saved", saved.get());
}

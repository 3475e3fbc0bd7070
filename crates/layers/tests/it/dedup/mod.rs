//! Deduplication: against a model, many at once on few contents, under power cuts, what it gives back, what it tells.

mod crash;
mod space;
mod together;

use crate::common::{exercise, run};
use crate::medium::Medium;
use std::rc::Rc;
use weir_block::Volume;
use weir_layers::dedup::{Dedup, Options, stored_len};
use weir_mem::{BufPool, PoolConfig};

pub(crate) const CHUNKS: [u32; 4] = [4 << 10, 8 << 10, 32 << 10, 4 << 10];

pub(crate) fn options(chunk: u32) -> Options {
    Options { chunk, index: 1 << 20, records: 64 << 10 }
}

pub(crate) fn pool() -> BufPool {
    BufPool::new(&PoolConfig { classes: vec![(4096, 4), (65536, 2)] }).unwrap()
}

/// Random operations on random data and zeros, over memory that takes its time.
#[test]
fn a_volume_like_any_other() {
    for seed in 1..=24 {
        let chunk = CHUNKS[seed as usize % 4];
        let block = [512, 4096][seed as usize / 4 % 2];
        run(async move {
            let len = (2 << 20) + (seed % 5) * 4096 + if block == 512 { 512 } else { 0 };
            let lower = Medium::new(stored_len(len, chunk), block, seed);
            lower.slow.set([0, 1000, 50_000][seed as usize % 3]);
            let pool = pool();
            let v = Dedup::new(lower, options(chunk), pool.clone()).unwrap();
            assert_eq!(v.geometry().len, len);
            exercise(v.clone(), seed, 1 + seed % 4, 120).await;
            drop(v);
            weir_reactor::sleep(600 * weir_base::SECONDS).await;
            assert!(pool.is_whole(), "a buffer leaked");
        });
    }
}

/// With so little memory that records are forgotten all the time, and an index of one segment.
#[test]
fn what_was_forgotten_is_found_again() {
    run(async move {
        let len = 40 << 20;
        let lower = Medium::new(stored_len(len, 4096), 512, 5);
        let o = Options { records: 1, index: 1, ..options(4096) };
        let v: Rc<dyn Volume> = Dedup::new(lower, o, pool()).unwrap();
        exercise(v, 5, 4, 150).await;
    });
}

//! Compression: against a model, under power cuts, what it gives back, what it tells.

mod crash;
mod space;

use crate::common::{exercise, run};
use crate::medium::Medium;
use std::rc::Rc;
use weir_block::Volume;
use weir_layers::compress::{Algorithm, Compress, Options, stored_len};
use weir_mem::{BufPool, PoolConfig};

pub(crate) fn options(algorithm: Algorithm, chunk: u32) -> Options {
    Options { algorithm, chunk, stamp: 1, memory: 1 << 20 }
}

pub(crate) fn pool() -> BufPool {
    BufPool::new(&PoolConfig { classes: vec![(4096, 4), (65536, 2)] }).unwrap()
}

pub(crate) const KINDS: [(Algorithm, u32); 4] = [
    (Algorithm::Lz4, 32 << 10),
    (Algorithm::Zstd(1), 128 << 10),
    (Algorithm::Zstd(3), 16 << 10),
    (Algorithm::Lz4, 8 << 10),
];

/// Random operations on random data and zeros, over memory that takes its time.
#[test]
fn a_volume_like_any_other() {
    for seed in 1..=24 {
        let (algorithm, chunk) = KINDS[seed as usize % 4];
        let block = [512, 4096][seed as usize / 4 % 2];
        run(async move {
            let len = (2 << 20) + (seed % 5) * 4096 + if block == 512 { 512 } else { 0 };
            let lower = Medium::new(stored_len(len, chunk), block, seed);
            lower.slow.set([0, 1000, 50_000][seed as usize % 3]);
            let pool = pool();
            let v = Compress::new(lower, options(algorithm, chunk), pool.clone()).unwrap();
            assert_eq!(v.geometry().len, len);
            exercise(v.clone(), seed, 1 + seed % 4, 120).await;
            drop(v);
            weir_reactor::sleep(3 * weir_base::SECONDS).await;
            assert!(pool.is_whole(), "a buffer leaked");
        });
    }
}

/// With so little memory for states that they are forgotten all the time.
#[test]
fn what_was_forgotten_is_found_again() {
    run(async move {
        let chunk = 8 << 10;
        let len = 40 << 20;
        let lower = Medium::new(stored_len(len, chunk), 512, 5);
        let o = Options { memory: 1, ..options(Algorithm::Lz4, chunk) };
        let v: Rc<dyn Volume> = Compress::new(lower, o, pool()).unwrap();
        exercise(v, 5, 4, 150).await;
    });
}

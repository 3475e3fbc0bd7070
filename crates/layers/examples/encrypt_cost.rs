//! What encryption costs a core: reads and writes of a RAM volume with and without it.
//!
//! ```text
//! cargo run --release -p weir-layers --example encrypt_cost
//! ```
//!
//! The RAM volume completes at once, so the difference is what the layer does: encrypting into a buffer of its own, decrypting in
//! place. Each figure is the median of slices of a few milliseconds, taken in turns.

mod common;

use common::{Clock, LEN, ram};
use std::rc::Rc;
use std::time::Instant;
use weir_base::Prng;
use weir_block::{Shared, Volume};
use weir_layers::encrypt::{Encrypt, KEY_LEN, MasterKey};
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_reactor::{PollMode, Reactor};

const SLICES: usize = 301;
/// Bytes of a slice of time.
const BYTES: usize = 4 << 20;
/// Nanoseconds of each I/O of a slice.
async fn slice(v: &dyn Volume, buf: &Slice, write: bool, prng: &mut Prng) -> f64 {
    let ios = (BYTES / buf.len()).max(1);
    let places = LEN / buf.len() as u64;
    let begin = Instant::now();
    for _ in 0..ios {
        let at = prng.below(places) * buf.len() as u64;
        let io = if write { v.write(at, buf.clone(), false) } else { v.read(at, buf.clone()) };
        io.await.expect("done");
    }
    begin.elapsed().as_nanos() as f64 / ios as f64
}

fn main() {
    let reactor = Reactor::new(Rc::new(Clock(Instant::now())));
    reactor.block_on(PollMode::Busy, async {
        let (shared, mut prng) = (Shared::new(), Prng::new(1));
        let pool = BufPool::new(&PoolConfig::default()).expect("memory");
        let key: [u8; KEY_LEN] = std::array::from_fn(|i| i as u8);
        let key = MasterKey::new(&key).expect("a key");
        let plain = ram(&shared, &pool, "plain");
        let crypt = Encrypt::new(ram(&shared, &pool, "crypt"), &key, pool.clone());
        println!(
            "{:<14} {:>10} {:>10} {:>12} {:>10}",
            "", "plain ns", "with ns", "difference", "GB/s"
        );
        for (size, name) in [(4096, "4k"), (128 << 10, "128k"), (1 << 20, "1m")] {
            let buf = Slice::heap(size);
            let mut bytes = vec![0; size];
            prng.fill(&mut bytes);
            buf.write_at(0, &bytes);
            for v in [&*plain as &dyn Volume, &crypt] {
                for at in (0..LEN).step_by(size) {
                    v.write(at, buf.clone(), false).await.expect("written");
                }
            }
            for write in [false, true] {
                let (mut a, mut b) = (Vec::new(), Vec::new());
                for _ in 0..SLICES {
                    a.push(slice(&*plain, &buf, write, &mut prng).await);
                    b.push(slice(&crypt, &buf, write, &mut prng).await);
                }
                for v in [&mut a, &mut b] {
                    v.sort_by(f64::total_cmp);
                }
                let (a, b) = (a[SLICES / 2], b[SLICES / 2]);
                let what = if write { "write" } else { "read" };
                let rate = size as f64 / (b - a);
                println!("{what:<6} {name:<7} {a:>10.0} {b:>10.0} {:>12.0} {rate:>10.2}", b - a);
            }
        }
    });
}

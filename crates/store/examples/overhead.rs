//! What the store costs on devices in memory: I/O rate, media writes per block, cost of checksums.
//!
//! `cargo run --release -p weir-store --example overhead [-- SECONDS]`

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use weir_base::{Nanos, Prng};
use weir_block::Volume;
use weir_disk::{Disk, DiskOp, report};
use weir_mem::Slice;
use weir_reactor::{Driver, PollMode, Reactor, Token, Unpark, complete, run_async, spawn};
use weir_store::{Options, Pool, PoolSpec, create};

/// A device in memory that completes at once.
struct Ram {
    name: String,
    all: Slice,
}

impl Ram {
    fn disk(n: usize, len: usize) -> Rc<dyn Disk> {
        Rc::new(Ram { name: format!("ram{n}"), all: Slice::heap(len) })
    }
}

impl Disk for Ram {
    fn len(&self) -> u64 {
        self.all.len() as u64
    }
    fn block_size(&self) -> u32 {
        4096
    }
    fn volatile_cache(&self) -> bool {
        true
    }
    fn name(&self) -> &str {
        &self.name
    }
    fn submit(&self, op: DiskOp, token: Token) {
        match op {
            DiskOp::Read { offset, buf } => buf.copy_from(0, &self.all, offset as usize, buf.len()),
            DiskOp::Write { offset, buf, .. } => {
                self.all.copy_from(offset as usize, &buf, 0, buf.len());
            }
            DiskOp::WriteZeroes { offset, len, .. } => {
                self.all.sub(offset as usize, len as usize).fill(0);
            }
            DiskOp::Flush | DiskOp::Discard { .. } => {}
        }
        complete(token, report(Ok(())));
    }
}

struct Real(Instant);

struct Nobody;

impl Unpark for Nobody {
    fn unpark(&self) {}
}

impl Driver for Real {
    fn now(&self) -> Nanos {
        self.0.elapsed().as_nanos() as Nanos
    }
    fn poll(&self) -> bool {
        false
    }
    fn park(&self, _until: Option<Nanos>) {
        std::thread::yield_now();
    }
    fn unparker(&self) -> std::sync::Arc<dyn Unpark> {
        std::sync::Arc::new(Nobody)
    }
}

#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    len: usize,
    write: bool,
    random: bool,
    depth: usize,
}

const SPAN: u64 = 512 << 20;

async fn load(v: Rc<dyn Volume>, c: Case, time: Duration) -> f64 {
    let (done, stop) = (Rc::new(Cell::new(0u64)), Rc::new(Cell::new(false)));
    let at = Rc::new(Cell::new(0u64));
    let mut tasks = Vec::new();
    for k in 0..c.depth {
        let (v, done, stop, at) = (v.clone(), done.clone(), stop.clone(), at.clone());
        let mut rng = Prng::new(k as u64 + 1);
        let buf = Slice::heap(c.len);
        let mut bytes = vec![0; c.len];
        rng.fill(&mut bytes);
        buf.write_at(0, &bytes);
        tasks.push(spawn(async move {
            while !stop.get() {
                let n = SPAN / c.len as u64;
                let block = match c.random {
                    true => rng.below(n),
                    false => {
                        at.set(at.get() + 1);
                        at.get() % n
                    }
                };
                let place = block * c.len as u64;
                let r = match c.write {
                    true => v.write(place, buf.clone(), false).await,
                    false => v.read(place, buf.clone()).await,
                };
                r.expect("the I/O works");
                done.set(done.get() + 1);
                if done.get() % 8 == 0 {
                    run_async().await;
                }
            }
        }));
    }
    let begin = Instant::now();
    while begin.elapsed() < time {
        run_async().await;
    }
    let rate = done.get() as f64 / begin.elapsed().as_secs_f64();
    stop.set(true);
    for t in tasks {
        t.await;
    }
    rate
}

async fn pool(copies: u8, devices: usize, sum_data: bool) -> Pool {
    let disks: Vec<_> = (0..devices).map(|n| Ram::disk(n, (3 << 30) / devices)).collect();
    let spec = PoolSpec {
        pool: 7,
        copies,
        slab_shift: 14,
        log_pages: 16384,
        spares: 256,
        overwrite: true,
    };
    create(&disks, &spec).await.expect("a pool");
    let options = Options { sum_data, cache: 256 << 20, ..Options::default() };
    let p = Pool::open(disks, options).await.expect("opens");
    p.create_volume("v", SPAN, 4096).await.expect("a volume");
    p
}

async fn all(time: Duration) {
    let cases = [
        Case { name: "4 KiB random write", len: 4096, write: true, random: true, depth: 32 },
        Case { name: "4 KiB random write", len: 4096, write: true, random: true, depth: 1 },
        Case { name: "4 KiB random read", len: 4096, write: false, random: true, depth: 32 },
        Case { name: "4 KiB random read", len: 4096, write: false, random: true, depth: 1 },
        Case {
            name: "128 KiB sequential write",
            len: 131072,
            write: true,
            random: false,
            depth: 32,
        },
        Case {
            name: "128 KiB sequential read",
            len: 131072,
            write: false,
            random: false,
            depth: 32,
        },
    ];
    let results: RefCell<Vec<[Vec<f64>; 2]>> =
        RefCell::new(cases.iter().map(|_| [Vec::new(), Vec::new()]).collect());
    let mut media = Vec::new();
    for _ in 0..3 {
        for (side, sum) in [(0, false), (1, true)] {
            let p = pool(2, 2, sum).await;
            let v: Rc<dyn Volume> = p.volume(1).expect("a volume");
            let fill = Case { name: "", len: 1 << 20, write: true, random: false, depth: 4 };
            load(v.clone(), fill, Duration::from_millis(400)).await;
            for (i, c) in cases.iter().enumerate() {
                let before = p.counters();
                let rate = load(v.clone(), *c, time).await;
                if c.write {
                    p.checkpoint().await.expect("a checkpoint");
                    let now = p.counters();
                    let blocks = now.blocks_written - before.blocks_written;
                    let written = now.media_writes - before.media_writes;
                    media.push((c.name, c.depth, written as f64 / 2.0 / blocks as f64));
                }
                results.borrow_mut()[i][side].push(rate);
            }
            p.close().await.expect("closes");
        }
    }
    let median = |v: &mut Vec<f64>| {
        v.sort_by(f64::total_cmp);
        v[v.len() / 2]
    };
    println!("| workload | depth | without checksums | with | cost |\n|---|---|---|---|---|");
    for (i, c) in cases.iter().enumerate() {
        let [off, on] = &mut results.borrow_mut()[i];
        let (off, on) = (median(off), median(on));
        let cost = (1.0 - on / off) * 100.0;
        println!("| {} | {} | {off:.0} /s | {on:.0} /s | {cost:.1} % |", c.name, c.depth);
    }
    println!("\nmedia writes per block written by the volume, on each half, checkpoints included:");
    media.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)));
    for (name, depth, per) in media {
        println!("{name}, depth {depth}: {per:.3}");
    }
}

fn main() {
    let seconds: f64 = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(2.0);
    let reactor = Reactor::new(Rc::new(Real(Instant::now())));
    reactor.block_on(PollMode::Busy, async move { all(Duration::from_secs_f64(seconds)).await });
}

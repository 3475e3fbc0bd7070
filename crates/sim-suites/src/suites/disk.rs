//! Concurrent I/O on one simulated disk through kills and power cuts. It checks the simulator and the block
//! history against each other, so that suites of real volumes can trust both.

use crate::{Pass, Run, Wrong};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{IoError, MILLIS, Nanos, Prng, SECONDS};
use weir_disk::{Disk, DiskOp};
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_reactor::sleep;
use weir_sim::check::BlockHistory;
use weir_sim::{DiskConfig, Node, Options, SimDisk, SimMedium, World};

const BLOCK: u64 = 512;
/// Blocks of the disk: few, so that operations meet.
const BLOCKS: u64 = 32;
const MOST: u64 = 8;

/// A disk under load and what is known of it.
pub(super) struct Load {
    history: RefCell<BlockHistory>,
    pool: BufPool,
    /// The node's clock against the world's, the same in all its lives.
    offset: Cell<Nanos>,
    /// Planted bug: acknowledged is taken for durable.
    acks_lie: bool,
    reads: Cell<u64>,
    writes: Cell<u64>,
    flushes: Cell<u64>,
    wrong: RefCell<Option<String>>,
}

impl Load {
    pub(super) fn new(acks_lie: bool) -> Result<Rc<Load>, Wrong> {
        let classes = vec![(4096, 16)];
        let pool = BufPool::new(&PoolConfig { classes }).map_err(|e| Wrong(e.to_string()))?;
        Ok(Rc::new(Load {
            history: RefCell::new(BlockHistory::new(1)),
            pool,
            offset: Cell::new(0),
            acks_lie,
            reads: Cell::new(0),
            writes: Cell::new(0),
            flushes: Cell::new(0),
            wrong: RefCell::default(),
        }))
    }

    /// The world's time, inside a task.
    fn clock(&self) -> Nanos {
        weir_reactor::clock() - self.offset.get()
    }

    fn check<E: ToString>(&self, r: Result<(), E>) {
        if let Err(e) = r {
            self.wrong.borrow_mut().get_or_insert(e.to_string());
        }
    }

    async fn buffer(&self, blocks: u64) -> Slice {
        self.pool.alloc((blocks * BLOCK) as usize).await
    }

    async fn write(&self, d: &SimDisk, rng: &mut Prng) {
        let (first, count) = range(rng);
        let buf = self.buffer(count).await;
        let zero = rng.chance(1, 10);
        let fua = !zero && rng.chance(1, 4);
        let id = {
            let mut h = self.history.borrow_mut();
            match zero {
                true => h.begin_zero(first, count, self.clock()),
                false => h.begin_write(first, count, self.clock()),
            }
        };
        let op = match zero {
            true => DiskOp::WriteZeroes { offset: first * BLOCK, len: count * BLOCK, unmap: true },
            false => {
                let mut bytes = vec![0; buf.len()];
                self.history.borrow().fill(id, &mut bytes);
                buf.write_at(0, &bytes);
                DiskOp::Write { offset: first * BLOCK, buf, fua }
            }
        };
        let result = weir_disk::run(d, op).await;
        let mut h = self.history.borrow_mut();
        match result {
            Ok(()) => {
                let r = h.acked(id, self.clock());
                if fua || self.acks_lie {
                    h.forced(id);
                }
                drop(h);
                self.check(r);
                self.writes.set(self.writes.get() + 1);
            }
            Err(_) => h.unknown(id),
        }
    }

    async fn read(&self, d: &SimDisk, rng: &mut Prng) {
        let (first, count) = range(rng);
        let buf = self.buffer(count).await;
        let start = self.clock();
        let op = DiskOp::Read { offset: first * BLOCK, buf: buf.clone() };
        match weir_disk::run(d, op).await {
            Ok(()) => {
                let r = self.history.borrow_mut().read(first, &buf.to_vec(), start, self.clock());
                self.check(r);
                self.reads.set(self.reads.get() + count);
            }
            Err(IoError::Medium) => {}
            Err(e) => self.check(Err(format!("a read failed: {e}"))),
        }
    }

    async fn flush(&self, d: &SimDisk) {
        let start = self.clock();
        if weir_disk::run(d, DiskOp::Flush).await.is_ok() {
            self.history.borrow_mut().flushed(start);
            self.flushes.set(self.flushes.get() + 1);
        }
    }

    async fn client(self: Rc<Self>, d: Rc<SimDisk>, mut rng: Prng) {
        loop {
            match rng.below(12) {
                0 => self.flush(&d).await,
                1..=5 => self.write(&d, &mut rng).await,
                6..=10 => self.read(&d, &mut rng).await,
                _ => sleep(rng.below(MILLIS)).await,
            }
        }
    }
}

fn range(rng: &mut Prng) -> (u64, u64) {
    let count = rng.between(1, MOST);
    (rng.below(BLOCKS - count + 1), count)
}

fn start(n: &Node, load: &Rc<Load>, rng: &mut Prng) {
    for _ in 0..rng.between(1, 5) {
        let (l, d, fork) = (load.clone(), n.disk("d"), rng.fork());
        n.spawn(l.client(d, fork));
    }
}

/// Loads a disk through lives that end by kill or power cut.
pub(super) fn lives(run: &Run, load: &Rc<Load>, config: DiskConfig) -> Result<World, Wrong> {
    let w = run.world(Options::default());
    let mut rng = w.rng(2);
    let n = w.node("node");
    let m = SimMedium::new("d", BLOCKS * BLOCK, config, rng.next_u64());
    n.attach(&m);
    load.offset.set(n.enter(weir_reactor::clock) - w.now());
    for _ in 0..rng.between(1, 5) {
        start(&n, load, &mut rng);
        w.run_for(rng.between(MILLIS / 10, 20 * MILLIS));
        let volatile = n.disk("d").volatile_cache();
        if rng.chance(1, 3) {
            n.kill();
            load.history.borrow_mut().settle_all(w.now());
        } else {
            n.power_off();
            let mut h = load.history.borrow_mut();
            match volatile {
                true => h.power_cut(w.now()),
                false => h.settle_all(w.now()),
            }
        }
        if let Some(what) = load.wrong.take() {
            return Err(Wrong(what));
        }
        w.run_for(MILLIS);
        n.restart();
    }
    // Everything is read twice in the end: what was seen once must stay.
    let (l, d) = (load.clone(), n.disk("d"));
    w.run(&n, 10 * SECONDS, async move {
        for _ in 0..2 {
            for first in (0..BLOCKS).step_by(MOST as usize) {
                let buf = l.buffer(MOST).await;
                let start = l.clock();
                let op = DiskOp::Read { offset: first * BLOCK, buf: buf.clone() };
                if weir_disk::run(&*d, op).await.is_ok() {
                    let r = l.history.borrow_mut().read(first, &buf.to_vec(), start, l.clock());
                    l.check(r);
                }
            }
        }
    })?;
    if let Some(what) = load.wrong.take() {
        return Err(Wrong(what));
    }
    if !load.pool.is_whole() {
        return Err(Wrong(format!("buffers leaked: {:?}", load.pool.census())));
    }
    Ok(w)
}

pub(super) fn run(run: &Run) -> Result<Pass, Wrong> {
    let load = Load::new(false)?;
    let mut rng = Prng::new(run.seed ^ 0xd15c);
    let config = DiskConfig {
        volatile_cache: rng.chance(3, 4),
        pieces: rng.between(1, 5) as usize,
        ..DiskConfig::default()
    };
    let w = lives(run, &load, config)?;
    Ok(Pass {
        trace: w.trace_hash(),
        figures: vec![
            ("blocks read", load.reads.get()),
            ("writes", load.writes.get()),
            ("flushes", load.flushes.get()),
        ],
    })
}

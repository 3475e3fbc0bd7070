//! A reactor in virtual time, disks in memory, and a model that volumes are compared with.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "a module of several tests, each of which uses a part"
)]

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{IoError, IoResult, Nanos, Prng};
use weir_block::{
    BuildContext, DiskSpec, Graph, GraphError, GraphSpec, Metering, NodeSpec, Registry, Shared,
    Volume,
};
use weir_disk::{Disk, DiskOp, Losses, report};
use weir_mem::{BufPool, PoolConfig, Slice};
use weir_reactor::{Driver, PollMode, Reactor, Token, Unpark, complete, sleep, spawn, spawn_task};

/// Virtual time that jumps to the next timer.
#[derive(Default)]
pub struct TestDriver(Cell<Nanos>);

struct Nobody;

impl Unpark for Nobody {
    fn unpark(&self) {}
}

impl Driver for TestDriver {
    fn now(&self) -> Nanos {
        self.0.get()
    }
    fn poll(&self) -> bool {
        false
    }
    fn park(&self, until: Option<Nanos>) {
        let until = until.expect("all tasks wait and nothing will wake them");
        self.0.set(self.0.get().max(until));
    }
    fn unparker(&self) -> Arc<dyn Unpark> {
        Arc::new(Nobody)
    }
}

pub fn reactor() -> Reactor {
    Reactor::new(Rc::new(TestDriver::default()))
}

pub fn run<T: 'static>(f: impl Future<Output = T> + 'static) -> T {
    reactor().block_on(PollMode::Sleep, f)
}

/// What a disk was asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Did {
    Read(u64, usize),
    Write(u64, usize, bool),
    Flush,
    Discard(u64, u64),
    WriteZeroes(u64, u64, bool),
}

/// A disk in memory. It insists on aligned memory and ranges, as O_DIRECT does.
pub struct MemDisk {
    pub data: RefCell<Vec<u8>>,
    pub block: u32,
    pub volatile: bool,
    pub sparse: bool,
    /// Operations take up to this long, at random; 0: they complete at once.
    pub slow: Cell<Nanos>,
    pub prng: RefCell<Prng>,
    pub log: RefCell<Vec<Did>>,
    pub in_flight: Cell<usize>,
    pub most_in_flight: Cell<usize>,
    /// The disk gives this for every operation.
    pub result: Cell<IoResult>,
    /// It has no operation that makes zeros.
    pub no_zeroes: bool,
    pub losses: Option<Arc<Losses>>,
    pub me: std::rc::Weak<MemDisk>,
}

impl MemDisk {
    pub fn new(len: usize, block: u32) -> Rc<MemDisk> {
        Self::with(len, block, |_| ())
    }

    pub fn with(len: usize, block: u32, f: impl FnOnce(&mut MemDisk)) -> Rc<MemDisk> {
        Rc::new_cyclic(|me| {
            let mut d = MemDisk {
                data: RefCell::new(vec![0; len]),
                block,
                volatile: true,
                sparse: true,
                slow: Cell::new(0),
                prng: RefCell::new(Prng::new(len as u64)),
                log: RefCell::default(),
                in_flight: Cell::new(0),
                most_in_flight: Cell::new(0),
                result: Cell::new(Ok(())),
                no_zeroes: false,
                losses: None,
                me: me.clone(),
            };
            f(&mut d);
            d
        })
    }

    pub fn take_log(&self) -> Vec<Did> {
        self.log.take()
    }

    fn aligned(&self, n: u64) {
        assert_eq!(n % u64::from(self.block), 0, "a disk is used in whole blocks");
    }

    fn does(&self, op: &DiskOp) -> IoResult {
        self.result.get()?;
        let mut data = self.data.borrow_mut();
        match op {
            DiskOp::Read { offset, buf } => {
                let at = *offset as usize;
                buf.write_at(0, &data[at..at + buf.len()]);
            }
            DiskOp::Write { offset, buf, .. } => {
                let at = *offset as usize;
                buf.read_at(0, &mut data[at..at + buf.len()]);
            }
            DiskOp::Flush => {}
            // The contract allows it to leave what was there, and so it does.
            DiskOp::Discard { .. } => {}
            DiskOp::WriteZeroes { .. } if self.no_zeroes => return Err(IoError::Unsupported),
            DiskOp::WriteZeroes { offset, len, .. } => {
                data[*offset as usize..(*offset + *len) as usize].fill(0);
            }
        }
        Ok(())
    }

    fn note(&self, op: &DiskOp) {
        let did = match op {
            DiskOp::Read { offset, buf } => {
                self.aligned(buf.as_ptr().addr() as u64);
                self.aligned(*offset | buf.len() as u64);
                Did::Read(*offset, buf.len())
            }
            DiskOp::Write { offset, buf, fua } => {
                self.aligned(buf.as_ptr().addr() as u64);
                self.aligned(*offset | buf.len() as u64);
                Did::Write(*offset, buf.len(), *fua)
            }
            DiskOp::Flush => Did::Flush,
            DiskOp::Discard { offset, len } => {
                self.aligned(*offset | *len);
                Did::Discard(*offset, *len)
            }
            DiskOp::WriteZeroes { offset, len, unmap } => {
                self.aligned(*offset | *len);
                Did::WriteZeroes(*offset, *len, *unmap)
            }
        };
        self.log.borrow_mut().push(did);
    }
}

impl Disk for MemDisk {
    fn len(&self) -> u64 {
        self.data.borrow().len() as u64
    }
    fn block_size(&self) -> u32 {
        self.block
    }
    fn volatile_cache(&self) -> bool {
        self.volatile
    }
    fn name(&self) -> &str {
        "memory"
    }
    fn submit(&self, op: DiskOp, token: Token) {
        self.note(&op);
        let n = self.in_flight.get() + 1;
        self.in_flight.set(n);
        self.most_in_flight.set(self.most_in_flight.get().max(n));
        if let Some(losses) = self.losses.clone().filter(|_| matches!(op, DiskOp::Flush)) {
            let me = self.me.upgrade().expect("alive while in use");
            spawn_task(async move {
                let flush = async {
                    if me.slow.get() > 0 {
                        let time = me.prng.borrow_mut().between(1, me.slow.get());
                        sleep(time).await;
                    }
                    me.does(&DiskOp::Flush)
                };
                let r = losses.flush(flush).await;
                me.in_flight.set(me.in_flight.get() - 1);
                complete(token, report(r));
            });
            return;
        }
        let me = self.me.upgrade().expect("alive while in use");
        let end = move || {
            let r = me.does(&op);
            me.in_flight.set(me.in_flight.get() - 1);
            complete(token, report(r));
        };
        if self.slow.get() == 0 {
            return end();
        }
        let time = self.prng.borrow_mut().between(1, self.slow.get());
        spawn_task(async move {
            sleep(time).await;
            end();
        });
    }
    fn set_len(&self, len: u64) -> IoResult {
        self.data.borrow_mut().resize(len as usize, 0);
        Ok(())
    }
    fn allocated(&self) -> Option<u64> {
        self.sparse.then(|| self.len())
    }
    fn losses(&self) -> Option<Arc<Losses>> {
        self.losses.clone()
    }
}

/// A process: registry, shared state, disks by path.
pub struct World {
    pub registry: Registry,
    pub shared: Shared,
    pub pool: BufPool,
    pub disks: RefCell<Vec<(PathBuf, Rc<MemDisk>)>>,
    pub opened: RefCell<Vec<DiskSpec>>,
    pub metering: Metering,
}

impl World {
    pub fn new() -> World {
        World {
            registry: weir_layers::registry(),
            shared: Shared::new(),
            pool: BufPool::new(&PoolConfig { classes: vec![(4096, 8), (65536, 4)] }).unwrap(),
            disks: RefCell::default(),
            opened: RefCell::default(),
            metering: Metering::Off,
        }
    }

    pub fn disk(self, path: &str, disk: Rc<MemDisk>) -> World {
        self.disks.borrow_mut().push((path.into(), disk));
        self
    }

    pub fn context<R>(&self, f: impl FnOnce(&BuildContext<'_>) -> R) -> R {
        f(&BuildContext {
            registry: &self.registry,
            shared: &self.shared,
            open_disk: &|spec| {
                self.opened.borrow_mut().push(spec.clone());
                let disks = self.disks.borrow();
                let found = disks.iter().find(|(p, _)| *p == spec.path);
                let found = found.ok_or(std::io::ErrorKind::NotFound)?;
                Ok(found.1.clone() as Rc<dyn Disk>)
            },
            pool: &self.pool,
            metering: self.metering,
        })
    }

    pub fn build(&self, spec: GraphSpec) -> Result<Graph, GraphError> {
        self.context(|ctx| Graph::build(spec, ctx))
    }

    /// The volume of a graph that must be right.
    pub fn volume(&self, spec: GraphSpec) -> Rc<dyn Volume> {
        let g = self.build(spec).unwrap_or_else(|e| panic!("{e}"));
        let top = g.spec().top.clone();
        g.node(&top).unwrap()
    }
}

pub fn ram(id: &str, len: u64) -> NodeSpec {
    NodeSpec::new(id, "ram").param("len", len)
}

pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut v = vec![0; len];
    Prng::new(seed).fill(&mut v);
    v
}

pub async fn read(v: &dyn Volume, at: u64, len: usize) -> Result<Vec<u8>, IoError> {
    let buf = Slice::copy_of(&vec![0xa5; len]);
    v.read(at, buf.clone()).await?;
    Ok(buf.to_vec())
}

pub async fn write(v: &dyn Volume, at: u64, data: &[u8]) -> IoResult {
    v.write(at, Slice::copy_of(data), false).await
}

/// What a part of a volume should contain.
pub struct Model {
    volume: Rc<dyn Volume>,
    prng: Prng,
    start: u64,
    data: Vec<u8>,
    most: u64,
}

impl Model {
    /// Of `start..start + len`, which nobody else uses and which is zeros now.
    pub fn new(volume: Rc<dyn Volume>, seed: u64, start: u64, len: u64) -> Model {
        Model { volume, prng: Prng::new(seed), start, data: vec![0; len as usize], most: 256 << 10 }
    }

    /// A random range in whole blocks, as positions in `data`; sometimes all of it.
    fn range(&mut self) -> (usize, usize) {
        let block = u64::from(self.volume.geometry().block_size);
        let blocks = self.data.len() as u64 / block;
        let most = match self.prng.below(4) {
            0 => 1,
            1 => 16,
            2 => 200,
            _ => self.most / block,
        };
        let n = self.prng.between(0, most.min(blocks));
        let at = self.prng.between(0, blocks - n);
        ((at * block) as usize, (n * block) as usize)
    }

    /// One random operation, checked.
    pub async fn step(&mut self) -> IoResult {
        let (at, len) = self.range();
        let there = self.start + at as u64;
        match self.prng.below(10) {
            0..=3 => {
                let got = read(&*self.volume, there, len).await?;
                assert!(got == self.data[at..at + len], "read of {len} bytes at {there}");
            }
            4..=7 => {
                let mut new = vec![0; len];
                self.prng.fill(&mut new);
                // Memory as wires have it: not always aligned.
                let skew = self.prng.below(3) as usize * 4;
                let buf = Slice::heap(len + skew).sub(skew, len);
                buf.write_at(0, &new);
                let fua = self.prng.chance(1, 4);
                self.volume.write(there, buf, fua).await?;
                self.data[at..at + len].copy_from_slice(&new);
            }
            8 if self.volume.geometry().thin => {
                self.volume.discard(there, len as u64).await?;
                self.data[at..at + len].fill(0);
            }
            8 => self.volume.flush().await?,
            _ => {
                let unmap = self.prng.chance(1, 2);
                self.volume.write_zeroes(there, len as u64, unmap).await?;
                self.data[at..at + len].fill(0);
            }
        }
        if len > 0 {
            let a = self.volume.find_allocation(there, len as u64).await;
            assert!(a.len > 0 && a.len <= len as u64, "{a:?} of {len}");
            if !a.mapped {
                let range = at..at + a.len as usize;
                assert!(self.data[range].iter().all(|b| *b == 0), "data where nothing is mapped");
            }
        }
        Ok(())
    }

    /// All of it reads as it should.
    pub async fn verify(&self) {
        for (i, chunk) in self.data.chunks(1 << 20).enumerate() {
            let at = self.start + (i << 20) as u64;
            let got = read(&*self.volume, at, chunk.len()).await.unwrap();
            assert!(got == chunk, "contents at {at}");
        }
    }
}

/// Many random operations by several tasks at once, each on its part of the volume, then a check of all.
pub async fn exercise(volume: Rc<dyn Volume>, seed: u64, tasks: u64, steps: usize) {
    let g = volume.geometry();
    let share = g.len / tasks / u64::from(g.block_size) * u64::from(g.block_size);
    let all: Vec<_> = (0..tasks)
        .map(|t| {
            let mut m = Model::new(volume.clone(), seed * 1000 + t, t * share, share);
            spawn(async move {
                for _ in 0..steps {
                    m.step().await.unwrap();
                }
                m
            })
        })
        .collect();
    let mut models = Vec::new();
    for t in all {
        models.push(t.await.unwrap());
    }
    volume.flush().await.unwrap();
    for m in models {
        m.verify().await;
    }
    edges(&*volume).await;
}

/// Ranges that no volume has.
pub async fn edges(v: &dyn Volume) {
    let g = v.geometry();
    let block = u64::from(g.block_size);
    let bad =
        [(g.len, block), (g.len - block, 2 * block), (1, block), (0, block - 1), (0, block + 1)];
    for (at, len) in bad.into_iter().chain([(u64::MAX - block + 1, block), (g.len + block, 0)]) {
        let buf = || Slice::heap(len as usize);
        let out = Err(IoError::OutOfRange);
        assert_eq!(v.read(at, buf()).await, out, "read {at}+{len}");
        assert_eq!(v.write(at, buf(), false).await, out, "write {at}+{len}");
        assert_eq!(v.discard(at, len).await, out, "discard {at}+{len}");
        assert_eq!(v.write_zeroes(at, len, true).await, out, "write-zeroes {at}+{len}");
        if len > 0 {
            assert!(v.direct(at, len as usize).is_none());
        }
    }
    assert_eq!(v.discard(0, u64::MAX - block + 1).await, Err(IoError::OutOfRange));
    assert_eq!(v.read(g.len, Slice::heap(0)).await, Ok(()));
    assert_eq!(v.write(g.len - block, Slice::heap(0), true).await, Ok(()));
}

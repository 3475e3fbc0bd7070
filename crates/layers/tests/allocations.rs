//! No heap per I/O: what leaves and layers need for an I/O comes from recycled slots.

mod common;

use common::{MemDisk, TestDriver, World, ram};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use weir_base::IoResult;
use weir_block::{Graph, GraphSpec, Metering, NodeSpec, Volume};
use weir_disk::{Disk, DiskOp, Losses, report};
use weir_mem::Slice;
use weir_reactor::{PollMode, Poller, Reactor, Token, complete};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is the system allocator's; counting touches only a number of the thread.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(p, layout) }
    }
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's.
        unsafe { System.realloc(p, layout, size) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

/// Completes operations one turn later, last come first served, without memory of its own per I/O.
struct LaterDisk {
    disk: Rc<MemDisk>,
    queue: RefCell<VecDeque<Token>>,
    losses: Arc<Losses>,
}

impl Disk for LaterDisk {
    fn len(&self) -> u64 {
        self.disk.len()
    }
    fn block_size(&self) -> u32 {
        512
    }
    fn volatile_cache(&self) -> bool {
        true
    }
    fn name(&self) -> &str {
        "later"
    }
    fn losses(&self) -> Option<Arc<Losses>> {
        Some(self.losses.clone())
    }
    fn submit(&self, _op: DiskOp, token: Token) {
        self.queue.borrow_mut().push_back(token);
    }
}

impl Poller for LaterDisk {
    fn poll(&self) -> bool {
        let mut any = false;
        while let Some(t) = { self.queue.borrow_mut().pop_back() } {
            complete(t, report(Ok(())));
            any = true;
        }
        any
    }
}

async fn every_kind_of_io(v: &dyn Volume, bufs: &[Slice]) -> IoResult {
    for buf in bufs {
        for at in [0, 4096, 60 << 10, 508 << 10] {
            v.read(at, buf.clone()).await?;
            v.write(at, buf.clone(), true).await?;
            v.write_zeroes(at, buf.len() as u64, false).await?;
            v.discard(at, buf.len() as u64).await?;
            drop(v.direct(at, buf.len()));
            v.allocation(at, buf.len() as u64);
        }
    }
    v.flush().await
}

/// Runs the I/O a few times to fill the free lists, and then counts.
fn count(name: &str, reactor: &Reactor, v: Rc<dyn Volume>) {
    let bufs: Vec<_> = [512, 4096, 64 << 10, 256 << 10, 500 << 10].map(Slice::heap).into();
    // Some can be made smaller, some cannot.
    for (i, b) in bufs.iter().enumerate() {
        let data = common::pattern(i as u64, if i % 2 == 0 { b.len() } else { b.len() / 4 });
        b.write_at(0, &data);
    }
    let n = reactor.block_on(PollMode::Busy, async move {
        for _ in 0..5 {
            every_kind_of_io(&*v, &bufs).await.unwrap();
        }
        let before = allocations();
        for _ in 0..50 {
            every_kind_of_io(&*v, &bufs).await.unwrap();
        }
        allocations() - before
    });
    assert_eq!(n, 0, "{name} allocates");
}

fn four(kind: &str, leaf: impl Fn(&str) -> NodeSpec) -> GraphSpec {
    let mut spec = GraphSpec::new("v", "top");
    let mut top = NodeSpec::new("top", kind);
    for id in ["a", "b", "c", "d"] {
        spec = spec.with(leaf(id));
        top = top.over(id);
    }
    spec.with(top)
}

#[test]
fn the_counter_counts() {
    let before = allocations();
    drop(std::hint::black_box(Box::new(7)));
    assert!(allocations() > before);
}

#[test]
fn layers_over_ram() {
    let reactor = Reactor::new(Rc::new(TestDriver::default()));
    let leaf = |id: &str| ram(id, 1 << 20);
    for spec in [
        GraphSpec::new("v", "r").with(leaf("r")),
        four("stripe", leaf),
        four("concat", leaf),
        GraphSpec::new("v", "s")
            .with(NodeSpec::new("s", "stats").over("l"))
            .with(NodeSpec::new("l", "linear").param("len", "1020KiB").over("f"))
            .with(NodeSpec::new("f", "fault").param("chance", 0u64).over("j"))
            .with(NodeSpec::new("j", "junction").over("r"))
            .with(leaf("r")),
    ] {
        let world = World::new();
        let name = format!("{:?}", spec.nodes.last());
        count(&name, &reactor, reactor.enter(|| world.volume(spec)));
    }
}

#[test]
fn compression() {
    use weir_layers::compress::{Algorithm, Compress, Options, stored_len};
    for (algorithm, chunk) in [(Algorithm::Lz4, 32 << 10), (Algorithm::Zstd(3), 8 << 10)] {
        let reactor = Reactor::new(Rc::new(TestDriver::default()));
        let world = World::new();
        let v = reactor.enter(|| {
            let node = ram("r", stored_len(1 << 20, chunk));
            let lower = world.volume(GraphSpec::new("v", "r").with(node));
            let o = Options { algorithm, chunk, stamp: 1, memory: 1 << 20 };
            Compress::new(lower, o, world.pool.clone()).unwrap()
        });
        count("compress over ram", &reactor, v);
    }
}

#[test]
fn deduplication() {
    use weir_layers::dedup::{Dedup, Options, stored_len};
    for chunk in [4 << 10, 32 << 10] {
        let reactor = Reactor::new(Rc::new(TestDriver::default()));
        let world = World::new();
        let v = reactor.enter(|| {
            let node = ram("r", stored_len(1 << 20, chunk));
            let lower = world.volume(GraphSpec::new("v", "r").with(node));
            let o = Options { chunk, index: 1 << 20, records: 1 << 20 };
            Dedup::new(lower, o, world.pool.clone()).unwrap()
        });
        count("deduplication over ram", &reactor, v);
    }
}

#[test]
fn encryption() {
    let reactor = Reactor::new(Rc::new(TestDriver::default()));
    let spec = || GraphSpec::new("v", "r").with(ram("r", 1 << 20));
    let key = weir_layers::encrypt::MasterKey::new(&std::array::from_fn(|i| i as u8)).unwrap();
    let world = World::new();
    let v = reactor.enter(|| {
        let lower = world.volume(spec());
        Rc::new(weir_layers::encrypt::Encrypt::new(lower, &key, world.pool.clone()))
    });
    count("encrypt over ram", &reactor, v);
    let later = Rc::new(LaterDisk {
        disk: MemDisk::new(1 << 20, 512),
        queue: RefCell::new(VecDeque::with_capacity(64)),
        losses: Arc::default(),
    });
    reactor.add_poller(later.clone());
    let v = reactor.enter(|| {
        let lower = world.context(|ctx| {
            let ctx = weir_block::BuildContext {
                open_disk: &|_| Ok(later.clone() as Rc<dyn Disk>),
                ..*ctx
            };
            let spec = GraphSpec::new("v", "d");
            let graph =
                Graph::build(spec.with(NodeSpec::new("d", "disk").param("path", "later")), &ctx);
            graph.unwrap().node("d").unwrap()
        });
        Rc::new(weir_layers::encrypt::Encrypt::new(lower, &key, world.pool.clone()))
    });
    count("encrypt over a disk", &reactor, v);
}

/// With parts that end later, so that the state of every layer is really kept somewhere, below a
/// graph's own junction, all counted.
#[test]
fn layers_over_disks() {
    for kind in ["stripe", "concat"] {
        let reactor = Reactor::new(Rc::new(TestDriver::default()));
        let mut world = World::new();
        world.metering = Metering::All;
        let later = Rc::new(LaterDisk {
            disk: MemDisk::new(1 << 20, 512),
            queue: RefCell::new(VecDeque::with_capacity(64)),
            losses: Arc::default(),
        });
        reactor.add_poller(later.clone());
        let spec = four(kind, |id| NodeSpec::new(id, "disk").param("path", "later"));
        let graph = reactor.enter(|| {
            world.context(|ctx| {
                let ctx = weir_block::BuildContext {
                    open_disk: &|_| Ok(later.clone() as Rc<dyn Disk>),
                    ..*ctx
                };
                Graph::build(spec, &ctx).unwrap()
            })
        });
        count(kind, &reactor, graph.top());
    }
}

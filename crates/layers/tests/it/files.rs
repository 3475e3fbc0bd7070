//! Volumes on real files through the ring.

use crate::common::{exercise, pattern, read, write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use weir_block::{BuildContext, Graph, GraphSpec, Metering, NodeSpec, Shared, Volume};
use weir_disk::Disk;
use weir_mem::{BufPool, PoolConfig};
use weir_reactor::{PollMode, Reactor};
use weir_uring::{FileDisk, OpenOptions, Ring};

/// A directory of this test, removed at its end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }
    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a test over a graph built with real disks.
fn on_graph<T: 'static>(
    spec: GraphSpec,
    shared: &Shared,
    f: impl AsyncFnOnce(Rc<dyn Volume>) -> T + 'static,
) -> T {
    let ring = Ring::new().unwrap();
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let registry = weir_layers::registry();
    let pool = BufPool::new(&PoolConfig { classes: vec![(4096, 4), (65536, 2)] }).unwrap();
    let graph = reactor.enter(|| {
        let ctx = BuildContext {
            registry: &registry,
            shared,
            open_disk: &|d| {
                let options = OpenOptions {
                    create: d.create,
                    len: d.len.filter(|_| d.create),
                    read_only: d.read_only,
                    direct: true,
                };
                Ok(Rc::new(FileDisk::open(&ring, &d.path, options)?) as Rc<dyn Disk>)
            },
            pool: &pool,
            metering: Metering::Top,
        };
        Graph::build(spec, &ctx).unwrap_or_else(|e| panic!("{e}"))
    });
    let top = graph.top();
    reactor.block_on(PollMode::Sleep, async move { f(top).await })
}

fn file(id: &str, dir: &Dir, len: u64) -> NodeSpec {
    let path = dir.path(id);
    NodeSpec::new(id, "disk").param("path", path).param("len", len).param("create", true)
}

#[test]
fn a_stripe_over_files_is_there_after_a_restart() {
    let dir = Dir::new("stripe");
    let spec = |create: bool| {
        let mut s = GraphSpec::new("v", "s")
            .with(NodeSpec::new("s", "stripe").param("unit", "16KiB").over("a").over("b"))
            .with(file("a", &dir, 2 << 20))
            .with(file("b", &dir, (2 << 20) + 4096));
        if !create {
            for id in ["a", "b"] {
                s.node_mut(id).unwrap().params.remove("create");
            }
        }
        s
    };
    let data = pattern(1, 300 << 10);
    let wrote = data.clone();
    on_graph(spec(true), &Shared::new(), async move |v| {
        let g = v.geometry();
        assert_eq!((g.len, g.thin, g.volatile_cache), (4 << 20, true, true));
        exercise(v.clone(), 1, 3, 60).await;
        v.discard(0, g.len).await.unwrap();
        assert!(v.allocated().unwrap() < 64 << 10, "{:?} bytes after a discard", v.allocated());
        write(&*v, 8192, &wrote).await.unwrap();
        v.flush().await.unwrap();
    });
    on_graph(spec(false), &Shared::new(), async move |v| {
        assert!(read(&*v, 8192, data.len()).await.unwrap() == data);
        assert!(read(&*v, 1 << 20, 1 << 20).await.unwrap().iter().all(|b| *b == 0));
    });
}

#[test]
fn a_file_grows_and_shrinks_under_its_volume() {
    let dir = Dir::new("resize");
    let spec = GraphSpec::new("v", "f").with(file("f", &dir, 1 << 20));
    let path = dir.path("f");
    on_graph(spec, &Shared::new(), async move |v| {
        write(&*v, (1 << 20) - 4096, &[7; 4096]).await.unwrap();
        v.resize(3 << 20).unwrap();
        write(&*v, (3 << 20) - 4096, &[8; 4096]).await.unwrap();
        assert_eq!(read(&*v, (1 << 20) - 4096, 8192).await.unwrap()[4095..4097], [7, 0]);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 << 20);
        v.resize(1 << 20).unwrap();
        v.resize(2 << 20).unwrap();
        assert_eq!(read(&*v, (2 << 20) - 4096, 4096).await.unwrap(), [0; 4096]);
    });
}

/// Extents from `at` on: mapped or not, and how long.
async fn extents(v: &dyn Volume, mut at: u64, to: u64) -> Vec<(bool, u64)> {
    let mut all: Vec<(bool, u64)> = Vec::new();
    while at < to {
        let a = v.find_allocation(at, to - at).await;
        assert!(a.len > 0 && a.len <= to - at);
        match all.last_mut() {
            Some(last) if last.0 == a.mapped => last.1 += a.len,
            _ => all.push((a.mapped, a.len)),
        }
        at += a.len;
    }
    all
}

#[test]
fn holes_of_files_are_found() {
    const K: u64 = 1 << 10;
    let dir = Dir::new("holes");
    let spec = GraphSpec::new("v", "f").with(file("f", &dir, 1 << 20));
    on_graph(spec, &Shared::new(), async move |v| {
        assert_eq!(extents(&*v, 0, 1 << 20).await, [(false, 1 << 20)]);
        write(&*v, 64 * K, &[1; 65536]).await.unwrap();
        write(&*v, 512 * K, &[2; 4096]).await.unwrap();
        v.flush().await.unwrap();
        let want = [(false, 64), (true, 64), (false, 384), (true, 4), (false, 508)];
        assert_eq!(extents(&*v, 0, 1 << 20).await, want.map(|(m, n)| (m, n * K)));
        assert_eq!(extents(&*v, 68 * K, 72 * K).await, [(true, 4 * K)]);
        v.discard(64 * K, 32 * K).await.unwrap();
        assert_eq!(extents(&*v, 64 * K, 128 * K).await, [(false, 32 * K), (true, 32 * K)]);
        // What is outside is somebody else's answer.
        assert!(v.find_allocation(1 << 20, 4096).await.mapped);
    });
    let over = |kind: &str| {
        GraphSpec::new("v", "s")
            .with(NodeSpec::new("s", kind).over("a").over("b"))
            .with(file("a", &dir, 1 << 20))
            .with(file("b", &dir, 1 << 20))
    };
    let mut stripe = over("stripe");
    stripe.node_mut("s").unwrap().params.insert("unit".into(), "16KiB".into());
    for spec in [stripe, over("concat")] {
        on_graph(spec, &Shared::new(), async move |v| {
            v.discard(0, 2 << 20).await.unwrap();
            write(&*v, 1016 * K, &[1; 16 << 10]).await.unwrap();
            v.flush().await.unwrap();
            let want = [(false, 1016), (true, 16), (false, 1016)];
            assert_eq!(extents(&*v, 0, 2 << 20).await, want.map(|(m, n)| (m, n * K)));
        });
    }
}

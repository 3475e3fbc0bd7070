//! A world in which nothing happens but what is measured.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use weir_base::Nanos;
use weir_block::{BuildContext, Graph, GraphSpec, Metering, NodeSpec, Shared, Volume};
use weir_mem::BufPool;
use weir_reactor::{Driver, Unpark};

/// Bytes of the RAM volume.
pub(crate) const LEN: u64 = 64 << 20;

/// Time, and no devices.
pub(crate) struct Clock(pub(crate) Instant);

struct Nobody;

impl Unpark for Nobody {
    fn unpark(&self) {}
}

impl Driver for Clock {
    fn now(&self) -> Nanos {
        self.0.elapsed().as_nanos() as Nanos
    }
    fn poll(&self) -> bool {
        false
    }
    fn park(&self, _until: Option<Nanos>) {}
    fn unparker(&self) -> Arc<dyn Unpark> {
        Arc::new(Nobody)
    }
}

/// A RAM volume.
pub(crate) fn ram(shared: &Shared, pool: &BufPool, name: &str) -> Rc<dyn Volume> {
    let registry = weir_layers::registry();
    let ctx = BuildContext {
        registry: &registry,
        shared,
        open_disk: &|_| Err(std::io::ErrorKind::NotFound.into()),
        pool,
        metering: Metering::Off,
    };
    let node = NodeSpec::new("ram", "ram").param("len", LEN).param("prefault", true);
    let graph = Graph::build(GraphSpec::new(name, "ram").with(node), &ctx).expect("a graph");
    graph.node("ram").expect("its node")
}

//! What layers get from the process and the reactor they are built on.

use super::Registry;
use crate::stats::Meters;
use crate::stats::below;
use std::any::Any;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use weir_disk::Disk;
use weir_mem::BufPool;

/// A disk that a layer wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskSpec {
    /// File or block device; under simulation, the disk's name.
    pub path: PathBuf,
    /// Make the file when there is none.
    pub create: bool,
    /// Capacity in bytes that the file is to have at least; a shorter file is extended when `create`
    /// is set.
    pub len: Option<u64>,
    /// No writes.
    pub read_only: bool,
}

type Table = BTreeMap<String, Arc<dyn Any + Send + Sync>>;

#[derive(Default)]
struct SharedInner {
    table: Mutex<Table>,
    meters: Meters,
}

/// State that the instances of a layer on all cores have in common, by [`Node::key`](super::Node::key).
/// One per process, or one per simulated machine. It outlives graphs; [`forget`](Shared::forget) ends it.
#[derive(Clone, Default)]
pub struct Shared(Arc<SharedInner>);

impl Shared {
    /// An empty table.
    pub fn new() -> Shared {
        Shared::default()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The state called `key`; made now if there is none.
    ///
    /// # Errors
    /// Those of `make`.
    ///
    /// # Panics
    /// When it is there with another type: two layers chose the same key.
    #[expect(clippy::panic, reason = "a mistake in the program; keys are made by layers")]
    pub fn get_or_try<T, E>(
        &self,
        key: &str,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E>
    where
        T: Any + Send + Sync,
    {
        let mut table = self.table();
        if let Some(state) = table.get(key) {
            let Ok(state) = state.clone().downcast::<T>() else {
                panic!("the shared state `{key}` has another type");
            };
            return Ok(state);
        }
        let state = Arc::new(make()?);
        table.insert(key.to_owned(), state.clone());
        Ok(state)
    }

    /// As [`get_or_try`](Shared::get_or_try) for what cannot fail.
    pub fn get_or<T: Any + Send + Sync>(&self, key: &str, make: impl FnOnce() -> T) -> Arc<T> {
        let made: Result<_, std::convert::Infallible> = self.get_or_try(key, || Ok(make()));
        match made {
            Ok(t) => t,
        }
    }

    /// The state called `key`, if it is there with that type.
    pub fn get<T: Any + Send + Sync>(&self, key: &str) -> Option<Arc<T>> {
        self.table().get(key)?.clone().downcast().ok()
    }

    /// Ends all state of a graph: when its volume is deleted. Instances that are still alive keep
    /// theirs till they go.
    pub fn forget(&self, graph: &str) {
        let mut gone = Vec::new();
        self.table().retain(|k, v| {
            let keep = !below(k, graph);
            if !keep {
                gone.push(v.clone());
            }
            keep
        });
        // Destructors run without the lock.
        drop(gone);
        self.0.meters.forget(graph);
    }

    /// Ends the state of some nodes of a graph, by their names: when what they stood for is given up.
    pub fn forget_nodes(&self, graph: &str, gone: impl Fn(&str) -> bool) {
        let mut ended = Vec::new();
        self.table().retain(|k, v| {
            let node = k.strip_prefix(graph).and_then(|r| r.strip_prefix('/'));
            let node = node.and_then(|r| r.split_once('/')).map(|(node, _)| node);
            let keep = !node.is_some_and(&gone);
            if !keep {
                ended.push(v.clone());
            }
            keep
        });
        // Destructors run without the lock.
        drop(ended);
    }

    /// The counters of all layers.
    pub fn meters(&self) -> &Meters {
        &self.0.meters
    }
}

/// Which layers count what passes them without being asked by a `stats` layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Metering {
    /// None.
    #[default]
    Off,
    /// The top.
    Top,
    /// Every one.
    All,
    /// Every one; the top, whichever node that is, as [`HOSTS`], so that what hosts did is counted on when a layer
    /// comes above what was the top.
    Served,
}

/// The name under which a graph's top is counted by [`Metering::Served`].
pub const HOSTS: &str = "(hosts)";

/// Opens disks: real ones or simulated ones.
pub type DiskOpener<'a> = &'a dyn Fn(&DiskSpec) -> std::io::Result<Rc<dyn Disk>>;

/// What layers get from the process and the reactor they are built on.
pub struct BuildContext<'a> {
    /// The kinds there are.
    pub registry: &'a Registry,
    /// State common to all cores.
    pub shared: &'a Shared,
    /// Opens disks on the present reactor.
    pub open_disk: DiskOpener<'a>,
    /// The reactor's buffers, for layers that need memory of their own for an I/O. Whoever waits for
    /// one while the asker of the I/O holds another can wait for ever: try, and fall back on a reserve.
    pub pool: &'a BufPool,
    /// Which layers count.
    pub metering: Metering,
}

//! One reactor's part of the node.

use super::devices::{Holds, Lending};
use super::layers::Edits;
use super::moves::{self, Movings};
use super::remote::Remotes;
use super::store::{self, OpenPools};
use super::unanswered::Unanswered;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use weir_base::{Nanos, SECONDS};
use weir_block::{BuildContext, DiskSpec, Graph, Metering, Registry, Shared};
use weir_control::descriptors::Shares;
use weir_control::{Code, Error, Result};
use weir_disk::Disk;
use weir_fabric::{FabricError, Provider};
use weir_fabric_iwarp::{Config as IwarpConfig, CrcPolicy, Iwarp};
use weir_fabric_verbs::Verbs;
use weir_mem::{BufPool, PoolConfig};
use weir_reactor::{
    Handle, LocalFuture, PollMode, Reactor, get_local, set_local, spawn_task, timeout,
};
use weir_target_core::Units;
use weir_uring::{
    FileDisk, Held, Identity, OpenOptions, Opened, Ring, TcpNetwork, blocking, pin_to_core,
};

/// How long what a reactor looks at may take to answer.
const PATIENCE: Nanos = 5 * SECONDS;

/// What is at a path that nobody holds.
pub(crate) struct Glanced {
    pub(crate) disk: Rc<dyn Disk>,
    pub(crate) identity: Identity,
    /// What the operating system tells it from others by.
    pub(crate) name: Option<String>,
}

/// What a reactor keeps for the work that is sent to it.
pub(crate) struct Local {
    reactor: Reactor,
    ring: Ring,
    registry: Registry,
    pub(crate) shared: Shared,
    pub(crate) pool: BufPool,
    pub(crate) units: Rc<Units>,
    pub(crate) graphs: RefCell<BTreeMap<String, Graph>>,
    /// What the process holds, which disks are made of.
    pub(crate) holds: Arc<Holds>,
    /// What it has of other nodes.
    pub(super) remotes: Arc<Remotes>,
    /// The disks of this reactor that were made of it.
    pub(crate) lending: Lending,
    unanswered: Unanswered,
    /// Protected pools that live here.
    pub(crate) stores: OpenPools,
    /// Changes of layers that are not decided upon.
    pub(crate) edits: Edits,
    /// Volumes that move and live here meanwhile.
    pub(crate) moves: Movings,
    iwarp: RefCell<[Option<Iwarp>; 2]>,
    verbs: RefCell<Option<Verbs>>,
    pub(crate) core: Cell<Option<u16>>,
    /// Where the kernel tells how long this thread ran.
    pub(crate) schedstat: PathBuf,
    /// Pools whose data gets no checksums, to measure what they cost.
    pub(crate) unsummed: Arc<[String]>,
}

impl Local {
    /// The iWARP provider with this CRC policy.
    pub(crate) fn iwarp(&self, crc: CrcPolicy) -> Rc<dyn Provider> {
        let index = usize::from(crc != CrcPolicy::Off);
        let mut all = self.iwarp.borrow_mut();
        let provider = all[index].get_or_insert_with(|| {
            let half_open = Shares::now().half_open;
            let config = IwarpConfig { crc, half_open, ..IwarpConfig::default() };
            Iwarp::new(&self.reactor, self.network(), config)
        });
        Rc::new(provider.clone())
    }

    /// Byte streams.
    pub(crate) fn network(&self) -> Rc<TcpNetwork> {
        TcpNetwork::new(&self.ring)
    }

    /// The provider for RDMA adapters; rdma-core is loaded when the first port wants it.
    pub(crate) fn verbs(&self) -> std::result::Result<Rc<dyn Provider>, FabricError> {
        let mut slot = self.verbs.borrow_mut();
        let provider = match &*slot {
            Some(v) => v.clone(),
            None => {
                let lib = weir_fabric_verbs::load()?;
                let config = weir_fabric_verbs::Config::default();
                Verbs::new(&self.reactor, &self.ring, lib, config)?
            }
        };
        *slot = Some(provider.clone());
        Ok(Rc::new(provider))
    }

    /// Figures of the run loop.
    pub(crate) fn figures(&self) -> weir_reactor::Figures {
        self.reactor.figures()
    }

    /// A disk of this reactor on what is held, by the name that it is held by now.
    pub(crate) fn disk(&self, name: &Path, held: &Arc<Held>) -> std::io::Result<Rc<dyn Disk>> {
        Ok(self.lending.lend(held.identity(), FileDisk::on(&self.ring, name, held)?))
    }

    /// A disk that may only be read and that nobody holds, to look at what it is. None: it does not answer, or has not since it was
    /// looked at before.
    pub(crate) async fn glance(&self, path: &Path) -> Option<std::io::Result<Glanced>> {
        let o = OpenOptions { create: false, len: None, direct: true, read_only: true };
        let (to, unanswered) = (path.to_owned(), self.unanswered.all());
        let open = move || {
            let there = std::fs::metadata(&to)?;
            if Identity::of(&there).is_some_and(|i| unanswered.contains(&i)) {
                return Ok(None);
            }
            let opened = Opened::open(&to, o)?;
            // Both ask the file system, or driver.
            let (identity, name) = (opened.identity()?, opened.lasting_name());
            Ok(Some((opened, identity, name)))
        };
        let at = |(opened, identity, name)| {
            let disk = Rc::new(FileDisk::of(&self.ring, opened));
            self.unanswered.look(identity, &disk);
            Glanced { disk, identity, name }
        };
        Some(look(path, open).await?.transpose()?.map(at))
    }

    /// Runs `f` with what layers are built from.
    pub(crate) fn build<R>(&self, f: impl FnOnce(&BuildContext<'_>) -> R) -> R {
        self.build_metered(super::layers::METERING, f)
    }

    /// As [`build`](Local::build), with layers counted in this way.
    pub(crate) fn build_metered<R>(
        &self,
        metering: Metering,
        f: impl FnOnce(&BuildContext<'_>) -> R,
    ) -> R {
        let open = |spec: &DiskSpec| -> std::io::Result<Rc<dyn Disk>> {
            let none = || std::io::Error::other("it is not held by the node");
            self.disk(&spec.path, &self.holds.find(&spec.path).ok_or_else(none)?)
        };
        f(&BuildContext {
            registry: &self.registry,
            shared: &self.shared,
            open_disk: &open,
            pool: &self.pool,
            metering,
        })
    }
}

/// Does something with `path` that may wait for its file system or driver, as long as a device may reasonably take. None: it has
/// not come to its end, or has not begun because too much of before has not. It may come to that still; what it gives is dropped
/// then.
pub(crate) async fn look<R: Send + 'static>(
    path: &Path,
    f: impl FnOnce() -> R + Send + 'static,
) -> Option<R> {
    // Files of one directory are on one file system: one that hangs is asked a few times only. Block devices have only the place
    // of their names in common.
    let of = if path.starts_with("/dev") { path } else { path.parent().unwrap_or(path) };
    let mut about = DefaultHasher::new();
    of.hash(&mut about);
    timeout(PATIENCE, blocking(about.finish(), f)).await.ok()?
}

/// The kinds of layers of the daemon.
pub(crate) fn registry() -> Registry {
    weir_layers::registry().with(&store::Kind).with(&moves::Kind)
}

/// Settings of a reactor thread.
pub(crate) struct Start {
    pub(crate) core: Option<u16>,
    pub(crate) mode: PollMode,
    pub(crate) buffers: PoolConfig,
    pub(crate) shared: Shared,
    pub(crate) unsummed: Arc<[String]>,
    pub(crate) holds: Arc<Holds>,
    pub(super) remotes: Arc<Remotes>,
}

/// A running reactor thread.
pub(crate) struct Thread {
    pub(crate) handle: Handle,
    pub(crate) core: Option<u16>,
    /// Below `/proc`.
    pub(crate) task: PathBuf,
    stop: Arc<std::sync::atomic::AtomicBool>,
    join: Option<std::thread::JoinHandle<()>>,
}

impl Thread {
    /// Starts a reactor on a thread of its own.
    pub(crate) fn start(index: usize, start: Start) -> Result<Thread> {
        let (tell, told) = std::sync::mpsc::channel();
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stopped = stop.clone();
        let core = start.core;
        let join = std::thread::Builder::new()
            .name(format!("weir-reactor-{index}"))
            .spawn(move || run(start, &tell, stopped))
            .map_err(|e| Error::new(Code::IoError, "no thread for a reactor").because(e))?;
        let handle = told.recv().unwrap_or_else(|_| Err("the reactor's thread ended".into()));
        let (handle, task) = handle.map_err(|e| {
            Error::new(Code::IoError, "a reactor does not start")
                .because(e)
                .hint("io_uring must be allowed (sysctl kernel.io_uring_disabled=0) and buffer_memory must fit the machine")
        })?;
        Ok(Thread { handle, core, task, stop, join: Some(join) })
    }

    /// Has the thread end, with all tasks of its reactor. Waits for nothing.
    pub(crate) fn leave(&self) {
        self.stop.store(true, std::sync::atomic::Ordering::Release);
        self.handle.run(|| {
            if let Some(l) = get_local::<Stop>() {
                l.0.signal();
            }
        });
    }

    /// Waits until it has ended, but not for longer than until `until`: whether it has.
    pub(crate) fn ended_by(&mut self, until: Instant) -> bool {
        let Some(thread) = &self.join else { return true };
        while !thread.is_finished() {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        // A panic of the thread has been reported by itself. It is not joined: what its ring has asked of a disk that hangs, the
        // kernel waits for before the thread is gone.
        drop(self.join.take());
        true
    }
}

/// Ends the run loop of a reactor.
struct Stop(weir_reactor::WaitChannel);

type Told = std::result::Result<(Handle, PathBuf), String>;

fn run(
    start: Start,
    tell: &std::sync::mpsc::Sender<Told>,
    _stop: Arc<std::sync::atomic::AtomicBool>,
) {
    if let Some(core) = start.core
        && let Err(e) = pin_to_core(usize::from(core))
    {
        let _ = tell.send(Err(format!("cannot run on core {core}: {e}")));
        return;
    }
    let made = Ring::new().and_then(|ring| {
        let reactor = Reactor::new(Rc::new(ring.clone()));
        let pool = reactor.enter(|| BufPool::new(&start.buffers))?;
        Ok((ring, reactor, pool))
    });
    let (ring, reactor, pool) = match made {
        Ok(m) => m,
        Err(e) => {
            let _ = tell.send(Err(e.to_string()));
            return;
        }
    };
    let task = std::fs::read_link("/proc/thread-self").unwrap_or_default();
    let task = PathBuf::from("/proc").join(task);
    let local = Local {
        reactor: reactor.clone(),
        ring,
        registry: registry(),
        shared: start.shared,
        pool,
        units: Rc::new(Units::default()),
        graphs: RefCell::default(),
        holds: start.holds,
        remotes: start.remotes,
        lending: Lending::default(),
        unanswered: Unanswered::default(),
        stores: RefCell::default(),
        edits: Edits::default(),
        moves: RefCell::default(),
        iwarp: RefCell::default(),
        verbs: RefCell::default(),
        core: Cell::new(start.core),
        schedstat: task.join("schedstat"),
        unsummed: start.unsummed,
    };
    let mode = start.mode;
    let handle = reactor.handle();
    reactor.enter(|| {
        set_local(Rc::new(local));
        set_local(Rc::new(Stop(weir_reactor::WaitChannel::new(0))));
    });
    let _ = tell.send(Ok((handle, task)));
    reactor.block_on(mode, async {
        if let Some(stop) = get_local::<Stop>() {
            stop.0.wait().await;
        }
    });
    reactor.shutdown();
}

/// Runs `f` on a reactor and waits for it from a Tokio thread.
pub(crate) async fn on<R: Send + 'static>(
    handle: &Handle,
    f: impl FnOnce(Rc<Local>) -> LocalFuture<'static, Result<R>> + Send + 'static,
) -> Result<R> {
    let (tell, told) = oneshot::channel();
    handle.run(move || {
        let Some(local) = get_local::<Local>() else { return };
        let work = f(local);
        spawn_task(async move {
            let _ = tell.send(work.await);
        });
    });
    match told.await {
        Ok(r) => r,
        Err(_) => Err(Error::new(Code::Internal, "the reactor ended")),
    }
}

//! The node: its reactors, and the control plane's wishes carried out on them.

use super::devices::{Holds, Owner, Wait};
use super::door::Door;
use super::graph;
use super::local::{Local, Start, Thread, on};
use super::remote::Remotes;
use super::store::{ReservationState, Reservations, random};
use super::watchdog::{Watchdog, Watched};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use weir_block::{Graph, GraphError, Shared};
use weir_control::dataplane::Hooks;
use weir_control::model::{HostSecret, InitiatorId, Layout, Pool, TargetPort, Volume};
use weir_control::{Code, Error, Result};
use weir_mem::PoolConfig;
use weir_proto_scsi::geometry::Geometry;
use weir_proto_scsi::identity::{Identity, TargetPort as ScsiPort};
use weir_proto_scsi::lu::LuState;
use weir_proto_scsi::pr::Import;
use weir_reactor::PollMode;
use weir_target_core::{Access, AccessMap, End, ReservationStore, Unit, UnitShared, Whom};

/// Longest piece of a command that passes through a buffer.
const CHUNK: usize = 1 << 20;

/// How long reactors may take to end when everything has been taken down.
const END: Duration = Duration::from_secs(2);
/// How long commands of hosts may take to end: longer than any device of a protected pool is given.
const FENCE: Duration = Duration::from_secs(30);
/// Bytes of a volume's end that are overwritten at once.
const CUT_PIECE: u64 = 32 << 20;
/// How much of a deleted volume is thrown away at a time. A device that does so by its own takes a moment for any number of bytes.
const CLEAR_PIECE: u64 = 256 << 20;

/// Settings of the node.
#[derive(Debug, Clone)]
pub(crate) struct NodeConfig {
    /// One reactor for each; `None` is not bound to a core.
    pub(crate) cores: Vec<Option<u16>>,
    pub(crate) poll: PollMode,
    /// Bytes of buffers, all reactors together.
    pub(crate) buffer_memory: u64,
    /// Pools whose data gets no checksums, to measure what they cost.
    pub(crate) unsummed: Arc<[String]>,
    /// As whom it logs in at other nodes.
    pub(crate) initiator: InitiatorId,
    /// What it proves there.
    pub(crate) secret: Option<HostSecret>,
}

pub(crate) struct RunningTarget {
    pub(crate) target: Door,
    pub(crate) listening: Vec<SocketAddr>,
    pub(super) spec: TargetPort,
}

/// The data plane of this process.
pub(crate) struct Node {
    pub(crate) threads: Mutex<Vec<Thread>>,
    pub(crate) shared: Shared,
    pub(super) access: Arc<Access>,
    pub(super) units: Mutex<BTreeMap<String, Arc<UnitShared>>>,
    /// Volumes that hosts have lost whose commands have not ended.
    parting: Mutex<BTreeSet<String>>,
    pub(crate) targets: Mutex<BTreeMap<String, RunningTarget>>,
    pub(super) ports: Mutex<BTreeMap<String, ScsiPort>>,
    pub(super) hooks: OnceLock<Hooks>,
    pub(crate) last: Mutex<super::status::Last>,
    pub(crate) stores: Arc<Mutex<super::store::Stores>>,
    /// The reactors that migrations live on, by volume.
    pub(crate) moves: Mutex<BTreeMap<String, weir_reactor::Handle>>,
    /// Devices of pools and files of volumes.
    pub(crate) holds: Arc<Holds>,
    /// Volumes of other nodes.
    pub(super) remotes: Arc<Remotes>,
    /// How large these are.
    pub(super) sizes: Arc<super::sizes::Sizes>,
    pub(crate) watchdog: Arc<Watchdog>,
    /// The node is being stopped: nobody is let in any more.
    pub(super) shut: AtomicBool,
}

pub(super) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Buffers of one reactor out of `bytes`: mostly large ones, with small ones for small I/O.
fn buffers(bytes: u64) -> PoolConfig {
    let bytes = bytes.max(8 << 20) as usize;
    let small = (bytes / 8 / 4096).clamp(256, 16384);
    let middle = (bytes / 4 / (64 << 10)).max(16);
    let left = bytes.saturating_sub(small * 4096 + middle * (64 << 10));
    let large = (left / CHUNK).max(4);
    PoolConfig { classes: vec![(4096, small), (64 << 10, middle), (CHUNK, large)] }
}

pub(super) fn identity(serial: &str, naa: [u8; 16]) -> Identity {
    Identity::new("WEIR", "VOLUME", env!("CARGO_PKG_VERSION_MINOR"), serial, naa)
}

fn failed(what: String, e: &GraphError) -> Error {
    Error::new(Code::IoError, what).because(e)
}

/// A number for this life of the process.
fn life() -> Result<u32> {
    random().map(|n| n as u32)
}

impl Node {
    /// Starts the reactors.
    pub(crate) fn start(config: &NodeConfig) -> Result<Arc<Node>> {
        let shared = Shared::new();
        let n = config.cores.len().max(1) as u64;
        let holds = Arc::<Holds>::default();
        let remotes = Arc::new(Remotes::new(config.initiator, config.secret.clone(), life()?));
        let mut threads = Vec::new();
        for (i, core) in config.cores.iter().enumerate() {
            let start = Start {
                core: *core,
                mode: config.poll,
                buffers: buffers(config.buffer_memory / n),
                shared: shared.clone(),
                unsummed: config.unsummed.clone(),
                holds: holds.clone(),
                remotes: remotes.clone(),
            };
            threads.push(Thread::start(i, start)?);
        }
        let watched = |t: &Thread| Watched { handle: t.handle.clone(), task: t.task.clone() };
        let watchdog = Watchdog::start(threads.iter().map(watched).collect());
        Ok(Arc::new(Node {
            threads: Mutex::new(threads),
            shared,
            access: Arc::new(Access::new(AccessMap::default())),
            units: Mutex::default(),
            parting: Mutex::default(),
            targets: Mutex::default(),
            ports: Mutex::default(),
            hooks: OnceLock::new(),
            last: Mutex::default(),
            stores: Arc::default(),
            moves: Mutex::default(),
            holds,
            remotes,
            sizes: Arc::default(),
            watchdog,
            shut: AtomicBool::new(false),
        }))
    }

    /// Ends the reactors, each by itself. The control plane has taken everything down before.
    ///
    /// # Errors
    /// Some have not ended in time: they are left to the end of the process.
    pub(crate) fn end(&self) -> Result<()> {
        self.watchdog.stop();
        let mut threads = lock(&self.threads);
        threads.iter().for_each(Thread::leave);
        let until = Instant::now() + END;
        let mut left = Vec::new();
        for (i, t) in threads.iter_mut().enumerate() {
            if !t.ended_by(until) {
                left.push(format!("reactor {i}: {}", self.watchdog.doing(i)));
            }
        }
        match left.is_empty() {
            true => Ok(()),
            false => Err(Error::new(Code::IoError, "not all reactors have ended")
                .because(left.join("; "))
                .hint("a file system or driver does not answer them; see to that one")),
        }
    }

    pub(crate) fn handles(&self) -> Vec<weir_reactor::Handle> {
        lock(&self.threads).iter().map(|t| t.handle.clone()).collect()
    }

    /// Handles of the reactors on these cores; all when none are named.
    pub(super) fn handles_on(&self, cores: &[u16]) -> Result<Vec<weir_reactor::Handle>> {
        let threads = lock(&self.threads);
        let wanted = |t: &&Thread| cores.is_empty() || t.core.is_some_and(|c| cores.contains(&c));
        let found: Vec<_> = threads.iter().filter(wanted).map(|t| t.handle.clone()).collect();
        if found.is_empty() {
            let have: Vec<_> = threads.iter().filter_map(|t| t.core).collect();
            return Err(Error::new(
                Code::InvalidRequest,
                "no reactor runs on the cores of the target port",
            )
            .because(format!("it names {cores:?}, reactors run on {have:?}"))
            .hint("leave `cores` out, or start the daemon with those cores"));
        }
        Ok(found)
    }

    pub(super) async fn open(&self, volume: &Volume, pool: &Pool) -> Result<()> {
        if Node::is_store(pool) {
            self.open_in_store(volume, pool).await?;
        }
        self.hold_place(volume, pool, Wait::ForAnybody).await?;
        let spec = self.spec_to_open(volume, pool)?;
        let name = volume.name.clone();
        let known = lock(&self.units).get(&name).cloned();
        let mut unit = known;
        for h in self.handles() {
            let (spec, name2, pool_name) = (spec.clone(), name.clone(), pool.name.clone());
            let size = volume.size;
            let geometry = on(&h, move |local: Rc<Local>| {
                Box::pin(async move {
                    let g = local.build(|ctx| Graph::build(spec, ctx)).map_err(|e| {
                        failed(format!("volume {name2} of pool {pool_name} cannot be opened"), &e)
                    })?;
                    // It may have more than hosts are to see, while it is being made smaller.
                    g.top_junction().show(size);
                    let geometry = g.top().geometry();
                    local.graphs.borrow_mut().insert(name2, g);
                    Ok(geometry)
                })
            })
            .await?;
            let shared = match &unit {
                Some(u) => u.clone(),
                None => {
                    let reservations = self.reservations_of(volume, pool).await?;
                    let u = self.unit(volume, &geometry, reservations);
                    lock(&self.units).insert(name.clone(), u.clone());
                    unit = Some(u.clone());
                    u
                }
            };
            let name = name.clone();
            on(&h, move |local: Rc<Local>| {
                Box::pin(async move {
                    let top = local.graphs.borrow().get(&name).map(Graph::top);
                    if let Some(top) = top {
                        local.units.insert(Unit::new(shared, top, local.pool.clone(), CHUNK));
                    }
                    Ok(())
                })
            })
            .await?;
        }
        self.access.touch();
        Ok(())
    }

    /// Holds the file or disk that a volume is in one of its places, as long as it is open. Does nothing for others.
    pub(super) async fn hold_place(&self, volume: &Volume, pool: &Pool, wait: Wait) -> Result<()> {
        let owner = Owner::Place(volume.name.clone(), volume.place);
        if let Layout::Image { path, read_only, identity } = &volume.layout {
            let is = (*read_only, identity.as_deref());
            let held = self.holds.hold_image(owner, path, is, wait).await?;
            return self.holds.check_len(&held, volume.size, volume.size).await;
        }
        let Some(file) = graph::own_file(volume, pool)? else { return Ok(()) };
        let held = self.holds.hold_file(owner, (&pool.name, &file), wait).await?;
        let had = volume.grown_from.unwrap_or(volume.size);
        self.holds.check_len(&held, had, volume.size).await
    }

    /// Takes the disks back that reactors have of what some owners hold: sessions may still remember their volumes.
    pub(super) async fn take_back(&self, is_it: impl Fn(&Owner) -> bool) -> Result<()> {
        let these = self.holds.identities_of(is_it);
        if these.is_empty() {
            return Ok(());
        }
        for h in self.handles() {
            let these = these.clone();
            on(&h, move |local: Rc<Local>| {
                Box::pin(async move {
                    local.lending.take_back(&these);
                    Ok(())
                })
            })
            .await?;
        }
        Ok(())
    }

    /// Makes the file that a new volume is, or finds it empty.
    pub(super) async fn make_own_file(&self, volume: &Volume, pool: &Pool) -> Result<()> {
        let Some(file) = graph::own_file(volume, pool)? else { return Ok(()) };
        let owner = Owner::Place(volume.name.clone(), volume.place);
        self.holds.make_file(owner, (&pool.name, &file), volume.size).await
    }

    /// A logical unit as after power on, with the reservations that were kept.
    fn unit(
        &self,
        volume: &Volume,
        g: &weir_block::Geometry,
        reservations: ReservationState,
    ) -> Arc<UnitShared> {
        let mut id = identity(&volume.serial, volume.naa.bytes());
        id.label = volume.name.clone();
        id.ports = lock(&self.ports).values().cloned().collect();
        id.read_only = volume.read_only || g.read_only;
        id.write_cache = g.volatile_cache;
        id.power = Some(super::door::power());
        let mut geometry =
            Geometry::new(volume.block_size, volume.size / u64::from(volume.block_size));
        if !g.thin {
            use weir_proto_scsi::geometry::Features;
            geometry.features =
                geometry.features.without(Features::UNMAP).without(Features::WRITE_SAME_UNMAP);
        }
        let mut lu = LuState::new(id, geometry);
        let hooks = self.hooks.get().cloned();
        if let Some(h) = &hooks
            && let Some(bytes) = reservations.bytes()
            && let Err(e) = lu.import_reservations(bytes, Import::PowerOn)
        {
            let object = format!("volume/{}", volume.name);
            h.events.publish("error", &object, &format!("kept reservations are unusable: {e}"));
        }
        let store = hooks.map(|h| {
            let kept = Reservations::new(h, self.stores.clone(), volume.naa, reservations);
            Arc::new(kept) as Arc<dyn ReservationStore>
        });
        UnitShared::new(&volume.name, lu, store)
    }

    /// Closes a volume. What it held may be being closed yet: see [`closed`](super::devices::closed).
    pub(super) async fn close(&self, name: &str) -> Result<()> {
        // While every reactor has its side of the unit, which knows who has been answered of late.
        self.fence(name, End::Gone).await?;
        for h in self.handles() {
            let name = name.to_owned();
            on(&h, move |local: Rc<Local>| {
                Box::pin(async move {
                    local.units.remove(&name);
                    Ok(())
                })
            })
            .await?;
        }
        self.access.touch();
        // What hosts have under way ends before anybody else gets what is below.
        self.fence(name, End::Gone).await?;
        lock(&self.units).remove(name);
        for h in self.handles() {
            let name = name.to_owned();
            on(&h, move |local: Rc<Local>| {
                Box::pin(async move {
                    local.graphs.borrow_mut().remove(&name);
                    Ok(())
                })
            })
            .await?;
        }
        // The copy has ended, too.
        self.drop_moving(name).await?;
        self.take_back(|o| matches!(o, Owner::Place(n, _) if n == name)).await?;
        self.holds.release_volume(name, None);
        self.close_in_store(name, None).await
    }

    /// Ends what all hosts have under way on a volume, if it is open. What they may do has been changed before.
    pub(super) async fn fence(&self, name: &str, why: End) -> Result<()> {
        let Some(unit) = lock(&self.units).get(name).cloned() else { return Ok(()) };
        self.ended(name, move || async move { unit.fence(Whom::All, why).await }).await
    }

    /// Puts another access map in force. What hosts have under way on volumes that they lost by it has ended when this
    /// returns; so has what they lost by an earlier one, before another host gets such a volume, and when nothing changes.
    pub(super) async fn set_access(&self, map: AccessMap) -> Result<()> {
        let before = self.access.map();
        let mut awaited: BTreeSet<String> = before.lost_by(&map).into_iter().collect();
        let got = map.lost_by(&before);
        {
            let mut parting = lock(&self.parting);
            let same = awaited.is_empty() && got.is_empty();
            awaited.extend(parting.iter().filter(|n| same || got.contains(n)).cloned());
            parting.extend(awaited.iter().cloned());
        }
        self.access.set(map);
        for name in awaited {
            let unit = lock(&self.units).get(&name).cloned();
            if let Some(unit) = unit {
                self.ended(&name, move || async move { unit.part().await }).await?;
            }
            lock(&self.parting).remove(&name);
        }
        Ok(())
    }

    /// Waits for the end of hosts' commands on a reactor, as long as a device may reasonably take.
    async fn ended<Fut>(&self, name: &str, f: impl FnOnce() -> Fut + Send + 'static) -> Result<()>
    where
        Fut: Future<Output = ()> + 'static,
    {
        let Some(h) = self.handles().into_iter().next() else { return Ok(()) };
        let ended = on(&h, move |_| {
            Box::pin(async move {
                f().await;
                Ok(())
            })
        });
        match tokio::time::timeout(FENCE, ended).await {
            Ok(r) => r,
            Err(_) => Err(Error::new(
                Code::IoError,
                format!("commands of hosts to volume {name} do not end"),
            )
            .because("a device below it has not answered")
            .hint("`weir status` tells about devices; try again when they answer")),
        }
    }

    /// Tells a volume's unit of a size or of a protection that leaves hosts less, before either is so, and ends what was
    /// admitted before.
    async fn narrow(&self, volume: &Volume) -> Result<()> {
        let Some(unit) = lock(&self.units).get(&volume.name).cloned() else { return Ok(()) };
        let blocks = volume.size / u64::from(volume.block_size);
        let narrowed = unit.with(|s| {
            let (less, protects) =
                (blocks < s.geometry().blocks, volume.read_only && !s.identity().read_only);
            if less {
                s.resize(blocks);
            }
            if protects {
                s.set_read_only(true);
            }
            less || protects
        });
        if narrowed { self.fence(&volume.name, End::Again).await } else { Ok(()) }
    }

    pub(super) async fn update(&self, volume: &Volume, pool: &Pool) -> Result<()> {
        if self.moving_home(&volume.name).is_some() {
            // Its graph leads to both places: by another one writes would miss the new place.
            return Err(Error::new(
                Code::NotReady,
                format!("volume {} is being moved", volume.name),
            )
            .hint("`weir migrate list` shows what is"));
        }
        self.narrow(volume).await?;
        if Node::is_store(pool) {
            self.grow_in_store(volume, pool).await?;
        }
        let smaller = volume.cut.is_some();
        if !smaller {
            // A file of its own becomes as large as it is to be.
            self.hold_place(volume, pool, Wait::No).await?;
        }
        let spec = graph::spec(volume, pool)?;
        for h in self.handles() {
            let (spec, name, size) = (spec.clone(), volume.name.clone(), volume.size);
            on(&h, move |local: Rc<Local>| {
                Box::pin(async move {
                    let top = local.graphs.borrow().get(&name).map(|g| g.top_junction().clone());
                    let Some(top) = top else {
                        return Err(Error::new(
                            Code::Internal,
                            format!("volume {name} is not open"),
                        ));
                    };
                    top.show(size);
                    if smaller {
                        // What was on its way when it ended here already has ended too.
                        super::layers::still(&top).await.map_err(|e| {
                            Error::new(
                                Code::IoError,
                                format!("volume {name} cannot be made smaller now"),
                            )
                            .because(e)
                            .hint("try again when its I/O gets on")
                        })?;
                    }
                    let changed = local.regraph(&name, spec, true).await;
                    changed.map_err(|e| failed(format!("volume {name} cannot be changed"), &e))
                })
            })
            .await?;
        }
        self.tell_unit(volume);
        Ok(())
    }

    /// Has hosts know the size and the write protection of a volume.
    fn tell_unit(&self, volume: &Volume) {
        let unit = lock(&self.units).get(&volume.name).cloned();
        if let Some(u) = unit {
            u.with(|s| {
                s.set_read_only(volume.read_only);
                s.resize(volume.size / u64::from(volume.block_size));
            });
        }
    }

    /// Throws away what a volume that is being made smaller has beyond its size.
    pub(super) async fn cut(&self, volume: &Volume, pool: &Pool) -> Result<()> {
        if volume.cut.is_none() {
            return Ok(());
        }
        if Node::is_store(pool) {
            return self.cut_in_store(volume, pool).await;
        }
        let Some(h) = self.handles().first().cloned() else { return Ok(()) };
        let whole = Volume { size: volume.held(), told: None, ..volume.clone() };
        let (spec, name, at) = (graph::bare(&whole, pool)?, volume.name.clone(), volume.size);
        on(&h, move |local: Rc<Local>| {
            Box::pin(async move {
                let what = || format!("the end of volume {name} cannot be thrown away");
                let g =
                    local.build(|ctx| Graph::build(spec, ctx)).map_err(|e| failed(what(), &e))?;
                let (top, mut at) = (g.top(), at);
                // To the end of its space, which may be a little more than hosts have ever seen.
                let end = top.geometry().len;
                while at < end {
                    let n = (end - at).min(CUT_PIECE);
                    let done = top.write_zeroes(at, n, true).await;
                    done.map_err(|e| Error::new(Code::IoError, what()).because(e))?;
                    at += n;
                }
                let done = top.flush().await;
                done.map_err(|e| Error::new(Code::IoError, what()).because(e))
            })
        })
        .await
    }

    /// Gives back what a volume holds in a place. A file or disk of its own stays as it is.
    pub(super) async fn clear_data(&self, volume: &Volume, pool: &Pool) -> Result<()> {
        if let Layout::Store { dataset, .. } = &volume.layout {
            self.delete_in_store(dataset.clone(), pool).await?;
        } else if let Some(file) = graph::own_file(volume, pool)? {
            let owner = Owner::Place(volume.name.clone(), volume.place);
            self.holds.remove_file(owner, (&pool.name, &file), None).await?;
        } else if matches!(volume.layout, Layout::Image { .. }) {
            return Ok(());
        } else {
            self.discard(volume, pool).await?;
        }
        Ok(())
    }

    /// Gives the space of a volume back that is nobody's any more, in pieces: between two of them the node may be stopped.
    async fn discard(&self, volume: &Volume, pool: &Pool) -> Result<()> {
        let Some(h) = self.handles().first().cloned() else { return Ok(()) };
        // What hosts were told does not matter any more.
        let size = volume.held();
        let bare = Volume { size, told: None, ..volume.clone() };
        let spec = graph::bare(&bare, pool)?;
        let mut at = 0;
        while at < size {
            let (spec, n) = (spec.clone(), (size - at).min(CLEAR_PIECE));
            let more = on(&h, move |local: Rc<Local>| {
                Box::pin(async move {
                    // A device that cannot discard keeps the old bytes until they are overwritten.
                    match local.build(|ctx| Graph::build(spec, ctx)) {
                        Ok(g) => Ok(g.top().discard(at, n).await.is_ok()),
                        Err(_) => Ok(false),
                    }
                })
            });
            if !more.await? {
                break;
            }
            at += n;
        }
        Ok(())
    }

    pub(super) async fn delete(&self, volume: &Volume, pool: &Pool) -> Result<()> {
        self.clear_data(volume, pool).await?;
        self.shared.forget(&volume.name);
        if let Some(h) = self.hooks.get() {
            h.reservations.save(&volume.name, Vec::new(), Box::new(|_| {}));
        }
        Ok(())
    }
}

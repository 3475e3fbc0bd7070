//! The node: its reactors, and the control plane's wishes carried out on them.

use super::door::Door;
use super::graph;
use super::local::{Local, Start, Thread, on};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use weir_base::SECONDS;
use weir_block::{Graph, GraphError, Shared};
use weir_control::controller::PoolRules;
use weir_control::dataplane::{DataPlane, Decision, Hooks, ImageWish, Place, ScrubAction, Work};
use weir_control::live::{
    GraphLive, LiveStatus, MigrationProgress, ScrubLive, SnapshotLive, SnapshotRuleLive,
};
use weir_control::model::{
    self, DeviceAction, DeviceKind, ImageFound, Layout, Pool, TargetPort, Told, Transport, Volume,
};
use weir_control::{Code, Error, Result};
use weir_fabric::Provider;
use weir_fabric_iwarp::CrcPolicy;
use weir_mem::PoolConfig;
use weir_proto_scsi::geometry::Geometry;
use weir_proto_scsi::identity::{Identity, PortName, TargetPort as ScsiPort};
use weir_proto_scsi::lu::LuState;
use weir_proto_scsi::pr::Import;
use weir_proto_srp::PortId;
use weir_reactor::PollMode;
use weir_target_core::{Access, AccessMap, HostRule, ReservationStore, Unit, UnitShared};

/// Longest piece of a command that passes through a buffer.
const CHUNK: usize = 1 << 20;

/// Settings of the node.
#[derive(Debug, Clone)]
pub(crate) struct NodeConfig {
    /// One reactor for each; `None` is not bound to a core.
    pub(crate) cores: Vec<Option<u16>>,
    pub(crate) poll: PollMode,
    /// Bytes of buffers, all reactors together.
    pub(crate) buffer_memory: u64,
}

pub(crate) struct RunningTarget {
    pub(crate) target: Door,
    pub(crate) listening: Vec<SocketAddr>,
    spec: TargetPort,
}

/// The data plane of this process.
pub(crate) struct Node {
    pub(crate) threads: Mutex<Vec<Thread>>,
    pub(crate) shared: Shared,
    access: Arc<Access>,
    units: Mutex<BTreeMap<String, Arc<UnitShared>>>,
    pub(crate) targets: Mutex<BTreeMap<String, RunningTarget>>,
    ports: Mutex<BTreeMap<String, ScsiPort>>,
    hooks: OnceLock<Hooks>,
    pub(crate) last: Mutex<super::status::Last>,
    pub(crate) stores: Mutex<super::store::Stores>,
    /// The reactors that migrations live on, by volume.
    pub(crate) moves: Mutex<BTreeMap<String, weir_reactor::Handle>>,
    pub(crate) images: Mutex<super::moves::Images>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
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

fn identity(serial: &str, naa: [u8; 16]) -> Identity {
    Identity::new("WEIR", "VOLUME", env!("CARGO_PKG_VERSION_MINOR"), serial, naa)
}

fn failed(what: String, e: &GraphError) -> Error {
    Error::new(Code::IoError, what).because(e)
}

impl Node {
    /// Starts the reactors.
    pub(crate) fn start(config: &NodeConfig) -> Result<Arc<Node>> {
        let shared = Shared::new();
        let n = config.cores.len().max(1) as u64;
        let mut threads = Vec::new();
        for (i, core) in config.cores.iter().enumerate() {
            let start = Start {
                core: *core,
                mode: config.poll,
                buffers: buffers(config.buffer_memory / n),
                shared: shared.clone(),
            };
            threads.push(Thread::start(i, start)?);
        }
        Ok(Arc::new(Node {
            threads: Mutex::new(threads),
            shared,
            access: Arc::new(Access::new(AccessMap::default())),
            units: Mutex::default(),
            targets: Mutex::default(),
            ports: Mutex::default(),
            hooks: OnceLock::new(),
            last: Mutex::default(),
            stores: Mutex::default(),
            moves: Mutex::default(),
            images: Mutex::default(),
        }))
    }

    /// Ends the reactors. The control plane has taken everything down before.
    pub(crate) fn end(&self) {
        for t in lock(&self.threads).iter_mut() {
            t.end();
        }
    }

    pub(crate) fn handles(&self) -> Vec<weir_reactor::Handle> {
        lock(&self.threads).iter().map(|t| t.handle.clone()).collect()
    }

    /// Handles of the reactors on these cores; all when none are named.
    fn handles_on(&self, cores: &[u16]) -> Result<Vec<weir_reactor::Handle>> {
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

    async fn open(&self, volume: &Volume, pool: &Pool) -> Result<()> {
        if Node::is_store(pool) {
            self.open_in_store(volume, pool).await?;
        }
        self.lock_image(volume)?;
        let spec = graph::spec(volume, pool)?;
        let name = volume.name.clone();
        let known = lock(&self.units).get(&name).cloned();
        let mut unit = known;
        for h in self.handles() {
            let (spec, name2, pool_name) = (spec.clone(), name.clone(), pool.name.clone());
            let geometry = on(&h, move |local: Rc<Local>| {
                Box::pin(async move {
                    let g = local.build(|ctx| Graph::build(spec, ctx)).map_err(|e| {
                        failed(format!("volume {name2} of pool {pool_name} cannot be opened"), &e)
                    })?;
                    let geometry = g.top().geometry();
                    local.graphs.borrow_mut().insert(name2, g);
                    Ok(geometry)
                })
            })
            .await?;
            let shared = match &unit {
                Some(u) => u.clone(),
                None => {
                    let u = self.unit(volume, &geometry)?;
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

    /// A logical unit as after power on, with the reservations that were kept.
    fn unit(&self, volume: &Volume, g: &weir_block::Geometry) -> Result<Arc<UnitShared>> {
        let mut id = identity(&volume.serial, volume.naa.bytes());
        id.label = volume.name.clone();
        id.ports = lock(&self.ports).values().cloned().collect();
        id.read_only = volume.read_only || g.read_only;
        id.write_cache = g.volatile_cache;
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
            && let Some(bytes) = h.reservations.load(&volume.name)?
            && let Err(e) = lu.import_reservations(&bytes, Import::PowerOn)
        {
            let object = format!("volume/{}", volume.name);
            h.events.publish("error", &object, &format!("kept reservations are unusable: {e}"));
        }
        let store = hooks.map(|h| Arc::new(Reservations(h)) as Arc<dyn ReservationStore>);
        Ok(UnitShared::new(&volume.name, lu, store))
    }

    async fn close(&self, name: &str) -> Result<()> {
        lock(&self.units).remove(name);
        for h in self.handles() {
            let name = name.to_owned();
            on(&h, move |local: Rc<Local>| {
                Box::pin(async move {
                    // Commands that run keep the volume till they end.
                    local.units.remove(&name);
                    local.graphs.borrow_mut().remove(&name);
                    Ok(())
                })
            })
            .await?;
        }
        self.access.touch();
        self.drop_moving(name, false).await?;
        self.unlock_image(name, None);
        self.close_in_store(name, None).await
    }

    async fn update(&self, volume: &Volume, pool: &Pool) -> Result<()> {
        if Node::is_store(pool) {
            self.resize_in_store(volume, pool).await?;
        }
        let spec = graph::spec(volume, pool)?;
        for h in self.handles() {
            let (spec, name) = (spec.clone(), volume.name.clone());
            on(&h, move |local: Rc<Local>| {
                Box::pin(async move {
                    let graph = local.graphs.borrow_mut().remove(&name);
                    let Some(mut graph) = graph else {
                        return Err(Error::new(
                            Code::Internal,
                            format!("volume {name} is not open"),
                        ));
                    };
                    let wrong =
                        |e: &GraphError| failed(format!("volume {name} cannot be changed"), e);
                    let edit = local.build(|ctx| graph.prepare(spec, ctx));
                    let done = match edit {
                        Ok(mut edit) => match edit.quiesce(10 * SECONDS).await {
                            Ok(()) => graph.commit(edit).map_err(|e| wrong(&e)),
                            Err(e) => Err(wrong(&e)),
                        },
                        Err(e) => Err(wrong(&e)),
                    };
                    local.graphs.borrow_mut().insert(name.clone(), graph);
                    done
                })
            })
            .await?;
        }
        let unit = lock(&self.units).get(&volume.name).cloned();
        if let Some(u) = unit {
            u.with(|s| {
                s.set_read_only(volume.read_only);
                s.resize(volume.size / u64::from(volume.block_size));
            });
        }
        Ok(())
    }

    /// Gives back what a volume holds in a place. A file or disk of its own stays as it is.
    pub(super) async fn clear_data(&self, volume: &Volume, pool: &Pool) -> Result<()> {
        if let Layout::Store { dataset, .. } = &volume.layout {
            self.delete_in_store(dataset.clone(), pool).await?;
        } else if let Some(file) = graph::own_file(volume, pool)? {
            match std::fs::remove_file(&file) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(
                        Error::new(Code::IoError, format!("{file} cannot be removed")).because(e)
                    );
                }
                _ => {}
            }
        } else if matches!(volume.layout, Layout::Image { .. }) {
            return Ok(());
        } else if let Some(h) = self.handles().first() {
            // The space is given back before somebody else gets it.
            // What hosts were told does not matter any more.
            let bare = Volume { told: None, ..volume.clone() };
            let (spec, size) = (graph::spec(&bare, pool)?, volume.size);
            on(h, move |local: Rc<Local>| {
                Box::pin(async move {
                    if let Ok(g) = local.build(|ctx| Graph::build(spec, ctx)) {
                        // A device that cannot discard keeps the old bytes until they are overwritten.
                        let _ = g.top().discard(0, size).await;
                    }
                    Ok(())
                })
            })
            .await?;
        }
        Ok(())
    }

    async fn delete(&self, volume: &Volume, pool: &Pool) -> Result<()> {
        self.clear_data(volume, pool).await?;
        self.shared.forget(&volume.name);
        if let Some(h) = self.hooks.get() {
            h.reservations.save(&volume.name, Vec::new(), Box::new(|_| {}));
        }
        Ok(())
    }

    async fn listen(&self, port: &TargetPort) -> Result<Vec<SocketAddr>> {
        let running =
            lock(&self.targets).get(&port.name).map(|t| (t.spec == *port, t.listening.clone()));
        match running {
            Some((true, listening)) => return Ok(listening),
            Some((false, _)) => self.stop(&port.name).await?,
            None => {}
        }
        let handles = self.handles_on(&port.cores)?;
        let id = PortId::new(port.id_ext.0, port.ioc_guid.0);
        let relative = self.announce(&port.name, id);
        let crc = match port.crc {
            model::CrcPolicy::Peer => CrcPolicy::Off,
            model::CrcPolicy::Require => CrcPolicy::Require,
        };
        let target = Door::new(
            port,
            relative,
            self.access.clone(),
            identity("none", [0; 16]),
            handles.len(),
        );
        let transport = port.transport;
        let name = port.name.clone();
        for h in &handles {
            let (target, name) = (target.clone(), name.clone());
            on(h, move |local: Rc<Local>| {
                Box::pin(async move {
                    let provider = provider(&local, transport, crc)?;
                    target.join(provider, local.units.clone(), local.pool.clone()).map_err(|e| {
                        Error::new(Code::IoError, format!("target port {name} does not start"))
                            .because(e)
                    })
                })
            })
            .await?;
        }
        let mut listening = Vec::new();
        let mut error = None;
        for addr in &port.listen {
            let (target, addr2, name) = (target.clone(), addr.clone(), name.clone());
            let r = on(&handles[0], move |local: Rc<Local>| {
                Box::pin(async move {
                    let provider = provider(&local, transport, crc)?;
                    target.listen(&*provider, &addr2).map_err(|e| {
                        Error::new(
                            Code::IoError,
                            format!("target port {name} cannot listen on {addr2}"),
                        )
                        .because(e)
                        .hint("use an address of this machine and a free port")
                    })
                })
            })
            .await;
            match r {
                Ok(a) => listening.extend(a.parse::<SocketAddr>()),
                Err(e) => error = Some(e),
            }
        }
        let entry = RunningTarget { target, listening: listening.clone(), spec: port.clone() };
        lock(&self.targets).insert(name.clone(), entry);
        if let Some(e) = error {
            self.stop(&name).await?;
            return Err(e);
        }
        Ok(listening)
    }

    /// Makes a port known to all units; gives its relative identifier.
    fn announce(&self, name: &str, id: PortId) -> u16 {
        let mut ports = lock(&self.ports);
        let used: Vec<u16> = ports.values().map(|p| p.relative_id).collect();
        let next = (1..=u16::MAX).find(|n| !used.contains(n)).unwrap_or(u16::MAX);
        let relative_id = ports.get(name).map_or(next, |p| p.relative_id);
        let port = ScsiPort { relative_id, group: 1, name: PortName::Srp(id.0) };
        ports.insert(name.to_owned(), port);
        let all: Vec<_> = ports.values().cloned().collect();
        for u in lock(&self.units).values() {
            u.with(|s| s.set_ports(all.clone()));
        }
        relative_id
    }

    async fn stop(&self, name: &str) -> Result<()> {
        let Some(t) = lock(&self.targets).remove(name) else { return Ok(()) };
        for h in self.handles() {
            let target = t.target.clone();
            on(&h, move |_| {
                Box::pin(async move {
                    target.leave().await;
                    Ok(())
                })
            })
            .await?;
        }
        Ok(())
    }
}

fn provider(local: &Local, transport: Transport, crc: CrcPolicy) -> Result<Rc<dyn Provider>> {
    match transport {
        Transport::Iwarp => Ok(local.iwarp(crc)),
        Transport::Verbs => local.verbs().map_err(|e| {
            Error::new(Code::IoError, "no RDMA adapter can be used").because(e).hint(
                "install rdma-core's libraries and see `rdma link`, or use `transport = \"iwarp\"`",
            )
        }),
    }
}

/// Hands reservations of reactors to the control plane's store.
struct Reservations(Hooks);

impl ReservationStore for Reservations {
    fn save(
        &self,
        volume: &str,
        _revision: u64,
        state: Vec<u8>,
        done: Box<dyn FnOnce(bool) + Send>,
    ) {
        // Jobs of one volume arrive in the order of its lock, so the last one is the newest.
        self.0.reservations.save(volume, state, Box::new(move |r| done(r.is_ok())));
    }
}

fn device_size(d: &model::Device) -> std::io::Result<u64> {
    let Some(path) = d.path.as_ref().map(PathBuf::from) else { return Ok(d.size) };
    match d.kind {
        DeviceKind::Dir => std::fs::create_dir_all(&path).map(|()| 0),
        DeviceKind::File => {
            let f = std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)?;
            let len = f.metadata()?.len();
            if len < d.size {
                f.set_len(d.size)?;
                f.sync_all()?;
            }
            Ok(len.max(d.size))
        }
        DeviceKind::Block => {
            use std::io::Seek;
            std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)?
                .seek(std::io::SeekFrom::End(0))
        }
        DeviceKind::Ram | DeviceKind::Null => Ok(d.size),
    }
}

impl DataPlane for Node {
    fn attach(&self, hooks: Hooks) {
        // Called once; a second call would change nothing.
        let _ = self.hooks.set(hooks);
    }

    fn start_pool<'a>(&'a self, pool: &'a Pool) -> Work<'a, Vec<u64>> {
        Box::pin(async move {
            if Node::is_store(pool) {
                return self.open_store(pool, false).await;
            }
            let mut sizes = Vec::new();
            for d in &pool.devices {
                let size = device_size(d).map_err(|e| {
                    let what = d.path.as_deref().unwrap_or("a device");
                    Error::new(Code::IoError, format!("pool {} cannot use {what}", pool.name))
                        .because(e)
                        .hint("check that the path exists, is yours to write, and is not in use")
                })?;
                sizes.push(size);
            }
            Ok(sizes)
        })
    }

    fn force_pool<'a>(&'a self, pool: &'a Pool) -> Work<'a, Vec<u64>> {
        Box::pin(self.open_store(pool, true))
    }

    fn stop_pool<'a>(&'a self, name: &'a str) -> Work<'a, ()> {
        // Devices of a plain pool are opened by the volumes on them.
        Box::pin(self.close_store(name))
    }

    fn change_device<'a>(&'a self, pool: &'a Pool, action: &'a DeviceAction) -> Work<'a, ()> {
        Box::pin(self.change_store_device(pool, action))
    }

    fn create_volume<'a>(&'a self, volume: &'a Volume, pool: &'a Pool) -> Work<'a, ()> {
        Box::pin(self.make_in_store(volume, pool))
    }

    fn snapshots<'a>(&'a self, pool: &'a Pool) -> Work<'a, Vec<SnapshotLive>> {
        Box::pin(self.list_snapshots(pool))
    }

    fn take_snapshots<'a>(
        &'a self,
        pool: &'a Pool,
        wanted: &'a [(String, String)],
    ) -> Work<'a, ()> {
        Box::pin(self.snapshot_in_store(pool, wanted.to_vec()))
    }

    fn delete_snapshot<'a>(&'a self, pool: &'a Pool, dataset: &'a str) -> Work<'a, ()> {
        Box::pin(self.delete_in_store(dataset.to_owned(), pool))
    }

    fn set_snapshot_rules<'a>(&'a self, pool: &'a Pool, rules: &'a PoolRules) -> Work<'a, ()> {
        let events = self.hooks.get().map(|h| h.events.clone());
        Box::pin(self.set_store_rules(pool, rules, events))
    }

    fn snapshot_rules<'a>(&'a self, pool: &'a Pool) -> Work<'a, Vec<SnapshotRuleLive>> {
        Box::pin(self.store_rules(pool))
    }

    fn revert_volume<'a>(
        &'a self,
        pool: &'a Pool,
        volume: &'a Volume,
        snapshot: &'a str,
    ) -> Work<'a, ()> {
        Box::pin(self.revert_in_store(pool, volume, snapshot))
    }

    fn scrub<'a>(&'a self, pool: &'a Pool, action: ScrubAction) -> Work<'a, Option<ScrubLive>> {
        Box::pin(self.scrub_store(pool, action))
    }

    fn graph<'a>(&'a self, volume: &'a str) -> Work<'a, GraphLive> {
        Box::pin(self.graph_of(volume))
    }

    fn find_image<'a>(&'a self, wish: &'a ImageWish) -> Work<'a, ImageFound> {
        Box::pin(self.look_at_image(wish))
    }

    fn start_migration<'a>(
        &'a self,
        here: Place<'a>,
        there: Place<'a>,
        migration: &'a model::Migration,
    ) -> Work<'a, ()> {
        Box::pin(self.begin_migration(here, there, migration))
    }

    fn migration<'a>(&'a self, volume: &'a str) -> Work<'a, Option<MigrationProgress>> {
        Box::pin(self.migration_progress(volume))
    }

    fn tune_migration<'a>(&'a self, volume: &'a str, rate: u64, paused: bool) -> Work<'a, ()> {
        Box::pin(self.tune(volume, rate, paused))
    }

    fn hold_migration<'a>(&'a self, volume: &'a str) -> Work<'a, Told> {
        Box::pin(self.hold(volume))
    }

    fn decide_migration<'a>(&'a self, volume: &'a str, decision: Decision) -> Work<'a, ()> {
        Box::pin(self.decide(volume, decision))
    }

    fn end_migration<'a>(&'a self, here: Place<'a>, there: Place<'a>) -> Work<'a, ()> {
        Box::pin(self.finish_migration(here, there))
    }

    fn clear_place<'a>(&'a self, there: Place<'a>, made: bool) -> Work<'a, ()> {
        Box::pin(async move {
            if made {
                super::moves::remove_image(there.volume)?;
            }
            self.clear_data(there.volume, there.pool).await
        })
    }

    fn open_volume<'a>(&'a self, volume: &'a Volume, pool: &'a Pool) -> Work<'a, ()> {
        Box::pin(async move {
            let r = self.open(volume, pool).await;
            if r.is_err() {
                self.close(&volume.name).await?;
            }
            r
        })
    }

    fn update_volume<'a>(&'a self, volume: &'a Volume, pool: &'a Pool) -> Work<'a, ()> {
        Box::pin(self.update(volume, pool))
    }

    fn close_volume<'a>(&'a self, name: &'a str) -> Work<'a, ()> {
        Box::pin(self.close(name))
    }

    fn delete_volume_data<'a>(&'a self, volume: &'a Volume, pool: &'a Pool) -> Work<'a, ()> {
        Box::pin(self.delete(volume, pool))
    }

    fn set_mappings<'a>(&'a self, access: &'a model::AccessMap) -> Work<'a, ()> {
        Box::pin(async move {
            let hosts = access
                .hosts
                .iter()
                .map(|h| HostRule {
                    host: h.name.clone(),
                    ports: h.ports.iter().map(|p| p.0.to_vec()).collect(),
                    any: h.allow_any,
                    luns: h.luns.iter().map(|l| (l.lun, l.volume.clone())).collect(),
                })
                .collect();
            self.access.set(AccessMap { hosts });
            Ok(())
        })
    }

    fn start_target<'a>(&'a self, port: &'a TargetPort) -> Work<'a, Vec<SocketAddr>> {
        Box::pin(self.listen(port))
    }

    fn stop_target<'a>(&'a self, name: &'a str) -> Work<'a, ()> {
        Box::pin(self.stop(name))
    }

    fn status(&self) -> Work<'_, LiveStatus> {
        Box::pin(self.live())
    }
}

//! Protected pools: each lives on one reactor, its home, and is used from all.

mod devices;
mod elsewhere;
mod form;
mod gone;
mod keeper;
mod kind;
mod known;
mod leaf;
mod live;
mod open;
mod record;
mod reserved;
mod scrub;
mod seen;
mod used;

pub(crate) use leaf::{KIND, Kind};

use super::devices::{Holds, Owner, closed};
use super::local::{Local, on};
use super::node::Node;
use super::remote::Again;
use form::{Wrapped, Wrapping};
use leaf::Doors;
pub(super) use open::Lacking;
use open::failed;
pub(super) use open::random;
pub(super) use reserved::{Reservations, State as ReservationState};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use used::Used;
use weir_control::dataplane::LastState;
use weir_control::live::SnapshotLive;
use weir_control::model::{Device, DeviceFound, Layout, Pool, PoolId, Volume};
use weir_control::{Code, Error, Result};
use weir_layers::remote::Home;
use weir_mem::BufPool;
use weir_reactor::{Handle, LocalFuture, WaitChannel};
use weir_remote::Returns;
use weir_store::{DatasetInfo, StoreError};

/// Pools that were opened.
static OPENINGS: AtomicU64 = AtomicU64::new(0);

/// Where the protected pools are, and which volumes are theirs.
#[derive(Default)]
pub(crate) struct Stores {
    pools: BTreeMap<String, Placed>,
    /// Open volumes by name and place: pool, and name on the devices.
    volumes: BTreeMap<(String, u32), (String, String)>,
    /// The reactors of pools that were opened in this life, or were to be: what could not be ended of one that failed is known
    /// there.
    homes: BTreeMap<String, usize>,
}

#[derive(Clone)]
struct Placed {
    home: Handle,
    reactor: usize,
}

/// A pool that is open on the present reactor.
pub(crate) struct OpenPool {
    pool: weir_store::Pool,
    /// Devices of the configuration that are not in use, and why not.
    unused: RefCell<Vec<(String, String)>>,
    /// Volumes that are open, by name on the devices, with the volume's name.
    homes: RefCell<BTreeMap<String, (Home, String)>>,
    /// The same volumes in their forms.
    forms: RefCell<BTreeMap<String, Rc<Wrapped>>>,
    scrub: RefCell<Option<Rc<scrub::Scrub>>>,
    /// Which opening of a pool in this life of the process it is; a later one has a higher number.
    opening: u64,
    /// What was counted of devices, by identity, when a scrub found nothing on them.
    clean: Rc<RefCell<BTreeMap<u64, scrub::Counted>>>,
    /// Makes periodic snapshots, once a volume has a rule for them.
    kept: RefCell<Option<keeper::Kept>>,
    reserved: reserved::Reserved,
    /// One writes at a time of what is carried of the configuration.
    recording: WaitChannel,
    /// Where it was that had secrets, and has not been overwritten yet.
    before: RefCell<Vec<weir_store::Place>>,
    /// What its devices are held by, in the name of this pool.
    holds: (Arc<Holds>, Owner),
    used: RefCell<Used>,
    /// Looks after devices that are volumes of other nodes.
    returns: Rc<Returns>,
    /// Buffers of the reactor, for layers at home.
    buffers: BufPool,
}

impl OpenPool {
    fn new(
        pool: weir_store::Pool,
        unused: Vec<(String, String)>,
        holds: (Arc<Holds>, Owner),
        used: Used,
        local: &Rc<Local>,
    ) -> OpenPool {
        let again = Again { local: Rc::downgrade(local), owner: holds.1.clone() };
        let returns = Returns::start(pool.clone(), Rc::new(again));
        OpenPool {
            pool,
            unused: RefCell::new(unused),
            homes: RefCell::default(),
            forms: RefCell::default(),
            scrub: RefCell::default(),
            opening: OPENINGS.fetch_add(1, Ordering::Relaxed) + 1,
            clean: Rc::default(),
            kept: RefCell::default(),
            reserved: reserved::Reserved::default(),
            recording: WaitChannel::new(1),
            before: RefCell::default(),
            holds,
            used: RefCell::new(used),
            returns,
            buffers: local.pool.clone(),
        }
    }

    /// Unlocks devices that have left the pool. False: one has a disk on it yet, and is unlocked later.
    fn let_go(&self) -> bool {
        let devices = self.pool.status().devices.into_iter();
        let here = devices.filter_map(|d| d.name).collect();
        let (holds, owner) = &self.holds;
        self.used.borrow_mut().let_go(&here, (holds, owner))
    }

    fn find(&self, dataset: &str) -> Option<DatasetInfo> {
        self.pool.datasets().into_iter().find(|d| d.name == dataset && !d.deleting)
    }

    fn id(&self, dataset: &str) -> Result<u32> {
        self.find(dataset).map(|d| d.id).ok_or_else(|| {
            Error::new(Code::SnapshotNotFound, format!("`{dataset}` is not on the devices"))
                .hint("`weir snapshot list` shows what there is")
        })
    }
}

/// The pools of a reactor.
pub(crate) type OpenPools = RefCell<BTreeMap<String, Rc<OpenPool>>>;

fn is_protected(pool: &Pool) -> bool {
    pool.protection.is_some()
}

/// The volume's name on the devices, and that of the snapshot that it was made of.
fn names(volume: &Volume) -> Result<(String, Option<String>)> {
    match &volume.layout {
        Layout::Store { dataset, origin, .. } => Ok((dataset.clone(), origin.clone())),
        _ => Err(Error::new(Code::Internal, format!("volume {} is a plain one", volume.name))),
    }
}

/// Refuses a volume of which the devices hold less than it has had. Only what it was to have more is added.
fn check_had(name: &str, len: u64, had: u64) -> Result<()> {
    if len >= had {
        return Ok(());
    }
    Err(Error::new(
        Code::PoolDamaged,
        format!("volume {name} has less on the devices than the configuration says"),
    )
    .because(format!("{len} bytes are stored, and it had {had}"))
    .hint("these may be older devices, or the configuration is an older one; nothing is added by itself. `weir pool release`, then `weir pool import` takes the volume as it is"))
}

impl Node {
    fn placed(&self, pool: &str) -> Result<Placed> {
        let stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        stores.pools.get(pool).cloned().ok_or_else(|| {
            Error::new(Code::NotReady, format!("pool {pool} is not open"))
                .hint("`weir status` says why")
        })
    }

    /// Runs `f` with an open pool on its reactor.
    pub(super) async fn with_pool<R: Send + 'static>(
        &self,
        pool: &str,
        f: impl FnOnce(Rc<OpenPool>) -> LocalFuture<'static, Result<R>> + Send + 'static,
    ) -> Result<R> {
        let placed = self.placed(pool)?;
        let name = pool.to_owned();
        on(&placed.home, move |local: Rc<Local>| {
            Box::pin(async move {
                let open = local.stores.borrow().get(&name).cloned();
                match open {
                    Some(p) => f(p).await,
                    None => Err(Error::new(Code::NotReady, format!("pool {name} is not open"))),
                }
            })
        })
        .await
    }

    /// Opens a protected pool on a reactor whose turn it is.
    pub(super) async fn open_store(
        &self,
        pool: &Pool,
        lacking: Lacking,
    ) -> Result<Vec<DeviceFound>> {
        if self.placed(&pool.name).is_ok() {
            self.is_that(pool).await?;
            self.size_maps(pool).await?;
            let named = pool.devices.iter().filter_map(|d| d.path.clone()).collect::<Vec<_>>();
            self.with_pool(&pool.name, move |p: Rc<OpenPool>| {
                p.returns.retain(&named);
                Box::pin(async { Ok(()) })
            })
            .await?;
            // One that has just come, or was found under another name, is known from here on.
            let owner = Owner::Pool(pool.name.clone());
            let kept = |path: &str| self.holds.kept(&owner, Path::new(path));
            let name = |d: &Device| kept(d.path.as_deref()?)?.lasting_name().map(str::to_owned);
            if pool.protection.as_ref().is_some_and(|p| p.formatted) {
                self.holds.stands(&owner);
            }
            let as_known = |d: &Device| DeviceFound {
                size: d.size,
                labelled: d.labelled,
                identity: name(d).or_else(|| d.identity.clone()),
                gained: 0,
            };
            return Ok(pool.devices.iter().map(as_known).collect());
        }
        let owner = Owner::Pool(pool.name.clone());
        closed(async {
            let opened = self.try_open_store(pool, lacking).await;
            if opened.is_err() && pool.protection.as_ref().is_some_and(|p| p.formatted) {
                // Tools may look at them meanwhile.
                self.holds.release_all(&owner);
            }
            opened
        })
        .await
    }

    async fn try_open_store(&self, pool: &Pool, lacking: Lacking) -> Result<Vec<DeviceFound>> {
        let held = self.hold_all(pool).await;
        let lacking = match lacking {
            Lacking::NothingNewer(w) if !gone::are_gone(&self.holds, &held, w.silent).await => {
                Lacking::Refused
            }
            other => other,
        };
        let handles = self.handles();
        let turn = {
            // Others are being opened beside.
            let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
            let next = stores.homes.len();
            *stores.homes.entry(pool.name.clone()).or_insert(next)
        };
        let reactor = turn % handles.len().max(1);
        let Some(home) = handles.get(reactor).cloned() else {
            return Err(Error::new(Code::Internal, "there is no reactor"));
        };
        let wanted = pool.clone();
        let sizes: Vec<DeviceFound> = on(&home, move |local: Rc<Local>| {
            Box::pin(async move {
                let (opened, sizes) = open::open(&local, &wanted, held, lacking).await?;
                local.stores.borrow_mut().insert(wanted.name, Rc::new(opened));
                Ok(sizes)
            })
        })
        .await?;
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        stores.pools.insert(pool.name.clone(), Placed { home, reactor });
        Ok(sizes)
    }

    /// Refuses another pool than the open one of that name.
    async fn is_that(&self, pool: &Pool) -> Result<()> {
        let (name, id) = (pool.name.clone(), pool.protection.as_ref().map(|p| p.id.0));
        self.with_pool(&pool.name, move |opened: Rc<OpenPool>| {
            Box::pin(async move {
                match id == Some(opened.pool.status().pool) {
                    true => Ok(()),
                    false => {
                        Err(Error::new(Code::DeviceInUse, format!("another pool `{name}` is open"))
                            .because("it has not been closed yet, or could not be")
                            .hint("`weir status` says why; or use another name"))
                    }
                }
            })
        })
        .await
    }

    /// Gives an open pool the memory for maps that its configuration says.
    pub(super) async fn size_maps(&self, pool: &Pool) -> Result<()> {
        let memory = pool.protection.as_ref().map(|p| p.memory).unwrap_or_default();
        self.with_pool(&pool.name, move |opened: Rc<OpenPool>| {
            Box::pin(async move {
                let total = opened.pool.status().total;
                opened.pool.set_cache(open::map_memory(memory, total));
                Ok(())
            })
        })
        .await
    }

    /// Closes a protected pool after a last checkpoint. Does nothing when it is not open.
    pub(super) async fn close_store(&self, pool: &str) -> Result<Option<LastState>> {
        let placed = self.stores.lock().unwrap_or_else(PoisonError::into_inner).pools.remove(pool);
        let Some(placed) = placed else { return Ok(None) };
        let name = pool.to_owned();
        on(&placed.home, move |local: Rc<Local>| {
            Box::pin(async move {
                let open = local.stores.borrow_mut().remove(&name);
                let Some(open) = open else { return Ok(None) };
                open.returns.stop();
                open.stop_scrub();
                open.stop_keeper().await;
                drop(open.homes.take());
                for form in open.forms.take().into_values() {
                    form.settle().await;
                }
                let closed = open.pool.close().await;
                closed.map_err(|e| failed(format!("pool {name} was not closed in order"), &e))?;
                let pool = PoolId(open.pool.status().pool);
                Ok(open.pool.newest().map(|newest| LastState { pool, newest }))
            })
        })
        .await
    }

    /// Makes a volume on the devices, or finds that it is there.
    pub(super) async fn make_in_store(&self, volume: &Volume, pool: &Pool) -> Result<()> {
        let (dataset, origin) = names(volume)?;
        let (name, block) = (volume.name.clone(), volume.block_size);
        let size = volume.form().stored_len(volume.size);
        self.with_pool(&pool.name, move |p| {
            Box::pin(async move {
                let wrong = |e: StoreError| failed(format!("volume {name} cannot be made"), &e);
                if let Some(d) = p.find(&dataset) {
                    if (d.snapshot, d.block_size) == (false, block) {
                        return Ok(());
                    }
                    return Err(Error::new(
                        Code::PoolDamaged,
                        format!("volume {name} is there as something else"),
                    ));
                }
                match origin {
                    None => p.pool.create_volume(&dataset, size, block).await.map_err(wrong)?,
                    Some(o) => {
                        let snapshot = p.id(&o)?;
                        p.pool.clone_snapshot(snapshot, &dataset).await.map_err(wrong)?
                    }
                };
                Ok(())
            })
        })
        .await
    }

    /// Opens a volume at home, so that graphs on all reactors can have it as their leaf.
    pub(super) async fn open_in_store(&self, volume: &Volume, pool: &Pool) -> Result<()> {
        let (dataset, _) = names(volume)?;
        let (name, doors) = (volume.name.clone(), Doors::of(&self.shared));
        let wrapping = Wrapping::of(volume, self.hooks.get()).await?;
        let (seen, size) = (volume.size, wrapping.stored_len(volume.size));
        let had = wrapping.stored_len(volume.grown_from.unwrap_or(volume.size));
        let being_cut = volume.cut.is_some();
        let pool_name = pool.name.clone();
        let wanted = dataset.clone();
        self.with_pool(&pool.name, move |p| {
            Box::pin(async move {
                let wrong =
                    |e: StoreError| failed(format!("volume {name} cannot be opened"), &e);
                let Some(d) = p.find(&wanted) else {
                    return Err(Error::new(
                        Code::PoolDamaged,
                        format!("the data of volume {name} is missing"),
                    )
                    .because(format!("pool {pool_name} has no dataset `{wanted}` on its devices"))
                    .hint("these may be older devices, or another pool's; an empty volume is not made in its place"));
                };
                if d.len > size && !being_cut {
                    return Err(Error::new(
                        Code::PoolDamaged,
                        format!("volume {name} has more on the devices than the configuration says"),
                    )
                    .because(format!("{} bytes are stored, not {size}", d.len))
                    .hint("`weir volume resize` makes it smaller, if that is wanted"));
                }
                check_had(&name, d.len, had)?;
                let stored = p.pool.volume(d.id).map_err(wrong)?;
                let form = wrapping.wrap(stored, &p.buffers)?;
                if d.len < size {
                    // Growth that a crash has cut off.
                    form.resize(&p.pool, d.id, size, seen).await.map_err(wrong)?;
                }
                let home = Home::open(form.volume.clone());
                p.forms.borrow_mut().insert(wanted.clone(), Rc::new(form));
                doors.open(&pool_name, &wanted, home.entrance());
                p.homes.borrow_mut().insert(wanted, (home, name));
                Ok(())
            })
        })
        .await?;
        {
            let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
            let key = (volume.name.clone(), volume.place);
            stores.volumes.insert(key, (pool.name.clone(), dataset));
        }
        self.carry_reservations(volume, pool).await
    }

    /// The reactor of an open pool.
    pub(super) fn store_home(&self, pool: &str) -> Result<Handle> {
        Ok(self.placed(pool)?.home)
    }

    /// Closes a volume at home, if it is one of a protected pool: in one of its places, or in all.
    pub(super) async fn close_in_store(&self, volume: &str, place: Option<u32>) -> Result<()> {
        let known: Vec<_> = {
            let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
            let is_it =
                |(name, p): &&(String, u32)| name == volume && place.is_none_or(|w| w == *p);
            let keys: Vec<_> = stores.volumes.keys().filter(is_it).cloned().collect();
            keys.iter().filter_map(|k| stores.volumes.remove(k)).collect()
        };
        for (pool, dataset) in known {
            self.close_dataset(pool, dataset).await?;
        }
        Ok(())
    }

    async fn close_dataset(&self, pool: String, dataset: String) -> Result<()> {
        Doors::of(&self.shared).close(&pool, &dataset);
        if self.placed(&pool).is_err() {
            return Ok(());
        }
        self.with_pool(&pool, move |p| {
            Box::pin(async move {
                drop(p.homes.borrow_mut().remove(&dataset));
                let form = p.forms.borrow_mut().remove(&dataset);
                if let Some(form) = form {
                    form.settle().await;
                }
                Ok(())
            })
        })
        .await
    }

    /// Bytes that hosts can see of what the devices of an open pool hold of a volume.
    pub(super) async fn size_in_store(&self, volume: &Volume, pool: &Pool) -> Result<Option<u64>> {
        let (dataset, _) = names(volume)?;
        let form = volume.form().clone();
        self.with_pool(&pool.name, move |p| {
            Box::pin(async move { Ok(p.find(&dataset).map(|d| form.seen_len(d.len))) })
        })
        .await
    }

    /// Has a volume of a protected pool grow to its size. It is never made smaller here.
    pub(super) async fn grow_in_store(&self, volume: &Volume, pool: &Pool) -> Result<()> {
        self.resize_in_store(volume, pool, |has, wanted| has < wanted).await
    }

    /// Throws away what a volume of a protected pool has beyond its size.
    pub(super) async fn cut_in_store(&self, volume: &Volume, pool: &Pool) -> Result<()> {
        self.resize_in_store(volume, pool, |has, wanted| has > wanted).await
    }

    async fn resize_in_store(
        &self,
        volume: &Volume,
        pool: &Pool,
        is_due: fn(u64, u64) -> bool,
    ) -> Result<()> {
        let (dataset, _) = names(volume)?;
        let (name, seen) = (volume.name.clone(), volume.size);
        let (size, plain) = (volume.form().stored_len(seen), volume.form().is_plain());
        let had = volume.form().stored_len(volume.grown_from.unwrap_or(seen));
        self.with_pool(&pool.name, move |p| {
            Box::pin(async move {
                let id = p.id(&dataset)?;
                let len = p.find(&dataset).map(|d| d.len);
                len.map_or(Ok(()), |len| check_had(&name, len, had))?;
                if len.is_some_and(|len| is_due(len, size)) {
                    let form = p.forms.borrow().get(&dataset).cloned();
                    let done = match form {
                        Some(f) => f.resize(&p.pool, id, size, seen).await,
                        None if plain => p.pool.resize(id, size).await,
                        None => Err(StoreError::Request("it is not open".into())),
                    };
                    done.map_err(|e| failed(format!("volume {name} cannot be resized"), &e))?;
                }
                if let Some((home, _)) = p.homes.borrow().get(&dataset) {
                    home.refresh();
                }
                Ok(())
            })
        })
        .await
    }

    /// Deletes a volume on the devices, if it is there; or a snapshot.
    pub(super) async fn delete_in_store(&self, dataset: String, pool: &Pool) -> Result<()> {
        self.with_pool(&pool.name, move |p| {
            Box::pin(async move {
                if let Err(e) = p.unreserve(&dataset).await {
                    // What comes back brings a newer state along.
                    tracing::warn!("reservations of `{dataset}` stay on the devices: {e}");
                }
                let Some(d) = p.find(&dataset) else { return Ok(()) };
                let gone = p.pool.delete(d.id).await;
                gone.map_err(|e| match e {
                    StoreError::Request(why) => {
                        Error::new(Code::SnapshotInUse, format!("`{dataset}` cannot be deleted"))
                            .because(why)
                            .hint("delete what was made of it first")
                    }
                    e => failed(format!("`{dataset}` cannot be deleted"), &e),
                })
            })
        })
        .await
    }

    pub(super) async fn list_snapshots(&self, pool: &Pool) -> Result<Vec<SnapshotLive>> {
        self.with_pool(&pool.name, |p| {
            Box::pin(async move {
                let all = p.pool.datasets();
                let clones = |id: u32| {
                    let of = |d: &&DatasetInfo| !d.snapshot && d.parent == id && !d.deleting;
                    all.iter().filter(of).map(|d| d.name.clone()).collect()
                };
                let info = |d: &DatasetInfo| SnapshotLive {
                    dataset: d.name.clone(),
                    size: d.len,
                    used: d.mapped,
                    older: d.dead,
                    created: d.created,
                    clones: clones(d.id),
                    ..SnapshotLive::default()
                };
                Ok(all.iter().filter(|d| d.snapshot && !d.deleting).map(info).collect())
            })
        })
        .await
    }

    pub(super) async fn snapshot_in_store(
        &self,
        pool: &Pool,
        wanted: Vec<(String, String)>,
    ) -> Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        self.with_pool(&pool.name, move |p| {
            Box::pin(async move {
                let mut all = Vec::new();
                for (volume, name) in &wanted {
                    all.push((p.id(volume)?, format!("{volume}@{name}")));
                }
                let named: Vec<_> = all.iter().map(|(id, n)| (*id, n.as_str())).collect();
                let made = p.pool.snapshot(&named, now).await;
                made.map(drop).map_err(|e| failed("no snapshot was made".into(), &e))
            })
        })
        .await
    }

    pub(super) async fn revert_in_store(
        &self,
        pool: &Pool,
        volume: &Volume,
        snapshot: &str,
    ) -> Result<()> {
        let (dataset, _) = names(volume)?;
        let (name, snapshot) = (volume.name.clone(), snapshot.to_owned());
        self.with_pool(&pool.name, move |p| {
            Box::pin(async move {
                let (v, s) = (p.id(&dataset)?, p.id(&snapshot)?);
                let form = p.forms.borrow().get(&dataset).cloned();
                let still = match form.as_ref() {
                    Some(f) => Some(f.hold().await),
                    None => None,
                };
                let done = p.pool.revert(v, s).await;
                drop(still);
                done.map_err(|e| match e {
                    // Its own words name datasets by numbers.
                    StoreError::Request(_) => {
                        Error::new(Code::SnapshotInUse, format!("volume {name} cannot be reverted"))
                            .because("it has newer snapshots, or one of that instant that is still being given back")
                            .hint(format!(
                                "`weir snapshot list {name}`: delete the newer ones and wait for that, or make a clone of this one"
                            ))
                    }
                    e => failed(format!("volume {name} cannot be reverted"), &e),
                })
            })
        })
        .await
    }

    /// Whether the pool is a protected one that this node must treat so.
    pub(super) fn is_store(pool: &Pool) -> bool {
        is_protected(pool)
    }
}

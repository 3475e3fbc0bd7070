//! One change at a time: checked by the model, made durable, put into effect, undone when that fails.
//!
//! A change is durable before the data plane hears of it, so a crash never leaves data that nothing remembers; and when
//! the data plane refuses, the store is put back, so a failed command leaves nothing behind. Deletion is the exception:
//! once begun it is never undone, a restart or a repeated command carries it on.

mod apply;
mod asked;
mod bring_up;
mod carried;
mod clearing;
mod cut;
mod damage;
mod declared;
mod effect;
mod health;
mod import;
mod keys;
mod known;
mod layers;
mod mappings;
mod migrate;
mod newer;
mod opening;
mod paces;
mod policies;
mod ports;
mod protect;
mod refused;
mod renamed;
mod sampling;
mod start;
mod stopped;
mod take_down;
mod unserved;

pub use apply::{Applied, ApplyReport, NotApplied};
pub use policies::PoolRules;
pub use sampling::sample_every;

use crate::dataplane::{DataPlane, Hooks, KnownImage, KnownPool};
use crate::declare::{ApplySpec, Desired};
use crate::error::{Code, Error, Result};
use crate::events::{EventLog, spawn};
use crate::keys::KeyRing;
use crate::live::{Fault, LiveStatus, Paces, Status};
use crate::model::{AccessMap, Command, DeviceKind, Layout, Model, Pool};
use crate::planted::{Bug, has};
use crate::platform::{
    self, AbortHandle, Instant, JoinHandle, JoinSet, sleep, spawn_blocking, timeout, timeout_at,
    watch,
};
use crate::stopping::Stopping;
use crate::store::{MetaStore, ReservationStore};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

/// What faults of the store are told of.
const STORE: &str = "configuration";

/// Something that was tried in vain, when that ended, and how long it took.
#[derive(Debug, Clone, Copy)]
struct Tried {
    ended: Instant,
    took: Duration,
}

impl Tried {
    fn since(begun: Instant) -> Tried {
        Tried { ended: Instant::now(), took: begun.elapsed() }
    }

    /// It has rested for so many times as long as it took.
    fn has_rested(&self, times: u32) -> bool {
        self.ended.elapsed() >= self.took * times
    }
}

/// What runs in the data plane.
#[derive(Debug, Default)]
struct Up {
    pools: BTreeSet<String>,
    volumes: BTreeSet<String>,
    /// Volumes that were to be closed and could not be: they may be open, in whole or in part.
    half_closed: BTreeMap<String, Tried>,
    /// The last of these that was tried in vain, whichever it was.
    last_close: Option<Tried>,
    /// Pools that are not (or no more) in the configuration, and are open as long as one of these volumes may be.
    to_stop: BTreeMap<String, BTreeSet<String>>,
    /// Pools whose creation was refused, and that could not be taken away yet; when that is tried again.
    refused: BTreeMap<String, (Pool, Instant)>,
    /// The mappings that the data plane was last given.
    mapped: Option<AccessMap>,
    targets: BTreeSet<String>,
    /// Target ports that could not be started or stopped: they may listen.
    strays: BTreeSet<String>,
    /// Target ports that the configuration file of the start has elsewhere. They listen nowhere before hosts and mappings are as
    /// that declares them, as far as they can be.
    held: BTreeSet<String>,
    faults: BTreeMap<String, Error>,
    /// Open volumes and pools, as faults name them, that are not as the configuration has them: the data plane could not be put
    /// back. They are not tried again before.
    behind: BTreeMap<String, Instant>,
    /// Volumes that are open in a closed pool with less than they are to have, which no growth explains.
    short: BTreeSet<String>,
    /// Rules for snapshots that the pools follow.
    rules: BTreeMap<String, PoolRules>,
    records: carried::Records,
    /// Everything has been taken down, or is about to be, for good.
    down: bool,
}

impl Up {
    /// Whether hosts see an open volume otherwise than it is to be.
    fn differs(&self, name: &str) -> bool {
        self.short.contains(name) || self.behind.contains_key(&format!("volume/{name}"))
    }
}

/// The control plane of one node.
pub struct Controller {
    data_dir: PathBuf,
    store: Arc<MetaStore>,
    plane: Arc<dyn DataPlane>,
    events: EventLog,
    /// What is in force. Readers take the `Arc` and go.
    model: RwLock<Arc<Model>>,
    /// Held through every change, and by nothing else.
    changes: tokio::sync::Mutex<()>,
    up: Mutex<Up>,
    /// The last two readings of the live counters.
    samples: Mutex<[Option<(Instant, LiveStatus)>; 2]>,
    /// How fast what takes long goes on.
    paces: Mutex<Paces>,
    /// What is not well with pools, as far as events have told it.
    told: Mutex<health::Told>,
    /// What was found damaged on devices.
    damage: Mutex<damage::Book>,
    /// Keys of encrypted volumes.
    keys: Arc<KeyRing>,
    /// Volumes that move.
    moves: Mutex<migrate::Moves>,
    /// What hosts know by numbers that are theirs no more.
    known: known::Known,
    /// Volumes that are made smaller.
    cuts: Mutex<cut::Cuts>,
    /// One declaration is carried out at a time. Each of its objects has a turn of its own: what is tried again meanwhile of the
    /// one at the start waits for all of them.
    applies: tokio::sync::Mutex<()>,
    /// What was declared at the start and is not so yet.
    declared_open: Mutex<Desired>,
    /// A round of it is under way.
    declaring: AtomicBool,
    /// All that is declared: by the file of the start, or by what was applied since.
    declared_now: Mutex<Desired>,
    /// All that was declared at the start.
    declared_file: Mutex<Desired>,
    /// What of that hosts are to have before ports are let go of, and have never had.
    reasons: Mutex<Desired>,
    /// A change that failed and could not be taken back, and the configuration before it.
    owed: Mutex<Option<(Command, Arc<Model>)>>,
    /// Rounds in which everything was tried again that is a fault, or declared and not so.
    retries: AtomicU64,
    /// A cut has ended.
    cut_over: tokio::sync::Notify,
    clearings: clearing::Clearings,
    opening: opening::Openings,
    /// How pools were closed that have not been opened since.
    stopped: stopped::Stopped,
    /// How often it looks at what changes by itself.
    every: Duration,
    stopping: Stopping,
    start: start::Start,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller").field("data_dir", &self.data_dir).finish_non_exhaustive()
    }
}

impl Controller {
    /// The configuration in force.
    pub fn model(&self) -> Arc<Model> {
        self.model.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The event log.
    pub fn events(&self) -> &EventLog {
        &self.events
    }

    /// The data directory.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Carries out a command and gives the configuration after it. The change goes on to its end even if the returned
    /// future is dropped, as it is when a client hangs up.
    pub async fn execute(self: &Arc<Self>, command: Command) -> Result<Arc<Model>> {
        let me = self.clone();
        finish(spawn(async move {
            me.warm_for(&command).await?;
            let patched = match &command {
                Command::PatchVolume { name, .. } => Some(name.clone()),
                _ => None,
            };
            let deleted = match &command {
                Command::DeleteVolume { name } => Some(name.clone()),
                _ => None,
            };
            me.ask_for(&command).await?;
            let one = me.turn().await?;
            let done = me.change(command).await;
            drop(one);
            let done = match done {
                Ok(done) => done,
                Err(e) => {
                    // What it had gained for a moment goes before somebody says something else of it.
                    let is_cut =
                        |n: &String| me.model().volumes.get(n).is_some_and(|v| v.cut.is_some());
                    if let Some(name) = patched.filter(is_cut) {
                        me.cut_soon(&name).await;
                    }
                    return Err(e);
                }
            };
            if let Some(name) = deleted.filter(|n| done.volumes.contains_key(n)) {
                let until = Instant::now() + clearing::WAIT;
                return me.deleted_soon(&name, until).await;
            }
            match patched.filter(|n| done.volumes.get(n).is_some_and(|v| v.cut.is_some())) {
                Some(name) => {
                    me.cut_soon(&name).await;
                    Ok(me.model())
                }
                None => Ok(done),
            }
        }))
        .await
    }

    /// The turn of a command, after what is owed has been taken back: what is looked at before would not be what is so.
    async fn settled_turn(&self) -> Result<tokio::sync::MutexGuard<'_, ()>> {
        let one = self.turn().await?;
        if !has(Bug::TurnThoughOwed) {
            self.settle().await?;
        }
        Ok(one)
    }

    /// The turn of what only the devices will know of. It waits for what was refused, and may be durable all the same: the next
    /// start must not find that beside it.
    ///
    /// # Errors
    /// That cannot be taken back yet.
    async fn sure_turn(&self) -> Result<tokio::sync::MutexGuard<'_, ()>> {
        let one = self.turn().await?;
        if has(Bug::ActsInDoubt) || has(Bug::TurnThoughOwed) {
            return Ok(one);
        }
        let store = self.store.clone();
        if let Some(e) = blocking(move || Ok(store.try_again())).await? {
            return Err(e);
        }
        self.settle().await?;
        Ok(one)
    }

    fn check_up(&self) -> Result<()> {
        match self.is_down() {
            true => Err(take_down::being_stopped()),
            false => Ok(()),
        }
    }

    /// Checks, makes durable, puts into effect, and tells of a failure. The caller holds `changes`.
    async fn change(&self, command: Command) -> Result<Arc<Model>> {
        self.try_change(command, true).await
    }

    /// The same. `tells`: whether a failure is an event of its own, and not known otherwise.
    async fn try_change(&self, command: Command, tells: bool) -> Result<Arc<Model>> {
        self.check_up()?;
        self.settle().await?;
        let old = self.model();
        let command = self.keep_luns(command, &old).await?;
        // Before what the older configuration has against it, which may ask for something that is refused as well.
        self.check_not_closed(&command, &old)?;
        let mut new = Model::clone(&old);
        let dropped = self.drop_places(&command, &mut new)?;
        let mut changes = new.apply(command.clone(), entropy()?)?;
        changes.extend(dropped);
        self.check_ready(&command, &old)?;
        self.check_none_left(&old, &new)?;
        self.check_cleared(&old, &new)?;
        self.check_unused(&command, &old).await?;
        self.make_way(&old, &new, tells).await?;
        if changes.is_empty() && !matches!(command, Command::DeleteVolume { .. }) {
            self.let_go(&command, &old).await?;
            return Ok(old);
        }
        self.note_luns(&old, &new).await?;
        self.seal(&mut new).await?;
        self.admit(&command).await?;
        let wanted = match &command {
            Command::CreatePool(spec) => new.pools.get(&spec.name).cloned(),
            _ => None,
        };
        let new = match self.commit(&old, new).await {
            Ok(new) => new,
            Err(e) => {
                self.dismiss(&command, &old, wanted).await;
                return Err(e);
            }
        };
        let mut done = self.take_effect(&command, &old, &new).await;
        self.see_late(&command, &old, &new).await;
        if has(Bug::RulesThoughOwed) {
            self.put_rules().await;
        }
        self.put_records().await;
        if done.is_ok()
            && let Err(e) = self.check_carried(&command, &new)
        {
            self.undo(&command, &old).await?;
            self.put_records().await;
            done = Err(e);
        }
        // When it stands: a snapshot keeps what is to go.
        self.put_rules().await;
        match done {
            Ok(now) => {
                for c in &changes {
                    let object = format!("{}/{}", c.kind, c.name);
                    self.events.publish(&format!("{}.{}", c.kind, c.action), &object, &c.text);
                    let is_deleted = matches!(command, Command::DeleteVolume { .. });
                    if is_deleted && !has(Bug::DeletedComesBack) {
                        // It may be there for long yet.
                        self.fulfil(&object);
                    } else if !has(Bug::RetriedForEver) {
                        self.changed(&object, &command, &old, &now);
                    }
                }
                Ok(now)
            }
            Err(e) => {
                // A deletion goes on all the same: what was to be as declared is not to be there.
                let stands = matches!(command, Command::DeleteVolume { .. });
                for c in changes.iter().filter(|_| stands && !has(Bug::DeletedComesBack)) {
                    self.fulfil(&format!("{}/{}", c.kind, c.name));
                }
                if tells || has(Bug::ToldEachTime) {
                    let object = changes.first().map(|c| format!("{}/{}", c.kind, c.name));
                    self.events.publish("error", &object.unwrap_or_default(), &e.to_string());
                }
                Err(e)
            }
        }
    }

    /// Whether the next start may find what was refused: it is still to be taken back, or the store takes no changes since.
    pub fn owes(&self) -> bool {
        self.owed().is_some() || self.store.trouble().is_some()
    }

    fn owed(&self) -> MutexGuard<'_, Option<(Command, Arc<Model>)>> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `new` durable, then puts it in force. The caller holds `changes`.
    async fn commit(&self, old: &Arc<Model>, new: Model) -> Result<Arc<Model>> {
        if self.owed().is_some() {
            return Err(Error::new(Code::NotReady, "a change that failed is not taken back yet")
                .hint("`weir status` says what the configuration store lacks"));
        }
        self.make_durable(old, new).await
    }

    async fn make_durable(&self, old: &Arc<Model>, new: Model) -> Result<Arc<Model>> {
        let (store, before, new) = (self.store.clone(), old.clone(), Arc::new(new));
        let to = new.clone();
        if has(Bug::InForceBeforeDurable) {
            *self.model.write().unwrap_or_else(PoisonError::into_inner) = new.clone();
        }
        blocking(move || store.commit(&before, &to)).await?;
        *self.model.write().unwrap_or_else(PoisonError::into_inner) = new.clone();
        if !has(Bug::FaultsOfNothing) {
            let up = &mut *self.up();
            let is_left = |object: &str| {
                object.strip_prefix("pool/").is_some_and(|p| up.refused.contains_key(p))
            };
            up.faults.retain(|object, _| is_there(object, &new) || is_left(object));
        }
        self.forget_cleared(old, &new);
        self.tell_pools();
        Ok(new)
    }

    /// Tells the data plane which pools there are, and which volumes without one.
    fn tell_pools(&self) {
        let model = self.model();
        let known = model.pools.values().filter_map(|p| {
            let directories = (0..).zip(&p.devices).filter(|(_, d)| d.kind == DeviceKind::Dir);
            Some(KnownPool {
                name: p.name.clone(),
                id: p.identity()?,
                devices: p.devices.len(),
                directories: directories
                    .filter_map(|(n, d)| Some((n, d.path.as_ref()?.into())))
                    .collect(),
            })
        });
        let images = model.places().filter_map(|(v, place, l)| match l {
            Layout::Image { path, identity, .. } => Some(KnownImage {
                volume: v.name.clone(),
                place,
                path: path.into(),
                identity: identity.clone(),
            }),
            _ => None,
        });
        self.plane.configured(known.collect(), images.collect());
    }

    /// Has a store that takes no changes opened again, and tells of it. The caller holds `changes`.
    async fn look_at_store(&self) {
        let store = self.store.clone();
        let mut trouble = blocking(move || Ok(store.try_again())).await.unwrap_or_else(Some);
        if trouble.is_none() {
            trouble = self.settle().await.err();
        }
        let known = self.up().faults.get(STORE).cloned();
        match (known, trouble) {
            (known, Some(e)) if known.as_ref() != Some(&e) => {
                tracing::error!("{e}");
                self.events.publish("fault.began", STORE, &e.to_string());
                self.up().faults.insert(STORE.to_string(), e);
            }
            (Some(_), None) => {
                self.up().faults.remove(STORE);
                let text = "the configuration store takes changes again";
                self.events.publish("fault.ended", STORE, text);
            }
            _ => {}
        }
    }

    fn up(&self) -> MutexGuard<'_, Up> {
        self.up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the node is and does.
    pub async fn status(&self) -> Result<Status> {
        let live = self.live().await?;
        let model = self.model();
        let fault = |(object, e): (&String, &Error)| Fault {
            object: object.clone(),
            code: e.code.as_str().to_string(),
            text: match self.waiting_for(&model, object) {
                0 => e.to_string(),
                1 => format!("{e}; a volume waits for it"),
                n => format!("{e}; {n} volumes wait for it"),
            },
            hint: e.hint.clone(),
        };
        let mut all = self.up().faults.clone();
        all.extend(self.store.trouble().map(|e| (STORE.to_string(), e)));
        let mut faults: Vec<Fault> = all.iter().map(fault).collect();
        faults.extend(self.being_served(&model));
        faults.extend(self.pool_faults(&live));
        faults.extend(self.own_faults(&model, &live));
        faults.extend(health::reactor_faults(&live.reactors));
        Ok(Status {
            version: env!("CARGO_PKG_VERSION").to_string(),
            pid: std::process::id(),
            uptime_seconds: self.start.seconds(),
            starting: self.starting(&model),
            data_dir: self.data_dir.display().to_string(),
            revision: model.revision,
            pools: model.pools.len(),
            volumes: model.volumes.len(),
            hosts: model.hosts.len(),
            maps: model.maps.len(),
            faults,
            retries: self.retries.load(Ordering::Acquire),
            live,
        })
    }

    /// The live counters, with rates over the last one to two seconds.
    async fn live(&self) -> Result<LiveStatus> {
        let mut now = self.plane.status().await?;
        self.count_damage(&mut now.pools);
        self.pace_pools(&mut now.pools);
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, earlier)) = samples.iter().flatten().next() {
            now.rate(earlier, when.elapsed().as_secs_f64());
        }
        Ok(now)
    }
}

/// Whether what a fault is told of is in the configuration, as far as it says.
fn is_there(object: &str, model: &Model) -> bool {
    match object.split_once('/') {
        Some(("volume" | "cut" | "size" | "migration", name)) => model.volumes.contains_key(name),
        Some(("pool" | "record", name)) => model.pools.contains_key(name),
        Some(("target", name)) => model.targets.contains_key(name),
        _ => true,
    }
}

/// Waits for a spawned change.
async fn finish<T>(task: JoinHandle<Result<T>>) -> Result<T> {
    match task.await {
        Ok(result) => result,
        Err(e) => Err(Error::new(Code::Internal, "the change broke off").because(e)),
    }
}

/// Runs `f` where it may block.
async fn blocking<T: Send + 'static>(f: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    finish(spawn_blocking(f)).await
}

/// 128 bits from the operating system's random source, for new identities.
fn entropy() -> Result<u128> {
    let mut bytes = [0; 16];
    platform::entropy(&mut bytes)
        .map_err(|e| Error::new(Code::IoError, "no random bits for a new identity").because(e))?;
    Ok(u128::from_ne_bytes(bytes))
}

//! A data plane that does nothing but remember, for tests of everything above it.

#[path = "fake_devices.rs"]
mod devices;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use weir_control::controller::PoolRules;
use weir_control::dataplane::{
    DataPlane, Decision, Hooks, ImageWish, Inside, LastState, LayerTrial, Place, Without, Work,
};
use weir_control::live::{
    CensusLive, IoStats, Latency, LiveStatus, MigrationProgress, NexusLive, PortLive, ReactorLive,
    SnapshotLive, VolumeLive,
};
use weir_control::model::{
    AccessMap, Carried, Device, DeviceAction, DeviceFound, DeviceKind, DeviceSpec, HostAccess,
    ImageFound, Layout, Migration, Overwrite, Pool, PoolFound, PoolId, RecordPart, TargetPort,
    Told, Volume,
};
use weir_control::{Code, Error};

/// What the fake remembers, and where it is told to fail.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Pools tell that they have no snapshots; else they do not tell.
    pub(crate) tells_snapshots: bool,
    /// Snapshots that they have.
    pub(crate) snapshots: Vec<SnapshotLive>,
    /// Calls in order, e.g. `open_volume v1`.
    pub(crate) calls: Vec<String>,
    /// Devices of running pools.
    pub(crate) pools: BTreeMap<String, usize>,
    /// Open volumes.
    pub(crate) volumes: BTreeMap<String, Volume>,
    /// Volumes that have data.
    pub(crate) data: BTreeSet<String>,
    /// Running target ports.
    pub(crate) targets: BTreeMap<String, TargetPort>,
    /// The mappings in force.
    pub(crate) access: AccessMap,
    /// Calls that fail, written as in `calls`.
    pub(crate) broken: BTreeSet<String>,
    /// Sizes that block devices have.
    pub(crate) block_sizes: BTreeMap<String, u64>,
    /// What may be lost on the devices of pools.
    pub(crate) may_be_lost: BTreeMap<String, Overwrite>,
    /// Devices that cannot be had.
    pub(crate) taken: BTreeSet<String>,
    /// What the controller attached.
    pub(crate) hooks: Option<Hooks>,
    /// Volumes whose next update takes half a second and fails then, as when a host's command does not end.
    pub(crate) stalled: BTreeSet<String>,
    /// What is cut off takes three seconds to go.
    pub(crate) slow_cuts: bool,
    /// Volumes that cannot be opened everywhere, nor be closed then, as when a host that sees it already has a command in a device
    /// that hangs: what there is of them stays open.
    pub(crate) half_opens: BTreeSet<String>,
    /// How long it takes to close a volume.
    pub(crate) slow_closes: Option<Duration>,
    /// A volume of which a host has a command in a device that hangs: mappings that take it from somebody, give it to somebody or change
    /// nothing are in force at once, and are waited for that long in vain.
    pub(crate) parts_late: Option<(String, Duration)>,
    /// Sizes that open volumes were given, in order.
    pub(crate) sizes: Vec<(String, u64)>,
    /// What pools hold of volumes, where that is not what the configuration says.
    pub(crate) held_sizes: BTreeMap<String, u64>,
    /// What the devices of protected pools carry.
    pub(crate) carried: Carried,
    /// What the devices of these pools carry by themselves: what is kept is what is read.
    pub(crate) devices: BTreeMap<String, Carried>,
    /// Pools that carry the next that they are given, and then fail, as when the second of two copies finds no room.
    pub(crate) half_kept: BTreeSet<String>,
    /// The pool that is found on devices.
    pub(crate) found: Option<PoolFound>,
    /// Pools that take so long to start.
    pub(crate) slow_pools: BTreeMap<String, Duration>,
    /// What the devices of protected pools have.
    pub(crate) last: BTreeMap<String, u64>,
    /// Identities of pools that were started.
    pub(crate) ids: BTreeMap<String, PoolId>,
    /// Pools whose opening writes, and then fails.
    pub(crate) unfinished: BTreeSet<String>,
    /// Pools whose opening writes, and then breaks off.
    pub(crate) breaks_off: BTreeSet<String>,
    /// Pools that lack a device.
    pub(crate) lack: BTreeSet<String>,
    /// Pools whose devices do not answer before they are told to.
    pub(crate) hung_pools: BTreeMap<String, Arc<Notify>>,
    /// Devices that do not answer before they are told to.
    pub(crate) hung_devices: BTreeMap<String, Arc<Notify>>,
    /// Devices that are being taken.
    pub(crate) taking: BTreeSet<String>,
    /// Devices that were asked whether they answer.
    pub(crate) asked: Vec<String>,
    /// Calls that open or close something and take so long, written as in `calls`.
    pub(crate) late: BTreeMap<String, Duration>,
    /// How long devices are closed that pools and volumes let go of, which all but the end of the process waits for.
    pub(crate) closings: Duration,
    /// No target port lets anybody in any more.
    pub(crate) shut: bool,
    /// How far volumes have moved, as the data plane calls it.
    pub(crate) moves: BTreeMap<String, String>,
    /// What protected pools say of themselves.
    pub(crate) live_pools: Vec<weir_control::live::PoolLive>,
    /// What holds the reactor up.
    pub(crate) held: Option<String>,
    /// No host is logged in.
    pub(crate) empty: bool,
    /// A host logs in just before the next mappings are in force, and sees what it saw by those before.
    pub(crate) logs_in: bool,
    /// The initiator port that is, if it is not the first one of the first host.
    pub(crate) initiator: Option<String>,
    /// Polls of `status`: counters rise by a fixed step each time.
    pub(crate) polls: u64,
}

impl State {
    /// The initiator port that is logged in.
    fn logged_in(&self) -> String {
        let first = self.access.hosts.first().and_then(|h| h.ports.first());
        let port = self.initiator.clone().or(first.map(ToString::to_string));
        port.unwrap_or("0000000000000001:0002c90300a1b2c3".into())
    }

    /// The host that it is logged in as.
    fn viewer(&self) -> Option<String> {
        let port = self.logged_in();
        let is_it = |h: &&HostAccess| h.ports.iter().any(|p| p.to_string() == port);
        let hosts = &self.access.hosts;
        let named = hosts.iter().find(is_it).or_else(|| hosts.iter().find(|h| h.allow_any));
        named.or(hosts.first().filter(|_| self.initiator.is_none())).map(|h| h.name.clone())
    }
}

/// The fake data plane.
#[derive(Debug, Default)]
pub(crate) struct Fake(Mutex<State>);

impl Fake {
    /// What it remembers.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call fail from now on.
    pub(crate) fn break_call(&self, call: &str) {
        self.state().broken.insert(call.to_string());
    }

    /// Makes every call work again.
    pub(crate) fn mend(&self) {
        self.state().broken.clear();
    }

    fn call(&self, call: String) -> Result<MutexGuard<'_, State>, Error> {
        let mut s = self.state();
        let broken = s.broken.contains(&call);
        s.calls.push(call.clone());
        if broken {
            return Err(Error::new(Code::IoError, format!("`{call}` failed"))
                .because("the test wants it")
                .hint("mend it"));
        }
        Ok(s)
    }

    /// Takes as long as the test wants.
    async fn in_its_time(&self, call: String) {
        let late = self.state().late.get(&call).copied();
        if let Some(late) = late {
            self.state().calls.push(format!("{call} begins"));
            tokio::time::sleep(late).await;
        }
    }

    async fn until_closed(&self) {
        let closings = self.state().closings;
        if !closings.is_zero() {
            tokio::time::sleep(closings).await;
        }
    }

    fn start_pool_now(&self, pool: &Pool) -> Result<Vec<u64>, Error> {
        let mut s = self.call(format!("start_pool {}", pool.name))?;
        let is_taken = |d: &Device| d.path.as_ref().is_some_and(|p| s.taken.contains(p));
        if pool.devices.iter().any(is_taken) {
            return Err(Error::new(Code::DeviceInUse, "it is not empty"));
        }
        s.pools.insert(pool.name.clone(), pool.devices.len());
        if let Some(id) = pool.identity() {
            s.ids.insert(pool.name.clone(), id);
        }
        let size = |d: &weir_control::model::Device| match (d.kind, &d.path) {
            (DeviceKind::Block | DeviceKind::Dir, Some(path)) => {
                s.block_sizes.get(path).copied().unwrap_or(0)
            }
            _ => d.size,
        };
        Ok(pool.devices.iter().map(size).collect())
    }

    fn live(&self) -> LiveStatus {
        let mut s = self.state();
        s.polls += 1;
        let latency = Latency { p50_ns: 90_000, p99_ns: 250_000, ..Latency::default() };
        let io = |step| IoStats {
            ops: s.polls * step,
            bytes: s.polls * step * 4096,
            latency,
            ..IoStats::default()
        };
        let volumes = s.volumes.keys().map(|name| VolumeLive {
            name: name.clone(),
            read: io(1000),
            write: io(10),
            in_flight: 3,
            used_bytes: None,
            compression: None,
            deduplication: None,
        });
        let ports = s.targets.values().map(|t| PortLive {
            name: t.name.clone(),
            listening: t.listen.clone(),
            channels: 2,
            nexuses: (!s.empty)
                .then(|| NexusLive {
                    host: s.viewer(),
                    initiator: s.logged_in(),
                    peer: "127.0.0.1:40000".into(),
                    channels: 2,
                    in_flight: 3,
                })
                .into_iter()
                .collect(),
            logins: 1,
            ..PortLive::default()
        });
        LiveStatus {
            volumes: volumes.collect(),
            ports: ports.collect(),
            reactors: vec![ReactorLive {
                busy_percent: 12.5,
                held: s.held.clone(),
                ..ReactorLive::default()
            }],
            census: vec![CensusLive {
                name: "requests".into(),
                total: 2000,
                free: 1997,
                least_free: 1900,
                waiting: 0,
                item_bytes: 512,
            }],
            pools: s.live_pools.clone(),
            ..LiveStatus::default()
        }
    }
}

fn ready<'a, T: Send + 'a>(value: Result<T, Error>) -> Work<'a, T> {
    Box::pin(std::future::ready(value))
}

impl DataPlane for Fake {
    fn attach(&self, hooks: Hooks) {
        self.state().hooks = Some(hooks);
    }

    fn ask<'a>(&'a self, path: &'a str, within: Duration) -> Work<'a, ()> {
        Box::pin(self.asked(path, within))
    }

    fn admit<'a>(
        &'a self,
        pool: &'a str,
        devices: &'a [DeviceSpec],
        inside: Inside<'a>,
    ) -> Work<'a, ()> {
        if let Inside::Only(overwrite) = inside {
            self.state().may_be_lost.insert(pool.into(), overwrite.clone());
        }
        Box::pin(self.taken(devices.iter().filter_map(|d| d.path.clone()).collect()))
    }

    fn start_pool<'a>(
        &'a self,
        pool: &'a Pool,
        without: Option<Without>,
    ) -> Work<'a, Vec<DeviceFound>> {
        let slow = self.state().slow_pools.get(&pool.name).copied();
        let hung = self.state().hung_pools.get(&pool.name).cloned();
        Box::pin(async move {
            if let Some(answers) = hung {
                self.state().calls.push(format!("start_pool {} hangs", pool.name));
                answers.notified().await;
            }
            if let Some(slow) = slow {
                self.state().calls.push(format!("start_pool {} begins", pool.name));
                tokio::time::sleep(slow).await;
            }
            let newest = self.state().last.get(&pool.name).copied();
            let is_last = without.is_some_and(|w| {
                Some(w.last.newest) == newest && pool.identity() == Some(w.last.pool)
            });
            if self.state().lack.contains(&pool.name) && !is_last {
                self.state().calls.push(format!("start_pool {} lacks a device", pool.name));
                return Err(Error::new(Code::PoolDamaged, "a device is missing"));
            }
            let breaks_off = self.state().breaks_off.contains(&pool.name);
            assert!(!breaks_off, "it breaks off");
            if self.state().unfinished.contains(&pool.name) {
                return Err(Error::new(Code::PoolUnfinished, "a device has failed"));
            }
            self.start_pool_now(pool).map(|s| s.into_iter().map(DeviceFound::from).collect())
        })
    }

    fn force_pool<'a>(&'a self, pool: &'a Pool) -> Work<'a, Vec<DeviceFound>> {
        self.state().lack.remove(&pool.name);
        self.start_pool(pool, None)
    }

    fn stop_pool<'a>(&'a self, name: &'a str) -> Work<'a, Option<LastState>> {
        Box::pin(async move {
            let last = self.end_pool(name).await;
            self.until_closed().await;
            last
        })
    }

    fn end_pool<'a>(&'a self, name: &'a str) -> Work<'a, Option<LastState>> {
        Box::pin(async move {
            self.in_its_time(format!("stop_pool {name}")).await;
            // Also one that is not closed in order is closed.
            let done = self.call(format!("stop_pool {name}")).map(drop);
            let mut s = self.state();
            let open = s.pools.remove(name).is_some();
            let pool = s.ids.get(name).copied();
            let last = s.last.get(name).filter(|_| open);
            done.map(|()| Some(LastState { pool: pool?, newest: *last? }))
        })
    }

    fn find_image<'a>(&'a self, wish: &'a ImageWish) -> Work<'a, ImageFound> {
        Box::pin(async {
            self.taken(vec![wish.path.clone()]).await?;
            let path = wish.path.clone();
            Ok(ImageFound { path, size: 1 << 20, block_size: 512, identity: None })
        })
    }

    fn open_volume<'a>(&'a self, volume: &'a Volume, pool: &'a Pool) -> Work<'a, ()> {
        Box::pin(async move {
            let call = format!("open_volume {}", volume.name);
            self.in_its_time(call.clone()).await;
            let image = match &volume.layout {
                Layout::Image { path, .. } => Some(path.clone()),
                _ => None,
            };
            self.taken(image.iter().cloned().collect()).await?;
            let mut s = self.call(call)?;
            assert!(image.is_some() || s.pools.contains_key(&pool.name), "its pool runs");
            assert!(!s.volumes.contains_key(&volume.name), "it is not open");
            s.data.insert(volume.name.clone());
            s.volumes.insert(volume.name.clone(), volume.clone());
            match s.half_opens.remove(&volume.name) {
                true => Err(Error::new(Code::IoError, "commands of hosts do not end")),
                false => Ok(()),
            }
        })
    }

    fn size_of<'a>(&'a self, volume: &'a Volume, _pool: &'a Pool) -> Work<'a, Option<u64>> {
        ready(Ok(self.state().held_sizes.get(&volume.name).copied()))
    }

    fn cut_volume<'a>(&'a self, volume: &'a Volume, _pool: &'a Pool) -> Work<'a, ()> {
        if let Err(e) = self.call(format!("cut_volume {}", volume.name)) {
            return ready(Err(e));
        }
        let ended = format!("cut_ended {}", volume.name);
        Box::pin(async move {
            if self.state().slow_cuts {
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
            self.call(ended).map(drop)
        })
    }

    fn update_volume<'a>(&'a self, volume: &'a Volume, _pool: &'a Pool) -> Work<'a, ()> {
        if self.state().stalled.remove(&volume.name) {
            self.state().calls.push(format!("update_volume {}", volume.name));
            return Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(500)).await;
                Err(Error::new(Code::IoError, "commands of hosts do not end"))
            });
        }
        ready(self.call(format!("update_volume {}", volume.name)).map(|mut s| {
            s.sizes.push((volume.name.clone(), volume.size));
            assert!(s.volumes.insert(volume.name.clone(), volume.clone()).is_some(), "it is open");
        }))
    }

    fn hold_layers<'a>(
        &'a self,
        was: &'a Volume,
        _is: &'a Volume,
        _pool: &'a Pool,
        trial: &'a LayerTrial,
    ) -> Work<'a, ()> {
        let node = trial.node.as_deref().unwrap_or("-");
        ready(self.call(format!("hold_layers {} {node}", was.name)).map(drop))
    }

    fn decide_layers<'a>(
        &'a self,
        was: &'a Volume,
        is: &'a Volume,
        _pool: &'a Pool,
        keep: bool,
    ) -> Work<'a, ()> {
        ready(self.call(format!("decide_layers {} {keep}", was.name)).map(|mut s| {
            let now = if keep { is } else { was };
            s.volumes.insert(was.name.clone(), now.clone());
        }))
    }

    fn close_volume<'a>(&'a self, name: &'a str) -> Work<'a, ()> {
        Box::pin(async move {
            let done = self.end_volume(name).await;
            self.until_closed().await;
            done
        })
    }

    fn end_volume<'a>(&'a self, name: &'a str) -> Work<'a, ()> {
        let slow = self.state().slow_closes;
        Box::pin(async move {
            if let Some(slow) = slow {
                tokio::time::sleep(slow).await;
            }
            self.in_its_time(format!("close_volume {name}")).await;
            self.call(format!("close_volume {name}")).map(|mut s| drop(s.volumes.remove(name)))
        })
    }

    fn delete_volume_data<'a>(&'a self, volume: &'a Volume, _pool: &'a Pool) -> Work<'a, ()> {
        Box::pin(async move {
            let call = format!("delete_volume_data {}", volume.name);
            self.in_its_time(call.clone()).await;
            self.call(call).map(|mut s| {
                assert!(!s.volumes.contains_key(&volume.name), "it is closed");
                s.data.remove(&volume.name);
            })
        })
    }

    fn create_volume<'a>(&'a self, volume: &'a Volume, _pool: &'a Pool) -> Work<'a, ()> {
        ready(self.call(format!("create_volume {}", volume.name)).map(drop))
    }

    fn find_pool<'a>(&'a self, _devices: &'a [Device], _force: bool) -> Work<'a, PoolFound> {
        let none = || Error::new(Code::InvalidDevice, "there is no pool");
        ready(self.call("find_pool".into()).and_then(|s| s.found.clone().ok_or_else(none)))
    }

    fn record<'a>(&'a self, pool: &'a Pool) -> Work<'a, Carried> {
        let found = self.call(format!("record {}", pool.name));
        ready(found.map(|s| s.devices.get(&pool.name).unwrap_or(&s.carried).clone()))
    }

    fn keep_record<'a>(&'a self, pool: &'a Pool, parts: &'a [RecordPart]) -> Work<'a, ()> {
        ready(self.call(format!("keep_record {}", pool.name)).and_then(|mut s| {
            if let Some(there) = s.devices.get_mut(&pool.name) {
                there.parts.extend(parts.iter().map(|p| (p.number, p.content.clone())));
            }
            match s.half_kept.remove(&pool.name) {
                true => Err(Error::new(Code::PoolFull, "no room for the second copy")),
                false => Ok(()),
            }
        }))
    }

    fn change_device<'a>(&'a self, _pool: &'a Pool, _action: &'a DeviceAction) -> Work<'a, ()> {
        ready(Ok(()))
    }

    fn snapshots<'a>(&'a self, pool: &'a Pool) -> Work<'a, Vec<SnapshotLive>> {
        let none = || Error::new(Code::Unsupported, "there are no snapshots here");
        let call = self.call(format!("snapshots {}", pool.name));
        ready(call.and_then(|s| s.tells_snapshots.then(|| s.snapshots.clone()).ok_or_else(none)))
    }

    fn revert_volume<'a>(
        &'a self,
        _pool: &'a Pool,
        volume: &'a Volume,
        _snapshot: &'a str,
    ) -> Work<'a, ()> {
        ready(self.call(format!("revert_volume {}", volume.name)).map(drop))
    }

    fn set_snapshot_rules<'a>(&'a self, pool: &'a Pool, rules: &'a PoolRules) -> Work<'a, ()> {
        ready(self.call(format!("set_snapshot_rules {} {}", pool.name, rules.len())).map(drop))
    }

    fn start_migration<'a>(
        &'a self,
        here: Place<'a>,
        _there: Place<'a>,
        _migration: &'a Migration,
    ) -> Work<'a, ()> {
        ready(self.call(format!("start_migration {}", here.volume.name)).map(drop))
    }

    fn migration<'a>(&'a self, volume: &'a str) -> Work<'a, Option<MigrationProgress>> {
        let state = self.state().moves.get(volume).cloned();
        let progress = |state| MigrationProgress { state, ..MigrationProgress::default() };
        ready(Ok(state.map(progress)))
    }

    fn hold_migration<'a>(&'a self, volume: &'a str) -> Work<'a, Told> {
        let told = Told { write_cache: false, thin: true };
        ready(self.call(format!("hold_migration {volume}")).map(|_| told))
    }

    fn decide_migration<'a>(&'a self, volume: &'a str, decision: Decision) -> Work<'a, ()> {
        ready(self.call(format!("decide_migration {volume} {decision:?}")).map(|mut s| {
            if decision == Decision::Moved {
                s.moves.insert(volume.into(), "moved".into());
            }
        }))
    }

    fn end_migration<'a>(&'a self, here: Place<'a>, _there: Place<'a>) -> Work<'a, ()> {
        ready(self.call(format!("end_migration {}", here.volume.name)).map(drop))
    }

    fn clear_place<'a>(&'a self, there: Place<'a>, _made: bool) -> Work<'a, ()> {
        Box::pin(async move {
            let call = format!("clear_place {}", there.volume.name);
            self.in_its_time(call.clone()).await;
            self.call(call).map(drop)
        })
    }

    fn set_mappings<'a>(&'a self, access: &'a AccessMap) -> Work<'a, ()> {
        let mut late = None;
        let called = self.call("set_mappings".into()).map(drop);
        let done = called.map(|()| {
            let mut s = self.state();
            if std::mem::take(&mut s.logs_in) {
                s.empty = false;
            }
            if let Some((v, long)) = s.parts_late.clone() {
                let of = |a: &AccessMap| {
                    let sees = |h: &HostAccess| h.luns.iter().any(|l| l.volume == v);
                    a.hosts.iter().filter(|h| sees(h)).map(|h| h.name.clone()).collect::<Vec<_>>()
                };
                if of(&s.access) != of(access) || s.access == *access {
                    s.calls.push("set_mappings late".into());
                    late = Some(long);
                }
            }
        });
        // They are in effect in any case.
        self.state().access = access.clone();
        Box::pin(async move {
            if let Some(long) = late {
                tokio::time::sleep(long).await;
                return done.and(Err(Error::new(Code::IoError, "commands of hosts do not end")));
            }
            done
        })
    }

    fn start_target<'a>(&'a self, port: &'a TargetPort) -> Work<'a, Vec<SocketAddr>> {
        ready(self.call(format!("start_target {}", port.name)).and_then(|mut s| {
            if s.shut {
                return Err(Error::new(Code::NotReady, "nobody is let in any more"));
            }
            s.targets.remove(&port.name);
            let mut others = s.targets.values().flat_map(|t| &t.listen);
            if others.any(|a| !a.ends_with(":0") && port.listen.contains(a)) {
                return Err(Error::new(Code::IoError, "the address is in use"));
            }
            s.targets.insert(port.name.clone(), port.clone());
            Ok(port.listen.iter().filter_map(|l| l.parse().ok()).collect())
        }))
    }

    fn stop_target<'a>(&'a self, name: &'a str) -> Work<'a, ()> {
        Box::pin(async move {
            self.in_its_time(format!("stop_target {name}")).await;
            self.call(format!("stop_target {name}")).map(|mut s| drop(s.targets.remove(name)))
        })
    }

    fn let_nobody_in(&self) {
        let mut s = self.state();
        s.calls.push("let_nobody_in".into());
        s.shut = true;
    }

    fn status(&self) -> Work<'_, LiveStatus> {
        ready(Ok(self.live()))
    }
}

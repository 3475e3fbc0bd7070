//! A data plane on simulated devices: it keeps volumes, not bytes, and takes its time.
//!
//! As a real one it can be asked for the same again, refuses what makes no sense, and may fail before or after it has done a thing.

use super::medium::{BLOCK, Disk, Medium, Paths, Stamp};
use super::moving::{self, Move};
use super::trouble::{Fate, Trouble, answers, failed};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weir_control::dataplane::{
    DataPlane, Decision, Hooks, Inside, KnownImage, KnownPool, LastState, Place, Without, Work,
};
use weir_control::live::{LiveStatus, MigrationProgress, SnapshotLive};
use weir_control::model::{
    AccessMap, Carried, DeviceFound, DeviceSpec, Layout, Migration, Pool, PoolId, RecordPart,
    TargetPort, Told, Volume,
};
use weir_control::platform::sleep;
use weir_control::{Code, Error};

/// What outlives a process, and what is wrong with it.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) medium: Medium,
    pub(super) trouble: Trouble,
    /// What no data plane may ever be asked for.
    pub(super) wrong: Option<String>,
    /// Each call is told on standard error.
    pub(super) words: bool,
}

/// What is open in the present life.
#[derive(Debug, Default)]
pub(super) struct Life {
    /// Pools, with their identities and the paths of their devices.
    pub(super) pools: BTreeMap<String, (u128, Paths)>,
    pub(super) volumes: BTreeMap<String, Volume>,
    pub(super) targets: BTreeMap<String, TargetPort>,
    pub(super) moves: BTreeMap<String, Move>,
    pub(super) access: AccessMap,
    /// Pools that the configuration has.
    configured: BTreeSet<u128>,
    /// Devices that were taken for pools.
    taken: BTreeMap<String, String>,
    hooks: Option<Hooks>,
    shut: bool,
}

/// The data plane of one life.
#[derive(Debug)]
pub(super) struct Plane {
    ground: Arc<Mutex<Ground>>,
    life: Mutex<Life>,
    /// The process is no more: what is still called does nothing.
    dead: Arc<AtomicBool>,
}

type Locked<'a, T> = MutexGuard<'a, T>;

fn lock<T>(m: &Mutex<T>) -> Locked<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn refused<T>(code: Code, why: impl Into<String>) -> Result<T, Error> {
    Err(Error::new(code, why))
}

/// An identity, also of a pool that has none.
fn id(pool: &Pool) -> u128 {
    pool.identity().map_or(0, |id| id.0)
}

fn paths(pool: &Pool) -> Paths {
    pool.devices.iter().map(|d| d.path.clone().unwrap_or_default()).collect()
}

impl Plane {
    pub(super) fn new(ground: Arc<Mutex<Ground>>, dead: Arc<AtomicBool>) -> Arc<Plane> {
        Arc::new(Plane { ground, life: Mutex::default(), dead })
    }

    pub(super) fn life(&self) -> Locked<'_, Life> {
        lock(&self.life)
    }

    pub(super) fn ground(&self) -> Locked<'_, Ground> {
        lock(&self.ground)
    }

    fn say(&self, call: &str, fate: Fate) {
        if self.ground().words {
            let at = Duration::from_nanos(weir_reactor::clock()).as_secs_f64();
            eprintln!("{at:14.6} s   plane: {call} {fate:?}");
        }
    }

    fn wrong(&self, what: String) {
        self.ground().wrong.get_or_insert(what);
    }

    /// Does something in its time, if it does not fail.
    async fn call<T>(
        &self,
        call: String,
        f: impl FnOnce(&mut Life, &mut Medium) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let fated = self.ground().trouble.next();
        self.fated(call, fated, f).await
    }

    async fn fated<T>(
        &self,
        call: String,
        (fate, takes): (Fate, Duration),
        f: impl FnOnce(&mut Life, &mut Medium) -> Result<T, Error>,
    ) -> Result<T, Error> {
        sleep(takes).await;
        if self.dead.load(Relaxed) {
            std::future::pending::<()>().await;
        }
        if fate == Fate::Fails {
            self.say(&call, fate);
            return Err(failed(&call));
        }
        let done = f(&mut self.life(), &mut self.ground().medium);
        self.say(&call, fate);
        sleep(takes / 4).await;
        match fate {
            Fate::FailsLate => done.and(Err(failed(&call))),
            _ => done,
        }
    }

    /// Does something in its time that says itself whether it fails.
    async fn call_surely<T>(
        &self,
        f: impl FnOnce(&mut Life, &mut Medium) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let takes = self.ground().trouble.next().1;
        sleep(takes).await;
        if self.dead.load(Relaxed) {
            std::future::pending::<()>().await;
        }
        f(&mut self.life(), &mut self.ground().medium)
    }

    /// Waits until no device of `paths` is silent. Those that are missing are told.
    async fn asked(&self, paths: &Paths) -> Result<Vec<String>, Error> {
        let silent = || {
            let g = self.ground();
            paths.iter().any(|p| g.trouble.silent.contains(p))
        };
        if !answers(silent).await {
            return refused(Code::IoError, "a device does not answer");
        }
        let g = self.ground();
        Ok(paths.iter().filter(|p| g.trouble.missing.contains(*p)).cloned().collect())
    }

    /// What hosts do: writes or reads a block of an open volume. None: it is not open.
    pub(super) fn write(&self, name: &str, n: u64, stamp: Stamp) -> Option<Result<(), String>> {
        let life = self.life();
        let v = life.volumes.get(name)?;
        let (pool, paths) = life.pools.get(&v.pool)?;
        let moves = life.moves.get(name);
        if moves.is_some_and(|m| m.held) {
            return None;
        }
        let m = &mut self.ground().medium;
        if let Some(to) = moves.filter(|m| m.both).map(Move::to) {
            let (pool, paths) = life.pools.get(&to.pool)?;
            if let Err(e) = m.write(*pool, paths, to, n, stamp) {
                return Some(Err(e));
            }
        }
        Some(m.write(*pool, paths, v, n, stamp))
    }

    pub(super) fn read(&self, name: &str, n: u64) -> Option<Result<Option<Stamp>, String>> {
        let life = self.life();
        let v = life.volumes.get(name)?;
        let (pool, paths) = life.pools.get(&v.pool)?;
        Some(self.ground().medium.read(*pool, paths, v, n))
    }

    async fn start(
        &self,
        pool: &Pool,
        without: Option<Without>,
    ) -> Result<Vec<DeviceFound>, Error> {
        let (mine, all) = (id(pool), paths(pool));
        let missing = self.asked(&all).await?;
        let fails = {
            let mut g = self.ground();
            let fate = g.trouble.next().0;
            if fate == Fate::FailsLate
                && let Some(store) = g.medium.stores.get_mut(&mine)
            {
                store.newest += 1;
            }
            fate != Fate::Works
        };
        self.call_surely(|life, m| {
            // One that is not opened wholly is closed, though something may have been written.
            if fails {
                return Err(failed("start_pool"));
            }
            if !missing.is_empty() {
                let newest = m.stores.get(&mine).map(|s| s.newest);
                let enough = pool.protection.is_some() && missing.len() < all.len();
                let known =
                    without.is_some_and(|w| w.last.pool.0 == mine && Some(w.last.newest) == newest);
                if !enough || !known {
                    return refused(Code::PoolDamaged, format!("{} is not there", missing[0]));
                }
            }
            for d in &pool.devices {
                let path = d.path.clone().unwrap_or_default();
                if missing.contains(&path) {
                    continue;
                }
                let fresh = d.new || pool.protection.as_ref().is_some_and(|p| !p.formatted);
                match m.disks.get_mut(&path) {
                    None if fresh => {
                        let made = Disk { size: d.size, label: Some(mine), ..Disk::default() };
                        m.disks.insert(path, made);
                    }
                    None => return refused(Code::PoolDamaged, format!("{path} is not there")),
                    Some(disk) if disk.label == Some(mine) => disk.size = disk.size.max(d.size),
                    // What is left of a pool that did not come to be is nobody's.
                    Some(disk)
                        if fresh && !disk.label.is_some_and(|l| life.configured.contains(&l)) =>
                    {
                        *disk = Disk { size: d.size, label: Some(mine), ..Disk::default() };
                    }
                    Some(_) => return refused(Code::DeviceInUse, format!("{path} is another's")),
                }
            }
            if pool.protection.is_some() {
                m.stores.entry(mine).or_default().newest += 1;
            }
            life.taken.retain(|p, _| !all.contains(p));
            life.pools.insert(pool.name.clone(), (mine, all.clone()));
            let found = |d: &weir_control::model::Device| DeviceFound {
                size: d.size,
                labelled: pool.protection.is_none(),
                ..DeviceFound::default()
            };
            Ok(pool.devices.iter().map(found).collect())
        })
        .await
    }

    fn admitted(
        life: &mut Life,
        m: &mut Medium,
        pool: &str,
        devices: &[DeviceSpec],
    ) -> Result<(), Error> {
        for path in devices.iter().filter_map(|d| d.path.clone()) {
            let open =
                life.pools.iter().any(|(name, (_, all))| name != pool && all.contains(&path));
            let label = m.disks.get(&path).and_then(|d| d.label);
            let others = label.is_some_and(|label| life.configured.contains(&label));
            if open || others || life.taken.insert(path.clone(), pool.into()).is_some() {
                return refused(Code::DeviceInUse, format!("{path} is a pool's"));
            }
        }
        Ok(())
    }

    fn opened(life: &mut Life, m: &mut Medium, v: &Volume) -> Result<(), Error> {
        Self::enlarged(life, m, v)?;
        life.volumes.insert(v.name.clone(), v.clone());
        Ok(())
    }

    /// The devices hold all of a volume.
    fn enlarged(life: &mut Life, m: &mut Medium, v: &Volume) -> Result<(), Error> {
        let Some((pool, _)) = life.pools.get(&v.pool).cloned() else {
            return refused(Code::NotReady, format!("pool {} is not open", v.pool));
        };
        if let Layout::Store { dataset, .. } = &v.layout {
            let sets = m.stores.get_mut(&pool).map(|s| &mut s.datasets);
            let Some(set) = sets.and_then(|s| s.get_mut(dataset)) else {
                return refused(Code::VolumeNotFound, format!("{} is not on the devices", v.name));
            };
            if set.size < v.grown_from.unwrap_or(v.size) {
                return refused(Code::PoolDamaged, format!("{} has lost its end", v.name));
            }
            set.size = set.size.max(v.size);
        }
        Ok(())
    }
}

impl DataPlane for Plane {
    fn attach(&self, hooks: Hooks) {
        self.life().hooks = Some(hooks);
    }

    fn configured(&self, pools: Vec<KnownPool>, _images: Vec<KnownImage>) {
        self.life().configured = pools.iter().map(|p| p.id.0).collect();
    }

    fn ask<'a>(&'a self, path: &'a str, within: Duration) -> Work<'a, ()> {
        Box::pin(async move {
            let silent = || self.ground().trouble.silent.contains(path);
            match weir_control::platform::timeout(within, answers(silent)).await {
                Ok(true) => Ok(()),
                _ => refused(Code::IoError, format!("{path} does not answer")),
            }
        })
    }

    fn admit<'a>(
        &'a self,
        pool: &'a str,
        devices: &'a [DeviceSpec],
        _inside: Inside<'a>,
    ) -> Work<'a, ()> {
        // What it refuses it does not keep.
        let (fate, takes) = self.ground().trouble.next();
        let fate = if fate == Fate::FailsLate { Fate::Fails } else { fate };
        Box::pin(self.fated(format!("admit {pool}"), (fate, takes), move |life, m| {
            Self::admitted(life, m, pool, devices)
        }))
    }

    fn dismiss<'a>(&'a self, _pool: &'a str, devices: &'a [DeviceSpec]) -> Work<'a, ()> {
        for path in devices.iter().filter_map(|d| d.path.as_ref()) {
            self.life().taken.remove(path);
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn start_pool<'a>(
        &'a self,
        pool: &'a Pool,
        without: Option<Without>,
    ) -> Work<'a, Vec<DeviceFound>> {
        Box::pin(self.start(pool, without))
    }

    fn unmake_pool<'a>(&'a self, pool: &'a Pool, made: bool) -> Work<'a, ()> {
        // Closed it is in any case.
        {
            let mut life = self.life();
            life.pools.remove(&pool.name);
            life.taken.retain(|_, of| *of != pool.name);
        }
        Box::pin(self.call(format!("unmake_pool {}", pool.name), move |_, m| {
            for path in paths(pool) {
                let own = m.disks.get(&path).is_some_and(|d| d.label == Some(id(pool)));
                match (own, made) {
                    (true, true) => drop(m.disks.remove(&path)),
                    (true, false) => m.disks.entry(path).or_default().label = None,
                    (false, _) => {}
                }
            }
            m.stores.remove(&id(pool));
            Ok(())
        }))
    }

    fn keep_record<'a>(&'a self, pool: &'a Pool, parts: &'a [RecordPart]) -> Work<'a, ()> {
        Box::pin(async move {
            for part in parts {
                let call = self.call(format!("keep_record {}", pool.name), |_, m| {
                    let store = m.stores.entry(id(pool)).or_default();
                    store.parts.insert(part.number, part.content.clone());
                    Ok(())
                });
                call.await?;
            }
            Ok(())
        })
    }

    fn record<'a>(&'a self, pool: &'a Pool) -> Work<'a, Carried> {
        Box::pin(self.call(format!("record {}", pool.name), move |_, m| {
            let parts = m.stores.get(&id(pool)).map(|s| s.parts.clone()).unwrap_or_default();
            Ok(Carried { parts, doubtful: Vec::new() })
        }))
    }

    fn create_volume<'a>(&'a self, volume: &'a Volume, pool: &'a Pool) -> Work<'a, ()> {
        Box::pin(
            self.call(format!("create_volume {}", volume.name), move |_, m| {
                m.make(id(pool), volume)
            }),
        )
    }

    fn snapshots<'a>(&'a self, pool: &'a Pool) -> Work<'a, Vec<SnapshotLive>> {
        let all = self.ground().medium.snapshots(id(pool));
        Box::pin(std::future::ready(Ok(all)))
    }

    fn take_snapshots<'a>(
        &'a self,
        pool: &'a Pool,
        wanted: &'a [(String, String)],
    ) -> Work<'a, ()> {
        let call = format!("take_snapshots {wanted:?}");
        Box::pin(self.call(call, move |_, m| m.take_snapshots(id(pool), wanted)))
    }

    fn delete_snapshot<'a>(&'a self, pool: &'a Pool, dataset: &'a str) -> Work<'a, ()> {
        let call = format!("delete_snapshot {dataset}");
        Box::pin(self.call(call, move |_, m| m.delete_snapshot(id(pool), dataset)))
    }

    fn revert_volume<'a>(
        &'a self,
        pool: &'a Pool,
        volume: &'a Volume,
        snapshot: &'a str,
    ) -> Work<'a, ()> {
        let all = self.life().access.hosts.clone();
        if all.iter().any(|h| h.luns.iter().any(|l| l.volume == volume.name)) {
            self.wrong(format!("volume {} is reverted, which hosts see", volume.name));
        }
        let call = format!("revert_volume {}", volume.name);
        Box::pin(self.call(call, move |_, m| m.revert(id(pool), volume, snapshot)))
    }

    fn stop_pool<'a>(&'a self, name: &'a str) -> Work<'a, Option<LastState>> {
        Box::pin(self.call(format!("stop_pool {name}"), move |life, m| {
            let mut all = life.volumes.values().chain(life.moves.values().map(Move::to));
            if let Some(v) = all.find(|v| v.pool == name) {
                return refused(Code::NotReady, format!("volume {} is open", v.name));
            }
            life.taken.retain(|_, of| of != name);
            let Some((pool, _)) = life.pools.remove(name) else { return Ok(None) };
            let newest = m.stores.get(&pool).map(|s| s.newest);
            Ok(newest.map(|newest| LastState { pool: PoolId(pool), newest }))
        }))
    }

    fn open_volume<'a>(&'a self, volume: &'a Volume, _pool: &'a Pool) -> Work<'a, ()> {
        Box::pin(async move {
            if self.life().volumes.contains_key(&volume.name) {
                self.wrong(format!("volume {} is opened twice", volume.name));
            }
            let call = format!("open_volume {}", volume.name);
            self.call(call, |life, m| Self::opened(life, m, volume)).await
        })
    }

    fn update_volume<'a>(&'a self, volume: &'a Volume, _pool: &'a Pool) -> Work<'a, ()> {
        let (fate, takes) = self.ground().trouble.next();
        let known = self.life().volumes.get(&volume.name).map(|v| v.size);
        let is_larger = known.is_some_and(|size| size < volume.size);
        let call = format!("update_volume {}", volume.name);
        // Hosts are told of a larger volume last: what fails late has only the devices hold it.
        if is_larger && fate == Fate::FailsLate {
            return Box::pin(
                self.fated(call, (fate, takes), |life, m| Self::enlarged(life, m, volume)),
            );
        }
        Box::pin(self.fated(call, (fate, takes), move |life, m| {
            if !life.volumes.contains_key(&volume.name) {
                return refused(Code::NotReady, format!("volume {} is not open", volume.name));
            }
            Self::opened(life, m, volume)
        }))
    }

    fn size_of<'a>(&'a self, volume: &'a Volume, pool: &'a Pool) -> Work<'a, Option<u64>> {
        Box::pin(self.call(format!("size_of {}", volume.name), move |_, m| {
            let Layout::Store { dataset, .. } = &volume.layout else { return Ok(None) };
            let store = m.stores.get(&id(pool));
            Ok(store.and_then(|s| s.datasets.get(dataset)).map(|s| s.size))
        }))
    }

    fn cut_volume<'a>(&'a self, volume: &'a Volume, pool: &'a Pool) -> Work<'a, ()> {
        Box::pin(self.call(format!("cut_volume {}", volume.name), move |_, m| {
            m.discard(id(pool), &paths(pool), volume, volume.size / BLOCK);
            Ok(())
        }))
    }

    fn start_migration<'a>(
        &'a self,
        _here: Place<'a>,
        there: Place<'a>,
        _migration: &'a Migration,
    ) -> Work<'a, ()> {
        let takes = self.ground().trouble.next().1 * 2;
        let call = format!("start_migration {} to {}", there.volume.name, there.volume.pool);
        Box::pin(self.call(call, move |life, m| life.start_move(m, there.volume, takes)))
    }

    fn migration<'a>(&'a self, volume: &'a str) -> Work<'a, Option<MigrationProgress>> {
        Box::pin(std::future::ready(Ok(self.life().move_of(volume))))
    }

    fn hold_migration<'a>(&'a self, volume: &'a str) -> Work<'a, Told> {
        let call = format!("hold_migration {volume}");
        Box::pin(self.call(call, move |life, m| life.hold(m, volume)))
    }

    fn decide_migration<'a>(&'a self, volume: &'a str, decision: Decision) -> Work<'a, ()> {
        let call = format!("decide_migration {volume} {decision:?}");
        Box::pin(self.call(call, move |life, _| life.decide(volume, decision)))
    }

    fn end_migration<'a>(&'a self, here: Place<'a>, _there: Place<'a>) -> Work<'a, ()> {
        let call = format!("end_migration {}", here.volume.name);
        Box::pin(self.call(call, move |life, _| {
            life.end_move(here.volume);
            Ok(())
        }))
    }

    fn clear_place<'a>(&'a self, there: Place<'a>, _made: bool) -> Work<'a, ()> {
        let call = format!("clear_place {} in {}", there.volume.name, there.pool.name);
        if self.ground().medium.has_snapshots(id(there.pool), there.volume) {
            self.wrong(format!("{call}, which has snapshots"));
        }
        Box::pin(self.call(call, move |_, m| {
            moving::clear(m, (id(there.pool), &paths(there.pool)), there);
            Ok(())
        }))
    }

    fn close_volume<'a>(&'a self, name: &'a str) -> Work<'a, ()> {
        Box::pin(self.call(format!("close_volume {name}"), move |life, _| {
            life.volumes.remove(name);
            life.moves.remove(name);
            Ok(())
        }))
    }

    fn delete_volume_data<'a>(&'a self, volume: &'a Volume, pool: &'a Pool) -> Work<'a, ()> {
        Box::pin(async move {
            if self.life().volumes.contains_key(&volume.name) {
                self.wrong(format!("data of volume {} is deleted, which is open", volume.name));
            }
            if self.ground().medium.has_snapshots(id(pool), volume) {
                self.wrong(format!("volume {} is deleted, which has snapshots", volume.name));
            }
            let call = format!("delete_volume_data {}", volume.name);
            let done = self.call(call, |_, m| {
                m.discard(id(pool), &paths(pool), volume, 0);
                if let (Layout::Store { dataset, .. }, Some(store)) =
                    (&volume.layout, m.stores.get_mut(&id(pool)))
                {
                    store.datasets.remove(dataset);
                }
                Ok(())
            });
            done.await
        })
    }

    fn set_mappings<'a>(&'a self, access: &'a AccessMap) -> Work<'a, ()> {
        Box::pin(async move {
            // Whatever has not ended by the end of the call.
            if !self.dead.load(Relaxed) {
                self.life().access = access.clone();
            }
            self.call("set_mappings".into(), |_, _| Ok(())).await
        })
    }

    fn start_target<'a>(&'a self, port: &'a TargetPort) -> Work<'a, Vec<SocketAddr>> {
        Box::pin(self.call(format!("start_target {}", port.name), move |life, _| {
            let mut others = life.targets.values().filter(|t| t.name != port.name);
            if life.shut || others.any(|t| t.listen.iter().any(|a| port.listen.contains(a))) {
                return refused(Code::IoError, "the address is in use");
            }
            life.targets.insert(port.name.clone(), port.clone());
            Ok(port.listen.iter().filter_map(|l| l.parse().ok()).collect())
        }))
    }

    fn stop_target<'a>(&'a self, name: &'a str) -> Work<'a, ()> {
        Box::pin(self.call(format!("stop_target {name}"), move |life, _| {
            life.targets.remove(name);
            Ok(())
        }))
    }

    fn let_nobody_in(&self) {
        self.life().shut = true;
    }

    fn status(&self) -> Work<'_, LiveStatus> {
        Box::pin(std::future::ready(Ok(LiveStatus::default())))
    }
}

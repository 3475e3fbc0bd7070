//! Volumes, snapshots and clones: making, listing, deleting, reverting.

use super::checkpoint::{Action, next_epoch};
use super::dataset::Dataset;
use super::log::{Effect, PAGES};
use super::stage::Below;
use super::write::Leave;
use super::{Inner, Pool, StoreError, StoreResult};
use crate::format::dataset::{DatasetRecord, Kind, MapRoot};
use crate::format::log::{Entry, NAME, pages_of};
use crate::format::page::NodePtr;
use crate::format::{BLOCK, LAST_EPOCH, MAX_LBA};
use crate::planted::{Bug, has};
use std::rc::Rc;
use weir_base::IoError;
use weir_reactor::spawn;

/// A volume or snapshot of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetInfo {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// A snapshot, which cannot be written.
    pub snapshot: bool,
    /// Of a snapshot: its volume. Of a clone: the snapshot that it was made of. Else 0.
    pub parent: u32,
    /// Size in bytes.
    pub len: u64,
    /// Logical block in bytes.
    pub block_size: u32,
    /// Bytes of data in its map as of the last checkpoint.
    pub mapped: u64,
    /// Bytes on its dead list as of the last checkpoint: of what older snapshots alone still hold.
    pub dead: u64,
    /// When it was made, as the caller said.
    pub created: u64,
    /// It is being deleted.
    pub deleting: bool,
}

fn checked_name(name: &str) -> StoreResult<Vec<u8>> {
    match name.is_empty() || name.len() > NAME {
        true => {
            Err(StoreError::Request(format!("a name has 1 to {NAME} bytes, not {}", name.len())))
        }
        false => Ok(name.as_bytes().to_vec()),
    }
}

impl Inner {
    pub(crate) fn dataset(&self, id: u32) -> StoreResult<Rc<Dataset>> {
        let found = self.datasets.borrow().get(&id).filter(|d| !d.deleting.get()).cloned();
        found
            .ok_or_else(|| StoreError::Request(format!("this pool has no volume or snapshot {id}")))
    }

    fn new_id(&self) -> u32 {
        let id = self.next_dataset.get();
        self.next_dataset.set(id + 1);
        id
    }

    /// Makes a snapshot or clone in memory, as its log entry says. No write to the source is under way.
    pub(crate) fn apply_snapshot(
        &self,
        source: &Dataset,
        id: u32,
        clone: bool,
        epoch: u32,
        created: u64,
        name: Vec<u8>,
    ) {
        if !clone {
            source.top.freeze(id, epoch);
        }
        let below = source.top.below.borrow().clone();
        let record = DatasetRecord {
            id,
            kind: if clone { Kind::Volume } else { Kind::Snapshot },
            deleting: false,
            family: source.family,
            parent: source.id,
            epoch: if clone { 0 } else { epoch },
            floor: if clone { source.epoch } else { source.floor.get() },
            len: source.len.get(),
            block_size: source.block_size,
            root: MapRoot::default(),
            dead: NodePtr::NONE,
            dead_count: 0,
            mapped: 0,
            created,
            name,
        };
        let new = Dataset::new(&record);
        new.fresh.set(!clone);
        new.top.below.replace(below);
        self.datasets.borrow_mut().insert(id, new);
        self.losses.is_like(id, source.id);
        self.next_dataset.set(self.next_dataset.get().max(id + 1));
        self.epoch.set(self.epoch.get().max(next_epoch(epoch)));
    }

    /// Something has this name, and is not being deleted.
    fn has_name(&self, name: &[u8]) -> bool {
        let all = self.datasets.borrow();
        all.values().any(|d| !d.deleting.get() && *d.name.borrow() == name)
    }

    /// Nothing needs the dataset. Not a method of the pool: what waits for a checkpoint must not keep the pool alive.
    fn check_unused(&self, ds: &Dataset) -> StoreResult {
        let all = self.datasets.borrow();
        let user = all.values().find(|d| d.parent.get() == ds.id && d.kind != Kind::Garbage);
        match user {
            None => Ok(()),
            Some(u) => Err(StoreError::Request(format!(
                "dataset {} is needed by `{}`{}: delete that first",
                ds.id,
                String::from_utf8_lossy(&u.name.borrow()),
                if u.deleting.get() { ", which is still being deleted" } else { "" }
            ))),
        }
    }

    /// Whether a volume cannot be made what this snapshot is: it has a newer one. One that was made at once with this one is as new
    /// as this, but what is left of it still puts on the volume's list what the volume would have again.
    fn is_outdated(&self, s: &Dataset) -> bool {
        let left =
            |d: &Dataset| d.deleting.get() && d.age() > s.age() && !has(Bug::RevertBesideTwin);
        let all = self.datasets.borrow();
        let mut line =
            all.values().filter(|d| d.kind == Kind::Snapshot && d.parent.get() == s.parent.get());
        line.any(|d| d.epoch > s.epoch || left(d))
    }

    /// Has a change take part in the next checkpoint; returns when that is durable.
    pub(crate) async fn act(&self, action: Action) -> StoreResult {
        self.check_running()?;
        self.ckpt.actions.borrow_mut().push(action);
        Ok(self.checkpoint_now().await?)
    }
}

impl Pool {
    /// All volumes and snapshots.
    pub fn datasets(&self) -> Vec<DatasetInfo> {
        let all = self.0.datasets.borrow();
        let info = |d: &Rc<Dataset>| DatasetInfo {
            id: d.id,
            name: String::from_utf8_lossy(&d.name.borrow()).into_owned(),
            snapshot: d.kind == Kind::Snapshot,
            parent: d.parent.get(),
            len: d.len.get(),
            block_size: d.block_size,
            mapped: BLOCK as u64
                * match &*d.top.below.borrow() {
                    Below::Root(_, mapped) => *mapped,
                    Below::Stage(s) => s.merged.get().map_or(0, |(_, mapped)| mapped),
                },
            dead: d.dead.get().1 * BLOCK as u64,
            created: d.created,
            deleting: d.deleting.get(),
        };
        all.values().map(info).collect()
    }

    /// The number of the volume or snapshot with a name.
    pub fn find(&self, name: &str) -> Option<u32> {
        self.datasets().into_iter().find(|d| d.name == name && !d.deleting).map(|d| d.id)
    }

    /// The number of what was to be made, if it has been: another may have taken the name meanwhile.
    fn made(&self, id: u32, name: &[u8]) -> StoreResult<u32> {
        if self.0.dataset(id).is_err() {
            self.is_new(&String::from_utf8_lossy(name))?;
        }
        self.0.dataset(id)?;
        Ok(id)
    }

    fn is_new(&self, name: &str) -> StoreResult<Vec<u8>> {
        match self.find(name) {
            Some(id) => Err(StoreError::Request(format!("`{name}` is the name of dataset {id}"))),
            None => checked_name(name),
        }
    }

    /// Makes a volume of `len` bytes, all zeros, and returns its number.
    ///
    /// # Errors
    /// The name is taken, the size is no multiple of the block size, or the pool cannot be written.
    pub async fn create_volume(&self, name: &str, len: u64, block_size: u32) -> StoreResult<u32> {
        let name = self.is_new(name)?;
        if !matches!(block_size, 512 | 4096) || !len.is_multiple_of(u64::from(block_size)) {
            return Err(StoreError::Request(format!(
                "a volume of {len} bytes in blocks of {block_size} is not possible: blocks have 512 or \
                 4096 bytes, and a volume has whole blocks"
            )));
        }
        if len == 0 || len > MAX_LBA * BLOCK as u64 {
            return Err(StoreError::Request(format!("a volume cannot have {len} bytes")));
        }
        let id = self.0.new_id();
        let record = DatasetRecord {
            id,
            kind: Kind::Volume,
            deleting: false,
            family: id,
            parent: 0,
            epoch: 0,
            floor: 0,
            len,
            block_size,
            root: MapRoot::default(),
            dead: NodePtr::NONE,
            dead_count: 0,
            mapped: 0,
            created: 0,
            name,
        };
        let wanted = record.name.clone();
        self.0
            .act(Box::new(move |i| {
                if !i.has_name(&record.name) || has(Bug::NameTwice) {
                    i.datasets.borrow_mut().insert(id, Dataset::new(&record));
                }
            }))
            .await?;
        self.made(id, &wanted)
    }

    /// Makes snapshots of several volumes at one instant; returns their numbers. `created` is kept with them.
    ///
    /// # Errors
    /// A volume is not there, a name is taken, or the pool cannot be written.
    pub async fn snapshot(&self, volumes: &[(u32, &str)], created: u64) -> StoreResult<Vec<u32>> {
        let i = &self.0;
        if has(Bug::SnapshotsOneByOne)
            && let [one, rest @ ..] = volumes
            && !rest.is_empty()
        {
            let mut ids = Box::pin(self.snapshot(&[*one], created)).await?;
            weir_reactor::sleep(weir_base::MILLIS).await;
            ids.extend(Box::pin(self.snapshot(rest, created)).await?);
            return Ok(ids);
        }
        let mut wanted = Vec::new();
        for (volume, name) in volumes {
            let source = i.dataset(*volume)?;
            if !source.is_volume() {
                return Err(StoreError::Request(format!("dataset {volume} is no volume")));
            }
            wanted.push((source, self.is_new(name)?));
        }
        let slots = wanted.iter().map(|(_, name)| Entry::snapshot_slots(name.len()));
        let pages = pages_of(slots).max(PAGES);
        if !i.log_could_hold(pages) {
            return Err(StoreError::Request(format!(
                "snapshots of {} volumes at one instant do not fit the log of this pool: take fewer",
                volumes.len()
            )));
        }
        // Nothing is under way: everything acknowledged is in, and nothing that begins later.
        let closed = loop {
            i.admit_pages(0, Leave::All, pages).await?;
            let closed = match has(Bug::SnapshotInTheMiddle) {
                true => i.gate.close_at_once(),
                false => i.gate.close().await,
            };
            // Those who were inside have added to the log.
            if i.log_has_room(pages) {
                break closed;
            }
        };
        i.check_running()?;
        if i.epoch.get() >= LAST_EPOCH {
            return Err(StoreError::Request(
                "this pool has had as many snapshots and checkpoints as it can count: no more snapshots can be \
                 made; copy the volumes to a new pool"
                    .into(),
            ));
        }
        // Others may have been at it while this waited.
        for (n, (source, name)) in wanted.iter().enumerate() {
            i.dataset(source.id)?;
            let shown = String::from_utf8_lossy(name);
            self.is_new(&shown)?;
            if wanted[..n].iter().any(|(_, other)| other == name) {
                return Err(StoreError::Request(format!("`{shown}` is named twice")));
            }
        }
        let epoch = i.epoch.get();
        let g = i.open_group();
        let mut ids = Vec::new();
        for (source, name) in wanted {
            let id = i.new_id();
            let entry =
                Entry::Snapshot { source: source.id, id, clone: false, epoch, created, name };
            i.add_entry(&g, &entry, Effect::None);
            if let Entry::Snapshot { name, .. } = entry {
                i.apply_snapshot(&source, id, false, epoch, created, name);
            }
            ids.push(id);
        }
        i.submit_group(&g, None, i.gate.pass());
        let result = g.wait().await;
        drop(closed);
        result?;
        Ok(ids)
    }

    /// Makes a writable volume of a snapshot; returns its number.
    ///
    /// # Errors
    /// It is no snapshot, the name is taken, or the pool cannot be written.
    pub async fn clone_snapshot(&self, snapshot: u32, name: &str) -> StoreResult<u32> {
        let source = self.0.dataset(snapshot)?;
        if source.kind != Kind::Snapshot {
            return Err(StoreError::Request(format!("dataset {snapshot} is no snapshot")));
        }
        let name = self.is_new(name)?;
        let wanted = name.clone();
        let id = self.0.new_id();
        self.0
            .act(Box::new(move |i| {
                let taken = i.has_name(&name) && !has(Bug::NameTwice);
                if !source.deleting.get() && !taken {
                    let epoch = i.ckpt.cut.get();
                    i.apply_snapshot(&source, id, true, epoch, source.created, name);
                }
            }))
            .await?;
        self.made(id, &wanted)
    }

    /// Deletes a volume or snapshot. It is gone when this returns; its space comes back in the background.
    ///
    /// # Errors
    /// A volume has snapshots, a snapshot has clones, or the pool cannot be written.
    pub async fn delete(&self, id: u32) -> StoreResult {
        let ds = self.0.dataset(id)?;
        self.0.check_unused(&ds)?;
        self.0
            .act(Box::new(move |i| {
                if i.check_unused(&ds).is_err() || ds.deleting.replace(true) {
                    return;
                }
                if ds.kind == Kind::Volume {
                    ds.top.freeze(ds.id, i.ckpt.cut.get());
                    let mut record = ds.record(MapRoot::default(), 0);
                    record.kind = Kind::Garbage;
                    record.deleting = true;
                    let garbage = Dataset::new(&record);
                    garbage.top.below.replace(ds.top.below.borrow().clone());
                    garbage.newly_dead.replace(ds.newly_dead.take());
                    i.datasets.borrow_mut().insert(ds.id, garbage);
                }
            }))
            .await?;
        match self.0.dataset(id) {
            Ok(ds) => self.0.check_unused(&ds),
            Err(_) => Ok(()),
        }
    }

    /// Makes a volume what it was when its newest snapshot was made.
    ///
    /// # Errors
    /// The snapshot is not the volume's newest, or the pool cannot be written.
    pub async fn revert(&self, volume: u32, snapshot: u32) -> StoreResult {
        let (v, s) = (self.0.dataset(volume)?, self.0.dataset(snapshot)?);
        if s.kind != Kind::Snapshot || s.parent.get() != volume {
            return Err(StoreError::Request(format!(
                "dataset {snapshot} is no snapshot of dataset {volume}"
            )));
        }
        if self.0.is_outdated(&s) {
            return Err(StoreError::Request(format!(
                "dataset {volume} has snapshots newer than {snapshot}, or one of that instant that is still being \
                 given back: delete those first, and wait for that"
            )));
        }
        let done = Rc::new(std::cell::Cell::new(false));
        let (d, s2, shaped) = (done.clone(), s.clone(), v.clone());
        let change: Action = Box::new(move |i| {
            if i.is_outdated(&s2) || s2.deleting.get() || v.deleting.get() {
                return;
            }
            d.set(true);
            for e in v.top.active.take().map.values().filter(|e| e.is_data()) {
                i.free_later(e.vbn);
            }
            let old = v.top.below.replace(s2.top.below.borrow().clone());
            v.len.set(s2.len.get());
            v.maps.set(v.maps.get() + 1);
            v.walked.set(0);
            i.losses.is_anew(v.id, 0, u64::MAX);
            i.losses.is_like(v.id, s2.id);
            if s2.fresh.get() {
                // No checkpoint since the snapshot: nothing else was changed.
                return;
            }
            let mut record = v.record(MapRoot::default(), 0);
            record.id = i.new_id();
            record.kind = Kind::Garbage;
            record.deleting = true;
            record.parent = 0;
            record.floor = s2.epoch;
            let garbage = Dataset::new(&record);
            garbage.top.below.replace(old);
            v.dead.set((NodePtr::NONE, 0));
            i.datasets.borrow_mut().insert(garbage.id, garbage);
        });
        let i = self.0.clone();
        let me = i.clone();
        let work = async move {
            // Whoever changes its size comes to an end first.
            let unlocked = has(Bug::WrittenBeyondTheEnd);
            let _only = if unlocked { None } else { Some(shaped.shape.acquire(1).await) };
            me.act(change).await
        };
        i.to_the_end(work).await.unwrap_or(Err(IoError::Offline.into()))?;
        match done.get() {
            true => Ok(()),
            false => Err(StoreError::Request(format!(
                "dataset {volume} was changed meanwhile: it has a newer snapshot or is deleted"
            ))),
        }
    }

    /// Changes the size of a volume. What is cut off is lost.
    ///
    /// # Errors
    /// It is no volume, the size is no multiple of its block size, or the pool cannot be written.
    pub async fn resize(&self, volume: u32, len: u64) -> StoreResult {
        // One life: what is changed in one that was suspended meanwhile must not be answered by the next.
        let i = self.0.clone();
        let v = i.dataset(volume)?;
        let whole = len > 0 && len.is_multiple_of(u64::from(v.block_size));
        if !v.is_volume() || !whole || len > MAX_LBA * BLOCK as u64 {
            return Err(StoreError::Request(format!(
                "dataset {volume} cannot be made {len} bytes long"
            )));
        }
        // Also when nobody waits for that any more: half of it is no size at all.
        let me = i.clone();
        let work = async move { me.set_len(&v, len).await };
        i.to_the_end(work).await.unwrap_or(Err(IoError::Offline.into()))
    }

    /// Makes a checkpoint: restarting needs nothing of the log before it.
    ///
    /// # Errors
    /// The pool cannot be written.
    pub async fn checkpoint(&self) -> StoreResult {
        Ok(self.0.checkpoint_now().await?)
    }

    /// Ends all work on the pool after a last checkpoint. Nothing that was begun changes a device afterwards, but for writes
    /// that were given up with the device that they went to. It comes to its end also when nobody waits for it any more.
    ///
    /// # Errors
    /// The checkpoint could not be made; the log still has everything.
    pub async fn close(&self) -> StoreResult {
        let me = self.clone();
        let work = async move {
            loop {
                let i = me.0.clone();
                i.end_upkeep().await;
                // Whoever has the pool go on, or gives it a device, comes to an end first.
                let _only = i.upkeep.changes.acquire(1).await;
                if Rc::ptr_eq(&i, &me.0) {
                    return Ok(i.close().await?);
                }
            }
        };
        match has(Bug::HalfClosed) {
            true => work.await,
            false => spawn(work).await.unwrap_or(Err(IoError::Offline.into())),
        }
    }
}

//! What pools carry of the configuration on their devices, and what may not be done while that is newer than what this node has.
//!
//! A pool is looked into when it is opened, before anything is written, moved or deleted in it because the configuration says so.
//! Until that has been done, and if its devices carry what this node does not know, it is closed to all of that: hosts are
//! served, and it can be released.

use super::*;
use crate::model::{Carried, IMAGES, Naa, Pool, Stamp, Volume};

/// What the devices of the pools that are up carry.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// As of which configuration.
    kept: BTreeMap<String, Arc<Model>>,
    /// Why the newest could not be written, or nothing could be read.
    failed: BTreeMap<String, Error>,
    /// They carry what this node does not know, and nothing of it is overwritten.
    newer: BTreeSet<String>,
    /// Volumes that are in the newer ones, as these say.
    held: BTreeMap<String, BTreeSet<Naa>>,
    /// All volumes of the newer ones of which that is known for sure.
    whole: BTreeMap<String, BTreeSet<Naa>>,
    /// They were looked into, and carry nothing that this node does not know.
    open: BTreeSet<String>,
    /// In which lives it was written that they carry, but for the present one.
    lives: BTreeMap<String, BTreeSet<String>>,
}

impl Records {
    /// A newer pool that has a volume, where this configuration has it in another one.
    pub(super) fn newer_with(&self, v: &Volume) -> Option<&String> {
        let has_it =
            |(pool, held): &(&String, &BTreeSet<Naa>)| **pool != v.pool && held.contains(&v.naa);
        self.held.iter().find(has_it).map(|(pool, _)| pool)
    }

    /// Whether the pool of a volume is newer, and says that the volume is not there.
    pub(super) fn newer_without(&self, v: &Volume) -> bool {
        let known = self.whole.get(&v.pool).is_some_and(|all| !all.contains(&v.naa));
        known && !has(Bug::ServedWhereNoMore)
    }

    /// Whether any pool is newer and has volumes.
    pub(super) fn any_newer(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether a pool was looked into, and carries nothing that this node does not know.
    pub(super) fn is_known(&self, pool: &str) -> bool {
        self.open.contains(pool)
    }

    fn retain(&mut self, f: impl Fn(&String) -> bool) {
        self.kept.retain(|name, _| f(name));
        self.failed.retain(|name, _| f(name));
        self.newer.retain(&f);
        self.held.retain(|name, _| f(name));
        self.whole.retain(|name, _| f(name));
        self.open.retain(&f);
        self.lives.retain(|name, _| f(name));
    }
}

fn object(pool: &str) -> String {
    format!("record/{pool}")
}

fn newer(pool: &str, revision: u64) -> Error {
    Error::new(
        Code::RecordNewer,
        format!("the devices of pool `{pool}` carry a newer configuration than this node has"),
    )
    .because(format!(
        "they have it as of revision {revision} of a store that this one does not know: this is an older copy, or another node had the pool"
    ))
    .hint(format!(
        "nothing of it is overwritten, moved or deleted. `weir pool release {pool}`, then `weir pool import` takes what the devices carry"
    ))
}

fn foreign(pool: &str, why: String) -> Error {
    Error::new(
        Code::RecordNewer,
        format!("the devices of pool `{pool}` carry a configuration that this program does not understand"),
    )
    .because(why)
    .hint(format!(
        "nothing of it is overwritten, moved or deleted. `weir pool release {pool}`, then `weir pool import` by the program that wrote it"
    ))
}

fn behind(pool: &str) -> impl Fn(Error) -> Error {
    move |e| {
        Error::new(
            Code::RecordBehind,
            format!("the devices of pool `{pool}` do not carry the newest configuration"),
        )
        .because(e)
        .hint("it is tried again every second; a full pool needs some room. Until then another node that takes the pool over may lack names, mappings and keys")
    }
}

/// The pools that a volume is in, was in or goes to.
fn pools_of(v: &Volume) -> impl Iterator<Item = &String> {
    std::iter::once(&v.pool).chain(v.migration.as_ref().map(|m| &m.pool))
}

impl Controller {
    /// Why the devices of a pool do not carry what they should, if that is so.
    pub(super) fn not_carried(&self, pool: &str) -> Option<Error> {
        self.up().records.failed.get(pool).cloned()
    }

    /// Why nothing in a pool that is up may be written, moved or deleted by this configuration, if that is so.
    pub(super) fn closed(&self, pool: &str) -> Option<Error> {
        let is_protected = self.model().pools.get(pool).is_some_and(|p| p.protection.is_some());
        let up = self.up();
        if !is_protected
            || !up.pools.contains(pool)
            || up.records.open.contains(pool)
            || has(Bug::NewerIsOpen)
        {
            return None;
        }
        let unknown = || {
            Error::new(
                Code::NotReady,
                format!("what the devices of pool `{pool}` carry was not read yet"),
            )
            .hint("try again in a moment")
        };
        Some(up.records.failed.get(pool).cloned().unwrap_or_else(unknown))
    }

    /// Whether the devices of a pool that is up carry what this node does not know.
    pub(super) fn is_newer(&self, pool: &str) -> bool {
        self.up().records.newer.contains(pool)
    }

    /// Refuses to write, move or delete in a pool that is up and [closed](Self::closed).
    pub(super) fn check_open(&self, pool: &str) -> Result<()> {
        self.closed(pool).map_or(Ok(()), Err)
    }

    /// Refuses what has to find a pool's devices: of what is not there, such as a directory that is not mounted, nothing is found, and
    /// nothing can be deleted.
    pub(super) fn check_pool_up(&self, pool: &str) -> Result<()> {
        match pool == IMAGES || self.up().pools.contains(pool) {
            true => Ok(()),
            false => Err(self.not_ready("pool", pool)),
        }
    }

    /// Refuses to write, move or delete what is known of a volume in its places before all of their pools have been looked into.
    pub(super) fn check_places(&self, model: &Model, v: &Volume) -> Result<()> {
        for name in pools_of(v) {
            let is_protected = model.pool_at(name)?.protection.is_some();
            if is_protected || !has(Bug::AwayIsEmpty) {
                self.check_pool_up(name)?;
            }
            self.check_open(name)?;
        }
        Ok(())
    }

    /// Refuses a command that writes, moves or deletes in a closed pool.
    pub(super) fn check_not_closed(&self, command: &Command, model: &Model) -> Result<()> {
        let of_volume = |name: &String| match model.volumes.get(name) {
            Some(v) => pools_of(v).try_for_each(|p| self.check_open(p)),
            None => Ok(()),
        };
        match command {
            Command::DeletePool { name } => self.check_open(name),
            Command::CreateVolume(spec) => self.check_open(&spec.pool),
            Command::CloneVolume { spec, .. } => of_volume(&spec.volume),
            Command::StartMigration { name, spec } => {
                spec.pool.iter().try_for_each(|p| self.check_open(p))?;
                of_volume(name)
            }
            // Also a write protection is put into effect with all else that is known of the volume, its size with it.
            Command::PatchVolume { name, patch } => match patch.serve_here {
                true => Ok(()),
                false => of_volume(name),
            },
            Command::DeleteVolume { name }
            | Command::RekeyVolume { name, .. }
            | Command::ChangeLayers { name, .. }
            | Command::EndMigration { name, .. } => of_volume(name),
            Command::SetSnapshotRules(spec) => spec.volumes.iter().try_for_each(of_volume),
            _ => Ok(()),
        }
    }

    /// Looks into a pool that has just been opened, and is not up yet. What fails is a fault.
    pub(super) async fn look_into(&self, pool: &Pool) {
        if pool.protection.is_none() || self.up().pools.contains(&pool.name) {
            return;
        }
        // One of its name may have been here before.
        self.up().records.retain(|name| *name != pool.name);
        let model = self.model();
        let done = self.read_record(pool, &model).await.map(drop);
        self.tell_record(&pool.name, done);
        self.close_moved().await;
    }

    /// Reads what the devices of a pool carry, and opens the pool to this configuration if that knows all of it.
    async fn read_record(&self, pool: &Pool, model: &Model) -> Result<Carried> {
        let name = &pool.name;
        let there = self.plane.record(pool).await.map_err(behind(name))?;
        let stamps = there.stamps();
        let id = pool.protection.as_ref().map(|p| p.id);
        let knows = |s: &Stamp| id.is_some_and(|id| self.store.knows(s, id, model.revision));
        let unknown = stamps.iter().find(|s| !knows(s));
        let mut guard = self.up();
        let records = &mut guard.records;
        records.lives.insert(name.clone(), stamps.iter().map(|s| s.life.clone()).collect());
        if let Some(s) = unknown {
            records.newer.insert(name.clone());
            records.held.insert(name.clone(), there.holds());
            records.whole.extend(there.whole().map(|all| (name.clone(), all)));
            return Err(newer(name, s.revision));
        }
        if let Some(why) = there.foreign() {
            records.newer.insert(name.clone());
            return Err(foreign(name, why));
        }
        records.open.insert(name.clone());
        Ok(there)
    }

    /// Has the devices of protected pools carry what the configuration says of these. What fails is a fault, and tried again with the
    /// next sample. The caller holds `changes`, or is alone.
    pub(super) async fn put_records(&self) {
        let model = self.model();
        let is_up = |p: &&Pool| p.protection.is_some() && self.up().pools.contains(&p.name);
        let pools: Vec<&Pool> = model.pools.values().filter(is_up).collect();
        {
            let mut guard = self.up();
            let up = &mut *guard;
            let is_there = |name: &String| pools.iter().any(|p| p.name == *name);
            for name in up.records.failed.keys().filter(|n| !is_there(n)) {
                if up.faults.remove(&object(name)).is_some() {
                    let text = format!("pool `{name}` is not up any more");
                    self.events.publish("fault.ended", &format!("pool/{name}"), &text);
                }
            }
            up.records.retain(is_there);
        }
        for pool in pools {
            let done = self.put_record(pool, &model).await;
            self.tell_record(&pool.name, done);
        }
        // What could not be read when the pools were opened may be newer, too.
        self.close_moved().await;
    }

    /// Keeps what came of it for `status`, and tells once what has changed.
    fn tell_record(&self, name: &String, done: Result<()>) {
        let mut guard = self.up();
        let up = &mut *guard;
        match done {
            Ok(()) => {
                if up.records.failed.remove(name).is_some() {
                    up.faults.remove(&object(name));
                    let text = format!("the devices of pool `{name}` carry the newest again");
                    self.events.publish("fault.ended", &format!("pool/{name}"), &text);
                }
            }
            // Once, not every second.
            Err(e) if up.records.failed.get(name) == Some(&e) => {}
            Err(e) => {
                tracing::error!("{e}");
                self.events.publish("fault.began", &format!("pool/{name}"), &e.to_string());
                up.faults.insert(object(name), e.clone());
                up.records.failed.insert(name.clone(), e);
            }
        }
    }

    async fn put_record(&self, pool: &Pool, model: &Arc<Model>) -> Result<()> {
        let name = &pool.name;
        let (kept, failed) = {
            let up = self.up();
            let records = &up.records;
            (records.kept.get(name).cloned(), records.failed.get(name).cloned())
        };
        if kept.as_ref().is_some_and(|k| k.revision == model.revision) {
            return Ok(());
        }
        if let Some(e) = failed
            && self.up().records.newer.contains(name)
        {
            return Err(e);
        }
        let stamp = self.store.stamp(model.revision);
        let parts = match &kept {
            Some(before) => model.changed_parts(name, before, &stamp)?,
            None => {
                let mut there = self.read_record(pool, model).await?;
                self.forget_lives(model).await.map_err(behind(name))?;
                if !there.head_stamp().is_some_and(|s| self.store.is_own(&s))
                    && !has(Bug::TenureUnmarked)
                {
                    // Whoever had the pool before is to see that somebody has it, though nothing of the configuration changes: what
                    // was still to be done there is not to be done to what hosts write from now on.
                    there.parts.remove(&0);
                }
                model.missing_parts(name, &there, &stamp)?
            }
        };
        if !parts.is_empty() {
            let (store, now) = (self.store.clone(), model.clone());
            blocking(move || store.begin_life(&now)).await.map_err(behind(name))?;
            // Until it is known to have come to its end, they may carry some of it: whoever tries again looks at them.
            if !has(Bug::KeptThoughFailed) {
                self.up().records.kept.remove(name);
            }
            self.plane.keep_record(pool, &parts).await.map_err(behind(name))?;
        }
        self.up().records.kept.insert(name.clone(), model.clone());
        Ok(())
    }

    /// Has the store forget lives in which nothing was written that a pool carries, once all pools have been looked into.
    async fn forget_lives(&self, model: &Model) -> Result<()> {
        let borne: BTreeSet<String> = {
            let lives = &self.up().records.lives;
            let mut pools = model.pools.values().filter(|p| p.protection.is_some());
            if !pools.all(|p| lives.contains_key(&p.name)) {
                return Ok(());
            }
            lives.values().flatten().cloned().collect()
        };
        let store = self.store.clone();
        blocking(move || store.forget_lives(&borne)).await
    }

    /// Refuses a command that makes what could not be made up, such as a key, if no pool carries it. The caller puts back
    /// what was before.
    pub(super) fn check_carried(&self, command: &Command, new: &Model) -> Result<()> {
        let volume = match command {
            Command::CreateVolume(spec) => &spec.name,
            Command::CloneVolume { spec, .. } => &spec.name,
            Command::RekeyVolume { name, .. } => name,
            _ => return Ok(()),
        };
        let pool = &new.volume(volume)?.pool;
        match self.not_carried(pool) {
            Some(e) => Err(Error::new(e.code, format!("volume `{volume}` is as it was"))
                .because(format!("{}: {}", e.message, e.reason))
                .hint(e.hint)),
            None => Ok(()),
        }
    }
}

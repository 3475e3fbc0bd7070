//! What pools carry of the configuration on their devices, and pools that are taken over by that.

use super::*;
use crate::model::{Device, DeviceSpec, ImportReport, ImportSpec, Pool, PoolFound, Stamp};

/// What the devices of the pools that are up carry.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// As of which configuration.
    kept: BTreeMap<String, Arc<Model>>,
    /// Why the newest could not be written.
    failed: BTreeMap<String, Error>,
    /// They carry what this node does not know, and nothing of it is overwritten.
    newer: BTreeSet<String>,
    /// In which lives it was written that they carry, but for the present one.
    lives: BTreeMap<String, BTreeSet<String>>,
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
        "nothing of it is overwritten. `weir pool release {pool}`, then `weir pool import` takes what the devices carry"
    ))
}

impl Controller {
    /// Why the devices of a pool do not carry what they should, if that is so.
    pub(super) fn not_carried(&self, pool: &str) -> Option<Error> {
        self.up().records.failed.get(pool).cloned()
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
            let gone: Vec<String> =
                up.records.failed.keys().filter(|n| !is_there(n)).cloned().collect();
            for name in gone {
                up.records.failed.remove(&name);
                up.faults.remove(&object(&name));
            }
            up.records.kept.retain(|name, _| is_there(name));
            up.records.newer.retain(is_there);
            up.records.lives.retain(|name, _| is_there(name));
        }
        for pool in pools {
            let name = &pool.name;
            let done = self.put_record(pool, &model).await;
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
        let behind = |e: Error| {
            Error::new(
                Code::RecordBehind,
                format!("the devices of pool `{name}` do not carry the newest configuration"),
            )
            .because(e)
            .hint("it is tried again every second; a full pool needs some room. Until then another node that takes the pool over may lack names, mappings and keys")
        };
        let stamp = self.store.stamp(model.revision);
        let parts = match &kept {
            Some(before) => model.changed_parts(name, before, &stamp)?,
            None => {
                let there = self.plane.record(pool).await.map_err(behind)?;
                let stamps = there.stamps();
                let lives = stamps.iter().map(|s| s.life.clone()).collect();
                self.up().records.lives.insert(name.clone(), lives);
                let id = pool.protection.as_ref().map(|p| p.id);
                let knows =
                    |s: &Stamp| id.is_some_and(|id| self.store.knows(s, id, model.revision));
                if let Some(s) = stamps.iter().find(|s| !knows(s)) {
                    self.up().records.newer.insert(name.clone());
                    return Err(newer(name, s.revision));
                }
                self.forget_lives(model).await.map_err(behind)?;
                model.missing_parts(name, &there, &stamp)?
            }
        };
        if !parts.is_empty() {
            let (store, now) = (self.store.clone(), model.clone());
            blocking(move || store.begin_life(&now)).await.map_err(behind)?;
            self.plane.keep_record(pool, &parts).await.map_err(behind)?;
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

    /// Takes a pool over from devices that another configuration made it of, or tells what that would bring.
    pub async fn import_pool(self: &Arc<Self>, spec: ImportSpec) -> Result<ImportReport> {
        let me = self.clone();
        finish(tokio::spawn(async move {
            let _one = me.changes.lock().await;
            let model = me.model();
            // Before anything is opened: what is in use here is not to be found.
            model.check_devices(&spec.devices)?;
            let device = |d: &DeviceSpec| Device::known(d.kind, d.path.clone(), 0);
            let devices: Vec<Device> = spec.devices.iter().map(device).collect();
            let found: PoolFound = me.plane.find_pool(&devices, spec.force).await?;
            let report = model.plan_import(&spec, &found)?;
            if spec.dry_run {
                return Ok(report);
            }
            // What the devices carry is part of this configuration from now on.
            let (store, stamps, id) = (me.store.clone(), found.record.stamps(), found.id);
            blocking(move || store.take_over(&stamps, id)).await?;
            me.change(Command::ImportPool { spec, found }).await?;
            Ok(report)
        }))
        .await
    }

    /// Lets go of a protected pool and its volumes, which stay on its devices.
    pub async fn release_pool(self: &Arc<Self>, name: String) -> Result<()> {
        let me = self.clone();
        finish(tokio::spawn(async move {
            let _one = me.changes.lock().await;
            // A pool that is not up leaves with what its devices carry already, and so does one that carries something newer.
            if me.up().pools.contains(&name) {
                me.put_records().await;
                if let Some(e) = me.not_carried(&name).filter(|e| e.code != Code::RecordNewer) {
                    return Err(Error::new(e.code, format!("pool `{name}` cannot be released"))
                        .because(e)
                        .hint("`weir pool show` tells how the pool stands; a full one needs some room"));
                }
            }
            me.change(Command::ReleasePool { name }).await.map(drop)
        }))
        .await
    }

    /// Closes what is released, hosts first.
    pub(super) async fn finish_release(&self, name: &str, old: &Model, new: &Model) -> Result<()> {
        self.plane.set_mappings(&new.access()).await?;
        for v in old.volumes_of_pool(name) {
            self.plane.close_volume(&v.name).await?;
            let mut up = self.up();
            up.volumes.remove(&v.name);
            up.faults.remove(&format!("volume/{}", v.name));
        }
        self.plane.stop_pool(name).await?;
        let mut up = self.up();
        up.pools.remove(name);
        up.faults.remove(&format!("pool/{name}"));
        Ok(())
    }

    /// Opens a pool that was taken over, and its volumes: what does not start is a fault.
    pub(super) async fn finish_import(&self, pool: &Pool, force: bool) -> Result<Arc<Model>> {
        let sizes = match force {
            true => self.plane.force_pool(pool).await?,
            false => self.plane.start_pool(pool).await?,
        };
        self.pool_started(pool, sizes).await?;
        self.bring_up().await;
        Ok(self.model())
    }
}

//! Protected pools: how they stand, snapshots, clones, scrub.

use super::*;
use crate::dataplane::{Inside, ScrubAction};
use crate::live::{GraphLive, ScrubLive, SnapshotLive};
use crate::model::{
    CloneSpec, DeviceAction, DeviceUse, IMAGES, Pool, PoolInfo, Volume, VolumeState, check_name,
    check_own_name, check_snapshot_name, not_protected,
};
use std::collections::BTreeMap;

fn told(action: &DeviceAction) -> String {
    match action {
        DeviceAction::Put { device, r#as, .. } => {
            let path = device.path.as_deref().unwrap_or_default();
            match r#as {
                DeviceUse::Member => format!("{path} added"),
                DeviceUse::Spare => format!("{path} added as a spare"),
                DeviceUse::Replace(n) => format!("{path} takes the place of device {n}"),
                DeviceUse::Back => format!("{path} is back"),
            }
        }
        DeviceAction::Drain { number } => format!("everything is moved off device {number}"),
        DeviceAction::Cancel { number } => format!("nothing more is done about device {number}"),
        DeviceAction::Remove { number } => format!("device {number} removed"),
        DeviceAction::Resync => "they are being brought up to date".into(),
        DeviceAction::Resume => "goes on".into(),
    }
}

fn plain(volume: &str) -> Error {
    Error::new(Code::Unsupported, format!("volume `{volume}` is in no pool"))
        .because("snapshots and clones are those of protected pools")
        .hint(format!("move it to one with `weir migrate start {volume} --to POOL`"))
}

fn no_snapshot(volume: &str, name: &str) -> Error {
    Error::new(Code::SnapshotNotFound, format!("there is no snapshot `{volume}@{name}`"))
        .hint("`weir snapshot list` shows what there is")
}

impl Controller {
    /// One pool, with what a protected one says of itself.
    pub async fn pool_info(&self, name: &str) -> Result<PoolInfo> {
        let info = self.model().pool_info(name)?;
        Ok(self.with_live(vec![info]).await?.remove(0))
    }

    /// All pools.
    pub async fn pool_infos(&self) -> Result<Vec<PoolInfo>> {
        let model = self.model();
        let all: Result<Vec<_>> = model.pools.keys().map(|n| model.pool_info(n)).collect();
        self.with_live(all?).await
    }

    async fn with_live(&self, mut pools: Vec<PoolInfo>) -> Result<Vec<PoolInfo>> {
        if pools.iter().all(|p| p.protection.is_none()) {
            return Ok(pools);
        }
        let mut live = self.plane.status().await?.pools;
        self.count_damage(&mut live);
        self.pace_pools(&mut live);
        for p in pools.iter_mut().filter(|p| p.protection.is_some()) {
            let found = live.iter().find(|l| l.name == p.name).cloned();
            (p.capacity, p.free) = found.as_ref().map_or((0, 0), |l| (l.total, l.free));
            p.allocated = p.capacity - p.free.min(p.capacity);
            p.live = found;
        }
        Ok(pools)
    }

    /// As [`protected`](Self::protected), for what is done with single devices.
    fn has_devices(&self, model: &Model, name: &str) -> Result<()> {
        match model.pool(name)?.protection {
            None => Err(not_protected(name)),
            Some(_) => self.protected(model, name).map(drop),
        }
    }

    /// The protected pool of that name, which must be up.
    fn protected<'a>(&self, model: &'a Model, name: &str) -> Result<&'a Pool> {
        let pool = model.pool(name)?;
        if pool.protection.is_none() {
            return Err(Error::new(Code::Unsupported, format!("pool `{name}` is a plain pool"))
                .because("snapshots, clones and scrub are those of protected pools")
                .hint("make one with `weir pool create NAME --raid 1 --device … --device …`"));
        }
        if !self.up().pools.contains(name) {
            return Err(self.not_ready("pool", name));
        }
        Ok(pool)
    }

    /// All snapshots, or those of one volume.
    pub async fn snapshots(&self, volume: Option<&str>) -> Result<Vec<SnapshotLive>> {
        let model = self.model();
        let names: BTreeMap<String, &Volume> =
            model.volumes.values().map(|v| (v.dataset(), v)).collect();
        let pools: Vec<&Pool> = match volume {
            Some(v) if model.volume(v)?.pool == IMAGES => return Err(plain(v)),
            Some(v) => vec![self.protected(&model, &model.volume(v)?.pool)?],
            None => {
                let up = self.up().pools.clone();
                let all = model.pools.values();
                all.filter(|p| p.protection.is_some() && up.contains(&p.name)).collect()
            }
        };
        let name_of = |naa: &str| names.get(naa).map(|v| v.name.clone());
        let mut found = Vec::new();
        for pool in pools {
            for mut s in self.plane.snapshots(pool).await? {
                let (naa, name) = s.dataset.split_once('@').unwrap_or((&s.dataset, ""));
                s.volume = name_of(naa).unwrap_or_default();
                if let Some(v) = names.get(naa) {
                    s.size = v.form().seen_len(s.size);
                }
                s.name = name.to_string();
                s.pool.clone_from(&pool.name);
                s.clones = s.clones.iter().map(|c| name_of(c).unwrap_or(c.clone())).collect();
                if volume.is_none_or(|v| v == s.volume) {
                    found.push(s);
                }
            }
        }
        found.sort_by(|a, b| (&a.volume, a.created, &a.name).cmp(&(&b.volume, b.created, &b.name)));
        Ok(found)
    }

    async fn snapshot(&self, volume: &str, name: &str) -> Result<SnapshotLive> {
        check_snapshot_name(name)?;
        let all = self.snapshots(Some(volume)).await?;
        all.into_iter().find(|s| s.name == name).ok_or_else(|| no_snapshot(volume, name))
    }

    /// Makes snapshots of several volumes at one instant.
    pub async fn take_snapshots(
        self: &Arc<Self>,
        wanted: Vec<(String, String)>,
    ) -> Result<Vec<SnapshotLive>> {
        let me = self.clone();
        finish(spawn(async move {
            let _one = me.sure_turn().await?;
            me.take_snapshots_locked(&wanted).await
        }))
        .await
    }

    /// Refuses to delete a volume that has snapshots: once begun, a deletion goes on to its end.
    pub(super) async fn check_unused(&self, command: &Command, model: &Model) -> Result<()> {
        let (Command::DeleteVolume { name } | Command::StartMigration { name, .. }) = command
        else {
            return Ok(());
        };
        let volume = model.volume(name)?;
        let is_protected = model.pool_at(&volume.pool)?.protection.is_some();
        if volume.state != VolumeState::Ready || !is_protected {
            return Ok(());
        }
        let found = self.snapshots(Some(name)).await?;
        let Some(first) = found.first() else { return Ok(()) };
        Err(Error::new(Code::SnapshotInUse, format!("volume `{name}` has snapshots"))
            .because(format!("{} of them, for example `{name}@{}`", found.len(), first.name))
            .hint(format!(
                "they cannot go elsewhere; delete them first: weir snapshot delete {name}@{}",
                first.name
            )))
    }

    async fn take_snapshots_locked(
        &self,
        wanted: &[(String, String)],
    ) -> Result<Vec<SnapshotLive>> {
        let model = self.model();
        let Some((first, _)) = wanted.first() else {
            return Err(Error::new(Code::InvalidRequest, "no volume is named")
                .hint("name at least one, e.g. `weir snapshot create db-01@before`"));
        };
        if model.volume(first)?.pool == IMAGES {
            return Err(plain(first));
        }
        let pool = self.protected(&model, &model.volume(first)?.pool)?;
        let mut asked = Vec::new();
        for (i, (volume, name)) in wanted.iter().enumerate() {
            check_own_name(name)?;
            let v = model.volume(volume)?;
            model.check_still(volume)?;
            if v.pool != pool.name {
                return Err(Error::new(Code::InvalidRequest, "the volumes are in several pools")
                    .because(format!("`{first}` is in `{}`, `{volume}` in `{}`", pool.name, v.pool))
                    .hint("snapshots of one instant are possible within a pool; make them one after the other"));
            }
            if !self.up().volumes.contains(volume) {
                return Err(self.not_ready("volume", volume));
            }
            if wanted[..i].contains(&wanted[i]) {
                let text = format!("snapshot `{volume}@{name}` is named twice");
                return Err(Error::new(Code::InvalidRequest, text).hint("name each once"));
            }
            if self.snapshot(volume, name).await.is_ok() {
                return Err(Error::new(
                    Code::SnapshotExists,
                    format!("snapshot `{volume}@{name}` exists"),
                )
                .hint("choose another name"));
            }
            asked.push((v.dataset(), name.clone()));
        }
        self.plane.take_snapshots(pool, &asked).await?;
        let mut made = Vec::new();
        for (volume, name) in wanted {
            let s = self.snapshot(volume, name).await?;
            self.tell("snapshot.created", volume, name, "made");
            made.push(s);
        }
        Ok(made)
    }

    fn tell(&self, kind: &str, volume: &str, name: &str, what: &str) {
        let object = format!("snapshot/{volume}@{name}");
        self.events.publish(kind, &object, &format!("snapshot `{volume}@{name}` {what}"));
    }

    /// Deletes a snapshot that no volume was made of.
    pub async fn delete_snapshot(self: &Arc<Self>, volume: String, name: String) -> Result<()> {
        let me = self.clone();
        finish(spawn(async move {
            let _one = me.sure_turn().await?;
            let model = me.model();
            let s = me.snapshot(&volume, &name).await?;
            // What failed half way, and is made at the next start or taken back, is not on the devices yet.
            let is_of = |v: &&Volume| v.layout.origin() == Some(&s.dataset);
            let coming = model.volumes.values().find(is_of).map(|v| &v.name);
            if let Some(c) = s.clones.first().or(coming.filter(|_| !has(Bug::OriginDeleted))) {
                return Err(Error::new(
                    Code::SnapshotInUse,
                    format!("snapshot `{volume}@{name}` is needed"),
                )
                .because(format!("volume `{c}` was made of it"))
                .hint("delete that volume first"));
            }
            let pool = me.protected(&model, &s.pool)?;
            me.check_open(&pool.name)?;
            me.plane.delete_snapshot(pool, &s.dataset).await?;
            me.tell("snapshot.deleted", &volume, &name, "deleted");
            Ok(())
        }))
        .await
    }

    /// Makes a volume that no host sees what it was at its newest snapshot.
    pub async fn revert(self: &Arc<Self>, volume: String, name: String) -> Result<Volume> {
        let me = self.clone();
        finish(spawn(async move {
            let _one = me.sure_turn().await?;
            let model = me.model();
            let v = model.volume(&volume)?;
            model.check_still(&volume)?;
            let s = me.snapshot(&volume, &name).await?;
            if let Some(m) = model.maps.iter().find(|m| m.volume == volume) {
                return Err(Error::new(
                    Code::VolumeMapped,
                    format!("volume `{volume}` is still mapped"),
                )
                .because(format!(
                    "host `{}` sees it as LUN {}, and has some of it in memory",
                    m.host, m.lun
                ))
                .hint(format!("unmap it first: weir map delete {} {volume}", m.host)));
            }
            if s.size != v.size {
                return Err(Error::new(
                    Code::InvalidSize,
                    format!("volume `{volume}` had another size when `{volume}@{name}` was made"),
                )
                .because(format!("{} bytes, now {}", s.size, v.size))
                .hint(format!(
                    "give it that size first: weir volume resize {volume} {} --allow-shrink",
                    s.size
                )));
            }
            let pool = me.protected(&model, &s.pool)?;
            me.check_open(&pool.name)?;
            me.plane.revert_volume(pool, v, &s.dataset).await?;
            me.tell("snapshot.reverted", &volume, &name, "is what the volume is again");
            Ok(v.clone())
        }))
        .await
    }

    /// Makes a volume of a snapshot.
    pub async fn clone_volume(self: &Arc<Self>, spec: CloneSpec) -> Result<Arc<Model>> {
        let me = self.clone();
        finish(spawn(async move {
            me.warm_of(&spec.volume).await?;
            let _one = me.settled_turn().await?;
            check_name("volume", &spec.name)?;
            let size = me.snapshot(&spec.volume, &spec.snapshot).await?.size;
            me.change(Command::CloneVolume { spec, size }).await
        }))
        .await
    }

    /// Begins, ends or looks at a scrub.
    pub async fn scrub(&self, pool: &str, action: ScrubAction) -> Result<Option<ScrubLive>> {
        let model = self.model();
        let mut live = self.plane.scrub(self.protected(&model, pool)?, action).await?;
        live.iter_mut().for_each(|l| self.name_findings(l));
        live.iter_mut().for_each(|l| self.pace_scrub(pool, l));
        Ok(live)
    }

    /// Opens a protected pool that lacks devices which may have what the others have not.
    pub async fn force_pool(self: &Arc<Self>, name: String) -> Result<PoolInfo> {
        let me = self.clone();
        finish(spawn(async move {
            let _one = me.turn().await?;
            let model = me.model();
            let pool = model.pool(&name)?;
            if pool.protection.is_none() {
                return me.protected(&model, &name).map(drop).and(me.pool_info(&name).await);
            }
            if me.has_opened() {
                // It may be up by itself.
                me.bring_up().await;
            }
            if !me.up().pools.contains(&name) {
                let sizes = me.plane_force(pool).await?;
                me.pool_started(pool, sizes).await?;
                let object = format!("pool/{name}");
                me.events.publish(
                    "pool.forced",
                    &object,
                    &format!("pool `{name}` opened by force"),
                );
                me.bring_up().await;
            }
            me.pool_info(&name).await
        }))
        .await
    }

    /// Does something about the devices of a protected pool. What takes long goes on in the background.
    pub async fn pool_device(
        self: &Arc<Self>,
        name: String,
        action: DeviceAction,
    ) -> Result<PoolInfo> {
        let me = self.clone();
        finish(spawn(async move {
            // Before it is asked, and again in its turn.
            me.has_devices(&me.model(), &name)?;
            let path = match &action {
                DeviceAction::Put { device, .. } => device.path.as_deref(),
                _ => None,
            };
            me.ask(path.into_iter().collect()).await?;
            let _one = me.turn().await?;
            let model = me.model();
            me.has_devices(&model, &name)?;
            let before = me.pool_info(&name).await?;
            if let DeviceAction::Put { device, r#as, overwrite } = &action {
                let named = model.pool(&name)?.devices.iter().any(|d| d.path == device.path);
                let inside = match (r#as, named) {
                    // Only the pool's own data is taken back.
                    (DeviceUse::Back, _) => Inside::Anything,
                    (_, true) => Inside::OwnOr(overwrite),
                    (_, false) => Inside::Only(overwrite),
                };
                let mut new = Model::clone(&model);
                new.apply(Command::PutDevice { name: name.clone(), device: device.clone() }, 0)?;
                let devices = std::slice::from_ref(device);
                me.plane_admit(&name, devices, inside).await?;
                // The configuration names it first: a device that the pool has must be found at the next start.
                if let Err(e) = me.commit(&model, new).await {
                    if let Err(e) = me.plane.dismiss(&name, devices).await {
                        tracing::warn!(
                            "pool {name}: a device that it does not get stays taken: {e}"
                        );
                    }
                    return Err(e);
                }
            }
            let now = me.model();
            if let Err(e) = me.plane.change_device(now.pool(&name)?, &action).await {
                // What failed late may have made it one of the pool's.
                let now = me.pool_info(&name).await.ok().and_then(|p| p.live);
                let has = |path: &Option<String>| {
                    now.iter().flat_map(|l| &l.devices).any(|d| d.path == *path)
                };
                if let DeviceAction::Put { device, .. } = &action
                    && !before.devices.iter().any(|d| d.path == device.path)
                    && !has(&device.path)
                {
                    let path = device.path.clone().unwrap_or_default();
                    me.drop_device(&name, path).await?;
                }
                return Err(e);
            }
            if let DeviceAction::Remove { number } = action {
                let live = before.live.iter().flat_map(|l| &l.devices);
                let path = live.filter(|d| d.number == number).find_map(|d| d.path.clone());
                let now = me.pool_info(&name).await.ok().and_then(|p| p.live);
                // Another one may have got that name.
                let named = |path: &String| {
                    now.iter().flat_map(|l| &l.devices).any(|d| d.path.as_ref() == Some(path))
                };
                if let Some(path) = path.filter(|p| !named(p) || has(Bug::NameOfAnother)) {
                    me.drop_device(&name, path).await?;
                }
            }
            me.know_devices(&name).await?;
            let text = format!("devices of pool `{name}`: {}", told(&action));
            me.events.publish("pool.devices", &format!("pool/{name}"), &text);
            me.pool_info(&name).await
        }))
        .await
    }

    async fn drop_device(&self, name: &str, path: String) -> Result<()> {
        let model = self.model();
        let mut new = Model::clone(&model);
        let changes = new.apply(Command::DropDevice { name: name.to_string(), path }, 0)?;
        if !changes.is_empty() {
            self.commit(&model, new).await?;
            for c in &changes {
                self.events.publish("pool.updated", &format!("pool/{name}"), &c.text);
            }
        }
        Ok(())
    }

    /// The device graph of a volume.
    pub async fn graph(&self, volume: &str) -> Result<GraphLive> {
        let model = self.model();
        model.volume(volume)?;
        if !self.up().volumes.contains(volume) {
            return Err(self.not_ready("volume", volume));
        }
        self.plane.graph(volume).await
    }
}

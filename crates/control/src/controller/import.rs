//! Pools that are taken over by what their devices carry of a configuration, and pools that are let go of.

use super::*;
use crate::model::{
    Carried, Device, DeviceSpec, ImportReport, ImportSpec, Pool, PoolFound, PoolId,
};

/// What cannot be read may be the only wrapped key of a volume, and the error may pass. With the pool the node would write over it.
fn unread() -> Error {
    Error::new(Code::IoError, "some of what the pool carries of its configuration cannot be read")
        .because("a device may fail for the moment only; a pool that is taken over carries what this node knows in its place")
        .hint("see to the devices and try again; --force takes what can be read, and the rest is lost. --dry-run tells what would come")
}

impl Controller {
    /// Takes a pool over from devices that another configuration made it of, or tells what that would bring.
    pub async fn import_pool(self: &Arc<Self>, spec: ImportSpec) -> Result<ImportReport> {
        let me = self.clone();
        finish(spawn(async move {
            let paths = spec.devices.iter().filter_map(|d| d.path.as_deref()).collect();
            me.ask(paths).await?;
            let _one = me.settled_turn().await?;
            let model = me.model();
            // Before anything is opened: what is in use here is not to be found.
            model.check_devices(&spec.devices)?;
            let device = |d: &DeviceSpec| Device::known(d.kind, d.path.clone(), 0);
            let devices: Vec<Device> = spec.devices.iter().map(device).collect();
            let mut found: PoolFound = me.plane.find_pool(&devices, spec.force).await?;
            let (stamps, id) = (found.record.stamps(), found.id);
            let is_older = me.count_what_was_kept(&mut found, &model).await?;
            let is_unread = !found.record.doubtful.is_empty() && !has(Bug::UnreadIsLost);
            if is_unread && !spec.force && !spec.dry_run {
                return Err(unread());
            }
            // One mapping that cannot be keeps the others from nothing.
            me.see(&me.plane.status().await?).await?;
            let mut after = Model::clone(&model);
            let all = Command::ImportPool {
                spec: spec.clone(),
                found: found.clone(),
                known: BTreeSet::new(),
            };
            after.apply(all, 0)?;
            let clashes = me.known.clashes(&model, &after).into_iter();
            let known: BTreeSet<_> = clashes.map(|c| (c.host, c.lun)).collect();
            let report = model.plan_import(&spec, &found, &known)?;
            if spec.dry_run {
                return Ok(report);
            }
            if is_older {
                // Before what makes the devices newer than it is forgotten.
                me.keep_released(id, BTreeMap::new()).await?;
            }
            // What the devices carry is part of this configuration from now on.
            let store = me.store.clone();
            blocking(move || store.take_over(&stamps, id)).await?;
            me.change(Command::ImportPool { spec, found, known }).await?;
            if let Err(e) = me.keep_released(id, BTreeMap::new()).await {
                // The next release puts something else in its place.
                tracing::warn!("what was known of pool {id} when it was let go of stays: {e}");
            }
            Ok(report)
        }))
        .await
    }

    async fn keep_released(&self, id: PoolId, parts: BTreeMap<u32, Vec<u8>>) -> Result<()> {
        let store = self.store.clone();
        blocking(move || store.keep_released(id, &parts)).await
    }

    /// What was answered while a pool was not there counts, though its devices do not carry it: unless they carry what this node does
    /// not know, which is newer. True: nothing was kept, or it is the older.
    async fn count_what_was_kept(&self, found: &mut PoolFound, model: &Model) -> Result<bool> {
        let (store, id) = (self.store.clone(), found.id);
        let kept = blocking(move || store.released(id)).await?;
        let is_known = |s: &crate::model::Stamp| self.store.knows(s, id, model.revision);
        let all_known = found.record.stamps().iter().all(is_known);
        // Whoever takes a pool over says so in the part with the pool itself, at least; an older program does not say who it is.
        let head = found.record.head_stamp();
        let is_ours = head.is_some_and(|s| self.store.is_own(&s))
            || !found.record.parts.contains_key(&0)
            || has(Bug::TenureUnmarked);
        if kept.is_empty()
            || !all_known
            || !is_ours
            || found.record.foreign().is_some()
            || has(Bug::LetGoIsForgotten)
        {
            return Ok(true);
        }
        found.record.parts = kept;
        Ok(false)
    }

    /// Keeps what the devices of a pool should carry that is let go of, if they are not there to be told. The caller holds `changes`.
    async fn keep_untold(&self, name: &str, is_told: bool) -> Result<()> {
        let model = self.model();
        let pool = model.pools.get(name).and_then(|p| p.protection.as_ref());
        let Some(id) = pool.map(|p| p.id) else { return Ok(()) };
        let parts = match is_told {
            true => Vec::new(),
            false => {
                let stamp = self.store.stamp(model.revision);
                model.missing_parts(name, &Carried::default(), &stamp)?
            }
        };
        self.keep_released(id, parts.into_iter().map(|p| (p.number, p.content)).collect()).await
    }

    /// Lets go of a protected pool and its volumes, which stay on its devices. If they carry a newer configuration, or are not there,
    /// volumes that move as this one says are no hindrance. Hosts that are logged in keep theirs; for a moment they are waited for.
    pub async fn release_pool(self: &Arc<Self>, name: String) -> Result<()> {
        let mut users = Vec::new();
        for _ in 0..mappings::LOOKS {
            users = self.release(name.clone(), false).await?;
            if users.is_empty() {
                return Ok(());
            }
            sleep(mappings::PAUSE).await;
        }
        let (host, volume) = users.first().cloned().unwrap_or_default();
        let more = match users.len() {
            0 | 1 => String::new(),
            n => format!(", and {} more of its mappings are in use", n - 1),
        };
        Err(Error::new(Code::VolumeMapped, format!("hosts may be using volumes of pool `{name}`"))
            .because(format!("host `{host}` is logged in and sees volume `{volume}`{more}"))
            .hint("end the use there and log them out first; --force takes the volumes away under them"))
    }

    /// The same whoever uses its volumes. Gives the mappings that were taken from hosts which are logged in: host and volume.
    pub async fn release_by_force(self: &Arc<Self>, name: String) -> Result<Vec<(String, String)>> {
        self.release(name, true).await
    }

    /// The mappings in use; without `force` nothing is done if there are some.
    async fn release(self: &Arc<Self>, name: String, force: bool) -> Result<Vec<(String, String)>> {
        let me = self.clone();
        finish(spawn(async move {
            let _one = me.settled_turn().await?;
            let users = me.users_of(&name).await?;
            if !users.is_empty() && !force {
                return Ok(users);
            }
            // A pool that carries something newer leaves with that.
            let is_up = me.up().pools.contains(&name);
            if me.is_opening(&name) {
                // Whether it is lost is not known yet.
                return Err(opening::being_opened(&name));
            }
            if is_up {
                me.put_records().await;
                if let Some(e) = me.not_carried(&name).filter(|_| !me.is_newer(&name)) {
                    return Err(Error::new(e.code, format!("pool `{name}` cannot be released"))
                        .because(e)
                        .hint("`weir pool show` tells how the pool stands; a full one needs some room"));
                }
            }
            let newer = me.is_newer(&name);
            // What it has is known here for the last time.
            me.note_newer().await?;
            me.keep_untold(&name, is_up).await?;
            let newer = newer || !is_up && !has(Bug::LostIsWaitedFor);
            me.last_damage().await;
            // Some may have logged in meanwhile.
            let users = me.users_of(&name).await?;
            if !users.is_empty() && !force {
                return Ok(users);
            }
            me.change(Command::ReleasePool { name, newer }).await.map(|_| users)
        }))
        .await
    }

    /// Closes what is released, hosts first.
    pub(super) async fn finish_release(&self, name: &str, old: &Model, new: &Model) -> Result<()> {
        self.put_mappings(new.access()).await?;
        for v in old.volumes_of_pool(name) {
            self.close_volume(&v.name).await?;
            let mut up = self.up();
            up.faults.remove(&format!("volume/{}", v.name));
            up.faults.remove(&format!("cut/{}", v.name));
        }
        for (v, _) in old.places_in(name) {
            self.forget_run(&v.name);
        }
        self.closing(name);
        self.plane_stop(name).await?;
        let mut up = self.up();
        up.pools.remove(name);
        up.faults.remove(&format!("pool/{name}"));
        Ok(())
    }

    /// Closes what is in use of a pool that was not taken over after all, as far as that goes.
    pub(super) async fn close_again(&self, name: &str, was: &Model, is: &Model) -> Result<()> {
        let mut first = self.put_mappings(is.access()).await;
        let volumes: BTreeSet<String> = was.volumes_of_pool(name).map(|v| v.name.clone()).collect();
        for v in &volumes {
            first = first.and(self.close_volume(v).await);
        }
        self.closing(name);
        if has(Bug::LeftOpen) && first.is_err() {
            return first;
        }
        // Below what hosts' commands are under way in, the devices stay until these have ended.
        self.up().to_stop.insert(name.to_owned(), volumes);
        first.and(self.stop_left(name).await)
    }

    /// Opens a pool that was taken over, and its volumes: what does not start is a fault.
    pub(super) async fn finish_import(&self, pool: &Pool, force: bool) -> Result<Arc<Model>> {
        let sizes = match force {
            true => self.plane_force(pool).await?,
            false => self.plane_start(pool).await?,
        };
        self.pool_started(pool, sizes).await?;
        self.bring_up().await;
        Ok(self.model())
    }
}

//! From the model to the data plane, and back when the data plane refuses.

use super::clearing::{SOON, Space};
use super::*;
use crate::dataplane::Inside;
use crate::model::{
    AdoptSpec, CloneSpec, Cut, DeviceFound, DeviceGrow, Pool, Volume, VolumeSpec, VolumeState,
};
use crate::units::format_size;

/// How to be rid of a volume whose pool is not up.
pub(super) fn gone_for_good(e: Error, pool: &str) -> Error {
    e.hint(format!("if pool `{pool}` is gone for good, `weir pool delete {pool}` forgets both"))
}

/// A volume of this configuration's own making that a command makes.
fn made(command: &Command) -> Option<&String> {
    match command {
        Command::CreateVolume(VolumeSpec { name, .. })
        | Command::CloneVolume { spec: CloneSpec { name, .. }, .. } => Some(name),
        _ => None,
    }
}

/// Refuses to say that devices have grown that have not: another one may have had the name for a moment.
fn check_grown(old: &Pool, now: &Pool, grow: &[DeviceGrow]) -> Result<()> {
    let size = |pool: &Pool, g: &DeviceGrow| pool.devices.get(g.device).map_or(0, |d| d.size);
    let has_grown = |g: &&DeviceGrow| match g.size {
        Some(wanted) => size(now, g) >= wanted,
        None => size(now, g) > size(old, g),
    };
    match grow.iter().find(|g| !has_grown(g)) {
        None => Ok(()),
        Some(g) => {
            let text = format!("device {} of pool `{}` has not grown", g.device, now.name);
            Err(Error::new(Code::NotReady, text).hint("say it again"))
        }
    }
}

impl Controller {
    /// Refuses commands on objects whose pool or volume did not start, before anything is written.
    pub(super) fn check_ready(&self, command: &Command, model: &Model) -> Result<()> {
        let pool = match command {
            Command::CreateVolume(spec) => &spec.pool,
            Command::CloneVolume { spec, .. } => &model.volume(&spec.volume)?.pool,
            Command::DeleteVolume { name } => return self.check_no_cut(name),
            // What its devices gain is the pool's only if all of them are what they were.
            Command::PatchPool { name, patch } if !patch.grow.is_empty() => name,
            Command::PatchVolume { name, patch } if patch.serve_here => {
                return self.check_newer_gone(model.volume(name)?);
            }
            Command::PatchVolume { name, .. } | Command::ChangeLayers { name, .. } => {
                if !self.up().volumes.contains(name) {
                    return Err(self.not_ready("volume", name));
                }
                if self.up().short.contains(name) {
                    self.check_not_behind(name)?;
                }
                &model.volume(name)?.pool
            }
            _ => return Ok(()),
        };
        self.check_pool_up(pool)
    }

    /// Has the data plane look at devices before anything is written that names them.
    pub(super) async fn admit(&self, command: &Command) -> Result<()> {
        let (pool, devices, overwrite) = match command {
            Command::CreatePool(spec) => (&spec.name, &spec.devices, &spec.overwrite),
            Command::PatchPool { name, patch } => {
                if !patch.grow.is_empty() {
                    self.plane_admit_growth(self.model().pool(name)?, patch).await?;
                }
                (name, &patch.add, &patch.overwrite)
            }
            _ => return Ok(()),
        };
        self.plane_admit(pool, devices, Inside::Only(overwrite)).await
    }

    /// Lets go of devices that were taken for a change that is not made: of the pool that was `wanted`.
    pub(super) async fn dismiss(&self, command: &Command, old: &Arc<Model>, wanted: Option<Pool>) {
        let done = match command {
            Command::CreatePool(spec) => {
                let done = self.plane_stop(&spec.name).await.map(drop);
                if let (Err(e), Some(pool)) = (&done, &wanted) {
                    self.is_left_over(pool, e, Instant::now());
                }
                done
            }
            Command::PatchPool { name, .. } => match old.pool(name) {
                Ok(pool) => self.plane_start(pool).await.map(drop),
                Err(e) => Err(e),
            },
            _ => Ok(()),
        };
        if let Err(e) = done {
            tracing::warn!("after a change that was refused: {e}");
        }
    }

    pub(super) fn not_ready(&self, what: &str, name: &str) -> Error {
        let model = self.model();
        let volume = model.volumes.get(name).filter(|_| what == "volume");
        let left = volume.and_then(|v| self.check_where(v).err());
        let up = self.up();
        let fault = left.as_ref().or(up.faults.get(&format!("{what}/{name}")));
        let e = Error::new(Code::NotReady, format!("{what} `{name}` is not up"));
        match fault {
            Some(f) => e.because(f).hint(f.hint.clone()),
            None => e.hint("`weir status` says what is wrong"),
        }
    }

    /// Puts the step from `old` to `new` into effect. On failure the store is back at `old` (deletions excepted).
    pub(super) async fn take_effect(
        &self,
        command: &Command,
        old: &Arc<Model>,
        new: &Arc<Model>,
    ) -> Result<Arc<Model>> {
        if let Command::DeleteVolume { name } = command {
            return self.finish_deletion(name, Instant::now() + SOON).await;
        }
        match self.try_effect(command, old, new).await {
            Ok(now) => Ok(now),
            Err(e) => {
                self.undo(command, old).await?;
                Err(e)
            }
        }
    }

    async fn try_effect(
        &self,
        command: &Command,
        old: &Arc<Model>,
        new: &Arc<Model>,
    ) -> Result<Arc<Model>> {
        match command {
            Command::CreatePool(spec) => return self.start_pool(new.pool(&spec.name)?).await,
            Command::PatchPool { name, patch } => {
                let now = self.start_pool(new.pool(name)?).await?;
                check_grown(old.pool(name)?, now.pool(name)?, &patch.grow)?;
                return Ok(now);
            }
            Command::ReleasePool { name, .. } => self.finish_release(name, old, new).await?,
            Command::ImportPool { spec, found, .. } => {
                return self.finish_import(new.pool_of(found.id)?, spec.force).await;
            }
            Command::DeletePool { name } => {
                self.closing(name);
                self.plane_unmake(old.pool(name)?, false).await?;
                for (v, _) in old.places_in(name) {
                    self.forget_run(&v.name);
                }
                let mut up = self.up();
                up.pools.remove(name);
                up.faults.remove(&format!("pool/{name}"));
            }
            Command::CreateVolume(spec) => return self.finish_creation(&spec.name).await,
            Command::CloneVolume { spec, .. } => return self.finish_creation(&spec.name).await,
            Command::AdoptVolume { spec, .. } => return self.finish_creation(&spec.name).await,
            Command::PatchVolume { name, patch } if patch.serve_here => {
                return self.serve_here(name).await;
            }
            Command::PatchVolume { name, .. } => {
                let (was, volume) = (old.volume(name)?, new.volume(name)?);
                if (was.size, was.read_only) != (volume.size, volume.read_only) {
                    self.plane.update_volume(volume, new.pool_at(&volume.pool)?).await?;
                    self.has_caught_up(name);
                }
                return match has(Bug::SizeTakenBack) {
                    true => self.record_size(name).await,
                    false => Ok(self.sized_for_good(name).await),
                };
            }
            Command::CreateHost(_)
            | Command::PatchHost { .. }
            | Command::DeleteHost { .. }
            | Command::CreateMap(_)
            | Command::DeleteMap { .. } => self.put_mappings(new.access()).await?,
            Command::PutTarget(spec) => self.start_target(new, &spec.name).await?,
            Command::PutTargets { put, .. } => self.put_ports(old, new, put).await,
            Command::DeleteTarget { name } => {
                self.plane.stop_target(name).await?;
                let mut up = self.up();
                up.targets.remove(name);
                up.held.remove(name);
                up.faults.remove(&format!("target/{name}"));
            }
            Command::SizePool { .. }
            | Command::DropPlaces { .. }
            | Command::DropNew { .. }
            | Command::PutDevice { .. }
            | Command::DropDevice { .. }
            | Command::NameDevices { .. }
            | Command::SetSnapshotRules(_)
            | Command::ChangeLayers { .. }
            | Command::RekeyVolume { .. }
            | Command::ReadyVolume { .. }
            | Command::FinishCut { .. }
            | Command::AgreeCut { .. }
            | Command::AdoptSize { .. }
            | Command::NoteNewer { .. }
            | Command::StartMigration { .. }
            | Command::ChangeMigration { .. }
            | Command::EndMigration { .. }
            | Command::ForgetMigration { .. }
            | Command::DeleteVolume { .. }
            | Command::ForgetVolume { .. } => {
                debug_assert!(old.revision <= new.revision);
            }
        }
        Ok(new.clone())
    }

    /// Notes that a pool is about to be closed: one that is not closed in order is closed all the same, and is opened again if the
    /// change is taken back.
    pub(super) fn closing(&self, pool: &str) {
        if !has(Bug::ClosedStaysUp) && self.up().pools.remove(pool) {
            self.is_unclosed(pool);
        }
    }

    /// Opens a pool's devices and records their sizes.
    pub(super) async fn start_pool(&self, pool: &Pool) -> Result<Arc<Model>> {
        let sizes = self.plane_start(pool).await?;
        self.pool_started(pool, sizes).await
    }

    /// Records the sizes that a pool's devices have.
    pub(super) async fn pool_started(
        &self,
        pool: &Pool,
        sizes: Vec<DeviceFound>,
    ) -> Result<Arc<Model>> {
        let old = self.model();
        let mut new = Model::clone(&old);
        let name = pool.name.clone();
        self.tell_gains(&name, &sizes);
        let changes = new.apply(Command::SizePool { name: name.clone(), sizes }, 0)?;
        let now = if changes.is_empty() { old } else { self.commit(&old, new).await? };
        self.look_into(pool).await;
        self.unlist(&name);
        let mut up = self.up();
        let object = format!("pool/{name}");
        up.behind.remove(&object);
        up.faults.remove(&object);
        if up.pools.insert(name.clone()) && !has(Bug::RulesOfFormerLife) {
            // What it followed before it was closed it does not follow any more.
            up.rules.remove(&name);
        }
        Ok(now)
    }

    /// Tells which devices of a plain pool are larger than it takes.
    fn tell_gains(&self, pool: &str, found: &[DeviceFound]) {
        for (number, d) in found.iter().enumerate().filter(|(_, d)| d.gained > 0) {
            let text = format!(
                "device {number} of pool `{pool}` has {} more than the pool has of it, which stay unused: \
                 `weir pool resize {pool} --grow {number}` takes them",
                format_size(d.gained)
            );
            self.events.publish("pool.device", &format!("pool/{pool}"), &text);
        }
    }

    /// Makes a volume of a protected pool on the devices, if that is not done yet, and opens it. May be repeated.
    pub(super) async fn finish_creation(&self, name: &str) -> Result<Arc<Model>> {
        let mut model = self.model();
        let volume = model.volume(name)?;
        if volume.state == VolumeState::Creating {
            self.check_where(volume)?;
            self.check_open(&volume.pool)?;
            self.plane.create_volume(volume, model.pool_at(&volume.pool)?).await?;
            let mut new = Model::clone(&model);
            new.apply(Command::ReadyVolume { name: name.to_string() }, 0)?;
            model = self.commit(&model, new).await?;
        }
        let volume = model.volume(name)?;
        self.open_volume(volume, model.pool_at(&volume.pool)?).await?;
        Ok(self.model())
    }

    /// A volume has its size. Hosts may know: that this cannot be recorded takes nothing back, and is tried again. It may be on the
    /// disk all the same, and what was refused would be carried out by the next start.
    pub(super) async fn sized_for_good(&self, name: &str) -> Arc<Model> {
        // It may be this very size that is to be taken back.
        if self.owed().is_some() && !has(Bug::SizeToldThoughOwed) {
            return self.model();
        }
        let object = format!("size/{name}");
        match self.record_size(name).await {
            Ok(now) => {
                self.up().faults.remove(&object);
                now
            }
            Err(e) => {
                let hint = "hosts see that size all the same; it is tried again every few seconds, and a start before that may give a volume that was made smaller its former size";
                let e = Error::new(e.code, format!("the size of volume `{name}` is not recorded"))
                    .because(e)
                    .hint(hint);
                self.fault(object, e);
                self.model()
            }
        }
    }

    /// Records the size of an open volume, which could not be before.
    pub(super) async fn record_size_again(&self, volume: &Volume) {
        if self.closed(&volume.pool).is_none() {
            self.sized_for_good(&volume.name).await;
        }
    }

    /// Records that hosts see the size of a volume, if that was to be seen. Only then may anything be cut off one that was made
    /// smaller: what is refused is in force for as long as it cannot be taken back, and a start must not carry it out. Of one that is
    /// behind hosts do not see it yet.
    pub(super) async fn record_size(&self, name: &str) -> Result<Arc<Model>> {
        let model = self.model();
        let volume = model.volume(name)?;
        let is_unseen = self.up().differs(name) && !has(Bug::UnseenIsRecorded);
        if is_unseen || !volume.is_size_unrecorded() {
            return Ok(model);
        }
        let mut new = Model::clone(&model);
        if volume.grown_from.is_some() {
            new.apply(Command::ReadyVolume { name: name.to_string() }, 0)?;
        }
        new.apply(Command::AgreeCut { name: name.to_string() }, 0)?;
        self.commit(&model, new).await
    }

    pub(super) async fn open_volume(&self, volume: &Volume, pool: &Pool) -> Result<()> {
        self.check_where(volume)?;
        self.close_before(&volume.name).await?;
        let wanted = volume;
        let volume = &self.sized(volume, pool).await?;
        if let Err(e) = self.plane.open_volume(volume, pool).await {
            // What there is of it must not be there when it is opened again.
            if !has(Bug::OpenedBesidePart)
                && let Err(left) = self.close_volume(&volume.name).await
            {
                tracing::error!("volume {} stays open in part: {left}", volume.name);
            }
            return Err(e);
        }
        {
            let mut up = self.up();
            up.volumes.insert(volume.name.clone());
            let object = format!("volume/{}", volume.name);
            up.behind.remove(&object);
            up.faults.remove(&object);
        }
        // In a closed pool nothing has grown. It does when that is open, if it was to: else devices of before are there.
        let is_pending = wanted.grown_from.is_some_and(|had| volume.size >= had);
        if volume.size < wanted.size && (is_pending || has(Bug::ShortIsGrown)) {
            if !has(Bug::OpenedSmaller) {
                self.behind(format!("volume/{}", volume.name), Instant::now());
            }
        } else if volume.size < wanted.size {
            self.up().short.insert(volume.name.clone());
        } else if self.closed(&pool.name).is_none() {
            self.sized_for_good(&volume.name).await;
        }
        Ok(())
    }

    /// Closes a volume that is marked as being deleted, gives its space back, forgets it. Where its devices take long, it is still
    /// there, and this is to be asked for again. Until then it is waited for.
    pub(super) async fn finish_deletion(&self, name: &str, until: Instant) -> Result<Arc<Model>> {
        let object = format!("volume/{name}");
        let done = async {
            if self.model().volume(name)?.migration.is_some() {
                // Of the place that it has left, nobody knows after the volume.
                self.try_clear(name).await?;
            }
            let model = self.model();
            let is_still = |v: &&Volume| v.migration.is_none();
            let Some(volume) = model.volumes.get(name).filter(is_still) else { return Ok(model) };
            self.check_open(&volume.pool)?;
            self.close_volume(name).await?;
            if !has(Bug::AwayIsEmpty) {
                self.check_pool_up(&volume.pool).map_err(|e| gone_for_good(e, &volume.pool))?;
            }
            let space = Space::Volume(volume, model.pool_at(&volume.pool)?);
            let Some(cleared) = self.cleared(space, until).await else { return Ok(model.clone()) };
            cleared?;
            let mut new = Model::clone(&model);
            let changes = new.apply(Command::ForgetVolume { name: name.to_string() }, 0)?;
            let now = self.commit(&model, new).await?;
            for c in &changes {
                self.events.publish(&format!("{}.{}", c.kind, c.action), &object, &c.text);
            }
            Ok(now)
        };
        let done: Result<Arc<Model>> = done.await;
        let mut up = self.up();
        match done {
            Ok(now) => {
                up.faults.remove(&object);
                Ok(now)
            }
            Err(e) => {
                let hint = match e.hint.as_str() {
                    "" => String::new(),
                    hint => format!("; {hint}"),
                };
                let e = Error::new(e.code, format!("volume `{name}` is not wholly deleted"))
                    .because(e)
                    .hint(format!(
                        "it is tried again every few seconds; hosts can no longer use it{hint}"
                    ));
                up.faults.insert(object, e.clone());
                Err(e)
            }
        }
    }

    /// Takes away what a volume that never came to be left behind.
    async fn discard(&self, volume: &Volume, model: &Model) -> Result<()> {
        self.close_volume(&volume.name).await?;
        self.plane.delete_volume_data(volume, model.pool_at(&volume.pool)?).await
    }

    /// Puts the store back to `old`, with a new revision, and the data plane as far as it goes. While the store takes no
    /// changes that is owed: no other change is made before it.
    pub(super) async fn undo(&self, command: &Command, old: &Arc<Model>) -> Result<()> {
        *self.owed() = Some((command.clone(), old.clone()));
        let settled = self.settle().await;
        if has(Bug::UndoneHalf) {
            *self.owed() = None;
        }
        settled.map_err(|e| {
            Error::new(e.code, "a change failed and cannot be taken back yet").because(e)
        })
    }

    /// Takes back what is owed. The caller holds `changes`.
    pub(super) async fn settle(&self) -> Result<()> {
        match self.settle_store().await? {
            Some((command, present, back)) => self.settle_plane(&command, present, back).await,
            None => Ok(()),
        }
    }

    /// The same for the store alone. Gives what was owed, and the configuration before and after.
    pub(super) async fn settle_store(&self) -> Result<Option<(Command, Arc<Model>, Arc<Model>)>> {
        let Some((command, old)) = self.owed().clone() else { return Ok(None) };
        let present = self.model();
        let mut back = Model::clone(&old);
        back.revision = present.revision + 1;
        // What was made of it goes as what a deleted one has: also when that fails at first, and after an end in the midst of it.
        if let Some(v) = made(&command).and_then(|name| present.volumes.get(name))
            && !has(Bug::MadeIsForgotten)
        {
            let gone = Volume { state: VolumeState::Deleting, ..v.clone() };
            back.volumes.insert(v.name.clone(), gone);
        }
        // The devices of a protected pool may hold it at its larger size, which a start would take for the volume's: what was gained
        // goes as what is cut off.
        if let Command::PatchVolume { name, patch } = &command
            && let (Some(v), Some(is)) = (back.volumes.get_mut(name), present.volumes.get(name))
            && is.size > v.size
            && patch.size == Some(is.size)
            && v.cut.is_none()
            && matches!(v.layout, Layout::Store { .. })
            && !has(Bug::GainedIsForgotten)
        {
            v.cut = Some(Cut { from: is.size, open: false });
        }
        // It may have been in effect, in part or for long.
        if !has(Bug::UndoneIsUnknown) {
            self.note_taken(&present, &back).await?;
        }
        let back = self.make_durable(&present, back).await?;
        *self.owed() = None;
        Ok(Some((command, present, back)))
    }

    /// Puts the data plane back after the store.
    async fn settle_plane(
        &self,
        command: &Command,
        present: Arc<Model>,
        back: Arc<Model>,
    ) -> Result<()> {
        let undone = match command {
            Command::CreatePool(spec) => self.take_away(present.pool(&spec.name)?).await,
            Command::ReleasePool { .. } | Command::DeletePool { .. } => {
                self.bring_up().await;
                Ok(())
            }
            // What could not be opened at first may have been since, and is in use.
            Command::ImportPool { found, .. } if !has(Bug::UndoneStaysInUse) => {
                self.close_again(&present.pool_of(found.id)?.name, &present, &back).await
            }
            Command::ImportPool { found, .. } => {
                self.plane_stop(&present.pool_of(found.id)?.name).await.map(drop)
            }
            Command::PatchPool { name, .. } => self.plane_start(back.pool(name)?).await.map(drop),
            Command::CreateVolume(VolumeSpec { name, .. })
            | Command::CloneVolume { spec: CloneSpec { name, .. }, .. }
                if back.volumes.contains_key(name) =>
            {
                // It tells by itself what is in the way.
                drop(self.finish_deletion(name, Instant::now() + SOON).await);
                Ok(())
            }
            Command::CreateVolume(VolumeSpec { name, .. })
            | Command::AdoptVolume { spec: AdoptSpec { name, .. }, .. }
            | Command::CloneVolume { spec: CloneSpec { name, .. }, .. } => {
                self.discard(present.volume(name)?, &present).await
            }
            Command::PatchVolume { name, patch } if patch.serve_here => {
                self.close_volume(name).await
            }
            Command::PatchVolume { name, .. } | Command::ChangeLayers { name, .. } => {
                let volume = back.volume(name)?;
                self.plane.update_volume(volume, back.pool_at(&volume.pool)?).await
            }
            // The pools follow the configuration anyhow.
            Command::SetSnapshotRules(_) | Command::RekeyVolume { .. } => Ok(()),
            // It has not listened there either.
            Command::PutTarget(spec) if self.up().held.contains(&spec.name) => {
                self.plane.stop_target(&spec.name).await
            }
            Command::PutTarget(spec) => match back.targets.get(&spec.name) {
                Some(port) => self.plane.start_target(port).await.map(drop),
                None => self.plane.stop_target(&spec.name).await,
            },
            Command::PutTargets { .. } => {
                self.put_ports(&present, &back, &[]).await;
                Ok(())
            }
            Command::DeleteTarget { name } => {
                self.plane.start_target(back.target(name)?).await.map(drop)
            }
            _ => self.put_mappings(back.access()).await,
        };
        if let Err(e) = undone {
            // The store is right; the data plane follows.
            tracing::warn!("after a failed change the data plane could not be put back: {e}");
            self.fall_behind(command, &back, e);
        }
        Ok(())
    }
}

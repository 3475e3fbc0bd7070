//! Everything up after a start, and again after a fault.

use super::clearing::SOON;
use super::*;
use crate::model::{IMAGES, Pool, TargetSpec, Volume, VolumeState};

/// How many times as long as it took in vain something is left alone before it is tried again.
pub(super) const CATCH_UP: u32 = 10;
/// The same for closing what hosts wait for, since it is opened again after that.
const WANTED: u32 = 2;

/// A volume of a pool that carries no configuration waits for one that may carry a newer.
fn wait_for(volume: &str, pool: &str) -> Error {
    Error::new(Code::NotReady, format!("volume `{volume}` waits for pool `{pool}` to be opened"))
        .because("it may carry a newer configuration, by which the volume is elsewhere")
        .hint("it is opened within two minutes in any case")
}

impl Controller {
    /// Starts whatever the configuration wants and the data plane does not run yet. Never fails as a whole: what does
    /// not start becomes a fault. Nothing is started when the node is being stopped, which may begin meanwhile. The caller holds
    /// `changes`.
    pub(super) async fn bring_up(&self) {
        if self.is_stopping() {
            return;
        }
        let model = self.model();
        self.open_pools(&model).await;
        self.close_moved().await;
        // Device sizes may just have been recorded.
        let model = self.model();
        self.start_keys(&model);
        // What does not close may take half a minute each: one in a turn, which others wait for.
        let next = self.next_to_close();
        let told = self.may_be_told_better();
        let soon = Instant::now() + SOON;
        let mut silent = self.silent_images(&model).await;
        for (name, volume) in &model.volumes {
            if self.is_stopping() {
                return;
            }
            let waiting = volume.state == VolumeState::Ready && !self.up().volumes.contains(name);
            let pool_is_up = volume.pool == IMAGES || self.up().pools.contains(&volume.pool);
            let object = format!("volume/{name}");
            let done = match model.pool_at(&volume.pool) {
                Ok(_) if self.is_left(volume) => {
                    self.up().faults.remove(&object);
                    Ok(())
                }
                Ok(_) if self.is_half_closed(name) && next.as_ref() != Some(name) => {
                    self.half_closed(volume)
                }
                Ok(_) if !pool_is_up => {
                    self.wait_for_pool(name, &volume.pool);
                    Ok(())
                }
                Ok(_) if volume.state == VolumeState::Deleting => {
                    self.finish_deletion(name, soon).await.map(drop)
                }
                Ok(_) if volume.state == VolumeState::Creating => {
                    self.finish_creation(name).await.map(drop)
                }
                Ok(pool) if waiting && pool.protection.is_none() && told.is_some() => {
                    Err(wait_for(name, told.as_deref().unwrap_or_default()))
                }
                Ok(_) if silent.contains_key(name) => silent.remove(name).map_or(Ok(()), Err),
                Ok(pool) if waiting => self.open_volume(volume, pool).await,
                // Hosts do not see it yet where the volume is not as it is to be.
                Ok(_) if volume.is_size_unrecorded() && !self.up().differs(name) => {
                    self.record_size_again(volume).await;
                    Ok(())
                }
                // A move of it has not begun.
                Ok(pool) if self.is_short(volume) => self.open_again(volume, pool).await,
                // While it moves, its graph is not that of the configuration.
                Ok(_) if volume.migration.is_some() && !has(Bug::PutBackInFlight) => Ok(()),
                Ok(pool) if self.is_behind(&object) && self.closed(&pool.name).is_none() => {
                    self.catch_up(volume, pool).await
                }
                Ok(_) => Ok(()),
                Err(e) => Err(e),
            };
            if let Err(e) = done {
                self.fault(object, e);
            }
        }
        self.put_rules().await;
        // What is new here is on the devices before hosts write by it.
        self.put_records().await;
        // Mappings before ports: no host may log in and find its LUNs missing.
        self.map_again().await;
        self.stop_strays(&model).await;
        self.take_refused_away(false).await;
        for name in model.targets.keys() {
            let held = self.up().held.contains(name) && !has(Bug::MovedListenBefore);
            if !held
                && !self.is_stopping()
                && !self.up().targets.contains(name)
                && let Err(e) = self.start_target(&model, name).await
            {
                self.fault(format!("target/{name}"), e);
            }
        }
    }

    /// The same at the start. It goes on to its end as a change does, but a stop does not wait here for what it waits for.
    pub(super) async fn bring_up_first(self: &Arc<Self>) -> Result<()> {
        let me = self.clone();
        let up = platform::spawn(async move {
            let _one = me.changes.lock().await;
            me.bring_up().await;
            Ok(())
        });
        tokio::select! {
            biased;
            done = finish(up) => done,
            () = self.stopping.begun(), if !has(Bug::StopWaitsForStart) => Ok(()),
        }
    }

    /// Opens a pool that could not be opened for `e`. What a command was to add that has not come to its end, and cannot be had
    /// now, keeps nobody from the rest.
    pub(super) async fn start_without_new(&self, pool: &Pool, e: Error) -> Result<()> {
        let old = self.model();
        let mut new = Model::clone(&old);
        let name = pool.name.clone();
        let changes = new.apply(Command::DropNew { name: name.clone() }, 0)?;
        if changes.is_empty() || has(Bug::NewKeepsAllDown) {
            return Err(e);
        }
        let rest = new.pool(&name)?.clone();
        let Ok(sizes) = self.plane_start(&rest).await else { return Err(e) };
        self.commit(&old, new).await?;
        for c in &changes {
            let text = format!("{}: {e}", c.text);
            tracing::warn!("{text}");
            self.events.publish("pool.updated", &format!("pool/{name}"), &text);
        }
        self.pool_started(&rest, sizes).await.map(drop)
    }

    /// What the data plane could not be put back to, after a change that failed, is a fault, and is tried again.
    pub(super) fn fall_behind(&self, command: &Command, back: &Model, e: Error) {
        if has(Bug::UndoneOnce) {
            return;
        }
        let object = match command {
            Command::PutTarget(TargetSpec { name, .. }) | Command::DeleteTarget { name } => {
                self.may_listen(name);
                format!("target/{name}")
            }
            Command::PatchVolume { name, patch } if !patch.serve_here => {
                self.behind(format!("volume/{name}"), Instant::now())
            }
            Command::ChangeLayers { name, .. } => {
                self.behind(format!("volume/{name}"), Instant::now())
            }
            Command::PatchPool { name, .. } => self.behind(format!("pool/{name}"), Instant::now()),
            Command::CreateHost(_)
            | Command::PatchHost { .. }
            | Command::DeleteHost { .. }
            | Command::CreateMap(_)
            | Command::DeleteMap { .. }
            | Command::ImportPool { .. } => "mappings".into(),
            _ => return,
        };
        if is_there(&object, back) {
            self.fault(object, e);
        }
    }

    /// Keeps that something is not as the configuration says, and that it is not tried again before an instant.
    pub(super) fn behind(&self, object: String, next: Instant) -> String {
        self.up().behind.insert(object.clone(), next);
        object
    }

    /// Whether something is to be tried again by now.
    pub(super) fn is_behind(&self, object: &str) -> bool {
        self.up().behind.get(object).is_some_and(|next| Instant::now() >= *next)
    }

    /// Whether a volume is open with less than it is to have, which no growth explains, and its pool can be changed by now.
    fn is_short(&self, volume: &Volume) -> bool {
        self.up().short.contains(&volume.name) && self.closed(&volume.pool).is_none()
    }

    /// Opens such a volume again: that says what is wrong with its devices.
    async fn open_again(&self, volume: &Volume, pool: &Pool) -> Result<()> {
        self.close_volume(&volume.name).await?;
        self.open_volume(volume, pool).await
    }

    /// Refuses what takes a volume for what the configuration says, while hosts see it otherwise. By a size that was refused, only a part
    /// of it would be moved.
    pub(super) fn check_not_behind(&self, name: &str) -> Result<()> {
        let (object, up) = (format!("volume/{name}"), self.up());
        if !up.differs(name) || has(Bug::MovedBehind) {
            return Ok(());
        }
        let e =
            Error::new(Code::NotReady, format!("hosts do not see volume `{name}` as it is to be"))
                .hint("it is put right every few seconds; do it again then");
        Err(match up.faults.get(&object) {
            Some(f) => e.because(f),
            None => e,
        })
    }

    /// Has an open volume be what the configuration says.
    async fn catch_up(&self, volume: &Volume, pool: &Pool) -> Result<()> {
        let (object, begun) = (format!("volume/{}", volume.name), Instant::now());
        if let Err(e) = self.plane.update_volume(volume, pool).await {
            // What waits long for a device that hangs does not keep commands waiting most of the time.
            self.behind(object, Instant::now() + begun.elapsed() * CATCH_UP);
            return Err(e);
        }
        self.has_caught_up(&volume.name);
        self.sized_for_good(&volume.name).await;
        Ok(())
    }

    /// Hosts see a volume as it is configured.
    pub(super) fn has_caught_up(&self, name: &str) {
        let (object, mut up) = (format!("volume/{name}"), self.up());
        if up.behind.remove(&object).is_some() {
            up.faults.remove(&object);
        }
    }

    /// Closes a volume. One that could not be closed is closed before it is opened again, and is tried again anyhow.
    pub(super) async fn close_volume(&self, name: &str) -> Result<()> {
        let begun = Instant::now();
        {
            let mut up = self.up();
            up.volumes.remove(name);
            // It does not count as open, and there may be something open of it.
            up.half_closed.insert(name.to_string(), Tried::since(begun));
        }
        let done = self.plane.close_volume(name).await;
        let mut up = self.up();
        up.short.remove(name);
        if done.is_ok() || has(Bug::CloseOnce) {
            up.half_closed.remove(name);
        } else {
            let tried = Tried::since(begun);
            up.half_closed.insert(name.to_string(), tried);
            up.last_close = Some(tried);
        }
        done
    }

    /// One that hosts wait for and that is not closed yet is a fault: then it is opened when it is.
    fn half_closed(&self, volume: &Volume) -> Result<()> {
        if volume.state != VolumeState::Ready || has(Bug::ClosedForGood) {
            return Ok(());
        }
        let e = Error::new(Code::NotReady, format!("volume `{}` is not closed yet", volume.name));
        Err(e
            .because("a command of a host to it has not ended: a device below it does not answer")
            .hint("it is opened again when it is closed; `weir status` tells about devices"))
    }

    fn is_half_closed(&self, name: &str) -> bool {
        self.up().half_closed.contains_key(name)
    }

    /// Which of the volumes that could not be closed is to be tried now: the one that has been left alone for longest.
    fn next_to_close(&self) -> Option<String> {
        let (model, up) = (self.model(), self.up());
        let times = |name: &String| match model.volumes.get(name).map(|v| v.state) {
            _ if has(Bug::ClosesWithoutRest) => 0,
            Some(VolumeState::Ready) => WANTED,
            _ => CATCH_UP,
        };
        // All of them rest after each try: else there would always be one that has rested.
        let last = up.last_close.filter(|_| !has(Bug::EachRestsByItself));
        let due = |(name, tried): &(&String, &Tried)| {
            let times = times(name);
            tried.has_rested(times) && last.is_none_or(|l| l.has_rested(times))
        };
        let next = up.half_closed.iter().filter(due).min_by_key(|(_, tried)| tried.ended);
        next.map(|(name, _)| name.clone())
    }

    /// Closes what may be open of a volume that is to be opened: hosts' commands of its former life would come after newer ones.
    pub(super) async fn close_before(&self, name: &str) -> Result<()> {
        let may_be_open = {
            let up = self.up();
            up.volumes.contains(name) || up.half_closed.contains_key(name)
        };
        match may_be_open && !has(Bug::OpenedTwice) {
            true => self.close_volume(name).await,
            false => Ok(()),
        }
    }

    /// Tries again to close one that could not be closed. The caller holds `changes`, or is alone.
    pub(super) async fn close_rest(&self) {
        if let Some(name) = self.next_to_close()
            && let Err(e) = self.close_volume(&name).await
        {
            tracing::error!("volume {name} stays open: {e}");
        }
        let pools: Vec<String> = self.up().to_stop.keys().cloned().collect();
        for name in pools {
            if let Err(e) = self.stop_left(&name).await {
                tracing::error!("pool {name} stays open: {e}");
            }
        }
    }

    /// Closes a pool that is not in the configuration, if none of its volumes may be open any more.
    pub(super) async fn stop_left(&self, name: &str) -> Result<()> {
        let object = format!("left/{name}");
        let waits = {
            let up = self.up();
            let all = up.to_stop.get(name).into_iter().flatten();
            all.clone().any(|v| up.half_closed.contains_key(v))
        };
        if waits {
            let e =
                Error::new(Code::NotReady, format!("pool `{name}` is open and not this node's"))
                    .because("a command of a host to one of its volumes has not ended")
                    .hint("it is closed when that has ended; `weir status` tells about devices");
            self.fault(object, e);
            return Ok(());
        }
        let _last = self.plane_stop(name).await?;
        let mut up = self.up();
        up.to_stop.remove(name);
        up.faults.remove(&object);
        Ok(())
    }

    /// Refuses a new pool under the name of one that is open yet and is not in the configuration.
    pub(super) fn check_none_left(&self, old: &Model, new: &Model) -> Result<()> {
        let up = self.up();
        let left = |n: &&String| !old.pools.contains_key(*n) && up.to_stop.contains_key(*n);
        match new.pools.keys().find(left) {
            None => Ok(()),
            Some(name) => Err(Error::new(
                Code::NotReady,
                format!("a pool `{name}` that is not this node's is open yet"),
            )
            .because("a command of a host to one of its volumes has not ended")
            .hint("it is closed when that has ended; or use another name")),
        }
    }

    /// Puts mappings in force.
    pub(super) async fn put_mappings(&self, access: AccessMap) -> Result<()> {
        self.up().mapped = Some(access.clone());
        self.plane.set_mappings(&access).await
    }

    /// Puts the mappings in force. What hosts have lost by that and a device has yet is waited for, but not most of the time.
    async fn map_again(&self) {
        const MAPPINGS: &str = "mappings";
        let access = self.model().access();
        {
            // Others are put in force at once, whatever is waited for of those before.
            let up = self.up();
            let same = up.mapped.as_ref() == Some(&access) || has(Bug::OtherMappingsRest);
            if same && up.behind.get(MAPPINGS).is_some_and(|next| Instant::now() < *next) {
                return;
            }
        }
        let begun = Instant::now();
        let done = self.put_mappings(access).await;
        self.up().behind.remove(MAPPINGS);
        match done {
            Ok(()) => drop(self.up().faults.remove(MAPPINGS)),
            Err(e) => {
                self.behind(MAPPINGS.into(), Instant::now() + begun.elapsed() * CATCH_UP);
                self.fault(MAPPINGS.into(), e);
            }
        }
    }

    /// A volume whose pool is not up has no fault of its own: that of the pool counts those that wait.
    fn wait_for_pool(&self, volume: &str, pool: &str) {
        let object = format!("pool/{pool}");
        let known = {
            let mut up = self.up();
            up.faults.remove(&format!("volume/{volume}"));
            up.faults.contains_key(&object)
        };
        if !known {
            let e = Error::new(Code::NotReady, format!("pool `{pool}` is not up"));
            self.fault(object, e.hint("it is tried again every few seconds"));
        }
    }

    pub(super) fn fault(&self, object: String, e: Error) {
        let known = self.up().faults.get(&object) == Some(&e);
        if !known {
            tracing::error!("{object}: {e}");
            self.events.publish("error", &object, &e.to_string());
            self.up().faults.insert(object, e);
        }
    }
}

//! Volumes that move: begun, watched, cut over, and cleared up after, also after a restart.
//!
//! What must outlive the daemon is in the model ([`Migration`]); the data plane copies. This file carries the one
//! on when the other has come far enough. Each step is durable before the next one begins.

use super::clearing::{SOON, Space};
use super::effect::gone_for_good;
use super::*;
use crate::dataplane::{Decision, ImageWish, Place};
use crate::live::{MigrationLive, MigrationProgress, Pace};
use crate::model::{
    AdoptSpec, Change, IMAGES, Layout, Migration, MigrationPatch, MigrationSpec, MigrationStage,
    Volume, VolumeState,
};

/// How often migrations are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// After how long something that failed is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// How often it is looked whether the place that a volume has left is cleared.
const CLEARING: Duration = Duration::from_secs(1);
/// How long I/O is held back for a change of the configuration.
const COMMIT: Duration = Duration::from_secs(5);
/// Migrations that are over and still shown.
const KEPT: usize = 256;

/// A migration as this process knows it.
#[derive(Debug)]
struct Run {
    began: Instant,
    /// The data plane has been told.
    started: bool,
    /// What it waits for.
    waits: Option<String>,
    /// Why it was ended.
    failed: Option<String>,
    last: MigrationProgress,
    /// How fast it goes on.
    pace: Pace,
    /// Not before.
    next: Option<Instant>,
}

impl Run {
    fn new() -> Run {
        Run {
            began: Instant::now(),
            started: false,
            waits: None,
            failed: None,
            last: MigrationProgress::default(),
            pace: Pace::default(),
            next: None,
        }
    }
}

/// Migrations under way, and the last ones that ended.
#[derive(Debug, Default)]
pub(super) struct Moves {
    runs: BTreeMap<String, Run>,
    over: Vec<MigrationLive>,
}

/// What a place is called.
fn named(pool: &str, layout: &Layout) -> String {
    match layout {
        Layout::Image { path, .. } => path.clone(),
        _ => pool.to_string(),
    }
}

fn live(v: &Volume, m: &Migration, run: Option<&Run>) -> MigrationLive {
    let (here, there) = (named(&v.pool, &v.layout), named(&m.pool, &m.layout));
    let (from, to) = if m.stage == MigrationStage::Leaving { (there, here) } else { (here, there) };
    let last = run.map(|r| r.last.clone()).unwrap_or_default();
    let state = match m.stage {
        MigrationStage::Copying if last.state.is_empty() => "waiting".to_string(),
        MigrationStage::Copying => last.state,
        MigrationStage::Leaving | MigrationStage::Undoing => "clearing".into(),
    };
    let reason = run.and_then(|r| r.failed.clone().or(r.waits.clone()));
    let reason = reason.or(last.reason).or(last.waits);
    MigrationLive {
        volume: v.name.clone(),
        from,
        to,
        state,
        reason,
        done: last.done,
        total: if last.total == 0 { v.size } else { last.total },
        copied: last.copied,
        rate: m.rate,
        paused: m.paused,
        verify: m.verify,
        detach: m.detach,
        seconds: run.map_or(0, |r| r.began.elapsed().as_secs()),
        pace: run.map_or_else(Pace::default, |r| r.pace),
    }
}

impl Controller {
    fn moves(&self) -> MutexGuard<'_, Moves> {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run<R>(&self, volume: &str, f: impl FnOnce(&mut Run) -> R) -> R {
        let mut moves = self.moves();
        f(moves.runs.entry(volume.to_string()).or_insert_with(Run::new))
    }

    /// Makes a volume of a foreign file or disk, as it is.
    pub async fn adopt(self: &Arc<Self>, spec: AdoptSpec) -> Result<Volume> {
        let me = self.clone();
        finish(spawn(async move {
            me.ask(vec![spec.path.as_str()]).await?;
            let _one = me.settled_turn().await?;
            crate::model::check_name("volume", &spec.name)?;
            me.model().check_image_path(&spec.path)?;
            let wish = ImageWish {
                path: spec.path.clone(),
                create: None,
                write: !spec.read_only,
                overwrite: None,
            };
            let found = me.plane.find_image(&wish).await?;
            let name = spec.name.clone();
            let now = me.change(Command::AdoptVolume { spec, found }).await?;
            Ok(now.volume(&name)?.clone())
        }))
        .await
    }

    /// Begins to move a volume.
    pub async fn start_migration(
        self: &Arc<Self>,
        name: String,
        mut spec: MigrationSpec,
    ) -> Result<MigrationLive> {
        let me = self.clone();
        finish(spawn(async move {
            match &spec.form.encryption {
                Some(e) => me.warm(Some(&e.key)).await?,
                None => me.warm_of(&name).await?,
            }
            let path = spec.path.clone();
            me.ask(path.iter().map(String::as_str).collect()).await?;
            let _one = me.settled_turn().await?;
            let model = me.model();
            let volume = model.volume(&name)?;
            // Before a file is made.
            let command = Command::StartMigration { name: name.clone(), spec: spec.clone() };
            me.check_not_closed(&command, &model)?;
            if !me.up().volumes.contains(&name) {
                return Err(me.not_ready("volume", &name));
            }
            me.check_not_behind(&name)?;
            if let Some(pool) = spec.pool.as_ref().filter(|p| model.pool(p).is_ok())
                && !me.up().pools.contains(pool)
            {
                return Err(me.not_ready("pool", pool));
            }
            if let Some(path) = spec.path.clone() {
                // What is refused without looking at it is not made either.
                Model::clone(&model).apply(command, 0)?;
                let create = spec.create.then_some(volume.size);
                let overwrite = Some(std::mem::take(&mut spec.overwrite));
                let wish = ImageWish { path, create, write: true, overwrite };
                let found = me.plane.find_image(&wish).await?;
                check_fits(volume, &found)?;
                (spec.path, spec.identity) = (Some(found.path), found.identity);
            }
            me.change(Command::StartMigration { name: name.clone(), spec }).await?;
            me.moves().runs.insert(name.clone(), Run::new());
            if let Err(e) = me.begin(&name).await {
                me.give_up(&name, e.to_string()).await?;
                return Err(e);
            }
            me.migration_locked(&name).await
        }))
        .await
    }

    /// Changes how a volume is moved.
    pub async fn tune_migration(
        self: &Arc<Self>,
        name: String,
        patch: MigrationPatch,
    ) -> Result<MigrationLive> {
        let me = self.clone();
        finish(spawn(async move {
            let _one = me.settled_turn().await?;
            let now = me.change(Command::ChangeMigration { name: name.clone(), patch }).await?;
            let m = now.copying(&name)?;
            if me.run(&name, |r| r.started) {
                me.plane.tune_migration(&name, m.rate, m.paused).await?;
            }
            me.migration_locked(&name).await
        }))
        .await
    }

    /// Ends a migration before its cut-over: the volume stays where it is.
    pub async fn cancel_migration(self: &Arc<Self>, name: String) -> Result<MigrationLive> {
        let me = self.clone();
        finish(spawn(async move {
            let _one = me.settled_turn().await?;
            me.change(Command::EndMigration { name: name.clone(), moved: None }).await?;
            me.clear(&name).await;
            me.migration_locked(&name).await
        }))
        .await
    }

    /// All migrations: those under way, and the last ones of this process that ended.
    pub async fn migrations(&self) -> Result<Vec<MigrationLive>> {
        let model = self.model();
        let mut all = Vec::new();
        for v in model.volumes.values() {
            if let Some(m) = &v.migration {
                self.look(&v.name).await?;
                all.push(live(v, m, self.moves().runs.get(&v.name)));
            }
        }
        let moves = self.moves();
        let over = moves.over.iter().filter(|o| all.iter().all(|a| a.volume != o.volume));
        let over: Vec<_> = over.cloned().collect();
        all.extend(over);
        all.sort_by(|a, b| a.volume.cmp(&b.volume));
        Ok(all)
    }

    /// The migration of a volume: the one under way, or the last one of this process.
    pub async fn migration(&self, name: &str) -> Result<MigrationLive> {
        self.migration_locked(name).await
    }

    async fn migration_locked(&self, name: &str) -> Result<MigrationLive> {
        if let Some(m) = self.migrations().await?.into_iter().find(|m| m.volume == name) {
            return Ok(m);
        }
        self.model().volume(name)?;
        Err(Error::new(Code::MigrationNotFound, format!("volume `{name}` is not being migrated"))
            .because("there was no migration of it since the daemon was started")
            .hint("`weir migrate start` begins one"))
    }

    /// Asks the data plane how far it is.
    async fn look(&self, name: &str) -> Result<Option<MigrationProgress>> {
        if !self.run(name, |r| r.started) {
            return Ok(None);
        }
        let found = self.plane.migration(name).await?;
        if let Some(p) = &found {
            let pace = self.pace(&format!("migration/{name}/{}", p.state), p.done, p.total);
            let before = self.run(name, |r| {
                r.pace = pace;
                std::mem::replace(&mut r.last, p.clone())
            });
            self.tell_waits(name, before.waits.is_some(), p);
        }
        Ok(found)
    }

    /// Tells once that a destination does not answer, and once that it goes on.
    fn tell_waits(&self, name: &str, waited: bool, now: &MigrationProgress) {
        let object = format!("volume/{name}");
        let (kind, text) = match &now.waits {
            Some(why) if !waited => {
                ("migration.waits", format!("the migration of volume `{name}` waits: {why}"))
            }
            None if waited && !["failed", "stopped"].contains(&now.state.as_str()) => (
                "migration.resumed",
                format!("the migration of volume `{name}` goes on: its destination answers"),
            ),
            _ => return,
        };
        tracing::warn!("{text}");
        self.events.publish(kind, &object, &text);
    }

    /// Has the data plane begin. The caller holds `changes`.
    async fn begin(&self, name: &str) -> Result<()> {
        let model = self.model();
        let v = model.volume(name)?;
        let m = model.copying(name)?;
        let there = v.elsewhere(m);
        let here = Place { volume: v, pool: model.pool_at(&v.pool)? };
        let place = Place { volume: &there, pool: model.pool_at(&m.pool)? };
        self.plane.start_migration(here, place, m).await?;
        self.run(name, |r| {
            r.started = true;
            r.waits = None;
        });
        Ok(())
    }

    /// Ends a migration that cannot go on. The caller holds `changes`.
    async fn give_up(&self, name: &str, why: String) -> Result<()> {
        let object = format!("volume/{name}");
        let text = format!("the migration of volume `{name}` failed: {why}");
        self.run(name, |r| r.failed = Some(why));
        self.change(Command::EndMigration { name: name.to_string(), moved: None }).await?;
        tracing::error!("{text}");
        self.events.publish("migration.failed", &object, &text);
        self.clear(name).await;
        Ok(())
    }

    /// Clears up after a migration; what fails, or takes long, is looked at again. The caller holds `changes`.
    async fn clear(&self, name: &str) {
        let object = format!("migration/{name}");
        match self.try_clear(name).await {
            Ok(()) => drop(self.up().faults.remove(&object)),
            Err(e) => {
                self.run(name, |r| {
                    r.next = Some(Instant::now() + RETRY);
                    r.waits = Some(e.to_string());
                });
                let hint = match self.up().volumes.contains(name) {
                    true => "it is tried again every few seconds; hosts are not affected",
                    false => {
                        "it is tried again every few seconds; `weir volume delete` gives up the volume with both its places"
                    }
                };
                let e = Error::new(
                    e.code,
                    format!("the migration of `{name}` leaves something behind"),
                )
                .because(e)
                .hint(hint);
                let known = self.up().faults.insert(object.clone(), e.clone());
                if known.as_ref() != Some(&e) {
                    self.events.publish("error", &object, &e.to_string());
                }
            }
        }
    }

    pub(super) async fn try_clear(&self, name: &str) -> Result<()> {
        let model = self.model();
        // Whoever deleted the volume since it was looked at has cleared both places.
        let Some(v) = model.volumes.get(name) else { return Ok(()) };
        let Some(m) = &v.migration else { return Ok(()) };
        if m.stage == MigrationStage::Copying {
            return Ok(());
        }
        if v.state == VolumeState::Deleting {
            // Both places are given up, whatever became of the other one: nothing is flushed any more.
            self.close_volume(name).await?;
            self.check_pool_up(&m.pool).map_err(|e| gone_for_good(e, &m.pool))?;
            self.check_open(&m.pool)?;
        } else {
            self.check_places(&model, v)?;
        }
        if m.stage == MigrationStage::Leaving && v.state != VolumeState::Deleting {
            // What it has left is all there is of it where the new place has lost it, in whole or in part.
            if !has(Bug::ClearedUnopened) {
                self.check_open_whole(name)?;
            }
            self.end_doubt(&model, name).await?;
        }
        let there = v.elsewhere(m);
        let here = Place { volume: v, pool: model.pool_at(&v.pool)? };
        let place = Place { volume: &there, pool: model.pool_at(&m.pool)? };
        self.plane.end_migration(here, place).await?;
        if m.pool != IMAGES && !self.up().pools.contains(&m.pool) {
            return Err(self.not_ready("pool", &m.pool));
        }
        let made = m.create && m.stage == MigrationStage::Undoing;
        let space = Space::Place(place, made);
        let Some(cleared) = self.cleared(space, Instant::now() + SOON).await else {
            self.run(name, |r| r.next = Some(Instant::now() + CLEARING));
            return Ok(());
        };
        cleared?;
        let gone = m.detach && m.stage == MigrationStage::Leaving;
        if gone {
            self.close_volume(name).await?;
        }
        let mut report = live(v, m, self.moves().runs.get(name));
        let mut new = Model::clone(&model);
        let changes = new.apply(Command::ForgetMigration { name: name.to_string() }, 0)?;
        // It is to be found from the moment on at which the configuration has forgotten it.
        report.state = "clearing".into();
        self.keep_over(report.clone());
        let had_key = m.layout.form().encryption.is_some();
        let now = self.commit(&model, new).await?;
        self.put_records().await;
        if had_key && let Err(e) = self.forget_keys(&now).await {
            tracing::warn!("{e}");
        }
        for c in &changes {
            let object = format!("{}/{}", c.kind, c.name);
            self.events.publish(&format!("{}.{}", c.kind, c.action), &object, &c.text);
        }
        let failed = self.moves().runs.remove(name).and_then(|r| r.failed);
        report.state = match (m.stage, &failed) {
            (MigrationStage::Leaving, _) => "done",
            (_, Some(_)) => "failed",
            _ => "cancelled",
        }
        .into();
        report.reason = failed;
        report.pace = Pace::default();
        if m.stage == MigrationStage::Leaving {
            report.done = report.total;
        }
        self.keep_over(report);
        Ok(())
    }

    /// Keeps what is shown of a migration that is over.
    fn keep_over(&self, report: MigrationLive) {
        let mut moves = self.moves();
        moves.over.retain(|o| o.volume != report.volume);
        if moves.over.len() >= KEPT {
            moves.over.remove(0);
        }
        moves.over.push(report);
    }

    /// The volume is where it was moved to, from one I/O to the next. The caller holds `changes`.
    async fn cut_over(&self, name: &str) -> Result<()> {
        let told = self.plane.hold_migration(name).await?;
        let old = self.model();
        let mut new = Model::clone(&old);
        let end = Command::EndMigration { name: name.to_string(), moved: Some(told) };
        let changes = match new.apply(end.clone(), 0) {
            Ok(changes) => changes,
            Err(e) => {
                self.plane.decide_migration(name, Decision::Stays).await?;
                return Err(e);
            }
        };
        let mut commit = std::pin::pin!(self.commit(&old, new));
        match timeout(COMMIT, &mut commit).await {
            Ok(Ok(now)) => {
                // What would be taken over from the devices has to be there before hosts write to the new place only.
                let carried = timeout(COMMIT, self.put_records()).await.is_ok()
                    && self.moved_is_carried(&now, name).is_ok();
                let decision = if carried { Decision::Moved } else { Decision::Doubtful };
                self.plane.decide_migration(name, decision).await?;
            }
            Ok(Err(e)) => {
                // It may be durable all the same. Hosts go on with both sides the same, so either may be the truth
                // after a restart.
                self.plane.decide_migration(name, Decision::Doubtful).await?;
                return Err(e);
            }
            Err(_) => {
                // Both sides stay the same until that is decided anew, by who clears up.
                self.plane.decide_migration(name, Decision::Doubtful).await?;
                commit.await?;
            }
        }
        for c in &changes {
            let object = format!("{}/{}", c.kind, c.name);
            self.events.publish("migration.moved", &object, &c.text);
        }
        if !has(Bug::MovingIsNoWish) {
            self.changed(&format!("volume/{name}"), &end, &old, &self.model());
        }
        Ok(())
    }

    /// Refuses to go on without the old place of a volume before the devices carry where it is now, and in which form.
    fn moved_is_carried(&self, now: &Model, name: &str) -> Result<()> {
        let v = now.volume(name)?;
        let there = v.migration.as_ref().map(|m| &m.pool);
        let missing =
            [Some(&v.pool), there].into_iter().flatten().find_map(|p| self.not_carried(p));
        missing.map_or(Ok(()), Err)
    }

    /// Decides what was left open at the cut-over of a volume that has moved. The caller holds `changes`.
    async fn end_doubt(&self, model: &Model, name: &str) -> Result<()> {
        self.put_records().await;
        self.moved_is_carried(model, name)?;
        match self.plane.migration(name).await? {
            Some(p) if p.state != "moved" => {
                self.plane.hold_migration(name).await?;
                self.plane.decide_migration(name, Decision::Moved).await
            }
            _ => Ok(()),
        }
    }

    /// Gives up other places of volumes in a pool that is to be deleted and is not up: it may never be again.
    pub(super) fn drop_places(&self, command: &Command, new: &mut Model) -> Result<Vec<Change>> {
        match command {
            Command::DeletePool { name }
                if new.pools.contains_key(name)
                    && !self.up().pools.contains(name)
                    && !self.is_opening(name)
                    && !has(Bug::LostIsWaitedFor) =>
            {
                new.apply(Command::DropPlaces { pool: name.clone() }, 0)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Nothing is known of a migration any more: the configuration does not have it.
    pub(super) fn forget_run(&self, name: &str) {
        self.moves().runs.remove(name);
        self.up().faults.remove(&format!("migration/{name}"));
    }

    /// Looks after every migration once.
    pub(super) async fn drive_migrations(&self) {
        let model = self.model();
        for v in model.volumes.values() {
            let Some(m) = &v.migration else { continue };
            if self.run(&v.name, |r| r.next.is_some_and(|t| Instant::now() < t)) {
                continue;
            }
            let done = match m.stage {
                MigrationStage::Copying => self.drive(&v.name).await,
                MigrationStage::Leaving | MigrationStage::Undoing => {
                    let _one = self.changes.lock().await;
                    if !self.is_stopping() {
                        self.clear(&v.name).await;
                    }
                    Ok(())
                }
            };
            if let Err(e) = done {
                self.run(&v.name, |r| {
                    r.next = Some(Instant::now() + RETRY / 5);
                    r.waits = Some(e.to_string());
                });
            }
        }
    }

    /// Refuses while a volume is not open, or is smaller than it is to be.
    fn check_open_whole(&self, name: &str) -> Result<()> {
        let up = self.up();
        let is_whole = up.volumes.contains(name) && !up.short.contains(name);
        drop(up);
        if is_whole { Ok(()) } else { Err(self.not_ready("volume", name)) }
    }

    async fn drive(&self, name: &str) -> Result<()> {
        let _one = self.turn().await?;
        let model = self.model();
        // It may be over by now.
        let Ok(m) = model.copying(name) else { return Ok(()) };
        self.check_open_whole(name)?;
        self.check_places(&model, model.volume(name)?)?;
        if self.look(name).await?.is_none() {
            if m.pool != IMAGES && !self.up().pools.contains(&m.pool) {
                return Err(self.not_ready("pool", &m.pool));
            }
            self.run(name, |r| r.started = false);
            return match self.begin(name).await {
                // A pool that is not there yet may come; what it refuses, it refuses again.
                Err(e) if !matches!(e.code, Code::NotReady | Code::KeyUnavailable) => {
                    self.give_up(name, e.to_string()).await
                }
                r => r,
            };
        }
        let progress = self.run(name, |r| r.last.clone());
        match progress.state.as_str() {
            "ready" => {
                self.cut_over(name).await?;
                self.clear(name).await;
                Ok(())
            }
            "failed" => self.give_up(name, progress.reason.unwrap_or_default()).await,
            _ => Ok(()),
        }
    }
}

/// Refuses a file or disk that the volume cannot be moved to.
fn check_fits(v: &Volume, found: &crate::model::ImageFound) -> Result<()> {
    let no = |code, why: String, hint: &str| {
        Err(Error::new(code, format!("volume `{}` cannot move to `{}`", v.name, found.path))
            .because(why)
            .hint(hint))
    };
    if found.size < v.size {
        let why = format!("it has {} bytes, the volume {}", found.size, v.size);
        return no(
            Code::InvalidSize,
            why,
            "use a larger one, or a file that is made with --create",
        );
    }
    if found.block_size > v.block_size {
        let why =
            format!("its blocks have {} bytes, the volume's {}", found.block_size, v.block_size);
        return no(Code::InvalidBlockSize, why, "use another one: hosts would notice other blocks");
    }
    Ok(())
}

/// Looks after migrations until the controller is gone.
pub(super) async fn migration_loop(controller: std::sync::Weak<Controller>) {
    loop {
        let Some(c) = controller.upgrade() else { return };
        c.drive_migrations().await;
        c.drive_cuts();
        drop(c);
        sleep(LOOK).await;
    }
}

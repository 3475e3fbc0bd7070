//! Volumes that are made smaller, and volumes of which the devices hold more than is known.
//!
//! Hosts see the new size as soon as it is durable. What lies beyond is thrown away beside everything else, and again after a
//! restart; only when it is gone does the space become free. Nothing else ever makes a volume smaller: where configuration and
//! devices differ, the devices are right.

use super::*;
use crate::model::{Cut, Pool, Volume, VolumeState, being_cut};
use std::collections::btree_map::Entry;

/// How long a command waits for what it cut off to be gone.
const WAIT: Duration = Duration::from_secs(10);
/// After how long a cut that failed is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// How far a cut has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It waits for the change under way to end: that may be the very one that makes the volume smaller, and it may be refused.
    Waits,
    /// Data is being thrown away.
    Cuts,
}

/// Hosts see the new size, and nobody takes it back.
fn is_agreed(cut: Cut) -> bool {
    !cut.open || has(Bug::CutThoughOwed) || has(Bug::CutAmongChanges)
}

/// Cuts of this process.
#[derive(Debug, Default)]
pub(super) struct Cuts {
    /// Under way.
    running: BTreeMap<String, Stage>,
    /// Failed; not before.
    next: BTreeMap<String, Instant>,
}

/// One cut under way.
struct Running<'a>(&'a Controller, String);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.cuts().running.remove(&self.1);
        self.0.cut_over.notify_waiters();
    }
}

impl Controller {
    fn cuts(&self) -> MutexGuard<'_, Cuts> {
        self.cuts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses to take a volume away from under a cut. The caller holds `changes`, without which none begins.
    pub(super) fn check_no_cut(&self, name: &str) -> Result<()> {
        match self.cuts().running.get(name) {
            Some(Stage::Cuts) => Err(being_cut(name)),
            Some(Stage::Waits) | None => Ok(()),
        }
    }

    /// Has a volume that a command has just made smaller cut, and waits for that a while. The caller does not hold `changes`.
    pub(super) async fn cut_soon(self: &Arc<Self>, name: &str) {
        let (me, name) = (self.clone(), name.to_string());
        let cut = platform::spawn(async move {
            // It may have been begun already, as what is left to be cut.
            if !me.cut(&name).await {
                me.cut_ends(&name).await;
            }
        });
        // It goes on without us.
        drop(timeout(WAIT, cut).await);
    }

    /// Begins what is to be cut and not under way, each by itself.
    pub(super) fn drive_cuts(self: &Arc<Self>) {
        let model = self.model();
        for v in model.volumes.values().filter(|v| v.cut.is_some_and(is_agreed)) {
            let waits = self.cuts().next.get(&v.name).is_some_and(|t| Instant::now() < *t);
            if !waits && v.state == VolumeState::Ready && self.up().volumes.contains(&v.name) {
                let (me, name) = (self.clone(), v.name.clone());
                platform::spawn(async move { me.cut(&name).await });
            }
        }
    }

    /// Waits for the end of a cut that is under way.
    async fn cut_ends(&self, name: &str) {
        loop {
            let over = self.cut_over.notified();
            if !self.cuts().running.contains_key(name) {
                return;
            }
            over.await;
        }
    }

    /// False: it is under way already.
    async fn cut(&self, name: &str) -> bool {
        match self.cuts().running.entry(name.to_string()) {
            Entry::Occupied(_) => return false,
            Entry::Vacant(v) => v.insert(Stage::Waits),
        };
        let running = Running(self, name.to_string());
        let object = format!("cut/{name}");
        match self.try_cut(name).await {
            Ok(()) => {
                self.cuts().next.remove(name);
                self.up().faults.remove(&object);
            }
            // It went away meanwhile.
            Err(_) if self.model().volumes.get(name).is_none_or(|v| v.cut.is_none()) => {
                self.up().faults.remove(&object);
            }
            Err(e) => {
                self.cuts().next.insert(name.to_string(), Instant::now() + AGAIN);
                let e =
                    Error::new(e.code, format!("the end of volume `{name}` is not cut off yet"))
                        .because(e)
                        .hint(
                            "it is tried again every few seconds; hosts see the new size already",
                        );
                let known = self.up().faults.insert(object.clone(), e.clone());
                if known.as_ref() != Some(&e) {
                    self.events.publish("error", &object, &e.to_string());
                }
            }
        }
        drop(running);
        true
    }

    /// What is to be cut, if anything. Looked at while nothing changes, and known to `check_no_cut` before anything does again.
    async fn begin_cut(&self, name: &str) -> Result<Option<(Volume, Pool)>> {
        let _one = match has(Bug::CutAmongChanges) {
            true => None,
            false => Some(self.changes.lock().await),
        };
        if self.is_stopping() {
            return Ok(None);
        }
        // What failed and is to be taken back cuts nothing off.
        if self.owed().is_some() && !has(Bug::CutThoughOwed) {
            return Ok(None);
        }
        let model = self.model();
        let Ok(v) = model.volume(name) else { return Ok(None) };
        if !v.cut.is_some_and(is_agreed)
            || v.state != VolumeState::Ready
            || !self.up().volumes.contains(name)
        {
            return Ok(None);
        }
        // Hosts may see more of it yet.
        if self.up().differs(name) {
            return Ok(None);
        }
        self.check_open(&v.pool)?;
        let pool = model.pool_at(&v.pool)?.clone();
        self.cuts().running.insert(name.to_string(), Stage::Cuts);
        Ok(Some((v.clone(), pool)))
    }

    async fn try_cut(&self, name: &str) -> Result<()> {
        let Some((volume, pool)) = self.begin_cut(name).await? else { return Ok(()) };
        self.plane.cut_volume(&volume, &pool).await?;
        let _one = self.changes.lock().await;
        self.check_up()?;
        let model = self.model();
        let mut new = Model::clone(&model);
        let changes = new.apply(Command::FinishCut { name: name.to_string() }, 0)?;
        if changes.is_empty() {
            return Ok(());
        }
        // The data plane lets go of the space before somebody else can get it.
        let volume = new.volume(name)?;
        self.plane.update_volume(volume, new.pool_at(&volume.pool)?).await?;
        self.commit(&model, new).await?;
        self.put_records().await;
        for c in &changes {
            let object = format!("{}/{}", c.kind, c.name);
            self.events.publish(&format!("{}.{}", c.kind, c.action), &object, &c.text);
        }
        Ok(())
    }

    /// The volume as it is to be opened: where the devices hold more of it than is known, with what they hold. The caller
    /// holds `changes`, or is alone.
    pub(super) async fn sized(&self, volume: &Volume, pool: &Pool) -> Result<Volume> {
        let Some(size) = self.plane.size_of(volume, pool).await? else {
            return Ok(volume.clone());
        };
        // Less: growth that was cut off and goes on, or hosts see what there is while nothing in the pool may be changed.
        if size < volume.size && self.closed(&pool.name).is_some() {
            let size = size - size % u64::from(volume.block_size.max(1));
            return Ok(Volume { size, grown_from: None, ..volume.clone() });
        }
        // What was being cut off may still be there.
        if size <= volume.size || volume.cut.is_some_and(|c| c.from == size) {
            return Ok(volume.clone());
        }
        let (old, name) = (self.model(), volume.name.clone());
        let mut new = Model::clone(&old);
        let changes = new.apply(Command::AdoptSize { name: name.clone(), size }, 0)?;
        if changes.is_empty() {
            return Ok(volume.clone());
        }
        let now = self.commit(&old, new).await?;
        for c in &changes {
            tracing::warn!("{}", c.text);
            self.events.publish("volume.size", &format!("volume/{name}"), &c.text);
        }
        Ok(now.volume(&name)?.clone())
    }
}

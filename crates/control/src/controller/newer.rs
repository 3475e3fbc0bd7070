//! Volumes that a newer pool has, and this configuration elsewhere. They are not served from there: what is there is of before they
//! moved. That is in the configuration, since the pool may be away at the next start, or let go of; only a command ends it.

use super::*;
use crate::model::{Volume, VolumeState};

fn not_here(v: &Volume) -> Error {
    let text = format!("volume `{}` is not where this configuration has it", v.name);
    Error::new(Code::RecordNewer, text)
}

impl Controller {
    /// Refuses to serve a volume from where it was of old.
    pub(super) fn check_where(&self, v: &Volume) -> Result<()> {
        self.check_newer_gone(v)?;
        match &v.newer_in {
            None => Ok(()),
            Some(n) => Err(not_here(v)
                .because(format!("pool `{}` had that volume as of a newer configuration; what is here is older", n.pool))
                .hint(format!("delete what is left of it here, then `weir pool import` takes it as hosts left it; `weir volume set {} --serve-here` if what is here is to count", v.name))),
        }
    }

    /// The same while the newer pool is one of this node's. Then it is a fault, and no command changes it.
    pub(super) fn check_newer_gone(&self, v: &Volume) -> Result<()> {
        let model = self.model();
        let up = self.up();
        let noted = v.newer_in.as_ref().and_then(|n| model.pool_of(n.id).ok()).map(|p| &p.name);
        let noted = noted.filter(|p| !up.records.is_known(p));
        match up.records.newer_with(v).or(noted) {
            None if up.records.newer_without(v) => Err(not_here(v)
                .because(format!("the devices of pool `{}` carry a newer configuration, and do not have that volume any more", v.pool))
                .hint(format!("`weir pool release {}`, then `weir pool import` takes what the devices carry", v.pool))),
            None => Ok(()),
            Some(pool) => Err(not_here(v)
                .because(format!("the devices of pool `{pool}` carry a newer configuration, and have that volume"))
                .hint(format!("`weir pool release {pool}`, delete what is left of the volume here, then `weir pool import` takes it as hosts left it"))),
        }
    }

    /// What is here of a volume is known to be old, and what is to become of it is for people to say: that is no fault.
    pub(super) fn is_left(&self, v: &Volume) -> bool {
        v.state != VolumeState::Deleting && v.newer_in.is_some() && self.check_newer_gone(v).is_ok()
    }

    /// Writes down which volumes newer pools have. The caller holds `changes`, or is alone.
    pub(super) async fn note_newer(&self) -> Result<()> {
        if !self.up().records.any_newer() || has(Bug::NewerForgotten) {
            return Ok(());
        }
        let old = self.model();
        let mut new = Model::clone(&old);
        let mut changes = Vec::new();
        for v in old.volumes.values() {
            let noted = v.newer_in.as_ref().is_some_and(|n| old.pool_of(n.id).is_ok());
            let pool = self.up().records.newer_with(v).cloned();
            if let Some(pool) = pool.filter(|p| !noted && old.pools.contains_key(p)) {
                changes.extend(new.apply(Command::NoteNewer { name: v.name.clone(), pool }, 0)?);
            }
        }
        if changes.is_empty() {
            return Ok(());
        }
        self.commit(&old, new).await?;
        for c in &changes {
            let object = format!("{}/{}", c.kind, c.name);
            self.events.publish(&format!("{}.{}", c.kind, c.action), &object, &c.text);
        }
        Ok(())
    }

    /// Takes volumes away from hosts that were opened where they were of old, before it was known that a newer pool has them. The
    /// caller holds `changes`, or is alone.
    pub(super) async fn close_moved(&self) {
        if !self.up().records.any_newer() {
            return;
        }
        if let Err(e) = self.note_newer().await {
            // They are closed all the same; it is tried again with the next sample.
            tracing::error!("volumes that newer pools have are not written down: {e}");
        }
        let model = self.model();
        for v in model.volumes.values().filter(|v| self.up().volumes.contains(&v.name)) {
            let Err(e) = self.check_where(v) else { continue };
            let object = format!("volume/{}", v.name);
            if self.up().faults.insert(object.clone(), e.clone()).as_ref() != Some(&e) {
                self.events.publish("error", &object, &e.to_string());
            }
            if let Err(e) = self.close_volume(&v.name).await {
                // As long as it is open there, it is tried again.
                tracing::error!("{object}: {e}");
            }
        }
    }

    /// Opens a volume that is to be served from where it was left, as soon as its pool is up.
    pub(super) async fn serve_here(&self, name: &str) -> Result<Arc<Model>> {
        let model = self.model();
        let volume = model.volume(name)?;
        let pool = model.pool_at(&volume.pool)?;
        if volume.pool != crate::model::IMAGES && !self.up().pools.contains(&volume.pool) {
            return Ok(model.clone());
        }
        match volume.state {
            VolumeState::Creating => drop(self.finish_creation(name).await?),
            VolumeState::Ready | VolumeState::Deleting => self.open_volume(volume, pool).await?,
        }
        self.put_mappings(self.model().access()).await?;
        Ok(self.model())
    }
}

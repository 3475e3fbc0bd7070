//! Volumes that move: as much of it as the control plane can tell from a real one.

use super::medium::{BLOCK, Dataset, Medium, Paths};
use super::plane::{Life, refused};
use std::time::Duration;
use weir_control::dataplane::{Decision, Place};
use weir_control::live::MigrationProgress;
use weir_control::model::{Layout, Told, Volume};
use weir_control::platform::Instant;
use weir_control::{Code, Error};

/// A volume on its way.
#[derive(Debug)]
pub(super) struct Move {
    /// The volume as it is there.
    to: Volume,
    ready: Instant,
    /// No I/O is done.
    pub(super) held: bool,
    /// I/O is done on both sides.
    pub(super) both: bool,
    moved: bool,
}

impl Move {
    pub(super) fn to(&self) -> &Volume {
        &self.to
    }
}

impl Life {
    /// What a pool that is open is made of.
    pub(super) fn pool(&self, name: &str) -> Result<(u128, Paths), Error> {
        let open = self.pools.get(name).cloned();
        open.ok_or_else(|| Error::new(Code::NotReady, format!("pool {name} is not open")))
    }

    pub(super) fn start_move(
        &mut self,
        m: &mut Medium,
        there: &Volume,
        takes: Duration,
    ) -> Result<(), Error> {
        let (pool, paths) = self.pool(&there.pool)?;
        if !self.volumes.contains_key(&there.name) {
            return refused(Code::NotReady, format!("volume {} is not open", there.name));
        }
        make_anew(m, pool, &paths, there);
        let ready = Instant::now() + takes;
        let to = there.clone();
        let (held, both, moved) = (false, false, false);
        self.moves.insert(there.name.clone(), Move { to, ready, held, both, moved });
        Ok(())
    }

    pub(super) fn move_of(&self, name: &str) -> Option<MigrationProgress> {
        let m = self.moves.get(name)?;
        let state = match m.moved {
            true => "moved",
            false if Instant::now() < m.ready => "copying",
            false => "ready",
        };
        Some(MigrationProgress { state: state.into(), ..MigrationProgress::default() })
    }

    /// Holds I/O back, with both sides the same.
    pub(super) fn hold(&mut self, m: &mut Medium, name: &str) -> Result<Told, Error> {
        let (Some(v), Some(to)) = (self.volumes.get(name), self.moves.get(name).map(Move::to))
        else {
            return refused(Code::NotReady, format!("volume {name} does not move"));
        };
        let (from, there) = (self.pool(&v.pool)?, self.pool(&to.pool)?);
        make_anew(m, there.0, &there.1, to);
        let wrong = |e: String| Error::new(Code::Internal, e);
        for n in 0..v.size / BLOCK {
            if let Some(stamp) = m.read(from.0, &from.1, v, n).map_err(wrong)? {
                m.write(there.0, &there.1, to, n, stamp).map_err(wrong)?;
            }
        }
        if let Some(m) = self.moves.get_mut(name) {
            m.held = true;
        }
        Ok(Told { write_cache: false, thin: true })
    }

    pub(super) fn decide(&mut self, name: &str, decision: Decision) -> Result<(), Error> {
        let Some(m) = self.moves.get_mut(name) else {
            return refused(Code::NotReady, format!("volume {name} does not move"));
        };
        (m.held, m.both) = (false, decision == Decision::Doubtful);
        if decision == Decision::Moved {
            m.moved = true;
            self.volumes.insert(name.to_string(), m.to.clone());
        }
        Ok(())
    }

    /// The volume is in one place alone.
    pub(super) fn end_move(&mut self, here: &Volume) {
        self.moves.remove(&here.name);
        if let Some(v) = self.volumes.get_mut(&here.name) {
            *v = here.clone();
        }
    }
}

fn make_anew(m: &mut Medium, pool: u128, paths: &Paths, v: &Volume) {
    m.discard(pool, paths, v, 0);
    if let Layout::Store { dataset, .. } = &v.layout {
        let made = Dataset { size: v.size, ..Dataset::default() };
        m.stores.entry(pool).or_default().datasets.insert(dataset.clone(), made);
    }
}

/// Gives back what a volume has in a place.
pub(super) fn clear(m: &mut Medium, (pool, paths): (u128, &Paths), place: Place<'_>) {
    m.discard(pool, paths, place.volume, 0);
    if let Layout::Store { dataset, .. } = &place.volume.layout
        && let Some(store) = m.stores.get_mut(&pool)
    {
        store.datasets.remove(dataset);
    }
}

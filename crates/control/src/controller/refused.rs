//! Pools whose creation was refused and that could not be taken away at once.

use super::bring_up::CATCH_UP;
use super::*;

impl Controller {
    /// Takes away a pool that did not come to be. What cannot be is told, and tried again every few seconds.
    pub(super) async fn take_away(&self, pool: &Pool) -> Result<()> {
        let begun = Instant::now();
        let done = self.plane_unmake(pool, true).await;
        match &done {
            // What waits long for a device that hangs does not keep commands waiting most of the time.
            Err(e) => self.is_left_over(pool, e, Instant::now() + begun.elapsed() * CATCH_UP),
            Ok(()) => {
                let mut up = self.up();
                if up.refused.remove(&pool.name).is_some() {
                    up.faults.remove(&format!("pool/{}", pool.name));
                }
            }
        }
        done
    }

    /// Keeps that something of a pool that did not come to be is there yet, and when that is tried again.
    pub(super) fn is_left_over(&self, pool: &Pool, e: &Error, next: Instant) {
        if has(Bug::UnmadeOnce) {
            return;
        }
        self.up().refused.insert(pool.name.clone(), (pool.clone(), next));
        let text = format!("pool `{}` was refused, and is not taken away yet", pool.name);
        let hint = "it is tried again every few seconds; its devices are not free before";
        self.fault(format!("pool/{}", pool.name), Error::new(e.code, text).because(e).hint(hint));
    }

    /// Tries that again for all whose time has come, or `all`. The caller holds `changes`.
    pub(super) async fn take_refused_away(&self, all: bool) {
        let refused: Vec<_> = self.up().refused.values().cloned().collect();
        let due = refused.into_iter().filter(|(_, next)| all || Instant::now() >= *next);
        for (pool, _) in due.collect::<Vec<_>>() {
            match self.model().pools.contains_key(&pool.name) {
                // Another has come by its name: that is what is open by it.
                true => drop(self.up().refused.remove(&pool.name)),
                false => drop(self.take_away(&pool).await),
            }
        }
    }

    /// What was refused before stands in nobody's way if it can be taken away now.
    pub(super) async fn make_way(&self, command: &Command) -> Result<()> {
        let name = match command {
            Command::CreatePool(spec) => &spec.name,
            Command::ImportPool { spec, .. } => match &spec.name {
                Some(name) => name,
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        let refused = self.up().refused.get(name).cloned();
        match refused {
            Some((pool, _)) => self.take_away(&pool).await,
            None => Ok(()),
        }
    }
}

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
        let due: Vec<Pool> = {
            let up = self.up();
            // Below what hosts' commands are under way in, devices stay until these have ended.
            let waits = |p: &Pool| up.to_stop.contains_key(&p.name);
            let is_due = |next: &Instant| all || Instant::now() >= *next;
            up.refused
                .values()
                .filter(|(p, n)| is_due(n) && !waits(p))
                .map(|(p, _)| p.clone())
                .collect()
        };
        for pool in due {
            drop(self.take_away(&pool).await);
        }
    }

    /// What was refused before stands in no new pool's way if it can be taken away now, `again`: though its time has not come.
    pub(super) async fn make_way(&self, old: &Model, new: &Model, again: bool) -> Result<()> {
        if has(Bug::RefusedIsPassed) {
            return Ok(());
        }
        let refused: Vec<_> = {
            let up = self.up();
            let is_new = |n: &&String| new.pools.contains_key(*n) && !old.pools.contains_key(*n);
            up.refused.iter().filter(|(n, _)| is_new(n)).map(|(_, r)| r.clone()).collect()
        };
        for (pool, next) in refused {
            let known = self.up().faults.get(&format!("pool/{}", pool.name)).cloned();
            match known {
                Some(e) if !again && Instant::now() < next => return Err(e),
                _ => self.take_away(&pool).await?,
            }
        }
        Ok(())
    }
}

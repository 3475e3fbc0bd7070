//! Devices that are out of service and have lost their names to others.

use super::{Holds, Owner, lock, unusable};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use weir_control::Result;
use weir_uring::{Held, Identity};

impl Holds {
    /// Lets go of what an owner has by a name that leads to something else by now, though it is in use: its owner has given it
    /// up. It stays locked as long as that has a disk on it, or requests of one.
    pub(super) fn yield_name(&self, owner: &Owner, path: &Path) -> Result<()> {
        let Some(held) = self.kept(owner, path) else { return Ok(()) };
        let now = match std::fs::metadata(path) {
            Ok(now) => Identity::of(&now),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => return Err(unusable(path, e)),
        };
        if now != Some(held.identity()) {
            lock(&self.yielded).push((owner.clone(), Arc::downgrade(&held)));
            self.release(|e| Arc::ptr_eq(&e.held, &held));
        }
        Ok(())
    }

    /// All that has lost its name and has a disk on it still. What only requests have that nobody waits for any more stays locked, and
    /// is nobody's: they may yet write to it.
    pub(super) fn all_yielded(&self) -> Vec<(Owner, Arc<Held>)> {
        let mut alive: Vec<_> = {
            let mut all = lock(&self.yielded);
            all.retain(|(_, held)| held.strong_count() > 0);
            all.iter().filter_map(|(o, held)| Some((o.clone(), held.upgrade()?))).collect()
        };
        // Without the lock: it may be the last of one.
        alive.retain(|(_, held): &(_, Arc<Held>)| held.is_used());
        alive
    }

    /// An owner is no more, or not open: one that gets its name has no claim to what it has left behind.
    pub(super) fn forget_yielded(&self, owner: &Owner) {
        lock(&self.yielded).retain(|(o, _)| o != owner);
    }

    /// What an owner has that has lost its name, if `path` leads to it: it may come back by that.
    pub(super) fn yielded_at(&self, owner: &Owner, path: &Path) -> Option<Arc<Held>> {
        let now = std::fs::metadata(path).ok().and_then(|m| Identity::of(&m))?;
        let mut all = self.all_yielded().into_iter();
        all.find(|(o, held)| o == owner && held.identity() == now).map(|(_, held)| held)
    }

    /// Who has what has lost its name.
    pub(super) fn yielded_of(&self, identity: Identity) -> Option<Owner> {
        let mut all = self.all_yielded().into_iter();
        all.find(|(_, held)| held.identity() == identity).map(|(owner, _)| owner)
    }

    /// What some owners have that has lost its name.
    pub(super) fn yielded_by(&self, is_it: impl Fn(&Owner) -> bool) -> Vec<Identity> {
        let all = self.all_yielded().into_iter();
        all.filter(|(owner, _)| is_it(owner)).map(|(_, held)| held.identity()).collect()
    }
}

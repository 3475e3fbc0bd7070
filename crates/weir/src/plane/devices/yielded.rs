//! Devices that are out of service and have lost their names to others.

use super::{Holds, Owner, lock, unusable};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use weir_control::Result;
use weir_uring::{Held, Identity};

impl Holds {
    /// Lets go of what an owner has by a name that leads to something else by now, though it is in use: its owner has given it
    /// up. It stays locked as long as that has a disk on it.
    pub(super) fn yield_name(&self, owner: &Owner, path: &Path) -> Result<()> {
        let Some(held) = self.kept(owner, path) else { return Ok(()) };
        let now = match std::fs::metadata(path) {
            Ok(now) => Identity::of(&now),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => return Err(unusable(path, e)),
        };
        if now != Some(held.identity()) {
            lock(&self.yielded).push((owner.clone(), held.clone()));
            self.release(|e| Arc::ptr_eq(&e.held, &held));
        }
        Ok(())
    }

    /// What an owner has that has lost its name, if `path` leads to it: it may come back by that.
    pub(super) fn yielded_at(&self, owner: &Owner, path: &Path) -> Option<Arc<Held>> {
        self.forget_yielded(|_, held| !held.is_used());
        let now = std::fs::metadata(path).ok().and_then(|m| Identity::of(&m))?;
        let all = lock(&self.yielded);
        let is_it = |(o, held): &&(Owner, Arc<Held>)| o == owner && held.identity() == now;
        all.iter().find(is_it).map(|(_, held)| held.clone())
    }

    /// Who has what has lost its name.
    pub(super) fn yielded_of(&self, identity: Identity) -> Option<Owner> {
        let all = lock(&self.yielded);
        let is_it = |(_, held): &&(Owner, Arc<Held>)| held.is_used() && held.identity() == identity;
        all.iter().find(is_it).map(|(owner, _)| owner.clone())
    }

    pub(super) fn forget_yielded(&self, gone: impl Fn(&Owner, &Held) -> bool) {
        let gone = |e: &mut (Owner, Arc<Held>)| gone(&e.0, &e.1);
        let all: Vec<_> = lock(&self.yielded).extract_if(.., gone).collect();
        // Closed without the lock.
        drop(all);
    }
}

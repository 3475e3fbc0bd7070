//! What an open pool has of what is held for it.

use crate::plane::devices::{Holds, Owner};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Weak};
use weir_uring::Held;

/// The devices that are held and part of a pool, or about to be, by path. Another one may get the path of one that leaves.
#[derive(Default)]
pub(super) struct Used(BTreeMap<String, Weak<Held>>);

impl Used {
    /// This one is part of the pool, or about to be, in place of what had its path before.
    pub(super) fn put(&mut self, path: &str, held: &Arc<Held>) {
        self.0.insert(path.to_owned(), Arc::downgrade(held));
    }

    /// This one has not become part of the pool: whoever took it lets go of it.
    pub(super) fn take_out(&mut self, path: &str, held: &Arc<Held>) {
        self.0.retain(|p, used| p != path || !used.ptr_eq(&Arc::downgrade(held)));
    }

    /// Nothing by this path is part of the pool.
    pub(super) fn remove(&mut self, path: &str) {
        self.0.remove(path);
    }

    /// Unlocks what has left the pool, which has devices by these paths. One that has a disk on it is being put in again, or asked
    /// still: it stays until the next time. False: one has stayed so.
    pub(super) fn let_go(
        &mut self,
        here: &BTreeSet<String>,
        (holds, owner): (&Holds, &Owner),
    ) -> bool {
        let mut all = true;
        self.0.retain(|path, used| {
            let is_here = here.contains(path);
            let stays = is_here || !holds.release_held(owner, Path::new(path), used);
            all &= is_here || !stays;
            stays
        });
        all
    }
}

impl FromIterator<(String, Weak<Held>)> for Used {
    fn from_iter<T: IntoIterator<Item = (String, Weak<Held>)>>(all: T) -> Used {
        Used(all.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plane::devices::Wait;
    use std::path::PathBuf;
    use std::rc::Rc;
    use weir_reactor::Reactor;
    use weir_uring::{FileDisk, Ring};

    struct Fixture {
        dir: PathBuf,
        path: PathBuf,
        holds: Arc<Holds>,
        owner: Owner,
        used: Used,
        ring: Ring,
        _reactor: Reactor,
    }

    impl Fixture {
        /// A pool that is about to get, or has, a device by this path.
        fn new(name: &str) -> Fixture {
            let dir = std::env::temp_dir().join(format!("weir-used-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).expect("a directory");
            let ring = Ring::new().expect("a ring");
            Fixture {
                path: dir.join("disk"),
                dir,
                holds: Arc::default(),
                owner: Owner::Pool("p".into()),
                used: Used::default(),
                _reactor: Reactor::new(Rc::new(ring.clone())),
                ring,
            }
        }

        fn name(&self) -> String {
            self.path.display().to_string()
        }

        /// Another disk gets the path, and is taken for the pool.
        fn comes(&self) -> Arc<Held> {
            let new = self.dir.join("new");
            std::fs::write(&new, [1; 8192]).expect("a file");
            std::fs::rename(&new, &self.path).expect("moved");
            self.holds.take(&self.owner, &self.path, false, Wait::No).expect("free").keep()
        }

        fn disk(&self, held: &Arc<Held>) -> FileDisk {
            FileDisk::on(&self.ring, &self.path, held).expect("a disk")
        }

        /// Lets go while the pool has devices by these paths.
        fn let_go(&mut self, here: &[String]) -> bool {
            let here = here.iter().cloned().collect();
            self.used.let_go(&here, (&self.holds, &self.owner))
        }

        fn is_held(&self, held: &Arc<Held>) -> bool {
            let kept = self.holds.kept(&self.owner, &self.path);
            kept.is_some_and(|kept| Arc::ptr_eq(&kept, held))
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            drop(std::fs::remove_dir_all(&self.dir));
        }
    }

    #[test]
    fn a_device_that_has_left_is_released_once_its_disk_is_gone() {
        let mut f = Fixture::new("left");
        let held = f.comes();
        let (disk, name) = (f.disk(&held), f.name());
        f.used.put(&name, &held);
        assert!(f.let_go(&[name]) && f.is_held(&held), "it is in the pool");
        assert!(!f.let_go(&[]) && f.is_held(&held), "it is asked still");
        drop(disk);
        assert!(f.let_go(&[]) && !f.is_held(&held));
        // Whoever takes it next does so for itself.
        drop(held);
        let held = f.comes();
        assert!(f.let_go(&[]) && f.is_held(&held));
    }

    /// A disk is put in again while the pool gives it up, and the pool has it not yet when it has given it up.
    #[test]
    fn a_device_that_is_put_in_again_stays_when_the_pool_has_given_it_up() {
        let mut f = Fixture::new("again");
        let held = f.comes();
        let (disk, name) = (f.disk(&held), f.name());
        f.used.put(&name, &held);
        let again = f.holds.take(&f.owner, &f.path, false, Wait::No).expect("it is its own").keep();
        assert!(Arc::ptr_eq(&held, &again));
        let new = f.disk(&again);
        f.used.put(&name, &again);
        drop(disk);
        assert!(!f.let_go(&[]) && f.is_held(&held));
        assert!(f.let_go(std::slice::from_ref(&name)) && f.is_held(&held), "it has come");
        // It fails instead: who took it gives it up.
        drop(new);
        f.used.take_out(&name, &again);
        assert!(f.let_go(&[]) && f.is_held(&held));
    }

    #[test]
    fn a_device_that_leaves_does_not_take_the_next_one_of_its_path_along() {
        let mut f = Fixture::new("next");
        let old = f.comes();
        let name = f.name();
        f.used.put(&name, &old);
        // Nobody uses the old one any more, and its path leads to another.
        let new = f.comes();
        assert!(!Arc::ptr_eq(&old, &new));
        assert!(f.let_go(&[]) && f.is_held(&new));
        // Nor does one that did not come in take out what was put in after it.
        let disk = f.disk(&new);
        f.used.put(&name, &new);
        f.used.take_out(&name, &old);
        drop(disk);
        assert!(f.let_go(&[]) && !f.is_held(&new));
    }
}

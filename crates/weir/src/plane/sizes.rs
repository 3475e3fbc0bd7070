//! Devices of pools that have become shorter under them: a file that somebody truncated, a disk that a controller made smaller.
//!
//! Nothing of it shows before what was there is read. So sizes are asked for with each look at how the node stands, on threads
//! that may wait, and what they were when that has ended is told from then on.

use super::devices::{Holds, Owner};
use super::local::{Local, look, on};
use super::node::Node;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use weir_control::live::ShortDevice;
use weir_uring::Held;

/// The device of a pool, by the pool's name and the path.
type Key = (String, PathBuf);

struct Size {
    held: Weak<Held>,
    /// The most bytes that it had, and what it has.
    had: u64,
    has: u64,
}

/// Sizes of the devices of pools.
#[derive(Default)]
pub(crate) struct Sizes {
    known: Mutex<BTreeMap<Key, Size>>,
    /// Somebody asks for them: one that does not answer is not asked again meanwhile.
    asking: AtomicBool,
}

impl Sizes {
    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<Key, Size>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, key: &Key, held: &Arc<Held>, has: u64) {
        let mut known = self.known();
        match known.get_mut(key).filter(|s| s.held.as_ptr() == Arc::as_ptr(held)) {
            Some(s) => (s.had, s.has) = (s.had.max(has), has),
            None => {
                known.insert(key.clone(), Size { held: Arc::downgrade(held), had: has, has });
            }
        }
    }

    /// Devices that have less than they had.
    pub(crate) fn short(&self) -> Vec<ShortDevice> {
        let short = |((pool, path), s): (&Key, &Size)| ShortDevice {
            pool: pool.clone(),
            path: path.display().to_string(),
            had: s.had,
            has: s.has,
        };
        let known = self.known();
        known.iter().filter(|(_, s)| s.has < s.had).map(short).collect()
    }
}

/// The devices that pools have: files and disks, no directories.
fn devices(holds: &Holds) -> Vec<(Key, Arc<Held>)> {
    let pools = RefCell::new(Vec::new());
    let paths = holds.paths_of(|owner| match owner {
        Owner::Pool(name) => {
            pools.borrow_mut().push(name.clone());
            true
        }
        _ => false,
    });
    let held = |(pool, path): (String, PathBuf)| {
        let held = holds.kept(&Owner::Pool(pool.clone()), &path)?;
        (!held.is_directory()).then_some(((pool, path), held))
    };
    pools.into_inner().into_iter().zip(paths).filter_map(held).collect()
}

impl Node {
    /// Has the sizes of all devices of pools asked for, unless that is still under way.
    pub(super) fn ask_sizes(&self) {
        let (sizes, all) = (self.sizes.clone(), devices(&self.holds));
        sizes.known().retain(|key, _| all.iter().any(|(k, _)| k == key));
        for (key, held) in &all {
            // What it had when it was opened, before anybody could make it shorter.
            let is_it = |s: &Size| s.held.as_ptr() == Arc::as_ptr(held);
            if !sizes.known().get(key).is_some_and(is_it) {
                sizes.note(key, held, held.last_len());
            }
        }
        let Some(reactor) = self.handles().into_iter().next() else { return };
        if all.is_empty() || sizes.asking.swap(true, Ordering::AcqRel) {
            return;
        }
        tokio::spawn(async move {
            let asked = sizes.clone();
            let done = on(&reactor, move |_: Rc<Local>| {
                Box::pin(async move {
                    for (key, held) in all {
                        let of = held.clone();
                        if let Some(Ok(len)) = look(&key.1, move || of.len()).await {
                            asked.note(&key, &held, len);
                        }
                    }
                    Ok(())
                })
            });
            if let Err(e) = done.await {
                tracing::debug!("sizes of devices are not known: {e}");
            }
            sizes.asking.store(false, Ordering::Release);
        });
    }
}

//! Devices of pools that have become shorter under them: a file that somebody truncated, a disk that a controller made smaller.
//!
//! Nothing of it shows before what was there is read. So sizes are asked for with each look at how the node stands, on threads
//! that may wait, and what they were when that has ended is told from then on. Nobody who waits keeps a device open.

use super::local::{Local, look, on};
use super::node::Node;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use weir_control::live::{PoolLive, ShortDevice};
use weir_uring::Held;

/// The device of a pool, by the pool's name and the path.
pub(crate) type Key = (String, PathBuf);

struct Size {
    held: Weak<Held>,
    /// It is a block device.
    is_disk: bool,
    /// The most bytes that it had, and what it has.
    had: u64,
    has: u64,
    /// A thread is asking it.
    asked: Arc<AtomicBool>,
}

/// A question that is under way, until it is answered or nobody asks it any more.
struct Asking(Arc<AtomicBool>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The bytes of a device, if it says that.
fn len(held: &Held) -> Option<u64> {
    let len = held.len().ok()?;
    // A disk that is pulled has none.
    (len > 0 || !held.is_block()).then_some(len)
}

/// Sizes of the devices of pools.
#[derive(Default)]
pub(crate) struct Sizes {
    known: Mutex<BTreeMap<Key, Size>>,
    /// Somebody goes through all of them.
    asking: AtomicBool,
}

impl Sizes {
    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<Key, Size>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on these are the devices. What one had when it was opened is what it had before anybody could make it shorter.
    fn are(&self, all: Vec<(Key, Arc<Held>)>) {
        let mut known = self.known();
        known.retain(|key, _| all.iter().any(|(k, _)| k == key));
        for (key, held) in all {
            let is_it = |s: &Size| s.held.as_ptr() == Arc::as_ptr(&held);
            if !known.get(&key).is_some_and(is_it) {
                let (had, is_disk) = (held.last_len(), held.is_block());
                let (held, asked) = (Arc::downgrade(&held), Arc::default());
                known.insert(key, Size { held, is_disk, had, has: had, asked });
            }
        }
    }

    fn note(&self, key: &Key, held: &Weak<Held>, has: u64) {
        if let Some(s) = self.known().get_mut(key).filter(|s| s.held.ptr_eq(held)) {
            (s.had, s.has) = (s.had.max(has), has);
        }
    }

    /// Begins to ask a device; none: it is being asked still.
    fn ask(&self, key: &Key) -> Option<(Weak<Held>, Asking)> {
        let known = self.known();
        let s = known.get(key)?;
        (!s.asked.swap(true, Ordering::AcqRel)).then(|| (s.held.clone(), Asking(s.asked.clone())))
    }

    /// Devices that have less than they had, or than the pools have of them. A disk that its pool says has failed is told as that.
    pub(crate) fn short(&self, pools: &[PoolLive]) -> Vec<ShortDevice> {
        let short = |((pool, path), s): (&Key, &Size)| {
            let devices = pools.iter().filter(|p| p.name == *pool).flat_map(|p| &p.devices);
            let is_it = |p: &str| Path::new(p) == path;
            let of = devices.into_iter().find(|d| d.path.as_deref().is_some_and(is_it));
            let had = s.had.max(of.map_or(0, |d| d.size));
            let has_failed = s.is_disk && of.is_some_and(|d| d.state == "failed");
            (s.has < had && !has_failed).then(|| ShortDevice {
                pool: pool.clone(),
                path: path.display().to_string(),
                had,
                has: s.has,
            })
        };
        self.known().iter().filter_map(short).collect()
    }
}

impl Node {
    /// Has the sizes of all devices of pools asked for, unless that is still under way.
    pub(super) fn ask_sizes(&self) {
        let sizes = self.sizes.clone();
        self.holds.of_pools(|all| sizes.are(all));
        let keys: Vec<Key> = sizes.known().keys().cloned().collect();
        let Some(reactor) = self.handles().into_iter().next() else { return };
        if keys.is_empty() || sizes.asking.swap(true, Ordering::AcqRel) {
            return;
        }
        tokio::spawn(async move {
            let asked = sizes.clone();
            let done = on(&reactor, move |_: Rc<Local>| {
                Box::pin(async move {
                    for key in keys {
                        let Some((held, asking)) = asked.ask(&key) else { continue };
                        let (of, asked, by) = (held, asked.clone(), key.clone());
                        // There it may be the last that has the device, and close it.
                        let answer = move || {
                            let len = of.upgrade().and_then(|h| len(&h));
                            len.into_iter().for_each(|len| asked.note(&by, &of, len));
                            drop(asking);
                        };
                        look(&key.1, answer).await;
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

#[cfg(test)]
mod tests {
    use super::*;
    use weir_control::live::PoolDeviceLive;

    /// A device of pool `p`: a file of so many bytes.
    fn device(name: &str, len: u64) -> (Key, Arc<Held>) {
        let file = format!("weir-sizes-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(file);
        let made = std::fs::File::create(&path).expect("a file");
        made.set_len(len).expect("a length");
        (("p".into(), path.clone()), Arc::new(Held::open(&path, false).expect("held")))
    }

    /// Pool `p` as it stands.
    fn live(path: &Path, size: u64, state: &str) -> PoolLive {
        let path = Some(path.display().to_string());
        let state = state.to_owned();
        let device = PoolDeviceLive { path, size, state, ..PoolDeviceLive::default() };
        PoolLive { name: "p".into(), devices: vec![device], ..PoolLive::default() }
    }

    #[test]
    fn who_waits_for_an_answer_keeps_no_device() {
        let (sizes, (key, held)) = (Sizes::default(), device("waits", 1 << 20));
        sizes.are(vec![(key.clone(), held.clone())]);
        let (of, asking) = sizes.ask(&key).expect("it is asked");
        drop(held);
        assert!(of.upgrade().is_none());
        Held::open(&key.1, false).expect("nobody has it locked");
        assert!(sizes.ask(&key).is_none(), "it has not answered");
        drop(asking);
        assert!(sizes.ask(&key).is_some());
        drop(std::fs::remove_file(key.1));
    }

    #[test]
    fn a_device_that_was_short_already_when_it_was_opened_is_told() {
        let (sizes, (key, held)) = (Sizes::default(), device("short", 1 << 20));
        sizes.are(vec![(key.clone(), held.clone())]);
        let short = |size| sizes.short(&[live(&key.1, size, "in-sync")]).len();
        assert_eq!((short(1 << 20), short(1 << 21)), (0, 1));
        drop((held, std::fs::remove_file(&key.1)));
    }

    #[test]
    fn a_disk_that_has_failed_is_not_told_as_shorter() {
        let (sizes, (key, held)) = (Sizes::default(), device("failed", 1 << 20));
        sizes.are(vec![(key.clone(), held.clone())]);
        let short = |state| sizes.short(&[live(&key.1, 1 << 21, state)]).len();
        assert_eq!((short("in-sync"), short("failed")), (1, 1), "a file is what it is");
        sizes.known().values_mut().for_each(|s| s.is_disk = true);
        assert_eq!((short("in-sync"), short("failed")), (1, 0));
        drop((held, std::fs::remove_file(&key.1)));
    }
}

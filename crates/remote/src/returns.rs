//! Volumes of other nodes that a pool has lost come back by themselves: nobody pulls a disk out there to look at it.

use crate::disk::{PATIENCE, Remote};
use crate::planted::{Bug, has};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use weir_base::{IoError, Nanos, SECONDS};
use weir_disk::Disk;
use weir_reactor::{LocalFuture, now, sleep, spawn_task};
use weir_store::format::superblock::MemberState;
use weir_store::{Pool, StoreError};

/// How often is looked whether one is lost.
pub const LOOK: Nanos = SECONDS;
/// Longest pause between two tries to bring one back. It begins with one look and doubles.
pub const LONGEST: Nanos = 8 * SECONDS;

const REPLACED: &str = "another daemon has logged in there as this node, which uses it no more until it is started again; give \
                        each an initiator_port of its own";

/// How volumes of other nodes are reached.
pub trait Reach {
    /// Opens the volume of this name, or says why it cannot be.
    fn reach<'a>(&'a self, name: &'a str) -> LocalFuture<'a, Result<Rc<Remote>, String>>;
}

/// What is known of one.
#[derive(Default)]
struct Known {
    /// The disk that the pool got last.
    disk: Weak<Remote>,
    /// Since when its connection is down, as far as was looked.
    down: Option<Nanos>,
    /// Why it is not in use.
    why: Option<String>,
    /// When it is tried again, and the pause before that.
    next: Option<(Nanos, Nanos)>,
}

/// Looks after the volumes of other nodes that are devices of an open pool, on its reactor.
pub struct Returns {
    pool: Pool,
    known: RefCell<BTreeMap<String, Known>>,
    stopped: Cell<bool>,
}

impl Returns {
    /// Begins to.
    pub fn start(pool: Pool, reach: Rc<dyn Reach>) -> Rc<Returns> {
        let me = Rc::new(Returns { pool, known: RefCell::default(), stopped: Cell::new(false) });
        let looks = me.clone();
        spawn_task(async move {
            while !looks.stopped.get() {
                sleep(LOOK).await;
                looks.look(&*reach).await;
            }
        });
        me
    }

    /// The pool has got this volume, or is to get it back.
    pub fn add(&self, name: &str, disk: Option<&Rc<Remote>>) {
        let disk = disk.map(Rc::downgrade).unwrap_or_default();
        self.known.borrow_mut().insert(name.to_owned(), Known { disk, ..Known::default() });
    }

    /// Says why one is not in use.
    pub fn say(&self, name: &str, why: String) {
        if let Some(k) = self.known.borrow_mut().get_mut(name) {
            k.why = Some(why);
        }
    }

    /// The pool is being closed. What is under way ends by itself.
    pub fn stop(&self) {
        self.stopped.set(true);
    }

    /// Those that are not in use, or not reached just now, and why.
    pub fn told(&self) -> Vec<(String, String)> {
        let known = self.known.borrow();
        let told = |(name, k): (&String, &Known)| {
            let is_down = k.down.is_some_and(|since| now() >= since + PATIENCE);
            let down = || "the connection to it is down".to_owned();
            Some((name.clone(), k.why.clone().or_else(|| is_down.then(down))?))
        };
        known.iter().filter_map(told).collect()
    }

    /// Whether the pool has it, and has not lost it.
    fn is_here(&self, name: &str) -> bool {
        let devices = self.pool.status().devices;
        let mut of = devices.iter().filter(|d| d.name.as_deref() == Some(name));
        of.any(|d| !d.failed && d.state != MemberState::Out)
    }

    async fn look(&self, reach: &dyn Reach) {
        let names: Vec<String> = self.known.borrow().keys().cloned().collect();
        for name in names {
            // Without a second copy, the pool has failed nothing: it waits.
            let waits = matches!(
                self.pool.status().suspended,
                Some(IoError::Offline | IoError::Path | IoError::Busy)
            );
            let is_here = self.is_here(&name) && !waits;
            {
                let mut known = self.known.borrow_mut();
                let Some(k) = known.get_mut(&name) else { continue };
                let disk = k.disk.upgrade();
                let is_up = disk.as_ref().is_none_or(|d| d.is_up());
                k.down = (!is_up).then(|| k.down.unwrap_or(now()));
                // Each would end the other's sessions in turn.
                if disk.is_some_and(|d| d.is_replaced()) {
                    k.why = Some(REPLACED.into());
                    continue;
                }
                if is_here {
                    (k.why, k.next) = (None, None);
                    continue;
                }
                if k.next.is_some_and(|(at, _)| now() < at) {
                    continue;
                }
            }
            if self.stopped.get() || has(Bug::NothingReturns) {
                return;
            }
            let done = self.bring_back(&name, reach).await;
            let mut known = self.known.borrow_mut();
            let Some(k) = known.get_mut(&name) else { continue };
            match done {
                Ok(()) => (k.why, k.next, k.down) = (None, None, None),
                Err(why) => {
                    let pause = k.next.map_or(LOOK, |(_, pause)| (pause * 2).min(LONGEST));
                    (k.why, k.next) = (Some(why), Some((now() + pause, pause)));
                }
            }
        }
    }

    async fn bring_back(&self, name: &str, reach: &dyn Reach) -> Result<(), String> {
        let disk = reach.reach(name).await?;
        if self.pool.status().suspended.is_some() {
            // The pool's own disk is well again, too, and it goes on with that.
            drop(disk);
            return self.pool.resume().await.map_err(|e| e.to_string());
        }
        let weak = Rc::downgrade(&disk);
        match self.pool.attach(disk as Rc<dyn Disk>).await {
            Ok(_) => {
                tracing::info!("{name} is back");
                if let Some(k) = self.known.borrow_mut().get_mut(name) {
                    k.disk = weak;
                }
                Ok(())
            }
            // Another volume has its name by now, or it has left the pool.
            Err(e @ StoreError::Request(_)) => {
                tracing::warn!("{name} does not come back: {e}");
                self.known.borrow_mut().remove(name);
                Err(e.to_string())
            }
            Err(e) => Err(e.to_string()),
        }
    }
}

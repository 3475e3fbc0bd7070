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
use weir_store::{DeviceInfo, Pool};

/// How often is looked whether one is lost.
pub const LOOK: Nanos = SECONDS;
/// Longest pause between two tries to bring one back. It begins with one look and doubles.
pub const LONGEST: Nanos = 8 * SECONDS;

const REPLACED: &str = "another daemon has logged in there as this node, which uses it no more until it is started again; give \
                        each an initiator_port of its own";
const ANOTHER: &str = "another volume has its name there by now";

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
    /// What that is.
    uid: Option<[u8; 16]>,
    /// Which device of the pool it is, once that was seen.
    device: Option<u64>,
    /// Since when its connection is down, as far as was looked.
    down: Option<Nanos>,
    /// Why it is not in use.
    why: Option<String>,
    /// When it is tried again, and the pause before that.
    next: Option<(Nanos, Nanos)>,
    /// It is being brought back.
    busy: bool,
}

/// How a volume of another node stands in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// It has everything.
    Well,
    /// It is the pool's, or the operator's, to decide about.
    Here,
    /// It failed, or is missing.
    Lost,
    /// It is no device of the pool any more, or goes by another name.
    Left,
}

/// Whether a pool without a second copy waits for a device: it has failed nothing. One that is suspended for another reason is the
/// operator's.
fn waits(pool: &Pool) -> bool {
    matches!(pool.status().suspended, Some(IoError::Offline | IoError::Path | IoError::Busy))
}

/// Looks after the volumes of other nodes that are devices of an open pool, on its reactor.
pub struct Returns {
    /// None once the pool is closed: nothing keeps its disks then.
    pool: RefCell<Option<Pool>>,
    reach: Rc<dyn Reach>,
    known: RefCell<BTreeMap<String, Known>>,
    tries: Cell<u64>,
}

impl Returns {
    /// Begins to.
    pub fn start(pool: Pool, reach: Rc<dyn Reach>) -> Rc<Returns> {
        let (pool, known) = (RefCell::new(Some(pool)), RefCell::default());
        let me = Rc::new(Returns { pool, reach, known, tries: Cell::default() });
        let looks = me.clone();
        spawn_task(async move {
            loop {
                sleep(LOOK).await;
                let Some(pool) = looks.pool() else { return };
                looks.look(&pool);
            }
        });
        me
    }

    fn pool(&self) -> Option<Pool> {
        self.pool.borrow().clone()
    }

    /// Whether a disk here has everything, so that each doubt about a volume elsewhere is worth a look at it: one of two copies is on
    /// each of two devices, and the other one is of no other node.
    fn is_strict(&self, pool: &Pool) -> bool {
        let s = pool.status();
        let is_local = |d: &DeviceInfo| {
            let in_sync = d.state == MemberState::InSync && !d.failed;
            in_sync && d.name.as_ref().is_some_and(|n| !self.known.borrow().contains_key(n))
        };
        s.copies == 2 && s.devices.len() == 2 && s.devices.iter().any(is_local)
    }

    /// The pool has got this volume, or is to get it back.
    pub fn add(&self, name: &str, disk: Option<&Rc<Remote>>) {
        self.put(name, disk);
        if let (Some(disk), Some(pool)) = (disk, self.pool()) {
            disk.set_strict(self.is_strict(&pool));
        }
    }

    fn put(&self, name: &str, disk: Option<&Rc<Remote>>) {
        let uid = disk.map(|d| d.uid());
        let disk = disk.map(Rc::downgrade).unwrap_or_default();
        self.known.borrow_mut().insert(name.to_owned(), Known { disk, uid, ..Known::default() });
    }

    /// The pool is to have no others than these.
    pub fn retain(&self, names: &[String]) {
        self.known.borrow_mut().retain(|name, _| names.contains(name));
    }

    /// Says why one is not in use.
    pub fn say(&self, name: &str, why: String) {
        if let Some(k) = self.known.borrow_mut().get_mut(name) {
            k.why = Some(why);
        }
    }

    /// The pool is closed, or about to be. What is under way ends by itself.
    pub fn stop(&self) {
        drop(self.pool.take());
    }

    /// Those that are not in use, and why.
    pub fn told(&self) -> Vec<(String, String)> {
        let known = self.known.borrow();
        known.iter().filter_map(|(name, k)| Some((name.clone(), k.why.clone()?))).collect()
    }

    /// How often one was to be brought back.
    pub fn tries(&self) -> u64 {
        self.tries.get()
    }

    fn look(self: &Rc<Self>, pool: &Pool) {
        let (devices, waits, strict) = (pool.status().devices, waits(pool), self.is_strict(pool));
        let mut lost = Vec::new();
        self.known.borrow_mut().retain(|name, k| {
            let standing = k.standing(name, &devices, waits);
            let disk = k.disk.upgrade();
            disk.iter().for_each(|d| d.set_strict(strict));
            let is_up = disk.as_ref().is_none_or(|d| d.is_up());
            k.down = (!is_up).then(|| k.down.unwrap_or(now()));
            match standing {
                Standing::Left => return false,
                Standing::Well | Standing::Here
                    if k.is_long_down() || disk.as_ref().is_some_and(|d| d.is_doubtful()) =>
                {
                    // It may be what it was long ago when it is back: the pool looks then.
                    pool.give_up(name);
                }
                Standing::Well => (k.why, k.next) = (None, None),
                Standing::Here => k.why = None,
                // Each would end the other's sessions in turn.
                Standing::Lost if disk.is_some_and(|d| d.is_replaced()) => {
                    k.why = Some(REPLACED.into());
                }
                Standing::Lost => {
                    if !k.busy && k.next.is_none_or(|(at, _)| now() >= at) {
                        k.busy = true;
                        lost.push(name.clone());
                    }
                }
            }
            true
        });
        if has(Bug::NothingReturns) {
            return;
        }
        for name in lost {
            let me = self.clone();
            spawn_task(async move {
                let done = me.bring_back(&name).await;
                if let Some(k) = me.known.borrow_mut().get_mut(&name) {
                    k.tried(done);
                }
            });
        }
    }

    async fn bring_back(&self, name: &str) -> Result<(), String> {
        self.tries.set(self.tries.get() + 1);
        let disk = self.reach.reach(name).await?;
        let closed = || "the pool is closed".to_owned();
        let pool = self.pool().ok_or_else(closed)?;
        let (old, uid) = {
            let known = self.known.borrow();
            let k = known.get(name).ok_or("it has left the pool")?;
            (k.disk.upgrade(), k.uid)
        };
        if uid.is_some_and(|uid| uid != disk.uid()) {
            return Err(ANOTHER.into());
        }
        if waits(&pool) {
            // The pool goes on with the disk that it has, by the new connection: the other node may be elsewhere.
            if let Some(old) = &old {
                old.renew(&disk);
            }
            return pool.resume().await.map_err(|e| e.to_string());
        }
        let (weak, uid) = (Rc::downgrade(&disk), disk.uid());
        disk.set_strict(self.is_strict(&pool));
        let done = pool.attach_again(disk as Rc<dyn Disk>).await;
        // It may have got it, and failed late.
        if weak.strong_count() > 0
            && let Some(k) = self.known.borrow_mut().get_mut(name)
        {
            (k.disk, k.uid) = (weak, Some(uid));
        }
        done.map_err(|e| e.to_string())?;
        tracing::info!("{name} is back");
        Ok(())
    }
}

impl Known {
    fn standing(&mut self, name: &str, devices: &[DeviceInfo], waits: bool) -> Standing {
        let here = devices.iter().find(|d| d.name.as_deref() == Some(name));
        self.device = here.map(|d| d.id).or(self.device);
        let by_number = devices.iter().find(|d| Some(d.id) == self.device);
        match (here, self.device, by_number) {
            (Some(d), ..) if d.failed || waits => Standing::Lost,
            (Some(d), ..) if matches!(d.state, MemberState::InSync | MemberState::Spare) => {
                Standing::Well
            }
            (Some(_), ..) => Standing::Here,
            (None, Some(_), None) => Standing::Left,
            (None, _, Some(d)) if d.name.is_some() => Standing::Left,
            _ => Standing::Lost,
        }
    }

    fn is_long_down(&self) -> bool {
        self.down.is_some_and(|since| now() >= since + PATIENCE) && !has(Bug::HealedUnlooked)
    }

    /// What came of it. One that fails again at once is brought back ever later, until it has everything.
    fn tried(&mut self, done: Result<(), String>) {
        let pause = self.next.map_or(LOOK, |(_, pause)| (pause * 2).min(LONGEST));
        (self.busy, self.next) = (false, Some((now() + pause, pause)));
        self.why = done.err();
    }
}

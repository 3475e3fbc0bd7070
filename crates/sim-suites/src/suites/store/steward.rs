//! Who changes a pool's devices: they go and come back, are added, replaced, drained and removed.

use super::verdict::Verdict;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{MICROS, MILLIS, Prng};
use weir_disk::Disk;
use weir_reactor::sleep;
use weir_sim::{Next, SimMedium};
use weir_store::format::superblock::MemberState;
use weir_store::{Pool, Status, StoreError, Work};

/// A place for a disk.
pub(crate) struct Bay {
    pub(crate) name: String,
    pub(crate) disk: Rc<dyn Disk>,
    pub(crate) medium: SimMedium,
}

/// One per story; it outlives the pool's lives.
pub(crate) struct Steward {
    rng: RefCell<Prng>,
    pub(crate) verdict: Verdict,
    /// Blocks have two copies: one device may fail.
    mirrored: bool,
    /// Somebody made a device fail that has not come back.
    off: Cell<bool>,
    changes: Cell<u64>,
    filled: Cell<u64>,
    stalls: Cell<u64>,
}

impl Steward {
    pub(crate) fn new(rng: Prng, mirrored: bool) -> Rc<Steward> {
        Rc::new(Steward {
            rng: RefCell::new(rng),
            verdict: Verdict::default(),
            mirrored,
            off: Cell::new(false),
            changes: Cell::new(0),
            filled: Cell::new(0),
            stalls: Cell::new(0),
        })
    }

    /// Changes of the set of devices, with failures.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.get()
    }

    /// Blocks that were brought to devices by filling, as far as the steward looked.
    pub(crate) fn filled(&self) -> u64 {
        self.filled.get()
    }

    /// Times that a device hung.
    pub(crate) fn stalls(&self) -> u64 {
        self.stalls.get()
    }

    /// After a crash all disks answer.
    pub(crate) fn all_back(&self) {
        self.off.set(false);
    }

    fn below(&self, n: u64) -> u64 {
        self.rng.borrow_mut().below(n)
    }

    fn look(&self, s: &Status) {
        if let Some(w) = s.work {
            self.filled.set(self.filled.get().max(w.done / 4096));
        }
    }

    /// A request may be refused with a reason; it must not fail.
    fn judge<T>(&self, what: &str, r: Result<T, StoreError>) -> Option<T> {
        match r {
            Ok(t) => {
                self.changes.set(self.changes.get() + 1);
                Some(t)
            }
            Err(StoreError::Request(_) | StoreError::State(_)) => None,
            // The one that failed is what it was about.
            Err(_) if self.off.get() => None,
            Err(e) => {
                self.verdict.is_wrong(format!("{what}: {e}"));
                None
            }
        }
    }

    /// One device fails in all ways, and comes back in all ways.
    pub(crate) async fn comes_and_goes(self: Rc<Self>, pool: Pool, bay: Bay) {
        let m = &bay.medium;
        loop {
            sleep(self.below(12 * MILLIS)).await;
            let s = pool.status();
            self.look(&s);
            let me = s.devices.iter().find(|d| d.name.as_deref() == Some(bay.name.as_str()));
            let Some(me) = me else { continue };
            match self.below(8) {
                _ if !self.off.get() && self.below(3) == 0 => {
                    self.off.set(true);
                    self.changes.set(self.changes.get() + 1);
                    match self.below(4) {
                        0 => m.next_is(Next::WriteError),
                        1 => m.next_is(Next::FlushError),
                        2 => {
                            self.stalls.set(self.stalls.get() + 1);
                            // It may come when the device has been back for long.
                            m.stall([30, 60, 300][self.below(3) as usize] * MILLIS);
                        }
                        _ => m.set_offline(true),
                    }
                }
                0 => drop(pool.cancel(me.number).await),
                1 => pool.set_fill_rate(self.below(20) << 20),
                2..=5 => {
                    m.set_offline(false);
                    m.stall(0);
                    m.forget_next();
                    self.off.set(false);
                    if self.below(4) == 0 && me.state == MemberState::Out {
                        let _ = pool.attach(bay.disk.clone()).await;
                    }
                    let _ = pool.resync().await;
                }
                _ => {}
            }
        }
    }

    /// Devices are changed in all ways; one fails when nothing else is wrong.
    pub(crate) async fn rebuilds(self: Rc<Self>, pool: Pool, bays: Vec<Bay>) {
        loop {
            sleep(self.below(6 * MILLIS)).await;
            let s = pool.status();
            self.look(&s);
            let member = |b: &Bay| s.devices.iter().find(|d| d.name.as_deref() == Some(&*b.name));
            let free = bays.iter().find(|b| member(b).is_none());
            let any = &s.devices[self.below(s.devices.len() as u64) as usize];
            match self.below(14) {
                0 | 1 => {
                    let Some(b) = free else { continue };
                    self.judge("adding", pool.add(b.disk.clone()).await);
                }
                2 => {
                    let Some(b) = free else { continue };
                    self.judge("a spare", pool.add_spare(b.disk.clone()).await);
                }
                3 | 4 => {
                    let Some(b) = free else { continue };
                    self.judge("replacing", pool.replace(any.number, b.disk.clone()).await);
                }
                5 | 6 => drop(self.judge("draining", pool.drain(any.number).await)),
                7 | 8 => drop(self.judge("removing", pool.remove(any.number).await)),
                9 => drop(self.judge("cancelling", pool.cancel(any.number).await)),
                10 => pool.set_fill_rate(self.below(20) << 20),
                11 if !self.off.get() && self.mirrored => {
                    // Everything that is needed is there, and a superblock says so.
                    if pool.checkpoint().await.is_err() {
                        continue;
                    }
                    let s = pool.status();
                    let busy = s.work.is_some_and(|w| w.work == Work::Resync);
                    let b = &bays[self.below(bays.len() as u64) as usize];
                    let used = s.devices.iter().any(|d| d.name.as_deref() == Some(&*b.name));
                    if s.whole && used && !busy {
                        self.off.set(true);
                        self.changes.set(self.changes.get() + 1);
                        b.medium.set_offline(true);
                    }
                }
                _ if self.off.get() => {
                    bays.iter().for_each(|b| b.medium.set_offline(false));
                    let _ = pool.resync().await;
                    let _ = pool.settled().await;
                    self.off.set(false);
                }
                _ => {}
            }
        }
    }

    /// A device is replaced by one that swallows some of the first writes. Nobody else writes.
    pub(crate) async fn liar(self: Rc<Self>, pool: Pool, number: u16, bay: Bay) {
        if self.judge("replacing", pool.replace(number, bay.disk.clone()).await).is_none() {
            return;
        }
        // Some of them are those of the checkpoint that begins the move, and are made good by it.
        for _ in 0..6 + self.below(8) {
            bay.medium.next_is(Next::LostWrite);
        }
        loop {
            sleep(20 * MICROS).await;
            let s = pool.status();
            self.look(&s);
            // When it is proved, it does as it is told.
            let copied = s.work.is_none_or(|w| w.total > 0 && w.done * 2 >= w.total);
            if copied && (s.work.is_some() || s.devices.iter().all(|d| !d.draining)) {
                return bay.medium.forget_next();
            }
        }
    }

    /// Everything that was begun is brought to its end.
    pub(crate) async fn settle(self: Rc<Self>, pool: Pool, whole: bool) {
        pool.set_fill_rate(0);
        for _ in 0..3 {
            let _ = pool.settled().await;
            let s = pool.status();
            self.look(&s);
            if s.whole && s.trouble.is_none() {
                break;
            }
            if s.trouble.is_some() {
                // There may be no room for what was begun.
                for d in s.devices.iter().filter(|d| d.draining) {
                    let _ = pool.cancel(d.number).await;
                }
            }
            let _ = pool.resync().await;
        }
        let s = pool.status();
        if s.suspended.is_none() && s.whole != whole && whole {
            self.verdict.is_wrong(format!("the pool does not get whole again: {s:?}"));
        }
    }
}

//! What looks after an open pool: devices come back, and it goes on when it was suspended.

use super::shelf::{Link, Shelf, Way};
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{MILLIS, Prng};
use weir_reactor::{cancel, sleep, spawn_task};
use weir_sim::SimDisk;
use weir_store::format::superblock::MemberState;
use weir_store::{DeviceInfo, Pool};

/// A device, as its owner reaches it: the node's own, or the other one's by a link.
pub(super) struct Place {
    /// Its number in the pool.
    pub(super) number: u16,
    pub(super) disk: Rc<SimDisk>,
    pub(super) shelf: Rc<Shelf>,
    pub(super) link: Option<Rc<Link>>,
    pub(super) session: Option<Rc<Way>>,
}

impl Place {
    fn way(&self, epoch: u32) -> Rc<Way> {
        Way::new(self.disk.clone(), self.shelf.clone(), epoch, self.link.clone())
    }

    /// Brings it back, if it is out and can be reached. False: this owner is let in nowhere any more.
    async fn come_back(&mut self, pool: &Pool, epoch: u32) -> bool {
        let is_off = self.session.as_ref().is_none_or(|w| !w.is_on());
        let lost = |d: &DeviceInfo| {
            d.number == self.number
                && d.state == MemberState::Out
                && (is_off || d.failed || d.name.is_none())
        };
        let is_there = self.link.as_ref().is_none_or(|l| l.is_up());
        if !is_there || !pool.status().devices.iter().any(lost) {
            return true;
        }
        // A new session, which ends what the one before has begun.
        let way = self.way(epoch);
        if !way.shelf.enter(epoch).await {
            return false;
        }
        way.disk.drained().await;
        let _ = pool.attach(way.clone()).await;
        self.session = Some(way);
        true
    }
}

/// Looks after a pool until it has another owner.
pub(super) struct Keeper {
    pub(super) pool: Pool,
    pub(super) epoch: u32,
    pub(super) places: [Place; 2],
    /// Counts owners.
    pub(super) owners: Rc<Cell<u64>>,
    pub(super) rng: Prng,
    /// How often it went on, and how often who had it go on went away.
    pub(super) resumed: Rc<Cell<u64>>,
    pub(super) given_up: Rc<Cell<u64>>,
}

impl Keeper {
    pub(super) async fn keep(mut self) {
        let me = self.owners.get();
        while self.owners.get() == me {
            sleep(50 * MILLIS).await;
            if self.pool.status().suspended.is_some() {
                self.resume().await;
                continue;
            }
            for p in &mut self.places {
                if !p.come_back(&self.pool, self.epoch).await {
                    return;
                }
            }
        }
    }

    async fn resume(&mut self) {
        if self.rng.chance(2, 3) {
            if self.pool.resume().await.is_ok() {
                self.resumed.set(self.resumed.get() + 1);
            }
            return;
        }
        let (pool, done) = (self.pool.clone(), Rc::new(Cell::new(false)));
        let ended = done.clone();
        let task = spawn_task(async move {
            let _ = pool.resume().await;
            ended.set(true);
        });
        let longest = [2, 20, 500][self.rng.below(3) as usize] * MILLIS;
        sleep(self.rng.below(longest)).await;
        if !done.get() {
            cancel(task);
            self.given_up.set(self.given_up.get() + 1);
        }
    }
}

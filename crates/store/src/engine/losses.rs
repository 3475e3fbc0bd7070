//! Blocks of volumes and snapshots that no copy can give, as far as that was found in this life of the pool: so that somebody can be
//! told, until they are written, or can be read after all.

use super::damage::name_of;
use super::dataset::Dataset;
use super::locks::Pin;
use super::{Inner, Pool};
use crate::format::BLOCK;
use crate::format::dataset::Kind;
use crate::format::tree::MapEntry;
use crate::planted::{Bug, has};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use weir_base::MICROS;
use weir_reactor::sleep;

/// Losses that are remembered.
const MOST: usize = 8192;
/// Volumes and snapshots that are asked in a row before others have their turn.
const IN_A_ROW: usize = 32;

/// What is lost. Each life of a pool has its own: what the log brings back another one had otherwise.
#[derive(Default)]
pub(crate) struct Losses {
    /// Dataset and address, with the block of the pool, or none where the map says that it is lost.
    all: RefCell<BTreeMap<(u32, u64), Option<u64>>>,
    /// The blocks of the pool among these, and some that are none any more: each read asks.
    at: RefCell<BTreeSet<u64>>,
    /// Blocks of the pool of which it is being looked for who has them, each as often.
    sought: RefCell<Vec<u64>>,
}

/// It is being looked for who has a block.
struct Sought<'a>(&'a Losses, Option<u64>);

impl Drop for Sought<'_> {
    fn drop(&mut self) {
        let mut all = self.0.sought.borrow_mut();
        if let Some(i) = all.iter().position(|v| Some(*v) == self.1) {
            all.swap_remove(i);
        }
    }
}

impl Sought<'_> {
    /// It has been read well meanwhile.
    fn is_found(&self) -> bool {
        self.1.is_some_and(|vbn| !self.0.sought.borrow().contains(&vbn))
    }
}

impl Losses {
    /// What a volume or snapshot has there is lost.
    pub(super) fn is_lost(&self, dataset: u32, lba: u64, vbn: Option<u64>) {
        let mut all = self.all.borrow_mut();
        if all.len() < MOST || all.contains_key(&(dataset, lba)) {
            all.insert((dataset, lba), vbn);
            self.at.borrow_mut().extend(vbn);
        }
    }

    /// Whether such a loss is not known, and would be remembered.
    fn is_news(&self, dataset: u32, lba: u64, vbn: Option<u64>) -> bool {
        let all = self.all.borrow();
        match all.get(&(dataset, lba)) {
            Some(known) => *known != vbn,
            None => all.len() < MOST,
        }
    }

    /// The same as another one.
    pub(super) fn like(&self, other: &Losses) {
        self.all.replace(other.all.borrow().clone());
        self.at.replace(other.at.borrow().clone());
    }

    fn seek(&self, vbn: Option<u64>) -> Sought<'_> {
        self.sought.borrow_mut().extend(vbn);
        self.at.borrow_mut().extend(vbn);
        Sought(self, vbn)
    }

    /// A volume or snapshot has become what another one is: what that one has lost is lost in both.
    pub(super) fn is_like(&self, dataset: u32, source: u32) {
        if !self.all.borrow().is_empty() && !has(Bug::LossOfOneOnly) {
            let of = (source, 0)..=(source, u64::MAX);
            let of: Vec<_> = self.all.borrow().range(of).map(|(k, v)| (k.1, *v)).collect();
            of.into_iter().for_each(|(lba, vbn)| self.is_lost(dataset, lba, vbn));
        }
    }

    /// Blocks of the pool were read well: nothing that they are is lost.
    #[inline]
    pub(super) fn is_read(&self, blocks: Range<u64>) {
        if self.at.borrow().range(blocks.clone()).next().is_some() {
            self.all.borrow_mut().retain(|_, v| !v.is_some_and(|v| blocks.contains(&v)));
            self.at.borrow_mut().retain(|v| !blocks.contains(v));
            self.sought.borrow_mut().retain(|v| !blocks.contains(v));
        }
    }

    /// A volume has got something else there.
    #[inline]
    pub(super) fn is_anew(&self, dataset: u32, lba: u64, blocks: u64) {
        let mut all = self.all.borrow_mut();
        if all.is_empty() {
            return;
        }
        let range = (dataset, lba)..(dataset, lba.saturating_add(blocks));
        let gone: Vec<_> = all.range(range).map(|(k, _)| *k).collect();
        for key in gone {
            all.remove(&key);
        }
        if all.is_empty() {
            let sought = self.sought.borrow();
            self.at.borrow_mut().retain(|v| sought.contains(v));
        }
    }
}

impl Inner {
    /// What a volume or snapshot has there is lost, if it has that still: that is known from now on, also of the others that have the
    /// same there.
    pub(super) async fn lose(&self, ds: &Dataset, lba: u64, entry: MapEntry) {
        let vbn = entry.is_data().then_some(entry.vbn);
        if !self.losses.is_news(ds.id, lba, vbn) {
            return;
        }
        let sought = self.losses.seek(vbn);
        let (mut next, mut own, mut asked) = (0, Some(ds.id), 0);
        loop {
            let is_other = |o: &&Rc<Dataset>| o.family == ds.family && o.id != ds.id;
            let other =
                self.datasets.borrow().range(next..).map(|(_, o)| o).find(is_other).cloned();
            // The one in which it was found comes last: once that is known somebody has looked at all. What is made of it later has a
            // higher number.
            let last = || own.take().and_then(|id| self.datasets.borrow().get(&id).cloned());
            let is_own = other.is_none();
            let Some(o) = other.or_else(last) else { return };
            next = if is_own { next } else { o.id + 1 };
            let pin = self.pins.pin();
            let is_asked = is_own || !has(Bug::LossOfOneOnly);
            let is_sure = is_own && has(Bug::LossOfAnotherMap);
            let has_it =
                is_sure || is_asked && !o.is_stale() && self.has_still(&pin, &o, lba, entry).await;
            if sought.is_found() {
                return;
            }
            if has_it {
                self.losses.is_lost(o.id, lba, vbn);
            }
            drop(pin);
            asked += 1;
            if asked % IN_A_ROW == 0 {
                sleep(MICROS).await;
            }
        }
    }

    /// Whether a volume or snapshot, which others may write, has this entry in the moment in which that is told.
    async fn has_still(&self, pin: &Pin, ds: &Dataset, lba: u64, entry: MapEntry) -> bool {
        loop {
            let before = ds.top.find(lba);
            let Ok(found) = self.entry(pin, ds, lba).await else { return false };
            // A checkpoint that moves it again waits for the pin.
            if ds.top.find(lba) == before {
                return found == entry;
            }
        }
    }
}

impl Pool {
    /// How many blocks of volumes and snapshots are known to be lost now, by their names: until they are written or wiped, or can
    /// be read after all. After an opening that is found again, by reads and by a scrub.
    pub fn losses(&self) -> Vec<(String, u64)> {
        let mut all = BTreeMap::<String, u64>::new();
        let datasets = self.0.datasets.borrow();
        let is_there = |id: u32, lba: u64| {
            let ds = datasets.get(&id).filter(|ds| !ds.deleting.get() && ds.kind != Kind::Garbage);
            ds.filter(|ds| lba < ds.len.get().div_ceil(BLOCK as u64))
        };
        self.0.losses.all.borrow_mut().retain(|(id, lba), _| {
            let ds = is_there(*id, *lba);
            if let Some(ds) = ds {
                *all.entry(name_of(ds)).or_default() += 1;
            }
            ds.is_some()
        });
        all.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_well_while_it_is_looked_for_is_found() {
        let all = Losses::default();
        let (one, other, noted) = (all.seek(Some(7)), all.seek(Some(7)), all.seek(None));
        all.is_lost(1, 0, Some(7));
        all.is_anew(1, 0, 1);
        assert!(!one.is_found(), "another has it still");
        all.is_read(8..9);
        assert!(!one.is_found());
        drop(one);
        assert!(!other.is_found());
        all.is_read(0..8);
        assert!(other.is_found() && !noted.is_found());
        drop(other);
        assert!(!all.seek(Some(7)).is_found(), "it is lost once more");
    }
}

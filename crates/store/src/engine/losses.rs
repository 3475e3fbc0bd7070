//! Blocks of volumes and snapshots that no copy can give, as far as that was found in this life of the pool: so that somebody can be
//! told, until they are written, or can be read after all.

use super::damage::name_of;
use super::dataset::Dataset;
use super::locks::Pin;
use super::{Inner, Pool, stage};
use crate::format::BLOCK;
use crate::format::dataset::Kind;
use crate::format::tree::{self, LEAF, MapEntry};
use crate::planted::{Bug, has};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Weak;
use weir_base::MICROS;
use weir_reactor::{sleep, spawn_task};

/// Losses that are remembered.
const MOST: usize = 8192;
/// Volumes and snapshots that are asked in a row before others have their turn.
const IN_A_ROW: usize = 32;
/// How often all are asked, as some became what others are.
const ROUNDS: usize = 4;

/// A block that a volume or snapshot has lost: of others of its line it is not known yet whether they have it.
struct Found {
    family: u32,
    /// Of which it is known.
    of: u32,
    lba: u64,
    entry: MapEntry,
}

/// What is known of the others of a line that may have what one has lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Others {
    Unasked,
    /// Somebody is about to ask them.
    Asking,
    /// All of them could be asked.
    Asked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Loss {
    /// The block of the pool; none: the map says that it is lost.
    vbn: Option<u64>,
    others: Others,
}

/// What is lost. Each life of a pool has its own: what the log brings back another one had otherwise.
#[derive(Default)]
pub(crate) struct Losses {
    /// By dataset and address.
    all: RefCell<BTreeMap<(u32, u64), Loss>>,
    /// The blocks of the pool among these, and some that are none any more: each read asks.
    at: RefCell<BTreeSet<u64>>,
    /// Those that others may have too.
    asked: RefCell<VecDeque<Found>>,
    /// Somebody looks who has them.
    walks: Cell<bool>,
    /// How often a volume or snapshot became what another one is.
    copies: Cell<u64>,
}

impl Losses {
    /// What a volume or snapshot has there is lost. False: there is no room to remember that.
    pub(super) fn is_lost(&self, dataset: u32, lba: u64, vbn: Option<u64>) -> bool {
        let mut all = self.all.borrow_mut();
        let known = all.get(&(dataset, lba)).filter(|k| k.vbn == vbn).copied();
        let has_room = all.len() < MOST || all.contains_key(&(dataset, lba));
        if has_room {
            let others = known.map_or(Others::Unasked, |k| k.others);
            all.insert((dataset, lba), Loss { vbn, others });
            self.at.borrow_mut().extend(vbn);
        }
        has_room
    }

    /// From now on this is known of the others.
    fn are(&self, dataset: u32, lba: u64, vbn: Option<u64>, others: Others) {
        let mut all = self.all.borrow_mut();
        if let Some(loss) = all.get_mut(&(dataset, lba)).filter(|l| l.vbn == vbn) {
            loss.others = others;
        }
    }

    /// Whether the others are to be asked.
    fn is_news(&self, dataset: u32, lba: u64, vbn: Option<u64>) -> bool {
        let all = self.all.borrow();
        let known = all.get(&(dataset, lba)).filter(|k| k.vbn == vbn);
        all.len() < MOST && known.is_none_or(|k| k.others == Others::Unasked)
    }

    /// A block of the pool has been read well since it was found lost.
    fn is_over(&self, vbn: Option<u64>) -> bool {
        vbn.is_some_and(|vbn| !self.at.borrow().contains(&vbn))
    }

    /// A volume or snapshot has become what another one is: what that one has lost is lost in both.
    pub(super) fn is_like(&self, dataset: u32, source: u32) {
        self.copies.set(self.copies.get() + 1);
        if !self.all.borrow().is_empty() && !has(Bug::LossOfOneOnly) {
            let of = (source, 0)..=(source, u64::MAX);
            let of: Vec<_> = self.all.borrow().range(of).map(|(k, v)| (k.1, v.vbn)).collect();
            for (lba, vbn) in of {
                self.is_lost(dataset, lba, vbn);
            }
        }
    }

    /// The same as another one.
    pub(super) fn like(&self, other: &Losses) {
        self.all.replace(other.all.borrow().clone());
        self.at.replace(other.at.borrow().clone());
    }

    /// Blocks of the pool were read well: nothing that they are is lost.
    #[inline]
    pub(super) fn is_read(&self, blocks: Range<u64>) {
        if self.at.borrow().range(blocks.clone()).next().is_some() {
            self.all.borrow_mut().retain(|_, l| !l.vbn.is_some_and(|v| blocks.contains(&v)));
            self.at.borrow_mut().retain(|v| !blocks.contains(v));
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
        drop(all);
        self.forget_places();
    }

    fn forget_places(&self) {
        // Who looks for others that have one asks whether it is still among these.
        if self.all.borrow().is_empty() && !self.walks.get() {
            self.at.borrow_mut().clear();
        }
    }
}

impl Inner {
    /// What a volume or snapshot has there is lost. That others of its line have it too is found out in the background. `maps`: how
    /// often it had got another map when its entry was looked up; the caller has had the block locked since.
    pub(super) fn lose(&self, ds: &Dataset, lba: u64, entry: MapEntry, maps: u64) {
        let (losses, vbn) = (&self.losses, entry.is_data().then_some(entry.vbn));
        if !losses.is_news(ds.id, lba, vbn) {
            return;
        }
        let is_its = ds.maps.get() == maps || has(Bug::LossOfAnotherMap);
        if is_its && !ds.is_stale() {
            losses.is_lost(ds.id, lba, vbn);
            losses.are(ds.id, lba, vbn, Others::Asking);
        }
        // Also if it is not its own any more. Whoever asks them goes on while it is among these.
        losses.at.borrow_mut().extend(vbn);
        losses.asked.borrow_mut().push_back(Found { family: ds.family, of: ds.id, lba, entry });
        if !has(Bug::LossOfOneOnly) && !losses.walks.replace(true) {
            let me = self.me.clone();
            spawn_task(async move {
                let mut asked = 0;
                while let Some(i) = me.upgrade() {
                    // Where it is suspended, or ends, nothing that is found counts.
                    let next = i.losses.asked.borrow_mut().pop_front();
                    let Some(next) = next.filter(|_| i.check_running().is_ok()) else {
                        i.losses.walks.set(false);
                        i.losses.forget_places();
                        return;
                    };
                    drop(i);
                    look_for_others(&me, next, &mut asked).await;
                }
            });
        }
    }

    /// Whether a volume or snapshot, which others may write, has this entry in the moment in which that is told. None: that cannot be
    /// read, as are the pages that have `failed`.
    async fn has_still(
        &self,
        _pin: &Pin,
        ds: &Dataset,
        (lba, entry): (u64, MapEntry),
        failed: &mut BTreeSet<u64>,
    ) -> Option<bool> {
        loop {
            let before = ds.top.find(lba);
            let found = match before {
                stage::Found::Entry(e) => e,
                stage::Found::Tree(root) => {
                    let leaf = self.leaf_but(root, ds.family, lba, failed).await.ok()?;
                    leaf.map_or(MapEntry::HOLE, |l| tree::entry(&l, (lba % LEAF as u64) as usize))
                }
            };
            // A checkpoint that moves it again waits for the pin.
            if ds.top.find(lba) == before {
                return Some(found == entry);
            }
        }
    }
}

/// Has all be told of a block that have it.
async fn look_for_others(me: &Weak<Inner>, found: Found, asked: &mut usize) {
    let Found { family, of, lba, entry } = found;
    let vbn = entry.is_data().then_some(entry.vbn);
    let (mut told, mut failed) = (BTreeSet::from([of]), BTreeSet::new());
    let mut others = Others::Unasked;
    // One that becomes what another one is meanwhile has passed by. Where that goes on and on, whoever finds it next asks again.
    for _ in 0..ROUNDS {
        let (all, copies) = {
            let Some(i) = me.upgrade() else { return };
            let all = i.datasets.borrow();
            let line = all.values().filter(|o| o.family == family);
            (line.map(|o| o.id).collect::<Vec<_>>(), i.losses.copies.get())
        };
        let mut are_all = true;
        for id in all {
            let Some(i) = me.upgrade().filter(|i| i.check_running().is_ok()) else { return };
            let Some(o) = i.datasets.borrow().get(&id).cloned() else { continue };
            let pin = i.pins.pin();
            // Nobody is told of what is deleted, and what is left of it may lead to what is somebody else's.
            let has_it = match o.is_stale() || o.kind == Kind::Garbage {
                true => Some(false),
                false => i.has_still(&pin, &o, (lba, entry), &mut failed).await,
            };
            if i.losses.is_over(vbn) {
                return;
            }
            match has_it {
                Some(true) => {
                    are_all &= i.losses.is_lost(id, lba, vbn);
                    i.losses.are(id, lba, vbn, Others::Asking);
                    told.insert(id);
                }
                Some(false) => {}
                None => are_all = false,
            }
            drop((pin, i));
            *asked += 1;
            if asked.is_multiple_of(IN_A_ROW) {
                sleep(MICROS).await;
            }
        }
        let Some(i) = me.upgrade() else { return };
        if i.losses.copies.get() == copies {
            others = if are_all { Others::Asked } else { Others::Unasked };
            break;
        }
    }
    if let Some(i) = me.upgrade() {
        told.into_iter().for_each(|id| i.losses.are(id, lba, vbn, others));
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
    fn what_is_read_well_while_others_are_asked_is_over() {
        let all = Losses::default();
        all.is_lost(1, 0, Some(7));
        all.walks.set(true);
        all.is_anew(1, 0, 1);
        assert!(!all.is_over(Some(7)), "another has it still");
        all.is_read(8..9);
        assert!(!all.is_over(Some(7)) && !all.is_over(None));
        all.is_read(0..8);
        assert!(all.is_over(Some(7)));
    }
}

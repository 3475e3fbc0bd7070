//! What was found wrong on each device, and whose data it was: so that somebody can be told.

use super::copies::{Copies, Look, Seen};
use super::dataset::Dataset;
use super::device::Device;
use super::{Inner, Pool};
use crate::format::dataset::Kind;
use crate::planted::{Bug, has};
use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use weir_base::IoError;

/// Pairs of device and owner that are told apart; what comes after them is told of the device only.
const PAIRS: usize = 256;
/// Copies with which something is wrong still that are remembered, so that each is counted once.
const COPIES: usize = 8192;

/// Whose data a damaged copy is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// The pool's own, or it is not known whose.
    Pool,
    /// A volume's or snapshot's, as it is called on the devices.
    Dataset(String),
    /// Of volumes and snapshots that are not told apart, since too many others have damage.
    Others,
}

/// Copies that were found damaged on a device, of one volume or snapshot, since the pool was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The device's identity.
    pub device: u64,
    /// Whose they are.
    pub whose: Whose,
    /// Copies of blocks that were read and are wrong, or of which the device says that it cannot read them.
    pub copies: u64,
    /// Of these, copies of blocks without a good copy anywhere.
    pub lost: u64,
}

/// What was found wrong on one device since the pool was opened.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wrong {
    /// Copies of blocks that are damaged.
    pub(super) damaged: u64,
    /// Copies of blocks of which a read ended with an error that says nothing of the medium.
    pub(super) unread: u64,
}

/// What is wrong with a copy, as far as that was counted, until it is mended or read well.
#[derive(Default)]
struct Trouble {
    /// It is damaged, and whose it is.
    damaged: Option<Whose>,
    /// No other copy was good.
    lost: bool,
    /// The block is counted as one without a good copy.
    counted: bool,
    /// It could not be read.
    unread: bool,
}

/// A copy of a block: the device's identity, the block there, and the checksum that it should have. What is put there later is
/// another one.
type CopyId = (u64, u64, u64);

/// Copies, and those of lost blocks, by device and owner.
type Pairs = BTreeMap<(u64, Whose), (u64, u64)>;

/// What was found wrong, over all lives of an open pool.
#[derive(Default)]
pub(crate) struct Book {
    devices: RefCell<BTreeMap<u64, Wrong>>,
    pairs: RefCell<Pairs>,
    copies: RefCell<BTreeMap<CopyId, Trouble>>,
    /// Blocks without a good copy, each once.
    lost: Cell<u64>,
}

fn range(d: &Device, at: u64, blocks: u64) -> RangeInclusive<CopyId> {
    (d.id, at, 0)..=(d.id, at + blocks - 1, u64::MAX)
}

impl Book {
    pub(super) fn of(&self, device: u64) -> Wrong {
        self.devices.borrow().get(&device).copied().unwrap_or_default()
    }

    /// What was counted of a copy.
    fn known(&self, d: &Device, at: u64, sum: u64) -> RefMut<'_, Trouble> {
        let key = (d.id, at, if has(Bug::LossByPlace) { 0 } else { sum });
        let mut all = self.copies.borrow_mut();
        if all.len() >= COPIES && !all.contains_key(&key) {
            // Not the first: who goes through all of them from the first on would find none that is known.
            all.pop_last();
        }
        RefMut::map(all, |all| all.entry(key).or_default())
    }

    /// A copy is damaged. True: that was not known.
    fn damaged(&self, d: &Device, at: u64, sum: u64, whose: Option<&Dataset>, lost: bool) -> bool {
        let mut pairs = self.pairs.borrow_mut();
        let mut known = self.known(d, at, sum);
        let is_new = known.damaged.is_none();
        let named = || {
            let whose = whose.and_then(told_of);
            let whose = whose.map_or(Whose::Pool, |ds| Whose::Dataset(name_of(ds)));
            let key = (d.id, whose);
            let has_room = pairs.len() < PAIRS || pairs.contains_key(&key);
            if has_room || key.1 == Whose::Pool { key.1 } else { Whose::Others }
        };
        let whose = known.damaged.get_or_insert_with(named).clone();
        let newly_lost = lost && !known.lost;
        known.lost |= lost;
        let pair = pairs.entry((d.id, whose)).or_default();
        pair.0 += u64::from(is_new);
        pair.1 += u64::from(newly_lost);
        self.devices.borrow_mut().entry(d.id).or_default().damaged += u64::from(is_new);
        is_new
    }

    fn unread(&self, d: &Device, at: u64, sum: u64) {
        let mut known = self.known(d, at, sum);
        let is_new = !std::mem::replace(&mut known.unread, true);
        self.devices.borrow_mut().entry(d.id).or_default().unread += u64::from(is_new);
    }

    fn forget(&self, d: &Device, at: u64, blocks: u64, which: impl Fn(&Trouble) -> bool) {
        let mut all = self.copies.borrow_mut();
        let some = all.range(range(d, at, blocks)).filter(|(_, t)| which(t));
        let some: Vec<CopyId> = some.map(|(key, _)| *key).collect();
        some.iter().for_each(|key| drop(all.remove(key)));
    }

    /// A block was found without a good copy, of which these are: it is counted unless it is already.
    fn without_good(&self, copies: &Copies, sum: u64) {
        let mut is_new = !copies.is_empty();
        for (d, at) in copies {
            is_new &= !std::mem::replace(&mut self.known(d, *at, sum).counted, true);
        }
        self.lost.set(self.lost.get() + u64::from(is_new));
    }

    /// Copies were read well, or mended: if something is wrong with them again, that is something else.
    #[inline]
    pub(super) fn good(&self, d: &Device, at: u64, blocks: u64) {
        if blocks > 0 && !self.is_empty() && !has(Bug::LossByPlace) {
            self.forget(d, at, blocks, |_| true);
        }
    }

    /// Another copy was read well: if all are wrong once more, that is another loss.
    fn not_lost(&self, d: &Device, at: u64, blocks: u64) {
        if !has(Bug::LossByPlace) {
            self.forget(d, at, blocks, |t| t.lost);
        }
    }

    /// Nothing is known to be wrong.
    #[inline]
    fn is_empty(&self) -> bool {
        self.copies.borrow().is_empty()
    }
}

/// A volume or snapshot as it is called on the devices.
pub(super) fn name_of(ds: &Dataset) -> String {
    String::from_utf8_lossy(&ds.name.borrow()).into_owned()
}

/// Who is told of damage. What is left of a deleted volume, or of a revert, has the name of one that has lost nothing by that.
pub(super) fn told_of(ds: &Dataset) -> Option<&Dataset> {
    (ds.kind != Kind::Garbage || has(Bug::GarbageIsTold)).then_some(ds)
}

impl Inner {
    /// A copy of a block was found damaged, which should have this checksum. Whether another is good is told by itself.
    pub(super) fn found_damaged(&self, d: &Device, at: u64, sum: u64, whose: Option<&Dataset>) {
        self.count(|c| c.damaged += 1);
        if !has(Bug::DamageUntold) {
            self.works.damage.damaged(d, at, sum, whose, false);
        }
    }

    /// Copies of a block were found damaged of which none is good; `lost`: nor is any other. Each was read and is wrong then, or
    /// the device says that it cannot read it.
    pub(super) fn found_bad(&self, copies: &Copies, sum: u64, whose: Option<&Dataset>, lost: bool) {
        for (d, at) in copies {
            if self.works.damage.damaged(d, *at, sum, whose, lost) {
                self.count(|c| c.damaged += 1);
            }
        }
    }

    /// Tells what a look at a block has come to, when it is not repeated any more.
    pub(super) fn conclude(&self, seen: Seen, whose: Option<&Dataset>) -> Look {
        let Seen { look, bad, sum, .. } = seen;
        // Copies of what was deleted may be damaged: nobody has lost anything.
        let is_lost = whose.is_none_or(|ds| told_of(ds).is_some());
        match &look {
            Look::Good(_, bad) => {
                bad.iter().for_each(|(d, at)| self.found_damaged(d, *at, sum, whose));
            }
            Look::Unread(_) if has(Bug::LastCopyUntold) => {}
            Look::Wrong | Look::Unread(IoError::Medium) if !is_lost => {
                self.found_bad(&bad, sum, whose, false);
            }
            Look::Wrong => {
                self.count(|c| c.lost += 1);
                self.works.damage.without_good(&bad, sum);
                self.found_bad(&bad, sum, whose, true);
            }
            // Nothing else keeps a copy from being read. It is told like that, and is no loss yet: it may pass.
            Look::Unread(IoError::Medium) => {
                self.works.damage.without_good(&bad, sum);
                self.found_bad(&bad, sum, whose, true);
            }
            // A copy that cannot be read now may be good.
            Look::Unread(_) => self.found_bad(&bad, sum, whose, false),
        }
        look
    }

    /// A read of a copy ended with an error. That the device does not answer, or that the medium is bad, is told otherwise;
    /// want of memory is nothing of the device's.
    pub(super) fn found_unread(&self, d: &Device, at: u64, sum: u64, e: IoError) {
        if !matches!(e, IoError::Medium | IoError::Offline | IoError::Busy) {
            self.works.damage.unread(d, at, sum);
        }
    }

    /// A copy of each of some blocks was read well.
    #[inline]
    pub(super) fn found_well(&self, vbn: u64, blocks: u64) {
        self.losses.is_read(vbn..vbn + blocks);
        if !self.works.damage.is_empty() {
            for (d, at) in self.copies_of(vbn).into_iter().flatten() {
                self.works.damage.not_lost(&d, at, blocks);
            }
        }
    }
}

impl Pool {
    /// Copies found damaged and blocks found without a good copy since it was opened: each once, until it is mended or read well.
    pub fn found_wrong(&self) -> (u64, u64) {
        let book = &self.0.works.damage;
        (book.devices.borrow().values().map(|w| w.damaged).sum(), book.lost.get())
    }

    /// What was found damaged since it was opened, by device and volume or snapshot.
    pub fn damage(&self) -> Vec<Damage> {
        let pairs = self.0.works.damage.pairs.borrow();
        let damage = |((device, whose), (copies, lost)): (&(u64, Whose), &(u64, u64))| Damage {
            device: *device,
            whose: whose.clone(),
            copies: *copies,
            lost: *lost,
        };
        pairs.iter().map(damage).collect()
    }
}

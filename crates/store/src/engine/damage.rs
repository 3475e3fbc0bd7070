//! What was found wrong on each device, and whose data it was: so that somebody can be told.

use super::dataset::Dataset;
use super::device::Device;
use super::{Inner, Pool};
use crate::planted::{Bug, has};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use weir_base::IoError;

/// Pairs of device and owner that are told apart; what comes after them is told of the device only.
const PAIRS: usize = 256;
/// Blocks without a good copy that are remembered, so that each is counted once.
const LOST: usize = 4096;

/// Copies that were found damaged on a device, of one volume or snapshot, since the pool was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The device's identity.
    pub device: u64,
    /// The volume or snapshot, as it is called on the devices. `None`: what is the pool's own, or whose is not known.
    pub whose: Option<String>,
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
    /// Reads that ended with an error which says nothing of the medium.
    pub(super) unread: u64,
}

/// What was found wrong, over all lives of an open pool.
#[derive(Default)]
pub(crate) struct Book {
    devices: RefCell<BTreeMap<u64, Wrong>>,
    /// Copies, and those of lost blocks.
    pairs: RefCell<BTreeMap<(u64, Option<String>), (u64, u64)>>,
    lost: RefCell<BTreeSet<u64>>,
}

impl Book {
    pub(super) fn of(&self, device: u64) -> Wrong {
        self.devices.borrow().get(&device).copied().unwrap_or_default()
    }

    fn damaged(&self, device: u64, whose: Option<String>, lost: bool) {
        self.devices.borrow_mut().entry(device).or_default().damaged += 1;
        let mut pairs = self.pairs.borrow_mut();
        let key = (device, whose);
        let has_room = pairs.len() < PAIRS || pairs.contains_key(&key);
        let key = if has_room { key } else { (device, None) };
        let pair = pairs.entry(key).or_default();
        pair.0 += 1;
        pair.1 += u64::from(lost);
    }

    /// Whether that a block is lost was not known.
    fn is_new_loss(&self, vbn: u64) -> bool {
        let mut lost = self.lost.borrow_mut();
        if lost.len() >= LOST {
            lost.clear();
        }
        lost.insert(vbn)
    }
}

/// A volume or snapshot as it is called on the devices.
pub(super) fn name_of(ds: &Dataset) -> String {
    String::from_utf8_lossy(&ds.name.borrow()).into_owned()
}

impl Inner {
    /// Copies of a block were found damaged of which another is good.
    pub(super) fn found_damaged<'a>(
        &self,
        devices: impl Iterator<Item = &'a Device>,
        whose: Option<&Dataset>,
    ) {
        for d in devices {
            self.count(|c| c.damaged += 1);
            if !has(Bug::DamageUntold) {
                self.works.damage.damaged(d.id, whose.map(name_of), false);
            }
        }
    }

    /// Every copy of a block was read and is wrong.
    pub(super) fn found_lost<'a>(
        &self,
        vbn: u64,
        devices: impl Iterator<Item = &'a Device>,
        whose: Option<&Dataset>,
    ) {
        if self.works.damage.is_new_loss(vbn) {
            devices.for_each(|d| self.works.damage.damaged(d.id, whose.map(name_of), true));
        }
    }

    /// A read of a device ended with an error. That it does not answer, or that the medium is bad, is told otherwise; want of
    /// memory is nothing of the device's.
    pub(super) fn found_unread(&self, d: &Device, e: IoError) {
        if !matches!(e, IoError::Medium | IoError::Offline | IoError::Busy) {
            self.works.damage.devices.borrow_mut().entry(d.id).or_default().unread += 1;
        }
    }
}

impl Pool {
    /// What was found damaged since it was opened, by device and volume or snapshot.
    pub fn damage(&self) -> Vec<Damage> {
        let pairs = self.0.works.damage.pairs.borrow();
        let damage = |((device, whose), (copies, lost)): (&(u64, Option<String>), &(u64, u64))| {
            Damage { device: *device, whose: whose.clone(), copies: *copies, lost: *lost }
        };
        pairs.iter().map(damage).collect()
    }
}

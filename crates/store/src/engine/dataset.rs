//! Datasets in memory.

use super::locks::RangeLocks;
use super::ranges::Ranges;
use super::stage::{Below, Top};
use crate::format::dataset::{DatasetRecord, Kind, MapRoot};
use crate::format::page::NodePtr;
use crate::format::tree::height_for;
use crate::format::{BLOCK, MAX_LBA};
use crate::planted::{Bug, has};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_reactor::WaitChannel;

/// A volume, a snapshot, or what is left of one.
pub(crate) struct Dataset {
    pub(crate) id: u32,
    pub(crate) kind: Kind,
    pub(crate) family: u32,
    pub(crate) parent: Cell<u32>,
    pub(crate) epoch: u32,
    pub(crate) floor: Cell<u32>,
    pub(crate) deleting: Cell<bool>,
    /// Of a snapshot being deleted: it has taken over the next one's dead list.
    pub(crate) swapped: Cell<bool>,
    /// The last walk that took in all of its map.
    pub(crate) walked: Cell<u64>,
    /// A snapshot that no checkpoint has yet.
    pub(crate) fresh: Cell<bool>,
    pub(crate) len: Cell<u64>,
    pub(crate) block_size: u32,
    pub(crate) created: u64,
    pub(crate) name: RefCell<Vec<u8>>,
    pub(crate) top: Top,
    pub(crate) locks: Rc<RangeLocks>,
    /// Only one at a time gives it another size or map.
    pub(crate) shape: WaitChannel,
    /// How often it got another map.
    pub(crate) maps: Cell<u64>,
    /// The last read met a hole: the next one is likely to.
    pub(crate) met_hole: Cell<bool>,
    /// Blocks of writes that failed with the whole pool: whether they happened is decided when it is opened again.
    pub(crate) undecided: RefCell<Ranges>,
    /// Newest page of the dead list, and blocks on the list.
    pub(crate) dead: Cell<(NodePtr, u64)>,
    /// Blocks for the dead list that are not on a page yet.
    pub(crate) newly_dead: RefCell<Vec<(u64, u32)>>,
}

impl Dataset {
    pub(crate) fn new(r: &DatasetRecord) -> Rc<Dataset> {
        Rc::new(Dataset {
            id: r.id,
            kind: r.kind,
            family: r.family,
            parent: Cell::new(r.parent),
            epoch: r.epoch,
            floor: Cell::new(r.floor),
            deleting: Cell::new(r.deleting),
            swapped: Cell::new(r.deleting),
            walked: Cell::new(0),
            fresh: Cell::new(false),
            len: Cell::new(r.len),
            block_size: r.block_size,
            created: r.created,
            name: RefCell::new(r.name.clone()),
            top: Top::new(Below::Root(r.root, r.mapped)),
            locks: Rc::default(),
            shape: WaitChannel::new(1),
            maps: Cell::new(0),
            met_hole: Cell::new(true),
            undecided: RefCell::default(),
            dead: Cell::new((r.dead, r.dead_count)),
            newly_dead: RefCell::default(),
        })
    }

    /// The record for a checkpoint in which its map is `root`.
    pub(crate) fn record(&self, root: MapRoot, mapped: u64) -> DatasetRecord {
        let (dead, dead_count) = self.dead.get();
        DatasetRecord {
            id: self.id,
            kind: self.kind,
            deleting: self.deleting.get() && (self.kind != Kind::Snapshot || self.swapped.get()),
            family: self.family,
            parent: self.parent.get(),
            epoch: self.epoch,
            floor: self.floor.get(),
            len: self.len.get(),
            block_size: self.block_size,
            root,
            dead,
            dead_count,
            mapped,
            created: self.created,
            name: self.name.borrow().clone(),
        }
    }

    /// Blocks of 4 KiB that it has.
    pub(crate) fn blocks(&self) -> u64 {
        self.len.get().div_ceil(BLOCK as u64).min(MAX_LBA)
    }

    /// Height that its map has at least.
    pub(crate) fn height(&self) -> u8 {
        height_for(self.blocks().max(1))
    }

    /// Where a snapshot is in its volume's line. Of several that were made at once the numbers tell: they have one epoch.
    pub(crate) fn age(&self) -> (u32, u32) {
        (self.epoch, if has(Bug::TwinsAreOne) { 0 } else { self.id })
    }

    pub(crate) fn is_volume(&self) -> bool {
        self.kind == Kind::Volume && !self.deleting.get()
    }

    /// It is being deleted, and its map stays as it was: what it leads to may have been given back, and be somebody else's.
    /// Only who looks under a pin knows it for as long as that.
    pub(crate) fn is_stale(&self) -> bool {
        self.deleting.get() && self.kind != Kind::Garbage && !has(Bug::DeletedStillRead)
    }

    /// An upper bound of the nodes that merging it writes.
    pub(crate) fn nodes(&self) -> u64 {
        let h = self.height();
        self.top.active.borrow().nodes(h) + self.top.below.borrow().nodes(h)
    }
}

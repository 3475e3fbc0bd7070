//! What was written since the last checkpoint: layers in memory over the map on disk.

use super::ranges::Ranges;
use crate::format::dataset::MapRoot;
use crate::format::tree::{ENTRY, LEAF, MapEntry, span};
use crate::planted::{Bug, has};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Changes of a dataset. An entry hides what was wiped, and that hides what is below.
#[derive(Debug, Default)]
pub(crate) struct Layer {
    pub(crate) map: BTreeMap<u64, MapEntry>,
    pub(crate) wiped: Ranges,
}

impl Layer {
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty() && self.wiped.is_empty()
    }

    fn get(&self, lba: u64) -> Option<MapEntry> {
        match self.map.get(&lba) {
            Some(e) => Some(*e),
            None if !self.wiped.is_empty() && self.wiped.contains(lba) => Some(MapEntry::HOLE),
            None => None,
        }
    }

    /// Whether a block has data as far as the layer says (`None`: what is below counts), and up to where that is so of those
    /// after it, before `end`. Takes what it looks at off `looks`.
    fn run(&self, lba: u64, end: u64, looks: &mut usize) -> (Option<bool>, u64) {
        let mut entries = self.map.range(lba..end);
        let first = match entries.next() {
            Some((l, e)) if *l == lba => e.vbn != 0,
            next => {
                let (wiped, to) = self.wiped.run(lba, next.map_or(end, |(l, _)| *l));
                return (wiped.then_some(false), to);
            }
        };
        let mut at = lba + 1;
        for (l, e) in entries {
            if *l != at || (e.vbn != 0) != first || *looks == 0 {
                break;
            }
            at += 1;
            *looks -= 1;
        }
        (Some(first), at)
    }

    /// Wipes a range; returns the entries that were in it.
    pub(crate) fn wipe(&mut self, lba: u64, blocks: u64) -> Vec<MapEntry> {
        let gone: Vec<u64> = self.map.range(lba..lba + blocks).map(|(l, _)| *l).collect();
        self.wiped.add(lba, lba + blocks);
        gone.into_iter().filter_map(|l| self.map.remove(&l)).collect()
    }

    /// An upper bound of the nodes that merging this writes.
    pub(crate) fn nodes(&self, height: u8) -> u64 {
        let changes = (self.map.len() + 2 * self.wiped.len()) as u64;
        (0..=height).map(|l| changes.min(span(height) / span(l))).sum()
    }
}

/// A layer that does not change any more and has not been merged yet.
pub(crate) struct Stage {
    /// The epoch that ended with it.
    pub(crate) epoch: u32,
    /// The dataset in whose line it was written.
    pub(crate) owner: u32,
    pub(crate) layer: Layer,
    pub(crate) below: RefCell<Below>,
    /// The map with it, once it is merged, and how many blocks hold data there.
    pub(crate) merged: Cell<Option<(MapRoot, u64)>>,
}

/// What is below a layer.
#[derive(Clone)]
pub(crate) enum Below {
    /// The map on disk, and how many blocks hold data there.
    Root(MapRoot, u64),
    Stage(Rc<Stage>),
}

impl Below {
    /// The entry of a block, or the map to look into.
    pub(crate) fn find(&self, lba: u64) -> Found {
        let mut at = self.clone();
        loop {
            at = match at {
                Below::Root(root, _) => return Found::Tree(root),
                Below::Stage(s) => match s.layer.get(lba) {
                    Some(e) => return Found::Entry(e),
                    None => s.below.borrow().clone(),
                },
            };
        }
    }

    /// Nodes that merging everything above the map writes at most.
    pub(crate) fn nodes(&self, height: u8) -> u64 {
        match self {
            Below::Root(..) => 0,
            Below::Stage(s) => s.layer.nodes(height) + s.below.borrow().nodes(height),
        }
    }
}

/// Where a block's entry is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Entry(MapEntry),
    Tree(MapRoot),
}

/// What is above a map says of blocks in a row.
pub(crate) enum Above {
    /// They have data, or none.
    Known(bool),
    /// Nothing: the map is to be looked into.
    Tree(MapRoot),
}

/// A dataset's changes and what is below.
pub(crate) struct Top {
    pub(crate) active: RefCell<Layer>,
    pub(crate) below: RefCell<Below>,
}

impl Top {
    pub(crate) fn new(below: Below) -> Top {
        Top { active: RefCell::default(), below: RefCell::new(below) }
    }

    /// The entry of a block, or the map to look into.
    #[inline]
    pub(crate) fn find(&self, lba: u64) -> Found {
        if let Some(e) = self.active.borrow().get(lba) {
            return Found::Entry(e);
        }
        self.below.borrow().find(lba)
    }

    /// As [`find`](Top::find), of the blocks from `lba` on, of which there is one before `end`: whether they have data, and up to
    /// where that is so. Takes what it looks at off `looks`.
    pub(crate) fn run(&self, lba: u64, mut end: u64, looks: &mut usize) -> (Above, u64) {
        let mut look = |layer: &Layer| match has(Bug::LoggedIsHole) {
            true => None,
            false => {
                let (known, to) = layer.run(lba, end, looks);
                end = to;
                known
            }
        };
        let mut known = look(&self.active.borrow());
        let mut at = self.below.borrow().clone();
        loop {
            if let Some(mapped) = known {
                return (Above::Known(mapped), end);
            }
            at = match at {
                Below::Root(root, _) => return (Above::Tree(root), end),
                Below::Stage(s) => {
                    known = look(&s.layer);
                    s.below.borrow().clone()
                }
            };
        }
    }

    /// Ends the active layer with an epoch.
    pub(crate) fn freeze(&self, owner: u32, epoch: u32) {
        if self.active.borrow().is_empty() {
            return;
        }
        let layer = self.active.take();
        let below = RefCell::new(self.below.borrow().clone());
        let stage = Stage { epoch, owner, layer, below, merged: Cell::new(None) };
        self.below.replace(Below::Stage(Rc::new(stage)));
    }
}

const _: () = assert!(LEAF * ENTRY == crate::format::page::PAYLOAD);

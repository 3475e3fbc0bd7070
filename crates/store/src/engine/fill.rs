//! Filling: what a device misses, or what a slab's new place needs, is copied from verified copies.
//!
//! The maps are walked, so that every block that is copied is verified by what refers to it. From before the
//! walk on everything that is written is written to the destination too; so the walk has to see what was there
//! when it began and still is. Places are not used again while a reader looks at them (`pins`): what is found
//! and copied under one pin is still what belongs there. Of what is being deleted only that is looked at that it still
//! owns: the rest may be somebody else's by now, and the cache has the old nodes for long.
//!
//! What no copy gives at once is looked for block by block, and waited for, under no pin: checkpoints wait for pins, and with them
//! everybody. What was found counts if the map says afterwards what it said before. A removed device is asked whether it answers
//! each time that it did not, until it does not answer that either.
//!
//! What no copy can give now may be good on a device that is away. A slab that may have some of it stays where it is, and all
//! others move. What is wrong on all devices may be shown so for a moment only: where nothing of it would be left, it is looked at again
//! after the pause that proves it. A device that is brought back is up to date as a whole or not at all: what the others show so twice it
//! goes without.

mod data;
mod lists;
mod nodes;

use super::Inner;
use super::dataset::Dataset;
use super::device::Device;
use super::stage::Below;
use crate::format::dataset::MapRoot;
use crate::format::page::NodePtr;
use crate::format::slab::region_blocks;
use crate::planted::{Bug, has};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use weir_base::{IoError, IoResult};

/// What is being filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Into {
    /// What a device misses since an epoch; 0 for all.
    Device(u16, u32),
    /// The new places of slabs that move.
    Moves,
}

/// What became of a fill that came to its end.
#[derive(Debug, Default)]
pub(crate) struct Filled {
    /// Slabs whose new places may lack something.
    pub(crate) stay: Vec<usize>,
    /// Those of them of which only the new place is to blame.
    pub(crate) deaf: BTreeSet<usize>,
    /// Something that no copy has was given up, or what may lead to something.
    pub(crate) is_lossy: bool,
}

/// One walk over everything that is in use.
struct Walk {
    number: u64,
    into: Into,
    /// Nothing is copied, but what is at the destination is read and must be good. To leave out what looks good there
    /// already would not do: a device that failed a flush shows what it will have lost when power goes.
    prove: bool,
    /// Nodes and pages all below which has been seen to.
    seen: BTreeSet<NodePtr>,
    /// Blocks of data, and pages that lead to them, that no copy has.
    lost: Cell<u64>,
    /// Of these, pages.
    lost_pages: Cell<u64>,
    /// What could not be read, and may be good all the same.
    unread: Cell<u64>,
    /// Of what leads to that it could not be read.
    unled: Cell<Unled>,
    /// Slabs with blocks of data of that kind.
    held: RefCell<BTreeSet<usize>>,
    /// Slabs of which the new place does not give something back.
    deaf: RefCell<BTreeSet<usize>>,
    /// Removed devices that did not answer when they were asked.
    silent: RefCell<BTreeSet<u16>>,
}

impl Walk {
    fn new(number: u64, into: Into, prove: bool) -> Walk {
        Walk {
            number,
            into,
            prove,
            seen: BTreeSet::new(),
            lost: Cell::new(0),
            lost_pages: Cell::new(0),
            unread: Cell::new(0),
            unled: Cell::default(),
            held: RefCell::default(),
            deaf: RefCell::default(),
            silent: RefCell::default(),
        }
    }
}

/// Whose slabs may have something to which nothing leads that could be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Unled {
    #[default]
    Nobody,
    /// Those of devices that nobody has removed: a device that stays has a bad block, and a removal does not wait for that.
    NotRemoved,
    /// All.
    All,
}

impl Inner {
    /// Copies everything that the destinations need, reads it again from there, and returns when all of it is
    /// durable and proved. A checkpoint that ended after the destinations had begun to be written must have been
    /// made. New places are asked what they lack, and a walk that missed some of it is followed by another one.
    pub(crate) async fn fill(self: &Rc<Self>, into: Into) -> IoResult<Filled> {
        self.walk(into, false).await?;
        self.flush_filled(into).await?;
        if has(Bug::FillNotProved) {
            return Ok(Filled::default());
        }
        // What was written meanwhile went to the destination as well. Now the maps have it, and it is proved with the rest.
        self.checkpoint_now().await?;
        let mut before = u64::MAX;
        // What one walk held or gave up the next one may not meet again.
        let (mut held, mut deaf, mut is_lossy) = (BTreeSet::new(), BTreeSet::new(), false);
        loop {
            let w = self.walk(into, true).await?;
            self.flush_filled(into).await?;
            let of_source = w.held.take();
            deaf.extend(w.deaf.take());
            deaf.retain(|s| !of_source.contains(s) && !held.contains(s));
            held.extend(of_source);
            is_lossy |= w.lost.get() > 0;
            // Only places know what they have.
            if into != Into::Moves || has(Bug::UnreadIsLeft) {
                return Ok(Filled::default());
            }
            let but: BTreeSet<usize> = held.union(&deaf).copied().collect();
            let lacks = self.space.borrow().blocks_lacking(&but);
            let is_led = w.unled.get() == Unled::Nobody && w.lost_pages.get() == 0;
            if is_led && lacks > 0 && lacks < before && !has(Bug::LackingUnasked) {
                before = lacks;
                continue;
            }
            // Whatever no walk finds, though it could read all that leads anywhere, is in use for nothing.
            let unled = w.unled.get();
            is_lossy |= unled == Unled::NotRemoved && !has(Bug::LetGoStands);
            return Ok(Filled { stay: self.staying(unled, but), deaf, is_lossy });
        }
    }

    /// The slabs that move and may lack something. Those that were held do, whatever else is known: what hosts write meanwhile, and
    /// what is known of the use of blocks, counts as there when it is written.
    fn staying(&self, unled: Unled, held: BTreeSet<usize>) -> Vec<usize> {
        let lacking = self.space.borrow().lacking();
        let may_be = |s: &usize| match unled {
            Unled::Nobody => held.contains(s),
            Unled::NotRemoved => {
                held.contains(s) || self.leaver(*s).is_some_and(|d| !d.is_written_off())
            }
            Unled::All => true,
        };
        let mut stay: BTreeSet<usize> = lacking.into_iter().filter(may_be).collect();
        if !has(Bug::HeldMoves) {
            stay.extend(held);
        }
        stay.into_iter().collect()
    }

    /// The device that a slab moves off.
    fn leaver(&self, s: usize) -> Option<Rc<Device>> {
        let from = {
            let space = self.space.borrow();
            let slab = space.slabs.get(s)?;
            slab.copies[slab.moving?.index]?
        };
        self.device(from.device)
    }

    /// The new place of a slab does not give a block back.
    fn not_given_back(&self, w: &Walk, vbn: u64) -> IoResult {
        self.do_without(w, IoError::Path)?;
        w.deaf.borrow_mut().insert(self.space.borrow().slab_of(vbn));
        if has(Bug::UnreadHoldsAll) {
            w.unled.set(Unled::All);
        }
        Ok(())
    }

    /// What should be brought cannot be read now. Only a slab can do without.
    fn leave_out(&self, w: &Walk, vbn: u64, e: IoError) -> IoResult {
        self.do_without(w, e)?;
        w.held.borrow_mut().insert(self.space.borrow().slab_of(vbn));
        if has(Bug::UnreadHoldsAll) {
            w.unled.set(Unled::All);
        }
        Ok(())
    }

    /// The same of what leads there, and nobody knows where.
    fn leave_out_all(&self, w: &Walk, e: IoError) -> IoResult {
        self.do_without(w, e)?;
        let whose = if e == IoError::Medium { Unled::NotRemoved } else { Unled::All };
        w.unled.set(w.unled.get().max(whose));
        Ok(())
    }

    fn do_without(&self, w: &Walk, e: IoError) -> IoResult {
        self.check_running()?;
        match w.into {
            Into::Moves if !has(Bug::UnreadEndsMoves) => {
                w.unread.set(w.unread.get() + 1);
                Ok(())
            }
            _ => Err(e),
        }
    }

    /// The new place of a slab has a block, or nobody has it.
    fn brought(&self, w: &Walk, vbn: u64) {
        if w.prove && w.into == Into::Moves {
            self.space.borrow_mut().arrived(vbn, 1);
        }
    }

    /// Blocks that filling copies at most, as far as that is known.
    pub(crate) fn fill_estimate(&self, into: Into) -> u64 {
        let space = self.space.borrow();
        let region = region_blocks(space.shift);
        let mut blocks = 0;
        for (s, slab) in space.slabs.iter().enumerate() {
            let since = match into {
                Into::Device(n, e) if slab.copies.iter().flatten().any(|c| c.device == n) => e,
                Into::Moves if slab.moving.is_some() => 0,
                _ => continue,
            };
            let (words, _) = space.disk_words(s);
            for (r, epoch) in slab.regions.iter().enumerate() {
                if *epoch < since {
                    continue;
                }
                let (from, to) = (r as u64 * region, (r as u64 + 1) * region);
                for i in from..to.min(1 << space.shift) {
                    blocks += words[(i / 64) as usize] >> (i % 64) & 1;
                }
            }
        }
        blocks
    }

    /// Where a block is to be brought, if anywhere.
    fn destination(&self, into: Into, vbn: u64) -> Option<(Rc<Device>, u64)> {
        match into {
            Into::Device(n, _) => {
                if has(Bug::ResyncSkipsRegion) && vbn >> 5 & 1 == 1 {
                    return None;
                }
                self.copies_of(vbn).into_iter().flatten().find(|(d, _)| d.number == n)
            }
            Into::Moves => self.moving_to(vbn),
        }
    }

    async fn flush_filled(&self, into: Into) -> IoResult {
        let mut set = 0u128;
        match into {
            Into::Device(n, _) => set |= 1 << n,
            Into::Moves => {
                for m in self.space.borrow().slabs.iter().filter_map(|s| s.moving) {
                    set |= 1 << m.to.device;
                }
            }
        }
        self.flush_devices(set).await;
        let devices = self.devices.borrow();
        match devices.iter().any(|d| set >> d.number & 1 == 1 && !d.is_written()) {
            true => Err(IoError::Offline),
            false => Ok(()),
        }
    }

    /// Gives what became of it.
    async fn walk(self: &Rc<Self>, into: Into, prove: bool) -> IoResult<Walk> {
        let number = self.upkeep.next_walk();
        let mut w = Walk::new(number, into, prove);
        loop {
            let unseen = |d: &&Rc<Dataset>| d.walked.get() != w.number;
            let next = self.datasets.borrow().values().find(unseen).cloned();
            let Some(ds) = next else { break };
            // Whoever gives it another map meanwhile takes the mark away again.
            ds.walked.set(w.number);
            let height = self.durable_map(&ds).height;
            self.fill_node(&mut w, &ds, height, 0).await?;
        }
        loop {
            // A list that goes over to another dataset may be missed: then all are looked at again.
            let before = self.upkeep.lists();
            let all: Vec<Rc<Dataset>> = self.datasets.borrow().values().cloned().collect();
            for ds in all {
                self.fill_list(&mut w, &ds).await?;
            }
            if self.upkeep.lists() == before {
                break;
            }
        }
        let slabs = self.space.borrow().slabs.len();
        for s in 0..slabs {
            self.fill_slab(&w, s).await?;
        }
        Ok(w)
    }

    /// All below a page has been seen to. In the last epoch another one that takes its place has the same birth.
    fn is_seen(&self, w: &Walk, ptr: &NodePtr) -> bool {
        let is_same = |p: &NodePtr| p == ptr || has(Bug::SeenByPlace);
        let at = NodePtr { max_birth: 0, crc: 0, ..*ptr };
        let to = NodePtr { max_birth: u32::MAX, crc: u64::MAX, ..*ptr };
        w.seen.range(at..=to).any(is_same)
    }

    fn is_wanted(&self, w: &Walk, birth: u32) -> bool {
        !matches!(w.into, Into::Device(_, since) if birth < since)
    }

    /// A dataset's map as of the last checkpoint. What the one being made has merged may not be on disk yet.
    fn durable_map(&self, ds: &Dataset) -> MapRoot {
        let epoch = self.durable.borrow().epoch;
        let mut at = ds.top.below.borrow().clone();
        loop {
            at = match at {
                Below::Root(root, _) => return root,
                Below::Stage(s) => match s.merged.get().filter(|_| s.epoch <= epoch) {
                    Some((root, _)) => return root,
                    None => s.below.borrow().clone(),
                },
            };
        }
    }
}

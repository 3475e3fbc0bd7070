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
//! others move. A device that is brought back is up to date as a whole or not at all.

mod lists;

use super::copies::{LATER, Look};
use super::dataset::Dataset;
use super::device::Device;
use super::meta::Effort;
use super::stage::Below;
use super::{Inner, block_of};
use crate::format::dataset::{Kind, MapRoot};
use crate::format::page::{FANOUT, NodePtr};
use crate::format::slab::region_blocks;
use crate::format::tree::{self, LEAF, MapEntry};
use crate::format::{BLOCK, Block};
use crate::planted::{Bug, has};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use weir_base::{IoError, IoResult, Nanos};
use weir_block::{IoFuture, join_parts};
use weir_mem::Slice;
use weir_reactor::{LocalFuture, sleep};

/// Blocks that are copied with one read and one write at most.
const RUN: usize = 64;
/// Checkpoints to wait for when a node cannot be read: it may be on its way still.
const PATIENCE: u32 = 2;

/// What is being filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Into {
    /// What a device misses since an epoch; 0 for all.
    Device(u16, u32),
    /// The new places of slabs that move.
    Moves,
}

/// One walk over everything that is in use.
struct Walk {
    number: u64,
    into: Into,
    /// Nothing is copied, but what is at the destination is read and must be good. To leave out what looks good there
    /// already would not do: a device that failed a flush shows what it will have lost when power goes.
    prove: bool,
    /// Nodes and pages all below which has been seen to.
    seen: BTreeSet<(u64, u32)>,
    /// Blocks of data, and pages that lead to them, that no copy has.
    lost: Cell<u64>,
    /// What could not be read, and may be good all the same.
    unread: Cell<u64>,
    /// Removed devices that did not answer when they were asked.
    silent: RefCell<BTreeSet<u16>>,
}

impl Walk {
    fn new(number: u64, into: Into, prove: bool) -> Walk {
        let (lost, unread) = (Cell::new(0), Cell::new(0));
        let (seen, silent) = (BTreeSet::new(), RefCell::default());
        Walk { number, into, prove, seen, lost, unread, silent }
    }
}

/// The tries to read a page of metadata, which lie under a pin each, and nothing between them.
struct Tries {
    effort: Effort,
    pauses: std::slice::Iter<'static, Nanos>,
    checkpoints: u32,
    asked: bool,
}

impl Tries {
    fn new() -> Tries {
        Tries { effort: Effort::Once, pauses: LATER.iter(), checkpoints: PATIENCE, asked: false }
    }
}

/// A block that is to be brought: what the map says of it, and where it is to be.
type Wanted = (MapEntry, Rc<Device>, u64);

/// Blocks of a dataset that lie together.
struct Run {
    device: Rc<Device>,
    at: u64,
    blocks: Vec<(u64, MapEntry)>,
}

impl Inner {
    /// Copies everything that the destinations need, reads it again from there, and returns when all of it is
    /// durable and proved. A checkpoint that ended after the destinations had begun to be written must have been
    /// made. Gives the slabs whose new places may lack something.
    pub(crate) async fn fill(self: &Rc<Self>, into: Into) -> IoResult<Vec<usize>> {
        self.walk(into, false).await?;
        self.flush_filled(into).await?;
        if has(Bug::FillNotProved) {
            return Ok(Vec::new());
        }
        // What was written meanwhile went to the destination as well. Now the maps have it, and it is proved with the rest.
        self.checkpoint_now().await?;
        let unread = self.walk(into, true).await?;
        self.flush_filled(into).await?;
        // What leads to it may be what cannot be read. If all can, what is in use beside that is in use for nothing.
        match unread > 0 && !has(Bug::UnreadIsLeft) {
            true => Ok(self.space.borrow().lacking()),
            false => Ok(Vec::new()),
        }
    }

    /// What should be brought, or leads to that, cannot be read now. Only a slab can do without.
    fn leave_out(&self, w: &Walk, e: IoError) -> IoResult {
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

    /// Says how much could not be read.
    async fn walk(self: &Rc<Self>, into: Into, prove: bool) -> IoResult<u64> {
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
        Ok(w.unread.get())
    }

    fn is_wanted(&self, w: &Walk, birth: u32) -> bool {
        !matches!(w.into, Into::Device(_, since) if birth < since)
    }

    /// Of what a dataset's map leads to, only what was born after that is its own. What is left of a deleted one must not be
    /// followed any further; `None`: everything that it leads to is in use.
    fn own_after(&self, ds: &Dataset) -> Option<u32> {
        (ds.kind == Kind::Garbage).then(|| self.shared_epoch(ds, u32::MAX))
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

    /// A node of a dataset's map as the last checkpoint has it. `None`: there is none, or none that can be read.
    async fn node_now(
        &self,
        w: &Walk,
        ds: &Dataset,
        (level, index): (u8, u64),
        effort: Effort,
    ) -> IoResult<Option<(NodePtr, Rc<Block>)>> {
        let root = self.durable_map(ds);
        let Some(ptr) = self.pointer_in(root, ds.family, level, index).await? else {
            return Ok(None);
        };
        let own = self.own_after(ds).is_none_or(|e| ptr.birth > e);
        if !own || !self.is_wanted(w, ptr.birth) || w.seen.contains(&(ptr.vbn, ptr.birth)) {
            return Ok(None);
        }
        let node = self.map_node_by(&ptr, ds.family, (level, index), effort).await?;
        Ok(Some((ptr, node)))
    }

    /// Waits until a page of metadata is tried again. False: it was tried for the last time. The caller holds no pin.
    async fn try_again(self: &Rc<Self>, w: &Walk, t: &mut Tries, e: IoError) -> IoResult<bool> {
        if t.effort == Effort::Last {
            w.lost.set(w.lost.get() + u64::from(e == IoError::Medium));
            return Ok(false);
        }
        self.upkeep_goes_on().await?;
        // Who does not answer a second time is not asked for this one any more.
        if !t.asked && self.ask_removed(w).await {
            t.asked = true;
            return Ok(true);
        }
        // Time brings no device back that has gone, and not each of many pages that are wrong is waited for.
        let passes = match e {
            IoError::Offline => false,
            IoError::Medium => !Inner::patience(w.lost.get()).is_empty(),
            _ => true,
        };
        if let Some(pause) = t.pauses.next().filter(|_| passes) {
            sleep(*pause).await;
        } else if t.checkpoints > 0 && !Inner::patience(w.unread.get()).is_empty() {
            // It may be on its way still. Not each of many is waited for so long.
            t.checkpoints -= 1;
            self.checkpoint_now().await?;
        } else {
            t.effort = Effort::Last;
        }
        Ok(true)
    }

    /// Asks removed devices that did not answer whether they do now. True: one does.
    async fn ask_removed(&self, w: &Walk) -> bool {
        let is_asked = |d: &&Rc<Device>| {
            let is_removed = d.is_written_off() && d.is_away() && d.disk.is_some();
            is_removed && !d.is_readable() && !w.silent.borrow().contains(&d.number)
        };
        let all: Vec<_> = self.devices.borrow().iter().filter(is_asked).cloned().collect();
        let mut any = false;
        for d in all.into_iter().filter(|_| !has(Bug::FailedIsDead) && !has(Bug::SilentForGood)) {
            let answers = self.answers_soon(&d).await;
            any |= answers;
            if !answers {
                w.silent.borrow_mut().insert(d.number);
            }
        }
        any
    }

    fn fill_node<'a>(
        self: &'a Rc<Self>,
        w: &'a mut Walk,
        ds: &'a Rc<Dataset>,
        level: u8,
        index: u64,
    ) -> LocalFuture<'a, IoResult> {
        Box::pin(async move {
            let mut tries = Tries::new();
            let (ptr, node) = loop {
                self.upkeep_goes_on().await?;
                let pin = self.pins.pin();
                if ds.is_stale() {
                    return Ok(());
                }
                let found = self.node_now(w, ds, (level, index), tries.effort).await;
                match found {
                    Ok(None) => return Ok(()),
                    Ok(Some((ptr, node))) => {
                        self.fill_meta(w, ptr, &node).await?;
                        let rest = match level {
                            0 => self.fill_leaf(w, ds, index, &node).await?,
                            _ => Vec::new(),
                        };
                        let held = has(Bug::PausedUnderPin).then(|| pin.clone());
                        drop(pin);
                        self.fill_rest(w, ds, rest).await?;
                        drop(held);
                        break (ptr, node);
                    }
                    Err(e) => {
                        drop(pin);
                        if self.try_again(w, &mut tries, e).await? {
                            continue;
                        }
                        // Lost on all copies: there is nothing to bring.
                        return match e == IoError::Medium || has(Bug::UnseenIsNothing) {
                            true => Ok(()),
                            false => self.leave_out(w, e),
                        };
                    }
                }
            };
            if level > 0 {
                for k in 0..FANOUT {
                    let child = tree::pointer(&node, k).map_err(|_| IoError::Medium)?;
                    if !child.is_none() && self.is_wanted(w, child.birth) {
                        let at = index * FANOUT as u64 + k as u64;
                        self.fill_node(w, ds, level - 1, at).await?;
                    }
                }
            }
            let _pin = self.pins.pin();
            // What was freed of a map that is nobody's any more may be something else by now, and is not damaged.
            if ds.is_stale() {
                return Ok(());
            }
            let root = self.durable_map(ds);
            let still = self.pointer_in(root, ds.family, level, index).await == Ok(Some(ptr));
            if still && !ds.is_stale() {
                // It was this one all the time, so all below was its, and was looked at.
                w.seen.insert((ptr.vbn, ptr.birth));
            }
            Ok(())
        })
    }

    /// Brings a verified block of metadata.
    async fn fill_meta(&self, w: &Walk, ptr: NodePtr, page: &Block) -> IoResult {
        let Some((d, at)) = self.destination(w.into, ptr.vbn) else { return Ok(()) };
        let data = Slice::copy_of(&page[..]);
        self.upkeep.add_done(1);
        if !w.prove {
            return self.write_filled(&d, at, &data).await;
        }
        let have = Slice::heap(BLOCK);
        let read = d.read(at, &have, self.options.deadline).await;
        if read.is_err() || block_of(&have)[..] != page[..] {
            self.put_right(&d, at, &data).await?;
        }
        self.brought(w, ptr.vbn);
        Ok(())
    }

    /// Brings the blocks of a leaf, and gives those that the copy which is read does not have. The caller holds a pin.
    async fn fill_leaf(
        self: &Rc<Self>,
        w: &Walk,
        ds: &Rc<Dataset>,
        index: u64,
        node: &Block,
    ) -> IoResult<Vec<u64>> {
        let after = self.own_after(ds);
        let mut all: Vec<(u64, MapEntry)> = (0..LEAF)
            .map(|k| (index * LEAF as u64 + k as u64, tree::entry(node, k)))
            .filter(|(_, e)| self.is_brought(w, after, e))
            .collect();
        all.sort_by_key(|(_, e)| e.vbn);
        let mut runs: Vec<Run> = Vec::new();
        for (lba, e) in all {
            let Some((device, at)) = self.destination(w.into, e.vbn) else { continue };
            let follows = |r: &&mut Run| {
                let n = r.blocks.len();
                n < RUN
                    && r.device.number == device.number
                    && r.at + n as u64 == at
                    && r.blocks[n - 1].1.vbn + 1 == e.vbn
            };
            match runs.last_mut().filter(follows) {
                Some(r) => r.blocks.push((lba, e)),
                None => runs.push(Run { device, at, blocks: vec![(lba, e)] }),
            }
        }
        let rest = RefCell::default();
        let (runs, ds, to) = (&runs, &**ds, &rest);
        join_parts(runs.len(), move |i| IoFuture::new(self.fill_run(w, ds, &runs[i], to))).await?;
        Ok(rest.into_inner())
    }

    /// Whether a walk brings what an entry of a map refers to, of which what was born `after` that is its own.
    fn is_brought(&self, w: &Walk, after: Option<u32>, e: &MapEntry) -> bool {
        e.is_data() && self.is_wanted(w, e.birth) && after.is_none_or(|after| e.birth > after)
    }

    fn is_good(&self, ds: &Dataset, block: &(u64, MapEntry), buf: &Slice, at: usize) -> bool {
        let id = self.identity(ds.family, block.0, block.1.birth, block.1.vbn);
        self.proves(&id, block.1.crc, buf, at * BLOCK)
    }

    /// Brings what lies together, as far as one read has it; the other blocks are put into `rest`.
    async fn fill_run(
        &self,
        w: &Walk,
        ds: &Dataset,
        r: &Run,
        rest: &RefCell<Vec<u64>>,
    ) -> IoResult {
        let limit = self.options.deadline;
        let n = r.blocks.len();
        let buf = Slice::heap(n * BLOCK);
        self.upkeep.add_done(n as u64);
        // What is there already is proved; else a current copy is read. What is not good is looked for elsewhere.
        let from = match w.prove {
            true => Some((r.device.clone(), r.at)),
            false => self.choose(r.blocks[0].1.vbn),
        };
        let mut read = false;
        if let Some((d, at)) = from {
            match d.read(at, &buf, limit).await {
                Ok(()) => read = true,
                Err(IoError::Offline) if !w.prove => self.device_failed(&d, IoError::Offline),
                Err(_) => {}
            }
        }
        // From where on blocks are to be written.
        let mut from = 0;
        for (i, b) in r.blocks.iter().enumerate() {
            match read && self.is_good(ds, b, &buf, i) {
                true if w.prove => self.brought(w, b.1.vbn),
                true => {}
                false => {
                    rest.borrow_mut().push(b.0);
                    if !w.prove {
                        self.write_part(r, &buf, from, i).await?;
                    }
                    from = i + 1;
                }
            }
        }
        match w.prove {
            true => Ok(()),
            false => self.write_part(r, &buf, from, n).await,
        }
    }

    async fn write_part(&self, r: &Run, buf: &Slice, from: usize, to: usize) -> IoResult {
        match to - from {
            0 => Ok(()),
            n => {
                let part = buf.sub(from * BLOCK, n * BLOCK);
                self.write_filled(&r.device, r.at + from as u64, &part).await
            }
        }
    }

    /// Brings blocks of a leaf from whatever copies verify. What none gives now is tried again after pauses, all of it at once.
    async fn fill_rest(&self, w: &Walk, ds: &Dataset, mut rest: Vec<u64>) -> IoResult {
        for (n, pause) in LATER.iter().map(Some).chain([None]).enumerate() {
            let mut later = Vec::new();
            for lba in rest {
                self.upkeep_goes_on().await?;
                let is_last = pause.is_none();
                if !self.fill_one(w, ds, lba, (n == 0, is_last)).await? {
                    later.push(lba);
                }
            }
            rest = later;
            match pause.filter(|_| !rest.is_empty()) {
                Some(pause) => sleep(*pause).await,
                None => break,
            }
        }
        Ok(())
    }

    /// Brings a block from whatever copy verifies. False: that is to be tried again. What cannot be read now may be readable later,
    /// so it is not given up, unless the devices themselves go on saying that the medium is bad, or somebody has removed the device
    /// that may have it. The caller holds no pin.
    async fn fill_one(
        &self,
        w: &Walk,
        ds: &Dataset,
        lba: u64,
        (is_first, is_last): (bool, bool),
    ) -> IoResult<bool> {
        loop {
            let wanted = match self.wanted_now(w, ds, lba).await {
                Ok(Some(wanted)) => wanted,
                Ok(None) => return Ok(true),
                // It was read a moment ago.
                Err(_) if !is_last => return Ok(false),
                Err(e) => return self.leave_out(w, e).map(|()| true),
            };
            let (entry, d, at) = &wanted;
            let mut seen = self.look_at(ds, lba, *entry, &[]).await;
            // Each of these may take as long as a device has to answer, and who stops this does not wait for all.
            if seen.is_given_up() {
                self.upkeep_goes_on().await?;
            }
            if seen.is_given_up() && self.ask_removed(w).await {
                self.upkeep_goes_on().await?;
                seen = self.look_at(ds, lba, *entry, &[]).await;
            }
            // Not each of many is waited for; but each of those of which this is the end.
            let patient = !Inner::patience(w.lost.get() + w.unread.get()).is_empty();
            let patient = patient || seen.is_given_up() && !has(Bug::GivenUpInHaste);
            let again = match seen.look {
                Look::Wrong => is_first,
                _ => seen.passing().is_some() && !is_last,
            };
            if again && patient {
                return Ok(false);
            }
            let pin = self.pins.pin();
            match self.wanted_now(w, ds, lba).await {
                Ok(Some((now, to, place)))
                    if (now, to.number, place) == (*entry, d.number, *at) => {}
                Ok(Some(_)) => continue,
                Ok(None) => return Ok(true),
                Err(e) => return self.leave_out(w, e).map(|()| true),
            }
            if w.into == Into::Moves {
                seen = seen.give_up();
            }
            let one = Slice::heap(BLOCK);
            match self.take(seen, &one, &pin, ds).await {
                Ok(()) if w.prove => self.put_right(d, *at, &one).await?,
                Ok(()) => self.write_filled(d, *at, &one).await?,
                // No copy has it. What the new place holds stays: it may be read some day.
                Err(IoError::Medium) => w.lost.set(w.lost.get() + 1),
                Err(e) => return self.leave_out(w, e).map(|()| true),
            }
            self.brought(w, entry.vbn);
            return Ok(true);
        }
    }

    /// What the last checkpoint has for a block that is to be brought.
    async fn wanted_now(&self, w: &Walk, ds: &Dataset, lba: u64) -> IoResult<Option<Wanted>> {
        let _pin = self.pins.pin();
        if ds.is_stale() {
            return Ok(None);
        }
        let (index, i) = (lba / LEAF as u64, (lba % LEAF as u64) as usize);
        let leaf = self.node_now(w, ds, (0, index), Effort::Once).await?;
        let entry = leaf.map(|(_, node)| tree::entry(&node, i));
        let Some(entry) = entry.filter(|e| self.is_brought(w, self.own_after(ds), e)) else {
            return Ok(None);
        };
        Ok(self.destination(w.into, entry.vbn).map(|(d, at)| (entry, d, at)))
    }

    async fn write_filled(&self, d: &Rc<Device>, at: u64, data: &Slice) -> IoResult {
        if !d.is_written() {
            return Err(IoError::Offline);
        }
        self.count(|c| c.media_writes += (data.len() / BLOCK) as u64);
        match d.write(at, data, self.options.deadline).await {
            Ok(()) => Ok(()),
            Err(IoError::Medium) => {
                // Some block cannot be written there: each by itself, with a spare if need be.
                for i in 0..(data.len() / BLOCK) as u64 {
                    let one = data.sub(i as usize * BLOCK, BLOCK);
                    self.put_right(d, at + i, &one).await?;
                }
                Ok(())
            }
            Err(e) => {
                self.device_failed(d, e);
                Err(e)
            }
        }
    }

    /// Writes a block where another was found, and sees to it that it is there.
    async fn put_right(&self, d: &Rc<Device>, at: u64, data: &Slice) -> IoResult {
        if !d.is_written() {
            return Err(IoError::Offline);
        }
        self.mend(d, at, data, &self.pins.pin()).await;
        let have = Slice::heap(data.len());
        match d.read(at, &have, self.options.deadline).await {
            Ok(()) if have.to_vec() == data.to_vec() => Ok(()),
            // That does not say what it holds: it is filled once more.
            Err(e) if !matches!(e, IoError::Medium | IoError::Offline) => Err(e),
            _ => {
                // It does not hold what is written, and has no spare blocks: it is of no use.
                self.device_failed(d, IoError::Medium);
                Err(IoError::Offline)
            }
        }
    }
}

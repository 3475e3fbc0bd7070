//! Scrub: every copy of every block is read and verified, and mended where it is damaged.

use super::check::Finding;
use super::copies::{Copies, SOON};
use super::damage::{name_of, told_of};
use super::dataset::Dataset;
use super::device::Device;
use super::locks::Pin;
use super::stage::Below;
use super::{Inner, Pool, StoreResult, block_of};
use crate::format::dataset::{Kind, MapRoot};
use crate::format::dead;
use crate::format::page::{FANOUT, NodePtr, PageKind};
use crate::format::slab::{SlabHead, bitmap_pages, meta_pages};
use crate::format::tree::{self, LEAF};
use crate::format::{BLOCK, Block};
use crate::planted::{Bug, has};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use weir_base::{IoError, IoResult, MILLIS, Nanos, SECONDS};
use weir_mem::Slice;
use weir_reactor::{LocalFuture, now, sleep};

/// What a scrub did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Blocks of which every copy was read.
    pub blocks: u64,
    /// Copies found damaged.
    pub damaged: u64,
    /// Of those, mended.
    pub repaired: u64,
    /// Blocks without a good copy.
    pub lost: u64,
}

/// Most findings that a watch keeps.
const MOST_FINDINGS: usize = 1000;
/// A scrub that is less ahead of its rate does not pause, since short pauses take longer than they should.
const AHEAD: Nanos = 2 * MILLIS;

/// What can be seen of a scrub while it runs, and afterwards.
#[derive(Debug, Default)]
pub struct ScrubWatch {
    blocks: Cell<u64>,
    findings: RefCell<Vec<Finding>>,
    found: Cell<u64>,
    /// Devices on which it found something, or which it did not read whole.
    unclean: RefCell<BTreeSet<u64>>,
    /// Nobody knows what else there is, since what leads to it could not be read.
    left_out: Cell<bool>,
}

impl ScrubWatch {
    /// Blocks of which every copy was read.
    pub fn blocks(&self) -> u64 {
        self.blocks.get()
    }

    /// The first thousand findings.
    pub fn findings(&self) -> Vec<Finding> {
        self.findings.borrow().clone()
    }

    /// How many there were in all.
    pub fn found(&self) -> u64 {
        self.found.get()
    }

    /// Whether it read all that there is of a device, by its identity, and nothing was wrong; if it has come to its end.
    pub fn is_clean(&self, device: u64) -> bool {
        let clean = !self.left_out.get() && !self.unclean.borrow().contains(&device);
        clean || has(Bug::LeftOutIsClean)
    }

    /// It found something on this device, or did not read all of it.
    pub(super) fn mark(&self, d: &Device) {
        self.unclean.borrow_mut().insert(d.id);
    }

    /// What follows from something that could not be read was left out.
    fn leave_out(&self) {
        self.left_out.set(true);
    }

    pub(super) fn find(&self, place: impl Into<Place>, vbn: u64, what: String) {
        self.found.set(self.found.get() + 1);
        let mut all = self.findings.borrow_mut();
        if all.len() < MOST_FINDINGS {
            let Place { layer, whose } = place.into();
            all.push(Finding { layer, vbn, what, whose });
        }
    }
}

/// What a block is for, and whose it is: a volume's or snapshot's, as it is called on the devices.
pub(super) struct Place {
    layer: String,
    whose: Option<String>,
}

impl From<&str> for Place {
    fn from(layer: &str) -> Place {
        Place { layer: layer.into(), whose: None }
    }
}

impl Place {
    fn of(ds: &Dataset, layer: String) -> Place {
        Place { layer, whose: told_of(ds).map(name_of) }
    }
}

/// What a scrub found of a block.
struct Found {
    /// Its damaged copies, if none is good.
    bad: Copies,
    /// There are no others that may be good.
    is_lost: bool,
}

/// How fast, and how far it is.
struct Pace {
    /// Blocks a second; 0 for as fast as possible.
    rate: u64,
    /// When the block after this one is due.
    due: Nanos,
    watch: Rc<ScrubWatch>,
}

impl Pace {
    async fn step(&mut self) {
        self.watch.blocks.set(self.watch.blocks.get() + 1);
        let Some(each) = SECONDS.checked_div(self.rate) else { return };
        self.due = self.due.max(now()) + each;
        if self.due > now() + AHEAD {
            sleep(self.due - now()).await;
        }
    }
}

impl Pool {
    /// Reads and verifies every copy of every block that is in use, and mends damaged ones; at most `rate`
    /// blocks a second, 0 for as fast as possible. I/O goes on meanwhile.
    ///
    /// # Errors
    /// The pool cannot be written.
    pub async fn scrub(&self, rate: u64) -> StoreResult<ScrubReport> {
        self.scrub_watched(rate, Rc::default()).await
    }

    /// As [`scrub`](Pool::scrub); `watch` shows how far it is and what it finds. Dropping the future ends it.
    ///
    /// # Errors
    /// The pool cannot be written.
    pub async fn scrub_watched(
        &self,
        rate: u64,
        watch: Rc<ScrubWatch>,
    ) -> StoreResult<ScrubReport> {
        let i = &self.0;
        let before = self.counters();
        // Everything that is there now gets its place in a map.
        i.checkpoint_now().await?;
        let mut pace = Pace { rate, due: 0, watch: watch.clone() };
        // Snapshots first, from the oldest on: what one shares with the next in line is read there, should it be deleted meanwhile.
        let place = |(id, ds): (&u32, &Rc<Dataset>)| (ds.kind != Kind::Snapshot, *id);
        let mut ids: Vec<(bool, u32)> = i.datasets.borrow().iter().map(place).collect();
        if !has(Bug::DeletedIsRead) {
            ids.sort_unstable();
        }
        let mut whole = Whole::default();
        for (_, id) in ids {
            let Some(ds) = i.datasets.borrow().get(&id).cloned() else { continue };
            i.scrub_dataset(&ds, &mut whole, &mut pace).await?;
        }
        i.scrub_lists(&mut pace).await?;
        i.scrub_table(&mut pace).await?;
        i.scrub_slabs(&mut pace).await?;
        i.scrub_super(&watch).await?;
        let now = self.counters();
        Ok(ScrubReport {
            blocks: watch.blocks(),
            damaged: now.damaged - before.damaged,
            repaired: now.repaired - before.repaired,
            lost: now.lost - before.lost,
        })
    }
}

/// Snapshots of which all was read, with the volume that each is of and its epoch.
#[derive(Default)]
struct Whole(BTreeMap<u32, (u32, u32)>);

impl Whole {
    /// Up to which epoch all that a dataset has was read in older ones of its line, or in what that was made of.
    fn shared(&self, all: &BTreeMap<u32, Rc<Dataset>>, ds: &Dataset) -> u32 {
        let is_snapshot = ds.kind == Kind::Snapshot;
        let volume = if is_snapshot { ds.parent.get() } else { ds.id };
        let limit = if is_snapshot { ds.epoch } else { u32::MAX };
        let older = self.0.values().filter(|(of, epoch)| *of == volume && *epoch < limit);
        let origin = all.get(&volume).map_or(0, |v| v.parent.get());
        let floor = if self.0.contains_key(&origin) { ds.floor.get() } else { 0 };
        older.map(|(_, epoch)| *epoch).max().unwrap_or(0).max(floor)
    }
}

fn bottom(below: &Below) -> MapRoot {
    match below {
        Below::Root(root, _) => *root,
        Below::Stage(s) => match s.merged.get() {
            Some((root, _)) => root,
            None => bottom(&s.below.borrow()),
        },
    }
}

impl Inner {
    /// Reads one copy of a block, again after a moment if that fails in a way that may pass.
    async fn read_copy(&self, d: &Device, at: u64) -> IoResult<Slice> {
        let mut pauses = SOON.iter();
        loop {
            let buf = Slice::heap(BLOCK);
            match d.read(at, &buf, self.options.deadline).await {
                Ok(()) => return Ok(buf),
                Err(e @ (IoError::Medium | IoError::Offline)) => return Err(e),
                Err(e) => match pauses.next() {
                    Some(pause) => sleep(*pause).await,
                    None => return Err(e),
                },
            }
        }
    }

    /// Reads every current copy of a block, which stays where it is under `pin`, and mends those that `good` does not like.
    async fn scrub_copies(
        &self,
        (vbn, sum): (u64, u64),
        pin: &Pin,
        good: impl Fn(&Slice) -> bool,
        watch: &ScrubWatch,
        (whose, place): (Option<&Dataset>, impl Fn() -> Place),
    ) -> Found {
        // A checkpoint may be writing it: what is not there yet is not damaged.
        self.arrivals.wait(vbn).await;
        let (mut bad, mut data, mut unread) = (Vec::new(), None, false);
        for (d, at) in self.copies_of(vbn).into_iter().flatten() {
            if !d.is_current() {
                watch.mark(&d);
                unread = true;
                continue;
            }
            match self.read_copy(&d, at).await {
                Ok(buf) if good(&buf) => {
                    self.works.damage.good(&d, at, 1);
                    data.get_or_insert(buf);
                    continue;
                }
                // What it did not get while it went out of service is not damaged.
                Ok(_) | Err(IoError::Medium) if d.is_current() => {
                    self.found_damaged(&d, at, sum, whose);
                    bad.push((d.clone(), at));
                }
                Ok(_) | Err(IoError::Medium) => unread = true,
                Err(IoError::Offline) => {
                    unread = true;
                    self.device_failed(&d, IoError::Offline);
                }
                // That says nothing about the medium.
                Err(e) => {
                    unread = true;
                    let text =
                        format!("copy on device {} at block {at} is not read: {e}", d.number);
                    self.found_unread(&d, at, sum, e);
                    watch.find(place(), vbn, text);
                }
            }
            watch.mark(&d);
        }
        let Some(data) = data else {
            match bad.is_empty() {
                true => {}
                false if !unread => watch.find(place(), vbn, "no copy is good".into()),
                false => {
                    for (d, at) in &bad {
                        let text = format!(
                            "copy on device {} at block {at} is damaged, and no other can be read",
                            d.number
                        );
                        watch.find(place(), vbn, text);
                    }
                }
            }
            let is_lost = !bad.is_empty() && !unread;
            return Found { bad, is_lost };
        };
        self.seen_good(vbn, 1);
        self.scrub_mend(bad, vbn, &data, pin, watch, place).await;
        Found { bad: Vec::new(), is_lost: false }
    }

    /// Mends damaged copies of a block.
    async fn scrub_mend(
        &self,
        bad: Copies,
        vbn: u64,
        data: &Slice,
        pin: &Pin,
        watch: &ScrubWatch,
        place: impl Fn() -> Place,
    ) {
        for (d, at) in bad {
            let mended = self.mend(&d, at, data, pin).await;
            let done = if mended { "mended" } else { "not mended" };
            let text = format!("copy on device {} at block {at} was damaged: {done}", d.number);
            watch.find(place(), vbn, text);
        }
    }

    async fn scrub_meta(
        &self,
        ptr: NodePtr,
        kind: PageKind,
        watch: &ScrubWatch,
        (whose, place): (Option<&Dataset>, impl Fn() -> Place),
    ) -> Option<Rc<Block>> {
        let pin = self.pins.pin();
        let tag = self.tag;
        let good = |b: &Slice| ptr.verify(&block_of(b), tag, kind).is_ok();
        let found = self.scrub_copies((ptr.vbn, ptr.crc), &pin, good, watch, (whose, place)).await;
        if found.is_lost && self.cached(&ptr).is_some() {
            // Nobody reads it from the devices while it is in memory.
            self.found_bad(&found.bad, ptr.crc, whose, true);
        }
        let page = self.meta(&ptr, kind).await.ok();
        if page.is_none() {
            watch.leave_out();
        }
        page
    }

    async fn scrub_dataset(
        self: &Rc<Self>,
        ds: &Rc<Dataset>,
        whole: &mut Whole,
        pace: &mut Pace,
    ) -> IoResult {
        let shared = match has(Bug::DeletedIsRead) {
            true => self.shared_epoch(ds, if ds.epoch > 0 { ds.epoch } else { u32::MAX }),
            false => {
                // Of what is left of a deleted one the rest may be somebody else's by now.
                let own = self.own_after(ds).filter(|_| !has(Bug::GarbageIsFollowed));
                whole.shared(&self.datasets.borrow(), ds).max(own.unwrap_or(0))
            }
        };
        let root = bottom(&ds.top.below.borrow());
        if !root.ptr.is_none() {
            self.scrub_node(ds, root.ptr, root.height, 0, shared, pace).await?;
        }
        if ds.kind == Kind::Snapshot && !ds.is_stale() {
            whole.0.insert(ds.id, (ds.parent.get(), ds.epoch));
        }
        Ok(())
    }

    /// Follows the dead lists as they are when it begins. While it pauses nothing holds a page of them where it is.
    async fn scrub_lists(&self, pace: &mut Pace) -> IoResult {
        let heads = |d: &Rc<Dataset>| (self.marks.mark(d.dead.get().0), d.clone());
        let lists: Vec<_> = self.datasets.borrow().values().map(heads).collect();
        for (mut mark, who) in lists {
            // No list is longer, also when somebody has made it lead back to itself.
            let mut left = self.space.borrow().total();
            while left > 0 && !mark.at().is_none() {
                left -= 1;
                pace.step().await;
                self.check_running()?;
                let _pin = self.pins.pin();
                if !mark.stands() {
                    // It is being given back from its newest page on, and so is the rest.
                    break;
                }
                let place = (Some(&*who), || Place::of(&who, "dead list".into()));
                let page = self.scrub_meta(mark.at(), PageKind::Dead, &pace.watch, place).await;
                let older = page.and_then(|b| dead::decode(&b).ok());
                if older.is_none() {
                    pace.watch.leave_out();
                }
                mark.go_on(older.map_or(NodePtr::NONE, |(older, _)| older));
            }
        }
        Ok(())
    }

    async fn scrub_table(&self, pace: &mut Pace) -> IoResult {
        let table = self.ckpt.table.borrow().clone();
        for (ptr, kind) in table {
            pace.step().await;
            let _pin = self.pins.pin();
            if self.ckpt.table.borrow().contains(&(ptr, kind)) {
                let place = (None, || Place::from("table of volumes and snapshots"));
                self.scrub_meta(ptr, kind, &pace.watch, place).await;
            }
        }
        Ok(())
    }

    fn scrub_node<'a>(
        self: &'a Rc<Self>,
        ds: &'a Rc<Dataset>,
        ptr: NodePtr,
        level: u8,
        index: u64,
        shared: u32,
        pace: &'a mut Pace,
    ) -> LocalFuture<'a, IoResult> {
        Box::pin(async move {
            if ptr.birth <= shared {
                return Ok(());
            }
            pace.step().await;
            self.check_running()?;
            let kind = if level == 0 { PageKind::Leaf } else { PageKind::Inner };
            let pin = self.pins.pin();
            if ds.is_stale() {
                return Ok(());
            }
            // A checkpoint may have moved it meanwhile, and another block may be where it was.
            let Ok(ptr) = self.pointer_now(ds, level, index).await else {
                pace.watch.leave_out();
                return Ok(());
            };
            let Some(ptr) = ptr else { return Ok(()) };
            let layer = || format!("map, level {level}, node {index}");
            let place = (Some(&**ds), || Place::of(ds, layer()));
            let node = self.scrub_meta(ptr, kind, &pace.watch, place).await;
            let Some(node) = node else { return Ok(()) };
            drop(pin);
            if level > 0 {
                for k in 0..FANOUT {
                    let Ok(p) = tree::pointer(&node, k) else {
                        pace.watch.leave_out();
                        continue;
                    };
                    if !p.is_none() {
                        let at = index * FANOUT as u64 + k as u64;
                        self.scrub_node(ds, p, level - 1, at, shared, pace).await?;
                    }
                }
                return Ok(());
            }
            for k in 0..LEAF {
                let e = tree::entry(&node, k);
                if (e.is_data() || e.is_poison()) && e.birth > shared {
                    pace.step().await;
                    let lba = index * LEAF as u64 + k as u64;
                    self.scrub_block(ds, lba, e.vbn, &pace.watch).await;
                }
            }
            Ok(())
        })
    }

    /// The pointer to a node of a dataset's map, as it is now.
    async fn pointer_now(&self, ds: &Dataset, level: u8, index: u64) -> IoResult<Option<NodePtr>> {
        let root = bottom(&ds.top.below.borrow());
        self.pointer_in(root, ds.family, level, index).await
    }

    /// The pointer to a node of a map; `None`: the map has no such node.
    pub(super) async fn pointer_in(
        &self,
        root: MapRoot,
        family: u32,
        level: u8,
        index: u64,
    ) -> IoResult<Option<NodePtr>> {
        let Some(lba) = index.checked_mul(tree::span(level)) else { return Ok(None) };
        let (mut ptr, mut at) = (root.ptr, root.height);
        if at < level || lba >= tree::span(at) {
            return Ok(None);
        }
        while at > level && !ptr.is_none() {
            let node = self.map_node(&ptr, family, at, lba / tree::span(at)).await?;
            at -= 1;
            let i = (lba / tree::span(at)) % FANOUT as u64;
            ptr = tree::pointer(&node, i as usize).map_err(|_| IoError::Medium)?;
        }
        Ok((!ptr.is_none()).then_some(ptr))
    }

    /// Verifies the copies of a block, if the map still says what it did.
    async fn scrub_block(
        self: &Rc<Self>,
        ds: &Rc<Dataset>,
        lba: u64,
        vbn: u64,
        watch: &ScrubWatch,
    ) {
        let pin = self.pins.pin();
        if ds.is_stale() {
            return;
        }
        let Ok(e) = self.entry(&pin, ds, lba).await else { return watch.leave_out() };
        if e.vbn != vbn {
            return;
        }
        let layer = || format!("data at byte {}", lba * BLOCK as u64);
        let is_told = told_of(ds).is_some();
        if e.is_poison() && !is_told {
            return;
        }
        if e.is_poison() {
            drop(pin);
            if self.heal(ds, lba, &Slice::heap(BLOCK), false).await == Err(IoError::Medium) {
                self.count(|c| c.lost += 1);
                watch.find(Place::of(ds, layer()), e.vbn, "it was lost before".into());
            }
            return;
        }
        let id = self.identity(ds.family, lba, e.birth, e.vbn);
        let good = |b: &Slice| self.proves(&id, e.crc, b, 0);
        let place = (Some(&**ds), || Place::of(ds, layer()));
        let found = self.scrub_copies((vbn, e.crc.into()), &pin, good, watch, place).await;
        drop(pin);
        if !found.bad.is_empty() && is_told {
            // It is lost; the volume learns that in the same way as from a read.
            let _ = self.heal(ds, lba, &Slice::heap(BLOCK), false).await;
        }
    }

    async fn scrub_slabs(&self, pace: &mut Pace) -> IoResult {
        let shift = self.space.borrow().shift;
        let slabs = self.space.borrow().slabs.len();
        for s in 0..slabs {
            pace.step().await;
            let of = |i: &Inner| {
                let space = i.space.borrow();
                let slab = &space.slabs[s];
                slab.which.map(|w| (w, slab.crc, slab.birth))
            };
            // A second checkpoint would write this place anew; it waits for readers.
            let _pin = self.pins.pin();
            let Some((which, crc, birth)) = of(self) else { continue };
            let first = ((s as u64) << shift) + u64::from(which) * meta_pages(shift);
            let ptr = NodePtr { vbn: first, birth, max_birth: birth, crc };
            let (w, layer) = (pace.watch.clone(), format!("metadata of slab {s}"));
            let place = (None, || Place::from(&*layer));
            let Some(b) = self.scrub_meta(ptr, PageKind::SlabMeta, &w, place).await else {
                continue;
            };
            let Ok(head) = SlabHead::decode(&b, shift) else {
                w.leave_out();
                continue;
            };
            for k in 0..bitmap_pages(shift) {
                let crc = head.bitmaps[k as usize];
                let vbn = first + 1 + k;
                let ptr = NodePtr { vbn, birth, max_birth: birth, crc };
                let layer = format!("bitmap of slab {s}");
                let place = (None, || Place::from(&*layer));
                self.scrub_meta(ptr, PageKind::Bitmap, &w, place).await;
            }
        }
        Ok(())
    }

    /// Labels and superblocks are put right from what is known. The table of slabs has no copies to compare on the same
    /// device: a checkpoint writes it anew.
    async fn scrub_super(self: &Rc<Self>, watch: &Rc<ScrubWatch>) -> IoResult {
        self.to_the_end_alone(self.clone().mend_labels(Some(watch.clone()))).await;
        self.to_the_end(self.clone().scrub_rings(watch.clone())).await;
        // Both places of the table of slabs.
        self.checkpoint_now().await?;
        self.checkpoint_now().await
    }
}

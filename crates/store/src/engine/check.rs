//! The offline verifier: reads everything, writes nothing, unless it is to give back blocks that nothing refers to.
//!
//! It follows every map and list from the superblock and sees to it that every copy of every block is what
//! its parent says, that children are not younger than parents, and that the bitmaps have exactly the
//! blocks that something refers to.

use super::dataset::Dataset;
use super::open::{Options, assemble};
use super::{Inner, Pool, StoreResult, block_of};
use crate::format::dataset::{Kind, MapRoot};
use crate::format::dead;
use crate::format::page::{FANOUT, Header, NodePtr, PageKind};
use crate::format::slab::{self, bitmap_pages, meta_pages};
use crate::format::tree::{self, LEAF, MapEntry, span};
use crate::format::{BLOCK, Block};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use weir_base::IoResult;
use weir_disk::Disk;
use weir_mem::Slice;
use weir_reactor::LocalFuture;

/// A block that is in use by the bitmap only: it is lost to everybody until it is given back.
const LEAK: &str = "in use, but nothing refers to it";
/// Findings of this kind concern one copy of a block of several.
const COPY: &str = "copy on ";

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it concerns: a dataset, a table, a bitmap.
    pub layer: String,
    /// The pool's block, 0 for none in particular.
    pub vbn: u64,
    /// What is wrong.
    pub what: String,
    /// The volume or snapshot that it is of, as it is called on the devices, if a scrub found it.
    pub whose: Option<String>,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// All that is wrong.
    pub findings: Vec<Finding>,
    /// Copies of blocks read and verified.
    pub copies: u64,
    /// Blocks that something refers to.
    pub blocks: u64,
    /// Volumes and snapshots.
    pub datasets: u64,
}

impl Report {
    /// Findings about the structure, not about damage of single copies.
    pub fn structural(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|f| !f.what.starts_with(COPY))
    }

    /// Blocks that are in use though nothing refers to them.
    pub fn leaks(&self) -> impl Iterator<Item = u64> {
        self.findings.iter().filter(|f| f.what == LEAK).map(|f| f.vbn)
    }
}

/// What [`repair`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// How many blocks were given back.
    pub given_back: u64,
    /// What was found afterwards, or what kept it from giving blocks back.
    pub report: Report,
}

/// Verifies a pool that nobody serves.
///
/// # Errors
/// The pool cannot be opened at all.
pub async fn check(disks: Vec<Rc<dyn Disk>>, options: Options) -> StoreResult<Report> {
    check_watched(disks, options, Rc::default()).await
}

/// As [`check`]; `watch` shows copies of blocks read so far, and about how many there are in all.
///
/// # Errors
/// The pool cannot be opened at all.
pub async fn check_watched(
    disks: Vec<Rc<dyn Disk>>,
    options: Options,
    watch: Rc<Cell<(u64, u64)>>,
) -> StoreResult<Report> {
    let inner = assemble(disks, Options { read_only: true, ..options }, Rc::default()).await?;
    Ok(Check::all(inner, watch).await)
}

/// Gives blocks back that are in use though nothing refers to them. Nothing is given back when a map or a list cannot be
/// read or contradicts another one: what it would have referred to looks the same. Nobody else may use the pool meanwhile.
///
/// # Errors
/// The pool cannot be opened, or a checkpoint cannot be made.
pub async fn repair(
    disks: Vec<Rc<dyn Disk>>,
    options: Options,
    watch: Rc<Cell<(u64, u64)>>,
) -> StoreResult<Repair> {
    let pool = Pool::open(disks, options).await?;
    let inner = pool.0.clone();
    inner.end_upkeep().await;
    // All that the log had is in the maps then, and all that was deleted is given back.
    inner.checkpoint_now().await?;
    while inner.is_reaping() {
        inner.checkpoint_now().await?;
    }
    let mut report = Check::all(inner.clone(), watch.clone()).await;
    let leaks: Vec<u64> = report.leaks().collect();
    let mut given_back = 0;
    if !leaks.is_empty() && report.structural().count() == leaks.len() {
        given_back = leaks.len() as u64;
        let give = move |i: &Inner| {
            for vbn in leaks {
                i.space.borrow_mut().disk_clear(vbn);
                i.pending.borrow_mut().push(vbn);
            }
        };
        inner.ckpt.actions.borrow_mut().push(Box::new(give));
        inner.checkpoint_now().await?;
        report = Check::all(inner, watch).await;
    }
    pool.close().await?;
    Ok(Repair { given_back, report })
}

struct Check {
    i: Rc<Inner>,
    report: Report,
    /// Who refers to a block first.
    owners: BTreeMap<u64, String>,
    /// What the dataset that is looked at says that it has not any more.
    gone: BTreeSet<u64>,
    /// Copies read, and about how many there are.
    watch: Rc<Cell<(u64, u64)>>,
}

impl Check {
    /// Looks at everything that the newest checkpoint has.
    async fn all(i: Rc<Inner>, watch: Rc<Cell<(u64, u64)>>) -> Report {
        let used = i.space.borrow().total() - i.space.borrow().free();
        let copies = u64::from(i.durable.borrow().copies);
        watch.set((0, used.saturating_mul(copies)));
        let (report, owners) = (Report::default(), BTreeMap::new());
        let mut c = Check { i, report, owners, gone: BTreeSet::new(), watch };
        c.run().await;
        c.report
    }

    fn find(&mut self, layer: &str, vbn: u64, what: impl Into<String>) {
        let (layer, what) = (layer.to_string(), what.into());
        self.report.findings.push(Finding { layer, vbn, what, whose: None });
    }

    /// Notes that something refers to a block. False when that was known.
    fn refer(&mut self, vbn: u64, who: &str) -> bool {
        if !self.i.space.borrow().is_place(vbn) {
            self.find(who, vbn, "refers to a block that is no place");
            return false;
        }
        self.owners.insert(vbn, who.to_string()).is_none()
    }

    /// Notes that the map of a dataset has a block.
    fn has(&mut self, vbn: u64, who: &str) {
        if self.gone.contains(&vbn) {
            self.find(who, vbn, "is on its own dead list, and in use");
        }
    }

    /// Reads every current copy; returns one that is good.
    async fn copies(
        &mut self,
        vbn: u64,
        who: &str,
        good: impl Fn(&Slice) -> bool,
    ) -> Option<Slice> {
        let mut found = None;
        for (d, at) in self.i.copies_of(vbn).into_iter().flatten() {
            if !d.is_current() {
                continue;
            }
            let buf = Slice::heap(BLOCK);
            let read: IoResult = d.read(at, &buf, self.i.options.deadline).await;
            self.report.copies += 1;
            self.watch.set((self.report.copies, self.watch.get().1));
            match read {
                Ok(()) if good(&buf) => {
                    found.get_or_insert(buf);
                }
                Ok(()) => {
                    let text = format!("{COPY}device {} at block {at} is damaged", d.number);
                    self.find(who, vbn, text);
                }
                Err(e) => {
                    let text = format!("{COPY}device {} at block {at}: {e}", d.number);
                    self.find(who, vbn, text);
                }
            }
        }
        if found.is_none() {
            self.find(who, vbn, "no good copy");
        }
        found
    }

    async fn node(&mut self, ptr: &NodePtr, kind: PageKind, who: &str) -> Option<Box<Block>> {
        let (tag, p) = (self.i.tag, *ptr);
        let good = move |b: &Slice| p.verify(&block_of(b), tag, kind).is_ok();
        self.copies(ptr.vbn, who, good).await.map(|b| block_of(&b))
    }

    async fn run(&mut self) {
        let i = self.i.clone();
        let epoch = i.durable.borrow().epoch;
        let table = i.ckpt.table.borrow().clone();
        for (ptr, _) in table {
            self.refer(ptr.vbn, "table of datasets");
        }
        let all: Vec<Rc<Dataset>> = i.datasets.borrow().values().cloned().collect();
        self.report.datasets = all.len() as u64;
        let mut dead: BTreeMap<u64, String> = BTreeMap::new();
        for ds in &all {
            let who = format!("dataset {}", ds.id);
            let super::stage::Below::Root(root, mapped) = ds.top.below.borrow().clone() else {
                continue;
            };
            self.gone = self.gone_from(ds).await;
            let mut seen = 0;
            let floor = i.own_after(ds).unwrap_or(0);
            // What a snapshot that is being deleted leads to may be somebody else's by now; what is left of it is on its list.
            let looked_at = !ds.is_stale();
            if looked_at {
                self.tree(ds, root, floor, epoch, &mut seen, &who).await;
            }
            if looked_at && ds.kind != Kind::Garbage && seen != mapped {
                self.find(&who, 0, format!("has {seen} blocks of data, its record says {mapped}"));
            }
            self.list(ds, &mut dead, &who).await;
        }
        for (vbn, who) in &dead {
            self.refer(*vbn, who);
        }
        self.bitmaps().await;
        self.report.blocks = self.owners.len() as u64;
    }

    async fn tree(
        &mut self,
        ds: &Dataset,
        root: MapRoot,
        floor: u32,
        epoch: u32,
        seen: &mut u64,
        who: &str,
    ) {
        if !root.ptr.is_none() {
            self.walk(ds.family, root.ptr, root.height, 0, floor, epoch, seen, who).await;
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn walk<'a>(
        &'a mut self,
        family: u32,
        ptr: NodePtr,
        level: u8,
        index: u64,
        floor: u32,
        parent: u32,
        seen: &'a mut u64,
        who: &'a str,
    ) -> LocalFuture<'a, ()> {
        Box::pin(async move {
            if ptr.birth <= floor {
                return;
            }
            if ptr.birth > parent {
                self.find(who, ptr.vbn, format!("born in {}, its parent in {parent}", ptr.birth));
            }
            let new = self.refer(ptr.vbn, who);
            self.has(ptr.vbn, who);
            let kind = if level == 0 { PageKind::Leaf } else { PageKind::Inner };
            let node = match new {
                true => self.node(&ptr, kind, who).await,
                false => match self.i.map_node(&ptr, family, level, index).await {
                    Ok(b) => Some(Box::new(*b)),
                    Err(_) => None,
                },
            };
            let Some(b) = node else { return };
            let place = Header::get(&b)
                .is_ok_and(|h| (h.owner, h.level, h.index) == (u64::from(family), level, index));
            if !place {
                self.find(who, ptr.vbn, "is a node of another place");
                return;
            }
            if level > 0 {
                for k in 0..FANOUT {
                    match tree::pointer(&b, k) {
                        Ok(p) if p.is_none() => {}
                        Ok(p) => {
                            let at = index * FANOUT as u64 + k as u64;
                            self.walk(family, p, level - 1, at, floor, ptr.birth, seen, who).await;
                        }
                        Err(e) => self.find(who, ptr.vbn, e.to_string()),
                    }
                }
                return;
            }
            if let Err(e) = tree::check_leaf(&b, ptr.max_birth) {
                self.find(who, ptr.vbn, e.to_string());
                return;
            }
            for k in 0..LEAF {
                let e = tree::entry(&b, k);
                if e.is_data() {
                    *seen += 1;
                    if e.birth > floor {
                        self.data(family, index * span(0) + k as u64, e, new, who).await;
                    }
                }
            }
        })
    }

    async fn data(&mut self, family: u32, lba: u64, e: MapEntry, new: bool, who: &str) {
        if new && self.owners.get(&e.vbn).is_some_and(|o| o == who) {
            // It may be a snapshot's too, but in one map a block has one address.
            self.find(who, e.vbn, format!("is used twice, the second time for block {lba}"));
        }
        let first = self.refer(e.vbn, who);
        self.has(e.vbn, who);
        if first && self.i.space.borrow().is_place(e.vbn) {
            let id = self.i.identity(family, lba, e.birth, e.vbn);
            let i = self.i.clone();
            self.copies(e.vbn, who, |b| i.proves(&id, e.crc, b, 0)).await;
        }
    }

    /// What is on the dead list of a dataset, as far as it can be read. One that is being deleted has taken over another's.
    async fn gone_from(&self, ds: &Dataset) -> BTreeSet<u64> {
        let (mut ptr, _) = ds.dead.get();
        let mut gone = BTreeSet::new();
        // No list is longer, also when it leads back to itself.
        let mut left = self.i.space.borrow().total();
        while !ds.deleting.get() && !ptr.is_none() && left > 0 {
            left -= 1;
            let page = self.i.meta(&ptr, PageKind::Dead).await;
            let Some((older, list)) = page.ok().and_then(|b| dead::decode(&b).ok()) else { break };
            gone.extend(list.into_iter().map(|(vbn, _)| vbn));
            ptr = older;
        }
        gone
    }

    async fn list(&mut self, ds: &Dataset, all: &mut BTreeMap<u64, String>, who: &str) {
        let (mut ptr, count) = ds.dead.get();
        let who = format!("dead list of {who}");
        let mut n = 0;
        while !ptr.is_none() {
            if !self.refer(ptr.vbn, &who) {
                // Whatever it leads to has been seen, or leads back here.
                self.find(&who, ptr.vbn, "is in use as something else, too");
                return;
            }
            let Some(b) = self.node(&ptr, PageKind::Dead, &who).await else { return };
            let Ok((older, list)) = dead::decode(&b) else {
                self.find(&who, ptr.vbn, "makes no sense");
                return;
            };
            n += list.len() as u64;
            for (vbn, birth) in list.into_iter().filter(|_| ds.kind != Kind::Garbage) {
                if birth > ptr.birth {
                    self.find(&who, vbn, format!("born in {birth}, on a list since {}", ptr.birth));
                }
                if let Some(other) = all.insert(vbn, who.clone()) {
                    self.find(&who, vbn, format!("is on the {other}, too"));
                }
            }
            ptr = older;
        }
        if n != count {
            self.find(&who, 0, format!("has {n} blocks, its record says {count}"));
        }
    }

    async fn bitmaps(&mut self) {
        let i = self.i.clone();
        let shift = i.space.borrow().shift;
        let slabs = i.space.borrow().slabs.len();
        let referred: BTreeSet<u64> = self.owners.keys().copied().collect();
        for s in 0..slabs {
            let first = (s as u64) << shift;
            let which = i.space.borrow().slabs[s].which;
            if let Some(which) = which {
                let at = first + u64::from(which) * meta_pages(shift);
                let crc = i.space.borrow().slabs[s].crc;
                let birth = i.space.borrow().slabs[s].birth;
                let ptr = NodePtr { vbn: at, birth, max_birth: birth, crc };
                let who = format!("metadata of slab {s}");
                if let Some(head) = self.node(&ptr, PageKind::SlabMeta, &who).await
                    && let Ok(head) = slab::SlabHead::decode(&head, shift)
                {
                    for k in 0..bitmap_pages(shift) {
                        let crc = head.bitmaps[k as usize];
                        let p = NodePtr { vbn: at + 1 + k, birth, max_birth: birth, crc };
                        self.node(&p, PageKind::Bitmap, &who).await;
                    }
                }
            }
            for vbn in first + slab::reserved(shift)..first + (1 << shift) {
                let (on_disk, used) = (i.space.borrow().is_on_disk(vbn), referred.contains(&vbn));
                if on_disk && !used {
                    self.find("bitmap", vbn, LEAK);
                } else if used && !on_disk {
                    let who = self.owners.get(&vbn).cloned().unwrap_or_default();
                    self.find("bitmap", vbn, format!("free, but {who} refers to it"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PoolSpec, create};
    use super::*;
    use weir_base::SECONDS;
    use weir_block::Volume;
    use weir_sim::{DiskConfig, Node, SimMedium, World};

    const LIMIT: u64 = 100 * SECONDS;
    const MIB: u64 = 1 << 20;

    fn disks(n: &Node) -> Vec<Rc<dyn Disk>> {
        ["a", "b"].map(|d| n.disk(d) as Rc<dyn Disk>).to_vec()
    }

    /// A pool of two copies with a volume that has 64 blocks, and three blocks that are in use for nothing.
    fn leaking() -> (World, Node, Vec<SimMedium>) {
        let w = World::new(11);
        let n = w.node("store");
        let media: Vec<_> =
            ["a", "b"].map(|d| SimMedium::new(d, 8 * MIB, DiskConfig::default(), 3)).into();
        media.iter().for_each(|m| n.attach(m));
        let there = disks(&n);
        w.run(&n, LIMIT, async move {
            let spec = PoolSpec { slab_shift: 8, log_pages: 64, ..PoolSpec::fitting(5, 2, 0) };
            create(&there, &spec).await.unwrap();
            let p = Pool::open(there, Options::default()).await.unwrap();
            let id = p.create_volume("v", MIB, 4096).await.unwrap();
            let v = p.volume(id).unwrap();
            let data = Slice::heap(64 * BLOCK);
            data.fill(7);
            v.write(0, data, false).await.unwrap();
            let leak = |i: &Inner| {
                let mut space = i.space.borrow_mut();
                let free: Vec<u64> =
                    (0..space.total()).filter(|v| space.is_place(*v)).rev().take(3).collect();
                for vbn in free {
                    assert!(space.take(vbn));
                    space.disk_set(vbn, i.epoch.get());
                }
            };
            p.0.ckpt.actions.borrow_mut().push(Box::new(leak));
            p.close().await.unwrap();
        })
        .expect("it ends");
        n.kill();
        n.restart();
        (w, n, media)
    }

    #[test]
    fn what_nothing_refers_to_is_given_back_and_stays_so() {
        let (w, n, _media) = leaking();
        let found = {
            let there = disks(&n);
            w.run(&n, LIMIT, async move { check(there, Options::default()).await })
                .unwrap()
                .unwrap()
        };
        assert_eq!(found.leaks().count(), 3, "{:?}", found.findings);
        let there = disks(&n);
        let done =
            w.run(&n, LIMIT, async move { repair(there, Options::default(), Rc::default()).await });
        let done = done.unwrap().unwrap();
        assert_eq!((done.given_back, done.report.findings), (3, vec![]));
        n.kill();
        n.restart();
        let there = disks(&n);
        w.run(&n, LIMIT, async move {
            let p = Pool::open(there, Options::default()).await.unwrap();
            let id = p.datasets().iter().find(|d| d.name == "v").unwrap().id;
            let (v, buf) = (p.volume(id).unwrap(), Slice::heap(64 * BLOCK));
            v.read(0, buf.clone()).await.unwrap();
            assert!(buf.to_vec().iter().all(|b| *b == 7));
            p.close().await.unwrap();
        })
        .expect("it ends");
        let there = disks(&n);
        let after = w.run(&n, LIMIT, async move { check(there, Options::default()).await });
        assert_eq!(after.unwrap().unwrap().findings, []);
    }

    #[test]
    fn nothing_is_given_back_while_a_map_cannot_be_read() {
        let (w, n, media) = leaking();
        // The only map node of the volume, on both devices.
        let there = disks(&n);
        let places = w.run(&n, LIMIT, async move {
            let i =
                assemble(there, Options { read_only: true, ..Options::default() }, Rc::default())
                    .await
                    .unwrap();
            let ds =
                i.datasets.borrow().values().find(|d| d.kind == Kind::Volume).cloned().unwrap();
            let super::super::stage::Below::Root(root, _) = ds.top.below.borrow().clone() else {
                unreachable!("nothing was written since the checkpoint")
            };
            i.copies_of(root.ptr.vbn).into_iter().flatten().map(|(_, at)| at).collect::<Vec<_>>()
        });
        for (m, at) in media.iter().zip(places.expect("it ends")) {
            m.rot(at * BLOCK as u64, BLOCK, 8);
        }
        let there = disks(&n);
        let done =
            w.run(&n, LIMIT, async move { repair(there, Options::default(), Rc::default()).await });
        let done = done.unwrap().unwrap();
        assert_eq!(done.given_back, 0, "its data looks leaked, too");
        assert!(done.report.leaks().count() > 3);
        assert!(done.report.findings.iter().any(|f| f.what == "no good copy"));
    }
}

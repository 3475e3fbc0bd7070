//! The offline verifier: reads everything, writes nothing.
//!
//! It follows every map and list from the superblock and sees to it that every copy of every block is what
//! its parent says, that children are not younger than parents, and that the bitmaps have exactly the
//! blocks that something refers to.

use super::dataset::Dataset;
use super::open::{Options, assemble};
use super::{Inner, StoreResult, block_of};
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

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it concerns: a dataset, a table, a bitmap.
    pub layer: String,
    /// The pool's block, 0 for none in particular.
    pub vbn: u64,
    /// What is wrong.
    pub what: String,
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
        self.findings.iter().filter(|f| !f.what.starts_with("copy on "))
    }
}

/// Verifies a pool that nobody serves.
///
/// # Errors
/// The pool cannot be opened at all.
pub async fn check(disks: Vec<Rc<dyn Disk>>, options: Options) -> StoreResult<Report> {
    check_watched(disks, options, Rc::default()).await
}

/// As [`check`]; `watch` shows copies of blocks read so far, and how many blocks are in use in all.
///
/// # Errors
/// The pool cannot be opened at all.
pub async fn check_watched(
    disks: Vec<Rc<dyn Disk>>,
    options: Options,
    watch: Rc<Cell<(u64, u64)>>,
) -> StoreResult<Report> {
    let inner = assemble(disks, Options { read_only: true, ..options }).await?;
    let used = {
        let space = inner.space.borrow();
        space.total() - space.free()
    };
    watch.set((0, used));
    let mut c = Check { i: inner, report: Report::default(), owners: BTreeMap::new(), watch };
    c.run().await;
    Ok(c.report)
}

struct Check {
    i: Rc<Inner>,
    report: Report,
    /// Who refers to a block first.
    owners: BTreeMap<u64, String>,
    /// Copies read, and blocks in use.
    watch: Rc<Cell<(u64, u64)>>,
}

impl Check {
    fn find(&mut self, layer: &str, vbn: u64, what: impl Into<String>) {
        self.report.findings.push(Finding { layer: layer.to_string(), vbn, what: what.into() });
    }

    /// Notes that something refers to a block. False when that was known.
    fn refer(&mut self, vbn: u64, who: &str) -> bool {
        if !self.i.space.borrow().is_place(vbn) {
            self.find(who, vbn, "refers to a block that is no place");
            return false;
        }
        self.owners.insert(vbn, who.to_string()).is_none()
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
                    let text = format!("copy on device {} at block {at} is damaged", d.number);
                    self.find(who, vbn, text);
                }
                Err(e) => {
                    let text = format!("copy on device {} at block {at}: {e}", d.number);
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
            let shared = i.shared_epoch(ds, u32::MAX);
            let mut seen = 0;
            let floor = if ds.kind == Kind::Garbage { shared } else { 0 };
            self.tree(ds, root, floor, epoch, &mut seen, &who).await;
            if ds.kind != Kind::Garbage && seen != mapped {
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
        if first && self.i.space.borrow().is_place(e.vbn) {
            let id = self.i.identity(family, lba, e.birth, e.vbn);
            let i = self.i.clone();
            self.copies(e.vbn, who, |b| i.proves(&id, e.crc, b, 0)).await;
        }
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
                    self.find("bitmap", vbn, "in use, but nothing refers to it");
                } else if used && !on_disk {
                    let who = self.owners.get(&vbn).cloned().unwrap_or_default();
                    self.find("bitmap", vbn, format!("free, but {who} refers to it"));
                }
            }
        }
    }
}

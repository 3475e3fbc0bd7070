//! Scrub: every copy of every block is read and verified, and mended where it is damaged.

use super::dataset::Dataset;
use super::stage::Below;
use super::{Inner, Pool, StoreResult, block_of};
use crate::format::dataset::MapRoot;
use crate::format::dead;
use crate::format::page::{FANOUT, NodePtr, PageKind};
use crate::format::slab::{SlabHead, bitmap_pages, meta_pages};
use crate::format::tree::{self, LEAF};
use crate::format::{BLOCK, Block};
use std::rc::Rc;
use weir_base::{IoError, IoResult, SECONDS};
use weir_mem::Slice;
use weir_reactor::{LocalFuture, sleep};

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

/// How fast, and how far it is.
struct Pace {
    /// Blocks a second; 0 for as fast as possible.
    rate: u64,
    blocks: u64,
}

impl Pace {
    async fn step(&mut self) {
        self.blocks += 1;
        if let Some(pause) = SECONDS.checked_div(self.rate) {
            sleep(pause).await;
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
        let i = &self.0;
        let before = self.counters();
        // Everything that is there now gets its place in a map.
        i.checkpoint_now().await?;
        let mut pace = Pace { rate, blocks: 0 };
        let ids: Vec<u32> = i.datasets.borrow().keys().copied().collect();
        for id in ids {
            let Some(ds) = i.datasets.borrow().get(&id).cloned() else { continue };
            i.scrub_dataset(&ds, &mut pace).await?;
        }
        i.scrub_slabs(&mut pace).await?;
        i.scrub_super().await?;
        let now = self.counters();
        Ok(ScrubReport {
            blocks: pace.blocks,
            damaged: now.damaged - before.damaged,
            repaired: now.repaired - before.repaired,
            lost: now.lost - before.lost,
        })
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
    /// Reads every current copy of a block and mends those that `good` does not like.
    pub(crate) async fn scrub_copies(&self, vbn: u64, good: impl Fn(&Slice) -> bool) -> bool {
        let (mut bad, mut data) = (Vec::new(), None);
        for (d, at) in self.copies_of(vbn).into_iter().flatten() {
            if !d.is_current() {
                continue;
            }
            let buf = Slice::heap(BLOCK);
            match d.read(at, &buf, self.options.deadline).await {
                Ok(()) if good(&buf) => {
                    data.get_or_insert(buf);
                }
                Err(IoError::Offline) => self.device_failed(&d, IoError::Offline),
                _ => bad.push((d, at)),
            }
        }
        let Some(data) = data else { return bad.is_empty() };
        self.count(|c| c.damaged += bad.len() as u64);
        for (d, at) in bad {
            self.mend(&d, at, &data).await;
        }
        true
    }

    async fn scrub_meta(&self, ptr: NodePtr, kind: PageKind) -> Option<Rc<Block>> {
        let _pin = self.pins.pin();
        let tag = self.tag;
        self.scrub_copies(ptr.vbn, |b| ptr.verify(&block_of(b), tag, kind).is_ok()).await;
        self.meta(&ptr, kind).await.ok()
    }

    async fn scrub_dataset(self: &Rc<Self>, ds: &Rc<Dataset>, pace: &mut Pace) -> IoResult {
        // What is shared with an older snapshot is read there.
        let shared = self.shared_epoch(ds, if ds.epoch > 0 { ds.epoch } else { u32::MAX });
        let root = bottom(&ds.top.below.borrow());
        if !root.ptr.is_none() {
            self.scrub_node(ds, root.ptr, root.height, 0, shared, pace).await?;
        }
        // Pages of the list stay where they are while somebody reads.
        let _pin = self.pins.pin();
        let mut ptr = ds.dead.get().0;
        while !ptr.is_none() {
            pace.step().await;
            let page = self.scrub_meta(ptr, PageKind::Dead).await;
            ptr = page.and_then(|b| dead::decode(&b).ok()).map_or(NodePtr::NONE, |(p, _)| p);
        }
        let table = self.ckpt.table.borrow().clone();
        for vbn in table {
            let good =
                |b: &Slice| crate::format::page::open(&block_of(b)).is_ok_and(|h| h.vbn == vbn);
            let _pin = self.pins.pin();
            if self.ckpt.table.borrow().contains(&vbn) {
                self.scrub_copies(vbn, good).await;
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
            // A checkpoint may have moved it meanwhile, and another block may be where it was.
            let Some(ptr) = self.pointer_now(ds, level, index).await else { return Ok(()) };
            let Some(node) = self.scrub_meta(ptr, kind).await else { return Ok(()) };
            drop(pin);
            if level > 0 {
                for k in 0..FANOUT {
                    if let Ok(p) = tree::pointer(&node, k)
                        && !p.is_none()
                    {
                        let at = index * FANOUT as u64 + k as u64;
                        self.scrub_node(ds, p, level - 1, at, shared, pace).await?;
                    }
                }
                return Ok(());
            }
            for k in 0..LEAF {
                let e = tree::entry(&node, k);
                if e.is_data() && e.birth > shared {
                    pace.step().await;
                    self.scrub_block(ds, index * LEAF as u64 + k as u64, e.vbn).await;
                }
            }
            Ok(())
        })
    }

    /// The pointer to a node of a dataset's map, as it is now.
    async fn pointer_now(&self, ds: &Dataset, level: u8, index: u64) -> Option<NodePtr> {
        let root = bottom(&ds.top.below.borrow());
        self.pointer_in(root, ds.family, level, index).await.ok().flatten()
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
    async fn scrub_block(self: &Rc<Self>, ds: &Rc<Dataset>, lba: u64, vbn: u64) {
        let pin = self.pins.pin();
        let Ok(e) = self.entry(ds, lba).await else { return };
        if e.vbn != vbn || !e.is_data() {
            return;
        }
        let id = self.identity(ds.family, lba, e.birth, e.vbn);
        let good = |b: &Slice| super::slice_crc(&id, b, 0) == e.crc;
        let found = self.scrub_copies(vbn, good).await;
        drop(pin);
        if !found {
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
            let Some(b) = self.scrub_meta(ptr, PageKind::SlabMeta).await else { continue };
            let Ok(head) = SlabHead::decode(&b, shift) else { continue };
            for k in 0..bitmap_pages(shift) {
                let crc = head.bitmaps[k as usize];
                let vbn = first + 1 + k;
                self.scrub_meta(NodePtr { vbn, birth, max_birth: birth, crc }, PageKind::Bitmap)
                    .await;
            }
        }
        Ok(())
    }

    /// Labels, superblocks and the table of slabs have no copies to compare on the same device: a checkpoint
    /// writes them anew, labels are put right from what is known.
    async fn scrub_super(&self) -> IoResult {
        for d in self.current_devices() {
            for copy in 0..4u8 {
                let label = crate::format::label::Label {
                    pool: self.pool,
                    device: d.id,
                    layout: d.layout,
                    incompat: 0,
                    compat: 0,
                    copy,
                };
                let at = d.layout.label(u64::from(copy));
                let want = Slice::copy_of(&label.encode()[..]);
                let have = Slice::heap(BLOCK);
                let read = d.read(at, &have, self.options.deadline).await;
                if read.is_err() || have.to_vec() != want.to_vec() {
                    self.count(|c| c.damaged += 1);
                    self.mend(&d, at, &want).await;
                }
            }
        }
        // Both places of the table of slabs.
        self.checkpoint_now().await?;
        self.checkpoint_now().await
    }
}

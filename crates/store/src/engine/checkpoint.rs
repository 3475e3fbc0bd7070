//! Checkpoints: what is in memory becomes the state on disk, with one superblock.

use super::Inner;
use super::dataset::Dataset;
use super::device::Device;
use super::merge::Merge;
use super::meta::Batch;
use super::stage::Below;
use crate::format::blob::{self, DATASETS, SPACE};
use crate::format::dataset::{DatasetRecord, Kind, MapRoot, RECORD};
use crate::format::page::{FANOUT, Header, NodePtr, PAYLOAD, PageKind, seal};
use crate::format::slab::{self, REMAP, RemapRecord, SlabHead, bitmap_pages};
use crate::format::superblock::{BlobRoot, LOG_COPIES, TableRoot};
use crate::format::{GIVEN_UP_SLABS, KEPT_LOG, LAST_EPOCH, page, tree, zeroed};
use crate::planted::{Bug, has};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_codec::crc64;
use weir_mem::Slice;
use weir_reactor::WaitChannel;

/// When checkpoints are made.
pub(crate) struct Control {
    wanted: Cell<u64>,
    started: Cell<u64>,
    /// Those that are durable: one that failed is none.
    done: Cell<u64>,
    work: WaitChannel,
    /// Signalled after each.
    pub(crate) over: WaitChannel,
    closed: Cell<bool>,
    /// The last one is about to be made: what is to be known by the next opening alone is not logged any more.
    pub(crate) closing: Cell<bool>,
    /// Nothing is written any more.
    ended: Cell<bool>,
    /// The task is there.
    pub(crate) running: Cell<bool>,
    /// Changes since the last cut, at most.
    pub(crate) entries: Cell<u64>,
    /// A superblock is on its way that names places of slabs which the one before does not know.
    pub(crate) telling: Cell<bool>,
    /// The epoch that the last cut ended.
    pub(crate) cut: Cell<u32>,
    /// Blocks of the table of datasets.
    pub(crate) table: RefCell<Vec<(NodePtr, PageKind)>>,
    /// Changes of the pool that belong to the next cut.
    pub(crate) actions: RefCell<Vec<Action>>,
}

/// A change of the pool's datasets or devices, made while no write is under way.
pub(crate) type Action = Box<dyn FnOnce(&Inner)>;

impl Default for Control {
    fn default() -> Self {
        Control {
            wanted: Cell::new(0),
            started: Cell::new(0),
            done: Cell::new(0),
            work: WaitChannel::new(0),
            over: WaitChannel::new(0),
            closed: Cell::new(false),
            closing: Cell::new(false),
            ended: Cell::new(false),
            running: Cell::new(false),
            entries: Cell::new(0),
            telling: Cell::new(false),
            cut: Cell::new(0),
            table: RefCell::default(),
            actions: RefCell::default(),
        }
    }
}

impl Control {
    /// A checkpoint is to be made soon; one that is under way will do.
    pub(crate) fn kick(&self) {
        self.want(self.done.get() + 1);
    }

    /// One is being made.
    pub(crate) fn is_busy(&self) -> bool {
        self.started.get() != self.done.get()
    }

    /// Lets the task look again.
    pub(crate) fn wake(&self) {
        self.work.signal();
    }

    fn want(&self, n: u64) {
        if n > self.wanted.get() {
            self.wanted.set(n);
            self.work.signal();
        }
    }

    /// None is under way or wanted.
    pub(crate) fn is_idle(&self) -> bool {
        self.done.get() == self.started.get() && self.done.get() >= self.wanted.get()
    }

    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.work.signal();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Whoever begins to write from here on is told that the pool is closed.
    pub(crate) fn end(&self) {
        self.ended.set(true);
    }

    #[inline]
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.get()
    }
}

/// The epoch after one that has ended. After the last one it goes on: an epoch tells what snapshots share, and what a device
/// that was away may miss, and where there is no new one, more of both is taken for shared and missed.
pub(crate) fn next_epoch(epoch: u32) -> u32 {
    if epoch < LAST_EPOCH { epoch + 1 } else { epoch }
}

/// What a cut leaves to a checkpoint.
struct Cut {
    epoch: u32,
    lsn: u64,
    chain: u64,
    pending: Vec<u64>,
    log_set: Vec<u16>,
}

impl Inner {
    /// Waits for a checkpoint that has everything that is there now. When this is well, that is durable.
    pub(crate) async fn checkpoint_now(&self) -> IoResult {
        let n = self.ckpt.started.get() + 1;
        self.ckpt.want(n);
        while self.ckpt.done.get() < n {
            self.check_running()?;
            if self.ckpt.closed.get() {
                return Err(IoError::Offline);
            }
            self.ckpt.over.wait().await;
        }
        Ok(())
    }

    /// The task that makes checkpoints.
    pub(crate) async fn checkpointer(self: Rc<Self>) {
        self.ckpt.running.set(true);
        loop {
            self.ckpt.work.wait().await;
            while self.ckpt.work.try_wait() {}
            if self.unrecorded() && self.suspended.get().is_none() {
                // A failure that no write has noticed; a new device for the log may be needed, too.
                let _ = self.record_membership().await;
                self.ckpt.kick();
            }
            let closed = || self.ckpt.is_closed() && !has(Bug::ClosedOnTheWay);
            let goes_on = || self.suspended.get().is_none() && !closed();
            while self.ckpt.done.get() < self.ckpt.wanted.get() && goes_on() {
                self.ckpt.started.set(self.ckpt.done.get() + 1);
                match self.run_checkpoint(|_| {}).await {
                    Ok(()) => self.ckpt.done.set(self.ckpt.started.get()),
                    Err(e) => {
                        self.suspend(e);
                        // Who waits for it must not be told that it was made.
                        match has(Bug::FailedIsMade) {
                            true => self.ckpt.done.set(self.ckpt.started.get()),
                            false => self.ckpt.started.set(self.ckpt.done.get()),
                        }
                    }
                }
                self.ckpt.over.signal_all();
                // A device that was to have the log may have failed when the devices for it were chosen.
                let lacks = !self.is_log_whole() && !has(Bug::LogOfThatCheckpoint);
                if self.is_reaping() || lacks {
                    self.ckpt.kick();
                }
            }
            if self.ckpt.closed.get() {
                self.ckpt.running.set(false);
                self.ckpt.over.signal_all();
                return;
            }
        }
    }

    /// Ends the epoch: everything acknowledged belongs to the checkpoint, everything later to the log.
    async fn cut(&self) -> Cut {
        let closed = self.gate.close().await;
        let epoch = self.epoch.get();
        self.epoch.set(next_epoch(epoch));
        self.ckpt.cut.set(epoch);
        // No write is under way, and the last checkpoint waited for all readers.
        self.space.borrow_mut().leaving.clear();
        for action in self.ckpt.actions.take() {
            action(self);
            self.upkeep.lists_change();
        }
        self.pass_on_dead();
        for ds in self.datasets.borrow().values() {
            ds.top.freeze(ds.id, epoch);
        }
        self.ckpt.entries.set(0);
        // The log moves to devices that are current, beginning with the next page.
        let old = self.log.set.borrow().clone();
        let log_set = self.choose_log(&old);
        let mut both = log_set.clone();
        both.extend(old.iter().filter(|d| !log_set.contains(d)));
        self.log.set.replace(both);
        let cut = Cut {
            epoch,
            lsn: self.log.next_lsn.get(),
            chain: self.log.chain.get(),
            pending: self.pending.take(),
            log_set,
        };
        drop(closed);
        cut
    }

    /// What died before a snapshot was made belongs to its list, not to its volume's.
    fn pass_on_dead(&self) {
        let datasets = self.datasets.borrow();
        let mut fresh: Vec<_> = datasets.values().filter(|d| d.fresh.get()).collect();
        fresh.sort_by_key(|d| d.epoch);
        for s in fresh {
            s.fresh.set(false);
            if let Some(v) = datasets.get(&s.parent.get()) {
                self.upkeep.lists_change();
                s.dead.set(v.dead.replace((NodePtr::NONE, 0)));
            }
        }
    }

    /// Devices for the log: those that have it as long as they can, others in their place. One that is to go has it only
    /// when there is no other: what is acknowledged is on as many devices as blocks have copies.
    fn choose_log(&self, old: &[u16]) -> Vec<u16> {
        let copies = usize::from(self.durable.borrow().copies).min(LOG_COPIES);
        let mut all: Vec<Rc<Device>> = self.current_devices();
        // Those that have it first; otherwise in their order.
        all.sort_by_key(|d| (d.draining.get(), !old.contains(&d.number)));
        all.iter().map(|d| d.number).take(copies).collect()
    }

    /// Makes a checkpoint; `change` may change more in its superblock.
    pub(crate) async fn run_checkpoint(
        &self,
        change: impl Fn(&mut crate::format::superblock::Superblock),
    ) -> IoResult {
        self.check_running()?;
        let cut = self.cut().await;
        let mut cx = Merge::default();
        // Snapshots made from here on belong to the next checkpoint.
        let all: Vec<_> = self.datasets.borrow().values().cloned().collect();
        let layers: Vec<Below> = all.iter().map(|d| d.top.below.borrow().clone()).collect();
        let mut roots: Vec<(u32, MapRoot, u64)> = Vec::with_capacity(all.len());
        for (ds, below) in all.iter().zip(layers) {
            let (root, mapped) = self.resolve(&mut cx, below).await?;
            roots.push((ds.id, root, mapped));
        }
        self.reap(&mut cx, cut.epoch).await?;
        self.write_dead(&mut cx, cut.epoch).await?;
        let datasets = self.write_datasets(&mut cx, cut.epoch, &all, &roots).await?;
        self.write_slabs(&mut cx.batch, cut.epoch).await?;
        let skip = has(Bug::SuperblockBeforeFlush);
        if !skip {
            self.settle(&mut cx.batch).await?;
        }
        let mut space = self.write_space(&mut cx.batch, cut.epoch).await?;
        if !skip {
            self.table_is_there(&mut cx.batch).await?;
        }
        self.check_space()?;
        let only = self.super_lock.acquire(1).await;
        // What the table names as the place of a slab may have failed meanwhile. Nobody has been told of it yet.
        while self.tells_of_lost() && !has(Bug::NewPlaceStays) {
            space = self.write_space(&mut cx.batch, cut.epoch).await?;
            self.table_is_there(&mut cx.batch).await?;
        }
        self.ckpt.telling.set(true);
        self.write_super(|s| {
            s.epoch = cut.epoch;
            s.incarnation = self.incarnation.get();
            (s.lineage, s.parent_lineage) = self.lineage.get();
            s.datasets = datasets;
            s.space = space;
            s.base_lsn = match has(Bug::LogCutTooFar) {
                true => self.log.next_lsn.get(),
                false => cut.lsn,
            };
            s.base_chain = cut.chain;
            s.turns.clear();
            s.next_dataset = self.next_dataset.get();
            s.incompat = match self.has_gaps() {
                true => s.incompat | GIVEN_UP_SLABS,
                false => s.incompat & !GIVEN_UP_SLABS,
            } & !KEPT_LOG;
            s.log_set = [cut.log_set.first().copied(), cut.log_set.get(1).copied()];
            change(s);
        })
        .await?;
        drop(only);
        self.settle(&mut cx.batch).await?;
        self.log.set.replace(cut.log_set);
        self.settle_moves();
        self.ckpt.telling.set(false);
        // Also of snapshots that were made meanwhile: their layers may be the same ones.
        for ds in self.datasets.borrow().values() {
            Self::settle_layers(&ds.top.below, cut.epoch);
        }
        // What was looked up before this may still be on its way to a reader.
        if !has(Bug::ReuseUnderReader) {
            self.pins.grace().await;
        }
        let mut space = self.space.borrow_mut();
        for vbn in cut.pending.into_iter().chain(cx.frees) {
            if has(Bug::ReuseBeforeCheckpoint) && !space.is_used(vbn) {
                continue;
            }
            space.release(vbn);
        }
        if self.options.reuse_at_once {
            space.rewind();
        }
        drop(space);
        self.count(|c| c.checkpoints += 1);
        self.check_space()
    }

    /// Waits until the table of slabs, and all that was written before it, is durable.
    async fn table_is_there(&self, batch: &mut Batch) -> IoResult {
        self.settle(batch).await?;
        self.flush_devices(u128::MAX).await;
        self.check_running()
    }

    /// Layers that a checkpoint has merged are not needed any more, and what was below them is gone. Layers that
    /// were frozen since, by a snapshot, stay above the map.
    fn settle_layers(below: &RefCell<Below>, epoch: u32) {
        let now = below.borrow().clone();
        if let Below::Stage(s) = now {
            match s.merged.get().filter(|_| s.epoch <= epoch) {
                Some((root, mapped)) => {
                    below.replace(Below::Root(root, mapped));
                }
                None => Self::settle_layers(&s.below, epoch),
            }
        }
    }

    /// Writes the table of datasets to new places, and frees the old ones.
    async fn write_datasets(
        &self,
        cx: &mut Merge,
        epoch: u32,
        all: &[Rc<Dataset>],
        roots: &[(u32, MapRoot, u64)],
    ) -> IoResult<BlobRoot> {
        let mut bytes = Vec::new();
        for (ds, (_, root, mapped)) in all.iter().zip(roots) {
            if !self.datasets.borrow().contains_key(&ds.id) {
                continue;
            }
            let (root, mapped) = match (ds.kind, &*ds.top.below.borrow()) {
                // Pieces were taken out of it since.
                (Kind::Garbage, Below::Root(root, mapped)) => (*root, *mapped),
                _ => (*root, *mapped),
            };
            let mut p = [0; RECORD];
            let record: DatasetRecord = ds.record(root, mapped);
            record.put(&mut p);
            bytes.extend_from_slice(&p);
        }
        for (ptr, _) in self.ckpt.table.take() {
            self.space.borrow_mut().disk_clear(ptr.vbn);
            cx.frees.push(ptr.vbn);
        }
        let mut levels = blob::levels(bytes.len() as u64);
        let height = levels.len().saturating_sub(1) as u8;
        let mut below: Vec<NodePtr> = Vec::new();
        for (level, pages) in levels.drain(..).enumerate() {
            let mut here = Vec::new();
            for index in 0..pages {
                let mut b = zeroed();
                if level == 0 {
                    let at = index as usize * PAYLOAD;
                    let part = &bytes[at..bytes.len().min(at + PAYLOAD)];
                    b[page::HEADER..page::HEADER + part.len()].copy_from_slice(part);
                } else {
                    let at = index as usize * FANOUT;
                    for (i, p) in below[at..below.len().min(at + FANOUT)].iter().enumerate() {
                        tree::set_pointer(&mut b, i, *p);
                    }
                }
                let vbn = self.place_meta(epoch)?;
                let kind = if level == 0 { PageKind::Blob } else { PageKind::BlobIndex };
                let header = Header {
                    kind,
                    level: level as u8,
                    entry_format: 0,
                    pool: self.tag,
                    owner: DATASETS,
                    index,
                    birth: epoch,
                    max_birth: epoch,
                    vbn,
                    count: 0,
                };
                let crc = seal(&mut b, &header);
                let ptr = NodePtr { vbn, birth: epoch, max_birth: epoch, crc };
                here.push(ptr);
                self.ckpt.table.borrow_mut().push((ptr, kind));
                self.put_meta(&mut cx.batch, vbn, b, None).await?;
            }
            below = here;
        }
        let ptr = below.first().copied().unwrap_or(NodePtr::NONE);
        Ok(BlobRoot { ptr, height, len: bytes.len() as u64 })
    }

    /// Writes the bitmaps that changed, to the copy that the last checkpoint does not use.
    async fn write_slabs(&self, batch: &mut Batch, epoch: u32) -> IoResult {
        let shift = self.space.borrow().shift;
        let dirty: Vec<usize> = {
            let space = self.space.borrow();
            (0..space.slabs.len()).filter(|s| space.slabs[*s].dirty).collect()
        };
        for s in dirty {
            let (words, _) = self.space.borrow().disk_words(s);
            let (which, regions) = {
                let mut space = self.space.borrow_mut();
                let slab = &mut space.slabs[s];
                slab.dirty = false;
                (slab.which.map_or(0, |w| 1 - w), slab.regions.clone())
            };
            let first = ((s as u64) << shift) + u64::from(which) * slab::meta_pages(shift);
            let header = |kind, index, vbn| Header {
                kind,
                level: 0,
                entry_format: 0,
                pool: self.tag,
                owner: s as u64,
                index,
                birth: epoch,
                max_birth: epoch,
                vbn,
                count: 0,
            };
            let mut bitmaps = Vec::new();
            for i in 0..bitmap_pages(shift) {
                let mut b = zeroed();
                let at = (i as usize * slab::BITS / 64).min(words.len());
                let end = words.len().min(at + slab::BITS / 64);
                slab::put_bits(&mut b, &words[at..end]);
                let vbn = first + 1 + i;
                bitmaps.push(seal(&mut b, &header(PageKind::Bitmap, i, vbn)));
                self.put_meta(batch, vbn, b, None).await?;
            }
            let (b, crc) =
                SlabHead { bitmaps, regions }.encode(&header(PageKind::SlabMeta, 0, first));
            self.put_meta(batch, first, b, None).await?;
            let mut space = self.space.borrow_mut();
            let slab = &mut space.slabs[s];
            (slab.which, slab.crc, slab.birth) = (Some(which), crc, epoch);
        }
        Ok(())
    }

    /// The table of slabs and replaced blocks as bytes.
    pub(crate) fn space_bytes(&self) -> Vec<u8> {
        let space = self.space.borrow();
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&(space.slabs.len() as u64).to_le_bytes());
        for s in 0..space.slabs.len() {
            let mut p = [0; slab::RECORD];
            space.record(s).put(&mut p);
            bytes.extend_from_slice(&p);
        }
        for d in self.devices.borrow().iter() {
            for (from, spare) in d.remap.borrow().iter() {
                let mut p = [0; REMAP];
                RemapRecord { device: d.number, from: *from, spare: *spare }.put(&mut p);
                bytes.extend_from_slice(&p);
            }
        }
        bytes
    }

    /// Writes the table of slabs to every device, in the place that the last checkpoint does not use.
    async fn write_space(&self, batch: &mut Batch, epoch: u32) -> IoResult<TableRoot> {
        self.tell_moves();
        let bytes = self.space_bytes();
        let which = 1 - self.durable.borrow().space.which;
        let pages: Vec<_> = bytes
            .chunks(PAYLOAD)
            .enumerate()
            .map(|(i, part)| {
                let mut b = zeroed();
                b[page::HEADER..page::HEADER + part.len()].copy_from_slice(part);
                let header = Header {
                    kind: PageKind::Blob,
                    level: 0,
                    entry_format: 0,
                    pool: self.tag,
                    owner: SPACE,
                    index: i as u64,
                    birth: epoch,
                    max_birth: epoch,
                    vbn: 0,
                    count: 0,
                };
                seal(&mut b, &header);
                Slice::copy_of(&b[..])
            })
            .collect();
        let devices = self.devices.borrow().clone();
        for d in devices.iter().filter(|d| d.is_written()) {
            if pages.len() as u64 > d.layout.table_pages {
                return Err(IoError::NoSpace);
            }
            for (i, b) in pages.iter().enumerate() {
                self.count(|c| c.media_writes += 1);
                batch.push(d, d.layout.table(which, i as u64), b);
            }
        }
        Ok(TableRoot { which, len: bytes.len() as u64, crc: crc64(&bytes) })
    }
}

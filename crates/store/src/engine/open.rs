//! Opening a pool that was found: tables, and then recovery.

use super::arrivals::Arrivals;
use super::checkpoint::{Control, next_epoch};
use super::copies::LATER;
use super::dataset::Dataset;
use super::find::{Found, find};
use super::labels::{A_WHILE, read_surely};
use super::log::Log;
use super::meta::{Cache, Effort};
use super::owner::{Owner, Ownership};
use super::resume::Lives;
use super::space::Space;
use super::to_end::Works;
use super::together::together;
use super::unended::assemble_quiet;
use super::upkeep::Upkeep;
use super::{Inner, Pool, StoreError, StoreResult};
use crate::format::dataset::{DatasetRecord, RECORD};
use crate::format::label::Layout;
use crate::format::page::{FANOUT, HEADER, Header, NodePtr, PAYLOAD, PageKind};
use crate::format::slab::{self, REMAP, RemapRecord, SlabHead, SlabRecord, bitmap_pages};
use crate::format::superblock::Superblock;
use crate::format::{BLOCK, Block, DataSum, FormatError, blob, page, tree};
use crate::planted::{Bug, has};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use weir_base::{IoError, Nanos, SECONDS};
use weir_codec::crc64;
use weir_disk::Disk;
use weir_mem::{BufPool, PoolConfig};
use weir_reactor::spawn_task;

/// Slabs whose bitmaps are read at a time.
const SLABS: usize = 32;

/// How a pool is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Longest time of one operation of a device in nanoseconds; a slower one counts as failed. Time in which the
    /// reactor itself did not run is not the device's.
    pub deadline: Nanos,
    /// Bytes of map nodes kept in memory. The `lean` tier is half a GiB for a TiB of volumes, `full` keeps all.
    pub cache: usize,
    /// Bytes of buffers for metadata and parts of blocks.
    pub buffers: usize,
    /// Open without devices that belong to the pool. What they may have that the others have not is lost.
    pub force: bool,
    /// Open without devices that are missing if this is the newest superblock of those that are there ([`Pool::newest`]): nobody
    /// may have opened the pool since it was closed with that.
    pub last: Option<u64>,
    /// With [`last`](Options::last): one that does not answer, or cannot be read, is missing, too.
    pub without_unread: bool,
    /// A number from a good source of chance, for the new lineage when a device is left out.
    pub lineage: u64,
    /// Bring a device back by itself that missed something while it was away. [`Pool::resync`] does it in any case.
    pub resync: bool,
    /// Nanoseconds after which a spare takes the place of a device that failed or is missing; `None`: never
    /// by itself.
    pub spare_after: Option<Nanos>,
    /// Bytes a second that copying from device to device takes at most; 0: as fast as possible.
    /// [`Pool::set_fill_rate`] changes it.
    pub fill_rate: u64,
    /// In whose name it is opened, of a pool that two nodes share.
    pub owner: Option<Owner>,
    /// Nothing is written, also no repairs: for looking at a pool that nobody serves.
    pub read_only: bool,
    /// Nanoseconds after which a block of which every copy was read and is wrong is looked at again, before its loss is made
    /// permanent.
    pub proof: Nanos,
    /// Places that are free again are used before others, not when their turn comes. For tests: whoever still counts on what
    /// was there is found out.
    pub reuse_at_once: bool,
    /// Pages of dead lists, and leaves of maps, that one checkpoint gives back of what was deleted; at least 1.
    pub give_back: u64,
    /// Checksums cover the data. False only to measure what they cost: such a pool is not protected.
    pub sum_data: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            deadline: A_WHILE,
            cache: 64 << 20,
            buffers: 4 << 20,
            force: false,
            last: None,
            without_unread: false,
            lineage: 1,
            resync: true,
            spare_after: Some(60 * SECONDS),
            fill_rate: 0,
            owner: None,
            read_only: false,
            proof: 5 * SECONDS,
            reuse_at_once: false,
            give_back: 256,
            sum_data: true,
        }
    }
}

/// The table of slabs, from the first device that has it whole and answers within `limit`.
pub(crate) async fn space_table(
    disks: &[(Rc<dyn Disk>, Layout)],
    s: &Superblock,
    limit: Nanos,
) -> Option<Vec<u8>> {
    for (disk, layout) in disks {
        let mut bytes = Vec::new();
        for i in 0..s.space.len.div_ceil(PAYLOAD as u64) {
            if i >= layout.table_pages {
                break;
            }
            let at = layout.table(s.space.which, i);
            let Ok(b) = read_surely(disk, at, LATER, limit).await else { break };
            let ours = |h: Header| h.pool == s.tag() && h.owner == blob::SPACE && h.index == i;
            if !page::open(&b).is_ok_and(ours) {
                break;
            }
            bytes.extend_from_slice(&b[HEADER..]);
        }
        if bytes.len() as u64 >= s.space.len {
            bytes.truncate(s.space.len as usize);
            if crc64(&bytes) == s.space.crc {
                return Some(bytes);
            }
        }
    }
    None
}

/// What the table of slabs says.
pub(crate) fn parse_space(bytes: &[u8]) -> Option<(Vec<SlabRecord>, Vec<RemapRecord>)> {
    let count = usize::try_from(u64::from_le_bytes(bytes.first_chunk().copied()?)).ok()?;
    let end = count.checked_mul(slab::RECORD)?.checked_add(8)?;
    let slabs = bytes.get(8..end)?.chunks(slab::RECORD).map(SlabRecord::get);
    let slabs: Vec<SlabRecord> = slabs.collect::<Result<_, _>>().ok()?;
    let remaps = bytes[end..].chunks_exact(REMAP).map(RemapRecord::get).collect();
    Some((slabs, remaps))
}

pub(super) fn pool_error<T>(text: impl Into<String>) -> StoreResult<T> {
    Err(StoreError::Pool(text.into()))
}

impl Pool {
    /// Opens a pool of which `disks` are the devices, in any order, and recovers what its last life left.
    ///
    /// # Errors
    /// Devices are missing or damaged, or belong to several pools.
    pub async fn open(disks: Vec<Rc<dyn Disk>>, options: Options) -> StoreResult<Pool> {
        let works = Rc::new(Works::of(Ownership::new(options.owner.as_ref())));
        let opened = async {
            let inner = assemble_quiet(disks, options, works.clone()).await?;
            let may = inner.check_owner(&inner.durable.borrow(), false);
            may.map_err(StoreError::State)?;
            if has(Bug::HiddenForgottenFirst) {
                inner.forget_hidden().await?;
            }
            let wrote = |i: &Inner| i.devices.borrow().iter().any(|d| d.writes.get() > 0);
            match inner.recover(None).await {
                Ok(()) => Ok(inner),
                Err(e) if wrote(&inner) => Err(StoreError::Unfinished(Box::new(e))),
                Err(e) => Err(e),
            }
        };
        let inner = match opened.await {
            Ok(inner) => inner,
            Err(e) => {
                // Whoever tries again must not meet what this has begun.
                works.end().await;
                return Err(e);
            }
        };
        inner.serve().await;
        Ok(Pool(Lives::begin(inner)))
    }
}

impl Inner {
    /// What was recovered is served.
    pub(super) async fn serve(self: &Rc<Self>) {
        self.serving.set(true);
        if !self.options.read_only {
            // Nobody else knows of this life yet.
            self.clone().mend_labels(None).await;
        }
        spawn_task(self.clone().committer());
        spawn_task(self.clone().checkpointer());
        if !self.options.read_only {
            spawn_task(self.clone().upkeeper());
        }
        // A log that was kept is merged while the pool serves; one that lost a copy since it was chosen gets another.
        let kept = !self.durable.borrow().turns.is_empty();
        if self.is_reaping() || kept || !self.is_log_whole() {
            self.ckpt.kick();
        }
    }
}

/// A pool as of its newest checkpoint, with its log not looked at. `works`: where what is begun counts.
pub(crate) async fn assemble(
    disks: Vec<Rc<dyn Disk>>,
    options: Options,
    works: Rc<Works>,
) -> StoreResult<Rc<Inner>> {
    let Found { best, devices, lineage, table, left_out } =
        find(disks, &options, &works.owned).await?;
    let Some((slabs, remaps)) = table else {
        return pool_error("the table of slabs makes no sense");
    };
    for r in remaps {
        if let Some(d) = devices.get(usize::from(r.device)) {
            d.take_remap(r.from, r.spare);
        }
    }
    let mut space = Space::new(best.slab_shift);
    let mut places = BTreeSet::new();
    for s in &slabs {
        let exists = |p: &slab::Placement| {
            devices.get(usize::from(p.device)).is_some_and(|d| p.extent < d.layout.extents)
        };
        if !s.copies.iter().flatten().all(exists) {
            return pool_error("a slab lies on a device that does not exist");
        }
        if !s.copies.iter().flatten().all(|p| places.insert((p.device, p.extent))) {
            return pool_error("two slabs lie in the same place");
        }
        space.add(s);
    }
    let log_set = best.log_set.iter().flatten().copied().collect();
    let arrivals = Rc::new(Arrivals::default());
    let classes = vec![(BLOCK, (options.buffers / BLOCK).max(16))];
    let bufs = BufPool::new(&PoolConfig { classes });
    let Ok(bufs) = bufs else { return pool_error("no memory for buffers") };
    let owned = works.owned.of_life();
    let inner = Rc::new_cyclic(|me| Inner {
        me: me.clone(),
        works,
        losses: Default::default(),
        pool: best.pool,
        tag: best.tag(),
        data_sum: DataSum::of(best.incompat),
        devices: RefCell::new(devices),
        space: RefCell::new(space),
        datasets: RefCell::default(),
        next_dataset: Cell::new(best.next_dataset),
        super_lock: weir_reactor::WaitChannel::new(1),
        epoch: Cell::new(next_epoch(best.turns.last().map_or(best.epoch, |t| t.epoch))),
        incarnation: Cell::new(best.incarnation),
        lineage: Cell::new(lineage),
        log: Log::new(best.base_lsn, best.base_chain, log_set),
        durable: RefCell::new(best),
        gate: Default::default(),
        pending: RefCell::default(),
        cache: RefCell::new(Cache::new(options.cache, arrivals.clone())),
        arrivals,
        pins: Default::default(),
        marks: Default::default(),
        bufs,
        ckpt: Control::default(),
        upkeep: Upkeep::new(options.fill_rate),
        failures: Cell::new(0),
        recorded: Cell::new(0),
        wrong: RefCell::default(),
        owned,
        suspended: Cell::new(None),
        begun: RefCell::default(),
        over: Cell::new(false),
        superseded: Cell::new(false),
        deciding: weir_reactor::WaitChannel::new(1),
        undecided_until: Cell::new(0),
        users: Cell::new(0),
        no_users: weir_reactor::WaitChannel::new(0),
        counters: Cell::default(),
        serving: Cell::new(false),
        round: Cell::new(0),
        left_out,
        options,
    });
    if !inner.standing().0 {
        return pool_error(
            "a part of the pool is on no device that is there and current; \
                 plug the missing devices in",
        );
    }
    inner.load().await?;
    Ok(inner)
}

impl Inner {
    /// Loads tables and bitmaps as of the superblock.
    async fn load(&self) -> StoreResult {
        let (datasets, shift) = {
            let s = self.durable.borrow();
            (s.datasets, s.slab_shift)
        };
        let mut bytes = Vec::new();
        let mut here = vec![datasets.ptr];
        let lost = |e: IoError| StoreError::Pool(format!("the table of datasets is lost: {e}"));
        let wrong = |e: FormatError| StoreError::Pool(format!("the table of datasets: {e}"));
        if datasets.len > 0 {
            for level in (0..=datasets.height).rev() {
                let mut below = Vec::new();
                blob::check_level(datasets.len, level, here.len()).map_err(wrong)?;
                for (index, ptr) in (0..).zip(&here) {
                    let kind = if level == 0 { PageKind::Blob } else { PageKind::BlobIndex };
                    let b = self.meta(ptr, kind).await.map_err(lost)?;
                    blob::check_page(&b, blob::DATASETS, level, index).map_err(wrong)?;
                    self.ckpt.table.borrow_mut().push((*ptr, kind));
                    if level == 0 {
                        bytes.extend_from_slice(&b[HEADER..]);
                        continue;
                    }
                    let all = (0..FANOUT).map(|i| tree::pointer(&b, i));
                    let all: Result<Vec<NodePtr>, _> = all.collect();
                    let all = all.map_err(|_| lost(IoError::Medium))?;
                    below.extend(all.into_iter().filter(|p| !p.is_none()));
                }
                here = below;
            }
        }
        bytes.truncate(datasets.len as usize);
        for p in bytes.chunks_exact(RECORD) {
            let r = DatasetRecord::get(p).map_err(wrong)?;
            self.datasets.borrow_mut().insert(r.id, Dataset::new(&r));
        }
        let slabs: Vec<usize> = (0..self.space.borrow().slabs.len()).collect();
        for some in slabs.chunks(SLABS) {
            for loaded in together(some.iter().map(|s| self.load_slab(*s, shift))).await {
                loaded?;
            }
        }
        self.arrange();
        Ok(())
    }

    /// Loads the bitmap of a slab.
    async fn load_slab(&self, s: usize, shift: u8) -> StoreResult {
        let (which, crc, birth) = {
            let space = self.space.borrow();
            let slab = &space.slabs[s];
            (slab.which, slab.crc, slab.birth)
        };
        let Some(which) = which else { return Ok(()) };
        let lost = |e: IoError| StoreError::Pool(format!("the bitmap of slab {s} is lost: {e}"));
        let vbn = ((s as u64) << shift) + u64::from(which) * slab::meta_pages(shift);
        let ptr = NodePtr { vbn, birth, max_birth: birth, crc };
        let good = |b: &Block| ptr.verify(b, self.tag, PageKind::SlabMeta).is_ok();
        let head = self.proved(&ptr, good, Effort::Waits).await.map_err(lost)?;
        let head = SlabHead::decode(&head, shift).map_err(|_| lost(IoError::Medium))?;
        let mut words = Vec::new();
        for i in 0..bitmap_pages(shift) {
            let crc = head.bitmaps[i as usize];
            let ptr = NodePtr { vbn: vbn + 1 + i, birth, max_birth: birth, crc };
            let good = |b: &Block| ptr.verify(b, self.tag, PageKind::Bitmap).is_ok();
            let b = self.proved(&ptr, good, Effort::Waits).await.map_err(lost)?;
            words.extend((0..slab::BITS / 64).map(|i| slab::bits(&b, i)));
        }
        words.truncate((1 << shift) / 64);
        let mut space = self.space.borrow_mut();
        space.slabs[s].regions = head.regions;
        space.load(s, words);
        Ok(())
    }
}

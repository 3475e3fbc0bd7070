//! Opening a pool: labels, the newest superblock, tables, and then recovery.

use super::arrivals::Arrivals;
use super::checkpoint::{Control, next_epoch};
use super::copies::LATER;
use super::dataset::Dataset;
use super::device::Device;
use super::labels::{A_WHILE, label_within, read_surely, superblocks};
use super::log::Log;
use super::meta::Cache;
use super::resume::Lives;
use super::space::Space;
use super::together::together;
use super::upkeep::Upkeep;
use super::{Inner, Pool, StoreError, StoreResult};
use crate::format::dataset::{DatasetRecord, RECORD};
use crate::format::label::{Label, Layout};
use crate::format::page::{FANOUT, HEADER, Header, NodePtr, PAYLOAD, PageKind};
use crate::format::slab::{self, REMAP, RemapRecord, SlabHead, SlabRecord, bitmap_pages};
use crate::format::superblock::{MemberState, Superblock};
use crate::format::{BLOCK, Block, DataSum, FormatError, LAST_EPOCH, blob, page, tree};
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
    /// A number from a good source of chance, for the new lineage when `force` leaves a device out.
    pub lineage: u64,
    /// Bring a device back by itself that missed something while it was away. [`Pool::resync`] does it in any case.
    pub resync: bool,
    /// Nanoseconds after which a spare takes the place of a device that failed or is missing; `None`: never
    /// by itself.
    pub spare_after: Option<Nanos>,
    /// Bytes a second that copying from device to device takes at most; 0: as fast as possible.
    /// [`Pool::set_fill_rate`] changes it.
    pub fill_rate: u64,
    /// Nothing is written, also no repairs: for looking at a pool that nobody serves.
    pub read_only: bool,
    /// Nanoseconds after which a block of which every copy was read and is wrong is looked at again, before its loss is made
    /// permanent.
    pub proof: Nanos,
    /// Places that are free again are used before others, not when their turn comes. For tests: whoever still counts on what
    /// was there is found out.
    pub reuse_at_once: bool,
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
            lineage: 1,
            resync: true,
            spare_after: Some(60 * SECONDS),
            fill_rate: 0,
            read_only: false,
            proof: 5 * SECONDS,
            reuse_at_once: false,
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

/// The devices of a pool as a superblock has them, with the disks that were found.
pub(crate) fn members(
    best: &Superblock,
    found: &[(Rc<dyn Disk>, Label)],
    any: Label,
) -> Vec<Rc<Device>> {
    let all = best.members.iter().enumerate();
    all.map(|(n, m)| {
        let here = found.iter().find(|(_, l)| l.device == m.device);
        // A missing one is laid out as the others are, in its own size.
        let y = any.layout;
        let like =
            |blocks| Layout::plan(blocks, y.slab_shift, y.log_pages, y.table_pages, y.spares);
        let layout = here.map(|(_, l)| l.layout).or(like(m.blocks)).unwrap_or(y);
        Device::new(n as u16, m, layout, here.map(|(d, _)| d.clone()))
    })
    .collect()
}

fn pool_error<T>(text: impl Into<String>) -> StoreResult<T> {
    Err(StoreError::Pool(text.into()))
}

impl Pool {
    /// Opens a pool of which `disks` are the devices, in any order, and recovers what its last life left.
    ///
    /// # Errors
    /// Devices are missing or damaged, or belong to several pools.
    pub async fn open(disks: Vec<Rc<dyn Disk>>, options: Options) -> StoreResult<Pool> {
        let inner = assemble(disks, options).await?;
        inner.recover().await?;
        inner.serve().await;
        Ok(Pool(Lives::begin(inner)))
    }
}

impl Inner {
    /// What was recovered is served.
    pub(super) async fn serve(self: &Rc<Self>) {
        self.serving.set(true);
        if !self.options.read_only {
            self.clone().mend_labels(None).await;
        }
        spawn_task(self.clone().committer());
        spawn_task(self.clone().checkpointer());
        if !self.options.read_only {
            spawn_task(self.clone().upkeeper());
        }
        // A log that was kept is merged while the pool serves.
        let kept = !self.durable.borrow().turns.is_empty();
        if self.is_reaping() || kept {
            self.ckpt.kick();
        }
    }
}

/// A pool as of its newest checkpoint, with its log not looked at.
pub(crate) async fn assemble(disks: Vec<Rc<dyn Disk>>, options: Options) -> StoreResult<Rc<Inner>> {
    let (best, devices, lineage) = find(disks, &options).await?;
    let here = |d: &Rc<Device>| d.disk.clone().map(|disk| (disk, d.layout));
    let disks: Vec<_> = devices.iter().filter_map(here).collect();
    let Some(bytes) = space_table(&disks, &best, options.deadline).await else {
        return pool_error("no device has a whole table of slabs");
    };
    let Some((slabs, remaps)) = parse_space(&bytes) else {
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
    let inner = Rc::new_cyclic(|me| Inner {
        me: me.clone(),
        works: Rc::default(),
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
        suspended: Cell::new(None),
        begun: RefCell::default(),
        over: Cell::new(false),
        superseded: Cell::new(false),
        unended: Default::default(),
        deciding: weir_reactor::WaitChannel::new(1),
        undecided_until: Cell::new(0),
        users: Cell::new(0),
        no_users: weir_reactor::WaitChannel::new(0),
        counters: Cell::default(),
        serving: Cell::new(false),
        round: Cell::new(0),
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

/// Finds the pool that disks belong to, its newest superblock and its devices.
async fn find(
    disks: Vec<Rc<dyn Disk>>,
    options: &Options,
) -> StoreResult<(Superblock, Vec<Rc<Device>>, (u64, u64))> {
    let limit = options.deadline;
    let mut found: Vec<(Rc<dyn Disk>, Label)> = Vec::new();
    let mut unlabelled = None;
    let mut all: Vec<(usize, Superblock)> = Vec::new();
    for d in disks {
        let l = match label_within(&d, limit).await {
            Ok(l) => l,
            Err(no) => {
                unlabelled = Some(no.why);
                continue;
            }
        };
        // One that does not answer any more is missing. It is not one that knows less than the others.
        match superblocks(&d, &l, limit).await {
            Ok(some) => {
                all.extend(some.into_iter().map(|s| (found.len(), s)));
                found.push((d, l));
            }
            Err(e) => unlabelled = Some(e.into()),
        }
    }
    let Some(any) = found.first().map(|(_, l)| *l) else {
        return Err(unlabelled.unwrap_or(StoreError::Pool("no devices were given".into())));
    };
    if let Some((d, l)) = found.iter().find(|(_, l)| l.pool != any.pool) {
        return pool_error(format!("`{}` belongs to another pool, {:032x}", d.name(), l.pool));
    }
    // The last one of a life may be on a device out of sync only. When that is away the next life begins with another one of
    // that number.
    let newer = |s: &&Superblock| (s.seq, s.incarnation);
    let Some(best) = all.iter().map(|(_, s)| s).max_by_key(newer).cloned() else {
        return pool_error("no device has a readable superblock");
    };
    // The one before it, where that is still there, must be the one that it names.
    let in_sync =
        |id: u64| best.members.iter().any(|m| m.device == id && m.state == MemberState::InSync);
    let mut before = all.iter().filter(|(n, s)| {
        s.seq.wrapping_add(1) == best.seq
            && s.lineage == best.lineage
            && in_sync(found[*n].1.device)
    });
    if before.clone().count() > 0 && before.all(|(_, s)| s.chain() != best.previous) {
        return pool_error("the newest superblock does not follow the one before it");
    }
    for (n, (d, l)) in found.iter().enumerate() {
        let newest = all.iter().filter(|(k, _)| *k == n).map(|(_, s)| s).max_by_key(|s| s.seq);
        if let Some(s) = newest
            && s.lineage != best.lineage
            && s.lineage != best.parent_lineage
            && in_sync(l.device)
        {
            return pool_error(format!(
                "`{}` went its own way: the pool was opened by force without it and with it",
                d.name()
            ));
        }
    }
    let alike =
        |l: &Label| l.layout.slab_shift == best.slab_shift && l.layout.log_pages == best.log_pages;
    if let Some((d, _)) = found.iter().find(|(_, l)| !alike(l)) {
        return pool_error(format!("`{}` is laid out in another way than its pool", d.name()));
    }
    let devices = members(&best, &found, any);
    // With the newest superblock.
    let joined = |id: u64| {
        let mut before = all
            .iter()
            .map(|(_, s)| s)
            .filter(|s| s.seq.wrapping_add(1) == best.seq && s.lineage == best.lineage);
        before.clone().count() > 0 && before.all(|s| s.members.iter().all(|m| m.device != id))
    };
    let mut lineage = (best.lineage, best.parent_lineage);
    for d in &devices {
        if d.disk.is_some() || d.state.get() != MemberState::InSync {
            continue;
        }
        if !options.force {
            return pool_error(format!(
                "device {} ({:016x}) is missing, and may have what the others have not; open by force \
                 to go on without it",
                d.number, d.id
            ));
        }
        d.state.set(MemberState::Out);
        d.since.set(best.epoch);
        lineage = (options.lineage, best.lineage);
    }
    for d in devices.iter().filter(|d| d.disk.is_some()) {
        let newest = found.iter().position(|(_, l)| l.device == d.id).and_then(|n| {
            let mine = all.iter().filter(|(k, _)| *k == n).map(|(_, s)| s);
            mine.max_by_key(|s| s.seq)
        });
        // A superblock is begun when the one before it is on every device in sync. Whatever is further behind is not what
        // it was: an old copy of the device, or a device that forgets. One that the superblock before did not know has
        // joined with the newest one, which need not have come to it; it may have the log already.
        let behind = match newest {
            Some(s) => s.seq.saturating_add(1) < best.seq,
            None => has(Bug::NewcomerIsBehind) || !joined(d.id),
        };
        let mut since = d.since.get();
        if d.state.get() == MemberState::InSync && behind {
            since = newest.map_or(0, |s| s.epoch);
            d.state.set(MemberState::Out);
            // What slabs and blocks were moved to since is missing there, too, however old it is.
            d.since.set(0);
        }
        let (foreign, held) = history(newest, &best, since);
        d.foreign.set(foreign && (behind || newest.is_some()));
        d.held.set(held);
    }
    if !devices.iter().any(|d| d.disk.is_some() && d.state.get() == MemberState::InSync) {
        return pool_error("no device has what the newest superblock tells of");
    }
    // What was being filled is begun anew; nothing of it was relied on.
    for d in devices.iter().filter(|d| d.state.get() == MemberState::Syncing) {
        d.state.set(MemberState::Out);
    }
    Ok((best, devices, lineage))
}

/// Whether nothing of a device that is out of sync may be believed, and whether it has a history of its own,
/// which bringing it back would end. It missed what was written in and after epoch `since`.
pub(crate) fn history(newest: Option<&Superblock>, best: &Superblock, since: u32) -> (bool, bool) {
    let Some(s) = newest else { return (true, false) };
    // A lineage is changed by whoever goes on without a device that is in sync; so one never forks.
    // In the last epoch nobody can tell who was ahead.
    let behind = s.epoch <= since && s.epoch < LAST_EPOCH;
    let ours = s.lineage == best.lineage || (s.lineage == best.parent_lineage && behind);
    (!ours, !ours)
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
        let head = self.proved(vbn, good).await.map_err(lost)?;
        let head = SlabHead::decode(&head, shift).map_err(|_| lost(IoError::Medium))?;
        let mut words = Vec::new();
        for i in 0..bitmap_pages(shift) {
            let crc = head.bitmaps[i as usize];
            let ptr = NodePtr { vbn: vbn + 1 + i, birth, max_birth: birth, crc };
            let good = |b: &Block| ptr.verify(b, self.tag, PageKind::Bitmap).is_ok();
            let b = self.proved(ptr.vbn, good).await.map_err(lost)?;
            words.extend((0..slab::BITS / 64).map(|i| slab::bits(&b, i)));
        }
        words.truncate((1 << shift) / 64);
        let mut space = self.space.borrow_mut();
        space.slabs[s].regions = head.regions;
        space.load(s, words);
        Ok(())
    }
}

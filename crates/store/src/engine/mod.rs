//! The engine: one pool on its home reactor.

mod arrivals;
mod check;
mod checkpoint;
mod coming;
mod copies;
mod create;
mod damage;
mod dataset;
mod dead;
mod decide;
mod device;
mod devices;
mod extent;
mod fill;
mod find;
mod flush;
mod gather;
mod heal;
mod judge;
mod labels;
mod locks;
mod log;
mod log_end;
mod losses;
mod membership;
mod merge;
mod meta;
mod moves;
mod old_log;
mod open;
mod owner;
mod plan;
mod ranges;
mod read;
mod rebuild;
mod replay;
mod resume;
mod scrub;
mod shred;
mod snapshot;
mod space;
mod stage;
mod standing;
mod suffice;
mod to_end;
mod together;
mod unended;
mod upkeep;
mod volume;
mod write;

pub use check::{Finding, Repair, Report, check, check_watched, repair};
pub use create::{FIRST, PoolSpec, create};
pub use damage::{Damage, Whose};
pub(crate) use labels::{A_WHILE, read_block, superblocks};
pub use labels::{is_unreadable, label_of};
pub use log_end::{LogEnd, Told, log_end, told_by};
pub use open::Options;
pub(crate) use open::{parse_space, space_table};
pub use owner::{Able, Arbiter, Owner};
pub use scrub::{ScrubReport, ScrubWatch};
pub use shred::Place;
pub use snapshot::DatasetInfo;
pub use upkeep::{Progress, Work};
pub use volume::StoreVolume;

use crate::format::superblock::{MemberState, Superblock};
use crate::format::{BLOCK, Block, DataSum, Identity};
use crate::planted::{Bug, has};
use dataset::Dataset;
use device::Device;
use locks::Gate;
use resume::Lives;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use weir_base::{IoError, IoResult, Nanos};
use weir_mem::{BufPool, Slice};
use weir_reactor::WaitChannel;

/// Why the store did not do what it was asked to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A device failed, or the pool is full.
    #[error("{0}")]
    Io(IoError),
    /// What is on the devices does not allow it.
    #[error("{0}")]
    Pool(String),
    /// A device does not answer, or what it may have cannot be read: nobody knows what is on it.
    #[error("{0}")]
    Unread(String),
    /// The request makes no sense for this pool.
    #[error("{0}")]
    Request(String),
    /// The pool, or the device that the request names, does not stand so that it can be done now.
    #[error("{0}")]
    State(String),
    /// An opening had begun to write, and did not come to its end: what devices have is not what they had.
    #[error("{0}")]
    Unfinished(Box<StoreError>),
}

impl From<IoError> for StoreError {
    fn from(e: IoError) -> Self {
        StoreError::Io(e)
    }
}

pub(crate) type StoreResult<T = ()> = Result<T, StoreError>;

/// What happened in a pool since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Blocks written by volumes.
    pub blocks_written: u64,
    /// Blocks read by volumes.
    pub blocks_read: u64,
    /// Blocks written to all devices, of any kind.
    pub media_writes: u64,
    /// Log pages, each counted once.
    pub log_pages: u64,
    /// Groups of writes committed together.
    pub groups: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Map nodes written by checkpoints.
    pub nodes_written: u64,
    /// Copies of blocks found damaged.
    pub damaged: u64,
    /// Of those, mended from the other copy.
    pub repaired: u64,
    /// Of those, moved to a spare block.
    pub relocated: u64,
    /// Blocks without a good copy.
    pub lost: u64,
    /// Devices that failed.
    pub devices_failed: u64,
    /// Recoveries that kept the log, to be merged while the pool serves: 0 or 1.
    pub logs_kept: u64,
    /// Log entries taken up by recovery.
    pub replayed: u64,
    /// Copies that recovery completed.
    pub replay_repairs: u64,
    /// Blocks that recovery found not to have been written.
    pub replay_dropped: u64,
    /// Blocks of doubtful log entries that recovery could not read: they count as written.
    pub replay_unread: u64,
    /// Blocks of doubtful log entries that recovery brought to another place.
    pub replay_moved: u64,
}

pub(crate) struct Inner {
    /// Itself, for tasks that outlive those who began them.
    pub(crate) me: Weak<Inner>,
    /// Of all lives.
    pub(crate) works: Rc<to_end::Works>,
    pub(crate) losses: losses::Losses,
    pub(crate) options: Options,
    pub(crate) pool: u128,
    pub(crate) tag: u64,
    pub(crate) data_sum: DataSum,
    pub(crate) devices: RefCell<Vec<Rc<Device>>>,
    pub(crate) space: RefCell<space::Space>,
    pub(crate) datasets: RefCell<BTreeMap<u32, Rc<Dataset>>>,
    pub(crate) next_dataset: Cell<u32>,
    /// The newest durable superblock.
    pub(crate) durable: RefCell<Superblock>,
    /// Superblocks that were begun after the newest durable one, in order: each may be on some devices.
    pub(crate) begun: RefCell<Vec<Superblock>>,
    /// The pool has been opened anew in this one's place.
    pub(crate) over: Cell<bool>,
    /// It was tried to open it anew, and superblocks were begun that this life does not know: it begins none any more.
    pub(crate) superseded: Cell<bool>,
    /// Only one superblock is made at a time.
    pub(crate) super_lock: WaitChannel,
    pub(crate) epoch: Cell<u32>,
    pub(crate) incarnation: Cell<u32>,
    pub(crate) lineage: Cell<(u64, u64)>,
    pub(crate) log: log::Log,
    pub(crate) gate: Gate,
    /// Blocks freed since the last cut; they are free after the next checkpoint.
    pub(crate) pending: RefCell<Vec<u64>>,
    pub(crate) cache: RefCell<meta::Cache>,
    /// Metadata on its way to the devices.
    pub(crate) arrivals: Rc<arrivals::Arrivals>,
    pub(crate) pins: locks::Pins,
    /// Pages of dead lists that somebody comes back to.
    pub(crate) marks: dead::Marks,
    pub(crate) bufs: BufPool,
    pub(crate) ckpt: checkpoint::Control,
    pub(crate) upkeep: upkeep::Upkeep,
    /// How often a device that was current failed, and how many of these the newest durable superblock knows.
    pub(crate) failures: Cell<u64>,
    pub(crate) recorded: Cell<u64>,
    /// Blocks of which every copy was read and was wrong, by number and checksum, and when first.
    pub(crate) wrong: RefCell<BTreeMap<(u64, u32, copies::Shown), Nanos>>,
    /// Who owns it, of all lives.
    pub(crate) owned: Rc<owner::Ownership>,
    /// Nothing is written any more, and why.
    pub(crate) suspended: Cell<Option<IoError>>,
    /// Only one decides at a time what failed with the pool; when that may be tried again.
    pub(crate) deciding: WaitChannel,
    pub(crate) undecided_until: Cell<Nanos>,
    /// I/O of volumes under way.
    pub(crate) users: Cell<u32>,
    pub(crate) no_users: WaitChannel,
    pub(crate) counters: Cell<Counters>,
    /// Recovery is over: the log is written.
    pub(crate) serving: Cell<bool>,
    pub(crate) round: Cell<u32>,
    /// Disks that were given and are not used, as another one is the same device, and why.
    pub(crate) left_out: Vec<(String, String)>,
}

impl Inner {
    /// The checksum that the map holds of the block of data that begins at byte `at` of a buffer.
    #[inline]
    pub(crate) fn data_crc(&self, id: &Identity, buf: &Slice, at: usize) -> u32 {
        summed(buf, at, |data| self.data_sum.masked(id, data))
    }

    /// Whether a block of data in a buffer is the one that an entry of a map stands for, as far as checksums tell.
    #[inline]
    pub(crate) fn proves(&self, id: &Identity, crc: u32, buf: &Slice, at: usize) -> bool {
        match self.options.sum_data {
            true => self.data_crc(id, buf, at) == crc,
            false => id.mask() == crc,
        }
    }

    pub(crate) fn count(&self, f: impl FnOnce(&mut Counters)) {
        let mut c = self.counters.get();
        f(&mut c);
        self.counters.set(c);
    }

    pub(crate) fn device(&self, number: u16) -> Option<Rc<Device>> {
        self.devices.borrow().get(usize::from(number)).cloned()
    }

    pub(crate) fn copies_of(&self, vbn: u64) -> [Option<(Rc<Device>, u64)>; 2] {
        let space = self.space.borrow();
        let slab = space.slab_of(vbn);
        let offset = vbn & ((1 << space.shift) - 1);
        let Some(slab) = space.slabs.get(slab) else { return [None, None] };
        slab.copies.map(|c| {
            let c = c?;
            let d = self.device(c.device)?;
            let block = d.layout.extent(c.extent) + offset;
            Some((d, block))
        })
    }

    /// Where a block's slab is being moved to.
    #[inline]
    pub(crate) fn moving_to(&self, vbn: u64) -> Option<(Rc<Device>, u64)> {
        let space = self.space.borrow();
        let to = space.slabs.get(space.slab_of(vbn))?.moving?.to;
        let d = self.device(to.device)?;
        let block = d.layout.extent(to.extent) + (vbn & ((1 << space.shift) - 1));
        Some((d, block))
    }

    /// Starts writing a run of blocks that lies in one slab to every copy. False when no current copy
    /// could be written.
    pub(crate) fn submit(&self, vbn: u64, buf: &Slice, out: &mut Vec<device::Pending>) -> bool {
        let mut current = false;
        for (d, block) in self.copies_of(vbn).into_iter().flatten() {
            if d.is_written() {
                self.count(|c| c.media_writes += (buf.len() / BLOCK) as u64);
                d.submit_write(block, buf, out);
                current |= d.is_current();
            }
        }
        if let Some((d, block)) = self.moving_to(vbn).filter(|(d, _)| d.is_written())
            && !has(Bug::MoveMissesWrites)
        {
            self.count(|c| c.media_writes += (buf.len() / BLOCK) as u64);
            d.submit_write(block, buf, out);
            self.space.borrow_mut().arrived(vbn, (buf.len() / BLOCK) as u64);
        }
        current
    }

    pub(crate) fn identity(&self, family: u32, lba: u64, birth: u32, vbn: u64) -> Identity {
        Identity { pool: self.tag, family, lba, birth, vbn }
    }

    /// Nothing is written any more; what is there can still be read.
    pub(crate) fn suspend(&self, why: IoError) {
        if self.suspended.get().is_none() {
            self.suspended.set(Some(why));
            // Whatever the reason: devices that failed before are those of which the rest can be read.
            if self.serving.get() {
                self.keep_readable();
            }
        }
        self.log.work.signal();
        self.ckpt.wake();
        self.ckpt.over.signal_all();
        self.upkeep.wake();
    }

    /// Whether it may be written: it is neither suspended nor closed.
    pub(crate) fn check_running(&self) -> IoResult {
        match self.suspended.get() {
            Some(e) => Err(e),
            None if self.ckpt.is_ended() => Err(IoError::Offline),
            None => Ok(()),
        }
    }

    /// Suspends the pool when its use of blocks contradicts itself: then what is on the devices, or this program, is
    /// not what it should be, and another checkpoint would make it worse.
    pub(crate) fn check_space(&self) -> IoResult {
        if self.space.borrow().contradiction.is_some() {
            self.suspend(IoError::Internal);
        }
        self.check_running()
    }

    /// A block is not used by the state in memory any more.
    pub(crate) fn free_later(&self, vbn: u64) {
        if has(Bug::ReuseBeforeCheckpoint) && !self.space.borrow().is_on_disk(vbn) {
            let mut space = self.space.borrow_mut();
            space.release(vbn);
            space.rewind();
            return;
        }
        self.pending.borrow_mut().push(vbn);
    }

    /// Whether the log has all the copies that the devices allow.
    fn is_log_whole(&self) -> bool {
        let durable = self.durable.borrow();
        let current = |n: &u16| self.device(*n).is_some_and(|d| d.is_current());
        let have = durable.log_set.iter().flatten().filter(|n| current(n)).count();
        have >= usize::from(durable.copies).min(self.current_devices().len())
    }

    pub(crate) fn current_devices(&self) -> Vec<Rc<Device>> {
        self.devices.borrow().iter().filter(|d| d.is_current()).cloned().collect()
    }
}

/// What `sum` makes of the block of data that begins at byte `at` of a buffer.
#[inline]
pub(crate) fn summed<T>(buf: &Slice, at: usize, sum: impl FnOnce(&[u8]) -> T) -> T {
    let part = buf.sub(at, BLOCK);
    // SAFETY: the caller of a write leaves its buffer alone until completion (the contract of Volume),
    // and a buffer that was read into belongs to the reader once the device has completed.
    sum(unsafe { part.bytes() })
}

/// The checksum number `i` of those that go with data ([`Volume::write_summed`](weir_block::Volume::write_summed)).
#[inline]
pub(crate) fn sum_at(sums: &Slice, i: usize) -> u32 {
    let mut b = [0; 4];
    sums.read_at(i * 4, &mut b);
    u32::from_le_bytes(b)
}

pub(crate) fn block_of(buf: &Slice) -> Box<Block> {
    let mut b = crate::format::zeroed();
    buf.read_at(0, &mut b[..]);
    b
}

/// A pool, open on the present reactor. Clones are the same pool.
pub struct Pool(pub(crate) Lives);

/// How a device of a pool stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number in the pool.
    pub number: u16,
    /// Its identity.
    pub id: u64,
    /// What it is called now; `None`: it is missing.
    pub name: Option<String>,
    /// How it stands.
    pub state: MemberState,
    /// It failed since the pool was opened.
    pub failed: bool,
    /// What it told when it failed.
    pub why: Option<IoError>,
    /// Its slabs are being moved to other devices, or have been.
    pub draining: bool,
    /// Copies of slabs that it holds.
    pub slabs: u32,
    /// Copies of slabs that it has room for, with those that it holds.
    pub room: u32,
    /// Size in bytes.
    pub len: u64,
    /// Blocks replaced by spares.
    pub replaced: u32,
    /// Copies of blocks that were found damaged on it since the pool was opened.
    pub damaged: u64,
    /// Blocks of it of which a read ended with an error that says nothing of the medium.
    pub unread: u64,
}

/// How a pool stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Its identity.
    pub pool: u128,
    /// Its devices.
    pub devices: Vec<DeviceInfo>,
    /// Copies of each block.
    pub copies: u8,
    /// Bytes for data and maps.
    pub total: u64,
    /// Bytes free now.
    pub free: u64,
    /// Bytes of these that can be written: the rest is kept for maps and deletions.
    pub room: u64,
    /// Every block has all its copies, and the log has as many as the devices allow.
    pub whole: bool,
    /// Nothing can be written, and why.
    pub suspended: Option<IoError>,
    /// The current epoch.
    pub epoch: u32,
    /// What is being done about its devices, and how far that is.
    pub work: Option<Progress>,
    /// Why something that should be done about its devices is not done; of a suspended pool, what contradicts itself.
    pub trouble: Option<String>,
}

impl Pool {
    /// What happened since it was opened.
    pub fn counters(&self) -> Counters {
        self.0.counters.get()
    }

    /// The blocks that the newest checkpoint uses, with the places of their copies: number of the device and byte. For
    /// tests that damage them.
    pub fn blocks_in_use(&self) -> Vec<(u64, Vec<(u16, u64)>)> {
        let i = &self.0;
        let blocks = i.space.borrow().in_use();
        let places = |vbn| {
            let copies = i.copies_of(vbn).into_iter().flatten();
            copies.map(|(d, at)| (d.number, d.real(at) * BLOCK as u64)).collect()
        };
        blocks.into_iter().map(|vbn| (vbn, places(vbn))).collect()
    }

    /// The blocks of data that were acknowledged since the newest checkpoint, with the places of their copies as
    /// [`blocks_in_use`](Pool::blocks_in_use) tells them. For tests that damage them.
    pub fn blocks_of_log(&self) -> Vec<(u64, Vec<(u16, u64)>)> {
        let i = &self.0;
        let datasets = i.datasets.borrow();
        let data = |d: &Rc<Dataset>| -> Vec<u64> {
            let layer = d.top.active.borrow();
            layer.map.values().filter(|e| e.is_data()).map(|e| e.vbn).collect()
        };
        let places = |vbn| {
            let copies = i.copies_of(vbn).into_iter().flatten();
            copies.map(|(d, at)| (d.number, d.real(at) * BLOCK as u64)).collect()
        };
        datasets.values().flat_map(data).map(|vbn| (vbn, places(vbn))).collect()
    }

    /// What tells the newest superblock of a pool that has been closed from any other; see [`Options::last`]. None: the pool is open,
    /// was not closed in order, lacks a device, or has something in the log beside that superblock.
    pub fn newest(&self) -> Option<u64> {
        let i = &self.0;
        let is_there = |d: &Rc<Device>| match d.state.get() {
            MemberState::InSync => d.is_current(),
            MemberState::Spare | MemberState::Gone => true,
            MemberState::Syncing | MemberState::Out => has(Bug::LastLacking),
        };
        let whole = i.devices.borrow().iter().all(is_there);
        let told = i.begun.borrow().is_empty() && !i.unrecorded();
        let closed = i.ckpt.is_ended() && i.suspended.get().is_none() && !i.options.read_only;
        (closed && told && i.is_merged() && whole).then(|| i.durable.borrow().chain())
    }

    /// Disks that were given to open the pool and are not used, as another one is the same device and no older: what each is
    /// called, and why it is not used.
    pub fn left_out(&self) -> Vec<(String, String)> {
        self.0.left_out.clone()
    }

    /// How it stands.
    pub fn status(&self) -> Status {
        let i = &self.0;
        let devices = i
            .devices
            .borrow()
            .iter()
            .filter(|d| d.state.get() != MemberState::Gone)
            .map(|d| DeviceInfo {
                number: d.number,
                id: d.id,
                name: d.disk.as_ref().map(|x| x.name().to_string()),
                state: d.state.get(),
                failed: d.failed.get().is_some(),
                why: d.failed.get(),
                draining: d.draining.get(),
                slabs: i.space.borrow().held_by(d.number),
                room: d.layout.extents,
                len: d.layout.blocks * BLOCK as u64,
                replaced: d.spares_used.get(),
                damaged: i.works.damage.of(d.id).damaged,
                unread: i.works.damage.of(d.id).unread,
            })
            .collect();
        let space = i.space.borrow();
        Status {
            pool: i.pool,
            devices,
            copies: i.durable.borrow().copies,
            total: space.total() * BLOCK as u64,
            free: space.free() * BLOCK as u64,
            room: i.room() * BLOCK as u64,
            whole: i.standing().1 && i.is_log_whole(),
            suspended: i.suspended.get(),
            epoch: i.epoch.get(),
            work: i.upkeep.progress(),
            trouble: space.contradiction.clone().or_else(|| i.upkeep.trouble()),
        }
    }
}

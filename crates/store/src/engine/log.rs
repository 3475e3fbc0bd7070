//! The log: entries gather in a group; its pages and its data are written at the same time to all halves;
//! one flush per device makes it durable; then it takes effect in memory and is acknowledged.

use super::Inner;
use super::coming::Coming;
use super::dataset::Dataset;
use super::device::{self, Device, Pending};
use super::locks::{Pass, RangeLock};
use crate::format::BLOCK;
use crate::format::log::{Entry, PageBuilder, PageHead, blocks_in};
use crate::format::tree::MapEntry;
use crate::planted::{Bug, has};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{IoError, IoResult, MILLIS, Nanos};
use weir_block::{IoFuture, join_parts};
use weir_mem::Slice;
use weir_reactor::{WaitChannel, run_async, sleep, spawn_task};

/// Groups under way at once: one is flushed while the next is written.
const IN_FLIGHT: u32 = 2;
/// Pages that any one write or other change adds at most.
pub(crate) const PAGES: u64 = 4;
/// Pages of a group at most.
const GROUP_PAGES: usize = 200;
/// Recovery looks this far behind the last page that it finds; no group reaches so far.
pub(crate) const WINDOW: u64 = 2 * GROUP_PAGES as u64 + 112;
/// After so long without a write the log says that everything is durable.
const IDLE: Nanos = 100 * MILLIS;
/// Pages of the ring that are left for what cannot wait for a checkpoint.
pub(crate) const SPARE_PAGES: u64 = 8;

/// Pages of a ring that ordinary writes leave alone: recovery has to find room for what it logs anew, or merges the log
/// before it serves.
fn margin(ring: u64) -> u64 {
    (ring / 128).clamp(SPARE_PAGES, 2 * WINDOW)
}

/// A change that takes effect when its group is durable.
pub(crate) enum Effect {
    /// A dataset's block is at an entry.
    Put(Rc<Dataset>, u64, MapEntry),
    /// A range of a dataset reads as zeros.
    Wipe(Rc<Dataset>, u64, u64),
    /// Nothing in memory, or done already.
    None,
}

/// What is committed together.
#[derive(Default)]
pub(crate) struct Group {
    pages: RefCell<Vec<PageBuilder>>,
    io: RefCell<Vec<Pending>>,
    effects: RefCell<Vec<Effect>>,
    /// Held until the group is over.
    guards: RefCell<Vec<(Option<RangeLock>, Pass)>>,
    coming: Cell<Coming>,
    over: Cell<Option<IoResult>>,
    ended: WaitChannel,
}

impl Group {
    /// Waits until it is durable, or has failed.
    pub(crate) async fn wait(&self) -> IoResult {
        loop {
            if let Some(r) = self.over.get() {
                return r;
            }
            self.ended.wait().await;
        }
    }

    fn end(&self, result: IoResult) {
        self.over.set(Some(result));
        self.guards.borrow_mut().clear();
        self.ended.signal_all();
    }
}

/// The state of the log.
pub(crate) struct Log {
    /// Signalled when there is something to commit.
    pub(crate) work: WaitChannel,
    /// Of all groups that are not over.
    pub(crate) coming: Cell<Coming>,
    open: RefCell<Rc<Group>>,
    slots: WaitChannel,
    pub(crate) next_lsn: Cell<u64>,
    pub(crate) chain: Cell<u64>,
    /// Every page before this one is durable with its data.
    pub(crate) stable: Cell<u64>,
    /// Checksum of the page before that.
    pub(crate) stable_chain: Cell<u64>,
    /// Devices that pages are written to.
    pub(crate) set: RefCell<Vec<u16>>,
    /// Replaced blocks of which recovery has to log the entries.
    pub(crate) replaced: RefCell<Vec<Entry>>,
    /// Groups closed, and groups that are over: they end in order.
    closed: Cell<u64>,
    ended: Cell<u64>,
    in_order: WaitChannel,
    /// What the last page says of `stable`, and one more than the last page that says anything else.
    told: Cell<u64>,
    filled: Cell<u64>,
    /// Somebody waits for the log to be idle.
    resting: Cell<bool>,
}

impl Log {
    pub(crate) fn new(next_lsn: u64, chain: u64, set: Vec<u16>) -> Log {
        Log {
            work: WaitChannel::new(0),
            coming: Cell::default(),
            open: RefCell::default(),
            slots: WaitChannel::new(IN_FLIGHT),
            next_lsn: Cell::new(next_lsn),
            chain: Cell::new(chain),
            stable: Cell::new(next_lsn),
            stable_chain: Cell::new(chain),
            set: RefCell::new(set),
            replaced: RefCell::default(),
            closed: Cell::new(0),
            ended: Cell::new(0),
            in_order: WaitChannel::new(0),
            told: Cell::new(next_lsn),
            filled: Cell::new(0),
            resting: Cell::new(false),
        }
    }
}

impl Log {
    /// Nothing is to be committed, or being committed.
    pub(crate) fn is_idle(&self) -> bool {
        self.closed.get() == self.ended.get() && self.open.borrow().pages.borrow().is_empty()
    }
}

impl Inner {
    /// Pages of the ring in use, with those of the open group.
    pub(crate) fn log_used(&self) -> u64 {
        let open = self.log.open.borrow().pages.borrow().len() as u64;
        let durable = self.durable.borrow();
        let base = match durable.turns.last().filter(|_| has(Bug::RingOverTail)) {
            Some(turn) => turn.first,
            None => durable.base_lsn,
        };
        self.log.next_lsn.get() + open - base
    }

    /// Whether so many pages may be added to the log now, by one group.
    pub(crate) fn log_has_room(&self, pages: u64) -> bool {
        let open = self.log.open.borrow().pages.borrow().len() as u64;
        let ring = self.durable.borrow().log_pages;
        open + pages < GROUP_PAGES as u64 && self.log_used() + pages + margin(ring) <= ring
    }

    /// Whether the log would have room for so many pages of one group, were there nothing else in it.
    pub(crate) fn log_could_hold(&self, pages: u64) -> bool {
        let ring = self.durable.borrow().log_pages;
        pages + SPARE_PAGES < GROUP_PAGES as u64 && 2 * pages + margin(ring) <= ring
    }

    /// Waits until the open group is on its way.
    pub(crate) async fn log_moves(&self) -> IoResult {
        let g = self.log.open.borrow().clone();
        match g.pages.borrow().is_empty() {
            true => return Ok(()),
            false => self.log.work.signal(),
        }
        g.wait().await
    }

    /// The group that is open, for the caller to add to without waiting in between.
    pub(crate) fn open_group(&self) -> Rc<Group> {
        self.log.open.borrow().clone()
    }

    /// Adds a run of written blocks to a group: its data goes on its way, its entry into a page.
    pub(crate) fn add_write(
        &self,
        g: &Group,
        ds: &Rc<Dataset>,
        lba: u64,
        first: MapEntry,
        crcs: &[u32],
        data: &Slice,
    ) -> IoResult {
        if !self.submit(first.vbn, data, &mut g.io.borrow_mut()) {
            return Err(IoError::Offline);
        }
        self.count(|c| c.blocks_written += crcs.len() as u64);
        let (mut done, mut pages) = (0, g.pages.borrow_mut());
        while done < crcs.len() {
            let room = pages.last().map_or(0, |p| blocks_in(p.room()));
            if room == 0 {
                pages.push(PageBuilder::default());
                continue;
            }
            let n = room.min(crcs.len() - done);
            let at = MapEntry { vbn: first.vbn + done as u64, ..first };
            if let Some(p) = pages.last_mut() {
                p.write(ds.id, lba + done as u64, at, &crcs[done..done + n]);
            }
            done += n;
        }
        self.comes(g, crcs.len() as u64);
        let mut effects = g.effects.borrow_mut();
        for (i, crc) in crcs.iter().enumerate() {
            let e = MapEntry { vbn: first.vbn + i as u64, birth: first.birth, crc: *crc };
            effects.push(Effect::Put(ds.clone(), lba + i as u64, e));
        }
        Ok(())
    }

    /// Adds an entry to a group.
    pub(crate) fn add_entry(&self, g: &Group, entry: &Entry, effect: Effect) {
        let mut pages = g.pages.borrow_mut();
        if !(has(Bug::TrimNotLogged) && matches!(entry, Entry::Trim { .. })) {
            if pages.last().is_none_or(|p| p.room() < entry.slots()) {
                pages.push(PageBuilder::default());
            }
            if let Some(p) = pages.last_mut() {
                p.push(entry);
            }
        } else if pages.is_empty() {
            pages.push(PageBuilder::default());
        }
        if !matches!(effect, Effect::None) {
            self.comes(g, 2);
        }
        g.effects.borrow_mut().push(effect);
    }

    /// So many entries in a row are part of a group.
    #[inline]
    fn comes(&self, g: &Group, entries: u64) {
        let row = Coming::row(entries);
        g.coming.set(g.coming.get().and(row));
        self.log.coming.set(self.log.coming.get().and(row));
    }

    /// A group is over.
    fn end_group(&self, g: &Group, result: IoResult) {
        self.log.coming.set(self.log.coming.get().without(g.coming.take()));
        g.end(result);
    }

    /// The group may be committed; `lock` and `pass` are held until it is over.
    pub(crate) fn submit_group(&self, g: &Group, lock: Option<RangeLock>, pass: Pass) {
        g.guards.borrow_mut().push((lock, pass));
        if self.log.work.count() == 0 {
            self.log.work.signal();
        }
    }

    /// Logs one entry that has no effect on maps, whatever room there is.
    pub(crate) async fn log_one(&self, entry: Entry) -> IoResult {
        self.check_running()?;
        if self.ckpt.is_closed() {
            return Err(IoError::Offline);
        }
        let g = self.open_group();
        self.add_entry(&g, &entry, Effect::None);
        self.submit_group(&g, None, self.gate.pass());
        g.wait().await
    }

    /// The task that closes groups, one after the other.
    pub(crate) async fn committer(self: Rc<Self>) {
        loop {
            self.log.work.wait().await;
            self.log.slots.wait().await;
            // Whoever is runnable now may still join.
            run_async().await;
            while self.log.work.try_wait() {}
            let g = self.log.open.replace(Rc::default());
            let empty = g.pages.borrow().is_empty();
            if let (Err(e), false) = (self.check_running(), empty) {
                // None of its pages is written, so it did not happen. Its data is on its way, to places that nobody uses.
                let mut io = g.io.take();
                device::wait(&mut io, self.options.deadline).await;
                self.log.slots.signal();
                self.end_group(&g, Err(e));
                if self.ckpt.is_closed() {
                    return;
                }
                continue;
            }
            if empty {
                self.log.slots.signal();
                self.end_group(&g, self.check_running());
                // Of a pool that is being closed, those who are at it still come to their end.
                if self.ckpt.is_closed() && self.check_running().is_err() {
                    return;
                }
                continue;
            }
            let ticket = self.log.closed.get();
            self.log.closed.set(ticket + 1);
            self.seal(&g);
            let me = self.clone();
            let last = (self.log.next_lsn.get(), self.log.chain.get());
            spawn_task(async move { me.finish(g, ticket, last).await });
        }
    }

    /// Numbers the pages of a group and starts writing them.
    fn seal(&self, g: &Group) {
        let log = &self.log;
        let mut io = g.io.borrow_mut();
        let pages = std::mem::take(&mut *g.pages.borrow_mut());
        let base_seq = self.durable.borrow().seq;
        for p in pages {
            let lsn = log.next_lsn.get();
            let head = PageHead {
                pool: self.tag,
                incarnation: self.incarnation.get(),
                owner_epoch: self.owner_epoch(),
                lsn,
                previous: log.chain.get(),
                stable: log.stable.get(),
                base_seq,
                recovery: false,
            };
            let empty = p.is_empty();
            let (block, crc) = p.seal(&head);
            log.next_lsn.set(lsn + 1);
            log.chain.set(crc);
            log.told.set(head.stable);
            if !empty {
                log.filled.set(lsn + 1);
            }
            self.count(|c| c.log_pages += 1);
            let buf = self.bufs.try_alloc(BLOCK).unwrap_or_else(|| Slice::heap(BLOCK));
            buf.write_at(0, &block[..]);
            for number in log.set.borrow().iter() {
                if let Some(d) = self.device(*number).filter(|d| d.is_current()) {
                    self.count(|c| c.media_writes += 1);
                    d.submit_write(d.layout.log(lsn), &buf, &mut io);
                }
            }
        }
    }

    /// Waits for a group's writes, flushes, lets it take effect in its turn.
    async fn finish(self: Rc<Self>, g: Rc<Group>, ticket: u64, (last, chain): (u64, u64)) {
        let mut io = g.io.take();
        if has(Bug::AckAfterOneHalf) {
            io.retain(|p| p.device % 2 == 0);
        }
        self.flush_after(&mut io).await;
        while self.log.ended.get() != ticket {
            self.log.in_order.wait().await;
        }
        if self.unrecorded() && !has(Bug::NoMembershipRecord) {
            let _ = self.record_membership().await;
        }
        let result = self.check_running();
        let effects = g.effects.take();
        if result.is_ok() {
            for e in effects {
                self.apply(e);
            }
            self.log.stable.set(last);
            self.log.stable_chain.set(chain);
            self.say_soon();
        } else {
            effects.iter().for_each(Effect::is_undecided);
        }
        self.count(|c| c.groups += 1);
        self.log.ended.set(ticket + 1);
        self.log.in_order.signal_all();
        self.end_group(&g, result);
        self.log.slots.signal();
        if self.log_used() * 2 > self.durable.borrow().log_pages {
            self.ckpt.kick();
        }
    }

    /// Has the log say, when nothing more comes, that its last pages are durable. Until a page does, recovery has to look
    /// whether they are, and the only copy of a block that cannot be read then would leave it in doubt.
    fn say_soon(self: &Rc<Self>) {
        if self.log.resting.replace(true) {
            return;
        }
        // The pool may be let go of meanwhile.
        let me = Rc::downgrade(self);
        spawn_task(async move {
            loop {
                let Some(closed) = me.upgrade().map(|i| i.log.closed.get()) else { return };
                sleep(IDLE).await;
                let Some(i) = me.upgrade() else { return };
                if i.log.closed.get() != closed {
                    continue;
                }
                i.log.resting.set(false);
                if i.log.told.get() < i.log.filled.get() {
                    i.tell_stable();
                }
                // What was given back is free after a checkpoint, and somebody may be waiting for that.
                let total = i.space.borrow().total();
                if i.room() < total / 8 && i.ckpt.entries.get() > 0 {
                    i.ckpt.kick();
                }
                return;
            }
        });
    }

    /// Writes a page that has nothing but its header.
    fn tell_stable(&self) {
        // After the last checkpoint there is nothing in the log that anybody could doubt.
        let closing = self.ckpt.closing.get() && !has(Bug::TellsAtTheEnd);
        if self.check_running().is_err() || closing || !self.log_has_room(PAGES) {
            return;
        }
        let g = self.open_group();
        if g.pages.borrow().is_empty() {
            g.pages.borrow_mut().push(PageBuilder::default());
            self.submit_group(&g, None, self.gate.pass());
        }
    }

    /// Waits for writes and flushes the devices that they went to. Failures are noted.
    pub(crate) async fn flush_after(&self, io: &mut Vec<Pending>) {
        let mut touched: u128 = io.iter().fold(0, |m, p| m | 1 << p.device);
        let failed = device::wait(io, self.options.deadline).await;
        for (d, _) in &failed {
            touched &= !(1 << d);
        }
        self.note_failures(failed);
        if !has(Bug::AckBeforeFlush) {
            self.flush_devices(touched).await;
        }
    }

    /// Flushes the devices of a set, all at once. Failures are noted.
    pub(crate) async fn flush_devices(&self, set: u128) {
        let devices: Vec<_> = self.devices.borrow().clone();
        let wanted = |d: &&Rc<Device>| set >> d.number & 1 == 1 && d.usable() && d.volatile();
        let all: Vec<&Rc<Device>> = devices.iter().filter(wanted).collect();
        let limit = self.options.deadline;
        let one = |k: usize| {
            let d = all[k];
            IoFuture::new(async move {
                if let Err(e) = d.flush(limit).await
                    && !has(Bug::FlushFailureIgnored)
                {
                    self.device_failed(d, e);
                }
                Ok(())
            })
        };
        let _ = join_parts(all.len(), one).await;
    }

    fn apply(&self, effect: Effect) {
        match effect {
            Effect::Put(ds, lba, entry) => self.apply_put(&ds, lba, entry),
            Effect::Wipe(ds, lba, blocks) => self.apply_wipe(&ds, lba, blocks),
            Effect::None => {}
        }
    }

    pub(crate) fn apply_put(&self, ds: &Dataset, lba: u64, entry: MapEntry) {
        let old = ds.top.active.borrow_mut().map.insert(lba, entry);
        self.losses.is_anew(ds.id, lba, 1);
        if entry.is_poison() {
            self.losses.is_lost(ds.id, lba, None);
        }
        match old {
            Some(o) if o.is_data() => self.free_later(o.vbn),
            Some(_) => {}
            None => self.ckpt.entries.set(self.ckpt.entries.get() + 1),
        }
    }

    pub(crate) fn apply_wipe(&self, ds: &Dataset, lba: u64, blocks: u64) {
        let gone = ds.top.active.borrow_mut().wipe(lba, blocks);
        self.losses.is_anew(ds.id, lba, blocks);
        self.ckpt.entries.set(self.ckpt.entries.get() + 2);
        for e in gone.iter().filter(|e| e.is_data()) {
            self.free_later(e.vbn);
        }
    }
}

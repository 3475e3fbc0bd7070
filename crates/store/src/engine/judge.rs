//! Writes of which the log does not say that they were whole: whether they happened, and what is done so that this stays so.

use super::gather::Gather;
use super::old_log::OldLog;
use super::replay::Again;
use super::write::Leave;
use super::{Inner, StoreError, StoreResult};
use crate::format::BLOCK;
use crate::format::log::{Found, Run, entries};
use crate::format::tree::MapEntry;
use crate::planted::{Bug, has};
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_mem::Slice;
use weir_reactor::sleep;

/// Blocks that such writes are on. Nobody else gets them until the verdicts are durable: a recovery that does not come to
/// its end must leave to the next one what it found.
#[derive(Default)]
pub(super) struct Doubtful(BTreeMap<u64, Use>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Of nothing: it did not happen, or it is elsewhere now.
    None,
    /// Of a map.
    Map,
}

impl Doubtful {
    /// Blocks that nothing uses.
    pub(super) fn unused(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().filter(|(_, u)| **u == Use::None).map(|(vbn, _)| *vbn)
    }
}

/// Blocks of a dataset side by side, on their way into the log.
struct Side {
    dataset: u32,
    lba: u64,
    first: MapEntry,
    crcs: Vec<u32>,
}

impl Side {
    fn takes(&self, dataset: u32, lba: u64, e: &MapEntry) -> bool {
        let n = self.crcs.len() as u64;
        (self.dataset, self.lba + n, self.first.vbn + n) == (dataset, lba, e.vbn)
    }

    fn log(self, again: &mut Again) {
        again.run(self.dataset, self.lba, self.first, &self.crcs);
    }
}

impl Inner {
    /// Sets the blocks apart that doubtful writes are on.
    pub(super) fn doubtful(&self, old: &OldLog) -> StoreResult<Doubtful> {
        let mut doubtful = Doubtful::default();
        let mut space = self.space.borrow_mut();
        for (lsn, page) in old.pages.range(old.stable..) {
            for e in entries(&page.block) {
                let e = e.map_err(|e| StoreError::Pool(format!("page {lsn} of the log: {e}")))?;
                let Found::Write(r) = e else { continue };
                for vbn in r.vbn..r.vbn.saturating_add(r.blocks() as u64) {
                    // If its dataset is there, one that is taken or no place is an error.
                    if space.is_place(vbn) && space.take(vbn) {
                        doubtful.0.insert(vbn, Use::None);
                    }
                }
            }
        }
        Ok(doubtful)
    }

    /// Takes up what happened of a write that may not be whole, and logs that anew.
    pub(super) async fn judge(
        self: &Rc<Self>,
        r: &Run<'_>,
        gather: &mut Gather,
        again: &mut Again,
        doubtful: &mut Doubtful,
    ) -> StoreResult {
        let Some(ds) = gather.dataset(self, r.dataset) else { return Ok(()) };
        let mut side: Option<Side> = None;
        for (k, crc) in (0..).zip(r.crcs()) {
            let (lba, entry) = (r.lba + k, MapEntry { vbn: r.vbn + k, birth: r.birth, crc });
            if !self.space.borrow().is_place(entry.vbn) {
                let text = format!("the log names block {}, which is no place", entry.vbn);
                return Err(StoreError::Pool(text));
            }
            let Some(good) = self.complete(ds.family, lba, entry).await? else {
                self.count(|c| c.replay_dropped += 1);
                continue;
            };
            let apart = doubtful.0.get(&entry.vbn) == Some(&Use::None);
            match (good.vbn == entry.vbn, apart) {
                (true, true) => {
                    doubtful.0.insert(entry.vbn, Use::Map);
                    gather.taken(r.dataset, lba, good);
                }
                (false, true) => gather.taken(r.dataset, lba, good),
                (_, false) => gather.block(self, r.dataset, lba, entry)?,
            }
            match side.as_mut().filter(|s| s.takes(r.dataset, lba, &good)) {
                Some(s) => s.crcs.push(good.crc),
                None => {
                    let next = Side { dataset: r.dataset, lba, first: good, crcs: vec![good.crc] };
                    if let Some(s) = side.replace(next) {
                        s.log(again);
                    }
                }
            }
        }
        if let Some(s) = side {
            s.log(again);
        }
        // Whether there is space depends on what is in the layers.
        gather.settle(self);
        Ok(())
    }

    /// Whether the data of an entry was written to any half; if so, the entry to go by, whose data all halves have once they
    /// are flushed.
    ///
    /// A copy that was read and is wrong shows that the write was not acknowledged: that takes all halves. One that cannot be
    /// read shows nothing. When no other tells, the write counts as done: it may have been acknowledged, and then older data
    /// in its place would be silently wrong, while this is an error for as long as the block cannot be read.
    ///
    /// After a flush that failed, a device can still show from its cache what the medium never got, and later flushes do not
    /// bring it there; so what reads well has to be written again. Not in its place if there is any other: a power cut would
    /// tear what may be the only copy of something acknowledged.
    async fn complete(&self, family: u32, lba: u64, e: MapEntry) -> IoResult<Option<MapEntry>> {
        if has(Bug::ReplayWithoutData) {
            return Ok(Some(e));
        }
        let id = self.identity(family, lba, e.birth, e.vbn);
        let mut pauses = Inner::patience(self.counters.get().replay_unread).iter();
        let mut data = None;
        loop {
            let (mut wrong, mut unread) = (false, false);
            for (d, at) in self.copies_of(e.vbn).into_iter().flatten() {
                if !d.is_current() {
                    continue;
                }
                let buf = Slice::heap(BLOCK);
                match d.read(at, &buf, self.options.deadline).await {
                    Ok(()) if self.proves(&id, e.crc, &buf, 0) => {
                        data.get_or_insert(buf);
                    }
                    Ok(()) => wrong = true,
                    Err(IoError::Offline) => return Err(IoError::Offline),
                    Err(_) => unread = true,
                }
            }
            if data.is_some() || (wrong && !unread) || has(Bug::UnreadIsUnwritten) {
                break;
            }
            match pauses.next() {
                Some(pause) => sleep(*pause).await,
                None if wrong => break,
                None => {
                    self.count(|c| c.replay_unread += 1);
                    return Ok(Some(e));
                }
            }
        }
        let Some(data) = data else { return Ok(None) };
        if has(Bug::ServeBeforeRepair) || self.options.read_only {
            return Ok(Some(e));
        }
        if let Some(vbn) = self.place_again(e.birth) {
            self.count(|c| c.replay_moved += 1);
            if self.write_again(vbn, &data).await {
                let id = self.identity(family, lba, e.birth, vbn);
                let crc =
                    if self.options.sum_data { self.data_crc(&id, &data, 0) } else { id.mask() };
                return Ok(Some(MapEntry { vbn, crc, ..e }));
            }
            self.space.borrow_mut().release(vbn);
        }
        // There is no other place. One device after the other, each flushed before the next one is begun: a power cut tears one
        // copy at most. That there is only one is left: then what was acknowledged is on the medium as it is written here.
        let here = self.copies_of(e.vbn).into_iter().flatten().filter(|(d, _)| d.is_current());
        for (d, at) in here.filter(|_| !has(Bug::LeftInCache)) {
            self.count(|c| c.replay_repairs += 1);
            self.mend(&d, at, &data, &self.pins.pin()).await;
        }
        Ok(Some(e))
    }

    /// A place for a block born in this epoch, if need be out of what is kept free: after a checkpoint the old one is free.
    /// `None`: there is no space, or no place whose devices that are out of sync would be brought what was born then. What is older than that is durable: no epoch ends while a write is under way.
    fn place_again(&self, birth: u32) -> Option<u64> {
        if !self.has_space(1, Leave::Nothing) || has(Bug::LeftInCache) {
            return None;
        }
        let (vbn, _) = self.space.borrow_mut().alloc(1)?;
        let copies = self.copies_of(vbn);
        let all = copies.iter().flatten();
        let fits = all.clone().all(|(d, _)| d.is_current() || d.since.get() <= birth);
        if fits && all.clone().any(|(d, _)| d.is_current()) {
            return Some(vbn);
        }
        self.space.borrow_mut().release(vbn);
        None
    }

    /// Writes a block to all current devices that its place is on; false: none has it.
    async fn write_again(&self, vbn: u64, data: &Slice) -> bool {
        let mut written = false;
        for (d, at) in self.copies_of(vbn).into_iter().flatten() {
            if !d.is_current() {
                continue;
            }
            self.count(|c| c.media_writes += 1);
            match d.write(at, data, self.options.deadline).await {
                Ok(()) => written = true,
                Err(IoError::Medium) => {
                    self.mend(&d, at, data, &self.pins.pin()).await;
                    written |= d.is_current();
                }
                Err(e) => self.device_failed(&d, e),
            }
        }
        written
    }
}

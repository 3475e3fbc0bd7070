//! Damage: found by checksum, mended from the other copy, moved to a spare, or owned up to.

use super::Inner;
use super::copies::{Look, SOON, Seen, Shown, Which, told};
use super::dataset::Dataset;
use super::device::Device;
use super::locks::Pin;
use super::stage::Found;
use crate::format::BLOCK;
use crate::format::log::Entry;
use crate::format::tree::MapEntry;
use crate::planted::{Bug, has};
use std::rc::Rc;
use weir_base::{IoError, IoResult, Nanos};
use weir_mem::Slice;
use weir_reactor::{sleep, spawn_task};

/// How a damaged copy is mended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Means {
    /// In its place, or by a spare if that does not take it.
    Any,
    Spare,
}

impl Inner {
    /// Writes verified data over a damaged copy, and looks whether it took; else replaces the block. False: it is not
    /// mended. Under `pin` the block stays in its place, also when the caller is gone before the write has ended.
    pub(crate) async fn mend(&self, d: &Rc<Device>, at: u64, data: &Slice, pin: &Pin) -> bool {
        self.mend_by(d, at, data, pin, Means::Any).await
    }

    /// The same of a place that does not give back what is written there.
    pub(super) async fn mend_by_spare(
        &self,
        d: &Rc<Device>,
        at: u64,
        data: &Slice,
        pin: &Pin,
    ) -> bool {
        self.mend_by(d, at, data, pin, Means::Spare).await
    }

    async fn mend_by(&self, d: &Rc<Device>, at: u64, data: &Slice, pin: &Pin, by: Means) -> bool {
        let Some(me) = self.me.upgrade() else { return false };
        if has(Bug::MendGivenUp) {
            return me.mend_held(d, at, data, by).await;
        }
        let (d, data, pin) = (d.clone(), data.clone(), pin.clone());
        let work = async move {
            let mended = me.mend_held(&d, at, &data, by).await;
            drop(pin);
            mended
        };
        self.to_the_end(work).await.unwrap_or(false)
    }

    async fn mend_held(&self, d: &Rc<Device>, at: u64, data: &Slice, by: Means) -> bool {
        let possible = || d.usable() && !self.options.read_only && self.check_running().is_ok();
        for _ in 0..if by == Means::Any { 2 } else { 0 } {
            if !possible() {
                return false;
            }
            if self.rewrite(d, at, data).await {
                self.count(|c| c.repaired += 1);
                self.works.damage.good(d, at, 1);
                return true;
            }
        }
        if !possible() || self.replace(d, at, data).await.is_err() {
            return false;
        }
        self.works.damage.good(d, at, 1);
        self.count(|c| {
            c.repaired += 1;
            c.relocated += 1;
        });
        true
    }

    /// Writes a block and looks whether it took.
    pub(super) async fn rewrite(&self, d: &Rc<Device>, at: u64, data: &Slice) -> bool {
        let limit = self.options.deadline;
        self.count(|c| c.media_writes += 1);
        match d.write(at, data, limit).await {
            Ok(()) => {}
            // A block that cannot be written is replaced; the device need not be given up for it.
            Err(IoError::Medium) => return false,
            Err(e) => {
                self.device_failed(d, e);
                return false;
            }
        }
        if let Err(e) = d.flush(limit).await {
            self.device_failed(d, e);
            return false;
        }
        for pause in SOON.iter().map(Some).chain([None]) {
            let back = Slice::heap(BLOCK);
            match (d.read(at, &back, limit).await, pause) {
                (Ok(()), _) => {
                    return back.to_vec() == data.to_vec() || has(Bug::MendNotReadBack);
                }
                (Err(IoError::Medium | IoError::Offline), _) => return false,
                (Err(_), Some(pause)) => sleep(*pause).await,
                // It was written and flushed; an error on the way back says nothing else. A damage that stays is found again.
                (Err(_), None) => {}
            }
        }
        true
    }

    /// Lets a spare block of the device take the place of one that does not hold what is written.
    async fn replace(&self, d: &Rc<Device>, at: u64, data: &Slice) -> IoResult {
        let spare = d.spares_used.get();
        if u64::from(spare) >= d.layout.spares || !self.may_replace() {
            return Err(IoError::NoSpace);
        }
        d.spares_used.set(spare + 1);
        if !self.rewrite(d, d.layout.spare(u64::from(spare)), data).await {
            return Err(IoError::Medium);
        }
        d.remap.borrow_mut().insert(at, spare);
        let entry = Entry::Remap { device: d.number, from: at, spare };
        if !self.serving.get() {
            self.log.replaced.borrow_mut().push(entry);
            return Ok(());
        }
        // Before the entry is durable, a crash forgets the spare, and the damage is found again.
        self.log_one(entry).await
    }

    /// Reads one block of data whose first copy did not verify. `locked`: the caller has locked the block.
    pub(crate) async fn heal(
        self: &Rc<Self>,
        ds: &Rc<Dataset>,
        lba: u64,
        dst: &Slice,
        locked: bool,
    ) -> IoResult {
        let _lock = match locked {
            true => None,
            false => Some(ds.locks.lock(lba, lba + 1).await),
        };
        // Whether it is still the same entry is only sure under a pin, and a pause must not keep a checkpoint waiting.
        let mut pauses = SOON.iter();
        loop {
            let pin = self.pins.pin();
            if ds.is_stale() {
                return Err(IoError::Offline);
            }
            let maps = ds.maps.get();
            let entry = self.entry(&pin, ds, lba).await?;
            if entry.is_poison() {
                self.lose(ds, lba, entry, maps);
                return Err(IoError::Medium);
            }
            if !entry.is_data() {
                dst.fill(0);
                return Ok(());
            }
            let seen = self.look_at(ds, lba, entry, &[]).await;
            if let Some(pause) = seen.passing().and_then(|_| pauses.next()) {
                drop(pin);
                sleep(*pause).await;
                continue;
            }
            let (wrong, begun) = (matches!(seen.look, Look::Wrong), seen.begun);
            let unreadable = matches!(seen.look, Look::Unread(IoError::Medium));
            let result = self.take(seen, dst, &pin, ds).await;
            // What follows may wait for a checkpoint, which waits for readers.
            drop(pin);
            match result {
                Err(IoError::Medium) if has(Bug::ZerosForDamage) => dst.fill(0),
                Err(_) if wrong => {
                    self.lose(ds, lba, entry, maps);
                    let proved = self.is_proved((entry.vbn, entry.crc), Shown::Wrong, begun)
                        && ds.is_volume();
                    if proved && !self.poison(ds, lba, entry).await? {
                        // It is another one by now, or there is none any more.
                        self.losses.is_anew(ds.id, lba, 1);
                        continue;
                    }
                    return result;
                }
                // Should it pass, a read well ends that.
                Err(_) if unreadable => {
                    self.lose(ds, lba, entry, maps);
                    return result;
                }
                _ => return result,
            }
            return Ok(());
        }
    }

    /// Looks at the copies of a block of data.
    pub(super) async fn look_at(
        &self,
        ds: &Dataset,
        lba: u64,
        entry: MapEntry,
        pauses: &[Nanos],
    ) -> Seen {
        let id = self.identity(ds.family, lba, entry.birth, entry.vbn);
        let good = |b: &Slice| self.proves(&id, entry.crc, b, 0);
        self.look((entry.vbn, entry.crc.into()), good, Which::All, pauses).await
    }

    /// Takes what a look at a dataset's block has found, tells of what is damaged, and mends it.
    pub(super) async fn take(&self, seen: Seen, dst: &Slice, pin: &Pin, ds: &Dataset) -> IoResult {
        let (data, bad) = told(self.conclude(seen, Some(ds)))?;
        dst.copy_from(0, &data, 0, BLOCK);
        self.mend_all(bad, &data, pin).await;
        Ok(())
    }

    /// The entry of a block, wherever it is. Without the pin, pages on the way may be put to another use between two reads.
    pub(crate) async fn entry(&self, _pin: &Pin, ds: &Dataset, lba: u64) -> IoResult<MapEntry> {
        match ds.top.find(lba) {
            Found::Entry(e) => Ok(e),
            Found::Tree(root) => self.entry_in(root, ds.family, lba).await,
        }
    }

    /// Where the copies of a logical block are: number and block of each device. Empty: nowhere.
    pub(crate) async fn locate(&self, ds: &Dataset, lba: u64) -> IoResult<Vec<(u16, u64)>> {
        let e = self.entry(&self.pins.pin(), ds, lba).await?;
        if !e.is_data() {
            return Ok(Vec::new());
        }
        let copies = self.copies_of(e.vbn).into_iter().flatten();
        Ok(copies.map(|(d, at)| (d.number, at)).collect())
    }

    /// A device does not do what it should: nothing is sent to it any more.
    pub(crate) fn device_failed(&self, d: &Rc<Device>, why: IoError) {
        if d.failed.get().is_some() || d.disk.is_none() {
            return;
        }
        d.failed.set(Some(why));
        if self.suspended.get().is_some() {
            // Nothing is written any more, so what it has stays as current as it is.
            d.kept.set(true);
            return;
        }
        d.out_at.set(weir_reactor::now());
        self.upkeep.wake();
        self.count(|c| c.devices_failed += 1);
        use crate::format::superblock::MemberState::{InSync, Out, Syncing};
        match d.state.get() {
            InSync => {
                d.state.set(Out);
                // What the checkpoint under way or the open log holds may be missing there.
                d.since.set(self.durable.borrow().epoch);
                self.failures.set(self.failures.get() + 1);
            }
            Syncing => d.state.set(Out),
            _ => {}
        }
        if !self.may_go_on() {
            self.suspend(why);
            self.keep_readable();
        }
        self.arrange();
        self.ckpt.wake();
        if self.durable.borrow().log_set.contains(&Some(d.number)) && self.serving.get() {
            // A checkpoint gives it another second copy, which nothing else does. One that is under way looks when it has ended.
            self.ckpt.kick();
        }
    }

    pub(crate) fn note_failures(&self, failed: Vec<(u16, IoError)>) {
        for (number, e) in failed {
            if let Some(d) = self.device(number) {
                self.device_failed(&d, e);
            }
        }
    }

    /// Decides on which slabs new blocks are put.
    pub(crate) fn arrange(&self) {
        let devices = self.devices.borrow();
        self.space.borrow_mut().arrange(|s| {
            let current = |c: &crate::format::slab::Placement| {
                !c.filling && devices.get(usize::from(c.device)).is_some_and(|d| d.is_current())
            };
            s.offered && s.copies.iter().flatten().any(current)
        });
    }

    /// Looks after what failed, without anybody waiting.
    pub(crate) fn record_soon(self: &Rc<Self>) {
        if self.unrecorded() && self.check_running().is_ok() {
            let me = self.clone();
            spawn_task(async move {
                let _ = me.record_membership().await;
            });
        }
    }
}

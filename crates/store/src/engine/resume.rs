//! A pool that is suspended: what of it can still be read, and how it goes on.
//!
//! A pool is suspended when what is to be written fails for all copies. It goes on by being opened again in its place, so that
//! nothing but recovery decides what happened of the writes under way.

use super::device::Device;
use super::old_log::OldLog;
use super::unended::assemble_quiet;
use super::{Inner, Pool, StoreError, StoreResult, block_of};
use crate::format::log::decode_head;
use crate::format::superblock::{MemberState, Superblock};
use crate::format::{BLOCK, FormatError};
use crate::planted::{Bug, has};
use std::cell::OnceCell;
use std::ops::Deref;
use std::rc::Rc;
use weir_mem::Slice;
use weir_reactor::{patience, spawn_task};

fn older() -> StoreError {
    let why = "what is on its devices is older than what hosts were told is written: one was put back to an earlier state. Put \
               it back to its last state. A restart of the daemon goes on with what is there, and what that lacks is lost";
    StoreError::Pool(why.into())
}

/// A pool opened once.
struct Life {
    inner: Rc<Inner>,
    /// It was suspended, and opened again.
    next: OnceCell<Rc<Life>>,
}

/// What a pool is now, which follows it when it is opened again.
pub(crate) struct Lives(Rc<Life>);

impl Lives {
    pub(super) fn begin(inner: Rc<Inner>) -> Lives {
        Lives(Rc::new(Life { inner, next: OnceCell::new() }))
    }

    fn last(&self) -> &Life {
        let mut life = &self.0;
        while let Some(next) = life.next.get() {
            life = next;
        }
        life
    }
}

// Not of `Lives`: a clone of what it derefs to is asked for more often.
impl Clone for Pool {
    fn clone(&self) -> Self {
        Pool(Lives(self.0.0.clone()))
    }
}

impl Deref for Lives {
    type Target = Rc<Inner>;

    #[inline]
    fn deref(&self) -> &Rc<Inner> {
        &self.last().inner
    }
}

/// I/O of a volume is under way.
pub(super) struct User(Rc<Inner>);

impl Drop for User {
    fn drop(&mut self) {
        let i = &self.0;
        i.users.set(i.users.get() - 1);
        if i.users.get() == 0 {
            i.no_users.signal_all();
        }
    }
}

impl Inner {
    pub(super) fn user(self: &Rc<Self>) -> User {
        self.users.set(self.users.get() + 1);
        User(self.clone())
    }

    /// A device failed and with it the whole pool. What the newest superblock calls current has everything that was
    /// acknowledged, as nothing is acknowledged before a superblock says otherwise; so that can be read.
    pub(super) fn keep_readable(&self) {
        if has(Bug::SuspendedUnread) {
            return;
        }
        let durable = self.durable.borrow();
        for (d, m) in self.devices.borrow().iter().zip(&durable.members) {
            if m.device != d.id {
                continue;
            }
            let current = m.state == MemberState::InSync;
            if current {
                d.state.set(MemberState::InSync);
                d.since.set(m.since);
            }
            d.kept.set(current);
        }
    }

    /// What is found on the devices of this life, which is over, must not be older than it: hosts would go on with what they had
    /// before. A disk that was away may have been put back to an earlier state.
    pub(super) fn is_followed_by(&self, found: &Superblock) -> StoreResult {
        let last = self.durable.borrow();
        let follows = found.rank() > last.rank() || found.chain() == last.chain();
        if follows || has(Bug::ResumedFromBefore) { Ok(()) } else { Err(older()) }
    }

    /// As [`is_followed_by`](Inner::is_followed_by), for the log of `new`, as it was read: it has what was acknowledged last.
    pub(super) fn is_in(&self, new: &Inner, log: &OldLog) -> StoreResult {
        let last = self.last_page().filter(|_| self.knows(&new.durable.borrow()));
        let Some((lsn, crc)) = last else { return Ok(()) };
        let has_it = log.pages.get(&lsn).is_some_and(|p| p.crc == crc);
        // What a verdict or checkpoint of this life is the end of is read no more; each device has been asked for it.
        if has_it || new.durable.borrow().chain() != self.durable.borrow().chain() {
            Ok(())
        } else {
            Err(older())
        }
    }

    /// Each of the devices that have the log has what was acknowledged last. One that was put back to an earlier state may count as in
    /// sync: its superblock is the newest that must be there, and what it lacks only the log tells of.
    pub(super) async fn is_in_each(&self, new: &Inner) -> StoreResult {
        if !self.knows(&new.durable.borrow()) {
            return Ok(());
        }
        for d in new.current_devices() {
            if !has(Bug::OneHalfIsAll) && !self.has_last_page(&d).await {
                return Err(older());
            }
        }
        Ok(())
    }

    /// Whether a superblock is of this life, or what it began with. A life after it may have taken its log over.
    fn knows(&self, s: &Superblock) -> bool {
        let (durable, begun, chain) = (self.durable.borrow(), self.begun.borrow(), s.chain());
        begun.iter().chain([&*durable]).any(|s| s.chain() == chain) && !has(Bug::ResumedFromBefore)
    }

    /// Whether a device that has the log has what this life acknowledged last, as far as can be told: a page may have rotted, or be
    /// unreadable.
    pub(super) async fn has_last_page(&self, d: &Device) -> bool {
        let Some((lsn, crc)) = self.last_page() else { return true };
        if !self.durable.borrow().log_set.contains(&Some(d.number)) {
            return true;
        }
        let buf = Slice::heap(BLOCK);
        if d.read(d.layout.log(lsn), &buf, self.options.deadline).await.is_err() {
            return true;
        }
        match decode_head(&block_of(&buf), self.tag) {
            Ok((_, found)) => found == crc,
            Err(e) => !matches!(e, FormatError::Magic | FormatError::Identity(_)),
        }
    }

    /// The last page of the log that this life has acknowledged, and its checksum, if that is behind its last superblock.
    fn last_page(&self) -> Option<(u64, u64)> {
        let durable = self.durable.borrow();
        // What a checkpoint has taken, and what other lives wrote, says nothing.
        let first = durable.turns.last().map_or(durable.base_lsn, |t| t.sure);
        let stable = self.log.stable.get();
        (stable > first).then(|| (stable - 1, self.log.stable_chain.get()))
    }

    /// Whether this life, which did not come to serve, began a superblock that the one before it knows nothing of. It may be on
    /// some devices, and says what happened.
    fn went_beyond(&self, before: &Inner) -> bool {
        let begun = before.begun.borrow();
        let durable = before.durable.borrow();
        let mut known = begun.iter().chain([&*durable]);
        let (mine, last) = (self.begun.borrow(), self.durable.borrow());
        let last = mine.last().unwrap_or(&last).chain();
        known.all(|s| s.chain() != last)
    }

    /// Waits until nothing is under way any more that this life began, but for writes that were given up, and ends it.
    async fn end(&self) -> StoreResult {
        self.end_upkeep().await;
        self.ckpt.close();
        self.log.work.signal();
        // Whoever waits for a checkpoint, or for a group, learns that there will be none.
        self.ckpt.over.signal_all();
        let limit = self.options.deadline;
        let quiet = async {
            while self.ckpt.running.get() {
                self.ckpt.over.wait().await;
            }
            // Nobody comes in any more: what is to be written fails before.
            let _closed = self.gate.close().await;
            self.rest().await;
            let _only = self.super_lock.acquire(1).await;
            self.pins.grace().await;
        };
        if patience(limit.saturating_mul(2), quiet).await.is_err() {
            return Err(StoreError::Pool("I/O is still under way; try again later".into()));
        }
        Ok(())
    }
}

impl Pool {
    /// Has a pool that is suspended go on, when its devices are well again: it is opened anew in its place. Volumes and
    /// whoever uses them stay. If that is not possible, it stays as it was.
    ///
    /// # Errors
    /// The pool is not suspended, or its devices are not well; what [`open`](Pool::open) says.
    pub async fn resume(&self) -> StoreResult {
        let old = self.0.clone();
        let in_service = || StoreError::State("the pool is not suspended: it is in service".into());
        // Nor does it wait for its turn: upkeep would wait behind it, and it for upkeep. What is suspended begins nothing new.
        if old.suspended.get().is_none() && !has(Bug::ResumedTooEarly) {
            return Err(in_service());
        }
        let only = old.upkeep.changes.acquire(1).await;
        if old.suspended.get().is_none() || !Rc::ptr_eq(&old, &self.0) {
            return Err(in_service());
        }
        if old.ckpt.is_ended() {
            return Err(StoreError::Request("the pool was closed".into()));
        }
        if old.is_fenced() {
            return Err(StoreError::State("another node owns the pool by now".into()));
        }
        if old.options.read_only {
            return Err(StoreError::Request("the pool was opened for reading only".into()));
        }
        // Nobody decides in the old life while the new one does.
        let still = match has(Bug::DecidedInTwoLives) {
            true => None,
            false => Some(old.deciding.acquire(1).await),
        };
        old.end().await?;
        let here = |d: &Rc<super::device::Device>| {
            d.disk.clone().filter(|_| d.state.get() != MemberState::Gone)
        };
        let disks = old.devices.borrow().iter().filter_map(here).collect();
        let mut options = super::Options { force: false, last: None, ..old.options.clone() };
        if let Some(o) = options.owner.as_mut().filter(|_| !has(Bug::AbleOfTheFirst)) {
            // Nodes may have come and gone since it was opened.
            o.able = old.owned.told();
        }
        // What this begins counts as the old life's, too: should it fail, the next try waits for that.
        let found = assemble_quiet(disks, options, old.works.clone()).await;
        old.fence_if_seen();
        let new = found?;
        new.check_owner(&new.durable.borrow(), true).map_err(StoreError::State)?;
        // A number that was given out stays with what got it, also if that did not last: somebody may have a handle to it.
        if !has(Bug::NumberTwice) {
            new.next_dataset.set(new.next_dataset.get().max(old.next_dataset.get()));
        }
        if has(Bug::LossBeforeItsTime) {
            new.losses.like(&old.losses);
        }
        new.counters.set(old.counters.get());
        new.upkeep.like(&old.upkeep);
        new.cache.borrow_mut().like(&old.cache.borrow());
        // Also if whoever asked for this goes away in the middle of it.
        old.superseded.set(!has(Bug::DecidedOverResume) && !has(Bug::DecidedInTwoLives));
        let mut recovered = new.recover(Some(&old)).await;
        if recovered.is_ok() {
            recovered = new.check_running().map_err(StoreError::from);
        }
        if let Err(e) = recovered {
            old.superseded.set(new.went_beyond(&old) && old.superseded.get());
            old.fence_if_seen();
            return Err(e);
        }
        // Reads that began in the old life may look at what this one frees.
        let pin = new.pins.pin();
        new.serve().await;
        let _ = self.0.last().next.set(Rc::new(Life { inner: new, next: OnceCell::new() }));
        old.over.set(true);
        drop((only, still));
        spawn_task(async move {
            while old.users.get() > 0 {
                old.no_users.wait().await;
            }
            drop(pin);
            // Nobody asks it any more.
            old.cache.borrow_mut().forget();
            old.datasets.borrow_mut().clear();
            // What leaves the pool in this life is nobody's any more.
            if !has(Bug::HeldByOldLife) {
                old.devices.borrow_mut().iter_mut().for_each(|d| *d = d.without_disk());
            }
        });
        Ok(())
    }
}

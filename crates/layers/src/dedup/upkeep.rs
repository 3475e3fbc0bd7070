//! What happens beside I/O: letting go of slots, and when the summary and the index are kept.

use super::format::{Place, Record, SLOTS, owner};
use super::meta::Op;
use super::{Figures, Hold, Inner};
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use weir_base::{IoResult, MILLIS, Nanos, SECONDS};
use weir_block::{IoFuture, join_parts};
use weir_reactor::{WaitChannel, sleep, spawn_task};

/// Slots that wait to be let go of before changes wait for that too.
pub(super) const QUEUE: usize = 1024;
/// How long they wait, so that several of a group become one write.
const LATER: Nanos = 10 * MILLIS;
/// How often the summary is written.
const EVERY: Nanos = SECONDS;
/// After so many of those times without changes nothing has to be counted after a crash.
const QUIET: u32 = 5;
/// How often it is looked whether the index should be kept, and how much of it has to have changed, as a part.
const KEEP: Nanos = 300 * SECONDS;
const KEEP_PART: u64 = 16;
/// How long a recount that failed waits.
const AGAIN: Nanos = 5 * SECONDS;

impl Drop for Inner {
    fn drop(&mut self) {
        // The tasks see that it is gone.
        self.give.signal();
        self.account.bell.signal();
        self.account.count_bell.signal();
    }
}

/// Begins what happens beside I/O.
pub(super) fn begin(inner: &Rc<Inner>) {
    let (me, bell) = (Rc::downgrade(inner), inner.give.clone());
    spawn_task(giving(me, bell));
    let (me, bell) = (Rc::downgrade(inner), inner.account.bell.clone());
    inner.account.ring();
    spawn_task(accounting(me, bell));
    let (me, bell) = (Rc::downgrade(inner), inner.account.count_bell.clone());
    spawn_task(counting(me, bell));
    spawn_task(keeping(Rc::downgrade(inner)));
}

async fn giving(me: Weak<Inner>, bell: Rc<WaitChannel>) {
    let batch = RefCell::new(Vec::with_capacity(QUEUE));
    loop {
        bell.wait().await;
        sleep(LATER).await;
        let Some(inner) = me.upgrade() else { return };
        while bell.try_wait() {}
        let quiet = inner.quiet.lock(0, 1, true).await;
        inner.account.giving.set(true);
        batch.borrow_mut().extend(inner.left.borrow_mut().drain(..));
        let n = batch.borrow().len();
        let each = |i: usize| {
            let (slot, counted) = batch.borrow()[i];
            let inner = &inner;
            IoFuture::new(async move {
                // What fails stays as it is until it is counted.
                if inner.let_go(slot, counted).await.is_err() {
                    inner.account.has_leaked();
                }
                Ok(())
            })
        };
        let _ = join_parts(n, each).await;
        batch.borrow_mut().clear();
        inner.account.giving.set(false);
        drop(quiet);
        inner.account.room.signal_all();
    }
}

async fn accounting(me: Weak<Inner>, bell: Rc<WaitChannel>) {
    loop {
        bell.wait().await;
        let (mut quiet, mut seen) = (0, 0);
        loop {
            {
                let Some(inner) = me.upgrade() else { return };
                let a = &inner.account;
                let _quiet = inner.quiet.lock(0, 1, true).await;
                if a.dirty.take() && inner.keep_summary().await.is_err() && !a.read.get() {
                    // Tried again, until it can be read.
                    a.dirty.set(true);
                }
                quiet = if a.changes.get() == seen { quiet + 1 } else { 0 };
                seen = a.changes.get();
                if quiet >= QUIET && a.open.get() {
                    let _ = inner.close_up().await;
                }
                if !a.dirty.get() && (!a.open.get() || quiet > QUIET) {
                    break;
                }
            }
            sleep(EVERY).await;
        }
        sleep(EVERY).await;
    }
}

async fn counting(me: Weak<Inner>, bell: Rc<WaitChannel>) {
    loop {
        bell.wait().await;
        let Some(inner) = me.upgrade() else { return };
        while bell.try_wait() {}
        let a = &inner.account;
        while a.stale.get() {
            let epoch = a.epoch.get();
            // What is unknown from now on has to be counted again.
            a.counted.set(Some(0));
            a.stale.set(false);
            let done = inner.recount().await;
            a.counted.set(None);
            a.success.set(done.is_ok());
            a.ended.signal_all();
            if epoch != a.epoch.get() {
                continue;
            }
            match done {
                Ok(()) => {
                    a.changes.set(a.changes.get() + 1);
                    a.ring();
                }
                Err(_) => {
                    a.stale.set(true);
                    sleep(AGAIN).await;
                }
            }
            if a.closed.get() {
                return;
            }
        }
    }
}

async fn keeping(me: Weak<Inner>) {
    {
        let Some(inner) = me.upgrade() else { return };
        let _quiet = inner.quiet.lock(0, 1, true).await;
        // It is advice only.
        let _ = inner.load_index().await;
    }
    loop {
        sleep(KEEP).await;
        let Some(inner) = me.upgrade() else { return };
        let (changes, used) = {
            let index = inner.index.borrow();
            (index.changes(), index.used())
        };
        if changes > 0 && changes >= used / KEEP_PART {
            let _quiet = inner.quiet.lock(0, 1, true).await;
            let _ = inner.keep_index().await;
        }
    }
}

/// A change of records is under way.
pub(super) struct Committing<'a>(&'a Inner);

impl Drop for Committing<'_> {
    fn drop(&mut self) {
        let n = &self.0.committing;
        n.set(n.get() - 1);
        let a = &self.0.account;
        a.changes.set(a.changes.get() + 1);
        a.ring();
    }
}

impl Inner {
    pub(super) fn committing(&self) -> Committing<'_> {
        self.committing.set(self.committing.get() + 1);
        Committing(self)
    }

    /// Whether counts are known to be too high, perhaps.
    pub(super) fn is_counting(&self) -> bool {
        self.account.stale.get() || self.account.counted.get().is_some()
    }

    /// Waits until everything has been counted, if it can be. Not to be called while holding a lock of a slot.
    pub(super) async fn counted_again(&self) -> bool {
        if self.is_counting() {
            self.account.ended.wait().await;
        }
        self.account.success.get()
    }

    /// What the count of a slot has too much changes.
    pub(super) fn owe(&self, slot: u64, n: i64) {
        let mut owed = self.owed.borrow_mut();
        let now = owed.get(&slot).copied().unwrap_or(0) + n;
        match now {
            0 => drop(owed.remove(&slot)),
            n => drop(owed.insert(slot, n)),
        }
    }

    /// A record of `group` saves so many chunks more.
    pub(super) fn saved_more(&self, group: u64, chunks: i64) {
        let a = &self.account;
        a.saved.set(a.saved.get() + chunks);
        if let Some(t) = &mut *self.tally.borrow_mut() {
            t.saved_more(group, chunks);
        }
    }

    pub(super) fn figures(&self) -> Option<Figures> {
        let a = &self.account;
        a.read.get().then(|| Figures {
            saved: a.saved.get().max(0) as u64 * self.chunk(),
            exact: !a.stale.get() && a.counted.get().is_none(),
            recount: a.counted.get(),
            indexed: self.index.borrow().used(),
        })
    }

    /// A chunk does not use that slot any more. `counted`: the slot's count says that it does.
    pub(super) async fn leave(&self, slot: u64, counted: bool) {
        if slot / SLOTS >= self.group_count() {
            return;
        }
        self.left.borrow_mut().push_back((slot, counted));
        if self.give.count() == 0 {
            self.give.signal();
        }
    }

    /// Waits until not too many slots wait to be let go of. Not to be called while holding a lock of a slot.
    pub(super) async fn make_room(&self) {
        while self.left.borrow().len() >= QUEUE {
            self.account.room.wait().await;
        }
    }

    async fn let_go(&self, slot: u64, counted: bool) -> IoResult {
        if slot / SLOTS >= self.group_count() {
            return Ok(());
        }
        if counted {
            let less = [Op::Less((slot % SLOTS) as usize)];
            self.commit(slot / SLOTS, &less).await.map_err(|f| f.error)?;
        }
        self.give_back(slot, slot + 1).await
    }

    /// Gives those slots back of some in a row, of one group, that nobody uses.
    pub(super) async fn give_back(&self, from: u64, to: u64) -> IoResult {
        let _mine = self.slots.lock(from, to, false).await;
        // Without records no slot counts but the homes of chunks.
        let g = self.view(from / SLOTS).await?;
        let free = |slot: u64| {
            let r = g.as_ref().map_or(Record::default(), |g| g.record((slot % SLOTS) as usize));
            r.count() == 0 && (owner(slot).is_none() || r.place() != Place::Home)
        };
        let mut at = from;
        while at < to {
            // What is free now stays so: nobody takes it without its lock.
            let run = (at..to).take_while(|s| free(*s)).count() as u64;
            let start = self.layout.slot(at);
            let end = (start + (run << self.layout.shift)).min(self.lower.geometry().len);
            if start < end {
                self.lower.discard(start, end - start).await?;
            }
            at += run.max(1);
        }
        Ok(())
    }

    /// Waits until no slot waits to be let go of.
    async fn drain(&self) {
        while !self.left.borrow().is_empty() || self.account.giving.get() {
            self.account.room.wait().await;
        }
    }

    pub(super) async fn settle(&self) {
        self.drain().await;
        let _quiet = self.quiet.lock(0, 1, true).await;
        if self.lower.geometry().read_only {
            return;
        }
        // What fails costs a recount, and that equal data is not found at once.
        let changed = self.index.borrow().changes() > 0;
        if changed {
            let _ = self.keep_index().await;
        }
        let _ = self.close_up().await;
    }

    pub(super) async fn hold(self: Rc<Self>) -> Hold {
        let io = self.locks.lock(0, u64::MAX, false).await;
        self.stop(io).await
    }

    /// Ends what goes on beside I/O, of which there is none.
    pub(super) async fn stop(self: Rc<Self>, io: crate::lock::Guard) -> Hold {
        self.drain().await;
        let others = self.quiet.lock(0, 1, false).await;
        let _ = self.close_up().await;
        Hold { inner: self, _io: io, _others: others }
    }

    /// Nothing is known any more but where equal data might be.
    pub(super) fn forget(&self) {
        let a = &self.account;
        self.groups.clear();
        self.left.borrow_mut().clear();
        self.owed.borrow_mut().clear();
        *self.tally.borrow_mut() = None;
        self.limit.set(u64::MAX);
        self.roving.set(0);
        a.saved.set(0);
        a.read.set(false);
        a.open.set(false);
        a.stale.set(false);
        a.counted.set(None);
        a.epoch.set(a.epoch.get() + 1);
        a.ring();
    }

    /// Whether everything that hosts changed is settled and counted: for tests.
    pub(super) fn is_clean(&self) -> bool {
        self.account.is_clean()
    }
}

//! Counting again how many refer to each slot, while the volume is in use.
//!
//! Slots are counted in windows, as many as fit memory. For each, a cursor goes over the records of all groups; what changes
//! behind it is followed, what changes before it will be seen. In the end a count is what was counted and what is under way:
//! changes that have counted already what is not recorded yet, or not uncounted what is not recorded any more.

use super::Inner;
use super::format::{PER, Place, Record, SLOTS};
use super::meta::Op;
use weir_base::{IoError, IoResult, MILLIS};
use weir_reactor::{run_async, sleep};

/// Bytes of memory for the slots of a group.
const GROUP: usize = SLOTS as usize * 4;
/// Groups with records that are looked at before others may go on, and for how long they may.
const PACE: u64 = 16;

/// What has been counted.
pub(super) struct Tally {
    /// Groups whose slots are counted.
    from: u64,
    counts: Vec<u32>,
    /// The records of groups before this one have been counted.
    cursor: u64,
    saved: i64,
}

impl Tally {
    fn at(&mut self, slot: u64) -> Option<&mut u32> {
        self.counts.get_mut(slot.checked_sub(self.from * SLOTS)? as usize)
    }

    fn add(&mut self, place: Place, n: i32) {
        if let Place::Slot(s) = place
            && let Some(c) = self.at(s)
        {
            *c = c.saturating_add_signed(n);
        }
    }

    pub(super) fn saved_more(&mut self, group: u64, chunks: i64) {
        if group < self.cursor {
            self.saved += chunks;
        }
    }
}

impl Inner {
    /// The data of a chunk of `group` has another place, which is durable now.
    pub(super) fn moved(&self, group: u64, old: Place, new: Place) {
        if let Place::Slot(s) = old {
            self.owe(s, 1);
        }
        if let Place::Slot(s) = new {
            self.owe(s, -1);
        }
        if let Some(t) = &mut *self.tally.borrow_mut()
            && group < t.cursor
        {
            t.add(old, -1);
            t.add(new, 1);
        }
    }

    /// The record of a slot with a count that is not higher than it needs to be, and never lower.
    pub(super) fn counted(&self, slot: u64, record: Record) -> Record {
        let owed = self.owed.borrow().get(&slot).copied().unwrap_or(0).max(0);
        let Some(counted) = self.tally.borrow_mut().as_mut().and_then(|t| t.at(slot).copied())
        else {
            return record;
        };
        let enough = i64::from(counted) + owed;
        let count = i64::from(record.count()).min(enough).max(i64::from(counted));
        record.with_count(count as u32)
    }

    /// Counts everything again. What is unknown of a volume that was forgotten meanwhile stays unknown.
    pub(super) async fn recount(&self) -> IoResult {
        let epoch = self.account.epoch.get();
        let (groups, window) = (self.group_count(), (self.memory / GROUP).max(1) as u64);
        let mut from = 0;
        while from < groups {
            // Slots of groups without records have counts of nothing, and those that they get from now on are right. The first
            // window is for all that is saved, too.
            let empty = {
                let _quiet = self.quiet.lock(0, 1, true).await;
                match from > 0 && self.goes_on(epoch)? {
                    true => self.empty_groups(from, groups).await,
                    false => 0,
                }
            };
            if empty > 0 {
                from += empty;
                run_async().await;
                continue;
            }
            let to = groups.min(from + window);
            if !self.count_window(from, to, groups, epoch).await? {
                *self.tally.borrow_mut() = None;
                return Ok(());
            }
            from = to;
        }
        Ok(())
    }

    /// Whether what was counted so far still is so.
    fn goes_on(&self, epoch: u64) -> Result<bool, IoError> {
        match self.account.closed.get() {
            true => Err(IoError::Aborted),
            false => Ok(self.account.epoch.get() == epoch),
        }
    }

    /// Counts the slots of some groups. False: everything was forgotten meanwhile.
    async fn count_window(
        &self,
        from: u64,
        to: u64,
        groups: u64,
        epoch: u64,
    ) -> Result<bool, IoError> {
        let mut counts = 0;
        let mut at = from;
        while at < to {
            let _quiet = self.quiet.lock(0, 1, true).await;
            if !self.goes_on(epoch)? {
                return Ok(false);
            }
            at += self.look(at, to, |r, _| counts += u64::from(r.count() > 0)).await?;
        }
        // The first window is for all that is saved, too.
        if counts > 0 || from == 0 {
            let counts = vec![0; ((to - from) * SLOTS) as usize];
            *self.tally.borrow_mut() = Some(Tally { from, counts, cursor: 0, saved: 0 });
            let mut at = 0;
            while at < groups {
                let _quiet = self.quiet.lock(0, 1, true).await;
                if !self.goes_on(epoch)? {
                    return Ok(false);
                }
                let done =
                    (u128::from(from) * u128::from(groups) + u128::from(at * (to - from))) * 1000;
                let all = u128::from(groups) * u128::from(groups);
                self.account.counted.set(Some((done / all.max(1)) as u32));
                let mut tally = self.tally.borrow_mut().take();
                let _ = tally.as_mut().map(|t| t.cursor = at);
                *self.tally.borrow_mut() = tally;
                at += self.count_group(at, groups).await?;
            }
            if from == 0 {
                let saved = self.tally.borrow().as_ref().map_or(0, |t| t.saved);
                self.account.has_counted(saved);
            }
        }
        let mut group = from;
        while group < to {
            let _quiet = self.quiet.lock(0, 1, true).await;
            if !self.goes_on(epoch)? {
                return Ok(false);
            }
            // There is nothing to be put right, or given back.
            let empty = self.empty_groups(group, to).await;
            if empty == 0 {
                self.correct(group).await?;
            }
            group += empty.max(1);
            if empty > 0 || group.is_multiple_of(PACE) {
                run_async().await;
            }
        }
        *self.tally.borrow_mut() = None;
        Ok(true)
    }

    /// Shows the records of a group, if it has any, or passes over groups that have none: how many groups that was.
    async fn look(
        &self,
        group: u64,
        end: u64,
        mut f: impl FnMut(Record, usize),
    ) -> Result<u64, IoError> {
        let empty = self.empty_groups(group, end).await;
        if empty > 0 {
            run_async().await;
            return Ok(empty);
        }
        if let Some(g) = self.view(group).await? {
            g.records(|all| all.iter().enumerate().for_each(|(k, r)| f(*r, k)));
            if group.is_multiple_of(PACE) {
                sleep(MILLIS).await;
            }
        }
        Ok(1)
    }

    async fn count_group(&self, group: u64, end: u64) -> Result<u64, IoError> {
        let empty = self.empty_groups(group, end).await;
        let n = empty.max(1);
        let view = if empty > 0 { None } else { self.view(group).await? };
        // From here to the end nothing waits.
        if let Some(t) = &mut *self.tally.borrow_mut() {
            if let Some(g) = &view {
                g.records(|all| {
                    for (k, r) in all.iter().enumerate() {
                        t.saved += r.saves(k);
                        if (k as u64) < PER {
                            t.add(r.place(), 1);
                        }
                    }
                });
            }
            t.cursor = group + n;
        }
        if view.is_some() && group.is_multiple_of(PACE) {
            sleep(MILLIS).await;
        } else {
            run_async().await;
        }
        Ok(n)
    }

    /// Puts the counts of a group right, and gives slots back that nobody uses.
    async fn correct(&self, group: u64) -> IoResult {
        let first = group * SLOTS;
        let Some(g) = self.view(group).await? else {
            // A crash may have left data there that no record ever told of.
            return self.give_back(first + PER, first + SLOTS).await;
        };
        let wrong = |k: &usize| {
            let r = g.record(*k);
            self.counted(first + *k as u64, r) != r
        };
        let ops: Vec<Op> = (0..SLOTS as usize).filter(wrong).map(Op::Counted).collect();
        if !ops.is_empty() {
            self.commit(group, &ops).await.map_err(|f| f.error)?;
        }
        drop(g);
        // Whether something is there is not known, but it is one operation for many.
        self.give_back(first, first + PER).await?;
        self.give_back(first + PER, first + SLOTS).await
    }
}

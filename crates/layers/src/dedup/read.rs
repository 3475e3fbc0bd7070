//! Reading, and telling where space is behind a range.

use super::format::{PER, Place, SLOTS, home};
use super::meta::Peek;
use super::{Inner, Plan, WINDOW};
use crate::planted::{Bug, has};
use weir_base::{IoError, IoResult};
use weir_block::{Allocation, IoFuture, join_parts};
use weir_mem::Slice;

/// Instead of an address: zeros.
const NOWHERE: u64 = u64::MAX;

impl Inner {
    pub(super) async fn read_all(&self, at: u64, buf: Slice) -> IoResult {
        let len = buf.len() as u64;
        let _shared = self.lock(at, len, true).await;
        let all = self.parts(at, len);
        let mut planned = self.plan();
        let Some(plan) = &mut planned.plan else { return Err(IoError::Internal) };
        for first in (0..all).step_by(WINDOW) {
            self.plan_reads(plan, at, len, first, WINDOW.min(all - first)).await?;
            join_parts(plan.runs(), |r| {
                let (i, n) = plan.run(r);
                let (a, b) = (self.part(at, len, first + i), self.part(at, len, first + i + n - 1));
                let to = buf.sub(a.at as usize, (b.at + b.len - a.at) as usize);
                if plan.key[i] == NOWHERE {
                    to.fill(0);
                    return IoFuture::ready(Ok(()));
                }
                self.lower.read(plan.key[i], to)
            })
            .await?;
        }
        Ok(())
    }

    /// Finds out where parts of an I/O are, and what of it is in one piece.
    async fn plan_reads(
        &self,
        plan: &mut Plan,
        at: u64,
        len: u64,
        first: usize,
        count: usize,
    ) -> IoResult {
        (plan.starts, plan.count) = (0, count);
        let mut next = 0;
        for i in 0..count {
            let p = self.part(at, len, first + i);
            let place = self.address(p.chunk).await?;
            let from = if place == NOWHERE { NOWHERE } else { place + p.from };
            if i == 0 || from != next {
                plan.starts |= 1 << i;
            }
            plan.key[i] = from;
            next = if from == NOWHERE { NOWHERE } else { from + p.len };
        }
        Ok(())
    }

    /// Where the data of a chunk that is locked begins.
    async fn address(&self, chunk: u64) -> Result<u64, IoError> {
        Ok(match self.record(chunk).await?.place() {
            Place::Home => self.layout.slot(home(chunk)),
            Place::Zeros => NOWHERE,
            Place::Slot(s) => self.layout.slot(s),
        })
    }

    /// Reads all of a chunk that is locked.
    pub(super) async fn read_chunk(&self, chunk: u64, place: Place, to: &Slice) -> IoResult {
        let slot = match place {
            Place::Home => home(chunk),
            Place::Zeros => {
                to.fill(0);
                return Ok(());
            }
            Place::Slot(s) => s,
        };
        self.lower.read(self.layout.slot(slot), to.clone()).await
    }

    /// Bytes from `at` on, of at most `len`, whose chunks are in their homes one after another, and where that is.
    fn at_home(&self, at: u64, len: u64, is_home: impl Fn(u64) -> bool) -> (u64, u64) {
        let shift = self.layout.shift;
        let first = at >> shift;
        let group_end = (first / PER + 1) * PER;
        let mut end = first;
        while end < group_end && end << shift < at + len && is_home(end) {
            end += 1;
        }
        let from = at - (first << shift);
        (self.layout.slot(home(first)) + from, ((end << shift).max(at) - at).min(len))
    }

    pub(super) fn allocation(&self, at: u64, len: u64) -> Allocation {
        let p = self.part(at, len, 0);
        let (there, n) = match self.groups.peek(p.chunk / PER) {
            Peek::Unknown => return Allocation { mapped: true, len: p.len },
            Peek::Blank => self.at_home(at, len, |_| true),
            Peek::Loaded(g) => {
                let place = |c: u64| g.record((home(c) % SLOTS) as usize).place();
                match place(p.chunk) {
                    Place::Home => self.at_home(at, len, |c| place(c) == Place::Home),
                    Place::Zeros => return Allocation { mapped: false, len: p.len },
                    Place::Slot(_) => return Allocation { mapped: true, len: p.len },
                }
            }
        };
        self.lower.allocation(there, n)
    }

    pub(super) async fn find(&self, at: u64, len: u64) -> Allocation {
        let first = self.part(at, len, 0);
        let _shared = self.lock(at, first.len, true).await;
        let (group, end) = (first.chunk / PER, (at + len).div_ceil(PER << self.layout.shift));
        // Long stretches without anything.
        let empty = self.empty_groups(group, end).await;
        if empty > 0 {
            let to = ((group + empty) * PER) << self.layout.shift;
            return Allocation { mapped: false, len: to.min(at + len) - at };
        }
        let p = self.part(at, len, 0);
        let Ok(view) = self.view(p.chunk / PER).await else {
            return Allocation { mapped: true, len: p.len };
        };
        let place = |c: u64| match &view {
            None => Place::Home,
            Some(g) => g.record((home(c) % SLOTS) as usize).place(),
        };
        match place(p.chunk) {
            Place::Home => {
                let (there, n) = self.at_home(at, len, |c| place(c) == Place::Home);
                self.lower.find_allocation(there, n).await
            }
            Place::Zeros => Allocation { mapped: false, len: p.len },
            Place::Slot(_) => Allocation { mapped: true, len: p.len },
        }
    }

    /// How many groups from `group` on, before `end`, hold nothing at all: as of the moment at which this ends, so that is to be
    /// used before anything is waited for. Fewer than there are, where the volume below tells of no more at a time.
    pub(super) async fn empty_groups(&self, group: u64, end: u64) -> u64 {
        let known = |group| matches!(self.groups.peek(group), Peek::Loaded(_));
        if group >= end || self.groups.is_written(group) || known(group) {
            return 0;
        }
        let all = self.lower.geometry().len;
        let to = |group: u64| self.layout.group(group).min(all);
        let start = to(group);
        // How far it goes on is found out only where that may be far.
        let one = to(group + 1) - start;
        let mut found = self.lower.find_allocation(start, one).await;
        if found.mapped || found.len < one {
            return 0;
        }
        if group + 1 < end {
            found = self.lower.find_allocation(start, to(end) - start).await;
        }
        if found.mapped {
            return 0;
        }
        let n = match start + found.len >= to(end) {
            true => end - group,
            false => self.layout.groups_in(found.len),
        };
        // What was found may be over by now: records that were written meanwhile are known.
        if has(Bug::EmptyGroupsStay) { n } else { self.groups.still_blank(group, n) }
    }
}

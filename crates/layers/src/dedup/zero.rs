//! Zeros: what is discarded, and what is written as zeros.

use super::Inner;
use super::format::{PER, Place, SLOTS, home};
use super::meta::{Op, Peek};
use crate::parts::Part;
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_block::{IoFuture, join_parts};

/// Groups of one discard of the volume below at most.
const MOST: u64 = 1 << 14;
/// Groups that are looked at together.
const AHEAD: u64 = 16;

impl Inner {
    pub(super) async fn zero_all(self: Rc<Self>, at: u64, len: u64) -> IoResult {
        let _alone = self.lock(at, len, false).await;
        let count = self.parts(at, len);
        let (first, last) = (self.part(at, len, 0), self.part(at, len, count - 1));
        // A short chunk is one of those that are changed in part.
        let whole = |p: Part| p.len == self.chunk();
        let from = first.chunk + u64::from(!whole(first));
        let to = if whole(last) { last.chunk + 1 } else { last.chunk };
        if !whole(first) {
            IoFuture::new(self.change(first, None, 0, false)).await?;
        }
        if from < to {
            IoFuture::new(self.wipe(from, to)).await?;
        }
        if count > 1 && !whole(last) {
            IoFuture::new(self.change(last, None, 0, false)).await?;
        }
        Ok(())
    }

    /// Gives chunks back that are whole and locked.
    pub(super) async fn wipe(&self, from: u64, to: u64) -> IoResult {
        let mut at = from;
        while at < to {
            let group = at / PER;
            let (begin, end) = (group * PER, (group + 1) * PER);
            let mut n = 0;
            if at == begin && to - at > PER {
                // Where there is nothing, nothing is to be given back: none of these chunks changes meanwhile.
                n = self.empty_groups(group, to / PER).await;
                if n == 0 {
                    n = self.wipe_blank(group, to / PER).await?;
                }
            }
            if n == 0 {
                self.make_room().await;
                IoFuture::new(self.wipe_in(at, end.min(to))).await?;
                at = end;
            } else {
                at += n * PER;
            }
        }
        Ok(())
    }

    /// Gives groups back that have no records, from `group` on and before `end`: how many there were.
    async fn wipe_blank(&self, group: u64, end: u64) -> Result<u64, IoError> {
        let end = end.min(group + MOST);
        let mut n = 0;
        while group + n < end {
            if self.groups.is_unknown(group + n) {
                if n > 0 && self.empty_groups(group + n, end).await > 0 {
                    break;
                }
                // Several at a time.
                let count = (end - group - n).min(AHEAD);
                let first = group + n;
                let look = |i: usize| {
                    IoFuture::new(async move { self.view(first + i as u64).await.map(drop) })
                };
                join_parts(count as usize, look).await?;
            }
            if !matches!(self.groups.peek(group + n), Peek::Blank) {
                break;
            }
            n += 1;
        }
        if n == 0 {
            return Ok(0);
        }
        // Nobody begins to share any of it now.
        let _mine = self.slots.lock(group * SLOTS, (group + n) * SLOTS, false).await;
        let still = (0..n).take_while(|i| matches!(self.groups.peek(group + i), Peek::Blank));
        let n = still.count() as u64;
        if n > 0 {
            let start = self.layout.group(group);
            let stop = self.layout.group(group + n).min(self.lower.geometry().len);
            self.lower.discard(start, stop - start).await?;
        }
        Ok(n)
    }

    /// Gives chunks of one group back.
    async fn wipe_in(&self, from: u64, to: u64) -> IoResult {
        let group = from / PER;
        let slot = home(from);
        let n = to - from;
        let _mine = self.slots.lock(slot, slot + n, false).await;
        let Some(g) = self.view(group).await? else {
            return self.lower.discard(self.layout.slot(slot), n << self.layout.shift).await;
        };
        let k = (slot % SLOTS) as usize;
        let record = |i: u64| g.record(k + i as usize);
        // What others refer to stays. Counts may go down meanwhile, which then makes no difference any more.
        let mut free = [0u64; PER as usize / 64];
        for i in (0..n).filter(|i| record(*i).count() == 0) {
            if let Some(w) = free.get_mut(i as usize / 64) {
                *w |= 1 << (i % 64);
            }
        }
        let is_free = |i: u64| free.get(i as usize / 64).is_some_and(|w| w >> (i % 64) & 1 == 1);
        let mut at = 0;
        while at < n {
            let run = (at..n).take_while(|i| is_free(*i)).count() as u64;
            if run > 0 {
                let (start, len) = (self.layout.slot(slot + at), run << self.layout.shift);
                self.lower.discard(start, len).await?;
            }
            at += run.max(1);
        }
        self.barrier().await?;
        let mut ops = Vec::new();
        let mut left = Vec::new();
        for i in 0..n {
            let old = record(i).place();
            let to = if is_free(i) { Place::Home } else { Place::Zeros };
            if old != to {
                ops.push(Op::Place(k + i as usize, to));
                left.extend(Some((from + i, old)).filter(|(_, p)| *p != Place::Home));
            }
        }
        drop(g);
        if ops.is_empty() {
            return Ok(());
        }
        self.commit(group, &ops).await.map_err(|f| f.error)?;
        for (chunk, old) in left {
            self.left_place(chunk, old).await;
        }
        Ok(())
    }
}

//! Making ready for the volume below to be cut: nothing that stays may refer to what does not.

use super::format::{PER, Place, SLOTS, home};
use super::meta::Op;
use super::place::Change;
use super::{Hold, Inner};
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_block::hash_of;
use weir_reactor::run_async;

impl Inner {
    pub(super) async fn shrink(self: Rc<Self>, len: u64) -> Result<Hold, IoError> {
        let now = self.len();
        if len >= now {
            return Ok(self.hold().await);
        }
        self.limit.set(len);
        let prepared = self.clone().prepare(len, now).await;
        if let Err(e) = prepared {
            self.limit.set(u64::MAX);
            return Err(e);
        }
        let io = self.locks.lock(0, u64::MAX, false).await;
        let hold = self.clone().stop(io).await;
        // From here on dropping it takes the limit away.
        self.finish(len).await?;
        Ok(hold)
    }

    async fn prepare(self: Rc<Self>, len: u64, now: u64) -> IoResult {
        self.check(len, now - len, true)?;
        // Whoever began before the limit was set has ended.
        drop(self.locks.lock(0, u64::MAX, false).await);
        self.clone().zero_all(len, now - len).await?;
        let chunks = len.div_ceil(self.chunk());
        let groups = chunks.div_ceil(PER);
        let mut next = 0;
        while next < groups {
            // What comes to be there from now on refers to nothing that goes.
            let empty = self.empty_groups(next, groups).await;
            let group = next;
            next += empty.max(1);
            if empty > 0 {
                run_async().await;
                continue;
            }
            let Some(g) = self.view(group).await? else { continue };
            let first = group * PER;
            let away = |chunk: &u64| match g.record((home(*chunk) % SLOTS) as usize).place() {
                Place::Slot(s) => self.is_beyond(s),
                _ => false,
            };
            let all: Vec<u64> = (first..chunks.min(first + PER)).filter(away).collect();
            drop(g);
            for chunk in all {
                self.move_away(chunk).await?;
                self.make_room().await;
            }
        }
        Ok(())
    }

    /// Gives a chunk a place that stays.
    async fn move_away(&self, chunk: u64) -> IoResult {
        let _alone = self.locks.lock(chunk, chunk + 1, false).await;
        let place = self.record(chunk).await?.place();
        if !matches!(place, Place::Slot(s) if self.is_beyond(s)) {
            return Ok(());
        }
        let data = self.buffer(0).await?;
        self.read_chunk(chunk, place, &data).await?;
        let hash = hash_of(&data);
        let c = Change { chunk, place, data: &data, hash, part: None, fua: false, away: true };
        self.settle_chunk(&c).await
    }

    /// What is left when nothing else is under way: the chunk that becomes short goes home, records of what is cut off
    /// are forgotten.
    async fn finish(&self, len: u64) -> IoResult {
        let (chunks, short) = (len.div_ceil(self.chunk()), len % self.chunk());
        let last = len / self.chunk();
        let group = last / PER;
        if last >= self.whole() {
            return Ok(());
        }
        if short > 0
            && let place @ Place::Slot(s) = self.record(last).await?.place()
        {
            let data = self.buffer(0).await?;
            self.read_chunk(last, place, &data).await?;
            let at = self.layout.slot(home(last));
            self.lower.write(at, data, true).await?;
            let gone = [Op::Place((last % PER) as usize, Place::Home)];
            self.commit(group, &gone).await.map_err(|f| f.error)?;
            let less = [Op::Less((s % SLOTS) as usize)];
            self.commit(s / SLOTS, &less).await.map_err(|f| f.error)?;
        }
        if group * PER >= chunks {
            return Ok(());
        }
        if short > 0 && self.record(last).await?.place() == Place::Zeros {
            let at = self.layout.slot(home(last));
            self.lower.discard(at, self.chunk()).await?;
        }
        let Some(g) = self.view(group).await? else { return Ok(()) };
        let is_left = |k: &u64| g.record(*k as usize).0 != 0;
        let ops: Vec<Op> =
            (last % PER..PER).filter(is_left).map(|k| Op::Clear(k as usize)).collect();
        drop(g);
        if ops.is_empty() {
            return Ok(());
        }
        self.commit(group, &ops).await.map_err(|f| f.error)
    }
}

//! Giving a chunk's data a place: one where it is already, its own, its home, or a free slot.

use super::Inner;
use super::format::{MOST, PER, Place, SLOTS, home, owner};
use super::meta::{Failure, Op};
use crate::lock::Guard;
use crate::parts::Part;
use crate::planted::{Bug, has};
use weir_base::{IoError, IoResult};
use weir_block::{IoFuture, is_same};
use weir_mem::Slice;
use weir_reactor::run_async;

/// What counts stay below, so that those under way fit.
const ENOUGH: u32 = MOST - (1 << 16);
/// Groups that are looked through for a free slot before others may go on.
const TURN: u64 = 64;

/// What a write does.
pub(super) struct Change<'a> {
    pub(super) chunk: u64,
    /// Where the data is so far.
    pub(super) place: Place,
    /// All of the chunk as it will be, and its hash.
    pub(super) data: &'a Slice,
    pub(super) hash: u64,
    /// What changes of it, where not all does.
    pub(super) part: Option<(Part, &'a Slice)>,
    pub(super) fua: bool,
    /// It must not stay in the slot where it is.
    pub(super) away: bool,
}

impl Inner {
    /// Whether a slot will not be there any more.
    pub(super) fn is_beyond(&self, slot: u64) -> bool {
        let len = self.limit.get().min(self.len());
        match owner(slot) {
            // Nobody may refer to a chunk that is short.
            Some(o) => o >= len >> self.layout.shift,
            None => slot / SLOTS >= len.div_ceil(PER << self.layout.shift),
        }
    }

    /// Whether a slot, whose lock is held, is used by that chunk and nobody else.
    pub(super) async fn is_own(&self, slot: u64, place: Place) -> Result<bool, IoError> {
        let count = self.count(slot).await?;
        Ok(count == u32::from(place != Place::Home))
    }

    /// The slot that may be a chunk's own.
    pub(super) fn own_slot(chunk: u64, place: Place) -> Option<u64> {
        match place {
            Place::Home => Some(home(chunk)),
            Place::Slot(s) if owner(s).is_none() => Some(s),
            _ => None,
        }
    }

    /// Puts the data of a chunk that is locked where it belongs.
    pub(super) async fn settle_chunk(&self, c: &Change<'_>) -> IoResult {
        if self.find_equal(c).await? {
            return Ok(());
        }
        if let Some(own) = Self::own_slot(c.chunk, c.place).filter(|_| !c.away) {
            let _mine = self.slots.lock(own, own + 1, false).await;
            if self.is_own(own, c.place).await? {
                let (from, data) = c.part.map_or((0, c.data), |(p, d)| (p.from, d));
                self.lower.write(self.layout.slot(own) + from, data.clone(), c.fua).await?;
                self.index.borrow_mut().put(c.hash, own);
                return Ok(());
            }
        }
        self.open_up().await?;
        if c.place != Place::Home && !self.is_beyond(home(c.chunk)) {
            let slot = home(c.chunk);
            let _mine = self.slots.lock(slot, slot + 1, false).await;
            if self.count(slot).await? == 0 {
                return IoFuture::new(self.move_to(c, slot, Place::Home)).await;
            }
        }
        let (slot, _mine) = self.free_slot(c.chunk / PER).await?;
        IoFuture::new(self.move_to(c, slot, Place::Slot(slot))).await
    }

    /// Writes data to a slot that is locked and free, and has it count.
    async fn move_to(&self, c: &Change<'_>, slot: u64, to: Place) -> IoResult {
        self.lower.write(self.layout.slot(slot), c.data.clone(), c.fua).await?;
        self.barrier().await?;
        self.change_place(c.chunk, c.place, to).await?;
        self.index.borrow_mut().put(c.hash, slot);
        Ok(())
    }

    /// Whether the data is there already, and the chunk refers to it now.
    async fn find_equal(&self, c: &Change<'_>) -> Result<bool, IoError> {
        if c.chunk << self.layout.shift >= self.limit.get() {
            return Ok(false);
        }
        let found = self.index.borrow().get(c.hash);
        let Some(slot) = found.filter(|s| !self.is_beyond(*s)) else { return Ok(false) };
        let here = match c.place {
            Place::Home => Some(home(c.chunk)),
            Place::Slot(s) => Some(s),
            Place::Zeros => None,
        };
        if here == Some(slot) {
            let equal = self.holds(slot, c.data).await;
            if equal && c.fua {
                self.barrier().await?;
            }
            return Ok(equal);
        }
        let Some(_same) = self.slots.try_lock(slot, slot + 1, true) else { return Ok(false) };
        if !self.holds(slot, c.data).await {
            return Ok(false);
        }
        let to = if slot == home(c.chunk) { Place::Home } else { Place::Slot(slot) };
        if to != Place::Home && self.count(slot).await? >= ENOUGH {
            return Ok(false);
        }
        self.barrier().await?;
        IoFuture::new(self.change_place(c.chunk, c.place, to)).await?;
        Ok(true)
    }

    async fn holds(&self, slot: u64, data: &Slice) -> bool {
        let Ok(buf) = self.buffer(1).await else { return false };
        let read = self.lower.read(self.layout.slot(slot), buf.clone()).await;
        read.is_ok() && is_same(&buf, data)
    }

    /// Has a chunk refer to a slot that cannot change meanwhile: counted first, then the record, then what was before is
    /// let go of.
    async fn change_place(&self, chunk: u64, old: Place, to: Place) -> IoResult {
        let (group, k) = (chunk / PER, (chunk % PER) as usize);
        let record = Op::Place(k, to);
        match to {
            Place::Slot(s) if s / SLOTS == group => {
                let count = Op::More((s % SLOTS) as usize);
                self.commit(group, &[count, record]).await.map_err(|f| f.error)?;
            }
            Place::Slot(s) => {
                let count = [Op::More((s % SLOTS) as usize)];
                if has(Bug::RecordBeforeCount) {
                    self.commit(group, &[record]).await.map_err(|f| f.error)?;
                    self.commit(s / SLOTS, &count).await.map_err(|f| f.error)?;
                    self.left_place(chunk, old).await;
                    return Ok(());
                }
                self.commit(s / SLOTS, &count).await.map_err(|f| f.error)?;
                if let Err(Failure { error, undone }) = self.commit(group, &[record]).await {
                    if undone {
                        self.leave(s, true).await;
                    }
                    return Err(error);
                }
            }
            _ => self.commit(group, &[record]).await.map_err(|f| f.error)?,
        }
        self.left_place(chunk, old).await;
        Ok(())
    }

    /// What becomes of where a chunk's data was.
    pub(super) async fn left_place(&self, chunk: u64, old: Place) {
        match old {
            Place::Home => self.leave(home(chunk), false).await,
            Place::Slot(s) => self.leave(s, true).await,
            Place::Zeros => {}
        }
    }

    /// A slot that is nobody's home and free, locked: of the group itself, or else of another. There are enough for all
    /// data that there can be, but what failed or was cut short may keep some until it has been counted.
    async fn free_slot(&self, group: u64) -> Result<(u64, Guard), IoError> {
        loop {
            let counting = self.is_counting();
            if let Some(found) = self.find_free_slot(group).await? {
                return Ok(found);
            }
            if !counting || !self.counted_again().await {
                return Err(IoError::NoSpace);
            }
        }
    }

    async fn find_free_slot(&self, group: u64) -> Result<Option<(u64, Guard)>, IoError> {
        if let Some(found) = self.free_slot_of(group).await? {
            return Ok(Some(found));
        }
        let groups = self.group_count();
        for i in 0..groups {
            let other = (self.roving.get() + i) % groups;
            if i % TURN == TURN - 1 {
                run_async().await;
            }
            if other != group
                && let Some(found) = self.free_slot_of(other).await?
            {
                self.roving.set(other);
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    async fn free_slot_of(&self, group: u64) -> Result<Option<(u64, Guard)>, IoError> {
        if self.groups.is_full(group) || self.is_beyond(group * SLOTS + PER) {
            return Ok(None);
        }
        let view = self.view(group).await?;
        let mut full = true;
        for k in PER..SLOTS {
            if view.as_ref().is_none_or(|g| g.record(k as usize).count() == 0) {
                full = false;
                let slot = group * SLOTS + k;
                if let Some(guard) = self.slots.try_lock(slot, slot + 1, false) {
                    return Ok(Some((slot, guard)));
                }
            }
        }
        if full {
            self.groups.set_full(group);
        }
        Ok(None)
    }
}

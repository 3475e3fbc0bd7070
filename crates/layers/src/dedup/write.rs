//! Writes.

use super::format::{PER, Place, Record, SLOTS, home};
use super::meta::Peek;
use super::place::Change;
use super::{Inner, Plan, WINDOW};
use crate::parts::Part;
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_block::{IoFuture, hash_of, is_zero, join_parts};
use weir_mem::Slice;
use weir_reactor::run_async;

/// Bytes that are hashed before others may go on.
const TURN: u64 = 1 << 20;

/// What is to be done with a chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It is at home, nobody else refers to that, and the new data was never seen.
    Plain,
    Zeros,
    /// By itself.
    Single,
}

/// A write, as its parts need it.
struct Whole<'a> {
    at: u64,
    buf: &'a Slice,
    fua: bool,
    /// Number of its first part of those that are planned.
    first: usize,
    plan: &'a Plan,
}

impl Inner {
    pub(super) async fn write_all(self: Rc<Self>, at: u64, buf: Slice, fua: bool) -> IoResult {
        let len = buf.len() as u64;
        self.make_room().await;
        let _alone = self.lock(at, len, false).await;
        let all = self.parts(at, len);
        let window = WINDOW.min((TURN >> self.layout.shift) as usize);
        let mut planned = self.plan();
        let Some(plan) = &mut planned.plan else { return Err(IoError::Internal) };
        for first in (0..all).step_by(window) {
            if first > 0 {
                run_async().await;
            }
            self.plan_writes(plan, at, &buf, first, window.min(all - first)).await?;
            let w = &Whole { at, buf: &buf, fua, first, plan };
            join_parts(plan.runs(), |r| IoFuture::new(self.write_run(w, r))).await?;
        }
        Ok(())
    }

    /// Hashes parts of a write and finds out what can be done as one.
    async fn plan_writes(
        &self,
        plan: &mut Plan,
        at: u64,
        buf: &Slice,
        first: usize,
        count: usize,
    ) -> IoResult {
        let len = buf.len() as u64;
        let (a, b) = (self.part(at, len, first), self.part(at, len, first + count - 1));
        for group in a.chunk / PER..=b.chunk / PER {
            // Where it cannot be read, each chunk finds that out for itself.
            let _ = self.view(group).await;
        }
        (plan.starts, plan.count) = (0, count);
        let mut before = (Kind::Single, 0);
        for i in 0..count {
            let p = self.part(at, len, first + i);
            let data = buf.sub(p.at as usize, p.len as usize);
            let kind = self.kind_of(&p, &data, &mut plan.key[i]);
            let group = p.chunk / PER;
            if kind == Kind::Single || before != (kind, group) {
                plan.starts |= 1 << i;
            }
            before = (kind, group);
        }
        Ok(())
    }

    fn kind_of(&self, p: &Part, data: &Slice, hash: &mut u64) -> Kind {
        if p.len != self.chunk() {
            return Kind::Single;
        }
        if is_zero(data) {
            *hash = 0;
            return Kind::Zeros;
        }
        *hash = hash_of(data);
        let record = match self.groups.peek(p.chunk / PER) {
            Peek::Unknown => return Kind::Single,
            Peek::Blank => Record::default(),
            Peek::Loaded(g) => g.record((p.chunk % PER) as usize),
        };
        let new = self.index.borrow().get(*hash).is_none();
        if record == Record::default() && new { Kind::Plain } else { Kind::Single }
    }

    /// Writes chunks that are planned as one.
    async fn write_run(&self, w: &Whole<'_>, run: usize) -> IoResult {
        let (i, n) = w.plan.run(run);
        let len = w.buf.len() as u64;
        let a = self.part(w.at, len, w.first + i);
        let data = |p: &Part| w.buf.sub(p.at as usize, p.len as usize);
        if a.len == self.chunk() && is_zero_at(w, i) && is_zero(&data(&a)) {
            return IoFuture::new(self.wipe(a.chunk, a.chunk + n as u64)).await;
        }
        let all = w.buf.sub(a.at as usize, (a.len as usize * n).min(w.buf.len() - a.at as usize));
        if a.len == self.chunk() && self.write_plain(w, a.chunk, i, n, all).await? {
            return Ok(());
        }
        for k in i..i + n {
            let p = self.part(w.at, len, w.first + k);
            let data = data(&p);
            IoFuture::new(self.change(p, Some(data), w.plan.key[k], w.fua)).await?;
        }
        Ok(())
    }

    /// Writes chunks of a group straight to their homes, if they are there and nobody else refers to any of them. False: at
    /// least one is not.
    async fn write_plain(
        &self,
        w: &Whole<'_>,
        chunk: u64,
        i: usize,
        n: usize,
        data: Slice,
    ) -> Result<bool, IoError> {
        let slot = home(chunk);
        if w.plan.key[i..i + n].iter().any(|h| self.index.borrow().get(*h).is_some()) {
            return Ok(false);
        }
        let _mine = self.slots.lock(slot, slot + n as u64, false).await;
        if let Some(g) = self.view(slot / SLOTS).await? {
            let k = (slot % SLOTS) as usize;
            if (k..k + n).any(|k| g.record(k) != Record::default()) {
                return Ok(false);
            }
        }
        self.lower.write(self.layout.slot(slot), data, w.fua).await?;
        let mut index = self.index.borrow_mut();
        for (hash, slot) in w.plan.key[i..i + n].iter().zip(slot..) {
            index.put(*hash, slot);
        }
        Ok(true)
    }

    /// Changes a chunk that is locked, or a part of it: to data with that hash if it is all of it, or to zeros.
    pub(super) async fn change(
        &self,
        p: Part,
        data: Option<Slice>,
        hash: u64,
        fua: bool,
    ) -> IoResult {
        let room = self.len_of(p.chunk);
        let whole = p.len == room;
        let place = match self.record(p.chunk).await {
            // Whatever it was is lost, and is not needed any more.
            Err(IoError::Medium) if whole && self.view(p.chunk / PER).await.is_ok() => Place::Zeros,
            found => found?.place(),
        };
        if room < self.chunk() {
            // A short chunk is always at home, and nobody refers to it.
            let at = self.layout.slot(home(p.chunk)) + p.from;
            return match data.filter(|d| !is_zero(d)) {
                _ if place != Place::Home => Err(IoError::Medium),
                Some(data) => self.lower.write(at, data, fua).await,
                None => self.lower.discard(at, p.len).await,
            };
        }
        if whole && let Some(data) = &data {
            let part = None;
            let c = Change { chunk: p.chunk, place, data, hash, part, fua, away: false };
            return self.settle_chunk(&c).await;
        }
        let ends = p.from + p.len == room;
        let look = data.is_some() && (ends || p.len * 2 >= room);
        if !look && self.in_place(&p, place, data.as_ref(), fua).await? {
            return Ok(());
        }
        let all = self.buffer(0).await?;
        self.read_chunk(p.chunk, place, &all).await?;
        match &data {
            Some(d) => all.copy_from(p.from as usize, d, 0, d.len()),
            None => all.sub(p.from as usize, p.len as usize).fill(0),
        }
        if is_zero(&all) {
            return IoFuture::new(self.wipe(p.chunk, p.chunk + 1)).await;
        }
        let part = data.as_ref().map(|d| (p, d));
        let hash = hash_of(&all);
        let c = Change { chunk: p.chunk, place, data: &all, hash, part, fua, away: false };
        self.settle_chunk(&c).await
    }

    /// Changes a part of a chunk where it is, if nobody else refers to that.
    async fn in_place(
        &self,
        p: &Part,
        place: Place,
        data: Option<&Slice>,
        fua: bool,
    ) -> Result<bool, IoError> {
        let Some(own) = Self::own_slot(p.chunk, place) else { return Ok(false) };
        let _mine = self.slots.lock(own, own + 1, false).await;
        if !self.is_own(own, place).await? {
            return Ok(false);
        }
        let at = self.layout.slot(own) + p.from;
        match data.filter(|d| !is_zero(d)) {
            Some(data) => self.lower.write(at, data.clone(), fua).await?,
            None => self.lower.discard(at, p.len).await?,
        }
        Ok(true)
    }
}

fn is_zero_at(w: &Whole<'_>, i: usize) -> bool {
    w.plan.key[i] == 0
}

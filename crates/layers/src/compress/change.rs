//! Changing chunks: writes, zeros, and what is given back at once.

use super::codec::is_zero;
use super::form::{BLOCK, Header};
use super::look::is_zero_slice;
use super::states::{Form, State};
use super::{Inner, Part, RAW};
use crate::planted::{Bug, has};
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_block::{IoFuture, join_parts};
use weir_mem::Slice;
use weir_reactor::run_async;

/// Chunks whose states are followed one by one when they are discarded together.
const FEW: u64 = 4096;
/// Chunks of one discard of the volume below at most.
const MOST: u64 = 1 << 20;

/// What becomes of a chunk.
enum Turn {
    Zeros,
    /// So many blocks of the buffer are its new form.
    Packed(u8, u8),
    /// It does not get smaller.
    Raw,
}

impl Inner {
    pub(super) async fn write_all(self: Rc<Self>, at: u64, buf: Slice, fua: bool) -> IoResult {
        let len = buf.len() as u64;
        let _alone = self.lock(at, len, false).await;
        join_parts(self.parts(at, len), |i| {
            let p = self.part(at, len, i);
            let data = buf.sub(p.at as usize, p.len as usize);
            IoFuture::new(self.change(p, Some(data), fua))
        })
        .await
    }

    pub(super) async fn zero_all(self: Rc<Self>, at: u64, len: u64) -> IoResult {
        let _alone = self.lock(at, len, false).await;
        let count = self.parts(at, len);
        let (first, last) = (self.part(at, len, 0), self.part(at, len, count - 1));
        let whole = |p: Part| p.len == self.len_of(p.chunk) as u64;
        let from = first.chunk + u64::from(!whole(first));
        let to = if whole(last) { last.chunk + 1 } else { last.chunk };
        if !whole(first) {
            self.change(first, None, false).await?;
        }
        if from < to {
            self.wipe(from, to).await?;
        }
        if count > 1 && !whole(last) {
            self.change(last, None, false).await?;
        }
        Ok(())
    }

    /// Changes a part of a chunk that is locked: to data, or to zeros.
    async fn change(&self, p: Part, data: Option<Slice>, fua: bool) -> IoResult {
        if p.at > 0 {
            // Others first: compressing many chunks takes a while.
            run_async().await;
        }
        let room = self.len_of(p.chunk);
        let whole = p.len as usize == room;
        let ends = (p.from + p.len) as usize == room;
        let anew = data.is_some() && (ends || p.len as usize * 2 >= room);
        let (old, held) = match self.state_of(p.chunk, anew).await {
            // Whatever it was is lost, and is not needed any more.
            Err(IoError::Medium) if whole => {
                self.wipe(p.chunk, p.chunk + 1).await?;
                (State { form: Form::Raw { empty: true }, stale: false }, None)
            }
            found => found?,
        };
        if !anew && matches!(old.form, Form::Raw { .. }) {
            return self.in_place(p, old, data, fua).await;
        }
        let buf = match held {
            Some(b) => b,
            None => self.memory(self.chunk() as usize).await?,
        };
        // What is there is read again also if it was just found out: finding out is rare.
        if !whole {
            match old.form {
                Form::Packed { area, blocks, .. } => {
                    let form = buf.sub(0, usize::from(blocks) * BLOCK);
                    self.read_form(p.chunk, area, &form).await?;
                }
                Form::Raw { empty: true } => {}
                Form::Raw { empty: false } => {
                    self.lower.read(self.area(p.chunk, RAW), buf.sub(0, room)).await?;
                }
            }
        }
        match self.compress(&p, &old, room, data.as_ref(), &buf)? {
            Turn::Zeros => {
                // What the chunk saves may have been forgotten: looking for that takes memory, for which nobody may wait
                // while holding some.
                drop(buf);
                self.wipe(p.chunk, p.chunk + 1).await
            }
            Turn::Packed(blocks, generation) => {
                let area = match old.form {
                    Form::Packed { area, .. } if has(Bug::FormOverwritten) => area,
                    Form::Packed { area, .. } => 1 - area,
                    Form::Raw { .. } => 0,
                };
                if has(Bug::OldGivenBackFirst) {
                    let other = self.area(p.chunk, u64::from(1 - area));
                    self.lower.discard(other, self.chunk()).await?;
                }
                let form = buf.sub(0, usize::from(blocks) * BLOCK);
                let written =
                    self.lower.write(self.area(p.chunk, u64::from(area)), form, fua).await;
                if written.is_err() {
                    self.states.set(p.chunk, None);
                    return written;
                }
                let stale = old.stale || old.form != (Form::Raw { empty: true });
                let new = State { form: Form::Packed { area, blocks, generation }, stale };
                self.changed(p.chunk, old, new);
                if stale && !old.stale && !self.give_back_soon(p.chunk) {
                    // It is durable: whatever becomes of the rest, the write has happened.
                    let _ = self.give_back_others(p.chunk, new).await;
                }
                Ok(())
            }
            Turn::Raw if matches!(old.form, Form::Raw { .. }) => {
                self.in_place(p, old, data, fua).await
            }
            Turn::Raw => self.unfold(p.chunk, old, buf.sub(0, room), fua).await,
        }
    }

    /// Writes a part of a chunk whose data is there as it is.
    async fn in_place(&self, p: Part, old: State, data: Option<Slice>, fua: bool) -> IoResult {
        let at = self.area(p.chunk, RAW) + p.from;
        match data.filter(|d| !is_zero_slice(d)) {
            None if old.form == (Form::Raw { empty: true }) => Ok(()),
            None => self.lower.discard(at, p.len).await,
            Some(data) => {
                let new = State { form: Form::Raw { empty: false }, ..old };
                self.states.set(p.chunk, Some(new));
                self.lower.write(at, data, fua).await
            }
        }
    }

    /// From compressed to data as it is.
    async fn unfold(&self, chunk: u64, old: State, data: Slice, fua: bool) -> IoResult {
        let done = async {
            if has(Bug::FormsGivenBackFirst) {
                self.lower.discard(self.area(chunk, 0), RAW << self.shift).await?;
            }
            self.lower.write(self.area(chunk, RAW), data, fua).await?;
            self.barrier().await?;
            // This is what makes it count.
            self.lower.discard(self.area(chunk, 0), RAW << self.shift).await
        };
        match done.await {
            Ok(()) => {
                let new = State { form: Form::Raw { empty: false }, stale: false };
                self.changed(chunk, old, new);
                Ok(())
            }
            Err(e) => {
                self.states.set(chunk, None);
                Err(e)
            }
        }
    }

    /// Nothing written later is durable before everything written so far.
    pub(super) async fn barrier(&self) -> IoResult {
        if self.lower.geometry().volatile_cache { self.lower.flush().await } else { Ok(()) }
    }

    /// Puts the chunk as it will be together and compresses it. What was there is in `buf`, and so is the result.
    fn compress(
        &self,
        p: &Part,
        old: &State,
        room: usize,
        data: Option<&Slice>,
        buf: &Slice,
    ) -> Result<Turn, IoError> {
        let mut codec = self.codec.borrow_mut();
        let len = self.chunk() as usize;
        let (from, to) = (p.from as usize, (p.from + p.len) as usize);
        let all = match old.form {
            Form::Packed { .. } if p.len as usize != room => {
                self.unpack(&mut codec, p.chunk, buf)?
            }
            Form::Raw { empty: false } if p.len as usize != room => {
                let all = codec.data(len);
                buf.read_at(0, &mut all[..room]);
                all[room..].fill(0);
                all
            }
            _ => {
                let all = codec.data(len);
                let short = if has(Bug::TailNotZeroed) { room } else { len };
                if p.len as usize != short {
                    all.fill(0);
                }
                all
            }
        };
        match data {
            Some(d) => d.read_at(0, &mut all[from..to]),
            None => all[from..to].fill(0),
        }
        if is_zero(all) {
            return Ok(Turn::Zeros);
        }
        let Some((blocks, data_crc)) = codec.pack(self.algorithm, len) else {
            buf.write_at(0, &codec.data(len)[..room]);
            return Ok(Turn::Raw);
        };
        let generation = match old.form {
            Form::Packed { generation, .. } => generation.wrapping_add(1),
            Form::Raw { .. } => 0,
        };
        let (algorithm, stamp) = (self.algorithm, self.next_stamp());
        let h = Header { algorithm, generation, stamp, len: 0, packed_crc: 0, data_crc };
        h.store(p.chunk, self.shift, codec.packed(), &buf.sub(0, blocks * BLOCK));
        Ok(Turn::Packed(blocks as u8, generation))
    }

    /// Gives whole chunks back.
    async fn wipe(&self, from: u64, to: u64) -> IoResult {
        let few = to - from <= FEW;
        let mut saved = 0;
        if few && self.account.is_any() {
            let each = (self.chunk() / BLOCK as u64) as i64;
            for chunk in from..to {
                saved += match self.states.get(chunk).map(|s| s.form) {
                    Some(Form::Raw { .. }) => 0,
                    Some(Form::Packed { blocks, .. }) => each - i64::from(blocks),
                    None => self.would_save(chunk, each).await,
                };
            }
        }
        let mut at = from;
        while at < to {
            // The last chunk may have less than its share below.
            let end = self.lower.geometry().len;
            let n = (to - at).min(MOST);
            let start = self.area(at, 0);
            let stop = self.area(at + n, 0).min(end);
            let done = self.lower.discard(start, stop - start).await;
            if done.is_err() {
                self.states.clear();
                return done;
            }
            at += n;
        }
        match few {
            true => {
                self.account.add(-saved);
                let empty = State { form: Form::Raw { empty: true }, stale: false };
                (from..to).for_each(|chunk| self.states.set(chunk, Some(empty)));
            }
            false => {
                self.states.clear();
                let all = self.geometry().len.div_ceil(self.chunk());
                self.account.wiped(to - from, all);
            }
        }
        Ok(())
    }

    /// Blocks that a chunk of unknown state saves, by its headers.
    async fn would_save(&self, chunk: u64, each: i64) -> i64 {
        let Ok(buf) = self.memory(2 * BLOCK).await else { return 0 };
        let Ok(found) = self.headers(chunk, &buf).await else { return 0 };
        found.iter().flatten().map(|h| each - h.blocks() as i64).next().unwrap_or(0)
    }

    /// Gives back what the areas of a chunk hold that is not its data.
    pub(super) async fn give_back_others(&self, chunk: u64, state: State) -> IoResult {
        self.barrier().await?;
        let end = self.area(chunk, RAW) + self.len_of(chunk) as u64;
        let (a, b) = (self.area(chunk, 0), self.area(chunk, 1));
        match state.form {
            Form::Raw { .. } => self.lower.discard(a, RAW << self.shift).await?,
            Form::Packed { area, blocks, .. } => {
                if area == 1 {
                    self.lower.discard(a, b - a).await?;
                }
                let rest = self.area(chunk, u64::from(area)) + u64::from(blocks) * BLOCK as u64;
                self.lower.discard(rest, end - rest).await?;
            }
        }
        self.states.set(chunk, Some(State { stale: false, ..state }));
        Ok(())
    }
}

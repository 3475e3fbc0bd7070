//! The devices of a pool: physical I/O, replaced blocks, standing.

use super::flush::Flushes;
use super::unended::{Late, late_of, quiet};
use crate::format::BLOCK;
use crate::format::label::{Label, Layout};
use crate::format::superblock::{Member, MemberState};
use crate::planted::{Bug, has};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_base::{IoError, IoResult, MILLIS, Nanos, SECONDS};
use weir_disk::{Disk, DiskOp, run, status};
use weir_mem::Slice;
use weir_reactor::{CompletionFuture, completion, patience, sleep};

/// How long a device is read from only if need be, after a read of it failed.
const SHAKY: Nanos = SECONDS;

/// A device, present or not.
pub(crate) struct Device {
    pub(crate) number: u16,
    pub(crate) id: u64,
    /// `None`: it was not found.
    pub(crate) disk: Option<Rc<dyn Disk>>,
    pub(crate) layout: Layout,
    /// The node that it depends on; 0: none.
    pub(crate) domain: u16,
    pub(crate) state: Cell<MemberState>,
    pub(crate) since: Cell<u32>,
    pub(crate) draining: Cell<bool>,
    /// It leaves the pool when it is drained.
    pub(crate) leaving: Cell<bool>,
    /// Somebody has said that it does not come back: nobody waits for what only it has.
    pub(crate) written_off: Cell<bool>,
    /// Somebody has let another one take its place while it had failed: whether it answers is asked before it counts as lost.
    pub(crate) unheard: Cell<bool>,
    /// Nothing on it is believed when it is brought back.
    pub(crate) foreign: Cell<bool>,
    /// What is on it is being wiped, to bring it back.
    pub(crate) wiping: Rc<Cell<bool>>,
    /// It is not brought back by itself: somebody stopped that, or it went its own way.
    pub(crate) held: Cell<bool>,
    /// Somebody asked to bring it back, whatever it loses by that.
    pub(crate) asked: Cell<bool>,
    /// When it went out of service, in the reactor's time.
    pub(crate) out_at: Cell<Nanos>,
    /// Writes to its disk that were given up.
    pub(crate) late: Late,
    /// Slots of superblocks that could not be read, and do not count any more.
    pub(crate) hidden: RefCell<Vec<u64>>,
    /// A device in sync may not know yet that this one is.
    pub(crate) untold: Cell<bool>,
    pub(crate) spares_used: Cell<u32>,
    /// Blocks that live in spares.
    pub(crate) remap: RefCell<BTreeMap<u64, u32>>,
    /// It failed in this life: nothing is sent to it any more.
    pub(crate) failed: Cell<Option<IoError>>,
    /// It failed with the whole pool, and is read still.
    pub(crate) kept: Cell<bool>,
    /// Until when others are read from instead, after an error.
    shaky: Cell<Nanos>,
    pub(crate) flushes: Flushes,
    /// Operations under way, for the choice of a copy.
    pub(crate) busy: Cell<u32>,
    pub(crate) writes: Cell<u64>,
    pub(crate) reads: Cell<u64>,
}

/// Why a read did not bring what was asked for.
pub(crate) enum Unread {
    /// It ended with an error.
    Failed(IoError),
    /// It took too long. Until this ends, the device may still write to the memory.
    GivenUp(CompletionFuture),
}

/// Runs of a physical range: first block, blocks, and first block of the range that it stands for.
struct Pieces<'a> {
    device: &'a Device,
    at: u64,
    end: u64,
}

impl Iterator for Pieces<'_> {
    type Item = (u64, u64, u64);

    fn next(&mut self) -> Option<(u64, u64, u64)> {
        if self.at >= self.end {
            return None;
        }
        let at = self.at;
        let remap = self.device.remap.borrow();
        if let Some(spare) = remap.get(&at) {
            self.at += 1;
            return Some((self.device.layout.spare(u64::from(*spare)), 1, at));
        }
        let end = remap.range(at..self.end).next().map_or(self.end, |(b, _)| *b);
        self.at = end;
        Some((at, end - at, at))
    }
}

impl Device {
    pub(crate) fn new(
        number: u16,
        member: &Member,
        layout: Layout,
        disk: Option<Rc<dyn Disk>>,
    ) -> Rc<Device> {
        let late = disk.as_ref().map(late_of).unwrap_or_default();
        Rc::new(Device {
            number,
            id: member.device,
            domain: member.domain,
            disk,
            layout,
            state: Cell::new(member.state),
            since: Cell::new(member.since),
            draining: Cell::new(member.draining),
            leaving: Cell::new(member.leaving),
            written_off: Cell::new(member.written_off),
            unheard: Cell::new(false),
            foreign: Cell::new(false),
            wiping: Rc::default(),
            held: Cell::new(false),
            asked: Cell::new(false),
            out_at: Cell::new(0),
            late,
            hidden: RefCell::default(),
            untold: Cell::new(false),
            spares_used: Cell::new(member.spares_used),
            remap: RefCell::default(),
            failed: Cell::new(None),
            kept: Cell::new(false),
            shaky: Cell::new(0),
            flushes: Flushes::default(),
            busy: Cell::new(0),
            writes: Cell::new(0),
            reads: Cell::new(0),
        })
    }

    pub(crate) fn member(&self) -> Member {
        Member {
            device: self.id,
            state: self.state.get(),
            draining: self.draining.get(),
            leaving: self.leaving.get(),
            // One that was there may be late at the next start.
            written_off: self.written_off.get() && (self.disk.is_none() || has(Bug::LateStaysLost)),
            since: self.since.get(),
            blocks: self.layout.blocks,
            spares_used: self.spares_used.get(),
            domain: self.domain,
        }
    }

    /// A copy of its label.
    pub(crate) fn label(&self, pool: u128, copy: u8) -> Label {
        Label { pool, device: self.id, layout: self.layout, incompat: 0, compat: 0, copy }
    }

    /// A spare has taken the place of a block. What no program would have recorded is left out.
    pub(crate) fn take_remap(&self, from: u64, spare: u32) {
        if u64::from(spare) < self.layout.spares && from < self.layout.blocks {
            self.remap.borrow_mut().insert(from, spare);
            self.spares_used.set(self.spares_used.get().max(spare + 1));
        }
    }

    /// It can be talked to.
    pub(crate) fn usable(&self) -> bool {
        self.disk.is_some() && self.failed.get().is_none()
    }

    /// It is out of service: missing, failed, or not up to date. What has left the pool is not a device of it.
    pub(crate) fn is_away(&self) -> bool {
        match self.state.get() {
            MemberState::Out | MemberState::Gone => true,
            MemberState::Spare => !self.usable(),
            _ => false,
        }
    }

    /// It is out of service, and nothing on it can be read.
    pub(crate) fn is_absent(&self) -> bool {
        self.is_away() && !self.usable()
    }

    /// It is to be cleared, and leaves the pool then. One that is missing is not waited for; one that has failed is asked first.
    pub(crate) fn leave(&self) {
        self.draining.set(true);
        self.leaving.set(true);
        let is_lost = self.disk.is_none() || has(Bug::FailedIsDead);
        self.written_off.set(self.is_absent() && is_lost || has(Bug::AwayIsWrittenOff));
        self.unheard.set(self.is_absent() && !is_lost);
    }

    /// What it has is lost as far as anybody can tell.
    pub(crate) fn is_written_off(&self) -> bool {
        let is = self.written_off.get() || self.draining.get() && has(Bug::AwayIsWrittenOff);
        is && !has(Bug::DeadIsAway)
    }

    /// Its disk goes by this name.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.disk.as_ref().is_some_and(|d| d.name() == name)
    }

    /// It goes by the same name as another one.
    pub(crate) fn has_name_of(&self, other: &Device) -> bool {
        other.disk.as_ref().is_some_and(|d| self.is_named(d.name()))
    }

    /// The same device, missing. What it may still do is known.
    pub(crate) fn without_disk(&self) -> Rc<Device> {
        let mut d = Device::new(self.number, &self.member(), self.layout, None);
        if let Some(d) = Rc::get_mut(&mut d) {
            d.late = self.late.clone();
            d.wiping = self.wiping.clone();
        }
        d.written_off.set(self.written_off.get());
        d.remap.replace(self.remap.borrow().clone());
        d.foreign.set(self.foreign.get());
        d.held.set(self.held.get());
        d.out_at.set(self.out_at.get());
        d
    }

    /// It can be read: also when it failed with the whole pool, and was current until then.
    pub(crate) fn is_readable(&self) -> bool {
        self.disk.is_some() && (self.failed.get().is_none() || self.kept.get())
    }

    /// What can be read here is current.
    pub(crate) fn is_current_to_read(&self) -> bool {
        self.is_readable() && self.state.get() == MemberState::InSync
    }

    /// A read of it failed a moment ago: another copy is the better choice.
    pub(crate) fn is_shaky(&self) -> bool {
        self.shaky.get() > 0 && weir_reactor::now() < self.shaky.get()
    }

    /// Whatever is written is written here too.
    pub(crate) fn is_written(&self) -> bool {
        self.usable() && matches!(self.state.get(), MemberState::InSync | MemberState::Syncing)
    }

    /// What is here is current.
    pub(crate) fn is_current(&self) -> bool {
        self.usable() && self.state.get() == MemberState::InSync
    }

    pub(crate) fn volatile(&self) -> bool {
        self.disk.as_ref().is_some_and(|d| d.volatile_cache())
    }

    fn pieces(&self, block: u64, count: u64) -> Pieces<'_> {
        Pieces { device: self, at: block, end: block + count }
    }

    fn takes(&self, buf: &Slice) -> bool {
        let unit = self.disk.as_ref().map_or(1, |d| d.block_size() as usize);
        buf.as_ptr().addr() & (unit - 1) == 0
    }

    /// Where a block really is: there, or in the spare that has taken its place.
    pub(crate) fn real(&self, block: u64) -> u64 {
        self.pieces(block, 1).next().map_or(block, |(at, ..)| at)
    }

    /// Starts the write of whole blocks; the completions go to `out`.
    pub(crate) fn submit_write(&self, block: u64, buf: &Slice, out: &mut Vec<Pending>) {
        let Some(disk) = &self.disk else { return };
        let copy = (!self.takes(buf)).then(|| {
            let copy = Slice::heap(buf.len());
            copy.copy_from(0, buf, 0, buf.len());
            copy
        });
        let buf = copy.as_ref().unwrap_or(buf);
        for (at, n, from) in self.pieces(block, (buf.len() / BLOCK) as u64) {
            let part = match n as usize * BLOCK == buf.len() {
                true => buf.clone(),
                false => buf.sub((from - block) as usize * BLOCK, n as usize * BLOCK),
            };
            let (token, done) = completion();
            let op = DiskOp::Write { offset: at * BLOCK as u64, buf: part, fua: false };
            disk.submit(op.clone(), token);
            self.writes.set(self.writes.get() + n);
            let (again, late) = ((disk.clone(), op), self.late.clone());
            out.push(Pending { device: self.number, done: Some(done), again, late, over: false });
        }
    }

    /// Waits until no write that was given up is under way any more; false: `limit` was not enough.
    pub(crate) async fn is_quiet(&self, limit: Nanos) -> bool {
        quiet(&self.late, limit).await
    }

    /// Writes whole blocks.
    pub(crate) async fn write(&self, block: u64, buf: &Slice, limit: Nanos) -> IoResult {
        let mut all = Vec::new();
        if !self.usable() {
            return Err(IoError::Offline);
        }
        self.submit_write(block, buf, &mut all);
        wait(&mut all, limit).await.into_iter().next().map_or(Ok(()), |(_, e)| Err(e))
    }

    /// Reads whole blocks. After an error the memory must not be used for anything: a read that was given up may
    /// still change it.
    pub(crate) async fn read(&self, block: u64, buf: &Slice, limit: Nanos) -> IoResult {
        self.read_into(block, buf, limit).await.map_err(|e| match e {
            Unread::Failed(e) => e,
            Unread::GivenUp(_) => IoError::Offline,
        })
    }

    /// Reads whole blocks into memory that is also used if that fails.
    pub(crate) async fn read_into(
        &self,
        block: u64,
        buf: &Slice,
        limit: Nanos,
    ) -> Result<(), Unread> {
        let result = self.try_read(block, buf, limit).await;
        let pause = match &result {
            Ok(()) => return result,
            // It costs the whole deadline each time.
            Err(Unread::GivenUp(_)) => limit.saturating_mul(3),
            Err(_) => SHAKY,
        };
        self.shaky.set(weir_reactor::now().saturating_add(pause));
        result
    }

    async fn try_read(&self, block: u64, buf: &Slice, limit: Nanos) -> Result<(), Unread> {
        let Some(disk) = self.disk.as_ref().filter(|_| self.is_readable()) else {
            return Err(Unread::Failed(IoError::Offline));
        };
        let count = (buf.len() / BLOCK) as u64;
        self.reads.set(self.reads.get() + count);
        let _busy = Busy::new(self);
        if self.remap.borrow().is_empty() && self.takes(buf) {
            let op = DiskOp::Read { offset: block * BLOCK as u64, buf: buf.clone() };
            let (token, mut done) = completion();
            disk.submit(op, token);
            return match patience(limit, &mut done).await {
                Ok(c) => status(c).map_err(Unread::Failed),
                Err(_) => Err(Unread::GivenUp(done)),
            };
        }
        Box::pin(self.read_pieces(disk, block, buf, limit)).await.map_err(Unread::Failed)
    }

    /// Reads blocks some of which lie elsewhere, or by memory of its own.
    async fn read_pieces(
        &self,
        disk: &Rc<dyn Disk>,
        block: u64,
        buf: &Slice,
        limit: Nanos,
    ) -> IoResult {
        let pieces: Vec<_> = self.pieces(block, (buf.len() / BLOCK) as u64).collect();
        for (at, n, from) in pieces {
            let pos = (from - block) as usize * BLOCK;
            let part = Slice::heap(n as usize * BLOCK);
            let op = DiskOp::Read { offset: at * BLOCK as u64, buf: part.clone() };
            within(limit, run(&**disk, op)).await?;
            buf.copy_from(pos, &part, 0, part.len());
        }
        Ok(())
    }
}

async fn within(limit: Nanos, io: impl Future<Output = IoResult>) -> IoResult {
    patience(limit, io).await.unwrap_or(Err(IoError::Offline))
}

/// Counts an operation for as long as it lives.
struct Busy<'a>(&'a Device);

impl<'a> Busy<'a> {
    fn new(d: &'a Device) -> Self {
        d.busy.set(d.busy.get() + 1);
        Busy(d)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.set(self.0.busy.get() - 1);
    }
}

/// A write under way.
pub(crate) struct Pending {
    pub(crate) device: u16,
    done: Option<CompletionFuture>,
    again: (Rc<dyn Disk>, DiskOp),
    late: Late,
    over: bool,
}

impl Pending {
    /// Waits for its end. What was refused for want of memory or room in a queue is tried again: that is no failure of the
    /// device.
    async fn end(&mut self) -> IoResult {
        const PAUSES: [Nanos; 4] = [MILLIS, 10 * MILLIS, 100 * MILLIS, 1000 * MILLIS];
        let mut pauses = PAUSES.iter();
        loop {
            let Some(done) = &mut self.done else { return Ok(()) };
            let result = status(done.await);
            self.done = None;
            match pauses.next().filter(|_| result == Err(IoError::Busy)) {
                Some(pause) => sleep(*pause).await,
                None => return result,
            }
            let (token, done) = completion();
            self.again.0.submit(self.again.1.clone(), token);
            self.done = Some(done);
        }
    }
}

impl Drop for Pending {
    /// Nobody waits for it any more; it has not ended.
    fn drop(&mut self) {
        if let Some(late) = self.done.take() {
            self.late.borrow_mut().push(late);
        }
    }
}

/// Waits for all writes and says which failed. What has not ended after `limit` has failed.
pub(crate) async fn wait(all: &mut Vec<Pending>, limit: Nanos) -> Vec<(u16, IoError)> {
    let mut failed = Vec::new();
    let ended = {
        let (all, failed) = (&mut *all, &mut failed);
        patience(limit, async move {
            for p in all.iter_mut() {
                if let Err(e) = p.end().await {
                    failed.push((p.device, e));
                }
                p.over = true;
            }
        })
        .await
    };
    if ended.is_err() {
        // One look at each: some may have ended while the first was waited for.
        for p in all.iter_mut().filter(|p| !p.over) {
            let Some(mut done) = p.done.take() else {
                // It was to be tried again.
                failed.push((p.device, IoError::Busy));
                continue;
            };
            let now = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(std::pin::Pin::new(&mut done).poll(cx))
            });
            match now.await {
                std::task::Poll::Ready(c) => {
                    if let Err(e) = status(c) {
                        failed.push((p.device, e));
                    }
                }
                std::task::Poll::Pending => {
                    p.late.borrow_mut().push(done);
                    failed.push((p.device, IoError::Offline));
                }
            }
        }
    }
    all.clear();
    failed
}

//! Receive queues: the contract's queue, and its part on each device.
//!
//! | mode | buffers that the device writes to | when |
//! |---|---|---|
//! | direct | those that were posted to the queue | one device, which has shared receive queues |
//! | copied | the queue's own, registered ones; a message is copied into the next posted buffer | several devices, or none with shared receive queues |
//!
//! A posted buffer cannot be moved from one device's queue to another's, so that buffers in devices
//! would be lost to connections on other devices; copying (an SRP command is some 64 bytes) avoids that.

use crate::conn::Conn;
use crate::device::Device;
use crate::ffi::*;
use crate::objects::{Mr, RecvBatch, Srq};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::{Rc, Weak};
use weir_fabric::{RecvQueue, status};
use weir_mem::Slice;
use weir_reactor::{Completion, Token};

/// Receives of a connection on a device that has no shared receive queues, at most.
const PRIVATE_DEPTH: usize = 256;

/// The contract's receive queue.
pub(crate) struct Queue {
    depth: usize,
    len: usize,
    copied: bool,
    /// Each connection has receives of its own.
    pub(crate) unshared: bool,
    /// Posted, and not with a device.
    waiting: RefCell<VecDeque<(Slice, Token)>>,
    /// Posted and with a device (direct mode).
    placed: Cell<usize>,
    parts: RefCell<Vec<Rc<Part>>>,
    /// Messages for which no buffer is posted (copied mode).
    held: RefCell<VecDeque<Held>>,
}

struct Held {
    part: Rc<Part>,
    entry: u32,
    conn: Rc<Conn>,
    len: u32,
    invalidated: u32,
}

/// What the device fills.
enum Target {
    Shared(Rc<Srq>),
    /// One connection's own receives.
    Own(Weak<Conn>),
}

/// Receives that are with one device.
pub(crate) struct Part {
    /// Gone when its user dropped it and no connection is left.
    queue: Weak<Queue>,
    copied: bool,
    device: Weak<Device>,
    target: RefCell<Option<Target>>,
    depth: usize,
    wr_base: u64,
    index: usize,
    entries: RefCell<Vec<Option<Entry>>>,
    free: RefCell<Vec<u32>>,
    batch: RefCell<RecvBatch>,
    dirty: Cell<bool>,
    /// Copied mode: the buffers' registration and memory.
    own: RefCell<Option<(Mr, Slice)>>,
}

struct Entry {
    /// Ends before the buffer that it registers.
    mr: Option<Mr>,
    buf: Slice,
    sge: ibv_sge,
    /// Of the posted buffer; [`Token::NONE`] in copied mode.
    token: Token,
}

impl Queue {
    pub(crate) fn new(depth: usize, len: usize, copied: bool, unshared: bool) -> Rc<Queue> {
        Rc::new(Queue {
            depth,
            len,
            copied,
            unshared,
            waiting: RefCell::default(),
            placed: Cell::new(0),
            parts: RefCell::default(),
            held: RefCell::default(),
        })
    }

    /// The part on `device`, made and filled now if this is the first connection there.
    pub(crate) fn on_device(self: &Rc<Self>, device: &Rc<Device>) -> Result<Rc<Part>, String> {
        let here = |p: &&Rc<Part>| std::ptr::eq(p.device.as_ptr(), Rc::as_ptr(device));
        if let Some(p) = self.parts.borrow().iter().find(here) {
            return Ok(p.clone());
        }
        if !self.copied && !self.parts.borrow().is_empty() {
            return Err(
                "the receive queue is bound to another device; configure `copied` receives".into(),
            );
        }
        let depth = self.depth.min(device.ctx.limits.srq_wr as usize).max(1);
        let srq = Srq::new(&device.pd, depth as u32)
            .map_err(|e| format!("cannot make a shared receive queue of {depth}: {e}"))?;
        let part = self.part(device, Target::Shared(Rc::new(srq)), depth)?;
        self.parts.borrow_mut().push(part.clone());
        Ok(part)
    }

    /// Receives of a connection of its own, for devices without shared receive queues.
    pub(crate) fn for_conn(
        self: &Rc<Self>,
        device: &Rc<Device>,
        conn: &Rc<Conn>,
    ) -> Result<Rc<Part>, String> {
        let depth = self.depth.clamp(1, PRIVATE_DEPTH);
        self.part(device, Target::Own(Rc::downgrade(conn)), depth)
    }

    fn part(
        self: &Rc<Self>,
        device: &Rc<Device>,
        target: Target,
        depth: usize,
    ) -> Result<Rc<Part>, String> {
        let (index, wr_base) = device.reserve_part();
        let part = Rc::new(Part {
            queue: Rc::downgrade(self),
            copied: self.copied,
            device: Rc::downgrade(device),
            target: RefCell::new(Some(target)),
            depth,
            wr_base,
            index,
            entries: RefCell::default(),
            free: RefCell::default(),
            batch: RefCell::default(),
            dirty: Cell::new(false),
            own: RefCell::default(),
        });
        device.set_part(index, part.clone());
        let filled = if self.copied {
            part.fill(device, self.len)
        } else {
            part.refill(device);
            Ok(())
        };
        let r = filled.and_then(|()| part.flush());
        if let Err(e) = r {
            part.end();
            return Err(format!("cannot post receives: {e}"));
        }
        Ok(part)
    }

    /// The next posted buffer takes a message in copied mode.
    fn deliver_copy(&self, h: &Held, bytes: &Slice) -> bool {
        let Some((buf, token)) = self.waiting.borrow_mut().pop_front() else { return false };
        if h.len as usize > buf.len() {
            self.waiting.borrow_mut().push_front((buf, token));
            h.conn.fail("a message is longer than its receive");
            return true;
        }
        buf.copy_from(0, bytes, 0, h.len as usize);
        h.conn.delivered(token, h.len, h.invalidated);
        true
    }

    /// A connection is down: its messages that nobody took are dropped.
    pub(crate) fn forget(&self, conn: &Conn) {
        let (gone, kept) = self
            .held
            .take()
            .into_iter()
            .partition::<VecDeque<_>, _>(|h| std::ptr::eq(Rc::as_ptr(&h.conn), conn));
        self.held.replace(kept);
        for h in gone {
            h.part.repost(h.entry);
        }
    }

    /// Messages that waited for a buffer.
    fn serve_held(&self) {
        loop {
            let Some(h) = self.held.borrow_mut().pop_front() else { return };
            let bytes = h.part.bytes(h.entry);
            if !self.deliver_copy(&h, &bytes) {
                self.held.borrow_mut().push_front(h);
                return;
            }
            h.part.repost(h.entry);
        }
    }
}

impl RecvQueue for Queue {
    fn post(&self, buf: Slice, token: Token) {
        assert!(buf.len() <= self.len, "receive buffer longer than the queue was made for");
        self.waiting.borrow_mut().push_back((buf, token));
        if self.copied {
            if !self.held.borrow().is_empty() {
                self.serve_held();
            }
        } else if let Some(p) = self.parts.borrow().first()
            && let Some(d) = p.device.upgrade()
        {
            p.refill(&d);
        }
    }

    fn posted(&self) -> usize {
        self.waiting.borrow().len() + self.placed.get()
    }

    /// A buffer that the device has (direct mode) cannot be taken back while connections use the queue.
    fn cancel(&self, token: Token) -> bool {
        let idle = !self.copied && self.parts.borrow().iter().all(|p| p.is_unused());
        if idle {
            for p in self.parts.take() {
                p.end();
            }
        }
        let mut q = self.waiting.borrow_mut();
        match q.iter().position(|(_, t)| *t == token) {
            Some(i) => {
                q.remove(i);
                true
            }
            None => false,
        }
    }

    fn into_any(self: Rc<Self>) -> Rc<dyn std::any::Any> {
        self
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        for p in self.parts.take() {
            p.end();
        }
    }
}

impl Part {
    /// The shared queue, for making a queue pair; `None` when this belongs to one connection.
    pub(crate) fn srq(&self) -> Option<Rc<Srq>> {
        match self.target.borrow().as_ref() {
            Some(Target::Shared(s)) => Some(s.clone()),
            _ => None,
        }
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth as u32
    }

    /// No queue pair uses it.
    fn is_unused(&self) -> bool {
        match self.target.borrow().as_ref() {
            Some(Target::Shared(s)) => Rc::strong_count(s) == 1,
            _ => true,
        }
    }

    #[expect(clippy::expect_used, reason = "our own bookkeeping, whatever was received")]
    fn bytes(&self, entry: u32) -> Slice {
        let entries = self.entries.borrow();
        entries[entry as usize].as_ref().expect("a held message has its entry").buf.clone()
    }

    fn place(&self, e: Entry) {
        let sge = e.sge;
        let mut entries = self.entries.borrow_mut();
        let i = match self.free.borrow_mut().pop() {
            Some(i) => {
                entries[i as usize] = Some(e);
                i
            }
            None => {
                entries.push(Some(e));
                entries.len() as u32 - 1
            }
        };
        drop(entries);
        self.queue_up(i, sge);
    }

    fn queue_up(&self, entry: u32, sge: ibv_sge) {
        self.batch.borrow_mut().push(self.wr_base | u64::from(entry), sge);
        if !self.dirty.replace(true)
            && let Some(d) = self.device.upgrade()
        {
            d.part_dirty(self.index);
        }
    }

    fn repost(&self, entry: u32) {
        let sge = self.entries.borrow()[entry as usize].as_ref().map(|e| e.sge);
        if let Some(sge) = sge
            && self.target.borrow().is_some()
        {
            self.queue_up(entry, sge);
        }
    }

    /// Direct mode: posted buffers go to the device as far as it has room.
    fn refill(&self, device: &Device) {
        let room = |p: &Part| p.entries.borrow().len() - p.free.borrow().len() < p.depth;
        let Some(queue) = self.queue.upgrade() else { return };
        while room(self) && self.target.borrow().is_some() {
            let Some((buf, token)) = queue.waiting.borrow_mut().pop_front() else { return };
            match device.memory.receive(&buf) {
                Ok((sge, mr)) => {
                    queue.placed.set(queue.placed.get() + 1);
                    self.place(Entry { mr, buf, sge, token });
                }
                Err(_) => {
                    // Over a limit of locked memory: tried again with the next post.
                    queue.waiting.borrow_mut().push_front((buf, token));
                    return;
                }
            }
        }
    }

    /// Copied mode: buffers of the queue's own.
    fn fill(&self, device: &Device, len: usize) -> io::Result<()> {
        let each = len.max(1).next_multiple_of(64);
        let total = each.saturating_mul(self.depth);
        if u32::try_from(total).is_err() {
            return Err(io::Error::other(format!("{} of {len} bytes are too many", self.depth)));
        }
        let memory = Slice::heap(total);
        let whole = device.memory.register(&memory, 0)?;
        for i in 0..self.depth {
            let buf = memory.sub(i * each, len);
            let sge =
                ibv_sge { addr: buf.as_ptr() as u64, length: buf.len() as u32, lkey: whole.lkey };
            self.place(Entry { mr: None, buf, sge, token: Token::NONE });
        }
        *self.own.borrow_mut() = Some((whole, memory));
        Ok(())
    }

    /// Rings the doorbell for what was posted.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.dirty.set(false);
        let mut batch = self.batch.borrow_mut();
        if batch.is_empty() {
            return Ok(());
        }
        match self.target.borrow().as_ref() {
            // SAFETY: entries keep the buffers and registrations until their completion, or the queue's end.
            Some(Target::Shared(s)) => unsafe { s.post(&mut batch) },
            Some(Target::Own(c)) => match c.upgrade() {
                Some(c) => c.post_receives(&mut batch),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// A receive has completed, for `conn` if that is still there.
    pub(crate) fn completed(self: &Rc<Self>, device: &Device, wc: &ibv_wc, conn: Option<Rc<Conn>>) {
        let entry = wc.wr_id as u32;
        if self.entries.borrow().get(entry as usize).is_none_or(Option::is_none) {
            return;
        }
        let conn = conn.filter(|_| wc.status == IBV_WC_SUCCESS);
        let (Some(conn), Some(queue)) = (conn, self.queue.upgrade()) else {
            // A buffer that the connection took and did not fill.
            if wc.status == IBV_WC_LOC_LEN_ERR
                && let Some(c) = device.conn_of_qp(wc.qp_num)
            {
                c.fail("a message is longer than its receive");
            } else if wc.status != IBV_WC_WR_FLUSH_ERR
                && wc.status != IBV_WC_SUCCESS
                && let Some(c) = device.conn_of_qp(wc.qp_num)
            {
                c.fail(&format!("receive: {}", device.ctx.status_text(wc.status)));
            }
            // A connection's own receives end with it.
            if matches!(self.target.borrow().as_ref(), Some(Target::Shared(_))) {
                self.repost(entry);
            }
            return;
        };
        let len = wc.byte_len;
        let invalidated = if wc.wc_flags & IBV_WC_WITH_INV != 0 { wc.invalidated_rkey } else { 0 };
        if self.copied {
            let h = Held { part: self.clone(), entry, conn, len, invalidated };
            // Messages keep their order.
            if queue.held.borrow().is_empty() && queue.deliver_copy(&h, &self.bytes(entry)) {
                self.repost(entry);
            } else {
                queue.held.borrow_mut().push_back(h);
            }
            return;
        }
        let taken = self.entries.borrow_mut()[entry as usize].take();
        self.free.borrow_mut().push(entry);
        queue.placed.set(queue.placed.get() - 1);
        if let Some(e) = taken {
            let Entry { mr, buf, token, .. } = e;
            drop(mr);
            drop(buf);
            conn.delivered(token, len, invalidated);
        }
        if !queue.waiting.borrow().is_empty() {
            self.refill(device);
        }
    }

    /// The device is done with these receives; posted buffers return to the queue.
    pub(crate) fn end(&self) {
        self.batch.borrow_mut().clear();
        // Destroys a shared queue, whose queue pairs are gone.
        self.target.borrow_mut().take();
        let entries = self.entries.take();
        self.free.borrow_mut().clear();
        if let Some(queue) = self.queue.upgrade()
            && !self.copied
        {
            let mut waiting = queue.waiting.borrow_mut();
            for Entry { mr, buf, token, .. } in entries.into_iter().flatten().rev() {
                drop(mr);
                waiting.push_front((buf, token));
                queue.placed.set(queue.placed.get() - 1);
            }
        }
        self.own.borrow_mut().take();
        if let Some(d) = self.device.upgrade() {
            d.drop_part(self.index, self.depth());
        }
    }

    /// Detaches a part whose device is gone, so that the queue can serve another.
    pub(crate) fn detach(self: &Rc<Self>) {
        if let Some(q) = self.queue.upgrade() {
            q.held.borrow_mut().retain(|h| !Rc::ptr_eq(&h.part, self));
            q.parts.borrow_mut().retain(|p| !Rc::ptr_eq(p, self));
        }
        self.end();
    }
}

/// The error status of a request that failed with this completion status.
pub(crate) fn result_of(status: i32) -> i32 {
    match status {
        IBV_WC_SUCCESS => 0,
        IBV_WC_REM_ACCESS_ERR | IBV_WC_REM_INV_REQ_ERR => status::REMOTE_ACCESS,
        _ => status::FLUSHED,
    }
}

/// What a receive token is told.
pub(crate) fn received(qp: u32, len: u32, invalidated: u32) -> Completion {
    Completion { result: 0, len, source: qp, extra: invalidated }
}

//! One device as one reactor uses it: a context of its own, one protection domain, completion queues.

use crate::conn::Conn;
use crate::ffi::*;
use crate::library::Library;
use crate::memory::Memory;
use crate::objects::{CompChannel, Context, Cq, Pd, Qp, QpConfig};
use crate::provider::Config;
use crate::recv::{Part, Queue};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::io;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use weir_fabric::FabricError;
use weir_uring::Watch;

/// Completions taken with one call.
const BATCH: usize = 32;
/// Calls for one queue in one turn, so that it cannot starve the rest of the reactor.
const ROUNDS: usize = 8;
/// Work requests of the provider's own on each send queue: two drain marks.
pub(crate) const RESERVE: u32 = 2;

/// Names in a `wr_id`: bit 63 tells receives, bit 62 RDMA READs; then generation, place, and a number.
pub(crate) const RECV: u64 = 1 << 63;
pub(crate) const READ: u64 = 1 << 62;
const GENERATIONS: u64 = 0x3fff;

pub(crate) fn wr_base(generation: u16, index: usize) -> u64 {
    (u64::from(generation) & GENERATIONS) << 48 | (index as u64 & 0xffff) << 32
}

/// Things by their place in a `wr_id`. A late completion cannot hit what took the place since.
struct Table<T> {
    slots: Vec<(u16, Option<Rc<T>>)>,
    free: Vec<usize>,
}

impl<T> Table<T> {
    const EMPTY: Self = Table { slots: Vec::new(), free: Vec::new() };

    fn reserve(&mut self) -> (usize, u64) {
        let i = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() - 1
        });
        (i, wr_base(self.slots[i].0, i))
    }

    #[inline]
    fn get(&self, wr_id: u64) -> Option<Rc<T>> {
        let i = (wr_id >> 32) as u16;
        let (generation, value) = self.slots.get(usize::from(i))?;
        let same = u64::from(*generation) & GENERATIONS == wr_id >> 48 & GENERATIONS;
        value.as_ref().filter(|_| same).cloned()
    }

    fn at(&self, i: usize) -> Option<Rc<T>> {
        self.slots.get(i).and_then(|s| s.1.clone())
    }

    fn remove(&mut self, i: usize) -> Option<Rc<T>> {
        let s = &mut self.slots[i];
        s.0 = s.0.wrapping_add(1);
        self.free.push(i);
        s.1.take()
    }

    fn all(&self) -> Vec<Rc<T>> {
        self.slots.iter().filter_map(|s| s.1.clone()).collect()
    }
}

/// Queue pair numbers are dense and chosen by the device: no need to scatter them.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl std::hash::Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*b);
        }
    }
    fn write_u32(&mut self, n: u32) {
        self.0 = u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

type ByNumber = HashMap<u32, Weak<Conn>, std::hash::BuildHasherDefault<NumberHasher>>;

/// One device of one reactor.
pub(crate) struct Device {
    /// Of the completion channel and of the asynchronous events; gone before the descriptors.
    pub(crate) watches: RefCell<Vec<Watch>>,
    /// What tells the device from others for as long as the process runs.
    pub(crate) guid: u64,
    conns: RefCell<Table<Conn>>,
    by_qp: RefCell<ByNumber>,
    parts: RefCell<Table<Part>>,
    dirty_parts: RefCell<Vec<usize>>,
    /// Inline bytes that the device granted last; it refuses more outright.
    inline: Cell<u32>,
    cqs: RefCell<Vec<(Rc<Cq>, HashSet<usize>)>>,
    cq_entries: u32,
    channel: Rc<CompChannel>,
    pub(crate) memory: Memory,
    pub(crate) pd: Rc<Pd>,
    pub(crate) ctx: Rc<Context>,
    /// It was removed, or has failed.
    pub(crate) dead: Cell<bool>,
}

impl Device {
    /// Opens `device`.
    ///
    /// # Safety
    /// As [`Context::open`].
    pub(crate) unsafe fn open(
        lib: Library,
        device: *mut ibv_device,
        config: &Config,
    ) -> Result<Rc<Device>, FabricError> {
        // SAFETY: the caller's promise.
        let (ctx, guid) =
            unsafe { (Context::open(lib, device), (lib.0.ibv_get_device_guid)(device)) };
        let whole = ctx.and_then(|ctx| {
            let pd = Pd::new(&ctx)?;
            let memory = Memory::new(&pd, &config.stage, config.private_read_sinks)?;
            let channel = CompChannel::new(&ctx)?;
            Ok((ctx, pd, memory, channel))
        });
        let (ctx, pd, memory, channel) = whole.map_err(|e| {
            let name = crate::library::info(lib.0, device).name;
            let hint = match e.raw_os_error() {
                Some(libc::ENOMEM) => " (RLIMIT_MEMLOCK limits memory for RDMA: ulimit -l)",
                _ => "",
            };
            FabricError::Unavailable(format!("cannot use RDMA device {name}: {e}{hint}"))
        })?;
        Ok(Rc::new(Device {
            guid,
            conns: RefCell::new(Table::EMPTY),
            by_qp: RefCell::default(),
            parts: RefCell::new(Table::EMPTY),
            dirty_parts: RefCell::default(),
            inline: Cell::new(config.inline),
            cqs: RefCell::default(),
            cq_entries: config.completions,
            channel,
            memory,
            pd,
            ctx,
            dead: Cell::new(false),
            watches: RefCell::default(),
        }))
    }

    pub(crate) fn fds(&self) -> [std::os::fd::RawFd; 2] {
        [self.channel.fd(), self.ctx.async_fd()]
    }

    pub(crate) fn add_region(&self, base: NonNull<u8>, len: usize) -> Result<(), FabricError> {
        self.memory.add_region(base, len).map_err(|e| {
            FabricError::Unavailable(format!(
                "cannot register {len} bytes with RDMA device {}: {e}; the memory is locked, so RLIMIT_MEMLOCK \
                 (ulimit -l, systemd LimitMEMLOCK=infinity) must allow it",
                self.ctx.name
            ))
        })
    }

    // ---- receives

    pub(crate) fn reserve_part(&self) -> (usize, u64) {
        let (i, base) = self.parts.borrow_mut().reserve();
        (i, base | RECV)
    }

    pub(crate) fn set_part(&self, i: usize, p: Rc<Part>) {
        self.parts.borrow_mut().slots[i].1 = Some(p);
    }

    pub(crate) fn drop_part(&self, i: usize, depth: u32) {
        for (cq, parts) in self.cqs.borrow_mut().iter_mut() {
            if parts.remove(&i) {
                self.cq_returned(cq, depth);
            }
        }
        let p = self.parts.borrow_mut().remove(i);
        drop(p);
    }

    pub(crate) fn part_dirty(&self, i: usize) {
        self.dirty_parts.borrow_mut().push(i);
    }

    /// Posts receives that this turn gave.
    pub(crate) fn flush(&self) {
        while let Some(i) = { self.dirty_parts.borrow_mut().pop() } {
            let part = self.parts.borrow().at(i);
            if let Some(Err(e)) = part.map(|p| p.flush()) {
                for c in self.connections() {
                    c.fail(&format!("cannot post receives: {e}"));
                }
            }
        }
    }

    // ---- connections

    pub(crate) fn reserve_conn(&self) -> (usize, u64) {
        self.conns.borrow_mut().reserve()
    }

    pub(crate) fn set_conn(&self, i: usize, c: &Rc<Conn>) {
        self.conns.borrow_mut().slots[i].1 = Some(c.clone());
    }

    pub(crate) fn set_qp(&self, number: u32, c: &Rc<Conn>) {
        self.by_qp.borrow_mut().insert(number, Rc::downgrade(c));
    }

    pub(crate) fn drop_qp(&self, number: u32) {
        self.by_qp.borrow_mut().remove(&number);
    }

    pub(crate) fn drop_conn(&self, i: usize) {
        let c = self.conns.borrow_mut().remove(i);
        drop(c);
    }

    pub(crate) fn connections(&self) -> Vec<Rc<Conn>> {
        self.conns.borrow().all()
    }

    pub(crate) fn conn_of_qp(&self, number: u32) -> Option<Rc<Conn>> {
        self.by_qp.borrow().get(&number).and_then(Weak::upgrade)
    }

    /// A completion queue with room for `send` completions and those of `part`.
    fn cq(&self, send: u32, part: &Part) -> io::Result<Rc<Cq>> {
        let mut cqs = self.cqs.borrow_mut();
        for (cq, parts) in cqs.iter_mut() {
            let recv = if parts.contains(&part.index()) { 0 } else { part.depth() };
            if cq.promised.get() + send + recv <= cq.capacity {
                cq.promised.set(cq.promised.get() + send + recv);
                parts.insert(part.index());
                return Ok(cq.clone());
            }
        }
        let need = send + part.depth();
        let cq = Rc::new(Cq::new(&self.channel, self.cq_entries.max(need), cqs.len())?);
        if cq.capacity < need {
            let why = format!("the device's completion queues hold {}, {need} needed", cq.capacity);
            return Err(io::Error::other(why));
        }
        cq.promised.set(need);
        cqs.push((cq.clone(), HashSet::from([part.index()])));
        Ok(cq)
    }

    /// A queue pair with `send_queue` work requests, on a completion queue with room for them.
    pub(crate) fn queue_pair(&self, part: &Part, send_queue: u32) -> io::Result<(Qp, Rc<Cq>)> {
        let send_wr = (send_queue + RESERVE).min(self.ctx.limits.send_wr);
        let cq = self.cq(send_wr, part)?;
        let srq = part.srq();
        let recv_wr = if srq.is_some() { 0 } else { part.depth() };
        loop {
            let inline = self.inline.get();
            let config = QpConfig { send_wr, recv_wr, inline };
            match Qp::new(&self.pd, &cq, srq.as_ref(), &config) {
                Ok(qp) => return Ok((qp, cq)),
                // Devices refuse more inline data than they can take instead of granting less.
                Err(e) if inline > 0 && e.raw_os_error() == Some(libc::EINVAL) => {
                    self.inline.set(match inline {
                        129.. => 128,
                        65.. => 64,
                        _ => 0,
                    });
                }
                Err(e) => {
                    self.cq_returned(&cq, send_wr);
                    return Err(e);
                }
            }
        }
    }

    /// What could complete on the queue is gone.
    pub(crate) fn cq_returned(&self, cq: &Cq, n: u32) {
        cq.promised.set(cq.promised.get().saturating_sub(n));
    }

    // ---- completions

    /// Takes completions; true when there were any.
    pub(crate) fn poll(&self) -> bool {
        let mut any = false;
        let mut wcs = [ibv_wc::default(); BATCH];
        let mut i = 0;
        while let Some(cq) = { self.cqs.borrow().get(i).map(|c| c.0.clone()) } {
            for _ in 0..ROUNDS {
                let n = cq.poll(&mut wcs);
                any |= n > 0;
                for wc in &wcs[..n] {
                    self.completed(wc);
                }
                if n < BATCH {
                    break;
                }
            }
            i += 1;
        }
        any
    }

    #[inline]
    fn completed(&self, wc: &ibv_wc) {
        if wc.wr_id & RECV != 0 {
            let part = self.parts.borrow().get(wc.wr_id);
            if let Some(p) = part {
                p.completed(self, wc, self.conn_of_qp(wc.qp_num));
            }
        } else {
            let conn = self.conns.borrow().get(wc.wr_id);
            if let Some(c) = conn {
                c.completed(wc);
            }
        }
    }

    /// Asks for events of what comes from now on; false when something came meanwhile.
    pub(crate) fn arm(&self) -> bool {
        let mut fresh = false;
        for (cq, _) in self.cqs.borrow().iter() {
            if !cq.armed.get() {
                cq.arm();
                fresh = true;
            }
        }
        // What came between the last poll and arming raises no event.
        !(fresh && self.poll())
    }

    /// The completion channel is readable.
    pub(crate) fn channel_events(&self) {
        while let Some(i) = self.channel.event() {
            if let Some((cq, _)) = self.cqs.borrow().get(i) {
                cq.disarmed();
            }
        }
    }

    /// Asynchronous events are there.
    pub(crate) fn async_events(&self) {
        while let Some(e) = self.ctx.async_event() {
            let conn = || self.connections().into_iter().find(|c| c.is_element(e.element));
            match e.kind {
                IBV_EVENT_QP_LAST_WQE_REACHED => {
                    if let Some(c) = conn() {
                        c.last_receive();
                    }
                }
                IBV_EVENT_COMM_EST => {
                    if let Some(c) = conn() {
                        c.heard();
                    }
                }
                IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => {
                    if let Some(c) = conn() {
                        c.fail("the adapter reports an error of the queue pair");
                    }
                }
                // Which connections are on it does not matter: it should never happen.
                IBV_EVENT_CQ_ERR | IBV_EVENT_SRQ_ERR => {
                    for c in self.connections() {
                        c.fail("the adapter reports an error of a queue");
                    }
                }
                IBV_EVENT_DEVICE_FATAL => self.died("the RDMA device failed or was removed"),
                _ => {}
            }
        }
    }

    /// All connections end; the provider lets go of the device after them.
    pub(crate) fn died(&self, why: &str) {
        self.dead.set(true);
        for c in self.connections() {
            c.fail(why);
        }
    }

    /// Ends everything on the device at once, for a reactor that ends.
    pub(crate) fn abandon(&self) {
        for c in self.connections() {
            c.abandon();
        }
        self.forget_parts();
    }

    /// Receive queues take back what the device had.
    pub(crate) fn forget_parts(&self) {
        let all = self.parts.borrow().all();
        for p in all {
            p.detach();
        }
    }

    /// The receive queue's part for a new connection.
    pub(crate) fn part(
        self: &Rc<Self>,
        queue: &Rc<Queue>,
        conn: &Rc<Conn>,
    ) -> Result<Rc<Part>, String> {
        if self.ctx.limits.srqs == 0 || queue.unshared {
            queue.for_conn(self, conn)
        } else {
            queue.on_device(self)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_completion_finds_nothing_in_a_place_that_was_used_again() {
        let mut t = Table::EMPTY;
        let (i, first) = t.reserve();
        t.slots[i].1 = Some(Rc::new("first"));
        assert_eq!(t.get(first | 77).as_deref(), Some(&"first"));
        assert_eq!(t.get(RECV | READ | first).as_deref(), Some(&"first"));
        t.remove(i);
        let (j, second) = t.reserve();
        t.slots[j].1 = Some(Rc::new("second"));
        assert_eq!(i, j);
        assert_eq!(t.get(first), None);
        assert_eq!(t.get(second).as_deref(), Some(&"second"));
        // Also after the generation has gone round.
        for _ in 0..3 * (GENERATIONS + 1) {
            t.remove(0);
            let (_, base) = t.reserve();
            assert_eq!(base & (RECV | READ), 0);
            t.slots[0].1 = Some(Rc::new("later"));
            assert!(t.get(base).is_some());
        }
        assert_eq!(t.get(wr_base(0, 1)), None);
    }
}

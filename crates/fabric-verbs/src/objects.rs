//! Verbs objects that end themselves. Each holds what it was made of, so that everything ends in order.

use crate::ffi::*;
use crate::library::{Api, Library, check, info, text};
use std::cell::Cell;
use std::ffi::c_int;
use std::io;
use std::os::fd::RawFd;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;
use weir_mem::Slice;

fn made<T>(p: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(p).ok_or_else(io::Error::last_os_error)
}

/// Makes reads of a descriptor return at once.
pub(crate) fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: plain system call on a descriptor of the caller's.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) }.min(0))
}

/// `vendor_id` of siw.
const SIW: u32 = 0x62_6d74;

/// What a device can do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) send_wr: u32,
    pub(crate) cqe: u32,
    pub(crate) srqs: u32,
    pub(crate) srq_wr: u32,
    /// RDMA READs of one connection: served, and issued.
    pub(crate) reads_in: u8,
    pub(crate) reads_out: u8,
    pub(crate) send_with_invalidate: bool,
    /// The kernel's software iWARP, which differs from adapters here and there.
    pub(crate) siw: bool,
    pub(crate) iwarp: bool,
}

/// An event that is not a completion.
pub(crate) struct AsyncEvent {
    pub(crate) kind: c_int,
    /// The queue pair it is about, if that is its kind; only to be compared.
    pub(crate) element: usize,
}

/// An open device.
pub(crate) struct Context {
    pub(crate) api: &'static Api,
    ptr: NonNull<ibv_context>,
    pub(crate) name: String,
    pub(crate) iwarp: bool,
    pub(crate) limits: Limits,
}

impl Context {
    /// Opens `device`.
    ///
    /// # Safety
    /// The device is alive: on a list that was not freed, or of an open context.
    pub(crate) unsafe fn open(lib: Library, device: *mut ibv_device) -> io::Result<Rc<Context>> {
        let api = lib.0;
        let what = info(api, device);
        // SAFETY: the caller's promise.
        let ptr = made(unsafe { (api.ibv_open_device)(device) })?;
        let mut c = Context {
            api,
            ptr,
            name: what.name,
            iwarp: what.iwarp,
            limits: Limits {
                send_wr: 0,
                cqe: 0,
                srqs: 0,
                srq_wr: 0,
                reads_in: 0,
                reads_out: 0,
                send_with_invalidate: false,
                siw: false,
                iwarp: false,
            },
        };
        // SAFETY: all-zero bytes are a valid value of this plain structure.
        let mut a: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open and the structure complete.
        check(unsafe { (api.ibv_query_device)(ptr.as_ptr(), &raw mut a) })?;
        let number = |n: c_int| u32::try_from(n).unwrap_or(0);
        let depth = |n: c_int| u8::try_from(n.clamp(0, 254)).unwrap_or(0);
        c.limits = Limits {
            send_wr: number(a.max_qp_wr),
            cqe: number(a.max_cqe),
            srqs: number(a.max_srq),
            srq_wr: number(a.max_srq_wr),
            reads_in: depth(a.max_qp_rd_atom),
            reads_out: depth(a.max_qp_init_rd_atom),
            send_with_invalidate: c.iwarp
                || a.device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS != 0,
            siw: c.iwarp && a.vendor_id == SIW,
            iwarp: c.iwarp,
        };
        set_nonblocking(c.async_fd())?;
        Ok(Rc::new(c))
    }

    /// Readable when there is an [`async_event`](Context::async_event).
    pub(crate) fn async_fd(&self) -> RawFd {
        // SAFETY: the context is open.
        unsafe { self.ptr.as_ref() }.async_fd
    }

    /// The next event, acknowledged already; `None` when there is none.
    pub(crate) fn async_event(&self) -> Option<AsyncEvent> {
        let mut e = ibv_async_event { element: null_mut(), event_type: 0 };
        // SAFETY: the context is open, its descriptor does not block, and the structure is complete.
        if unsafe { (self.api.ibv_get_async_event)(self.ptr.as_ptr(), &raw mut e) } != 0 {
            return None;
        }
        let event = AsyncEvent { kind: e.event_type, element: e.element as usize };
        // SAFETY: got just now; the object it names lives, as destroying it waits for this call.
        unsafe { (self.api.ibv_ack_async_event)(&raw mut e) };
        Some(event)
    }

    /// A status of a work completion in words.
    pub(crate) fn status_text(&self, status: c_int) -> String {
        // SAFETY: a pure function of a number.
        text(unsafe { (self.api.ibv_wc_status_str)(status) })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: everything made of the context held it, so all that is gone.
        unsafe { (self.api.ibv_close_device)(self.ptr.as_ptr()) };
    }
}

/// A protection domain.
pub(crate) struct Pd {
    pub(crate) ctx: Rc<Context>,
    ptr: NonNull<ibv_pd>,
}

impl Pd {
    pub(crate) fn new(ctx: &Rc<Context>) -> io::Result<Rc<Pd>> {
        // SAFETY: the context is open.
        let ptr = made(unsafe { (ctx.api.ibv_alloc_pd)(ctx.ptr.as_ptr()) })?;
        Ok(Rc::new(Pd { ctx: ctx.clone(), ptr }))
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: everything made of the domain held it.
        unsafe { (self.ctx.api.ibv_dealloc_pd)(self.ptr.as_ptr()) };
    }
}

/// Memory that the device may access.
pub(crate) struct Mr {
    pd: Rc<Pd>,
    ptr: NonNull<ibv_mr>,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

impl Mr {
    /// Registers `addr..addr + len` with rights `access`, and local writing.
    ///
    /// # Safety
    /// The memory stays mapped as long as the registration lives, and only [`weir_mem`]'s rules govern
    /// access to it.
    pub(crate) unsafe fn new(
        pd: &Rc<Pd>,
        addr: *mut u8,
        len: usize,
        access: c_int,
    ) -> io::Result<Mr> {
        let access = access | IBV_ACCESS_LOCAL_WRITE;
        let api = pd.ctx.api;
        // SAFETY: the domain lives; the memory is the caller's promise.
        let ptr = made(unsafe { (api.ibv_reg_mr)(pd.ptr.as_ptr(), addr.cast(), len, access) })?;
        // SAFETY: just made.
        let (lkey, rkey) = unsafe { (ptr.as_ref().lkey, ptr.as_ref().rkey) };
        Ok(Mr { pd: pd.clone(), ptr, lkey, rkey })
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: made by ibv_reg_mr; whoever posted work with its key keeps it until that is over.
        unsafe { (self.pd.ctx.api.ibv_dereg_mr)(self.ptr.as_ptr()) };
    }
}

/// Where completion queues tell that they have something.
pub(crate) struct CompChannel {
    ctx: Rc<Context>,
    ptr: NonNull<ibv_comp_channel>,
}

impl CompChannel {
    pub(crate) fn new(ctx: &Rc<Context>) -> io::Result<Rc<CompChannel>> {
        // SAFETY: the context is open.
        let ptr = made(unsafe { (ctx.api.ibv_create_comp_channel)(ctx.ptr.as_ptr()) })?;
        let c = CompChannel { ctx: ctx.clone(), ptr };
        set_nonblocking(c.fd())?;
        Ok(Rc::new(c))
    }

    pub(crate) fn fd(&self) -> RawFd {
        // SAFETY: the channel lives.
        unsafe { self.ptr.as_ref() }.fd
    }

    /// The index of the next queue that had an event; `None` when there is none.
    pub(crate) fn event(&self) -> Option<usize> {
        let (mut cq, mut context) = (null_mut(), null_mut());
        let api = self.ctx.api;
        // SAFETY: the channel lives, its descriptor does not block, and both results are locals.
        let rc =
            unsafe { (api.ibv_get_cq_event)(self.ptr.as_ptr(), &raw mut cq, &raw mut context) };
        (rc == 0).then_some(context as usize)
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        // SAFETY: the queues of the channel held it.
        unsafe { (self.ctx.api.ibv_destroy_comp_channel)(self.ptr.as_ptr()) };
    }
}

/// A completion queue.
pub(crate) struct Cq {
    channel: Rc<CompChannel>,
    ptr: NonNull<ibv_cq>,
    /// Entries it can hold.
    pub(crate) capacity: u32,
    /// Entries that its queue pairs may need in the worst case: an overflow would break all of them.
    pub(crate) promised: Cell<u32>,
    /// A notification was asked for and has not come.
    pub(crate) armed: Cell<bool>,
    unacknowledged: Cell<u32>,
}

impl Cq {
    /// `index` is what [`CompChannel::event`] will call it.
    pub(crate) fn new(channel: &Rc<CompChannel>, entries: u32, index: usize) -> io::Result<Cq> {
        let ctx = &channel.ctx;
        let entries = c_int::try_from(entries.min(ctx.limits.cqe)).unwrap_or(c_int::MAX);
        let context = index as *mut libc::c_void;
        // SAFETY: context and channel live; the queue's own context is a number to us.
        let ptr = made(unsafe {
            (ctx.api.ibv_create_cq)(ctx.ptr.as_ptr(), entries, context, channel.ptr.as_ptr(), 0)
        })?;
        // SAFETY: just made.
        let granted = unsafe { ptr.as_ref() }.cqe;
        Ok(Cq {
            channel: channel.clone(),
            ptr,
            capacity: u32::try_from(granted.max(entries)).unwrap_or(0),
            promised: Cell::new(0),
            armed: Cell::new(false),
            unacknowledged: Cell::new(0),
        })
    }

    fn ops(&self) -> &ibv_context_ops {
        // SAFETY: the context lives and its table does not change once a device is open.
        &unsafe { self.channel.ctx.ptr.as_ref() }.ops
    }

    /// Takes completions; gives how many.
    #[inline]
    pub(crate) fn poll(&self, wcs: &mut [ibv_wc]) -> usize {
        let Some(poll) = self.ops().poll_cq else { return 0 };
        // SAFETY: the queue lives and the array has as many entries as are asked for.
        let n = unsafe { poll(self.ptr.as_ptr(), wcs.len() as c_int, wcs.as_mut_ptr()) };
        // Negative: the queue is broken. An asynchronous event says so, too, and ends its connections.
        usize::try_from(n).unwrap_or(0)
    }

    /// Asks for an event at the next completion.
    pub(crate) fn arm(&self) -> bool {
        let Some(request) = self.ops().req_notify_cq else { return false };
        // SAFETY: the queue lives.
        let ok = unsafe { request(self.ptr.as_ptr(), 0) } == 0;
        self.armed.set(ok);
        ok
    }

    /// The event came.
    pub(crate) fn disarmed(&self) {
        self.armed.set(false);
        self.unacknowledged.set(self.unacknowledged.get() + 1);
        if self.unacknowledged.get() >= 1024 {
            self.acknowledge();
        }
    }

    fn acknowledge(&self) {
        let n = self.unacknowledged.replace(0);
        if n > 0 {
            // SAFETY: as many events were got for this queue.
            unsafe { (self.channel.ctx.api.ibv_ack_cq_events)(self.ptr.as_ptr(), n) };
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // Destroying waits until all events that were fetched are acknowledged.
        self.acknowledge();
        // SAFETY: the queue pairs on it held it.
        unsafe { (self.channel.ctx.api.ibv_destroy_cq)(self.ptr.as_ptr()) };
    }
}

/// Receives to be posted together.
#[derive(Default)]
pub(crate) struct RecvBatch {
    wrs: Vec<ibv_recv_wr>,
    sges: Vec<ibv_sge>,
}

impl RecvBatch {
    pub(crate) fn push(&mut self, wr_id: u64, sge: ibv_sge) {
        let num_sge = c_int::from(sge.length > 0);
        self.sges.push(sge);
        self.wrs.push(ibv_recv_wr { wr_id, next: null_mut(), sg_list: null_mut(), num_sge });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.wrs.is_empty()
    }

    fn link(&mut self) -> *mut ibv_recv_wr {
        let mut next = null_mut();
        for (wr, sge) in self.wrs.iter_mut().zip(&mut self.sges).rev() {
            wr.sg_list = sge;
            wr.next = next;
            next = wr;
        }
        next
    }

    pub(crate) fn clear(&mut self) {
        self.wrs.clear();
        self.sges.clear();
    }
}

/// A shared receive queue.
pub(crate) struct Srq {
    pd: Rc<Pd>,
    ptr: NonNull<ibv_srq>,
}

impl Srq {
    pub(crate) fn new(pd: &Rc<Pd>, depth: u32) -> io::Result<Srq> {
        let srq_context = null_mut();
        let mut a = ibv_srq_init_attr { srq_context, max_wr: depth, max_sge: 1, srq_limit: 0 };
        // SAFETY: the domain lives and the structure is complete.
        let ptr = made(unsafe { (pd.ctx.api.ibv_create_srq)(pd.ptr.as_ptr(), &raw mut a) })?;
        Ok(Srq { pd: pd.clone(), ptr })
    }

    /// Posts the batch and empties it.
    ///
    /// # Safety
    /// The memory stays valid until a completion gives it back or the queue is gone.
    pub(crate) unsafe fn post(&self, batch: &mut RecvBatch) -> io::Result<()> {
        // SAFETY: as in Cq::ops.
        let ops = &unsafe { self.pd.ctx.ptr.as_ref() }.ops;
        let post = ops.post_srq_recv.ok_or(io::ErrorKind::Unsupported)?;
        let (first, mut bad) = (batch.link(), null_mut());
        // SAFETY: a chain of complete requests inside the batch; the memory is the caller's promise.
        let r = check(unsafe { post(self.ptr.as_ptr(), first, &raw mut bad) });
        batch.clear();
        r
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: the queue pairs on it held it.
        unsafe { (self.pd.ctx.api.ibv_destroy_srq)(self.ptr.as_ptr()) };
    }
}

/// Pieces of local memory of one work request at most.
pub(crate) const SGES: usize = 2;

/// One work request as this crate makes them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Request {
    pub(crate) wr_id: u64,
    pub(crate) opcode: c_int,
    pub(crate) flags: u32,
    pub(crate) invalidate: u32,
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
    pub(crate) sges: [ibv_sge; SGES],
    /// How many of `sges` are used.
    pub(crate) pieces: usize,
    /// The first piece is in the batch's own bytes, its `addr` an offset there.
    pub(crate) inline_head: bool,
}

/// Work requests to be posted together: one doorbell.
#[derive(Default)]
pub(crate) struct SendBatch {
    requests: Vec<Request>,
    /// What is sent inline and has no memory of its own.
    bytes: Vec<u8>,
    wrs: Vec<ibv_send_wr>,
}

impl SendBatch {
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(crate) fn push(&mut self, r: Request) {
        self.requests.push(r);
    }

    /// The requests, newest first.
    pub(crate) fn newest(&mut self) -> impl Iterator<Item = &mut Request> {
        self.requests.iter_mut().rev()
    }

    /// Keeps copies of `head` and `data` until the batch is posted; gives their piece.
    pub(crate) fn keep(&mut self, head: &[u8], data: Option<&Slice>) -> ibv_sge {
        let addr = self.bytes.len();
        self.bytes.extend_from_slice(head);
        if let Some(d) = data {
            let at = self.bytes.len();
            self.bytes.resize(at + d.len(), 0);
            d.read_at(0, &mut self.bytes[at..]);
        }
        let length = (self.bytes.len() - addr) as u32;
        ibv_sge { addr: addr as u64, length, lkey: 0 }
    }

    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.bytes.clear();
    }

    fn link(&mut self) -> *mut ibv_send_wr {
        self.wrs.clear();
        let base = self.bytes.as_ptr() as u64;
        for r in &mut self.requests {
            if r.inline_head {
                r.sges[0].addr += base;
            }
            self.wrs.push(ibv_send_wr {
                wr_id: r.wr_id,
                next: null_mut(),
                sg_list: r.sges.as_mut_ptr(),
                num_sge: r.pieces as c_int,
                opcode: r.opcode,
                send_flags: r.flags,
                invalidate_rkey: r.invalidate,
                remote_addr: r.remote_addr,
                rkey: r.rkey,
                unused: [0; 9],
            });
        }
        let mut next = null_mut();
        for wr in self.wrs.iter_mut().rev() {
            wr.next = next;
            next = wr;
        }
        next
    }
}

/// A queue pair.
pub(crate) struct Qp {
    pd: Rc<Pd>,
    ptr: NonNull<ibv_qp>,
    _cq: Rc<Cq>,
    _srq: Option<Rc<Srq>>,
    pub(crate) number: u32,
    /// Bytes that can be sent inline.
    pub(crate) inline: u32,
}

/// What a queue pair is to have.
pub(crate) struct QpConfig {
    pub(crate) send_wr: u32,
    pub(crate) recv_wr: u32,
    pub(crate) inline: u32,
}

impl Qp {
    pub(crate) fn new(
        pd: &Rc<Pd>,
        cq: &Rc<Cq>,
        srq: Option<&Rc<Srq>>,
        config: &QpConfig,
    ) -> io::Result<Qp> {
        let cap = ibv_qp_cap {
            max_send_wr: config.send_wr,
            max_recv_wr: config.recv_wr,
            max_send_sge: SGES as u32,
            max_recv_sge: 1,
            max_inline_data: config.inline,
        };
        let mut a = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: cq.ptr.as_ptr(),
            recv_cq: cq.ptr.as_ptr(),
            srq: srq.map_or(null_mut(), |s| s.ptr.as_ptr()),
            cap,
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain, queues and structure are good, and held below.
        let ptr = made(unsafe { (pd.ctx.api.ibv_create_qp)(pd.ptr.as_ptr(), &raw mut a) })?;
        // SAFETY: just made.
        let number = unsafe { ptr.as_ref() }.qp_num;
        Ok(Qp {
            pd: pd.clone(),
            ptr,
            _cq: cq.clone(),
            _srq: srq.cloned(),
            number,
            inline: a.cap.max_inline_data.min(config.inline),
        })
    }

    /// What [`AsyncEvent::element`] shows for this queue pair.
    pub(crate) fn element(&self) -> usize {
        self.ptr.as_ptr() as usize
    }

    pub(crate) fn modify(&self, attr: &mut ibv_qp_attr, mask: c_int) -> io::Result<()> {
        // SAFETY: the queue pair lives and the structure is complete.
        check(unsafe { (self.pd.ctx.api.ibv_modify_qp)(self.ptr.as_ptr(), attr, mask) })
    }

    /// No more work; what is outstanding completes as flushed.
    pub(crate) fn set_error(&self) -> io::Result<()> {
        self.modify(&mut ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() }, IBV_QP_STATE)
    }

    /// Posts the batch and empties it.
    ///
    /// # Safety
    /// The memory that the requests name stays valid until they have completed or the queue pair is gone;
    /// of those with inline data, until this returns.
    pub(crate) unsafe fn post(&self, batch: &mut SendBatch) -> io::Result<()> {
        // SAFETY: as in Cq::ops.
        let ops = &unsafe { self.pd.ctx.ptr.as_ref() }.ops;
        let post = ops.post_send.ok_or(io::ErrorKind::Unsupported)?;
        let (first, mut bad) = (batch.link(), null_mut());
        // SAFETY: a chain of complete requests inside the batch; the memory is the caller's promise.
        let r = check(unsafe { post(self.ptr.as_ptr(), first, &raw mut bad) });
        batch.clear();
        r
    }

    /// As [`post`](Qp::post) for receives of a queue pair without shared queue.
    ///
    /// # Safety
    /// As [`Srq::post`].
    pub(crate) unsafe fn post_recv(&self, batch: &mut RecvBatch) -> io::Result<()> {
        // SAFETY: as in Cq::ops.
        let ops = &unsafe { self.pd.ctx.ptr.as_ref() }.ops;
        let post = ops.post_recv.ok_or(io::ErrorKind::Unsupported)?;
        let (first, mut bad) = (batch.link(), null_mut());
        // SAFETY: as above.
        let r = check(unsafe { post(self.ptr.as_ptr(), first, &raw mut bad) });
        batch.clear();
        r
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: not destroyed yet. Returns when the device no longer touches memory for it.
        unsafe { (self.pd.ctx.api.ibv_destroy_qp)(self.ptr.as_ptr()) };
    }
}

#[cfg(test)]
mod tests;

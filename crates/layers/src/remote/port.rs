//! The submitter's side: records of the present reactor, and the handle that uses them.

use super::home::Door;
use super::record::{Op, Outcome, Record, Returns, Wish, sums_of};
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use weir_base::{IoError, IoResult};
use weir_block::{Allocation, Geometry, IoFuture, Volume, check_range};
use weir_mem::Slice;
use weir_reactor::{CompletionQueue, LocalFuture, get_local, handle, set_local, spawn_task};

/// Records of reactors that have ended.
static UNUSED: Mutex<Vec<&'static Record>> = Mutex::new(Vec::new());
/// Records that a reactor takes at a time.
const BATCH: usize = 32;

/// The present reactor's records.
pub(super) struct Port {
    returns: Arc<Returns>,
    free: RefCell<Vec<&'static Record>>,
}

impl Port {
    /// The present reactor's.
    pub(super) fn here() -> Rc<Port> {
        if let Some(port) = get_local::<Port>() {
            return port;
        }
        let queue = CompletionQueue::new();
        let returns = Arc::new(Returns::new(handle(), queue.token(0)));
        let port = Rc::new(Port { returns, free: RefCell::default() });
        set_local(port.clone());
        let me = port.clone();
        spawn_task(async move {
            loop {
                queue.next().await;
                for r in me.returns.stack.take() {
                    me.came_back(r);
                }
            }
        });
        port
    }

    fn take(&self) -> &'static Record {
        if let Some(r) = self.free.borrow_mut().pop() {
            return r;
        }
        let mut free = self.free.borrow_mut();
        let mut unused = UNUSED.lock().unwrap_or_else(PoisonError::into_inner);
        let old = unused.len() - unused.len().min(BATCH);
        free.extend(unused.drain(old..));
        while free.len() < BATCH {
            free.push(Record::make());
        }
        free.pop().unwrap_or_else(Record::make)
    }

    fn came_back(&self, r: &'static Record) {
        drop(r.mine.keep.take());
        r.mine.away.set(false);
        r.answer(r.outcome.get());
        if !r.mine.watched.get() {
            self.free.borrow_mut().push(r);
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        for r in self.returns.stack.take() {
            self.came_back(r);
        }
        let mut unused = UNUSED.lock().unwrap_or_else(PoisonError::into_inner);
        unused.append(&mut self.free.borrow_mut());
    }
}

/// Another reactor's volume.
pub(super) struct Remote {
    door: Arc<Door>,
    port: Rc<Port>,
}

impl Remote {
    pub(super) fn new(door: Arc<Door>) -> Remote {
        Remote { door, port: Port::here() }
    }

    fn send(&self, op: Op, at: u64, len: u64, keep: [Option<Slice>; 2]) -> Flight<'_> {
        let r = self.port.take();
        let place = |s: &Option<Slice>| s.as_ref().map_or(std::ptr::null_mut(), Slice::as_ptr);
        let (memory, sums) = (place(&keep[0]), place(&keep[1]));
        r.wish.set(Wish { op, at, len, memory, sums });
        r.outcome.set(Outcome::of(Err(IoError::Offline)));
        *r.returns.borrow_mut() = Some(self.port.returns.clone());
        r.generation.set(r.generation.get().wrapping_add(1));
        *r.mine.keep.borrow_mut() = keep;
        r.mine.answer.set(None);
        r.mine.away.set(true);
        r.mine.watched.set(true);
        let flight = Flight { port: &self.port, record: r };
        self.door.submit(r);
        flight
    }

    fn io(&self, op: Op, at: u64, len: u64, keep: [Option<Slice>; 2]) -> IoFuture<'_> {
        // Asked for with a range that makes no sense: the answer is known here.
        match check_range(&self.door.geometry(), at, len) {
            Err(e) => IoFuture::ready(Err(e)),
            Ok(()) => {
                let flight = self.send(op, at, len, keep);
                IoFuture::new(async move { flight.await.result })
            }
        }
    }
}

/// Waits for a record's answer.
struct Flight<'a> {
    port: &'a Rc<Port>,
    record: &'static Record,
}

impl Future for Flight<'_> {
    type Output = Outcome;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mine = &self.record.mine;
        match mine.answer.get() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                let mut waker = mine.waker.borrow_mut();
                if !waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mine = &self.record.mine;
        drop(mine.waker.borrow_mut().take());
        mine.watched.set(false);
        if !mine.away.get() {
            self.port.free.borrow_mut().push(self.record);
        }
    }
}

impl Volume for Remote {
    fn geometry(&self) -> Geometry {
        self.door.geometry()
    }

    fn read(&self, at: u64, buf: Slice) -> IoFuture<'_> {
        self.io(Op::Read { summed: false }, at, buf.len() as u64, [Some(buf), None])
    }

    fn write(&self, at: u64, buf: Slice, fua: bool) -> IoFuture<'_> {
        self.io(Op::Write { fua, summed: false }, at, buf.len() as u64, [Some(buf), None])
    }

    fn keeps_sums(&self) -> bool {
        self.door.keeps_sums()
    }

    fn read_summed(&self, at: u64, buf: Slice, sums: Slice) -> IoFuture<'_> {
        let len = buf.len();
        assert!(sums.len() >= sums_of(len), "there is room for the checksums");
        self.io(Op::Read { summed: true }, at, len as u64, [Some(buf), Some(sums)])
    }

    fn write_summed(&self, at: u64, buf: Slice, sums: Slice, fua: bool) -> IoFuture<'_> {
        let len = buf.len();
        assert!(sums.len() >= sums_of(len), "there are as many checksums as blocks");
        self.io(Op::Write { fua, summed: true }, at, len as u64, [Some(buf), Some(sums)])
    }

    fn flush(&self) -> IoFuture<'_> {
        self.io(Op::Flush, 0, 0, [None, None])
    }

    fn lost(&self) -> u64 {
        self.door.lost()
    }

    fn discard(&self, at: u64, len: u64) -> IoFuture<'_> {
        self.io(Op::Discard, at, len, [None, None])
    }

    fn write_zeroes(&self, at: u64, len: u64, unmap: bool) -> IoFuture<'_> {
        self.io(Op::WriteZeroes { unmap }, at, len, [None, None])
    }

    fn find_allocation(&self, at: u64, len: u64) -> LocalFuture<'_, Allocation> {
        let whole = Allocation { mapped: true, len };
        if len == 0 || check_range(&self.door.geometry(), at, len).is_err() {
            return Box::pin(std::future::ready(whole));
        }
        let flight = self.send(Op::Allocation, at, len, [None, None]);
        Box::pin(async move {
            let o = flight.await;
            if o.result.is_ok() { o.found } else { whole }
        })
    }

    /// The owner changes the size at home; handles learn of it.
    fn resize(&self, len: u64) -> IoResult {
        if self.door.geometry().len == len { Ok(()) } else { Err(IoError::Unsupported) }
    }
}

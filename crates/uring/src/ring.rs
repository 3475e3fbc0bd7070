//! The ring.

use crate::file::Kept;
use io_uring::types::{CancelBuilder, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue, types};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use weir_base::Nanos;
use weir_mem::Slice;
use weir_reactor::{
    Completion, CompletionFuture, Driver, Token, Unpark, WaitChannel, complete, completion,
};

/// Submission entries; completions have four times as many.
const ENTRIES: u32 = 512;
const WAKE: u64 = u64::MAX;
const IGNORE: u64 = u64::MAX - 1;

/// Threads of the kernel that wait for file systems, at most: flushes, and what is [slow](crate::FileDisk). Its own limit, four a
/// core, would have one file system that hangs hold up all others.
const WORKERS: u32 = 1024;
/// A transfer that gets no further is given up after so many tries in a row.
const MOST_IDLE: u8 = 16;
/// Direct transfers begin at multiples of this many bytes, also where one that was short is taken up again.
const UNIT: usize = 4096;

/// Where a transfer that was short goes on, when `done` bytes had been moved before and `moved` now.
fn onward(done: usize, moved: usize) -> usize {
    let all = done + moved;
    all - all % UNIT
}

/// A transfer of a whole buffer.
pub(crate) struct Transfer {
    pub(crate) write: bool,
    pub(crate) offset: u64,
    pub(crate) buf: Slice,
    /// Those of pwritev2(2).
    pub(crate) flags: i32,
    /// A thread of the kernel waits for the file system, and handing the transfer over does not.
    pub(crate) slow: bool,
}

/// What a completion of the ring is for.
enum Pending {
    Free,
    /// A disk transfer, kept alive until it is over.
    Transfer {
        token: Token,
        fd: Kept,
        what: Transfer,
        /// Bytes that have been moved.
        done: usize,
        /// Times in a row that it got no further.
        idle: u8,
    },
    /// Another disk operation.
    Plain {
        token: Token,
        _fd: Kept,
    },
    /// A command of a driver, whose result is told as it is.
    Command {
        token: Token,
        _fd: Rc<OwnedFd>,
    },
    Watch(Rc<WatchState>),
    Ready(Token),
}

struct WatchState {
    fd: RawFd,
    key: u64,
    ready: Rc<RefCell<VecDeque<u64>>>,
    armed: Cell<bool>,
    index: Cell<u32>,
}

/// Tells when a file descriptor becomes readable, writable or broken. Its key is pushed to the ready
/// queue that it was made with, once for each [`arm`](Watch::arm).
pub struct Watch {
    state: Rc<WatchState>,
    ring: Ring,
}

impl Watch {
    /// Asks for one event: readable or hung up, and writable too if `write`.
    pub fn arm(&self, write: bool) {
        if self.state.armed.replace(true) {
            if !write {
                return;
            }
            // Watched for reading only, perhaps: watch anew.
            self.ring.cancel_watch(&self.state);
            self.state.armed.set(true);
        }
        self.ring.arm_watch(&self.state, write);
    }

    /// True while an event is awaited.
    pub fn armed(&self) -> bool {
        self.state.armed.get()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.state.armed.get() {
            self.ring.cancel_watch(&self.state);
        }
    }
}

struct Inner {
    ring: RefCell<IoUring>,
    pending: RefCell<Vec<Pending>>,
    free: RefCell<Vec<u32>>,
    /// Entries that found the submission queue full.
    backlog: RefCell<VecDeque<squeue::Entry>>,
    queued: Cell<bool>,
    in_flight: Cell<usize>,
    wake: Arc<Wake>,
    wake_armed: Cell<bool>,
    start: std::time::Instant,
    /// Units for what file systems are given at once, by file system and how many.
    lanes: RefCell<BTreeMap<(u64, u32), Rc<WaitChannel>>>,
}

/// Threads of the kernel may be at the memory of what has not ended, also when nobody waits for it any more.
impl Drop for Inner {
    fn drop(&mut self) {
        if self.in_flight.get() > 0 {
            std::mem::forget(self.pending.take());
        }
    }
}

struct Wake(OwnedFd);

impl Unpark for Wake {
    fn unpark(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: writes eight bytes of a local to a descriptor that self owns. A full counter (EAGAIN)
        // wakes as well.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), 8) };
    }
}

/// One reactor's `io_uring`. Cloning gives another reference to the same ring.
#[derive(Clone)]
pub struct Ring(Rc<Inner>);

impl Ring {
    /// Sets a ring up for this thread, the only one that may use it.
    ///
    /// # Errors
    /// The kernel has no `io_uring` (before 5.11), or it is disabled (`kernel.io_uring_disabled`).
    pub fn new() -> std::io::Result<Ring> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(ENTRIES * 4).setup_clamp();
        let ring = builder
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(ENTRIES)
            // Kernels before 6.1 know fewer flags.
            .or_else(|_| IoUring::builder().setup_cqsize(ENTRIES * 4).build(ENTRIES))?;
        // Kernels before 5.15 have their own limit only.
        drop(ring.submitter().register_iowq_max_workers(&mut [WORKERS, 0]));
        // SAFETY: plain system call; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        let wake = Arc::new(Wake(unsafe { OwnedFd::from_raw_fd(fd) }));
        Ok(Ring(Rc::new(Inner {
            ring: RefCell::new(ring),
            pending: RefCell::default(),
            free: RefCell::default(),
            backlog: RefCell::default(),
            queued: Cell::new(false),
            in_flight: Cell::new(0),
            wake,
            wake_armed: Cell::new(false),
            start: std::time::Instant::now(),
            lanes: RefCell::default(),
        })))
    }

    /// What those wait for of whom a file system is given so many at once.
    pub(crate) fn lane(&self, fs: u64, units: u32) -> Rc<WaitChannel> {
        let mut lanes = self.0.lanes.borrow_mut();
        let key = (fs, units);
        lanes.retain(|k, lane| *k == key || Rc::strong_count(lane) > 1);
        lanes.entry(key).or_insert_with(|| Rc::new(WaitChannel::new(units))).clone()
    }

    /// Makes a watch for `fd`, which must stay open while the watch lives.
    pub fn watch(&self, fd: RawFd, key: u64, ready: Rc<RefCell<VecDeque<u64>>>) -> Watch {
        let state =
            WatchState { fd, key, ready, armed: Cell::new(false), index: Cell::new(u32::MAX) };
        Watch { state: Rc::new(state), ring: self.clone() }
    }

    /// Waits until `fd` is readable (or writable, with `write`) or hung up. A socket that is dropped while
    /// this waits must be shut down first, which ends the wait; the types of this crate do so.
    pub fn ready(&self, fd: RawFd, write: bool) -> CompletionFuture {
        let (token, done) = completion();
        let events = libc::POLLRDHUP | if write { libc::POLLOUT } else { libc::POLLIN };
        let index = self.insert(Pending::Ready(token));
        let e = opcode::PollAdd::new(types::Fd(fd), events as u32).build();
        self.push(e.user_data(u64::from(index)));
        done
    }

    fn arm_watch(&self, w: &Rc<WatchState>, write: bool) {
        let events = libc::POLLIN | libc::POLLRDHUP | if write { libc::POLLOUT } else { 0 };
        let index = self.insert(Pending::Watch(w.clone()));
        w.index.set(index);
        let e = opcode::PollAdd::new(types::Fd(w.fd), events as u32).build();
        self.push(e.user_data(u64::from(index)));
    }

    fn cancel_watch(&self, w: &Rc<WatchState>) {
        let index = w.index.replace(u32::MAX);
        w.armed.set(false);
        if index != u32::MAX {
            let by = CancelBuilder::user_data(u64::from(index));
            self.push(opcode::AsyncCancel2::new(by).build().user_data(IGNORE));
        }
    }

    fn insert(&self, p: Pending) -> u32 {
        let mut pending = self.0.pending.borrow_mut();
        self.0.in_flight.set(self.0.in_flight.get() + 1);
        match self.0.free.borrow_mut().pop() {
            Some(i) => {
                pending[i as usize] = p;
                i
            }
            None => {
                pending.push(p);
                pending.len() as u32 - 1
            }
        }
    }

    fn push(&self, e: squeue::Entry) {
        self.0.queued.set(true);
        let mut backlog = self.0.backlog.borrow_mut();
        if backlog.is_empty() {
            let mut ring = self.0.ring.borrow_mut();
            // SAFETY: what the entry points to (a buffer, a descriptor) is kept by its Pending until the
            // completion has come.
            if unsafe { ring.submission().push(&e) }.is_ok() {
                return;
            }
        }
        backlog.push_back(e);
    }

    /// Hands over what is queued. What the kernel does not take now stays queued, in the ring or before it, for the next
    /// turn.
    fn submit_queued(&self) {
        let left = loop {
            {
                let mut ring = self.0.ring.borrow_mut();
                let mut backlog = self.0.backlog.borrow_mut();
                let mut sq = ring.submission();
                while let Some(e) = backlog.front() {
                    // SAFETY: as in push().
                    if unsafe { sq.push(e) }.is_err() {
                        break;
                    }
                    backlog.pop_front();
                }
            }
            let failed = self.0.ring.borrow().submit().is_err();
            let left = !self.0.ring.borrow_mut().submission().is_empty();
            let backlog = !self.0.backlog.borrow().is_empty();
            if failed || left || !backlog {
                break left || backlog;
            }
        };
        self.0.queued.set(left);
    }

    /// Starts a transfer; a short one is continued.
    pub(crate) fn transfer(&self, token: Token, fd: &Kept, what: Transfer) {
        let p = Pending::Transfer { token, fd: fd.clone(), what, done: 0, idle: 0 };
        let index = self.insert(p);
        self.push_transfer(index);
    }

    fn push_transfer(&self, index: u32) {
        let entry = {
            let pending = self.0.pending.borrow();
            let Pending::Transfer { fd, what, done, .. } = &pending[index as usize] else { return };
            let fd = types::Fd(fd.as_raw_fd());
            // A single transfer is at most 2 GiB less a page (Linux).
            let len = (what.buf.len() - done).min(1 << 30) as u32;
            let at = what.offset + *done as u64;
            // SAFETY: `done` is within the buffer.
            let ptr = unsafe { what.buf.as_ptr().add(*done) };
            let entry = if what.write {
                opcode::Write::new(fd, ptr, len).offset(at).rw_flags(what.flags).build()
            } else {
                opcode::Read::new(fd, ptr, len).offset(at).rw_flags(what.flags).build()
            };
            if what.slow { entry.flags(squeue::Flags::ASYNC) } else { entry }
        };
        self.push(entry.user_data(u64::from(index)));
    }

    /// Starts another operation on a file.
    pub(crate) fn plain(&self, token: Token, fd: &Kept, entry: squeue::Entry) {
        let index = self.insert(Pending::Plain { token, _fd: fd.clone() });
        self.push(entry.user_data(u64::from(index)));
    }

    /// Gives the driver behind `fd` a command of its own (`IORING_OP_URING_CMD`). The completion's `result` is the
    /// driver's: negative error numbers of the operating system, or what the driver says.
    ///
    /// # Safety
    /// Memory that the command names must stay valid for what the driver does with it, until the completion.
    pub unsafe fn command(&self, fd: &Rc<OwnedFd>, op: u32, command: [u8; 16]) -> CompletionFuture {
        let (token, done) = completion();
        let index = self.insert(Pending::Command { token, _fd: fd.clone() });
        let e = opcode::UringCmd16::new(types::Fd(fd.as_raw_fd()), op).cmd(command).build();
        self.push(e.user_data(u64::from(index)));
        done
    }

    fn harvest(&self) -> bool {
        let mut any = false;
        loop {
            // One at a time: what a completion wakes may use the ring.
            let Some(cqe) = self.0.ring.borrow_mut().completion().next() else { return any };
            any = true;
            match cqe.user_data() {
                WAKE => {
                    self.0.wake_armed.set(false);
                    let mut n = [0u8; 8];
                    let fd = self.0.wake.0.as_raw_fd();
                    // SAFETY: reads eight bytes into a local from our own eventfd.
                    unsafe { libc::read(fd, n.as_mut_ptr().cast(), 8) };
                }
                IGNORE => {}
                index => self.finish(index as u32, cqe.result()),
            }
        }
    }

    fn finish(&self, index: u32, result: i32) {
        let mut pending = self.0.pending.borrow_mut();
        let Some(slot) = pending.get_mut(index as usize) else { return };
        if let Pending::Transfer { what, done, idle, .. } = slot
            && result >= 0
            && *done + (result as usize) < what.buf.len()
        {
            let next = onward(*done, result as usize);
            *idle = if next > *done { 0 } else { *idle + 1 };
            *done = next;
            if *idle < MOST_IDLE {
                drop(pending);
                return self.push_transfer(index);
            }
        }
        if let Pending::Transfer { .. } = slot
            && (result == -libc::EINTR || result == -libc::EAGAIN)
        {
            drop(pending);
            return self.push_transfer(index);
        }
        let what = std::mem::replace(slot, Pending::Free);
        drop(pending);
        self.0.free.borrow_mut().push(index);
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        match what {
            Pending::Transfer { token, what: Transfer { buf, .. }, done, .. } => {
                let whole = result > 0 && done + result as usize >= buf.len();
                let r = match result {
                    _ if whole || buf.is_empty() => Ok(()),
                    // It gets no further: a file, say, that was cut by somebody else. That is no fact about its data.
                    0.. => Err(weir_base::IoError::Path),
                    e => Err(crate::file::error_of(-e)),
                };
                drop(buf);
                complete(token, weir_disk::report(r));
            }
            Pending::Plain { token, .. } => {
                let r = if result < 0 { Err(crate::file::error_of(-result)) } else { Ok(()) };
                complete(token, weir_disk::report(r));
            }
            Pending::Command { token, .. } => {
                complete(token, Completion { result, ..Completion::default() });
            }
            Pending::Watch(w) => {
                if w.index.get() == index {
                    w.index.set(u32::MAX);
                    w.armed.set(false);
                    if result != -libc::ECANCELED {
                        w.ready.borrow_mut().push_back(w.key);
                    }
                }
            }
            Pending::Ready(token) => complete(token, Completion::ok(result.max(0) as u32)),
            Pending::Free => {}
        }
    }

    /// Operations that have not completed.
    pub fn in_flight(&self) -> usize {
        self.0.in_flight.get()
    }
}

impl Driver for Ring {
    fn now(&self) -> Nanos {
        self.0.start.elapsed().as_nanos() as Nanos
    }

    fn poll(&self) -> bool {
        if self.0.queued.get() {
            self.submit_queued();
        }
        if self.0.in_flight.get() == 0 && !self.0.wake_armed.get() {
            return false;
        }
        if self.0.ring.borrow_mut().submission().taskrun() {
            // Completions wait in the kernel until we come for them.
            let ring = self.0.ring.borrow();
            // SAFETY: no entries are handed over; GETEVENTS only runs our own deferred completions.
            let _ = unsafe {
                ring.submitter()
                    .enter::<libc::sigset_t>(0, 0, 1 /* IORING_ENTER_GETEVENTS */, None)
            };
        }
        self.harvest()
    }

    fn park(&self, until: Option<Nanos>) {
        if !self.0.wake_armed.replace(true) {
            let fd = types::Fd(self.0.wake.0.as_raw_fd());
            self.push(opcode::PollAdd::new(fd, libc::POLLIN as u32).build().user_data(WAKE));
        }
        self.submit_queued();
        let wait = until.map(|u| u.saturating_sub(self.now()));
        if wait == Some(0) {
            return;
        }
        let ring = self.0.ring.borrow();
        // An error (EINTR, ETIME) only ends the sleep early; the caller looks again.
        let _ = match wait {
            Some(ns) => {
                let ts = Timespec::new()
                    .sec(ns / weir_base::SECONDS)
                    .nsec((ns % weir_base::SECONDS) as u32);
                ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&ts))
            }
            None => ring.submitter().submit_and_wait(1),
        };
    }

    fn unparker(&self) -> Arc<dyn Unpark> {
        self.0.wake.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel stops at an entry that it refuses at once; a reactor that polls and never sleeps hands over the rest.
    #[test]
    fn what_the_kernel_has_not_taken_is_handed_over_with_the_next_poll() {
        let ring = Ring::new().unwrap();
        let ready: Rc<RefCell<VecDeque<u64>>> = Rc::default();
        let watch = ring.watch(ring.0.wake.0.as_raw_fd(), 7, ready.clone());
        ring.0.wake.unpark();
        // Nobody has registered a personality.
        ring.push(opcode::Nop::new().build().personality(1).user_data(IGNORE));
        watch.arm(false);
        ring.poll();
        assert!(ready.borrow().is_empty(), "the kernel went on behind a refused entry");
        // What is readable is told by the poll that hands it over, or by the next one.
        for _ in 0..2 {
            ring.poll();
        }
        assert_eq!(ready.take(), [7]);
        assert!(!ring.0.queued.get());
    }

    #[test]
    fn a_short_transfer_goes_on_where_a_direct_one_may_begin() {
        assert_eq!(onward(0, 4096), 4096);
        assert_eq!(onward(4096, 8192 + 512), 12288);
        assert_eq!(onward(4096, 100), 4096, "it is read again");
        assert_eq!(onward(0, 0), 0);
    }
}

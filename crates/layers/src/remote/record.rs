//! What carries an I/O from one reactor to another and back.

use std::cell::{Cell, RefCell};
use std::ptr::null;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::task::Waker;
use std::thread::ThreadId;
use weir_base::{IoError, IoResult};
use weir_block::{Allocation, SUMMED};
use weir_mem::Slice;
use weir_reactor::{Completion, Handle, Token};

/// What is to be done.
#[derive(Debug, Clone, Copy)]
pub(super) enum Op {
    Read { summed: bool },
    Write { fua: bool, summed: bool },
    Flush,
    Discard,
    WriteZeroes { unmap: bool },
    Allocation,
}

/// Bytes of the checksums of so many bytes of data.
pub(super) fn sums_of(len: usize) -> usize {
    len / SUMMED * 4
}

/// An I/O as plain values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    pub(super) op: Op,
    pub(super) at: u64,
    pub(super) len: u64,
    /// The submitter's memory, for reads and writes.
    pub(super) memory: *mut u8,
    /// Its memory for checksums, for those that are summed.
    pub(super) sums: *mut u8,
}

/// What became of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outcome {
    pub(super) result: IoResult,
    /// The answer to [`Op::Allocation`].
    pub(super) found: Allocation,
}

impl Outcome {
    pub(super) fn of(result: IoResult) -> Outcome {
        Outcome { result, found: Allocation { mapped: true, len: 0 } }
    }
}

/// An I/O on its way. Records are made once and never freed, so a reference to one is always good; free ones
/// are used again, in the end by other reactors.
///
/// At any time one side *has* the record: the submitter from when it is taken until it is pushed on the door's stack,
/// and again from when it is popped from the stack of returns; in between home.
pub(super) struct Record {
    next: AtomicPtr<Record>,
    /// Whoever has the record uses these.
    pub(super) wish: Cell<Wish>,
    pub(super) outcome: Cell<Outcome>,
    pub(super) returns: RefCell<Option<Arc<Returns>>>,
    /// Changed by the submitter while it has the record; may be read by both.
    pub(super) generation: Cell<u64>,
    /// The submitter's alone, whoever has the record.
    pub(super) mine: Mine,
}

/// The submitter's part of a record.
pub(super) struct Mine {
    /// Keeps the memory.
    pub(super) keep: RefCell<[Option<Slice>; 2]>,
    pub(super) answer: Cell<Option<Outcome>>,
    pub(super) waker: RefCell<Option<Waker>>,
    /// Home has it.
    pub(super) away: Cell<bool>,
    /// A future waits for it.
    pub(super) watched: Cell<bool>,
}

// SAFETY: by the protocol above each field but `generation` is used by one thread at a time. The record passes
// between the threads by the stacks' release and acquire operations. `mine` is never touched by home;
// `generation` is written only while home has not got the record.
unsafe impl Sync for Record {}

impl Record {
    pub(super) fn make() -> &'static Record {
        Box::leak(Box::new(Record {
            next: AtomicPtr::default(),
            wish: Cell::new(Wish {
                op: Op::Flush,
                at: 0,
                len: 0,
                memory: std::ptr::null_mut(),
                sums: std::ptr::null_mut(),
            }),
            outcome: Cell::new(Outcome::of(Err(IoError::Offline))),
            returns: RefCell::default(),
            generation: Cell::new(0),
            mine: Mine {
                keep: RefCell::default(),
                answer: Cell::new(None),
                waker: RefCell::default(),
                away: Cell::new(false),
                watched: Cell::new(false),
            },
        }))
    }

    /// The submitter learns what became of it.
    pub(super) fn answer(&self, outcome: Outcome) {
        if self.mine.answer.get().is_some() {
            return;
        }
        self.mine.answer.set(Some(outcome));
        let waker = self.mine.waker.borrow_mut().take();
        if let Some(w) = waker {
            w.wake();
        }
    }
}

/// Records on their way to one reactor: last in, first out, taken all at once.
#[derive(Default)]
pub(super) struct Stack(AtomicPtr<Record>);

impl Stack {
    /// True when the stack was empty: the receiver does not know of it yet.
    pub(super) fn push(&self, r: &'static Record) -> bool {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            r.next.store(head, Ordering::Relaxed);
            let new = std::ptr::from_ref(r).cast_mut();
            match self.0.compare_exchange_weak(head, new, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return head.is_null(),
                Err(now) => head = now,
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.load(Ordering::SeqCst).is_null()
    }

    /// Everything, the oldest first.
    pub(super) fn take(&self) -> Taken {
        let mut from = self.0.swap(std::ptr::null_mut(), Ordering::SeqCst).cast_const();
        let mut first: *const Record = null();
        while !from.is_null() {
            // SAFETY: what is on a stack is a record, and records are never freed.
            let r = unsafe { &*from };
            let next = r.next.load(Ordering::Relaxed).cast_const();
            r.next.store(first.cast_mut(), Ordering::Relaxed);
            first = from;
            from = next;
        }
        Taken(first)
    }
}

/// Records taken from a stack.
pub(super) struct Taken(*const Record);

impl Iterator for Taken {
    type Item = &'static Record;

    fn next(&mut self) -> Option<&'static Record> {
        // SAFETY: null, or a record, and records are never freed.
        let r = unsafe { self.0.as_ref() }?;
        self.0 = r.next.load(Ordering::Relaxed).cast_const();
        Some(r)
    }
}

/// The way back to a submitter.
pub(super) struct Returns {
    pub(super) stack: Stack,
    handle: Handle,
    bell: Token,
    thread: ThreadId,
}

impl Returns {
    pub(super) fn new(handle: Handle, bell: Token) -> Returns {
        Returns { stack: Stack::default(), handle, bell, thread: std::thread::current().id() }
    }

    /// Gives a record back: nothing refers to its memory any more.
    pub(super) fn push(&self, r: &'static Record) {
        if self.stack.push(r) {
            self.handle.complete(self.bell, Completion::default());
        }
    }

    /// Tells the result while something still refers to the memory. Rare, so it may allocate.
    pub(super) fn tell(&self, r: &'static Record, outcome: Outcome) {
        let generation = r.generation.get();
        self.handle.run(move || {
            // It may have come back meanwhile and be on another errand.
            if r.generation.get() == generation {
                r.answer(outcome);
            }
        });
    }
}

impl Drop for Returns {
    fn drop(&mut self) {
        // The submitter has ended before these came back. Its counts can be touched on its thread only (where
        // several reactors share one, as under simulation); elsewhere its memory is left alone for good.
        if std::thread::current().id() == self.thread {
            for r in self.stack.take() {
                drop(r.mine.keep.take());
            }
        }
    }
}

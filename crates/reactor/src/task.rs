//! Tasks: slots in a slab, named by plain numbers, woken without reference counts.

use crate::mailbox::TaskName;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

/// Names one task of one reactor; stale after the task has ended.
///
/// Packs into 64 bits, which is what a waker carries: reactor slot (10 bits) and its generation
/// (14), task generation (16), task index (24).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskId(pub(crate) u64);

pub(crate) const MAX_REACTORS: usize = 1 << 10;
pub(crate) const MAX_TASKS: usize = 1 << 24;

impl TaskId {
    pub(crate) fn new(reactor: u32, generation: u16, index: u32) -> Self {
        TaskId(u64::from(reactor) << 40 | u64::from(generation) << 24 | u64::from(index))
    }
    /// The reactor that it runs on.
    pub fn reactor(self) -> u32 {
        (self.0 >> 40) as u32
    }
    pub(crate) fn generation(self) -> u16 {
        (self.0 >> 24) as u16
    }
    pub(crate) fn index(self) -> u32 {
        (self.0 & (MAX_TASKS as u64 - 1)) as u32
    }
}

/// A task's future.
type Boxed = Pin<Box<dyn Future<Output = ()>>>;

#[derive(Default)]
struct Slot {
    generation: u16,
    live: bool,
    queued: bool,
    future: Option<Boxed>,
    name: Option<TaskName>,
}

/// All tasks of a reactor.
#[derive(Default)]
pub(crate) struct Tasks {
    slots: Vec<Slot>,
    free: Vec<u32>,
    live: usize,
}

impl Tasks {
    pub(crate) fn insert(&mut self, reactor: u32, future: Boxed, name: TaskName) -> TaskId {
        let index = self.free.pop().unwrap_or_else(|| {
            assert!(self.slots.len() < MAX_TASKS, "too many tasks on one reactor");
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.future = Some(future);
        slot.name = Some(name);
        slot.live = true;
        slot.queued = false;
        self.live += 1;
        TaskId::new(reactor, slot.generation, index)
    }

    fn slot(&mut self, id: TaskId) -> Option<&mut Slot> {
        let s = self.slots.get_mut(id.index() as usize)?;
        (s.live && s.generation == id.generation()).then_some(s)
    }

    /// Marks a task as queued; true when it was not queued yet.
    #[inline]
    pub(crate) fn mark_queued(&mut self, id: TaskId) -> bool {
        match self.slot(id) {
            Some(s) if !s.queued => {
                s.queued = true;
                true
            }
            _ => false,
        }
    }

    /// Takes a queued task's future out for polling, and what it is.
    #[inline]
    pub(crate) fn take(&mut self, id: TaskId) -> Option<(Boxed, Option<TaskName>)> {
        let s = self.slot(id)?;
        s.queued = false;
        Some((s.future.take()?, s.name))
    }

    /// Puts a pending future back. Gives it to the caller to drop when the task was cancelled.
    #[inline]
    pub(crate) fn put_back(&mut self, id: TaskId, future: Boxed) -> Option<Boxed> {
        match self.slot(id) {
            Some(s) => {
                s.future = Some(future);
                None
            }
            None => Some(future),
        }
    }

    /// Ends a task; its future (absent while it is being polled) is the caller's to drop.
    pub(crate) fn remove(&mut self, id: TaskId) -> Option<Boxed> {
        let s = self.slot(id)?;
        s.live = false;
        s.generation = s.generation.wrapping_add(1);
        let future = s.future.take();
        self.free.push(id.index());
        self.live -= 1;
        future
    }

    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// Takes all futures out, for an orderly end.
    pub(crate) fn drain(&mut self) -> Vec<Boxed> {
        let mut all = Vec::new();
        for (i, s) in self.slots.iter_mut().enumerate() {
            if s.live {
                s.live = false;
                s.generation = s.generation.wrapping_add(1);
                self.free.push(i as u32);
                all.extend(s.future.take());
            }
        }
        self.live = 0;
        all
    }
}

static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake, drop_waker);

fn raw(data: *const ()) -> RawWaker {
    RawWaker::new(data, &VTABLE)
}
unsafe fn clone(data: *const ()) -> RawWaker {
    raw(data)
}
unsafe fn wake(data: *const ()) {
    crate::executor::wake(TaskId(data as usize as u64));
}
unsafe fn drop_waker(_: *const ()) {}

/// A waker that is nothing but the task's number, so that cloning and dropping it cost nothing.
pub(crate) fn waker(id: TaskId) -> Waker {
    const { assert!(usize::BITS == 64, "task numbers need 64-bit pointers") };
    // SAFETY: the vtable's functions treat the pointer as a number and never dereference it; wake()
    // may be called on any thread (it looks the reactor up and goes through its mailbox).
    unsafe { Waker::from_raw(raw(id.0 as usize as *const ())) }
}

struct Join<T> {
    result: Option<T>,
    waiter: Option<Waker>,
    ended: bool,
}

/// Awaits a spawned task's result. Dropping the handle lets the task run on.
pub struct JoinHandle<T> {
    join: Rc<RefCell<Join<T>>>,
    id: TaskId,
}

impl<T> JoinHandle<T> {
    /// The task.
    pub fn id(&self) -> TaskId {
        self.id
    }

    /// True once the task has ended or was cancelled.
    pub fn is_finished(&self) -> bool {
        self.join.borrow().ended
    }

    /// Drops the task's future at its present await. Nothing happens when it has ended already.
    pub fn cancel(&self) {
        crate::executor::cancel(self.id);
    }
}

impl<T> Future for JoinHandle<T> {
    /// `None` when the task was cancelled.
    type Output = Option<T>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut j = self.join.borrow_mut();
        if j.ended {
            return Poll::Ready(j.result.take());
        }
        j.waiter = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Marks the end of a task also when its future is dropped half-way.
struct End<T>(Rc<RefCell<Join<T>>>);

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        let waiter = {
            let mut j = self.0.borrow_mut();
            j.ended = true;
            j.waiter.take()
        };
        if let Some(w) = waiter {
            w.wake();
        }
    }
}

pub(crate) fn joinable<T: 'static>(
    future: impl Future<Output = T> + 'static,
    spawn: impl FnOnce(Boxed) -> TaskId,
) -> JoinHandle<T> {
    let join = Rc::new(RefCell::new(Join { result: None, waiter: None, ended: false }));
    let end = End(join.clone());
    let id = spawn(Box::pin(async move {
        let r = future.await;
        end.0.borrow_mut().result = Some(r);
        drop(end);
    }));
    JoinHandle { join, id }
}

//! The home reactor's side.

use super::port::Remote;
use super::record::{Op, Outcome, Record, Returns, Stack, sums_of};
use crate::planted::{Bug, has};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weir_base::{IoError, IoResult, MILLIS, Nanos};
use weir_block::{Geometry, Volume};
use weir_mem::{Backing, Slice};
use weir_reactor::{
    Completion, CompletionQueue, Handle, Token, WaitChannel, current_id, get_local, handle,
    set_local, sleep, spawn_task, try_current_id,
};

/// Most I/Os of a volume that are carried out at a time; more wait, first come first served.
const MOST: usize = 1024;
/// How often is looked whether a device has let go of a buffer.
const LINGER: Nanos = 10 * MILLIS;

/// What other reactors know of the volume.
pub(super) struct Door {
    stack: Stack,
    closed: AtomicBool,
    home: Handle,
    bell: Token,
    /// As it was made; length and write protection are below.
    made: Geometry,
    keeps_sums: bool,
    len: AtomicU64,
    read_only: AtomicBool,
    /// The last loss that was found when something durable ended.
    lost: AtomicU64,
}

impl Door {
    pub(super) fn geometry(&self) -> Geometry {
        Geometry {
            len: self.len.load(Ordering::Relaxed),
            read_only: self.read_only.load(Ordering::Relaxed),
            ..self.made
        }
    }

    pub(super) fn keeps_sums(&self) -> bool {
        self.keeps_sums
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Acquire)
    }

    pub(super) fn submit(&self, r: &'static Record) {
        let first = self.stack.push(r);
        // Either this is seen, or whoever closes sees the record: both orders are sequentially consistent.
        if self.closed.load(Ordering::SeqCst) {
            self.refuse();
        } else if first {
            self.home.complete(self.bell, Completion::default());
        }
    }

    /// Answers everything that waits: nobody is at home.
    fn refuse(&self) {
        for r in self.stack.take() {
            drop(Job::of(r));
        }
    }
}

/// A record that home has. Dropping it answers it.
struct Job {
    record: &'static Record,
    returns: Option<Arc<Returns>>,
    /// What buffers made of its memory hold; more than one count: somebody has such a buffer.
    lease: Rc<()>,
    answered: bool,
}

impl Job {
    fn of(record: &'static Record) -> Job {
        Job::with(record, Rc::new(()))
    }

    fn with(record: &'static Record, lease: Rc<()>) -> Job {
        let returns = record.returns.borrow_mut().take();
        record.outcome.set(Outcome::of(Err(IoError::Offline)));
        Job { record, returns, lease, answered: false }
    }

    /// The submitter's memory.
    fn memory(&self) -> Slice {
        let wish = self.record.wish.get();
        self.lent(wish.memory, wish.len as usize)
    }

    /// Its memory for checksums.
    fn sums(&self) -> Slice {
        let wish = self.record.wish.get();
        self.lent(wish.sums, sums_of(wish.len as usize))
    }

    fn lent(&self, memory: *mut u8, len: usize) -> Slice {
        let lease: Backing = self.lease.clone();
        let at = NonNull::new(memory).unwrap_or(NonNull::dangling());
        let len = if memory.is_null() { 0 } else { len as u32 };
        // SAFETY: the submitter's count on the memory is in the record, and the record goes back only when no count
        // on the lease is left but the job's own (see `drop`). Nobody holds Rust references to device memory.
        unsafe { Slice::from_raw(at, len, lease) }
    }

    fn is_let_go(&self) -> bool {
        Rc::strong_count(&self.lease) == 1
    }

    /// Tells the result, and gives the record back now or when its memory is let go.
    fn end(mut self, outcome: Outcome) -> Option<Rc<()>> {
        self.record.outcome.set(outcome);
        if self.is_let_go() || (outcome.result.is_ok() && has(Bug::LentMemoryReturned)) {
            if let Some(returns) = self.returns.take() {
                returns.push(self.record);
            }
            return Some(self.lease.clone());
        }
        if let Some(returns) = &self.returns {
            returns.tell(self.record, outcome);
        }
        self.answered = true;
        spawn_task(async move {
            while !self.is_let_go() {
                sleep(LINGER).await;
            }
        });
        None
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let Some(returns) = self.returns.take() else { return };
        if self.is_let_go() {
            returns.push(self.record);
        } else if !self.answered {
            // The reactor ends while a device has the buffer. The memory is left to it for good.
            returns.tell(self.record, self.record.outcome.get());
        }
    }
}

struct Inner {
    door: Arc<Door>,
    volume: Rc<dyn Volume>,
    jobs: RefCell<VecDeque<&'static Record>>,
    /// Counts jobs.
    ready: WaitChannel,
    workers: Cell<usize>,
    idle: Cell<usize>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for r in self.jobs.take() {
            drop(Job::of(r));
        }
        self.door.refuse();
    }
}

impl Inner {
    fn is_closed(&self) -> bool {
        self.door.closed.load(Ordering::Relaxed)
    }

    fn arrived(self: &Rc<Self>) {
        if self.is_closed() {
            return self.door.refuse();
        }
        let mut n = 0;
        for r in self.door.stack.take() {
            self.jobs.borrow_mut().push_back(r);
            n += 1;
        }
        let wanted = self.jobs.borrow().len().min(MOST);
        let busy = self.workers.get() - self.idle.get();
        while self.workers.get() < (wanted + busy).min(MOST) {
            self.workers.set(self.workers.get() + 1);
            self.idle.set(self.idle.get() + 1);
            spawn_task(work(self.clone()));
        }
        self.ready.signal_n(n);
    }

    async fn carry_out(&self, job: &Job) -> Outcome {
        let w = job.record.wish.get();
        let v = &self.volume;
        let result: IoResult = match w.op {
            Op::Read { summed: false } => v.read(w.at, job.memory()).await,
            Op::Read { summed: true } => v.read_summed(w.at, job.memory(), job.sums()).await,
            Op::Write { fua, summed: false } => v.write(w.at, job.memory(), fua).await,
            Op::Write { fua, summed: true } => {
                v.write_summed(w.at, job.memory(), job.sums(), fua).await
            }
            Op::Flush => {
                let done = v.flush().await;
                self.door.lost.fetch_max(v.lost(), Ordering::AcqRel);
                done
            }
            Op::Discard => v.discard(w.at, w.len).await,
            Op::WriteZeroes { unmap } => v.write_zeroes(w.at, w.len, unmap).await,
            Op::Allocation => {
                let found = v.find_allocation(w.at, w.len).await;
                return Outcome { result: Ok(()), found };
            }
        };
        Outcome::of(result)
    }
}

/// One of the tasks that carry I/Os out; they stay for the next one.
async fn work(inner: Rc<Inner>) {
    let mut spare = None;
    loop {
        inner.ready.wait().await;
        let next = inner.jobs.borrow_mut().pop_front();
        let Some(record) = next else {
            if inner.is_closed() {
                return;
            }
            continue;
        };
        inner.idle.set(inner.idle.get() - 1);
        let job = Job::with(record, spare.take().unwrap_or_default());
        let outcome = inner.carry_out(&job).await;
        spare = job.end(outcome);
        inner.idle.set(inner.idle.get() + 1);
    }
}

/// Volumes at home on this reactor.
#[derive(Default)]
struct Residents(RefCell<BTreeMap<u64, Weak<Inner>>>);

/// A volume at home, open to other reactors. Dropping it ends that: what they ask for then fails with
/// [`IoError::Offline`], what is under way goes on to its end.
pub struct Home {
    inner: Rc<Inner>,
}

impl Home {
    /// Opens `volume` of the present reactor to others.
    pub fn open(volume: Rc<dyn Volume>) -> Home {
        let made = volume.geometry();
        let queue = CompletionQueue::new();
        let door = Arc::new(Door {
            stack: Stack::default(),
            closed: AtomicBool::new(false),
            home: handle(),
            bell: queue.token(0),
            made,
            keeps_sums: volume.keeps_sums(),
            len: AtomicU64::new(made.len),
            read_only: AtomicBool::new(made.read_only),
            lost: AtomicU64::new(volume.lost()),
        });
        let inner = Rc::new(Inner {
            door,
            volume,
            jobs: RefCell::default(),
            ready: WaitChannel::new(0),
            workers: Cell::new(0),
            idle: Cell::new(0),
        });
        let residents = match get_local::<Residents>() {
            Some(r) => r,
            None => {
                let r = Rc::<Residents>::default();
                set_local(r.clone());
                r
            }
        };
        residents.0.borrow_mut().insert(inner.door.bell.0, Rc::downgrade(&inner));
        let me = inner.clone();
        spawn_task(async move {
            while !me.is_closed() {
                queue.next().await;
                me.arrived();
            }
        });
        Home { inner }
    }

    /// What other reactors come in by.
    pub fn entrance(&self) -> Entrance {
        Entrance(self.inner.door.clone())
    }

    /// The volume.
    pub fn volume(&self) -> Rc<dyn Volume> {
        self.inner.volume.clone()
    }

    /// I/Os of others that are under way or wait.
    pub fn busy(&self) -> usize {
        let i = &self.inner;
        let waiting = i.jobs.borrow().len() + usize::from(!i.door.stack.is_empty());
        waiting + i.workers.get() - i.idle.get()
    }

    /// Tells others that the volume's size or write protection has changed.
    pub fn refresh(&self) {
        let g = self.inner.volume.geometry();
        self.inner.door.len.store(g.len, Ordering::Relaxed);
        self.inner.door.read_only.store(g.read_only, Ordering::Relaxed);
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let i = &self.inner;
        i.door.closed.store(true, Ordering::SeqCst);
        i.door.refuse();
        if try_current_id() == Some(i.door.home.id())
            && let Some(r) = get_local::<Residents>()
        {
            r.0.borrow_mut().remove(&i.door.bell.0);
        }
        // The task that takes records in, and the workers, see that it is closed.
        i.door.home.complete(i.door.bell, Completion::default());
        i.ready.signal_n(i.workers.get() as u32);
    }
}

/// The way to a [`Home`] from any thread.
#[derive(Clone)]
pub struct Entrance(Arc<Door>);

impl Entrance {
    /// The volume as the present reactor uses it: itself at home, elsewhere a handle. `None`: it is not open any
    /// more.
    pub fn volume(&self) -> Option<Rc<dyn Volume>> {
        if self.0.closed.load(Ordering::SeqCst) {
            return None;
        }
        if self.0.home.id() != current_id() {
            return Some(Rc::new(Remote::new(self.0.clone())));
        }
        let residents = get_local::<Residents>()?;
        let found = residents.0.borrow().get(&self.0.bell.0).and_then(Weak::upgrade);
        found.map(|i| i.volume.clone())
    }

    /// As [`volume`](Entrance::volume), but a handle at home too: an I/O that is given up goes on to its end.
    pub fn handle(&self) -> Rc<dyn Volume> {
        Rc::new(Remote::new(self.0.clone()))
    }

    /// The home reactor.
    pub fn home(&self) -> &Handle {
        &self.0.home
    }
}

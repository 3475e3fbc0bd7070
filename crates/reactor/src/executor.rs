//! The run loop.

use crate::completion::Slots;
use crate::completion_queue::Queues;
use crate::driver::{Driver, Machine, PollMode, Poller};
use crate::mailbox::{self, Inbox, Message, TaskName};
use crate::task::{self, JoinHandle, TaskId, Tasks};
use crate::timer::Timers;
use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use weir_base::Nanos;

/// How often a turn goes round the run queue before it looks at the world again (S0: `sched_run`
/// "loops internally up to a limit of a few iterations").
const ROUNDS: usize = 4;

pub(crate) struct Inner {
    pub(crate) id: u32,
    pub(crate) tasks: RefCell<Tasks>,
    pub(crate) run_queue: RefCell<VecDeque<TaskId>>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) slots: RefCell<Slots>,
    pub(crate) queues: RefCell<Queues>,
    pub(crate) driver: Rc<dyn Driver>,
    pub(crate) inbox: Inbox,
    pollers: RefCell<Vec<Rc<dyn Poller>>>,
    now: Cell<Nanos>,
    turns: Cell<u64>,
    busy_turns: Cell<u64>,
    parked: Cell<u64>,
    pub(crate) locals: RefCell<Vec<(TypeId, Rc<dyn Any>)>>,
    turning: Cell<bool>,
}

thread_local! {
    static CURRENT: Cell<*const Inner> = const { Cell::new(std::ptr::null()) };
}

/// Runs `f` with the reactor that is being turned on this thread.
#[inline]
#[expect(clippy::expect_used, reason = "a program that does this is wrong, whatever it is given")]
pub(crate) fn with<R>(f: impl FnOnce(&Inner) -> R) -> R {
    try_with(f).expect("called outside a reactor")
}

#[inline]
pub(crate) fn try_with<R>(f: impl FnOnce(&Inner) -> R) -> Option<R> {
    let p = CURRENT.with(Cell::get);
    // SAFETY: CURRENT is set only by Enter, which borrows a live Reactor for as long as it is set.
    unsafe { p.as_ref() }.map(f)
}

struct Enter(*const Inner);

impl Enter {
    fn new(inner: &Rc<Inner>) -> Self {
        Enter(CURRENT.with(|c| c.replace(Rc::as_ptr(inner))))
    }
}

impl Drop for Enter {
    fn drop(&mut self) {
        CURRENT.with(|c| c.set(self.0));
    }
}

/// Marks a turn, also while it unwinds.
struct Turning<'a>(&'a Inner);

impl<'a> Turning<'a> {
    fn new(inner: &'a Inner) -> Self {
        assert!(!inner.turning.replace(true), "a turn inside a turn of the same reactor");
        inner.inbox.pulse().turn();
        Turning(inner)
    }
}

impl Drop for Turning<'_> {
    fn drop(&mut self) {
        self.0.turning.set(false);
        self.0.inbox.pulse().turn();
    }
}

/// Figures of a reactor since its start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Figures {
    /// Turns of the run loop.
    pub turns: u64,
    /// Turns in which there was work.
    pub busy_turns: u64,
    /// How often it slept.
    pub parked: u64,
    /// Tasks alive.
    pub tasks: usize,
}

/// One core's executor. Not `Send`: it lives and dies on one thread.
#[derive(Clone)]
pub struct Reactor(Rc<Inner>);

impl Reactor {
    /// A reactor on top of `driver`, with no task.
    pub fn new(driver: Rc<dyn Driver>) -> Self {
        let inbox = Inbox::new(driver.unparker());
        let now = driver.now();
        Reactor(Rc::new(Inner {
            id: inbox.id(),
            tasks: RefCell::default(),
            run_queue: RefCell::default(),
            timers: RefCell::default(),
            slots: RefCell::default(),
            queues: RefCell::default(),
            driver,
            inbox,
            pollers: RefCell::default(),
            now: Cell::new(now),
            turns: Cell::new(0),
            busy_turns: Cell::new(0),
            parked: Cell::new(0),
            locals: RefCell::default(),
            turning: Cell::new(false),
        }))
    }

    /// What other threads send work to this reactor with.
    pub fn handle(&self) -> crate::Handle {
        self.0.inbox.handle()
    }

    /// Adds a source of events that every turn polls.
    pub fn add_poller(&self, poller: Rc<dyn Poller>) {
        self.0.pollers.borrow_mut().push(poller);
    }

    /// Runs `f` as if inside a task: it may spawn and make completions.
    pub fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        let _e = Enter::new(&self.0);
        f()
    }

    /// Starts a task.
    pub fn spawn<T: 'static>(&self, f: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        self.enter(|| spawn(f))
    }

    /// One turn: harvest events, run what became runnable, ring doorbells. True when there was work.
    pub fn turn(&self) -> bool {
        let inner = &*self.0;
        let _e = Enter::new(&self.0);
        let _t = Turning::new(inner);
        inner.now.set(inner.driver.now());
        let mut busy = inner.driver.poll();
        let mut i = 0;
        // Pollers may be added by what they call; none is ever removed.
        while let Some(p) = { inner.pollers.borrow().get(i).cloned() } {
            busy |= p.poll();
            i += 1;
        }
        if busy {
            // Taking in what came can have taken a while, and it is here only now.
            inner.now.set(inner.driver.now());
        }
        busy |= inner.drain_inbox();
        busy |= inner.expire_timers();
        busy |= inner.run_tasks();
        for i in 0..i {
            let p = inner.pollers.borrow()[i].clone();
            p.flush();
        }
        inner.turns.set(inner.turns.get() + 1);
        if busy {
            inner.busy_turns.set(inner.busy_turns.get() + 1);
        }
        busy
    }

    /// True when a task is runnable now.
    pub fn has_work(&self) -> bool {
        !self.0.run_queue.borrow().is_empty() || self.0.inbox.has_mail()
    }

    /// When the next timer is due.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.0.timers.borrow_mut().next()
    }

    /// Turns until `future` is done, waiting for work as `mode` says.
    pub fn block_on<T: 'static>(
        &self,
        mode: PollMode,
        future: impl Future<Output = T> + 'static,
    ) -> T {
        let handle = self.spawn(future);
        let mut last_work = self.0.driver.now();
        while !handle.is_finished() {
            if self.turn() {
                last_work = self.0.now.get();
                continue;
            }
            match mode {
                PollMode::Busy => std::hint::spin_loop(),
                PollMode::Adaptive { spin } if self.0.now.get() - last_work < spin => {
                    std::hint::spin_loop();
                }
                _ => self.park(),
            }
        }
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut handle = handle;
        match Pin::new(&mut handle).poll(&mut cx) {
            Poll::Ready(Some(v)) => v,
            #[expect(clippy::unreachable, reason = "an invariant: this is its only handle")]
            _ => unreachable!("the task has finished and nobody else could cancel it"),
        }
    }

    /// True when a turn polls something besides the driver.
    pub fn has_pollers(&self) -> bool {
        !self.0.pollers.borrow().is_empty()
    }

    /// Has all that turns poll wake the reactor when something comes, for a sleep. False: something has come already.
    pub fn arm(&self) -> bool {
        let inner = &*self.0;
        let _e = Enter::new(&self.0);
        let mut may_sleep = true;
        let mut i = 0;
        while let Some(p) = { inner.pollers.borrow().get(i).cloned() } {
            may_sleep &= p.arm();
            i += 1;
        }
        may_sleep
    }

    /// Sleeps until there may be work.
    fn park(&self) {
        let inner = &*self.0;
        let _e = Enter::new(&self.0);
        if !self.arm() {
            return;
        }
        inner.inbox.set_sleeping(true);
        if !inner.inbox.has_mail() && inner.run_queue.borrow().is_empty() {
            inner.parked.set(inner.parked.get() + 1);
            let until = inner.timers.borrow_mut().next();
            inner.driver.park(until);
        }
        inner.inbox.set_sleeping(false);
    }

    /// Ends all tasks and drops all pollers, inside the reactor, since their destructors may use it. The
    /// last handle to a reactor does it too.
    ///
    /// # Panics
    /// When a task is being polled.
    pub fn shutdown(&self) {
        let inner = &*self.0;
        assert!(!inner.turning.get(), "a reactor cannot end inside its own turn");
        let _e = Enter::new(&self.0);
        loop {
            let all = inner.tasks.borrow_mut().drain();
            if all.is_empty() {
                break;
            }
            drop(all);
        }
        inner.run_queue.borrow_mut().clear();
        let pollers = std::mem::take(&mut *inner.pollers.borrow_mut());
        drop(pollers);
        let locals = std::mem::take(&mut *inner.locals.borrow_mut());
        drop(locals);
    }

    /// Gives up a reactor whose tasks cannot be dropped, since one of them has panicked: its number is free
    /// again, everything else is leaked.
    pub fn abandon(self) {
        self.0.inbox.retire();
        std::mem::forget(self);
    }

    /// Figures since the start.
    pub fn figures(&self) -> Figures {
        let i = &self.0;
        Figures {
            turns: i.turns.get(),
            busy_turns: i.busy_turns.get(),
            parked: i.parked.get(),
            tasks: i.tasks.borrow().len(),
        }
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        if Rc::strong_count(&self.0) == 1 {
            self.shutdown();
        }
    }
}

impl Inner {
    #[inline]
    pub(crate) fn enqueue(&self, id: TaskId) {
        if self.tasks.borrow_mut().mark_queued(id) {
            self.run_queue.borrow_mut().push_back(id);
        }
    }

    fn run_tasks(&self) -> bool {
        let mut any = false;
        for _ in 0..ROUNDS {
            let n = self.run_queue.borrow().len();
            if n == 0 {
                break;
            }
            any = true;
            for _ in 0..n {
                let next = {
                    let mut q = self.run_queue.borrow_mut();
                    if self.driver.permutes() && q.len() > 1 {
                        let k = self.driver.pick(q.len());
                        q.swap(0, k);
                    }
                    q.pop_front()
                };
                match next {
                    Some(id) => self.poll_task(id),
                    None => break,
                }
            }
        }
        any
    }

    fn poll_task(&self, id: TaskId) {
        let Some((mut future, name)) = self.tasks.borrow_mut().take(id) else { return };
        self.inbox.pulse().runs(name);
        let waker = task::waker(id);
        let mut cx = Context::from_waker(&waker);
        let ended = match future.as_mut().poll(&mut cx) {
            Poll::Pending => self.tasks.borrow_mut().put_back(id, future),
            Poll::Ready(()) => {
                self.tasks.borrow_mut().remove(id);
                Some(future)
            }
        };
        drop(ended);
    }

    fn drain_inbox(&self) -> bool {
        let mut any = false;
        while let Some(m) = self.inbox.take() {
            any = true;
            match m {
                Message::Wake(id) => self.enqueue(id),
                Message::Run(f) => f(),
                Message::Complete(token, c) => crate::completion::complete(token, c),
            }
        }
        any
    }

    fn expire_timers(&self) -> bool {
        let now = self.now.get();
        let mut any = false;
        loop {
            let waker = self.timers.borrow_mut().expire(now);
            match waker {
                Some(w) => w.wake(),
                None => return any,
            }
            any = true;
        }
    }
}

/// Makes a task runnable, from any thread.
pub(crate) fn wake(id: TaskId) {
    let local = try_with(|i| {
        if i.id == id.reactor() {
            i.enqueue(id);
            true
        } else {
            false
        }
    });
    if local != Some(true) {
        mailbox::post(id.reactor(), Message::Wake(id));
    }
}

/// Drops a task's future at its present await. Nothing happens when the task has ended.
///
/// # Panics
/// When the task is another reactor's.
pub fn cancel(id: TaskId) {
    let future = with(|i| {
        assert_eq!(i.id, id.reactor(), "a task is cancelled on its own reactor");
        i.tasks.borrow_mut().remove(id)
    });
    drop(future);
}

/// Starts a task on the present reactor.
pub fn spawn<T: 'static, F: Future<Output = T> + 'static>(future: F) -> JoinHandle<T> {
    task::joinable(future, |f| spawn_boxed(f, std::any::type_name::<F>))
}

/// Starts a task nobody joins: one allocation less.
pub fn spawn_task<F: Future<Output = ()> + 'static>(future: F) -> TaskId {
    spawn_boxed(Box::pin(future), std::any::type_name::<F>)
}

fn spawn_boxed(future: Pin<Box<dyn Future<Output = ()>>>, name: TaskName) -> TaskId {
    with(|i| {
        let id = i.tasks.borrow_mut().insert(i.id, future, name);
        i.enqueue(id);
        id
    })
}

/// The time at which this turn had taken in what came, before it ran any task: one clock read serves all.
#[inline]
pub fn now() -> Nanos {
    with(|i| i.now.get())
}

/// The time right now, for measuring.
#[inline]
pub fn clock() -> Nanos {
    with(|i| i.driver.now())
}

/// A number of the present reactor, unique among those alive in this process.
pub fn current_id() -> u32 {
    with(|i| i.id)
}

/// As [`current_id`], or `None` outside a reactor.
pub fn try_current_id() -> Option<u32> {
    try_with(|i| i.id)
}

/// Asks the simulated machine around the present reactor; `None` on a real one, and outside reactors.
pub fn simulated<R>(ask: impl FnOnce(&dyn Machine) -> R) -> Option<R> {
    let driver = try_with(|i| i.driver.clone())?;
    driver.machine().map(ask)
}

/// `sched_async` of S0: lets the rest of the run queue go first and continues outside the caller's
/// context.
pub fn run_async() -> RunAsync {
    RunAsync(false)
}

/// Future of [`run_async`].
pub struct RunAsync(bool);

impl Future for RunAsync {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.0 {
            return Poll::Ready(());
        }
        self.0 = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

pub(crate) fn now_of(i: &Inner) -> Nanos {
    i.now.get()
}

//! Drivers for tests: a clock that is set by hand, and one thread's real clock.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use weir_base::Nanos;
use weir_reactor::{Driver, Reactor, Unpark};

/// Time stands still until a test or a park moves it.
#[derive(Default)]
pub(crate) struct Manual {
    pub(crate) now: Cell<Nanos>,
    pub(crate) parks: RefCell<Vec<Option<Nanos>>>,
    pub(crate) polls: Cell<u32>,
}

struct Nobody;

impl Unpark for Nobody {
    fn unpark(&self) {}
}

impl Driver for Manual {
    fn now(&self) -> Nanos {
        self.now.get()
    }
    fn poll(&self) -> bool {
        self.polls.set(self.polls.get() + 1);
        false
    }
    fn park(&self, until: Option<Nanos>) {
        self.parks.borrow_mut().push(until);
        let until = until.expect("a park without a deadline would never end");
        self.now.set(self.now.get().max(until));
    }
    fn unparker(&self) -> Arc<dyn Unpark> {
        Arc::new(Nobody)
    }
}

/// A reactor whose time is set by hand.
pub(crate) fn manual() -> (Reactor, Rc<Manual>) {
    let driver = Rc::new(Manual::default());
    (Reactor::new(driver.clone()), driver)
}

/// Turns until nothing is runnable.
pub(crate) fn settle(r: &Reactor) {
    while r.turn() {}
}

/// A driver of one real thread.
pub(crate) struct Threaded {
    start: Instant,
    unpark: Arc<ThreadUnpark>,
}

pub(crate) struct ThreadUnpark {
    thread: std::thread::Thread,
    pub(crate) calls: AtomicUsize,
}

impl Unpark for ThreadUnpark {
    fn unpark(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.thread.unpark();
    }
}

impl Threaded {
    pub(crate) fn new() -> Rc<Threaded> {
        let unpark = ThreadUnpark { thread: std::thread::current(), calls: AtomicUsize::default() };
        Rc::new(Threaded { start: Instant::now(), unpark: Arc::new(unpark) })
    }
}

impl Driver for Threaded {
    fn now(&self) -> Nanos {
        self.start.elapsed().as_nanos() as Nanos
    }
    fn poll(&self) -> bool {
        false
    }
    fn park(&self, until: Option<Nanos>) {
        match until {
            Some(t) => {
                std::thread::park_timeout(Duration::from_nanos(t.saturating_sub(self.now())));
            }
            None => std::thread::park(),
        }
    }
    fn unparker(&self) -> Arc<dyn Unpark> {
        self.unpark.clone()
    }
}

/// Counts how often it was woken.
#[derive(Default)]
pub(crate) struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A future polled by hand, with a count of its wake-ups.
pub(crate) struct ByHand<F> {
    future: Pin<Box<F>>,
    woken: Arc<Woken>,
}

impl<F: Future> ByHand<F> {
    pub(crate) fn new(future: F) -> Self {
        ByHand { future: Box::pin(future), woken: Arc::default() }
    }
    pub(crate) fn poll(&mut self) -> Poll<F::Output> {
        let waker = Waker::from(self.woken.clone());
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }
    pub(crate) fn is_ready(&mut self) -> bool {
        self.poll().is_ready()
    }
    pub(crate) fn wakes(&self) -> usize {
        self.woken.0.load(Ordering::SeqCst)
    }
}

/// A list that tasks append to, to show their order.
pub(crate) type Log<T> = Rc<RefCell<Vec<T>>>;

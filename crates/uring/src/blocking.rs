//! Threads for what may wait on a file system or driver, so that no reactor does.
//!
//! The ring has no operation for many questions (opening, sizes, holes, directories), and on a file system that hangs each of
//! them waits for it. One that hangs takes a few threads at most: the others go on, and more are started as they are needed.

use crate::closing::close_left;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weir_base::{MILLIS, Nanos};
use weir_reactor::{Completion, completion, sleep};

/// Threads at most. More work than that waits for one of them.
const MOST: usize = 256;
/// Of these about one thing, as callers name it: what hangs gets no more of them.
const EACH: usize = 4;
/// How often is looked whether there is room for one more.
const AGAIN: Nanos = 20 * MILLIS;
/// A thread without work ends after this long.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

struct State {
    jobs: VecDeque<Job>,
    /// Jobs that have not ended, by what they are about.
    about: BTreeMap<u64, usize>,
    threads: usize,
    idle: usize,
}

static STATE: Mutex<State> =
    Mutex::new(State { jobs: VecDeque::new(), about: BTreeMap::new(), threads: 0, idle: 0 });
static WORK: Condvar = Condvar::new();

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `f` on a thread of its own and waits for it without holding up the reactor. Who gives up waiting ([`timeout`]) leaves
/// it to its end. While as many as may be are out for what it is `about` (a file system, a path) it does not begin. None: it
/// panicked, or there is no thread.
///
/// [`timeout`]: weir_reactor::timeout
pub async fn blocking<R: Send + 'static>(
    about: u64,
    f: impl FnOnce() -> R + Send + 'static,
) -> Option<R> {
    let out = loop {
        match Out::of(about) {
            Some(out) => break out,
            // Rare, and those who wait give up in time: nobody keeps a list of them.
            None => sleep(AGAIN).await,
        }
    };
    let answer = Arc::new(Mutex::new(None));
    let (token, done) = completion();
    let (caller, told) = (weir_reactor::handle(), answer.clone());
    let job = move || {
        let done = catch_unwind(AssertUnwindSafe(f)).ok();
        drop(out);
        *lock(&told) = done;
        // If nobody waits any more, what was found ends here, and not on the reactor.
        drop(told);
        caller.complete(token, Completion::ok(0));
    };
    if !submit(Box::new(job)) {
        return None;
    }
    done.await;
    lock(&answer).take()
}

/// A job that has not ended.
struct Out(u64);

impl Out {
    fn of(about: u64) -> Option<Out> {
        let mut s = lock(&STATE);
        let n = s.about.entry(about).or_default();
        if *n >= EACH {
            return None;
        }
        *n += 1;
        Some(Out(about))
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        let mut s = lock(&STATE);
        if let Some(n) = s.about.get_mut(&self.0) {
            *n -= 1;
            if *n == 0 {
                s.about.remove(&self.0);
            }
        }
    }
}

fn submit(job: Job) -> bool {
    let mut s = lock(&STATE);
    s.jobs.push_back(job);
    if s.idle < s.jobs.len() && s.threads < MOST {
        match std::thread::Builder::new().name("weir-blocking".into()).spawn(work) {
            Ok(_) => s.threads += 1,
            Err(_) if s.threads > 0 => {}
            Err(_) => {
                let job = s.jobs.pop_back();
                drop(s);
                drop(job);
                return false;
            }
        }
    }
    WORK.notify_one();
    true
}

fn work() {
    let mut s = lock(&STATE);
    loop {
        if let Some(job) = s.jobs.pop_front() {
            drop(s);
            job();
            close_left();
            s = lock(&STATE);
            continue;
        }
        s.idle += 1;
        let (back, waited) = WORK.wait_timeout(s, IDLE).unwrap_or_else(PoisonError::into_inner);
        s = back;
        s.idle -= 1;
        if waited.timed_out() && s.jobs.is_empty() {
            s.threads -= 1;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ring;
    use std::rc::Rc;
    use std::sync::mpsc::{TryRecvError, channel};
    use weir_reactor::{PollMode, Reactor, timeout};

    #[test]
    fn what_hangs_holds_up_neither_the_reactor_nor_others() {
        let ring = Ring::new().unwrap();
        let reactor = Reactor::new(Rc::new(ring));
        let (go_on, held) = channel::<()>();
        reactor.block_on(PollMode::Sleep, async move {
            let hung = weir_reactor::spawn(blocking(1, move || held.recv().is_ok()));
            for i in 0..100 {
                assert_eq!(blocking(2, move || i + 1).await, Some(i + 1));
            }
            assert!(!hung.is_finished());
            go_on.send(()).unwrap();
            assert_eq!(hung.await, Some(Some(true)));
        });
    }

    #[test]
    fn what_hangs_gets_no_more_threads_until_it_answers() {
        let reactor = Reactor::new(Rc::new(Ring::new().unwrap()));
        reactor.block_on(PollMode::Sleep, async {
            let (go_on, held) = channel::<()>();
            let held = Arc::new(Mutex::new(held));
            let ask = || {
                let held = held.clone();
                blocking(7, move || lock(&held).recv().is_ok())
            };
            let hung: Vec<_> = (0..EACH).map(|_| weir_reactor::spawn(ask())).collect();
            weir_reactor::run_async().await;
            weir_reactor::run_async().await;
            assert!(timeout(3 * AGAIN, ask()).await.is_err(), "it would be one more");
            assert_eq!(blocking(8, || 1).await, Some(1));
            let next = weir_reactor::spawn(blocking(7, || 2));
            weir_reactor::run_async().await;
            assert!(!next.is_finished());
            for _ in 0..EACH {
                go_on.send(()).unwrap();
            }
            for h in hung {
                assert_eq!(h.await, Some(Some(true)));
            }
            assert_eq!(next.await, Some(Some(2)), "who has waited comes to it");
            // Who gave up has not been asked: nothing is left to be taken.
            assert_eq!(lock(&held).try_recv(), Err(TryRecvError::Empty));
        });
    }

    #[test]
    fn a_panic_is_no_answer() {
        let ring = Ring::new().unwrap();
        let reactor = Reactor::new(Rc::new(ring));
        reactor.block_on(PollMode::Sleep, async {
            assert_eq!(blocking(3, || assert!(std::hint::black_box(false))).await, None);
            assert_eq!(blocking(3, || 1).await, Some(1), "its thread serves on");
        });
    }
}

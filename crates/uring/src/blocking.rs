//! Threads for what may wait on a file system or driver, so that no reactor does.
//!
//! The ring has no operation for many questions (opening, sizes, holes, directories), and on a file system that hangs each of
//! them waits for it. One that hangs takes one thread: the others go on, and more are started as they are needed.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weir_reactor::{Completion, completion};

/// Threads at most. More work than that waits for one of them.
const MOST: usize = 64;
/// A thread without work ends after this long.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

static STATE: Mutex<State> = Mutex::new(State { jobs: VecDeque::new(), threads: 0, idle: 0 });
static WORK: Condvar = Condvar::new();

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `f` on a thread of its own and waits for it without holding up the reactor. Who gives up waiting ([`timeout`]) leaves
/// it to its end. None: it panicked, or there is no thread.
///
/// [`timeout`]: weir_reactor::timeout
pub async fn blocking<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> Option<R> {
    let answer = Arc::new(Mutex::new(None));
    let (token, done) = completion();
    let (caller, told) = (weir_reactor::handle(), answer.clone());
    let job = move || {
        *lock(&told) = catch_unwind(AssertUnwindSafe(f)).ok();
        caller.complete(token, Completion::ok(0));
    };
    if !submit(Box::new(job)) {
        return None;
    }
    done.await;
    lock(&answer).take()
}

/// Runs `f` on such a thread, and waits for nothing.
pub(crate) fn later(f: impl FnOnce() + Send + 'static) {
    // A panic of it is nobody's affair.
    submit(Box::new(move || drop(catch_unwind(AssertUnwindSafe(f)))));
}

fn submit(job: Job) -> bool {
    let mut s = lock(&STATE);
    s.jobs.push_back(job);
    if s.idle < s.jobs.len() && s.threads < MOST {
        match std::thread::Builder::new().name("weir-blocking".into()).spawn(work) {
            Ok(_) => s.threads += 1,
            Err(_) if s.threads > 0 => {}
            Err(_) => {
                drop(s.jobs.pop_back());
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
    use std::sync::mpsc::channel;
    use weir_reactor::{PollMode, Reactor};

    #[test]
    fn what_hangs_holds_up_neither_the_reactor_nor_others() {
        let ring = Ring::new().unwrap();
        let reactor = Reactor::new(Rc::new(ring));
        let (go_on, held) = channel::<()>();
        reactor.block_on(PollMode::Sleep, async move {
            let hung = weir_reactor::spawn(blocking(move || held.recv().is_ok()));
            for i in 0..100 {
                assert_eq!(blocking(move || i + 1).await, Some(i + 1));
            }
            assert!(!hung.is_finished());
            go_on.send(()).unwrap();
            assert_eq!(hung.await, Some(Some(true)));
        });
    }

    #[test]
    fn a_panic_is_no_answer() {
        let ring = Ring::new().unwrap();
        let reactor = Reactor::new(Rc::new(ring));
        reactor.block_on(PollMode::Sleep, async {
            assert_eq!(blocking(|| assert!(std::hint::black_box(false))).await, None);
            assert_eq!(blocking(|| 1).await, Some(1), "its thread serves on");
        });
    }
}

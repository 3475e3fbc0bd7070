//! Tasks, their handles, the run loop's rounds, `run_async`.

use crate::common::{Log, Manual, manual, settle};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use weir_base::Nanos;
use weir_reactor::{
    Driver, PollMode, Poller, Reactor, Unpark, WaitChannel, current_id, run_async, spawn,
    spawn_task, try_current_id,
};

#[test]
fn tasks_run_in_the_order_in_which_they_became_runnable() {
    let (r, _) = manual();
    let log: Log<u32> = Log::default();
    for i in 0..5 {
        let log = log.clone();
        r.spawn(async move {
            log.borrow_mut().push(i);
            run_async().await;
            log.borrow_mut().push(10 + i);
        });
    }
    settle(&r);
    assert_eq!(*log.borrow(), [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]);
}

#[test]
fn a_turn_follows_new_work_for_a_few_rounds_and_then_looks_at_the_world() {
    let (r, driver) = manual();
    let steps = Rc::new(Cell::new(0));
    let counted = steps.clone();
    r.spawn(async move {
        loop {
            counted.set(counted.get() + 1);
            run_async().await;
        }
    });
    assert!(r.turn());
    let per_turn = steps.get();
    assert!((2..=8).contains(&per_turn), "{per_turn} rounds in one turn");
    assert_eq!(driver.polls.get(), 1);
    assert!(r.turn());
    assert_eq!((steps.get(), driver.polls.get()), (2 * per_turn, 2));
}

#[test]
fn a_chain_of_completions_inside_the_rounds_is_done_in_one_turn() {
    let (r, _) = manual();
    let (a, b) = (Rc::new(WaitChannel::new(0)), Rc::new(WaitChannel::new(0)));
    let (a2, b2) = (a.clone(), b.clone());
    let last = r.spawn(async move { b2.wait().await });
    r.spawn(async move {
        a2.wait().await;
        b.signal();
    });
    settle(&r);
    r.enter(|| a.signal());
    assert!(r.turn());
    assert!(last.is_finished());
    assert!(!r.turn(), "an idle turn says so");
}

#[test]
fn run_async_leaves_the_callers_context() {
    let (r, _) = manual();
    let log: Log<&str> = Log::default();
    let (l1, l2) = (log.clone(), log.clone());
    r.spawn(async move {
        spawn_task(async move {
            run_async().await;
            l1.borrow_mut().push("callback");
        });
        l2.borrow_mut().push("caller goes on");
    });
    settle(&r);
    assert_eq!(*log.borrow(), ["caller goes on", "callback"]);
}

#[test]
fn a_handle_gives_the_result_once() {
    let (r, _) = manual();
    let h = r.spawn(async { 7 });
    let sum = r.spawn(h);
    settle(&r);
    assert!(sum.is_finished());
    let got = r.block_on(PollMode::Sleep, async { sum.await.flatten() });
    assert_eq!(got, Some(7));
}

#[test]
fn dropping_a_handle_lets_the_task_run_on() {
    let (r, _) = manual();
    let done = Rc::new(Cell::new(false));
    let d = done.clone();
    drop(r.spawn(async move {
        run_async().await;
        d.set(true);
    }));
    settle(&r);
    assert!(done.get());
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn cancel_drops_the_future_at_once_and_tells_the_joiner() {
    let (r, _) = manual();
    let dropped = Rc::new(Cell::new(false));
    let d = dropped.clone();
    let h = r.spawn(async move {
        let _guard = OnDrop(|| d.set(true));
        std::future::pending::<()>().await;
    });
    settle(&r);
    r.enter(|| h.cancel());
    assert!(dropped.get() && h.is_finished());
    r.enter(|| h.cancel());
    let joined = r.block_on(PollMode::Sleep, h);
    assert_eq!(joined, None);
    assert_eq!(r.figures().tasks, 0);
}

#[test]
fn a_task_cancelled_before_its_first_poll_never_runs() {
    let (r, _) = manual();
    let h = r.spawn(async { panic!("it ran") });
    r.enter(|| h.cancel());
    settle(&r);
    assert!(h.is_finished());
}

#[test]
fn a_task_may_cancel_itself() {
    let (r, _) = manual();
    let me: Rc<Cell<Option<weir_reactor::JoinHandle<()>>>> = Rc::default();
    let (m, after) = (me.clone(), Rc::new(Cell::new(false)));
    let a = after.clone();
    let h = r.spawn(async move {
        m.take().expect("set before the first turn").cancel();
        // It ends at its next await.
        run_async().await;
        a.set(true);
    });
    me.set(Some(h));
    settle(&r);
    assert!(!after.get());
    assert_eq!(r.figures().tasks, 0);
}

#[test]
fn a_waker_that_outlives_its_task_wakes_nobody() {
    let (r, _) = manual();
    let waker = Rc::new(Cell::new(None));
    let w = waker.clone();
    let h = r.spawn(async move {
        std::future::poll_fn(|cx| {
            w.set(Some(cx.waker().clone()));
            std::task::Poll::<()>::Pending
        })
        .await;
    });
    settle(&r);
    r.enter(|| h.cancel());
    let polls = Rc::new(Cell::new(0));
    let p = polls.clone();
    // Takes the slot that the cancelled task had.
    r.spawn(std::future::poll_fn(move |_| {
        p.set(p.get() + 1);
        std::task::Poll::<()>::Pending
    }));
    settle(&r);
    let stale = waker.take().expect("the first task was polled");
    r.enter(|| stale.wake_by_ref());
    stale.wake();
    settle(&r);
    assert_eq!(polls.get(), 1);
}

#[test]
fn several_wake_ups_make_one_poll() {
    let (r, _) = manual();
    let polls = Rc::new(Cell::new(0));
    let p = polls.clone();
    let waker = Rc::new(Cell::new(None));
    let w = waker.clone();
    r.spawn(std::future::poll_fn(move |cx| {
        p.set(p.get() + 1);
        w.set(Some(cx.waker().clone()));
        std::task::Poll::<()>::Pending
    }));
    settle(&r);
    let waker = waker.take().expect("polled");
    r.enter(|| (0..5).for_each(|_| waker.wake_by_ref()));
    (0..5).for_each(|_| waker.wake_by_ref());
    settle(&r);
    assert!((2..=3).contains(&polls.get()), "{}", polls.get());
}

#[test]
fn a_dying_reactor_drops_its_tasks_inside_itself() {
    let (r, _) = manual();
    let seen = Rc::new(Cell::new(None));
    let s = seen.clone();
    let id = r.enter(current_id);
    r.spawn(async move {
        let _guard = OnDrop(|| {
            s.set(try_current_id());
            // A destructor may start a task; that one ends too.
            spawn_task(std::future::pending());
        });
        std::future::pending::<()>().await;
    });
    settle(&r);
    drop(r);
    assert_eq!(seen.get(), Some(id));
    assert_eq!(try_current_id(), None);
}

#[test]
fn shutdown_ends_all_tasks_while_other_handles_to_the_reactor_live() {
    let (r, _) = manual();
    let dropped = Rc::new(Cell::new(0));
    for _ in 0..3 {
        let d = dropped.clone();
        r.spawn(async move {
            let _guard = OnDrop(|| d.set(d.get() + 1));
            std::future::pending::<()>().await;
        });
    }
    settle(&r);
    let other = r.clone();
    r.shutdown();
    assert_eq!(dropped.get(), 3);
    assert_eq!(other.figures().tasks, 0);
    assert!(!other.turn());
}

#[test]
fn reactors_nest_on_one_thread() {
    let ((a, _), (b, _)) = (manual(), manual());
    let (ia, ib) = (a.enter(current_id), b.enter(current_id));
    assert_ne!(ia, ib);
    a.enter(|| {
        assert_eq!(b.enter(current_id), ib);
        assert_eq!(current_id(), ia);
    });
    assert_eq!(try_current_id(), None);
}

/// Picks the last runnable task.
struct Backwards(Manual);

impl Driver for Backwards {
    fn now(&self) -> Nanos {
        self.0.now()
    }
    fn poll(&self) -> bool {
        self.0.poll()
    }
    fn park(&self, until: Option<Nanos>) {
        self.0.park(until);
    }
    fn unparker(&self) -> Arc<dyn Unpark> {
        self.0.unparker()
    }
    fn pick(&self, n: usize) -> usize {
        n - 1
    }
    fn permutes(&self) -> bool {
        true
    }
}

#[test]
fn a_driver_may_permute_the_run_queue() {
    let r = Reactor::new(Rc::new(Backwards(Manual::default())));
    let log: Log<u32> = Log::default();
    for i in 0..4 {
        let log = log.clone();
        r.spawn(async move { log.borrow_mut().push(i) });
    }
    settle(&r);
    let mut order = log.borrow().clone();
    assert_eq!(order[0], 3);
    order.sort_unstable();
    assert_eq!(order, [0, 1, 2, 3], "each runs once");
}

#[derive(Default)]
struct Counting {
    events: Cell<u32>,
    flushed: Cell<u32>,
    armed: Cell<u32>,
    /// Events that come in just when the reactor arms.
    race: Cell<u32>,
}

impl Poller for Counting {
    fn poll(&self) -> bool {
        self.events.replace(0) > 0
    }
    fn flush(&self) {
        self.flushed.set(self.flushed.get() + 1);
    }
    fn arm(&self) -> bool {
        self.armed.set(self.armed.get() + 1);
        if self.race.get() > 0 {
            self.race.set(self.race.get() - 1);
            self.events.set(1);
            return false;
        }
        true
    }
}

#[test]
fn pollers_are_polled_and_flushed_each_turn_and_armed_before_sleep() {
    let (r, driver) = manual();
    let p = Rc::new(Counting::default());
    r.add_poller(p.clone());
    p.events.set(1);
    assert!(r.turn());
    assert!(!r.turn());
    assert_eq!((p.flushed.get(), p.armed.get()), (2, 0));
    p.race.set(2);
    r.block_on(PollMode::Sleep, async { weir_reactor::sleep(50).await });
    assert_eq!(p.armed.get(), 3, "two refusals, one sleep");
    assert_eq!(*driver.parks.borrow(), [Some(50)]);
}

#[test]
fn adaptive_mode_polls_for_its_time_before_it_sleeps() {
    struct Ticking(Manual);
    impl Driver for Ticking {
        fn now(&self) -> Nanos {
            self.0.now.set(self.0.now.get() + 10);
            self.0.now.get()
        }
        fn poll(&self) -> bool {
            self.0.poll()
        }
        fn park(&self, until: Option<Nanos>) {
            self.0.park(until);
        }
        fn unparker(&self) -> Arc<dyn Unpark> {
            self.0.unparker()
        }
    }
    let driver = Rc::new(Ticking(Manual::default()));
    let r = Reactor::new(driver.clone());
    r.block_on(PollMode::Adaptive { spin: 1000 }, async { weir_reactor::sleep(5000).await });
    let polled = driver.0.polls.get();
    assert!((90..=120).contains(&polled), "about 1000 ns of 10 ns turns, not {polled}");
    assert_eq!(driver.0.parks.borrow().len(), 1);
    assert_eq!(r.figures().parked, 1);
}

#[test]
fn spawn_inside_a_task_runs_in_the_same_turn() {
    let (r, _) = manual();
    let done = Rc::new(Cell::new(false));
    let d = done.clone();
    r.spawn(async move {
        spawn(async move { d.set(true) }).await;
    });
    r.turn();
    assert!(done.get());
}

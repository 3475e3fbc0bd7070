//! The semaphore of S0 section V: its functions one by one, its cancel, its order, its four uses.

use crate::common::{ByHand, Log, manual, settle};
use std::cell::Cell;
use std::rc::Rc;
use weir_reactor::{PollMode, WaitChannel, run_async, sleep};

// Functions.

#[test]
fn p_takes_at_once_when_the_count_suffices_and_queues_otherwise() {
    let c = WaitChannel::new(3);
    assert!(ByHand::new(c.wait()).is_ready());
    assert!(ByHand::new(c.wait_n(2)).is_ready());
    assert_eq!(c.count(), 0);
    let mut w = ByHand::new(c.wait());
    assert!(!w.is_ready());
    assert_eq!((c.count(), c.waiting()), (0, 1));
}

#[test]
fn p_of_more_than_there_is_leaves_the_count_unchanged() {
    let c = WaitChannel::new(2);
    let mut w = ByHand::new(c.wait_n(3));
    assert!(!w.is_ready());
    assert_eq!(c.count(), 2);
    c.signal();
    assert_eq!((c.count(), c.waiting(), w.wakes()), (0, 0, 1));
    assert!(w.is_ready());
}

#[test]
fn conditional_p_fails_without_waiting() {
    let c = WaitChannel::new(2);
    assert!(!c.try_wait_n(3));
    assert_eq!((c.count(), c.waiting()), (2, 0));
    assert!(c.try_wait());
    assert!(c.try_wait_n(1));
    assert!(!c.try_wait());
    assert_eq!(c.count(), 0);
}

#[test]
fn v_satisfies_waiters_in_order_and_lowers_the_count_by_what_they_asked() {
    let c = WaitChannel::new(0);
    let mut w: Vec<_> = [2, 1, 4].map(|n| ByHand::new(c.wait_n(n))).into();
    assert!(w.iter_mut().all(|w| !w.is_ready()));
    c.signal();
    assert_eq!((c.count(), c.waiting()), (1, 3), "one unit is not enough for the first");
    c.signal_n(4);
    assert_eq!((c.count(), c.waiting()), (2, 1));
    assert_eq!(w.iter().map(ByHand::wakes).collect::<Vec<_>>(), [1, 1, 0]);
    assert!(w[0].is_ready() && w[1].is_ready() && !w[2].is_ready());
}

#[test]
fn signal_first_moves_one_waiter_and_leaves_the_count_alone() {
    let c = WaitChannel::new(1);
    assert!(!c.signal_first(), "no effect when nobody waits");
    assert_eq!(c.count(), 1);
    let mut a = ByHand::new(c.wait_n(5));
    let mut b = ByHand::new(c.wait_n(6));
    assert!(!a.is_ready() && !b.is_ready());
    assert!(c.signal_first());
    assert_eq!((c.count(), c.waiting()), (1, 1));
    assert!(a.is_ready() && !b.is_ready());
}

#[test]
fn signal_first_serves_the_one_behind_if_the_count_suffices_for_it() {
    let c = WaitChannel::new(1);
    let mut large = ByHand::new(c.wait_n(5));
    let mut small = ByHand::new(c.wait());
    assert!(!large.is_ready() && !small.is_ready());
    assert!(c.signal_first());
    assert!(large.is_ready() && small.is_ready());
    assert_eq!(c.count(), 0);
}

#[test]
fn signal_all_moves_all_waiters_and_leaves_the_count_alone() {
    let c = WaitChannel::new(1);
    c.signal_all();
    let mut w: Vec<_> = (2..6).map(|n| ByHand::new(c.wait_n(n))).collect();
    assert!(w.iter_mut().all(|w| !w.is_ready()));
    c.signal_all();
    assert_eq!((c.count(), c.waiting()), (1, 0));
    assert!(w.iter_mut().all(ByHand::is_ready));
    let mut late = ByHand::new(c.wait_n(2));
    assert!(!late.is_ready(), "who comes later waits");
}

#[test]
fn acquire_gives_back_on_drop_unless_forgotten() {
    let c = WaitChannel::new(4);
    let (r, _) = manual();
    let c = Rc::new(c);
    let held = c.clone();
    r.spawn(async move {
        let units = held.acquire(3).await;
        assert_eq!(held.count(), 1);
        drop(units);
        assert_eq!(held.count(), 4);
        held.acquire(1).await.forget();
    });
    settle(&r);
    assert_eq!(c.count(), 3);
}

#[test]
#[should_panic(expected = "semaphore count overflow")]
fn the_count_does_not_wrap() {
    let c = WaitChannel::new(u32::MAX);
    c.signal();
}

// Order.

#[test]
fn no_smaller_request_overtakes_a_larger_one_that_waits() {
    let c = WaitChannel::new(2);
    let mut large = ByHand::new(c.wait_n(3));
    let mut small = ByHand::new(c.wait());
    assert!(!large.is_ready());
    assert!(!small.is_ready(), "the count suffices but another one was first");
    assert!(!c.try_wait(), "the conditional form does not overtake either");
    assert_eq!(c.count(), 2);
    c.signal_n(2);
    assert!(large.is_ready() && small.is_ready());
}

#[test]
fn a_request_that_was_satisfied_but_has_not_run_is_not_robbed() {
    let c = WaitChannel::new(0);
    let mut first = ByHand::new(c.wait());
    assert!(!first.is_ready());
    c.signal();
    assert!(!c.try_wait(), "the unit belongs to the waiter from the moment of the signal");
    assert!(!ByHand::new(c.wait()).is_ready());
    assert!(first.is_ready());
}

#[test]
fn tasks_run_in_the_order_in_which_they_asked() {
    let (r, _) = manual();
    let c = Rc::new(WaitChannel::new(0));
    let log: Log<u32> = Log::default();
    for i in 0..10 {
        let (c, log) = (c.clone(), log.clone());
        r.spawn(async move {
            c.wait_n(1 + i % 3).await;
            log.borrow_mut().push(i);
            c.signal_n(1 + i % 3);
        });
    }
    settle(&r);
    r.enter(|| c.signal_n(3));
    settle(&r);
    assert_eq!(*log.borrow(), (0..10).collect::<Vec<_>>());
    assert_eq!(c.count(), 3);
}

// Cancel.

#[test]
fn cancel_in_the_queue_takes_the_entry_out() {
    let c = WaitChannel::new(0);
    let mut w: Vec<_> = (0..3).map(|_| Some(ByHand::new(c.wait()))).collect();
    for w in w.iter_mut().flatten() {
        assert!(!w.is_ready());
    }
    w[1] = None;
    assert_eq!(c.waiting(), 2);
    c.signal_n(2);
    assert!(w.iter_mut().flatten().all(ByHand::is_ready));
    assert_eq!(c.count(), 0);
}

#[test]
fn cancel_of_first_last_and_only_entry_keeps_the_queue_whole() {
    for victim in 0..3 {
        let c = WaitChannel::new(0);
        let mut w: Vec<_> = (0..3).map(|_| ByHand::new(c.wait())).collect();
        assert!(w.iter_mut().all(|w| !w.is_ready()));
        drop(w.remove(victim));
        c.signal_n(2);
        assert!(w.iter_mut().all(ByHand::is_ready), "victim {victim}");
        assert_eq!((c.count(), c.waiting()), (0, 0));
    }
    let c = WaitChannel::new(0);
    let mut only = ByHand::new(c.wait());
    assert!(!only.is_ready());
    drop(only);
    c.signal();
    assert!(c.try_wait());
}

#[test]
fn cancel_of_a_large_request_satisfies_those_behind_it() {
    let c = WaitChannel::new(2);
    let mut large = ByHand::new(c.wait_n(3));
    let mut small: Vec<_> = (0..3).map(|_| ByHand::new(c.wait())).collect();
    assert!(!large.is_ready() && small.iter_mut().all(|w| !w.is_ready()));
    drop(large);
    assert_eq!(small.iter().map(ByHand::wakes).collect::<Vec<_>>(), [1, 1, 0]);
    assert_eq!((c.count(), c.waiting()), (0, 1));
}

#[test]
fn cancel_on_the_run_queue_restores_the_count_and_wakes_whom_that_satisfies() {
    let c = WaitChannel::new(0);
    let mut granted = ByHand::new(c.wait_n(2));
    let mut behind: Vec<_> = (0..3).map(|_| ByHand::new(c.wait())).collect();
    assert!(!granted.is_ready() && behind.iter_mut().all(|w| !w.is_ready()));
    c.signal_n(2);
    assert_eq!((granted.wakes(), c.count()), (1, 0));
    drop(granted);
    assert_eq!(behind.iter().map(ByHand::wakes).collect::<Vec<_>>(), [1, 1, 0]);
    assert_eq!((c.count(), c.waiting()), (0, 1));
}

#[test]
fn cancel_after_a_conditional_v_changes_no_count() {
    for all in [false, true] {
        let c = WaitChannel::new(0);
        let mut w = ByHand::new(c.wait_n(2));
        assert!(!w.is_ready());
        if all {
            c.signal_all();
        } else {
            assert!(c.signal_first());
        }
        assert_eq!(w.wakes(), 1);
        drop(w);
        assert_eq!((c.count(), c.waiting()), (0, 0), "nothing had been taken");
    }
}

#[test]
fn dropping_a_request_that_is_over_or_never_began_changes_nothing() {
    let c = WaitChannel::new(1);
    drop(c.wait());
    assert_eq!(c.count(), 1);
    let mut w = ByHand::new(c.wait());
    assert!(w.is_ready());
    drop(w);
    assert_eq!(c.count(), 0, "what a finished P has taken stays taken");
}

#[test]
fn entries_are_used_again() {
    let c = WaitChannel::new(0);
    for _ in 0..100 {
        let mut a = ByHand::new(c.wait());
        let mut b = ByHand::new(c.wait());
        assert!(!a.is_ready() && !b.is_ready());
        drop(a);
        c.signal();
        assert!(b.is_ready());
    }
    assert_eq!((c.count(), c.waiting()), (0, 0));
}

#[test]
fn cancelling_a_task_cancels_its_wait() {
    let (r, _) = manual();
    let c = Rc::new(WaitChannel::new(0));
    let held = c.clone();
    let waits = r.spawn(async move { held.wait_n(2).await });
    let held = c.clone();
    let next = r.spawn(async move { held.wait().await });
    settle(&r);
    assert_eq!(c.waiting(), 2);
    r.enter(|| {
        c.signal_n(2);
        // Satisfied, on the run queue, not yet run.
        waits.cancel();
    });
    settle(&r);
    assert!(next.is_finished());
    assert_eq!(c.count(), 1);
}

// The four uses.

#[test]
fn use_as_a_mutex() {
    let (r, _) = manual();
    let m = Rc::new(WaitChannel::new(1));
    let inside = Rc::new(Cell::new(0));
    let log: Log<u32> = Log::default();
    for i in 0..5 {
        let (m, inside, log) = (m.clone(), inside.clone(), log.clone());
        r.spawn(async move {
            m.wait().await;
            inside.set(inside.get() + 1);
            assert_eq!(inside.get(), 1, "one at a time");
            run_async().await;
            sleep(10).await;
            log.borrow_mut().push(i);
            inside.set(inside.get() - 1);
            m.signal();
        });
    }
    r.block_on(PollMode::Sleep, async { sleep(100).await });
    assert_eq!(*log.borrow(), [0, 1, 2, 3, 4]);
    assert_eq!(m.count(), 1);
}

#[test]
fn use_as_a_pool_of_n() {
    let (r, _) = manual();
    let pool = Rc::new(WaitChannel::new(8));
    let lent = Rc::new(Cell::new(0));
    let (most, served): (Rc<Cell<u32>>, Log<u32>) = Default::default();
    for i in 0..40 {
        let (pool, lent, most, served) = (pool.clone(), lent.clone(), most.clone(), served.clone());
        r.spawn(async move {
            let n = 1 + (i * 5) % 8;
            pool.wait_n(n).await;
            served.borrow_mut().push(i);
            lent.set(lent.get() + n);
            most.set(most.get().max(lent.get()));
            sleep(u64::from(1 + i % 7)).await;
            lent.set(lent.get() - n);
            pool.signal_n(n);
        });
    }
    r.block_on(PollMode::Sleep, async { sleep(1000).await });
    assert_eq!(*served.borrow(), (0..40).collect::<Vec<_>>(), "first come first served");
    assert_eq!((lent.get(), pool.count()), (0, 8));
    assert!((6..=8).contains(&most.get()), "{}", most.get());
}

#[test]
fn use_as_a_one_shot_event() {
    for event_first in [false, true] {
        let (r, _) = manual();
        let event = Rc::new(WaitChannel::new(0));
        let held = event.clone();
        if event_first {
            event.signal();
        }
        let waiter = r.spawn(async move { held.wait().await });
        settle(&r);
        assert_eq!(waiter.is_finished(), event_first);
        if !event_first {
            r.enter(|| event.signal());
        }
        settle(&r);
        assert!(waiter.is_finished());
    }
}

#[test]
fn use_as_a_barrier() {
    let (r, _) = manual();
    let barrier = Rc::new(WaitChannel::new(0));
    let open = Rc::new(Cell::new(false));
    let passed = Rc::new(Cell::new(0));
    let arrive = || {
        let (barrier, open, passed) = (barrier.clone(), open.clone(), passed.clone());
        r.spawn(async move {
            // S0: who arrives checks first whether the event has been. Nothing runs in between here.
            if !open.get() {
                barrier.wait().await;
            }
            passed.set(passed.get() + 1);
        });
        settle(&r);
    };
    (0..3).for_each(|_| arrive());
    assert_eq!(passed.get(), 0);
    r.enter(|| {
        open.set(true);
        barrier.signal_all();
    });
    settle(&r);
    assert_eq!(passed.get(), 3);
    arrive();
    assert_eq!(passed.get(), 4);
    assert_eq!(barrier.count(), 0);
}

//! Timers: order, cancel, timeout, and no needless wake-up.

use crate::common::{ByHand, Log, manual, settle};
use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use weir_base::Nanos;
use weir_reactor::{
    Elapsed, Overdue, PollMode, WaitChannel, now, patience, run_async, sleep, sleep_until, timeout,
};

#[test]
fn timers_fire_in_order_of_deadline_then_of_creation() {
    let (r, driver) = manual();
    let log: Log<u32> = Log::default();
    for (i, at) in [30, 10, 20, 10, 30, 10].into_iter().enumerate() {
        let log = log.clone();
        r.spawn(async move {
            sleep_until(at).await;
            assert!(now() >= at);
            log.borrow_mut().push(i as u32);
        });
    }
    settle(&r);
    assert_eq!(r.next_deadline(), Some(10));
    driver.now.set(9);
    assert!(!r.turn());
    driver.now.set(100);
    settle(&r);
    assert_eq!(*log.borrow(), [1, 3, 5, 2, 0, 4]);
    assert_eq!(r.next_deadline(), None);
}

#[test]
fn a_sleep_that_is_over_already_does_not_wait() {
    let (r, driver) = manual();
    driver.now.set(50);
    r.turn();
    r.enter(|| {
        assert!(ByHand::new(sleep(0)).is_ready());
        assert!(ByHand::new(sleep_until(49)).is_ready());
        assert!(!ByHand::new(sleep(1)).is_ready());
        assert!(!ByHand::new(sleep(Nanos::MAX)).is_ready(), "the far future does not wrap");
    });
}

#[test]
fn block_on_sleeps_exactly_to_the_next_timer() {
    let (r, driver) = manual();
    r.block_on(PollMode::Sleep, async {
        sleep(100).await;
        sleep(250).await;
    });
    assert_eq!(*driver.parks.borrow(), [Some(100), Some(350)]);
}

#[test]
fn a_cancelled_timer_wakes_nobody_and_does_not_end_a_sleep_early() {
    let (r, driver) = manual();
    r.block_on(PollMode::Sleep, async {
        // As every I/O with a time limit does when it ends in time.
        for limit in [10, 20, 30] {
            assert_eq!(timeout(limit, run_async()).await, Ok(()));
        }
        sleep(100).await;
    });
    assert_eq!(*driver.parks.borrow(), [Some(100)]);
}

#[test]
fn dropping_a_sleep_frees_it_and_a_new_one_does_not_inherit_its_time() {
    let (r, driver) = manual();
    r.enter(|| {
        let mut gone = ByHand::new(sleep_until(10));
        assert!(!gone.is_ready());
        drop(gone);
        let mut kept = ByHand::new(sleep_until(20));
        assert!(!kept.is_ready());
        driver.now.set(15);
        r.turn();
        assert_eq!(kept.wakes(), 0);
        driver.now.set(20);
        r.turn();
        assert_eq!(kept.wakes(), 1);
        assert!(kept.is_ready());
    });
}

#[test]
fn many_cancelled_timers_do_not_pile_up() {
    let (r, _) = manual();
    r.enter(|| {
        let mut first = ByHand::new(sleep_until(1000));
        assert!(!first.is_ready());
        for i in 0..100_000 {
            let mut s = ByHand::new(sleep_until(2000 + i));
            assert!(!s.is_ready());
        }
        assert_eq!(r.next_deadline(), Some(1000));
        drop(first);
        assert_eq!(r.next_deadline(), None);
    });
}

#[test]
fn timeout_gives_the_result_or_drops_the_future() {
    let (r, _) = manual();
    let c = Rc::new(WaitChannel::new(0));
    let held = c.clone();
    let got = r.block_on(PollMode::Sleep, async move {
        let late = timeout(50, held.wait()).await;
        assert_eq!(held.waiting(), 0, "the wait was cancelled");
        assert_eq!(now(), 50);
        (late, timeout(50, async { 3 }).await, timeout(0, async { 4 }).await)
    });
    assert_eq!(got, (Err(Elapsed), Ok(3), Ok(4)));
    assert_eq!(c.count(), 0);
}

#[test]
fn when_both_are_due_the_future_wins_over_its_timeout() {
    let (r, driver) = manual();
    let h = r.spawn(async { timeout(10, sleep(10)).await });
    settle(&r);
    driver.now.set(10);
    settle(&r);
    assert_eq!(r.block_on(PollMode::Sleep, h), Some(Ok(())));
}

#[test]
fn a_sleep_polled_from_another_task_wakes_that_one() {
    let (r, driver) = manual();
    let slot: Rc<Cell<Option<weir_reactor::Sleep>>> = Rc::default();
    let (s, s2) = (slot.clone(), slot);
    r.spawn(async move {
        let mut sl = sleep(10);
        std::future::poll_fn(|cx| {
            let _ = std::pin::Pin::new(&mut sl).poll(cx);
            std::task::Poll::Ready(())
        })
        .await;
        s.set(Some(sl));
    });
    settle(&r);
    let h = r.spawn(async move { s2.take().expect("left by the first task").await });
    settle(&r);
    driver.now.set(10);
    settle(&r);
    assert!(h.is_finished());
}

#[test]
fn time_stands_still_within_a_turn_and_clock_does_not() {
    let (r, driver) = manual();
    let d = driver.clone();
    r.block_on(PollMode::Sleep, async move {
        let t = now();
        d.now.set(77);
        assert_eq!(now(), t);
        assert_eq!(weir_reactor::clock(), 77);
    });
}

#[test]
fn patience_ends_exactly_when_a_reactor_was_there_all_the_time() {
    let (r, driver) = manual();
    let never = std::future::pending::<()>();
    let end = r.block_on(PollMode::Sleep, patience(1001, never));
    assert_eq!((end, driver.now.get()), (Err(Overdue { waited: 1001, absent: 0 }), 1001));
    assert_eq!(r.block_on(PollMode::Sleep, patience(0, async { 7 })), Ok(7));
    assert!(r.block_on(PollMode::Sleep, patience(0, std::future::pending::<()>())).is_err());
    assert!(r.block_on(PollMode::Sleep, patience(3, std::future::pending::<()>())).is_err());
}

#[test]
fn patience_does_not_count_time_in_which_the_reactor_did_not_run() {
    let (r, driver) = manual();
    let done = Rc::new(WaitChannel::new(0));
    let wait = done.clone();
    let mut waits = r.spawn(async move { patience(800, async move { wait.wait().await }).await });
    settle(&r);
    // The machine stands still for a long time, more than once.
    for _ in 0..7 {
        driver.now.set(driver.now.get() + 1_000_000);
        settle(&r);
        assert!(!waits.is_finished());
    }
    // What came meanwhile is seen before time is up.
    done.signal();
    driver.now.set(driver.now.get() + 1_000_000);
    settle(&r);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let end = std::pin::Pin::new(&mut waits).poll(&mut cx);
    assert!(matches!(end, std::task::Poll::Ready(Some(Ok(())))));

    let late = r.spawn(patience(800, std::future::pending::<()>()));
    for _ in 0..8 {
        settle(&r);
        driver.now.set(driver.now.get() + 150);
    }
    settle(&r);
    let end = r.block_on(PollMode::Sleep, late);
    assert_eq!(end, Some(Err(Overdue { waited: 1200, absent: 400 })));
}

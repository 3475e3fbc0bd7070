//! Work from other threads.

use crate::common::{Threaded, manual, settle};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use weir_reactor::{
    Completion, Handle, PollMode, Reactor, WaitChannel, completion, current_id, handle, send_to,
};

#[test]
fn run_complete_and_wake_reach_the_reactor_in_order() {
    let (r, _) = manual();
    let h = r.handle();
    let (token, done) = r.enter(completion);
    let (tx, rx) = mpsc::channel();
    let tx2 = tx.clone();
    h.run(move || tx.send(1).expect("received below"));
    h.complete(token, Completion::ok(8));
    h.run(move || tx2.send(2).expect("received below"));
    assert!(r.has_work());
    let task = r.spawn(async move { done.await.len });
    settle(&r);
    assert_eq!(rx.try_iter().collect::<Vec<_>>(), [1, 2]);
    assert!(task.is_finished());
    assert_eq!(h.id(), r.enter(current_id));
}

#[test]
fn a_reactor_that_has_ended_takes_no_work_and_its_number_is_not_confused() {
    let (r, _) = manual();
    let old = r.handle();
    drop(r);
    let (new, _) = manual();
    old.run(|| panic!("ran on a dead reactor"));
    send_to(old.id(), || panic!("ran on another reactor"));
    settle(&new);
    assert_ne!(old.id(), new.handle().id());
}

#[test]
fn an_abandoned_reactor_gives_its_number_free_and_drops_nothing() {
    struct Loud;
    impl Drop for Loud {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    // More than there are numbers for at once.
    for _ in 0..1200 {
        let (r, _) = manual();
        let h = r.handle();
        r.spawn(async {
            let _loud = Loud;
            std::future::pending::<()>().await;
        });
        r.turn();
        r.abandon();
        h.run(|| panic!("ran on an abandoned reactor"));
        send_to(h.id(), || panic!("ran on another reactor"));
    }
}

/// One reactor on a thread of its own, until the sender of `stop` goes away.
fn on_thread(
    mode: PollMode,
    start: impl FnOnce(&Reactor) + Send + 'static,
) -> (Handle, impl FnOnce()) {
    let (tx, rx) = mpsc::channel();
    let t = std::thread::spawn(move || {
        let r = Reactor::new(Threaded::new());
        let stop = Rc::new(WaitChannel::new(0));
        let s = stop.clone();
        start(&r);
        // The semaphore belongs to this thread; only its address as a task-local crosses.
        STOP.with(|c| *c.borrow_mut() = Some(stop));
        tx.send(r.handle()).expect("the test waits for it");
        r.block_on(mode, async move { s.wait().await });
    });
    let h = rx.recv().expect("the thread has started");
    let h2 = h.clone();
    (h, move || {
        h2.run(|| STOP.with(|c| c.borrow().as_ref().expect("set at start").signal()));
        t.join().expect("the reactor thread ends well");
    })
}

thread_local! {
    static STOP: std::cell::RefCell<Option<Rc<WaitChannel>>> = const { std::cell::RefCell::new(None) };
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

#[test]
fn two_reactors_on_two_threads_play_ping_pong_through_sleep() {
    const ROUNDS: u64 = 2000;
    for mode in [PollMode::Sleep, PollMode::Adaptive { spin: 20_000 }, PollMode::Busy] {
        let (a, stop_a) = on_thread(mode, |_| {});
        let (b, stop_b) = on_thread(mode, |_| {});
        let (tx, rx) = mpsc::channel();
        fn ball(left: u64, to: Handle, back: Handle, tx: mpsc::Sender<u64>) {
            assert_ne!(handle().id(), to.id());
            if left == 0 {
                tx.send(COUNT.with(Cell::get)).expect("the test waits");
                return;
            }
            COUNT.with(|c| c.set(c.get() + 1));
            let (t, b2) = (to.clone(), back.clone());
            to.run(move || ball(left - 1, b2, t, tx));
        }
        let (a2, b2) = (a.clone(), b.clone());
        a.run(move || ball(ROUNDS, b2, a2, tx));
        let seen = rx.recv_timeout(Duration::from_secs(60)).expect("no wake-up was lost");
        assert_eq!(seen, ROUNDS / 2);
        stop_a();
        stop_b();
    }
}

#[test]
fn a_completion_from_another_thread_ends_a_sleep_without_deadline() {
    let r = Reactor::new(Threaded::new());
    for i in 0..200 {
        let (token, done) = r.enter(completion);
        let h = r.handle();
        let t = std::thread::spawn(move || {
            if i % 3 == 0 {
                std::thread::sleep(Duration::from_micros(50));
            }
            h.complete(token, Completion::ok(i));
        });
        let start = Instant::now();
        let c = r.block_on(PollMode::Sleep, done);
        assert_eq!(c.len, i);
        assert!(start.elapsed() < Duration::from_secs(30));
        t.join().expect("the other thread ends well");
    }
}

#[test]
fn a_waker_works_from_any_thread() {
    let r = Reactor::new(Threaded::new());
    for _ in 0..200 {
        let (tx, rx) = mpsc::channel::<std::task::Waker>();
        let t = std::thread::spawn(move || rx.recv().expect("sent by the task").wake());
        let mut first = true;
        r.block_on(
            PollMode::Sleep,
            std::future::poll_fn(move |cx| {
                if std::mem::take(&mut first) {
                    tx.send(cx.waker().clone()).expect("the thread waits for it");
                    return std::task::Poll::Pending;
                }
                std::task::Poll::Ready(())
            }),
        );
        t.join().expect("the other thread ends well");
    }
}

#[test]
fn many_threads_post_at_once_and_nothing_is_lost() {
    const THREADS: u64 = 4;
    const EACH: u64 = 5000;
    let r = Reactor::new(Threaded::new());
    let sum = Rc::new(Cell::new(0));
    thread_local!(static SUM: Cell<u64> = const { Cell::new(0) });
    let all: Vec<_> = (0..THREADS)
        .map(|_| {
            let h = r.handle();
            std::thread::spawn(move || {
                for _ in 0..EACH {
                    h.run(|| SUM.with(|s| s.set(s.get() + 1)));
                }
            })
        })
        .collect();
    let s = sum.clone();
    r.block_on(PollMode::Sleep, async move {
        while SUM.with(Cell::get) < THREADS * EACH {
            weir_reactor::sleep(100_000).await;
        }
        s.set(SUM.with(Cell::get));
    });
    assert_eq!(sum.get(), THREADS * EACH);
    for t in all {
        t.join().expect("the posting thread ends well");
    }
}

//! One node with several cores: random tasks on semaphores, timers, completions and mailboxes, and the
//! invariants that hold whatever the order.

use crate::{Pass, Run, Wrong};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{MICROS, MILLIS, Prng, SECONDS};
use weir_reactor::{
    Completion, JoinHandle, WaitChannel, complete, completion, current_id, handle, now, run_async,
    send_to, sleep, spawn, timeout,
};
use weir_sim::{Options, World};

/// What the tasks of one core share.
#[derive(Default)]
struct Shared {
    mutex: WaitChannel,
    inside: Cell<u32>,
    pool: WaitChannel,
    lent: Cell<u32>,
    pool_size: u32,
    event: WaitChannel,
    event_set: Cell<bool>,
    barrier: WaitChannel,
    barrier_open: Cell<bool>,
    at_barrier: Cell<u32>,
    running: Cell<u32>,
    steps: Cell<u64>,
    answers: Cell<u64>,
    wrong: RefCell<Option<String>>,
}

impl Shared {
    fn new(pool_size: u32) -> Rc<Shared> {
        Rc::new(Shared {
            mutex: WaitChannel::new(1),
            pool: WaitChannel::new(pool_size),
            pool_size,
            ..Shared::default()
        })
    }

    fn check(&self, right: bool, what: impl FnOnce() -> String) {
        if !right {
            self.wrong.borrow_mut().get_or_insert_with(what);
        }
    }
}

/// Counts a task that is inside something, also when it is dropped there.
struct Inside<'a> {
    count: &'a Cell<u32>,
    by: u32,
    gate: &'a WaitChannel,
}

impl<'a> Inside<'a> {
    fn new(count: &'a Cell<u32>, by: u32, gate: &'a WaitChannel) -> Self {
        count.set(count.get() + by);
        Inside { count, by, gate }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.count.set(self.count.get() - self.by);
        self.gate.signal_n(self.by);
    }
}

async fn in_mutex(s: &Shared, rng: &mut Prng) {
    s.mutex.wait().await;
    let _inside = Inside::new(&s.inside, 1, &s.mutex);
    s.check(s.inside.get() == 1, || "two tasks inside the mutex".to_string());
    linger(rng).await;
}

async fn in_pool(s: &Shared, rng: &mut Prng, n: u32) {
    s.pool.wait_n(n).await;
    let _inside = Inside::new(&s.lent, n, &s.pool);
    let lent = s.lent.get();
    s.check(lent <= s.pool_size, || format!("{lent} of {} units lent out", s.pool_size));
    linger(rng).await;
}

async fn linger(rng: &mut Prng) {
    match rng.below(3) {
        0 => {}
        1 => run_async().await,
        _ => sleep(rng.below(50 * MICROS)).await,
    }
}

/// Asks another core to answer, by its mailbox, with a completion.
async fn ask(s: &Shared, rng: &mut Prng, cores: &[u32]) {
    let to = cores[rng.below(cores.len() as u64) as usize];
    let (token, done) = completion();
    let (back, number) = (handle(), rng.next_u64() as u32 >> 1);
    let delay = rng.below(20 * MICROS);
    send_to(to, move || {
        spawn(async move {
            sleep(delay).await;
            back.complete(token, Completion::ok(number));
        });
    });
    if rng.chance(1, 4) {
        // The answer to a question that nobody remembers must hit nobody else.
        drop(done);
        return;
    }
    let c = done.await;
    s.check(c.len == number, || format!("asked for {number}, answered {}", c.len));
    s.answers.set(s.answers.get() + 1);
}

async fn step(s: &Rc<Shared>, rng: &mut Prng, cores: &[u32]) {
    s.steps.set(s.steps.get() + 1);
    match rng.below(9) {
        0 => in_mutex(s, rng).await,
        1 => {
            let n = rng.between(1, u64::from(s.pool_size)) as u32;
            in_pool(s, rng, n).await;
        }
        2 => {
            // Cancelled at a random moment: queued, satisfied, or inside.
            let n = rng.between(1, u64::from(s.pool_size)) as u32;
            let limit = rng.below(60 * MICROS);
            let _ = timeout(limit, in_pool(s, rng, n)).await;
        }
        3 => {
            let limit = rng.below(40 * MICROS);
            let _ = timeout(limit, in_mutex(s, rng)).await;
        }
        4 => {
            let (d, t) = (rng.below(200 * MICROS), now());
            sleep(d).await;
            let slept = now() - t;
            s.check(slept >= d, || format!("slept {slept} ns of {d}"));
            s.check(slept < d + MILLIS, || format!("overslept: {slept} ns instead of {d}"));
        }
        5 => ask(s, rng, cores).await,
        6 => {
            let (s2, mut fork) = (s.clone(), rng.fork());
            let child: JoinHandle<u32> = spawn(async move {
                in_mutex(&s2, &mut fork).await;
                7
            });
            if rng.chance(1, 2) {
                linger(rng).await;
                child.cancel();
                let cancelled = child.await;
                s.check(cancelled.is_none_or(|v| v == 7), || "a wrong result".to_string());
            } else {
                let joined = child.await;
                s.check(joined == Some(7), || format!("joined {joined:?}"));
            }
        }
        7 => {
            if s.mutex.try_wait() {
                let _inside = Inside::new(&s.inside, 1, &s.mutex);
                s.check(s.inside.get() == 1, || "try_wait let a second one in".to_string());
                linger(rng).await;
            }
        }
        _ => {
            let (token, done) = completion();
            let early = rng.chance(1, 2);
            if early {
                complete(token, Completion::ok(1));
            } else {
                spawn(async move {
                    run_async().await;
                    complete(token, Completion::ok(1));
                });
            }
            s.check(done.await.len == 1, || "a wrong completion".to_string());
        }
    }
}

/// One of the many.
async fn worker(s: Rc<Shared>, mut rng: Prng, cores: Vec<u32>, steps: u64) {
    for _ in 0..steps {
        step(&s, &mut rng, &cores).await;
    }
    // All meet at the barrier; the last opens it for all, and one of them gets the event.
    s.at_barrier.set(s.at_barrier.get() + 1);
    if s.at_barrier.get() == s.running.get() {
        s.barrier_open.set(true);
        s.barrier.signal_all();
    }
    if !s.barrier_open.get() {
        s.barrier.wait().await;
    }
    s.check(s.barrier_open.get(), || "through a closed barrier".to_string());
    if !s.event_set.replace(true) {
        s.event.signal();
    } else {
        // Everyone else waits for the event and passes it on.
        s.event.wait().await;
        s.event.signal();
    }
    s.at_barrier.set(s.at_barrier.get() - 1);
}

pub(super) fn run(run: &Run) -> Result<Pass, Wrong> {
    let w: World = run.world(Options::default());
    let mut rng = w.rng(1);
    let node = w.node_with("node", rng.between(1, 3) as usize);
    let ids: Vec<u32> = (0..node.cores()).map(|c| node.enter_on(c, current_id)).collect();
    let mut all = Vec::new();
    for core in 0..node.cores() {
        let shared = Shared::new(rng.between(1, 6) as u32);
        let tasks = rng.between(1, 12) as u32;
        shared.running.set(tasks);
        for _ in 0..tasks {
            let (s, fork, ids) = (shared.clone(), rng.fork(), ids.clone());
            node.spawn_on(core, worker(s, fork, ids, rng.below(20)));
        }
        all.push(shared);
    }
    let done = || all.iter().all(|s| s.barrier_open.get() && s.at_barrier.get() == 0);
    let wrong = || all.iter().any(|s| s.wrong.borrow().is_some());
    w.run_until(10 * SECONDS, || done() || wrong())?;
    let mut pass = Pass::default();
    let (mut steps, mut answers) = (0, 0);
    if !wrong() {
        w.run_until_idle(SECONDS)?;
    }
    for (core, s) in all.iter().enumerate() {
        if let Some(what) = s.wrong.take() {
            return Err(Wrong(what));
        }
        let counts = (s.mutex.count(), s.pool.count(), s.inside.get(), s.lent.get());
        if counts != (1, s.pool_size, 0, 0) {
            return Err(Wrong(format!("core {core}: units leaked: {counts:?}")));
        }
        let waiting =
            s.mutex.waiting() + s.pool.waiting() + s.event.waiting() + s.barrier.waiting();
        let left = node.reactor(core).figures().tasks;
        if waiting + left > 0 {
            return Err(Wrong(format!("core {core}: {waiting} wait, {left} tasks left")));
        }
        steps += s.steps.get();
        answers += s.answers.get();
    }
    pass.figures = vec![("steps", steps), ("answers from other cores", answers)];
    pass.trace = w.trace_hash();
    Ok(pass)
}

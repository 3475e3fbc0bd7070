//! One copy of a job on one reactor: its I/Os, one task for each that may be in flight.

use super::addresses::Permutation;
use super::pace::Pace;
use super::result::{JobResult, KEPT, OpResult, Sample, VerifyResult};
use super::{Options, Progress};
use crate::client::{BlockClient, ClientError};
use crate::job::{JobSpec, Op, Rw, Span};
use crate::verify::{Ledger, Stamper};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use weir_base::{Nanos, Prng, SECONDS};
use weir_mem::Slice;
use weir_reactor::{JoinHandle, clock, now, sleep_until, spawn, timeout};

/// How long the last I/Os are waited for.
const GRACE: Nanos = 60 * SECONDS;
/// A task lets others run after so many I/Os that completed without waiting.
const AT_ONCE: u32 = 64;
/// How often figures go to whoever watches.
const TELL: Nanos = SECONDS / 10;

/// One volume, or part of it, as a job uses it.
pub struct Lane<C> {
    client: Rc<C>,
    span: Span,
    /// Next block of sequential reads, and of everything else.
    cursor: [Cell<u64>; 2],
    order: Option<Permutation>,
    issued: Cell<u64>,
    limit: Option<u64>,
    ledger: Option<RefCell<Ledger>>,
}

impl<C: BlockClient> Lane<C> {
    /// `span` of the client's volume, for a job as in `spec`. `run` identifies the run in stamps.
    pub fn new(client: Rc<C>, span: Span, spec: &JobSpec, run: u64) -> Lane<C> {
        let limit = spec.limit(span);
        let mut rng = Prng::new(spec.randseed ^ span.start.rotate_left(32));
        Lane {
            client,
            span,
            cursor: [Cell::new(0), Cell::new(0)],
            order: (limit.is_some() && spec.rw.is_random())
                .then(|| Permutation::new(span.blocks, &mut rng)),
            issued: Cell::new(0),
            limit,
            ledger: spec.verify.map(|_| RefCell::new(Ledger::new(span.blocks, run))),
        }
    }

    /// The block of the next I/O; `None` when all are done. With a ledger the block is claimed.
    fn next(&self, random: bool, op: Op, rng: &mut Prng) -> Option<u64> {
        let i = self.issued.get();
        if self.limit.is_some_and(|l| i >= l) {
            return None;
        }
        self.issued.set(i + 1);
        let block = match (&self.order, random) {
            (Some(order), _) => order.at(i),
            (None, true) => rng.below(self.span.blocks),
            (None, false) => {
                let cursor = &self.cursor[usize::from(op != Op::Read)];
                let at = cursor.get();
                cursor.set(if at + 1 >= self.span.blocks { 0 } else { at + 1 });
                at
            }
        };
        Some(match &self.ledger {
            Some(l) => l.borrow_mut().claim(block),
            None => block,
        })
    }

    fn release(&self, block: u64) {
        if let Some(l) = &self.ledger {
            l.borrow_mut().release(block);
        }
    }
}

/// Figures while a job runs.
#[derive(Default)]
struct Figures {
    ops: [OpResult; Op::ALL.len()],
    errors: u64,
    first_error: Option<String>,
    verify: VerifyResult,
}

/// One copy of a job.
pub struct JobTask<C> {
    index: u32,
    spec: JobSpec,
    lanes: Vec<Lane<C>>,
    rng: RefCell<Prng>,
    pace: Option<Pace>,
    figures: RefCell<Figures>,
    /// When measuring began, when the job ends, and when the last I/O that counts ended.
    from: Cell<Nanos>,
    end: Cell<Nanos>,
    last: Cell<Nanos>,
    /// I/Os, bytes and latency since the start, ramp included, for samples and for whoever watches.
    live: [Cell<u64>; 3],
    lost: Cell<bool>,
    out_of_time: Cell<bool>,
}

impl<C: BlockClient> JobTask<C> {
    /// Copy `index` of the job, on these lanes.
    pub fn new(index: u32, spec: &JobSpec, lanes: Vec<Lane<C>>) -> JobTask<C> {
        // Copies must not follow the same path.
        let seed = spec.randseed.wrapping_add(u64::from(index).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        JobTask {
            index,
            spec: spec.clone(),
            lanes,
            rng: RefCell::new(Prng::new(seed)),
            pace: Pace::new(spec.rate, spec.rate_iops, spec.bytes_per_io()),
            figures: RefCell::default(),
            from: Cell::new(0),
            end: Cell::new(Nanos::MAX),
            last: Cell::new(0),
            live: Default::default(),
            lost: Cell::new(false),
            out_of_time: Cell::new(false),
        }
    }

    fn start(&self, now: Nanos) {
        self.from.set(now + self.spec.ramp);
        self.last.set(now + self.spec.ramp);
        let end = self.spec.runtime.map_or(Nanos::MAX, |r| self.from.get().saturating_add(r));
        self.end.set(end);
        if let Some(p) = &self.pace {
            p.start(now);
        }
    }

    fn kind(&self, rng: &mut Prng) -> Op {
        match self.spec.rw {
            Rw::Read | Rw::RandRead => Op::Read,
            Rw::Write | Rw::RandWrite => Op::Write,
            Rw::Trim | Rw::RandTrim => Op::Trim,
            Rw::Nop => Op::Nop,
            Rw::Mixed | Rw::RandMixed => {
                if rng.chance(u64::from(self.spec.rwmixread), 100) {
                    Op::Read
                } else {
                    Op::Write
                }
            }
        }
    }

    #[inline]
    fn record(&self, op: Op, submitted: Nanos, done: Nanos) {
        let latency = done - submitted;
        let bytes = self.spec.bytes_per_io();
        for (cell, n) in self.live.iter().zip([1, bytes, latency]) {
            cell.set(cell.get() + n);
        }
        if done < self.from.get() {
            return;
        }
        self.last.set(done);
        let f = &mut self.figures.borrow_mut().ops[op as usize];
        f.ios += 1;
        f.bytes += bytes;
        f.latency.record(latency);
    }

    fn failed(&self, op: Op, at: u64, e: ClientError) {
        let mut f = self.figures.borrow_mut();
        f.errors += 1;
        f.first_error.get_or_insert_with(|| format!("{} at byte {at}: {e}", op.name()));
        drop(f);
        if e == ClientError::Lost {
            self.lost.set(true);
        }
    }

    fn checked(&self, stamper: &mut Stamper, buf: &Slice, at: u64, must: bool, g: Option<u64>) {
        let mut f = self.figures.borrow_mut();
        let v = &mut f.verify;
        if !must && self.spec.rw.writes() {
            // An earlier run may have left anything there.
            v.unknown += 1;
            return;
        }
        v.checked += 1;
        v.bytes += buf.len() as u64;
        if let Err(bad) = stamper.check(buf, at, g) {
            v.errors += 1;
            if v.bad.len() < KEPT {
                v.bad.push(bad);
            }
        }
    }

    fn stamper(&self) -> Option<Stamper> {
        self.spec.verify.map(|kind| Stamper::new(kind, self.spec.bs, self.spec.randseed))
    }

    /// Does I/Os one after the other until the job is over.
    async fn slot(&self, number: usize) {
        let lane = &self.lanes[number % self.lanes.len()];
        let random = self.spec.rw.is_random();
        let bs = u64::from(self.spec.bs);
        let buf = self.buffer(number);
        let mut stamper = self.stamper();
        let mut at_once = 0;
        let mut t = clock();
        while !self.lost.get() {
            if t >= self.end.get() {
                self.out_of_time.set(true);
                return;
            }
            let (op, block) = {
                let mut rng = self.rng.borrow_mut();
                let op = self.kind(&mut rng);
                (op, lane.next(random, op, &mut rng))
            };
            let Some(block) = block else { return };
            if let Some(p) = &self.pace {
                let due = p.take(t);
                if due > t {
                    if due >= self.end.get() {
                        lane.release(block);
                        self.out_of_time.set(true);
                        return;
                    }
                    sleep_until(due).await;
                    t = clock();
                }
            }
            let at = lane.span.start + block * bs;
            let mut generation = 0;
            if let (Some(s), Some(l), Op::Write) = (&mut stamper, &lane.ledger, op) {
                generation = l.borrow_mut().next_write();
                s.stamp(&buf, at, generation);
                t = clock();
            }
            let c = &*lane.client;
            let (result, waited) = match op {
                Op::Read => watched(c.read(at, buf.clone())).await,
                Op::Write => watched(c.write(at, buf.clone())).await,
                Op::Trim => watched(c.trim(at, bs, buf.clone())).await,
                Op::Nop => watched(c.nop()).await,
            };
            // What was waited for came when this turn took it in; all that goes out in a turn leaves at its end.
            let done = if waited { now() } else { clock() };
            match result {
                // What ends later is not part of the measurement.
                Ok(()) if done <= self.end.get() => self.record(op, t, done),
                Ok(()) => {}
                Err(e) => self.failed(op, at, e),
            }
            t = done;
            if let (Some(s), Some(l)) = (&mut stamper, &lane.ledger) {
                match op {
                    Op::Read if result.is_ok() => {
                        let (must, g) = l.borrow().expected(block);
                        self.checked(s, &buf, at, must, g);
                    }
                    Op::Write => l.borrow_mut().wrote(block, generation, result.is_ok()),
                    _ => {}
                }
                lane.release(block);
                t = clock();
            }
            at_once = if waited { 0 } else { at_once + 1 };
            if at_once == AT_ONCE {
                at_once = 0;
                step_back().await;
                t = clock();
            }
        }
    }

    /// Memory for one I/O, filled with what says nothing and does not compress.
    fn buffer(&self, number: usize) -> Slice {
        let buf = Slice::heap((self.spec.bs as usize).max(512));
        let mut rng = Prng::new(self.spec.randseed ^ (number as u64) << 32 ^ u64::from(self.index));
        let mut part = [0; 512];
        for at in (0..buf.len() - 511).step_by(512) {
            rng.fill(&mut part);
            buf.write_at(at, &part);
        }
        buf
    }

    /// Reads back what this job has written.
    async fn read_back(&self, number: usize) {
        let lane = &self.lanes[number % self.lanes.len()];
        let (Some(ledger), Some(mut stamper)) = (&lane.ledger, self.stamper()) else { return };
        let bs = u64::from(self.spec.bs);
        let buf = Slice::heap(self.spec.bs as usize);
        while !self.lost.get() {
            let from = lane.cursor[0].get();
            let Some(block) = ledger.borrow().next_written(from) else { return };
            lane.cursor[0].set(block + 1);
            let at = lane.span.start + block * bs;
            match lane.client.read(at, buf.clone()).await {
                Ok(()) => {
                    let (must, g) = ledger.borrow().expected(block);
                    self.checked(&mut stamper, &buf, at, must, g);
                    self.live[0].set(self.live[0].get() + 1);
                    self.live[1].set(self.live[1].get() + bs);
                }
                Err(e) => self.failed(Op::Read, at, e),
            }
        }
    }

    fn result(&self, stuck: u64, samples: Vec<Sample>) -> JobResult {
        let f = self.figures.take();
        let end = if self.out_of_time.get() { self.end.get() } else { self.last.get() };
        JobResult {
            index: self.index,
            ops: f.ops,
            runtime: end.saturating_sub(self.from.get()),
            errors: f.errors + stuck,
            first_error: f.first_error.or_else(|| {
                let text = format!("{stuck} I/Os did not end within {} s", GRACE / SECONDS);
                (stuck > 0).then_some(text)
            }),
            stuck,
            lost: self.lost.get(),
            verify: f.verify,
            samples,
        }
    }
}

/// Runs an I/O; tells as well whether it had to wait.
async fn watched<T>(f: impl Future<Output = T>) -> (T, bool) {
    let mut f = pin!(f);
    let mut waited = false;
    std::future::poll_fn(move |cx| match f.as_mut().poll(cx) {
        Poll::Ready(v) => Poll::Ready((v, waited)),
        Poll::Pending => {
            waited = true;
            Poll::Pending
        }
    })
    .await
}

/// Lets other tasks run first.
async fn step_back() {
    let mut first = true;
    std::future::poll_fn(|cx| {
        if std::mem::take(&mut first) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

/// Waits for tasks; gives the number of those that did not end in time.
async fn join_all(mut tasks: Vec<JoinHandle<()>>, until: Nanos) -> u64 {
    let wait = async {
        for t in &mut tasks {
            t.await;
        }
    };
    let left = until.saturating_sub(clock());
    if timeout(left, wait).await.is_ok() {
        return 0;
    }
    let stuck: Vec<_> = tasks.iter().filter(|t| !t.is_finished()).collect();
    stuck.iter().for_each(|t| t.cancel());
    stuck.len() as u64
}

/// Takes samples of a job until it is cancelled.
async fn sample<C: BlockClient>(job: Rc<JobTask<C>>, every: Nanos, out: Rc<RefCell<Vec<Sample>>>) {
    let start = clock();
    let (mut last, mut at) = ([0u64; 3], start);
    loop {
        sleep_until(at + every).await;
        let now = clock();
        let live: [u64; 3] = std::array::from_fn(|i| job.live[i].get());
        let [ios, bytes, latency] = std::array::from_fn(|i| live[i] - last[i]);
        out.borrow_mut().push(Sample { at: now - start, length: now - at, ios, bytes, latency });
        (last, at) = (live, now);
    }
}

/// Runs jobs on the present reactor, all at once, and gives their results in the same order.
///
/// Jobs that write data that can be checked read it back at the end; that is not part of the measurement.
pub async fn run_jobs<C: BlockClient>(
    jobs: Vec<JobTask<C>>,
    options: &Options,
    progress: &Progress,
) -> Vec<JobResult> {
    let jobs: Vec<Rc<JobTask<C>>> = jobs.into_iter().map(Rc::new).collect();
    let mut running = Vec::new();
    let mut samplers = Vec::new();
    let start = clock();
    for job in &jobs {
        job.start(start);
        let mut tasks = Vec::new();
        for number in 0..job.spec.iodepth as usize {
            let job = job.clone();
            tasks.push(spawn(async move { job.slot(number).await }));
        }
        let samples = Rc::new(RefCell::new(Vec::new()));
        if options.sample_every > 0 {
            samplers.push(spawn(sample(job.clone(), options.sample_every, samples.clone())));
        }
        running.push((tasks, samples));
    }
    // Tells whoever watches; borrows, so it runs beside the jobs and not as a task.
    let work = async {
        let mut results = Vec::new();
        for (job, (tasks, samples)) in jobs.iter().zip(running) {
            let until = match job.end.get() {
                Nanos::MAX => Nanos::MAX,
                end => end.saturating_add(GRACE),
            };
            results.push((join_all(tasks, until).await, samples));
        }
        samplers.iter().for_each(JoinHandle::cancel);
        for (job, (stuck, _)) in jobs.iter().zip(&mut results) {
            if job.spec.verify.is_none() || !job.spec.rw.writes() {
                continue;
            }
            job.lanes.iter().for_each(|l| l.cursor[0].set(0));
            let tasks = (0..job.spec.iodepth as usize).map(|number| {
                let job = job.clone();
                spawn(async move { job.read_back(number).await })
            });
            *stuck += join_all(tasks.collect(), Nanos::MAX).await;
        }
        jobs.iter()
            .zip(results)
            .map(|(job, (stuck, samples))| job.result(stuck, samples.take()))
            .collect()
    };
    beside(work, tell(&jobs, progress)).await
}

/// Adds the jobs' figures to `progress` for ever.
async fn tell<C: BlockClient>(jobs: &[Rc<JobTask<C>>], progress: &Progress) {
    let mut last = (0, 0, 0);
    loop {
        weir_reactor::sleep(TELL).await;
        let sum = |i: usize| jobs.iter().map(|j| j.live[i].get()).sum::<u64>();
        let errors = jobs.iter().map(|j| {
            let f = j.figures.borrow();
            f.errors + f.verify.errors
        });
        let now = (sum(0), sum(1), errors.sum::<u64>());
        progress.add(now.0 - last.0, now.1 - last.1, now.2 - last.2);
        last = now;
    }
}

/// Runs `work` to its end, and `other` as long as that lasts.
async fn beside<T>(work: impl Future<Output = T>, other: impl Future<Output = ()>) -> T {
    let (mut work, mut other) = (pin!(work), pin!(other));
    std::future::poll_fn(move |cx| {
        if let Poll::Ready(v) = work.as_mut().poll(cx) {
            return Poll::Ready(v);
        }
        // It never ends.
        let _ = other.as_mut().poll(cx);
        Poll::Pending
    })
    .await
}

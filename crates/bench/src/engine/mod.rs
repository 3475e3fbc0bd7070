//! Runs jobs: threads with a reactor each, on which the jobs' I/Os are tasks.

mod addresses;
mod job;
mod pace;
mod result;
#[cfg(test)]
mod tests;

pub use job::{JobTask, Lane, run_jobs};
pub(crate) use result::per_second;
pub use result::{JobResult, OpResult, Sample, VerifyResult};

use crate::client::{BlockClient, ConnectError};
use crate::job::{JobError, JobSpec};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};
use std::sync::mpsc;
use std::time::Duration;
use weir_reactor::{PollMode, Reactor, sleep};
use weir_uring::{Ring, pin_to_core};

/// One engine thread, as a connector sees it.
pub struct Place {
    /// Its reactor.
    pub reactor: Reactor,
    /// The reactor's driver.
    pub ring: Ring,
    /// Number of this thread, from 0.
    pub worker: usize,
    /// Threads in all.
    pub workers: usize,
    /// Set when a thread has ended before its time.
    gone: Arc<AtomicBool>,
}

impl Place {
    /// The only thread.
    pub fn alone(reactor: Reactor, ring: Ring) -> Place {
        Place { reactor, ring, worker: 0, workers: 1, gone: Arc::default() }
    }

    /// Waits until all threads have come to `meeting`. False: one of them never will.
    pub async fn meet(&self, meeting: &Meeting) -> bool {
        meeting.arrive();
        while !meeting.is_full(self.workers) {
            if self.gone.load(Acquire) {
                return false;
            }
            sleep(LOOK).await;
        }
        true
    }
}

/// Makes clients.
pub trait Connector: Send + Sync + 'static {
    /// What it makes.
    type Client: BlockClient;

    /// Volumes that it can reach.
    fn volumes(&self) -> usize;

    /// Makes clients on the present reactor: for each job (its number and its volumes) one client for
    /// each volume, in that order. Jobs may share clients.
    ///
    /// # Errors
    /// A volume cannot be reached.
    fn connect(
        &self,
        place: &Place,
        jobs: &[(u32, Vec<usize>)],
    ) -> impl Future<Output = Result<Vec<Vec<Rc<Self::Client>>>, ConnectError>>;

    /// Ends the present reactor's connections in order. Called on every thread that connected, when
    /// nothing is in flight on any; the threads' reactors turn until all have returned.
    fn disconnect(&self, place: &Place) -> impl Future<Output = ()>;
}

/// For whoever wants to ask the connector something afterwards.
impl<K: Connector> Connector for Arc<K> {
    type Client = K::Client;

    fn volumes(&self) -> usize {
        K::volumes(self)
    }

    async fn connect(
        &self,
        place: &Place,
        jobs: &[(u32, Vec<usize>)],
    ) -> Result<Vec<Vec<Rc<Self::Client>>>, ConnectError> {
        K::connect(self, place, jobs).await
    }

    async fn disconnect(&self, place: &Place) {
        K::disconnect(self, place).await;
    }
}

/// How to run, besides what the jobs say.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Cores to run on, one thread each. Empty: as many threads as there are jobs, but not more than
    /// cores, bound to none.
    pub cores: Vec<usize>,
    /// Identifies this run in stamps; seconds since 1970 will do.
    pub run: u64,
    /// Nanoseconds between samples of rate and latency; 0: none are taken.
    pub sample_every: u64,
    /// Show a line with the present rate on standard error every second.
    pub progress: bool,
}

/// Why there is no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A volume cannot be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The job does not fit the volume.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A thread or a ring cannot be had.
    #[error("the load generator cannot start: {0}")]
    Start(String),
    /// There are more volumes than I/Os in flight to spread over them.
    #[error("{0} volumes need at least as many I/Os in flight, but there are {1}")]
    TooManyVolumes(usize, u64),
}

/// Figures that grow while jobs run, for whoever watches.
#[derive(Debug, Default)]
pub struct Progress {
    ops: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
}

impl Progress {
    fn add(&self, ops: u64, bytes: u64, errors: u64) {
        self.ops.fetch_add(ops, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        self.errors.fetch_add(errors, Relaxed);
    }
}

/// The volumes that job `job` works on: its own if there are enough jobs, else several.
fn volumes_of(job: u32, spec: &JobSpec, volumes: usize) -> Vec<usize> {
    let n = spec.numjobs as usize;
    if n >= volumes {
        return vec![job as usize % volumes];
    }
    (0..volumes).filter(|v| v % n == job as usize).collect()
}

type Ready = Result<(), RunError>;
type Done = Vec<JobResult>;

/// What every thread needs.
struct Common<K> {
    connector: K,
    spec: JobSpec,
    options: Options,
    progress: Progress,
    /// What the threads wait for: [`WAIT`], then [`GO`] or [`STOP`].
    phase: AtomicU8,
    /// Set when a thread has ended before its time.
    gone: Arc<AtomicBool>,
    /// Threads whose jobs have ended.
    ended: Meeting,
    /// Threads that have no connections any more.
    closed: Meeting,
}

const WAIT: u8 = 0;
const GO: u8 = 1;
const STOP: u8 = 2;
/// How often a thread looks whether the others are ready; outside the measurement.
const LOOK: u64 = weir_base::MILLIS / 5;

/// Where threads wait for each other while their reactors turn: connections may span threads.
#[derive(Debug, Default)]
pub struct Meeting(AtomicUsize);

impl Meeting {
    fn arrive(&self) {
        self.0.fetch_add(1, AcqRel);
    }

    fn is_full(&self, n: usize) -> bool {
        self.0.load(Acquire) >= n
    }
}

/// Runs all copies of a job and gives their results in the order of their numbers.
///
/// # Errors
/// Nothing was measured, and why.
pub fn run<K: Connector>(
    connector: K,
    spec: &JobSpec,
    options: &Options,
) -> Result<Vec<JobResult>, RunError> {
    let volumes = connector.volumes();
    let in_flight = u64::from(spec.numjobs) * u64::from(spec.iodepth);
    if volumes as u64 > in_flight || volumes == 0 {
        return Err(RunError::TooManyVolumes(volumes, in_flight));
    }
    let machine = std::thread::available_parallelism().map_or(1, usize::from);
    let cores: Vec<Option<usize>> = if options.cores.is_empty() {
        vec![None; machine.min(spec.numjobs as usize).max(1)]
    } else {
        options.cores.iter().take(spec.numjobs as usize).map(|c| Some(*c)).collect()
    };
    let workers = cores.len();
    let common = Arc::new(Common {
        connector,
        spec: spec.clone(),
        options: options.clone(),
        progress: Progress::default(),
        phase: AtomicU8::new(WAIT),
        gone: Arc::default(),
        ended: Meeting::default(),
        closed: Meeting::default(),
    });
    let (tell, told) = mpsc::channel::<Ready>();
    let mut threads = Vec::new();
    for (worker, core) in cores.into_iter().enumerate() {
        let (common, tell) = (common.clone(), tell.clone());
        let thread = std::thread::Builder::new()
            .name(format!("weir-bench-{worker}"))
            .spawn(move || work(&common, worker, workers, core, &tell))
            .map_err(|e| RunError::Start(e.to_string()))?;
        threads.push(thread);
    }
    drop(tell);
    let mut failed = None;
    for _ in 0..workers {
        match told.recv() {
            Ok(Ok(())) => {}
            Ok(Err(e)) => failed = failed.or(Some(e)),
            Err(_) => break,
        }
    }
    common.phase.store(if failed.is_none() { GO } else { STOP }, Release);
    let over = Arc::new(AtomicBool::new(false));
    let watcher =
        (options.progress && failed.is_none()).then(|| watch(common.clone(), over.clone()));
    let mut results = Vec::new();
    for t in threads {
        match t.join() {
            Ok(Some(r)) => results.extend(r),
            Ok(None) => {}
            Err(_) => failed = failed.or(Some(RunError::Start("a thread panicked".into()))),
        }
    }
    over.store(true, Relaxed);
    if let Some(w) = watcher {
        // It prints only.
        let _ = w.join();
    }
    match failed {
        Some(e) => Err(e),
        None => {
            results.sort_by_key(|r| r.index);
            Ok(results)
        }
    }
}

/// Prints the present rate every second.
fn watch<K: Connector>(
    common: Arc<Common<K>>,
    over: Arc<AtomicBool>,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let (mut ops, mut bytes, mut tenths, mut seconds) = (0, 0, 0, 0);
        while !over.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(100));
            tenths += 1;
            if tenths < 10 {
                continue;
            }
            tenths = 0;
            seconds += 1;
            let p = &common.progress;
            let (o, b, e) = (p.ops.load(Relaxed), p.bytes.load(Relaxed), p.errors.load(Relaxed));
            let errors = if e > 0 { format!(", {e} errors") } else { String::new() };
            eprint!(
                "\r{}: {seconds} s, {} IOPS, {}{errors}    ",
                common.spec.name,
                crate::units::si((o - ops) as f64),
                crate::units::bandwidth((b - bytes) as f64)
            );
            (ops, bytes) = (o, b);
        }
        eprint!("\r{:70}\r", "");
    })
}

/// Tells the other threads when this one ends, so that none waits for one that ended early by an error or
/// a panic.
struct Seat<'a, K>(&'a Common<K>);

impl<K> Drop for Seat<'_, K> {
    fn drop(&mut self) {
        self.0.gone.store(true, Release);
    }
}

/// One thread, from its start to its results; `None` when it did not get to run.
fn work<K: Connector>(
    common: &Arc<Common<K>>,
    worker: usize,
    workers: usize,
    core: Option<usize>,
    tell: &mpsc::Sender<Ready>,
) -> Option<Done> {
    let _seat = Seat(common);
    let made = match core {
        Some(c) => pin_to_core(c).map_err(|e| format!("it cannot run on core {c}: {e}")),
        None => Ok(()),
    };
    let made = made.and_then(|()| {
        Ring::new().map_err(|e| format!("no io_uring (see sysctl kernel.io_uring_disabled): {e}"))
    });
    let ring = match made {
        Ok(r) => r,
        Err(e) => {
            // Nobody listens only when the run is over already.
            let _ = tell.send(Err(RunError::Start(e)));
            return None;
        }
    };
    let reactor = Reactor::new(Rc::new(ring.clone()));
    let gone = common.gone.clone();
    let place = Rc::new(Place { reactor: reactor.clone(), ring, worker, workers, gone });
    let prepared = {
        let (common, place) = (common.clone(), place.clone());
        let tell = tell.clone();
        reactor.block_on(PollMode::default(), async move {
            let prepared = prepare(&common, &place).await;
            let told = match &prepared {
                Ok(_) => Ok(()),
                Err(e) => Err(e.clone()),
            };
            // Nobody listens only when the run is over already.
            let _ = tell.send(told);
            while common.phase.load(Acquire) == WAIT {
                sleep(LOOK).await;
            }
            prepared.ok().filter(|_| common.phase.load(Acquire) == GO)
        })
    };
    let results = prepared.map(|jobs| {
        let common = common.clone();
        reactor.block_on(common.spec.poll, async move {
            run_jobs(jobs, &common.options, &common.progress).await
        })
    });
    let common = common.clone();
    reactor.block_on(PollMode::default(), async move {
        // Whoever does not come needs nobody's reactor any more.
        place.meet(&common.ended).await;
        common.connector.disconnect(&place).await;
        place.meet(&common.closed).await;
    });
    reactor.shutdown();
    results
}

/// Connects this thread's jobs.
async fn prepare<K: Connector>(
    common: &Common<K>,
    place: &Place,
) -> Result<Vec<JobTask<K::Client>>, RunError> {
    let spec = &common.spec;
    let volumes = common.connector.volumes();
    let mine: Vec<(u32, Vec<usize>)> = (0..spec.numjobs)
        .filter(|j| *j as usize % place.workers == place.worker)
        .map(|j| (j, volumes_of(j, spec, volumes)))
        .collect();
    let clients = common.connector.connect(place, &mine).await?;
    let mut jobs = Vec::new();
    for ((index, volumes), clients) in mine.into_iter().zip(clients) {
        let mut lanes = Vec::new();
        for (v, client) in volumes.iter().zip(clients) {
            let (of, rank) = sharers(spec, common.connector.volumes(), *v, index);
            let g = client.geometry();
            let span = spec.span(g.len, g.block_size, rank, of)?;
            lanes.push(Lane::new(client, span, spec, common.options.run));
        }
        jobs.push(JobTask::new(index, spec, lanes));
    }
    Ok(jobs)
}

/// How many jobs work on a volume, and the rank of one among them.
fn sharers(spec: &JobSpec, volumes: usize, volume: usize, job: u32) -> (u32, u32) {
    let on: Vec<u32> =
        (0..spec.numjobs).filter(|j| volumes_of(*j, spec, volumes).contains(&volume)).collect();
    let rank = on.iter().position(|j| *j == job).unwrap_or(0);
    (on.len() as u32, rank as u32)
}

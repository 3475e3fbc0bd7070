//! What is done about devices by itself, one thing at a time: bringing back, spares, draining, growing.

use super::device::Device;
use super::{Inner, Pool, StoreError, StoreResult};
use crate::format::BLOCK;
use crate::format::superblock::MemberState;
use crate::planted::{Bug, has};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use weir_base::{IoError, IoResult, Nanos, SECONDS};
use weir_reactor::{WaitChannel, now, run_async, sleep, timeout};

/// Slabs that move at the same time: a walk over the maps serves all of them, and a crash forgets all of them.
pub(crate) const BATCH: usize = 64;
/// Pause before something that failed is tried again; it doubles up to the longest.
const PAUSE: Nanos = 30 * SECONDS;
const LONGEST: Nanos = 3600 * SECONDS;

/// What is being done about a pool's devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A device that was away is brought up to date.
    Resync,
    /// Slabs go from a device to others.
    Drain,
    /// Slabs go to a device that has much room, so that the pool can grow.
    Balance,
}

/// How far something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What is done.
    pub work: Work,
    /// Number of the device that it is about.
    pub device: u16,
    /// Bytes copied, or found to be there already, and bytes proved after that.
    pub done: u64,
    /// Bytes in all, as far as that is known: twice what is copied.
    pub total: u64,
}

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Job {
    Resync(u16),
    TakeSpare(u16, u16),
    Drain(u16),
    Dismiss(u16),
    Spread,
}

impl Job {
    fn about(self, e: &StoreError) -> String {
        match self {
            Job::Resync(n) => format!("device {n} is not brought back: {e}"),
            Job::TakeSpare(n, s) => format!("spare {s} does not take the place of device {n}: {e}"),
            Job::Drain(n) | Job::Dismiss(n) => format!("device {n} is not cleared: {e}"),
            Job::Spread => format!("new devices are not made use of: {e}"),
        }
    }
}

/// A job that could not be done.
struct Failed {
    why: String,
    /// When it is tried again, and how long it is left alone if it fails then.
    again: Nanos,
    pause: Nanos,
}

/// The state of upkeep.
pub(crate) struct Upkeep {
    work: WaitChannel,
    /// Signalled when a job is over.
    over: WaitChannel,
    idle: Cell<bool>,
    progress: Cell<Option<Progress>>,
    /// What could not be done.
    failed: RefCell<BTreeMap<Job, Failed>>,
    cancelled: Cell<bool>,
    /// Blocks a second that are copied at most; 0: no limit.
    rate: Cell<u64>,
    /// Blocks copied since the last pause.
    debt: Cell<u64>,
    walks: Cell<u64>,
    lists: Cell<u64>,
    /// How often a device that was removed was not any more.
    returns: Cell<u64>,
    /// Extents of devices that do not give back what is written there: they are taken last.
    shunned: RefCell<BTreeSet<(u64, u32)>>,
    /// The pool may be able to grow, or to be balanced.
    pub(super) spread: Cell<bool>,
    /// Only one change of the set of devices is asked for at a time.
    pub(crate) changes: WaitChannel,
    /// Disks that were prepared to join.
    pub(super) prepared: Cell<u32>,
    closing: Cell<bool>,
    running: Cell<bool>,
}

impl Upkeep {
    pub(crate) fn new(rate: u64) -> Upkeep {
        Upkeep {
            work: WaitChannel::new(1),
            over: WaitChannel::new(0),
            idle: Cell::new(false),
            progress: Cell::new(None),
            prepared: Cell::new(0),
            failed: RefCell::default(),
            cancelled: Cell::new(false),
            rate: Cell::new(rate.div_ceil(BLOCK as u64)),
            debt: Cell::new(0),
            walks: Cell::new(0),
            lists: Cell::new(0),
            returns: Cell::new(0),
            shunned: RefCell::default(),
            spread: Cell::new(true),
            changes: WaitChannel::new(1),
            closing: Cell::new(false),
            running: Cell::new(false),
        }
    }

    /// Goes on as another one did.
    pub(super) fn like(&self, other: &Upkeep) {
        self.rate.set(other.rate.get());
    }

    pub(crate) fn wake(&self) {
        self.idle.set(false);
        self.work.signal();
    }

    /// What has failed is tried again now.
    pub(crate) fn retry(&self) {
        self.failed.borrow_mut().clear();
        self.spread.set(true);
        self.wake();
    }

    /// Somebody has stopped what is to be done about this device.
    pub(super) fn forget(&self, device: u16) {
        if !has(Bug::StoppedIsFailed) {
            self.failed.borrow_mut().retain(|job, _| *job != Job::Resync(device));
        }
        self.wake();
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.set(true);
        self.wake();
    }

    pub(crate) fn next_walk(&self) -> u64 {
        self.walks.set(self.walks.get() + 1);
        self.walks.get()
    }

    /// Dead lists may have gone from dataset to dataset.
    pub(crate) fn lists_change(&self) {
        self.lists.set(self.lists.get() + 1);
    }

    pub(crate) fn lists(&self) -> u64 {
        self.lists.get()
    }

    /// A device does not give back what is written to a block.
    pub(super) fn shun(&self, d: &Device, block: u64) {
        let is_in = |e: &u32| {
            let first = d.layout.extent(*e);
            (first..first + (1 << d.layout.slab_shift)).contains(&block)
        };
        let extent = (0..d.layout.extents).find(is_in);
        self.shunned.borrow_mut().extend(extent.map(|e| (d.id, e)));
    }

    pub(super) fn is_shunned(&self, d: &Device, extent: u32) -> bool {
        self.shunned.borrow().contains(&(d.id, extent))
    }

    pub(crate) fn returns(&self) -> u64 {
        self.returns.get()
    }

    pub(crate) fn progress(&self) -> Option<Progress> {
        self.progress.get()
    }

    pub(crate) fn trouble(&self) -> Option<String> {
        self.failed.borrow().values().next().map(|f| f.why.clone())
    }

    /// Blocks have been copied or proved.
    pub(crate) fn add_done(&self, blocks: u64) {
        self.debt.set(self.debt.get() + blocks);
        if let Some(mut p) = self.progress.get() {
            p.done += blocks * BLOCK as u64;
            p.total = p.total.max(p.done);
            self.progress.set(Some(p));
        }
    }

    pub(super) fn begin(&self, work: Work, device: u16) {
        self.progress.set(Some(Progress { work, device, done: 0, total: 0 }));
    }

    pub(super) fn plan_for(&self, blocks: u64) {
        if let Some(mut p) = self.progress.get() {
            // Each block is copied once and proved once.
            p.total = p.done + 2 * blocks * BLOCK as u64;
            self.progress.set(Some(p));
        }
    }
}

impl Inner {
    /// Whether filling goes on; here it gives way to others, and keeps to its rate.
    pub(crate) async fn upkeep_goes_on(&self) -> IoResult {
        let u = &self.upkeep;
        let pause = (u.debt.get() * SECONDS).checked_div(u.rate.get());
        match pause.filter(|p| *p > 0) {
            Some(pause) => {
                u.debt.set(0);
                sleep(pause).await;
            }
            None => run_async().await,
        }
        self.check_running()?;
        match self.upkeep_is_wanted() {
            true => Ok(()),
            false => Err(IoError::Aborted),
        }
    }

    /// A removal is taken back: what was given up without that device is looked for again, also where all is copied and nothing
    /// says so yet.
    pub(super) fn taken_back(&self, d: &Device) {
        if d.written_off.replace(false) {
            self.upkeep.returns.set(self.upkeep.returns.get() + 1);
            if !has(Bug::ReturnUnseen) {
                self.space.borrow_mut().take_back(d.number);
            }
        }
    }

    /// Nobody has stopped it.
    pub(super) fn upkeep_is_wanted(&self) -> bool {
        !self.upkeep.closing.get() && !self.upkeep.cancelled.get()
    }

    /// The task that looks after the devices.
    pub(crate) async fn upkeeper(self: Rc<Self>) {
        let start = now();
        self.upkeep.running.set(true);
        self.devices.borrow().iter().for_each(|d| d.out_at.set(start));
        loop {
            let u = &self.upkeep;
            while u.work.try_wait() {}
            if u.closing.get() || self.suspended.get().is_some() {
                break;
            }
            let (job, later) = self.next_job();
            let Some(job) = job else {
                u.idle.set(true);
                u.progress.set(None);
                u.over.signal_all();
                match later {
                    Some(at) => {
                        let _ = timeout(at.saturating_sub(now()).max(1), u.work.wait()).await;
                    }
                    None => u.work.wait().await,
                }
                continue;
            };
            u.cancelled.set(false);
            let result = self.run(job).await;
            u.progress.set(None);
            if u.closing.get() || self.suspended.get().is_some() {
                break;
            }
            let before = u.failed.borrow_mut().remove(&job);
            match result {
                // The second: somebody wanted that.
                Ok(()) | Err(StoreError::Io(IoError::Aborted)) => {}
                Err(e) => {
                    let pause = before.map_or(PAUSE, |f| f.pause);
                    let (why, again) = (job.about(&e), now() + pause);
                    let pause = (pause * 2).min(LONGEST);
                    u.failed.borrow_mut().insert(job, Failed { why, again, pause });
                }
            }
            u.over.signal_all();
        }
        self.upkeep.idle.set(true);
        self.upkeep.running.set(false);
        self.upkeep.over.signal_all();
    }

    /// What is to be done now, or when to look again.
    fn next_job(&self) -> (Option<Job>, Option<Nanos>) {
        let (u, t) = (&self.upkeep, now());
        let devices = self.devices.borrow();
        let failed = u.failed.borrow();
        let mut later: Option<Nanos> = None;
        // Whether a job may be done that became due at some time; else when to look again.
        let mut is_due = |job: Job, since: Nanos| {
            let at = failed.get(&job).map_or(since, |f| f.again.max(since));
            if at > t {
                later = Some(later.map_or(at, |l: Nanos| l.min(at)));
            }
            at <= t
        };
        for d in devices.iter().filter(|d| d.state.get() == MemberState::Out && d.disk.is_some()) {
            let job = Job::Resync(d.number);
            let asked = d.asked.get();
            let wanted = self.options.resync && !d.held.get() && !d.draining.get();
            // One that failed may answer again.
            let since = d.failed.get().map_or(0, |_| d.out_at.get() + PAUSE);
            if asked || (wanted && is_due(job, since)) {
                return (Some(job), None);
            }
        }
        for d in devices.iter().filter(|d| d.draining.get()) {
            let job = match self.space.borrow().held_by(d.number) {
                0 if d.leaving.get() && d.state.get() != MemberState::Gone => {
                    Job::Dismiss(d.number)
                }
                0 => continue,
                _ => Job::Drain(d.number),
            };
            if is_due(job, 0) {
                return (Some(job), None);
            }
        }
        let spare = devices.iter().find(|d| d.state.get() == MemberState::Spare && d.usable());
        if let (Some(after), Some(spare)) = (self.options.spare_after, spare) {
            for d in devices.iter() {
                let lost = d.state.get() == MemberState::Out && !d.usable() && !d.draining.get();
                if lost && self.space.borrow().held_by(d.number) > 0 {
                    let job = Job::TakeSpare(d.number, spare.number);
                    if is_due(job, d.out_at.get() + after) {
                        return (Some(job), None);
                    }
                }
            }
        }
        if u.spread.get() && self.standing().1 {
            // What is left of moves that were given up is vacant after a checkpoint.
            let leaves = !self.space.borrow().leaving.is_empty() && !has(Bug::LeavingIsTaken);
            let is_over =
                || self.new_slabs().is_empty() && self.levelling(&BTreeSet::new()).is_empty();
            match !leaves && is_over() {
                true => u.spread.set(false),
                false if is_due(Job::Spread, 0) => return (Some(Job::Spread), None),
                false => {}
            }
        }
        drop(failed);
        // What is over by itself, or by somebody's word, has not failed.
        let at = |n: u16| devices.get(usize::from(n));
        let held = |n| self.space.borrow().held_by(n) > 0;
        let is = |n, state| at(n).is_some_and(|d| d.state.get() == state);
        u.failed.borrow_mut().retain(|job, _| match *job {
            Job::Spread => u.spread.get(),
            Job::Drain(n) => {
                let is_wanted = at(n).is_some_and(|d| d.draining.get());
                (is_wanted || has(Bug::StoppedIsFailed)) && held(n)
            }
            Job::Dismiss(n) => at(n).is_some_and(|d| d.leaving.get()),
            Job::Resync(n) => is(n, MemberState::Out),
            Job::TakeSpare(lost, spare) => {
                is(lost, MemberState::Out) && held(lost) && is(spare, MemberState::Spare)
            }
        });
        (None, later)
    }

    async fn run(self: &Rc<Self>, job: Job) -> StoreResult {
        match job {
            Job::Resync(n) => {
                let Some(d) = self.device(n) else { return Ok(()) };
                self.upkeep.begin(Work::Resync, n);
                let result = self.bring_back(&d).await;
                // Who stops it takes back what was asked for. Who has asked since means the next time.
                let stopped = result.is_err() && self.upkeep.cancelled.get();
                let again = stopped && d.asked.get() && !has(Bug::AskedInVain);
                d.asked.set(again);
                if result.is_err() {
                    if d.state.get() == MemberState::Syncing {
                        d.state.set(MemberState::Out);
                    }
                    d.out_at.set(now());
                    // Who stopped it is not told why it would have failed.
                    if self.upkeep.cancelled.get() {
                        d.held.set(!again);
                        return Err(IoError::Aborted.into());
                    }
                }
                result
            }
            Job::TakeSpare(lost, spare) => {
                // Whatever it was in an earlier life, nothing of that may be believed.
                let _only = self.upkeep.changes.acquire(1).await;
                let held = self.device(spare).filter(|s| s.state.get() == MemberState::Spare);
                let Some(s) = held else { return Ok(()) };
                if let Err(e) = self.wipe_rings(&s).await {
                    self.device_failed(&s, e);
                    return Err(e.into());
                }
                let give = move |i: &Inner| {
                    let (Some(s), Some(d)) = (i.device(spare), i.device(lost)) else { return };
                    // It may be back meanwhile.
                    let lost =
                        d.state.get() == MemberState::Out && !d.usable() && !d.draining.get();
                    if s.state.get() == MemberState::Spare && s.usable() && lost {
                        s.state.set(MemberState::InSync);
                        d.draining.set(true);
                        i.upkeep.spread.set(true);
                    }
                };
                self.act(Box::new(give)).await?;
                // That the other one is not brought back, for example, is of no matter any more.
                self.upkeep.retry();
                Ok(())
            }
            Job::Drain(n) => {
                self.upkeep.begin(Work::Drain, n);
                self.clear(n).await
            }
            Job::Dismiss(n) => {
                // The disk may be added again as soon as it is not listed any more.
                let _only = self.upkeep.changes.acquire(1).await;
                // Somebody may have stopped that meanwhile.
                let wanted =
                    |d: &Device| d.draining.get() && d.leaving.get() || has(Bug::DismissedUnasked);
                match self.device(n).is_some_and(|d| wanted(&d)) {
                    true => self.dismiss(n).await,
                    false => Ok(()),
                }
            }
            Job::Spread => self.spread().await,
        }
    }
}

impl Inner {
    /// Ends upkeep; what is under way is given up, and goes on when the pool is opened again.
    pub(crate) async fn end_upkeep(&self) {
        let u = &self.upkeep;
        u.closing.set(true);
        u.wake();
        while u.running.get() {
            u.over.wait().await;
        }
    }
}

impl Pool {
    /// Brings every device back that is out of sync and answers. It goes on in the background;
    /// [`settled`](Pool::settled) waits for it. A device that failed is looked at again, and one that had a history of
    /// its own (the pool was opened by force without it, and with it) loses that.
    ///
    /// # Errors
    /// No device is out of sync, or the pool cannot be written.
    pub async fn resync(&self) -> StoreResult {
        let i = &self.0;
        i.check_running()?;
        let mut some = false;
        for d in i.devices.borrow().iter() {
            // One that was removed leaves, whether it answers just now or not.
            let is_removed = d.written_off.get() && !has(Bug::RemovalForgotten);
            // One that is not brought back any more may not be out of service again yet.
            let stops = i.upkeep.cancelled.get() && d.state.get() == MemberState::Syncing;
            let is_out = stops || d.state.get() == MemberState::Out;
            if is_out && d.disk.is_some() && !is_removed {
                d.held.set(false);
                d.asked.set(true);
                some = true;
            }
        }
        if !some {
            return Err(StoreError::State(
                "no device that is there is out of sync: nothing has to be brought back; for a device \
                 that is missing, plug it in and attach it"
                    .into(),
            ));
        }
        i.upkeep.retry();
        Ok(())
    }

    /// Waits until nothing more is done about devices, and says why if something could not be done.
    ///
    /// # Errors
    /// Something could not be done; [`Status::trouble`](super::Status::trouble) says the same.
    pub async fn settled(&self) -> StoreResult {
        let u = &self.0.upkeep;
        while !u.idle.get() {
            self.0.check_running()?;
            u.over.wait().await;
        }
        self.0.check_running()?;
        match u.trouble() {
            Some(t) => Err(StoreError::Pool(t)),
            None => Ok(()),
        }
    }

    /// Bytes a second that copying from device to device takes from now on at most; 0: as fast as possible.
    pub fn set_fill_rate(&self, bytes: u64) {
        self.0.upkeep.rate.set(bytes.div_ceil(BLOCK as u64));
        self.0.upkeep.debt.set(0);
    }
}

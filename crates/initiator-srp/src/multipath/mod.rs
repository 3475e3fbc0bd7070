//! One logical unit over several sessions: when a path fails, its commands are sent over another.

mod config;
mod path;

pub use config::{MultipathConfig, PathPolicy};
pub use path::PathCondition;

use crate::channel::Outcome;
use crate::error::Error;
use crate::queue::{Name, Queue, Unit, harmless, repeatable};
use crate::session::PathState;
use path::{Path, refused};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use weir_base::{Nanos, SECONDS};
use weir_mem::Slice;
use weir_proto_scsi::Lun;
use weir_proto_scsi::initiator::Cdb;
use weir_reactor::{WaitChannel, now, sleep, spawn_task, timeout};

/// What an operation does to the medium; says when it may be sent a second time, over another path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// Changes nothing: always.
    Always,
    /// Has the same effect when it is done twice in a row: once the first can no longer be done.
    Settled,
    /// Must not be done twice: only if the first was not done.
    Never,
}

impl Repeat {
    /// That of a command.
    pub fn of(cdb: &[u8]) -> Repeat {
        match (harmless(cdb), repeatable(cdb)) {
            (true, _) => Repeat::Always,
            (false, true) => Repeat::Settled,
            (false, false) => Repeat::Never,
        }
    }
}

/// What is known of a path, for displays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathInfo {
    /// What it is good for.
    pub condition: PathCondition,
    /// State of its session.
    pub session: PathState,
    /// The unit's number there.
    pub lun: Option<Lun>,
    /// Commands sent over it.
    pub commands: u64,
    /// Commands that failed because of it.
    pub failures: u64,
}

struct Inner {
    naa: Vec<u8>,
    config: MultipathConfig,
    paths: Vec<Path>,
    active: Cell<usize>,
    switches: Cell<u64>,
    /// Why a path was last left.
    last_error: RefCell<Option<Error>>,
    /// A look at the paths has ended.
    looked: WaitChannel,
    /// Wakes the task that looks at the paths.
    kick: Rc<WaitChannel>,
}

/// A logical unit that is reached over one or more paths; a handle of the present reactor.
///
/// Paths are sessions to different target ports, or from different initiator ports; the unit is recognised by
/// its NAA designator, whatever its number on each, again after every new login and after every unit attention that may
/// mean another unit, before anything is sent to its number. Commands go over paths
/// whose port is active/optimized, else over active/non-optimized ones; standby and unavailable ones are
/// looked at, and used when they become active. All paths are looked at every
/// [`check_every`](MultipathConfig::check_every).
///
/// A command leaves a path when the session fails fast ([`fast_io_fail`](crate::SessionConfig::fast_io_fail),
/// which should be short here), when it took too long as often as it was tried and was aborted, or when the
/// unit says that it cannot be used there. It is sent again over the next path when that is safe; see
/// [`Repeat`] and [`settle`](MultipathConfig::settle).
pub struct Multipath(Rc<Inner>);

impl Drop for Multipath {
    fn drop(&mut self) {
        self.0.kick.signal_all();
    }
}

impl Multipath {
    /// Finds the unit with this NAA designator on each path. Paths that are down now are used once they are up.
    ///
    /// # Errors
    /// No path has the unit, or two paths are from one port to the same port of a target, which would end
    /// each other.
    pub async fn open(
        queues: Vec<Queue>,
        naa: &[u8],
        config: MultipathConfig,
    ) -> Result<Multipath, Error> {
        for (i, a) in queues.iter().enumerate() {
            let (port, target) = a.ports();
            if !target.is_zero() && queues[..i].iter().any(|b| b.ports() == (port, target)) {
                let what = format!("two paths from port {port} to port {target} end each other");
                return Err(Error::Invalid(what));
            }
        }
        let kick = Rc::new(WaitChannel::new(0));
        let unit = Unit::new(Name::Naa(naa.to_vec()), &queues);
        let inner = Rc::new(Inner {
            naa: naa.to_vec(),
            paths: queues.into_iter().map(|q| Path::new(q, unit.clone())).collect(),
            config,
            active: Cell::new(0),
            switches: Cell::new(0),
            last_error: RefCell::default(),
            looked: WaitChannel::new(0),
            kick: kick.clone(),
        });
        inner.look().await;
        let Some(first) = inner.best() else {
            return Err(Error::Invalid("no path has a unit with this designator".into()));
        };
        inner.active.set(first);
        spawn_task(watch(Rc::downgrade(&inner), kick));
        Ok(Multipath(inner))
    }

    /// Number of the path that the last command took, in the order in which they were given.
    pub fn active(&self) -> usize {
        self.0.active.get()
    }

    /// How often commands went from one path to another; turns of round robin do not count.
    pub fn switches(&self) -> u64 {
        self.0.switches.get()
    }

    /// Why a path was last left.
    pub fn last_error(&self) -> Option<Error> {
        self.0.last_error.borrow().clone()
    }

    /// The paths, in the order in which they were given.
    pub fn paths(&self) -> Vec<PathInfo> {
        let info = |p: &Path| PathInfo {
            condition: p.condition.get(),
            session: p.queue.state(),
            lun: p.lun.get(),
            commands: p.commands.get(),
            failures: p.failures.get(),
        };
        self.0.paths.iter().map(info).collect()
    }

    /// Fills `buf` from `offset` (bytes).
    ///
    /// # Errors
    /// What the target said, or that no path is left.
    pub async fn read(&self, offset: u64, buf: Slice) -> Result<(), Error> {
        let op = async |q: &Queue, lun| q.read(lun, offset, buf.clone()).await;
        self.run(Repeat::Always, op).await
    }

    /// Writes `buf` at `offset` (bytes).
    ///
    /// # Errors
    /// What the target said, or that no path is left.
    pub async fn write(&self, offset: u64, buf: Slice, fua: bool) -> Result<(), Error> {
        let op = async |q: &Queue, lun| q.write(lun, offset, buf.clone(), fua).await;
        self.run(Repeat::Settled, op).await
    }

    /// Everything written before is on the medium afterwards.
    ///
    /// # Errors
    /// What the target said, that no path is left, or [`Error::LostCache`] when something written before, by whichever
    /// path, reactor or handle, is lost with the target's power. Each handle tells a loss once.
    pub async fn flush(&self) -> Result<(), Error> {
        self.run(Repeat::Always, async |q: &Queue, lun| q.flush(lun).await).await
    }

    /// Gives ranges (offset and length in bytes) back.
    ///
    /// # Errors
    /// What the target said, or that no path is left.
    pub async fn unmap(&self, ranges: &[(u64, u64)]) -> Result<(), Error> {
        self.run(Repeat::Settled, async |q: &Queue, lun| q.unmap(lun, ranges).await).await
    }

    /// The range reads as zeros afterwards.
    ///
    /// # Errors
    /// What the target said, or that no path is left.
    pub async fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> Result<(), Error> {
        let op = async |q: &Queue, lun| q.write_zeroes(lun, offset, len, unmap).await;
        self.run(Repeat::Settled, op).await
    }

    /// Replaces what is at `offset` (bytes) by the second half of `both`, if it is equal to the first half;
    /// `false` when it is not.
    ///
    /// # Errors
    /// What the target said, that no path is left, or that it may have been done: [`Error::InDoubt`],
    /// [`Error::TimedOut`].
    pub async fn compare_and_write(&self, offset: u64, both: Slice) -> Result<bool, Error> {
        let op = async |q: &Queue, lun| q.compare_and_write(lun, offset, both.clone()).await;
        self.run(Repeat::Never, op).await
    }

    /// Runs a command until it ends with GOOD, as [`Queue::execute`] does.
    ///
    /// # Errors
    /// What the target said, that no path is left, or that it may have been done and must not be done twice.
    pub async fn execute(
        &self,
        cdb: &Cdb,
        data_out: &[Slice],
        data_in: &[Slice],
    ) -> Result<Outcome, Error> {
        let op = async |q: &Queue, lun| q.execute(lun, cdb, data_out, data_in).await;
        self.run(Repeat::of(cdb.as_bytes()), op).await
    }

    /// As [`execute`](Multipath::execute) for a command that moves all of its data.
    ///
    /// # Errors
    /// As there, or [`Error::Short`].
    pub async fn transfer(
        &self,
        cdb: &Cdb,
        data_out: &[Slice],
        data_in: &[Slice],
    ) -> Result<(), Error> {
        let op = async |q: &Queue, lun| q.transfer(lun, cdb, data_out, data_in).await;
        self.run(Repeat::of(cdb.as_bytes()), op).await
    }

    /// As [`Queue::given_up`], over all paths.
    pub async fn given_up(&self) {
        for p in &self.0.paths {
            p.queue.given_up().await;
        }
    }

    /// Runs an operation over a good path; over others when paths fail under it and `repeat` allows that.
    ///
    /// # Errors
    /// What the operation failed with, or that no path is left.
    pub async fn run<T>(
        &self,
        repeat: Repeat,
        op: impl AsyncFn(&Queue, Lun) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let inner = &*self.0;
        // A path may be found good and fail under the command again and again.
        let mut left = 2 * inner.paths.len() + 2;
        loop {
            let (path, lun) = match inner.pick() {
                Some(p) => p,
                None => Box::pin(inner.wait_for_path()).await?,
            };
            path.commands.set(path.commands.get() + 1);
            let e = match op(&path.queue, lun).await {
                Err(e) if e.is_path() || e.sense().and_then(refused).is_some() => e,
                other => return other,
            };
            path.failed(&e);
            inner.left(&e);
            left -= 1;
            if left == 0 {
                return Err(e);
            }
            match (repeat, &e) {
                (Repeat::Never, Error::TimedOut | Error::LostUnderWay { .. }) => return Err(e),
                (Repeat::Settled, Error::LostUnderWay { at }) => {
                    Box::pin(inner.settle(path, *at)).await;
                }
                // The target says that it is over. Its word is not enough for data that another may write next.
                (Repeat::Settled, Error::TimedOut) => sleep(inner.config.settle).await,
                _ => {}
            }
        }
    }
}

impl Inner {
    /// The path for a command.
    #[inline]
    fn pick(&self) -> Option<(&Path, Lun)> {
        let at = self.active.get();
        let i = match self.config.policy {
            // Better ones are gone over to by whoever looks at the paths.
            PathPolicy::ActivePassive if self.paths[at].rank().is_some() => at,
            PathPolicy::ActivePassive => self.best()?,
            PathPolicy::RoundRobin => {
                let n = self.paths.len();
                let best = self.paths.iter().filter_map(Path::rank).min()?;
                (1..=n).map(|i| (at + i) % n).find(|i| self.paths[*i].rank() == Some(best))?
            }
        };
        if i != at {
            self.go(i);
        }
        let path = &self.paths[i];
        path.lun.get().map(|l| (path, l))
    }

    /// The best path; of equals the first.
    fn best(&self) -> Option<usize> {
        let rank = |i: &usize| self.paths[*i].rank().map(|r| (r, *i));
        (0..self.paths.len()).filter_map(|i| rank(&i)).min().map(|(_, i)| i)
    }

    fn go(&self, to: usize) {
        let from = self.active.replace(to);
        if self.config.policy == PathPolicy::ActivePassive {
            self.switches.set(self.switches.get() + 1);
            let why = self.last_error.borrow().as_ref().map(ToString::to_string);
            tracing::warn!(from, to, last_error = why, "path changed");
        }
    }

    /// A path was left.
    #[cold]
    fn left(&self, e: &Error) {
        *self.last_error.borrow_mut() = Some(e.clone());
        if self.config.policy == PathPolicy::RoundRobin {
            self.switches.set(self.switches.get() + 1);
        }
        self.kick.signal_all();
    }

    /// Waits until commands run on some path.
    async fn wait_for_path(&self) -> Result<(&Path, Lun), Error> {
        let until = now() + self.config.no_path;
        loop {
            self.kick.signal_all();
            if self.paths.iter().all(|p| p.queue.state() == PathState::Closed) {
                return Err(Error::Closed);
            }
            let Some(patience) = until.checked_sub(now()).filter(|p| *p > 0) else {
                return Err(self.last_error.borrow().clone().unwrap_or(Error::PathDown));
            };
            let _ = timeout(patience, self.looked.wait()).await;
            if let Some(p) = self.pick() {
                return Ok(p);
            }
        }
    }

    /// Waits until a command that was under way on this path when its connection ended, at `at`, cannot be
    /// done any more.
    async fn settle(&self, path: &Path, at: Nanos) {
        let until = at.saturating_add(self.config.settle);
        while path.queue.state() != PathState::Running {
            match until.checked_sub(now()).filter(|p| *p > 0) {
                Some(left) => sleep(left.min(self.config.look())).await,
                None => return,
            }
        }
    }

    /// Looks at all paths. One that does not answer is given a few times the pause between two looks: a busy
    /// machine is no lost path.
    async fn look(&self) {
        for p in &self.paths {
            let was = p.condition.get();
            let patience = (5 * self.config.check_every).max(SECONDS);
            if timeout(patience, p.check(&self.naa)).await.is_err() {
                p.set(PathCondition::Down);
            }
            if was != p.condition.get() {
                tracing::info!(was = ?was, now = ?p.condition.get(), target = %p.queue.ports().1, "path");
            }
        }
        self.fail_back();
        self.looked.signal_all();
    }

    /// Goes to a path that is better than the present one, once it has been good for long enough.
    fn fail_back(&self) {
        let at = self.active.get();
        if self.config.policy != PathPolicy::ActivePassive {
            return;
        }
        let Some(best) = self.best().filter(|b| *b != at) else { return };
        let ripe = |after| now() >= self.paths[best].good_since.get().saturating_add(after);
        let worse = self.paths[at].rank().is_some_and(|r| Some(r) > self.paths[best].rank());
        // A better access state is the target's own wish.
        if worse || self.config.failback.is_some_and(ripe) {
            self.go(best);
        }
    }

    fn all_good(&self) -> bool {
        self.paths.iter().all(|p| p.rank().is_some())
    }
}

/// Looks at the paths every now and then, until nobody has the unit any more.
async fn watch(inner: Weak<Inner>, kick: Rc<WaitChannel>) {
    let mut next = 0;
    loop {
        let pause = {
            let Some(i) = inner.upgrade() else { return };
            if next == 0 {
                next = now() + i.config.check_every;
            }
            let all_closed = i.paths.iter().all(|p| p.queue.state() == PathState::Closed);
            if all_closed {
                i.looked.signal_all();
                return;
            }
            // What is down is looked at as soon as it is logged in; the rest in its time.
            let back = i.paths.iter().any(|p| p.awaits_look());
            if back || now() >= next {
                i.look().await;
                next = now() + i.config.check_every;
            }
            if i.all_good() { next.saturating_sub(now()).max(1) } else { i.config.look() }
        };
        let _ = timeout(pause, kick.wait()).await;
    }
}

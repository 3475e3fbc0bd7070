//! Moving a volume's data to another volume under I/O.
//!
//! A [`Migration`] joins a source and a destination and lives on one reactor; hosts on all reactors reach it by
//! its [`entrance`](Migration::entrance). The source is the volume until the cut-over: reads go to it, and
//! a change of it is also made at the destination where a copier has been already. Locks of ranges, which are plain
//! code on one reactor, put changes and copies of the same bytes in one order for both sides. What fails at the
//! destination ends the migration and is never seen by a host.
//!
//! A destination that is only slow fails nothing. When it has not answered for [`Plan::patience`] it is *behind*: hosts
//! go on with the source alone, what they change is marked, and nothing new is sent to the destination before everything
//! that it has not answered has come to its end. Then, after a rest, changes go to both sides again, what was marked
//! is copied (and compared) once more, and the migration goes on. So the source is right at any time, and hosts wait
//! for the destination no longer than for its patience.
//!
//! When everything is there, and has been read back and compared, the migration is [`Phase::Ready`]. The owner then
//!
//! 1. [holds](Migration::hold) I/O back: what is under way ends, and both sides are flushed;
//! 2. makes it durable that the destination is the volume (a crash before that leaves the source the volume, one
//!    after it the destination, and they hold the same);
//! 3. lets I/O go on: to the destination ([`Held::moved`]), or, when step 2 failed, as before
//!    ([`Held::stays`], or [`Held::doubtful`] when it is not known what is durable).
//!
//! Only the cut-over flushes the destination. A crash before ends the migration, and the next one starts over with a
//! destination made anew; so nothing there has to be durable earlier, and hosts' flushes cost what they cost without
//! a migration.

mod copier;
mod mirror;
mod ranges;
mod slow;
mod stale;
#[cfg(test)]
mod tests;

use crate::planted::{Bug, has};
use crate::remote::{Entrance, Home};
use mirror::Mirror;
use ranges::Ranges;
use slow::Lag;
use stale::Stale;
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::{Rc, Weak};
use weir_base::{Nanos, SECONDS};
use weir_block::{IoFuture, Junction, Quiesced, SwapError, Volume, make_durable};
use weir_mem::BufPool;
use weir_reactor::{now, spawn_task, timeout};

/// What is to be done.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Bytes to move: what hosts see of the source.
    pub len: u64,
    /// The destination reads as zeros everywhere. If not, zeros are written to it where the source is empty.
    pub clean: bool,
    /// Read both sides and compare before the cut-over.
    pub verify: bool,
    /// Bytes a second at most that are read from the source; 0 for as many as possible.
    pub rate: u64,
    /// Most bytes copied by one I/O, a multiple of 4096: changes of them wait that long.
    pub chunk: u64,
    /// Nanoseconds that the destination may take for an I/O, as a host waits for it; then hosts go on without it
    /// until it has caught up.
    pub patience: Nanos,
}

impl Plan {
    /// A good size of pieces in bytes.
    pub const CHUNK: u64 = 256 << 10;
    /// A good time to wait for the destination in nanoseconds: longer than a healthy device takes with a queue in front
    /// of it, shorter than hosts wait.
    pub const PATIENCE: Nanos = 4 * SECONDS;
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// I/O passes; nothing is copied yet.
    Waiting,
    /// The source is being copied.
    Copying,
    /// Both sides are being compared.
    Verifying,
    /// Both are the same and stay so; only the cut-over is missing.
    Ready,
    /// The destination is the volume.
    Moved,
    /// Something failed: the source alone is the volume.
    Failed,
    /// It was ended: the source alone is the volume.
    Stopped,
}

/// How a migration stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// How far it is.
    pub phase: Phase,
    /// Why it failed.
    pub reason: Option<String>,
    /// Bytes copied, or compared, or found empty, in this phase.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
    /// Bytes that were really read and written, since it began.
    pub copied: u64,
    /// Bytes a second at most; 0 for no limit.
    pub rate: u64,
    /// Nothing is copied for now.
    pub paused: bool,
    /// What it waits for: hosts go on without a destination that does not answer.
    pub waits: Option<String>,
}

/// Why a migration cannot begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    /// Hosts would notice the destination.
    Swap(SwapError),
    /// The destination is shorter than what is to be moved: its bytes.
    Short(u64),
}

impl std::fmt::Display for Unfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unfit::Swap(e) => e.fmt(f),
            Unfit::Short(len) => write!(f, "the destination has {len} bytes only"),
        }
    }
}

impl std::error::Error for Unfit {}

struct Inner {
    source: Rc<dyn Volume>,
    /// Its I/O goes on at home when a host no longer waits for it.
    destination: Rc<dyn Volume>,
    /// The last loss below the destination when the migration began.
    since: u64,
    plan: Plan,
    ranges: Ranges,
    phase: Cell<Phase>,
    reason: RefCell<Option<String>>,
    /// Changes below this reach the destination.
    frontier: Cell<u64>,
    /// Comparing has come this far.
    checked: Cell<u64>,
    /// Everything was compared once.
    verified: Cell<bool>,
    /// A copier is at work.
    busy: Cell<bool>,
    done: Cell<u64>,
    copied: Cell<u64>,
    rate: Cell<u64>,
    paused: Cell<bool>,
    /// When the next piece may be read.
    due: Cell<Nanos>,
    /// Ranges that may differ, since a change failed at the source or the destination was behind.
    stale: Stale,
    /// The destination does not answer.
    lag: Cell<Option<Lag>>,
    /// Where the destination is at home.
    behind: Weak<Home>,
    me: Weak<Inner>,
    /// Either side may be the volume after a crash.
    doubtful: Cell<bool>,
    buffers: OnceCell<BufPool>,
}

impl Inner {
    /// Flushes the destination. Nothing that it was given is made good there if a flush of somebody else was told that it is lost.
    fn settles(&self) -> IoFuture<'_> {
        if has(Bug::LossUnheeded) {
            return self.destination.flush();
        }
        IoFuture::new(make_durable(&*self.destination, self.since))
    }

    fn is_mirroring(&self) -> bool {
        !matches!(self.phase.get(), Phase::Moved | Phase::Failed | Phase::Stopped)
    }

    fn phase(&self, phase: Phase) {
        if self.is_mirroring() && self.phase.replace(phase) != phase {
            self.done.set(0);
        }
    }

    fn fail(&self, why: String) {
        if self.is_mirroring() {
            *self.reason.borrow_mut() = Some(why);
            // In doubt there is no side to fall back on: what the destination cannot do fails.
            if !self.doubtful.get() {
                self.phase.set(Phase::Failed);
            }
        }
    }
}

/// A volume on its way. Dropping it closes the entrance; what is under way goes on to its end.
pub struct Migration {
    inner: Rc<Inner>,
    junction: Rc<Junction>,
    /// What the junction stands for in the end.
    target: Rc<dyn Volume>,
    front: Home,
    behind: Rc<Home>,
}

impl Migration {
    /// Joins two volumes of the present reactor. I/O passes to the source until it [begins](Migration::begin).
    ///
    /// # Errors
    /// Hosts would notice the destination: it has other blocks, is shorter, or promises less.
    pub fn new(
        source: Rc<dyn Volume>,
        destination: Rc<dyn Volume>,
        plan: Plan,
    ) -> Result<Migration, Unfit> {
        let len = destination.geometry().len;
        if len < plan.len {
            return Err(Unfit::Short(len));
        }
        let behind = Rc::new(Home::open(destination.clone()));
        let rate = plan.rate;
        let there = behind.entrance().handle();
        let inner = Rc::new_cyclic(|me| Inner {
            source,
            since: there.lost(),
            destination: there,
            stale: Stale::new(plan.len, plan.chunk),
            plan,
            ranges: Ranges::default(),
            phase: Cell::new(Phase::Waiting),
            reason: RefCell::default(),
            frontier: Cell::new(0),
            checked: Cell::new(0),
            verified: Cell::new(false),
            busy: Cell::new(false),
            done: Cell::new(0),
            copied: Cell::new(0),
            rate: Cell::new(rate),
            paused: Cell::new(false),
            due: Cell::new(0),
            lag: Cell::new(None),
            behind: Rc::downgrade(&behind),
            me: me.clone(),
            doubtful: Cell::new(false),
            buffers: OnceCell::new(),
        });
        let mirror: Rc<dyn Volume> = Rc::new(Mirror(inner.clone()));
        let junction = Rc::new(Junction::new(mirror));
        junction.check(&*destination).map_err(Unfit::Swap)?;
        let front = Home::open(junction.clone());
        Ok(Migration { inner, junction, target: destination, front, behind })
    }

    /// What hosts' I/O goes through, on every reactor: [`Entrance::handle`], also at home, so that an I/O that a host
    /// gives up is done on both sides or on none.
    pub fn entrance(&self) -> Entrance {
        self.front.entrance()
    }

    /// Starts to copy. All of the volume's I/O comes by the entrance from now on.
    pub fn begin(&self) {
        if self.inner.phase.get() == Phase::Waiting {
            self.inner.phase(Phase::Copying);
            spawn_task(self.inner.clone().copy_all());
        }
    }

    /// How it stands.
    pub fn status(&self) -> Status {
        let i = &self.inner;
        Status {
            phase: i.phase.get(),
            reason: i.reason.borrow().clone(),
            done: i.done.get().min(i.plan.len),
            total: i.plan.len,
            copied: i.copied.get(),
            rate: i.rate.get(),
            paused: i.paused.get(),
            waits: i.lagging(),
        }
    }

    /// Bytes a second at most from now on; 0 for no limit.
    pub fn set_rate(&self, rate: u64) {
        self.inner.rate.set(rate);
        self.inner.due.set(now());
    }

    /// Whether copying waits.
    pub fn set_paused(&self, paused: bool) {
        self.inner.paused.set(paused);
    }

    /// The source alone is the volume from now on, without I/O to the destination.
    pub fn stop(&self) {
        if self.inner.is_mirroring() {
            self.inner.phase.set(Phase::Stopped);
        }
    }

    /// I/Os that the destination has not ended, among them such that nobody waits for any more.
    pub fn under_way(&self) -> usize {
        self.behind.busy()
    }

    /// Holds I/O back and brings both sides to the same durable state. The destination has `limit` nanoseconds to be flushed
    /// before that; I/O is held back for so long at most.
    ///
    /// # Errors
    /// It is not ready, or not any more (see [`status`](Migration::status)), or I/O did not end in time. Everything
    /// goes on as before; it may be tried again when it is ready.
    pub async fn hold(&self, limit: Nanos) -> Result<Held, String> {
        let i = &self.inner;
        let ready = || match i.phase.get() {
            Phase::Ready => Ok(()),
            _ => Err("it is not ready".to_string()),
        };
        if i.doubtful.get() && i.phase.get() == Phase::Copying {
            // In doubt a copy that failed has not ended the migration: it is made once more.
            spawn_task(i.clone().copy_all());
        }
        ready()?;
        // Most of what is to be flushed, before anybody has to wait for it.
        self.flush_destination(limit).await?;
        let end = now() + limit;
        let held = timeout(limit, self.junction.quiesce()).await;
        let held = held.map_err(|_| "I/O under way did not end in time".to_string())?;
        let quiesced = held.map_err(|e| e.to_string())?;
        if !i.stale.is_empty() && !has(Bug::FailedChangeForgotten) {
            i.phase(Phase::Copying);
            spawn_task(i.clone().copy_all());
        }
        ready()?;
        self.flush_destination(end.saturating_sub(now())).await?;
        ready()?;
        self.junction.check(&*self.target).map_err(|e| e.to_string())?;
        Ok(Held { inner: i.clone(), target: self.target.clone(), quiesced })
    }

    async fn flush_destination(&self, limit: Nanos) -> Result<(), String> {
        if has(Bug::CutOverUnflushed) {
            return Ok(());
        }
        let i = &self.inner;
        let late = Cell::new(false);
        let flush = i.bounded(i.settles(), &late);
        // In doubt it is waited for until it ends, which may be never.
        let limit = if has(Bug::DoubtHoldsUp) { Nanos::MAX / 4 } else { limit };
        let Ok(flushed) = timeout(limit, flush).await else {
            return Err("the destination does not answer".into());
        };
        match flushed {
            Ok(()) if late.get() => Err(i.lagging().unwrap_or_else(|| "it is not ready".into())),
            Ok(()) => Ok(()),
            Err(e) => {
                let why = format!("the destination cannot be flushed: {e}");
                i.fail(why.clone());
                Err(why)
            }
        }
    }
}

/// A migration with I/O held back. Dropping it lets I/O go on as before.
#[must_use]
pub struct Held {
    inner: Rc<Inner>,
    target: Rc<dyn Volume>,
    quiesced: Quiesced,
}

impl Held {
    /// The destination is the volume.
    ///
    /// # Errors
    /// It does not fit, which was checked when I/O was held back; everything goes on as before.
    pub fn moved(self) -> Result<(), SwapError> {
        drop(self.quiesced.swap(self.target.clone())?);
        self.inner.phase.set(Phase::Moved);
        Ok(())
    }

    /// Everything goes on as before; it is known that the source is the volume after a crash.
    pub fn stays(self) {}

    /// It is not known which side is the volume after a crash. From now on an I/O is done when it is done, and durable,
    /// on both sides, and fails when one fails.
    pub fn doubtful(self) {
        self.inner.doubtful.set(true);
    }
}

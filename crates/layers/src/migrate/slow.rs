//! A destination that takes long: nobody waits for it, and it is made up later.

use super::{Inner, Phase};
use crate::planted::{Bug, has};
use std::cell::Cell;
use std::rc::Rc;
use weir_base::{IoError, MILLIS, Nanos, SECONDS};
use weir_block::{Allocation, IoFuture, Volume};
use weir_reactor::{Overdue, now, patience, sleep, spawn_task};

/// How often is looked whether it has answered.
const LOOK: Nanos = 50 * MILLIS;
/// After it has answered it gets as long a rest as it took, and no longer than this: what is slow gets slower by more work.
const REST: Nanos = 30 * SECONDS;

/// Since when the destination does not answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lag {
    /// When the I/O was sent that was given up first.
    since: Nanos,
    /// How long that was waited for, and how much of that this reactor was late itself.
    overdue: Overdue,
    /// How long it did not answer, as far as is known.
    lasted: Nanos,
    /// It has answered everything.
    answered: bool,
}

fn seconds(n: Nanos) -> String {
    format!("{}.{} s", n / SECONDS, n % SECONDS / (100 * MILLIS))
}

impl Inner {
    /// Hosts go on without the destination.
    pub(super) fn is_behind(&self) -> bool {
        self.lag.get().is_some()
    }

    /// `from..to` did not reach the destination.
    pub(super) fn mark(&self, from: u64, to: u64) {
        if !has(Bug::StallForgotten) {
            self.stale.mark(from, to);
        }
    }

    /// What the migration waits for, in words.
    pub(super) fn lagging(&self) -> Option<String> {
        let lag = self.lag.get().filter(|_| self.is_mirroring())?;
        let stale = match self.stale.bytes() {
            0 => String::new(),
            n => format!(", about {} MiB are copied again then", n.div_ceil(1 << 20)),
        };
        let lasted = seconds(lag.lasted);
        let mut text = match lag.answered {
            false => format!(
                "the destination has not answered for {lasted}: hosts go on without it until it does{stale}"
            ),
            true => format!(
                "the destination took {lasted} to answer: it gets a rest before it is used again{stale}"
            ),
        };
        let Overdue { waited, absent } = lag.overdue;
        if absent > waited / 4 {
            text += &format!(
                "; of the first {} this process itself did not run for {}: the machine has too little processor time \
                 for it, or stood still",
                seconds(waited),
                seconds(absent)
            );
        }
        Some(text)
    }

    /// An I/O of the destination. When it takes too long this ends well, and sets `late`; the I/O goes on to its end
    /// by itself.
    pub(super) fn bounded<'a>(&'a self, io: IoFuture<'a>, late: &'a Cell<bool>) -> IoFuture<'a> {
        if let Some(r) = io.result() {
            return IoFuture::ready(r);
        }
        IoFuture::new(async move {
            if self.doubtful.get() || has(Bug::WaitedForEver) {
                // The destination may be the volume: what it has not answered is not done.
                return io.await;
            }
            match patience(self.plan.patience, io).await {
                Ok(r) => r,
                Err(overdue) => {
                    late.set(true);
                    self.fall_behind(overdue);
                    Ok(())
                }
            }
        })
    }

    /// An I/O of the copier at the destination; false: it takes too long, or the destination is behind already, and
    /// `from..to` is marked.
    pub(super) async fn there<'a>(
        &'a self,
        from: u64,
        to: u64,
        io: impl FnOnce(&'a dyn Volume) -> IoFuture<'a>,
    ) -> Result<bool, IoError> {
        let late = Cell::new(self.is_behind());
        if !late.get() {
            self.bounded(io(&*self.destination), &late).await?;
        }
        if late.get() {
            // Copied and compared again later.
            self.mark(from, to);
        }
        Ok(!late.get())
    }

    /// What the destination says is empty; `None` when it does not answer.
    pub(super) async fn allocation_there(&self, at: u64, len: u64) -> Option<Allocation> {
        if self.is_behind() {
            return None;
        }
        let asked = self.destination.find_allocation(at, len);
        patience(self.plan.patience, asked).await.map_err(|o| self.fall_behind(o)).ok()
    }

    /// The destination has not answered in time.
    fn fall_behind(&self, overdue: Overdue) {
        let Some(me) = self.me.upgrade().filter(|_| self.is_mirroring() && !self.is_behind())
        else {
            return;
        };
        let (since, lasted) = (now() - overdue.waited, overdue.waited);
        self.lag.set(Some(Lag { since, overdue, lasted, answered: false }));
        if self.phase.get() == Phase::Ready {
            self.phase(Phase::Copying);
        }
        spawn_task(me.catch_up());
    }

    /// Waits until the destination has nothing under way that was given up, and goes on with it.
    async fn catch_up(self: Rc<Self>) {
        let under_way = || self.behind.upgrade().map_or(0, |h| h.busy());
        while under_way() > 0 && !has(Bug::LateWritesForgotten) {
            if !self.is_mirroring() {
                return;
            }
            sleep(LOOK).await;
            if let Some(lag) = self.lag.get() {
                self.lag.set(Some(Lag { lasted: now() - lag.since, ..lag }));
            }
        }
        if let Some(lag) = self.lag.get() {
            let lasted = now() - lag.since;
            self.lag.set(Some(Lag { lasted, answered: true, ..lag }));
            let end = now() + lasted.min(REST);
            while now() < end && self.is_mirroring() {
                sleep(LOOK.min(end - now())).await;
            }
        }
        self.lag.set(None);
        if self.is_mirroring() && self.phase.get() != Phase::Waiting {
            self.copy_all().await;
        }
    }
}

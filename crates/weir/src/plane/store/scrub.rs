//! A scrub in the background of a protected pool.

use super::{Node, OpenPool, Pool};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_base::{Nanos, SECONDS};
use weir_control::dataplane::ScrubAction;
use weir_control::live::{Pace, ScrubFinding, ScrubLive};
use weir_control::{Code, Error, Result};
use weir_reactor::{TaskId, cancel, now, spawn_task};
use weir_store::format::superblock::MemberState;
use weir_store::{Counters, ScrubWatch};

/// Bytes of a block.
const BLOCK: u64 = 4096;

/// Copies found damaged on a device, and reads of it that failed, since the pool was opened.
pub(super) type Counted = [u64; 2];

/// The same of all devices that have everything, by identity.
fn counted(pool: &weir_store::Pool) -> BTreeMap<u64, Counted> {
    let devices = pool.status().devices.into_iter();
    let whole = devices.filter(|d| d.state == MemberState::InSync && !d.failed);
    whole.map(|d| (d.id, [d.damaged, d.unread])).collect()
}

/// A scrub that runs or has ended.
pub(super) struct Scrub {
    watch: Rc<ScrubWatch>,
    task: Cell<Option<TaskId>>,
    rate: u64,
    of_blocks: u64,
    began: Nanos,
    ended: Cell<Nanos>,
    before: Counters,
    /// Counters at the end.
    after: Cell<Option<Counters>>,
    state: Cell<&'static str>,
    reason: RefCell<Option<String>>,
}

impl Scrub {
    fn live(&self, counters: Counters) -> ScrubLive {
        let c = self.after.get().unwrap_or(counters);
        let end = if self.state.get() == "running" { now() } else { self.ended.get() };
        let finding = |f: weir_store::Finding| ScrubFinding {
            layer: f.layer,
            whose: f.whose,
            block: f.vbn,
            what: f.what,
        };
        ScrubLive {
            state: self.state.get().into(),
            reason: self.reason.borrow().clone(),
            rate: self.rate,
            blocks: self.watch.blocks(),
            of_blocks: self.of_blocks,
            damaged: c.damaged - self.before.damaged,
            repaired: c.repaired - self.before.repaired,
            lost: c.lost - self.before.lost,
            seconds: end.saturating_sub(self.began) / SECONDS,
            pace: Pace::default(),
            findings: self.watch.findings().into_iter().map(finding).collect(),
            found: self.watch.found(),
        }
    }

    fn end(&self, state: &'static str, counters: Counters) {
        self.state.set(state);
        self.ended.set(now());
        self.after.set(Some(counters));
    }
}

impl OpenPool {
    /// The scrub that runs or ran last.
    pub(super) fn scrub_live(&self) -> Option<ScrubLive> {
        let scrub = self.scrub.borrow();
        scrub.as_ref().map(|s| s.live(self.pool.counters()))
    }

    /// Ends a scrub that runs.
    pub(super) fn stop_scrub(&self) {
        let Some(s) = self.scrub.borrow().clone() else { return };
        if let Some(task) = s.task.take()
            && s.state.get() == "running"
        {
            cancel(task);
            s.end("stopped", self.pool.counters());
        }
    }

    fn start_scrub(&self, rate: u64) -> Result<()> {
        if self.scrub.borrow().as_ref().is_some_and(|s| s.state.get() == "running") {
            return Err(Error::new(Code::ScrubRunning, "a scrub of this pool is under way")
                .hint("`weir scrub status` shows how far it is, `weir scrub stop` ends it"));
        }
        let status = self.pool.status();
        let s = Rc::new(Scrub {
            watch: Rc::default(),
            task: Cell::new(None),
            rate,
            of_blocks: status.total.saturating_sub(status.free) / BLOCK,
            began: now(),
            ended: Cell::new(0),
            before: self.pool.counters(),
            after: Cell::new(None),
            state: Cell::new("running"),
            reason: RefCell::default(),
        });
        *self.scrub.borrow_mut() = Some(s.clone());
        let (me, pool) = (s.clone(), self.pool.clone());
        let (clean, before) = (self.clean.clone(), counted(&pool));
        let task = spawn_task(async move {
            // Every block is read from all its devices.
            let blocks = rate.div_ceil(BLOCK);
            let done = pool.scrub_watched(blocks, me.watch.clone()).await;
            if let Err(e) = &done {
                *me.reason.borrow_mut() = Some(e.to_string());
            }
            if done.is_ok() {
                // Counts alone prove nothing: what is known, or was not read, is not counted.
                let same = |(id, now): &(u64, Counted)| {
                    before.get(id) == Some(now) && me.watch.is_clean(*id)
                };
                clean.borrow_mut().extend(counted(&pool).into_iter().filter(same));
            }
            me.end(if done.is_ok() { "done" } else { "failed" }, pool.counters());
        });
        s.task.set(Some(task));
        Ok(())
    }
}

impl Node {
    pub(in crate::plane) async fn scrub_store(
        &self,
        pool: &Pool,
        action: ScrubAction,
    ) -> Result<Option<ScrubLive>> {
        self.with_pool(&pool.name, move |p| {
            Box::pin(async move {
                match action {
                    ScrubAction::Status => {}
                    ScrubAction::Start { rate } => p.start_scrub(rate)?,
                    ScrubAction::Stop => p.stop_scrub(),
                }
                Ok(p.scrub_live())
            })
        })
        .await
    }
}

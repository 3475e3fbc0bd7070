//! Task management (RFC 7143 11.5, SAM-5 section 7), by the one fence.

use crate::command::managed;
use crate::conn::Conn;
use crate::order::{DEPTH, IMMEDIATE, Work};
use crate::planted::{Bug, has};
use crate::receive::Last;
use crate::task::Task;
use std::cell::Cell;
use std::future::{poll_fn, ready};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use weir_base::{MICROS, MILLIS, Nanos};
use weir_proto_iscsi::bhs::{Request, task, task_response as answer};
use weir_proto_iscsi::window::before;
use weir_proto_scsi::lu::{Reset, UaScope};
use weir_proto_scsi::lun::Lun;
use weir_proto_scsi::sense::Sense;
use weir_reactor::{LocalFuture, contained_future, run_async, sleep, spawn_task, timeout, unless};
use weir_target_core::{End, Pass, UnitShared, Whom};

/// How often a reset that nobody waits for looks whether it is to end anything yet.
const LOOK: Nanos = 100 * MILLIS;
/// How often a reset that is over looks whether another one has ended what it was to end.
const SOON: Nanos = 2 * MILLIS;
/// How often is looked whether a fence has passed the session, and for how long what comes next waits for that.
const TURN: Nanos = 20 * MICROS;
const PASSING: Nanos = 500 * MILLIS;

/// A reset whose host is gone ends the SPC-2 reservation all the same. So only the last one of a unit has to go on.
async fn go_on(unit: Arc<UnitShared>, reset: Reset, over: impl Future<Output = ()>) {
    let idle = async {
        while unit.with(|s| s.reset_due()) == Some(reset) {
            sleep(LOOK).await;
        }
    };
    unless(idle, over).await;
}

/// Functions of one session that are under way, at most: an abort of each command, and some of units.
pub(crate) const AT_ONCE: u32 = DEPTH + IMMEDIATE + 16;

/// One of these.
struct Place(Rc<Conn>);

impl Place {
    fn new(conn: &Rc<Conn>) -> Option<Place> {
        conn.managing.try_wait().then(|| Place(conn.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.managing.signal();
    }
}

/// What a function ends on one unit.
struct Ending {
    unit: Arc<UnitShared>,
    whom: Whom,
    reset: Option<Reset>,
}

impl Conn {
    /// Begins a function whose turn has come.
    pub(crate) async fn begin_to_manage(self: &Rc<Self>, r: Request) -> Result<(), Last> {
        let Some(place) = Place::new(self) else {
            // Those that are under way wait for a device, perhaps; nobody else is to wait for them.
            let aside = self.aside().await.ok_or(Last::Stopped)?;
            managed(self, r.itt(), answer::REJECTED, aside);
            return Ok(());
        };
        self.look();
        let luns = match r.flags() & 0x7f {
            task::ABORT_TASK_SET | task::CLEAR_TASK_SET | task::LUN_RESET => vec![Lun(r.lun())],
            task::WARM_RESET | task::COLD_RESET => self.view.luns(),
            _ => Vec::new(),
        };
        let before: Vec<_> =
            luns.into_iter().filter_map(|l| Some(self.view.find(l)?.pass())).collect();
        let over = Rc::new(Cell::new(false));
        let ends = over.clone();
        let me = self.clone();
        spawn_task(async move {
            let answered = contained_future(pin!(me.manage(&r))).await;
            ends.set(true);
            match answered {
                Ok(code) => {
                    // Who does not take its answers keeps its places, and nobody takes what it sends.
                    if let Some(aside) = me.aside().await {
                        managed(&me, r.itt(), code, aside);
                    }
                    drop(place);
                }
                Err(p) => {
                    me.port.shared.spread.broke(&me.peer, &p);
                    return me.abort("an error of this program");
                }
            }
            if r.flags() & 0x7f == task::COLD_RESET {
                // The session ends with it; the initiator logs in anew (RFC 7143 11.5.1).
                me.end("a cold reset");
            }
        });
        // It begins before what comes next.
        run_async().await;
        // What comes next is not ended by it: its fence has to have passed here.
        let by_us =
            |p: &Pass| p.end().is_some_and(|e| e == End::Gone || e == End::Aborted(self.nexus()));
        let passed = async {
            while !over.get() && !before.iter().all(by_us) {
                sleep(TURN).await;
            }
        };
        let _ = unless(self.halt.wait(), timeout(PASSING, passed)).await;
        Ok(())
    }

    async fn manage(self: &Rc<Self>, r: &Request) -> u8 {
        let function = r.flags() & 0x7f;
        tracing::info!(peer = %self.peer, function, "task management");
        self.port.shared.spread.counts().managed();
        self.look();
        let lun = Lun(r.lun());
        match function {
            task::ABORT_TASK => self.abort_task(r).await,
            task::ABORT_TASK_SET | task::CLEAR_TASK_SET | task::LUN_RESET => {
                match self.ends_on(r, function, lun) {
                    Some(e) => self.fence(vec![e]).await,
                    None => answer::NO_LUN,
                }
            }
            // NORMACA is 0: there is never one to clear.
            task::CLEAR_ACA => answer::COMPLETE,
            task::WARM_RESET | task::COLD_RESET => {
                // All units that the nexus sees: what it does not see is none of its business. One that hangs keeps no other from it.
                let all = self.view.luns().into_iter();
                let all = all.filter_map(|lun| self.ends_on(r, task::LUN_RESET, lun)).collect();
                self.fence(all).await
            }
            task::REASSIGN => answer::NO_REASSIGN,
            _ => answer::UNSUPPORTED,
        }
    }

    async fn abort_task(self: &Rc<Self>, r: &Request) -> u8 {
        let tag = r.word20();
        let found: Vec<_> = {
            let all = self.tasks.borrow();
            // One that is being ended already is not over yet.
            all.iter().filter(|t| t.itt == tag).cloned().collect()
        };
        if found.is_empty() {
            // Its answer may be on its way, and the initiator looks at it no more.
            self.view.given_up(tag.into());
            // One that was sent before this, and has not come, counts as come and aborted (RFC 7143 11.5.1).
            let skipped =
                before(r.ref_cmd_sn(), r.cmd_sn()) && self.window.borrow_mut().skip(r.ref_cmd_sn());
            self.go_on_in_order().await;
            return if skipped { answer::COMPLETE } else { answer::NO_TASK };
        }
        found.iter().for_each(|t| t.abort());
        self.drop_held();
        self.go_on_in_order().await;
        let aborted = async {
            for t in &found {
                t.has_ended().await;
            }
        };
        if !has(Bug::AbortAnsweredEarly) {
            unless(self.lost(), aborted).await;
        }
        self.view.given_up(tag.into());
        answer::COMPLETE
    }

    /// Those that wait for their turn, and were aborted, never have it. Their numbers count as received.
    fn drop_held(&self) {
        let mut gone: Vec<Rc<Task>> = Vec::new();
        for held in self.window.borrow_mut().held_mut() {
            let is_aborted = |w: &mut Work| matches!(w, Work::Command(t) if t.is_aborted());
            if let Some(Work::Command(t)) = held.take_if(is_aborted) {
                gone.push(t);
            }
        }
        gone.iter().for_each(|t| self.forget(t));
    }

    /// What waited for the turn of those has it now. Whoever gives turns already goes on with it.
    async fn go_on_in_order(self: &Rc<Self>) {
        let Some(_turns) = unless(ready(()), self.turns.acquire(1)).await else { return };
        while let Some(work) = self.next_in_order() {
            let turn: LocalFuture<'_, _> = Box::pin(self.turn(work));
            if let Err(last) = turn.await {
                if let Last::LoggedOut(r) = last {
                    *self.farewell.borrow_mut() = Some(r);
                }
                return self.end("its turn to log out has come");
            }
        }
    }

    /// Ends when nobody is there to hear of anything.
    async fn lost(&self) {
        while !self.is_over() {
            self.news.wait().await;
        }
    }

    /// A function begins on a unit: what it ends has no answer any more. `None`: there is no such unit.
    fn ends_on(&self, r: &Request, function: u8, lun: Lun) -> Option<Ending> {
        let nexus = self.nexus();
        let a = self.view.find(lun)?;
        let unit = a.unit().shared().clone();
        // What comes while the tasks end is told already.
        let mut reset = None;
        let whom = match function {
            task::ABORT_TASK_SET => Whom::Only(vec![nexus]),
            task::CLEAR_TASK_SET => {
                unit.with(|s| s.raise_ua(UaScope::AllExcept(nexus), Sense::COMMANDS_CLEARED));
                Whom::All
            }
            _ => {
                reset = Some(unit.with(|s| s.lu_reset(Some(nexus))));
                Whom::All
            }
        };
        // Its initiator sends no more data for them (RFC 7143 4.2.3.3): they must not wait for any.
        let index = lun.index();
        let same = move |t: &Task| t.lun == lun || index.is_some() && t.lun.index() == index;
        // What is numbered behind it is not meant (RFC 7143 11.5.1).
        let is_meant = |t: &Task| t.begun.get() || before(t.cmd_sn, r.cmd_sn());
        self.stop_tasks(|t| same(t) && is_meant(t) && !t.waits.get());
        self.drop_held();
        Some(Ending { unit, whom, reset })
    }

    /// Waits until what these end can have no effect any more.
    async fn fence(self: &Rc<Self>, all: Vec<Ending>) -> u8 {
        self.go_on_in_order().await;
        let mut left: Vec<LocalFuture<'_, u8>> = Vec::new();
        for e in all {
            left.push(Box::pin(self.fence_one(e)));
        }
        let mut code = answer::COMPLETE;
        poll_fn(|cx| {
            left.retain_mut(|f| match f.as_mut().poll(cx) {
                Poll::Ready(answer) => {
                    code = code.max(answer);
                    false
                }
                Poll::Pending => true,
            });
            if left.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        code
    }

    async fn fence_one(&self, e: Ending) -> u8 {
        let (nexus, kept, reset) = (self.nexus(), e.unit.clone(), e.reset);
        let Ending { unit, whom, .. } = e;
        let over = async move {
            unit.fence(whom, End::Aborted(nexus)).await;
            if let Some(reset) = reset {
                unit.with(|s| s.lu_reset_over(reset));
                while unit.with(|s| s.outlives(reset)) {
                    sleep(SOON).await;
                }
            }
        };
        // A device may take for ever, and its host be gone long before: it then keeps nothing that others wait for.
        let mut over = Box::pin(over);
        if has(Bug::ResetAnsweredEarly) {
            spawn_task(over);
            return answer::COMPLETE;
        }
        if unless(self.lost(), over.as_mut()).await.is_none() {
            if let Some(reset) = reset {
                spawn_task(go_on(kept, reset, over));
            }
            return answer::REJECTED;
        }
        answer::COMPLETE
    }
}

//! Task management (SAM-5 section 7, T10 SRP SRP_TSK_MGMT).

use crate::channel::Channel;
use crate::planted::{Bug, has};
use crate::port::Port;
use crate::request::Request;
use std::rc::Rc;
use std::sync::Arc;
use weir_base::{MILLIS, Nanos};
use weir_proto_scsi::lu::{Nexus, Reset, UaScope};
use weir_proto_scsi::lun::Lun;
use weir_proto_scsi::sense::Sense;
use weir_proto_srp::{RspCode, TaskFunction, TaskManagement};
use weir_reactor::{call, sleep, spawn_task, unless};
use weir_target_core::{End, UnitShared, Whom};

/// How often a reset that nobody waits for looks whether it is to end anything yet.
const LOOK: Nanos = 100 * MILLIS;

/// How often a reset that is over looks whether another one has ended what it was to end.
const SOON: Nanos = 2 * MILLIS;

/// A reset whose host is gone ends the SPC-2 reservation all the same. So only the last one of a unit has to go on.
async fn go_on(unit: Arc<UnitShared>, reset: Reset, over: impl Future<Output = ()>) {
    let idle = async {
        while unit.with(|s| s.reset_due()) == Some(reset) {
            sleep(LOOK).await;
        }
    };
    unless(idle, over).await;
}

impl Port {
    /// Carries a task management function out.
    pub(crate) async fn manage(
        self: &Rc<Self>,
        request: &Rc<Request>,
        channel: &Rc<Channel>,
        t: &TaskManagement,
    ) -> RspCode {
        tracing::info!(peer = %channel.peer, function = ?t.function, "task management");
        self.shared.spread.counts().managed();
        channel.view.refresh(&self.shared.access, &self.units);
        let nexus = channel.view.nexus();
        // Commands that came before it may not have been looked at yet.
        for _ in 0..64 {
            if !self.has_unseen() {
                break;
            }
            weir_reactor::run_async().await;
        }
        if t.function == TaskFunction::AbortTask {
            // On the command's own channel, so its request is one of this reactor's. There may be several: what waits for
            // the end of others has been ended long ago as far as its host knows, which may use the tag again.
            let victims: Vec<_> = {
                let all = self.requests.borrow();
                let named = all.iter().filter(|r| r.id != request.id && r.has(channel, t.task_tag));
                if has(Bug::AbortFirstOnly) {
                    named.take(1).cloned().collect()
                } else {
                    named.cloned().collect()
                }
            };
            victims.iter().for_each(|r| r.abort());
            let aborted = async {
                for r in victims {
                    r.aborted().await;
                }
            };
            unless(request.halted(), aborted).await;
            channel.view.given_up(t.task_tag.0);
            return RspCode::Complete;
        }
        let Some(a) = channel.view.find(Lun(t.lun)) else { return RspCode::TmfFailed };
        let unit = a.unit().shared().clone();
        // What comes while the tasks end is told already.
        let mut reset = None;
        let whom = match t.function {
            TaskFunction::AbortTaskSet => Whom::Only(vec![nexus]),
            TaskFunction::ClearTaskSet => {
                unit.with(|s| s.raise_ua(UaScope::AllExcept(nexus), Sense::COMMANDS_CLEARED));
                Whom::All
            }
            TaskFunction::LunReset => {
                reset = Some(unit.with(|s| s.lu_reset(Some(nexus))));
                if has(Bug::ResetOwnOnly) { Whom::Only(vec![nexus]) } else { Whom::All }
            }
            // NORMACA is 0: there is never one to clear.
            TaskFunction::ClearAca => return RspCode::Complete,
            _ => return RspCode::TmfUnsupported,
        };
        if let Some(reset) = reset.filter(|_| has(Bug::ResetFreesEarly)) {
            unit.with(|s| s.lu_reset_over(reset));
        }
        let ends = End::Aborted(nexus);
        let over = async move {
            unit.fence(whom, ends).await;
            if let Some(reset) = reset {
                unit.with(|s| match s.reset_due().filter(|_| has(Bug::ResetsAlike)) {
                    Some(any) => s.lu_reset_over(any),
                    None => s.lu_reset_over(reset),
                });
                while unit.with(|s| s.outlives(reset)) && !has(Bug::OutlivedIsDone) {
                    sleep(SOON).await;
                }
            }
        };
        // A device may take for ever, and its host be gone long before: it then keeps nothing that others wait for.
        let mut over = Box::pin(over);
        let lost = async {
            request.halted().await;
            if has(Bug::LostManageOn) {
                std::future::pending().await
            }
        };
        if unless(lost, over.as_mut()).await.is_none() {
            if let Some(reset) = reset.filter(|_| !has(Bug::LostResetNever)) {
                spawn_task(go_on(a.unit().shared().clone(), reset, over));
            }
            return RspCode::TmfFailed;
        }
        if !has(Bug::UnplacedGoOn) {
            self.end_unplaced_everywhere(nexus, Lun(t.lun)).await;
        }
        RspCode::Complete
    }

    /// Ends the nexus's commands to this LUN that found no unit there when they came: no unit's fence knows of them.
    async fn end_unplaced_everywhere(&self, nexus: Nexus, lun: Lun) {
        let target = self.shared.spread.id();
        for there in self.shared.spread.reactors() {
            // A reactor that has ended has no commands.
            let _ = call(&there, move || async move {
                if let Some(port) = Port::local(target) {
                    port.end_unplaced(nexus, lun).await;
                }
            })
            .await;
        }
    }

    async fn end_unplaced(&self, nexus: Nexus, lun: Lun) {
        let of_it = |r: &&Rc<Request>| r.is_unplaced(nexus, lun);
        let all: Vec<_> = self.requests.borrow().iter().filter(of_it).cloned().collect();
        all.iter().for_each(|r| r.abort());
        for r in all {
            r.aborted().await;
        }
    }
}

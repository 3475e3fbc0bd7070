//! Task management (SAM-5 section 7, T10 SRP SRP_TSK_MGMT).

use crate::channel::Channel;
use crate::port::Port;
use crate::request::{Abort, Request};
use crate::target::everywhere;
use std::rc::Rc;
use std::sync::Arc;
use weir_proto_scsi::lu::{Nexus, UaScope};
use weir_proto_scsi::lun::Lun;
use weir_proto_scsi::sense::Sense;
use weir_proto_srp::{RspCode, TaskFunction, TaskManagement};
use weir_target_core::{Attached, UnitShared};

/// Which tasks of a unit are meant.
#[derive(Clone)]
struct Victims {
    unit: Arc<UnitShared>,
    /// `None`: of all nexuses.
    of: Option<Vec<Nexus>>,
    /// Whoever asks: its own tasks end in silence.
    by: Nexus,
    /// The asking request, which must not wait for itself: reactor and number.
    but: (u32, u32),
}

impl Victims {
    /// Marks those of this reactor and waits until they have ended.
    async fn end(self, port: Rc<Port>) {
        let here = weir_reactor::current_id();
        let mut found = Vec::new();
        for r in port.requests.borrow().iter() {
            if (here, r.id) == self.but {
                continue;
            }
            let same_unit = r
                .attached
                .borrow()
                .as_ref()
                .is_some_and(|a| Arc::ptr_eq(a.unit().shared(), &self.unit));
            if !same_unit {
                continue;
            }
            let Some(nexus) = r.channel.borrow().as_ref().map(|c| c.view.nexus()) else { continue };
            if self.of.as_ref().is_some_and(|of| !of.contains(&nexus)) {
                continue;
            }
            r.abort(if nexus == self.by { Abort::Own } else { Abort::Other });
            found.push(r.clone());
        }
        for r in found {
            gone(&r).await;
        }
    }
}

/// Waits until the task that a request runs now has ended.
async fn gone(r: &Rc<Request>) {
    if r.is_task() {
        r.ended.wait().await;
    }
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
            // On the command's own channel, so its request is one of this reactor's.
            let victim = self.requests.borrow().iter().find_map(|r| {
                let same = r.channel.borrow().as_ref().is_some_and(|c| Rc::ptr_eq(c, channel));
                (same && r.is_task() && r.tag.get() == t.task_tag && r.id != request.id)
                    .then(|| r.clone())
            });
            if let Some(r) = victim {
                r.abort(Abort::Own);
                gone(&r).await;
            }
            return RspCode::Complete;
        }
        let Some(a) = channel.view.find(Lun(t.lun)) else { return RspCode::TmfFailed };
        let unit = a.unit().shared().clone();
        let but = (weir_reactor::current_id(), request.id);
        let victims = |of| Victims { unit: unit.clone(), of, by: nexus, but };
        match t.function {
            TaskFunction::AbortTaskSet => {
                self.end_all(victims(Some(vec![nexus]))).await;
            }
            TaskFunction::ClearTaskSet => {
                self.end_all(victims(None)).await;
                unit.with(|s| {
                    s.raise_ua(UaScope::AllExcept(nexus), Sense::COMMANDS_CLEARED);
                });
            }
            TaskFunction::LunReset => {
                self.end_all(victims(None)).await;
                unit.with(|s| s.lu_reset(Some(nexus)));
            }
            // NORMACA is 0: there is never one to clear.
            TaskFunction::ClearAca => {}
            _ => return RspCode::TmfUnsupported,
        }
        RspCode::Complete
    }

    async fn end_all(&self, v: Victims) {
        everywhere(&self.shared, move |port| v.clone().end(port)).await;
    }

    /// PREEMPT AND ABORT: ends the tasks of the preempted nexuses on the unit.
    #[cold]
    pub(crate) async fn abort_nexuses(
        &self,
        request: &Rc<Request>,
        a: &Rc<Attached>,
        of: &[Nexus],
    ) {
        let by = request.channel().view.nexus();
        let but = (weir_reactor::current_id(), request.id);
        let unit = a.unit().shared().clone();
        self.end_all(Victims { unit, of: Some(of.to_vec()), by, but }).await;
    }
}

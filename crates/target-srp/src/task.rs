//! Task management (SAM-5 section 7, T10 SRP SRP_TSK_MGMT).

use crate::channel::Channel;
use crate::planted::{Bug, has};
use crate::port::Port;
use crate::request::Request;
use std::rc::Rc;
use weir_proto_scsi::lu::UaScope;
use weir_proto_scsi::lun::Lun;
use weir_proto_scsi::sense::Sense;
use weir_proto_srp::{RspCode, TaskFunction, TaskManagement};
use weir_target_core::{End, Whom};

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
                r.abort().await;
            }
            return RspCode::Complete;
        }
        let Some(a) = channel.view.find(Lun(t.lun)) else { return RspCode::TmfFailed };
        let unit = a.unit().shared().clone();
        // What comes while the tasks end is told already.
        let whom = match t.function {
            TaskFunction::AbortTaskSet => Whom::Only(vec![nexus]),
            TaskFunction::ClearTaskSet => {
                unit.with(|s| s.raise_ua(UaScope::AllExcept(nexus), Sense::COMMANDS_CLEARED));
                Whom::All
            }
            TaskFunction::LunReset => {
                unit.with(|s| s.lu_reset(Some(nexus)));
                if has(Bug::ResetOwnOnly) { Whom::Only(vec![nexus]) } else { Whom::All }
            }
            // NORMACA is 0: there is never one to clear.
            TaskFunction::ClearAca => return RspCode::Complete,
            _ => return RspCode::TmfUnsupported,
        };
        unit.fence(whom, End::Aborted(nexus)).await;
        RspCode::Complete
    }
}

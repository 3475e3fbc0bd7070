//! The ladder for commands that take too long: ABORT TASK, then LUN RESET, then the end of the channel.

use super::slot::{CommandId, State};
use super::{Channel, TaskError};
use crate::planted::{Bug, has};
use std::rc::Rc;
use weir_base::{MILLIS, Nanos, SECONDS};
use weir_proto_srp::{RspCode, TaskFunction};
use weir_reactor::{LocalFuture, now, sleep, timeout};

/// How long a target that refuses to abort a command may take to answer it.
const ABOUT_TO: Nanos = 100 * MILLIS;

/// Whoever can do more than one channel can.
pub(crate) trait Escalate {
    /// A rung of the ladder is being climbed.
    fn climbing(&self, rung: Rung, lun: u64);

    /// Resets a logical unit; true when the target has done it.
    fn lun_reset(&self, lun: u64) -> LocalFuture<'_, bool>;

    /// Nothing else helped.
    fn give_up(&self, why: &str);
}

/// A rung of the ladder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rung {
    /// ABORT TASK for one command.
    AbortTask,
    /// LOGICAL UNIT RESET.
    LunReset,
    /// All channels are closed.
    Disconnect,
    /// All channels are logged in again.
    Reconnect,
}

/// A channel by itself.
struct Alone(Rc<Channel>);

impl Escalate for Alone {
    fn climbing(&self, _: Rung, _: u64) {}
    fn lun_reset(&self, lun: u64) -> LocalFuture<'_, bool> {
        Box::pin(async move {
            let Ok(at) = self.0.done_at(TaskFunction::LunReset, lun).await else { return false };
            self.0.expire(lun, at);
            true
        })
    }
    fn give_up(&self, _: &str) {
        self.0.disconnect(true);
    }
}

impl Channel {
    /// A command whose time is up, or that nobody waits for.
    fn overdue(&self, now: Nanos) -> Option<CommandId> {
        let limit = self.config.command_timeout;
        let t = self.table.borrow();
        let at = t.slots.iter().position(|s| match s.state {
            State::Orphan => !s.managed,
            State::Sent if s.managed => false,
            State::Sent => s.expired || limit > 0 && now.saturating_sub(s.started) >= limit,
            _ => false,
        })?;
        Some(t.id(at as u16))
    }

    /// The unit was reset, and the answer came at this time: its commands from before are aborted one by one, each on its
    /// channel, because only the answer to that says that no late response can come. Without that nobody would end them.
    pub(crate) fn expire(&self, lun: u64, answered: Nanos) {
        let mut any = false;
        for s in self.table.borrow_mut().slots.iter_mut() {
            if s.state == State::Sent && s.lun == lun && s.started < answered {
                s.expired = true;
                any = true;
            }
        }
        if any {
            self.wake_ladder();
        }
    }
}

/// Watches the commands of a channel until it ends.
pub(super) async fn supervise(channel: Rc<Channel>, escalate: Option<Rc<dyn Escalate>>) {
    let escalate = escalate.unwrap_or_else(|| Rc::new(Alone(channel.clone())));
    let limit = channel.config.command_timeout;
    let tick = (limit / 8).clamp(10 * MILLIS, SECONDS);
    while channel.is_up() {
        if channel.table.borrow().in_use() == 0 || limit == 0 && channel.overdue(now()).is_none() {
            // A command that starts, a dropped one, or the end wakes it.
            channel.ladder_idle.set(limit > 0);
            channel.ladder_work.wait().await;
        } else {
            let _ = timeout(tick, channel.ladder_work.wait()).await;
        }
        while let Some(command) = channel.overdue(now()) {
            climb(&channel, &*escalate, command).await;
            if !channel.is_up() {
                return;
            }
        }
    }
}

/// Whenever this has waited, the command may have been answered, or aborted after all, and its slot may have another.
async fn climb(channel: &Channel, escalate: &dyn Escalate, command: CommandId) {
    let lun = channel.table.borrow().slots[usize::from(command.index)].lun;
    escalate.climbing(Rung::AbortTask, lun);
    let patience = channel.config.task_timeout;
    let number = match channel.send_abort(command).await {
        Ok(n) => n,
        // Answered meanwhile, or the channel is gone.
        Err(TaskError::Lost) => return,
        Err(e) => return escalate.give_up(&e.to_string()),
    };
    let mut answer = channel.task_answer(number, patience).await;
    loop {
        match answer {
            Ok(RspCode::Complete) | Err(TaskError::Lost) => return,
            Ok(code) => {
                tracing::warn!(lun, ?code, "the target does not abort a command");
                // Some targets refuse to abort what they are about to answer.
                sleep((patience / 8).min(ABOUT_TO)).await;
                if channel.is_over(command) {
                    return channel.resolve(command, true);
                }
            }
            Err(_) => {}
        }
        escalate.climbing(Rung::LunReset, lun);
        if !escalate.lun_reset(lun).await {
            channel.forget_task(number);
            return escalate.give_up("neither ABORT TASK nor LUN RESET was answered in time");
        }
        // The latter has a meaning where the command's abort may have been answered.
        let planted = has(Bug::ResetBeforeItCame) || has(Bug::SlotIsCommand);
        if answer.is_ok() || planted {
            break;
        }
        // It may not have come to the target before the reset, where its channel stands still. The answer to the abort is
        // behind it; one that refuses says that the target has it, perhaps since the reset.
        answer = channel.task_answer(number, patience).await;
        if answer == Err(TaskError::Silent) {
            channel.forget_task(number);
            return escalate.give_up("the unit was reset, but ABORT TASK is not answered");
        }
    }
    // The target had it, and the unit has no tasks now. The tag is not free before an abort is answered after that.
    channel.resolve(command, false);
    match channel.last_word(command).await {
        Ok(()) | Err(TaskError::Lost) => channel.resolve(command, true),
        Err(_) => escalate.give_up("the unit was reset, but ABORT TASK is not answered"),
    }
}

//! Task management functions of the initiator.

use super::Channel;
use super::slot::{CommandId, Slot, State};
use std::task::{Poll, Waker};
use weir_base::Nanos;
use weir_fabric::SendFlags;
use weir_proto_srp::initiator_tag::InitiatorTag;
use weir_proto_srp::{RspCode, Solicit, Tag, TaskFunction, TaskManagement};
use weir_reactor::{Token, now, timeout};

/// An unanswered function, or one whose answer nobody has taken yet.
pub(super) struct Pending {
    number: u32,
    /// The command that it names.
    command: Option<CommandId>,
    answer: Option<Answer>,
    waker: Option<Waker>,
    /// Nobody waits for it.
    forgotten: bool,
}

#[derive(Clone, Copy)]
enum Answer {
    /// And when it came.
    Code(Option<RspCode>, Nanos),
    Lost,
}

/// Why a task management function was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// No answer within the time for it.
    #[error("no answer to the task management function")]
    Silent,
    /// It could not be sent within the time for it: no credit is left, or no place in the send queue.
    #[error("the task management function could not be sent")]
    NotSent,
    /// The channel ended.
    #[error("the channel ended before the task management function did")]
    Lost,
    /// The target refused.
    #[error("the target refused the task management function: {0}")]
    Refused(RspCode),
}

/// TAG OF TASK of functions that name none, as Linux sends it.
const NO_TASK: Tag = Tag(0xffff_ffff);

impl Channel {
    /// Runs a task management function that concerns a whole logical unit.
    ///
    /// # Errors
    /// No answer in time, a refusal, or the end of the channel.
    pub async fn manage(&self, function: TaskFunction, lun: u64) -> Result<(), TaskError> {
        self.done_at(function, lun).await.map(drop)
    }

    /// As [`manage`](Channel::manage); gives the time at which the answer came.
    pub(crate) async fn done_at(
        &self,
        function: TaskFunction,
        lun: u64,
    ) -> Result<Nanos, TaskError> {
        let number = self.send_task(function, lun, NO_TASK, None).await?;
        match self.timed_answer(number, self.config.task_timeout).await? {
            (RspCode::Complete, at) => Ok(at),
            (code, _) => Err(TaskError::Refused(code)),
        }
    }

    /// Aborts a command; gives the function's number.
    pub(super) async fn send_abort(&self, c: CommandId) -> Result<u32, TaskError> {
        let (lun, tag) = self.place_of(c);
        self.send_task(TaskFunction::AbortTask, lun, tag, Some(c)).await
    }

    fn place_of(&self, c: CommandId) -> (u64, Tag) {
        let lun = self.table.borrow().slots[usize::from(c.index)].lun;
        (lun, InitiatorTag::Command { queue: self.config.queue, index: c.index }.tag())
    }

    async fn send_task(
        &self,
        function: TaskFunction,
        lun: u64,
        task_tag: Tag,
        command: Option<CommandId>,
    ) -> Result<u32, TaskError> {
        let reserve = async {
            loop {
                if !self.up.get() {
                    return Err(TaskError::Lost);
                }
                let place = self.conn.send_slots().acquire(1).await;
                if self.credits.borrow_mut().take_task() {
                    place.forget();
                    return Ok(());
                }
                drop(place);
                // Credits come with responses; this is rare and may be slow.
                weir_reactor::sleep(self.config.task_timeout / 64 + 1).await;
            }
        };
        match timeout(self.config.task_timeout, reserve).await {
            Ok(r) => r?,
            Err(_) => return Err(TaskError::NotSent),
        }
        // The answer to the command itself may have come while this waited. Then there is nothing to name.
        // By now another command may have its slot.
        if let Some(c) = command {
            let mut t = self.table.borrow_mut();
            let under_way = |s: &&mut Slot| matches!(s.state, State::Sent | State::Orphan);
            match t.slot_of(c).filter(under_way) {
                Some(s) => s.managed = true,
                None => {
                    drop(t);
                    self.conn.send_slots().signal();
                    self.refund();
                    return Err(TaskError::Lost);
                }
            }
        }
        let number = InitiatorTag::next_task(self.task_number.get());
        self.task_number.set(number);
        self.tasks.borrow_mut().push(Pending {
            number,
            command,
            answer: None,
            waker: None,
            forgotten: false,
        });
        let request = TaskManagement {
            tag: InitiatorTag::Task(number).tag(),
            lun,
            function,
            task_tag,
            solicit: Solicit::default(),
        };
        let mut iu = [0; 64];
        let n = request.encode(&mut iu).map_err(|_| TaskError::NotSent)?;
        self.conn.send(&iu[..n], None, SendFlags::default(), Token::NONE);
        Ok(number)
    }

    /// Waits for the answer to a function. After [`TaskError::Silent`] it may be waited for again.
    pub(super) async fn task_answer(
        &self,
        number: u32,
        patience: Nanos,
    ) -> Result<RspCode, TaskError> {
        self.timed_answer(number, patience).await.map(|(code, _)| code)
    }

    async fn timed_answer(
        &self,
        number: u32,
        patience: Nanos,
    ) -> Result<(RspCode, Nanos), TaskError> {
        let answer = std::future::poll_fn(|cx| {
            let mut tasks = self.tasks.borrow_mut();
            let Some(at) = tasks.iter().position(|t| t.number == number) else {
                return Poll::Ready(Answer::Lost);
            };
            match tasks[at].answer {
                Some(a) => {
                    tasks.swap_remove(at);
                    Poll::Ready(a)
                }
                None => {
                    tasks[at].waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        });
        match timeout(patience, answer).await {
            Ok(Answer::Code(code, at)) => Ok((code.unwrap_or(RspCode::TmfFailed), at)),
            Ok(Answer::Lost) => Err(TaskError::Lost),
            Err(_) => Err(TaskError::Silent),
        }
    }

    /// Nobody waits for this function any more; its answer still frees the slot that it names.
    pub(super) fn forget_task(&self, number: u32) {
        let mut tasks = self.tasks.borrow_mut();
        if let Some(at) = tasks.iter().position(|t| t.number == number) {
            if tasks[at].answer.is_some() {
                tasks.swap_remove(at);
            } else {
                tasks[at].forgotten = true;
                tasks[at].waker = None;
            }
        }
    }

    /// The answer to a function came. A command whose abort is complete will not be answered after it; any other answer
    /// says nothing of the command, which may yet be done.
    pub(super) fn task_answered(&self, number: u32, code: Option<RspCode>) {
        let (command, waker) = {
            let mut tasks = self.tasks.borrow_mut();
            let Some(at) = tasks.iter().position(|t| t.number == number) else { return };
            let t = &mut tasks[at];
            t.answer = Some(Answer::Code(code, now()));
            let found = (t.command, t.waker.take());
            if t.forgotten {
                tasks.swap_remove(at);
            }
            found
        };
        let complete = code == Some(RspCode::Complete);
        if let Some(c) = command.filter(|_| complete) {
            self.resolve(c, true);
        }
        if let Some(w) = waker {
            w.wake();
        }
    }

    /// True when the command was answered, or has ended in another way.
    pub(super) fn is_over(&self, c: CommandId) -> bool {
        let mut t = self.table.borrow_mut();
        t.slot_of(c).is_none_or(|s| !matches!(s.state, State::Sent | State::Orphan))
    }

    /// Has the target answer once more for the tag of the command, which is over and has its slot yet: nothing of it comes
    /// after that on this channel.
    pub(super) async fn last_word(&self, c: CommandId) -> Result<(), TaskError> {
        let (lun, tag) = self.place_of(c);
        let number = self.send_task(TaskFunction::AbortTask, lun, tag, None).await?;
        let answer = self.task_answer(number, self.config.task_timeout).await;
        self.forget_task(number);
        answer.map(drop)
    }

    /// The command is over at the target; with `answered`, the function that names it as well. One that has left its slot
    /// was over before.
    pub(super) fn resolve(&self, c: CommandId, answered: bool) {
        let mut waker = None;
        let mut freed = false;
        let unanswered = {
            let mut t = self.table.borrow_mut();
            let Some(s) = t.slot_of(c) else { return };
            s.managed &= !answered;
            let unanswered = matches!(s.state, State::Sent | State::Orphan).then_some(s.lun);
            match s.state {
                State::Sent => {
                    s.state = State::Aborted;
                    waker = s.waker.take();
                }
                State::Orphan if s.managed => s.state = State::Spent,
                State::Orphan | State::Spent if !s.managed => freed = t.set_free(c.index),
                _ => {}
            }
            unanswered
        };
        if let Some(lun) = unanswered {
            // Its answer may have been on its way.
            self.unseen(lun, &[]);
        }
        if freed {
            self.slot_units.signal();
        }
        if let Some(w) = waker {
            w.wake();
        }
    }

    pub(super) fn tasks_lost(&self) {
        let mut wakers = Vec::new();
        self.tasks.borrow_mut().retain_mut(|t| {
            if t.answer.is_none() {
                t.answer = Some(Answer::Lost);
                wakers.extend(t.waker.take());
            }
            !t.forgotten
        });
        for w in wakers {
            w.wake();
        }
    }
}

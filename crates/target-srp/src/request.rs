//! The request machine: the life of one message of a host, from the receive buffer to the response.

use crate::bdt::Bdt;
use crate::channel::Channel;
use crate::dma::Dma;
use crate::planted::{Bug, has};
use crate::port::Port;
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use weir_fabric::SendFlags;
use weir_mem::{Lent, Purse, Slice};
use weir_proto_scsi::lu::Nexus;
use weir_proto_scsi::lun::Lun;
use weir_proto_scsi::sense::SENSE_LEN_MAX;
use weir_proto_scsi::status::Status;
use weir_proto_srp::residual::{Lengths, Transfer as Residuals};
use weir_proto_srp::states::{DmaState, RequestState};
use weir_proto_srp::{Buffer, Command, Descriptor, Iu, IuError, Response, RspCode, Tag};
use weir_reactor::{
    TaskId, Token, WaitChannel, completion, contained_future, run_async, spawn_task, unless,
};
use weir_target_core::{End, Outcome, Pass, Stop, Whom, execute_unmapped};

/// CDB bytes kept; longer ones are of no command that we know.
const CDB: usize = 32;
/// Messages of a channel that are no valid IUs and are answered; the next one ends it.
const MOST_MALFORMED: u32 = 64;

/// What ABORT TASK finds in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    /// No command.
    None,
    /// A command that runs, or is about to.
    Runs,
    /// One that has done its work and waits for the end of others: only its answer is due.
    Waits,
}

/// A request structure. There is a fixed number of them; each runs its loop for as long as its port lives.
pub(crate) struct Request {
    pub(crate) id: u32,
    pub(crate) port: Rc<Port>,
    state: Cell<RequestState>,
    pub(crate) tag: Cell<Tag>,
    pub(crate) channel: RefCell<Option<Rc<Channel>>>,
    task: Cell<Task>,
    /// The LUN of a command for which there was no unit.
    unplaced: Cell<Option<Lun>>,
    /// ABORT TASK wants the command gone.
    aborted: Cell<bool>,
    pub(crate) data_out: Bdt,
    pub(crate) data_in: Bdt,
    /// Released when the command has ended; aborts wait for it.
    pub(crate) ended: WaitChannel,
    /// Released by an abort and by the end of the connection: waits for buffers and for other commands are given up then.
    stop: WaitChannel,
    purse: Purse,
    /// That of its loop.
    run: Cell<Option<TaskId>>,
}

impl Request {
    pub(crate) fn new(id: u32, port: Rc<Port>) -> Rc<Request> {
        Rc::new(Request {
            id,
            port,
            state: Cell::new(RequestState::START),
            tag: Cell::new(Tag(0)),
            channel: RefCell::default(),
            task: Cell::new(Task::None),
            unplaced: Cell::default(),
            aborted: Cell::new(false),
            data_out: Bdt::new(id),
            data_in: Bdt::new(id),
            ended: WaitChannel::new(0),
            stop: WaitChannel::new(0),
            purse: Purse::default(),
            run: Cell::new(None),
        })
    }

    /// Starts its loop.
    pub(crate) fn start(self: &Rc<Self>) {
        self.run.set(Some(spawn_task(self.clone().run())));
    }

    /// Its port has ended. One with a message goes on to its end: what it has begun with a device nobody takes back, and
    /// fences wait for it.
    pub(crate) fn end(&self) {
        if self.channel.borrow().is_some() {
            return self.stop.signal_all();
        }
        if let Some(task) = self.run.take() {
            weir_reactor::cancel(task);
        }
    }

    #[inline]
    pub(crate) fn enter(&self, next: RequestState) {
        let now = self.state.replace(next);
        assert!(now.may_follow(next), "request {}: {next} after {now}", self.id);
        self.port.trace.note("request", self.id, next.name());
    }

    pub(crate) fn state(&self) -> RequestState {
        self.state.get()
    }

    /// The channel that the message came by.
    #[expect(clippy::expect_used, reason = "set with the message, before anything looks at it")]
    pub(crate) fn channel(&self) -> Rc<Channel> {
        self.channel.borrow().clone().expect("a request with a message has a channel")
    }

    /// True when the command is to end without further effect.
    #[inline]
    pub(crate) fn stopped(&self) -> bool {
        self.aborted.get() || self.channel.borrow().as_ref().is_none_or(|c| c.is_lost())
    }

    /// Waits until it is [`stopped`](Request::stopped).
    pub(crate) async fn halted(&self) {
        while !self.stopped() {
            self.stop.wait().await;
        }
    }

    /// There is a command of this channel with this tag here, and it has not been answered.
    pub(crate) fn has(&self, channel: &Rc<Channel>, tag: Tag) -> bool {
        let same = |c: &Rc<Channel>| Rc::ptr_eq(c, channel);
        self.task.get() != Task::None
            && self.tag.get() == tag
            && self.channel.borrow().as_ref().is_some_and(same)
    }

    /// It is a command of this nexus to this LUN for which there was no unit, and has not been answered.
    pub(crate) fn is_unplaced(&self, nexus: Nexus, lun: Lun) -> bool {
        let by_it = |c: &Rc<Channel>| c.view.nexus() == nexus;
        self.unplaced.get() == Some(lun) && self.channel.borrow().as_ref().is_some_and(by_it)
    }

    /// Has a task end without an answer.
    pub(crate) fn abort(&self) {
        self.aborted.set(true);
        self.stop.signal_all();
    }

    /// Waits until a task that was aborted can have no effect any more.
    pub(crate) async fn aborted(&self) {
        while self.aborted.get() && self.task.get() == Task::Runs && !has(Bug::AbortAnsweredEarly) {
            self.ended.wait().await;
        }
    }

    /// The connection of this command is gone.
    pub(crate) fn lost(&self) {
        self.stop.signal_all();
    }

    /// Waits for a buffer, for as long as somebody wants the command's answer. A longer one than there is is as
    /// good as stopped.
    pub(crate) async fn buffer(&self, len: usize) -> Result<Lent, Stop> {
        let share = &self.channel().share;
        if len > share.max_len() {
            return Err(Stop);
        }
        if let Some(b) = self.purse.try_take(share, len) {
            return Ok(b);
        }
        let mut taken = pin!(self.purse.take(share, len));
        while !self.stopped() {
            if let Some(b) = unless(self.stop.wait(), taken.as_mut()).await {
                return if self.stopped() { Err(Stop) } else { Ok(b) };
            }
        }
        Err(Stop)
    }

    /// Begins to fetch the part of a descriptor table that did not come with the command, beside the command.
    ///
    /// The table's buffer is taken before the command has any, and belongs to the fetch, which waits for no other:
    /// commands that hold the data's and wait for the table's could hold all that there are.
    async fn fetch_table(self: &Rc<Self>, channel: &Rc<Channel>, missing: Descriptor, out: bool) {
        if has(Bug::TableHeldUp) {
            let (me, channel) = (self.clone(), channel.clone());
            spawn_task(async move {
                let bdt = if out { &me.data_out } else { &me.data_in };
                let table = channel.share.alloc(missing.len as usize).await;
                bdt.fetch(&me.port.trace, &channel, missing, table).await;
            });
            return;
        }
        let Ok(table) = self.buffer(missing.len as usize).await else {
            let bdt = if out { &self.data_out } else { &self.data_in };
            return bdt.fail(&self.port.trace);
        };
        let (me, channel, table) = (self.clone(), channel.clone(), table.clone());
        spawn_task(async move {
            let bdt = if out { &me.data_out } else { &me.data_in };
            let fetch = bdt.fetch(&me.port.trace, &channel, missing, table);
            if let Err(p) = contained_future(fetch).await {
                bdt.give_up();
                channel.broke(&p);
            }
        });
    }

    /// The request's loop (START to FREE and round again).
    pub(crate) async fn run(self: Rc<Self>) {
        loop {
            self.enter(RequestState::RecvBufferWait);
            let size = self.port.config.policy.max_iu_len as usize;
            let buf = self.port.recv_pool.alloc(size).await;
            let (token, message) = completion();
            self.port.recv_queue.post(buf.clone(), token);
            self.port.arm();
            self.enter(RequestState::RecvWait);
            let c = message.await;
            let channel = if c.is_ok() { self.port.sender(c.source).await } else { None };
            self.port.disarm();
            if let Some(channel) = channel {
                channel.begin();
                *self.channel.borrow_mut() = Some(channel.clone());
                // Pinned here: it is large, and would be moved for each command.
                let message = pin!(self.message(&channel, buf, c.len as usize));
                let done = contained_future(message).await;
                if let Err(p) = &done {
                    channel.broke(p);
                    self.replace();
                }
                self.task.set(Task::None);
                self.unplaced.set(None);
                self.aborted.set(false);
                self.channel.take();
                self.ended.signal_all();
                channel.end();
                if done.is_err() || self.port.is_stopped() {
                    return;
                }
            } else {
                drop(buf);
            }
            self.enter(RequestState::Free);
        }
    }

    /// Has a new request take the place of this one, which has panicked: where its machines stand nobody knows.
    #[cold]
    fn replace(&self) {
        if self.port.is_stopped() {
            return;
        }
        let new = Request::new(self.id, self.port.clone());
        if let Some(place) = self.port.requests.borrow_mut().get_mut(self.id as usize) {
            *place = new.clone();
        }
        new.start();
    }

    async fn message(self: &Rc<Self>, channel: &Rc<Channel>, buf: Slice, len: usize) {
        let iu = buf.sub(0, len);
        // SAFETY: the message is complete; the provider writes no more to this buffer, and nobody else
        // has it until it is dropped.
        let bytes = unsafe { iu.bytes() };
        match Iu::decode(bytes, &channel.context) {
            Ok(Iu::Command(c)) => {
                if channel.charge() {
                    self.command(channel, &c, &buf).await;
                }
            }
            Ok(Iu::TaskManagement(t)) => {
                if channel.charge() {
                    drop(buf);
                    self.tag.set(t.tag);
                    self.enter(RequestState::AsyncHoldWait);
                    let code = self.port.manage(self, channel, &t).await;
                    self.enter(RequestState::AsyncWait);
                    self.answer_code(channel, t.tag, code).await;
                }
            }
            Ok(Iu::InitiatorLogout(_)) => {
                if channel.charge() {
                    channel.refund();
                }
                channel.close("the initiator logged out", None);
            }
            Ok(Iu::CreditResponse(_)) | Ok(Iu::EventResponse(_)) => channel.answered(),
            Err(e) => self.malformed(channel, &e).await,
        }
    }

    /// A message that is no valid IU: answered where that is possible, else the channel ends.
    #[cold]
    async fn malformed(self: &Rc<Self>, channel: &Rc<Channel>, e: &IuError) {
        tracing::warn!(peer = %channel.peer, error = %e, "malformed message");
        let reason = Some(weir_proto_srp::misc::LogoutReason::InvalidIuType);
        channel.malformed.set(channel.malformed.get() + 1);
        if channel.malformed.get() > MOST_MALFORMED {
            return channel.close("its messages are wrong again and again", reason);
        }
        match e.answer() {
            Some((tag, code)) => {
                if channel.charge() {
                    self.enter(RequestState::AsyncWait);
                    self.answer_code(channel, tag, code).await;
                }
            }
            None => channel.close(&format!("the host does not speak SRP: {e}"), reason),
        }
    }

    /// SRP_CMD.
    async fn command(self: &Rc<Self>, channel: &Rc<Channel>, c: &Command<'_>, buf: &Slice) {
        self.tag.set(c.tag);
        self.enter(RequestState::SubmitWait);
        let port = &self.port;
        channel.view.refresh(&port.shared.access, &port.units);
        let lun = Lun(c.lun);
        let mut pass = channel.view.find(lun).map(|a| a.pass_of(c.tag.0));
        self.task.set(Task::Runs);
        self.unplaced.set(pass.is_none().then_some(lun));
        // The table's fetch runs in parallel with the command.
        for (bdt, buffer) in [(&self.data_out, &c.data_out), (&self.data_in, &c.data_in)] {
            if bdt.load(&port.trace, buffer)
                && let Some(missing) = buffer.missing_table()
            {
                self.fetch_table(channel, missing, std::ptr::eq(bdt, &self.data_out)).await;
            }
        }
        self.enter(RequestState::PartialsWait);
        let mut cdb = [0; CDB];
        let cdb_len = c.cdb.len().min(CDB);
        cdb[..cdb_len].copy_from_slice(&c.cdb[..cdb_len]);
        let immediate = match c.data_out {
            Buffer::Immediate { data } => {
                // Where in the receive buffer it lies; the buffer stays with the command.
                let at = usize::from(channel.context.immediate_offset.unwrap_or(0));
                Some(buf.sub(at, data.len()))
            }
            _ => None,
        };
        let solicit = c.solicit;
        let out_len = c.data_out.len();
        let in_len = c.data_in.len();
        let tag = c.tag;
        self.enter(RequestState::Active);
        let mut dma = Dma { request: self, immediate, state: Cell::new(DmaState::START) };
        let result = match &mut pass {
            // It was stopped while it waited for its table.
            _ if self.stopped() => Err(Stop),
            Some(p) => p.execute(&channel.view, &cdb[..cdb_len], &mut dma).await,
            None => {
                let identity = &port.shared.identity;
                execute_unmapped(
                    &channel.view,
                    identity,
                    &port.pool,
                    lun,
                    &cdb[..cdb_len],
                    &mut dma,
                )
                .await
            }
        };
        drop(dma);
        let fenced = pass.as_ref().and_then(|p| p.end());
        let mut over = false;
        if let Ok(o) = &result
            && !o.abort_tasks_of.is_empty()
            && let Some(p) = pass.take()
        {
            // It is done itself, and must not be waited for by those that it waits for.
            let aside = p.aside();
            self.task.set(Task::Waits);
            self.ended.signal_all();
            let by = channel.view.nexus();
            if !has(Bug::PreemptedGoOn) {
                aside.fence(Whom::Only(o.abort_tasks_of.clone()), End::Aborted(by)).await;
            }
            // Who ended it meanwhile has promised that its own answer is not heard any more: by task management, or by
            // taking the unit away, which counts for more.
            let p = aside.back();
            let ended = matches!(p.end(), Some(End::Aborted(_) | End::Gone));
            over = ended && !has(Bug::PreemptorAnswers);
            pass = Some(p);
        }
        if self.aborted.get() || over || (fenced.is_some() && result.is_err()) {
            self.enter(RequestState::Datc);
        }
        self.enter(RequestState::DmaDrainWait);
        // Transfers have drained with the command itself; a table may still be on its way.
        self.data_out.settle().await;
        self.data_in.settle().await;
        let answer = match result {
            Ok(o) if !over && !self.stopped() => Some(o),
            // The data could not be moved though nobody stopped it: the descriptors are at fault.
            Err(_) if !self.stopped() && fenced.is_none() => None,
            _ => return self.end_in_silence(channel, pass.as_ref()).await,
        };
        match answer {
            Some(o) => self.respond(channel, pass.as_ref(), &o, out_len, in_len, solicit).await,
            None => self.answer_code(channel, tag, RspCode::FieldsInvalid).await,
        }
    }

    /// Waits for a slot in the send queue; the later waits of the document are for resources that never
    /// run short here (the response is encoded on the stack, completions take no slot).
    #[inline]
    async fn reserve(&self, channel: &Rc<Channel>) -> bool {
        self.enter(RequestState::SendQueueWait);
        if !channel.conn.send_slots().try_wait() {
            channel.conn.send_slots().wait().await;
        }
        // An abort may have come while this waited.
        if self.aborted.get() {
            channel.conn.send_slots().signal();
            return false;
        }
        self.enter(RequestState::SendBufferWait);
        self.enter(RequestState::CompletionQueueWait);
        true
    }

    async fn respond(
        &self,
        channel: &Rc<Channel>,
        pass: Option<&Pass>,
        o: &Outcome,
        out_len: u32,
        in_len: u32,
        solicit: weir_proto_srp::Solicit,
    ) {
        if !self.reserve(channel).await {
            return self.end_in_silence(channel, None).await;
        }
        let residuals = Residuals {
            data_out: Lengths { command: o.command_out, buffer: out_len },
            data_in: Lengths { command: o.command_in, buffer: in_len },
        }
        .residuals(o.moved_out, o.moved_in);
        let good = o.status == Status::Good.code();
        let mut r =
            Response::scsi(self.tag.get(), o.status, channel.release()).with_residuals(residuals);
        r.solicited = solicit.wants(good);
        if o.has_sense() {
            let mut sense = [0; SENSE_LEN_MAX];
            let n = o.encode_sense(&mut sense);
            self.post(channel, &r.with_sense(&sense[..n]));
        } else {
            self.post(channel, &r);
        }
        if let Some(p) = pass {
            p.told();
        }
        self.let_go().await;
    }

    /// Answers with response data instead of a status.
    async fn answer_code(&self, channel: &Rc<Channel>, tag: Tag, code: RspCode) {
        // A short way for answers without a command: the states in between have nothing to wait for.
        channel.conn.send_slots().wait().await;
        let r = Response::code(tag, code, channel.release());
        self.post(channel, &r);
        if self.state.get() == RequestState::DmaDrainWait {
            self.enter(RequestState::AsyncWait);
        }
        self.let_go().await;
    }

    fn post(&self, channel: &Rc<Channel>, r: &Response<'_>) {
        let flags = SendFlags { solicited: r.solicited, invalidate: None };
        let max = channel.response_len;
        if r.sense.is_empty() {
            let mut iu = [0; 48];
            if let Ok(n) = r.encode(&mut iu, max) {
                return channel.conn.send(&iu[..n], None, flags, Token::NONE);
            }
        }
        let mut iu = [0; 512];
        match r.encode(&mut iu, max) {
            Ok(n) => channel.conn.send(&iu[..n], None, flags, Token::NONE),
            // No response fits only when the negotiated length is below the least allowed.
            Err(_) => channel.conn.send_slots().signal(),
        }
    }

    /// The command is over without a response: aborted, or its channel is gone. Its credit goes back with
    /// the next response, or with a CRED_REQ when there will be none.
    #[cold]
    async fn end_in_silence(&self, channel: &Rc<Channel>, pass: Option<&Pass>) {
        // Another nexus, or the unit's reset, has aborted it: TASK ABORTED where the control mode page says so (TAS).
        let tas = !self.aborted.get()
            && pass.is_some_and(|p| match p.end() {
                Some(End::Aborted(by)) if by != channel.view.nexus() => {
                    p.unit().shared().with(|s| s.task_aborted_status())
                }
                _ => false,
            });
        if tas && !channel.is_lost() {
            self.enter(RequestState::AsyncWait);
            run_async().await;
            channel.conn.send_slots().wait().await;
            let r = Response::scsi(self.tag.get(), Status::TaskAborted.code(), channel.release());
            self.post(channel, &r);
        } else {
            self.enter(RequestState::AsyncWait);
            run_async().await;
            channel.refund();
        }
        self.let_go().await;
    }

    /// BDT WAIT: gives the descriptor tables back.
    #[inline]
    async fn let_go(&self) {
        self.enter(RequestState::BdtWait);
        self.release_tables().await;
    }

    #[inline]
    async fn release_tables(&self) {
        self.data_out.release(&self.port.trace).await;
        self.data_in.release(&self.port.trace).await;
    }
}

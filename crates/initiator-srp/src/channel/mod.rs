//! One channel: login, commands in flight, responses, task management.
//!
//! A command's future may be dropped at any time. Its registrations end at once, so that its memory can
//! be used for something else; a target that still moves its data then breaks the connection's rules and
//! loses it, which the session repairs. The tag stays taken until the target has answered the command
//! or its ABORT TASK.

mod ladder;
mod receive;
mod slot;
mod submit;
mod task;

pub(crate) use ladder::Escalate;
pub use ladder::Rung;
pub use slot::Outcome;
pub use task::TaskError;

use crate::planted::{Bug, has};
use slot::{CommandId, State, Table};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use weir_base::{Nanos, SECONDS};
use weir_fabric::{Connection, FabricError, Params, Provider, Unclaimed};
use weir_mem::Slice;
use weir_proto_srp::credit::Credits;
use weir_proto_srp::login::{BufferFormats, MultiChannelAction};
use weir_proto_srp::policy::settle;
use weir_proto_srp::{
    Descriptor, Form, LoginReject, LoginRequest, LoginResponse, PortId, RejectReason, Tag,
};
use weir_reactor::{CompletionQueue, WaitChannel, completion, spawn_task};

/// Where immediate data starts in an IU, as Linux asks for it.
const IMMEDIATE_OFFSET: u16 = 68;
/// Entries of an indirect table at most.
pub const MAX_TABLE: usize = 256;
/// Bytes of a receive buffer: the longest IU that a target may send.
const RESPONSE: usize = 512;

/// Settings of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelConfig {
    /// The target's port.
    pub target: PortId,
    /// Our port.
    pub initiator: PortId,
    /// End other channels of this nexus, or join them.
    pub action: MultiChannelAction,
    /// Number of the hardware queue, in tags; below 32 768.
    pub queue: u16,
    /// Commands in flight at most, from 1.
    pub depth: u16,
    /// Writes up to this many bytes go with the command; 0 turns that off.
    pub immediate: u32,
    /// RDMA READs of the target that we serve at once.
    pub reads: u16,
    /// Entries of an indirect table that travel in the command, up to 255; the target fetches the others.
    pub inline_entries: u8,
    /// A command without an answer after so many nanoseconds is aborted; 0 waits for ever.
    pub command_timeout: Nanos,
    /// How long a task management function may take, in nanoseconds (Linux: 5 s).
    pub task_timeout: Nanos,
    /// Ask the target to tell events of its units (AESOLNT); see [`Channel::on_event`].
    pub events: bool,
}

impl ChannelConfig {
    /// A first channel (action terminate) between these ports with Linux's settings: 128 commands, immediate
    /// data up to 8 KiB, 30 s for a command and 5 s for task management.
    pub fn new(target: PortId, initiator: PortId) -> Self {
        ChannelConfig {
            target,
            initiator,
            action: MultiChannelAction::Terminate,
            queue: 0,
            depth: 128,
            immediate: 8192,
            reads: 16,
            inline_entries: 12,
            command_timeout: 30 * SECONDS,
            task_timeout: 5 * SECONDS,
            events: false,
        }
    }
}

/// Why a channel cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The target refused the login.
    #[error("the target refused the login: {0}")]
    Rejected(RejectReason),
    /// The fabric could not connect.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The answer makes no sense.
    #[error("bad login response: {0}")]
    BadResponse(String),
    /// The reactor that was to hold the channel has ended.
    #[error("the reactor of the channel has ended")]
    NoReactor,
}

/// A command came to no end at the target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unfinished {
    /// The channel ended before the command was sent.
    #[error("the channel ended before the command was sent")]
    NotSent,
    /// What the sender knew of the unit was out of date before the command was sent.
    #[error("something became known of the unit before the command was sent")]
    Stale,
    /// The channel ended when the command was with the target: it may have been done or not.
    #[error("the channel ended before the command did")]
    InDoubt,
    /// It took too long and was aborted: it may have been done, in part or not at all, and will not be done
    /// later.
    #[error("the command was aborted after its time was up")]
    Aborted,
    /// The data cannot be described in one command.
    #[error("{0}")]
    Invalid(&'static str),
    /// The fabric has no room for another registration.
    #[error(transparent)]
    Fabric(FabricError),
}

/// What a channel holds at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelCensus {
    /// Command slots.
    pub slots: usize,
    /// Slots in use.
    pub busy: usize,
    /// Registrations of commands in flight.
    pub registrations: usize,
    /// Credits: commands and task management functions that the target would take now.
    pub credits: i32,
    /// Free places in the send queue.
    pub send_slots: u32,
    /// Commands that wait for a slot or a credit.
    pub waiting: usize,
}

/// What is done about an event: gets the logical unit number and the sense data.
pub type EventHandler = Rc<dyn Fn(u64, &[u8])>;

/// The same for an answer that nobody looks at; without sense data where none has come.
pub(crate) type UnseenHandler = Rc<dyn Fn(u64, &[u8])>;

/// A logged-in channel of the present reactor.
pub struct Channel {
    conn: Rc<dyn Connection>,
    config: ChannelConfig,
    immediate: u32,
    max_inline: usize,
    table: RefCell<Table>,
    /// Free slots.
    slot_units: WaitChannel,
    /// At least as many as there are credits for commands. A unit without a credit vanishes when it is
    /// taken: task management took the credit.
    credit_units: WaitChannel,
    credits: RefCell<Credits>,
    tasks: RefCell<Vec<task::Pending>>,
    task_number: Cell<u32>,
    /// The ladder sleeps until there are commands, or work for it.
    ladder_idle: Cell<bool>,
    ladder_work: WaitChannel,
    /// Descriptors of the command that is being written.
    scratch: RefCell<Vec<Descriptor>>,
    up: Cell<bool>,
    /// An answer to the target waits for a place in the send queue.
    answering: Cell<bool>,
    on_event: RefCell<Option<EventHandler>>,
    on_unseen: RefCell<Option<UnseenHandler>>,
    /// Released when the channel is down.
    ended: WaitChannel,
}

impl Channel {
    /// Logs in. Commands that take too long are aborted; when that does not help the channel ends.
    ///
    /// # Errors
    /// The target refuses, cannot be reached, or does not speak SRP.
    pub async fn connect(
        provider: &dyn Provider,
        addr: &str,
        config: ChannelConfig,
    ) -> Result<Rc<Channel>, ChannelError> {
        Channel::connect_with(provider, addr, config, None).await
    }

    /// Logs in; `escalate` is told when an abort does not help.
    pub(crate) async fn connect_with(
        provider: &dyn Provider,
        addr: &str,
        config: ChannelConfig,
        escalate: Option<Rc<dyn Escalate>>,
    ) -> Result<Rc<Channel>, ChannelError> {
        let table_len = 48 + 20 + 16 * u32::from(config.inline_entries);
        let request = LoginRequest {
            tag: Tag(0),
            request_iu_len: 276.max(table_len).max(u32::from(IMMEDIATE_OFFSET) + config.immediate),
            formats: BufferFormats::BOTH,
            action: config.action,
            immediate: config.immediate > 0,
            immediate_offset: if config.immediate > 0 { IMMEDIATE_OFFSET } else { 0 },
            initiator: config.initiator,
            target: config.target,
            logout_solicited: false,
            credit_solicited: false,
            event_solicited: config.events,
        };
        let mut bytes = [0; 64];
        let n = request
            .encode(Form::RdmaCm, &mut bytes)
            .map_err(|e| ChannelError::BadResponse(e.to_string()))?;
        let depth = config.depth.max(1);
        // One for each command, one for a task management function, one for the target's own request.
        let receives = usize::from(depth) + 3;
        let recv_queue = provider.recv_queue(receives, RESPONSE)?;
        let cq = Rc::new(CompletionQueue::new());
        let all = Slice::heap(receives * RESPONSE);
        let buffers: Vec<Slice> = (0..receives).map(|i| all.sub(i * RESPONSE, RESPONSE)).collect();
        for (i, b) in buffers.iter().enumerate() {
            recv_queue.post(b.clone(), cq.token(i as u32));
        }
        let params = Params {
            private_data: bytes[..n].to_vec(),
            recv_queue: recv_queue.clone(),
            reads_out: 0,
            reads_in: config.reads,
        };
        let (conn, answer) = provider.connect(addr, params).await.map_err(|e| match e {
            FabricError::Rejected(data) => match LoginReject::decode(&data) {
                Ok(r) => ChannelError::Rejected(r.reason),
                Err(_) => ChannelError::Rejected(RejectReason::Unspecified),
            },
            e => ChannelError::Fabric(e),
        })?;
        // From here on the connection must not outlive this future unless a channel comes of it.
        let conn = Unclaimed::new(conn);
        let bad = |e: String| ChannelError::BadResponse(e);
        let response = LoginResponse::decode(&answer).map_err(|e| bad(e.to_string()))?;
        let agreed =
            settle(&request, &response, RESPONSE as u32).map_err(|e| bad(e.to_string()))?;
        let credits = Credits::new(response.credits);
        let commands = credits.commands();
        let room = agreed.request_iu_len.saturating_sub(48 + 20) as usize / 16;
        let channel = Rc::new(Channel {
            conn: conn.claim(),
            immediate: match agreed.immediate_offset {
                // No more than the target takes in one IU.
                Some(at) => {
                    config.immediate.min(agreed.request_iu_len.saturating_sub(u32::from(at)))
                }
                None => 0,
            },
            max_inline: usize::from(config.inline_entries).min(room),
            table: RefCell::new(Table::new(depth)),
            slot_units: WaitChannel::new(u32::from(depth)),
            credit_units: WaitChannel::new(commands),
            credits: RefCell::new(credits),
            tasks: RefCell::default(),
            task_number: Cell::new(0),
            ladder_idle: Cell::new(false),
            ladder_work: WaitChannel::new(0),
            scratch: RefCell::default(),
            up: Cell::new(true),
            answering: Cell::new(false),
            on_event: RefCell::default(),
            on_unseen: RefCell::default(),
            ended: WaitChannel::new(0),
            config,
        });
        channel.conn.set_tap(Some(Rc::new(receive::ResponseTap(Rc::downgrade(&channel)))));
        let (token, closed) = completion();
        channel.conn.on_closed(token);
        let receiver =
            spawn_task(receive::receive(channel.clone(), recv_queue, cq.clone(), buffers.clone()));
        let c = channel.clone();
        spawn_task(async move {
            closed.await;
            c.conn.set_tap(None);
            weir_reactor::cancel(receiver);
            // What came before the end still counts.
            while let Some((user, done)) = cq.try_next() {
                c.message(&buffers[user as usize], done);
            }
            c.fail_all();
        });
        spawn_task(ladder::supervise(channel.clone(), escalate));
        Ok(channel)
    }

    /// True until the channel ends.
    #[inline]
    pub fn is_up(&self) -> bool {
        self.up.get()
    }

    /// Ends the channel: in order, or `now`.
    pub fn disconnect(&self, now: bool) {
        self.conn.disconnect(now);
    }

    /// Waits for the end of the channel.
    pub async fn ended(&self) {
        while self.up.get() {
            self.ended.wait().await;
        }
    }

    /// Has `f` told every event of a unit that the target sends (SRP_AER_REQ). What an event says is also a unit
    /// attention of the next command.
    pub fn on_event(&self, f: EventHandler) {
        *self.on_event.borrow_mut() = Some(f);
    }

    /// Has `f` told of commands that have ended at the target, and not with GOOD, while nobody waited for their ends any
    /// more: what the target says once has been said.
    pub(crate) fn on_unseen(&self, f: UnseenHandler) {
        *self.on_unseen.borrow_mut() = Some(f);
    }

    #[cold]
    fn unseen(&self, lun: u64, sense: &[u8]) {
        let handler = self.on_unseen.borrow().clone();
        if let Some(f) = handler.filter(|_| !has(Bug::UnseenIsUnsaid)) {
            f(lun, sense);
        }
    }

    /// Why it ended; empty while it is up.
    pub fn close_reason(&self) -> String {
        self.conn.close_reason()
    }

    /// The target's address.
    pub fn peer(&self) -> String {
        self.conn.peer()
    }

    /// Commands that nobody waits for any more and that the target has neither answered nor aborted.
    pub(crate) fn given_up(&self) -> Vec<CommandId> {
        let t = self.table.borrow();
        let orphans = (0..t.slots.len()).filter(|i| t.slots[*i].state == State::Orphan);
        orphans.map(|i| t.id(i as u16)).collect()
    }

    /// What is in use.
    pub fn census(&self) -> ChannelCensus {
        let t = self.table.borrow();
        ChannelCensus {
            slots: t.slots.len(),
            busy: t.in_use(),
            registrations: t.slots.iter().map(|s| s.keys.len()).sum(),
            credits: self.credits.borrow().balance(),
            send_slots: self.conn.send_slots().count(),
            waiting: self.slot_units.waiting() + self.credit_units.waiting(),
        }
    }

    /// Runs a command with the data of `data_out` for the target and room in `data_in` for what it gives.
    ///
    /// Dropping the future gives the command up; see the module's text.
    ///
    /// # Errors
    /// The channel ended, or the command took too long.
    pub async fn command(
        &self,
        lun: u64,
        cdb: &[u8],
        data_out: &[Slice],
        data_in: &[Slice],
    ) -> Result<Outcome, Unfinished> {
        self.command_if(lun, cdb, data_out, data_in, || true).await
    }

    /// As [`command`](Channel::command), if `fresh` says so when the command has all it needs to be sent.
    pub(crate) async fn command_if(
        &self,
        lun: u64,
        cdb: &[u8],
        data_out: &[Slice],
        data_in: &[Slice],
        fresh: impl Fn() -> bool,
    ) -> Result<Outcome, Unfinished> {
        if !self.try_acquire() {
            self.acquire().await?;
        }
        if !fresh() {
            self.conn.send_slots().signal();
            self.refund();
            self.slot_units.signal();
            return Err(Unfinished::Stale);
        }
        let index = self.submit(lun, cdb, data_out, data_in)?;
        self.in_flight(index).await
    }

    /// Sends a command if there is nothing to wait for, and gives its slot, for [`in_flight`](Channel::in_flight).
    #[inline]
    pub(crate) fn try_command(
        &self,
        lun: u64,
        cdb: &[u8],
        data_out: &[Slice],
        data_in: &[Slice],
    ) -> Option<Result<u16, Unfinished>> {
        self.try_acquire().then(|| self.submit(lun, cdb, data_out, data_in))
    }

    /// The end of the command in this slot.
    #[inline]
    pub(crate) fn in_flight(&self, index: u16) -> InFlight<'_> {
        InFlight { channel: self, index }
    }

    /// Takes a slot, a credit and a place in the send queue, if all are there.
    #[inline]
    fn try_acquire(&self) -> bool {
        if !self.up.get() || !self.slot_units.try_wait() {
            return false;
        }
        if self.credit_units.try_wait() && self.credits.borrow_mut().take_command() {
            if self.conn.send_slots().try_wait() {
                return true;
            }
            self.refund();
        }
        self.slot_units.signal();
        false
    }

    /// As [`try_acquire`](Channel::try_acquire), in the order of arrival.
    #[cold]
    async fn acquire(&self) -> Result<(), Unfinished> {
        struct Credit<'a>(&'a Channel);
        impl Drop for Credit<'_> {
            fn drop(&mut self) {
                self.0.refund();
            }
        }
        let slot = self.slot_units.acquire(1).await;
        // One that waited for its slot until the channel had ended: no credit comes any more.
        if !self.up.get() && !has(Bug::CreditOfTheEnded) {
            return Err(Unfinished::NotSent);
        }
        let credit = loop {
            let unit = self.credit_units.acquire(1).await;
            if !self.up.get() {
                return Err(Unfinished::NotSent);
            }
            unit.forget();
            if self.credits.borrow_mut().take_command() {
                break Credit(self);
            }
        };
        let place = self.conn.send_slots().acquire(1).await;
        if !self.up.get() {
            return Err(Unfinished::NotSent);
        }
        slot.forget();
        std::mem::forget(credit);
        place.forget();
        Ok(())
    }

    /// A credit was taken and not used.
    fn refund(&self) {
        self.credits.borrow_mut().refund();
        self.credit_units.signal();
    }

    /// The command in this slot is given up or over, for its future.
    #[inline]
    fn let_go(&self, index: u16) {
        let (free, orphan, unseen) = {
            let mut t = self.table.borrow_mut();
            let s = &mut t.slots[usize::from(index)];
            for key in s.keys.drain(..) {
                self.conn.deregister(key);
            }
            let orphan = s.state == State::Sent;
            // Whoever has looked has taken the outcome away.
            let missed = s.state == State::Done && !s.outcome.is_good();
            let unseen =
                missed.then(|| (s.lun, std::mem::replace(&mut s.outcome, Outcome::none())));
            (t.let_go(index), orphan, unseen)
        };
        if let Some((lun, o)) = unseen {
            self.unseen(lun, o.sense());
        }
        if free {
            self.slot_units.signal();
        } else if orphan {
            self.wake_ladder();
        }
    }

    fn wake_ladder(&self) {
        self.ladder_idle.set(false);
        self.ladder_work.signal_first();
    }

    /// The end of the channel: nothing will be answered.
    fn fail_all(&self) {
        self.up.set(false);
        let mut wakers = Vec::new();
        let mut freed = 0;
        {
            let mut t = self.table.borrow_mut();
            for i in 0..t.slots.len() {
                let s = &mut t.slots[i];
                s.managed = false;
                match s.state {
                    State::Sent => {
                        s.state = State::Lost;
                        wakers.extend(s.waker.take());
                    }
                    State::Orphan | State::Spent => {
                        t.set_free(i as u16);
                        freed += 1;
                    }
                    _ => {}
                }
            }
        }
        self.slot_units.signal_n(freed);
        for w in wakers {
            w.wake();
        }
        self.tasks_lost();
        // Whoever waits for a credit finds the channel down.
        let n = self.credit_units.waiting() as u32;
        self.credit_units.signal_n(n);
        self.wake_ladder();
        self.ended.signal_all();
    }
}

/// A command with the target.
pub(crate) struct InFlight<'a> {
    channel: &'a Channel,
    index: u16,
}

impl InFlight<'_> {
    #[inline]
    fn poll_trouble(&mut self, cx: &Context<'_>) -> Poll<Option<Result<Outcome, Unfinished>>> {
        let mut t = self.channel.table.borrow_mut();
        let s = &mut t.slots[usize::from(self.index)];
        match s.state {
            State::Sent => {
                s.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            State::Good => Poll::Ready(None),
            State::Done => {
                Poll::Ready(Some(Ok(std::mem::replace(&mut s.outcome, Outcome::none()))))
            }
            State::Aborted => Poll::Ready(Some(Err(Unfinished::Aborted))),
            _ => Poll::Ready(Some(Err(Unfinished::InDoubt))),
        }
    }
}

/// As awaiting the command, but `None` when it ended with GOOD and moved all its data.
pub(crate) struct Trouble<'a>(pub(crate) InFlight<'a>);

impl Future for Trouble<'_> {
    type Output = Option<Result<Outcome, Unfinished>>;
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_trouble(cx)
    }
}

impl Future for InFlight<'_> {
    type Output = Result<Outcome, Unfinished>;
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_trouble(cx).map(|t| t.unwrap_or_else(|| Ok(Outcome::none())))
    }
}

impl Drop for InFlight<'_> {
    #[inline]
    fn drop(&mut self) {
        self.channel.let_go(self.index);
    }
}

//! One channel: login, commands in flight, responses.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};
use weir_base::Nanos;
use weir_fabric::{Access, Connection, FabricError, Params, Provider, SendFlags};
use weir_mem::Slice;
use weir_proto_srp::command_builder::{BufferSpec, CommandBuilder};
use weir_proto_srp::credit::Credits;
use weir_proto_srp::initiator_tag::InitiatorTag;
use weir_proto_srp::login::{BufferFormats, MultiChannelAction};
use weir_proto_srp::misc::{CreditResponse, EventResponse};
use weir_proto_srp::policy::settle;
use weir_proto_srp::residual::Residual;
use weir_proto_srp::{
    Descriptor, Form, LoginReject, LoginRequest, LoginResponse, PortId, RejectReason, Response,
    Tag, TargetIu, decode_initiator,
};
use weir_reactor::{CompletionQueue, Token, WaitChannel, completion, now, spawn_task};

/// Sense bytes kept of a response.
const SENSE: usize = 96;
/// Where immediate data starts in an IU, as Linux asks for it.
const IMMEDIATE_OFFSET: u16 = 68;

/// Settings of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelConfig {
    /// The target's port.
    pub target: PortId,
    /// Our port.
    pub initiator: PortId,
    /// End other channels of this nexus, or join them.
    pub action: MultiChannelAction,
    /// Number of the hardware queue, in tags.
    pub queue: u16,
    /// Commands in flight at most.
    pub depth: u16,
    /// Writes up to this many bytes go with the command; 0 turns that off.
    pub immediate: u32,
    /// RDMA READs of the target that we serve at once.
    pub reads: u16,
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
}

/// How a command ended at the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// SCSI status.
    pub status: u8,
    /// Residual of DATA-OUT.
    pub out_residual: Residual,
    /// Residual of DATA-IN.
    pub in_residual: Residual,
    sense: [u8; SENSE],
    sense_len: u8,
}

impl Outcome {
    const NONE: Outcome = Outcome {
        status: 0,
        out_residual: Residual::None,
        in_residual: Residual::None,
        sense: [0; SENSE],
        sense_len: 0,
    };

    /// True for GOOD.
    pub fn is_good(&self) -> bool {
        self.status == 0
    }

    /// Sense data.
    pub fn sense(&self) -> &[u8] {
        &self.sense[..usize::from(self.sense_len)]
    }
}

/// The channel ended, or the command was given up, before there was a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the channel ended before the command did")]
pub struct Lost;

enum State {
    Free,
    Sent(Option<Waker>),
    Done,
    Lost,
}

/// A command's private data.
struct Slot {
    state: State,
    outcome: Outcome,
    started: Nanos,
}

/// A logged-in channel of the present reactor.
pub struct Channel {
    conn: Rc<dyn Connection>,
    config: ChannelConfig,
    immediate: u32,
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<u16>>,
    /// Free slots, and credits for commands.
    slot_units: WaitChannel,
    credit_units: WaitChannel,
    credits: RefCell<Credits>,
    up: Cell<bool>,
}

impl Channel {
    /// Logs in.
    ///
    /// # Errors
    /// The target refuses, cannot be reached, or does not speak SRP.
    pub async fn connect(
        provider: &dyn Provider,
        addr: &str,
        config: ChannelConfig,
    ) -> Result<Rc<Channel>, ChannelError> {
        let request_len = 276.max(u32::from(IMMEDIATE_OFFSET) + config.immediate);
        let request = LoginRequest {
            tag: Tag(0),
            request_iu_len: request_len,
            formats: BufferFormats::BOTH,
            action: config.action,
            immediate: config.immediate > 0,
            immediate_offset: if config.immediate > 0 { IMMEDIATE_OFFSET } else { 0 },
            initiator: config.initiator,
            target: config.target,
            logout_solicited: false,
            credit_solicited: false,
            event_solicited: false,
        };
        let mut bytes = [0; 64];
        let n = request
            .encode(Form::RdmaCm, &mut bytes)
            .map_err(|e| ChannelError::BadResponse(e.to_string()))?;
        let depth = u32::from(config.depth);
        let recv_queue = provider.recv_queue(depth as usize + 2, 4096)?;
        let cq = CompletionQueue::new();
        let buffers: Vec<Slice> = {
            let all = Slice::heap((depth as usize + 2) * 512);
            (0..depth as usize + 2).map(|i| all.sub(i * 512, 512)).collect()
        };
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
        let bad = |conn: &Rc<dyn Connection>, e: String| {
            conn.disconnect(true);
            ChannelError::BadResponse(e)
        };
        let response = LoginResponse::decode(&answer).map_err(|e| bad(&conn, e.to_string()))?;
        let agreed = settle(&request, &response, 512).map_err(|e| bad(&conn, e.to_string()))?;
        let credits = Credits::new(response.credits);
        let commands = credits.commands();
        let channel = Rc::new(Channel {
            conn,
            immediate: if agreed.immediate_offset.is_some() { config.immediate } else { 0 },
            slots: RefCell::new(
                (0..depth)
                    .map(|_| Slot { state: State::Free, outcome: Outcome::NONE, started: 0 })
                    .collect(),
            ),
            free: RefCell::new((0..config.depth).rev().collect()),
            slot_units: WaitChannel::new(depth),
            credit_units: WaitChannel::new(commands),
            credits: RefCell::new(credits),
            up: Cell::new(true),
            config,
        });
        spawn_task(receive(channel.clone(), recv_queue, cq, buffers));
        let (token, closed) = completion();
        channel.conn.on_closed(token);
        let c = channel.clone();
        spawn_task(async move {
            closed.await;
            c.fail_all();
        });
        Ok(channel)
    }

    /// True until the channel ends.
    pub fn is_up(&self) -> bool {
        self.up.get()
    }

    /// Ends the channel.
    pub fn disconnect(&self) {
        self.conn.disconnect(false);
    }

    /// Runs a command.
    ///
    /// # Errors
    /// [`Lost`].
    pub async fn command(
        &self,
        lun: u64,
        cdb: &[u8],
        data_out: Option<Slice>,
        data_in: Option<Slice>,
    ) -> Result<Outcome, Lost> {
        if !self.slot_units.try_wait() {
            self.slot_units.wait().await;
        }
        if !self.credit_units.try_wait() {
            self.credit_units.wait().await;
        }
        if !self.conn.send_slots().try_wait() {
            self.conn.send_slots().wait().await;
        }
        if !self.up.get() {
            self.conn.send_slots().signal();
            self.credit_units.signal();
            self.slot_units.signal();
            return Err(Lost);
        }
        self.credits.borrow_mut().take_command();
        let index = self.free.borrow_mut().pop().expect("a unit was taken for this slot");
        let tag = InitiatorTag::Command { queue: self.config.queue, index }.tag();
        let mut keys = [None; 2];
        let mut iu = [0; 128];
        let mut builder = CommandBuilder::new(tag, lun, cdb);
        let mut immediate = None;
        if let Some(d) = &data_out {
            if d.len() as u32 <= self.immediate && !d.is_empty() {
                immediate = Some(d.clone());
            } else if !d.is_empty() {
                let r = self.conn.register(d.clone(), Access::RemoteRead).map_err(|_| Lost)?;
                keys[0] = Some(r.key);
                let d = Descriptor { addr: r.addr, key: r.key, len: d.len() as u32 };
                builder = builder.data_out(BufferSpec::Direct(d));
            }
        }
        if let Some(d) = &data_in
            && !d.is_empty()
        {
            let r = self.conn.register(d.clone(), Access::RemoteWrite).map_err(|_| Lost)?;
            keys[1] = Some(r.key);
            let d = Descriptor { addr: r.addr, key: r.key, len: d.len() as u32 };
            builder = builder.data_in(BufferSpec::Direct(d));
        }
        if let Some(d) = &immediate {
            builder = builder.data_out(BufferSpec::ImmediateGather {
                offset: IMMEDIATE_OFFSET,
                len: d.len() as u32,
            });
        }
        let mut n = builder.encode(&mut iu).expect("a command fits 128 bytes");
        if immediate.is_some() {
            // The rest of the IU is gathered from where it lies.
            n = usize::from(IMMEDIATE_OFFSET);
        }
        {
            let mut slots = self.slots.borrow_mut();
            let s = &mut slots[usize::from(index)];
            s.state = State::Sent(None);
            s.started = now();
        }
        self.conn.send(&iu[..n], immediate, SendFlags::default(), Token::NONE);
        let result = std::future::poll_fn(|cx| {
            let mut slots = self.slots.borrow_mut();
            let s = &mut slots[usize::from(index)];
            match &mut s.state {
                State::Sent(w) => {
                    *w = Some(cx.waker().clone());
                    Poll::Pending
                }
                State::Done => Poll::Ready(Ok(s.outcome)),
                _ => Poll::Ready(Err(Lost)),
            }
        })
        .await;
        for key in keys.into_iter().flatten() {
            self.conn.deregister(key);
        }
        self.slots.borrow_mut()[usize::from(index)].state = State::Free;
        self.free.borrow_mut().push(index);
        self.slot_units.signal();
        result
    }

    /// Credits that came with an IU of the target.
    #[inline]
    fn credit(&self, delta: i32) {
        let mut c = self.credits.borrow_mut();
        let before = c.commands();
        if c.add(delta).is_err() {
            drop(c);
            return self.conn.disconnect(true);
        }
        let n = c.commands().saturating_sub(before);
        drop(c);
        self.credit_units.signal_n(n);
    }

    /// A response came.
    #[inline]
    fn respond(&self, r: &Response<'_>) {
        self.credit(r.delta);
        let Some(InitiatorTag::Command { queue, index }) = InitiatorTag::from_tag(r.tag) else {
            return;
        };
        if queue != self.config.queue {
            return;
        }
        let mut slots = self.slots.borrow_mut();
        let Some(s) = slots.get_mut(usize::from(index)) else { return };
        if let State::Sent(w) = &mut s.state {
            let waker = w.take();
            s.outcome.status = if r.code.is_some() { 0x02 } else { r.status };
            s.outcome.out_residual = r.out_residual;
            s.outcome.in_residual = r.in_residual;
            let n = r.sense.len().min(SENSE);
            s.outcome.sense_len = n as u8;
            if n > 0 {
                s.outcome.sense[..n].copy_from_slice(&r.sense[..n]);
            }
            s.state = State::Done;
            drop(slots);
            if let Some(w) = waker {
                w.wake();
            }
        }
    }

    fn fail_all(&self) {
        self.up.set(false);
        let mut wakers = Vec::new();
        for s in self.slots.borrow_mut().iter_mut() {
            if let State::Sent(w) = &mut s.state {
                wakers.extend(w.take());
                s.state = State::Lost;
            }
        }
        for w in wakers {
            w.wake();
        }
        // Whoever waits for a credit finds the channel down.
        let n = self.credit_units.waiting() as u32;
        self.credit_units.signal_n(n);
    }

    fn answer(&self, bytes: &[u8]) {
        if self.conn.send_slots().try_wait() {
            self.conn.send(bytes, None, SendFlags::default(), Token::NONE);
        }
    }
}

/// Harvests what the target sends.
async fn receive(
    channel: Rc<Channel>,
    queue: Rc<dyn weir_fabric::RecvQueue>,
    cq: CompletionQueue,
    buffers: Vec<Slice>,
) {
    loop {
        let (user, c) = cq.next().await;
        let buf = &buffers[user as usize];
        let iu = buf.sub(0, (c.len as usize).min(buf.len()));
        {
            // SAFETY: the message is complete and the buffer is not posted again before this ends.
            let bytes = unsafe { iu.bytes() };
            match decode_initiator(bytes) {
                Ok(TargetIu::Response(r)) => channel.respond(&r),
                Ok(TargetIu::CreditRequest(r)) => {
                    channel.credit(r.delta);
                    channel.answer(&CreditResponse { tag: r.tag }.to_bytes());
                }
                Ok(TargetIu::EventRequest(r)) => {
                    channel.credit(r.delta);
                    channel.answer(&EventResponse { tag: r.tag }.to_bytes());
                }
                Ok(TargetIu::TargetLogout(_)) => channel.conn.disconnect(false),
                Err(_) => channel.conn.disconnect(true),
            }
        }
        queue.post(buf.clone(), cq.token(user));
    }
}

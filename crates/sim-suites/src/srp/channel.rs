//! One channel as a strict host sees it: every response is for a request that waits, every credit adds up,
//! every transfer ends before its response.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_base::{MICROS, Nanos, Prng};
use weir_fabric::{Access, Connection, FabricError, Params, Provider, RecvQueue, SendFlags};
use weir_mem::{BufPool, Slice};
use weir_proto_srp::command_builder::{BufferSpec, CommandBuilder};
use weir_proto_srp::login::{BufferFormats, MultiChannelAction};
use weir_proto_srp::misc::{CreditResponse, EventResponse, InitiatorLogout};
use weir_proto_srp::policy::settle;
use weir_proto_srp::residual::Residual;
use weir_proto_srp::types::{DESCRIPTOR_LEN, Solicit};
use weir_proto_srp::{
    Descriptor, Form, LoginReject, LoginRequest, LoginResponse, Negotiated, PortId, Response,
    RspCode, Tag, TargetIu, TaskFunction, TaskManagement, decode_initiator,
};
use weir_reactor::{
    CompletionQueue, TaskId, Token, WaitChannel, cancel, completion, now, sleep, spawn_task,
    timeout,
};
use weir_sim::Odds;

/// Receive buffers are of this length.
const RECV: usize = 512;
/// Where immediate data starts.
const OFFSET: u16 = 68;

/// What is wrong with the target, once something is: shared by all hosts of a world.
#[derive(Clone, Default)]
pub struct Fault(Rc<RefCell<Option<String>>>);

impl Fault {
    /// Keeps the first thing that is wrong.
    pub fn set(&self, what: String) {
        self.0.borrow_mut().get_or_insert(what);
    }

    /// What is wrong.
    pub fn get(&self) -> Option<String> {
        self.0.borrow().clone()
    }
}

/// What a response said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// SCSI status.
    pub status: u8,
    /// RSP_CODE of the response data, if there is any.
    pub code: Option<RspCode>,
    /// Residual of DATA-OUT.
    pub out_residual: Residual,
    /// Residual of DATA-IN.
    pub in_residual: Residual,
    /// Sense data.
    pub sense: Vec<u8>,
    /// Since the request was sent, in nanoseconds.
    pub took: Nanos,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// With a response.
    Answered(Answer),
    /// By task management: there will be no response, and nothing more happens.
    Aborted,
    /// The channel is gone; what became of it is not known.
    Lost,
}

/// How a host builds its requests.
#[derive(Debug, Clone)]
pub(crate) struct Style {
    /// Longest immediate data; 0 for none.
    pub(crate) immediate: u32,
    /// Most descriptors of one table.
    pub(crate) descriptors: usize,
    /// How long a command may take before it is aborted.
    pub(crate) timeout: Nanos,
    /// How often it is aborted for no reason, soon.
    pub(crate) impatient: Odds,
    /// RDMA READs that the host serves at once: least and most.
    pub(crate) reads: (u16, u16),
}

/// A request that waits for its response.
struct Call {
    ended: RefCell<Option<Ended>>,
    event: WaitChannel,
    lun: u64,
    began: Nanos,
}

impl Call {
    fn end(&self, how: Ended) {
        let mut e = self.ended.borrow_mut();
        if e.is_none() {
            *e = Some(how);
            self.event.signal();
        }
    }
}

/// Why there is no channel.
#[derive(Debug)]
pub(crate) enum NoChannel {
    /// By the target or the fabric, in words.
    Refused(String),
    /// The answer cannot be.
    Wrong(String),
}

/// A logged-in channel.
pub struct Channel {
    conn: Rc<dyn Connection>,
    pool: BufPool,
    fault: Fault,
    style: Style,
    negotiated: Negotiated,
    rng: RefCell<Prng>,
    calls: RefCell<BTreeMap<u64, Rc<Call>>>,
    next_tag: Cell<u64>,
    /// Tags of requests that were aborted: they are used again at once.
    free_tags: RefCell<Vec<u64>>,
    /// Commands to come that have little time, whatever the style.
    hurried: Cell<u32>,
    /// Requests that may be sent. The last is kept for task management.
    credits: Cell<u32>,
    granted: u32,
    /// A barrier: credits have come, or the channel has gone.
    credit_came: WaitChannel,
    up: Cell<bool>,
    queue: Rc<dyn RecvQueue>,
    tasks: RefCell<Vec<TaskId>>,
    /// Memory registered now.
    registered: Cell<u32>,
}

/// What a login brings.
pub(crate) struct Login<'a> {
    pub(crate) provider: &'a dyn Provider,
    pub(crate) pool: &'a BufPool,
    pub(crate) addr: &'a str,
    pub(crate) initiator: PortId,
    pub(crate) target: PortId,
    pub(crate) action: MultiChannelAction,
    pub(crate) style: Style,
    pub(crate) form: Form,
    pub(crate) fault: Fault,
}

impl Channel {
    pub(crate) async fn login(l: Login<'_>, mut rng: Prng) -> Result<Rc<Channel>, NoChannel> {
        let immediate = l.style.immediate;
        let table = 48 + 16 + 20 + l.style.descriptors * DESCRIPTOR_LEN;
        let request = LoginRequest {
            tag: Tag(rng.next_u64()),
            request_iu_len: (u32::from(OFFSET) + immediate).max(table as u32).max(276),
            formats: BufferFormats::BOTH,
            action: l.action,
            immediate: immediate > 0,
            immediate_offset: if immediate > 0 { OFFSET } else { 0 },
            initiator: l.initiator,
            target: l.target,
            logout_solicited: false,
            credit_solicited: rng.chance(1, 2),
            event_solicited: rng.chance(1, 2),
        };
        let mut bytes = [0; 64];
        let n = request.encode(l.form, &mut bytes).map_err(|e| NoChannel::Wrong(e.to_string()))?;
        let count = 8 + rng.below(60) as usize;
        let queue =
            l.provider.recv_queue(count, RECV).map_err(|e| NoChannel::Refused(e.to_string()))?;
        let cq = CompletionQueue::new();
        let memory = Slice::heap(count * RECV);
        let buffers: Vec<Slice> = (0..count).map(|i| memory.sub(i * RECV, RECV)).collect();
        for (i, b) in buffers.iter().enumerate() {
            queue.post(b.clone(), cq.token(i as u32));
        }
        let params = Params {
            private_data: bytes[..n].to_vec(),
            recv_queue: queue.clone(),
            reads_out: 0,
            reads_in: rng.between(u64::from(l.style.reads.0), u64::from(l.style.reads.1)) as u16,
        };
        let made = l.provider.connect(l.addr, params).await;
        let (conn, answer) = made.map_err(|e| match e {
            FabricError::Rejected(data) => match LoginReject::decode(&data) {
                Ok(r) if r.tag == request.tag => NoChannel::Refused(r.reason.to_string()),
                Ok(r) => NoChannel::Wrong(format!("the rejection is for login {:?}", r.tag)),
                Err(_) => NoChannel::Refused("without a reason".to_string()),
            },
            other => NoChannel::Refused(other.to_string()),
        })?;
        let wrong = |what: String| NoChannel::Wrong(format!("login response: {what}"));
        let response = LoginResponse::decode(&answer).map_err(|e| wrong(e.to_string()))?;
        let negotiated =
            settle(&request, &response, RECV as u32).map_err(|e| wrong(e.to_string()))?;
        let granted = response.credits as u32;
        let channel = Rc::new(Channel {
            conn,
            pool: l.pool.clone(),
            fault: l.fault,
            style: l.style,
            negotiated,
            rng: RefCell::new(rng.fork()),
            calls: RefCell::default(),
            next_tag: Cell::new(rng.next_u64() >> 1),
            free_tags: RefCell::default(),
            hurried: Cell::new(0),
            credits: Cell::new(granted),
            granted,
            credit_came: WaitChannel::new(0),
            up: Cell::new(true),
            queue,
            tasks: RefCell::default(),
            registered: Cell::new(0),
        });
        let c = channel.clone();
        let receiver = spawn_task(async move { c.receive(cq, buffers).await });
        channel.tasks.borrow_mut().push(receiver);
        let (token, closed) = completion();
        channel.conn.on_closed(token);
        let c = channel.clone();
        spawn_task(async move {
            closed.await;
            c.closed();
        });
        Ok(channel)
    }

    /// True until it ends.
    pub fn is_up(&self) -> bool {
        self.up.get() && self.conn.is_open()
    }

    fn wrong(&self, what: &str) {
        self.fault.set(format!("channel qp {} to {}: {what}", self.conn.qp(), self.conn.peer()));
    }

    fn draw<R>(&self, f: impl FnOnce(&mut Prng) -> R) -> R {
        f(&mut self.rng.borrow_mut())
    }

    /// Ends it, in one of the ways in which hosts do.
    pub fn end(&self) {
        match self.draw(|r| r.below(3)) {
            0 => self.conn.disconnect(true),
            1 => self.conn.disconnect(false),
            _ => {
                if self.is_up() && self.conn.send_slots().try_wait() {
                    let r = InitiatorLogout { tag: Tag(self.tag()) };
                    self.conn.send(&r.to_bytes(), None, SendFlags::default(), Token::NONE);
                }
                self.conn.disconnect(false);
            }
        }
    }

    /// Waits until its connection has ended.
    pub async fn ended(&self) {
        let (token, closed) = completion();
        self.conn.on_closed(token);
        closed.await;
    }

    /// Waits until it is gone with everything.
    pub async fn gone(&self) {
        self.ended().await;
        while self.registered.get() > 0 || !self.calls.borrow().is_empty() {
            sleep(10 * MICROS).await;
        }
    }

    fn closed(&self) {
        self.up.set(false);
        let reason = self.conn.close_reason();
        // No fault of the network looks like this.
        if reason.contains("wrong key") || reason.contains("longer than") {
            self.wrong(&format!("the target broke a rule of the fabric: {reason}"));
        }
        for c in self.calls.take().into_values() {
            c.end(Ended::Lost);
        }
        self.credit_came.signal_all();
        for t in self.tasks.take() {
            cancel(t);
        }
    }

    fn tag(&self) -> u64 {
        if let Some(tag) = self.free_tags.borrow_mut().pop() {
            return tag;
        }
        self.next_tag.set(self.next_tag.get().wrapping_add(1));
        self.next_tag.get()
    }

    // Receiving.

    async fn receive(&self, cq: CompletionQueue, buffers: Vec<Slice>) {
        loop {
            let (i, c) = cq.next().await;
            let buf = &buffers[i as usize];
            if !c.is_ok() {
                self.wrong(&format!("a message longer than {RECV} bytes"));
                return;
            }
            let bytes = buf.sub(0, c.len as usize).to_vec();
            buf.fill(0xdd);
            self.queue.post(buf.clone(), cq.token(i));
            if bytes.len() as u32 > self.negotiated.response_iu_len {
                self.wrong(&format!("a message of {} bytes", bytes.len()));
            }
            match decode_initiator(&bytes) {
                Ok(TargetIu::Response(r)) => self.response(&r),
                Ok(TargetIu::CreditRequest(r)) => {
                    self.credit(r.delta);
                    self.reply(&CreditResponse { tag: r.tag }.to_bytes()).await;
                }
                Ok(TargetIu::EventRequest(r)) => {
                    self.credit(r.delta);
                    self.reply(&EventResponse { tag: r.tag }.to_bytes()).await;
                }
                Ok(TargetIu::TargetLogout(_)) => self.conn.disconnect(false),
                Err(e) => self.wrong(&format!("no SRP message: {e}")),
            }
        }
    }

    async fn reply(&self, bytes: &[u8]) {
        self.conn.send_slots().wait().await;
        self.conn.send(bytes, None, SendFlags::default(), Token::NONE);
    }

    fn credit(&self, delta: i32) {
        let Ok(delta) = u32::try_from(delta) else {
            return self.wrong(&format!("a negative credit, {delta}"));
        };
        self.credits.set(self.credits.get() + delta);
        if self.credits.get() > self.granted {
            self.wrong(&format!("{} credits of {} granted", self.credits.get(), self.granted));
        }
        self.credit_came.signal_all();
    }

    fn response(&self, r: &Response<'_>) {
        self.credit(r.delta);
        let call = self.calls.borrow_mut().remove(&r.tag.0);
        let Some(call) = call else {
            return self.wrong(&format!("a response for {:?}, which does not wait for one", r.tag));
        };
        call.end(Ended::Answered(Answer {
            status: r.status,
            code: r.code,
            out_residual: r.out_residual,
            in_residual: r.in_residual,
            sense: r.sense.to_vec(),
            took: now() - call.began,
        }));
    }

    // Sending.

    /// Takes a credit, leaving `keep` for others; false when the channel is gone.
    async fn take_credit(&self, keep: u32) -> bool {
        while self.is_up() && self.credits.get() <= keep {
            self.credit_came.wait().await;
        }
        if self.is_up() {
            self.credits.set(self.credits.get() - 1);
        }
        self.is_up()
    }

    /// A request was not sent after all.
    fn give_up(&self, tag: Option<u64>) -> Ended {
        if let Some(t) = tag {
            self.calls.borrow_mut().remove(&t);
        }
        self.conn.send_slots().signal();
        self.credits.set(self.credits.get() + 1);
        self.credit_came.signal_all();
        Ended::Lost
    }

    fn begin(&self, lun: u64) -> (u64, Rc<Call>) {
        let tag = self.tag();
        let call =
            Call { ended: RefCell::default(), event: WaitChannel::new(0), lun, began: now() };
        let call = Rc::new(call);
        self.calls.borrow_mut().insert(tag, call.clone());
        (tag, call)
    }

    /// Waits for the end of a request.
    async fn end_of(&self, call: &Call) -> Ended {
        loop {
            if let Some(e) = call.ended.borrow().clone() {
                return e;
            }
            call.event.wait().await;
        }
    }

    /// Lets the target use `memory`, in pieces of its own registrations.
    fn describe(&self, memory: &Slice, access: Access) -> Option<(Vec<Descriptor>, Vec<u32>)> {
        let most = self.style.descriptors.min(memory.len()).max(1);
        let n = self.draw(|r| r.between(1, most as u64)) as usize;
        let mut cuts: Vec<usize> =
            (1..n).map(|_| self.draw(|r| r.between(1, memory.len() as u64 - 1)) as usize).collect();
        cuts.extend([0, memory.len()]);
        cuts.sort_unstable();
        cuts.dedup();
        let (mut all, mut keys) = (Vec::new(), Vec::new());
        for w in cuts.windows(2) {
            let part = memory.sub(w[0], w[1] - w[0]);
            match self.conn.register(&part, access) {
                Ok(r) => {
                    keys.push(r.key);
                    all.push(Descriptor { addr: r.addr, key: r.key, len: part.len() as u32 });
                }
                Err(_) => {
                    self.release(&keys);
                    return None;
                }
            }
            self.registered.set(self.registered.get() + 1);
        }
        Some((all, keys))
    }

    fn release(&self, keys: &[u32]) {
        for k in keys {
            self.conn.deregister(*k);
            self.registered.set(self.registered.get() - 1);
        }
    }

    /// Runs a command. `data_out` and `data_in` are the whole buffers.
    pub async fn command(
        self: &Rc<Self>,
        lun: u64,
        cdb: &[u8],
        data_out: Option<&Slice>,
        data_in: Option<&Slice>,
    ) -> Ended {
        self.command_noted(lun, cdb, data_out, data_in, || {}).await
    }

    /// As [`command`](Channel::command); calls `on_send` when the request is handed to the network.
    pub async fn command_noted(
        self: &Rc<Self>,
        lun: u64,
        cdb: &[u8],
        data_out: Option<&Slice>,
        data_in: Option<&Slice>,
        on_send: impl FnOnce(),
    ) -> Ended {
        // The last credit is kept for task management.
        if !self.take_credit(1).await {
            return Ended::Lost;
        }
        // Everything that is waited for comes before the request exists.
        let table = self.pool.alloc(4096).await;
        self.conn.send_slots().wait().await;
        if !self.is_up() {
            return self.give_up(None);
        }
        let (tag, call) = self.begin(lun);
        let mut iu = vec![0; self.negotiated.request_iu_len.max(276) as usize];
        let mut keys = Vec::new();
        let mut inline: [Vec<Descriptor>; 2] = Default::default();
        let mut specs = [BufferSpec::None; 2];
        let mut gathered = None;
        let mut table_at = 0;
        let room = (self.negotiated.request_iu_len as usize - 48 - 16 - 40) / DESCRIPTOR_LEN;
        for (i, (memory, access)) in
            [(data_out, Access::RemoteRead), (data_in, Access::RemoteWrite)].into_iter().enumerate()
        {
            let Some(memory) = memory.filter(|m| !m.is_empty()) else { continue };
            let offset = self.negotiated.immediate_offset;
            if i == 0
                && let Some(offset) = offset
                && memory.len() as u32
                    <= self.style.immediate.min(self.negotiated.request_iu_len - u32::from(offset))
                && data_in.is_none()
                && self.draw(|r| r.chance(2, 3))
            {
                specs[0] = BufferSpec::ImmediateGather { offset, len: memory.len() as u32 };
                gathered = Some(memory.clone());
                continue;
            }
            let Some((list, mine)) = self.describe(memory, access) else {
                self.release(&keys);
                return self.give_up(Some(tag));
            };
            keys.extend(mine);
            if let ([one], true) = (&list[..], self.draw(|r| r.chance(3, 4))) {
                specs[i] = BufferSpec::Direct(*one);
                continue;
            }
            // The whole table in memory, and as much of it in the request as is drawn.
            let bytes: Vec<u8> = list.iter().flat_map(|d| d.to_bytes()).collect();
            let place = table.sub(table_at, bytes.len());
            table_at += bytes.len();
            place.write_at(0, &bytes);
            let Ok(r) = self.conn.register(&place, Access::RemoteRead) else {
                self.release(&keys);
                return self.give_up(Some(tag));
            };
            self.registered.set(self.registered.get() + 1);
            keys.push(r.key);
            let most = list.len().min(room / 2);
            let n = match self.draw(|r| r.chance(1, 2)) {
                true => most,
                false => self.draw(|r| r.below(most as u64 + 1)) as usize,
            };
            let total = memory.len() as u32;
            inline[i] = list[..n].to_vec();
            specs[i] = BufferSpec::Indirect {
                table: Descriptor { addr: r.addr, key: r.key, len: bytes.len() as u32 },
                total,
                inline: &[],
            };
        }
        for (spec, list) in specs.iter_mut().zip(&inline) {
            if let BufferSpec::Indirect { inline, .. } = spec {
                *inline = list;
            }
        }
        let builder = CommandBuilder::new(Tag(tag), lun, cdb).data_out(specs[0]).data_in(specs[1]);
        let n = match builder.encode(&mut iu) {
            Ok(n) => {
                if gathered.is_some() {
                    usize::from(OFFSET)
                } else {
                    n
                }
            }
            Err(e) => {
                self.wrong(&format!("the host cannot write its own command: {e}"));
                usize::from(OFFSET)
            }
        };
        on_send();
        self.conn.send(&iu[..n], gathered, SendFlags::default(), Token::NONE);
        let ended = self.watch(tag, &call).await;
        self.release(&keys);
        // Whoever still reads the table now reads rubbish.
        table.fill(0xdd);
        ended
    }

    /// The next so many commands are aborted soon, whatever the style.
    pub fn hurry(&self, commands: u32) {
        self.hurried.set(commands);
    }

    /// Waits for a command; aborts it when it takes too long.
    async fn watch(self: &Rc<Self>, tag: u64, call: &Rc<Call>) -> Ended {
        let hurried = self.hurried.replace(self.hurried.get().saturating_sub(1)) > 0;
        let limit = match self.draw(|r| self.style.impatient.hit(r)) || hurried {
            true => self.draw(|r| r.below(500 * MICROS)),
            false => self.style.timeout,
        };
        if let Ok(e) = timeout(limit, self.end_of(call)).await {
            return e;
        }
        self.manage(TaskFunction::AbortTask, call.lun, tag).await;
        self.end_of(call).await
    }

    /// Runs a task management function; true when it is complete. What it ends is ended then; a channel
    /// whose target does not even answer this is ended.
    pub async fn manage(self: &Rc<Self>, function: TaskFunction, lun: u64, victim: u64) -> bool {
        match self.manage_any(function, lun, victim).await {
            Some(RspCode::Complete) => true,
            Some(code) => {
                self.wrong(&format!("{function} was answered with {code:?}"));
                false
            }
            None => false,
        }
    }

    /// As [`manage`](Channel::manage), where the target may have reasons to refuse. `None`: the channel is gone.
    pub async fn manage_any(
        self: &Rc<Self>,
        function: TaskFunction,
        lun: u64,
        victim: u64,
    ) -> Option<RspCode> {
        let credit = timeout(self.style.timeout, self.take_credit(0)).await;
        if credit != Ok(true) {
            self.conn.disconnect(true);
            return None;
        }
        self.conn.send_slots().wait().await;
        if !self.is_up() {
            self.give_up(None);
            return None;
        }
        let before: Vec<(u64, Rc<Call>)> =
            self.calls.borrow().iter().map(|(t, c)| (*t, c.clone())).collect();
        let (tag, call) = self.begin(lun);
        let tmf = TaskManagement {
            tag: Tag(tag),
            lun,
            function,
            task_tag: Tag(victim),
            solicit: Solicit::default(),
        };
        let mut iu = [0; 48];
        let n = match tmf.encode(&mut iu) {
            Ok(n) => n,
            Err(e) => {
                self.wrong(&format!("the host cannot write its own request: {e}"));
                48
            }
        };
        self.conn.send(&iu[..n], None, SendFlags::default(), Token::NONE);
        let ended = timeout(self.style.timeout, self.end_of(&call)).await;
        let Ok(Ended::Answered(a)) = ended else {
            self.conn.disconnect(true);
            self.end_of(&call).await;
            return None;
        };
        let code = a.code.filter(|_| a.status == 0);
        if code != Some(RspCode::Complete) {
            if code.is_none() {
                self.wrong(&format!("{function} was answered with {a:?}"));
            }
            return code;
        }
        // Responses sent before this one have arrived before it. So whoever has none is aborted.
        for (t, c) in before {
            let hit = match function {
                TaskFunction::AbortTask => t == victim,
                _ => c.lun == lun && t != tag,
            };
            // The tag may be that of another request by now.
            let there = self.calls.borrow().get(&t).is_some_and(|x| Rc::ptr_eq(x, &c));
            if hit && there && self.calls.borrow_mut().remove(&t).is_some() {
                c.end(Ended::Aborted);
                self.free_tags.borrow_mut().push(t);
            }
        }
        code
    }
}

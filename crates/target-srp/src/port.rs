//! A target port's part on one reactor: its pools, its requests, its channels.

use crate::channel::{Channel, Login};
use crate::config::TargetConfig;
use crate::nexus::NexusName;
use crate::planted::{Bug, has};
use crate::request::Request;
use crate::target::{self, TargetShared};
use crate::trace::Trace;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use weir_fabric::{FabricError, Provider, RecvQueue};
use weir_mem::{BufPool, Census};
use weir_proto_srp::states::RequestState;
use weir_reactor::{WaitChannel, get_part, remove_part, set_part, spawn_task};
use weir_target_core::{Receives, Units, spread};

/// Connections that are remembered as refused.
const REFUSED: usize = 1024;

/// What of a port's resources is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortCensus {
    /// Request structures.
    pub requests: usize,
    /// Those that hold a message.
    pub requests_busy: usize,
    /// Those without a receive buffer.
    pub requests_waiting: usize,
    /// Receive buffers posted.
    pub receives_posted: usize,
    /// Channels.
    pub channels: usize,
    /// Credits granted to channels.
    pub credits: u32,
    /// Receive buffers.
    pub recv_pool: Vec<Census>,
    /// Data buffers; the reactor's, shared with others.
    pub data_pool: Vec<Census>,
}

/// A target port on one reactor.
pub struct Port {
    pub(crate) config: TargetConfig,
    pub(crate) shared: Arc<TargetShared>,
    pub(crate) provider: Rc<dyn Provider>,
    pub(crate) units: Rc<Units>,
    pub(crate) pool: BufPool,
    pub(crate) recv_pool: BufPool,
    pub(crate) recv_queue: Rc<dyn RecvQueue>,
    pub(crate) trace: Trace,
    pub(crate) requests: RefCell<Vec<Rc<Request>>>,
    /// It has ended: no request takes another message.
    stopped: Cell<bool>,
    /// Ascending by connection number.
    channels: RefCell<Vec<(u32, Rc<Channel>)>>,
    /// Accepts under way: messages of unknown connections may belong to one of them.
    pub(crate) accepting: Cell<u32>,
    pub(crate) established: WaitChannel,
    /// Connections that were accepted and refused after that, until nobody else is being accepted.
    refused: RefCell<BTreeSet<u32>>,
    /// Logins between their acceptance here and the end of their channels.
    pub(crate) logins: Cell<u32>,
    /// Nexuses of logins under way here.
    joining: RefCell<Vec<NexusName>>,
    receives: Receives,
    next_channel: Cell<u32>,
    /// Requests that have posted a receive and not yet looked at its message.
    armed: Cell<usize>,
}

impl Port {
    /// Puts the target on the present reactor: pools are made, requests started.
    ///
    /// # Errors
    /// Not enough memory, or the provider refuses.
    pub(crate) fn start(
        shared: Arc<TargetShared>,
        provider: Rc<dyn Provider>,
        units: Rc<Units>,
        pool: BufPool,
    ) -> Result<Rc<Port>, FabricError> {
        let config = shared.config.clone();
        let size = (config.policy.max_iu_len as usize).next_multiple_of(4096);
        let table = crate::bdt::table_bytes(config.policy.max_table_entries);
        assert!(table <= pool.max_len(), "a descriptor table fits a buffer");
        let (recv_pool, recv_queue) =
            spread::receives(&*provider, &pool, size, config.recv_buffers)?;
        let count = config.requests.div_ceil(shared.reactor_count()).max(1);
        let receives =
            Receives::new(config.recv_buffers, config.max_channels, crate::config::LEAST + 1, 0);
        let port = Rc::new(Port {
            receives,
            config,
            shared,
            provider,
            units,
            pool,
            recv_pool,
            recv_queue,
            trace: Trace::default(),
            requests: RefCell::default(),
            stopped: Cell::new(false),
            channels: RefCell::default(),
            accepting: Cell::new(0),
            established: WaitChannel::new(0),
            refused: RefCell::default(),
            logins: Cell::new(0),
            joining: RefCell::default(),
            next_channel: Cell::new(0),
            armed: Cell::new(0),
        });
        for id in 0..count as u32 {
            let r = Request::new(id, port.clone());
            r.start();
            port.requests.borrow_mut().push(r);
        }
        set_part(port.shared.spread.id(), port.clone());
        Ok(port)
    }

    /// The part of a target on the present reactor.
    pub(crate) fn local(target: u64) -> Option<Rc<Port>> {
        get_part(target)
    }

    /// Accepts a login here.
    pub(crate) fn take_login(self: &Rc<Self>, login: Login) {
        let port = self.clone();
        port.logins.set(port.logins.get() + 1);
        port.joining.borrow_mut().push(login.name.clone());
        spawn_task(async move {
            Channel::accept(port.clone(), login).await;
            port.logins.set(port.logins.get() - 1);
        });
    }

    /// A login is not under way any more. False: the port has ended before, and with it the login's part in its nexus.
    pub(crate) fn has_joined(&self, name: &NexusName) -> bool {
        let mut all = self.joining.borrow_mut();
        all.iter().position(|n| n == name).map(|i| all.swap_remove(i)).is_some()
    }

    pub(crate) fn next_channel(&self) -> u32 {
        self.next_channel.set(self.next_channel.get() + 1);
        self.next_channel.get()
    }

    /// Sets receives aside for a channel: as many credits as wanted, but of what is left a part only, so
    /// that more channels can come; at least two. One more is for the answer to a request of ours.
    pub(crate) fn commit(&self, wanted: u32) -> Option<u32> {
        let share = |left: u32| (left / 4).max(16) + 1;
        self.receives.commit(wanted.saturating_add(1), 3, share).map(|n| n - 1)
    }

    pub(crate) fn uncommit(&self, credits: u32) {
        self.receives.uncommit(credits + 1);
    }

    pub(crate) fn add_channel(&self, c: Rc<Channel>) {
        let mut all = self.channels.borrow_mut();
        let at = all.partition_point(|(qp, _)| *qp < c.conn.qp());
        all.insert(at, (c.conn.qp(), c));
    }

    pub(crate) fn remove_channel(&self, c: &Rc<Channel>) {
        let mut all = self.channels.borrow_mut();
        let before = all.len();
        all.retain(|(_, x)| !Rc::ptr_eq(x, c));
        if all.len() < before {
            self.shared.spread.counts().gone(c.served.get());
        }
    }

    /// A channel is lost: none of its commands waits for a buffer any more.
    pub(crate) fn stop_waits(&self, c: &Rc<Channel>) {
        for r in self.requests.borrow().iter() {
            if r.channel.borrow().as_ref().is_some_and(|x| Rc::ptr_eq(x, c)) {
                r.lost();
            }
        }
    }

    /// The channels here.
    pub(crate) fn channels(&self) -> Vec<Rc<Channel>> {
        self.channels.borrow().iter().map(|(_, c)| c.clone()).collect()
    }

    #[inline]
    fn by_qp(&self, qp: u32) -> Option<Rc<Channel>> {
        let all = self.channels.borrow();
        let at = all.binary_search_by_key(&qp, |(q, _)| *q).ok()?;
        Some(all[at].1.clone())
    }

    /// The channel behind a connection number. A message that overtakes the end of its connection's
    /// set-up is held here until that is known (S4); one of a connection that is gone has no channel.
    #[inline]
    pub(crate) async fn sender(&self, qp: u32) -> Option<Rc<Channel>> {
        loop {
            if let Some(c) = self.by_qp(qp) {
                return Some(c);
            }
            if self.accepting.get() == 0 || self.refused.borrow().contains(&qp) {
                return None;
            }
            self.established.wait().await;
        }
    }

    /// An accept is over. What was refused before the last one of them is not asked for any more.
    pub(crate) fn accepted(&self) {
        self.accepting.set(self.accepting.get() - 1);
        if self.accepting.get() == 0 {
            self.refused.borrow_mut().clear();
        }
    }

    /// Nobody is to wait for this connection, which comes to nothing: what has come by it would keep its buffers.
    pub(crate) fn refuses(&self, qp: u32) {
        if !has(Bug::RefusedWaitedFor) {
            let mut all = self.refused.borrow_mut();
            all.insert(qp);
            // By then nothing of the first of them is left.
            if all.len() > REFUSED {
                all.pop_first();
            }
        }
        self.established.signal_all();
    }

    /// A request has posted its receive.
    #[inline]
    pub(crate) fn arm(&self) {
        self.armed.set(self.armed.get() + 1);
    }

    /// A request looks at its message.
    #[inline]
    pub(crate) fn disarm(&self) {
        self.armed.set(self.armed.get() - 1);
    }

    /// A message has been received and not been looked at.
    #[inline]
    pub(crate) fn has_unseen(&self) -> bool {
        self.recv_queue.posted() < self.armed.get()
    }

    /// What is in use.
    pub fn census(&self) -> PortCensus {
        let requests = self.requests.borrow();
        let count =
            |f: &dyn Fn(RequestState) -> bool| requests.iter().filter(|r| f(r.state())).count();
        let waiting = count(&|s| s == RequestState::RecvBufferWait);
        let idle = count(&|s| s == RequestState::RecvWait && s != RequestState::RecvBufferWait);
        let in_recv_with_message = requests
            .iter()
            .filter(|r| r.state() == RequestState::RecvWait && r.channel.borrow().is_some());
        PortCensus {
            requests: requests.len(),
            requests_busy: requests.len() - waiting - idle + in_recv_with_message.count(),
            requests_waiting: waiting,
            receives_posted: self.recv_queue.posted(),
            channels: self.channels.borrow().len(),
            credits: self.receives.committed(),
            recv_pool: self.recv_pool.census(),
            data_pool: self.pool.census(),
        }
    }

    /// Leaks nothing while no channel is up: every request waits for a message or a buffer, every posted
    /// receive is a request's, no credit is out.
    ///
    /// # Errors
    /// What is missing.
    pub fn check_idle(&self) -> Result<(), String> {
        let c = self.census();
        let waiting_with_buffer = c.requests - c.requests_waiting;
        if c.requests_busy != 0 {
            return Err(format!("{} requests hold a message: {c:?}", c.requests_busy));
        }
        if c.receives_posted != waiting_with_buffer {
            return Err(format!("posted receives and waiting requests differ: {c:?}"));
        }
        if c.channels == 0 && c.credits != 0 {
            return Err(format!("credits without a channel: {c:?}"));
        }
        Ok(())
    }

    /// Keeps the newest `size` state changes of the port's machines; 0 turns it off.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Ends the port on this reactor. Commands that have not ended go on to their ends, and fences wait for them.
    pub(crate) fn stop(&self) {
        remove_part::<Port>(self.shared.spread.id());
        self.stopped.set(true);
        // The fabric may take long to give them up, and their nexuses may hold units reserved.
        if !has(Bug::StoppedKeepsNexuses) {
            let joining = self.joining.take();
            joining.iter().for_each(|name| target::give_up(&self.shared, name));
        }
        for r in self.requests.take() {
            r.end();
        }
        for c in self.channels() {
            c.is_left_behind();
        }
    }

    /// It has ended.
    #[inline]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.get()
    }
}

//! A target port's part on one reactor: its pools, its requests, its channels.

use crate::aside::Aside;
use crate::channel::Channel;
use crate::config::TargetConfig;
use crate::keyed::Pending;
use crate::request::{Parts, Request};
use crate::sessions::{ChannelName, Placed};
use crate::target::{Login, TargetShared};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use weir_fabric::{FabricError, Provider, RecvQueue};
use weir_mem::{BufPool, Census, Shares, Slice};
use weir_reactor::{
    Completion, CompletionQueue, TaskId, WaitChannel, get_part, remove_part, set_part, spawn_task,
};
use weir_target_core::{Receives, Units, spread};

/// What of a port's resources is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortCensus {
    /// Requests.
    pub requests: usize,
    /// Those that run a command.
    pub requests_busy: usize,
    /// Commands that wait for a request.
    pub waiting: usize,
    /// Receive buffers posted.
    pub receives_posted: usize,
    /// Channels, with or without a connection.
    pub channels: usize,
    /// Credits granted to connections.
    pub credits: u32,
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
    pub(crate) recv_queue: Rc<dyn RecvQueue>,
    pub(crate) cq: CompletionQueue,
    /// Receive buffers, by their numbers in the completion queue. Nobody holds one beyond its message.
    receives: Vec<Slice>,
    /// Memory of commands' parts, to be used again.
    pub(crate) spare: RefCell<Vec<Parts>>,
    /// Memory of data that buffers are not for.
    pub(crate) aside: RefCell<Aside>,
    /// Requests without work, the last used on top.
    pub(crate) idle: RefCell<Vec<Rc<Request>>>,
    /// Who has how many of them, and who may have more.
    pub(crate) places: Shares,
    requests: usize,
    /// All but those of requests.
    tasks: RefCell<Vec<TaskId>>,
    /// It has ended: no request takes another command, and nothing is sent.
    stopped: Cell<bool>,
    channels: RefCell<BTreeMap<ChannelName, Rc<Channel>>>,
    /// Channels with a connection, ascending by its number.
    connected: RefCell<Vec<(u32, Rc<Channel>)>>,
    /// Accepts under way: messages of unknown connections may belong to one of them.
    pub(crate) accepting: Cell<u32>,
    /// Such messages.
    pub(crate) held: RefCell<Vec<(u32, Completion)>>,
    pub(crate) more_held: WaitChannel,
    /// Logins between their acceptance here and the end of their connections.
    pub(crate) logins: Cell<u32>,
    /// Connections that have not proved themselves yet.
    pub(crate) greetings: Pending,
    /// Channels with something to send, and who sends it.
    pub(crate) dirty: RefCell<Vec<Rc<Channel>>>,
    pub(crate) flusher: WaitChannel,
    pub(crate) harvesting: Cell<bool>,
    /// The control part that is being written.
    pub(crate) head: RefCell<Vec<u8>>,
    /// The data that goes with it.
    pub(crate) list: RefCell<Vec<Slice>>,
    /// Room for checksums that a volume has kept.
    pub(crate) kept: RefCell<Vec<u32>>,
    pub(crate) set_aside: Receives,
}

impl Port {
    /// Puts the target on the present reactor.
    ///
    /// # Errors
    /// Not enough memory, or the provider refuses.
    pub(crate) fn start(
        shared: Arc<TargetShared>,
        provider: Rc<dyn Provider>,
        units: Rc<Units>,
        pool: BufPool,
    ) -> Result<Rc<Port>, FabricError> {
        let mut config = shared.config.clone();
        config.max_len = config.max_len.min(pool.max_len() as u32);
        let size = config.max_message.next_multiple_of(4096);
        let (all, recv_queue) = spread::receives(&*provider, &pool, size, config.recv_buffers)?;
        let receives: Vec<Slice> =
            (0..config.recv_buffers).map_while(|_| all.try_alloc(size)).collect();
        let requests = config.requests.max(1);
        let least = u32::from(crate::config::LEAST);
        // An eighth at most, where there are few.
        let apart = crate::keyed::RECEIVES.min(config.recv_buffers as u32 / 8);
        let port = Rc::new(Port {
            set_aside: Receives::new(config.recv_buffers, config.max_channels, least, apart),
            config,
            shared,
            provider,
            units,
            pool,
            recv_queue,
            cq: CompletionQueue::new(),
            receives,
            spare: RefCell::default(),
            aside: RefCell::default(),
            idle: RefCell::default(),
            places: Shares::new([requests]),
            requests,
            tasks: RefCell::default(),
            stopped: Cell::new(false),
            channels: RefCell::default(),
            connected: RefCell::default(),
            accepting: Cell::new(0),
            held: RefCell::default(),
            more_held: WaitChannel::new(0),
            logins: Cell::new(0),
            greetings: Pending::default(),
            dirty: RefCell::default(),
            flusher: WaitChannel::new(0),
            harvesting: Cell::new(false),
            head: RefCell::default(),
            list: RefCell::default(),
            kept: RefCell::default(),
        });
        for number in 0..port.receives.len() as u32 {
            port.post(number);
        }
        for _ in 0..requests {
            port.idle.borrow_mut().push(Request::start(port.clone()));
        }
        *port.tasks.borrow_mut() = vec![
            spawn_task(crate::receive::harvest(port.clone())),
            spawn_task(crate::receive::harvest_held(port.clone())),
            spawn_task(crate::reply::flush_later(port.clone())),
            spawn_task(crate::tick::tick(port.clone())),
        ];
        set_part(port.shared.spread.id(), port.clone());
        Ok(port)
    }

    /// The part of a target on the present reactor.
    pub(crate) fn local(target: u64) -> Option<Rc<Port>> {
        get_part(target)
    }

    /// The buffer of a receive.
    #[inline]
    pub(crate) fn buffer(&self, number: u32) -> &Slice {
        &self.receives[number as usize]
    }

    /// Posts a receive, for the first time or again.
    #[inline]
    pub(crate) fn post(&self, number: u32) {
        self.recv_queue.post(self.receives[number as usize].clone(), self.cq.token(number));
    }

    /// Sets receives aside for a connection: as many credits as wanted or left, at least two.
    pub(crate) fn commit(&self, wanted: u16) -> Option<u16> {
        self.set_aside.commit(u32::from(wanted), 2, |left| left).map(|n| n as u16)
    }

    pub(crate) fn uncommit(&self, credits: u16) {
        self.set_aside.uncommit(u32::from(credits));
    }

    /// Accepts a login here; `draining` when what it replaces has not ended.
    pub(crate) fn take_login(self: &Rc<Self>, login: Login, draining: bool) {
        let port = self.clone();
        port.logins.set(port.logins.get() + 1);
        spawn_task(async move {
            Channel::login(port.clone(), login, draining).await;
            port.logins.set(port.logins.get() - 1);
        });
    }

    /// A channel by name.
    pub(crate) fn find(&self, name: &ChannelName) -> Option<Rc<Channel>> {
        self.channels.borrow().get(name).cloned()
    }

    /// The channels here.
    pub(crate) fn channels(&self) -> Vec<Rc<Channel>> {
        self.channels.borrow().values().cloned().collect()
    }

    pub(crate) fn add_channel(&self, c: Rc<Channel>) {
        self.channels.borrow_mut().insert(c.name, c);
    }

    /// A channel is over; with the last one of a session the units forget it.
    pub(crate) fn remove_channel(&self, c: &Rc<Channel>) {
        let known = self.find(&c.name);
        if known.is_some_and(|k| Rc::ptr_eq(&k, c)) {
            self.channels.borrow_mut().remove(&c.name);
            self.shared.spread.counts().gone(c.commands.get());
            c.waits_no_more();
            self.forget(&c.placed());
        }
    }

    /// Takes a channel off the table of sessions.
    pub(crate) fn forget(&self, channel: &Placed) {
        if let Some(nexus) = self.shared.sessions.leave(channel) {
            self.shared.access.nexus_lost(nexus);
        }
    }

    pub(crate) fn connect(&self, qp: u32, c: Rc<Channel>) {
        let mut all = self.connected.borrow_mut();
        let at = all.partition_point(|(q, _)| *q < qp);
        all.insert(at, (qp, c));
    }

    pub(crate) fn disconnect(&self, qp: u32) {
        self.connected.borrow_mut().retain(|(q, _)| *q != qp);
    }

    /// The channel behind a connection number.
    #[inline]
    pub(crate) fn by_qp(&self, qp: u32) -> Option<Rc<Channel>> {
        let all = self.connected.borrow();
        // Usually there are few, and the busiest came first.
        if let [(q, c)] = all.as_slice() {
            return (*q == qp).then(|| c.clone());
        }
        let at = all.binary_search_by_key(&qp, |(q, _)| *q).ok()?;
        Some(all[at].1.clone())
    }

    /// It has ended.
    #[inline]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    /// What is in use.
    pub fn census(&self) -> PortCensus {
        let idle = self.idle.borrow().len();
        PortCensus {
            requests: self.requests,
            requests_busy: self.requests.saturating_sub(idle),
            waiting: self.places.waiting(0),
            receives_posted: self.recv_queue.posted(),
            channels: self.channels.borrow().len(),
            credits: self.set_aside.committed(),
            data_pool: self.pool.census(),
        }
    }

    /// Leaks nothing while nothing runs: every request is idle, every receive posted, no credit out without a
    /// channel.
    ///
    /// # Errors
    /// What is missing.
    pub fn check_idle(&self) -> Result<(), String> {
        let c = self.census();
        if c.requests_busy != 0 || c.waiting != 0 {
            return Err(format!("requests hold commands: {c:?}"));
        }
        if c.receives_posted != self.config.recv_buffers {
            return Err(format!("not all receives are posted: {c:?}"));
        }
        if c.channels == 0 && c.credits != 0 {
            return Err(format!("credits without a channel: {c:?}"));
        }
        Ok(())
    }

    /// Ends the port on this reactor. Commands that have not ended go on to their ends, and fences wait for them: what was
    /// begun with a device nobody takes back.
    pub(crate) fn stop(&self) {
        remove_part::<Port>(self.shared.spread.id());
        self.stopped.set(true);
        for id in self.tasks.take() {
            weir_reactor::cancel(id);
        }
        for r in self.idle.take() {
            r.end();
        }
        for c in self.channels() {
            // What a device holds yet is waited for by writes of the host's next login, which this port knows nothing of.
            c.view.leave();
            self.forget(&c.placed());
            c.give_up_waiting();
        }
        if self.shared.spread.stops() {
            // Logins that were under way have held them.
            let all = self.shared.sessions.end_all();
            all.into_iter().for_each(|n| self.shared.access.nexus_lost(n));
        }
        self.dirty.take();
        for number in 0..self.receives.len() as u32 {
            self.recv_queue.cancel(self.cq.token(number));
        }
    }
}

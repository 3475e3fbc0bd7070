//! The provider: devices and connections of one reactor, and who hears of what.

use crate::cm::{CmEvent, EventChannel, IdKey};
use crate::conn::{Conn, Events};
use crate::device::Device;
use crate::ffi::{RDMA_CM_EVENT_CONNECT_REQUEST, ibv_device};
use crate::library::{DeviceList, Library, info};
use crate::recv::Queue;
use crate::setup::{self, Listening, Pending};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use weir_base::MILLIS;
use weir_fabric::{Connected, FabricError, Listener, Params, Provider, RecvQueue};
use weir_mem::PoolConfig;
use weir_reactor::{LocalFuture, Poller, Reactor, sleep, spawn_task, try_current_id};
use weir_uring::{Ring, Watch};

/// Which buffers the device receives into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Receive {
    /// Direct when one device with shared receive queues is used, else copied.
    #[default]
    Auto,
    /// Into the posted buffers themselves. One receive queue then serves one device.
    Direct,
    /// Into buffers of the provider's own, from which messages are copied.
    Copied,
    /// As `Copied`, with a queue of each connection's own, for adapters whose shared queues are no good.
    /// What adapters without shared queues get anyway.
    Unshared,
}

/// Settings of the provider.
#[derive(Debug, Clone)]
pub struct Config {
    /// The only device to use, by name; all of them when `None`.
    pub device: Option<String>,
    /// Work requests of one connection at once; less where the device has less.
    pub send_queue: u32,
    /// Bytes that a connection can send without registered memory, if the device can.
    pub inline: u32,
    /// Entries of a completion queue; there are as many queues as connections need.
    pub completions: u32,
    /// Which buffers the device receives into.
    pub receive: Receive,
    /// iWARP adapters need the peer's right to write for what an RDMA READ fetches. True: each READ gets a
    /// registration of its own, which costs a system call. False: the buffer pool is registered with that
    /// right, and a peer that one READs from could write to all of it. No matter to InfiniBand, RoCE and siw.
    pub private_read_sinks: bool,
    /// Requests that may wait in a listener's kernel queue.
    pub backlog: u16,
    /// Requests that may wait for [`Listener::next`] and its answer.
    pub half_open: usize,
    /// Registered buffers for what has no registered memory of its own, of each device.
    pub stage: PoolConfig,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            device: None,
            send_queue: 1024,
            inline: 256,
            completions: 16384,
            receive: Receive::Auto,
            private_read_sinks: true,
            backlog: 128,
            half_open: 128,
            stage: PoolConfig { classes: vec![(4096, 256), (64 << 10, 16)] },
        }
    }
}

/// Who hears of an identifier's events.
pub(crate) enum Sink {
    Listener(Weak<Listening>),
    /// A request that was not answered yet, perhaps on its way to another reactor.
    Pending(std::sync::Weak<Pending>),
    Events(Rc<Events>),
}

pub(crate) struct Shared {
    pub(crate) lib: Library,
    pub(crate) ring: Ring,
    pub(crate) config: Config,
    cm_watch: RefCell<Option<Watch>>,
    pub(crate) channel: Arc<EventChannel>,
    sinks: RefCell<BTreeMap<IdKey, Sink>>,
    /// By number in watch keys; a place is used again when its device is gone.
    devices: RefCell<Vec<Option<Rc<Device>>>>,
    regions: RefCell<Vec<(NonNull<u8>, usize)>>,
    ready: Rc<RefCell<VecDeque<u64>>>,
    /// Connections with something to post.
    pub(crate) dirty: RefCell<Vec<Rc<Conn>>>,
    next_number: Cell<u32>,
    /// A device that has failed may have lost its last connection.
    reap: Cell<bool>,
}

/// The verbs provider of one reactor.
#[derive(Clone)]
pub struct Verbs(pub(crate) Rc<Shared>);

/// Watch keys: the connection manager, then two of each device.
const CM: u64 = 0;

impl Verbs {
    /// Adds the provider to `reactor`, whose driver is `ring`, and opens the devices.
    ///
    /// # Errors
    /// There is no device (of the configured name), or it cannot be used.
    pub fn new(
        reactor: &Reactor,
        ring: &Ring,
        lib: Library,
        config: Config,
    ) -> Result<Verbs, FabricError> {
        let present = lib.devices()?;
        if let Some(name) = &config.device
            && !present.iter().any(|d| d.name == *name)
        {
            let names: Vec<_> = present.iter().map(|d| d.name.as_str()).collect();
            return Err(FabricError::Unavailable(format!(
                "there is no RDMA device {name}; there is {}",
                names.join(", ")
            )));
        }
        let channel = EventChannel::new(lib).map_err(|e| {
            FabricError::Unavailable(format!(
                "cannot use the RDMA connection manager: {e}; the kernel module is rdma_ucm (modprobe rdma_ucm)"
            ))
        })?;
        let shared = Rc::new(Shared {
            lib,
            ring: ring.clone(),
            config,
            cm_watch: RefCell::default(),
            channel,
            sinks: RefCell::default(),
            devices: RefCell::default(),
            regions: RefCell::default(),
            ready: Rc::default(),
            dirty: RefCell::default(),
            next_number: Cell::new(1),
            reap: Cell::new(false),
        });
        let watch = ring.watch(shared.channel.fd(), CM, shared.ready.clone());
        watch.arm(false);
        *shared.cm_watch.borrow_mut() = Some(watch);
        shared.open_all()?;
        reactor.add_poller(shared.clone());
        Ok(Verbs(shared))
    }

    /// Connections that have not ended.
    pub fn connections(&self) -> usize {
        self.0.live().iter().map(|d| d.connections().len()).sum()
    }

    /// Names of the devices that are open.
    pub fn devices(&self) -> Vec<String> {
        self.0.live().iter().map(|d| d.ctx.name.clone()).collect()
    }

    /// True when no memory of the provider's own is in use by work requests.
    pub fn is_idle(&self) -> bool {
        self.0.live().iter().all(|d| d.memory.is_idle())
    }
}

impl Shared {
    pub(crate) fn next_number(&self) -> u32 {
        let n = self.next_number.get();
        self.next_number.set(n.wrapping_add(1).max(1));
        n
    }

    fn live(&self) -> Vec<Rc<Device>> {
        self.devices.borrow().iter().flatten().cloned().collect()
    }

    pub(crate) fn set_sink(&self, key: IdKey, sink: Sink) {
        let mut sinks = self.sinks.borrow_mut();
        sinks.insert(key, sink);
        // Requests that other reactors answered leave their entries behind.
        if sinks.len().is_multiple_of(256) {
            sinks.retain(|_, s| match s {
                Sink::Pending(p) => p.strong_count() > 0,
                Sink::Listener(l) => l.strong_count() > 0,
                Sink::Events(_) => true,
            });
        }
    }

    pub(crate) fn forget_id(&self, key: IdKey) {
        let old = self.sinks.borrow_mut().remove(&key);
        drop(old);
    }

    fn allowed(&self, device: *mut ibv_device) -> bool {
        let name = info(self.lib.0, device).name;
        self.config.device.as_ref().is_none_or(|only| *only == name)
    }

    fn open_all(&self) -> Result<(), FabricError> {
        let list = DeviceList::get(self.lib.0)
            .map_err(|e| FabricError::Unavailable(format!("cannot list RDMA devices: {e}")))?;
        let mut first_error = None;
        for d in list.iter().filter(|d| self.allowed(*d)) {
            // SAFETY: the list lives.
            match unsafe { Device::open(self.lib, d, &self.config) } {
                Ok(d) => self.add_device(d),
                Err(e) => first_error = first_error.or(Some(e)),
            }
        }
        match first_error {
            Some(e) if self.live().is_empty() => Err(e),
            _ => Ok(()),
        }
    }

    fn add_device(&self, d: Rc<Device>) {
        let mut devices = self.devices.borrow_mut();
        let i = devices.iter().position(Option::is_none).unwrap_or(devices.len());
        let [channel, events] = d.fds();
        for (fd, key) in [(channel, 1 + 2 * i as u64), (events, 2 + 2 * i as u64)] {
            let w = self.ring.watch(fd, key, self.ready.clone());
            w.arm(false);
            d.watches.borrow_mut().push(w);
        }
        if i == devices.len() {
            devices.push(None);
        }
        devices[i] = Some(d);
    }

    /// The device that an identifier was bound to, opened now if it is new.
    ///
    /// # Safety
    /// As [`Device::open`].
    pub(crate) unsafe fn device(&self, raw: *mut ibv_device) -> Result<Rc<Device>, FabricError> {
        if raw.is_null() {
            return Err(FabricError::Unavailable("no RDMA device serves the address".into()));
        }
        let what = info(self.lib.0, raw);
        // SAFETY: the caller's promise.
        let guid = unsafe { (self.lib.0.ibv_get_device_guid)(raw) };
        let same = |d: &&Rc<Device>| d.guid == guid && d.ctx.name == what.name && !d.dead.get();
        if let Some(d) = self.live().iter().find(same) {
            return Ok(d.clone());
        }
        if !self.allowed(raw) {
            return Err(FabricError::Unavailable(format!(
                "the connection came in on RDMA device {}, which is not the configured one",
                what.name
            )));
        }
        // SAFETY: the caller's promise.
        let d = unsafe { Device::open(self.lib, raw, &self.config) }?;
        for &(base, len) in self.regions.borrow().iter() {
            d.add_region(base, len)?;
        }
        self.add_device(d.clone());
        Ok(d)
    }

    /// A connection of `device` is down.
    pub(crate) fn conn_ended(&self, device: &Device) {
        if device.dead.get() {
            self.reap.set(true);
        }
    }

    /// Lets go of devices that are gone, since their removal waits for that.
    fn reap(&self) {
        self.reap.set(false);
        let mut gone = Vec::new();
        for slot in self.devices.borrow_mut().iter_mut() {
            if slot.as_ref().is_some_and(|d| d.dead.get() && d.connections().is_empty()) {
                gone.extend(slot.take());
            }
        }
        if gone.is_empty() {
            return;
        }
        for d in &gone {
            d.forget_parts();
        }
        drop(gone);
        // librdmacm, too; the device may stay on the system's list for a moment.
        let lib = self.lib;
        spawn_task(async move {
            for millis in [0, 10, 100, 1000, 5000] {
                sleep(millis * MILLIS).await;
                lib.forget_removed();
            }
        });
    }

    fn cm_events(&self) {
        while let Some(mut e) = self.channel.next() {
            if e.kind == RDMA_CM_EVENT_CONNECT_REQUEST {
                let listener = match self.sinks.borrow().get(&e.key) {
                    Some(Sink::Listener(l)) => l.upgrade(),
                    _ => None,
                };
                // Without listener the new identifier is dropped, which refuses.
                if let (Some(l), Some(id)) = (listener, e.incoming.take()) {
                    l.request(self, id, e);
                }
                continue;
            }
            self.deliver(e);
        }
    }

    fn deliver(&self, e: CmEvent) {
        enum To {
            Listener(Rc<Listening>),
            Events(Rc<Events>),
            Pending(Arc<Pending>),
        }
        let to = match self.sinks.borrow().get(&e.key) {
            Some(Sink::Listener(l)) => l.upgrade().map(To::Listener),
            Some(Sink::Events(s)) => Some(To::Events(s.clone())),
            Some(Sink::Pending(p)) => p.upgrade().map(To::Pending),
            None => None,
        };
        match to {
            Some(To::Listener(l)) => l.event(self, &e),
            Some(To::Events(s)) => s.push(e),
            Some(To::Pending(p)) => p.gone(),
            None => {}
        }
    }

    fn ready(&self) -> bool {
        let mut any = false;
        loop {
            let Some(key) = self.ready.borrow_mut().pop_front() else { return any };
            any = true;
            if key == CM {
                self.cm_events();
                if let Some(w) = self.cm_watch.borrow().as_ref() {
                    w.arm(false);
                }
                continue;
            }
            let (i, which) = ((key - 1) as usize / 2, (key - 1) as usize % 2);
            let Some(d) = self.devices.borrow().get(i).cloned().flatten() else { continue };
            if which == 0 {
                d.channel_events();
            } else {
                d.async_events();
            }
            // The descriptors of a removed device are readable for ever.
            if !d.dead.get()
                && let Some(w) = d.watches.borrow().get(which)
            {
                w.arm(false);
            }
            if d.dead.get() {
                self.reap.set(true);
            }
        }
    }
}

impl Poller for Shared {
    fn poll(&self) -> bool {
        let mut busy = false;
        if !self.ready.borrow().is_empty() {
            busy |= self.ready();
        }
        let mut i = 0;
        while let Some(d) = { self.devices.borrow().get(i).cloned() } {
            if let Some(d) = d {
                busy |= d.poll();
            }
            i += 1;
        }
        if self.reap.get() {
            self.reap();
        }
        busy
    }

    fn flush(&self) {
        for d in self.devices.borrow().iter().flatten() {
            // Receives first: what goes out may give the peer credits for them.
            d.flush();
        }
        while let Some(c) = { self.dirty.borrow_mut().pop() } {
            c.flush();
        }
    }

    fn arm(&self) -> bool {
        let mut may_sleep = self.ready.borrow().is_empty();
        for d in self.devices.borrow().iter().flatten() {
            may_sleep &= d.arm();
        }
        may_sleep
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for d in self.devices.take().into_iter().flatten() {
            d.abandon();
        }
    }
}

impl Provider for Verbs {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn recv_queue(&self, depth: usize, len: usize) -> Result<Rc<dyn RecvQueue>, FabricError> {
        let devices = self.0.live();
        let shared = |d: &Rc<Device>| d.ctx.limits.srqs > 0;
        let copied = match self.0.config.receive {
            Receive::Direct => false,
            Receive::Copied | Receive::Unshared => true,
            Receive::Auto => devices.len() != 1 || !devices.iter().all(shared),
        };
        if !copied && let Some(d) = devices.iter().find(|d| !shared(d)) {
            return Err(FabricError::Unavailable(format!(
                "RDMA device {} has no shared receive queues: configure `copied` receives",
                d.ctx.name
            )));
        }
        let unshared = self.0.config.receive == Receive::Unshared;
        Ok(Queue::new(depth, len, copied, unshared))
    }

    fn register_region(&self, base: NonNull<u8>, len: usize) -> Result<(), FabricError> {
        for d in self.0.live() {
            d.add_region(base, len)?;
        }
        self.0.regions.borrow_mut().push((base, len));
        Ok(())
    }

    fn listen(&self, addr: &str) -> Result<Rc<dyn Listener>, FabricError> {
        setup::listen(&self.0, addr)
    }

    fn connect<'a>(
        &'a self,
        addr: &'a str,
        params: Params,
    ) -> LocalFuture<'a, Result<Connected, FabricError>> {
        Box::pin(setup::connect(self.0.clone(), addr, params))
    }
}

/// True inside a reactor: completions and tasks can be made.
pub(crate) fn in_reactor() -> bool {
    try_current_id().is_some()
}

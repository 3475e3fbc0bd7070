//! A target port on several reactors, whatever its protocol: which these are, logins, memory to receive into.

use crate::planted::{Bug, has};
use std::fmt::Display;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use weir_fabric::{FabricError, Incoming, Listener, Provider, RecvQueue};
use weir_mem::{BufPool, PoolConfig};
use weir_proto_scsi::lu::Nexus;
use weir_reactor::{Handle, TaskId, contained_future, spawn_task};

/// Bits that count the nexuses of one port: a thousand logins a second use them up in 34 years.
const NEXUS_BITS: u32 = 40;

static NEXT: AtomicU64 = AtomicU64::new(1);
/// News that are kept at most until somebody asks.
const NEWS: usize = 16;

/// The reactors of a target port and the number of its channels. Nothing of it is touched per command.
pub struct Spread {
    id: u64,
    reactors: Mutex<Vec<Handle>>,
    channels: AtomicUsize,
    nexuses: AtomicU64,
    /// The port is about to end: nobody is let in any more.
    closed: AtomicBool,
    /// Tasks that hold listeners, each with its reactor.
    listeners: Mutex<Vec<(u32, TaskId)>>,
    /// Connections that an error of this program has ended, and what was not told of them yet.
    broken: AtomicU64,
    news: Mutex<Vec<String>>,
}

impl Default for Spread {
    fn default() -> Self {
        Spread {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            reactors: Mutex::default(),
            channels: AtomicUsize::new(0),
            nexuses: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            listeners: Mutex::default(),
            broken: AtomicU64::new(0),
            news: Mutex::default(),
        }
    }
}

impl Spread {
    /// Names the port's part on each reactor; no two ports of a program have the same.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// A number for a new I_T nexus of the port. All ports of a node stand before the same units, so no two nexuses of
    /// a program have the same number, whatever their port and protocol; none is used twice.
    pub fn new_nexus(&self) -> Nexus {
        let port = if has(Bug::PortsShareNexuses) { 0 } else { self.id };
        Nexus(port << NEXUS_BITS | (self.nexuses.fetch_add(1, Ordering::Relaxed) + 1))
    }

    /// Adds the present reactor, which has its part of the port.
    pub fn join(&self) {
        self.reactors.lock().unwrap_or_else(PoisonError::into_inner).push(weir_reactor::handle());
    }

    /// The reactors, in the order in which they joined.
    pub fn reactors(&self) -> Vec<Handle> {
        self.reactors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets nobody in from here on, and closes the listeners of the present reactor. Comes before channels are ended:
    /// a host whose channel is ended logs in again at once.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let here = weir_reactor::current_id();
        let mut all = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        let (ours, others) = std::mem::take(&mut *all).into_iter().partition(|(r, _)| *r == here);
        *all = others;
        drop(all);
        let ours: Vec<(u32, TaskId)> = ours;
        for (_, task) in ours {
            weir_reactor::cancel(task);
        }
    }

    /// An error of this program has ended a connection: said in the log, counted, and kept for whoever
    /// [asks](Spread::take_news).
    #[cold]
    pub fn broke(&self, peer: &str, p: &dyn Display) {
        tracing::error!(%peer, error = %p, "an error of this program ends a connection");
        self.broken.fetch_add(1, Ordering::Relaxed);
        let mut news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        if news.len() < NEWS {
            news.push(format!("an error of this program has ended the connection of {peer}: {p}"));
        }
    }

    /// Connections that an error of this program has ended.
    pub fn broken(&self) -> u64 {
        self.broken.load(Ordering::Relaxed)
    }

    /// What has not been told of them.
    pub fn take_news(&self) -> Vec<String> {
        std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// True once the port is about to end.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Counts a channel more, unless there are `most` already, or the port is about to end.
    pub fn admit(&self, most: usize) -> bool {
        if self.is_closed() {
            return false;
        }
        let admitted = self.channels.fetch_add(1, Ordering::AcqRel) < most;
        if !admitted {
            self.channel_gone();
        }
        admitted
    }

    /// A channel that was [admitted](Spread::admit) is gone.
    pub fn channel_gone(&self) {
        self.channels.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Runs `f` on the reactor of this place in the list: at once if that is the present one, or if there is none.
pub fn run_at(reactors: &[Handle], place: usize, f: impl FnOnce() + Send + 'static) {
    match reactors.get(place) {
        Some(h) if h.id() != weir_reactor::current_id() => h.run(f),
        _ => f(),
    }
}

/// Listens on `addr` with the present reactor's provider, until `spread` is [closed](Spread::close) here; each login is
/// judged by a task of its own. Gives the address.
///
/// # Errors
/// The address cannot be listened on.
pub fn listen<F, Fut>(
    spread: &Arc<Spread>,
    provider: &dyn Provider,
    addr: &str,
    login: F,
) -> Result<String, FabricError>
where
    F: Fn(Box<dyn Incoming>) -> Fut + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let listener = provider.listen(addr)?;
    let local = listener.local_addr();
    let task = spawn_task(serve(spread.clone(), listener, login));
    let mut all = spread.listeners.lock().unwrap_or_else(PoisonError::into_inner);
    all.push((weir_reactor::current_id(), task));
    Ok(local)
}

async fn serve<F, Fut>(spread: Arc<Spread>, listener: Rc<dyn Listener>, login: F)
where
    F: Fn(Box<dyn Incoming>) -> Fut,
    Fut: Future<Output = ()> + 'static,
{
    loop {
        match listener.next().await {
            Ok(incoming) => {
                let (peer, judged) = (incoming.peer(), login(incoming));
                let spread = spread.clone();
                spawn_task(async move {
                    if let Err(p) = contained_future(judged).await {
                        spread.broke(&peer, &p);
                    }
                });
            }
            Err(e) => {
                tracing::error!(error = %e, "the listener ended");
                return;
            }
        }
    }
}

/// Makes `count` receive buffers of `size` bytes with their queue, and makes them and `pool` known to the provider.
///
/// # Errors
/// Not enough memory, or the provider refuses.
pub fn receives(
    provider: &dyn Provider,
    pool: &BufPool,
    size: usize,
    count: usize,
) -> Result<(BufPool, Rc<dyn RecvQueue>), FabricError> {
    let buffers = BufPool::new(&PoolConfig { classes: vec![(size, count)] })
        .map_err(|e| FabricError::Unavailable(format!("receive buffers: {e}")))?;
    for p in [&buffers, pool] {
        let (base, len) = p.region();
        provider.register_region(base, len)?;
    }
    let queue = provider.recv_queue(count, size)?;
    Ok((buffers, queue))
}

//! A target port on several reactors, whatever its protocol: which these are, logins, memory to receive into.

use crate::counts::Counts;
use crate::planted::{Bug, has};
use crate::seats::Seats;
use std::cell::Cell;
use std::fmt::Display;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use weir_base::Nanos;
use weir_fabric::{FabricError, Incoming, Listener, Provider, RecvQueue};
use weir_mem::{BufPool, PoolConfig};
use weir_proto_scsi::lu::Nexus;
use weir_reactor::{Handle, TaskId, call, contained_future, spawn_task, timeout};

/// Bits that count the nexuses of one port: a thousand logins a second use them up in 34 years.
const NEXUS_BITS: u32 = 40;

static NEXT: AtomicU64 = AtomicU64::new(1);
/// News that are kept at most until somebody asks.
const NEWS: usize = 16;

/// The reactors of a target port and the number of its channels. Nothing of it is touched per command.
pub struct Spread {
    id: u64,
    reactors: Mutex<Vec<Handle>>,
    pub(crate) seats: Seats,
    nexuses: AtomicU64,
    /// The port is about to end: nobody is let in any more.
    closed: AtomicBool,
    /// Reactors whose part has ended.
    stopped: AtomicUsize,
    /// Tasks that hold listeners, each with its reactor.
    listeners: Mutex<Vec<(u32, TaskId)>>,
    /// Connections that an error of this program has ended, and what was not told of them yet.
    broken: AtomicU64,
    news: Mutex<Vec<String>>,
    counts: Counts,
}

impl Default for Spread {
    fn default() -> Self {
        Spread {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            reactors: Mutex::default(),
            seats: Seats::default(),
            nexuses: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            stopped: AtomicUsize::new(0),
            listeners: Mutex::default(),
            broken: AtomicU64::new(0),
            news: Mutex::default(),
            counts: Counts::default(),
        }
    }
}

impl Spread {
    /// Names the port's part on each reactor; no two ports of a program have the same.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What has happened at the port.
    pub fn counts(&self) -> &Counts {
        &self.counts
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

    /// A task of the present reactor that listens for the port: it ends when the port is [closed](Spread::close) here.
    pub fn keep(&self, task: TaskId) {
        let mut all = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((weir_reactor::current_id(), task));
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

    /// The present reactor's part has ended. True when it was the last one: then nothing of the port is left that could tell
    /// units of the end of a nexus.
    pub fn stops(&self) -> bool {
        let parts = self.reactors.lock().unwrap_or_else(PoisonError::into_inner).len();
        self.stopped.fetch_add(1, Ordering::AcqRel) + 1 >= parts
    }

    /// True once the port is about to end.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// Runs `f` on the reactor of this place in the list: at once if that is the present one, or if there is none.
pub fn run_at(reactors: &[Handle], place: usize, f: impl FnOnce() + Send + 'static) {
    match reactors.get(place) {
        Some(h) if h.id() != weir_reactor::current_id() => h.run(f),
        _ => f(),
    }
}

/// Gives `what` to `f` on the reactor of this place in the list, or here if there is none.
///
/// # Errors
/// That reactor has not taken it within `limit`, or has ended: here it is again, and `f` will not get it. `None`: it is gone with
/// the reactor.
pub async fn hand_over<T: Send + 'static, R: Send + 'static>(
    reactors: &[Handle],
    place: usize,
    limit: Nanos,
    what: T,
    f: impl FnOnce(T) -> R + Send + 'static,
) -> Result<R, Option<T>> {
    let Some(there) = reactors.get(place) else { return Ok(f(what)) };
    let take = |from: &Mutex<Option<T>>| from.lock().unwrap_or_else(PoisonError::into_inner).take();
    let offered = Arc::new(Mutex::new(Some(what)));
    let theirs = offered.clone();
    let mut call = std::pin::pin!(call(there, move || async move { take(&theirs).map(f) }));
    let in_time = timeout(limit, call.as_mut()).await;
    let back = take(&offered);
    let done = match in_time {
        Ok(done) => done,
        // It has taken it at the last moment.
        Err(_) if back.is_none() => call.await,
        Err(_) => None,
    };
    done.flatten().ok_or(back)
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
    spread.keep(spawn_task(serve(spread.clone(), listener, login)));
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

/// Receive buffers of a port on one reactor, set aside for channels. As long as there are `least` for each channel that
/// the port may have, every one gets these, however many a few have been given. Some are for what is no channel yet.
#[derive(Debug)]
pub struct Receives {
    total: u32,
    least: u32,
    channels: u32,
    /// Kept from channels, to be lent.
    apart: u32,
    /// With channels, or lent.
    committed: Cell<u32>,
    lent: Cell<u32>,
    /// Channels that have some.
    here: Cell<u32>,
}

impl Receives {
    /// `total` buffers for up to `channels` channels, each of which is to have `least`; `apart` of them are only
    /// [lent](Receives::lend).
    pub fn new(total: usize, channels: usize, least: u32, apart: u32) -> Receives {
        let (total, channels) = (total as u32, channels.min(1 << 16) as u32);
        let apart = apart.min(total);
        // With fewer it is first come first served.
        let least = if least * channels <= total - apart { least } else { 0 };
        let none = || Cell::new(0);
        Receives { total, least, channels, apart, committed: none(), lent: none(), here: none() }
    }

    /// Those apart that are not lent.
    fn apart(&self) -> u32 {
        self.apart.saturating_sub(self.lent.get())
    }

    /// Not set aside for anybody: neither for channels that there are, nor for others that may come.
    fn left(&self) -> u32 {
        let to_come = self.channels.saturating_sub(self.here.get());
        let free = self.total - self.committed.get();
        free.saturating_sub(self.least * to_come + self.apart())
    }

    /// Sets buffers aside for a channel: what it has at least, or `share` of what is left if that is more; no more than
    /// `wanted`. `None`: there are not `fewest`.
    pub fn commit(&self, wanted: u32, fewest: u32, share: impl Fn(u32) -> u32) -> Option<u32> {
        let own = if self.here.get() < self.channels { self.least } else { 0 };
        let left = self.left() + own;
        let n = wanted.min(share(left).max(own)).min(left);
        if n < fewest {
            return None;
        }
        self.committed.set(self.committed.get() + n);
        self.here.set(self.here.get() + 1);
        Some(n)
    }

    /// A channel gives its buffers back.
    pub fn uncommit(&self, n: u32) {
        self.committed.set(self.committed.get() - n);
        self.here.set(self.here.get() - 1);
    }

    /// Sets buffers aside for something that is no channel, however many channels have been given.
    pub fn lend(&self, n: u32) -> bool {
        let can = n <= self.left() + self.apart();
        if can {
            self.committed.set(self.committed.get() + n);
            self.lent.set(self.lent.get() + n);
        }
        can
    }

    /// Gives back what was [lent](Receives::lend).
    pub fn give_back(&self, n: u32) {
        self.committed.set(self.committed.get() - n);
        self.lent.set(self.lent.get() - n);
    }

    /// Buffers set aside.
    pub fn committed(&self) -> u32 {
        self.committed.get()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_channel_gets_the_least_whatever_others_have_been_given() {
        for most in [1, 4, 256] {
            let r = Receives::new(100 + 5 * most, most, 5, 0);
            let quarter = |left: u32| (left / 4).max(16);
            let all: Vec<u32> = (0..most).filter_map(|_| r.commit(200, 3, quarter)).collect();
            assert_eq!(all.len(), most, "{all:?}");
            assert!(all.iter().all(|n| *n >= 5) && all[0] > 5, "{all:?}");
            assert!(!r.lend(r.total - r.committed.get() + 1));
            // The row of ends and logins makes no difference.
            for n in all.iter().rev() {
                r.uncommit(*n);
                let again = r.commit(200, 3, quarter).expect("a place");
                assert!(again >= 5);
                r.uncommit(again);
                assert!(r.commit(5, 3, quarter).is_some());
            }
            assert_eq!(r.here.get() as usize, most);
        }
    }

    #[test]
    fn with_too_few_for_all_who_comes_first_is_served_first() {
        let r = Receives::new(10, 1024, 4, 0);
        assert_eq!(r.commit(8, 2, |left| left), Some(8));
        assert_eq!(r.commit(8, 2, |left| left), Some(2));
        assert_eq!(r.commit(8, 2, |left| left), None);
        r.uncommit(2);
        assert!(r.lend(2) && !r.lend(1));
    }

    #[test]
    fn what_is_lent_is_not_kept_from_channels_nor_given_to_them() {
        let r = Receives::new(26, 4, 2, 6);
        assert_eq!(r.commit(100, 2, |left| left), Some(14));
        assert!(r.lend(4) && r.lend(2) && !r.lend(1));
        let all: Vec<u32> = (0..3).filter_map(|_| r.commit(100, 2, |left| left)).collect();
        assert_eq!(all, [2, 2, 2]);
        assert_eq!(r.commit(100, 2, |left| left), None);
        r.give_back(4);
        assert_eq!(r.commit(100, 2, |left| left), None);
        assert!(r.lend(4));
        r.uncommit(14);
        assert!(r.lend(2));
    }
}

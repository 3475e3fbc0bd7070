//! A target port on several reactors, whatever its protocol: which these are, logins, memory to receive into.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use weir_fabric::{FabricError, Incoming, Listener, Provider, RecvQueue};
use weir_mem::{BufPool, PoolConfig};
use weir_proto_scsi::lu::Nexus;
use weir_reactor::{Handle, spawn_task};

/// Bits that count the nexuses of one port: a thousand logins a second use them up in 34 years.
const NEXUS_BITS: u32 = 40;

static NEXT: AtomicU64 = AtomicU64::new(1);

/// The reactors of a target port and the number of its channels. Nothing of it is touched per command.
pub struct Spread {
    id: u64,
    reactors: Mutex<Vec<Handle>>,
    channels: AtomicUsize,
    nexuses: AtomicU64,
}

impl Default for Spread {
    fn default() -> Self {
        Spread {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            reactors: Mutex::default(),
            channels: AtomicUsize::new(0),
            nexuses: AtomicU64::new(0),
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
        Nexus(self.id << NEXUS_BITS | (self.nexuses.fetch_add(1, Ordering::Relaxed) + 1))
    }

    /// Adds the present reactor, which has its part of the port.
    pub fn join(&self) {
        self.reactors.lock().unwrap_or_else(PoisonError::into_inner).push(weir_reactor::handle());
    }

    /// The reactors, in the order in which they joined.
    pub fn reactors(&self) -> Vec<Handle> {
        self.reactors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts a channel more, unless there are `most` already.
    pub fn admit(&self, most: usize) -> bool {
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

/// Listens on `addr` with the present reactor's provider; each login is judged by a task of its own. Gives the
/// address.
///
/// # Errors
/// The address cannot be listened on.
pub fn listen<F, Fut>(provider: &dyn Provider, addr: &str, login: F) -> Result<String, FabricError>
where
    F: Fn(Box<dyn Incoming>) -> Fut + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let listener = provider.listen(addr)?;
    let local = listener.local_addr();
    spawn_task(serve(listener, login));
    Ok(local)
}

async fn serve<F, Fut>(listener: Rc<dyn Listener>, login: F)
where
    F: Fn(Box<dyn Incoming>) -> Fut,
    Fut: Future<Output = ()> + 'static,
{
    loop {
        match listener.next().await {
            Ok(incoming) => {
                spawn_task(login(incoming));
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

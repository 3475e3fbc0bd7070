//! A port's part on one reactor, and those who connect.

use crate::conn::{Conn, STAGING};
use crate::greet;
use crate::nexuses::Initiator;
use crate::planted::{Bug, has};
use crate::target::Shared;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use weir_base::SECONDS;
use weir_fabric::FabricError;
use weir_mem::BufPool;
use weir_reactor::{
    WaitChannel, cancel, contained_future, get_part, remove_part, set_part, sleep, spawn_task,
};
use weir_stream::{Accepted, Listener, Lobby, Network, Parted, Stream};
use weir_target_core::{Site, Units, spread};

/// Connections whose handshake is under way, at each address that is listened on.
const HALF_OPEN: usize = 128;
/// Requests with memory of their own, at once on one reactor, of as many hosts.
const LARGE: u32 = 8;
/// How long a reactor may take to take a connection over.
const TAKE_OVER: u64 = 5 * SECONDS;

/// The part of a port on the present reactor.
pub(crate) struct Port {
    pub(crate) shared: Arc<Shared>,
    pub(crate) network: Rc<dyn Network>,
    pub(crate) units: Rc<Units>,
    pub(crate) pool: BufPool,
    /// Requests longer than the largest data buffer, which have memory of their own.
    pub(crate) large: WaitChannel,
    /// The same of each host.
    large_of: RefCell<BTreeMap<Initiator, Weak<WaitChannel>>>,
    /// Where bytes are received ahead of their turn.
    pub(crate) scratch: RefCell<Vec<u8>>,
    conns: RefCell<Vec<Rc<Conn>>>,
    stopped: Cell<bool>,
}

impl Port {
    pub(crate) fn start(shared: &Arc<Shared>, site: &Site) {
        let port = Rc::new(Port {
            shared: shared.clone(),
            network: site.network.clone(),
            units: site.units.clone(),
            pool: site.pool.clone(),
            large: WaitChannel::new(LARGE),
            large_of: RefCell::default(),
            scratch: RefCell::new(vec![0; STAGING / 4]),
            conns: RefCell::default(),
            stopped: Cell::new(false),
        });
        set_part(shared.spread.id(), port);
    }

    /// The part of a port on the present reactor.
    pub(crate) fn local(target: u64) -> Option<Rc<Port>> {
        get_part(target)
    }

    /// The connections here.
    pub(crate) fn conns(&self) -> Vec<Rc<Conn>> {
        self.conns.borrow().clone()
    }

    pub(crate) fn add(&self, c: &Rc<Conn>) {
        self.conns.borrow_mut().push(c.clone());
    }

    /// What the long requests of a host wait for.
    pub(crate) fn large_of(&self, initiator: Initiator) -> Rc<WaitChannel> {
        let mut all = self.large_of.borrow_mut();
        all.retain(|_, w| w.strong_count() > 0);
        all.get(&initiator).and_then(Weak::upgrade).unwrap_or_else(|| {
            let new = Rc::new(WaitChannel::new(1));
            all.insert(initiator, Rc::downgrade(&new));
            new
        })
    }

    /// A connection is over, and so are its commands.
    pub(crate) fn remove(&self, c: &Rc<Conn>) {
        c.ahead.take();
        self.conns.borrow_mut().retain(|x| !Rc::ptr_eq(x, c) || has(Bug::ConnectionStays));
    }

    /// Nothing is done here any more.
    pub(crate) fn stop(&self) {
        self.stopped.set(true);
        self.conns().iter().for_each(|c| c.parts());
        if self.shared.spread.stops() {
            // Nobody is left who could tell units.
            let all = self.shared.nexuses.clear();
            all.into_iter().for_each(|n| self.shared.access.nexus_lost(n));
        }
        remove_part::<Port>(self.shared.spread.id());
    }

    /// Its part has ended, whatever commands still do.
    pub(crate) fn is_dead(&self) -> bool {
        self.stopped.get()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.get() || self.shared.spread.is_closed()
    }
}

/// Listens on `addr`. Gives the address, with the port that was chosen.
pub(crate) fn listen(
    shared: &Arc<Shared>,
    network: &Rc<dyn Network>,
    addr: &str,
) -> Result<String, FabricError> {
    let bad = |why: String| FabricError::Address(addr.to_owned(), why);
    let to = network.resolve(addr).map_err(bad)?;
    let listener: Rc<dyn Listener> = network.listen(to).map_err(|e| bad(e.to_string()))?.into();
    let local = listener.local_addr().to_string();
    shared.spread.keep(spawn_task(accept_loop(shared.clone(), listener)));
    Ok(local)
}

/// Those whose handshake is under way: when they are too many, one goes of the address that has most.
type Waiting = Rc<RefCell<Lobby<()>>>;

async fn accept_loop(shared: Arc<Shared>, listener: Rc<dyn Listener>) {
    let waiting: Waiting = Rc::new(RefCell::new(Lobby::new(HALF_OPEN)));
    let _all = EndAll(Rc::downgrade(&waiting));
    for number in 0.. {
        let stream = loop {
            match listener.accept() {
                Accepted::Stream(s) => break s,
                Accepted::Nobody => drop(listener.ready().await),
                Accepted::NoDescriptor => {
                    let gone = waiting.borrow_mut().make_room();
                    match gone {
                        Some(task) => cancel(task),
                        None => sleep(SECONDS / 100).await,
                    }
                }
                Accepted::Gone => sleep(SECONDS / 100).await,
            }
        };
        let Some(peer) = stream.peer() else { continue };
        let place = number as usize;
        let (s, w) = (shared.clone(), waiting.clone());
        let task = spawn_task(async move {
            let judged = contained_future(come_in(&s, stream, place)).await;
            w.borrow_mut().leave(number);
            if let Err(p) = judged {
                s.spread.broke(&peer.to_string(), &p);
            }
        });
        let gone = waiting.borrow_mut().enter(number, peer.ip(), task);
        if let Some(task) = gone {
            cancel(task);
        }
        // Those that were let in have their turns in between.
        sleep(1).await;
    }
}

/// With the listener go those that are not in service yet.
struct EndAll(Weak<RefCell<Lobby<()>>>);

impl Drop for EndAll {
    fn drop(&mut self) {
        let Some(all) = self.0.upgrade() else { return };
        let tasks = all.borrow_mut().clear();
        tasks.into_iter().for_each(cancel);
    }
}

/// A connection on its way to the reactor that will serve it.
struct Arrived {
    stream: Box<dyn Parted>,
    greeted: greet::Greeted,
}

async fn come_in(shared: &Arc<Shared>, stream: Box<dyn Stream>, place: usize) {
    let Some(port) = Port::local(shared.spread.id()) else { return };
    let Some(greeted) = greet::greet(&port, &*stream).await else { return };
    let reactors = shared.spread.reactors();
    let (target, place) = (shared.spread.id(), place % reactors.len().max(1));
    let arrived = Arrived { stream: stream.part(), greeted };
    let take = move |a: Arrived| {
        let port = Port::local(target).filter(|p| !p.is_stopped());
        if let Some(port) = port
            && let Some(stream) = a.stream.join(&*port.network)
        {
            Conn::start(&port, stream, a.greeted);
        }
    };
    // Whoever is not taken over is closed: clients connect anew.
    let _ = spread::hand_over(&reactors, place, TAKE_OVER, arrived, take).await;
}

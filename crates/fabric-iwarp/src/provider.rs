//! The provider: connections of one reactor, and when each is looked at.

use crate::conn::Conn;
use crate::setup;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weir_base::{MILLIS, Nanos, Prng};
use weir_fabric::{Connected, FabricError, Listener, Params, Provider, RecvQueue, SoftRecvQueue};
use weir_proto_iwarp::mpa::{CrcPolicy, Policy};
use weir_reactor::{LocalFuture, Poller, Reactor, contained, now};
use weir_stream::{Network, Ready};

/// Bytes received from a socket at most in one go; shared by all connections of the reactor.
pub(crate) const STAGING: usize = 128 << 10;
const _: () = assert!(weir_proto_iwarp::rx::MIN_STAGING * 4 <= STAGING);
/// A connection silent for so long is watched instead of polled.
const SILENT: Nanos = 2 * MILLIS;

/// Settings of the provider.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Whether FPDUs carry a CRC32C.
    pub crc: CrcPolicy,
    /// Payload bytes of one FPDU at most, a multiple of 4096 up to 61440.
    pub fpdu_payload: usize,
    /// Work requests of one connection at once.
    pub send_queue: u32,
    /// Registrations of one connection at once.
    pub registrations: usize,
    /// Connections that may be in set-up at once per listener.
    pub half_open: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            crc: CrcPolicy::Off,
            fpdu_payload: 61440,
            send_queue: 4096,
            registrations: 4096,
            half_open: 128,
        }
    }
}

pub(crate) struct Shared {
    pub(crate) network: Rc<dyn Network>,
    pub(crate) config: Config,
    pub(crate) prng: RefCell<Prng>,
    /// By connection number's low bits; the slot is used again when a connection has ended.
    conns: RefCell<Vec<Option<Rc<Conn>>>>,
    free: RefCell<Vec<usize>>,
    hot: RefCell<Vec<Rc<Conn>>>,
    /// Connections with something to transmit.
    pub(crate) dirty: RefCell<Vec<Rc<Conn>>>,
    /// Kept for its memory.
    flushing: Cell<Vec<Rc<Conn>>>,
    pub(crate) ready: Ready,
    pub(crate) staging: RefCell<Vec<u8>>,
    next_qp: Cell<u32>,
}

/// The iWARP provider of one reactor.
#[derive(Clone)]
pub struct Iwarp(pub(crate) Rc<Shared>);

impl Iwarp {
    /// Adds the provider to `reactor`, whose streams are those of `network`.
    pub fn new(reactor: &Reactor, network: Rc<dyn Network>, config: Config) -> Iwarp {
        // The keys are to be hard to guess.
        let prng = RefCell::new(Prng::new(network.secret()));
        let shared = Rc::new(Shared {
            network,
            config,
            prng,
            conns: RefCell::default(),
            free: RefCell::default(),
            hot: RefCell::default(),
            dirty: RefCell::default(),
            flushing: Cell::default(),
            ready: Rc::default(),
            staging: RefCell::new(vec![0; STAGING]),
            next_qp: Cell::new(1),
        });
        reactor.add_poller(Rc::new(Turns(shared.clone())));
        Iwarp(shared)
    }

    pub(crate) fn policy(&self, reads_out: u16, reads_in: u16) -> Policy {
        Policy { crc: self.0.config.crc, max_reads_out: reads_out, max_reads_in: reads_in }
    }

    /// Connections that have not ended.
    pub fn connections(&self) -> usize {
        self.0.conns.borrow().iter().flatten().count()
    }
}

impl Shared {
    pub(crate) fn next_qp(&self) -> u32 {
        let n = self.next_qp.get();
        self.next_qp.set(n.wrapping_add(1).max(1));
        n
    }

    /// A slot number for a new connection; [`insert`](Shared::insert) fills it.
    pub(crate) fn reserve(&self) -> usize {
        self.free.borrow_mut().pop().unwrap_or_else(|| {
            self.conns.borrow_mut().push(None);
            self.conns.borrow().len() - 1
        })
    }

    pub(crate) fn insert(&self, slot: usize, conn: Rc<Conn>) {
        self.conns.borrow_mut()[slot] = Some(conn.clone());
        self.make_hot(conn);
    }

    pub(crate) fn get(&self, slot: usize) -> Option<Rc<Conn>> {
        self.conns.borrow().get(slot).cloned().flatten()
    }

    pub(crate) fn remove(&self, slot: usize) {
        let conn = self.conns.borrow_mut().get_mut(slot).and_then(Option::take);
        if conn.is_some() {
            self.free.borrow_mut().push(slot);
        }
    }

    /// Runs what is done for one connection. A panic of it ends that connection.
    #[inline]
    fn guard<R: Default>(&self, c: &Rc<Conn>, f: impl FnOnce() -> R) -> R {
        contained(f).unwrap_or_else(|p| {
            c.down(self, &format!("{}: {p}", weir_fabric::OWN_ERROR));
            R::default()
        })
    }

    fn make_hot(&self, conn: Rc<Conn>) {
        if !conn.hot.replace(true) {
            conn.last_rx.set(now());
            self.hot.borrow_mut().push(conn);
        }
    }
}

/// The provider's part of each turn. It goes with the reactor, however long somebody has the provider.
struct Turns(Rc<Shared>);

impl Drop for Turns {
    fn drop(&mut self) {
        for c in self.0.conns.take().into_iter().flatten() {
            c.down(&self.0, "the reactor has ended");
        }
        drop((self.0.hot.take(), self.0.dirty.take()));
    }
}

impl Poller for Turns {
    fn poll(&self) -> bool {
        self.0.poll()
    }

    fn flush(&self) {
        self.0.flush();
    }

    fn arm(&self) -> bool {
        self.0.arm()
    }
}

impl Shared {
    fn poll(&self) -> bool {
        loop {
            let Some(slot) = self.ready.borrow_mut().pop_front() else { break };
            let conn = self.conns.borrow().get(slot as usize).cloned().flatten();
            if let Some(c) = conn {
                self.make_hot(c);
            }
        }
        let mut busy = false;
        let mut i = 0;
        while let Some(c) = { self.hot.borrow().get(i).cloned() } {
            busy |= self.guard(&c, || c.pump(self) | c.retry_transmit(self));
            let silent = now().saturating_sub(c.last_rx.get()) > SILENT;
            let silent = silent && c.tx_idle() && !c.is_stalled();
            if c.is_down() || silent {
                c.hot.set(false);
                self.hot.borrow_mut().swap_remove(i);
                if !c.is_down() {
                    c.arm(false);
                }
                continue;
            }
            i += 1;
        }
        busy
    }

    fn flush(&self) {
        // In the order in which they came.
        let mut now = self.flushing.take();
        while !self.dirty.borrow().is_empty() {
            std::mem::swap(&mut now, &mut self.dirty.borrow_mut());
            for c in now.drain(..) {
                c.dirty.set(false);
                self.guard(&c, || c.transmit(self));
                // What did not leave is tried again in every turn, however silent the peer is.
                if !c.tx_idle() && !c.is_down() {
                    self.make_hot(c);
                }
            }
        }
        self.flushing.set(now);
    }

    fn arm(&self) -> bool {
        let hot = self.hot.borrow();
        for c in hot.iter() {
            // A stalled connection waits for a task to post a receive, not for its socket.
            if !c.is_stalled() {
                c.arm(!c.tx_idle());
            }
        }
        self.ready.borrow().is_empty()
    }
}

impl Provider for Iwarp {
    fn name(&self) -> &'static str {
        "iwarp"
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn recv_queue(&self, _depth: usize, len: usize) -> Result<Rc<dyn RecvQueue>, FabricError> {
        Ok(Rc::new(SoftRecvQueue::new(len)))
    }

    fn register_region(
        &self,
        _base: std::ptr::NonNull<u8>,
        _len: usize,
    ) -> Result<(), FabricError> {
        Ok(())
    }

    fn listen(&self, addr: &str) -> Result<Rc<dyn Listener>, FabricError> {
        setup::listen(self, addr)
    }

    fn connect<'a>(
        &'a self,
        addr: &'a str,
        params: Params,
    ) -> LocalFuture<'a, Result<Connected, FabricError>> {
        Box::pin(setup::connect(self.clone(), addr, params))
    }
}

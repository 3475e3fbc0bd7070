//! One peer: a shared receive queue, and the connections that use it.

use super::session::{Mode, Outcome, Session};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_base::Prng;
use weir_fabric::{FabricError, Listener, Params, Provider, RecvQueue, status};
use weir_mem::{BufPool, Slice};
use weir_reactor::{Completion, JoinHandle, Token, complete, completion, spawn};

/// Measures of a peer.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Longest message, and length of each receive buffer: 128 to 4096 bytes.
    pub message: usize,
    /// Receive buffers.
    pub receives: usize,
    /// Operations that each side of a connection begins.
    pub ops: u32,
    /// Places that each side of a connection offers at once.
    pub offers: u32,
    /// RDMA READs that a side asks for and serves at once.
    pub reads: u16,
}

impl Default for Config {
    fn default() -> Self {
        Config { message: 512, receives: 8, ops: 30, offers: 3, reads: 4 }
    }
}

impl Config {
    /// Buffers of 4096 bytes that the pool of a peer with so many connections at once must have, so that
    /// no connection waits for another's.
    pub fn buffers(&self, connections: usize) -> usize {
        self.receives + connections * (2 * self.offers as usize + 3)
    }
}

/// What a peer has seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Messages received and verified.
    pub messages: u64,
    /// RDMA READs verified by who read.
    pub reads: u64,
    /// RDMA WRITEs verified by whose memory was written.
    pub writes: u64,
    /// Connections that did all they had to.
    pub complete: u64,
    /// Connections that ended early, as is right under faults, aborts and crimes.
    pub broken: u64,
}

/// One peer of checked connections. It lives on one reactor.
pub struct Peer {
    pub(super) provider: Rc<dyn Provider>,
    pub(super) pool: BufPool,
    pub(super) config: Config,
    queue: Rc<dyn RecvQueue>,
    sessions: RefCell<BTreeMap<u32, Rc<Session>>>,
    pub(super) figures: Cell<Figures>,
    /// Tokens of the receives posted now.
    posted: RefCell<Vec<Token>>,
    stopped: Cell<bool>,
    tasks: RefCell<Vec<JoinHandle<()>>>,
}

impl Peer {
    /// A peer with its receives posted. Runs inside a reactor, which must be the provider's. The pool has
    /// [`buffers`](Config::buffers) of 4096 bytes and no other use.
    ///
    /// # Errors
    /// The provider has no receive queue of that size.
    pub fn new(
        provider: Rc<dyn Provider>,
        pool: BufPool,
        config: Config,
    ) -> Result<Rc<Peer>, FabricError> {
        assert!((128..=4096).contains(&config.message), "message length");
        let queue = provider.recv_queue(config.receives, config.message)?;
        let peer = Rc::new(Peer {
            provider,
            pool,
            config,
            queue,
            sessions: RefCell::default(),
            figures: Cell::default(),
            posted: RefCell::new(vec![Token::NONE; config.receives]),
            stopped: Cell::new(false),
            tasks: RefCell::default(),
        });
        for i in 0..config.receives {
            let Some(buf) = peer.pool.try_alloc(config.message) else {
                panic!("the pool is too small for {} receives", config.receives);
            };
            let p = peer.clone();
            let task = spawn(async move { p.receive(i, buf).await });
            peer.tasks.borrow_mut().push(task);
        }
        Ok(peer)
    }

    /// What it has seen.
    pub fn figures(&self) -> Figures {
        self.figures.get()
    }

    pub(super) fn count(&self, f: impl FnOnce(&mut Figures)) {
        let mut figures = self.figures.get();
        f(&mut figures);
        self.figures.set(figures);
    }

    async fn receive(&self, index: usize, buf: Slice) {
        loop {
            let (token, done) = completion();
            if self.stopped.get() {
                complete(token, Completion::error(status::FLUSHED));
                return;
            }
            self.posted.borrow_mut()[index] = token;
            self.queue.post(buf.clone(), token);
            let c = done.await;
            if self.stopped.get() {
                return;
            }
            if c.result == status::LENGTH {
                continue;
            }
            assert!(c.is_ok(), "a receive failed: {c:?}");
            let session = self.sessions.borrow().get(&c.source).cloned();
            let Some(session) = session else {
                panic!("a message from connection {}, which was never handed over", c.source);
            };
            let len = c.len as usize;
            assert!(len <= buf.len(), "{len} bytes received into a buffer of {}", buf.len());
            let bytes = buf.sub(0, len).to_vec();
            // Nobody may look at it any more.
            buf.fill(0xdd);
            session.receive(&bytes, c.extra);
        }
    }

    /// Takes all receives back, so that the pool can be counted. Connections must have ended.
    pub async fn stop(&self) {
        self.stopped.set(true);
        let posted = self.posted.borrow().clone();
        for token in posted {
            if self.queue.cancel(token) {
                complete(token, Completion::error(status::FLUSHED));
            }
        }
        let tasks = self.tasks.take();
        for t in tasks {
            t.await;
        }
        assert_eq!(self.queue.posted(), 0, "receives left in the queue");
        self.sessions.borrow_mut().clear();
    }

    /// Lets go of everything, after its reactor has died.
    pub fn abandon(&self) {
        self.stopped.set(true);
        self.sessions.borrow_mut().clear();
        self.tasks.borrow_mut().clear();
    }

    fn params(&self, private_data: Vec<u8>) -> Params {
        Params {
            private_data,
            recv_queue: self.queue.clone(),
            reads_out: self.config.reads,
            reads_in: self.config.reads,
        }
    }

    /// Serves connections for ever: each does its share in a task of its own.
    pub async fn serve(self: Rc<Self>, listener: Rc<dyn Listener>) {
        loop {
            let Ok(incoming) = listener.next().await else { return };
            let me = self.clone();
            spawn(async move {
                let Some((seed, mode)) = Mode::parse(incoming.private_data()) else {
                    panic!("private data garbled: {:02x?}", incoming.private_data());
                };
                assert!(!incoming.peer().is_empty());
                assert_eq!(incoming.peer_serves_reads(), me.config.reads);
                if mode == Mode::Reject {
                    incoming.reject(b"no, thank you");
                    return;
                }
                let answer = me.params(seed.to_le_bytes().to_vec());
                let Ok(conn) = incoming.accept(&*me.provider, answer).await else { return };
                // Between here and the first await nothing can be delivered.
                let session = Session::new(me.clone(), conn, 1, seed, mode);
                me.sessions.borrow_mut().insert(session.qp(), session.clone());
                session.run().await;
            });
        }
    }

    /// Makes one connection, plays it to its end and says how it ended.
    ///
    /// # Errors
    /// The connection could not be made; for [`Mode::Reject`] that is what has to come.
    pub async fn connect(
        self: Rc<Self>,
        addr: &str,
        seed: u64,
        mode: Mode,
    ) -> Result<Outcome, FabricError> {
        let params = self.params(mode.pack(seed));
        let made = self.provider.connect(addr, params).await;
        if let Err(FabricError::Rejected(private)) = &made
            && mode == Mode::Reject
        {
            assert!(
                private.is_empty() || private.starts_with(b"no, thank you"),
                "the rejection is garbled: {private:02x?}"
            );
        }
        let (conn, private) = made?;
        assert!(private.starts_with(&seed.to_le_bytes()), "the answer is garbled: {private:02x?}");
        assert_ne!(mode, Mode::Reject, "a rejected connection was made");
        let session = Session::new(self.clone(), conn, 0, seed, mode);
        self.sessions.borrow_mut().insert(session.qp(), session.clone());
        Ok(session.run().await)
    }

    /// A source of chance for one side of one connection.
    pub(super) fn rng(seed: u64, side: usize) -> Prng {
        Prng::new(seed.rotate_left(7) ^ (side as u64 + 1))
    }
}

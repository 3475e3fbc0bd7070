//! What clients of all protocols over TCP share: requests that wait for their answers, and the end of a connection.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_base::{IoError, IoResult};
use weir_mem::Slice;
use weir_reactor::{Units, WaitChannel};
use weir_stream::Stream;

/// A request on its way.
pub(super) struct Waiter {
    /// Where the data of a read go.
    pub(super) buf: Option<Slice>,
    /// What a write sends, for whoever is asked for it later.
    pub(super) data: Option<Slice>,
    /// A command to a unit that has been sent.
    pub(super) is_sent: Cell<bool>,
    /// It comes behind this one, and is not answered before it.
    pub(super) behind: Cell<Option<u64>>,
    /// Those that end without an answer when this one is answered.
    pub(super) ends: RefCell<Vec<u64>>,
    /// What the answer to a task management function says.
    pub(super) code: Cell<u8>,
    done: Cell<Option<IoResult>>,
    ended: WaitChannel,
}

/// A connection, and what waits on it.
pub(super) struct Link {
    pub(super) stream: Rc<dyn Stream>,
    waiting: RefCell<BTreeMap<u64, Rc<Waiter>>>,
    next: Cell<u64>,
    /// One sends at a time.
    turn: WaitChannel,
    dead: Cell<bool>,
    /// Its user is about to leave, and sends nothing more.
    leaving: Cell<bool>,
    /// Signalled at its end.
    pub(super) over: WaitChannel,
}

impl Link {
    pub(super) fn new(stream: Box<dyn Stream>) -> Link {
        Link {
            stream: stream.into(),
            waiting: RefCell::default(),
            next: Cell::new(1),
            turn: WaitChannel::new(1),
            dead: Cell::new(false),
            leaving: Cell::new(false),
            over: WaitChannel::new(0),
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.get()
    }

    /// Nothing more is answered.
    pub(super) fn die(&self) {
        self.dead.set(true);
        self.stream.shutdown(true);
        for (_, w) in self.waiting.take() {
            w.done.set(Some(Err(IoError::Offline)));
            w.ended.signal_all();
        }
        self.over.signal_all();
    }

    /// A request that waits, by its tag.
    pub(super) fn begin(&self, buf: Option<Slice>, data: Option<Slice>) -> (u64, Rc<Waiter>) {
        let tag = self.next.replace(self.next.get() + 1);
        let w = Rc::new(Waiter {
            buf,
            data,
            is_sent: Cell::default(),
            behind: Cell::default(),
            ends: RefCell::default(),
            code: Cell::default(),
            done: Cell::default(),
            ended: WaitChannel::new(0),
        });
        match self.dead.get() {
            true => w.done.set(Some(Err(IoError::Offline))),
            false => drop(self.waiting.borrow_mut().insert(tag, w.clone())),
        }
        (tag, w)
    }

    pub(super) fn find(&self, tag: u64) -> Option<Rc<Waiter>> {
        self.waiting.borrow().get(&tag).cloned()
    }

    /// It is answered. False: nobody asked.
    pub(super) fn answer(&self, tag: u64, done: IoResult) -> bool {
        let Some(w) = self.waiting.borrow_mut().remove(&tag) else { return false };
        w.done.set(Some(done));
        w.ended.signal_all();
        true
    }

    /// Requests that wait for an answer.
    pub(super) fn waiting(&self) -> Vec<u64> {
        self.waiting.borrow().keys().copied().collect()
    }

    /// Nobody else sends while this is held.
    pub(super) async fn my_turn(&self) -> Units<'_> {
        self.turn.acquire(1).await
    }

    /// Sends bytes, in one's [turn](Link::my_turn). One that fails ends the connection.
    pub(super) async fn send_now(&self, bytes: &[u8]) {
        let may = !self.dead.get() && !self.leaving.get();
        if may && self.stream.send_all(bytes).await.is_err() {
            self.die();
        }
    }

    /// Sends bytes, all of them before anybody else's.
    pub(super) async fn send(&self, bytes: &[u8]) {
        let _mine = self.my_turn().await;
        self.send_now(bytes).await;
    }

    /// The same of what is made when its turn has come: numbers go in the order of sending.
    pub(super) async fn send_in_turn(&self, make: impl FnOnce() -> Vec<u8>) {
        let _mine = self.my_turn().await;
        let bytes = make();
        self.send_now(&bytes).await;
    }

    /// Says good-bye, and nothing after it.
    pub(super) async fn send_last(&self, make: impl FnOnce() -> Vec<u8>) {
        let _mine = self.my_turn().await;
        let bytes = make();
        self.send_now(&bytes).await;
        self.leaving.set(true);
    }

    /// Waits until the connection is over.
    pub(super) async fn ended(&self) {
        while !self.dead.get() {
            self.over.wait().await;
        }
    }

    pub(super) async fn wait(&self, w: &Waiter) -> IoResult {
        loop {
            if let Some(done) = w.done.get() {
                return done;
            }
            w.ended.wait().await;
        }
    }
}

/// Exactly `n` bytes.
pub(super) async fn exactly(stream: &dyn Stream, n: usize) -> Option<Vec<u8>> {
    let mut all = vec![0; n];
    let mut have = 0;
    while have < n {
        match stream.receive_some(&mut all[have..]).await {
            Ok(k) if k > 0 => have += k,
            _ => return None,
        }
    }
    Some(all)
}

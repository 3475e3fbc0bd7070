//! Shared receive queues.

use std::cell::RefCell;
use std::rc::Rc;
use weir_mem::Slice;
use weir_reactor::{Completion, Token, complete};

/// Where messages of many connections are received (S0: the shared receive queue).
pub trait RecvQueue {
    /// Posts a buffer; `token` completes when a message is in it (see [`Connection`](crate::Connection)).
    fn post(&self, buf: Slice, token: Token);

    /// Buffers posted and not yet used.
    fn posted(&self) -> usize;

    /// Takes a posted buffer back uncompleted, if no message took it yet.
    fn cancel(&self, token: Token) -> bool;

    /// The provider's own kind, for it to recognise its queue.
    fn into_any(self: Rc<Self>) -> Rc<dyn std::any::Any>;
}

/// A receive queue of providers in software.
#[derive(Default)]
pub struct SoftRecvQueue {
    posted: RefCell<Vec<(Slice, Token)>>,
    /// Longest buffer, for checking.
    max_len: usize,
}

impl SoftRecvQueue {
    /// An empty queue for buffers of at most `max_len` bytes.
    pub fn new(max_len: usize) -> Self {
        SoftRecvQueue { posted: RefCell::default(), max_len }
    }

    /// Takes the newest posted buffer for a message: what was used last, and whoever waits for it, is
    /// still in the caches.
    #[inline]
    pub fn take(&self) -> Option<(Slice, Token)> {
        self.posted.borrow_mut().pop()
    }

    /// Puts a buffer back: the message it was taken for never came.
    pub fn untake(&self, buf: Slice, token: Token) {
        self.posted.borrow_mut().push((buf, token));
    }

    /// Completes a receive of `len` bytes from connection `qp`.
    #[inline]
    pub fn deliver(token: Token, qp: u32, len: u32, invalidated: u32) {
        complete(token, Completion { result: 0, len, source: qp, extra: invalidated });
    }
}

impl RecvQueue for SoftRecvQueue {
    fn post(&self, buf: Slice, token: Token) {
        assert!(buf.len() <= self.max_len, "receive buffer longer than the queue was made for");
        self.posted.borrow_mut().push((buf, token));
    }

    fn posted(&self) -> usize {
        self.posted.borrow().len()
    }

    fn cancel(&self, token: Token) -> bool {
        let mut q = self.posted.borrow_mut();
        match q.iter().position(|(_, t)| *t == token) {
            Some(i) => {
                q.remove(i);
                true
            }
            None => false,
        }
    }

    fn into_any(self: Rc<Self>) -> Rc<dyn std::any::Any> {
        self
    }
}

/// The software queue behind a contract's queue, if it is one.
pub fn soft_queue(queue: &Rc<dyn RecvQueue>) -> Option<Rc<SoftRecvQueue>> {
    queue.clone().into_any().downcast().ok()
}

//! Receive queues that wake the connections whose messages wait for a buffer.

use super::pair::Pair;
use crate::core::Core;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use weir_base::MICROS;
use weir_fabric::RecvQueue;
use weir_mem::Slice;
use weir_reactor::Token;

pub(crate) struct SimRecvQueue {
    core: Rc<Core>,
    depth: usize,
    max_len: usize,
    posted: RefCell<VecDeque<(Slice, Token)>>,
    /// Connections (and the side that sends) whose next message waits here.
    waiting: RefCell<Vec<(Weak<Pair>, usize)>>,
}

impl SimRecvQueue {
    pub(crate) fn new(core: Rc<Core>, depth: usize, max_len: usize) -> Self {
        SimRecvQueue {
            core,
            depth,
            max_len,
            posted: RefCell::default(),
            waiting: RefCell::default(),
        }
    }

    /// Any of the posted buffers: a shared queue promises no order.
    pub(crate) fn take(&self) -> Option<(Slice, Token)> {
        let mut posted = self.posted.borrow_mut();
        let k = self.core.clock.pick(posted.len());
        posted.remove(k)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.posted.borrow().is_empty()
    }

    /// `pair` will look again when a buffer is posted.
    pub(crate) fn wait(&self, pair: &Rc<Pair>, from: usize) {
        self.waiting.borrow_mut().push((Rc::downgrade(pair), from));
    }
}

impl RecvQueue for SimRecvQueue {
    /// # Panics
    /// When the buffer is longer, or there are more, than the queue was made for.
    fn post(&self, buf: Slice, token: Token) {
        if !self.core.is_alive() {
            return;
        }
        self.core.check_here("a receive queue");
        assert!(buf.len() <= self.max_len, "receive buffer longer than the queue was made for");
        let mut posted = self.posted.borrow_mut();
        assert!(posted.len() < self.depth, "more receives posted than the queue was made for");
        posted.push_back((buf, token));
        drop(posted);
        for (pair, from) in self.waiting.take() {
            if let Some(pair) = pair.upgrade() {
                let delay = self.core.clock.between(0, 5 * MICROS);
                self.core.after(delay, move || pair.arrive(from, 0));
            }
        }
    }

    fn posted(&self) -> usize {
        self.posted.borrow().len()
    }

    fn cancel(&self, token: Token) -> bool {
        let mut posted = self.posted.borrow_mut();
        let Some(k) = posted.iter().position(|(_, t)| *t == token) else { return false };
        let taken = posted.remove(k);
        drop(posted);
        drop(taken);
        true
    }

    fn into_any(self: std::rc::Rc<Self>) -> std::rc::Rc<dyn std::any::Any> {
        self
    }
}

//! What a client that is gone has left must not come upon what its next life writes.
//!
//! NBD has no sessions: whether another connection of a host is of a client that is gone, its stream alone tells. The stream's end is
//! behind all that the client has sent, of which much may be yet to be received. So a newcomer asks each, and nothing new begins there
//! until that is answered: by the end, by bytes that are acknowledged, or as nothing more comes.

use crate::conn::{Conn, STAGING};
use crate::nexuses::Initiator;
use crate::port::Port;
use std::rc::Rc;
use weir_base::{MILLIS, Nanos, SECONDS};
use weir_reactor::{now, sleep};
use weir_target_core::doubts::{Doubt, answers, ask_each};

/// How long a newcomer waits to know of each connection of its host.
const PATIENCE: Nanos = 5 * SECONDS;
/// How long reactors have for their answer; one that stands still keeps the newcomer out.
const ALL: Nanos = 2 * PATIENCE;
/// The end of a stream comes right behind what was sent before: how long that may take, with a packet sent again.
const QUIET: Nanos = 250 * MILLIS;
/// How often is looked whether the client of a request that waits is there.
const LOOK: Nanos = 20 * MILLIS;
/// How often a connection is looked at, by however many.
const LOOK_AGAIN: Nanos = MILLIS;
/// Bytes that are received of one connection, of one host and of all of a reactor, only to find the end.
const MOST: usize = 16 << 20;
const MOST_OF_HOST: usize = 16 << 20;
const MOST_OF_ALL: usize = 64 << 20;
/// Of these in one go.
const TURN: usize = 256 << 10;

/// A question about a connection.
struct Question {
    about: Rc<Conn>,
    doubt: Doubt,
}

impl Question {
    fn new(about: Rc<Conn>) -> Question {
        let doubt = about.doubts.raise(about.handed());
        // Until it has shown that it is there, each request is looked at again.
        about.suspect.set(Some(about.handed()));
        Question { about, doubt }
    }

    fn is_answered(&mut self) -> bool {
        let c = &self.about;
        if c.is_over() {
            c.parts();
            return true;
        }
        c.part_if_gone()
            || self.doubt.is_refuted(c.handed(), c.stream.unacknowledged())
            || c.look_ahead() && now() - c.last_came() >= QUIET
    }
}

impl Conn {
    /// If its client is gone, what has not begun never will, and others wait for what has.
    pub(crate) fn part_if_gone(&self) -> bool {
        let gone = self.stream.has_ended();
        if gone {
            self.end("its client is gone");
            self.parts();
        }
        gone
    }

    /// Ends when its client is gone, and another connection of its host has come. Without one it may have said goodbye behind what is
    /// to be done yet.
    pub(crate) async fn gone(&self) {
        loop {
            sleep(LOOK).await;
            if self.is_suspect() && self.part_if_gone() {
                return;
            }
        }
    }

    /// Ends when its client is gone before it is served.
    pub(crate) async fn gone_again(&self) {
        while !self.part_if_gone() {
            sleep(LOOK).await;
        }
    }

    /// It has not shown that its client is there since it was asked.
    pub(crate) fn is_suspect(&self) -> bool {
        let Some(handed) = self.suspect.get() else { return false };
        let suspect = self.handed() <= handed + self.stream.unacknowledged();
        if !suspect {
            self.suspect.set(None);
        }
        suspect
    }

    /// Receives what is there, without looking at it. Gives whether that is all.
    fn look_ahead(&self) -> bool {
        if now() - self.looked.get() < LOOK_AGAIN {
            // Another one has just looked.
            return self.is_all.get();
        }
        let (mut part, mut came) = (self.port.scratch.borrow_mut(), 0);
        let is_all = loop {
            // A bit is always taken, so that one is seen of which nothing comes.
            let kept = self.ahead_len.get();
            let full = kept >= MOST || kept >= STAGING && self.port.is_full(self.initiator);
            if full || came >= TURN {
                break false;
            }
            match self.stream.receive_bytes(&mut part) {
                Ok(Ok(n)) if n > 0 => {
                    self.keep_ahead(part.get(..n).unwrap_or_default());
                    came += n;
                }
                // That it has ended or is broken is seen by who asks next.
                _ => break true,
            }
        };
        self.looked.set(now());
        self.is_all.set(is_all);
        if came > 0 {
            self.came();
            // Whoever waits for the stream would wait for more.
            self.news_ahead.signal_all();
        }
        is_all
    }

    fn keep_ahead(&self, bytes: &[u8]) {
        self.ahead_len.set(self.ahead_len.get() + bytes.len());
        let mut ahead = self.ahead.borrow_mut();
        match ahead.back_mut().filter(|last| last.len() + bytes.len() <= STAGING) {
            Some(last) => last.extend_from_slice(bytes),
            None => ahead.push_back(bytes.to_vec()),
        }
    }

    /// The next bytes that were received ahead of their turn.
    pub(crate) fn take_ahead(&self) -> Option<Vec<u8>> {
        let next = self.ahead.borrow_mut().pop_front()?;
        self.ahead_len.set(self.ahead_len.get() - next.len());
        Some(next)
    }

    /// Waits until it is known of all other connections of this host and volume whether their clients are there, and those whose
    /// clients are gone have parted from the unit. False: it cannot be known.
    pub(crate) async fn after_former(&self) -> bool {
        let shared = &self.port.shared;
        let there = shared.nexuses.reactors(&self.initiator);
        let mut reactors = shared.spread.reactors();
        reactors.retain(|r| there.contains(&r.id()));
        let (target, who, naa, me) = (shared.spread.id(), self.initiator, self.naa, self.number);
        let ask = move || async move {
            let conns = Port::local(target).map(|p| p.conns()).unwrap_or_default();
            let theirs = |c: &Rc<Conn>| c.initiator == who && c.naa == naa && c.number != me;
            // All of them are asked before any has answered.
            let all = conns.into_iter().filter(theirs).map(Question::new).collect();
            answers(all, PATIENCE, Question::is_answered).await.is_empty()
        };
        ask_each(reactors, ALL, ask).await
    }
}

impl Port {
    /// No more is received ahead of its turn from this host, but a bit of each connection.
    fn is_full(&self, initiator: Initiator) -> bool {
        let conns = self.conns();
        let kept = |c: &Rc<Conn>| c.ahead_len.get();
        let its: usize = conns.iter().filter(|c| c.initiator == initiator).map(kept).sum();
        its >= MOST_OF_HOST || conns.iter().map(kept).sum::<usize>() >= MOST_OF_ALL
    }
}

//! What a client that is gone has left must not come upon what its next life writes.
//!
//! NBD has no sessions: whether another connection of a host is of a client that is gone, its stream alone tells. The stream's end is
//! behind all that the client has sent, of which much may be yet to be received. So a newcomer asks each, and nothing new begins there
//! until that is answered: by the end, by bytes that are acknowledged, or as nothing more comes.

use crate::conn::{Conn, STAGING};
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
/// Bytes that are received of one connection, and of all of a reactor, only to find the end.
const MOST: usize = 16 << 20;
const MOST_OF_ALL: usize = 64 << 20;
/// Of these in one go.
const TURN: usize = 256 << 10;

/// A question about a connection.
struct Question {
    about: Rc<Conn>,
    doubt: Doubt,
    /// Something waits in it for its turn, or has come since.
    behind: bool,
    last: Nanos,
}

impl Question {
    fn new(about: Rc<Conn>) -> Question {
        let behind = about.has_more_to_do();
        let doubt = about.doubts.raise(about.handed());
        Question { about, doubt, behind, last: now() }
    }

    fn is_answered(&mut self) -> bool {
        let c = &self.about;
        if c.is_over() || c.part_if_gone() {
            return true;
        }
        let (came, all) = c.look_ahead();
        if came {
            (self.behind, self.last) = (true, now());
        }
        let quiet = if self.behind { QUIET } else { 0 };
        self.doubt.is_refuted(c.handed(), c.stream.unacknowledged())
            || all && now() - self.last >= quiet
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

    /// Ends when its client is gone.
    pub(crate) async fn gone(&self) {
        loop {
            sleep(LOOK).await;
            if self.part_if_gone() {
                return;
            }
        }
    }

    /// Receives what is there, without looking at it. Gives whether there was any, and whether that was all.
    fn look_ahead(&self) -> (bool, bool) {
        let (mut part, mut came) = ([0; STAGING / 4], 0);
        while came < TURN {
            let ahead = self.ahead.borrow().iter().map(Vec::len).sum::<usize>();
            let kept = &self.port.kept_ahead;
            if ahead >= MOST || kept.get() >= MOST_OF_ALL {
                return (came > 0, false);
            }
            match self.stream.receive_bytes(&mut part) {
                Ok(Ok(n)) if n > 0 => {
                    kept.set(kept.get() + n);
                    self.ahead.borrow_mut().push_back(part[..n].to_vec());
                    came += n;
                }
                // That it has ended or is broken is seen by who asks next.
                _ => return (came > 0, true),
            }
        }
        (true, false)
    }

    /// The next bytes that were received ahead of their turn.
    pub(crate) fn take_ahead(&self) -> Option<Vec<u8>> {
        let next = self.ahead.borrow_mut().pop_front()?;
        let kept = &self.port.kept_ahead;
        kept.set(kept.get() - next.len());
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

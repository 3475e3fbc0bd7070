//! The gate of a device that is exported to the partner: which of the owner's commands may run on it.
//!
//! The owner epoch is the guard of every command. An epoch that the gate has not heard of counts only when the register says
//! so. Nothing of an older epoch or session runs any more when a newer one is let in: commands that have begun end first.
//! A gate that has just started knows nothing, and asks.
//!
//! Within an epoch a newer *session* ends the older one the same way. The owner drops its partner and takes it back under one
//! epoch, so the guard alone would let a late write of its own through (rule R5b).
//!
//! This node's *own* engine passes the gate, too, which the design does not say. A node that claimed and then stood still may
//! not know that the other claimed after it, and opened the pool with both nodes' devices. Its own gate knows.

use crate::ids::{Epoch, Node, Session};
use crate::planted::{Bug, has};
use crate::register::Register;
use std::collections::VecDeque;

/// An owner asks to be let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Login {
    /// Under which it owns the pool.
    pub epoch: Epoch,
    /// Who it is.
    pub owner: Node,
    /// Its number for this session. Higher ones come later.
    pub session: Session,
}

/// What a gate tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// Answer this login: it is let in.
    Admitted(Login),
    /// Answer this login: it is not.
    Refused(Login),
    /// Tell the pair machine of this node: nothing that is older than this epoch runs here any more.
    Drained(Epoch),
}

/// The gate of one device, of one life of its node.
///
/// # Order of calls
/// * [`Gate::login`] for each login; then, while [`Gate::asks`], one linearizable read of the register that *begins after* the
///   login came, and [`Gate::registered`] with its value.
/// * [`Gate::begin`] for each command, before it has any effect, and [`Gate::end`] when no effect of it can come any more.
/// * [`Gate::open_engine`] before this node's own engine writes for the first time; if it may not, the opening has failed.
///   [`Gate::engine_closed`] after its last write has ended.
/// * [`Gate::poll`] after each of them, until it has nothing to tell.
///
/// A command that does not end holds up whoever waits. After 20 s the caller gives the device up for this life.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gate {
    me: Node,
    /// The highest epoch that counts here, and its owner.
    known: Option<(Epoch, Node)>,
    /// Whose commands may begin.
    open: Option<Login>,
    /// The highest session let in under the known epoch.
    last: Session,
    /// Waits for the register.
    asking: Option<Login>,
    /// Waits for what is older to end.
    next: Option<Login>,
    /// This node's claim waits for what is older to end.
    fence: Option<Epoch>,
    /// This node's own engine.
    engine: Option<Epoch>,
    /// Commands that have begun.
    running: u32,
    out: VecDeque<Event>,
}

impl Gate {
    /// The gate of a device of node `me`, which has just started.
    pub fn new(me: Node) -> Gate {
        Gate {
            me,
            known: None,
            open: None,
            last: Session(0),
            asking: None,
            next: None,
            fence: None,
            engine: None,
            running: 0,
            out: VecDeque::new(),
        }
    }

    /// An owner asks to be let in.
    pub fn login(&mut self, login: Login) {
        if self.asking.iter().chain(&self.next).any(|other| *other == login) {
            // It waits already.
            return;
        }
        let newer = |other: &Login| (other.epoch, other.session) > (login.epoch, login.session);
        if login.owner == self.me || self.asking.iter().chain(&self.next).any(newer) {
            self.out.push_back(Event::Refused(login));
            return;
        }
        // What waited is of an older session.
        self.refuse_waiting();
        match self.known {
            Some((epoch, _)) if login.epoch < epoch => self.out.push_back(Event::Refused(login)),
            Some(known) if known == (login.epoch, login.owner) => self.enter(login),
            Some((epoch, _)) if login.epoch == epoch => self.out.push_back(Event::Refused(login)),
            None if has(Bug::GateTrustsItself) => {
                self.know((login.epoch, login.owner));
                self.enter(login);
            }
            _ => self.asking = Some(login),
        }
        self.settle();
    }

    /// Whether the register is to be read for a login.
    pub fn asks(&self) -> bool {
        self.asking.is_some()
    }

    /// What the register says.
    pub fn registered(&mut self, register: &Register) {
        self.know((register.epoch, register.owner));
        if let Some(login) = self.asking.take() {
            if self.known == Some((login.epoch, login.owner)) {
                self.enter(login);
            } else {
                self.out.push_back(Event::Refused(login));
            }
        }
        self.settle();
    }

    /// This node has claimed the pool: ends what is older.
    pub fn fence(&mut self, epoch: Epoch) {
        self.know((epoch, self.me));
        self.fence = Some(epoch);
        self.settle();
    }

    /// This node's own engine wants to open the pool under this epoch: whether it may write to the device from here on.
    #[must_use]
    pub fn open_engine(&mut self, epoch: Epoch) -> bool {
        let right = self.known == Some((epoch, self.me)) || has(Bug::EngineBesideGate);
        if right {
            self.engine = Some(epoch);
        }
        right
    }

    /// The last write of this node's own engine has ended.
    pub fn engine_closed(&mut self) {
        self.engine = None;
        self.settle();
    }

    /// A command with this guard, of this session, comes: whether it may run.
    #[must_use]
    pub fn begin(&mut self, epoch: Epoch, session: Session) -> bool {
        let right = match self.open {
            _ if has(Bug::GuardNotChecked) => true,
            Some(l) if has(Bug::OldSessionRuns) => l.epoch == epoch,
            Some(l) => (l.epoch, l.session) == (epoch, session),
            None => false,
        };
        self.running += u32::from(right);
        right
    }

    /// A command that had begun has ended, well or not.
    pub fn end(&mut self) {
        assert!(self.running > 0, "a command that did not begin has ended");
        self.running -= 1;
        self.settle();
    }

    /// The next thing to tell.
    pub fn poll(&mut self) -> Option<Event> {
        self.out.pop_front()
    }

    /// The epoch and owner that count here.
    pub fn known(&self) -> Option<(Epoch, Node)> {
        self.known
    }

    /// A newer epoch ends everything of older ones.
    fn know(&mut self, said: (Epoch, Node)) {
        if self.known.is_some_and(|(epoch, _)| epoch >= said.0) {
            return;
        }
        self.known = Some(said);
        self.open = None;
        self.last = Session(0);
        if let Some(login) = self.next.take() {
            self.out.push_back(Event::Refused(login));
        }
        // A claim of this node that is over waits for nothing.
        self.fence = None;
    }

    fn enter(&mut self, login: Login) {
        if login.session <= self.last {
            self.out.push_back(Event::Refused(login));
            return;
        }
        self.last = login.session;
        self.open = None;
        self.next = Some(login);
    }

    fn refuse_waiting(&mut self) {
        for login in [self.asking.take(), self.next.take()].into_iter().flatten() {
            self.out.push_back(Event::Refused(login));
        }
    }

    /// Lets in who waits, once nothing older runs.
    fn settle(&mut self) {
        let own = self.engine.is_none_or(|e| self.known == Some((e, self.me)));
        if (self.running > 0 || !own) && !has(Bug::DrainSkipped) {
            return;
        }
        if let Some(login) = self.next.take() {
            self.open = Some(login);
            self.out.push_back(Event::Admitted(login));
        }
        if let Some(epoch) = self.fence.take() {
            self.out.push_back(Event::Drained(epoch));
        }
    }
}

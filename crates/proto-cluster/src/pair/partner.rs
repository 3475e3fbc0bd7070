//! A node that does not own the pool: grants, suspicion, claims.

use super::{Action, Event, Pair, Ports, Role};
use crate::ids::{Epoch, Session};
use crate::message::{Beat, Message};
use crate::planted::{Bug, has};
use crate::register::{Phase, Reason};

impl Pair {
    /// The owner's machine, or one that takes itself for it, says that it lives (R7).
    pub(super) fn beat(&mut self, beat: Beat) {
        let Some(known) = self.known else { return };
        if beat.epoch > known.epoch {
            // Of whom nothing is known yet.
            self.read();
            self.heard();
        }
        let away = matches!(self.role, Role::Away | Role::Closing) && known.owner == self.partner();
        let right = away && beat.epoch == known.epoch;
        if right || has(Bug::GrantByOwner) {
            let times = self.times();
            let until = match has(Bug::DriftForgotten) {
                true => times.lease,
                false => times.grant(),
            };
            self.granted_until = self.granted_until.max(self.now + until);
            self.heard();
            self.act(Action::Send(Message::Grant(beat)));
        }
    }

    /// The other node lives.
    pub(super) fn heard(&mut self) {
        let times = self.times();
        let bias = if matches!(self.role, Role::Away | Role::Closing) { times.bias } else { 0 };
        self.suspect_at = self.now + times.suspicion + bias;
    }

    /// The pool is somebody else's, or nobody's.
    pub(super) fn go_away(&mut self) {
        self.role = Role::Away;
        self.moving = false;
        self.fail_back_at = None;
        // Nothing of what it had as owner counts any more.
        self.epoch = Epoch(0);
        self.session = Session(0);
        for t in [&mut self.lease_end, &mut self.next_beat, &mut self.readmit_at] {
            *t = self.now;
        }
        self.heard();
    }

    /// Claims the pool when that is due.
    pub(super) fn step_away(&mut self) -> bool {
        let Some(known) = self.known else { return false };
        if self.change.is_some() {
            return false;
        }
        let (mine, silent) = (known.owner == self.me(), self.now >= self.suspect_at);
        let rested = self.now >= self.retry_at;
        let reason = match known.phase {
            Phase::Handing(to) if to == self.me() => Some(Reason::Handed),
            Phase::Released if !mine => Some(Reason::GaveUp),
            // Who was to have it has not taken it.
            Phase::Handing(_) if mine => (silent && rested).then_some(Reason::Silent),
            _ if mine => rested.then_some(Reason::Restarted),
            _ => silent.then_some(Reason::Silent),
        };
        let Some(reason) = reason else { return false };
        // With devices that failed it would take the pool from an owner that may be well, and could not open it.
        let able = known.able.has(self.me()) && (mine || !self.own_failed);
        if !able && !has(Bug::TakeWithoutAble) {
            if silent {
                self.tell(Event::Waits);
            }
            return false;
        }
        self.role = Role::Claiming { handed: reason == Reason::Handed };
        let me = self.me();
        self.propose(|r| {
            // The set stays: who finds that it cannot open must be able to give the pool back (R2).
            r.owner = me;
            r.epoch = match has(Bug::NoEpochStep) && r.owner == me && reason == Reason::Restarted {
                true => r.epoch,
                false => Epoch(r.epoch.0 + 1),
            };
            r.phase = Phase::Serving;
            r.reason = reason;
        });
        true
    }

    /// How ports answer while the pool is elsewhere.
    pub(super) fn ports_away(&self) -> Ports {
        let Some(known) = self.known else { return Ports::Transitioning };
        let mine = known.owner == self.me() && !matches!(known.phase, Phase::Handing(_));
        match known.able.has(self.me()) {
            _ if mine => Ports::Unavailable,
            _ if self.now < self.suspect_at => Ports::NonOptimized,
            true => Ports::Transitioning,
            false => Ports::Unavailable,
        }
    }
}

//! The register, as a machine sees it: what it knows, and the one change that it has under way.

use super::{Action, Event, Link, Outcome, Pair, Role};
use crate::ids::{Nodes, Version};
use crate::planted::{Bug, has};
use crate::register::{Phase, Reason, Register, Writer};

/// A change whose outcome is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Change {
    /// What the register is to be, with the version that it then has.
    pub(super) value: Register,
    /// The attempt was answered, and nobody knows how it ended.
    pub(super) doubt: bool,
}

impl Pair {
    /// Reads the register, unless a read is under way.
    pub(super) fn read(&mut self) {
        if !self.reading {
            self.reading = true;
            self.act(Action::Read);
        }
    }

    /// Asks for a change of what is known.
    pub(super) fn propose(&mut self, edit: impl FnOnce(&mut Register)) {
        assert!(self.change.is_none(), "one change at a time");
        let Some(mut value) = self.known else { return };
        value.version = Version(value.version.0 + 1);
        self.n += 1;
        value.writer = Writer { node: self.me(), life: self.life, n: self.n };
        edit(&mut value);
        self.change = Some(Change { value, doubt: false });
        self.act(Action::Change(value));
    }

    /// An attempt was answered.
    pub(super) fn changed(&mut self, n: u32, outcome: Outcome) {
        let Some(change) = self.change.filter(|c| c.value.writer.n == n) else {
            // Its outcome was seen before its answer came. What the answer says may be news all the same.
            if let Outcome::Other(register) = outcome {
                self.learn(register);
            }
            return;
        };
        match outcome {
            Outcome::Done => self.learn(change.value),
            Outcome::Other(register) if has(Bug::ChangeWithoutVersion) => {
                let mut value = change.value;
                value.version = Version(register.version.0 + 1);
                self.change = Some(Change { value, doubt: false });
                self.act(Action::Change(value));
            }
            Outcome::Other(register) => {
                self.learn(register);
                // An answer that explains nothing.
                self.doubt();
            }
            Outcome::InDoubt if has(Bug::DoubtTakenForSuccess) => self.learn(change.value),
            Outcome::InDoubt if has(Bug::DoubtTakenForFailure) => {
                self.change = None;
                if matches!(self.role, Role::Claiming { .. }) {
                    self.role = Role::Away;
                }
            }
            Outcome::InDoubt => self.doubt(),
        }
    }

    /// The outcome of the change that is under way must be read.
    fn doubt(&mut self) {
        if let Some(change) = &mut self.change {
            change.doubt = true;
            self.read();
        }
    }

    /// After a read: a change in doubt that the register does not have, nor anything newer, may come yet. The same one is
    /// asked for again, as only one of that version can come; another one would not know which.
    pub(super) fn ask_again(&mut self) {
        if let Some(change) = &mut self.change
            && change.doubt
        {
            change.doubt = false;
            let value = change.value;
            self.act(Action::Change(value));
        }
    }

    /// This is, or was, the register.
    pub(super) fn learn(&mut self, register: Register) {
        let ours = register.pool == self.settings.0.pool
            && register.partner_of(self.me()) == Some(self.partner());
        if !ours {
            return;
        }
        // Epochs never go back: what says so is not this pool's register, and the next claim would repeat an epoch.
        let newer =
            self.known.is_none_or(|k| register.version > k.version && register.epoch >= k.epoch);
        if !newer && !has(Bug::StaleReadBelieved) {
            return;
        }
        if register.able.has(self.me()) && self.known.is_some_and(|k| !k.able.has(self.me())) {
            // The owner has filled and proved the devices of this node.
            self.own_failed = false;
        }
        // Only the owner says who is able and where the pool goes: what it was, or what this node asks for.
        let said = [self.known, self.change.map(|c| c.value)]
            .iter()
            .flatten()
            .any(|r| (r.able, r.phase) == (register.able, register.phase))
            || has(Bug::StaleReadBelieved);
        self.known = Some(register);
        let mut won = false;
        if let Some(change) = self.change
            && register.version >= change.value.version
        {
            // What stands is ours, or ours is over: nothing of its version can come any more.
            won = register == change.value;
            self.change = None;
        }
        self.stand(register, said, won);
    }

    /// What the newest register makes of this node; whether an owner may have `said` so here, and whether its change `won`.
    fn stand(&mut self, register: Register, said: bool, won: bool) {
        match self.role {
            Role::Starting | Role::Away | Role::Closing => {}
            Role::Claiming { handed } if won => {
                self.epoch = register.epoch;
                self.role = Role::Fencing { handed, drained: false };
                self.claimed();
            }
            Role::Claiming { .. } if self.change.is_none() => self.go_away(),
            Role::Claiming { .. } => {}
            _ if register.owner != self.me() || register.epoch != self.epoch => self.depose(),
            // Whoever has said it has the pool.
            _ if !said => self.depose(),
            Role::Serving if won && register.reason == Reason::Readmitted => {
                self.tell(Event::PartnerBack);
            }
            Role::Yielding { closed: true } if matches!(register.phase, Phase::Handing(_)) => {
                self.handed_over();
            }
            _ => {}
        }
    }

    /// Another owner, or another life of this node, has the pool: not one more byte is written (R9).
    fn depose(&mut self) {
        self.end_session();
        self.lease_end = self.now;
        self.tell(Event::Deposed(self.epoch));
        match self.role {
            Role::Opening
            | Role::Open { .. }
            | Role::Serving
            | Role::Yielding { closed: false } => {
                self.act(Action::DropEngine(self.epoch));
                self.role = Role::Closing;
            }
            _ => self.go_away(),
        }
    }

    /// The nodes that must have a write before it is acknowledged, and whose absence reads must be sure of: while a change is
    /// under way, those of the old set and of the new (R5a). That begins when a partner is filled, before it is asked for: a
    /// write between the two would not be on its devices.
    pub(super) fn duties(&self) -> Nodes {
        let known = self.known.map_or(Nodes::NONE, |k| k.able);
        if has(Bug::ReadmitDoubtIgnored) {
            return known;
        }
        let filled = match self.link {
            Link::Up { synced: true, .. } if !has(Bug::DutiesWhenProposed) => {
                known.with(self.partner())
            }
            _ => known,
        };
        match self.change {
            Some(c) if has(Bug::AckBeforeDrop) && known.covers(c.value.able) => c.value.able,
            Some(c) => filled.or(c.value.able),
            None => filled,
        }
    }
}

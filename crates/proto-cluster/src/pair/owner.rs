//! A node that owns the pool: opening, serving, dropping its partner and taking it back, handing over.

use super::{Action, Event, Link, Pair, Role};
use crate::ids::{Epoch, Node, Nodes, Session};
use crate::message::{Beat, Message};
use crate::planted::{Bug, has};
use crate::register::{Phase, Reason};

impl Pair {
    /// The register names this life as owner.
    pub(super) fn claimed(&mut self) {
        self.link = Link::None;
        self.session = Session(0);
        self.lease_end = self.now;
        self.next_beat = self.now;
        self.moving = false;
        self.heard();
        self.act(Action::Fence(self.epoch));
    }

    /// Beats go out from the claim on: they hold the partner back while the engine opens.
    pub(super) fn beat_if_due(&mut self) {
        let owner = matches!(
            self.role,
            Role::Fencing { .. }
                | Role::Opening
                | Role::Open { .. }
                | Role::Serving
                | Role::Yielding { closed: false }
        );
        if owner && self.now >= self.next_beat {
            self.next_beat = self.now + self.times().beat;
            let beat = Beat { epoch: self.epoch, life: self.life, sent: self.now };
            self.act(Action::Send(Message::Beat(beat)));
        }
    }

    /// The partner has answered a beat (R6).
    pub(super) fn grant(&mut self, beat: Beat) {
        let ours = (beat.epoch, beat.life) == (self.epoch, self.life) || has(Bug::GrantOfOldEpoch);
        if !ours || beat.sent > self.now {
            return;
        }
        let from = if has(Bug::LeaseFromReceipt) { self.now } else { beat.sent };
        self.lease_end = self.lease_end.max(from + self.times().lease);
        self.heard();
    }

    /// Opens once nothing of older epochs has effects here, and nobody is told of older data (R3).
    pub(super) fn step_fencing(&mut self, handed: bool, drained: bool) -> bool {
        let over = handed || self.now >= self.granted_until || has(Bug::NoWaitForLease);
        let Some(known) = self.known.filter(|_| drained && over) else { return false };
        self.role = Role::Opening;
        self.act(Action::Open(self.epoch, known.able));
        if known.able.has(self.partner()) {
            self.attach();
        }
        true
    }

    /// Begins a session with the partner's devices.
    fn attach(&mut self) {
        self.session = Session(self.session.0 + 1);
        self.link = Link::Coming(self.session);
        self.act(Action::Attach(self.epoch, self.session));
    }

    /// Ends the session, if there is one, for good (R5b).
    pub(super) fn end_session(&mut self) {
        if let Link::Coming(session) | Link::Up { session, .. } = self.link {
            self.link = Link::None;
            self.act(Action::Detach(session));
        }
    }

    /// The engine is open with the devices of these nodes.
    pub(super) fn opened(&mut self, epoch: Epoch, with: Nodes) {
        if self.role != Role::Opening || epoch != self.epoch {
            return;
        }
        let able = self.known.map_or(Nodes::NONE, |k| k.able);
        assert!(able.covers(with) && !with.is_empty(), "opened with {with:?}, able are {able:?}");
        if let (Link::Up { synced, .. }, true) = (&mut self.link, with.has(self.settings.0.partner))
        {
            *synced = true;
        } else {
            self.end_session();
        }
        self.role = Role::Open { with };
    }

    /// The pool cannot be opened here: the other may have it, if it is able.
    pub(super) fn open_failed(&mut self) {
        self.end_session();
        self.tell(Event::OpenFailed);
        self.retry_at = self.now + self.times().retry;
        self.go_away();
        let me = self.me();
        if let Some(known) = self.known
            && self.change.is_none()
            && !known.able.without(me).is_empty()
        {
            self.propose(|r| {
                r.able = r.able.without(me);
                r.phase = Phase::Released;
                r.reason = Reason::GaveUp;
            });
        }
    }

    /// Serves when the register promises nothing that this engine has not (R3).
    pub(super) fn step_open(&mut self, with: Nodes) -> bool {
        let Some(known) = self.known.filter(|_| self.change.is_none()) else { return false };
        if with.count() < u32::from(known.min_copies) {
            // It has changed nothing that hosts could have seen.
            self.tell(Event::TooFewCopies);
            self.end_session();
            self.retry_at = self.now + self.times().retry;
            self.act(Action::DropEngine(self.epoch));
            self.role = Role::Closing;
            return false;
        }
        if known.able != with {
            self.propose(|r| {
                r.able = with;
                r.reason = Reason::OpenedWithFewer;
            });
            if !has(Bug::ServeBeforeDrop) {
                return false;
            }
        }
        self.role = Role::Serving;
        self.readmit_at = self.now;
        self.tell(Event::Serves(self.epoch, with));
        true
    }

    /// Whether the register is being told of fewer nodes.
    pub(super) fn is_dropping(&self) -> bool {
        self.change.is_some_and(|c| self.known.is_some_and(|k| !c.value.able.covers(k.able)))
    }

    /// Whether the partner does not follow any more.
    fn is_partner_lost(&self) -> bool {
        !matches!(self.link, Link::Up { .. }) || self.now >= self.suspect_at || self.kept_out
    }

    /// Has the register and the partner follow each other.
    pub(super) fn step_serving(&mut self) -> bool {
        let Some(known) = self.known.filter(|_| self.change.is_none()) else { return false };
        let partner = self.partner();
        if known.able.has(partner) {
            if self.drop_failed() {
                return true;
            }
            self.fail_back(known.preferred == partner);
            // An engine without devices of its own is of no use where it is.
            let of_no_use = !known.able.has(self.me());
            let ready = of_no_use || (self.moving && !self.is_partner_lost());
            return ready && self.begin_to_yield();
        }
        self.moving = false;
        self.fail_back_at = None;
        if self.own_failed {
            self.drop_failed();
        }
        let follows = self.now < self.suspect_at && !self.kept_out;
        match self.link {
            Link::None if follows => {
                if self.now >= self.readmit_at.max(self.retry_at) {
                    self.attach();
                }
                false
            }
            Link::Up { synced, .. } if follows && (synced || has(Bug::ReadmitBeforeCopy)) => {
                // Asked for with this, the duties of two are ours (R5a).
                self.propose(|r| {
                    r.able = r.able.with(partner);
                    r.reason = Reason::Readmitted;
                });
                true
            }
            // Who is filled and silent, or not wanted, is nobody to wait for.
            Link::Up { synced, .. }
                if !follows && (synced || self.kept_out) && !has(Bug::DutiesWhenProposed) =>
            {
                self.end_session();
                false
            }
            _ => false,
        }
    }

    /// Takes whoever failed out of the register before anything is acknowledged without it (R4); never the last one.
    fn drop_failed(&mut self) -> bool {
        let Some(known) = self.known.filter(|_| self.change.is_none()) else { return false };
        let (me, partner) = (self.me(), self.partner());
        let (who, reason) = if known.able.has(partner) && self.is_partner_lost() {
            (partner, if self.kept_out { Reason::Operator } else { Reason::PartnerLost })
        } else if known.able.has(me) && self.own_failed {
            (me, Reason::OwnDevices)
        } else {
            return false;
        };
        if who == partner && known.min_copies > 1 {
            self.tell(Event::TooFewCopies);
            return false;
        }
        if known.able.without(who).is_empty() && !has(Bug::LastAbleDropped) {
            self.tell(Event::LastAble);
            return false;
        }
        if who == partner {
            self.partner_out();
        }
        self.propose(|r| {
            r.able = r.able.without(who);
            r.reason = reason;
        });
        true
    }

    /// The partner's session is over, and it stays out for a while: longer each time, so that one that comes and goes does not
    /// stop hosts again and again.
    fn partner_out(&mut self) {
        if has(Bug::ReadmitOverOldSession)
            && let Link::Up { session, .. } = self.link
        {
            self.link = Link::Up { session, synced: false };
            self.act(Action::Resync(session));
        } else {
            self.end_session();
        }
        let times = self.times();
        let (readmit, most, calm) = (times.readmit, times.readmit_max, times.calm);
        let flapping = times.flapping;
        let first = self.now >= self.calm_at;
        self.backoff = if first { readmit } else { (self.backoff * 2).clamp(readmit, most) };
        self.readmit_at = self.now + self.backoff;
        // While it is out it cannot prove itself.
        self.calm_at = self.readmit_at.saturating_add(calm);
        self.tell(Event::PartnerOut);
        if self.now < self.flapping_until {
            self.tell(Event::Flapping);
        }
        self.flapping_until = self.now + flapping;
    }

    /// The pool goes home when its preferred node has been able for a while.
    fn fail_back(&mut self, elsewhere: bool) {
        match (self.times().fail_back, self.fail_back_at) {
            (Some(wait), None) if elsewhere => self.fail_back_at = Some(self.now + wait),
            (_, Some(at)) if self.now >= at => {
                self.fail_back_at = None;
                self.moving = true;
            }
            _ => {}
        }
    }

    /// Holds hosts, and closes the engine (R10).
    fn begin_to_yield(&mut self) -> bool {
        self.moving = false;
        self.role = Role::Yielding { closed: has(Bug::HandOverWithoutClose) };
        // What its only devices do not have any more cannot be written.
        let whole = self.known.is_some_and(|k| k.able.has(self.me()));
        self.act(match whole || matches!(self.link, Link::Up { .. }) {
            true => Action::Close(self.epoch),
            false => Action::DropEngine(self.epoch),
        });
        true
    }

    /// Once closed: the partner may have it. One that was lost meanwhile may not, and this node opens it again.
    pub(super) fn step_yielding(&mut self, closed: bool) -> bool {
        let Some(known) = self.known.filter(|_| self.change.is_none()) else { return false };
        let partner = self.partner();
        if !closed {
            // What is under way waits for a partner that does not follow.
            return self.drop_failed();
        }
        self.end_session();
        if known.able.has(partner) {
            self.propose(|r| {
                r.phase = Phase::Handing(partner);
                r.reason = Reason::Operator;
            });
        } else {
            self.go_away();
        }
        true
    }

    /// The partner may take it; if it does not, this node does again.
    pub(super) fn handed_over(&mut self) {
        self.retry_at = self.now + self.times().hand_over;
        self.go_away();
    }

    /// The engine has ended.
    pub(super) fn closed(&mut self, epoch: Epoch) {
        if epoch != self.epoch {
            return;
        }
        match self.role {
            Role::Closing => self.go_away(),
            Role::Yielding { closed: false } => self.role = Role::Yielding { closed: true },
            _ => {}
        }
    }

    /// The partner's devices answer.
    pub(super) fn session_up(&mut self, session: Session) {
        if self.link != Link::Coming(session) {
            return;
        }
        self.link = Link::Up { session, synced: false };
        if self.role == Role::Serving {
            self.act(Action::Resync(session));
        }
    }

    /// A session is lost: it is over for good.
    pub(super) fn session_down(&mut self, session: Session) {
        if matches!(self.link, Link::Coming(s) | Link::Up { session: s, .. } if s == session) {
            self.end_session();
            self.retry_at = self.now + self.times().beat;
        }
    }

    /// The partner's devices have everything.
    pub(super) fn in_sync(&mut self, session: Session) {
        if let Link::Up { session: s, synced } = &mut self.link
            && *s == session
        {
            *synced = true;
        }
    }

    /// Devices of a node failed.
    pub(super) fn device_failed(&mut self, node: Node) {
        if node == self.me() {
            self.own_failed = true;
        } else if node == self.partner() {
            self.end_session();
        }
    }
}

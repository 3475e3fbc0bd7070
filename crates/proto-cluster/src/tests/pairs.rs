//! The pair machine by the times of a daemon, one event after the other.

use crate::ids::{Epoch, Life, Node, Nodes, Session, Version};
use crate::message::{Beat, Message};
use crate::pair::{Action, Event, Input, Outcome, Pair, Ports, Settings, Times};
use crate::register::{Phase, Reason, Register, Writer};
use std::sync::Arc;
use weir_base::{MILLIS, Nanos, SECONDS};

fn node(n: u8) -> Node {
    Node::new(n).expect("1 to 8")
}

fn both() -> Nodes {
    Nodes::only(node(1)).with(node(2))
}

/// One machine, a register that always tells, and the time.
struct Bench {
    pair: Pair,
    now: Nanos,
    register: Register,
    done: Vec<Action>,
    /// The other node answers beats.
    answers: bool,
    /// The register answers.
    tells: bool,
}

impl Bench {
    /// A machine of node `me`; node 1 owned the pool before.
    fn new(me: u8) -> Bench {
        let writer = Writer { node: node(1), life: Life(1), n: 1 };
        Bench::with(me, Register::made(7, [node(1), node(2)], writer))
    }

    fn with(me: u8, register: Register) -> Bench {
        let (me, partner) = (node(me), node(3 - me));
        let settings = Settings { me, partner, pool: 7, times: Times::USUAL };
        let now = 100 * SECONDS;
        let pair = Pair::new(Arc::new(settings), Life(50), now);
        let mut bench = Bench { pair, now, register, done: vec![], answers: true, tells: true };
        bench.carry_out();
        bench
    }

    fn input(&mut self, input: Input) {
        self.pair.input(self.now, input);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.pair.poll() {
            self.done.push(action);
            match action {
                Action::Read if self.tells => self.input(Input::Read(self.register)),
                Action::Change(value) if self.tells => {
                    let right = value.version.0 == self.register.version.0 + 1;
                    let outcome = if right { Outcome::Done } else { Outcome::Other(self.register) };
                    if right {
                        self.register = value;
                    }
                    self.input(Input::Changed(value.writer.n, outcome));
                }
                Action::Fence(epoch) => self.input(Input::Drained(epoch)),
                Action::Attach(_, session) if self.answers => self.input(Input::SessionUp(session)),
                Action::Send(Message::Beat(beat)) if self.answers => {
                    self.input(Input::Message(Message::Grant(beat)));
                }
                _ => {}
            }
        }
    }

    /// Time passes, with a tick every 50 ms.
    fn pass(&mut self, time: Nanos) {
        let end = self.now + time;
        while self.now < end {
            self.now = (self.now + 50 * MILLIS).min(end);
            self.input(Input::Tick);
        }
    }

    /// What was done since the last look, without beats and what is for people.
    fn take(&mut self) -> Vec<Action> {
        let minor = |a: &Action| matches!(a, Action::Send(_) | Action::Tell(_) | Action::Read);
        self.done.drain(..).filter(|a| !minor(a)).collect()
    }

    fn told(&self, event: Event) -> bool {
        self.done.contains(&Action::Tell(event))
    }

    /// The last register that was asked for.
    fn asked(&self) -> Option<Register> {
        let change = |a: &Action| if let Action::Change(r) = a { Some(*r) } else { None };
        self.done.iter().rev().find_map(change)
    }

    /// Node 1 serves with both.
    fn serving() -> Bench {
        let mut b = Bench::new(1);
        b.pass(2 * SECONDS);
        b.input(Input::Opened(Epoch(2), both()));
        b.pass(200 * MILLIS);
        assert_eq!(b.pair.standing(), "both");
        b.done.clear();
        b
    }

    /// It hears nothing more.
    fn silent(mut self) -> Bench {
        self.answers = false;
        self
    }
}

#[test]
fn an_owner_that_starts_takes_a_new_epoch_and_waits_for_what_it_may_have_granted() {
    let mut b = Bench::new(1);
    let claim = b.asked().expect("a claim");
    assert_eq!((claim.epoch, claim.owner, claim.able), (Epoch(2), node(1), both()));
    b.pass(1050 * MILLIS);
    assert!(!b.done.contains(&Action::Open(Epoch(2), both())), "lease, drift and margin: 1.06 s");
    b.pass(50 * MILLIS);
    let opens = [Action::Open(Epoch(2), both()), Action::Attach(Epoch(2), Session(1))];
    assert_eq!(b.take()[2..], opens);
    b.input(Input::Opened(Epoch(2), both()));
    assert_eq!(b.take(), [Action::Release, Action::Ports(Ports::Optimized)]);
    assert!(b.pair.may_acknowledge(both()) && !b.pair.may_acknowledge(Nodes::only(node(1))));
}

#[test]
fn a_partner_takes_over_after_silence_lease_and_drop_in_this_order() {
    let mut b = Bench::new(2);
    let beat = Beat { epoch: Epoch(1), life: Life(9), sent: 5 };
    b.pass(600 * MILLIS);
    b.input(Input::Message(Message::Beat(beat)));
    assert!(b.done.contains(&Action::Send(Message::Grant(beat))), "the beat as it came");
    b.done.clear();
    b.pass(600 * MILLIS);
    assert_eq!(b.pair.standing(), "away");
    b.pass(50 * MILLIS);
    let claim = b.asked().expect("a claim");
    assert_eq!((claim.epoch, claim.owner, claim.reason), (Epoch(2), node(2), Reason::Silent));
    assert_eq!(claim.able, both(), "the set stays");
    b.input(Input::Message(Message::Beat(beat)));
    assert!(!b.done.contains(&Action::Send(Message::Grant(beat))), "no grants any more");
    b.pass(400 * MILLIS);
    assert_eq!(b.pair.standing(), "fencing");
    b.pass(50 * MILLIS);
    assert_eq!(b.pair.standing(), "opening");
    b.tells = false;
    b.input(Input::Opened(Epoch(2), Nodes::only(node(2))));
    let drop = b.asked().expect("a smaller set");
    assert_eq!((drop.able, drop.reason), (Nodes::only(node(2)), Reason::OpenedWithFewer));
    assert!(!b.pair.may_acknowledge(Nodes::only(node(2))) && b.pair.standing() == "opening");
    b.input(Input::Changed(drop.writer.n, Outcome::Done));
    assert_eq!(b.pair.standing(), "alone");
    assert!(b.pair.may_acknowledge(Nodes::only(node(2))) && b.pair.may_read(b.now));
}

#[test]
fn a_node_that_is_not_able_waits_and_says_so() {
    let writer = Writer { node: node(1), life: Life(1), n: 1 };
    let made = Register::made(7, [node(1), node(2)], writer);
    let mut b = Bench::with(2, Register { able: Nodes::only(node(1)), ..made });
    b.pass(10 * SECONDS);
    assert!(b.asked().is_none() && b.told(Event::Waits));
    assert!(b.done.contains(&Action::Ports(Ports::Unavailable)));
}

#[test]
fn a_lease_begins_when_the_beat_was_sent() {
    let mut b = Bench::serving().silent();
    b.pass(100 * MILLIS);
    let sent = |a: &Action| if let Action::Send(Message::Beat(m)) = a { Some(*m) } else { None };
    let beat = b.done.iter().rev().find_map(sent).expect("a beat");
    b.now += 300 * MILLIS;
    b.input(Input::Message(Message::Grant(beat)));
    assert!(b.pair.may_read(beat.sent + SECONDS - 1));
    assert!(!b.pair.may_read(beat.sent + SECONDS));
    for wrong in [
        Beat { epoch: Epoch(1), sent: b.now, ..beat },
        Beat { life: Life(49), sent: b.now, ..beat },
        Beat { sent: b.now + 1, ..beat },
    ] {
        b.input(Input::Message(Message::Grant(wrong)));
        assert!(!b.pair.may_read(beat.sent + SECONDS), "{wrong:?}");
    }
}

#[test]
fn a_silent_partner_is_dropped_before_anything_is_acknowledged_without_it() {
    let mut b = Bench::serving().silent();
    b.tells = false;
    b.pass(600 * MILLIS);
    let drop = b.asked().expect("a drop");
    assert_eq!((drop.able, drop.reason), (Nodes::only(node(1)), Reason::PartnerLost));
    assert_eq!(b.take()[0], Action::Detach(Session(1)), "its session is over for good");
    assert!(b.pair.may_acknowledge(both()) && !b.pair.may_acknowledge(Nodes::only(node(1))));
    b.pass(SECONDS);
    assert!(!b.pair.may_read(b.now), "the lease is over, and it is not known to be alone");
    b.input(Input::Changed(drop.writer.n, Outcome::Done));
    assert!(b.pair.may_acknowledge(Nodes::only(node(1))) && b.pair.may_read(b.now));
    assert!(!b.pair.may_acknowledge(Nodes::NONE));
}

#[test]
fn a_change_in_doubt_is_asked_for_again_until_it_is_known() {
    let mut b = Bench::serving();
    b.tells = false;
    b.input(Input::SessionDown(Session(1)));
    let drop = b.asked().expect("a drop");
    let before = b.register;
    b.done.clear();
    b.input(Input::Changed(drop.writer.n, Outcome::InDoubt));
    assert_eq!(b.done, [Action::Read]);
    b.input(Input::NotRead);
    b.pass(200 * MILLIS);
    assert!(b.done.iter().filter(|a| **a == Action::Read).count() == 2, "it reads again");
    b.input(Input::Read(before));
    assert_eq!(b.asked(), Some(drop), "the very same");
    assert!(!b.pair.may_acknowledge(Nodes::only(node(1))));
    b.input(Input::Changed(drop.writer.n, Outcome::Other(drop)));
    assert!(b.pair.may_acknowledge(Nodes::only(node(1))), "it was its own");
}

#[test]
fn another_owner_ends_it_without_a_write() {
    let mut b = Bench::serving();
    let mut taken = b.register;
    taken.version = Version(taken.version.0 + 1);
    (taken.epoch, taken.owner) = (Epoch(3), node(2));
    b.input(Input::Seen(taken));
    assert!(!b.pair.may_read(b.now) && !b.pair.may_acknowledge(both()));
    let want = [
        Action::Detach(Session(1)),
        Action::DropEngine(Epoch(2)),
        Action::Hold,
        Action::Ports(Ports::Transitioning),
    ];
    assert_eq!(b.take(), want);
    b.input(Input::Closed(Epoch(2)));
    assert_eq!(b.pair.standing(), "away");
}

/// Fills the partner as soon as it may come back; how long that was.
fn readmit(b: &mut Bench) -> Nanos {
    let from = b.now;
    while !b.done.iter().any(|a| matches!(a, Action::Resync(_))) {
        b.pass(100 * MILLIS);
        assert!(b.now < from + 7200 * SECONDS, "it is never taken back");
    }
    let resync = |a: &Action| if let Action::Resync(s) = a { Some(*s) } else { None };
    let session = b.done.iter().find_map(resync).expect("a session");
    b.done.clear();
    b.tells = false;
    b.input(Input::InSync(session));
    assert_eq!(b.asked().expect("a readmission").able, both());
    assert!(!b.pair.may_acknowledge(Nodes::only(node(1))), "duties of two before it is known");
    let asked = b.asked().expect("a readmission");
    b.tells = true;
    b.register = asked;
    b.input(Input::Changed(asked.writer.n, Outcome::Done));
    assert!(b.pair.standing() == "both" && b.told(Event::PartnerBack));
    b.now - from
}

#[test]
fn a_partner_that_is_filled_and_silent_is_let_go() {
    let mut b = Bench::serving();
    b.input(Input::SessionDown(Session(1)));
    b.pass(31 * SECONDS);
    assert!(b.take().contains(&Action::Resync(Session(2))));
    b.answers = false;
    b.pass(SECONDS);
    b.input(Input::InSync(Session(2)));
    assert_eq!(b.take(), [Action::Detach(Session(2))]);
    assert!(b.pair.may_acknowledge(Nodes::only(node(1))) && b.pair.may_read(b.now));
}

#[test]
fn a_partner_that_comes_and_goes_stays_out_longer_each_time() {
    let mut b = Bench::serving();
    let mut waits = Vec::new();
    for n in 0..9 {
        let session = Session(n + 1);
        b.input(Input::SessionDown(session));
        assert!(b.told(Event::PartnerOut) && b.pair.standing() == "alone");
        assert_eq!(b.told(Event::Flapping), n == 1, "within a minute: drop {n}");
        waits.push(readmit(&mut b) / SECONDS);
    }
    assert_eq!(waits, [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]);
    b.pass(2 * 3600 * SECONDS);
    b.input(Input::SessionDown(Session(10)));
    assert_eq!(readmit(&mut b) / SECONDS, 30, "forgiven after an hour");
}

#[test]
fn a_pool_is_closed_before_it_is_handed_over_and_taken_without_a_wait() {
    let mut b = Bench::serving();
    b.input(Input::Move);
    let want = [Action::Close(Epoch(2)), Action::Hold, Action::Ports(Ports::Transitioning)];
    assert_eq!(b.take(), want);
    assert!(b.pair.may_acknowledge(both()), "what is under way ends");
    b.input(Input::Closed(Epoch(2)));
    assert_eq!(b.register.phase, Phase::Handing(node(2)));
    assert!(!b.pair.may_acknowledge(both()) && !b.pair.may_read(b.now));
    let mut other = Bench::with(2, b.register);
    assert_eq!((other.register.owner, other.register.epoch), (node(2), Epoch(3)));
    assert!(other.take().contains(&Action::Open(Epoch(3), both())), "at once");
    // Nobody takes it: it is taken back.
    b.pass(5100 * MILLIS);
    assert_eq!((b.register.owner, b.register.epoch), (node(1), Epoch(3)));
}

#[test]
fn a_partner_that_is_lost_during_a_hand_over_is_not_handed_the_pool() {
    let mut b = Bench::serving();
    b.input(Input::Move);
    b.input(Input::SessionDown(Session(1)));
    assert_eq!(b.register.able, Nodes::only(node(1)));
    assert!(b.pair.may_acknowledge(Nodes::only(node(1))), "so that the engine can close");
    b.input(Input::Closed(Epoch(2)));
    b.pass(100 * MILLIS);
    assert_eq!((b.register.owner, b.register.epoch), (node(1), Epoch(3)), "its own again");
    assert_eq!(b.register.phase, Phase::Serving);
}

#[test]
fn an_owner_whose_devices_fail_hands_over_and_the_last_one_stays_on_record() {
    let mut b = Bench::serving();
    b.input(Input::DeviceFailed(node(1)));
    assert_eq!(b.register.able, Nodes::only(node(2)));
    assert!(b.take().contains(&Action::Close(Epoch(2))));
    b.input(Input::Closed(Epoch(2)));
    assert_eq!(b.register.phase, Phase::Handing(node(2)));

    let mut b = Bench::serving().silent();
    b.pass(SECONDS);
    assert_eq!(b.pair.standing(), "alone");
    b.input(Input::DeviceFailed(node(1)));
    assert_eq!(b.register.able, Nodes::only(node(1)), "Mayastor 1084");
    assert!(b.told(Event::LastAble));
}

#[test]
fn a_pool_that_must_have_two_copies_waits_for_the_second() {
    let writer = Writer { node: node(1), life: Life(1), n: 1 };
    let made = Register::made(7, [node(1), node(2)], writer);
    let mut b = Bench::with(1, Register { min_copies: 2, ..made });
    b.pass(2 * SECONDS);
    b.input(Input::Opened(Epoch(2), Nodes::only(node(1))));
    assert!(b.told(Event::TooFewCopies) && b.done.contains(&Action::DropEngine(Epoch(2))));
    b.input(Input::Closed(Epoch(2)));
    b.pass(10 * SECONDS);
    assert_eq!(b.register.epoch, Epoch(3), "it is tried again");
    b.pass(SECONDS);
    b.input(Input::Opened(Epoch(3), both()));
    assert_eq!(b.pair.standing(), "both");
    b.input(Input::SessionDown(Session(1)));
    assert_eq!(b.register.able, both());
    assert!(!b.pair.may_acknowledge(Nodes::only(node(1))));
}

#[test]
fn a_pool_that_cannot_be_opened_is_left_to_the_other_node() {
    let mut b = Bench::new(1);
    b.pass(2 * SECONDS);
    b.input(Input::OpenFailed(Epoch(2)));
    assert_eq!((b.register.phase, b.register.able), (Phase::Released, Nodes::only(node(2))));
    b.pass(60 * SECONDS);
    assert_eq!(b.register.epoch, Epoch(2), "it is not able, and does not try");
    let other = Bench::with(2, b.register);
    assert_eq!((other.register.owner, other.register.epoch), (node(2), Epoch(3)));
}

#[test]
fn a_pool_goes_home_when_its_node_has_been_able_for_a_minute() {
    let mut b = Bench::serving();
    b.register.version = Version(b.register.version.0 + 1);
    b.register.preferred = node(2);
    b.input(Input::Seen(b.register));
    b.pass(59 * SECONDS);
    assert_eq!(b.pair.standing(), "both");
    b.pass(2 * SECONDS);
    assert_eq!(b.pair.standing(), "yielding");
}

#[test]
fn an_operator_has_the_partner_out_and_in_again() {
    let mut b = Bench::serving();
    b.input(Input::Drain(true));
    assert_eq!((b.register.able, b.register.reason), (Nodes::only(node(1)), Reason::Operator));
    b.pass(3600 * SECONDS);
    assert!(!b.done.iter().any(|a| matches!(a, Action::Attach(..))));
    b.done.clear();
    b.input(Input::Drain(false));
    readmit(&mut b);
}

#[test]
fn an_owner_that_did_not_say_who_is_able_is_not_the_owner() {
    for able in [Nodes::NONE, Nodes::only(node(2))] {
        let mut b = Bench::new(1);
        let mut foreign = b.register;
        assert_eq!((foreign.epoch, b.pair.standing()), (Epoch(2), "fencing"));
        b.tells = false;
        foreign.version = Version(foreign.version.0 + 1);
        foreign.able = able;
        b.input(Input::Seen(foreign));
        assert!(b.done.contains(&Action::Tell(Event::Deposed(Epoch(2)))), "{able:?}");
        b.input(Input::Drained(Epoch(2)));
        b.pass(10 * SECONDS);
        assert!(b.done.iter().all(|a| !matches!(a, Action::Open(..))), "{able:?}");
    }
}

#[test]
fn settings_that_follow_a_change_in_doubt_are_no_other_owner() {
    let mut b = Bench::serving();
    b.tells = false;
    b.input(Input::Drain(true));
    let Some(Action::Change(value)) = b.done.last().copied() else { panic!("{:?}", b.done) };
    assert_eq!(value.able, Nodes::only(node(1)));
    b.input(Input::Changed(value.writer.n, Outcome::InDoubt));
    let next = Register { version: Version(value.version.0 + 1), preferred: node(2), ..value };
    b.input(Input::Seen(next));
    assert_eq!((b.pair.known(), b.pair.standing()), (Some(&next), "alone"));
}

#[test]
#[should_panic(expected = "clock of a node went back")]
fn time_never_goes_back() {
    let mut b = Bench::serving();
    b.now -= 1;
    b.input(Input::Tick);
}

#[test]
fn it_says_when_it_wants_to_be_told_of_the_time() {
    let b = Bench::serving();
    let next = b.pair.deadline();
    assert!(next > b.now && next <= b.now + Times::USUAL.beat);
}

#[test]
fn a_grant_outlasts_the_lease_by_the_slowest_clock() {
    assert_eq!(Times::USUAL.grant(), 1060 * MILLIS);
    let odd = Times { lease: 1, drift: 1, margin: 0, ..Times::USUAL };
    assert_eq!(odd.grant(), 2, "rounded up");
}

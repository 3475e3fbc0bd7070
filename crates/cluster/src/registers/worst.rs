//! The worst register allowed, for simulations: without I/O, without a clock, and the same for the same seed.
//!
//! It keeps what [`Registers`](super::Registers) promises, and nothing else. Answers come late or never. A change in doubt
//! has either outcome, and that may be decided long after the doubt was told. For a while there is no majority: reads fail
//! or wait, and changes are decided afterwards or never.
//!
//! Times are nanoseconds of the caller's clock, which must not go back.

use super::{Changed, Pool, ReadError, Standing, State, follows};
use crate::planted::{Bug, has};
use std::collections::{BTreeMap, VecDeque};
use weir_base::{MILLIS, Nanos, Prng};
use weir_proto_cluster::{Register, Version};

/// What a caller asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// The register of this pool.
    Read(Pool),
    /// Make `value` the register if this version stands.
    Change(Option<Version>, Register),
}

/// What comes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Of a read.
    Read(Result<Option<Standing>, ReadError>),
    /// Of a change.
    Changed(Changed),
}

/// Names something that was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// How bad it is. Chances are of a thousand.
#[derive(Debug, Clone, Copy)]
pub struct Manners {
    /// Longest time to an answer, in ns.
    pub latest: Nanos,
    /// Longest time from a doubt that was told until it is decided, in ns.
    pub late: Nanos,
    /// Chance that an answer never comes.
    pub lost: u64,
    /// Chance that a change is told as in doubt, or that a read fails.
    pub doubt: u64,
    /// Chance of a change in doubt never to happen.
    pub never: u64,
    /// Chance with each question that the majority goes.
    pub outage: u64,
    /// Longest time without a majority, in ns.
    pub outage_for: Nanos,
}

impl Default for Manners {
    /// Everything happens often.
    fn default() -> Manners {
        Manners {
            latest: 200 * MILLIS,
            late: 2_000 * MILLIS,
            lost: 50,
            doubt: 200,
            never: 500,
            outage: 20,
            outage_for: 3_000 * MILLIS,
        }
    }
}

impl Manners {
    /// Every answer comes, and none is a doubt.
    pub fn good() -> Manners {
        Manners { lost: 0, doubt: 0, outage: 0, ..Manners::default() }
    }
}

/// What happens at a time.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// The register is looked at, or changed. The answer goes to this ticket at that time, if it is to have one.
    Effect(Ask, Option<(Ticket, Nanos)>),
    Answer(Ticket, Answer),
}

/// The register.
#[derive(Debug)]
pub struct Worst {
    state: State,
    manners: Manners,
    chance: Prng,
    now: Nanos,
    /// By time, and among the same by the order in which they were made.
    events: BTreeMap<(Nanos, u64), Event>,
    answers: VecDeque<(Ticket, Answer)>,
    tickets: u64,
    order: u64,
    /// Without a majority before this.
    outage_until: Nanos,
    /// What stood before, for a bug on purpose.
    before: State,
}

impl Worst {
    /// One without any register.
    pub fn new(seed: u64, manners: Manners) -> Worst {
        Worst {
            state: State::default(),
            manners,
            chance: Prng::new(seed),
            now: 0,
            events: BTreeMap::new(),
            answers: VecDeque::new(),
            tickets: 0,
            order: 0,
            outage_until: 0,
            before: State::default(),
        }
    }

    /// From now on with these manners. What was asked before keeps its fate.
    pub fn behave(&mut self, manners: Manners) {
        self.manners = manners;
        self.outage_until = self.now;
    }

    /// Asks. Which answer is to it says the ticket.
    pub fn ask(&mut self, now: Nanos, ask: Ask) -> Ticket {
        self.advance(now);
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        if self.happens(self.manners.outage) {
            let long = self.up_to(self.manners.outage_for);
            self.outage_until = self.outage_until.max(self.now.saturating_add(long));
        }
        let answered = self.now.saturating_add(self.up_to(self.manners.latest));
        match ask {
            Ask::Change(expected, value) => {
                if let Err(why) = follows(value.pool, expected, &value) {
                    self.at(
                        answered,
                        Event::Answer(ticket, Answer::Changed(Changed::Refused(why))),
                    );
                    return ticket;
                }
                self.change(ticket, ask, answered);
            }
            Ask::Read(_) => self.read(ticket, ask, answered),
        }
        ticket
    }

    fn read(&mut self, ticket: Ticket, ask: Ask, answered: Nanos) {
        if self.happens(self.manners.lost) {
            return;
        }
        // Without a majority some wait for one, and the others give up.
        let without = answered < self.outage_until && self.chance.chance(1, 2);
        if without || self.happens(self.manners.doubt) {
            let none = Answer::Read(Err(ReadError::NoMajority));
            self.at(answered, Event::Answer(ticket, none));
            return;
        }
        let begin = self.now.max(self.outage_until);
        let answered = answered.max(begin);
        let looked = self.between(begin, answered);
        self.at(looked, Event::Effect(ask, Some((ticket, answered))));
    }

    fn change(&mut self, ticket: Ticket, ask: Ask, answered: Nanos) {
        let lost = self.happens(self.manners.lost);
        let without = answered < self.outage_until;
        if !lost && !without && !self.happens(self.manners.doubt) {
            let begin = self.now.max(self.outage_until);
            let made = self.between(begin, answered);
            self.at(made, Event::Effect(ask, Some((ticket, answered))));
            return;
        }
        if !lost {
            let doubt = if has(Bug::DoubtTakenForFailure) {
                let Ask::Change(_, value) = ask else { return };
                Changed::Other(self.state.get(value.pool))
            } else {
                Changed::InDoubt
            };
            self.at(answered, Event::Answer(ticket, Answer::Changed(doubt)));
        }
        if !self.happens(self.manners.never) {
            let begin = self.now.max(self.outage_until);
            let late = self.up_to(self.manners.late);
            self.at(begin.saturating_add(late), Event::Effect(ask, None));
        }
    }

    /// When something happens next, if anything does.
    pub fn next(&self) -> Option<Nanos> {
        if !self.answers.is_empty() {
            return Some(self.now);
        }
        self.events.keys().next().map(|(at, _)| (*at).max(self.now))
    }

    /// The next answer that has come by `now`.
    pub fn poll(&mut self, now: Nanos) -> Option<(Ticket, Answer)> {
        self.advance(now);
        self.answers.pop_front()
    }

    /// What stands, for a judge who sees everything.
    pub fn standing(&self) -> &State {
        &self.state
    }

    fn advance(&mut self, now: Nanos) {
        while let Some((&(at, order), _)) = self.events.first_key_value() {
            if at > now {
                break;
            }
            let Some(event) = self.events.remove(&(at, order)) else { break };
            self.now = self.now.max(at);
            match event {
                Event::Answer(ticket, answer) => self.answers.push_back((ticket, answer)),
                Event::Effect(ask, to) => {
                    let answer = self.effect(ask);
                    if let Some((ticket, when)) = to {
                        self.at(when, Event::Answer(ticket, answer));
                    }
                }
            }
        }
        self.now = self.now.max(now);
    }

    fn effect(&mut self, ask: Ask) -> Answer {
        match ask {
            Ask::Read(pool) if has(Bug::StaleReadBelieved) && self.chance.chance(1, 4) => {
                Answer::Read(Ok(self.before.get(pool)))
            }
            Ask::Read(pool) => Answer::Read(Ok(self.state.get(pool))),
            Ask::Change(expected, value) => {
                let before = self.state.clone();
                let changed = self.state.change(expected, value);
                if self.state != before {
                    self.before = before;
                }
                Answer::Changed(changed)
            }
        }
    }

    fn at(&mut self, when: Nanos, event: Event) {
        self.order += 1;
        self.events.insert((when, self.order), event);
    }

    fn happens(&mut self, of_thousand: u64) -> bool {
        self.chance.chance(of_thousand, 1000)
    }

    fn up_to(&mut self, limit: Nanos) -> Nanos {
        self.between(0, limit)
    }

    fn between(&mut self, from: Nanos, to: Nanos) -> Nanos {
        self.chance.between(from, to)
    }
}

#[cfg(test)]
mod tests;

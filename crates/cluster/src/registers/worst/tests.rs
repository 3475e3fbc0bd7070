//! The worst register keeps what registers promise, and really does all that it may.

use super::*;
use crate::registers::history::{Op, Summary, Violation, What, check};
use crate::registers::{Refused, Verdict, judge};
use proptest::prelude::*;
use weir_base::SECONDS;
use weir_proto_cluster::{Life, Node, Writer};

const POOL: Pool = 3;
const CLIENTS: u32 = 3;
/// How long a client waits before it takes silence for doubt.
const PATIENCE: Nanos = 500 * MILLIS;

fn value(expected: Option<Version>, client: u32, n: u32) -> Register {
    let [a, b] = [1, 2].map(|n| Node::new(n).unwrap());
    let writer = Writer { node: a, life: Life(u64::from(client)), n };
    let mut r = Register::made(POOL, [a, b], writer);
    r.version = Version(expected.map_or(1, |v| v.0 + 1));
    r
}

/// A client that asks for one thing after another.
struct Client {
    known: Option<Version>,
    asked: Option<(Ticket, Nanos, Ask)>,
    made: u32,
}

/// What clients see of a register with these manners, and how it ends.
fn history(seed: u64, manners: Manners, steps: u32) -> Vec<Op> {
    let mut register = Worst::new(seed, manners);
    let mut chance = Prng::new(seed ^ 0x5eed);
    let mut clients: Vec<Client> =
        (0..CLIENTS).map(|_| Client { known: None, asked: None, made: 0 }).collect();
    let (mut now, mut ops) = (0, Vec::new());
    for step in 0..steps {
        if step == steps - 20 {
            register.behave(Manners::good());
        }
        for (number, c) in (0..).zip(&mut clients) {
            // Silence for so long is a doubt.
            if let Some((_, begin, ask)) = c.asked.filter(|(_, b, _)| now - b > PATIENCE) {
                if let Ask::Change(expected, new) = ask {
                    let what = What::Change(expected, new, Changed::InDoubt);
                    ops.push(Op { client: number, pool: POOL, begin, end: now, what });
                }
                c.asked = None;
            }
            if c.asked.is_none() && chance.chance(3, 4) {
                let ask = if chance.chance(1, 2) {
                    Ask::Read(POOL)
                } else {
                    c.made += 1;
                    Ask::Change(c.known, value(c.known, number, c.made))
                };
                c.asked = Some((register.ask(now, ask), now, ask));
            }
        }
        now += chance.between(1, 100 * MILLIS);
        while let Some((ticket, answer)) = register.poll(now) {
            let mine = |c: &&mut Client| c.asked.is_some_and(|(t, ..)| t == ticket);
            // Nobody waits for it any more.
            let Some((number, c)) = (0..).zip(&mut clients).find(|(_, c)| mine(c)) else {
                continue;
            };
            let Some((_, begin, ask)) = c.asked.take() else { continue };
            let what = match (ask, answer) {
                (Ask::Read(_), Answer::Read(Ok(standing))) => {
                    c.known = standing.map(|(v, _)| v);
                    What::Read(standing)
                }
                (Ask::Change(expected, new), Answer::Changed(changed)) => {
                    match changed {
                        Changed::Done(v) => c.known = Some(v),
                        Changed::Other(standing) => c.known = standing.map(|(v, _)| v),
                        _ => {}
                    }
                    What::Change(expected, new, changed)
                }
                _ => continue,
            };
            ops.push(Op { client: number, pool: POOL, begin, end: now, what });
        }
    }
    // What is still asked for may have happened.
    for (client, c) in (0..).zip(clients) {
        if let Some((_, begin, Ask::Change(expected, new))) = c.asked {
            let what = What::Change(expected, new, Changed::InDoubt);
            ops.push(Op { client, pool: POOL, begin, end: now, what });
        }
    }
    ops
}

fn judged(seed: u64) -> Result<Summary, Vec<Violation>> {
    check(&history(seed, Manners::default(), 400))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_history_is_linearizable(seed: u64, lost in 0u64..400, doubt in 0u64..600, outage in 0u64..100) {
        let manners = Manners { lost, doubt, outage, ..Manners::default() };
        let ops = history(seed, manners, 300);
        prop_assert!(check(&ops).is_ok(), "{:#?}", check(&ops));
    }

    #[test]
    fn the_same_seed_is_the_same_register(seed: u64) {
        prop_assert_eq!(history(seed, Manners::default(), 200), history(seed, Manners::default(), 200));
    }
}

#[test]
fn all_that_is_allowed_happens() {
    let mut total = Summary::default();
    for seed in 0..20 {
        let s = judged(seed).unwrap_or_else(|v| panic!("seed {seed}: {v:#?}"));
        total.done += s.done;
        total.other += s.other;
        total.doubt_happened += s.doubt_happened;
        total.doubt_unseen += s.doubt_unseen;
    }
    assert!(total.done > 100 && total.other > 100, "{total:?}");
    assert!(total.doubt_happened > 20 && total.doubt_unseen > 50, "{total:?}");
}

#[test]
fn a_doubt_may_be_decided_after_it_was_told() {
    let manners = Manners { doubt: 1000, never: 0, lost: 0, outage: 0, ..Manners::default() };
    let mut late = 0;
    for seed in 0..50 {
        let mut register = Worst::new(seed, manners);
        let new = value(None, 1, 1);
        let ticket = register.ask(0, Ask::Change(None, new));
        let mut now = 0;
        while let Some(next) = register.next() {
            now = next;
            if let Some((t, answer)) = register.poll(now) {
                assert_eq!((t, answer), (ticket, Answer::Changed(Changed::InDoubt)));
                let seen = register.standing().get(POOL);
                late += u32::from(judge(&new, seen) == Verdict::Open);
            }
        }
        assert!(now <= manners.latest + manners.late);
        assert_eq!(register.standing().get(POOL), Some((Version(1), new)));
    }
    assert!(late > 10, "only {late} of 50");
}

#[test]
fn without_a_majority_nothing_is_answered_but_doubt() {
    let long = Manners { outage: 1000, outage_for: 60 * SECONDS, lost: 0, ..Manners::default() };
    let mut waited = 0;
    for seed in 0..50 {
        let mut register = Worst::new(seed, long);
        register.ask(0, Ask::Read(POOL));
        let until = register.outage_until;
        while let Some(next) = register.next() {
            match register.poll(next) {
                Some((_, Answer::Read(Ok(_)))) => assert!(next >= until),
                Some((_, answer)) => {
                    assert_eq!(answer, Answer::Read(Err(ReadError::NoMajority)));
                }
                None => {}
            }
            waited += u32::from(next >= until);
        }
    }
    assert!(waited > 0);
}

#[test]
fn good_manners_answer_everything() {
    let ops = history(1, Manners::good(), 300);
    let s = check(&ops).unwrap();
    // Only what is under way at the end.
    assert!(s.doubt_happened + s.doubt_unseen <= u64::from(CLIENTS));
    let mut register = Worst::new(1, Manners::good());
    register.ask(0, Ask::Change(Some(Version(5)), value(None, 1, 1)));
    let at = register.next().unwrap();
    let refused = Answer::Changed(Changed::Refused(Refused::Version));
    assert_eq!(register.poll(at).unwrap().1, refused);
}

#[cfg(feature = "planted")]
#[test]
fn planted_bugs_are_seen_in_histories() {
    use crate::planted::{Bug, plant};
    for bug in Bug::ALL.iter().filter(|b| !Bug::KILLS.contains(b) && !Bug::TESTS.contains(b)) {
        plant(Some(*bug));
        let caught = (0..50).find(|seed| judged(*seed).is_err());
        plant(None);
        assert!(caught.is_some(), "{bug:?} is not caught");
    }
}

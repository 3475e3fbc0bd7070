//! Histories that registers can have, and wrong ones of each kind.

use super::*;
use crate::registers::{Refused, State};
use proptest::prelude::*;
use weir_base::Prng;
use weir_proto_cluster::{Life, Node, Writer};

fn value(version: u64, n: u32) -> Register {
    let [a, b] = [1, 2].map(|n| Node::new(n).unwrap());
    let writer = Writer { node: a, life: Life(7), n };
    let mut r = Register::made(9, [a, b], writer);
    r.version = Version(version);
    r
}

fn stands(version: u64, n: u32) -> Option<Standing> {
    Some((Version(version), value(version, n)))
}

fn op(begin: Nanos, end: Nanos, what: What) -> Op {
    Op { client: 1, pool: 9, begin, end, what }
}

fn read(begin: Nanos, end: Nanos, standing: Option<Standing>) -> Op {
    op(begin, end, What::Read(standing))
}

/// A change to version `version` as change `n`.
fn change(begin: Nanos, end: Nanos, version: u64, n: u32, changed: Changed) -> Op {
    let expected = (version > 1).then(|| Version(version - 1));
    op(begin, end, What::Change(expected, value(version, n), changed))
}

fn done(begin: Nanos, end: Nanos, version: u64, n: u32) -> Op {
    change(begin, end, version, n, Changed::Done(Version(version)))
}

fn doubt(begin: Nanos, end: Nanos, version: u64, n: u32) -> Op {
    change(begin, end, version, n, Changed::InDoubt)
}

fn wrong(history: &[Op], says: &str) {
    let text: Vec<String> = check(history).unwrap_err().iter().map(|v| v.0.clone()).collect();
    assert!(text.iter().any(|t| t.contains(says)), "{says}: {text:?}");
}

fn right(history: &[Op]) -> Summary {
    check(history).unwrap_or_else(|v| panic!("{v:?}"))
}

#[test]
fn what_registers_do_passes() {
    let s = right(&[
        read(0, 5, None),
        done(6, 10, 1, 1),
        read(11, 12, stands(1, 1)),
        change(11, 20, 2, 3, Changed::Other(stands(2, 2))),
        done(13, 18, 2, 2),
        read(21, 22, stands(2, 2)),
    ]);
    assert_eq!((s.ops, s.reads, s.done, s.other, s.versions), (6, 3, 2, 1, 2));
    assert_eq!(check(&[]), Ok(Summary::default()));
}

#[test]
fn beside_each_other_either_may_be_seen() {
    right(&[done(0, 10, 1, 1), read(1, 2, None), read(3, 4, stands(1, 1)), read(3, 9, None)]);
}

#[test]
fn what_a_node_tells_unasked_may_be_over_and_binds_those_after_it() {
    let told = |begin, end, version, n| {
        op(begin, end, What::Newer(stands(version, n).expect("a register")))
    };
    right(&[done(0, 1, 1, 1), done(2, 3, 2, 2), told(4, 5, 1, 1)]);
    right(&[doubt(0, 1, 1, 1), told(2, 3, 1, 1), read(4, 5, stands(1, 1))]);
    wrong(&[doubt(0, 1, 1, 1), told(2, 3, 1, 1), read(4, 5, None)], "older");
    wrong(&[told(0, 1, 1, 1), done(2, 3, 1, 1)], "not asked for");
    wrong(&[told(2, 3, 1, 1)], "nobody");
}

#[test]
fn a_doubt_may_end_either_way_and_late() {
    let s = right(&[done(0, 1, 1, 1), doubt(2, 3, 2, 2), read(4, 5, stands(1, 1))]);
    assert_eq!((s.doubt_happened, s.doubt_unseen), (0, 1));
    let s = right(&[
        done(0, 1, 1, 1),
        doubt(2, 3, 2, 2),
        read(4, 5, stands(1, 1)),
        read(6, 7, stands(2, 2)),
    ]);
    assert_eq!((s.doubt_happened, s.doubt_unseen), (1, 0));
    // Nobody saw it, but what follows it needs it.
    right(&[done(0, 1, 1, 1), doubt(2, 3, 2, 2), done(4, 5, 3, 3)]);
    // One of two that were asked for at once, and asked for again.
    right(&[doubt(0, 1, 1, 1), doubt(0, 1, 1, 2), done(2, 3, 1, 2), read(4, 5, stands(1, 2))]);
    // Its second attempt finds that the first had happened.
    let lost = change(4, 5, 1, 1, Changed::Other(stands(2, 2)));
    right(&[doubt(0, 1, 1, 1), done(2, 3, 2, 2), lost]);
}

#[test]
fn a_version_has_one_value() {
    wrong(&[done(0, 9, 1, 1), done(0, 9, 1, 2)], "was also of");
    wrong(&[done(0, 1, 1, 1), doubt(0, 1, 1, 2), read(2, 3, stands(1, 2))], "was also of");
}

#[test]
fn a_change_that_was_told_not_to_have_happened_does_not_stand() {
    let failed = change(2, 3, 2, 2, Changed::Other(None));
    wrong(&[done(0, 9, 1, 1), failed, read(4, 5, stands(2, 2))], "told not to have happened");
}

#[test]
fn versions_are_a_chain() {
    wrong(&[done(0, 1, 1, 1), done(2, 3, 3, 3)], "nobody can have made version 2");
    wrong(&[read(0, 1, stands(1, 1))], "nobody can have made version 1");
    wrong(&[doubt(0, 1, 1, 1), read(2, 3, stands(1, 5))], "nobody can have made version 1");
}

#[test]
fn who_begins_later_sees_no_older_version() {
    let two = [done(0, 1, 1, 1), done(2, 3, 2, 2)];
    wrong(&[two[0], two[1], read(4, 5, stands(1, 1))], "older version");
    wrong(&[two[0], read(2, 3, None)], "older version");
    wrong(&[two[0], two[1], read(2, 3, stands(2, 2)), read(4, 5, stands(1, 1))], "older version");
    let refused = change(4, 5, 3, 3, Changed::Other(stands(1, 1)));
    wrong(&[two[0], two[1], refused], "older version");
    // A doubt that was seen once stays.
    let seen = [two[0], doubt(2, 3, 2, 2), read(4, 5, stands(2, 2)), read(6, 7, stands(1, 1))];
    wrong(&seen, "older version");
}

#[test]
fn nobody_sees_what_has_not_begun() {
    wrong(&[read(0, 1, stands(1, 1)), done(2, 3, 1, 1)], "not asked for before 2");
    wrong(&[done(0, 1, 1, 1), done(2, 3, 3, 3), doubt(5, 6, 2, 2)], "not asked for before 5");
}

#[test]
fn an_answer_must_fit_its_question() {
    wrong(&[done(0, 1, 1, 1), change(2, 3, 2, 2, Changed::Done(Version(3)))], "cannot be");
    // What was expected stood.
    let failed = change(2, 3, 2, 2, Changed::Other(stands(1, 1)));
    wrong(&[done(0, 1, 1, 1), failed], "cannot be");
    wrong(&[change(0, 1, 1, 1, Changed::Refused(Refused::Version))], "cannot be");
    // A value that skips a version, told as done.
    let skips = op(2, 3, What::Change(Some(Version(1)), value(3, 2), Changed::Done(Version(3))));
    wrong(&[done(0, 1, 1, 1), skips], "cannot be");
    let mut other = value(1, 1);
    other.pool = 8;
    wrong(&[done(0, 1, 1, 1), read(2, 3, Some((Version(1), other)))], "calls itself another");
}

#[test]
fn registers_do_not_mix() {
    let mut elsewhere = read(4, 5, None);
    elsewhere.pool = 4;
    right(&[done(0, 1, 1, 1), elsewhere]);
}

/// Whether some order of the operations explains a history: all orders are tried, so it must be short.
fn some_order(ops: &[Op], state: &State, left: u32) -> bool {
    if left == 0 {
        return true;
    }
    let is_left = |n: &usize| left & (1 << n) != 0;
    // In doubt, it may happen after it was answered: then it is before nobody.
    let in_doubt = |op: &Op| matches!(op.what, What::Change(_, _, Changed::InDoubt));
    let first_end =
        (0..ops.len()).filter(is_left).filter(|n| !in_doubt(&ops[*n])).map(|n| ops[n].end);
    let first_end = first_end.min().unwrap_or(Nanos::MAX);
    (0..ops.len()).filter(is_left).any(|n| {
        let (op, rest) = (&ops[n], left & !(1 << n));
        // One that is not in doubt has ended before this one begins, and is to come. What was told unasked may be of long ago.
        if first_end < op.begin && !matches!(op.what, What::Newer(_)) {
            return false;
        }
        let mut after = state.clone();
        match op.what {
            What::Newer(told) => Some(told) == state.get(op.pool) && some_order(ops, &after, rest),
            What::Read(standing) => standing == state.get(op.pool) && some_order(ops, &after, rest),
            What::Change(expected, value, told) => {
                let really = after.change(expected, value);
                match told {
                    Changed::InDoubt => {
                        some_order(ops, state, rest) || some_order(ops, &after, rest)
                    }
                    told => told == really && some_order(ops, &after, rest),
                }
            }
        }
    })
}

/// A short history of one register, in which something may then be made wrong.
fn by_chance(seed: u64) -> Vec<Op> {
    let mut chance = Prng::new(seed);
    let (mut state, mut ops) = (State::default(), Vec::new());
    for n in 0..=chance.below(5) {
        let at = 30 + n * 10;
        let (begin, end) = (at - chance.below(25), at + chance.below(25));
        let current = state.get(9).map(|(v, _)| v.0);
        if let Some(told) = state.get(9).filter(|_| chance.chance(1, 8)) {
            let later = end + chance.below(60);
            ops.push(op(later.saturating_sub(5), later, What::Newer(told)));
            continue;
        }
        if chance.chance(1, 2) {
            ops.push(read(begin, end, state.get(9)));
            continue;
        }
        let next = if chance.chance(3, 4) { current.unwrap_or(0) + 1 } else { 1 + chance.below(4) };
        let asked = value(next, chance.below(3) as u32);
        let expected = (next > 1).then(|| Version(next - 1));
        let (told, end) = match chance.below(3) {
            0 => {
                if chance.chance(1, 2) {
                    state.change(expected, asked);
                }
                (Changed::InDoubt, begin + chance.below(25))
            }
            _ => (state.change(expected, asked), end),
        };
        ops.push(op(begin, end, What::Change(expected, asked, told)));
    }
    if chance.chance(1, 2) {
        let one = chance.below(ops.len() as u64) as usize;
        let version = chance.below(4);
        let standing =
            (version > 0).then(|| (Version(version), value(version, chance.below(3) as u32)));
        let shift = chance.below(40);
        match (chance.below(3), &mut ops[one].what) {
            (0, _) => {
                ops[one].begin += shift;
                ops[one].end += shift;
            }
            (_, What::Read(seen)) => *seen = standing,
            (_, What::Newer(told)) => *told = standing.unwrap_or(*told),
            (1, What::Change(_, _, told)) => *told = Changed::Other(standing),
            (_, What::Change(_, asked, told)) => *told = Changed::Done(asked.version),
        }
    }
    ops
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// The rules say what a search of all orders says.
    #[test]
    fn the_rules_are_as_good_as_a_search(seed: u64) {
        let ops = by_chance(seed);
        let found = check(&ops);
        let explained = some_order(&ops, &State::default(), (1 << ops.len()) - 1);
        prop_assert_eq!(found.is_ok(), explained, "{:#?}\n{:?}", ops, found);
    }
}

#[test]
fn chance_makes_right_and_wrong_histories() {
    let right = (0..1000).filter(|seed| check(&by_chance(*seed)).is_ok()).count();
    assert!((200..900).contains(&right), "{right} of 1000 are right");
}

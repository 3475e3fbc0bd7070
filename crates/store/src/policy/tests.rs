//! Rules: what is made and deleted over any course of time.

use super::plan::{There, due, excess};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn rule(text: &str) -> Rule {
    text.parse().unwrap()
}

fn policy(text: &str) -> Policy {
    rule(text).policy
}

#[test]
fn texts_are_read_and_written() {
    let r = rule("keep=24  every=600s");
    assert_eq!((r.policy.every(), r.policy.keep(), r.group.clone()), (600, 24, None));
    assert_eq!(r.to_string(), "every=10m,keep=24");
    let r = rule("every=1d,keep=7,group=db");
    assert_eq!(
        (r.group.as_deref(), r.to_string().as_str()),
        (Some("db"), "every=1d,keep=7,group=db")
    );
    for bad in [
        "",
        "every=10m",
        "keep=3",
        "every=10,keep=3",
        "every=m keep=3",
        "every=+1h keep=3",
        "every=10m keep=0",
        "every=10m keep=1001",
        "every=0s keep=1",
        "every=400d keep=1",
        "every=99999999999999999999d keep=1",
        "every=10m keep=3 keep=4",
        "often",
        "every=10m keep=3 at=noon",
        "every=1\u{fc} keep=3",
        "every=10m keep=3 group=",
        "every=10m keep=3 group=A",
    ] {
        let e = bad.parse::<Rule>().expect_err(bad).to_string();
        assert!(e.contains("write `every=10m,keep=24`"), "{e}");
    }
}

#[test]
fn names_tell_policy_and_time() {
    let p = policy("every=10m,keep=2");
    assert_eq!(p.name_at(1_795_321_280), "auto-10m-20261122-042000");
    assert_eq!(p.start_of("auto-10m-20261122-042000"), Some(1_795_321_200));
    for other in [
        "auto-10m-20261122-042001",
        "auto-10m-20261122-422000",
        "auto-10m-20261322-042000",
        "auto-10m-20261122-04200",
        "auto-10m-2026112a-042000",
        "auto-10m-+261122-042000",
        "auto-10m-20261122-0420000",
        "auto-10m-1795321200",
        "auto-1h-20261122-040000",
        "10m-20261122-042000",
    ] {
        assert_eq!(p.start_of(other), None, "{other}");
    }
    assert_eq!(policy("every=31622399s,keep=1").name_at(1_795_321_280).len(), 30);
    assert_eq!(policy("every=1d,keep=1").name_at(1_795_321_280), "auto-1d-20261122-000000");
}

#[test]
fn one_for_each_period_and_the_oldest_go() {
    let p = policy("every=10m,keep=2");
    let (a, b, c) = (p.name_at(999_600), p.name_at(1_000_200), p.name_at(1_000_800));
    assert_eq!(p.due([], 1_000_100), Some(a.clone()), "one at once");
    assert_eq!(p.next(1_000_100), 1_000_200);
    assert_eq!(p.due([a.as_str(), "by hand"], 1_000_100), None, "there is one of this period");
    assert_eq!(
        p.due([a.as_str()], 1_000_900),
        Some(c.clone()),
        "what was missed is not made up for"
    );
    let there = ["auto-1h-19700101-010000", &a, "by hand", &b, &c];
    assert_eq!(p.excess(there), [a.as_str()]);
    // The clock was an hour ahead and is right again: it goes on, and what was made first goes first.
    let ahead = p.name_at(1_003_800);
    assert_eq!(p.due([ahead.as_str()], 1_000_300), Some(b.clone()));
    assert_eq!(p.excess([ahead.as_str(), &b, &c]), [ahead.as_str()]);
}

#[test]
fn a_group_has_one_instant() {
    let charge = |v: &str, rules: &[&str]| Charge {
        volume: v.into(),
        rules: rules.iter().map(|r| rule(r)).collect(),
    };
    let charges = [
        charge("a", &["every=1m,keep=1,group=g", "every=1h,keep=2"]),
        charge("b", &["every=1m,keep=3,group=g"]),
        charge("gone", &["every=1m,keep=3,group=g", "every=1d,keep=1"]),
        charge("c", &["every=1m,keep=2"]),
    ];
    let mut there = There::new();
    for v in ["a", "b", "c"] {
        there.insert(v.into(), vec![]);
    }
    let made = due(&charges, &there, 3600);
    let what: Vec<_> = made.iter().map(|d| (d.key.name.as_str(), d.volumes.len())).collect();
    assert_eq!(what, [("g", 2), ("a", 1), ("c", 1)], "groups first, without what is not there");
    for d in &made {
        for v in &d.volumes {
            there.get_mut(v).unwrap().push(d.name.clone());
        }
    }
    assert_eq!(due(&charges, &there, 3659), []);
    // One that joins within the period, or whose snapshot was deleted, waits for the next.
    there.get_mut("b").unwrap().clear();
    assert_eq!(due(&charges, &there, 3659), []);
    let next = due(&charges, &there, 3661);
    assert_eq!(next[0].volumes, ["a", "b"]);
    for d in &next {
        for v in &d.volumes {
            there.get_mut(v).unwrap().push(d.name.clone());
        }
    }
    let gone = excess(&charges, &there);
    assert_eq!(gone.len(), 1, "{gone:?}");
    assert_eq!((gone[0].0.as_str(), gone[0].1.as_str()), ("a", "auto-1m-19700101-010000"));
}

fn policies() -> impl Strategy<Value = Policy> {
    (1u64..5000, 1u32..8).prop_map(|(every, keep)| Policy::new(every, keep).unwrap())
}

proptest! {
    #[test]
    fn a_rule_survives_its_text(policy in policies(), group in prop::option::of("[a-z0-9._-]{1,30}")) {
        let r = Rule { policy, group };
        prop_assert_eq!(r.to_string().parse::<Rule>(), Ok(r));
    }

    #[test]
    fn any_text_is_refused_or_read(text in "[a-z0-9=, ]{0,30}") {
        if let Ok(r) = text.parse::<Rule>() {
            prop_assert_eq!(r.to_string().parse::<Rule>(), Ok(r));
        }
    }

    #[test]
    fn any_name_is_foreign_or_its_own(p in policies(), name in "auto-[0-9]{1,3}[smh]-[0-9]{8}-[0-9]{6}") {
        if let Some(s) = p.start_of(&name) {
            prop_assert_eq!(p.name(s), name);
        }
    }

    #[test]
    fn what_is_there_is_what_the_policy_keeps(
        p in policies(),
        steps in prop::collection::vec((-9000i64..9000, any::<bool>()), 1..60),
        others in prop::collection::vec("[a-z]{1,3}-[0-9]{1,2}m-[0-9]{8}-[0-9]{6}", 0..4),
    ) {
        let foreign: BTreeSet<String> =
            others.into_iter().filter(|n| p.start_of(n).is_none()).collect();
        let mut there: Vec<String> = foreign.iter().cloned().collect();
        let mut now = 2_000_000u64;
        for (step, dies) in steps {
            now = now.saturating_add_signed(step);
            prop_assert!(p.next(now) > now && p.next(now) - now <= p.every());
            let new = p.due(there.iter().map(String::as_str), now);
            if let Some(new) = &new {
                prop_assert!(!there.contains(new) && new.len() <= 30);
                let start = p.start_of(new).expect("its own");
                prop_assert!(start <= now && now - start < p.every());
            }
            there.extend(new.clone());
            if dies {
                // A crash before anything was deleted; the next pass makes up for it.
                continue;
            }
            let many: BTreeSet<String> =
                p.excess(there.iter().map(String::as_str)).into_iter().map(String::from).collect();
            prop_assert!(new.is_none_or(|n| !many.contains(&n)), "the new one stays");
            there.retain(|n| !many.contains(n));
            let left = there.iter().filter(|n| p.start_of(n).is_some()).count();
            prop_assert!(left <= p.keep() as usize && left > 0);
            // After the clock was set back, that of the present period may be among the oldest; it is made anew.
            let again = p.due(there.iter().map(String::as_str), now);
            prop_assert!(again.is_none_or(|n| many.contains(&n)), "it is done");
            prop_assert!(p.excess(there.iter().map(String::as_str)).is_empty(), "it is done");
        }
        prop_assert!(foreign.iter().all(|n| there.contains(n)), "others are not touched");
    }
}

//! Policies: what is made and deleted over any course of time.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn policy(text: &str) -> Policy {
    text.parse().unwrap()
}

#[test]
fn texts_are_read_and_written() {
    let p = policy("keep=24  every=600s");
    assert_eq!((p.every(), p.keep(), p.to_string().as_str()), (600, 24, "every=10m keep=24"));
    for bad in [
        "",
        "every=10m",
        "keep=3",
        "every=10 keep=3",
        "every=m keep=3",
        "every=+1h keep=3",
        "every=10m keep=0",
        "every=10m keep=1001",
        "every=9s keep=1",
        "every=400d keep=1",
        "every=99999999999999999999d keep=1",
        "every=10m keep=3 keep=4",
        "often",
        "every=10m keep=3 at=noon",
        "every=1\u{fc} keep=3",
    ] {
        let e = bad.parse::<Policy>().expect_err(bad).to_string();
        assert!(e.contains("write `every=10m keep=24`"), "{e}");
    }
}

#[test]
fn one_for_each_period_and_the_oldest_go() {
    let p = policy("every=10m keep=2");
    let first = p.decide([], 1_000_000);
    assert_eq!(first.create.as_deref(), Some("auto-10m-999600"));
    assert_eq!((first.delete.len(), first.next), (0, 1_000_200));
    let there = ["auto-10m-999600", "by hand", "auto-1h-3600", "auto-10m-0600"];
    assert_eq!(p.decide(there, 1_000_100).create, None, "there is one of this period");
    let there = ["auto-10m-999600", "auto-10m-999000", "auto-10m-1"];
    let d = p.decide(there, 1_000_201);
    assert_eq!(d.create.as_deref(), Some("auto-10m-1000200"));
    assert_eq!(d.delete, ["auto-10m-1", "auto-10m-999000"]);
    // A clock that was set back: nothing twice, nothing younger is deleted for it.
    assert_eq!(p.decide(["auto-10m-999600"], 5000), Decision { next: 5400, ..Decision::default() });
}

fn policies() -> impl Strategy<Value = Policy> {
    (10u64..5000, 1u32..8).prop_map(|(every, keep)| Policy::new(every, keep).unwrap())
}

proptest! {
    #[test]
    fn a_policy_survives_its_text(p in policies()) {
        prop_assert_eq!(p.to_string().parse::<Policy>(), Ok(p));
    }

    #[test]
    fn any_text_is_refused_or_read(text in "[a-z0-9= ]{0,30}") {
        if let Ok(p) = text.parse::<Policy>() {
            prop_assert_eq!(p.to_string().parse::<Policy>(), Ok(p));
        }
    }

    #[test]
    fn what_is_there_is_what_the_policy_keeps(
        p in policies(),
        steps in prop::collection::vec((-9000i64..9000, any::<bool>()), 1..60),
        others in prop::collection::vec("[a-z]{1,3}-[0-9]{1,2}m-[0-9]{1,9}", 0..4),
    ) {
        let foreign: BTreeSet<String> =
            others.into_iter().filter(|n| p.start_of(n).is_none()).collect();
        let mut there = foreign.clone();
        let mut now = 2_000_000u64;
        for (step, dies) in steps {
            now = now.saturating_add_signed(step);
            let d = p.decide(there.iter().map(String::as_str), now);
            prop_assert!(d.next > now && d.next - now <= p.every());
            let newest = there.iter().filter_map(|n| p.start_of(n)).max();
            if let Some(new) = &d.create {
                prop_assert!(!there.contains(new) && new.len() < 64);
                let start = p.start_of(new).expect("its own");
                prop_assert!(start <= now && now - start < p.every());
                prop_assert!(newest.is_none_or(|n| n < start), "time goes on");
            }
            there.extend(d.create.clone());
            if dies {
                // A crash before anything was deleted; the next decision makes up for it.
                continue;
            }
            for name in &d.delete {
                prop_assert!(there.remove(name) && Some(name) != d.create.as_ref());
            }
            let left = there.iter().filter_map(|n| p.start_of(n)).count();
            prop_assert!(left <= p.keep() as usize && left > 0);
            let oldest = there.iter().filter_map(|n| p.start_of(n)).min();
            let deleted = d.delete.iter().filter_map(|n| p.start_of(n)).max();
            prop_assert!(deleted.is_none_or(|g| oldest.is_some_and(|o| g < o)), "the oldest go");
            let again = p.decide(there.iter().map(String::as_str), now);
            prop_assert_eq!((again.create, again.delete), (None, vec![]), "it is done");
        }
        prop_assert!(foreign.iter().all(|n| there.contains(n)), "others are not touched");
    }
}

//! "Exactly once" of docs/brp.md: the table of numbers, in each state of a slot.

use crate::slot::{Slot, Verdict};
use crate::types::Status;

#[test]
fn a_slot_that_was_never_used_takes_number_one_only() {
    let s = Slot::default();
    assert!(!s.is_running());
    assert_eq!(s.judge(1), Verdict::New);
    for other in [0, 2, u32::MAX] {
        assert_eq!(s.judge(other), Verdict::Wrong);
    }
}

#[test]
fn the_last_number_is_answered_again_and_the_next_is_new() {
    let mut s = Slot::default();
    s.begin(1);
    assert!(s.is_running());
    assert_eq!(s.judge(1), Verdict::Running);
    // The slot carries one command at a time: the next may come when the completion was received.
    assert_eq!((s.judge(2), s.judge(0)), (Verdict::Wrong, Verdict::Wrong));
    s.end(Status::Miscompare, 512);
    assert!(!s.is_running());
    assert_eq!(s.judge(1), Verdict::Done(Status::Miscompare, 512));
    assert_eq!(s.judge(2), Verdict::New);
    assert_eq!((s.judge(0), s.judge(3)), (Verdict::Wrong, Verdict::Wrong));
}

/// "Plus one (modulo 2^32)".
#[test]
fn numbers_go_on_behind_the_last() {
    let mut s = Slot::default();
    s.begin(u32::MAX);
    s.end(Status::Ok, 0);
    assert_eq!(s.judge(0), Verdict::New);
    s.begin(0);
    s.forget();
    assert_eq!(s.judge(0), Verdict::New, "it had no effect");
}

/// "A command whose connection is lost before it had an effect leaves its slot as it was."
#[test]
fn what_had_no_effect_is_new_when_it_comes_again() {
    let mut s = Slot::default();
    s.begin(1);
    s.end(Status::Ok, 0);
    s.begin(2);
    s.forget();
    assert!(!s.is_running());
    assert_eq!(s.judge(2), Verdict::New);
    assert_eq!(s.judge(3), Verdict::Wrong);
    s.begin(2);
    s.end(Status::Ok, 7);
    assert_eq!(s.judge(2), Verdict::Done(Status::Ok, 7));
}
